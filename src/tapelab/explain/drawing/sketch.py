"""What a drawing shows, before it has any coordinates: boxes and links."""

import dataclasses
from collections.abc import Sequence, Set

from tapelab.explain.causes import CAUSES
from tapelab.explain.drawing.layout import neighbours
from tapelab.explain.ground.log import Event, Kind
from tapelab.explain.missing.paths import Point, Step
from tapelab.explain.missing.question import Finding, Question
from tapelab.graphs.walks import reachable

RECORDED, NOT_RECORDED = "recorded", "not recorded"

# Reading a variable is not worth a box.
TRANSPARENT = frozenset({"ReadVariableOp"})


@dataclasses.dataclass(eq=False)
class Box:
    """One box.

    Attributes:
        role: "source", "operation" or "target".
        title: what it is.
        state: `RECORDED` or `NOT_RECORDED`.
        mark: "custom gradient", "tf.function" or empty.
        event: the `Event` of the log; None of a source and a target.
        keys: of the tensors that leave the box: of a source, its own and those read from it.
    """

    role: str
    title: str
    state: str
    mark: str = ""
    event: Event | None = None
    keys: tuple[int, ...] = ()


def _when(box: Box) -> int:
    """When a box's operation ran: they stand in this order where nothing else decides."""
    return box.event.index if box.event else -1


class Sketch:
    """What lies between some sources and one target.

    Args:
        questions: a list of `Question`, one for each source, about one target.
        findings: a list of `Finding`, the answers.

    Attributes:
        boxes: a list of `Box`.
        links: (box, box) → the titles of the causes by which the link is cut, a tuple; empty where it is not.
    """

    def __init__(self, questions: Sequence[Question], findings: Sequence[Finding]):
        question = questions[0]
        self._log, self._flow = question.log, question.flow
        self._boxes = {}  # event index → Box
        self.boxes, self.links = [], {}
        self._goals = question.goals
        self._upstream = self._flow.upstream(self._goals)
        self._target = Box("target", question.target_name, self._state(self._goals), keys=tuple(self._goals))
        for question, finding in zip(questions, findings, strict=True):
            self._add_source(question, finding)
        self.boxes.append(self._target)
        at_target = {CAUSES[one.code].title for one in findings if one.code == "target_dtype"}
        for goal in self._goals:
            maker = self._flow.producer.get(goal)
            if maker is not None and maker.index in self._boxes:
                self._link(self._boxes[maker.index], self._target, tuple(at_target))
        self._prune()

    def _prune(self) -> None:
        """Take out operations that lead nowhere in the picture."""
        before, _ = neighbours(self.boxes, self.links)
        leading = reachable([box for box in self.boxes if box.role != "operation"], before.__getitem__)
        self.boxes = sorted((box for box in self.boxes if box in leading), key=_when)
        links = sorted(self.links.items(), key=lambda link: tuple(map(_when, link[0])))
        self.links = {pair: titles for pair, titles in links if pair[1] in leading}

    def _state(self, keys: Set[int]) -> str:
        return RECORDED if keys & self._log.on_tape else NOT_RECORDED

    def _add_source(self, question: Question, finding: Finding) -> None:
        reads = [event for event in self._flow.uses(question.start) if event.op in TRANSPARENT]
        keys = (question.start, *(key for event in reads for key in event.outputs))
        source = Box("source", question.source_name, self._state({question.start}), keys=keys)
        self.boxes.append(source)
        blamed = not finding.exists and not finding.cuts and finding.code not in ("used_up", "target_dtype")
        reached = self._follow(question.start, source, finding, (CAUSES[finding.code].title,) if blamed else ())
        if not finding.path:
            self._add_missing_link(source, reached, finding)
        elif finding.path[-1].event.op == "ReadVariableOp":
            self._link(source, self._target, ())

    def _follow(self, start: Point, source: Box, finding: Finding, at_source: tuple[str, ...]) -> list[Event]:
        """Add what a source leads to: as far as it leads to the target, or everything where nothing does."""
        downstream = self._flow.downstream(start)
        reached, seen, waiting = [], set(), [(start, source, at_source if finding.path else ())]
        while waiting:
            node, box, carried = waiting.pop()
            for step in self._flow.steps(node):
                if (finding.path and step.end not in self._upstream) or self._is_taken_over(step, downstream):
                    continue
                titles, end = self._titles(step, box, carried), box
                if step.event.op not in TRANSPARENT:
                    end = self._box(step.event)
                    reached.append(step.event)
                    self._link(box, end, titles)
                    titles = ()
                if (step.end, end) not in seen:
                    seen.add((step.end, end))
                    waiting.append((step.end, end, titles))
        return reached

    def _is_taken_over(self, step: Step, downstream: Set[Point]) -> bool:
        """Whether a custom gradient answers for what this step makes, so that the inside need not be shown."""
        taker = self._log.producers.get(step.end)
        is_custom = taker is not None and taker is not step.event and taker.kind is Kind.CUSTOM
        return is_custom and not downstream.isdisjoint(taker.inputs)

    def _titles(self, step: Step, box: Box, carried: tuple[str, ...]) -> tuple[str, ...]:
        """The causes to write on a link. That recording was stopped is written where it begins, not after."""
        inside = box.role == "operation" and box.state == NOT_RECORDED
        codes = [cut.code for cut in step.cuts if not (inside and cut.code in ("recording_stopped", "tape_reset"))]
        return tuple(dict.fromkeys((*carried, *(CAUSES[code].title for code in codes))))

    def _add_missing_link(self, source: Box, reached: Sequence[Event], finding: Finding) -> None:
        """Where no values flow, show what each side has, and between them the cause."""
        upstream = (event for event in self._log.events if not self._upstream.isdisjoint(event.outputs))
        made = [event for event in upstream if event.op not in TRANSPARENT]
        for event in made:
            for key in event.inputs:
                maker = self._flow.producer.get(key)
                if maker in made and maker is not event:
                    self._link(self._box(maker), self._box(event), ())
        at_line = [event for event in reached if event.line == finding.line]
        last = max(at_line or reached, key=lambda event: event.index, default=None)
        later = [event for event in made if last is not None and event.index > last.index and event not in reached]
        start = source if last is None else self._box(last)
        self._link(start, self._box(later[0]) if later else self._target, (CAUSES[finding.code].title,))

    def _box(self, event: Event) -> Box:
        if event.index not in self._boxes:
            mark = {Kind.CUSTOM: "custom gradient", Kind.FUNCTION: "tf.function"}.get(event.kind, "")
            state = RECORDED if event.unrecorded is None and not event.erased else NOT_RECORDED
            self._boxes[event.index] = Box("operation", event.name, state, mark, event, event.outputs)
            self.boxes.append(self._boxes[event.index])
        return self._boxes[event.index]

    def _link(self, start: Box, end: Box, titles: tuple[str, ...]) -> None:
        """Link two boxes. Where several values go the same way, the link is cut only if all are."""
        if start is not end:
            known = self.links.get((start, end), titles)
            self.links[start, end] = known if titles else ()
