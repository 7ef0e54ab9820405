"""What is seen while a batch runs: a live view in a terminal, one line for each finished run in a log."""

import os
from pathlib import Path
from typing import Any, TextIO

from tapelab.collection.reports.records import Record
from tapelab.collection.texts import one_line

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Column


class Enduring:
    """A text stream that takes what nobody reads any more: a closed pipe or terminal does not end a batch."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            self._give_up()

    def _give_up(self) -> None:
        """Lead what still comes to nowhere, also what Python itself writes in the end."""
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), self._stream.fileno())


def verdict(record: Record) -> str:
    """How a run ended, with rich's markup."""
    if record.verdict == "ran":
        return "[green]ran[/], unchanged" if record.reused else "[green]ran[/]"
    if record.verdict == "interrupted":
        return "[yellow]interrupted[/]" if record.seconds else "[yellow]not started[/]"
    return "[red]FAILED[/]"


def line(record: Record) -> str:
    """One line on a finished run, with rich's markup."""
    text = f"{verdict(record)} {escape(record.name)} ({record.seconds:.1f} s)"
    return f"{text} {escape(str(record.problem))}" if record.verdict == "failed" else text


class View(Progress):
    """A line for each run that has ended; in a terminal, below, a bar for the batch and one for each run under way.

    Args:
        console: a `rich.console.Console`; if it is no terminal, there are lines alone.
        total: how many runs there are.
        done: how many of them need not run again.
    """

    def __init__(self, console: Console, total: int, done: int):
        # The end of a name tells the runs of a sweep apart.
        name = TextColumn("{task.description}", table_column=Column(overflow="fold"))
        columns = (name, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        is_log = not console.is_terminal
        super().__init__(*columns, console=console, refresh_per_second=4, transient=True, disable=is_log)
        self._total, self._done = total, done
        self._batch = self.add_task("runs", total=total, completed=done)
        self._running = {}
        if done:
            self.note(f"{done} of {total} runs are unchanged since they succeeded, and are not repeated.")

    def note(self, text: str) -> None:
        """Tell something, in one line."""
        self.console.print(one_line(text), highlight=False, markup=False, soft_wrap=True)

    def cell(self, name: str, cell: int, cells: int, where: str) -> None:
        """A run's code cell has started."""
        place = "" if where == "here" else f" {where}"
        if name not in self._running:
            self._running[name] = self.add_task(escape(f"{name}{place}"), total=None)
        self.update(self._running[name], completed=cell, total=cells or None)

    def done(self, record: Record) -> None:
        """A run has ended."""
        if record.name in self._running:
            self.remove_task(self._running.pop(record.name))
        self._done += 1
        self.update(self._batch, completed=self._done)
        if record.verdict == "interrupted" and not record.seconds:
            return  # it had not begun, like maybe thousands of others: the table will tell
        text = f"\\[{self._done}/{self._total}] {line(record)}"
        self.console.print(text, highlight=False, soft_wrap=True)
