"""Case 6, two and nothing."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _starts(random, dtype):
    def trial(start, rows):
        return start, normals(random, dtype, rows), normals(random, dtype, rows)

    return [trial([2, 0], 3), trial([-1, 3], 7)]


def _slope(start, x, y):
    x, errors = x.numpy(), start[0] + start[1] * x.numpy() - y.numpy()
    return tf.constant([np.mean(2.0 * errors), np.mean(2.0 * errors * x)], x.dtype)


straight_line = Exercise(
    title="Case 6, two and nothing",
    minutes=4,
    hints=(
        "Print `w`. TensorFlow has chosen something for you.",
        "What would it mean to move a whole number by a little?",
        "The cast is the place where the path ends, and it was written because of something else. Mend that.",
        "Say what the variable is to hold: `tf.Variable(start, dtype=x.dtype)`.",
    ),
    checker=Repair(
        reference=_slope,
        inputs=_starts,
        diagnosis=diagnosis(
            "the line of w",
            the_line_of_predicted="The cast passes nothing back to whole numbers, and rightly: they do not move by a "
            "little. Without it the product would raise. Why is it needed?",
            the_line_of_loss="It computes with floating-point numbers, and passes a gradient on.",
        ),
    ),
)


@straight_line.starter()
def _():
    cause = ...  # "the line of loss", "the line of predicted" or "the line of w"

    def repaired(start, x, y):
        w = tf.Variable(start)
        with tf.GradientTape() as tape:
            predicted = tf.cast(w[0], x.dtype) + tf.cast(w[1], x.dtype) * x
            loss = tf.reduce_mean((predicted - y) ** 2)
        return tape.gradient(loss, w)

    return cause, repaired


@straight_line.right
def _():
    """From `[2, 0]` TensorFlow makes a variable of whole numbers. The tape does not follow those, and the cast from
    them passes nothing back. With a variable of the dtype of `x` no cast is needed."""
    cause = "the line of w"

    def repaired(start, x, y):
        w = tf.Variable(start, dtype=x.dtype)
        with tf.GradientTape() as tape:
            predicted = w[0] + w[1] * x
            loss = tf.reduce_mean((predicted - y) ** 2)
        return tape.gradient(loss, w)

    return cause, repaired


def _loss(w, x, y):
    return tf.reduce_mean((w[0] + w[1] * x - y) ** 2)


@straight_line.mistake("zeros_for_none")
def _(start, x, y):
    """Zeros in place of `None`. There is still no path from the loss to the variable."""
    return tf.zeros(2, x.dtype)


@straight_line.mistake("whole_steps")
def _(start, x, y):
    """The difference that a step of a whole 1 makes. That is a fair question about whole numbers, and no derivative:
    the loss is curved, and 1 is far."""
    w = tf.constant(start, x.dtype)
    return tf.stack([_loss(w + unit, x, y) - _loss(w, x, y) for unit in tf.eye(2, dtype=x.dtype)])


@straight_line.wrong("none")
def _(start, x, y):
    w = tf.Variable(start)
    with tf.GradientTape() as tape:
        loss = _loss(tf.cast(w, x.dtype), x, y)
    return tape.gradient(loss, w)


@straight_line.wrong("one_dtype")
def _(start, x, y):
    w = tf.Variable([float(number) for number in start])
    with tf.GradientTape() as tape:
        loss = _loss(w, x, y)
    return tape.gradient(loss, w)
