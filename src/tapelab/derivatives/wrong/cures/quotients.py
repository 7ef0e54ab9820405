"""Quotients, logarithms and negative powers of huge and tiny numbers: as TensorFlow's gradients, in a wider range.

The derivative of x / y by y is -x / y²: of a y of 1e200 in float64, or of 1e30 in float32, that is 0, and of one as
tiny it is infinite. What it multiplies may make up for it, as in (k x) / (k (x² + 1)). Here no power of y is taken: the
cotangent u is divided by y, and that is multiplied by the quotient, u/y · x/y. Each further derivative divides what it
gets by y once more. So it is with 1/x, log x, x^(-½) and x^p of a negative p, whose derivative is p u xᵖ / x. Of an
angle, x² + y² would leave the range: both are divided by the larger one before they are squared.

A root that is infinite, as a norm is whose squares are out of range, has no derivative that is known: not 0.

Those of quotients, logarithms and negative powers take fewer operations than TensorFlow's own. Those of 1/x and
x^(-½), which are one kernel there, take two more, those of roots three, and those of angles five or six.

The derivatives of Bessel's functions with an exponential factor, such as I₁(x) e⁻ˣ - I₀(x) e⁻ˣ, are differences of
numbers that agree in more digits the larger x is. There they are the derivatives of the asymptotic series (NIST Digital
Library of Mathematical Functions, 10.40.1 and 10.40.2).
"""

import math

from tapelab.derivatives.wrong.cotangents import lost_at_infinity, sum_to, used_where
from tapelab.derivatives.wrong.cures.at_zero import by_exponent, constant
from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.process.tensorflow import tf

import numpy as np

_GAMMA_KNOWN = 1e4  # up to this a, the derivative by it is right to 3e-6
_BESSEL_TERMS = 15  # the next one is below 1e-20 from |x| = 50 on, and below 1e-9 from 10 on


def _quotient(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x, y = (tf.math.conj(tensor) for tensor in op.inputs)
    by_x = upstream / y
    return sum_to(by_x, x), sum_to(-by_x * (x / y), y)


def _quotient_without_nan(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    x, y = (tf.math.conj(tensor) for tensor in op.inputs)
    by_x = tf.math.divide_no_nan(upstream, y)
    return sum_to(by_x, x), sum_to(-by_x * tf.math.divide_no_nan(x, y), y)


def _reciprocal(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    y = tf.math.conj(op.outputs[0])
    return -(upstream * y) * y


def _inverse_root(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    (y,) = op.outputs
    if tf.is_symbolic_tensor(y) and y.op.type == "Rsqrt":  # a tape does not keep the input
        # As of a power: the factors of y³ Grappler and XLA would gather with the caller's in one, out of range.
        return -0.5 * (upstream * tf.math.conj(y)) / tf.math.conj(y.op.inputs[0])
    return 0.5 * tf.raw_ops.ReciprocalGrad(y=y, dy=upstream * tf.math.conj(y))


def _logarithm(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    return upstream / tf.math.conj(op.inputs[0])


def _logarithm_of_one_more(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    return upstream / (1 + tf.math.conj(op.inputs[0]))


def _exponents(op: tf.Operation, low: float, high: float) -> bool:
    """Whether the exponent of a power is known, and all of it is between two numbers."""
    exponent = constant(op.inputs[1])
    return exponent is not None and bool(np.all((low < np.real(exponent)) & (np.real(exponent) < high)))


@used_where(lambda op, _: _exponents(op, -math.inf, 0) or _exponents(op, 0, 1))
def _power(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | None]:
    x, p, power = (tf.math.conj(tensor) for tensor in (*op.inputs, op.outputs[0]))
    if _exponents(op, -math.inf, 0):
        by_x = upstream * power * p / x
    else:
        by_x = lost_at_infinity(upstream * p * tf.pow(x, p - 1), power, upstream)
    # In a graph it is a constant; a tape knows the value of every exponent, and this may be a source.
    by_p = None if tf.is_symbolic_tensor(p) else by_exponent(x, p, power, upstream)
    return sum_to(by_x, x), by_p


def _root(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    return lost_at_infinity(plain("Sqrt")(op, upstream), op.outputs[0], upstream)


def _angle(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    y, x = op.inputs
    # What the derivative is does not depend on the size that everything is divided by.
    size = tf.stop_gradient(tf.maximum(tf.abs(x), tf.abs(y)))
    y, x = y / size, x / size
    weight = upstream / size / (tf.square(x) + tf.square(y))
    return sum_to(x * weight, op.inputs[0]), sum_to(-y * weight, op.inputs[1])


def _bessel(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    kind, order = op.type[len("Bessel")], int(op.type[-2])
    (x,), near = op.inputs, plain(op.type)(op, upstream)
    start = 50 if x.dtype == tf.float64 else 10
    far = tf.abs(x) > start
    part = 1 / tf.where(far, tf.abs(x), start * tf.ones_like(x))
    series = tf.zeros_like(x)
    for k in reversed(range(_BESSEL_TERMS)):
        series = series * part - (k + 0.5) * _coefficient(kind, order, k)
    scale = math.sqrt(math.pi / 2 if kind == "K" else 0.5 / math.pi)
    odd = 1 if order else tf.sign(x)  # the derivative of I₀, which is even
    return tf.where(far, upstream * odd * (scale * series * part * tf.sqrt(part)), near)


def _coefficient(kind: str, order: int, k: int) -> float:
    """The coefficient of x^(-k) in the asymptotic series of a function of Bessel's, times the square root of x."""
    factors = [(4 * order**2 - (2 * j - 1) ** 2) / (8 * j) for j in range(1, k + 1)]
    return math.prod(factors) * (1 if kind == "K" else (-1) ** k)


def _incomplete_gamma(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    a, x = (tf.cast(tensor, tf.float64) for tensor in op.inputs)
    cotangent = (-1 if op.type == "Igammac" else 1) * tf.cast(upstream, tf.float64)
    by_a = cotangent * tf.raw_ops.IgammaGradA(a=a, x=x)
    known = tf.where(a > _GAMMA_KNOWN, tf.constant(math.inf, a.dtype), a)
    by_a = lost_at_infinity(by_a, tf.broadcast_to(known, tf.shape(by_a)), cotangent)
    by_x = cotangent * tf.exp(tf.math.xlogy(a - 1, x) - x - tf.math.lgamma(a))
    a, x = op.inputs
    return sum_to(tf.cast(by_a, a.dtype), a), sum_to(tf.cast(by_x, x.dtype), x)


WIDER = {
    "Atan2": _angle,
    **dict.fromkeys(["BesselI0e", "BesselI1e", "BesselK0e", "BesselK1e"], _bessel),
    "Div": _quotient,
    "DivNoNan": _quotient_without_nan,
    **dict.fromkeys(["Igamma", "Igammac"], _incomplete_gamma),
    "Inv": _reciprocal,
    "Log": _logarithm,
    "Log1p": _logarithm_of_one_more,
    "Pow": _power,
    "RealDiv": _quotient,
    "Reciprocal": _reciprocal,
    "Rsqrt": _inverse_root,
    "Sqrt": _root,
}
