"""Eigenvalues and singular values that are equal, and small matrices: eigh, eigvalsh and svd.

TensorFlow's gradients divide by differences of eigenvalues, put zero for the quotient where two are equal, and take any
two for equal that differ by less than 1e-10, whatever the size of the matrix. So terms are lost without a word: the
second derivatives of the sum of λ² at the identity, the gradients of a square root by eigenvalues, a pseudoinverse or
the polar factor U Vᴴ there, all of them for a matrix of the size of 1e-6.

Here equality is relative to the largest value, what is regular is written so that it is, and the limit is taken where
it exists (`tapelab.derivatives.wrong.cures.ties`):

- A = V diag(λ) Vᴴ. With P the skew part of VᴴV̄, Ā = V (diag(λ̄) + P_ij / (λ_j - λ_i)) Vᴴ (Magnus 1985; for functions
  of matrices these are the divided differences of Daleckii and Krein 1965). The kernel reads the lower triangle of A,
  and so the gradient has numbers there alone, as TensorFlow's.
- A = U diag(s) Vᴴ. With P and Q the skew parts of UᴴŪ and VᴴV̄ (Townsend 2016, "Differentiating the singular value
  decomposition", rewritten), Ā = U (diag(s̄) + (P + Q)_ij / (s_j - s_i) + (P - Q)_ij / (s_j + s_i)) Vᴴ, and
  (1 - UUᴴ) Ū diag(1/s) Vᴴ with its like for V. Where s_i = s_j only P + Q has to vanish; the polar factor has P = -Q.

What has no derivative is NaN: a function of one eigenvector of a double eigenvalue, or of the phase of a complex one.
So is what is not known: second derivatives of a function of eigenvectors at equal eigenvalues (those of functions of
eigenvalues alone are right), a limit in a function that runs eagerly, one where a `tf.function` within returns
eigenvectors, second derivatives of a `tf.function` within at equal eigenvalues, and those of a function of a matrix
that is computed from another one's decomposition.
A single eigenvalue among equal ones, or a singular value that is zero, has a kink: what is given is TensorFlow's
derivative of it, in the basis that it computes.
"""

from collections.abc import Callable

from tapelab.derivatives.wrong.cotangents import is_zero
from tapelab.derivatives.wrong.cures.ties import (
    Cotangents,
    as_numbers,
    cotangents,
    differences,
    given,
    quotient,
    slopes,
    sums,
)
from tapelab.derivatives.wrong.replaced_gradients import plain
from tapelab.process.tensorflow import Tensors, tf


def _self_adjoint_eig(op: tf.Operation, of_values: tf.Tensor, of_vectors: tf.Tensor) -> tf.Tensor:
    """tf.linalg.eigh: right at equal eigenvalues and for small matrices; TensorFlow leaves out terms there."""
    if op.get_attr("compute_v"):
        return _lower(_gradient(op, of_values, [of_vectors], _eigenvalue_gradient))
    return _lower(_gradient_of_values(op, of_values, tf.linalg.eigh, _eigenvalue_gradient))


def _svd(op: tf.Operation, of_values: tf.Tensor, of_left: tf.Tensor, of_right: tf.Tensor) -> tf.Tensor:
    """tf.linalg.svd: right at equal singular values and for small matrices; TensorFlow leaves out terms there."""
    if op.get_attr("compute_uv"):
        return _gradient(op, of_values, [of_left, of_right], _singular_value_gradient)
    return _gradient_of_values(op, of_values, tf.linalg.svd, _singular_value_gradient)


def _gradient(
    op: tf.Operation, of_values: tf.Tensor, of_vectors: list[tf.Tensor], gradient: Callable[..., tf.Tensor]
) -> tf.Tensor:
    """Return the gradient by the matrix of an operation that has computed values and vectors."""
    values, *vectors = op.outputs
    if all(map(is_zero, of_vectors)):
        return gradient(values, vectors, of_values)
    return gradient(values, vectors, of_values, cotangents(of_values, vectors, of_vectors))


def _gradient_of_values(
    op: tf.Operation,
    of_values: tf.Tensor,
    decompose: Callable[[tf.Tensor], Tensors],
    gradient: Callable[..., tf.Tensor],
) -> tf.Tensor:
    """Return the gradient by the matrix of an operation that has computed values alone.

    It is L diag(weights) Rᴴ, with the vectors L and R and the cotangents of the values as weights. Its own derivative
    at equal values needs that of the weights by the values, and these are not those that come with the vectors.
    """

    @tf.custom_gradient
    def weighted(
        matrix: tf.Tensor, weights: tf.Tensor
    ) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]]:
        values, *vectors = decompose(matrix)
        left, right = vectors[0], vectors[-1]

        def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            def of_vectors(weights: tf.Tensor) -> list[tf.Tensor]:
                weights = tf.cast(weights, upstream.dtype)[..., None, :]
                of_left = tf.matmul(upstream, right) * weights
                of_right = tf.matmul(upstream, left, adjoint_a=True) * weights
                return [of_left, of_right] if len(vectors) == 2 else [of_left + of_right]

            of_weights = tf.linalg.diag_part(tf.matmul(left, tf.matmul(upstream, right), adjoint_a=True))
            own = Cotangents(of_vectors(weights))
            if not tf.executing_eagerly():
                (along,) = slopes(of_values, op.outputs[:1])
                own = own._replace(along=of_vectors(along), given=given([of_values], op.outputs[0].graph))
            of_matrix = gradient(values, vectors, tf.zeros_like(values), own)
            return of_matrix, as_numbers(tf.math.real(of_weights), weights)

        return gradient(values, vectors, weights), backward

    return weighted(op.inputs[0], of_values)


def _eigenvalue_gradient(
    values: tf.Tensor, vectors: Tensors, of_values: tf.Tensor, of_vectors: Cotangents | None = None
) -> tf.Tensor:
    """Return the Hermitian gradient of what is computed from eigenvalues and eigenvectors.

    Args:
        values: shape (..., n). Where the matrix is complex, so may they be.
        vectors: a list of one tensor.
        of_values: the cotangent of the values.
        of_vectors: the `Cotangents` of the vectors; None where nothing depends on them.
    """
    (v,), values, of_values = vectors, tf.math.real(values), tf.math.real(of_values)
    middle = tf.linalg.diag(as_numbers(of_values, v))
    if of_vectors is not None:
        size = _size(of_vectors.now, of_values, values)
        middle += quotient(lambda of_v: _skew(v, of_v), differences, of_vectors, values, size)
    return tf.matmul(v, tf.matmul(middle, v, adjoint_b=True))


def _singular_value_gradient(
    values: tf.Tensor, vectors: Tensors, of_values: tf.Tensor, of_vectors: Cotangents | None = None
) -> tf.Tensor:
    """Return the gradient of what is computed from singular values and vectors. Args as for `_eigenvalue_gradient`."""
    (u, v), values, of_values = vectors, tf.math.real(values), tf.math.real(of_values)
    if None in (*u.shape[-2:], *v.shape[-2:]):
        raise NotImplementedError(
            "the gradient of tf.linalg.svd of a matrix whose shape is not known while it is traced"
        )
    count = values.shape[-1]
    left, right = u[..., :count], v[..., :count]
    middle = tf.linalg.diag(as_numbers(of_values, u))
    if of_vectors is None:
        return tf.matmul(left, tf.matmul(middle, right, adjoint_b=True))
    size = _size(of_vectors.now, of_values, values)

    def over(denominators: Callable[[tf.Tensor], tf.Tensor], numerator: Callable[..., tf.Tensor]) -> tf.Tensor:
        return quotient(numerator, denominators, of_vectors, values, size)

    def turned(of_u: tf.Tensor, of_v: tf.Tensor, sign: int) -> tf.Tensor:
        return _skew(left, of_u[..., :count]) + sign * _skew(right, of_v[..., :count])

    middle += over(differences, lambda of_u, of_v: turned(of_u, of_v, 1))
    middle += over(sums if u.dtype.is_complex else _sums_apart, lambda of_u, of_v: turned(of_u, of_v, -1))
    gradient = tf.matmul(left, tf.matmul(middle, right, adjoint_b=True))
    if u.shape[-2] > count:
        gradient += tf.matmul(_outwards(over, 0, u, count), right, adjoint_b=True)
    if v.shape[-2] > count:
        gradient += tf.matmul(left, _outwards(over, 1, v, count), adjoint_b=True)
    return gradient


def _outwards(
    over: Callable[[Callable[[tf.Tensor], tf.Tensor], Callable[..., tf.Tensor]], tf.Tensor],
    side: int,
    vectors: tf.Tensor,
    count: int,
) -> tf.Tensor:
    """What turns singular vectors out of the space that they span, (1 - UUᴴ) Ū / s, and nothing turns in the rest.

    Of full matrices, vectors[..., count:] is an arbitrary basis of that rest: what depends on the choice is NaN.
    """
    inside, rest = vectors[..., :count], vectors[..., count:]

    def outwards(*of: tf.Tensor) -> tf.Tensor:
        of_inside, of_rest = of[side][..., :count], of[side][..., count:]
        if rest.shape[-1] == 0:
            return of_inside - tf.matmul(inside, tf.matmul(inside, of_inside, adjoint_a=True))
        into = tf.matmul(rest, of_inside, adjoint_a=True) - tf.matmul(of_rest, inside, adjoint_a=True)
        return tf.matmul(rest, into)

    outwards = over(lambda values: values[..., None, :], outwards)
    if rest.shape[-1] == 0:
        return outwards
    free = over(lambda values: tf.zeros_like(values[..., :1, None]), lambda *of: _skew(rest, of[side][..., count:]))
    return outwards + tf.reduce_sum(free, [-2, -1], keepdims=True)


def _sums_apart(values: tf.Tensor) -> tf.Tensor:
    """Sums of two values, without those of a value and itself: nothing real turns in one dimension."""
    return tf.linalg.set_diag(sums(values), tf.zeros_like(values))


def _skew(vectors: tf.Tensor, cotangent: tf.Tensor) -> tf.Tensor:
    """Half of VᴴV̄ - V̄ᴴV: the derivatives by rotations of the columns."""
    product = tf.matmul(vectors, cotangent, adjoint_a=True)
    return (product - tf.linalg.adjoint(product)) / 2


def _size(of_vectors: Tensors, of_values: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """What rotations of the vectors change at most, shape (..., 1, 1), but for a factor of the size of the matrix."""
    largest = [tf.reduce_max(tf.abs(each), [-2, -1], keepdims=True) for each in of_vectors]
    product = tf.reduce_max(tf.abs(of_values), -1) * tf.reduce_max(tf.abs(values), -1)
    return tf.add_n(largest) + product[..., None, None]


def _cholesky(op: tf.Operation, upstream: tf.Tensor) -> tf.Tensor:
    """tf.linalg.cholesky: to the lower triangle, which alone is read; TensorFlow's gradient is spread over both."""
    return _lower(plain("Cholesky")(op, upstream))


def _lower(gradient: tf.Tensor) -> tf.Tensor:
    """Give the gradient by a Hermitian matrix to its lower triangle: the kernel reads no other."""
    lower = tf.linalg.band_part(gradient + tf.linalg.adjoint(gradient), -1, 0)
    return tf.linalg.set_diag(lower, 0.5 * tf.linalg.diag_part(lower))


GRADIENTS = {"Cholesky": _cholesky, "SelfAdjointEigV2": _self_adjoint_eig, "Svd": _svd}
