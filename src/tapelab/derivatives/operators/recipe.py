"""What the recipes of differential operators share: memory, chunks of examples, the ways, and the check of examples."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tapelab.derivatives import costs
from tapelab.derivatives.examples.chunks import data_by_example, in_chunks
from tapelab.derivatives.examples.independence import (
    coupling,
    require_proved_if_changing,
    require_uncoupled,
    why_unproved,
)
from tapelab.derivatives.first_order import recorded
from tapelab.derivatives.hessians.hessian import require_second_order
from tapelab.derivatives.machinery.arguments.checks import require_common_batch
from tapelab.derivatives.machinery.memory import counted, current_limit, rows_at_once
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import EAGER, LOOP, VECTORIZED, map_rows
from tapelab.derivatives.operators.taylor_mode.algebras import Algebra
from tapelab.derivatives.operators.taylor_mode.by_derivatives import along
from tapelab.derivatives.operators.taylor_mode.interpreter import propagate
from tapelab.derivatives.operators.taylor_mode.values import NoRule, Val
from tapelab.graphs.batch import Unproven
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf

TAYLOR = "collapsed Taylor mode"
GENERIC = f"{TAYLOR}, operations without a rule by derivatives of derivatives"
_ONCE = (
    "the function draws random numbers or changes variables, and nested tapes evaluate it more than once. Take that "
    'out of it, or pass what it draws as an argument; Taylor mode (compile="auto") evaluates it once, where it has '
    "rules for all of it"
)
_LINEAR = "the result is zero: nothing on the way from the sources has a second derivative (a ReLU network has none)"


# Tensors that are computed for the whole batch, beside the function's own.
Coefficients = Sequence[tf.Tensor | None]


@dataclass(frozen=True)
class Chunked(Plan):
    """A `Plan` that may take the examples of a batch in chunks.

    Attributes:
        examples: how many at once; None for all.
        by_example: which of the data go with them.
    """

    examples: int | None = None
    by_example: tuple[bool, ...] = ()


@dataclass(eq=False)
class Operator(Recipe):
    """A differential operator. Subclasses have `count`, `compute` and `specs`, and `nested`.

    Attributes:
        name: for messages.
        batched, check_independence, custom_gradients, chunk_size, batch_chunk_size, memory_limit: as for `laplacian`.
        split: whether `compute` can take some lanes after the others.
    """

    name: str
    batched: bool
    check_independence: bool
    custom_gradients: bool
    chunk_size: int | None
    batch_chunk_size: int | None
    memory_limit: int | None
    split = False

    def __post_init__(self) -> None:
        if self.batch_chunk_size is not None and not self.batched:
            raise ValueError(
                f"batch_chunk_size is {self.batch_chunk_size!r} with batched=False, which has no examples to take in "
                "chunks. Leave one of them out"
            )
        self.check_independence = self.check_independence and self.batched

    def count(self, problem: Problem) -> int:
        """How many lanes go through the function beside its value and one sum."""
        raise NotImplementedError

    def compute(
        self, problem: Problem, tensors: Tensors, coefficients: Coefficients, *, chunk: int, strict: bool
    ) -> list[tf.Tensor]:
        """Return the results by Taylor mode, some of the lanes at a time."""
        raise NotImplementedError

    def nested(
        self, problem: Problem, tensors: Tensors, coefficients: Coefficients, *, chunk: int, how: str
    ) -> list[tf.Tensor]:
        """Return the results by nested tapes."""
        raise NotImplementedError

    def coefficients(self, problem: Problem, sources: Tensors) -> tuple[Coefficients, list[int | None]]:
        """Return tensors that are computed for the whole batch, and the axis of the examples in each, if it has one."""
        return [], []

    def specs(self, problem: Problem) -> list[tf.TensorSpec]:
        """The specs of the results of `compute`, without the axis of the examples."""
        return [
            tf.TensorSpec(shape[1:], dtype)
            for shape, dtype in zip(problem.returned.shapes, problem.returned.dtypes, strict=True)
        ]

    def example(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of one example."""
        return shape[1:] if self.batched else shape

    def size(self, problem: Problem) -> int:
        """How many elements an example of the sources has."""
        return sum(math.prod(self.example(shape)) for shape in problem.source_shapes)

    def units(self, problem: Problem) -> list[tf.Tensor]:
        """The unit directions, for each source (size, *example), batched with an axis of length 1 for the batch."""
        count, start, found = self.size(problem), 0, []
        for shape, dtype in zip(problem.source_shapes, problem.source_dtypes, strict=True):
            example = self.example(shape)
            size = math.prod(example)
            units = tf.pad(tf.eye(size, dtype=dtype), [[start, count - start - size], [0, 0]])
            found.append(tf.reshape(units, [count, *([1] if self.batched else []), *example]))
            start += size
        return found

    def plan(self, problem: Problem) -> Chunked:
        require_second_order(problem)
        if self.batched:
            require_common_batch(problem, "For a function of one example, or of anything else, use batched=False")
        if self.check_independence:
            require_proved_if_changing(problem)
        count = self.count(problem)
        lanes = min(self.chunk_size or count, count) if self.split else count
        examples, own = self._examples(problem, 4 + 2 * lanes)
        largest = problem.facts.largest
        if examples is not None:
            largest = largest * examples // problem.source_shapes[0][0]
        given = self.chunk_size if self.split else None
        chunk, needed = rows_at_once(
            what=self.name,
            shapes=f"{counted(count, 'direction')} and a largest tensor of {largest} bytes",
            result=4 * largest,  # the value and the sum of second derivatives, before and after an operation
            rows=count if self.split else 1,
            per_row=2 * largest * (1 if self.split else lanes),
            advice="a smaller batch",
            chunk_size=given,
            limit=self.memory_limit,
        )
        chunk = chunk if self.split else count
        if chunk < count and not problem.repeatable:
            raise ValueError(
                f"{problem.name}: the function draws random numbers or changes variables, and would do so once for "
                f"each of {-(-count // chunk)} chunks of directions. Raise chunk_size or memory_limit to {count} "
                "directions at once, or use a smaller batch"
            )
        return Chunked("collapsed Taylor", count, chunk, needed, examples=examples, by_example=own)

    def _examples(self, problem: Problem, streams: int) -> tuple[int | None, tuple[bool, ...]]:
        """How many examples at once, None for all, and which data go with them.

        Chunks of them cost nothing, unlike those of directions, and are preferred where they are proved to be right.
        """
        batch = problem.source_shapes[0][0] if self.batched else 1
        fit = int(current_limit(self.memory_limit) * batch // max(streams * problem.facts.largest, 1))
        examples = self.batch_chunk_size or max(fit, 1)
        if examples >= batch:
            return None, ()
        try:
            sizes = [size for size in (examples, batch % examples) if size]
            return examples, data_by_example(problem, sizes)
        except Unproven as error:
            if self.batch_chunk_size:
                raise ValueError(
                    f"{problem.name}: batch_chunk_size is {self.batch_chunk_size}, but it is not proved that the "
                    f"results for {examples} of the {batch} examples are those of the whole batch: {error}. Leave it "
                    "out, or use smaller batches"
                ) from error
            problem.remarks.append(f"chunks of {counted(examples, 'example')}, which would fit: {error}")
            return None, ()

    def prefers_xla(self, problem: Problem, plan: Chunked) -> bool:  # type: ignore[override]
        facts, whole = problem.facts, plan.examples is None  # tapes do not differentiate loops that XLA compiles
        return whole and plan.chunk * facts.largest <= costs.XLA_OPERATOR and not facts.operations & LOOPS

    def ways(self, problem: Problem, plan: Chunked) -> list[Way]:  # type: ignore[override]
        chunks = "" if plan.examples is None else f", {plan.examples} of {problem.source_shapes[0][0]} examples at once"
        taylor = [
            Way(label + chunks, partial(self._taylor, problem, plan, strict=strict), chunk=plan.chunk)
            for label, strict in ((TAYLOR, True), (GENERIC, False))
        ]
        tapes = [
            Way(
                f"nested tapes, {how}{chunks}",
                partial(self._nested, problem, plan, how),
                eager=how == EAGER,
                chunk=plan.chunk,
            )
            for how in (VECTORIZED, LOOP, EAGER)
        ]
        return [*taylor, *tapes]

    def _taylor(self, problem: Problem, plan: Chunked, tensors: Tensors, *, strict: bool) -> list[tf.Tensor]:
        run = partial(self.compute, problem, chunk=plan.chunk, strict=strict)
        return self._checked(problem, tensors, self._chunks(problem, plan, LOOP, tensors, run))

    def _nested(self, problem: Problem, plan: Chunked, how: str, tensors: Tensors) -> list[tf.Tensor]:
        require_for_tapes(problem)
        run = partial(self.nested, problem, chunk=plan.chunk, how=how)
        results = self._chunks(problem, plan, EAGER if how == EAGER else LOOP, tensors, run)
        return self._checked(problem, tensors, results)

    def _chunks(
        self,
        problem: Problem,
        plan: Chunked,
        how: str,
        tensors: Tensors,
        run: Callable[[Tensors, Coefficients], list[tf.Tensor]],
    ) -> list[tf.Tensor]:
        coefficients, axes = self.coefficients(problem, problem.sources(tensors))
        if plan.examples is None:
            return run(list(tensors), coefficients)
        own = [*[0] * problem.data_start, *[0 if one else None for one in plan.by_example]]
        return in_chunks(
            lambda parts: run(parts[: len(own)], parts[len(own) :]),
            [*tensors, *coefficients],
            [*own, *axes],
            problem.source_shapes[0][0],
            plan.examples,
            self.specs(problem),
            how,
        )

    def _checked(self, problem: Problem, tensors: Tensors, results: list[tf.Tensor]) -> list[tf.Tensor]:
        why = why_unproved(problem) if self.check_independence else None
        if why is None:
            return results
        return [*results, coupling(problem, why, recorded(problem, tensors, persistent=True))]

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        width = len(self.specs(problem)) if self.batched else len(outputs)
        if len(outputs) > width:
            require_uncoupled(problem, outputs[width], "use batched=False for a sum over the whole batch")
        return self.structured(problem, outputs[:width])

    def structured(self, problem: Problem, outputs: Tensors) -> Any:
        """Give the flat list of results the structure that the caller gets."""
        return problem.structured_outputs(outputs)


def propagated(
    problem: Problem, vals: Sequence[Val], tensors: Tensors, algebra: Algebra, *, strict: bool, custom_gradients: bool
) -> list[Val]:
    """Send the sources' channels through the function; note which gradients given by its author were not used.

    Args:
        vals: the sources with their channels.
        tensors: the function's; of them only those after the sources count.

    Raises:
        NoRule: if there are such, and ``custom_gradients`` asks for them.
    """
    rest = tensors[problem.data_start :]
    outputs, custom = propagate(lambda *own: problem.evaluate([*own, *rest]), vals, algebra, strict=strict)
    if custom and custom_gradients:
        raise NoRule(f"{', '.join(custom)} has a gradient of its own, which custom_gradients=True asks for")
    if custom:
        problem.note(f"what they compute is differentiated, not the gradient given for them: {', '.join(custom)}")
    return outputs


def along_directions(
    problem: Problem, tensors: Tensors, directions: Tensors, order: int, *, chunk: int, how: str
) -> tuple[list[tf.Tensor], list[list[tf.Tensor]]]:
    """Return the function's results, and their derivatives along straight lines by nested tapes.

    Args:
        directions: for each source, shape (number, *source) or one that broadcasts to it.
        order: of the highest derivative.
        chunk, how: as for `map_rows`.

    Returns:
        A pair: the results; and for each order from the first, a tensor of shape (number, *result) for each of them.
    """
    sources, rest = tensors[: problem.data_start], tensors[problem.data_start :]

    def row(index: int | tf.Tensor) -> list[tf.Tensor]:
        v = [tf.broadcast_to(tf.gather(own, index), x.shape) for own, x in zip(directions, sources, strict=True)]
        run = lambda own: problem.evaluate([*own, *rest])  # noqa: E731
        orders = along(run, sources, [v, *[None] * (order - 1)], needed=False)
        return [derivative for part in orders for derivative in part]

    values = problem.evaluate(tensors)
    specs = [tf.TensorSpec(value.shape, value.dtype) for value in values]
    rows = map_rows(row, specs * order, directions[0].shape[0], how, chunk)
    return values, [rows[start : start + len(values)] for start in range(0, len(rows), len(values))]


def require_for_tapes(problem: Problem) -> None:
    """Raise if nested tapes would change something several times; note whose gradients they differentiate."""
    if not problem.repeatable:
        raise ValueError(f"{problem.name}: {_ONCE}")
    if problem.custom_gradients:
        problem.note("gradients given by tf.custom_gradient are used, not those of what is computed")


def note_if_zero(problem: Problem, outputs: Sequence[Val]) -> None:
    """Note that the last channel of every result is zero."""
    if all(not output.ch or output.ch[-1] is None for output in outputs):
        problem.note(_LINEAR)
