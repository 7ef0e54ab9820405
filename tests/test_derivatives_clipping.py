"""Norms of per-example gradients and clipped sums, against a loop over the examples."""

import warnings

from tapelab.derivatives import FallbackWarning, clipped_gradient, per_example_gradients, per_example_norms
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
X = GENERATOR.standard_normal((5, 6))
LABELS = np.array([0, 2, 1, 1, 0])


def variable(*shape, dtype=tf.float64):
    return tf.Variable(GENERATOR.standard_normal(shape), dtype=dtype)


def check(f, variables, *data, tolerance=1e-12, **options):
    """Compare norms and clipped sums with the loop; one norm of the five is clipped not at all."""
    gradients = [part.astype(np.float64) for part in by_tape.of_each_example(f, variables, *data)]
    norms = np.sqrt(sum((g**2).reshape(len(g), -1).sum(1) for g in gradients))
    max_norm = float(np.median(norms))
    factors = np.minimum(1, max_norm / norms)
    clipped = clipped_gradient(f, wrt=variables, max_norm=max_norm, **options)
    sums, found = clipped(*data)
    np.testing.assert_allclose(found, norms, rtol=tolerance)
    for total, gradient in zip(sums, gradients, strict=True):
        wanted = np.tensordot(factors, gradient, (0, 0))
        np.testing.assert_allclose(total, wanted, rtol=0, atol=10 * tolerance * np.abs(wanted).max())
    return clipped


@pytest.fixture(autouse=True)
def fallbacks():
    """Where an operation cannot be vectorised, numbers are what matters here."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        yield


W1, B1, W2, B2 = variable(6, 7), variable(7), variable(7, 3), variable(3)


def network(x):
    return tf.matmul(tf.tanh(tf.nn.bias_add(tf.matmul(x, W1), B1)), W2) + B2


def cross_entropy(x, y):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x))


def test_a_network_and_the_structure_of_its_sources():
    check(cross_entropy, [W1, B1, W2, B2], X, LABELS)
    both, norms = clipped_gradient(cross_entropy, wrt={"w": W2, "b": [B2]}, max_norm=1e9)(X, LABELS)
    w, b = by_tape.of_each_example(cross_entropy, [W2, B2], X, LABELS)
    np.testing.assert_allclose(both["w"], w.sum(0), atol=1e-13)  # nothing is clipped: the sum of the gradients
    np.testing.assert_allclose(both["b"][0], b.sum(0), atol=1e-13)
    assert norms.shape == (5,)
    assert norms.dtype == tf.float64
    np.testing.assert_allclose(per_example_norms(cross_entropy, wrt={"w": W2, "b": [B2]})(X, LABELS), norms, rtol=1e-14)


def test_an_example_without_a_gradient_is_not_divided_by_zero():
    w = variable(6, 1)
    x = X * np.array([[0.0], [1], [1], [1], [1]])
    total, norms = clipped_gradient(lambda x: tf.matmul(x, w)[:, 0], wrt=[w], max_norm=0.5)(x)
    assert norms[0] == 0
    assert np.isfinite(total[0]).all()


def test_single_precision_and_a_variable_that_is_cast():
    w, b = variable(6, 7, dtype=tf.float32), variable(7, dtype=tf.float16)

    def losses(x):
        return tf.reduce_sum(tf.tanh(tf.matmul(x, w) + tf.cast(b, tf.float32)), axis=1)

    check(losses, [w], X.astype(np.float32), tolerance=1e-6)
    norms = per_example_norms(losses, wrt=[w, b])(X.astype(np.float32))
    found = by_tape.of_each_example(losses, [w, b], X.astype(np.float32))
    np.testing.assert_allclose(norms, np.sqrt((found[0] ** 2).sum((1, 2)) + (found[1] ** 2).sum(1)), rtol=1e-3)
    assert norms.dtype == tf.float32


@pytest.mark.dear
def test_inside_a_function_and_under_xla():
    wanted = per_example_norms(cross_entropy, wrt=[W1, B1])(X, LABELS)
    inside = per_example_norms(cross_entropy, wrt=[W1, B1])
    np.testing.assert_allclose(tf.function(lambda x, y: inside(x, y))(X, LABELS), wanted, rtol=1e-13)
    compiled = per_example_norms(cross_entropy, wrt=[W1, B1], compile="xla")
    np.testing.assert_allclose(compiled(X, LABELS), wanted, rtol=1e-13)
    assert compiled.plan(X, LABELS).compiled == "xla"


def test_eagerly_examples_go_one_by_one():
    check(cross_entropy, [W1, B2], X, LABELS, compile="eager")


def test_a_variable_that_is_used_twice_has_cross_terms():
    w, b = variable(6, 6), variable(6)

    def losses(x):
        return tf.reduce_sum(tf.tanh(tf.matmul(tf.tanh(tf.matmul(x, w) + b), w) - b) * b, axis=1)

    check(lambda x: losses(x) + tf.reduce_sum(tf.matmul(x, w, transpose_b=True) ** 3, 1), [w, b], X)


@pytest.mark.thorough
def test_keras_convolutions_and_attention():
    tf.keras.utils.set_random_seed(0)
    layers, double = tf.keras.layers, {"dtype": "float64"}
    x = inputs = tf.keras.Input((8, 6), **double)
    x = layers.DepthwiseConv1D(3, 2, "same", depth_multiplier=2, activation="relu", **double)(x)
    x = layers.Conv1DTranspose(4, 3, 2, activation="tanh", **double)(x)
    x = layers.UpSampling1D(2, **double)(layers.SeparableConv1D(4, 2, **double)(x))
    x = layers.MultiHeadAttention(2, 3, **double)(x, x)
    x = layers.GroupQueryAttention(4, 4, 2, **double)(x, x)
    model = tf.keras.Model(inputs, layers.Dense(3, **double)(layers.Flatten(**double)(x)))
    for value in model.trainable_variables:
        value.assign_add(0.3 * tf.random.normal(value.shape, dtype=tf.float64))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none", dtype="float64")
    # The keys' bias shifts all scores of a query alike: its gradient is 0, and what is found is rounding error.
    variables = [value.value for value in model.trainable_variables if not value.path.endswith("key/bias")]
    check(lambda x, y: loss(y, model(x)), variables, GENERATOR.standard_normal((5, 8, 6)), LABELS, tolerance=1e-9)


@pytest.mark.dear
def test_a_batch_in_chunks():
    held = check(cross_entropy, [W1, B1, W2, B2], X, LABELS, batch_chunk_size=2)  # the last example is alone
    assert held.plan(X, LABELS).chunk == 2
    assert held.plan(X, LABELS).passes == 5
    check(cross_entropy, [W1, B2], X, LABELS, batch_chunk_size=7)  # one chunk
    compiled = clipped_gradient(cross_entropy, wrt=[W1], max_norm=1.0, batch_chunk_size=2, compile="xla")
    sums, norms = clipped_gradient(cross_entropy, wrt=[W1], max_norm=1.0)(X, LABELS)
    found = compiled(X, LABELS)
    np.testing.assert_allclose(found[0][0], sums[0], atol=1e-13)
    np.testing.assert_allclose(found[1], norms, rtol=1e-13)


def test_large_batches_are_taken_in_chunks_by_default():
    kernel = variable(3, 3, 2, 8)
    images = GENERATOR.standard_normal((512, 6, 5, 2))

    def losses(x):
        return tf.reduce_sum(tf.nn.conv2d(x, kernel, 1, "VALID") ** 2, [1, 2, 3])

    compute = clipped_gradient(losses, wrt=[kernel], max_norm=5.0)
    sums, norms = compute(images)
    whole, together = clipped_gradient(losses, wrt=[kernel], max_norm=5.0, batch_chunk_size=512)(images)
    assert compute.plan(images).chunk == 256
    np.testing.assert_allclose(norms, together, rtol=1e-12)
    np.testing.assert_allclose(sums[0], whole[0], rtol=1e-9)
    assert clipped_gradient(losses, wrt=[kernel], max_norm=5.0).plan(images[:100]).chunk == 100


@pytest.mark.dear
def test_keras_layers_normalisation_and_embeddings():
    tf.keras.utils.set_random_seed(0)
    layers = tf.keras.layers
    body = [layers.Embedding(9, 6), layers.Conv1D(6, 3), layers.LayerNormalization(), layers.Dense(9, "gelu")]
    model = tf.keras.Sequential([*body, layers.GroupNormalization(3), layers.Flatten(), layers.Dense(3)])
    numbers = GENERATOR.integers(0, 9, (5, 6))
    model(numbers)
    for value in model.trainable_variables:
        value.assign_add(tf.random.normal(value.shape))
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")
    variables = [value.value for value in model.trainable_variables]
    check(lambda n, y: loss(y, model(n)), variables, numbers, LABELS, tolerance=1e-5)


@tf.custom_gradient
def straight_through(z):
    return tf.sign(z), lambda dy: dy


@tf.custom_gradient
def clipping(z):
    return tf.sin(z), lambda dy: tf.clip_by_value(dy * tf.cos(z), -0.5, 0.5)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("activation", [straight_through, clipping])
def test_custom_gradients_that_keep_the_examples_apart(activation):
    check(lambda x: tf.reduce_sum(tf.matmul(activation(tf.matmul(x, W1)), W2) ** 2, 1), [W1, W2], X)


def test_no_example():
    total, norms = clipped_gradient(cross_entropy, wrt=[W1], max_norm=1.0)(X[:0], LABELS[:0])
    assert norms.shape == (0,)
    np.testing.assert_array_equal(total[0], np.zeros((6, 7)))


def test_dense_layers_gradients_are_never_there_and_filters_are_products():
    """Two vectors of each example are enough for its norm and its share; the plain tape's two examples apart."""
    x, w, v, images = tf.ones((64, 6)), variable(6, 7), variable(7, 5), tf.ones((64, 8, 8, 2))
    filters = variable(3, 3, 2, 4, dtype=tf.float32)

    @tf.function
    def dense(x):
        loss = lambda x: tf.reduce_sum(tf.tanh(tf.tanh(x @ w) @ v) ** 2)  # noqa: E731
        return clipped_gradient(loss, wrt=[w, v], max_norm=1.0)(tf.cast(x, tf.float64))

    @tf.function
    def convolution(images):
        return per_example_gradients(lambda x: tf.reduce_sum(tf.nn.conv2d(x, filters, 2, "SAME") ** 2), wrt=filters)(
            images
        )

    graph = dense.get_concrete_function(x).graph
    largest = max(t.shape.num_elements() or 0 for op in graph.get_operations() for t in op.outputs)
    assert largest <= 64 * 7
    kinds = [op.type for op in convolution.get_concrete_function(images).graph.get_operations()]
    assert kinds.count("BatchMatMulV2") == 1
    assert "While" not in kinds


@pytest.mark.parametrize("used", [lambda x, w: x @ w @ w, lambda x, w: (x @ w) * w[0]])
def test_a_matrix_used_otherwise_than_once_as_it_is(used):
    square = variable(6, 6)
    check(lambda x: tf.reduce_sum(tf.sin(used(x, square)) ** 3), [square], X)


@pytest.mark.parametrize("padding", ["VALID", "SAME", [[0, 0], [2, 1], [0, 3], [0, 0]]], ids=str)
def test_patches_of_a_padded_strided_convolution(padding):
    images, filters = GENERATOR.standard_normal((3, 9, 8, 2)), variable(3, 2, 2, 4)
    check(lambda x: tf.reduce_sum(tf.sin(tf.nn.conv2d(x, filters, [2, 3], padding))), [filters], images)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(("flat", "transposed"), [(False, True), (True, False)])
def test_sequences(flat, transposed):
    sequences = GENERATOR.standard_normal((5, 4, 6))
    w, b = variable(*((3, 6) if transposed else (6, 3))), variable(3)

    def losses(x):
        x = tf.reshape(x, [-1, 6]) if flat else x
        hidden = tf.tanh(tf.matmul(x, w, transpose_b=transposed) + b)
        return tf.reduce_sum(tf.reshape(hidden, [-1, 4, 3]) ** 2, axis=[1, 2])

    check(losses, [w, b], sequences)


def test_vectors_whose_squares_leave_the_range_of_floats():
    """The gradients are of some 1e10; the squares of what comes down are not finite in float32."""
    x, w = tf.constant(1e-10 * X, tf.float32), variable(6, 7, dtype=tf.float32)

    def loss(x):
        return 1e20 * tf.reduce_sum(x @ w)

    wanted = 1e10 * np.sqrt(7) * np.linalg.norm(X, axis=1)
    np.testing.assert_allclose(per_example_norms(loss, wrt=w)(x), wanted, rtol=1e-5)
    total, norms = clipped_gradient(loss, wrt=w, max_norm=1.0)(x)
    np.testing.assert_allclose(norms, wanted, rtol=1e-5)
    np.testing.assert_allclose(total[:, 0], 1e10 * (X.T / wanted).sum(1), rtol=1e-4)
