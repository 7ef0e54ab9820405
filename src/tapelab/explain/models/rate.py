"""Whether a step of training was too long: the loss of its own batch after all of it, and after a part of it."""

from typing import Any

from tapelab.explain.causes import TRIED
from tapelab.explain.models import model_step

import numpy as np
import tensorflow as tf

_RISE = 9.0  # of the loss, on top of it
_PARTS = tuple(10.0**-k for k in range(1, 8))


def about_step(model: tf.keras.Model, batch: Any, before: model_step.Weights) -> str:
    """Say that a step was too long, if it was.

    It was where all of it makes the loss of the batch that it was made for ten times larger, and some part of it lowers
    it. A smaller rise may be what momentum, or the noise of batches near a minimum, does.

    Args:
        model: a compiled Keras model, as the step left it.
        batch: the step's, as `tapelab.explain.models.model_step.batch_of` returns it.
        before: [(variable, value)]: the weights from before the step.

    Returns:
        Text; empty where the step was not too long, or the model has more than one loss.
    """
    trained = {id(variable) for variable in model.trainable_variables}
    moves = [(one, old, tf.convert_to_tensor(one) - old) for one, old in before if id(one) in trained]

    def loss_after(part: float) -> float:
        with model_step.unchanged(model, [(one, old + tf.cast(part, old.dtype) * move) for one, old, move in moves]):
            _, losses = model_step.run(model, None, batch, scale=1.0)
        return float(np.sum(losses[0].loss)) if len(losses) == 1 else np.nan

    old, new = loss_after(0.0), loss_after(1.0)
    if not new - old > _RISE * abs(old):
        return ""
    part, lower = next(((part, loss) for part in _PARTS if (loss := loss_after(part)) < old), (None, None))
    if part is None:
        return ""
    rate = rate_of(model)
    said = f"The step raises the loss of its own batch from {old:.4g} to {new:.4g}, and {part:g} of it lowers it to"
    said += f" {lower:.4g}: the learning rate{'' if rate is None else f' ({rate:g})'} is too large."
    return f"{said}\n{TRIED['works']}\n    learning_rate={part * (1.0 if rate is None else rate):g}"


def rate_of(model: tf.keras.Model) -> float | None:
    """Return the learning rate that a model's optimizer has now; None where it has none."""
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    return None if rate is None else float(tf.convert_to_tensor(rate))  # of a mirrored variable, too
