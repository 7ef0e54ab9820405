"""The places that a function reads from, and what was found there; and where a place is, in words."""

import functools
import math
import types
from collections import deque
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple

from tapelab.derivatives.machinery.outside.code_names import CodeNames

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
        names: list[str] = []
        way: Where | str = self
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


class Reached:
    """What was reached of the objects that a function can read, as far as it has been walked.

    Args:
        ignored: pairs of an object's id and a label: what is not watched of it.

    Attributes:
        watches: a list of each `Watch`: objects compared by identity.
        contents: a list of triples: a function, what it returned, compared by ==, and what that is, in words.
        unseen: a dictionary of what cannot be watched: where it is → why and what to do, both in words.
        names: a set of the names of attributes, globals and modules that the code reached mentions.
        stored: a set of the names that it gives values to.
        by_name: whether some of it takes attributes by computed names.
        read: a dictionary of `CodeNames`.
        kinds: a set of the classes of the objects that were reached.
    """

    def __init__(self, ignored: frozenset[tuple[int, str]]):
        self._ignored = ignored
        self.names: set[str] = set()
        self.stored: set[str] = set()
        self.by_name = False
        self.read: dict[types.CodeType, CodeNames] = {}
        self.clear()

    def clear(self) -> None:
        """Begin again, with the names that are known by now."""
        self.watches: list[Watch] = []
        self.contents: list[tuple[Callable[[], Any], Any, str]] = []
        self.unseen: dict[str, str] = {}
        self.kinds: set[type] = set()
        # What libraries hold comes last: it is not named, and what is reached in another way too is.
        self.next: deque[tuple[Any, Where, bool]] = deque()
        self.last: deque[tuple[Any, Where, bool]] = deque()

    def tell(self, where: Where, why: str | None) -> None:
        """Note what cannot be watched, if there is a reason."""
        if why:
            self.unseen[where.said()] = why

    def later(self, value: Any, where: Where, named: bool = True) -> None:
        """Note an object that is to be visited; `named`: whether to tell of it, if it cannot be watched."""
        (self.next if named else self.last).append((value, where, named))

    def watch(
        self,
        look: Callable[[], Iterable],
        labels: list[str],
        places: Iterable[Where],
        owner: Any,
        own: bool = False,
        named: bool = True,
    ) -> None:
        """Note what is found, and visit it."""
        found = list(look())
        if found and (id(owner), labels[0]) not in self._ignored:
            self.watches.append(Watch(look, found, labels, id(owner), own))
        for value, place in zip(found, places, strict=False):
            self.later(value, place, named)

    def attributes(
        self,
        look_for: Callable[[list[str]], Callable[[], Iterable]],
        names: Iterable[str],
        said: str,
        places: Callable[[str], Where],
        owner: Any,
        own: bool = False,
        named: bool = True,
    ) -> None:
        """Watch names; those that the function's own code sets are watched apart.

        Args:
            look_for: makes what looks for names: `lookup`, or `lookup_now` where the dictionary may become another.
            said: whose they are, in words.
            places: returns where the object of a name is.
        """
        labels = {name: f"{said} {name!r}" for name in sorted(names)}
        for own_part in (False, True):
            part = [
                name
                for name, label in labels.items()
                if (own or name in self.stored) == own_part and (id(owner), label) not in self._ignored
            ]
            if part:
                self.watch(look_for(part), [labels[name] for name in part], map(places, part), owner, own_part, named)

    def compare(self, look: Callable[[], Any], label: str) -> None:
        """Note what is compared by ==."""
        self.contents.append((look, look(), label))


def lookup(get: Callable[[str, Any], Any], names: list[str]) -> Callable[[], Iterable]:
    """Return what looks names up by a function that takes a default, such as a dictionary's ``get``."""
    return functools.partial(map, get, names, repeat(MISSING))


def lookup_now(dictionary: Callable[[], dict], names: list[str]) -> Callable[[], Iterable]:
    """Return what looks names up in the dictionary that there is when it looks."""
    return lambda: map(dictionary().get, names, repeat(MISSING))
