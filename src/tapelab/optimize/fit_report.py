"""What a fit by least squares found: the parameters, and what the Jacobian at the end tells of them."""

from dataclasses import dataclass, field

from tapelab.optimize.report import Report

import numpy as np


@dataclass
class LeastSquaresReport(Report):
    """What `levenberg_marquardt` did and found. ``value`` is half the sum of the squares.

    Attributes:
        converged: whether one of the three tests was passed.
        parameters: the variables' values at the end, packed, shape (n,), in float64.
        residuals: how many there are.
        rank: of the Jacobian at the end, as far as its dtype tells.
        smallest_singular_value: of the Jacobian at the end, in the parameters' units; 0 where residuals are fewer. Its
            square is the smallest eigenvalue of JᵀJ.
        standing: None; the Jacobian tells less than a Hessian, and `stands` says what.
    """

    parameters: np.ndarray = field(default_factory=lambda: np.empty(0))
    residuals: int = 0
    rank: int = 0
    smallest_singular_value: float = 0.0
    _root: np.ndarray = field(default_factory=lambda: np.empty((0, 0)), repr=False)
    _loose: np.ndarray = field(default_factory=lambda: np.empty(0), repr=False)

    @property
    def stands(self) -> str:
        """What the Jacobian tells of the end, in a sentence; empty where the minimisation has not converged."""
        n = self.parameters.size
        if not self.converged:
            return ""
        if self.rank < n:
            return (
                f"the Jacobian has rank {self.rank} for {n} parameters: along some directions the residuals do not "
                "change to first order, and whether this is a minimum, a saddle or a flat place is not known"
            )
        return (
            f"a minimum of the linearised residuals: the Jacobian has full rank {n}, and its smallest singular value "
            f"is {self.smallest_singular_value:.3g}; the curvature of the residuals themselves was not looked at"
        )

    @property
    def degrees_of_freedom(self) -> int:
        """The number of residuals less that of parameters."""
        return self.residuals - self.parameters.size

    @property
    def covariance(self) -> np.ndarray:
        """The parameters' estimated covariance matrix σ² (JᵀJ)⁻¹, shape (n, n), in the order of `pack`.

        σ² is the sum of squares over the degrees of freedom: residuals of one unknown variance, not correlated. It
        means what it says where the fit is a minimum and the residuals are nearly linear within the errors.

        Raises:
            ValueError: if there are no degrees of freedom, or J does not determine all parameters.
        """
        n = self.parameters.size
        if self.rank < n:
            raise ValueError(
                f"the Jacobian has rank {self.rank} for {n} parameters: the residuals do not determine the elements "
                f"{', '.join(map(str, self._loose))} (in the order of pack) apart from each other, and no covariance "
                "exists. Fix or merge parameters, or add data"
            )
        if self.degrees_of_freedom < 1:
            raise ValueError(
                f"{self.residuals} residuals for {n} parameters leave no degrees of freedom: the variance of the "
                "residuals is not known, and so no covariance. Add data"
            )
        return 2 * self.value / self.degrees_of_freedom * (self._root @ self._root.T)

    @property
    def standard_errors(self) -> np.ndarray:
        """The square roots of the covariance's diagonal, shape (n,).

        Raises:
            ValueError: as `covariance`.
        """
        return np.sqrt(np.diag(self.covariance))

    def judge(self, jacobian: np.ndarray, rounding: float) -> None:
        """Note what the Jacobian at the end tells: its rank, its smallest singular value, and a root of (JᵀJ)⁻¹.

        Args:
            jacobian: shape (residuals, n), float64.
            rounding: the relative rounding error of what it was computed in.
        """
        least = np.linalg.svd(jacobian, compute_uv=False)[-1] if jacobian.shape[0] >= jacobian.shape[1] else 0.0
        self.smallest_singular_value = float(least)
        size = (2 * self.value) ** 0.5
        scale = np.linalg.norm(jacobian, axis=0)
        # A parameter that moves the residuals by no more than rounding when it changes by all of itself is not
        # determined.
        moved = scale * np.abs(self.parameters)
        scale = np.where((self.parameters != 0) & (moved <= rounding * max(moved.max(), size)), 0, scale)
        jacobian = np.where(scale > 0, jacobian, 0)
        scale = np.where(scale > 0, scale, 1)
        _, values, right = np.linalg.svd(jacobian / scale, full_matrices=jacobian.shape[0] < jacobian.shape[1])
        values = np.pad(values, (0, len(right) - len(values)))
        kept = values > rounding * max(jacobian.shape) * values[0]
        self.rank = int(np.count_nonzero(kept))
        if kept.all():
            self._root = right.T / values / scale[:, np.newaxis]
        else:
            self._loose = np.flatnonzero(np.abs(right[~kept]).max(axis=0) > rounding**0.5)
