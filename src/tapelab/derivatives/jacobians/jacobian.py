"""Jacobians: by rows (reverse mode) or by columns (forward mode), and what both kinds of Jacobian share."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.first_order import Recording, dense_gradient, linearized, recorded
from tapelab.derivatives.machinery.arguments.calling import Argnums, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks, require_one_of
from tapelab.derivatives.machinery.memory import rows_at_once
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way
from tapelab.derivatives.machinery.rows import map_rows, row_ways
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

MODES = ("auto", "forward", "reverse")


@options_by_keyword
def jacobian(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    mode: str = "auto",
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Jacobian of f.

    Args:
        f: returns a tensor or nested tensors.
        mode: "reverse" takes a backward pass for each element of the result, "forward" a forward pass for each element
            of the sources; "auto" takes the mode with fewer.
        wrt, argnums, chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see
            `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the result's structure, and in it for each tensor the sources'
        structure, with tensors of the result's shape followed by the source's, of the source's dtype.

    Raises:
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `value_and_gradient`.
    """
    require_one_of(MODES, mode=mode)
    check_chunks(memory_limit, chunk_size=chunk_size)
    recipe = _Jacobian(mode, chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, wrt=wrt, **options)


def reverse_rows(
    tape: tf.GradientTape,
    target: tf.Tensor,
    sources: Sequence[tf.Tensor | tf.Variable],
    specs: list[tf.TensorSpec],
    how: str,
    chunk: int | None = None,
) -> list[tf.Tensor]:
    """Return the Jacobian of one tensor by rows, from a persistent tape.

    Args:
        tape: has recorded target and sources.
        target: a tensor of any shape, with m elements.
        sources, specs: lists, of tensors or variables, and of their `tf.TensorSpec`.
        how, chunk: as for `map_rows`.

    Returns:
        A list with a tensor of shape (m, *source's shape) for each source.
    """
    size = target.shape.num_elements()

    def row(index: int | tf.Tensor) -> list[tf.Tensor]:
        seed = tf.reshape(tf.one_hot(index, size, dtype=target.dtype), target.shape)
        return dense_gradient(tape, target, sources, seed)

    return map_rows(row, specs, size, how, chunk)


def forward_rows(
    problem: Problem,
    tensors: Tensors,
    tangents: Callable[[int | tf.Tensor], Tensors],
    count: int,
    how: str,
    chunk: int | None = None,
) -> tuple[Recording, list[tf.Tensor]]:
    """Compute Jacobian-vector products for ``tangents(0)``, …, ``tangents(count - 1)``, lists of one tensor per source.

    Returns:
        What `recorded` does, and a list with a tensor of shape (count, *output's shape) for each output.
    """
    recording, push = linearized(problem, tensors, persistent=True)
    return recording, map_rows(lambda index: push(tangents(index)), problem.output_specs, count, how, chunk)


def unit_tangents(
    index: int | tf.Tensor,
    shapes: Sequence[tuple[int, ...]],
    dtypes: Sequence[tf.DType],
    offsets: Sequence[int],
) -> list[tf.Tensor]:
    """A tangent for each source: all zero, but for the element number ``index`` of all of them together."""
    return [
        tf.reshape(tf.one_hot(index - offset, math.prod(shape), dtype=dtype), shape)
        for shape, dtype, offset in zip(shapes, dtypes, offsets, strict=True)
    ]


def per_example(sizes: Sequence[int], batch: int) -> list[int]:
    return [size // batch if batch else 0 for size in sizes]


def offsets_of(sizes: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(sizes[:-1]).tolist()]


@dataclass(eq=False)
class JacobianRecipe(Recipe):
    """What both kinds of Jacobian share: their options, their plan, and the form of their result."""

    mode: str
    chunk_size: int | None
    memory_limit: int | None
    advice = ""  # what to use where the result does not fit

    def plan(self, problem: Problem) -> Plan:
        batch = self.batch(problem)
        columns, rows = per_example(problem.source_sizes, batch), per_example(problem.output_sizes, batch)
        mode = self.mode
        if mode == "auto":
            mode = "forward" if sum(columns) < sum(rows) and Needs.TANGENTS not in problem.facts.gaps else "reverse"
        if mode == "forward":
            problem.require_right(Needs.TANGENTS)
        pairs = zip(columns, problem.source_dtypes, strict=True)
        result = batch * sum(rows) * sum(size * dtype.size for size, dtype in pairs)
        passes = sum(columns) if mode == "forward" else max(rows)
        outputs, sources = (", ".join(map(str, shapes)) for shapes in (problem.returned.shapes, problem.source_shapes))
        chunk, needed = rows_at_once(
            what=self.name,
            shapes=f"results of shape {outputs} by sources of shape {sources}",
            result=2 * result,  # columns are transposed, chunks are joined, blocks are rearranged by example
            rows=passes,
            per_row=2 * problem.facts.largest,
            advice=self.advice,
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return Plan(mode, passes, chunk, needed)

    def batch(self, problem: Problem) -> int:
        """Return how many independent examples there are."""
        return 1

    def compute(self, problem: Problem, plan: Plan, how: str, tensors: Tensors) -> list[tf.Tensor]:
        """Return the derivative, a flat list of tensors."""
        raise NotImplementedError

    def shaped(
        self, problem: Problem, jacobians: Sequence[Tensors], shapes: Sequence[tuple[int, ...]]
    ) -> list[tf.Tensor]:
        """Return the Jacobian of each result by each source, of the result's shape and one of these for the source."""
        return [
            tf.reshape(jacobian, [*shape, *source])
            for shape, row in zip(problem.returned.shapes, jacobians, strict=True)
            for source, jacobian in zip(shapes, row, strict=True)
        ]

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        return row_ways(f"{plan.mode} mode, rows", partial(self.compute, problem, plan), plan.chunk)

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        return problem.structured_outputs(problem.structured_rows(outputs))


class _Jacobian(JacobianRecipe):
    name = "jacobian"
    advice = "jvp or vjp, which never build the matrix, or fewer sources"

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        elements = sum(problem.source_sizes) * sum(problem.output_sizes)
        return plan.mode == "reverse" and elements <= costs.XLA_JACOBIAN and not problem.facts.operations & LOOPS

    def compute(self, problem: Problem, plan: Plan, how: str, tensors: Tensors) -> list[tf.Tensor]:
        jacobians = (self._forward if plan.mode == "forward" else self._reverse)(problem, plan.chunk, how, tensors)
        return self.shaped(problem, jacobians, problem.source_shapes)

    def _reverse(self, problem: Problem, chunk: int | None, how: str, tensors: Tensors) -> list[list[tf.Tensor]]:
        tape, sources, outputs = recorded(problem, tensors, persistent=True)
        return [reverse_rows(tape, output, sources, problem.source_specs, how, chunk) for output in outputs]

    def _forward(self, problem: Problem, chunk: int | None, how: str, tensors: Tensors) -> list[list[tf.Tensor]]:
        sizes, dtypes = problem.source_sizes, problem.source_dtypes
        offsets = offsets_of(sizes)

        def tangents(index: int | tf.Tensor) -> list[tf.Tensor]:
            return unit_tangents(index, problem.source_shapes, dtypes, offsets)

        _, columns = forward_rows(problem, tensors, tangents, sum(sizes), how, chunk)
        return [
            [
                tf.cast(tf.transpose(part), dtype)
                for part, dtype in zip(tf.split(tf.reshape(column, [sum(sizes), size]), sizes), dtypes, strict=True)
            ]
            for column, size in zip(columns, problem.output_sizes, strict=True)
        ]
