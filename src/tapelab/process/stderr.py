"""File descriptor 2, held back."""

import contextlib
import contextvars
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator

from tapelab.process.loggers import quiet_logger

_innermost: "contextvars.ContextVar[_Hold | None]" = contextvars.ContextVar("this context's innermost", default=None)


class _Hold:
    """What a block holds back; `shows(text, error)` says of a line whether it is shown in the end, where `error` is the
    type of what the block raised, or None."""

    def __init__(self, shows: Callable[[bytes, type[BaseException] | None], bool]):
        self.shows, self.outer = shows, _innermost.get()
        self.lines: list[bytes] = []
        self.error: type[BaseException] | None = None


class _Stderr:
    """File descriptor 2: a temporary file while anybody holds it back.

    Attributes:
        saved: a duplicate of the original descriptor, while the file is in its place.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a block may also end while garbage is collected, in a thread that has the lock
        self._holds: list[_Hold] = []
        self.saved: int | None = None

    def begin(self, hold: _Hold) -> None:
        with self._lock:
            self._drain()  # what was written before is not this one's
            self._holds.append(hold)
            if self.saved is None:
                with contextlib.suppress(OSError):  # a process may have no file descriptor 2, so nothing to hold back
                    self._read = 0
                    self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  open until the last one leaves
                    self.saved = os.dup(2)
                    os.dup2(self._file.fileno(), 2)

    def end(self, hold: _Hold) -> None:
        """End a hold; nothing happens where it has ended."""
        with self._lock:
            if hold in self._holds:
                self._drain()
                self._holds.remove(hold)
                lines = [line for line in hold.lines if hold.shows(line, hold.error)]
                if hold.outer in self._holds:
                    hold.outer.lines.extend(lines)
                elif self.saved is not None:
                    with contextlib.suppress(OSError):  # it was closed at the other end
                        os.write(self.saved, b"".join(lines))
            if not self._holds and self.saved is not None:
                os.dup2(self.saved, 2)
                saved, self.saved = self.saved, None
                os.close(saved)
                self._file.close()

    def _drain(self) -> None:
        """Give what was written since the last time to the innermost hold of each context."""
        if self.saved is None:
            return
        text = os.pread(self._file.fileno(), os.fstat(self._file.fileno()).st_size - self._read, self._read)
        self._read += len(text)
        outer = [hold.outer for hold in self._holds]
        for hold in self._holds:
            if hold not in outer:
                hold.lines.extend(text.splitlines(keepends=True))


_stderr = _Stderr()


@contextlib.contextmanager
def _held(hold: _Hold) -> Iterator[None]:
    _flush()
    try:
        _innermost.set(hold)
        _stderr.begin(hold)
        yield
    except BaseException as error:
        hold.error = type(error)
        raise
    finally:
        try:
            _flush()
            _stderr.end(hold)
        except BaseException:  # an interrupt, as the exception that stops a thread: it ends nevertheless
            _stderr.end(hold)
            raise
        finally:
            _innermost.set(hold.outer)


def _flush() -> None:
    """Empty Python's own buffer, before file descriptor 2 changes. A notebook's stream may wait."""
    with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
        sys.stderr.flush()


def quiet_stderr(
    shown_for: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
) -> contextlib.AbstractContextManager:
    """Hold back what is written to file descriptor 2, by Python or by native code, and drop it unless the block raises.

    Args:
        shown_for: the exceptions for which it is shown.
    """
    return _held(_Hold(lambda text, error: error is not None and issubclass(error, shown_for)))


# A line of the native log, "W0000 00:00:1795283470.195016 19076 op_kernel.cc:1858] …".
_LOG_LINE = re.compile(rb".*\.(cc|h):\d+\] ")


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Hold back TensorFlow's log, Python's and the native one; show what else went to file descriptor 2 at the end."""
    with quiet_logger("ERROR"), _held(_Hold(lambda text, error: not _LOG_LINE.match(text))):
        yield
