"""The Levenberg-Marquardt method for sums of squares, with the covariance of the parameters that it finds.

A step p solves (JᵀJ + λD²) p = -Jᵀr, J the Jacobian of the residuals r: the Gauss-Newton matrix in place of the
Hessian, damped relative to D. D is diagonal with the norms of J's columns, so that the parameters' units do not matter
(Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", 1963; Moré, "The Levenberg-Marquardt
algorithm: implementation and theory", 1978), or a multiple of the identity (Levenberg, "A method for the solution of
certain non-linear problems in least squares", 1944). λ follows the ratio of the actual to the predicted decrease
(Madsen, Nielsen and Tingleff, "Methods for non-linear least squares problems", 2004, section 3.2). The steps come from
the singular values of J D⁻¹: JᵀJ, whose condition number is the square of J's, is never built.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tapelab.derivatives import NotFiniteError, SingularMatrixError, pack, unpack
from tapelab.derivatives.machinery.failures import singular
from tapelab.optimize.objective import Objective, objective_of
from tapelab.optimize.report import Iteration, Report, assign, require_finite_start
from tapelab.progress import progress_bar
from tapelab.runtime import tf

import numpy as np

_DECREASE = 1e-4  # the part of the predicted decrease that a step has to deliver
_LARGEST = 1e20  # of the damping; the columns of J D⁻¹ have norms up to 1
_SCALINGS = ("columns", "identity")


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


def levenberg_marquardt(
    residuals: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    iterations: int = 100,
    gradient_tolerance: float = 1e-10,
    step_tolerance: float = 1e-10,
    cost_tolerance: float = 1e-15,
    damping: float = 1e-3,
    scaling: str = "columns",
    jacobian: Callable | None = None,
    memory_limit: int | None = None,
    compile: str = "auto",
    callback: Callable[[Iteration], Any] | None = None,
) -> LeastSquaresReport:
    """Minimise half the sum of the squares of residuals, and estimate the parameters' covariance.

    It has converged where the residuals are orthogonal to each of the Jacobian's columns (the cosine of the angle is
    within ``gradient_tolerance``), a step is small, or the predicted and the actual decrease are. Tolerances are no
    finer than what rounding in the parameters does to the residuals.

    Args:
        residuals: takes ``args``, reads the variables, returns the residuals: prediction less observation over its
            uncertainty, tensors of one dtype, nested if need be. Or an `Objective`, which keeps what it compiled.
        args: passed to residuals.
        wrt: the variables to change, nested, all of one dtype. float64 is advised. Not with an objective, which has its
            own.
        iterations: how many steps at most.
        gradient_tolerance: for the largest cosine, see above.
        step_tolerance: for the step's length relative to the parameters', both scaled by the columns' norms.
        cost_tolerance: for the decreases, relative to the sum of squares.
        damping: λ of the first step, positive.
        scaling: what λ multiplies. "columns": each parameter's squared norm of its column, so that units do not matter.
            "identity": the same for all, the largest of these; for parameters of one kind, such as a network's weights,
            where a parameter of small influence is not to move far. Both take the largest norms met so far.
        jacobian: takes ``args``, reads the variables, returns the Jacobian as one matrix of shape (residuals, n), rows
            and columns in the order of `pack`: one that is cheaper than automatic differentiation. At the start it is
            compared with a Jacobian-vector product along a random vector.
        memory_limit: bytes, for the Jacobian of shape (residuals, n); as for `jacobian`. Its decomposition takes some
            four times as much. Not with an objective.
        compile: "auto", "xla", "graph" or "eager", as for `jacobian`. Not with an objective.
        callback: called with each `Iteration` when it is done, while the variables hold the best point. An exception
            that it raises ends the minimisation. The residuals are evaluated once more after it.

    A function is traced anew in every call of this one, an objective where something has changed: what residuals reads
    from outside is what it is now.

    Returns:
        A `LeastSquaresReport`. It has the Jacobian's rank and smallest singular value at the end: they tell whether the
        linearised residuals have one minimum there. Their own curvature, by which it may be a saddle or a maximum where
        residuals are large, is not looked at. The variables hold the best point found, after an interrupt too; a step
        that does not lower the sum of squares is not taken. Where a person watches and tqdm is installed, a bar shows
        what takes longer than a second.

    Raises:
        MemoryLimitError: if the Jacobian would not fit; `lbfgs` and `newton_cg` need none.
        NotFiniteError: if a residual or its gradient is NaN or infinite where the variables are now.
        SingularMatrixError: if a matrix in the residuals is singular there; a step to such a point is not taken.
        ValueError, TypeError: as `jacobian`; for no residual, a negative tolerance, a damping that is not positive, an
            unknown scaling, or a ``jacobian`` that returns another shape or does not agree with the residuals.
    """
    tolerances = {"gradient": gradient_tolerance, "step": step_tolerance, "cost": cost_tolerance}
    for name, tolerance in tolerances.items():
        if not tolerance >= 0:
            raise ValueError(f"{name}_tolerance is {tolerance!r}; expected 0 or a positive number")
    if not 0 < damping < _LARGEST:
        raise ValueError(f"damping is {damping!r}; expected a positive number below {_LARGEST:g}, such as 1e-3")

    if scaling not in _SCALINGS:
        raise ValueError(f"scaling is {scaling!r}; expected one of {', '.join(map(repr, _SCALINGS))}")
    if jacobian is not None and not callable(jacobian):
        raise TypeError(f"jacobian is a {type(jacobian).__name__}; expected a function that returns the matrix")
    objective = objective_of(residuals, wrt, compile, memory_limit)
    wrt = objective.wrt
    start = pack(wrt)
    kind = start.dtype.as_numpy_dtype

    def evaluate(point):
        assign(wrt, point.astype(kind))
        try:
            found = pack(objective.f(*args))
        except tf.errors.InvalidArgumentError as error:
            if why := singular(error):
                raise SingularMatrixError(f"levenberg_marquardt: {why}") from error
            raise
        return found.numpy().astype(np.float64), found.dtype

    def attempt(point):
        try:
            return evaluate(point)[0]
        except SingularMatrixError:  # the residuals have no values there
            return np.full_like(r, np.nan)

    def linearize(point):
        r, _ = evaluate(point)
        if jacobian is None:
            blocks = [np.reshape(block, (r.size, -1)) for block in tf.nest.flatten(objective.jacobian(*args))]
            matrix = np.concatenate(blocks, axis=1).astype(np.float64)
        else:
            matrix = _as_matrix(jacobian(*args), (r.size, point.size))
        return r, matrix, matrix.T @ r

    point = start.numpy().astype(np.float64)
    r, dtype = evaluate(point)
    if not r.size:
        raise ValueError("the residuals are empty; expected one number for each observation, at least one")
    rounding = max(float(np.finfo(each.as_numpy_dtype).eps) for each in (dtype, start.dtype))
    tolerances = {name: max(tolerance, 4 * rounding) for name, tolerance in tolerances.items()}
    r, matrix, gradient = linearize(point)
    report = LeastSquaresReport(r @ r / 2, float(np.max(np.abs(gradient))), reason=f"all {iterations} iterations used")
    require_finite_start(report)
    if jacobian is None:
        report.plan = objective.jacobian.plan(*args)
    else:
        _compare(matrix, objective, args, rounding)
    scale = np.zeros(point.size)

    def noise():
        """By how much the residuals change with the last digit of each parameter: finer than that is chance."""
        return 4 * rounding * np.linalg.norm(np.abs(matrix) @ np.abs(point))

    def orthogonal():
        """Whether the largest cosine between the residuals and a column is within its tolerance."""
        least = max(tolerances["gradient"] * np.linalg.norm(r), noise())
        return bool(np.all(np.abs(gradient) <= np.linalg.norm(matrix, axis=0) * least))

    try:
        with progress_bar(iterations, "minimising") as advance:
            for _ in range(iterations):
                if orthogonal():
                    break
                norms = np.linalg.norm(matrix, axis=0)
                scale = np.maximum(scale, norms if scaling == "columns" else norms.max())
                steps = _Steps(matrix, r, np.where(scale > 0, scale, 1))
                small = max(tolerances["cost"] * report.value, noise() * np.linalg.norm(r))
                first, accepted, raise_by = True, None, 2.0
                while accepted is None and not report.converged and damping < _LARGEST:
                    step, predicted = steps(damping)
                    trial = attempt(point + step)
                    with np.errstate(over="ignore", invalid="ignore"):
                        # Half the difference of the sums of squares, without its cancellation. NaN is no decrease.
                        decrease = (r - trial) @ (r + trial) / 2
                    if first and max(predicted, abs(decrease)) <= small:
                        report.converged = True
                        report.reason = "the predicted and the actual decrease are within the tolerance"
                    if decrease > max(0, _DECREASE * predicted):
                        accepted = point + step
                        if first and np.linalg.norm(scale * step) <= tolerances["step"] * np.linalg.norm(scale * point):
                            report.converged = True
                            report.reason = "the step is within the tolerance, relative to the parameters"
                    else:
                        first, damping, raise_by = False, damping * raise_by, 2 * raise_by
                taken = 0.0 if accepted is None else 1.0
                slope = float(gradient @ step)
                done = Iteration(report.value, report.gradient_norm, damping, 0, False, slope, taken)
                report.iterations.append(done)
                if accepted is not None:
                    point = accepted
                    damping *= max(1 / 3, 1 - (2 * min(decrease / predicted, 1) - 1) ** 3)
                if callback is not None:
                    assign(wrt, point.astype(kind))
                    callback(done)
                r, matrix, gradient = linearize(point)  # a callback may have changed what the residuals read
                report.value, report.gradient_norm = float(r @ r / 2), float(np.max(np.abs(gradient)))
                advance(loss=report.value, gradient=report.gradient_norm)
                if accepted is None and not report.converged:
                    report.reason = "no step lowers the sum of squares; the step was refused"
                if accepted is None or report.converged:
                    break
    finally:
        assign(wrt, point.astype(kind))  # a trial step may have been interrupted
    if not report.converged and orthogonal():
        report.converged = True
        report.reason = "the residuals are orthogonal to the Jacobian's columns, within the tolerance"
    report.parameters, report.residuals = point, r.size
    _decompose(report, matrix, rounding)
    return report


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
    _, product = objective.jvp(tangents, *args)
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


class _Steps:
    """The steps for every damping, from one decomposition of the scaled Jacobian."""

    def __init__(self, jacobian, residuals, scale):
        if not np.isfinite(jacobian).all():
            raise NotFiniteError(
                "the Jacobian of the residuals is NaN or infinite at the best point found, which the variables hold; "
                "look for a square root or a norm at 0, or an overflow"
            )
        self._left, self._values, self._right = np.linalg.svd(jacobian / scale, full_matrices=False)
        self._along = self._left.T @ residuals
        self._scale = scale

    def __call__(self, damping):
        """Return the step, and by how much it lowers the sum of squares, halved, if the residuals are linear."""
        values = self._values
        part = values / (values**2 + damping) * self._along
        # The model falls by Σ (u·r)² s² (s² + 2λ) / (2 (s² + λ)²), a sum of what is not negative.
        predicted = np.sum(part**2 * (values**2 + 2 * damping)) / 2
        return -(part @ self._right) / self._scale, float(predicted)


def _decompose(report, jacobian, rounding):
    """Note the rank, the smallest singular value and a root of (JᵀJ)⁻¹."""
    least = np.linalg.svd(jacobian, compute_uv=False)[-1] if jacobian.shape[0] >= jacobian.shape[1] else 0.0
    report.smallest_singular_value = float(least)
    size = (2 * report.value) ** 0.5
    scale = np.linalg.norm(jacobian, axis=0)
    # A parameter that moves the residuals by no more than rounding when it changes by all of itself is not determined.
    moved = scale * np.abs(report.parameters)
    scale = np.where((report.parameters != 0) & (moved <= rounding * max(moved.max(), size)), 0, scale)
    jacobian = np.where(scale > 0, jacobian, 0)
    scale = np.where(scale > 0, scale, 1)
    _, values, right = np.linalg.svd(jacobian / scale, full_matrices=jacobian.shape[0] < jacobian.shape[1])
    values = np.pad(values, (0, len(right) - len(values)))
    kept = values > rounding * max(jacobian.shape) * values[0]
    report.rank = int(np.count_nonzero(kept))
    if kept.all():
        report._root = right.T / values / scale[:, np.newaxis]
    else:
        report._loose = np.flatnonzero(np.abs(right[~kept]).max(axis=0) > rounding**0.5)
