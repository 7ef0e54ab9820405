"""The work in JAX, jitted."""

from importlib import metadata

import asdex
import jax
import jax.numpy as jnp
import numpy as np
import sparse_functions
from folx import forward_laplacian
from jax.experimental.jet import jet
from jax.flatten_util import ravel_pytree
from works import LAPLACIAN_CHUNK, MAX_NORM, batch, cut, direction, labels, weights


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


def cross_entropy(parameters, x, y):
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(convolutional(parameters, x)), y[:, None], 1))


def _arrays(work):
    jax.config.update("jax_enable_x64", work.dtype == "float64")
    return [jnp.asarray(weight) for weight in weights(work)], *[jnp.asarray(part) for part in batch(work)]


def run_hessian(work):
    parameters, x, y = _arrays(work)
    flat, unravel = ravel_pytree(parameters)
    ours = jax.jit(jax.hessian(lambda flat, x, y: squared(unravel(flat), x, y)))
    return {"jax": lambda: ours(flat, x, y)}


def run_gradient(work):
    parameters, x, y = _arrays(work)
    ours = jax.jit(jax.grad(squared))
    return {"jax": lambda: ours(parameters, x, y)}


def run_hvp(work):
    parameters, x, y = _arrays(work)
    vector = [jnp.asarray(part) for part in direction(work)]
    ours = jax.jit(lambda v, p, x, y: jax.jvp(lambda p: jax.grad(squared)(p, x, y), (p,), (v,))[1])
    return {"jax": lambda: ours(vector, parameters, x, y)}


def run_jacobian(work):
    parameters, x, _ = _arrays(work)
    x = x[0]
    make = jax.jacfwd if work.sizes[0] < work.sizes[-1] else jax.jacrev
    ours = jax.jit(make(lambda x: network(parameters, x)))
    return {"jax": lambda: ours(x)}


def run_batch_jacobian(work):
    parameters, x, _ = _arrays(work)
    ours = jax.jit(jax.vmap(jax.jacrev(lambda x: network(parameters, x))))
    return {"jax": lambda: ours(x)}


def run_per_example(work, loss=squared):
    parameters, x, y = _arrays(work)
    ours = jax.jit(jax.vmap(lambda p, x, y: jax.grad(loss)(p, x[None], y[None]), (None, 0, 0)))
    return {"jax": lambda: ours(parameters, x, y)}


def run_per_example_cnn(work):
    return run_per_example(work, cross_entropy)


def _forward_over_reverse(f):
    """The Laplacian of a function of one example."""

    def laplacian(x):
        gradient = jax.grad(f)
        second = jax.vmap(lambda unit: jnp.vdot(jax.jvp(gradient, (x,), (unit,))[1], unit))
        return jnp.sum(second(jnp.eye(x.shape[0], dtype=x.dtype)))

    return laplacian


def _by_jets(f):
    """The same, from second derivatives along straight lines."""

    def laplacian(x):
        second = jax.vmap(lambda unit: jet(f, (x,), ([unit, jnp.zeros_like(x)],))[1][1])
        return jnp.sum(second(jnp.eye(x.shape[0], dtype=x.dtype)))

    return laplacian


def _by_folx(f):
    """The same by folx, which takes values, Jacobians and Laplacians through f together."""
    forward = forward_laplacian(f)
    return lambda x: forward(x).laplacian


LAPLACIANS = {"jax": _forward_over_reverse, "jax jet": _by_jets, "folx": _by_folx}


def _number(parameters):
    return lambda x: network(parameters, x[None])[0, 0]


def run_laplacian(work):
    parameters, x, _ = _arrays(work)
    each = {name: make(_number(parameters)) for name, make in LAPLACIANS.items()}
    compiled = {name: jax.jit(jax.vmap(one)) for name, one in each.items()}
    compiled["jax chunks"] = jax.jit(lambda x: jax.lax.map(each["jax"], x, batch_size=LAPLACIAN_CHUNK))
    return {name: lambda run=run: run(x) for name, run in compiled.items()}


def run_residual(work):
    parameters, x, _ = _arrays(work)

    def step(make):
        return jax.jit(jax.grad(lambda p: jnp.mean(jax.vmap(make(_number(p)))(x) ** 2)))

    each = {name: step(make) for name, make in LAPLACIANS.items()}
    return {name: lambda run=run: run(parameters) for name, run in each.items()}


def _fourth_along(f, x, direction):
    """The fourth derivative along a straight line."""
    zero = jnp.zeros_like(x)
    return jet(f, (x,), ([direction, zero, zero, zero],))[1][3]


def _biharmonic_by_jets(f):
    """Δ² from fourth derivatives along the D axes and the D (D - 1) diagonals of their planes.

    Those along e_i + e_j and e_i - e_j sum to 2 (∂_i⁴ + 6 ∂_i² ∂_j² + ∂_j⁴) f, which leaves 1 - (D - 1) / 3 of ∂_i⁴ f.
    """

    def biharmonic(x):
        units = np.eye(x.shape[0])
        diagonals = [units[i] + sign * units[j] for i in range(len(units)) for j in range(i) for sign in (1, -1)]
        directions = jnp.asarray([*units, *diagonals], x.dtype)
        scales = np.repeat([1 - (len(units) - 1) / 3, 1 / 6], [len(units), len(diagonals)])
        fourth = jax.vmap(lambda direction: _fourth_along(f, x, direction))(directions)
        return jnp.dot(jnp.asarray(scales, x.dtype), fourth)

    return biharmonic


def run_biharmonic(work):
    parameters, x, _ = _arrays(work)
    makers = {
        "jax": lambda f: _forward_over_reverse(_forward_over_reverse(f)),
        "jax jet": _biharmonic_by_jets,
        "folx": lambda f: _by_folx(_by_folx(f)),
    }
    each = {name: jax.jit(jax.vmap(make(_number(parameters)))) for name, make in makers.items()}
    return {name: lambda run=run: run(x) for name, run in each.items()}


def run_tiny(work):
    x = jnp.asarray([0.5, 1.5], "float32")
    ours = jax.jit(jax.value_and_grad(lambda x: jnp.sum(jnp.sin(x))))
    return {"jax": lambda: ours(x)[1]}


def _losses(logits, y):
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)[:, 0]


def _over_data(work, product):
    """A product with the mean's matrix of each batch, jitted, and the mean of these."""
    parameters, x, _ = _arrays(work)
    vector = [jnp.asarray(part) for part in direction(work)]
    batches = cut(x, jnp.asarray(labels(work)))
    each = jax.jit(lambda p, v, x, y: ravel_pytree(product(p, v, x, y))[0] / len(batches))
    return {"jax": lambda: sum(each(parameters, vector, *part) for part in batches)}


def run_ggn_product(work):
    def product(p, v, x, y):
        logits, pushed, pull = *jax.jvp(lambda p: network(p, x), (p,), (v,)), jax.vjp(lambda p: network(p, x), p)[1]
        curved = jax.jvp(jax.grad(lambda z: jnp.mean(_losses(z, y))), (logits,), (pushed,))[1]
        return pull(curved)[0]

    return _over_data(work, product)


def run_hessian_product(work):
    def product(p, v, x, y):
        return jax.jvp(jax.grad(lambda p: jnp.mean(_losses(network(p, x), y))), (p,), (v,))[1]

    return _over_data(work, product)


def run_clipped(work, model=network):
    parameters, x, _ = _arrays(work)
    y = jnp.asarray(labels(work))

    def clipped(p, x, y):
        gradient = jax.grad(lambda p: _losses(model(p, x[None]), y[None])[0])(p)
        norm = jnp.sqrt(sum(jnp.sum(part**2) for part in gradient))
        return [part * jnp.minimum(1, MAX_NORM / norm) for part in gradient]

    ours = jax.jit(lambda p, x, y: [part.sum(0) for part in jax.vmap(clipped, (None, 0, 0))(p, x, y)])
    return {"jax": lambda: ours(parameters, x, y)}


def run_clipped_cnn(work):
    return run_clipped(work, convolutional)


def _sparse(work, function, sparse):
    x = _arrays(work)[1][0]
    ours = jax.jit(sparse(sparse_functions.in_framework(function, jnp), x))
    return {"asdex": lambda: ours(x).data}


def run_sparse_jacobian(work):
    return _sparse(work, sparse_functions.band, asdex.jacobian)


def run_sparse_hessian(work):
    return _sparse(work, sparse_functions.chain, asdex.hessian)
