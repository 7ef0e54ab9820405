"""Functions that the fast ways cannot handle: a slower way is taken, it is right, and one warning says so."""

import warnings

from tapelab.derivatives import FallbackWarning, batch_jacobian, hessian, hvp, jacobian, jvp, value_and_gradient
from tapelab.derivatives.machinery import rows
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

X = np.array([[0.3, -0.2, 0.5], [0.1, 0.9, -0.4]])
W = np.array([[0.4, -0.1, 0.2], [0.0, 0.3, -0.5], [0.6, 0.2, 0.1]])


def while_loop(x):
    for _ in tf.range(2):  # AutoGraph makes a tf.while_loop of this
        x = tf.tanh(x @ W)
    return tf.reduce_sum(x**2)


def branch(x):
    return tf.cond(tf.reduce_sum(x) > 0, lambda: tf.reduce_sum(x**3), lambda: tf.reduce_sum(x**2))


def python_branch(x):
    if tf.reduce_sum(x) > 0:
        return tf.reduce_sum(x**3)
    return tf.reduce_sum(x**2)


def map_fn(x):
    return tf.reduce_sum(tf.map_fn(lambda row: tf.tanh(row) ** 2, x))


def determinant(x):
    return tf.linalg.det(x @ tf.transpose(x) + tf.eye(2, dtype=x.dtype))


def sort(x):
    return tf.reduce_sum(tf.sort(x, axis=1) * [1.0, 2.0, 3.0]) ** 2


def leaves_the_graph(x):
    factor = 1.0 if x.numpy().sum() > 0 else 2.0
    return factor * tf.reduce_sum(x**3)


def exact(f):
    """The gradient and the Hessian by central differences."""
    return [numerical_jacobian(g, X) for g in (lambda x: f(tf.constant(x)), lambda x: by_tape.gradient(f, x))]


# Function, how its Hessian is computed and compiled, and the last way that was given up for it.
WAYS = [
    (leaves_the_graph, "eager", "eager", "any graph: the function cannot be traced into a graph"),
    (branch, "vectorised", "xla", "by per-example factors: "),
    (map_fn, "loop", "graph", "symmetric blocks, rows, vectorised, "),
    (determinant, "vectorised", "graph", "symmetric blocks, rows, vectorised, compiled by XLA: "),
]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("f", "way", "compiled", "given_up"), WAYS)
def test_hessians(f, way, compiled, given_up):
    _, wanted = exact(f)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        held = hessian(f)
        found = held(X)
        held(X)
        if f is leaves_the_graph:
            held(X[:1])
    np.testing.assert_allclose(found, wanted, atol=1e-8)
    caught = [warning for warning in caught if warning.category is FallbackWarning]  # on 3.13, AutoGraph causes others
    messages = [str(warning.message) for warning in caught]
    assert len(messages) == (f is not branch), messages
    if messages:
        assert f"hessian({f.__name__}) is computed a slower way" in messages[0]
        assert caught[0].filename == __file__
    plan = held.plan(X)
    assert (plan.way, plan.compiled) == (f"symmetric blocks, rows, {way}", compiled)
    assert plan.given_up[-1].startswith(given_up)
    assert all(f"given up: {reason}" in str(plan) for reason in plan.given_up)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("f", [while_loop, python_branch])
def test_python_control_flow_on_tensors_is_converted(f):
    gradient, hessian = exact(f)
    np.testing.assert_allclose(value_and_gradient(f, compile="graph")(X)[1], gradient, atol=1e-8)
    np.testing.assert_allclose(hvp(f, compile="graph")(X, vector=X), np.tensordot(hessian, X, 2), atol=1e-8)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("f", [leaves_the_graph, map_fn])
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
def test_forward_mode(f):
    gradient, _ = exact(f)
    np.testing.assert_allclose(jacobian(f, mode="forward")(X), gradient, atol=1e-8)
    np.testing.assert_allclose(jvp(f)(X, tangents=np.ones_like(X))[1], np.sum(gradient), atol=1e-8)


def test_nothing_is_logged_while_ways_are_tried(capfd):
    with pytest.warns(FallbackWarning):
        found = hessian(sort)(X)
    np.testing.assert_allclose(found, exact(sort)[1], atol=1e-8)
    assert capfd.readouterr().err == ""


def test_a_way_that_was_asked_for_is_not_replaced():
    assert hessian(leaves_the_graph, compile="eager")(X).shape == (2, 3, 2, 3)


def test_python_function():
    def f(x):
        return tf.reduce_sum(tf.py_function(lambda x: tf.sin(x) ** 2, [x], tf.float64))

    np.testing.assert_allclose(value_and_gradient(f)(X)[1], np.sin(2 * X), atol=1e-12)
    for transform in (hessian(f), lambda x: hvp(f)(x, vector=x)):
        with pytest.raises(ValueError, match=r"tf\.py_function.*second derivative would be zero"):
            transform(X)


def test_functions_that_change_or_draw_are_evaluated_once():
    counter = tf.Variable(0.0)

    def f(x):
        counter.assign_add(1.0)
        return tf.concat([x, x**2], 1) * tf.random.uniform([], dtype=x.dtype)

    for mode in ("forward", "reverse"):
        compiled = jacobian(f, mode=mode, compile="graph")
        compiled(X)
        counter.assign(0.0)
        rows = tf.reshape(compiled(X), [2, 6, 6])
        assert float(counter) == 1.0
        # One random factor for all rows.
        factors = np.diag(np.reshape(rows[:, :3], [6, 6]))
        np.testing.assert_allclose(factors, factors[0])


def test_a_batch_of_one_does_not_draw_for_each_example():
    """The way that maps over examples would draw a factor for each; the function draws one for all."""
    blocks = batch_jacobian(lambda x: x * tf.random.uniform([], dtype=x.dtype))(X)
    assert len(np.unique(np.round(blocks, 12))) == 2  # zero and the factor


def test_unbuilt_model():
    layer = tf.keras.layers.Dense(2)
    assert batch_jacobian(lambda x: layer(x))(X.astype(np.float32)).shape == (2, 2, 3)


def test_an_error_in_a_loop_over_rows_leaves_no_trace_in_tensorflow():
    def fail(index):
        raise ValueError("the function's own")

    @tf.function(autograph=False)
    def loop():
        with pytest.raises(ValueError, match="the function's own"):
            rows.map_rows(fail, [tf.TensorSpec([])], 3, rows.LOOP)
        assert tf.compat.v1.get_variable_scope().caching_device is None

    loop()
