"""Per-example gradients and clipped sums of recurrent layers: right with a loop and without, and what is said of it."""

import warnings

from tapelab.derivatives import FallbackWarning, clipped_gradient, per_example_gradients
from tapelab.runtime import tf

import by_tape
import keras
import numpy as np
import pytest

X = tf.constant(np.sin(np.arange(40.0)).reshape(5, 4, 2), tf.float32)
TRANSFORMS = {
    "rows": per_example_gradients,
    "clipped": lambda f, **options: clipped_gradient(f, max_norm=0.05, **options),
}


def recurrent(kind, unroll):
    keras.utils.set_random_seed(3)
    layer = getattr(keras.layers, kind)(3, unroll=unroll)
    layer.build(X.shape)
    return layer, lambda x: tf.reduce_sum(layer(x) ** 2, axis=-1)


def right(what, f, wrt, found):
    rows = by_tape.of_each_example(f, wrt, X)
    if what == "clipped":
        norms = np.sqrt(sum(np.sum(row**2, axis=tuple(range(1, row.ndim))) for row in rows))
        assert (norms > 0.05).any()
        factors = np.minimum(1, 0.05 / norms)
        np.testing.assert_allclose(found[1], norms, rtol=1e-4)
        found, rows = found[0], [np.tensordot(factors, row, 1) for row in rows]
    for ours, theirs in zip(found, rows, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
@pytest.mark.parametrize("what", TRANSFORMS)
def test_a_loop_is_told_once_with_what_gains(what, kind):
    layer, f = recurrent(kind, unroll=False)
    wrt = layer.trainable_variables
    transform = TRANSFORMS[what](f, wrt=wrt)
    with pytest.warns(FallbackWarning, match="Give a recurrent layer of Keras unroll=True") as caught:
        right(what, f, wrt, transform(X))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform(X)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["LSTM", "GRU", "SimpleRNN"])
def test_clipped_sums_of_unrolled_layers_take_one_backward_pass(kind):
    """The first state is zeros, whatever the examples are: its product with the weights adds nothing."""
    layer, f = recurrent(kind, unroll=True)
    wrt = layer.trainable_variables
    transform = clipped_gradient(f, wrt=wrt, max_norm=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right("clipped", f, wrt, transform(X))
    assert transform.plan(X).way == "one backward pass"


PARTS = {
    "split": lambda w: tf.split(w, 2),
    "split unevenly": lambda w: tf.split(w, [1, 3]),
    "split along an axis of one": lambda w: [tf.squeeze(one, 0) for one in tf.split(tf.reshape(w, [1, 4]), 2, axis=1)],
    "unstacked": tf.unstack,
    "split twice": lambda w: [w, *tf.split(tf.split(w, 2)[1], 2)],
    "a part that is not used": lambda w: tf.split(w, 2)[1:],
}


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("kind", PARTS)
def test_clipped_sums_of_parts_of_a_variable_take_one_backward_pass(kind):
    w = tf.Variable([0.5, -1.0, 2.0, 3.0])
    x = tf.constant(np.cos(np.arange(12.0)).reshape(3, 4), tf.float32)

    def f(x):
        used = [x[:, -part.shape[-1] :] * part if part.shape.rank else x[:, :1] * part for part in PARTS[kind](w)]
        return tf.add_n([tf.reduce_sum(tf.sin(one), axis=-1) for one in used])

    transform = clipped_gradient(f, wrt=w, max_norm=0.05)
    assert transform.plan(x).way == "one backward pass"
    rows = np.stack([by_tape.of_each_example(f, [w], x)[0]])[0]
    norms = np.linalg.norm(rows, axis=1)
    sums, found = transform(x)
    np.testing.assert_allclose(found, norms, rtol=1e-5)
    np.testing.assert_allclose(sums, np.minimum(1, 0.05 / norms) @ rows, rtol=1e-5, atol=1e-7)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("kind", ["columns", "a product with a part"])
def test_parts_without_a_rule_go_example_by_example(kind):
    w = tf.Variable([[1.0, -2.0], [0.5, 3.0]])
    x = tf.constant(np.cos(np.arange(6.0)).reshape(3, 2), tf.float32)

    def f(x):
        if kind == "columns":
            left, right = tf.split(w, 2, axis=1)
            return tf.reduce_sum(tf.sin(x[:, :1] * tf.transpose(left) + x @ right), axis=-1)
        return tf.reduce_sum(tf.sin(x[:, :1] @ tf.split(w, 2)[1]), axis=-1)

    with pytest.warns(FallbackWarning, match="used where there is no rule"):
        sums = clipped_gradient(f, wrt=w, max_norm=1e6)(x)[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(f(x))
    np.testing.assert_allclose(sums, tape.gradient(loss, w), rtol=1e-5)


def test_a_use_that_begins_with_one_state_for_each_example():
    """The rows of the constant are the examples' in the first function, and nobody's in the second."""
    w = tf.Variable([0.5, -1.0])
    x = tf.constant(np.cos(np.arange(6.0)).reshape(3, 2), tf.float32)
    constant = tf.constant(np.sin(np.arange(6.0)).reshape(3, 2), tf.float32)

    def apart(x):
        return tf.reduce_sum(x * tf.sin(constant + w), axis=-1)

    def together(x):
        return tf.reduce_sum(x * tf.reduce_sum(tf.sin(constant + w), axis=0), axis=-1)

    def norms(f):
        with tf.GradientTape(persistent=True) as tape:
            losses = f(x)
        return np.linalg.norm(tape.jacobian(losses, w, experimental_use_pfor=False), axis=1)

    transform = clipped_gradient(apart, wrt=w, max_norm=1e6)
    assert transform.plan(x).way == "one backward pass"
    np.testing.assert_allclose(transform(x)[1], norms(apart), rtol=1e-5)
    with pytest.warns(FallbackWarning, match="used where there is no rule: AddV2"):
        found = clipped_gradient(together, wrt=w, max_norm=1e6)(x)[1]
    np.testing.assert_allclose(found, norms(together), rtol=1e-5)


def test_a_product_with_a_constant_that_is_not_zero_counts():
    w = tf.Variable([[1.0, -2.0], [0.5, 3.0]])
    constant = np.array([[0.0, 1.0]], np.float32)

    def f(x):
        return tf.reduce_sum((x @ w + constant @ w) ** 2, axis=-1)

    x = tf.constant([[1.0, 2.0], [0.0, -1.0], [3.0, 1.0]])
    with pytest.warns(FallbackWarning, match="used where there is no rule: MatMul"):
        sums = clipped_gradient(f, wrt=w, max_norm=1e6)(x)[0]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(f(x))
    np.testing.assert_allclose(sums, tape.gradient(loss, w), rtol=1e-5)
