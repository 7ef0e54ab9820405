"""What TensorFlow raises while a derivative runs, in words: the cause, and the line in the caller's program."""

import re
import traceback
from collections.abc import Callable

from tapelab.derivatives.wrong.gaps import operations_of
from tapelab.graphs.libraries import is_library
from tapelab.graphs.program import place
from tapelab.runtime import tf

# What TensorFlow says of a matrix that is singular, or not positive definite; and which operations do.
_SINGULAR = {
    "Input is not invertible": ("MatrixInverse", "Lu"),
    "Input matrix is not invertible": ("MatrixSolve", "MatrixTriangularSolve"),
    "Cholesky decomposition was not successful": ("Cholesky",),
    "Self-adjoint eigen decomposition was not successful": ("SelfAdjointEigV2",),
    "Eigen decomposition was not successful": ("Eig",),
}
_NAMED = re.compile(r"\[Op:([A-Za-z]\w+)\]")


def singular(error: Exception, graph: Callable[[], tf.Graph] | None = None) -> str | None:
    """Say that a matrix is singular, in which operation and at which line; None where an error is another.

    Args:
        error: what a computation has raised.
        graph: traces the function: an error of a graph has no line, and names no operation.
    """
    said = next((text for text in _SINGULAR if text in str(error)), None)
    if said is None or not isinstance(error, tf.errors.InvalidArgumentError):
        return None
    if named := _NAMED.search(str(error)):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
        where = named[1] + (f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")
    else:
        met = [place(op) for op in _traced(graph) if op.type in _SINGULAR[said]]
        where = " or ".join(dict.fromkeys(met)) or _SINGULAR[said][0]
    return (
        f"a matrix is singular, or not positive definite, in {where} (TensorFlow says: {said}), so that there is no "
        "result. Add a multiple of the identity to the matrix, or use tf.linalg.lstsq or tf.linalg.pinv"
    )


def line_of(operation: str, graph: Callable[[], tf.Graph]) -> str:
    """Return " at file:line" of an operation; nothing where the function has none of this type, but its gradient.

    Args:
        operation: its type.
        graph: traces the function.
    """
    found = next((op for op in _traced(graph) if op.type == operation), None)
    return place(found).removeprefix(operation) if found is not None else ""


def _traced(graph):
    """The operations of a function, as far as it can be traced."""
    try:
        return list(operations_of(graph())) if graph else []
    except Exception:  # whatever the function raises
        return []
