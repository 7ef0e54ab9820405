"""Second derivatives through normalisation, where TensorFlow errs: within 1e-6 of central differences."""

import threading
from types import SimpleNamespace

from tapelab.derivatives import (
    batch_jacobian,
    hessian,
    hvp,
    jacobian,
    jvp,
    per_example_gradients,
    value_and_gradient,
    vjp,
)
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
X, V, WEIGHTS = (GENERATOR.normal(size=(3, 4)) for _ in range(3))
LAYERS = tf.keras.layers
layer_norm = LAYERS.LayerNormalization(dtype="float64")
group_norm = LAYERS.GroupNormalization(2, dtype="float64")
batch_norm = LAYERS.BatchNormalization(dtype="float64")
images_norm = LAYERS.BatchNormalization(dtype="float64")


def variance(x):
    return tf.reduce_sum(tf.nn.moments(x, [1])[1] ** 2)


def images(x):
    return tf.reshape(x, [3, 2, 1, 2])


FUNCTIONS = {
    "moments": variance,
    "compat.v1": lambda x: tf.reduce_sum(tf.compat.v1.nn.moments(x, [0], keep_dims=True)[1] ** 2),
    "LayerNormalization": lambda x: tf.reduce_sum(layer_norm(x) ** 2 * WEIGHTS),
    "GroupNormalization": lambda x: tf.reduce_sum(group_norm(x) ** 2 * WEIGHTS),
    "BatchNormalization": lambda x: tf.reduce_sum(batch_norm(x, training=True) ** 3 * WEIGHTS),
    "in 4-D": lambda x: tf.reduce_sum(images_norm(images(x), training=True) ** 3 * images(WEIGHTS)),
}


def gradient(f):
    return lambda x: by_tape.gradient(f, x)


def differences(f):
    return numerical_jacobian(gradient(f), X)


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize(
    ("name", "compile"),
    [*[(name, "graph") for name in FUNCTIONS], *[("LayerNormalization", compile) for compile in ("auto", "eager")]],
)
def test_hessians(name, compile):
    f = FUNCTIONS[name]
    wanted = differences(f)
    assert relative(by_tape.hessian(f, X), wanted) > 1e-2, "TensorFlow is right here"
    transform = hessian(f, compile=compile)
    assert relative(transform(X), wanted) < 1e-6
    assert "the mean in the variance is differentiated too" in str(transform.plan(X))
    value, first = value_and_gradient(f, compile=compile)(X)
    np.testing.assert_allclose(value, f(tf.constant(X)), rtol=1e-12)
    np.testing.assert_allclose(first, by_tape.gradient(f, X), rtol=1e-9, atol=1e-12)


def of_a_gradient(transform):
    """A transform of a first order, applied to a gradient that the function computes by a tape of its own."""
    return lambda f: transform(gradient(f), compile="graph")


COMPOSED = {
    "hvp": lambda f: hvp(f, compile="graph")(X, vector=V),
    "jvp": lambda f: of_a_gradient(jvp)(f)(X, tangents=V)[1],
    "vjp": lambda f: of_a_gradient(vjp)(f)(X, cotangents=V)[1],  # the Hessian is symmetric
    "jacobian": lambda f: np.tensordot(jacobian(gradient(f), mode="reverse", compile="graph")(X), V, 2),
    "jacobian of ours": lambda f: np.tensordot(
        jacobian(lambda x: value_and_gradient(f, compile="graph")(x)[1], compile="graph")(X), V, 2
    ),
    "a plain tape around ours": lambda f: outer_tape(value_and_gradient(f)),
}


def outer_tape(transform):
    return by_tape.gradient(lambda x: tf.reduce_sum(transform(x)[1] * V), X)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("how", COMPOSED)
def test_products_and_gradients_of_gradients(how):
    f = FUNCTIONS["LayerNormalization"]
    assert relative(COMPOSED[how](f), np.tensordot(differences(f), V, 2)) < 1e-6


@pytest.mark.dear
def test_a_gradient_penalty_by_example():
    """Each row's penalty, the squared norm of its gradient, by a factor of the columns."""

    def penalty(w, x):
        return tf.reduce_sum(gradient(lambda x: tf.reduce_sum(layer_norm(x * w) ** 2 * WEIGHTS[0]))(x) ** 2)

    w = 1 + 0.1 * V[0]
    found = per_example_gradients(penalty, compile="graph")(w, X)
    for i in range(3):
        assert relative(found[i], numerical_jacobian(lambda w, i=i: penalty(tf.constant(w), X[i : i + 1]), w)) < 1e-6
    # The batch's rows do not depend on each other.
    rows = lambda x, w: gradient(lambda x: tf.reduce_sum(layer_norm(x) ** 2 * w))(x)  # noqa: E731
    blocks = batch_jacobian(rows, compile="graph")(X, WEIGHTS)
    assert relative(blocks[1], differences(FUNCTIONS["LayerNormalization"])[1, :, 1]) < 1e-6


def test_the_learners_own_stop_stays():
    def f(x):
        return tf.reduce_sum(tf.math.squared_difference(x, tf.stop_gradient(tf.reduce_mean(x))))

    np.testing.assert_allclose(hessian(f, compile="graph")(X[0]), 2 * np.eye(4), atol=1e-12)


@pytest.mark.dear
def test_what_was_traced_before_is_refused(tmp_path):
    saved = tf.Module()
    saved.f = tf.function(variance, input_signature=[tf.TensorSpec([3, 4], tf.float64)])
    tf.saved_model.save(saved, tmp_path)
    loaded = tf.saved_model.load(tmp_path)
    x = tf.constant(X)
    concrete = tf.function(variance).get_concrete_function(tf.TensorSpec([3, 4], tf.float64))
    traced = tf.function(variance)
    traced(x)
    inside = SimpleNamespace(f=traced)
    within = lambda x: inside.f(x)  # noqa: E731
    for f, compile in ((loaded.f, "graph"), (lambda x: 2 * concrete(x), "eager"), (within, "auto")):
        with pytest.raises(ValueError, match=r"normalisation layer.*Python function"):
            hessian(f, compile=compile)(x)
        np.testing.assert_allclose(value_and_gradient(f, compile="graph")(x)[1], gradient(f)(x), rtol=1e-9)
    for f in (traced, lambda x: traced(x)):  # its Python function is what is called, where it is named
        assert relative(hessian(f)(x), differences(variance)) < 1e-6


def test_other_threads_and_later_calls_see_tensorflows_own():
    from tensorflow.python.ops import nn_impl

    before, seen = nn_impl.moments, []

    def stops():
        graph = tf.function(variance).get_concrete_function(tf.TensorSpec([3, 4], tf.float64)).graph
        return "StopGradient" in {operation.type for operation in graph.get_operations()}

    def f(x):
        thread = threading.Thread(target=lambda: seen.append(stops()))
        thread.start()
        thread.join()
        seen.append(stops())
        return variance(x)

    value_and_gradient(f, compile="graph")(X)
    assert seen[:2] == [True, False]
    assert nn_impl.moments is before
    assert stops()
