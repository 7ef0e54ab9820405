"""Case 10, a perfect model with a loss."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals, with_gradients

import tensorflow as tf


def _regressions(random, dtype):
    def trial(rows):
        return normals(random, dtype, 3, 1), normals(random, dtype, rows, 3), normals(random, dtype, rows)

    return [trial(2), trial(7)]


def _regression(w, x, y):
    return tf.reduce_mean((tf.tensordot(x, w[:, 0], 1) - y) ** 2)


perfect_model = Exercise(
    title="Case 10, a perfect model with a loss",
    minutes=4,
    hints=(
        "Print the shapes of `predicted`, of `y` and of their difference.",
        "(n, 1) and (n,) broadcast to (n, n): every prediction is compared with every target.",
        "Adding up where the mean was, or another learning rate, changes nothing about which pairs are compared. Give "
        "both the same shape.",
        "`predicted[:, 0] - y`, or `predicted - y[:, None]`.",
    ),
    checker=Repair(
        reference=_regression,
        inputs=_regressions,
        observe=with_gradients("w"),
        diagnosis=diagnosis(
            "the difference",
            the_mean="A mean over the right differences is right. Over how many does it run?",
            the_product="`tf.matmul` gives each example its prediction. What is done with the predictions next?",
        ),
    ),
)


@perfect_model.starter()
def _():
    cause = ...  # "the difference", "the mean" or "the product"

    def repaired(w, x, y):
        predicted = tf.matmul(x, w)
        return tf.reduce_mean((predicted - y) ** 2)

    return cause, repaired


@perfect_model.right
def _():
    """The prediction has shape (n, 1), the targets (n,), and their difference is a table of n times n. With one shape
    for both, each prediction meets its own target."""
    cause = "the difference"

    def repaired(w, x, y):
        predicted = tf.matmul(x, w)[:, 0]
        return tf.reduce_mean((predicted - y) ** 2)

    return cause, repaired


@perfect_model.mistake("mean_target")
def _(w, x, y):
    """Each prediction is compared with the mean of the targets: that is what the broken loss taught, by a shorter
    way."""
    return tf.reduce_mean((tf.matmul(x, w) - tf.reduce_mean(y)) ** 2)


@perfect_model.mistake("summed")
def _(w, x, y):
    """A sum, in place of a mean, over the same table of n times n."""
    return tf.reduce_sum((tf.matmul(x, w) - y) ** 2)


@perfect_model.mistake("mean_inside")
def _(w, x, y):
    """The table is averaged before the square, so each target is compared with the mean of the predictions."""
    return tf.reduce_mean(tf.reduce_mean(tf.matmul(x, w) - y, axis=0) ** 2)


@perfect_model.mistake("divided_by_rows")
def _(w, x, y):
    """Dividing by n does not bring back the pairs: the table still compares every prediction with every target."""
    return tf.reduce_mean((tf.matmul(x, w) - y) ** 2) / tf.cast(len(y), y.dtype)
