"""The work in JAX, jitted. Each function gives the recipes of a kind."""

from functools import partial
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
from folx import forward_laplacian
from jax.flatten_util import ravel_pytree
from works import MAX_NORM, batch, cut, direction, labels, weights


def version():
    return f"JAX {jax.__version__}, folx {metadata.version('folx')}"


def wait(result):
    jax.block_until_ready(result)


def to_numpy(result):
    return [np.asarray(part) for part in jax.tree.leaves(result)]


def network(parameters, x):
    for matrix, bias in zip(parameters[:-2:2], parameters[1:-2:2], strict=True):
        x = jnp.tanh(x @ matrix + bias)
    return x @ parameters[-2] + parameters[-1]


def convolutional(parameters, x):
    for kernel in parameters[:2]:
        x = jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        x = jax.lax.reduce_window(jax.nn.relu(x), 0.0, jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID") / 4
    return x.reshape(-1, parameters[2].shape[0]) @ parameters[2] + parameters[3]


def squared(parameters, x, y):
    return jnp.mean((network(parameters, x) - y) ** 2)


def losses_of_classes(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)[:, 0]


def cross_entropy(parameters, x, y):
    return jnp.mean(losses_of_classes(convolutional(parameters, x), y))


def arrays(work):
    jax.config.update("jax_enable_x64", work.dtype == "float64")
    return [jnp.asarray(weight) for weight in weights(work)], *map(jnp.asarray, batch(work))


def one(f, *args):
    """The one recipe of a work, compiled."""
    ours = jax.jit(f)
    return {"jax": lambda: ours(*args)}


def hessian(work):
    parameters, x, y = arrays(work)
    flat, unravel = ravel_pytree(parameters)
    return one(jax.hessian(lambda flat, x, y: squared(unravel(flat), x, y)), flat, x, y)


def hvp(work):
    vector = [jnp.asarray(part) for part in direction(work)]
    return one(lambda v, p, x, y: jax.jvp(lambda p: jax.grad(squared)(p, x, y), (p,), (v,))[1], vector, *arrays(work))


def jacobian(work):
    parameters, x, _ = arrays(work)
    make = jax.jacfwd if work.sizes[0] < work.sizes[-1] else jax.jacrev
    return one(make(lambda x: network(parameters, x)), x[0])


def batch_jacobian(work):
    parameters, x, _ = arrays(work)
    return one(jax.vmap(jax.jacrev(lambda x: network(parameters, x))), x)


def per_example(work, loss=squared):
    return one(jax.vmap(lambda p, x, y: jax.grad(loss)(p, x[None], y[None]), (None, 0, 0)), *arrays(work))


def laplacian(work):
    """Forward over reverse; and by folx, which takes values, Jacobians and Laplacians through f together."""
    parameters, x, _ = arrays(work)

    def f(x):
        return network(parameters, x[None])[0, 0]

    def usual(x):
        second = jax.vmap(lambda unit: jnp.vdot(jax.jvp(jax.grad(f), (x,), (unit,))[1], unit))
        return jnp.sum(second(jnp.eye(x.shape[0], dtype=x.dtype)))

    forward = jax.jit(jax.vmap(lambda x: forward_laplacian(f)(x).laplacian))
    return one(jax.vmap(usual), x) | {"folx": lambda: forward(x)}


def over_data(work, product):
    """A product with the mean's matrix of each batch, jitted, and the mean of these."""
    parameters, x, _ = arrays(work)
    vector = [jnp.asarray(part) for part in direction(work)]
    batches = cut(x, jnp.asarray(labels(work)))
    each = jax.jit(lambda p, v, x, y: ravel_pytree(product(p, v, x, y))[0] / len(batches))
    return {"jax": lambda: sum(each(parameters, vector, *part) for part in batches)}


def ggn(p, v, x, y):
    logits, pushed, pull = *jax.jvp(lambda p: network(p, x), (p,), (v,)), jax.vjp(lambda p: network(p, x), p)[1]
    curved = jax.jvp(jax.grad(lambda z: jnp.mean(losses_of_classes(z, y))), (logits,), (pushed,))[1]
    return pull(curved)[0]


def whole_hessian(p, v, x, y):
    return jax.jvp(jax.grad(lambda p: jnp.mean(losses_of_classes(network(p, x), y))), (p,), (v,))[1]


def clipped(work, model=network):
    parameters, x, _ = arrays(work)

    def example(p, x, y):
        gradient = jax.grad(lambda p: losses_of_classes(model(p, x[None]), y[None])[0])(p)
        norm = jnp.sqrt(sum(jnp.sum(part**2) for part in gradient))
        return [part * jnp.minimum(1, MAX_NORM / norm) for part in gradient]

    every = jax.vmap(example, (None, 0, 0))
    return one(lambda p, x, y: [part.sum(0) for part in every(p, x, y)], parameters, x, jnp.asarray(labels(work)))


def gradient(work):
    return one(jax.grad(squared), *arrays(work))


def tiny(work):
    return one(jax.grad(lambda x: jnp.sum(jnp.sin(x))), jnp.asarray([0.5, 1.5], "float32"))


per_example_cnn = partial(per_example, loss=cross_entropy)
ggn_product = partial(over_data, product=ggn)
hessian_product = partial(over_data, product=whole_hessian)
clipped_cnn = partial(clipped, model=convolutional)
