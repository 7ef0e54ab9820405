"""The backward pass of broadcasting."""

from tapelab.runtime import tf


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
