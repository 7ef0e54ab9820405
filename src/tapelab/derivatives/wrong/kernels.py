"""Kernels of TensorFlow that compute something else than their operation: found in a graph before it runs.

Most were found by comparing derivatives with central differences (ci/derivative_audit/RESULTS.md), in TensorFlow 2.19
to 2.21. Each is right elsewhere, so the derivative is computed there:

- XLA's kernels for the gradients of the reciprocal, of sqrt and of rsqrt lack the conjugate of complex numbers.
- XLA's kernel for the gradient of a bilinear resize gives float32 numbers that are read as float64.
- XLA draws other random numbers from a seed where the algorithm is left to it, as it is by default.
- XLA's kernel for singular values stops at an absolute 1e-6: in float64 at a relative 1e-7 for a matrix of the size of
  1, and for one of the size of 1e-6 at once, with unit vectors.
- XLA's kernels for the second derivatives of max pooling look for the maximum in the first 16 bits of float32 numbers.
- XLA's kernels for the inverse and for linear systems give finite numbers where a matrix is singular, and TensorFlow's
  raise. Who chooses XLA gets them, and a note in the plan.
- `MaxPoolGradGrad` and `MaxPool3DGradGrad` set their result to zero, and may have been given the memory of an input for
  it (`forward_input_or_allocate_output`). That happens in a graph, where the two have one shape: at strides of 1.
"""

from collections.abc import Iterable

from tapelab.graphs.program import nodes_of
from tapelab.process.tensorflow import tf

_CONJUGATED = {"InvGrad", "ReciprocalGrad", "RsqrtGrad", "SqrtGrad"}
_SEEDED = ("StatelessMultinomial", "StatelessParameterized", "StatelessRandom", "StatelessTruncated")
_POOLS = {"MaxPoolGradGrad", "MaxPoolGradGradV2", "MaxPool3DGradGrad"}
_SOLVERS = {"MatrixInverse", "MatrixSolve"}
_COMPLEX = {tf.complex64.as_datatype_enum, tf.complex128.as_datatype_enum}


class WrongKernelError(NotImplementedError):
    """A graph would compute something else than what it says; another way of computing it would not."""


def require_right(graph: tf.Graph, xla: bool) -> None:
    """Raise `WrongKernelError` if a graph, or a function that it calls, meets a kernel that is known to be wrong.

    Args:
        graph: what is about to run.
        xla: whether XLA compiles it.
    """
    for nodes in nodes_of(graph.as_graph_def()):
        if why := _under_xla(nodes) if xla else _in_a_graph(nodes):
            raise WrongKernelError(why)


def blind_to_singular(graph: tf.Graph) -> str | None:
    """Say which operation of a graph XLA computes without a word where a matrix is singular; None if there is none."""
    for nodes in nodes_of(graph.as_graph_def()):
        for node in nodes:
            if node.op in _SOLVERS:
                return f"XLA's {node.op} gives finite numbers for a singular matrix, where TensorFlow raises"
    return None


def _under_xla(nodes: Iterable) -> str | None:
    for node in nodes:
        if node.op.startswith(_SEEDED):
            return f"from the same seed, XLA's {node.op} draws other numbers"
        if node.op in _CONJUGATED and node.attr["T"].type in _COMPLEX:
            return f"XLA computes {node.op} of complex numbers without the conjugate"
        if node.op == "ResizeBilinearGrad" and node.attr["T"].type == tf.float64.as_datatype_enum:
            return "XLA computes ResizeBilinearGrad of float64 images wrongly"
        if node.op == "Svd":
            return "XLA computes singular values and vectors to an absolute 1e-6, whatever the size of the matrix"
        if node.op in _POOLS:
            return f"XLA's {node.op} compares 16 bits of a number, and may take another one for the maximum"
    return None


def _in_a_graph(nodes: Iterable) -> str | None:
    for node in nodes:
        if node.op in _POOLS and _as_large_as_its_input(node.attr):
            return f"in a graph, TensorFlow's {node.op} is zero where strides are 1"
    return None


def _as_large_as_its_input(attributes) -> bool:
    """Whether a pooling's result has the shape of its input, or may have: V2 takes the strides as a tensor."""
    strides, sizes = (set(attributes[name].list.i) for name in ("strides", "ksize"))
    return strides <= {1} and (attributes["padding"].s == b"SAME" or sizes <= {1})
