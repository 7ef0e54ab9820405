"""Determinants: of singular matrices, and of complex ones.

TensorFlow's gradients invert the matrix, and leave out what makes them right for complex numbers: the gradient of a
real loss by z is ∂/∂Re z + i ∂/∂Im z.
"""

from tapelab.derivatives.wrong.cotangents import of_complex
from tapelab.process.tensorflow import tf


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


@of_complex
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


GRADIENTS = {"LogMatrixDeterminant": _log_determinant, "MatrixDeterminant": _determinant}
FUNCTIONS = []
