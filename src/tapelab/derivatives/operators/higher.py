"""The recipes of order above two: the biharmonic operator, and derivatives along a curve."""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from tapelab.derivatives import costs
from tapelab.derivatives.hessians.hessian import require_second_order
from tapelab.derivatives.machinery.arguments.structures import Container, Description
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.operators.recipe import (
    GENERIC,
    TAYLOR,
    Coefficients,
    Operator,
    along_directions,
    note_if_zero,
    propagated,
    require_for_tapes,
)
from tapelab.derivatives.operators.taylor_mode.by_derivatives import along
from tapelab.derivatives.operators.taylor_mode.higher import Fourth, Path
from tapelab.derivatives.operators.taylor_mode.values import Val, zeros_if_none
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf


class Biharmonic(Operator):
    """Δ²f, the Laplacian of the Laplacian."""

    def count(self, problem: Problem) -> int:
        return sum(Fourth(self.size(problem)).lanes) - 1

    def compute(
        self, problem: Problem, tensors: Tensors, coefficients: Coefficients, *, chunk: int, strict: bool
    ) -> list[tf.Tensor]:
        pairs = zip(tensors[: problem.data_start], self.units(problem), strict=True)
        vals = [Val(x, (v, None, None, None)) for x, v in pairs]
        algebra = Fourth(self.size(problem))
        outputs = propagated(problem, vals, tensors, algebra, strict=strict, custom_gradients=self.custom_gradients)
        note_if_zero(problem, outputs)
        return [zeros_if_none(o.channels(4)[3], 1, o.v)[0] for o in outputs]

    def nested(
        self, problem: Problem, tensors: Tensors, coefficients: Coefficients, *, chunk: int, how: str
    ) -> list[tf.Tensor]:
        factors, weights = Fourth(self.size(problem)).fourth_derivatives()
        directions = [tf.tensordot(tf.constant(factors, unit.dtype), unit, 1) for unit in self.units(problem)]
        _, (*_, fourth) = along_directions(problem, tensors, directions, 4, chunk=chunk, how=how)
        return [tf.tensordot(tf.constant(weights, part.dtype), part, 1) for part in fourth]


@dataclass(eq=False)
class Taylor(Recipe):
    """Derivatives dᵏ/dtᵏ of f along a curve.

    Attributes:
        order: up to which k.
        custom_gradients: as for `laplacian`.
    """

    order: int
    custom_gradients: bool
    name = "taylor"
    vector = "tangents"

    def vector_like(self, problem: Problem) -> tuple[Description, list[tuple[int, ...]], list[tf.DType], str]:
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
        return self.order * problem.facts.largest <= costs.XLA_OPERATOR and not problem.facts.operations & LOOPS

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        label = TAYLOR.removeprefix("collapsed ")
        nested = partial(self._nested, problem)
        return [
            Way(label, partial(self._taylor, problem, True)),
            Way(GENERIC.removeprefix("collapsed "), partial(self._taylor, problem, False)),
            Way("nested tapes", nested),
            Way("nested tapes", nested, eager=True),
        ]

    def _split(
        self, problem: Problem, tensors: Tensors
    ) -> tuple[list[tf.Tensor], Tensors, list[list[tf.Tensor] | None]]:
        """Return the sources, the other arguments, and for each order the coefficients, None beyond the last."""
        start, size = problem.data_start, problem.vector_size
        flat, each = problem.vector(tensors), len(problem.source_names)
        given = [flat[k : k + each] for k in range(0, size, each)]
        rest = tensors[start : len(tensors) - size]
        return list(tensors[:start]), rest, [*given, *[None] * (self.order - len(given))]

    def _taylor(self, problem: Problem, strict: bool, tensors: Tensors) -> list[tf.Tensor]:
        sources, _, coefficients = self._split(problem, tensors)
        vals = [Val(x, [c and c[i][tf.newaxis] for c in coefficients]) for i, x in enumerate(sources)]
        algebra = Path(self.order)
        outputs = propagated(problem, vals, tensors, algebra, strict=strict, custom_gradients=self.custom_gradients)
        orders = [[zeros_if_none(o.channels(self.order)[k], 1, o.v)[0] for o in outputs] for k in range(self.order)]
        return [*[o.v for o in outputs], *[part for parts in orders for part in parts]]

    def _nested(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        require_for_tapes(problem)
        sources, rest, coefficients = self._split(problem, tensors)
        run = lambda own: problem.evaluate([*own, *rest])  # noqa: E731
        orders = along(run, sources, coefficients, needed=False)
        return [*run(sources), *[part for parts in orders for part in parts]]

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        count = len(problem.returned.names)
        value, *orders = [problem.structured_outputs(outputs[k : k + count]) for k in range(0, len(outputs), count)]
        return value, orders
