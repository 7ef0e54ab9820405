"""What a derivative at a special point is called, and whether the case could have called it anything else."""

from collections.abc import Iterator

from special.truth import Sides, Truth

import numpy as np
from verdicts import Found, judge

TOLERANCE = {1: 1e-5, 2: 1e-4}  # by order: second differences of values are known less well
PERTURBED = 0.01  # of the derivative's size: well above the tolerance


def exact(found: np.ndarray, wanted: np.ndarray, error: float, order: int, floor: float) -> Found:
    """The verdict where there is a derivative: of a vector, or of a number as a vector of one."""
    if not np.isfinite(found).all():
        return Found("not finite", np.inf)
    difference, size = float(np.linalg.norm(found - wanted)), float(np.linalg.norm(wanted))
    return judge(difference, size, error, floor, TOLERANCE[order])


def named(found: float, there: Sides, scale: float) -> str:
    """What a slope is where there is no derivative: which of the slopes, or what of them."""
    if np.isnan(found):
        return "NaN"
    if np.isinf(found):
        return "infinite"
    near = 10 * (TOLERANCE[1] * scale + there.error)
    if not there.error <= 1e-2 * scale:
        return f"{'0' if found == 0 else 'a number'}, where the slopes have no limit"
    if abs(there.right - there.left) <= near:
        return "" if abs(found - there.middle) <= near else "none of the slopes"
    for name, slope in (("half of each", there.middle), ("that from the right", there.right),
                        ("that from the left", there.left)):  # fmt: skip
        if abs(found - slope) <= near:
            return name + (", 0" if abs(slope) <= near else "")
    if abs(found) <= near:
        return "0, and neither side's"
    low, high = sorted((there.right, there.left))
    if low < found < high:
        return "between those of the two sides"
    return "none of the slopes"


def at_kink(found: np.ndarray, truth: Truth) -> str:
    """What a gradient is called where there is none, element by element."""
    finite = [abs(s) for side in truth.elements for s in (side.right, side.left) if np.isfinite(s)]
    scale = max(finite, default=0.0)
    words = [named(value, side, scale) for value, side in zip(found, truth.elements, strict=True)]
    return "; ".join(dict.fromkeys(filter(None, words)))


def perturbations(wanted: np.ndarray, zero: bool) -> Iterator[tuple[str, np.ndarray]]:
    """A derivative spoilt in several ways, each of which a case must call wrong."""
    size = float(np.max(np.abs(wanted), initial=0.0))
    for index in range(wanted.size):
        other = wanted.copy()
        other[index] += PERTURBED * (size or float(zero))  # 0 changed by nothing is 0: such a case proves nothing
        yield f"element {index + 1} changed by {PERTURBED:.0%}", other
    if not zero:
        yield "zeroed", 0 * wanted
        other = wanted.copy()
        largest = np.argmax(np.abs(wanted)) if wanted.size else 0
        other[largest : largest + 1] *= -1
        yield "a sign flipped", other


def vacuous(wanted: np.ndarray, error: float, order: int, floor: float, zero: bool) -> str:
    """Which wrong derivative a case would not call wrong, or ""."""
    for words, spoilt in perturbations(wanted, zero):
        if exact(spoilt, wanted, error, order, floor).verdict != "wrong":
            return words
    return "" if wanted.size else "there is nothing to differentiate"


def vacuous_at_kink(found: np.ndarray, truth: Truth) -> str:
    """Which other result would be given the same name, or "": a kink whose slopes are known tells them apart."""
    if not np.isfinite(found).all():
        return ""
    said = at_kink(found, truth)
    for words, spoilt in perturbations(found if found.any() else np.ones_like(found), False):
        if not (words == "zeroed" and not found.any()) and at_kink(spoilt, truth) == said:
            return words
    return ""
