"""The patterns of sparse Jacobians, by kind of operation: they hold for every value, and most are exact."""

from tapelab.derivatives import sparse_jacobian
from tapelab.runtime import tf

import numpy as np
import pytest

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
EXACT = {
    "elementwise": (6, lambda x: tf.sin(x) * x + tf.sqrt(tf.exp(x)) - x**2 / tf.cosh(x) + tf.math.bessel_i0e(x)),
    "broadcasting": (6, lambda x: x[:, None] * tf.roll(x, 2, 0)[None] + x[0]),
    "masks": (6, lambda x: x * NUMBERS + tf.where(NUMBERS > 1, tf.roll(x, 1, 0), 2 * x)),
    "where": (6, lambda x: tf.where(x > 0, 2 * x, tf.sin(tf.roll(x, 1, 0)))),
    "gather": (6, lambda x: tf.gather(x, [3, 0, 0]) * tf.gather_nd(x, [[1], [2], [3]])),
    "gather along an axis": ((3, 4), lambda x: tf.gather(x, [1, 1, 3], axis=1)),
    "gather in batches": ((3, 4), lambda x: tf.gather(x, tf.constant([[0, 1], [2, 2], [3, 0]]), batch_dims=1)),
    "slices": ((3, 4), lambda x: tf.concat([x[::2, 1:3], x[1:, -2:] ** 2], 0)),
    "stacks": ((3, 4), lambda x: tf.stack([x[0] * x[1], tf.reverse(x, [1])[2]], axis=1)),
    "padding": ((3, 4), lambda x: tf.pad(x, [[1, 0], [2, 1]]) + tf.pad(x, [[1, 0], [2, 1]], "SYMMETRIC")[::-1]),
    "moves": ((3, 4), lambda x: tf.roll(x, [1, 2], [0, 1]) * tf.tile(x[:1], [3, 1]) + tf.reshape(x, [3, 4])),
    "transposes": ((3, 4), lambda x: tf.transpose(tf.reshape(x, [4, 3])) + tf.stack(tf.unstack(x, axis=1), axis=1)),
    "sums": ((3, 4), lambda x: tf.reduce_sum(x, 1, keepdims=True) * tf.reduce_mean(x, 0)[:2] + tf.norm(x[0])),
    "scans": ((3, 4), lambda x: tf.cumsum(x, 1) + tf.cumsum(x, 0, exclusive=True, reverse=True)),
    "product with a matrix": ((2, 6), lambda x: x @ A),
    "product with a matrix of holes": ((2, 6), lambda x: x @ tf.constant(HOLES)),
    "product from the left": ((4, 3), lambda x: tf.matmul(HOLES, x) + tf.matmul(A, tf.transpose(x), transpose_b=True)),
    "product with itself": ((3, 4), lambda x: tf.matmul(x, x, transpose_b=True)),
    "products in batches": ((2, 2, 4), lambda x: tf.matmul(x, HOLES, transpose_b=True) + x @ tf.ones([4, 6], x.dtype)),
    "sparse matrix": ((4, 3), lambda x: tf.sparse.sparse_dense_matmul(MATRIX, x)),
    "sparse matrix, transposed": ((6, 2), lambda x: tf.sparse.sparse_dense_matmul(MATRIX, x, adjoint_a=True)),
    "einsum": ((2, 2, 4), lambda x: tf.einsum("bij,bkj->bik", x, x) + tf.einsum("...ij,jk->...ik", x, A[:4, :2])),
    "einsum with holes": ((2, 2, 4), lambda x: tf.einsum("bij,kj->kib", x, HOLES)),
    "convolution": (24, lambda x: tf.nn.conv2d(image(x), FILTER, 1, "SAME")),
    "stencil": (8, lambda x: tf.nn.conv1d(x[None, :, None], tf.constant([[[1.0]], [[0]], [[2]]], x.dtype), 1, "SAME")),
    "convolution with holes": (24, lambda x: tf.nn.conv2d(image(x), HOLED, [1, 2], "VALID")),
    "convolution, padded": (24, lambda x: tf.nn.conv2d(image(x), HOLED, 2, [[0, 0], [1, 2], [2, 1], [0, 0]])),
    "convolution by channels": (24, lambda x: tf.nn.depthwise_conv2d(image(x), HOLED[:2, :2], [1] * 4, "SAME")),
    "convolution by its filter": ((2, 2, 2, 3), lambda x: tf.nn.conv2d(image(tf.ones(24, x.dtype)), x, 1, "VALID")),
    "transposed convolution": (24, lambda x: tf.nn.conv2d_transpose(image(x), HOLED.swapaxes(2, 3), [1, 8, 6, 4], 2)),
    "pooling": (24, lambda x: tf.nn.avg_pool2d(image(x), [2, 3], [2, 1], "SAME")),
    "segments": (6, lambda x: tf.reshape(tf.math.segment_sum(x**2, [0, 0, 1, 1, 1, 3]) * 2, [4])),
    "unsorted segments": (6, lambda x: tf.math.unsorted_segment_sum(x, [1, 0, 2, 1, -1, 0], 4)),
    "scatter": (6, lambda x: tf.scatter_nd([[1], [3], [1]], x[:3], [6]) + tf.tensor_scatter_nd_add(x, [[5]], x[:1])),
    "softmax": ((3, 4), lambda x: tf.nn.softmax(x) * tf.nn.log_softmax(x[::-1])),
    "linear algebra": ((2, 2, 2), lambda x: tf.linalg.inv(x + 4 * tf.eye(2, dtype=x.dtype)) * tf.linalg.det(x)[0]),
    "solving": ((3, 2), lambda x: tf.linalg.solve(A[:3, :3], x) + tf.linalg.triangular_solve(A[1:4, 1:4], x)),
    "diagonals": (4, lambda x: tf.linalg.diag(x) @ tf.linalg.band_part(A[:4], 0, 1)),
    "normalisation": ((4, 3), lambda x: (x - tf.nn.moments(x, [1], keepdims=True)[0]) ** 2),
    "fft": (4, lambda x: tf.math.real(tf.signal.fft(tf.complex(x, x)))),
    "loop": (6, turns),
    "map": (6, lambda x: tf.map_fn(lambda row: row[0] * tf.sin(row[1]), tf.reshape(x, [3, 2]))),
    "scan": (4, lambda x: tf.scan(lambda a, b: a * b + 1.0, x)),
    "calls": (6, lambda x: inner(x) + tf.function(inner)(x[::-1])),
    "branches": (6, two_branches),
    "stopped": (6, lambda x: tf.stop_gradient(tf.reduce_sum(x)) * x + tf.round(tf.reduce_max(x))),
    "custom gradient": (6, lambda x: tf.nn.silu(x) + tf.roll(straight_through(x), 1, 0)),
}
# Where it depends on values which elements count.
AT_MOST = {
    "gather by values": (6, lambda x: tf.gather(x, tf.argsort(x)[:2])),
    "gather elements by values": ((2, 4), lambda x: tf.gather_nd(x, tf.cast(x[:, :1] > 0, tf.int32))),
    "largest": ((3, 4), lambda x: tf.reduce_max(x, 1) * tf.sort(x, axis=0)[0, 0]),
    "max pooling": (24, lambda x: tf.nn.max_pool2d(image(x), 2, 2, "VALID")),
    "scatter by values": (4, lambda x: tf.scatter_nd(tf.cast(x > 0, tf.int32)[:, None], x, [2])),
    "segments by values": (4, lambda x: tf.math.unsorted_segment_sum(x, tf.cast(x > 0, tf.int32), 2)),
    "loop by values": (4, lambda x: tf.while_loop(lambda y: tf.reduce_sum(y) < 9, lambda y: [y + 1.5], [x])[0]),
    "unknown size": (5, lambda x: tf.reduce_sum(tf.boolean_mask(x, x > 0)) * x[:2]),
    "no rule": (3, lambda x: tf.math.polygamma(tf.constant(1, x.dtype), tf.abs(tf.linalg.expm(x[:, None] * x)))),
}


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


@pytest.mark.thorough(keep=8, dear=3)
@pytest.mark.parametrize("name", EXACT)
def test_patterns_are_exact(name):
    shape, f = EXACT[name]
    both = name in ("where", "branches")  # f(x) takes one side, f(-x) the other
    check((lambda x: f(x) + 3 * f(-x)) if both else f, shape, exact=True)


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", AT_MOST)
def test_patterns_hold_for_every_value(name):
    shape, f = AT_MOST[name]
    check(f, shape, exact=False)
