"""Case 3, three lines in a row."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _lines(random, dtype):
    """Weights that are a variable, inputs and targets."""
    return [
        (tf.Variable(normals(random, dtype, 2)), normals(random, dtype, rows, 2), normals(random, dtype, rows))
        for rows in (3, 8)
    ]


def _slope(w, x, y):
    errors = x.numpy() @ w.numpy() - y.numpy()
    return tf.constant(np.mean(2.0 * errors[:, None] * x.numpy(), axis=0))


three_lines = Exercise(
    title="Case 3, three lines in a row",
    minutes=3,
    hints=(
        "How far does the tape listen? Say for each line whether it is recorded.",
        "The tape has to have seen what lies between the variable and the target.",
        "`persistent=True` lets a tape answer more than once. It makes it record nothing more.",
        "Indent one line.",
    ),
    checker=Repair(
        reference=_slope,
        inputs=_lines,
        diagnosis=diagnosis(
            "the line of loss",
            the_line_of_predicted="It is recorded, with both of its inputs. Is everything that comes after it?",
            the_last_line="`gradient` may be called after the block: what was recorded stays. Was the loss?",
        ),
    ),
)


@three_lines.starter()
def _():
    cause = ...  # "the last line", "the line of loss" or "the line of predicted"

    def repaired(w, x, y):
        with tf.GradientTape() as tape:
            predicted = tf.linalg.matvec(x, w)
        loss = tf.reduce_mean((predicted - y) ** 2)
        return tape.gradient(loss, w)

    return cause, repaired


@three_lines.right
def _():
    """The tape records from `with` to the end of the block. The loss was computed one line later: to the tape it is a
    tensor that fell from the sky. In the block belongs what leads from the variables to the number that is
    differentiated."""
    cause = "the line of loss"

    def repaired(w, x, y):
        with tf.GradientTape() as tape:
            predicted = tf.linalg.matvec(x, w)
            loss = tf.reduce_mean((predicted - y) ** 2)
        return tape.gradient(loss, w)

    return cause, repaired


@three_lines.mistake("of_the_predictions")
def _(w, x, y):
    """What was recorded has a gradient, and it is that of the sum of all predictions. The targets have no part in it:
    a step against it lowers their sum, right or not."""
    with tf.GradientTape() as tape:
        found = tf.linalg.matvec(x, w)
    return tape.gradient(found, w)


@three_lines.mistake("zeros_for_none")
def _(w, x, y):
    """Zeros in place of `None`. There is still no path from the loss to `w`."""
    return tf.zeros_like(w)


@three_lines.mistake("summed")
def _(w, x, y):
    """The path is there. The loss is a mean, and this is the gradient of the sum."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.linalg.matvec(x, w) - y) ** 2)
    return tape.gradient(loss, w)


@three_lines.wrong("none")
def _(w, x, y):
    with tf.GradientTape(persistent=True) as tape:
        found = tf.linalg.matvec(x, w)
    loss = tf.reduce_mean((found - y) ** 2)
    return tape.gradient(loss, w)


@three_lines.wrong("none")
def _(w, x, y):
    found = tf.linalg.matvec(x, w)
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((found - y) ** 2)
    return tape.gradient(loss, w)
