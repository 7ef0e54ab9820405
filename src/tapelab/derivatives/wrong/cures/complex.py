"""Complex numbers: gradients that lack a conjugate, or take what is real for complex.

The gradient of a real loss by z is ∂/∂Re z + i ∂/∂Im z. Of w = f(z), holomorphic, it is the cotangent of w times the
conjugate of f'(z).
"""

import math
from types import SimpleNamespace

from tapelab.derivatives.wrong.cotangents import of_complex, sum_to
from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.process.tensorflow import tf


@of_complex
def _square_root(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """tf.linalg.sqrtm of complex matrices: TensorFlow's gradient lacks a conjugate."""
    # It solves RᵀX + XRᵀ = upstream, and Rᴴ is the transpose of the conjugate.
    return plain("MatrixSquareRoot")(SimpleNamespace(outputs=[tf.math.conj(op.outputs[0])]), upstream)


@of_complex
def _product(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.math.multiply_no_nan of complex numbers: TensorFlow's gradient lacks a conjugate."""
    x, y = op.inputs
    by_x = tf.math.multiply_no_nan(upstream, tf.math.conj(y))
    return sum_to(by_x, x), sum_to(tf.math.multiply_no_nan(tf.math.conj(x), upstream), y)


@of_complex
def _squared_difference(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """tf.math.squared_difference of complex numbers: the result is real; TensorFlow takes a complex weight."""
    x, y = op.inputs
    gradient = 2 * _real(upstream) * (x - y)
    return sum_to(gradient, x), -sum_to(gradient, y)


def _euclidean_norm(op: tf.Operation, upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
    """tf.math.reduce_euclidean_norm: without a quotient by the cotangent, which may be zero, or complex."""
    x, norm = op.inputs[0], op.outputs[0]
    if not op.get_attr("keep_dims"):
        shape = tf.shape(tf.reduce_sum(x, op.inputs[1], keepdims=True))
        norm, upstream = tf.reshape(norm, shape), tf.reshape(upstream, shape)
    # As by `cotangents.lost_at_infinity`, but the derivative of this by x is lost there, too.
    known = tf.where(tf.math.is_inf(tf.math.real(norm)), tf.constant(math.nan, norm.dtype), norm)
    return tf.math.multiply_no_nan(x / known, _real(upstream)), None


def _real(tensor: tf.Tensor) -> tf.Tensor:
    """The real part, in the same dtype."""
    return tf.complex(tf.math.real(tensor), tf.zeros_like(tf.math.real(tensor))) if tensor.dtype.is_complex else tensor


GRADIENTS = {
    "EuclideanNorm": _euclidean_norm,
    "MatrixSquareRoot": _square_root,
    "MulNoNan": _product,
    "SquaredDifference": _squared_difference,
}
