"""Case 13, an equation that holds for everything."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import tensorflow as tf


def _networks(random, dtype):
    def trial(points, units):
        return (
            normals(random, dtype, points),
            normals(random, dtype, units),
            normals(random, dtype, units),
            normals(random, dtype, units),
        )

    return [trial(3, 4), trial(6, 5)]


def _curvature(x, kernel, bias, output):
    t = tf.tanh(x[:, None] * kernel + bias)
    return tf.linalg.matvec(-2.0 * t * (1.0 - t**2) * kernel**2, output)


equation = Exercise(
    title="Case 13, an equation that holds for everything",
    minutes=4,
    hints=(
        "What does the graph of this network look like between two kinks?",
        "It is straight, so its second derivative is 0 wherever it exists. A persistent tape or other weights change "
        "nothing about that, and a leaky ReLU has two straight pieces as well.",
        "The equation asks for the second derivative, and its training for the one after that. Use an activation that "
        "has them all.",
        "`tf.tanh` in place of `tf.nn.relu`.",
    ),
    checker=Repair(
        reference=_curvature,
        inputs=_networks,
        diagnosis=diagnosis(
            "the activation",
            the_order_of_the_tapes="The inner gradient is taken inside the outer tape, as it should be.",
            the_weights="Any other weights give the same zeros.",
        ),
    ),
)


@equation.starter()
def _():
    cause = ...  # "the activation", "the order of the tapes" or "the weights"

    def repaired(x, kernel, bias, output):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                u = tf.linalg.matvec(tf.nn.relu(x[:, None] * kernel + bias), output)
            u_x = inner.gradient(u, x)
        return outer.gradient(u_x, x)

    return cause, repaired


@equation.right
def _():
    """A network of ReLUs is a polygon: straight between its kinks, and the tape knows nothing of a kink's infinite
    curvature. Its second derivative is 0, rightly, and a training loss made of it is blind. With tanh all derivatives
    exist, and vary."""
    cause = "the activation"

    def repaired(x, kernel, bias, output):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                u = tf.linalg.matvec(tf.tanh(x[:, None] * kernel + bias), output)
            u_x = inner.gradient(u, x)
        return outer.gradient(u_x, x)

    return cause, repaired


def _twice(x, kernel, bias, output, activation):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            u = tf.linalg.matvec(activation(x[:, None] * kernel + bias), output)
        u_x = inner.gradient(u, x)
    return outer.gradient(u_x, x)


@equation.mistake("elu")
def _(x, kernel, bias, output):
    """Curved on one side of 0 and straight on the other, with a jump in the curvature between."""
    return _twice(x, kernel, bias, output, tf.nn.elu)


@equation.mistake("squared_relu")
def _(x, kernel, bias, output):
    """There is a second derivative now, constant between the kinks: the biases have no part in it."""
    return _twice(x, kernel, bias, output, lambda z: tf.nn.relu(z) ** 2)


@equation.mistake("first_derivative")
def _(x, kernel, bias, output):
    """This is the first derivative of the smooth network."""
    t = tf.tanh(x[:, None] * kernel + bias)
    return tf.linalg.matvec((1.0 - t**2) * kernel, output)


@equation.wrong("as_before")
def _(x, kernel, bias, output):
    return _twice(x, kernel, bias, output, lambda z: tf.nn.leaky_relu(z) + 0.0)


@equation.wrong("as_before")
def _(x, kernel, bias, output):
    return tf.zeros_like(x)
