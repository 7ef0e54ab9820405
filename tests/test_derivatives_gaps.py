"""Derivatives that TensorFlow gets wrong without a word are refused, and what is right beside them is not."""

from tapelab.derivatives import (
    batch_jacobian,
    clipped_gradient,
    hessian,
    hvp,
    jacobian,
    jvp,
    laplacian,
    per_example_gradients,
    sparse_jacobian,
    taylor,
    value_and_gradient,
    vjp,
)
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


@pytest.mark.parametrize("f", [resized, tf.function(resized)], ids=["resized", "in a function"])
def test_refused(f):
    def loss(x):
        return tf.reduce_sum(f(x))

    with pytest.raises(ValueError, match="the second derivative would be wrong, since it"):
        hessian(loss, compile="graph")(X)
    with pytest.raises(ValueError, match="Write "):
        hvp(loss, compile="graph")(X, X)
    value_and_gradient(loss, compile="graph")(X)  # the first derivative is right


@pytest.mark.parametrize("f", [entropy, tf.function(entropy)], ids=["entropy", "in a function"])
def test_labels_that_depend_on_what_the_logits_depend_on(f):
    wanted = true_hessian(entropy_in_the_open).reshape(3, 3)
    np.testing.assert_allclose(matrix(hessian(lambda x: f(x)[0], compile="graph")(X)), wanted, atol=1e-8)
    np.testing.assert_allclose(laplacian(f, compile="graph")(X), [np.trace(wanted)], atol=1e-8)
    w = tf.Variable(X)
    found = hessian(lambda: tf.reduce_sum(f(w)), wrt=[w], compile="graph")()
    np.testing.assert_allclose(matrix(tf.nest.flatten(found)[0]), wanted, atol=1e-8)


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


def statistics(x):
    return tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, [1, 1, 3, 1]), scale=[1.0], offset=[0.0], mean=[], variance=[], epsilon=1e-3, is_training=True
    )[1]


def normalised_by(x):
    mean = tf.cast(x[0, :1], tf.float32)
    return tf.raw_ops.FusedBatchNormV3(
        x=np.ones([1, 1, 3, 1], np.float32), scale=[1.0], offset=[0.0], mean=mean, variance=[1.0], is_training=False
    )[0]


def complex_of(f):
    def g(x):
        z = f(tf.complex(x, 0.5 * tf.sin(x)), tf.complex(1 + x**2, x))
        return tf.math.real(z) + 2 * tf.math.imag(z)

    return g


def boxes(x):
    image = tf.reshape(tf.tile(tf.cast(x, tf.float32), [1, 3]), [1, 3, 3, 1])
    return tf.image.draw_bounding_boxes(image, [[[0.1, 0.1, 0.6, 0.6]]], None)


def lstm(x):
    cell = dict(cs_prev=[[0.1]], h_prev=[[0.2]], b=[0.1] * 4, **{key: [0.0] for key in ("wci", "wcf", "wco")})
    weights = tf.reshape(tf.linspace(-1.0, 1.0, 16), [4, 4])
    inputs = tf.reshape(tf.cast(x, tf.float32), [1, 1, 3])
    return tf.raw_ops.BlockLSTMV2(seq_len_max=1, x=inputs, w=weights, **cell).h


# What TensorFlow differentiates wrongly in every way.
LACKING = {
    "a value to pad with": padded,
    "an image transformed": warped,
    "an index twice": stitched,
    "colours": lambda x: tf.image.hsv_to_rgb(tf.sigmoid(x)),
    "parameters of betainc": lambda x: tf.math.betainc(tf.exp(x), tf.constant(2.0, tf.float64), np.float64(0.4)),
    "an exponent of zeta": lambda x: tf.math.zeta(3 + tf.exp(x), tf.exp(x)),
    "values of one_hot": lambda x: tf.one_hot([0, 2], 3, on_value=x[0, 0] ** 2, off_value=x[0, 1] ** 2),
    "eigenvalues by bisection": lambda x: tf.linalg.eigh_tridiagonal(x[0], x[0, 1:] ** 2, name="own_name"),
    "a range": lambda x: tf.range(x[0, 0], x[0, 0] + 2.5, 1.0),
    "a ragged range": lambda x: tf.ragged.range(x[0, 0], x[0, 0] + 2.5, 1.0).flat_values,
    "the operation LinSpace": lambda x: tf.raw_ops.LinSpace(start=x[0, 0], stop=x[0, 1], num=3),
    "sparse tensors in a row": lambda x: tf.sparse.concat(0, [tf.sparse.from_dense(x), tf.sparse.from_dense(x)]).values,
    "boxes drawn": boxes,
    "a shuffle": lambda x: tf.random.shuffle(x[0]) * [1.0, 2.0, 3.0],
    "a glimpse": lambda x: tf.raw_ops.ExtractGlimpse(
        input=tf.reshape(tf.cast(x, tf.float32), [1, 1, 3, 1]), size=[1, 2], offsets=[[0.0, 0.0]]
    ),
    "parameters of random numbers": lambda x: tf.raw_ops.ParameterizedTruncatedNormal(
        shape=[1, 2], means=x[0, :1], stdevs=[1.0], minvals=[-2.0], maxvals=[2.0]
    ),
    "a diagonal, padded": lambda x: tf.linalg.diag_part(np.ones([3, 3]), k=(-1, 0), padding_value=x[0, 0]),
    "a matrix, padded": lambda x: tf.linalg.diag(np.ones(3), padding_value=x[0, 0]),
    "the batch's statistics": lambda x: statistics(tf.cast(x, tf.float32)),
    "a mean to normalise by": normalised_by,
    "gates of an LSTM": lstm,
    "cumprod of complex numbers": complex_of(lambda a, b: tf.math.cumprod(a, axis=1)),
    "norm of complex numbers": complex_of(lambda a, b: tf.math.reduce_euclidean_norm(a)),
    "square root of a complex matrix": complex_of(lambda a, b: tf.linalg.sqrtm(a * tf.eye(3, dtype=a.dtype) + 3)),
    "difference of complex numbers": complex_of(tf.math.squared_difference),
    "xdivy of complex numbers": complex_of(tf.math.xdivy),
    "xlogy of complex numbers": complex_of(tf.math.xlogy),
    "xlog1py of complex numbers": complex_of(tf.math.xlog1py),
}


def beside(f):
    """A loss of which a part is lost where f's is: alone, None would be noticed."""
    return lambda x: tf.reduce_sum(tf.cast(f(x), tf.float64) ** 2) + tf.reduce_sum(x**2)


@pytest.mark.thorough(keep=30)
@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["plain", "in a function"])
@pytest.mark.parametrize("name", LACKING)
def test_what_has_no_derivative_is_refused(name, wrap):
    loss = beside(wrap(LACKING[name]))
    with pytest.raises(ValueError, match=r"value_and_gradient.*: the derivative would be wrong, since it"):
        value_and_gradient(loss)(X)


def test_whichever_derivative_is_asked_for():
    f, cotangents = LACKING["values of one_hot"], np.ones([2, 3])
    for name, derivative in {
        "vjp": lambda: vjp(f)(cotangents, X),
        "jvp": lambda: jvp(f)(X, X),
        "jacobian": lambda: jacobian(f)(X),
        "batch_jacobian": lambda: batch_jacobian(lambda x: f(x)[:1])(X),
        "per_example_gradients": lambda: per_example_gradients(beside(f))(X),
        "hvp": lambda: hvp(beside(f))(X, X),
        "hessian": lambda: hessian(beside(f))(X),
        "laplacian": lambda: laplacian(beside(f), batched=False)(X),
        "taylor": lambda: taylor(f, 2)([X], X),
        "sparse_jacobian": lambda: sparse_jacobian(f)(X),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}.*: the (second )?derivative would be wrong, since it"):
            derivative()
    w = tf.Variable(X)
    with pytest.raises(ValueError, match="derivative would be wrong, since it"):
        clipped_gradient(lambda x: tf.reduce_sum(f(w)) * x, wrt=[w], max_norm=1.0)(np.ones(2))


@pytest.mark.parametrize("name", [name for name in LACKING if "LSTM" not in name and "bisection" not in name])
def test_beside_the_function_as_data_it_does_no_harm(name):
    loss = beside(LACKING[name])
    value, gradient = value_and_gradient(lambda x, y: loss(y) * tf.reduce_sum(x**2), compile="graph")(X, X)
    np.testing.assert_allclose(gradient, 2 * X * value / np.sum(X**2), rtol=1e-6)


LACKING_NO_RANDOMNESS = [name for name in LACKING if not any(word in name for word in ("random", "shuffle"))]


@pytest.mark.parametrize("name", LACKING_NO_RANDOMNESS)
def test_tensorflow_is_wrong_there(name):
    """Once it is not, the refusal is to go."""
    loss = beside(LACKING[name])
    with tf.GradientTape() as tape:
        tape.watch(x := tf.constant(X))
        y = loss(x)
    difference = tape.gradient(y, x) - numerical_jacobian(loss, X).reshape(X.shape)
    assert np.abs(difference).max() > 1e-2


# What TensorFlow differentiates rightly once, and not again.
ONCE = {
    "a resized image": lambda x: tf.image.resize(tf.reshape(x, [1, 1, 3, 1]), (2, 5)),
    "a sum of sparse tensors": added,
    "rounding": lambda x: tf.quantization.fake_quant_with_min_max_args(tf.cast(x, tf.float32)),
    "rounding between variables": lambda x: tf.quantization.fake_quant_with_min_max_vars(
        tf.cast(x, tf.float32), -6.0, 6.0
    ),
    "rounding by channel": lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(
        tf.cast(x, tf.float32), [-6.0] * 3, [6.0] * 3
    ),
}


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function], ids=["plain", "in a function"])
@pytest.mark.parametrize("name", ONCE)
def test_what_is_right_once_has_a_gradient_and_no_product_with_tangents(name, wrap):
    inner = wrap(ONCE[name])

    def f(x):
        return tf.cast(tf.reshape(inner(x), [-1]), tf.float64) + x[0, 0]

    rows = jacobian(f, compile="graph", mode="reverse")(X)
    chosen = jacobian(f, compile="graph")
    np.testing.assert_array_equal(chosen(X), rows)
    assert chosen.plan(X).mode == "reverse"  # though the columns are fewer
    _, product = vjp(f, compile="graph")(np.ones(len(rows)), X)
    np.testing.assert_allclose(product, tf.reduce_sum(rows, 0), rtol=1e-5)
    for derivative in (
        lambda: jvp(f)(X, X),
        lambda: jacobian(f, mode="forward")(X),
        lambda: taylor(f, 1)([X], X),
        lambda: hvp(beside(f))(X, X),
    ):
        with pytest.raises(ValueError, match="derivative would be wrong, since it"):
            derivative()


def test_a_product_of_complex_numbers_is_right_once():
    f = complex_of(lambda a, b: tf.reduce_prod(a))
    _, gradient = value_and_gradient(f)(X)
    np.testing.assert_allclose(gradient, numerical_jacobian(f, X).reshape(X.shape), rtol=1e-6)
    _, along = jvp(f)(X, X)
    np.testing.assert_allclose(along, tf.reduce_sum(gradient * X), rtol=1e-9)
    with pytest.raises(ValueError, match=r"second derivative would be wrong, since it computes tf\.math\.reduce_prod"):
        hvp(f)(X, X)


def turned(f):
    """f of a value that a loop makes, in the loop's last turn."""

    @tf.function
    def looped(x, y):
        result, x = f(y), x + 0.0
        for _ in tf.range(2):
            result, y = f(y), x
        return result

    return looped


def branched(f):
    return tf.function(lambda x, y: tf.cond(tf.reduce_sum(x) > -100.0, lambda: f(y), lambda: tf.zeros(3, tf.float64)))


@pytest.mark.parametrize("wrap", [turned, branched, lambda f: tf.function(lambda x, y: tf.function(f)(y))])
def test_what_depends_on_the_sources_is_followed_into_functions(wrap):
    inner = wrap(lambda y: tf.one_hot(0, 3, on_value=y[0, 0], off_value=tf.constant(0.5, tf.float64)))
    depends = beside(lambda x: inner(X, x) if wrap is not turned else inner(x, X))
    with pytest.raises(ValueError, match=r"it computes tf\.one_hot with values"):
        value_and_gradient(depends, compile="graph")(X)
    if wrap is not turned:
        _, gradient = value_and_gradient(beside(lambda x: inner(x, X)), compile="graph")(X)
        np.testing.assert_allclose(gradient, 2 * X)


def test_of_a_functions_results_only_those_count_that_depend_on_the_sources():
    both = tf.function(lambda x, y: (2 * x, 3 * y))

    def loss(x, which):
        return tf.reduce_sum(x**2) + tf.reduce_sum(tf.one_hot(0, 3, on_value=both(x, tf.constant(X))[which][0, 0]))

    _, gradient = value_and_gradient(lambda x: loss(x, 1), compile="graph")(X)
    np.testing.assert_allclose(gradient, 2 * X)
    with pytest.raises(ValueError, match=r"it computes tf\.one_hot"):
        value_and_gradient(lambda x: loss(x, 0), compile="graph")(X)


def test_what_is_stopped_may_be_anything():
    stopped = beside(lambda x: tf.image.hsv_to_rgb(tf.sigmoid(tf.stop_gradient(x))))
    _, gradient = value_and_gradient(stopped, compile="graph")(X)
    np.testing.assert_allclose(gradient, 2 * X)


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


@pytest.mark.parametrize(
    ("derivative", "operation"),
    [
        (lambda: hessian(lambda x: tf.reduce_sum(tf.math.igamma(x**2, x)))(X), "IgammaGradA"),
        (lambda: hvp(lambda x: tf.reduce_sum(tf.math.igamma(x**2, x)))(X, X), "IgammaGradA"),
        (lambda: value_and_gradient(lambda x: tf.linalg.lu(tf.eye(3, dtype=x.dtype) * x)[0][0, 0])(X), "Lu"),
    ],
    ids=["hessian", "hvp", "gradient"],
)
def test_an_operation_without_a_gradient_is_named(derivative, operation):
    with pytest.raises(
        LookupError, match=rf"TensorFlow has no derivative of the operation {operation}, .* other operat"
    ):
        derivative()
