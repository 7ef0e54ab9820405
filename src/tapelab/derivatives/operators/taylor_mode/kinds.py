"""Kinds of operation, and how channels go through one of each kind."""

from collections.abc import Sequence

from tapelab.derivatives.operators.taylor_mode import elementwise
from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.bilinear import Bilinear
from tapelab.derivatives.operators.taylor_mode.values import Val, padded, plus
from tapelab.graphs.operations import linear_in, with_fact
from tapelab.graphs.operations.operation import JOINTLY
from tapelab.process.tensorflow import tf

CONSTANT = with_fact("flat")
# Channels go through what is linear one by one. Inputs that do not depend on the sources count as zero.
LINEAR = linear_in(JOINTLY) - with_fact("reads")


def unary_of(algebra: Algebra, a: Val, y: tf.Tensor, table: elementwise.Table) -> Val:
    """Send channels through y = φ(a), whose derivatives are in a table; each is computed once."""
    found: dict[int, tf.Tensor | None] = {}

    def derivative(order):
        if order not in found:
            found[order] = table[order - 1]()
        return found[order]

    return algebra.unary(a, y, derivative)


def bilinear_of(algebra: Algebra, b: Bilinear, left: Val, right: Val, y: tf.Tensor) -> Val:
    """Send channels through y = B(left, right)."""
    return algebra.bilinear(b, *b.prepared(left, right), y)


def combination(algebra: Algebra, vals: Sequence[Val], signs: Sequence[int], y: tf.Tensor) -> Val:
    """Add or subtract values channel by channel, with broadcasting."""
    out = []
    for k in range(len(algebra.lanes)):
        parts = [(sign, v.ch[k]) for sign, v in zip(signs, vals, strict=True) if v.ch and v.ch[k] is not None]
        parts = [(sign, padded(c, y.shape.rank)) for sign, c in parts]
        out.append(plus(*[c if sign == 1 else -c for sign, c in parts]))
    return Val(y, out)
