"""The recipe of all operators of second order, Σ_r w_r (v_r·∇)² f + b·∇f: collapsed Taylor mode, or nested tapes."""

import math
from collections.abc import Sequence
from typing import Any

from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.operators.nested import nested
from tapelab.derivatives.operators.recipe import Operator, note_if_zero, propagated
from tapelab.derivatives.operators.taylor_mode.algebras import Second
from tapelab.derivatives.operators.taylor_mode.values import Val, zeros_if_none
from tapelab.runtime import tf

# Directions for each source, weights and drifts, the latter for each source; None for ones, and for zero.
Coefficients = tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor] | None]


class SecondOrder(Operator):
    """The Laplacian, which has unit directions; a subclass with others overrides `count` and `directions`.

    Args:
        name, options: as for `Operator`.
        all_orders: whether f's value and derivatives along the directions are returned too.
    """

    split = True

    def __init__(self, name: str, *options: Any, all_orders: bool = False):
        super().__init__(name, *options)
        self.all_orders = all_orders

    def count(self, problem: Problem) -> int:
        """How many directions there are."""
        return self.size(problem)

    def directions(self, problem: Problem, sources: Sequence[tf.Tensor]) -> Coefficients:
        """Return directions (count, 1 or batch, *example) for each source, their weights (count,) and drifts or None.

        Unbatched, there is no axis for the batch.
        """
        return self.units(problem), None, None

    def coefficients(
        self, problem: Problem, sources: Sequence[tf.Tensor]
    ) -> tuple[list[tf.Tensor | None], list[int | None]]:
        directions, weights, drift = self.directions(problem, sources)
        drifts = drift or [None] * len(directions)
        batch = problem.source_shapes[0][0] if self.batched else None
        axes = [
            axis if batch and tensor is not None and tensor.shape[axis] == batch else None
            for axis, tensors in ((1, directions), (0, drifts))
            for tensor in tensors
        ]
        return [*directions, *drifts, weights], [*axes, None]

    def compute(
        self,
        problem: Problem,
        sources: Sequence[tf.Tensor],
        rest: Sequence[tf.Tensor],
        coefficients: Sequence[tf.Tensor | None],
        *,
        chunk: int,
        strict: bool,
    ) -> list[tf.Tensor]:
        directions, drifts, weights = _parts(coefficients)
        count = directions[0].shape[0]
        sums, slopes = None, []
        for start in range(0, max(count, 1), chunk):
            part = slice(start, min(start + chunk, count))
            algebra = Second(part.stop - start, None if weights is None else weights[part])
            if start:
                drifts = [None] * len(sources)  # it counts once
            vals = [
                Val(x, (v[part], None if b is None else b[None]))
                for x, v, b in zip(sources, directions, drifts, strict=True)
            ]
            outputs = propagated(problem, vals, rest, algebra, strict=strict, custom_gradients=self.custom_gradients)
            own, along = ([zeros_if_none(o.channels(2)[k], algebra.lanes[k], o.v) for o in outputs] for k in (1, 0))
            sums = [c[0] for c in own] if sums is None else [a + c[0] for a, c in zip(sums, own, strict=True)]
            slopes.append(along)
        note_if_zero(problem, outputs)
        slopes = [tf.concat(parts, 0) for parts in zip(*slopes, strict=True)]
        return self._results(problem, [o.v for o in outputs], sums, slopes)

    def nested(
        self,
        problem: Problem,
        tensors: Sequence[tf.Tensor],
        coefficients: Sequence[tf.Tensor | None],
        *,
        how: str,
        chunk: int,
    ) -> list[tf.Tensor]:
        directions, drifts, weights = _parts(coefficients)
        drift = None if drifts[0] is None else drifts
        found = nested(problem, tensors, directions, weights, drift, batched=self.batched, how=how, chunk=chunk)
        return self._results(problem, *found)

    def specs(self, problem: Problem) -> list[tf.TensorSpec]:
        values = super().specs(problem)
        if not self.all_orders:
            return values
        gradients = [
            tf.TensorSpec([*value.shape, *self.example(shape)], dtype)
            for value in values
            for shape, dtype in zip(problem.source_shapes, problem.source_dtypes, strict=True)
        ]
        return [*values, *gradients, *values]

    def _results(self, problem, values, sums, slopes):
        """The flat list of results: the sums; or values, slopes for each source, and sums."""
        if not self.all_orders:
            return sums
        gradients = []
        for value, slope in zip(values, slopes, strict=True):
            last = tf.transpose(slope, [*range(1, slope.shape.rank), 0])
            start = 0
            for shape, dtype in zip(problem.source_shapes, problem.source_dtypes, strict=True):
                example = self.example(shape)
                part = last[..., start : start + math.prod(example)]
                gradients.append(tf.cast(tf.reshape(part, [*value.shape, *example]), dtype))
                start += math.prod(example)
        return [*values, *gradients, *sums]

    def structured(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> Any:
        if not self.all_orders:
            return problem.structured_outputs(outputs)
        count, each = len(problem.output_names), len(problem.source_names)
        gradients = outputs[count:-count]
        rows = [problem.structured(gradients[i * each : (i + 1) * each]) for i in range(count)]
        return tuple(map(problem.structured_outputs, (outputs[:count], rows, outputs[-count:])))


def _parts(coefficients):
    """Undo `SecondOrder.coefficients`: directions and drifts for each source, and weights."""
    size = len(coefficients) // 2
    return coefficients[:size], coefficients[size : 2 * size], coefficients[-1]
