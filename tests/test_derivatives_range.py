"""Huge and tiny numbers on the way: derivatives are those of the result, whose parts may leave the range of floats."""

import warnings

from tapelab.derivatives import hvp, jacobian, jvp, laplacian, private, value_and_gradient
from tapelab.derivatives.wrong import replaced_gradients
from tapelab.derivatives.wrong.cure import cured_calls
from tapelab.runtime import tf

import numpy as np
import pytest
from scipy import special

X = 0.5
QUOTIENT = 0.48, -1.408, 1.0752  # of x / (x² + 1)
INVERSE, LOGARITHM, ROOT = (-4.0, 16.0, -96.0), (2.0, -4.0, 16.0), (2**-0.5, -(2**-0.5), 3 * 2**-0.5)
HALVING = [(-np.log(2)) ** order * 2**-0.5 for order in (1, 2, 3)]  # of 2^(-x)
INVERSE_ROOT = -(2**0.5), 3 * 2**0.5, -15 * 2**0.5
# Functions of x with a factor k that has no part in the result, and their derivatives of order 1, 2 and 3 at X.
CASES = {
    "/": (lambda x, k: (k * x) / (k * (x * x + 1)), QUOTIENT),
    "divide_no_nan": (lambda x, k: tf.math.divide_no_nan(k * x, k * (x * x + 1)), QUOTIENT),
    "xdivy": (lambda x, k: tf.math.xdivy(k * x, k * (x * x + 1)), QUOTIENT),
    "reciprocal": (lambda x, k: k * tf.math.reciprocal(k * x), INVERSE),
    "rsqrt": (lambda x, k: tf.sqrt(k) * tf.math.rsqrt(k * x), INVERSE_ROOT),
    "log": (lambda x, k: tf.math.log(k * x), LOGARITHM),
    "log1p": (lambda x, k: tf.math.log1p(k * x) if k > 1 else tf.math.log(x), LOGARITHM),
    "power -1": (lambda x, k: k * tf.pow(k * x, -1.0), INVERSE),
    "power 1/2": (lambda x, k: tf.pow(k * x, 0.5) / tf.sqrt(k), ROOT),
    "power of a tensor": (lambda x, k: k * tf.pow(k * x, -tf.ones_like(x)), INVERSE),
    "power of a computed tensor": (lambda x, k: k * tf.pow(k * x, tf.round(-x - 0.6)), INVERSE),
    "power, of its exponent": (lambda x, k: tf.pow(np.float32(2), -x) * k / k, HALVING),
    "atan2": (lambda x, k: tf.math.atan2(k * x, k * tf.ones_like(x)), (0.8, -0.64, -0.256)),
}


def third(f, x, **options):
    return jvp(lambda x: hvp(f, **options)(x, vector=tf.ones_like(x)), **options)(x, tangents=tf.ones_like(x))[1]


ORDERS = {
    "gradient": (0, lambda f, x, **o: value_and_gradient(f, **o)(x)[1]),
    "jvp": (0, lambda f, x, **o: jvp(f, **o)(x, tangents=tf.ones_like(x))[1]),
    "hvp": (1, lambda f, x, **o: hvp(f, **o)(x, vector=tf.ones_like(x))),
    "laplacian": (1, lambda f, x, **o: laplacian(lambda x: f(x[:, 0]), **o)(x[:, None])),
    "third": (2, third),
}
TABLE = [(name, way, k) for way in ("eager", "graph", "xla") for name in CASES for k in (1e30, 1e-30)]


@pytest.mark.thorough(keep=24, dear=4)
@pytest.mark.parametrize(("name", "compile", "k"), TABLE)
def test_a_factor_that_has_no_part_in_the_result(name, compile, k):
    f, truth = CASES[name]
    x, factor = tf.constant([X]), np.float32(k)

    def rows(x):
        return f(x, factor)

    def loss(x):
        return tf.reduce_sum(f(x, factor))

    for label, (order, derivative) in ORDERS.items():
        found = derivative(rows if label == "laplacian" else loss, x, compile=compile)
        np.testing.assert_allclose(np.ravel(found), [truth[order]], rtol=1e-4, err_msg=label)


def test_that_is_nothing_to_speak_of():
    """No note, no warning under an open tape, and no refusal where gradients cannot be replaced."""
    quotient = value_and_gradient(lambda x: tf.reduce_sum(1 / x), compile="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tf.GradientTape() as tape:
            tape.watch(x := tf.constant([X]))
            gradient = quotient(x)[1]
    np.testing.assert_allclose(tape.gradient(gradient, x), [16.0])
    assert quotient.plan(x).notes == ()


def test_where_gradients_cannot_be_replaced_tensorflows_remain(monkeypatch):
    replaced_gradients._places.cache_clear()
    monkeypatch.setattr(private, "gradient_registry", lambda: None)
    try:
        found = value_and_gradient(lambda x: tf.reduce_sum(1 / x))(tf.constant([X]))[1]
        np.testing.assert_allclose(found, [-4.0])
    finally:
        replaced_gradients._places.cache_clear()


def test_a_quotient_takes_no_more_operations_than_tensorflows(monkeypatch):
    """Counted in the graph of second derivatives, as it was written."""

    def operations():
        def loss(x):
            return tf.reduce_sum(tf.math.log(x) / (1 + x) + x**-1.5)

        def second(x):
            with tf.GradientTape() as outer:
                outer.watch(x)
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = loss(x)
                first = tape.gradient(y, x)
            return outer.gradient(first, x)

        graph = tf.function(second).get_concrete_function(tf.TensorSpec([3])).graph
        return len([op for op in graph.get_operations() if op.type not in ("Const", "Identity")])

    plain = operations()
    with cured_calls():
        assert operations() < plain


@pytest.mark.dear(keep=2)
@pytest.mark.parametrize("compile", ["eager", "graph"])
@pytest.mark.parametrize(
    ("f", "first", "scale"),
    [
        (tf.math.bessel_i0e, 1 / 8, 0.5 / np.pi),
        (tf.math.bessel_i1e, -3 / 8, 0.5 / np.pi),
        (tf.math.special.bessel_k0e, -1 / 8, np.pi / 2),
        (tf.math.special.bessel_k1e, 3 / 8, np.pi / 2),
    ],
)
def test_scaled_bessel_functions_of_huge_numbers(f, first, scale, compile):
    """They go as x^(-½) + first x^(-3/2), which is exact to rounding here."""
    x = tf.constant([1e8, 1e12, 1e100], tf.float64)
    slope = -(scale**0.5) * (0.5 * x**-1.5 + 1.5 * first * x**-2.5)
    bend = scale**0.5 * (0.75 * x**-2.5 + 3.75 * first * x**-3.5)
    vector = tf.ones_like(x)
    np.testing.assert_allclose(value_and_gradient(lambda x: tf.reduce_sum(f(x)), compile=compile)(x)[1], slope, 1e-14)
    np.testing.assert_allclose(hvp(lambda x: tf.reduce_sum(f(x)), compile=compile)(x, vector=vector), bend, 1e-14)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("f", [tf.math.bessel_i0e, tf.math.bessel_i1e])
def test_scaled_bessel_functions_where_their_series_begins(f, dtype):
    """TensorFlow's own derivative is right there, to what the digits of its two terms leave."""
    start = 50 if dtype == tf.float64 else 10
    x = tf.constant([-1.01, -0.99, 0.99, 1.01], dtype) * start
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    plain, rtol = tape.gradient(y, x), 1e-11 if dtype == tf.float64 else 1e-4
    np.testing.assert_allclose(value_and_gradient(lambda x: tf.reduce_sum(f(x)))(x)[1], plain, rtol)


NORMS = {
    "sqrt": lambda x: tf.sqrt(tf.reduce_sum(tf.square(x), -1)),
    "tf.norm": lambda x: tf.norm(x, axis=-1),
    "reduce_euclidean_norm": lambda x: tf.math.reduce_euclidean_norm(x, -1),
    "power 1/2": lambda x: tf.reduce_sum(x**2, -1) ** 0.5,
    "root of a mean": lambda x: tf.sqrt(tf.reduce_mean(x * x, -1)),
}
OVERFLOWED = {
    "gradient": lambda f, x, **o: value_and_gradient(lambda x: tf.reduce_sum(f(x)), **o)(x)[1],
    "jvp": lambda f, x, **o: jvp(f, **o)(x, tangents=tf.ones_like(x))[1],
    "Jacobian, forward": lambda f, x, **o: jacobian(f, mode="forward", **o)(x)[0, :, 0],
    "hvp": lambda f, x, **o: hvp(lambda x: tf.reduce_sum(f(x)), **o)(x, vector=tf.ones_like(x)),
    "laplacian": lambda f, x, **o: laplacian(f, **o)(x),
}


@pytest.mark.thorough(keep=6, dear=2)
@pytest.mark.parametrize("way", OVERFLOWED)
@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("compile", ["eager", "graph", "auto"])
def test_of_a_norm_whose_squares_overflow_no_derivative_is_known(compile, name, way):
    for huge, dtype in ((1e30, tf.float32), (1e160, tf.float64)):
        found = OVERFLOWED[way](NORMS[name], tf.constant([[3 * huge, 4 * huge]], dtype), compile=compile)
        assert np.all(np.isnan(found)), (huge, found)


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("compile", ["eager", "graph", "auto"])
@pytest.mark.parametrize("name", NORMS)
def test_but_that_of_what_does_not_depend_on_its_number_is(name, compile):
    def near(x):
        return tf.reduce_sum(tf.exp(-NORMS[name](x)))

    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant([3.0, 4.0], tf.float64))
        y = near(x)
    found = value_and_gradient(near, compile=compile)(np.array([[3e160, 4e160], [3.0, 4.0]]))[1]
    np.testing.assert_allclose(found, [[0, 0], tape.gradient(y, x)], rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compile", ["eager", pytest.param("graph", marks=pytest.mark.dear)])
def test_incomplete_gamma_functions_of_large_numbers(dtype, compile):
    """By a and x, at x = a: the differences of SciPy's. From 10⁴ on TensorFlow's derivative by a is off."""
    a = np.array([[10.0], [1000.0], [8000.0], [50000.0]])
    h = 3e-3 * np.sqrt(a)
    for sign, f in ((1, tf.math.igamma), (-1, tf.math.igammac)):
        by_a, by_x = value_and_gradient(lambda a, x, f=f: tf.reduce_sum(f(a, x)), argnums=(0, 1), compile=compile)(
            *tf.constant([a, a], dtype)
        )[1]
        truth = sign * (special.gammainc(a + h, a) - special.gammainc(a - h, a)) / (2 * h)
        np.testing.assert_allclose(by_a[:3], truth[:3], rtol=1e-5)
        assert np.isnan(by_a[3])
        truth = sign * (special.gammainc(a, a + h) - special.gammainc(a, a - h)) / (2 * h)
        np.testing.assert_allclose(by_x, truth, rtol=1e-5)


def test_what_does_not_depend_on_a_large_a_has_its_gradient():
    def f(a, b):
        return tf.reduce_sum(tf.where(a > 100, b * a, tf.math.igamma(a, b)))

    by_a, by_b = value_and_gradient(f, argnums=(0, 1), compile="graph")(tf.constant([2e4, 2.0]), tf.constant(3.0))[1]
    assert by_a[0] == 3
    assert float(by_b) == pytest.approx(2e4 + 3 * np.exp(-3.0))
