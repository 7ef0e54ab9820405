"""Lower and upper bounds on the parameters of a fit."""

from dataclasses import dataclass
from typing import Any

from tapelab.process.tensorflow import tf

import numpy as np


@dataclass(frozen=True)
class Bounds:
    """What the parameters may be: two vectors of shape (n,), in the order of `pack` and in float64."""

    lower: np.ndarray
    upper: np.ndarray

    def kept(self, point: np.ndarray) -> np.ndarray:
        """The nearest point within."""
        return np.clip(point, self.lower, self.upper)

    def distance(self, point: np.ndarray) -> np.ndarray:
        """How far each element of a point within is from its nearer bound, shape (n,)."""
        return np.minimum(point - self.lower, self.upper - point)

    def pushed(self, point: np.ndarray, gradient: np.ndarray) -> np.ndarray:
        """Which elements are at a bound, and would go beyond it along the negative gradient."""
        return ((point <= self.lower) & (gradient > 0)) | ((point >= self.upper) & (gradient < 0))


def bounds_of(given: Any, wrt: Any, start: np.ndarray) -> Bounds:
    """Return the bounds that a caller gave, as the variables' dtype has them.

    Args:
        given: None, or a pair (lower, upper); each a number for all variables, or nested as wrt, with a number or an
            array that broadcasts to the variable.
        wrt: the variables.
        start: their values, packed.

    Raises:
        TypeError: if it is no pair.
        ValueError: if a bound does not fit the variables or is NaN, a lower one is not below the upper one, or the
            start is outside.
    """
    if given is None:
        return Bounds(np.full(start.shape, -np.inf), np.full(start.shape, np.inf))
    if not isinstance(given, (tuple, list)) or len(given) != 2:
        raise TypeError(
            f"bounds is {given!r}; expected a pair (lower, upper), with -np.inf or np.inf where there is none"
        )
    lower, upper = (_packed(name, side, wrt) for name, side in zip(("lower", "upper"), given, strict=True))
    for wrong, sentence in (
        (
            ~(lower < upper),
            "the lower bound is {lower:.6g} and the upper {upper:.6g}; expected a smaller lower one",
        ),
        (
            ~((lower <= start) & (start <= upper)),
            "the variable starts at {start:.6g}, outside the bounds {lower:.6g} and {upper:.6g}; assign a value within",
        ),
    ):
        if wrong.any():
            at = int(np.argmax(wrong))
            sentence = sentence.format(lower=lower[at], upper=upper[at], start=start[at])
            raise ValueError(f"bounds: of element {at} (in the order of pack) {sentence}")
    return Bounds(lower, upper)


def _packed(name: str, given: Any, wrt: Any) -> np.ndarray:
    """One side of the bounds as a vector, in the order of `pack`."""
    variables = tf.nest.flatten(wrt)
    dtype = variables[0].dtype.as_numpy_dtype
    try:
        if np.isscalar(given):
            parts = [given] * len(variables)
        elif wrt is variables[0]:  # a list of numbers is its value, no structure
            parts = [given]
        else:
            tf.nest.assert_same_structure(wrt, given)
            parts = tf.nest.flatten(given)
        rows = [
            np.broadcast_to(np.asarray(part, dtype), variable.shape).ravel()
            for part, variable in zip(parts, variables, strict=True)
        ]
    except (TypeError, ValueError) as error:
        shapes = ", ".join(str(tuple(variable.shape)) for variable in variables)
        raise ValueError(
            f"bounds: the {name} one is {given!r}; expected a number, or what is nested as wrt, with numbers or "
            f"arrays (no lists) of shape {shapes}"
        ) from error
    return np.concatenate(rows).astype(np.float64)
