"""Powers and logarithms, by channels in proportion to the value: no power leaves the range of floats before its result.

The second derivative of 1/v is 2/v³: in float32 that is 0 where v = 1e13, and what it multiplies may be 1e26. With
u = a / v it is a function of channels near 1: a^p = v^p u^p and log a = log v + log u, where u's value is 1. Of a
tiny v those channels are huge, so that v^p multiplies them before they are squared.
"""

import math

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.values import Val
from tapelab.process.tensorflow import tf


def power_of(algebra: Algebra, a: Val, y: tf.Tensor, p: float) -> Val:
    """Return y = a^p for a number p that is not a whole one from 0."""
    if a.ch is None:
        return Val(y)
    if algebra.order < p + 1:  # v^p may be 0 where v^(p - 1) is not, and v^(p - order) keeps within the range
        return algebra.unary(
            a, y, lambda order: _falling(p, order) * tf.pow(a.v, tf.cast(p - order, y.dtype)), wide=True
        )
    zero = a.v == 0

    def derivative(order):
        at_zero = tf.cast(0.0 if p > order else math.inf, y.dtype)
        return _falling(p, order) * tf.where(zero, at_zero, y)

    return algebra.unary(Val(a.v, a.over(tf.where(zero, tf.ones_like(a.v), a.v))), y, derivative, wide=True)


def power_near_one(algebra: Algebra, a: Val, v: tf.Tensor, y: tf.Tensor, p: float) -> Val:
    """Return y · (a / v)^p, v being the value of a."""
    if a.ch is None:
        return Val(y)
    return algebra.unary(Val(v, a.over(v)), y, lambda order: _falling(p, order) * y, wide=True)


def log_of(algebra: Algebra, a: Val, y: tf.Tensor) -> Val:
    """Return y = log a."""
    if a.ch is None:
        return Val(y)
    zero, one = a.v == 0, tf.ones_like(a.v)
    slope = tf.where(zero, tf.cast(math.inf, y.dtype), one)

    def derivative(order):
        return (-1) ** (order - 1) * math.factorial(order - 1) * slope

    return algebra.unary(Val(a.v, a.over(tf.where(zero, one, a.v))), y, derivative)


def powers_of(algebra: Algebra, a: Val, p: tf.Tensor, y: tf.Tensor) -> Val:
    """Return y = a^p, p having no channels: a number for each element, known when the graph runs."""
    if a.ch is None:
        return Val(y)
    p, v = tf.broadcast_to(p, y.shape), tf.broadcast_to(a.v, y.shape)
    whole = tf.logical_and(p >= 0, p == tf.round(p))
    plain = (v == 0) | whole | (p > tf.cast(algebra.order - 1, p.dtype))
    one = tf.ones_like(v)
    base = tf.where(plain, v, one)

    def derivative(order):
        factor = tf.ones_like(p)
        for i in range(order):
            factor = factor * (p - i)
        # x⁰ has no derivatives, at 0 neither
        return tf.where(plain, tf.math.multiply_no_nan(tf.pow(base, p - order), factor), factor * y)

    over = Val(v, a.padded(y.shape.rank)).over(tf.where(plain, one, v))
    return algebra.unary(Val(v, over), y, derivative, wide=True)


def _falling(p, order):
    return math.prod(p - i for i in range(order))
