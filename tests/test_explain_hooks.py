"""The hooks: in place only while a tape listens, whatever happens inside, and each of them needed."""

import gc
import sys
import threading
import weakref

from tapelab import runtime
from tapelab.explain import ExplainTape, explain
from tapelab.explain.ground import hooks, private

import numpy as np
import pytest
import tensorflow as tf

runtime.start(seed=0)
hooks.blind()


def symbols():
    """What the hooks replace: a list of (name, the object now in TensorFlow, the object before any hook)."""
    here = [(name, getattr(owner, attribute), before) for name, (owner, attribute, before) in private.HOOKED.items()]
    return [*here, ("op callback", list(private.context.context().op_callbacks), [])]


def untouched():
    """Whether every symbol that the hooks replace is what it was before any hook."""
    return all(now is before or now == before == [] for _, now, before in symbols())


@pytest.fixture(autouse=True)
def leave_tensorflow_untouched():
    assert untouched()
    yield
    assert untouched()


def test_the_self_test_passes_on_this_tensorflow():
    assert hooks.blind() is None


NAMES = ["execute", "record_operation", "fast path", "_numpy", "numpy_function", "py_function", "op callback"]


def test_the_hooks_are_these():
    assert [name for name, _, _ in symbols()] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_symbol_is_replaced_while_a_tape_is_open_and_restored_after(name):
    with ExplainTape():
        now, before = next((now, before) for symbol, now, before in symbols() if symbol == name)
        assert now is not before
        assert now != []
    assert untouched()


def test_the_symbols_are_the_ones_that_tensorflow_had_before():
    # Compared with a process that never imported the hooks: nothing is replaced by the import.
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import execute, record
    from tensorflow.python.framework import ops
    from tensorflow.python.ops import script_ops

    assert execute.execute is execute.quick_execute
    assert record.record_operation.__module__ == "tensorflow.python.eager.record"
    assert type(pywrap_tfe.TFE_Py_FastPathExecute).__name__ == "builtin_function_or_method"
    assert ops._EagerTensorBase._numpy.__module__ == "tensorflow.python.framework.ops"
    assert script_ops.py_func_common.__module__ == "tensorflow.python.ops.script_ops"
    assert script_ops.backprop.__name__ == "tensorflow.python.eager.backprop"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_restored_after_an_exception(error):
    with pytest.raises(error), ExplainTape():
        raise error
    assert untouched()


def test_restored_after_an_error_inside_an_operation():
    with pytest.raises(tf.errors.InvalidArgumentError), ExplainTape():
        tf.matmul(tf.ones((2, 3)), tf.ones((2, 3)))
    assert untouched()


def test_restored_when_opening_is_interrupted(monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(hooks, "listen", interrupted)
    tape = ExplainTape()
    with pytest.raises(KeyboardInterrupt):
        tape.__enter__()
    assert untouched()
    with pytest.raises(ValueError, match="not recording"), tape.stop_recording():
        pass  # the tape itself is closed as well


def test_nested_tapes_keep_the_hooks_until_the_last_is_closed():
    with ExplainTape() as outer:
        with ExplainTape() as inner:
            x = tf.Variable(2.0)
            y = x * x
        assert not untouched()
        z = y * x
    assert untouched()
    assert [event.op for event in inner.log.events] == [event.op for event in outer.log.events][: len(inner.log.events)]
    assert explain(outer, z, x)


def test_tapes_closed_in_another_order():
    first, second = ExplainTape(), ExplainTape()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not untouched()
    second.__exit__(None, None, None)
    assert untouched()


def test_each_thread_sees_its_own_operations():
    barrier = threading.Barrier(2)
    found = {}

    def work(name, function):
        x = tf.Variable(2.0)
        with ExplainTape() as tape:
            barrier.wait()
            y = function(x)
            barrier.wait()
        found[name] = [event.op for event in tape.log.events], explain(tape, y, x).code

    threads = [
        threading.Thread(target=work, args=("sin", tf.sin)),
        threading.Thread(target=work, args=("round", tf.round)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {
        "sin": (["ReadVariableOp", "Sin"], "exists"),
        "round": (["ReadVariableOp", "Round"], "not_differentiable"),
    }
    assert untouched()


def test_a_thread_that_closes_its_tape_leaves_the_others_listening():
    @tf.function
    def double(value):
        return value * 2.0

    x = tf.Variable(2.0)
    double(tf.constant(1.0))
    with ExplainTape() as tape:
        thread = threading.Thread(target=lambda: ExplainTape().__enter__().__exit__(None, None, None))
        thread.start()
        thread.join()
        y = tf.round(double(tf.convert_to_tensor(x)))
    assert explain(tape, y, x).code == "not_differentiable"


def test_another_thread_without_a_tape_is_not_recorded():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        thread = threading.Thread(target=lambda: tf.sin(x))
        thread.start()
        thread.join()
    assert tape.log.events == []


def test_other_op_callbacks_stay():
    from tensorflow.python.framework import op_callbacks

    seen = []

    def callback(op_type, *_, **__):
        seen.append(op_type)

    op_callbacks.add_op_callback(callback)
    try:
        with ExplainTape():
            pass
        tf.sin(1.0)
    finally:
        op_callbacks.remove_op_callback(callback)
    assert "Sin" in [name.decode() if isinstance(name, bytes) else name for name in seen]


def remove(name, monkeypatch):
    if name == "op callback":
        monkeypatch.setattr(hooks, "_on_operation", lambda *_, **__: None)
    else:
        monkeypatch.delitem(hooks._replacements, name)


@pytest.mark.thorough(keep=2)
@pytest.mark.programs("hooks")
def test_no_hook_can_be_spared(cell, program, monkeypatch):
    def found():
        answer = cell(program["program"], "y, x").answer
        return answer.code, answer.certain

    assert found() == (program["code"], True)
    for name in program["hooks"]:
        with monkeypatch.context() as patch:
            remove(name, patch)
            assert found() != (program["code"], True)


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("name", NAMES)
def test_the_self_test_notices_a_missing_hook(name, monkeypatch):
    remove(name, monkeypatch)
    found = "A non-persistent GradientTape" if name == "py_function" else "the hooks saw"
    assert found in hooks._try_out()


def test_without_the_hooks_the_tape_works_and_says_that_it_cannot_see(monkeypatch):
    monkeypatch.setattr(hooks, "blind", lambda: "TensorFlow 9.9 lacks a symbol")
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        assert untouched()
        y = x * x
    explanation = explain(tape, y, x)
    assert (explanation.exists, explanation.code) == (None, "blind")
    assert "TensorFlow 9.9 lacks a symbol" in str(explanation)
    assert tape.gradient(y, x).numpy() == 4.0


def test_a_failure_while_listening_is_not_the_learners(monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("broken")

    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        monkeypatch.setattr(tape.log, "on_operation", broken)
        y = x * x
    assert tape.gradient(y, x).numpy() == 4.0
    explanation = explain(tape, y, x)
    assert explanation.code == "blind"
    assert "ZeroDivisionError" in str(explanation)


def test_the_log_is_released_with_the_tape():
    x = tf.Variable(tf.ones(1000))

    def work():
        with ExplainTape() as tape:
            y = tf.sin(x * 2.0)
        assert explain(tape, y, x)
        return weakref.ref(tape.log.tensors[private.key(y)])

    gc.disable()  # at once, not only when the garbage collector comes
    try:
        assert work()() is None
    finally:
        gc.enable()


def test_explaining_a_function_leaves_its_py_function_as_it_was():
    # Once a gradient is prepared for a py_function in a graph, each later call keeps a tape, asked for or not.
    run = tf.function(lambda value: tf.py_function(lambda inner: inner * 2.0, [value], tf.float32))
    x = tf.Variable(2.0)
    with ExplainTape() as tape, tape.stop_recording():
        y = run(tf.convert_to_tensor(x))
    assert explain(tape, y, x).code == "recording_stopped"
    before = dict(private.python_calls())
    run(tf.constant(3.0))
    assert private.python_calls() == before


# The tape itself.


def test_arguments_and_errors_are_those_of_a_plain_tape():
    x = tf.Variable(2.0)
    for make in (tf.GradientTape, ExplainTape):
        with make() as tape:
            y = x * x
        tape.gradient(y, x)
        with pytest.raises(RuntimeError, match="non-persistent GradientTape can only be used to compute one set"):
            tape.gradient(y, x)
        with pytest.raises(RuntimeError, match="non-persistent"):
            tape.jacobian(y, x)
        with make(True, False) as tape:
            y = x * x
        assert tape.gradient(y, x) is None
        assert tape.watched_variables() == ()
        with pytest.raises(ValueError, match="not recording"):
            tape.reset()
        with make() as tape, pytest.raises(ValueError, match="already-active"):
            tape.__enter__()


def test_a_keras_variable_that_is_watched_is_named_and_what_to_do():
    layer = tf.keras.layers.Dense(1)
    layer.build((None, 2))
    with ExplainTape() as tape, pytest.raises(ValueError, match=r"Keras variable .*kernel; .* leave tape.watch out"):
        tape.watch(layer.trainable_variables)


def test_a_used_up_tape_can_be_entered_again():
    x = tf.Variable(2.0)
    for make in (tf.GradientTape, ExplainTape):
        tape = make()
        for _ in range(2):
            with tape:
                y = x * x
            assert tape.gradient(y, x).numpy() == 4.0


def test_a_gradient_inside_the_with_block_ends_the_recording_of_a_tape_that_is_not_persistent():
    x = tf.Variable(2.0)
    for make in (tf.GradientTape, ExplainTape):
        with make(persistent=False) as tape:
            y = x * x
            assert tape.gradient(y, x).numpy() == 4.0
            assert untouched()


def test_jacobians_are_those_of_a_plain_tape():
    x = tf.Variable([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    results = []
    for make in (tf.GradientTape, ExplainTape):
        with make(persistent=True) as tape:
            y = tf.matmul(tf.sin(x), tf.ones((3, 4)))
        found = [tape.jacobian(y, x), tape.batch_jacobian(y, tf.convert_to_tensor(x))]
        with make() as tape:
            y = tf.matmul(tf.sin(x), tf.ones((3, 4)))
        found.append(tape.jacobian(y, x))
        results.append(found)
    for plain, ours in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, ours)


def test_a_plain_tape_inside_and_outside_gives_second_derivatives():
    x = tf.Variable(2.0)
    for outer, inner in [(tf.GradientTape, ExplainTape), (ExplainTape, tf.GradientTape), (ExplainTape, ExplainTape)]:
        with outer() as first:
            with inner() as second:
                y = x**3
            slope = second.gradient(y, x)
        assert first.gradient(slope, x).numpy() == 12.0


def test_explaining_records_nothing_and_leaves_the_tape_usable():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = x * x
        before = len(tape.log.events)
        assert explain(tape, y, x)
        assert len(tape.log.events) == before
        z = y * x
    assert tape.gradient(z, x).numpy() == 12.0


def test_inside_a_function_it_is_an_ordinary_tape():
    @tf.function
    def step(x):
        with ExplainTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    assert step(tf.constant(3.0)).numpy() == 6.0


@pytest.mark.skipif(sys.gettrace() is not None, reason="a tracer adds frames of its own")
def test_keras_training_step_has_the_same_gradients():
    layers = [tf.keras.layers.Conv2D(4, 3, activation="relu"), tf.keras.layers.Flatten(), tf.keras.layers.Dense(3)]
    model = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), *layers])
    images = tf.random.stateless_normal((5, 8, 8, 1), (1, 2))
    results = []
    for make in (tf.GradientTape, ExplainTape):
        with make() as tape:
            loss = tf.reduce_mean(tf.square(model(images, training=True)))
        results.append(tape.gradient(loss, model.trainable_variables))
    for plain, ours in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, ours)
    assert explain(tape, loss, model.trainable_variables)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("elsewhere", [False, True], ids=["in its thread", "in another thread"])
def test_a_tape_that_is_dropped_without_leaving_releases_hooks_and_log(elsewhere):
    box, entered, dropped = [], threading.Event(), threading.Event()

    def work():  # TensorFlow's own tape stays open, as a plain one would, and ends with this thread
        box.append(ExplainTape())
        box[0].__enter__()
        tf.Variable(2.0) * 3.0
        box.append(weakref.ref(box[0].log))
        if not elsewhere:
            del box[0]
        entered.set()
        dropped.wait(30)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(30)
    if elsewhere:
        assert not untouched()
        del box[0]
    gc.collect()
    assert box[0]() is None
    assert untouched()
    dropped.set()
    thread.join()
