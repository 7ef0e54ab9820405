"""Every mechanism of a bad value has its documented example, whose fix works; and what an answer holds."""

import ast
import textwrap
import types

from tapelab import runtime
from tapelab.explain import VALUES, ExplainTape, explain
from tapelab.explain.causes import SYMPTOMS
from tapelab.explain.values import study as studying

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

keras = tf.keras


# The registry, and the fixes.


@pytest.mark.dear(keep=12)
@pytest.mark.parametrize("code", sorted(set(VALUES) - {"unexplained"}))
def test_the_documented_example_of_a_mechanism_has_that_mechanism(code, cell):
    explanation = cell(VALUES[code].example, "y, x").answer
    assert (explanation.code, explanation.exists, explanation.certain) == (code, True, True), str(explanation)
    assert explanation.symptom in SYMPTOMS
    assert explanation.op


# The mechanisms whose fix is the learner's own line, rewritten.
REWRITTEN = [
    "unselected_branch",
    "masked_by_zero",
    "root_at_zero",
    "log_of_zero",
    "zero_times_infinity",
    "division_by_zero",
    "zero_over_zero",
    "domain",
    "pole",
    "overflow",
    "underflow",
    "inf_minus_inf",
    "all_masked",
    "not_positive_definite",
    "dead_relu",
    "flat_operation",
    "wrong_at_zero",
    "softmax_twice",
    "broadcast_loss",
]
# Where the fixed function is meant to differ from its own gradient.
STRAIGHT_THROUGH = {"flat_operation"}


def function_of_x(source, names):
    """The body of the with block of an example, as a function from x to the sum of y."""
    block = next(node for node in ast.parse(source).body if isinstance(node, ast.With))
    body = compile(ast.Module(block.body, []), "<body>", "exec")

    def run(x):
        inside = dict(names) | {"x": x}
        exec(body, inside)
        return tf.reduce_sum(inside["y"])

    return run


@pytest.mark.thorough(keep=8, dear=4)
@pytest.mark.parametrize("code", REWRITTEN)
def test_the_fix_gives_a_finite_and_right_gradient(code, cell):
    source = VALUES[code].example
    ran = cell(source, "y, x")
    names, explanation = ran.names, ran.answer
    lines = source.splitlines()
    assert "y = " in explanation.fix, explanation.fix
    lines[explanation.line.number - 1 : explanation.line.number] = textwrap.indent(explanation.fix, "    ").splitlines()
    run = function_of_x("\n".join(lines), names)
    x = tf.constant(names["x"])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = run(x)
    gradient = tape.gradient(y, x).numpy()
    assert np.isfinite(y.numpy())
    assert np.isfinite(gradient).all(), (explanation.fix, gradient)
    if code in STRAIGHT_THROUGH:
        assert gradient.all()
        return
    bad = np.zeros(gradient.shape, bool)
    if explanation.elements is not None and explanation.symptom in ("nan", "inf"):
        bad[tuple(explanation.elements.indices.T)] = True
    for index in np.argwhere(~bad):
        step = np.zeros(gradient.shape, "float32")
        step[tuple(index)] = 1e-2
        difference = float((run(x + step) - run(x - step)) / 2e-2)
        np.testing.assert_allclose(gradient[tuple(index)], difference, rtol=0.05, atol=2e-3)


def test_a_fix_keeps_the_learners_names_and_the_rest_of_the_line():
    weights = tf.Variable([1.0, 0.0])
    with ExplainTape() as tape:
        penalty = 0.5 * tf.reduce_sum(tf.where(weights > 0, 1.0 / weights, 0.0), axis=0)
    assert explain(tape, penalty, weights).fix.splitlines() == [
        "safe = tf.where(weights > 0, weights, 1.0)",
        "penalty = 0.5 * tf.reduce_sum(tf.where(weights > 0, 1.0 / safe, 0.0), axis=0)",
    ]
    with ExplainTape() as tape:
        kept = tf.where(weights > 0, weights, 1.0)
        losses = [tf.reduce_sum(tf.sqrt(tf.nn.relu(-kept)))]
    assert explain(tape, losses[0], weights).fix == "losses = [tf.reduce_sum(tf.sqrt(tf.nn.relu(-kept) + 1e-12))]"


# What an answer holds.


def test_an_answer_names_the_elements_and_the_chain():
    x = tf.Variable([[1.0, 0.0], [4.0, 9.0]])
    with ExplainTape() as tape:
        roots = tf.sqrt(x)
        y = tf.reduce_sum(roots)
    explanation = explain(tape, y, x)
    assert (explanation.symptom, explanation.code) == ("inf", "root_at_zero")
    assert (explanation.elements.count, explanation.elements.total) == (1, 4)
    assert explanation.elements.indices.tolist() == [[0, 1]]
    assert str(explanation).splitlines()[:3] == [
        "d y / d x is infinite: root_at_zero",
        "Sqrt is taken at 0, where its slope is infinite.",
        "Concerned: element [0, 1] (1 of 4).",
    ]
    with ExplainTape() as tape:
        logarithm = tf.math.log(x)
        y = tf.reduce_sum(logarithm * [[1.0, 0.0], [1.0, 1.0]])
    chain = explain(tape, y, x).chain
    assert [link.op for link in chain] == ["Log", "Mul"]
    assert [link.line.text.split(" = ")[0] for link in chain] == ["logarithm", "y"]


def test_a_layer_is_named():
    model = tf.keras.Sequential(
        [tf.keras.Input((2,)), tf.keras.layers.Dense(2, "tanh", name="squashing"), tf.keras.layers.Dense(1)]
    )
    batch = tf.constant([[1e5, -1e5], [2e5, 3e5]])
    for run in (model, tf.function(model)):
        with ExplainTape() as tape:
            loss = tf.reduce_mean((run(batch) - 1.0) ** 2)
        explanation = explain(tape, loss, model.trainable_variables[0])
        assert explanation.code == "saturated", str(explanation)
        assert explanation.layer.startswith("squashing")  # in a function TensorFlow adds a number
        assert f"(layer {explanation.layer})" in str(explanation)


def test_sources_with_the_same_cause_are_explained_once():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(3, "tanh"), tf.keras.layers.Dense(1)])
    with ExplainTape() as tape:
        loss = tf.norm(model(tf.zeros((2, 2))))
    explanations = explain(tape, loss, model.trainable_variables)
    assert [one.code for one in explanations.values()] == ["root_at_zero"] * 4
    assert len(explanations.groups()) == 1
    assert explanations
    assert len(explanations.sick()) == 4
    assert str(explanations).count("root_at_zero") == 1
    assert "And 3 other sources:" in str(explanations)
    assert explanations.markdown().count("```python") == 1


def test_asking_changes_nothing():
    x, calls = tf.Variable([1.0, 0.0]), []
    generator = tf.random.Generator.from_seed(1)

    @tf.function
    def run(value):
        x.assign_add(tf.zeros(2))
        return tf.reduce_sum(tf.math.log(value) * generator.uniform((2,)))

    with ExplainTape() as tape:
        y = run(x)
        calls.append(generator.state.numpy())
    explanation = explain(tape, y, x)
    assert (explanation.symptom, explanation.code) == ("inf", "log_of_zero"), str(explanation)
    np.testing.assert_array_equal(generator.state.numpy(), calls[0])
    assert tape.gradient(y, x) is not None


def test_an_answer_that_the_tape_contradicts_is_not_given(monkeypatch):
    x = tf.Variable([4.0, 0.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.sqrt(x))
    monkeypatch.setattr(ExplainTape, "result_for", lambda *_: [tf.constant([np.nan, 7.0])])
    explanation = explain(tape, y, x)
    assert (explanation.symptom, explanation.healthy, explanation.code) == ("nan", False, "unexplained")
    assert not explanation.certain


@pytest.mark.dear
def test_explaining_compiled_functions_warns_of_no_retracing(caplog):
    x = tf.Variable([0.0, 1.0, 2.0])

    @tf.function(jit_compile=True)
    def roots(v):
        for _ in range(8):  # more gradient functions than TensorFlow lets pass without a word
            v = tf.sqrt(v + 0.0)
        return v

    with ExplainTape() as tape:
        y = roots(x)
    assert explain(tape, y, x).code == "root_at_zero"
    assert "retracing" not in caplog.text


OPERATIONS = {"log": lambda v: tf.reduce_sum(tf.math.log(v)), "where": lambda v: tf.where(v > 0, tf.math.log(v), 0.0)}


def test_fix_of_a_lambda_is_that_lambda_and_not_the_line_of_all():
    x = tf.Variable([2.0, 0.0])
    for name, fix in {
        "log": "lambda v: tf.reduce_sum(tf.math.log(v + 1e-7))",
        "where": "lambda v: tf.where(v > 0, tf.math.log(tf.where(v > 0, v, 1.0)), 0.0)",
    }.items():
        with ExplainTape() as tape:
            y = OPERATIONS[name](x)
        assert explain(tape, y, x).fix == fix


WEIGHTS = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 10.0]])
ROTATION = np.linalg.qr(np.random.default_rng(0).normal(size=(3, 3)))[0]


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "matrix", [2 * np.eye(3), np.diag([1.0, 1.0, 2.0]), ROTATION @ np.diag([3.0, 3, 1]) @ ROTATION.T]
)
@pytest.mark.parametrize("vectors", [lambda a: tf.linalg.svd(a)[1], lambda a: tf.linalg.eigh(a)[1]])
def test_vectors_of_equal_eigenvalues_have_no_gradient_to_rely_on(matrix, vectors):
    x = tf.Variable(matrix)
    with ExplainTape() as tape:
        y = tf.reduce_sum(vectors(x) * WEIGHTS)
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.healthy) == ("degenerate_eigenvalues", False), str(explanation)
    assert explanation.op in ("Svd", "SelfAdjointEigV2")
    assert "compute_uv=False" in explanation.fix


@pytest.mark.parametrize("matrix", [2 * np.eye(3), np.diag([1.0, 1.0, 2.0])])
def test_what_does_not_change_where_equal_eigenvectors_turn_has_a_derivative(matrix):
    """TensorFlow finds it where the values alone count, and misses a part of it where the vectors do."""

    def again(x):
        values, u, v = tf.linalg.svd(x)
        return tf.reduce_sum(WEIGHTS * (u @ tf.linalg.diag(values) @ tf.transpose(v)))

    def projected(x):
        values, vectors = tf.linalg.eigh(x)
        return tf.reduce_sum(WEIGHTS * (vectors @ tf.linalg.diag(values**2) @ tf.transpose(vectors)))

    def of_values(x):
        singular = (tf.linalg.svd(x)[0], tf.linalg.svd(x, compute_uv=False))
        return tf.add_n([tf.reduce_sum(one**2) for one in (*singular, tf.linalg.eigvalsh(x))])

    for function, code in ((again, "equal_eigenvalues"), (projected, "equal_eigenvalues"), (of_values, "exists")):
        x = tf.Variable(matrix)
        with ExplainTape() as tape:
            y = function(x)
        explanation = explain(tape, y, x)
        assert (explanation.code, explanation.healthy) == (code, code == "exists"), str(explanation)
        step = 1e-4 * (np.eye(3)[[0]] + np.eye(3)[[0]].T * np.eye(3)[[1]])  # off the diagonal too
        slope = float(function(matrix + step) - function(matrix - step)) / 2e-4
        assert np.isclose(slope, np.sum(tape.gradient(y, x) * step) / 1e-4, rtol=1e-4) == (code == "exists")


def test_rounding_that_cancellation_leaves_is_not_taken_for_a_contradiction():
    """The replay adds up in another order than the tape, and is left with another rounding error."""
    part = tf.constant([1e3], tf.float32)
    found, expected = tf.constant([6e-5]), tf.constant([-3e-5])
    for terms, agrees in (([part, -part], True), ([part / 1e3], False)):
        replay = types.SimpleNamespace(parts={0: [(None, one) for one in terms]}, passed={})
        evidence = types.SimpleNamespace(gradient=found, source=0, replay=replay)
        assert studying._agrees(evidence, expected) == agrees


def test_a_scalar_label_and_a_scalar_logit_are_looked_at(cell):
    program = """
z = tf.Variable(30.0)
with ExplainTape() as tape:
    y = tf.nn.sigmoid_cross_entropy_with_logits(0.0, z)
"""
    assert cell(program, "y, z").answer.code == "exists"
