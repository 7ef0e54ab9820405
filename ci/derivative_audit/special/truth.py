"""What is true at a special point, from values of the function alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import differences
import numpy as np

AGREE = 1e-4  # differences to both sides that are closer than this, relatively, are one derivative
KINK = 1e-2  # of second derivatives, which are known less well


@dataclass
class Sides:
    """A derivative along one direction from the right and from the left, with the errors of both."""

    right: float
    left: float
    error: float

    @property
    def middle(self) -> float:
        return (self.right + self.left) / 2


@dataclass
class Truth:
    """The derivatives of a function of n numbers at a point; each with the estimate of its error.

    Attributes:
        value: there.
        v, u: directions, n numbers each.
        elements: the slopes along each element alone.
        along: the slope along v.
        bend: the second derivative along v.
        gradient, product, twist, trace: the gradient, the Hessian times v, uᵀ H v, and the sum of the Hessian's
            diagonal; a pair of the number or array and its error.
        disputed: why differences do not say what the case says of its derivatives; "" where they do.
    """

    value: float
    v: np.ndarray
    u: np.ndarray
    elements: list[Sides] = field(default_factory=list)
    along: Sides | None = None
    bend: Sides | None = None
    gradient: tuple[np.ndarray, float] | None = None
    product: tuple[np.ndarray, float] | None = None
    twist: tuple[float, float] | None = None
    trace: tuple[float, float] | None = None
    disputed: str = ""


def sides(value: Callable, x: np.ndarray, d: np.ndarray, order: int = 1) -> Sides:
    """Derivatives along d at x from both sides."""
    noise = np.finfo(float).eps * abs(value(x))
    right, above = differences.to_one_side(lambda h: value(x + h * d), 1.0, order, noise)
    left, below = differences.to_one_side(lambda h: value(x + h * d), -1.0, order, noise)
    errors = [error for slope, error in ((right, above), (left, below)) if np.isfinite(slope)]
    return Sides(float(right), float(left), max(errors, default=np.inf))


def of(value: Callable[[np.ndarray], float], x: np.ndarray, derivatives: int) -> Truth:
    """The truth at x.

    Args:
        value: of n numbers.
        x: n numbers.
        derivatives: how many there are said to be.
    """
    generator = np.random.default_rng(5)
    v, u = (generator.uniform(0.5, 1.0, x.size) * generator.choice([-1.0, 1.0], x.size) for _ in range(2))
    truth = Truth(float(value(x)), v, u)
    truth.elements = [sides(value, x, e) for e in np.eye(x.size)]
    truth.along, across = sides(value, x, v), sides(value, x, u)
    truth.bend = sides(value, x, v, 2)
    size = max((abs(s) for side in truth.elements for s in (side.right, side.left)), default=0.0)
    slopes = np.array([side.middle for side in truth.elements])
    smooth = _smooth([*truth.elements, truth.along, across], size, AGREE) and all(
        abs(slopes @ d - side.middle) <= AGREE * size for d, side in ((v, truth.along), (u, across))
    )
    if derivatives == 0:
        truth.disputed = "differences to both sides agree: it has a derivative" if smooth else ""
        return truth
    if not smooth:
        truth.disputed = "differences to both sides, or along several directions, do not agree"
        return truth
    truth.gradient = slopes, float(np.linalg.norm([side.error for side in truth.elements]))
    bent = abs(truth.bend.right - truth.bend.left) > KINK * abs(truth.bend.middle) + 10 * truth.bend.error
    if derivatives == 1:
        truth.disputed = "" if bent else "second differences to both sides agree: it has a second derivative"
        return truth
    if bent:
        truth.disputed = "second differences to both sides do not agree"
        return truth
    _second(truth, value, x)
    return truth


def _smooth(each: Sequence[Sides], size: float, agree: float) -> bool:
    """Whether the slopes from both sides are finite, known, and the same."""
    return all(
        np.isfinite([side.right, side.left]).all()
        and side.error <= 0.1 * agree * size + 1e-12
        and abs(side.right - side.left) <= agree * size
        for side in each
    )


def _second(truth: Truth, value: Callable, x: np.ndarray) -> None:
    """Second derivatives by mixed differences of values."""
    noise = np.finfo(float).eps * abs(truth.value)

    def mixed(d, e):
        twist, error = differences.mixed(lambda s, t: value(x + s * d + t * e), noise=noise)
        return float(twist), error

    rows = [mixed(e, truth.v) for e in np.eye(x.size)]
    truth.product = np.array([row for row, _ in rows]), float(np.linalg.norm([error for _, error in rows]))
    truth.twist = mixed(truth.u, truth.v)
    diagonal = [mixed(e, e) for e in np.eye(x.size)]
    truth.trace = sum(row for row, _ in diagonal), float(np.linalg.norm([error for _, error in diagonal]))
