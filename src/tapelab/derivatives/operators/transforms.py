"""Differential operators by collapsed Taylor mode: of second order, the biharmonic one, derivatives along a curve."""

from collections.abc import Callable, Mapping
from typing import Any, Unpack

from tapelab.derivatives.machinery.arguments.calling import Argnums, OperatorOptions, Options, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.derivatives.operators.higher import Biharmonic, Taylor
from tapelab.derivatives.operators.second_order import General, Sampled, SecondOrder


@options_by_keyword
def laplacian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    samples: int | None = None,
    seed: int | None = None,
    chunk_size: int | None = None,
    return_value: bool = False,
    **options: Unpack[OperatorOptions],
) -> Transform:
    """Return a function that computes the Laplacian :math:`Δf`: the sum of the second derivatives by each element.

    Values, first derivatives and the sum of second ones go through f together
    (`tapelab.derivatives.operators.taylor_mode`): for D elements that costs about D + 2 evaluations, and no product of
    second derivatives is built. Tapes differentiate the result, by variables too, as the residual of a differential
    equation needs it. Second derivatives through `tf.nn.moments`, and so through normalisation layers, are right. A
    function that is linear in pieces, such as a ReLU network, has Laplacian 0 almost everywhere; `plan` says so where
    it finds it.

    Args:
        f: takes and returns tensors, nested if need be; if ``batched``, with the batch as the first axis of sources and
            results. Arguments that are not sources may have any shape.
        argnums: see `tapelab.derivatives`; the sum is over the elements of all these arguments. There is no ``wrt``:
            variables have no batch axis; the sum over theirs is a Hessian's trace (`CurvatureOperator.trace`).
        batched: whether each example has its own Laplacian. Otherwise all elements of the sources are summed over, for
            each element of the result.
        check_independence: whether to make sure that examples do not depend on each other: from the graph of f, or,
            where that does not tell, by comparing two Jacobian-vector products at every call.
        samples: for many elements, how many random directions to take instead of all unit directions. The result is
            then Hutchinson's estimate: right in the mean, with a standard deviation for each example of
            :math:`√(2 Σ_{i≠j} H_ij² / samples)`, H its Hessian; each example has its own directions.
        seed: of those directions, which are then the same at every call; None draws new ones at each.
        custom_gradients: which function is differentiated where its author gave it a gradient, with
            `tf.custom_gradient` or a gradient override. False: what it computes; the gradient given is not used, and
            `plan` names it. True: the gradient given, by nested tapes, which are slower. `hessian` and `hvp` always
            take the gradient given: where it is not the derivative, their trace is that of True.
        chunk_size: how many directions to send through f at once; each further chunk costs two more evaluations of f.
        batch_chunk_size: how many examples to send through f at once, of which smaller chunks cost hardly more; by
            default all, or as many as fit the memory limit, where f's graph shows that it does to a chunk what it does
            to them all. Arguments that are no sources go along with the examples if they have one row for each and f
            keeps those apart. A tape around the result keeps what every chunk computed.
        memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    In training compile the whole step, ``tf.function(step, jit_compile=True)``: one program takes less time than a tape
    around one.

    Returns:
        A function of f's arguments. It returns what f does, in structure, shapes and dtypes.

    Raises:
        CoupledExamplesError: when called, if examples depend on each other.
        MemoryLimitError: when called, if not even one direction fits; says how many bytes and what to use instead.
        ValueError: if ``samples`` or ``seed`` are not whole numbers, or ``seed`` is given alone.
        RuntimeError: when called inside a tf.function, if independence has to be checked by values.
        ValueError, TypeError: when called, as `value_and_gradient`; also if ``batched`` and there is no common batch
            axis.
    """
    own, common = _apart(options, chunk_size)
    if samples is None and seed is not None:
        raise ValueError(f"seed is {seed!r} without samples: all directions are taken. Pass samples=, or no seed")
    recipe = SecondOrder("laplacian", **own) if samples is None else Sampled(samples, seed, **own)
    return transform(f, recipe, argnums=argnums, return_value=return_value, **common)


@options_by_keyword
def value_gradient_laplacian(
    f: Callable,
    *,
    argnums: Argnums = 0,
    chunk_size: int | None = None,
    **options: Unpack[OperatorOptions],
) -> Transform:
    """Return a function that computes f, its first derivatives and its Laplacian, in the pass of `laplacian`.

    Args:
        f, argnums, batched, check_independence, custom_gradients, chunk_size, batch_chunk_size, memory_limit: as for
            `laplacian`; what is differentiated where a gradient was given is stated there.
        compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns a triple: f's result; in the result's structure, for each tensor the
        sources' structure, with tensors of shape (batch, result's other axes, source's other axes), as `batch_jacobian`
        has them, or (*result's shape, *source's shape) unbatched; and the Laplacian, like f's result.

    Raises:
        Exception: when called, what `laplacian` raises.
    """
    own, common = _apart(options, chunk_size)
    recipe = SecondOrder("value_gradient_laplacian", **own, all_orders=True)
    return transform(f, recipe, argnums=argnums, **common)


@options_by_keyword
def second_order(
    f: Callable,
    *,
    directions: Any = None,
    weights: Any = None,
    matrix: Any = None,
    drift: Any = None,
    argnums: int = 0,
    chunk_size: int | None = None,
    return_value: bool = False,
    **options: Unpack[OperatorOptions],
) -> Transform:
    """Return a function that computes :math:`Σ_ij C_ij ∂_i ∂_j f + b·∇f`: any linear operator of second order.

    C is given as a matrix, or as :math:`Σ_r w_r v_r v_rᵀ` by directions :math:`v_r` and weights :math:`w_r` of any
    sign. Each direction costs about one evaluation of f, the drift b nothing: the heat operator :math:`∂_t - κ ∂_xx`
    takes the one direction x, with weight -κ, and the drift along t. Coefficients are not differentiated by the source:
    :math:`(v·∇)² f` means :math:`vᵀ(∇²f)v` where v depends on x.

    Args:
        f: as for `laplacian`, which says what is differentiated where a gradient was given.
        directions: shape (number, *example) or (number, batch, *example), or a function of the source that returns
            one. Unbatched, (number, *source's shape).
        weights: shape (number,), or a function of the source; None for ones.
        matrix: instead of directions: numbers of shape (n, n) for n elements of an example, of which the symmetric part
            counts; by its eigenvectors, those of eigenvalue zero left out.
        drift: shape (*example) or (batch, *example), or a function of the source; None for zero.
        argnums: the position of the argument to differentiate with respect to, one tensor. There is no ``wrt``, as for
            `laplacian`.
        batched, check_independence, custom_gradients, chunk_size, batch_chunk_size, memory_limit: as for `laplacian`.
        return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Coefficients that are variables are read at every call; what else they read is as what f reads.

    Returns:
        A function of f's arguments. It returns what f does, in structure, shapes and dtypes.

    Raises:
        ValueError: if not exactly one of directions and matrix is given, or the matrix is not (n, n); when called, for
            shapes that do not fit the source.
        Exception: when called, also what `laplacian` raises.
    """
    if not isinstance(argnums, int):
        raise TypeError(f"argnums is {argnums!r}; second_order differentiates with respect to one argument")
    own, common = _apart(options, chunk_size)
    recipe = General(directions, weights, matrix, drift, **own)
    return transform(f, recipe, argnums=argnums, return_value=return_value, **common)


@options_by_keyword
def biharmonic(
    f: Callable,
    *,
    argnums: Argnums = 0,
    return_value: bool = False,
    **options: Unpack[OperatorOptions],
) -> Transform:
    """Return a function that computes :math:`Δ²f`, the Laplacian of the Laplacian: :math:`Σ_ij ∂_i² ∂_j² f`.

    Gradient, Hessian, gradient of the Laplacian and :math:`Δ²` go through f together (`taylor_mode.higher`): for D
    elements about :math:`2 + 2 D + D (D + 1) / 2` evaluations, where a Laplacian of a Laplacian takes :math:`(D + 2)²`.
    An operation without a rule takes fourth derivatives of it alone along :math:`D²` curves. Tapes differentiate the
    result.

    Args:
        f, argnums, batched, check_independence, custom_gradients, batch_chunk_size: as for `laplacian`; what is
            differentiated where a gradient was given is stated there.
        memory_limit: see `tapelab.derivatives`. Only the batch can be taken in chunks: there is no ``chunk_size``.
        return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns what f does, in structure, shapes and dtypes.

    Raises:
        Exception: when called, what `laplacian` raises.
    """
    own, common = _apart(options, None)
    recipe = Biharmonic("biharmonic", **own)
    return transform(f, recipe, argnums=argnums, return_value=return_value, **common)


@options_by_keyword
def taylor(
    f: Callable,
    order: int,
    *,
    argnums: Argnums = 0,
    custom_gradients: bool = False,
    **options: Unpack[Options],
) -> Transform:
    """Return a function that computes the derivatives of f along a curve, up to an order (Taylor mode, a jet).

    The curve is :math:`x(t) = x + v_1 t + v_2 t² / 2 + … + v_m tᵐ / m!`, and the k-th result is
    :math:`dᵏ/dtᵏ f(x(t))` at t = 0. These
    are derivatives on both sides, not divided by factorials, as in JAX's ``jet``: Taylor's coefficient is the k-th
    result over k!. With one coefficient, :math:`t ↦ f(x + t v)`, they are :math:`(v·∇)ᵏ f`. All elements move at once,
    along one curve, and so nothing is asked of a batch: examples may depend on each other.

    Args:
        f: takes and returns tensors, nested if need be.
        order: of the highest derivative, from 1 to 4.
        argnums: see `tapelab.derivatives`; these arguments move. There is no ``wrt``: pass a variable's value
            as an argument.
        custom_gradients: as for `laplacian`.
        compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments and the keyword ``tangents``, the list [v_1, …, v_m] of 1 to ``order`` entries like
        the source; those that are missing are zero. It returns a pair: f's result, and a list of ``order`` entries
        like it, the derivatives.

    Raises:
        ValueError: if ``order`` is not 1, 2, 3 or 4.
        ValueError, TypeError: when called, as `value_and_gradient`; also for tangents that do not match the source.
    """
    if isinstance(order, bool) or not isinstance(order, int) or not 1 <= order <= 4:
        raise ValueError(f"order is {order!r}; expected 1, 2, 3 or 4. For more, nest: the result has derivatives too")
    recipe = Taylor(order, custom_gradients)
    return transform(f, recipe, argnums=argnums, **options)


def _apart(options: Mapping[str, Any], chunk_size: int | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what an operator's recipe takes of the options, and what every transformation does; checks the former."""
    common = {name: options[name] for name in Options.__annotations__}
    own = {name: option for name, option in options.items() if name not in common} | {"chunk_size": chunk_size}
    check_chunks(own["memory_limit"], chunk_size=chunk_size, batch_chunk_size=own["batch_chunk_size"])
    return own, common
