"""The record of a batch: report.json, a page for people, JUnit XML for CI, and the table in the terminal."""

import base64
import contextlib
import io
import json
import re
import xml.etree.ElementTree as ET
from importlib.resources import files
from urllib.parse import quote

from tapelab.collection.live import line
from tapelab.collection.one import Problem, without_home

import jinja2
from PIL import Image
from rich.markup import escape
from rich.table import Table

FORMAT = 1
JSON, HTML, JUNIT = "report.json", "report.html", "junit.xml"
MOST_ROWS = 40  # of the table in the terminal; a longer one is summed up by notebook
MOST_FAILURES = 30  # listed in the terminal
THUMBNAIL = (220, 150)  # pixels, at most
MOST_FIGURES = 3_000_000  # bytes of pictures in the page; a batch of ten thousand runs has too many
SHOWN = ("tensorflow", "keras", "numpy", "tapelab", "papermill", "ipykernel")  # versions that the page shows at once


class DamagedReportError(ValueError):
    """A report.json that cannot be used. The message says why."""


@contextlib.contextmanager
def _checked(storage):
    """Raise `DamagedReportError` for what a block finds in a report.json that `write` did not write."""
    try:
        yield
    except (FileNotFoundError, DamagedReportError):
        raise
    except (ValueError, KeyError, TypeError, AttributeError, jinja2.TemplateError) as error:
        raise DamagedReportError(f"{storage}/{JSON} is damaged ({type(error).__name__}: {error})") from error
    except OSError as error:
        raise DamagedReportError(f"{storage}/{JSON} cannot be read ({error})") from error


def _read(storage):
    data = json.loads(storage.read(JSON))
    if data["format"] != FORMAT:
        raise DamagedReportError(f"{storage}/{JSON} is of format {data['format']!r}, and this is format {FORMAT}")
    return data


def load(storage):
    """The records of the last batch in a place, by the run's name; empty if there was none.

    Raises:
        DamagedReportError: if its report.json is not what `write` writes.
    """
    try:
        with _checked(storage):
            data = _read(storage)
            records = {record["name"]: record for record in data["runs"]} | data["earlier"]
            for record in records.values():
                _ = record["verdict"], record["fingerprint"], record["notebook"] + "", record["seconds"] + 0.0
    except FileNotFoundError:
        return {}
    return records


def renew(storage):
    """Write the page and the JUnit file of a place anew, from its report.json and the notebooks that lie there now.

    Returns:
        What report.json holds: a dict.

    Raises:
        FileNotFoundError: if there is no report.json.
        DamagedReportError: if it is not what `write` writes.
    """
    with _checked(storage):
        data, names = _read(storage), storage.names()
        for run in data["runs"]:
            run["stored"] = f"{run['name']}.ipynb" in names
        pages = {JUNIT: junit(data), HTML: page(data, storage).encode()}
    for name, content in pages.items():
        storage.write(name, content)
    return data


def write(storage, data, *, pages=True):
    """Write report.json and, if asked, the page and the JUnit file. Returns None, or why it could not be written."""
    data = _without_homes(data)
    try:
        storage.write(JSON, json.dumps(data, indent=1).encode())
        if pages:
            storage.write(JUNIT, junit(data))
            storage.write(HTML, page(data, storage).encode())
    except Exception as error:  # of the local disk, or of whatever fsspec talks to
        return getattr(error, "strerror", None) or str(error)
    return None


def _without_homes(value):
    if isinstance(value, str):
        return without_home(value)
    if isinstance(value, dict):
        return {key: _without_homes(item) for key, item in value.items()}
    return [_without_homes(item) for item in value] if isinstance(value, list) else value


def floor(data):
    """How the time of a batch compares with what it needs at least, kernel starts and cells shared by the workers.

    Returns:
        A dict with the seconds "floor" and, beyond it, "papermill" (its start), "rest" (saving, ending kernels) and
        "idle" (workers with nothing to do), each a sum over runs, divided by the workers; and "over", the part of the
        floor that was spent beyond it. None if nothing ran.
    """
    ran = [run for run in data["runs"] if not run["reused"] and run["phases"].get("cells")]
    needed = sum(run["phases"]["kernel"] + run["phases"]["cells"] for run in ran)
    if not needed or len(ran) < len([run for run in data["runs"] if not run["reused"]]):
        return None
    workers, papermill = data["workers"], sum(run["phases"]["papermill"] for run in ran)
    spent = sum(run["seconds"] for run in ran)
    return {
        "floor": needed / workers,
        "papermill": papermill / workers,
        "rest": (spent - needed - papermill) / workers,
        "idle": data["seconds"] - spent / workers,
        "over": data["seconds"] * workers / needed - 1,
    }


def junit(data):
    """A batch as JUnit XML, one test case for each run."""
    runs = data["runs"]
    verdicts = [run["verdict"] for run in runs]
    kinds = [run["problem"]["kind"] if run["problem"] else None for run in runs]
    counts = {
        "tests": len(runs),
        "failures": kinds.count("cell"),
        "errors": sum(verdict == "failed" for verdict in verdicts) - kinds.count("cell"),
        "skipped": verdicts.count("interrupted"),
    }
    attributes = {name: str(number) for name, number in counts.items()}
    suite = ET.Element("testsuite", {"name": "tapelab run", "time": f"{data['seconds']:.3f}"} | attributes)
    for run in runs:
        case = ET.SubElement(
            suite,
            "testcase",
            classname=_for_xml(run["notebook"]),
            name=_for_xml(run["name"]),
            time=f"{run['seconds']:.3f}",
        )
        if run["problem"]:
            problem = Problem(**run["problem"])
            tag = "skipped" if run["verdict"] == "interrupted" else "failure" if problem.kind == "cell" else "error"
            told = ET.SubElement(case, tag, message=_for_xml(str(problem)), type=problem.kind)
            told.text = _for_xml(f"{problem.source}\n\n{problem.traceback}".strip())
    return ET.tostring(ET.ElementTree(suite).getroot(), encoding="utf-8", xml_declaration=True)


def _for_xml(text):
    """A text without the characters that XML has no way to write."""
    return re.sub(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "\N{REPLACEMENT CHARACTER}", text)


def page(data, storage):
    """The page: complete in itself, without scripts, and with every text from a notebook escaped."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {"duration": _duration, "address": lambda name: quote(f"{name}.ipynb"), "json": json.dumps}
    template = environment.from_string(
        files("tapelab.collection").joinpath("report.html.j2").read_text(encoding="utf-8")
    )
    figures, left_out = _figures(data["runs"], storage)
    groups = {}
    for run in data["runs"]:
        groups.setdefault(run["notebook"], []).append(run)
    packages = data["environment"].get("packages", {})
    return template.render(
        data=data,
        groups=groups,
        counts={v: sum(run["verdict"] == v for run in data["runs"]) for v in ("ran", "failed", "interrupted")},
        reused=sum(run["reused"] for run in data["runs"]),
        failures=[run for run in data["runs"] if run["problem"] and run["verdict"] == "failed"],
        swept=any(run["parameters"] for run in data["runs"]),
        longest=max((run["seconds"] for run in data["runs"]), default=0) or 1,
        floor=floor(data),
        figures=figures,
        left_out=left_out,
        versions={name: packages[name] for name in SHOWN if name in packages},
    )


def _duration(seconds):
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{seconds:.1f} s"


def _figures(runs, storage):
    """Thumbnails for the runs, failed ones first, until the page is full.

    Returns:
        A dict from a run's name to its list of (address, alternative text), and how many runs are without, for lack of
        room.
    """
    found, room, left_out = {}, MOST_FIGURES, 0
    for run in sorted(runs, key=lambda run: run["verdict"] == "ran"):
        if not run["stored"]:
            continue
        if room <= 0:
            left_out += 1
            continue
        try:
            cells = json.loads(storage.read(f"{run['name']}.ipynb"))["cells"]
        except (OSError, ValueError, KeyError):
            continue
        found[run["name"]] = [
            (thumbnail, str(cell["metadata"].get("alt", "Figure")))
            for cell in cells
            for output in cell.get("outputs", [])
            if (thumbnail := _thumbnail(output.get("data", {}).get("image/png")))
        ]
        room -= sum(len(thumbnail) for thumbnail, _ in found[run["name"]])
    return found, left_out


def _thumbnail(png):
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


def show(console, data, storage):
    """Print the table of a batch, what failed and where the results are."""
    runs = data["runs"]
    if len(runs) <= MOST_ROWS:
        table = Table("run", "cells", "seconds", "verdict")
        for run in runs:
            table.add_row(escape(run["name"]), str(run["cells"]), f"{run['seconds']:.1f}", _verdict(run))
    else:
        table = Table("notebook", "runs", "seconds", "verdict")
        for notebook in dict.fromkeys(run["notebook"] for run in runs):
            own = [run for run in runs if run["notebook"] == notebook]
            bad = sum(run["verdict"] != "ran" for run in own)
            verdict = f"[red]{bad} did not succeed[/]" if bad else "[green]ran[/]"
            table.add_row(escape(notebook), str(len(own)), f"{sum(run['seconds'] for run in own):.1f}", verdict)
    for column in table.columns[1:3]:
        column.justify = "right"
    table.columns[0].overflow = "fold"  # the end of a name tells the runs of a sweep apart
    table.columns[3].no_wrap = True
    console.print(table)
    failures = [run for run in runs if run["verdict"] == "failed"]
    for run in failures[:MOST_FAILURES]:
        console.print(line(run), highlight=False, soft_wrap=True)
    if len(failures) > MOST_FAILURES:
        console.print(f"and {len(failures) - MOST_FAILURES} more, in {HTML}", highlight=False)
    good = sum(run["verdict"] == "ran" for run in runs)
    summary = f"{good} of {len(runs)} runs succeeded in {data['seconds']:.0f} s"
    datasets = sorted({str(run["settings"]["dataset"]) for run in runs if "dataset" in run["settings"]})
    if datasets:
        summary += f"; data set: {escape(', '.join(datasets))}"
    over = floor(data)
    if over:
        summary += f"; {over['over']:.0%} over the floor"
    console.print(
        f"{summary}. Executed copies and report: {escape(f'{storage}/{HTML}')}", highlight=False, soft_wrap=True
    )


def _verdict(run):
    if run["verdict"] == "ran":
        return "[green]ran[/], unchanged" if run["reused"] else "[green]ran[/]"
    if run["verdict"] == "interrupted":
        return "[yellow]interrupted[/]" if run["seconds"] else "[yellow]not started[/]"
    return "[red]FAILED[/]"  # why stands below the table
