"""The kinds of check: a value, a function that is tried on several inputs, and a diagnosis with its repair."""

import ast
import contextlib
import dataclasses
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from typing import Any
from unittest import mock

from tapelab.exercises import compare, feedback
from tapelab.exercises.compare import Difference
from tapelab.exercises.feedback import ERROR, NOT_ATTEMPTED, RIGHT, WRONG, Feedback
from tapelab.explain import ExplainTape, explain
from tapelab.process import syntax

import numpy as np
import tensorflow as tf

# The dtypes and the arguments with which a function is tried, one pair for each time.
_Trials = Sequence[tuple[tf.DType, tuple[Any, ...]]]


@dataclasses.dataclass(frozen=True)
class Mistake:
    """A wrong answer that learners give, and what to tell them.

    Attributes:
        code: a short stable key.
        text: what went wrong and where to look, Markdown. It does not tell the answer.
        answer: the wrong answer: for a `Function`, a function; for a `Value`, a value. Where a dict is expected it
            holds what differs from the right answer, and every answer with these entries makes the mistake.
        where: for a `Value` whose mistake has more than this one form, a function from an answer to True where it
            makes the mistake.
    """

    code: str
    text: str
    answer: Any
    where: Callable[[Any], bool] | None = None


_HIDDEN = "on an input that the text does not show"


class Unmet(Exception):
    """Raised by an observer where an answer lacks what the exercise asks for beside the right numbers.

    Attributes:
        code: a short stable key.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


def _wrong(found: Difference | Feedback, text: str | None = None, code: str | None = None) -> Feedback:
    return Feedback(WRONG, code or found.code, _sentence(text or found.text), found.picture)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


@dataclasses.dataclass(frozen=True)
class Value:
    """Check a number, a shape, a string, None, a tensor, or a list, tuple or dict of these.

    Attributes:
        expected: the right answer, or a function of no arguments that computes it (so that importing an exercise runs
            no TensorFlow operation).
        mistakes: a tuple of `Mistake`, the first that fits being told.
        wrong: pairs of a feedback's code and another wrong answer that must get it. The tests try them.
        options: for a choice, the strings to choose from.
        axes: what the axes of an expected array mean, such as ("output", "input").
        rtol: relative tolerance for numbers.
    """

    expected: Any
    mistakes: tuple[Mistake, ...] = ()
    wrong: tuple[tuple[str, Any], ...] = ()
    options: tuple[str, ...] = ()
    axes: tuple[str, ...] = ()
    rtol: float = 1e-3

    def judge(self, answer: Any) -> Feedback:
        """Return the `Feedback` for an answer."""
        if compare.has_gap(answer):
            return Feedback(NOT_ATTEMPTED, "not_attempted", "")
        found = self._differs(answer, self._right())
        if found is None:
            return Feedback(RIGHT, "right", "")
        for mistake in self.mistakes:
            if self._is(answer, mistake):
                return _wrong(found, mistake.text, mistake.code)
        if self.options and found.code == "other" and answer not in self.options:
            return Feedback(WRONG, "not_an_option", feedback.choose_one(self.options))
        return _wrong(found)

    def tried(self) -> list[tuple[str, Any]]:
        """Return all wrong answers with the code of the feedback that each must get, as a list of (code, answer)."""
        right = self._right()
        part = isinstance(right, dict)
        return [*((one.code, right | one.answer if part else one.answer) for one in self.mistakes), *self.wrong]

    def _right(self) -> Any:
        return self.expected() if callable(self.expected) else self.expected

    def _differs(self, answer: Any, expected: Any) -> Difference | None:
        return compare.difference(answer, expected, rtol=self.rtol, atol=1e-7, axes=self.axes)

    def _is(self, answer: Any, mistake: Mistake) -> bool:
        try:
            if mistake.where is not None:
                return mistake.where(answer) is True
            if isinstance(mistake.answer, dict):
                return all(self._differs(answer[key], part) is None for key, part in mistake.answer.items())
            return self._differs(answer, mistake.answer) is None
        except Exception:  # the test was written for answers of the expected kind
            return False


def _call(answer: Callable[..., Any], *arguments: Any) -> Any:
    return answer(*arguments)


def without_a_tape(answer: Callable[..., Any], *arguments: Any) -> Any:
    """Observe what a function returns, and raise `Unmet` if it has TensorFlow differentiate to find it."""
    makers = {k.__init__.__code__ for k in (tf.GradientTape, tf.autodiff.ForwardAccumulator)} | {tf.gradients.__code__}
    opened = []

    def watch(frame: types.FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code in makers:
            opened.append(frame)

    before = sys.getprofile()
    sys.setprofile(watch)
    try:
        found = answer(*arguments)
    finally:
        sys.setprofile(before)
    if opened:
        raise Unmet("tape", "A tape was opened to find it. Write the backward pass yourself: without a tape.")
    return found


@dataclasses.dataclass(frozen=True)
class Function:
    """Check a function by trying it.

    Attributes:
        reference: a function that gives the right result.
        inputs: from a NumPy `Generator` and a dtype to a list of trials, each a tuple of arguments. The first trial is
            the one that the text shows; at least one is not shown.
        observe: from a function and a trial's arguments to what is compared: by default, what the function returns.
            An observer may take derivatives of the function, or give it a tape. Its result may be a dict, whose keys
            then name the parts in the feedback ("the gradient").
        mistakes: a tuple of `Mistake`, each with a function; the first that gives the same is told. `Exercise.mistake`
            adds to them.
        wrong: pairs of a feedback's code and another wrong answer that must get it. `Exercise.wrong` adds to them.
        upstream: the position, among the arguments, of the upstream gradient (the cotangent), or None.
        axes: what the axes of a result mean, such as ("output", "input").
        dtypes: what the inputs are tried in.
        rtol: relative tolerance in float32.
    """

    reference: Callable
    inputs: Callable
    observe: Callable = _call
    mistakes: tuple[Mistake, ...] = ()
    wrong: tuple[tuple[str, Any], ...] = ()
    upstream: int | None = None
    axes: tuple[str, ...] = ()
    dtypes: tuple[tf.DType, ...] = (tf.float32, tf.float64)
    rtol: float = 1e-3

    def trials(self) -> list[tuple[tf.DType, tuple]]:
        """Return all trials, as a list of (dtype, arguments)."""
        return [(dtype, trial) for dtype in self.dtypes for trial in self.inputs(np.random.default_rng(0), dtype)]

    def tried(self) -> list[tuple[str, Any]]:
        """Return all wrong answers with the code of the feedback that each must get, as a list of (code, answer)."""
        return [*((mistake.code, mistake.answer) for mistake in self.mistakes), *self.wrong]

    def judge(self, answer: Any) -> Feedback:
        """Return the `Feedback` for an answer."""
        if compare.has_gap(answer) or still_has_gap(answer):
            return Feedback(NOT_ATTEMPTED, "not_attempted", "")
        if not callable(answer):
            return Feedback(WRONG, "not_a_function", f"You gave {compare.describe(answer)}; expected a function.")
        trials = self.trials()
        seen, failure = [], None
        for _, arguments in trials:
            try:
                seen.append(self.observe(answer, *arguments))
            except Exception as error:
                failure = error
                break
        if seen and any(map(compare.has_gap, seen)):
            return Feedback(NOT_ATTEMPTED, "not_attempted", "")
        found = [
            self._differs(one, self.reference, arguments)
            for one, (_, arguments) in zip(seen, trials, strict=False)  # fewer were seen where one raised
        ]
        if failure is None and not any(found):
            return Feedback(RIGHT, "right", f"Tried on {len(trials)} inputs.")
        if failure is not None:
            return self._failed(failure, answer, seen, trials, found)
        return self._explain(answer, seen, trials, found)

    def _differs(self, observed: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Difference | None:
        expected = self.observe(function, *arguments)
        return compare.difference(observed, expected, rtol=self.rtol, atol=1e-6, axes=self.axes, tell=True)

    def _failed(
        self,
        error: BaseException,
        answer: Any,
        seen: Sequence[Any],
        trials: _Trials,
        found: Sequence[Difference | None],
    ) -> Feedback:
        """The feedback where the answer raised."""
        if isinstance(error, Unmet):
            return Feedback(WRONG, error.code, str(error))
        dtype, arguments = trials[len(found)]
        earlier = {kind for kind, _ in trials[: len(found)]}
        if any(found) and dtype not in earlier:  # wrong before its dtype mattered: that comes first
            return self._explain(answer, seen, trials[: len(found)], found)
        if not any(found) and earlier and dtype not in earlier:
            names = " and ".join(kind.name for kind in self.dtypes if kind in earlier)
            told = feedback.of_error(error)
            fix = "Is a dtype written down somewhere, or left out where a tensor is made?"
            text = f"Right for {names}; for {dtype.name} it raises:{told.text}\n\n{fix}"
            return Feedback(WRONG, "one_dtype", text)
        told = feedback.of_error(error)
        of_none = any(text in str(error) for text in ("None", "No gradients provided"))  # a Keras optimiser's words
        more = [self._why_none(answer, arguments)] if of_none else []
        if found and not any(found):
            more.append(f"Before that it was right. It raised {_tried_on(arguments)}.")
        return dataclasses.replace(told, text="\n\n".join([told.text, *filter(None, more)]))

    def _explain(
        self, answer: Any, seen: Sequence[Any], trials: _Trials, found: Sequence[Difference | None]
    ) -> Feedback:
        """The feedback for an answer that ran and is wrong: the most telling reason."""
        first, (_, arguments) = _most_telling([(one, trial) for one, trial in zip(found, trials, strict=True) if one])
        for mistake in self.mistakes:
            if self._same_everywhere(seen, mistake.answer, trials):
                return _wrong(first, mistake.text, mistake.code)
        if first.code == "none":
            told = self._why_none(answer, arguments)
            if told is None and self.observe is _call and all(one is None for one in seen):
                told = "Your function returned `None`. Does it end with a `return`?"
            return _wrong(first, told or first.text)
        if self.upstream is not None and self._ignores_upstream(seen, trials):
            return _wrong(first, "The upstream gradient is missing: multiply by it.", "upstream")
        half = self._half(found, trials)
        if half:
            named = half.replace("x", _first_parameter(answer))
            return _wrong(first, f"Right for {named} only. {_sentence(first.text)}", f"only {half}")
        if first.code == "dtype":
            return _wrong(first)
        right = [not one for one in found]
        if right[0]:
            return _wrong(first, f"Right on the example, and not {_tried_on(arguments)}. {_sentence(first.text)}")
        told = _tried_on(arguments)
        return _wrong(first, f"{_sentence(first.text)}{f' (Tried {told}.)' if told != _HIDDEN else ''}")

    def _same_everywhere(self, seen: Sequence[Any], function: Any, trials: _Trials) -> bool:
        try:
            return not any(self._differs(one, function, given) for one, (_, given) in zip(seen, trials, strict=True))
        except Exception:  # a mistake that cannot be made on every input
            return False

    def _ignores_upstream(self, seen: Sequence[Any], trials: _Trials) -> bool:
        parts = [part for one in seen for part in tf.nest.flatten(one) if compare.is_array(part)]
        if not any(np.any(part) for part in parts):  # softmax's gradient for ones is zero, and so is a cut one
            return False
        without = []
        for dtype, arguments in trials:
            arguments = list(arguments)
            arguments[self.upstream] = tf.nest.map_structure(tf.ones_like, arguments[self.upstream])
            without.append((dtype, tuple(arguments)))
        return self._same_everywhere(seen, self.reference, without)

    def _half(self, found: Sequence[Difference | None], trials: _Trials) -> str | None:
        """ "x > 0" or "x < 0" where the answer is right there and wrong on the other side, else None."""
        wrong, inputs = [], []
        for one, (_, arguments) in zip(found, trials, strict=True):
            x = np.asarray(arguments[0]) if arguments and compare.is_array(arguments[0]) else None
            if x is None or (one and (one.wrong is None or one.wrong.shape != x.shape)):
                return None
            inputs.append(x.ravel())
            wrong.append(one.wrong.ravel() if one else np.zeros(x.size, bool))
        wrong, inputs = np.concatenate(wrong), np.concatenate(inputs)
        for half, side in (("x > 0", inputs > 0), ("x < 0", inputs < 0)):
            if side.any() and not wrong[side].any() and wrong[~side & (inputs != 0)].all() and not side.all():
                return half
        return None

    def _why_none(self, answer: Any, arguments: tuple[Any, ...]) -> str | None:
        """What the explaining tape says about a gradient that is None, as Markdown, or None if it says nothing."""
        told = []

        def listen(tape: ExplainTape, target: Any, sources: Any) -> None:
            explanation = explain(tape, target, sources)
            told.extend(explanation.missing() if hasattr(explanation, "missing") else [explanation])

        class Listening(ExplainTape):
            def gradient(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
                listen(self, target, sources)
                return super().gradient(target, sources, *args, **kwargs)

            def jacobian(self, target: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
                listen(self, target, sources)
                return super().jacobian(target, sources, *args, **kwargs)

        # What was told before something raised still holds. If the tape could not listen in, nothing was told.
        with contextlib.suppress(Exception):
            with ExplainTape():
                pass  # the first one tries its hooks out, with a plain tape
            with mock.patch.object(tf, "GradientTape", Listening):
                self.observe(answer, *arguments)
        known = [one for one in told if one.exists is False]
        if not known:
            return None
        line = f" The line is `{known[0].line.text}`." if known[0].line and known[0].line.text else ""
        # What the check asks about has no name in the learner's code.
        sentence = re.sub(r"(?<!the )\b(target|source)\b(\[\d+\])?", r"the \1", known[0].sentence)
        sentence = re.sub(r"^the ", "The ", sentence)
        return f"A gradient is `None`. {sentence}{line}"


@dataclasses.dataclass(frozen=True)
class Repair(Function):
    """Check a diagnosis, and then a repaired function as `Function` does. The answer is the pair of both.

    Attributes:
        diagnosis: the `Value` that the diagnosis is held against; judged first.
        broken: the function that the learner finds, and edits. `Exercise.starter` sets it.
        healthy: whether nothing is wrong with that function, so that it is to be left as it is.
    """

    diagnosis: Value = Value("")
    broken: Callable | None = None
    healthy: bool = False

    def tried(self) -> list[tuple[str, Any]]:
        """Return all wrong answers with the code of the feedback that each must get, as a list of (code, answer)."""
        right = self.diagnosis.expected
        repairs = super().tried() if self.healthy else [("unchanged", self.broken), *super().tried()]
        return [
            *((code, (wrong, self.reference)) for code, wrong in self.diagnosis.tried()),
            *((code, (right, function)) for code, function in repairs),
        ]

    def judge(self, answer: Any) -> Feedback:
        """Return the `Feedback` for a pair of a diagnosis and a function."""
        if type(answer) is not tuple or len(answer) != 2:
            return Feedback(WRONG, "length", "Expected a diagnosis and a function.")
        cause, function = answer
        found = self.diagnosis.judge(cause)
        if found.verdict != RIGHT:
            return found if found.verdict == NOT_ATTEMPTED else _wrong(found, f"The diagnosis: {found.text}")
        if _same_code(function, self.broken):
            if self.healthy:
                return Feedback(RIGHT, "right", "Rightly left alone.")
            text = "The diagnosis is right. The function is still the broken one: edit it, and run the cell again."
            return Feedback(WRONG, "unchanged", text)
        found = super().judge(function)
        if found.verdict in (RIGHT, NOT_ATTEMPTED):
            return found
        told = "is right, and so was the program. The change" if self.healthy else "is right. The repair"
        return dataclasses.replace(found, text=f"The diagnosis {told}: {found.text}")

    def _explain(
        self, answer: Any, seen: Sequence[Any], trials: _Trials, found: Sequence[Difference | None]
    ) -> Feedback:
        told = super()._explain(answer, seen, trials, found)
        telling = {"none", *(mistake.code for mistake in self.mistakes)}
        if told.code not in telling and self._same_everywhere(seen, self.broken, trials):
            text = "On every input it gives what the broken function gives. The change does not reach the cause."
            return Feedback(WRONG, "as_before", text)
        return told


def _same_code(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions have the same source, but for their names, comments and layout."""
    if one is other:
        return True
    try:
        trees = [
            syntax.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(each)))).body[0] for each in (one, other)
        ]
        return len({ast.dump(ast.Module(tree.body, [])) for tree in trees}) == 1
    except (OSError, TypeError, SyntaxError, ValueError, AttributeError):
        return False  # no source to look at


def _first_parameter(function: Callable[..., Any]) -> str:
    try:
        return next(iter(inspect.signature(function).parameters), "x")
    except (TypeError, ValueError):  # a callable without a signature
        return "x"


def _most_telling(
    differences: Sequence[tuple[Difference, tuple[tf.DType, tuple[Any, ...]]]],
) -> tuple[Difference, tuple[tf.DType, tuple[Any, ...]]]:
    """The first of some (difference, trial), but no factor or sign that holds on its own input and on no other."""
    first, *others = differences
    if first[0].code in ("factor", "sign"):
        against = (one for one in others if one[0].code != first[0].code and one[0].wrong is not None)
        return next((one for one in against if one[0].wrong.size > 1), first)  # a lone number has a factor anyway
    return first


def _tried_on(arguments: tuple[Any, ...]) -> str:
    """Where a function was tried, if a few numbers say it."""
    shown = [_shown(part) for argument in arguments for part in _tensors_in(argument)]
    if None in shown:
        return _HIDDEN
    return "on " + " and ".join(filter(None, shown)) if shown else "without arguments"


def _tensors_in(argument: Any) -> list[Any]:
    """The parts of a structure that holds tensors; what holds none is one part."""
    parts = tf.nest.flatten(argument)
    return parts if any(map(compare.is_array, parts)) else [argument]


def _shown(argument: Any) -> str | None:
    if compare.is_array(argument) and not isinstance(argument, tf.IndexedSlices) and np.size(argument) <= 6:
        return np.array2string(np.asarray(argument), precision=4, separator=", ").replace("\n", "")
    plain = all(isinstance(part, (int, float)) for part in tf.nest.flatten(argument))
    return repr(argument) if plain else None


def still_has_gap(function: Any) -> bool:
    """Return whether a function's source holds the starter's `...`, other than as an index (`x[..., 0]`)."""
    try:
        tree = syntax.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function))))
    except (OSError, TypeError, SyntaxError, ValueError):
        return False  # no source to look at: what the function returns decides
    gaps = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is ...]
    indices = {id(part) for node in ast.walk(tree) if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)}
    return any(id(gap) not in indices for gap in gaps)


def timed_out(seconds: float) -> Feedback:
    """Return the `Feedback` for an answer that did not return in time."""
    text = f"It had not returned after {seconds:g} s and was stopped. A loop that does not end, or a busy machine?"
    return Feedback(ERROR, "timeout", text)
