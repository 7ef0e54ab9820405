"""The limited-memory BFGS method, by SciPy: gradients alone, for many variables."""

from collections.abc import Callable
from typing import Any

from tapelab.derivatives import pack
from tapelab.optimize.directions import require_at_least
from tapelab.optimize.objective import Objective, objective_of
from tapelab.optimize.report import Iteration, Report, assign, descending, largest
from tapelab.optimize.standing import PRODUCTS, conclude

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
            what the point is (`Report.standing`), and as many again for the way to the minimum; 0 for none. Tracing the
            product takes about twice as long as tracing the gradient, and Lanczos's method keeps as many vectors of n
            numbers.
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
    from scipy.optimize import minimize

    require_at_least(tolerance=tolerance, probes=probes)
    require_at_least(1, iterations=iterations, history=history)
    objective = objective_of(f, wrt, compile)
    last: tuple[np.ndarray, float, np.ndarray]

    def at(point: np.ndarray) -> tuple[float, np.ndarray]:
        nonlocal last
        assign(objective.wrt, point)
        value, gradient = objective.value_and_gradient(*args)
        last = point.copy(), float(value), pack(gradient).numpy().astype(np.float64)
        return last[1:]

    start = pack(objective.wrt)
    at(start.numpy().astype(np.float64))
    best, value, gradient = last
    report = Report(value, largest(gradient), reason=f"all {iterations} iterations used")
    report.plan = objective.value_and_gradient.plan(*args)
    with descending(report, objective.wrt, iterations, callback) as note:

        def iterated(point: np.ndarray) -> None:
            nonlocal best, gradient
            if not np.array_equal(point, last[0]):  # the line search has ended at an earlier one of its trials
                at(point)
            slope = float(gradient @ (last[0] - best))
            done = Iteration(report.value, report.gradient_norm, slope)
            best, value, gradient = last
            note(done, best, value, largest(gradient))

        if report.gradient_norm > tolerance:
            options = {"maxiter": iterations, "maxfun": 30 * iterations, "maxcor": history, "gtol": tolerance}
            found = minimize(at, best, jac=True, method="L-BFGS-B", callback=iterated, options=options | {"ftol": 0.0})
            if len(report.iterations) < iterations:
                report.reason = f"SciPy stopped: {found.message}"
    return conclude(report, objective, args, start, tolerance, probes)
