"""What a fit by least squares found: the parameters, and what the Jacobian at the end tells of them."""

from dataclasses import dataclass, field

from tapelab.optimize.report import Report
from tapelab.optimize.residuals import Linearized

import numpy as np


@dataclass
class LeastSquaresReport(Report):
    """What `levenberg_marquardt` did and found. ``value`` is half the sum of the squares, or what a robust loss has.

    Attributes:
        converged: whether one of the three tests was passed.
        parameters: the variables' values at the end, packed, shape (n,), in float64.
        at_bound: which parameters are at a bound at the end, booleans of shape (n,).
        residuals: how many there are.
        rank: of the Jacobian at the end, as far as its dtype tells: of the columns of parameters that are not at a
            bound.
        smallest_singular_value: of these columns, in the parameters' units; 0 where residuals are fewer. Its square is
            the smallest eigenvalue of JᵀJ.
        standing: None; the Jacobian tells less than a Hessian, and `stands` says what.
    """

    parameters: np.ndarray = field(default_factory=lambda: np.empty(0))
    at_bound: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    residuals: int = 0
    rank: int = 0
    smallest_singular_value: float = 0.0
    _root: np.ndarray = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    _loose: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)
    _squares: float = field(default=0.0, repr=False)
    _absolute: bool = field(default=False, repr=False)

    @property
    def stands(self) -> str:
        """What the Jacobian tells of the end, in a sentence; empty where the minimisation has not converged."""
        if not self.converged:
            return ""
        n, bounded = self._free, ""
        if self.at_bound.any():
            bounded = (
                f"; the elements {', '.join(map(str, np.flatnonzero(self.at_bound)))} (in the order of pack) are at a "
                "bound, count as fixed there, and have no standard error"
            )
        if self.rank < n:
            return (
                f"the Jacobian has rank {self.rank} for {n} parameters: along some directions the residuals do not "
                f"change to first order, and whether this is a minimum, a saddle or a flat place is not known{bounded}"
            )
        return (
            f"a minimum of the linearised residuals: the Jacobian has full rank {n}, and its smallest singular value "
            f"is {self.smallest_singular_value:.3g}; the curvature of the residuals themselves was not looked at"
            f"{bounded}"
        )

    @property
    def _free(self) -> int:
        return int(np.count_nonzero(~self.at_bound))

    @property
    def degrees_of_freedom(self) -> int:
        """The number of residuals less that of parameters that are not at a bound."""
        return self.residuals - self._free

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
        n = self._free
        if self.rank < n:
            raise ValueError(
                f"the Jacobian has rank {self.rank} for {n} parameters: the residuals do not determine the elements "
                f"{', '.join(map(str, self._loose))} (in the order of pack) apart from each other, and no covariance "
                "exists. Fix or merge parameters, or add data"
            )
        if self.degrees_of_freedom < 1 and not self._absolute:
            raise ValueError(
                f"{self.residuals} residuals for {n} parameters leave no degrees of freedom: the variance of the "
                "residuals is not known, and so no covariance. Add data"
            )
        if not np.isfinite(self._squares):
            raise ValueError(
                "every residual is beyond f_scale, where Huber's loss is straight: no covariance exists. Pass a larger "
                "f_scale, about the size of a good residual"
            )
        variance = 1.0 if self._absolute else self._squares / self.degrees_of_freedom
        covariance = np.full((self.parameters.size,) * 2, np.nan)
        free = np.flatnonzero(~self.at_bound)
        covariance[np.ix_(free, free)] = variance * (self._root @ self._root.T)
        return covariance

    @property
    def standard_errors(self) -> np.ndarray:
        """The square roots of the covariance's diagonal, shape (n,); NaN for a parameter at a bound.

        Raises:
            ValueError: as `covariance`.
        """
        return np.sqrt(np.diag(self.covariance))

    def judge(self, here: Linearized, absolute_sigma: bool) -> None:
        """Note what the Jacobian at the end tells: its rank, its smallest singular value, and a root of (JᵀJ)⁻¹.

        Args:
            here: the end.
            absolute_sigma: whether the residuals have the standard deviation 1.
        """
        self.parameters, self.residuals, self._absolute = here.point, here.residuals.size, absolute_sigma
        self.at_bound = here.at_bound
        self._squares = _squares(here, self._free)
        free, size = np.flatnonzero(~self.at_bound), float(np.linalg.norm(here.influences))
        if free.size:
            self._judge(here.jacobian[:, free], here.point[free], here.rounding, size)
            self._loose = free[self._loose]

    def _judge(self, jacobian: np.ndarray, parameters: np.ndarray, rounding: float, size: float) -> None:
        least = np.linalg.svd(jacobian, compute_uv=False)[-1] if jacobian.shape[0] >= jacobian.shape[1] else 0.0
        self.smallest_singular_value = float(least)
        scale = np.linalg.norm(jacobian, axis=0)
        # A parameter that moves the residuals by no more than rounding when it changes by all of itself is not
        # determined.
        moved = scale * np.abs(parameters)
        scale = np.where((parameters != 0) & (moved <= rounding * max(moved.max(), size)), 0, scale)
        jacobian = np.where(scale > 0, jacobian, 0)
        scale = np.where(scale > 0, scale, 1)
        _, values, right = np.linalg.svd(jacobian / scale, full_matrices=jacobian.shape[0] < jacobian.shape[1])
        values = np.pad(values, (0, len(right) - len(values)))
        kept = values > rounding * max(jacobian.shape) * values[0]
        self.rank = int(np.count_nonzero(kept))
        self._loose = np.empty(0, int)
        if kept.all():
            self._root = right.T / values / scale[:, np.newaxis]
        else:
            self._loose = np.flatnonzero(np.abs(right[~kept]).max(axis=0) > rounding**0.5)


def _squares(here: Linearized, parameters: int) -> float:
    """What the sum of squares is for the linear loss: Σψ² (K / mean ψ')², infinite where ψ' is 0 everywhere."""
    first, second = here.loss.derivatives(here.residuals)
    if not (mean := np.mean(second)):
        return np.inf
    correction = 1 + parameters / second.size * np.var(second) / mean**2
    return float(np.sum((first * correction / mean) ** 2))
