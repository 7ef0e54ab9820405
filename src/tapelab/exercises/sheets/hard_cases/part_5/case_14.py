"""Case 14, the angle between two directions."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, with_gradients

import numpy as np
import tensorflow as tf


def _directions(random, dtype):
    """Rows of unit vectors in float64, rounded: equal, far apart, and very close."""

    def trial(u, v):
        return tuple(tf.constant(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype) for rows in (u, v))

    u, v = random.normal(size=(4, 3)), random.normal(size=(4, 3))
    close = u / np.linalg.norm(u, axis=1, keepdims=True)
    across = np.cross(close, v)
    return [
        trial(np.eye(3), np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])),
        trial(u, v),
        trial(close, close + 1e-3 * across / np.linalg.norm(across, axis=1, keepdims=True)),
    ]


def _observe_angle(answer, u, v):
    """The value, and the gradients along the sphere: off it, formulas for an angle differ."""
    seen = with_gradients("u", "v", value="the angle")(answer, u, v)
    for name, unit in (("u", u), ("v", v)):
        gradient = seen.pop(f"the gradient of {name}")
        if tf.is_tensor(gradient):
            gradient = gradient - unit * tf.reduce_sum(gradient * unit, axis=1, keepdims=True)
        seen[f"the gradient of {name}, along the sphere"] = gradient
    return seen


@tf.custom_gradient
def _angle(u, v):
    """Value and gradient in float64, with NumPy: the slope is 1, along the great circle."""
    a, b = u.numpy().astype(np.float64), v.numpy().astype(np.float64)
    sine = np.linalg.norm(np.cross(a, b), axis=1)
    cosine = np.sum(a * b, axis=1)
    divisor = np.where(sine > 0, sine, np.inf)[:, None]
    slopes = (-(b - cosine[:, None] * a) / divisor, -(a - cosine[:, None] * b) / divisor)

    def backward(upstream):
        return tuple(upstream[:, None] * tf.constant(slope, u.dtype) for slope in slopes)

    return tf.constant(np.arctan2(sine, cosine), u.dtype), backward


angle = Exercise(
    title="Case 14, the angle between two directions",
    minutes=12,
    hints=(
        "What is the slope of `acos` at 1? And why does a cosine know so little of a small angle: how many digits of "
        r"$1 - \theta^2/2$ are left for $\theta = 0.001$?",
        "Clamping the cosine below 1 makes the slope finite, and every angle below the clamp's the same, with the "
        "gradient 0. The sine is what small angles are made of.",
        r"$\theta = \mathrm{atan2}(\sin\theta, \cos\theta)$, and $\sin\theta$ is the norm of `tf.linalg.cross(u, v)`. "
        "Which trap has a norm?",
        "`squared = tf.reduce_sum(cross**2, axis=1)`, then the safe norm of case 5, `sine = tf.where(squared == 0.0, "
        "0.0, tf.sqrt(tf.where(squared == 0.0, 1.0, squared)))`, and `tf.atan2(sine, cosine)`.",
    ),
    checker=Repair(
        reference=_angle,
        inputs=_directions,
        observe=_observe_angle,
        rtol=2e-3,
        diagnosis=diagnosis(
            "the slope of acos",
            a_cosine_above_1="That happens too, by rounding, and then the *value* is NaN. Here the value is 0.",
            vectors_not_normalised="They have length 1. Two that are equal have the cosine 1, and that is right.",
        ),
    ),
)


@angle.starter()
def _():
    cause = ...  # "a cosine above 1", "the slope of acos" or "vectors not normalised"

    def repaired(u, v):
        cosine = tf.reduce_sum(u * v, axis=1)
        return tf.acos(cosine)

    return cause, repaired


@angle.right
def _():
    """At 1 the slope of `acos` is infinite, and near 1 a cosine has hardly any digits left for the angle. The sine has
    them. `atan2` takes both, and the safe norm chooses the slope 0 where two directions are
    equal."""
    cause = "the slope of acos"

    def repaired(u, v):
        cosine = tf.reduce_sum(u * v, axis=1)
        squared = tf.reduce_sum(tf.linalg.cross(u, v) ** 2, axis=1)
        equal = squared == 0.0
        sine = tf.where(equal, 0.0, tf.sqrt(tf.where(equal, 1.0, squared)))
        return tf.atan2(sine, cosine)

    return cause, repaired


def _cosine(u, v):
    return tf.reduce_sum(u * v, axis=1)


@angle.mistake("clamped")
def _(u, v):
    """Finite, and blind: all directions closer than 0.014 radians have the same angle, and no gradient."""
    return tf.acos(tf.clip_by_value(_cosine(u, v), -0.9999, 0.9999))


@angle.mistake("clipped_at_1")
def _(u, v):
    """This keeps the cosine from being above 1. At 1 itself the slope is as infinite as before, and a clip passes the
    gradient on at its edge."""
    return tf.acos(tf.clip_by_value(_cosine(u, v), -1.0, 1.0))


@angle.mistake("chord")
def _(u, v):
    """The distance of the tips is right for small angles, and too short for large ones."""
    squared = tf.reduce_sum((u - v) ** 2, axis=1)
    return tf.where(squared == 0.0, 0.0, tf.sqrt(tf.where(squared == 0.0, 1.0, squared)))


@angle.mistake("sine_not_safe")
def _(u, v):
    """Away from equal directions this is right. Where they are equal, a norm is a root at 0, and there is still a
    NaN."""
    return tf.atan2(tf.sqrt(tf.reduce_sum(tf.linalg.cross(u, v) ** 2, axis=1)), _cosine(u, v))


@angle.mistake("from_the_sine")
def _(u, v):
    """`asin` knows no angle above 90 degrees. `atan2` takes the cosine as well."""
    squared = tf.reduce_sum(tf.linalg.cross(u, v) ** 2, axis=1)
    equal = squared == 0.0
    return tf.asin(tf.minimum(1.0, tf.where(equal, 0.0, tf.sqrt(tf.where(equal, 1.0, squared)))))


@angle.mistake("acos_guarded")
def _(u, v):
    """No NaN at equal directions. Very close ones still come from a cosine that has lost nearly all digits of the
    angle."""
    cosine = _cosine(u, v)
    equal = cosine >= 1.0
    return tf.where(equal, 0.0, tf.acos(tf.where(equal, 0.0, cosine)))
