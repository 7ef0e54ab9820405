"""The process of one run: papermill executes one notebook on one kernel, and this says where it is.

`children` starts it in an empty folder of its own, with the notebook in ``source.ipynb``. It sends events, tuples, over
a connection:

    ("ready", WHY)          papermill is imported; why the kernel will not be forked, or None
    ("kernel", CELLS)       the kernel answers; so many code cells will run
    ("cell", NUMBER)        a code cell starts
    ("end", PROBLEM)        None, or {"kind": …, "message": …}; not where it is asked to end
    ("notebook", TEXT)      what was executed, whole or not; nothing if the kernel did not start

What is written to its standard output or error is the run's log. Whatever is sent to it asks it to end.
"""

import os
import signal
import threading
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tapelab.collection import forkserver

import nbformat


def _end_when_told(connection: Connection) -> None:
    try:
        connection.recv()
    finally:
        os.kill(os.getpid(), signal.SIGTERM)


def main(connection: Connection, folder: Path, environment: Mapping[str, str], order: dict) -> None:
    """Be the process of a run.

    Args:
        connection: takes the events.
        folder: with ``source.ipynb``; the log goes there.
        environment: all variables of this process and its kernel.
        order: what `execution.execute` takes.
    """
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    forkserver.settle(folder, environment, log, log)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_when_told, args=[connection], daemon=True).start()

    from tapelab.collection.running import (  # these take a while, and SIGTERM ends this process until then
        execution,
        kernel,
    )

    def tell(*event: Any) -> None:
        connection.send(event)

    def end_now(*_: Any) -> None:
        """Raise SystemExit where the run is: papermill ends the kernel on the way out."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if kernel.Kernel.current is not None:
            kernel.Kernel.current.shutdown_wait_time = 0.2  # seconds: in the middle of a cell it will not answer
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end_now)
    tell("ready", forkserver.unfit())
    hooks = execution.Hooks(tell)
    try:
        tell("end", execution.execute(order, hooks))
    finally:
        if hooks.notebook is not None:
            tell("notebook", nbformat.writes(hooks.notebook))
