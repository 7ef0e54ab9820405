"""Cross-entropy of labels of any sum: the kernel's gradient by the logits is the derivative where they sum to 1.

The loss is s · log Σ exp z - Σ l z with s = Σ l, its gradient by the logits s · softmax(z) - l. The kernel gives
g = softmax(z) - l, which TensorFlow takes for the gradient, and does not differentiate by the labels.
"""

from tapelab.derivatives.wrong.cotangents import is_zero
from tapelab.process.tensorflow import tf


def _cross_entropy(
    op: tf.Operation, upstream: tf.Tensor, upstream_of_g: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.nn.softmax_cross_entropy_with_logits: for labels of any sum; TensorFlow's gradient is right where it is 1."""
    (logits, labels), g = op.inputs, op.outputs[1]
    weight = upstream[:, None]
    if labels is None:  # eagerly they are not kept; Σ g = 1 - s
        softmax = tf.nn.softmax(logits)
        excess = -tf.reduce_sum(g, -1, keepdims=True)
    else:
        softmax = g + labels
        excess = tf.reduce_sum(labels, -1, keepdims=True) - 1
    by_logits = weight * (g + excess * softmax)
    by_labels = -weight * tf.nn.log_softmax(logits)
    if upstream_of_g is not None and not is_zero(upstream_of_g):
        along = tf.reduce_sum(upstream_of_g * softmax, -1, keepdims=True)
        by_logits += (upstream_of_g - along) * softmax
        by_labels -= upstream_of_g
    return by_logits, by_labels


GRADIENTS = {"SoftmaxCrossEntropyWithLogits": _cross_entropy}
