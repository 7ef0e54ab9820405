"""Jacobians: by rows (reverse mode) or by columns (forward mode), whole or for each example of a batch."""

import math
from functools import partial
from typing import NamedTuple

from tapelab.derivatives.errors import CoupledExamplesError
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
    _check_mode(mode)
    check_chunks(chunk_size, memory_limit)
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return transform(f, _Jacobian(mode, chunk_size, memory_limit), argnums=argnums, wrt=wrt, **options)


def batch_jacobian(
    f,
    *,
    argnums=0,
    check_independence=True,
    mode="auto",
    chunk_size=None,
    memory_limit=None,
    compile="auto",
    unconnected="error",
    check_finite=False,
):
    """Return a function that computes the Jacobian of each example of a batch.

    For a batch of b examples that do not depend on each other, the Jacobian has b diagonal blocks and zeros. Only the
    blocks are computed, for the price of one example's Jacobian in passes.

    Args:
        f: takes and returns tensors whose first axis is the batch. Arguments that are not sources may have any shape.
        argnums: the position of the argument to differentiate with respect to, or a tuple of them.
        check_independence: whether to verify that examples do not depend on each other, with one more backward pass.
            It compares a vector-Jacobian product over the whole batch, for a random cotangent, with the blocks' own.
        mode, chunk_size, memory_limit, compile, unconnected, check_finite: as for `jacobian`.

    Returns:
        A function of f's arguments. It returns the result's structure, and in it for each tensor the sources'
        structure, with tensors of shape (batch, result's other axes, source's other axes).
        Unchecked, and for examples that do depend on each other, reverse mode gives the whole Jacobian summed over the
        batch axis of the result, and forward mode gives it summed over the batch axis of the source.

    Raises:
        CoupledExamplesError: when called, if examples depend on each other; names the first, and how much.
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `jacobian`; also if there is no common batch axis.
    """
    _check_mode(mode)
    check_chunks(chunk_size, memory_limit)
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    recipe = _BatchJacobian(check_independence, mode, chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, wrt=None, **options)


class Plan(NamedTuple):
    """How a Jacobian is computed: the mode, how many passes it takes, and how many are made at once."""

    mode: str
    passes: int
    chunk: int


def _check_mode(mode):
    if mode not in _MODES:
        raise ValueError(f"mode is {mode!r}; expected one of {', '.join(map(repr, _MODES))}")


def _choose_mode(mode, columns, rows):
    if mode == "auto":
        return "forward" if columns < rows else "reverse"
    return mode


def _ways(recipe, problem, plan):
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


def _unit_tangents(index, shapes, dtypes, offsets):
    """A tangent for each source: all zero, but for the element number ``index`` of all of them together."""
    return [
        tf.reshape(tf.one_hot(index - offset, math.prod(shape), dtype=dtype), shape)
        for shape, dtype, offset in zip(shapes, dtypes, offsets, strict=True)
    ]


def _offsets(sizes):
    return [0, *np.cumsum(sizes[:-1]).tolist()]


class _Jacobian(Recipe):
    name = "jacobian"

    def __init__(self, mode, chunk_size, memory_limit):
        self.mode = mode
        self.chunk_size = chunk_size
        self.memory_limit = memory_limit

    def plan(self, problem):
        columns, rows = sum(problem.source_sizes), sum(problem.output_sizes)
        mode = _choose_mode(self.mode, columns, rows)
        pairs = zip(problem.source_sizes, problem.source_dtypes, strict=True)
        result = rows * sum(size * dtype.size for size, dtype in pairs)
        passes = columns if mode == "forward" else max(problem.output_sizes)
        chunk = rows_at_once(
            what="jacobian",
            shapes=_shapes(problem),
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
        return _ways(self, problem, plan)

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
        offsets = _offsets(sizes)

        def tangents(index):
            return _unit_tangents(index, problem.source_shapes, dtypes, offsets)

        _, columns = forward_rows(problem, tensors, tangents, sum(sizes), how, chunk)
        return [
            [
                tf.cast(tf.transpose(part), dtype)
                for part, dtype in zip(tf.split(tf.reshape(column, [sum(sizes), size]), sizes), dtypes, strict=True)
            ]
            for column, size in zip(columns, problem.output_sizes, strict=True)
        ]

    def result(self, problem, plan, outputs):
        return _by_output(problem, outputs)


class _BatchJacobian(Recipe):
    name = "batch_jacobian"

    def __init__(self, check_independence, mode, chunk_size, memory_limit):
        self.check_independence = check_independence
        self.mode = mode
        self.chunk_size = chunk_size
        self.memory_limit = memory_limit

    def plan(self, problem):
        labels = problem.source_names + problem.output_names
        shapes = problem.source_shapes + problem.output_shapes
        batch = shapes[0][0] if shapes[0] else None
        if batch is None or any(shape[:1] != (batch,) for shape in shapes):
            found = ", ".join(f"{label} {shape}" for label, shape in zip(labels, shapes, strict=True))
            raise ValueError(
                f"{problem.name}: sources and results need one batch axis, first and of one size; these are {found}. "
                "For anything else use jacobian"
            )
        columns, rows = _per_example(problem.source_sizes, batch), _per_example(problem.output_sizes, batch)
        mode = _choose_mode(self.mode, sum(columns), sum(rows))
        pairs = zip(columns, problem.source_dtypes, strict=True)
        result = batch * sum(rows) * sum(size * dtype.size for size, dtype in pairs)
        passes = sum(columns) if mode == "forward" else max(rows)
        chunk = rows_at_once(
            what="batch_jacobian",
            shapes=_shapes(problem),
            result=2 * result,  # the rows, and the examples' blocks that they are rearranged into
            rows=passes,
            per_row=2 * problem.largest,
            advice="jvp or vjp, which never build the matrices, or a smaller batch",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return Plan(mode, passes, chunk)

    def prefers_xla(self, problem, plan):
        return not problem.operations & LOOPS

    def ways(self, problem, plan):
        ways = _ways(self, problem, plan)
        batch = problem.source_shapes[0][0]
        shared = all(shape[:1] != (batch,) for shape in problem.data_shapes)
        if self.check_independence and plan.mode == "reverse" and shared and problem.repeatable and self._whole(plan):
            # The check over the whole batch finds out if the function is another one on a batch of one.
            examples = partial(self._finish, problem, self._examples)
            ways.insert(0, Way("reverse mode, vectorised examples", examples, shortcut=True))
        return ways

    def _whole(self, plan):
        return not self.chunk_size and plan.chunk == plan.passes

    def accepts(self, problem, outputs):
        return not _coupled(problem, outputs[-1]).size

    def compute(self, problem, plan, how, tensors):
        method = self._forward if plan.mode == "forward" else self._reverse
        return self._finish(problem, partial(method, chunk=plan.chunk, how=how), tensors)

    def _finish(self, problem, method, tensors):
        """Compute (batch, result's elements, source's elements) for each result and source; shape and check them."""
        batch = problem.source_shapes[0][0]
        recording, jacobians = method(problem, batch, tensors)
        flat = [
            tf.reshape(jacobian, [*shape, *source[1:]])
            for shape, row in zip(problem.output_shapes, jacobians, strict=True)
            for source, jacobian in zip(problem.source_shapes, row, strict=True)
        ]
        return [*flat, self._coupling(problem, batch, jacobians, recording)] if self.check_independence else flat

    def _examples(self, problem, batch, tensors):
        """Map over examples, and within each over its rows: the axes come out in their order, and stay small."""
        specs = [tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) for spec in problem.source_specs]
        shapes = [(1, *shape[1:]) for shape in problem.output_shapes]
        sizes = _per_example(problem.output_sizes, batch)

        def example(index):
            own = [tf.gather(tensor, [index]) for tensor in tensors[: problem.data_start]]
            tape, sources, outputs = recorded(problem, [*own, *tensors[problem.data_start :]], persistent=True)
            if [tuple(output.shape) for output in outputs] != shapes:
                raise ValueError("on a batch of one, the function returns other shapes than a batch of one")
            rows = [reverse_rows(tape, output, sources, specs, VECTORIZED) for output in outputs]
            return [tf.reshape(part, [part.shape[0], -1]) for row in rows for part in row]

        rows = [(rows, columns) for rows in sizes for columns in _per_example(problem.source_sizes, batch)]
        flat = iter(map_rows(example, [tf.TensorSpec(shape) for shape in rows], batch, VECTORIZED))
        return recorded(problem, tensors), [[next(flat) for _ in specs] for _ in shapes]

    def _reverse(self, problem, batch, tensors, *, chunk, how):
        tape, sources, outputs = recorded(problem, tensors, persistent=True)
        jacobians = []
        for output, rows in zip(outputs, _per_example(problem.output_sizes, batch), strict=True):

            def row(index, output=output, rows=rows):
                seed = tf.broadcast_to(tf.one_hot(index, rows, dtype=output.dtype), [batch, rows])
                return dense_gradient(tape, output, sources, tf.reshape(seed, output.shape))

            stacked = map_rows(row, problem.source_specs, rows, how, chunk)
            jacobians.append([_examples_first(part, rows, batch) for part in stacked])
        return (tape, sources, outputs), jacobians

    def _forward(self, problem, batch, tensors, *, chunk, how):
        columns = _per_example(problem.source_sizes, batch)
        offsets = _offsets(columns)
        shapes = [shape[1:] for shape in problem.source_shapes]

        def tangents(index):
            units = _unit_tangents(index, shapes, problem.source_dtypes, offsets)
            return [tf.broadcast_to(unit, shape) for unit, shape in zip(units, problem.source_shapes, strict=True)]

        recording, stacked = forward_rows(problem, tensors, tangents, sum(columns), how, chunk)
        return recording, [
            [
                tf.cast(tf.transpose(tf.reshape(part, [size, batch, rows]), [1, 2, 0]), dtype)
                for part, size, dtype in zip(tf.split(column, columns), columns, problem.source_dtypes, strict=True)
            ]
            for column, rows in zip(stacked, _per_example(problem.output_sizes, batch), strict=True)
        ]

    def _coupling(self, problem, batch, jacobians, recording):
        """For each example, how far its share of a product over the whole batch is from its own block's product.

        The difference is relative to the product of the norms, so that it is rounding error, and small, where examples
        are independent, even if the product itself cancels.
        """
        tape, sources, outputs = recording
        generator = np.random.default_rng(0)
        cotangents = [tf.constant(generator.standard_normal(output.shape), output.dtype) for output in outputs]
        products = dense_gradient(tape, outputs, sources, cotangents)
        sizes = _per_example(problem.output_sizes, batch)
        epsilon = _epsilon(problem)
        largest = tf.add_n([tf.cast(tf.reduce_max(tf.abs(output)), tf.float64) for output in outputs])
        worst = tf.zeros([batch], tf.float64)
        for index, product in enumerate(products):
            expected, scale = 0.0, 0.0
            for row, cotangent, size in zip(jacobians, cotangents, sizes, strict=True):
                u = tf.cast(tf.reshape(cotangent, [batch, size, 1]), product.dtype)
                expected += tf.reduce_sum(row[index] * u, axis=1)
                # By columns first, like the product: XLA then reads the Jacobian once for both.
                squares = tf.reduce_sum(tf.reduce_sum(row[index] ** 2, axis=1), axis=1)
                scale += tf.sqrt(squares * tf.reduce_sum(u**2, axis=[1, 2]))
            error = tf.reduce_max(tf.abs(tf.reshape(product, expected.shape) - expected), axis=1)
            # Where everything cancels, as in sin² + cos², block and product are rounding error of about this size.
            typical = tf.maximum(tf.cast(tf.reduce_max(tf.abs(sources[index])), tf.float64), 1)
            scale = tf.cast(scale, tf.float64) + 100 * epsilon**0.5 * largest / typical
            worst = tf.maximum(worst, tf.cast(error, tf.float64) / tf.maximum(scale, np.finfo(np.float64).tiny))
        return worst

    def result(self, problem, plan, outputs):
        if not self.check_independence:
            return _by_output(problem, outputs)
        *outputs, coupling = outputs
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"{problem.name}: the check for independence reads values, which a tf.function does not have. Call it "
                "outside once, then use check_independence=False inside"
            )
        coupled = _coupled(problem, coupling)
        if coupled.size:
            tolerance = _epsilon(problem) ** 0.5
            first = coupled[0]
            raise CoupledExamplesError(
                f"{problem.name}: example {first} depends on other examples, or they on it, as do {coupled.size} of "
                f"{coupling.shape[0]}: its share of a product over the whole batch differs from its own Jacobian's by "
                f"{coupling[first]:.2g} of that product's size, and rounding explains {tolerance:.1g}. Look for batch "
                "normalisation in training mode, or a mean or attention over the batch axis; use jacobian for all of it"
                ", or check_independence=False for its sum over a batch axis"
            )
        return _by_output(problem, outputs)


def _coupled(problem, coupling):
    """The numbers of the examples whose coupling rounding does not explain."""
    return np.flatnonzero(coupling.numpy() > _epsilon(problem) ** 0.5)


def _epsilon(problem):
    """The coarsest rounding among the dtypes of sources and results."""
    dtypes = {*problem.source_dtypes, *problem.output_dtypes}
    return max(float(tf.experimental.numpy.finfo(dtype.as_numpy_dtype).eps) for dtype in dtypes)


def _per_example(sizes, batch):
    return [size // batch if batch else 0 for size in sizes]


def _examples_first(rows, count, batch):
    """(count, batch, *shape) to (batch, count, elements)."""
    return tf.transpose(tf.reshape(rows, [count, batch, rows.shape.num_elements() // max(count * batch, 1)]), [1, 0, 2])


def _by_output(problem, flat):
    count = len(problem.source_names)
    starts = range(0, count * len(problem.output_names), count)
    return problem.structured_outputs([problem.structured(flat[start : start + count]) for start in starts])


def _shapes(problem):
    outputs, sources = (", ".join(map(str, shapes)) for shapes in (problem.output_shapes, problem.source_shapes))
    return f"results of shape {outputs} by sources of shape {sources}"
