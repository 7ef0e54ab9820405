"""The tape as a numbered table: one row for each operation, with its value and, read upwards, its gradient."""

import ast
import dataclasses
import sys
from collections.abc import Iterable, Iterator, KeysView, Mapping, Sequence
from types import FrameType
from typing import Any

from tapelab.explain.asking import answers_to_show
from tapelab.explain.drawing.shown_values import gradient_text, replayed
from tapelab.explain.drawing.sketch import TRANSPARENT
from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.measure import array
from tapelab.explain.ground.number_text import cotangent_text, shortened, value_text
from tapelab.explain.ground.rendering import Style, Told, spelled
from tapelab.explain.missing.question import Question
from tapelab.explain.values.rerun.backward import Replay
from tapelab.explain.values.rerun.node_expressions import of_node
from tapelab.explain.values.rerun.nodes import Node, Trace
from tapelab.graphs.walks import reachable

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
        value = _value(trace, question.start)
        received = _received(replay, number, numbers)
        yield Row(number, question.source_name, "", value, gradient_text(replay, question.start), received=received)
    for number, node in enumerate(nodes, len(asked)):
        first = node.outputs[0]
        source, value = _source(node, trace, numbers), _value(trace, first)
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


def _value(trace: Trace, key: int) -> str:
    value = trace.values[key]
    reads = [node for node in trace.users.get(key, ()) if node.op in TRANSPARENT]
    if reads:
        value = trace.values[reads[0].outputs[0]]
    values = array(value)
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
