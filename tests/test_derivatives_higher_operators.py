"""The biharmonic operator and derivatives along a curve: closed forms and nested tapes in float64."""

from tapelab.derivatives import FallbackWarning, MemoryLimitError, biharmonic, taylor
from tapelab.derivatives.operators.taylor_mode.higher import Fourth
from tapelab.runtime import tf

import numpy as np
import operator_functions as functions
import pytest
from operator_functions import COMPOSED, GENERATOR, LAYERS, A, X, close, elementwise, keras, projected, rates

PLANE = GENERATOR.normal(size=(2, 6)) / 2
# Between them, every way in which a product or a composition of Hessians can come about.
PLATES = ["attention", "division", "einsum", "matrix product, both", "power", "where"]
CURVES = [
    *PLATES, "branch", "clip", "cut", "fft", "gelu", "log softmax", "lower rank", "maximum", "moved", "repeat",
    "softmax", "squared difference", "stacked", "stop", "top",
]  # fmt: skip
DIRECTIONS, WEIGHTS = Fourth(2).fourth_derivatives()
# Rounding of the fourth derivatives of a function of size 1 whose k-th ones grow like this.
TOLERANCE = 1e-12


def in_plane(f):
    """A function of 6 numbers, of 2 that it is composed with."""
    return lambda p: f(X + p @ PLANE)


@pytest.fixture(scope="module")
def composed():
    """What all composed functions have as derivatives along curves, from order 1 to 4, and as Δ²."""
    curve = taylor(functions.every(CURVES), 4, compile="graph")
    plate = biharmonic(in_plane(functions.every(PLATES)), compile="graph")
    zeros = np.zeros([4, 2])
    found = plate(zeros)
    assert plate.plan(zeros).way == "collapsed Taylor mode"
    directions = [np.broadcast_to(v @ PLANE, X.shape) for v in DIRECTIONS]
    paths = [curve(X, tangents=[v]) for v in directions]
    assert curve.plan(X, tangents=directions[:1]).way == "Taylor mode"
    return directions, paths, found


@pytest.mark.thorough
@pytest.mark.parametrize("name", CURVES)
@pytest.mark.filterwarnings("error::tapelab.derivatives.FallbackWarning")
def test_composed_functions_agree_with_nested_tapes(name, composed):
    directions, paths, plate = composed
    value, derivatives = paths[2]
    close(value[name], COMPOSED[name](tf.constant(X)))
    for order, wanted in enumerate(rates(COMPOSED[name], X, directions[2], 4)):
        close(projected(derivatives[order][name]), wanted, TOLERANCE)
    if name in PLATES:  # Δ² is a sum of fourth derivatives along straight lines
        close(plate[name], sum(w * path[1][3][name] for w, path in zip(WEIGHTS, paths, strict=True)), TOLERANCE)


@pytest.mark.thorough
def test_every_elementwise_operation_at_every_order():
    x, h = np.linspace(-2, 2, 8), 1e-3
    held = taylor(elementwise, 4, compile="graph")
    around = {k: [held(x + k * h, tangents=[np.ones(8)])[1]] for k in (-2, -1, 0, 1, 2)}
    for order in (1, 2, 3):
        for name in around[0][0][0]:
            y = {k: derivatives[order - 1][name].numpy() for k, (derivatives,) in around.items()}
            wanted = (-y[2] + 8 * y[1] - 8 * y[-1] + y[-2]) / (12 * h)
            found = around[0][0][order][name]
            np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6, err_msg=f"{name}, order {order + 1}")


def test_closed_forms():
    a = A[:, 0]
    squares, d = np.sum(X**2, axis=1), X.shape[1]

    def f(x):
        r2 = tf.reduce_sum(x**2, 1)
        return {"wave": tf.sin(tf.linalg.matvec(x, a)), "gauss": tf.exp(-r2 / 2), "power": r2**2, "1/r": 1 / r2**2}

    held = biharmonic(f, compile="graph")
    found = held(X)
    close(found["wave"], (a @ a) ** 2 * np.sin(X @ a))
    close(found["gauss"], (squares**2 - 2 * (d + 2) * squares + d * (d + 2)) * np.exp(-squares / 2))
    close(found["power"], np.full(4, 8 * d * (d + 2)))
    # Δ r^p = p (p + d - 2) r^(p-2): in six dimensions r⁻⁴ is harmonic.
    close(found["1/r"], np.zeros(4), 1e-13 * np.max(4 * 5 * 6 * 7 / squares**4))
    assert held.plan(X).passes == 2 * d + d * (d + 1) // 2
    value, derivatives = taylor(lambda t: tf.exp(tf.sin(t)), 4)(0.0, tangents=[1.0])
    close(value, 1)
    close(np.array(derivatives), [1.0, 1.0, 0.0, -3.0])


@pytest.mark.dear
def test_a_curve_is_given_by_derivatives():
    t, one = 0.3, np.ones(4)
    curve = [3 * t**2 * one, 6 * t * one, 6 * one]  # of t³
    f = lambda x, power: {"y": tf.exp(x["x"]), "z": x["x"] ** power}  # noqa: E731
    held = taylor(f, 4, compile="graph")
    value, derivatives = held({"x": t**3 * one}, 2, tangents=[{"x": v} for v in curve])
    close(value["y"], np.exp(t**3) * one)
    for k, wanted in enumerate([6 * t**5, 30 * t**4, 120 * t**3, 360 * t**2]):
        close(derivatives[k]["z"], wanted * one)
    u = [3 * t**2, 6 * t, 6]
    close(derivatives[2]["y"], np.exp(t**3) * (u[0] ** 3 + 3 * u[0] * u[1] + u[2]) * one)
    # The Korteweg-de Vries equation's soliton: u_t + 6 u u_x + u_xxx = 0.
    soliton = lambda x, t: 0.5 / tf.cosh((x - t) / 2) ** 2  # noqa: E731
    x, time = np.linspace(-3, 3, 7), np.zeros(7)
    u, (u_x, _, u_xxx) = taylor(soliton, 3)(x, time, tangents=[np.ones(7)])
    _, (u_t,) = taylor(soliton, 1, argnums=1)(x, time, tangents=[np.ones(7)])
    close(u_t + 6 * u * u_x + u_xxx, np.zeros(7))


def test_a_curve_s_derivatives_are_right_for_coupled_examples():
    f = lambda x: tf.nn.softmax(x, axis=0) * tf.reduce_mean(x)  # noqa: E731
    v = GENERATOR.normal(size=X.shape)
    t = tf.constant(0.0, tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(X + t * v)[1, 2]
        first = inner.gradient(y, t)
    _, (found, second) = taylor(f, 2, compile="graph")(X, tangents=[v])
    close(found[1, 2], first)
    close(second[1, 2], outer.gradient(first, t))


def determinant(x):
    return tf.linalg.det(tf.reshape(tf.sin(x), [-1, 2, 2]))


@pytest.mark.thorough
def test_an_operation_without_a_rule_is_named_and_differentiated_alone():
    x = 0.3 * X[:2, :4] + [1.2, 0.0, 0.0, 1.2]  # near a singular matrix, TensorFlow's derivatives lose digits
    p, q = x[:, 0] + x[:, 3], x[:, 0] - x[:, 3]
    r, s = x[:, 1] + x[:, 2], x[:, 1] - x[:, 2]
    held = biharmonic(determinant, compile="graph")
    with pytest.warns(FallbackWarning, match=r"MatrixDeterminant at .*test_derivatives_higher_operators.py:\d+ has no"):
        found = held(x)
    close(found, 2 * (np.cos(q) - np.cos(p) - np.cos(s) + np.cos(r)))
    assert held.plan(x).way.endswith("operations without a rule by derivatives of derivatives")
    curve = taylor(determinant, 4, compile="graph")
    with pytest.warns(FallbackWarning, match="MatrixDeterminant"):
        _, derivatives = curve(x, tangents=[np.eye(4)[:1] + 0 * x])
    sines, cosines = np.sin(x), np.cos(x)
    for order, along in enumerate([cosines, -sines, -cosines, sines]):
        close(derivatives[order], along[:, 0] * sines[:, 3])


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
def test_nested_tapes_give_the_same():
    x = X[:2, :3]
    f = lambda x: tf.exp(tf.sin(x @ A[:3, :2]))  # noqa: E731
    wanted = biharmonic(f)(x)
    for options in ({"compile": "eager"}, {"compile": "eager", "batch_chunk_size": 1}):
        close(biharmonic(f, **options)(x), wanted, 1e-12)
    other = tf.custom_gradient(lambda x: (tf.sin(x), lambda upstream: upstream * x**3))
    held = biharmonic(lambda x: other(x[:, 0]), compile="graph", custom_gradients=True)
    close(held(x), np.full(2, 6.0))  # the third derivative of x³
    assert "nested tapes" in held.plan(x).way
    _, derivatives = taylor(other, 4, compile="graph", custom_gradients=True)(x, tangents=[np.ones([2, 3])])
    close(derivatives[3], np.full([2, 3], 6.0))
    plain = taylor(other, 2, compile="graph")
    close(plain(x, tangents=[np.ones([2, 3])])[1][1], -np.sin(x))
    assert "not the gradient given for them" in str(plain.plan(x, tangents=[np.ones([2, 3])]))


@pytest.mark.thorough
def test_a_training_step():
    tf.keras.utils.set_random_seed(0)
    model = keras(LAYERS.Dense(4, "tanh", dtype="float64"), LAYERS.Dense(1, dtype="float64"), shape=(2,))
    w, b, v, _ = model.trainable_variables
    x = tf.constant(X[:, :2])

    def exact(x):
        t = tf.tanh(x @ w + b)
        fourth = (1 - t**2) * t * (16 - 24 * t**2)
        return (fourth * tf.reduce_sum(tf.square(w), 0) ** 2) @ v

    def line(x):
        t = tf.tanh(x @ w + b)
        return ((1 - t**2) * (6 * t**2 - 2) * tf.reduce_sum(w, 0) ** 3) @ v

    def step(residual):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(residual(x) ** 2)
        return tape.gradient(loss, [w.value, b.value, v.value])

    def in_a_function(residual):
        return tf.function(lambda: step(residual))()

    third = taylor(model, 3, compile="graph")
    for run, residual, wanted in (
        (step, biharmonic(model, compile="graph"), exact),
        (step, lambda x: third(x, tangents=[tf.ones_like(x)])[1][2], line),
        (in_a_function, biharmonic(model), exact),
        (step, biharmonic(model, compile="xla"), exact),
    ):
        for one, other in zip(run(residual), step(wanted), strict=True):
            close(one, other, 1e-12)
    held = biharmonic(model, compile="graph")
    before = held(x)
    w.assign(2 * w)  # the weights are read at every call
    close(held(x), exact(x))
    assert np.abs(held(x) - before).max() > 0.1


def test_the_biharmonic_operator_refuses_what_the_laplacian_refuses():
    f = lambda x: tf.reduce_sum(x**2) ** 2  # noqa: E731
    close(biharmonic(f, batched=False, compile="graph")(X[:2, :2]), 8 * 4 * 6)


def test_memory():
    f = lambda x: tf.exp(x @ A[:3])  # noqa: E731
    x = X[:, :3]
    whole = biharmonic(f, compile="graph")
    plan = whole.plan(x)
    assert plan.examples is None
    held = biharmonic(f, compile="graph", memory_limit=plan.bytes - 1)
    close(held(x), whole(x))
    close(whole(x), np.exp(x @ A[:3]) * np.sum(A[:3] ** 2, 0) ** 2)
    assert (held.plan(x).examples, held.plan(x).chunk) == (3, plan.chunk)
    with pytest.raises(MemoryLimitError, match="smaller batch"):
        biharmonic(f, memory_limit=plan.bytes // 8)(x)
