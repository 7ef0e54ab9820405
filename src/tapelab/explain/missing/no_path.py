"""Judgement where no path of values leads from the source to the target: why do they not meet?

What is asked first is what is certain: was the source read at all, was the target made while the tape recorded, were
both made of one and the same tensor? Each rule says what it saw; the first that applies answers.
"""

import ast
from collections.abc import Iterator
from typing import Any

from tapelab.explain.ground import expressions, hooks, lines, private
from tapelab.explain.ground.evaluation import MODULES, Evaluation, in_frame
from tapelab.explain.ground.explain_tape import gradients_returned
from tapelab.explain.ground.log import Event, Kind, keys_in, keys_of, ran_before
from tapelab.explain.ground.origins import Origin
from tapelab.explain.missing.cut_path import of_lost_write, unwatched_variable
from tapelab.explain.missing.question import Finding, Question
from tapelab.graphs.walks import reachable

import numpy as np
import tensorflow as tf


def without_path(question: Question) -> Finding:
    """Judge a question between whose source and target no values flow.

    Args:
        question: a `Question`.

    Returns:
        A `Finding`.
    """
    sides = _Sides(question)
    always, if_read = (_statistics, _target_outside, _read_before, _replaced), (_read_unseen, _left, _constant)
    rules = (*always, *(if_read if _reads(question) or not question.is_variable else ()), _unused, _unrelated)
    return next(filter(None, (rule(question, sides) for rule in rules)))


def _reads(question: Question) -> list[Event]:
    """The events that made something of the source that can carry a gradient; setting a variable is none."""
    uses = [event for event in question.flow.uses(question.start) if event.kind is not Kind.CUSTOM]
    return [event for event in uses if not question.is_variable or any(map(question.log.carries, event.outputs))]


class _Sides:
    """What lies on the side of the target and on that of the source.

    Attributes:
        upstream: the nodes from which the target was made.
        downstream: the nodes that were made from the source.
        roots: keys upstream that no operation of the log made and that are values, not handles.
        reads_state: whether the target was made of any variable, too.
    """

    def __init__(self, question: Question):
        flow, log = question.flow, question.log
        self.upstream = flow.upstream(question.goals)
        self.downstream = flow.downstream(question.start)
        keys = [node for node in self.upstream if not isinstance(node, tuple)]
        self.roots = sorted(key for key in keys if not flow.is_made(key) and not log.is_handle(key))
        self.reads_state = any(log.is_handle(key) for key in keys)

    def new_constants(self, question: Question, since: int) -> list[int]:
        """Roots that came into being after a moment while the tape was open, but for numbers written in the source."""
        closed = question.log.closed or float("inf")
        return [key for key in self.roots if since < key < closed and not _is_written_out(question, key)]


def _tensor(question: Question, key: int) -> tf.Tensor:
    """A tensor of the log, or a target."""
    tensor = question.log.tensors.get(key)
    return next(one for one in question.targets if key in keys_of(one)) if tensor is None else tensor


def _value(question: Question, key: int) -> np.ndarray:
    return np.asarray(_tensor(question, key))


def _is_written_out(question: Question, key: int) -> bool:
    """Whether a constant is a number in the line that used it, such as the 2.0 of `2.0 * x`, or an axis or a shape."""
    value = _value(question, key)
    uses = question.flow.uses(key)
    if not uses or value.dtype.kind not in "fc":
        return bool(uses)
    whole = expressions.at(uses[0].place.code, uses[0].place.instruction)
    parts = [part for part, one in expressions.operands(whole, uses[0].inputs) if one == key] if whole else []
    if parts:
        return not any(isinstance(node, ast.Name) and node.id not in MODULES for node in _read_by(parts[0]))
    return value.size == 1 and any(np.isclose(abs(value.item()), one) for one in lines.numbers_in(uses[0].line))


def _read_by(expression: ast.AST) -> Iterator[ast.AST]:
    """The parts of an expression, without those of which only the shape or the length is taken."""
    is_shape = isinstance(expression, ast.Attribute) and expression.attr in ("shape", "size", "ndim", "dtype")
    if not is_shape and expressions.called(expression) != "len":
        yield expression
        for part in ast.iter_child_nodes(expression):
            yield from _read_by(part)


def _statistics(question: Question, sides: _Sides) -> Finding | None:
    """A variable that holds moving statistics: in training they are not even read."""
    finding = unwatched_variable(question, None, {}) if question.is_variable else None
    return finding if finding is not None and finding.code == "moving_statistics" else None


def _target_outside(question: Question, sides: _Sides) -> Finding | None:
    """The target was made when the tape did not record."""
    log, target = question.log, min(question.goals)
    maker = question.flow.producer.get(target)
    if maker is not None:
        return None
    if log.closed is not None and target > log.closed:
        code = "inner_gradient_outside" if target in gradients_returned else "target_after_tape"
        return Finding(code, line=question.origins().made(question.targets[0]))
    if target < log.opened and target != question.start:
        read = question.origins().reading(_tensor(question, target), question.source)
        line = read.line if read else question.origins().made(question.targets[0])
        return Finding("target_before_tape", line=line)
    return None


def _replaced(question: Question, sides: _Sides) -> Finding | None:
    """The source is a tensor that was made later, or made twice, or that nothing uses."""
    if question.is_variable:
        return None
    log, start = question.log, question.start
    maker = question.flow.producer.get(start)
    line = question.was_rebound or (maker.line if maker else None)
    if log.closed is not None and start > log.closed:
        return Finding("source_replaced", line=line)
    twin = _twin(question, sides)
    if twin is not None:
        return Finding("recomputed", line=question.flow.producer[twin].line)
    if maker is not None and not question.flow.uses(start):
        fix = f"# take the gradient with respect to what {question.target_name} was computed from"
        return Finding("source_replaced", "unused", line=line, fix=fix, values={"op": maker.name})
    return None


def _twin(question: Question, sides: _Sides) -> int | None:
    """The key of a tensor upstream of the target that was computed in the same way as the source, or None."""
    producer = question.flow.producer
    if question.start not in producer or producer[question.start].op == "ReadVariableOp":
        return None  # every read of a variable is computed in the same way
    fingerprints = {}

    def fingerprint(key: int) -> Any:
        if key in fingerprints:
            return fingerprints[key]
        is_itself = question.log.is_handle(key) or question.log.tensors[key].shape.num_elements() > 4
        return key if is_itself else _value(question, key).tobytes()

    for event in question.log.events:
        inputs = tuple(map(fingerprint, event.inputs))
        for position, key in enumerate(event.outputs):
            fingerprints.setdefault(key, hash((event.op, position, inputs)))
    alike = (key for key, made in fingerprints.items() if made == fingerprints[question.start])
    return next((key for key in alike if key != question.start and key in sides.upstream), None)


def _left(question: Question, sides: _Sides) -> Finding | None:
    """A value was handed to Python by a method that the hooks see, and came back; or nothing but constants did."""
    for departure in question.log.departures:
        if departure.key not in sides.downstream or departure.how == "__bool__":
            continue
        later = sides.new_constants(question, departure.time)
        came_back = any(_equal(_value(question, departure.key), _value(question, key)) for key in later)
        is_all = set(sides.roots) == {*later, *(key for key in sides.roots if _is_written_out(question, key))}
        if came_back or (later and is_all and not sides.reads_state):
            values = {"how": departure.how.strip("_")}
            return Finding("left_tensorflow", "handed", line=departure.place.line, certain=came_back, values=values)
    return None


def _equal(one: np.ndarray, other: np.ndarray) -> bool:
    if one.dtype.kind not in "fiubc" or other.dtype.kind not in "fiubc" or one.size != other.size:
        return False
    return np.allclose(one.ravel(), other.ravel(), equal_nan=True)


def _constant(question: Question, sides: _Sides) -> Finding | None:
    """The target was computed by a backward pass."""
    made = (question.flow.producer.get(key) for key in sides.upstream)
    backward = [event for event in made if event is not None and event.place.in_backward]
    if not backward or not (question.flow.uses(question.start) or question.start in question.log.on_tape):
        return None
    return Finding("constant_derivative", line=max(backward, key=lambda event: event.index).line)


def _read_unseen(question: Question, sides: _Sides) -> Finding | None:
    """NumPy reads memory unseen. But running what the learner wrote for a constant again shows what it read."""
    for key in sides.new_constants(question, question.log.opened):
        for use in question.flow.uses(key):
            whole = expressions.at(use.place.code, use.place.instruction)
            for part in ast.iter_child_nodes(whole) if whole is not None else ():
                part = part.value if isinstance(part, ast.keyword) else part
                run = _Again(question, use)
                if isinstance(part, ast.expr) and run.gives(part, key):
                    read = [one for one in run.read if one[0] in sides.downstream]
                    if read:
                        what, line = ast.unparse(read[-1][1]), lines.Line(use.line.file, read[-1][1].lineno)
                        return Finding("left_tensorflow", "read", line=line, values={"what": what})
    return None


class _Again:
    """What the learner wrote, run again with the values that the log has from the same code."""

    def __init__(self, question: Question, use: Event):
        self._question, self._use = question, use
        self._known, self._asked = {}, set()
        self.read = []  # (key of a tensor that was read, the expression that read it)
        for event in question.log.events[: use.index]:
            expression = expressions.at(event.place.code, event.place.instruction)
            if event.place.code is use.place.code and expression is not None and event.outputs:
                self._known[ast.unparse(expression)] = event.outputs[0]

    def gives(self, expression: ast.expr, key: int) -> bool:
        """Whether an expression gives the value of a tensor, and read another one for it."""
        try:
            with hooks.deaf(), private.paused():
                found = np.asarray(self._value(expression))
        except Exception:  # whatever it is: it cannot be run again
            return False
        return bool(self.read) and _equal(found, _value(self._question, key))

    def _value(self, expression: ast.expr) -> Any:
        run = Evaluation(self._known, self._question.log.tensors, self._find)
        found = run.value(expression)
        self.read += [(key, expression) for key in run.keys]
        return found

    def _find(self, name: str) -> tuple[int | None, Any]:
        """What a name stands for: what was assigned to it in the same code, else what the learner's frame has."""
        code = self._use.place.code
        if name not in self._asked:
            self._asked.add(name)
            for value in expressions.assigned_in(code, name, self._use.line.number):
                key = self._known.get(ast.unparse(value))
                return (key, None) if key is not None else (None, self._value(value))
        value = in_frame(name, self._question.frame, code)
        key = private.key(value) if tf.is_tensor(value) else None
        return (key, None) if key in self._question.log.tensors else (None, value)


def _read_before(question: Question, sides: _Sides) -> Finding | None:
    """The source was read before the tape opened, and the target was made of what came of that."""
    log = question.log
    old = [key for key in sides.roots if key < log.opened and _tensor(question, key).dtype.is_floating]
    line = next(filter(None, (_by_an_earlier_tape(question.start, key) for key in old)), None)
    if line is not None:
        return _made_before(Origin(line, ""))
    if _reads(question) or (question.start > log.opened and not question.is_variable):
        return None
    read = (question.origins().reading(_tensor(question, key), question.source) for key in old)
    if (origin := next(filter(None, read), None)) is not None:
        return _made_before(origin)
    seen = {event.line for event in log.events}
    for event in log.events if old else ():
        call = expressions.at(event.place.code, event.place.instruction)
        if call is not None and not set(old).isdisjoint(event.inputs):
            origin = question.origins().read_for(call, event.place.code, question.source)
            if origin is not None and origin.line not in seen:
                return _made_before(origin)
    if any(event.op.startswith("Iterator") and not sides.upstream.isdisjoint(event.outputs) for event in log.events):
        origin = question.origins().read_by_datasets(question.source)
        if origin is not None:
            return Finding("left_tensorflow", "dataset", line=origin.line)
    origin = question.origins().read_once(question.source) if question.is_variable else None
    if origin is not None:
        return _made_before(origin)
    if not old or sides.reads_state:
        return None
    made = next((event for event in log.events if not set(old).isdisjoint(event.inputs)), None)
    return Finding("target_before_tape", "made_of_older", line=made.line if made else None, certain=False)


def _made_before(origin: Origin) -> Finding:
    line, function = origin
    if function in ("__init__", "build"):
        fix = f"# move this from {function}(), which runs once, to what the tape sees, such as call()"
        return Finding("target_before_tape", "read_before", line=line, fix=fix, values={"when": f", in {function}()"})
    return Finding("target_before_tape", "read_before", line=line, values={"when": ""})


def _by_an_earlier_tape(start: int, key: int) -> lines.Line | None:
    """The line by which an earlier tape saw a tensor being made of a source; None where none did."""
    for made in ran_before:
        if key in made and start in reachable([key], lambda one, made=made: made.get(one, ((), None))[0]):
            return made[key][1]
    return None


def _unused(question: Question, sides: _Sides) -> Finding | None:
    """A variable that was not read while the tape was recording."""
    if not question.is_variable or _reads(question):
        return None
    log = question.log
    made_inside = any(log.opened < key < (log.closed or np.inf) for key in sides.roots)
    if made_inside and isinstance(question.watched_variable, tf.distribute.DistributedValues):
        return Finding("other_thread")
    calls = [event for event in log.events if event.index in log.python_calls_of]
    hidden = any(event.kind is Kind.FUNCTION and not sides.upstream.isdisjoint(event.outputs) for event in calls)
    more = " Or a tf.py_function inside a tf.function read it, which is out of sight." if hidden else ""
    line = question.origins().made(question.source)
    return Finding("unused_variable", line=line, certain=not hidden, values={"more": more})


def _unrelated(question: Question, sides: _Sides) -> Finding:
    """Nothing else applies: say where what was made of the source ends."""
    log, flow = question.log, question.flow
    for model in question.origins().models():
        with hooks.deaf(), private.paused():
            kept = [key for key in keys_in(model.losses) if key in sides.downstream]
        if kept:
            name, maker = lines.name_in(question.frame, model) or "model", flow.producer.get(kept[-1])
            fix = f"{question.target_name} = {question.target_name} + sum({name}.losses)"
            line = maker.line if maker else None
            return Finding("unrelated", "kept_loss", line=line, fix=fix, values={"model": name})
    called = [one.place.function for one in log.events if not sides.upstream.isdisjoint(one.outputs)]
    lost = next((lost for one in called if one is not None and (lost := of_lost_write(one.graph))), None)
    if lost is not None:
        return lost
    branch = next((one for one in log.departures if one.key in sides.downstream and one.how == "__bool__"), None)
    if branch is not None:
        more = f" {question.source_name} only decided which branch of Python code ran."
        return Finding("unrelated", line=branch.place.line, values={"more": more})
    made = [flow.producer[one] for one in sides.downstream if one in flow.producer and not flow.uses(one)]
    ends = max((event for event in made if event.line), key=lambda event: event.index, default=None)
    if ends is None:
        return Finding("unrelated", "" if question.is_variable else "unused", values={"more": ""})
    unseen = sides.new_constants(question, max(ends.outputs))
    more = f" What was made of it ends with {ends.name}, whose result nothing in the log used."
    more += " Unless NumPy read it, which is not seen: stay in TensorFlow there." if unseen else ""
    return Finding("unrelated", line=ends.line, certain=not unseen, values={"more": more})
