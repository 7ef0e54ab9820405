"""Kernels of TensorFlow that compute something else than their operation: found in a graph before it runs.

Which they are is in a table, ``graphs/operations/kernels.toml``. Each operation is right elsewhere, so the derivative
is computed there. Who chooses XLA gets what raises no error there, and a note in the plan.
"""

import fnmatch
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tapelab.derivatives.wrong.gaps import operations_within
from tapelab.graphs.operations import KERNELS, known
from tapelab.graphs.operations.operation import SCATTERING
from tapelab.graphs.program import CALLS, LOOPS, function_body, in_order, nodes_of, place
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

_IN_RANGE = {"ArgMax", "ArgMin", "Range", "Shape", "TopKV2"}  # what these give is taken for a right index


class WrongKernelError(NotImplementedError):
    """A graph would compute something else than what it says; another way of computing it would not."""


def require_right(graph: tf.Graph, xla: bool) -> None:
    """Raise `WrongKernelError` if a graph, or a function that it calls, meets a kernel that is known to be wrong.

    Args:
        graph: what is about to run.
        xla: whether XLA compiles it.
    """
    if why := _met(graph, "xla" if xla else "graph"):
        raise WrongKernelError(why)


def blind_to_faults(graph: tf.Graph) -> str | None:
    """Say which operation of a graph XLA computes without a word where TensorFlow raises; None if there is none."""
    return _met(graph, "noted")


def out_of_range(graph: tf.Graph) -> tf.Tensor | None:
    """Return whether an index is out of range, in a graph that is being traced; None if none can be.

    There TensorFlow raises on a CPU, and XLA takes the nearest index. What writes at an index is passed over: its
    gradient reads there. Loops, branches and functions that the graph calls are not looked into: see `unchecked_index`.
    """
    reading = [op for op in graph.get_operations() if not _writes(op) and _may_leave(op)]
    found = [_leaves(_index(op), _sizes(op)) for op in reading]
    return tf.reduce_any(found) if found else None


def unchecked_index(graph: tf.Graph, ends: Tensors) -> str | None:
    """Say which operation in a loop, branch or function of a graph may have an index out of range that XLA hides.

    Args:
        ends: the results: what else the graph has, such as their gradients, is not looked at.
    """
    for op, callers in operations_within(in_order(graph, ends)):
        if any(caller.node_def.attr["_XlaMustCompile"].b for caller in callers):
            continue  # in what the learner compiles with XLA, another way sees no more
        if callers and _may_leave(op, callers) and not _stays_in_its_list(op, callers):
            return f"XLA does not see an index out of range in a loop, branch or function, such as in {place(op)}"
    return None


def _index(op: tf.Operation) -> tf.Tensor | None:
    number = known(op.type).at
    return None if number is None else op.inputs[number]


def _writes(op: tf.Operation) -> bool:
    return known(op.type).family == SCATTERING or op.type == "TensorListSetItem"


def _may_leave(op: tf.Operation, callers: Sequence[tf.Operation] = ()) -> bool:
    """Whether an operation has an index, and it may be out of range, as far as the graph shows."""
    if (index := _index(op)) is None:
        return False
    values, sizes = tf.get_static_value(index), _sizes(op, callers)
    if values is None or sizes is None:
        return _is_given(index)
    return bool(np.any(values >= sizes) or (not known(op.type).has("drops") and np.any(values < 0)))


def _stays_in_its_list(op: tf.Operation, callers: Sequence[tf.Operation]) -> bool:
    """Whether an element of a list has the number of a loop's turn, and the list is as long as the loop, as is shown.

    So the elements of a `tf.TensorArray` are read and written in recurrent layers, `tf.map_fn` and `tf.scan`.
    """
    body, loop = op.graph, callers[-1]
    if not op.type.startswith("TensorList") or loop.type not in LOOPS or len(body.outputs) != len(loop.inputs):
        return False
    turn = op.inputs[1]
    number = _number(turn)
    if number is None:
        return False
    start, length = _value(loop.inputs[number], callers[:-1]), _length(op.inputs[0], callers)
    step = _origin(body.outputs[number]).op
    if start is None or start < 0 or length is None or step.type not in ("Add", "AddV2"):
        return False
    steps = [tf.get_static_value(tensor) for tensor in step.inputs if _number(tensor) != number]
    if len(steps) != 1 or steps[0] is None or steps[0] < 0:
        return False
    return any(limit is not None and limit <= length for limit in _limits(callers, number))


def _limits(callers: Sequence[tf.Operation], number: int) -> Iterator[np.ndarray | None]:
    """What a variable of the innermost loop is less than in each turn, None where it is not known."""
    loop = callers[-1]
    left = [function_body(loop.graph, loop.get_attr("cond").name).outputs[0]]
    while left:
        test = _origin(left.pop()).op
        if test.type == "LogicalAnd":
            left += test.inputs
        elif test.type == "Less" and _number(test.inputs[0]) == number:
            limit = _number(test.inputs[1])
            fixed = (
                limit is not None
                and _number(function_body(loop.graph, loop.get_attr("body").name).outputs[limit]) == limit
            )
            yield _value(loop.inputs[limit], callers[:-1]) if fixed else tf.get_static_value(test.inputs[1])


def _number(tensor: tf.Tensor) -> int | None:
    """Which argument of a function a tensor is, of the function that it is in; None if it is none."""
    arguments = [argument.ref() for argument in tensor.graph.inputs]
    found = _origin(tensor).ref()
    return arguments.index(found) if found in arguments else None


def _origin(tensor: tf.Tensor) -> tf.Tensor:
    """What a tensor is a copy of, and of a list the one of the same length that elements were written to."""
    while tensor.op.type in ("Identity", "TensorListSetItem"):
        tensor = tensor.op.inputs[0]
    return tensor


def _value(tensor: tf.Tensor, callers: Sequence[tf.Operation]) -> np.ndarray | None:
    """The value of a tensor, where the graph shows it, or the graphs that call its function."""
    return tf.get_static_value(_passed(tensor, callers, CALLS))


def _length(items: tf.Tensor, callers: Sequence[tf.Operation]) -> int | np.ndarray | None:
    """How many elements a list has, likewise."""
    made = _passed(items, callers, CALLS | LOOPS).op
    if made.type == "TensorListReserve":
        return tf.get_static_value(made.inputs[1])
    return made.inputs[0].shape[0] if made.type == "TensorListFromTensor" else None


def _passed(tensor: tf.Tensor, callers: Sequence[tf.Operation], through: frozenset[str]) -> tf.Tensor:
    """What was passed to a function, and to the one that calls it, for a tensor: by calls of these types."""
    for caller in reversed(callers):
        number = _number(tensor)
        if number is None or caller.type not in through:
            break
        tensor = caller.inputs[number]
    return _origin(tensor)


def _sizes(op: tf.Operation, callers: Sequence[tf.Operation] | None = None) -> Any:
    """The sizes of the axes that an operation's indices are of: a tensor, in a graph that is being traced.

    Args:
        callers: those that call its function, for numbers in place of a tensor: None where the graphs do not show them.
    """
    items, in_numbers = op.inputs[0], callers is not None
    read = tf.get_static_value if in_numbers else tf.identity
    if op.type == "ScatterNd" or known(op.type).has("drops"):
        return read(op.inputs[2])
    if op.type.startswith("TensorList"):
        return tf.raw_ops.TensorListLength(input_handle=items) if callers is None else _length(items, callers)
    shape = _static_shape(items) if in_numbers else _shape(items)
    if shape is None:
        return None
    if op.type == "ReverseSequence":
        return shape[op.get_attr("seq_dim")] + 1  # of lengths
    if op.type not in ("GatherV2", "ResourceGather"):
        return shape[: op.inputs[1].shape[-1]]
    axis = read(op.inputs[2]) if op.type == "GatherV2" else 0
    return None if axis is None else shape[axis]


def _static_shape(tensor: tf.Tensor) -> np.ndarray | None:
    is_known = tensor.dtype != tf.resource and tensor.shape.is_fully_defined()
    return np.array(tensor.shape) if is_known else None


def _shape(tensor: tf.Tensor) -> tf.Tensor:
    """The shape of a tensor, or of a variable."""
    return tf.raw_ops.VariableShape(input=tensor) if tensor.dtype == tf.resource else tf.shape(tensor)


def _leaves(index: tf.Tensor, sizes: tf.Tensor) -> tf.Tensor:
    return tf.reduce_any((index < 0) | (index >= tf.cast(sizes, index.dtype)))


def _is_given(index: tf.Tensor) -> bool:
    """Whether an index is a constant, or computed from something that comes from outside of the graph."""
    if tf.get_static_value(index) is not None:
        return True
    left, seen = [index], set()
    while left:
        op = left.pop().op
        if op.type == "Placeholder":
            return True
        if op not in seen and op.type not in _IN_RANGE:
            seen.add(op)
            left += op.inputs
    return False


def _met(graph: tf.Graph, on: str) -> str | None:
    """What is wrong with the first kernel of a graph that is."""
    rows = [row for row in KERNELS if row.on == on]
    for nodes in nodes_of(graph.as_graph_def()):
        for node in nodes:
            for row in rows:
                if any(fnmatch.fnmatchcase(node.op, name) for name in row.operations) and (
                    (not row.numbers or tf.as_dtype(node.attr["T"].type).name in row.numbers)
                    and (not row.strides_of_1 or _as_large_as_its_input(node.attr))
                ):
                    return row.why.format(op=node.op)
    return None


def _as_large_as_its_input(attributes: Mapping[str, tf.compat.v1.AttrValue]) -> bool:
    """Whether a pooling's result has the shape of its input, or may have: V2 takes the strides as a tensor."""
    strides, sizes = (set(attributes[name].list.i) for name in ("strides", "ksize"))
    return strides <= {1} and (attributes["padding"].s == b"SAME" or sizes <= {1})
