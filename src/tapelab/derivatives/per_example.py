"""Gradients of each example's loss, their norms, and the sum of clipped ones: by definition those of batches of one."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.arguments import LEAF, Argnums, ValueOptions, check_chunks, options_by_keyword
from tapelab.derivatives.costs import Plan, counted, rows_at_once
from tapelab.derivatives.first_order import gradient
from tapelab.derivatives.jacobian import agree, alone, any_example, map_rows, record_alone
from tapelab.derivatives.traced import VECTORIZED, Call, Recording, dense, pair
from tapelab.derivatives.transform import Certificate, Computed, Recipe, Transform, transform
from tapelab.graphs.operations import EFFECTS, known
from tapelab.graphs.program import has_custom_gradient, inside, place
from tapelab.process.tensorflow import Tensors, tf

_DIFFER = "the examples' gradients, vectorised, differ from one by the plain tape"


@options_by_keyword
def per_example_gradients(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the gradient of each example's loss.

    For each b it is the gradient of f of the batch that holds example b alone. Whether these add up to the whole
    batch's gradient is another question: they do if f sums over examples that do not depend on each other, and not
    after batch normalisation in training, or a mean over some of the examples. Compare their sum with
    `value_and_gradient` to see. Examples that are computed at once are compared, one of them with the plain tape, at
    the first call of a signature.

    Args:
        f: takes the sources (unless they are variables) and tensors whose first axis is the batch; returns one loss for
            a batch of one, of shape () or (1,).
        wrt, argnums, batch_chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see
            `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the sources' structure, with tensors of shape (batch, *source's shape).

    Raises:
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `value_and_gradient`; also if there is no common batch axis, or if f
            raises on a batch of one: what has a row for each example has to be an argument.
    """
    check_chunks(memory_limit, batch_chunk_size=batch_chunk_size)
    return transform(f, _PerExample(batch_chunk_size, memory_limit), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def per_example_norms(
    f: Callable,
    *,
    wrt: Any,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the norm of the gradient of each example's loss.

    They are the norms of what `per_example_gradients` returns, computed chunk by chunk of examples: in memory are the
    gradients of one chunk.

    Args:
        f: takes tensors whose first axis is the batch; returns one loss for a batch of one, of shape () or (1,).
        wrt: variables, nested; the norm is over all of them together. There is no ``argnums``: the arguments are the
            batch; `per_example_gradients` has it.
        batch_chunk_size: how many examples at once.
        memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns a tensor of shape (batch,), of dtype float64 if a variable has it, and
        float32 otherwise.

    Raises:
        MemoryLimitError, ValueError, TypeError: when called, as `per_example_gradients`.
    """
    return _by_chunks(f, _Norms(batch_chunk_size, memory_limit), wrt, **options)


@options_by_keyword
def clipped_gradient(
    f: Callable,
    *,
    wrt: Any,
    max_norm: float,
    batch_chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the sum of the examples' gradients, each clipped to a norm.

    The gradient g of an example, on a batch of one, becomes g min(1, max_norm / |g|), the norm over all variables
    together: what differentially private training adds noise to (Abadi et al., "Deep learning with differential
    privacy", 2016). Examples are summed chunk by chunk: in memory are the gradients of one chunk.

    Args:
        max_norm: the largest norm, positive.
        f, wrt, batch_chunk_size, memory_limit: as for `per_example_norms`.
        return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns a pair: the sum of the clipped gradients in the sources' structure, and
        the norms before clipping, shape (batch,).

    Raises:
        MemoryLimitError, ValueError, TypeError: as for `per_example_norms`; at once if ``max_norm`` is not a positive
            number.
    """
    if isinstance(max_norm, bool) or not isinstance(max_norm, (int, float)) or not 0 < max_norm < math.inf:
        raise ValueError(f"max_norm is {max_norm!r}; expected a positive number, such as 1.0")
    recipe = _Norms(batch_chunk_size, memory_limit, float(max_norm), "clipped_gradient")
    return _by_chunks(f, recipe, wrt, **options)


def _by_chunks(f: Callable[..., Any], recipe: "_Norms", wrt: Any, **options: Any) -> Transform:
    check_chunks(recipe.memory_limit, batch_chunk_size=recipe.batch_chunk_size)
    if wrt is None:
        raise ValueError(
            f"{recipe.name}: wrt is None; expected variables, nested. To differentiate with respect to an argument, "
            "use per_example_gradients(f, argnums=…), and tf.norm of what it returns"
        )
    return transform(f, recipe, wrt=wrt, **options)


@dataclass(eq=False)
class _PerExample(Recipe):
    batch_chunk_size: int | None
    memory_limit: int | None
    name = "per_example_gradients"

    def compute(self, call: Call) -> Computed:
        batch, plain = _looked_at(call)
        result = sum((source.shape.num_elements() or 0) * source.dtype.size for source in call.sources)
        chunk, needed = _chunk(self, call, batch, result * (batch if isinstance(batch, int) else 0), 0)
        rows = map_rows(partial(_row, call), call.specs, batch, call.how, chunk)
        certificate = None
        if call.how == VECTORIZED and not _is_empty(batch):
            certificate = Certificate(plain, partial(_row_agrees, any_example(batch)), _DIFFER)
        count = batch if isinstance(batch, int) else 1
        plan = Plan("reverse", count, chunk or count, needed, f"reverse mode, examples, {call.how}")
        return Computed(rows, call.signature.source_description, plan, certificate)

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        return call.traced.types.isdisjoint(costs.SLOW_PER_EXAMPLE)


@dataclass(eq=False)
class _Norms(_PerExample):
    max_norm: float | None = None
    name: str = "per_example_norms"

    def compute(self, call: Call) -> Computed:
        batch, plain = _looked_at(call)
        own = sum(math.prod(source.shape) * source.dtype.size for source in call.sources)
        chunk, needed = _chunk(self, call, batch, own if self.max_norm else 0, 2 * own, costs.CLIPPED_EXAMPLES)
        dtype = tf.float64 if tf.float64 in call.dtypes else tf.float32
        sums = [tf.zeros(source.shape, dtype) for source in call.sources] if self.max_norm else []
        if _is_empty(batch):
            norms = tf.zeros([0], dtype)
        elif isinstance(batch, int) and chunk >= batch:
            norms, *sums = self._part(call, tf.range(batch), dtype)
        else:
            norms, *sums = self._loop(call, batch, chunk, dtype, sums)
        sums = [tf.cast(found, source.dtype) for found, source in zip(sums, call.sources, strict=bool(self.max_norm))]
        outputs = [*sums, norms]
        certificate = None
        if call.how == VECTORIZED and not _is_empty(batch):
            index = any_example(batch)
            some = map_rows(lambda i: _row(call, index + 0 * i), call.specs, 2, call.how)
            expected = [*plain, *some]
            certificate = Certificate(expected, partial(_norm_agrees, index, len(plain)), _DIFFER)
        structure = pair(call.signature.source_description, LEAF) if self.max_norm else LEAF
        count = batch if isinstance(batch, int) else 1
        way = f"reverse mode, {counted(min(chunk, count), 'example')} at a time, {call.how}"
        return Computed(outputs, structure, Plan("reverse", count, min(chunk, count), needed, way), certificate)

    def _part(self, call: Call, indices: tf.Tensor, dtype: tf.DType) -> list[tf.Tensor]:
        """Return the norms of these examples' gradients, and if they are clipped, for each source their sum."""
        count = indices.shape[0] if indices.shape[0] is not None else tf.size(indices)
        seen: list[list[int]] = []

        def row(index: Any) -> list[tf.Tensor]:
            factors = _factors(call, tf.gather(indices, index), norms=True)
            seen.append([len(parts) for parts in factors])
            return [part for parts in factors for part in parts]

        found = map_rows(row, call.specs, count, call.how)
        flat = iter([tf.reshape(tf.cast(part, dtype), [count, math.prod(part.shape[1:])]) for part in found])
        # For each source its gradients, or the two vectors whose products these are.
        gradients = [[next(flat) for _ in range(parts)] for parts in seen[-1]]
        # Scaled, each vector by itself, so that no square leaves the range of floats; an empty one has size 0.
        tops = [[tf.maximum(tf.reduce_max(tf.abs(part), 1), 0) for part in parts] for parts in gradients]
        sizes = [math.prod(own) for own in tops]
        scale = _or_one(tf.reduce_max(tf.stack(sizes), 0))
        units = [
            [part / _or_one(top)[:, tf.newaxis] for part, top in zip(parts, own, strict=True)]
            for parts, own in zip(gradients, tops, strict=True)
        ]
        for parts, size in zip(units, sizes, strict=True):
            parts[0] *= (size / scale)[:, tf.newaxis]
        lengths = tf.sqrt(tf.add_n([math.prod(tf.reduce_sum(part**2, 1) for part in parts) for parts in units]))
        norms = lengths * scale
        if self.max_norm is None:
            return [norms]
        weights = tf.where(norms <= self.max_norm, scale, self.max_norm / lengths)
        return [
            norms,
            *[
                tf.reshape(_weighted(weights, *parts), source.shape)
                for parts, source in zip(units, call.sources, strict=True)
            ],
        ]

    def _loop(self, call: Call, batch: int | tf.Tensor, chunk: int, dtype: tf.DType, sums: Tensors) -> list[tf.Tensor]:
        """Go through the examples chunk by chunk; the last one may be smaller."""
        whole = batch // chunk
        norms = tf.TensorArray(dtype, whole, element_shape=[chunk])

        def step(number: tf.Tensor, norms: tf.TensorArray, totals: list[tf.Tensor]) -> tuple:
            own, *parts = self._part(call, chunk * number + tf.range(chunk), dtype)
            return number + 1, norms.write(number, own), [a + b for a, b in zip(totals, parts, strict=True)]

        step = tf.autograph.experimental.do_not_convert(step)
        state = (tf.constant(0), norms, list(sums))
        _, norms, totals = tf.while_loop(lambda number, *_: number < whole, step, state, parallel_iterations=1)
        found = tf.reshape(norms.stack(), [whole * chunk])
        rest = tf.range(whole * chunk, batch)
        if isinstance(batch, int):
            if whole * chunk == batch:
                return [found, *totals]
            own, *parts = self._part(call, rest, dtype)
            return [tf.concat([found, own], 0), *[a + b for a, b in zip(totals, parts, strict=True)]]
        own, *parts = tf.cond(
            tf.size(rest) > 0,
            lambda: self._part(call, rest, dtype),
            lambda: [tf.zeros([0], dtype), *map(tf.zeros_like, totals)],
        )
        return [tf.concat([found, own], 0), *[a + b for a, b in zip(totals, parts, strict=True)]]


# Examples ----------------------------------------------------------------------------------------------------------


def _is_empty(batch: int | tf.Tensor) -> bool:
    return isinstance(batch, int) and batch == 0


def _looked_at(call: Call) -> tuple[int | tf.Tensor, list[tf.Tensor]]:
    """Return the number of examples, and the gradient of one of them by the plain tape, after checking both."""
    shapes = [tensor.shape for tensor in call.data]
    sizes = {shape[0] if shape.rank else -1 for shape in shapes}
    if not shapes or -1 in sizes or len(sizes - {None}) > 1:
        raise ValueError(
            f"{call.name}: the arguments that are not sources need one batch axis, first and of one size; their "
            f"shapes are {', '.join(map(str, shapes)) or 'none'}. Close over what has no batch axis"
        )
    batch = next(iter(sizes - {None}), None)
    if batch is None:
        batch = tf.shape(call.data[0])[0]
    if _is_empty(batch):
        data = [tf.zeros([1, *tensor.shape[1:]], tensor.dtype) for tensor in call.data]
    else:
        data = alone(call.data, any_example(batch))
    recording = record_alone(call, call.sources, data)
    _require_one_loss(call, recording.outputs)
    _look_for_writes(call)
    found = gradient(recording)
    call.require_connected(found)
    return batch, dense(found, call.sources)


def _require_one_loss(call: Call, outputs: Tensors) -> None:
    """Raise unless a batch of one example gives one loss; a vector over the features can be as long as the batch."""
    shapes = [output.shape for output in outputs]
    if len(shapes) != 1 or (shapes[0].is_fully_defined() and shapes[0].num_elements() != 1):
        raise ValueError(
            f"{call.name}: for a batch of one example the result has shape {', '.join(map(str, shapes))}; expected one "
            "loss, of shape () or (1,). Reduce over the other axes, for example with tf.reduce_mean(..., axis=-1); and "
            "what has a row for each example (labels, weights) has to be an argument of the function"
        )


def _look_for_writes(call: Call) -> None:
    """Warn of what makes no sense on a batch of one; refuse what would give each example other weights."""
    for op in call.traced.operations:
        training = op.type.startswith("FusedBatchNorm") and "Grad" not in op.type and op.get_attr("is_training")
        writes = op.type.startswith(EFFECTS["writes"])
        handles = [tensor for tensor in inside(op.graph, call.sources) if tensor.dtype == tf.resource]
        if writes and any(op.inputs[0] is handle for handle in handles):
            raise ValueError(
                f"{call.name}: the function changes a variable of wrt, by {place(op)}: evaluated for one example after "
                "the other, it would give each example other weights. Change the variable outside the function, or "
                "leave it out of wrt"
            )
        if training or writes:
            call.warnings.append(
                f"is of batches of one example, and {op.name} takes or keeps statistics of a batch, as "
                "BatchNormalization does in training. Call it with training=False, or use group or layer normalisation"
            )
            return


def _row(call: Call, index: Any) -> list[tf.Tensor]:
    """The gradient of one example's loss."""
    return [parts[0] for parts in _factors(call, index)]


def _factors(call: Call, index: Any, norms: bool = False) -> list[list[tf.Tensor]]:
    """The gradient of one example's loss: for each source a list of it alone.

    Args:
        norms: whether a matrix that is multiplied once, by one row, may have two vectors in its list, whose outer
            product is its gradient.
    """
    before = set() if tf.executing_eagerly() else set(tf.compat.v1.get_default_graph().get_operations())
    recording = record_alone(call, call.sources, alone(call.data, index), persistent=True)
    if call.how == VECTORIZED:
        return _by_products(recording, before, norms)
    return [[part] for part in dense(gradient(recording), call.sources)]


def _or_one(sizes: tf.Tensor) -> tf.Tensor:
    return tf.where(sizes == 0, tf.ones_like(sizes), sizes)


def _weighted(weights: tf.Tensor, rows: tf.Tensor, columns: tf.Tensor | None = None) -> tf.Tensor:
    """The weighted sum of gradients, or of the outer products of vectors."""
    if columns is None:
        return tf.linalg.matvec(rows, weights, transpose_a=True)
    return tf.matmul(rows, columns * weights[:, tf.newaxis], transpose_a=True)


def _row_agrees(index: Any, outputs: Tensors, expected: Tensors) -> tf.Tensor:
    """Whether one example's gradient is that of the plain tape."""
    sizes = [tf.fill(tf.shape(wanted), tf.reduce_max(tf.abs(wanted))) for wanted in expected]
    return agree([output[index] for output in outputs], sizes, expected)


def _norm_agrees(index: Any, count: int, outputs: Tensors, expected: Tensors) -> tf.Tensor:
    """Whether one example's gradient, mapped beside another, is that of the plain tape, and its norm among all."""
    plain, some = expected[:count], expected[count:]
    norms = outputs[-1]
    wanted = tf.sqrt(tf.add_n([tf.reduce_sum(tf.cast(part, norms.dtype) ** 2) for part in plain]))
    in_range = tf.reduce_all(tf.stack([(wanted > 1e-15) & (wanted < 1e15)]))
    right = agree([norms[index]], [wanted], [wanted]) | ~in_range
    return right & _row_agrees(0, some, plain)


def _chunk(
    recipe: _PerExample | _Norms,
    call: Call,
    batch: int | tf.Tensor,
    result: int,
    per_example: int,
    most: int | None = None,
) -> tuple[int, int | None]:
    """How many examples at once, and how many bytes the whole takes."""
    if not isinstance(batch, int):
        return recipe.batch_chunk_size or most or costs.CLIPPED_EXAMPLES, None
    return rows_at_once(
        what=recipe.name,
        shapes=f"{counted(batch, 'example')} and {counted(sum(call.sizes), 'element')} in the sources",
        result=result,
        rows=batch,
        per_row=2 * call.traced.largest + per_example,
        advice="smaller batches",
        chunk_size=recipe.batch_chunk_size,
        chunk_name="batch_chunk_size",
        limit=recipe.memory_limit,
        most=most,
    )


# Matrices and filters ------------------------------------------------------------------------------------------------


def _by_products(recording: Recording, before: set[tf.Operation], norms: bool) -> list[list[tf.Tensor]]:
    """Return gradients; those of convolutions' filters as products of patches of the image with the cotangents.

    `tf.vectorized_map` would compute them in a loop over the examples.

    Args:
        before: the graph's operations that are not of this recording.
        norms: whether of a matrix the two vectors are enough: the norm of their product is that of theirs
            (Goodfellow, "Efficient per-example gradient computations", 2015).
    """
    sources = recording.sources
    uses = _uses(sources, before, norms)
    outputs = [op.outputs[0] for ops in uses.values() for op in ops]
    others = [source for index, source in enumerate(sources) if index not in uses]
    found, cotangents = recording.tape.gradient(recording.outputs, [others, outputs])
    rest, left = iter(dense(found, others)), iter(dense(cotangents, outputs))
    rows = []
    for index, source in enumerate(sources):
        if index not in uses:
            rows.append([next(rest)])
        elif uses[index][0].type == "MatMul":
            rows.append([uses[index][0].inputs[0], next(left)])
        else:
            products = [
                tf.matmul(_patches(op, source.shape), tf.reshape(next(left), [-1, source.shape[-1]]), transpose_a=True)
                for op in uses[index]
            ]
            rows.append([tf.reshape(tf.add_n(products), source.shape)])
    return rows


def _uses(sources: Sequence[Any], before: set[tf.Operation], norms: bool) -> dict[int, list[tf.Operation]]:
    """Return the sources that are filters of convolutions alone, or a matrix that is used once, and these uses."""
    graph, uses = tf.compat.v1.get_default_graph(), {}
    for index, source in enumerate(sources):
        if source.shape.rank not in (2, 4):
            continue
        within = [tensor for tensor in inside(graph, [source]) if tf.is_symbolic_tensor(tensor)]
        consumers = [op for tensor in within if tensor.graph is graph for op in _consumers(tensor)]
        own = [op for op in consumers if op not in before]
        filters = source.shape.rank == 4 and own and all(_is_filter(op, source.shape) for op in own)
        if filters or (norms and len(own) == 1 and _is_matrix(own[0], source)):
            uses[index] = own
    return uses


def _consumers(tensor: tf.Tensor) -> list[tf.Operation]:
    """The operations that a tensor goes into, past those that hand it on as it is."""
    found: list[tf.Operation] = []
    for op in tensor.consumers():
        if known(op.type).has("passes") and not known(op.type).has("flat") and not has_custom_gradient(op):
            found += _consumers(op.outputs[0])
        else:
            found.append(op)
    return found


def _is_filter(op: tf.Operation, shape: tf.TensorShape) -> bool:
    return (
        op.type == "Conv2D"
        and op.get_attr("data_format") == b"NHWC"
        and op.inputs[0].shape.is_fully_defined()
        and op.inputs[0].shape[-1] == shape[2]
        and op.inputs[1].shape == shape
        and op.inputs[0] is not op.inputs[1]
    )


def _is_matrix(op: tf.Operation, source: Any) -> bool:
    """Whether this multiplies one row by the source as it is."""
    return (
        op.type == "MatMul"
        and not (op.get_attr("transpose_a") or op.get_attr("transpose_b"))
        and op.inputs[0].shape == (1, source.shape[0])
        and op.inputs[1].shape == source.shape
        and op.inputs[1].dtype == source.dtype
        and op.inputs[0] is not op.inputs[1]
    )


def _patches(op: tf.Operation, shape: tf.TensorShape) -> tf.Tensor:
    """What a filter meets at each position: shape (positions, elements of the filter for one channel out)."""
    images, padding, explicit = op.inputs[0], op.get_attr("padding"), op.get_attr("explicit_paddings")
    pads, along = [[0, 0]], []
    for axis in (1, 2):
        stride, dilation = op.get_attr("strides")[axis], op.get_attr("dilations")[axis]
        reach = stride * (op.outputs[0].shape[axis] - 1) + 1
        missing = max(reach + dilation * (shape[axis - 1] - 1) - images.shape[axis], 0) if padding == b"SAME" else 0
        pads.append(explicit[2 * axis : 2 * axis + 2] or [missing // 2, missing - missing // 2])
        along.append([slice(start * dilation, start * dilation + reach, stride) for start in range(shape[axis - 1])])
    images = tf.pad(images, [*pads, [0, 0]])
    found = [images[:, rows, columns] for rows, columns in itertools.product(*along)]
    return tf.reshape(tf.concat(found, -1), [-1, math.prod(shape[:3])])
