"""What second derivatives tell of the place where a minimisation has ended: a minimum, a saddle, or a flat place.

A gradient of zero is none of these by itself, and a small one is small in the loss's units only. The eigenvalues of the
Hessian matrix H tell them apart, as far as they are known: all of them from the matrix, and from k products with it the
Ritz values of Lanczos's method (`lanczos`). A Ritz value is the curvature along some direction: a negative one is a
saddle or a maximum for certain, positive ones alone prove nothing of the directions that were not seen. Whether the
minimum is here is told by the way to it: Newton's step H⁻¹g beside the parameters, and the decrease gᵀH⁻¹g/2 that it
promises beside the value.
"""

from dataclasses import replace
from typing import Any

from tapelab.derivatives import pack
from tapelab.derivatives.curvature import lanczos
from tapelab.derivatives.errors import told_line
from tapelab.optimize.directions import conjugate_gradient_direction
from tapelab.optimize.objective import Objective
from tapelab.optimize.report import Report, Standing, assign, largest
from tapelab.process.tensorflow import tf

import numpy as np

PRODUCTS = 20  # with the Hessian, by default: Lanczos's method keeps as many vectors
_ROUNDING = 30.0  # in units of rounding, relative to the largest eigenvalue, times the root of their number
_HIDDEN = 1e-2  # relative
_AGREEING = 0.1  # relative: a product that is another matrix's is wrong by its own size
_SMALL = 1e-2  # of the parameters, and of the value
_SURELY_SMALL = 1e-6  # of the parameters, whatever it is of the value: that may be zero at the minimum


def conclude(
    report: Report, objective: Objective, args: tuple[Any, ...], start: tf.Tensor, tolerance: float, probes: int | None
) -> Report:
    """Note whether the gradient is within the tolerance, and if so what second derivatives tell of the end.

    Args:
        report: of the minimisation.
        objective, args: what was minimised; the variables are where it has ended.
        start: where they were, packed.
        tolerance: for the gradient's norm.
        probes: how many products with the Hessian to take at most; 0 to ask nothing, None for the whole matrix.
    """
    report.converged = report.gradient_norm <= tolerance
    if report.converged:
        report.reason = f"the gradient is within the tolerance of {tolerance:g}"
    if not report.converged or probes == 0:
        return report
    end, first = pack(objective.wrt), report.iterations[0].value if report.iterations else report.value
    length = max(float(tf.norm(end)), float(tf.norm(end - start)))
    try:
        report.standing = _judged(objective, args, probes, length, max(abs(report.value), abs(first - report.value)))
    except Exception as error:  # whatever second derivatives raise: a minimisation that has ended does not fail
        report.standing = Standing("unknown", why=f"the Hessian raises {told_line(error)}")
    finally:
        assign(objective.wrt, end)
    return report


def _judged(objective: Objective, args: tuple[Any, ...], probes: int | None, length: float, value: float) -> Standing:
    def product(v: np.ndarray) -> np.ndarray:
        return objective.hvp(*args, vector=tf.constant(v)).numpy() if matrix is None else matrix @ v

    point = pack(objective.wrt).numpy()
    size, unit, gradient = point.size, float(np.finfo(point.dtype).eps), objective.at(point, args)[1].numpy()
    vector = np.random.default_rng(0).standard_normal(size).astype(point.dtype)  # always the same
    vector /= np.linalg.norm(vector)
    matrix: np.ndarray | None = objective.hessian(*args).numpy().astype(np.float64) if probes is None else None
    # Second derivatives may be those of a custom gradient, or of one side of a kink, and not the loss's.
    image, apart = product(vector), unit**0.25 * max(1.0, float(np.linalg.norm(point)))
    ahead, behind = (objective.at(point + side * vector, args)[1].numpy() for side in (apart, -apart))
    difference = (ahead - behind) / (2 * apart)
    if not largest(image - difference) <= _AGREEING * max(largest(image), largest(difference)):
        raise ValueError("its product with a vector differs from a difference of gradients by more than a tenth")
    assign(objective.wrt, point)
    most = probes or size
    values = lanczos(product, vector, most).values if matrix is None else np.linalg.eigvalsh((matrix + matrix.T) / 2)
    # Lanczos's method stops before it has to where the basis spans a space that the matrix maps to itself: no other
    # eigenvalue is left, but for those that differ from one of these by less than this, which the start may not show.
    hidden = _ROUNDING * size * unit
    complete = len(values) == size or (len(values) < most and hidden < _HIDDEN)
    rounding = float(largest(values) * (hidden if complete and len(values) < size else _ROUNDING * size**0.5 * unit))
    smallest, kind = float(values.min()), "minimum" if complete else "unknown"
    if smallest <= rounding:
        kind = "flat" if smallest >= -rounding else "no minimum"
    found = Standing(kind, smallest, rounding, len(values) if matrix is None else 0, complete)
    if smallest <= rounding or not gradient.any():
        return found
    if matrix is None:
        packed, image_of = tf.constant(gradient), lambda v: tf.constant(product(v.numpy()))
        step, *_ = conjugate_gradient_direction(packed, image_of, tolerance=_SMALL, limit=most)
    else:
        step = np.linalg.solve(matrix, gradient)
    tiny = np.finfo(np.float64).tiny
    far, fall = np.linalg.norm(step) / (length or tiny), abs(np.dot(gradient, step)) / 2 / (value or tiny)
    if far <= _SURELY_SMALL or max(far, fall) <= _SMALL:
        return found
    why = f"Newton's step from here is {far:.2g} times as long as the parameters and promises {fall:.2g} of the loss"
    return replace(found, kind="distant", why=why)
