"""What our gradients do with cotangents: undo broadcasting, and tell whether they are complex."""

from collections.abc import Callable

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


def of_complex(gradient: Callable) -> Callable:
    """Have a gradient used for complex numbers only."""
    gradient.applies = lambda op, *upstreams: any(each.dtype.is_complex for each in upstreams if each is not None)
    return gradient
