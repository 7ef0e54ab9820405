"""Derivatives along a line by central differences, with an estimate of their error.

Ridders' method: central differences with steps h, h/2, h/4 … have an error that is a series in h², so Richardson's
extrapolation takes one term after the other away. Each entry of the tableau is compared with the two that it was made
from; the entry that differs least from them is returned, and that difference is its estimated error. Large steps spoil
only the entries that use them, so a kink at some distance does no harm, and neither does rounding: what precision is
reached decides the step, not the other way round. See C. J. F. Ridders, Advances in Engineering Software 4 (1982) 75.
"""

from collections.abc import Callable

import numpy as np

FIRST, LEVELS, ENOUGH = 0.05, 10, 1e-10  # the largest step, how many at most, and the relative error at which they end


def ridders(
    difference: Callable[[float], np.ndarray],
    first: float = FIRST,
    noise: Callable[[float], float] = lambda h: 0.0,
    ratio: float = 4.0,
) -> tuple[np.ndarray, float]:
    """Extrapolate a difference quotient to the step 0.

    Args:
        difference: of the step h > 0; gives an array of any one shape, with an error that is a series in h².
        ratio: 2 where that error is a series in h, as it is for differences to one side.
        first: the largest step; each further one is half of the one before.
        noise: how much rounding there is in the quotient of a step: neighbours may agree by chance, which float32 does.

    Returns:
        The limit, and an estimate of its error in the 2-norm: infinite where no quotient was finite.
    """
    best, error = np.asarray(difference(first), np.float64) * np.nan, np.inf
    above: list[np.ndarray] = []
    for level in range(LEVELS):
        step = first / 2**level
        row = [np.asarray(difference(step), np.float64)]
        for order, neighbour in enumerate(above, start=1):
            row.append(row[-1] + (row[-1] - neighbour) / (ratio**order - 1))
            estimate = max(np.linalg.norm(row[-1] - row[-2]), np.linalg.norm(row[-1] - neighbour), noise(step))
            if estimate < error:
                best, error = row[-1], float(estimate)
        above = row
        if error <= ENOUGH * np.linalg.norm(best):
            break
    return best, error


def along(f: Callable[[float], np.ndarray], first: float = FIRST, noise: float = 0.0) -> tuple[np.ndarray, float]:
    """The derivative of f at 0, for a function of one number with so much rounding, and the estimate of its error."""
    return ridders(lambda h: (np.asarray(f(h)) - np.asarray(f(-h))) / (2 * h), first, lambda h: noise / h)


def mixed(f: Callable[[float, float], float], first: float = FIRST, noise: float = 0.0) -> tuple[np.ndarray, float]:
    """The mixed second derivative of f at (0, 0), from values of f alone, and the estimate of its error."""
    return ridders(
        lambda h: (f(h, h) - f(h, -h) - f(-h, h) + f(-h, -h)) / (4 * h * h), first, lambda h: noise / (h * h)
    )


def to_one_side(
    f: Callable[[float], np.ndarray], side: float, order: int = 1, noise: float = 0.0
) -> tuple[np.ndarray, float]:
    """The derivative of f at 0 from its values on one side alone, and the estimate of its error.

    Args:
        f: of one number.
        side: 1 for what lies above 0, -1 for what lies below.
        order: 1 or 2.
        noise: how much rounding there is in a value.
    """

    def difference(h):
        h = side * h
        if order == 1:
            return (np.asarray(f(h)) - np.asarray(f(0.0))) / h
        return (np.asarray(f(2 * h)) - 2 * np.asarray(f(h)) + np.asarray(f(0.0))) / (h * h)

    return ridders(difference, noise=lambda h: noise / h**order, ratio=2.0)
