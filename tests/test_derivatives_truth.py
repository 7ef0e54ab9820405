"""Held derivatives after a change of what their function reads from outside: they agree with a plain tape."""

import threading
import types

from tapelab.derivatives import batch_jacobian, value_and_gradient, vjp
from tapelab.optimize import Objective, lbfgs, levenberg_marquardt, newton, newton_cg
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest
from transformations import EVERY

FACTOR = 1.5
helper = tf.sin


class Settings:
    offset = 0.25

    def __init__(self):
        self.scale = 1.0
        self.variable = tf.Variable(1.25)

    @property
    def doubled(self):
        return 2 * self.scale


def make_world():
    """What a function reads, and a factor that depends on all of it."""
    world = types.SimpleNamespace(settings=Settings(), items=[1.0, {"inner": 0.5}], array=np.array([1.0, 2.0, 0.5]))
    cell = 1.0
    settings, items, array = world.settings, world.items, world.array

    def factor(default=[0.5]):  # noqa: B006  a mutable default is one of the things that change
        y = helper(settings.variable) * FACTOR + cell
        return (y * settings.doubled + settings.offset) * items[0] + items[1]["inner"] * float(array.sum()) + default[0]

    def set_cell(value):
        nonlocal cell
        cell = value

    world.factor, world.set_cell = factor, set_cell
    return world


def in_another_thread(change):
    thread = threading.Thread(target=change)
    thread.start()
    thread.join()


def rebind(name, value):
    globals()[name] = value


CHANGES = {
    "nothing": lambda world: None,
    "global": lambda world: rebind("FACTOR", 2.5),
    "closure": lambda world: world.set_cell(-1.5),
    "attribute": lambda world: setattr(world.settings, "scale", 0.5),
    "class": lambda world: setattr(Settings, "offset", -0.75),
    "property": lambda world: setattr(Settings, "doubled", property(lambda self: 3 * self.scale)),
    "item": lambda world: world.items.__setitem__(0, -1.0),
    "inner item": lambda world: world.items[1].update(inner=1.5),
    "array": lambda world: world.array.__imul__(2),
    "default": lambda world: world.factor.__defaults__[0].__setitem__(0, 2.0),
    "function": lambda world: rebind("helper", tf.tanh),
    "variable assigned": lambda world: world.settings.variable.assign(0.5),
    "variable replaced": lambda world: setattr(world.settings, "variable", tf.Variable(2.0)),
    "another thread": lambda world: in_another_thread(lambda: rebind("FACTOR", -0.5)),
}


@pytest.fixture
def world():
    saved = FACTOR, helper, Settings.offset, Settings.doubled
    yield make_world()
    rebind("FACTOR", saved[0])
    rebind("helper", saved[1])
    Settings.offset, Settings.doubled = saved[2:]


GRAPH = {"compile": "graph"}
# Each but a clipped sum has a power of the factor that its function has.
POWERS = {name: 2 if name in ("ggn", "fisher") else 1 for name in EVERY if name != "clipped_gradient"}
COMPILED = [*[(name, "graph") for name in POWERS], ("value_and_gradient", "auto"), ("hessian", "eager")]


def arrays(result):
    return [tf.sparse.to_dense(part) if isinstance(part, tf.SparseTensor) else part for part in tf.nest.flatten(result)]


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize(("name", "compile"), COMPILED)
def test_a_held_derivative_is_that_of_the_function_as_it_is_now(world, name, compile):
    f, make, arguments, *vector = EVERY[name]
    base = arrays(make(f, **GRAPH)(*arguments, **dict(*vector)))
    held, before = make(lambda x: f(x) * world.factor(), compile=compile), 0.0
    # What is noticed does not depend on the kind of derivative: one goes through all changes.
    for change in CHANGES if name == "vjp" else ("nothing", "global", "variable replaced"):
        CHANGES[change](world)
        factor = world.factor().numpy() ** POWERS[name]
        assert abs(factor - before) > 1e-2, f"{change} changes nothing"
        for found, part in zip(arrays(held(*arguments, **dict(*vector))), base, strict=True):
            np.testing.assert_allclose(found, factor * part, rtol=1e-4, atol=1e-5, err_msg=change)
        before = factor


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("held", [False, True])
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_an_optimiser_minimises_the_function_as_it_is_now(world, method, held):
    z = tf.Variable(np.zeros(3))

    def loss():
        return tf.reduce_sum((z * world.settings.doubled * FACTOR * world.items[0] - world.array) ** 2)

    objective = Objective(loss, wrt=z)
    for change in ("nothing", "global", "attribute", "property", "item", "array", "another thread"):
        CHANGES[change](world)
        what, wrt = (objective, None) if held else (loss, z)
        report = method(what, wrt=wrt, tolerance=1e-9, damping=0.0)
        assert report.converged
        np.testing.assert_allclose(z * world.settings.doubled * FACTOR * world.items[0], world.array, err_msg=change)
        assert report.value == pytest.approx(float(loss()))


TARGET = tf.constant([1.0, 2.0])


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("method", [newton, newton_cg, levenberg_marquardt, lbfgs])
def test_optimisers_with_an_objective_see_a_target_that_was_bound_anew(method):
    w = tf.Variable([0.0, 0.0])

    def f():
        return w - TARGET if method is levenberg_marquardt else tf.reduce_sum((w - TARGET) ** 2)

    objective = Objective(f, wrt=w)
    try:
        for target in ([1.0, 2.0], [5.0, 7.0]):
            rebind("TARGET", tf.constant(target))
            w.assign([0.0, 0.0])
            assert method(objective).converged
            np.testing.assert_allclose(w, target, atol=1e-4)
    finally:
        rebind("TARGET", tf.constant([1.0, 2.0]))


def test_an_optimiser_sees_what_its_callback_changes():
    """The transforms that it holds are no more stale than others."""
    w, goal = tf.Variable([0.0, 0.0]), [1.0]

    def change(iteration):
        goal[0] = 3.0

    newton(lambda: tf.reduce_sum((w - goal[0]) ** 4), wrt=w, callback=change, iterations=40)
    np.testing.assert_allclose(w, [3.0, 3.0], atol=0.05)


# Keras.

BATCH = tf.constant(np.random.default_rng(0).normal(size=(5, 3)).astype("f"))


@pytest.fixture
def network():
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input((3,)), layers.Dense(4, "tanh"), layers.BatchNormalization(), layers.Dense(2)]
    )


def flag(model):
    model.layers[1].trainable = False


def policy(model):
    model.layers[0].dtype_policy = "mixed_bfloat16"


def activation(model):
    model.layers[0].activation = tf.keras.activations.relu


def epsilon(model):
    model.layers[1].epsilon = 0.5


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("change", [flag, policy, activation, epsilon])
@pytest.mark.parametrize("direct", [True, False], ids=["the model", "a function"])
def test_a_changed_layer_is_noticed(network, change, direct):
    if direct:
        f, arguments = network, {"training": True}
    else:
        f, arguments = (lambda x: network(x, training=True)), {}
    held = vjp(f, **GRAPH)
    upstream = tf.reshape(tf.linspace(-1.0, 1.0, 10), [5, 2])

    def total(x):
        return tf.reduce_sum(upstream * tf.cast(network(x, training=True), tf.float32))

    before = by_tape.gradient(total, BATCH)
    np.testing.assert_allclose(held(BATCH, cotangents=upstream, **arguments)[1], before, atol=1e-6)
    change(network)
    wanted = by_tape.gradient(total, BATCH)
    found = held(BATCH, cotangents=upstream, **arguments)[1]
    if change is policy:
        # Kernels round to bfloat16 at other places in a graph than eagerly: what all share is that the result is one.
        assert in_bfloat16(found)
        assert in_bfloat16(wanted)
        assert not in_bfloat16(before)
        np.testing.assert_allclose(found, wanted, atol=0.05)
    else:
        assert np.abs(wanted - before).max() > 1e-4
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def in_bfloat16(values):
    return np.array_equal(values, tf.cast(tf.cast(values, tf.bfloat16), tf.float32))


def test_a_model_made_anew_under_the_same_name():
    def make(seed):
        tf.keras.utils.set_random_seed(seed)
        return tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(2, use_bias=False)])

    model = make(0)

    def f(x):
        return model(x)

    held = batch_jacobian(f, **GRAPH)
    for seed in (0, 1):
        model = make(seed)
        np.testing.assert_allclose(held(BATCH)[3], tf.transpose(model.layers[0].kernel), rtol=1e-6)


def test_a_model_as_a_static_argument(network):
    held = value_and_gradient(lambda x, model: tf.reduce_sum(model(x, training=True) ** 2), **GRAPH)
    for change in (lambda model: None, flag):
        change(network)
        wanted = by_tape.gradient(lambda x: tf.reduce_sum(network(x, training=True) ** 2), BATCH)
        np.testing.assert_allclose(held(BATCH, network)[1], wanted, atol=1e-5)


# Threads.


@pytest.mark.dear
def test_threads_that_share_a_held_derivative():
    factor = [1.0]
    held = value_and_gradient(lambda x: factor[0] * x, **GRAPH)
    done, wrong = threading.Event(), []

    def call():
        while not done.is_set():
            slope = float(held(1.0)[1])
            if slope not in (1.0, 2.0):
                wrong.append(slope)

    threads = [threading.Thread(target=call) for _ in range(2)]
    for thread in threads:
        thread.start()
    for step in range(6):
        factor[0] = 1.0 + step % 2
        held(1.0)
    done.set()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert float(held(1.0)[1]) == factor[0] == 2.0


# Graphs.


def test_a_tensor_of_a_graph_is_read_through_a_closure():
    """It has a value in its own graph only: in another `tf.function` the derivative is traced anew."""
    scale = None
    held = value_and_gradient(lambda x: scale() * x**2, **GRAPH)

    def f(factor):
        nonlocal scale
        scale = lambda: factor  # noqa: E731
        return held(tf.constant(3.0))[1]

    def g(factor):
        nonlocal scale
        scale = lambda: factor  # noqa: E731
        return held(tf.constant(3.0))[1]

    assert float(tf.function(f)(tf.constant(1.0))) == 6.0
    assert float(tf.function(g)(tf.constant(2.0))) == 12.0
