"""Singular matrices: determinants, also of complex ones, and QR factors.

TensorFlow's gradients invert the matrix, and those of determinants leave out what makes them right for complex numbers:
the gradient of a real loss by z is ∂/∂Re z + i ∂/∂Im z.

The factors Q and R of a matrix that is not tall are smooth where its first columns are independent, all but the last of
as many as it has rows: Householder's reflections are of those. So R may end in a zero, by which TensorFlow divides.
Roberts and Roberts (2020), "QR and LQ decomposition matrix backpropagation algorithms".
"""

from tapelab.derivatives.wrong.cotangents import of_complex, used_where
from tapelab.process.tensorflow import tf


def _is_small(matrix: tf.Tensor) -> bool:
    """Whether as many determinants as a matrix has elements cost little: then the gradient may be a polynomial too."""
    return matrix.shape[-1] is not None and matrix.shape[-1] <= 4


@used_where(lambda op, upstream: upstream.dtype.is_complex or _is_small(op.inputs[0]))
def _determinant(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """tf.linalg.det: cofactors of small matrices; TensorFlow's gradient inverts, and lacks the complex conjugate."""
    matrix = op.inputs[0]
    if _is_small(matrix):
        return upstream[..., None, None] * tf.math.conj(_cofactors(matrix))
    return (upstream * tf.math.conj(op.outputs[0]))[..., None, None] * tf.linalg.inv(matrix, adjoint=True)


def _cofactors(matrix: tf.Tensor) -> tf.Tensor:
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
def _log_determinant(op: tf.Operation, by_sign: tf.Tensor | None, by_logarithm: tf.Tensor | None) -> tf.Tensor:
    """tf.linalg.slogdet of complex matrices: TensorFlow's gradient leaves out the phase, and takes a complex weight."""
    # The logarithm changes by Re t, and the phase by i · phase · Im t, where t is the trace of inv(A) dA. What is not
    # used has None for its cotangent, and TensorFlow's gradient does not read the phase, which a tape then drops.
    matrix, unused = op.inputs[0], tf.zeros_like(op.outputs[1])
    weight = tf.math.real(unused if by_logarithm is None else by_logarithm)
    turned = tf.zeros_like(weight)
    if by_sign is not None:
        turned = tf.math.real(tf.math.conj(by_sign) * tf.linalg.slogdet(matrix)[0] * 1j)
    return tf.complex(weight, turned)[..., None, None] * tf.linalg.inv(matrix, adjoint=True)


def _is_smooth(op: tf.Operation, of_q: tf.Tensor, of_r: tf.Tensor) -> bool:
    """Whether a matrix is real, of known shape and not tall. The last element of a complex R has no free phase."""
    q, r = op.outputs
    known = r.shape.rank is not None and None not in r.shape[-2:]
    return known and not r.dtype.is_complex and q.shape[-2] == q.shape[-1] <= r.shape[-1]


@used_where(_is_smooth)
def _qr(op: tf.Operation, of_q: tf.Tensor, of_r: tf.Tensor) -> tf.Tensor:
    """tf.linalg.qr: ours does not divide by the last diagonal element of R; TensorFlow's is NaN where that is zero."""
    q, r = op.outputs
    n = q.shape[-1]
    first, of_first, of_rest = r[..., :n], of_r[..., :n], of_r[..., n:]
    of_q += tf.matmul(op.inputs[0][..., n:], of_rest, adjoint_b=True)
    product = tf.matmul(q, of_q, adjoint_a=True) + tf.matmul(first, of_first, adjoint_b=True)
    # The last column below the diagonal is zero, and so is what the last element of R would divide.
    below = tf.linalg.band_part(product - tf.linalg.adjoint(product), -1, 0)
    diagonal = tf.linalg.diag_part(first)
    diagonal = tf.concat([diagonal[..., :-1], tf.ones_like(diagonal[..., -1:])], -1)
    turned = tf.linalg.triangular_solve(tf.linalg.set_diag(first, diagonal), tf.linalg.adjoint(below), lower=False)
    return tf.matmul(q, tf.concat([of_first + tf.linalg.adjoint(turned), of_rest], -1))


GRADIENTS = {"LogMatrixDeterminant": _log_determinant, "MatrixDeterminant": _determinant, "Qr": _qr}
