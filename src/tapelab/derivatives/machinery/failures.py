"""What TensorFlow raises while a derivative runs, in words: the cause, and the line in the caller's program."""

import pathlib
import re
import tomllib
import traceback
from collections.abc import Callable

from tapelab.derivatives.machinery.errors import SingularMatrixError
from tapelab.derivatives.wrong.gaps import operations_of
from tapelab.graphs.libraries import is_library
from tapelab.graphs.program import place
from tapelab.process.tensorflow import tf

_TABLE = tomllib.loads(pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
UNROLL = _TABLE["unroll"]
_NAMED = re.compile(r"\[Op:([A-Za-z]\w+)\]")
# What TensorFlow says of an operation without a gradient.
_NO_GRADIENT = re.compile(r"(?:gradient registry has no entry for: |No gradient defined for .*\(op type: )(\w+)")
# What XLA says of the rounds of a vectorised loop, which stop for each row by itself.
_VECTORISED_LOOP = re.compile(r"while_body/cond.*= If\[", re.DOTALL)


def told_line(error: Exception) -> str:
    """The line of a message that says what happened: AutoGraph's start with "in user code:" and end with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    return lines[-1] if lines[0].endswith(":") else lines[0]


def lacks_a_gradient(error: Exception) -> re.Match | None:
    """Whether an error says that TensorFlow has no gradient of an operation; its first group is the type."""
    return _NO_GRADIENT.search(str(error))


def vectorised_loop(error: Exception) -> str:
    """Say what to do if an error is XLA's about a loop that was vectorised; empty if it is not."""
    if not isinstance(error, tf.errors.UnimplementedError) or not _VECTORISED_LOOP.search(str(error)):
        return ""
    return f"XLA does not compile a vectorised loop without a constant for its most rounds. {UNROLL}"


def explained(name: str, error: Exception, graph: Callable[[], tf.Graph], compiled_loops: bool) -> Exception:
    """Return an error that says what to do, where TensorFlow's does not, or else the error itself.

    Args:
        name: of the derivative and the function, for the message.
        graph: traces the function.
        compiled_loops: whether XLA compiles a part of it, and it has a loop.
    """
    told = _told(name, error, graph, compiled_loops)
    if told is None:
        return error
    told.__cause__ = error
    return told


def _told(name: str, error: Exception, graph: Callable[[], tf.Graph], compiled_loops: bool) -> Exception | None:
    if why := singular(error, graph):
        return SingularMatrixError(f"{name}: {why}")
    if missing := lacks_a_gradient(error):
        placed = getattr(error, "placed", False)
        where = f" ({str(error).split(' has no rule here')[0]})" if placed else line_of(missing[1], graph)
        return LookupError(
            f"{name}: TensorFlow has no derivative of the operation {missing[1]}, which this one needs{where}. Write "
            "the function with other operations, or give its gradient by tf.custom_gradient"
        )
    for part, why in _TABLE["refused"].items():
        if part in str(error):
            return LookupError(f"{name}: {why}")
    if compiled_loops and isinstance(error, tf.errors.UnimplementedError):
        return RuntimeError(
            f"{name}: the function calls one with jit_compile=True that has a loop, and TensorFlow does not find the "
            'way back through it. Leave jit_compile=True out there; compile="auto" compiles all of the derivative'
        )
    return None


def singular(error: Exception, graph: Callable[[], tf.Graph] | None = None) -> str | None:
    """Say that a matrix is singular, in which operation and at which line; None where an error is another.

    Args:
        error: what a computation has raised.
        graph: traces the function: an error of a graph has no line, and names no operation.
    """
    said = next((text for text in _TABLE["singular"] if text in str(error)), None)
    if said is None or not isinstance(error, tf.errors.InvalidArgumentError):
        return None
    if named := _NAMED.search(str(error)):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
        where = named[1] + (f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")
    else:
        met = [place(op) for op in _traced(graph) if op.type in _TABLE["singular"][said]]
        where = " or ".join(dict.fromkeys(met)) or _TABLE["singular"][said][0]
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


def _traced(graph: Callable[[], tf.Graph] | None) -> list[tf.Operation]:
    """The operations of a function, as far as it can be traced."""
    if graph is None:
        return []
    try:
        traced = graph()
    except Exception:  # whatever the function raises: it is another error that is being explained
        return []
    return list(operations_of(traced))
