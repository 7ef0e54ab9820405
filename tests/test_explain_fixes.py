"""Fixes are run before they are shown: what is called one works in the learner's program, the rest is called a hint."""

import ast
import textwrap

from tapelab import runtime
from tapelab.explain import ExplainTape, diagnose, explain
from tapelab.explain.causes import TRIED, VALUES
from tapelab.explain.ground.evaluation import CannotRun, Evaluation
from tapelab.explain.values.fixes.patient import filled

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)


@pytest.mark.thorough(keep=6)
@pytest.mark.programs("fixes")
def test_what_is_called_a_fix_gives_the_right_gradient_in_place_of_the_line(cell, program):
    answer = cell(program["program"], "y, x").answer
    tried = program.get("tried", "works")
    assert (answer.healthy, answer.tried) == (False, tried), str(answer)
    assert f"\n{TRIED[tried]}\n" in str(answer)
    if "gradient" in program:
        lines = program["program"].splitlines()
        old = lines[answer.line.number - 1]
        lines[answer.line.number - 1] = textwrap.indent(answer.fix, old[: len(old) - len(old.lstrip())])
        mended = cell("\n".join(lines)).names
        found = mended["tape"].gradient(mended["y"], mended["x"])
        np.testing.assert_allclose(found, program["gradient"], rtol=1e-3, atol=1e-6)


def test_running_a_fix_runs_none_of_the_learners_code_and_leaves_the_tape_open():
    calls, x = [], tf.Variable([4.0, 0.0])

    def scaled(v):
        calls.append(v)
        return 2.0 * v

    with ExplainTape(persistent=True) as tape:
        y = tf.reduce_sum(tf.sqrt(scaled(x)))
        answer = explain(tape, y, x)
        z = tf.reduce_sum(x * 3.0)
    assert (answer.code, len(calls)) == ("root_at_zero", 1)
    assert tape.gradient(z, x).numpy().tolist() == [3.0, 3.0]


def test_a_failed_cholesky_factor_is_compared_by_its_lower_half():
    """The upper half is what the memory held: it is another each time."""
    found = []
    for size in range(2, 8):
        x = tf.Variable(tf.ones((size, size)))
        with ExplainTape() as tape:
            y = tf.reduce_sum(tf.linalg.cholesky(x))
        found.append(explain(tape, y, x).tried)
    assert found == ["works"] * 6


@pytest.mark.parametrize(("rounded", "tried"), [(tf.identity, "works"), (tf.round, "untried")])
def test_watching_is_called_a_fix_where_nothing_else_stands_in_the_way(rounded, tried):
    x = tf.constant(4.0)
    with ExplainTape() as tape:
        y = rounded(x)
    answer = explain(tape, y, x)
    assert (answer.code, answer.tried) == ("not_watched", tried)


@pytest.mark.parametrize("code", ["tf.random.uniform(())", "tf.print(1)", "print(1)", "open('file')", "half(2.0)"])
def test_what_may_do_more_than_compute_is_not_run(code):
    calls = []
    evaluation = Evaluation({}, {}, lambda name: (None, calls.append))
    with pytest.raises(CannotRun):
        evaluation.value(ast.parse(f"tf.abs({code})", mode="eval").body)
    assert calls == []
    assert evaluation.value(ast.parse("tf.abs(float(-2))", mode="eval").body).numpy() == 2.0


def test_the_advice_for_an_overflow_in_a_cast_is_no_softplus():
    layer = tf.keras.layers.Dense(1, dtype="mixed_float16")
    model = tf.keras.Sequential([tf.keras.Input((3,)), layer])
    (sick, *_) = diagnose(model, "mse", tf.fill((4, 3), 1e5), tf.ones((4, 1))).sick
    assert (sick.code, "softplus" in sick.fix, "float32" in sick.fix) == ("overflow", False, True)


@pytest.mark.parametrize(
    ("pattern", "new"), sorted({tuple(pair) for cause in VALUES.values() for pair in cause.rewrites})
)
def test_what_an_expression_is_rewritten_to_has_its_value(pattern, new):
    """At ordinary points, where nothing is infinite, clipped or rounded away."""
    numbers = np.random.default_rng(0).uniform(0.2, 0.9, (3, 4)).astype("float32")
    values = dict(zip("sab", map(tf.constant, numbers), strict=True)) | {"k": True}
    if "axis=a" in pattern or "[a]" in pattern:
        values["a"] = 0
    names = vars(tf.nn) | vars(tf.math) | vars(tf) | {"tf": tf} | values
    before, after = (eval(filled(one, rest=[]), names) for one in (pattern, new))
    np.testing.assert_allclose(before, after, rtol=1e-4)


@pytest.mark.parametrize(
    ("body", "new"),
    [
        ("y = tf.math.log(tf.nn.softmax(x, axis=0))[0]", "y = tf.nn.log_softmax(x, axis=0)[0]"),
        ("p = tf.sigmoid(2.0 * x)\ny = (-tf.math.log(1.0 - p))[1]", "y = tf.nn.softplus(2.0 * x)[1]"),
        ("y = tf.exp(9.0 * x) / tf.reduce_sum(tf.exp(9.0 * x), axis=0)", "y = tf.nn.softmax(9.0 * x, axis=0)"),
        ("e = tf.exp(x)\ny = e / (1.0 + e)", "e = tf.exp(tf.minimum(x, 80.0))"),
        ("y = x ** 0.5", "safe = tf.where(x > 0, x, 1.0)\ny = tf.where(x > 0, safe ** 0.5, 0.0)"),
        ("y = tf.math.log(1.0 + tf.exp(x) + 1.0)", "y = tf.math.log(1.0 + tf.exp(tf.minimum(x, 80.0)) + 1.0)"),
    ],
)
def test_patterns_fit_what_was_computed_on_another_line_and_nothing_else(cell, body, new):
    recorded = textwrap.indent(body, "    ")
    answer = cell(f"x = tf.Variable([0.0, 200.0])\nwith ExplainTape() as tape:\n{recorded}", "y, x").answer
    assert answer.fix == new, str(answer)
