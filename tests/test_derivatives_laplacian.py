"""Laplacians: closed forms, nested tapes and central differences in float64."""

import warnings

from tapelab.derivatives import MemoryLimitError, hessian, laplacian
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(4, 6))
A = GENERATOR.normal(size=(6, 5))


def close(found, wanted, tolerance=1e-13):
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= tolerance * max(1, np.abs(wanted).max())


def bent(x):
    """Five numbers for each example."""
    return tf.exp(tf.sin(x @ A) / 2) + 0.1


def of_bent(x):
    z = x @ A
    return (np.cos(z) ** 2 / 4 - np.sin(z) / 2) * np.exp(np.sin(z) / 2) * np.sum(A**2, axis=0)


def traces(f, x):
    """The trace of the Hessian of each element of an example's result, by tapes, example by example."""
    found = []
    for row in x:
        size = np.size(f(tf.constant(row[None])))
        parts = [by_tape.hessian(lambda r, k=k: tf.reshape(f(r[None]), [-1])[k], row) for k in range(size)]
        found.append([np.trace(part.reshape(row.size, row.size)) for part in parts])
    return np.reshape(found, np.shape(f(tf.constant(x))))


@pytest.mark.dear(keep=2)
@pytest.mark.parametrize("compile", ["graph", "xla", "eager"])
def test_closed_forms(compile):
    squares = np.sum(X**2, axis=1)
    gauss = laplacian(lambda x: tf.exp(-tf.reduce_sum(x**2, 1) / 2), compile=compile)
    close(gauss(X), (squares - 6) * np.exp(-squares / 2))
    close(laplacian(bent, compile=compile)(X), of_bent(X))


@tf.function
def inner(x):
    return bent(x) * x[:, :5]


COMPOSED = {
    "attention": lambda x: tf.nn.softmax(tf.einsum("bi,bj->bij", bent(x), bent(x))) @ bent(x)[:, :, None],
    "determinant": lambda x: tf.linalg.det(tf.reshape(tf.sin(x[:, :4]), [-1, 2, 2])) ** 2,
    "fft": lambda x: tf.math.real(tf.signal.fft(tf.cast(bent(x), tf.complex128))),
    "gathered": lambda x: tf.gather(bent(x), [0, 2, 2], axis=1) ** 2,
    "in a function": inner,
    "logsumexp": lambda x: tf.reduce_logsumexp(bent(x) * 3, axis=1),
    "loop": lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), [0, bent(x)])[1],
    "power": lambda x: bent(x) ** 2.5 + 2.0 ** bent(x) + x[:, :5] ** 3,
}


@pytest.mark.dear(keep=3)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize("name", COMPOSED)
def test_composed_functions_agree_with_tapes(name):
    close(laplacian(COMPOSED[name], compile="graph")(X[:2]), traces(COMPOSED[name], X[:2]), 1e-12)


def test_an_argument_of_several_structures_and_dtypes():
    def f(t, x, factor):
        return {"u": factor * tf.sin(t["t"]) * x**2, "v": tf.cast(t["t"] ** 3, tf.float32)}

    t, x = {"t": X[:, :1]}, X[:, 1:3]
    space = laplacian(f, argnums=1, compile="graph", unconnected="zero")(t, x, 2)
    close(space["u"], np.broadcast_to(4 * np.sin(t["t"]), [4, 2]))
    assert space["v"].dtype == tf.float32
    close(space["v"], np.zeros([4, 1]))
    everything = laplacian(f, argnums=(0, 1), compile="graph")(t, x, 2)
    close(everything["u"], 4 * np.sin(t["t"]) - 2 * np.sin(t["t"]) * x**2)


def test_unbatched_all_elements_are_summed_over():
    close(laplacian(lambda x: tf.reduce_sum(x) ** 3, batched=False, compile="graph")(X), X.size * 6 * X.sum())
    close(laplacian(lambda x: tf.reduce_sum(x) ** 2 * tf.ones(3, x.dtype), batched=False)(X), np.full(3, 48.0))


def test_a_training_step_of_a_residual():
    w = tf.Variable(A[:, :1])

    def exact(x):
        t = tf.tanh(x @ w)
        return -2 * t * (1 - t**2) * tf.reduce_sum(tf.square(w), 0)

    def step(residual):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(residual(tf.constant(X)) ** 2)
        return tape.gradient(loss, w)

    held = laplacian(lambda x: tf.tanh(x @ w))
    chunks = laplacian(lambda x: tf.tanh(x @ w), batch_chunk_size=3)
    for found in (
        step(held),
        step(chunks),
        tf.function(lambda: step(held))(),
        tf.function(lambda: step(held), jit_compile=True)(),
    ):
        close(found, step(exact), 1e-12)
    w.assign(2 * w)  # the weights are read at every call
    close(held(X), exact(X))


def test_second_derivatives_through_moments_are_right():
    layer = tf.keras.layers.LayerNormalization(dtype="float64")
    f = lambda x: layer(x)[:, 0]  # noqa: E731
    x, h = X[:, :3], 1e-3
    points = {k: [f(x + k * h * unit) for unit in np.eye(3)] for k in (-2, -1, 1, 2)}
    sums = {k: sum(value) for k, value in points.items()}
    wanted = (-sums[2] + 16 * sums[1] - 90 * f(x) + 16 * sums[-1] - sums[-2]) / (12 * h * h)
    close(laplacian(f, compile="graph")(x), wanted, 1e-6)
    assert np.abs(traces(f, x) - wanted).max() > 1e-3  # by TensorFlow's


@tf.custom_gradient
def sevenfold(x):
    return x**2, lambda upstream: 7 * upstream * x


def test_the_gradient_given_is_differentiated_as_by_hessian_and_the_plan_says_so():
    f, x = lambda x: tf.reduce_sum(sevenfold(x)), np.ones(1)
    for derivative, options in ((laplacian, {"batched": False}), (hessian, {})):
        held = derivative(f, compile="graph", **options)
        close(np.ravel(held(x)), [7.0])
        assert "the gradients given for them are differentiated, not what they compute: IdentityN" in str(held.plan(x))


def test_chunks_of_directions():
    held = laplacian(bent, compile="graph", chunk_size=4)
    close(held(X), of_bent(X))
    assert (held.plan(X).passes, held.plan(X).chunk) == (6, 4)


def test_the_memory_limit_takes_chunks_of_examples_and_then_of_directions():
    whole = laplacian(bent, compile="graph").plan(X)
    held = laplacian(bent, compile="graph", memory_limit=whole.bytes // 2)
    close(held(X), of_bent(X))
    plan = held.plan(X)
    assert plan.bytes <= whole.bytes // 2
    assert "examples at once" in str(plan) or "example at once" in str(plan)
    with pytest.raises(MemoryLimitError, match="smaller batch"):
        laplacian(bent, memory_limit=100)(X)


def test_chunks_of_examples_need_examples():
    with pytest.raises(ValueError, match="no examples"):
        laplacian(bent, batched=False, batch_chunk_size=2)


def test_what_goes_with_the_examples_in_chunks():
    rows = GENERATOR.normal(size=(4, 1))
    held = laplacian(lambda x, rows, a: tf.sin(x @ a) * rows, compile="graph", batch_chunk_size=3)
    close(held(X, rows, A), -np.sin(X @ A) * rows * np.sum(A**2, axis=0))


def test_no_warning_where_there_is_no_reason():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        laplacian(bent)(X.astype(np.float32))


@pytest.mark.parametrize("chunk_size", [None, 2])
def test_random_numbers_are_drawn_once(chunk_size):
    found = laplacian(lambda x: tf.nn.dropout(tf.ones_like(x), 0.5) * x**2, compile="graph", chunk_size=chunk_size)(X)
    assert set(np.unique(found)) == {0.0, 4.0}


def test_samples():
    diagonal = laplacian(lambda x: tf.reduce_sum(x**3, 1), samples=2, compile="graph")
    close(diagonal(X), 6 * X.sum(1))  # random signs square to one
    mixed = lambda x: tf.reduce_sum(x, 1) ** 2  # noqa: E731
    fresh = laplacian(mixed, samples=4000, compile="graph")
    estimate, again = fresh(X), fresh(X)
    assert np.abs(estimate - again).max() > 0
    assert np.abs(estimate - 12).max() < 6 * np.sqrt(2 * 30 * 4 / 4000)
    held = laplacian(mixed, samples=4, seed=1, compile="graph")
    np.testing.assert_array_equal(held(X), held(X))
    assert len(np.unique(held(X))) > 1  # each example has its own
    for options in ({"samples": 0}, {"samples": 2, "seed": 0.5}, {"seed": 1}):
        with pytest.raises(ValueError, match=r"samples|seed"):
            laplacian(mixed, **options)


def test_what_depends_on_no_source_is_zero_where_that_is_asked_for():
    np.testing.assert_array_equal(laplacian(tf.floor, compile="eager", unconnected="zero")(X), np.zeros_like(X))
