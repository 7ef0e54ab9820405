"""Case 4, a guard against zero."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _ratios(random, dtype):
    def trial(predicted, target):
        return tf.constant(predicted, dtype), tf.constant(target, dtype)

    target = random.normal(size=8)
    target[[2, 5]] = 0.0
    return [
        trial([2.2, 0.4, 0.9], [2.0, 0.0, 1.0]),
        trial(random.normal(size=8), target),
        trial([1.2e-6, -0.3, 0.1], [1e-6, 0.0, -1.0]),
    ]


def _relative(predicted, target):
    known = np.asarray(target) != 0
    error = (predicted - np.where(known, target, 0.0)) / tf.constant(np.where(known, target, 1.0), predicted.dtype)
    return tf.reduce_mean(error**2)


relative_error = Exercise(
    title="Case 4, a guard against zero",
    minutes=6,
    hints=(
        "The loss is finite. So the NaN is made on the way back. Which operation has no finite slope at this target?",
        "`tf.where` sends 0 to the branch that it did not choose. What is 0 divided by 0?",
        "Replacing the NaN by 0 afterwards loses what came through the branch that *was* chosen. The infinity must not "
        "arise: choose before the division as well. A small ε added to every target changes the small ones.",
        "Divide by `tf.where(target == 0.0, 1.0, target)`; the last `tf.where` stays as it is.",
    ),
    checker=Repair(
        reference=_relative,
        inputs=_ratios,
        observe=with_gradients("the prediction"),
        diagnosis=diagnosis(
            "the branch not taken",
            the_branch_taken="`predicted` has the slope 1, and its square is tame.",
            the_comparison="`target == 0.0` gives booleans, which have no gradient, and nothing asks them for one.",
        ),
    ),
)


@relative_error.starter()
def _():
    cause = ...  # "the branch not taken", "the branch taken" or "the comparison"

    def repaired(predicted, target):
        relative = (predicted - target) / target
        error = tf.where(target == 0.0, predicted, relative)
        return tf.reduce_mean(error**2)

    return cause, repaired


@relative_error.right
def _():
    """Both branches are computed and differentiated; the choice comes afterwards. With a harmless divisor where the
    quotient is not wanted, its slope is finite, and 0 times a finite slope is 0."""
    cause = "the branch not taken"

    def repaired(predicted, target):
        divisor = tf.where(target == 0.0, 1.0, target)
        relative = (predicted - target) / divisor
        error = tf.where(target == 0.0, predicted, relative)
        return tf.reduce_mean(error**2)

    return cause, repaired


@tf.custom_gradient
def _finite_gradient(x):
    """The identity, that replaces what is not finite on the way back by 0."""
    return tf.identity(x), lambda upstream: tf.where(tf.math.is_finite(upstream), upstream, 0.0)


@relative_error.mistake("nan_to_zero")
def _(predicted, target):
    """The alarm is off, and the patient is not well: the element with target 0 has a gradient of its own, through the
    branch that was taken. It was added to the NaN, and you have thrown away the sum."""
    predicted = _finite_gradient(predicted)
    error = tf.where(target == 0.0, predicted, (predicted - target) / target)
    return tf.reduce_mean(error**2)


@relative_error.mistake("stopped")
def _(predicted, target):
    """No NaN any more, and no gradient from any relative error either: `tf.stop_gradient` has cut them all off."""
    relative = tf.stop_gradient((predicted - target) / target)
    return tf.reduce_mean(tf.where(target == 0.0, predicted, relative) ** 2)


@relative_error.mistake("left_out")
def _(predicted, target):
    """The elements with target 0 have been left out of the mean. They count, with their absolute error."""
    known = target != 0.0
    return tf.reduce_mean(tf.boolean_mask((predicted - target) / target, known) ** 2)


@relative_error.mistake("epsilon")
def _(predicted, target):
    """Finite, and an ε of that size is as large as some of the targets: their relative errors are now wrong. There is
    an exact way."""
    relative = (predicted - target) / (target + 1e-3)
    return tf.reduce_mean(tf.where(target == 0.0, predicted, relative) ** 2)


@relative_error.mistake("masked")
def _(predicted, target):
    """A product does not choose: 0 · ∞ is NaN, and now the value has it as well."""
    zero = tf.cast(target == 0.0, predicted.dtype)
    return tf.reduce_mean((zero * predicted + (1.0 - zero) * (predicted - target) / target) ** 2)


@relative_error.wrong("values")
def _(predicted, target):
    return tf.reduce_mean(tf.where(target == 0.0, predicted, (predicted - target) / (target + 1e-7)) ** 2)
