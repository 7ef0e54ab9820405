"""What flows through a drawing: the values forwards on its boxes, and the cotangents backwards on its links."""

from collections.abc import Mapping, Sequence
from typing import Any

from tapelab.explain.causes import SYMPTOMS
from tapelab.explain.drawing.sketch import Box
from tapelab.explain.explanation import Explanation
from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.log import keys_in
from tapelab.explain.ground.measure import array
from tapelab.explain.ground.number_text import cotangent_text, value_text
from tapelab.explain.missing.question import Question
from tapelab.explain.missing.verdict import Finding
from tapelab.explain.values.rerun.backward import Replay
from tapelab.explain.values.rerun.nodes import Node, Trace
from tapelab.explain.values.study import study

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
    found = study(asked[0].tape, targets, sources, names, [gradient for _, gradient in answers])
    replay = next((one.evidence.replay for one in found if one.evidence is not None), None)
    if replay is None:
        with hooks.deaf(), private.paused():
            replay = Replay(Trace(asked[0].log), keys_in(targets), keys_in(sources))
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
        replay: a `tapelab.explain.values.rerun.backward.Replay` of the target that is drawn.
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
        many, or boxes were merged, there is one for their sum.
        """
        parts = []
        for key in start.keys:
            for node, part in self._replay.parts.get(key, ()):
                if node.event in end.events if node is not None else end.role == "target":
                    parts.append(array(part))
        if not parts and end.role == "target" and set(start.keys) & set(end.keys):
            parts = [np.ones(())]
        if len(end.operations) > 1 or len(parts) > _EDGES:
            total = parts[0]
            for part in parts[1:]:
                total = part if total.shape != part.shape else total + part
            parts = [total]
        return [cotangent_text(part) for part in parts]

    def mark(self, box: Box) -> str:
        """What to write on a box at which trouble began, or ""."""
        return next((self._origins[event] for event in box.events if event in self._origins), "")
