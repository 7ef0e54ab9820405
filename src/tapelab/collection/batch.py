"""A batch: what is to run, what need not run again, who runs it, and what is written about it."""

import contextlib
import hashlib
import json
import queue
import signal
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tapelab.collection import environment, one, report
from tapelab.collection.live import view

import nbformat

TICK_SECONDS = 0.25
REPORT_SECONDS = 5  # between two writings of report.json while the batch runs


@dataclass(frozen=True)
class Settings:
    """How a batch runs: the kernel's name, seconds that one run may take, and whether to skip what succeeded before."""

    kernel: str = "python3"
    timeout: float = 600.0
    resume: bool = False


class _Signals:
    """Notes the first signal that asks the batch to end. While it ends, further ones change nothing."""

    WATCHED = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

    def __init__(self):
        self.received = None
        self._previous = {}

    def _note(self, number, _):
        self.received = self.received or signal.Signals(number)

    def __enter__(self):
        for number in self.WATCHED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_):
        for number, handler in self._previous.items():
            signal.signal(number, handler)


def _inputs(catalogue, run):
    """A notebook's text, and the part of it that decides what happens: its cells' sources."""
    text = catalogue.ipynb(catalogue.by_name(run.notebook)).read_text(encoding="utf-8")
    cells = [[cell.cell_type, cell.source] for cell in nbformat.reads(text, as_version=4).cells]
    return text, json.dumps(cells)


def _fingerprint(source, run, kernel, surroundings):
    text = json.dumps([source, run.parameters, kernel, surroundings], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _longest_first(runs, catalogue, previous):
    """The runs with the longest first: a long one at the end would leave the other workers idle.

    How long a notebook takes is known from the last report; those that it does not know come first, by the catalogue.
    """
    minutes = {n.name: n.minutes for n in catalogue.notebooks}
    known = {}
    for record in previous.values():
        if record["seconds"]:  # it began
            known[record["notebook"]] = max(known.get(record["notebook"], 0.0), record["seconds"])
    return sorted(runs, key=lambda run: (-known.get(run.notebook, float("inf")), -minutes[run.notebook]))


def _record(run, outcome, fingerprint):
    problem = outcome.problem
    verdict = "ran" if problem is None else "interrupted" if problem.kind == "interrupted" else "failed"
    return {
        "name": run.name,
        "notebook": run.notebook,
        "parameters": run.parameters,
        "settings": run.settings,
        "verdict": verdict,
        "problem": problem and vars(problem),
        "started": outcome.started,
        "seconds": round(outcome.seconds, 3),
        "phases": {name: round(seconds, 3) for name, seconds in outcome.phases.items()},
        "cells": outcome.cells,
        "where": outcome.where,
        "stored": outcome.notebook is not None,
        "fingerprint": fingerprint,
        "reused": False,
    }


class Batch:
    """One batch of runs under way, and its record."""

    def __init__(self, catalogue, runs, executor, storage, settings, console):
        self._catalogue, self._runs, self._executor = catalogue, {run.name: run for run in runs}, executor
        self._storage, self._settings, self._console = storage, settings, console
        self._records = {}
        self._unwritten = None
        self._written = float("-inf")

    def run(self):
        """Run all that has to run, and write the report.

        Returns:
            The exit status: 0 if every run succeeded, 1 if any did not, 128 and the signal's number if interrupted.

        Raises:
            LookupError: if the kernel is not installed.
        """
        settings, console = self._settings, self._console
        surroundings = self._executor.environment(settings.kernel)
        digest = environment.digest(surroundings)
        inputs = dict.fromkeys({run.notebook for run in self._runs.values()})
        for run in self._runs.values():
            inputs[run.notebook] = inputs[run.notebook] or _inputs(self._catalogue, run)
        self._prints = {
            name: _fingerprint(inputs[run.notebook][1], run, settings.kernel, digest)
            for name, run in self._runs.items()
        }
        try:
            previous = report.load(self._storage)
        except report.DamagedReportError as error:
            _tell(console, f"{error}. Every run starts anew.", "yellow")
            previous = {}
        self._data = {
            "format": report.FORMAT,
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": 0.0,
            "workers": self._executor.workers,
            "kernel": settings.kernel,
            "signal": None,
            "environment": surroundings,
            "runs": [],
            "earlier": {name: record for name, record in previous.items() if name not in self._runs},
        }
        if settings.resume:
            self._reuse(previous)
        waiting = [run for run in self._runs.values() if run.name not in self._records]
        folder = str(self._catalogue.folder.resolve())
        jobs = [
            one.Job(run, settings.kernel, folder, settings.timeout)
            for run in _longest_first(waiting, self._catalogue, previous)
        ]
        sources = {run.notebook: inputs[run.notebook][0] for run in waiting}
        self._began = time.monotonic()
        with _Signals() as signals, view(console, len(self._runs), len(self._records)) as shown:
            self._follow(jobs, sources, shown, signals)
            self._data["signal"] = signals.received and signals.received.name
            self._write_report(final=True)
        report.show(console, self._data, self._storage)
        if self._unwritten:
            _tell(console, f"cannot write the report to {self._storage}: {self._unwritten}", "red")
        if signals.received:
            return 128 + signals.received
        succeeded = all(record["verdict"] == "ran" for record in self._data["runs"])
        return 0 if succeeded and not self._unwritten else 1

    def _reuse(self, previous):
        stored = self._storage.names()
        for name in self._runs:
            record = previous.get(name)
            unchanged = record and record["verdict"] == "ran" and record["fingerprint"] == self._prints[name]
            if unchanged and f"{name}.ipynb" in stored:
                self._records[name] = record | {"reused": True}

    def _follow(self, jobs, sources, shown, signals):
        """Have the jobs run, and take what comes back, until there is an outcome for each."""
        events, waiting = queue.Queue(), {job.run.name for job in jobs}
        trouble = None
        if jobs:
            self._executor.start(jobs, sources, events)
        while waiting and not signals.received:
            try:
                self._take(events.get(timeout=TICK_SECONDS), waiting, shown)
            except queue.Empty:
                trouble = self._executor.trouble()
                if trouble:
                    break
            shown.tick()
            self._write_report()
        if waiting:
            shown.note(f"{trouble}." if trouble else f"{signals.received.name}: ending the runs under way.")
            self._executor.stop()
            with contextlib.suppress(queue.Empty):
                while True:
                    self._take(events.get_nowait(), waiting, shown)
            kind, message = ("worker died", trouble) if trouble else ("interrupted", "the batch was interrupted before")
            for name in sorted(waiting):
                self._finish(one.Outcome(name, one.Problem(kind, message)), shown)

    def _take(self, event, waiting, shown):
        kind, *values = event
        if kind == "cell":
            shown.cell(*values)
        elif kind == "note":
            shown.note(*values)
        elif values[0].name in waiting:
            waiting.remove(values[0].name)
            self._finish(values[0], shown)

    def _finish(self, outcome, shown):
        """Store what a run left, and note how it ended."""
        name = outcome.name
        try:
            if outcome.notebook is not None:
                self._storage.write(f"{name}.ipynb", outcome.notebook)
            if outcome.log is not None:
                self._storage.write(f"{name}.log", outcome.log)
            else:
                self._storage.remove(f"{name}.log")
        except Exception as error:  # of the local disk, or of whatever fsspec talks to
            kept = _keep_elsewhere(outcome)
            message = f"cannot store it in {self._storage}: {getattr(error, 'strerror', None) or error}{kept}"
            outcome.problem = one.Problem("not stored", message)
            outcome.notebook = None
        self._records[name] = _record(self._runs[name], outcome, self._prints[name])
        shown.done(self._records[name])

    def _write_report(self, final=False):
        if not final and time.monotonic() - self._written < REPORT_SECONDS:
            return
        self._data["workers"] = self._executor.workers  # more may have joined a cluster
        began = time.monotonic()
        self._data["seconds"] = round(began - self._began, 3)
        # If the command is killed, this is what remains: runs under way are in it as what they will then have been.
        killed = one.Problem("interrupted", "the command ended before this run did")
        self._data["runs"] = [
            self._records.get(name) or _record(run, one.Outcome(name, killed), self._prints[name])
            for name, run in self._runs.items()
        ]
        self._unwritten = report.write(self._storage, self._data, pages=final)
        # A report on thousands of runs takes a while: it may take a twentieth of the time.
        self._written = time.monotonic() + 20 * (time.monotonic() - began)


def _tell(console, text, style):
    console.print(text, style=style, highlight=False, markup=False, soft_wrap=True)


def _keep_elsewhere(outcome):
    """Put an executed notebook that has no place into the folder for temporary files. Returns what to tell."""
    if outcome.notebook is None:
        return ""
    try:
        kept = Path(tempfile.mkdtemp(prefix="tapelab-kept-")) / "executed.ipynb"
        kept.write_bytes(outcome.notebook)
    except OSError:
        return ""
    return f"; what was executed is in {kept}"
