"""`explain` and `gradient_or_explain`: the judgement, and its check against the tape.

First the log is asked whether a path leads from the source to the target along which every operation was recorded and
passes a gradient. Then the tape is asked for the gradient. Only where the two agree is a cause named. The values of
gradients that exist are judged by `tapelab.explain.values.study`.
"""

import sys
import types
from collections.abc import Sequence
from typing import Any

from tapelab.explain.causes import CAUSES
from tapelab.explain.explanation import Explanation, Explanations, with_value
from tapelab.explain.ground import expressions, lines
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.log import can_carry, keys_of
from tapelab.explain.missing.cut_path import along_path
from tapelab.explain.missing.no_path import without_path
from tapelab.explain.missing.paths import Flow
from tapelab.explain.missing.question import Question, name_of, named_sources
from tapelab.explain.missing.verdict import Finding
from tapelab.explain.missing.while_tracing import is_traced, judged_while_tracing
from tapelab.explain.values.study import ValueFinding, study

import tensorflow as tf


class NoGradientError(ValueError):
    """Some gradient does not exist. Its `explanation` is an `Explanation`, or `Explanations` for a structure."""

    def __init__(self, explanation):
        super().__init__(str(explanation))
        self.explanation = explanation


def explain(tape: tf.GradientTape, target: Any, source: Any) -> Explanation | Explanations:
    """Say whether a gradient exists and, if not, why not; if it does, whether its value is healthy, and if not, why.

    The tape is not used up by this, and may be one that already is. Nothing is recorded.

    Args:
        tape: an `ExplainTape`. Of anything else the answer is that it cannot be explained, and what to do.
        target: a tensor, or a structure of tensors: their gradients add up.
        source: a tensor or variable, or a structure of them.

    Returns:
        An `Explanation`; for a structure of sources, `Explanations`, one for each by name.
    """
    return _explain(tape, target, source, sys._getframe(1))


def gradient_or_explain(tape: tf.GradientTape, target: Any, sources: Any) -> Any:
    """Return the gradient, as `tape.gradient` does, or raise an error that says why there is none.

    Args:
        tape: an `ExplainTape`; a `tf.GradientTape` gives gradients but no explanations.
        target: a tensor, or a structure of tensors.
        sources: a tensor or variable, or a structure of them.

    Returns:
        The gradients, in the structure of the sources.

    Raises:
        NoGradientError: if a gradient is None or could not be computed. It carries the explanation.
    """
    frame = sys._getframe(1)
    try:
        gradients = tape.gradient(target, sources)
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        explanation = _explain(tape, target, sources, frame)
        if explanation:
            raise  # the gradient exists: what went wrong is something else
        raise NoGradientError(explanation) from error
    if any(gradient is None for gradient in tf.nest.flatten(gradients)):
        raise NoGradientError(_explain(tape, target, sources, frame))
    return gradients


def _explain(tape, target, source, frame):
    asked = questions(tape, target, source, frame)
    answers = list(zip((question.source_name for question in asked), judged(asked), strict=True))
    return Explanations(answers) if tf.nest.is_nested(source) else answers[0][1]


def judged(asked: Sequence[Question]) -> list[Explanation]:
    """Answer questions about one target, with one replay for all gradients that exist.

    Args:
        asked: a list of `Question`, as `questions` returns it.

    Returns:
        A list of `Explanation`.
    """
    found = find_all(asked)
    existing = [
        (question, gradient) for question, (finding, gradient) in zip(asked, found, strict=True) if _has_value(finding)
    ]
    values = iter(_studied(existing))
    return [
        _as_explanation(question, finding, next(values) if _has_value(finding) else None)
        for question, (finding, _) in zip(asked, found, strict=True)
    ]


def _has_value(finding):
    return finding.exists and finding.code != "inside_function"


def _studied(existing):
    """The `ValueFinding` of each (question, gradient), in order."""
    if not existing:
        return []
    first = existing[0][0]
    names = [first.target_name, *(question.source_name for question, _ in existing)]
    sources, gradients = [question.source for question, _ in existing], [gradient for _, gradient in existing]
    try:
        return study(first.tape, list(first.targets), sources, names, gradients)
    except Exception as error:  # whatever it is: that the gradient exists stays true
        sentence = f"Looking at the values of the backward pass raised {type(error).__name__}: {error}"
        return [ValueFinding("fine", None, "unexplained", sentence, certain=False)] * len(existing)


def questions(tape: tf.GradientTape, target: Any, source: Any, frame: types.FrameType) -> list[Question]:
    """Return a list of `Question`, one for each source in a structure.

    Args:
        tape, target, source: as `explain` takes them, in this order.
        frame: that of the call of `explain` or `draw`, which knows what the learner calls them.
    """
    targets = tuple(tf.nest.flatten(target))
    goals = {key for one in targets if tf.is_tensor(one) and _is_eager(one) for key in keys_of(one)}
    flow = Flow(tape.log, goals) if isinstance(tape, ExplainTape) else None
    own = lines.own_frame(frame)
    call = expressions.arguments(frame) if own is frame else None
    target_name = name_of(target, own, expressions.argument(call, 1, ("target",)), "target")
    named = named_sources(source, own, expressions.argument(call, 2, ("source", "sources")))
    return [Question(tape, flow, targets, one, target_name, name, own) for name, one in named]


def find_all(asked: Sequence[Question]) -> list[tuple[Finding, Any]]:
    """Return (`Finding`, gradient or None) for each of a list of questions about one target."""
    if asked and isinstance(asked[0].tape, ExplainTape) and asked[0].tape.in_function:
        return _found_while_tracing(asked)
    found = [_not_a_question(question) or _cannot_see(question) or _variable_target(question) for question in asked]
    open_ones = [question for question, finding in zip(asked, found, strict=True) if finding is None]
    gradients = iter(_gradients(open_ones))
    return [
        (finding, None) if finding else _checked(question, next(gradients))
        for question, finding in zip(asked, found, strict=True)
    ]


def _found_while_tracing(asked):
    """As `find_all`, of a tape that was opened inside a tf.function."""
    found = [_not_a_question(question) or _variable_target(question) for question in asked]
    open_ones = [question for question, finding in zip(asked, found, strict=True) if finding is None]
    if open_ones and not is_traced(open_ones[0]):
        return [(finding or Finding("inside_function", exists=None), None) for finding in found]
    gradients = _gradients(open_ones)
    judged_ones = iter(zip(judged_while_tracing(open_ones, gradients), gradients, strict=True))
    return [(finding, None) if finding else next(judged_ones) for finding in found]


def answers_to_show(
    tape: ExplainTape, target: Any, sources: Any, frame: types.FrameType, purpose: str
) -> tuple[list[Question], list[tuple[Finding, Any]]]:
    """Return the questions and what `find_all` says of them, for whoever shows the record itself.

    Args:
        frame: of the learner's call.
        purpose: what was to be done with the record, such as "draw", for the message.

    Raises:
        TypeError: if `tape` is not an `ExplainTape`.
        ValueError: if there are no sources, or the record holds nothing about one of them.
    """
    if not isinstance(tape, ExplainTape):
        raise TypeError(f"tape is a {type(tape).__name__}; expected an ExplainTape, used in place of tf.GradientTape")
    if tape.in_function:
        raise ValueError(f"there is nothing to {purpose}. {CAUSES['inside_function'].sentence}")
    asked = questions(tape, target, sources, frame)
    if not asked:
        raise ValueError("sources is empty; expected at least one tensor or variable")
    answers = find_all(asked)
    for question, (finding, _) in zip(asked, answers, strict=True):
        sentence, _ = _said(question, finding)
        if finding.exists is None or finding.code in ("wrong_type", "keras_tensor", "not_opened", "target_is_variable"):
            raise ValueError(f"there is nothing to {purpose}. {sentence} See explain(tape, target, source).")
    return asked, answers


def _gradients(asked):
    """What the tape returns for each source, in one backward pass; the exception where it raises."""
    if not asked:
        return []
    tape, targets = asked[0].tape, list(asked[0].targets)
    try:
        return tape.result_for(targets, [question.source for question in asked])
    except Exception:
        return [_gradient(question) for question in asked]  # one source may have a gradient where another raises


def _gradient(question):
    try:
        return question.tape.result_for(list(question.targets), question.source)
    except Exception as error:
        return error


def _not_a_question(question):
    """The `Finding` where source or target is no tensor at all, else None."""
    for name, values in ((question.source_name, (question.source,)), (question.target_name, question.targets)):
        for value in values:
            kind = type(value).__name__
            if kind == "KerasTensor":
                return Finding("keras_tensor", values={"name": name})
            if not tf.is_tensor(value) and not hasattr(value, "handle"):
                said = {"name": name, "type": kind, "expected": "a tensor or variable"}
                if values is not question.targets:
                    return Finding("wrong_type", values=said)
                fix = f"# compute {name} with TensorFlow's operations: no float(), .numpy() or np. on the way"
                return Finding("wrong_type", fix=fix, values=said | {"expected": "a tensor"})
    return None


def _cannot_see(question):
    """The `Finding` where there is no log to read, else None."""
    tape = question.tape
    if not isinstance(tape, ExplainTape):
        return Finding("plain_tape", exists=None, values={"type": type(tape).__name__})
    if not tf.executing_eagerly():
        return Finding("inside_function", exists=None)
    if tape.blind or tape.log.failure:
        return Finding("blind", exists=None, values={"why": tape.blind or tape.log.failure})
    if tape.log.opened is None:
        return Finding("not_opened")
    symbolic = [value for value in (question.source, *question.targets) if not _is_eager(value)]
    if symbolic:
        sentence = f"{symbolic[0].name} is a tensor of a graph, not a value."
        return Finding("inside_function", sentence, exists=None)
    return None


def _is_eager(value):
    return hasattr(value, "handle") or not tf.is_symbolic_tensor(value)


def _variable_target(question):
    return Finding("target_is_variable") if any(hasattr(one, "handle") for one in question.targets) else None


def _checked(question, gradient):
    """The `Finding` after the judgement was held against the tape's own result, and this result."""
    finding = _dtypes(question) or _judged(question)
    if isinstance(gradient, (LookupError, tf.errors.UnknownError)):  # the latter where a tf.py_function's code raises
        return _missing_registration(question, finding, gradient), None
    if isinstance(gradient, Exception):
        return _not_computed(gradient), None
    if finding.exists == (gradient is None):
        says, returned = ("a gradient", "None") if finding.exists else ("none", "a gradient")
        exists = None if gradient is None else True
        return Finding("unknown", exists=exists, values={"says": says, "returned": returned}), gradient
    if gradient is None:
        return finding, None
    tape = question.tape
    asked = (next(iter(question.goals)), question.start) in tape.asked
    if tape.spent and (tape.refused or not asked):
        return Finding("used_up", line=tape.spent_line, path=finding.path), gradient
    return finding.with_remarks(_remarks(question, finding, gradient)), gradient


def _dtypes(question):
    """The `Finding` where the source or every target has no dtype for gradients, else None."""
    if not can_carry(tf.as_dtype(question.source.dtype)):
        dtype = tf.as_dtype(question.source.dtype).name
        name = question.source_name
        fix = f"{name} = tf.strings.to_number({name})  # above tape.watch" if dtype == "string" else ""
        return Finding("source_dtype", path=_path(question), fix=fix, values={"dtype": dtype})
    if not any(can_carry(target.dtype) for target in question.targets):
        dtype, maker = question.targets[0].dtype.name, question.flow.producer.get(min(question.goals))
        line = maker.line if maker else None
        return Finding("target_dtype", line=line, path=_path(question), values={"dtype": dtype})
    return None


def _path(question):
    return tuple(question.flow.cheapest(question.start, question.goals) or ())


def _judged(question):
    path = question.flow.cheapest(question.start, question.goals)
    return without_path(question) if path is None else along_path(question, path)


def _missing_registration(question, finding, error):
    """The tape raised LookupError, whether or not the operation without a gradient lies on a path to this source."""
    for cut in (*finding.cuts, *finding.further):
        if cut.code == "no_gradient_registered":
            return finding if finding.code == cut.code else _lookup_error(cut)
    on_the_way = question.flow.upstream(question.goals)
    for event in question.log.events:
        if any(key in on_the_way for key in event.outputs):
            for position in range(len(event.inputs)):
                for cut in question.flow.cuts_of(event, position):
                    if cut.code == "no_gradient_registered":
                        return _lookup_error(cut)
    return _not_computed(error)


def _not_computed(error):
    sentence = f"Computing the gradient raised {type(error).__name__}: {str(error).splitlines()[0]}"
    return Finding("unknown", sentence, exists=None)


def _lookup_error(cut):
    return Finding("no_gradient_registered", line=cut.line, cuts=(cut,))


def _remarks(question, finding, gradient):
    if question.is_variable and question.watched_variable.trainable and not question.source.trainable:
        yield "frozen_layer"
    if any(step.event.index in question.log.python_calls_of for step in finding.path):
        yield "py_function"
    if isinstance(gradient, tf.IndexedSlices):
        yield "indexed_slices"


def _said(question, finding):
    """The sentence and the fix of a finding, in the learner's words."""
    names = {
        "source": question.source_name,
        "target": question.target_name,
        "op": finding.cuts[0].op if finding.cuts else "the operation",
        # tape.watch does not take a Keras variable, but takes its value.
        "watchable": question.source_name + (".value" if hasattr(question.source, "path") else ""),
    }
    names |= finding.values
    cause = CAUSES[finding.code]
    fix = finding.fix or ("" if finding.exists else cause.fix.format(**names))
    return finding.sentence or cause.sentence.format(**names), fix


def _as_explanation(question, finding, value):
    """Put a finding, and the `ValueFinding` of a gradient that exists, into the learner's words."""
    sentence, fix = _said(question, finding)
    explanation = Explanation(
        exists=finding.exists,
        code=finding.code,
        sentence=sentence,
        source=question.source_name,
        target=question.target_name,
        line=finding.line,
        certain=finding.certain,
        fix=fix,
        cuts=finding.cuts,
        further=finding.further,
        remarks=finding.remarks,
    )
    return explanation if value is None else with_value(explanation, value)
