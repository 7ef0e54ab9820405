"""How a call is computed, in words (`Plan`), and the memory that it will take: said before, and kept within a limit."""

import math
from dataclasses import dataclass

from tapelab.derivatives.errors import MemoryLimitError

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
