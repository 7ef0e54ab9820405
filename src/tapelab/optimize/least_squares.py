"""The Levenberg-Marquardt method for sums of squares, with the covariance of the parameters that it finds.

A step p solves (JᵀJ + λD²) p = -Jᵀr, J the Jacobian of the residuals r: the Gauss-Newton matrix in place of the
Hessian, damped relative to D. D is diagonal with the norms of J's columns, so that the parameters' units do not matter
(Marquardt, "An algorithm for least-squares estimation of nonlinear parameters", 1963; Moré, "The Levenberg-Marquardt
algorithm: implementation and theory", 1978), or a multiple of the identity (Levenberg, "A method for the solution of
certain non-linear problems in least squares", 1944). λ follows the ratio of the actual to the predicted decrease
(Madsen, Nielsen and Tingleff, "Methods for non-linear least squares problems", 2004, section 3.2). The steps come from
the singular values of J D⁻¹: JᵀJ, whose condition number is the square of J's, is never built. With a robust loss J and
r are weighted (`tapelab.optimize.losses`), with bounds the step keeps within (`tapelab.optimize.steps`).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tapelab.optimize.fit_report import LeastSquaresReport
from tapelab.optimize.losses import Loss
from tapelab.optimize.objective import Objective, objective_of
from tapelab.optimize.report import Iteration, require_finite_start, require_not_negative
from tapelab.optimize.residuals import Linearized, Residuals
from tapelab.optimize.steps import Steps
from tapelab.process.session.bar import progress_bar

import numpy as np

_DECREASE = 1e-4  # the part of the predicted decrease that a step has to deliver
_LARGEST = 1e20  # of the damping; the columns of J D⁻¹ have norms up to 1
_SCALINGS = ("columns", "identity")


def levenberg_marquardt(
    residuals: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    sigma: Any = None,
    absolute_sigma: bool = False,
    bounds: Any = None,
    loss: str = "linear",
    f_scale: float = 1.0,
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

    ``sigma``, ``absolute_sigma``, ``bounds``, ``loss`` and ``f_scale`` mean what they mean for SciPy's `curve_fit` and
    `least_squares`, which find the same minimum. Of a robust loss the covariance is Huber's, not SciPy's.

    It has converged where the residuals are orthogonal to each of the Jacobian's columns (the cosine of the angle is
    within ``gradient_tolerance``), a step is small, or the predicted and the actual decrease are. Tolerances are no
    finer than what rounding in the parameters does to the residuals.

    Args:
        residuals: takes ``args``, reads the variables, returns the residuals: prediction less observation, tensors of
            one dtype, nested if need be. Or an `Objective`, which keeps what it compiled.
        args: passed to residuals.
        wrt: the variables to change, nested, all of one dtype. float64 is advised. Not with an objective, which has its
            own.
        sigma: the observations' standard deviations, by which the residuals are divided: a number, or a vector of shape
            (residuals,) in the order of `pack`. None if the residuals are divided by them already, or all are alike.
        absolute_sigma: whether the residuals, over ``sigma``, have the standard deviation 1. If not, it is estimated
            from them. It changes the covariance alone, and goes with the linear loss only.
        bounds: a pair (lower, upper); each a number for all variables, or nested as ``wrt`` with numbers or arrays that
            broadcast to the variables; -np.inf and np.inf where there is none. The start is within. Every point where
            the residuals are evaluated is.
        loss: what a residual r costs: "linear", r²/2; "soft_l1" and "huber", |r| where it is large, so that outliers
            count less.
        f_scale: the size of a residual, over ``sigma``, from which on it counts less.
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
            compared with a Jacobian-vector product along a random vector. ``sigma`` is not in it.
        memory_limit: bytes, for the Jacobian of shape (residuals, n); as for `jacobian`. Its decomposition takes some
            four times as much. Not with an objective.
        compile: "auto", "xla", "graph" or "eager", as for `jacobian`. Not with an objective.
        callback: called with each `Iteration` when it is done, while the variables hold the best point. An exception
            that it raises ends the minimisation. The residuals are evaluated once more after it.

    A function is traced anew in every call of this one, an objective where something has changed: what residuals reads
    from outside is what it is now.

    Returns:
        A `LeastSquaresReport`. A parameter that ends at a bound has no standard error: NaN. The report has the
        Jacobian's rank and smallest singular value at the end: they tell whether the linearised residuals have one
        minimum there. Their own curvature, by which it may be a saddle or a maximum where residuals are large, is not
        looked at. The variables hold the best point found, after an interrupt too; a step that does not lower what the
        residuals cost is not taken. Where a person watches and tqdm is installed, a bar shows what takes longer than a
        second.

    Raises:
        MemoryLimitError: if the Jacobian would not fit; `lbfgs` and `newton_cg` need none.
        NotFiniteError: if a residual or its gradient is NaN or infinite where the variables are now.
        SingularMatrixError: if a matrix in the residuals is singular there; a step to such a point is not taken.
        ValueError, TypeError: as `jacobian`; for no residual, a negative tolerance, a damping that is not positive, an
            unknown scaling or loss, or a ``jacobian`` that returns another shape or does not agree with the residuals;
            for a sigma that is not positive or has another shape, for bounds that do not fit or leave out the start.
    """
    tolerances = {"gradient": gradient_tolerance, "step": step_tolerance, "cost": cost_tolerance}
    _require_sound(tolerances, damping, scaling, jacobian)
    _require_one_meaning(absolute_sigma, loss)
    objective = objective_of(residuals, wrt, compile, memory_limit)
    problem = Residuals(objective, args, jacobian, sigma, bounds, Loss(loss, f_scale))
    point = problem.start
    here = problem.linearized(point)
    tolerances = {name: max(tolerance, 4 * here.rounding) for name, tolerance in tolerances.items()}
    report = LeastSquaresReport(here.value, here.gradient_norm, reason=f"all {iterations} iterations used")
    require_finite_start(report)
    report.plan = problem.plan(here)
    scale = np.zeros(point.size)
    try:
        with progress_bar(iterations, "minimising") as advance:
            for _ in range(iterations):
                if here.orthogonal(tolerances["gradient"]):
                    break
                scale = np.maximum(scale, here.norms if scaling == "columns" else here.norms.max())
                search = _search(problem, here, scale, damping, tolerances)
                point, damping = search.point, search.next_damping
                report.iterations.append(search.iteration)
                if callback is not None:
                    problem.hold(point)
                    callback(search.iteration)
                here = problem.linearized(point)  # a callback may have changed what the residuals read
                report.value, report.gradient_norm = here.value, here.gradient_norm
                advance(loss=report.value, gradient=report.gradient_norm)
                if search.ended:
                    report.converged, report.reason = search.converged, search.ended
                    break
    finally:
        problem.hold(point)  # a trial step may have been interrupted
    if not report.converged and here.orthogonal(tolerances["gradient"]):
        report.converged = True
        report.reason = "the residuals are orthogonal to the Jacobian's columns, within the tolerance"
    report.judge(here, absolute_sigma)
    return report


def _require_sound(tolerances: dict[str, float], damping: float, scaling: str, jacobian: Any) -> None:
    for name, tolerance in tolerances.items():
        require_not_negative(f"{name}_tolerance", tolerance)
    if not 0 < damping < _LARGEST:
        raise ValueError(f"damping is {damping!r}; expected a positive number below {_LARGEST:g}, such as 1e-3")
    if scaling not in _SCALINGS:
        raise ValueError(f"scaling is {scaling!r}; expected one of {', '.join(map(repr, _SCALINGS))}")
    if jacobian is not None and not callable(jacobian):
        raise TypeError(f"jacobian is a {type(jacobian).__name__}; expected a function that returns the matrix")


def _require_one_meaning(absolute_sigma: bool, loss: str) -> None:
    if not isinstance(absolute_sigma, (bool, np.bool_)):
        raise TypeError(f"absolute_sigma is {absolute_sigma!r}; expected True or False. The deviations are sigma")
    if absolute_sigma and loss != "linear":
        raise ValueError(
            f"absolute_sigma=True says that the residuals have the standard deviation 1, and loss={loss!r} that "
            "some are outliers, which have not: their spread is estimated from the residuals. Leave out one of the two"
        )


@dataclass(frozen=True)
class _Search:
    """What the search for a step from one point came to.

    Attributes:
        point: where the next iteration begins: the same point, if no step was accepted.
        iteration: the report's entry.
        next_damping: for the next search.
        converged: whether a test was passed.
        ended: why the minimisation ends here, in words; empty if it goes on.
    """

    point: np.ndarray
    iteration: Iteration
    next_damping: float
    converged: bool
    ended: str


def _search(problem: Residuals, here: Linearized, scale: np.ndarray, damping: float, tolerances: dict) -> _Search:
    """Raise the damping until a step lowers the sum of squares, or none will. The tests look at the first step."""
    steps = Steps(here, np.where(scale > 0, scale, 1))
    end, predicted = steps(damping)
    decrease = here.decrease_to(problem.tried(end))
    ended = _passed(here, scale, end - here.point, predicted, decrease, tolerances)
    converged, raise_by = bool(ended), 2.0
    while not _lowers(decrease, predicted):
        damping, raise_by = damping * raise_by, 2 * raise_by
        if converged or damping >= _LARGEST:
            ended = ended or "no step lowers the sum of squares; the step was refused"
            done = _iteration(here, damping, end, 0.0)
            return _Search(here.point, done, damping, converged, ended)
        end, predicted = steps(damping)
        decrease = here.decrease_to(problem.tried(end))
    done = _iteration(here, damping, end, 1.0)
    ratio = 1.0 if decrease >= predicted else decrease / predicted
    damping *= max(1 / 3, 1 - (2 * ratio - 1) ** 3)
    return _Search(end, done, damping, converged, ended)


def _lowers(decrease: float, predicted: float) -> bool:
    return predicted >= 0 and decrease > max(0, _DECREASE * predicted)  # NaN does not


def _passed(
    here: Linearized,
    scale: np.ndarray,
    step: np.ndarray,
    predicted: float,
    decrease: float,
    tolerances: dict[str, float],
) -> str:
    """Which test of convergence a step passes, in words; empty if none."""
    small = np.linalg.norm(scale * step) <= tolerances["step"] * np.linalg.norm(scale * here.point)
    if small and _lowers(decrease, predicted):
        return "the step is within the tolerance, relative to the parameters"
    least = max(tolerances["cost"] * here.value, here.noise * float(np.linalg.norm(here.influences)))
    if max(abs(predicted), abs(decrease)) <= least:
        return "the predicted and the actual decrease are within the tolerance"
    return ""


def _iteration(here: Linearized, damping: float, end: np.ndarray, taken: float) -> Iteration:
    slope = float(here.gradient @ (end - here.point))
    return Iteration(here.value, here.gradient_norm, damping, 0, False, slope, taken)
