"""Judgement where values flow from the source to the target: does the gradient flow back, or where is it cut?"""

import ast
from collections.abc import Iterable, Mapping
from typing import Any

from tapelab.explain.causes import CAUSES
from tapelab.explain.ground import expressions, lines
from tapelab.explain.ground.expressions import called
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.log import Unrecorded, can_carry
from tapelab.explain.missing.inside_functions import Cut
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
        made = next((step.event for step in path if can_carry(question.log.tensors[step.end].dtype)), None)
        if made is not None and made.op not in ("Cast", "StringToNumber"):  # where a float in its place would not do
            fix = f"# no small step of {name} exists: take the gradient with respect to what {made.name} gives"
        return Finding("source_dtype", line=made and made.line, path=path, fix=fix, values={"dtype": dtype})
    target, maker = question.targets[0], question.flow.producer.get(min(question.goals))
    line = maker.line if maker else None
    return Finding("target_dtype", line=line, path=path, values={"dtype": target.dtype.name})


def _at_source(question: Question, steps: tuple[Step, ...], cuts: tuple[Cut, ...]) -> Finding | None:
    """The `Finding` where the trouble lies with the source itself, else None."""
    log, start, source = question.log, question.start, question.source_name
    first_line = steps[0].event.line
    rest = {"cuts": (), "further": cuts, "path": steps}
    erased = any(cut.code == "tape_reset" for cut in cuts)
    if start in log.on_tape:
        first = next((step for step in steps if step.cuts or step.off_tape is not None), None)
        is_late = first is not None and not first.cuts and first.off_tape is Unrecorded.UNWATCHED and not erased
        return (
            Finding("watched_late", line=first.event.line, values={"op": first.event.name}, **rest) if is_late else None
        )
    if start in log.ever_watched and log.resets and not erased:
        return Finding("watch_reset", line=first_line, **rest)
    if erased or any(cut.code == "recording_stopped" for cut in cuts[:1]):
        return None
    if question.is_variable:
        if type(question.source).__name__ == "_UnreadVariable":  # which says that it is trainable, whatever it is
            made = question.origins().made(question.source)
            line = made if made and "assign" in made.text else first_line
            fix = f"tape.watch({source})  # before it is used; or leave '{source} =' before assign out"
            return Finding("not_watched", "assigned", line=line, fix=fix, **rest)
        return unwatched_variable(question, first_line, rest)
    maker = question.flow.producer.get(start)
    if maker is not None and maker.unrecorded is Unrecorded.PAUSED:
        return Finding("recording_stopped", "source", line=maker.line, values={"op": maker.name}, **rest)
    if question.was_rebound:
        return Finding("source_replaced", "rebound", line=question.was_rebound, certain=False, **rest)
    fix = f"tape.watch({source})  # directly below the line that makes it" if maker is not None else ""
    return Finding("not_watched", line=first_line, fix=fix, **rest)


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
    step = next(step for step in steps if first in step.cuts)
    made = question.log.tensors.get(step.end)
    dtype = made.dtype.name if made is not None and first.op == step.event.name else "integers"
    frontier = question.flow.frontier(question.start, question.goals)
    at_first = dict.fromkeys(step.cuts[0] for step in frontier)
    same = sum(cut.code == first.code for cut in at_first)
    every = "The only path" if len(at_first) <= 1 else f"Each of the {len(at_first)} paths"
    values, seen, more = {"every": every, "dtype": dtype}, "", ""
    if first.code == "stop_gradient" and same < len(at_first):
        others = ", ".join(sorted({CAUSES[cut.code].title for cut in at_first if cut.code != first.code}))
        values, seen = {"same": same, "count": len(at_first), "others": others}, "not_alone"
    elif first.code != "stop_gradient" and len(at_first) > 1:
        more = f" {len(at_first)} places cut all paths."
    others = tuple(cut for cut in at_first if cut != first)
    rest = {"cuts": (first, *others), "further": cuts[1:], "path": steps}
    if first.code == "not_differentiable" and step.event.place.in_backward:  # a comparison that chooses between slopes
        return Finding("constant_derivative", line=first.line, **rest)
    return Finding(first.code, seen, line=first.line, values=values, more=more, **rest)


def first_line_of(error: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def of_lost_write(graph: tf.Graph) -> Finding | None:
    """The `Finding` of a TensorArray's write in a graph whose result nothing uses, or None."""
    for operation in everything(graph.get_operations()):
        kept = getattr(operation.graph, "outputs", ())
        is_write = operation.type == "TensorListSetItem" and not operation.outputs[0].consumers()
        if is_write and all(one is not operation.outputs[0] for one in kept):
            line = lines.first_own(operation.traceback)
            calls = expressions.covering(line, ast.Call) if line else ()
            write = next((one for one in calls if called(one) == "write"), None)
            fix = f"{ast.unparse(write.func.value)} = {ast.unparse(write)}  # keep what it returns" if write else ""
            return Finding("unrelated", "lost_write", line=line, fix=fix)
    return None
