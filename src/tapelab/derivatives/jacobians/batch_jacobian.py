"""The Jacobian of each example of a batch, and the check that examples do not depend on each other."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tapelab.derivatives.examples.chunks import data_by_example
from tapelab.derivatives.examples.independence import (
    COMPARED,
    LOOK_FOR,
    require_independent,
    require_values,
    tolerance_of,
    why_unproved,
)
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.jacobians.jacobian import (
    JacobianRecipe,
    check_mode,
    forward_rows,
    offsets_of,
    per_example,
    reverse_rows,
    unit_tangents,
)
from tapelab.derivatives.machinery.arguments.calling import options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks
from tapelab.derivatives.machinery.recipe import Way, with_value
from tapelab.derivatives.machinery.rows import VECTORIZED, map_rows
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.graphs.batch import Unproven
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import tf

import numpy as np


@options_by_keyword
def batch_jacobian(
    f: Callable,
    *,
    argnums: int | tuple[int, ...] = 0,
    check_independence: bool = True,
    mode: str = "auto",
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    return_value: bool = False,
    compile: str = "auto",
    unconnected: str = "error",
    check_finite: bool = False,
) -> Transform:
    """Return a function that computes the Jacobian of each example of a batch.

    For a batch of b examples that do not depend on each other, the Jacobian has b diagonal blocks and zeros. Only the
    blocks are computed, for the price of one example's Jacobian in passes.

    Args:
        f: takes and returns tensors whose first axis is the batch. Arguments that are not sources may have any shape.
        argnums: see `tapelab.derivatives`. There is no ``wrt``: variables have no batch axis; `jacobian` and
            `per_example_gradients` differentiate with respect to them.
        check_independence: whether to verify that examples do not depend on each other: by the function's graph, or
            where that does not prove it, with one more backward pass, and a note in the plan.
            It compares a vector-Jacobian product over the whole batch, for a random cotangent u, with each block's own
            product :math:`Jᵀu`, element by element and relative to :math:`|J|ᵀ|u|`, so that rounding is not taken for
            coupling.
        mode: as for `jacobian`.
        chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

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
    check_chunks(memory_limit, chunk_size=chunk_size)
    options: dict[str, Any] = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    recipe = _BatchJacobian(check_independence, mode, chunk_size, memory_limit)
    return transform(f, with_value(recipe, return_value), argnums=argnums, wrt=None, **options)


class _BatchJacobian(JacobianRecipe):
    name = "batch_jacobian"
    advice = "jvp or vjp, which never build the matrices, or a smaller batch"

    def __init__(self, check_independence, *options):
        super().__init__(*options)
        self.check_independence = check_independence

    def batch(self, problem):
        labels = problem.source_names + problem.output_names
        shapes = problem.source_shapes + problem.output_shapes
        batch = shapes[0][0] if shapes[0] else None
        if batch is None or any(shape[:1] != (batch,) for shape in shapes):
            found = ", ".join(f"{label} {shape}" for label, shape in zip(labels, shapes, strict=True))
            raise ValueError(
                f"{problem.name}: sources and results need one batch axis, first and of one size; these are {found}. "
                "For anything else use jacobian"
            )
        return batch

    def prefers_xla(self, problem, plan):
        return plan.mode == "reverse" and not problem.operations & LOOPS

    def ways(self, problem, plan):
        ways = super().ways(problem, plan)
        batch = problem.source_shapes[0][0]
        shared = all(shape[:1] != (batch,) for shape in problem.data_shapes)
        whole = not self.chunk_size and plan.chunk == plan.passes
        same = problem.repeatable and self.check_independence
        if same and whole and shared and self.prefers_xla(problem, plan):
            # The check over the whole batch finds out if the function is another one on a batch of one.
            examples = partial(self._finish, problem, self._examples, alone=True)
            ways.insert(0, Way("reverse mode, examples, vectorised", examples, shortcut=True, chunk=plan.passes))
        return ways

    def accepts(self, problem, outputs):
        return (
            not self._is_compared(problem, outputs)
            or not (self._coupled(problem, outputs) > tolerance_of(problem)).any()
        )

    def compute(self, problem, plan, how, tensors):
        method = self._forward if plan.mode == "forward" else self._reverse
        return self._finish(problem, partial(method, chunk=plan.chunk, how=how), tensors)

    def _finish(self, problem, method, tensors, *, alone=False):
        """Compute (batch, result's elements, source's elements) for each result and source; shape and check them.

        Args:
            alone: whether the function is evaluated on batches of one: it may be another one there.
        """
        batch = problem.source_shapes[0][0]
        recording, jacobians = method(problem, batch, tensors)
        flat = [
            tf.reshape(jacobian, [*shape, *source[1:]])
            for shape, row in zip(problem.output_shapes, jacobians, strict=True)
            for source, jacobian in zip(problem.source_shapes, row, strict=True)
        ]
        compared = self.check_independence and self._is_to_compare(problem, alone)
        return [*flat, *self._check(problem, batch, jacobians, recording)] if compared else flat

    def _is_to_compare(self, problem, alone):
        """Whether to compare examples at every call, as a proof fails; the plan says why."""
        why = why_unproved(problem)
        if why is None and problem.custom_gradients:
            why = "a custom gradient, whose backward pass is not looked at"
        if why is None and alone and problem.source_shapes[0][0] > 1:
            try:
                data_by_example(problem, [1])
            except Unproven as reason:
                why = f"batches of one: {reason}"
        if why is not None:
            problem.note(COMPARED.format(why))
        return why is not None

    def _is_compared(self, problem, outputs):
        return len(outputs) > len(problem.output_names) * len(problem.source_names)

    def _examples(self, problem, batch, tensors):
        """Map over examples, and within each over its rows: the axes come out in their order, and stay small."""
        specs = [tf.TensorSpec([1, *spec.shape[1:]], spec.dtype) for spec in problem.source_specs]
        shapes = [(1, *shape[1:]) for shape in problem.output_shapes]
        sizes = per_example(problem.output_sizes, batch)

        def example(index):
            own = [tf.gather(tensor, [index]) for tensor in tensors[: problem.data_start]]
            tape, sources, outputs = recorded(problem, [*own, *tensors[problem.data_start :]], persistent=True)
            if [tuple(output.shape) for output in outputs] != shapes:
                raise ValueError("on a batch of one, the function returns other shapes than a batch of one")
            rows = [reverse_rows(tape, output, sources, specs, VECTORIZED) for output in outputs]
            return [tf.reshape(part, [part.shape[0], -1]) for row in rows for part in row]

        rows = [(rows, columns) for rows in sizes for columns in per_example(problem.source_sizes, batch)]
        flat = iter(map_rows(example, [tf.TensorSpec(shape) for shape in rows], batch, VECTORIZED))
        return recorded(problem, tensors), [[next(flat) for _ in specs] for _ in shapes]

    def _reverse(self, problem, batch, tensors, *, chunk, how):
        tape, sources, outputs = recorded(problem, tensors, persistent=True)
        jacobians = []
        for output, rows in zip(outputs, per_example(problem.output_sizes, batch), strict=True):

            def row(index, output=output, rows=rows):
                seed = tf.broadcast_to(tf.one_hot(index, rows, dtype=output.dtype), [batch, rows])
                return dense_gradient(tape, output, sources, tf.reshape(seed, output.shape))

            stacked = map_rows(row, problem.source_specs, rows, how, chunk)
            jacobians.append([_examples_first(part, rows, batch) for part in stacked])
        return (tape, sources, outputs), jacobians

    def _forward(self, problem, batch, tensors, *, chunk, how):
        columns = per_example(problem.source_sizes, batch)
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
            for column, rows in zip(stacked, per_example(problem.output_sizes, batch), strict=True)
        ]

    def _check(self, problem, batch, jacobians, recording):
        """Compare a product over the whole batch with the examples' own products.

        Returns:
            For each source, by how much the two differ, shape (batch, elements); for each source, what else its
            tolerance has to allow for, shape (sources,); and whether no example is coupled for certain. That is so
            where the differences are small relative to |Jᵀu|, which is never larger than |J|ᵀ|u| and costs less.
        """
        tape, sources, outputs = recording
        cotangents = _cotangents(problem)
        products = dense_gradient(tape, outputs, sources, cotangents)
        # Where everything cancels, as in sin² + cos², block and product are rounding error of about this size.
        largest = tf.add_n([_largest(output) for output in outputs])
        floors = [largest / tf.maximum(_largest(source), 1) for source in sources]
        differences, settled = [], []
        for index, (product, floor) in enumerate(zip(products, floors, strict=True)):
            own = _by_example(problem, batch, [row[index] for row in jacobians], cotangents, product.dtype)
            differences.append(tf.abs(tf.reshape(product, own.shape) - own))
            settled.append(_relative(problem, differences[-1], tf.abs(own), floor) <= tolerance_of(problem))
        return [*differences, tf.stack(floors), tf.reduce_all(settled)]

    def _coupled(self, problem, outputs):
        """Return for each example its largest relative difference: NaN, which says nothing, counts as none."""
        count = len(problem.source_names)
        *flat, floors, settled = outputs
        batch = problem.source_shapes[0][0]
        if settled.numpy():
            return np.zeros(batch)
        differences = flat[-count:]
        cotangents = [tf.abs(u) for u in _cotangents(problem)]
        relative = np.zeros(batch)
        for index, (difference, floor) in enumerate(zip(differences, floors, strict=True)):
            blocks = flat[index : count * len(problem.output_names) : count]
            rows = [
                tf.reshape(tf.abs(block), [batch, size, difference.shape[1]])
                for block, size in zip(blocks, per_example(problem.output_sizes, batch), strict=True)
            ]
            scale = _by_example(problem, batch, rows, cotangents, difference.dtype)
            # NaN compares as not coupled: it says nothing.
            relative = np.fmax(relative, _relative(problem, difference, scale, floor).numpy())
        return relative

    def result(self, problem, outputs):
        if not self._is_compared(problem, outputs):
            return super().result(problem, outputs)
        require_values(problem, "whether examples depend on each other is seen from products")
        relative, tolerance = self._coupled(problem, outputs), tolerance_of(problem)
        require_independent(
            problem,
            relative > tolerance,
            lambda first: (
                "its share of a product over the whole batch differs from its own Jacobian's by "
                f"{relative[first]:.2g}, relative to |J|ᵀ|u|, and rounding explains {tolerance:.1g}"
            ),
            f"{LOOK_FOR}; use jacobian for all of it, or check_independence=False for its sum over a batch axis",
            more=", or they on it",
        )
        return super().result(problem, outputs[: len(problem.output_names) * len(problem.source_names)])


def _cotangents(problem):
    """The same random cotangents every time."""
    generator = np.random.default_rng(0)
    pairs = zip(problem.output_shapes, problem.output_dtypes, strict=True)
    return [tf.constant(generator.standard_normal(shape), dtype) for shape, dtype in pairs]


def _by_example(problem, batch, rows, cotangents, dtype):
    """Multiply each example's blocks, (batch, result's elements, source's elements) each, by its cotangents."""
    return tf.add_n(
        [
            tf.linalg.matvec(row, tf.cast(tf.reshape(u, [batch, size]), dtype), transpose_a=True)
            for row, u, size in zip(rows, cotangents, per_example(problem.output_sizes, batch), strict=True)
        ]
    )


def _relative(problem, difference, scale, floor):
    """For each example, its largest difference relative to a scale, both of shape (batch, elements).

    Rounding in an element is about that of its example's largest: there, and at the floor, it is allowed to be a
    hundred times what one operation leaves, but no more than a tenth, which in bfloat16 is a dozen times.
    """
    tolerance = tolerance_of(problem)
    rounding = min(100 * tolerance, 0.1 / tolerance)
    difference, scale = tf.cast(difference, tf.float64), tf.cast(scale, tf.float64)
    largest = tf.reduce_max(scale, axis=1, keepdims=True)
    scale += rounding * (largest + floor) + np.finfo(np.float64).tiny
    return tf.maximum(tf.reduce_max(difference / scale, axis=1), 0)


def _largest(tensor):
    """The largest finite magnitude, 0 where there is none."""
    sizes = tf.where(tf.math.is_finite(tensor), tf.abs(tensor), 0)
    return tf.maximum(tf.cast(tf.reduce_max(sizes), tf.float64), 0)


def _examples_first(rows, count, batch):
    """(count, batch, *shape) to (batch, count, elements)."""
    return tf.transpose(tf.reshape(rows, [count, batch, rows.shape.num_elements() // max(count * batch, 1)]), [1, 0, 2])
