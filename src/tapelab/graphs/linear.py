"""In which inputs the results of an operation of a graph are linear."""

from collections.abc import Sequence

from tapelab.graphs.operations import known
from tapelab.graphs.operations.operation import EACH, FIRST, JOINTLY, LAST
from tapelab.process.tensorflow import tf


def is_linear(op: tf.Operation, inputs: Sequence[int]) -> bool:
    """Whether results are linear in these inputs together, but for what is added, while all others are fixed.

    Args:
        inputs: their numbers, rising.
    """
    if not all(tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in op.outputs):
        return False
    if op.type != "Cast" and any(op.inputs[index].dtype.is_integer for index in inputs):
        return False  # a number that says where
    ways = {
        JOINTLY: True,
        EACH: len(inputs) == 1,
        FIRST: list(inputs) == [0],
        LAST: list(inputs) == [len(op.inputs) - 1],
    }
    return ways.get(known(op.type).linear, False)


def is_purely_linear(op: tf.Operation, inputs: Sequence[int]) -> bool:
    """Whether nothing is added, either: of numbers that are not whole, what is linear in all has no other inputs."""
    values = [index for index, tensor in enumerate(op.inputs) if tensor.dtype.is_floating or tensor.dtype.is_complex]
    alone = known(op.type).linear != JOINTLY or set(values) <= set(inputs)
    return alone and is_linear(op, inputs)
