"""The process of one run: papermill executes one notebook on one kernel, and this says where it is.

`one.run` starts it in an empty folder of its own as ``python -m tapelab.collection.child``. It reads the job, one line
of JSON, from standard input, and writes events, one line of JSON each, to standard output:

    ["ready"]               papermill is imported
    ["kernel", CELLS]       the kernel answers; so many code cells will run
    ["cell", NUMBER]        a code cell starts
    ["executed", NUMBER]    it has ended
    ["end", PROBLEM]        null, or {"kind": …, "message": …}

Whatever else is written to its standard output or error is the run's log. The end of standard input asks it to end:
that is how the process which started it calls a run off, and also what happens when that process is killed.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path

from tapelab.files import write_whole

import papermill
from jupyter_client.manager import AsyncKernelManager
from nbclient.exceptions import DeadKernelError
from papermill.engines import NBClientEngine, NotebookExecutionManager, papermill_engines
from papermill.exceptions import PapermillExecutionError
from papermill.iorw import LocalHandler, papermill_io

SAVE_SECONDS = 5  # between two savings of a notebook under way
START_SECONDS = 120  # in which a kernel must answer
OUTPUT_SECONDS = (
    60  # in which a cell's outputs must arrive when it has ended; four, as by default, are few on a busy machine
)
SOURCE, EXECUTED = "source.ipynb", "executed.ipynb"
HERE = Path.cwd()  # papermill changes it while the cells run


class SaveError(Exception):
    """The executed notebook could not be written."""


class WholeFiles(LocalHandler):
    """Papermill's way to local files, with every write whole: a run that is killed leaves a notebook that opens."""

    def write(self, buf, path):
        try:
            write_whole(HERE / path, buf.encode())
        except OSError as error:
            raise SaveError(f"cannot write the executed notebook: {error.strerror}") from error


class Sparing(NotebookExecutionManager):
    """Saves every few seconds and at the end. Papermill saves twice for each cell, which takes a tenth of a run."""

    def save(self, **kwargs):
        if self.end_time is not None or (self.now() - self.last_save_time).total_seconds() > SAVE_SECONDS:
            super().save(**kwargs)


class Engine(NBClientEngine):
    """Papermill's engine with the manager above."""

    @classmethod
    def execute_notebook(cls, nb, kernel_name, output_path=None, progress_bar=False, **kwargs):
        manager = Sparing(nb, output_path=output_path, progress_bar=False)
        manager.notebook_start()
        try:
            cls.execute_managed_notebook(manager, kernel_name, **kwargs)
        finally:
            manager.notebook_complete()
        return manager.nb


class Kernel(AsyncKernelManager):
    """Starts the kernel where no other machine can reach it, and remembers how it ended."""

    current = None

    def __init__(self, **kwargs):
        if os.name == "posix":
            # Sockets in this run's own folder: no port is opened, and none can be taken twice. The names are short,
            # since a socket's path may have some hundred characters.
            kwargs |= {"transport": "ipc", "ip": str(HERE / "k"), "connection_file": str(HERE / "k.json")}
        super().__init__(**kwargs)
        self.status = None
        Kernel.current = self

    async def is_alive(self):
        if self.has_kernel:
            self.status = await self.provisioner.poll()
        return await super().is_alive()


def _end_now(*_):
    """Raise SystemExit where the run is, so that papermill saves the notebook and ends the kernel on the way out."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if Kernel.current is not None:
        Kernel.current.shutdown_wait_time = 0.2  # seconds: the kernel is in the middle of a cell and will not answer
    raise SystemExit(1)


def _end_with_the_starter():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def _ended(status):
    if status is None or status >= 0:
        return f"with exit status {status}" if status is not None else "for an unknown reason"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"


def _execute(job, tell):
    """Run the job. Returns None, or what went wrong."""
    progress = {"kernel": False, "cell": 0}

    def on_notebook_start(notebook):
        progress["kernel"] = True
        tell("kernel", sum(cell.cell_type == "code" and bool(cell.source.strip()) for cell in notebook.cells))

    def on_cell_execute(cell, cell_index):
        progress["cell"] += 1
        tell("cell", progress["cell"])

    def on_cell_executed(cell, cell_index, execute_reply):
        tell("executed", progress["cell"])

    hooks = (on_notebook_start, on_cell_execute, on_cell_executed)
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
            **{hook.__name__: hook for hook in hooks},
        )
    except PapermillExecutionError as error:
        first = str(error.evalue).strip().splitlines()
        return {"kind": "cell", "message": f"{error.ename}: {first[0] if first else ''}"}
    except DeadKernelError:
        status = Kernel.current.status
        why = "; it may have run out of memory" if status == -signal.SIGKILL else ""
        return {"kind": "kernel died", "message": f"the kernel was ended {_ended(status)}{why}"}
    except SaveError as error:
        return {"kind": "files", "message": str(error)}
    except Exception as error:
        first = f"{type(error).__name__}: {error}".splitlines()[0]
        if progress["kernel"]:
            return {"kind": "papermill", "message": first}
        return {"kind": "kernel did not start", "message": f"the kernel did not start: {first}"}
    return None


def main():
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def tell(*event):
        print(json.dumps(event), file=events, flush=True)

    signal.signal(signal.SIGTERM, _end_now)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_the_starter, daemon=True).start()
    papermill_io.reset()
    papermill_io.register("local", WholeFiles())
    papermill_engines.register("tapelab", Engine)
    tell("ready")
    tell("end", _execute(job, tell))


if __name__ == "__main__":
    main()
