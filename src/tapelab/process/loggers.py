"""TensorFlow's Python logger, quiet."""

import contextlib
import logging

from tapelab.process.leases import Block, Lease, Shared, inside


class _Logger(Shared):
    """A logger: it has a filter while anybody wants it quiet. Its level is the user's, and stays as it is."""

    def __init__(self, name: str):
        super().__init__()
        self._logger = logging.getLogger(name)

    def settle(self) -> None:
        if self.leases:
            self._logger.addFilter(self._wanted)
        else:
            self._logger.removeFilter(self._wanted)

    def _wanted(self, record: logging.LogRecord) -> bool:
        return all(record.levelno >= lease.level for lease in inside.get() if lease.shared is self and lease.active)


class _Quiet(Lease):
    """Of this context's records, the logger takes those of this level and above."""

    def __init__(self, level: int):
        super().__init__(_logger)
        self.level = level


_logger = _Logger("tensorflow")


def quiet_logger(level: str) -> contextlib.AbstractContextManager:
    """Drop what this context has TensorFlow's Python logger say below a level, such as "ERROR"."""
    return Block(_Quiet(logging.getLevelNamesMapping()[level]))
