"""A drawing with fewer boxes, where there are many."""

import graphlib
import itertools

from tapelab.explain.drawing.sketch import Box, Sketch


def simplify(drawing: Sketch, limit: int) -> None:
    """Merge boxes if there are more than so many, until there are not or nothing is left to merge.

    What lies between branch points goes first; then, two by two, what ran one after the other. A cut link is never
    merged away, nor are boxes of which one is recorded and the other is not.

    Args:
        drawing: a `Sketch`; it is changed.
        limit: the number of boxes wanted.
    """
    if len(drawing.boxes) > limit:
        while _merge_chain(_Links(drawing)):
            pass
    while len(drawing.boxes) > limit and _merge_round(drawing):
        pass


def _merge_round(drawing: Sketch) -> bool:
    """Merge what ran one after the other, no box twice, so that the merged boxes come out alike. False if nothing."""
    merged = set()
    for first, second in _successions(_Links(drawing)):
        links = _Links(drawing)
        if merged.isdisjoint((first, second)) and not links.would_hide_a_cut(first, second):
            links.merge(first, second)
            merged |= {first, second}
    return bool(merged)


class _Links:
    """A sketch with its links looked up both ways, for one step of simplification."""

    def __init__(self, drawing: Sketch):
        self.drawing = drawing
        self.after = {box: [] for box in drawing.boxes}
        self.before = {box: [] for box in drawing.boxes}
        for start, end in drawing.links:
            self.after[start].append(end)
            self.before[end].append(start)

    def would_hide_a_cut(self, first: Box, second: Box) -> bool:
        """Whether merging two boxes would put a cut link on top of one that is not cut, or make it a link to itself."""
        links = self.drawing.links
        if links.get((first, second)) or links.get((second, first)):
            return True
        ways = [((other, first), (other, second)) for other in self.before[first]]
        ways += [((first, other), (second, other)) for other in self.after[first]]
        return any(one in links and two in links and bool(links[one]) != bool(links[two]) for one, two in ways)

    def merge(self, first: Box, second: Box) -> bool:
        """Make one box of two."""
        drawing = self.drawing
        lines = tuple(dict.fromkeys((*first.lines, *second.lines)))
        operations = (*first.operations, *second.operations)
        both = Box("operation", f"{len(operations)} operations", first.state, first.mark, lines, operations)
        both.events, both.keys = first.events + second.events, first.keys + second.keys
        links = {}
        for (start, end), titles in drawing.links.items():
            start = both if start in (first, second) else start
            end = both if end in (first, second) else end
            if start is not end:
                links[start, end] = links.get((start, end), titles) if titles else ()
        drawing.boxes[drawing.boxes.index(first)] = both
        drawing.boxes.remove(second)
        drawing.links = links
        return True


def _alike(first: Box, second: Box) -> bool:
    return first.role == second.role == "operation" and (first.state, first.mark) == (second.state, second.mark)


def _merge_chain(links: _Links) -> bool:
    """Merge two boxes between which nothing branches off or comes in."""
    for (start, end), titles in links.drawing.links.items():
        if not titles and _alike(start, end) and len(links.after[start]) == len(links.before[end]) == 1:
            return links.merge(start, end)
    return False


def _successions(links: _Links) -> list[tuple[Box, Box]]:
    """Boxes that are alike and next to each other in time. Nothing lies between, so merging makes no cycle."""
    sorter = graphlib.TopologicalSorter(links.before)
    sorter.prepare()
    ready, order = list(sorter.get_ready()), []
    while ready:
        # The most recent first, so that what belongs together stays together.
        order.append(ready.pop())
        sorter.done(order[-1])
        ready += sorter.get_ready()
    return [pair for pair in itertools.pairwise(order) if _alike(*pair)]
