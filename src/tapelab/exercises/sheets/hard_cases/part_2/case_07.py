"""Case 7, nothing to attend to."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _queries(random, dtype):
    def trial(scores, values, allowed):
        return tf.constant(scores, dtype), tf.constant(values, dtype), tf.constant(allowed)

    allowed = random.integers(0, 2, size=(5, 4)).astype(bool)
    allowed[:, 1], allowed[3] = True, False
    scores, values = random.normal(size=(5, 4)), random.normal(size=(4, 3))
    unknown, far = scores.copy(), np.where(allowed, scores + [[-200.0], [-100.0], [0.0], [0.0], [100.0]], 200.0)
    unknown[0, 1] = np.nan
    return [
        trial([[1.0, 2.0], [0.5, 0.5]], [[1.0, 2.0], [3.0, 5.0]], [[True, True], [False, False]]),
        trial(scores, values, allowed),
        trial(far, values, allowed),
        trial(unknown, values, allowed),
    ]


def _observe_attention(answer, scores, values, allowed):
    if np.isnan(scores).any():  # a score that is really broken has to stay visible
        return {"the result for a score that is NaN": answer(scores, values, allowed)}
    return with_gradients("the scores", "the values", value="the result")(answer, scores, values, allowed)


def _attention(scores, values, allowed):
    """The softmax written out over what is allowed."""
    kept = tf.constant(np.asarray(allowed), scores.dtype)
    largest = np.max(scores, axis=1, keepdims=True, where=np.asarray(allowed), initial=-1e9)
    exponentials = kept * tf.exp(tf.where(allowed, scores - largest, 0.0))
    total = tf.reduce_sum(exponentials, axis=1, keepdims=True)
    empty = tf.constant(~np.any(allowed, axis=1, keepdims=True), scores.dtype)
    return tf.matmul(exponentials / (total + empty), values)


attention = Exercise(
    title="Case 7, nothing to attend to",
    minutes=8,
    hints=(
        "What does `explain` say about the second row? A softmax subtracts the largest score first: what is −∞ − (−∞)?",
        "With a low finite number in place of −∞ there is no NaN, and all weights of that row are equal: it attends "
        "to everything that was masked. What factor makes them 0?",
        "Exchanging NaN for 0 in the weights gives the right zeros here, and hides a score that is NaN for a real "
        "reason. The mask knows which weights are to be 0; ask the mask.",
        "Replace −∞ by `-1e9`, and multiply the softmax by `tf.cast(allowed, scores.dtype)`. In a row where something "
        "is allowed, the other weights are 0 already.",
    ),
    checker=Repair(
        reference=_attention,
        inputs=_queries,
        observe=_observe_attention,
        diagnosis=diagnosis(
            "a row without scores",
            minus_infinity="−∞ among finite scores is right: its weight is exactly 0. The first row has had no "
            "trouble.",
            large_scores="The scores are about 1.",
        ),
    ),
)


@attention.starter()
def _():
    cause = ...  # "a row without scores", "large scores" or "minus infinity"

    def repaired(scores, values, allowed):
        scores = tf.where(allowed, scores, -np.inf)
        weights = tf.nn.softmax(scores)
        return tf.matmul(weights, values)

    return cause, repaired


@attention.right
def _():
    """A row of −∞ only has no largest score to subtract. A finite stand-in gives such a row equal weights, and the
    product with the mask makes them 0, in the value and in the gradient. Rows that have something to attend to do not
    notice, with scores far above −10⁹: what the product removes from them was 0 before."""
    cause = "a row without scores"

    def repaired(scores, values, allowed):
        scores = tf.where(allowed, scores, -1e9)
        weights = tf.nn.softmax(scores) * tf.cast(allowed, scores.dtype)
        return tf.matmul(weights, values)

    return cause, repaired


@attention.mistake("very_negative")
def _(scores, values, allowed):
    """Finite, and the row attends to what it must not see: equal scores have equal weights, however negative they are.
    Padding now flows into the result, and gradients flow back into padding."""
    return tf.matmul(tf.nn.softmax(tf.where(allowed, scores, -1e9)), values)


@attention.mistake("nan_to_zero")
def _(scores, values, allowed):
    """All is well for healthy scores. One that is NaN, because something broke before, gives zeros now as well: the
    alarm has been taken down for good. The mask says which rows are to be 0, and `is_nan` guesses it."""
    weights = tf.nn.softmax(tf.where(allowed, scores, -np.inf))
    return tf.matmul(tf.where(tf.math.is_nan(weights), tf.zeros_like(weights), weights), values)


@attention.mistake("result_replaced")
def _(scores, values, allowed):
    """The result is right. The weights behind it are still NaN, and the gradient of the *values*, which all rows share,
    is 0 · NaN: one padded row poisons every value."""
    result = tf.matmul(tf.nn.softmax(tf.where(allowed, scores, -np.inf)), values)
    some = tf.reduce_any(allowed, axis=1, keepdims=True)
    return tf.where(some, result, tf.zeros_like(result))


@attention.mistake("scores_times_mask")
def _(scores, values, allowed):
    """A score of 0 is no mask: its weight is in proportion to e⁰ = 1."""
    return tf.matmul(tf.nn.softmax(scores * tf.cast(allowed, scores.dtype)), values)


@attention.mistake("exponentials")
def _(scores, values, allowed):
    """Right for scores of ordinary size. In float32 an exponential overflows above 88.8, and a row far below 0
    vanishes: a softmax subtracts the largest score first, and it has to be the largest of those that are *allowed*."""
    exponentials = tf.exp(scores) * tf.cast(allowed, scores.dtype)
    return tf.matmul(tf.math.divide_no_nan(exponentials, tf.reduce_sum(exponentials, axis=1, keepdims=True)), values)


@attention.mistake("not_normalised")
def _(scores, values, allowed):
    """Masked after the softmax, with the scores unmasked: the weights that are left no longer add up to 1."""
    return tf.matmul(tf.nn.softmax(scores) * tf.cast(allowed, scores.dtype), values)
