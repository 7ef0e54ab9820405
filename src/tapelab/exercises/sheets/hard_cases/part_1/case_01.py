"""Case 1, the mask that cannot move."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals, with_gradients

import tensorflow as tf


def _pixels(random, dtype):
    def labels(size):
        return tf.constant(random.integers(0, 2, size=size), dtype)

    shown = tf.constant([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]], dtype), tf.constant([1.0, 0.0, 0.0], dtype)
    return [shown, *((normals(random, dtype, size, 2), labels(size)) for size in (6, 20))]


def _soft_dice(logits, labels):
    p = 0.5 * (1.0 + tf.tanh(0.5 * (logits[:, 1] - logits[:, 0])))
    return 1.0 - 2.0 * tf.tensordot(p, labels, 1) / tf.reduce_sum(p + labels)


counted_pixels = Exercise(
    title="Case 1, the mask that cannot move",
    minutes=6,
    hints=(
        "Which of the operations returns integers? What is the derivative of an integer?",
        "Move a logit a little: the winner stays the winner, and the mask stays what it was. Even with a path, the "
        "derivative would be 0 here. What *does* move with the logits?",
        "A steeper softmax is nearly a mask, and nearly flat as well: that only hides the trouble. Use the probability "
        "itself.",
        "`tf.nn.softmax(logits)[:, 1]` takes the place of both lines with `winner` and `mask`.",
    ),
    checker=Repair(
        reference=_soft_dice,
        inputs=_pixels,
        observe=with_gradients("the logits"),
        diagnosis=diagnosis(
            "argmax",
            one_hot="`tf.one_hot` is handed integers already. The path was cut one line above.",
            the_ratio="Products and quotients of floating-point tensors pass gradients on. Is there one that arrives?",
        ),
    ),
)


@counted_pixels.starter()
def _():
    cause = ...  # "argmax", "one hot" or "the ratio"

    def repaired(logits, labels):
        winner = tf.argmax(logits, axis=1)
        mask = tf.one_hot(winner, 2, dtype=logits.dtype)[:, 1]
        overlap = tf.reduce_sum(mask * labels)
        return 1.0 - 2.0 * overlap / (tf.reduce_sum(mask) + tf.reduce_sum(labels))

    return cause, repaired


@counted_pixels.right
def _():
    """`tf.argmax` gives an index, and an index does not move when a logit moves by a little. The probability does. With
    it the ratio is called the *soft* Dice loss."""
    cause = "argmax"

    def repaired(logits, labels):
        mask = tf.nn.softmax(logits)[:, 1]
        overlap = tf.reduce_sum(mask * labels)
        return 1.0 - 2.0 * overlap / (tf.reduce_sum(mask) + tf.reduce_sum(labels))

    return cause, repaired


def _dice(mask, labels):
    return 1.0 - 2.0 * tf.reduce_sum(mask * labels) / (tf.reduce_sum(mask) + tf.reduce_sum(labels))


@counted_pixels.mistake("one_logit")
def _(logits, labels):
    """The sigmoid of one logit forgets the other: adding a constant to both classes changes this loss, and should
    not."""
    return _dice(tf.sigmoid(logits[:, 1]), labels)


@counted_pixels.mistake("straight_through")
def _(logits, labels):
    """The value is that of the hard mask, and the gradient that of the probability: a straight-through estimator. The
    loss that is asked for has both from one function."""
    soft = tf.nn.softmax(logits)[:, 1]
    hard = tf.one_hot(tf.argmax(logits, axis=1), 2, dtype=logits.dtype)[:, 1]
    return _dice(soft + tf.stop_gradient(hard - soft), labels)


@counted_pixels.mistake("steep")
def _(logits, labels):
    """The steep softmax is nearly the mask, and its gradient is nearly that of the mask: 0, but for pixels that are
    undecided. `None` has become a zero."""
    return _dice(tf.nn.softmax(100.0 * logits)[:, 1], labels)


@counted_pixels.mistake("raw_logits")
def _(logits, labels):
    """A gradient arrives. But logits are not between 0 and 1, and this ratio is no overlap of anything."""
    return _dice(logits[:, 1], labels)


@counted_pixels.mistake("half_soft")
def _(logits, labels):
    """The probability stands in the overlap, and the hard mask still in the sum below it: the value mixes two masks,
    and half of the gradient is missing."""
    hard = tf.one_hot(tf.argmax(logits, axis=1), 2, dtype=logits.dtype)[:, 1]
    overlap = tf.reduce_sum(tf.nn.softmax(logits)[:, 1] * labels)
    return 1.0 - 2.0 * overlap / (tf.reduce_sum(hard) + tf.reduce_sum(labels))


@counted_pixels.mistake("other_class")
def _(logits, labels):
    """This is the probability of class 0. The mask was that of class 1."""
    return _dice(tf.nn.softmax(logits)[:, 0], labels)
