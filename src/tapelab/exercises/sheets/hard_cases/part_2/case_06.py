"""Case 6, one image with nothing in it."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _images(random, dtype):
    def trial(errors, mask):
        return tf.constant(errors, dtype), tf.constant(mask, dtype)

    mask = random.integers(0, 2, size=(4, 6))
    mask[:, 0], mask[2] = 1, 0
    return [
        trial([[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0], [0.0, 0.0]]),
        trial(random.normal(size=(4, 6)), mask),
        trial(random.normal(size=(3, 2)), [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
    ]


def _marked(errors, mask):
    counts = np.sum(mask, axis=1, keepdims=True)
    weights = tf.constant(np.asarray(mask) / np.where(counts > 0, counts, 1.0), errors.dtype)
    return tf.reduce_mean(tf.reduce_sum(weights * errors**2, axis=1))


empty_mask = Exercise(
    title="Case 6, one image with nothing in it",
    minutes=5,
    hints=(
        "How many pixels are marked in the second image? What is the mean over that many?",
        "0/0 is NaN, and a mean over images hands it on to the whole batch. Exchanging the NaN for 0 after the "
        "division mends the value alone: look at the gradient of that image's errors.",
        "Give the division something it can divide by, where the count is 0, and nowhere else: adding 1 to every count "
        "changes all means.",
        "`tf.maximum(count, 1.0)`, or `tf.math.divide_no_nan(total, count)`.",
    ),
    checker=Repair(
        reference=_marked,
        inputs=_images,
        rtol=1e-5,  # a small number added to a count shows
        observe=with_gradients("the errors"),
        diagnosis=diagnosis(
            "the division",
            the_square="The errors are small, and so are their squares: nothing overflows. What comes after the sum?",
            the_mask="A mask of zeros and ones is a good mask, and a product with 0 is 0 while the other factor is "
            "finite. What follows the product?",
        ),
    ),
)


@empty_mask.starter()
def _():
    cause = ...  # "the division", "the mask" or "the square"

    def repaired(errors, mask):
        total = tf.reduce_sum(mask * errors**2, axis=1)
        count = tf.reduce_sum(mask, axis=1)
        return tf.reduce_mean(total / count)

    return cause, repaired


@empty_mask.right
def _():
    """An image without marked pixels has the total 0 and the count 0. With a count of at least 1 its mean is 0, with a
    gradient of 0. The mask holds zeros and ones, so the counts of all other images are as they were."""
    cause = "the division"

    def repaired(errors, mask):
        total = tf.reduce_sum(mask * errors**2, axis=1)
        count = tf.reduce_sum(mask, axis=1)
        return tf.reduce_mean(total / tf.maximum(count, 1.0))

    return cause, repaired


def _means(errors, mask):
    return tf.reduce_sum(mask * errors**2, axis=1), tf.reduce_sum(mask, axis=1)


@empty_mask.mistake("nan_to_zero")
def _(errors, mask):
    """The value is right now, and the gradient is still NaN for the empty image: `tf.where` sends it a 0, the division
    by a count of 0 makes an infinity of nothing, and their product is NaN."""
    total, count = _means(errors, mask)
    mean = total / count
    return tf.reduce_mean(tf.where(tf.math.is_nan(mean), 0.0, mean))


@empty_mask.mistake("batch_thrown_away")
def _(errors, mask):
    """One empty image, and the whole batch counts as 0. Nothing is learnt from the others, and the NaN is still in the
    gradient."""
    total, count = _means(errors, mask)
    loss = tf.reduce_mean(total / count)
    return tf.where(tf.math.is_nan(loss), 0.0, loss)


@empty_mask.mistake("one_more")
def _(errors, mask):
    """Every mean is too small: 1 was added to every count, also to those that were in order."""
    total, count = _means(errors, mask)
    return tf.reduce_mean(total / (count + 1.0))


@empty_mask.mistake("images_left_out")
def _(errors, mask):
    """The mean now runs over the images that have marked pixels. All images were to count, the empty ones with 0."""
    total, count = _means(errors, mask)
    return tf.reduce_sum(tf.math.divide_no_nan(total, count)) / tf.reduce_sum(tf.cast(count > 0.0, errors.dtype))


@empty_mask.mistake("pixels_pooled")
def _(errors, mask):
    """One mean over all marked pixels of the batch: images with many pixels now weigh more than others."""
    total, count = _means(errors, mask)
    return tf.reduce_sum(total) / tf.reduce_sum(count)


@empty_mask.wrong("values")
def _(errors, mask):
    total, count = _means(errors, mask)
    return tf.reduce_mean(total / (count + 1e-3))
