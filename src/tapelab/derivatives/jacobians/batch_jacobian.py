"""The Jacobian of each example of a batch, and the check that examples do not depend on each other."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, Unpack

from tapelab.derivatives.examples.chunks import data_by_example
from tapelab.derivatives.examples.independence import coupling, require_uncoupled, why_unproved
from tapelab.derivatives.first_order import Recording, dense_gradient, recorded
from tapelab.derivatives.jacobians.jacobian import (
    MODES,
    JacobianRecipe,
    forward_rows,
    offsets_of,
    per_example,
    reverse_rows,
    unit_tangents,
)
from tapelab.derivatives.machinery.arguments.calling import Argnums, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks, require_common_batch, require_one_of
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Way
from tapelab.derivatives.machinery.rows import VECTORIZED, map_rows
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.graphs.batch import Unproven
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf


@options_by_keyword
def batch_jacobian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    check_independence: bool = True,
    mode: str = "auto",
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Jacobian of each example of a batch.

    For a batch of b examples that do not depend on each other, the Jacobian has b diagonal blocks and zeros. Only the
    blocks are computed, for the price of one example's Jacobian in passes.

    Args:
        f: takes and returns tensors whose first axis is the batch. Arguments that are not sources may have any shape.
        argnums: see `tapelab.derivatives`. There is no ``wrt``: variables have no batch axis; `jacobian` and
            `per_example_gradients` differentiate with respect to them.
        check_independence: whether to verify that examples do not depend on each other: by the function's graph, or
            where that does not prove it, with two more backward passes, and a note in the plan. It compares two
            vector-Jacobian products over the whole batch: cotangents that are scaled example by example scale the
            products so, element by element, where no example meets another.
        mode: as for `jacobian`.
        chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the result's structure, and in it for each tensor the sources'
        structure, with tensors of shape (batch, result's other axes, source's other axes).
        Unchecked, and for examples that do depend on each other, reverse mode gives the whole Jacobian summed over the
        batch axis of the result, and forward mode gives it summed over the batch axis of the source.

    Raises:
        CoupledExamplesError: when called, if examples depend on each other; names the first, and how much. Variables
            that the function has changed in that call have their values from before it.
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `jacobian`; also if there is no common batch axis.
    """
    require_one_of(MODES, mode=mode)
    check_chunks(memory_limit, chunk_size=chunk_size)
    recipe = _BatchJacobian(mode, chunk_size, memory_limit, check_independence)
    return transform(f, recipe, argnums=argnums, **options)


@dataclass(eq=False)
class _BatchJacobian(JacobianRecipe):
    name = "batch_jacobian"
    advice = "jvp or vjp, which never build the matrices, or a smaller batch"
    check_independence: bool

    def batch(self, problem: Problem) -> int:
        return require_common_batch(problem, "For anything else use jacobian")

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        return plan.mode == "reverse" and not problem.facts.operations & LOOPS

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        ways = super().ways(problem, plan)
        shared = all(shape[:1] != problem.source_shapes[0][:1] for shape in problem.data_shapes)
        whole = not self.chunk_size and plan.chunk == plan.passes
        if whole and shared and self.prefers_xla(problem, plan) and self._is_the_same_alone(problem):
            examples = partial(self._by_examples, problem)
            ways.insert(0, Way("reverse mode, examples, vectorised", examples, shortcut=True, chunk=plan.passes))
        return ways

    def _is_the_same_alone(self, problem: Problem) -> bool:
        """Whether a batch of one gives what the example has in the whole batch, as far as that is to be checked."""
        if not self.check_independence or self._why_unproved(problem) is not None:
            return False
        try:
            data_by_example(problem, [1])
        except Unproven:
            return False
        return True

    def _why_unproved(self, problem: Problem) -> str | None:
        custom = "a custom gradient, whose backward pass is not looked at" if problem.custom_gradients else None
        return why_unproved(problem) or custom

    def _why_compared(self, problem: Problem) -> str | None:
        """Why examples are compared at every call; None if they are not."""
        return self._why_unproved(problem) if self.check_independence else None

    def compute(self, problem: Problem, plan: Plan, how: str, tensors: Tensors) -> list[tf.Tensor]:
        """Compute (batch, result's elements, source's elements) for each result and source, and shape them."""
        method = self._forward if plan.mode == "forward" else self._reverse
        recording, jacobians = method(problem, problem.source_shapes[0][0], tensors, chunk=plan.chunk, how=how)
        flat = self.shaped(problem, jacobians, [shape[1:] for shape in problem.source_shapes])
        why = self._why_compared(problem)
        return flat if why is None else [*flat, coupling(problem, why, recording)]

    def may_refuse(self, problem: Problem) -> bool:
        return self._why_compared(problem) is not None

    def _by_examples(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        """Map over examples, and within each over its rows: the axes come out in their order, and stay small."""
        specs = [tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) for spec in problem.source_specs]
        shapes = [(1, *shape[1:]) for shape in problem.returned.shapes]
        batch = problem.source_shapes[0][0]

        def example(index: int | tf.Tensor) -> list[tf.Tensor]:
            own = [tf.gather(tensor, [index]) for tensor in tensors[: problem.data_start]]
            tape, sources, outputs = recorded(problem, [*own, *tensors[problem.data_start :]], persistent=True)
            if [tuple(output.shape) for output in outputs] != shapes:
                raise ValueError("on a batch of one, the function returns other shapes than a batch of one")
            rows = [reverse_rows(tape, output, sources, specs, VECTORIZED) for output in outputs]
            return [tf.reshape(part, [part.shape[0], -1]) for row in rows for part in row]

        rows, columns = (per_example(sizes, batch) for sizes in (problem.output_sizes, problem.source_sizes))
        flat = map_rows(example, [tf.TensorSpec(pair) for pair in product(rows, columns)], batch, VECTORIZED)
        jacobians = [flat[i : i + len(specs)] for i in range(0, len(flat), len(specs))]
        return self.shaped(problem, jacobians, [shape[1:] for shape in problem.source_shapes])

    def _reverse(
        self, problem: Problem, batch: int, tensors: Tensors, *, chunk: int | None, how: str
    ) -> tuple[Recording, list[list[tf.Tensor]]]:
        tape, sources, outputs = recorded(problem, tensors, persistent=True)
        jacobians = []
        for output, rows in zip(outputs, per_example(problem.output_sizes, batch), strict=True):

            def row(index: int | tf.Tensor, output: tf.Tensor = output, rows: int = rows) -> list[tf.Tensor]:
                seed = tf.broadcast_to(tf.one_hot(index, rows, dtype=output.dtype), [batch, rows])
                return dense_gradient(tape, output, sources, tf.reshape(seed, output.shape))

            stacked = map_rows(row, problem.source_specs, rows, how, chunk)
            jacobians.append([_examples_first(part, rows, batch) for part in stacked])
        return (tape, sources, outputs), jacobians

    def _forward(
        self, problem: Problem, batch: int, tensors: Tensors, *, chunk: int | None, how: str
    ) -> tuple[Recording, list[list[tf.Tensor]]]:
        columns = per_example(problem.source_sizes, batch)
        offsets = offsets_of(columns)
        shapes = [shape[1:] for shape in problem.source_shapes]

        def tangents(index: int | tf.Tensor) -> list[tf.Tensor]:
            units = unit_tangents(index, shapes, problem.source_dtypes, offsets)
            return [tf.broadcast_to(unit, shape) for unit, shape in zip(units, problem.source_shapes, strict=True)]

        recording, stacked = forward_rows(problem, tensors, tangents, sum(columns), how, chunk)
        return recording, [
            [
                tf.cast(tf.transpose(tf.reshape(part, [size, batch, rows]), [1, 2, 0]), dtype)
                for part, size, dtype in zip(tf.split(column, columns), columns, problem.source_dtypes, strict=True)
            ]
            for column, rows in zip(stacked, per_example(problem.output_sizes, batch), strict=True)
        ]

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        count = len(problem.returned.names) * len(problem.source_names)
        if len(outputs) > count:
            advice = "use jacobian for all of it, or check_independence=False for its sum over a batch axis"
            require_uncoupled(problem, outputs[count], advice)
        return super().result(problem, outputs[:count])


def _examples_first(rows: tf.Tensor, count: int, batch: int) -> tf.Tensor:
    """(count, batch, *shape) to (batch, count, elements)."""
    return tf.transpose(tf.reshape(rows, [count, batch, rows.shape.num_elements() // max(count * batch, 1)]), [1, 0, 2])
