"""Judgement where values flow from the source to the target: does the gradient flow back, or where is it cut?"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tapelab.explain.causes import CAUSES
from tapelab.explain.ground import lines
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.log import Unrecorded, can_carry
from tapelab.explain.missing.inside_functions import Body, Cut, cost_of
from tapelab.explain.missing.paths import Step
from tapelab.explain.missing.question import Finding, Question
from tapelab.graphs.program import everything

import tensorflow as tf

_STATISTICS = ("moving_mean", "moving_variance")


def along_path(question: Question, path: Iterable[Step]) -> Finding:
    """Judge a path with as few cuts as possible.

    Args:
        question: a `Question`.
        path: a list of `Step`, as `Flow.cheapest` returns it.

    Returns:
        A `Finding`; its `exists` is True where nothing stands in the gradient's way.
    """
    steps = tuple(path)
    cuts = tuple(cut for step in steps for cut in step.cuts)
    # A tape returns 1 for the gradient of a tensor with respect to itself, watched or not.
    finding = _at_source(question, steps, cuts) if steps else None
    if finding is not None:
        return finding
    if cuts:
        return _at_cut(question, steps, cuts)
    return Finding("exists", exists=True, path=steps)


def wrong_dtype(question: Question) -> Finding | None:
    """The `Finding` where the source or every target has no dtype for gradients, else None."""
    dtype, name = tf.as_dtype(question.source.dtype).name, question.source_name
    if can_carry(tf.as_dtype(dtype)) and any(can_carry(target.dtype) for target in question.targets):
        return None
    path = tuple(question.flow.cheapest(question.start, question.goals) or ())
    if not can_carry(tf.as_dtype(dtype)):
        fix = f"{name} = tf.strings.to_number({name})  # above tape.watch" if dtype == "string" else ""
        return Finding("source_dtype", path=path, fix=fix, values={"dtype": dtype})
    target, maker = question.targets[0], question.flow.producer.get(min(question.goals))
    line = maker.line if maker else None
    if tf.is_symbolic_tensor(target):
        line = lines.first_own(target.op.traceback)
    return Finding("target_dtype", line=line, path=path, values={"dtype": target.dtype.name})


def _at_source(question: Question, steps: tuple[Step, ...], cuts: tuple[Cut, ...]) -> Finding | None:
    """The `Finding` where the trouble lies with the source itself, else None."""
    log, start, source = question.log, question.start, question.source_name
    first_line = steps[0].event.line
    rest = {"cuts": (), "further": cuts, "path": steps}
    erased = any(cut.code == "tape_reset" for cut in cuts)
    if start in log.on_tape:
        return None if erased else _at_source_on_tape(steps, cuts, rest)
    if start in log.ever_watched and log.resets and not erased:
        return Finding("watch_reset", line=first_line, **rest)
    if erased or any(cut.code == "recording_stopped" for cut in cuts[:1]):
        return None
    if question.is_variable:
        return unwatched_variable(question, first_line, rest)
    maker = question.flow.producer.get(start)
    if maker is not None and maker.unrecorded is Unrecorded.PAUSED:
        return Finding("recording_stopped", "source", line=maker.line, values={"op": maker.name}, **rest)
    if question.was_rebound:
        return Finding("source_replaced", "rebound", line=question.was_rebound, certain=False, **rest)
    fix = f"tape.watch({source})  # directly below the line that makes it" if maker is not None else ""
    return Finding("not_watched", line=first_line, fix=fix, **rest)


def _at_source_on_tape(steps: tuple[Step, ...], cuts: tuple[Cut, ...], rest: Mapping[str, Any]) -> Finding | None:
    """The `Finding` where the source is on the tape in the end, but an operation before any cut is not, else None."""
    for step in steps:
        if step.cuts:
            return None
        if step.off_tape is Unrecorded.UNWATCHED:
            return Finding("watched_late", line=step.event.line, values={"op": step.event.name}, **rest)
        if step.off_tape is Unrecorded.SUSPENDED and not cuts:
            values = {"op": step.event.name}
            return Finding("recording_stopped", "suspended", line=step.event.line, values=values, **rest)
        if step.off_tape is not None:
            return None
    return None


def unwatched_variable(question: Question, line: Line | None, rest: Mapping[str, Any]) -> Finding | None:
    """The `Finding` for a variable that the tape does not watch by itself, else None; `rest` are more of its fields."""
    if not question.watched_variable.trainable:
        name = lines.name_of_variable(question.source)
        code = "moving_statistics" if any(word in name for word in _STATISTICS) else "not_trainable"
        return Finding(code, line=line, **rest)
    return None if question.tape.watches_variables else Finding("watching_off", line=line, **rest)


def _at_cut(question: Question, steps: tuple[Step, ...], cuts: tuple[Cut, ...]) -> Finding:
    """The `Finding` for the first cut of a path."""
    first = cuts[0]
    frontier = question.flow.frontier(question.start, question.goals)
    at_first = dict.fromkeys(step.cuts[0] for step in frontier)
    same = sum(cut.code == first.code for cut in at_first)
    every = "The only path" if len(at_first) <= 1 else f"Each of the {len(at_first)} paths"
    values, seen, more = {"every": every, "dtype": _dtype(question, steps, first)}, "", ""
    if first.code == "stop_gradient" and same < len(at_first):
        others = ", ".join(sorted({CAUSES[cut.code].title for cut in at_first if cut.code != first.code}))
        values, seen = {"same": same, "count": len(at_first), "others": others}, "not_alone"
    elif first.code != "stop_gradient" and len(at_first) > 1:
        more = f" {len(at_first)} places cut all paths."
    others = tuple(cut for cut in at_first if cut != first)
    rest = {"cuts": (first, *others), "further": cuts[1:], "path": steps}
    event = next(step.event for step in steps if first in step.cuts)
    if first.code == "not_differentiable" and event.place.in_backward:  # a comparison that chooses between slopes
        return Finding("constant_derivative", line=first.line, **rest)
    return Finding(first.code, seen, line=first.line, values=values, more=more, **rest)


def _dtype(question: Question, steps: tuple[Step, ...], cut: Cut) -> str:
    """The dtype at which a cut by dtype happened, as text."""
    for step in steps:
        if cut in step.cuts:
            key = step.end if cut.code == "cast_to_integer" else step.start
            tensor = question.log.tensors.get(key)
            return "a value without gradients" if tensor is None or cut.op != step.event.name else tensor.dtype.name
    return "an integer"


def is_traced(question: Question) -> bool:
    """Whether a question is about a graph that is being built and can be searched."""
    symbolic = [one for one in question.targets if tf.is_tensor(one) and tf.is_symbolic_tensor(one)]
    here = tf.compat.v1.get_default_graph()
    return bool(symbolic) and hasattr(here, "captures") and all(one.graph is here for one in symbolic)


def judged_while_tracing(asked: Sequence[Question], gradients: Sequence[object]) -> list[Finding]:
    """Judge questions about one target, of which `is_traced` is true.

    Args:
        asked: a list of `Question`.
        gradients: what the tape returned for each: a tensor, None, or the exception that it raised.

    Returns:
        A list of `Finding`.
    """
    ways = None
    found = []
    for question, gradient in zip(asked, gradients, strict=True):
        if isinstance(gradient, Exception):
            values = {"error": first_line_of(gradient)}
            found.append(Finding("inside_function", "raised", exists=None, values=values))
        elif gradient is not None:
            found.append(Finding("inside_function", "exists", exists=True))
        else:
            ways = ways or _Ways(asked)
            found.append(wrong_dtype(question) or _of_none(question, ways))
    return found


def first_line_of(error: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


class _Ways:
    """The ways between sources, what the tape watches, and targets, in a copy of the graph that may be added to."""

    def __init__(self, asked: Sequence[Question]):
        tape, targets = asked[0].tape, asked[0].targets
        self._graph, self._targets = targets[0].graph, targets
        self._told = tape.told
        watched = [self.inside(one) for one in (*self._told, *tape.watched_variables())]
        self._watched = list({one.name: one for one in watched if one is not None}.values())
        sources = [self.inside(question.source) for question in asked]
        self._ends = list({one.name: one for one in (*targets, *sources, *self._watched) if one is not None})
        copy = tf.Graph()
        with copy.as_default():
            tf.graph_util.import_graph_def(self._graph.as_graph_def(), name="")
        copy.inputs = copy.outputs = [copy.get_tensor_by_name(name) for name in self._ends]
        self._body = Body(copy, self._graph)

    def inside(self, source: Any) -> tf.Tensor | None:
        """The tensor by which the graph knows a source: itself, or what stands for it from outside; None for none."""
        outside = source.handle if hasattr(source, "handle") else source
        if getattr(outside, "graph", None) is self._graph:
            return outside
        return next((internal for external, internal in self._graph.captures if external is outside), None)

    def to_target(self, start: tf.Tensor | None) -> tuple[Cut, ...] | None:
        """The cuts on the way with the fewest from a tensor to a target, a tuple; None where no way leads there."""
        routes = [self._route(start, target) for target in self._targets] if start is not None else []
        return min((route for route in routes if route is not None), key=cost_of, default=None)

    def is_on_tape(self, question: Question, start: tf.Tensor | None) -> bool:
        """Whether the tape was told to watch a source, or made it from something that it watches."""
        if any(question.source is one or question.watched_variable is one for one in self._told):
            return True
        return any(one is not start and self._route(one, start) == () for one in self._watched)

    def _route(self, start: tf.Tensor, end: tf.Tensor) -> tuple[Cut, ...] | None:
        return self._body.route(self._ends.index(start.name), self._ends.index(end.name))


def _of_none(question: Question, ways: _Ways) -> Finding:
    """Why a gradient is None."""
    start = ways.inside(question.source)
    cuts = ways.to_target(start)
    if cuts is None:
        unread = start is None and question.is_variable
        lost = None if unread else of_lost_write(question.targets[0].graph)
        return lost or Finding("unused_variable" if unread else "unrelated", values={"more": ""})
    if not ways.is_on_tape(question, start):
        line = _first_use(start)
        found = unwatched_variable(question, line, {"further": cuts}) if question.is_variable else None
        if found is not None or not question.is_variable:
            return found or Finding("not_watched", line=line, further=cuts)
    if not cuts:
        return Finding("inside_function", "state", certain=False)
    first = cuts[0]
    values = {"every": "A path", "dtype": "an integer"}
    return Finding(first.code, line=first.line, cuts=(first,), further=cuts[1:], values=values)


def of_lost_write(graph: tf.Graph) -> Finding | None:
    """The `Finding` of a TensorArray's write in a graph whose result nothing uses, or None."""
    for operation in everything(graph.get_operations()):
        kept = getattr(operation.graph, "outputs", ())
        is_write = operation.type == "TensorListSetItem" and not operation.outputs[0].consumers()
        if is_write and all(one is not operation.outputs[0] for one in kept):
            fix = "losses = losses.write(index, value)  # keep what it returns, under the name of the TensorArray"
            return Finding("unrelated", "lost_write", line=lines.first_own(operation.traceback), fix=fix)
    return None


def _first_use(tensor: tf.Tensor) -> Line | None:
    """The learner's `Line` that first used a tensor of a graph, or None."""
    uses = [lines.first_own(one.traceback) for one in tensor.consumers()]
    return next((line for line in uses if line is not None), None)
