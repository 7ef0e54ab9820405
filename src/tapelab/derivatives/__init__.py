"""Derivatives of TensorFlow functions, as functions: gradients, Jacobians, Hessians and their products with vectors.

    value_and_gradient(f)(x)                                          value, gradient
    jvp(f)(x, tangents=v)                                             value, product
    vjp(f)(x, cotangents=u)                                           value, product
    jacobian(f)(x)                                                    shape (*f(x), *x)
    batch_jacobian(f)(x)                                              shape (batch, outs, ins)
    hvp(loss, wrt=w)(x, y, vector=v)                                  like w
    hessian(loss, wrt=w, packed=True)(x, y)                           shape (n, n)
    per_example_gradients(loss, wrt=w)(x, y)                          shape (batch, *variable)
    per_example_norms(losses, wrt=w)(x, y)                            shape (batch,)
    clipped_gradient(losses, wrt=w, max_norm=1.0)(x, y)               total, norms
    ggnvp(model, loss, wrt=w)(x, y, vector=v)                         like w
    fvp(model, "categorical", wrt=w)(x, vector=v)                     like w
    CurvatureOperator(model, loss, wrt=w, data=data) @ vector         over the data set; .trace() and more

    laplacian(u)(x)                                                   like u(x), of each example

Each is compiled once for each structure, shapes and dtypes of the arguments, and keeps what it compiled: hold it, where
it is called more than once. It looks at every call whether what the function reads from outside is still the same, and
is traced anew if not (`tapelab.derivatives.machinery.outside`); what it cannot see, a warning at the first call names.
Second derivatives through normalisation layers are right, where TensorFlow's own are not
(`tapelab.derivatives.wrong.moments`). Kernels that are known to be wrong are not used
(`tapelab.derivatives.wrong.kernels`). What TensorFlow differentiates wrongly, or leaves out without a word, is refused
where a graph shows it, and warned of where it is wrong at some points, such as the zeros of a product
(`tapelab.derivatives.wrong.gaps`).

What several have in common means the same in all:

``wrt``
    The variables to differentiate with respect to, nested; Keras 3 variables included. Every argument is data then.
``argnums``
    Without ``wrt``, the position of the argument to differentiate with respect to, or a tuple of positions. These
    sources may be nested, too, and the result has their structure.
``tangents``, ``cotangents``, ``vector``
    What a product is with: a keyword of the call, after the function's own arguments.
``return_value``
    Whether the result is a pair, the function's value and the derivative. `value_and_gradient`, `jvp` and
    `vjp` return that pair always. What draws random numbers has a value where it is evaluated once, for the whole
    batch, and is refused elsewhere.
``packed``
    Whether the sources' elements are one axis of n, in the order of `pack`: vectors have the shape (n,), a Hessian
    (n, n).
``chunk_size``
    How many passes to make at once: rows, columns or directions. By default as many as fit the memory limit.
``batch_chunk_size``
    How many examples to compute at once. By default as many as fit the memory limit.
``check_independence``
    Whether to make sure that the examples of a batch do not depend on each other, from the graph or by values; the
    function says how. `CoupledExamplesError` if they do.
``memory_limit``
    How many bytes the result and the work towards it may take, by default the limit of `set_memory_limit`. A
    `MemoryLimitError` says how many they would take, and what to use instead.
``compile``
    "auto" takes the fastest way that works: XLA where that pays, a graph, or single operations. A `FallbackWarning`
    says why it is a slower one. "xla", "graph" and "eager" take that one way, or raise. XLA computes in bfloat16 with
    the digits of float32: there results differ by the rounding of bfloat16.
``unconnected``
    "error" for an `UnconnectedSourceError` where the function does not depend on a source, "zero" for zeros.
``check_finite``
    Whether NaN or infinity in the result raises `NotFiniteError`.

What is returned has a method that tells how a call with these arguments is computed, and compiles it if it is new: the
mode, how it is compiled, chunks, the memory predicted, and the faster ways that were given up and why (a `Plan`).

    matrix = hessian(loss, wrt=w)
    matrix.plan(x, y).compiled                                        "xla", "graph" or "eager"
    print(matrix.plan(x, y))                                          all of it, in words
"""

from typing import NoReturn

from tapelab.derivatives.curvature.estimates import Estimate
from tapelab.derivatives.curvature.gauss_newton import fvp, ggnvp
from tapelab.derivatives.curvature.operator import CurvatureOperator
from tapelab.derivatives.curvature.spectrum import Eigenvalues, Spectrum
from tapelab.derivatives.examples.clipping import clipped_gradient, per_example_norms
from tapelab.derivatives.examples.per_example import per_example_gradients
from tapelab.derivatives.first_order import jvp, value_and_gradient, vjp
from tapelab.derivatives.hessians.hessian import hessian, hvp
from tapelab.derivatives.jacobians.batch_jacobian import batch_jacobian
from tapelab.derivatives.jacobians.jacobian import jacobian
from tapelab.derivatives.laplacian import laplacian
from tapelab.derivatives.machinery.arguments.packing import pack, unpack
from tapelab.derivatives.machinery.errors import (
    CoupledExamplesError,
    FallbackWarning,
    MemoryLimitError,
    NotFiniteError,
    OutsideWarning,
    SingularMatrixError,
    UnconnectedSourceError,
)
from tapelab.derivatives.machinery.memory import set_memory_limit
from tapelab.derivatives.machinery.plan import Plan
from tapelab.process.names_elsewhere import refuse

__all__ = [
    "CoupledExamplesError",
    "CurvatureOperator",
    "Eigenvalues",
    "Estimate",
    "FallbackWarning",
    "MemoryLimitError",
    "NotFiniteError",
    "OutsideWarning",
    "Plan",
    "SingularMatrixError",
    "Spectrum",
    "UnconnectedSourceError",
    "batch_jacobian",
    "clipped_gradient",
    "fvp",
    "ggnvp",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "laplacian",
    "pack",
    "per_example_gradients",
    "per_example_norms",
    "set_memory_limit",
    "unpack",
    "value_and_gradient",
    "vjp",
]


def __getattr__(name: str) -> NoReturn:
    refuse(__name__, name)
