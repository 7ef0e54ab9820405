"""`explain_retracing`: why a ``tf.function`` was traced again, from its own traces.

TensorFlow's warning offers three guesses. Here each trace is held against the earlier one that it resembles most; what
differs is what made TensorFlow trace again. Nothing is run, and nothing is guessed: a cause is named only where two
traces differ in it.
"""

import contextlib
import dataclasses
import gc
import weakref
from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tapelab.explain.causes import TRIED
from tapelab.explain.ground.rendering import Style, Told
from tapelab.explain.retracing import callables, traces
from tapelab.explain.retracing.callables import Function
from tapelab.explain.retracing.causes import RetracingCause, causes_of, made_anew, merged, stale
from tapelab.explain.retracing.traces import New

import tensorflow as tf


@dataclasses.dataclass(frozen=True, repr=False)
class Retracing(Told):
    """Why one function was traced as often as it was.

    Attributes:
        function: what it is called.
        traces: how often it was traced: in all, or while the context of `explain_retracing` lasted.
        causes: a tuple of `RetracingCause`, the one with the most traces first; empty where there is
            nothing to explain.
        unknown: why the causes are not known; empty where they are.
        note: what is to be said besides.
    """

    function: str
    traces: int
    causes: tuple[RetracingCause, ...] = ()
    unknown: str = ""
    note: str = ""

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to mend: each cause is expected, or brought one more trace only."""
        return not self.unknown and all(
            cause.expected or (cause.traces < 2 and cause.code != "stale_global") for cause in self.causes
        )

    @property
    def heading(self) -> str:
        """The answer in a few words."""
        often = {0: "was not traced", 1: "was traced once"}.get(self.traces, f"was traced {self.traces} times")
        if self.unknown:
            return f"{self.function} {often}: could not be explained"
        reasons = ", ".join(dict.fromkeys(map(_short, self.causes)))
        if self.healthy:
            reasons = f"nothing to mend ({reasons})" if reasons else "nothing to mend"
        return f"{self.function} {often}: {reasons}"

    def lines(self, style: Style) -> Iterator[str]:
        """The answer, part by part."""
        yield style.strong(self.heading)
        if self.unknown:
            yield style.text(self.unknown)
        for cause in self.causes:
            yield style.text(cause.sentence)
            if cause.line is not None:
                yield style.line(cause.line)
            if cause.fix:
                yield style.text(TRIED["untried"]) + style.block(cause.fix)
        if self.note:
            yield style.text(self.note)


class Retracings(Told, list[Retracing]):
    """One `Retracing` for each function that was traced, in the order of their first traces.

    As the result of ``with explain_retracing() as report:`` it is empty until the block ends.
    """

    between = "\n\n"

    @property
    def healthy(self) -> bool:
        """Whether there is nothing to mend in any of the functions."""
        return all(one.healthy for one in self)

    @property
    def causes(self) -> list[RetracingCause]:
        """The causes of all functions, as a list."""
        return [cause for one in self for cause in one.causes]

    @property
    def heading(self) -> str:
        """The answers in a few words each."""
        return "; ".join(one.heading for one in self)

    def lines(self, style: Style) -> Iterator[str]:
        """The answers, one after the other."""
        for one in self:
            yield style.between.join(one.lines(style))
        if not self:
            yield style.text("Nothing was traced.")


def explain_retracing(
    function: tf.types.experimental.PolymorphicFunction | tf.keras.Model | None = None,
) -> Retracing | Retracings | contextlib.AbstractContextManager[Retracings]:
    """Say why a ``tf.function`` was traced more than once: which argument changed, and what to write.

    ::

        print(explain_retracing(train_step))  # after the fact, from the traces that it keeps

        with explain_retracing() as report:  # of every function traced in the block, also those made anew in a loop
            train()
        print(report)

    Args:
        function: a ``tf.function``; a method with that decorator, from the object or from its class; or a Keras model,
            for the functions that its fit, evaluate and predict have made. Nothing for a context manager.

    Returns:
        A `Retracing` for a function, `Retracings` for a model; without a function a context manager that gives a
        `Retracings`, which is filled when the block ends, also by an exception.

    Raises:
        TypeError: if `function` is anything else.
    """
    if function is None:
        return _watching()
    if isinstance(function, tf.keras.Model):
        steps = (function.train_function, function.test_function, function.predict_function)
        found = [one for step in steps if step is not None for one in callables.functions_within(step)]
        return Retracings(_explain(one) for one in found if traces.BLIND or traces.traces_of(one))
    if isinstance(function, tf.types.experimental.ConcreteFunction):
        raise TypeError("this is a concrete function, which has one trace; pass the tf.function that it was taken from")
    if not callables.is_function(function):
        what = "a Python function" if callable(function) else f"a {type(function).__name__}"
        raise TypeError(
            f"explain_retracing was passed {what}; pass a tf.function or a Keras model, or watch what runs with "
            "`with explain_retracing() as report:`"
        )
    return _explain(function)


def _explain(function: Function) -> Retracing:
    name = _called(function)
    if traces.BLIND:
        return Retracing(name, function.experimental_get_tracing_count(), unknown=traces.BLIND)
    found = traces.traces_of(function)
    seen_apart = "" if len(found) > 1 else _SEEN_APART
    return Retracing(name, len(found), tuple(causes_of(function, found)), note=seen_apart)


# What keeps no traces of its own: a method of a class, and each function that is made anew in a loop.
_SEEN_APART = (
    "Methods of several objects, and functions that are made anew, keep their traces apart: watch what runs "
    "with `with explain_retracing() as report:`."
)


@contextlib.contextmanager
def _watching() -> Iterator[Retracings]:
    """What `explain_retracing` without a function returns."""
    report, new = Retracings(), []
    try:
        with contextlib.nullcontext() if traces.BLIND else traces.noticing(new):
            yield report
    finally:
        if traces.BLIND:
            report.append(Retracing("what ran", 0, unknown=traces.BLIND))
        found, functions = _explained(new)
        new.clear()
        if any(cause.code in _FUNCTIONS for one in found for cause in one.causes):
            gc.collect()  # what nobody holds any more, in cycles or not, is not in use
        report.extend(map(_with_alive, found, functions))


def _explained(news: Sequence[New]) -> tuple[list[Retracing], list[list[weakref.ref[Any]]]]:
    """Return a `Retracing` for each definition that was traced, and weak references to its functions."""
    definitions = {}
    for new in news:
        definitions.setdefault(_definition(new.function), []).append(new)
    steps = {key[1:3] for key in definitions if isinstance(key, tuple) and key[3] == "one_step_on_data"}
    # What Keras puts around a step is traced with it, for the same reason.
    shells = {key for key in definitions if isinstance(key, tuple) and key[1:3] in steps and key[3].startswith("multi")}
    kept = [its for key, its in definitions.items() if key not in shells]
    return list(map(_of_definition, kept)), [[weakref.ref(new.function) for new in its] for its in kept]


# Causes that are several functions of one definition: right where all of them are still wanted.
_FUNCTIONS = ("made_anew", "wrapped_anew", "new_objects", "keras_recompiled")


def _with_alive(retracing: Retracing, references: Sequence[weakref.ref[Any]]) -> Retracing:
    alive = len({id(reference()) for reference in references if reference() is not None})
    causes = tuple(_judged(cause, alive) if cause.code in _FUNCTIONS else cause for cause in retracing.causes)
    return dataclasses.replace(retracing, causes=causes)


def _judged(cause: RetracingCause, alive: int) -> RetracingCause:
    """A cause that is several functions, with what became of them."""
    if alive <= cause.traces:
        return cause
    sentence = f"{cause.sentence} All {alive} are still in use; if each is called often, that is as it should be."
    return dataclasses.replace(cause, sentence=sentence, fix="", expected=True)


def _definition(function: Function) -> Hashable:
    """What functions that are made anew have in common."""
    model = callables.in_closure(function, "self")
    if _step_of(function) and isinstance(model, tf.keras.Model):
        return (_step_of(function), type(model), model.name.rstrip("0123456789_"), callables.name_of(function))
    return callables.code_of(function)


def _of_definition(found: Sequence[New]) -> Retracing:
    """Explain the new traces of all functions that have one definition."""
    by_function = {}
    for new in found:
        by_function.setdefault(id(new.function), []).append(new)
    causes = []
    for its in by_function.values():
        every = traces.mark_makers([*its[0].before, *(new.trace for new in its)])
        causes += causes_of(its[0].function, every, since=len(its[0].before))
    causes = merged(causes)
    name, last = _called(found[0].function), found[-1]
    if len(by_function) > 1:
        causes.insert(0, _several([its[0] for its in by_function.values()], name))
    outdated = stale(last.captured, callables.captured(last.function), last.trace.line, name)
    return Retracing(name, len(found), (*causes, *outdated))


def _several(found: Sequence[New], name: str) -> RetracingCause:
    """The cause of several functions with one definition. `found` has a `New` for each."""
    functions, line = [new.function for new in found], found[-1].trace.line
    if _is_pfor(functions[0]):
        return made_anew("vectorised_anew", name, len(functions), line)
    if _step_of(functions[0]):
        models = len({id(callables.in_closure(function, "self")) for function in functions})
        return made_anew("keras_recompiled", name, len(functions), line, models=models)
    values = {key: tuple(dict.fromkeys(repr(new.captured.get(key)) for new in found)) for key in found[0].captured}
    changed = {key: several for key, several in values.items() if len(several) > 1}
    if len({id(callables.plain(function)) for function in functions}) > 1:
        code = "made_anew"
    else:
        code = "new_objects" if any(map(callables.is_method, functions)) else "wrapped_anew"
    return made_anew(code, name, len(functions), line, changed=changed)


def _step_of(function: Function) -> str | None:
    """Which of Keras's functions a tf.function is, "train_step", "test_step" or "predict"; None if it is none."""
    step = callables.in_closure(function, "step_function")
    inner = callables.in_closure(function, "one_step_on_data")
    if step is None and inner is not None:
        step = callables.in_closure(inner, "step_function") or callables.in_closure(inner, "step_func")
    name = getattr(callables.plain(step), "__name__", None) if step is not None else None
    if name is None and isinstance(callables.in_closure(function, "self"), tf.keras.Model):
        return "predict" if callables.name_of(function).startswith("one_step_on_data") else None
    return name


def _called(function: Function) -> str:
    """What a function is called, for people."""
    model, step = callables.in_closure(function, "self"), _step_of(function)
    if step and isinstance(model, tf.keras.Model):
        return f"{model.name}.{step}"
    return "tape.jacobian or tf.vectorized_map" if _is_pfor(function) else callables.name_of(function)


def _is_pfor(function: Function) -> bool:
    return getattr(callables.code_of(function), "co_filename", "").endswith(traces.PFOR)


def _short(cause: RetracingCause) -> str:
    return f"{cause.code} of {cause.argument}" if cause.argument else cause.code
