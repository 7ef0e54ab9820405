"""What a minimisation did, in words and numbers, and what every method here shares."""

from dataclasses import dataclass, field
from typing import Any

from tapelab.derivatives import NotFiniteError, Plan, unpack
from tapelab.optimize.standing import Standing
from tapelab.process.tensorflow import tf

import numpy as np


@dataclass(frozen=True)
class Iteration:
    """What one iteration did.

    Attributes:
        value: the loss before the step.
        gradient_norm: the largest magnitude in the gradient before the step.
        damping: what was added to the Hessian's diagonal.
        products: how many Hessian-vector products conjugate gradients took; 0 where the matrix was factorised.
        negative_curvature: whether a direction was met in which the loss curves downwards.
        slope: the inner product of the gradient and the direction; negative where the direction descends.
        step: the length of the step, as a multiple of the direction; 0 for a step that was refused.
    """

    value: float
    gradient_norm: float
    damping: float
    products: int
    negative_curvature: bool
    slope: float
    step: float


@dataclass
class Report:
    """What a minimisation did.

    Attributes:
        value: the loss at the end.
        gradient_norm: the largest magnitude in the gradient at the end.
        converged: whether the gradient's norm is at or below the tolerance.
        reason: why it stopped, in words.
        iterations: a list of each `Iteration`.
        standing: what second derivatives tell of the end, a `Standing`; None where the gradient is not within the
            tolerance, or nothing was asked.
        plan: how the Hessian (`newton`), its products (`newton_cg`), the gradient (`lbfgs`) or the Jacobian
            (`levenberg_marquardt`) was computed the first time, and which faster ways were given up; None where none
            was, or the Jacobian was the caller's.
    """

    value: float
    gradient_norm: float
    converged: bool = False
    reason: str = ""
    iterations: list[Iteration] = field(default_factory=list)
    standing: Standing | None = None
    plan: Plan | None = field(default=None, repr=False)

    def __str__(self) -> str:
        lines = ["  loss          gradient   damping    products  curvature  step"]
        lines += [
            f"  {i.value:<12.6g}  {i.gradient_norm:<9.2e}  {i.damping:<9.1e}  {i.products:<8d}  "
            f"{'negative' if i.negative_curvature else 'positive':9}  {i.step:.3g}"
            for i in self.iterations
        ]
        lines += [f"  {self.value:<12.6g}  {self.gradient_norm:<9.2e}  {self.reason}"]
        return "\n".join([*lines, *([f"  {self.stands}"] if self.stands else [])])

    @property
    def stands(self) -> str:
        """What the end is, a minimum, a saddle or a flat place, in a sentence; empty where nothing was computed."""
        return str(self.standing or "")


def assign(wrt: Any, point: tf.Tensor) -> None:
    """Give nested variables the values of a packed vector."""
    for variable, part in zip(tf.nest.flatten(wrt), tf.nest.flatten(unpack(point, wrt)), strict=True):
        variable.assign(part)


def require_finite_start(report: Report) -> None:
    """Raise NotFiniteError if the loss or its gradient is not finite at the start."""
    if not np.isfinite(report.value) or not np.isfinite(report.gradient_norm):
        raise NotFiniteError(
            f"the loss is {report.value} and its gradient's largest magnitude {report.gradient_norm} at the variables' "
            "present values; start where both are finite"
        )


def require_not_negative(name: str, value: float) -> None:
    """Raise ValueError for a negative number, or NaN."""
    if not value >= 0:
        raise ValueError(f"{name} is {value!r}; expected 0 or a positive number")


def require_probes(probes: int) -> None:
    """Raise ValueError for anything but a number of products, or 0."""
    if isinstance(probes, bool) or not isinstance(probes, int) or probes < 0:
        raise ValueError(f"probes is {probes!r}; expected a number of Hessian-vector products, or 0 for none")
