"""How a derivative is called: the function's arguments, then the vector as a keyword."""

import functools

from tapelab.derivatives import fvp, ggnvp, hvp, jacobian, jvp, taylor, vjp
from tapelab.runtime import tf

import numpy as np
import pytest

W = tf.Variable([[1.0], [2.0]])
X = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])


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
    "taylor": (taylor(cube, 2), (X,), [X], "taylor(cube)(x, tangents=…)"),
}


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


def test_arguments_that_the_function_does_not_take_are_named_with_what_it_takes():
    def f(x, y, *, scale=1.0):
        return tf.reduce_sum(x * y * scale)

    with pytest.raises(TypeError, match=r"hvp\(f\): got an unexpected keyword argument 'scal'.*\(x, y, \*, scale=1"):
        hvp(f)(X, X, scal=2.0, vector=X)
    with pytest.raises(TypeError, match=r"hvp\(f\): too many positional arguments; the function takes \(x, y"):
        hvp(f)(X, X, X, vector=X)
    with pytest.raises(TypeError, match=r"jacobian\(f\): missing a required argument: 'y'; the function takes"):
        jacobian(f)(X)


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
