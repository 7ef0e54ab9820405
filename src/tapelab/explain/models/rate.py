"""What a step of training does with the gradient: whether it was too long, or moves the weights hardly at all."""

from collections.abc import Sequence
from typing import Any

from tapelab.explain.causes import TRIED
from tapelab.explain.models import model_step

import numpy as np
import tensorflow as tf

_RISE = 9.0  # of the loss, on top of it
_HARDLY = 1e-3  # of what the learning rate would do with a gradient of norm 1, or less
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

    hardly = _about_movement(model, batch, moves)
    if hardly:
        return hardly
    old, new = loss_after(0.0), loss_after(1.0)
    if not new - old > _RISE * abs(old):
        return ""
    part, lower = next(((part, loss) for part in _PARTS if (loss := loss_after(part)) < old), (None, None))
    if part is None:
        return ""
    rate = rate_of(model)
    said = f"The step raises the loss of its own batch from {old:.4g} to {new:.4g}, and {part:g} of it lowers it to"
    said += f" {lower:.4g}: the learning rate{'' if rate is None else f' ({rate:g})'} is too large."
    return f"{said}\n{TRIED['untried']}\n    learning_rate={part * (1.0 if rate is None else rate):g}"


def about_own_step(model: tf.keras.Model, batch: Any) -> str:
    """Say what a model's own train_step, run once and undone, hardly does with the gradient; "" where it uses it.

    Only of a model that is compiled and was trained: a first step makes the optimizer's variables, which stay.
    """
    own = type(model).train_step is not tf.keras.Model.train_step
    if not own or not all(getattr(one, "built", False) for one in model_step.optimizers_of(model) or [None]):
        return ""
    before = [(variable, tf.identity(variable)) for variable in model.trainable_variables]
    with model_step.unchanged(model):
        model.train_step(batch)
        moves = [(variable, old, tf.convert_to_tensor(variable) - old) for variable, old in before]
        return _about_movement(model, batch, moves)


def _about_movement(model: tf.keras.Model, batch: Any, moves: Sequence[tuple[Any, tf.Tensor, tf.Tensor]]) -> str:
    """Say that a step moved the weights far less than the learning rate and the gradient would; "" where it did not."""
    optimizers = model_step.optimizers_of(model)
    if rate_of(model) is None or any(getattr(one, "gradient_accumulation_steps", None) for one in optimizers):
        return ""
    with model_step.unchanged(model, [(one, old) for one, old, _ in moves]):
        tape, parts = model_step.run(model, None, batch)
        found = [tape.gradient(parts[0].loss, one) for one, _, _ in moves]
        iterations = getattr(model.optimizer, "inner_optimizer", model.optimizer).iterations
        iterations.assign_sub(1)  # the rate that a schedule had for this step
        rate, is_first = rate_of(model), not int(iterations)
    norm = float(tf.linalg.global_norm([one for one in found if one is not None])) / parts[0].scale
    moved = float(tf.linalg.global_norm([move for _, _, move in moves]))
    if not np.isfinite(norm) or not norm or moved > _HARDLY * rate * min(norm, 1.0) or (is_first and not rate):
        return ""
    if not rate:
        return "The learning rate is 0, so that a step moves no weight. A schedule counts steps, not epochs."
    said = f"The gradient's norm is {norm:.3g}, the learning rate {rate:g}, and a step moves weights by {moved:.1e}:"
    if parts[0].scale != 1:
        return (
            f"{said} what is clipped is still multiplied by the loss scale, {parts[0].scale:g}.\n{TRIED['untried']}\n"
            "    # clip in the inner optimizer, which gets the unscaled gradients: global_clipnorm=1.0"
        )
    return f"{said} see what happens to the gradients from tape.gradient to apply_gradients, and to which variables."


def rate_of(model: tf.keras.Model) -> float | None:
    """Return the learning rate that a model's optimizer has now; None where it has none."""
    rate = getattr(getattr(model, "optimizer", None), "learning_rate", None)
    return None if rate is None else float(tf.convert_to_tensor(rate))  # of a mirrored variable, too
