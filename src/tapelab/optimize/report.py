"""What a minimisation did, in words and numbers, and what every method here shares."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tapelab.derivatives import NotFiniteError, pack, unpack
from tapelab.process.session.bar import progress_bar
from tapelab.process.tensorflow import tf

import numpy as np

_HERE = "at the variables' present values; start where both are finite"
_NEXT = "one step from the point that the variables hold; look for a square root or a norm at 0, or an overflow"


@dataclass(frozen=True)
class Iteration:
    """What one iteration did.

    Attributes:
        value: the loss before the step.
        gradient_norm: the largest magnitude in the gradient before the step.
        slope: the inner product of the gradient and the direction; negative where the direction descends.
        step: the length of the step, as a multiple of the direction; 0 for a step that was refused.
        negative_curvature: whether a direction was met in which the loss curves downwards.
    """

    value: float
    gradient_norm: float
    slope: float
    step: float = 1.0
    negative_curvature: bool = False


@dataclass(frozen=True)
class Standing:
    """What the Hessian matrix tells of a point where the gradient is small.

    Attributes:
        kind: "minimum" (all eigenvalues are positive), "no minimum" (there is a direction along which the loss curves
            downwards: a saddle, or a maximum), "flat" (the smallest eigenvalue is zero but for rounding), "distant" (a
            minimum by the eigenvalues, but Newton's step to it is not small), or "unknown" (products found positive
            curvature only, and have not seen all directions; or there are none).
        smallest: the smallest eigenvalue, or Ritz value, that was computed; None if there is none. Of Ritz values, the
            smallest eigenvalue is at or below it.
        rounding: below this magnitude an eigenvalue is not told from zero.
        products: how many Hessian-vector products Lanczos's method took; 0 where the whole matrix was decomposed.
        complete: whether all different eigenvalues were found.
        why: in words, why nothing is known, or what Newton's step is that is not small; otherwise empty.
    """

    kind: str
    smallest: float | None = None
    rounding: float = 0.0
    products: int = 0
    complete: bool = False
    why: str = ""

    def __str__(self) -> str:
        if self.smallest is None:
            return f"whether this is a minimum is not known: {self.why}"
        value = f"the Hessian's smallest eigenvalue is {self.smallest:.3g}"
        if not self.complete:
            value = f"in {self.products} products, the smallest curvature found is {self.smallest:.3g}"
        return {
            "minimum": f"a minimum: {value}",
            "no minimum": f"not a minimum: {value}, and along that direction the loss curves downwards",
            "flat": f"a flat place: {value}, zero but for rounding ({self.rounding:.1g}); second derivatives do not "
            "tell whether it is a minimum",
            "distant": f"no stationary point yet: {value}, and {self.why}; pass a smaller tolerance",
            "unknown": f"perhaps a minimum: {value}; not all directions were seen",
        }[self.kind]


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
    """

    value: float
    gradient_norm: float
    converged: bool = False
    reason: str = ""
    iterations: list[Iteration] = field(default_factory=list)
    standing: Standing | None = None

    def __post_init__(self) -> None:
        _require_finite(self.value, self.gradient_norm, _HERE)

    def __str__(self) -> str:
        end = f"loss {self.value:.6g} and gradient {self.gradient_norm:.2g} after {len(self.iterations)} steps"
        return f"{end}; {self.reason}\n{self.stands}".rstrip()

    @property
    def stands(self) -> str:
        """What the end is, a minimum, a saddle or a flat place, in a sentence; empty where nothing was computed."""
        return str(self.standing or "")


def _require_finite(value: float, gradient_norm: float, where: str) -> None:
    if not np.isfinite([value, gradient_norm]).all():
        raise NotFiniteError(f"the loss is {value} and its gradient's largest magnitude {gradient_norm} {where}")


def assign(wrt: Any, point: Any) -> None:
    """Give nested variables the values of a packed vector."""
    packed = tf.cast(point, tf.nest.flatten(wrt)[0].dtype)
    for variable, part in zip(tf.nest.flatten(wrt), tf.nest.flatten(unpack(packed, wrt)), strict=True):
        variable.assign(part)


@contextlib.contextmanager
def descending(
    report: Report, wrt: Any, iterations: int, callback: Callable[[Iteration], Any] | None
) -> Iterator[Callable[[Iteration, Any, float, float], None]]:
    """Keep the best point of a minimisation in the block: the variables hold it afterwards, an interrupt included.

    Yields:
        What to call after each iteration, with it, the best point, and the value and the gradient's norm there.
    """
    best = pack(wrt)
    try:
        with progress_bar(iterations, "minimising") as advance:

            def note(done: Iteration, point: Any, value: float, gradient_norm: float) -> None:
                nonlocal best
                _require_finite(value, gradient_norm, _NEXT)
                best = point
                report.iterations.append(done)
                report.value, report.gradient_norm = value, gradient_norm
                if callback is not None:
                    assign(wrt, best)
                    callback(done)
                advance(loss=value, gradient=gradient_norm)

            yield note
    finally:
        assign(wrt, best)  # a trial step may have been interrupted


def largest(gradient: Any) -> float:
    """The largest magnitude in a vector."""
    return float(np.max(np.abs(gradient), initial=0))
