"""Newton's method over the variables of a model: damped, with a line search, and with conjugate gradients instead of a
matrix.

A step is only taken along a direction that descends, and only as far as the loss falls: see J. Nocedal and S. Wright,
*Numerical Optimization*, 2nd ed., section 3.1.
"""

from collections.abc import Callable
from typing import Any

from tapelab.derivatives import SingularMatrixError, pack
from tapelab.optimize.directions import conjugate_gradient_direction, newton_direction, require_at_least
from tapelab.optimize.objective import Objective, objective_of
from tapelab.optimize.report import Iteration, Report, descending, largest
from tapelab.optimize.standing import PRODUCTS, conclude
from tapelab.process.tensorflow import tf

import numpy as np

_DECREASE = 1e-4  # the part of the decrease that the slope promises, which a step has to deliver
_HALVINGS = 30


def newton(
    f: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    iterations: int = 20,
    tolerance: float = 1e-5,
    damping: float = 1e-3,
    callback: Callable[[Iteration], Any] | None = None,
) -> Report:
    """Minimise a loss by Newton's method, factorising the damped Hessian over all variables.

    The damping falls tenfold after a full step, rises tenfold after a shortened one, and as far as needed where the
    Hessian is not positive definite.

    Args:
        f: takes ``args``, reads the variables, returns a scalar; or an `Objective`, which keeps what it compiled, and
            says how it is compiled and what memory it may take.
        args: passed to f.
        wrt: the variables to change, nested, all of one dtype. Not with an objective, which has its own.
        iterations: how many steps at most.
        tolerance: stop where no element of the gradient is larger in magnitude.
        damping: the initial one, not negative.
        callback: called with each `Iteration` when it is done, while the variables hold the best point. An exception
            that it raises ends the minimisation. It may not change what f reads.

    A function is traced anew in every call of this one, an objective where something has changed: what f reads from
    outside is what it is now.

    Returns:
        A `Report`. Where the gradient is within the tolerance, the Hessian is computed once more, and
        `Report.standing` has what its eigenvalues tell: a saddle has a small gradient, too. The variables hold the best
        point found, after an interrupt too; a step that does not descend is not taken. Where a person watches and tqdm
        is installed, a bar shows what takes longer than a second.

    Raises:
        MemoryLimitError: if the Hessian would not fit; `newton_cg` needs none.
        NotFiniteError: if the loss or its gradient is NaN or infinite where the variables are now.
        SingularMatrixError: if a matrix in the loss is singular there; a step to such a point is not taken.
        ValueError, TypeError: as `value_and_gradient` and `hessian`.
    """
    return _minimise(objective_of(f, wrt), args, None, None, iterations, tolerance, damping, callback)


def newton_cg(
    f: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    iterations: int = 20,
    tolerance: float = 1e-5,
    damping: float = 0.0,
    products: int | None = None,
    probes: int = PRODUCTS,
    callback: Callable[[Iteration], Any] | None = None,
) -> Report:
    """Minimise a loss by Newton's method with conjugate gradients: Hessian-vector products, and never a Hessian.

    Args:
        products: the largest number of Hessian-vector products for one step; by default the number of elements.
        probes: how many to take at most where the gradient is within the tolerance, to tell what the point is
            (`Report.standing`); 0 for none.
        f, args, wrt, iterations, tolerance, damping, callback: as for `newton`.

    Returns:
        A `Report`, as `newton`, but for its standing: that comes from Lanczos's method, which proves a saddle where it
        finds one, and a minimum where it has seen all directions.

    Raises:
        NotFiniteError, ValueError, TypeError: as `newton`.
    """
    require_at_least(probes=probes)
    return _minimise(objective_of(f, wrt), args, products, probes, iterations, tolerance, damping, callback)


def _minimise(
    objective: Objective,
    args: tuple[Any, ...],
    products: int | None,
    probes: int | None,  # None: by the matrix
    iterations: int,
    tolerance: float,
    damping: float,
    callback: Callable[[Iteration], Any] | None,
) -> Report:
    require_at_least(damping=damping)

    def product(vector: tf.Tensor) -> tf.Tensor:
        return objective.hvp(*args, vector=vector)

    start = point = pack(objective.wrt)
    value, gradient = objective.at(point, args)
    report = Report(value, largest(gradient), reason=f"all {iterations} iterations used")
    with descending(report, objective.wrt, iterations, callback) as note:
        while report.gradient_norm > tolerance and len(report.iterations) < iterations:
            if probes is None:
                direction, used, negative = newton_direction(gradient, objective.hessian(*args), damping)
            else:
                direction, _, negative = conjugate_gradient_direction(gradient, product, damping, limit=products)
                used = damping
            slope = float(tf.tensordot(gradient, direction, 1))
            step, found = _line_search(objective, args, point, direction, value, slope)
            done = Iteration(value, report.gradient_norm, slope, step, negative)
            if found is not None:
                point, value, gradient = found
                damping = used / 10 if step == 1 else 10 * used
            note(done, point, value, largest(gradient))
            if found is None:
                report.reason = "no step along the direction lowers the loss; the step was refused"
                break
    return conclude(report, objective, args, start, tolerance, probes)


def _line_search(
    objective: Objective, args: tuple[Any, ...], point: tf.Tensor, way: tf.Tensor, value: float, slope: float
) -> tuple[float, tuple[tf.Tensor, float, tf.Tensor] | None]:
    """Halve the step from 1 until the loss falls enough: the step with (point, value, gradient), or 0 with None."""
    for step in 0.5 ** np.arange(_HALVINGS) if slope < 0 else ():
        trial = point + tf.cast(step, point.dtype) * way
        try:
            trial_value, gradient = objective.at(trial, args)
        except SingularMatrixError:  # the loss has no value there
            continue
        # Strictly below: where the promised decrease is lost in rounding, an equal loss is no descent.
        if trial_value < value and trial_value <= value + _DECREASE * step * slope:
            return float(step), (trial, trial_value, gradient)
    return 0.0, None
