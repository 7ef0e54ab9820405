"""Case 16, half the digits, a fraction of the range."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _half_rows(random, dtype):
    rows = random.uniform(1.0, 2.0, size=(2, 8)) * np.sign(random.normal(size=(2, 8)))
    return [
        (tf.constant([[3.0, 4.0], [300.0, 400.0]], dtype),),
        (tf.constant(rows * 1000.0, dtype),),
        (tf.constant(rows * 1e-4, dtype),),
    ]


@tf.custom_gradient
def _rms(x):
    """Value and gradient in float64, with NumPy."""
    values = x.numpy().astype(np.float64)
    rms = np.sqrt(np.mean(values**2, axis=1))
    slope = values / (values.shape[1] * rms[:, None])
    return tf.constant(rms, x.dtype), lambda upstream: upstream[:, None] * tf.constant(slope, x.dtype)


half_rms = Exercise(
    title="Case 16, half the digits, a fraction of the range",
    minutes=6,
    hints=(
        "The largest number of float16 is 65504. What is 300 squared? What is its smallest positive number, and what "
        "is 0.0001 squared?",
        "Scaling everything down by a constant saves the large numbers and loses the small ones. Clipping the squares "
        "gives the large ones no gradient.",
        "Square in a wider type. Where must the cast stand: before the square or after it?",
        "`wide = tf.cast(x, tf.float32)`, all the rest with `wide`, and `tf.cast(…, x.dtype)` around the result.",
    ),
    checker=Repair(
        reference=_rms,
        inputs=_half_rows,
        observe=with_gradients("x"),
        dtypes=(tf.float16,),
        rtol=2e-3,
        diagnosis=diagnosis(
            "the squares",
            the_root="The root brings numbers back into the range. Were they in it before?",
            the_mean="A sum overflows as well, one line later. In which line is the first infinity?",
        ),
    ),
)


@half_rms.starter()
def _():
    cause = ...  # "the mean", "the root" or "the squares"

    def repaired(x):
        squares = x**2
        return tf.sqrt(tf.reduce_mean(squares, axis=1))

    return cause, repaired


@half_rms.right
def _():
    """float16 ends at 65504, so the square of 256 is infinite already, and the square of 0.0001 is 0. In float32 both
    fit, and the result fits into float16 again."""
    cause = "the squares"

    def repaired(x):
        wide = tf.cast(x, tf.float32)
        return tf.cast(tf.sqrt(tf.reduce_mean(wide**2, axis=1)), x.dtype)

    return cause, repaired


@half_rms.mistake("cast_too_late")
def _(x):
    """The mean and the root are wide now. The squares overflowed before: a cast brings no infinity back."""
    return tf.cast(tf.sqrt(tf.reduce_mean(tf.cast(x**2, tf.float32), axis=1)), x.dtype)


@half_rms.mistake("bfloat16")
def _(x):
    """The range is wide enough. But bfloat16 has only eight significant bits, fewer than float16's eleven: the third
    digit is lost."""
    wide = tf.cast(x, tf.bfloat16)
    return tf.cast(tf.sqrt(tf.reduce_mean(wide**2, axis=1)), x.dtype)


@half_rms.mistake("scaled")
def _(x):
    """The large numbers are saved, and the small ones are lost: their squares are 0 now, and the slope of the root at 0
    is infinite."""
    return 1024.0 * tf.sqrt(tf.reduce_mean((x / 1024.0) ** 2, axis=1))


@half_rms.mistake("clipped")
def _(x):
    """No infinity. Every square above the clip counts as the clip, with a gradient of 0: large numbers cannot be
    trained, and the value is wrong."""
    return tf.sqrt(tf.reduce_mean(tf.minimum(x, 80.0) ** 2, axis=1))


@half_rms.mistake("mean_of_magnitudes")
def _(x):
    """No squares, no overflow, and another quantity: the mean of the magnitudes."""
    return tf.reduce_mean(tf.abs(x), axis=1)


@half_rms.wrong("dtype")
def _(x):
    return tf.sqrt(tf.reduce_mean(tf.cast(x, tf.float32) ** 2, axis=1))
