"""Every cause that explain names: its documented example, and programs in eager code, Keras layers and tf.functions."""

import numpy as np
import pytest

from tapelab import runtime
from tapelab.explain import CAUSES, REMARKS, ExplainTape, NoGradientError, explain, gradient_or_explain

import tensorflow as tf

runtime.start(seed=0)

CANNOT_EXPLAIN = {"plain_tape", "inside_function", "blind", "unknown"}


def run_example(code):
    """Run a documented example and return the explanation of its gradient."""
    model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
    names = {"tf": tf, "np": np, "ExplainTape": ExplainTape, "explain": explain, "model": model, "batch": tf.ones((4, 3))}
    exec(compile(code, "<string>", "exec"), names)
    return names


@pytest.mark.parametrize("code", sorted(set(CAUSES) - CANNOT_EXPLAIN - {"moving_statistics", "keras_tensor"}))
def test_the_documented_example_of_a_cause_has_that_cause(code):
    names = run_example(CAUSES[code].example)
    explanation = explain(names["tape"], names["y"], names["x"])
    assert explanation.code == code
    assert bool(explanation) is (code == "exists")


def test_documented_examples_whose_source_is_not_called_x():
    names = run_example(CAUSES["moving_statistics"].example)
    assert explain(names["tape"], names["y"], names["layer"].moving_mean).code == "moving_statistics"
    names = run_example(CAUSES["keras_tensor"].example)
    assert explain(names["tape"], names["y"], names["model"].layers[0].output).code == "keras_tensor"
    names = run_example(CAUSES["plain_tape"].example)
    explanation = explain(names["tape"], names["y"], names["x"])
    assert (explanation.code, explanation.exists) == ("plain_tape", None)
    names = run_example(CAUSES["inside_function"].example)
    assert names["step"](tf.constant(2.0)) == b"inside_function"


@pytest.mark.parametrize("code", sorted(REMARKS))
def test_the_documented_example_of_a_remark_has_that_remark(code):
    names = {"tf": tf, "x": tf.Variable([0.0, 1.0, 2.0])}
    with ExplainTape(persistent=True) as tape:
        exec(REMARKS[code].example, names)
        y = names["y"]
    explanation = explain(tape, y, names["x"])
    assert explanation.exists
    assert explanation.remarks == (code,)
