"""Derivatives that TensorFlow gets wrong without a word are refused, and what is right beside them is not."""

import re
import warnings
from pathlib import Path

from tapelab.derivatives import (
    FallbackWarning,
    SingularMatrixError,
    batch_jacobian,
    clipped_gradient,
    ggnvp,
    hessian,
    hvp,
    jacobian,
    jvp,
    laplacian,
    linearize,
    per_example_gradients,
    value_and_gradient,
    vjp,
)
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

X = np.array([[0.3, -1.1, 0.7]])


def matrix(found):
    return np.reshape(found, (3, 3))


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
    return tf.raw_ops.ParallelDynamicStitch(indices=[[0, 1], [again, 2]], data=[tf.sin(x[0, :2]), tf.cos(x[0, 1:])])


def statistics(x):
    return tf.raw_ops.FusedBatchNormV3(
        x=tf.reshape(x, [1, 1, 3, 1]), scale=[1.0], offset=[0.0], mean=[], variance=[], epsilon=1e-3, is_training=True
    )[1]


def normalised_by(x):
    mean = tf.cast(x[0, :1], tf.float32)
    return tf.raw_ops.FusedBatchNormV3(
        x=np.ones([1, 1, 3, 1], np.float32), scale=[1.0], offset=[0.0], mean=mean, variance=[1.0], is_training=False
    )[0]


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
    "a value to pad with": lambda x: tf.pad(tf.sin(x), [[1, 1], [0, 0]], constant_values=x[0, 0]),
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
}


def beside(f):
    """A loss of which a part is lost where f's is: alone, None would be noticed."""
    return lambda x: tf.reduce_sum(tf.cast(f(x), tf.float64) ** 2) + tf.reduce_sum(x**2)


@pytest.mark.thorough(keep=6, dear=3)
@pytest.mark.parametrize("name", LACKING)
def test_what_has_no_derivative_is_refused(name):
    loss = beside(LACKING[name])
    with pytest.raises(ValueError, match=r"value_and_gradient.*: the derivative would be wrong, since it"):
        value_and_gradient(loss)(X)


def test_whichever_derivative_is_asked_for():
    f, cotangents = LACKING["values of one_hot"], np.ones([2, 3])
    for name, derivative in {
        "vjp": lambda: vjp(f)(X, cotangents=cotangents),
        "jvp": lambda: jvp(f)(X, tangents=X),
        "jacobian": lambda: jacobian(f)(X),
        "batch_jacobian": lambda: batch_jacobian(lambda x: f(x)[:1])(X),
        "per_example_gradients": lambda: per_example_gradients(lambda x, y: beside(f)(x) + y[0])(X, np.ones(1)),
        "hvp": lambda: hvp(beside(f))(X, vector=X),
        "hessian": lambda: hessian(beside(f))(X),
        "laplacian": lambda: laplacian(beside(f), batched=False)(X),
    }.items():
        with pytest.raises(ValueError, match=f"^{name}.*: the (second )?derivative would be wrong, since it"):
            derivative()
    w = tf.Variable(X)
    with pytest.raises(ValueError, match="derivative would be wrong, since it"):
        clipped_gradient(lambda x: tf.reduce_sum(f(w)) * x, wrt=[w], max_norm=1.0)(np.ones(2))


@pytest.mark.parametrize("name", ["a value to pad with", "values of one_hot", "a range"])
def test_beside_the_function_as_data_it_does_no_harm(name):
    loss = beside(LACKING[name])
    value, gradient = value_and_gradient(lambda x, y: loss(y) * tf.reduce_sum(x**2), compile="graph")(X, X)
    np.testing.assert_allclose(gradient, 2 * X * value / np.sum(X**2), rtol=1e-6)


# What TensorFlow differentiates rightly once, and not again.
ONCE = {
    "a resized image": lambda x: tf.image.resize(tf.reshape(x, [1, 1, 3, 1]), (2, 5)),
    "a sum of sparse tensors": added,
    "rounding": lambda x: tf.quantization.fake_quant_with_min_max_args(tf.cast(x, tf.float32)),
    "rounding between variables": (
        lambda x: tf.quantization.fake_quant_with_min_max_vars(tf.cast(x, tf.float32), -6.0, 6.0)
    ),
    "rounding by channel": lambda x: tf.quantization.fake_quant_with_min_max_vars_per_channel(
        tf.cast(x, tf.float32), [-6.0] * 3, [6.0] * 3
    ),
}


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", ONCE)
def test_what_is_right_once_has_a_gradient_and_no_product_with_tangents(name):
    def f(x):
        return tf.cast(tf.reshape(ONCE[name](x), [-1]), tf.float64) + x[0, 0]

    rows = jacobian(f, compile="graph", mode="reverse")(X)
    chosen = jacobian(f, compile="graph")
    np.testing.assert_array_equal(chosen(X), rows)
    assert chosen.plan(X).mode == "reverse"  # though the columns are fewer
    _, product = vjp(f, compile="graph")(X, cotangents=np.ones(len(rows)))
    np.testing.assert_allclose(product, tf.reduce_sum(rows, 0), rtol=1e-5)
    for derivative in (
        lambda: jvp(f)(X, tangents=X),
        lambda: jacobian(f, mode="forward")(X),
        lambda: hvp(beside(f))(X, vector=X),
    ):
        with pytest.raises(ValueError, match="derivative would be wrong, since it"):
            derivative()


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


@pytest.mark.thorough(keep=1)
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


def test_a_partition_is_differentiated():
    """The gradient of tf.dynamic_partition stitches, with each index once."""

    def loss(x):
        first, second = tf.dynamic_partition(x[0], [0, 1, 0], 2)
        return tf.reduce_sum(first**3) * tf.reduce_sum(second**2)

    a, b, c = X[0]
    row = [6 * a * b**2 - 12 * a**2 * b, 6 * a**2 * b - 4 * (a**3 + c**3) + 3 * c**2 * b, 3 * c * b**2 - 12 * c**2 * b]
    found = hvp(loss, compile="graph")(X, vector=np.array([[1.0, -2.0, 0.5]]))
    np.testing.assert_allclose(found, [row], rtol=1e-9, atol=1e-12)


@pytest.mark.dear
def test_shapes_are_stitched_as_they_may():
    """The gradient of a reduction stitches the shape of its input, where it is not known, from repeated indices."""

    @tf.function(input_signature=[tf.TensorSpec([None, None], tf.float64)])
    def products(x):
        return tf.reduce_sum(tf.reduce_prod(x, axis=1)[:, None] * x**2)

    a, b, c = X[0]
    row = [6 * a * b * c, c * (3 * a**2 + 3 * b**2 + c**2), b * (3 * a**2 + b**2 + 3 * c**2)]
    found = hvp(lambda x: products(x), compile="graph")(X, vector=np.array([[1.0, 0.0, 0.0]]))
    np.testing.assert_allclose(found, [row], rtol=1e-9)


def test_an_operation_without_a_gradient_is_named():
    with pytest.raises(LookupError, match=r"no derivative of the operation IgammaGradA, .* other operat"):
        hessian(lambda x: tf.reduce_sum(tf.math.igamma(x**2, x)))(X)


# Where a fault stands, and what is not looked into.


def fault(x):
    return tf.one_hot(0, 3, on_value=x[0, 0], off_value=tf.constant(0.5, tf.float64))


def in_a_loop(x):
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y + fault(x)), (0, x))[1]


class Faulty(tf.keras.layers.Layer):
    def call(self, x):
        return fault(x)


class Model(tf.Module):
    @tf.function(input_signature=[tf.TensorSpec([1, 3], tf.float64)])
    def __call__(self, x):
        return in_a_loop(x)

    @tf.function(input_signature=[tf.TensorSpec([1, 3], tf.float64)])
    def outer(self, x):
        return 2 * self(x)


STANDS = {
    "plain": fault,
    "a loop": in_a_loop,
    "a function": tf.function(fault),
    "a loop in a function, compiled": tf.function(in_a_loop, jit_compile=True),
    "a layer": Faulty(dtype="float64"),
    "a model": Model(),
}


def line_of(text):
    """Where the first line of this file with a text stands, as an error says it."""
    lines = Path(__file__).read_text().splitlines()
    return f"{__file__}:{next(number for number, line in enumerate(lines, 1) if text in line)}"


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("name", STANDS)
def test_a_fault_is_refused_by_operation_and_line(name):
    with pytest.raises(ValueError, match=r"since it computes tf\.one_hot with values") as caught:
        value_and_gradient(beside(STANDS[name]))(X)
    line = line_of("return tf.one_hot(0, 3, on_value=x[0, 0], off_value=tf.constant(0.5, tf.float64))")
    assert str(caught.value).endswith(f"It is OneHot at {line}")


class Loop(tf.Module):
    def __init__(self):
        self.w = tf.Variable(0.5, dtype=tf.float64)

    @tf.function(input_signature=[tf.TensorSpec([1, 3], tf.float64)])
    def __call__(self, x):
        return tf.reduce_sum(
            tf.while_loop(lambda _: True, lambda y: [tf.sin(self.w * y)], [x], maximum_iterations=2)[0]
        )


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("within", [lambda call: call, lambda call: tf.function(call, autograph=False)])
def test_a_loop_of_a_loaded_model_that_reads_a_variable_is_refused(within, tmp_path):
    tf.saved_model.save(Loop(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    product, rows = hvp(loaded), batch_jacobian(lambda x: loaded(x)[None])
    message = r"\): it calls a loaded model with a loop that reads a variable, and TensorFlow differentiates"
    for call in (lambda x: product(x, vector=x), rows):
        with pytest.raises(LookupError, match=message):
            within(call)(tf.constant(X))


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("call", ["__call__", "outer"])
def test_a_fault_in_a_loaded_model_is_refused_by_the_line_that_calls_it(call, tmp_path):
    tf.saved_model.save(Model(), str(tmp_path))
    loaded = tf.saved_model.load(str(tmp_path))
    with pytest.raises(ValueError, match=r"since it computes tf\.one_hot with values") as caught:
        value_and_gradient(lambda x: tf.reduce_sum(getattr(loaded, call)(x) ** 2))(X)  # the call of the loaded model
    found = str(caught.value)
    assert re.search(r"It is OneHot \(.*\), in what is called by \w+ at ", found)
    assert found.endswith(line_of("# the call of the loaded model"))


def test_a_function_that_is_not_traced_is_said_in_the_plan():
    held = value_and_gradient(lambda x: tf.reduce_sum(x**2) * (1 if x.numpy().sum() > -99 else 2), compile="eager")
    np.testing.assert_allclose(held(X)[1], 2 * X)
    assert held.plan(X).notes[0].startswith("it cannot be traced, and was not looked into")


def test_what_leaves_for_numpy_has_no_derivative():
    """TensorFlow counts the part as zero, without a word."""

    def loss(x, stop=tf.identity):
        squares = tf.numpy_function(np.square, [stop(x)], tf.float64)
        return tf.reduce_sum(tf.ensure_shape(squares, [1, 3])) + tf.reduce_sum(x)

    np.testing.assert_array_equal(by_tape.gradient(loss, X), np.ones([1, 3]))
    with pytest.raises(
        ValueError, match=r"it calls tf\.numpy_function, .* It is PyFunc at .*test_derivatives_gaps\.py"
    ):
        value_and_gradient(loss)(X)
    np.testing.assert_array_equal(value_and_gradient(lambda x: loss(x, tf.stop_gradient))(X)[1], np.ones([1, 3]))


# Singular matrices.

ONES = np.ones([2, 2])


def shifted(x):
    return x[0] * ONES + x[1] * tf.eye(2, dtype=tf.float64)


SOLVED = {
    "MatrixInverse": lambda x: tf.reduce_sum(tf.linalg.inv(shifted(x))),
    "MatrixSolve": lambda x: tf.reduce_sum(tf.linalg.solve(shifted(x), tf.constant([[1.0], [2.0]], tf.float64))),
}
SOLVED["MatrixInverse in a function"] = tf.function(SOLVED["MatrixInverse"])
REGULAR, SINGULAR = np.array([1.0, 2.0]), np.array([1.0, 0.0])


@pytest.mark.thorough(keep=4, dear=2)
@pytest.mark.parametrize(
    ("name", "compile", "first"),
    [(name, compile, REGULAR) for name in SOLVED for compile in ("auto", "eager")]
    + [("MatrixSolve", "auto", SINGULAR)],
)
def test_a_singular_matrix_is_named_with_its_line(name, compile, first):
    held = value_and_gradient(SOLVED[name], compile=compile)
    operation = name.split()[0]
    match = rf"^value_and_gradient\(.*a matrix is singular.*, in {operation} at .*gaps\.py:\d+ .*multiple of the ident"
    if first is REGULAR:
        assert np.isfinite(held(first)[1]).all()
        assert held.plan(first).compiled != "xla"
    with pytest.raises(SingularMatrixError, match=match) as caught:
        held(SINGULAR)
    assert isinstance(caught.value.__cause__, tf.errors.InvalidArgumentError)


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize(
    "derivative",
    [
        lambda f: hessian(f)(SINGULAR),
        lambda f: jvp(f)(SINGULAR, tangents=SINGULAR),
        lambda f: jacobian(lambda x: f(x)[tf.newaxis], mode="forward", compile="graph")(SINGULAR),
    ],
)
def test_a_singular_matrix_in_other_derivatives(derivative):
    with pytest.raises(SingularMatrixError, match="in MatrixInverse at "):
        derivative(SOLVED["MatrixInverse"])


@pytest.mark.parametrize("compile", ["auto", "graph", "xla", "eager"])
def test_an_operation_without_a_gradient_is_named_with_its_line(compile):
    def factors(x):
        return tf.linalg.lu(tf.eye(3, dtype=x.dtype) * x)[0][0, 0]  # has no gradient

    with pytest.raises(
        LookupError, match=r"has no derivative of the operation Lu, which this one needs: Lu at "
    ) as caught:
        value_and_gradient(tf.function(factors), compile=compile)(X)
    assert line_of("# has no gradient") in str(caught.value)


def of_eigenvectors(x):
    values, vectors = tf.linalg.eigh(tf.linalg.diag(x[0]))
    return tf.matmul(vectors * tf.exp(values), vectors, transpose_b=True)


# Of one sign on both sides of 0, where they are 0.
TOUCHING = {
    "1 - cos x": lambda x: 1 - tf.cos(x),
    "1 - exp(-x²)": lambda x: 1 - tf.exp(-(x**2)),
    "x sin x": lambda x: x * tf.sin(x),
    "a mean of x tanh x": lambda x: tf.reduce_mean(tf.tanh(x) * x, 1),
}
DOUBTFUL = {
    "a hand-written sinc": (hvp, lambda x: tf.where(x != 0, tf.sin(x) / x, 1.0), "takes a constant"),
    "a hand-written softplus": (
        value_and_gradient,
        lambda x: tf.maximum(x, 0) + tf.math.log1p(tf.exp(-tf.abs(x))),
        "absolute value of a tensor and its maximum",
    ),
    "a product by its larger and its smaller factor": (
        value_and_gradient,
        lambda x: tf.maximum(x[:, 0], x[:, 1]) * tf.minimum(x[:, 1], x[:, 0]),
        "maximum and the minimum of the same two tensors",
    ),
    "the larger of two and the smaller": (
        value_and_gradient,
        lambda x: tf.reduce_max(x[:, :2], 1) * tf.reduce_min(x[:, :2], 1),
        "largest and the smallest of the same two",
    ),
    "the relu of a square": (hessian, lambda x: tf.nn.relu(x**2), "maximum or minimum of a square"),
    "the larger of 0 and a square": (
        hvp,
        lambda x: tf.maximum(tf.zeros_like(x), tf.square(x)),
        "maximum or minimum of a square",
    ),
    "the smallest of a segment": (
        hvp,
        lambda x: tf.math.segment_min(tf.stack([x[0] ** 2, 0 * x[0]]), [0, 0]),
        "maximum or minimum of a square",
    ),
    **{
        f"the absolute value of {name}": (
            hvp,
            lambda x, f=f: tf.abs(f(x)),
            "maximum or minimum of a square or its like",
        )
        for name, f in TOUCHING.items()
    },
    "a dilogarithm": (hvp, lambda x: tf.math.special.spence(tf.exp(x)), "where the argument is 1"),
    "eigenvectors": (value_and_gradient, of_eigenvectors, "eigenvectors or singular vectors"),
}


@pytest.mark.thorough(keep=4, dear=1)
@pytest.mark.parametrize("name", DOUBTFUL)
def test_what_is_wrong_at_some_points_is_warned_of(name):
    make, f, why = DOUBTFUL[name]
    transform = make(lambda x: tf.reduce_sum(f(x)), compile="graph")
    vector = {"vector": X} if make is hvp else {}
    with pytest.warns(FallbackWarning, match=rf"may be wrong at some points, since it .*{why}.* It is \w+ at .*:\d+"):
        transform(X, **vector)


CERTAIN = {
    "a mask of data": lambda x: tf.where(tf.constant([1.0, 0.0]) == 0, 1.0, x[:, :2] ** 2),
    "both depend": lambda x: tf.where(x == 0, 1 - x**2 / 6, tf.sin(x) / x),
    "a kink": lambda x: tf.maximum(x, 0) + tf.abs(x**3),
    "a square above a bound": lambda x: tf.maximum(tf.reduce_sum(x**2), 1e-12),
    "of an angle": lambda x: tf.nn.relu(0.5 - tf.cos(x)) + tf.abs(tf.sin(x) * tf.cos(x)),
    "the nearest": lambda x: tf.reduce_min(tf.reduce_sum((x[:, None] - x[0]) ** 2, -1), 1),
    "the range of three": lambda x: tf.reduce_max(x) - tf.reduce_min(x),
    "bounds": lambda x: tf.minimum(tf.maximum(x, 0.0), 1.0),
    "what is not differentiated": lambda x: x * tf.stop_gradient(tf.where(x == 0, 1.0, x)),
    "softplus": tf.nn.softplus,
}


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", CERTAIN)
def test_what_is_right_everywhere_is_not_warned_of(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        hessian(lambda x: tf.reduce_sum(CERTAIN[name](x)), compile="graph")(tf.cast(X, tf.float32))


@pytest.mark.parametrize(
    ("square", "second"), [(lambda x: tf.abs(x) * tf.abs(x), 2), (lambda x: tf.abs(tf.complex(x, x)) ** 2, 4)]
)
def test_the_square_of_an_absolute_value_is_warned_of(square, second):
    """Its second derivative is not 0 where it is 0, as TensorFlow's is: none of the factors' gradients can tell."""

    def loss(x):
        return tf.reduce_sum(square(x))

    transform = hvp(loss, compile="graph")
    with pytest.warns(FallbackWarning, match=r"hvp.* may be wrong at some points, since it squares an absolute value"):
        product = transform(X, vector=X)
    np.testing.assert_allclose(product, second * X, rtol=1e-9)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        value_and_gradient(loss, compile="graph")(X)
        hvp(lambda x: tf.reduce_sum(tf.abs(x) ** 3 + tf.abs(x) * x), compile="graph")(X, vector=X)


@pytest.mark.parametrize("compile", ["eager", "auto"])
def test_what_tensorflows_gradients_cannot_do_is_said(compile):
    with pytest.raises(LookupError, match=r"^value_and_gradient\(.*\): .*no derivative of tf.linalg.lstsq"):
        value_and_gradient(lambda x: tf.reduce_sum(tf.linalg.lstsq(x, x, fast=False)), compile=compile)(X)


@pytest.mark.parametrize("compile", ["eager", "auto"])
def test_second_derivatives_of_what_is_recomputed_are_refused(compile):
    with pytest.raises(LookupError, match=r"the gradient of what tf\.recompute_grad computes"):
        hvp(lambda x: tf.reduce_sum(tf.recompute_grad(tf.sin)(x) * x), compile=compile)(X, vector=X)


def test_second_derivatives_through_eig_are_warned_of():
    def loss(x):
        return tf.reduce_sum(tf.math.real(tf.linalg.eig(x + tf.transpose(x))[0]) ** 2)

    x = np.array([[1.0, 0.2], [0.3, 2.0]])
    with pytest.warns(FallbackWarning, match=r"hvp.* may be wrong at some points, since it computes tf\.linalg\.eig,"):
        hvp(loss, compile="graph")(x, vector=x)


@pytest.mark.parametrize(("name", "weight"), [("segment_sum", 1.0), ("segment_sqrt_n", 0.5**0.5)])
def test_rows_of_sparse_segments_are_right(name, weight):
    """The converter of `tf.vectorized_map` mistakes their gradients where the last segments are empty."""

    def f(x):
        return getattr(tf.sparse, name)(x, [0, 1, 2], [0, 2, 2], num_segments=5)

    wanted = [[1, 0, 0], [0] * 3, [0, weight, weight], [0] * 3, [0] * 3]
    np.testing.assert_allclose(jacobian(f, mode="reverse")(np.arange(3.0)[:, None])[:, 0, :, 0], wanted)


def in_numpy(upstream):
    return tf.ensure_shape(tf.numpy_function(np.copy, [upstream], tf.float32), upstream.shape)


clip = tf.function(lambda upstream: tf.clip_by_value(upstream, -0.1, 0.1))
clips_its_cotangent = tf.custom_gradient(lambda x: (tf.identity(x), clip.python_function))
scales_its_cotangent = tf.custom_gradient(lambda x: (x**2, lambda upstream: 2.0 * x * upstream))


def gauss_newton(f, compile):
    w = tf.Variable([0.5, -0.75])
    product = ggnvp(lambda x: x * f(w), lambda y: tf.reduce_sum(y**2), wrt=w, compile=compile)
    return product(tf.ones([2]), vector=tf.constant([1.0, 2.0]))


PAIR = tf.constant([0.5, -0.75])
WITH_TANGENTS = {
    "jvp": lambda f, compile: jvp(f, compile=compile)(PAIR, tangents=tf.constant([1.0, 2.0])),
    "jacobian": lambda f, compile: jacobian(f, mode="forward", compile=compile)(PAIR),
    "batch_jacobian": lambda f, compile: batch_jacobian(f, mode="forward", compile=compile)(PAIR[None]),
    "ggnvp": gauss_newton,
    "hessian": lambda f, compile: hessian(lambda x: tf.reduce_sum(f(x) ** 2), compile=compile)(PAIR),
}


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("compile", ["eager", "graph"])
@pytest.mark.parametrize("name", WITH_TANGENTS)
def test_what_needs_a_gradient_that_is_linear_refuses_another(name, compile):
    """Such as one that clips: it has products with cotangents, and those are no transpose of anything."""
    for rule in (tf.nn.relu, tf.sign, clip.python_function, clip, tf.function(tf.round), in_numpy):
        bent = tf.custom_gradient(lambda x, rule=rule: (x**2, rule))
        with pytest.raises(ValueError, match=r"is not linear in its cotangents.*test_derivatives_gaps"):
            WITH_TANGENTS[name](bent, compile)
    for scale in (lambda u: 2.0 * u, tf.function(lambda u: tf.function(lambda u: (2.0 * u, tf.sign(u)))(u)[0])):
        WITH_TANGENTS[name](tf.custom_gradient(lambda x, scale=scale: (x**2, lambda u: scale(x * u))), compile)


def test_the_look_for_a_linear_gradient_changes_nothing():
    count = tf.Variable(0.0)
    jvp(lambda x: scales_its_cotangent(x) + 0.0 * count.assign_add(1.0))(PAIR, tangents=PAIR)
    assert count.numpy() == 1.0


@pytest.mark.parametrize("pushed", [lambda f: jvp(f)(PAIR, tangents=PAIR), lambda f: linearize(f)(PAIR)])
def test_where_a_custom_gradient_is_hidden_the_reason_is_said(pushed):
    with pytest.raises(ValueError, match="TensorFlow does not show that of one in a loop"):
        pushed(lambda x: tf.while_loop(lambda y: y[0] > 9.0, scales_its_cotangent, [x]))
    with pytest.warns(FallbackWarning, match="TensorFlow does not show that of one in a loop"):
        hessian(lambda x: tf.reduce_sum(tf.while_loop(lambda y: y[0] > 9.0, scales_its_cotangent, [x])[0]))(PAIR)
    with pytest.raises(NotImplementedError, match=r"in a branch of tf\.cond once"):
        pushed(lambda x: tf.cond(x[0] > 0.0, lambda: scales_its_cotangent(x), lambda: x))


def test_products_with_cotangents_take_a_gradient_that_is_not_linear():
    np.testing.assert_allclose(vjp(clips_its_cotangent)(PAIR, cotangents=tf.ones([2]))[1], [0.1, 0.1])
    w = tf.Variable([2.0])
    found = per_example_gradients(lambda x: clips_its_cotangent(x * w), wrt=w)(PAIR)
    np.testing.assert_allclose(tf.reshape(tf.nest.flatten(found)[-1], [-1]), 0.1 * PAIR)
