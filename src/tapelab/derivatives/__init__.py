"""Derivatives of TensorFlow functions, as functions: gradients, Jacobians, Hessians and their products with vectors.

    gradient = value_and_gradient(f)            value, gradient = gradient(x)
    pushed = jvp(f)                             value, product  = pushed(tangents, x)
    pulled = vjp(f)                             value, product  = pulled(cotangents, x)
    rows = jacobian(f)                          rows(x)                 shape (*f(x), *x)
    blocks = batch_jacobian(f)                  blocks(x)               shape (batch, outs, ins)
    product = hvp(loss, wrt=variables)          product(tangents, x, y)
    matrix = hessian(loss, wrt=variables, packed=True)    matrix(x, y)  shape (n, n)
    each = per_example_gradients(loss, wrt=variables)     each(x, y)    shape (batch, *variable)

Each is compiled once for each structure, shapes and dtypes of the arguments. Sources are the first argument, those that
``argnums`` names, or the variables of ``wrt``; they may be nested, and the result has their structure.

What is returned has a method that tells how a call with these arguments is computed, and compiles it if it is new: the
mode, how it is compiled, chunks, the memory predicted, and the faster ways that were given up and why (a `Plan`).

    matrix.plan(x, y).compiled                  "xla", "graph" or "eager"
    print(matrix.plan(x, y))                    all of it, in words
"""

from tapelab.derivatives.batch_jacobians import batch_jacobian
from tapelab.derivatives.errors import (
    CoupledExamplesError,
    FallbackWarning,
    MemoryLimitError,
    NotFiniteError,
    UnconnectedSourceError,
)
from tapelab.derivatives.first_order import jvp, value_and_gradient, vjp
from tapelab.derivatives.jacobians import jacobian
from tapelab.derivatives.memory import set_memory_limit
from tapelab.derivatives.packing import pack, unpack
from tapelab.derivatives.per_example import per_example_gradients
from tapelab.derivatives.plan import Plan
from tapelab.derivatives.second_order import hessian, hvp

__all__ = [
    "CoupledExamplesError",
    "FallbackWarning",
    "MemoryLimitError",
    "NotFiniteError",
    "Plan",
    "UnconnectedSourceError",
    "batch_jacobian",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "pack",
    "per_example_gradients",
    "set_memory_limit",
    "unpack",
    "value_and_gradient",
    "vjp",
]
