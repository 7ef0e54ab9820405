"""What is written in a box of a drawing, and how much room it takes."""

import ast
from collections.abc import Sequence

from tapelab.explain.drawing.shown_values import Passage
from tapelab.explain.drawing.sketch import NOT_RECORDED, RECORDED, Box
from tapelab.explain.ground import expressions
from tapelab.explain.ground.number_text import shortened
from tapelab.explain.ground.rendering import spelled

WIDE, SMALL = 9.0, 7.5  # font sizes in points
_TEXT = 38  # characters of source text in a box
PAD = 6.0
_SIGNS = {RECORDED: "●", NOT_RECORDED: "○"}


def text_of(box: Box, files: set[str], passage: Passage | None) -> list[str]:
    """Return the lines of text in a box, the title first."""
    number = passage.number(box) if passage else ""
    title = f"{_SIGNS[box.state]} {number}{spelled(box.title) if box.operations == (box.title,) else box.title}"
    if box.role == "operation" and box.mark:
        title += f" · {box.mark}"
    text = [title]
    if len(box.operations) > 1:
        text.append(shortened(", ".join(dict.fromkeys(box.operations)), _TEXT))
    if len(box.lines) == 1:
        line = box.lines[0]
        place = f"line {line.number}" if len(files) == 1 else line.place
        source = _expression(box) or line.text
        text.extend(_wrapped(f"{place}: {source}" if source else place))
    elif box.lines:
        numbers = [line.number for line in box.lines]
        text.append(f"lines {min(numbers)} to {max(numbers)}")
    if passage is None:
        return text
    if passage.value(box):
        text.append(f"= {passage.value(box)}")
    if box.role == "source" and passage.gradient(box):
        text.append(f"↑ gradient {passage.gradient(box)}")
    if passage.mark(box):
        text.append(passage.mark(box))
    return text


def _expression(box: Box) -> str:
    """The learner's expression that one operation ran, where it is known."""
    if len(box.events) != 1:
        return ""
    found = expressions.at(box.events[0].place.code, box.events[0].place.instruction)
    return "" if found is None else ast.unparse(found)


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
