"""Kernels of TensorFlow that compute something else than their operation: found in a graph before it runs.

Which they are is in a table, ``graphs/operations/kernels.toml``. Each operation is right elsewhere, so the derivative
is computed there. Who chooses XLA gets its solvers, and a note in the plan.
"""

import fnmatch

from tapelab.graphs.operations import KERNELS
from tapelab.graphs.program import nodes_of
from tapelab.process.tensorflow import tf


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


def blind_to_singular(graph: tf.Graph) -> str | None:
    """Say which operation of a graph XLA computes without a word where a matrix is singular; None if there is none."""
    return _met(graph, "noted")


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


def _as_large_as_its_input(attributes) -> bool:
    """Whether a pooling's result has the shape of its input, or may have: V2 takes the strides as a tensor."""
    strides, sizes = (set(attributes[name].list.i) for name in ("strides", "ksize"))
    return strides <= {1} and (attributes["padding"].s == b"SAME" or sizes <= {1})
