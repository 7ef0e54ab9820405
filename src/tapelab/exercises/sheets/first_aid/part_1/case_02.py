"""Case 2, predictions that came with nothing."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import tensorflow as tf


def _models(random, dtype):
    def trial(rows):
        model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
        model.layers[0].set_weights([random.normal(size=(2, 1)), random.normal(size=1)])
        return model, normals(random, dtype, rows, 2), normals(random, dtype, rows, 1)

    return [trial(3), trial(8)]


def _slopes(model, x, y):
    kernel, bias = model.get_weights()
    errors = x.numpy() @ kernel + bias - y.numpy()
    return [tf.constant(2.0 * x.numpy().T @ errors / len(errors)), tf.constant(2.0 * errors.mean(axis=0))]


keras_model = Exercise(
    title="Case 2, predictions that came with nothing",
    minutes=4,
    hints=(
        "What is `type(predicted)`, after each of the three lines?",
        "The numbers are right. Which of the lines may run outside TensorFlow, and hand over an array?",
        "Watching the variables adds nothing: they are trainable, and watched. Turning the array back into a tensor "
        "gives a tensor without a history.",
        "`predict` is for answers that nobody differentiates. To compute with a model, call it: `model(x)`.",
    ),
    checker=Repair(
        reference=_slopes,
        inputs=_models,
        dtypes=(tf.float32,),
        diagnosis=diagnosis(
            "the line of predicted",
            the_line_of_loss="A mean of squares is made of TensorFlow's operations. What are they given?",
            the_last_line="It asks for the right thing: the loss, and all variables that training moves.",
        ),
    ),
)


@keras_model.starter()
def _():
    cause = ...  # "the last line", "the line of loss" or "the line of predicted"

    def repaired(model, x, y):
        with tf.GradientTape() as tape:
            predicted = model.predict(x, verbose=0)
            loss = tf.reduce_mean((predicted - y) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return cause, repaired


@keras_model.right
def _():
    """`model.predict` returned a NumPy array. The tape sees numbers from nowhere. Calling the model runs its layers as
    operations that the tape records."""
    cause = "the line of predicted"

    def repaired(model, x, y):
        with tf.GradientTape() as tape:
            predicted = model(x)
            loss = tf.reduce_mean((predicted - y) ** 2)
        return tape.gradient(loss, model.trainable_variables)

    return cause, repaired


@keras_model.mistake("zeros_for_none")
def _(model, x, y):
    """Zeros in place of `None`. There is still no path from the loss to the variables."""
    return [tf.zeros_like(variable.value) for variable in model.trainable_variables]


@keras_model.mistake("of_the_predictions")
def _(model, x, y):
    """A gradient, and of the loss with respect to the *predictions*. An optimiser wants one for each variable."""
    found = tf.constant(model(x).numpy())
    with tf.GradientTape() as tape:
        tape.watch(found)
        loss = tf.reduce_mean((found - y) ** 2)
    return [tape.gradient(loss, found)]


@keras_model.mistake("without_the_targets")
def _(model, x, y):
    """The path is there, and the loss is not: this is the gradient of the mean prediction."""
    with tf.GradientTape() as tape:
        found = tf.reduce_mean(model(x))
    return tape.gradient(found, model.trainable_variables)


@keras_model.wrong("none")
def _(model, x, y):
    with tf.GradientTape() as tape:
        tape.watch([variable.value for variable in model.trainable_variables])
        loss = tf.reduce_mean((tf.constant(model(x).numpy()) - y) ** 2)
    return tape.gradient(loss, model.trainable_variables)
