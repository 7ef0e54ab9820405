"""The steps of the Levenberg-Marquardt method from one point, for every damping and within bounds."""

from tapelab.derivatives import NotFiniteError
from tapelab.optimize.residuals import Linearized

import numpy as np


class Steps:
    """The steps from a point for every damping, from one decomposition of the scaled and weighted Jacobian.

    Where the step leads beyond bounds, it is projected onto them (Kanzow, Yamashita and Fukushima,
    "Levenberg-Marquardt methods with strong local convergence properties for solving nonlinear equations with convex
    constraints", 2004, section 3). A parameter that the gradient pushes against its bound stays there, and the others'
    step is that without it: so a large damping gives a step along the projected gradient, which descends (Bertsekas,
    "Projected Newton methods for optimization problems with simple constraints", 1982).
    """

    def __init__(self, here: Linearized, scale: np.ndarray):
        """Decompose the Jacobian, each column of it over its ``scale``.

        Raises:
            NotFiniteError: if the Jacobian is not finite.
        """
        if not np.isfinite(here.jacobian).all():
            raise NotFiniteError(
                "the Jacobian of the residuals is NaN or infinite at the best point found, which the variables hold; "
                "look for a square root or a norm at 0, or an overflow"
            )
        root = np.sqrt(here.loss.weights(here.residuals))
        self._here, self._scale = here, scale
        self._residuals = here.influences / root
        self._jacobian = root[:, np.newaxis] * here.jacobian
        self._left, self._values, self._right = np.linalg.svd(
            (self._jacobian / scale)[:, here.free], full_matrices=False
        )
        self._along = self._left.T @ self._residuals

    def __call__(self, damping: float) -> tuple[np.ndarray, float]:
        """Return the point that the step leads to, and by how much the cost falls if the residuals are linear."""
        values, here = self._values, self._here
        part = values / (values**2 + damping) * self._along
        end = here.point.copy()
        end[here.free] -= part @ self._right / self._scale[here.free]
        within = here.bounds.kept(end)
        if (within != end).any():
            moved = self._jacobian @ (within - here.point)
            return within, float(-moved @ (self._residuals + moved / 2))
        # The model falls by Σ (u·r)² s² (s² + 2λ) / (2 (s² + λ)²), a sum of what is not negative.
        return end, float(np.sum(part**2 * (values**2 + 2 * damping)) / 2)
