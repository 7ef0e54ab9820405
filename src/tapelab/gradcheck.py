"""Derivatives by central differences: an oracle that knows nothing of tapes.

Everything here computes in float64. With step h the truncation error of a central difference is :math:`O(h²)` and its
rounding error :math:`O(ε / h)`; they balance near :math:`h = ∛ε`, about 6e-6 times the size of x, where some ten
correct digits remain. See J. Nocedal and S. Wright, *Numerical Optimization*, 2nd ed., section 8.1.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

STEP = float(np.finfo(np.float64).eps ** (1 / 3))


def _float64(name: str, value: ArrayLike) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} has dtype {array.dtype}; expected real numbers")
    return array.astype(np.float64)


def _evaluate(f: Callable[[np.ndarray], ArrayLike], x: np.ndarray) -> np.ndarray:
    y = np.asarray(f(x))
    if y.dtype != np.float64:
        raise TypeError(
            f"f returned dtype {y.dtype} for a float64 input; differences of lower precision are mostly rounding "
            "error. Compute f in float64 throughout (Keras: dtype='float64')."
        )
    return y


def numerical_jacobian(f: Callable[[np.ndarray], ArrayLike], x: ArrayLike, step: float = STEP) -> np.ndarray:
    """Return the Jacobian of f at x by central differences, two evaluations of f for each element of x.

    Args:
        f: takes a float64 array of x's shape; returns a float64 array or tensor of any one shape.
        x: array of any shape, real.
        step: the step h, relative to max(1, abs(x_i)) for each element x_i.

    Returns:
        float64 array of shape ``f(x).shape + x.shape``; for a scalar-valued f this is the gradient.

    Raises:
        TypeError: if x is not real, or f computes in lower precision.
    """
    x = _float64("x", x)
    columns = []
    for index in np.ndindex(x.shape):
        h = step * max(1.0, abs(x[index]))
        forward, backward = x.copy(), x.copy()
        forward[index] += h
        backward[index] -= h
        columns.append((_evaluate(f, forward) - _evaluate(f, backward)) / (forward[index] - backward[index]))
    if not columns:
        return np.zeros(_evaluate(f, x).shape + x.shape)
    return np.stack(columns, axis=-1).reshape(columns[0].shape + x.shape)


def check_gradient(
    f: Callable[[np.ndarray], ArrayLike],
    gradient: ArrayLike,
    x: ArrayLike,
    *,
    directions: int = 5,
    seed: int = 0,
    rtol: float = 1e-6,
    step: float = STEP,
) -> float:
    """Compare a gradient with central differences along random directions.

    For a unit direction u the directional derivative of f is the inner product of the gradient with u, at the cost of
    two evaluations of f whatever the size of x. A wrong gradient passes only if its error is orthogonal to every u.

    Args:
        f: takes a float64 array of x's shape; returns a float64 scalar.
        gradient: the gradient of f at x, of x's shape.
        x: array of any shape, real.
        directions: how many directions to try.
        seed: of the directions.
        rtol: the largest error allowed, relative to the gradient's norm (absolute where that is below 1).
        step: the step h, relative to max(1, norm(x)).

    Returns:
        The largest error found, a float.

    Raises:
        ValueError: if the gradient's shape is not that of x, or f is not scalar-valued.
        AssertionError: if the error exceeds rtol; names the direction's two values.
    """
    x, gradient = _float64("x", x), _float64("gradient", gradient)
    if gradient.shape != x.shape:
        raise ValueError(f"the gradient has shape {gradient.shape}; expected the shape of x, {x.shape}")
    generator = np.random.default_rng(seed)
    h = step * max(1.0, float(np.linalg.norm(x)))
    scale = max(1.0, float(np.linalg.norm(gradient)))
    worst = 0.0
    for _ in range(directions):
        u = generator.standard_normal(x.shape)
        u /= np.linalg.norm(u)
        forward, backward = _evaluate(f, x + h * u), _evaluate(f, x - h * u)
        if forward.shape != ():
            raise ValueError(f"f returned shape {forward.shape}; expected a scalar")
        expected = float(forward - backward) / (2 * h)
        actual = float(np.sum(gradient * u))
        error = abs(actual - expected) / scale
        if not error <= rtol:
            raise AssertionError(
                f"along a random direction the gradient gives {actual:.8g}, central differences give {expected:.8g}: "
                f"a relative error of {error:.1e}, above {rtol:.1e}"
            )
        worst = max(worst, error)
    return worst
