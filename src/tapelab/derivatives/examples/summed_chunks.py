"""A batch of examples in chunks, for what is summed over them: how many at once, the proof, and the loop.

One backward pass that is to give norms holds more than one that is to give a gradient: the cotangents of all layers
until the norms are known, the patches that a convolution's filter meets, and each example's gradient of a filter where
that is smaller than its Gram matrices. All of it goes with the examples, and sums over examples can be made chunk by
chunk, so that little of it exists at a time.

A function that keeps the examples apart may still depend on how many they are, or hold a row for each in a constant. So
it is traced for a chunk too, and the graphs are compared, operation by operation (`chunks`).
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tapelab.derivatives import costs
from tapelab.derivatives.examples.chunks import called_with, sized_outputs
from tapelab.derivatives.examples.variable_uses import (
    BUILT,
    DEPTHWISE,
    FILTER,
    PRODUCT,
    SUM,
    TRANSPOSED,
    Uses,
    form_of,
    positions_of,
)
from tapelab.derivatives.first_order import recorded
from tapelab.derivatives.machinery.problem import Problem
from tapelab.graphs.batch import Unproven
from tapelab.process.tensorflow import Tensors, tf


class Survey(NamedTuple):
    """A function's graph for some number of examples.

    Attributes:
        trace: the concrete function; it takes the data and returns the losses.
        uses: of the variables in it.
    """

    trace: tf.types.experimental.ConcreteFunction
    uses: Uses


def survey(problem: Problem, size: int) -> Survey:
    """Trace the function for a number of examples. Raises Unproven if it raises anything for that many."""
    found = []

    def trace(*tensors: tf.Tensor) -> tf.Tensor:
        with called_with(size):
            tape, sources, (losses,) = recorded(problem, tensors, persistent=True, opened=True)
        found.append(Uses(size, tensors, sources, losses, tape))
        return losses

    return Survey(problem.traced(trace, problem.sized(size, [True] * len(problem.specs))), found[-1])


def sizes_of(batch: int, chunk: int) -> list[int]:
    """Return how many examples the chunks have: one number, or two if the last one is smaller."""
    return [chunk, batch % chunk] if batch % chunk else [chunk]


def require_same_in_chunks(problem: Problem, whole: Survey, sizes: Sequence[int]) -> None:
    """Raise Unproven unless a chunk of each of these sizes has the losses that its examples have in the batch."""
    if not problem.repeatable:
        raise Unproven("the function draws random numbers or changes variables")
    for losses in whole.trace.graph.outputs:  # copies, made after the function was followed
        whole.uses.examples.begin(losses)
    for size in sizes:
        part = survey(problem, size)
        if part.uses.coupled is not None or part.uses.missing:
            raise Unproven("its graph is another one for fewer examples")
        if any(sized_outputs(whole.trace, part.trace, whole.uses.examples, size)):
            raise Unproven("its losses depend on how many examples there are")


def fits_whole(problem: Problem, uses: Uses) -> bool:
    """Whether one pass over the whole batch takes about the memory that one gradient of it takes.

    A gradient holds the layers' results, and the cotangents on both sides of one of them. A pass holds the results and
    all cotangents, and what the norm of one variable's gradients needs. Later the gradients take the place of both.
    """
    results, largest, turn = 0, 0, 0
    for index, own in enumerate(uses.by_variable):
        size, form = problem.source_dtypes[index].size, form_of(own, uses.batch)
        for use in own:
            if use.kind != PRODUCT or form == BUILT:
                if use.is_offset:
                    continue  # adds in place; its examples' gradients are no larger than the cotangents
                return False
            output, met = math.prod(use.output.shape), math.prod(use.met.shape)
            positions = positions_of(use) // uses.batch
            results += size * output
            largest = max(largest, size * output)
            # Squares of one factor; of several positions, both factors and their Gram matrices in double precision.
            turn = max(
                turn, size * max(met, output), 8 * (output + met + 3 * uses.batch * positions**2) * (positions > 1)
            )
    sums = sum(size * dtype.size for size, dtype in zip(problem.source_sizes, problem.source_dtypes, strict=True))
    return max(2 * results + turn, sums) <= costs.CLIPPED_WHOLE * max(results + 2 * largest, sums)


def chunk_within(problem: Problem, uses: Uses) -> int:
    """Return how many examples at once take about the memory that one gradient of the whole batch takes."""
    if fits_whole(problem, uses):
        return uses.batch
    kept = extra = 0
    for index, own in enumerate(uses.by_variable):
        size = problem.source_dtypes[index].size
        # What is added to a layer's result shares its memory, before and after, and its cotangents.
        outputs = sum(math.prod(use.output.shape) for use in own if not use.is_offset)
        kept += size * (outputs + problem.source_sizes[index])
        extra += size * 2 * outputs  # the cotangents, and those times the examples' factors
        for use in own:
            if use.kind in (DEPTHWISE, FILTER, TRANSPOSED):  # patches
                extra += size * positions_of(use) * math.prod(use.shape[:3])
            elif use.kind == PRODUCT:  # squares
                extra += size * math.prod(use.met.shape)
        if form_of(own, uses.batch) == BUILT and own[0].kind != SUM:
            extra += size * uses.batch * problem.source_sizes[index]
    chunks = math.ceil((kept + extra) / (costs.CLIPPED_ROOM * kept))
    # About so many, of one size where that is possible.
    even = [count for count in range(math.ceil(0.75 * chunks), 2 * chunks) if uses.batch % count == 0]
    return min(uses.batch, max(costs.CLIPPED_EXAMPLES, math.ceil(uses.batch / min(even, default=chunks))))


def over_chunks(
    run: Callable[[Tensors], list[tf.Tensor]],
    tensors: Tensors,
    chunk: int,
    sums: Sequence[tf.TensorSpec],
    dtype: tf.DType,
) -> list[tf.Tensor]:
    """Apply a function to chunks of examples, one after the other.

    Args:
        run: takes tensors like these with fewer examples; returns a number for each example, and sums over examples.
        tensors: with the examples first.
        chunk: how many examples at once.
        sums: the specs of the sums.
        dtype: of the numbers.

    Returns:
        The numbers of all examples, shape (batch,), and the sums.
    """
    batch = tensors[0].shape[0]
    found, totals = [], [tf.zeros(spec.shape, spec.dtype) for spec in sums]
    for first, size in zip((0, batch - batch % chunk), sizes_of(batch, chunk), strict=False):
        # Each loop's body is a graph of its own, in which `run` finds its examples and no others.
        count = batch // chunk if not first else 1

        def step(
            index: tf.Tensor, numbers: tf.TensorArray, totals: list[tf.Tensor], first: int = first, size: int = size
        ) -> tuple[tf.Tensor, tf.TensorArray, list[tf.Tensor]]:
            start = first + index * size
            own, *more = run([tf.slice(t, [start, *[0] * (t.shape.rank - 1)], [size, *t.shape[1:]]) for t in tensors])
            return index + 1, numbers.write(index, own), [a + b for a, b in zip(totals, more, strict=True)]

        state = [0, tf.TensorArray(dtype, count, element_shape=[size]), totals]
        _, numbers, totals = tf.while_loop(
            lambda index, *_, count=count: index < count, step, state, parallel_iterations=1
        )
        found.append(tf.reshape(numbers.stack(), [count * size]))
    return [tf.concat(found, 0), *totals]
