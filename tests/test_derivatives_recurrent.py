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
@pytest.mark.parametrize("kind", ["LSTM", "SimpleRNN"])
def test_clipped_sums_of_unrolled_layers_take_one_backward_pass(kind):
    """The first state is zeros, whatever the examples are: its product with the weights adds nothing."""
    layer, f = recurrent(kind, unroll=True)
    wrt = layer.trainable_variables
    transform = clipped_gradient(f, wrt=wrt, max_norm=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right("clipped", f, wrt, transform(X))
    assert transform.plan(X).way == "one backward pass"


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
