"""Jacobians: by rows (reverse mode) or by columns (forward mode), and what both kinds of Jacobian share."""

import math
from functools import partial
from typing import NamedTuple

from tapelab.derivatives.first_order import dense_gradient, linearized, recorded
from tapelab.derivatives.memory import rows_at_once
from tapelab.derivatives.problem import LOOPS
from tapelab.derivatives.rows import EAGER, LOOP, VECTORIZED, map_rows
from tapelab.derivatives.transform import Recipe, Way, check_chunks, transform
from tapelab.runtime import tf

import numpy as np

_MODES = ("auto", "forward", "reverse")


def jacobian(
    f,
    *,
    wrt=None,
    argnums=0,
    mode="auto",
    chunk_size=None,
    memory_limit=None,
    compile="auto",
    unconnected="error",
    check_finite=False,
):
    """Return a function that computes the Jacobian of f.

    Args:
        f: returns a tensor or nested tensors.
        mode: "reverse" takes a backward pass for each element of the result, "forward" a forward pass for each element
            of the sources; "auto" takes the mode with fewer.
        chunk_size: how many of those passes to make at once; by default as many as fit the memory limit.
        memory_limit: bytes; by default the one of `set_memory_limit`.
        wrt, argnums, compile, unconnected, check_finite: as for `value_and_gradient`.

    Returns:
        A function of f's arguments. It returns the result's structure, and in it for each tensor the sources'
        structure, with tensors of the result's shape followed by the source's, of the source's dtype.

    Raises:
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `value_and_gradient`.
    """
    check_mode(mode)
    check_chunks(chunk_size, memory_limit)
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return transform(f, _Jacobian(mode, chunk_size, memory_limit), argnums=argnums, wrt=wrt, **options)


class Plan(NamedTuple):
    """How a Jacobian is computed: the mode, how many passes it takes, and how many are made at once."""

    mode: str
    passes: int
    chunk: int


def check_mode(mode):
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; expected one of {', '.join(map(repr, _MODES))}")


def choose_mode(mode, columns, rows):
    if mode == "auto":
        return "forward" if columns < rows else "reverse"
    return mode


def row_ways(recipe, problem, plan):
    return [
        Way(f"{plan.mode} mode, {how} rows", partial(recipe.compute, problem, plan, how), eager=how == EAGER)
        for how in (VECTORIZED, LOOP, EAGER)
    ]


def reverse_rows(tape, target, sources, specs, how, chunk=None):
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

    def row(index):
        seed = tf.reshape(tf.one_hot(index, size, dtype=target.dtype), target.shape)
        return dense_gradient(tape, target, sources, seed)

    return map_rows(row, specs, size, how, chunk)


def forward_rows(problem, tensors, tangents, count, how, chunk=None):
    """Compute Jacobian-vector products for ``tangents(0)``, …, ``tangents(count - 1)``, lists of one tensor per source.

    Returns:
        What `recorded` does, and a list with a tensor of shape (count, *output's shape) for each output.
    """
    recording, push = linearized(problem, tensors, persistent=True)
    pairs = zip(problem.output_shapes, problem.output_dtypes, strict=True)
    specs = [tf.TensorSpec(shape, dtype) for shape, dtype in pairs]
    return recording, map_rows(lambda index: push(tangents(index)), specs, count, how, chunk)


def unit_tangents(index, shapes, dtypes, offsets):
    """A tangent for each source: all zero, but for the element number ``index`` of all of them together."""
    return [
        tf.reshape(tf.one_hot(index - offset, math.prod(shape), dtype=dtype), shape)
        for shape, dtype, offset in zip(shapes, dtypes, offsets, strict=True)
    ]


def offsets_of(sizes):
    return [0, *np.cumsum(sizes[:-1]).tolist()]


class _Jacobian(Recipe):
    name = "jacobian"

    def __init__(self, mode, chunk_size, memory_limit):
        self.mode = mode
        self.chunk_size = chunk_size
        self.memory_limit = memory_limit

    def plan(self, problem):
        columns, rows = sum(problem.source_sizes), sum(problem.output_sizes)
        mode = choose_mode(self.mode, columns, rows)
        pairs = zip(problem.source_sizes, problem.source_dtypes, strict=True)
        result = rows * sum(size * dtype.size for size, dtype in pairs)
        passes = columns if mode == "forward" else max(problem.output_sizes)
        chunk = rows_at_once(
            what="jacobian",
            shapes=shapes_of(problem),
            result=2 * result,  # forward mode's columns are transposed; chunks are joined
            rows=passes,
            per_row=2 * problem.largest,
            advice="jvp or vjp, which never build the matrix, or fewer sources",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return Plan(mode, passes, chunk)

    def prefers_xla(self, problem, plan):
        # XLA saves the start of each operation, which counts while they are small; its forward mode is slower.
        elements = sum(problem.source_sizes) * sum(problem.output_sizes)
        return plan.mode == "reverse" and elements <= 1_000_000 and not problem.operations & LOOPS

    def ways(self, problem, plan):
        return row_ways(self, problem, plan)

    def compute(self, problem, plan, how, tensors):
        jacobians = (self._forward if plan.mode == "forward" else self._reverse)(problem, plan.chunk, how, tensors)
        return [
            tf.reshape(jacobian, [*shape, *source])
            for shape, row in zip(problem.output_shapes, jacobians, strict=True)
            for source, jacobian in zip(problem.source_shapes, row, strict=True)
        ]

    def _reverse(self, problem, chunk, how, tensors):
        tape, sources, outputs = recorded(problem, tensors, persistent=True)
        return [reverse_rows(tape, output, sources, problem.source_specs, how, chunk) for output in outputs]

    def _forward(self, problem, chunk, how, tensors):
        sizes, dtypes = problem.source_sizes, problem.source_dtypes
        offsets = offsets_of(sizes)

        def tangents(index):
            return unit_tangents(index, problem.source_shapes, dtypes, offsets)

        _, columns = forward_rows(problem, tensors, tangents, sum(sizes), how, chunk)
        return [
            [
                tf.cast(tf.transpose(part), dtype)
                for part, dtype in zip(tf.split(tf.reshape(column, [sum(sizes), size]), sizes), dtypes, strict=True)
            ]
            for column, size in zip(columns, problem.output_sizes, strict=True)
        ]

    def result(self, problem, plan, outputs):
        return by_output(problem, outputs)


def by_output(problem, flat):
    count = len(problem.source_names)
    starts = range(0, count * len(problem.output_names), count)
    return problem.structured_outputs([problem.structured(flat[start : start + count]) for start in starts])


def shapes_of(problem):
    outputs, sources = (", ".join(map(str, shapes)) for shapes in (problem.output_shapes, problem.source_shapes))
    return f"results of shape {outputs} by sources of shape {sources}"
