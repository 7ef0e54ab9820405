"""Residuals as a function of one vector of parameters, and what they are to first order about a point."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tapelab.derivatives import NotFiniteError, Plan, SingularMatrixError, pack, unpack
from tapelab.derivatives.machinery.failures import singular
from tapelab.optimize.objective import Objective
from tapelab.optimize.report import assign
from tapelab.process.tensorflow import tf

import numpy as np


@dataclass(frozen=True)
class Linearized:
    """The residuals and their Jacobian at a point, in float64.

    Attributes:
        point: shape (n,).
        residuals: shape (m,).
        jacobian: shape (m, n).
        rounding: the relative rounding error of what they were computed in.
    """

    point: np.ndarray
    residuals: np.ndarray
    jacobian: np.ndarray
    rounding: float

    @functools.cached_property
    def value(self) -> float:
        """Half the sum of the squares."""
        return float(self.residuals @ self.residuals / 2)

    @functools.cached_property
    def gradient(self) -> np.ndarray:
        """The gradient of `value`, shape (n,)."""
        return self.jacobian.T @ self.residuals

    @functools.cached_property
    def gradient_norm(self) -> float:
        """The largest magnitude in the gradient."""
        return float(np.max(np.abs(self.gradient)))

    @functools.cached_property
    def norms(self) -> np.ndarray:
        """The norms of the Jacobian's columns, shape (n,)."""
        return np.linalg.norm(self.jacobian, axis=0)

    @functools.cached_property
    def noise(self) -> float:
        """By how much the residuals change with the last digit of each parameter: finer than that is chance."""
        return float(4 * self.rounding * np.linalg.norm(np.abs(self.jacobian) @ np.abs(self.point)))

    def orthogonal(self, tolerance: float) -> bool:
        """Whether the largest cosine between the residuals and a column is within a tolerance."""
        least = max(tolerance * np.linalg.norm(self.residuals), self.noise)
        return bool(np.all(np.abs(self.gradient) <= self.norms * least))

    def decrease_to(self, residuals: np.ndarray) -> float:
        """By how much other residuals' half sum of squares is lower. NaN if they are not finite, which is no decrease.

        It is half the difference of the sums of squares, without its cancellation.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            return float((self.residuals - residuals) @ (self.residuals + residuals) / 2)


class Residuals:
    """The residuals of an objective at the points that a minimisation asks for. The variables hold the last one."""

    def __init__(self, objective: Objective, args: Sequence[Any], jacobian: Callable | None):
        """Take the variables' values as the start.

        Args:
            objective: returns the residuals.
            args: passed to it, and to ``jacobian``.
            jacobian: the caller's own, or None.
        """
        self._objective, self._args, self._jacobian = objective, args, jacobian
        packed = pack(objective.wrt)
        self._dtype, self.start = packed.dtype, packed.numpy().astype(np.float64)

    def hold(self, point: np.ndarray) -> None:
        """Give the variables the values of a point."""
        assign(self._objective.wrt, point.astype(self._dtype.as_numpy_dtype))

    def _at(self, point):
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
            return self._at(point).numpy().astype(np.float64)
        except SingularMatrixError:
            return np.full(1, np.nan)

    def linearized(self, point: np.ndarray) -> Linearized:
        """The residuals and their Jacobian at a point.

        Raises:
            SingularMatrixError: if a matrix in the residuals is singular there.
            ValueError: if there is no residual, or the caller's Jacobian has another shape.
        """
        found = self._at(point)
        residuals = found.numpy().astype(np.float64)
        if not residuals.size:
            raise ValueError("the residuals are empty; expected one number for each observation, at least one")
        if self._jacobian is None:
            blocks = tf.nest.flatten(self._objective.jacobian(*self._args))
            matrix = np.concatenate([np.reshape(block, (residuals.size, -1)) for block in blocks], axis=1)
        else:
            matrix = _as_matrix(self._jacobian(*self._args), (residuals.size, point.size))
        rounding = max(float(np.finfo(each.as_numpy_dtype).eps) for each in (found.dtype, self._dtype))
        return Linearized(point, residuals, matrix.astype(np.float64), rounding)

    def plan(self, here: Linearized) -> Plan | None:
        """How the Jacobian was computed; None for the caller's own, which is compared with a product at the point.

        Raises:
            ValueError: if the caller's does not agree with the residuals.
        """
        if self._jacobian is None:
            return self._objective.jacobian.plan(*self._args)
        _compare(here.jacobian, self._objective, self._args, here.rounding)
        return None


def _as_matrix(found, shape):
    """The caller's Jacobian in float64."""
    expected = f"expected one matrix of shape {shape}: a row for each residual, a column for each element of wrt"
    try:
        matrix = np.asarray(found, np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"jacobian returned a {type(found).__name__}, which is no matrix; {expected}") from error
    if matrix.shape != shape:
        raise ValueError(f"jacobian returned shape {matrix.shape}; {expected}, in the order of pack")
    return matrix


def _compare(matrix, objective, args, rounding):
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


class Steps:
    """The Levenberg-Marquardt steps from a point for every damping, from one decomposition of the scaled Jacobian."""

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
        self._left, self._values, self._right = np.linalg.svd(here.jacobian / scale, full_matrices=False)
        self._along = self._left.T @ here.residuals
        self._scale = scale

    def __call__(self, damping: float) -> tuple[np.ndarray, float]:
        """Return the step, and by how much it lowers the sum of squares, halved, if the residuals are linear."""
        values = self._values
        part = values / (values**2 + damping) * self._along
        # The model falls by Σ (u·r)² s² (s² + 2λ) / (2 (s² + λ)²), a sum of what is not negative.
        predicted = np.sum(part**2 * (values**2 + 2 * damping)) / 2
        return -(part @ self._right) / self._scale, float(predicted)
