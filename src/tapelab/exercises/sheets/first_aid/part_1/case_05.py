"""Case 5, one step and no second."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _descents(random, dtype):
    def trial(rows, steps):
        return normals(random, dtype, 2), normals(random, dtype, rows, 2), normals(random, dtype, rows), steps

    return [trial(3, 2), trial(6, 5)]


def _descended(start, x, y, steps):
    w, x, y = start.numpy(), x.numpy(), y.numpy()
    for _ in range(steps):
        w = w - 0.1 * np.mean(2.0 * (x @ w - y)[:, None] * x, axis=0)
    return tf.constant(w, start.dtype)


second_step = Exercise(
    title="Case 5, one step and no second",
    minutes=4,
    hints=(
        "Print `type(w)` at the start of each round.",
        "`w = …` does not change what `w` was. It gives the name to something else. To what?",
        "Leaving out the steps whose gradient is `None` leaves out all but the first. What should still be a variable "
        "in the second round?",
        "A variable is changed by its own methods: `w.assign_sub(0.1 * gradient)`, on a line of its own, without "
        "`w =` before it.",
    ),
    checker=Repair(
        reference=_descended,
        inputs=_descents,
        diagnosis=diagnosis(
            "the line of the step",
            the_line_of_loss="The first step goes well with it, and the line is the same in the second.",
            the_tape="Each round has a tape of its own, as it should.",
        ),
    ),
)


@second_step.starter()
def _():
    cause = ...  # "the line of loss", "the line of the step" or "the tape"

    def repaired(start, x, y, steps):
        w = tf.Variable(start)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w = w - 0.1 * tape.gradient(loss, w)
        return tf.convert_to_tensor(w)

    return cause, repaired


@second_step.right
def _():
    """`w - 0.1 * gradient` is a new tensor, and after the first round that tensor is called `w`. The next tape does not
    watch it. `assign_sub` changes the variable itself."""
    cause = "the line of the step"

    def repaired(start, x, y, steps):
        w = tf.Variable(start)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
        return tf.convert_to_tensor(w)

    return cause, repaired


def _stepped(start, x, y, steps, rate=0.1):
    w = tf.Variable(start)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w.assign_sub(rate * tape.gradient(loss, w))
    return tf.convert_to_tensor(w)


@second_step.mistake("none_left_out")
def _(start, x, y, steps):
    """The error is gone, and so are all steps but the first: from the second round on the gradient is `None`, and what
    is done with `None` here is nothing."""
    return _stepped(start, x, y, 1)


@second_step.mistake("no_rate")
def _(start, x, y, steps):
    """The variable moves, ten times as far as it should: the rate is missing."""
    return _stepped(start, x, y, steps, rate=1.0)


@second_step.mistake("uphill")
def _(start, x, y, steps):
    """The variable moves, and uphill: `assign_add` adds."""
    return _stepped(start, x, y, steps, rate=-0.1)


@second_step.mistake("one_tape")
def _(start, x, y, steps):
    """One gradient, used for all the steps: the loss was computed at the start alone. Each step needs a loss of its
    own, recorded."""
    with tf.GradientTape() as tape:
        tape.watch(start)
        loss = tf.reduce_mean((tf.linalg.matvec(x, start) - y) ** 2)
    return start - 0.1 * steps * tape.gradient(loss, start)
