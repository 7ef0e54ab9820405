"""What flows through a drawing: the values forwards on its boxes, and the cotangents backwards on its links."""

from tapelab.explain.drawing.sketch import Box
from tapelab.explain.ground.measure import array
from tapelab.explain.ground.number_text import cotangent_text, value_text

import numpy as np


class Passage:
    """Values and cotangents of the boxes of a sketch.

    Args:
        replay: a `tapelab.explain.values.rerun.backward.Replay` of the target that is drawn.
        origins: the nodes at which trouble began, each with what is to be written there: node → text.
    """

    def __init__(self, replay, origins):
        self._replay = replay
        self._origins = {node.event: text for node, text in origins.items() if node is not None}

    def value(self, box: Box) -> str:
        """The forward value of what leaves a box, as text; "" where there is none to show."""
        values = [array(self._replay.trace.values.get(key)) for key in box.keys]
        values = [one for one in values if one.size]
        if not values:
            return ""
        return value_text(values[-1] if box.role == "operation" else values[0])

    def gradient(self, box: Box) -> str:
        """The gradient of the target with respect to a source, as text; "" where it is not known."""
        found = self._replay.cotangent(box.keys[0]) if box.keys else None
        return "" if found is None else cotangent_text(array(found))

    def cotangent(self, start: Box, end: Box) -> str:
        """What a link carries backwards, as text: the part that its end contributes to the cotangent of its start."""
        total = None
        for key in start.keys:
            for node, part in self._replay.parts.get(key, ()):
                if node is None and end.role != "target":
                    continue
                if node is not None and node.event not in end.events:
                    continue
                values = array(part)
                total = values if total is None or total.shape != values.shape else total + values
        if total is None and end.role == "target" and set(start.keys) & set(end.keys):
            total = np.ones(())
        return "" if total is None else cotangent_text(total)

    def mark(self, box: Box) -> str:
        """What to write on a box at which trouble began, or ""."""
        return next((self._origins[event] for event in box.events if event in self._origins), "")
