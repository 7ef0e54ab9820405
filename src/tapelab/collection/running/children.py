"""The processes of runs under way, and how to end them."""

import contextlib
import subprocess
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tapelab.collection.forkserver import ForkedProcess, PlainProcess

GRACE_SECONDS = 5  # between asking a process to end and killing it

Process = PlainProcess | ForkedProcess


class Children:
    """Processes that are to end together, each with every kernel and program that it has started."""

    def __init__(self):
        self._running = set()
        self._lock = threading.Lock()
        self.closed = False

    def start(self, popen: Callable[..., Process], command: list[str], **kwargs: Any) -> Process | None:
        """Start a process by `forkserver.Starter.popen`. Returns what that does, or None after `close`.

        It has a session of its own: an interrupt from the keyboard reaches it through `end_all` alone.
        """
        with self._lock:
            if self.closed:
                return None
            process = popen(command, **kwargs)
            self._running.add(process)
            return process

    def forget(self, process: Process) -> None:
        """Stop tracking a process that has ended."""
        with self._lock:
            self._running.discard(process)

    def close(self) -> None:
        """Refuse to start more."""
        with self._lock:
            self.closed = True

    def end_all(self) -> None:
        """End every process and refuse to start more."""
        self.close()
        for_each(end, self._running.copy())


def for_each(function: Callable, items: Iterable) -> None:
    """Call a function with each item, with all at the same time, and wait for the last."""
    items = list(items)
    if items:
        with ThreadPoolExecutor(len(items)) as pool:
            list(pool.map(function, items))


def end(process: Process) -> None:
    """Ask a run's process to end; after a grace period, kill it. Its guard ends all that descends from it."""
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    if process.poll() is None:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
