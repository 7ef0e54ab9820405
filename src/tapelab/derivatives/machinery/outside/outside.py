"""What a function reads from outside its arguments, noted when it is traced, and looked at again before every call.

A traced function has the Python values built in that it read. What it can reach and is made of Python's own containers
or of classes that the caller wrote is watched, whichever way the function reads it, and a change is noticed. Whatever
it can reach and cannot be watched is in `unseen`, for a warning.

Seen are globals, closures, defaults and attributes of functions; attributes of objects, classes and modules; items of
containers; small arrays; of Keras objects, layers, variables, flags, policies and public attributes. Of an object,
attributes that no code can read are left out, so that a counter beside them costs nothing: all of them can be read
where some code takes attributes by computed names, and those that some code names anywhere else. Two objects are the
same if they are one object, or equal numbers, strings or tuples of those. The code of libraries is not followed.
"""

import operator
from typing import Any

from tapelab.derivatives.machinery.outside.reach import Reach


class Outside:
    """What a function reads from outside, as it is now.

    Args:
        roots: the function, and whatever else is built into its trace.
        ignored: what `own_changes` of an earlier look has returned.

    Attributes:
        unseen: a dictionary of what cannot be watched: where it is → why and what to do, both in words.
    """

    def __init__(self, *roots: Any, ignored: frozenset[tuple[int, str]] = frozenset()):
        reach = Reach(roots, ignored)
        self._ignored = ignored
        self._watches, self._contents, self.unseen = reach.watches, reach.contents, reach.unseen

    def unchanged(self) -> bool:
        """Whether everything is still the same."""
        try:
            for watch in self._watches:
                if not all(map(operator.is_, watch.look(), watch.found)) and not watch.again():
                    return False
            for look, found, _ in self._contents:  # noqa: SIM110 - a generator takes half as long again
                if look() != found:
                    return False
            return True
        except (AttributeError, KeyError, RuntimeError, ValueError):  # deleted, or changed by a thread meanwhile
            return False

    def changed_by_others(self) -> str | None:
        """Name something that is not the same any more and that the function does not set itself; None if all is."""
        return next((label for watch in self._watches if not watch.own for label in watch.differences()), None)

    def own_changes(self) -> frozenset[tuple[int, str]]:
        """Return what the function has changed itself, such as a counter of its traces: no reason to trace again."""
        own = [watch for watch in self._watches if watch.own]
        return self._ignored | {(watch.owner, label) for watch in own for label in watch.differences()}

    def accept_own_changes(self) -> None:
        """Note anew what the function may have changed itself: it ran, and will run again."""
        for watch in self._watches:
            if watch.own:
                now = list(watch.look())
                watch.found[:] = now[: len(watch.found)]
        self._contents = [(look, look(), label) for look, _, label in self._contents]
