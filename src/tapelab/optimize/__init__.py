"""Minimisation over the variables of a model, by second derivatives or estimates of them.

    report = newton(loss, x, y, wrt=variables)                  damped Newton steps from the factorised Hessian
    report = newton_cg(loss, x, y, wrt=variables)               the same by conjugate gradients, without the matrix
    report = levenberg_marquardt(residuals, x, y, wrt=variables)    sums of squares, with parameters' covariances

Each changes the variables in place, returns a `Report`, and leaves the best point in the variables, after an interrupt
too. A small gradient is no minimum yet: `Report.standing` says what the point is, as far as it was computed. An
`Objective` in place of the function keeps what was compiled for the next call. For gradients alone hand
`tapelab.derivatives.value_and_gradient` to SciPy's `minimize`, as notebook 14 does with L-BFGS.
"""

from tapelab.optimize.directions import conjugate_gradient_direction
from tapelab.optimize.fit_report import LeastSquaresReport
from tapelab.optimize.least_squares import levenberg_marquardt
from tapelab.optimize.newtons import newton, newton_cg
from tapelab.optimize.objective import Objective
from tapelab.optimize.report import Iteration, Report
from tapelab.optimize.standing import Standing

__all__ = [
    "Iteration",
    "LeastSquaresReport",
    "Objective",
    "Report",
    "Standing",
    "conjugate_gradient_direction",
    "levenberg_marquardt",
    "newton",
    "newton_cg",
]
