"""Quotients of two numbers that vanish together, as the derivatives of eigenvectors have them where eigenvalues agree.

The gradient of a function of eigenvalues λ and eigenvectors V has the terms P_ij / (λ_j - λ_i), where P_ij is the
derivative by a rotation of V in the plane of its columns i and j. Where λ_i = λ_j the basis of that plane is arbitrary.
A function that does not depend on the choice has P_ij = 0 there, and the quotient is 0/0. By l'Hôpital's rule along a
direction τ that parts the eigenvalues, its limit is P'_ij / (τ_j - τ_i), with P' = dP(λ + t τ, V) / dt.

Second derivatives can be taken in either order. So P' is the derivative by that rotation of the sum of the τ_i ∂/∂λ_i:
one more backward pass, from the cotangents of λ to V. It needs the graph on the way from V to those cotangents, and is
not there eagerly, nor where eigenvalues and their use are in different functions.
"""

from collections.abc import Sequence

from tapelab.runtime import tf

import numpy as np

# Rounding, in units of machine epsilon times the size of the matrix: two values that differ by less of the largest one
# are equal, and a numerator below it counts as zero. What decompositions return is off by less than ten units.
_ROUNDING = 50


def directions(values: tf.Tensor) -> tf.Tensor:
    """Return the direction τ for values of shape (..., n): 1, 2, ..., n, of their dtype."""
    return tf.range(1, values.shape[-1] + 1, dtype=values.dtype)


def slopes(cotangent: tf.Tensor, by: Sequence[tf.Tensor]) -> list[tf.Tensor] | None:
    """Return the derivatives, by outputs of an operation, of τ times the cotangent of the values that it computed.

    Args:
        cotangent: of the values, shape (..., n); its real part counts.
        by: outputs of the operation.

    Returns:
        For each tensor the derivative, zeros where the cotangent does not depend on it. None where that is not known.
    """
    if tf.executing_eagerly() or not _is_followed(cotangent, by[0].graph):
        return None
    real = tf.math.real(cotangent)
    parting = tf.reduce_sum(directions(real) * real)
    return tf.gradients(parting, list(by), unconnected_gradients=tf.UnconnectedGradients.ZERO)


def _is_followed(tensor, home):
    """Whether all real numbers that a tensor is computed from are seen, back to this graph: none is a function's input.

    What the graph of a loop or function has captured is seen, and comes from outside. What it is called with is not.
    """
    left, seen = [tensor], set()
    while left:
        tensor = left.pop()
        if tensor.graph is home or tensor.ref() in seen:
            continue
        seen.add(tensor.ref())
        if tensor.op.type == "Placeholder":
            outside = [outer for outer, inner in tensor.graph.captures if inner is tensor]
            if not outside and (tensor.dtype.is_floating or tensor.dtype.is_complex):
                return False
            left += [outer for outer in outside if tf.is_symbolic_tensor(outer)]
        left += tensor.op.inputs
    return True


def differences(values: tf.Tensor) -> tf.Tensor:
    """Return values_j - values_i for values of shape (..., n)."""
    return values[..., None, :] - values[..., :, None]


def sums(values: tf.Tensor) -> tf.Tensor:
    """Return values_j + values_i for values of shape (..., n)."""
    return values[..., None, :] + values[..., :, None]


def quotient(numerator: tf.Tensor, slope: tf.Tensor | None, of, values: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Return a numerator over differences, sums or others of values: by l'Hôpital's rule where both vanish.

    The result is NaN where the denominator vanishes and the numerator does not. Where the limit was taken the result
    has a derivative by the numerator and by its slope alone; that by the values is NaN.

    Args:
        numerator: shape (..., m, n), real or complex.
        slope: its derivative along τ; None if that is not known: then 0/0 is NaN where a limit is needed.
        of: linear, from the values to the denominators, shape (..., m, n) or one that broadcasts to it. Where that of τ
            is zero, so is the quotient.
        values: shape (..., n), real.
        size: of what the numerator was computed from, shape (..., 1, 1), real. Its rounding error is in proportion.
    """
    real, shape = values.dtype.as_numpy_dtype, numerator.shape[-2:]
    rounding = real(_ROUNDING * max(shape) * np.finfo(real).eps)
    largest = tf.reduce_max(tf.abs(values), -1)[..., None, None]
    denominator, parting = of(values), of(directions(values))
    never = parting == 0
    one = tf.ones_like(denominator)
    known = never if slope is None else tf.ones_like(never)
    slope = tf.zeros_like(numerator) if slope is None else slope
    limit = tf.where(never, tf.zeros_like(slope), slope / as_numbers(tf.where(never, tf.ones_like(parting), parting), slope))
    error = rounding * (size + largest * _size(limit))
    near = tf.abs(denominator) <= max(rounding, np.sqrt(np.finfo(real).eps)) * largest
    close = tf.abs(numerator - limit * as_numbers(denominator, limit)) <= error
    take = near & known & close
    equal = tf.abs(denominator) <= rounding * largest
    plain = numerator / as_numbers(tf.where(take | equal, one, denominator), numerator)
    plain = tf.where(equal, as_numbers(tf.constant(np.nan, values.dtype), numerator), plain)
    return tf.where(take, _only_once(limit, take & ~never, values), plain)


def _size(matrix):
    """The largest modulus of a matrix, shape (..., 1, 1)."""
    return tf.reduce_max(tf.abs(matrix), [-2, -1], keepdims=True)


def as_numbers(real: tf.Tensor, like: tf.Tensor) -> tf.Tensor:
    """Return real numbers as complex ones where another tensor is; `tf.cast` would warn when it is differentiated."""
    return tf.complex(real, tf.zeros_like(real)) if like.dtype.is_complex else real


@tf.custom_gradient
def _only_once(limit, taken, values):
    """Return a limit, of shape (..., m, n), whose own derivative by the values is NaN where it is taken."""

    def backward(upstream):
        lost = tf.reduce_any(taken & (upstream != 0), [-2, -1])[..., None]
        return upstream, None, tf.where(lost, tf.constant(np.nan, values.dtype), tf.zeros_like(values))

    return tf.identity(limit), backward
