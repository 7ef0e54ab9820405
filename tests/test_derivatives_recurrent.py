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


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("what", TRANSFORMS)
def test_layers_that_loop_go_example_by_example_and_say_so(what, kind):
    layer, f = recurrent(kind, unroll=False)
    wrt = layer.trainable_variables
    transform = TRANSFORMS[what](f, wrt=wrt)
    with pytest.warns(FallbackWarning, match="rows at once: .* Give a recurrent layer of Keras unroll=True") as caught:
        right(what, f, wrt, transform(X))
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        transform(X)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
@pytest.mark.parametrize("what", TRANSFORMS)
def test_unrolled_layers_are_vectorised(what, kind):
    layer, f = recurrent(kind, unroll=True)
    wrt = layer.trainable_variables
    transform = TRANSFORMS[what](f, wrt=wrt)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        right(what, f, wrt, transform(X))
    assert transform.plan(X).way.endswith("vectorised")


PARTS = {
    "split unevenly": lambda w: tf.split(w, [1, 3]),
    "split along an axis of one": lambda w: [tf.squeeze(one, 0) for one in tf.split(tf.reshape(w, [1, 4]), 2, axis=1)],
    "unstacked": tf.unstack,
    "split twice": lambda w: [w, *tf.split(tf.split(w, 2)[1], 2)],
    "a part that is not used": lambda w: tf.split(w, 2)[1:],
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("kind", PARTS)
def test_clipped_sums_of_parts_of_a_variable(kind):
    w = tf.Variable([0.5, -1.0, 2.0, 3.0])
    x = tf.constant(np.cos(np.arange(12.0)).reshape(3, 4), tf.float32)

    def f(x):
        used = [x[:, -part.shape[-1] :] * part if part.shape.rank else x[:, :1] * part for part in PARTS[kind](w)]
        return tf.add_n([tf.reduce_sum(tf.sin(one), axis=-1) for one in used])

    rows = by_tape.of_each_example(f, [w], x)[0]
    norms = np.linalg.norm(rows, axis=1)
    sums, found = clipped_gradient(f, wrt=w, max_norm=0.05)(x)
    np.testing.assert_allclose(found, norms, rtol=1e-5)
    np.testing.assert_allclose(sums, np.minimum(1, 0.05 / norms) @ rows, rtol=1e-5, atol=1e-7)
