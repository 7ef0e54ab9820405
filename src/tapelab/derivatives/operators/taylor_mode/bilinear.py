"""Bilinear operations on channels: B(a, b), lane by lane, where one of the two may have one lane for all.

Each has ``__call__(x, y)`` and ``total(x, y, weights)``, the weighted sum over lanes, in one product where that can be.
"""

import string
from collections.abc import Callable

from tapelab.derivatives.machinery.vectorized import vectorized
from tapelab.derivatives.operators.taylor_mode.values import (
    Channel,
    NoRule,
    Val,
    Weights,
    padded,
    times,
    total,
    weighted,
)
from tapelab.graphs.operations import known
from tapelab.process.tensorflow import tf


class Bilinear:
    """A bilinear operation. Subclasses have ``apply``, of two channels that are not zero."""

    def __call__(self, x: Channel, y: Channel) -> Channel:
        return None if x is None or y is None else self.apply(x, y)

    def apply(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        raise NotImplementedError

    def total(self, x: Channel, y: Channel, weights: Weights = None) -> Channel:
        """Σ_r w_r B(x_r, y_r), one lane."""
        return total(self(x, y), weights)

    def prepared(self, a: Val, b: Val) -> tuple[Val, Val]:
        """Make channels full where the operation needs it."""
        return a.filled(), b.filled()


class Product(Bilinear):
    """The elementwise product, with broadcasting."""

    def __init__(self, a: tf.Tensor, b: tf.Tensor):
        self._rank = max(a.shape.rank, b.shape.rank)

    def apply(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return times(padded(x, self._rank), padded(y, self._rank))

    def prepared(self, a: Val, b: Val) -> tuple[Val, Val]:
        return a, b


class DominatedProduct(Product):
    """The elementwise product, zero where the first factor is, also where the second one is infinite or NaN."""

    def apply(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return tf.math.multiply_no_nan(padded(y, self._rank), padded(x, self._rank))


class MatMul(Bilinear):
    """Matrix products, batched ones included."""

    def __init__(self, op: tf.Operation, a: tf.Tensor, b: tf.Tensor):
        self._transpose = [op.get_attr(name) for name in known(op.type).transposed_by]
        self._adjoint = a.dtype.is_complex and op.type != "MatMul"
        self._rank = max(a.shape.rank, b.shape.rank)

    def apply(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x, y = padded(x, self._rank), padded(y, self._rank)
        if y.shape[:-2].num_elements() == 1 and not self._transpose[0]:  # one matrix for all lanes: one flat product
            flat = self._product(tf.reshape(x, [-1, x.shape[-1]]), tf.reshape(y, y.shape[-2:]))
            return tf.reshape(flat, [*x.shape[:-1], flat.shape[-1]])
        return self._product(x, y)

    def _product(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        a, b = self._transpose
        if self._adjoint:
            return tf.matmul(x, y, adjoint_a=a, adjoint_b=b)
        return tf.matmul(x, y, transpose_a=a, transpose_b=b)

    def prepared(self, a: Val, b: Val) -> tuple[Val, Val]:
        rows_stay = not b.ch and not (self._transpose[0] and a.v.shape.rank == 2)
        return a.filled(lazy_batch=rows_stay), b.filled()


class Einsum(Bilinear):
    """Einsum of two tensors: the lanes are one more letter, and contracted where they are summed."""

    def __init__(self, op: tf.Operation):
        equation = op.get_attr("equation").decode()
        if "." in equation:
            raise NoRule("an ellipsis")
        terms, self._out = equation.split("->")
        self._a, self._b = terms.split(",")
        self._lane = next(letter for letter in string.ascii_letters if letter not in equation)

    def apply(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        lane, a, b, out = self._lane, self._a, self._b, self._out
        if y.shape[0] == 1:
            return tf.einsum(f"{lane}{a},{b}->{lane}{out}", x, y[0])
        if x.shape[0] == 1:
            return tf.einsum(f"{a},{lane}{b}->{lane}{out}", x[0], y)
        return tf.einsum(f"{lane}{a},{lane}{b}->{lane}{out}", x, y)

    def total(self, x: Channel, y: Channel, weights: Weights = None) -> Channel:
        if x is None or y is None:
            return None
        return tf.einsum(f"{self._lane}{self._a},{self._lane}{self._b}->{self._out}", weighted(x, weights), y)[None]


class Lanewise(Bilinear):
    """Any other bilinear operation, such as a convolution, mapped over lanes."""

    def __init__(self, run: Callable[[tf.Tensor, tf.Tensor], tf.Tensor]):
        self._run = run

    def apply(self, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        run = self._run
        if x.shape[0] == y.shape[0] == 1:
            return run(x[0], y[0])[None]
        if y.shape[0] == 1:
            return vectorized(lambda u: run(u, y[0]), x)
        if x.shape[0] == 1:
            return vectorized(lambda u: run(x[0], u), y)
        return vectorized(lambda pair: run(*pair), (x, y))
