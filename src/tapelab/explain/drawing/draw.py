"""`draw`: a picture of what a tape recorded between some sources and a target, and where the gradient is cut."""

import ast
import sys
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, TypeAlias

from tapelab import plots
from tapelab.explain.asking import answers_to_show
from tapelab.explain.causes import SYMPTOMS
from tapelab.explain.drawing.layout import STUB, Placed, layered
from tapelab.explain.drawing.numbered_table import Passage, numbering, replayed
from tapelab.explain.drawing.sketch import NOT_RECORDED, RECORDED, Box, Sketch
from tapelab.explain.ground import expressions, hooks
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.measure import array, cotangent_text, shortened
from tapelab.explain.ground.rendering import spelled
from tapelab.explain.missing.question import Finding, Question

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

WIDE, SMALL = 9.0, 7.5  # font sizes in points
_TEXT = 38  # characters of source text in a box
PAD = 6.0
_SIGNS = {RECORDED: "●", NOT_RECORDED: "○"}


def text_of(box: Box, files: set[str], passage: Passage | None) -> list[str]:
    """Return the lines of text in a box, the title first."""
    number = passage.number(box) if passage else ""
    title = f"{_SIGNS[box.state]} {number}{spelled(box.title) if box.event else box.title}"
    if box.role == "operation" and box.mark:
        title += f" · {box.mark}"
    text = [title]
    if box.event and box.event.line:
        line = box.event.line
        place = f"line {line.number}" if len(files) == 1 else line.place
        found = expressions.at(box.event.place.code, box.event.place.instruction)
        source = line.text if found is None else ast.unparse(found)
        text.extend(_wrapped(f"{place}: {source}" if source else place))
    if passage is None:
        return text
    if passage.value(box):
        text.append(f"= {passage.value(box)}")
    if box.role == "source" and passage.gradient(box):
        text.append(f"↑ gradient {passage.gradient(box)}")
    if passage.mark(box):
        text.append(passage.mark(box))
    return text


def _wrapped(text: str) -> list[str]:
    """At most two lines of text, broken after a space, a comma or a bracket where there is one."""
    if len(text) <= _TEXT:
        return [text]
    at = max(text.rfind(sign, 0, _TEXT) + 1 for sign in " (,[")
    first = text[: at if at > _TEXT / 2 else _TEXT]
    return [first, shortened(text[len(first) :].strip(), _TEXT)]


def width_of(text: Sequence[str], size: float) -> float:
    """Return the width of some lines of text in points, in letters of a size."""
    # DejaVu Sans Mono, which comes with Matplotlib: every character is 0.602 em wide.
    return 0.602 * size * max(map(len, text))


def size_of(text: Sequence[str], pad: float = PAD) -> tuple[float, float]:
    """Return the width and the height of a box with some lines of text, in points."""
    width = max(width_of(text[:1], WIDE), width_of(text, SMALL))
    return width + 2 * pad, WIDE * 1.35 + (len(text) - 1) * SMALL * 1.35 + 2 * pad


LIMIT = 60  # boxes that a picture can show
_MARGIN, _LEGEND = 14.0, 34.0
_APART = 5.0  # half the distance of an arrow down from its arrow up

# Told apart by the line around the box and by the sign before its title as well as by colour.
_STATES = {
    RECORDED: {"edgecolor": plots.BLUE, "facecolor": "#E3F0F8", "linestyle": "-", "linewidth": 1.4},
    NOT_RECORDED: {"edgecolor": plots.GREY, "facecolor": "#F4F4F4", "linestyle": (0, (3, 2)), "linewidth": 1.2},
}
_OPEN = {"color": plots.BLUE, "linestyle": "-", "linewidth": 1.3}
_OFF_TAPE = {"color": plots.GREY, "linestyle": (0, (1, 1.5)), "linewidth": 1.3}
_BACK = "#8A3F00"  # what flows back: dark enough for small letters, and in grey
_BACKWARDS = {"color": _BACK, "linestyle": "-", "linewidth": 1.3}
Points: TypeAlias = Sequence[tuple[float, float]]
_CUT = {"color": plots.RED, "linestyle": (0, (4, 2)), "linewidth": 1.8}


def draw(tape: ExplainTape, target: Any, sources: Any, *, values: bool = False) -> Figure:
    """Draw what a tape recorded between some sources and a target.

    Each box is an operation with the line of source that ran it; time runs downwards. Filled circles and solid borders
    mark what was recorded. Where the gradient does not pass, the link is dashed and has the cause written on it.

    With `values=True` it is the picture of backpropagation: each box has its value, which goes down, and beside each
    link an arrow goes up with what flows back: the cotangent, or its norm and share of zeros. An operation that takes
    the same tensor at two places, as `x * x` does, has two links to it. Where the gradient of a source is bad, the
    operation where the trouble began has a thick border and says which.

    Args:
        tape: an `ExplainTape`; it is not used up by this.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.
        values: whether to show the values and the cotangents.

    Returns:
        A Matplotlib figure. Made with pyplot: a notebook shows it at the end of the cell.

    Raises:
        TypeError: if `tape` is not an `ExplainTape`.
        ValueError: if there is nothing to draw: no sources, or something that was not seen or is not a tensor; or if
            there are more than sixty boxes.
    """
    asked, answers = answers_to_show(tape, target, sources, sys._getframe(1), "draw")
    findings = [finding for finding, _ in answers]
    drawing = Sketch(asked, findings)
    if len(drawing.boxes) > LIMIT:
        raise ValueError(
            f"there are {len(drawing.boxes)} boxes to draw, and a picture shows at most {LIMIT}: draw a part of the "
            "program, or list it with table(tape, target, sources)"
        )
    title, passage = _title(asked, findings), None
    if values:
        sick, passage = _passage(asked, answers)
        title = sick or title
    with hooks.deaf():
        return _figure(drawing, title, passage)


def _passage(asked: Sequence[Question], answers: Sequence[tuple[Finding, Any]]) -> tuple[str | None, Passage]:
    """Return a title that says which gradients are bad, or None, and the `Passage`."""
    replay, found, marks = replayed(asked, answers)
    numbers, _ = numbering(replay, [question.start for question in asked])
    passage, of = Passage(replay, marks, numbers), f"The gradient of {asked[0].target_name} with respect to"
    sick = [(question.source_name, one) for question, one in zip(asked, found, strict=True) if one.healthy is False]
    if not sick:
        only = answers[0][1] if len(answers) == 1 else None
        return None if only is None else f"{of} {asked[0].source_name}: {cotangent_text(array(only))}", passage
    verdicts = " or ".join(dict.fromkeys(SYMPTOMS[one.symptom].title for _, one in sick))
    return f"{of} {_named([name for name, _ in sick], asked)}: {verdicts}", passage


def _title(asked: Sequence[Question], findings: Sequence[Finding]) -> str:
    target = asked[0].target_name
    there, missing, partly = [], [], {}
    for question, finding in zip(asked, findings, strict=True):
        (there if finding.exists else missing).append(question.source_name)
        # Where one path carries the gradient, others may be cut: then it is there and not the whole.
        cuts = {step.cuts[0] for step in question.flow.frontier(question.start, question.goals)}
        if finding.exists and cuts:
            partly[question.source_name] = len(cuts)
    if not missing:
        title = f"The gradient of {target} exists"
    elif there:  # what is drawn is above all what was recorded
        title = f"The gradient of {target} exists for {_named(there, asked)}, not for {_named(missing, asked)}"
    else:
        title = f"No gradient of {target} with respect to {_named(missing, asked)}"
    if not partly:
        return title
    paths = "one path" if max(partly.values()) == 1 else "some paths"
    return f"{title}; {paths} from {_named(partly, asked)} {'is' if paths == 'one path' else 'are'} cut"


def _named(names: Collection[str], asked: Sequence[Question]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} of {len(asked)} sources"


def _figure(drawing: Sketch, title: str, passage: Passage | None) -> Figure:
    files = {box.event.line.file for box in drawing.boxes if box.event and box.event.line}
    texts = {box: text_of(box, files, passage) for box in drawing.boxes}
    sizes = {box: size_of(text) for box, text in texts.items()}
    links, labels = [], {}
    for link, causes in drawing.links.items():
        if causes:  # they stand between the two boxes, with a place of their own
            sizes[link] = size_of(["✕ " + cause for cause in causes], pad=2.0)
            links += [(link[0], link), (link, link[1])]
            continue
        back = passage.cotangents(*link) if passage is not None else []
        for edge, text in enumerate(back):
            label = (*link, edge)
            labels[label] = text
            sizes[label] = (width_of([text], SMALL) + 4 * _APART, 1.5 * SMALL)
            links += [(link[0], label), (label, link[1])]
        if not back:
            links.append(link)
    placed, routes = layered(sizes, links)
    bends = [x for points in routes.values() for x, _ in points]
    left = min([place.x - place.width / 2 for place in placed.values()] + bends)
    right = max([place.x + place.width / 2 for place in placed.values()] + bends)
    bottom = min(place.y - place.height / 2 for place in placed.values())
    width = max(right - left, width_of([title], 1.25 * WIDE), 330.0)
    middle = (left + right) / 2
    fig, ax = _axes(middle - width / 2 - _MARGIN, middle + width / 2 + _MARGIN, bottom - _LEGEND, 20.0 + 1.5 * _MARGIN)
    for (start, end), points in routes.items():
        if start in labels:
            _draw_both_ways(ax, routes[start[0], start], points, placed[start])
        elif end not in labels:
            _draw_link(ax, points, _link_style(start, end), arrow=isinstance(end, Box))
    for node, place in placed.items():
        if isinstance(node, Box):
            _draw_box(ax, node, texts[node], place, is_origin=bool(passage and passage.mark(node)))
        elif node in labels:
            _draw_cotangent(ax, labels[node], place)
        else:
            causes = "\n".join("✕ " + cause for cause in drawing.links[node])
            font = {"color": plots.RED, "fontsize": SMALL, "weight": "bold"}
            ax.text(place.x, place.y, causes, ha="center", va="center", gid="cause", **font)
    ax.text(middle, 20.0, title, fontsize=1.25 * WIDE, weight="bold", ha="center", va="center", gid="title")
    _draw_legend(ax, middle, bottom - 18.0, _legend(drawing, passage))
    return fig


def _legend(drawing: Sketch, passage: Passage | None) -> list[tuple[str, str]]:
    """What the signs mean: those of recording always; with values, only those that occur."""
    cut, missed = ("✕ gradient cut", plots.RED), ("○ not recorded", plots.GREY)
    if passage is None:
        return [("● recorded", plots.BLUE), missed, cut]
    shown = [("↓ value, forwards", plots.BLUE), ("↑ gradient, backwards", _BACK)]
    if any(box.state == NOT_RECORDED for box in drawing.boxes):
        shown.append(missed)
    return [*shown, cut] if any(drawing.links.values()) else shown


def _axes(left: float, right: float, bottom: float, top: float) -> tuple[Figure, Axes]:
    """A figure, with axes that fill it and have points as units."""
    # At low resolution Matplotlib rounds the widths of letters up, and text would not fit its box.
    fig = plt.figure(figsize=((right - left) / 72, (top - bottom) / 72), dpi=110)
    ax = fig.add_axes((0, 0, 1, 1))
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.set_axis_off()
    return fig, ax


def _draw_box(ax: Axes, box: Box, text: Sequence[str], place: Placed, is_origin: bool) -> None:
    round_ends = "round,pad=0,rounding_size=9" if box.role != "operation" else "round,pad=0,rounding_size=2"
    corner = (place.x - place.width / 2, place.y - place.height / 2)
    style = dict(_STATES[box.state])
    if box.role != "operation":
        style["linewidth"] = 2.2
    if is_origin:
        style |= {"edgecolor": plots.RED, "linewidth": 3.0}
    patch = FancyBboxPatch(corner, place.width, place.height, boxstyle=round_ends, gid="box", zorder=2, **style)
    ax.add_patch(patch)
    y = place.y + place.height / 2 - PAD - WIDE * 0.675
    for i, line in enumerate(text):
        colour = plots.RED if line.startswith("✖") else _BACK if line.startswith("↑") else "black"
        font = {"fontsize": SMALL if i else WIDE, "family": "DejaVu Sans Mono", "color": colour}
        font["weight"] = "normal" if i and colour == "black" else "bold"
        ax.text(place.x, y, line, ha="center", va="center", zorder=4, gid="text", parse_math=False, **font)
        y -= (WIDE + SMALL) * 0.675 if i == 0 else SMALL * 1.35


def _draw_cotangent(ax: Axes, text: str, place: Placed) -> None:
    """The label on a link: on white, so that the link does not run through it."""
    around = {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    font = {"fontsize": SMALL, "family": "DejaVu Sans Mono", "weight": "bold", "color": _BACK}
    ax.text(place.x + _APART, place.y, text, ha="center", va="center", zorder=3, gid="cotangent", bbox=around, **font)


def _draw_both_ways(ax: Axes, upper: Points, lower: Points, label: Placed) -> None:
    """An edge with a label: the value's arrow down and, to the right of it, the gradient's up, through the label."""
    aside = label.width / 2 - _APART
    (port, top), *rest = upper
    upper = [(port, top), (port, top - STUB), *rest[1:]] if top == rest[0][1] else upper
    down = [(x - _APART, y) for x, y in upper[:-2]] + [(x - aside, y) for x, y in (*upper[-2:], *lower[:2])]
    down += [(x - _APART, y) for x, y in lower[2:]]
    up = [(x + _APART, y) for x, y in (*upper, *lower)]
    _draw_link(ax, down, _OPEN, arrow=True)
    _draw_link(ax, up[::-1], _BACKWARDS, arrow=True)


def _link_style(start: Hashable, end: Hashable) -> Mapping[str, Any]:
    if not (isinstance(start, Box) and isinstance(end, Box)):
        return _CUT  # to or from the cause that is written on it
    return _OPEN if start.state == end.state == RECORDED else _OFF_TAPE


def _draw_link(ax: Axes, points: Points, style: Mapping[str, Any], arrow: bool) -> None:
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, zorder=1, solid_joinstyle="round", gid="link", **style)
    if arrow:
        tip, back = points[-1], 6.0 if ys[-2] > ys[-1] else -6.0
        before = (tip[0], tip[1] + back)
        arrow_style = {"arrowstyle": "-|>", "color": style["color"], "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
        ax.annotate("", xy=tip, xytext=before, arrowprops=arrow_style, zorder=1)


def _draw_legend(ax: Axes, middle: float, y: float, entries: Sequence[tuple[str, str]]) -> None:
    for i, (label, colour) in enumerate(entries):
        x = (i - (len(entries) - 1) / 2) * 110
        ax.text(middle + x, y, label, color=colour, fontsize=SMALL, ha="center", va="center", gid="legend")
