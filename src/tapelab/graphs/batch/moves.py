"""Where the examples are after elements have been moved: by the axis, or by moving the number of each one's example.

What acts on each axis alone keeps the examples where it leaves their axis as it is. Anything else is tried: numbers of
examples are moved by the operation itself, and where they come out along one axis, so do the examples.
"""

import math

from tapelab.graphs.batch.states import ROWS
from tapelab.graphs.batch.step import Axes, Step, static_axes
from tapelab.graphs.program import reissue
from tapelab.process.tensorflow import tf

import numpy as np

_LARGEST = 2**22  # elements: more are not moved to try


def moved(step: Step) -> Axes | None:
    """Follow an operation that only moves elements."""
    return _by_axis(step) or _by_numbers(step)


def looked_up(step: Step) -> Axes | None:
    """Follow the lookup of elements of a table by numbers."""
    kind, axes = step.op.type, step.along
    if step.in_rows:
        return None
    if kind == "OneHot":
        place = step.op.get_attr("axis") % len(step.out)
        return [axes[0] + (place <= axes[0])] if step.moving == [0] else None
    if kind in ("GatherNd", "ResourceGatherNd"):
        if step.moving == [1]:
            return [axes[1]] if axes[1] < len(step.shape(1)) - 1 else None
        return _by_numbers(step)
    batch = step.op.get_attr("batch_dims") if "batch_dims" in step.op.node_def.attr else 0
    named = static_axes(step.op, 2) if kind == "GatherV2" else {0}
    if named is None or batch < 0:
        return None
    (chosen,) = named
    if step.moving == [1]:
        return [axes[1] + (chosen - batch if axes[1] >= batch else 0)]
    if step.moving == [0] and axes[0] != chosen:
        return [axes[0] + (step.op.inputs[1].shape.rank - batch - 1 if axes[0] > chosen else 0)]
    if len(step.moving) == 2 and axes[0] == axes[1] < batch:
        return [axes[0]]
    return _by_numbers(step)


def in_order(shape: tuple[int, ...], axis: int, new: tuple[int, ...], batch: int) -> int | None:
    """Return the axis of the examples in a tensor of a new shape with the same elements in their order; None if none.

    Before the axis are as many elements as before, and the axis is a whole number of rows for each example.
    """
    before = 1 if axis == ROWS else math.prod(shape[:axis])
    for place, size in enumerate(new):
        if math.prod(new[:place]) == before and size and size % batch == 0:
            return place
    return ROWS if before == 1 and 0 not in new else None


def _by_axis(step: Step) -> Axes | None:
    kind = step.op.type
    if kind in ("Reshape", "ExpandDims", "Squeeze"):
        place = in_order(step.shape(0), step.along[0], step.out, step.batch) if step.moving == [0] else None
        return None if place is None else [place]
    rule = _RULES.get(kind)
    return None if rule is None or step.in_rows else rule(step)


def _constant(step: Step, index: int) -> np.ndarray | None:
    return tf.get_static_value(step.op.inputs[index])


def _transposed(step: Step) -> Axes | None:
    order = _constant(step, 1)
    return None if order is None or step.moving != [0] else [list(order).index(step.along[0])]


def _broadcast(step: Step) -> Axes | None:
    if step.moving != [0]:
        return None
    axis, shape, out = step.along[0], step.shape(0), step.out
    place = axis + len(out) - len(shape)
    return [place] if out[place] == shape[axis] else None


def _as_it_is(step: Step) -> Axes | None:
    """Slices, paddings, tiles: each axis alone."""
    if step.moving != [0]:
        return None
    axis = step.along[0]
    if step.out[axis] != step.shape(0)[axis]:
        return None
    if step.op.type == "Slice":
        begin = _constant(step, 1)
        return [axis] if begin is not None and begin[axis] == 0 else None
    if step.op.type in ("Pad", "PadV2", "MirrorPad"):
        paddings = _constant(step, 1)
        return [axis] if paddings is not None and not paddings[axis].any() else None
    return [axis]


def _elsewhere(step: Step) -> Axes | None:
    """What moves elements along other axes."""
    others = static_axes(step.op, 2 if step.op.type == "Roll" else 1)
    return [step.axes[0]] if step.moving == [0] and others is not None and step.axes[0] not in others else None


def _split(step: Step) -> Axes | None:
    index, at = (1, 0) if step.op.type == "Split" else (0, 2)
    axis = _constant(step, at)
    if step.moving != [index] or axis is None or int(axis) % len(step.shape(index)) == step.axes[index]:
        return None
    return [step.axes[index]] * len(step.op.outputs)


def _unpacked(step: Step) -> Axes | None:
    axis, gone = step.along[0], step.op.get_attr("axis") % len(step.shape(0))
    return None if axis == gone else [axis - (gone < axis)] * len(step.op.outputs)


def _packed(step: Step) -> Axes | None:
    new = step.op.get_attr("axis") % len(step.out)
    (axis, *others) = set(step.along.values())
    return None if others else [axis + (new <= axis)]


def _concatenated(step: Step) -> Axes | None:
    joined = _constant(step, -1)
    (axis, *others) = set(step.along.values())
    return None if others or joined is None or int(joined) % len(step.out) == axis else [axis]


def _strided(step: Step) -> Axes | None:
    """Follow the axis through the specification of a slice: x[:, ..., i], with new and dropped axes."""
    begin, end, strides = (_constant(step, i) for i in (1, 2, 3))
    if step.moving != [0] or strides is None:
        return None
    masks = {name: step.op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    marked = [{name for name, mask in masks.items() if mask >> i & 1} for i in range(len(strides))]
    named = sum(not marks & {"ellipsis", "new_axis"} for marks in marked)
    left, place, shape, axis = 0, 0, step.shape(0), step.along[0]
    for i, marks in enumerate(marked):
        if "ellipsis" in marks:
            count = len(shape) - named
            if left <= axis < left + count:
                return [place + axis - left]
            left, place = left + count, place + count
        elif "new_axis" in marks:
            place += 1
        elif left == axis:
            starts = "begin" in marks or (begin is not None and begin[i] == 0)
            ends = "end" in marks or (end is not None and end[i] >= shape[left])
            whole = starts and ends and strides[i] == 1 and "shrink_axis" not in marks
            return [place] if whole else None
        else:
            left, place = left + 1, place + ("shrink_axis" not in marks)
    return [place + axis - left]


_RULES = {
    "BroadcastTo": _broadcast,
    "ConcatV2": _concatenated,
    "MirrorPad": _as_it_is,
    "Pack": _packed,
    "Pad": _as_it_is,
    "PadV2": _as_it_is,
    "ReverseV2": _elsewhere,
    "Roll": _elsewhere,
    "Slice": _as_it_is,
    "Split": _split,
    "SplitV": _split,
    "StridedSlice": _strided,
    "Tile": _as_it_is,
    "Transpose": _transposed,
    "Unpack": _unpacked,
}


def _by_numbers(step: Step) -> Axes | None:
    """Move the number of each element's example, from 1; 0 stands for what is fixed, which may be anywhere."""
    sizes = [tensor.shape.num_elements() for tensor in (*step.op.inputs, *step.op.outputs)]
    if None in sizes or max(sizes) > _LARGEST:
        return None
    inputs = []
    for index, tensor in enumerate(step.op.inputs):
        if (axis := step.axes[index]) is not None:
            inputs.append(_numbers(step.shape(index), axis, step.batch))
        elif tensor.dtype.is_floating or tensor.dtype.is_complex:
            inputs.append(np.zeros(step.shape(index), np.int32))
        else:
            inputs.append(tf.get_static_value(tensor))
    if any(part is None for part in inputs):
        return None
    try:
        with tf.init_scope(), tf.device("CPU:0"):
            outputs = [output.numpy() for output in reissue(step.op, [tf.constant(part) for part in inputs])]
    except (tf.errors.OpError, LookupError, TypeError, ValueError):  # no kernel for whole numbers, or none to call
        return None
    found = [_axis_of(output, step.batch) for output in outputs]
    return None if None in found else found


def _numbers(shape: tuple[int, ...], axis: int, batch: int) -> np.ndarray:
    if axis == ROWS:
        return np.repeat(np.arange(1, batch + 1, dtype=np.int32), math.prod(shape) // batch).reshape(shape)
    numbers = np.repeat(np.arange(1, batch + 1, dtype=np.int32), shape[axis] // batch)
    return np.broadcast_to(numbers.reshape([-1, *[1] * (len(shape) - axis - 1)]), shape)


def _axis_of(numbers: np.ndarray, batch: int) -> int | None:
    for axis in [*range(numbers.ndim), ROWS]:
        size = numbers.size if axis == ROWS else numbers.shape[axis]
        if size and size % batch == 0:
            wanted = _numbers(numbers.shape, axis, batch)
            if ((numbers == wanted) | (numbers == 0)).all():
                return axis
    return None
