"""What our gradients do with cotangents: undo broadcasting, and tell zeros, lost numbers and complex ones."""

import math
from collections.abc import Callable
from typing import Any

from tapelab.process.tensorflow import tf


def sum_to(gradient: tf.Tensor, tensor: tf.Tensor) -> tf.Tensor:
    """Sum a gradient over the axes along which a tensor was broadcast to its shape; returns the tensor's shape."""
    shape, grown = tensor.shape, gradient.shape
    if not (shape.is_fully_defined() and grown.is_fully_defined()):
        axes, _ = tf.raw_ops.BroadcastGradientArgs(s0=tf.shape(tensor), s1=tf.shape(gradient))
        return tf.reshape(tf.reduce_sum(gradient, axes), tf.shape(tensor))
    if shape == grown:
        return gradient
    padded = [1] * (grown.rank - shape.rank) + shape.as_list()
    axes = [axis for axis, (size, whole) in enumerate(zip(padded, grown, strict=True)) if size != whole]
    axes += range(grown.rank - shape.rank)
    return tf.reshape(tf.reduce_sum(gradient, sorted(set(axes))), shape)


def is_zero(cotangent: tf.Tensor) -> bool:
    """Whether a cotangent stands, in a graph, for that of an output that nothing depends on."""
    if not tf.is_symbolic_tensor(cotangent):
        return False
    value = tf.get_static_value(cotangent) if cotangent.op.type == "Const" else None
    return cotangent.op.type == "ZerosLike" or (value is not None and not value.any())


def lost_at_infinity(gradient: tf.Tensor, root: tf.Tensor, upstream: tf.Tensor) -> tf.Tensor:
    """Return a root's gradient, NaN where the root is infinite.

    There it has lost its number, as a norm has whose squares left the range of floats, and dividing by it gives a
    derivative of 0. Where the root's cotangent is 0, nothing depends on that number: so is the gradient.
    """
    lost = tf.math.multiply_no_nan(tf.constant(math.nan, upstream.dtype), upstream)
    return tf.where(tf.math.is_inf(tf.math.real(root)), lost, gradient)


def used_where(applies: Callable[..., bool]) -> Callable[[Any], Any]:
    """Have a gradient used only where this holds, of its own arguments: the operation and the cotangents."""

    def limited(gradient: Any) -> Any:
        gradient.applies = applies
        return gradient

    return limited


of_complex = used_where(lambda op, *upstreams: any(each.dtype.is_complex for each in upstreams if each is not None))
