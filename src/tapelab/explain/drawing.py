"""`draw`: a picture of what a tape recorded between some sources and a target, and where the gradient is cut."""

import sys

from tapelab import plots
from tapelab.explain.judge import find, questions
from tapelab.explain.layout import layered
from tapelab.explain.sketch import NOT_RECORDED, RECORDED, Box, simplify, sketch
from tapelab.explain.tape import ExplainTape

import matplotlib.pyplot as plt
from matplotlib.patches import FancyBboxPatch

LIMIT = 24  # boxes, before neighbours are merged
_WIDE, _SMALL = 9.0, 7.5  # font sizes in points
_TEXT = 38  # characters of source text in a box
_PAD = 6.0
_MARGIN, _LEGEND = 14.0, 34.0

# Told apart by the line around the box and by the sign before its title as well as by colour.
_STATES = {
    RECORDED: {"edgecolor": plots.BLUE, "facecolor": "#E3F0F8", "linestyle": "-", "linewidth": 1.4},
    NOT_RECORDED: {"edgecolor": plots.GREY, "facecolor": "#F4F4F4", "linestyle": (0, (3, 2)), "linewidth": 1.2},
}
_SIGNS = {RECORDED: "●", NOT_RECORDED: "○"}
_OPEN = {"color": plots.BLUE, "linestyle": "-", "linewidth": 1.3}
_OFF_TAPE = {"color": plots.GREY, "linestyle": (0, (1, 1.5)), "linewidth": 1.3}
_CUT = {"color": plots.RED, "linestyle": (0, (4, 2)), "linewidth": 1.8}


def draw(tape, target, sources, *, limit=LIMIT):
    """Draw what a tape recorded between some sources and a target.

    Each box is an operation with the line of source that ran it; time runs downwards. Filled circles and solid borders
    mark what was recorded. Where the gradient does not pass, the link is dashed and has the cause written on it. Beyond
    `limit` boxes, neighbours are merged: first what lies between branch points.

    Args:
        tape: an `ExplainTape`; it is not used up by this.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.
        limit: how many boxes to aim at.

    Returns:
        A Matplotlib figure. Made with pyplot: a notebook shows it at the end of the cell.

    Raises:
        TypeError: if `tape` is not an `ExplainTape`.
        ValueError: if there is nothing to draw: no sources, or something that was not seen or is not a tensor.
    """
    if not isinstance(tape, ExplainTape):
        raise TypeError(f"tape is a {type(tape).__name__}; expected an ExplainTape, used in place of tf.GradientTape")
    asked = questions(tape, target, sources, sys._getframe(1))
    if not asked:
        raise ValueError("sources is empty; expected at least one tensor or variable")
    findings = [find(question) for question in asked]
    for finding in findings:
        if finding.exists is None or finding.code in ("wrong_type", "keras_tensor", "not_opened", "target_is_variable"):
            raise ValueError(f"there is nothing to draw. {finding.sentence} See explain(tape, target, source).")
    drawing = sketch(asked, findings)
    simplify(drawing, limit)
    return _figure(drawing, _title(asked, findings))


def _title(asked, findings):
    target = asked[0].target_name
    missing = [question.source_name for question, finding in zip(asked, findings, strict=True) if not finding.exists]
    if not missing:
        title = f"The gradient of {target} exists"
    elif len(missing) > 3:
        title = f"The gradient of {target} is missing for {len(missing)} of {len(asked)} sources"
    else:
        title = f"No gradient of {target} with respect to {', '.join(missing)}"
    # Where one path carries the gradient, others may be cut: then it is there and not the whole.
    partly = {
        question.source_name: len({step.cuts[0] for step in question.flow.frontier(question.start, question.goals)})
        for question, finding in zip(asked, findings, strict=True)
        if finding.exists
    }
    partly = {name: count for name, count in partly.items() if count}
    if not partly:
        return title
    names = ", ".join(partly) if len(partly) <= 3 else f"{len(partly)} of {len(asked)} sources"
    places = max(partly.values())
    return f"{title}; {'one path' if places == 1 else 'some paths'} from {names} {'is' if places == 1 else 'are'} cut"


def _figure(drawing, title):
    texts = {box: _text(box, _files(drawing)) for box in drawing.boxes}
    sizes = {box: _size(text) for box, text in texts.items()}
    links = []
    for link, causes in drawing.links.items():
        if causes:  # they stand between the two boxes, with a place of their own
            sizes[link] = _size(["✕ " + cause for cause in causes], pad=2.0)
            links += [(link[0], link), (link, link[1])]
        else:
            links.append(link)
    placed, routes = layered(sizes, links)
    bends = [x for points in routes.values() for x, _ in points]
    left = min([place.x - place.width / 2 for place in placed.values()] + bends)
    right = max([place.x + place.width / 2 for place in placed.values()] + bends)
    bottom = min(place.y - place.height / 2 for place in placed.values())
    width = max(right - left, _width([title], 1.25 * _WIDE), 330.0)
    middle = (left + right) / 2
    fig, ax = _axes(middle - width / 2 - _MARGIN, middle + width / 2 + _MARGIN, bottom - _LEGEND, 20.0 + 1.5 * _MARGIN)
    for (start, end), points in routes.items():
        _draw_link(ax, points, _link_style(start, end), arrow=isinstance(end, Box))
    for node, place in placed.items():
        if isinstance(node, Box):
            _draw_box(ax, node, texts[node], place)
        else:
            causes = "\n".join("✕ " + cause for cause in drawing.links[node])
            font = {"color": plots.RED, "fontsize": _SMALL, "weight": "bold"}
            ax.text(place.x, place.y, causes, ha="center", va="center", gid="cause", **font)
    ax.text(middle, 20.0, title, fontsize=1.25 * _WIDE, weight="bold", ha="center", va="center", gid="title")
    _draw_legend(ax, middle, bottom - 18.0)
    return fig


def _axes(left, right, bottom, top):
    """A figure, with axes that fill it and have points as units."""
    # At low resolution Matplotlib rounds the widths of letters up, and text would not fit its box.
    fig = plt.figure(figsize=((right - left) / 72, (top - bottom) / 72), dpi=110)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.set_axis_off()
    return fig, ax


def _files(drawing):
    return {line.file for box in drawing.boxes for line in box.lines}


def _text(box, files):
    """The lines of text in a box, the title first."""
    title = f"{_SIGNS[box.state]} {box.title}"
    if box.role == "operation" and box.mark:
        title += f" · {box.mark}"
    text = [title]
    if len(box.operations) > 1:
        text.append(_shortened(", ".join(dict.fromkeys(box.operations))))
    if len(box.lines) == 1:
        line = box.lines[0]
        place = f"line {line.number}" if len(files) == 1 else line.place
        text.append(_shortened(f"{place}: {line.text}" if line.text else place))
    elif box.lines:
        numbers = [line.number for line in box.lines]
        text.append(f"lines {min(numbers)} to {max(numbers)}")
    return text


def _shortened(text):
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"


def _width(text, size):
    # DejaVu Sans Mono, which comes with Matplotlib: every character is 0.602 em wide.
    return 0.602 * size * max(map(len, text))


def _size(text, pad=_PAD):
    width = max(_width(text[:1], _WIDE), _width(text, _SMALL))
    return width + 2 * pad, _WIDE * 1.35 + (len(text) - 1) * _SMALL * 1.35 + 2 * pad


def _draw_box(ax, box, text, place):
    round_ends = "round,pad=0,rounding_size=9" if box.role != "operation" else "round,pad=0,rounding_size=2"
    corner = (place.x - place.width / 2, place.y - place.height / 2)
    style = dict(_STATES[box.state])
    if box.role != "operation":
        style["linewidth"] = 2.2
    patch = FancyBboxPatch(corner, place.width, place.height, boxstyle=round_ends, gid="box", zorder=2, **style)
    ax.add_patch(patch)
    if box.mark:  # a second border
        inner = (corner[0] + 2.5, corner[1] + 2.5)
        style |= {"linewidth": 0.8, "facecolor": "none"}
        ax.add_patch(FancyBboxPatch(inner, place.width - 5, place.height - 5, boxstyle=round_ends, zorder=3, **style))
    y = place.y + place.height / 2 - _PAD - _WIDE * 0.675
    for i, line in enumerate(text):
        font = {"fontsize": _SMALL if i else _WIDE, "weight": "normal" if i else "bold", "family": "DejaVu Sans Mono"}
        ax.text(place.x, y, line, ha="center", va="center", zorder=4, gid="text", parse_math=False, **font)
        y -= (_WIDE + _SMALL) * 0.675 if i == 0 else _SMALL * 1.35


def _link_style(start, end):
    if not (isinstance(start, Box) and isinstance(end, Box)):
        return _CUT  # to or from the cause that is written on it
    return _OPEN if start.state == end.state == RECORDED else _OFF_TAPE


def _draw_link(ax, points, style, arrow):
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, zorder=1, solid_joinstyle="round", gid="link", **style)
    if arrow:
        tip, before = points[-1], (points[-1][0], points[-1][1] + 6.0)
        arrow_style = {"arrowstyle": "-|>", "color": style["color"], "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
        ax.annotate("", xy=tip, xytext=before, arrowprops=arrow_style, zorder=1)


def _draw_legend(ax, middle, y):
    entries = [("● recorded", plots.BLUE), ("○ not recorded", plots.GREY), ("✕ gradient cut", plots.RED)]
    for (label, colour), x in zip(entries, (-110, 0, 110), strict=True):
        ax.text(middle + x, y, label, color=colour, fontsize=_SMALL, ha="center", va="center", gid="legend")
