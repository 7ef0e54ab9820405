"""Hessian blocks from per-example factors: a pass for each unit of a layer, instead of one for each weight.

A weight W[i, j] acts on its pre-activation z_j only, by a_i. So a pass back through a pass back that starts from one
unit j in every example at once, instead of from one weight, gives for each example b

    A[b, j, l] = ∂²L/∂z_u[j] ∂z_v[l]        G[b, k, j] = ∂a_v[k]/∂z_u[j]

(G is the cotangent of ∂L/∂a_v: the backward pass multiplies by the transposed Jacobian of the forward one). With
δ = ∂L/∂z_v, the Hessian of two layers, u before v, is

    H[W_u(i, j), W_v(k, l)] = Σ_b a_u[b, i] (a_v[b, k] A[b, j, l] + G[b, k, j] δ_v[b, l])

The second term is there because what a layer meets moves too. A bias is the weight of a constant 1, whose G is 0.
A layer that is used at T positions has T times its units; the sums then run over pairs of positions.
"""

import itertools
import math
from collections.abc import Hashable, Sequence
from typing import NamedTuple

from tapelab.derivatives import costs
from tapelab.derivatives.examples.contributions import patches, without_broadcast
from tapelab.derivatives.examples.source_sites import (
    Site,
    Sites,
    find_factors,
    inputs_of,
    is_plain,
    units_of,
)
from tapelab.derivatives.examples.variable_uses import FILTER, SUM, SWAPPED, Use
from tapelab.derivatives.first_order import dense_gradient, recorded
from tapelab.derivatives.hessians.factoring import Factoring
from tapelab.derivatives.jacobians.jacobian import reverse_rows
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.rows import map_rows
from tapelab.process.tensorflow import Tensors, tf

Blocks = dict[tuple[int, int], tf.Tensor]


def factored_blocks(
    problem: Problem, factoring: Factoring, joined: bool, chunk: int, how: str, tensors: Tensors
) -> Blocks:
    """Compute the blocks on and above the diagonal: for the indices of two sources a matrix of their sizes.

    Args:
        joined: whether all sources may have one block, the whole matrix, where the sources of each layer follow each
            other: it is named (0, 0). That saves cutting what is put together again, and holding it twice.
        chunk, how: as for `map_rows`.
    """
    names, sizes = range(len(problem.source_names)), problem.source_sizes
    batch = factoring.batch
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as outer:
        outer.watch(problem.sources(tensors))
        tape, sources, (loss,) = recorded(problem, tensors, persistent=True, opened=True)
        sites = Sites(loss, find_factors(loss, sources)[0], factoring.chosen, batch, tape)
        if tuple(site.size for site in sites.sites) != factoring.sizes:
            raise RuntimeError("the function's graph is another one than a moment ago")
        met = {use.met.ref(): use.met for site in sites.sites for _, use in site.uses if _moves(use, sites)}
        missing = [index for index in names if index not in factoring.chosen]
        gradients = tape.gradient(
            loss, [[site.output for site in sites.sites], list(met.values()), [sources[index] for index in missing]]
        )
        # A gather's gradient is IndexedSlices: a target of the outer tape may be made dense, not what lies between.
        if any(isinstance(gradient, tf.IndexedSlices) for gradient in gradients[1]):
            raise RuntimeError("the gradient by what a layer meets is not dense")
        deltas = [_flat(gradient, site.output) for gradient, site in zip(gradients[0], sites.sites, strict=True)]
        behind = {r: gradient for r, gradient in zip(met, gradients[1], strict=True) if gradient is not None}
        rows = {index: _flat(gradient, sources[index]) for index, gradient in zip(missing, gradients[2], strict=True)}
    blocks: Blocks = {}
    for index, gradient in rows.items():
        others = [other for other in names if other in factoring.chosen or other >= index]
        specs = [problem.source_specs[other] for other in others]
        found = reverse_rows(outer, gradient, [sources[other] for other in others], specs, how, chunk)
        for other, part in zip(others, found, strict=True):
            _add(blocks, index, other, tf.reshape(part, [sizes[index], sizes[other]]))
    pairs = [_pairs_of(site, sites, n, outer, deltas, behind, how, chunk) for n, site in enumerate(sites.sites)]
    if joined and not missing and _can_join(sites.sites):
        return {(0, 0): _matrix(pairs, batch, sum(sizes))}
    for pair in itertools.chain(*pairs):
        (_plain_blocks if is_plain(pair.rows) and is_plain(pair.columns) else _general_blocks)(pair, batch, blocks)
    return blocks


def _can_join(sites: Sequence[Site]) -> bool:
    """Whether every site is plain, and the sources enter one after the other, each once."""
    order = [index for site in sites for index, _ in site.uses]
    return order == list(range(len(order))) and all(map(is_plain, sites))


def _flat(gradient: tf.Tensor | None, like: tf.Tensor) -> tf.Tensor:
    return tf.reshape(tf.zeros_like(like) if gradient is None else gradient, [-1])


def _moves(use: Use, sites: Sites) -> bool:
    """Whether what a use meets is moved by what enters at other sites, and matters."""
    return not use.is_offset and sites.varies(use.met)


def _pairs_of(
    site: Site,
    sites: Sites,
    number: int,
    tape: tf.GradientTape,
    deltas: Tensors,
    behind: dict[Hashable, tf.Tensor],
    how: str,
    chunk: int,
) -> "list[_Pair]":
    """Return the `_Pair` of a site with itself and with each later site."""
    batch, later = sites.batch, sites.sites[number:]
    reached = {r: g for r, g in behind.items() if any(sites.reaches(site, u.met) for u in _meeting(later, r))}
    wanted = [*[other.output for other in later], *reached.values()]

    def unit(index: int | tf.Tensor) -> list[tf.Tensor]:
        seed = tf.one_hot(index, site.size, dtype=deltas[number].dtype)
        return dense_gradient(tape, deltas[number], wanted, tf.tile(seed, [batch]))

    found = map_rows(unit, [tf.TensorSpec(t.shape, t.dtype) for t in wanted], site.size, how, chunk)
    found = [tf.reshape(part, [site.size, batch, -1]) for part in found]
    jacobians = dict(zip(reached, found[len(later) :], strict=True))
    return [
        _Pair(site, other, second, tf.reshape(delta, [batch, -1]), jacobians if other is not site else {})
        for other, second, delta in zip(later, found, deltas[number:], strict=False)
    ]


def _meeting(sites: Sequence[Site], reference: Hashable) -> list[Use]:
    return [use for site in sites for _, use in site.uses if use.met.ref() == reference]


class _Pair(NamedTuple):
    """Two sites: what enters at the first gives rows, what enters at the second columns.

    Attributes:
        second: A, shape (units of the first, batch, units of the second).
        delta: δ of the second, shape (batch, units).
        jacobians: for a tensor that the second meets, its G, shape (units of the first, batch, elements).
    """

    rows: Site
    columns: Site
    second: tf.Tensor
    delta: tf.Tensor
    jacobians: dict


def _add(blocks: Blocks, i: int, j: int, block: tf.Tensor) -> None:
    """Add a part of the block of two sources; below the diagonal, as its transpose above it."""
    if i > j:
        i, j, block = j, i, tf.transpose(block)
    blocks[i, j] = blocks[i, j] + block if (i, j) in blocks else block


def _spread(pair: _Pair, i: int, j: int, block: tf.Tensor, blocks: Blocks) -> None:
    """Add a part that stands for its mirror image as well, unless that is computed on its own."""
    if pair.rows is pair.columns:
        if i <= j:
            _add(blocks, i, j, block)
    else:
        _add(blocks, i, j, block)
        if i == j:  # one source, used twice
            _add(blocks, i, j, tf.transpose(block))


# Plain sites: z = a W + b, one row for each example.


def _matrix(pairs: Sequence[list[_Pair]], batch: int, n: int) -> tf.Tensor:
    """Put the whole matrix together from strips of rows, each with the mirror image of what is above the diagonal.

    A strip is begun when the one before it is complete: beside the strips and the matrix, little exists at a time.
    """
    strips: list[tf.Tensor] = []
    for own in pairs:
        above, site = len(strips), own[0].rows
        most = max(costs.STRIP, n * n // costs.STRIP_SHARE) // (n * site.size)
        for first in range(0, inputs_of(site), max(most, 1)):
            start = sum(strip.shape[0] for strip in strips)
            with tf.control_dependencies(strips[-1:]):
                parts = [_plain_product(pair, batch, slice(first, first + max(most, 1))) for pair in own]
                parts = [tf.reshape(part, [part.shape[0] * site.size, -1]) for part in parts]
                if above:
                    stop = start + parts[0].shape[0]
                    parts.insert(0, tf.transpose(tf.concat([strip[:, start:stop] for strip in strips[:above]], 0)))
                strips.append(tf.concat(parts, 1))
    return tf.concat(strips, 0)


def _plain_product(pair: _Pair, batch: int, span: slice = slice(None)) -> tf.Tensor:
    """Return a pair's rows of these inputs, shape (inputs of the first, its units, inputs of the second, units)."""
    dtype = pair.second.dtype
    rows, columns = ([_inputs(use, batch, dtype) for _, use in site.uses] for site in (pair.rows, pair.columns))
    left, right = (tf.transpose(tf.concat(parts, 1)) for parts in (rows, columns))  # (i, batch), (k, batch)
    left = left[span]
    # A product for each i and j, so that the result lies as it is wanted: (i, j, k, l).
    block = tf.matmul(left[:, tf.newaxis, tf.newaxis] * right, pair.second)
    moved = [pair.jacobians.get(use.met.ref()) if use.kind != SUM else None for _, use in pair.columns.uses]
    if any(part is not None for part in moved):
        units = pair.rows.size
        parts = [
            tf.zeros([units, batch, own.shape[1]], own.dtype) if part is None else _rows(use, part)[:, :, 0]
            for part, own, (_, use) in zip(moved, columns, pair.columns.uses, strict=True)
        ]
        moved = tf.concat(parts, 2)
        block += tf.matmul(moved, left[:, tf.newaxis, :, tf.newaxis] * pair.delta, transpose_a=True)
    return block


def _plain_blocks(pair: _Pair, batch: int, blocks: Blocks) -> None:
    block, start = _plain_product(pair, batch), 0
    for i, row in pair.rows.uses:
        end = start + _width(row)
        strip, begin = block[start:end], 0
        for j, column in pair.columns.uses:
            part = strip[:, :, begin : begin + _width(column)]
            begin += _width(column)
            _spread(pair, i, j, tf.reshape(part, [(end - start) * pair.rows.size, -1]), blocks)
        start = end


def _width(use: Use) -> int:
    """How many inputs a plain use's source has for each unit."""
    return 1 if use.kind == SUM else math.prod(use.shape[:-1])


def _inputs(use: Use, batch: int, dtype: tf.DType) -> tf.Tensor:
    """What a plain use's source is multiplied with, shape (batch, inputs)."""
    return tf.ones([batch, 1], dtype) if use.kind == SUM else _rows(use, tf.reshape(use.met, [batch, -1]))[:, 0]


# All other sites: a gradient for each unit and example is built.


def _general_blocks(pair: _Pair, batch: int, blocks: Blocks) -> None:
    for j, column in pair.columns.uses:
        built = _pulled(column, _met(column, batch), pair.second, pair.columns.size)
        moved = pair.jacobians.get(column.met.ref())
        if moved is not None and not column.is_offset:
            built += _pulled(column, _spread_out(column, moved), pair.delta[tf.newaxis], pair.columns.size)
        for i, row in pair.rows.uses:
            if pair.rows is not pair.columns or i <= j:
                _spread(pair, i, j, _summed(row, _met(row, batch), built), blocks)


def _met(use: Use, batch: int) -> tf.Tensor | None:
    """What a use meets, shape (batch, elements); None for an offset."""
    if use.is_offset:
        return None
    met = tf.broadcast_to(use.met, use.output.shape) if use.kind == SUM else use.met
    return tf.reshape(met, [batch, -1])


def _spread_out(use: Use, jacobian: tf.Tensor) -> tf.Tensor:
    """Broadcast the derivatives of what a factor meets as the operation does; shape (units, batch, elements)."""
    if use.kind != SUM:
        return jacobian
    units, batch, _ = jacobian.shape
    shaped = tf.reshape(jacobian, [units, *use.met.shape])
    return tf.reshape(tf.broadcast_to(shaped, [units, *use.output.shape]), [units, batch, -1])


def _rows(use: Use, flat: tf.Tensor) -> tf.Tensor:
    """Give what a product or convolution meets, (..., elements), its positions: (..., T, inputs)."""
    lead = flat.shape[:-1]
    if use.kind == FILTER:
        found = patches(use, tf.reshape(flat, [-1, *use.met.shape[1:]]))
        return tf.reshape(found, [*lead, -1, found.shape[-1]])
    return tf.reshape(flat, [*lead, -1, use.met.shape[-1]])


def _pulled(use: Use, met: tf.Tensor | None, cotangents: tf.Tensor, size: int) -> tf.Tensor:
    """Return what cotangents (..., batch, units) give a source in each example: (..., batch, elements)."""
    if use.kind == SUM:
        found = cotangents if met is None else cotangents * met
        return without_broadcast(use, found, found.shape[:-1])
    left = _rows(use, met)
    right = tf.reshape(cotangents, [*cotangents.shape[:-1], -1, units_of(use)])
    if use.kind == SWAPPED:
        left, right = right, left
    if size == units_of(use):  # one position
        found = tf.transpose(left, [*range(left.shape.rank - 2), left.shape.rank - 1, left.shape.rank - 2]) * right
    else:
        found = tf.matmul(left, right, transpose_a=True)
    return tf.reshape(found, [*found.shape[:-2], -1])


def _summed(use: Use, met: tf.Tensor | None, cotangents: tf.Tensor) -> tf.Tensor:
    """Return what cotangents (units, batch, columns) give a source in all examples: (elements, columns)."""
    _, batch, columns = cotangents.shape
    if use.kind == SUM:
        found = tf.reduce_sum(cotangents, 1) if met is None else tf.einsum("ebn,be->en", cotangents, met)
        return tf.transpose(without_broadcast(use, tf.transpose(found), [columns]))
    by_position = tf.reshape(cotangents, [-1, units_of(use), batch, columns])
    found = tf.einsum("bti,tobn->oin" if use.kind == SWAPPED else "bti,tobn->ion", _rows(use, met), by_position)
    return tf.reshape(found, [-1, columns])
