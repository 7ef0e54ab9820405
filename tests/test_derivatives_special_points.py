"""Where TensorFlow's derivatives are wrong at a point, or for some numbers: refused, or warned of with the line."""

import warnings

from tapelab.derivatives import FallbackWarning, hessian, hvp, jacobian, jvp, value_and_gradient
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

NUMPY, OPS, F = tf.experimental.numpy, tf.keras.ops, tf.float64
ZERO, UNIT = [0.0, 1.0, 2.0], np.eye(3).ravel()
PAIR = [2.0, 0.3, 0.1, 1.0, 0.0, 0.2, -0.4, 0.1]
WEIGHTS = np.arange(1.0, 10.0).reshape(3, 3)


def square(x):
    return tf.reshape(x, [3, 3])


def symmetric(x):
    return (square(x) + tf.transpose(square(x))) / 2


def numbers(x):
    return tf.complex(x[:4], x[4:])


def matrix(x):
    return tf.reshape(numbers(x), [2, 2])


def real(z):
    return tf.reduce_sum(tf.math.real(z))


def root(x):
    values, vectors = tf.linalg.eigh(symmetric(x))
    return tf.matmul(vectors * tf.sqrt(values), vectors, transpose_b=True)


def polar(a):
    _, u, v = tf.linalg.svd(a)
    return tf.matmul(u, v, adjoint_b=True)


def of_labels(labels, function=tf.nn.softmax_cross_entropy_with_logits):
    return lambda z: function(tf.constant([labels], F), z[None])[0]


def keras_loss(labels, logits):
    return tf.keras.losses.categorical_crossentropy(labels, logits, from_logits=True)


def bisected(x):
    """The root of y² = x[0], halving an interval in a way of its own."""

    def step(low, high):
        middle = (low + high) / 2
        above = middle**2 > x[0]
        return tf.where(above, low, middle), tf.where(above, middle, high)

    return tf.while_loop(lambda low, high: high - low > 1e-9, step, [0 * x[0], x[0] + 1])[0]


# A number of a vector; the vector; the operation that is named.
REFUSED = {
    "labels that sum to 0": (of_labels([0.0, 0.0, 0.0], keras_loss), [0, 0.1, 0], "SoftmaxCrossEntropyWithLogits"),
    "labels that sum to 3": (of_labels([0.0, 3.0, 0.0]), [0, 0.1, 0], "SoftmaxCrossEntropyWithLogits"),
    "written twice": (
        lambda x: tf.reduce_sum(tf.tensor_scatter_nd_update(x, [[0], [0]], x[1:]) ** 2),
        [1, 2, 3],
        "TensorScatterUpdate",
    ),
    "stitched twice": (
        lambda x: tf.reduce_sum(tf.dynamic_stitch([[0], [0, 1]], [x[:1], x[1:]]) ** 2),
        [1, 2, 3],
        "DynamicStitch",
    ),
    "a transform of the first number": (lambda x: real(tf.signal.rfft(x, [1])) ** 2, [1, 1, 2], "RFFT"),
    "bisection": (bisected, [2.0], "StatelessWhile"),
    "complex multiply_no_nan": (
        lambda x: real(tf.math.multiply_no_nan(numbers(x), numbers(x)[::-1])),
        PAIR,
        "MulNoNan",
    ),
    "complex det": (lambda x: real(tf.linalg.det(matrix(x))), PAIR, "MatrixDeterminant"),
    "complex sign": (lambda x: real(tf.linalg.slogdet(matrix(x))[0]), PAIR, "LogMatrixDeterminant"),
    "complex sqrtm": (lambda x: tf.math.imag(tf.linalg.sqrtm(matrix(x))[0, 1]), PAIR, "MatrixSquareRoot"),
    "complex xlogy": (lambda x: real(tf.math.xlogy(numbers(x), numbers(x[::-1]))), PAIR, "Xlogy"),
    "complex cumprod": (lambda x: real(tf.math.cumprod(numbers(x) + 1)), PAIR, "Cumprod"),
    "complex segment_prod": (lambda x: real(tf.math.segment_prod(numbers(x) + 1, [0, 0, 1, 1])), PAIR, "SegmentProd"),
}
REFUSED_TWICE = {
    "labels that vary": (
        lambda x: tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(x), x),
        [0.3, -1.1, 0.7],
        "SoftmaxCrossEntropyWithLogits",
    ),
    "complex prod": (lambda x: real(tf.reduce_prod(numbers(x))), PAIR, "Prod"),
    "complex singular vectors": (lambda x: real(polar(matrix(x))[0, 1]), PAIR, "Svd"),
}
WARNED = {
    "cumprod": (lambda x: tf.reduce_sum(tf.math.cumprod(x)), ZERO, "Cumprod"),
    "xlogy": (lambda x: tf.reduce_sum(tf.math.xlogy(x, tf.constant(2.0, F))), ZERO, "Xlogy"),
    "xlog1py": (lambda x: tf.reduce_sum(tf.math.xlog1py(x, tf.constant(2.0, F))), ZERO, "Xlog1py"),
    "xdivy": (lambda x: tf.reduce_sum(tf.math.xdivy(x, tf.constant(2.0, F))), ZERO, "Xdivy"),
    "bessel_i1": (lambda x: tf.reduce_sum(tf.math.bessel_i1(x)), ZERO, "BesselI1"),
    "igamma": (lambda x: tf.math.igamma(x[0], tf.constant(1e5, F)), [1e5], "Igamma"),
    "weighted cross-entropy": (
        lambda z: tf.reduce_sum(tf.nn.weighted_cross_entropy_with_logits(tf.constant([1.0, 0.0], F), z, 2.0)),
        [0, 0],
        "Abs",
    ),
    "keras logaddexp": (lambda z: OPS.logaddexp(z[0], z[1]), [0.7, 0.7], "Abs"),
    "NumPy's logaddexp": (lambda z: NUMPY.logaddexp(z[0], z[1]), [0.7, 0.7], "Abs"),
    "NumPy's logaddexp2": (lambda z: NUMPY.logaddexp2(z[0], z[1]), [0.7, 0.7], "Abs"),
    "celu": (lambda z: tf.reduce_sum(tf.keras.activations.celu(z)), [0.0, 1.0], "Maximum"),
    "hypot": (lambda z: OPS.hypot(z[0], z[1]), [3.0, 3.0], "Maximum"),
    "square root by eigenvectors": (lambda x: tf.reduce_sum(WEIGHTS * root(x)), UNIT, "SelfAdjointEigV2"),
    "polar factor of a small matrix": (
        lambda x: tf.reduce_sum(WEIGHTS * polar(1e-12 * square(x))),
        [2.0, 0.4, 0.3, 0.6, 1.9, 0.7, 0.7, 0.9, 1.8],
        "Svd",
    ),
    "pinv": (lambda x: tf.reduce_sum(WEIGHTS * tf.linalg.pinv(square(x))), UNIT, "Svd"),
    "Cholesky of a free matrix": (
        lambda x: tf.reduce_sum(tf.linalg.cholesky(tf.reshape(x, [2, 2])) * [[1.0, 2.0], [3.0, 4.0]]),
        [2.0, 0.5, 0.5, 1.0],
        "Cholesky",
    ),
    "indices that are computed": (
        lambda x: tf.reduce_sum(tf.tensor_scatter_nd_update(x, tf.cast(0 * x[1:, None], tf.int32), x[1:]) ** 2),
        [1, 2, 3],
        "TensorScatterUpdate",
    ),
}
WARNED_TWICE = {
    "prod": (tf.reduce_prod, ZERO, "Prod"),
    "unsorted_segment_prod": (
        lambda x: tf.reduce_sum(tf.math.unsorted_segment_prod(x, [0, 0, 0], 1)),
        ZERO,
        "UnsortedSegmentProd",
    ),
    "the last of cumprod": (lambda x: tf.math.cumprod(x)[-1], ZERO, "Cumprod"),
    "squares of eigenvalues": (
        lambda x: tf.reduce_sum(tf.linalg.eigvalsh(symmetric(x)) ** 2),
        UNIT,
        "SelfAdjointEigV2",
    ),
    "sinc": (lambda x: tf.reduce_sum(NUMPY.sinc(x)), [0.0, 0.5], "SelectV2"),
    "keras sinc": (lambda x: tf.reduce_sum(OPS.sinc(x)), [0.0, 0.5], "SelectV2"),
}


def at(x):
    return tf.constant(np.array(x, float))


def difference(f, x, h=1e-3):
    """The derivative by differences, O(h⁴), one row for each element."""

    def step(unit, h):
        return (np.asarray(f(at(x + h * unit))) - np.asarray(f(at(x - h * unit)))) / (2 * h)

    x = np.array(x, float)
    h = h * max(1, np.abs(x).max())
    return np.array([(4 * step(unit, h / 2) - step(unit, h)) / 3 for unit in np.eye(x.size)])


def is_off(found, wanted):
    return not np.allclose(np.nan_to_num(found, nan=1e9), wanted, rtol=1e-4, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.dear(keep=8)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize(("name", "table"), [(name, table) for table in (REFUSED, WARNED) for name in table])
def test_tensorflows_gradient_is_wrong_there(name, table):
    """Once it is not, the row is to go."""
    f, x, _ = table[name]
    assert is_off(by_tape.gradient(f, at(x)), difference(f, x))


@pytest.mark.parametrize("name", REFUSED)
def test_the_gradient_is_refused(name):
    f, x, operation = REFUSED[name]
    with pytest.raises(ValueError, match=rf"the derivative would be wrong, since .* It is {operation} "):
        value_and_gradient(f, compile="graph")(at(x))


@pytest.mark.parametrize("name", REFUSED_TWICE)
def test_the_second_derivative_is_refused_and_the_first_is_right(name):
    f, x, operation = REFUSED_TWICE[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        _, gradient = value_and_gradient(f, compile="graph")(at(x))
        assert not is_off(gradient, difference(f, x))
        assert is_off(by_tape.hessian(f, at(x)), difference(lambda x: by_tape.gradient(f, x), x))
    with pytest.raises(ValueError, match=rf"the second derivative would be wrong, since .* It is {operation} "):
        hvp(f, compile="graph")(at(x), vector=at(x))


@pytest.mark.parametrize(
    ("name", "derivative"),
    [
        *[(name, value_and_gradient) for name in WARNED],
        ("pinv", hessian),
        ("cumprod", jacobian),
        *[(name, hessian) for name in WARNED_TWICE],
    ],
)
def test_what_is_wrong_at_a_point_is_warned_of_by_operation_and_line(name, derivative):
    f, x, operation = (WARNED | WARNED_TWICE)[name]
    with pytest.warns(FallbackWarning) as caught:
        derivative(f, compile="graph")(at(x))
    told = [str(warning.message) for warning in caught]
    assert any(f"It is {operation} at {__file__}:" in text for text in told), told


def test_every_row_that_holds_is_told():
    with pytest.warns(FallbackWarning, match=r"tf.math.xlogy(.|\n)*And it computes tf.math.cumprod"):
        value_and_gradient(lambda x: tf.reduce_sum(tf.math.xlogy(x, 2.0) * tf.math.cumprod(x)))(tf.constant(ZERO))


SAFE = {
    "a product of positive numbers": lambda x: tf.reduce_prod(tf.exp(x)) + tf.math.cumprod(1 + x**2 * x**2)[-1],
    "an entropy of a softmax": lambda x: -tf.reduce_sum(tf.math.xlogy(tf.nn.softmax(x), tf.nn.softmax(x))),
    "one-hot labels": of_labels([0.0, 1.0, 0.0]),
    "labels that are data": lambda x: tf.reduce_sum(
        tf.nn.sparse_softmax_cross_entropy_with_logits([0, 2], tf.stack([x, 2 * x]))
    ),
    "each index once": lambda x: tf.reduce_sum(tf.tensor_scatter_nd_update(x, [[2], [0]], x[1:]) ** 2),
    "a shorter length": lambda x: real(tf.signal.rfft(x, [6])) ** 2,
    "a loop": lambda x: tf.reduce_sum(
        tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, (y + tf.sin(y)) / 2), [0, x])[1]
    ),
    "a covariance's factor": lambda x: tf.reduce_sum(
        tf.linalg.cholesky(tf.tensordot(x, x, 0) + 2 * tf.eye(3, dtype=x.dtype))
    ),
    "a real determinant": lambda x: tf.linalg.det(tf.tensordot(x, x, 0) + tf.eye(3, dtype=x.dtype)),
}


@pytest.mark.parametrize("name", SAFE)
def test_what_is_right_everywhere_is_quiet(name):
    x = at([0.3, -1.1, 0.7])
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        _, found = value_and_gradient(SAFE[name], compile="graph")(x)
        _, product = jvp(SAFE[name], compile="graph")(x, tangents=x)
        hvp(SAFE[name], compile="graph")(x, vector=x)
    assert not is_off(found, difference(SAFE[name], x))
    np.testing.assert_allclose(product, np.dot(found, x), rtol=1e-8)
