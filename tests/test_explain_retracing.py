"""`explain_retracing` names what was planted, and nothing where nothing was."""

import contextlib

from tapelab import runtime
from tapelab.explain import RETRACING, Retracings, explain_retracing
from tapelab.explain.retracing import traces

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)


def doubler(**options):
    """A new tf.function of two arguments."""

    def double(x, y=None):
        return 2.0 * tf.cast(tf.reduce_sum(x), tf.float32)

    return tf.function(double, **options)


@pytest.mark.dear(keep=8)
@pytest.mark.programs("retracing", "threads_retracing")
def test_names_what_was_planted(cell, program):
    with explain_retracing() if program.get("watched") else contextlib.nullcontext() as report:
        ran = cell(program["program"])
    (found,) = [one for one in report if one.causes] if program.get("watched") else [explain_retracing(ran.names["f"])]
    (cause,) = found.causes
    assert (cause.code, cause.argument) == (program["code"], program.get("argument", "")), found
    assert list(cause.values) == program.get("values", list(cause.values))
    assert (cause.line.file, [cause.line.number]) == (ran.file, ran.marked)
    assert cause.code in RETRACING
    if program.get("watched"):
        assert cause.fix
        assert not found.healthy
        assert found.traces == program.get("traces", 3)
    else:
        assert program.get("fix", "") in cause.fix
        assert bool(cause.fix) == ("fix" in program)
        assert cause.expected == ("fix" not in program)
        assert found.healthy == (cause.expected or cause.traces == 1)
        assert found.traces == cause.traces + 1


def shapes():
    f = doubler()
    for size in (2, 3, 4):
        f(tf.zeros((size, 5)))
    return f


def numbers():
    f, step = doubler(), 0
    for step in range(4):
        f(tf.zeros(3), step)
    return f


def test_the_suggested_decorator_stops_the_retracing():
    cause = explain_retracing(shapes()).causes[0]
    f = eval(cause.fix.splitlines()[0].removeprefix("@"))(lambda x, y=None: x)
    for size in (2, 3, 4, 5):
        f(tf.zeros((size, 5)))
    found = explain_retracing(f)
    assert (found.traces, found.healthy) == (2, True)
    assert [one.code for one in found.causes] == ["relaxed"]


def test_xla_gets_a_batch_of_one_size_for_a_fix():
    f = doubler(jit_compile=True)
    f.get_concrete_function(tf.TensorSpec((2, 5)))
    f.get_concrete_function(tf.TensorSpec((3, 5)))
    assert "drop_remainder=True" in explain_retracing(f).causes[0].fix


def test_two_arguments_that_changed_are_two_causes():
    f = doubler()
    for step in range(3):
        f(tf.zeros(3 if step < 2 else 4), step)
    found = explain_retracing(f)
    assert {(cause.code, cause.argument): cause.traces for cause in found.causes} == {
        ("python_value", "y"): 2,
        ("shape", "x"): 1,
    }
    assert found.causes[0].argument == "y"


class Model(tf.Module):
    @tf.function
    def step(self, x):
        return 2.0 * x


def test_watching_says_nothing_of_what_is_in_order():
    a, b = Model(), Model()
    models = [Model() for _ in range(3)]
    data = tf.data.Dataset.range(4).map(lambda x: 2 * x).batch(2)
    with explain_retracing() as report:
        for _ in range(2):
            for model in (a, b, *models):
                model.step(tf.zeros(3))
        for batch in data:
            shapes_seen = batch.shape
    assert report.healthy, report
    assert [cause.code for cause in report.causes] == ["new_objects"]
    assert "All 5 are still in use" in report[0].causes[0].sentence
    assert shapes_seen == (2,)
    with explain_retracing() as report:
        a.step(tf.zeros(3))
    assert len(report) == 0
    assert str(report) == "Nothing was traced."


def test_watching_ends_with_its_block():
    with explain_retracing() as report:
        doubler()(tf.zeros(2))
    assert isinstance(report, Retracings)
    assert not traces.transform.CONCRETE_FUNCTION_CALLBACKS


def test_watching_counts_what_was_traced_before_as_known():
    f = doubler()
    f(tf.zeros(2))
    with contextlib.suppress(KeyboardInterrupt), explain_retracing() as report:
        f(tf.zeros(4))
        raise KeyboardInterrupt
    ((cause,),) = [one.causes for one in report]
    assert (cause.code, cause.values) == ("shape", ("(2,)", "(4,)"))


def test_after_the_fact_functions_made_anew_are_said_to_be_seen_elsewhere():
    for _ in range(4):
        f = tf.function(lambda x: x - 1.0)
        f(tf.zeros(3))
    assert "with explain_retracing() as report:" in str(explain_retracing(f))
    assert "with explain_retracing() as report:" in str(explain_retracing(Model.step))
    assert "with explain_retracing() as report:" not in str(explain_retracing(shapes()))


def test_keras_model():
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)], name="net")
    model.compile("sgd", "mse", jit_compile=False)
    model.fit(np.zeros((6, 2)), np.zeros((6, 1)), batch_size=4, verbose=0)
    found = explain_retracing(model)
    assert {one.function for one in found} == {"net.train_step"}
    assert found.healthy, found
    assert {cause.code for cause in found.causes} <= {"relaxed", "variables_made"}


def test_text_and_markdown():
    found = explain_retracing(numbers())
    number = numbers.__code__.co_firstlineno + 3
    assert str(found).splitlines() == [
        "double was traced 4 times: python_value of y",
        "Argument y (step in the call) is a Python value, and each new one is traced anew: 0, 1, 2, 3.",
        f"test_explain_retracing.py, line {number}: f(tf.zeros(3), step)",
        "Hint:",
        "    f(tf.zeros(3), tf.constant(step, tf.float32))  # a tensor: one trace for all values",
        "    # if double needs it in Python, as a shape or for a Python loop, a trace for each value is the price",
    ]
    assert "**double was traced 4 times: python\\_value of y**" in found._repr_markdown_()
    assert "```python\nf(tf.zeros(3)" in found.markdown()


def test_without_the_private_symbols_the_count_is_given(monkeypatch):
    f = numbers()
    monkeypatch.setattr(traces, "BLIND", "TensorFlow 9.9 lacks a symbol")
    found = explain_retracing(f)
    assert (found.traces, found.causes, found.healthy) == (4, (), False)
    assert "TensorFlow 9.9 lacks a symbol" in str(found)
    with explain_retracing() as report:
        f(tf.zeros(9))
    assert report[0].unknown


def test_a_missing_symbol_is_noticed_at_import(fresh):
    code = (
        "from tensorflow.python.eager.polymorphic_function import transform\n"
        "del transform.CONCRETE_FUNCTION_CALLBACKS\n"
        "from tapelab.explain.retracing import traces\n"
        "print(traces.BLIND)"
    )
    assert "CONCRETE_FUNCTION_CALLBACKS" in fresh(code)


@pytest.mark.parametrize("settings", [{"rate": 0.1}, [1.0, 0.1]])
def test_a_part_of_an_argument_is_named_in_the_learners_words(settings):
    @tf.function
    def f(x, settings):
        return x * tf.nest.flatten(settings)[-1]

    last = "rate" if isinstance(settings, dict) else 1
    for rate in (0.1, 0.2, 0.3, 0.4):
        settings[last] = rate
        f(tf.ones(2), settings)
    (cause,) = explain_retracing(f).causes
    part = f"settings[{last!r}]"
    assert cause.fix.startswith(f"# pass tf.constant({part}, tf.float32) in place of {part}")
