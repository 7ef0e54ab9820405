"""The Jacobian of each example of a batch, and the check that examples do not depend on each other."""

from functools import partial

from tapelab.derivatives.errors import CoupledExamplesError
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.jacobians import (
    Plan,
    by_output,
    check_mode,
    choose_mode,
    forward_rows,
    offsets_of,
    reverse_rows,
    row_ways,
    shapes_of,
    unit_tangents,
)
from tapelab.derivatives.memory import rows_at_once
from tapelab.derivatives.problem import LOOPS
from tapelab.derivatives.rows import VECTORIZED, map_rows
from tapelab.derivatives.transform import Recipe, Way, check_chunks, transform
from tapelab.runtime import tf

import numpy as np


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
    check_mode(mode)
    check_chunks(chunk_size, memory_limit)
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    recipe = _BatchJacobian(check_independence, mode, chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, wrt=None, **options)


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
        mode = choose_mode(self.mode, sum(columns), sum(rows))
        pairs = zip(columns, problem.source_dtypes, strict=True)
        result = batch * sum(rows) * sum(size * dtype.size for size, dtype in pairs)
        passes = sum(columns) if mode == "forward" else max(rows)
        chunk = rows_at_once(
            what="batch_jacobian",
            shapes=shapes_of(problem),
            result=2 * result,  # the rows, and the examples' blocks that they are rearranged into
            rows=passes,
            per_row=2 * problem.largest,
            advice="jvp or vjp, which never build the matrices, or a smaller batch",
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )
        return Plan(mode, passes, chunk)

    def prefers_xla(self, problem, plan):
        return plan.mode == "reverse" and not problem.operations & LOOPS

    def ways(self, problem, plan):
        ways = row_ways(self, problem, plan)
        batch = problem.source_shapes[0][0]
        shared = all(shape[:1] != (batch,) for shape in problem.data_shapes)
        whole = not self.chunk_size and plan.chunk == plan.passes
        same = problem.repeatable and self.check_independence
        if same and whole and shared and self.prefers_xla(problem, plan):
            # The check over the whole batch finds out if the function is another one on a batch of one.
            examples = partial(self._finish, problem, self._examples)
            ways.insert(0, Way("reverse mode, vectorised examples", examples, shortcut=True))
        return ways

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
        offsets = offsets_of(columns)
        shapes = [shape[1:] for shape in problem.source_shapes]

        def tangents(index):
            units = unit_tangents(index, shapes, problem.source_dtypes, offsets)
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
            return by_output(problem, outputs)
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
        return by_output(problem, outputs)


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
