"""What a derivative costs: how it is computed, in words (`Plan`), how many rows at once fit in memory, and what pays.

The numbers below decide speed: up to which size XLA pays, how much goes through at once, and when a search stops. None
of them changes a result. Beside each stands what was measured, with TensorFlow 2.21 on two idle cores of a Xeon.
Another machine may have others: `make bench ARGS=--constants` measures them again, and says which would be another
there (`ci/bench/constants.py`).
"""

import math
from dataclasses import dataclass

from tapelab.derivatives.errors import MemoryLimitError
from tapelab.graphs.operations import with_fact

# XLA is tried first where it is expected to win. It saves the start of each operation, and fuses what lies between
# products; its own matrix products and convolutions are slower.

# Bytes of the largest tensor of a derivative of one pass, where a call is mostly its own start. Elementwise, a plain
# graph took 1.05 to 1.4 times XLA's time up to 128 KiB, and 0.8 times at 1 MiB; of networks 1.1 times at the smallest,
# 0.9 times up to 16 KiB, and 0.7 to 0.85 times beyond.
XLA_ONE_PASS = 2**14
# Elements of a Jacobian by rows: a plain graph took 1.04 to 1.8 times XLA's time up to 300 by 300, 0.9 to 1.1 times at
# 1000 by 1000, 1.0 to 1.2 times at 2000 by 2000. Its forward mode is slower under XLA.
XLA_JACOBIAN = 1_000_000
# Elements of the sources of a Hessian with products: of networks, a plain graph took 1.1 to 1.3 times XLA's time up to
# 980, and 0.6 to 0.8 times from 1996. Without products there is no limit: it took 2.7 to 3.3 times from 300 to 4000.
XLA_HESSIAN = 1000
# Sources of a Hessian with products that is wanted in blocks: XLA compiles each block by itself. Of six sources with
# 518 elements a first call took 4 s in place of 0.4, and a later one 1 ms in place of 1 to 2.
XLA_SOURCES = 2
# Bytes of all rows of the largest tensor of a Laplacian; beyond it, as many examples at once as take so much. Up to
# 3 MiB a graph took 1.0 to 2.1 times XLA's time, at 13 MiB 0.6 to 1.2 times; chunks of 8 MiB took up to twice as long
# as those of 4 MiB.
XLA_LAPLACIAN = 2**22

# What XLA is known to compile as TensorFlow does: a program of other operations is left to a graph.
COMPILED_WELL = (
    with_fact("elementwise", "moving", "reducing", "product", "shape", "call") - with_fact("not compiled")
    | {"BiasAddGrad", "Const", "Fill", "LogSoftmax", "NoOp", "OneHot", "Placeholder", "PlaceholderWithDefault", "Range"}
    | {"Softmax", "SoftmaxCrossEntropyWithLogits", "SparseSoftmaxCrossEntropyWithLogits"}
)

# What is compiled as well where it is ours: loops over chunks, which a tape cannot follow under XLA, and indices that
# are known to be in range. Of an index out of range XLA takes the nearest one.
OURS = with_fact("list", "loop") | {"GatherV2"}

# How operations start through which XLA is slower than TensorFlow, in products of second derivatives with vectors: of
# dense layers and normalisation a plain graph took 0.8 to 1.7 times XLA's time, of convolutions 0.6 to 0.7 times, of
# depthwise ones 0.1. XLA's second derivatives of max pooling are wrong, and refused.
SLOW_SECOND_ORDER = ("Conv", "DepthwiseConv", "MaxPool")
# In examples' gradients: a plain graph took 1.3 to 1.5 times XLA's time of dense layers, and 0.5 to 0.8 times of
# convolutions (but 2.4 times of depthwise ones beside others).
SLOW_PER_EXAMPLE = ("Conv2D",)

# Programs that XLA compiles for one transform: TensorFlow keeps each until the process ends. Of the
# smallest function each takes 0.4 MiB.
PROGRAMS = 64
# Signatures of a transform's arguments whose programs are kept; one that is not is traced and compiled anew. Of the
# smallest function each takes 0.2 MiB.
SIGNATURES = 64

# A Hessian's rows are computed so many at once that their largest tensors stay in the processor's cache, but not fewer
# than start operations without much to do. A quarter, four and sixteen times as much took 1.00 to 1.07 times as long,
# 8 rows 0.99 to 1.07 times, 128 rows 0.98.
HESSIAN_CACHED = 2**20  # bytes of the largest tensor
HESSIAN_ROWS = 32
# A packed Hessian by factors is put together from strips of rows, each of so many elements or this share of the matrix.
# Thinner ones took 1.05 to 1.09 times as long at n = 4042. Thicker ones take more memory: at n = 8070 strips of half
# the matrix took 0.85 to 0.98 times as long.
STRIP, STRIP_SHARE = 2**22, 10

# Examples in a chunk of a clipped gradient: 32 to 512 took 0.92 to 1.07 times as long.
CLIPPED_EXAMPLES = 256
# Products with so many vectors go through a data set at once: one by one took 1.3 times as long for a small network,
# four at once 1.1 times, sixteen 0.96 times; for a large one all took as long. Each has three vectors in memory.
VECTORS = 8

_DEFAULT = 4 * 2**30
_limit: float = _DEFAULT
_COMPILED = {"xla": "compiled by XLA", "graph": "in a graph", "eager": "not compiled"}


@dataclass(frozen=True)
class Plan:
    """How a derivative is computed, for one structure, shapes and dtypes of the arguments.

    Attributes:
        mode: "forward", "reverse", "reverse over reverse" for second derivatives, or "forward and reverse" for products
            with a Gauss-Newton matrix.
        passes: how many passes that takes: rows or columns of a Jacobian, rows of the largest source of a Hessian or
            all that its factors take, examples of a batch, directions of an operator; 1 for a product with one vector.
        chunk: how many of them are made at once.
        bytes: the memory predicted for the result and the work towards it; None where nothing large is built, and a
            call takes a few times the memory of the function itself.
        way: what is computed how, in words.
        compiled: "xla", "graph" or "eager".
        given_up: a tuple of strings, the faster ways that were not taken, each with why.
        notes: a tuple of strings, what differs from plain TensorFlow.
    """

    mode: str
    passes: int = 1
    chunk: int = 1
    bytes: int | None = None
    way: str = ""
    compiled: str = ""
    given_up: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [f"{self.way}, {_COMPILED[self.compiled]}"]
        if self.bytes is not None:
            lines += [f"{self.passes} passes, {self.chunk} at once, about {human(self.bytes)}"]
        return "\n".join([*lines, *[f"given up: {reason}" for reason in self.given_up], *self.notes])


def set_memory_limit(limit: float | None = None) -> float:
    """Set how much memory one derivative may be predicted to take.

    Args:
        limit: bytes, positive; None for the default, 4 GiB. Calls with ``memory_limit=`` have their own. What is
            already compiled keeps the limit that it was compiled under.

    Returns:
        The limit until now, in bytes.

    Raises:
        ValueError: if ``limit`` is not positive, or infinite.
    """
    global _limit
    previous = _limit
    _limit = _DEFAULT if limit is None else checked_limit(limit)
    return previous


def checked_limit(limit: float) -> float:
    """Return a limit in bytes, after checking it."""
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not 0 < limit < math.inf:
        raise ValueError(f"the memory limit is {limit!r}; expected a positive number of bytes, such as 2 * 2**30")
    return limit


def current_limit(limit: float | None) -> float:
    """Return a caller's limit in bytes, or the one that is set where it is None."""
    return _limit if limit is None else limit


def human(size: float) -> str:
    """Write a number of bytes with a binary unit."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def counted(number: int, noun: str) -> str:
    """Write a number of things: 1 source, 2 sources."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def rows_at_once(
    *,
    what: str,
    shapes: str,
    result: int,
    rows: int,
    per_row: int,
    advice: str,
    limit: float | None,
    chunk_size: int | None = None,
    most: int | None = None,
    chunk_name: str = "chunk_size",
) -> tuple[int, int]:
    """Decide how many rows to compute at once, so that the whole stays within the limit.

    Args:
        what: the derivative's name, for the error.
        shapes: a description of what has which shape, for the error.
        result: bytes of the result and of what is copied to assemble it.
        rows: how many rows there are.
        per_row: bytes of the work on one row.
        advice: what to use instead, for the error.
        limit: the caller's limit in bytes, or None for the one that is set.
        chunk_size: the caller's number of rows, or None; ``chunk_name`` is what the caller calls it.
        most: without a caller's number, how many rows at once at most; None for all.

    Returns:
        A pair: the number of rows, at least 1, as many as there are, as `most` allows and as fit; and how many bytes
        the whole is predicted to take.

    Raises:
        MemoryLimitError: if they do not fit, or not even one row at a time does.
    """
    limit, rows = current_limit(limit), max(rows, 1)
    fit = max(1, int((limit - result) // max(per_row, 1)))
    chunk = min(rows, chunk_size or min(fit, most or rows))
    needed = result + chunk * per_row
    if needed > limit:
        smaller = f"a {chunk_name} below {chunk_size}, or " if chunk_size else ""
        raise MemoryLimitError(
            f"{what} of {shapes} would need about {human(needed)} ({needed:.0f} bytes); the limit is {human(limit)}. "
            f"Use {smaller}{advice}; or raise the limit with memory_limit= or set_memory_limit()"
        )
    return chunk, needed
