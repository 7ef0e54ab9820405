"""The limited-memory BFGS method, by SciPy: gradients alone, for many variables."""

from collections.abc import Callable
from typing import Any

from tapelab.derivatives import pack
from tapelab.derivatives.arguments import require_positive
from tapelab.optimize.objective import Objective, judged_by_products, objective_of
from tapelab.optimize.report import (
    Iteration,
    Report,
    assign,
    require_finite_start,
    require_not_negative,
    require_probes,
)
from tapelab.optimize.standing import PRODUCTS, attempted
from tapelab.process.session.bar import progress_bar

import numpy as np


def lbfgs(
    f: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    iterations: int = 100,
    tolerance: float = 1e-5,
    history: int = 10,
    probes: int = PRODUCTS,
    compile: str = "auto",
    callback: Callable[[Iteration], Any] | None = None,
) -> Report:
    """Minimise a loss by the limited-memory BFGS method of SciPy (`scipy.optimize.minimize`, L-BFGS-B, no bounds).

    The inverse of the Hessian is estimated from the last steps and the changes of the gradient along them (Liu and
    Nocedal, "On the limited memory BFGS method for large scale optimization", 1989). It takes little more than one
    gradient for each step, and ``history`` pairs of vectors of n numbers in float64.

    Args:
        f: takes ``args``, reads the variables, returns a scalar, the same at every call: a loss of one batch or of all
            data, not of random ones. Or an `Objective`, which keeps what it compiled.
        args: passed to f.
        wrt: the variables to change, nested, all of one dtype. Not with an objective, which has its own.
        iterations: how many steps at most.
        tolerance: stop where no element of the gradient is larger in magnitude.
        history: how many steps the estimate remembers.
        probes: how many Hessian-vector products to take at most where the gradient is within the tolerance, to tell
            what the point is (`Report.standing`); 0 for none. Tracing the product takes about twice as long as tracing
            the gradient, and Lanczos's method keeps as many vectors of n numbers.
        compile: "auto", "xla", "graph" or "eager", as for `value_and_gradient`: "auto" takes the fastest way that
            works, and the report's plan says which, and why not a faster one. Not with an objective.
        callback: called with each `Iteration` when it is done, while the variables hold its point. An exception that it
            raises ends the minimisation. It may not change what the loss reads.

    A function is traced anew in every call of this one, an objective where something has changed: what f reads from
    outside is what it is now.

    Returns:
        A `Report`; its standing is that of `newton_cg`, and in its iterations the whole step is the direction, so that
        ``step`` is 1. The variables hold the best point found, after an interrupt too. Where a person watches and tqdm
        is installed, a bar shows what takes longer than a second.

    Raises:
        NotFiniteError: if the loss or its gradient is NaN or infinite where the variables are now.
        ValueError, TypeError: as `value_and_gradient`; for numbers that are not positive.
    """
    require_not_negative("tolerance", tolerance)
    require_positive(iterations=iterations, history=history)
    require_probes(probes)
    objective = objective_of(f, wrt, compile)
    descent = _Descent(objective, args, callback)
    report = descent.report
    require_finite_start(report)
    report.plan = objective.value_and_gradient.plan(*args)
    report.reason = f"all {iterations} iterations used"
    options = {"maxiter": iterations, "maxfun": 30 * iterations, "maxcor": history, "gtol": tolerance, "ftol": 0.0}
    try:
        with progress_bar(iterations, "minimising") as advance:
            if report.gradient_norm > tolerance:
                message = descent.run(options, advance)
                if len(report.iterations) < iterations:
                    report.reason = f"SciPy stopped: {message}"
    finally:
        descent.hold(descent.best)  # a trial step may have been interrupted
    report.converged = report.gradient_norm <= tolerance
    if report.converged:
        report.reason = f"the gradient is within the tolerance of {tolerance:g}"
        if probes:
            report.standing = attempted(lambda: judged_by_products(objective, args, probes))
    return report


class _Descent:
    """SciPy's minimiser under way: the best point, with its gradient and report, and what was evaluated last."""

    def __init__(self, objective: Objective, args: tuple[Any, ...], callback: Callable[[Iteration], Any] | None):
        self._objective, self._args, self._callback = objective, args, callback
        packed = pack(objective.wrt)
        self._kind = packed.dtype.as_numpy_dtype
        self.best = packed.numpy().astype(np.float64)
        value, self._gradient = self._at(self.best)
        self.report = Report(value, float(np.max(np.abs(self._gradient))))

    def hold(self, point: np.ndarray) -> None:
        """Give the variables the values of a point."""
        assign(self._objective.wrt, point.astype(self._kind))

    def _at(self, point: np.ndarray) -> tuple[float, np.ndarray]:
        self.hold(point)
        value, gradient = self._objective.value_and_gradient(*self._args)
        self._last = point.copy(), float(value), pack(gradient).numpy().astype(np.float64)
        return self._last[1:]

    def run(self, options: dict[str, Any], advance: Callable[..., Any]) -> str:
        """Minimise from the best point. Returns why SciPy stopped, in its words."""
        from scipy.optimize import minimize

        def iterated(point: np.ndarray) -> None:
            if not np.array_equal(point, self._last[0]):  # the line search has ended at an earlier one of its trials
                self._at(point)
            self._note()
            advance(loss=self.report.value, gradient=self.report.gradient_norm)

        return minimize(self._at, self.best, jac=True, method="L-BFGS-B", callback=iterated, options=options).message

    def _note(self) -> None:
        """An iteration has ended where the objective was evaluated last."""
        report, (point, value, gradient) = self.report, self._last
        slope = float(self._gradient @ (point - self.best))
        done = Iteration(report.value, report.gradient_norm, 0.0, 0, False, slope, 1.0)
        self.best, self._gradient = point, gradient
        report.iterations.append(done)
        report.value, report.gradient_norm = value, float(np.max(np.abs(gradient)))
        if self._callback is not None:
            self.hold(self.best)
            self._callback(done)
