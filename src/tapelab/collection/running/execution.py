"""Papermill executes one notebook: where it saves, what it counts as a failure, and what it tells meanwhile."""

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tapelab.collection.running.kernel import Kernel
from tapelab.process.files import write_whole

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

SAVE_SECONDS = 5  # between two savings of a notebook under way
START_SECONDS = 120  # in which a kernel must answer
# In which a cell's outputs must arrive when it has ended; four, as by default, are few on a busy machine.
OUTPUT_SECONDS = 60
SOURCE, EXECUTED = "source.ipynb", "executed.ipynb"


class SaveError(Exception):
    """The executed notebook could not be written."""


class WholeFiles(LocalHandler):
    """Papermill's way to local files, with every write whole: a run that is killed leaves a notebook that opens."""

    def __init__(self, folder: Path):
        super().__init__()
        self._folder = folder  # papermill works in another while the cells run

    def write(self, buf: str, path: str) -> None:
        try:
            write_whole(self._folder / path, buf.encode())
        except OSError as error:
            raise SaveError(f"cannot write the executed notebook: {error.strerror}") from error


class Sparing(NotebookExecutionManager):
    """Saves every few seconds and at the end. Papermill saves twice for each cell, which takes a tenth of a run."""

    def save(self, **kwargs: Any) -> None:
        if self.end_time is not None or (self.now() - self.last_save_time).total_seconds() > SAVE_SECONDS:
            super().save(**kwargs)


class Engine(NBClientEngine):
    """Papermill's engine with the manager above."""

    @classmethod
    def execute_notebook(
        cls,
        nb: NotebookNode,
        kernel_name: str,
        output_path: str | None = None,
        progress_bar: bool = False,
        **kwargs: Any,
    ) -> NotebookNode:
        manager = Sparing(nb, output_path=output_path, progress_bar=False)
        manager.notebook_start()
        try:
            cls.execute_managed_notebook(manager, kernel_name, **kwargs)
        finally:
            manager.notebook_complete()
        return manager.nb


def _ended(status):
    if status is None or status >= 0:
        return f"with exit status {status}" if status is not None else "for an unknown reason"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def execute(job: dict, tell: Callable[..., None]) -> dict | None:
    """Execute ``source.ipynb`` in this folder into ``executed.ipynb``.

    Args:
        job: the notebook's "parameters", the "kernel"'s name and the "folder" in which it works.
        tell: called with the events that `child` describes, from "kernel" to "executed".

    Returns:
        None, or what went wrong: the "kind" and the "message" of a `records.Problem`.
    """
    Kernel.folder = Path.cwd()
    papermill_io.reset()
    papermill_io.register("local", WholeFiles(Kernel.folder))
    papermill_engines.register("tapelab", Engine)
    hooks = Hooks(tell)
    try:
        papermill.execute_notebook(
            SOURCE,
            EXECUTED,
            parameters=job["parameters"],
            engine_name="tapelab",
            kernel_name=job["kernel"],
            cwd=job["folder"],
            progress_bar=False,
            kernel_manager_class=Kernel,
            start_timeout=START_SECONDS,
            iopub_timeout=OUTPUT_SECONDS,
            shutdown_kernel="immediate",  # all outputs have arrived; TensorFlow takes a second or two to leave
            on_notebook_start=hooks.on_notebook_start,
            on_cell_execute=hooks.on_cell_execute,
            on_cell_executed=hooks.on_cell_executed,
        )
    except Exception as error:
        kind, message = _what_went_wrong(error, hooks.kernel_answered)
        return {"kind": kind, "message": message}
    return None


class Hooks:
    """What papermill calls on its way: they tell where it is.

    Attributes:
        kernel_answered: whether the kernel has started.
    """

    def __init__(self, tell: Callable[..., None]):
        self._tell, self._cell, self.kernel_answered = tell, 0, False

    def on_notebook_start(self, notebook: NotebookNode) -> None:
        """The kernel answers."""
        self.kernel_answered = True
        self._tell("kernel", sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells))

    def on_cell_execute(self, cell: NotebookNode, cell_index: int) -> None:
        """A cell starts."""
        self._cell += 1
        self._tell("cell", self._cell)

    def on_cell_executed(self, cell: NotebookNode, cell_index: int, execute_reply: dict) -> None:
        """It has ended."""
        self._tell("executed", self._cell)


def _what_went_wrong(error, kernel_answered):
    """What went wrong: the kind and the message of a `records.Problem`."""
    first = f"{type(error).__name__}: {error}".splitlines()[0]
    match error:
        case PapermillExecutionError():
            value = str(error.evalue).strip().splitlines()
            return "cell", f"{error.ename}: {value[0] if value else ''}"
        case DeadKernelError():
            status = Kernel.current.status
            why = "; it may have run out of memory" if status == -signal.SIGKILL else ""
            return "kernel died", f"the kernel was ended {_ended(status)}{why}"
        case CellTimeoutError():  # for outputs: cells themselves have no time limit of their own
            text = f"the cell has ended, but its outputs had not all arrived {OUTPUT_SECONDS} s later"
            return "outputs lost", text
        case SaveError():
            return "files", str(error)
        case _ if kernel_answered:
            return "papermill", first
        case _:
            return "kernel did not start", f"the kernel did not start: {first}"
