"""What is recorded about a batch, in report.json, and how much of a record found there can be trusted.

Everything is checked once, when the file is read. Who holds a `Record` need not check it again.
"""

import contextlib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, Literal, TypedDict

from tapelab.collection import texts
from tapelab.collection.reports.storage import Folder

import click
import msgspec
from msgspec import Meta

FORMAT = 2
JSON = "report.json"
ADVICE = "Move it away, or choose another folder"

Seconds = Annotated[float, Meta(ge=0, le=1e10)]
Count = Annotated[int, Meta(ge=0, le=10**9)]
FileName = Annotated[str, Meta(pattern=r"^[^/\\\x00]+$", max_length=255)]


class DamagedReportError(click.ClickException, ValueError):
    """A report.json that cannot be used. The message says why."""


@dataclass(frozen=True)
class Problem:
    """What went wrong, in one line, and where.

    Attributes:
        kind: "cell", "kernel died", "kernel did not start", "time limit", "files", "papermill", "process",
            "outputs lost", "worker died", "interrupted" or "not stored".
        cell: the number of the code cell that was running, from 1, or None before the first.
    """

    kind: str
    message: str
    cell: int | None = None
    source: str = ""
    traceback: str = ""

    def __post_init__(self) -> None:
        # A message holds what a notebook or a program said: it must not reach a terminal as it is.
        object.__setattr__(self, "message", texts.one_line(self.message))

    def __str__(self) -> str:
        return f"cell {self.cell}: {self.message}" if self.cell else self.message


@dataclass(frozen=True)
class Record:
    """What came of one run.

    Attributes:
        name: the stem of its files, unique in its batch.
        parameters: the values that override the notebook's defaults, as Python would write them.
        problem: None if every cell ran, and only then.
        started: the time, in UTC, as ISO 8601; empty if it did not begin.
        seconds: from the start of its process to its end.
        cells: how many code cells were executed.
        where: the machine's name in the cluster, or "here".
        digest: SHA-256 of the executed notebook that was stored, or None if none was.
        fingerprint: changes with anything on which the outcome depends.
        reused: whether it was not repeated in this batch.
    """

    name: FileName
    notebook: FileName
    parameters: dict[str, str]
    verdict: Literal["ran", "failed", "interrupted"]
    problem: Problem | None
    started: str
    seconds: Seconds
    cells: Count
    where: str
    digest: str | None
    fingerprint: str
    reused: bool = False

    def __post_init__(self) -> None:
        if (self.verdict == "ran") != (self.problem is None):
            raise ValueError(f"the verdict on {self.name} is {self.verdict!r}, with the problem {self.problem}")


class Environment(TypedDict, total=False):
    """What `environment.of_kernel` says, or as much of it as is known."""

    python: str
    platform: str
    device: str
    tapelab: str
    packages: dict[str, str]
    passed: list[str]
    kernel: str
    problem: str


@dataclass
class Report:
    """A batch: what report.json holds.

    Attributes:
        started: the time, in UTC, as ISO 8601.
        seconds: that it has taken so far.
        workers: how many runs went side by side.
        kernel: the Jupyter kernel's name.
        signal: the name of the signal that interrupted it, or None.
        runs: one record for each run.
        earlier: records of runs of earlier batches in the same place, by the run's name.
    """

    started: str
    seconds: Seconds
    workers: Annotated[int, Meta(ge=1, le=10**9)]
    kernel: str
    signal: str | None
    environment: Environment
    runs: list[Record]
    earlier: dict[FileName, Record] = field(default_factory=dict)
    format: Literal[FORMAT] = FORMAT

    def by_name(self) -> dict[str, Record]:
        """All records, also the earlier ones."""
        return self.earlier | {record.name: record for record in self.runs}


def encoded(report: Report) -> bytes:
    """A report as JSON."""
    return msgspec.json.format(msgspec.json.encode(report), indent=1)


def read(storage: Folder) -> Report:
    """The report that lies in a place.

    Raises:
        FileNotFoundError: if there is none.
        DamagedReportError: if it is not what `encoded` writes.
    """
    place = f"{storage}/{JSON}"
    try:
        content = storage.read(JSON)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DamagedReportError(f"{place} cannot be read ({error}). {ADVICE}") from error
    try:
        return msgspec.json.decode(content, type=Report)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise DamagedReportError(f"{place} is damaged ({error}). {ADVICE}") from error


def digest(notebook: bytes) -> str:
    """A text that changes with anything in a stored notebook."""
    return hashlib.sha256(notebook).hexdigest()


def intact(storage: Folder, records: Iterable[Record]) -> set[str]:
    """The names of those runs whose executed notebook lies in a place as it was stored."""
    found = set()
    for record in records:
        with contextlib.suppress(OSError):  # a notebook that cannot be read is as good as none
            if record.digest == digest(storage.read(f"{record.name}.ipynb")):
                found.add(record.name)
    return found
