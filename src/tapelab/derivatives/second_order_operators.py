"""The recipe of all operators of second order, Σ_r w_r (v_r·∇)² f + b·∇f: collapsed Taylor mode, or nested tapes."""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

from tapelab.derivatives.hessians import require_second_order
from tapelab.derivatives.independence import coupling, require_independent
from tapelab.derivatives.memory import counted, rows_at_once
from tapelab.derivatives.nested_operators import nested
from tapelab.derivatives.plan import Plan
from tapelab.derivatives.problem import LOOPS, Problem
from tapelab.derivatives.recipe import Recipe, Way
from tapelab.derivatives.rows import EAGER, LOOP, VECTORIZED
from tapelab.derivatives.taylor.algebras import Second
from tapelab.derivatives.taylor.interpreter import propagate
from tapelab.derivatives.taylor.values import NoRule, Val, full
from tapelab.runtime import tf

# Directions for each source, weights and drifts, the latter for each source; None for ones, and for zero.
Coefficients = tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor] | None]

_SMALL = 2**20  # bytes of the largest channel: below, starting operations costs more than what they do
_LINEAR = "the result is zero: nothing on the way from the sources has a second derivative (a ReLU network has none)"


class SecondOrder(Recipe):
    """The Laplacian, which has unit directions; a subclass with others overrides `count` and `directions`.

    Args:
        name: for messages.
        batched, check_independence, custom_gradients, chunk_size, memory_limit: as for `laplacian`.
        all_orders: whether f's value and derivatives along the directions are returned too.
    """

    def __init__(
        self,
        name: str,
        batched: bool,
        check_independence: bool,
        custom_gradients: bool,
        chunk_size: int | None,
        memory_limit: int | None,
        *,
        all_orders: bool = False,
    ):
        self.name = name
        self.batched = batched
        self.check_independence = check_independence and batched
        self.custom_gradients = custom_gradients
        self.chunk_size = chunk_size
        self.memory_limit = memory_limit
        self.all_orders = all_orders

    def count(self, problem: Problem) -> int:
        """How many directions there are."""
        return sum(math.prod(self._example(shape)) for shape in problem.source_shapes)

    def directions(self, problem: Problem, sources: Sequence[tf.Tensor]) -> Coefficients:
        """Return directions (count, 1 or batch, *example) for each source, their weights (count,) and drifts or None.

        Unbatched, there is no axis for the batch.
        """
        count, start, found = self.count(problem), 0, []
        for shape, dtype in zip(problem.source_shapes, problem.source_dtypes, strict=True):
            example = self._example(shape)
            size = math.prod(example)
            units = tf.pad(tf.eye(size, dtype=dtype), [[start, count - start - size], [0, 0]])
            found.append(tf.reshape(units, [count, *([1] if self.batched else []), *example]))
            start += size
        return found, None, None

    def plan(self, problem: Problem) -> Plan:
        require_second_order(problem)
        if self.batched:
            self._require_batch(problem)
        count = self.count(problem)
        largest = problem.largest
        chunk, needed = rows_at_once(
            what=self.name,
            shapes=f"{counted(count, 'direction')} and a largest tensor of {largest} bytes",
            result=4 * largest,  # the value and the sum of second derivatives, before and after an operation
            rows=count,
            per_row=2 * largest,
            advice="a smaller batch",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        if chunk < count and not problem.repeatable:
            raise ValueError(
                f"{problem.name}: the function draws random numbers or changes variables, and would do so once for "
                f"each of {-(-count // chunk)} chunks of directions. Raise chunk_size or memory_limit to {count} "
                "directions at once, or use a smaller batch"
            )
        return Plan("collapsed Taylor", count, chunk, needed)

    def _example(self, shape):
        return shape[1:] if self.batched else shape

    def _require_batch(self, problem):
        shapes = problem.source_shapes + problem.output_shapes
        if any(not shape or shape[0] != shapes[0][0] for shape in shapes):
            labels = problem.source_names + problem.output_names
            found = ", ".join(f"{label} {shape}" for label, shape in zip(labels, shapes, strict=True))
            raise ValueError(
                f"{problem.name}: sources and results need one batch axis, first and of one size; these are {found}. "
                "For a function of one example, or of anything else, use batched=False"
            )

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        return plan.chunk * problem.largest <= _SMALL and not problem.operations & LOOPS

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        chunk = plan.chunk
        label = "collapsed Taylor mode"
        taylor = [
            Way(label, partial(self._taylor, problem, chunk, strict=True), chunk=chunk),
            Way(
                f"{label}, operations without a rule by derivatives of derivatives",
                partial(self._taylor, problem, chunk, strict=False),
                chunk=chunk,
            ),
        ]
        tapes = [
            Way(f"nested tapes, {how}", partial(self._nested, problem, chunk, how), eager=how == EAGER, chunk=chunk)
            for how in (VECTORIZED, LOOP, EAGER)
        ]
        return [*taylor, *tapes]

    def _taylor(self, problem, chunk, tensors, *, strict):
        sources, rest = list(tensors[: problem.data_start]), tensors[problem.data_start :]
        directions, weights, drift = self.directions(problem, sources)
        count = self.count(problem)
        sums, slopes, custom = None, [], []
        for start in range(0, max(count, 1), chunk):
            part = slice(start, min(start + chunk, count))
            algebra = Second(part.stop - start, None if weights is None else weights[part])
            drifts = [None] * len(sources) if drift is None or start else drift
            vals = [
                Val(x, (v[part], None if b is None else b[None]))
                for x, v, b in zip(sources, directions, drifts, strict=True)
            ]
            outputs, custom = propagate(lambda *own: problem.evaluate([*own, *rest]), vals, algebra, strict=strict)
            own = [_zeros(o, 1, 1)[0] for o in outputs]
            sums = own if sums is None else [a + b for a, b in zip(sums, own, strict=True)]
            slopes.append([_zeros(o, 0, algebra.lanes[0]) for o in outputs])
            zero = all(o.ch is None or o.ch[1] is None for o in outputs)
        if custom and self.custom_gradients:
            raise NoRule(f"{', '.join(custom)} has a gradient of its own, which custom_gradients=True asks for")
        if custom:
            problem.note(f"what they compute is differentiated, not the gradient given for them: {', '.join(custom)}")
        if zero:
            problem.note(_LINEAR)
        results = self._results(
            problem, [o.v for o in outputs], sums, [tf.concat(p, 0) for p in zip(*slopes, strict=True)]
        )
        return self._checked(problem, tensors, results)

    def _nested(self, problem, chunk, how, tensors):
        if not problem.repeatable:
            raise NoRule("the function draws random numbers or changes variables, and nested tapes evaluate it again")
        directions, weights, drift = self.directions(problem, problem.sources(tensors))
        values, sums, slopes = nested(
            problem, tensors, directions, weights, drift, batched=self.batched, how=how, chunk=chunk
        )
        if problem.custom_gradients:
            problem.note("gradients given by tf.custom_gradient are used, not those of what is computed")
        return self._checked(problem, tensors, self._results(problem, values, sums, slopes))

    def _results(self, problem, values, sums, slopes):
        """The flat list of results: the sums; or values, slopes for each source, and sums."""
        if not self.all_orders:
            return sums
        gradients = []
        for value, slope in zip(values, slopes, strict=True):
            last = tf.transpose(slope, [*range(1, slope.shape.rank), 0])
            start = 0
            for shape, dtype in zip(problem.source_shapes, problem.source_dtypes, strict=True):
                example = self._example(shape)
                part = last[..., start : start + math.prod(example)]
                gradients.append(tf.cast(tf.reshape(part, [*value.shape, *example]), dtype))
                start += math.prod(example)
        return [*values, *gradients, *sums]

    def _checked(self, problem, tensors, results):
        return [*results, *coupling(problem, tensors)] if self.check_independence else results

    def result(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> Any:
        count = len(problem.output_names)
        width = count * (2 + len(problem.source_names)) if self.all_orders else count
        if len(outputs) > width:
            require_independent(problem, outputs[width:])
        if not self.all_orders:
            return problem.structured_outputs(outputs[:width])
        each = len(problem.source_names)
        gradients = outputs[count : width - count]
        rows = [problem.structured(gradients[i * each : (i + 1) * each]) for i in range(count)]
        values, sums = outputs[:count], outputs[width - count : width]
        return tuple(map(problem.structured_outputs, (values, rows, sums)))


def _zeros(output, k, lanes):
    """A channel of a result, full."""
    c = None if output.ch is None else output.ch[k]
    return tf.zeros([lanes, *output.v.shape], output.v.dtype) if c is None else full(c, output.v)
