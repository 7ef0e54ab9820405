"""The picture of the page "How it compares": a point for each peer and work on one logarithmic axis.

It is drawn from the page's own table, which stands below it, so that the two cannot differ.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from tapelab.collection.templates import rendered

_TOP = 44  # of the axis above the first work
_LEFT, _RIGHT = 12, 468  # the ends of the axis
_APART = 11  # between the centres of two points that can both be seen
_LEAST, _MOST = 0.125, 32.0  # what is beyond is written as a number
_TICKS = {0.125: "⅛", 0.25: "¼", 0.5: "½", 1: "1", 2: "2", 4: "4", 8: "8", 16: "16", 32: "32"}
# Each peer has a shape of its own; colours only help.
_SHAPES = {
    "TensorFlow, plain": ("M-5 -5H5V5H-5Z", "#8a6d00"),
    "JAX": ("M0 -6.5L6.5 5.5H-6.5Z", "#2f81c7"),
    "PyTorch": ("M0 -7L7 0L0 7L-7 0Z", "#c2570c"),
    "PyTorch, compiled": ("M-5.5 0a5.5 5.5 0 1 0 11 0a5.5 5.5 0 1 0 -11 0Z", "#8250df"),
}


@dataclass(frozen=True)
class Row:
    """A work, and each peer's time as a multiple of tapelab's."""

    work: str
    ratios: dict[str, float]


def rows(page: str) -> list[Row]:
    """The works of a page, from its table whose head begins with "work" and "tapelab, ms", and names the peers next.

    Raises:
        ValueError: if the page has no such table, or the table names a peer that has no shape.
    """
    found = re.search(r"^\| work \| tapelab, ms \|(.*)\|\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)
    if not found:
        raise ValueError("the page has no table that begins with '| work | tapelab, ms |'")
    peers = [name.strip() for name in found[1].split("|")]
    if strange := set(peers) - set(_SHAPES):
        raise ValueError(f"the table compares with {sorted(strange)}; the picture has shapes for {sorted(_SHAPES)}")
    result = []
    for line in found[2].splitlines():
        work, _, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        numbers = {peer: float(cell) for peer, cell in zip(peers, cells, strict=True) if re.match(r"[\d.]+$", cell)}
        if numbers:  # what only specialists' tools do stands in another table
            result.append(Row(work, numbers))
    return result


def figure(works: list[Row]) -> str:
    """The picture of these works, SVG, below the list of the peers and their shapes, as HTML."""
    every = [ratio for row in works for ratio in row.ratios.values()]
    slower = {peer: [row.work for row in works if row.ratios.get(peer, 1) < 1] for peer in _SHAPES}
    return rendered(
        "ratios.html",
        works=works,
        ahead=sum(ratio > 1 for ratio in every),
        behind=sum(ratio < 1 for ratio in every),
        slower="; ".join(f"{peer} in {', '.join(names)}" for peer, names in slower.items() if names),
        shapes=_SHAPES,
        ticks=_TICKS,
        top=_TOP,
        left=_LEFT,
        right=_RIGHT,
        place=_place,
        points=_points,
        beyond=_beyond,
    )


def _beyond(row: Row) -> list[str]:
    """What is said of a work's points that are not on the axis."""
    return [
        *(f"{peer} {ratio:g} →" for peer, ratio in row.ratios.items() if ratio > _MOST),
        *(f"← {peer} {ratio:g}" for peer, ratio in row.ratios.items() if ratio < _LEAST),
    ]


def _points(row: Row) -> Iterator[tuple[str, float, float, int]]:
    """A work's points from left to right: (peer, ratio, x, how far below the line), so that none hides another."""
    taken = [-math.inf, -math.inf]  # how far to the right there are points on the line, and just below it
    for peer, ratio in sorted(row.ratios.items(), key=lambda item: item[1]):
        if _LEAST <= ratio <= _MOST:
            x = _place(ratio)
            below = x - taken[0] < _APART <= x - taken[1]
            taken[below] = x
            yield peer, ratio, x, below * _APART


def _place(ratio: float) -> float:
    share = math.log(ratio / _LEAST) / math.log(_MOST / _LEAST)
    return _LEFT + share * (_RIGHT - _LEFT)
