"""What a fit by least squares found: the parameters, and what the Jacobian at the end tells of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tapelab.optimize.report import Report, largest
from tapelab.process.tensorflow import tf

import numpy as np


def _linear(z: np.ndarray) -> np.ndarray:
    return np.stack([z, np.ones_like(z), np.zeros_like(z)])


# What a residual costs, as SciPy takes it: of z, the square of the residual over f_scale, the cost and its first and
# second derivative. All are convex in the residual.
LOSSES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "linear": _linear,
    # Charbonnier et al., "Two deterministic half-quadratic regularization algorithms for computed imaging", 1994
    "soft_l1": lambda z: np.stack([2 * z / (1 + np.sqrt(1 + z)), (1 + z) ** -0.5, -((1 + z) ** -1.5) / 2]),
    # Huber, "Robust estimation of a location parameter", 1964
    "huber": lambda z: np.where(
        z <= 1, _linear(z), np.stack([2 * z**0.5 - 1, np.maximum(z, 1) ** -0.5, -(np.maximum(z, 1) ** -1.5) / 2])
    ),
}
_OFFSET = 1e-3  # of Bates and Watts


class Fit:
    """The residuals of m observations and their Jacobian for n parameters at a point, in float64.

    Args:
        point, residuals, jacobian: of shapes (n,), (m,) and (m, n).
        loss, scale: what a residual costs, of `LOSSES`, and the size from which on it counts less.
        bounds: with the rows lower and upper, shape (2, n).

    Attributes:
        point, jacobian: as given.
        value: what the residuals cost.
        slopes, curvatures: the first and second derivative of that in each residual, shape (m,).
        gradient: of the value, shape (n,).
        held: which parameters are held at a bound, booleans of shape (n,): pushed against it, and on it or so near that
            the residuals would change by less than half their digits on the way there: far less than a standard error.
        gradient_norm: the largest magnitude in the gradient, in the elements that are not held at a bound.
        rounding: the relative rounding error of what the residuals were computed in.
    """

    @np.errstate(invalid="ignore", over="ignore")  # no bound and no influence; residuals that are not finite
    def __init__(
        self, point: np.ndarray, residuals: tf.Tensor, jacobian: np.ndarray, loss: Callable, scale: float, bounds: Any
    ):
        self.rounding = max(float(np.finfo(dtype).eps) for dtype in (residuals.dtype.as_numpy_dtype, jacobian.dtype))
        values, self.point, self.jacobian = residuals.numpy().astype(np.float64), point, jacobian.astype(np.float64)
        z = (values / scale) ** 2
        cost, first, second = loss(z)
        self.value = float(np.sum(cost)) * scale**2 / 2
        self.slopes, self.curvatures = values * first, first + 2 * z * second
        self.gradient, norms = self.jacobian.T @ self.slopes, np.linalg.norm(self.jacobian, axis=0)
        below, above = np.abs(point - bounds)
        distance = np.minimum(below, above)
        near = (distance == 0) | ((norms > 0) & (distance * norms <= self.rounding**0.5 * np.linalg.norm(self.slopes)))
        pushed = np.where(below < above, self.gradient >= 0, self.gradient <= 0)
        self.held = near & pushed & np.isfinite(self.gradient)
        self.gradient_norm = largest(self.gradient[~self.held])


@dataclass
class LeastSquaresReport(Report):
    """What `levenberg_marquardt` did and found. ``value`` is half the sum of the squares, or what a robust loss has.

    Attributes:
        converged: whether the step to the minimum of the linearised residuals is small at the end.
        parameters: the variables' values at the end, packed, shape (n,), in float64.
        at_bound: which parameters are at a bound at the end, booleans of shape (n,).
        residuals: how many there are.
        rank: of the Jacobian at the end, as far as its dtype tells: of the columns of parameters that are not at a
            bound.
        standing: None; the Jacobian tells less than a Hessian, and `stands` says what.
    """

    parameters: np.ndarray = field(default_factory=lambda: np.empty(0))
    at_bound: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    residuals: int = 0
    rank: int = 0
    _covariance: np.ndarray | str = field(default="", repr=False)  # or why there is none

    @property
    def stands(self) -> str:
        """What the Jacobian tells of the end, in a sentence; empty where the minimisation has not converged."""
        if not self.converged:
            return ""
        n = self.residuals - self.degrees_of_freedom
        held = ", ".join(map(str, np.flatnonzero(self.at_bound)))
        bounded = f"; the elements {held} (in the order of pack) are at a bound, and have no standard error"
        found = (
            f"a minimum of the linearised residuals: the Jacobian has full rank {n}; the curvature of the residuals "
            "themselves was not looked at"
        )
        if self.rank < n:
            found = (
                f"the Jacobian has rank {self.rank} for {n} parameters: along some directions the residuals do not "
                "change to first order, and whether this is a minimum, a saddle or a flat place is not known"
            )
        return found + bounded * bool(held)

    @property
    def degrees_of_freedom(self) -> int:
        """The number of residuals less that of parameters that are not at a bound."""
        return self.residuals - int(np.count_nonzero(~self.at_bound))

    @property
    def covariance(self) -> np.ndarray:
        """The parameters' estimated covariance matrix σ² (JᵀJ)⁻¹, shape (n, n), in the order of `pack`.

        σ² is the sum of squares over the degrees of freedom: residuals of one unknown variance, not correlated; or 1,
        with ``absolute_sigma``. With a robust loss it is Huber's, K² Σψ² / (degrees of freedom · mean(ψ')²), where ψ is
        the loss' derivative and K = 1 + n var(ψ') / (residuals · mean(ψ')²) ("Robust statistics", 1981, section 7.6):
        SciPy's `curve_fit` takes the weighted Jacobian in place of that. It means what it says where the fit is a
        minimum and the residuals are nearly linear within the errors.

        A parameter at a bound counts as fixed: its rows and columns are NaN. The others' are those of a fit without it,
        which is right where the bound is known to hold, and too small where the bound is a guess.

        Raises:
            ValueError: if there are no degrees of freedom, or J does not determine all parameters.
        """
        if isinstance(self._covariance, str):
            raise ValueError(f"no covariance exists: {self._covariance}")
        return self._covariance

    @property
    def standard_errors(self) -> np.ndarray:
        """The square roots of the covariance's diagonal, shape (n,); NaN for a parameter at a bound.

        Raises:
            ValueError: as `covariance`.
        """
        return np.sqrt(np.diag(self.covariance))

    def judge(self, here: Fit, absolute_sigma: bool) -> None:
        """Note whether the step to the minimum of the linearised residuals is small, and what the Jacobian tells.

        Args:
            here: the end.
            absolute_sigma: whether the residuals have the standard deviation 1.
        """
        self.parameters, self.residuals, self.at_bound = here.point, here.slopes.size, here.held
        free, rounding = np.flatnonzero(~here.held), here.rounding
        jacobian, point = here.jacobian[:, free], np.abs(here.point[free])
        norms, size = np.linalg.norm(jacobian, axis=0), float(np.linalg.norm(here.slopes))
        # A parameter that moves the residuals by no more than rounding when it changes by all of itself is not
        # determined.
        seen = (norms > 0) & ((point == 0) | (norms * point > rounding * max(largest(norms * point), size)))
        scale = np.where(seen, norms, 1)
        left, values, right = np.linalg.svd(np.where(seen, jacobian, 0) / scale, full_matrices=False)
        kept = values > rounding * max(jacobian.shape) * largest(values)
        left, values, right = left[:, kept], values[kept], right[kept]
        self.rank, freedom = values.size, max(self.degrees_of_freedom, 1)
        # Of the cost, the curvature is mean(ψ') JᵀJ, as Huber takes it.
        mean, along = float(np.mean(here.curvatures)), left.T @ here.slopes
        deviation = size * (1 + free.size / self.residuals * np.var(here.curvatures) / (mean**2 or np.inf))
        step, moved = np.abs(along / values @ right) / scale, float(np.linalg.norm(along))
        beside_error = moved <= _OFFSET * deviation * (free.size / freedom) ** 0.5
        digits = (step <= mean * rounding**0.5 * point).all()
        rounded = moved <= 4 * rounding * np.linalg.norm(np.abs(jacobian) @ point)
        self.converged = bool(beside_error or digits or rounded)
        self.reason += f"; a Gauss-Newton step from here is {'' if self.converged else 'not '}small"
        if self.rank < free.size:
            blind = ", ".join(map(str, free[np.sum(right**2, axis=0) < 1 - rounding**0.5]))
            self._covariance = (
                f"the Jacobian has rank {self.rank} for {free.size} parameters, and does not determine the elements "
                f"{blind} (in the order of pack) apart from each other. Fix or merge parameters, or add data"
            )
        elif self.degrees_of_freedom < 1 and not absolute_sigma:
            self._covariance = f"{self.residuals} residuals for {free.size} parameters leave no degrees of freedom"
        elif mean <= rounding:
            self._covariance = "every residual is beyond f_scale, where Huber's loss is straight. Pass a larger one"
        else:
            root = right.T / values / scale[:, np.newaxis]
            variance = 1.0 if absolute_sigma else (deviation / mean) ** 2 / freedom
            self._covariance = np.full((here.point.size,) * 2, np.nan)
            self._covariance[np.ix_(free, free)] = variance * (root @ root.T)
