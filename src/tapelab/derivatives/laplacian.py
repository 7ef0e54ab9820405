"""The Laplacian: a product with the Hessian for each direction, and of each the part along that direction."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.examples.chunks import data_by_example, in_chunks
from tapelab.derivatives.examples.independence import (
    coupling,
    require_proved_if_changing,
    require_uncoupled,
    why_unproved,
)
from tapelab.derivatives.first_order import dense_gradient, positive, recorded
from tapelab.derivatives.hessians.hessian import note_custom_gradients, require_second_order
from tapelab.derivatives.machinery.arguments.calling import Argnums, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks, require_common_batch, require_positive
from tapelab.derivatives.machinery.memory import counted, current_limit, rows_at_once
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import EAGER, LOOP, VECTORIZED, map_rows
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.graphs.batch import Unproven
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf


@options_by_keyword
def laplacian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    batched: bool = True,
    check_independence: bool = True,
    samples: int | None = None,
    seed: int | None = None,
    chunk_size: int | None = None,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Laplacian :math:`Δf`: the sum of the second derivatives by each element.

    For D elements that is a backward pass through the gradient for each, vectorised; of a result with more than one
    element for an example, another one through all of these. Tapes differentiate the result, by variables too, as the
    residual of a differential equation needs it. A function that is linear in pieces, such as a ReLU network, has
    Laplacian 0 almost everywhere.

    Args:
        f: takes and returns tensors, nested if need be; if ``batched``, with the batch as the first axis of sources and
            results. Arguments that are not sources may have any shape. Where it has a `tf.custom_gradient`, the
            gradient given is differentiated, as by `hessian`, and the plan says so.
        argnums: see `tapelab.derivatives`; the sum is over the elements of all these arguments. There is no ``wrt``:
            variables have no batch axis; the sum over theirs is a Hessian's trace (`CurvatureOperator.trace`).
        batched: whether each example has its own Laplacian. Otherwise all elements of the sources are summed over, for
            each element of the result.
        check_independence: whether to make sure that examples do not depend on each other: from the graph of f, or,
            where that does not tell, by comparing two vector-Jacobian products at every call.
        samples: for many elements, how many random directions to take instead of all unit directions. The result is
            then Hutchinson's estimate: right in the mean, with a standard deviation for each example of
            :math:`√(2 Σ_{i≠j} H_ij² / samples)`, H its Hessian; each example has its own directions.
        seed: of those directions, which are then the same at every call; None draws new ones at each.
        chunk_size: how many directions to take at once.
        batch_chunk_size: how many examples to take at once; by default all, or as many as fit the memory limit, where
            f's graph shows that it does to a chunk what it does to them all. Arguments that are no sources go along
            with the examples if they have one row for each and f keeps those apart. A tape around the result keeps
            what every chunk computed.
        memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    In training compile the whole step, ``tf.function(step, jit_compile=True)``: one program takes less time than a tape
    around one.

    Returns:
        A function of f's arguments. It returns what f does, in structure, shapes and dtypes.

    Raises:
        CoupledExamplesError: when called, if examples depend on each other.
        MemoryLimitError: when called, if not even one direction fits; says how many bytes and what to use instead.
        ValueError: if ``samples`` or ``seed`` are not whole numbers, or ``seed`` is given alone.
        RuntimeError: when called inside a tf.function, if independence has to be checked by values.
        ValueError, TypeError: when called, as `value_and_gradient`; also if ``batched`` and there is no common batch
            axis.
    """
    check_chunks(memory_limit, chunk_size=chunk_size, batch_chunk_size=batch_chunk_size)
    if samples is not None:
        require_positive(samples=samples)
    elif seed is not None:
        raise ValueError(f"seed is {seed!r} without samples: all directions are taken. Pass samples=, or no seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise ValueError(f"seed is {seed!r}; expected a whole number")
    if batch_chunk_size is not None and not batched:
        raise ValueError(
            f"batch_chunk_size is {batch_chunk_size!r} with batched=False, which has no examples to take in chunks. "
            "Leave one of them out"
        )
    recipe = _Laplacian(
        batched, check_independence and batched, samples, seed, chunk_size, batch_chunk_size, memory_limit
    )
    return transform(f, recipe, argnums=argnums, **options)


@dataclass(frozen=True)
class _Chunked(Plan):
    """A `Plan` that takes so many examples at once, None for all, and with them which of the data."""

    examples: int | None = None
    by_example: tuple[bool, ...] = ()


@dataclass(eq=False)
class _Laplacian(Recipe):
    batched: bool
    check_independence: bool
    samples: int | None
    seed: int | None
    chunk_size: int | None
    batch_chunk_size: int | None
    memory_limit: int | None
    name = "laplacian"

    def plan(self, problem: Problem) -> _Chunked:
        require_second_order(problem)
        note_custom_gradients(problem)
        if self.batched:
            require_common_batch(problem, "For a function of one example, or of anything else, use batched=False")
        if self.check_independence:
            require_proved_if_changing(problem)
        count = self.samples or sum(math.prod(self._example(shape)) for shape in problem.source_shapes)
        largest, work = problem.facts.largest, 5 if self._is_one_number(problem) else 10  # passes back through passes
        examples, own = self._examples(problem, work * min(self.chunk_size or count, count))
        if examples is not None:
            largest = largest * examples // problem.source_shapes[0][0]
        chunk, needed = rows_at_once(
            what=self.name,
            shapes=f"{counted(count, 'direction')} and a largest tensor of {largest} bytes",
            result=4 * largest,
            rows=count,
            per_row=work * largest,
            advice="a smaller batch",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return _Chunked("reverse over reverse", count, chunk, needed, examples=examples, by_example=own)

    def _examples(self, problem: Problem, streams: int) -> tuple[int | None, tuple[bool, ...]]:
        """How many examples at once, None for all, and which data go with them."""
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

    def prefers_xla(self, problem: Problem, plan: _Chunked) -> bool:  # type: ignore[override]
        facts, whole = problem.facts, plan.examples is None  # tapes do not differentiate loops that XLA compiles
        return whole and plan.chunk * facts.largest <= costs.XLA_LAPLACIAN and not facts.operations & LOOPS

    def ways(self, problem: Problem, plan: _Chunked) -> list[Way]:  # type: ignore[override]
        chunks = "" if plan.examples is None else f", {plan.examples} of {problem.source_shapes[0][0]} examples at once"
        return [
            Way(f"rows, {how}{chunks}", partial(self._compute, problem, plan, how), eager=how == EAGER, chunk=chunk)
            for how, chunk in ((VECTORIZED, plan.chunk), (LOOP, 1), (EAGER, 1))
        ]

    def _compute(self, problem: Problem, plan: _Chunked, how: str, tensors: Tensors) -> list[tf.Tensor]:
        directions = self._directions(problem)
        chunk = plan.chunk if how == VECTORIZED else plan.passes
        if plan.examples is None:
            found = self._by_rows(problem, directions, chunk, how, tensors)
        else:
            batch, count = problem.source_shapes[0][0], len(tensors)
            own = [*[0] * problem.data_start, *[0 if one else None for one in plan.by_example]]
            found = in_chunks(
                lambda parts: self._by_rows(problem, parts[count:], chunk, how, parts[:count]),
                [*tensors, *directions],
                [*own, *[1 if direction.shape[1] == batch else None for direction in directions]],
                batch,
                plan.examples,
                [tf.TensorSpec(spec.shape[1:], spec.dtype) for spec in problem.output_specs],
                EAGER if how == EAGER else LOOP,
            )
        why = why_unproved(problem) if self.check_independence else None
        return found if why is None else [*found, coupling(problem, why, recorded(problem, tensors, persistent=True))]

    def _by_rows(
        self, problem: Problem, directions: Tensors, chunk: int, how: str, tensors: Tensors
    ) -> list[tf.Tensor]:
        """Σ_r v_r · H v_r / weight, where H is the Hessian of the outputs' sum with cotangents.

        That is linear in the cotangents. Where an example has one number, they are 1; otherwise its gradient by them is
        the Laplacian of each number.
        """
        alone, sources = self._is_one_number(problem), problem.sources(tensors)
        count, dtype = directions[0].shape[0], problem.source_dtypes[0]
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as each:
            with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
                outer.watch(sources)
                tape, _, outputs = recorded(problem, tensors)
                cotangents = [tf.ones_like(output) if alone else positive(output) for output in outputs]
                each.watch(cotangents)
                gradients = dense_gradient(tape, outputs, sources, cotangents)

            def row(index: int | tf.Tensor, start: int) -> list[tf.Tensor]:
                along = [tf.gather(each, start + index) for each in directions]
                along = [tf.broadcast_to(v, g.shape) for v, g in zip(along, gradients, strict=True)]
                parts = [
                    tf.reduce_sum(product * v, list(range(1 if self.batched else 0, v.shape.rank)))
                    for product, v in zip(dense_gradient(outer, gradients, sources, along), along, strict=True)
                ]
                return [tf.add_n([tf.cast(part, dtype) for part in parts])]

            spec = tf.TensorSpec(gradients[0].shape[:1] if self.batched else [], dtype)
            sizes = {start: min(chunk, count - start) for start in range(0, count, chunk)}
            rows = [map_rows(partial(row, start=start), [spec], size, how)[0] for start, size in sizes.items()]
            sums = [tf.reduce_sum(part, 0) / (self.samples or 1) for part in rows]
        parts = [[part] if alone else dense_gradient(each, part, cotangents) for part in sums]
        totals = [tf.add_n(of_one) for of_one in zip(*parts, strict=True)]
        return [tf.cast(tf.reshape(t, output.shape), output.dtype) for t, output in zip(totals, outputs, strict=True)]

    def _directions(self, problem: Problem) -> list[tf.Tensor]:
        """For each source, shape (number, batch or 1, *example), unbatched (number, *shape): units, or random signs."""
        found, start = [], 0
        count = sum(math.prod(self._example(shape)) for shape in problem.source_shapes)
        for number, (shape, dtype) in enumerate(zip(problem.source_shapes, problem.source_dtypes, strict=True)):
            if self.samples is None:
                size = math.prod(self._example(shape))
                units = tf.pad(tf.eye(size, dtype=dtype), [[start, count - start - size], [0, 0]])
                found.append(tf.reshape(units, [count, *([1] if self.batched else []), *self._example(shape)]))
                start += size
                continue
            drawn = [self.samples, *shape]
            if self.seed is None:
                ones = tf.random.uniform(drawn, maxval=2, dtype=tf.int32)
            else:
                ones = tf.random.stateless_uniform(drawn, [self.seed, number], maxval=2, dtype=tf.int32)
            found.append(tf.cast(2 * ones - 1, dtype))
        return found

    def _example(self, shape: Sequence[int]) -> Sequence[int]:
        return shape[1:] if self.batched else shape

    def _is_one_number(self, problem: Problem) -> bool:
        return sum(math.prod(self._example(shape)) for shape in problem.returned.shapes) == 1

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        count = len(problem.returned.names)
        if len(outputs) > count:
            require_uncoupled(problem, outputs[count], "use batched=False for a sum over the whole batch")
        return problem.structured_outputs(outputs[:count])
