"""Why a gradient is None: the judgement, held against what the tape returns.

First the log is asked whether a path leads from the source to the target along which every operation was recorded and
passes a gradient. Then the tape is asked for the gradient. Only where the two agree is a cause named.
"""

import dataclasses
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tapelab.explain.causes import CAUSES
from tapelab.explain.ground import lines
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.log import Kind, Log
from tapelab.explain.ground.measure import Gradient
from tapelab.explain.missing.cut_path import along_path, first_line_of, wrong_dtype
from tapelab.explain.missing.no_path import without_path
from tapelab.explain.missing.question import Finding, Question, is_eager

import tensorflow as tf


def find_all(asked: Sequence[Question], with_paths: bool = False) -> list[tuple[Finding, Any]]:
    """Return (`Finding`, gradient or None) for each of a list of questions about one target.

    Args:
        asked: a list of `Question`.
        with_paths: whether the path is looked for where the tape has a gradient, too.
    """
    traced = bool(asked) and isinstance(asked[0].tape, ExplainTape) and asked[0].tape.in_function
    unseen = (lambda question: None) if traced else _cannot_see
    found = [_not_a_question(question) or unseen(question) or _variable_target(question) for question in asked]
    open_ones = [question for question, finding in zip(asked, found, strict=True) if finding is None]
    pairs = zip(open_ones, _gradients(open_ones), strict=True)
    judged_ones = (_while_tracing(one) if traced else _checked(question, one, with_paths) for question, one in pairs)
    return [(finding, None) if finding else next(judged_ones) for finding in found]


def _while_tracing(gradient: Any) -> tuple[Finding, Any]:
    """The `Finding` inside a tf.function: the tape tells whether there is a gradient, and no log why."""
    if isinstance(gradient, Exception):
        return Finding("inside_function", "raised", exists=None, values={"error": first_line_of(gradient)}), None
    is_there = gradient is not None
    return Finding("inside_function", "exists" if is_there else "", exists=is_there), gradient


def _gradients(asked: Sequence[Question]) -> list[Any]:
    """What the tape returns for each source, in one backward pass; the exception where it raises."""
    if not asked:
        return []
    tape, targets = asked[0].tape, list(asked[0].targets)
    try:
        return tape.result_for(targets, [question.source for question in asked])
    except Exception:
        return [_gradient(question) for question in asked]  # one source may have a gradient where another raises


def _gradient(question: Question) -> Any:
    try:
        return question.tape.result_for(list(question.targets), question.source)
    except Exception as error:
        return error


def _not_a_question(question: Question) -> Finding | None:
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


def _cannot_see(question: Question) -> Finding | None:
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
    symbolic = [value for value in (question.source, *question.targets) if not is_eager(value)]
    if symbolic:
        return Finding("inside_function", "symbolic", exists=None, values={"name": symbolic[0].name})
    return None


def _variable_target(question: Question) -> Finding | None:
    return Finding("target_is_variable") if any(hasattr(one, "handle") for one in question.targets) else None


def _checked(question: Question, gradient: Any, with_paths: bool) -> tuple[Finding, Any]:
    """The `Finding` after the judgement was held against the tape's own result, and this result."""
    log = question.log
    is_there = gradient is not None and not isinstance(gradient, Exception)
    tape = question.tape
    is_refused = tape.spent and (tape.refused or (next(iter(question.goals)), question.start) not in tape.asked)
    if is_there and not (with_paths or is_refused or log.python_calls_of or log.bypassed):
        judged = Finding("exists", exists=True)  # a gradient that the tape has needs no way to be found
    else:
        judged = _judged(question)
    finding = wrong_dtype(question) or judged
    if isinstance(gradient, (LookupError, tf.errors.UnknownError)):  # the latter where a tf.py_function's code raises
        return _missing_registration(question, finding, gradient), None
    if isinstance(gradient, Exception):
        return _not_computed(gradient, log), None
    if finding.code == "target_dtype" and gradient is not None:
        fix = CAUSES[finding.code].fix.format(target=question.target_name)
        return dataclasses.replace(finding, exists=True, fix=fix), gradient
    if finding.exists == (gradient is None):
        says, returned = ("a gradient", "None") if finding.exists else ("none", "a gradient")
        exists = None if gradient is None else True
        return Finding("unknown", exists=exists, values={"says": says, "returned": returned}), gradient
    if gradient is None:
        return finding, None
    if is_refused:
        return Finding("used_up", line=tape.spent_line, path=finding.path), gradient
    passed_by = next((log.bypassed[step.end] for step in finding.path if step.end in log.bypassed), finding.line)
    remarks = tuple(_remarks(question, finding, gradient))
    return dataclasses.replace(finding, remarks=remarks, line=passed_by), gradient


def _judged(question: Question) -> Finding:
    path = question.flow.cheapest(question.start, question.goals)
    return without_path(question) if path is None else along_path(question, path)


def _missing_registration(question: Question, finding: Finding, error: Exception) -> Finding:
    """The tape raised LookupError, whether or not the operation without a gradient lies on a path to this source."""
    on_the_way = question.flow.upstream(question.goals)
    events = (event for event in question.log.events if not on_the_way.isdisjoint(event.outputs))
    elsewhere = (cut for event in events for at in range(len(event.inputs)) for cut in question.flow.cuts_of(event, at))
    for cut in itertools.chain(finding.cuts, finding.further, elsewhere):
        if cut.code == "no_gradient_registered":
            return finding if finding.code == cut.code else Finding(cut.code, line=cut.line, cuts=(cut,))
    return _not_computed(error, question.log)


def _not_computed(error: Exception, log: Log) -> Finding:
    values, fix, line = {"error": first_line_of(error)}, "", None
    if "custom_gradient" in str(error):
        fix = CAUSES["custom_gradient_none"].fix
        line = next((event.line for event in log.events[::-1] if event.kind is Kind.CUSTOM), None)
    return Finding("unknown", "raised", exists=None, line=line, fix=fix, values=values)


def _remarks(question: Question, finding: Finding, gradient: Gradient) -> Iterator[str]:
    if question.is_variable and question.watched_variable.trainable and not question.source.trainable:
        yield "frozen_layer"
    if any(step.event.index in question.log.python_calls_of for step in finding.path):
        yield "py_function"
    if isinstance(gradient, tf.IndexedSlices):
        yield "indexed_slices"
    if any(step.end in question.log.bypassed for step in finding.path):
        yield "custom_gradient_bypassed"


def said(question: Question, finding: Finding) -> tuple[str, str]:
    """Return the sentence and the fix of a finding, in the learner's words."""
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
    fix = re.sub(r"\btape\.", f"{lines.name_in(question.frame, question.tape) or 'tape'}.", fix)
    sentence = cause.otherwise[finding.seen] if finding.seen else cause.sentence
    return sentence.format(**names) + finding.more, fix
