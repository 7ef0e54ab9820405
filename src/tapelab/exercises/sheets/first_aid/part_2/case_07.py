"""Case 7, the second question."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _pairs(random, dtype):
    def trial(rows):
        return tuple(normals(random, dtype, *shape) for shape in ((), (), (rows,), (rows,)))

    return [trial(3), trial(6)]


def _both(a, b, x, y):
    a, b, x, y = (part.numpy() for part in (a, b, x, y))
    hidden = np.tanh(x * a)
    of_fit = np.mean(2.0 * (hidden * b - y) * hidden)
    return tf.constant(of_fit, x.dtype), tf.constant(np.mean(2.0 * hidden * (1.0 - hidden**2) * x), x.dtype)


two_losses = Exercise(
    title="Case 7, the second question",
    minutes=4,
    hints=(
        "Which of the two calls raises? Exchange them: is it still the same loss?",
        "After the first answer this tape lets go of what it holds. It was not told otherwise when it was made.",
        "Adding the two losses up gives one answer for both, and mixes them: each variable is to follow its own loss.",
        "`tf.GradientTape(persistent=True)`, or two tapes in one `with`.",
    ),
    checker=Repair(
        reference=_both,
        inputs=_pairs,
        diagnosis=diagnosis(
            "how the tape is made",
            the_watching="Both are watched, before they are used.",
            the_two_losses="A tape may record both. How often may this one be asked?",
        ),
    ),
)


@two_losses.starter()
def _():
    cause = ...  # "how the tape is made", "the two losses" or "the watching"

    def repaired(a, b, x, y):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            hidden = tf.tanh(x * a)
            fit = tf.reduce_mean((hidden * b - y) ** 2)
            size = tf.reduce_mean(hidden**2)
        return tape.gradient(fit, b), tape.gradient(size, a)

    return cause, repaired


@two_losses.right
def _():
    """This tape keeps the tensors that the backward pass needs, and lets go of them with the first answer. A persistent
    tape keeps them for the second. Two tapes that record the same block do as well."""
    cause = "how the tape is made"

    def repaired(a, b, x, y):
        with tf.GradientTape(persistent=True) as tape:
            tape.watch([a, b])
            hidden = tf.tanh(x * a)
            fit = tf.reduce_mean((hidden * b - y) ** 2)
            size = tf.reduce_mean(hidden**2)
        return tape.gradient(fit, b), tape.gradient(size, a)

    return cause, repaired


def _recorded(a, b, x, y):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([a, b])
        hidden = tf.tanh(x * a)
        fit = tf.reduce_mean((hidden * b - y) ** 2)
        size = tf.reduce_mean(hidden**2)
    return tape, fit, size


@two_losses.mistake("summed")
def _(a, b, x, y):
    """One call for the sum of both losses. `b` is in one of them only, and comes out right; `a` is in both, and follows
    their sum. `size` alone was to move it."""
    tape, fit, size = _recorded(a, b, x, y)
    return tape.gradient([fit, size], b), tape.gradient([fit, size], a)


@two_losses.mistake("both_of_fit")
def _(a, b, x, y):
    """One call with two sources, and one loss: both follow `fit`. The second was to follow `size`."""
    tape, fit, _ = _recorded(a, b, x, y)
    return tape.gradient(fit, b), tape.gradient(fit, a)


@two_losses.mistake("error_caught")
def _(a, b, x, y):
    """The error is caught and a zero put in its place: the second loss is never followed."""
    tape, fit, _ = _recorded(a, b, x, y)
    return tape.gradient(fit, b), tf.zeros_like(a)


@two_losses.mistake("exchanged")
def _(a, b, x, y):
    """Both gradients are there, in the other order."""
    tape, fit, size = _recorded(a, b, x, y)
    return tape.gradient(size, a), tape.gradient(fit, b)
