"""Every transformation on a battery of functions, against central differences in float64 that know nothing of tapes."""

from tapelab.derivatives import hessian, hvp, jacobian, jvp, pack, unpack, value_and_gradient, vjp
from tapelab.gradcheck import numerical_jacobian
from tapelab.runtime import tf

import by_tape
import numpy as np
import pytest

GENERATOR = np.random.default_rng(0)


def draw(*shape):
    return 0.5 * GENERATOR.standard_normal(shape)


X, Y, W, V, TABLE, IMAGES, KERNEL = (
    draw(4, 3), draw(4, 2), draw(3, 3), draw(3, 2), draw(6, 3), draw(2, 4, 4, 1), draw(3, 3, 1, 2)
)  # fmt: skip


def mlp(w, x):
    return tf.reduce_mean((tf.tanh(tf.tanh(x @ w["hidden"] + w["bias"]) @ w["out"]) - Y) ** 2)


def cnn(kernel, images):
    features = tf.nn.elu(tf.nn.conv2d(images, kernel, strides=1, padding="SAME"))
    return tf.reduce_mean(tf.math.log(1 + tf.nn.avg_pool2d(features, 2, 2, "VALID") ** 2))


def attention(x, w):
    q, k, v = x @ w, x @ tf.transpose(w), x
    return tf.reduce_sum((tf.nn.softmax(q @ tf.transpose(k)) @ v) ** 3)


def cross_entropy(logits, scale):
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=[0, 2, 1, 1], logits=logits * scale)
    return tf.reduce_mean(losses)


def embedding(table, w):
    return tf.reduce_sum(tf.sin(tf.gather(table, [0, 2, 2, 5]) @ w) ** 2)


FUNCTIONS = {
    "mlp": (mlp, ({"hidden": W, "bias": draw(3), "out": V}, X)),
    "cnn": (cnn, (KERNEL, IMAGES)),
    "attention": (attention, (X, W)),
    "softmax and cross-entropy": (cross_entropy, (X, draw(1, 3))),
    "embedding": (embedding, (TABLE, V)),
}


@pytest.fixture(params=FUNCTIONS, ids=list(FUNCTIONS))
def case(request):
    return FUNCTIONS[request.param]


def packed(f, args):
    """f as a function of its first argument's elements in one float64 vector, evaluated eagerly."""
    vector = np.concatenate([leaf.ravel() for leaf in tf.nest.flatten(args[0])])
    return lambda vector: f(unpack(vector, args[0]), *args[1:]), vector


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.filterwarnings("ignore::tapelab.derivatives.FallbackWarning")  # the CNN's Hessian, row by row
def test_gradient_and_hessian(case):
    f, args = case
    of_vector, x = packed(f, args)
    value, gradient = value_and_gradient(f)(*args)
    np.testing.assert_allclose(value, of_vector(x), rtol=1e-12)
    np.testing.assert_allclose(pack(gradient), numerical_jacobian(of_vector, x), atol=1e-8)

    def eager_gradient(x):
        return pack(by_tape.gradient(lambda first: f(first, *args[1:]), unpack(x, args[0])))

    matrix = hessian(f, packed=True)(*args)
    np.testing.assert_allclose(matrix, numerical_jacobian(eager_gradient, x), atol=1e-8)
    np.testing.assert_allclose(matrix, tf.transpose(matrix), atol=1e-14)
    vector = np.random.default_rng(1).standard_normal(x.size)
    np.testing.assert_allclose(hvp(f, packed=True)(*args, vector=vector), tf.linalg.matvec(matrix, vector), atol=1e-12)


def two_outputs(x, w):
    """Several inputs, nested outputs: shapes (4, 2) and ()."""
    return {"rows": tf.tanh(x @ w["v"]), "both": (tf.reduce_sum(x**2) * tf.reduce_sum(w["v"]),)}


@pytest.mark.dear
def test_products_and_jacobians_of_several_inputs_and_nested_outputs():
    w = {"v": tf.constant(V)}
    x = tf.constant(X)
    forward = jacobian(two_outputs, argnums=(0, 1), mode="forward")(x, w)
    reverse = jacobian(two_outputs, argnums=(0, 1), mode="reverse")(x, w)
    chunks = jacobian(two_outputs, argnums=(0, 1), mode="reverse", chunk_size=3)(x, w)
    assert isinstance(reverse["both"], tuple)
    assert tf.nest.map_structure(lambda leaf: tuple(leaf.shape), reverse["rows"]) == ((4, 2, 4, 3), {"v": (4, 2, 3, 2)})

    numerical = {
        "rows": (
            numerical_jacobian(lambda x: two_outputs(x, w)["rows"], X),
            {"v": numerical_jacobian(lambda v: two_outputs(x, {"v": v})["rows"], V)},
        ),
        "both": (
            (
                numerical_jacobian(lambda x: two_outputs(x, w)["both"][0], X),
                {"v": numerical_jacobian(lambda v: two_outputs(x, {"v": v})["both"][0], V)},
            ),
        ),
    }
    for found in (forward, reverse, chunks):
        tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-8), found, numerical)

    tangents = (tf.constant(draw(4, 3)), {"v": tf.constant(draw(3, 2))})
    value, pushed = jvp(two_outputs, argnums=(0, 1))(x, w, tangents=tangents)
    tf.nest.map_structure(np.testing.assert_allclose, value, two_outputs(x, w))
    for name, index in (("rows", ()), ("both", (0,))):
        part, product = numerical[name], pushed[name]
        for i in index:
            part, product = part[i], product[i]
        wanted = np.tensordot(part[0], tangents[0], 2) + np.tensordot(part[1]["v"], tangents[1]["v"], 2)
        np.testing.assert_allclose(product, wanted, atol=1e-8)

    cotangents = {"rows": tf.constant(draw(4, 2)), "both": (tf.constant(0.7, tf.float64),)}
    _, (by_x, by_w) = vjp(two_outputs, argnums=(0, 1))(x, w, cotangents=cotangents)
    rows, both = numerical["rows"], numerical["both"][0]
    np.testing.assert_allclose(by_x, np.tensordot(cotangents["rows"], rows[0], 2) + 0.7 * both[0], atol=1e-8)
    np.testing.assert_allclose(
        by_w["v"], np.tensordot(cotangents["rows"], rows[1]["v"], 2) + 0.7 * both[1]["v"], atol=1e-8
    )


@pytest.mark.parametrize(
    ("f", "mode"), [(lambda x: x[:2] ** 2, "reverse"), (lambda x: tf.concat([x, x**3], 0), "forward")]
)
def test_auto_mode_is_the_one_with_fewer_passes(f, mode):
    held, x = jacobian(f), tf.constant(draw(6))
    np.testing.assert_allclose(held(x), numerical_jacobian(lambda x: f(tf.constant(x)), x), atol=1e-8)
    assert held.plan(x).mode == mode


def test_the_block_of_two_sources_stands_under_the_first():
    """The structure of all blocks, and the zeros where sources do not meet: test_derivatives_arguments."""
    w = {"a": tf.constant(draw(2, 3)), "b": [tf.constant(draw(4))]}
    blocks = hessian(lambda w: tf.reduce_sum(w["a"] ** 2) * tf.reduce_sum(w["b"][0] ** 2))(w)
    wanted = 4 * np.multiply.outer(w["a"], w["b"][0])
    np.testing.assert_allclose(blocks["a"]["b"][0], wanted)
    np.testing.assert_allclose(blocks["b"][0]["a"], np.moveaxis(wanted, 2, 0))
