"""Random programs with planted mechanisms. What is said must never contradict the values.

A few dozen run here; with TAPELAB_RANDOM_PROGRAMS=2000 in the environment as many as that for each mechanism.
"""

import os
import random

from tapelab import runtime
from tapelab.explain import ExplainTape, explain

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

COUNT = int(os.environ.get("TAPELAB_RANDOM_PROGRAMS", "6"))

# Smooth, and neither flat nor steep on what they are given here.
SMOOTH = [
    lambda v: v * 1.1,
    lambda v: v + 0.3,
    lambda v: tf.sin(v) + v * 1.5,
    lambda v: tf.nn.softplus(v),
    lambda v: v - 0.1 * tf.cos(v),
]

# mechanism → (the planted operation's type, what it does to a value that holds a 0 in its first element)
PLANTED = {
    "root_at_zero": ("Sqrt", lambda v: tf.sqrt(v)),
    "log_of_zero": ("Log", lambda v: tf.math.log(v)),
    "division_by_zero": ("RealDiv", lambda v: 1.0 / v),
    "unselected_branch": ("Log", lambda v: tf.where(v > 0.0, tf.math.log(v), 0.0)),
    "masked_by_zero": ("Log", lambda v: tf.math.log(v) * tf.cast(v > 0.0, tf.float32)),
    "zero_times_infinity": ("Log", lambda v: v * tf.math.log(v)),
    "domain": ("Sqrt", lambda v: tf.sqrt(v - 0.5)),
    "overflow": ("Exp", lambda v: tf.math.log(1.0 + tf.exp(v + 95.0))),
    "flat_operation": ("Sign", lambda v: tf.sign(v)),
    "saturated": ("Tanh", lambda v: tf.tanh(v + 60.0)),
    "dead_relu": ("Relu", lambda v: tf.nn.relu(v - 500.0) + 1.0),
    "multiplied_by_zero": ("Mul", lambda v: v * tf.zeros(())),
    "fine": ("", lambda v: v * 1.5),
}


def program(code, draw):
    """Return (function from a tensor to the target, source): smooth steps, the planted one, smooth steps."""
    before, after = (draw.randrange(3) for _ in range(2))
    first, last = ([draw.choice(SMOOTH) for _ in range(count)] for count in (before, after))
    size = draw.randint(2, 4)
    start = tf.constant([0.3 + draw.random() for _ in range(size)])

    def steps(value):
        for step in first:
            value = step(value)
        return value

    zero = steps(start)[0]  # what the first element is when it comes to the planted operation

    def run(value):
        value = PLANTED[code][1](steps(value) - zero + tf.concat([[0.0], tf.fill([size - 1], 3.0)], 0))
        for step in last:
            value = step(value)
        return tf.reduce_sum(value)

    return run, tf.Variable(start)


def check(code, draw):
    run, x = program(code, draw)
    compiled = draw.random() < 0.2
    call = tf.function(run) if compiled else run
    with ExplainTape(persistent=True) as tape:
        y = call(x)
    explanation, gradient = explain(tape, y, x), tape.gradient(y, x).numpy()
    assert explanation.exists
    # The symptom is what the values say.
    measured = "nan" if np.isnan(gradient).any() else "inf" if np.isinf(gradient).any() else ""
    measured = measured or ("zero" if not gradient.any() else "")
    if measured:
        assert explanation.symptom == measured, str(explanation)
    elif not np.isfinite(y):
        assert explanation.symptom.startswith("target"), str(explanation)
    if code == "fine":
        assert explanation.healthy is True, str(explanation)
        for index in range(len(gradient)):  # and a gradient that is called fine is right
            step = np.eye(len(gradient), dtype="float32")[index] * 1e-2
            difference = (run(x + step) - run(x - step)).numpy() / 2e-2
            np.testing.assert_allclose(gradient[index], difference, rtol=0.05, atol=1e-2)
        return
    assert (explanation.healthy, explanation.code, explanation.op) == (False, code, PLANTED[code][0]), str(explanation)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("code", PLANTED)
def test_a_planted_mechanism_is_named(code):
    for seed in range(COUNT):
        check(code, random.Random(f"{code} {seed}"))
