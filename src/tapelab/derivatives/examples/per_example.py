"""The gradient of each example's loss, rather than of their mean."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.examples.batch_of_one import require_alone_as_in_batch, require_comparable, require_same_losses
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.machinery.arguments.calling import Argnums, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks
from tapelab.derivatives.machinery.arguments.kept import changed, require_kept
from tapelab.derivatives.machinery.memory import counted, rows_at_once
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import map_rows, row_ways
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.graphs.batch import Unproven
from tapelab.process.tensorflow import Tensors, tf


@options_by_keyword
def per_example_gradients(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    check_independence: bool = True,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the gradient of the loss of each example of a batch.

    The function is called on batches of one example. That this gives each example's part of the batch's loss is proved
    from the graph: no example depends on another, nor on how many there are. Where the proof fails, the losses one by
    one are compared with the whole batch's at every call, and the plan says why; of a batch of one there is nothing to
    compare. A function that draws random numbers or changes variables (dropout) is evaluated for one example after the
    other, with the results of a loop over the examples: it draws or changes once for each. Two evaluations of it cannot
    be compared: without a proof it is refused. So is Keras' batch normalisation in training mode, also of a batch of
    one: what it computes has no gradients of examples. Inference mode, group and layer normalisation have.

    Args:
        f: takes tensors whose first axis is the batch, the sources among its arguments apart; returns the loss, a
            scalar or of shape (batch,). A scalar is the sum or the mean of what each example has.
        check_independence: whether examples have to be independent. False gives the gradients of batches of one,
            whatever they are of the batch's loss, and serves a `tf.function`, which has no values to compare.
        wrt, argnums, batch_chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see
            `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the sources' structure, with tensors of shape (batch, *source's shape).
        If f is the mean of its examples' losses, their mean over the batch is f's gradient.

    Raises:
        CoupledExamplesError: when called, if an example's loss depends on other examples, or that cannot be excluded.
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `value_and_gradient`; also if there is no common batch axis.
    """
    check_chunks(memory_limit, batch_chunk_size=batch_chunk_size)
    recipe = _PerExample(check_independence, batch_chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, wrt=wrt, **options)


@dataclasses.dataclass(eq=False)
class _PerExample(Recipe):
    check_independence: bool
    batch_chunk_size: int | None
    memory_limit: int | None
    name = "per_example_gradients"

    def plan(self, problem: Problem) -> "_Proved":
        batch = require_batch(problem)
        if problem.returned.shapes not in ([()], [batch]):
            raise ValueError(
                f"{problem.name}: the result has shape {', '.join(map(str, problem.returned.shapes))}; expected one "
                f"loss, of shape () or {batch}"
            )
        compared = self.check_independence and bool(batch[0]) and self._is_to_compare(problem)
        pairs = zip(problem.source_sizes, problem.source_dtypes, strict=True)
        chunk, needed = rows_at_once(
            what="per_example_gradients",
            shapes=f"{counted(batch[0], 'example')} and {counted(sum(problem.source_sizes), 'element')} in the sources",
            result=batch[0] * sum(size * dtype.size for size, dtype in pairs),
            rows=batch[0],
            per_row=2 * problem.facts.largest // max(batch[0], 1),
            advice="smaller batches",
            batch_chunk_size=self.batch_chunk_size,
            limit=self.memory_limit,
        )
        return _Proved("reverse", batch[0], chunk, needed, compared=compared)

    def _is_to_compare(self, problem: Problem) -> bool:
        """Whether losses are to be compared at every call; raises if nothing is known, and that does not help."""
        try:
            require_alone_as_in_batch(problem)
        except Unproven as reason:
            require_comparable(problem, reason, apart_from_python=True)
            problem.note(f"losses one by one are compared with the batch's at every call, because of {reason}")
            return True
        return False

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        return problem.facts.operations.isdisjoint(costs.SLOW_PER_EXAMPLE)

    def ways(self, problem: Problem, plan: "_Proved") -> list[Way]:  # type: ignore[override]
        ways = row_ways("reverse mode, examples", partial(self._compute, problem, plan), plan.chunk)
        if problem.repeatable:
            return ways
        problem.remarks.append(
            f"{ways[0].label}: the function draws random numbers, changes variables or calls Python; it is evaluated "
            "for one example after the other"
        )
        return ways[1:]

    def _compute(self, problem: Problem, plan: "_Proved", how: str, tensors: Tensors) -> list[tf.Tensor]:
        before = [] if problem.repeatable else [tf.identity(source) for source in problem.sources(tensors)]
        losses, rows = rows_of_examples(problem, range(len(problem.source_names)), how, plan.chunk, tensors)
        outputs = [*rows, losses, *problem.evaluate(tensors)] if plan.compared else rows
        return [*outputs, changed(before, problem.sources(tensors))] if before else outputs

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        count = len(problem.source_names)
        if not problem.repeatable:
            *outputs, differs = outputs
            require_kept(problem.name, differs)
        if len(outputs) > count:
            single, together = outputs[count:]
            require_same_losses(problem, together, single)
        return problem.structured(outputs[:count])


@dataclasses.dataclass(frozen=True)
class _Proved(Plan):
    """A plan, and whether losses are compared at every call."""

    compared: bool = False


def rows_of_examples(
    problem: Problem,
    chosen: Sequence[int],
    how: str,
    chunk: int,
    tensors: Tensors,
    norms: tf.DType | None = None,
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """Evaluate the function on batches of one.

    Args:
        chosen: the indices of the sources that are differentiated with respect to.
        how, chunk: as for `map_rows`.
        norms: a dtype to have the gradients' norms in, instead of the gradients.

    Returns:
        The losses, shape (batch,), and for each chosen source a row for each example: its gradient, or that's norm.
    """
    data = tensors[problem.data_start :]

    def row(index: int | tf.Tensor) -> list[tf.Tensor]:
        example = [tf.expand_dims(tf.gather(tensor, index), 0) for tensor in data]
        tape, sources, (loss,) = recorded(problem, [*tensors[: problem.data_start], *example])
        _require_one_loss(problem, loss.shape)
        gradients = dense_gradient(tape, loss, [sources[index] for index in chosen])
        if norms is not None:
            gradients = [tf.norm(tf.cast(gradient, norms)) for gradient in gradients]
        return [tf.reshape(loss, []), *gradients]

    specs = [problem.source_specs[index] if norms is None else tf.TensorSpec([], norms) for index in chosen]
    losses, *rows = map_rows(row, [tf.TensorSpec([], problem.returned.dtypes[0]), *specs], data[0].shape[0], how, chunk)
    return losses, rows


def _require_one_loss(problem: Problem, shape: tf.TensorShape) -> None:
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
