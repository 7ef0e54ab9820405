"""`explain` and `gradient_or_explain`: why a gradient is None, or what is the matter with its value.

`tapelab.explain.missing.judgement` answers the first, `tapelab.explain.values.study` the second.
"""

import dataclasses
import sys
import types
from collections.abc import Sequence
from typing import Any

from tapelab.explain.causes import CAUSES, VALUES
from tapelab.explain.explanation import Explanation, Explanations
from tapelab.explain.ground import lines
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.missing.judgement import find_all, said
from tapelab.explain.missing.question import Finding, Question, questions
from tapelab.explain.values.study import study

import tensorflow as tf

# What an explanation has as the judgement found it.
_AS_FOUND = ("exists", "code", "line", "certain", "cuts", "further", "remarks")
# What tape.watch cures: all that ran is recorded then.
_UNWATCHED = frozenset({"not_watched", "not_trainable", "watching_off", "watched_late"})


class NoGradientError(ValueError):
    """Some gradient does not exist. Its `explanation` is an `Explanation`, or `Explanations` for a structure."""

    def __init__(self, explanation: Explanation | Explanations):
        super().__init__(str(explanation))
        self.explanation = explanation


@tf.autograph.experimental.do_not_convert
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
    return _explain(tape, target, source, lines.caller(sys._getframe(1)))


@tf.autograph.experimental.do_not_convert
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
    frame = lines.caller(sys._getframe(1))
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


def _explain(tape: tf.GradientTape, target: Any, source: Any, frame: types.FrameType) -> Explanation | Explanations:
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


def _has_value(finding: Finding) -> bool | None:
    return finding.exists and finding.code != "inside_function"


def _studied(existing: Sequence[tuple[Question, Any]]) -> list[Explanation]:
    """What there is to say of the value of each (question, gradient), in order."""
    if not existing:
        return []
    first = existing[0][0]
    names = [first.target_name, *(question.source_name for question, _ in existing)]
    sources, gradients = [question.source for question, _ in existing], [gradient for _, gradient in existing]
    try:
        return study(first.tape, list(first.targets), sources, names, gradients, first.frame)[1]
    except Exception as error:  # whatever it is: that the gradient exists stays true
        sentence = f"Looking at the values of the backward pass raised {type(error).__name__}: {error}"
        unknown = Explanation(True, "unexplained", sentence, certain=False, symptom="fine")
        return [dataclasses.replace(unknown, source=one.source_name, target=one.target_name) for one, _ in existing]


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
    answers = find_all(asked, with_paths=True)
    for question, (finding, _) in zip(asked, answers, strict=True):
        sentence, _ = said(question, finding)
        if finding.exists is None or finding.code in ("wrong_type", "keras_tensor", "not_opened", "target_is_variable"):
            raise ValueError(f"there is nothing to {purpose}. {sentence} See explain(tape, target, source).")
    return asked, answers


def _as_explanation(question: Question, finding: Finding, value: Explanation | None) -> Explanation:
    """Put a finding into the learner's words, with what there is to say of the value where the gradient exists."""
    sentence, fix = said(question, finding)
    if value is None:
        taken: dict[str, Any] = {name: getattr(finding, name) for name in _AS_FOUND}
        taken |= {"source": question.source_name, "target": question.target_name}
        # The tape was asked without being used up; and with the source watched nothing stands in the path's way.
        # A list of sources, by which one is called "sources[0]", is often made below the tape.
        is_watched = finding.code in _UNWATCHED and not finding.further and "[" not in question.source_name
        tried = "works" if is_watched or finding.code == "used_up" else "untried"
        return Explanation(sentence=sentence, fix=fix, tried=tried, **taken)
    if finding.code == "target_dtype":  # zeros in place of None, for a value that an operation gives besides others
        value = dataclasses.replace(value, code=finding.code, sentence=sentence, line=finding.line, fix=fix)
    is_noted = bool(set(value.remarks) & set(VALUES))  # about some of the elements, and where they lost their gradient
    if value.code == "exists":
        value = dataclasses.replace(value, code=finding.code, sentence=value.sentence if is_noted else sentence)
        value = value if is_noted else dataclasses.replace(value, line=finding.line)
    return value.without_values(remarks=(*finding.remarks, *value.remarks))
