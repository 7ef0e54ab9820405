"""Batch Jacobians and per-example gradients."""

import warnings

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
@pytest.mark.parametrize(("mode", "chunk_size"), [("forward", None), ("reverse", None), ("reverse", 4)])
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


@pytest.mark.parametrize("f", [lambda x: tf.nn.softmax(40 * x), lambda x: 1e-9 * tf.tanh(x) + 1e3 * x])
def test_rounding_is_not_taken_for_a_difference(f):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
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


V = tf.Variable(0.5 * GENERATOR.standard_normal((4, 3)), dtype=tf.float32)
CLASSES = np.array([0, 2, 1, 1, 0])


def cross_entropy(y, logits):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)


def looped(x, y):
    _, x = tf.while_loop(lambda i, x: i < 2, lambda i, x: (i + 1, tf.tanh(x @ V @ tf.transpose(V))), (0, x))
    return cross_entropy(y, x @ V)


def one_by_one(f):
    return by_tape.of_each_example(f, [V], EXAMPLES, CLASSES)[0]


LOSSES = {
    "losses": lambda x, y: cross_entropy(y, x @ V),
    "their mean": lambda x, y: tf.reduce_mean(cross_entropy(y, x @ V)),
    "a loop": looped,
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", LOSSES)
def test_no_example_and_one_example(name):
    f = LOSSES[name]
    assert per_example_gradients(f, wrt=V, compile="graph")(EXAMPLES[:0], CLASSES[:0]).shape == (0, 4, 3)
    one = per_example_gradients(f, wrt=V, compile="graph")(EXAMPLES[:1], CLASSES[:1])
    np.testing.assert_allclose(one, one_by_one(f)[:1], atol=1e-6)


@pytest.mark.parametrize("options", [{}, {"max_norm": 1.0}], ids=["norms", "clipped"])
def test_a_function_that_changes_the_weights_is_refused_in_one_pass(options):
    w = tf.Variable([1.0, 2.0])

    def losses(x):
        w.assign(w * 2.0)
        return tf.reduce_sum(x * w, axis=1)

    with pytest.raises(ValueError, match=r"changes a variable of wrt, .* AssignVariableOp at "):
        (clipped_gradient if options else per_example_norms)(losses, wrt=w, **options)(tf.ones([2, 2]))
