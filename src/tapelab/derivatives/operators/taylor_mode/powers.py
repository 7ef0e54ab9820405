"""Powers and logarithms, by channels in proportion to the value: no power leaves the range of floats before its result.

The second derivative of 1/v is 2/v³: in float32 that is 0 where v = 1e13, and what it multiplies may be 1e26. With
u = a / v it is a function of channels near 1: a^p = v^p u^p and log a = log v + log u, where u's value is 1. Of a
tiny v those channels are huge, and v^p may be as tiny: so a channel of order k is multiplied by w^k, where w^order is
the size of v^p, before products of channels are made.
"""

import math
from collections.abc import Callable

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.values import Val
from tapelab.process.tensorflow import tf

from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too


def power_of(algebra: Algebra, a: Val, y: tf.Tensor, p: float) -> Val:
    """Return y = a^p for a number p that is not a whole one from 0."""
    if not a.ch:
        return Val(y)
    # v^p may be 0 where v^(p - 1) is not; of p < 1 only where v is 0.
    plain = a.v == 0 if p < 1 else _leaves_the_range(y)

    def derivative(order: int) -> tf.Tensor:
        if p < 1:
            return _falling(p, order) * tf.where(plain, tf.cast(math.inf, y.dtype), y)
        power = tf.pow(tf.where(plain, a.v, tf.ones_like(y)), tf.cast(p - order, y.dtype))
        return _falling(p, order) * tf.where(plain, power, y)

    over = a.over(tf.where(plain, tf.ones_like(a.v), a.v))
    return _in_proportion(algebra, Val(a.v, over), y, derivative)


def power_near_one(algebra: Algebra, a: Val, v: tf.Tensor, y: tf.Tensor, p: float) -> Val:
    """Return y · (a / v)^p, v being the value of a."""
    if not a.ch:
        return Val(y)
    return _in_proportion(algebra, Val(v, a.over(v)), y, lambda order: _falling(p, order) * y)


def log_of(algebra: Algebra, a: Val, y: tf.Tensor) -> Val:
    """Return y = log a."""
    if not a.ch:
        return Val(y)
    zero, one = a.v == 0, tf.ones_like(a.v)
    slope = tf.where(zero, tf.cast(math.inf, y.dtype), one)

    def derivative(order: int) -> tf.Tensor:
        return (-1) ** (order - 1) * math.factorial(order - 1) * slope

    return algebra.unary(Val(a.v, a.over(tf.where(zero, one, a.v))), y, derivative)


def powers_of(algebra: Algebra, a: Val, p: tf.Tensor, y: tf.Tensor) -> Val:
    """Return y = a^p, p having no channels: a number for each element, known when the graph runs."""
    if not a.ch:
        return Val(y)
    p, v = tf.broadcast_to(p, y.shape), tf.broadcast_to(a.v, y.shape)
    whole = tf.logical_and(p >= 0, p == tf.round(p))
    plain = _leaves_the_range(y) | whole | (p > tf.cast(algebra.order - 1, p.dtype))
    one = tf.ones_like(v)
    base = tf.where(plain, v, one)

    def derivative(order: int) -> tf.Tensor:
        factor = tf.ones_like(p)
        for i in range(order):
            factor = factor * (p - i)
        # x⁰ has no derivatives, at 0 neither
        return tf.where(plain, tf.math.multiply_no_nan(tf.pow(base, p - order), factor), factor * y)

    over = Val(v, a.padded(y.shape.rank)).over(tf.where(plain, one, v))
    return _in_proportion(algebra, Val(v, over), y, derivative)


def _in_proportion(algebra: Algebra, a: Val, y: tf.Tensor, derivative: Callable[[int], tf.Tensor]) -> Val:
    """Return y = φ(a), whose derivatives are of the size of y: what w is does not change the result."""
    size = tf.where(_leaves_the_range(y), tf.ones_like(tf.abs(y)), tf.abs(y))
    w = tf.cast(tf.stop_gradient(tf.pow(size, tf.cast(1 / algebra.order, size.dtype))), y.dtype)
    powers = [w]
    while len(powers) < algebra.order:
        powers.append(powers[-1] * w)
    scaled = [None if c is None else c * power for c, power in zip(a.ch, powers, strict=True)]
    out = algebra.unary(Val(a.v, scaled), y, lambda order: derivative(order) / powers[-1])
    last = [None if c is None else c * power for c, power in zip(out.ch, [*powers[-2::-1], 1], strict=True)]
    return Val(y, last)


def _leaves_the_range(y: tf.Tensor) -> tf.Tensor:
    """Whether a number is 0, or too small for all of its digits, infinite or NaN."""
    size = tf.abs(y)
    return ~((size >= float(finfo(size.dtype.as_numpy_dtype).smallest_normal)) & tf.math.is_finite(size))


def _falling(p: float, order: int) -> float:
    return math.prod(p - i for i in range(order))
