"""`Watch`: a callback that stops `fit` at the first step that makes something not finite, and explains that step.

Keras runs a compiled step, which no tape can look into, and after which the weights that made the NaN are gone. So the
step that runs is the model's own with a look in its graph (`WatchedStep`), which also hands out the batch and the
weights from before. Where the look finds something, that step is run once more, eagerly, under an `ExplainTape`.
"""

import collections
import concurrent.futures
import dataclasses
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tapelab.explain.causes import TRIED
from tapelab.explain.models import watched_step
from tapelab.explain.models.bad_rows import NotFinite, about_rows, is_finite, is_sound, not_finite_in
from tapelab.explain.models.diagnose import asked_at, diagnosed, name_of
from tapelab.explain.models.diagnosis import Diagnosis, listed
from tapelab.explain.models.rate import about_step, rate_of
from tapelab.explain.models.watched_step import Looked, WatchedStep

import numpy as np
import tensorflow as tf

_STRATEGIES = (tf.distribute.MirroredStrategy, tf.distribute.OneDeviceStrategy)
_GROWTH = 3.0  # how many times the gradient's norm must grow in each step for the training to count as diverging


class Watch(tf.keras.callbacks.Callback):
    """A Keras callback that explains bad gradients while `fit` runs.

    ::

        model.fit(x, y, callbacks=[Watch()])

    - Each step is looked at, in its own graph: the loss, the weights that it leaves, and its batch. At the first loss
      or weight that is not finite the training stops, and why is printed, with the line, the fix, and the rows of the
      batch where it is a matter of rows. A batch that is not finite and does no harm is only mentioned.
    - Every so many steps, first before any, it diagnoses the batch as `diagnose` does, and prints what is newly wrong:
      for each of the variables of which Keras only warns that "Gradients do not exist" the reason. After such a step
      it looks whether that was too long: whether it raises the loss of its own batch, which a part of it lowers.

    It works with ``jit_compile``, ``class_weight`` and ``sample_weight``, `tf.data`, generators, a custom train_step,
    gradients that are accumulated over several steps, ``steps_per_execution`` (the steps then run one by one), and
    under a `tf.distribute.MirroredStrategy`. The step that is explained runs eagerly, without XLA and on one device;
    where it is in order then, that is said. The model's step is compiled anew for `fit`; the model is as before when
    `fit` ends; where an error in another callback or in the data ends it, at the next `fit`.

    Attributes:
        diagnosis: the `Diagnosis` of the step that went wrong; None if none did.
        step: that step's number, from 0 and over all epochs; None if no step went wrong, also where the weights were
            not finite before a step and no step had made them so.
        rows: the rows of that step's batch that made it so, a list of integers; empty where it is no matter of rows.
        recent: for that step and those before it that were kept, a list of (step, loss, norm of the whole gradient).
        samples: a list of (step, `Diagnosis`).
        story: what was printed at the end, as text; empty if nothing went wrong.
    """

    def __init__(self, every: int | None = 1000, remember: int = 4, report: Callable[[str], object] = print):
        """Args:
            every: diagnose each so manieth step; None for not at all. For a small network that takes as long as fifty
                steps.
            remember: how many steps are kept, at least 2. Each keeps its batch and the weights from before it.
            report: takes each text that is to be shown.

        Raises:
            ValueError: if `every` or `remember` is too small.
        """
        super().__init__()
        if every is not None and every < 1:
            raise ValueError(f"every is {every!r}; expected a number of steps from 1 on, or None")
        if remember < 2:
            raise ValueError(f"remember is {remember!r}; expected at least 2: the step with the NaN and the one before")
        self.every, self.remember, self.report = every, remember, report
        self._forget()

    def _forget(self) -> None:
        self.diagnosis, self.step, self.rows, self.recent, self.samples, self.story = None, None, [], [], [], ""
        self._expected, self._known, self._can_sample = False, set(), True
        self._kept = collections.deque(maxlen=self.remember)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        model = self.model
        if not isinstance(model.distribute_strategy, _STRATEGIES) and not watched_step.is_undistributed(model):
            raise ValueError(
                f"Watch does not work under a {type(model.distribute_strategy).__name__}; train under a "
                "MirroredStrategy or without a strategy to find the mistake"
            )
        self._forget()
        self._asked = asked_at(sys._getframe(1), 0)
        model.train_function = self._make_function()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._expected = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._restore()
        self._kept.clear()

    def _make_function(self) -> Callable[[Iterator[Any]], Any]:
        """What stands in for the model's train_function."""
        original, model, run = self.model.train_function, weakref.ref(self.model), WatchedStep(self.model)

        def restore() -> None:
            if model() is not None and model().train_function is watched:  # it may have been replaced meanwhile
                model().train_function = original

        def watched(iterator: Iterator[Any]) -> Any:
            if not self._expected:  # a fit without this callback, after one that an error ended
                restore()
                return original(iterator)
            self._expected = False
            try:
                return self._steps(iterator, run)
            except StopIteration:
                raise
            except BaseException:
                restore()
                raise

        self._restore = restore
        return watched

    def _steps(self, iterator: Iterator[Any], run: WatchedStep) -> Any:
        """Run as many steps as Keras asks for. Returns the logs of the last."""
        logs = None
        for _ in range(self.model.steps_per_execution):
            try:
                looked = run(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            except ValueError as error:
                if "No gradients provided" in str(error):  # raised while the step was traced: no batch was drawn for it
                    self.report(f"Watch, before any step: {self._of_batch(next(iterator), ())}")
                raise
            self._take(looked, run)
            logs = looked.logs
            if self.model.stop_training:
                break
        if logs is None:
            raise StopIteration
        return logs

    def _take(self, looked: Looked, run: WatchedStep) -> None:
        """Keep a step, and see what is to be said of it."""
        self._kept.append(looked)
        if self.every and self._can_sample and looked.step % self.every == 0:
            self._sample(looked)
            self._look_at_rate(looked)
        if not math.isfinite(looked.total):
            self._look_closer(looked, run.looked_at())

    def _sample(self, looked: Looked) -> None:
        try:
            found = self._diagnosed(looked)
        except Exception as error:  # a sample must not end the training
            self._can_sample = False
            self.report(f"Watch: this model cannot be diagnosed: {type(error).__name__}: {error}")
            return
        self.samples.append((looked.step, found))
        new = [one for one in found.sick if (one.name, one.status) not in self._known]
        if new and math.isfinite(found.loss):
            self._known.update((one.name, one.status) for one in new)
            told = frozenset(one.name for one in new)
            self.report(f"Watch, step {looked.step}: {dataclasses.replace(found, told=told)}")

    def _look_at_rate(self, looked: Looked) -> None:
        if "rate" in self._known or not self._can_sample or not watched_step.is_undistributed(self.model):
            return
        try:
            said = about_step(self.model, _whole(looked.batch, self.model), looked.before)
        except Exception:  # a sample must not end the training
            return
        if said:
            self._known.add("rate")
            self.report(f"Watch, step {looked.step}: {said}")

    def _diagnosed(self, looked: Looked) -> Diagnosis:
        """The `Diagnosis` of a step, with the batch and the weights that it had."""
        return self._of_batch(looked.batch, looked.before)

    def _of_batch(self, data: Any, before: Any) -> Diagnosis:
        return _outside_strategies(diagnosed, self.model, None, _whole(data, self.model), self._asked, before, True)

    def _look_closer(self, looked: Looked, variables: Sequence[Any]) -> None:
        """A sum in the step's graph is not finite: see of which numbers, and end the training if that does harm."""
        batch = not_finite_in(_whole(looked.batch, self.model))
        after = [name_of(one, self.model) for one in variables if not is_finite(one)]
        losses = [name for name, value in (looked.logs or {}).items() if "loss" in name and not is_finite(value)]
        if after or losses:
            self.model.stop_training = True
            before = [name_of(one, self.model) for one, value in looked.before if not is_finite(value)]
            self.story = (
                _of_no_step(looked.step, before) if before else self._explained(looked, batch, [*losses, *after])
            )
            self.report(self.story)
        elif batch and "batch" not in self._known:
            self._known.add("batch")
            self.report(
                f"Watch, step {looked.step}: the batch is not finite as it comes in: {'; '.join(map(str, batch))}. "
                "The loss and the weights stayed finite; that is said once."
            )

    def _explained(self, looked: Looked, in_batch: list[NotFinite], after: Sequence[str]) -> str:
        """The story of the step that went wrong. `in_batch` and `after` say what is not finite before and after it."""
        self.step = looked.step
        head = [f"Watch stopped the training: step {self.step} made the loss or a weight not finite."]
        head.append(f"Not finite after it: {listed(after)}.")
        try:
            batch = _whole(looked.batch, self.model)
            self.rows, said = about_rows(
                batch, in_batch, lambda part: _outside_strategies(is_sound, self.model, part, looked.before)
            )
            head += said
            self.diagnosis = self._diagnosed(looked)
            self.recent = [self._measured(one) for one in self._kept if one.step < self.step]
            self.recent.append((self.step, self.diagnosis.loss, _whole_norm(self.diagnosis)))
        except Exception as error:
            head.append(f"It could not be run again: {type(error).__name__}: {error}")
            return "\n".join(head)
        return "\n".join([*head, *self._told()])

    def _measured(self, kept: Looked) -> tuple[int, float, float]:
        found = self._diagnosed(kept)
        return kept.step, found.loss, _whole_norm(found)

    def _told(self) -> Iterator[str]:
        found = self.diagnosis
        if self._is_diverging():
            times = ", ".join(f"{norm:.3g} at step {step}" for step, _, norm in self.recent)
            rate = rate_of(self.model)
            rate = "" if rate is None else f" ({rate:g})"
            yield f"The training diverges: the gradient's norm was {times}. The learning rate{rate} is too large."
            yield f"{TRIED['untried']}\n    # a learning rate ten times smaller, or clipnorm=1.0 in the optimizer"
        elif len(self.recent) > 1:
            yield "Before it: " + "; ".join(
                f"step {step}: loss {loss:.4g}, gradient's norm {norm:.3g}" for step, loss, norm in self.recent[:-1]
            )
        if found:
            compiled = " XLA (jit_compile=True) may compute it differently: compile with jit_compile=False and try."
            yield (
                "Run again eagerly, the step is in order, so it cannot be explained."
                + (compiled if self.model.jit_compile else "")
            )
        yield str(found)

    def _is_diverging(self) -> bool:
        norms = [norm for _, _, norm in self.recent]
        pairs = list(itertools.pairwise(norms))
        return len(pairs) > 1 and all(new > _GROWTH * old > 0 or not math.isfinite(new) for old, new in pairs)


def _value(part: Any) -> Any:
    """Keras passes a missing part of a batch as an optional without a value."""
    return None if isinstance(part, tf.experimental.Optional) else part


def _whole(data: Any, model: tf.keras.Model) -> Any:
    """A batch as the model's train_step gets it; under a strategy, those of all replicas together."""
    if watched_step.is_undistributed(model):
        return tf.nest.map_structure(_value, data)
    parts = model.distribute_strategy.experimental_local_results(data)
    return tf.nest.map_structure(_joined, *parts)


def _joined(*values: Any) -> Any:
    return None if _value(values[0]) is None else tf.concat(values, 0)


def _outside_strategies(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function where no strategy's scope is open: eager gradients are to be had only there."""
    if not tf.distribute.has_strategy():
        return function(*arguments)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return pool.submit(function, *arguments).result()


def _of_no_step(step: int, names: Sequence[str]) -> str:
    """What to say where weights were not finite before a step and no step had made them so."""
    when = f"after step {step - 1} and before step {step}" if step else "before the first step"
    who = "Something other than a step, such as a callback, set them." if step else "Look at where they were loaded."
    return f"Watch stopped the training: {listed(names)} became not finite {when}. {who}"


def _whole_norm(found: Diagnosis) -> float:
    """The norm of the gradient of all variables together."""
    return float(np.sqrt(sum(one.gradient_norm**2 for one in found.variables if one.gradient_norm is not None)))
