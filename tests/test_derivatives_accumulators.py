"""A `tf.autodiff.ForwardAccumulator` inside a function: its way back is right, refused or warned of."""

import warnings

from tapelab.derivatives import jvp, value_and_gradient
from tapelab.runtime import tf

import numpy as np
import pytest


def times_its_product(f):
    def product(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = f(x)
        return tf.reduce_sum(accumulator.jvp(y) * x)

    return product


INSIDE = {
    "function": tf.function(lambda x: tf.sin(x) * x, autograph=False),
    "loop": lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y) * x), [0, x])[1],
    "conditional": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x) * x, lambda: x),
    "vectorized_map": lambda x: tf.vectorized_map(lambda row: tf.sin(row) * row, x),
    "operations": lambda x: tf.sin(x) * x,
}


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("compile", ["auto", "eager"])
@pytest.mark.parametrize("name", INSIDE)
def test_an_accumulator_around_what_tensorflow_loses_is_right_or_refused_or_warned_of(name, compile):
    f, x = INSIDE[name], tf.constant([0.7, 1.1], tf.float64)

    def written_out(x):
        return tf.reduce_sum(jvp(f)(x, tangents=tf.ones_like(x))[1] * x)

    right = value_and_gradient(written_out)(x)[1]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            found = value_and_gradient(times_its_product(f), compile=compile)(x)[1]
        except (LookupError, RuntimeError, TypeError, tf.errors.InternalError):
            assert name not in ("operations", "vectorized_map") or (name, compile) == ("vectorized_map", "eager")
            return
    told = any("ForwardAccumulator does that" in str(warning.message) for warning in caught)
    assert told or np.allclose(found, right, rtol=1e-12)
    assert not (told and name == "operations")
