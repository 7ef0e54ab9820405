"""Judgement where no path of values leads from the source to the target: why do they not meet?

Here the answer is about what did not happen, and some of it cannot be known for certain: a NumPy function reads a
tensor's memory without telling anyone. Each rule says what it saw; the first that applies answers.
"""

import re
from collections.abc import Sequence

from tapelab.explain.ground import lines
from tapelab.explain.ground.explain_tape import gradients_returned
from tapelab.explain.ground.log import Event, Kind, keys_of
from tapelab.explain.missing.cut_path import unwatched_variable
from tapelab.explain.missing.question import Question
from tapelab.explain.missing.verdict import Finding

import numpy as np

# Words in a line of source that suggest that a value left TensorFlow there: no constants, names of dtypes or tf.math.
_LEAVING = re.compile(
    r"\bnp\.(?!pi\b|inf\b|nan\b|newaxis\b|float|int|bool)|numpy|(?<!tf\.)\bmath\.(?!pi\b|inf\b|nan\b)"
    r"|\bscipy|\bsklearn|\bpd\.|\.item\(|\bpredict|\bfloat\((?![\"'])|\bint\(|tolist|asarray|\.shape|\.size"
)


def without_path(question: Question) -> Finding:
    """Judge a question between whose source and target no values flow.

    Args:
        question: a `Question`.

    Returns:
        A `Finding`.
    """
    sides = _Sides(question)
    for rule in (_statistics, _target_outside, _replaced, _left, _constant, _copied, _perhaps_left, _before, _unused):
        finding = rule(question, sides)
        if finding is not None:
            return finding
    more = ""
    branch = next((d for d in question.log.departures if d.key in sides.downstream and d.how == "__bool__"), None)
    if branch is not None:
        more = f" {question.source_name} only decided which branch of Python code ran."
    certain = not _constants_after_unused(question, sides)[1]
    if not certain:
        more += " Or a value left TensorFlow unseen, as when a library reads it as a NumPy array."
    line = branch.place.line if branch else None
    return Finding("unrelated", line=line, certain=certain, values={"more": more})


class _Sides:
    """What lies on the side of the target and on that of the source.

    Attributes:
        upstream: the nodes from which the target was made.
        downstream: the nodes that were made from the source.
        roots: keys upstream that no operation of the log made and that are values, not handles.
    """

    def __init__(self, question: Question):
        flow, log = question.flow, question.log
        self.upstream = flow.upstream(question.goals)
        self.downstream = flow.downstream(question.start)
        keys = [node for node in self.upstream if not isinstance(node, tuple)]
        self.roots = sorted(key for key in keys if not flow.is_made(key) and not log.is_handle(key))

    def new_constants(self, question: Question, since: int) -> list[int]:
        """Roots that came into being after a moment while the tape was open, but for numbers written in the source."""
        closed = question.log.closed or float("inf")
        return [key for key in self.roots if since < key < closed and not _is_written_out(question, key)]


def _value(question: Question, key: int) -> np.ndarray:
    """The value of a tensor of the log or of a target, as an array."""
    tensor = question.log.tensors.get(key)
    if tensor is None:
        tensor = next(target for target in question.targets if key in keys_of(target))
    return np.asarray(tensor)


def _is_written_out(question: Question, key: int) -> bool:
    """Whether a constant is a number in the line that used it, such as the 2.0 of `2.0 * x`, or an axis or a shape."""
    value = _value(question, key)
    uses = question.flow.uses(key)
    if value.dtype.kind not in "fc" and uses:
        return True
    if value.size != 1 or not uses:
        return False
    return any(np.isclose(abs(value.item()), number) for number in lines.numbers_in(uses[0].line))


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
        if target in gradients_returned:
            return Finding("inner_gradient_outside")
        return Finding("target_after_tape")
    if target < log.opened and target != question.start:
        return Finding("target_before_tape")
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

    def fingerprint(key: int) -> int:
        if key in fingerprints:
            return fingerprints[key]
        event = producer.get(key)
        if event is not None:
            made = (event.op, event.outputs.index(key), tuple(fingerprint(one) for one in event.inputs))
        elif question.log.is_handle(key) or question.log.tensors[key].shape.num_elements() > 4:
            made = key
        else:
            made = _value(question, key).tobytes()
        fingerprints[key] = hash(made)
        return fingerprints[key]

    # In order of the log, so that the recursion finds the inputs done.
    for event in question.log.events:
        for key in event.outputs:
            fingerprint(key)
    wanted = fingerprint(question.start)
    for event in question.log.events:
        for key in event.outputs:
            if key != question.start and key in sides.upstream and fingerprints[key] == wanted:
                return key
    return None


def _left(question: Question, sides: _Sides) -> Finding | None:
    """A value was handed to Python by a method that the hooks see, and a constant came in afterwards."""
    for departure in question.log.departures:
        if departure.key not in sides.downstream or departure.how == "__bool__":
            continue
        later = sides.new_constants(question, departure.time)
        came_back = [key for key in later if _same_value(question, departure.key, key)]
        if came_back or later:
            line, how = departure.place.line, departure.how.strip("_")
            return Finding("left_tensorflow", "handed", line=line, certain=bool(came_back), values={"how": how})
    return None


def _same_value(question: Question, left: int, returned: int) -> bool:
    before, after = _value(question, left), _value(question, returned)
    if before.dtype.kind not in "fiubc" or after.dtype.kind not in "fiubc":
        return False
    return before.size == after.size and np.allclose(before.ravel(), after.ravel())


def _constant(question: Question, sides: _Sides) -> Finding | None:
    """The target was computed by a backward pass."""
    backward = [
        question.flow.producer[key]
        for key in sides.upstream
        if key in question.flow.producer and question.flow.producer[key].place.in_backward
    ]
    if not backward or not (question.flow.uses(question.start) or question.start in question.log.on_tape):
        return None
    return Finding("constant_derivative", line=max(backward, key=lambda event: event.index).line)


_MADE_BY_NUMPY = {"the sum": np.sum, "the mean": np.mean, "the largest": np.max, "the smallest": np.min}


def _copied(question: Question, sides: _Sides) -> Finding | None:
    """A constant came in that has the numbers of a value that no operation used, or what NumPy makes of them."""
    first, later = _constants_after_unused(question, sides)
    if first is None:
        return None
    left = first.outputs[0]
    before = _value(question, left)
    if before.dtype.kind != "f" or not before.size:
        return None
    for key in later:
        after, what = _value(question, key), None
        if _same_value(question, left, key):
            what = "all its numbers"
        elif after.size == 1 and before.size > 1:
            what = next((name for name, made in _MADE_BY_NUMPY.items() if np.isclose(made(before), after.item())), None)
        if what is not None and after.any():
            uses = question.flow.uses(key)
            line = _suspicious_line(question, first, later) or (uses[0].line if uses else first.line)
            values = {"op": first.name, "what": what}
            return Finding("left_tensorflow", "read", line=line, certain=False, values=values)
    return None


def _constants_after_unused(question: Question, sides: _Sides) -> tuple[Event | None, list[int]]:
    """Find what is left behind where NumPy read a value: a result without use, and constants that came later.

    Returns:
        The first event downstream of the source whose result no operation used, or None; and the keys of new constants.
    """
    flow = question.flow
    unused = [
        flow.producer[node]
        for node in sides.downstream
        if not isinstance(node, tuple) and node in flow.producer and not flow.uses(node)
    ]
    first = min(unused, key=lambda event: event.index, default=None)
    if first is not None:
        return first, sides.new_constants(question, max(first.outputs))
    # A watched tensor that only NumPy read is without use itself.
    if not flow.uses(question.start) and (question.is_variable or question.start in question.log.on_tape):
        return None, sides.new_constants(question, question.log.opened)
    return None, []


def _perhaps_left(question: Question, sides: _Sides) -> Finding | None:
    """As `_constants_after_unused`, and the source text speaks of leaving TensorFlow."""
    first, later = _constants_after_unused(question, sides)
    if not later:
        return None
    line = _suspicious_line(question, first, later)
    return None if line is None else Finding("left_tensorflow", "perhaps", line=line, certain=False)


def _suspicious_line(question: Question, first: Event | None, later: Sequence[int]) -> lines.Line | None:
    """The first line, from the unused result to the use of the constant, whose words suggest leaving TensorFlow."""
    uses = [use.line for key in later for use in question.flow.uses(key) if use.line]
    starts = [first.line] if first and first.line else uses
    files = {line.file for line in (*uses, *starts)}
    if len(files) != 1:
        return next((line for line in (*starts, *uses) if _LEAVING.search(line.text)), None)
    numbers = [line.number for line in (*uses, *starts)]
    if not uses and question.frame is not None:
        numbers.append(question.frame.f_lineno - 1)
    candidates = [lines.Line(next(iter(files)), number) for number in range(min(numbers), max(numbers) + 1)]
    return next((line for line in candidates if _LEAVING.search(line.text)), None)


def _before(question: Question, sides: _Sides) -> Finding | None:
    """The source was not used inside, no variable was, and the target begins with values from before the tape."""
    log, flow = question.log, question.flow
    if flow.uses(question.start):
        return None
    if any(log.is_handle(node) for node in sides.upstream if not isinstance(node, tuple)):
        return None
    old = [key for key in sides.roots if key < log.opened and log.tensors[key].dtype.is_floating]
    if not old or question.start > log.opened:
        return None
    made = [event for event in log.events if any(key in event.inputs for key in old)]
    return Finding("target_before_tape", "made_of_older", line=made[0].line if made else None, certain=False)


def _unused(question: Question, sides: _Sides) -> Finding | None:
    """A variable that was not read while the tape was recording."""
    reads = [event for event in question.flow.uses(question.start) if event.kind is not Kind.CUSTOM]
    if not question.is_variable or reads:
        return None
    calls = [event for event in question.log.events if event.index in question.log.python_calls_of]
    hidden = any(event.kind is Kind.FUNCTION and not sides.upstream.isdisjoint(event.outputs) for event in calls)
    more = " Or a tf.py_function inside a tf.function read it, which is out of sight." if hidden else ""
    return Finding("unused_variable", certain=not hidden, values={"more": more})
