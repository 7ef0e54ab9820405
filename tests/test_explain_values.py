"""Every mechanism of a bad value has its documented example, whose fix works; and what an answer holds."""

import ast
import linecache
import re
import textwrap

from tapelab import runtime
from tapelab.explain import REMARKS, VALUES, ExplainTape, explain
from tapelab.explain.causes import SYMPTOMS
from tapelab.explain.values import study as studying

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

keras = tf.keras


# The registry, and the fixes.


def run_example(code, source):
    """Run a documented example as a file of its own, so that its lines are known. Returns its names."""
    file = f"<ipython-input-example-{code}-{hash(source)}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    names = {"tf": tf, "np": np, "ExplainTape": ExplainTape}
    exec(compile(source, file, "exec"), names)
    return names


def explained(names):
    tape, y, x = names["tape"], names["y"], names["x"]
    return explain(tape, y, x)


@pytest.mark.parametrize("code", sorted(set(VALUES) - {"unexplained"}))
def test_the_documented_example_of_a_mechanism_has_that_mechanism(code):
    explanation = explained(run_example(code, VALUES[code].example))
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


@pytest.mark.parametrize("code", REWRITTEN)
def test_the_fix_gives_a_finite_and_right_gradient(code):
    source = VALUES[code].example
    names = run_example(code, source)
    explanation = explained(names)
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


def test_random_numbers_in_a_loop_of_a_function_are_those_that_were_drawn():
    x = tf.Variable([1.0, 0.0])

    @tf.function
    def run(value):
        total = tf.constant(0.0)
        for _ in tf.range(3):
            total += tf.reduce_sum(tf.random.uniform(()) * tf.sqrt(value))
        return total

    with ExplainTape() as tape:
        y = run(x)
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.op) == ("root_at_zero", "Sqrt"), str(explanation)


def second_derivative(moments):
    x = tf.Variable([1.0, 2.0, 4.0])
    with ExplainTape() as tape:
        with tf.GradientTape() as inner:
            variance = moments(x) ** 2
        y = tf.reduce_sum(inner.gradient(variance, x) ** 2)
    return explain(tape, y, x)


def test_what_scales_a_gradient_is_what_it_is_steep_at():
    x, scale = tf.Variable([3.0, 2.0]), tf.Variable(1e7)
    with ExplainTape() as tape:
        y = tf.reduce_sum(x * scale)
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.op) == ("steep", "Mul")
    assert explanation.sentence.startswith("Mul is steep at 1e7: ")


def test_a_second_derivative_through_moments_is_silently_wrong_and_says_so():
    assert second_derivative(lambda x: tf.nn.moments(x, [0])[1]).remarks == ("moments_twice",)
    assert second_derivative(lambda x: tf.reduce_mean((x - tf.reduce_mean(x)) ** 2)).remarks == ()
    assert "silently wrong" in REMARKS["moments_twice"].meaning
    x = tf.Variable([1.0, 2.0, 4.0])
    with ExplainTape() as tape:
        y = tf.nn.moments(x, [0])[1]
    assert explain(tape, y, x).remarks == ()


def test_a_gradient_that_tensorflow_gets_wrong_says_so():
    x = tf.Variable([1.0, 2.0, 4.0])
    with ExplainTape(persistent=True) as tape:
        twice = tf.dynamic_stitch([[0, 1], [1]], [x[:2], x[2:]])
        once = tf.dynamic_stitch([[0, 1], [2]], [x[:2], x[2:]])
    assert tape.gradient(twice, x).numpy().tolist() == [1.0, 1.0, 1.0]  # the overwritten one counts, and does not
    assert explain(tape, twice, x).remarks == ("wrong_in_tensorflow",)
    assert explain(tape, once, x).remarks == ()
    images = tf.Variable(tf.reshape(tf.range(16.0), [1, 4, 4, 1]))
    with ExplainTape() as tape:
        turned = tf.keras.layers.RandomRotation(0.1, seed=1)(images, training=True)
    assert explain(tape, turned, images).remarks == ("wrong_in_tensorflow",)


def test_stopped_path_is_noted_where_the_learner_stopped_it_on_the_way_to_the_target():
    x = tf.Variable([1.0, 2.0])
    with ExplainTape(persistent=True) as tape:
        shown = tf.stop_gradient(x) * 3.0
        y = x * 2.0
        z = y + shown
        variance = tf.nn.moments(x, [0])[1]
    assert explain(tape, z, x).remarks == ("partly_stopped",)
    assert explain(tape, y, x).remarks == ()  # stopped on the way to something else
    assert explain(tape, variance, x).remarks == ()  # stopped within TensorFlow


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


def test_a_note_about_some_elements_says_how_many_and_where():
    x = tf.Variable([0.5, 2.0, 3.0])
    with ExplainTape() as tape:
        y = tf.reduce_sum(tf.clip_by_value(x, 0.0, 1.0))
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.healthy, explanation.remarks) == ("exists", True, ("clipped",))
    assert explanation.sentence == "2 of the gradient's 3 elements are 0: clipped, at Minimum."
    assert "tf.clip_by_value(x, 0.0, 1.0)" in explanation.line.text


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


def test_squares_of_what_was_normalised_are_constant_and_nothing_overflowed_or_underflowed():
    x = tf.Variable(tf.constant([[0.0, 2.0], [1.0, 3.0]], tf.float16))
    with ExplainTape() as tape:
        y = tf.reduce_sum(keras.layers.LayerNormalization(epsilon=1e-12, dtype="float16")(x) ** 2)
    explanation = explain(tape, y, x)
    assert explanation.code == "constant_output"
    assert "another loss" in explanation.fix


def test_fix_of_an_overflow_fits_the_operation():
    x = tf.Variable(tf.constant([200.0] * 4, tf.float16))
    with ExplainTape(persistent=True) as tape:
        by_python = sum(x**2)
        layer = keras.layers.LayerNormalization(epsilon=1e-12, dtype="float16")
        normal = layer(tf.reshape(x, (2, 2)))[:, 0]
    assert "softplus" not in explain(tape, by_python, x).fix
    explanation = explain(tape, normal, x)
    assert (explanation.code, explanation.op) == ("overflow", "Cast")
    assert "a larger epsilon where something is normalised" in explanation.fix


def test_fix_of_a_steep_operation_within_a_call_is_no_division():
    x = tf.Variable([[3.0, 4.0], [1e-9, 0.0]])
    with ExplainTape(persistent=True) as tape:
        direction = tf.nn.l2_normalize(x, axis=1, epsilon=1e-20)[1, 1]
        logarithm = tf.math.log(x[1, 0])
        quotient = 1.0 / x[1, 0]
    for target, word in ((direction, "larger epsilon"), (logarithm, "away from 0"), (quotient, "tf.maximum")):
        explanation = explain(tape, target, x)
        assert explanation.code == "steep", str(explanation)
        assert word in explanation.fix
        assert ("tf.maximum" in explanation.fix) == (target is quotient)


def test_contributions_that_cancel_are_named_with_their_sizes():
    x = tf.constant([1.0, 2.0], tf.float64)
    with ExplainTape() as tape:
        tape.watch(x)
        first = tf.reduce_sum(1000.0 * x)
        second = tf.reduce_sum((1000.0 - 2.0**-30) * x)
        y = first - second
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.healthy) == ("cancelling", True)
    assert re.search(r"1e\+03 by Mul \(.*, line \d+\), -1e\+03 by Mul .*; 9.31e-10 is left", explanation.sentence)


def test_rounding_that_cancellation_leaves_is_not_taken_for_a_contradiction():
    """The replay adds up in another order than the tape, and is left with another rounding error."""
    part = tf.constant([1e3], tf.float32)
    found, expected = tf.constant([6e-5]), tf.constant([-3e-5])
    assert studying._agree(found, expected, [(None, part), (None, -part)])
    assert not studying._agree(found, expected, [(None, part / 1e3)])
