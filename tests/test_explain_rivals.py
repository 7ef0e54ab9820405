"""The ten programs of the README's table of what other tools say. Its column "explain" is asserted here."""

from tapelab import runtime
from tapelab.explain import ExplainTape, explain

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

MARK = "# <- here"


def norm_at_zero():
    x = tf.Variable([0.0, 0.0])
    with ExplainTape() as tape:
        y = tf.norm(x)  # <- here
        z = (y - 1.0) ** 2
    return explain(tape, z, x)


def where_unselected():
    x = tf.Variable([0.0, 1.0])
    with ExplainTape() as tape:
        y = tf.where(x > 0, tf.math.log(x), 0.0)  # <- here
        z = tf.reduce_sum(y)
    return explain(tape, z, x)


def p_log_p():
    p = tf.Variable([0.0, 0.5, 0.5])
    with ExplainTape() as tape:
        h = -tf.reduce_sum(p * tf.math.log(p))  # <- here
    return explain(tape, h, p)


def softmax_by_hand():
    x = tf.Variable([1.0, 100.0])
    with ExplainTape() as tape:
        e = tf.exp(x)  # <- here
        p = e / tf.reduce_sum(e)
        z = -tf.math.log(p[0] + 1e-7)
    return explain(tape, z, x)


def mask_times_infinity():
    x = tf.Variable([0.0, 2.0])
    mask = tf.constant([0.0, 1.0])
    with ExplainTape() as tape:
        y = 1.0 / x  # <- here
        z = tf.reduce_sum(mask * y)  # <- here
    return explain(tape, z, x)


def acos_of_one():
    x = tf.Variable(0.0)
    with ExplainTape() as tape:
        c = tf.cos(x)
        a = tf.acos(c)  # <- here
    return explain(tape, a, x)


def dead_relu():
    w = tf.Variable([[1.0], [1.0]])
    x = tf.constant([[1.0, 2.0], [2.0, 3.0]])
    with ExplainTape() as tape:
        h = tf.nn.relu(x @ w - 20.0)  # <- here
        z = tf.reduce_mean((h - 1.0) ** 2)
    return explain(tape, z, w)


def from_logits_forgotten():
    w = tf.Variable([[3.0], [4.0]])
    x = tf.constant([[2.0, 1.0], [1.0, 3.0]])
    y = tf.constant([[0.0], [1.0]])
    with ExplainTape() as tape:
        logits = x @ w
        p = tf.clip_by_value(logits, 1e-7, 1 - 1e-7)  # <- here
        z = -tf.reduce_mean(y * tf.math.log(p) + (1 - y) * tf.math.log(1 - p))
    return explain(tape, z, w)


def minus_infinity_mask():
    s = tf.Variable([[1.0, 2.0], [3.0, 4.0]])
    keep = tf.constant([[True, False], [True, True]])
    with ExplainTape() as tape:
        a = tf.nn.softmax(tf.where(keep, s, -np.inf))
        z = tf.reduce_sum(a**2)
    return explain(tape, z, s)


def unused_log():
    p = tf.Variable([0.0, 1.0])
    with ExplainTape() as tape:
        p * tf.math.log(p)
        z = tf.reduce_sum((p - 0.5) ** 2)
    return explain(tape, z, p)


@pytest.mark.parametrize(
    ("program", "symptom", "code"),
    [
        (norm_at_zero, "nan", "root_at_zero"),
        (where_unselected, "nan", "unselected_branch"),
        (p_log_p, "nan", "zero_times_infinity"),
        (softmax_by_hand, "nan", "overflow"),
        (mask_times_infinity, "nan", "masked_by_zero"),
        (acos_of_one, "nan", "pole"),
        (dead_relu, "zero", "dead_relu"),
        (from_logits_forgotten, "zero", "clipped"),
    ],
)
def test_bad_gradient_is_explained_at_the_line_to_change(program, symptom, code):
    answer = program()
    assert (answer.symptom, answer.healthy, answer.code) == (symptom, False, code)
    assert MARK in answer.line.text


@pytest.mark.parametrize("program", [minus_infinity_mask, unused_log])
def test_sound_program_raises_no_alarm(program):
    answer = program()
    assert (answer.healthy, answer.code, answer.line) == (True, "exists", None)
