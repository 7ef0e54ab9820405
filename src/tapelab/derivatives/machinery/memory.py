"""How much memory a derivative will take, said before it is allocated, and kept within a limit by working in chunks."""

import math

from tapelab.derivatives.machinery.errors import MemoryLimitError

_DEFAULT = 4 * 2**30
_limit: float = _DEFAULT


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
    batch_chunk_size: int | None = None,
    most: int | None = None,
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
        chunk_size: the caller's number of rows, or None.
        batch_chunk_size: the same where the rows are examples.
        most: without a caller's number, how many rows at once at most; None for all.

    Returns:
        A pair: the number of rows, at least 1, as many as there are, as `most` allows and as fit; and how many bytes
        the whole is predicted to take.

    Raises:
        MemoryLimitError: if they do not fit, or not even one row at a time does.
    """
    limit = current_limit(limit)
    rows = max(rows, 1)
    fit = max(1, int((limit - result) // max(per_row, 1)))
    given = chunk_size or batch_chunk_size
    chunk = min(rows, given or min(fit, most or rows))
    needed = result + chunk * per_row
    if needed > limit:
        if given:
            advice = f"a {'chunk_size' if chunk_size else 'batch_chunk_size'} below {given}, or {advice}"
        raise MemoryLimitError(
            f"{what} of {shapes} would need about {human(needed)} ({needed:.0f} bytes); the limit is {human(limit)}. "
            f"Use {advice}; or raise the limit with memory_limit= or set_memory_limit()"
        )
    return chunk, needed
