"""Case 15, the cure that flattens."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis

import numpy as np
import tensorflow as tf


def _near_zero(random, dtype):
    return [
        (tf.constant([0.0, 1.0], dtype),),
        (tf.constant([1e-4, -1e-3, 0.0, 0.02, 3.0], dtype),),
        (tf.constant([0.09, -0.6, *np.linspace(0.0101, 0.012, 12)], dtype),),
        (tf.constant(random.uniform(-4.0, 4.0, size=6), dtype),),
    ]


def _observe_twice(answer, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = answer(x)
        first = inner.gradient(y, x)
    second = None if first is None else outer.gradient(first, x)
    return {"the value": y, "the first derivative": first, "the second derivative": second}


def _sinc(x):
    """The power series in float64, all the way."""
    square, term, total = tf.cast(x, tf.float64) ** 2, 1.0, 1.0
    for k in range(1, 16):
        term = term * -square / ((2 * k) * (2 * k + 1))
        total = total + term
    return tf.cast(total, x.dtype)


sinc = Exercise(
    title="Case 15, the cure that flattens",
    minutes=12,
    hints=(
        "Which branch does the tape differentiate at 0, and what is the second derivative of that branch?",
        "A branch has to agree with the function in all the derivatives that you ask for, not only in its value. Which "
        "polynomial agrees with sin(x)/x around 0?",
        "Only *at* 0 is not enough: next to 0, the quotient's second derivative is a difference of huge numbers, and "
        "float32 has seven digits. Use the polynomial in a whole neighbourhood, say |x| < 0.1, and keep the double "
        "where for the quotient.",
        "`near = tf.abs(x) < 0.1`, `safe = tf.where(near, 1.0, x)`, and `tf.where(near, 1.0 - x**2 / 6.0 + x**4 / "
        "120.0, tf.sin(safe) / safe)`.",
    ),
    checker=Repair(
        reference=_sinc,
        inputs=_near_zero,
        observe=_observe_twice,
        diagnosis=diagnosis(
            "a constant branch",
            an_unselected_branch="The quotient is kept from 0 by a harmless argument. Its derivatives there are "
            "finite, and multiplied by 0.",
            rounding="The result is 0 exactly, in float64 as well.",
        ),
    ),
)


@sinc.starter()
def _():
    cause = ...  # "a constant branch", "an unselected branch" or "rounding"

    def repaired(x):
        safe = tf.where(x == 0.0, 1.0, x)
        return tf.where(x == 0.0, 1.0, tf.sin(safe) / safe)

    return cause, repaired


@sinc.right
def _():
    """At 0 the tape differentiates the constant 1. Its slope is right by luck, because the function is level there; its
    curvature is 0, and not −1/3. A polynomial that agrees to fourth order has the right first and second derivative,
    and in a whole neighbourhood it also spares the quotient the place where its digits cancel. The double where keeps
    NaN out; it does not make a branch right."""
    cause = "a constant branch"

    def repaired(x):
        near = tf.abs(x) < 0.1
        safe = tf.where(near, 1.0, x)
        series = 1.0 - x**2 / 6.0 + x**4 / 120.0
        return tf.where(near, series, tf.sin(safe) / safe)

    return cause, repaired


@sinc.mistake("only_at_zero")
def _(x):
    """Right at 0, and wrong next to it: the quotient's second derivative subtracts huge numbers there, and in float32
    little of it is left. The polynomial needs a neighbourhood."""
    zero = x == 0.0
    safe = tf.where(zero, 1.0, x)
    return tf.where(zero, 1.0 - x**2 / 6.0, tf.sin(safe) / safe)


@sinc.mistake("wider_constant")
def _(x):
    """A wider neighbourhood of the wrong function: now there are more places at which the curvature is 0."""
    near = tf.abs(x) < 0.1
    safe = tf.where(near, 1.0, x)
    return tf.where(near, 1.0, tf.sin(safe) / safe)


@sinc.mistake("one_where")
def _(x):
    """The inner choice is gone, and the NaN is back: 0/0 in the branch that is not taken."""
    return tf.where(tf.abs(x) < 0.1, 1.0 - x**2 / 6.0 + x**4 / 120.0, tf.sin(x) / x)


@sinc.mistake("epsilon")
def _(x):
    """No branch, and no NaN. Next to 0 the second derivative is still a difference of huge numbers, and with so small a
    divisor nothing of it is right."""
    return tf.sin(x + 1e-6) / (x + 1e-6)


@sinc.mistake("series_everywhere")
def _(x):
    """Right near 0. Far away three terms of the series are not enough: there the quotient has no trouble."""
    return 1.0 - x**2 / 6.0 + x**4 / 120.0


@sinc.wrong("values")
def _(x):
    near = tf.abs(x) < 0.01  # beyond it the quotient's second derivative is off in float32
    safe = tf.where(near, 1.0, x)
    return tf.where(near, 1.0 - x**2 / 6.0 + x**4 / 120.0, tf.sin(safe) / safe)
