"""Papermill executes one notebook: what it counts as a failure, and what it tells meanwhile."""

import signal
from collections.abc import Callable
from pathlib import Path

from tapelab.collection.running.kernel import Kernel

import papermill
from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from papermill.exceptions import PapermillExecutionError

START_SECONDS = 120  # in which a kernel must answer
# In which a cell's outputs must arrive when it has ended; four, as by default, are few on a busy machine.
OUTPUT_SECONDS = 60


def _ended(status: int | None) -> str:
    if status is None:
        return "for an unknown reason"
    return f"with exit status {status}" if status >= 0 else f"by {signal.Signals(-status).name}"


def execute(job: dict, hooks: "Hooks") -> dict | None:
    """Execute ``source.ipynb`` in this folder. What was executed, `hooks` has.

    Args:
        job: the notebook's "parameters", the "kernel"'s name and the "folder" in which it works.
        hooks: called on the way.

    Returns:
        None, or what went wrong: the "kind" and the "message" of a `records.Problem`.
    """
    Kernel.folder = Path.cwd()
    try:
        papermill.execute_notebook(
            "source.ipynb",
            None,  # it would write the notebook after each cell, which takes a tenth of a run
            parameters=job["parameters"],
            kernel_name=job["kernel"],
            cwd=job["folder"],
            progress_bar=False,
            kernel_manager_class=Kernel,
            start_timeout=START_SECONDS,
            iopub_timeout=OUTPUT_SECONDS,
            shutdown_kernel="immediate",  # all outputs have arrived; TensorFlow takes a second or two to leave
            on_notebook_start=hooks.on_notebook_start,
            on_cell_execute=hooks.on_cell_execute,
        )
    except Exception as error:
        kind, message = _what_went_wrong(error, hooks.notebook is not None)
        return {"kind": kind, "message": message}
    return None


class Hooks:
    """What papermill calls on its way: they tell where it is.

    Attributes:
        notebook: what is executed, as far as it is; None until the kernel has started.
    """

    def __init__(self, tell: Callable[..., None]):
        self._tell, self._cell, self.notebook = tell, 0, None

    def on_notebook_start(self, notebook: NotebookNode) -> None:
        """The kernel answers."""
        self.notebook = notebook
        self._tell("kernel", sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells))

    def on_cell_execute(self, cell: NotebookNode, cell_index: int) -> None:
        """A cell starts."""
        self._cell += 1
        self._tell("cell", self._cell)


def _what_went_wrong(error: BaseException, kernel_answered: bool) -> tuple[str, str]:
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
            return "outputs lost", f"the cell has ended, but its outputs had not all arrived {OUTPUT_SECONDS} s later"
        case _ if kernel_answered:
            return "papermill", first
        case _:
            return "kernel did not start", f"the kernel did not start: {first}"
