"""Case 17, right once, wrong twice."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


def _samples(random, dtype):
    return [
        (tf.constant([[1.0, 2.0, 4.0]], dtype),),
        (normals(random, dtype, 2, 5),),
        (normals(random, dtype, 2, 4) + 1000.0,),
    ]


def _observe_hessian(answer, x):
    weights = tf.reshape(tf.sin(tf.cast(tf.range(1, tf.size(x) + 1), x.dtype)), x.shape)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = answer(x)
        first = inner.gradient(y, x, output_gradients=weights)
    units = tf.reshape(tf.eye(tf.size(x), dtype=x.dtype), (-1, *x.shape))
    rows = [] if first is None else [outer.gradient(first, x, output_gradients=unit) for unit in units]
    return {
        "the value": y,
        "the gradient": first,
        "the Hessian": tf.stack(rows) if rows and all(row is not None for row in rows) else None,
    }


def _normalised(x):
    size = x.shape[1]
    centred = tf.matmul(x, tf.constant(np.eye(size) - 1.0 / size, x.dtype))
    return centred / tf.sqrt(tf.reduce_sum(centred**2, axis=1, keepdims=True) / size + 1e-3)


normalised_rows = Exercise(
    title="Case 17, right once, wrong twice",
    minutes=12,
    beyond=True,
    hints=(
        "The values are right, the gradient is right, and differences of the gradient say that its derivative is not. "
        "Which line computes something that you cannot see?",
        "Look up the source of `tf.nn.moments`, or the pull request above: where does the variance take its mean from?",
        "A `stop_gradient` on the mean leaves the first derivative as it is, since the distances from a mean add up to "
        "0. The second derivative is missing what it cut. So the variance has to be computed without it. (The mean of "
        "the squares minus the square of the mean is the same on paper; try it on numbers around 1000.)",
        "`variance = tf.reduce_mean((x - mean) ** 2, axis=1, keepdims=True)`.",
    ),
    checker=Repair(
        reference=_normalised,
        inputs=_samples,
        observe=_observe_hessian,
        rtol=5e-3,
        diagnosis=diagnosis(
            "the moments",
            rounding="In float64 the difference is the same.",
            the_epsilon="The ε stands inside the root, where it belongs, and is no more than a constant.",
        ),
    ),
)


@normalised_rows.starter()
def _():
    cause = ...  # "rounding", "the epsilon" or "the moments"

    def repaired(x):
        mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-3)

    return cause, repaired


@normalised_rows.right
def _():
    """`tf.nn.moments` takes the variance around a mean that it has stopped. For one derivative that changes nothing:
    the distances from a mean add up to 0. The derivative of that derivative lacks a term. Written out, the variance has
    it."""
    cause = "the moments"

    def repaired(x):
        mean = tf.reduce_mean(x, axis=1, keepdims=True)
        variance = tf.reduce_mean((x - mean) ** 2, axis=1, keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-3)

    return cause, repaired


def _mean(x):
    return tf.reduce_mean(x, axis=1, keepdims=True)


@normalised_rows.mistake("squares_minus_square")
def _(x):
    """The same on paper. For numbers around 1000 the two terms agree in nearly all their digits, and in float32 their
    difference is noise."""
    variance = _mean(x**2) - _mean(x) ** 2
    return (x - _mean(x)) / tf.sqrt(variance + 1e-3)


@normalised_rows.mistake("all_stopped")
def _(x):
    """Now the first derivative is wrong as well: value and slope take the variance for a constant."""
    variance = tf.stop_gradient(_mean((x - _mean(x)) ** 2))
    return (x - _mean(x)) / tf.sqrt(variance + 1e-3)


@normalised_rows.mistake("large_epsilon")
def _(x):
    """With a large ε everything is smaller, the error too. And it is no longer the normalisation that was asked for."""
    mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1.0)


@normalised_rows.mistake("without_scale")
def _(x):
    """Without the division there is no second derivative to be wrong about, and no normalisation."""
    return x - _mean(x)


@normalised_rows.mistake("over_the_batch")
def _(x):
    """Normalised over the examples, each column by itself. The layer normalises each example by itself."""
    mean = tf.reduce_mean(x, axis=0, keepdims=True)
    variance = tf.reduce_mean((x - mean) ** 2, axis=0, keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-3)


@normalised_rows.wrong("as_before")
def _(x):
    mean = _mean(x)
    return (x - mean) * tf.math.rsqrt(_mean((x - tf.stop_gradient(mean)) ** 2) + 1e-3)
