"""Case 15, the loop that is worse than fit."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf

_EPSILON, _MOMENTUM = 1e-3, 0.9


def _batches(random, dtype):
    def trial(rows, centre, width):
        x = tf.constant(centre + width * random.normal(size=(rows, 2)), dtype)
        return normals(random, dtype, 2, 1), x, normals(random, dtype, rows, 1)

    return [trial(4, 20.0, 5.0), trial(8, -3.0, 0.5)]


def _after(answer, kernel, x, y):
    """The loss, and what the model is after the step, in a model of its own: the step changes it."""
    layers = [tf.keras.layers.BatchNormalization(momentum=_MOMENTUM, epsilon=_EPSILON), tf.keras.layers.Dense(1)]
    model = tf.keras.Sequential([tf.keras.Input((2,)), *layers])
    layers[1].set_weights([kernel, np.zeros(1)])
    loss = answer(model, x, y)
    names = ("gamma", "beta", "moving mean", "moving variance", "kernel", "bias")
    return {"the loss": loss} | {
        f"the {name}": tf.constant(one) for name, one in zip(names, model.get_weights(), strict=True)
    }


def _trained(model, x, y):
    """One step, by hand."""
    gamma, beta, mean, variance, kernel, bias = model.get_weights()
    batch_mean, batch_variance = x.numpy().mean(axis=0), x.numpy().var(axis=0)
    unit = (x.numpy() - batch_mean) / np.sqrt(batch_variance + _EPSILON)
    normal = unit * gamma + beta
    errors = normal @ kernel + bias - y.numpy()
    back = 2.0 * errors / errors.size
    to_normal = back @ kernel.T
    model.set_weights(
        [
            gamma - 0.1 * np.sum(to_normal * unit, axis=0),
            beta - 0.1 * np.sum(to_normal, axis=0),
            _MOMENTUM * mean + (1.0 - _MOMENTUM) * batch_mean,
            _MOMENTUM * variance + (1.0 - _MOMENTUM) * batch_variance,
            kernel - 0.1 * normal.T @ back,
            bias - 0.1 * np.sum(back, axis=0),
        ]
    )
    return tf.constant(np.mean(errors**2))


worse_than_fit = Exercise(
    title="Case 15, the loop that is worse than fit",
    minutes=8,
    beyond=True,
    hints=(
        "What does `BatchNormalization` do with a batch while a network is trained, and what afterwards? Print "
        "`model.variables` before and after the step: which of them ought to have moved?",
        "`fit` tells the model that it is being trained. Who tells it here?",
        "Normalising the batch by hand gives this step, and leaves the layer's moving averages at 0 and 1: when the "
        "model is asked for an answer later, it uses those.",
        "A call takes `training=True`.",
    ),
    checker=Repair(
        reference=_trained,
        inputs=_batches,
        observe=_after,
        dtypes=(tf.float32,),
        diagnosis=diagnosis(
            "the line of loss",
            the_line_of_the_step="Each variable is moved against its own gradient. With a smaller rate the loss would "
            "fall from a value that is as wrong.",
            nothing_is_wrong="No error and no `None`. But `fit` computes another loss for the same model and data, and "
            "then moves two variables that stay here.",
        ),
    ),
)


@worse_than_fit.starter()
def _():
    cause = ...  # "nothing is wrong", "the line of loss" or "the line of the step"

    def repaired(model, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return cause, repaired


@worse_than_fit.right
def _():
    """Called without a word about training, this model gives answers: batch normalisation uses its moving averages,
    here 0 and 1, and does not update them. `training=True` makes it use the batch's own mean and variance, and learn
    the averages."""
    cause = "the line of loss"

    def repaired(model, x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)
        return loss

    return cause, repaired


def _step(model, call, x, y, rate=0.1):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((call(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
        variable.assign_sub(rate * gradient)
    return loss


@worse_than_fit.mistake("small_rate")
def _(model, x, y):
    """The step no longer throws the weights about. The loss is still that of a model which normalises nothing, and its
    moving averages still learn nothing."""
    return _step(model, model, x, y, rate=0.001)


@worse_than_fit.mistake("by_hand")
def _(model, x, y):
    """The loss and the weights are about right for this batch. The layer's moving averages have stayed at 0 and 1, and
    those are what it uses when the model is asked for an answer later."""
    mean, variance = x.numpy().mean(axis=0), x.numpy().var(axis=0)
    return _step(model, model, (x - mean) / np.sqrt(variance), y)


@worse_than_fit.mistake("learnt_outside")
def _(model, x, y):
    """The averages learn now, by a call beside the tape. The loss, and its gradient, are still those of a model that
    gives answers."""
    model(x, training=True)
    return _step(model, model, x, y)


@worse_than_fit.mistake("frozen")
def _(model, x, y):
    """`trainable = False` freezes the layer: it gets no gradient, and runs on its moving averages even when it is told
    that it is being trained."""
    model.layers[0].trainable = False
    return _step(model, lambda x: model(x, training=True), x, y)
