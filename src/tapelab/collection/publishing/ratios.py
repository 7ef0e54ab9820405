"""The picture of the page "How it compares": a point for each peer and work on one logarithmic axis, as SVG.

It is drawn from the page's own table, which stands below it, so that the two cannot differ.
"""

import math
import re
from dataclasses import dataclass
from html import escape

_WIDTH, _ROW, _TOP = 480, 46, 44  # of the picture, of a work, of the axis above the first one
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


def svg(works: list[Row]) -> str:
    """The picture of these works."""
    all_ratios = [ratio for row in works for ratio in row.ratios.values()]
    ahead, behind = sum(ratio > 1 for ratio in all_ratios), sum(ratio < 1 for ratio in all_ratios)
    slower = {peer: [row.work for row in works if row.ratios.get(peer, 1) < 1] for peer in _SHAPES}
    told = "; ".join(f"{peer} in {', '.join(names)}" for peer, names in slower.items() if names)
    description = (
        f"A dot plot with a logarithmic axis: for {len(works)} works, the time of each peer divided by tapelab's, from "
        f"an eighth to 32 times. Right of 1 tapelab is faster ({ahead} points), left of it the peer ({behind}): {told}."
    )
    height, one = _TOP + _ROW * len(works) + 8, _place(1)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="ratios" viewBox="0 0 {_WIDTH} {height}" role="img" '
        'aria-labelledby="ratios-title ratios-text">',
        '<title id="ratios-title">The time of others, as a multiple of tapelab\'s</title>',
        f'<desc id="ratios-text">{escape(description)}</desc>',
        f'<path class="slower" d="M{_LEFT} {_TOP - 22}H{one:g}V{height}H{_LEFT}Z"/>',
        f'<text class="side" x="{one - 8:g}" y="16" text-anchor="end">← the peer is faster: {behind}</text>',
        f'<text class="side" x="{one + 8:g}" y="16">tapelab is faster: {ahead} →</text>',
    ]
    for ratio, text in _TICKS.items():
        kind = "one" if ratio == 1 else "tick"
        lines.append(f'<path class="{kind}" d="M{_place(ratio):g} {_TOP}V{height}"/>')
        lines.append(f'<text class="number" x="{_place(ratio):g}" y="{_TOP - 6}">{text}</text>')
    for number, row in enumerate(works):
        lines += _row(row, _TOP + _ROW * number)
    return "\n".join([*lines, "</svg>"])


def _row(row, top):
    beyond = [f"{peer} {ratio:g} →" for peer, ratio in row.ratios.items() if ratio > _MOST]
    beyond += [f"← {peer} {ratio:g}" for peer, ratio in row.ratios.items() if ratio < _LEAST]
    yield f'<text class="work" x="{_LEFT}" y="{top + 15}">{escape(row.work)}</text>'
    yield f'<text class="beyond" x="{_RIGHT}" y="{top + 15}">{escape(", ".join(beyond))}</text>'
    yield f'<path class="line" d="M{_LEFT} {top + 28}H{_RIGHT}"/>'
    taken = [-math.inf, -math.inf]  # how far to the right there are points on the line, and just below it
    for peer, ratio in sorted(row.ratios.items(), key=lambda item: item[1]):
        if _LEAST <= ratio <= _MOST:
            shape, colour = _SHAPES[peer]
            x = _place(ratio)
            below = x - taken[0] < _APART <= x - taken[1]  # so that none hides another
            taken[below] = x
            yield (
                f'<path class="point" fill="{colour}" transform="translate({x:.1f} {top + 28 + below * _APART})" '
                f'd="{shape}">'
                f"<title>{escape(peer)}, {escape(row.work)}: {ratio:g}</title></path>"
            )


def legend() -> str:
    """The peers and their shapes, as a list."""
    marks = (
        f'<li><svg viewBox="-8 -8 16 16" aria-hidden="true"><path d="{shape}" fill="{colour}"/></svg> {peer}</li>'
        for peer, (shape, colour) in _SHAPES.items()
    )
    return f'<ul class="ratios-legend">{"".join(marks)}</ul>'


def _place(ratio: float) -> float:
    share = math.log(ratio / _LEAST) / math.log(_MOST / _LEAST)
    return _LEFT + share * (_RIGHT - _LEFT)
