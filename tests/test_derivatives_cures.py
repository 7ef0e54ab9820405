"""Where TensorFlow's derivatives are wrong and tapelab's right: the mechanism."""

from tapelab.derivatives import (
    jvp,
    value_and_gradient,
)
from tapelab.runtime import tf

import numpy as np
import pytest

LOG2 = np.log(2.0)
X = np.zeros(3)


def f(x):
    """Σ xlogy(x, 2) has the gradient log 2 everywhere; TensorFlow's is 0 at x = 0."""
    return tf.reduce_sum(tf.math.xlogy(x, tf.constant(2.0, x.dtype)))


@tf.function
def traced_before(x):
    return f(x)


def plain(function, x=X):
    """By a tape of TensorFlow's own."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x).numpy()


@tf.function
def inside_a_loop(x):
    total = tf.zeros([], x.dtype)
    for i in tf.range(3):
        total += f(x[i : i + 1])
    return total


@tf.function
def inside_a_branch(x):
    return traced_before(x) if tf.reduce_sum(x) < 1 else -f(x)


plain(traced_before)
plain(inside_a_loop)
plain(inside_a_branch)
layer = tf.keras.layers.Lambda(f, dtype="float64")
CONCRETE = traced_before.get_concrete_function(tf.TensorSpec([3], tf.float64))
WITHIN = {
    "itself": f,
    "a function traced before": lambda x: traced_before(x),
    "a concrete function": lambda x: CONCRETE(x),
    "a loop": inside_a_loop,
    "a branch": inside_a_branch,
    "a Keras layer": lambda x: layer(x),
    "rows of map_fn": lambda x: tf.reduce_sum(tf.map_fn(f, x[:, None])),
    "rows of vectorized_map": lambda x: tf.reduce_sum(tf.vectorized_map(f, x[:, None])),
    "nested functions": tf.function(lambda x: tf.function(f)(x)),
    "a function compiled by XLA": tf.function(f, jit_compile=True),
}


@pytest.mark.parametrize("compile", ["auto", "graph", "eager"])
@pytest.mark.parametrize("where", WITHIN)
def test_where(where, compile):
    g = WITHIN[where]
    assert abs(plain(g)).max() == 0, "TensorFlow is right here"
    transform = value_and_gradient(g, compile=compile)
    for _ in range(2):
        np.testing.assert_allclose(transform(X)[1], [LOG2] * 3, rtol=1e-12)
    assert "tf.math.xlogy: linear in x at x = 0 too" in str(transform.plan(X))
    np.testing.assert_allclose(jvp(g, compile=compile)(X + 1, X)[1], 3 * LOG2, rtol=1e-12)
    assert abs(plain(g)).max() == 0, "a plain tape sees our gradient"
