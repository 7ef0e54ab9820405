"""What is seen while a batch runs: a live view in a terminal, one line for each finished run in a log."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tapelab.collection.reports.records import Record
from tapelab.collection.texts import one_line

from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

MOST_LINES = 16  # of running notebooks in the live view


class Enduring:
    """A text stream that takes what nobody reads any more: a closed pipe or terminal does not end a batch."""

    def __init__(self, stream: TextIO):
        self._stream = stream

    def __getattr__(self, name):
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

    def _give_up(self):
        """Lead what still comes to nowhere, also what Python itself writes in the end."""
        with Path(os.devnull).open("wb") as null:
            os.dup2(null.fileno(), self._stream.fileno())


def line(record: Record) -> str:
    """One line on a finished run, with rich's markup."""
    name, seconds = escape(record.name), f"({record.seconds:.1f} s)"
    if record.verdict == "ran":
        return f"[green]ran[/] {name} {seconds}"
    problem = escape(str(record.problem))
    if record.verdict == "interrupted":
        return f"[yellow]interrupted[/] {name}"
    return f"[red]FAILED[/] {name} {seconds} {problem}"


@contextmanager
def view(console: Console, total: int, done: int) -> Iterator["Lines"]:
    """The view of a batch, for the time that it runs.

    Args:
        console: a `rich.console.Console`.
        total: how many runs there are.
        done: how many of them need not run again.
    """
    if not console.is_terminal:
        yield Lines(console, total, done)
        return
    shown = Terminal(console, total, done)
    with Live(get_renderable=shown.render, console=console, refresh_per_second=4, transient=True):
        yield shown


class Lines:
    """Plain lines, each complete in itself."""

    def __init__(self, console: Console, total: int, done: int):
        self._console, self._total, self._done = console, total, done
        if done:
            self.note(f"{done} of {total} runs are unchanged since they succeeded, and are not repeated.")

    def note(self, text: str) -> None:
        """Tell something, in one line."""
        self._console.print(one_line(text), highlight=False, markup=False, soft_wrap=True)

    def cell(self, name: str, cell: int, cells: int, where: str) -> None:
        """A run's code cell has started."""

    def done(self, record: Record) -> None:
        """A run has ended."""
        self._done += 1
        if record.verdict == "interrupted" and not record.seconds:
            return  # it had not begun, like maybe thousands of others: the table will tell
        self._console.print(f"\\[{self._done}/{self._total}] {line(record)}", highlight=False, soft_wrap=True)

    def tick(self) -> None:
        """Some time has passed."""


class Terminal(Lines):
    """A bar, the runs under way with their current cell, and above them the runs that have ended."""

    def __init__(self, console: Console, total: int, done: int):
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console)
        self._bar = self._progress.add_task("runs", total=total, completed=done)
        self._running = {}
        super().__init__(console, total, done)

    def cell(self, name: str, cell: int, cells: int, where: str) -> None:
        """A run's code cell has started."""
        began = self._running.get(name, (time.monotonic(),))[0]
        self._running[name] = (began, cell, cells, where)

    def done(self, record: Record) -> None:
        """A run has ended."""
        self._running.pop(record.name, None)
        self._progress.update(self._bar, completed=self._done + 1)
        super().done(record)

    def render(self) -> Group:
        """What the live view shows now."""
        # This runs in the view's own thread.
        running = sorted(dict(self._running).items(), key=lambda item: item[1][0])
        table = Table.grid(padding=(0, 2))
        table.add_column(overflow="fold")  # the end of a name tells the runs of a sweep apart
        for name, (began, cell, cells, where) in running[:MOST_LINES]:
            place = "" if where == "here" else where
            table.add_row(
                escape(name),
                f"cell {cell} of {cells}" if cell else "starting",
                f"{time.monotonic() - began:.0f} s",
                escape(place),
            )
        if len(running) > MOST_LINES:
            table.add_row(f"and {len(running) - MOST_LINES} more")
        return Group(table, self._progress)
