"""`diagnose`: what is the matter with the gradients of a Keras model on a batch, without a tape of the learner's."""

import ast
import dataclasses
import functools
import math
import sys
import types
from collections.abc import Iterator, Sequence
from typing import Any

from tapelab.explain.asking import judged
from tapelab.explain.causes import CAUSES, VALUES
from tapelab.explain.explanation import Explanation
from tapelab.explain.ground import expressions, lines
from tapelab.explain.ground.explain_tape import ExplainTape
from tapelab.explain.ground.lines import Line
from tapelab.explain.ground.log import keys_in, keys_of
from tapelab.explain.ground.measure import NotFinite, array, rms
from tapelab.explain.ground.origins import Origins
from tapelab.explain.ground.rendering import listed, spelled
from tapelab.explain.missing.paths import Flow
from tapelab.explain.missing.question import Question
from tapelab.explain.models import model_step, rate
from tapelab.explain.models.bad_rows import not_finite_in, row_count
from tapelab.explain.models.diagnosis import Diagnosis, LayerHealth, VariableHealth
from tapelab.explain.models.model_step import Part, Weights
from tapelab.explain.values import magnitude, mechanisms
from tapelab.explain.values.rerun.evidence import slopes
from tapelab.explain.values.rerun.nodes import Trace
from tapelab.explain.values.study import study, worded
from tapelab.explain.values.zeros import RELUS

import numpy as np
import tensorflow as tf

FAR = 1e4  # times smaller or larger than the gradients nearest the loss: vanishing or exploding
_MANY_ZEROS = 0.4
_OF_LARGE = frozenset({"overflow", "saturated", "dead_relu", "clipped", "exploding", "steep"})
_UNSCALED = 50.0  # data that are larger are in some unit of their own
_FLAT = 0.01  # a slope below this is that of a unit that is off


def diagnose(
    model: tf.keras.Model, loss: Any = None, x: Any = None, y: Any = None, *, sample_weight: Any = None
) -> Diagnosis:
    """Say of each trainable variable of a Keras model whether its gradient is healthy and, if not, why not.

    One step is run eagerly, with ``training=True``; then everything is as it was: weights, moving statistics, seeds,
    metrics, optimizers. A gradient counts as vanishing or exploding by comparison: where the root mean square of its
    elements is 1e4 times smaller or larger than that of the variables nearest the loss. Every intermediate value is
    kept meanwhile, so pass a batch, not the whole data.

    Args:
        model: a Keras model. One that is not built yet is built on `x`.
        loss: the name of a Keras loss, a Keras loss, a function of (y, prediction), or a list or dict of these for
            several outputs; what is not a scalar is averaged, and the model's own losses (regularisers, add_loss)
            are added. None for the loss that the model was compiled with, or the losses of its own train_step.
        x: the batch's inputs: an array or tensor, or a dict, list or tuple of them. Or a `tf.data.Dataset` or
            `keras.utils.PyDataset` with the targets in it, of which the first batch is taken.
        y: the targets, likewise; None where the loss needs none.
        sample_weight: shape (batch,), for a loss of Keras.

    Returns:
        A `Diagnosis`.

    Raises:
        TypeError: if `model` is not a Keras model, or `x` a generator.
        ValueError: if nothing can be trained, no data were passed, or there is no loss.
    """
    if not isinstance(model, tf.keras.Model):
        raise TypeError(f"model is a {type(model).__name__}; expected a Keras model: diagnose(model, loss, x, y)")
    if x is None:
        raise ValueError("x is missing; expected a batch: diagnose(model, loss, x, y)")
    batch = model_step.batch_of(x, y, sample_weight)
    return diagnosed(model, loss, batch, asked_at(sys._getframe(1), 2))


@dataclasses.dataclass(frozen=True)
class Asked:
    """Where a diagnosis was asked for: the learner's line, and that which last assigned the data; None if unknown."""

    line: Line | None
    data: Line | None


def asked_at(frame: types.FrameType, position: int) -> Asked:
    """Return where a frame of the learner's, or around it, asks; its call has the data as the argument `position`."""
    own = lines.own_frame(frame)
    if own is None:
        return Asked(None, None)
    name, file = expressions.argument(expressions.arguments(own), position, ("x",)), own.f_code.co_filename
    while isinstance(name, (ast.Attribute, ast.Subscript)):
        name = name.value
    made = expressions.assigned_in(own.f_code, name.id, own.f_lineno) if isinstance(name, ast.Name) else []
    return Asked(Line(file, own.f_lineno), Line(file, made[0].lineno) if made else None)


def diagnosed(
    model: tf.keras.Model, loss: Any, batch: Any, asked: Asked, weights: Weights = (), without_step: bool = False
) -> Diagnosis:
    """Diagnose a model.

    Args:
        model, loss: as `diagnose` takes them.
        batch: as `tapelab.explain.models.model_step.batch_of` returns it.
        asked: where it was asked for: that line is not to blame for anything.
        weights: [(variable, value)] to put in place meanwhile.
        without_step: whether not to see what a whole step does to the weights.
    """
    model_step.build(model, batch)
    if not model.trainable_variables:
        raise ValueError(
            f"{model.name} has no trainable variables; is trainable=False, or has it no layers with weights?"
        )
    with model_step.unchanged(model, weights):
        tape, parts, variables = _at_a_scale_that_fits(model, loss, batch, asked)
        in_batch = not_finite_in(batch)
        if in_batch:
            variables = [_of_batch(one, in_batch[0], asked) for one in variables]
        is_sick = any(one.healthy is False for one in variables)
        return Diagnosis(
            model.name,
            _value(parts[0]),
            row_count(batch),
            tuple(one.without_values(node=None, cuts=(), further=()) for one in variables),
            tuple(_layers(model, tape, variables)),
            parts[0].scale,
            (*_notes(model, tape, parts, batch), *_idle_or_unscaled(variables, batch)),
            "" if without_step or is_sick else rate.about_own_step(model, batch),
        )


def _of_batch(one: VariableHealth, bad: NotFinite, asked: Asked) -> VariableHealth:
    """What is said of a variable where the batch was not finite as it came in."""
    if one.code != "source_not_finite" or one.sentence.startswith(one.name):
        return one
    sentence = f"The batch is not finite as it comes in: {bad}."
    fix = "# mend the data where it is made"
    return dataclasses.replace(one, sentence=sentence, line=asked.data or asked.line, layer="", fix=fix)


def _at_a_scale_that_fits(
    model: tf.keras.Model, loss: Any, batch: Any, asked: Asked
) -> tuple[ExplainTape, list[Part], list[VariableHealth]]:
    """Run a step and examine it. For mixed precision, lower the scale of the loss as its optimizer would.

    An optimizer that scales the loss skips a step whose gradients overflow, and halves the scale: that is no fault yet.
    """
    first, scale = None, None
    while True:
        tape, parts = model_step.run(model, loss, batch, scale=scale)
        variables = [one for number, part in enumerate(parts) for one in _examine(model, tape, part, number, asked)]
        found = tape, parts, variables
        first, scale = first or found, parts[0].scale / 16
        if not any(one.status == "not finite" for one in variables):
            return found
        if scale < 1 or not isinstance(model.optimizer, tf.keras.optimizers.LossScaleOptimizer):
            return first


def _value(part: Part) -> float:
    losses = tf.nest.flatten(part.loss)
    return float(sum(np.sum(np.asarray(one, np.float64)) for one in losses)) / part.scale


def _examine(model: tf.keras.Model, tape: ExplainTape, part: Part, number: int, asked: Asked) -> list[VariableHealth]:
    """Return a `VariableHealth` for each variable of one loss."""
    names = [name_of(variable, model) + (f" (loss {number + 1})" if number else "") for variable in part.variables]
    _, found = study(tape, part.loss, part.variables, ["the loss", *names])
    values = [None if one.gradient is None else array(one.gradient) for one in found]
    reference = _near_the_loss(tape, part.variables, values)
    targets, flow = tuple(tf.nest.flatten(part.loss)), Flow(tape.log, set(keys_in(part.loss)))
    origins = functools.cache(lambda: Origins(None, [model]))
    health = []
    for variable, name, one, value in zip(part.variables, names, found, values, strict=True):
        numbers = {
            "weight_norm": float(np.linalg.norm(array(tf.convert_to_tensor(variable)).ravel())),
            "size": int(np.prod(tuple(variable.shape))),
        }
        if value is None:
            (one,) = judged([Question(tape, flow, targets, variable, "the loss", name, None, origins)])
            status, one = "none", _in_a_model(dataclasses.replace(one, healthy=False), name)
        else:
            numbers["gradient_norm"] = float(rms(value.ravel()) * math.sqrt(value.size)) / part.scale
            numbers["zeros"] = float((value == 0).mean()) if value.size else 0.0
            status, one = _status(one, value, numbers["zeros"], reference, name, part.scale)
            if one.code == "zero_weights":
                one = dataclasses.replace(one, **_of_zero_weights(one, model))
        if one.line == asked.line:  # the operation ran in a layer of Keras
            fix = one.fix if value is None else one.fix and _fix_in_layer(one)
            one = dataclasses.replace(one, line=None, fix=fix, tried="untried")
        health.append(VariableHealth(**vars(one), name=name, status=status, **numbers))
    return health


def name_of(variable: Any, model: tf.keras.Model) -> str:
    """Return a variable's path within its model."""
    return lines.name_of_variable(variable).removeprefix(f"{model.name}/")


def _in_a_model(missing: Explanation, name: str) -> Explanation:
    """An explanation of a gradient that does not exist, with what its cause says of models in place of tapes."""
    cause = CAUSES[missing.code]
    if not cause.sentence_in_a_model:
        return missing
    said = cause.sentence_in_a_model.format(source=name)
    return dataclasses.replace(missing, sentence=said, fix=cause.fix_in_a_model)


def _typical(value: np.ndarray | None) -> float:
    """The root mean square of a gradient's elements that are not zero; 0 where it has none or is not finite."""
    if value is None or not np.isfinite(value).all():
        return 0.0
    return rms(value[value != 0])


def _near_the_loss(tape: ExplainTape, variables: Sequence[Any], values: Sequence[np.ndarray | None]) -> float:
    """The median size of the gradients of the third of the variables that the forward pass used last."""
    used = {}
    for position, event in enumerate(tape.log.events):
        for key in event.inputs:
            used.setdefault(key, position)
    positions = [min((used.get(key, -1) for key in keys_of(one)), default=-1) for one in variables]
    order = sorted(range(len(variables)), key=positions.__getitem__)
    sizes = [size for size in (_typical(values[i]) for i in order) if size]
    return float(np.median(sizes[-max(1, len(sizes) // 3) :])) if sizes else 0.0


def _status(
    found: Explanation, value: np.ndarray, zeros: float, reference: float, name: str, scale: float
) -> tuple[str, Explanation]:
    """Return the status and the explanation, with what there is to say of the gradient's size."""
    nothing = {"code": "", "sentence": "", "fix": "", "tried": "untried", "certain": True}
    if found.code == "exists":
        found = dataclasses.replace(found, **nothing)
    if found.symptom in ("nan", "inf"):
        return "not finite", found
    if found.symptom == "zero":
        return "zero", found
    if found.code == "no_effect":
        return "fine", found
    size = _typical(value)
    is_small, is_large = size * FAR < reference, size > FAR * reference
    if found.healthy is False:
        # What the study calls tiny or huge it judged by itself.
        is_small, is_large = is_small or found.symptom == "tiny", is_large or found.symptom == "huge"
    if is_small or is_large:
        if found.symptom not in ("tiny", "huge") or not found.code or found.healthy:
            found = _of_size(found, is_large, name)
        compared = f"Its elements are {size / scale:.1e} on average, those nearest the loss {reference / scale:.1e}."
        found = dataclasses.replace(found, sentence=f"{found.sentence} {compared}".strip())
        return ("exploding" if is_large else "vanishing"), found
    if found.symptom == "partly zero" and zeros >= _MANY_ZEROS:
        return "partly zero", found
    return "fine", found


def _of_zero_weights(found: Explanation, model: tf.keras.Model) -> dict[str, str]:
    """Which variable of the model is all 0, and whether it is frozen: a dict of what to say, empty if it is none."""
    story, evidence = found.story, found.evidence
    read = [mechanisms.read_from(evidence, key) for key in story.node.inputs if key != story.key]
    handles = [evidence.trace.values[key] for key in read if key is not None]
    trained = {id(variable) for variable in model.trainable_variables}
    for variable in model.variables:
        if any(getattr(variable.value, "handle", None) is handle for handle in handles):
            name = name_of(variable, model)
            layer = name.rpartition("/")[0]
            sentence = f"All of {name} is 0, and what passes it on the way back is multiplied by it."
            fix = f'kernel_initializer="glorot_uniform"  # of {layer}: weights that are not all 0'
            if id(variable) not in trained:
                sentence += " It is frozen (trainable=False), so it stays 0."
                fix += f"; or, if it is to learn, trainable=True of {layer}"
            return {"sentence": sentence, "fix": fix}
    return {}


def _of_size(found: Explanation, is_large: bool, name: str) -> Explanation:
    """The explanation of a gradient that is far from the others', by its flow."""
    code, symptom = ("exploding", "huge") if is_large else ("vanishing", "tiny")
    story = found.evidence and magnitude.story(found.evidence, 10.0 if is_large else 0.1)
    if story is None or story.code == "exists" or story.node is None:
        said = f"The gradient is {code}, and no single step makes it so."
        return dataclasses.replace(found, healthy=None, code="", sentence=said)
    names = {"source": name, "target": "the loss"}
    return worded(found.evidence, symptom, dataclasses.replace(story, is_alarm=True), found.gradient, names)


def _fix_in_layer(one: Explanation) -> str:
    """What to write where the operation lies in a layer of Keras, whose lines are not the learner's."""
    cause = VALUES.get(one.code)
    if one.code == "zero_weights" or (cause and not cause.fix_in_a_model and one.fix.startswith("#")):
        return one.fix  # about the operation alone
    of = f" of {one.layer}" if one.layer else ""
    fix = cause and (cause.fix_in_a_model or cause.fix)
    return fix.format(source="s", target="loss", of="s", of_layer=of) if fix else ""


def _layers(model: tf.keras.Model, tape: ExplainTape, variables: Sequence[VariableHealth]) -> Iterator[LayerHealth]:
    """The dead units of each layer of ReLUs, as `LayerHealth`."""
    names = {layer.name for layer in model_step.layers_of(model)}
    evidence = next((one.evidence for one in variables if one.evidence is not None), None)
    trace, found = evidence.trace if evidence is not None else Trace(tape.log), {}
    for node in trace.nodes:
        got = array(trace.values[node.inputs[0]]) if node.op in RELUS and node.layer in names else np.zeros(0)
        if got.ndim > 1 and np.isfinite(got).all():
            off = np.abs(slopes(trace, node)).reshape(-1, got.shape[-1]) < _FLAT
            found.setdefault((node.layer, node.op, got.shape[-1]), []).append(off)
    for (layer, op, units), off in found.items():
        rows = np.concatenate(off)
        if len(rows) > 1:
            yield LayerHealth(layer, spelled(op).rstrip("6"), units, float(rows.all(axis=0).mean()))


def _idle_or_unscaled(variables: Sequence[VariableHealth], batch: Any) -> Iterator[str]:
    """What is said of variables without effect; and of data in their own unit, where numbers came out too large."""
    if names := [one.name for one in variables if one.code == "no_effect"]:
        yield f"{listed(names)}: {VALUES['no_effect'].title}. {VALUES['no_effect'].meaning}"
    if any(one.code in _OF_LARGE and one.healthy is False for one in variables):
        for name, value in zip(("x", "y"), batch if isinstance(batch, tuple) else (batch,), strict=False):
            values = array(value) if tf.is_tensor(value) and value.dtype.is_floating else np.zeros(0)
            if values.size and np.isfinite(values).all() and np.abs(values).max() >= _UNSCALED:
                low, high = values.min(), values.max()
                yield f"{name} goes from {low:g} to {high:g}: scale it, such as {name} / {np.abs(values).max():g}."


def _notes(model: tf.keras.Model, tape: ExplainTape, parts: Sequence[Part], batch: Any) -> Iterator[str]:
    inner = [getattr(variable, "value", None) for variable in model.variables]
    replicas = (one for variable in inner for one in getattr(variable, "values", ()))  # of one made under a strategy
    keras = set(map(id, (*model.variables, *inner, *replicas)))
    asked = {id(variable) for part in parts for variable in part.variables}
    for variable in tape.watched_variables():
        if id(variable) not in keras | asked and variable.trainable:
            yield (
                f"The model reads {variable.name.removesuffix(':0')}, a tf.Variable, and Keras does not train it: "
                "make it with self.add_weight(...)."
            )
    layers = model_step.layers_of(model)
    keeping = [one.name for one in layers if getattr(one, "stateful", False) and hasattr(one, "reset_state")]
    if keeping:
        yield f"{listed(keeping)} keeps its state from batch to batch: call reset_state() where a sequence begins."
    if parts[0].scale != 1:
        yield f"The loss was scaled by {parts[0].scale:g} for mixed precision; the norms are those without the scale."
    labels = array(batch[1]) if isinstance(batch, tuple) and len(batch) > 1 and tf.is_tensor(batch[1]) else np.zeros(0)
    counting = (tf.keras.metrics.Accuracy, tf.keras.metrics.BinaryAccuracy)
    is_counted = any(isinstance(inner, counting) for one in model.metrics for inner in getattr(one, "metrics", [one]))
    if is_counted and (labels % 1).any():
        yield 'The accuracy counts equal numbers, and y has others than whole ones: take a metric such as "mae".'
