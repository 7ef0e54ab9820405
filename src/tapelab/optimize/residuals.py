"""Residuals as a function of one vector of parameters, and what they are to first order about a point."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tapelab.derivatives import Plan, SingularMatrixError, pack, unpack
from tapelab.derivatives.errors import singular
from tapelab.optimize.bounds import Bounds, bounds_of
from tapelab.optimize.losses import Loss
from tapelab.optimize.objective import Objective
from tapelab.optimize.report import assign
from tapelab.process.tensorflow import tf

import numpy as np


@dataclass(frozen=True)
class Linearized:
    """The residuals and their Jacobian at a point, in float64.

    Attributes:
        point: shape (n,).
        residuals: shape (m,), over their uncertainties.
        jacobian: shape (m, n), of these residuals.
        rounding: the relative rounding error of what they were computed in.
        loss: what residuals cost.
        bounds: what the point may be.
    """

    point: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    rounding: float
    loss: Loss
    bounds: Bounds

    @functools.cached_property
    def value(self) -> float:
        """The sum of what the residuals cost; half the sum of their squares, with the linear loss."""
        return self.loss.fall(self.residuals, np.zeros_like(self.residuals))

    @functools.cached_property
    def influences(self) -> np.ndarray:
        """The cost's derivatives in the residuals, shape (m,); with the linear loss the residuals."""
        return self.loss.derivatives(self.residuals)[0]

    @functools.cached_property
    def gradient(self) -> np.ndarray:
        """The gradient of `value`, shape (n,)."""
        return self.jacobian.T @ self.influences

    @functools.cached_property
    def free(self) -> np.ndarray:
        """Which parameters can fall, booleans of shape (n,): not those that the gradient pushes against a bound."""
        return ~self.bounds.pushed(self.point, self.gradient)

    @functools.cached_property
    def at_bound(self) -> np.ndarray:
        """Which parameters are at a bound, booleans of shape (n,): on it, or so near that the residuals do not tell.

        The residuals would change by less than half their digits on the way there: far less than a standard error.
        """
        distance = self.bounds.distance(self.point)
        least = max(self.rounding**0.5 * np.linalg.norm(self.influences), self.noise)
        with np.errstate(invalid="ignore"):  # no bound, and no influence
            return (distance <= 0) | ((self.norms > 0) & (distance * self.norms <= least))

    @functools.cached_property
    def gradient_norm(self) -> float:
        """The largest magnitude in the gradient, in the elements that are free."""
        return float(np.max(np.abs(self.gradient[self.free]), initial=0))

    @functools.cached_property
    def norms(self) -> np.ndarray:
        """The norms of the Jacobian's columns, shape (n,)."""
        return np.linalg.norm(self.jacobian, axis=0)

    @functools.cached_property
    def noise(self) -> float:
        """By how much the residuals change with the last digit of each parameter: finer than that is chance."""
        return float(4 * self.rounding * np.linalg.norm(np.abs(self.jacobian) @ np.abs(self.point)))

    def orthogonal(self, tolerance: float) -> bool:
        """Whether the largest cosine between the residuals and a column of a free parameter is within a tolerance."""
        least = max(tolerance * np.linalg.norm(self.influences), self.noise)
        return bool(np.all(np.abs(self.gradient) <= self.norms * least, where=self.free))

    def decrease_to(self, residuals: np.ndarray) -> float:
        """By how much other residuals cost less. NaN or infinite if they are not finite, which is no decrease."""
        return self.loss.fall(self.residuals, residuals)


class Residuals:
    """The residuals of an objective at the points that a minimisation asks for. The variables hold the last one."""

    def __init__(
        self,
        objective: Objective,
        args: Sequence[Any],
        jacobian: Callable | None = None,
        sigma: Any = None,
        bounds: Any = None,
        loss: Loss | None = None,
    ):
        """Take the variables' values as the start.

        Args:
            objective: returns the residuals.
            args: passed to it, and to ``jacobian``.
            jacobian: the caller's own, or None.
            sigma: what the residuals are divided by: a number, a vector of shape (m,), or None for 1.
            bounds: see `bounds_of`.
            loss: what residuals cost; the linear one, if None.

        Raises:
            TypeError, ValueError: as `bounds_of`; for a sigma that is no vector of positive numbers.
        """
        self._objective, self._args, self._jacobian = objective, args, jacobian
        packed = pack(objective.wrt)
        self._dtype, self.start = packed.dtype, packed.numpy().astype(np.float64)
        self.bounds = bounds_of(bounds, objective.wrt, self.start)
        self._loss = loss or Loss()
        self._sigma = _uncertainties(sigma)

    def hold(self, point: np.ndarray) -> None:
        """Give the variables the values of a point."""
        assign(self._objective.wrt, point.astype(self._dtype.as_numpy_dtype))

    def _at(self, point: np.ndarray) -> tf.Tensor:
        self.hold(point)
        try:
            return pack(self._objective.f(*self._args))
        except tf.errors.InvalidArgumentError as error:
            if why := singular(error):
                raise SingularMatrixError(f"levenberg_marquardt: {why}") from error
            raise

    def tried(self, point: np.ndarray) -> np.ndarray:
        """The residuals at a point, shape (m,); NaN where they have no values."""
        try:
            return self._at(point).numpy().astype(np.float64) / self._sigma
        except SingularMatrixError:
            return np.full(1, np.nan)

    def linearized(self, point: np.ndarray) -> Linearized:
        """The residuals and their Jacobian at a point.

        Raises:
            SingularMatrixError: if a matrix in the residuals is singular there.
            ValueError: if there is no residual, or ``sigma`` or the caller's Jacobian has another shape.
        """
        found = self._at(point)
        residuals = found.numpy().astype(np.float64)
        if not residuals.size:
            raise ValueError("the residuals are empty; expected one number for each observation, at least one")
        if self._sigma.shape not in ((), residuals.shape):
            raise ValueError(
                f"sigma has shape {self._sigma.shape}; expected a number, or one for each residual, {residuals.shape}, "
                "in the order of pack"
            )
        if self._jacobian is None:
            blocks = tf.nest.flatten(self._objective.jacobian(*self._args))
            matrix = np.concatenate([np.reshape(block, (residuals.size, -1)) for block in blocks], axis=1)
        else:
            matrix = _as_matrix(self._jacobian(*self._args), (residuals.size, point.size))
        rounding = max(float(np.finfo(each.as_numpy_dtype).eps) for each in (found.dtype, self._dtype))
        matrix = matrix.astype(np.float64) / self._sigma[..., np.newaxis]
        return Linearized(point, residuals / self._sigma, matrix, rounding, self._loss, self.bounds)

    def plan(self, here: Linearized) -> Plan | None:
        """How the Jacobian was computed; None for the caller's own, which is compared with a product at the point.

        Raises:
            ValueError: if the caller's does not agree with the residuals.
        """
        if self._jacobian is None:
            return self._objective.jacobian.plan(*self._args)
        _compare(here.jacobian * self._sigma[..., np.newaxis], self._objective, self._args, here.rounding)
        return None


def _uncertainties(sigma: Any) -> np.ndarray:
    """The residuals' standard deviations, shape () or (m,)."""
    if sigma is None:
        return np.ones(())
    expected = "expected a positive number, or one for each residual"
    try:
        found = np.asarray(sigma, np.float64)
    except (TypeError, ValueError) as error:
        raise TypeError(f"sigma is {sigma!r}; {expected}") from error
    if found.ndim > 1:
        raise ValueError(
            f"sigma has shape {found.shape}; {expected}. With a covariance matrix LLᵀ of the observations, return "
            "tf.linalg.triangular_solve(L, r) for the residuals r, and leave sigma out"
        )
    if not np.all((found > 0) & (found < np.inf)):
        raise ValueError(f"sigma holds {found[~((found > 0) & (found < np.inf))][0]}; {expected}")
    return found


def _as_matrix(found: Any, shape: tuple[int, int]) -> np.ndarray:
    """The caller's Jacobian in float64."""
    expected = f"expected one matrix of shape {shape}: a row for each residual, a column for each element of wrt"
    try:
        matrix = np.asarray(found, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"jacobian returned a {type(found).__name__}, which is no matrix; {expected}") from error
    if matrix.shape != shape:
        raise ValueError(f"jacobian returned shape {matrix.shape}; {expected}, in the order of pack")
    return matrix


def _compare(matrix: np.ndarray, objective: Objective, args: Sequence[Any], rounding: float) -> None:
    """Raise ValueError if the caller's Jacobian does not agree with a product of the residuals' own."""
    norms = np.linalg.norm(matrix, axis=0)
    # Each column counts alike, whatever its parameter's unit.
    vector = np.random.default_rng(0).normal(size=norms.size) / np.where(norms > 0, norms, 1)
    tangents = unpack(tf.constant(vector, pack(objective.wrt).dtype), objective.wrt)
    _, product = objective.jvp(*args, tangents=tangents)
    difference = np.abs(matrix @ vector - product.numpy())
    terms = np.abs(matrix) @ np.abs(vector)
    # Half the digits, of the row's terms. A row of cancelled terms in the residuals has its noise from their size.
    far = difference - rounding**0.5 * terms - rounding**0.75 * terms.max()
    if not np.max(far) <= 0:
        row = int(np.argmax(np.where(np.isnan(far), np.inf, far)))
        raise ValueError(
            f"jacobian does not agree with the residuals: along a random vector, residual {row} (in the order of pack) "
            f"changes by {product.numpy()[row]:.6g}, and its row times the vector is {(matrix @ vector)[row]:.6g}. "
            "Compare it with tapelab.derivatives.jacobian; if only the order differs, see tapelab.derivatives.pack"
        )
