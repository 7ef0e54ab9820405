"""Newton's direction from one gradient: by a factorised matrix, and by conjugate gradients from products with it.

A Newton direction solves (H + damping I) d = -g. Where the Hessian H is not positive definite the undamped solution may
climb. See J. Nocedal and S. Wright, *Numerical Optimization*, 2nd ed.: section 3.4 (modified Newton), algorithm 7.1
(Newton-CG).
"""

from collections.abc import Callable

from tapelab.process.tensorflow import tf

import numpy as np


def newton_direction(gradient: tf.Tensor, matrix: tf.Tensor, damping: float = 0.0) -> tuple[tf.Tensor, float, bool]:
    """Solve (matrix + damping I) d = -gradient, with as much more damping as makes the matrix positive definite.

    Args:
        gradient: tensor of shape (n,).
        matrix: symmetric tensor of shape (n, n), of the gradient's dtype.
        damping: not negative. It is doubled until a Cholesky factorisation succeeds.

    Returns:
        A triple: the direction, shape (n,); the damping used; whether the matrix with the given damping was not
        positive definite.

    Raises:
        ValueError: for a matrix with NaN or infinity.
    """
    from scipy.linalg import LinAlgError, cho_factor, cho_solve

    gradient, matrix = np.asarray(gradient), np.asarray(matrix)
    # What this dtype leaves of an eigenvalue of zero is smaller than this.
    least = (np.max(np.abs(matrix)) or 1.0) * float(np.finfo(matrix.dtype).eps) ** 0.5
    used = damping
    while True:
        try:
            factor = cho_factor(matrix + used * np.eye(len(matrix), dtype=matrix.dtype))
            return tf.constant(-cho_solve(factor, gradient)), used, used > damping
        except LinAlgError:  # not positive definite
            used = max(2 * used, float(least))


def conjugate_gradient_direction(
    gradient: tf.Tensor,
    product: Callable[[tf.Tensor], tf.Tensor],
    damping: float = 0.0,
    *,
    tolerance: float | None = None,
    limit: int | None = None,
) -> tuple[tf.Tensor, int, bool]:
    """Solve (H + damping I) d = -gradient from Hessian-vector products, and stop where the curvature is not positive.

    Args:
        gradient: tensor of shape (n,).
        product: takes a tensor of shape (n,), returns the Hessian times it.
        damping: not negative.
        tolerance: the residual's norm to stop at, relative to the gradient's; by default min(1/2, sqrt(norm)), which
            is loose far from the minimum and gives superlinear convergence near it.
        limit: the largest number of products; by default n.

    Returns:
        A triple: the direction, shape (n,), which descends; the number of products; whether negative curvature was met.
    """
    require_at_least(damping=damping)
    residual = tf.convert_to_tensor(gradient)
    norm = float(tf.norm(residual))
    tolerance = min(0.5, norm**0.5) if tolerance is None else tolerance
    limit = residual.shape.num_elements() if limit is None else limit
    direction, search, squared = tf.zeros_like(residual), -residual, norm**2
    for count in range(1, limit + 1):
        image = product(search) + damping * search
        curvature = float(tf.tensordot(search, image, 1))
        if not curvature > 0:
            # The first search direction is steepest descent; the later ones have only improved on it.
            return (search if count == 1 else direction), count, True
        length = squared / curvature
        direction += length * search
        residual += length * image
        previous, squared = squared, float(tf.tensordot(residual, residual, 1))
        if squared**0.5 <= tolerance * norm:
            return direction, count, False
        search = -residual + (squared / previous) * search
    return direction, limit, False


def require_at_least(least: float = 0, **numbers: float) -> None:
    """Raise ValueError for a number, by its name, that is too small, or NaN."""
    for name, value in numbers.items():
        if not value >= least:
            raise ValueError(f"{name} is {value!r}; expected a number of {least} or more")
