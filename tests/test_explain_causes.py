"""Every cause that explain names has its documented example; what is said beside the cause. The programs are data."""

import textwrap
import typing

from tapelab import runtime
from tapelab.explain import CAUSES, REMARKS, ExplainTape, NoGradientError, explain, gradient_or_explain, table

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)

CANNOT_EXPLAIN = {"plain_tape", "inside_function", "blind", "unknown"}


BEFORE = """model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2)])
batch = tf.ones((4, 3))
"""
ASKED = {"moving_statistics": "layer.moving_mean", "keras_tensor": "model.layers[0].output"}  # the others x


@pytest.mark.dear(keep=16)
@pytest.mark.parametrize("code", sorted(set(CAUSES) - CANNOT_EXPLAIN))
def test_the_documented_example_of_a_cause_has_that_cause(code, cell):
    answer = cell(BEFORE + CAUSES[code].example, f"y, {ASKED.get(code, 'x')}").answer
    assert answer.code == code
    assert bool(answer) is (code == "exists")


OPENED = "with ExplainTape() as tape:"
# A line of the documented program, and what takes its place: {0} and {1} are the lines of the printed cure.
# The cures that are not here are sentences, have an ellipsis in them, or say how to ask.
MENDED = {
    "not_watched": (OPENED, f"{OPENED}\n    {{0}}"),
    "not_trainable": (OPENED, f"{OPENED}\n    {{0}}"),
    "watching_off": ("watch_accessed_variables=False) as tape:", "watch_accessed_variables=False) as tape:\n    {0}"),
    "watched_late": ("    y = x * x", "    {0}\n    y = x * x"),
    "watch_reset": ("    tape.reset()", "    {0}\n    {1}"),
    "source_dtype": ("    tape.watch(x)", "    {0}\n    tape.watch(x)"),
    "wrong_type": ("    y = tf.square(x)", "    {0}\n    tape.watch(x)\n    y = tf.square(x)"),
    "cast_to_integer": ("tf.cast(tf.cast(x, tf.int32), tf.float32)", "{1}"),
    "used_up": (OPENED, "{0}"),
    "not_opened": ("tape = ExplainTape()\n", "{0}\n    "),
}


@pytest.mark.parametrize("code", MENDED)
def test_the_cure_that_is_printed_mends_the_documented_example(code, cell):
    old, new = MENDED[code]
    example = CAUSES[code].example
    cure = [line.partition("  # ")[0] for line in cell(example, "y, x").answer.fix.splitlines()]
    assert example.count(old) == 1
    assert cell(example.replace(old, new.format(*cure)), "y, x").answer.exists


@pytest.mark.dear
def test_documented_examples_of_tapes_that_cannot_tell(cell):
    answer = cell(CAUSES["plain_tape"].example, "y, x").answer
    assert (answer.code, answer.exists) == ("plain_tape", None)
    assert cell(CAUSES["inside_function"].example).names["step"]() == b"inside_function"


@pytest.mark.parametrize("code", sorted(REMARKS))
def test_the_documented_example_of_a_remark_has_that_remark(code, cell):
    given = "x = tf.Variable([0.0, 1.0, 2.0])\nwith ExplainTape(persistent=True) as tape:\n"
    answer = cell(given + textwrap.indent(REMARKS[code].example, "    "), "y, x").answer
    assert answer.exists
    assert answer.remarks == (code,)


@pytest.mark.parametrize("wrap", [lambda run: run, tf.function], ids=["eager", "function"])
def test_a_py_function_keeps_its_gradient_when_it_is_explained(wrap):
    x = tf.Variable([1.0, 2.0])
    run = wrap(lambda value: tf.reduce_sum(tf.py_function(lambda inner: inner * inner, [value], tf.float32)))
    for persistent in (False, True):
        with ExplainTape(persistent=persistent) as tape:
            y = run(x * 1.0)
        for _ in range(2):
            explanation = explain(tape, y, x)
            assert (explanation.exists, explanation.remarks) == (True, ("py_function",))
        np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])
        assert explain(tape, y, x).exists


def test_a_py_function_gives_its_gradient_once_as_with_a_plain_tape():
    x = tf.Variable([1.0, 2.0])
    for make in (tf.GradientTape, ExplainTape):
        with make(persistent=True) as tape:
            y = tf.py_function(tf.square, [x], tf.float32)
        np.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])
        with pytest.raises(tf.errors.UnknownError, match="KeyError"):
            tape.gradient(y, x)


def test_an_optimizer_changes_a_frozen_layer_that_it_is_given():
    layer = tf.keras.layers.Dense(1)
    layer.build((None, 3))
    layer.trainable = False
    before = layer.kernel.numpy()
    with ExplainTape() as tape:
        loss = tf.reduce_sum(layer(tf.ones((1, 3))))
    assert explain(tape, loss, layer.kernel).remarks == ("frozen_layer",)
    assert explain(tape, loss, layer.trainable_variables).missing() == []
    gradients = tape.gradient(loss, layer.variables)
    tf.keras.optimizers.SGD(1.0).apply_gradients(zip(gradients, layer.variables, strict=True))
    np.testing.assert_allclose(layer.kernel.numpy(), before - 1.0, rtol=1e-6)


def test_sources_are_explained_by_name():
    a, b = tf.Variable(2.0), tf.Variable(3.0)
    layer = tf.keras.layers.Dense(1)
    with ExplainTape() as tape:
        y = layer(tf.reshape(a * tf.round(b), (1, 1)))
    explanations = explain(tape, y, {"second": b, "layer": [layer.kernel, tf.Variable(0.0)], "first": a})
    # In the order in which they are written here; tf.nest would sort the keys.
    assert [(name, one.code) for name, one in explanations.items()] == [
        ("b", "not_differentiable"),
        ("layer.kernel", "exists"),
        ("source['layer'][1]", "unused_variable"),
        ("a", "exists"),
    ]
    assert not explanations
    assert [one.source for one in explanations.missing()] == ["b", "source['layer'][1]"]


class Pair(typing.NamedTuple):
    left: tf.Variable
    right: tf.Variable


def test_sources_have_the_learners_own_expressions():
    params = {"w": tf.Variable(2.0), "b": tf.Variable(3.0)}
    named = [tf.Variable(1.0, name="scale"), tf.Variable(1.0, name="scale")]
    pair = Pair(tf.Variable(1.0), tf.Variable(1.0))
    layer = tf.keras.layers.Dense(1)
    with ExplainTape() as tape:
        made = {"y": layer(tf.reshape(tf.round(params["w"]), (1, 1)))}
    assert list(explain(tape, made["y"], params)) == ["params['w']", "params['b']"]
    assert str(explain(tape, made["y"], params["w"])).startswith("d made['y'] / d params['w'] is None")
    assert explain(tape, target=made["y"], source=layer.kernel).source == "layer.kernel"
    assert explain(tape, made["y"], layer.weights[-1]).source == "layer.weights[-1]"
    assert ("∂", explain(tape, made["y"], layer.bias).source) == ("∂", "layer.bias")  # columns count bytes
    assert list(explain(tape, made["y"], layer.weights)) == [layer.kernel.path, layer.bias.path]
    assert list(explain(tape, made["y"], named)) == ["scale", "scale (named[1])"]
    assert list(explain(tape, made["y"], pair)) == ["pair.left", "pair.right"]
    assert list(explain(tape, made["y"], (pair.right, [*named, params["b"]]))) == [
        "pair.right",
        "scale",
        "scale (source[1][1])",
        "source[1][2]",
    ]
    every = explain(
        tape,
        made["y"],
        [
            params["w"],
            layer.bias,
        ],
    )
    assert list(every) == ["params['w']", "layer.bias"]
    with pytest.raises(NoGradientError, match=r"d made\['y'\] / d params\['w'\] is None"):
        gradient_or_explain(tape, made["y"], params["w"])


def test_variables_without_names_are_told_apart():
    with ExplainTape() as tape:
        y = tf.constant(2.0) * 3.0
    explanations = explain(tape, y, [tf.Variable(1.0), tf.Variable(2.0)])
    assert list(explanations) == ["source[0]", "source[1]"]
    arguments = (tape, y, tf.Variable(1.0))
    assert explain(*arguments).source == "source"
    last = tf.Variable(1.0)
    explanation = explain(*arguments[:2], last)
    assert (explanation.target, explanation.source) == ("y", "last")


def test_gradient_or_explain_returns_the_gradient_or_raises_the_explanation():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = x * x
    assert gradient_or_explain(tape, y, x).numpy() == 4.0
    with ExplainTape() as tape:
        y = tf.round(x)
    with pytest.raises(NoGradientError, match="not_differentiable") as caught:
        gradient_or_explain(tape, y, [x])
    assert caught.value.explanation["x"].code == "not_differentiable"
    with pytest.raises(NoGradientError, match="used_up"):
        gradient_or_explain(*_used_up(x), x)
    with tf.GradientTape() as tape:
        y = tf.round(x)
    with pytest.raises(NoGradientError, match="ExplainTape"):
        gradient_or_explain(tape, y, x)


def _used_up(x):
    with ExplainTape() as tape:
        z = x * x
        y = z * z
    tape.gradient(z, x)
    return tape, y


def test_an_answer_that_the_tape_contradicts_is_not_given(monkeypatch):
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = x * x
    monkeypatch.setattr(ExplainTape, "result_for", lambda *_: [None])
    explanation = explain(tape, y, x)
    assert (explanation.code, explanation.exists) == ("unknown", None)
    assert explanation.heading == "d y / d x is not known"


def test_a_loop_in_a_function_passes_zero_where_eager_code_passes_none():
    x = tf.Variable(3.0)

    @tf.function
    def function():
        value = tf.convert_to_tensor(x)
        for _ in tf.range(3):
            value = tf.round(value)
        return value, tf.constant(1.0)

    with ExplainTape() as tape:
        y = function()[0]
    explanation = explain(tape, y, x)
    assert (explanation.exists, explanation.symptom) == (True, "zero")


def test_a_function_without_a_gradient_raises_when_it_is_called_as_with_a_plain_tape():
    x = tf.Variable(tf.ones((1, 2, 2, 3)))
    function = tf.function(lambda: tf.image.adjust_contrast(x, 2.0))
    for make in (tf.GradientTape, ExplainTape):
        with make(), pytest.raises(LookupError, match="AdjustContrast"):
            function()


def test_several_targets_add_up():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        first, second = tf.round(x), x * x
    assert explain(tape, [first, second], x).exists
    assert explain(tape, [first, first], x).code == "not_differentiable"
    assert explain(tape, {"a": tf.constant(1), "b": second}, x).exists


def test_a_structure_of_sources_without_names_of_its_own():
    with ExplainTape() as tape:
        y = tf.constant(2.0) * 3.0
    explanations = explain(tape, y, {"first": tf.ones(2), "second": [tf.ones(3), np.ones(1)]})
    assert list(explanations) == ["source['first']", "source['second'][0]", "source['second'][1]"]
    assert [one.code for one in explanations.values()] == ["source_replaced", "source_replaced", "wrong_type"]


def test_a_function_of_a_loaded_saved_model_has_a_cause_and_no_line_of_its_own(tmp_path):
    module = tf.Module()
    module.w = tf.Variable([0.3, 2.6])
    module.step = tf.function(lambda x: tf.reduce_sum(tf.round(module.w) * x), [tf.TensorSpec([2])])
    tf.saved_model.save(module, str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with ExplainTape() as tape:
        y = loaded.step(tf.ones(2))
    explanation = explain(tape, y, loaded.w)
    assert (explanation.code, explanation.cuts[0].op) == ("not_differentiable", "Round")
    assert explanation.line.text == "y = loaded.step(tf.ones(2))"


def test_inside_a_function_it_is_said_which_gradients_are_none_and_how_to_learn_why():
    w, lost = tf.Variable(1.0), tf.Variable(2.0)
    kept = []

    @tf.function(autograph=False)
    def step():
        with ExplainTape() as tape:
            loss = w**2 + tf.round(lost)
        kept.append(explain(tape, loss, [w, lost]))
        return loss

    step()
    tf.config.run_functions_eagerly(True)  # the cure that is printed
    try:
        step()
    finally:
        tf.config.run_functions_eagerly(False)
    traced, eager = kept
    assert [(one.exists, one.code) for one in traced.values()] == [
        (True, "inside_function"),
        (False, "inside_function"),
    ]
    assert traced["lost"].fix.startswith("tf.config.run_functions_eagerly(True)")
    assert [one.code for one in eager.values()] == ["exists", "not_differentiable"]


def test_inside_a_function_only_the_missing_gradients_raise():
    good, bad = tf.Variable(1.0, name="good"), tf.Variable(2.0, name="bad")

    @tf.function(autograph=False)
    def step(with_bad):
        with ExplainTape() as tape:
            loss = good**2 + tf.round(bad)
        with pytest.raises(ValueError, match=r"there is nothing to .* The tape was opened inside a tf.function"):
            table(tape, loss, good)
        return gradient_or_explain(tape, loss, [good, bad] if with_bad else [good])

    assert float(step(False)[0]) == 2.0
    with pytest.raises(NoGradientError) as raised:
        step(True)
    assert [one.source for one in raised.value.explanation.missing()] == ["bad"]
    assert raised.value.explanation["bad"].fix.startswith("tf.config.run_functions_eagerly(True)")
