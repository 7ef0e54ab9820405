"""Kernels that compute something else than their operation are not used, or the derivative is refused."""

import warnings

from tapelab.derivatives import FallbackWarning, hessian, hvp, jacobian, jvp, per_example_gradients, value_and_gradient
from tapelab.derivatives.wrong.kernels import out_of_range
from tapelab.graphs.operations import of_family
from tapelab.runtime import tf

import numpy as np
import pytest
from operation_calls import INDEXED, indexed

Z = np.array([0.3, -1.1, 0.8, 0.7, 0.4, -0.9])  # three real parts, three imaginary ones


def of_complex(f):
    return lambda x: tf.math.real(tf.reduce_sum((1 + 2j) * f(tf.complex(x[:3], x[3:]))))


def test_the_gradient_of_a_complex_root():
    along = (1 + 2j) * 0.5 / np.sqrt(Z[:3] + 1j * Z[3:])
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # what is compiled instead is as good: nothing to warn of
        derivative = value_and_gradient(of_complex(tf.sqrt))
        np.testing.assert_allclose(derivative(Z)[1], np.concatenate([along.real, -along.imag]), rtol=1e-12)
    assert "without the conjugate" in " ".join(derivative.plan(Z).given_up)
    with pytest.raises(RuntimeError, match=r'without the conjugate.*Use compile="auto"'):
        value_and_gradient(of_complex(tf.sqrt), compile="xla")(Z)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(
    ("f", "slope"),
    [(tf.math.reciprocal, lambda z: -(z**-2.0)), (tf.math.rsqrt, lambda z: -0.5 / np.sqrt(z) ** 3)],
    ids=["reciprocal", "rsqrt"],
)
def test_the_kernel_for_a_complex_reciprocal_or_its_root_is_not_met(f, slope):
    """Our gradients are made of products and quotients."""
    along = (1 + 2j) * slope(Z[:3] + 1j * Z[3:])
    found = value_and_gradient(of_complex(f), compile="xla")(Z)[1]
    np.testing.assert_allclose(found, np.concatenate([along.real, -along.imag]), rtol=1e-12)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("compile", ["auto", "xla"])
def test_second_derivatives_of_a_complex_logarithm(compile):
    """TensorFlow's gradient is a reciprocal, whose own gradient meets a kernel of XLA's that is wrong."""
    second = (1 + 2j) * -((Z[:3] + 1j * Z[3:]) ** -2.0)
    re, im = np.diag(second.real), np.diag(second.imag)
    found = hessian(of_complex(tf.math.log), compile=compile)(Z)
    np.testing.assert_allclose(found, np.block([[re, -im], [-im, -re]]), rtol=1e-11, atol=1e-12)


def resized(x):
    return tf.reduce_sum(tf.cast(tf.image.resize(tf.reshape(x, [1, 3, 2, 1]), (4, 4)), tf.float64) ** 2)


def test_the_gradient_of_a_resized_float64_image():
    derivative = value_and_gradient(resized)
    # Of a quadratic function central differences are exact with any step: a large one, as the values are float32.
    slopes = [(resized(tf.constant(Z + e)) - resized(tf.constant(Z - e))) / 2 for e in np.eye(6)]
    np.testing.assert_allclose(derivative(Z)[1], slopes, rtol=1e-4, atol=1e-4)
    assert derivative.plan(Z).compiled == "graph"
    with pytest.raises(RuntimeError, match="ResizeBilinearGrad of float64"):
        value_and_gradient(resized, compile="xla")(Z)


def pooled(x):
    return tf.nn.max_pool2d(tf.reshape(tf.sin(x), [1, 3, 2, 1]), 2, 1, "SAME")


def pooled_in_three_dimensions(x):
    return tf.nn.max_pool3d(tf.reshape(tf.sin(x), [1, 3, 2, 1, 1]), 2, 1, "SAME")


def maxima(x, v):
    """The tangents of the maxima over windows of two by two."""
    values = np.pad(np.sin(x).reshape(3, 2), [(0, 1)] * 2, constant_values=-np.inf)
    tangents = np.pad((np.cos(x) * v).reshape(3, 2), [(0, 1)] * 2)
    windows = [(slice(i, i + 2), slice(j, j + 2)) for i in range(3) for j in range(2)]
    return np.array([tangents[w].ravel()[values[w].argmax()] for w in windows])


X32, V32 = Z.astype(np.float32), np.arange(1, 7, dtype=np.float32)


@pytest.mark.parametrize("f", [pooled, pooled_in_three_dimensions])
def test_forward_mode_through_max_pooling_of_stride_one(f):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        np.testing.assert_allclose(np.ravel(jvp(f)(X32, tangents=V32)[1]), maxima(X32, V32), rtol=1e-5)
    with pytest.raises(RuntimeError, match="GradGrad is zero where strides are 1"):
        jvp(f, compile="graph")(X32, tangents=V32)


def test_two_numbers_that_xla_takes_for_equal():
    x, v = np.float32([1.0, 1.0001]), np.float32([3.0, 4.0])

    def largest(x):
        return tf.nn.max_pool2d(tf.reshape(x, [1, 1, 2, 1]), [1, 2], 1, "VALID")

    derivative = jvp(largest)
    assert np.ravel(derivative(x, tangents=v)[1]) == [4]
    assert derivative.plan(x, tangents=v).compiled == "graph"
    with pytest.raises(RuntimeError, match="compares 16 bits"):
        jvp(largest, compile="xla")(x, tangents=v)


def test_second_derivatives_through_max_pooling_of_stride_one():
    """Of y², y the maxima of the sines: 2 (y'y' + y y''), by each element alone."""
    values = np.pad(np.sin(X32).reshape(3, 2), [(0, 1)] * 2, constant_values=-np.inf)
    times = np.zeros(6)  # how often an element is the largest of a window
    for i in range(3):
        for j in range(2):
            row, column = np.unravel_index(values[i : i + 2, j : j + 2].argmax(), (2, 2))
            times[2 * (i + row) + j + column] += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        found = hvp(lambda x: tf.reduce_sum(pooled(x) ** 2))(X32, vector=V32)
    np.testing.assert_allclose(found, 2 * times * np.cos(2 * X32) * V32, rtol=1e-4, atol=1e-5)


def test_max_pooling_of_other_strides_stays_in_a_graph():
    def f(x):
        return tf.nn.max_pool3d(tf.reshape(tf.sin(x), [1, 3, 2, 1, 1]), (3, 2, 1), (3, 2, 1), "SAME")

    found = np.ravel(jvp(f, compile="graph")(X32, tangents=V32)[1])
    np.testing.assert_allclose(found, (np.cos(X32) * V32)[np.argmax(np.sin(X32))], rtol=1e-5)


def test_numbers_drawn_from_a_seed_are_the_functions_own():
    def f(x):
        return tf.reduce_sum(x * tf.random.stateless_normal([3], seed=[1, 2], dtype=tf.float64))

    drawn = tf.random.stateless_normal([3], seed=[1, 2], dtype=tf.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, gradient = value_and_gradient(f)(np.ones(3))
    np.testing.assert_array_equal(gradient, drawn)
    with pytest.raises(RuntimeError, match="draws other numbers"):
        value_and_gradient(f, compile="xla")(np.ones(3))


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("f", [tf.math.reduce_euclidean_norm, tf.math.cumulative_logsumexp])
def test_forward_mode_where_the_gradient_divides_by_the_cotangent(f):
    x = np.array([0.3, -1.1, 0.7])
    rows = jacobian(f, mode="reverse", compile="graph")(x)
    np.testing.assert_allclose(jacobian(f, mode="forward", compile="graph")(x), rows, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(jvp(f, compile="graph")(x, tangents=x)[1], tf.tensordot(rows, x, 1), rtol=1e-12)


@pytest.mark.dear(keep=2)
@pytest.mark.parametrize("compile", ["xla", "auto"])
@pytest.mark.parametrize(
    ("gather", "bad"),
    [
        (lambda x, i: tf.gather(x, i), [[7], [-1]]),
        (lambda x, i: tf.gather_nd(tf.reshape(x, [3, 2]), tf.stack([i, i], -1)), [[2], [-1]]),
    ],
    ids=["gather", "gather_nd"],
)
def test_an_index_out_of_range_raises_under_xla_too(gather, bad, compile):
    derivative = value_and_gradient(lambda x, i: tf.reduce_sum(gather(x, i) ** 2), compile=compile)
    plain = value_and_gradient(lambda x, i: tf.reduce_sum(gather(x, i) ** 2), compile="eager")
    right = tf.constant([1])
    np.testing.assert_allclose(derivative(Z, right)[1], plain(Z, right)[1])
    for index in bad:
        with pytest.raises(ValueError, match=r"value_and_gradient.*an index is out of range"):
            derivative(Z, tf.constant(index))


@pytest.mark.dear(keep=2)
@pytest.mark.parametrize("compile", ["xla", "auto"])
@pytest.mark.parametrize(
    "f",
    [
        lambda x, i: tf.TensorArray(tf.float64, 6).unstack(x).read(i),
        lambda x, i: tf.reverse_sequence(x[None], tf.reshape(i, [1]), seq_axis=1)[0, 0],
    ],
    ids=["tensor_array", "reverse_sequence"],
)
def test_a_place_out_of_range_raises_under_xla_too(f, compile):
    derivative = value_and_gradient(f, compile=compile)
    np.testing.assert_allclose(derivative(Z, tf.constant(3))[1], value_and_gradient(f, compile="eager")(Z, 3)[1])
    with pytest.raises(ValueError, match=r"an index is out of range"):
        derivative(Z, tf.constant(7))


def _in_a_branch(f):
    return lambda x, i: tf.cond(x[0] < 9, lambda: f(x, i), lambda: x[0])


def _in_a_loop(f):
    """Add up f(x, i) twice, in a loop of TensorFlow."""

    def loop(x, i):
        start = 0, tf.zeros([], x.dtype)
        return tf.while_loop(lambda n, _: n < 2, lambda n, s: (n + 1, s + f(x, i)), start, maximum_iterations=2)

    return lambda x, i: loop(x, i)[1]


def _read(x, i):
    return tf.TensorArray(tf.float64, 6).unstack(x).read(i) ** 2


def _written(x, i):
    return tf.reduce_sum(tf.TensorArray(tf.float64, 6).unstack(x).write(i, x[0] * x[1]).stack() ** 2)


def _read_in_turn(x, i):
    """Add up the squares of the elements up to the number i, in a loop of TensorFlow."""
    items = tf.TensorArray(tf.float64, 6).unstack(x)
    start = 0, tf.zeros([], x.dtype)
    return tf.while_loop(lambda n, _: n <= i, lambda n, s: (n + 1, s + items.read(n) ** 2), start, maximum_iterations=9)


@pytest.mark.dear(keep=2)
@pytest.mark.parametrize(
    ("f", "within"),
    [
        (_read, tf.function),
        (_read, _in_a_loop),
        (_written, _in_a_branch),
        (_written, _in_a_loop),
        (_read_in_turn, lambda f: lambda x, i: f(x, i)[1]),
        (lambda x, i: tf.gather(x, i) ** 2, _in_a_loop),
        (lambda x, i: tf.gather_nd(x, [[i]])[0] ** 2, _in_a_branch),
        (lambda x, i: tf.reduce_sum(tf.nn.embedding_lookup(x[:, None], i) ** 2), tf.function),
        (lambda x, i: tf.reduce_sum(tf.scatter_nd([[i]], x[:1], [6]) ** 2), tf.function),
        (lambda x, i: tf.reduce_sum(tf.tensor_scatter_nd_add(x, [[i]], x[:1]) ** 2), tf.function),
        (lambda x, i: tf.reduce_sum(tf.math.unsorted_segment_sum(x[:2], [0, i], 6) ** 2), tf.function),
    ],
    ids=[
        *("read", "read_in_loop", "written", "written_in_loop", "read_in_turn"),
        *("gather", "gather_nd", "embedding", "scatter", "scatter_add", "segments"),
    ],
)
def test_an_index_out_of_range_within_a_function_branch_or_loop_raises_or_is_told(f, within):
    f = within(f)
    derivative = value_and_gradient(f)
    np.testing.assert_allclose(derivative(Z, tf.constant(3))[1], value_and_gradient(f, compile="eager")(Z, 3)[1])
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        derivative(Z, tf.constant(7))
    with pytest.warns(FallbackWarning, match=r"XLA does not see an index out of range .*test_derivatives_kernels"):
        value_and_gradient(f, compile="xla")(Z, tf.constant(3))


def test_a_constant_index_in_range_costs_no_check_and_stays_with_xla():
    within = tf.function(lambda x: tf.reduce_sum(tf.gather(x, [5, 0]) ** 2))
    derivative = value_and_gradient(lambda x: within(x) + tf.gather(x, 2), compile="xla")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        derivative(Z)
    for index, known in ([5, 0], True), ([6, 0], False):
        graph = tf.function(lambda x, index=index: tf.gather(x, index)).get_concrete_function(Z).graph
        with graph.as_default():
            assert (out_of_range(graph) is None) == known


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("kind", sorted(set(INDEXED) - of_family("scattering") - {"TensorListSetItem"}))
def test_the_range_of_an_index_is_that_beyond_which_a_cpu_raises(kind):
    @tf.function(jit_compile=True)  # which raises nothing itself
    def leaves(at):
        indexed(kind, at)
        return out_of_range(tf.compat.v1.get_default_graph())

    for at in range(-2, 7):
        try:
            with tf.device("CPU:0"):
                indexed(kind, at)
        except tf.errors.InvalidArgumentError:
            assert leaves(tf.constant(at)), at
        else:
            assert not leaves(tf.constant(at)), at


GATED = tf.keras.layers.GRU(2)
GATED.build([1, 3, 2])


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: tf.map_fn(lambda row: tf.reduce_sum(row) ** 2, x),
        lambda x: tf.scan(lambda total, row: total * row, x),
        lambda x: GATED(tf.cast(x, tf.float32)[None]),
    ],
    ids=["map_fn", "scan", "recurrent"],
)
def test_elements_that_are_read_in_turn_stay_with_xla(f):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        value_and_gradient(lambda x: tf.reduce_sum(f(x)), compile="xla")(tf.reshape(Z, [3, 2]))


def test_examples_that_gather_across_the_batch_do_not_get_the_nearest_index():
    rolled, back = [2, 0, 1], [1, 2, 0]
    derivative = per_example_gradients(lambda x: tf.reduce_sum(tf.gather(tf.gather(x, rolled), back) ** 2))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError)):
        derivative(tf.reshape(Z, [3, 2]))
