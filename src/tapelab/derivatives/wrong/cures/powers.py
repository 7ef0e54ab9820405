"""Powers at zero: ``y x^(y - 1)`` is 0 · ∞ where y and x are 0, and the derivative of x⁰ is 0."""

from tapelab.derivatives.wrong.cures.broadcasting import sum_to
from tapelab.runtime import tf

import numpy as np


def _pow(op, upstream):
    """tf.math.pow: x**0 has the derivative 0 at x = 0 too; TensorFlow's is NaN, and so is the second one of x**1."""
    x, y, power = op.inputs[0], op.inputs[1], op.outputs[0]
    exponent = tf.where((x == 0) & (y == 0), tf.zeros_like(y), y - 1)
    # A negative number has no power whose exponent changes: 0 stands for that derivative, as in TensorFlow.
    defined = x != 0 if x.dtype.is_complex else x > 0
    logarithm = tf.math.log(tf.where(defined, x, tf.ones_like(x)))
    by_x, by_y = y * tf.pow(x, exponent), power * logarithm
    return sum_to(upstream * tf.math.conj(by_x), x), sum_to(upstream * tf.math.conj(by_y), y)


def _may_be_zero(op, upstream):
    exponent = _constant(op.inputs[1])
    return exponent is None or not np.all(exponent)


def _constant(tensor):
    """The value of a tensor, where it is a constant or the difference of two; otherwise None."""
    value = tf.get_static_value(tensor)
    if value is None and tensor.op.type == "Sub":
        terms = [_constant(term) for term in tensor.op.inputs]
        value = None if any(term is None for term in terms) else terms[0] - terms[1]
    return value


_pow.applies = _may_be_zero
GRADIENTS = {"Pow": _pow}
FUNCTIONS = []
