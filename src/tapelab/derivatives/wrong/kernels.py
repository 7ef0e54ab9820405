"""Kernels of TensorFlow that compute something else than their operation: found in a graph before it runs.

Which they are is in a table, ``graphs/operations/kernels.toml``. Each operation is right elsewhere, so the derivative
is computed there. Who chooses XLA gets what raises no error there, and a note in the plan.
"""

import fnmatch
from collections.abc import Mapping
from typing import Any

from tapelab.derivatives.wrong.gaps import operations_of
from tapelab.graphs.operations import KERNELS, known
from tapelab.graphs.operations.operation import SCATTERING
from tapelab.graphs.program import nodes_of, place
from tapelab.process.tensorflow import tf

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
    reading = [op for op in graph.get_operations() if known(op.type).family != SCATTERING and _may_leave(op)]
    found = [_leaves(_index(op), _sizes(op)) for op in reading]
    return tf.reduce_any(found) if found else None


def unchecked_index(graph: tf.Graph) -> str | None:
    """Say which operation in a loop, branch or function of a graph may have an index out of range that XLA hides.

    In loops the elements of a `tf.TensorArray` are read one after the other: they are not looked at.
    """
    for op in operations_of(graph):
        if op.graph is not graph and op.type != "TensorListGetItem" and _may_leave(op):
            return f"XLA does not see an index out of range in a loop, branch or function, such as in {place(op)}"
    return None


def _index(op: tf.Operation) -> tf.Tensor | None:
    number = known(op.type).at
    return None if number is None else op.inputs[number]


def _may_leave(op: tf.Operation) -> bool:
    """Whether an operation has an index, and it may be out of range, as far as the graph shows."""
    if (index := _index(op)) is None:
        return False
    values, sizes = tf.get_static_value(index), _sizes(op, in_numbers=True)
    if values is None or sizes is None:
        return _is_given(index)
    return bool(np.any(values >= sizes) or (not known(op.type).has("drops") and np.any(values < 0)))


def _sizes(op: tf.Operation, *, in_numbers: bool = False) -> Any:
    """The sizes of the axes that an operation's indices are of: a tensor, in a graph that is being traced.

    Args:
        in_numbers: whether to return numbers, or None where the graph does not show them.
    """
    read = tf.get_static_value if in_numbers else tf.identity
    if op.type == "ScatterNd" or known(op.type).has("drops"):
        return read(op.inputs[2])
    shape = _static_shape(op.inputs[0]) if in_numbers else _shape(op.inputs[0])
    if shape is None or op.type == "TensorListGetItem":
        return shape
    if op.type == "ReverseSequence":
        return shape[op.get_attr("seq_dim")] + 1  # of lengths
    if op.type not in ("GatherV2", "ResourceGather"):
        return shape[: op.inputs[1].shape[-1]]
    axis = read(op.inputs[2]) if op.type == "GatherV2" else 0
    return None if axis is None else shape[axis]


def _static_shape(tensor: tf.Tensor) -> np.ndarray | None:
    is_handle = tensor.dtype in (tf.resource, tf.variant)
    return None if is_handle or not tensor.shape.is_fully_defined() else np.array(tensor.shape)


def _shape(tensor: tf.Tensor) -> tf.Tensor:
    """The shape of a tensor, or of a variable; the length of a list."""
    if tensor.dtype == tf.variant:
        return tf.raw_ops.TensorListLength(input_handle=tensor)
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
