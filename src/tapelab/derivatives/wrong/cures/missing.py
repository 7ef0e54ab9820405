"""Where TensorFlow has no derivative: of the gradients of softsign, resizing, local response normalisation.

And of Fourier transforms that cut their input off: its gradient raises, or broadcasts what is of length 1.
"""

from types import SimpleNamespace
from typing import Any

from tapelab.derivatives.wrong.cotangents import used_where
from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.process.tensorflow import tf


def _of_softsign(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.nn.softsign: TensorFlow has no second derivative of it."""
    gradient, x = op.inputs
    scale = 1 / (1 + tf.abs(x))
    by_gradient = upstream * tf.square(scale)
    return by_gradient, -2 * gradient * by_gradient * tf.sign(x) * scale


def _of_bicubic(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.image.resize, bicubic: linear, so that the derivative of its gradient is itself; TensorFlow has none."""
    options = {name: op.get_attr(name) for name in ("align_corners", "half_pixel_centers")}
    resized = tf.raw_ops.ResizeBicubic(images=upstream, size=tf.shape(op.inputs[0])[1:3], **options)
    return tf.cast(resized, op.inputs[0].dtype), None


def _translated(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None, None, None]:
    """tf.image.resize by Lanczos' kernel and the like: of images of float64 too; TensorFlow's gradient raises."""
    x, _, scale, translation = op.inputs
    # The kernel gives float32, whatever it is given.
    gradient = tf.raw_ops.ScaleAndTranslateGrad(
        grads=upstream,
        original_image=tf.cast(x, tf.float32),
        scale=scale,
        translation=translation,
        **_kernel(op),
    )
    return tf.cast(gradient, x.dtype), None, None, None


def _of_translated(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None, None, None]:
    """tf.image.resize by Lanczos' kernel and the like: linear, as bicubic is; TensorFlow has no second derivative."""
    gradient, _, scale, translation = op.inputs
    size = tf.shape(gradient)[1:3]
    resized = tf.raw_ops.ScaleAndTranslate(
        images=upstream, size=size, scale=scale, translation=translation, **_kernel(op)
    )
    return resized, None, None, None


def _kernel(op: tf.Operation) -> dict[str, Any]:
    return {name: op.get_attr(name) for name in ("kernel_type", "antialias")}


def _of_response(op: tf.Operation, upstream: tf.Tensor) -> list[tf.Tensor | None]:
    """tf.nn.local_response_normalization: TensorFlow has no second derivative of it."""
    tensors = [tf.identity(tensor) for tensor in op.inputs[:2]]
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(tensors)
        found = _response_gradient(op, *tensors)
    return [*tape.gradient(found, tensors, upstream), None]


def _response_gradient(op: tf.Operation, upstream: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    # y = x / s^beta with s = bias + alpha · Σ x² over the channels nearby, which a band matrix sums.
    radius, bias, alpha, beta = (op.get_attr(name) for name in ("depth_radius", "bias", "alpha", "beta"))
    channels = tf.shape(x)[-1]
    radius = tf.minimum(radius, channels)
    band = tf.linalg.band_part(tf.ones([channels, channels], x.dtype), radius, radius)
    s = bias + alpha * tf.tensordot(tf.square(x), band, 1)
    scale = tf.pow(s, -beta)
    return upstream * scale - 2 * alpha * beta * x * tf.tensordot(upstream * x * scale / s, band, 1)


def _used(kind: str, length: tf.Tensor) -> tf.Tensor:
    """How many elements of its last axes a transform reads."""
    return length if kind.startswith("R") else tf.concat([length[:-1], length[-1:] // 2 + 1], 0)


def _cuts_off(op: tf.Operation, upstream: tf.Tensor) -> bool:
    x, length = op.inputs
    sizes, used = x.shape[-length.shape[0] :], tf.get_static_value(_used(op.type, length))
    return used is None or any(size is None or size > most for size, most in zip(sizes, used, strict=True))


@used_where(_cuts_off)
def _fourier(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.signal.rfft and irfft: of what fft_length cuts off too; TensorFlow's gradient raises, or is wrong."""
    x, length = op.inputs
    left, sizes = tf.split(tf.shape(x), [-1, length.shape[0]])
    kept = tf.concat([left, tf.minimum(sizes, _used(op.type, length))], 0)
    inside = SimpleNamespace(inputs=[tf.slice(x, tf.zeros_like(kept), kept), length])
    gradient, _ = plain(op.type)(inside, upstream)
    return tf.pad(gradient, tf.stack([tf.zeros_like(kept), tf.shape(x) - kept], 1)), None


GRADIENTS = {
    **dict.fromkeys(["IRFFT", "IRFFT2D", "RFFT", "RFFT2D"], _fourier),
    "LRNGrad": _of_response,
    "ResizeBicubicGrad": _of_bicubic,
    "ScaleAndTranslate": _translated,
    "ScaleAndTranslateGrad": _of_translated,
    "SoftsignGrad": _of_softsign,
}
