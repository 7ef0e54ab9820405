"""Case 14, a first layer that does not move."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import tensorflow as tf


def _networks(random, dtype):
    def trial(rows, output):
        hidden = tf.Variable(normals(random, dtype, 2, 3))
        return hidden, tf.Variable(output), normals(random, dtype, rows, 2), normals(random, dtype, rows, 1)

    return [trial(3, tf.zeros([3, 1], dtype)), trial(6, normals(random, dtype, 3, 1))]


def _slopes(hidden, output, x, y):
    """The chain rule by hand."""
    h = tf.tanh(tf.matmul(x, hidden))
    errors = 2.0 * (tf.matmul(h, output) - y) / len(y)
    back = tf.matmul(errors, output, transpose_b=True) * (1.0 - h**2)
    return [tf.matmul(x, back, transpose_a=True), tf.matmul(h, errors, transpose_a=True)]


first_layer = Exercise(
    title="Case 14, a first layer that does not move",
    minutes=5,
    hints=(
        "Change an entry of the first kernel by 1, at the start. By how much does the loss change?",
        "What does the chain rule multiply on the way to the first kernel? Which factor is 0, and for how long?",
        "Take one step with these gradients, and ask again.",
        "A zero that is the derivative is not a fault. What would a repair have to change, for the zero to go away?",
    ),
    checker=Repair(
        healthy=True,
        reference=_slopes,
        inputs=_networks,
        diagnosis=diagnosis(
            "nothing is wrong",
            the_activation="The slope of tanh is not 0 here. Which other factor is there?",
            the_line_of_loss="The output's kernel gets its gradient through it, and that is not 0.",
        ),
    ),
)


@first_layer.starter()
def _():
    cause = ...  # "nothing is wrong", "the activation" or "the line of loss"

    def repaired(hidden, output, x, y):
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.matmul(x, hidden))
            loss = tf.reduce_mean((tf.matmul(h, output) - y) ** 2)
        return tape.gradient(loss, [hidden, output])

    return cause, repaired


@first_layer.right
def _():
    """While the output's kernel is 0, the answer is 0 whatever the first layer does: 0 *is* the derivative. The
    output's kernel has a gradient and moves in the first step, and after that step the first layer has one too."""
    cause = "nothing is wrong"

    def repaired(hidden, output, x, y):
        with tf.GradientTape() as tape:
            h = tf.tanh(tf.matmul(x, hidden))
            loss = tf.reduce_mean((tf.matmul(h, output) - y) ** 2)
        return tape.gradient(loss, [hidden, output])

    return cause, repaired


def _gradients(hidden, output, x, y, shift=0.0, activation=tf.tanh):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.matmul(activation(tf.matmul(x, hidden)), output + shift) - y) ** 2)
    return tape.gradient(loss, [hidden, output])


@first_layer.mistake("shifted_start")
def _(hidden, output, x, y):
    """The zero is gone, because these are the gradients of another network: its output starts elsewhere, and its first
    answer is not 0. There was nothing to repair."""
    return _gradients(hidden, output, x, y, shift=0.01)


@first_layer.mistake("ones")
def _(hidden, output, x, y):
    """The zero is gone, because these are the gradients of another network, with ones for its output's kernel. There
    was nothing to repair."""
    return _gradients(hidden, tf.Variable(tf.ones_like(output)), x, y)


@first_layer.mistake("linear")
def _(hidden, output, x, y):
    """Without tanh the zero is still there at the start, and everything else is another network: two layers that are
    one. There was nothing to repair."""
    return _gradients(hidden, output, x, y, activation=tf.identity)


@first_layer.mistake("learned_alone")
def _(hidden, output, x, y):
    """The first layer now gets the gradient that it *would* have if the output's kernel were all ones. That is another
    network. There was nothing to repair."""
    return [_gradients(hidden, tf.Variable(tf.ones_like(output)), x, y)[0], _gradients(hidden, output, x, y)[1]]
