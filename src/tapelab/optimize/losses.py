"""Robust losses: what a residual costs where it is large, so that outliers do not decide a fit.

A residual r, in units of a scale C, costs r²/2 where it is small, and |r| less a constant where it is large. Names, C
and costs are those of SciPy's `least_squares`.

    linear      r²/2
    soft_l1     √(1 + r²) - 1                      Charbonnier et al., "Two deterministic half-quadratic
                                                   regularization algorithms for computed imaging", 1994
    huber       r²/2 up to 1, |r| - 1/2 beyond     Huber, "Robust estimation of a location parameter", 1964

All three are convex. A step of Gauss and Newton weights each residual by the loss' second derivative in it, which is
Newton's for linear residuals (Triggs et al., "Bundle adjustment: a modern synthesis", 2000, section 4.3, equation 11).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# Of an outlier, relative to its weight in reweighted least squares. Huber's loss gives it none at all, and then there
# is no step where outliers alone determine a parameter.
_LEAST_WEIGHT = 0.1


def _linear(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return r, np.ones_like(r)


def _soft_l1(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    root = np.hypot(1, r)
    return r / root, root**-3


def _huber(r: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.clip(r, -1, 1), np.where(np.abs(r) <= 1, 1.0, 0.0)


def _linear_fall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a - b) * (a + b) / 2


def _soft_l1_fall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return (a - b) * ((a + b) / (np.hypot(1, a) + np.hypot(1, b)))


def _huber_fall(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    inner_a, inner_b = np.minimum(np.abs(a), 1), np.minimum(np.abs(b), 1)
    return (np.abs(a) - inner_a) - (np.abs(b) - inner_b) + (inner_a - inner_b) * (inner_a + inner_b) / 2


_LOSSES: dict[str, tuple[Callable, Callable]] = {
    "linear": (_linear, _linear_fall),
    "soft_l1": (_soft_l1, _soft_l1_fall),
    "huber": (_huber, _huber_fall),
}


@dataclass(frozen=True)
class Loss:
    """What residuals cost.

    Attributes:
        name: "linear" (half the square), "soft_l1" or "huber".
        scale: C, positive: where a residual begins to count as an outlier.

    Raises:
        ValueError: for an unknown name, or a scale that is not positive.
    """

    name: str = "linear"
    scale: float = 1.0

    def __post_init__(self) -> None:
        if self.name not in _LOSSES:
            raise ValueError(f"loss is {self.name!r}; expected one of {', '.join(map(repr, _LOSSES))}")
        if not 0 < self.scale < np.inf:
            raise ValueError(f"f_scale is {self.scale!r}; expected a positive number: the size of a good residual")
        if self.name == "linear" and self.scale != 1:
            raise ValueError(
                f"f_scale is {self.scale!r} with loss='linear', which has no scale; pass loss='soft_l1' or 'huber'"
            )

    def derivatives(self, residuals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the cost's first and second derivative in each residual."""
        first, second = _LOSSES[self.name][0](residuals / self.scale)
        return first * self.scale, second

    def weights(self, residuals: np.ndarray) -> np.ndarray:
        """Return what each residual counts in a Gauss-Newton step."""
        first, second = self.derivatives(residuals)
        ratio = np.divide(first, residuals, out=np.ones_like(first), where=residuals != 0)
        return np.maximum(second, _LEAST_WEIGHT * ratio)

    def fall(self, start: np.ndarray, end: np.ndarray) -> float:
        """Return by how much the cost falls from residuals to others, without cancellation between the two sums."""
        fall = _LOSSES[self.name][1]
        with np.errstate(over="ignore", invalid="ignore"):
            return float(np.sum(fall(start / self.scale, end / self.scale)) * self.scale**2)
