"""Odd notebooks, catalogues and options, through the whole command: refused in a line, or run and reported."""

import json
import re

from tapelab.collection.cli import main
from tapelab.collection.reports import records
from tapelab.collection.reports.records import Problem
from tapelab.collection.reports.storage import Folder
from tapelab.collection.running import environment, single_run

import nbformat
import pytest
from click.testing import CliRunner
from process_texts import read_text

CATALOGUE = read_text("odd_inputs", "CATALOGUE")
LINES = [
    *("none = None", "pair = (1, (2,))", "by_number = {1: 2}", "some = {1, 2}", "raw = b'\\xff'", "turn = 1e999 + 3j"),
    *("zero = -0.0", "dots = ...", "half = '\\ud800'", "bell = '\\x1b]0;x\\x07'", f"long = '{'y' * 100_000}'"),
    *(f"huge = 0x{'f' * 5000}", "naïve = '漢'", "markup = '[red]{{ x }}</script>'", "deep = " + "[" * 60 + "]" * 60),
]


def notebook(source="seed = 0", cells=(), **metadata):
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source), *cells])
    nb.cells[0].metadata = {"tags": ["parameters"]} | metadata  # of which not all need be valid
    return nb


def with_outputs(*outputs):
    return notebook(cells=[nbformat.v4.new_code_cell("1", execution_count=1, outputs=list(outputs))])


# What is executed, as it comes out of a kernel: (notebook, options of the command).
RUNS = {
    "defaults of every kind": (notebook("\n".join(["seed = 0", *LINES])), ["-p", "seed", "1"]),
    "a long value": (notebook("name = ''"), ["-p", "name", "z" * 100_000]),
    "many values": (
        notebook("name = ''"),
        ["--sweep", "name=" + ",".join(["", "é", "É", "\x1b[2J", "[/]", "{}", "a/b", "."])],
    ),
    "no cells": (nbformat.v4.new_notebook(), []),
    "no code": (nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("text")]), []),
    "an empty cell": (notebook(""), []),
    "metadata": (notebook(alt=7, papermill=None, mystnb=[]), []),
    "pictures that are none": (
        with_outputs(
            nbformat.v4.new_output("display_data", {"image/png": "no"}),
            nbformat.v4.new_output("display_data", {"image/png": ["n", "o"], "image/svg+xml": "<svg"}),
            nbformat.v4.new_output("display_data", {"application/json": {"a": [1, None, {"b": "c"}]}}),
        ),
        [],
    ),
    "an older format": (nbformat.v3.new_notebook(worksheets=[nbformat.v3.new_worksheet()]), []),
}


def written(folder, nb, catalogue=CATALOGUE):
    folder.mkdir()
    (folder / "collection.toml").write_text(catalogue, encoding="utf-8")
    (folder / "00_one.ipynb").write_text(json.dumps(nb))


@pytest.fixture
def command(tmp_path, monkeypatch):
    """A function that runs the command where a run takes no time. Returns what it did and printed."""
    begun = []

    def run(job, source, **_):
        begun.append(job)
        problem = Problem("cell", "[/red] \x1b]0;title\x07", 1, source, source) if len(begun) % 2 else None
        return single_run.Outcome(job.run.name, problem, started="now", seconds=1.0, notebook=source.encode())

    monkeypatch.setattr(single_run, "run", run)
    monkeypatch.setattr(environment, "describe", lambda: {"python": "3.12"})
    monkeypatch.chdir(tmp_path)

    def invoke(*arguments):
        done = CliRunner().invoke(main, ["run", "--no-fork", *arguments])
        assert isinstance(done.exception, SystemExit | None), done.exception
        return done, begun

    return invoke


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize(("nb", "options"), RUNS.values(), ids=RUNS)
def test_what_is_run_is_reported_and_can_be_resumed(tmp_path, command, nb, options):
    written(tmp_path / "notebooks", nb)
    for resume in ([], ["--resume"], ["--resume"]):
        done, begun = command(*options, *resume)
        assert "Executed copies and report: build/executed/report.html" in done.output
        assert "\x1b" not in done.output
        report = records.read(Folder("build/executed"))
        assert len(report.runs) >= 1
        assert (tmp_path / "build/executed/report.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
        assert "\x1b" not in (tmp_path / "build/executed/report.html").read_text(encoding="utf-8")
    # Every second run failed: what succeeded was not repeated.
    ran = sum(run.verdict == "ran" for run in report.runs)
    assert ran == len(report.runs) or len(begun) > len(report.runs)
    assert any(run.reused for run in report.runs)
    again = CliRunner().invoke(main, ["report"])
    assert again.exit_code == 0, again.output


REFUSED = {
    "null tags": (notebook(tags=None), CATALOGUE, [], "is not a notebook: at cells/0/metadata/tags"),
    "an endless limit": (notebook(), CATALOGUE, ["--timeout", "inf"], "'inf' is not a valid integer range"),
    "a long limit": (notebook(), CATALOGUE, ["--timeout", "9" * 300], "is not in the range 1<=x<=31536000"),
    "no time": (notebook(), CATALOGUE, ["--timeout", "0"], "0 is not in the range 1<=x<=31536000"),
    "no output": (notebook(), CATALOGUE, ["--output", ""], "it names no place"),
    "no kernel": (notebook(), CATALOGUE, ["--kernel", "../x"], "no kernel is called '../x'; installed: "),
    "no parameter": (notebook(), CATALOGUE, ["-p", "sed", "1"], "known: seed"),
    "workers elsewhere": (notebook(), CATALOGUE, ["--dask", "tcp://127.0.0.1:9", "--workers", "2"], "for this machine"),
    "no variable": (notebook(), CATALOGUE, ["--pass-env", "NO_SUCH"], "--pass-env NO_SUCH: there is no such variable"),
    "half a sweep": (notebook(), CATALOGUE, ["--sweep", "=1"], "expected NAME=VALUES"),
}


@pytest.mark.parametrize(("nb", "catalogue", "options", "message"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_run_is_refused_before_anything_runs(tmp_path, command, nb, catalogue, options, message):
    written(tmp_path / "notebooks", nb, catalogue)
    done, begun = command(*options)
    assert done.exit_code in (1, 2)
    assert message in re.sub(r"\s+", " ", done.output)
    assert begun == []
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == list((tmp_path / "notebooks").iterdir())
