"""Case 4, which pixels matter."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _images(random, dtype):
    """A kernel that is a variable, and images that are not."""
    return [(tf.Variable(normals(random, dtype, 4, 3)), normals(random, dtype, rows, 4)) for rows in (1, 5)]


def _saliency(kernel, x):
    slopes = 1.0 - np.tanh(x.numpy() @ kernel.numpy()) ** 2
    return tf.constant(slopes @ kernel.numpy().T)


pixels = Exercise(
    title="Case 4, which pixels matter",
    minutes=4,
    hints=(
        "Ask the same tape for the gradient with respect to `kernel`. Is that `None`, too?",
        "Which tensors does a tape follow from the start, and which does it have to be told of?",
        "Watching must name the very tensor that is used: a copy of it is another one.",
        "`tape.watch(x)`, as the first line of the block.",
    ),
    checker=Repair(
        reference=_saliency,
        inputs=_images,
        diagnosis=diagnosis(
            "the images",
            the_kernel="The kernel is a trainable variable: its gradient is there if you ask for it.",
            the_sum="This sum passes the gradient on to what it adds up.",
        ),
    ),
)


@pixels.starter()
def _():
    cause = ...  # "the images", "the kernel" or "the sum"

    def repaired(kernel, x):
        with tf.GradientTape() as tape:
            score = tf.reduce_sum(tf.tanh(tf.matmul(x, kernel)), axis=1)
        return tape.gradient(score, x)

    return cause, repaired


@pixels.right
def _():
    """This tape follows the kernel, a trainable variable, by itself. The images are a plain tensor, a constant to it,
    until `watch` names them. Each image's score depends on that image alone, so one call gives the gradient for each of
    them."""
    cause = "the images"

    def repaired(kernel, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            score = tf.reduce_sum(tf.tanh(tf.matmul(x, kernel)), axis=1)
        return tape.gradient(score, x)

    return cause, repaired


@pixels.mistake("of_the_kernel")
def _(kernel, x):
    """This is the gradient with respect to the *weights*: it says how training would move the network, and has the
    kernel's shape. Asked for is which pixels matter."""
    with tf.GradientTape() as tape:
        score = tf.reduce_sum(tf.tanh(tf.matmul(x, kernel)), axis=1)
    return tape.gradient(score, kernel)


@pixels.mistake("zeros_for_none")
def _(kernel, x):
    """Zeros, drawn as a picture, say that no pixel matters. What is true is that the tape was never asked to follow the
    pixels."""
    return tf.zeros_like(x)


@pixels.mistake("the_weights_themselves")
def _(kernel, x):
    """Without tanh the score is linear, and its gradient is the same for all images. tanh was part of the score."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        score = tf.reduce_sum(tf.matmul(x, kernel), axis=1)
    return tape.gradient(score, x)


@pixels.wrong("none")
def _(kernel, x):
    with tf.GradientTape() as tape:
        copy = tf.Variable(x)
        score = tf.reduce_sum(tf.tanh(tf.matmul(copy, kernel)), axis=1)
    return tape.gradient(score, x)
