"""Dependences through convolutions and pooling: each element of the result on a window of the input."""

import math
from collections.abc import Sequence

from tapelab.derivatives.sparse.dependence import NoRule, Room, applied, grouped, pairs, union
from tapelab.derivatives.sparse.rules import Matrix, Step
from tapelab.process.tensorflow import tf

import numpy as np
from scipy import sparse


def _windows(op: tf.Operation, pixels: Sequence[int], positions: Sequence[int], taps: Sequence[int]) -> np.ndarray:
    """The pixel under each tap at each position, shape (positions, taps), numbered row by row; -1 outside the image."""
    count = len(pixels)
    strides = op.get_attr("strides")[1 : count + 1]
    names = {attribute.name for attribute in op.op_def.attr}
    dilations = op.get_attr("dilations")[1 : count + 1] if "dilations" in names else [1] * count
    padding = op.get_attr("padding").decode()
    found = np.zeros([1, 1], int)
    for axis, (size, steps, width) in enumerate(zip(pixels, positions, taps, strict=True)):
        reach = (width - 1) * dilations[axis] + 1
        before = 0
        if padding == "SAME":
            before = max((steps - 1) * strides[axis] + reach - size, 0) // 2
        elif padding == "EXPLICIT":
            before = op.get_attr("explicit_paddings")[2 * (axis + 1)]
        at = np.arange(steps)[:, None] * strides[axis] + np.arange(width) * dilations[axis] - before
        at = np.where((at >= 0) & (at < size), at, -1)
        both = found[:, None, :, None] * size + at[None, :, None, :]
        outside = (found < 0)[:, None, :, None] | (at < 0)[None, :, None, :]
        found = np.where(outside, -1, both).reshape(found.shape[0] * steps, found.shape[1] * width)
    return found


def _factors(
    op: tf.Operation,
    images: Sequence[int],
    results: Sequence[int],
    taps: Sequence[int],
    per_group: int,
    filters: np.ndarray | None,
) -> list[sparse.csr_array]:
    """Matrices whose product, the first one last, says which elements of images each element of results takes.

    Args:
        images, results: shapes (batch, *pixels, channels).
        taps: shape of the window.
        per_group: how many channels each result takes.
        filters: boolean, shape (taps, per_group, result's channels): which taps count; None for all.
    """
    batch, *pixels, channels = images
    _, *positions, outputs = results
    count, spots, groups = math.prod(pixels), math.prod(positions), channels // per_group
    windows = _windows(op, pixels, positions, taps)
    size, wanted = batch * count * channels, batch * spots * outputs
    group = np.arange(outputs) // max(outputs // groups, 1)
    each = np.arange(batch)[:, None, None, None]
    if filters is not None:
        tap, channel, output = np.nonzero(filters)
        under = windows[:, tap]
        inputs = (each[..., 0] * count + under) * channels + group[output] * per_group + channel
        places = (each[..., 0] * spots + np.arange(spots)[:, None]) * outputs + output
        inside = np.broadcast_to(under >= 0, inputs.shape)
        return [pairs(places[inside], inputs[inside], (wanted, size))]
    # All channels of a group together, then windows, then the result's channels of that group.
    together = pairs(np.arange(size) // per_group, np.arange(size), (batch * count * groups, size))
    one = np.arange(groups)
    inputs = (each * count + windows[..., None]) * groups + one
    places = np.broadcast_to((each * spots + np.arange(spots)[:, None, None]) * groups + one, inputs.shape)
    inside = np.broadcast_to((windows >= 0)[..., None], inputs.shape)
    seen = pairs(places[inside], inputs[inside], (batch * spots * groups, batch * count * groups))
    rows = np.arange(wanted)
    return [together, seen, pairs(rows, rows // outputs * groups + group[rows % outputs], (wanted, seen.shape[0]))]


def _forward(matrix: sparse.csr_array, factors: Sequence[sparse.csr_array], room: Room) -> sparse.csr_array:
    for factor in factors:
        matrix = applied(factor, matrix, room)
    return matrix


def _back(matrix: sparse.csr_array, factors: Sequence[sparse.csr_array], room: Room) -> sparse.csr_array:
    return _forward(matrix, [factor.T.tocsr() for factor in reversed(factors)], room)


def _require_channels_last(op: tf.Operation) -> None:
    if op.get_attr("data_format") not in (b"NHWC", b"NDHWC"):
        raise NoRule("channels are not the last axis")


def _filters(step: Step, index: int) -> tuple[np.ndarray | None, list[int], int]:
    """Which taps of a filter count, (taps, channels of a group, result's channels), None for all; and its window."""
    *taps, per_group, outputs = step.known[index].sizes
    if step.op.type.startswith("Depthwise"):
        per_group, outputs = 1, per_group * outputs
    value = step.known[index].value
    used = None if value is None else value.numpy().reshape(-1, per_group, outputs) != 0
    return (None if used is None or used.all() else used), taps, per_group


def _convolution(step: Step) -> list[Matrix]:
    _require_channels_last(step.op)
    shape, parts = step.out, []
    if step.known[0].matrix is not None:
        used, taps, per_group = _filters(step, 1)
        factors = _factors(step.op, step.known[0].sizes, shape, taps, per_group, used)
        parts.append(_forward(step.known[0].matrix, factors, step.room))
    if step.known[1].matrix is not None:
        *_, channels, outputs = step.known[1].sizes
        count = channels * outputs if step.op.type.startswith("Depthwise") else outputs
        filters = np.arange(step.known[1].size) % count  # the result's channel that each number of the filter is for
        spread = np.broadcast_to(np.arange(count), shape)
        parts.append(grouped(step.known[1].matrix, filters, spread, count, step.room))
    return [union(parts)]


def _transposed(step: Step) -> list[Matrix]:
    """The gradient of a convolution by its input: sizes, filter, cotangents of the result."""
    _require_channels_last(step.op)
    if step.moving != [2]:
        raise NoRule("its filter depends on the sources")
    used, taps, per_group = _filters(step, 1)
    factors = _factors(step.op, step.out, step.known[2].sizes, taps, per_group, used)
    return [_back(step.known[2].matrix, factors, step.room)]


def _pooled(step: Step) -> list[Matrix]:
    _require_channels_last(step.op)
    taps = step.op.get_attr("ksize")[1:-1]
    factors = _factors(step.op, step.known[0].sizes, step.out, taps, 1, None)
    return [_forward(step.known[0].matrix, factors, step.room)]


def _pooled_back(step: Step) -> list[Matrix]:
    """The gradient of pooling: the input or its shape first, cotangents last; nothing else has a derivative."""
    _require_channels_last(step.op)
    last = len(step.known) - 1
    if last not in step.moving:
        return [None]
    taps = step.op.get_attr("ksize")[1:-1]
    factors = _factors(step.op, step.out, step.known[last].sizes, taps, 1, None)
    return [_back(step.known[last].matrix, factors, step.room)]


STENCILS = {
    **dict.fromkeys(["Conv2D", "Conv3D", "DepthwiseConv2dNative"], _convolution),
    **dict.fromkeys(
        ["Conv2DBackpropInput", "Conv3DBackpropInputV2", "DepthwiseConv2dNativeBackpropInput"], _transposed
    ),
    **dict.fromkeys(["AvgPool", "AvgPool3D", "MaxPool", "MaxPool3D"], _pooled),
    **dict.fromkeys(["AvgPoolGrad", "AvgPool3DGrad", "MaxPool3DGrad", "MaxPoolGrad"], _pooled_back),
}
