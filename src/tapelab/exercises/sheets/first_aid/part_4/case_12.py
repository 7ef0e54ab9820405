"""Case 12, a head without a gradient."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import tensorflow as tf


def _heads(random, dtype):
    def trial(rows):
        kernels = [tf.Variable(normals(random, dtype, *shape)) for shape in ((2, 3), (3, 1), (3, 1))]
        return *kernels, normals(random, dtype, rows, 2), normals(random, dtype, rows, 1)

    return [trial(3), trial(6)]


def _slopes(trunk, head, other, x, y):
    """The chain rule by hand; the other head has no part in it."""
    hidden = tf.tanh(tf.matmul(x, trunk))
    errors = 2.0 * (tf.matmul(hidden, head) - y) / len(y)
    back = tf.matmul(errors, head, transpose_b=True) * (1.0 - hidden**2)
    return [tf.matmul(x, back, transpose_a=True), tf.matmul(hidden, errors, transpose_a=True), None]


second_head = Exercise(
    title="Case 12, a head without a gradient",
    minutes=5,
    hints=(
        "Change an entry of `other` by 1. By how much does the loss change?",
        "What should an optimiser do with a variable about which this batch says nothing?",
        'Two answers say "no effect" in different ways: `None` and 0. Which of them lets a variable be?',
        "Compare the three gradients with what the loss depends on. Not every `None` is a fault.",
    ),
    checker=Repair(
        healthy=True,
        reference=_slopes,
        inputs=_heads,
        diagnosis=diagnosis(
            "nothing is wrong",
            the_line_of_loss="It computes what it is to compute: the error of the first task. Does the other head have "
            "a part in that?",
            the_line_of_hidden="Both heads would read `hidden`. The gradient of the trunk arrives through it.",
        ),
    ),
)


@second_head.starter()
def _():
    cause = ...  # "nothing is wrong", "the line of hidden" or "the line of loss"

    def repaired(trunk, head, other, x, y):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(x, trunk))
            loss = tf.reduce_mean((tf.matmul(hidden, head) - y) ** 2)
        return tape.gradient(loss, [trunk, head, other])

    return cause, repaired


@second_head.right
def _():
    """The loss of the first task does not depend on the second task's head, and `None` says so."""
    cause = "nothing is wrong"

    def repaired(trunk, head, other, x, y):
        with tf.GradientTape() as tape:
            hidden = tf.tanh(tf.matmul(x, trunk))
            loss = tf.reduce_mean((tf.matmul(hidden, head) - y) ** 2)
        return tape.gradient(loss, [trunk, head, other])

    return cause, repaired


@second_head.mistake("zeros_for_none")
def _(trunk, head, other, x, y):
    """The warning is gone, and an optimiser is now told something else. With a gradient of 0, momentum left from
    earlier batches moves the variable. There was nothing to repair."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x, trunk)), head) - y) ** 2)
    return tape.gradient(loss, [trunk, head, other], unconnected_gradients="zero")


@second_head.mistake("both_heads")
def _(trunk, head, other, x, y):
    """Now the second head has a gradient, because it is trained on the *first* task's targets, and the trunk with it.
    That is another loss. There was nothing to repair."""
    with tf.GradientTape() as tape:
        hidden = tf.tanh(tf.matmul(x, trunk))
        loss = sum(tf.reduce_mean((tf.matmul(hidden, kernel) - y) ** 2) for kernel in (head, other))
    return tape.gradient(loss, [trunk, head, other])


@second_head.mistake("kept_small")
def _(trunk, head, other, x, y):
    """Now the second head has a gradient: it is pulled towards 0 by a penalty that nobody asked for, batch by batch.
    There was nothing to repair."""
    with tf.GradientTape() as tape:
        error = tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x, trunk)), head) - y) ** 2)
        loss = error + tf.reduce_sum(other**2)
    return tape.gradient(loss, [trunk, head, other])


@second_head.mistake("left_out")
def _(trunk, head, other, x, y):
    """The third gradient is not asked for any more. Whoever hands out gradients to three variables now has two. There
    was nothing to repair."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x, trunk)), head) - y) ** 2)
    return tape.gradient(loss, [trunk, head])
