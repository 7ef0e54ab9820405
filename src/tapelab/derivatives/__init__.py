"""Derivatives of TensorFlow functions, as functions: gradients, Jacobians, Hessians and their products with vectors.

    value_and_gradient(f)(x)                                          value, gradient
    jvp(f)(tangents, x)                                               value, product
    vjp(f)(cotangents, x)                                             value, product
    jacobian(f)(x)                                                    shape (*f(x), *x)
    batch_jacobian(f)(x)                                              shape (batch, outs, ins)
    hvp(loss, wrt=w)(tangents, x, y)                                  like w
    hessian(loss, wrt=w, packed=True)(x, y)                           shape (n, n)
    per_example_gradients(loss, wrt=w)(x, y)                          shape (batch, *variable)
    per_example_norms(losses, wrt=w)(x, y)                            shape (batch,)
    clipped_gradient(losses, wrt=w, max_norm=1.0)(x, y)               total, norms
    ggn_vector_product(model, loss, wrt=w)(tangents, x, y)            like w
    fisher_vector_product(model, "categorical", wrt=w)(tangents, x)   like w
    CurvatureOperator(model, loss, wrt=w, data=data) @ vector         over the data set; .trace() and more

    laplacian(u)(x)                                                   like u(x), of each example
    biharmonic(u)(x)                                                  like u(x)
    second_order(u, directions=…, weights=…, drift=…)(x)              like u(x)
    taylor(f, 3)([v], x)                                              value, derivatives along a curve

    sparse_jacobian(f)(x)                                             tf.SparseTensor
    sparse_hessian(loss, format="csr")(x)                             SciPy matrix (n, n)

Each is compiled once for each structure, shapes and dtypes of the arguments, and keeps what it compiled: hold it, where
it is called more than once. It looks at every call whether what the function reads from outside is still the same, and
is traced anew if not (`tapelab.derivatives.machinery.outside`); what it cannot see, a warning at the first call names.
Second derivatives through normalisation layers, and derivatives at points such as the zeros of a product, are right,
where TensorFlow's own are not (`tapelab.derivatives.wrong.cures`). Kernels that are known to be wrong are not used
(`tapelab.derivatives.wrong.kernels`), and what TensorFlow differentiates wrongly, or leaves out without a word, is
refused where a graph shows it (`tapelab.derivatives.wrong.gaps`).

Sources are the first argument, those that ``argnums`` names, or the variables of ``wrt``; they may be nested, and the
result has their structure.

What is returned has a method that tells how a call with these arguments is computed, and compiles it if it is new: the
mode, how it is compiled, chunks, the memory predicted, and the faster ways that were given up and why (a `Plan`).

    matrix = hessian(loss, wrt=w)
    matrix.plan(x, y).compiled                                        "xla", "graph" or "eager"
    print(matrix.plan(x, y))                                          all of it, in words
"""

from tapelab.derivatives.curvature.gauss_newton import fisher_vector_product, ggn_vector_product
from tapelab.derivatives.curvature.operator import CurvatureOperator, Estimate
from tapelab.derivatives.curvature.spectrum import Eigenvalues, Spectrum
from tapelab.derivatives.examples.clipping import clipped_gradient, per_example_norms
from tapelab.derivatives.examples.per_example import per_example_gradients
from tapelab.derivatives.first_order import jvp, value_and_gradient, vjp
from tapelab.derivatives.hessians.hessian import hessian, hvp
from tapelab.derivatives.jacobians.batch_jacobian import batch_jacobian
from tapelab.derivatives.jacobians.jacobian import jacobian
from tapelab.derivatives.machinery.arguments.packing import pack, unpack
from tapelab.derivatives.machinery.errors import (
    CoupledExamplesError,
    FallbackWarning,
    MemoryLimitError,
    NotFiniteError,
    OutsideWarning,
    SingularMatrixError,
    SparsityError,
    UnconnectedSourceError,
)
from tapelab.derivatives.machinery.memory import set_memory_limit
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.operators.transforms import (
    biharmonic,
    laplacian,
    second_order,
    taylor,
    value_gradient_laplacian,
)
from tapelab.derivatives.sparse.plan import SparsePlan
from tapelab.derivatives.sparse.transforms import sparse_hessian, sparse_jacobian

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
    "SparsePlan",
    "SparsityError",
    "Spectrum",
    "UnconnectedSourceError",
    "batch_jacobian",
    "biharmonic",
    "clipped_gradient",
    "fisher_vector_product",
    "ggn_vector_product",
    "hessian",
    "hvp",
    "jacobian",
    "jvp",
    "laplacian",
    "pack",
    "per_example_gradients",
    "per_example_norms",
    "second_order",
    "set_memory_limit",
    "sparse_hessian",
    "sparse_jacobian",
    "taylor",
    "unpack",
    "value_and_gradient",
    "value_gradient_laplacian",
    "vjp",
]
