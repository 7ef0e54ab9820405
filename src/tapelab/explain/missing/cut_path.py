"""Judgement where values flow from the source to the target: does the gradient flow back, or where is it cut?"""

from collections.abc import Iterable, Mapping
from typing import Any

from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.log import Unrecorded
from tapelab.explain.missing.causes import CAUSES
from tapelab.explain.missing.paths import Step
from tapelab.explain.missing.question import Question
from tapelab.explain.missing.verdict import Finding

_STATISTICS = ("moving_mean", "moving_variance")

_SENTENCES = {
    "recording_stopped": "{op} ran while recording was stopped, so the tape knows nothing of it.",
    "tape_reset": "The tape was reset after {op} had run, and forgot it.",
    "stop_gradient": "{every} goes through tf.stop_gradient, which lets no gradient back.",
    "left_tensorflow": "The value of {source} leaves TensorFlow's operations at {op}.",
    "cast_to_integer": "On the way from {source} to {target} a value is cast to {dtype}, which carries no gradient.",
    "through_string": "On the way from {source} to {target} {op} makes a string of a value, and text has no gradient.",
    "not_differentiable": "{op} passes no gradient on to what depends on {source}.",
    "no_gradient_registered": "TensorFlow has no gradient for {op}.",
    "custom_gradient_none": "The custom gradient of {op} gives no gradient to what depends on {source}.",
    "python_closure": "tf.py_function passes a gradient to its arguments only, and {source} is used without being one.",
    "state": "The value of {source} is written into a variable or table by {op}, and a write is not recorded.",
}


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
    return Finding("exists", f"{question.target_name} depends on {question.source_name}.", exists=True, path=steps)


def _at_source(question, steps, cuts):
    """The `Finding` where the trouble lies with the source itself, else None."""
    log, start, source = question.log, question.start, question.source_name
    first_line = steps[0].event.line
    rest = {"cuts": (), "further": cuts, "path": steps}
    erased = any(cut.code == "tape_reset" for cut in cuts)
    if start in log.on_tape:
        return None if erased else _at_source_on_tape(source, steps, cuts, rest)
    if start in log.ever_watched and log.resets and not erased:
        return Finding("watch_reset", f"tape.reset() forgot that {source} was watched.", line=first_line, **rest)
    if erased or any(cut.code == "recording_stopped" for cut in cuts[:1]):
        return None
    if question.is_variable:
        return unwatched_variable(question, first_line, rest)
    maker = question.flow.producer.get(start)
    if maker is not None and maker.unrecorded is Unrecorded.PAUSED:
        sentence = f"{source} was computed by {maker.name} while recording was stopped, so the tape does not know it."
        return Finding("recording_stopped", sentence, line=maker.line, **rest)
    if question.was_rebound:
        sentence = (
            f"{source} is a plain tensor now: this line replaced the variable, and the tape watches only variables."
        )
        return Finding("source_replaced", sentence, line=question.was_rebound, certain=False, **rest)
    sentence = f"{source} is a plain tensor that the tape was not told to watch."
    return Finding("not_watched", sentence, line=first_line, **rest)


def _at_source_on_tape(source, steps, cuts, rest):
    """The `Finding` where the source is on the tape in the end, but an operation before any cut is not, else None."""
    for step in steps:
        if step.cuts:
            return None
        if step.off_tape is Unrecorded.UNWATCHED:
            sentence = f"{source} was watched only after {step.event.name} had used it."
            return Finding("watched_late", sentence, line=step.event.line, **rest)
        if step.off_tape is Unrecorded.SUSPENDED and not cuts:
            sentence = f"TensorFlow had suspended all tapes when {step.event.name} ran."
            return Finding("recording_stopped", sentence, line=step.event.line, **rest)
        if step.off_tape is not None:
            return None
    return None


def unwatched_variable(question: Question, line: Line | None, rest: Mapping[str, Any]) -> Finding | None:
    """The `Finding` for a variable that the tape does not watch by itself, else None; `rest` are more of its fields."""
    source, name = question.source, question.source_name
    if not question.watched_variable.trainable:
        if any(word in (getattr(source, "path", None) or source.name) for word in _STATISTICS):
            sentence = f"{name} holds moving statistics, which are assigned to and not trained."
            return Finding("moving_statistics", sentence, line=line, **rest)
        sentence = f"{name} has trainable=False, so the tape does not watch it by itself."
        return Finding("not_trainable", sentence, line=line, **rest)
    if not question.tape.watches_variables:
        sentence = f"The tape has watch_accessed_variables=False and was not told to watch {name}."
        return Finding("watching_off", sentence, line=line, **rest)
    return None


def _at_cut(question, steps, cuts):
    """The `Finding` for the first cut of a path."""
    first = cuts[0]
    frontier = question.flow.frontier(question.start, question.goals)
    at_first = dict.fromkeys(step.cuts[0] for step in frontier)
    same = sum(cut.code == first.code for cut in at_first)
    every = "The only path" if len(at_first) <= 1 else f"Each of the {len(at_first)} paths"
    names = {
        "op": first.op,
        "every": every,
        "source": question.source_name,
        "target": question.target_name,
        "dtype": _dtype(question, steps, first),
    }
    sentence = _SENTENCES[first.code].format(**names)
    if first.code == "stop_gradient" and same < len(at_first):
        others = ", ".join(sorted({CAUSES[cut.code].title for cut in at_first if cut.code != first.code}))
        sentence = f"tf.stop_gradient cuts {same} of {len(at_first)} paths; the others are cut too ({others})."
    elif first.code != "stop_gradient" and len(at_first) > 1:
        sentence += f" {len(at_first)} places cut all paths."
    others = tuple(cut for cut in at_first if cut != first)
    return Finding(first.code, sentence, line=first.line, cuts=(first, *others), further=cuts[1:], path=steps)


def _dtype(question, steps, cut):
    """The dtype at which a cut by dtype happened, as text."""
    for step in steps:
        if cut in step.cuts:
            key = step.end if cut.code == "cast_to_integer" else step.start
            tensor = question.log.tensors.get(key)
            return "a value without gradients" if tensor is None or cut.op != step.event.name else tensor.dtype.name
    return "an integer"
