"""Judgement inside a `tf.function` while it is traced: no value is there yet, but the graph so far, and its lines.

What the tape returns is asked first: for which sources it is None. Then a copy of the graph is searched for the way
from each of these to the target, as the body of a compiled function is, with the operations' own lines.
"""

from collections.abc import Sequence
from typing import Any

from tapelab.explain.ground import lines
from tapelab.explain.ground.lines import Line
from tapelab.explain.missing.cut_path import unwatched_variable, wrong_dtype
from tapelab.explain.missing.inside_functions import Body, Cut, cost_of
from tapelab.explain.missing.question import Question
from tapelab.explain.missing.verdict import Finding

import tensorflow as tf


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
        return Finding("unused_variable" if unread else "unrelated", values={"more": ""})
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


def _first_use(tensor: tf.Tensor) -> Line | None:
    """The learner's `Line` that first used a tensor of a graph, or None."""
    uses = [lines.first_own(one.traceback) for one in tensor.consumers()]
    return next((line for line in uses if line is not None), None)
