"""Algebras of higher order: derivatives along a curve, and the Laplacian of the Laplacian."""

import math
from collections.abc import Iterator, Sequence

from tapelab.derivatives.operators.taylor_mode.algebras import Algebra, Derivatives
from tapelab.derivatives.operators.taylor_mode.bilinear import Bilinear
from tapelab.derivatives.operators.taylor_mode.values import Channel, Val, plus, times, total
from tapelab.process.tensorflow import Tensors, tf

import numpy as np


class Path(Algebra):
    """Channels c_k = dᵏy/dtᵏ along a curve x(t), k from 1 to the order, one lane each.

        y = φ(a)     c_k = Σ over the partitions of k of how many there are · φ^(parts) Π a_part    (Faà di Bruno)
        y = B(a, b)  c_k = Σ_i (k choose i) B(a_i, b_{k-i})                                         (Leibniz)

    Args:
        order: from 1 to 4, up to which the rules know derivatives.
    """

    def __init__(self, order: int):
        self.order = order
        self.lanes = (1,) * order

    def unary(self, a: Val, y: tf.Tensor, d: Derivatives) -> Val:
        out = []
        for order in range(1, self.order + 1):
            terms = []
            for parts in _partitions(order):
                factors = [a.ch[k - 1] for k in parts]
                if all(factor is not None for factor in factors):
                    terms.append(times(_ways(parts), d(len(parts)), *factors))
            out.append(plus(*terms))
        return Val(y, out)

    def bilinear(self, b: Bilinear, left: Val, right: Val, y: tf.Tensor) -> Val:
        a, c = ([v.v[None], *v.channels(self.order)] for v in (left, right))
        return Val(
            y,
            [
                plus(*[times(math.comb(k, i), b(a[i], c[k - i])) for i in range(k + 1)])
                for k in range(1, self.order + 1)
            ],
        )

    def curves(self, v: tf.Tensor, channels: Sequence[Channel]) -> list[Channel]:
        return list(channels)

    def gathered(self, derivatives: Tensors) -> list[Channel]:
        return list(derivatives)


def _partitions(n: int, most: int | None = None) -> Iterator[tuple[int, ...]]:
    if n == 0:
        yield ()
    for k in range(min(n, most or n), 0, -1):
        for rest in _partitions(n - k, k):
            yield (k, *rest)


def _ways(parts: tuple[int, ...]) -> int:
    """How many partitions of a set have blocks of these sizes."""
    return math.factorial(sum(parts)) // math.prod(
        math.factorial(k) ** parts.count(k) * math.factorial(parts.count(k)) for k in set(parts)
    )


class Fourth(Algebra):
    """Channels g = ∇y, h = ∇²y above and on its diagonal, t = ∇Δy, q = Δ²y, for D elements x that y depends on.

    With n = |g|², the matrix H that h is half of, L = Δy its trace, and : the sum of the products of all entries,

        y = φ(v)     g' = φ' g                  t' = φ''' n g + φ'' (2 H g + L g) + φ' t
                     h' = φ'' g gᵀ + φ' h       q' = φ'''' n² + φ''' (2 n L + 4 gᵀHg) + φ'' (L² + 2 H:H + 4 g·t) + φ' q
        y = B(a, b)  g' = B(ga, b) + B(a, gb)   t' = B(ta, b) + B(ga, Lb) + 2 Σ_i B(Ha_i, gb_i) + the same exchanged
                     h' = B(ha, b) + B(a, hb) + B(ga, gbᵀ) + B(gaᵀ, gb)
                     q' = B(qa, b) + B(a, qb) + 4 Σ B(ga, tb) + 4 Σ B(ta, gb) + 2 B(La, Lb) + 4 Σ B(Ha, Hb)

    These are 1 + 2 D + D (D + 1) / 2 lanes; one forward Laplacian in another has D² + 4 D + 3. The rules of the
    composition are those of four derivatives of a composed function, summed over two pairs of equal indices.

    Args:
        size: D.
    """

    order = 4

    def __init__(self, size: int):
        self.size = size
        pairs = [(i, j) for i in range(size) for j in range(i, size)]
        self.lanes = (size, len(pairs), size, 1)
        self._rows, self._columns = [i for i, _ in pairs], [j for _, j in pairs]
        at = {pair: k for k, pair in enumerate(pairs)}
        self._square = [[at[min(i, j), max(i, j)] for j in range(size)] for i in range(size)]
        self._diagonal = [at[i, i] for i in range(size)]
        self._twice = np.array([1.0 if i == j else 2.0 for i, j in pairs])  # how often an entry of h is in H

    def unary(self, a: Val, y: tf.Tensor, d: Derivatives) -> Val:
        g, h, t, q = a.channels(4)
        d1, d2, d3, d4 = (d(order) for order in (1, 2, 3, 4))
        n, trace = total(times(g, g)), self._trace(h)
        outer = times(_taken(g, self._rows), _taken(g, self._columns))
        along = None if g is None or h is None else tf.reduce_sum(tf.gather(h, self._square) * g, 1)
        third = plus(times(2, n, trace), times(4, self._all(times(h, outer))))
        second = plus(times(trace, trace), times(2, self._all(times(h, h))), times(4, total(times(g, t))))
        return Val(
            y,
            (
                times(d1, g),
                plus(times(d2, outer), times(d1, h)),
                plus(times(d3, n, g), times(d2, plus(times(2, along), times(trace, g))), times(d1, t)),
                plus(times(d4, n, n), times(d3, third), times(d2, second), times(d1, q)),
            ),
        )

    def bilinear(self, b: Bilinear, left: Val, right: Val, y: tf.Tensor) -> Val:
        (ga, ha, ta, qa), (gb, hb, tb, qb) = left.channels(4), right.channels(4)
        va, vb = left.v[None], right.v[None]
        la, lb = self._trace(ha), self._trace(hb)
        first, second = self._rows, self._columns
        crossed = plus(b(_taken(ga, first), _taken(gb, second)), b(_taken(ga, second), _taken(gb, first)))
        along_a, along_b = (
            None
            if h is None or g is None
            else tf.concat([b.total(*(pair(_taken(h, row), g))) for row in self._square], 0)
            for h, g, pair in ((ha, gb, lambda h, g: (h, g)), (hb, ga, lambda h, g: (g, h)))
        )
        return Val(
            y,
            (
                plus(b(ga, vb), b(va, gb)),
                plus(b(ha, vb), b(va, hb), crossed),
                plus(b(ta, vb), b(va, tb), b(ga, lb), b(la, gb), times(2, plus(along_a, along_b))),
                plus(
                    b(qa, vb),
                    b(va, qb),
                    times(4, plus(b.total(ga, tb), b.total(ta, gb), b.total(ha, hb, self._twice))),
                    times(2, b(la, lb)),
                ),
            ),
        )

    def curves(self, v: tf.Tensor, channels: Sequence[Channel]) -> list[Channel]:
        # A polynomial of D numbers ε has these channels where ε = 0: v + g·ε + εᵀHε/2 + |ε|² t·ε / (2D + 4)
        # + |ε|⁴ q / (8D² + 16D). The curves are it along the directions that make up Δ², ε = (0, …) to (…, ±1, …).
        directions, size = self._directions(), self.size
        squares = np.sum(directions**2, 1, keepdims=True)
        factors = [
            directions,
            directions[:, self._rows] * directions[:, self._columns] * self._twice,
            6 / (2 * size + 4) * squares * directions,
            24 / (8 * size * (size + 2)) * squares**2,
        ]
        return [_combined(factor, c) for factor, c in zip(factors, channels, strict=True)]

    def gathered(self, derivatives: Tensors) -> list[Channel]:
        size = self.size
        directions, weights = self.fourth_derivatives()
        unit, count = 1 - (size - 1) / 3, len(directions)
        h = np.zeros([len(self._rows), count])
        t = np.zeros([size, count])
        t[:, :size] = unit * np.eye(size)
        for k, (i, j) in enumerate(zip(self._rows, self._columns, strict=True)):
            if i == j:
                h[k, i] = 1
                continue
            plus_, minus = (int(np.flatnonzero((directions == row).all(1))[0]) for row in self._mixed(i, j))
            h[k, plus_], h[k, minus] = 1 / 4, -1 / 4
            t[i, [plus_, minus]] = 1 / 6, 1 / 6
            t[j, [plus_, minus]] = 1 / 6, -1 / 6
        return [
            _combined(factor, c)
            for factor, c in zip((np.eye(size, count), h, t, weights[None]), derivatives, strict=True)
        ]

    def fourth_derivatives(self) -> tuple[np.ndarray, np.ndarray]:
        """Return directions v_r, (number, D), and weights w_r with Δ² = Σ_r w_r (v_r·∇)⁴."""
        directions = self._directions()
        return directions, np.where(np.arange(len(directions)) < self.size, 1 - (self.size - 1) / 3, 1 / 6)

    def _mixed(self, i: int, j: int) -> tuple[np.ndarray, np.ndarray]:
        units = np.eye(self.size)
        return units[i] + units[j], units[i] - units[j]

    def _directions(self) -> np.ndarray:
        """The unit directions, and sums and differences of two."""
        mixed = [row for i in range(self.size) for j in range(i + 1, self.size) for row in self._mixed(i, j)]
        return np.concatenate([np.eye(self.size), np.reshape(mixed, [-1, self.size])])

    def _trace(self, h: Channel) -> Channel:
        return total(_taken(h, self._diagonal))

    def _all(self, products: Channel) -> Channel:
        """The sum over all entries of H, from those of h."""
        return total(products, self._twice)


def _taken(c: Channel, lanes: list[int]) -> Channel:
    return None if c is None else tf.gather(c, lanes)


def _combined(factors: np.ndarray, c: Channel) -> Channel:
    """Lanes that are linear combinations of others."""
    return None if c is None else tf.tensordot(tf.constant(factors, c.dtype), c, 1)
