"""What a function reads from outside: a change of it is noticed, or a warning at the first call names it."""

import importlib
import inspect
import textwrap
import threading
import time
import warnings

from tapelab.derivatives import OutsideWarning, hessian, jacobian, value_and_gradient
from tapelab.derivatives.machinery.outside.outside import Outside
from tapelab.optimize import newton
from tapelab.runtime import tf

import numpy as np
import pytest
from sklearn.preprocessing import StandardScaler

ONE = tf.constant(1.0)
GRAPH = {"compile": "graph"}


class Held:
    """A thing whose v no code names but its own."""

    def __init__(self):
        self.v = 2.0


def scaler():
    """An object of a library."""
    made = StandardScaler()
    made.scale_ = 2.0
    return made


class Trainer:
    """Beside its loss it has what no loss reads."""

    def __init__(self):
        self.weight, self.rng, self.data = tf.Variable(2.0), np.random.default_rng(0), iter([1.0])
        self.scaler, self.step, self.history = scaler(), 0, []

    def loss(self, x):
        return self.weight * x**2

    def train(self):
        self.history.append((time.time(), self.rng.random(), next(self.data), self.scaler.scale_))


MODULES = """collections contextvars dataclasses datetime decimal enum functools importlib inspect io itertools
linecache locale math operator os pathlib random threading time types weakref"""
# What the programs use beside TensorFlow, NumPy and Keras.
GIVEN = {name: importlib.import_module(name) for name in MODULES.split()}
GIVEN |= {"FACTOR": 2.0, "__file__": __file__, "Held": Held, "Trainer": Trainer, "scaler": scaler}
GIVEN |= {"value_and_gradient": value_and_gradient}


def made(cell, program):
    """The function of a program of `programs/outside_*.toml` and what changes the thing that it reads."""
    lines = program.get("program", "").splitlines()
    if "read" in program:
        make = program.get("make", "Thing()" if lines else "Held()")
        lines += [f"thing = {make}", "def f(x):", f"    return x * ({program['read']})"]
        lines += ["def change():", f"    {program.get('change', 'thing.v = 3.0')}"]
    text = textwrap.indent("\n".join(lines), "    ")
    return cell(f"def make():\n{text}\n    return f, locals().get('change')", **GIVEN).names["make"]()


@pytest.fixture(autouse=True)
def environment_as_it_was(monkeypatch):
    monkeypatch.setenv("TAPELAB_FACTOR", "2")


@pytest.mark.thorough(keep=34, dear=12)
@pytest.mark.programs("outside_noticed")
def test_a_change_is_noticed_and_not_warned_of(cell, program):
    f, change = made(cell, program)
    held = value_and_gradient(f, **GRAPH)
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        assert float(held(ONE)[1]) == 2.0
        change()
        assert float(held(ONE)[1]) == 3.0


# What cannot be watched.


@pytest.mark.dear(keep=12)
@pytest.mark.programs("outside_unwatched")
def test_what_cannot_be_watched_is_named_once_at_the_callers_line(cell, program):
    derivative = value_and_gradient(made(cell, program)[0], **GRAPH)
    line = inspect.currentframe().f_lineno + 2
    with pytest.warns(OutsideWarning, match=rf"value_and_gradient\(.*\n- .*{program['says']}") as caught:
        derivative(ONE)
    told = [warning for warning in caught if warning.category is OutsideWarning]
    assert [(warning.filename, warning.lineno) for warning in told] == [(__file__, line)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        derivative(ONE)
        derivative(tf.constant([1.0, 2.0])[0])


def test_a_minimisation_warns_at_the_line_that_asked_for_it():
    w = tf.Variable(0.0)
    with pytest.warns(OutsideWarning, match=r"np\.random\.rand") as caught:
        newton(lambda: (w - np.random.rand()) ** 2, wrt=w, iterations=1)
    assert {warning.filename for warning in caught if warning.category is OutsideWarning} == {__file__}


def test_what_runs_in_every_call_is_not_warned_of():
    numbers = iter([2.0, 3.0])
    eager = value_and_gradient(lambda x: x * (next(numbers, 4.0) if x > 0 else 0.0), compile="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        assert len({float(eager(ONE)[1]) for _ in range(3)}) > 1


# Ordinary functions.


@pytest.mark.thorough(keep=14, dear=5)
@pytest.mark.programs("outside_ordinary")
@pytest.mark.parametrize("make", [value_and_gradient, hessian, jacobian])
def test_ordinary_functions_are_not_warned_of(cell, program, make):
    with warnings.catch_warnings():
        warnings.simplefilter("error", OutsideWarning)
        make(made(cell, program)[0], unconnected="zero", **GRAPH)(ONE)


def test_what_no_code_can_read_causes_no_trace():
    trainer, traces = Trainer(), []
    derivative = value_and_gradient(lambda x: traces.append(x) or trainer.loss(x), **GRAPH)
    derivative(ONE)
    count = len(traces)
    trainer.step += 1
    trainer.history.append(1.0)
    derivative(ONE)
    assert len(traces) == count


# Keras.


def test_a_regulariser_s_attribute_and_another_loss_are_noticed():
    x = tf.constant([[1.0, 2.0]])
    model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1, kernel_regularizer="l2")])
    model.compile(loss="mse")

    def loss():
        return model.compute_loss(x, tf.ones((1, 1)), model(x))

    gradient = value_and_gradient(loss, wrt=model.trainable_variables, **GRAPH)
    changes = [
        lambda: None,
        lambda: model.compile(loss="mae"),
        lambda: setattr(model.layers[0].kernel.regularizer, "l2", 9.0),
        lambda: setattr(model.layers[0].kernel, "regularizer", tf.keras.regularizers.L1(3.0)),
    ]
    values = []
    for change in changes:
        change()
        values.append(float(gradient()[0]))
        np.testing.assert_allclose(values[-1], loss(), rtol=1e-5)
    assert len(set(values)) == 4


def test_a_thread_has_its_own_values():
    store, found = threading.local(), []
    store.v = 2.0
    gradient = value_and_gradient(lambda x: x * store.v, **GRAPH)
    gradient(ONE)

    def work():
        store.v = 5.0
        found.append(float(gradient(ONE)[1]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [5.0]
    assert float(gradient(ONE)[1]) == 2.0


def test_a_thousand_objects_are_compared_and_more_are_named(monkeypatch):
    monkeypatch.setattr("tapelab.derivatives.machinery.outside.reach._OBJECTS", 5)
    things = [Held() for _ in range(9)]
    assert "first 5 objects" in " ".join(Outside(lambda: things).unseen.values())
