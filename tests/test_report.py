"""What is written about a batch: the page, JUnit XML, thumbnails, the table."""

import base64
import io
import re
import xml.etree.ElementTree as ET

from tapelab.collection.reports import records, report
from tapelab.collection.reports.live import View
from tapelab.collection.reports.records import Problem, Record, Report
from tapelab.collection.reports.storage import Folder

import nbformat
import pytest
from PIL import Image
from rich.console import Console

SCRIPT = "<script>alert('x')</script>"


def record(name="00_one", **changes):
    base = {
        "name": name,
        "notebook": "00_one",
        "parameters": {},
        "verdict": "ran",
        "problem": None,
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 10.0,
        "cells": 3,
        "where": "here",
        "digest": "0",
        "fingerprint": "0",
        "reused": False,
    }
    return Record(**(base | changes))


def failed(**changes):
    problem = Problem("cell", f"ValueError: {SCRIPT}", 2, SCRIPT, SCRIPT)
    return record(**({"name": "00_bad", "verdict": "failed", "problem": problem} | changes))


def interrupted(name, **changes):
    return record(name, verdict="interrupted", problem=Problem("interrupted", "the batch was interrupted"), **changes)


def batch(*runs, **changes):
    base = {
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 10.0,
        "workers": 1,
        "kernel": "python3",
        "signal": None,
        "environment": {"python": "3.12", "platform": "Linux", "device": "CPU", "packages": {"numpy": "2.0"}},
        "runs": list(runs),
    }
    return Report(**(base | changes))


@pytest.fixture
def place(tmp_path):
    return Folder(tmp_path / "out")


def png(width, height):
    written = io.BytesIO()
    Image.effect_noise((width, height), 50).save(written, "PNG")
    return base64.b64encode(written.getvalue()).decode()


def notebook(*pictures):
    outputs = [nbformat.v4.new_output("display_data", {"image/png": picture}) for picture in pictures]
    cell = nbformat.v4.new_code_cell("plot()", outputs=outputs, metadata={"alt": f'A "curve" {SCRIPT}'})
    return nbformat.writes(nbformat.v4.new_notebook(cells=[cell])).encode()


def test_the_page_escapes_all_that_comes_from_outside(place):
    place.write("00_bad.ipynb", notebook(png(30, 20)))
    hostile = failed(parameters={SCRIPT: SCRIPT}, where=SCRIPT, notebook=SCRIPT)
    environment = {"python": SCRIPT, "device": SCRIPT, "packages": {SCRIPT: SCRIPT, "numpy": SCRIPT}}
    page = report.page(batch(hostile, kernel=SCRIPT, environment=environment, signal=SCRIPT), place)
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;") >= 12
    assert "A &#34;curve&#34;" in page
    assert "default-src 'none'" in page


def test_the_page_shows_the_failing_cell_and_links_to_the_executed_notebook(place):
    page = report.page(batch(record(), failed(name="00_bad__name=x~1,y")), place)
    assert "1 of 2 runs succeeded" in page
    assert "<strong>Cell 2.</strong>" in page
    assert 'href="00_bad__name%3Dx~1%2Cy.ipynb"' in page
    assert 'href="#failure-00_bad__name%3Dx~1%2Cy"' in page
    assert 'id="failure-00_bad__name=x~1,y"' in page
    assert 'href="00_one.ipynb"' in page
    assert "numpy 2.0" in page
    # Complete in itself: nothing is fetched.
    assert not re.search(r'(src|href)="(?!data:|00_|#failure-)', page)


def test_thumbnails_are_small_and_what_is_no_picture_is_left_out(place):
    place.write("00_one.ipynb", notebook(png(900, 600), base64.b64encode(b"no picture").decode(), "%%%"))
    (sources,) = [re.findall(r'<img src="data:image/png;base64,([^"]+)" alt=', report.page(batch(record()), place))]
    (thumbnail,) = sources
    with Image.open(io.BytesIO(base64.b64decode(thumbnail))) as picture:
        assert picture.size == (440, 293)
        assert picture.format == "PNG"


def test_a_page_that_would_be_too_large_shows_the_failures_first_and_says_what_is_left_out(place, monkeypatch):
    monkeypatch.setattr(report, "MOST_FIGURES", 100)
    for name in ("00_one", "00_two", "00_bad"):
        place.write(f"{name}.ipynb", notebook(png(30, 20)))
    page = report.page(batch(record(), record("00_two"), failed()), place)
    assert page.count("<img") == 1
    assert page.index("<img") > page.index('class="chip failed" href=')
    assert "The figures of 2 further runs are in their notebooks only" in page


def test_junit_counts_failures_errors_and_what_was_not_run():
    died = Problem("kernel died", "by SIGKILL", 1, "\x00\x1b")
    runs = [record(), failed(), record("00_c", verdict="failed", problem=died), interrupted("00_d")]
    suite = ET.fromstring(report.junit(batch(*runs)))
    assert {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")} == {
        "tests": "4",
        "failures": "1",
        "errors": "1",
        "skipped": "1",
    }
    tags = {case.get("name"): [child.tag for child in case] for case in suite}
    assert tags == {"00_one": [], "00_bad": ["failure"], "00_c": ["error"], "00_d": ["skipped"]}
    assert suite.find("testcase/failure").get("message") == f"cell 2: ValueError: {SCRIPT}"


def test_the_page_is_written_anew_from_what_is_true_of_what_is_there(place):
    names = ("00_one", "00_bad", "00_older", "00_never")
    for name in names[:3]:
        place.write(f"{name}.ipynb", notebook(png(30, 20)))
    stored = records.digest(place.read("00_bad.ipynb"))
    runs = [record(digest=stored), failed(digest=stored), failed(name="00_older", digest="0")]
    runs.append(failed(name="00_never", digest=None))
    assert report.write(place, batch(*runs, earlier={"00_old": record("00_old")}), pages=False) is None
    (place.path / "00_one.ipynb").unlink()
    before = place.read("report.json")
    assert [run.digest for run in report.renew(place).runs] == [None, stored, None, None]
    page = place.read("report.html").decode()
    assert page.count("<img") == 1
    assert re.findall(r'href="([^"]*)\.ipynb"', page) == ["00_bad", "00_bad"]  # at the failure and in the table
    assert ET.fromstring(place.read("junit.xml")).get("failures") == "3"
    assert place.read("report.json") == before


def shown(data, place):
    written = io.StringIO()
    report.show(Console(file=written, width=140), data, place)
    return written.getvalue()


def test_the_table_is_summed_up_when_it_would_be_long(place):
    few = shown(batch(record(), failed()), place)
    assert "00_one" in few
    assert "FAILED 00_bad (10.0 s) cell 2: ValueError: <script>" in few
    assert few.count("ValueError") == 1
    runs = [record(f"00_one__seed={n}") for n in range(report.MOST_ROWS)]
    many = shown(batch(*runs, failed(notebook="01_two")), place)
    assert "00_one__seed=3" not in many
    assert "1 did not succeed" in many
    assert f"{report.MOST_ROWS} of {report.MOST_ROWS + 1} runs succeeded in 10 s. " in many


def test_markup_in_a_message_is_shown_and_not_obeyed(place):
    problem = Problem("cell", "[red]KeyError[/]: [/nonsense]", 1)
    assert "[red]KeyError[/]: [/nonsense]" in shown(batch(record(verdict="failed", problem=problem)), place)


def test_a_terminal_shows_what_runs_and_a_log_gets_lines():
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with View(terminal, 3, 1) as seen:

        def told(width=100):
            probe = Console(file=io.StringIO(), width=width)
            probe.print(seen.get_renderable())
            return probe.file.getvalue()

        seen.cell("00_one", 0, 0, "here")
        assert re.search(r"00_one .* 0/\?", told())
        seen.cell("00_one", 2, 7, "here")
        seen.cell("01_two", 1, 9, "tcp://10.0.0.1:99")
        assert re.search(r"runs .* 1/3", told())
        assert re.search(r"00_one .* 2/7", told())
        assert re.search(r"01_two tcp://10\.0\.0\.1:99 .* 1/9", told())
        seen.done(record())
        assert "00_one" not in told()
        assert "2/3" in told()
        seen.cell("10_long__seed=1", 2, 7, "here")
        assert "10_long__seed=1" in "".join(line.split(" ")[0] for line in told(30).splitlines()).replace("tcp", "")
    log = Console(file=io.StringIO(), width=100)
    with View(log, 3, 1) as seen:
        seen.cell("00_one", 2, 7, "here")
        seen.done(record())
        seen.done(interrupted("00_two", seconds=0.0))  # had not begun
    assert log.file.getvalue().splitlines() == [
        "1 of 3 runs are unchanged since they succeeded, and are not repeated.",
        "[2/3] ran 00_one (10.0 s)",
    ]
