"""Functions at points where TensorFlow's derivatives are wrong, or were: of a vector, with a scalar as the result."""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.runtime import tf


class Case(NamedTuple):
    f: Callable
    x: list[float]


def weighted(y):
    """A sum in which every entry counts, whatever the other ones are."""
    return tf.reduce_sum(y * tf.reshape(tf.cos(tf.cast(tf.range(1, tf.size(y) + 1), y.dtype)), tf.shape(y)))


def complex_part(x):
    """The vector of half the length whose real and imaginary parts alternate in x."""
    return tf.complex(x[0::2], x[1::2])


def of_complex(f):
    """A function of a complex vector, as one of a real vector with a real result."""

    def g(x):
        z = f(complex_part(x))
        return weighted(tf.math.real(z)) + 0.7 * weighted(tf.math.imag(z))

    return g


def matrix(z):
    return tf.reshape(z, [2, 2])


TWO_ZEROS, THREE_ZEROS = [0.0, 1.0, 2.0, 0.0, -1.0, 3.0], [1.5, 0.0, 2.0, 0.0, 0.0, 3.0]
COMPLEX_ZEROS = [0.0, 0.0, 1.0, 2.0, 0.5, -1.0, 0.0, 0.0]
COMPLEX = [2.0, 0.3, 0.1, 1.0, 0.0, 0.2, -0.4, 0.1]
SLOPES = [0.0, 0.0, 1.0, 2.0, 0.5, -1.0, 1.0, 0.2]  # two complex factors, the first of which is zero, and two others


def halves(f):
    """A function of two vectors, as one of the vector of both."""

    def g(x):
        middle = x.shape[0] // 2
        return f(x[:middle], x[middle:])

    return g


def cumulative(exclusive, reverse):
    return lambda x: weighted(tf.math.cumprod(x, exclusive=exclusive, reverse=reverse))


def cumulated_along_axes(x):
    up = tf.math.cumprod(tf.reshape(x, [2, 3]), 0)
    down = tf.math.cumprod(tf.reshape(x, [2, 3, 1]), 1, exclusive=True, reverse=True)
    return weighted(up) + weighted(down) + weighted(tf.math.cumprod(tf.reshape(x, [2, 3, 1]), -1))


def products_along_axes(x):
    x = tf.reshape(x, [1, 2, 3])
    kept = [tf.reduce_prod(x, [0, 2], keepdims=True), tf.reduce_prod(x, 0, keepdims=True), tf.reduce_prod(x, [])]
    return weighted(tf.reduce_prod(x, [1])) + sum(weighted(each**2) for each in kept)


def scattered_where_data_says(x):
    indices = tf.cast(0 * x[:3, None], tf.int32) + tf.constant([[0], [0], [2]])
    return weighted(tf.tensor_scatter_nd_update(x, indices, x[1:4]) ** 2)


PRODUCTS = {
    "product of unknown length": Case(lambda x: tf.reduce_prod(tf.boolean_mask(x, x < 2.5)) * x[2], TWO_ZEROS),
    "products along axes that data say": Case(
        lambda x: weighted(tf.reduce_prod(tf.reshape(x, [2, 1, 3]), tf.cast([1, 2 + 0 * x[0]], tf.int32))), TWO_ZEROS
    ),
    "cumprod along an axis that data say": Case(
        lambda x: weighted(tf.math.cumprod(tf.reshape(x, [2, 3]), tf.cast(0 * x[0], tf.int32), exclusive=True)),
        THREE_ZEROS,
    ),
    "product, one zero": Case(tf.reduce_prod, [0.0, 1.0, 2.0]),
    "product, two zeros": Case(tf.reduce_prod, [2.0, 0.0, 1.0, 0.0]),
    "product, three zeros": Case(lambda x: tf.reduce_prod(x) + tf.reduce_prod(x[::2]), THREE_ZEROS),
    "products along axes": Case(products_along_axes, THREE_ZEROS),
    "cumprod": Case(cumulative(False, False), TWO_ZEROS),
    "cumprod, exclusive": Case(cumulative(True, False), TWO_ZEROS),
    "cumprod, reversed": Case(cumulative(False, True), THREE_ZEROS),
    "cumprod, exclusive and reversed": Case(cumulative(True, True), THREE_ZEROS),
    "cumprod along axes": Case(cumulated_along_axes, THREE_ZEROS),
    "segment_prod": Case(lambda x: weighted(tf.math.segment_prod(x, [0, 0, 2, 2, 2, 3])), THREE_ZEROS),
    "segment_prod of rows": Case(
        lambda x: weighted(tf.math.segment_prod(tf.reshape(x, [3, 2]), [0, 0, 2])), THREE_ZEROS
    ),
    "unsorted_segment_prod": (
        Case(lambda x: weighted(tf.math.unsorted_segment_prod(x, [3, 0, 3, -1, 0, 0], 5)), THREE_ZEROS)
    ),
    "unsorted_segment_prod of rows": Case(
        lambda x: weighted(tf.math.unsorted_segment_prod(tf.reshape(x, [3, 2]), [1, -1, 1], 3)), TWO_ZEROS
    ),
    "unsorted_segment_prod by a matrix": Case(
        lambda x: weighted(tf.math.unsorted_segment_prod(tf.reshape(x, [3, 2]), [[3, 0], [3, -1], [0, 0]], 5)),
        THREE_ZEROS,
    ),
}
LOGARITHMS = {
    "xlogy, linear": Case(lambda x: weighted(tf.math.xlogy(x, tf.constant(2.0, x.dtype))), [0.0, 1.0, 2.0]),
    "xlogy": Case(halves(lambda x, y: weighted(tf.math.xlogy(x, y))), [0.0, 1.0, 2.0, 3.0]),
    "xlogy, broadcast": Case(halves(lambda x, y: weighted(tf.math.xlogy(x, y[:, None]))), [0.0, 1.0, 2.0, 3.0]),
    "xlog1py": Case(halves(lambda x, y: weighted(tf.math.xlog1py(x, y))), [0.0, 1.0, -0.5, 3.0]),
    "xdivy": Case(halves(lambda x, y: weighted(tf.math.xdivy(x, y))), [0.0, 1.0, -2.0, 3.0]),
    "multiply_no_nan": Case(halves(lambda x, y: weighted(tf.math.multiply_no_nan(x, y))), [0.0, 1.0, -2.0, 0.0]),
    "divide_no_nan": Case(halves(lambda x, y: weighted(tf.math.divide_no_nan(x, y))), [0.0, 1.0, -2.0, 3.0]),
    "cumulative_logsumexp": Case(
        lambda x: tf.reduce_sum(tf.math.cumulative_logsumexp(x) ** 2), [0.0, 0.0, 1.0, 0.3, -1.0]
    ),
    "cumulative_logsumexp, exclusive and reversed": Case(
        lambda x: tf.reduce_sum(tf.math.cumulative_logsumexp(x, exclusive=True, reverse=True)[:-1] ** 2),
        [0.0, 0.0, 1.0, 0.3, 0.0],
    ),
    "euclidean norm": Case(
        lambda x: tf.reduce_sum(tf.math.reduce_euclidean_norm(tf.reshape(x, [2, 3]), 1) ** 2 * [0.0, 1.0]), THREE_ZEROS
    ),
}
POWERS = {
    "power 1": Case(lambda x: weighted(x ** tf.constant(1.0, x.dtype)), [0.0, 1.0, -2.0]),
    "power 2": Case(lambda x: weighted(x**2), [0.0, 1.0, -2.0]),
    "powers 0 to 3": Case(lambda x: weighted(x[:, None] ** tf.range(4.0, dtype=x.dtype)), [0.0, 1.0, -2.0]),
    "bessel_i1": Case(lambda x: weighted(tf.math.bessel_i1(x)), [0.0, 1.0, -2.0]),
    "bessel_i0": Case(lambda x: weighted(tf.math.bessel_i0(x)), [0.0, 0.7, -1.5]),
    "bessel_j1": Case(lambda x: weighted(tf.math.special.bessel_j1(x)), [0.0, 1.0, -2.0]),
    "powers of a source": Case(halves(lambda x, y: weighted(x**y)), [2.0, 0.5, 0.0, 1.0]),
}
COMPLEX_NUMBERS = {
    "complex product": Case(of_complex(tf.reduce_prod), COMPLEX_ZEROS),
    "complex cumprod": Case(of_complex(lambda z: tf.math.cumprod(z, reverse=True)), COMPLEX_ZEROS),
    "complex segment_prod": Case(of_complex(lambda z: tf.math.segment_prod(z, [0, 0, 0, 2])), COMPLEX_ZEROS),
    "complex unsorted_segment_prod": (
        Case(of_complex(lambda z: tf.math.unsorted_segment_prod(z, [1, -1, 1, 1], 3)), COMPLEX_ZEROS)
    ),
    "complex xlogy": Case(of_complex(halves(tf.math.xlogy)), SLOPES),
    "complex xlog1py": Case(of_complex(halves(tf.math.xlog1py)), SLOPES),
    "complex xdivy": Case(of_complex(halves(tf.math.xdivy)), SLOPES),
    "complex multiply_no_nan": Case(of_complex(halves(tf.math.multiply_no_nan)), COMPLEX_ZEROS),
    "complex divide_no_nan": Case(of_complex(halves(tf.math.divide_no_nan)), SLOPES),
    "complex powers": Case(of_complex(lambda z: z[:, None] ** tf.constant([0, 1, 2], z.dtype)), COMPLEX),
    "complex determinant": Case(of_complex(lambda z: tf.linalg.det(matrix(z))), COMPLEX),
    "complex sign of a determinant": Case(of_complex(lambda z: tf.linalg.slogdet(matrix(z))[0]), COMPLEX),
    "complex logarithm of a determinant": Case(of_complex(lambda z: tf.linalg.slogdet(matrix(z))[1]), COMPLEX),
    "complex square root of a matrix": Case(of_complex(lambda z: tf.linalg.sqrtm(matrix(z))), COMPLEX),
    "complex squared difference": Case(of_complex(lambda z: tf.math.squared_difference(z, z[:1] * (1 + 2j))), COMPLEX),
    "complex euclidean norm": Case(
        of_complex(lambda z: (1 + 2j) * tf.math.reduce_euclidean_norm(matrix(z), 1)), COMPLEX
    ),
}
WRITTEN_TWICE = {
    "tensor_scatter_nd_update": (
        Case(
            lambda x: weighted(tf.tensor_scatter_nd_update(x, [[0], [0], [2]], x[1:4]) ** 2),
            THREE_ZEROS,
        )
    ),
    "tensor_scatter_nd_update of rows": Case(
        lambda x: weighted(
            tf.tensor_scatter_nd_update(tf.reshape(x, [3, 2]), [[0], [0]], tf.reshape(x[1:5], [2, 2])) ** 2
        ),
        THREE_ZEROS,
    ),
    "tensor_scatter_nd_update where data says": Case(scattered_where_data_says, THREE_ZEROS),
    "segment_mean, an empty segment": (
        Case(lambda x: weighted(tf.math.segment_mean(tf.reshape(x, [3, 2]), [0, 2, 2]) ** 2), THREE_ZEROS)
    ),
    "dynamic_stitch": Case(lambda x: weighted(tf.dynamic_stitch([[0, 1, 1], [2, 0]], [x[:3], x[3:5]]) ** 2), TWO_ZEROS),
    "dynamic_stitch of rows": Case(
        lambda x: weighted(tf.dynamic_stitch([[0, 1], [0]], [tf.reshape(x[:4], [2, 2]), x[None, 4:]]) ** 2), TWO_ZEROS
    ),
}
