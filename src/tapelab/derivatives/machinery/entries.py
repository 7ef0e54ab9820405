"""What a transform keeps: a compiled program for each signature of its arguments that was used lately."""

import itertools
from collections.abc import Callable, Hashable
from typing import NamedTuple

from tapelab.derivatives import costs
from tapelab.derivatives.machinery.arguments.context import chance
from tapelab.derivatives.machinery.outside.outside import Outside
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.process.tensorflow import tf


class Recent:
    """A cache of the entries that were used last: each keeps a compiled program, and what that has captured, alive.

    A key is looked up once in a call: to hash one takes longer than to note when its entry was used.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, list] = {}  # lists of when an entry was used last, and the entry
        self._clock = itertools.count()

    def __len__(self) -> int:
        return len(self._kept)

    def recall(self, key: Hashable) -> "Entry | None":
        """Return an entry, which is then the last to go; None if there is none."""
        kept = self._kept.get(key)
        if kept is None:
            return None
        kept[0] = next(self._clock)
        return kept[1]

    def keep(self, key: Hashable, entry: "Entry") -> None:
        """Add an entry; beyond the limit, the one that was not used for longest goes."""
        self._kept[key] = [next(self._clock), entry]
        if len(self._kept) > costs.SIGNATURES:
            used = {key: kept[0] for key, kept in list(self._kept.items())}
            self._kept.pop(min(used, key=used.__getitem__), None)

    def clear(self) -> None:
        """Forget all of them."""
        self._kept.clear()


class Entry(NamedTuple):
    """What was built for one signature of arguments.

    Attributes:
        outside: what the function read from outside its arguments.
        graph: returns the graph whose tensors the program holds, if it holds any; None if it can run anywhere.
        chance: where the random numbers come from that it draws; None if it draws none.
        loops: whether a loop is in its graph, or in one that was given up: then tapes around it decide what is built.
    """

    problem: Problem
    plan: Plan
    run: Callable
    outside: Outside | None = None
    graph: Callable | None = None
    loops: bool = False
    chance: tuple | None = None

    def current(self) -> bool:
        """Whether a call still computes what the function does now."""
        if self.chance is not None and self.chance != chance():
            return False
        if self.graph is not None and self.graph() is not graph_being_built():
            return False
        return self.outside is not None and self.outside.unchanged()


def graph_being_built() -> tf.Graph:
    """Return the graph that operations go into now; outside any function it is one that stays empty."""
    return tf.compat.v1.get_default_graph()
