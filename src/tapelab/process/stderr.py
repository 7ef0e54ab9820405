"""File descriptor 2, held back."""

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator

from tapelab.process.leases import Block, Lease, Shared, inside
from tapelab.process.loggers import quiet_logger


class _Line:
    """A line that was held back. Several may hold it back; it is shown once."""

    def __init__(self, text: bytes):
        self.text = text
        self.shown = False


class _Stderr(Shared):
    """File descriptor 2: a temporary file while anybody holds it back.

    Attributes:
        leases: every active `_Hold`.
        saved: a duplicate of the original descriptor, while the file is in its place.
    """

    def __init__(self):
        super().__init__()
        self.saved = None
        self._file = None
        self._read = 0

    def settle(self) -> None:
        if self.leases and self.saved is None:
            with contextlib.suppress(OSError):  # a process may have no file descriptor 2, and so nothing to hold back
                self._open()
                self.saved = os.dup(2)
                os.dup2(self._file.fileno(), 2)
        elif not self.leases and self.saved is not None:
            os.dup2(self.saved, 2)
            saved, self.saved = self.saved, None
            os.close(saved)
            self._file.close()

    def _open(self) -> None:
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  it stays open until the last one leaves
        self._read = 0

    def drain(self) -> None:
        """Give what was written since the last time to the innermost hold of each context."""
        if self.saved is None:
            return
        size = os.fstat(self._file.fileno()).st_size - self._read
        text = os.pread(self._file.fileno(), size, self._read)
        self._read += len(text)
        lines = [_Line(line) for line in text.splitlines(keepends=True)]
        covered = {id(hold.outer()) for hold in self.leases}
        for hold in self.leases:
            if id(hold) not in covered:
                hold.lines.extend(lines)

    def show(self, lines: Iterable[_Line]) -> None:
        """Write lines where file descriptor 2 led before."""
        for line in lines:
            if not line.shown:
                line.shown = True
                with contextlib.suppress(OSError):  # it was closed at the other end
                    os.write(self.saved, line.text)

    def start_over(self) -> None:
        """In a forked process: leave the file to the parent."""
        for hold in self.leases:
            hold.lines.clear()
        if self.leases and self.saved is not None:
            self._file.close()
            self._open()
            os.dup2(self._file.fileno(), 2)


class _Hold(Lease):
    """What is written to file descriptor 2 is held back; `rule(lines, error)` returns the lines to show in the end."""

    def __init__(self, rule: Callable[[list[_Line], BaseException | None], list[_Line]]):
        super().__init__(_stderr)
        self.lines: list[_Line] = []
        self._rule = rule
        self._around: list[_Hold] = []

    def outer(self) -> "_Hold | None":
        """The innermost hold around this one, or None."""
        return next((hold for hold in reversed(self._around) if hold.active), None)

    def prepare(self) -> None:
        # Python's own buffer, before file descriptor 2 changes. A notebook's stream may wait.
        with contextlib.suppress(AttributeError, OSError, ValueError):  # there is none, or it is closed
            sys.stderr.flush()

    def starting(self) -> None:
        _stderr.drain()  # what was written before is not this one's
        self._around = [lease for lease in inside.get() if isinstance(lease, _Hold)]

    def ending(self, error: BaseException | None) -> None:
        _stderr.drain()
        lines, outer = self._rule(self.lines, error), self.outer()
        if outer is None:
            _stderr.show(lines)
        else:
            outer.lines.extend(lines)
        self.lines = []


_stderr = _Stderr()


def quiet_stderr(
    shown_for: type[BaseException] | tuple[type[BaseException], ...] = BaseException,
) -> contextlib.AbstractContextManager:
    """Hold back what is written to file descriptor 2, by Python or by native code, and drop it unless the block raises.

    Args:
        shown_for: the exceptions for which it is shown.
    """
    return Block(_Hold(lambda lines, error: lines if isinstance(error, shown_for) else []))


# A line of the native log, "W0000 00:00:1795283470.195016 19076 op_kernel.cc:1858] …".
_LOG_LINE = re.compile(rb".*\.(cc|h):\d+\] ")


@contextlib.contextmanager
def quiet_log() -> Iterator[None]:
    """Hold back TensorFlow's log, Python's and the native one; show what else went to file descriptor 2 at the end."""
    rule = _Hold(lambda lines, error: [line for line in lines if not _LOG_LINE.match(line.text)])
    with quiet_logger("ERROR"), Block(rule):
        yield
