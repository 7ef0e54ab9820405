"""Derivatives of gradients, where TensorFlow has none: of softsign, bicubic resizing, local response normalisation."""

from tapelab.process.tensorflow import tf


def _of_softsign(op, upstream):
    """tf.nn.softsign: TensorFlow has no second derivative of it."""
    gradient, x = op.inputs
    scale = 1 / (1 + tf.abs(x))
    by_gradient = upstream * tf.square(scale)
    return by_gradient, -2 * gradient * by_gradient * tf.sign(x) * scale


def _of_bicubic(op, upstream):
    """tf.image.resize, bicubic: linear, so that the derivative of its gradient is itself; TensorFlow has none."""
    options = {name: op.get_attr(name) for name in ("align_corners", "half_pixel_centers")}
    resized = tf.raw_ops.ResizeBicubic(images=upstream, size=tf.shape(op.inputs[0])[1:3], **options)
    return tf.cast(resized, op.inputs[0].dtype), None


def _of_response(op, upstream):
    """tf.nn.local_response_normalization: TensorFlow has no second derivative of it."""
    tensors = [tf.identity(tensor) for tensor in op.inputs[:2]]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        found = _response_gradient(op, *tensors)
    return [*tape.gradient(found, tensors, upstream), None]


def _response_gradient(op, upstream, x):
    # y = x / s^beta with s = bias + alpha · Σ x² over the channels nearby, which a band matrix sums.
    radius, bias, alpha, beta = (op.get_attr(name) for name in ("depth_radius", "bias", "alpha", "beta"))
    channels = tf.shape(x)[-1]
    radius = tf.minimum(radius, channels)
    band = tf.linalg.band_part(tf.ones([channels, channels], x.dtype), radius, radius)
    s = bias + alpha * tf.tensordot(tf.square(x), band, 1)
    scale = tf.pow(s, -beta)
    return upstream * scale - 2 * alpha * beta * x * tf.tensordot(upstream * x * scale / s, band, 1)


GRADIENTS = {"LRNGrad": _of_response, "ResizeBicubicGrad": _of_bicubic, "SoftsignGrad": _of_softsign}
FUNCTIONS = []
