"""What a case at a special point is, and the tables that hold them, by kind of point."""

import functools
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

TABLES = ("numbers", "arrays", "matrices", "inputs")


@dataclass(frozen=True)
class Special:
    """A function of float64 tensors, and a point where its derivatives are easily missed.

    Attributes:
        name: its kind and what the page calls it.
        kind: of the point: one of `KINDS`.
        call: takes one tensor for each element of `at`, and gives a nest of tensors.
        at: the point.
        derivatives: how many derivatives the function has there: 0 at a kink or a boundary, 1 where the slope has a
            kink, 2. Differences to both sides must agree with it.
        same: the same function in NumPy, without what makes the point special; differences of its values are then
            what is true. Without it, they are differences of the function's own.
        zero: that its derivative is zero, on purpose: TensorFlow gives something else.
        cancels: that the derivative exists for two kinks cancel each other, which no rule of one operation can know.
    """

    name: str
    kind: str
    call: Callable
    at: tuple[np.ndarray, ...]
    derivatives: int = 2
    same: Callable | None = None
    zero: bool = False
    cancels: bool = False


KINDS = (
    "a product with a zero", "0 times infinity", "a kink in stable code", "a kink", "kinks that cancel", "a tie",
    "an index twice", "segments with gaps", "the boundary of a domain", "equal eigenvalues", "rank deficiency",
    "an empty or single axis", "NaN in the branch not taken", "huge or tiny", "one tensor as several inputs",
    "labels that do not sum to 1", "complex numbers", "an intermediate used twice",
)  # fmt: skip
_cases: dict[str, Special] = {}


def at(kind: str, name: str, call: Callable, *point: Any, **what: Any) -> None:
    """Enter a case: a function, one array for each of its inputs, and what else `Special` has."""
    if kind not in KINDS or (name := f"{kind}: {name}") in _cases:
        raise ValueError(f"{name!r}: a case needs a kind of KINDS, and a name of its own")
    _cases[name] = Special(name, kind, call, tuple(np.asarray(x, np.float64) for x in point), **what)


@functools.cache
def named() -> dict[str, Special]:
    """Every case, by name."""
    for table in TABLES:
        importlib.import_module(f"special.{table}")  # which enters its cases
    return _cases
