"""Derivatives of TensorFlow functions, as functions: gradients, Jacobians, Hessians and their products with vectors.

    value_and_gradient(f)(x)                                          value, gradient
    jvp(f)(x, tangents=v)                                             value, product
    vjp(f)(x, cotangents=u)                                           value, product
    linearize(f)(x)                                                   value, a function from tangents to products
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
it is called more than once. What the function reads from Python is read when it is traced, as under `tf.function`; it
is traced anew if an object that its own code names has become another one. A change inside an object is not seen: pass
what changes as tensors or variables, or make the transform anew. A `tf.function` that it names may be traced anew, too,
so that what it computes is seen; one inside an object, such as a method, stays a call, and rows may take longer.
What is computed in a faster way than by the plain tape is compared with a product that the plain tape makes, and
computed the plain way where they differ. What TensorFlow differentiates wrongly, or leaves out without a word, is
refused, or warned of where it is wrong at some points (`tapelab.derivatives.wrong`). Second derivatives through
normalisation layers are right, where TensorFlow's own are not.

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
``memory_limit``
    How many bytes the result and the work towards it may take, by default the limit of `set_memory_limit`. A
    `MemoryLimitError` says how many they would take, and what to use instead.
``compile``
    "auto" takes XLA where that is known to compute the same and to pay, and a graph otherwise. "xla" and "graph" take
    that one way; "eager" runs the function as Python at every call, for what cannot be traced. XLA computes in bfloat16
    with the digits of float32: there results differ by the rounding of bfloat16. A `FallbackWarning` says why rows are
    computed a slower way.
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

from tapelab.derivatives.arguments import pack, unpack
from tapelab.derivatives.costs import Plan, set_memory_limit
from tapelab.derivatives.curvature import CurvatureOperator, Eigenvalues, Estimate, Spectrum, fvp, ggnvp
from tapelab.derivatives.errors import (
    FallbackWarning,
    MemoryLimitError,
    NotFiniteError,
    SingularMatrixError,
    UnconnectedSourceError,
)
from tapelab.derivatives.first_order import jvp, linearize, value_and_gradient, vjp
from tapelab.derivatives.hessian import hessian, hvp
from tapelab.derivatives.jacobian import batch_jacobian, jacobian
from tapelab.derivatives.laplacian import laplacian
from tapelab.derivatives.per_example import clipped_gradient, per_example_gradients, per_example_norms

__all__ = [
    "CurvatureOperator",
    "Eigenvalues",
    "Estimate",
    "FallbackWarning",
    "MemoryLimitError",
    "NotFiniteError",
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
    "linearize",
    "pack",
    "per_example_gradients",
    "per_example_norms",
    "set_memory_limit",
    "unpack",
    "value_and_gradient",
    "vjp",
]
