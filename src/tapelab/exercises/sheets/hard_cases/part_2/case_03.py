"""Case 3, most wrong, least taught."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _margins(random, dtype):
    def trial(scores, sides):
        return tf.constant(scores, dtype), tf.constant(sides, dtype)

    shown = trial([2.0, -1.0, 1000.0], [1.0, 1.0, -1.0])
    sides = np.sign(random.normal(size=7))
    return [shown, trial(random.normal(size=7), sides), trial([1500.0, -2000.0, 0.0], [1.0, 1.0, -1.0])]


def _soft_margin(scores, sides):
    z = -sides * scores
    return tf.reduce_mean(tf.reduce_logsumexp(tf.stack([tf.zeros_like(z), z]), axis=0))


soft_margin = Exercise(
    title="Case 3, most wrong, least taught",
    minutes=5,
    hints=(
        r"The third score is 1000, on the wrong side. What is $e^{1000}$ in floating point?",
        "The logarithm would bring it back to 1000, and never sees it. Clipping the exponent makes the loss finite: "
        "what is the gradient of a clip where it clips?",
        "Section 3 of notebook 04 has a table of operations that do two steps in one.",
        "`tf.nn.softplus(z)` is `log(1 + exp(z))`.",
    ),
    checker=Repair(
        reference=_soft_margin,
        inputs=_margins,
        observe=with_gradients("the scores"),
        diagnosis=diagnosis(
            "overflow",
            log_of_zero="The logarithm's argument is 1 or more. What is it at its largest?",
            a_wrong_label="An example on the wrong side is what the loss is for. Its slope should be the largest.",
        ),
    ),
)


@soft_margin.starter()
def _():
    cause = ...  # "a wrong label", "log of zero" or "overflow"

    def repaired(scores, sides):
        z = -sides * scores
        return tf.reduce_mean(tf.math.log(1.0 + tf.exp(z)))

    return cause, repaired


@soft_margin.right
def _():
    """The exponential overflows to infinity before the logarithm can bring it back. `tf.nn.softplus` does not
    overflow at this z; its slope is the sigmoid of z, which is 1 there."""
    cause = "overflow"

    def repaired(scores, sides):
        z = -sides * scores
        return tf.reduce_mean(tf.nn.softplus(z))

    return cause, repaired


@soft_margin.mistake("clipped")
def _(scores, sides):
    """Finite, and dead: a clip passes no gradient where it clips, so the examples that are most wrong teach nothing.
    The value is wrong for them, too."""
    return tf.reduce_mean(tf.math.log(1.0 + tf.exp(tf.minimum(-sides * scores, 80.0))))


@soft_margin.mistake("dropped")
def _(scores, sides):
    """The infinite losses have been replaced by 0, so the worst example counts as perfect; and in the backward pass the
    infinity is still there, multiplied by the 0 of `tf.where`."""
    losses = tf.math.log(1.0 + tf.exp(-sides * scores))
    return tf.reduce_mean(tf.where(tf.math.is_finite(losses), losses, 0.0))


@soft_margin.mistake("chosen_after")
def _(scores, sides):
    """The value is right everywhere, and the gradient still NaN: `tf.where` chooses after both branches were computed.
    That is case 4; here one operation does it all."""
    z = -sides * scores
    return tf.reduce_mean(tf.where(z > 80.0, z, tf.math.log(1.0 + tf.exp(z))))


@soft_margin.mistake("log1p")
def _(scores, sides):
    """There is still an infinity. The exponential has overflowed before `log1p`, or an ε, can do anything about it; and
    with the logarithm of a sigmoid, the sigmoid has become 0 before its logarithm is taken."""
    return tf.reduce_mean(tf.math.log1p(tf.exp(-sides * scores)))


@soft_margin.mistake("hinge")
def _(scores, sides):
    """A hinge has no overflow, and is another loss: it is flat as soon as the side is right."""
    return tf.reduce_mean(tf.nn.relu(-sides * scores))


@soft_margin.wrong("values")
def _(scores, sides):
    z = -sides * scores
    return tf.reduce_mean(tf.nn.relu(z) + tf.math.log1p(tf.exp(-tf.abs(z))))  # no slope where the score is 0
