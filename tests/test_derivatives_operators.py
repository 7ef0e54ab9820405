"""Operators by collapsed Taylor mode: closed forms, nested tapes and central differences in float64."""

import inspect
import warnings

from tapelab.derivatives import (
    CoupledExamplesError,
    FallbackWarning,
    MemoryLimitError,
    laplacian,
    second_order,
    value_gradient_laplacian,
)
from tapelab.derivatives.taylor.elementwise import BY_GRADIENT, PIECEWISE, TABLES
from tapelab.runtime import tf

import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 6))
A, W, V = GENERATOR.normal(size=(6, 5)), GENERATOR.normal(size=(5, 3)), GENERATOR.normal(size=(4, 5))
IMAGES = GENERATOR.normal(size=(2, 2, 2, 3))
LAYERS = tf.keras.layers


def close(found, wanted, tolerance=1e-13):
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * max(1, np.abs(wanted).max())


def by_tapes(f, x):
    """The Laplacian of each example, by a tape in a tape."""
    x = tf.constant(x)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(x)
            y = f(x)
            parts = tf.unstack(tf.reshape(y, [len(x), -1]), axis=1)
        rows = [inner.gradient(part, x) for part in parts]
        columns = [tf.unstack(tf.reshape(row, [len(x), -1]), axis=1) for row in rows]

    def second(column, index):
        row = outer.gradient(column, x, unconnected_gradients="zero")
        return tf.reshape(row, [len(x), -1])[:, index]

    sums = [tf.add_n([second(column, i) for i, column in enumerate(row)]) for row in columns]
    return tf.reshape(tf.stack(sums, axis=1), y.shape)


def bent(x):
    """Something that depends on x by more than its first two derivatives: (4, 5), positive."""
    return tf.exp(tf.sin(x @ A) / 2) + 0.1


def both(x):
    return bent(x), tf.tanh(x @ A[::-1]) + 2


def cut(x):
    y = bent(x)
    return tf.concat([y[:, 3:], y[:, :1], tf.ones_like(y)[:, 3:]], axis=1) * tf.cumsum(y, axis=1)


def attention(x):
    q = tf.reshape(tf.sin(x), [4, 3, 2])
    k = tf.reshape(tf.cos(x), [4, 3, 2])
    return tf.reshape(tf.nn.softmax(q @ tf.transpose(k, [0, 2, 1])) @ (q * k), [4, 6])


def moved(x):
    y = tf.reshape(bent(x), [4, 5, 1])
    y = tf.tile(tf.transpose(y, [0, 2, 1]), [1, 2, 1])
    parts = tf.split(tf.pad(tf.roll(tf.reverse(y, [2]), 1, 2), [[0, 0], [0, 0], [1, 0]], constant_values=7.0), 2, 2)
    return tf.reduce_sum(parts[0] * parts[1][:, ::-1], axis=[1]) + tf.gather(y, [0, 2, 2], axis=2)[:, 0]


def stacked(x):
    first, *rest = tf.unstack(bent(x), axis=1)
    return tf.stack([first * rest[0], rest[1] ** 2, tf.zeros_like(first)], axis=1)


def branch(x):
    return tf.cond(tf.reduce_sum(x) > -100, lambda: bent(x) ** 2, lambda: tf.ones_like(bent(x)))


def repeat(x):
    y, total = bent(x), tf.zeros([4, 5], tf.float64)
    body = lambda i, y, total: (i + 1, tf.sin(y), total + y * y)  # noqa: E731
    return tf.while_loop(lambda i, *_: i < 3, body, [0, y, total])[2]


@tf.function
def inner(x):
    return bent(x) * x[:, :5]


COMPOSED = {
    "affine": lambda x: (2 - bent(x)) * 3 / 4 + x[:, :5],
    "attention": attention,
    "bias": lambda x: tf.nn.bias_add(bent(x), tf.constant(V[0])) ** 2,
    "branch": branch,
    "clip": lambda x: tf.clip_by_value(bent(x), 0.8, 1.4) ** 2,
    "cut": cut,
    "division": lambda x: both(x)[0] / both(x)[1] + 1 / both(x)[1] + both(x)[0] / 2,
    "einsum": lambda x: tf.einsum("bi,bj->bij", *both(x)) + tf.einsum("bi,ij->bj", bent(x), A[:5])[:, None],
    "einsum with an ellipsis": lambda x: tf.einsum("...i,ij->...j", bent(x), W),
    "erf": lambda x: tf.math.erf(bent(x)),
    "fft": lambda x: tf.math.real(tf.signal.fft(tf.cast(bent(x), tf.complex128))),
    "gelu": lambda x: tf.nn.gelu(bent(x)) + tf.nn.gelu(bent(x), approximate=True),
    "integer power": lambda x: bent(x) ** 3 + bent(x) ** 1 + bent(x) ** 0 + bent(x) ** -2,
    "log softmax": lambda x: tf.nn.log_softmax(bent(x)) * bent(x),
    "logsumexp": lambda x: tf.reduce_logsumexp(bent(x) * 3, axis=1),
    "lower rank": lambda x: bent(x)[:, :1] * V + tf.reduce_sum(bent(x), 1, keepdims=True) + V,
    "lower rank, product": lambda x: ((x[:, :1] + V) @ W) ** 2,
    "matrix product, both": lambda x: tf.reshape(bent(x), [4, 5, 1]) @ tf.reshape(both(x)[1], [4, 1, 5]),
    "matrix product, shared": lambda x: tf.reshape(tf.sin(x), [4, 3, 2]) @ A[:2] @ tf.constant(np.stack([W] * 4)),
    "matrix product, transposed": lambda x: tf.transpose(tf.matmul(W, bent(x), transpose_a=True, transpose_b=True)),
    "maximum": lambda x: tf.maximum(*both(x)) * tf.minimum(bent(x), 1.0),
    "moved": moved,
    "nested function": inner,
    "norm": lambda x: tf.norm(bent(x), axis=1),
    "power": lambda x: both(x)[0] ** both(x)[1] + 2.0 ** bent(x) + bent(x) ** tf.constant(V) + bent(x) ** 2.5,
    "repeat": repeat,
    "silu": lambda x: tf.nn.silu(bent(x)) * x[:, :5],
    "softmax": lambda x: tf.nn.softmax(bent(x)) * bent(x),
    "squared difference": lambda x: tf.math.squared_difference(*both(x)),
    "stacked": stacked,
    "stop": lambda x: tf.stop_gradient(bent(x)) * bent(x) + tf.round(bent(x)),
    "top": lambda x: tf.sort(bent(x), axis=1) * tf.range(5, dtype=tf.float64),
    "triangle": lambda x: tf.linalg.band_part(tf.linalg.diag(bent(x)) @ tf.linalg.diag(bent(x)), 0, 1),
    "where": lambda x: tf.where(bent(x) > 1, bent(x) ** 2, V) + tf.where(bent(x) > 1, V, both(x)[1]),
}


@pytest.mark.parametrize("name", COMPOSED)
@pytest.mark.filterwarnings("error")
def test_composed_functions_agree_with_nested_tapes(name):
    held = laplacian(COMPOSED[name], compile="graph")
    close(held(X), by_tapes(COMPOSED[name], X))
    assert held.plan(X).way == "collapsed Taylor mode"


def test_every_elementwise_operation_agrees_with_central_differences():
    raw = {name: getattr(tf.raw_ops, name) for name in sorted({*TABLES, *BY_GRADIENT, *PIECEWISE})}

    def argument(op):
        return next(iter(inspect.signature(op).parameters))

    def every(x):
        # In (0.1, 0.9), or above 1 for the one operation that needs it.
        p = 0.5 + 0.4 * tf.sin(x)
        return {name: op(**{argument(op): p + 1 if name == "Acosh" else p}) for name, op in raw.items()}

    x = np.linspace(-2, 2, 8)[:, None]
    h = 1e-4
    values = {k: tf.nest.map_structure(lambda t: t.numpy(), every(tf.constant(x + k * h))) for k in (-2, -1, 0, 1, 2)}
    found = laplacian(every, compile="graph")(x)
    for name in raw:
        y = {k: value[name] for k, value in values.items()}
        wanted = (-y[2] + 16 * y[1] - 30 * y[0] + 16 * y[-1] - y[-2]) / (12 * h * h)
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)


def keras(*layers, shape):
    return tf.keras.Sequential([tf.keras.Input(shape, dtype="float64"), *layers])


def model(kind):
    tf.keras.utils.set_random_seed(0)
    dense = [LAYERS.Dense(5, "tanh", dtype="float64"), LAYERS.Dense(2, dtype="float64")]
    if kind == "activations":
        names = ("gelu", "silu", "softplus", "elu", "selu", "sigmoid", "mish", "relu", "leaky_relu")
        return keras(*[LAYERS.Dense(4, name, dtype="float64") for name in names], dense[1], shape=(6,)), X
    if kind == "batch norm":
        return keras(dense[0], LAYERS.BatchNormalization(dtype="float64"), dense[1], shape=(6,)), X
    if kind == "dropout, off":
        return keras(dense[0], LAYERS.Dropout(0.5, dtype="float64"), dense[1], shape=(6,)), X
    if kind == "residual":
        x = tf.keras.Input((6,), dtype="float64")
        y = LAYERS.Add(dtype="float64")([LAYERS.Dense(6, "tanh", dtype="float64")(x), x])
        y = LAYERS.Concatenate(dtype="float64")([y, LAYERS.Multiply(dtype="float64")([x, y])])
        return tf.keras.Model(x, dense[1](y)), X
    if kind == "attention":
        x = tf.keras.Input((3, 2), dtype="float64")
        y = LAYERS.MultiHeadAttention(2, 3, dtype="float64")(x, x)
        return tf.keras.Model(x, LAYERS.Flatten(dtype="float64")(y)), X.reshape(4, 3, 2)
    convolution = LAYERS.Conv2D(3, 2, padding="same", activation="tanh", dtype="float64")
    pool = {"convolution": LAYERS.AveragePooling2D, "max pooling": LAYERS.MaxPooling2D}[kind]
    layers = [convolution, pool(2, dtype="float64"), LAYERS.Flatten(dtype="float64"), dense[1]]
    return keras(*layers, shape=IMAGES.shape[1:]), IMAGES


@pytest.mark.parametrize(
    "kind",
    ["activations", "attention", "batch norm", "convolution", "dropout, off", "max pooling", "residual"],
)
@pytest.mark.filterwarnings("error::tapelab.derivatives.FallbackWarning")
def test_keras_models(kind):
    f, x = model(kind)
    close(laplacian(f, compile="graph")(x), by_tapes(f, x), 1e-12)


def test_closed_forms():
    a = A[:, 0]
    close(laplacian(lambda x: tf.sin(tf.linalg.matvec(x, a)), compile="graph")(X), -(a @ a) * np.sin(X @ a))
    squares = np.sum(X**2, axis=1)
    gauss = laplacian(lambda x: tf.exp(-tf.reduce_sum(x**2, 1) / 2), compile="graph")
    close(gauss(X), (squares - 6) * np.exp(-squares / 2))
    harmonic = laplacian(lambda x: 1 / tf.reduce_sum(x**2, 1), compile="graph")
    close(harmonic(X[:, :4]), np.zeros(4), 2e-14)


def test_an_argument_of_several_and_structures():
    def f(t, x, factor):
        return {"u": factor * tf.sin(t["t"]) * x**2, "v": t["t"] ** 3}

    t, x = {"t": X[:, :1]}, X[:, 1:3]
    space = laplacian(f, argnums=1, compile="graph", unconnected="zero")(t, x, 2)
    close(space["u"], np.broadcast_to(4 * np.sin(t["t"]), [4, 2]))
    close(space["v"], np.zeros([4, 1]))
    everything = laplacian(f, argnums=(0, 1), compile="graph")(t, x, 2)
    close(everything["u"], 4 * np.sin(t["t"]) - 2 * np.sin(t["t"]) * x**2)


def test_unbatched_all_elements_are_summed_over():
    f = lambda x: tf.reduce_sum(x) ** 3  # noqa: E731
    close(laplacian(f, batched=False, compile="graph")(X), X.size * 6 * X.sum())


def test_coupled_examples_are_refused():
    coupled = lambda x: tf.tanh(x - tf.reduce_mean(x, 0))  # noqa: E731
    with pytest.raises(CoupledExamplesError, match=r"example 0 depends on other examples \(coupled examples: 4 of 4\)"):
        laplacian(coupled, compile="graph")(X)
    weak = lambda x: tf.tanh(x) + 1e-6 * tf.reverse(x, [0])  # noqa: E731
    with pytest.raises(CoupledExamplesError):
        laplacian(weak, compile="graph")(X)

    @tf.function
    def inside(x):
        return laplacian(coupled)(x)

    with pytest.raises(RuntimeError, match="not clear from the function's graph"):
        inside(tf.constant(X))


def test_examples_through_an_operation_that_is_not_followed_are_compared():
    f = lambda x: tf.scan(lambda _, row: tf.tanh(row) ** 2, x, tf.zeros(6, x.dtype))  # noqa: E731
    with pytest.warns(FallbackWarning, match="nested tapes"):
        found = laplacian(f, compile="graph")(X)
    close(found, by_tapes(lambda x: tf.tanh(x) ** 2, X))


@pytest.mark.filterwarnings("error::tapelab.derivatives.FallbackWarning")
def test_a_training_step_of_a_residual():
    f = keras(LAYERS.Dense(4, "tanh", dtype="float64"), LAYERS.Dense(1, dtype="float64"), shape=(6,))
    held = laplacian(f, compile="graph")
    (w, b, v, _) = f.trainable_variables

    def exact(x):
        t = tf.tanh(x @ w + b)
        return (-2 * t * (1 - t**2) * tf.reduce_sum(tf.square(w), 0)) @ v

    def step(residual):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(residual(tf.constant(X)) ** 2)
        return tape.gradient(loss, [w.value, b.value, v.value])

    wanted = step(exact)
    for found in (step(held), tf.function(lambda: step(held))()):
        for one, other in zip(found, wanted, strict=True):
            close(one, other)
    w.assign(2 * w)  # the weights are read at every call
    close(held(X), exact(X))


def test_second_derivatives_through_moments_are_right():
    layer = LAYERS.LayerNormalization(dtype="float64")
    f = lambda x: layer(x)[:, 0]  # noqa: E731
    x, h = X[:, :3], 1e-3
    points = {k: [f(x + k * h * unit) for unit in np.eye(3)] for k in (-2, -1, 1, 2)}
    sums = {k: sum(value) for k, value in points.items()}
    wanted = (-sums[2] + 16 * sums[1] - 90 * f(x) + 16 * sums[-1] - sums[-2]) / (12 * h * h)
    held = laplacian(f, compile="graph")
    close(held(x), wanted, 1e-6)
    assert np.abs(by_tapes(f, x) - wanted).max() > 1e-3
    assert "tf.nn.moments" in str(held.plan(x))


def determinant(x):
    return tf.linalg.det(tf.reshape(tf.sin(x[:, :4]), [4, 2, 2])) ** 2


def test_an_operation_without_a_rule_is_named_with_its_line():
    held = laplacian(determinant, compile="graph")
    with pytest.warns(FallbackWarning, match="MatrixDeterminant .*test_derivatives_operators.py, line") as caught:
        found = held(X)
    close(found, by_tapes(determinant, X))
    assert caught[0].filename == __file__
    assert held.plan(X).way.endswith("operations without a rule by derivatives of derivatives")
    assert "MatrixDeterminant" in held.plan(X).given_up[0]


@tf.custom_gradient
def straight_through(x):
    return tf.sin(x), lambda upstream: 3 * upstream * x


def test_custom_gradients_are_honoured_on_request():
    f = lambda x: straight_through(x[:, 0])  # noqa: E731
    held = laplacian(f, compile="graph")
    close(held(X), -np.sin(X[:, 0]))
    assert "not the gradient given for them: IdentityN" in str(held.plan(X))
    asked = laplacian(f, compile="graph", custom_gradients=True)
    with pytest.warns(FallbackWarning, match="custom_gradients=True"):
        found = asked(X)
    close(found, np.full(4, 3.0))
    assert "are used" in str(asked.plan(X))


def test_chunks_and_the_memory_limit():
    held = laplacian(bent, compile="graph", chunk_size=4)
    close(held(X), by_tapes(bent, X))
    assert (held.plan(X).passes, held.plan(X).chunk) == (6, 4)
    whole = laplacian(bent, compile="graph").plan(X)
    assert whole.chunk == 6
    assert laplacian(bent, compile="graph", memory_limit=whole.bytes - 1).plan(X).chunk == 5
    with pytest.raises(MemoryLimitError, match="smaller batch"):
        laplacian(bent, memory_limit=100)(X)


@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
def test_every_way_gives_the_same():
    wanted = by_tapes(bent, X)
    close(laplacian(bent)(X), wanted)
    close(laplacian(bent, compile="eager")(X), wanted)
    leaves = lambda x: bent(x) if x.numpy().size else x  # noqa: E731
    close(laplacian(leaves)(X), wanted)


def test_a_result_that_is_linear_in_pieces_is_noted():
    held = laplacian(lambda x: tf.nn.relu(x @ A), compile="graph")
    close(held(X), np.zeros([4, 5]))
    assert "the result is zero" in str(held.plan(X))


def test_no_warning_where_there_is_no_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplacian(bent, compile="graph")(X.astype(np.float32))


def test_errors():
    with pytest.raises(ValueError, match="one batch axis"):
        laplacian(tf.reduce_sum)(X)
    with pytest.raises(ValueError, match="chunk_size"):
        laplacian(bent, chunk_size=0)


def test_random_numbers_are_drawn_once_or_not_at_all():
    f = lambda x: tf.nn.dropout(tf.ones_like(x), 0.5) * x**2  # noqa: E731
    found = laplacian(f, compile="graph")(X)
    assert set(np.unique(found)) == {0.0, 4.0}
    with pytest.raises(ValueError, match="once for each of 3 chunks"):
        laplacian(f, chunk_size=2)(X)


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_value_gradient_and_laplacian(chunk_size):
    a = A[:, 0]
    f = lambda x: {"u": tf.sin(x @ A[:, :1])}  # noqa: E731
    value, gradient, curvature = value_gradient_laplacian(f, compile="graph", chunk_size=chunk_size)(X)
    t = X @ A[:, :1]
    close(value["u"], np.sin(t))
    close(gradient["u"], np.cos(t)[:, :, None] * a)
    close(curvature["u"], -(a @ a) * np.sin(t))
    f = lambda x: tf.reduce_sum(x**3)  # noqa: E731
    value, gradient, curvature = value_gradient_laplacian(f, compile="graph", batched=False)(X)
    close(gradient, 3 * X**2)
    close(curvature, 6 * X.sum())


def test_the_wave_and_the_heat_operator_and_a_matrix():
    x = X[:, :2]
    wave = second_order(lambda x: tf.sin(x[:, 0] - 2 * x[:, 1]), directions=np.eye(2), weights=[4.0, -1.0])
    close(wave(x), np.zeros(4))
    decay = lambda x: tf.exp(-3 * x[:, 0]) * tf.sin(x[:, 1])  # noqa: E731
    options = {"directions": [[0.0, 1.0]], "weights": [-0.5], "drift": [1.0, 0.0]}
    for compile in ("graph", "eager"):
        heat = second_order(decay, **options, compile=compile)
        close(heat(x), -2.5 * np.exp(-3 * x[:, 0]) * np.sin(x[:, 1]))
    options["chunk_size"], options["directions"], options["weights"] = 1, np.eye(2)[::-1], [-0.5, 0.0]
    close(second_order(decay, **options, compile="graph")(x), heat(x))  # the drift counts once
    quadratic = GENERATOR.normal(size=(2, 2))
    f = lambda x: tf.reduce_sum((x @ quadratic) * x, 1)  # noqa: E731
    matrix = np.array([[1.0, 3.0], [0.0, -2.0]])
    wanted = np.sum(matrix * (quadratic + quadratic.T))
    close(second_order(f, matrix=matrix, compile="graph")(x), np.full(4, wanted))
    close(second_order(f, matrix=np.outer([1, 2], [1, 2]), compile="graph").plan(x).passes, 1)


def test_black_and_scholes():
    s, t = np.array([80.0, 100.0, 125.0]), np.array([0.1, 0.5, 0.9])
    strike, rate, sigma = 100.0, 0.05, 0.2

    def price(x):  # time, price of the stock
        left = 1 - x[:, 0]
        d = (tf.math.log(x[:, 1] / strike) + (rate + sigma**2 / 2) * left) / (sigma * tf.sqrt(left))
        normal = lambda z: 0.5 * tf.math.erfc(-z / np.sqrt(2.0))  # noqa: E731
        return x[:, 1] * normal(d) - strike * tf.exp(-rate * left) * normal(d - sigma * tf.sqrt(left))

    def volatility(x):
        return tf.stack([tf.zeros_like(x[:, 0]), sigma * x[:, 1] / np.sqrt(2.0)], 1)[None]

    def drift(x):
        return tf.stack([tf.ones_like(x[:, 1]), rate * x[:, 1]], 1)

    x = np.stack([t, s], 1)
    found = second_order(price, directions=volatility, drift=drift, compile="graph")(x)
    close(found, rate * price(tf.constant(x)))


def test_coefficients_are_read_anew():
    scale = {"now": 1.0}
    weight = tf.Variable([2.0], dtype=tf.float64)
    held = second_order(
        lambda x: x[:, 0] ** 2, directions=lambda x: scale["now"] * np.eye(6)[:1], weights=weight, compile="graph"
    )
    close(held(X), np.full(4, 4.0))
    scale["now"] = 3.0
    close(held(X), np.full(4, 36.0))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(held(X))
    close(tape.gradient(loss, weight), [4 * 18.0])
    weight.assign([1.0])
    close(held(X), np.full(4, 18.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either directions or a matrix"),
        ({"matrix": np.eye(3), "weights": [1.0]}, "weights belong to directions"),
        ({"matrix": np.zeros([2, 3])}, r"expected finite numbers of shape \(n, n\)"),
        ({"matrix": np.eye(3)}, r"the matrix has shape \(3, 3\); expected n = 6"),
        ({"directions": np.eye(3)}, r"directions of shape"),
        ({"directions": np.eye(6), "weights": [1.0]}, "one for each of the 6 directions"),
        ({"directions": np.eye(6), "drift": [1.0]}, r"drift of shape"),
    ],
)
def test_coefficients_that_do_not_fit(options, message):
    with pytest.raises(ValueError, match=message):
        second_order(bent, **options, compile="graph")(X)


def test_samples():
    diagonal = laplacian(lambda x: tf.reduce_sum(x**3, 1), samples=2, compile="graph")
    close(diagonal(X), 6 * X.sum(1))  # random signs square to one
    mixed = lambda x: tf.reduce_sum(x, 1) ** 2  # noqa: E731
    fresh = laplacian(mixed, samples=4000, compile="graph")
    estimate, again = fresh(X), fresh(X)
    assert np.abs(estimate - again).max() > 0
    assert np.abs(estimate - 12).max() < 6 * np.sqrt(2 * 30 * 4 / 4000)
    held = laplacian(mixed, samples=4, seed=1, compile="graph")
    np.testing.assert_array_equal(held(X), held(X))
    assert len(np.unique(held(X))) > 1  # each example has its own
    for options in ({"samples": 0}, {"samples": 2, "seed": 0.5}, {"seed": 1}):
        with pytest.raises(ValueError, match=r"samples|seed"):
            laplacian(mixed, **options)


@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")  # filters that move take nested tapes
def test_biases_and_filters_that_depend_on_the_source():
    def f(x):
        filters = tf.reshape(tf.tile(tf.sin(x), [4]), [2, 2, 3, 2])
        return tf.nn.bias_add(tf.nn.conv2d(IMAGES * tf.reduce_sum(x) ** 2, filters, 1, "VALID"), x[:2] ** 3)

    close(laplacian(f, batched=False, compile="graph")(X[0]), laplacian(f, batched=False, compile="eager")(X[0]))
    close(laplacian(lambda x: tf.nn.bias_add(X, x**3), batched=False, compile="graph")(X[0]), np.stack([6 * X[0]] * 4))


def test_batch_normalisation_in_training_couples_examples():
    layer = LAYERS.BatchNormalization(dtype="float64")
    with pytest.raises(CoupledExamplesError, match="batch normalisation in training mode"):
        laplacian(lambda x: layer(x, training=True), compile="graph")(X)
