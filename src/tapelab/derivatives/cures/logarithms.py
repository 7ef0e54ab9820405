"""0 · log 0: products that are zero where a factor is, and their derivatives there.

TensorFlow's gradient of ``xlogy(x, y)`` with respect to x is ``xlogy(x != 0, y)``: 0 where x is 0, though the function
is linear in x there, with the slope log y.
"""

from tapelab.derivatives.cures.broadcasting import sum_to
from tapelab.runtime import tf


def _xlogy(op, upstream):
    """tf.math.xlogy: linear in x at x = 0 too, with the slope log y; TensorFlow's gradient is 0 there."""
    x, y = op.inputs
    by_x = tf.where(tf.logical_and(x == 0, y == 0), tf.zeros_like(upstream), tf.math.log(y))
    return sum_to(upstream * tf.math.conj(by_x), x), sum_to(upstream * tf.math.conj(tf.math.xdivy(x, y)), y)


GRADIENTS = {"Xlogy": _xlogy}
FUNCTIONS = []
