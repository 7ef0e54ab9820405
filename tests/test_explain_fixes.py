"""Fixes are run before they are shown: what is called one works in the learner's program, the rest is called a hint."""

import ast
import linecache

from tapelab import runtime
from tapelab.explain import ExplainTape, diagnose, explain
from tapelab.explain.causes import TRIED, VALUES
from tapelab.explain.values.fixes.evaluation import CannotRun, Evaluation
from tapelab.explain.values.fixes.patterns import filled

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

# Name → what is given, the lines that compute y, and the gradient that is right where the fix works.
WORKING = {
    "a condition made of what is to be mended": (
        "x = tf.Variable([2.0, 0.0])",
        "a = tf.math.log(x)\ny = tf.reduce_sum(tf.where(tf.math.is_inf(a), 0.0, a))",
        [0.5, 0.0],
    ),
    "a condition with an axis less": (
        "x, kept = tf.Variable([[1.0, 3.0], [5.0, 6.0]]), tf.constant([True, False])",
        "mask = tf.constant([[True, True], [False, False]])\n"
        "p = tf.nn.softmax(tf.where(mask, tf.zeros((2, 2)), -np.inf))\n"
        "y = tf.reduce_sum(tf.where(kept, tf.reduce_sum(p * x, 1), 0.0))",
        [[0.5, 0.5], [0.0, 0.0]],
    ),
    "log of one less a sigmoid": ("x = tf.Variable(30.0)", "y = -tf.math.log(1 - tf.sigmoid(x))", 1.0),
    "log of one less a named sigmoid": (
        "x = tf.Variable([120.0, 0.0])",
        "p = tf.sigmoid(x)\ny = 2.0 * tf.math.log(1.0 - p)",
        [-2.0, -1.0],
    ),
    "log of a named softmax": (
        "x = tf.Variable([0.0, 200.0])",
        "p = tf.nn.softmax(x)\ny = -tf.math.log(p)[0]",
        [-1.0, 1.0],
    ),
    "log of exp": ("x = tf.Variable(30.0)", "y = tf.math.log(tf.exp(x * 4.0))", 4.0),
    "the norm of a difference": ("x = tf.Variable([1.0, 2.0])", "y = tf.norm(x - [1.0, 2.0])", [0.0, 0.0]),
    "an expression in a loop": (
        "x = tf.Variable([0.0, 4.0])",
        "y = 0.0\nfor k in range(2):\n    y += tf.where(x[k] > 0, tf.math.log(x[k]), 0.0)",
        [0.0, 0.25],
    ),
}
# Name → the same, but what TRIED calls the fix.
HINTS = {
    "a quotient that has no slope": ("x = tf.Variable([2.0, 0.0])", "y = 1.0 / x", "silent"),
    "a root outside its domain": ("x = tf.Variable([4.0, -0.5])", "y = tf.sqrt(x)", "silent"),
    "another activation": ("x = tf.Variable([-3.0, -2.0])", "y = tf.nn.relu(x)", "changes"),
    "advice": ("x, b = tf.Variable([2.0]), tf.constant(0.0)", "y = b * x", "untried"),
    "the learner's own function": (
        "x = tf.Variable([0.0])\ndef half(v):\n    return v / 2.0",
        "y = tf.math.log(half(x) + 0.0)",
        "works",
    ),
    "a value that the name has lost": (
        "x, s = tf.Variable([2.0, 0.0]), tf.constant([1.0, 1.0])",
        "y = tf.math.log(x * s)\ns = None",
        "works",
    ),
    "somebody else's function": (
        "x = tf.Variable([0.0, 0.0])",
        "y = tf.reduce_sum(tf.nn.l2_normalize(x, epsilon=0.0))",
        "untried",
    ),
}


def program(given, body):
    return f"{given}\nwith ExplainTape() as tape:\n" + "".join(f"    {line}\n" for line in body.splitlines())


def run(source):
    """Run a program as a file of its own, so that its lines are known. Returns its names."""
    file = f"<ipython-input-fix-{hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"tf": tf, "np": np, "ExplainTape": ExplainTape, "explain": explain}
    exec(compile(f"{source}answer = explain(tape, y, x)\n", file, "exec"), names)
    return names


@pytest.mark.parametrize("name", WORKING)
def test_what_is_called_a_fix_gives_the_right_gradient_in_place_of_the_line(name):
    given, body, gradient = WORKING[name]
    source = program(given, body)
    answer = run(source)["answer"]
    assert (answer.healthy, answer.tried) == (False, "works"), str(answer)
    assert f"\n{TRIED['works']}\n" in str(answer)
    lines = source.splitlines()
    old = lines[answer.line.number - 1]
    indent = old[: len(old) - len(old.lstrip())]
    lines[answer.line.number - 1] = "\n".join(indent + line for line in answer.fix.splitlines())
    mended = run("\n".join(lines) + "\n")
    np.testing.assert_allclose(mended["tape"].gradient(mended["y"], mended["x"]), gradient, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", HINTS)
def test_what_does_not_work_or_was_not_run_is_called_a_hint(name):
    given, body, tried = HINTS[name]
    answer = run(program(given, body))["answer"]
    assert (answer.healthy, answer.tried) == (False, tried), str(answer)
    assert f"\n{TRIED[tried]}\n" in str(answer)


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
    if "axis=a" in pattern:
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
        ("y = tf.math.log(1.0 + tf.exp(x) + 1.0)", "y = tf.math.log(1.0 + tf.exp(tf.minimum(x, 80.0)) + 1.0)"),
    ],
)
def test_patterns_fit_what_was_computed_on_another_line_and_nothing_else(body, new):
    answer = run(program("x = tf.Variable([0.0, 200.0])", body))["answer"]
    assert answer.fix == new, str(answer)
