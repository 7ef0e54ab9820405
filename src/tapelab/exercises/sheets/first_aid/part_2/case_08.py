"""Case 8, a list of losses."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _lines(random, dtype):
    """A start, inputs and targets."""
    return [
        (normals(random, dtype, 2), normals(random, dtype, rows, 2), normals(random, dtype, rows)) for rows in (3, 5)
    ]


def _stepped(start, x, y):
    w, x, y = start.numpy(), x.numpy(), y.numpy()
    return tf.constant(w - 0.1 * np.mean(2.0 * (x @ w - y)[:, None] * x, axis=0), start.dtype)


step_by_keras = Exercise(
    title="Case 8, a list of losses",
    minutes=5,
    hints=(
        "Keras says that no variable has a gradient. Print what `tape.gradient` returns.",
        "Walk from `loss` back to `w`: `print(type(…))` for each thing on the way.",
        "A list is no obstacle: `tf.reduce_mean` takes a list of tensors. What is in this one?",
        "Append the tensor: `losses.append(error**2)`.",
    ),
    checker=Repair(
        reference=_stepped,
        inputs=_lines,
        diagnosis=diagnosis(
            "the line of append",
            the_line_of_loss="`tf.reduce_mean` makes a tensor of a list, and passes the gradient on to each of its "
            "parts. What are the parts?",
            the_optimiser="It reports what it was handed. Print that.",
        ),
    ),
)


@step_by_keras.starter()
def _():
    cause = ...  # "the line of append", "the line of loss" or "the optimiser"

    def repaired(start, x, y):
        w, losses = tf.Variable(start), []
        with tf.GradientTape() as tape:
            for row, target in zip(x, y, strict=True):
                error = tf.tensordot(row, w, 1) - target
                losses.append(float(error**2))
            loss = tf.reduce_mean(losses)
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return tf.convert_to_tensor(w)

    return cause, repaired


@step_by_keras.right
def _():
    """`float` took the number out of the tensor and left its history behind. The list may hold tensors."""
    cause = "the line of append"

    def repaired(start, x, y):
        w, losses = tf.Variable(start), []
        with tf.GradientTape() as tape:
            for row, target in zip(x, y, strict=True):
                error = tf.tensordot(row, w, 1) - target
                losses.append(error**2)
            loss = tf.reduce_mean(losses)
        optimizer = tf.keras.optimizers.SGD(0.1)
        optimizer.apply_gradients([(tape.gradient(loss, w), w)])
        return tf.convert_to_tensor(w)

    return cause, repaired


def _step(start, loss_of):
    with tf.GradientTape() as tape:
        tape.watch(start)
        loss = loss_of(start)
    return start - 0.1 * tape.gradient(loss, start)


@step_by_keras.mistake("nothing_moves")
def _(start, x, y):
    """Keras is content, and the variable is where it was: here zeros move nothing. The message was right."""
    return tf.identity(start)


@step_by_keras.mistake("last_row")
def _(start, x, y):
    """A step, and for the last row alone: the loss of that row is a tensor, and the others have gone with the list."""
    return _step(start, lambda w: (tf.tensordot(x[-1], w, 1) - y[-1]) ** 2)


@step_by_keras.mistake("summed")
def _(start, x, y):
    """The path is there. The loss was a mean, and this step is that of the sum."""
    return _step(start, lambda w: tf.reduce_sum((tf.linalg.matvec(x, w) - y) ** 2))


@step_by_keras.mistake("not_squared")
def _(start, x, y):
    """The path is there, and the square is gone: positive and negative errors cancel."""
    return _step(start, lambda w: tf.reduce_mean(tf.linalg.matvec(x, w) - y))
