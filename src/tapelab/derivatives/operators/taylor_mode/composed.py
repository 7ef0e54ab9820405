"""Operations that are composed of others, each of which has its rule."""

import math
from collections.abc import Callable, Sequence

from tapelab.derivatives.operators.taylor_mode import elementwise
from tapelab.derivatives.operators.taylor_mode.algebras import Algebra, bilinear_of, combination, unary_of
from tapelab.derivatives.operators.taylor_mode.bilinear import DominatedProduct, Product
from tapelab.derivatives.operators.taylor_mode.powers import log_of, power_near_one, power_of, powers_of
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val, over_lanes, replaced
from tapelab.graphs.program import reissue
from tapelab.process.tensorflow import Tensors, tf

import numpy as np


def logarithm(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Log a, or log (1 + a)."""
    a = vals[0] if op.type == "Log" else Val(1 + values[0], vals[0].ch)
    return [log_of(algebra, a, reissue(op, values)[0])]


def fixed_power(p: float) -> Callable:
    """Return the rule of a^p, p no whole number from 0."""

    def rule(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
        return [power_of(algebra, vals[0], reissue(op, values)[0], p)]

    return rule


def quotient(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """a / b = (a / v) · 1 / (b / v), v being b's value: no power of v is taken, which may leave the range of floats.

    Where b is 0, DivNoNan gives 0 whatever a is.
    """
    a, b = vals
    y = reissue(op, values)[0]
    v = b.v
    if op.type == "DivNoNan":
        zero = v == 0
        v = tf.where(zero, tf.ones_like(v), v)
        a, b = (replaced(zero, x, tf.zeros_like(v)) for x in (a, b))
    if not b.ch:
        return [Val(y, a.over(v))]
    if not a.ch:
        return [power_near_one(algebra, b, v, y, -1)]
    inverse = power_near_one(algebra, b, v, tf.ones_like(v), -1)
    return [bilinear_of(algebra, Product(y, v), Val(y, a.over(v)), inverse, y)]


def dominated(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Products whose one factor is 0 whatever the other one is: x log y, x log (1 + y), x / y, x · y without NaN."""
    x, y = vals if op.type != "MulNoNan" else reversed(vals)
    if op.type == "Xlogy":
        other = log_of(algebra, y, tf.math.log(y.v))
    elif op.type == "Xlog1py":
        other = log_of(algebra, Val(1 + y.v, y.ch), tf.math.log1p(y.v))
    elif op.type == "Xdivy":
        other = power_of(algebra, y, 1 / y.v, -1)
    else:
        other = y
    return [bilinear_of(algebra, DominatedProduct(x.v, other.v), x, other, reissue(op, values)[0])]


def squared_difference(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """(a - b)²."""
    difference = combination(algebra, vals, [1, -1], values[0] - values[1])
    y = reissue(op, values)[0]
    return [unary_of(algebra, difference, y, elementwise.power(2)(difference.v, y))]


def power_rule(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """x^p for a number p, also one for each element; otherwise a^b = a^p · a^(b - p), p being b's value.

    The second factor is 1, and has channels where b has some that are not zero: a may be negative elsewhere.
    """
    y = reissue(op, values)[0]
    base, exponent = vals
    known = tf.get_static_value(values[1])
    if not exponent.ch and known is not None and np.size(known) == 1:
        number = np.reshape(known, []).item()
        if isinstance(number, complex):
            number = number.real if number.imag == 0 else math.nan
        if y.shape != base.v.shape:
            raise NoRule("an exponent of higher rank than the base")
        if number >= 0 and number.is_integer():
            return [unary_of(algebra, base, y, elementwise.power(int(number))(base.v, y))]
        if number < 0 or number > 0:
            return [power_of(algebra, base, y, number)]
    if y.dtype.is_complex:
        raise NoRule("of complex numbers, to a power that is no real number known while it is traced")
    powers = powers_of(algebra, base, exponent.v, y)
    if not exponent.ch:
        return [powers]
    # At 0, a^b and what it is differentiated to are 0 as long as powers are left: no logarithm is needed there.
    one = tf.ones_like(y)
    least = max(algebra.order - 1, 0) if base.ch else 0
    flat = tf.logical_and(values[0] == 0, values[1] > tf.cast(least, y.dtype))
    base = replaced(flat, Val(tf.broadcast_to(base.v, y.shape), base.padded(y.shape.rank)), one)
    rest = Val(tf.zeros_like(exponent.v), exponent.ch)
    product = bilinear_of(
        algebra, DominatedProduct(rest.v, base.v), rest, log_of(algebra, base, tf.math.log(base.v)), one
    )
    factor = algebra.unary(product, one, lambda _: one)
    return [bilinear_of(algebra, Product(y, y), powers, factor, y)]


def euclidean_norm(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """|a| = n √Σ(a / n)², n being the norm."""
    (a, _), (v, axes) = vals, values
    if v.dtype.is_complex:
        raise NoRule("of complex numbers")
    y = reissue(op, values)[0]
    n = tf.reshape(y, tf.reduce_sum(v, axes, keepdims=True).shape)
    unit = v / n
    squares = unary_of(algebra, Val(unit, a.over(n)), unit * unit, elementwise.power(2)(unit, unit)).filled()

    def total(parts: Tensors) -> list[tf.Tensor]:
        return [tf.reshape(tf.reduce_sum(parts[0], axes), y.shape)]

    sums = [None if c is None else over_lanes(total, [c])[0] for c in squares.ch]
    return [power_near_one(algebra, Val(y, sums), tf.ones_like(y), y, 0.5)]


def softmax(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Tensors) -> list[Val]:
    """Log p = z - log Σ exp z, from exp, sum and log, which have their rules.

    First z and each of its channels lose what they are where z is largest: of what all have in common, the powers would
    cancel, but for their rounding.
    """
    z = vals[0].filled()
    largest = tf.one_hot(tf.argmax(z.v, -1), z.v.shape[-1], True, False)

    def shifted(c: tf.Tensor) -> tf.Tensor:
        return c - tf.reduce_sum(tf.where(largest, c, tf.zeros_like(c)), -1, keepdims=True)

    constant = tf.stop_gradient(tf.reduce_max(z.v, -1, keepdims=True))
    z = Val(z.v - constant, [None if c is None else shifted(c) for c in z.ch])
    e = tf.exp(z.v)
    powers = unary_of(algebra, z, e, elementwise.TABLES["Exp"](z.v, e)).filled()
    total = tf.reduce_sum(e, -1, keepdims=True)
    sums = Val(total, [None if c is None else tf.reduce_sum(c, -1, keepdims=True) for c in powers.ch])
    y = reissue(op, values)[0]
    if op.type == "Softmax":
        return [bilinear_of(algebra, Product(e, total), powers, power_of(algebra, sums, 1 / total, -1), y)]
    return [combination(algebra, [z, log_of(algebra, sums, tf.math.log(total))], [1, -1], y)]
