"""Newton's method over the variables of a model: damped, with a line search, and with conjugate gradients instead of a
matrix.

A Newton direction solves (H + damping I) d = -g. Where the Hessian H is not positive definite the undamped solution may
climb; here a step is only taken along a direction that descends, and only as far as the loss falls. See J. Nocedal and
S. Wright, *Numerical Optimization*, 2nd ed.: section 3.1 (line search), 3.4 (modified Newton), algorithm 7.1
(Newton-CG).
"""

import math
from collections.abc import Callable
from typing import Any

from tapelab.derivatives import Plan, SingularMatrixError, pack
from tapelab.optimize.objective import Objective, judged_by_matrix, judged_by_products, objective_of
from tapelab.optimize.report import (
    Iteration,
    Report,
    assign,
    require_finite_start,
    require_not_negative,
    require_probes,
)
from tapelab.optimize.standing import PRODUCTS, Standing, attempted
from tapelab.process import quiet_stderr
from tapelab.process.session.bar import progress_bar
from tapelab.process.tensorflow import tf

import numpy as np

_DECREASE = 1e-4  # the part of the decrease that the slope promises, which a step has to deliver
_HALVINGS = 30
_ROUNDS = 40


def newton_direction(gradient: tf.Tensor, matrix: tf.Tensor, damping: float = 0.0) -> tuple[tf.Tensor, float, bool]:
    """Solve (matrix + damping I) d = -gradient, with as much more damping as makes the matrix positive definite.

    Args:
        gradient: tensor of shape (n,).
        matrix: symmetric tensor of shape (n, n), of the gradient's dtype.
        damping: not negative. It is doubled until a Cholesky factorisation succeeds.

    Returns:
        A triple: the direction, shape (n,); the damping used; whether the matrix with the given damping was not
        positive definite.

    Raises:
        ValueError: for shapes that do not fit, a negative damping, or a matrix that no damping makes positive definite
            (it contains NaN or infinity).
    """
    gradient, matrix = tf.convert_to_tensor(gradient), tf.convert_to_tensor(matrix)
    size = gradient.shape.num_elements()
    if gradient.shape.rank != 1 or matrix.shape != (size, size):
        raise ValueError(
            f"the gradient has shape {tuple(gradient.shape)} and the matrix {tuple(matrix.shape)}; expected (n,) and "
            "(n, n): use pack, and hessian(…, packed=True)"
        )
    require_not_negative("damping", damping)
    scale = float(tf.reduce_max(tf.abs(matrix))) or 1.0
    # What this dtype leaves of an eigenvalue of zero is smaller than this.
    least = scale * float(np.finfo(matrix.dtype.as_numpy_dtype).eps) ** 0.5
    used = damping
    for _ in range(_ROUNDS):
        factor = _cholesky(matrix + used * tf.eye(size, dtype=matrix.dtype))
        if factor is not None:
            return -tf.linalg.cholesky_solve(factor, gradient[:, tf.newaxis])[:, 0], used, used > damping
        used = max(2 * used, least)
    raise ValueError(f"no damping up to {used:.1e} makes the matrix positive definite; it may contain NaN")


def conjugate_gradient_direction(
    gradient: tf.Tensor,
    product: Callable[[tf.Tensor], tf.Tensor],
    damping: float = 0.0,
    *,
    tolerance: float | None = None,
    limit: int | None = None,
) -> tuple[tf.Tensor, int, bool]:
    """Solve (H + damping I) d = -gradient from Hessian-vector products, and stop where the curvature is not positive.

    Args:
        gradient: tensor of shape (n,).
        product: takes a tensor of shape (n,), returns the Hessian times it.
        damping: not negative.
        tolerance: the residual's norm to stop at, relative to the gradient's; by default min(1/2, sqrt(norm)), which
            is loose far from the minimum and gives superlinear convergence near it.
        limit: the largest number of products; by default n.

    Returns:
        A triple: the direction, shape (n,), which descends; the number of products; whether negative curvature was met.
    """
    require_not_negative("damping", damping)
    residual = tf.convert_to_tensor(gradient)
    norm = float(tf.norm(residual))
    tolerance = min(0.5, norm**0.5) if tolerance is None else tolerance
    limit = residual.shape.num_elements() if limit is None else limit
    direction, search, squared = tf.zeros_like(residual), -residual, norm**2
    for count in range(1, limit + 1):
        image = product(search) + damping * search
        curvature = float(tf.tensordot(search, image, 1))
        if not curvature > 0:
            # The first search direction is steepest descent; the later ones have only improved on it.
            return (search if count == 1 else direction), count, True
        length = squared / curvature
        direction += length * search
        residual += length * image
        previous, squared = squared, float(tf.tensordot(residual, residual, 1))
        if squared**0.5 <= tolerance * norm:
            return direction, count, False
        search = -residual + (squared / previous) * search
    return direction, limit, False


def newton(
    f: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    iterations: int = 20,
    tolerance: float = 1e-5,
    damping: float = 1e-3,
    memory_limit: int | None = None,
    compile: str = "auto",
    callback: Callable[[Iteration], Any] | None = None,
) -> Report:
    """Minimise a loss by Newton's method, factorising the damped Hessian over all variables.

    The damping falls tenfold after a full step, rises tenfold after a shortened one, and as far as needed where the
    Hessian is not positive definite.

    Args:
        f: takes ``args``, reads the variables, returns a scalar; or an `Objective`, which keeps what it compiled.
        args: passed to f.
        wrt: the variables to change, nested, all of one dtype. Not with an objective, which has its own.
        iterations: how many steps at most.
        tolerance: stop where no element of the gradient is larger in magnitude.
        damping: the initial one, not negative.
        memory_limit: bytes, for the Hessian; as for `hessian`. Not with an objective.
        compile: "auto", "xla", "graph" or "eager", as for `hessian`. "graph" starts sooner, and may be slower later.
            Not with an objective.
        callback: called with each `Iteration` when it is done, while the variables hold the best point. An exception
            that it raises ends the minimisation. The loss is evaluated once more after it.

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
    objective = objective_of(f, wrt, compile, memory_limit)

    def direction(gradient: tf.Tensor, damping: float) -> tuple[tf.Tensor, float, int, bool]:
        found, used, negative = newton_direction(gradient, objective.hessian(*args), damping)
        return found, used, 0, negative

    def plan(gradient: tf.Tensor) -> Plan:
        return objective.hessian.plan(*args)

    def judge() -> Standing:
        return judged_by_matrix(objective, args)

    return _minimise(objective, args, (direction, plan, judge), iterations, tolerance, damping, callback)


def newton_cg(
    f: Callable | Objective,
    *args: Any,
    wrt: Any = None,
    iterations: int = 20,
    tolerance: float = 1e-5,
    damping: float = 0.0,
    products: int | None = None,
    probes: int = PRODUCTS,
    compile: str = "auto",
    callback: Callable[[Iteration], Any] | None = None,
) -> Report:
    """Minimise a loss by Newton's method with conjugate gradients: Hessian-vector products, and never a Hessian.

    Args:
        products: the largest number of Hessian-vector products for one step; by default the number of elements.
        probes: how many to take at most where the gradient is within the tolerance, to tell what the point is
            (`Report.standing`); 0 for none.
        f, args, wrt, iterations, tolerance, damping, compile, callback: as for `newton`.

    Returns:
        A `Report`, as `newton`, but for its standing: that comes from Lanczos's method, which proves a saddle where it
        finds one, and a minimum where it has seen all directions.

    Raises:
        NotFiniteError, ValueError, TypeError: as `newton`.
    """
    require_probes(probes)
    objective = objective_of(f, wrt, compile)

    def direction(gradient: tf.Tensor, damping: float) -> tuple[tf.Tensor, float, int, bool]:
        found, count, negative = conjugate_gradient_direction(
            gradient, lambda vector: objective.hvp(*args, vector=vector), damping, limit=products
        )
        return found, damping, count, negative

    def plan(gradient: tf.Tensor) -> Plan:
        return objective.hvp.plan(*args, vector=gradient)

    def judge() -> Standing | None:
        return judged_by_products(objective, args, probes) if probes else None

    return _minimise(objective, args, (direction, plan, judge), iterations, tolerance, damping, callback)


def _minimise(
    objective: Objective,
    args: tuple[Any, ...],
    method: tuple[
        Callable[[tf.Tensor, float], tuple[tf.Tensor, float, int, bool]],
        Callable[[tf.Tensor], Plan],
        Callable[[], Standing | None],
    ],
    iterations: int,
    tolerance: float,
    damping: float,
    callback: Callable[[Iteration], Any] | None,
) -> Report:
    direction, plan, judge = method
    require_not_negative("damping", damping)
    wrt = objective.wrt

    def at(point: tf.Tensor) -> tuple[float, tf.Tensor]:
        assign(wrt, point)
        value, gradient = objective.value_and_gradient(*args)
        return float(value), pack(gradient)

    point = pack(wrt)
    value, gradient = at(point)
    report = Report(value, float(tf.reduce_max(tf.abs(gradient))), reason=f"all {iterations} iterations used")
    require_finite_start(report)
    try:
        with progress_bar(iterations, "minimising") as advance:
            for _ in range(iterations):
                if report.gradient_norm <= tolerance:
                    break
                step_direction, used, products, negative = direction(gradient, damping)
                report.plan = report.plan or plan(gradient)
                slope = float(tf.tensordot(gradient, step_direction, 1))
                step, found = _line_search(at, point, step_direction, value, slope)
                done = Iteration(value, report.gradient_norm, used, products, negative, slope, step)
                report.iterations.append(done)
                if found is not None:
                    point, value, gradient = found
                    damping = used / 10 if step == 1 else 10 * used
                if callback is not None:
                    assign(wrt, point)
                    callback(done)
                    value, gradient = at(point)  # it may have changed what the loss reads
                report.value, report.gradient_norm = value, float(tf.reduce_max(tf.abs(gradient)))
                advance(loss=report.value, gradient=report.gradient_norm)
                if found is None:
                    report.reason = "no step along the direction lowers the loss; the step was refused"
                    break
    finally:
        assign(wrt, point)  # a trial step may have been interrupted
    report.converged = report.gradient_norm <= tolerance
    if report.converged:
        report.reason = f"the gradient is within the tolerance of {tolerance:g}"
        report.standing = attempted(judge)
    return report


def _line_search(
    at: Callable[[tf.Tensor], tuple[float, tf.Tensor]],
    point: tf.Tensor,
    direction: tf.Tensor,
    value: float,
    slope: float,
) -> tuple[float, tuple[tf.Tensor, float, tf.Tensor] | None]:
    """Halve the step from 1 until the loss falls enough: the step with (point, value, gradient), or 0 with None."""
    if not slope < 0:
        return 0.0, None
    step = 1.0
    for _ in range(_HALVINGS):
        trial = point + step * direction
        try:
            trial_value, gradient = at(trial)
        except SingularMatrixError:  # the loss has no value there
            trial_value, gradient = math.inf, None
        # Strictly below: where the promised decrease is lost in rounding, an equal loss is no descent.
        if trial_value < value and trial_value <= value + _DECREASE * step * slope:
            return step, (trial, trial_value, gradient)
        step /= 2
    return 0.0, None


def _cholesky(matrix: tf.Tensor) -> tf.Tensor | None:
    """Return the Cholesky factor, or None if there is none. TensorFlow says so with NaN and a log, or an exception."""
    try:
        with quiet_stderr():
            factor = tf.linalg.cholesky(matrix)
    except tf.errors.InvalidArgumentError:
        return None
    return factor if bool(tf.reduce_all(tf.math.is_finite(factor))) else None
