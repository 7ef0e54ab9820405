"""Hessians, and their products with vectors, by reverse mode over reverse mode."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.arguments import (
    LEAF,
    Argnums,
    Description,
    ValueOptions,
    Wanted,
    check_chunks,
    options_by_keyword,
    require_one_dtype,
    split,
)
from tapelab.derivatives.costs import Plan, counted, rows_at_once
from tapelab.derivatives.errors import MemoryLimitError
from tapelab.derivatives.factors import Factoring, factored_blocks, survey
from tapelab.derivatives.first_order import gradient
from tapelab.derivatives.jacobian import products_agree, random_like, reverse_rows
from tapelab.derivatives.traced import LOOP, VECTORIZED, Call, dense, nested
from tapelab.derivatives.transform import Certificate, Computed, Recipe, Transform, transform
from tapelab.graphs.operations import with_fact
from tapelab.process.tensorflow import Tensors, tf

# Of all others XLA makes one loop for what TensorFlow does operation by operation, however large.
_SLOW = with_fact("block", "lookup", "product", "scanning", "scattering", "stencil")


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
            says so. One that is not linear in its cotangents, as one that clips, is refused.
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

    Where sources are weights of z = a W + b, a pass for each unit of z replaces one for each weight
    (`tapelab.derivatives.factors`), if that is less work. It is right where f sums over examples: that is not proved,
    but one product with a random vector is compared with the plain tape's at every call; where they differ, rows are
    computed. Rows that are computed at once are compared at the first call of a signature.

    Args:
        f: returns one scalar. Where it has a `tf.custom_gradient`, the gradient given is differentiated, and the plan
            says so; where that is no gradient of anything, the matrix is not symmetric: rows as they come, and a
            warning. One that is not linear in its cotangents, as one that clips, is refused.
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
    return transform(f, _Hessian(packed, chunk_size, memory_limit), argnums=argnums, wrt=wrt, **options)


class SecondOrderProduct(Recipe):
    """A product of a matrix of second derivatives with a vector, both packed if asked. Subclasses have `product`."""

    vector = "vector"
    mode = "reverse over reverse"
    value_structure: Description | None = None  # of the value that `product` returns, if it is not the function's

    def __init__(self, packed: bool):
        self.packed = packed

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        return not any(kind.startswith(costs.SLOW_SECOND_ORDER) for kind in call.traced.types)

    def product(self, call: Call, vector: Tensors) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """Return the product, like the sources, and the function's value."""
        raise NotImplementedError

    def compute(self, call: Call) -> Computed:
        vector, structure = call.vector, call.signature.source_description
        if self.packed:
            require_one_dtype(call.dtypes)
            shape = tf.TensorShape([sum(call.sizes)])
            self.require_vector(call, Wanted(LEAF, [shape], call.dtypes[:1], "packed sources"))
            vector, structure = split(vector[0], call.shapes), LEAF
        else:
            self.require_vector(call, call.like_sources)
        found, value = self.product(call, vector)
        if self.packed:
            found = [tf.concat([tf.reshape(part, [-1]) for part in found], axis=0)]
        return Computed(found, structure, Plan(self.mode, way=self.mode), None, value, self.value_structure)


class _HVP(SecondOrderProduct):
    name = "hvp"

    def product(self, call: Call, vector: Tensors) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            outer.watch(call.sources)
            recording = call.record()
            call.require_second_order()
            call.require_scalar()
            gradients = gradient(recording)
        call.require_connected(gradients)
        return _times(outer, gradients, call.sources, vector), recording.outputs


def _times(tape: tf.GradientTape, gradients: Sequence[Any], sources: Sequence[Any], vector: Tensors) -> list[tf.Tensor]:
    """Return the derivative of the gradient along a vector."""
    used = [(g, v) for g, v in zip(gradients, vector, strict=True) if g is not None]
    return dense(tape.gradient([g for g, _ in used], sources, output_gradients=[v for _, v in used]), sources)


@dataclass(eq=False)
class _Hessian(Recipe):
    packed: bool
    chunk_size: int | None
    memory_limit: int | None
    name = "hessian"

    def compute(self, call: Call) -> Computed:
        if self.packed:
            require_one_dtype(call.dtypes)
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
            outer.watch(call.sources)
            recording = call.record()
            call.require_second_order()
            call.require_scalar()
            factoring, plan = self._planned(call)
            between = [] if factoring is None else [*factoring.outputs, *factoring.met]
            found = gradient(recording._replace(sources=[*call.sources, *between]))
            gradients = found[: len(call.sources)]
            call.require_connected(gradients)
            if factoring is not None:
                blocks = factored_blocks(call, factoring, outer, found, self.packed, plan.chunk)
        if factoring is None:
            blocks = self._rows(call, outer, gradients, plan.chunk)
        outputs = self._assembled(call, blocks)
        certificate = None
        if call.how == VECTORIZED:
            vector = [random_like(source, seed) for seed, source in enumerate(call.sources)]
            products = _times(outer, gradients, call.sources, vector)
            if self.packed:
                vector, products = ([tf.concat([tf.reshape(p, [-1]) for p in part], 0)] for part in (vector, products))
            what = "the vectorised rows differ from a product by the plain tape"
            if factoring is not None:
                what = "the Hessian by factors differs from a product by the plain tape (examples depend on each other)"
            elif call.traced.custom:
                what = "the Hessian is not symmetric, since a custom gradient is no gradient of anything"
            plain = LOOP if factoring is None else VECTORIZED
            certificate = Certificate(
                [*vector, *products], partial(products_agree, len(vector)), what, plain, factoring is not None
            )
        description = call.signature.source_description
        structure = LEAF if self.packed else nested(description, description)
        return Computed(outputs, structure, plan, certificate, recording.outputs)

    def _planned(self, call: Call) -> tuple[Factoring | None, Plan]:
        sizes, mode = call.sizes, "reverse over reverse"
        chunk, needed = self._rows_at_once(call, max(sizes))
        plan = Plan(mode, max(sizes), chunk, needed, way=f"symmetric blocks, rows, {call.how}")
        if not call.fastest:
            return None, plan
        found = survey(call)
        if isinstance(found, Factoring):
            units, missing = sum(site.size for site in found.sites), set(range(len(sizes))) - set(found.chosen)
            rows = max([site.size for site in found.sites] + [sizes[index] for index in missing])
            elements = [first.inputs * second.inputs for first in found.sites for second in found.sites]
            try:
                extra = found.batch * max(elements) * call.dtypes[0].size
                chunk, needed = self._rows_at_once(call, rows, extra)
                left = sum(sizes[index] for index in missing)
                way = f"by per-example factors: {units} directions instead of {sum(sizes) - left}"
                way += (
                    f", and {counted(left, 'row')} of {len(missing)} of {counted(len(sizes), 'source')}" if left else ""
                )
                return found, Plan(mode, units + left, chunk, needed, way=way)
            except MemoryLimitError:
                found = "their intermediate results would not fit the memory limit"
        return None, replace(plan, given_up=(f"by per-example factors: {found}",))

    def _rows_at_once(self, call: Call, rows: int, extra: int = 0) -> tuple[int, int]:
        """Return how many rows to compute at once, and how many bytes the whole takes."""
        sizes, largest = call.sizes, call.traced.largest
        n, item = sum(sizes), max(dtype.size for dtype in call.dtypes)
        # A matrix is put together from all of its blocks; blocks are only joined from the chunks of a source's rows.
        joined = n * n if self.packed else max(size * sum(sizes[index:]) for index, size in enumerate(sizes))
        return rows_at_once(
            what="hessian",
            shapes=f"{counted(n, 'element')} in {counted(len(sizes), 'source')}, a matrix of shape ({n}, {n})",
            result=item * (n * n + joined) + extra,
            rows=rows,
            per_row=item * max(sizes) + 5 * largest,  # one-hot, and a pass back through a pass back
            advice="hvp, which never builds the matrix, or fewer sources",
            most=max(costs.HESSIAN_ROWS, costs.HESSIAN_CACHED // max(largest, 1)),
            chunk_size=self.chunk_size,
            limit=self.memory_limit,
        )

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        small = sum(call.sizes) <= costs.XLA_HESSIAN and (self.packed or len(call.sizes) <= costs.XLA_SOURCES)
        return small or call.traced.types.isdisjoint(_SLOW)

    def _rows(
        self, call: Call, outer: tf.GradientTape, gradients: Sequence[Any], chunk: int
    ) -> dict[tuple[int, int], tf.Tensor]:
        """The blocks by rows, those on and above the diagonal; all of them where they need not be symmetric."""
        sizes, sources, blocks = call.sizes, call.sources, {}
        every = call.how == LOOP and bool(call.traced.custom)
        for i, own in enumerate(gradients):
            first = 0 if every else i
            later = sources[first:]
            if own is None:
                found = [tf.zeros([sizes[i], *source.shape], source.dtype) for source in later]
            else:
                found = reverse_rows(outer, own, later, call.how, chunk)
            for j, block in enumerate(found, start=first):
                blocks[i, j] = tf.reshape(block, [sizes[i], sizes[j]])
        return blocks

    def _assembled(self, call: Call, blocks: dict[tuple[int, int], tf.Tensor]) -> list[tf.Tensor]:
        """Put the blocks, and the mirror images of those above the diagonal, where they belong."""
        sources, every = call.sources, sorted({i for i, _ in blocks})
        for i, j in [both for both in blocks if both[::-1] not in blocks]:
            blocks[j, i] = tf.cast(tf.transpose(blocks[i, j]), sources[i].dtype)
        if self.packed:
            return [tf.concat([tf.concat([blocks[i, j] for j in every], axis=1) for i in every], axis=0)]
        return [tf.reshape(blocks[i, j], sources[i].shape + sources[j].shape) for i in every for j in every]
