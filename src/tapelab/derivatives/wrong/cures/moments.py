"""Second derivatives through `tf.nn.moments`, and so through normalisation layers: right, where TensorFlow's are wrong.

`tf.nn.moments` computes the variance as ``mean((x - stop_gradient(mean(x)))²)``. That leaves the first derivative as it
is, since x - mean(x) sums to zero, and the second one without a term: the variance of n numbers has the Hessian
2/n (I - 1/n), and TensorFlow's has 2/n I. No public report of it is known.
"""

from typing import Any

from tapelab.derivatives import private
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.replaced_function import Inputs, Node, Replacement, has_node
from tapelab.process.tensorflow import tf


def _moments(
    x: Any,
    axes: Any,
    shift: Any = None,
    name: str | None = None,
    keep_dims: bool | None = None,
    keepdims: bool | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.nn.moments: the mean in the variance is differentiated too; TensorFlow stops its gradient."""
    with tf.name_scope(name or "moments"):
        x = tf.convert_to_tensor(x)
        y = tf.cast(x, tf.float32) if x.dtype == tf.float16 else x  # as the original: half has no range for squares
        mean = tf.reduce_mean(y, axes, keepdims=True)
        variance = tf.reduce_mean(tf.math.squared_difference(y, mean), axes, keepdims=True)
        if not (keepdims or keep_dims):
            mean, variance = tf.squeeze(mean, axes), tf.squeeze(variance, axes)
        return tf.cast(mean, x.dtype), tf.cast(variance, x.dtype)


def _stops_the_mean(node: Node, inputs: Inputs) -> bool:
    """SquaredDifference(x, StopGradient(Mean(x)))."""
    if node.op != "SquaredDifference":
        return False
    x, stopped = inputs(node)
    if stopped.op != "StopGradient":
        return False
    (mean,) = inputs(stopped)
    return mean.op == "Mean" and inputs(mean)[0].name == x.name


FUNCTIONS = [
    Replacement(
        owners=lambda: private.modules_with_moments(),
        name="moments",
        function=_moments,
        needs=Needs.SECOND,
        what="a variance by tf.nn.moments (as a normalisation layer does)",
        traced=has_node(_stops_the_mean),
    )
]
