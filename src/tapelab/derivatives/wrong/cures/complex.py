"""Complex numbers: gradients that lack a conjugate, or take what is real for complex. And determinants.

The gradient of a real loss by z is ∂/∂Re z + i ∂/∂Im z. Of w = f(z), holomorphic, it is the cotangent of w times the
conjugate of f'(z).
"""

from types import SimpleNamespace

from tapelab.derivatives.wrong.cures.broadcasting import sum_to
from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.runtime import tf


def _of_complex(gradient):
    """Have a gradient used for complex numbers only."""
    gradient.applies = lambda op, *upstreams: any(each.dtype.is_complex for each in upstreams if each is not None)
    return gradient


def _determinant(op, upstream):
    """tf.linalg.det: cofactors of small matrices; TensorFlow's gradient inverts, and lacks the complex conjugate."""
    matrix = op.inputs[0]
    if _is_small(matrix):
        return upstream[..., None, None] * tf.math.conj(_cofactors(matrix))
    return (upstream * tf.math.conj(op.outputs[0]))[..., None, None] * tf.linalg.inv(matrix, adjoint=True)


_determinant.applies = lambda op, upstream: upstream.dtype.is_complex or _is_small(op.inputs[0])


def _is_small(matrix):
    """Whether as many determinants as a matrix has elements cost little: then the gradient may be a polynomial too."""
    return matrix.shape[-1] is not None and matrix.shape[-1] <= 4


def _cofactors(matrix):
    """The derivatives of the determinant by the elements, shape (..., n, n), also where it is zero."""
    n = matrix.shape[-1]
    if n < 2:
        return tf.ones_like(matrix)
    rest = [[k for k in range(n) if k != i] for i in range(n)]
    minors = [[tf.gather(tf.gather(matrix, rest[i], axis=-2), rest[j], axis=-1) for j in range(n)] for i in range(n)]
    signs = tf.constant([[(-1.0) ** (i + j) for j in range(n)] for i in range(n)], matrix.dtype)
    if n == 2:
        minors = [[minor[..., 0, 0] for minor in row] for row in minors]
    else:
        minors = [[tf.linalg.det(minor) for minor in row] for row in minors]
    return signs * tf.stack([tf.stack(row, -1) for row in minors], -2)


@_of_complex
def _log_determinant(op, by_sign, by_logarithm):
    """tf.linalg.slogdet of complex matrices: TensorFlow's gradient leaves out the phase, and takes a complex weight."""
    # The logarithm changes by Re t, and the phase by i · phase · Im t, where t is the trace of inv(A) dA. What is not
    # used has None for its cotangent, and TensorFlow's gradient does not read the phase, which a tape then drops.
    matrix, unused = op.inputs[0], tf.zeros_like(op.outputs[1])
    weight = tf.math.real(unused if by_logarithm is None else by_logarithm)
    turned = tf.zeros_like(weight)
    if by_sign is not None:
        turned = tf.math.real(tf.math.conj(by_sign) * tf.linalg.slogdet(matrix)[0] * 1j)
    return tf.complex(weight, turned)[..., None, None] * tf.linalg.inv(matrix, adjoint=True)


@_of_complex
def _square_root(op, upstream):
    """tf.linalg.sqrtm of complex matrices: TensorFlow's gradient lacks a conjugate."""
    # It solves RᵀX + XRᵀ = upstream, and Rᴴ is the transpose of the conjugate.
    return plain("MatrixSquareRoot")(SimpleNamespace(outputs=[tf.math.conj(op.outputs[0])]), upstream)


@_of_complex
def _product(op, upstream):
    """tf.math.multiply_no_nan of complex numbers: TensorFlow's gradient lacks a conjugate."""
    x, y = op.inputs
    by_x = tf.math.multiply_no_nan(upstream, tf.math.conj(y))
    return sum_to(by_x, x), sum_to(tf.math.multiply_no_nan(tf.math.conj(x), upstream), y)


@_of_complex
def _squared_difference(op, upstream):
    """tf.math.squared_difference of complex numbers: the result is real; TensorFlow takes a complex weight."""
    x, y = op.inputs
    gradient = 2 * _real(upstream) * (x - y)
    return sum_to(gradient, x), -sum_to(gradient, y)


def _euclidean_norm(op, upstream):
    """tf.math.reduce_euclidean_norm: without a quotient by the cotangent, which may be zero, or complex."""
    x, norm = op.inputs[0], op.outputs[0]
    if not op.get_attr("keep_dims"):
        shape = tf.shape(tf.reduce_sum(x, op.inputs[1], keepdims=True))
        norm, upstream = tf.reshape(norm, shape), tf.reshape(upstream, shape)
    return _real(upstream) * (x / norm), None


def _real(tensor):
    """The real part, in the same dtype."""
    return tf.complex(tf.math.real(tensor), tf.zeros_like(tf.math.real(tensor))) if tensor.dtype.is_complex else tensor


GRADIENTS = {
    "EuclideanNorm": _euclidean_norm,
    "LogMatrixDeterminant": _log_determinant,
    "MatrixDeterminant": _determinant,
    "MatrixSquareRoot": _square_root,
    "MulNoNan": _product,
    "SquaredDifference": _squared_difference,
}
FUNCTIONS = []
