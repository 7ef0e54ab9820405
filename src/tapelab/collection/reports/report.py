"""What people and CI read about a batch: a page, JUnit XML, and the table in the terminal."""

import base64
import io
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import quote

from tapelab.collection import texts
from tapelab.collection.reports import records
from tapelab.collection.reports.live import line, verdict
from tapelab.collection.reports.records import Record, Report
from tapelab.collection.reports.storage import Folder
from tapelab.collection.templates import ENVIRONMENT, rendered

from PIL import Image
from rich.console import Console
from rich.markup import escape
from rich.table import Table

HTML, JUNIT = "report.html", "junit.xml"
MOST_ROWS = 40  # of the table in the terminal; a longer one is summed up by notebook
MOST_FAILURES = 30  # listed in the terminal
THUMBNAIL = (220, 150)  # pixels, at most
MOST_FIGURES = 3_000_000  # bytes of pictures in the page; a batch of ten thousand runs has too many
SHOWN = ("tensorflow", "keras", "numpy", "tapelab", "papermill", "ipykernel")  # versions that the page shows at once


def renew(storage: Folder) -> Report:
    """Write the page and the JUnit file of a place anew, from its report.json and the notebooks that lie there now.

    A notebook that is not the one which the record speaks of (of another batch, edited, cut off) is left out.

    Returns:
        What report.json holds, as far as it is still true.

    Raises:
        FileNotFoundError: if there is no report.json.
        DamagedReportError: if it is not what `write` writes.
    """
    report = records.read(storage)
    there = records.intact(storage, report.runs)
    report.runs = [run if run.name in there else replace(run, digest=None) for run in report.runs]
    storage.write(JUNIT, junit(report))
    storage.write(HTML, page(report, storage).encode())
    return report


def write(storage: Folder, report: Report, *, pages: bool = True) -> str | None:
    """Write report.json and, if asked, the page and the JUnit file. Returns None, or why it could not be written."""
    try:
        storage.write(records.JSON, records.encoded(report))
        if pages:
            storage.write(JUNIT, junit(report))
            storage.write(HTML, page(report, storage).encode())
    except OSError as error:
        return texts.one_line(error.strerror or str(error))
    return None


def junit(report: Report) -> bytes:
    """A batch as JUnit XML, one test case for each run."""
    runs = report.runs
    verdicts = [run.verdict for run in runs]
    kinds = [run.problem and run.problem.kind for run in runs]
    counts = {
        "tests": len(runs),
        "failures": kinds.count("cell"),
        "errors": sum(verdict == "failed" for verdict in verdicts) - kinds.count("cell"),
        "skipped": verdicts.count("interrupted"),
    }
    attributes = {name: str(number) for name, number in counts.items()}
    suite = ET.Element("testsuite", {"name": "tapelab run", "time": f"{report.seconds:.3f}"} | attributes)
    for run in runs:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=_for_xml(run.notebook),
            name=_for_xml(run.name),
            time=f"{run.seconds:.3f}",
        )
        if run.problem:
            problem = run.problem
            tag = "skipped" if run.verdict == "interrupted" else "failure" if problem.kind == "cell" else "error"
            told = ET.SubElement(case, tag, message=_for_xml(str(problem)), type=_for_xml(problem.kind))
            told.text = _for_xml(f"{problem.source}\n\n{problem.traceback}".strip())
    return ET.tostring(ET.ElementTree(suite).getroot(), encoding="utf-8", xml_declaration=True)


def _for_xml(text: str) -> str:
    """A text without the characters that XML has no way to write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


def page(report: Report, storage: Folder) -> str:
    """The page: complete in itself, without scripts, and with every text from a notebook escaped."""
    figures, left_out = _figures(report.runs, storage)
    groups = {}
    for run in report.runs:
        groups.setdefault(run.notebook, []).append(run)
    packages = report.environment.get("packages", {})
    return rendered(
        "report.html",
        report=report,
        groups=groups,
        counts={v: sum(run.verdict == v for run in report.runs) for v in ("ran", "failed", "interrupted")},
        reused=sum(run.reused for run in report.runs),
        failures=[run for run in report.runs if run.problem and run.verdict == "failed"],
        swept=any(run.parameters for run in report.runs),
        longest=max((run.seconds for run in report.runs), default=0) or 1,
        figures=figures,
        left_out=left_out,
        versions={name: packages[name] for name in SHOWN if name in packages},
    )


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


ENVIRONMENT.filters |= {"duration": _duration, "address": lambda name: quote(f"{name}.ipynb")}


def _figures(runs: list[Record], storage: Folder) -> tuple[dict[str, list[tuple[str, str]]], int]:
    """Thumbnails for the runs, failed ones first, until the page is full.

    Returns:
        A dict from a run's name to its list of (address, alternative text), and how many runs are without, for lack of
        room.
    """
    found, room, left_out = {}, MOST_FIGURES, 0
    for run in sorted(runs, key=lambda run: run.verdict == "ran"):
        if not run.digest:
            continue
        if room <= 0:
            left_out += 1
            continue
        try:
            found[run.name] = list(_pictures(json.loads(storage.read(f"{run.name}.ipynb"))["cells"]))
        except Exception:  # it may have been edited into anything, or be out of reach: the page does without
            continue
        room -= sum(len(thumbnail) for thumbnail, _ in found[run.name])
    return found, left_out


def _pictures(cells: list[dict]) -> Iterator[tuple[str, str]]:
    for cell in cells:
        for output in cell.get("outputs", []):
            if thumbnail := _thumbnail(output.get("data", {}).get("image/png")):
                yield thumbnail, str(cell["metadata"].get("alt", "Figure"))


def _thumbnail(png: object) -> str | None:
    """A small copy of a picture as a ``data:`` address, or None if it is no picture."""
    if not png:
        return None
    try:
        with Image.open(io.BytesIO(base64.b64decode("".join(png))), formats=["PNG"]) as picture:
            small = picture.convert("RGBA")
            small.thumbnail((2 * THUMBNAIL[0], 2 * THUMBNAIL[1]))
            ground = Image.new("RGB", small.size, "white")
            ground.paste(small, mask=small)
            written = io.BytesIO()
            # Octrees take a sixth of the time that Pillow's default takes, and keep thin coloured lines better.
            ground.quantize(64, method=Image.Quantize.FASTOCTREE).save(written, "PNG")
    except Exception:  # a notebook may call anything a picture
        return None
    return "data:image/png;base64," + base64.b64encode(written.getvalue()).decode()


def show(console: Console, report: Report, storage: Folder, *, written: bool = True) -> None:
    """Print the table of a batch, what failed and where the results are.

    Args:
        written: whether the page could be written.
    """
    runs = report.runs
    if len(runs) <= MOST_ROWS:
        table = Table("run", "cells", "seconds", "verdict")
        for run in runs:
            table.add_row(escape(run.name), str(run.cells), f"{run.seconds:.1f}", verdict(run))
    else:
        table = Table("notebook", "runs", "seconds", "verdict")
        for notebook in dict.fromkeys(run.notebook for run in runs):
            own = [run for run in runs if run.notebook == notebook]
            bad = sum(run.verdict != "ran" for run in own)
            how = f"[red]{bad} did not succeed[/]" if bad else "[green]ran[/]"
            table.add_row(escape(notebook), str(len(own)), f"{sum(run.seconds for run in own):.1f}", how)
    for column in table.columns[1:3]:
        column.justify = "right"
    table.columns[0].overflow = "fold"  # the end of a name tells the runs of a sweep apart
    table.columns[3].no_wrap = True
    console.print(table)
    failures = [run for run in runs if run.verdict == "failed"]
    for run in failures[:MOST_FAILURES]:
        console.print(line(run), highlight=False, soft_wrap=True)
    if len(failures) > MOST_FAILURES:
        console.print(f"and {len(failures) - MOST_FAILURES} more, in {HTML}", highlight=False)
    good = sum(run.verdict == "ran" for run in runs)
    where = f"Executed copies and report: {storage}/{HTML}" if written else f"Executed copies: {storage}"
    summary = f"{good} of {len(runs)} runs succeeded in {report.seconds:.0f} s. {where}"
    console.print(summary, markup=False, highlight=False, soft_wrap=True)
