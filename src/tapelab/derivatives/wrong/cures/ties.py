"""Quotients of two numbers that vanish together, as the derivatives of eigenvectors have them where eigenvalues agree.

The gradient of a function of eigenvalues λ and eigenvectors V has the terms P_ij / (λ_j - λ_i), where P_ij is the
derivative by a rotation of V in the plane of its columns i and j. Where λ_i = λ_j the basis of that plane is arbitrary.
A function that does not depend on the choice has P_ij = 0 there, and the quotient is 0/0. By l'Hôpital's rule along a
direction τ that parts the eigenvalues, its limit is P'_ij / (τ_j - τ_i), with P' = dP(λ + t τ, V) / dt.

Second derivatives can be taken in either order. So P' is the derivative by that rotation of the sum of the τ_i ∂/∂λ_i:
one more backward pass, from the cotangents of λ to V. Another one, from P to V, sees whether P vanishes at every choice
of the basis, or at the one that was computed by chance. Both need the graph on the way from V to the cotangents, and
so are not there eagerly. Where the values go on into another decomposition, these passes go through its limits, and
a derivative of it all is some ten times as large again with each one: there the way may not be long.
"""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.graphs.operations import with_fact
from tapelab.graphs.program import captures
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

# Rounding, in units of machine epsilon times the size of the matrix: two values that differ by less of the largest one
# are equal, and a numerator below it counts as zero. What decompositions return is off by less than ten units.
_ROUNDING = 50

# Operations between the vectors and their cotangents, if another decomposition is among them: on a longer way no limit
# is taken. A function of a function of a matrix has 1,500 for its gradient. For the second derivatives it would be
# 3,300, from which TensorFlow makes a graph of several minutes and gigabytes.
_LONGEST = 2000
_DECOMPOSITIONS = with_fact("spectral") - {"Eig"}  # of that no limits are taken


class Cotangents(NamedTuple):
    """Cotangents of the vectors that an operation computed, and what is known of how they came about.

    Attributes:
        now: for each kind of vectors, their cotangent.
        along: its derivatives along τ; None where they are not known.
        vary: from a real number that was computed from `now`, its derivatives by the vectors. None where what is
            divided vanishes for every choice of them.
        given: what the cotangents depend on and comes from outside of the function that computed values and vectors:
            the cotangents of its results.
    """

    now: Tensors
    along: Tensors | None = None
    vary: Callable[[tf.Tensor], Tensors] | None = None
    given: Tensors = ()


def cotangents(of_values: tf.Tensor, vectors: Tensors, of_vectors: Tensors) -> Cotangents:
    """Return the cotangents of the vectors that one operation computed, with what the graph says of them.

    It says nothing eagerly, nor where that would be too large.

    Args:
        of_values: the cotangent of the values, shape (..., n).
        vectors: those outputs of the operation.
        of_vectors: their cotangents.
    """
    if tf.executing_eagerly() or _is_long(vectors[0].op, [of_values, *of_vectors]):
        return Cotangents(of_vectors)
    along = slopes(of_values, vectors)
    outside = given([of_values, *of_vectors], vectors[0].graph)
    return Cotangents(of_vectors, along, lambda number: gradients(number, vectors), outside)


def _is_long(start: tf.Operation, ends: Tensors) -> bool:
    """Whether the way from a decomposition to tensors is a long one, through other decompositions."""
    left, between = list(ends), {start}
    while left:
        tensor = left.pop()
        if tensor.op not in between:
            between.add(tensor.op)
            left += [*tensor.op.inputs, *filter(tf.is_symbolic_tensor, _captured(tensor))]
    return len(between) > _LONGEST and any(op.type in _DECOMPOSITIONS for op in between - {start})


def _captured(tensor: tf.Tensor) -> list[tf.Tensor]:
    """What a placeholder in the graph of a loop or a function stands for, where that is seen: none, or one tensor."""
    if tensor.op.type != "Placeholder":
        return []
    return [outer for outer, inner in captures(tensor.graph) if inner is tensor]


def slopes(of_values: tf.Tensor, by: Tensors) -> list[tf.Tensor]:
    """Return the derivatives, by outputs of an operation, of τ times the cotangent of its values, in a graph."""
    real = tf.math.real(of_values)
    return gradients(tf.reduce_sum(directions(real) * real), by)


def gradients(number: tf.Tensor, by: Tensors) -> list[tf.Tensor]:
    """Return the derivatives of a number by tensors of a graph: zeros where it does not depend on them."""
    found = tf.gradients(number, list(by), unconnected_gradients=tf.UnconnectedGradients.ZERO)
    return [tf.convert_to_tensor(gradient) for gradient in found]


def directions(values: tf.Tensor) -> tf.Tensor:
    """Return the direction τ for values of shape (..., n): 1, 2, ..., n, of their dtype."""
    return tf.cast(tf.range(1, tf.shape(values)[-1] + 1), values.dtype)


def given(tensors: Tensors, home: tf.Graph) -> list[tf.Tensor]:
    """Return what real numbers tensors are computed from that come neither from this graph nor from around it.

    What the graph of a loop or a backward function has captured comes from outside. So does what it is called with,
    but from where is not seen.
    """
    left, seen, found = list(tensors), set(), []
    while left:
        tensor = left.pop()
        if tensor.graph is home or tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        if tensor.op.type == "Placeholder":
            outside = _captured(tensor)
            if not outside and (tensor.dtype.is_floating or tensor.dtype.is_complex):
                found.append(tensor)
            left += [outer for outer in outside if tf.is_symbolic_tensor(outer)]
        left += tensor.op.inputs
    return found


def differences(values: tf.Tensor) -> tf.Tensor:
    """Return values_j - values_i for values of shape (..., n)."""
    return values[..., None, :] - values[..., :, None]


def sums(values: tf.Tensor) -> tf.Tensor:
    """Return values_j + values_i for values of shape (..., n)."""
    return values[..., None, :] + values[..., :, None]


def quotient(
    numerator: Callable[..., tf.Tensor], of: Callable, cotangents: Cotangents, values: tf.Tensor, size: tf.Tensor
) -> tf.Tensor:
    """Return a numerator over differences or sums of values: by l'Hôpital's rule where both vanish.

    The result is NaN where the denominator vanishes and the numerator does not, or not for every basis. Where the limit
    was taken, the result has a derivative by the cotangents alone; that by the values is NaN.

    Args:
        numerator: linear, from cotangents of the vectors to what is divided: shape (..., m, n), real or complex.
        of: linear, from the values to the denominators, shape (..., m, n) or one that broadcasts to it. Where that of τ
            is zero, so is the quotient.
        cotangents: of the vectors.
        values: shape (..., n), real.
        size: of what the numerator is computed from, shape (..., 1, 1), real. Its rounding error is in proportion.
    """
    above, denominator, parting = numerator(*cotangents.now), of(values), of(directions(values))
    real, largest = values.dtype.as_numpy_dtype, tf.reduce_max(tf.abs(values), -1)[..., None, None]
    longer = tf.cast(tf.reduce_max(tf.shape(above)[-2:]), values.dtype)
    rounding = longer * real(_ROUNDING * np.finfo(real).eps)
    never, one = parting == 0, tf.ones_like(denominator)
    limit, known = tf.zeros_like(above), never
    if cotangents.along is not None:
        slope, known = numerator(*cotangents.along), tf.ones_like(never)
        limit = tf.where(never, limit, slope / as_numbers(tf.where(never, tf.ones_like(parting), parting), slope))
    equal = tf.abs(denominator) <= rounding * largest
    near = tf.abs(denominator) <= tf.maximum(rounding, np.sqrt(np.finfo(real).eps)) * largest
    rest = tf.abs(above - limit * as_numbers(denominator, limit))
    take = near & known & (rest <= rounding * (size + largest * _largest(limit)))
    if cotangents.along is not None:
        zeros = tf.where(take, above, tf.zeros_like(above))
        parted = _largest(tf.where(take, tf.abs(denominator), tf.zeros_like(denominator))) * _largest(limit)
        take &= _stays(zeros, numerator, cotangents, rounding, size, 8 * longer * parted)
    # NaN as the denominator: a product with tangents differentiates the quotient by its numerator.
    lost = tf.where(equal, tf.constant(np.nan, values.dtype), denominator)
    plain = above / as_numbers(tf.where(take, one, lost), above)
    return tf.where(take, _only_once(limit, take & ~never, values), plain)


def _stays(
    zeros: tf.Tensor,
    numerator: Callable[..., tf.Tensor],
    cotangents: Cotangents,
    rounding: tf.Tensor,
    size: tf.Tensor,
    margin: tf.Tensor,
) -> tf.Tensor:
    """Whether what is zero, but for rounding and a margin, stays so if vectors turn, and whatever is given."""
    weights = tf.reshape(tf.range(tf.reduce_prod(tf.shape(zeros)[-2:])), tf.shape(zeros)[-2:])
    weights = tf.cos(tf.cast(weights, size.dtype))
    total = tf.reduce_sum(weights * tf.math.real(zeros))
    if zeros.dtype.is_complex:
        total += tf.reduce_sum(tf.sin(weights) * tf.math.imag(zeros))
    stays = tf.ones_like(size, tf.bool)
    if cotangents.vary is not None:
        turned = cotangents.vary(total)
        size += tf.add_n([_largest(each) for each in turned])
        stays = tf.abs(numerator(*turned)) <= rounding * size + margin
    if cotangents.given:
        moves = tf.add_n([_most(each) for each in gradients(total, cotangents.given)])
        most = tf.add_n([_most(each) for each in cotangents.given])
        stays &= moves * most <= tf.reduce_max(rounding * size + margin)
    return stays


def _most(tensor: tf.Tensor) -> tf.Tensor:
    return tf.math.real(tf.reduce_max(tf.abs(tensor)))


def _largest(matrix: tf.Tensor) -> tf.Tensor:
    """The largest modulus of a matrix, shape (..., 1, 1)."""
    return tf.reduce_max(tf.abs(matrix), [-2, -1], keepdims=True)


def as_numbers(real: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return real numbers as complex ones where another tensor is; `tf.cast` would warn when it is differentiated."""
    return tf.complex(real, tf.zeros_like(real)) if like.dtype.is_complex else real


@tf.custom_gradient
def _only_once(
    limit: tf.Tensor, taken: tf.Tensor, values: tf.Tensor
) -> tuple[tf.Tensor, Callable[[tf.Tensor], tuple[tf.Tensor, None, tf.Tensor]]]:
    """Return a limit, of shape (..., m, n), whose own derivative by the values is NaN where it is taken."""

    def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, None, tf.Tensor]:
        lost = tf.reduce_any(taken & (upstream != 0), [-2, -1])[..., None]
        return upstream, None, tf.where(lost, tf.constant(np.nan, values.dtype), tf.zeros_like(values))

    return tf.identity(limit), backward
