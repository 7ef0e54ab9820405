"""The recipes of order above two: the biharmonic operator, and derivatives along a curve."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tapelab.derivatives import costs
from tapelab.derivatives.hessians.hessian import require_second_order
from tapelab.derivatives.machinery.arguments.structures import Container, Description
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import map_rows
from tapelab.derivatives.operators.recipe import (
    GENERIC,
    ONCE,
    TAYLOR,
    Operator,
    note_if_zero,
    propagated,
)
from tapelab.derivatives.operators.taylor_mode.by_derivatives import along
from tapelab.derivatives.operators.taylor_mode.higher import Fourth, Path
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val, zeros_if_none
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import tf


class Biharmonic(Operator):
    """Δ²f, the Laplacian of the Laplacian."""

    def count(self, problem: Problem) -> int:
        return sum(Fourth(self.size(problem)).lanes) - 1

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
        vals = [Val(x, (v, None, None, None)) for x, v in zip(sources, self.units(problem), strict=True)]
        algebra = Fourth(self.size(problem))
        outputs = propagated(problem, vals, rest, algebra, strict=strict, custom_gradients=self.custom_gradients)
        note_if_zero(problem, outputs)
        return [zeros_if_none(o.channels(4)[3], 1, o.v)[0] for o in outputs]

    def nested(
        self,
        problem: Problem,
        tensors: Sequence[tf.Tensor],
        coefficients: Sequence[tf.Tensor | None],
        *,
        how: str,
        chunk: int,
    ) -> list[tf.Tensor]:
        sources, rest = tensors[: problem.data_start], tensors[problem.data_start :]
        directions, weights = Fourth(self.size(problem)).fourth_derivatives()
        units = self.units(problem)
        values = problem.evaluate(tensors)

        def row(index):
            factors = tf.gather(tf.constant(directions), index)
            v = [
                tf.broadcast_to(tf.tensordot(tf.cast(factors, unit.dtype), unit, 1), x.shape)
                for unit, x in zip(units, sources, strict=True)
            ]
            run = lambda own: problem.evaluate([*own, *rest])  # noqa: E731
            return along(run, sources, [v, None, None, None], needed=False)[3]

        specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
        rows = map_rows(row, specs, len(weights), how, chunk)
        return [tf.tensordot(tf.constant(weights, part.dtype), part, 1) for part in rows]


class Taylor(Recipe):
    """Derivatives dᵏ/dtᵏ of f along a curve.

    Args:
        order: up to which k.
        custom_gradients: as for `laplacian`.
    """

    name = "taylor"
    vector = "tangents"

    def __init__(self, order: int, custom_gradients: bool):
        self.order = order
        self.custom_gradients = custom_gradients

    def vector_like(self, problem: Problem) -> tuple[Description, list[tuple[int | None, ...]], list[tf.DType], str]:
        each = len(problem.source_names)
        count = min(max(math.ceil(problem.vector_size / each), 1), self.order)
        description = Container(list, (problem.source_description,) * count)
        return description, problem.source_shapes * count, problem.source_dtypes * count, "sources"

    def plan(self, problem: Problem) -> Plan:
        problem.require_right(Needs.TANGENTS)
        if self.order > 1:
            require_second_order(problem)
        return Plan("Taylor")

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        return self.order * problem.largest <= costs.XLA_OPERATOR and not problem.operations & LOOPS

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        label = TAYLOR.removeprefix("collapsed ")
        nested = partial(self._nested, problem)
        return [
            Way(label, partial(self._taylor, problem, True)),
            Way(GENERIC.removeprefix("collapsed "), partial(self._taylor, problem, False)),
            Way("nested tapes", nested),
            Way("nested tapes", nested, eager=True),
        ]

    def _split(self, problem, tensors):
        """Return the sources, the other arguments, and for each order the coefficients, None beyond the last."""
        start, size = problem.data_start, problem.vector_size
        flat, each = problem.vector(tensors), len(problem.source_names)
        given = [flat[k : k + each] for k in range(0, size, each)]
        rest = tensors[start : len(tensors) - size]
        return list(tensors[:start]), rest, [*given, *[None] * (self.order - len(given))]

    def _taylor(self, problem, strict, tensors):
        sources, rest, coefficients = self._split(problem, tensors)
        vals = [Val(x, [c and c[i][tf.newaxis] for c in coefficients]) for i, x in enumerate(sources)]
        algebra = Path(self.order)
        outputs = propagated(problem, vals, rest, algebra, strict=strict, custom_gradients=self.custom_gradients)
        orders = [[zeros_if_none(o.channels(self.order)[k], 1, o.v)[0] for o in outputs] for k in range(self.order)]
        return [*[o.v for o in outputs], *[part for parts in orders for part in parts]]

    def _nested(self, problem, tensors):
        if not problem.repeatable:
            raise NoRule(ONCE)
        sources, rest, coefficients = self._split(problem, tensors)
        run = lambda own: problem.evaluate([*own, *rest])  # noqa: E731
        orders = along(run, sources, coefficients, needed=False)
        if problem.custom_gradients:
            problem.note("gradients given by tf.custom_gradient are used, not those of what is computed")
        return [*run(sources), *[part for parts in orders for part in parts]]

    def result(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> Any:
        count = len(problem.output_names)
        value, *orders = [problem.structured_outputs(outputs[k : k + count]) for k in range(0, len(outputs), count)]
        return value, orders
