"""Generated text, the text-to-notebook step, alternative text, whole files."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import pages, sync, teachers
from tapelab.exercises.sheets import recording_control

import jupytext
import msgspec
import nbformat
import psutil
import pytest
from process_texts import read_text

ROOT = Path(__file__).parents[1]

CATALOGUE = read_text("sync", "CATALOGUE")

SOURCE = read_text("sync", "SOURCE")


README = read_text("sync", "README")


@pytest.fixture
def small(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "collection.toml").write_text(CATALOGUE)
    (folder / "01_second.py").write_text(SOURCE)
    (tmp_path / "README.md").write_text(README)
    nbformat.write(nbformat.v4.new_notebook(), folder / "00_first.ipynb")
    return catalogue.load(folder)


@pytest.fixture
def second(small):
    return small.notebooks[1]


def cell_with(text, tag):
    return next(c for c in jupytext.reads(text, fmt="py:percent").cells if tag in c.metadata.get("tags", []))


def test_the_badge_leads_to_colab_at_the_catalogues_address(small, second):
    text = sync.source(small, second, SOURCE)
    badges = cell_with(text, "badges").source
    assert "https://colab.research.google.com/github/owner/repo/blob/colab-v1/notebooks/01_second.ipynb" in badges
    assert "[00 First](00_first.ipynb)" in badges
    assert badges.endswith("**Minutes:** 1 to read; to work through it all, about 15 min")


def test_the_setup_cell_gets_the_bootstrap_and_keeps_its_own_imports(small, second):
    cell = cell_with(sync.source(small, second, SOURCE), "setup").source
    assert cell == sync.bootstrap(small) + "\nimport math"
    assert '"tapelab @ git+https://github.com/owner/repo@v1"' in cell
    assert "--no-deps" in cell


def test_a_cell_of_code_gets_the_catalogue_as_data(small, second):
    text = SOURCE + '\n# %% tags=["catalogue", "figure"]\nstale = True\n'
    cell = cell_with(sync.source(small, second, text), "catalogue").source
    names = {}
    exec(cell, names)
    assert names["collection"] == {"00": ["", "First", []], "01": ["", "Second", ["00"]]}
    assert cell.startswith("# @title Draw: ")


def test_a_new_address_replaces_the_old_one_everywhere(small, second, tmp_path):
    text = sync.source(small, second, SOURCE)
    (tmp_path / "notebooks" / "collection.toml").write_text(CATALOGUE.replace("owner/repo", "other/place"))
    moved = sync.source(catalogue.load(tmp_path / "notebooks"), second, text)
    assert "owner/repo" not in moved
    assert moved.count("other/place") == 2


def test_alternative_text_is_stored(small, second):
    nb = sync.notebook_from_text(sync.source(small, second, SOURCE))
    cell = next(cell for cell in nb.cells if "alt" in cell.metadata)
    assert cell.metadata["alt"] == "A number, printed: not quite a figure."


def test_outputs_of_unchanged_cells_are_kept(small, second):
    sync.refresh(small, second, execute=False)
    nb = nbformat.read(small.ipynb(second), as_version=4)
    nb.cells[-1].outputs = [nbformat.v4.new_output("stream", text="True\n")]
    nbformat.write(nb, small.ipynb(second))
    sync.refresh(small, second, execute=False)
    assert nbformat.read(small.ipynb(second), as_version=4).cells[-1].outputs[0].text == "True\n"


def test_refreshing_executes_and_leaves_a_valid_pair(small, second):
    sync.refresh(small, second)
    nb = nbformat.read(small.ipynb(second), as_version=4)
    nbformat.validate(nb)
    assert [cell.execution_count for cell in nb.cells if cell.cell_type == "code"] == [1, 2, 3]
    assert nb.cells[-1].outputs[0].text == "True\n"
    assert sync.differences(small, second) == []


def test_a_pair_out_of_step_is_found(small, second):
    sync.refresh(small, second, execute=False)
    text = small.text(second).read_text()
    small.text(second).write_text(text.replace("seed = 0", "seed = 1"))
    (difference,) = sync.differences(small, second)
    assert difference.startswith("01_second.ipynb is not its twin")
    small.text(second).write_text(text.replace("owner/repo", "owner/other"))
    assert "01_second.py: its generated cells are out of date" in sync.differences(small, second)


def test_what_is_not_the_lesson_is_folded_in_the_text_and_nothing_else_is(small, second):
    unfolded = sync.source(small, second, SOURCE).replace('# %% tags=["alt"]', '# %% jupyter={"source_hidden": true}')
    nb = jupytext.reads(sync.source(small, second, unfolded), fmt="py:percent")
    folded = [cell.metadata for cell in nb.cells if "jupyter" in cell.metadata]
    assert [data["tags"] for data in folded] == [["setup"], ["parameters"]]
    assert all(data["jupyter"] == {"source_hidden": True} for data in folded)


@pytest.mark.parametrize(("number", "key"), [(5, "alt"), (6, "jupyter")], ids=["alternative text", "fold"])
def test_what_a_cell_has_lost_is_found(small, second, number, key):
    small.text(second).write_text(SOURCE + '\n# %% tags=["check"]\n# @title Check\nassert True\n')
    sync.refresh(small, second, execute=False)
    assert sync.differences(small, second) == []
    nb = nbformat.read(small.ipynb(second), as_version=4)
    del nb.cells[number - 7].metadata[key]
    nbformat.write(nb, small.ipynb(second))
    (difference,) = sync.differences(small, second)
    assert difference.startswith(f"01_second.ipynb is not its twin: Metadata differ on code cell #{number}")


def test_a_failing_notebook_is_reported_and_left_as_it_was(small, second):
    sync.refresh(small, second, execute=False)
    small.text(second).write_text(small.text(second).read_text().replace("print(", "assert not ("))
    before = small.ipynb(second).read_bytes(), small.text(second).read_bytes()
    ((name, message),) = sync.refresh_all(small, [second])
    assert name == "01_second"
    assert "AssertionError" in message
    assert (small.ipynb(second).read_bytes(), small.text(second).read_bytes()) == before


@pytest.mark.dear
def test_a_page_that_fails_before_it_has_outputs_is_told_by_its_own_error(small, second, recording, tmp_path):
    """The teachers' page, which tells the outputs, comes after it, and fails for want of them."""
    plan = "### 00\n| 50 | Opening | Look. |\n"
    (tmp_path / "site").mkdir()
    (tmp_path / teachers.PAGE).write_text(plan)
    small.text(recording).write_text("# %%\nassert 1 == 2\n")
    alone = msgspec.structs.replace(small, notebooks=(recording,))
    failures = dict(sync.refresh_all(alone, [recording]))
    assert "AssertionError" in failures["00_recording_control"]
    assert "00_recording_control.ipynb was never made" in failures[teachers.PAGE]
    assert (tmp_path / teachers.PAGE).read_text() == plan


@pytest.mark.thorough
@pytest.mark.parametrize("path", ["README.md", teachers.PAGE])
def test_a_page_around_the_notebooks_that_cannot_be_made_does_not_hide_their_errors(small, second, tmp_path, path):
    """Here one is missing, and one asks for a sheet of exercises that there is not."""
    (tmp_path / "site").mkdir()
    (tmp_path / teachers.PAGE).write_text("### 00\n| 50 | Opening | Look. |\n")
    (tmp_path / "README.md").unlink()
    small.text(second).write_text(SOURCE + "\nexercises.no_such.check(1)\n")
    failures = dict(sync.refresh_all(small, [second], execute=False))
    assert list(failures) == ["01_second", "README.md", teachers.PAGE]


@pytest.mark.dear
def test_what_is_written_while_the_cells_run_is_not_overwritten(small, second):
    writes = f"from pathlib import Path\n\nPath('{second.name}.py').write_text('# %%\\nmine = 1\\n')"
    small.text(second).write_text(SOURCE.replace("print(math.pi > seed)", writes))
    with pytest.raises(ValueError, match="was changed while its cells ran; run sync again"):
        sync.refresh(small, second)
    assert small.text(second).read_text() == "# %%\nmine = 1\n"
    assert not small.ipynb(second).exists()


def test_a_command_that_is_ended_takes_its_kernels_along_and_writes_nothing(small, second, tmp_path):
    waits = "from pathlib import Path\nimport time\n\nPath('started').touch()\ntime.sleep(600)"
    small.text(second).write_text(SOURCE.replace("print(math.pi > seed)", waits))
    before = {path.name: path.read_bytes() for path in small.folder.iterdir()}
    command = [sys.executable, "-m", "tapelab", "sync", "--notebooks", str(small.folder), "01"]
    running = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not (small.folder / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    descendants = psutil.Process(running.pid).children(recursive=True)
    os.kill(running.pid, signal.SIGTERM)
    assert running.wait(30) == -signal.SIGTERM
    assert descendants
    _, alive = psutil.wait_procs(descendants, timeout=30)
    for process in alive:
        process.kill()
    assert alive == []
    (small.folder / "started").unlink()
    assert {path.name: path.read_bytes() for path in small.folder.iterdir()} == before


def test_the_readmes_table_is_replaced_and_the_rest_kept(small, second, tmp_path):
    assert sync.refresh_all(small, [second], execute=False) == []
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    colab = "https://colab.research.google.com/github/owner/repo/blob/colab-v1/notebooks/01_second.ipynb"
    assert f"| 01 | [Second](notebooks/01_second.ipynb) · [Colab]({colab}) | How? | 1 + 0 |" in text
    assert pages.page(small, tmp_path / "README.md") == text


def test_a_page_of_the_site_is_generated_where_it_lies(small, second, tmp_path):
    (tmp_path / "site").mkdir()
    page = tmp_path / "site" / "a.md"
    page.write_text(
        "\n".join(f"<!-- {key}: generated by `make sync` -->\n<!-- {key}: end -->" for key in ("notebooks", "causes"))
    )
    assert sync.refresh_all(small, [second], execute=False) == []
    assert "[Second](../notebooks/01_second.ipynb)" in page.read_text()
    assert '<a id="cast-to-integer"></a>\n\n### ' in page.read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<!-- notebooks: end -->", "", "lacks the lines '<!-- notebooks"),
        (
            "<!-- notebooks: generated",
            "<!-- nothing: generated",
            "has a marker line for {'nothing'}; expected one of rooms",
        ),
    ],
)
def test_a_marker_line_that_nothing_answers_is_refused(small, second, tmp_path, old, new, message):
    sync.refresh(small, second, execute=False)
    (tmp_path / "README.md").write_text(README.replace(old, new))
    with pytest.raises(ValueError, match=message):
        pages.page(small, tmp_path / "README.md")


REAL = catalogue.load(ROOT / "notebooks")


@pytest.mark.parametrize("path", pages.paths(REAL), ids=lambda path: path.stem)
def test_the_collections_own_pages_are_what_the_generator_gives(path):
    assert pages.page(REAL, path) == path.read_text(encoding="utf-8")


def test_no_page_waits_for_a_build_to_be_filled_in():
    """But for a picture that is drawn from the page's own table."""
    waiting = {
        path.name: re.findall(r"<!-- [A-Z]+ -->|^```\{\w+\}|^:::|^\(\w+\)=$", path.read_text("utf-8"), re.MULTILINE)
        for path in (ROOT / "site").glob("*.md")
    }
    assert {name: found for name, found in waiting.items() if found} in (
        {},
        {"how_it_compares.md": ["<!-- RATIOS -->"]},
    )


STALE_EXERCISE = read_text("sync", "STALE_EXERCISE")


@pytest.fixture
def recording(small):
    return msgspec.structs.replace(small.notebooks[0], name="00_recording_control")


def test_an_exercises_heading_and_starter_come_from_its_sheet(small, recording):
    text = sync.source(small, recording, STALE_EXERCISE)
    heading, starter = jupytext.reads(text, fmt="py:percent").cells
    one = recording_control.metric_off
    assert heading.source == f"### Exercise: {one.title} ({one.minutes} min)\n\nHalf of it must not be recorded."
    assert starter.source == one.starter_code
    assert sync.source(small, recording, text) == text


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("metric_off", "no_such", "recording_control has no no_such"),
        ("### Exercise: ", "### ", "no line '### Exercise: …' stands above it"),
    ],
)
def test_a_check_without_an_exercise_or_a_heading_is_refused(small, recording, old, new, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        sync.source(small, recording, STALE_EXERCISE.replace(old, new))
