"""`Watch`: a callback that stops `fit` at the first step that makes something not finite, and explains that step.

Keras runs a compiled step, which no tape can look into, and after which the weights that made the NaN are gone. So each
batch is drawn here and the weights are read before the model's own step runs on it. Where a look at what it left finds
something, that step is run once more, eagerly, under an `ExplainTape`.
"""

import collections
import dataclasses
import itertools
import math
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from tapelab.explain.causes import TRIED
from tapelab.explain.ground.measure import NotFinite
from tapelab.explain.ground.rendering import listed
from tapelab.explain.models import model_step
from tapelab.explain.models.bad_rows import about_rows, is_finite, is_sound, not_finite_in
from tapelab.explain.models.diagnose import asked_at, diagnosed, name_of
from tapelab.explain.models.diagnosis import Diagnosis
from tapelab.explain.models.rate import about_step, rate_of

import tensorflow as tf

_GROWTH = 3.0  # how many times the gradient's norm must grow in each step for the training to count as diverging


@dataclasses.dataclass(frozen=True)
class Looked:
    """One step, after it ran.

    Attributes:
        step: its number, from 0.
        batch: the batch, as the model's train_step got it.
        before: [(variable, value)]: what the step depended on, as it was before it ran.
        logs: what the step returned.
    """

    step: int
    batch: Any
    before: model_step.Weights
    logs: Any

    @property
    def losses(self) -> dict[str, Any]:
        """Those of the logs that are losses, by name."""
        return {name: value for name, value in dict(self.logs or {}).items() if "loss" in name}


class Watch(tf.keras.callbacks.Callback):
    """A Keras callback that explains bad gradients while `fit` runs.

    ::

        model.fit(x, y, callbacks=[Watch()])

    - After each step it looks at the loss, the weights, and the batch. At the first loss or weight that is not finite
      the training stops, and why is printed, with the line, the fix, and the rows of the batch where it is a matter of
      rows. A batch that is not finite and does no harm is only mentioned.
    - Every so many steps, first before any, it diagnoses the batch as `diagnose` does, and prints what is newly wrong:
      for each of the variables of which Keras only warns that "Gradients do not exist" the reason. After such a step
      it looks whether that was too long: whether it raises the loss of its own batch, which a part of it lowers.

    It works with ``jit_compile``, ``class_weight`` and ``sample_weight``, `tf.data`, generators, a custom train_step,
    gradients that are accumulated over several steps, and ``steps_per_execution`` (the steps then run one by one). The
    step that is explained runs eagerly and without XLA; where it is in order then, that is said. Under a strategy of
    `tf.distribute` `fit` raises ValueError: look for the mistake without one. The model is as before
    when `fit` ends; where an error in another callback or in the data ends it, at the next `fit`.

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
        self._expected, self._known, self._can_sample, self._count = False, set(), True, 0
        self._kept = collections.deque(maxlen=self.remember)

    def on_train_begin(self, logs: Mapping[str, Any] | None = None) -> None:
        strategy = type(self.model.distribute_strategy).__name__
        if strategy != "_DefaultDistributionStrategy":
            raise ValueError(f"Watch does not work under a {strategy}; train without a strategy to find the mistake")
        self._forget()
        self._asked = asked_at(sys._getframe(1), 0)
        self.model.train_function = self._make_function()

    def on_train_batch_begin(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        self._expected = True

    def on_train_end(self, logs: Mapping[str, Any] | None = None) -> None:
        self._restore()
        self._kept.clear()

    def _make_function(self) -> Callable[[Iterator[Any]], Any]:
        """What stands in for the model's train_function."""
        original, model = self.model.train_function, weakref.ref(self.model)

        def restore() -> None:
            if model() is not None and model().train_function is watched:  # it may have been replaced meanwhile
                model().train_function = original

        def watched(iterator: Iterator[Any]) -> Any:
            if not self._expected:  # a fit without this callback, after one that an error ended
                restore()
                return original(iterator)
            self._expected = False
            try:
                return self._steps(iterator, original)
            except StopIteration:
                raise
            except BaseException:
                restore()
                raise

        self._restore = restore
        return watched

    def _steps(self, iterator: Iterator[Any], run: Callable[[Iterator[Any]], Any]) -> Any:
        """Run as many steps as Keras asks for. Returns the logs of the last."""
        logs = None
        for drawn in itertools.islice(iterator, self.model.steps_per_execution):
            # Keras passes a missing part of a batch as an optional without a value.
            batch = tf.nest.map_structure(lambda one: None if isinstance(one, tf.experimental.Optional) else one, drawn)
            model_step.build(self.model, batch)
            if self._count < 2:  # the first step makes what the optimizer keeps
                self._look_at_variables()
            before = list(zip(self._depended_on, self._read(), strict=True))
            try:
                logs = run(iter([drawn]))
            except ValueError as error:
                if "No gradients provided" in str(error):  # raised while the step was traced
                    self.report(f"Watch, before any step: {self._of_batch(batch, ())}")
                raise
            self._take(Looked(self._count, batch, before, logs))
            self._count += 1
            if self.model.stop_training:
                break
        if logs is None:
            raise StopIteration
        return logs

    def _look_at_variables(self) -> None:
        """Compile the reading of what a step depends on, and the sum of what it leaves."""
        self._depended_on, self._left = (model_step.state_of(self.model, collected) for collected in (False, True))
        options = {"autograph": False, "reduce_retracing": True}
        self._read = tf.function(lambda: [tf.identity(one) for one in self._depended_on], **options)
        self._sum = tf.function(lambda more: _sum_of([*self._left, *more]), **options)

    def _take(self, looked: Looked) -> None:
        """Keep a step, and see what is to be said of it."""
        self._kept.append(looked)
        if self.every and self._can_sample and looked.step % self.every == 0:
            self._sample(looked)
        more = [*tf.nest.flatten(looked.batch, expand_composites=True), *looked.losses.values()]
        if not math.isfinite(self._sum([tf.convert_to_tensor(one) for one in more if one is not None])):
            self._look_closer(looked)

    def _sample(self, looked: Looked) -> None:
        try:
            found = self._of_batch(looked.batch, looked.before)
            of_rate = "" if "rate" in self._known else about_step(self.model, looked.batch, looked.before)
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
        if of_rate:
            self._known.add("rate")
            self.report(f"Watch, step {looked.step}: {of_rate}")

    def _of_batch(self, batch: Any, before: model_step.Weights) -> Diagnosis:
        return diagnosed(self.model, None, batch, self._asked, before, without_step=True)

    def _look_closer(self, looked: Looked) -> None:
        """A sum is not finite: see of which numbers, and end the training if that does harm."""
        batch = not_finite_in(looked.batch)
        after = [name_of(one, self.model) for one in self._left if not is_finite(one)]
        losses = [name for name, value in looked.losses.items() if not is_finite(value)]
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
            self.rows, said = about_rows(looked.batch, in_batch, lambda part: is_sound(self.model, part, looked.before))
            head += said
            for kept in self._kept:
                self.diagnosis = self._of_batch(kept.batch, kept.before)
                norm = math.sqrt(sum((one.gradient_norm or 0.0) ** 2 for one in self.diagnosis.variables))
                self.recent.append((kept.step, self.diagnosis.loss, norm))
        except Exception as error:
            head.append(f"It could not be run again: {type(error).__name__}: {error}")
            return "\n".join(head)
        return "\n".join([*head, *self._told()])

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
            said = "Run again eagerly, the step is in order, so it cannot be explained."
            yield said + compiled if self.model.jit_compile else said
        yield str(found)

    def _is_diverging(self) -> bool:
        norms = [norm for _, _, norm in self.recent]
        pairs = list(itertools.pairwise(norms))
        return len(pairs) > 1 and all(new > _GROWTH * old > 0 or not math.isfinite(new) for old, new in pairs)


def _sum_of(values: Iterable[Any]) -> tf.Tensor:
    """The sum of all floating-point numbers in tensors and variables: finite where all of these are, but for overflow.

    So a sum that is not finite is a reason to look again at each number, and no verdict.
    """
    floating = [tf.convert_to_tensor(one) for one in values if tf.as_dtype(one.dtype).is_floating]
    wide = [tf.cast(one, tf.float32) if one.dtype.size < 4 else one for one in floating]
    return tf.add_n([tf.zeros((), tf.float64), *(tf.cast(tf.reduce_sum(one), tf.float64) for one in wide)])


def _of_no_step(step: int, names: Sequence[str]) -> str:
    """What to say where weights were not finite before a step and no step had made them so."""
    when = f"after step {step - 1} and before step {step}" if step else "before the first step"
    who = "Something other than a step, such as a callback, set them." if step else "Look at where they were loaded."
    return f"Watch stopped the training: {listed(names)} became not finite {when}. {who}"
