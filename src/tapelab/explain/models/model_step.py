"""One training step of a Keras model on an `ExplainTape`, with nothing about the model changed afterwards."""

import contextlib
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias
from unittest import mock

from tapelab import process
from tapelab.explain.ground.explain_tape import ExplainTape

import numpy as np
import tensorflow as tf

Weights: TypeAlias = Sequence[tuple[Any, tf.Tensor]]  # variables, each with a value


@dataclasses.dataclass(frozen=True)
class Part:
    """A loss and the variables whose gradient was asked for. A custom train_step may have several.

    Attributes:
        loss: a scalar tensor.
        variables: a list of variables.
        scale: what the loss was multiplied with, for mixed precision.
    """

    loss: tf.Tensor
    variables: list
    scale: float = 1.0


def batch_of(x: Any, y: Any = None, sample_weight: Any = None) -> Any:
    """Return a batch as `fit` hands it to a train_step: x alone where there is nothing else, else a tuple.

    Args:
        x: arrays, tensors, or a dict, list or tuple of them; or a `tf.data.Dataset` or `keras.utils.PyDataset`, of
            which the first batch is taken, in whatever structure it has.
        y: targets, likewise, or None.
        sample_weight: an array of shape (batch,), likewise, or None.

    Returns:
        A tensor or a structure of tensors, floating-point NumPy arrays in Keras's `floatx`.

    Raises:
        TypeError: if `x` is something to draw batches from that is not known, such as a generator.
        ValueError: if `x` is a dataset and `y` or `sample_weight` is passed too, or if the dataset is empty.
    """
    is_dataset, is_sequence = isinstance(x, tf.data.Dataset), isinstance(x, tf.keras.utils.PyDataset)
    if is_dataset or is_sequence:
        if y is not None or sample_weight is not None:
            raise ValueError(f"x is a {type(x).__name__}, which has the targets in it: leave y and sample_weight out")
        batch = next(iter(x), None) if is_dataset else x[0]
        if batch is None:
            raise ValueError("the dataset is empty; expected at least one batch")
        return tuple(map(_tensors, batch)) if isinstance(batch, (tuple, list)) else _tensors(batch)
    if inspect.isgenerator(x) or hasattr(x, "__next__"):
        raise TypeError(f"x is a {type(x).__name__}; take one batch from it: x, y = next(batches)")
    return tf.keras.utils.pack_x_y_sample_weight(*map(_tensors, (x, y, sample_weight)))


def build(model: tf.keras.Model, batch: Any) -> None:
    """Build a model on a batch where some of its layers are not built yet."""
    if not all(layer.built for layer in layers_of(model)):
        model(batch[0] if isinstance(batch, (tuple, list)) else batch)


def _tensors(data: Any) -> Any:
    if data is None:
        return None
    if isinstance(data, (list, tuple)) and all(np.isscalar(one) for one in tf.nest.flatten(data)):
        data = np.asarray(data)
    return tf.keras.tree.lists_to_tuples(tf.nest.map_structure(_tensor, data))


def _tensor(value: Any) -> Any:
    if value is None or tf.is_tensor(value) or isinstance(value, (tf.RaggedTensor, tf.SparseTensor)):
        return value
    value = np.asarray(value)
    return tf.convert_to_tensor(value.astype(tf.keras.backend.floatx()) if value.dtype.kind == "f" else value)


def everything_in(model: tf.keras.Model) -> list[Any]:
    """Return every variable that a step may change: weights, moving statistics, seeds, metrics, the optimizers'.

    Returns:
        A list, each variable once.
    """
    found = [*model.variables, *model.metrics_variables, *_global_seed()]
    for layer in layers_of(model):
        # Keras does not count a tf.Variable among a layer's variables.
        found += [variable for value in vars(layer).values() for variable in _tf_variables(value)]
    for optimizer in optimizers_of(model):
        found += optimizer.variables
    return list({id(variable): variable for variable in found}.values())


def state_of(model: tf.keras.Model, with_collected: bool = False) -> list[Any]:
    """Return every variable that a step depends on: all that it may change but the metrics' and the optimizers'.

    Args:
        with_collected: whether the gradients that optimizers collect over several steps are among them.
    """
    own = [one for optimizer in optimizers_of(model) for one in optimizer.variables]
    others = {id(one) for one in (*own, *model.metrics_variables)}
    collected = [one for one in own if with_collected and "gradient_accum" in one.path]
    return [one for one in everything_in(model) if id(one) not in others] + collected


def layers_of(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return a model's layers, also those within others, as a list."""
    return list(model._flatten_layers()) if hasattr(model, "_flatten_layers") else [model]


def _tf_variables(value: Any) -> Iterator[tf.Variable]:
    """Each `tf.Variable` that an attribute is, or holds in lists, tuples and dicts."""
    if isinstance(value, tf.Variable):
        yield value
    elif isinstance(value, (list, tuple, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tf_variables(part)


def _global_seed() -> list[Any]:
    """The state of Keras's seed for layers and losses that have none of their own; nothing where it cannot be found."""
    try:
        from keras.src.backend.common.global_state import get_global_attribute
    except ImportError:
        return []
    generator = get_global_attribute("global_seed_generator")
    return [generator.state] if generator is not None else []


def optimizers_of(model: tf.keras.Model) -> list[tf.keras.optimizers.Optimizer]:
    """Return the optimizers of a model, as a list: that of compile, and its own in the case of a custom train_step."""
    own = [value for value in vars(model).values() if isinstance(value, tf.keras.optimizers.Optimizer)]
    found = [getattr(model, "optimizer", None), *own]
    return list({id(one): one for one in found if one is not None}.values())


def _with_value(variable: Any) -> tuple[Any, tf.Tensor | None]:
    """A variable and its value; None where a step that failed while it was traced made it and gave it none."""
    try:
        value = tf.identity(variable)
    except tf.errors.FailedPreconditionError:
        value = None
    return variable, value if value is None or value.shape == variable.shape else None


@contextlib.contextmanager
def unchanged(model: tf.keras.Model, weights: Weights = ()) -> Iterator[None]:
    """Restore every variable of a model at the end of this context, in which some have other values.

    Args:
        weights: [(variable, value)] for the time within the context.
    """
    before = [(variable, value) for variable, value in map(_with_value, everything_in(model)) if value is not None]
    try:
        for variable, value in weights:
            variable.assign(value)
        yield
    finally:
        for variable, value in before:
            variable.assign(value)


def run(model: tf.keras.Model, loss: Any, batch: Any, scale: float | None = None) -> tuple[ExplainTape, list[Part]]:
    """Run one training step's forward pass, or a custom train_step, under an `ExplainTape`.

    Args:
        model: a Keras model that is built.
        loss: as `tapelab.explain.diagnose` takes it.
        batch: as `batch_of` returns it.
        scale: what to multiply the loss with, in place of what its optimizer does.

    Returns:
        (tape, a list of `Part`).

    Raises:
        ValueError: if `loss` is None and the model was not compiled with one.
    """
    if loss is None and type(model).train_step is not tf.keras.Model.train_step:
        return _run_own_step(model, batch)
    if loss is None and not model.compiled:
        raise ValueError("the model is not compiled, so it has no loss; compile it, or pass a loss")
    x, y, sample_weight = tf.keras.utils.unpack_x_y_sample_weight(batch)
    with ExplainTape(persistent=True) as tape:
        prediction = model(x, training=True) if _takes(model.call, "training") else model(x)
        value = _loss(model, loss, x, y, prediction, sample_weight)
        scale = _scale(model) if scale is None else scale
        scaled = value * scale
    return tape, [Part(scaled, list(model.trainable_variables), scale)]


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())


def _scale(model: tf.keras.Model) -> float:
    """What the model's optimizer multiplies a loss with, for mixed precision; 1 where it has none."""
    optimizer = getattr(model, "optimizer", None)
    return 1.0 if optimizer is None else float(optimizer.scale_loss(tf.constant(1.0)))


def _loss(model: tf.keras.Model, loss: Any, x: Any, y: Any, prediction: Any, sample_weight: Any) -> tf.Tensor:
    if loss is None:
        more = {"training": True} if _takes(model.compute_loss, "training") else {}
        value = model.compute_loss(x=x, y=y, y_pred=prediction, sample_weight=sample_weight, **more)
        if value is None:
            raise ValueError("the model was compiled without a loss; pass one")
        return value
    if callable(loss) and not isinstance(loss, tf.keras.losses.Loss):
        if sample_weight is not None:
            raise ValueError("sample_weight needs a loss of Keras; a function of your own can weight by itself")
        value = tf.reduce_mean(tf.convert_to_tensor(loss(y, prediction)))
    else:  # a model without layers has Keras's way with names, several outputs and weights
        shell = tf.keras.Model()
        shell.compile(loss=loss)
        value = shell.compute_loss(y=y, y_pred=prediction, sample_weight=sample_weight)
    return tf.add_n([value, *(tf.cast(one, value.dtype) for one in model.losses)])


def _run_own_step(model: tf.keras.Model, batch: Any) -> tuple[ExplainTape, list[Part]]:
    """Run a custom train_step, and take down each gradient that its tape is asked for."""
    asked = []
    with ExplainTape(persistent=True) as tape, _noting(asked), _idle(optimizers_of(model)):
        model.train_step(batch)
    if any(tf.is_symbolic_tensor(target) for targets, _ in asked for target in tf.nest.flatten(targets)):
        raise ValueError("the train_step is a tf.function, whose tape cannot be seen; take that decorator away")
    if not asked:
        raise ValueError("the train_step asked no tf.GradientTape for a gradient; pass a loss")
    parts = []
    for targets, sources in asked:
        variables = [one for one in tf.nest.flatten(sources) if hasattr(one, "handle")]
        total = tf.nest.flatten(targets)
        parts.append(Part(total[0] if len(total) == 1 else total, variables, _scale(model)))
    return tape, parts


def _noting(asked: list[tuple[Any, Any]]) -> contextlib.AbstractContextManager[Any]:
    """Append (target, sources) to a list for each gradient that a tape is asked for within this context."""

    def gradient(own: Any, self, target: Any, sources: Any, *arguments: Any, **keywords: Any) -> Any:
        asked.append((target, sources))
        return own(self, target, sources, *arguments, **keywords)

    return process.replaced(tf.GradientTape, "gradient", gradient)


@contextlib.contextmanager
def _idle(optimizers: Sequence[tf.keras.optimizers.Optimizer]) -> Iterator[None]:
    """Make optimizers do nothing, so that a step neither moves the weights nor makes variables for them."""

    def nothing(*arguments: Any, **keywords: Any) -> None:
        return None

    with contextlib.ExitStack() as stack:
        for one in optimizers:
            stack.enter_context(mock.patch.multiple(one, apply=nothing, apply_gradients=nothing))
        yield
