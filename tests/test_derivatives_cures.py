"""Where TensorFlow's derivatives are wrong, and tapelab's are right: within the error of differences of values."""

import functools
import itertools
import threading

from tapelab.derivatives import (
    FallbackWarning,
    UnconnectedSourceError,
    batch_jacobian,
    clipped_gradient,
    ggnvp,
    hessian,
    hvp,
    jacobian,
    jvp,
    per_example_gradients,
    private,
    value_and_gradient,
    vjp,
)
from tapelab.derivatives.wrong import replaced_gradients
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest
from special_functions import COMPLEX_NUMBERS, LOGARITHMS, POWERS, PRODUCTS, WRITTEN_TWICE


@functools.cache
def differences(name, h=2e-3):
    """The gradient, the Hessian and the third derivative along V, by central differences of values, O(h⁴)."""
    f, x = CASES[name]
    x, size = np.array(x), len(x)
    of_rows = tf.function(lambda rows: tf.map_fn(f, rows), autograph=False, reduce_retracing=True)
    once = {-2: 1, -1: -8, 1: 8, 2: -1}
    steps = h * np.eye(size)
    pairs = [(a, b) for a in once for b in once]
    points = [x + a * step for step in steps for a in once]
    points += [x + a * row + b * column for row in steps for column in steps for a, b in pairs]
    points += [x + a * 5 * h * V[:size] for a in (-3, -2, -1, 1, 2, 3)]
    values = of_rows(tf.constant(np.array(points))).numpy()
    first, second, third = np.split(values, [4 * size, 4 * size + 16 * size**2])
    weights = np.array([*once.values()])
    gradient = first.reshape(size, 4) @ weights / (12 * h)
    hessian = second.reshape(size, size, 16) @ np.outer(weights, weights).ravel() / (12 * h) ** 2
    return gradient, hessian, third @ [1, -8, 13, -13, 8, -1] / 8 / (5 * h) ** 3


CASES = PRODUCTS | LOGARITHMS | POWERS | COMPLEX_NUMBERS | WRITTEN_TWICE
V = np.sin(np.arange(1.0, 10.0))


def along(f, x, v, **options):
    """The third derivative along v."""
    return jvp(lambda x: tf.tensordot(v, hvp(f, **options)(x, vector=v), 1), **options)(x, tangents=v)[1]


def on_variables(transform):
    """With the vector in a variable, and a batch of two examples that count it once and twice."""

    def apply(f, x, v, **options):
        w, examples = tf.Variable(x), tf.constant([1.0, 2.0], x.dtype)
        return transform(lambda examples: examples * f(w), w, examples, v, **options)

    return apply


@on_variables
def gauss_newton(f, w, examples, v, **options):
    return ggnvp(f, lambda outputs: tf.reduce_sum(outputs**2), wrt=w, **options)(examples, vector=v)


@on_variables
def clipped(f, w, examples, v, **options):
    return clipped_gradient(f, wrt=w, max_norm=1e9, **options)(examples)[0]


# How a derivative is computed, and what it is, of the gradient g, the Hessian H and the third derivative t along v.
DERIVATIVES = {
    "gradient": (lambda f, x, v, **o: value_and_gradient(f, **o)(x)[1], lambda g, H, t, v: g),
    "jvp": (lambda f, x, v, **o: jvp(f, **o)(x, tangents=v)[1], lambda g, H, t, v: g @ v),
    "vjp": (lambda f, x, v, **o: vjp(f, **o)(x, cotangents=tf.constant(1.5, x.dtype))[1], lambda g, H, t, v: 1.5 * g),
    "Jacobian, forward": (lambda f, x, v, **o: jacobian(f, mode="forward", **o)(x), lambda g, H, t, v: g),
    "Jacobian of a gradient, forward": (
        lambda f, x, v, **o: jacobian(lambda x: value_and_gradient(f, **o)(x)[1], mode="forward", **o)(x),
        lambda g, H, t, v: H,
    ),
    "Jacobian of a gradient, reverse": (
        lambda f, x, v, **o: jacobian(lambda x: value_and_gradient(f, **o)(x)[1], mode="reverse", **o)(x),
        lambda g, H, t, v: H,
    ),
    "batch Jacobian": (
        lambda f, x, v, **o: batch_jacobian(lambda rows: tf.map_fn(f, rows), **o)(tf.stack([x, x]))[1],
        lambda g, H, t, v: g,
    ),
    "hvp": (lambda f, x, v, **o: hvp(f, **o)(x, vector=v), lambda g, H, t, v: H @ v),
    "Hessian": (lambda f, x, v, **o: hessian(f, **o)(x), lambda g, H, t, v: H),
    "third derivative": (along, lambda g, H, t, v: t),
    "Gauss-Newton product": (gauss_newton, lambda g, H, t, v: 10 * g * (g @ v)),
    "per-example gradients": (
        lambda f, x, v, **o: per_example_gradients(lambda x, rows: f(x * rows[0]), **o)(x, tf.ones([2, 1], x.dtype))[1],
        lambda g, H, t, v: g,
    ),
    "clipped gradient": (clipped, lambda g, H, t, v: 3 * g),
}

TOLERANCE = {"float64": 1e-5, "float32": 1e-3}
ONE_OF_EACH = ["product, two zeros", "xlogy", "complex xdivy", "dynamic_stitch of rows"]
MODES = [
    *[(name, "graph", "float64") for name in CASES],
    *[(name, "eager", "float32") for name in CASES],
    *[(name, "xla", "float64") for name in ONE_OF_EACH],
]


def require(name, label, compile, dtype):
    compute, truth = DERIVATIVES[label]
    g, H, t = differences(name)
    v = V[: len(g)]
    wanted = truth(g, H, t, v)
    found = compute(CASES[name].f, tf.constant(CASES[name].x, dtype), tf.constant(v, dtype), compile=compile)
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE[dtype] * max(1, np.abs(wanted).max()), err_msg=label)


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize(("name", "compile", "dtype"), MODES)
def test_families(name, compile, dtype):
    for label in ("gradient", "jvp", "Hessian"):
        require(name, label, compile, dtype)


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize(
    ("name", "label"), [*itertools.product(ONE_OF_EACH, DERIVATIVES), ("unsorted_segment_prod", "third derivative")]
)
def test_transformations(name, label):
    require(name, label, "graph", "float64")


# Where TensorFlow is right all the same.
RIGHT = ["multiply_no_nan", "divide_no_nan", "power 2", "powers of a source", "complex powers", "complex divide_no_nan"]
RIGHT += ["segment_mean, an empty segment"]  # in reverse mode


@pytest.mark.thorough(keep=3)
@pytest.mark.parametrize("name", [name for name in CASES if name not in RIGHT])
def test_tensorflow_is_wrong_there(name):
    """Once it is not, the cure is to go."""
    g, H, _ = differences(name)
    x = tf.constant(CASES[name].x, tf.float64)
    first, second = by_tape.gradient(CASES[name].f, x), by_tape.hessian(CASES[name].f, x)
    assert not (np.abs(first - g).max() < 1e-2 and np.abs(second - H).max() < 1e-2)


LOG2 = np.log(2.0)
X = np.zeros(3)


def f(x):
    """Σ xlogy(x, 2) has the gradient log 2 everywhere; TensorFlow's is 0 at x = 0."""
    return tf.reduce_sum(tf.math.xlogy(x, tf.constant(2.0, x.dtype)))


@tf.function
def traced_before(x):
    return f(x)


def plain(function, x=X):
    """By a tape of TensorFlow's own."""
    return by_tape.gradient(function, x).numpy()


@tf.function
def inside_a_loop(x):
    total = tf.zeros([], x.dtype)
    for i in tf.range(3):
        total += f(x[i : i + 1])
    return total


@tf.function
def inside_a_branch(x):
    return traced_before(x) if tf.reduce_sum(x) < 1 else -f(x)


@functools.cache
def concrete():
    return traced_before.get_concrete_function(tf.TensorSpec([3], tf.float64))


layer = tf.keras.layers.Lambda(f, dtype="float64")
WITHIN = {
    "itself": f,
    "a function traced before": lambda x: traced_before(x),
    "a concrete function": lambda x: concrete()(x),
    "a loop": inside_a_loop,
    "a branch": inside_a_branch,
    "a Keras layer": lambda x: layer(x),
    "rows of map_fn": lambda x: tf.reduce_sum(tf.map_fn(f, x[:, None])),
    "rows of vectorized_map": lambda x: tf.reduce_sum(tf.vectorized_map(f, x[:, None])),
    "nested functions": tf.function(lambda x: tf.function(f)(x)),
    "a function compiled by XLA": tf.function(f, jit_compile=True),
}


WHERE = [*itertools.product(WITHIN, ["graph", "eager"]), ("itself", "auto"), ("a function compiled by XLA", "auto")]


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize(("where", "compile"), WHERE)
def test_where(where, compile):
    g = WITHIN[where]
    assert abs(plain(g)).max() == 0, "TensorFlow is right here"  # and what is traced once has been
    transform = value_and_gradient(g, compile=compile)
    for _ in range(2):
        np.testing.assert_allclose(transform(X)[1], [LOG2] * 3, rtol=1e-12)
    assert "tf.math.xlogy: linear in x at x = 0 too" in str(transform.plan(X))
    np.testing.assert_allclose(jvp(g, compile=compile)(X, tangents=X + 1)[1], 3 * LOG2, rtol=1e-12)
    assert abs(plain(g)).max() == 0, "a plain tape sees our gradient"


def test_a_loaded_model_is_differentiated_rightly_and_stays_as_it_is(tmp_path):
    saved = tf.Module()
    saved.f = tf.function(f, input_signature=[tf.TensorSpec([3], tf.float64)])
    tf.saved_model.save(saved, tmp_path)
    loaded = tf.saved_model.load(tmp_path).f
    for compile in ("graph", "eager"):
        np.testing.assert_allclose(value_and_gradient(loaded, compile=compile)(X)[1], [LOG2] * 3, rtol=1e-12)
    assert abs(plain(loaded)).max() == 0


def squares(x):
    """Its Hessian is 2 log 2 on the diagonal; TensorFlow's is 0 at x = 0."""
    return f(x * x)


def nested(g):
    """The second derivative by the caller's own tapes."""
    return by_tape.gradient(lambda x: by_tape.gradient(g, x), X)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("compile", ["auto", "graph"])
def test_a_tape_of_the_callers_differentiates_what_ours_returned(compile):
    values, gradients_ = value_and_gradient(f, compile=compile), value_and_gradient(squares, compile=compile)
    for _ in range(2):  # what TensorFlow builds at the first recorded call, and what it then has
        np.testing.assert_allclose(plain(lambda x: values(x)[0]), LOG2, rtol=1e-12)
        np.testing.assert_allclose(plain(lambda x: gradients_(x)[1]), 2 * LOG2, rtol=1e-12)
        np.testing.assert_allclose(nested(lambda x: gradients_(x)[0]), 2 * LOG2, rtol=1e-12)
    held = tf.function(lambda x: gradients_(x)[1])
    np.testing.assert_allclose(plain(held), 2 * LOG2, rtol=1e-12)
    inside = tf.function(lambda x: tf.gradients(gradients_(x)[1], x)[0])
    np.testing.assert_allclose(inside(tf.constant(X)), 2 * LOG2, rtol=1e-12)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.filterwarnings("ignore:.*what an open tape makes of it")
@pytest.mark.parametrize("compile", ["graph", "eager"])
def test_accumulators(compile):
    """Around ours, and inside; TensorFlow keeps what it traced for one, and a plain one stays as it is."""

    def inside(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = squares(x + 0.0)
        return accumulator.jvp(y)

    x = tf.constant(X)
    for _ in range(2):
        np.testing.assert_allclose(value_and_gradient(inside, compile=compile)(x)[1], 2 * LOG2, rtol=1e-12)
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = f(x)
        assert accumulator.jvp(y) == 0
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = value_and_gradient(f, compile=compile)(x)[0]
        np.testing.assert_allclose(accumulator.jvp(y), 3 * LOG2, rtol=1e-12)


def times_its_product(f):
    def product(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = f(x)
        return tf.reduce_sum(accumulator.jvp(y) * x)

    return product


INSIDE = {
    "function": tf.function(lambda x: tf.sin(x) * x, autograph=False),
    "loop": lambda x: tf.while_loop(lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y) * x), [0, x])[1],
    "conditional": lambda x: tf.cond(tf.reduce_sum(x) > 0, lambda: tf.sin(x) * x, lambda: x),
    "vectorized_map": lambda x: tf.vectorized_map(lambda row: tf.sin(row) * row, x),
    "operations": lambda x: tf.sin(x) * x,
}


@pytest.mark.dear(keep=3)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize("compile", ["auto", "graph", "eager"])
@pytest.mark.parametrize("name", INSIDE)
def test_an_accumulator_around_what_tensorflow_loses_is_right_or_refused(name, compile):
    f, x = INSIDE[name], tf.constant([0.7, 1.1], tf.float64)

    def written_out(x):
        return tf.reduce_sum(jvp(f)(x, tangents=tf.ones_like(x))[1] * x)

    try:
        found = value_and_gradient(times_its_product(f), compile=compile)(x)[1]
    except (LookupError, RuntimeError) as error:
        assert name not in ("operations", "vectorized_map") or (name, compile) == ("vectorized_map", "eager")
        assert "way back through a tf.autodiff.ForwardAccumulator" in str(error)  # noqa: PT017 (or it is right)
    else:
        np.testing.assert_allclose(found, value_and_gradient(written_out)(x)[1], rtol=1e-12)


def test_a_source_that_is_lost_in_an_accumulator_is_said_to_be():
    def slope(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = INSIDE["function"](x)
        return tf.reduce_sum(accumulator.jvp(y))

    with pytest.raises(UnconnectedSourceError, match=r"way back through a tf.autodiff.ForwardAccumulator that"):
        value_and_gradient(slope)(tf.constant([0.7]))


def test_a_tape_around_what_is_not_compiled_is_warned_of():
    transform = value_and_gradient(squares, compile="eager")
    with pytest.warns(FallbackWarning, match=r"what an open tape makes of it is not, .* gradients of Xlogy are wrong"):
        plain(lambda x: transform(x)[1])
    np.testing.assert_allclose(jacobian(lambda x: transform(x)[1], compile="eager")(X), 2 * LOG2 * np.eye(3))


def test_other_threads_and_later_calls_see_tensorflows_own():
    elsewhere, here = [], []

    def g(x):
        thread = threading.Thread(target=lambda: elsewhere.append(abs(plain(f)).max()))
        thread.start()
        thread.join()
        if tf.executing_eagerly():
            here.append(abs(plain(f)).max())
        return f(x)

    value_and_gradient(g, compile="eager")(X)
    assert set(elsewhere) == {0}
    np.testing.assert_allclose(here, LOG2)
    assert abs(plain(f)).max() == 0


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("hidden", ["gradient_registry", "classes_with_backward_functions", "forward_mode_cache"])
def test_what_cannot_be_replaced_is_refused(hidden, monkeypatch):
    replaced_gradients._places.cache_clear()
    monkeypatch.setattr(private, hidden, lambda: None if hidden == "gradient_registry" else (None, None))
    try:
        with pytest.raises(ValueError, match="Xlogy, of which TensorFlow's gradients are wrong at some points"):
            value_and_gradient(f)(X)
        np.testing.assert_allclose(value_and_gradient(lambda x: tf.reduce_sum(2 * x))(X + 1)[1], 2)
    finally:
        replaced_gradients._places.cache_clear()


@pytest.mark.dear
def test_of_unknown_lengths():
    """A mask leaves as many factors as it does: what takes n² numbers then is right, too."""

    def masked(x):
        x = tf.boolean_mask(x, x < 2.5)
        segments = tf.math.unsorted_segment_prod(x, tf.zeros_like(x, tf.int32), 1)
        return tf.reduce_sum(tf.math.cumprod(x)) + tf.reduce_sum(segments)

    a, b = 1.0, 2.0  # x = (0, a, b): x₀ + x₀a + x₀ab + x₀ab
    x = np.array([0.0, a, b, 3.0])
    np.testing.assert_allclose(value_and_gradient(masked, compile="graph")(x)[1], [1 + a + 2 * a * b, 0, 0, 0])
    wanted = np.zeros([4, 4])
    wanted[0, 1] = wanted[1, 0] = 1 + 2 * b
    wanted[0, 2] = wanted[2, 0] = 2 * a
    np.testing.assert_allclose(hessian(masked, compile="graph")(x), wanted, atol=1e-12)


def test_where_there_is_no_derivative_it_is_zero_as_in_tensorflow():
    both = tf.constant([0.0, 0.0], tf.float64)
    for g in (tf.math.xlogy, tf.math.xdivy):
        found = jacobian(lambda x, g=g: g(x[0], x[1]), compile="graph")(both)
        np.testing.assert_array_equal(found, [0, 0])
    found = jacobian(lambda x: tf.math.xlog1py(x[0], x[1]), compile="graph")(tf.constant([0.0, -1.0], tf.float64))
    np.testing.assert_array_equal(found, [0, 0])


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("shape", [[0], [1], [2, 0], [0, 2]])
def test_empty_axes(shape):
    x = np.zeros(shape)
    for g in (
        lambda x: tf.reduce_prod(x, -1),
        lambda x: tf.math.cumprod(x, -1),
        lambda x: tf.math.cumprod(x, -1, exclusive=True, reverse=True),
        lambda x: tf.math.unsorted_segment_prod(x, tf.zeros(shape[:1], tf.int32), 2),
    ):
        loss = lambda x, g=g: tf.reduce_sum(g(x) ** 2) + tf.reduce_sum(x)  # noqa: E731
        assert value_and_gradient(loss, compile="graph")(x)[1].shape == x.shape


@pytest.mark.thorough
def test_a_hessian_by_factors():
    """Of products of four units, two of which are zero: ∂²/∂zᵢ∂zⱼ of z₀z₁z₂z₃ + Σ xlogy(z, 2)² is known."""
    generator = np.random.default_rng(0)
    data, start = generator.normal(size=[2, 10]), generator.normal(size=[10, 4])
    start[:, [0, 3]] = 0
    w = tf.Variable(start)

    def loss():
        z = data @ w
        return tf.reduce_sum(tf.reduce_prod(z, 1)) + tf.reduce_sum(tf.math.xlogy(z, tf.constant(2.0, z.dtype)) ** 2)

    transform = hessian(loss, wrt=w, compile="graph")
    wanted = np.zeros([10, 4, 10, 4])
    for x in data:
        z = x @ start
        inner = 2 * LOG2**2 * np.eye(4)
        inner[0, 3] = inner[3, 0] = z[1] * z[2]
        wanted += np.einsum("i,j,ab->iajb", x, x, inner)
    np.testing.assert_allclose(np.reshape(transform(), wanted.shape), wanted, atol=1e-12)
    assert "by per-example factors" in transform.plan().way


def determinant_by_permutations(matrix):
    n = len(matrix)
    orders = np.array(list(itertools.permutations(range(n))))
    products = tf.reduce_prod(tf.gather_nd(matrix, np.stack(np.broadcast_arrays(np.arange(n), orders), -1)), axis=1)
    return tf.tensordot(products, np.linalg.det(np.eye(n)[orders]), 1)


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("lost", [1, 2], ids=["rank n - 1", "rank n - 2"])
def test_determinants_of_singular_matrices(n, lost):
    """A determinant is a polynomial of the elements: its derivatives exist where it is zero, and need no inverse."""
    x = np.random.default_rng(n).standard_normal((n, n))
    x[:lost] = x[-1] * np.arange(1, lost + 1)[:, None] if lost < n else 0
    for derivative in (
        lambda f: value_and_gradient(f, compile="graph")(x)[1],
        lambda f: hvp(f, compile="graph")(x, vector=x),
    ):
        right = derivative(determinant_by_permutations)
        np.testing.assert_allclose(derivative(tf.linalg.det), right, rtol=1e-9, atol=1e-9)
