"""Sparse Jacobians and Hessians as transforms: a pattern from the graph, colours, and one product for each colour."""

from collections.abc import Callable
from typing import Any, Unpack

from tapelab.derivatives.jacobians.jacobian import MODES
from tapelab.derivatives.machinery.arguments.calling import Argnums, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import require_one_of
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.derivatives.sparse.recipes import SparseHessian, SparseJacobian


@options_by_keyword
def sparse_jacobian(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    mode: str = "auto",
    packed: bool = False,
    format: str = "tensorflow",
    check_pattern: bool = True,
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Jacobian of f as a sparse matrix, by a few products.

    Which entries can be other than zero, whatever the arguments hold, is found in the graph of f
    (`tapelab.derivatives.sparse.pattern`). Columns, or rows, that do not meet share a product
    (`tapelab.derivatives.sparse.colouring`). An operation that is not followed makes everything depend on everything:
    then there are many colours, and ``plan`` names that operation and its line.

    Args:
        f: returns a tensor or nested tensors.
        mode: "forward" colours columns, "reverse" rows; "auto" takes the mode with fewer colours.
        packed: whether to return one matrix rather than blocks.
        format: "tensorflow" for a `tf.SparseTensor`; "coo", "csr" or "csc" for a SciPy sparse array.
        check_pattern: whether to compare the matrix with a random vector-Jacobian product when it is computed for the
            first time; inside a tf.function, whenever that runs, except under XLA, which leaves such checks out. A
            function that draws random numbers or changes variables is not checked.
        wrt, argnums, chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see
            `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the result's structure, and in it for each tensor the sources'
        structure, with matrices of shape (elements of the result, elements of the source), of the source's dtype. With
        ``packed`` it returns one matrix, rows and columns in the order of `pack`. Entries are sorted by row, then by
        column; those of the pattern that happen to be zero are there. Its ``plan`` is a `SparsePlan`.

    Raises:
        SparsityError: when called, if the matrix does not agree with that product.
        MemoryLimitError: when called, if the result, or the pattern on the way to it, would not fit.
        RuntimeError: when called inside a tf.function, if the format is one of SciPy's.
        ValueError, TypeError: when called, as `value_and_gradient`; at once for an unknown mode or format.
    """
    require_one_of(MODES, mode=mode)
    recipe = SparseJacobian(packed, format, check_pattern, chunk_size, memory_limit, mode)
    return transform(f, recipe, argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def sparse_hessian(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    packed: bool = False,
    format: str = "tensorflow",
    check_pattern: bool = True,
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Hessian of f over all sources as a sparse matrix, by a few products.

    The pattern is that of the Jacobian of f's gradient. As the matrix is symmetric, most entries are in two products,
    and a star colouring needs fewer of them than a colouring of columns does.

    Args:
        f: returns one scalar.
        packed, format: as for `sparse_jacobian`.
        check_pattern: as for `sparse_jacobian`, with a random Hessian-vector product.
        wrt, argnums, chunk_size, memory_limit, return_value, compile, unconnected, check_finite: see
            `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the blocks: the sources' structure, and in it for each source the
        sources' structure again, with matrices of shape (elements of the first source, elements of the second). With
        ``packed`` it returns one matrix, rows and columns in the order of `pack`. Its ``plan`` is a `SparsePlan`.

    Raises:
        Exception: when called, as `sparse_jacobian`; also for what `hessian` refuses.
    """
    recipe = SparseHessian(packed, format, check_pattern, chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, wrt=wrt, **options)
