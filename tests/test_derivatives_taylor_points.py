"""Operators by Taylor mode at special points: one tensor in two places, zeros, negative bases, huge and tiny."""

import math

from tapelab.derivatives import biharmonic, laplacian, second_order, taylor, value_gradient_laplacian
from tapelab.runtime import tf

import numpy as np
import pytest

M = tf.math
TWO = tf.constant(2.0, tf.float64)


def by_taylor(f, x, dtype=tf.float64):
    """The derivatives of orders 1 to 4 by `taylor`, then the Laplacian and the biharmonic operator."""
    x = tf.constant([x], dtype)
    found = taylor(f, 4, compile="graph")(x, tangents=[tf.ones_like(x)])[1]
    return [float(d[0]) for d in found] + [float(op(f, compile="graph")(x)[0]) for op in (laplacian, biharmonic)]


def derivatives(f, x, radius=0.1, count=64):
    """The derivatives of orders 1 to 4 of a function of complex numbers, by Cauchy's integral."""
    circle = np.exp(2j * np.pi * np.arange(count) / count)
    values = np.array([f(x + radius * point) for point in circle])
    return [math.factorial(n) / radius**n * np.mean(values * circle**-n).real for n in (1, 2, 3, 4)]


# Operations of two numbers, and the same for NumPy.
PAIRS = {
    "xlogy": (M.xlogy, lambda a, b: a * np.log(b)),
    "xlog1py": (M.xlog1py, lambda a, b: a * np.log(1 + b)),
    "xdivy": (M.xdivy, lambda a, b: a / b),
    "multiply_no_nan": (M.multiply_no_nan, lambda a, b: a * b),
    "divide_no_nan": (M.divide_no_nan, lambda a, b: a / b),
    "divide": (M.divide, lambda a, b: a / b),
    "pow": (tf.pow, lambda a, b: a**b),
    "atan2": (M.atan2, lambda a, b: np.arctan(a / b)),
    "squared_difference": (M.squared_difference, lambda a, b: (a - b) ** 2),
    "multiply": (M.multiply, lambda a, b: a * b),
    "maximum": (M.maximum, lambda a, b: a if a.real >= b.real else b),
    "einsum": (lambda a, b: tf.einsum("i,i->i", a, b), lambda a, b: a * b),
}
PLACES = {
    "one tensor in both": (lambda x: (x, x), lambda x: (x, x)),
    "both depend on it": (lambda x: (tf.sin(x) + 1.5, x * x), lambda x: (np.sin(x) + 1.5, x * x)),
    "the first": (lambda x: (x, tf.fill(x.shape, tf.constant(0.4, x.dtype))), lambda x: (x, 0.4 + 0j)),
    "the second": (lambda x: (tf.fill(x.shape, tf.constant(0.4, x.dtype)), x), lambda x: (0.4 + 0j, x)),
}


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("place", PLACES)
def test_operations_of_two_numbers(name, place):
    f, same = PAIRS[name]
    arguments, numbers = PLACES[place]
    wanted = derivatives(lambda x: same(*numbers(x)), 0.7)
    np.testing.assert_allclose(
        by_taylor(lambda x: f(*arguments(x)), 0.7), [*wanted, wanted[1], wanted[3]], rtol=1e-6, atol=1e-6
    )
    x = tf.constant([0.7], tf.float64)
    _, first, second = value_gradient_laplacian(lambda x: f(*arguments(x)), compile="graph")(x)
    np.testing.assert_allclose([first[0, 0] if first.shape.rank > 1 else first[0], second[0]], wanted[:2], atol=1e-6)


def stacked(*parts):
    return lambda x: tf.stack([part(x) for part in parts], -1)


X, X1, X2 = (lambda x, k=k: x + k for k in range(3))
# A function, a point, a dtype and the derivatives of orders 1 to 4 there.
POINTS = {
    "0**x": (lambda x: tf.constant(0.0, x.dtype) ** x + x * x, 2, [4, 2, 0, 0]),
    "x**2 at -2, the exponent depends on x": (lambda x: x ** (x * 0 + 2), -2, [-4, 2, 0, 0]),
    "x**2 at 0, the exponent depends on x": (lambda x: x ** (x * 0 + 2), 0, [0, 2, 0, 0]),
    "x**(x + 5) at 0": (lambda x: x ** (x + 5), 0, [0, 0, 0, 0]),
    "x**3 at -2": (lambda x: x**3, -2, [12, -12, 6, 0]),
    "x**-1 at -2": (lambda x: x**-1.0, -2, [-1 / 4, -1 / 4, -3 / 8, -3 / 4]),
    "x**p at -2": (lambda x: x ** tf.constant([-1.0], x.dtype), -2, [-1 / 4, -1 / 4, -3 / 8, -3 / 4]),
    "x**2.5 at 0": (lambda x: x**2.5, 0, [0, 0, np.inf, -np.inf]),
    "sqrt at 0": (tf.sqrt, 0, [np.inf, -np.inf, np.inf, -np.inf]),
    "a norm": (lambda x: M.reduce_euclidean_norm(stacked(X, lambda x: 0 * x + 1)(x), -1), 0, [0, 1, 0, -3]),
    "xlogy(x, 2) at 0": (lambda x: M.xlogy(x, TWO), 0, [math.log(2), 0, 0, 0]),
    "xlogy(x, x + 2) at 0": (lambda x: M.xlogy(x, x + 2), 0, [math.log(2), 1, -3 / 4, 1]),
    "xlog1py(x, x + 1) at 0": (lambda x: M.xlog1py(x, x + 1), 0, [math.log(2), 1, -3 / 4, 1]),
    "xdivy(x, x + 2) at 0": (lambda x: M.xdivy(x, x + 2), 0, [1 / 2, -1 / 2, 3 / 4, -3 / 2]),
    "xlogy(0, x) at 0": (lambda x: M.xlogy(0 * x, x) + x * x, 0, [0, 2, 0, 0]),
    "an entropy with a probability of 0": (
        lambda x: (
            tf.reduce_sum((lambda p: M.xlogy(p, p))(tf.nn.softmax(stacked(X, lambda x: x + 1000)(x))), -1) + x * x
        ),
        0,
        [0, 2, 0, 0],
    ),
    "a masked logarithm": (lambda x: tf.where(x > 0, M.log(x), 0) + x * x, 0, [0, 2, 0, 0]),
    "a masked root": (lambda x: tf.where(x > 0, tf.sqrt(x), 0) + x * x, -1, [-2, 2, 0, 0]),
    "a product with one zero": (lambda x: tf.reduce_prod(stacked(X, X1, X2)(x), -1), 0, [2, 6, 6, 0]),
    "a product with two zeros": (lambda x: tf.reduce_prod(stacked(X, X, X2)(x), -1), 0, [0, 4, 6, 0]),
    "a product with four zeros": (lambda x: tf.reduce_prod(stacked(X, X, X, X)(x), -1), 0, [0, 0, 0, 24]),
    "a cumulative product": (lambda x: M.cumprod(stacked(X, X, X2)(x), -1)[..., 2], 0, [0, 4, 6, 0]),
    "a cumulative product, reversed and exclusive": (
        lambda x: M.cumprod(stacked(X1, X, X, X2)(x), -1, reverse=True, exclusive=True)[..., 0],
        0,
        [0, 4, 6, 0],
    ),
    "a product of a segment": (
        lambda x: M.unsorted_segment_prod(tf.stack([x, x + 9, x, x + 2]), [1, 0, 1, 1], 3)[1],
        0,
        [0, 4, 6, 0],
    ),
    "a product of a sorted segment": (
        lambda x: M.segment_prod(tf.stack([x + 9, x, x, x + 2]), [0, 1, 1, 1])[1],
        0,
        [0, 4, 6, 0],
    ),
}


@pytest.mark.thorough(keep=4, dear=1)
@pytest.mark.parametrize("name", POINTS)
def test_special_points(name):
    f, x, wanted = POINTS[name]
    np.testing.assert_allclose(by_taylor(f, x), [*wanted, wanted[1], wanted[3]], rtol=1e-9, atol=1e-9)


# Functions that are well inside the range of float32, by way of numbers whose powers are not; and their derivatives.
SCALES = {
    "quotient": (lambda x: 1.327e20 / (5.9e12 * x) * 1e-7, [-2.249153, 4.498305]),
    "reciprocal": (lambda x: M.reciprocal(1e25 * x) * 1e25, [-1, 2]),
    "logarithm": (lambda x: M.log(1e25 * x), [1, -1]),
    "root": (lambda x: tf.sqrt(1e30 * x) * 1e-15, [1 / 2, -1 / 4]),
    "root of a small number": (lambda x: tf.sqrt(1e-30 * x) * 1e15, [1 / 2, -1 / 4]),
    "power": (lambda x: (1e20 * x) ** 1.5 * 1e-30, [3 / 2, 3 / 4]),
    "norm": (lambda x: M.reduce_euclidean_norm(stacked(lambda x: 1e15 * x, lambda x: 0 * x)(x), -1) * 1e-15, [1, 0]),
}


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", SCALES)
def test_scales(name):
    f, (first, second) = SCALES[name]
    found = by_taylor(f, 1.0, tf.float32)
    np.testing.assert_allclose([found[0], found[1], found[4]], [first, second, second], rtol=1e-5, atol=1e-6)


# Functions at a tiny number, and their second derivatives: squares of channels, or powers, leave the range of floats.
TINY = {
    "root": (tf.sqrt, 1e-160, tf.float64, -2.5e239),
    "power 1/2": (lambda x: x**0.5, 1e-160, tf.float64, -2.5e239),
    "powers 1/2": (lambda x: x ** tf.constant([0.5], x.dtype), 1e-160, tf.float64, -2.5e239),
    "reciprocal": (lambda x: tf.constant(1e-250, x.dtype) / x, 1e-160, tf.float64, 2e230),
    "power 3/2": (lambda x: x**1.5, 1e-250, tf.float64, 7.5e124),
    "powers 3/2": (lambda x: x ** tf.constant([1.5], x.dtype), 1e-250, tf.float64, 7.5e124),
    "power 3/2 of float32": (lambda x: x**1.5, 1e-32, tf.float32, 7.5e15),
}


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("compile", ["graph", "xla"])
def test_tiny_numbers(name, compile):
    f, x, dtype, wanted = TINY[name]
    second = value_gradient_laplacian(f, compile=compile)(tf.constant([x], dtype))[2]
    np.testing.assert_allclose(second, [wanted], rtol=1e-4)
    along = second_order(f, directions=np.ones([1]), compile=compile)(tf.constant([x], dtype))
    np.testing.assert_allclose(along, [wanted], rtol=1e-4)


# c x^p in float32 at x, by way of squares of channels or powers that leave the range of floats: p, c, x and how.
FAR = {
    "power 3/2": (1.5, 1, 1e-14, lambda x: x**1.5),
    "power 5/2": (2.5, 1, 1e-20, lambda x: x**2.5),
    "powers 5/2": (2.5, 1, 1e-20, lambda x: x ** tf.constant([2.5])),
    "quotient": (-1, 1e30, 1e10, lambda x: 1e30 / x),
    "a small quotient": (-1, 1e-30, 1e-8, lambda x: 1e-30 / x),
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", FAR)
@pytest.mark.parametrize("compile", ["graph", "xla"])
def test_third_and_fourth_derivatives_of_powers(name, compile):
    p, c, x, f = FAR[name]
    wanted = [c * math.prod(p - i for i in range(n)) * x ** (p - n) for n in (1, 2, 3, 4)]
    x = tf.constant([x])
    found = [d[0] for d in taylor(f, 4, compile=compile)(x, tangents=[tf.ones_like(x)])[1]]
    np.testing.assert_allclose([*found, *biharmonic(f, compile=compile)(x)], [*wanted, wanted[3]], rtol=1e-4)


def test_a_quotient_whose_second_derivative_is_tiny():
    x = tf.constant([[5.9e12]], tf.float32)
    found = laplacian(lambda x: 1.327e20 / tf.reduce_sum(x, -1))(x)
    np.testing.assert_allclose(found, [2 * 1.327e20 / 5.9e12**3], rtol=1e-5)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("operator", [laplacian, biharmonic])
def test_an_operation_without_a_derivative_is_named(operator):
    with pytest.raises(LookupError, match=r"no derivative of the operation IgammaGradA.*Igamma at .*points.py:\d+"):
        operator(lambda x: M.igamma(x, TWO))(tf.constant([0.3], tf.float64))


def test_an_order_of_polygamma_has_no_derivative():
    with pytest.raises(ValueError, match="an n that depends on the sources"):
        laplacian(lambda x: M.polygamma(x, x))(tf.constant([1.0], tf.float64))


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("f", [M.erf, M.erfc], ids=["erf", "erfc"])
def test_where_the_square_of_an_argument_of_erf_is_out_of_range(f, sign):
    assert by_taylor(f, sign * 1e160) == [0.0] * 6


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("f", [tf.nn.log_softmax, tf.nn.softmax], ids=["log_softmax", "softmax"])
def test_what_all_logits_have_in_common_does_not_round(f):
    """Their powers would cancel, but for rounding of 1e-16 of them. These are far apart: the result is linear."""
    x = tf.constant([1.0], tf.float64)

    def program(x):
        return f(x[:, None] * tf.constant([1e9, 2e9, 3e9], tf.float64))

    logarithmic = f is tf.nn.log_softmax
    right = [[-2e9, -1e9, 0.0]] if logarithmic else [[0.0, 0.0, 0.0]]
    _, (first, *rest) = taylor(program, 4, compile="graph")(x, tangents=[tf.ones_like(x)])
    np.testing.assert_array_equal(first, right)
    for each in rest:
        np.testing.assert_array_equal(each, np.zeros([1, 3]))
    np.testing.assert_array_equal(laplacian(program, compile="graph")(x), np.zeros([1, 3]))
    np.testing.assert_array_equal(biharmonic(program, compile="graph")(x), np.zeros([1, 3]))
