"""A drawing with fewer boxes, where there are many."""

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
        while _merge_chain(drawing):
            pass
    while len(drawing.boxes) > limit and _merge_round(drawing):
        pass


def _merge_chain(drawing: Sketch) -> bool:
    """Merge two boxes between which nothing branches off or comes in. False if there are none."""
    before, after = drawing.neighbours()
    for (start, end), titles in drawing.links.items():
        if not titles and _alike(start, end) and len(after[start]) == len(before[end]) == 1:
            _merge(drawing, start, end)
            return True
    return False


def _merge_round(drawing: Sketch) -> bool:
    """Merge what ran one after the other, no box twice, so that the merged boxes come out alike. False if nothing."""
    merged = set()
    # In the order of time nothing lies between two neighbours, so merging them makes no cycle.
    for first, second in itertools.pairwise(list(drawing.boxes)):
        if (
            _alike(first, second)
            and merged.isdisjoint((first, second))
            and not _would_hide_a_cut(drawing, first, second)
        ):
            _merge(drawing, first, second)
            merged |= {first, second}
    return bool(merged)


def _alike(first: Box, second: Box) -> bool:
    return first.role == second.role == "operation" and (first.state, first.mark) == (second.state, second.mark)


def _would_hide_a_cut(drawing: Sketch, first: Box, second: Box) -> bool:
    """Whether merging two boxes would put a cut link on top of one that is not cut, or make it a link to itself."""
    links = drawing.links
    if links.get((first, second)) or links.get((second, first)):
        return True
    moved = {link: tuple(second if box is first else box for box in link) for link in links if first in link}
    return any(to in links and bool(links[link]) != bool(links[to]) for link, to in moved.items())


def _merge(drawing: Sketch, first: Box, second: Box) -> None:
    """Make one box of two."""
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
