"""Batch execution: every notebook through papermill, one process each, several at a time.

Papermill's exit status decides: the metadata that it stores says "completed" even after a timeout.
"""

import ast
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

import nbformat
import psutil
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

# Half of papermill's start goes into a grammar of URIs that jsonschema loads if it finds it, and uses for no notebook.
PAPERMILL = "import sys; sys.modules['rfc3987_syntax'] = None; from papermill.cli import papermill; papermill()"

# Kernels that run side by side share the cores: without these, each would start a thread for every core.
THREADS = ("TF_NUM_INTRAOP_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")

GRACE_SECONDS = 5  # between asking a process to end and killing it


class ParameterError(ValueError):
    """A parameter that no chosen notebook has, or a value of the wrong type."""


@dataclass(frozen=True)
class Verdict:
    """How one notebook ended: `problem` is None, or one line on what went wrong."""

    name: str
    cells: int
    seconds: float
    problem: str | None


def default_workers():
    """As many as there are cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def parameters_of(path):
    """The names and default values in a notebook's cell tagged ``parameters``: a dict, in the cell's order."""
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "parameters" in cell.metadata.get("tags", []):
            return {
                target.id: ast.literal_eval(statement.value)
                for statement in ast.parse(cell.source).body
                if isinstance(statement, ast.Assign)
                for target in statement.targets
                if isinstance(target, ast.Name)
            }
    return {}


def _convert(name, text, default):
    """A command line's text as a value of the default's type."""
    kind = type(default)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        return kind(text)
    except (ValueError, KeyError):
        raise ParameterError(
            f"parameter {name} is {text!r}; expected a value of type {kind.__name__}, like its default, {default!r}"
        ) from None


def validate_parameters(catalogue, notebooks, given):
    """Decide which notebook gets which parameter, before anything runs.

    A parameter goes to every chosen notebook that has it.

    Args:
        given: pairs (name, text) from a command line.

    Returns:
        A dict from each notebook's name to the values that override its defaults.

    Raises:
        ParameterError: if no chosen notebook has a name, or a text is no value of the default's type.
    """
    defaults = {n.name: parameters_of(catalogue.ipynb(n)) for n in notebooks}
    overrides = {n.name: {} for n in notebooks}
    for name, text in given:
        owners = [notebook for notebook, parameters in defaults.items() if name in parameters]
        if not owners:
            known = sorted({known for parameters in defaults.values() for known in parameters})
            raise ParameterError(f"no chosen notebook has a parameter {name!r}; known: {', '.join(known)}")
        for notebook in owners:
            overrides[notebook][name] = _convert(name, text, defaults[notebook][name])
    return overrides


class Processes:
    """The papermill processes under way, and how to end them with every kernel that they started."""

    def __init__(self):
        self._running = set()
        self._lock = threading.Lock()
        self._closed = False

    def start(self, command, **kwargs):
        """Start a process in a session of its own: an interrupt from the keyboard reaches it through `end_all` alone.

        Returns:
            A `subprocess.Popen`, or None after `end_all`.
        """
        with self._lock:
            if self._closed:
                return None
            process = subprocess.Popen(command, start_new_session=True, **kwargs)
            self._running.add(process)
            return process

    def forget(self, process):
        """Stop tracking a process that has ended."""
        with self._lock:
            self._running.discard(process)

    def end_all(self):
        """End every process and refuse to start more."""
        with self._lock:
            self._closed = True
            running = list(self._running)
        for process in running:
            end_tree(process.pid)


def end_tree(pid):
    """End a process and all that descend from it: ask first, kill what is left after a grace period.

    The descendants are listed before anything is signalled. A kernel runs in a session of its own, so it would not get
    a signal sent to papermill's group, and once papermill is gone nothing would connect the two.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        parent = psutil.Process(pid)
        tree = [*parent.children(recursive=True), parent]
        for process in tree:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        _, alive = psutil.wait_procs(tree, timeout=GRACE_SECONDS)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=GRACE_SECONDS)


def _describe_failure(executed, log):
    """One line on why papermill failed: the failing cell's error, or else the last line that papermill wrote."""
    if executed.exists():
        cells = [cell for cell in nbformat.read(executed, as_version=4).cells if cell.cell_type == "code"]
        for number, cell in enumerate(cells, start=1):
            for output in cell.outputs:
                if output.output_type == "error":
                    value = output.evalue.strip().splitlines()
                    return f"code cell {number}: {output.ename}: {value[0] if value else ''}"
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "papermill failed and wrote nothing"


def _executed_cells(executed):
    if not executed.exists():
        return 0
    cells = nbformat.read(executed, as_version=4).cells
    return sum(cell.cell_type == "code" and cell.execution_count is not None for cell in cells)


def _execute(catalogue, notebook, overrides, *, output, timeout, kernel, environment, processes):
    """Run one notebook in a papermill process of its own. Returns a `Verdict`, or None if the run was called off."""
    # What papermill writes cell by cell gets its final name when it is whole; an older result stays until then.
    partial, executed = output / f".{notebook.name}.partial.ipynb", output / f"{notebook.name}.ipynb"
    log = output / f"{notebook.name}.log"
    command = [sys.executable, "-c", PAPERMILL, str(catalogue.ipynb(notebook)), str(partial)]
    command += ["--cwd", str(catalogue.folder), "--kernel", kernel, "--no-progress-bar", "--log-level", "WARNING"]
    if overrides:
        command += ["--parameters_yaml", json.dumps(overrides)]
    began = time.monotonic()
    with log.open("wb") as written:
        streams = {"stdin": subprocess.DEVNULL, "stdout": written, "stderr": subprocess.STDOUT}
        process = processes.start(command, env=environment, **streams)
        if process is None:
            return None
        try:
            status = process.wait(timeout)
            problem = None if status == 0 else _describe_failure(partial, log)
        except subprocess.TimeoutExpired:
            end_tree(process.pid)
            problem = f"ended after {timeout:g} s (the limit set with --timeout)"
        finally:
            processes.forget(process)
    seconds = time.monotonic() - began
    cells = _executed_cells(partial)
    if partial.exists():
        partial.replace(executed)
    if problem is None:
        log.unlink()
    return Verdict(notebook.name, cells, seconds, problem)


def _raise_interrupt(*_):
    raise KeyboardInterrupt


def run_and_report(catalogue, notebooks, overrides, *, output, workers, timeout, kernel="python3"):
    """Execute notebooks side by side, with a progress bar; print a table of verdicts.

    Args:
        overrides: the parameters of each notebook, from `validate_parameters`.
        output: the folder for the executed notebooks, made if it is missing. A failed notebook's log lies beside it.
        workers: how many run at a time.
        timeout: seconds that one notebook may take.
        kernel: the name of an installed Jupyter kernel.

    Returns:
        The exit status: 0 if all ran, 1 if any failed, 130 if interrupted. Interrupted, it ends every kernel, and keeps
        and reports what had finished.
    """
    console = Console()
    try:
        output.mkdir(parents=True, exist_ok=True)
        (output / ".writable").touch()
        (output / ".writable").unlink()
    except OSError as error:
        console.print(f"cannot write to {output}: {error.strerror}. Choose another folder with --output.", style="red")
        return 1
    processes, verdicts, interrupted = Processes(), [], False
    settings = {"output": output, "timeout": timeout, "kernel": kernel, "processes": processes}
    settings["environment"] = os.environ | dict.fromkeys(THREADS, str(max(1, default_workers() // workers)))
    previous = signal.signal(signal.SIGTERM, _raise_interrupt)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    began = time.monotonic()
    pool = ThreadPoolExecutor(workers)
    try:
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task("notebooks", total=len(notebooks))
            # What takes longest to read also takes longest to run, and would leave the other workers idle at the end.
            longest_first = sorted(notebooks, key=lambda n: -n.minutes)
            waiting = [pool.submit(_execute, catalogue, n, overrides[n.name], **settings) for n in longest_first]
            for future in as_completed(waiting):
                verdict = future.result()
                verdicts.append(verdict)
                progress.advance(bar)
                mark = "[green]ran[/]" if verdict.problem is None else "[red]FAILED[/]"
                progress.console.print(f"{mark} {verdict.name} ({verdict.seconds:.1f} s)", highlight=False)
    except KeyboardInterrupt:
        interrupted = True
        console.print("Interrupted: ending the kernels.", style="yellow")
    finally:
        processes.end_all()
        pool.shutdown(cancel_futures=True)
        signal.signal(signal.SIGTERM, previous)
    _print_table(console, notebooks, verdicts)
    parameters = [parameters_of(catalogue.ipynb(n)) | overrides[n.name] for n in notebooks]
    datasets = sorted({chosen["dataset"] for chosen in parameters if "dataset" in chosen})
    good = sum(verdict.problem is None for verdict in verdicts)
    seconds = time.monotonic() - began
    summary = f"{good} of {len(notebooks)} notebooks ran in {seconds:.0f} s"
    if datasets:
        summary += f"; data set: {', '.join(datasets)}"
    console.print(f"{summary}. Executed copies: {output}", highlight=False)
    for verdict in verdicts:
        if verdict.problem is not None:
            console.print(f"Log of {verdict.name}: {output / verdict.name}.log", highlight=False)
    if interrupted:
        return 130
    return 0 if all(verdict.problem is None for verdict in verdicts) else 1


def _print_table(console, notebooks, verdicts):
    found = {verdict.name: verdict for verdict in verdicts}
    table = Table("notebook", "cells", "seconds", "verdict")
    for column in table.columns[1:3]:
        column.justify = "right"
    for n in notebooks:
        verdict = found.get(n.name)
        if verdict is None:
            table.add_row(n.name, "", "", "[yellow]not finished[/]")
        else:
            text = "[green]ran[/]" if verdict.problem is None else f"[red]FAILED[/] {escape(verdict.problem)}"
            table.add_row(n.name, str(verdict.cells), f"{verdict.seconds:.1f}", text)
    console.print(table)
