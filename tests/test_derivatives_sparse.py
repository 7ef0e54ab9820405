"""Sparse Jacobians and Hessians as transforms: values, results, plans, refusals, and what a held one sees."""

from tapelab.derivatives import (
    FallbackWarning,
    SparsePlan,
    SparsityError,
    hessian,
    jacobian,
    sparse_hessian,
    sparse_jacobian,
)
from tapelab.derivatives.sparse import pattern as patterns
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest
from scipy import sparse

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=12)


def coupled(x):
    """Each element with its neighbours, around a circle."""
    return tf.sin(x) * tf.roll(x, 1, 0) + tf.roll(x, -1, 0) ** 2


def energy(x):
    """A chain with an end: neighbours interact, and all of the first four."""
    return tf.reduce_sum(tf.cos(x[1:] - x[:-1]) * x[1:]) + tf.reduce_prod(x[:4])


def dense(found):
    return tf.sparse.to_dense(found).numpy()


def graph(transformation, f, **options):
    return transformation(f, compile="graph", **options)


@pytest.fixture(scope="module")
def rows():
    return graph(sparse_jacobian, coupled)


@pytest.fixture(scope="module")
def chain():
    return graph(sparse_hessian, energy)


def test_a_jacobian_equals_the_dense_one(rows):
    for scale in (1, 3):
        np.testing.assert_allclose(dense(rows(scale * X)), jacobian(coupled, compile="eager")(scale * X), atol=1e-13)
    plan = rows.plan(X)
    assert isinstance(plan, SparsePlan)
    assert (plan.mode, plan.coloured, plan.passes, plan.pattern.nnz) == ("forward", "columns", 3, 36)
    assert "36 places (0.25 of all), 3 colours in a colouring of columns" in str(plan)


def test_a_hessian_equals_the_dense_one(chain):
    np.testing.assert_allclose(dense(chain(X)), hessian(energy, compile="eager")(X), atol=1e-12)
    plan = chain.plan(X)
    assert (plan.mode, plan.coloured) == ("reverse over reverse", "symmetric")
    assert plan.passes <= 5
    assert plan.pattern.nnz == 12 + 22 + 6


@pytest.mark.dear
def test_all_ways_agree():
    wanted = jacobian(coupled, compile="eager")(X)
    for options in ({"compile": "xla"}, {"compile": "eager"}, {"mode": "reverse"}, {"chunk_size": 2}, {}):
        found = sparse_jacobian(coupled, **options)
        np.testing.assert_allclose(dense(found(X)), wanted, atol=1e-13)
        plan = found.plan(X)
        assert plan.compiled == options.get("compile", "xla")
        assert plan.mode == options.get("mode", "forward")
        assert plan.chunk == (1 if plan.compiled == "eager" else options.get("chunk_size", 3))


def several(parts, scale):
    """Two sources, two results."""
    a, b = parts["a"], parts["b"]
    return {"sum": scale * a[:, None] * b, "own": tf.sin(b[0])}


@pytest.mark.dear
def test_blocks_and_one_matrix():
    parts = {"a": tf.constant(X[:2]), "b": tf.constant(X[2:8].reshape(2, 3))}
    wanted = jacobian(several, compile="eager")(parts, 2.0)
    for mode in ("forward", "reverse"):
        blocks = sparse_jacobian(several, mode=mode, compile="eager")(parts, 2.0)
        for result, row in wanted.items():
            for source, block in row.items():
                size = parts[source].shape.num_elements()
                np.testing.assert_allclose(dense(blocks[result][source]), tf.reshape(block, [-1, size]), atol=1e-13)
    whole = dense(sparse_jacobian(several, packed=True, compile="eager")(parts, 2.0))
    packed = [[tf.reshape(wanted[r][s], [-1, n]) for s, n in (("a", 2), ("b", 6))] for r in ("own", "sum")]
    np.testing.assert_allclose(whole, np.block([[part.numpy() for part in row] for row in packed]), atol=1e-13)


@pytest.mark.thorough
def test_blocks_of_a_hessian_by_arguments():
    def f(x, y):
        return tf.reduce_sum(x[:, None] * tf.sin(y)) + tf.reduce_sum(y**3)

    x, y = tf.constant(X[:2]), tf.constant(X[2:8].reshape(2, 3))
    found = sparse_hessian(f, argnums=(0, 1), compile="eager")(x, y)
    wanted = hessian(f, argnums=(0, 1), compile="eager")(x, y)
    for row, right in zip(found, wanted, strict=True):
        for block, truth in zip(row, right, strict=True):
            np.testing.assert_allclose(dense(block), tf.reshape(truth, block.shape), atol=1e-13)
    packed = sparse_hessian(f, argnums=(0, 1), packed=True, compile="eager")(x, y)
    np.testing.assert_allclose(
        dense(packed), hessian(f, argnums=(0, 1), packed=True, compile="eager")(x, y), atol=1e-13
    )


@pytest.mark.dear
def test_variables_as_sources():
    table, scale = tf.Variable(X.reshape(6, 2)), tf.Variable([2.0, 3.0], dtype=tf.float64)

    def loss(numbers):
        return tf.reduce_sum(tf.sin(tf.gather(table, [0, 2, 2]) * scale) * numbers)

    numbers = tf.constant(X[:2])
    for wrt in ([table, scale], [scale]):
        found = sparse_hessian(loss, wrt=wrt, packed=True, compile="graph")
        np.testing.assert_allclose(
            dense(found(numbers)), hessian(loss, wrt=wrt, packed=True, compile="eager")(numbers), atol=1e-12
        )
    both = sparse_hessian(loss, wrt=[table, scale], packed=True, compile="eager").plan(numbers).pattern.toarray()
    assert both[:12, :12].sum() == 4  # each of the two rows on its own elements alone
    assert both[12:, 12:].sum() == 2


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_scipy_formats(form):
    found = sparse_jacobian(coupled, format=form, compile="eager")(X)
    assert isinstance(found, sparse.sparray)
    assert found.format == form
    np.testing.assert_allclose(found.toarray(), jacobian(coupled, compile="eager")(X), atol=1e-13)


@pytest.mark.dear
def test_a_scipy_matrix_is_the_callers_own():
    transform = sparse_jacobian(coupled, format="csr", compile="graph")
    first = transform(X)
    first.indices[:] = 0
    first.data[:] = 0
    np.testing.assert_allclose(transform(X).toarray(), jacobian(coupled, compile="eager")(X), atol=1e-13)


def test_entries_are_sorted_and_zeros_of_the_pattern_are_there():
    found = sparse_jacobian(lambda x: x * tf.roll(x, 1, 0), compile="eager")(tf.zeros(5, tf.float64))
    assert found.indices.shape == (10, 2)
    assert found.indices.numpy().tolist() == sorted(found.indices.numpy().tolist())


@pytest.mark.thorough
def test_single_precision_and_mixed():
    for dtype, tolerance in ((tf.float32, 1e-5), (tf.bfloat16, 0.1)):
        found = sparse_jacobian(coupled, compile="graph")(tf.constant(X, dtype))
        assert found.dtype == dtype
        np.testing.assert_allclose(
            tf.cast(tf.sparse.to_dense(found), tf.float64), jacobian(coupled, compile="eager")(X), atol=tolerance
        )

    def mixed(x, y):
        return tf.reduce_sum(tf.cast(x, tf.float64) ** 2 * y[:2])

    x, y = tf.constant(X[:2], tf.float32), tf.constant(X[:3])
    found = sparse_hessian(mixed, argnums=(0, 1), compile="eager")(x, y)
    assert [[block.dtype for block in row] for row in found] == [[tf.float32, tf.float64]] * 2
    np.testing.assert_allclose(dense(found[0][1]), np.diag(2 * X[:2])[:, :2] @ np.eye(2, 3), atol=1e-6)


@pytest.mark.dear
def test_inside_a_function(rows):
    outer = tf.function(lambda x: tf.sparse.to_dense(rows(x)))
    np.testing.assert_allclose(outer(tf.constant(X)), jacobian(coupled, compile="eager")(X), atol=1e-13)
    with pytest.raises(RuntimeError, match="makes a SciPy array"):
        tf.function(sparse_jacobian(coupled, format="csr"))(tf.constant(X))


def test_nothing_to_find():
    linear = sparse_hessian(lambda x: tf.reduce_sum(3 * x), compile="graph")
    found = linear(X)
    assert found.shape == (12, 12)
    assert found.values.shape == (0,)
    assert linear.plan(X).passes == 0
    empty = sparse_jacobian(lambda x: tf.stop_gradient(x), unconnected="zero", compile="graph")(X)
    assert dense(empty).shape == (12, 12)


@pytest.mark.thorough
def test_normalisation_layers_are_right():
    layer = tf.keras.layers.LayerNormalization(dtype="float64")
    x = tf.constant(X.reshape(3, 4))
    layer(x)

    def loss(x):
        return tf.reduce_sum(tf.sin(layer(x)))

    transform = sparse_hessian(loss, compile="graph")
    with tf.device("CPU"):
        wanted = numerical_jacobian(lambda x: by_tape.gradient(loss, x), x)
    np.testing.assert_allclose(dense(transform(x)), np.reshape(wanted, [12, 12]), atol=1e-5)
    assert transform.plan(x).passes == 4  # examples are apart
    concrete = tf.function(loss).get_concrete_function(x)
    with pytest.raises(ValueError, match=r"tf\.nn\.moments"):
        sparse_hessian(concrete)(x)


SHIFT = 1


def test_a_held_transform_sees_that_the_pattern_changes():
    global SHIFT

    def f(x):
        return x * tf.roll(x, SHIFT, 0)

    transform = sparse_jacobian(f, compile="graph")
    before = transform.plan(X).pattern
    try:
        SHIFT = 2
        found = dense(transform(X))
        np.testing.assert_allclose(found, jacobian(f, compile="eager")(X), atol=1e-13)
        assert (transform.plan(X).pattern != before).nnz
    finally:
        SHIFT = 1


def test_the_plan_names_what_was_taken_as_dense():
    def f(x):
        y = tf.reshape(x, [3, 4])
        return tf.nn.dilation2d(y[None, :, :, None], tf.zeros([2, 2, 1]), [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1])

    plan = sparse_jacobian(f, compile="eager").plan(tf.constant(X, tf.float32))
    assert plan.mode == "reverse"  # there is no derivative of its gradient
    assert plan.given_up == ("forward mode: gradient registry has no entry for: Dilation2DBackpropInput",)
    (line,) = plan.dense
    assert line.startswith("Dilation2D at ")
    assert f".py:{f.__code__.co_firstlineno + 2}" in line
    assert "taken as dense: Dilation2D" in str(plan)
    assert "nothing is gained" in str(plan)


@pytest.mark.dear
def test_the_plan_of_a_hessian_names_the_functions_line():
    def f(x):
        band = tf.reshape(x[:4], [1, 4])
        y = tf.raw_ops.TridiagonalMatMul(superdiag=band, maindiag=band, subdiag=band, rhs=tf.reshape(x[4:], [4, 2]))
        return tf.reduce_sum(y**2)

    transform = sparse_hessian(f, compile="eager")
    np.testing.assert_allclose(dense(transform(X)), hessian(f, compile="eager")(X), atol=1e-12)
    lines = transform.plan(X).dense
    assert lines[0].startswith("TridiagonalMatMul at ")
    assert all(f".py:{f.__code__.co_firstlineno + 2}" in line for line in lines)


@pytest.mark.dear
def test_a_pattern_that_leaves_something_out_is_refused(monkeypatch):
    def diagonal(problem, limit):
        return patterns.Pattern(sparse.eye_array(12, dtype=bool, format="csr"))

    for name, transformation, f in (
        ("jacobian_pattern", sparse_jacobian, coupled),
        ("hessian_pattern", sparse_hessian, energy),
    ):
        monkeypatch.setattr(f"tapelab.derivatives.sparse.recipes.{name}", diagonal)
        with pytest.raises(SparsityError, match="leaves out an entry"):
            transformation(f, compile="graph")(X)
        transformation(f, compile="graph", check_pattern=False)(X)
        with pytest.raises(tf.errors.InvalidArgumentError, match="leaves out an entry"):
            tf.function(transformation(f))(tf.constant(X))


def test_a_hessian_that_is_not_symmetric_is_refused():
    @tf.custom_gradient
    def f(x):
        return tf.reduce_sum(x * tf.roll(x, 1, 0)), lambda upstream: upstream * tf.roll(x, 1, 0)

    with pytest.raises(SparsityError, match="not symmetric"):
        sparse_hessian(f, compile="graph")(X)


def test_a_function_that_draws_is_not_compared():
    plan = sparse_jacobian(lambda x: x * tf.random.normal([12], dtype=x.dtype), compile="graph").plan(X)
    assert plan.passes == 1
    assert any("not compared" in note for note in plan.notes)


def test_a_function_without_a_graph_is_dense():
    def f(x):
        return x * float(x[0])

    with pytest.warns(FallbackWarning, match="cannot be traced"):
        found = sparse_jacobian(f)(X[:3])
    np.testing.assert_allclose(dense(found), X[0] * np.eye(3), atol=1e-14)


def random_function(seed):
    """A chain of random elementwise operations, moves and sums of twelve numbers."""
    generator = np.random.default_rng(seed)
    mask = tf.constant(generator.integers(0, 2, 12), tf.float64)
    matrix = tf.constant(generator.normal(size=(4, 4)) * (generator.random((4, 4)) < 0.4))
    index = generator.integers(0, 12, 12)
    steps = [
        tf.sin,
        tf.tanh,
        lambda x: x * tf.roll(x, 1, 0),
        lambda x: x + mask * x[::-1],
        lambda x: tf.gather(x, index),
        lambda x: tf.reshape(tf.reshape(x, [3, 4]) @ matrix, [12]),
        lambda x: tf.where(mask > 0, x, tf.roll(x, 3, 0)),
        lambda x: tf.where(x > 0, x, 2 * tf.roll(x, 2, 0)),
        lambda x: tf.concat([x[6:], tf.cumsum(x[:2]), x[2:6] / (2 + tf.cos(x[:4]))], 0),
        lambda x: tf.reshape(tf.transpose(tf.reshape(x, [2, 6])), [12]),
        lambda x: tf.math.unsorted_segment_sum(x, index, 12),
        lambda x: x * tf.reduce_max(tf.reshape(x, [6, 2])[:2]),
    ]
    chosen = [steps[number] for number in generator.integers(0, len(steps), 5)]

    def f(x):
        for step in chosen:
            x = step(x)
        return x

    return f


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("seed", range(6))
def test_random_functions(seed):
    f = random_function(seed)
    found = sparse_jacobian(f, compile="eager", unconnected="zero")(X)
    np.testing.assert_allclose(dense(found), jacobian(f, compile="eager", unconnected="zero")(X), atol=1e-12)

    def loss(x):
        return tf.reduce_sum(tf.sin(f(x)))

    found = sparse_hessian(loss, compile="eager", unconnected="zero")(X)
    np.testing.assert_allclose(dense(found), hessian(loss, compile="eager", unconnected="zero")(X), atol=1e-12)


def test_a_source_without_elements_has_a_matrix_without_entries():
    found = sparse_hessian(lambda x: tf.reduce_sum(tf.exp(x) ** 2), format="coo")(np.zeros([0, 2]))
    assert (found.shape, found.nnz) == ((0, 0), 0)
