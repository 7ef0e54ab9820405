"""Operators by collapsed Taylor mode: closed forms, nested tapes and central differences in float64."""

import warnings

from tapelab.derivatives import (
    CoupledExamplesError,
    FallbackWarning,
    MemoryLimitError,
    hessian,
    hvp,
    laplacian,
    second_order,
    taylor,
    value_gradient_laplacian,
)
from tapelab.derivatives.operators.taylor_mode.rules import RULES
from tapelab.graphs.operations import linear_in
from tapelab.graphs.operations.operation import EACH
from tapelab.runtime import tf

import by_tape
import numpy as np
import operator_functions as functions
import pytest
from operation_calls import CALLS
from operator_functions import COMPOSED, GENERATOR, LAYERS, A, X, bent, by_tapes, close, elementwise, projected

BRANCHING = ["branch", "repeat"]  # of which examples are not proved independent


@pytest.fixture(scope="module")
def laplacians():
    """What all composed functions give, in two compiled programs."""
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for names in ([name for name in COMPOSED if name not in BRANCHING], BRANCHING):
            held = laplacian(functions.every(names), compile="graph")
            found |= held(X)
            assert held.plan(X).way == "collapsed Taylor mode"
    return found


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_functions_agree_with_nested_tapes(name, laplacians):
    close(projected(laplacians[name]), by_tapes(COMPOSED[name], X))


@pytest.mark.dear
def test_every_elementwise_operation_agrees_with_central_differences():
    x = np.linspace(-2, 2, 8)[:, None]
    h = 1e-4
    values = {k: elementwise(tf.constant(x + k * h)) for k in (-2, -1, 0, 1, 2)}
    found = laplacian(elementwise, compile="graph")(x)
    for name in found:
        y = {k: value[name].numpy() for k, value in values.items()}
        wanted = (-y[2] + 16 * y[1] - 30 * y[0] + 16 * y[-1] - y[-2]) / (12 * h * h)
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("kind", sorted(linear_in(EACH) & RULES.keys()))
def test_what_is_linear_in_each_of_two_factors(kind):
    arguments = CALLS[kind]

    def moving(value, s):
        """A factor each of whose elements depends on the source in another way."""
        phases = np.arange(value.size, dtype=float).reshape(value.shape)
        return value * tf.sin(s[0] * np.cos(phases) + s[1] + phases)

    def f(s):
        given = tf.nest.map_structure(
            lambda v: moving(v, s) if isinstance(v, np.ndarray) and v.dtype.kind == "f" else v, arguments
        )
        result = tf.reshape(getattr(tf.raw_ops, kind)(**given), [-1])
        return tf.tensordot(result, tf.cos(tf.range(result.shape[0], dtype=tf.float64)), 1)

    point, along = tf.constant([[0.3, -0.7], [0.5, 0.2]], tf.float64)
    curve = taylor(f, 2, compile="graph")
    _, (first, second) = curve(point, tangents=[along])
    close(first, np.dot(by_tape.gradient(f, point), along), 1e-12)
    close(second, np.einsum("i,ij,j", along, by_tape.hessian(f, point), along), 1e-12)
    assert curve.plan(point, tangents=[along]).way == "Taylor mode"


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize(
    "kind",
    ["activations", "attention", "batch norm", "convolution", "dropout, off", "max pooling", "residual"],
)
@pytest.mark.filterwarnings("error::tapelab.derivatives.FallbackWarning")
def test_keras_models(kind):
    f, x = functions.model(kind)
    close(projected(laplacian(f, compile="graph")(x)), by_tapes(f, x), 1e-12)


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
    with pytest.raises(CoupledExamplesError, match=r"example 0 depends on other examples.*: 4 of 4\)"):
        laplacian(coupled, compile="graph")(X)
    weak = lambda x: tf.tanh(x) + 1e-6 * tf.reverse(x, [0])  # noqa: E731
    with pytest.raises(CoupledExamplesError):
        laplacian(weak, compile="graph")(X)

    @tf.function
    def inside(x):
        return laplacian(coupled)(x)

    with pytest.raises(RuntimeError, match="not clear from the function's graph"):
        inside(tf.constant(X))


@pytest.mark.thorough
def test_examples_through_an_operation_that_is_not_followed_are_compared():
    f = lambda x: tf.scan(lambda _, row: tf.tanh(row) ** 2, x, tf.zeros(6, x.dtype))  # noqa: E731
    with pytest.warns(FallbackWarning, match="nested tapes"):
        found = laplacian(f, compile="graph")(X)
    close(projected(found), by_tapes(lambda x: tf.tanh(x) ** 2, X))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("batch", "compiled"), [(4096, "xla"), (40_000, "graph")])
def test_xla_up_to_channels_of_eight_mebibytes(batch, compiled):
    matrix = tf.ones((2, 64))
    assert laplacian(lambda x: tf.tanh(x @ matrix)).plan(tf.ones((batch, 2))).compiled == compiled


@pytest.mark.thorough
@pytest.mark.filterwarnings("error::tapelab.derivatives.FallbackWarning")
def test_a_training_step_of_a_residual():
    f = functions.keras(LAYERS.Dense(4, "tanh", dtype="float64"), LAYERS.Dense(1, dtype="float64"), shape=(6,))
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


@pytest.mark.thorough
def test_second_derivatives_through_moments_are_right():
    layer = LAYERS.LayerNormalization(dtype="float64")
    f = lambda x: layer(x)[:, 0]  # noqa: E731
    x, h = X[:, :3], 1e-3
    points = {k: [f(x + k * h * unit) for unit in np.eye(3)] for k in (-2, -1, 1, 2)}
    sums = {k: sum(value) for k, value in points.items()}
    wanted = (-sums[2] + 16 * sums[1] - 90 * f(x) + 16 * sums[-1] - sums[-2]) / (12 * h * h)
    held = laplacian(f, compile="graph")
    close(held(x), wanted, 1e-6)
    assert np.abs(by_tapes(f, x) - projected(wanted)).max() > 1e-3
    assert "tf.nn.moments" in str(held.plan(x))


def determinant(x):
    return tf.linalg.det(tf.reshape(tf.sin(x[:, :4]), [4, 2, 2])) ** 2


def test_an_operation_without_a_rule_is_named_with_its_line():
    held = laplacian(determinant, compile="graph")
    with pytest.warns(FallbackWarning, match="MatrixDeterminant .*test_derivatives_operators.py:") as caught:
        found = held(X)
    close(projected(found), by_tapes(determinant, X))
    assert caught[0].filename == __file__
    assert held.plan(X).way.endswith("operations without a rule by derivatives of derivatives")
    assert "MatrixDeterminant" in held.plan(X).given_up[0]


def test_a_fault_in_a_rule_is_not_called_a_missing_rule(monkeypatch):
    def faulty(algebra, op, vals, values):
        raise AttributeError("no such thing")

    monkeypatch.setitem(RULES, "Tanh", faulty)
    with pytest.warns(FallbackWarning, match="AttributeError: no such thing"):
        found = laplacian(tf.tanh, compile="graph")(X)
    close(projected(found), by_tapes(tf.tanh, X))


def test_a_fault_in_a_proof_is_not_taken_for_a_missing_proof(monkeypatch):
    def faulty(*arguments):
        raise AttributeError("no such thing")

    monkeypatch.setattr("tapelab.derivatives.examples.chunks.Twins._of", faulty)
    with pytest.raises(AttributeError, match="no such thing"):
        laplacian(tf.sin, batch_chunk_size=2, compile="graph")(X)


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


@tf.custom_gradient
def sevenfold(x):
    return x**2, lambda upstream: 7 * upstream * x


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["plain", "in a function"])
def test_which_function_hessian_and_laplacian_differentiate_under_a_custom_gradient(wrap):
    """Seven by the gradient given, two by what is computed: each plan says which, and on request the two agree."""
    f, x = wrap(lambda x: tf.reduce_sum(sevenfold(x))), np.ones(1)
    held = laplacian(f, batched=False, compile="graph")
    close(held(x), 2.0)
    assert "what they compute is differentiated, not the gradient given for them: IdentityN at" in str(held.plan(x))
    asked = laplacian(f, batched=False, compile="graph", custom_gradients=True)
    with pytest.warns(FallbackWarning, match="custom_gradients=True"):
        close(asked(x), 7.0)
    for second, vector in ((hessian(f, compile="graph"), {}), (hvp(f, compile="graph"), {"vector": x})):
        close(tf.reduce_sum(second(x, **vector)), 7.0)
        (note,) = second.plan(x, **vector).notes
        assert note.startswith("the gradients given for them are differentiated, not what they compute: IdentityN at")
        assert "test_derivatives_operators.py:" in note
    assert hessian(lambda x: tf.reduce_sum(x**2), compile="graph").plan(x).notes == ()
    for function in (hessian, hvp, laplacian):
        assert "the gradient given" in " ".join(function.__doc__.split())


def test_chunks_of_directions():
    held = laplacian(bent, compile="graph", chunk_size=4)
    close(projected(held(X)), by_tapes(bent, X))
    assert (held.plan(X).passes, held.plan(X).chunk) == (6, 4)
    assert held.plan(X).examples is None


def test_the_memory_limit_takes_chunks_of_examples_and_then_of_directions():
    whole = laplacian(bent, compile="graph").plan(X)
    assert (whole.chunk, whole.examples) == (6, None)
    held = laplacian(bent, compile="graph", memory_limit=whole.bytes - 1)
    close(projected(held(X)), by_tapes(bent, X))
    plan = held.plan(X)
    assert (plan.chunk, plan.examples) == (6, 3)
    assert plan.bytes < whole.bytes
    assert "3 of 4 examples at once" in str(plan)
    one = laplacian(bent, compile="graph", memory_limit=whole.bytes // 4 - 1).plan(X)
    assert (one.chunk, one.examples) == (5, 1)
    with pytest.raises(MemoryLimitError, match="smaller batch"):
        laplacian(bent, memory_limit=100)(X)


@tf.function
def counted(ones):
    return tf.reduce_sum(ones)


# What is done to a chunk of two of these examples is not what is done to them in the whole batch of four, or not shown.
NOT_BY_CHUNKS = {
    "a number of examples": lambda x: x**2 / x.shape[0],
    "a number of examples, in the graph": lambda x: x**2 / tf.cast(tf.shape(tf.identity(x))[0], x.dtype),
    "a count": lambda x: x**2 / tf.reduce_sum(tf.ones([x.shape[0]], x.dtype)),
    "a count, in the graph": (
        lambda x: x**2 / tf.reduce_sum(tf.fill(tf.shape(tf.identity(x))[:1], tf.constant(1.0, x.dtype)))
    ),
    "a count, in a function": lambda x: x**2 / counted(tf.ones([x.shape[0]], x.dtype)),
    "a row for each": lambda x: x**2 + tf.cast(tf.range(x.shape[0]), x.dtype)[:, None],
    "a row for each, cut": lambda x: x**2 * A[: x.shape[0], :1],
    "a column of that number": lambda x: x[:, x.shape[0] - 1 :][:, :1] ** 2,
    "another order": lambda x: tf.divide(*(tf.sin(x), tf.cos(x), tf.sin(x))[x.shape[0] < 3 :][:2]),
    "another rule for few": lambda x: x**2 if x.shape[0] > 3 else x**3,
    "constants": lambda x: tf.sin(x[:, :5]) * GENERATOR_ROWS,
    "random numbers": lambda x: tf.nn.dropout(tf.ones_like(x), 0.5) * x**2,
}
GENERATOR_ROWS = np.arange(20.0).reshape(4, 5)


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("name", NOT_BY_CHUNKS)
def test_chunks_of_examples_are_refused_where_they_would_differ(name):
    with pytest.raises(ValueError, match=r"it is not proved that the results for . of the 4 examples"):
        laplacian(NOT_BY_CHUNKS[name], compile="graph", batch_chunk_size=1 if name == "constants" else 2)(X)


def test_without_the_proof_the_memory_limit_takes_chunks_of_directions():
    f = NOT_BY_CHUNKS["a number of examples"]
    whole = laplacian(f, compile="graph").plan(X)
    held = laplacian(f, compile="graph", memory_limit=whole.bytes - 1)
    close(held(X), np.full([4, 6], 0.5))
    assert (held.plan(X).chunk, held.plan(X).examples) == (5, None)
    assert "how many examples there are is a number in it, for RealDiv at" in str(held.plan(X))


@pytest.mark.thorough
def test_what_goes_with_the_examples():
    rows, matrix = GENERATOR.normal(size=(5, 3)), GENERATOR.normal(size=(5, 5))
    x = GENERATOR.normal(size=(5, 5))

    def f(x, rows, matrix):
        y = tf.reshape(tf.tanh(x @ matrix), [len(x), 5, 1]) * rows[:, None, :2]
        return {"y": tf.reduce_sum(y, 1) + tf.zeros([len(x), 1], x.dtype), "n": tf.nn.softmax(x)}

    for options in ({}, {"directions": lambda x: tf.stack([x, tf.cos(x)]), "drift": rows[:, :1] * np.ones(5)}):
        make = second_order if options else value_gradient_laplacian
        wanted = make(f, **options, compile="graph")(x, rows, matrix)
        for compile in ("graph", "eager"):
            held = make(f, **options, compile=compile, batch_chunk_size=2)
            for one, other in zip(tf.nest.flatten(held(x, rows, matrix)), tf.nest.flatten(wanted), strict=True):
                close(one, other)
            assert held.plan(x, rows, matrix).by_example == (True, False)
    with pytest.raises(ValueError, match="no examples"):
        laplacian(f, batched=False, batch_chunk_size=2)


@pytest.mark.thorough
def test_a_training_step_in_chunks():
    weight = tf.Variable(A[:, :2])
    f = lambda x: tf.tanh(x @ weight)  # noqa: E731

    def step(**options):
        held = laplacian(f, **options)
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(held(tf.constant(X)) ** 2)
        return tape.gradient(loss, weight)

    wanted = step(compile="graph")
    close(step(batch_chunk_size=3), wanted)
    close(tf.function(lambda: step(batch_chunk_size=2))(), wanted)


@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
def test_every_way_gives_the_same():
    wanted = by_tapes(bent, X)
    close(projected(laplacian(bent)(X)), wanted)
    close(projected(laplacian(bent, compile="eager")(X)), wanted)
    leaves = lambda x: bent(x) if x.numpy().size else x  # noqa: E731
    close(projected(laplacian(leaves)(X)), wanted)


def test_a_result_that_is_linear_in_pieces_is_noted():
    held = laplacian(lambda x: tf.nn.relu(x @ A), compile="graph")
    close(held(X), np.zeros([4, 5]))
    assert "the result is zero" in str(held.plan(X))


def test_no_warning_where_there_is_no_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplacian(bent, compile="graph")(X.astype(np.float32))


def test_random_numbers_are_drawn_once_or_not_at_all():
    f = lambda x: tf.nn.dropout(tf.ones_like(x), 0.5) * x**2  # noqa: E731
    found = laplacian(f, compile="graph")(X)
    assert set(np.unique(found)) == {0.0, 4.0}
    with pytest.raises(ValueError, match="once for each of 3 chunks"):
        laplacian(f, chunk_size=2)(X)


@pytest.mark.thorough(keep=1)
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


@pytest.mark.dear
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


@pytest.mark.thorough
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


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")  # filters that move take nested tapes
def test_biases_and_filters_that_depend_on_the_source():
    def f(x):
        filters = tf.reshape(tf.tile(tf.sin(x), [4]), [2, 2, 3, 2])
        return tf.nn.bias_add(tf.nn.conv2d(functions.IMAGES * tf.reduce_sum(x) ** 2, filters, 1, "VALID"), x[:2] ** 3)

    close(laplacian(f, batched=False, compile="graph")(X[0]), laplacian(f, batched=False, compile="eager")(X[0]))
    close(laplacian(lambda x: tf.nn.bias_add(X, x**3), batched=False, compile="graph")(X[0]), np.stack([6 * X[0]] * 4))


@pytest.mark.parametrize("operator", [laplacian, lambda f, **options: second_order(f, matrix=np.eye(6), **options)])
def test_what_depends_on_no_source_is_zero_where_that_is_asked_for(operator):
    found = operator(tf.floor, compile="eager", unconnected="zero")(X)
    np.testing.assert_array_equal(found, np.zeros_like(X))
