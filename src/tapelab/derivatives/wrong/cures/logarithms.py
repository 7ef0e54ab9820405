"""0 · log 0: products that are zero where a factor is, and their derivatives there.

``xlogy(x, y)`` is linear in x at x = 0 too, with the slope log y. TensorFlow's gradient is 0 there, as it is of
``xlog1py(x, y)`` and ``xdivy(x, y)``. Where that slope is infinite, or not a number, the function has no derivative at
x = 0, and 0 remains: of ``xlogy(x, y)`` at y ≤ 0, of ``xlog1py(x, y)`` at y ≤ -1, of ``xdivy(x, y)`` at y = 0.
"""

from tapelab.derivatives.wrong.cures.broadcasting import sum_to
from tapelab.runtime import tf


def _xlogy(op, upstream):
    """tf.math.xlogy: linear in x at x = 0 too, with the slope log y; TensorFlow's gradient is 0 there."""
    x, y = op.inputs
    defined = y != 0 if y.dtype.is_complex else y > 0
    return _gradients(op, upstream, tf.math.xlogy(_sloped(x, defined), y), tf.math.xdivy(x, y))


def _xlog1py(op, upstream):
    """tf.math.xlog1py: linear in x at x = 0 too, with the slope log(1 + y); TensorFlow's gradient is 0 there."""
    x, y = op.inputs
    defined = y != -1 if y.dtype.is_complex else y > -1
    return _gradients(op, upstream, tf.math.xlog1py(_sloped(x, defined), y), tf.math.xdivy(x, y + 1))


def _xdivy(op, upstream):
    """tf.math.xdivy: linear in x at x = 0 too, with the slope 1/y; TensorFlow's gradient is 0 there."""
    x, y = op.inputs
    return _gradients(op, upstream, tf.math.xdivy(_sloped(x, y != 0), y), -tf.math.xdivy(tf.math.xdivy(x, y), y))


def _sloped(x, defined):
    """Return 1, and 0 where x is 0 and the slope there is not defined."""
    return tf.cast((x != 0) | defined, x.dtype)


def _gradients(op, upstream, by_x, by_y):
    x, y = op.inputs
    return sum_to(upstream * tf.math.conj(by_x), x), sum_to(upstream * tf.math.conj(by_y), y)


GRADIENTS = {"Xdivy": _xdivy, "Xlog1py": _xlog1py, "Xlogy": _xlogy}
FUNCTIONS = []
