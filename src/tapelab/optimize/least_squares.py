"""Sums of squares, minimised by SciPy from exact Jacobians, with the covariance of the parameters that are found."""

import contextlib
from collections.abc import Callable
from typing import Any

from tapelab.derivatives import pack
from tapelab.derivatives.arguments import require_one_of
from tapelab.optimize.directions import require_at_least
from tapelab.optimize.fit_report import LOSSES, Fit, LeastSquaresReport
from tapelab.optimize.objective import Objective, objective_of
from tapelab.optimize.report import Iteration, assign, descending
from tapelab.process.tensorflow import tf

import numpy as np


def levenberg_marquardt(
    residuals: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    absolute_sigma: bool = False,
    bounds: Any = (-np.inf, np.inf),
    loss: str = "linear",
    f_scale: float = 1.0,
    iterations: int = 2000,
    tolerance: float = 1e-15,
    callback: Callable[[Iteration], Any] | None = None,
) -> LeastSquaresReport:
    """Minimise half the sum of the squares of residuals, and estimate the parameters' covariance.

    The steps are those of SciPy's `least_squares` with method "trf": without bounds, Levenberg's and Marquardt's in a
    trust region (Moré, "The Levenberg-Marquardt algorithm: implementation and theory", 1978), relative to the
    parameters' sizes at the start, so that their units do not matter. ``absolute_sigma``, ``bounds``, ``loss`` and
    ``f_scale`` mean what they mean for SciPy. Of a robust loss the covariance is Huber's, not SciPy's.

    It has converged where the step to the minimum of the linearised residuals is small, whatever SciPy has stopped for:
    0.001 of a standard error (Bates and Watts, "A relative offset orthogonality convergence criterion for nonlinear
    least squares", 1981), or so small that half of each parameter's digits stay, or what rounding makes of them.

    Args:
        residuals: takes ``args``, reads the variables, returns the residuals: prediction less observation, tensors of
            one dtype, nested if need be. Or an `Objective`, which keeps what it compiled; its ``memory_limit`` is for
            the Jacobian of shape (residuals, n), whose decomposition takes some four times as much.
        args: passed to residuals.
        wrt: the variables to change, nested, all of one dtype. float64 is advised. Not with an objective, which has its
            own.
        absolute_sigma: whether the residuals have the standard deviation 1, being divided by the observations'. If not,
            one for all is estimated from them. It changes the covariance alone, and goes with the linear loss only.
        bounds: a pair (lower, upper), each a number for all parameters or a vector of shape (n,) in the order of
            `pack`; -np.inf or np.inf where there is none. The start is within, and every point where the residuals are
            evaluated.
        loss: what a residual r costs: "linear", r²/2; "soft_l1" and "huber", |r| where it is large, so that outliers
            count less.
        f_scale: the size of a residual from which on it counts less.
        iterations: how many steps are tried at most, those included that do not lower the sum.
        tolerance: SciPy stops where a step lowers the sum, or moves the parameters, by less than this part; no finer
            than rounding.
        callback: called with each `Iteration` when it is done, while the variables hold its point. An exception that it
            raises ends the minimisation. It may not change what the residuals read.

    A function is traced anew in every call of this one, an objective where something has changed: what residuals reads
    from outside is what it is now.

    Returns:
        A `LeastSquaresReport`. A parameter that ends at a bound has no standard error: NaN. The report has the
        Jacobian's rank at the end: it tells whether the linearised residuals have one minimum there. Their own
        curvature, by which it may be a saddle or a maximum where residuals are large, is not looked at. The variables
        hold the best point found, after an interrupt too. Where a person watches and tqdm is installed, a bar shows
        what takes longer than a second.

    Raises:
        MemoryLimitError: if the Jacobian would not fit; `newton_cg` needs none.
        NotFiniteError: if a residual or its gradient is NaN or infinite where the variables are now, or the Jacobian is
            at a better point.
        SingularMatrixError: if a matrix in the residuals is singular there; a step to such a point is not taken.
        ValueError, TypeError: as `jacobian`; for no residual, an unknown loss, or bounds that do not fit the variables
            or leave them out.
    """
    from scipy.optimize import least_squares

    require_at_least(tolerance=tolerance)
    require_at_least(1, iterations=iterations)
    require_at_least(1e-99, f_scale=f_scale)
    require_one_of(LOSSES, loss=loss)
    if absolute_sigma and loss != "linear":
        raise ValueError(f"loss is {loss!r}, with absolute_sigma: residuals of a known deviation have no outliers")
    objective = objective_of(residuals, wrt)
    start = pack(objective.wrt)
    sides = _sides(bounds, start.numpy())

    def linearised(point: np.ndarray) -> Fit:
        assign(objective.wrt, point)
        values, blocks = objective.jacobian(*args)
        if not len(values):
            raise ValueError("the residuals are empty; expected one number for each observation, at least one")
        columns = np.concatenate([np.reshape(part, (len(values), -1)) for part in tf.nest.flatten(blocks)], axis=1)
        return Fit(point.copy(), values, columns, LOSSES[loss], f_scale, sides)

    def tried(point: np.ndarray) -> np.ndarray:
        assign(objective.wrt, point)
        try:
            return pack(objective.f(*args)).numpy().astype(np.float64)
        except tf.errors.InvalidArgumentError:  # a singular matrix: the residuals have no values there
            return np.full(here.slopes.size, np.nan)

    here = linearised(start.numpy().astype(np.float64))
    report = LeastSquaresReport(here.value, here.gradient_norm)
    # A trial step may go too far, and overflow.
    with np.errstate(over="ignore", invalid="ignore"), descending(report, objective.wrt, iterations, callback) as note:

        def jacobian(point: np.ndarray) -> np.ndarray:
            """SciPy asks for it at the start, and at each point that is better than those before."""
            nonlocal here
            if (point != here.point).any():
                before, here = here, linearised(point)
                slope = float(before.gradient @ (here.point - before.point))
                note(Iteration(before.value, before.gradient_norm, slope), here.point, here.value, here.gradient_norm)
            return here.jacobian

        least, sizes = max(tolerance, 4 * here.rounding), np.where(here.point != 0, np.abs(here.point), 1)
        options: dict[str, Any] = {"ftol": least, "xtol": least, "gtol": None, "x_scale": sizes}
        options |= {"loss": loss, "f_scale": f_scale, "max_nfev": iterations + 1}
        found = least_squares(tried, here.point, jacobian, tuple(sides), **options)
    report.reason = f"SciPy stopped: {found.message}" if found.status else f"all {iterations} steps used"
    report.judge(here, absolute_sigma)
    return report


def _sides(bounds: Any, start: np.ndarray) -> np.ndarray:
    """The lower and the upper bounds, shape (2, n), as the variables' dtype has them."""
    with contextlib.suppress(TypeError, ValueError):
        lower, upper = (np.broadcast_to(np.asarray(side, start.dtype), start.shape) for side in bounds)
        if np.all((lower < upper) & (lower <= start) & (start <= upper)):
            return np.stack([lower, upper]).astype(np.float64)
    raise ValueError(
        f"bounds is {bounds!r}; expected a pair (lower, upper), each a number or of shape {start.shape} in the "
        f"order of pack, lower bounds below the upper ones, and the variables within: they are {start}"
    )
