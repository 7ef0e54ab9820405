"""One run: a process of its own, watched from its start to its end, and what is left of it as one `Outcome`."""

import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tapelab.collection.plan import Run

import nbformat
import psutil

GRACE_SECONDS = 5  # between asking a process to end and killing it
LONGEST_TEXT = 20_000  # characters of a cell or a traceback that a report shows
LONGEST_LOG = 1_000_000  # bytes of a log that are kept, the last ones

# Kernels that run side by side share the cores: without these, each would start a thread for every core.
THREADS = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")

# A notebook gets the environment without what gives access to something: it could print it, and outputs are shared.
SECRETS = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|PRIVATE|(^|_)KEY(_|$)|API_?KEY|ACCESS_?KEY", re.IGNORECASE)


@dataclass(frozen=True)
class Job:
    """All that another process, maybe on another machine, needs for one run, but for the notebook's source.

    Attributes:
        folder: where the notebook's relative names hold; a folder of the run's own where that one does not exist.
        timeout: seconds that the run may take.
    """

    run: Run
    kernel: str
    folder: str
    timeout: float


@dataclass(frozen=True)
class Problem:
    """What went wrong, in one line, and where.

    Attributes:
        kind: "cell", "kernel died", "kernel did not start", "time limit", "files", "papermill", "process",
            "worker died", "interrupted" or "not stored".
        cell: the number of the code cell that was running, from 1, or None before the first.
    """

    kind: str
    message: str
    cell: int | None = None
    source: str = ""
    traceback: str = ""

    def __str__(self):
        return f"cell {self.cell}: {self.message}" if self.cell else self.message


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        problem: None if every cell ran.
        started: the time, in UTC, as ISO 8601.
        seconds: from the start of its process to its end.
        phases: seconds of "papermill" (until it was imported), "kernel" (until it answered), "cells".
        cells: how many code cells were executed.
        where: the machine's name in the cluster, or "here".
        notebook: the executed notebook, as far as it got, or None.
        log: what the process wrote, if the run failed.
    """

    name: str
    problem: Problem | None
    started: str = ""
    seconds: float = 0.0
    phases: dict = field(default_factory=dict)
    cells: int = 0
    where: str = "here"
    notebook: bytes | None = None
    log: bytes | None = None


class Children:
    """The processes of runs under way, and how to end them with every kernel that they started."""

    def __init__(self):
        self._running = set()
        self._lock = threading.Lock()
        self.closed = False

    def start(self, popen, command, **kwargs):
        """Start a process by `forkserver.Starter.popen`. Returns what that does, or None after `end_all`.

        It has a session of its own: an interrupt from the keyboard reaches it through `end_all` alone.
        """
        with self._lock:
            if self.closed:
                return None
            process = popen(command, **kwargs)
            self._running.add(process)
            return process

    def forget(self, process):
        """Stop tracking a process that has ended."""
        with self._lock:
            self._running.discard(process)

    def end_all(self):
        """End every process and refuse to start more."""
        with self._lock:
            self.closed = True
            running = list(self._running)
        enders = [threading.Thread(target=end, args=(process,)) for process in running]
        for ender in enders:
            ender.start()
        for ender in enders:
            ender.join()


def end(process):
    """Ask a run's process to end; after a grace period, kill it and all that descends from it.

    The descendants are listed first: once the process is gone, nothing would connect its kernel to it. (A forked
    kernel descends from its fork server, which ends it when it has lost the process that asked for it.)
    """
    try:
        tree = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return
    with contextlib.suppress(OSError):
        process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(GRACE_SECONDS)
    if process.poll() is None:
        with contextlib.suppress(psutil.NoSuchProcess):
            tree = list({*tree, *psutil.Process(process.pid).children(recursive=True)})
        process.kill()
    for one in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(tree, timeout=GRACE_SECONDS)


def clean(text):
    """A notebook's or a program's text as something to show: no control characters, no home folder."""
    text = re.sub(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\r(?=\n)", "", text)
    return without_home("".join(c for c in text if c in "\n\t" or (c.isprintable() or c == " ")))


def without_home(text):
    """A text with the home folder's path as ``~``."""
    home = str(Path.home())
    if len(home) < 2:
        return text
    return re.sub(re.escape(home) + r"(?![\w-])", "~", text)


def _everywhere(change, value):
    """A nested value of JSON with a function applied to each text in it."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: _everywhere(change, item) for key, item in value.items()}
    return [_everywhere(change, item) for item in value] if isinstance(value, list) else value


def _tidy(nb, problem):
    """What papermill leaves, made fit to keep: no home folder, texts in one piece, and each cell's true status.

    Papermill marks all cells as completed when a kernel dies, a process ends, or a file cannot be written.
    """
    nb.metadata = nbformat.from_dict(_everywhere(without_home, nb.metadata))
    number = 0
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = [nbformat.from_dict(_everywhere(without_home, output)) for output in _joined(cell.outputs)]
        if not cell.source.strip():
            continue
        number += 1
        status = cell.metadata.get("papermill", {})
        if problem is not None and number >= (problem.cell or 1):
            reached = number == problem.cell
            status |= {"status": "failed" if reached else "pending", "exception": True if reached else None}
    if problem is not None:
        nb.metadata.setdefault("papermill", {})["exception"] = True


def _joined(outputs):
    """The outputs with what a cell printed in one piece: whether two lines arrive together depends on the moment.

    nbclient would do it too (``coalesce_streams``), in a time that grows with the square of a line's length.
    """
    found = []
    for output in outputs:
        last = found[-1] if found else {}
        if output.output_type == last.get("output_type") == "stream" and output.name == last["name"]:
            last["text"] += output.text
        else:
            found.append(output)
    return found


def _locate(problem, nb):
    """The problem with the source of its cell, and the traceback if there is one."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    if problem.cell is None or problem.cell > len(cells):
        return problem
    cell = cells[problem.cell - 1]
    lines = [line for o in cell.outputs if o.output_type == "error" for line in o.traceback]
    traceback = clean("\n".join(lines))[-LONGEST_TEXT:]
    return Problem(problem.kind, problem.message, problem.cell, clean(cell.source)[:LONGEST_TEXT], traceback)


def cores():
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def environment(side_by_side):
    """Return the environment of a run's process, as a dict: this process's without secrets, and a share of the cores.

    Args:
        side_by_side: how many runs share this machine's cores.
    """
    harmless = {name: value for name, value in os.environ.items() if not SECRETS.search(name)}
    return harmless | dict.fromkeys(THREADS, str(max(1, cores() // side_by_side)))


def run(job, source, *, children, starter, on_cell=lambda cell, cells: None):
    """Execute one notebook in a process of its own, and wait for it.

    Args:
        job: the `Job`.
        source: the notebook, as text.
        children: the `Children` that the process is to belong to.
        starter: the `forkserver.Starter` that starts the process.
        on_cell: called with a code cell's number, from 1, and how many there are, when one starts.

    Returns:
        An `Outcome`.
    """
    outcome = Outcome(job.run.name, None, started=datetime.now(UTC).isoformat(timespec="seconds"))
    with tempfile.TemporaryDirectory(prefix="tapelab-", ignore_cleanup_errors=True) as scratch:
        scratch = Path(scratch)
        try:
            (scratch / "source.ipynb").write_text(source, encoding="utf-8")
            outcome.problem = _watch(job, scratch, outcome, children, starter, on_cell)
        except OSError as error:
            outcome.problem = Problem("files", f"cannot write: {error.strerror or error}")
        with contextlib.suppress(FileNotFoundError):
            nb = nbformat.read(scratch / "executed.ipynb", as_version=4)
            if outcome.problem is not None:
                outcome.problem = _locate(outcome.problem, nb)
            _tidy(nb, outcome.problem)
            outcome.notebook = (nbformat.writes(nb) + "\n").encode()
            outcome.cells = sum(c.cell_type == "code" and c.execution_count is not None for c in nb.cells)
        if outcome.problem is not None:
            with contextlib.suppress(FileNotFoundError):
                text = (scratch / "log").read_bytes()[-LONGEST_LOG:].decode(errors="replace")
                outcome.log = without_home(text).encode()
    return outcome


def _watch(job, scratch, outcome, children, starter, on_cell):
    """Run the process to its end. Returns the `Problem`, or None; fills in the outcome's times."""
    folder = job.folder if Path(job.folder).is_dir() else str(scratch)
    order = {"parameters": job.run.parameters, "kernel": job.kernel, "folder": folder}
    with (scratch / "log").open("wb") as log:
        began = time.monotonic()
        process = children.start(
            starter.popen,
            [sys.executable, "-P", "-m", "tapelab.collection.child"],
            cwd=scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
        )
    if process is None:
        return Problem("interrupted", "the batch was interrupted before this run started")
    expired = threading.Event()

    def expire():
        expired.set()
        end(process)

    timer = threading.Timer(job.timeout, expire)
    timer.start()
    cell, cells, ended, since = None, 0, None, began
    try:
        with contextlib.suppress(OSError):  # it may have died before it could read
            process.stdin.write(json.dumps(order).encode() + b"\n")
            process.stdin.flush()
        for line in process.stdout:
            event, *values = json.loads(line)
            now = time.monotonic()
            if event == "ready":
                outcome.phases["papermill"] = now - began
            elif event == "kernel":
                outcome.phases["kernel"] = now - since
                cells = values[0]
            elif event == "cell":
                cell = values[0]
                on_cell(cell, cells)
            elif event == "executed":
                outcome.phases["cells"] = outcome.phases.get("cells", 0.0) + now - since
            elif event == "end":
                ended = values
            since = now
        status = process.wait()
    finally:
        timer.cancel()
        children.forget(process)
        with contextlib.suppress(OSError):
            process.stdin.close()
        process.stdout.close()
        outcome.seconds = time.monotonic() - began
    if ended is not None:
        return Problem(**ended[0], cell=cell) if ended[0] else None
    if children.closed:
        return Problem("interrupted", "the batch was interrupted", cell)
    if expired.is_set():
        return Problem("time limit", f"ended after {job.timeout:g} s (the limit set with --timeout)", cell)
    lines = [line for line in (scratch / "log").read_text(errors="replace").splitlines() if line.strip()]
    last = f"; its last words: {clean(lines[-1])}" if lines else ""
    return Problem("process", f"the run's process ended with status {status}{last}", cell)
