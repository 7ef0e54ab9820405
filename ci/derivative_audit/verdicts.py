"""What a derivative is called beside central differences: right, wrong, None … Nothing here needs TensorFlow."""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import differences
import numpy as np

# A relative error above this is wrong. Differences of float64 values reach some 1e-10, those of gradients 1e-12;
# kernels that compute in float32 leave 1e-3. A reference counts only where it is known ten times as well as the error.
TOLERANCE = {"float64": 1e-5, "float32": 1e-2}
SEVERITY = ("right", "unclear", "another value", "None", "raises", "not finite", "wrong")


@dataclass(frozen=True)
class Found:
    """What one way in one mode gave, the worst over the points: one of SEVERITY, the relative error, a message."""

    verdict: str
    error: float = 0.0
    says: str = ""

    def worse(self, other: "Found") -> "Found":
        return max(self, other, key=lambda found: (SEVERITY.index(found.verdict), found.error))


@dataclass
class Point:
    """A point xs, directions vs and us, and what differences say there.

    `product`, `gradient`: one vector for all inputs, one after the other. An error is the estimate of Ridders' method.
    """

    xs: list[np.ndarray]
    vs: list[np.ndarray]
    us: list[np.ndarray]
    value: float
    slope: float  # along vs, from values
    slope_error: float
    by_values: Callable[[], tuple[np.ndarray, float]]  # the second derivative along us and vs from values, its error
    gradient: np.ndarray | None = None  # as TensorFlow gives it
    product: np.ndarray | None = None  # the derivative of that gradient along vs, from differences
    product_error: float = np.inf

    @functools.cached_property
    def curvature(self) -> tuple[float, float]:
        """The second derivative along us and vs from values alone, and its error: seldom needed, and so on demand."""
        curvature, error = self.by_values()
        return float(curvature), error

    def floor(self) -> float:
        """Differences of derivatives below this are rounding."""
        sizes = [abs(self.value), abs(self.slope)]
        if self.gradient is not None:
            sizes.append(float(np.linalg.norm(self.gradient)))
        return 1e-10 * max(size for size in sizes if np.isfinite(size))


def joined(tensors: Sequence[Any], like: Sequence[np.ndarray]) -> np.ndarray:
    """One vector of all tensors; None stands for zeros."""
    return np.concatenate([np.zeros(x.size) if t is None else np.ravel(t) for t, x in zip(tensors, like, strict=True)])


def reference(
    value: Callable, gradient: Callable | None, inputs: list[np.ndarray], seed: int, precision: str = "float64"
) -> Point:
    """The derivatives at a point along random directions, by differences of values and of the gradient, if any."""
    rounding = float(np.finfo(precision).eps)
    generator = np.random.default_rng(seed)
    # No element is small or large: no element's error goes unseen, and a step says how far each one moves.
    vs, us = (
        [generator.uniform(0.5, 1.0, x.shape) * generator.choice([-1.0, 1.0], x.shape) for x in inputs]
        for _ in range(2)
    )

    def moved(s, t=0.0):
        return [x + s * v + t * u for x, v, u in zip(inputs, vs, us, strict=True)]

    middle = value(moved(0.0))
    noise = rounding * abs(middle)
    slope, slope_error = differences.along(lambda s: value(moved(s)), noise=noise)

    def curvature():
        return differences.mixed(lambda s, t: value(moved(s, t)), noise=noise)

    point = Point(inputs, vs, us, middle, float(slope), slope_error, curvature)
    if gradient is not None:
        point.gradient = gradient(moved(0.0))
        noise = rounding * float(np.linalg.norm(point.gradient))
        point.product, point.product_error = differences.along(lambda s: gradient(moved(s)), noise=noise)
    return point


def judge(difference: float, size: float, reference_error: float, floor: float, tolerance: float) -> Found:
    """The verdict on a difference from a reference of this size."""
    error = difference / size if size > floor else (0.0 if difference <= floor else np.inf)
    if difference <= tolerance * size + floor:
        return Found("right", min(error, tolerance))
    if not reference_error <= 0.1 * difference:
        return Found("unclear", error)
    return Found("wrong", error)


SPOILT = 10  # of the tolerances of an element: what a case must call wrong, or it proves nothing


def spoilt(result: Sequence[Any], tolerance: float) -> Iterator[tuple[str, list[Any]]]:
    """A derivative that is wrong, in three ways: its largest element changed, all of it zeroed, one sign flipped.

    Args:
        result: tensors or numbers, or None where there is no derivative.
        tolerance: relative.
    """
    arrays = [None if t is None else np.array(t, np.float64) for t in result]
    sizes = [-1.0 if t is None or not t.size else float(np.max(np.abs(t))) for t in arrays]
    which = int(np.argmax(sizes))
    change = SPOILT * tolerance * max(1, sum(0 if t is None else t.size for t in arrays))
    for words, factor in ((f"an element changed by {change:.2g} of itself", 1 + change), ("a sign flipped", -1)):
        others = [None if t is None else t.copy() for t in arrays]
        if sizes[which] > 0:
            largest = np.unravel_index(np.argmax(np.abs(others[which])), others[which].shape)
            others[which][largest] *= factor
        yield words, others
    yield "zeroed", [None if t is None else 0 * t for t in arrays]


def _not_finite(result):
    return any(t is not None and not np.all(np.isfinite(t)) for t in result)


def check_first(result: Sequence[Any], point: Point, tolerance: float, partial: Callable[[int], float] | None) -> Found:
    """A gradient (one tensor for each input) or a directional derivative (one number) beside differences of values.

    Args:
        result: what a way of the first order gave.
        point: where.
        tolerance: relative.
        partial: gives the slope along the input of this index alone; None where the result is a directional derivative.
    """
    if _not_finite(result):
        return Found("not finite", np.inf)
    floor = point.floor()
    slopes = {i: point.slope if partial is None else partial(i) for i, t in enumerate(result) if t is None}
    lost = [i + 1 for i, slope in slopes.items() if abs(slope) > 1e3 * floor]
    if lost:
        return Found("None", 1.0, f"for input {', '.join(map(str, lost))} of {len(result)}" if len(result) > 1 else "")
    if partial is None:
        slope = float(result[0] if result[0] is not None else 0.0)
    else:
        slope = float(joined(result, point.xs) @ joined(point.vs, point.xs))
    return judge(abs(slope - point.slope), abs(point.slope), point.slope_error, floor, tolerance)


def check_second(result: Sequence[Any], point: Point, tolerance: float, trusted: bool) -> Found:
    """The product of the Hessian with vs (one tensor for each input) beside differences.

    It is called wrong only where differences of values, which know nothing of tapes, say so too.

    Args:
        result: what a way of the second order gave.
        point: where.
        tolerance: relative.
        trusted: whether the gradient itself is right, so that differences of it count.
    """
    if _not_finite(result):
        return Found("not finite", np.inf)
    found, floor = joined(result, point.xs), point.floor()
    size = np.inf
    if trusted and point.product is not None:
        size = float(np.linalg.norm(point.product))
        by_gradients = judge(float(np.linalg.norm(found - point.product)), size, point.product_error, floor, tolerance)
        if by_gradients.verdict != "wrong":
            return by_gradients
    curvature, error = point.curvature
    # Second differences divide rounding by h² where first ones divide by h.
    difference = abs(float(found @ joined(point.us, point.xs)) - curvature)
    by_values = judge(difference, abs(curvature), error, 1e3 * floor, tolerance)
    if size == np.inf:
        return by_values
    if by_values.verdict != "wrong":
        return Found("unclear", by_gradients.error, "differences of values do not confirm it")
    parts = np.split(point.product, np.cumsum([x.size for x in point.xs])[:-1])
    lost = [i + 1 for i, t in enumerate(result) if t is None and np.linalg.norm(parts[i]) > 1e3 * floor]
    if lost:
        return Found("None", by_gradients.error, f"for input {', '.join(map(str, lost))} of {len(result)}")
    return by_gradients
