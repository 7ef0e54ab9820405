"""The signals that ask `tapelab run` to end: noted, from before its slow imports until its process is gone."""

import contextlib
import signal
from collections.abc import Iterator
from types import FrameType

WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """Notes the first signal that asks the command to end, for those who do the work. Further ones change nothing.

    Attributes:
        received: the signal, or None.
    """

    def __init__(self):
        self.received: signal.Signals | None = None
        self._at_once = False

    def _note(self, number: int, _: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number)
        if self._at_once:
            raise SystemExit(128 + self.received)

    def watch(self) -> None:
        """Begin to note signals, but for those that this process was told to ignore, as by nohup."""
        for number in WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._note)

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """In the block, which may wait for long, a signal ends the command at once: nothing has begun."""
        self._at_once = True
        try:
            if self.received is not None:
                raise SystemExit(128 + self.received)
            yield
        finally:
            self._at_once = False


command = Interrupts()  # of the command line
