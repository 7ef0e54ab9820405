"""The patterns of sparse Jacobians, by kind of operation: they hold for every value, and most are exact."""

from tapelab.derivatives import sparse_jacobian
from tapelab.runtime import tf

import numpy as np
import pytest
from data_tables import read_table

GENERATOR = np.random.default_rng(0)
A = GENERATOR.normal(size=(6, 4))
HOLES = A * (np.arange(24).reshape(6, 4) % 3 == 0)
FILTER = GENERATOR.normal(size=(3, 3, 2, 4))
HOLED = FILTER * (np.arange(72).reshape(FILTER.shape) % 5 == 0)
MATRIX = tf.sparse.from_dense(HOLES)
NUMBERS = tf.constant([1.0, 0, 2, 0, 3, 0], tf.float64)


def by_rows(f, x):
    """The Jacobian, a backward pass for each row, as a matrix."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
        parts = tf.unstack(tf.reshape(y, [-1]))
    rows = [tape.gradient(part, x, unconnected_gradients="zero") for part in parts]
    return np.array([tf.convert_to_tensor(row).numpy().ravel() for row in rows])


def image(x):
    return tf.reshape(x, [1, 4, 3, 2])


@tf.function
def inner(x):
    return tf.sin(x) * x[::-1]


def turns(x):
    y = x
    for _ in tf.range(2):
        y = tf.sin(y) + 0.1 * tf.roll(y, 1, 0)
    return y


def two_branches(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: 2 * x, lambda: tf.roll(x, 1, 0))


@tf.custom_gradient
def straight_through(x):
    return tf.round(x), lambda upstream: upstream * tf.reverse(tf.ones_like(x), [0])


# What the pattern is exactly: where there is an entry for some values.
EXACT = read_table("sparse_patterns", "EXACT", globals())
# Where it depends on values which elements count.
AT_MOST = read_table("sparse_patterns", "AT_MOST", globals())


def check(f, shape, exact):
    transform = sparse_jacobian(f, compile="eager", check_pattern=False)
    seen = 0
    for scale in (1, 2, 0.5):
        x = tf.constant(scale * GENERATOR.normal(size=shape))
        true = by_rows(f, x)
        seen = seen | (np.abs(true) > 0)
        np.testing.assert_allclose(tf.sparse.to_dense(transform(x)), true, atol=1e-12, rtol=1e-12)
    pattern = transform.plan(x).pattern.toarray()
    assert not (seen & ~pattern).any()
    if exact:
        assert not (pattern & ~seen).any()
        assert not transform.plan(x).dense


@pytest.mark.thorough(keep=20)
@pytest.mark.parametrize("name", EXACT)
def test_patterns_are_exact(name):
    shape, f = EXACT[name]
    both = name in ("where", "branches")  # f(x) takes one side, f(-x) the other
    check((lambda x: f(x) + 3 * f(-x)) if both else f, shape, exact=True)


@pytest.mark.thorough(keep=6)
@pytest.mark.parametrize("name", AT_MOST)
def test_patterns_hold_for_every_value(name):
    shape, f = AT_MOST[name]
    check(f, shape, exact=False)
