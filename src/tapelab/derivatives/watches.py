"""One place that a function reads from, and what was found there; and where a place is, in words."""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

MISSING = object()
SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype)


class Where(NamedTuple):
    """The way to an object: `said` builds the words, only for what is told.

    Attributes:
        name: how the way begins, or goes on: "settings", ".scale", "[0]".
        before: the way up to there; at the beginning, the function and line, in words.
    """

    name: str
    before: "Where | str"

    def said(self) -> str:
        """Return the whole way, such as ``settings.scale (loss, line 12)``."""
        names, way = [], self
        while isinstance(way, Where):
            names.append(way.name)
            way = way.before
        return "".join(reversed(names)) + (f" ({way})" if way else "")


class Watch(NamedTuple):
    """One place: where to look, and what was found there.

    Attributes:
        look: returns an iterable of the objects that are there now.
        found: the objects that were there.
        labels: for each of them, where it was, in words.
        owner: the id of the object that holds them.
        own: whether the function may change it itself while it is traced.
    """

    look: Callable[[], Iterable]
    found: list
    labels: list[str]
    owner: int
    own: bool

    def differences(self) -> list[str]:
        """The labels of what is not the same any more."""
        try:
            now = list(self.look())
        except (AttributeError, KeyError, RuntimeError, ValueError):
            return self.labels
        return [label for label, old, new in zip(self.labels, self.found, now, strict=False) if not same(old, new)]

    def again(self) -> bool:
        """Compare by value where the objects are not identical, and note the new ones."""
        now = list(self.look())
        if len(now) != len(self.found) or not all(map(same, self.found, now)):
            return False
        self.found[:] = now
        return True


def same(old: Any, new: Any) -> bool:
    """Whether two objects are one, or equal numbers, strings or tuples of those, of one type."""
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, (float, np.floating)):
        return (old == new and math.copysign(1, old) == math.copysign(1, new)) or (old != old and new != new)
    if isinstance(old, (complex, np.complexfloating)):
        return same(old.real, new.real) and same(old.imag, new.imag)
    if isinstance(old, SCALARS):
        return bool(old == new)
    return isinstance(old, tuple) and len(old) == len(new) and all(map(same, old, new))
