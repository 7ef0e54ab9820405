"""Second derivatives of which TensorFlow silently lacks a part are refused, and what is right beside them is not."""

from tapelab.derivatives import hessian, hvp, laplacian, value_and_gradient
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import numpy as np
import pytest

X = np.array([[0.3, -1.1, 0.7]])
LABELS = np.array([[0.2, 0.5, 0.3]])


def matrix(found):
    return np.reshape(found, (3, 3))


def entropy(x):
    return tf.nn.softmax_cross_entropy_with_logits(tf.nn.softmax(x), x)


def entropy_in_the_open(x):
    return -tf.reduce_sum(tf.nn.softmax(x) * tf.nn.log_softmax(x), -1)


def resized(x):
    return tf.reduce_sum(tf.cast(tf.image.resize(tf.reshape(x, [1, 1, 3, 1]), (2, 5)), tf.float64) ** 2 + x[0, 0] ** 2)


def tensorflow_hessian(f):
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x := tf.constant(X))
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer.jacobian(gradient, x, experimental_use_pfor=False).numpy().reshape(3, 3)


def true_hessian(f):
    return numerical_jacobian(lambda x: value_and_gradient(lambda x: tf.reduce_sum(f(x)), compile="graph")(x)[1], X)


def test_tensorflow_is_wrong_here_and_the_open_form_is_right():
    p = np.exp(X[0]) / np.exp(X[0]).sum()
    surprise = np.log(p) - p @ np.log(p)
    first = -p * surprise
    closed = -(np.diag(p) - np.outer(p, p)) * surprise[:, None] - p[:, None] * (np.eye(3) - p + first)
    np.testing.assert_allclose(true_hessian(entropy).reshape(3, 3), closed, atol=1e-8)
    np.testing.assert_allclose(matrix(hessian(lambda x: entropy_in_the_open(x)[0], compile="graph")(X)), closed)
    assert np.abs(tensorflow_hessian(lambda x: entropy(x)[0]) - closed).max() > 0.1
    assert np.trace(tensorflow_hessian(lambda x: entropy(x)[0])) * np.trace(closed) < 0  # even the sign is wrong


@pytest.mark.parametrize("f", [entropy, tf.function(entropy), resized], ids=["entropy", "in a function", "resized"])
def test_refused(f):
    def loss(x):
        return tf.reduce_sum(f(x))

    with pytest.raises(ValueError, match="the second derivative would be wrong, since it"):
        hessian(loss, compile="graph")(X)
    with pytest.raises(ValueError, match="Write "):
        hvp(loss, compile="graph")(X, X)
    value_and_gradient(loss, compile="graph")(X)  # the first derivative is right


def test_the_laplacian_is_refused_too():
    with pytest.raises(ValueError, match="labels that depend on what the logits depend on"):
        laplacian(entropy)(X)


def test_variables_as_sources():
    w = tf.Variable(X)
    with pytest.raises(ValueError, match="labels that depend"):
        hessian(lambda: tf.reduce_sum(entropy(w)), wrt=[w], compile="graph")()
    hessian(lambda: tf.reduce_sum(tf.nn.softmax_cross_entropy_with_logits(LABELS, w)), wrt=[w], compile="graph")()


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["plain", "in a function"])
def test_labels_that_are_data_are_differentiated_as_before(wrap):
    inner = wrap(lambda x, y: tf.nn.softmax_cross_entropy_with_logits(0.9 * y + 0.1 / 3, 2 * x))

    def loss(x, y):
        return tf.reduce_sum(inner(x, y))

    found = matrix(hessian(loss, compile="graph")(X, LABELS))
    p = np.exp(2 * X[0]) / np.exp(2 * X[0]).sum()
    np.testing.assert_allclose(found, 4 * (np.diag(p) - np.outer(p, p)), rtol=1e-9)


def test_a_resized_image_that_is_data_does_no_harm():
    def loss(x, image):
        return tf.reduce_sum(tf.cast(tf.image.resize(image, (2, 2)), tf.float64)) * tf.reduce_sum(x**2)

    found = matrix(hessian(loss, compile="graph")(X, np.ones((1, 3, 3, 1))))
    np.testing.assert_allclose(found, 8 * np.eye(3), rtol=1e-6)


def padded(x):
    return tf.pad(tf.sin(x), [[1, 1], [0, 0]], constant_values=x[0, 0])


def added(x):
    parts = [tf.sparse.SparseTensor([[0, i], [1, 2]], tf.sin(x[0, i : i + 2]), [2, 3]) for i in (0, 1)]
    return tf.sparse.to_dense(tf.sparse.add(*parts))


def warped(x):
    transform = tf.constant([[1.0, 0.1, 0.3, -0.1, 1.0, 0.2, 0.0, 0.0]])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=tf.reshape(tf.sin(x), [1, 1, 3, 1]), transforms=transform, output_shape=[2, 2], fill_value=0.0,
        interpolation="BILINEAR",
    )  # fmt: skip


def stitched(x, again=1):
    return tf.dynamic_stitch([[0, 1], [again, 2]], [tf.sin(x[0, :2]), tf.cos(x[0, 1:])])


LACKING = {
    "a value to pad with": padded,
    "a sum of sparse tensors": added,
    "an image transformed": warped,
    "an index twice": stitched,
    "colours": lambda x: tf.image.hsv_to_rgb(tf.sigmoid(x)),
    "parameters of betainc": lambda x: tf.math.betainc(tf.exp(x), tf.constant(2.0, tf.float64), np.float64(0.4)),
    "an exponent of zeta": lambda x: tf.math.zeta(3 + tf.exp(x), tf.exp(x)),
    "values of one_hot": lambda x: tf.one_hot([0, 2], 3, on_value=x[0, 0] ** 2, off_value=x[0, 1] ** 2),
}


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["plain", "in a function"])
@pytest.mark.parametrize("name", LACKING)
def test_what_has_no_second_derivative_is_refused(name, wrap):
    inner = wrap(LACKING[name])

    def loss(x):
        return tf.reduce_sum(inner(x) ** 2) + tf.reduce_sum(x**2)  # beside which a lost part counts as 0

    with pytest.raises(ValueError, match="the second derivative would be wrong, since it"):
        hvp(loss, compile="graph")(X, X)
    if inner is LACKING[name]:  # as data it does no harm; in a called function that is not followed
        hvp(lambda x, y: loss(y) * tf.reduce_sum(x**2), compile="graph")(X, X, X)


def test_a_sum_of_sparse_tensors_has_another_hessian_in_tensorflow():
    def loss(x):
        return tf.reduce_sum(added(x) ** 2) + tf.reduce_sum(x**2)

    assert np.abs(tensorflow_hessian(loss) - true_hessian(loss).reshape(3, 3)).max() > 0.1


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["plain", "in a function"])
def test_what_is_stitched_once_is_differentiated(wrap):
    whole = wrap(lambda x: tf.dynamic_stitch([[2, 1], [0]], [tf.sin(x[0, :2]), tf.cos(x[0, 2:])]))
    found = matrix(hessian(lambda x: tf.reduce_sum(whole(x) ** 2), compile="graph")(X))
    np.testing.assert_allclose(found, np.diag(2 * np.cos(2 * X[0]) * [1, 1, -1]), rtol=1e-9)


def test_a_partition_is_differentiated():
    """The gradient of tf.dynamic_partition stitches, with each index once."""

    def loss(x):
        first, second = tf.dynamic_partition(x[0], [0, 1, 0], 2)
        return tf.reduce_sum(first**3) * tf.reduce_sum(second**2)

    a, b, c = X[0]
    wanted = np.array(
        [
            [6 * a * b**2, 6 * a**2 * b, 0],
            [6 * a**2 * b, 2 * (a**3 + c**3), 6 * c**2 * b],
            [0, 6 * c**2 * b, 6 * c * b**2],
        ]
    )
    v = np.array([[1.0, -2.0, 0.5]])
    np.testing.assert_allclose(hvp(loss, compile="graph")(v, X), [wanted @ v[0]], rtol=1e-9, atol=1e-12)


def test_shapes_are_stitched_as_they_may():
    """The gradient of a reduction stitches the shape of its input, where it is not known, from repeated indices."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64)])
    def products(x):
        return tf.reduce_sum(tf.reduce_prod(x, axis=1)[:, None] * x**2)

    a, b, c = X[0]
    row = [6 * a * b * c, c * (3 * a**2 + 3 * b**2 + c**2), b * (3 * a**2 + b**2 + 3 * c**2)]
    found = hvp(lambda x: products(x), compile="graph")(np.array([[1.0, 0.0, 0.0]]), X)
    np.testing.assert_allclose(found, [row], rtol=1e-9)
