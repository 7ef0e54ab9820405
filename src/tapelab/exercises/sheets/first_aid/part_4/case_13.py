"""Case 13, the share of right answers."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _classified(random, dtype):
    def trial(rows, scale=1.0):
        labels = tf.constant(random.integers(0, 3, size=rows), tf.int64)
        return tf.Variable(scale * normals(random, dtype, 2, 3)), normals(random, dtype, rows, 2), labels

    return [trial(4), trial(9), trial(9, scale=3000.0)]  # in the last, probabilities round to 0


def _entropy_slope(w, x, labels):
    logits = x.numpy() @ w.numpy()
    logits = logits - np.max(logits, axis=1, keepdims=True)
    p = np.exp(logits) / np.sum(np.exp(logits), axis=1, keepdims=True)
    return tf.constant(x.numpy().T @ (p - np.eye(3, dtype=p.dtype)[labels.numpy()]) / len(p))


right_answers = Exercise(
    title="Case 13, the share of right answers",
    minutes=6,
    hints=(
        "Move an entry of `w` by a thousandth. By how much does the share of right answers change?",
        "What counts examples is flat, and jumps. What could fall a little when an answer becomes a little better?",
        "A steep curve in place of the jump is nearly as flat. Take a loss for classes that works on the logits "
        "themselves.",
        "`tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)`, and its mean.",
    ),
    checker=Repair(
        reference=_entropy_slope,
        inputs=_classified,
        diagnosis=diagnosis(
            "the line of hits",
            the_line_of_logits="A product of matrices passes gradients on. Do any arrive?",
            nothing_is_wrong="For a number to report, nothing is. It was to be made smaller, along a gradient. Is "
            "there one?",
        ),
    ),
)


@right_answers.starter()
def _():
    cause = ...  # "nothing is wrong", "the line of hits" or "the line of logits"

    def repaired(w, x, labels):
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, w)
            hits = tf.cast(tf.argmax(logits, axis=1) == labels, x.dtype)
            loss = 1.0 - tf.reduce_mean(hits)
        return tape.gradient(loss, w)

    return cause, repaired


@right_answers.right
def _():
    """The share of right answers is a metric: a number for people. It is flat but for jumps, and `tf.argmax` returns
    integers, so there is no gradient. Train with a loss that can fall a little, here cross-entropy, and print the
    metric beside it."""
    cause = "the line of hits"

    def repaired(w, x, labels):
        with tf.GradientTape() as tape:
            logits = tf.matmul(x, w)
            entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(entropy)
        return tape.gradient(loss, w)

    return cause, repaired


def _gradient(w, loss_of):
    with tf.GradientTape() as tape:
        loss = loss_of(w)
    return tape.gradient(loss, w)


@right_answers.mistake("zeros_for_none")
def _(w, x, labels):
    """Zero would even be the derivative of a share of hits, almost everywhere. No step comes of it."""
    return tf.zeros_like(w)


@right_answers.mistake("softmax_twice")
def _(w, x, labels):
    """A gradient, and another one: the cross-entropy that takes logits has been handed probabilities, and applies a
    softmax to them once more. Keras's cross-entropies have `from_logits` for that."""
    return _gradient(
        w,
        lambda w: tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.nn.softmax(tf.matmul(x, w)))
        ),
    )


@right_answers.mistake("log_of_softmax")
def _(w, x, labels):
    """Right while the logits lie close together. Where they lie far apart a probability rounds to 0, and its logarithm
    is infinite. The loss that takes the logits themselves does both in one step."""
    return _gradient(
        w,
        lambda w: (
            -tf.reduce_mean(
                tf.gather(tf.math.log(tf.nn.softmax(tf.matmul(x, w))), labels, batch_dims=1),
            )
        ),
    )


@right_answers.mistake("probability")
def _(w, x, labels):
    """The mean probability of a wrong answer: the metric, made soft. It has a gradient, which fades where an
    answer is most wrong. Asked for is the cross-entropy."""

    def loss(w):
        p = tf.nn.softmax(tf.matmul(x, w))
        return 1.0 - tf.reduce_mean(tf.gather(p, labels, batch_dims=1))

    return _gradient(w, loss)


@right_answers.mistake("fitted_to_labels")
def _(w, x, labels):
    """A line fitted to ones and zeros by least squares: a logit beyond 1 is pulled back, although its answer is right.
    Asked for is the cross-entropy."""
    return _gradient(w, lambda w: tf.reduce_mean((tf.matmul(x, w) - tf.one_hot(labels, 3, dtype=x.dtype)) ** 2))


@right_answers.mistake("summed")
def _(w, x, labels):
    """The right loss for each example, added up. The mean is asked for."""
    return _gradient(
        w,
        lambda w: tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, tf.matmul(x, w))),
    )
