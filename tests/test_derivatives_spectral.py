"""Derivatives of decompositions at equal eigenvalues and of small matrices: against closed forms and differences."""

from tapelab.derivatives import (
    batch_jacobian,
    hessian,
    hvp,
    jacobian,
    jvp,
    laplacian,
    value_and_gradient,
    vjp,
)
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

GENERATOR = np.random.default_rng(5)
W = GENERATOR.standard_normal((3, 3))
E = GENERATOR.standard_normal((3, 3))
Q = np.linalg.qr(GENERATOR.standard_normal((3, 3)))[0]
POINTS = {
    "the identity": np.eye(3),
    "diagonal": np.diag([2.0, 2.0, 3.0]),
    "two equal": Q @ np.diag([2.0, 2.0, 3.0]) @ Q.T,
    "nearly equal": Q @ np.diag([2.0, 2.0 + 1e-11, 3.0]) @ Q.T,
    "small": 1e-6 * Q @ np.diag([2.0, 2.0, 3.0]) @ Q.T,
    "small and different": 1e-6 * Q @ np.diag([2.0, 2.1, 3.0]) @ Q.T,
    "different": Q @ np.diag([1.0, 2.0, 4.0]) @ Q.T,
}


def symmetric(x):
    return (x + tf.linalg.matrix_transpose(x)) / 2


def weighted(matrix):
    return tf.reduce_sum(tf.constant(W, matrix.dtype) * matrix)


def by_eigh(function):
    """A function of a symmetric matrix, computed as users do."""

    def f(x):
        values, vectors = tf.linalg.eigh(symmetric(x))
        return tf.matmul(vectors * function(values)[..., None, :], vectors, transpose_b=True)

    return f


def by_svd(function):
    def f(x):
        values, left, right = tf.linalg.svd(x)
        return tf.matmul(left * function(values)[..., None, :], right, transpose_b=True)

    return f


def daleckii_krein(a, direction, slope, difference):
    """The derivative of a function of a symmetric matrix: divided differences in its eigenbasis, the slope at ties."""
    values, vectors = np.linalg.eigh(a)
    x, y = values[:, None], values[None, :]
    tied = np.abs(x - y) < 1e-9 * np.abs(values).max()
    divided = np.where(tied, slope((x + y) / 2), difference(x, y) / np.where(tied, 1, x - y))
    direction = vectors.T @ ((direction + direction.T) / 2) @ vectors
    return vectors @ (divided * direction) @ vectors.T


# Of a function: itself, its slope, and f(x) - f(y) without loss of digits.
FUNCTIONS = {
    "square root": (tf.sqrt, lambda x: 0.5 / np.sqrt(x), lambda x, y: (x - y) / (np.sqrt(x) + np.sqrt(y))),
    "logarithm": (tf.math.log, lambda x: 1 / x, lambda x, y: np.log(x / y)),
    "inverse": (lambda e: 1 / e, lambda x: -1 / x**2, lambda x, y: (y - x) / (x * y)),
    "square": (tf.square, lambda x: 2 * x, lambda x, y: (x - y) * (x + y)),
}


def polar_gradient(a):
    """Of the sum of W times the polar factor: only the skew part of UᴴWV turns it."""
    u, s, vt = np.linalg.svd(a)
    turn = u.T @ W @ vt.T
    return u @ ((turn - turn.T) / (s[:, None] + s[None, :])) @ vt


def near(got, truth, tolerance, at=""):
    got, truth = np.asarray(got, float), np.asarray(truth, float).reshape(np.shape(got))
    np.testing.assert_allclose(got, truth, rtol=0, atol=tolerance * np.abs(truth).max(), err_msg=at)


def at(point, dtype="float64"):
    return tf.constant(POINTS[point], dtype)


# What is differentiated is compiled once and held, and called at each of the points.


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("way", ["graph", "xla"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradient_of_a_function_of_a_matrix(name, way):
    function, *oracle = FUNCTIONS[name]
    gradient = value_and_gradient(lambda x: weighted(by_eigh(function)(x)), compile=way)
    for point, x in POINTS.items():
        tolerance = 1e-4 if way == "xla" and "different" in point else 1e-9  # XLA's eigenvectors are less accurate
        near(gradient(at(point))[1], daleckii_krein(x, W, *oracle), tolerance, point)


@pytest.mark.dear
def test_in_float32():
    function, *oracle = FUNCTIONS["square root"]
    f = by_eigh(function)

    def log_determinant(x):
        return tf.reduce_sum(tf.math.log(tf.linalg.eigvalsh(symmetric(x))))

    root = value_and_gradient(lambda x: weighted(f(x)))
    polar = value_and_gradient(lambda x: weighted(by_svd(tf.ones_like)(x)))
    product = hvp(log_determinant)
    for point in ("the identity", "two equal", "small", "different"):
        x = at(point, "float32")
        near(root(x)[1], daleckii_krein(POINTS[point], W, *oracle), 1e-4, point)
        near(polar(x)[1], polar_gradient(POINTS[point]), 1e-4, point)
        inverse = np.linalg.inv(POINTS[point])  # the gradient of log det
        near(product(x, vector=tf.constant(E, "float32")), -inverse @ (E + E.T) @ inverse / 2, 1e-3, point)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("way", ["graph", "xla"])
def test_jacobian_and_products(way):
    """Cotangents and tangents one at a time, and all rows at once, of which some have no diagonal entries."""
    function, *oracle = FUNCTIONS["square root"]
    f, tolerance = by_eigh(function), 1e-4 if way == "xla" else 1e-9
    rows = [jacobian(f, mode=mode, compile=way) for mode in ("forward", "reverse")]
    pushed, pulled = jvp(f, compile=way), vjp(f, compile=way)
    for point in ("two equal", "the identity", "different"):
        x = at(point)
        truth = np.stack([daleckii_krein(POINTS[point], e.reshape(3, 3), *oracle).ravel() for e in np.eye(9)])
        for each in rows:
            near(each(x), truth, tolerance, point)
        near(pushed(x, tangents=tf.constant(E))[1], truth.T @ E.ravel(), tolerance, point)
        near(pulled(x, cotangents=tf.constant(W))[1], truth @ W.ravel(), tolerance, point)


VALUES = {
    "Σλ²": (
        lambda x: tf.reduce_sum(tf.linalg.eigvalsh(symmetric(x)) ** 2),
        lambda x: 2 + 0 * x,
        lambda x, y: 2 * (x - y),
    ),
    "Σλ³, with vectors": (
        lambda x: tf.reduce_sum(tf.linalg.eigh(symmetric(x))[0] ** 3),
        lambda x: 6 * x,
        lambda x, y: 3 * (x - y) * (x + y),
    ),
    "log det": (
        lambda x: tf.reduce_sum(tf.math.log(tf.linalg.eigvalsh(symmetric(x)))),
        lambda x: -1 / x**2,
        lambda x, y: (y - x) / (x * y),
    ),
    "Σσ⁴, with vectors": (
        lambda x: tf.reduce_sum(tf.linalg.svd(symmetric(x))[0] ** 4),
        lambda x: 12 * x**2,
        lambda x, y: 4 * (x - y) * (x**2 + x * y + y**2),
    ),
    "nuclear norm": (
        lambda x: tf.reduce_sum(tf.linalg.svd(symmetric(x), compute_uv=False)),
        lambda x: 0 * x,
        lambda x, y: 0 * x * y,
    ),
}


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("name", VALUES)
def test_hessian_of_a_function_of_eigenvalues_alone(name):
    f, *oracle = VALUES[name]
    whole, product = hessian(f), hvp(f)
    for point in ("two equal", "the identity", "nearly equal", "small", "different"):
        truth = [daleckii_krein(POINTS[point], e.reshape(3, 3), *oracle).ravel() for e in np.eye(9)]
        scale = max(np.abs(truth).max(), 1e-6 / np.abs(POINTS[point]).max())
        got = np.reshape(whole(at(point)), [9, 9])
        np.testing.assert_allclose(got, truth, rtol=0, atol=1e-8 * scale, err_msg=point)
        got, wanted = product(at(point), vector=tf.constant(E)), np.reshape(truth @ E.ravel(), [3, 3])
        near(got / scale + 1, wanted / scale + 1, 1e-8, point)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (3, 2)])
def test_hessian_of_the_sum_of_squared_singular_values(shape):
    """It is that of Σ x², at any matrix: of any shape, and where values are zero."""
    whole = hessian(lambda x: tf.reduce_sum(tf.linalg.svd(x, compute_uv=False) ** 2))
    for x in (
        np.eye(*shape),
        np.diag([1.0, 0.0, 0.0])[: shape[0], : shape[1]],
        np.zeros(shape),
        W[: shape[0], : shape[1]],
    ):
        np.testing.assert_allclose(np.reshape(whole(tf.constant(x)), [x.size] * 2), 2 * np.eye(x.size), atol=1e-12)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("way", ["auto", "graph", "eager"])
def test_polar_factor(way):
    gradient = value_and_gradient(lambda x: weighted(by_svd(tf.ones_like)(x)), compile=way)
    for point in ("the identity", "small", "small and different", "different"):
        got = gradient(at(point))[1]
        if way == "eager" and point in ("the identity", "small"):
            assert np.isnan(got).any()
        else:
            near(got, polar_gradient(POINTS[point]), 1e-9, point)


def test_xla_does_not_decompose():
    """XLA's kernel takes a small matrix for a diagonal one. So it is not used, and refused where it is asked for."""

    def f(x):
        return tf.reduce_sum(tf.linalg.svd(x, compute_uv=False) ** 2)

    x = tf.constant(1e-6 * W)
    assert hessian(f).plan(x).compiled == "graph"
    with pytest.raises(RuntimeError, match="singular values and vectors to an absolute 1e-6"):
        value_and_gradient(f, compile="xla")(x)


def differences(f, x, step=1e-3):
    """The gradient of a number by central differences, extrapolated."""

    def central(step):
        shifts = step * np.eye(x.size).reshape(-1, *x.shape)
        return np.array([float(f(tf.constant(x + e)) - f(tf.constant(x - e))) / (2 * step) for e in shifts])

    return ((4 * central(step / 2) - central(step)) / 3).reshape(x.shape)


def pinv_by_svd(x):
    values, left, right = tf.linalg.svd(x)
    return tf.matmul(right / values[..., None, :], left, transpose_b=True)


def pinv(x):
    return tf.linalg.pinv(x)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("f", [pinv, pinv_by_svd])
@pytest.mark.parametrize("shape", [(3, 3), (2, 3), (4, 2)])
def test_pseudoinverse(f, shape):
    x, weights = np.eye(*shape), GENERATOR.standard_normal(shape[::-1])

    def number(x):
        return tf.reduce_sum(f(x) * weights)

    gradient = value_and_gradient(number, compile="graph")
    near(gradient(tf.constant(x))[1], differences(number, x), 1e-8)
    if f is pinv:
        v = GENERATOR.standard_normal(shape)

        def along(x):
            return tf.reduce_sum(gradient(x)[1] * v)

        for each in (number, tf.function(number)):  # a graph of its own has a second gradient of its own
            near(hvp(each)(tf.constant(x), vector=tf.constant(v)), differences(along, x), 1e-7)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("shape", [(2, 3), (3, 2), (2, 4), (4, 2)])
@pytest.mark.parametrize("full", [False, True])
def test_polar_factor_that_is_not_square(shape, full):
    def f(x):
        _, left, right = tf.linalg.svd(x, full_matrices=full)
        return tf.reduce_sum(tf.matmul(left[:, :2], right[:, :2], transpose_b=True) * weights)

    x, weights = np.eye(*shape), GENERATOR.standard_normal(shape)
    near(value_and_gradient(f)(tf.constant(x))[1], differences(f, x), 1e-8)


def hermitian(x):
    x = tf.complex(x[0], x[1])
    return (x + tf.linalg.adjoint(x)) / 2


def hermitian_root(x):
    values, vectors = tf.linalg.eigh(hermitian(x))
    return tf.matmul(vectors * tf.sqrt(values), vectors, adjoint_b=True)


def complex_polar(x):
    _, left, right = tf.linalg.svd(tf.complex(x[0], x[1]))
    return tf.matmul(left, right, adjoint_b=True)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("point", [np.eye(3) + 0j, np.diag([2.0, 2.0, 3.0]) + 0j, 3 * np.eye(3) + W + 1j * E])
@pytest.mark.parametrize("f", [hermitian_root, complex_polar])
def test_complex_matrices(f, point):
    def number(x):
        y = f(x)
        return tf.reduce_sum(W * tf.math.real(y) + E * tf.math.imag(y))

    x = np.stack([point.real, point.imag])
    near(value_and_gradient(number, compile="graph")(tf.constant(x))[1], differences(number, x), 1e-7)


@pytest.mark.thorough
def test_second_derivatives_of_a_complex_decomposition():
    def number(x):
        return tf.math.real(complex_polar(x)[0, 1])

    x, v = np.stack([3 * np.eye(3) + W, E]), GENERATOR.standard_normal((2, 3, 3))
    gradient = value_and_gradient(number, compile="graph")
    near(
        hvp(number)(tf.constant(x), vector=tf.constant(v)),
        differences(lambda x: tf.reduce_sum(gradient(x)[1] * v), x),
        1e-7,
    )


WITHOUT_DERIVATIVE = {
    "an eigenvector": lambda x: tf.linalg.eigh(symmetric(x))[1][0, 0],
    "one that is stationary": lambda x: tf.linalg.eigh(symmetric(x))[1][0, 0] ** 2,
    "a singular vector": lambda x: tf.linalg.svd(x)[1][0, 2],
    "both": lambda x: (lambda values, u, v: u[0, 2] * v[1, 2])(*tf.linalg.svd(x)),
}


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("name", WITHOUT_DERIVATIVE)
def test_what_has_no_derivative_is_nan(name):
    f = WITHOUT_DERIVATIVE[name]
    gradient, product = value_and_gradient(f, compile="graph"), jvp(f)
    within = value_and_gradient(tf.function(f, autograph=False))
    for point in ("the identity", "diagonal"):
        assert np.isnan(gradient(at(point))[1]).any(), point
        assert np.isnan(product(at(point), tangents=tf.constant(E))[1]), point
        assert np.isnan(within(at(point))[1]).any(), point


@pytest.mark.thorough
def test_squares_of_eigenvectors_that_add_up():
    """Of two functions without a derivative, the sum has one."""

    def f(x):
        return tf.linalg.eigh(symmetric(x))[1][0] ** 2

    x = at("two equal")
    np.testing.assert_allclose(value_and_gradient(lambda x: tf.reduce_sum(f(x)))(x)[1], 0, atol=1e-12)
    np.testing.assert_array_equal(np.isnan(jvp(f)(x, tangents=tf.constant(E))[1]), [True, True, False])
    np.testing.assert_array_equal(np.isnan(jacobian(f)(x)).any((1, 2)), [True, True, False])


@pytest.mark.dear
def test_the_phase_of_a_complex_vector_has_no_derivative():
    def f(x):
        return tf.math.real(tf.linalg.svd(tf.complex(x[0], x[1]))[1][0, 0])

    assert np.isnan(value_and_gradient(f, compile="graph")(tf.constant(np.stack([W, E])))[1]).any()


@pytest.mark.dear
def test_second_derivatives_of_eigenvectors_at_equal_eigenvalues_are_nan():
    product = hvp(lambda x: weighted(by_eigh(tf.sqrt)(x)))
    assert np.isnan(product(at("two equal"), vector=tf.constant(E))).any()
    assert np.isfinite(product(at("different"), vector=tf.constant(E))).all()


@pytest.mark.thorough
def test_one_decomposition_after_another():
    """The gradient takes limits through both; for second derivatives they would be a graph of minutes and gigabytes."""
    root, exponential, both = by_eigh(tf.sqrt), by_eigh(tf.exp), by_eigh(lambda values: tf.exp(tf.sqrt(values)))

    def twice(x):
        return weighted(exponential(root(x)))

    def once(x):
        return weighted(both(x))

    for point in ("the identity", "different"):
        near(value_and_gradient(twice)(at(point))[1], value_and_gradient(once)(at(point))[1], 1e-9)
    product, direction = hvp(twice), tf.constant(E)
    near(product(at("different"), vector=direction), hvp(once)(at("different"), vector=direction), 1e-8)
    assert np.isnan(product(at("two equal"), vector=direction)).any()


@pytest.mark.thorough
@pytest.mark.parametrize("function", [tf.sqrt, tf.math.log])
def test_functions_within(function):
    """A function within is differentiated apart: right where it is whole, NaN where it returns eigenvectors."""
    truth = daleckii_krein(np.eye(3), W, *next(of for own, *of in FUNCTIONS.values() if own is function))
    f, decompose = by_eigh(function), tf.function(tf.linalg.eigh)

    def apart(x):
        values, vectors = decompose(symmetric(x))
        return tf.matmul(vectors * function(values), vectors, transpose_b=True)

    near(value_and_gradient(tf.function(lambda x: weighted(f(x)), autograph=False))(at("the identity"))[1], truth, 1e-9)
    assert np.isnan(value_and_gradient(lambda x: weighted(apart(x)))(at("the identity"))[1]).any()


def test_eagerly_a_limit_is_nan():
    x = at("two equal")

    def values(x):
        return tf.reduce_sum(tf.linalg.eigvalsh(symmetric(x)) ** 2)

    near(value_and_gradient(values, compile="eager")(x)[1], 2 * POINTS["two equal"], 1e-12)
    assert np.isnan(hvp(values, compile="eager")(x, vector=tf.constant(E))).any()
    assert np.isnan(value_and_gradient(lambda x: weighted(by_eigh(tf.sqrt)(x)), compile="eager")(x)[1]).any()
    near(hvp(values, compile="eager")(at("different"), vector=tf.constant(E)), E + E.T, 1e-12)


@pytest.mark.thorough
def test_batches():
    """One with equal eigenvalues among others, one without a derivative among others."""
    names = ["two equal", "different", "the identity", "small"]
    x = tf.constant(np.stack([POINTS[name] for name in names]))
    function, *oracle = FUNCTIONS["square root"]
    truth = np.stack([daleckii_krein(POINTS[name], W, *oracle) for name in names])

    def f(x):
        return tf.reduce_sum(W * by_eigh(function)(x), [-2, -1])

    near(value_and_gradient(lambda x: tf.reduce_sum(f(x)))(x)[1], truth, 1e-9)
    near(batch_jacobian(f)(x), truth, 1e-9)
    vector = value_and_gradient(lambda x: tf.reduce_sum(tf.linalg.eigh(symmetric(x))[1][:, 0, 0]))(x)[1]
    np.testing.assert_array_equal(np.isnan(vector).any((1, 2)), [True, False, True, True])


def cosines(*parts):
    return tf.add_n([tf.reduce_sum(tf.cos(part) ** 2) for part in parts])


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(
    "f",
    [
        lambda x: cosines(*tf.linalg.eigh(x)),
        lambda x: cosines(*tf.linalg.svd(x)),
        lambda x: cosines(*tf.linalg.svd(x[:, :2])),
        lambda x: cosines(*tf.linalg.svd(x[:2], full_matrices=True)),
        lambda x: cosines(tf.linalg.pinv(x[:2])),
    ],
    ids=["eigh", "svd", "tall", "wide, full", "pinv"],
)
def test_the_rest_is_as_in_tensorflow(f):
    """At ordinary points, with its convention that the lower triangle has the gradient."""
    x = tf.constant(3 * np.eye(3) + W)
    near(value_and_gradient(f, compile="graph")(x)[1], by_tape.gradient(f, x), 1e-10)


@pytest.mark.thorough(keep=1)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize(
    ("f", "trace"),
    [
        (lambda x: tf.reduce_sum(tf.linalg.eigvalsh(symmetric(x)) ** 2), 12),
        (lambda x: tf.reduce_sum(tf.math.log(tf.linalg.eigvalsh(symmetric(x)))), -6),
        (lambda x: tf.reduce_sum(tf.linalg.svd(x, compute_uv=False) ** 2), 18),
        (lambda x: tf.linalg.trace(tf.linalg.pinv(x)), 6),
    ],
    ids=["squares", "logarithms", "singular values", "pinv"],
)
def test_the_laplacian_at_the_identity(f, trace):
    """Taylor mode has no rule of these: along a curve, terms would be missing where values are equal."""
    np.testing.assert_allclose(laplacian(f, batched=False)(tf.eye(3, dtype=tf.float64)), trace, rtol=1e-6)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("compile", ["eager", "graph", "xla"])
def test_cholesky_depends_on_the_lower_triangle_alone(compile):
    matrix, step = np.array([[2.0, 0.1], [0.3, 1.0]]), 1e-5

    def f(x):
        return tf.reduce_sum(tf.constant([[1.0, 2.0], [3.0, 5.0]], tf.float64) * tf.linalg.cholesky(x))

    moved = step * np.eye(4).reshape(4, 2, 2)
    slopes = [(float(f(matrix + each)) - float(f(matrix - each))) / (2 * step) for each in moved]
    gradient = value_and_gradient(f, compile=compile)(matrix)[1]
    np.testing.assert_allclose(np.ravel(gradient), slopes, rtol=1e-8, atol=1e-9)
    assert not np.any(np.reshape(hessian(f, compile=compile)(matrix), (4, 4))[1])
