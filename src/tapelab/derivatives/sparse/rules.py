"""How the dependence of an operation's results follows from that of its inputs: elementwise, moves, reductions."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tapelab.derivatives.sparse.dependence import (
    Dependence,
    NoRule,
    Room,
    applied,
    grouped,
    known_shape,
    numbers,
    pairs,
    take,
    union,
)
from tapelab.graphs.operations import known, of_family
from tapelab.graphs.operations.operation import BLOCK, ELEMENTWISE, MOVING, REDUCING, SCANNING, SCATTERING
from tapelab.graphs.program import reissue
from tapelab.process.tensorflow import tf

import numpy as np
from scipy import sparse

Matrix: TypeAlias = sparse.csr_array | None


@dataclass(frozen=True)
class Step:
    """One operation of a graph, met on the way.

    Attributes:
        op: it.
        known: what is known of its inputs; the shapes of those that depend on sources are known.
        shapes: of its outputs, None where one is not known.
        room: says whether a matrix is too large.
    """

    op: tf.Operation
    known: list[Dependence]
    shapes: list[tuple[int, ...] | None]
    room: Room

    @property
    def moving(self) -> list[int]:
        """The numbers of the inputs that depend on sources."""
        return [index for index, one in enumerate(self.known) if one.matrix is not None]

    @property
    def out(self) -> tuple[int, ...]:
        """The shape of the first output, where it has to be known."""
        return known_shape(self.shapes[0])

    def constant(self, index: int) -> np.ndarray:
        """The value of an input, if it is always the same; the last one is -1."""
        value = self.known[index].value
        if value is None:
            raise NoRule("where it puts elements depends on values")
        return np.asarray(value.numpy())


def _elementwise(step: Step) -> list[Matrix]:
    op, shape = step.op, step.out
    parts = []
    for index in step.moving:
        if index in known(op.type).flat_in:
            continue
        own = step.known[index].sizes
        positions = numbers(own)
        if op.type == "BiasAdd" and index == 1 and op.get_attr("data_format") == b"NCHW":
            positions = positions.reshape([-1, *[1] * (len(shape) - 2)])
        positions = np.broadcast_to(positions, shape)
        kept = _kept(step, index)
        if kept is not None:
            positions = np.where(np.broadcast_to(kept, shape), positions, -1)
        parts.append(take(step.known[index].matrix, positions, step.room))
    return [union(parts) if parts else None]


def _kept(step: Step, index: int) -> np.ndarray | None:
    """Where an input of an elementwise operation counts, if constants say so; None for everywhere."""
    kind, known = step.op.type, step.known
    if kind in ("Mul", "MulNoNan"):
        other = known[1 - index].value
        return None if other is None else other.numpy() != 0
    if kind in ("SelectV2", "Select") and known[0].value is not None:
        chosen = known[0].value.numpy()
        if kind == "Select" and chosen.ndim == 1:  # of whole rows
            chosen = chosen.reshape([-1, *[1] * (len(step.out) - 1)])
        return chosen if index == 1 else ~chosen
    return None


def _moved(step: Step) -> list[Matrix]:
    """Move the numbers of the elements, and see where they are."""
    inputs, blocks, start = [], [], 1
    for tensor, one in zip(step.op.inputs, step.known, strict=True):
        if one.matrix is not None:
            inputs.append(numbers(one.sizes, start).astype(np.float64))
            start += one.size
            blocks.append(one.matrix)
        elif tensor.dtype.is_floating or tensor.dtype.is_complex:
            inputs.append(np.zeros(one.sizes))
        elif one.value is None:
            raise NoRule("where it puts elements depends on values")
        else:
            inputs.append(one.value)
    with tf.init_scope(), tf.device("CPU:0"):
        outputs = [output.numpy() for output in reissue(step.op, [tf.constant(part) for part in inputs])]
    whole = blocks[0] if len(blocks) == 1 else sparse.vstack(blocks, format="csr")
    return [take(whole, output.astype(int) - 1, step.room) for output in outputs]


def _unmirrored(step: Step) -> list[Matrix]:
    """The gradient of mirroring at the edges: each element comes back to where mirroring takes it from."""
    positions = numbers(step.out).astype(np.float64)
    with tf.init_scope(), tf.device("CPU:0"):
        padding = tf.constant(step.constant(1))
        there = tf.raw_ops.MirrorPad(input=positions, paddings=padding, mode=step.op.get_attr("mode")).numpy()
    own = pairs(there.astype(int), np.arange(there.size), (positions.size, there.size))
    return [applied(own, step.known[0].matrix, step.room)]


def _gathered(step: Step) -> list[Matrix]:
    """Rows of a table, along an axis. Without their numbers, each of the result depends on all of that axis."""
    op = step.op
    axis = batch = 0 if op.type == "Gather" else op.get_attr("batch_dims")
    if op.type == "GatherV2":
        axis = int(step.constant(2))
    shape = step.known[0].sizes
    axis, batch = axis % len(shape), batch % (len(step.known[1].sizes) + 1)
    if step.known[1].value is not None:
        where = step.known[1].value
        with tf.init_scope(), tf.device("CPU:0"):
            found = tf.gather(tf.constant(numbers(shape)), where, axis=axis, batch_dims=batch)
        return [take(step.known[0].matrix, found.numpy(), step.room)]
    groups = numbers(shape[:axis] + shape[axis + 1 :])
    inner = [1] * (len(step.known[1].sizes) - batch)
    return _by_groups(
        step,
        0,
        np.broadcast_to(np.expand_dims(groups, axis), shape),
        np.broadcast_to(groups.reshape([*shape[:axis], *inner, *shape[axis + 1 :]]), step.out),
    )


def _gathered_elements(step: Step) -> list[Matrix]:
    """Slices of a table, each by several numbers."""
    shape = step.known[0].sizes
    depth = step.known[1].sizes[-1]
    inner = shape[depth:]
    if step.known[1].value is not None:
        first = _flat_numbers(step.constant(1), shape[:depth])
        positions = first[..., None] * math.prod(inner) + np.arange(math.prod(inner))
        return [take(step.known[0].matrix, positions, step.room)]
    groups = numbers(inner)
    return _by_groups(step, 0, np.broadcast_to(groups, shape), np.broadcast_to(groups, step.out))


def _flat_numbers(indices: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The numbers of the elements of an array that are at these places, shape (..., axes)."""
    return indices @ np.array([math.prod(shape[axis + 1 :]) for axis in range(len(shape))], np.int64)


def _by_groups(step: Step, index: int, inputs: np.ndarray, outputs: np.ndarray) -> list[Matrix]:
    count = int(max(inputs.max(initial=0), outputs.max(initial=0))) + 1
    return [grouped(step.known[index].matrix, inputs, outputs, count, step.room)]


def _reduced(step: Step) -> list[Matrix]:
    shape = step.known[0].sizes
    gone = {int(axis) % max(len(shape), 1) for axis in np.ravel(step.constant(1))}
    kept = numbers([1 if axis in gone else size for axis, size in enumerate(shape)])
    return _by_groups(step, 0, np.broadcast_to(kept, shape), np.arange(kept.size))


def _scanned(step: Step) -> list[Matrix]:
    op, shape = step.op, step.known[0].sizes
    axis = int(step.constant(1)) % len(shape)
    step.room(math.prod(shape) * shape[axis] / 2)
    lines = np.moveaxis(numbers(shape), axis, -1).reshape(-1, shape[axis])
    seen = np.tri(shape[axis], k=-int(op.get_attr("exclusive")), dtype=bool)
    outputs, inputs = np.nonzero(seen.T if op.get_attr("reverse") else seen)
    own = pairs(lines[:, outputs], lines[:, inputs], (lines.size, lines.size))
    return [applied(own, step.known[0].matrix, step.room)]


def _in_blocks(step: Step) -> list[Matrix]:
    """All of a result's block on all of the input's."""
    axes = known(step.op.type).axes
    return [_blocks(step, known_shape(shape), dict.fromkeys(step.moving, axes)) for shape in step.shapes]


def _blocks(step: Step, shape: tuple[int, ...], axes: Mapping[int, int]) -> sparse.csr_array:
    parts = []
    batch = np.broadcast_shapes(*(step.known[i].sizes[: len(step.known[i].sizes) - n] for i, n in axes.items()))
    for index, count in axes.items():
        own = step.known[index].sizes
        groups = numbers(own[: len(own) - count])
        spread = np.broadcast_to(groups, batch)
        outputs = np.broadcast_to(spread.reshape([*batch, *[1] * (len(shape) - len(batch))]), shape)
        inputs = np.broadcast_to(groups.reshape([*groups.shape, *[1] * count]), own)
        parts += _by_groups(step, index, inputs, outputs)
    return union(parts)


def _solved(step: Step) -> list[Matrix]:
    """A matrix's inverse times columns: each result depends on the matrix, and on its own column."""
    if step.moving != [1]:
        return [_blocks(step, step.out, dict.fromkeys(step.moving, 2))]
    shape, own = step.out, step.known[1].sizes
    columns = numbers([*own[:-2], 1, own[-1]])
    return _by_groups(step, 1, np.broadcast_to(columns, own), np.broadcast_to(columns, shape))


def _segments(step: Step) -> list[Matrix]:
    """Sums over rows with one number. Without the numbers, each of the result depends on all rows."""
    if step.moving != [0]:
        raise NoRule("the numbers of segments depend on values")
    axes = len(step.known[1].sizes)
    shape, count = step.known[0].sizes, step.out[0]
    inner = math.prod(shape[axes:])
    if step.known[1].value is None:
        groups = numbers(shape[axes:])
        return _by_groups(step, 0, np.broadcast_to(groups, shape), np.broadcast_to(groups, step.out))
    return [_scattered(step, 0, np.ravel(step.constant(1)), count, inner)]


def _scattered(step: Step, index: int, rows: np.ndarray, count: int, inner: int) -> sparse.csr_array:
    """Put slices of ``inner`` elements into rows; those of no row are left out."""
    sources = numbers([len(rows), inner])
    outputs = rows[:, None].astype(np.int64) * inner + np.arange(inner)
    inside = np.broadcast_to(((rows >= 0) & (rows < count))[:, None], sources.shape)
    own = pairs(outputs[inside], sources[inside], (count * inner, sources.size))
    return applied(own, step.known[index].matrix, step.room)


def _placed(step: Step) -> list[Matrix]:
    """ScatterNd, and changes of a tensor at places: each of the result on what was there, and on what comes there."""
    first = 0 if step.op.type.startswith("Tensor") else -1
    places, updates = first + 1, first + 2
    shape = step.out
    parts = [step.known[0].matrix] if first == 0 and step.known[0].matrix is not None else []
    if step.known[updates].matrix is not None:
        depth = step.known[places].sizes[-1]
        inner = shape[depth:]
        if step.known[places].value is not None:
            rows = np.ravel(_flat_numbers(step.constant(places), shape[:depth]))
            parts.append(_scattered(step, updates, rows, math.prod(shape[:depth]), math.prod(inner)))
        else:
            groups = numbers(inner)
            own = step.known[updates].sizes
            parts += _by_groups(step, updates, np.broadcast_to(groups, own), np.broadcast_to(groups, shape))
    return [union(parts)]


_SCATTERING = of_family(SCATTERING)
RULES: dict[str, Callable[[Step], list[Matrix]]] = {
    **dict.fromkeys(of_family(ELEMENTWISE), _elementwise),
    **dict.fromkeys(of_family(MOVING) - {"ParallelDynamicStitch"}, _moved),  # with an index twice, any value may win
    **dict.fromkeys(of_family(REDUCING) - {"L2Loss"}, _reduced),
    **dict.fromkeys(of_family(SCANNING), _scanned),
    **dict.fromkeys(of_family(BLOCK), _in_blocks),
    **dict.fromkeys(["MatrixSolve", "MatrixTriangularSolve"], _solved),
    **dict.fromkeys([kind for kind in _SCATTERING if "Segment" in kind], _segments),
    **dict.fromkeys([kind for kind in _SCATTERING if "Scatter" in kind], _placed),
    "MirrorPadGrad": _unmirrored,
    **dict.fromkeys(["Gather", "GatherV2", "ResourceGather"], _gathered),
    **dict.fromkeys(["GatherNd", "ResourceGatherNd"], _gathered_elements),
}
