"""Gauss-Newton and Fisher products, and curvature over a data set: against matrices that were built."""

from tapelab.derivatives import (
    CurvatureOperator,
    NotFiniteError,
    fvp,
    ggnvp,
    hessian,
    hvp,
    jacobian,
    pack,
)
from tapelab.runtime import tf

import numpy as np
import pytest
import scipy.sparse.linalg

RNG = np.random.default_rng(0)
X = tf.constant(RNG.standard_normal((7, 3)))
LABELS = tf.constant([0, 1, 2, 0, 1, 2, 2])
VALUES = tf.constant(RNG.standard_normal((7, 3)))
W = {
    "a": tf.Variable(RNG.standard_normal((3, 2))),
    "b": [tf.Variable(RNG.standard_normal((2, 3))), tf.Variable(RNG.standard_normal(3))],
}
N = 15
V = tf.constant(RNG.standard_normal(N))
ATOL = 1e-12  # float64, numbers of size 1 and sums of some dozens

cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, dtype="float64")
squared_error = tf.keras.losses.MeanSquaredError(dtype="float64")


# XLA takes a second for each program; the ways to compile are tested by the first test.
GRAPH = {"compile": "graph"}


def model(x):
    return tf.tanh(x @ W["a"]) @ W["b"][0] + W["b"][1]


def built(loss, y, x=X, f=model):
    """JᵀHJ from whole matrices."""
    z = f(x)
    rows = [tf.reshape(part, [tf.size(z), -1]) for part in tf.nest.flatten(jacobian(f, wrt=W, **GRAPH)(x))]
    J = np.concatenate(rows, axis=1)
    H = tf.reshape(hessian(lambda z: loss(y, z), **GRAPH)(z), [tf.size(z), -1]).numpy()
    return J.T @ H @ J


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("compile", ["xla", "graph", "eager"])
def test_ggn_is_the_product_of_three_matrices(compile):
    product = ggnvp(model, cross_entropy, wrt=W, packed=True, compile=compile)
    np.testing.assert_allclose(product(X, LABELS, vector=V), built(cross_entropy, LABELS) @ V.numpy(), atol=ATOL)
    assert product.plan(X, LABELS, vector=V).mode == "forward and reverse"


@pytest.mark.dear
def test_ggn_takes_and_returns_the_variables_structure():
    product = ggnvp(model, squared_error, wrt=W, check_finite=True, **GRAPH)
    vector = {"a": tf.ones([3, 2], tf.float64), "b": [tf.ones([2, 3], tf.float64), tf.zeros(3, tf.float64)]}
    found = product(X, VALUES, vector=vector)
    assert found.keys() == W.keys()
    np.testing.assert_allclose(pack(found), built(squared_error, VALUES) @ pack(vector).numpy(), atol=ATOL)
    with pytest.raises(ValueError, match=r"vector\['a'\] has shape \(2,\)"):
        product(X, VALUES, vector=vector | {"a": tf.ones(2, tf.float64)})
    with pytest.raises(NotFiniteError):
        product(X * np.nan, VALUES, vector=vector)


def sum_of(each):
    return lambda y, z: tf.reduce_sum(each(y, z))


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize(
    ("distribution", "loss", "y"),
    [
        ("categorical", cross_entropy, LABELS),
        ("gaussian", lambda y, z: tf.reduce_sum((y - z) ** 2) / 14, VALUES),
        ("bernoulli", lambda y, z: sum_of(tf.nn.sigmoid_cross_entropy_with_logits)(y, z) / 7, tf.round(VALUES**2 / 4)),
        ("poisson", lambda y, z: sum_of(tf.nn.log_poisson_loss)(y, z) / 7, tf.round(VALUES**2)),
    ],
)
def test_fisher_is_the_ggn_of_the_negative_log_likelihood(distribution, loss, y):
    product = fvp(model, distribution, wrt=W, packed=True, **GRAPH)
    found = product(X, vector=V)
    np.testing.assert_allclose(found, built(loss, y) @ V.numpy(), atol=ATOL)
    total = fvp(model, distribution, wrt=W, packed=True, **GRAPH, reduction="sum")
    np.testing.assert_allclose(total(X, vector=V), 7 * found, atol=10 * ATOL)


def test_fisher_is_an_expectation_over_the_models_labels_and_not_over_the_datas():
    """E[∇log p ∇log pᵀ], summed over all labels with their probabilities."""
    fisher, empirical = np.zeros([N, N]), np.zeros([N, N])
    probabilities = tf.nn.softmax(model(X)).numpy()
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(tf.nest.flatten(W))
        rows = tf.unstack(tf.nn.log_softmax(model(X)))
        each = [[row[label] for label in range(3)] for row in rows]
    for example in range(7):
        for label in range(3):
            g = pack(tape.gradient(each[example][label], W)).numpy()
            fisher += probabilities[example, label] * np.outer(g, g) / 7
            empirical += (label == LABELS[example].numpy()) * np.outer(g, g) / 7
    product = fvp(model, "categorical", wrt=W, packed=True, **GRAPH)
    np.testing.assert_allclose(product(X, vector=V), fisher @ V.numpy(), atol=ATOL)
    assert not np.allclose(product(X, vector=V), empirical @ V.numpy(), atol=0.01)


def cubes(z):
    return tf.py_function(lambda z: tf.reduce_sum(z**3), [z], tf.float64)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("known", [True, False])
def test_what_tensorflow_does_not_differentiate_twice_is_refused(known):
    def loss(z):
        result = cubes(z)
        if known:
            result.set_shape([])
        return result

    with pytest.raises(ValueError, match="py_function"):
        ggnvp(model, loss, wrt=W, packed=True, **GRAPH)(X, vector=V)
    with pytest.raises(ValueError, match="py_function"):
        hvp(loss)(X, vector=X)


def dataset(y, size):
    return tf.data.Dataset.from_tensor_slices((X, y)).batch(size)


MATRICES = {
    "hessian": lambda: hessian(lambda: cross_entropy(LABELS, model(X)), wrt=W, packed=True, **GRAPH)().numpy(),
    "ggn": lambda: built(cross_entropy, LABELS),
    "fisher": lambda: built(cross_entropy, LABELS),
}


def operator(kind="ggn", **options):
    loss = "categorical" if kind == "fisher" else cross_entropy
    return CurvatureOperator(model, loss, **(GRAPH | {"wrt": W, "data": (X, LABELS), "kind": kind} | options))


@pytest.fixture(scope="module")
def operators():
    """An operator of each kind, in batches of 3, 3 and 1, and the matrix."""
    return {kind: (operator(kind, data=dataset(LABELS, 3)), MATRICES[kind]()) for kind in MATRICES}


@pytest.mark.dear
@pytest.mark.parametrize("kind", MATRICES)
def test_each_kind_over_batches_with_a_smaller_last_one(operators, kind):
    A, matrix = operators[kind]
    assert (A.shape, A.dtype, A.kind) == ((N, N), tf.float64, kind)
    assert repr(A) == f"<CurvatureOperator {kind!r}, shape (15, 15), float64>"
    np.testing.assert_allclose(A @ V, matrix @ V.numpy(), atol=ATOL)
    columns = RNG.standard_normal((N, 11))  # more than go through the data at once
    np.testing.assert_allclose(A @ columns, matrix @ columns, atol=ATOL)
    assert (A @ columns[:, :1]).shape == (N, 1)
    structure = {"a": W["a"] * 1, "b": [W["b"][0] * 1, W["b"][1] * 1]}
    found = A @ structure
    assert found.keys() == W.keys()
    np.testing.assert_allclose(pack(found), matrix @ pack(W).numpy(), atol=ATOL)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("kind", MATRICES)
def test_sums_and_arrays_in_batches(operators, kind):
    def total(y, z):
        return tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, z))

    loss = "categorical" if kind == "fisher" else total
    A = CurvatureOperator(model, loss, wrt=W, data=(X, LABELS), kind=kind, reduction="sum", batch_size=3, **GRAPH)
    np.testing.assert_allclose(A @ V, 7 * operators[kind][1] @ V.numpy(), atol=10 * ATOL)


def test_the_matrix_is_that_of_the_variables_values_now(operators):
    A, _ = operators["ggn"]
    before, old = (A @ V).numpy(), W["a"].numpy()
    W["a"].assign(2 * old)
    np.testing.assert_allclose(A @ V, built(cross_entropy, LABELS) @ V.numpy(), atol=ATOL)
    W["a"].assign(old)
    np.testing.assert_array_equal(A @ V, before)


@pytest.mark.dear
def test_trace_and_diagonal(operators):
    A, matrix = operators["ggn"]
    diagonal = A.diagonal(exact=True)
    np.testing.assert_allclose(diagonal.value, np.diag(matrix), atol=ATOL)
    assert not diagonal.standard_error.any()
    assert A.trace(exact=True) == (pytest.approx(np.trace(matrix), abs=N * ATOL), 0.0)
    off = matrix - np.diag(np.diag(matrix))
    samples = 60
    for seed in range(3):
        estimate = A.trace(samples, seed=seed)
        # The variance of zᵀAz is 2 Σ_{i≠j} A_ij²; its estimate from 60 samples is good to some 10 % (more where a few
        # eigenvalues dominate).
        expected = np.sqrt(2 * np.sum(off**2) / samples)
        assert expected / 2 < estimate.standard_error < 2 * expected
        assert abs(estimate.value - np.trace(matrix)) < 5 * expected
        estimate = A.diagonal(samples, seed=seed)
        expected = np.sqrt(np.sum(off**2, axis=1) / samples)
        assert np.all(np.abs(estimate.value - np.diag(matrix)) < 6 * expected + ATOL)
        assert np.all((expected / 3 < estimate.standard_error) & (estimate.standard_error < 3 * expected))
    assert A.trace(6, seed=1) == A.trace(6, seed=1)
    assert A.trace(6) != A.trace(6)


def test_hutch_plus_plus_is_exact_where_the_rank_is_small(operators):
    A, matrix = operators["fisher"]
    rank = np.linalg.matrix_rank(matrix)
    assert rank < N
    estimate = A.trace(3 * int(rank), method="hutch++", seed=0)
    assert estimate.value == pytest.approx(np.trace(matrix), rel=1e-9)
    assert estimate.standard_error < 1e-9
    rough = A.trace(9, method="hutch++", seed=0)
    assert abs(rough.value - np.trace(matrix)) < 10 * rough.standard_error


def test_spectrum_of_the_operator(operators):
    A, matrix = operators["hessian"]
    exact = np.linalg.eigvalsh(matrix)
    found = A.spectrum(steps=N, probes=2, seed=0)  # fewer, where an eigenvalue occurs several times
    np.testing.assert_allclose(found.top(3).values, exact[:-4:-1], atol=1e-10)
    np.testing.assert_allclose(found.bottom(3).values, exact[:3], atol=1e-10)
    assert found.size == N
    assert [len(run.values) for run in A.spectrum(steps=4, probes=3).runs] == [4, 4, 4]


def test_scipys_view(operators):
    A, matrix = operators["hessian"]
    view = A.linear_operator()
    assert (view.shape, view.dtype) == ((N, N), np.float64)
    np.testing.assert_allclose(view @ np.eye(N), matrix, atol=ATOL)
    np.testing.assert_allclose(view.T @ np.ones(N, np.float32), matrix.sum(axis=1), atol=1e-6)
    largest = scipy.sparse.linalg.eigsh(view, k=2, which="LA", return_eigenvectors=False, v0=V)
    np.testing.assert_allclose(np.sort(largest), np.linalg.eigvalsh(matrix)[-2:], atol=1e-9)


@pytest.mark.thorough
def test_data_without_labels_and_nested_data():
    pairs = tf.data.Dataset.from_tensor_slices({"x": X, "scale": tf.ones(7, tf.float64)}).batch(4)
    A = CurvatureOperator(
        lambda d: model(d["x"]) * d["scale"][:, None], "categorical", wrt=W, data=pairs, kind="fisher", **GRAPH
    )
    np.testing.assert_allclose(A @ V, built(cross_entropy, LABELS) @ V.numpy(), atol=ATOL)
    B = CurvatureOperator(
        lambda d: model(d["x"]),
        lambda z: tf.reduce_mean(tf.reduce_logsumexp(z, 1)),
        wrt=W,
        data=pairs,
        kind="ggn",
        **GRAPH,
    )
    np.testing.assert_allclose(B @ V, A @ V, atol=ATOL)


def test_a_bar_counts_the_products_and_an_interrupt_harms_nothing(operators, monkeypatch):
    A, matrix = operators["ggn"]
    bars = []

    class Bar:
        def __init__(self, total, doing):
            self.total, self.doing, self.count, self.open = total, doing, 0, True
            bars.append(self)

        def __enter__(self):
            return self.advance

        def __exit__(self, *error):
            self.open = False

        def advance(self):
            self.count += 1
            if self.total == 30 and self.count == 5:
                raise KeyboardInterrupt

    monkeypatch.setattr("tapelab.derivatives.curvature.progress_bar", Bar)
    A.trace(9)
    A.diagonal(exact=True)
    A.spectrum(4, 2)
    assert [(bar.total, bar.count) for bar in bars] == [(9, 9), (N, N), (8, 8)]
    for call in (lambda: A.trace(30), lambda: A.spectrum(15, 2)):
        with pytest.raises(KeyboardInterrupt):
            call()
    assert not any(bar.open for bar in bars)
    np.testing.assert_allclose(A @ V, matrix @ V.numpy(), atol=ATOL)
