"""Case 1, the loss that lost its history."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _lines(random, dtype):
    """Weights that are a variable, inputs and targets; at last targets of which one is hit exactly."""
    hit = [[1.0, -1.0], [[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]], [0.5, -1.0, 1.0]]
    w, x, y = (tf.constant(part, dtype) for part in hit)
    return [
        *(
            (tf.Variable(normals(random, dtype, 2)), normals(random, dtype, rows, 2), normals(random, dtype, rows))
            for rows in (3, 8)
        ),
        (tf.Variable(w), x, y),
    ]


def _slope(w, x, y):
    sides = np.sign(x.numpy() @ w.numpy() - y.numpy())
    return tf.constant(np.mean(sides[:, None] * x.numpy(), axis=0))


own_loss = Exercise(
    title="Case 1, the loss that lost its history",
    minutes=4,
    hints=(
        "The loss is right, so no line computes a wrong number. After which line is the number no longer a tensor?",
        "What is `type(distance)`? The tape records operations of TensorFlow.",
        "`unconnected_gradients` changes what a missing path is *called*. It adds no path. `tape.watch` cannot help "
        "either: `w` is a variable, and watched. The line that leaves TensorFlow has to stay inside.",
        "`np.abs` has a twin in TensorFlow, `tf.abs`.",
    ),
    checker=Repair(
        reference=_slope,
        inputs=_lines,
        diagnosis=diagnosis(
            "the line of distance",
            the_line_of_loss="`tf.reduce_mean` is an operation of TensorFlow, and passes a gradient on. What is it "
            "handed?",
            the_variable="`w` is a trainable variable, and this tape watches it by itself.",
        ),
    ),
)


@own_loss.starter()
def _():
    cause = ...  # "the line of distance", "the line of loss" or "the variable"

    def repaired(w, x, y):
        with tf.GradientTape() as tape:
            distance = np.abs(tf.linalg.matvec(x, w) - y)
            loss = tf.reduce_mean(distance)
        return tape.gradient(loss, w)

    return cause, repaired


@own_loss.right
def _():
    """`np.abs` takes a tensor, reads its numbers and returns an array. The numbers are right, and an array has no
    history: to the tape the loss is a constant. `tf.abs` does the same inside TensorFlow."""
    cause = "the line of distance"

    def repaired(w, x, y):
        with tf.GradientTape() as tape:
            distance = tf.abs(tf.linalg.matvec(x, w) - y)
            loss = tf.reduce_mean(distance)
        return tape.gradient(loss, w)

    return cause, repaired


@own_loss.mistake("zeros_for_none")
def _(w, x, y):
    """The `None` is gone, and there are zeros in its place. There is still no path from the loss to `w`."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(np.abs(tf.linalg.matvec(x, w) - y))
    return tape.gradient(loss, w, unconnected_gradients="zero")


@own_loss.mistake("another_loss")
def _(w, x, y):
    """A gradient, and of another loss: that of the mean *squared* distance. A repair leaves the value as it was."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return tape.gradient(loss, w)


@own_loss.mistake("without_distance")
def _(w, x, y):
    """The path is there. The absolute value is not: positive and negative errors now cancel."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.linalg.matvec(x, w) - y)
    return tape.gradient(loss, w)


@own_loss.wrong("not_finite")
def _(w, x, y):
    with tf.GradientTape() as tape:
        error = tf.linalg.matvec(x, w) - y
        loss = tf.reduce_mean(tf.sqrt(error * error))  # NaN where a target is hit exactly
    return tape.gradient(loss, w)


@own_loss.wrong("none")
def _(w, x, y):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_mean(tf.constant(np.abs(tf.linalg.matvec(x, w) - y)))
    return tape.gradient(loss, w)
