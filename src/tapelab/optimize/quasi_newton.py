"""The limited-memory BFGS method, by SciPy: gradients alone, for many variables."""

from collections.abc import Callable
from typing import Any

from tapelab.derivatives import pack
from tapelab.derivatives.machinery.arguments.checks import require_positive
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
from tapelab.progress import progress_bar

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
    from scipy.optimize import minimize

    require_not_negative("tolerance", tolerance)
    require_positive(iterations=iterations, history=history)
    require_probes(probes)
    objective = objective_of(f, wrt, compile)
    evaluate, wrt = objective.value_and_gradient, objective.wrt
    kind = pack(wrt).dtype.as_numpy_dtype
    seen = []  # what was evaluated last: a point, its value and gradient

    def at(point):
        assign(wrt, point.astype(kind))
        value, gradient = evaluate(*args)
        seen[:] = point.copy(), float(value), pack(gradient).numpy().astype(np.float64)
        return seen[1:]

    best = pack(wrt).numpy().astype(np.float64)
    value, gradient = at(best)
    report = Report(value, float(np.max(np.abs(gradient))), reason=f"all {iterations} iterations used")
    require_finite_start(report)
    report.plan = evaluate.plan(*args)

    def iterated(point):
        nonlocal best, value, gradient
        if not np.array_equal(point, seen[0]):  # the line search has ended at an earlier one of its trials
            at(point)
        slope = float(gradient @ (point - best))
        done = Iteration(report.value, report.gradient_norm, 0.0, 0, False, slope, 1.0)
        best, value, gradient = seen
        report.iterations.append(done)
        report.value, report.gradient_norm = value, float(np.max(np.abs(gradient)))
        if callback is not None:
            assign(wrt, best.astype(kind))
            callback(done)
        advance(loss=report.value, gradient=report.gradient_norm)

    options = {"maxiter": iterations, "maxfun": 30 * iterations, "maxcor": history, "gtol": tolerance, "ftol": 0.0}
    try:
        with progress_bar(iterations, "minimising") as advance:
            if report.gradient_norm > tolerance:
                found = minimize(at, best, jac=True, method="L-BFGS-B", callback=iterated, options=options)
                if len(report.iterations) < iterations:
                    report.reason = f"SciPy stopped: {found.message}"
    finally:
        assign(wrt, best.astype(kind))  # a trial step may have been interrupted
    report.converged = report.gradient_norm <= tolerance
    if report.converged:
        report.reason = f"the gradient is within the tolerance of {tolerance:g}"
        if probes:
            report.standing = attempted(lambda: judged_by_products(objective, args, probes))
    return report
