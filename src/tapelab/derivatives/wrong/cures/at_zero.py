"""0 · ∞: products and powers that have a value where a part is infinite, and their derivatives there.

``xlogy(x, y)`` is linear in x at x = 0 too, with the slope log y. TensorFlow's gradient is 0 there, as it is of
``xlog1py(x, y)`` and ``xdivy(x, y)``. Where that slope is infinite, or not a number, the function has no derivative at
x = 0, and 0 remains: of ``xlogy(x, y)`` at y ≤ 0, of ``xlog1py(x, y)`` at y ≤ -1, of ``xdivy(x, y)`` at y = 0.

Of a power, ``y x^(y - 1)`` is 0 · ∞ where y and x are 0, and the derivative of x⁰ is 0.

The derivatives of Bessel's I₁ and J₁ have the quotients I₁(x) / x and J₁(x) / x, which are ½ at 0. Around it they are
summed as the series that they are, so that all derivatives are right there (NIST Digital Library of Mathematical
Functions, 10.2.2, 10.25.2 and 10.29.4).
"""

import math

from tapelab.derivatives.wrong.cotangents import sum_to, used_where
from tapelab.process.tensorflow import tf

import numpy as np

_BESSEL_TERMS = 12  # up to |x| = 1, the next one is below 1e-24


def _xlogy(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.math.xlogy: linear in x at x = 0 too, with the slope log y; TensorFlow's gradient is 0 there."""
    x, y = op.inputs
    defined = y != 0 if y.dtype.is_complex else y > 0
    return _gradients(op, upstream, tf.math.xlogy(_sloped(x, defined), y), tf.math.xdivy(x, y))


def _xlog1py(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.math.xlog1py: linear in x at x = 0 too, with the slope log(1 + y); TensorFlow's gradient is 0 there."""
    x, y = op.inputs
    defined = y != -1 if y.dtype.is_complex else y > -1
    return _gradients(op, upstream, tf.math.xlog1py(_sloped(x, defined), y), tf.math.xdivy(x, y + 1))


def _xdivy(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.math.xdivy: linear in x at x = 0 too, with the slope 1/y; TensorFlow's gradient is 0 there."""
    # No power of y is taken, which may leave the range of floats (`quotients`).
    x, y = (tf.math.conj(tensor) for tensor in op.inputs)
    by_x = tf.math.xdivy(upstream * _sloped(x, y != 0), y)
    return sum_to(by_x, x), sum_to(-by_x * tf.math.xdivy(x, y), y)


def _sloped(x: tf.Tensor, defined: tf.Tensor) -> tf.Tensor:
    """Return 1, and 0 where x is 0 and the slope there is not defined."""
    return tf.cast((x != 0) | defined, x.dtype)


def _gradients(op: tf.Operation, upstream: tf.Tensor, by_x: tf.Tensor, by_y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x, y = op.inputs
    return sum_to(upstream * tf.math.conj(by_x), x), sum_to(upstream * tf.math.conj(by_y), y)


def _may_be_zero(op: tf.Operation, upstream: tf.Tensor) -> bool:
    exponent = constant(op.inputs[1])
    return exponent is None or not np.all(exponent)


def constant(tensor: tf.Tensor) -> np.ndarray | np.generic | None:
    """Return the value of a tensor, where it is a constant or the difference of two; otherwise None."""
    value = tf.get_static_value(tensor)
    if value is None and tensor.op.type == "Sub":
        first, second = map(constant, tensor.op.inputs)
        value = None if first is None or second is None else np.subtract(first, second)
    return value


@used_where(_may_be_zero)
def _pow(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.math.pow: x**0 has the derivative 0 at x = 0 too; TensorFlow's is NaN, and so is the second one of x**1."""
    x, y, power = (tf.math.conj(tensor) for tensor in (*op.inputs, op.outputs[0]))
    # Of a negative y, x^(y - 1) is x^y / x: it may leave the range of floats before it meets the cotangent.
    negative = tf.math.real(y) < 0
    exponent = tf.where(negative | ((x == 0) & (y == 0)), tf.zeros_like(y), y - 1)
    one = tf.ones_like(power)
    above, below = tf.where(negative, power, one), tf.where(negative, x, one)
    by_x = upstream * above * y / below * tf.pow(x, exponent)
    return sum_to(by_x, x), by_exponent(x, y, power, upstream)


def by_exponent(x: tf.Tensor, y: tf.Tensor, power: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Return the gradient of a power with respect to its exponent y.

    A negative number has no power whose exponent changes: 0 stands for that derivative, as in TensorFlow.
    """
    defined = x != 0 if x.dtype.is_complex else x > 0
    logarithm = tf.math.log(tf.where(defined, x, tf.ones_like(x)))
    return sum_to(upstream * power * logarithm, y)


def _bessel_i1(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """tf.math.bessel_i1: the derivative is 1/2 at 0; TensorFlow's is 1, and the second one NaN."""
    (x,), y = op.inputs, tf.math.bessel_i1(op.inputs[0])
    return upstream * (tf.math.bessel_i0(x) - _over(y, x, 1))


def _bessel_j1(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """tf.math.special.bessel_j1: the second derivative is 0 at 0; TensorFlow's is NaN."""
    (x,), y = op.inputs, tf.math.special.bessel_j1(op.inputs[0])
    return upstream * (tf.math.special.bessel_j0(x) - _over(y, x, -1))


def _over(y: tf.Tensor, x: tf.Tensor, sign: int) -> tf.Tensor:
    """Return y / x, where y is Bessel's I₁(x) for the sign 1 and J₁(x) for -1."""
    near = tf.abs(x) < 1
    small = tf.where(near, sign * tf.square(x) / 4, tf.zeros_like(x))
    series = tf.zeros_like(x)
    for k in reversed(range(_BESSEL_TERMS)):
        series = series * small + 0.5 / (math.factorial(k) * math.factorial(k + 1))
    return tf.where(near, series, y / tf.where(near, tf.ones_like(x), x))


GRADIENTS = {
    "BesselI1": _bessel_i1,
    "BesselJ1": _bessel_j1,
    "Pow": _pow,
    "Xdivy": _xdivy,
    "Xlog1py": _xlog1py,
    "Xlogy": _xlogy,
}
