"""The processes of runs under way, and how to end them."""

import contextlib
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from tapelab.collection import forkserver
from tapelab.collection.running import child

GRACE_SECONDS = 5  # between asking a process to end and killing it


class Child:
    """The process of a run, the connection to it, and `ended`, which whoever waits for the process sets."""

    def __init__(self, process: multiprocessing.process.BaseProcess, connection: multiprocessing.connection.Connection):
        self.process, self.connection, self.ended = process, connection, threading.Event()

    def end(self) -> None:
        """Ask it to end; after a grace period, kill it. Its guard ends all that descends from it."""
        with contextlib.suppress(OSError):
            self.connection.send("end")
        if not self.ended.wait(GRACE_SECONDS):
            (self.process.terminate if sys.platform == "linux" else self.process.kill)()
            self.ended.wait(GRACE_SECONDS)


class Children:
    """Processes of runs that are to end together, each with every kernel and program that it has started.

    Args:
        environment: the variables of each, and of its kernel.
        fork: whether they, and their kernels, are forked from a process that has done their imports.
        say: called with a line if one is not that was to be.
    """

    def __init__(self, environment: Mapping[str, str], fork: bool = False, say: Callable[[str], None] = print):
        self._environment, self._fork, self._say = dict(environment), fork, say
        self._running, self.closed = set(), False

    def start(self, folder: Path, order: dict) -> Child | None:
        """Start the process of a run, `child.main`. Returns None after `end_all`."""
        if self.closed:
            return None
        ours, theirs = multiprocessing.Pipe()
        with theirs:
            try:
                process = self._process(theirs, folder, order, self._fork)
            except (OSError, EOFError):
                self.say("Papermill starts in the plain way: the fork server has ended.")
                process = self._process(theirs, folder, order, False)
        started = Child(process, ours)
        self._running.add(started)
        if self.closed:  # meanwhile
            process.terminate()
        return started

    def _process(
        self, connection: Connection, folder: Path, order: dict, fork: bool
    ) -> multiprocessing.process.BaseProcess:
        leads = {forkserver.DEFAULT: forkserver.PROVISIONER} if fork else {}
        return forkserver.start(child.main, connection, folder, self._environment | leads, order, fork=fork)

    def say(self, line: str) -> None:
        """Tell something, unless all is to end."""
        if not self.closed:
            self._say(line)

    def forget(self, process: Child) -> None:
        """Stop tracking a process that has ended."""
        process.ended.set()
        self._running.discard(process)

    def end_all(self) -> None:
        """End every process and refuse to start more."""
        self.closed = True
        for_each(Child.end, self._running.copy())


def for_each(function: Callable, items: Iterable) -> None:
    """Call a function with each item, with all at the same time, and wait for the last."""
    items = list(items)
    if items:
        with ThreadPoolExecutor(len(items)) as pool:
            list(pool.map(function, items))
