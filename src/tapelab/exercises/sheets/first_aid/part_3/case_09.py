"""Case 9, as sure as can be."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals, with_gradients

import tensorflow as tf


def _classified(random, dtype):
    def trial(rows, scale=1.0):
        kernel, bias = scale * normals(random, dtype, 3, 1), normals(random, dtype, 1)
        return kernel, bias, normals(random, dtype, rows, 3), tf.constant(random.integers(0, 2, size=rows), dtype)

    return [trial(4), trial(9), trial(9, scale=2000.0)]  # the last: logits whose exponential is infinite


def _probability_loss(kernel, bias, x, y):
    z = tf.tensordot(x, kernel[:, 0], 1) + bias
    return tf.reduce_mean((0.5 * (1.0 + tf.tanh(0.5 * z)) - y) ** 2)


one_unit = Exercise(
    title="Case 9, as sure as can be",
    minutes=4,
    hints=(
        "Print `p`. What do a softmax's outputs add up to, and how many are there in a row?",
        "The output is 1, here and at the five other starts. A softmax over axis 0 does move, but it shares one "
        "probability out among the *examples*.",
        "One unit for two classes asks for the function that takes a single number to a probability.",
        "`tf.sigmoid`.",
    ),
    checker=Repair(
        reference=_probability_loss,
        inputs=_classified,
        observe=with_gradients("the kernel", "the bias"),
        diagnosis=diagnosis(
            "the softmax",
            the_weights="A saturated unit has a slope that is small, and other weights would wake it. Try weights of "
            "0: here the slope is 0 for all of them.",
            the_squared_error="What does `p` do when the kernel moves? (It is no minimum either: two of three examples "
            "are wrong, with full confidence.)",
        ),
    ),
)


@one_unit.starter()
def _():
    cause = ...  # "the softmax", "the squared error" or "the weights"

    def repaired(kernel, bias, x, y):
        p = tf.nn.softmax(tf.matmul(x, kernel) + bias)[:, 0]
        return tf.reduce_mean((p - y) ** 2)

    return cause, repaired


@one_unit.right
def _():
    """A softmax divides each exponential by their sum. With one number in a row that is 1, and a constant has the
    gradient 0. The sigmoid is a softmax over two numbers of which the other is 0."""
    cause = "the softmax"

    def repaired(kernel, bias, x, y):
        p = tf.sigmoid(tf.matmul(x, kernel) + bias)[:, 0]
        return tf.reduce_mean((p - y) ** 2)

    return cause, repaired


def _squared(p, y):
    return tf.reduce_mean((p - y) ** 2)


@one_unit.mistake("over_the_batch")
def _(kernel, bias, x, y):
    """Now `p` moves with the kernel. The softmax runs over the examples: they share one
    probability, and what is said of one depends on who else is in the batch."""
    return _squared(tf.nn.softmax(tf.matmul(x, kernel) + bias, axis=0)[:, 0], y)


@one_unit.mistake("two_shapes")
def _(kernel, bias, x, y):
    """The output is right. But `p` has kept its second axis, and every output is now compared with every label: print
    the shape of `p - y`. That is case 10."""
    return _squared(tf.sigmoid(tf.matmul(x, kernel) + bias), y)


@one_unit.mistake("no_activation")
def _(kernel, bias, x, y):
    """A gradient, and no probability: without an activation the output can be any number."""
    return _squared((tf.matmul(x, kernel) + bias)[:, 0], y)


@one_unit.mistake("tanh")
def _(kernel, bias, x, y):
    """`tanh` moves between −1 and 1. A probability lies between 0 and 1."""
    return _squared(tf.tanh(tf.matmul(x, kernel) + bias)[:, 0], y)


@one_unit.mistake("relu")
def _(kernel, bias, x, y):
    """A ReLU has no upper end. A probability has."""
    return _squared(tf.nn.relu(tf.matmul(x, kernel) + bias)[:, 0], y)


@one_unit.mistake("exponentials")
def _(kernel, bias, x, y):
    """Right, while the logits are small. The exponential of a large one is infinite, and infinity over infinity is NaN.
    TensorFlow has the function ready-made, without that."""
    e = tf.exp(tf.matmul(x, kernel) + bias)
    return _squared((e / (1.0 + e))[:, 0], y)


@one_unit.wrong("not_finite")
def _(kernel, bias, x, y):
    return _squared(1.0 / (1.0 + tf.exp(-tf.matmul(x, kernel) - bias))[:, 0], y)
