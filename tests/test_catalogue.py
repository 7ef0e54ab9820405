"""Reading `collection.toml`, choosing notebooks, and the catalogue against reality."""

import re
from pathlib import Path

from tapelab.collection import catalogue

import pytest
from process_texts import read_text

FOLDER = Path(__file__).parents[1] / "notebooks"

SMALL = read_text("catalogue", "SMALL")


@pytest.fixture
def small(tmp_path):
    (tmp_path / "collection.toml").write_text(SMALL)
    return catalogue.load(tmp_path)


@pytest.fixture(scope="module")
def real():
    return catalogue.load(FOLDER)


def headings(path):
    return re.findall(r"^# #{1,6} (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_entries_arrive_as_written(small):
    first, second = small.notebooks
    assert (first.name, first.number, first.title, first.part, first.prerequisites) == (
        "00_first",
        "00",
        "First",
        "I",
        (),
    )
    assert second.covers == (catalogue.Cover("guide", "A", "1. One"),)
    assert small.ipynb(second) == small.folder / "01_second.ipynb"
    assert small.text(second) == small.folder / "01_second.py"


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ((), ["00_first", "01_second"]),
        (("1",), ["01_second"]),
        (("01",), ["01_second"]),
        (("01_second.ipynb",), ["01_second"]),
        (("notebooks/01_second.py",), ["01_second"]),
        (("0*",), ["00_first", "01_second"]),
        (("*second", "0"), ["00_first", "01_second"]),
    ],
)
def test_notebooks_are_chosen_by_number_name_or_glob(small, patterns, expected):
    assert [n.name for n in small.select(patterns)] == expected


@pytest.mark.parametrize("pattern", ["2", "third", "", "../01_secon", "1; rm"])
def test_a_choice_of_nothing_is_refused_and_lists_what_there_is(small, pattern):
    with pytest.raises(catalogue.CatalogueError, match="00_first, 01_second"):
        small.select((pattern,))


@pytest.mark.parametrize(
    ("find", "replacement", "message"),
    [
        ('title = "First"', "", r"missing required field `title` - at `\$\.notebook\[0\]`"),
        ('["00_first"]', '["02_later"]', "requires '02_later', which is not an earlier notebook"),
        ('["00_first"]', '"00_first"', "Expected `array`, got `str`"),
        ("[[notebook]]", "[[notebook", "is not a catalogue: Expected "),
        ("01_second", "../01_second", r"matching regex .* at `\$\.notebook\[1\]\.name`"),
        ("01_second", "01_second\\n", "matching regex"),
        ("01_second", "0" * 101, "Expected `str` of length <= 100"),
        ("01_second", "00_first", "two notebooks have one name, 00_first"),
        ('name = "01_second"', 'name = "01_second"\nformerly = ["00_first"]', "two notebooks have one name, 00_first"),
        ("prerequisites =", "prerequisite =", "unknown field `prerequisite`"),
        ('heading = "1. One"', 'head = "1. One"', "unknown field `head`|missing required field `heading`"),
        ('summary = "What?"', "summary = nan", "Expected `str`, got `float`"),
        ('summary = "What?"', f"summary = {'[' * 5000}", "is not a catalogue: "),
        ("owner/repo", "owner'/repo", r"matching regex .* at `\$\.repository`"),
    ],
)
def test_a_damaged_catalogue_is_refused(tmp_path, find, replacement, message):
    (tmp_path / "collection.toml").write_text(SMALL.replace(find, replacement), encoding="utf-8")
    with pytest.raises(catalogue.CatalogueError, match=message):
        catalogue.load(tmp_path)


def test_a_missing_catalogue_is_named(tmp_path):
    with pytest.raises(catalogue.CatalogueError, match=r"there is no .*collection\.toml"):
        catalogue.load(tmp_path)


def test_the_catalogue_lists_the_files_that_exist(real):
    assert [n.name for n in real.notebooks] == sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    assert [n.name for n in real.notebooks] == sorted(path.stem for path in FOLDER.glob("*.py"))


def test_every_section_of_every_reference_is_claimed(real):
    claimed = {(cover.reference, cover.section) for n in real.notebooks for cover in n.covers}
    listed = {(key, section) for key, reference in real.references.items() for section in reference.sections}
    assert claimed == listed


def test_every_claim_names_a_heading_that_exists(real):
    missing = [
        (n.name, cover.heading)
        for n in real.notebooks
        for cover in n.covers
        if cover.heading not in headings(real.text(n))
    ]
    assert missing == []


def test_the_title_and_the_question_are_the_catalogues(real):
    for n in real.notebooks:
        text = real.text(n).read_text(encoding="utf-8")
        assert headings(real.text(n))[0] == n.title
        flowing = " ".join(line.removeprefix("# ") for line in text.splitlines())
        assert f"**{n.summary}**" in flowing, n.name
