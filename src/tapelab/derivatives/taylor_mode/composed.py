"""Operations that are composed of others, each of which has its rule."""

from collections.abc import Sequence

from tapelab.derivatives.taylor_mode import elementwise
from tapelab.derivatives.taylor_mode.algebras import Algebra
from tapelab.derivatives.taylor_mode.bilinear import Product
from tapelab.derivatives.taylor_mode.kinds import bilinear_of, combination, unary_of
from tapelab.derivatives.taylor_mode.reissue import reissue
from tapelab.derivatives.taylor_mode.values import NoRule, Val, padded
from tapelab.runtime import tf

import numpy as np


def _reciprocal(algebra, a):
    inverse = 1 / a.v
    return Val(inverse) if a.ch is None else unary_of(algebra, a, inverse, elementwise.power(-1)(a.v, inverse))


def quotient(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """a / b = a · 1/b."""
    y = reissue(op, values)[0]
    return [bilinear_of(algebra, Product(*values), vals[0], _reciprocal(algebra, vals[1]), y)]


def squared_difference(
    algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]
) -> list[Val]:
    """(a - b)²."""
    difference = combination(algebra, vals, [1, -1], values[0] - values[1])
    y = reissue(op, values)[0]
    return [unary_of(algebra, difference, y, elementwise.power(2)(difference.v, y))]


def power_rule(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """x^p for a number p, also one for each element; otherwise a^b = exp(b log a)."""
    y = reissue(op, values)[0]
    base, exponent = vals
    known = tf.get_static_value(values[1])
    if exponent.ch is None and known is not None and np.size(known) == 1:
        number = float(np.reshape(known, []))
        number = int(number) if number.is_integer() else number
        if y.shape != base.v.shape:
            raise NoRule("an exponent of higher rank than the base")
        return [unary_of(algebra, base, y, elementwise.power(number)(base.v, y))]
    if exponent.ch is None:  # x^p, p one number for each element: as for a Python number
        p = exponent.v
        shape = tf.broadcast_static_shape(base.v.shape, p.shape)
        base = Val(tf.broadcast_to(base.v, shape), base.channels(len(algebra.lanes)))
        table = []
        factor = tf.ones_like(p)
        for order in (1, 2, 3, 4):
            factor = factor * (p - (order - 1))
            powers = tf.math.multiply_no_nan(tf.pow(base.v, p - order), factor)  # x⁰ has no derivatives, at 0 neither
            table.append(lambda powers=powers: powers)
        padded_base = Val(base.v, [None if c is None else padded(c, shape.rank) for c in base.ch])
        return [unary_of(algebra, padded_base, y, tuple(table))]
    log = tf.math.log(base.v)
    log = unary_of(algebra, base, log, elementwise.TABLES["Log"](base.v, log)) if base.ch else Val(log)
    product = bilinear_of(algebra, Product(*values), log, exponent, log.v * exponent.v)
    return [unary_of(algebra, product, y, elementwise.TABLES["Exp"](product.v, y))]


def softmax(algebra: Algebra, op: tf.Operation, vals: Sequence[Val], values: Sequence[tf.Tensor]) -> list[Val]:
    """Log p = z - log Σ exp z, from exp, sum and log, which have their rules; z less its largest, as a constant."""
    z = Val(values[0] - tf.stop_gradient(tf.reduce_max(values[0], -1, keepdims=True)), vals[0].ch)
    e = tf.exp(z.v)
    powers = unary_of(algebra, z, e, elementwise.TABLES["Exp"](z.v, e)).filled()
    total = tf.reduce_sum(e, -1, keepdims=True)
    sums = Val(total, [None if c is None else tf.reduce_sum(c, -1, keepdims=True) for c in powers.ch])
    y = reissue(op, values)[0]
    if op.type == "Softmax":
        return [bilinear_of(algebra, Product(e, total), powers, _reciprocal(algebra, sums), y)]
    log = tf.math.log(total)
    return [combination(algebra, [z, unary_of(algebra, sums, log, elementwise.TABLES["Log"](total, log))], [1, -1], y)]
