"""Second derivatives of a scalar: Hessian-vector products, and whole Hessians by factors or by symmetric blocks."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.hessians.factoring import Factoring, survey
from tapelab.derivatives.hessians.factors import Blocks, factored_blocks
from tapelab.derivatives.jacobians.jacobian import offsets_of, reverse_rows
from tapelab.derivatives.machinery.arguments.calling import Argnums, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import check_chunks, require_scalar
from tapelab.derivatives.machinery.arguments.packing import require_one_dtype, split
from tapelab.derivatives.machinery.arguments.structures import LEAF, Description
from tapelab.derivatives.machinery.errors import MemoryLimitError
from tapelab.derivatives.machinery.failures import line_of
from tapelab.derivatives.machinery.memory import counted, rows_at_once
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import OnePass, Recipe, Way
from tapelab.derivatives.machinery.rows import row_ways
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.operations import of_family
from tapelab.graphs.operations.operation import BLOCK, LOOKUP, PRODUCT, SCANNING, SCATTERING, STENCIL
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf

# Of all others XLA makes one loop for what TensorFlow does operation by operation, however large.
_SLOW = of_family(BLOCK, LOOKUP, PRODUCT, SCANNING, SCATTERING, STENCIL)


@options_by_keyword
def hvp(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    packed: bool = False,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes a Hessian-vector product, for about the price of two gradients.

    Args:
        f: returns one scalar. Where it has a `tf.custom_gradient`, the gradient given is differentiated, and the plan
            says so.
        packed: whether the vector and the product are one vector of shape (n,), in the order of `pack`.
        wrt, argnums, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments and the keyword ``vector``, of the structure, shapes and dtypes of the sources. It
        returns the Hessian times the vector, in the sources' structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for a vector that does not match the sources.
    """
    return transform(f, _HVP(packed), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def hessian(
    f: Callable,
    *,
    wrt: Any = None,
    argnums: Argnums = 0,
    packed: bool = False,
    chunk_size: int | None = None,
    memory_limit: int | None = None,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes the Hessian of f over all sources.

    The blocks on and above the diagonal are computed, by reverse mode over reverse mode; those below are their
    transposes. A block between sources that do not interact is zero.

    Where f is proved to sum over examples, from its graph, and a source is a layer's weights, a pass for each unit of
    the layer replaces one for each weight (`tapelab.derivatives.hessians.factors`), if that is less work. Other
    sources, and all of them without that proof, take a pass for each element; the plan says which, and why.

    Args:
        f: returns one scalar. Where it has a `tf.custom_gradient`, the gradient given is differentiated, and the plan
            says so.
        packed: whether to return one matrix rather than blocks.
        chunk_size: how many rows to compute at once; by default so many that a step's tensors stay in the processor's
            cache, and no more than fit the memory limit.
        wrt, argnums, memory_limit, return_value, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments. It returns the blocks: the sources' structure, and in it for each source the
        sources' structure again, with tensors of the first source's shape followed by the second's. With ``packed``
        it returns a matrix of shape (n, n), rows and columns in the order of `pack`.

    Raises:
        MemoryLimitError: when called, if the result would not fit; says how many bytes and what to use instead.
        ValueError, TypeError: when called, as `value_and_gradient`.
    """
    check_chunks(memory_limit, chunk_size=chunk_size)
    recipe = _Hessian(packed, chunk_size, memory_limit)
    return transform(f, recipe, argnums=argnums, wrt=wrt, **options)


def gradient_under(
    outer: tf.GradientTape, problem: Problem, tensors: Tensors
) -> tuple[list[tf.Tensor | tf.Variable], list[tf.Tensor | None]]:
    """Return the sources and their flattened gradients, None where there is none, recorded by an outer tape."""
    outer.watch(problem.sources(tensors))
    tape, sources, outputs = recorded(problem, tensors)
    gradients = tape.gradient(outputs[0], sources)
    # A gather's gradient is IndexedSlices; made dense here, the outer tape follows it.
    return sources, [None if gradient is None else tf.reshape(gradient, [-1]) for gradient in gradients]


def hessian_products(
    problem: Problem, tensors: Tensors, *, persistent: bool = False
) -> Callable[[Tensors], list[tf.Tensor]]:
    """Return a function from a vector, a tensor for each source, to its product with the Hessian.

    Args:
        persistent: whether it is called more than once.
    """
    with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as outer:
        sources, gradients = gradient_under(outer, problem, tensors)

    def product(vector: Tensors) -> list[tf.Tensor]:
        used = [(g, tf.reshape(v, [-1])) for g, v in zip(gradients, vector, strict=True) if g is not None]
        return dense_gradient(outer, [g for g, _ in used], sources, [v for _, v in used])

    return product


def require_second_order(problem: Problem) -> None:
    """Raise where TensorFlow would silently return zeros, or something else that is not the derivative."""
    if "EagerPyFunc" in problem.facts.operations:
        raise ValueError(
            f"{problem.name}: the function calls tf.py_function, whose gradient TensorFlow does not differentiate: the "
            "second derivative would be zero. Call the Python function directly, without tf.py_function"
            f"{line_of('EagerPyFunc', problem.graph)}"
        )
    problem.require_right(Needs.SECOND)


def require_hessian(problem: Problem) -> None:
    """Raise where there is no Hessian; note whose gradients are differentiated."""
    require_scalar(problem)
    require_second_order(problem)
    note_custom_gradients(problem)


def note_custom_gradients(problem: Problem) -> None:
    """Note which gradients, given by the function's author, are differentiated."""
    if problem.facts.custom_places:
        places = ", ".join(problem.facts.custom_places)
        problem.note(f"the gradients given for them are differentiated, not what they compute: {places}")


class SecondOrderProduct(OnePass):
    """A product of a matrix of second derivatives with a vector, both packed if asked. Subclasses have `product`."""

    vector = "vector"

    def __init__(self, packed: bool):
        self.packed = packed

    def check(self, problem: Problem) -> None:
        require_second_order(problem)
        if self.packed:
            require_one_dtype(problem.source_dtypes)

    def gains_from_xla(self, problem: Problem) -> bool:
        return not any(operation.startswith(costs.SLOW_SECOND_ORDER) for operation in problem.facts.operations)

    def vector_like(self, problem: Problem) -> tuple[Description, list[tuple[int, ...]], list[tf.DType], str]:
        if self.packed:
            return LEAF, [(sum(problem.source_sizes),)], problem.source_dtypes[:1], "packed sources"
        return super().vector_like(problem)

    def product(self, problem: Problem, tensors: Tensors, vector: Tensors) -> list[tf.Tensor]:
        """Return the product, like the sources."""
        raise NotImplementedError

    def compute(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        vector = problem.vector(tensors)
        if not self.packed:
            return self.product(problem, tensors, vector)
        product = self.product(problem, tensors, split(vector[0], problem.source_shapes))
        return [tf.concat([tf.reshape(part, [-1]) for part in product], axis=0)]

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        return outputs[0] if self.packed else problem.structured(outputs)


class _HVP(SecondOrderProduct):
    name = "hvp"
    label = mode = "reverse over reverse"

    def check(self, problem: Problem) -> None:
        require_hessian(problem)
        super().check(problem)

    def product(self, problem: Problem, tensors: Tensors, vector: Tensors) -> list[tf.Tensor]:
        return hessian_products(problem, tensors)(vector)


@dataclass(frozen=True)
class _Surveyed(Plan):
    """A plan, and how the Hessian comes from per-example factors, if it does; `rows` at once without them."""

    factoring: Factoring | None = None
    rows: int = 1


@dataclass(eq=False)
class _Hessian(Recipe):
    packed: bool
    chunk_size: int | None
    memory_limit: int | None
    name = "hessian"

    def plan(self, problem: Problem) -> _Surveyed:
        require_hessian(problem)
        if self.packed:
            require_one_dtype(problem.source_dtypes)
        largest = max(problem.source_sizes)
        chunk, needed = self._rows_at_once(problem, largest)
        factoring, why = survey(problem)
        if factoring is not None:
            try:
                missing = [size for index, size in enumerate(problem.source_sizes) if index not in factoring.chosen]
                rows = max(*factoring.sizes, *missing, 0)
                extra = factoring.elements * problem.source_dtypes[0].size
                fewer, needed = self._rows_at_once(problem, rows, extra)
                return _Surveyed("reverse over reverse", largest, fewer, needed, factoring=factoring, rows=chunk)
            except MemoryLimitError:
                why = "their intermediate results would not fit the memory limit"
        problem.remarks.append(f"by per-example factors: {why}")
        return _Surveyed("reverse over reverse", largest, chunk, needed, rows=chunk)

    def _rows_at_once(self, problem: Problem, rows: int, extra: int = 0) -> tuple[int, int]:
        """Return how many rows to compute at once, and how many bytes the whole takes."""
        sizes = problem.source_sizes
        n, item = sum(sizes), max(dtype.size for dtype in problem.source_dtypes)
        # A matrix is put together from all of its blocks; blocks are only joined from the chunks of a source's rows.
        joined = (
            n * n
            if self.packed
            else max(size * (n - start) for size, start in zip(sizes, offsets_of(sizes), strict=True))
        )
        return rows_at_once(
            what="hessian",
            shapes=f"{counted(n, 'element')} in {counted(len(sizes), 'source')}, a matrix of shape ({n}, {n})",
            result=item * (n * n + joined) + extra,
            rows=rows,
            per_row=item * max(sizes) + 5 * problem.facts.largest,  # one-hot, and a pass back through a pass back
            advice="hvp, which never builds the matrix, or fewer sources",
            most=max(costs.HESSIAN_ROWS, costs.HESSIAN_CACHED // max(problem.facts.largest, 1)),
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        small = sum(problem.source_sizes) <= costs.XLA_HESSIAN or problem.facts.operations.isdisjoint(_SLOW)
        return small and not problem.facts.operations & LOOPS

    def ways(self, problem: Problem, plan: _Surveyed) -> list[Way]:  # type: ignore[override]
        rows = row_ways("symmetric blocks, rows", partial(self._by_rows, problem, plan.rows), plan.rows)
        if plan.factoring is None:
            return rows
        sizes, chosen = problem.source_sizes, plan.factoring.chosen
        units = sum(plan.factoring.sizes)
        label = f"by per-example factors: {units} directions instead of {sum(sizes[index] for index in chosen)}"
        if left := [size for index, size in enumerate(sizes) if index not in chosen]:
            label += f", and {counted(sum(left), 'row')} of {len(left)} of {counted(len(sizes), 'source')}"
        factors = row_ways(label, partial(self._by_factors, problem, plan.factoring, plan.chunk), plan.chunk)
        return [*[way._replace(passes=units + sum(left)) for way in factors if not way.eager], *rows]

    def _by_factors(
        self, problem: Problem, factoring: Factoring, chunk: int, how: str, tensors: Tensors
    ) -> list[tf.Tensor]:
        blocks = factored_blocks(problem, factoring, self.packed, chunk, how, tensors)
        return self._assembled(problem, blocks)

    def _by_rows(self, problem: Problem, chunk: int, how: str, tensors: Tensors) -> list[tf.Tensor]:
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
            sources, gradients = gradient_under(outer, problem, tensors)
        sizes, specs = problem.source_sizes, problem.source_specs
        blocks = {}
        for i, gradient in enumerate(gradients):
            if gradient is None:
                rows = [tf.zeros([sizes[i], *spec.shape], spec.dtype) for spec in specs[i:]]
            else:
                rows = reverse_rows(outer, gradient, sources[i:], specs[i:], how, chunk)
            for j, row in enumerate(rows, start=i):
                blocks[i, j] = tf.reshape(row, [sizes[i], sizes[j]])
        return self._assembled(problem, blocks)

    def _assembled(self, problem: Problem, blocks: Blocks) -> list[tf.Tensor]:
        """Put the blocks on and above the diagonal, and the mirror images of those above it, where they belong."""
        specs, every = problem.source_specs, sorted({i for i, _ in blocks})
        for i, j in [pair for pair in blocks if pair[0] != pair[1]]:
            blocks[j, i] = tf.cast(tf.transpose(blocks[i, j]), specs[i].dtype)
        if self.packed:
            return [tf.concat([tf.concat([blocks[i, j] for j in every], axis=1) for i in every], axis=0)]
        return [tf.reshape(blocks[i, j], specs[i].shape + specs[j].shape) for i in every for j in every]

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        return outputs[0] if self.packed else problem.structured(problem.structured_rows(outputs))
