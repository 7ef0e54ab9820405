"""Hessians by per-example factors: the same as by a pass for each weight, and compared at every call."""

import itertools
import sys
import warnings

from tapelab.derivatives import (
    FallbackWarning,
    MemoryLimitError,
    NotFiniteError,
    UnconnectedSourceError,
    costs,
    hessian,
)
from tapelab.optimize import newton
from tapelab.runtime import tf

import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
LAYERS = tf.keras.layers


def constant(*shape):
    return tf.constant(GENERATOR.normal(size=shape))


def variable(*shape):
    return tf.Variable(GENERATOR.normal(size=shape) / np.sqrt(np.prod(shape[:-1]) or 1))


def dense(*sizes):
    return [variable(*shape) for pair in itertools.pairwise(sizes) for shape in (pair, pair[1:])]


X, Y, LABELS, POSITIVE = constant(6, 4), constant(6, 2), tf.constant([0, 1, 1, 0, 1, 0]), tf.exp(constant(6))
SERIES, IMAGES = constant(6, 2, 4), constant(6, 4, 4, 2)
NET = dense(4, 7, 6, 2)
SHORT = dense(4, 7, 2)
SMALL = variable(4, 2)


def forward(h, variables=NET, activation=tf.tanh):
    while variables:
        w, b, *variables = variables
        h = h @ w + b
        h = activation(h) if variables else h
    return h


def squares(h, y=Y):
    return tf.reduce_mean((h - y) ** 2)


def with_activation(activation):
    return lambda x: squares(forward(x, activation=activation))


def entropies(x):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, forward(x))


layer_norm = LAYERS.LayerNormalization(dtype="float64")
batch_norm = LAYERS.BatchNormalization(dtype="float64")
for layer in (layer_norm, batch_norm):
    layer.build((6, 7))
dropout = LAYERS.Dropout(0.5, seed=0, dtype="float64")
scale, offset, squared, square_bias = variable(7), variable(7), variable(8, 8), variable(8)
entry, leave, table, counts = variable(4, 8), variable(8, 2), variable(5, 4), tf.constant([0, 1, 4, 4, 2, 1])
images_filter, after_images = variable(3, 3, 2, 12), dense(48, 8, 2)
wide, patch_filter = variable(4, 18), variable(2, 2, 2, 40)


def through(layer, **options):
    def loss(x):
        h = layer(tf.matmul(x, SHORT[0]) + SHORT[1], **options)
        return squares(tf.tanh(h) @ SHORT[2] + SHORT[3])

    return loss


def used_twice(x):
    h = tf.tanh(x @ entry)
    h = tf.tanh(h @ squared + square_bias)
    return squares(tf.tanh(h @ squared + square_bias) @ leave)


def transposed_and_residual(x):
    h = tf.tanh(x @ entry)
    h = h + tf.tanh(h @ squared + square_bias)
    return squares((h - tf.tanh(tf.matmul(h, squared, transpose_b=True))) @ leave)


def two_inputs_added(x):
    """One site for two products and a bias, whose inputs are each other's functions."""
    h = tf.tanh(x @ entry)
    return squares((tf.tanh(h @ squared + x @ entry - square_bias)) @ leave)


def scaled(x):
    h = x @ SHORT[0] + SHORT[1]
    return squares(tf.tanh(h * scale * tf.reduce_sum(h**2, 1, keepdims=True) + offset) @ SHORT[2] + SHORT[3])


def positions(x):
    """A layer at two positions, whose results meet within an example; shapes (6, 2, 4) and (12, 4)."""
    h = tf.tanh(tf.tensordot(x, SHORT[0], 1) + SHORT[1])
    h = h * tf.nn.softmax(h[:, :1] + h)
    return squares(tf.reduce_sum(h @ SHORT[2] + SHORT[3], 1))


def convolution(x):
    h = tf.tanh(tf.nn.conv2d(x, images_filter, 1, "VALID"))
    return squares(forward(tf.reshape(h, [6, -1]), after_images))


def convolution_inside(x):
    h = tf.reshape(tf.tanh(x @ wide), [6, 3, 3, 2])
    h = tf.tanh(tf.nn.conv2d(h, patch_filter, 2, [[0, 0], [0, 1], [0, 1], [0, 0]]))
    return tf.reduce_mean(h**3)


@tf.custom_gradient
def straight_through(x):
    """A sign whose gradient is that of tanh: matrices of second derivatives are not symmetric."""
    return tf.sign(x), lambda dy: dy * (1 - tf.tanh(x) ** 2)


@tf.custom_gradient
def clipping(x):
    """A gradient that depends on what comes back nonlinearly, example by example."""
    return x, lambda dy: dy * tf.math.rsqrt(1 + tf.reduce_sum(dy**2, 1, keepdims=True))


@tf.custom_gradient
def meeting(x):
    """A gradient in which examples meet, though they do not in the value."""
    return x, lambda dy: dy * tf.reduce_sum(x**2)


@tf.custom_gradient
def met_before(x):
    """The same, with a sum that the value's own graph has."""
    total = tf.reduce_sum(x**2)
    return x, lambda dy: dy * total


# Name → function, its sources, its argument, and how many directions there are instead of how many.
BY_FACTORS = {
    "tanh": (with_activation(tf.tanh), NET, X, "15 directions instead of 97"),
    "relu": (with_activation(tf.nn.relu), NET, X, "15 directions"),
    "swish": (with_activation(tf.nn.silu), NET, X, "15 directions"),
    "a straight-through gradient": (with_activation(straight_through), NET, X, "15 directions"),
    "sources in another order": (with_activation(tf.tanh), [NET[4], NET[1], NET[0], NET[2], NET[5], NET[3]], X, "15"),
    "cross-entropy": (lambda x: tf.reduce_mean(entropies(x)), NET, X, "15 directions"),
    "weights": (lambda x: tf.reduce_sum(POSITIVE * entropies(x)) / tf.reduce_sum(POSITIVE), NET, X, "15"),
    "parts of a sum": (
        lambda x: 3 - tf.nn.l2_loss(forward(x, SHORT)) / 4 + tf.reduce_sum(forward(x, SHORT) ** 3),
        SHORT,
        X,
        "18 directions",
    ),
    "used twice": (used_twice, [entry, squared, square_bias, leave], X, "26 directions instead of 120"),
    "transposed": (transposed_and_residual, [entry, squared, square_bias, leave], X, "26 directions instead of 120"),
    "two inputs": (two_inputs_added, [entry, squared, square_bias, leave], X, "18 directions instead of 120"),
    "scale and offset": (scaled, [*SHORT, scale, offset], X, "23 directions instead of 65"),
    "LayerNormalization": (through(layer_norm), [*SHORT, layer_norm.gamma, layer_norm.beta], X, "23 directions"),
    "positions": (positions, SHORT, SERIES, "18 directions instead of 51"),
    "a convolution": (convolution, [images_filter, *after_images], IMAGES, "58 directions instead of 626"),
    "a convolution inside": (convolution_inside, [wide, patch_filter], X, "by per-example factors"),
    "an embedding": (lambda n: squares(forward(tf.gather(table, n))), [table, *NET], counts, "20 rows of 1 of 7"),
    "not an embedding": (lambda n: squares(forward(tf.one_hot(n, 4, dtype=tf.float64))), NET, counts, "15 directions"),
    "a batch of one": (lambda x: squares(forward(x, SHORT), Y[:1]), SHORT, X[:1], "9 directions"),
    "a constant over the batch": (lambda x: squares(forward(x / tf.norm(x))), NET, X, "15 directions"),
    "batch statistics without gradient": (
        lambda x: squares(forward(x, SHORT) / tf.stop_gradient(tf.norm(forward(x, SHORT)))),
        SHORT,
        X,
        "18 directions",
    ),
}
BY_ROWS = {
    "a root of the mean": (lambda x: tf.sqrt(squares(forward(x))), NET, X, "Sqrt at"),
    "a product of sums": (lambda x: squares(forward(x)) * tf.reduce_sum(entropies(x)), NET, X, "Mul at"),
    "a maximum over the batch": (lambda x: tf.reduce_max(forward(x)), NET, X, "Max at"),
    "batch normalisation": (through(batch_norm, training=True), SHORT, X, "changes variables"),
    "a mean over the batch": (
        lambda x: squares(forward(x) - tf.reduce_mean(forward(x), 0)),
        NET,
        X,
        "not proved independent, because of",
    ),
    "attention over the batch": (
        lambda x: squares(tf.matmul(forward(x), forward(x), transpose_b=True) @ Y),
        NET,
        X,
        "MatMul at",
    ),
    "a nonlinear custom gradient": (with_activation(clipping), NET, X, "the custom gradient of IdentityN"),
    "a custom gradient over the batch": (with_activation(meeting), NET, X, "the custom gradient of IdentityN"),
    "a custom gradient with a sum": (with_activation(met_before), NET, X, "the custom gradient of IdentityN"),
    "a straight-through gradient, disordered": (with_activation(straight_through), NET[::-1], X, "custom gradient"),
    "weights that are computed": (lambda x: squares(x @ tf.tanh(SHORT[0]) @ SHORT[2]), SHORT[:1], X, "Tanh at"),
    "a penalty": (lambda x: squares(x @ entry @ leave) + tf.nn.l2_loss(entry), [entry], X, "L2Loss at"),
    "more units than weights": (lambda x: squares(x * variable_of_one), None, X[:, :2], "a pass for each weight"),
    "a product of weights": (lambda x: squares(x @ (entry @ leave)), [entry, leave], X, "MatMul at"),
}
variable_of_one = variable(1)


def by_rows(f, *args, monkeypatch, **options):
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys.modules["tapelab.derivatives.hessian"], "survey", lambda call: "switched off")
        warnings.simplefilter("ignore", FallbackWarning)  # convolutions go in a loop
        return hessian(f, compile="graph", packed=True, **options)(*args).numpy()


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["a root of the mean", "a straight-through gradient, disordered"])
def test_rows_are_what_they_were(name, monkeypatch):
    f, sources, x, _ = BY_ROWS[name]
    found = hessian(f, wrt=sources, compile="graph", packed=True)(x).numpy()
    assert relative(found, by_rows(f, x, wrt=sources, monkeypatch=monkeypatch)) < 1e-12


@pytest.mark.thorough
def test_a_packed_matrix_is_put_together_from_strips(monkeypatch):
    f = with_activation(tf.tanh)
    wanted = by_rows(f, X, wrt=NET, monkeypatch=monkeypatch)
    monkeypatch.setattr(costs, "STRIP", 97 * 14)  # two inputs of the first layer, with its 7 units
    matrix = hessian(f, wrt=NET, compile="graph", packed=True)
    assert relative(matrix(X).numpy(), wanted) < 1e-12


@pytest.mark.thorough
def test_blocks_structures_chunks_and_dtypes(monkeypatch):
    """Not packed, sources nested, a few rows at once, in float32, under XLA: the same numbers."""
    names = {"first": NET[:2], "rest": (NET[2], {"b": NET[3], "last": NET[4:]})}
    f = with_activation(tf.tanh)
    wanted = by_rows(f, X, wrt=NET, monkeypatch=monkeypatch)
    blocks = hessian(f, wrt=names, compile="graph", chunk_size=2)
    found = blocks(X)
    plan = blocks.plan(X)
    assert plan.way.startswith("by per-example factors: 15 directions instead of 97")
    assert (plan.passes, plan.chunk) == (15, 2)
    block = found["first"][0]["rest"][1]["last"][0]
    assert block.shape == (4, 7, 6, 2)
    assert relative(np.reshape(block, [28, 12]), wanted[:28, 83:95]) < 1e-12
    single = [tf.Variable(tf.cast(v, tf.float32)) for v in NET]
    x, y = tf.cast(X, tf.float32), tf.cast(Y, tf.float32)
    matrix = hessian(lambda x: squares(forward(x, single), y), wrt=single, packed=True)
    assert relative(matrix(x).numpy(), wanted) < 1e-5
    assert matrix.plan(x).compiled == "xla"
    assert "by per-example factors" in matrix.plan(x).way


@pytest.mark.thorough
def test_arguments_as_sources(monkeypatch):
    f = lambda parameters, x: squares(forward(x, parameters))  # noqa: E731
    values = [tf.convert_to_tensor(v) for v in SHORT]
    matrix = hessian(f, compile="graph", packed=True)
    assert relative(matrix(values, X).numpy(), by_rows(f, values, X, monkeypatch=monkeypatch)) < 1e-12
    assert "9 directions instead of 51" in matrix.plan(values, X).way


@pytest.mark.dear
def test_other_values_of_what_was_compiled_once(monkeypatch):
    """The comparison is of the values of each call."""
    f, matrix = with_activation(tf.nn.relu), hessian(with_activation(tf.nn.relu), wrt=NET, compile="graph", packed=True)
    matrix(0 * X)
    assert relative(matrix(X).numpy(), by_rows(f, X, wrt=NET, monkeypatch=monkeypatch)) < 1e-12


@pytest.mark.dear
def test_refusals_and_what_newton_takes():
    f = with_activation(tf.tanh)
    with pytest.raises(MemoryLimitError, match="hessian of 97 elements"):
        hessian(f, wrt=NET, packed=True, memory_limit=10_000)(X)
    with pytest.raises(UnconnectedSourceError):
        hessian(f, wrt=[*NET, entry], compile="graph")(X)
    with pytest.raises(NotFiniteError):
        hessian(f, wrt=NET, compile="graph", check_finite=True)(X * np.nan)
    variables = [tf.Variable(v) for v in SHORT]
    report = newton(lambda: squares(forward(X, variables)), wrt=variables, iterations=3)
    assert report.value < squares(forward(X, SHORT)).numpy() / 2


hidden = tf.function(lambda x: tf.tanh(x @ SHORT[0] + SHORT[1]))
IN_FUNCTIONS = {
    "the loss": tf.function(lambda x: squares(forward(x, SHORT))),
    "a layer": lambda x: squares(hidden(x) @ SHORT[2] + SHORT[3]),
    "a layer in a layer": tf.function(lambda x: squares(tf.function(hidden)(x) @ SHORT[2] + SHORT[3])),
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_functions_of_tensorflow_have_the_hessian_of_plain_ones(name):
    plain = hessian(lambda x: squares(forward(x, SHORT)), wrt=SHORT, compile="graph", packed=True)
    found = hessian(IN_FUNCTIONS[name], wrt=SHORT, compile="graph", packed=True)
    if name == "the loss":  # into functions that it calls, the search for uses does not look
        assert found.plan(X).way == plain.plan(X).way
        assert found.plan(X).way.startswith("by per-example factors: ")
    assert relative(found(X).numpy(), plain(X).numpy()) < 1e-12
