"""One run: a process of its own, watched from its start to its end, and what is left of it as one `Outcome`."""

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection
from pathlib import Path

from tapelab.collection import texts
from tapelab.collection.processes.scratch import folder
from tapelab.collection.reports.records import Problem
from tapelab.collection.running.children import Child, Children
from tapelab.collection.running.sweep import Run

import nbformat

LONGEST_TEXT = 20_000  # characters of a cell or a traceback that a report shows
LONGEST_LOG = 1_000_000  # bytes of a log that are kept, the last ones
NOT_BEGUN = "the batch was interrupted before this run started"


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


@dataclass
class Outcome:
    """How a run ended.

    Attributes:
        problem: None if every cell ran.
        started: the time, in UTC, as ISO 8601.
        seconds: from the start of its process to its end.
        cells: how many code cells were executed.
        where: the machine's name in the cluster, or "here".
        notebook: the executed notebook, as far as it got, or None.
        log: what the process wrote, if the run failed.
    """

    name: str
    problem: Problem | None
    started: str = ""
    seconds: float = 0.0
    cells: int = 0
    where: str = "here"
    notebook: bytes | None = None
    log: bytes | None = None


def _tidy(nb: nbformat.NotebookNode, problem: Problem | None) -> None:
    """What papermill leaves, made fit to keep: texts in one piece, and each cell's true status.

    Papermill marks all cells as completed when a kernel dies, a process ends, or a file cannot be written.
    """
    number = 0
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        cell.outputs = _joined(cell.outputs)
        if not cell.source.strip():
            continue
        number += 1
        status = cell.metadata.get("papermill", {})
        if problem is not None and number >= (problem.cell or 1):
            reached = number == problem.cell
            status |= {"status": "failed" if reached else "pending", "exception": True if reached else None}
    if problem is not None:
        nb.metadata.setdefault("papermill", {})["exception"] = True


def _joined(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
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


def _locate(problem: Problem, nb: nbformat.NotebookNode) -> Problem:
    """The problem with the source of its cell, and the traceback if there is one."""
    cells = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
    if problem.cell is None or problem.cell > len(cells):
        return problem
    cell = cells[problem.cell - 1]
    lines = [line for o in cell.outputs if o.output_type == "error" for line in o.traceback]
    traceback = texts.clean("\n".join(lines))[-LONGEST_TEXT:]
    return Problem(problem.kind, problem.message, problem.cell, texts.clean(cell.source)[:LONGEST_TEXT], traceback)


def run(
    job: Job,
    source: str,
    *,
    children: Children,
    on_cell: Callable[[int, int], None] = lambda cell, cells: None,
) -> Outcome:
    """Execute one notebook in a process of its own, and wait for it.

    Args:
        job: the `Job`.
        source: the notebook, as text.
        children: the `Children` that start the process and end it.
        on_cell: called with a code cell's number, from 1, and how many there are, when one starts.

    Returns:
        An `Outcome`.
    """
    outcome = Outcome(job.run.name, None, started=datetime.now(UTC).isoformat(timespec="seconds"))
    with folder() as scratch:
        try:
            (scratch / "source.ipynb").write_text(source, encoding="utf-8")
            outcome.problem, executed = _watch(job, scratch, outcome, children, on_cell)
        except OSError as error:
            outcome.problem, executed = Problem("files", f"cannot write: {error.strerror or error}"), None
        if executed is not None:
            _keep(outcome, executed)
        if outcome.problem is not None:
            with contextlib.suppress(FileNotFoundError):
                outcome.log = (scratch / "log").read_bytes()[-LONGEST_LOG:]
    return outcome


def _keep(outcome: Outcome, text: str) -> None:
    """Put what was executed into the outcome, and its failing cell into the problem."""
    nb = nbformat.reads(text, as_version=4)
    if outcome.problem is not None:
        outcome.problem = _locate(outcome.problem, nb)
    _tidy(nb, outcome.problem)
    outcome.notebook = (nbformat.writes(nb) + "\n").encode()
    outcome.cells = sum(c.cell_type == "code" and c.execution_count is not None for c in nb.cells)


def _watch(
    job: Job, scratch: Path, outcome: Outcome, children: Children, on_cell: Callable[[int, int], None]
) -> tuple[Problem | None, str | None]:
    """Run the process to its end. Returns the `Problem` or None, and the executed notebook or None."""
    place = job.folder if Path(job.folder).is_dir() else str(scratch)
    child = children.start(scratch, {"parameters": job.run.parameters, "kernel": job.kernel, "folder": place})
    if child is None:
        return Problem("interrupted", NOT_BEGUN), None
    began, expired = time.monotonic(), threading.Event()

    def expire() -> None:
        expired.set()
        child.end()

    timer = threading.Timer(job.timeout, expire)
    timer.start()
    try:
        cell, ended, executed = _listen(child.connection, children.say, on_cell)
        child.process.join()
    finally:
        timer.cancel()
        children.forget(child)
        child.connection.close()
        outcome.seconds = time.monotonic() - began
    return _problem(job, child, cell, ended, expired.is_set(), children.closed, scratch / "log"), executed


def _problem(
    job: Job, child: Child, cell: int | None, ended: list, expired: bool, called_off: bool, log: Path
) -> Problem | None:
    """What kept a run from its end, or None."""
    if ended:
        return Problem(**ended[0], cell=cell) if ended[0] else None
    if called_off:
        return Problem("interrupted", "the batch was interrupted", cell)
    if expired:
        return Problem("time limit", f"ended after {job.timeout:g} s (the limit set with --timeout)", cell)
    status = child.process.exitcode
    return Problem("process", f"the run's process ended with status {status}{_last_words(log)}", cell)


def _listen(
    connection: Connection, say: Callable[[str], None], on_cell: Callable[[int, int], None]
) -> tuple[int | None, list, str | None]:
    """Follow a process by its events, until it sends no more.

    Args:
        connection: takes events, as `child` sends them.
        say: called with a line if the kernel is not forked that was to be.
        on_cell: as for `run`.

    Returns:
        The number of the last code cell that started, or None; a list with what `child` said in the end, None or what
        went wrong, which is empty if it was cut short; and the text of what was executed, or None.
    """
    cell, cells, ended, executed = None, 0, [], None
    with contextlib.suppress(EOFError, OSError):
        while True:
            event, value = connection.recv()
            if event == "ready" and value:
                say(f"Kernels start in the plain way: {value}.")
            elif event == "kernel":
                cells = value
            elif event == "cell":
                cell = value
                on_cell(cell, cells)
            elif event == "end":
                ended = [value]
            elif event == "notebook":
                executed = value
    return cell, ended, executed


def _last_words(log: Path) -> str:
    lines = []
    with contextlib.suppress(FileNotFoundError):
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return f"; its last words: {lines[-1]}" if lines else ""
