"""What a transform keeps: a compiled program for each signature of its arguments that was used lately."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import NamedTuple

from tapelab.derivatives.machinery.arguments.context import chance
from tapelab.derivatives.machinery.outside.outside import Outside
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.runtime import tf

_KEPT = 64  # signatures of one transform


class Recent(OrderedDict):
    """A cache of the entries that were used last: each keeps a compiled program, and what that has captured, alive."""

    def recall(self, key: Hashable) -> "Entry | None":
        """Return an entry, which is then the last to go; None if there is none."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self[key]

    def keep(self, key: Hashable, entry: "Entry") -> "Entry":
        """Add an entry; beyond the limit, the one that was not used for longest goes."""
        self[key] = entry
        if len(self) > _KEPT:
            self.popitem(last=False)
        return entry


class Entry(NamedTuple):
    """What was built for one signature of arguments.

    Attributes:
        outside: what the function read from outside its arguments.
        graph: returns the graph whose tensors the program holds, if it holds any; None if it can run anywhere.
        chance: where the random numbers come from that it draws; None if it draws none.
        loops: whether a loop is in its graph, or in one that was given up: then tapes around it decide what is built.
    """

    problem: Problem
    plan: Plan | None
    run: Callable
    outside: Outside | None = None
    graph: Callable | None = None
    loops: bool = False
    chance: tuple | None = None

    def current(self) -> bool:
        """Whether a call still computes what the function does now."""
        if self.chance is not None and self.chance != chance():
            return False
        return (self.graph is None or self.graph() is graph_being_built()) and self.outside.unchanged()


def graph_being_built() -> tf.Graph:
    """Return the graph that operations go into now; outside any function it is one that stays empty."""
    return tf.compat.v1.get_default_graph()
