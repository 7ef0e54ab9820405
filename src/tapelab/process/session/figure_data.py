"""The numbers of a Matplotlib figure as HTML tables: for who cannot see the picture, or wants its values.

Told are lines, points, bars and matrices, and of the lines through a whole picture those with a label. What a figure
fills, contours or points at with arrows is not, nor is a drawing without axes: its alternative text says that.
"""

import html
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

ROWS = 50  # of one table; a longer one shows so many, evenly spread, and says how many there are
COLUMNS = 12  # of a matrix that is shown number by number


def fold(figure: Any) -> str:
    """Return a fold with the tables of a figure, or nothing where it has no numbers to tell."""
    tables = "".join(table for ax in figure.axes if ax.get_label() != "<colorbar>" for table in _tables(ax))
    if not tables:
        return ""
    scrolls = f'<div tabindex="0" style="max-height: 24em; overflow: auto">{tables}</div>'
    return f"<details><summary>The numbers of this figure</summary>{scrolls}</details>"


def _tables(ax: Any) -> Iterator[str]:
    if ax.axison:
        yield from _plotted(ax)
    for image in ax.images:
        yield _matrix(_named(ax, image, "matrix"), image.get_array())


def _labelled(artist: Any) -> bool:
    return not artist.get_label().startswith("_")  # as Matplotlib calls what has no label


def _named(ax: Any, artist: Any, kind: str) -> str:
    label = f" “{artist.get_label()}”" if _labelled(artist) else ""
    return ": ".join(filter(None, [ax.get_title(), kind + label]))


def _plotted(ax: Any) -> Iterator[str]:
    """What has a place on the axes. Without axes, as in the drawing of a graph, a place means nothing."""
    from matplotlib.collections import PathCollection
    from matplotlib.container import BarContainer

    heads = [ax.get_xlabel() or "x", ax.get_ylabel() or "y"]
    for line in ax.get_lines():
        xs, ys = line.get_data(orig=False)
        match line.get_transform().contains_branch_seperately(ax.transData):  # Matplotlib's spelling
            case True, True:
                yield _table(_named(ax, line, "line"), heads, list(zip(xs, ys, strict=True)))
            case False, True if _labelled(line):  # as `axhline` draws it
                yield _table(_named(ax, line, "line across"), heads[1:], [ys[:1]])
            case True, False if _labelled(line):
                yield _table(_named(ax, line, "line upright"), heads[:1], [xs[:1]])
    for points in ax.collections:
        if isinstance(points, PathCollection):
            yield _table(_named(ax, points, "points"), heads, points.get_offsets())
    for bars in ax.containers:
        if isinstance(bars, BarContainer):
            yield _table(_named(ax, bars, "bars"), heads, _bars(ax, bars))


def _bars(ax: Any, bars: Any) -> Iterator[tuple[Any, Any]]:
    """The place and the length of each bar; a place that has a tick is told by the tick's label."""
    upright = bars.orientation == "vertical"
    axis = ax.xaxis if upright else ax.yaxis
    places = axis.get_ticklocs()
    # Not the drawn labels: of axes that are shared, only the outer ones have some.
    ticks = dict(zip(map(float, places), axis.get_major_formatter().format_ticks(places), strict=True))
    for bar in bars:
        (left, low), (right, high) = bar.get_bbox().get_points()
        place = float((left + right) / 2 if upright else (low + high) / 2)
        place = ticks.get(place) or place
        yield (place, high - low) if upright else (right - left, place)


def _matrix(caption: str, values: np.ndarray) -> str:
    shape = " by ".join(map(str, values.shape))
    if values.ndim != 2 or max(values.shape) > COLUMNS:
        return _table(f"{caption}, {shape}", ["smallest", "largest"], [(values.min(), values.max())])
    return _table(f"{caption}, {shape}", list(map(str, range(values.shape[1]))), values)


def _table(caption: str, heads: Sequence[str], rows: Any) -> str:
    rows = list(rows)
    shown = rows
    if len(rows) > ROWS:
        shown = [rows[round(i * (len(rows) - 1) / (ROWS - 1))] for i in range(ROWS)]
        caption += f" ({ROWS} of {len(rows)})"
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in heads)
    body = "".join(f"<tr>{''.join(f'<td>{_told(cell)}</td>' for cell in row)}</tr>" for row in shown)
    return (
        f"<table><caption>{html.escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _told(cell: Any) -> str:
    if isinstance(cell, str):
        return html.escape(cell)
    number = math.nan if cell is np.ma.masked else float(cell)
    return f"{number:.4g}" if math.isfinite(number) else "none"
