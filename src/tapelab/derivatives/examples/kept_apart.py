"""Which tensors of a graph keep the examples of a batch apart, proved operation by operation.

A tensor *keeps the examples apart* if its elements, row by row, are one block for each example, in order and of one
size, and no block depends on another example's data. That holds for data whose first axis is the batch, and stays so
through a reshape to (batch * time, features). Each operation here either keeps that property, by a rule for its type,
or loses it: what has no rule is never assumed to keep it. What depends on no example at all is *fixed*.
"""

from collections.abc import Callable, Sequence

from tapelab.graphs.program import SHAPES, has_custom_gradient, place
from tapelab.runtime import tf

FIXED, APART, LOST = "fixed", "apart", "lost"

VALUELESS = {*SHAPES, "ZerosLike", "OnesLike"}  # the same whatever the examples hold
_ELEMENTWISE = {
    "Abs", "Acos", "Acosh", "Add", "AddN", "AddV2", "Asin", "Asinh", "Atan", "Atan2", "Atanh", "BiasAdd",
    "BitwiseAnd", "BitwiseOr", "Cast", "Ceil", "CheckNumerics", "ClipByValue", "Cos", "Cosh", "Digamma", "Div",
    "DivNoNan", "Elu", "Equal", "Erf", "Erfc", "Erfinv", "Exp", "Expm1", "Floor", "FloorDiv", "FloorMod", "Greater",
    "GreaterEqual", "Identity", "IdentityN", "Igamma", "Igammac", "Inv", "IsFinite", "IsInf", "IsNan", "LeakyRelu",
    "Less", "LessEqual", "Lgamma", "Log", "Log1p", "LogicalAnd", "LogicalNot", "LogicalOr", "Maximum", "Minimum",
    "Mod", "Mul", "MulNoNan", "Ndtri", "Neg", "NextAfter", "NotEqual", "Pow", "PreventGradient", "RealDiv",
    "Reciprocal", "Relu", "Relu6", "Rint", "Round", "Rsqrt", "Select", "SelectV2", "Selu", "Sigmoid", "Sign", "Sin",
    "Sinh", "Softplus", "Softsign", "Sqrt", "Square", "SquaredDifference", "StopGradient", "Sub", "Tan", "Tanh",
    "TruncateDiv", "TruncateMod", "Xdivy", "Xlog1py", "Xlogy",
}  # fmt: skip
_MOVING = {"Reshape", "ExpandDims", "Squeeze"}  # the elements stay in their order
_REDUCING = {"All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum"}
_ALONG_THE_LAST = {"LogSoftmax", "Softmax", "SparseSoftmaxCrossEntropyWithLogits", "SoftmaxCrossEntropyWithLogits"}
_SPATIAL = {"AvgPool", "Conv2D", "Conv3D", "DepthwiseConv2dNative", "MaxPool"}  # examples first in every format
_TRANSPOSED = {"Conv2DBackpropInput", "Conv3DBackpropInputV2"}  # likewise


class Examples:
    """The states of the tensors of a graph.

    Args:
        batch: how many examples.
        data: tensors whose first axis is the batch.

    Attributes:
        lost: for each tensor that is not proved to keep the examples apart, why: the operation and its line.
    """

    def __init__(self, batch: int, data: Sequence[tf.Tensor]):
        self.batch = batch
        self._apart = {tensor.ref() for tensor in data}
        self.lost: dict = {}

    def state(self, tensor: tf.Tensor) -> str:
        reference = tensor.ref()
        return LOST if reference in self.lost else APART if reference in self._apart else FIXED

    def begin(self, tensor: tf.Tensor) -> None:
        """Take a tensor, in blocks, as data: what the examples are told apart by from here on."""
        self._apart.add(tensor.ref())

    def keeps(self, op: tf.Operation) -> bool:
        """Whether an operation has a rule, and keeps the examples apart by it. Whatever its gradient is."""
        return self._keeps(op, [self.state(tensor) == APART for tensor in op.inputs])

    def in_blocks(self, tensor: tf.Tensor) -> bool:
        """Whether the first axis of a tensor is a whole number of rows for each example."""
        shape = tensor.shape
        return bool(shape.is_fully_defined() and shape.rank and shape[0] and shape[0] % self.batch == 0)

    def follow(self, op: tf.Operation) -> None:
        """Note the states of an operation's outputs; its inputs were noted before."""
        states = [self.state(tensor) for tensor in op.inputs]
        custom = has_custom_gradient(op)
        if (set(states) <= {FIXED} or op.type in VALUELESS) and not custom:
            return
        first = next((self.lost[t.ref()] for t, state in zip(op.inputs, states, strict=True) if state == LOST), None)
        if first is None and not custom and self._keeps(op, [state == APART for state in states]):
            self._apart.update(output.ref() for output in op.outputs)
            return
        reason = first or f"{'a custom gradient in ' if custom else ''}{place(op)}"
        written = [tensor for tensor in op.inputs if tensor.dtype == tf.resource]  # read later, it gives this back
        self.lost.update((tensor.ref(), reason) for tensor in [*op.outputs, *written])

    def _keeps(self, op, apart):
        if any(tensor.dtype == tf.resource for tensor in op.inputs) and op.type != "ResourceGather":
            return False
        if op.type in _MOVING:
            return apart[0] and not any(apart[1:])
        if op.type in _ELEMENTWISE:
            return self._elementwise(op, apart)
        rule = _RULES.get(op.type)
        known = all(self.in_blocks(t) for t, one in zip(op.inputs, apart, strict=True) if one)
        return rule is not None and known and self.in_blocks(op.outputs[0]) and bool(rule(op, apart))

    def _elementwise(self, op, apart):
        """Broadcasting may not reach across the first axis of what varies between examples."""
        shape = op.outputs[0].shape
        varying = [tensor.shape for tensor, one in zip(op.inputs, apart, strict=True) if one]
        if not shape.is_fully_defined() or not all(part.is_fully_defined() for part in varying):
            return False
        if op.type == "Select" and op.inputs[0].shape != shape:
            return False
        if all(part == shape for part in varying):
            return True
        return self.in_blocks(op.outputs[0]) and all(p.rank == shape.rank and p[0] == shape[0] for p in varying)


def _axes(op, index):
    """The axes that an input names, counted from 0; None if they are not known."""
    value = tf.get_static_value(op.inputs[index])
    if value is None:
        return None
    rank = op.inputs[0].shape.rank
    return {int(axis) % rank for axis in value.reshape(-1)} if rank else None


def _not_the_first(index: int) -> Callable:
    def rule(op, apart):
        axes = _axes(op, index)
        return apart[0] and axes is not None and 0 not in axes

    return rule


def _products(op, apart):
    if op.type == "MatMul":
        return apart == [True, False] and not op.get_attr("transpose_a")
    batched = [tensor for tensor, one in zip(op.inputs, apart, strict=True) if one]
    rank = op.outputs[0].shape.rank
    if not all(t.shape.rank == rank and rank >= 3 and t.shape[0] == op.outputs[0].shape[0] for t in batched):
        # (rows, features) times a matrix: the rows are the examples' own.
        return apart == [True, False] and rank == 2 and op.inputs[1].shape.rank == 2 and not op.get_attr("adj_x")
    return True


def _einsum(op, apart):
    inputs, output = op.get_attr("equation").decode().split("->")
    terms = inputs.split(",")
    first = {term[:1] for term, one in zip(terms, apart, strict=True) if one}
    return (
        "." not in inputs and len(first) == 1 and first == {output[:1]} and all(t.count(t[0]) == 1 for t in terms if t)
    )


def _concatenated(op, apart):
    axis = tf.get_static_value(op.inputs[-1])
    return axis is not None and axis % op.outputs[0].shape.rank != 0


def _packed(op, apart):
    return op.get_attr("axis") % op.outputs[0].shape.rank != 0


def _unpacked(op, apart):
    return op.get_attr("axis") % op.inputs[0].shape.rank != 0


def _strided_slice(op, apart):
    """x[:, ...] or x[..., i]: the whole first axis."""
    begin, strides = tf.get_static_value(op.inputs[1]), tf.get_static_value(op.inputs[3])
    if not apart[0] or any(apart[1:]) or begin is None or strides is None or not len(begin):
        return False
    masks = {name: op.get_attr(f"{name}_mask") for name in ("begin", "end", "ellipsis", "new_axis", "shrink_axis")}
    if (masks["new_axis"] | masks["shrink_axis"]) & 1:
        return False
    if masks["ellipsis"] & 1:
        others = len(begin) - 1 - bin(masks["new_axis"]).count("1")
        return others < op.inputs[0].shape.rank
    return bool(masks["begin"] & masks["end"] & 1) and strides[0] == 1


def _split(op, apart):
    axis = tf.get_static_value(op.inputs[0 if op.type == "Split" else 2])
    return axis is not None and axis % op.outputs[0].shape.rank != 0


def _slice(op, apart):
    begin = tf.get_static_value(op.inputs[1])
    return apart[0] and begin is not None and begin[0] == 0 and op.outputs[0].shape[0] == op.inputs[0].shape[0]


def _padded(op, apart):
    paddings = tf.get_static_value(op.inputs[1])
    return apart == [True, *[False] * (len(apart) - 1)] and paddings is not None and not paddings[0].any()


def _transposed(op, apart):
    order = tf.get_static_value(op.inputs[1])
    return apart == [True, False] and order is not None and order[0] == 0


def _gathered(op, apart):
    """A row of a fixed table for each number."""
    if op.type == "ResourceGather":
        return apart == [False, True] and op.get_attr("batch_dims") == 0
    axis = tf.get_static_value(op.inputs[2])
    return apart == [False, True, False] and axis == 0 and op.get_attr("batch_dims") == 0


def _one_hot(op, apart):
    return apart == [True, False, False, False] and op.get_attr("axis") % op.outputs[0].shape.rank != 0


def _along_the_last(op, apart):
    return all(tensor.shape.rank >= 2 for tensor in op.inputs[:1]) and len({t.shape[0] for t in op.inputs}) == 1


def _spatial(op, apart):
    return apart == [True, *[False] * (len(apart) - 1)]


def _tiled(op, apart):
    return apart == [True, False] and op.outputs[0].shape[0] == op.inputs[0].shape[0]


def _inference(op, apart):
    return not op.get_attr("is_training") and _spatial(op, apart)


_RULES = {
    "BatchMatMul": _products,
    "BatchMatMulV2": _products,
    "ConcatV2": _concatenated,
    "Einsum": _einsum,
    "FusedBatchNormV3": _inference,
    "GatherV2": _gathered,
    "MatMul": _products,
    "MirrorPad": _padded,
    "OneHot": _one_hot,
    "Pack": _packed,
    "Pad": _padded,
    "PadV2": _padded,
    "ResourceGather": _gathered,
    "Slice": _slice,
    "Split": _split,
    "SplitV": _split,
    "StridedSlice": _strided_slice,
    "Tile": _tiled,
    "Transpose": _transposed,
    "Unpack": _unpacked,
    **dict.fromkeys(_REDUCING, _not_the_first(1)),
    **dict.fromkeys(_ALONG_THE_LAST, _along_the_last),
    **dict.fromkeys(_SPATIAL, _spatial),
    **dict.fromkeys(_TRANSPOSED, lambda op, apart: apart == [False, False, True]),
}
