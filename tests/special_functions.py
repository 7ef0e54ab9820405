"""Functions at points where TensorFlow's derivatives are wrong, or were: of a vector, with a scalar as the result."""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.runtime import tf

from data_tables import read_table


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


PRODUCTS = read_table("special_functions", "PRODUCTS", globals())
LOGARITHMS = read_table("special_functions", "LOGARITHMS", globals())
POWERS = read_table("special_functions", "POWERS", globals())
COMPLEX_NUMBERS = read_table("special_functions", "COMPLEX_NUMBERS", globals())
WRITTEN_TWICE = read_table("special_functions", "WRITTEN_TWICE", globals())
