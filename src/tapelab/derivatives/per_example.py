"""The gradient of each example's loss, rather than of their mean."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tapelab.derivatives.checks import check_chunks
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.memory import counted, rows_at_once
from tapelab.derivatives.plan import Plan
from tapelab.derivatives.problem import Problem
from tapelab.derivatives.recipe import Recipe
from tapelab.derivatives.rows import map_rows, row_ways
from tapelab.derivatives.transform import Transform, transform
from tapelab.runtime import tf


def per_example_gradients(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: int | tuple[int, ...] = 0,
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    compile: str = "auto",
    unconnected: str = "error",
    check_finite: bool = False,
) -> Transform:
    """Return a function that computes the gradient of the loss of each example of a batch.

    The function is called on batches of one example: a layer that computes statistics over the batch sees one example.
    One that draws random numbers or changes variables (dropout, moving statistics) is evaluated for one example after
    the other, with the results of a loop over the examples.

    Args:
        f: takes tensors whose first axis is the batch, the sources among its arguments apart; returns the loss, a
            scalar or of shape (batch,).
        chunk_size: how many examples to compute at once; by default as many as fit the memory limit.
        memory_limit: bytes; by default the one of `set_memory_limit`.
        wrt, argnums, compile, unconnected, check_finite: as for `value_and_gradient`.

    Keep the returned function to keep what it compiled. It is traced anew when what f reads from outside has changed; a
    warning at the first call names what it cannot see.

    Returns:
        A function of f's arguments. It returns the sources' structure, with tensors of shape (batch, *source's shape).
        If f is the mean of its examples' losses, their mean over the batch is f's gradient.

    Raises:
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `value_and_gradient`; also if there is no common batch axis.
    """
    check_chunks(chunk_size, memory_limit)
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return transform(f, _PerExample(chunk_size, memory_limit), argnums=argnums, wrt=wrt, **options)


class _PerExample(Recipe):
    name = "per_example_gradients"

    def __init__(self, chunk_size, memory_limit):
        self.chunk_size = chunk_size
        self.memory_limit = memory_limit

    def plan(self, problem):
        batch = require_batch(problem)
        if problem.output_shapes not in ([()], [batch]):
            raise ValueError(
                f"{problem.name}: the result has shape {', '.join(map(str, problem.output_shapes))}; expected one "
                f"loss, of shape () or {batch}"
            )
        pairs = zip(problem.source_sizes, problem.source_dtypes, strict=True)
        chunk, needed = rows_at_once(
            what="per_example_gradients",
            shapes=f"{counted(batch[0], 'example')} and {counted(sum(problem.source_sizes), 'element')} in the sources",
            result=batch[0] * sum(size * dtype.size for size, dtype in pairs),
            rows=batch[0],
            per_row=2 * problem.largest // max(batch[0], 1),
            advice="smaller batches",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return Plan("reverse", batch[0], chunk, needed)

    def prefers_xla(self, problem, plan):
        # A convolution's filter gradients are many small batches of products, which XLA computes one by one.
        return "Conv2D" not in problem.operations

    def ways(self, problem, plan):
        ways = row_ways("reverse mode, examples", partial(self._compute, problem, plan.chunk), plan.chunk)
        if problem.repeatable:
            return ways
        problem.remarks.append(
            f"{ways[0].label}: the function draws random numbers, changes variables or calls Python; it is evaluated "
            "for one example after the other"
        )
        return ways[1:]

    def _compute(self, problem, chunk, how, tensors):
        data = tensors[problem.data_start :]

        def row(index):
            example = [tf.expand_dims(tf.gather(tensor, index), 0) for tensor in data]
            tape, sources, outputs = recorded(problem, [*tensors[: problem.data_start], *example])
            _require_one_loss(problem, outputs[0].shape)
            return dense_gradient(tape, outputs[0], sources)

        return map_rows(row, problem.source_specs, data[0].shape[0], how, chunk)

    def result(self, problem, outputs):
        return problem.structured(outputs)


def _require_one_loss(problem, shape):
    """Raise unless a batch of one example gives one loss; a vector over the features can be as long as the batch."""
    if shape.is_fully_defined() and shape.num_elements() != 1:
        raise ValueError(
            f"{problem.name}: for a batch of one example the result has shape {tuple(shape)}; expected one loss, of "
            "shape () or (1,). Reduce over the other axes, for example with tf.reduce_mean(..., axis=-1)"
        )


def require_batch(problem: Problem) -> tuple[int]:
    """Return the shape (batch,) that all arguments apart from the sources begin with; raise ValueError without one."""
    batch = problem.data_shapes[0][:1] if problem.data_shapes else ()
    if not batch or any(shape[:1] != batch for shape in problem.data_shapes):
        raise ValueError(
            f"{problem.name}: the arguments that are not sources need one batch axis, first and of one size; their "
            f"shapes are {', '.join(map(str, problem.data_shapes)) or 'none'}. Close over what has no batch axis"
        )
    return batch
