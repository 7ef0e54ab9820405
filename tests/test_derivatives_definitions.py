"""What the derivatives are by definition, and the comparisons with the plain tape that stand for proofs."""

import cProfile
import functools
import warnings

from tapelab.derivatives import (
    FallbackWarning,
    batch_jacobian,
    clipped_gradient,
    hessian,
    hvp,
    jacobian,
    jvp,
    laplacian,
    linearize,
    per_example_gradients,
    per_example_norms,
    value_and_gradient,
    vjp,
)
from tapelab.process.tensorflow import tf

import numpy as np
import pytest

X = tf.constant([1.0, 2.0, 3.0, 4.0])
BATCH = tf.constant(np.random.default_rng(0).normal(size=(5, 3)), tf.float32)


def rolled(x):
    return tf.roll(x, 1, -1) * x  # which tf.vectorized_map rolls along the wrong axis


def by_loop(f, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x, experimental_use_pfor=False)


def in_a_function(derivative):
    return tf.function(lambda *args: derivative(*args))


# Certificates --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrapped", [lambda derivative: derivative, in_a_function])
def test_rows_that_tensorflow_vectorises_wrongly_are_computed_one_by_one(wrapped):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        np.testing.assert_allclose(wrapped(jacobian(rolled))(X), by_loop(rolled, X))
        matrix = wrapped(hessian(lambda x: tf.reduce_sum(rolled(x) ** 2)))(X).numpy()
        product = hvp(lambda x: tf.reduce_sum(rolled(x) ** 2))(X, vector=X)
        np.testing.assert_allclose(matrix @ X.numpy(), product, rtol=1e-5)
        blocks = wrapped(batch_jacobian(rolled))(BATCH)
        for k in range(len(BATCH)):
            np.testing.assert_allclose(blocks[k], by_loop(rolled, BATCH[k : k + 1])[0, :, 0], atol=1e-6)


def test_a_certificate_that_fails_is_told():
    derivative = jacobian(rolled)
    with pytest.warns(FallbackWarning, match="differ from a product by the plain tape"):
        derivative(X)
    plan = derivative.plan(X)
    assert "loop" in plan.way
    assert "plain tape" in plan.given_up[0]


@pytest.mark.parametrize("wrapped", [lambda derivative: derivative, in_a_function])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_where_all_terms_cancel_their_rounding_is_no_difference(scale, wrapped):
    w = tf.Variable(np.random.default_rng(1).normal(size=(3, 4)), dtype=tf.float32)

    def ones(x):
        return scale * (tf.sin(x) ** 2 + tf.cos(x) ** 2)

    def losses(x):
        return tf.reduce_sum(ones(x @ w), -1)

    derivatives = (
        jacobian(ones),
        batch_jacobian(ones),
        hessian(lambda x: tf.reduce_sum(ones(x))),
        laplacian(losses),
        per_example_gradients(losses, wrt=w),
        per_example_norms(losses, wrt=w),
        clipped_gradient(losses, wrt=w, max_norm=1e9),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        for derivative in derivatives:
            np.testing.assert_allclose(tf.nest.flatten(wrapped(derivative)(BATCH))[0] / scale, 0, atol=1e-5)


@pytest.mark.parametrize("wrapped", [lambda derivative: derivative, in_a_function])
def test_examples_that_are_vectorised_wrongly_are_computed_one_by_one(wrapped):
    w = tf.Variable(1.5)

    def losses(x):  # tf.vectorized_map pads with 0
        padded = tf.pad(x * w, [[0, 0], [1, 1]], constant_values=3.0)
        return tf.reduce_sum(padded**2 * padded[:, ::-1], 1) * w

    truth = []
    for k in range(len(BATCH)):
        with tf.GradientTape() as tape:
            loss = losses(BATCH[k : k + 1])
        truth.append(tape.gradient(loss, w).numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        np.testing.assert_allclose(wrapped(per_example_gradients(losses, wrt=w))(BATCH), truth, rtol=1e-5)
        np.testing.assert_allclose(wrapped(per_example_norms(losses, wrt=w))(BATCH), np.abs(truth), rtol=1e-5)


def test_a_coupling_that_begins_later_is_seen_at_its_call():
    rng = np.random.default_rng(1)
    w = [tf.Variable(rng.normal(size=shape), dtype=tf.float64) for shape in ((8, 16), (16, 3))]
    x = tf.constant(rng.normal(size=(20, 8)))
    coupling = tf.Variable(0.0, dtype=tf.float64)

    def loss(x):
        hidden = tf.tanh(x @ w[0])
        outputs = hidden @ w[1]
        return tf.reduce_mean((outputs + coupling * tf.reduce_mean(outputs, 0)) ** 2)

    matrix = hessian(loss, wrt=w, packed=True)
    rows = hessian(lambda x: loss(x) + 0 * tf.reduce_sum(w[0] ** 2 + 0 * w[0]), wrt=w, packed=True, compile="graph")
    np.testing.assert_allclose(matrix(x), rows(x), atol=1e-10)
    assert "factors" in matrix.plan(x).way
    coupling.assign(1.0)
    with pytest.warns(FallbackWarning, match="depend on each other"):
        found = matrix(x)
    np.testing.assert_allclose(found, rows(x), atol=1e-10)
    assert "factors" not in matrix.plan(x).way


def test_a_custom_gradient_that_is_no_gradient_gives_rows_as_they_come():
    @tf.custom_gradient
    def twisted(x):
        return tf.reduce_sum(x**2), lambda u: u * tf.stack([x[1] ** 2, 3 * x[0]])

    parts = [lambda x: twisted(x), lambda x: twisted(tf.concat([x[:1], x[1:]], 0))]
    for f in parts:
        np.testing.assert_allclose(hessian(f)(tf.constant([2.0, 5.0])), [[0, 10], [3, 0]])
    with pytest.warns(FallbackWarning, match="not symmetric"):
        blocks = hessian(lambda a, b: twisted(tf.stack([a, b])), argnums=(0, 1))(2.0, 5.0)
    np.testing.assert_allclose(blocks, [[0, 10], [3, 0]])


# Definitions ---------------------------------------------------------------------------------------------------------


def test_gradients_of_examples_are_those_of_batches_of_one():
    w = tf.Variable([[1.0], [2.0], [-1.0]])

    def loss(x, y):  # divided by a count of the batch
        return tf.reduce_sum(tf.where(y > 0, (x @ w)[:, 0] ** 2, 0.0)) / tf.cast(
            tf.math.count_nonzero(y) + 1, tf.float32
        )

    y = tf.constant([1, 0, 2, 1, 1])
    truth = []
    for k in range(len(BATCH)):
        with tf.GradientTape() as tape:
            value = loss(BATCH[k : k + 1], y[k : k + 1])
        truth.append(tape.gradient(value, w).numpy())
    truth = np.stack(truth)
    lengths = np.sqrt((truth**2).sum((1, 2)))
    np.testing.assert_allclose(per_example_gradients(loss, wrt=w)(BATCH, y), truth, rtol=1e-5)
    np.testing.assert_allclose(per_example_norms(loss, wrt=w)(BATCH, y), lengths, rtol=1e-5)
    total, norms = clipped_gradient(loss, wrt=w, max_norm=0.5, batch_chunk_size=2)(BATCH, y)
    factors = np.minimum(1, 0.5 / np.maximum(lengths, 1e-30))
    np.testing.assert_allclose(total, (truth * factors[:, None, None]).sum(0), rtol=1e-5)
    np.testing.assert_allclose(norms, lengths, rtol=1e-5)


def test_derivatives_of_examples_that_depend_on_each_other_are_of_each_alone():
    def centred(x):
        return tf.reduce_sum((x - tf.reduce_mean(x, 0)) ** 3 + x**2, 1, keepdims=True)

    np.testing.assert_allclose(laplacian(centred)(BATCH), np.full((5, 1), 6.0), rtol=1e-5)
    np.testing.assert_allclose(batch_jacobian(centred)(BATCH)[:, 0], 2 * BATCH, rtol=1e-5)


def test_batch_normalisation_in_training_is_warned_of_by_name():
    layer = tf.keras.layers.BatchNormalization(name="normalised")
    dense = tf.keras.layers.Dense(1)
    dense(layer(BATCH))
    with pytest.warns(FallbackWarning, match="normalised"):
        per_example_gradients(lambda x: dense(layer(x, training=True))[:, 0], wrt=dense.trainable_variables)(BATCH)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        per_example_gradients(lambda x: dense(layer(x))[:, 0], wrt=dense.trainable_variables)(BATCH)


@pytest.mark.parametrize("derivative", [per_example_gradients, per_example_norms])
def test_what_has_a_row_for_each_example_has_to_be_an_argument(derivative):
    w = tf.Variable(tf.ones((3, 2)))
    labels, weights = tf.constant([0, 1, 1, 0, 1]), tf.ones(5)
    for f in (
        lambda x: tf.nn.sparse_softmax_cross_entropy_with_logits(labels, x @ w),
        lambda x: tf.reduce_sum(tf.tanh(x @ w), 1) * weights,
        lambda x: tf.reduce_sum(tf.reshape(x @ w, [5, 2]) ** 2, 1),
    ):
        with pytest.raises(ValueError, match="argument of the function"):
            derivative(f, wrt=w)(BATCH)


# What is read from outside -------------------------------------------------------------------------------------------

scale = 1.0


def test_what_the_function_s_own_code_names_is_compared_by_identity():
    global scale
    factor = 1.0

    def f(x, times=[2.0]):  # noqa: B006
        return tf.reduce_sum(x**2) * factor * scale * times[0]

    derivative = value_and_gradient(f)
    assert derivative(X)[0] == 60
    factor = 3.0
    assert derivative(X)[0] == 180
    try:
        scale = 2.0
        assert derivative(X)[0] == 360
    finally:
        scale = 1.0
    f.__defaults__ = ([1.0],)
    assert derivative(X)[0] == 90


def test_what_lies_inside_objects_is_read_when_it_is_traced():
    settings, v = {"scale": 1.0}, tf.Variable(1.0)
    derivative = value_and_gradient(functools.partial(lambda x, s: tf.reduce_sum(x**2) * settings["scale"] * v, s=1))
    assert derivative(X)[0] == 30
    settings["scale"] = 2.0
    assert derivative(X)[0] == 30  # as under tf.function
    v.assign(2.0)
    assert derivative(X)[0] == 60
    assert value_and_gradient(lambda x: tf.reduce_sum(x**2) * settings["scale"])(X)[0] == 60


@pytest.mark.parametrize("derivative", [value_and_gradient, jacobian, hessian])
def test_a_path_through_an_assigned_variable_is_refused(derivative):
    v = tf.Variable(tf.zeros(4))

    def f(x):
        v.assign(x)
        return tf.reduce_sum(x * v)

    with pytest.raises(ValueError, match=r"gives a variable a value.*test_derivatives_definitions"):
        derivative(f)(X)

    def kept(x):
        v.assign(x)
        return tf.reduce_sum(x**3)

    derivative(kept)(X)
    np.testing.assert_array_equal(v, X)


def test_an_example_in_a_branch_that_the_drawn_one_is_not_in():
    """One example compared with the plain tape shows nothing of another's branch."""
    x, w = np.random.default_rng(3).normal(size=(100, 4)), tf.Variable(np.linspace(0.5, 2, 4))

    def loss(x):
        return tf.reduce_sum(tf.where(x[:, :1] > 1.5, tf.roll(w * x, 1, axis=-1), w * x) * [1.0, 2.0, 3.0, 4.0])

    moved = np.where(x[:, :1] > 1.5, x * [2, 3, 4, 1], x * [1, 2, 3, 4])
    assert 0 < np.sum(x[:, 0] > 1.5) < 20
    with pytest.warns(FallbackWarning, match="Roll"):
        np.testing.assert_allclose(per_example_gradients(loss, wrt=w)(tf.constant(x)), moved)
    with pytest.warns(FallbackWarning, match="Roll"):
        norms = per_example_norms(loss, wrt=w)(tf.constant(x))
    np.testing.assert_allclose(norms, np.linalg.norm(moved, axis=1))


# In the caller's graph -----------------------------------------------------------------------------------------------


def test_a_smaller_last_batch_in_fit():
    class Model(tf.keras.Sequential):
        def train_step(self, data):
            x, y = data
            w = self.trainable_variables

            def losses(x, y):
                return tf.reduce_sum((self(x) - y) ** 2, 1)

            total, _ = clipped_gradient(losses, wrt=w, max_norm=1.0)(x, y)
            rows = per_example_gradients(losses, wrt=w)(x, y)
            _, whole = value_and_gradient(lambda x, y: tf.reduce_sum(losses(x, y)), wrt=w)(x, y)
            _, along = jvp(losses, wrt=w)(x, y, tangents=whole)
            _, back = vjp(losses, wrt=w)(x, y, cotangents=tf.ones_like(along))
            curved = hvp(lambda x, y: tf.reduce_sum(losses(x, y)), wrt=w)(x, y, vector=whole)
            for row, sum_of_rows, other in zip(rows, whole, back, strict=True):
                tf.debugging.assert_near(tf.reduce_sum(row, 0), sum_of_rows, 1e-4)
                tf.debugging.assert_near(other, sum_of_rows, 1e-4)
            self.optimizer.apply_gradients(zip(total, w, strict=True))
            return {"norm": tf.linalg.global_norm(total), "curved": tf.linalg.global_norm(curved)}

    tf.keras.utils.set_random_seed(0)
    model = Model([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
    model.compile("sgd")
    before = model.get_weights()[0].copy()
    history = model.fit(np.ones((6, 3)), np.full((6, 1), 3.0), batch_size=4, verbose=0, shuffle=False)
    assert 0 < history.history["norm"][0] <= 4
    assert np.abs(model.get_weights()[0] - before).max() > 0


# Linearised ----------------------------------------------------------------------------------------------------------


def test_products_with_many_tangents_at_one_point():
    w = {"a": tf.Variable([[1.0, 2.0, 0.5]]), "b": tf.Variable([0.3, -0.2, 0.1])}

    def f(x):
        return {"y": tf.tanh(x * w["a"] + w["b"])}

    linear = linearize(f, wrt=w)
    value, product = linear(BATCH)
    np.testing.assert_allclose(value["y"], f(BATCH)["y"])
    for k in range(3):
        tangents = {"a": tf.ones((1, 3)) * k, "b": tf.ones(3)}
        np.testing.assert_allclose(product(tangents)["y"], jvp(f, wrt=w)(BATCH, tangents=tangents)[1]["y"], rtol=1e-5)
    w["b"].assign(tf.zeros(3))  # the product stays where it was taken
    moved = linear(BATCH)[1](tangents)["y"]
    np.testing.assert_allclose(moved, jvp(f, wrt=w)(BATCH, tangents=tangents)[1]["y"], rtol=1e-5)
    assert np.abs(product(tangents)["y"] - moved).max() > 1e-3
    (profile := cProfile.Profile()).runcall(product, tangents)  # the public call of what is pruned prints each tensor
    assert sum(entry.callcount for entry in profile.getstats()) < 1000
    with pytest.raises(ValueError, match="tangents"):
        product({"a": tf.ones((1, 3))})


def test_a_position_from_the_end():
    _, gradient = value_and_gradient(lambda x, y: tf.reduce_sum(x * y**2), argnums=-1)(X, X + 1)
    np.testing.assert_allclose(gradient, 2 * X * (X + 1))
    with pytest.raises(ValueError, match="twice"):
        jacobian(lambda x, y: x * y, argnums=(1, -1))(X, X)


NORMALISED = tf.keras.layers.LayerNormalization()  # has control dependencies; a loop has several outputs


@pytest.mark.parametrize(
    "curve", [tf.cosh, lambda y: y * NORMALISED(y), lambda y: tf.scan(lambda a, row: tf.tanh(a * row), y)]
)
def test_a_linearised_gradient_reads_a_constant_of_its_closure(curve):
    weights = tf.constant([[0.3, -0.7], [1.1, 0.2]])

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = tf.reduce_sum(tf.math.sin(curve(x @ weights)))
        return tape.gradient(value, x)

    x, v = tf.constant([[0.4, -0.1], [0.8, 0.3]]), tf.constant([[1.0, 2.0], [-1.0, 0.5]])
    value, product = linearize(slope)(x)
    np.testing.assert_allclose(value, slope(x), rtol=1e-6)
    np.testing.assert_allclose(product(v), jvp(slope)(x, tangents=v)[1], rtol=1e-5)


# In the caller's graph ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("xla", [False, True])
def test_a_tape_around_a_laplacian_differentiates_it_by_variables(xla):
    """The certificate is asked before: there is no conditional, whose derivative XLA would not compile."""
    w = tf.Variable([[0.5, -1.0], [2.0, 0.3], [0.1, 0.7]])

    def u(x):
        return tf.reduce_sum(tf.sin(x @ w), axis=1, keepdims=True)

    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(laplacian(u)(x) ** 2)
        return tape.gradient(loss, w)

    with tf.GradientTape() as tape:  # the sum of the second derivatives is -|w_k|^2 sin(x . w_k) for each unit
        second = -tf.reduce_sum(tf.sin(BATCH @ w) * tf.reduce_sum(w**2, axis=0), axis=1)
        loss = tf.reduce_mean(second**2)
    concrete = tf.function(step, jit_compile=xla).get_concrete_function(BATCH)
    assert not [op for op in concrete.graph.get_operations() if op.type in ("If", "StatelessIf")]
    np.testing.assert_allclose(concrete(BATCH), tape.gradient(loss, w), rtol=1e-4, atol=1e-6)


def test_what_is_in_the_caller_graph_is_compared_there():
    @tf.function
    def step(x, factor):
        return jacobian(lambda x: factor * rolled(x))(x)

    np.testing.assert_allclose(step(X, tf.constant(2.0)), 2 * by_loop(rolled, X))


def test_what_is_told_to_write_for_a_product_of_three_axes_is_vectorised():
    w, x = tf.Variable(tf.ones([3, 2])), tf.ones([5, 4, 3])
    plan = per_example_norms(lambda x: tf.reduce_sum(tf.tensordot(x, w, 1) ** 2), wrt=w).plan(x)
    assert plan.way.endswith("vectorised")


@pytest.mark.parametrize("options", [{"dilation_rate": 2}, {"groups": 2}, {"strides": 2, "padding": "same"}], ids=str)
def test_filters_are_right_or_refused_in_words(options):
    """Without oneDNN, TensorFlow does not differentiate groups on a CPU."""
    layer = tf.keras.layers.Conv2D(4, 3, **options)
    images = tf.constant(np.random.default_rng(0).normal(size=(3, 7, 7, 4)), tf.float32)
    layer.build(images.shape)

    def f(x):
        return tf.reduce_sum(tf.sin(layer(x)), axis=[1, 2, 3])

    def by_tape():
        for image in images:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(f(image[tf.newaxis]))
            yield tape.gradient(loss, layer.kernel)

    derivative = per_example_gradients(f, wrt=layer.kernel.value)
    try:
        wanted = list(by_tape())
    except tf.errors.InvalidArgumentError:
        with pytest.raises(LookupError, match="without oneDNN"):
            derivative(images)
    else:
        np.testing.assert_allclose(derivative(images), wanted, rtol=1e-4, atol=1e-4)


def test_random_numbers_are_not_taken_for_a_difference():
    """Two draws differ: the rows of one draw are not compared with those of another."""
    derivative = laplacian(lambda x: tf.random.uniform([], 1.0, 2.0) * tf.reduce_sum(x**2), batched=False)
    with pytest.warns(FallbackWarning, match="draws random numbers") as caught:
        found = derivative(tf.ones(3))
    assert len(caught) == 1
    assert 6 <= found <= 12
