"""What holds for every notebook as a file: pairs, execution, alternative text, the shape of a lesson, the prose."""

import ast
import re
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import sync, times
from tapelab.collection.running import sweep

import nbformat
import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
CATALOGUE = catalogue.load(FOLDER)

# Words that call a thing effortless. To the reader for whom it is not, they say something else.
DISMISSIVE = re.compile(r"\b(simply|just|easy|easily|obviously|obvious|of course|trivial|trivially)\b", re.IGNORECASE)
MACHINE_PATH = re.compile(r"(?<![\w.:/])/(?:home|root|Users|tmp|var|usr|opt|work|private|content)/[\w.-]+")
ALLOWED_TAGS = times.FOLDED | times.GENERATED | {"nbval-ignore-output", "raises-exception"}
# What a reader sees of a folded cell.
TITLES = {
    "setup": "# @title Set-up",
    "parameters": "# @title Parameters",
    "check": "# @title Check",
    "figure": r"# @title Draw(: .+)?",
}
MINUTES = 25  # to read what everyone reads, in one sitting
CELLS = 75  # of the core: an idea is some five cells
PREDICTIONS = 8


@pytest.fixture(scope="module", params=CATALOGUE.notebooks, ids=lambda notebook: notebook.name)
def entry(request):
    return request.param


@pytest.fixture(scope="module")
def nb(entry):
    return nbformat.read(CATALOGUE.ipynb(entry), as_version=4)


def code_cells(nb):
    return [cell for cell in nb.cells if cell.cell_type == "code"]


def tags_of(cell):
    return set(cell.metadata.get("tags", []))


def parsed(cell):
    """A code cell's syntax tree; magics count as nothing."""
    lines = ["pass" if line.lstrip().startswith(("%", "!")) else line for line in cell.source.splitlines()]
    return ast.parse("\n".join(lines))


def printed(cell):
    """The lines that a cell's stored outputs show as text."""
    texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return "\n".join(texts).splitlines()


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


KINDS_OF_FIGURE = re.compile(
    r"(?:line|scatter|contour|dot) plots?|heat maps?|bar charts?|histograms?|(?:vector )?diagrams?"
    r"|vector fields?|computation graph|timeline|table|animation|images",
    re.IGNORECASE,
)


def test_every_figure_has_alternative_text(nb):
    """It says what kind of figure it is, then what is to be seen."""
    for cell in code_cells(nb):
        draws = any("image/png" in output.get("data", {}) for output in cell.outputs)
        assert draws == ("alt" in cell.metadata), cell.source
        if draws:
            kind, _, seen = cell.metadata["alt"].partition(". ")
            assert KINDS_OF_FIGURE.search(kind), cell.metadata["alt"]
            assert len(kind) < 60
            assert len(seen) > 40, cell.metadata["alt"]


def test_there_is_a_figure(nb):
    assert any("alt" in cell.metadata for cell in nb.cells)


def test_what_is_not_the_lesson_is_folded_under_a_neutral_line(nb):
    for cell in code_cells(nb):
        for tag in tags_of(cell) & times.FOLDED:
            assert re.fullmatch(TITLES[tag], cell.source.splitlines()[0]), cell.source
        assert ("# @title" in cell.source) == bool(tags_of(cell) & times.FOLDED), cell.source


def test_checks_are_in_folded_cells_alone(nb):
    for cell in code_cells(nb):
        checks = [
            node
            for node in ast.walk(parsed(cell))
            if isinstance(node, ast.Assert)
            or (isinstance(node, ast.Call) and re.search(r"\b(assert_\w*|reveal)$", ast.unparse(node.func)))
        ]
        assert bool(checks) == ("check" in tags_of(cell)), cell.source


def test_the_lesson_uses_no_name_that_only_a_check_defines(nb):
    by_check, by_lesson = set(), set()
    for cell in code_cells(nb):
        names = [node for node in ast.walk(parsed(cell)) if isinstance(node, ast.Name)]
        used = {node.id for node in names if isinstance(node.ctx, ast.Load)}
        defined = {node.id for node in names if isinstance(node.ctx, ast.Store)}
        if "check" in tags_of(cell):
            by_check |= defined - by_lesson
        else:
            by_lesson |= defined
            by_check -= defined
            assert not used & by_check, f"{used & by_check} in\n{cell.source}"


def test_numbers_are_printed_and_not_verdicts(nb):
    for cell in code_cells(nb):
        for line in printed(cell):
            assert not re.search(r"(?:^|[\s:=])(?:True|False)\W*$", line), f"{line}\n{cell.source}"


def test_each_prediction_has_a_place_to_answer_and_they_are_few(nb):
    asked = 0
    for cell, following in zip(nb.cells, [*nb.cells[1:], None], strict=True):
        if cell.cell_type == "markdown" and "**Predict." in cell.source:
            asked += 1
            assert following is not None, cell.source
            assert re.fullmatch(r"exercises\.\w+\.guess\(.*\.\.\..*\)(  # .*)?", following.source), cell.source
    assert 1 <= asked <= PREDICTIONS
    assert sum(".guess(" in cell.source for cell in code_cells(nb)) == asked


def test_it_can_be_read_in_one_sitting(nb):
    assert times.of(nb).core <= MINUTES
    further = [i for i, cell in enumerate(nb.cells) if re.search(r"^## \d+\. Going further", cell.source, re.MULTILINE)]
    after = [i for i, cell in enumerate(nb.cells) if further and i > further[-1] and cell.source.startswith("## ")]
    skipped = after[0] - further[0] if further else 0
    assert len(nb.cells) - skipped <= CELLS


def test_the_phenomenon_comes_first(nb):
    shown = [number for number, cell in enumerate(nb.cells) if cell.cell_type == "code" and "alt" in cell.metadata]
    open_cells = [
        number
        for number, cell in enumerate(nb.cells)
        if cell.cell_type == "code" and not tags_of(cell) & times.FOLDED and ".guess(" not in cell.source
    ]
    first = min([*shown, *open_cells])
    assert first <= 6
    assert nb.cells[first].outputs
    objectives = next(number for number, cell in enumerate(nb.cells) if "**You will be able to**" in cell.source)
    assert first < objectives


def test_further_reading_has_three_to_eight_references(nb):
    assert 3 <= len(bullets(prose(nb), "**Further reading**")) <= 8


def test_each_beginners_case_comes_from_two_public_places():
    (first_aid,) = (entry for entry in CATALOGUE.notebooks if entry.name == "28_first_aid")
    text = prose(nbformat.read(CATALOGUE.ipynb(first_aid), as_version=4))
    cases = re.findall(r"^\*\*Case (\d+)\.\*\*((?:.|\n(?!\n))*)", text, flags=re.MULTILINE)
    assert [int(number) for number, _ in cases] == list(range(1, 16))
    for number, opening in cases:
        assert len(set(re.findall(r"\]\((https?://[^)\s]+)\)", opening))) >= 2, f"case {number}"


def test_each_reference_has_a_link(nb):
    """A DOI, arXiv's page, the publisher's or the author's; https where there is."""
    for reference in bullets(prose(nb), "**Further reading**"):
        assert re.search(r"\]\(https?://[^\s()]+\)", reference), reference
        for address in re.findall(r"\]\((https?://[^)]*)\)", reference):
            assert not re.search(r"arxiv\.org/pdf|dx\.doi\.org|[?&](q|query)=|scholar\.google", address), address


def test_it_opens_with_question_badges_parameters_and_setup(entry, nb):
    assert nb.cells[0].cell_type == "markdown"
    assert nb.cells[0].source.startswith("# ")
    assert re.search(r"\*\*[^*]+\?\*\*", nb.cells[0].source), "a question in bold"
    assert len(re.findall(r"^# ", prose(nb), flags=re.MULTILINE)) == 1
    tags = [tag for cell in nb.cells for tag in cell.metadata.get("tags", [])]
    for tag in ("badges", "setup", "parameters"):
        assert tags.count(tag) == 1, tag
    assert tags.index("badges") < tags.index("parameters") < tags.index("setup")
    (setup,) = (cell.source for cell in nb.cells if "setup" in tags_of(cell))
    assert setup.splitlines()[-1] == "runtime.start(seed)"
    parameters = sweep.parameters_of(CATALOGUE.ipynb(entry))
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


def test_every_section_checks(nb):
    found = sections(nb)
    assert sorted(found) == list(range(1, len(found) + 1))
    for number, (title, _, code) in found.items():
        assert "# @title Check" in code, f"section {number} ({title}) checks nothing"


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
