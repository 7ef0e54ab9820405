"""Jacobians, of a function and of each example of a batch: by rows in reverse mode or by columns in forward mode.

Rows are computed all at once by `tf.vectorized_map`, which has a rule for each operation. Whether the rules are right
here is not proved: one product with random numbers, by the plain tape, is compared at the first call of a signature.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.arguments import Argnums, ValueOptions, check_chunks, options_by_keyword, require_one_of
from tapelab.derivatives.costs import Plan, rows_at_once
from tapelab.derivatives.errors import CannotVectorizeError, told_line
from tapelab.derivatives.first_order import gradient, linearized
from tapelab.derivatives.traced import EAGER, LOOP, VECTORIZED, Call, Recording, dense, nested
from tapelab.derivatives.transform import Certificate, Computed, Recipe, Transform, transform
from tapelab.derivatives.wrong import Needs
from tapelab.graphs.operations import with_fact
from tapelab.process.tensorflow import GPUS, Tensors, tf

import numpy as np
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too

MODES = ("auto", "forward", "reverse")
_DIFFER = "the vectorised rows differ from a product by the plain tape"


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
    return transform(f, _Jacobian(mode, chunk_size, memory_limit), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def batch_jacobian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    mode: str = "auto",
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Jacobian of each example of a batch.

    For each b it is the Jacobian of f of the batch that holds example b alone. If f does not couple examples, these are
    the diagonal blocks of the whole Jacobian; if it does, `jacobian` has all of it.

    Args:
        f: takes and returns tensors whose first axis is the batch. Arguments that are not sources go along, row by row,
            where their first axis has the batch's size, and are the same for all where it has not.
        argnums: see `tapelab.derivatives`. There is no ``wrt``: variables have no batch axis; `jacobian` and
            `per_example_gradients` differentiate with respect to them.
        mode: as for `jacobian`.
        chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the result's structure, and in it for each tensor the sources'
        structure, with tensors of shape (batch, result's other axes, source's other axes).

    Raises:
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `jacobian`; also if there is no common batch axis.
    """
    require_one_of(MODES, mode=mode)
    check_chunks(memory_limit, chunk_size=chunk_size)
    return transform(f, _BatchJacobian(mode, chunk_size, memory_limit), argnums=argnums, **options)


# Rows --------------------------------------------------------------------------------------------------------------


def map_rows(
    row: Callable[[Any], list[tf.Tensor]],
    specs: Sequence[tf.TensorSpec],
    count: int | tf.Tensor,
    how: str,
    chunk: int | None = None,
) -> list[tf.Tensor]:
    """Call ``row(0)``, …, ``row(count - 1)`` and stack the results.

    Args:
        row: takes an integer, a scalar tensor but where ``how`` is EAGER; returns a list of tensors.
        specs: the `tf.TensorSpec` of each of those tensors.
        count: how many, at least 0.
        how: VECTORIZED, one operation for all rows at once; LOOP, one by one in a graph; EAGER, in Python.
        chunk: how many rows are vectorised at once; None for all.

    Raises:
        CannotVectorizeError: if an operation is not known to `tf.vectorized_map`.
    """
    if isinstance(count, int) and count == 0:
        return [tf.zeros([0, *spec.shape], spec.dtype) for spec in specs]
    if how == EAGER:
        return [tf.stack(parts) for parts in zip(*[row(index) for index in range(int(count))], strict=True)]
    if how == LOOP:
        return _loop(row, specs, tf.range(count))
    if chunk is None or not isinstance(count, int) or chunk >= count:
        return vectorized(row, tf.range(count))
    whole = count // chunk
    batches = [tf.TensorSpec([chunk, *spec.shape], spec.dtype) for spec in specs]
    stacked = _loop(lambda start: vectorized(row, start + tf.range(chunk)), batches, chunk * tf.range(whole))
    stacked = [tf.reshape(part, [whole * chunk, *spec.shape]) for part, spec in zip(stacked, specs, strict=True)]
    if whole * chunk == count:
        return stacked
    rest = vectorized(row, tf.range(whole * chunk, count))
    return [tf.concat(both, axis=0) for both in zip(stacked, rest, strict=True)]


def vectorized(row: Callable[[Any], list[tf.Tensor]], indices: tf.Tensor) -> list[tf.Tensor]:
    """Map a function over indices, all at once; TensorFlow's own fallback is a loop that nobody is told of."""
    traced: list[bool] = []

    @tf.autograph.experimental.do_not_convert
    def once(index: tf.Tensor) -> list[tf.Tensor]:
        found = row(index)
        traced.append(True)
        return found

    try:
        return tf.vectorized_map(once, indices, fallback_to_while_loop=False)
    except Exception as error:  # it has no one type for "this operation cannot do that"
        if not traced:  # what the row itself raises
            raise
        raise CannotVectorizeError(told_line(error)) from error


def _loop(row: Callable[[Any], list[tf.Tensor]], specs: Sequence[tf.TensorSpec], indices: tf.Tensor) -> list[tf.Tensor]:
    scope = tf.compat.v1.get_variable_scope()
    before = scope.caching_device
    try:
        unconverted = tf.autograph.experimental.do_not_convert(row)
        return tf.map_fn(unconverted, indices, fn_output_signature=list(specs), parallel_iterations=1)
    finally:
        # `map_fn` sets this for its loop and forgets it where `row` raises; a distribution strategy then fails later.
        if scope.caching_device is not before:
            scope.set_caching_device(before)


def reverse_rows(
    tape: tf.GradientTape,
    target: tf.Tensor,
    sources: Sequence[Any],
    how: str,
    chunk: int | None = None,
) -> list[tf.Tensor]:
    """Return the Jacobian of one tensor by rows, from a persistent tape: for each source, (m, *source's shape)."""
    size = target.shape.num_elements()

    def row(index: Any) -> list[tf.Tensor]:
        seed = tf.reshape(tf.one_hot(index, size, dtype=target.dtype), target.shape)
        return dense(tape.gradient(target, sources, output_gradients=seed), sources)

    return map_rows(row, [tf.TensorSpec(source.shape, source.dtype) for source in sources], size, how, chunk)


def unit_tangents(index: Any, shapes: Sequence[Sequence[int]], dtypes: Sequence[tf.DType]) -> list[tf.Tensor]:
    """A tangent for each source: all zero, but for the element number ``index`` of all of them together."""
    units, offset = [], 0
    for shape, dtype in zip(shapes, dtypes, strict=True):
        size = math.prod(shape)
        units.append(tf.reshape(tf.one_hot(index - offset, size, dtype=dtype), shape))
        offset += size
    return units


def random_like(tensor: Any, seed: int) -> tf.Tensor:
    """Normal random numbers of a tensor's shape and dtype, the same at each call."""
    if tensor.shape.is_fully_defined():
        return tf.constant(np.random.default_rng(seed).standard_normal(tuple(tensor.shape)), tensor.dtype)
    return tf.cast(tf.random.stateless_normal(tf.shape(tensor), [0, seed]), tensor.dtype)


def agree(found: Sequence[tf.Tensor], sizes: Sequence[tf.Tensor], expected: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether tensors agree but for rounding: a scalar bool. What is NaN or infinite says nothing.

    Args:
        found, expected: the tensors.
        sizes: for each of them the sum of the magnitudes of what was added up in it, of its shape.
    """
    largest = [tf.reduce_max(tf.where(tf.math.is_finite(size), size, 0)) for size in sizes]
    overall = tf.reduce_max(tf.stack([tf.cast(one, tf.float64) for one in largest]))
    verdicts = []
    for one, size, most, other in zip(found, sizes, largest, expected, strict=True):
        error, scale = tf.abs(one - other), size + 0.01 * most + 1e-3 * tf.cast(overall, one.dtype)
        wrong = error > tf.cast(rounding(one.dtype), one.dtype) * scale
        verdicts.append(~tf.reduce_any(wrong & tf.math.is_finite(error) & tf.math.is_finite(scale)))
    return tf.reduce_all(tf.stack(verdicts))


def rounding(dtype: tf.DType) -> float:
    """How much rounding may change a sum, in proportion to the magnitudes of what is added up."""
    if dtype == tf.float32 and GPUS and tf.config.experimental.tensor_float_32_execution_enabled():
        return 0.03
    return float(finfo(dtype.as_numpy_dtype).eps) ** 0.5


# The Jacobian of a function ----------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Jacobian(Recipe):
    mode: str
    chunk_size: int | None
    memory_limit: int | None
    name = "jacobian"

    def compute(self, call: Call) -> Computed:
        recording = call.record(persistent=True)
        columns, rows = call.sizes, call.output_sizes
        plan = _planned(self, call, sum(columns), rows, 1, "jvp or vjp, which never build the matrix, or fewer sources")
        us = [random_like(output, seed) for seed, output in enumerate(recording.outputs)]
        products = gradient(recording, us)
        call.require_connected(products)
        if plan.mode == "forward":
            jacobians = _columns(call, plan.chunk, lambda: recording)
        else:
            jacobians = [reverse_rows(recording.tape, y, call.sources, call.how, plan.chunk) for y in recording.outputs]
        outputs = [
            tf.reshape(part, [*y.shape, *source.shape])
            for y, row in zip(recording.outputs, jacobians, strict=True)
            for source, part in zip(call.sources, row, strict=True)
        ]
        certificate = None
        if call.how == VECTORIZED:
            certificate = Certificate([*us, *dense(products, call.sources)], partial(products_agree, len(us)), _DIFFER)
        structure = nested(call.traced.description, call.signature.source_description)
        return Computed(outputs, structure, plan, certificate, recording.outputs)

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        elements = sum(call.sizes) * sum(call.output_sizes)
        return computed.plan.mode == "reverse" and elements <= costs.XLA_JACOBIAN


def _columns(call: Call, chunk: int | None, record: Callable[[], Recording]) -> list[list[tf.Tensor]]:
    """Return for each result and source the matrix of its derivatives, by forward mode."""
    recording, push = linearized(call, record)
    shapes = [tuple(source.shape) for source in recording.sources]
    sizes = [math.prod(shape) for shape in shapes]

    def column(index: Any) -> list[tf.Tensor]:
        return dense(push(unit_tangents(index, shapes, call.dtypes)), recording.outputs)

    specs = [tf.TensorSpec(output.shape, output.dtype) for output in recording.outputs]
    return [
        [
            tf.cast(tf.transpose(part), dtype)
            for part, dtype in zip(
                tf.split(tf.reshape(found, [sum(sizes), spec.shape.num_elements()]), sizes), call.dtypes, strict=True
            )
        ]
        for found, spec in zip(map_rows(column, specs, sum(sizes), call.how, chunk), specs, strict=True)
    ]


def products_agree(count: int, outputs: Tensors, expected: Tensors) -> tf.Tensor:
    """Whether u·J is the product of the plain tape, for each source; ``count`` is how many results there are."""
    us, products = [tf.reshape(u, [1, -1]) for u in expected[:count]], expected[count:]
    magnitudes, found, sizes = [tf.abs(u) for u in us], [], []
    for index, product in enumerate(products):
        size, own = product.shape.num_elements(), outputs[index :: len(products)]
        blocks = [tf.reshape(block, [u.shape[1], size]) for u, block in zip(us, own, strict=True)]
        parts = [tf.cast(u, block.dtype) @ block for u, block in zip(us, blocks, strict=True)]
        found.append(tf.reshape(tf.add_n(parts), [-1]))
        blocks = [tf.abs(block) for block in blocks]
        parts = [tf.cast(most, block.dtype) @ block for most, block in zip(magnitudes, blocks, strict=True)]
        sizes.append(tf.reshape(tf.add_n(parts), [-1]))
    return agree(found, sizes, [tf.reshape(product, [-1]) for product in products])


def _planned(
    recipe: "_Jacobian | _BatchJacobian", call: Call, columns: int, rows: Sequence[int], batch: int, advice: str
) -> Plan:
    """Choose the mode, and how many passes at once: ``columns`` and ``rows`` (of each result) are an example's."""
    mode, traced = recipe.mode, call.traced
    if mode == "auto":
        mode = "forward" if columns < sum(rows) and Needs.TANGENTS not in traced.reasons else "reverse"
    if mode == "forward":
        call.require(Needs.TANGENTS)
    item = max(dtype.size for dtype in call.dtypes)
    passes = columns if mode == "forward" else max(rows)
    chunk, needed = rows_at_once(
        what=recipe.name,
        shapes=f"results of shape {', '.join(map(str, traced.shapes))} by sources of shape "
        f"{', '.join(map(str, call.shapes))}",
        result=2 * batch * sum(rows) * columns * item,  # columns are transposed, chunks are joined
        rows=passes,
        per_row=2 * batch * traced.largest,
        advice=advice,
        chunk_size=recipe.chunk_size,
        limit=recipe.memory_limit,
    )
    return Plan(mode, passes, chunk, needed, way=f"{mode} mode, rows, {call.how}")


# Each example alone ------------------------------------------------------------------------------------------------


def alone(tensors: Tensors, index: Any) -> list[tf.Tensor]:
    """Return the batch that holds one example alone."""
    # The gradient of a gather is no dense tensor; that of a reshape is.
    return [tf.expand_dims(tf.gather(tf.reshape(tensor, tf.shape(tensor)), index), 0) for tensor in tensors]


def record_alone(call: Call, sources: Sequence[Any], data: Tensors, **options: Any) -> Recording:
    """Evaluate the function on a batch of one, as `Call.record` does.

    Raises:
        CannotVectorizeError: if it draws random numbers or changes variables: it then does so one by one. Also where
            an operation is known to be vectorised wrongly: one example shows nothing of another's branch.
        ValueError: if it raises on a batch of one; says what it may lack.
    """
    recording = call.record(sources=sources, data=data, single=True, **options)
    if call.how == VECTORIZED and not call.traced.repeatable:
        raise CannotVectorizeError(
            "the function draws random numbers, changes variables or calls Python: it is evaluated for one example "
            "after the other"
        )
    if call.how == VECTORIZED and (wrongly := call.traced.types & with_fact("mapped wrongly")):
        raise CannotVectorizeError(f"tf.vectorized_map computes {', '.join(sorted(wrongly))} otherwise than a loop")
    return recording


def any_example(batch: int | tf.Tensor) -> int | tf.Tensor:
    """The number of an example drawn at random, the same at each call."""
    if isinstance(batch, int):
        return int(np.random.default_rng(0).integers(max(batch, 1)))
    return tf.random.stateless_uniform([], [0, 0], 0, tf.maximum(batch, 1), tf.int32)


class Batch:
    """Sources with a batch axis, and the evaluations of a function on each example alone.

    The other arguments go along, row by row, where their first axis has the batch's size.
    """

    def __init__(self, call: Call):
        call.sizes  # noqa: B018 - raises unless sizes are known
        self.call = call
        self.size: int = call.shapes[0][0] if call.shapes[0].rank else 0

    def _batches_of_one(self, one: Callable[[Any], tf.Tensor], outer: tf.GradientTape | None = None) -> Recording:
        call = self.call
        goes = [bool(tensor.shape.rank) and tensor.shape[0] == self.size for tensor in call.data]
        data = [one(tensor) if own else tensor for tensor, own in zip(call.data, goes, strict=True)]
        sources = [one(source) if source.shape.rank else source for source in call.sources]
        return record_alone(call, sources, data, persistent=True, outer=outer)

    def example(self, index: Any, outer: tf.GradientTape | None = None) -> Recording:
        """Evaluate the function on the batch that holds one example alone, as `Call.record` does."""
        return self._batches_of_one(lambda tensor: alone([tensor], index)[0], outer)

    def of_zeros(self) -> Recording:
        """The same with zeros, where there is no example."""
        return self._batches_of_one(lambda tensor: tf.zeros([1, *tensor.shape[1:]], tensor.dtype))

    def require(self, shown: Recording, advice: str) -> None:
        """Raise ValueError unless sources and results have the examples along their first axis."""
        call = self.call
        sources = zip(call.signature.source_names, call.shapes, strict=True)
        found = [(name, shape, shape.rank and shape[0] == self.size) for name, shape in sources]
        outputs = zip(call.traced.names, [output.shape for output in shown.outputs], strict=True)
        found += [(f"{name} for one example", shape, shape.rank and shape[0] == 1) for name, shape in outputs]
        if not all(fits for _, _, fits in found):
            said = ", ".join(f"{name} {shape}" for name, shape, _ in found)
            raise ValueError(
                f"{call.name}: sources and results need one batch axis, first and of one size; these are {said}. "
                f"{advice}"
            )


@dataclass(eq=False)
class _BatchJacobian(Recipe):
    mode: str
    chunk_size: int | None
    memory_limit: int | None
    name = "batch_jacobian"

    def compute(self, call: Call) -> Computed:
        batch = Batch(call)
        shown = batch.example(any_example(batch.size)) if batch.size else batch.of_zeros()
        batch.require(shown, "For anything else use jacobian")
        rows = [output.shape.num_elements() for output in shown.outputs]
        columns = [source.shape.num_elements() for source in shown.sources]
        advice = "jvp or vjp, which never build the matrices, or a smaller batch"
        plan = _planned(self, call, sum(columns), rows, max(batch.size, 1), advice)
        us = [random_like(output, seed) for seed, output in enumerate(shown.outputs)]
        products = gradient(shown, us)
        call.require_connected(products)

        def row(index: Any) -> list[tf.Tensor]:
            if plan.mode == "forward":
                return [part for row in _columns(call, None, lambda: batch.example(index)) for part in row]
            recording = batch.example(index)
            found = [reverse_rows(recording.tape, y, recording.sources, call.how) for y in recording.outputs]
            return [tf.reshape(part, [part.shape[0], -1]) for one in found for part in one]

        specs = [tf.TensorSpec([m, n], dtype) for m in rows for n, dtype in zip(columns, call.dtypes, strict=True)]
        at_once = max(1, batch.size * plan.chunk // max(plan.passes, 1))
        outputs = [
            tf.reshape(part, [batch.size, *y.shape[1:], *source.shape[1:]])
            for part, (y, source) in zip(
                map_rows(row, specs, batch.size, call.how, at_once),
                itertools.product(shown.outputs, call.sources),
                strict=True,
            )
        ]
        certificate = None
        if call.how == VECTORIZED and batch.size:
            expected = [*us, *dense(products, shown.sources)]
            certificate = Certificate(expected, partial(_example_agrees, len(us), any_example(batch.size)), _DIFFER)
        structure = nested(call.traced.description, call.signature.source_description)
        return Computed(outputs, structure, plan, certificate)

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        return computed.plan.mode == "reverse"


def _example_agrees(count: int, index: int, outputs: Tensors, expected: Tensors) -> tf.Tensor:
    return products_agree(count, [output[index] for output in outputs], expected)
