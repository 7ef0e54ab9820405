"""Hessian blocks from per-example factors: a pass for each unit of a layer, instead of one for each weight.

A weight W[i, j] of z = a W + b acts on z_j only, by a_i. So a pass back through a pass back that starts from one unit j
in every example at once, instead of from one weight, gives for each example b

    A[b, j, l] = ∂²L/∂z_u[j] ∂z_v[l]        G[b, k, j] = ∂a_v[k]/∂z_u[j]

(G is the cotangent of ∂L/∂a_v: the backward pass multiplies by the transposed Jacobian of the forward one). With
δ = ∂L/∂z_v, the Hessian of two layers, u before v, is

    H[W_u(i, j), W_v(k, l)] = Σ_b a_u[b, i] (a_v[b, k] A[b, j, l] + G[b, k, j] δ_v[b, l])

The second term is there because what a layer meets moves too. A bias is the weight of a constant 1, whose G is 0.

This holds where the loss is a sum of what each example has. That is not proved: whoever uses it compares one product
with a vector at every call (`tapelab.derivatives.hessian`).
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from tapelab.derivatives import costs
from tapelab.derivatives.jacobian import map_rows, reverse_rows
from tapelab.derivatives.traced import Call, dense
from tapelab.graphs.operations import known, with_fact
from tapelab.graphs.program import has_custom_gradient, inside
from tapelab.process.tensorflow import Tensors, tf

Blocks = dict[tuple[int, int], tf.Tensor]
_READING = with_fact("passes") - with_fact("flat")  # the same elements, in their order
_HARMLESS = with_fact("valueless")


class Use(NamedTuple):
    """One use of a source: in a product with what it met, shape (batch, inputs), or as an offset, where that is None.

    Attributes:
        source: the index of the source.
        met: a of z = a W.
        output: the operation's result, shape (batch, units).
    """

    source: int
    met: tf.Tensor | None
    output: tf.Tensor


class Site(NamedTuple):
    """A tensor z = a W + b that sources enter: uses whose results are added up, and used in no other way, share one.

    Attributes:
        output: z, shape (batch, units).
        uses: the list of each `Use`, in the order of the graph.
    """

    output: tf.Tensor
    uses: list[Use]

    @property
    def size(self) -> int:
        return int(self.output.shape[1])

    @property
    def inputs(self) -> int:
        """How many elements its units meet, a constant 1 for each bias among them."""
        return sum(_inputs_of(use) for use in self.uses)


class Factoring(NamedTuple):
    """How a Hessian is factored: sites in the order of the graph, the sources that enter there alone, the batch."""

    sites: list[Site]
    chosen: tuple[int, ...]
    batch: int

    @property
    def outputs(self) -> list[tf.Tensor]:
        return [site.output for site in self.sites]

    @property
    def met(self) -> list[tf.Tensor]:
        """What the layers meet, each tensor once."""
        found = {use.met.ref(): use.met for site in self.sites for use in site.uses if use.met is not None}
        return list(found.values())


def survey(call: Call) -> Factoring | str:
    """Look for the uses of the sources in what was evaluated. Returns how the Hessian is factored, or why it is not."""
    dtypes = set(call.dtypes)
    if len(dtypes) > 1 or not dtypes <= {tf.float32, tf.float64}:
        return f"the sources are {', '.join(sorted(dtype.name for dtype in dtypes))}"
    uses, missing = _find_uses(call)
    fit = [use for use in uses if use.source not in missing]
    if not fit:
        return f"{call.signature.source_names[0]} is used in another way than a W + b"
    sizes = call.sizes
    weight: dict[int, int] = {}
    for use in fit:
        weight[use.output.shape[0]] = weight.get(use.output.shape[0], 0) + sizes[use.source]
    batch = max(weight, key=weight.__getitem__)
    if not batch:
        return "there is no example"
    dropped = {use.source for use in fit if use.output.shape[0] != batch}
    while True:
        chosen = sorted({use.source for use in fit} - dropped)
        if not chosen:
            return "a pass for each weight is less work"
        sites = _sites([use for use in fit if use.source in chosen], set(call.traced.operations))
        large = {u.source for s in sites for u in s.uses if s.size > sum(sizes[i] for i in {u.source for u in s.uses})}
        if not large:
            break
        dropped |= large
    if _work_saved(sites, chosen, sizes, batch) <= 0:
        return "a pass for each weight is less work"
    return Factoring(sites, tuple(chosen), batch)


def _find_uses(call: Call) -> tuple[list[Use], set[int]]:
    """Find how the sources are used, and which of them are used in a way that has no rule."""
    sources, operations = call.sources, call.traced.operations
    graph = tf.compat.v1.get_default_graph()
    owner: dict[Any, int] = {}
    for index, source in enumerate(sources):
        owner.update((tensor.ref(), index) for tensor in inside(graph, [source]))
    uses: list[Use] = []
    missing: set[int] = set()
    for op in operations:
        owners = {position: owner[t.ref()] for position, t in enumerate(op.inputs) if t.ref() in owner}
        if not owners or op.type in _HARMLESS:
            continue
        position, index = next(iter(owners.items()))
        alone = len(owners) == 1 and not has_custom_gradient(op)
        if alone and op.type in _READING and op.outputs[0].dtype == sources[index].dtype:
            owner[op.outputs[0].ref()] = index
            continue
        use = _use_of(op, position, index, sources[index].shape) if alone else None
        if use is None:
            missing |= set(owners.values())
        else:
            uses.append(use)
    return uses, missing | (set(range(len(sources))) - {use.source for use in uses})


def _use_of(op: tf.Operation, position: int, index: int, shape: tf.TensorShape) -> Use | None:
    if not op.outputs or op.outputs[0].shape.rank != 2 or not op.outputs[0].shape.is_fully_defined():
        return None
    output, row = op.outputs[0], known(op.type)
    if row.transposed_by and shape.rank == 2 and position == 1 and op.inputs[0].shape.rank == 2:
        return None if any(map(op.get_attr, row.transposed_by)) else Use(index, op.inputs[0], output)
    if row.has("adds") and len(op.inputs) == 2 and shape == output.shape[1:]:
        other = op.inputs[1 - position]
        return Use(index, None, output) if other.shape == output.shape else None
    return None


def _sites(uses: Sequence[Use], operations: set[tf.Operation]) -> list[Site]:
    found: dict[Any, Site] = {}
    for use in uses:
        end = _end(use.output, operations)
        found.setdefault(end.ref(), Site(end, [])).uses.append(use)
    return list(found.values())


def _end(tensor: tf.Tensor, operations: set[tf.Operation]) -> tf.Tensor:
    """Follow a tensor to where it has been added to all that it is only added to: derivatives are the same."""
    while True:
        consumers = [op for op in tensor.consumers() if op in operations]
        if len(consumers) != 1 or sum(part is tensor for part in consumers[0].inputs) != 1:
            return tensor
        (op,) = consumers
        moved = op.type in _READING or known(op.type).has("adds")
        if not moved or has_custom_gradient(op) or op.outputs[0].shape != tensor.shape:
            return tensor
        tensor = op.outputs[0]


def _work_saved(sites: Sequence[Site], chosen: Sequence[int], sizes: Sequence[int], batch: int) -> float:
    """How much less work factors are than a pass for each element: multiplications and additions, about."""
    passes = 3.0 * batch * sum(sizes[use.source] for site in sites for use in site.uses)
    work = passes * sum(site.size for site in sites)
    for number, first in enumerate(sites):
        for second in sites[number:]:
            products = 2.0 * batch * first.inputs * first.size * second.inputs * second.size
            work += products if first is second else 2 * products  # the second term is a product of its own
    return passes * sum(sizes[index] for index in chosen) - work


# Blocks ------------------------------------------------------------------------------------------------------------


def factored_blocks(
    call: Call,
    factoring: Factoring,
    outer: tf.GradientTape,
    gradients: Sequence[tf.Tensor | None],
    joined: bool,
    chunk: int,
) -> Blocks:
    """Compute the blocks on and above the diagonal: for the indices of two sources a matrix of their sizes.

    Args:
        outer: a persistent tape that is open and has recorded the gradients.
        gradients: the loss's, by the sources, the sites' outputs and what they meet.
        joined: whether all sources may have one block, the whole matrix, where the sources of each layer follow each
            other: it is named (0, 0). That saves cutting what is put together again, and holding it twice.
        chunk: as for `map_rows`.
    """
    sites, sizes, sources = factoring.sites, call.sizes, call.sources
    missing = [index for index in range(len(sources)) if index not in factoring.chosen]
    end = len(sources) + len(sites)
    deltas = dense(gradients[len(sources) : end], factoring.outputs)
    reached = zip(factoring.met, gradients[end:], strict=True)
    behind = {tensor.ref(): gradient for tensor, gradient in reached if gradient is not None}
    rows = dense([gradients[index] for index in missing], [sources[index] for index in missing])
    with outer.stop_recording():
        blocks: Blocks = {}
        for index, gradient in zip(missing, rows, strict=True):
            later = [other for other in range(len(sources)) if other in factoring.chosen or other >= index]
            parts = reverse_rows(outer, gradient, [sources[other] for other in later], call.how, chunk)
            for other, part in zip(later, parts, strict=True):
                _add(blocks, index, other, tf.reshape(part, [sizes[index], sizes[other]]))
        met = [tf.transpose(tf.concat([_met(use) for use in site.uses], 1)) for site in sites]
        pairs = [_pairs_of(sites[n:], met[n:], outer, deltas[n:], behind, call.how, chunk) for n in range(len(sites))]
        order = [use.source for site in sites for use in site.uses]
        if joined and order == list(range(len(sources))):
            return {(0, 0): _matrix(pairs, sum(sizes))}
        for pair in itertools.chain(*pairs):
            _blocks_of(pair, blocks)
        return blocks


class _Pair(NamedTuple):
    """Two sites: what enters at the first gives rows, what enters at the second columns.

    Attributes:
        left, right: what the first and the second meet, shape (inputs, batch).
        second: A, shape (units of the first, batch, units of the second).
        delta: δ of the second, shape (batch, units).
        jacobians: for a tensor that the second meets, its G, shape (units of the first, batch, elements).
    """

    rows: Site
    columns: Site
    left: tf.Tensor
    right: tf.Tensor
    second: tf.Tensor
    delta: tf.Tensor
    jacobians: dict[Any, tf.Tensor]


def _pairs_of(
    sites: Sequence[Site],
    met: Tensors,
    tape: tf.GradientTape,
    deltas: Tensors,
    behind: dict[Any, tf.Tensor],
    how: str,
    chunk: int,
) -> list[_Pair]:
    """Return the `_Pair` of the first site with itself and with each later one."""
    site, delta = sites[0], deltas[0]
    later = {use.met.ref() for other in sites[1:] for use in other.uses if use.met is not None}
    reached = {ref: gradient for ref, gradient in behind.items() if ref in later}
    wanted = [*[other.output for other in sites], *reached.values()]

    def unit(index: Any) -> list[tf.Tensor]:
        seed = tf.ones_like(delta) * tf.one_hot(index, site.size, dtype=delta.dtype)
        return dense(tape.gradient(delta, wanted, output_gradients=seed), wanted)

    found = map_rows(unit, [tf.TensorSpec(t.shape, t.dtype) for t in wanted], site.size, how, chunk)
    jacobians = dict(zip(reached, found[len(sites) :], strict=True))
    return [
        _Pair(site, other, met[0], right, second, own, jacobians if other is not site else {})
        for other, right, second, own in zip(sites, met, found, deltas, strict=False)
    ]


def _add(blocks: Blocks, i: int, j: int, block: tf.Tensor) -> None:
    """Add a part of the block of two sources; below the diagonal, as its transpose above it."""
    if i > j:
        i, j, block = j, i, tf.transpose(block)
    blocks[i, j] = blocks[i, j] + block if (i, j) in blocks else block


def _blocks_of(pair: _Pair, blocks: Blocks) -> None:
    rows, columns = pair.rows.uses, pair.columns.uses
    strips = tf.split(_product(pair, pair.left), [_inputs_of(use) for use in rows], axis=0)
    for row, strip in zip(rows, strips, strict=True):
        parts = tf.split(strip, [_inputs_of(use) for use in columns], axis=2)
        for column, part in zip(columns, parts, strict=True):
            part = tf.reshape(part, [_inputs_of(row) * pair.rows.size, -1])
            i, j = row.source, column.source
            if pair.rows is not pair.columns or i <= j:
                _add(blocks, i, j, part)
            if pair.rows is not pair.columns and i == j:  # one source, used twice: its mirror image as well
                _add(blocks, i, j, tf.transpose(part))


def _matrix(pairs: Sequence[list[_Pair]], n: int) -> tf.Tensor:
    """Put the whole matrix together from strips of rows, each with the mirror image of what is above the diagonal.

    A strip is begun when the one before it is complete: beside the strips and the matrix, little exists at a time.
    """
    strips: list[tf.Tensor] = []
    for own in pairs:
        above, site = len(strips), own[0].rows
        most = max(max(costs.STRIP, n * n // costs.STRIP_SHARE) // (n * site.size), 1)
        for first in range(0, site.inputs, most):
            start = sum(strip.shape[0] for strip in strips)
            with tf.control_dependencies(strips[-1:]):
                left = own[0].left[first : first + most]
                parts = [_product(pair, left) for pair in own]
                parts = [tf.reshape(part, [part.shape[0] * site.size, -1]) for part in parts]
                if above:
                    stop = start + parts[0].shape[0]
                    parts.insert(0, tf.transpose(tf.concat([strip[:, start:stop] for strip in strips[:above]], 0)))
                strips.append(tf.concat(parts, 1))
    return tf.concat(strips, 0)


def _product(pair: _Pair, left: tf.Tensor) -> tf.Tensor:
    """Return a pair's rows of these of its ``left``, shape (as many, the first's units, the second's inputs, units)."""
    units = pair.rows.size
    # A product for each i and j, so that the result lies as it is wanted: (i, j, k, l).
    block = _batched(tf.expand_dims(left, 1) * pair.right, pair.second)
    moved = [pair.jacobians.get(use.met.ref()) if use.met is not None else None for use in pair.columns.uses]
    if any(part is not None for part in moved):
        parts = [
            tf.zeros([units, left.shape[1], _inputs_of(use)], left.dtype) if part is None else part
            for part, use in zip(moved, pair.columns.uses, strict=True)
        ]
        weighted = tf.expand_dims(left, 2) * pair.delta  # (i, batch, l)
        turned = tf.transpose(tf.concat(parts, 2), [0, 2, 1])  # (j, k, batch)
        if units == 1:  # as matrices of three axes: see `wrong.require_safe`
            block += tf.expand_dims(tf.matmul(turned, weighted), 1)
        else:
            block += tf.matmul(turned, tf.expand_dims(weighted, 1))
    return block


def _batched(left: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
    """Products of (i, k, batch) and (j, batch, l), each with each: (i, j, k, l)."""
    if second.shape[0] == 1:
        return tf.expand_dims(tf.matmul(left, second), 1)
    return tf.matmul(tf.expand_dims(left, 1), second)


def _inputs_of(use: Use) -> int:
    return 1 if use.met is None else int(use.met.shape[1])


def _met(use: Use) -> tf.Tensor:
    """What a use's source is multiplied with, shape (batch, inputs)."""
    return tf.ones([use.output.shape[0], 1], use.output.dtype) if use.met is None else use.met
