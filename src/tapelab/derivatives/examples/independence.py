"""Whether the examples of a batch depend on each other: proved from the graph, or else compared at every call.

The proof follows the batch axis through the graph: of each tensor that depends on the sources it knows along which axis
the examples lie, one after the other and each in as many rows as all others. Where an operation does not keep them so,
or is not known, there is no proof, which is not yet a coupling.
"""

from collections.abc import Sequence

from tapelab.derivatives.first_order import linearized
from tapelab.derivatives.machinery.errors import CoupledExamplesError
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.operators.taylor_mode.elementwise import BY_GRADIENT, PIECEWISE, POWERS, TABLES
from tapelab.graphs.program import CALLS, SHAPES, function_body, reissue
from tapelab.runtime import tf

import numpy as np
from ml_dtypes import finfo

_LARGEST = 2**22  # elements: beyond, moving operations are not followed

ELEMENTWISE = {*TABLES, *BY_GRADIENT, *PIECEWISE, *POWERS} | {
    "Add", "AddN", "AddV2", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Div", "EnsureShape", "Equal", "Floor",
    "Greater", "GreaterEqual", "Identity", "IsFinite", "IsInf", "IsNan", "Less", "LessEqual", "LogicalAnd",
    "LogicalNot", "LogicalOr", "Maximum", "Minimum", "Mul", "Neg", "NotEqual", "OnesLike", "Pow", "PreventGradient",
    "RealDiv", "Rint", "Round", "SelectV2", "Sign", "Snapshot", "SquaredDifference", "StopGradient", "Sub",
    "ZerosLike",
}  # fmt: skip
# What only moves elements: followed by moving the examples' numbers.
_MOVING = {
    "BroadcastTo", "DepthToSpace", "ExpandDims", "GatherNd", "GatherV2", "Reshape", "ReverseV2", "Roll", "Slice",
    "SpaceToDepth", "Split", "SplitV", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unpack",
}  # fmt: skip
_REDUCING = {"All", "Any", "Max", "Mean", "Min", "Prod", "Sum"}
_FIRST = {"AvgPool", "AvgPool3D", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "FusedBatchNormV3", "MaxPool"}


class Unproven(Exception):
    """What is to be proved of a function does not follow from its graph."""


def coupling(problem: Problem, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """Return nothing if examples are proved independent; else by how much each differs, for `require_independent`.

    If the rows of the Jacobian J of an example have no entries for other examples, then J(a ∘ t) = a ∘ Jt for tangents
    t and a number a for each example; random ones are taken.
    """
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    if problem.source_shapes[0][0] <= 1 or _proved(problem, specs):
        return []
    (_, _, outputs), push = linearized(problem, tensors, persistent=True)
    batch = problem.source_shapes[0][0]
    generator = np.random.default_rng(0)
    factors = generator.uniform(0.5, 2.0, batch)
    tangents = [generator.standard_normal(shape) for shape in problem.source_shapes]

    def pushed(scale):
        scaled = [(t.T * scale).T for t in tangents]
        return push([tf.constant(t, dtype) for t, dtype in zip(scaled, problem.source_dtypes, strict=True)])

    found = []
    for plain, whole, output in zip(pushed(np.ones(batch)), pushed(factors), outputs, strict=True):
        plain, whole = (tf.reshape(tf.cast(part, tf.float64), [batch, -1]) for part in (plain, whole))
        own = plain * factors[:, None]
        largest = tf.reduce_max(tf.abs(own), axis=1)
        # Where everything cancels, products are rounding error of about this size.
        floor = tf.reduce_max(tf.abs(tf.cast(output, tf.float64))) + tf.reduce_max(largest)
        scale = largest + min(100 * _tolerance(problem), 0.1) * floor + np.finfo(np.float64).tiny
        found.append(tf.reduce_max(tf.abs(whole - own), axis=1) / scale)
    return [tf.reduce_max(tf.stack(found), axis=0)]


def require_proved_if_changing(problem: Problem) -> None:
    """Raise CoupledExamplesError if `coupling` would evaluate a function again that changes something each time."""
    data = [tf.TensorSpec(*pair) for pair in zip(problem.data_shapes, problem.data_dtypes, strict=True)]
    specs = [*problem.source_specs[: problem.data_start], *data]
    if problem.changes and problem.source_shapes[0][0] > 1 and not _proved(problem, specs):
        raise CoupledExamplesError(
            f"{problem.name}: whether an example depends on other examples is not clear from the function's graph, and "
            "to compare them, what it changes would be changed twice in a call: a variable, a generator of random "
            "numbers, an iterator. Look for batch normalisation in training mode; take what changes out of the "
            "function, or use check_independence=False"
        )


def require_independent(problem: Problem, found: Sequence[tf.Tensor]) -> None:
    """Raise CoupledExamplesError if `coupling` found one."""
    if not tf.executing_eagerly():
        raise RuntimeError(
            f"{problem.name}: whether examples are independent is not clear from the function's graph, and the check "
            "reads values, which a tf.function does not have. Call it outside once, then use check_independence=False "
            "inside"
        )
    relative = found[0].numpy()
    coupled = np.flatnonzero(relative > _tolerance(problem))  # NaN says nothing
    if coupled.size:
        first = coupled[0]
        raise CoupledExamplesError(
            f"{problem.name}: example {first} depends on other examples (coupled examples: {coupled.size} of "
            f"{relative.size}): a product with the Jacobian of the whole batch differs from its own by "
            f"{relative[first]:.2g} of its size, and rounding explains {_tolerance(problem):.1g}. Look for batch "
            "normalisation in training mode, or a mean or attention over the batch axis; use batched=False for a sum "
            "over the whole batch"
        )


def _tolerance(problem):
    dtypes = {*problem.source_dtypes, *problem.output_dtypes}
    return max(float(finfo(dtype.as_numpy_dtype).eps) for dtype in dtypes) ** 0.5


def _proved(problem, specs):
    batch = problem.source_shapes[0][0]
    try:
        traced = tf.function(lambda *own: problem.evaluate(own), autograph=False).get_concrete_function(*specs)
        inputs = [0] * problem.data_start + [None] * (len(traced.graph.inputs) - problem.data_start)
        axes = walk(traced.graph, inputs, batch)
        return all(
            axis is None or (axis == 0 and output.shape[0] == batch)
            for axis, output in zip(axes, traced.graph.outputs, strict=True)
        )
    except Exception:  # not traceable, or an operation that is not followed
        return False


def walk(graph: tf.Graph, inputs: Sequence[int | None], batch: int, known: dict | None = None) -> list[int | None]:
    """Follow the batch axis through a graph, from its inputs to its outputs.

    Args:
        inputs: the axis of each input; None where it does not depend on the sources.
        batch: how many examples.
        known: a dictionary to note all tensors in, also of the functions that the graph calls, as `Tensor.ref` → axis.

    Returns:
        The same for each output.

    Raises:
        Unproven, or what an operation raises, where the examples are not kept apart, or that is not known.
    """
    axes = {tensor.ref(): axis for tensor, axis in zip(graph.inputs, inputs, strict=True)}
    leading = _leading_to(graph.outputs) if known is None else set(graph.get_operations())
    for op in graph.get_operations():
        if op.type == "Placeholder" or op not in leading:
            continue
        own = [axes[tensor.ref()] for tensor in op.inputs]
        if op.type in CALLS:
            found = walk(function_body(graph, op.get_attr("f").name), own, batch, known)[: len(op.outputs)]
        elif op.type in SHAPES or all(axis is None for axis in own):
            found = [None] * len(op.outputs)
        else:
            found = _follow(op, own, batch)
        for tensor, axis in zip(op.outputs, found, strict=True):
            axes[tensor.ref()] = axis
    if known is not None:
        if any(known.get(tensor, axis) != axis for tensor, axis in axes.items()):
            raise Unproven("a function is called in two ways")
        known.update(axes)
    return [axes[tensor.ref()] for tensor in graph.outputs]


def _leading_to(tensors):
    """The operations that tensors are computed from: what else there is, such as a metric, has no derivative."""
    found, left = set(), [tensor.op for tensor in tensors]
    while left:
        op = left.pop()
        if op not in found:
            found.add(op)
            left.extend(tensor.op for tensor in op.inputs)
    return found


def _follow(op, own, batch):
    shapes = [tuple(tensor.shape) for tensor in op.inputs]
    moving = [i for i, axis in enumerate(own) if axis is not None]
    if op.type == "IdentityN":
        return own
    if op.type in ELEMENTWISE or (op.type == "BiasAdd" and moving == [0]):
        return [_aligned(op, own, shapes, moving)]
    if op.type in _MOVING and moving == [int(op.type == "Split")]:
        return _moved(op, moving[0], own[moving[0]], shapes[moving[0]], batch)
    if op.type in _REDUCING and moving == [0]:
        rank = len(shapes[0])
        gone = {int(axis) % rank for axis in np.ravel(tf.get_static_value(op.inputs[1]))}
        if own[0] not in gone:
            return [own[0] if op.get_attr("keep_dims") else own[0] - sum(axis < own[0] for axis in gone)]
    if op.type in ("Softmax", "LogSoftmax") and own[0] != len(shapes[0]) - 1:
        return own
    if op.type in _FIRST and moving == [0] and own[0] == 0:
        if op.type != "FusedBatchNormV3":
            return [0]
        if not op.get_attr("is_training"):
            return [0, None, None, None, None, None]
    if op.type in ("ConcatV2", "Pack"):
        axis = int(tf.get_static_value(op.inputs[-1])) if op.type == "ConcatV2" else op.get_attr("axis")
        axis %= op.outputs[0].shape.rank
        (at,) = {own[i] for i in moving}
        if op.type == "Pack":
            return [at + (axis <= at)]
        if axis != at:
            return [at]
    if op.type in ("MatMul", "BatchMatMulV2"):
        return [_through_product(op, own, shapes, moving)]
    if op.type == "Einsum" and b"." not in op.get_attr("equation"):
        terms, out = op.get_attr("equation").decode().split("->")
        (letter,) = {terms.split(",")[i][own[i]] for i in moving}
        return [out.index(letter)]
    raise Unproven(op.type)


def _aligned(op, own, shapes, moving):
    rank = op.outputs[0].shape.rank
    (axis,) = {own[i] + rank - len(shapes[i]) for i in moving}
    (size,) = {shapes[i][own[i]] for i in moving}
    if op.outputs[0].shape[axis] != size:
        raise Unproven(op.type)
    return axis


def _through_product(op, own, shapes, moving):
    plain = op.type == "MatMul"
    names = ("transpose_a", "transpose_b") if plain else ("adj_x", "adj_y")
    rank = op.outputs[0].shape.rank
    found = set()
    for i in moving:
        own_rank = len(shapes[i])
        kept = (own_rank - 2) if (i == 0) != bool(op.get_attr(names[i])) else own_rank - 1
        if own[i] == kept and len(moving) == 1:
            found.add(rank - 2 if i == 0 else rank - 1)
        elif own[i] < own_rank - 2:
            axis = own[i] + rank - own_rank
            if op.outputs[0].shape[axis] != shapes[i][own[i]]:
                raise Unproven(op.type)
            found.add(axis)
        else:
            raise Unproven(op.type)
    (axis,) = found
    return axis


def _moved(op, which, axis, shape, batch):
    """Move the number of each element's example, and see where they are."""
    if np.prod(shape) > _LARGEST:
        raise Unproven(op.type)
    numbers = np.repeat(np.arange(batch, dtype=np.int32), shape[axis] // batch)
    numbers = np.broadcast_to(numbers.reshape([-1, *[1] * (len(shape) - axis - 1)]), shape)
    inputs = [tf.get_static_value(tensor) for tensor in op.inputs]
    inputs[which] = numbers
    with tf.init_scope():
        outputs = [output.numpy() for output in reissue(op, [tf.constant(part) for part in inputs])]
    return [_axis_of(output, batch) for output in outputs]


def _axis_of(numbers, batch):
    for axis, size in enumerate(numbers.shape):
        if size and size % batch == 0:
            wanted = np.repeat(np.arange(batch), size // batch).reshape([-1, *[1] * (numbers.ndim - axis - 1)])
            if (numbers == wanted).all():
                return axis
    raise Unproven("the examples are not along one axis")
