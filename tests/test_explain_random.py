"""Random programs: whether a gradient is None is never misjudged, and a known cut is named.

Each program is a list of decisions drawn from a seed, so it can be run again on a plain tape, which is the reference
here: the explanation's own check against its tape is not relied on.
"""

import os
import random

from tapelab import runtime
from tapelab.explain import ExplainTape, explain

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

PROGRAMS, BLOCKS = (2000 if "TAPELAB_RELEASE" in os.environ else 400), 4  # see ci/test_versions.sh
ONES = tf.ones(3)


@tf.custom_gradient
def custom(a):
    return a * 2.0, lambda upstream: tf.convert_to_tensor(upstream) * 2.0


@tf.custom_gradient
def custom_none(a, b):
    return a * b, lambda upstream: (None, upstream * a)


def function(body):
    """A tf.function of tensors: of variables it would be traced anew for each."""
    traced = tf.function(body)
    return lambda *arguments: traced(*map(tf.convert_to_tensor, arguments))


@function
def smooth_function(a, b):
    return tf.sin(a) * b


@function
def two_outputs(a, b):
    return a * 2.0, tf.square(b)


@function
def cutting_function(a, b):
    return tf.stop_gradient(a) + b, tf.round(a)


@function
def integer_output(a):
    return tf.argmax(a), a * 2.0


@function
def branching_function(a, b):
    if tf.reduce_sum(a) > 0.0:
        return a * b
    return b * 1.0


HELD = tf.Variable(tf.zeros(3))


def through_state(a):
    HELD.assign(a)
    return HELD * 2.0


UNARY = [
    tf.sin,
    tf.tanh,
    tf.nn.relu,
    tf.identity,
    lambda a: a * 2.0,
    lambda a: 1.0 - a,
    lambda a: tf.reshape(tf.reshape(a, (3, 1)), (3,)),
    lambda a: ONES * tf.reduce_sum(a),
    lambda a: tf.gather(a, [2, 0, 1]),
    lambda a: tf.stack(tf.unstack(a)[::-1]),
    lambda a: tf.concat([a[:1], a[1:]], 0),
    lambda a: tf.math.top_k(a, 3).values,
    lambda a: tf.cumsum(a),
    lambda a: tf.linalg.matvec(tf.eye(3), a),
    custom,
    tf.sign,
    lambda a: tf.split(a, 3)[0] * ONES,
    lambda a: integer_output(a)[1],
]
CUTTING = [
    tf.stop_gradient,
    tf.round,
    lambda a: tf.cast(tf.cast(a, tf.int32), tf.float32),
    lambda a: tf.cast(tf.argsort(a), tf.float32),
    lambda a: tf.constant(a.numpy()),
    lambda a: tf.cast(tf.math.top_k(a, 3).indices, tf.float32),
    lambda a: tf.where(a > 0.0, 1.0, 0.0),
    lambda a: cutting_function(a, ONES)[0],
    lambda a: tf.cast(integer_output(a)[0], tf.float32) * ONES,
    lambda a: custom_none(a, ONES),
    through_state,
]
BINARY = [
    lambda a, b: a + b,
    lambda a, b: a * b,
    lambda a, b: a - 0.5 * b,
    lambda a, b: tf.where(a > b, a, b),
    tf.maximum,
    lambda a, b: tf.where(a > 0.0, b, 0.0),
    custom_none,
    smooth_function,
    lambda a, b: two_outputs(a, b)[0],
    lambda a, b: two_outputs(a, b)[1],
    lambda a, b: cutting_function(a, b)[0],
    lambda a, b: cutting_function(a, b)[1],
    branching_function,
    lambda a, b: tf.add_n([a, b]),
    lambda a, b: tf.reduce_sum(tf.stack([a, b]), 0),
]


def run(seed, make_tape):
    """Run the program of a seed under a tape, inside it and around it.

    Returns:
        The tape and the list of all values of the program, in an order that depends on the seed alone.
    """
    draw = random.Random(seed)
    start = [0.3, -0.7, 1.2]
    values = [
        tf.Variable(start),
        tf.Variable(start, trainable=draw.random() < 0.5),
        tf.constant(start),
        tf.constant(start) * 1.0,
    ]
    watched = [value for value in values if draw.random() < 0.3]
    late = draw.choice(values) if draw.random() < 0.2 else None

    def step():
        kind = draw.random()
        a, b = values[-1] if len(values) > 4 else values[0], draw.choice(values)
        if draw.random() < 0.2:
            a, b = b, a
        if kind < 0.55:
            made = draw.choice(UNARY)(a)
        elif kind < 0.96:
            made = draw.choice(BINARY)(a, b)
        else:
            made = draw.choice(CUTTING)(a)
        values.append(made)

    if draw.random() < 0.1:
        step()
    with make_tape(persistent=True, watch_accessed_variables=draw.random() < 0.92) as tape:
        tape.watch(watched)
        for count in range(draw.randrange(2, 8)):
            event = draw.random()
            if event < 0.03:
                with tape.stop_recording():
                    step()
            elif event < 0.04:
                tape.reset()
            elif event < 0.07:
                with tf.GradientTape() as inner:
                    source = draw.choice(values)
                    inner.watch(source)
                    step()
                gradient = inner.gradient(values[-1], source)
                values.append(ONES * 1.0 if gradient is None else tf.convert_to_tensor(gradient))
            else:
                step()
            if late is not None and count == 1:
                tape.watch(late)
    if draw.random() < 0.1:
        step()
    return tape, values


def question(seed, count):
    """Return the positions of a target and a source: mostly a late value with respect to an early one."""
    draw = random.Random(f"question {seed}")
    target = draw.randrange(max(4, count - 2), count)
    return target, 0 if draw.random() < 0.85 else draw.randrange(target + 1)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("block", range(BLOCKS))
def test_none_or_not_is_never_misjudged(block):
    found = asked = 0
    for seed in range(block, PROGRAMS, BLOCKS):
        reference, plain = run(seed, tf.GradientTape)
        tape, values = run(seed, ExplainTape)
        target, source = question(seed, len(values))
        expected = reference.gradient(plain[target], plain[source])
        actual = tape.gradient(values[target], values[source])
        explanation = explain(tape, values[target], values[source])
        assert explanation.code != "unknown", (seed, target, source, str(explanation))
        assert explanation.exists is (expected is not None), (seed, target, source, str(explanation))
        assert (actual is None) is (expected is None), seed
        if expected is not None:
            np.testing.assert_array_equal(tf.convert_to_tensor(actual), tf.convert_to_tensor(expected))
            found += 1
        asked += 1
    assert found >= asked / 4, f"only {found} of {asked} questions have a gradient"


ONE_CUT = {
    "stop_gradient": [tf.stop_gradient, lambda a: cutting_function(a, ONES)[0]],
    "not_differentiable": [
        tf.round,
        tf.floor,
        lambda a: tf.where(a > 0.0, 1.0, 0.0),
        lambda a: tf.cast(a > 0.2, tf.float32),
    ],
    "cast_to_integer": [lambda a: tf.cast(tf.cast(a * 100.0, tf.int32), tf.float32)],
    "left_tensorflow": [lambda a: tf.constant(a.numpy()), lambda a: ONES * float(tf.reduce_sum(a))],
    "custom_gradient_none": [lambda a: custom_none(a, ONES)],
    "state": [through_state],
    "recording_stopped": [],
    "tape_reset": [],
    "watched_late": [],
    "not_watched": [],
    "not_trainable": [],
    "watching_off": [],
    "target_after_tape": [],
}
SMOOTH = [tf.sin, tf.tanh, lambda a: a * 2.0, lambda a: 1.5 - a, custom, lambda a: smooth_function(a, ONES), tf.square]


def run_with_one_cut(code, draw):
    """Run a chain of smooth operations, with branches beside it, that is cut in one place for a known reason."""
    start = [0.3, -0.7, 1.2]
    source = tf.Variable(start, trainable=code != "not_trainable")
    if code in ("not_watched", "watched_late"):
        source = tf.constant(start)
    other = tf.Variable(start)
    length = draw.randrange(2, 7)
    cut_at = draw.randrange(length)
    with ExplainTape(watch_accessed_variables=code != "watching_off") as tape:
        tape.watch(other)
        value = source
        for position in range(length):
            value = draw.choice(SMOOTH)(value)
            if draw.random() < 0.4:
                value = value + draw.choice(SMOOTH)(other)
            if position != cut_at:
                continue
            if ONE_CUT[code]:
                value = draw.choice(ONE_CUT[code])(value)
            elif code == "recording_stopped":
                with tape.stop_recording():
                    value = draw.choice(SMOOTH)(value)
            elif code == "tape_reset":
                tape.reset()
            elif code == "watched_late":
                tape.watch(source)
        if draw.random() < 0.5:
            value = tf.reduce_sum(value)
    if code == "target_after_tape":
        value = value * 2.0
    return tape, value, source


@pytest.mark.thorough(keep=4)
@pytest.mark.parametrize("code", ONE_CUT)
def test_a_known_cut_is_named(code):
    for seed in range(25):
        tape, target, source = run_with_one_cut(code, random.Random(f"{code} {seed}"))
        explanation = explain(tape, target, source)
        assert (explanation.code, explanation.exists) == (code, False), (seed, str(explanation))
