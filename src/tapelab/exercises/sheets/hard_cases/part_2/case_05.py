"""Case 5, no spread at all."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _columns(random, dtype):
    mixed = random.normal(size=(8, 4))
    mixed[:, 2] = 0.25
    return [
        (tf.constant([[1.0, 3.0], [2.0, 3.0], [4.0, 3.0], [5.0, 3.0]], dtype),),
        (tf.constant(mixed, dtype),),
        (tf.constant(mixed * 0.03125, dtype),),
        (tf.constant(mixed * 2.0**-58, dtype),),  # quiet
    ]


@tf.custom_gradient
def _spread(x):
    """Value and gradient in closed form, with NumPy."""
    values = x.numpy().astype(np.float64)
    centred = values - values.mean(axis=0)
    std = values.std(axis=0)
    slope = np.where(std > 0, centred / np.where(std > 0, std, 1.0), 0.0) / values.size
    return tf.constant(std.mean(), x.dtype), lambda upstream: upstream * tf.constant(slope, x.dtype)


spread = Exercise(
    title="Case 5, no spread at all",
    minutes=6,
    hints=(
        "The second column is constant. What is its variance, and what is the slope of a square root there?",
        "An ε that is added *after* the root has derivative 0 and cures nothing. One inside the root changes every "
        "small spread. Exchanging a NaN for a 0 in the *value* finds none: the value is fine.",
        "Make the choice before the root, as `safe_norm` of notebook 04 does: where the variance is 0, give the root "
        "something harmless.",
        "`flat = variance == 0.0`, then `tf.where(flat, 0.0, tf.sqrt(tf.where(flat, 1.0, variance)))`.",
    ),
    checker=Repair(
        reference=_spread,
        inputs=_columns,
        observe=with_gradients("x"),
        diagnosis=diagnosis(
            "the root",
            negative_variance="A mean of squares is not negative. What is it exactly, in the second column?",
            the_mean="A mean has the slope 1/n, and subtracting it is linear.",
        ),
    ),
)


@spread.starter()
def _():
    cause = ...  # "negative variance", "the mean" or "the root"

    def repaired(x):
        centred = x - tf.reduce_mean(x, axis=0)
        variance = tf.reduce_mean(centred**2, axis=0)
        return tf.reduce_mean(tf.sqrt(variance))

    return cause, repaired


@spread.right
def _():
    """The root's slope at 0 is infinite, and the squares' slope there is 0: their product is NaN. A standard deviation
    has a kink at equal numbers, like a norm at 0, and 0 is a fair choice of slope. The choice before the root leaves
    the other columns exactly as they were."""
    cause = "the root"

    def repaired(x):
        centred = x - tf.reduce_mean(x, axis=0)
        variance = tf.reduce_mean(centred**2, axis=0)
        flat = variance == 0.0
        deviation = tf.where(flat, 0.0, tf.sqrt(tf.where(flat, 1.0, variance)))
        return tf.reduce_mean(deviation)

    return cause, repaired


def _variance(x):
    return tf.reduce_mean((x - tf.reduce_mean(x, axis=0)) ** 2, axis=0)


@spread.mistake("epsilon_inside")
def _(x):
    """No NaN. But this ε is as large as the variances of quiet columns: their spread, and its slope, are wrong now."""
    return tf.reduce_mean(tf.sqrt(_variance(x) + 1e-3))


@spread.mistake("variance")
def _(x):
    """The variance has no kink, and is another quantity: twice the spread counts four times."""
    return tf.reduce_mean(_variance(x))


@spread.mistake("columns_left_out")
def _(x):
    """The mean now runs over fewer columns: a constant one counts, with a spread of 0."""
    variance = _variance(x)
    return tf.reduce_mean(tf.sqrt(tf.boolean_mask(variance, variance > 0.0)))


@spread.mistake("stopped")
def _(x):
    """The NaN is gone, together with every gradient: a spread that cannot be trained."""
    return tf.reduce_mean(tf.sqrt(tf.stop_gradient(_variance(x)))) + 0.0 * tf.reduce_sum(x)


@spread.mistake("clipped")
def _(x):
    """Every column below the clip is flat now, not only the constant ones: quiet columns get the wrong value and no
    gradient."""
    return tf.reduce_mean(tf.sqrt(tf.maximum(_variance(x), 1e-2)))


@spread.wrong("values")
def _(x):
    return tf.reduce_mean(tf.sqrt(_variance(x) + 1e-30))  # less than any ordinary variance, and more than a quiet one


@spread.wrong("as_before")
def _(x):
    return tf.reduce_mean(tf.sqrt(_variance(x))) + 1e-12


@spread.wrong("as_before")
def _(x):
    deviation = tf.sqrt(_variance(x))
    return tf.reduce_mean(tf.where(tf.math.is_nan(deviation), 0.0, deviation))
