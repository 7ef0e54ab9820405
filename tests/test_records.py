"""report.json: what is written is read back, and whatever else lies there is refused and never a traceback."""

import json
from dataclasses import replace

from tapelab.collection.reports import records
from tapelab.collection.reports.records import Problem, Record, Report
from tapelab.collection.reports.storage import Folder

import pytest

RAN = Record(
    name="00_one__seed=1",
    notebook="00_one",
    parameters={"seed": "1", "name": "'x'"},
    verdict="ran",
    problem=None,
    started="2026-01-01T00:00:00+00:00",
    seconds=10.5,
    cells=3,
    where="here",
    digest="0",
    fingerprint="1",
)
FAILED = replace(
    RAN, name="01_bad", verdict="failed", problem=Problem("cell", "no luck", 2, "1 / 0", "trace"), digest=None
)
REPORT = Report(
    started="2026-01-01T00:00:00+00:00",
    seconds=10.0,
    workers=1,
    kernel="python3",
    signal=None,
    environment={"python": "3.12", "packages": {"numpy": "2.0"}, "passed": []},
    runs=[RAN, FAILED],
    earlier={"02_old": replace(RAN, name="02_old")},
)


@pytest.fixture
def place(tmp_path):
    return Folder(tmp_path / "out")


def test_what_is_written_is_read_back(place):
    place.write("report.json", records.encoded(REPORT))
    assert records.read(place) == REPORT
    assert set(records.read(place).by_name()) == {"00_one__seed=1", "01_bad", "02_old"}
    # Other programs read it as well.
    data = json.loads(place.read("report.json"))
    assert data["format"] == records.FORMAT
    assert data["runs"][1]["problem"]["message"] == "no luck"


def test_where_there_is_none_that_is_said(place):
    with pytest.raises(FileNotFoundError):
        records.read(place)


def changed(**values):
    return json.dumps(json.loads(records.encoded(REPORT)) | values)


def with_run(**values):
    first, *rest = json.loads(records.encoded(REPORT))["runs"]
    return changed(runs=[{key: value for key, value in (first | values).items() if value != "gone"}, *rest])


WHOLE = records.encoded(REPORT).decode()
DAMAGED = {
    "nothing": "",
    "half": WHOLE[: len(WHOLE) // 2],
    "no JSON": "{",
    "another encoding": WHOLE.replace("here", "là").encode("latin-1"),
    "a list": "[]",
    "no format": "{}",
    "a later format": changed(format=99),
    "no runs": changed(runs=None),
    "an empty run": changed(runs=[{}]),
    "an earlier run that is none": changed(earlier={"00_one": {"name": "00_one"}}),
    "no problem": with_run(problem="gone"),
    "another verdict": with_run(verdict="fine"),
    "a failure without a problem": with_run(verdict="failed"),
    "a problem that is none": with_run(problem={"kind": "cell"}),
    "negative seconds": with_run(seconds=-1),
    "endless seconds": with_run(seconds=float("inf")),
    "more seconds": with_run().replace("10.5", "9" * 5000),
    "many cells": with_run(cells=10**4000),
    "seconds in words": with_run(seconds="long"),
    "a value that is no text": with_run(parameters={"seed": 1}),
    "a name that leads elsewhere": with_run(name="../../x"),
    "a name that is too long": with_run(name="x" * 300),
    "half a character": with_run().replace("here", "\\ud800"),
    "deep parameters": with_run(parameters="DEEP").replace('"DEEP"', "[" * 100_000 + "]" * 100_000),
    "packages in words": changed(environment={"packages": "many"}),
    "no worker": changed(workers=0),
}


@pytest.mark.parametrize("content", DAMAGED.values(), ids=DAMAGED)
def test_what_nobody_wrote_is_refused(place, content):
    content = content.encode() if isinstance(content, str) else content
    place.write("report.json", content)
    with pytest.raises(records.DamagedReportError, match=r"out/report\.json is damaged \("):
        records.read(place)


def test_a_report_that_cannot_be_read_is_said_to_be_so(place):
    (place.path / "report.json").mkdir()
    with pytest.raises(records.DamagedReportError, match="cannot be read"):
        records.read(place)


def test_a_notebook_counts_where_it_is_as_it_was_stored(place):
    place.write("00_one__seed=1.ipynb", b"one")
    place.write("01_bad.ipynb", b"bad")
    place.write("03_cut.ipynb", b"cut o")
    (place.path / "04_folder.ipynb").mkdir()
    runs = [
        replace(RAN, digest=records.digest(b"one")),
        FAILED,  # left no notebook
        replace(RAN, name="02_gone", digest=records.digest(b"gone")),
        replace(RAN, name="03_cut", digest=records.digest(b"cut off")),
        replace(RAN, name="04_folder", digest=records.digest(b"")),
    ]
    assert records.intact(place, runs) == {"00_one__seed=1"}
