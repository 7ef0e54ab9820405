"""Where the examples of a batch lie in an operation's results, from where they lie in its inputs: by family.

A rule takes a `Step` and returns for each output the axis of the examples, `ROWS`, or None where it does not depend on
them; or None for all if the examples do not stay apart, as far as it knows.
"""

from collections.abc import Callable

from tapelab.graphs.batch import moves
from tapelab.graphs.batch.states import ROWS
from tapelab.graphs.batch.step import Axes, Step, static_axes
from tapelab.graphs.operations import known, operation
from tapelab.process.tensorflow import tf


def axes_of(op: tf.Operation, axes: list[int | None], batch: int) -> list[int | None] | None:
    """Return the axis of the examples in each output of an operation; None if they are not proved to stay apart.

    Args:
        axes: of each input the axis, `ROWS`, or None where it is fixed; one at least is not.
        batch: how many examples.
    """
    family = known(op.type).family
    step = Step(op, axes, batch)
    if family != operation.LIST and any(op.inputs[i].dtype == tf.variant for i in step.moving):
        return axes if op.type in ("Identity", "IdentityN") else None
    rule = _RULES.get(family)
    if rule is None or not (family == operation.LIST or step.is_defined):
        return None
    return rule(step)


def _elementwise(step: Step) -> Axes | None:
    op, out = step.op, step.out
    if op.type == "IdentityN":
        return step.axes
    if op.type == "BiasAdd":
        return [step.axes[0]] if step.moving == [0] else None
    if op.type == "Select" and step.shape(0) != out:
        return None
    if step.in_rows:
        same = all(axis == ROWS and step.shape(i) == out for i, axis in step.along.items())
        return [ROWS] if same else None
    places = {axis + len(out) - len(step.shape(i)) for i, axis in step.along.items()}
    sizes = {step.shape(i)[axis] for i, axis in step.along.items()}
    if step.batch == 1 and out:
        return [0]
    (place, *others) = places
    return None if others or sizes != {out[place]} else [place]


def _reduced(step: Step) -> Axes | None:
    gone = static_axes(step.op, 1) if len(step.op.inputs) > 1 else None
    if step.moving != [0] or step.in_rows or gone is None or step.axes[0] in gone:
        return None
    own, keeps = step.along[0], "keep_dims" in step.op.node_def.attr and step.op.get_attr("keep_dims")
    return [own if keeps else own - sum(axis < own for axis in gone)]


def _scanned(step: Step) -> Axes | None:
    axes = static_axes(step.op, 1)
    return None if step.moving != [0] or step.in_rows or axes is None or step.axes[0] in axes else [step.axes[0]]


def _block(step: Step) -> Axes | None:
    """The batch axes come first, and stay."""
    count = known(step.op.type).axes
    rank = max(len(step.shape(i)) for i in range(len(step.op.inputs)))
    (axis, *others) = set(step.along.values())
    if others or step.in_rows or axis >= rank - count:
        return None
    if any(len(step.shape(i)) not in (rank, rank - count) for i in step.moving):
        return None
    (size, *others) = {step.shape(i)[axis] for i in step.moving}
    shapes = [output.shape for output in step.op.outputs]
    empty = [shape.num_elements() == 0 for shape in shapes]  # vectors that nobody asked for
    for shape, none in zip(shapes, empty, strict=True):
        if others or not (none or (shape.rank is not None and shape.rank > axis and shape[axis] == size)):
            return None
    return [None if none else axis for none in empty]


def _product(step: Step) -> Axes | None:
    if step.in_rows:
        return None
    if step.op.type == "Einsum":
        return _einsum(step)
    return _matrices(step) if len(step.op.inputs) == 2 else None


def _einsum(step: Step) -> Axes | None:
    equation = step.op.get_attr("equation").decode()
    if "." in equation:
        return None
    terms, out = equation.split("->")
    (letter, *others) = {terms.split(",")[i][axis] for i, axis in step.along.items()}
    return None if others or letter not in out else [out.index(letter)]


def _matrices(step: Step) -> Axes | None:
    op, out, found = step.op, step.out, set()
    transposed = [op.get_attr(name) for name in known(op.type).transposed_by]
    for i, axis in step.along.items():
        shape = step.shape(i)
        rank = len(shape)
        kept = rank - 2 if (i == 0) != transposed[i] else rank - 1
        place = axis + len(out) - rank
        if axis == kept and len(step.moving) == 1:
            found.add(len(out) - 2 if i == 0 else len(out) - 1)
        elif axis < rank - 2 and out[place] == shape[axis]:
            found.add(place)
        else:
            return None
    return list(found) if len(found) == 1 else None


def _stencil(step: Step) -> Axes | None:
    op = step.op
    names = [argument.name for argument in op.op_def.input_arg]
    if any(names[i] not in known(op.type).examples or axis != 0 for i, axis in step.along.items()):
        return None
    if op.type.startswith("FusedBatchNorm"):
        return None if op.get_attr("is_training") else [0, *[None] * (len(op.outputs) - 1)]
    return [0] * len(op.outputs) if all(step.shape(i)[0] == step.out[0] for i in step.moving) else None


def _scattered(step: Step) -> Axes | None:
    """Sums over rows with one number, the examples along another axis."""
    op = step.op
    if "Segment" not in op.type or step.moving != [0] or step.in_rows:
        return None
    depth, axis = op.inputs[1].shape.rank, step.along[0]
    return None if depth is None or axis < depth else [axis - depth + 1]


def _listed(step: Step) -> Axes | None:
    """Of a list, the axis is that in each of its items."""
    op, axes = step.op, step.axes
    found = {axis for axis in axes if axis is not None}
    (axis, *others) = found
    if op.type in ("TensorListSetItem", "TensorListPushBack"):
        fits = op.type == "TensorListPushBack" or axes[1] is None
        return [axis] if fits and not others else None
    if step.moving != [0] or (op.inputs[0].dtype != tf.variant and op.type != "TensorListFromTensor"):
        return None
    if op.type == "TensorListFromTensor":
        return [axis - 1] if axis > 0 else None
    if op.type == "TensorListStack":
        return [axis + 1] if axis != ROWS else None
    if op.type == "TensorListLength":
        return [None]
    return [axis] * len(op.outputs) if op.type in ("TensorListGetItem", "TensorListPopBack") else None


_RULES: dict[str, Callable[[Step], Axes | None]] = {
    operation.BLOCK: _block,
    operation.ELEMENTWISE: _elementwise,
    operation.LIST: _listed,
    operation.LOOKUP: moves.looked_up,
    operation.MOVING: moves.moved,
    operation.PRODUCT: _product,
    operation.REDUCING: _reduced,
    operation.SCANNING: _scanned,
    operation.SCATTERING: _scattered,
    operation.STENCIL: _stencil,
}
