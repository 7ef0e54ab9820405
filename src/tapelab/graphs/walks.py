"""Ways through a graph: what can be reached, and the cheapest way. Nodes are anything hashable."""

import collections
import heapq
import itertools
from collections.abc import Callable, Hashable, Iterable, KeysView, Set
from typing import Any, TypeVar

Node = TypeVar("Node", bound=Hashable)


def reachable(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> KeysView[Node]:
    """Return the nodes that some lead to, themselves included, the nearest first; `following` gives where one leads."""
    found = dict.fromkeys(starts)
    waiting = collections.deque(found)
    while waiting:
        for node in following(waiting.popleft()):
            if node not in found:
                found[node] = None
                waiting.append(node)
    return found.keys()


def cheapest(
    start: Node, goals: Set[Node], steps: Callable[[Node], Iterable[tuple[Node, tuple[int, ...], Any]]]
) -> list[Any] | None:
    """Find the cheapest way from a node to one of several.

    Args:
        start: a node.
        goals: a set of nodes.
        steps: gives (the next node, what it costs, what it is called) for each step from a node. Costs are tuples of
            one length, which are added and compared as such.

    Returns:
        What the steps are called, a list, empty where the start is a goal; None if no way leads there.
    """
    order = itertools.count()  # among equally cheap ones, the way that was found first
    queue: list[Any] = [((), next(order), start, None)]
    seen = set()
    while queue:
        cost, _, node, trail = heapq.heappop(queue)
        if node in seen:
            continue
        seen.add(node)
        if node in goals:
            way: list[Any] = []
            while trail is not None:
                name, trail = trail
                way.append(name)
            return way[::-1]
        for end, more, name in steps(node):
            if end not in seen:
                added = tuple(map(sum, zip(cost, more, strict=True))) if cost else more
                heapq.heappush(queue, (added, next(order), end, (name, trail)))
    return None
