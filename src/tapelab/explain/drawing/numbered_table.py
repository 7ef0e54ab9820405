"""The tape as a numbered table: one row for each operation, with its value and, read upwards, its gradient."""

import ast
import dataclasses
import hashlib
import html
import sys
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from types import FrameType
from typing import Any

from tapelab.explain.asking import answers_to_show
from tapelab.explain.causes import SYMPTOMS
from tapelab.explain.drawing.sketch import TRANSPARENT, Box
from tapelab.explain.explanation import Explanation
from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.measure import array, cotangent_text, shortened, value_text
from tapelab.explain.ground.rendering import Style, Told, spelled
from tapelab.explain.missing.question import Finding, Question
from tapelab.explain.values.rerun.evidence import Evidence, Replay
from tapelab.explain.values.rerun.nodes import Node, Trace, of_node
from tapelab.explain.values.study import study
from tapelab.graphs.walks import reachable

import numpy as np

_EDGES = 3  # between two boxes


def replayed(
    asked: Sequence[Question], answers: Sequence[tuple[Finding, Any]]
) -> tuple[Replay, list[Explanation], dict[Node, str]]:
    """Run the backward pass of a drawing or a table once more.

    Args:
        asked, answers: as `tapelab.explain.asking.answers_to_show` returns them.

    Returns:
        The `Replay` of all sources; an `Explanation` for each; and what to write on the nodes where trouble began.
    """
    targets, sources = list(asked[0].targets), [question.source for question in asked]
    names = [asked[0].target_name, *(question.source_name for question in asked)]
    replay, found = study(asked[0].tape, targets, sources, names, [gradient for _, gradient in answers])
    bad = [one for one in found if one.healthy is False and one.node]
    marks = {one.node: f"✖ {SYMPTOMS[one.symptom].begins}: {one.code}" for one in bad}
    return replay, found, marks


def gradient_text(replay: Replay, key: int) -> str:
    """Return the gradient of the target with respect to a tensor, as text; "" where there is none."""
    found = replay.cotangent(key)
    return "" if found is None else cotangent_text(array(found))


class Passage:
    """Values and cotangents of the boxes of a sketch.

    Args:
        replay: a `tapelab.explain.values.rerun.evidence.Replay` of the target that is drawn.
        origins: the nodes at which trouble began, each with what is to be written there: node → text.
        numbers: key of a tensor → the number in the table of what made it.
    """

    def __init__(self, replay: Replay, origins: Mapping[Node, str], numbers: Mapping[int, int]):
        self._replay, self._numbers = replay, numbers
        self._origins = {node.event: text for node, text in origins.items()}

    def value(self, box: Box) -> str:
        """The forward value of what leaves a box, as text; "" where there is none to show."""
        values = [array(self._replay.trace.values.get(key)) for key in box.keys]
        values = [one for one in values if one.size]
        if not values:
            return ""
        return value_text(values[-1] if box.role == "operation" else values[0])

    def number(self, box: Box) -> str:
        """The number of a box's row in the table, before its title; "" where it has none, or more than one."""
        known = {self._numbers.get(key) for key in box.keys} - {None}
        return f"{known.pop()} " if len(known) == 1 and box.role != "target" else ""

    def gradient(self, box: Box) -> str:
        """The gradient of the target with respect to a source, as text; "" where it is not known."""
        return gradient_text(self._replay, box.keys[0]) if box.keys else ""

    def cotangents(self, start: Box, end: Box) -> list[str]:
        """What flows back from one box to another, as texts: what the end contributes to the cotangent of the start.

        There is one for each place at which an operation takes what leaves the start: two for `x * x`. Where there are
        many, there is one for their sum.
        """
        parts = []
        for key in start.keys:
            for node, part in self._replay.parts.get(key, ()):
                if node.event is end.event if node is not None else end.role == "target":
                    parts.append(array(part))
        if len(parts) > _EDGES:
            parts = [np.sum(parts, axis=0)]
        return [cotangent_text(part) for part in parts]

    def mark(self, box: Box) -> str:
        """What to write on a box at which trouble began, or ""."""
        return self._origins.get(box.event, "")


_LONGEST = 44  # characters of an expression


@dataclasses.dataclass(frozen=True)
class Row:
    """One operation, or a source.

    Attributes:
        number: from 0.
        title: what the operation is called in TensorFlow's interface, such as multiply; a source's name.
        source: what it was made from: the learner's expression, or the numbers of the rows that it takes.
        value: its value, as text.
        gradient: the target's gradient with respect to it, as text; "" where there is none.
        mark: where trouble began, which; else "".
        received: what its gradient is the sum of, last user first: pairs of the number of the row that hands it back,
            or None for the target's own 1, and the part as text.
    """

    number: int
    title: str
    source: str
    value: str
    gradient: str
    mark: str = ""
    received: tuple[tuple[int | None, str], ...] = ()


@dataclasses.dataclass(frozen=True)
class Table(Told):
    """The rows of a tape between some sources and a target, in the order in which they ran.

    Attributes:
        target: what the learner calls the target.
        rows: a tuple of `Row`.
    """

    target: str
    rows: tuple[Row, ...]

    def lines(self, style: Style) -> Iterator[str]:
        """The table, as one part."""
        cells = [
            (str(row.number), row.title, row.source, row.value, f"{row.gradient}  {row.mark}".rstrip())
            for row in self.rows
        ]
        yield style.table([("#", "operation", "of", "value", f"↑ d {self.target} / d #"), *cells], rule="─")


def table(tape: ExplainTape, target: Any, sources: Any) -> Table:
    """List what a tape recorded between some sources and a target.

    Read downwards it is the forward pass; read upwards, in the last column, the backward pass: each row's gradient is
    made of those of the rows that use it.

    Args:
        tape: an `ExplainTape`; it is not used up by this.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.

    Returns:
        A `Table`; `print` shows it in a terminal, a notebook as Markdown.

    Raises:
        TypeError: if `tape` is not an `ExplainTape`.
        ValueError: if there is nothing to list: no sources, or something that was not seen or is not a tensor.
    """
    return table_of(tape, target, sources, sys._getframe(1))


def table_of(tape: ExplainTape, target: Any, sources: Any, frame: FrameType) -> Table:
    """Return the `Table` for a caller's frame, in which the names of the target and the sources are looked up."""
    asked, answers = answers_to_show(tape, target, sources, frame, "list")
    replay, _, marks = replayed(asked, answers)
    with hooks.deaf(), private.paused():
        return Table(asked[0].target_name, tuple(_rows(replay, asked, marks)))


def numbering(replay: Replay, starts: Sequence[int]) -> tuple[dict[int, int], list[Node]]:
    """Number the sources, in their order, and then the operations on their way to the target, in the order they ran.

    Args:
        replay: of the target.
        starts: the keys of the sources.

    Returns:
        key of a tensor → the number of what made it, and the operations that have a number.
    """
    numbers, nodes = {key: number for number, key in enumerate(starts)}, []
    on_the_way = _upstream(replay)
    for node in replay.trace.nodes:
        if node not in on_the_way:
            continue
        if node.op in TRANSPARENT or (node.op == "Identity" and node.inputs[0] < 0 <= node.outputs[0]):
            numbers.update(dict.fromkeys(node.outputs, numbers.get(node.inputs[0])))
            continue
        numbers.update(dict.fromkeys(node.outputs, len(starts) + len(nodes)))
        nodes.append(node)
    return numbers, nodes


def _rows(replay: Replay, asked: Sequence[Question], marks: Mapping[Node, str]) -> Iterator[Row]:
    trace = replay.trace
    numbers, nodes = numbering(replay, [question.start for question in asked])
    for number, question in enumerate(asked):
        value = _value(replay, question.start)
        received = _received(replay, number, numbers)
        yield Row(number, question.source_name, "", value, gradient_text(replay, question.start), received=received)
    for number, node in enumerate(nodes, len(asked)):
        first = node.outputs[0]
        source, value = _source(node, trace, numbers), _value(replay, first)
        received = _received(replay, number, numbers)
        yield Row(number, spelled(node.op), source, value, gradient_text(replay, first), marks.get(node, ""), received)


def _upstream(replay: Replay) -> KeysView[Node]:
    """The nodes that the target was made by, as far as they were made from the sources."""
    depends = replay.made_of.keys()

    def makers(keys: Iterable[int]) -> list[Node]:
        nodes = map(replay.trace.producer.get, keys)
        return [node for node in nodes if node is not None and depends & set(node.inputs)]

    return reachable(makers(replay.targets), lambda node: makers(node.inputs))


def _source(node: Node, trace: Trace, numbers: Mapping[int, int]) -> str:
    """The learner's expression; within a function or a library, the rows and numbers that the operation takes."""
    expression = of_node(node) if node.event.op == node.op else None
    taken = ", ".join(_operand(trace, key, numbers) for key in node.inputs)
    if expression is None:
        return shortened(taken, _LONGEST)
    return shortened(ast.unparse(expression), _LONGEST) + (f"  [{taken}]" if len(taken) <= 16 else "")


def _operand(trace: Trace, key: int, numbers: Mapping[int, int]) -> str:
    if numbers.get(key) is not None:
        return f"#{numbers[key]}"
    values = array(trace.values[key])
    return value_text(values) if values.size == 1 else "·"


def _value(replay: Replay, key: int) -> str:
    values = Evidence(replay, key).array(key)
    return value_text(values) if values.size else ""


def _received(replay: Replay, number: int, numbers: Mapping[int, int]) -> tuple[tuple[int | None, str], ...]:
    """The parts of a row's gradient. What a row hands to itself is the reading of a variable, and counts as one."""
    found = []
    for key in [key for key, other in numbers.items() if other == number]:
        for node, part in replay.parts.get(key, ()):
            user = None if node is None else numbers.get(node.outputs[0])
            if user != number:
                found.append((user, cotangent_text(array(part))))
    return tuple(sorted(found, key=lambda pair: -(len(numbers) if pair[0] is None else pair[0])))


# Radio buttons and style sheets: they need no script and no kernel, and arrow keys move from one to the next, which
# JupyterLab would take for its own (`data-lm-suppress-shortcuts`). In print, and where a front-end takes styles away,
# as JupyterLab does in a notebook that it does not trust, the whole table stands there, and the buttons stay hidden.
_HIDDEN = 'hidden="hidden"'  # JupyterLab takes away what has no value
_STYLE = """
#ID { border: 0; margin: 0; padding: 0; min-width: 0; }
#ID legend { padding: 0; }
#ID label { margin: 0 0.9em 0 0.2em; cursor: pointer; }
#ID p { display: none; margin: 0.5em 0; }
#ID table { border-collapse: collapse; margin: 0; font-size: inherit; }
#ID :is(th, td) { text-align: left; padding: 0.25em 0.9em 0.25em 0.4em; }
@media screen {
#ID legend { display: block; }
#ID :is(input, label) { display: inline-block; }
#ID td span { visibility: hidden; }
"""
_STEP = """#ID input:nth-of-type(NOW):checked ~ p:nth-of-type(NOW) { display: block; }
#ID input:nth-of-type(NOW):checked ~ table .at-NOW { background: #2f81c730; }
#ID input:nth-of-type(n+NOW):checked ~ table .from-NOW { visibility: visible; }
"""


@dataclasses.dataclass(frozen=True)
class Steps:
    """The steps through a table, from `step_through`: a notebook shows them with a button for each.

    Attributes:
        table: the whole `Table`, which is also what `print` shows.
        told: a sentence for each step.
    """

    table: Table
    told: tuple[str, ...]

    def __str__(self) -> str:
        return str(self.table)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        name = "tape-" + hashlib.sha256(f"{self.table}{self.told}".encode()).hexdigest()[:8]
        buttons = "".join(
            f'<input type="radio" name="{name}" id="{name}-{step}" aria-label="{html.escape(f"{step}. {text}")}"'
            f"{' checked' if step == 1 else ''} data-lm-suppress-shortcuts {_HIDDEN}>"
            f'<label for="{name}-{step}" {_HIDDEN}>{step}</label>\n'
            for step, text in enumerate(self.told, 1)
        )
        sentences = "".join(f"<p>{html.escape(text)}</p>\n" for text in self.told)
        return (
            f'<fieldset id="{name}">\n<style>{self._style(name)}</style>\n'
            f"<legend {_HIDDEN}>One operation at a time (a click, or the arrow keys):</legend>\n{buttons}{sentences}"
            f"<table>\n{self._rows()}</table>\n</fieldset>"
        )

    def _style(self, name: str) -> str:
        steps = (_STEP.replace("NOW", str(now)) for now in range(1, len(self.told) + 1))
        return "".join([_STYLE, *steps, "}\n"]).replace("ID", name)

    def _rows(self) -> str:
        """The table's rows. What a step brings is in a span that says from which step on it is seen."""
        rows = self.table.rows
        heads = ("#", "operation", "of", "value ↓", f"gradient of {self.table.target} ↑")
        lines = ["<tr>" + "".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads) + "</tr>\n"]
        for row in rows:
            down, up = row.number + 1, 2 * len(rows) + 1 - row.number  # when it is run, and when it is read
            cells = [str(row.number), row.title, row.source, _seen_from(down, row.value), _received_text(row, rows)]
            inside = "".join(f"<td>{cell}</td>" for cell in [*map(html.escape, cells[:3]), *cells[3:]])
            lines.append(f'<tr class="at-{down} at-{up}">{inside}</tr>\n')
        return "".join(lines)


def step_through(tape: ExplainTape, target: Any, sources: Any) -> Steps:
    """Go through what a tape recorded between some sources and a target, one operation at a time.

    Downwards each step brings a value. Then the target's gradient with respect to itself is 1, and upwards each step
    reads one row, and shows what it hands to the rows that it used. It is for short programs: there is a button for
    each step.

    Args:
        tape: an `ExplainTape`; it is not used up by this.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.

    Returns:
        The `Steps`. A notebook shows them; they need neither a script nor a kernel, so they work on a web page, too.

    Raises:
        TypeError: if `tape` is not an `ExplainTape`.
        ValueError: if there is nothing to list: no sources, or something that was not seen or is not a tensor.
    """
    whole = table_of(tape, target, sources, sys._getframe(1))
    rows = whole.rows
    down = [f"Down: row {row.number}, {row.source or row.title}, has the value {row.value}." for row in rows]
    start = f"Up: the gradient of {whole.target} with respect to itself is 1."
    up = [_handed(row, rows) for row in reversed(rows) if row.source]
    return Steps(whole, (*down, start, *up))


def _handed(row: Row, rows: Sequence[Row]) -> str:
    """A sentence on what one row hands to those above it."""
    parts = [(other.number, text) for other in rows for user, text in other.received if user == row.number]
    told = " and ".join(f"{text} to row {number}" for number, text in parts)
    return f"Up: row {row.number} hands {told or 'nothing on'}."


def _received_text(row: Row, rows: Sequence[Row]) -> str:
    """What a row has received, part by part, and the sum where there are several."""
    step, told = 0, ""
    for user, text in row.received:
        step = 2 * len(rows) + 1 - (len(rows) if user is None else user)
        told += _seen_from(step, f", {text}" if told else text)
    return told + (_seen_from(step, f"; sum {row.gradient}") if len(row.received) > 1 else "")


def _seen_from(step: int, text: str) -> str:
    return f'<span class="from-{step}">{html.escape(text)}</span>'
