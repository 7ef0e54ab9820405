"""Hessians by per-example factors: the same as by a pass for each weight, and compared at every call."""

import itertools
import sys
import warnings

from tapelab.derivatives import (
    FallbackWarning,
    MemoryLimitError,
    NotFiniteError,
    UnconnectedSourceError,
    costs,
    hessian,
)
from tapelab.optimize import newton
from tapelab.runtime import tf

import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)


def constant(*shape):
    return tf.constant(GENERATOR.normal(size=shape))


def variable(*shape):
    return tf.Variable(GENERATOR.normal(size=shape) / np.sqrt(np.prod(shape[:-1]) or 1))


def dense(*sizes):
    return [variable(*shape) for pair in itertools.pairwise(sizes) for shape in (pair, pair[1:])]


X, Y = constant(6, 4), constant(6, 2)
NET = dense(4, 7, 6, 2)
SHORT = dense(4, 7, 2)


def forward(h, variables=NET, activation=tf.tanh):
    while variables:
        w, b, *variables = variables
        h = h @ w + b
        h = activation(h) if variables else h
    return h


def squares(h, y=Y):
    return tf.reduce_mean((h - y) ** 2)


def with_activation(activation):
    return lambda x: squares(forward(x, activation=activation))


entry = variable(4, 8)


@tf.custom_gradient
def straight_through(x):
    """A sign whose gradient is that of tanh: matrices of second derivatives are not symmetric."""
    return tf.sign(x), lambda dy: dy * (1 - tf.tanh(x) ** 2)


BY_ROWS = {
    "a root of the mean": lambda x: tf.sqrt(squares(forward(x))),
    "a straight-through gradient": with_activation(straight_through),
}


def by_rows(f, *args, monkeypatch, **options):
    with monkeypatch.context() as patch, warnings.catch_warnings():
        patch.setattr(sys.modules["tapelab.derivatives.hessian"], "survey", lambda call: "switched off")
        warnings.simplefilter("ignore", FallbackWarning)  # convolutions go in a loop
        return hessian(f, compile="graph", packed=True, **options)(*args).numpy()


def relative(found, wanted):
    return np.abs(found - wanted).max() / np.abs(wanted).max()


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "sources"), [("a root of the mean", NET), ("a straight-through gradient", NET[::-1])])
def test_rows_are_what_they_were(name, sources, monkeypatch):
    found = hessian(BY_ROWS[name], wrt=sources, compile="graph", packed=True)(X).numpy()
    assert relative(found, by_rows(BY_ROWS[name], X, wrt=sources, monkeypatch=monkeypatch)) < 1e-12


@pytest.mark.thorough
def test_a_packed_matrix_is_put_together_from_strips(monkeypatch):
    f = with_activation(tf.tanh)
    wanted = by_rows(f, X, wrt=NET, monkeypatch=monkeypatch)
    monkeypatch.setattr(costs, "STRIP", 97 * 14)  # two inputs of the first layer, with its 7 units
    matrix = hessian(f, wrt=NET, compile="graph", packed=True)
    assert relative(matrix(X).numpy(), wanted) < 1e-12


@pytest.mark.thorough
def test_blocks_structures_chunks_and_dtypes(monkeypatch):
    """Not packed, sources nested, a few rows at once, in float32, under XLA: the same numbers."""
    names = {"first": NET[:2], "rest": (NET[2], {"b": NET[3], "last": NET[4:]})}
    f = with_activation(tf.tanh)
    wanted = by_rows(f, X, wrt=NET, monkeypatch=monkeypatch)
    blocks = hessian(f, wrt=names, compile="graph", chunk_size=2)
    found = blocks(X)
    plan = blocks.plan(X)
    assert plan.way.startswith("by per-example factors: 15 directions instead of 97")
    assert (plan.passes, plan.chunk) == (15, 2)
    block = found["first"][0]["rest"][1]["last"][0]
    assert block.shape == (4, 7, 6, 2)
    assert relative(np.reshape(block, [28, 12]), wanted[:28, 83:95]) < 1e-12
    single = [tf.Variable(tf.cast(v, tf.float32)) for v in NET]
    x, y = tf.cast(X, tf.float32), tf.cast(Y, tf.float32)
    matrix = hessian(lambda x: squares(forward(x, single), y), wrt=single, packed=True)
    assert relative(matrix(x).numpy(), wanted) < 1e-5
    assert matrix.plan(x).compiled == "xla"
    assert "by per-example factors" in matrix.plan(x).way


@pytest.mark.thorough
def test_arguments_as_sources(monkeypatch):
    f = lambda parameters, x: squares(forward(x, parameters))  # noqa: E731
    values = [tf.convert_to_tensor(v) for v in SHORT]
    matrix = hessian(f, compile="graph", packed=True)
    assert relative(matrix(values, X).numpy(), by_rows(f, values, X, monkeypatch=monkeypatch)) < 1e-12
    assert "9 directions instead of 51" in matrix.plan(values, X).way


@pytest.mark.dear
def test_other_values_of_what_was_compiled_once(monkeypatch):
    """The comparison is of the values of each call."""
    f, matrix = with_activation(tf.nn.relu), hessian(with_activation(tf.nn.relu), wrt=NET, compile="graph", packed=True)
    matrix(0 * X)
    assert relative(matrix(X).numpy(), by_rows(f, X, wrt=NET, monkeypatch=monkeypatch)) < 1e-12


@pytest.mark.dear
def test_refusals_and_what_newton_takes():
    f = with_activation(tf.tanh)
    with pytest.raises(MemoryLimitError, match="hessian of 97 elements"):
        hessian(f, wrt=NET, packed=True, memory_limit=10_000)(X)
    with pytest.raises(UnconnectedSourceError):
        hessian(f, wrt=[*NET, entry], compile="graph")(X)
    with pytest.raises(NotFiniteError):
        hessian(f, wrt=NET, compile="graph", check_finite=True)(X * np.nan)
    variables = [tf.Variable(v) for v in SHORT]
    report = newton(lambda: squares(forward(X, variables)), wrt=variables, iterations=3)
    assert report.value < squares(forward(X, SHORT)).numpy() / 2


hidden = tf.function(lambda x: tf.tanh(x @ SHORT[0] + SHORT[1]))
whole = tf.function(lambda x: squares(hidden(x) @ SHORT[2] + SHORT[3]))
cast = tf.function(hidden.python_function, input_signature=[tf.TensorSpec(X.shape, X.dtype)])
IN_FUNCTIONS = {
    "the loss": tf.function(lambda x: squares(forward(x, SHORT))),
    "a layer": lambda x: squares(hidden(x) @ SHORT[2] + SHORT[3]),
    "a loss of a layer, called": lambda x: whole(x),
    "a layer that casts": lambda x: squares(cast(x) @ SHORT[2] + SHORT[3]),
    "a layer in a layer": tf.function(lambda x: squares(tf.function(hidden)(x) @ SHORT[2] + SHORT[3])),
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("name", IN_FUNCTIONS)
def test_functions_of_tensorflow_have_the_hessian_of_plain_ones(name):
    plain = hessian(lambda x: squares(forward(x, SHORT)), wrt=SHORT, compile="graph", packed=True)
    found = hessian(IN_FUNCTIONS[name], wrt=SHORT, compile="graph", packed=True)
    # A function that is made where it is called has no name, and one with a signature is called.
    seen = name not in ("a layer in a layer", "a layer that casts")
    assert (found.plan(X).way == plain.plan(X).way) == seen
    assert plain.plan(X).way.startswith("by per-example factors: ")
    assert relative(found(X).numpy(), plain(X).numpy()) < 1e-12
