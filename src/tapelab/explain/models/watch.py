"""`Watch`: a callback that stops `fit` at the first NaN and explains that step, with its own weights and batch.

Keras runs a compiled step, which no tape can look into, and after which the weights that made the NaN are gone. So each
batch is drawn in Python, and the weights are noted before it is handed to the same compiled step as ever: reading a
variable keeps its value without copying it. Where the loss turns bad, that step is run once more, eagerly, under an
`ExplainTape`.
"""

import collections
import dataclasses
import itertools
import math
import sys
import weakref
from collections.abc import Mapping
from typing import Any

from tapelab.explain.ground import lines
from tapelab.explain.ground.lines import Line
from tapelab.explain.models import model_step
from tapelab.explain.models.diagnose import diagnosed

import numpy as np
import tensorflow as tf

_GROWTH = 3.0  # how many times the gradient's norm must grow in each step for the training to count as diverging


@dataclasses.dataclass(frozen=True)
class _Kept:
    """A step as it was before it ran: its number from 0, its batch, and [(variable, value)]."""

    step: int
    batch: tuple
    weights: list


class Watch(tf.keras.callbacks.Callback):
    """A Keras callback that explains bad gradients while `fit` runs.

    ::

        model.fit(x, y, callbacks=[Watch()])

    - At the first loss or weight that is not finite it stops the training and prints why, with the line and the fix.
    - Every so many steps, first before any, it diagnoses the batch as `diagnose` does, and prints what is newly wrong:
      for each of the variables of which Keras only warns that "Gradients do not exist" the reason.

    It works with ``jit_compile``, ``class_weight`` and ``sample_weight``, `tf.data`, generators, a custom train_step
    and ``steps_per_execution`` (the steps then run one by one). The step that is explained runs eagerly and without
    XLA; where it is in order then, that is said. `fit` runs the model's own compiled step; the model is as before when
    `fit` ends. If an error in another callback or in the data ends it, the model is put back when Python drops that
    error, or at the next `fit`.

    Attributes:
        diagnosis: the `Diagnosis` of the step that went wrong; None if none did.
        step: that step's number, from 0 and over all epochs; None if none went wrong.
        recent: for that step and those before it that were kept, a list of (step, loss, norm of the whole gradient).
        samples: a list of (step, `Diagnosis`).
        story: what was printed at the end, as text; empty if nothing went wrong.
    """

    def __init__(self, every=100, remember=4, report=print):
        """Args:
            every: diagnose each so manieth step; None for not at all.
            remember: how many steps are kept, at least 2. Each keeps a copy of the weights as soon as they change.
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
        self._function = self._original = None
        self._forget()

    def _forget(self):
        self.diagnosis, self.step, self.recent, self.samples, self.story = None, None, [], [], ""
        self._count, self._expected, self._known, self._can_sample = 0, False, set(), True
        self._kept = collections.deque(maxlen=self.remember)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        model = self.model
        if tf.distribute.has_strategy() or type(model.distribute_strategy).__name__ != "_DefaultDistributionStrategy":
            raise ValueError(
                "Watch does not work under a tf.distribute strategy; train without one to find the mistake"
            )
        self._forget()
        own = lines.own_frame(sys._getframe(1))
        self._asked_from = Line(own.f_code.co_filename, own.f_lineno) if own else None
        self._original, self._function = model.train_function, self._make_function()
        model.train_function = self._function
        callbacks = _callback_list(sys._getframe(1))
        if callbacks is not None:
            weakref.finalize(callbacks, _restore, weakref.ref(model), self._function, self._original)

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._expected = True

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._look_at_weights()

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._look_at_weights()
        _restore(lambda: self.model, self._function, self._original)
        self._kept.clear()

    def _make_function(self):
        """What stands in for the model's train_function."""
        original, model = self.model.train_function, weakref.ref(self.model)

        def watched(iterator):
            if not self._expected:  # a fit without this callback, after one that an error ended
                _restore(model, watched, original)
                return original(iterator)
            self._expected = False
            try:
                return self._steps(iterator, original)
            except StopIteration:
                raise
            except BaseException:
                _restore(model, watched, original)
                raise

        return watched

    def _steps(self, iterator, original):
        """Run as many steps as Keras asks for. Returns the logs of the last."""
        logs = None
        for _ in range(self.model.steps_per_execution):
            try:
                data = next(iterator)
            except (StopIteration, tf.errors.OutOfRangeError):
                break
            logs = self._one_step(data, original)
            if self.step is not None:
                break
        if logs is None:
            raise StopIteration
        return logs

    def _one_step(self, data, original):
        batch = tf.keras.utils.unpack_x_y_sample_weight(tf.nest.map_structure(_value, data))
        self._kept.append(_Kept(self._count, batch, self._weights()))
        if self.every and self._can_sample and self._count % self.every == 0:
            self._sample(batch)
        logs = original(iter([data]))
        self._count += 1
        if not all(_is_finite(value) for name, value in (logs or {}).items() if "loss" in name):
            self._stop()
        return logs

    def _weights(self):
        """What a step depends on, as [(variable, value)]."""
        if self._count < 2:  # by then all of them are made
            model = self.model
            others = [one for optimizer in model_step.optimizers_of(model) for one in optimizer.variables]
            others = {id(one) for one in (*others, *model.metrics_variables)}
            self._variables = [one for one in model_step.everything_in(model) if id(one) not in others]
        return [(variable, _read(variable)) for variable in self._variables]

    def _sample(self, batch):
        try:
            found = diagnosed(self.model, None, batch, self._asked_from)
        except Exception as error:  # a sample must not end the training
            self._can_sample = False
            self.report(f"Watch: this model cannot be diagnosed: {type(error).__name__}: {error}")
            return
        self.samples.append((self._count, found))
        new = [one for one in found.sick if (one.name, one.status) not in self._known]
        if new and math.isfinite(found.loss):
            self._known.update((one.name, one.status) for one in new)
            self.report(f"Watch, step {self._count}: {dataclasses.replace(found, variables=tuple(new), layers=())}")

    def _look_at_weights(self):
        """Notice weights that are not finite where no step will follow."""
        if self.step is None and self._kept and not all(map(_is_finite, self.model.trainable_variables)):
            self._stop()

    def _stop(self):
        """Find the step that went wrong among those that are kept, explain it, and end the training."""
        self.model.stop_training = True
        kept = list(self._kept)
        # The loss may turn bad a step after the weights did.
        sound = [one for one in kept if all(_is_finite(value) for _, value in one.weights)]
        culprit = sound[-1] if sound else kept[0]
        self.step = culprit.step
        try:
            self.diagnosis = diagnosed(self.model, None, culprit.batch, self._asked_from, culprit.weights)
            before = [one for one in kept if one.step < culprit.step]
            self.recent = [self._measured(one) for one in before]
            self.recent.append((culprit.step, self.diagnosis.loss, _whole_norm(self.diagnosis)))
        except Exception as error:
            self.story = f"Step {self.step} made the loss or a weight not finite, and could not be run again: {error}"
        else:
            self.story = "\n".join(self._told(bool(sound)))
        self.report(self.story)

    def _measured(self, kept):
        found = diagnosed(self.model, None, kept.batch, self._asked_from, kept.weights)
        return kept.step, found.loss, _whole_norm(found)

    def _told(self, was_sound):
        found = self.diagnosis
        yield f"Watch stopped the training: step {self.step} made the loss or a weight not finite."
        if not was_sound:
            yield "Weights were not finite before any step that was kept: what follows is the oldest of these."
        if self._is_diverging():
            times = ", ".join(f"{norm:.3g} at step {step}" for step, _, norm in self.recent)
            rate = _learning_rate(self.model)
            yield f"The training diverges: the gradient's norm was {times}. The learning rate{rate} is too large."
            yield "Fix:\n    # a learning rate ten times smaller, or clipnorm=1.0 in the optimizer"
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

    def _is_diverging(self):
        norms = [norm for _, _, norm in self.recent]
        pairs = list(itertools.pairwise(norms))
        return len(pairs) > 1 and all(new > _GROWTH * old > 0 or not math.isfinite(new) for old, new in pairs)


def _restore(model, function, original):
    """Put a model's train_function back, unless it was replaced meanwhile. `model` is called for the model."""
    model = model()
    if model is not None and function is not None and model.train_function is function:
        model.train_function = original


def _callback_list(frame):
    """Keras's list of callbacks, which lives as long as the call of fit."""
    while frame is not None:
        found = frame.f_locals.get("self")
        if isinstance(found, tf.keras.callbacks.CallbackList):
            return found
        frame = frame.f_back
    return None


def _value(part):
    """Keras passes a missing part of a batch as an optional without a value."""
    return None if isinstance(part, tf.experimental.Optional) else part


def _read(variable):
    """The value of a variable as it is now; a later assignment does not change it."""
    inner = variable.value if hasattr(variable, "path") else variable
    return tf.raw_ops.ReadVariableOp(resource=inner.handle, dtype=inner.dtype)


def _is_finite(value):
    values = np.asarray(value)
    return not np.issubdtype(values.dtype, np.floating) or bool(np.isfinite(values).all())


def _whole_norm(found):
    """The norm of the gradient of all variables together."""
    return float(np.sqrt(sum(one.gradient_norm**2 for one in found.variables if one.gradient_norm is not None)))


def _learning_rate(model):
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    return f" ({float(rate):g})" if rate is not None else ""
