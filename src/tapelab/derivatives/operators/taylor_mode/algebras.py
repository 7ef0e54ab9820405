"""Algebras: which channels there are, and how they go through a unary and a bilinear operation.

Through a linear operation every channel goes alike: the operation is applied to it.
"""

from collections.abc import Callable, Sequence

from tapelab.derivatives.operators.taylor_mode.bilinear import Bilinear
from tapelab.derivatives.operators.taylor_mode.elementwise import Table
from tapelab.derivatives.operators.taylor_mode.values import Channel, Val, padded, plus, times, total, zeros_if_none
from tapelab.process.tensorflow import Tensors, tf

# k → the k-th derivative of a unary operation where its value was taken; None where it is zero everywhere.
Derivatives = Callable[[int], tf.Tensor | None]


class Algebra:
    """What the rules need to know of the channels.

    Attributes:
        order: up to which derivative of a unary operation is asked for.
        lanes: how many lanes each channel has.
    """

    order = 0
    lanes: tuple[int, ...] = ()

    def unary(self, a: Val, y: tf.Tensor, d: Derivatives) -> Val:
        """Return y = φ(a) with its channels."""
        raise NotImplementedError

    def bilinear(self, b: Bilinear, left: Val, right: Val, y: tf.Tensor) -> Val:
        """Return y = B(left, right) with its channels."""
        raise NotImplementedError

    def curves(self, v: tf.Tensor, channels: Sequence[Channel]) -> list[Channel]:
        """Return curves through v, such that the derivatives along them of any F give the channels of F(v).

        Args:
            v: the value.
            channels: its channels, of its full shape.

        Returns:
            The derivatives of order 1 to `order` along the curves, a lane for each curve; None for zero.
        """
        raise NotImplementedError

    def gathered(self, derivatives: Tensors) -> list[Channel]:
        """Return the channels of F(v) from its derivatives of order 1 to `order` along those curves."""
        raise NotImplementedError


class Second(Algebra):
    """Channels j_r = v_r·∇y, one lane for each direction, and s = Σ_r w_r (v_r·∇)² y + b·∇y, one lane.

    The weights w_r may have any sign. s of a source starts as the drift b, so that the first-order part of an operator
    costs nothing. With unit directions, s is the Laplacian and j the gradient.

        y = φ(a)     j' = φ' j                  s' = φ' s + φ'' Σ_r w_r j_r²
        y = B(a, b)  j' = B(ja, b) + B(a, jb)   s' = B(sa, b) + B(a, sb) + 2 Σ_r w_r B(ja_r, jb_r)
    """

    order = 2

    def __init__(self, directions: int, weights: tf.Tensor | None = None):
        self.lanes = (directions, 1)
        self.weights = weights

    def unary(self, a: Val, y: tf.Tensor, d: Derivatives) -> Val:
        j, s = a.channels(2)
        bend = d(2) if j is not None else None
        bent = None if bend is None else bend * total(tf.square(j), self.weights)
        return Val(y, (times(d(1), j), plus(times(d(1), s), bent)))

    def bilinear(self, b: Bilinear, left: Val, right: Val, y: tf.Tensor) -> Val:
        (ja, sa), (jb, sb) = left.channels(2), right.channels(2)
        va, vb = left.v[None], right.v[None]
        cross: Channel = b.total(ja, jb, self.weights)
        j = plus(b(ja, vb), b(va, jb))
        return Val(y, (j, plus(b(sa, vb), b(va, sb), None if cross is None else 2 * cross)))

    def curves(self, v: tf.Tensor, channels: Sequence[Channel]) -> list[Channel]:
        # Along the directions, and one more: F's first derivative along s is what s adds.
        parts = [zeros_if_none(c, lanes, v) for c, lanes in zip(channels, self.lanes, strict=True)]
        return [tf.concat(parts, 0), None]

    def gathered(self, derivatives: Tensors) -> list[Channel]:
        first, second = derivatives
        count = self.lanes[0]
        return [first[:count], first[count:] + total(second[:count], self.weights)]


def unary_of(algebra: Algebra, a: Val, y: tf.Tensor, table: Table) -> Val:
    """Send channels through y = φ(a), whose derivatives are in a table; each is computed once."""
    found: dict[int, tf.Tensor | None] = {}

    def derivative(order: int) -> tf.Tensor | None:
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
        terms = [(sign, padded(c, y.shape.rank)) for sign, c in parts]
        out.append(plus(*[c if sign == 1 else -c for sign, c in terms]))
    return Val(y, out)
