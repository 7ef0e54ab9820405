"""What is raised and warned beyond plain ValueError and TypeError, and TensorFlow's own errors put into words."""

import re
import sys
import traceback
import warnings
from collections.abc import Iterable

from tapelab.graphs.libraries import is_library
from tapelab.graphs.program import place
from tapelab.process.tensorflow import tf


class UnconnectedSourceError(ValueError):
    """The function's result does not depend on a source, as far as the tape can see."""


class NotFiniteError(ValueError):
    """A derivative contains NaN or infinity, and the caller asked to be told."""


class SingularMatrixError(ValueError):
    """A matrix that the function inverts, solves with or factorises is singular, and so it has no derivative there."""


class MemoryLimitError(RuntimeError):
    """The result, or the work towards it, is predicted to need more memory than allowed."""


class FallbackWarning(RuntimeWarning):
    """The fast way to compute a derivative does not handle the function; a slower one was taken."""


class CannotVectorizeError(NotImplementedError):
    """Rows cannot be computed all at once; one by one they can."""


def warn_caller(message: str, category: type[Warning] = FallbackWarning) -> None:
    """Warn at the caller's own line, however many calls of this package and of libraries lie between."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def told_line(error: BaseException) -> str:
    """The line of a message that says what happened: AutoGraph's start with "in user code:" and end with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    line = lines[-1] if lines[0] == "in user code:" else lines[0]
    return line if line.startswith(type(error).__name__) else f"{type(error).__name__}: {line[:200]}"


# What TensorFlow says of a matrix that is singular, or not positive definite; and which operations do.
_SINGULAR = {
    "Input is not invertible": ("MatrixInverse", "Lu"),
    "Input matrix is not invertible": ("MatrixSolve", "MatrixTriangularSolve"),
    "Cholesky decomposition was not successful": ("Cholesky",),
    "Self-adjoint eigen decomposition was not successful": ("SelfAdjointEigV2",),
    "Eigen decomposition was not successful": ("Eig",),
}
# What it may raise that `explained` puts into words.
UNCLEAR = (AssertionError, AttributeError, LookupError, NotImplementedError, ValueError)
_OF_A_BRANCH = "_resolve_grad_inputs"  # in TensorFlow: what it raises there has no words
_NAMED = re.compile(r"\[Op:([A-Za-z]\w+)\]")
# What it says where a value is read that is not there yet.
_READS = (
    "numpy() is only available when eager",
    "'SymbolicTensor' object has no",
    "Cannot convert a symbolic tf.Tensor",
)
_NO_GRADIENT = re.compile(r"(?:gradient registry has no entry for: |No gradient defined for .*\(op type: )(\w+)")
_NOT_FOR_XLA = re.compile(r"(\w+) \(No registered '\w+' OpKernel for XLA")
# What its gradients say of themselves, by part of the message.
_REFUSED = {
    "Gradient not defined for fast=False": (
        "TensorFlow has no derivative of tf.linalg.lstsq(…, fast=False). Leave fast=False out where the matrices have "
        "full rank, or multiply by tf.linalg.pinv"
    ),
    "recompute_grad tried to transpose": (
        "TensorFlow does not differentiate the gradient of what tf.recompute_grad computes by its cotangent. Leave "
        "tf.recompute_grad out of the function here"
    ),
    **dict.fromkeys(
        (
            "do not yet support dilation rates",
            "Gradients for grouped convolutions are not supported",
            "filter_size does not have enough elements",
        ),
        "TensorFlow without oneDNN differentiates no convolution with dilated filters, or with groups, on a CPU. Leave "
        "TF_ENABLE_ONEDNN_OPTS unset, use a GPU, or write the convolution as tf.nn.convolution (dilated) or as one for "
        "each group of channels",
    ),
    "of a variable without handle data": (
        "it calls a loaded model with a loop that reads a variable, and TensorFlow differentiates such a loop once. "
        "Call the Python function or layer that it was saved from"
    ),
}


def explained(name: str, error: Exception, operations: Iterable[tf.Operation] = ()) -> Exception:
    """Return an error that says what to do, where TensorFlow's does not, or else the error itself.

    Args:
        name: of the derivative and the function, for the message.
        operations: of the function, as far as it was traced: for the line.
    """
    told: Exception | None = None
    if why := singular(error, operations):
        told = SingularMatrixError(f"{name}: {why}")
    elif missing := _NO_GRADIENT.search(str(error)):
        told = LookupError(
            f"{name}: TensorFlow has no derivative of the operation {missing[1]}, which this one needs"
            f"{_line_of([missing[1]], operations)}. Write the function with other operations, or give its gradient by "
            "tf.custom_gradient"
        )
    elif why := next((why for part, why in _REFUSED.items() if part in str(error)), None):
        told = LookupError(f"{name}: {why}")
    elif any(said in str(error) for said in _READS):
        told = NotImplementedError(
            f"{name}: the function reads a tensor's value, as .numpy() and float() do, and is traced into a graph, "
            'where there is none. Use operations of TensorFlow, or compile="eager"'
        )
    elif isinstance(error, AssertionError) and traceback.extract_tb(error.__traceback__)[-1].name == _OF_A_BRANCH:
        told = NotImplementedError(
            f"{name}: TensorFlow differentiates a tf.custom_gradient in a branch of tf.cond once, and this derivative "
            "needs more. Take tf.cond inside the custom gradient, or tf.where"
        )
    if told is None:
        return error
    told.__cause__ = error
    return told


def not_compiled(name: str, error: Exception) -> Exception:
    """Return an error that names the operation, where XLA cannot compile a program, or else the error itself."""
    if not any(said in str(error) for said in ("tf2xla conversion failed", "Detected unsupported operations")):
        return error
    found = ", ".join(dict.fromkeys(_NOT_FOR_XLA.findall(str(error)))) or told_line(error)
    told = RuntimeError(f'{name}: XLA cannot compile {found}. Use compile="auto" or "graph"')
    told.__cause__ = error
    return told


def singular(error: Exception, operations: Iterable[tf.Operation] = ()) -> str | None:
    """Say that a matrix is singular, in which operation and at which line; None where an error is another."""
    said = next((text for text in _SINGULAR if text in str(error)), None)
    if said is None or not isinstance(error, tf.errors.InvalidArgumentError):
        return None
    if named := _NAMED.search(str(error)):
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
        where = named[1] + (f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else "")
    else:
        where = _line_of(_SINGULAR[said], operations).removeprefix(": ") or _SINGULAR[said][0]
    return (
        f"a matrix is singular, or not positive definite, in {where} (TensorFlow says: {said}), so that there is no "
        "result. Add a multiple of the identity to the matrix, or use tf.linalg.lstsq or tf.linalg.pinv"
    )


def _line_of(kinds: Iterable[str], operations: Iterable[tf.Operation]) -> str:
    """Return ": Type at file:line" of the operations of some types; nothing where there is none."""
    found = dict.fromkeys(place(op) for op in operations if op.type in kinds)
    return f": {' or '.join(found)}" if found else ""
