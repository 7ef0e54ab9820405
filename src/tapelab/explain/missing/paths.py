"""Where values flow in a log, and where a gradient can flow back.

Nodes are keys of tensors, and ("state", handle, version) for what a variable or table holds after its version-th write.
"""

import dataclasses
from collections.abc import Iterable, Iterator, Sequence, Set

from tapelab.explain.ground.log import Event, Kind, Log, Unrecorded, keys_in
from tapelab.explain.missing.inside_functions import Conductors, Cut, body_of, cost_of
from tapelab.graphs.walks import cheapest, reachable

import tensorflow as tf

Point = int | tuple[str, int, int]  # what the docstring calls a node


@dataclasses.dataclass(frozen=True)
class Step:
    """One step along the flow of values: from a node through an event to another node.

    Attributes:
        start, end: nodes.
        event: the `Event`.
        cuts: a tuple of `Cut`, empty where the gradient passes.
        off_tape: why the event is not on the tape, where that needs no cut of its own to explain it: nothing that it
            took was on it, or TensorFlow had suspended the tapes to do something that is a cut, such as
            tf.stop_gradient.
    """

    start: Point
    end: Point
    event: Event
    cuts: tuple = ()
    off_tape: Unrecorded | None = None


class Flow:
    """The flow of values in a log.

    Args:
        log: a `Log`.
        goals: the keys of the tensors that are asked for.
    """

    def __init__(self, log: Log, goals: Set[int]):
        self._log, self._goals = log, goals
        self._conductors = Conductors(log)
        self._consumers, self._readers, self._steps = {}, {}, {}
        self.producer = {}
        self._returned = {}  # key of what the Python code of a tf.py_function returned → the py_function's event
        self._writes = {}  # (event index, handle) → the version that the event makes
        self._before = {}  # node → the nodes that its value was made of
        versions = {}
        for event in log.events:
            for position, key in enumerate(event.inputs):
                self._consumers.setdefault(key, []).append((event, position))
                if log.is_handle(key):
                    self._readers.setdefault((key, versions.get(key, 0)), []).append(event)
            handles = [key for key in event.inputs if log.is_handle(key)]
            made_of = [*event.inputs, *(("state", key, versions.get(key, 0)) for key in handles)]
            if event.kind is Kind.FUNCTION or (event.kind is Kind.OPERATION and not event.outputs):  # it may write
                for key in handles:
                    versions[key] = versions.get(key, 0) + 1
                    self._writes[event.index, key] = versions[key]
                    self._before.setdefault(("state", key, versions[key]), []).extend(made_of)
            if event.op == "EagerPyFunc":
                made_of += self._inside_python(event)
            for key in event.outputs:
                self.producer.setdefault(key, event)
                self._before.setdefault(key, []).extend(made_of)

    def _inside_python(self, event: Event) -> list[int]:
        """Tie the operations that ran inside a tf.py_function to its event. Returns the keys of what they returned."""
        returned = []
        for _, arguments, results in self._log.python_calls_of.get(event.index, {}).values():
            # Inside, the arguments are other tensors with the same values, and so are the results outside.
            for key, outside in zip(keys_in(arguments), event.inputs, strict=False):
                self._before.setdefault(key, []).append(outside)
            returned += keys_in([result for result in tf.nest.flatten(results) if result is not None])
        self._returned.update(dict.fromkeys(returned, event))
        return returned

    def uses(self, key: int) -> list[Event]:
        """Return the events that take a tensor as input."""
        return [event for event, _ in self._consumers.get(key, ())]

    def steps(self, node: Point) -> list[Step]:
        """Return the `Step`s that lead on from a node."""
        if node not in self._steps:
            self._steps[node] = list(self._state_steps(node) if isinstance(node, tuple) else self._tensor_steps(node))
        return self._steps[node]

    def is_made(self, key: Point) -> bool:
        """Whether the log knows what a tensor was made of."""
        return key in self._before

    def cuts_of(self, event: Event, position: int) -> list[Cut]:
        """Return the cuts between an input of an event and any of its outputs, as a list of `Cut`."""
        return [cut for step in self.steps(event.inputs[position]) if step.event is event for cut in step.cuts]

    def _state_steps(self, node: tuple[str, int, int]) -> Iterator[Step]:
        _, handle, version = node
        for event in self._readers.get((handle, version), ()):
            for output in event.outputs:
                yield Step(node, output, event)
            written = self._writes.get((event.index, handle))
            if written is not None:
                yield Step(node, ("state", handle, written), event)

    def _tensor_steps(self, key: int) -> Iterator[Step]:
        for event, position in self._consumers.get(key, ()):
            if event.kind is Kind.FUNCTION:
                yield from self._function_steps(key, event, position)
                continue
            for output in event.outputs:
                yield self._operation_step(key, event, position, output)
            yield from self._write_steps(key, event)
        if key in self._returned:
            event = self._returned[key]
            for output in event.outputs:
                yield Step(key, output, event, (Cut("python_closure", event.name, event.line, event),))

    def _write_steps(self, key: int, event: Event) -> Iterator[Step]:
        made_by = self.producer.get(key)
        if self._log.is_handle(key) and not (made_by and "Dataset" in made_by.op):
            return
        for handle in event.inputs:
            written = self._writes.get((event.index, handle))
            if written is not None and handle != key:
                # Filling an iterator is part of leaving for tf.data, which was noted where the dataset was made.
                cuts = () if self._log.is_handle(key) else (Cut("state", event.name, event.line, event),)
                yield Step(key, ("state", handle, written), event, cuts)

    def _operation_step(self, key: int, event: Event, position: int, output: int) -> Step:
        if "Dataset" in event.op and self._log.is_handle(key):
            # A variable that the dataset's function reads: tf.data runs it apart, and no tape sees it.
            is_captured = self._log.tensors[key].dtype == tf.resource and key not in self.producer
            cuts = (Cut("left_tensorflow", event.name, event.line, event),) if is_captured else ()
            return Step(key, output, event, cuts)
        code = self._status(event, output) or self._conductors.cut_at(event, position, output)
        cuts = (Cut(code, event.name, event.line, event),) if code else ()
        return Step(key, output, event, cuts, event.unrecorded)

    def _status(self, event: Event, output: int) -> str | None:
        """The cause that lies in the state of the tape when an event ran, or None."""
        if event.kind is Kind.PYTHON:
            return "left_tensorflow"
        code = _missed(event)
        if code:
            # Reading a variable is no step of the learner's: where what uses the value was missed as well, that counts.
            uses = self.uses(output) if event.op == "ReadVariableOp" and output not in self._goals else ()
            return None if uses and all(_missed(use) == code for use in uses) else code
        last = self._log.producers.get(output)
        if last is not event and last is not None and last.kind is Kind.CUSTOM:
            # A custom gradient took over this output, and what flows here did not go through its arguments.
            return "custom_gradient_none"
        return None

    def _function_steps(self, key: int, event: Event, position: int) -> Iterator[Step]:
        body = body_of(event)
        count = len(event.outputs) if body is None else min(len(event.outputs), body.output_count)
        routes = [() if body is None else body.route(position, index) for index in range(count)]
        passes = any(
            route == () and self._log.carries(output) for route, output in zip(routes, event.outputs, strict=False)
        )
        for route, output in zip(routes, event.outputs, strict=False):
            code = self._status(event, output)
            if code:
                if route is not None:
                    cuts = (Cut(code, event.name, event.line, event), *self._located(route, event))
                    yield Step(key, output, event, cuts)
            elif passes and self._log.carries(output):
                yield Step(key, output, event, (), event.unrecorded)
            elif route is not None:
                yield Step(key, output, event, self._located(route, event), event.unrecorded)
        for other, handle in enumerate(event.inputs):
            written = self._writes.get((event.index, handle))
            if written is None or handle == key or body is None:
                continue
            route = body.route(position, other, to_state=True)
            if route is not None:
                yield Step(key, ("state", handle, written), event, self._located(route, event))

    def _located(self, cuts: Sequence[Cut], event: Event) -> tuple[Cut, ...]:
        """Cuts of a function's body, with the line of the call where the body's own line is not known."""
        return tuple(dataclasses.replace(cut, line=cut.line or event.line, event=event) for cut in cuts)

    def cheapest(self, start: Point, goals: Set[Point]) -> list[Step] | None:
        """Find the path with the fewest cuts, then the fewest steps off the tape.

        Args:
            start: a node.
            goals: a set of nodes.

        Returns:
            A list of `Step`, empty where the start is a goal; None if no path leads there.
        """

        def steps(node: Point) -> Iterator[tuple[Point, tuple[int, ...], Step]]:
            for step in self.steps(node):
                yield step.end, (*cost_of(step.cuts), int(step.off_tape is not None), 1), step

        return cheapest(start, goals, steps)

    def downstream(self, start: Point) -> Set[Point]:
        """Return the set of nodes that values from a node flow to, itself included."""
        return reachable([start], lambda node: [step.end for step in self.steps(node)])

    def upstream(self, goals: Iterable[Point]) -> Set[Point]:
        """Return the set of nodes that values flow from to any of the goals, themselves included."""
        return reachable(goals, lambda node: self._before.get(node, ()))

    def frontier(self, start: Point, goals: Iterable[Point]) -> list[Step]:
        """Return the first cut of every path from a node to a goal, as a list of `Step` without repetition."""
        useful = self.upstream(goals)

        def steps(node: Point) -> list[Step]:
            return [step for step in self.steps(node) if step.end in useful]

        uncut = reachable([start], lambda node: [step.end for step in steps(node) if not step.cuts])
        return sorted((step for node in uncut for step in steps(node) if step.cuts), key=lambda step: step.event.index)


def _missed(event: Event) -> str | None:
    """The cause by which an event is not on the tape whatever its inputs are, or None."""
    if event.erased:
        return "tape_reset"
    return "recording_stopped" if event.unrecorded is Unrecorded.PAUSED else None
