"""Case 8, the parameter that does not come back."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis

import numpy as np
import tensorflow as tf


def _fits(random, dtype):
    def trial(start, target, steps):
        return tf.constant(start, dtype), tf.constant(target, dtype), steps

    return [
        trial([1.75, 0.25, 0.5], [0.5, 0.75, 1.5], 3),
        trial(random.normal(size=5), random.uniform(size=5), 6),
        trial([-0.5, 0.125], [0.875, -0.25], 12),
    ]


def _projected(start, target, steps):
    p, goal = start.numpy().copy(), target.numpy()
    for _ in range(steps):
        p = np.clip(p - 0.25 * 2.0 * (p - goal), 0.0, 1.0)
    return tf.constant(p, start.dtype)


starts_outside = Exercise(
    title="Case 8, the parameter that does not come back",
    minutes=6,
    hints=(
        "The first entry starts at 1.75. What does the loss see of it? And if it moved to 1.74?",
        "A clip is flat outside its range: no learning rate moves what has the gradient 0. Even an entry that starts "
        "inside can step across the border, and is lost from then on.",
        "The constraint belongs to the variable, not to the loss: let the loss see `p` itself.",
        "Clip after the step: `p.assign(tf.clip_by_value(p - 0.25 * gradient, 0.0, 1.0))`.",
    ),
    checker=Repair(
        reference=_projected,
        inputs=_fits,
        diagnosis=diagnosis(
            "the clip",
            the_learning_rate="The other entries do move, with the same learning rate.",
            the_step="The assignment stands outside the tape, where it belongs.",
        ),
    ),
)


@starts_outside.starter()
def _():
    cause = ...  # "the clip", "the learning rate" or "the step"

    def repaired(start, target, steps):
        p = tf.Variable(start)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                inside = tf.clip_by_value(p, 0.0, 1.0)
                loss = tf.reduce_sum((inside - target) ** 2)
            p.assign_sub(0.25 * tape.gradient(loss, p))
        return p.read_value()

    return cause, repaired


@starts_outside.right
def _():
    """Outside its range a clip is constant, and its gradient is 0, rightly. The loss sees the variable itself, and the
    constraint is met by the step: *projected* gradient descent."""
    cause = "the clip"

    def repaired(start, target, steps):
        p = tf.Variable(start)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((p - target) ** 2)
            p.assign(tf.clip_by_value(p - 0.25 * tape.gradient(loss, p), 0.0, 1.0))
        return p.read_value()

    return cause, repaired


def _descended(start, target, steps, seen, stepped=lambda p: p):
    """Gradient descent; the loss sees `seen(p)`, and each step ends with `stepped`."""
    p = tf.identity(start)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(p)
            loss = tf.reduce_sum((seen(p) - target) ** 2)
        p = stepped(p - 0.25 * tape.gradient(loss, p))
    return p


def _clip(p):
    return tf.clip_by_value(p, 0.0, 1.0)


@starts_outside.mistake("constraint_removed")
def _(start, target, steps):
    """Everything moves, and nothing holds the parameter inside: where the target lies outside, it follows."""
    return _descended(start, target, steps, lambda p: p)


@starts_outside.mistake("start_clipped")
def _(start, target, steps):
    """A better start. But a step can still cross the border, and out there the loss is flat: the parameter stays
    outside."""
    return _descended(_clip(start), target, steps, _clip)


@starts_outside.mistake("straight_through")
def _(start, target, steps):
    """The clip now pretends to have the slope 1 everywhere. The loss sees a value inside, while the parameter itself
    wanders on outside: what is returned is not in the range."""
    return _descended(start, target, steps, lambda p: p + tf.stop_gradient(_clip(p) - p))


@starts_outside.mistake("clipped_once_at_the_end")
def _(start, target, steps):
    """The result lies inside, and its value is not what descent would reach: the clip in the loss is still flat on the
    way."""
    return _clip(_descended(start, target, steps, _clip))


@starts_outside.mistake("clipped_twice")
def _(start, target, steps):
    """Inside after every step. But the loss still sees a clip, and an entry that starts outside has no gradient in its
    first step: it is put on the border, wherever it was heading."""
    return _descended(start, target, steps, _clip, _clip)


@starts_outside.mistake("leaky")
def _(start, target, steps):
    """The slope outside is small in place of 0: the parameter comes back some day, and it is outside until then."""
    return _descended(start, target, steps, lambda p: _clip(p) + 0.01 * (p - _clip(p)))
