"""TensorFlow's Python logger, quiet."""

import contextlib
import contextvars
import logging
from collections.abc import Iterator

_lowest = contextvars.ContextVar("the lowest level that this context has TensorFlow's logger take", default=0)
# The logger's level is the user's, and stays as it is.
logging.getLogger("tensorflow").addFilter(lambda record: record.levelno >= _lowest.get())


@contextlib.contextmanager
def quiet_logger(level: str) -> Iterator[None]:
    """Drop what this context has TensorFlow's Python logger say below a level, such as "ERROR"."""
    before = _lowest.get()
    try:
        _lowest.set(max(before, logging.getLevelNamesMapping()[level]))
        yield
    finally:
        _lowest.set(before)
