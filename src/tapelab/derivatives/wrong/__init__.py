"""What TensorFlow differentiates wrongly, or leaves out without a word: found in a graph, refused or warned of."""

import fnmatch
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tapelab.derivatives.errors import CannotVectorizeError
from tapelab.derivatives.wrong.gaps import Needs, gaps
from tapelab.derivatives.wrong.moments import differentiated
from tapelab.graphs.operations import KERNELS
from tapelab.graphs.program import BRANCHES, CALLS, LOOPS, everything, place
from tapelab.process.tensorflow import Tensors, tf

_ACCUMULATES = (
    "TensorFlow does not find the way back through a tf.autodiff.ForwardAccumulator that the function opens around a "
    "loop, a conditional, a tf.function or tf.vectorized_map. Take that product by jvp of tapelab.derivatives"
)

__all__ = ["Needs", "differentiated", "reasons", "require_safe", "under_xla"]


def reasons(
    graph: tf.Graph, operations: Sequence[tf.Operation], sources: Iterable[tf.Tensor], outputs: Tensors
) -> Mapping[Needs, str]:
    """Say for each kind of derivative why TensorFlow's would be wrong, as far as is known."""
    found = gaps(graph, sources, outputs).reasons
    calls = [op for op in operations if op.type in CALLS]
    accumulators = [op for op in calls if "_jvp_" in op.get_attr("f").name]
    others = [op for op in operations if op.type in BRANCHES | LOOPS or (op in calls and op not in accumulators)]
    if accumulators and others:
        found.setdefault(Needs.GRADIENT, _ACCUMULATES)
    return found


def require_safe(operations: Iterable[tf.Operation], own: Sequence[tf.Operation]) -> None:
    """Raise where a vectorised program would meet a kernel that writes past its buffer, which rows one by one do not.

    With oneDNN, TensorFlow 2.21's product of matrices of shape (5, 1, 4, 6) by (6, 6) does: wrong numbers, or a crash.
    """
    if not _onednn_may_be_on():
        return
    caller = set(own)
    for op in everything(operations):
        if op.type in ("BatchMatMulV2", "BatchMatMulV3") and op not in caller:
            counts = sorted(
                math.prod(tensor.shape[:-2]) if tensor.shape.is_fully_defined() else 1 for tensor in op.inputs
            )
            known = all(tensor.shape.is_fully_defined() for tensor in op.inputs)
            rank = max(tensor.shape.rank or 5 for tensor in op.inputs)
            if rank > 3 and counts[0] == 1 and (counts[1] > 1 or not known):
                raise CannotVectorizeError(
                    "oneDNN's kernel for products of many matrices by one may give wrong numbers or end the process "
                    "(set TF_ENABLE_ONEDNN_OPTS=0 before TensorFlow is imported to have them; in place of x @ w with "
                    "three axes of x, tf.tensordot(x, w, 1) needs no such kernel)"
                )


def _onednn_may_be_on() -> bool:
    """Whether oneDNN's kernels are used; True where that is not known."""
    try:
        from tensorflow.python.util import _pywrap_util_port

        return bool(_pywrap_util_port.IsMklEnabled())
    except (ImportError, AttributeError):
        return os.environ.get("TF_ENABLE_ONEDNN_OPTS") != "0"


def under_xla(operations: Sequence[tf.Operation], own: Sequence[tf.Operation]) -> Iterator[str]:
    """Say which kernels of XLA, of these operations, compute something else than TensorFlow's."""
    types = {op.type for op in operations}
    for kernel in KERNELS:
        for pattern in kernel.operations if kernel.on != "graph" else ():
            for kind in fnmatch.filter(sorted(types), pattern):
                met = [op for op in operations if op.type == kind]
                if kernel.numbers and not any(t.dtype.name in kernel.numbers for op in met for t in op.outputs):
                    continue
                where = next((f": {place(op)}" for op in own if op.type == kind), "")
                yield kernel.why.replace("{op}", kind) + where
