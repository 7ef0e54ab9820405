"""Case 9, four small steps for one large."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import tensorflow as tf


def _micro_batches(random, dtype):
    def trial(*sizes):
        batches = []
        for rows in sizes:
            kept = random.integers(0, 2, size=rows)
            kept[0] = 1
            x, y = normals(random, dtype, rows, 2), normals(random, dtype, rows)
            batches.append((x, y, tf.constant(kept, dtype)))
        return tf.Variable(normals(random, dtype, 2)), batches

    return [trial(2, 6), trial(3, 8, 5), trial(4)]


def _over_all(w, batches):
    x, y, kept = (tf.concat(parts, axis=0) for parts in zip(*batches, strict=True))
    return 2.0 * tf.linalg.matvec(x, kept * (tf.linalg.matvec(x, w) - y), transpose_a=True) / tf.reduce_sum(kept)


accumulated = Exercise(
    title="Case 9, four small steps for one large",
    minutes=7,
    hints=(
        "Take one batch with 2 kept rows and one with 6. How much does a row of each count in the mean of the two "
        "means? And in the mean over all 8?",
        "Weighting by the number of *rows* is not it: rows that are masked are no rows.",
        "Add up the gradients of the *sums*, and the counts. What is left to do at the end?",
        "Inside: `loss = tf.reduce_sum(kept * errors)` and `count += tf.reduce_sum(kept)`; at the end `total / count`.",
    ),
    checker=Repair(
        reference=_over_all,
        inputs=_micro_batches,
        diagnosis=diagnosis(
            "the divisions",
            the_two_tapes="Gradients are linear: those of two tapes add up to the gradient of the sum. Of which sum?",
            rounding="Here the first digits differ.",
        ),
    ),
)


@accumulated.starter()
def _():
    cause = ...  # "rounding", "the divisions" or "the two tapes"

    def repaired(w, batches):
        total = tf.zeros_like(w)
        for x, y, kept in batches:
            with tf.GradientTape() as tape:
                errors = (tf.linalg.matvec(x, w) - y) ** 2
                loss = tf.reduce_sum(kept * errors) / tf.reduce_sum(kept)
            total += tape.gradient(loss, w)
        return total / len(batches)

    return cause, repaired


@accumulated.right
def _():
    """A mean of means counts each batch the same, and so a row of a sparse batch more than a row of a full one. Sums
    add up without such weights; the one division comes last, by the number of rows that were kept."""
    cause = "the divisions"

    def repaired(w, batches):
        total, count = tf.zeros_like(w), 0.0
        for x, y, kept in batches:
            with tf.GradientTape() as tape:
                errors = (tf.linalg.matvec(x, w) - y) ** 2
                loss = tf.reduce_sum(kept * errors)
            total += tape.gradient(loss, w)
            count += tf.reduce_sum(kept)
        return total / count

    return cause, repaired


def _batch_gradient(w, x, y, kept):
    """Of the sum over the kept rows."""
    return 2.0 * tf.linalg.matvec(x, kept * (tf.linalg.matvec(x, w) - y), transpose_a=True)


@accumulated.mistake("by_rows")
def _(w, batches):
    """Each batch's mean is weighted by its number of rows, and the masked ones are among them. What did each mean
    divide by?"""
    rows = sum(len(y) for _, y, _ in batches)
    return sum(len(y) / rows * _batch_gradient(w, x, y, kept) / tf.reduce_sum(kept) for x, y, kept in batches)


@accumulated.mistake("undivided")
def _(w, batches):
    """The gradient of the sum over all rows. The mean is asked for: there is one division left."""
    return sum(_batch_gradient(w, *batch) for batch in batches)


@accumulated.mistake("means_added")
def _(w, batches):
    """Means added up in place of averaged: still means, each divided by its own count."""
    return sum(_batch_gradient(w, x, y, kept) / tf.reduce_sum(kept) for x, y, kept in batches)


@accumulated.mistake("divided_by_all_rows")
def _(w, batches):
    """The sums are right. They have been divided by the number of all rows; the masked ones have no part in the
    mean."""
    return sum(_batch_gradient(w, *batch) for batch in batches) / float(sum(len(y) for _, y, _ in batches))


@accumulated.mistake("last_batch")
def _(w, batches):
    """Only the last batch has arrived. Is `total` added to, or replaced?"""
    x, y, kept = batches[-1]
    return _batch_gradient(w, x, y, kept) / sum(tf.reduce_sum(kept) for _, _, kept in batches)
