"""What every transformation makes of a random program, beside what is right by derivatives from values.

A check computes one derivative of a program and says what it must be, from the rows' Jacobians and Hessians that
`random_truth` finds in values. So the transformations agree with each other where they agree with that: a product is
the Hessian's, a batch is its rows, chunks are the whole, factors are rows.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tapelab import derivatives as package
from tapelab.derivatives.transform import Transform
from tapelab.runtime import tf

import numpy as np
import random_truth
from random_programs import Program

SMALLEST_NORM = 1e-153  # the square of what is smaller is out of range

TRANSFORMATIONS = [
    name
    for name in package.__all__
    if inspect.isfunction(getattr(package, name))
    and inspect.signature(getattr(package, name)).return_annotation is Transform
]


class Comparison(NamedTuple):
    """What came out and what is right, of one shape; the error of that, and whether there is a derivative."""

    found: np.ndarray
    right: np.ndarray
    error: np.ndarray
    exists: np.ndarray


class _Held:
    """`tapelab.derivatives`, of which a transform of a trial's function is made once and called at many points."""

    def __getattr__(self, name):
        def make(function, *args, **options):
            held = function.__self__.held
            key = name, function.__name__, *[option for option in options.values() if isinstance(option, (str, int))]
            if key not in held:
                held[key] = getattr(package, name)(function, *args, **options)
            return held[key]

        return make


derivatives = _Held()


class Functions:
    """A program and what is differentiated of it, for points of so many rows.

    Attributes:
        held: the transforms that were made of the functions.
    """

    def __init__(self, program: Program, rows: int):
        self.held = {}
        self._every = program.every()
        self.n = program.length
        self.k = program.size
        self.shared = np.cos(0.5 + 1.1 * np.arange(self.k))
        self.weights = np.cos(0.5 + 1.1 * np.arange(rows * self.k)).reshape(rows, self.k)

    def program(self, x):
        return self._every(x)[-1]

    def loss(self, x):
        return tf.reduce_sum(self.program(x) * self.weights)

    def difference(self, a, b):
        return self.loss(2.0 * a - b)

    def losses(self, x):
        """One of each example, all of the same weights."""
        return tf.linalg.matvec(self.program(x), self.shared)

    @functools.cached_property
    def weighted(self) -> "Weighted":
        return Weighted(self)


class Weighted:
    """The program of x times a variable, which is the unit matrix: its derivatives follow from those by x."""

    def __init__(self, functions: Functions):
        self.held = {}
        self.functions = functions
        self.variable = tf.Variable(np.eye(functions.n))

    def losses(self, x):
        return self.functions.losses(tf.matmul(x, self.variable))

    def loss(self, x):
        return tf.reduce_sum(self.losses(x))

    def model(self, x):
        return self.functions.program(tf.matmul(x, self.variable))


class Case:
    """A program's functions at a point, and what is known of their derivatives there.

    Args:
        jacobian, hessian: the rows' derivatives, from values.
    """

    def __init__(self, functions: Functions, compiled: str, x: np.ndarray, jacobian, hessian):
        self.program, self.loss, self.losses = functions.program, functions.loss, functions.losses
        self.difference, self.weighted = functions.difference, functions.weighted
        self.shared, self.weights, self.k = functions.shared, functions.weights, functions.k
        self.options = {"compile": compiled, "unconnected": "zero"}
        self.x, self.jacobian, self.hessian = x, jacobian, hessian
        self.rows, self.n = x.shape
        self.tangents = np.cos(2.5 + 1.9 * np.arange(x.size)).reshape(x.shape)

    def one(self, derivative: random_truth.Derivative, subscripts: str, *others: np.ndarray) -> Comparison:
        """What is right of a product with a derivative, row by row: `exists` where all that enters does."""
        with np.errstate(all="ignore"):
            right = np.einsum(subscripts, derivative.value, *others)
            error = np.einsum(subscripts, derivative.error, *map(np.abs, others))
        return Comparison(None, right, error, derivative.exists)

    @property
    def weighted_gradients(self) -> Comparison:
        return self.one(self.jacobian, "rkn,k,rm->rmn", self.shared, self.x)


CHECKS: dict[str, Callable[[Case], Iterator[Comparison]]] = {}


def check(function):
    CHECKS[function.__name__] = function
    return function


def _rows(found, comparison):
    """A result that has each row's derivative of a sum over its outputs: it exists where all of them have one."""
    exists = comparison.exists.all(axis=1)
    return comparison._replace(found=found, exists=exists.reshape(-1, *[1] * (comparison.right.ndim - 1)))


def _blocks(found, comparison):
    """A result that has each output's derivative."""
    exists = comparison.exists
    return comparison._replace(found=found, exists=exists.reshape(*exists.shape, *[1] * (comparison.right.ndim - 2)))


def _all(found, comparison):
    """A result to which all rows and outputs contribute."""
    return comparison._replace(found=found, exists=np.array(comparison.exists.all()))


def _apart(case, derivative):
    """A derivative of each row as one of all rows: zero between different ones."""
    units = np.eye(case.rows)
    value, error = (np.einsum("rkn,rs->rksn", part, units) for part in derivative[:2])
    return Comparison(None, value, error, derivative.exists)


@check
def gradient(case):
    _, found = derivatives.value_and_gradient(case.loss, **case.options)(case.x)
    yield _rows(found, case.one(case.jacobian, "rkn,rk->rn", case.weights))


@check
def vjp(case):
    _, found = derivatives.vjp(case.program, **case.options)(case.x, cotangents=case.weights)
    yield _rows(found, case.one(case.jacobian, "rkn,rk->rn", case.weights))


@check
def jvp(case):
    _, found = derivatives.jvp(case.program, **case.options)(case.x, tangents=case.tangents)
    yield _blocks(found, case.one(case.jacobian, "rkn,rn->rk", case.tangents))


@check
def jacobian_forward(case):
    found = derivatives.jacobian(case.program, mode="forward", **case.options)(case.x)
    yield _blocks(found, _apart(case, case.jacobian))


@check
def jacobian_reverse_in_chunks(case):
    found = derivatives.jacobian(case.program, mode="reverse", chunk_size=2, **case.options)(case.x)
    yield _blocks(found, _apart(case, case.jacobian))


@check
def batch_jacobian_reverse(case):
    found = derivatives.batch_jacobian(case.program, mode="reverse", **case.options)(case.x)
    yield _blocks(found, case.one(case.jacobian, "rkn->rkn"))


@check
def batch_jacobian_forward(case):
    found = derivatives.batch_jacobian(case.program, mode="forward", chunk_size=1, **case.options)(case.x)
    yield _blocks(found, case.one(case.jacobian, "rkn->rkn"))


@check
def two_arguments(case):
    """One tensor as two arguments, of which each has a gradient of its own."""
    both = derivatives.value_and_gradient(case.difference, argnums=(0, 1), **case.options)
    x = tf.constant(case.x)
    _, (first, second) = both(x, x)
    right = case.one(case.jacobian, "rkn,rk->rn", case.weights)
    yield _rows(np.asarray(first) / 2, right)
    yield _rows(-np.asarray(second), right)


@check
def hvp(case):
    found = derivatives.hvp(case.loss, **case.options)(case.x, vector=case.tangents)
    yield _rows(found, case.one(case.hessian, "rknm,rk,rm->rn", case.weights, case.tangents))


@check
def hessian(case):
    found = derivatives.hessian(case.loss, chunk_size=3, **case.options)(case.x)
    yield from _hessian(case, np.asarray(found))


def _hessian(case, found):
    own = case.one(case.hessian, "rknm,rk->rnm", case.weights)
    yield _rows(np.einsum("rnrm->rnm", found), own)
    others = np.array(found)
    others[np.arange(case.rows), :, np.arange(case.rows)] = 0
    exists = case.hessian.exists.all(axis=1)
    exists = (exists[:, None] & exists)[:, None, :, None]
    yield Comparison(others, np.zeros_like(others), np.zeros_like(others), exists)


@check
def laplacian(case):
    found = derivatives.laplacian(case.program, **case.options)(case.x)
    yield _blocks(found, case.one(case.hessian, "rknn->rk"))


@check
def laplacian_in_chunks(case):
    found = derivatives.laplacian(case.program, chunk_size=1, **case.options)(case.x)
    yield _blocks(found, case.one(case.hessian, "rknn->rk"))


@check
def per_example_gradients(case):
    weighted = case.weighted
    options = case.options | {"wrt": weighted.variable, "batch_chunk_size": 2}
    found = derivatives.per_example_gradients(weighted.losses, **options)
    yield _rows(found(case.x), case.weighted_gradients)


@check
def per_example_norms(case):
    weighted = case.weighted
    found = derivatives.per_example_norms(weighted.losses, wrt=weighted.variable, **case.options)(case.x)
    right = case.weighted_gradients
    with np.errstate(all="ignore"):
        norms, errors = (np.sqrt((part**2).sum(axis=(1, 2))) for part in right[1:3])
    yield _rows(found, Comparison(None, norms, errors + SMALLEST_NORM, right.exists))


@check
def clipped_gradient(case):
    weighted = case.weighted
    transform = derivatives.clipped_gradient(weighted.losses, wrt=weighted.variable, max_norm=1.0, **case.options)
    found, _ = transform(case.x)
    right = case.weighted_gradients
    with np.errstate(all="ignore"):
        norm, norm_error = (np.sqrt((part**2).sum(axis=(1, 2), keepdims=True)) for part in right[1:3])
        factors = 1 / np.maximum(1, norm)
        error = (right.error + np.abs(right.right) * norm_error * factors) * factors  # also of the factor
        total, error = (right.right * factors).sum(axis=0), error.sum(axis=0)
    yield _all(found, right._replace(right=total, error=error))


@check
def weights_hessian(case):
    """Which goes by factors of the examples, where the graph lets it."""
    weighted = case.weighted
    found = derivatives.hessian(weighted.loss, wrt=weighted.variable, **case.options)(case.x)
    yield _all(found, case.one(case.hessian, "rkij,k,ra,rb->aibj", case.shared, case.x, case.x))


@check
def weights_hvp(case):
    weighted, vector = case.weighted, np.cos(np.arange(case.n**2)).reshape(case.n, case.n)
    found = derivatives.hvp(weighted.loss, wrt=weighted.variable, **case.options)(case.x, vector=vector)
    weights = case.shared
    yield _all(found, case.one(case.hessian, "rkij,k,ra,rb,bj->ai", weights, case.x, case.x, vector))


def _gauss_newton(case, derivative, *loss, **options):
    """A product with JᵀJ, of a loss that is half the sum of the squared outputs."""
    weighted, vector = case.weighted, np.cos(np.arange(case.n**2)).reshape(case.n, case.n)
    product = derivative(weighted.model, *loss, wrt=weighted.variable, **case.options, **options)
    first, x = case.jacobian, case.x
    with np.errstate(all="ignore"):
        right = np.einsum("rki,ra,rkj,rb,bj->ai", first.value, x, first.value, x, vector)
        error = np.einsum(
            "rki,ra,rkj,rb,bj->ai", np.abs(first.value), abs(x), 2 * first.error, abs(x), np.abs(vector)
        ) + np.einsum("rki,ra,rkj,rb,bj->ai", 2 * first.error, abs(x), np.abs(first.value), abs(x), np.abs(vector))
    yield _all(product(x, vector=vector), Comparison(None, right, error, first.exists))


@check
def ggnvp(case):
    yield from _gauss_newton(case, derivatives.ggnvp, lambda y: tf.reduce_sum(y**2) / 2)


@check
def fvp(case):
    yield from _gauss_newton(case, derivatives.fvp, "gaussian", reduction="sum")
