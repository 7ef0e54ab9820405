"""What holds for every notebook as a file: pairs, execution, alternative text, the shape of a lesson, the prose."""

import re
from pathlib import Path

from tapelab.collection import catalogue, plan, sync

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
CATALOGUE = catalogue.load(FOLDER)

# Words that call a thing effortless. To the reader for whom it is not, they say something else.
DISMISSIVE = re.compile(r"\b(simply|just|easy|easily|obviously|obvious|of course|trivial|trivially)\b", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|var|usr|opt|work|private|content)/[\w.-]+")
ALLOWED_TAGS = {"badges", "catalogue", "setup", "parameters", "cover", "nbval-ignore-output", "raises-exception"}


@pytest.fixture(scope="module", params=CATALOGUE.notebooks, ids=lambda notebook: notebook.name)
def entry(request):
    return request.param


@pytest.fixture(scope="module")
def nb(entry):
    return nbformat.read(CATALOGUE.ipynb(entry), as_version=4)


def code_cells(nb):
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def prose(nb):
    return "\n\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")


def sections(nb):
    """The numbered sections: a dict from number to (title, prose, code)."""
    found, number = {}, None
    for cell in nb.cells:
        if cell.cell_type == "markdown" and (heading := re.search(r"^## (.+)$", cell.source, flags=re.MULTILINE)):
            numbered = re.fullmatch(r"(\d+)\. (.+)", heading[1])
            number = int(numbered[1]) if numbered else None
            if numbered:
                found[number] = (numbered[2], [], [])
        if number is not None:
            found[number][1 if cell.cell_type == "markdown" else 2].append(cell.source)
    return {number: (title, "\n".join(text), "\n".join(code)) for number, (title, text, code) in found.items()}


def bullets(text, after):
    """The list items that follow a marker, up to the first line that is neither a list item nor its continuation."""
    block = text.split(after, 1)[1].lstrip("\n")
    block = re.split(r"\n(?![-\s]|\s*$)|\n\n(?!-)", block)[0]
    return [item for item in re.split(r"^- ", block, flags=re.MULTILINE) if item.strip()]


def section_numbers(item):
    return [int(number) for number in re.findall(r"\d+", " ".join(re.findall(r"\(sections? ([^)]*)\)", item)))]


def test_the_pair_is_what_sync_leaves(entry):
    assert sync.differences(CATALOGUE, entry) == []


def test_every_code_cell_was_executed_in_order(nb):
    assert [cell.execution_count for cell in code_cells(nb)] == list(range(1, len(code_cells(nb)) + 1))


def test_no_cell_is_empty_and_no_tag_unknown(nb):
    assert all(cell.source.strip() for cell in nb.cells)
    assert {tag for cell in nb.cells for tag in cell.metadata.get("tags", [])} <= ALLOWED_TAGS


def test_stored_outputs_hold_no_errors_no_stderr_and_no_machine_paths(nb):
    for cell in code_cells(nb):
        for output in cell.outputs:
            assert output.output_type != "error" or "raises-exception" in cell.metadata.get("tags", []), cell.source
            assert output.get("name") != "stderr", cell.source
            texts = [output.get("text", "")]
            texts += [str(data) for kind, data in output.get("data", {}).items() if not kind.startswith("image/")]
            assert not MACHINE_PATH.search("\n".join(texts)), cell.source


def test_every_figure_has_alternative_text(nb):
    for cell in code_cells(nb):
        draws = any("image/png" in output.get("data", {}) for output in cell.outputs)
        assert draws == ("alt" in cell.metadata), cell.source
        if draws:
            assert len(cell.metadata["alt"]) > 40, cell.metadata["alt"]


def test_there_is_a_figure(nb):
    assert any("alt" in cell.metadata for cell in nb.cells)


def test_it_opens_with_question_badges_objectives_setup_and_parameters(entry, nb):
    assert nb.cells[0].cell_type == "markdown"
    assert nb.cells[0].source.startswith("# ")
    assert len(re.findall(r"^# ", prose(nb), flags=re.MULTILINE)) == 1
    tags = [tag for cell in nb.cells for tag in cell.metadata.get("tags", [])]
    for tag in ("badges", "setup", "parameters"):
        assert tags.count(tag) == 1, tag
    assert tags.index("badges") < tags.index("setup") < tags.index("parameters")
    parameters = plan.parameters_of(CATALOGUE.ipynb(entry))
    assert parameters["seed"] == 0
    assert all(type(value) in (bool, int, float, str) for value in parameters.values())


def test_objectives_and_recap_mirror_each_other_and_name_sections(nb):
    text = prose(nb)
    objectives, recap = bullets(text, "**You will be able to**"), bullets(text, "## Recap")
    assert 3 <= len(objectives) <= 5
    numbers = [section_numbers(item) for item in objectives]
    assert all(numbers), objectives
    assert numbers == [section_numbers(item) for item in recap]
    assert {number for item in numbers for number in item} <= set(sections(nb))


def test_every_section_predicts_and_checks(nb):
    found = sections(nb)
    assert sorted(found) == list(range(1, len(found) + 1))
    for number, (title, text, code) in found.items():
        asserts = re.search(r"\bassert\b|np\.testing\.assert_|assert_", code)
        assert asserts, f"section {number} ({title}) checks nothing"
        if number < len(found):
            assert "**Predict.**" in text, f"section {number} ({title}) asks for no prediction"


def test_it_closes_with_an_oracle_a_recap_traps_and_a_way_on(nb):
    last_title = sections(nb)[max(sections(nb))][0]
    assert last_title.startswith("Check it independently")
    closing = prose(nb).split("## Recap", 1)[1]
    assert "| Trap | What you see | What to do |" in closing
    assert "**Read next:**" in closing


def test_links_lead_to_notebooks_that_exist(nb):
    for target in re.findall(r"\]\(([\w./-]+\.ipynb)\)", prose(nb)):
        assert (FOLDER / target).exists(), target


def test_prose_does_not_call_things_effortless(nb):
    plain = re.sub(r"```.*?```|`[^`]*`", "", prose(nb), flags=re.DOTALL)
    assert DISMISSIVE.findall(plain) == []


def test_prose_is_in_british_spelling(nb):
    # Titles of published texts keep their own spelling; code is not prose.
    plain = re.sub(r"```.*?```|`[^`]*`|\"[^\"]*\"|\$[^$]*\$", "", prose(nb), flags=re.DOTALL)
    american = (
        r"\b\w*(?:color|behavior|optimiz|regulariz|normaliz|initializ|summariz|generaliz|neighbor|analyz|serializ)\w*\b"
    )
    assert re.findall(american, plain, flags=re.IGNORECASE) == []


def test_a_cell_that_draws_ends_with_show(nb):
    for cell in code_cells(nb):
        if "alt" in cell.metadata:
            assert cell.source.rstrip().endswith(".show()"), cell.source
        assert not cell.source.rstrip().endswith(";"), cell.source
