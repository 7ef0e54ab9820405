"""Writing to an index twice: the gradient goes to what was written last, and TensorFlow's to all that was written.

And reading from none: means of empty segments.
"""

from tapelab.derivatives.wrong.cotangents import used_where
from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.process.tensorflow import tf

import numpy as np


def _written_twice(op: tf.Operation, upstream: tf.Tensor) -> bool:
    indices = tf.get_static_value(op.inputs[1])
    if indices is None:
        return True
    rows = indices.reshape(-1, indices.shape[-1])
    return len(np.unique(rows, axis=0)) < len(rows)


@used_where(_written_twice)
def _scatter_update(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
    """tf.tensor_scatter_nd_update: to what was written last; TensorFlow's gradient goes to all that an index wrote."""
    indices = op.inputs[1]
    tensor, _, updates = plain("TensorScatterUpdate")(op, upstream)
    depth = indices.shape[-1]
    number = tf.reshape(tf.range(tf.size(indices) // depth), tf.shape(indices)[:-1])
    written = tf.tensor_scatter_nd_update(tf.fill(tf.shape(upstream)[:depth], -1), indices, number)
    return tensor, None, _where(tf.gather_nd(written, indices) == number, updates)


def _dynamic_stitch(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    """tf.dynamic_stitch: to what was written last; TensorFlow's gradient goes to all that an index wrote."""
    half = len(op.inputs) // 2
    indices = [op.inputs[i] for i in range(half)]
    numbers, start = [], 0
    for each in indices:
        numbers.append(tf.reshape(start + tf.range(tf.size(each)), tf.shape(each)))
        start += tf.size(each)
    written = tf.dynamic_stitch(indices, numbers)
    values = [
        _where(tf.gather(written, each) == number, tf.gather(upstream, each))
        for each, number in zip(indices, numbers, strict=True)
    ]
    return [None] * half + values


def _segment_mean(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.math.segment_mean: with an empty segment too; TensorFlow's products with tangents are NaN then."""
    x, segments = op.inputs
    ones = tf.ones([tf.size(segments), *[1] * (x.shape.rank - 1)], upstream.dtype)
    sizes = tf.math.segment_sum(ones, segments)
    return tf.gather(upstream / tf.maximum(sizes, 1), segments), None


def _where(holds: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Return the values where a condition on their first axes holds, and 0 elsewhere."""
    missing = values.shape.rank - holds.shape.rank
    holds = tf.reshape(holds, tf.concat([tf.shape(holds), [1] * missing], 0))
    return tf.where(holds, values, tf.zeros_like(values))


GRADIENTS = {
    "DynamicStitch": _dynamic_stitch,
    "SegmentMean": _segment_mean,
    "TensorScatterUpdate": _scatter_update,
}
