"""Generated text, the text-to-notebook step, alternative text, whole files."""

from pathlib import Path

from tapelab.collection import catalogue, sync

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).parents[1]

CATALOGUE = """
repository = "owner/repo"
ref = "v1"
[references.guide]
title = "Guide"
sections = []
[[notebook]]
name = "00_first"
title = "First"
summary = "What?"
minutes = 5
[[notebook]]
name = "01_second"
title = "Second"
summary = "How?"
minutes = 6
prerequisites = ["00_first"]
"""

SOURCE = """# %% [markdown]
# # Second

# %% [markdown] tags=["badges"]
# out of date

# %% tags=["setup"]
import math

# %% tags=["parameters"]
seed = 0

# %% alt="A number, printed: not quite a figure."
print(math.pi > seed)
"""


@pytest.fixture
def small(tmp_path):
    folder = tmp_path / "notebooks"
    folder.mkdir()
    (folder / "collection.toml").write_text(CATALOGUE)
    (folder / "01_second.py").write_text(SOURCE)
    (tmp_path / "README.md").write_text(f"before\n{sync.README_START}\nstale\n{sync.README_END}\nafter\n")
    return catalogue.load(folder)


@pytest.fixture
def second(small):
    return small.notebooks[1]


def cell_with(text, tag):
    return next(c for c in jupytext.reads(text, fmt="py:percent").cells if tag in c.metadata.get("tags", []))


def test_the_badge_leads_to_colab_at_the_catalogues_address(small, second):
    text = sync.source(small, second, SOURCE)
    badges = cell_with(text, "badges").source
    assert "https://colab.research.google.com/github/owner/repo/blob/v1/notebooks/01_second.ipynb" in badges
    assert "[00 First](00_first.ipynb)" in badges
    assert "about 6 minutes" in badges


def test_the_setup_cell_gets_the_bootstrap_and_keeps_its_own_imports(small, second):
    cell = cell_with(sync.source(small, second, SOURCE), "setup").source
    assert cell == sync.bootstrap(small) + "\nimport math"
    assert '"tapelab @ git+https://github.com/owner/repo@v1"' in cell
    assert "--no-deps" in cell


def test_generating_twice_changes_nothing(small, second):
    once = sync.source(small, second, SOURCE)
    assert sync.source(small, second, once) == once


def test_a_new_address_replaces_the_old_one_everywhere(small, second, tmp_path):
    text = sync.source(small, second, SOURCE)
    (tmp_path / "notebooks" / "collection.toml").write_text(CATALOGUE.replace("owner/repo", "other/place"))
    moved = sync.source(catalogue.load(tmp_path / "notebooks"), second, text)
    assert "owner/repo" not in moved
    assert moved.count("other/place") == 2


def test_the_bootstrap_is_valid_python(small):
    compile(sync.bootstrap(small), "bootstrap", "exec")


def test_alternative_text_is_stored_for_both_readers(small, second):
    nb = sync.notebook_from_text(sync.source(small, second, SOURCE))
    cell = next(cell for cell in nb.cells if "alt" in cell.metadata)
    assert cell.metadata["alt"] == "A number, printed: not quite a figure."
    assert cell.metadata["mystnb"]["image"]["alt"] == cell.metadata["alt"]


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


def test_a_lost_alternative_text_is_found(small, second):
    sync.refresh(small, second, execute=False)
    nb = nbformat.read(small.ipynb(second), as_version=4)
    del nb.cells[-1].metadata["mystnb"]
    nbformat.write(nb, small.ipynb(second))
    assert sync.differences(small, second) == ["01_second.ipynb: cell 4 has two different alternative texts"]


def test_a_failing_notebook_is_reported_and_left_as_it_was(small, second):
    sync.refresh(small, second, execute=False)
    small.text(second).write_text(small.text(second).read_text().replace("print(", "assert not ("))
    before = small.ipynb(second).read_bytes(), small.text(second).read_bytes()
    ((name, message),) = sync.refresh_all(small, [second])
    assert name == "01_second"
    assert "AssertionError" in message
    assert (small.ipynb(second).read_bytes(), small.text(second).read_bytes()) == before


def test_the_readmes_table_is_replaced_and_the_rest_kept(small, tmp_path):
    sync.refresh_all(small, [])
    text = (tmp_path / "README.md").read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "stale" not in text
    assert "| 01 | [Second](notebooks/01_second.ipynb) | How? | 00 | 6 |" in text


def test_a_readme_without_markers_is_refused(small):
    with pytest.raises(ValueError, match="lacks the lines"):
        sync.readme(small, "no markers")


def test_the_collections_own_readme_is_what_the_generator_gives():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert sync.readme(catalogue.load(ROOT / "notebooks"), text) == text


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        sync.write_whole(path, "new \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
