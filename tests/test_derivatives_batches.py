"""Batch Jacobians, their check for independence, and per-example gradients."""

from tapelab.derivatives import (
    batch_jacobian,
    clipped_gradient,
    per_example_gradients,
    per_example_norms,
    value_and_gradient,
)
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((7, 5))
W = 0.5 * GENERATOR.standard_normal((5, 6))


def independent(x):
    return tf.nn.elu(x @ W)


def numerical_blocks(f, x):
    """(batch, outs, ins), each example on its own."""
    return np.stack([numerical_jacobian(lambda row: f(tf.constant(row[np.newaxis]))[0], example) for example in x])


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("mode", ["forward", "reverse"])
@pytest.mark.parametrize("chunk_size", [None, 4])
def test_blocks_agree_with_central_differences(mode, chunk_size):
    blocks = batch_jacobian(independent, mode=mode, chunk_size=chunk_size)(X)
    assert blocks.shape == (7, 6, 5)
    np.testing.assert_allclose(blocks, numerical_blocks(independent, X), atol=1e-8)


def test_nested_sources_and_results_and_arguments_without_a_batch():
    def f(inputs, w):
        return {"a": tf.tanh(inputs["x"] @ w) * inputs["s"][:, tf.newaxis], "b": tf.reduce_sum(inputs["x"] ** 3, 1)}

    s = GENERATOR.standard_normal(7)
    blocks = batch_jacobian(f)({"x": X, "s": s}, W)
    assert tf.nest.map_structure(lambda block: tuple(block.shape), blocks) == {
        "a": {"x": (7, 6, 5), "s": (7, 6)},
        "b": {"x": (7, 5), "s": (7,)},
    }
    np.testing.assert_allclose(blocks["a"]["s"], np.tanh(X @ W), atol=1e-12)
    np.testing.assert_allclose(blocks["b"]["x"], 3 * X**2, atol=1e-12)
    assert not np.any(blocks["b"]["s"])
    wanted = numerical_blocks(lambda x: tf.tanh(x @ W), X) * s[:, None, None]
    np.testing.assert_allclose(blocks["a"]["x"], wanted, atol=1e-8)


def batch_norm(x):
    mean, variance = tf.nn.moments(x, [0])
    return tf.nn.elu(((x - mean) / tf.sqrt(variance + 1e-3)) @ tf.cast(W, x.dtype))


def attention_over_the_batch(x):
    return tf.nn.softmax(x @ tf.transpose(x)) @ x


def minus_the_mean(x):
    return x - tf.reduce_mean(x, axis=0)


def the_last_two_meet(x):
    return tf.concat([x[:-2], x[-2:-1] * (1 + 3e-2 * x[-1:]), x[-1:]], axis=0)


SCALES = np.array([1e4, 1.0, 1.0, 1.0, 1e4])


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("depth", [4, 30])
def test_rounding_in_a_deep_network_is_not_taken_for_coupling(depth, normalise):
    generator = np.random.default_rng(depth)
    layers = [tf.constant(1.5 * generator.standard_normal((24, 24)) / 24**0.5, tf.float32) for _ in range(depth)]

    def f(x):
        for layer in layers:
            if normalise:
                x -= tf.reduce_mean(x, 1, keepdims=True)
                x *= tf.math.rsqrt(tf.reduce_mean(x**2, 1, keepdims=True) + 1e-5)
            x = tf.tanh(x @ layer)
        return x

    x = tf.constant(generator.standard_normal((32, 24)), tf.float32)
    assert batch_jacobian(f, compile="eager")(x).shape == (32, 24, 24)


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: tf.sin(x) ** 2 + tf.cos(x) ** 2,  # constant: what is left of its derivative is rounding error
        lambda x: tf.nn.softmax(40 * x),
        lambda x: (x - tf.reduce_mean(x, 1, keepdims=True)) / tf.math.reduce_std(x, 1, keepdims=True),
        lambda x: 1e-9 * tf.tanh(x) + 1e3 * x,
        lambda x: tf.nn.relu(x - 10.0),
    ],
)
def test_rounding_is_not_taken_for_coupling(f):
    for dtype in (tf.float32, tf.float64):
        assert batch_jacobian(f, compile="graph")(tf.constant(X, dtype)).shape == (7, 5, 5)


def test_one_example_and_none():
    assert batch_jacobian(independent)(X[:1]).shape == (1, 6, 5)
    assert batch_jacobian(independent, compile="graph")(X[:0]).shape == (0, 6, 5)


def test_an_argument_with_a_batch_axis_goes_with_its_example():
    weights = GENERATOR.standard_normal((7, 5))
    blocks = batch_jacobian(lambda x, w: (x * w) ** 2)(X, weights)
    np.testing.assert_allclose(blocks, np.eye(5) * (2 * X * weights**2)[:, None], atol=1e-12)


# Per-example gradients.


@pytest.fixture(scope="module")
def model():
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    return tf.keras.Sequential(
        [tf.keras.Input((6, 6, 1)), layers.Conv2D(2, 3, activation="tanh"), layers.Flatten(), layers.Dense(3)]
    )


IMAGES = GENERATOR.standard_normal((5, 6, 6, 1)).astype(np.float32)
LABELS = np.array([0, 2, 1, 1, 0])


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("reduced", "size"), [(True, None), (False, 2)])
def test_each_example_has_the_gradient_of_a_batch_of_one(model, reduced, size):
    def loss(x, y):
        losses = tf.keras.losses.sparse_categorical_crossentropy(y, model(x), from_logits=True)
        return tf.reduce_mean(losses) if reduced else losses

    variables = {"conv": model.layers[0].trainable_variables, "dense": model.layers[-1].trainable_variables}
    found = per_example_gradients(loss, wrt=variables, batch_chunk_size=size)(IMAGES, LABELS)
    assert found["conv"][0].shape == (5, 3, 3, 1, 2)
    gradient = value_and_gradient(lambda x, y: tf.reduce_mean(loss(x, y)), wrt=variables)
    for i in range(5):
        _, wanted = gradient(IMAGES[i : i + 1], LABELS[i : i + 1])
        tf.nest.map_structure(lambda f, w, i=i: np.testing.assert_allclose(f[i], w, atol=1e-5), found, wanted)
    _, mean = gradient(IMAGES, LABELS)
    tf.nest.map_structure(lambda f, w: np.testing.assert_allclose(tf.reduce_mean(f, 0), w, atol=1e-5), found, mean)


@pytest.fixture
def no_loop_over_examples(monkeypatch):
    """TensorFlow's own converter, which makes the loop, must not be called."""
    from tensorflow.python.ops.parallel_for import pfor

    monkeypatch.setitem(pfor._pfor_converter_registry, "Conv2DBackpropFilter", None)


def test_per_example_gradients_of_an_argument():
    def loss(w, x):
        return tf.reduce_sum(tf.sin(x @ w))

    found = per_example_gradients(loss)(W, X)
    np.testing.assert_allclose(found, X[:, :, None] * np.cos(X @ W)[:, None, :], atol=1e-12)


def test_a_loss_for_each_output_is_not_taken_for_one_for_each_example():
    square = X[: W.shape[1]]  # as many examples as outputs: the shapes do not tell them apart
    with pytest.raises(ValueError, match=r"batch of one example the result has shape \(6,\); expected one loss"):
        per_example_gradients(lambda w, x: tf.reduce_mean(x @ w, axis=0))(W, square)
    found = per_example_gradients(lambda w, x: tf.reduce_mean(x @ w, axis=1))(W, square)
    np.testing.assert_allclose(found, np.repeat(square[:, :, None] / 6, 6, axis=2), rtol=1e-6)


EXAMPLES = GENERATOR.standard_normal((5, 4)).astype(np.float32) + 2


# Whether the examples are independent.

V = tf.Variable(0.5 * GENERATOR.standard_normal((4, 3)), dtype=tf.float32)
CLASSES = np.array([0, 2, 1, 1, 0])
BATCH_NORM, GROUPS = tf.keras.layers.BatchNormalization(), tf.keras.layers.GroupNormalization(3)
BATCH_NORM.build((None, 3))
GROUPS.build((None, 3))
COUNT = "how many there are"
UNKNOWN = "is not known, because of "


def cross_entropy(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def contrastive(x, y):
    z = tf.math.l2_normalize(x @ V, 1)
    return cross_entropy(tf.range(tf.shape(x)[0]), z @ tf.transpose(z) / 0.1)


def normalised(x, y):
    mean, variance = tf.nn.moments(x @ V, [0])
    return cross_entropy(y, (x @ V - mean) / tf.sqrt(variance + 1))


def of_python(f):
    """f as TensorFlow's graph cannot see it."""
    return lambda x, y: tf.ensure_shape(tf.py_function(f, [x, V], tf.float32), [x.shape[0]])


COUPLED = {
    "a contrastive loss": (contrastive, COUNT),
    "its mean": (lambda x, y: tf.reduce_mean(contrastive(x, y)), COUNT),
    "statistics of the batch": (normalised, COUNT),
    "the mean of them": (lambda x, y: tf.reduce_mean(normalised(x, y)), COUNT),
    "batch normalisation": (lambda x, y: cross_entropy(y, BATCH_NORM(x @ V, training=True)), UNKNOWN),
    "attention over the batch": (
        lambda x, y: tf.linalg.matvec(tf.nn.softmax(x @ V @ tf.transpose(x @ V)), x[:, 0]),
        COUNT,
    ),
    "weights that are divided by": (
        lambda x, y: tf.reduce_sum(tf.abs(x[:, 0]) * cross_entropy(y, x @ V)) / tf.reduce_sum(tf.abs(x[:, 0])),
        "the loss of the batch is",
    ),
    "a factor by position": (lambda x, y: tf.reduce_sum(cross_entropy(y, x @ V) * tf.range(5.0)), COUNT),
    "a missing axis": (lambda x, y: tf.reduce_mean((x[:, 0] - (x @ V)[:, :1]) ** 2), COUNT),
    "division by their number": (lambda x, y: cross_entropy(y, x @ V) / tf.cast(tf.shape(x)[0], tf.float32), COUNT),
    "a mean that is squared": (lambda x, y: tf.reduce_mean(cross_entropy(y, x @ V)) ** 2, COUNT),
    "the largest": (lambda x, y: tf.reduce_max(cross_entropy(y, x @ V)), COUNT),
    "in a function": (tf.function(contrastive), COUNT),
    "in a function, the mean": (tf.function(lambda x, y: tf.reduce_mean(contrastive(x, y))), COUNT),
    "Python": (of_python(lambda x, w: tf.reduce_sum((x - tf.reduce_mean(x, 0)) @ w, 1)), COUNT),
    "a factor by position, random": (
        lambda x, y: tf.reduce_sum(cross_entropy(y, tf.nn.dropout(x, 0.5) @ V) * tf.constant([1.0, 2, 3, 4, 5])),
        UNKNOWN,
    ),
    "division by their number, random": (
        lambda x, y: cross_entropy(y, tf.nn.dropout(x, 0.5) @ V) / tf.cast(tf.shape(x)[0], tf.float32),
        UNKNOWN,
    ),
    "random, and shared": (lambda x, y: cross_entropy(y, x @ V) * tf.reduce_sum(tf.random.uniform([len(x)])), UNKNOWN),
    "random, in a loop": (lambda x, y: looped(tf.nn.dropout(x, 0.5), y), f"{UNKNOWN}.*While at"),
}


def looped(x, y):
    _, x = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.tanh(x @ V @ tf.transpose(V))), (0, x))
    return cross_entropy(y, x @ V)


def one_by_one(f):
    return by_tape.of_each_example(f, [V], EXAMPLES, CLASSES)[0]


# Proved from the graph, or compared at every call.
INDEPENDENT = {
    "losses": (lambda x, y: cross_entropy(y, x @ V), True),
    "their mean": (lambda x, y: tf.reduce_mean(cross_entropy(y, x @ V)), True),
    "their sum over a number": (lambda x, y: tf.reduce_sum(cross_entropy(y, x @ V)) / 64, True),
    "a penalty": (lambda x, y: tf.reduce_mean(cross_entropy(y, x @ V)) + 0.1 * tf.nn.l2_loss(V), True),
    "a penalty and a sum": (lambda x, y: tf.reduce_sum(cross_entropy(y, x @ V)) + 0.1 * tf.nn.l2_loss(V), True),
    "a loss of Keras": (lambda x, y: tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)(y, x @ V), True),
    "a custom gradient": (lambda x, y: tf.reduce_mean(cross_entropy(y, tf.nn.silu(x @ V))), True),
    "a function": (tf.function(lambda x, y: tf.reduce_mean(cross_entropy(y, x @ V))), True),
    "a function, and one in it": (tf.function(lambda x, y: tf.reduce_mean(tf.function(cross_entropy)(y, x @ V))), True),
    "a branch": (
        lambda x, y: cross_entropy(y, tf.cond(tf.reduce_sum(V) > 0, lambda: x @ V, lambda: -(x @ V))),
        False,
    ),
    "Python": (of_python(lambda x, w: tf.reduce_sum(tf.tanh(x @ w), 1)), False),
    "the mean of Python": (lambda x, y: tf.reduce_mean(INDEPENDENT["Python"][0](x, y)), False),
    "a sum along each row": (lambda x, y: tf.cumsum(x @ V, 1)[:, -1] ** 2, True),
    "group normalisation": (lambda x, y: cross_entropy(y, GROUPS(x @ V, training=True)), True),
    "batch normalisation in inference": (lambda x, y: cross_entropy(y, BATCH_NORM(x @ V, training=False)), True),
    "a loop": (looped, False),
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", ["losses", "their mean", "a loop"])
def test_no_example_and_one_example(name):
    f, _ = INDEPENDENT[name]
    assert per_example_gradients(f, wrt=V, compile="graph")(EXAMPLES[:0], CLASSES[:0]).shape == (0, 4, 3)
    one = per_example_gradients(f, wrt=V, compile="graph")(EXAMPLES[:1], CLASSES[:1])
    np.testing.assert_allclose(one, one_by_one(f)[:1], atol=1e-6)


SPATIAL, RANDOM = tf.keras.layers.SpatialDropout1D(0.5), tf.random.Generator.from_seed(1)
NOISY = {
    "Dropout": tf.keras.layers.Dropout(0.5),
    "SpatialDropout1D": lambda x, training: SPATIAL(x[:, None], training=training)[:, 0],
    "AlphaDropout": tf.keras.layers.AlphaDropout(0.5),
    "GaussianNoise": tf.keras.layers.GaussianNoise(0.5),
    "GaussianDropout": tf.keras.layers.GaussianDropout(0.5),
    "tf.nn.dropout": lambda x, training: tf.nn.dropout(x, 0.5),
    "tf.random.normal": lambda x, training: x + tf.random.normal(tf.shape(x)),
    "a generator": lambda x, training: x * RANDOM.uniform(x.shape, 0.5, 1.5),
    "a number for each": lambda x, training: x * tf.random.uniform([tf.shape(x)[0], 1]),
    "one number": lambda x, training: x * tf.random.uniform([]),
    "in a function": tf.function(lambda x, training: tf.nn.dropout(x, 0.5)),
}


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}], ids=["norms", "clipped"])
def test_a_function_that_changes_the_weights_is_refused_in_one_pass(options):
    w = tf.Variable([1.0, 2.0])

    def losses(x):
        w.assign(w * 2.0)
        return tf.reduce_sum(x * w, axis=1)

    with pytest.raises(ValueError, match=r"changes a variable of wrt, .* AssignVariableOp at "):
        (clipped_gradient if options else per_example_norms)(losses, wrt=w, **options)(tf.ones([2, 2]))
