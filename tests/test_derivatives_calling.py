"""How a derivative is called: the function's arguments, then the vector as a keyword."""

import functools
import inspect

from tapelab import derivatives
from tapelab.derivatives import (
    NotFiniteError,
    fvp,
    ggnvp,
    hvp,
    jvp,
    laplacian,
    vjp,
)
from tapelab.runtime import tf

import numpy as np
import pytest
from transformations import EVERY, KERNEL, NORMS, X, squares, total

W = tf.Variable([[1.0], [2.0]])


def model(x):
    return x @ W


def half_square(y, outputs):
    return tf.reduce_sum((y - outputs) ** 2) / 2


def cube(x):
    return tf.reduce_sum(x**3)


# Of each: the derivative, its arguments, a vector, and how a call is to be written.
PRODUCTS = {
    "jvp": (jvp(cube), (X,), X, "jvp(cube)(x, tangents=…)"),
    "vjp": (vjp(cube), (X,), 1.0, "vjp(cube)(x, cotangents=…)"),
    "hvp": (hvp(cube), (X,), X, "hvp(cube)(x, vector=…)"),
    "ggnvp": (ggnvp(model, half_square, wrt=W), (X, model(X)), W, "ggnvp(model)(x, *targets, vector=…)"),
    "fvp": (fvp(model, "gaussian", wrt=W), (X,), W, "fvp(model)(x, *targets, vector=…)"),
}


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_vector_that_is_missing_or_comes_first_is_told_where_it_belongs(name):
    held, args, vector, written = PRODUCTS[name]
    for call in (held, held.plan):
        with pytest.raises(TypeError) as raised:
            call(*args)
        assert written in str(raised.value)
        assert f"got {len(args)} by position" in str(raised.value)
        with pytest.raises(TypeError) as raised:
            call(vector, *args)  # as it was once
        assert written in str(raised.value)
        with pytest.raises(TypeError) as raised:
            call(*args, direction=vector)
        assert written in str(raised.value)
        assert "direction=" in str(raised.value)


def test_a_decorator_that_takes_other_arguments_than_the_function_it_wraps_is_called_as_it_is():
    @functools.wraps(cube)
    def scaled(x, factor):
        return factor * cube(x)

    np.testing.assert_allclose(hvp(scaled)(X, 2.0, vector=X), 12 * X**2)


def test_a_parameter_of_the_vectors_name_is_refused_unless_it_is_given_by_position():
    def f(x, vector=None):
        return tf.reduce_sum(x**3 if vector is None else vector * x**3)

    class Layer(tf.keras.layers.Layer):
        def call(self, x, vector=None):
            return f(x, vector)

    for function in (f, tf.function(f), functools.partial(f), Layer()):
        with pytest.raises(TypeError, match=r"a parameter 'vector' of its own.*f\(x, vector=other\)"):
            hvp(function)(X, vector=X)
        np.testing.assert_allclose(hvp(function)(X, 2 * X, vector=X), 12 * X**3, rtol=1e-6)
    assert jvp(f)(X, tangents=X)[1].shape == ()


def test_keywords_of_the_function_come_with_the_vector():
    def f(x, *, power, **rest):
        return tf.reduce_sum(x**power) + tf.reduce_sum(rest["bias"] * x)

    np.testing.assert_allclose(hvp(f)(X, power=3, bias=X, vector=X), 6 * X**2)
    given = {"power": 3, "bias": X, "vector": X}
    hvp(f)(X, **given)
    assert given.keys() == {"power", "bias", "vector"}


CLIPPED = NORMS["clipped_gradient"][1]
VALUED = {
    name: row
    for name, row in EVERY.items()
    if "return_value" in inspect.signature(getattr(derivatives, name.partition(",")[0], cube)).parameters
} | {
    "hvp, packed": (total, lambda f, **o: hvp(f, wrt=KERNEL, packed=True, **o), (X,), {"vector": tf.ones(2)}),
    "laplacian, chunks": (squares, lambda f, **o: laplacian(f, batch_chunk_size=2, **o), (X,)),
    "clipped_gradient, chunks": (squares, lambda f, **o: CLIPPED(f, batch_chunk_size=2, **o), (X,)),
}


@pytest.mark.parametrize(
    ("name", "compile"), [*[(name, "graph") for name in VALUED], ("hvp", "eager"), ("clipped_gradient", "eager")]
)
@pytest.mark.thorough(keep=8, dear=3)
def test_the_value_comes_first_if_it_is_asked_for_and_changes_nothing(name, compile):
    f, make, arguments, *vector = VALUED[name]
    value, found = make(f, return_value=True, compile=compile, check_finite=True)(*arguments, **dict(*vector))
    np.testing.assert_allclose(value, f(*arguments), rtol=1e-6)
    wanted = make(f, compile=compile)(*arguments, **dict(*vector))
    assert type(found) is type(wanted)
    values = (part.values if isinstance(part, tf.SparseTensor) else part for part in (found, wanted))
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), *values)


def test_the_value_of_a_gauss_newton_product_is_the_loss():
    value, product = ggnvp(model, half_square, wrt=W, return_value=True)(X, 0 * X[:, :1], vector=W)
    np.testing.assert_allclose(value, tf.reduce_sum(model(X) ** 2) / 2, rtol=1e-6)
    np.testing.assert_allclose(product, tf.transpose(X) @ (X @ W), rtol=1e-6)


def test_the_value_is_of_the_evaluation_that_is_differentiated():
    """Random factors: 2 x · r, and the Hessian's product 2 r, of one draw; a count goes up by one in a call."""
    count = tf.Variable(0.0)

    def f(x):
        count.assign_add(1.0)
        factor = tf.random.uniform([], 1.0, 2.0)
        return factor * tf.reduce_sum(x**2)

    held = hvp(f, return_value=True)
    for calls in (1, 2):
        value, product = held(tf.ones(3), vector=tf.ones(3))
        np.testing.assert_allclose(product, np.full(3, 2 * value / 3), rtol=1e-6)
        assert count == calls
    drawn = laplacian(lambda x: tf.reduce_sum(x**2) * tf.random.uniform([]), batched=False, return_value=True)
    with pytest.raises(ValueError, match="of another evaluation than the derivative"):
        drawn(tf.ones(3))


def test_a_value_that_is_not_finite_is_found():
    with pytest.raises(NotFiniteError, match=r"the result\[0\]"):
        hvp(lambda x: tf.reduce_sum(x**2) + np.inf, return_value=True, check_finite=True)(X, vector=X)
