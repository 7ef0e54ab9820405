"""A Keras model's compiled step that also looks: at its batch, at its loss, and at the weights that it leaves.

A look is one sum over everything: it is finite where all of that is, and costs one reading of it in the step's own
graph. A sum may overflow where every number is finite, so a sum that is not finite is a reason to look again at each
number, and no verdict.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tapelab.explain.models import model_step

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Looked:
    """One step, after it ran.

    Attributes:
        step: its number, from 0.
        logs: what the train_step returned.
        total: the sum of all floating-point numbers in the weights after it, in the batch, and in the losses of `logs`.
    """

    step: int
    logs: Any
    total: float
    _kept: tf.experimental.Optional
    _variables: list[Any]

    @property
    def batch(self) -> Any:
        """The batch, as `fit` draws it."""
        return self._kept.get_value()[0]

    @property
    def before(self) -> list[tuple[Any, tf.Tensor]]:
        """[(variable, value)]: what the step depended on, as it was before it ran."""
        return [(self._variables[place], value) for place, value in self._kept.get_value()[1].items()]


class _VariablesMade(Exception):
    """Tracing a step made variables, whose values from before the step are not read yet: trace it again."""


class WatchedStep:
    """The compiled step of a model, with a look in its graph.

    It is traced anew, in the way in which Keras compiles the model's own train_step: with its ``jit_compile``, eagerly
    with ``run_eagerly``, on each replica under a `tf.distribute` strategy.

    Args:
        model: a compiled Keras model.
    """

    def __init__(self, model: tf.keras.Model):
        self._model, self._own_step = model, model.train_step
        self._count = 0
        self._variables = []  # what the step depends on, in the order in which it was met
        with model_step.attributes((model, {"train_step": self._step, "train_function": None})):
            model.make_train_function()
            self._run = model.train_function
        compiled = tf.function(self._one_step, autograph=False, reduce_retracing=True)
        self._draw_and_run = self._one_step if model.run_eagerly else compiled

    def __call__(self, iterator: Any) -> Looked:
        """Draw a batch and run the step on it.

        Args:
            iterator: of a `tf.data.Dataset`, as `fit` has it.

        Raises:
            tf.errors.OutOfRangeError, StopIteration: if there is no further batch.
        """
        try:
            logs, total, kept = self._draw_and_run(iterator)
        except _VariablesMade:  # while it was traced: it has not run
            logs, total, kept = self._draw_and_run(iterator)
        self._count += 1
        return Looked(self._count - 1, logs, float(total), kept, self._variables)

    def looked_at(self) -> list[Any]:
        """Return the variables whose numbers are summed: weights, moving statistics, gradients that are collected.

        Without the metrics, which keep a NaN for the rest of the epoch, and the moments of the optimizers.
        """
        optimizers = model_step.optimizers_of(self._model)
        collected = [one for optimizer in optimizers for one in optimizer.variables if "gradient_accum" in one.path]
        return [one for one in (*_without_bookkeeping(self._model), *collected) if _is_summed(tf.as_dtype(one.dtype))]

    def _one_step(self, iterator: Iterator[Any]) -> tuple[Any, tf.Tensor, tf.experimental.Optional]:
        """Returns (logs, total, (batch, values before)), the last as one object that holds them without a copy."""
        batch = iterator.get_next()
        before = dict(self._read_all())
        found = self._run(iter([batch]))
        if not tf.executing_eagerly() and len(before) < len(_without_bookkeeping(self._model)):
            raise _VariablesMade
        return found["logs"], found["total"], tf.experimental.Optional.from_value((batch, before))

    def _step(self, batch: Any) -> dict[str, Any]:
        """The train_step in place of the model's own. Keras traces it."""
        optimizers = model_step.optimizers_of(self._model) if is_undistributed(self._model) else ()
        with _out_of_place(optimizers):
            logs = self._own_step(batch)
        losses = [value for name, value in dict(logs or {}).items() if "loss" in name]
        return {
            "logs": logs,
            "total": _sum_of([*self.looked_at(), *tf.nest.flatten(batch, expand_composites=True), *losses]),
        }

    def _read_all(self) -> Iterator[tuple[int, tf.Tensor]]:
        """Read what the step depends on: pairs of a variable's place in `_variables` and its value."""
        places = {id(variable): place for place, variable in enumerate(self._variables)}
        for variable in _without_bookkeeping(self._model):
            if id(variable) not in places:
                places[id(variable)] = len(self._variables)
                self._variables.append(variable)
            yield places[id(variable)], _read(variable)


def is_undistributed(model: tf.keras.Model) -> bool:
    """Whether a model was made under no `tf.distribute` strategy."""
    return type(model.distribute_strategy).__name__ == "_DefaultDistributionStrategy"


def _without_bookkeeping(model: tf.keras.Model) -> list[Any]:
    """Every variable that a step depends on: all that it may change but the metrics' and the optimizers'."""
    others = [one for optimizer in model_step.optimizers_of(model) for one in optimizer.variables]
    others = {id(one) for one in (*others, *model.metrics_variables)}
    return [one for one in model_step.everything_in(model) if id(one) not in others]


def _read(variable: Any) -> tf.Tensor:
    """The value of a variable as it is now; a later assignment does not change it."""
    inner = variable.value if hasattr(variable, "path") else variable
    return inner.read_value()


def _is_summed(dtype: tf.DType) -> bool:
    return dtype.is_floating or dtype.is_complex


def _sum_of(values: Iterable[Any]) -> tf.Tensor:
    """The sum of all floating-point numbers in a list of tensors and variables; of complex ones, their sum's size."""
    sums = [tf.zeros(())]
    for value in values:
        if value is None or not _is_summed(tf.as_dtype(getattr(value, "dtype", tf.string))):
            continue
        value = tf.convert_to_tensor(_read(value) if hasattr(value, "handle") else value)
        wide = tf.cast(value, tf.float32) if value.dtype.size < 4 else value
        total = tf.reduce_sum(wide)
        sums.append(tf.cast(tf.abs(total) if total.dtype.is_complex else total, tf.float32))
    return tf.add_n(sums)


def _out_of_place(optimizers: Sequence[tf.keras.optimizers.Optimizer]) -> contextlib.AbstractContextManager[None]:
    """Let optimizers that are traced in this context put new values in the place of old ones.

    An update in place of a variable whose old value someone still holds copies it first, which takes longer than all
    looks together. The difference is a new tensor anyway.
    """
    changed = [one for one in optimizers if hasattr(one, "assign_sub")]
    return model_step.attributes(*((one, {"assign_sub": _subtracting(one, one.assign_sub)}) for one in changed))


def _subtracting(optimizer: Any, original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def assign_sub(variable: Any, value: Any) -> Any:
        if isinstance(value, tf.IndexedSlices):
            return original(variable, value)
        current = tf.convert_to_tensor(variable)
        return optimizer.assign(variable, current - tf.cast(value, current.dtype))

    return assign_sub
