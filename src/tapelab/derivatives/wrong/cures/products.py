"""Products with zeros: derivatives of all orders, without a division.

TensorFlow's gradients of cumulative products divide by the factors, and those of products of segments tell no zero, one
zero and several zeros apart. The first derivatives are right, but for what is behind the first zero of a cumulative
product, and the second ones are zero or NaN where a factor is. Here the product of the other factors is what is before
a factor times what is behind it.
"""

from collections.abc import Callable

from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.process.tensorflow import tf

import numpy as np


def _prod(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.math.reduce_prod: with zeros too; TensorFlow's second derivatives are zero or NaN there."""
    x, axes = op.inputs[0], tf.get_static_value(op.inputs[1])
    if axes is None or not x.shape.is_fully_defined():
        return plain("Prod")(op, upstream)
    shape, rank = x.shape.as_list(), x.shape.rank
    reduced = sorted({int(axis) % rank for axis in np.ravel(axes)}) if rank else []
    kept = [axis for axis in range(rank) if axis not in reduced]
    order = [*kept, *reduced]
    factors = x if order == [*range(rank)] else tf.transpose(x, order)
    size = int(np.prod([shape[axis] for axis in reduced], dtype=int))
    factors = tf.math.conj(tf.reshape(factors, [*[shape[axis] for axis in kept], size]))
    others = _before(factors) * _before(factors, reverse=True)
    others = tf.reshape(others, [shape[axis] for axis in order])
    if order != [*range(rank)]:
        others = tf.transpose(others, np.argsort(order))
    return tf.reshape(upstream, [1 if axis in reduced else shape[axis] for axis in range(rank)]) * others, None


def _before(factors: tf.Tensor, *, reverse: bool = False) -> tf.Tensor:
    return tf.math.cumprod(factors, axis=-1, exclusive=True, reverse=reverse)


def _cumprod(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.math.cumprod: with zeros too; TensorFlow divides by the factors, and is 0 behind the first zero."""
    return _along_the_last_axis(op, _cumprod_gradient, op.inputs[0], upstream), None


def _cumprod_gradient(x: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    # With y the products, x̄ₖ = Σ_{i≥k} ȳᵢ Π_{j≤i, j≠k} xⱼ = Π_{j<k} xⱼ · rₖ, where rₖ = ȳₖ + xₖ₊₁ rₖ₊₁.
    x = tf.math.conj(x)
    return _before(x) * _recurrence(x[..., 1:], upstream)


def _cumulative_logsumexp(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.math.cumulative_logsumexp: without a logarithm of the cotangent, of which TensorFlow's derivatives are NaN."""
    return _along_the_last_axis(op, _logsumexp_gradient, op.inputs[0], upstream, op.outputs[0]), None


def _logsumexp_gradient(x: tf.Tensor, upstream: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    # x̄ₖ = Σ_{i≥k} ȳᵢ exp(xₖ - yᵢ) = exp(xₖ - yₖ) rₖ, where rₖ = ȳₖ + exp(yₖ - yₖ₊₁) rₖ₊₁, and yₖ ≤ yₖ₊₁.
    return tf.exp(x - y) * _recurrence(tf.exp(y[..., :-1] - y[..., 1:]), upstream)


def _along_the_last_axis(
    op: tf.Operation, gradient: Callable[..., tf.Tensor], x: tf.Tensor, *outputs: tf.Tensor
) -> tf.Tensor:
    """Compute the gradient of a cumulative operation, whichever way and along whichever axis it goes.

    Args:
        gradient: of the inclusive one along the last axis: of its input, the cotangent and other tensors like it.
    """
    exclusive, reverse = op.get_attr("exclusive"), op.get_attr("reverse")
    rank, axis = x.shape.rank, tf.get_static_value(op.inputs[1])
    is_last = axis is not None and int(axis) % rank == rank - 1
    tensors = [x, *outputs]
    if not is_last:  # the axis may be a tensor, as it is in what an accumulator traces
        places, axis = tf.range(rank), tf.cast(op.inputs[1], tf.int32) % rank
        order = tf.argsort(tf.where(places == axis, rank, places))
        tensors = [tf.transpose(tensor, order) for tensor in tensors]
    if reverse:
        tensors = [tf.reverse(tensor, [-1]) for tensor in tensors]
    if exclusive:  # the next output is the inclusive one
        first, *rest = tensors
        found = gradient(first[..., :-1], *[tensor[..., 1:] for tensor in rest])
        found = tf.concat([found, tf.zeros_like(first[..., :1])], -1)
    else:
        found = gradient(*tensors)
    if reverse:
        found = tf.reverse(found, [-1])
    return found if is_last else tf.transpose(found, tf.math.invert_permutation(order))


def _recurrence(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """Return r with rₖ = bₖ + aₖ rₖ₊₁ along the last axis, by doubling; a is shorter by one.

    A product over a prefix and a sum, so that it takes log₂ n steps (Blelloch, Prefix Sums and Their Applications,
    1990, section 1.4).
    """
    if b.shape[-1] is None:
        return _recurrence_of_unknown_length(a, b)
    step, size = 1, b.shape[-1]
    while step < size:
        b = tf.concat([b[..., : size - step] + a * b[..., step:], b[..., size - step :]], -1)
        if 2 * step < size:
            a = a[..., : size - 2 * step] * a[..., step:]
        step *= 2
    return b


def _recurrence_of_unknown_length(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    """The same with n² numbers: rₖ = Σ_{i≥k} bᵢ Π_{k≤j<i} aⱼ."""
    size = tf.shape(b)[-1]
    k, j = tf.range(size)[:, None], tf.range(size)[None, :]
    shifted = tf.concat([tf.ones_like(b[..., :1]), a], -1)  # aⱼ₋₁ at j
    factors = tf.where(j > k, shifted[..., None, :], tf.ones_like(b)[..., None, :])
    products = tf.math.cumprod(factors, axis=-1)
    return tf.reduce_sum(tf.where(j >= k, products * b[..., None, :], tf.zeros_like(products)), -1)


def _segment_prod(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.math.segment_prod: with zeros too; TensorFlow's second derivatives are zero or NaN there."""
    data, ids = op.inputs
    return tf.gather(upstream, ids) * _others_in_segment(data, ids), None


def _unsorted_segment_prod(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None, None]:
    """tf.math.unsorted_segment_prod: with zeros too; TensorFlow's second derivatives are zero or NaN there."""
    data, ids = op.inputs[:2]
    shape, inner = tf.shape(data), data.shape[ids.shape.rank :]
    flat = tf.reshape(ids, [-1])
    order = tf.argsort(flat, stable=True)
    rows = tf.reshape(data, [flat.shape[0] or tf.size(flat), *inner])
    others = _others_in_segment(tf.gather(rows, order), tf.gather(flat, order))
    others = tf.reshape(tf.gather(others, tf.argsort(order)), shape)
    taken = tf.gather(upstream, tf.maximum(ids, 0))
    dropped = tf.reshape(ids < 0, tf.concat([tf.shape(ids), [1] * len(inner)], 0))
    return tf.where(dropped, tf.zeros_like(taken), taken) * others, None, None


def _others_in_segment(data: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Return for each row the conjugate product of the other rows of its segment; the ids are in order."""
    data = tf.math.conj(data)
    if ids.shape[0] is None:
        return _others_of_unknown_number(data, ids)
    return _products_of_earlier(data, ids) * tf.reverse(
        _products_of_earlier(tf.reverse(data, [0]), tf.reverse(ids, [0])), [0]
    )


def _products_of_earlier(data: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Return for each row the product of those before it in its segment, by doubling."""
    size = ids.shape[0]
    found, step = _shifted(data, ids, 1), 1
    while step < size:
        found *= _shifted(found, ids, step)
        step *= 2
    return found


def _shifted(data: tf.Tensor, ids: tf.Tensor, step: int) -> tf.Tensor:
    """Return the rows before by so many, and 1 where that is another segment."""
    step = min(step, ids.shape[0])
    same = tf.concat([tf.zeros([step], tf.bool), ids[step:] == ids[:-step]], 0) if step else ids == ids
    moved = tf.concat([tf.ones_like(data[:step]), data[: ids.shape[0] - step]], 0)
    return tf.where(tf.reshape(same, [-1, *[1] * (data.shape.rank - 1)]), moved, tf.ones_like(moved))


def _others_of_unknown_number(data: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """The same with n² rows."""
    others = (ids[:, None] == ids[None, :]) & ~tf.eye(tf.size(ids), dtype=tf.bool)
    others = tf.reshape(others, tf.concat([tf.shape(others), [1] * (data.shape.rank - 1)], 0))
    return tf.reduce_prod(tf.where(others, data[None], tf.ones_like(data)[None]), 1)


GRADIENTS = {
    "Cumprod": _cumprod,
    "CumulativeLogsumexp": _cumulative_logsumexp,
    "Prod": _prod,
    "SegmentProd": _segment_prod,
    "UnsortedSegmentProd": _unsorted_segment_prod,
}
