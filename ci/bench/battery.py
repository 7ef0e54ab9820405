"""Compare tapelab's derivatives with JAX's on a battery of functions, float32 and float64: `make bench` does so first.

Each function stands here twice, for TensorFlow and for JAX, and is given the same arrays. An error is relative to the
largest element of JAX's result. The exit status is 1 if any error is above its tolerance.
"""

import sys
import warnings

from tapelab import derivatives
from tapelab.derivatives import FallbackWarning
from tapelab.runtime import tf

import jax
import jax.numpy as jnp
import numpy as np

TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
STATISTICS = np.array([[0.1, -0.2, 0.3], [1.5, 0.7, 1.0], [0.0, 0.1, 0.2], [1.0, 2.0, 0.5]])
LABELS, TOKENS = np.array([0, 2, 1, 1]), np.array([0, 2, 2, 5])


def draw(*shape):
    return 0.5 * GENERATOR.standard_normal(shape)


GENERATOR = np.random.default_rng(0)
X, W, V, B = draw(4, 3), draw(3, 3), draw(3, 2), draw(3)
TABLE, IMAGES, KERNEL = draw(6, 3), draw(2, 4, 4, 1), draw(3, 3, 1, 2)


def tf_mlp(w, x):
    return tf.reduce_mean(tf.tanh(tf.tanh(x @ w["hidden"] + w["bias"]) @ w["out"]) ** 2)


def jax_mlp(w, x):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ w["hidden"] + w["bias"]) @ w["out"]) ** 2)


def tf_cnn(kernel, images):
    features = tf.nn.elu(tf.nn.conv2d(images, kernel, strides=1, padding="SAME"))
    return tf.reduce_mean(tf.math.log(1 + tf.nn.avg_pool2d(features, 2, 2, "VALID") ** 2))


def jax_cnn(kernel, images):
    order = ("NHWC", "HWIO", "NHWC")
    features = jax.nn.elu(jax.lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=order))
    pooled = features.reshape(2, 2, 2, 2, 2, 2).mean((2, 4))  # (batch, y, y in window, x, x in window, channels)
    return jnp.mean(jnp.log(1 + pooled**2))


def tf_attention(x, w):
    return tf.reduce_sum((tf.nn.softmax((x @ w) @ tf.transpose(x @ tf.transpose(w))) @ x) ** 3)


def jax_attention(x, w):
    return jnp.sum((jax.nn.softmax((x @ w) @ (x @ w.T).T) @ x) ** 3)


def tf_softmax(logits, scale):
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=LABELS, logits=logits * scale))


def jax_softmax(logits, scale):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits * scale), LABELS[:, None], 1))


def tf_embedding(table, w):
    return tf.reduce_sum(tf.sin(tf.gather(table, TOKENS) @ w) ** 2)


def jax_embedding(table, w):
    return jnp.sum(jnp.sin(table[TOKENS] @ w) ** 2)


def tf_rnn(w, x):
    state = tf.zeros([1, 3], w.dtype)
    for step in tf.range(4):
        state = tf.tanh(state @ w + x[step : step + 1])
    return tf.reduce_sum(state**2)


def jax_rnn(w, x):
    state, _ = jax.lax.scan(lambda state, row: (jnp.tanh(state @ w + row), None), jnp.zeros(3, w.dtype), x)
    return jnp.sum(state**2)


def tf_batch_norm(x, w):
    mean, variance, offset, scale = tf.unstack(tf.cast(STATISTICS, x.dtype))
    return tf.reduce_sum(tf.nn.softplus(tf.nn.batch_normalization(x @ w, mean, variance, offset, scale, 1e-3)))


def jax_batch_norm(x, w):
    mean, variance, offset, scale = STATISTICS.astype(x.dtype)
    return jnp.sum(jax.nn.softplus((x @ w - mean) / jnp.sqrt(variance + 1e-3) * scale + offset))


def tf_nested(x, w):
    return {"rows": tf.tanh(x @ w["v"]), "both": (tf.reduce_sum(x**2) * tf.reduce_sum(w["v"]),)}


def jax_nested(x, w):
    return {"rows": jnp.tanh(x @ w["v"]), "both": (jnp.sum(x**2) * jnp.sum(w["v"]),)}


def tf_rowwise(x, w):
    return tf.nn.softmax(tf.tanh(x @ w))


def jax_rowwise(x, w):
    return jax.nn.softmax(jnp.tanh(x @ w))


SCALARS = {
    "MLP": (tf_mlp, jax_mlp, ({"hidden": W, "bias": B, "out": V}, X)),
    "CNN": (tf_cnn, jax_cnn, (KERNEL, IMAGES)),
    "attention": (tf_attention, jax_attention, (X, W)),
    "softmax": (tf_softmax, jax_softmax, (X, draw(1, 3))),
    "embedding": (tf_embedding, jax_embedding, (TABLE, V)),
    "RNN loop": (tf_rnn, jax_rnn, (W, X)),
    "batch norm": (tf_batch_norm, jax_batch_norm, (X, W)),
}


def scalar_pairs(ours, theirs, args):
    """First and second order, by the first argument: the derivative's name, tapelab's and JAX's."""
    vector = jax.tree.map(jnp.cos, args[0])
    yield "gradient", derivatives.value_and_gradient(ours)(*args), jax.value_and_grad(theirs)(*args)
    yield "hessian", derivatives.hessian(ours)(*args), jax.hessian(theirs)(*args)
    product = jax.jvp(lambda x: jax.grad(theirs)(x, *args[1:]), args[:1], (vector,))[1]
    yield "hvp", derivatives.hvp(ours)(*args, vector=jax.tree.map(np.asarray, vector)), product


def nested_pairs(dtype):
    """Several inputs and nested outputs."""
    args = cast((X, {"v": V}), dtype)
    tangents = jax.tree.map(np.cos, args)
    value, pull = jax.vjp(jax_nested, *args)
    cotangents = jax.tree.map(lambda part: np.asarray(jnp.cos(part)), value)
    both = {"argnums": (0, 1)}
    yield "jvp", derivatives.jvp(tf_nested, **both)(*args, tangents=tangents), jax.jvp(jax_nested, args, tangents)
    yield "vjp", derivatives.vjp(tf_nested, **both)(*args, cotangents=cotangents)[1], pull(cotangents)
    for mode in ("forward", "reverse"):
        yield mode, derivatives.jacobian(tf_nested, mode=mode, **both)(*args), jax.jacrev(jax_nested, (0, 1))(*args)


def example_pairs(dtype):
    """One derivative for each example."""
    x, w = cast((X, W), dtype)
    theirs = jax.vmap(jax.jacrev(jax_rowwise), (0, None))(x, w)
    yield "batch Jacobian", derivatives.batch_jacobian(tf_rowwise)(x, w), theirs
    for name, ours, theirs, (source, data) in [("MLP", *SCALARS["MLP"]), ("CNN", *SCALARS["CNN"])]:
        if name == "CNN":
            theirs = _of_one_image
        source, data = cast((source, data), dtype)
        wanted = jax.vmap(lambda w, x, f=theirs: jax.grad(f)(w, x[None]), (None, 0))(source, data)
        yield f"per-example {name}", derivatives.per_example_gradients(ours)(source, data), wanted


def _of_one_image(kernel, image):
    """`jax_cnn` of two images that are the same: its mean is that of one."""
    return jax_cnn(kernel, jnp.concatenate([image, image]))


def cast(structure, dtype):
    return jax.tree.map(lambda part: part.astype(dtype), structure)


def error(ours, theirs):
    """The largest difference, relative to the largest element; infinite if structure, shape or dtype differ."""
    found = [np.asarray(part) for part in tf.nest.flatten(ours)]
    wanted = [np.asarray(part) for part in jax.tree.leaves(theirs)]
    if [(part.shape, part.dtype) for part in found] != [(part.shape, part.dtype) for part in wanted]:
        return np.inf
    pairs = zip(found, wanted, strict=True)
    return max(np.abs(a - b).max() / max(np.abs(b).max(), np.finfo(b.dtype).tiny) for a, b in pairs)


def main():
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_default_matmul_precision", "highest")
    warnings.simplefilter("ignore", FallbackWarning)
    compared, worst, wrong = 0, dict.fromkeys(TOLERANCE, 0.0), []
    for dtype, tolerance in TOLERANCE.items():
        groups = {name: scalar_pairs(*fs, cast(args, dtype)) for name, (*fs, args) in SCALARS.items()}
        groups |= {"nested outputs": nested_pairs(dtype), "by example": example_pairs(dtype)}
        for group, pairs in groups.items():
            for name, ours, theirs in pairs:
                found = error(ours, theirs)
                compared += 1
                worst[dtype] = max(worst[dtype], found)
                if not found <= tolerance:
                    wrong.append(f"{group}, {name}, {dtype}: {found:.1e}, tolerance {tolerance:.0e}")
    largest = ", ".join(f"{dtype} {found:.1e} (tolerance {TOLERANCE[dtype]:.0e})" for dtype, found in worst.items())
    print(f"{compared} derivatives compared with JAX {jax.__version__}; largest relative error: {largest}")
    if wrong:
        sys.exit("tapelab and JAX disagree:\n" + "\n".join(wrong))


if __name__ == "__main__":
    main()
