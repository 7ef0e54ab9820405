"""A batch: what is to run, what need not run again, who runs it, and what is written about it."""

import contextlib
import hashlib
import json
import queue
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from tapelab.collection import texts
from tapelab.collection.catalogue import Catalogue
from tapelab.collection.processes.interrupts import Interrupts
from tapelab.collection.reports import records, report
from tapelab.collection.reports.live import View
from tapelab.collection.reports.records import Record, Report
from tapelab.collection.reports.storage import Folder
from tapelab.collection.running import environment, single_run
from tapelab.collection.running.sweep import Run

import nbformat
from rich.console import Console

TICK_SECONDS = 0.25
LONGEST_VALUE = 1000  # characters of a parameter's value in a record
REPORT_SECONDS = 5  # between two writings of report.json while the batch runs


@dataclass(frozen=True)
class Settings:
    """How a batch runs: the kernel's name, seconds that one run may take, and whether to skip what succeeded before."""

    kernel: str = "python3"
    timeout: float = 600.0
    resume: bool = False


def _inputs(catalogue: Catalogue, name: str) -> tuple[str, str]:
    """A notebook's text, and the part of it that decides what happens: its cells' sources and tags."""
    text = catalogue.ipynb(catalogue.by_name(name)).read_text(encoding="utf-8")
    # A tag may let a cell raise an exception, or skip it.
    cells = [
        [cell.cell_type, cell.source, sorted(cell.metadata.get("tags", []))]
        for cell in nbformat.reads(text, as_version=4).cells
    ]
    return text, json.dumps(cells)


def _fingerprint(source: str, run: Run, kernel: str, surroundings: str) -> str:
    parameters = {name: repr(value) for name, value in run.parameters.items()}
    text = json.dumps([source, parameters, kernel, surroundings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _longest_first(runs: Iterable[Run], previous: Mapping[str, Record]) -> list[Run]:
    """The runs with the longest first: a long one at the end would leave the other workers idle.

    How long a notebook takes is known from the last report; those that it does not know come first, in the
    catalogue's order.
    """
    known = {}
    for record in previous.values():
        if record.seconds:  # it began
            known[record.notebook] = max(known.get(record.notebook, 0.0), record.seconds)
    return sorted(runs, key=lambda run: -known.get(run.notebook, float("inf")))


def _record(run: Run, outcome: single_run.Outcome, fingerprint: str) -> Record:
    problem = outcome.problem
    return Record(
        name=run.name,
        notebook=run.notebook,
        parameters={name: texts.cut(repr(value), LONGEST_VALUE) for name, value in run.parameters.items()},
        verdict="ran" if problem is None else "interrupted" if problem.kind == "interrupted" else "failed",
        problem=problem,
        started=outcome.started,
        seconds=round(outcome.seconds, 3),
        cells=outcome.cells,
        where=outcome.where,
        digest=None if outcome.notebook is None else records.digest(outcome.notebook),
        fingerprint=fingerprint,
    )


class Batch:
    """One batch of runs under way, and its record."""

    def __init__(
        self,
        catalogue: Catalogue,
        runs: list[Run],
        executor,
        storage: Folder,
        settings: Settings,
        console: Console,
        signals: Interrupts | None = None,
    ):
        """Prepare a batch.

        Args:
            catalogue: the collection.
            runs: what is to run, each under another name.
            executor: a `pool.Local` or a `cluster.Cluster`.
            storage: where the results go.
            settings: how to run.
            console: what happens is printed there. Nothing that is recorded depends on it.
            signals: asked whether to end; never, if None.
        """
        self._signals = signals or Interrupts()
        self._catalogue, self._runs, self._executor = catalogue, {run.name: run for run in runs}, executor
        self._storage, self._settings, self._console = storage, settings, console
        self._records, self._noted = {}, set()
        self._unwritten = None
        self._written = float("-inf")

    def run(self) -> int:
        """Run all that has to run, and write the report.

        Returns:
            The exit status: 0 if every run succeeded, 1 if any did not, 128 and the signal's number if any was
            interrupted by one.

        Raises:
            LookupError: if the kernel is not installed.
            DamagedReportError: if the report of an earlier batch cannot be read.
        """
        settings, console = self._settings, self._console
        surroundings = self._executor.environment(settings.kernel)
        digest = environment.digest(surroundings)
        notebooks = {run.notebook for run in self._runs.values()}
        inputs = {name: _inputs(self._catalogue, name) for name in notebooks}
        self._prints = {
            name: _fingerprint(inputs[run.notebook][1], run, settings.kernel, digest)
            for name, run in self._runs.items()
        }
        try:
            previous = records.read(self._storage).by_name()
        except FileNotFoundError:
            previous = {}
        self._report = Report(
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=0.0,
            workers=self._executor.workers,
            kernel=settings.kernel,
            signal=None,
            environment=surroundings,
            runs=[],
            earlier={name: record for name, record in previous.items() if name not in self._runs},
        )
        if settings.resume:
            self._reuse(previous)
        waiting = [run for run in self._runs.values() if run.name not in self._records]
        folder = str(self._catalogue.folder.resolve())
        jobs = [
            single_run.Job(run, settings.kernel, folder, settings.timeout) for run in _longest_first(waiting, previous)
        ]
        sources = {run.notebook: inputs[run.notebook][0] for run in waiting}
        self._began = time.monotonic()
        with View(console, len(self._runs), len(self._records)) as shown:
            try:
                signal = self._follow(jobs, sources, shown)
                self._report.signal = signal and signal.name
            finally:
                self._write_report(final=True)
        report.show(console, self._report, self._storage, written=not self._unwritten)
        if self._unwritten:
            text = f"cannot write the report to {self._storage}: {self._unwritten}"
            console.print(text, style="red", highlight=False, markup=False, soft_wrap=True)
        if signal:
            return 128 + signal
        succeeded = all(record.verdict == "ran" for record in self._report.runs)
        return 0 if succeeded and not self._unwritten else 1

    def _reuse(self, previous: Mapping[str, Record]) -> None:
        unchanged = [
            record
            for name, record in previous.items()
            if record.verdict == "ran" and record.fingerprint == self._prints.get(name)
        ]
        intact = records.intact(self._storage, unchanged)
        self._records = {record.name: replace(record, reused=True) for record in unchanged if record.name in intact}

    def _follow(self, jobs, sources, shown):
        """Have the jobs run, and take what comes back, until there is an outcome for each.

        Returns:
            The signal that prevented this, or None.
        """
        events, waiting = queue.Queue(), {job.run.name for job in jobs}
        signals, trouble = self._signals, None
        if jobs and not signals.received:
            self._executor.start(jobs, sources, events)
        while waiting and not signals.received:
            try:
                self._take(events.get(timeout=TICK_SECONDS), waiting, shown)
            except queue.Empty:
                trouble = self._executor.trouble()
                if trouble:
                    break
            self._write_report()
        if not waiting:
            return None
        shown.note(f"{trouble}." if trouble else f"{signals.received.name}: ending the runs under way.")
        self._executor.stop()
        with contextlib.suppress(queue.Empty):
            while True:
                self._take(events.get_nowait(), waiting, shown)
        left = records.Problem("interrupted", trouble or single_run.NOT_BEGUN)
        for name in sorted(waiting):
            self._finish(single_run.Outcome(name, left), shown)
        return None if trouble else signals.received

    def _take(self, event: tuple[Any, ...], waiting: set[str], shown: View) -> None:
        kind, *values = event
        if kind == "cell":
            shown.cell(*values)
        elif kind == "note" and values[0] not in self._noted:  # each worker of a cluster has the same to tell
            self._noted.add(values[0])
            shown.note(values[0])
        elif kind == "done" and values[0].name in waiting:
            waiting.remove(values[0].name)
            self._finish(values[0], shown)

    def _finish(self, outcome: single_run.Outcome, shown: View) -> None:
        """Store what a run left, and note how it ended."""
        name = outcome.name
        try:
            if outcome.notebook is not None:
                self._storage.write(f"{name}.ipynb", outcome.notebook)
            elif outcome.started:  # what lies there is of an earlier batch
                self._storage.remove(f"{name}.ipynb")
            if outcome.log is not None:
                self._storage.write(f"{name}.log", outcome.log)
            else:
                self._storage.remove(f"{name}.log")
        except OSError as error:
            why = f"cannot store it in {self._storage}: {error.strerror or error}"
            outcome.problem = records.Problem("not stored", why)
            outcome.notebook = None
        self._records[name] = _record(self._runs[name], outcome, self._prints[name])
        shown.done(self._records[name])

    def _write_report(self, final: bool = False) -> None:
        if not final and time.monotonic() - self._written < REPORT_SECONDS:
            return
        began = time.monotonic()
        self._report.seconds = round(began - self._began, 3)
        # If the command is killed, this is what remains: runs under way are in it as what they will then have been.
        killed = records.Problem("interrupted", "the command ended before this run did")
        self._report.runs = [
            self._records.get(name) or _record(run, single_run.Outcome(name, killed), self._prints[name])
            for name, run in self._runs.items()
        ]
        self._unwritten = report.write(self._storage, self._report, pages=final)
        # A report on thousands of runs takes a while: it may take a twentieth of the time.
        self._written = time.monotonic() + 20 * (time.monotonic() - began)
