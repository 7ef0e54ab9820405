"""The page for teachers: up to date, its plans fit the notebooks, and each lesson takes its 50 minutes."""

import re
import shutil
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import teachers

import msgspec
import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / teachers.PAGE).read_text(encoding="utf-8")
REAL = catalogue.load(ROOT / "notebooks")
FEW = msgspec.structs.replace(REAL, notebooks=REAL.notebooks[:2])
PLANS = teachers.lessons(TEXT)


def test_it_is_what_the_generator_gives():
    assert teachers.page(REAL, TEXT) == TEXT


@pytest.mark.parametrize("notebook", REAL.notebooks, ids=lambda n: n.number)
def test_a_lesson(notebook):
    plan = PLANS[notebook.number]
    assert plan[0].section == 0
    assert [step.section for step in plan] == sorted(step.section for step in plan)
    assert any(step.votes for step in plan)
    assert any(step.solves for step in plan)


@pytest.mark.parametrize("notebook", REAL.notebooks, ids=lambda n: n.number)
def test_every_prediction_has_its_result_beside_the_wrong_answers(notebook):
    known = teachers.results(REAL, notebook)
    for section in teachers.sections(REAL, notebook).values():
        assert set(section.predictions) <= set(known)


@pytest.mark.parametrize("notebook", REAL.notebooks, ids=lambda n: n.number)
def test_every_prediction_is_told_with_its_question(notebook):
    asked = teachers.questions(REAL, notebook)
    predictions = [name for section in teachers.sections(REAL, notebook).values() for name in section.predictions]
    assert list(asked) == predictions
    assert len(set(asked.values())) == len(predictions)
    for name, question in asked.items():
        assert "?" in question
        assert f"- Prediction `{name}`: {question} **" in TEXT


def test_each_row_of_a_table_is_read():
    """A row that the pattern does not match would be left out of every check."""
    lesson_rows = re.findall(r"^\| \d+ \| .*\|$", TEXT.split("## The lessons")[1], re.MULTILINE)
    assert len(lesson_rows) == sum(map(len, PLANS.values()))


def test_a_lesson_has_two_or_three_questions():
    for part in TEXT.split("**Ask**")[1:]:
        questions = part.split("<!--")[0].strip().splitlines()
        assert 2 <= len(questions) <= 3
        assert all(re.match(r"- \*.+\* Listen for ", line) for line in questions)


def test_a_path_has_what_its_notebooks_need():
    tables = re.findall(r"(?:^\| [^|\n]+ \| \d\d(?:, \d\d)* \| \d+ \+ \d+ \|\n)+", TEXT, re.MULTILINE)
    assert len(tables) == 4
    for rows in tables:
        numbers = [number for row in rows.splitlines() for number in row.split(" | ")[1].split(", ")]
        for place, number in enumerate(numbers):
            (notebook,) = REAL.select([number])
            for name in notebook.prerequisites:
                assert REAL.by_name(name).number in numbers[:place], number


def test_links_lead_somewhere():
    headings = re.findall(r"^##+ (.*)$", re.sub(r"\[(.*?)\]\(.*?\)", r"\1", TEXT), re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`]*`", "", TEXT)):
        if target.startswith("#"):
            assert target[1:] in anchors
        elif target.startswith("../"):
            assert (ROOT / "site" / target).exists(), target


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("| 13 | 1. ", "| 14 | 1. ", "01: the plan takes 51 minutes; a lesson has 50"),
        ("| 13 | 1. ", "| 13 | 99. ", "01: the notebook has no section 99"),
        ("Vote: `dy_dx`", "Vote: `two_entries`", "01: there is no prediction `two_entries` in"),
        ("Solve: `five_results`", "Solve: `what_walked`", "01: there is no exercise `what_walked` in"),
        ("Solve: `five_results`", "Solve: `five_results`, `what_walked`", "01: there is no exercise `what_walked` in"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(old, new, told):
    assert old in TEXT
    with pytest.raises(ValueError, match=re.escape(told)):
        teachers.page(FEW, TEXT.replace(old, new, 1))


def test_an_exercise_gets_its_minutes():
    shorter = re.sub(r"\| 5 (\| 8\. [^|]* \| Solve: `five_results`)", r"| 3 \1", TEXT)
    with pytest.raises(ValueError, match=r"01: .*; 01: five_results take 4 minutes, and the plan gives 3"):
        teachers.page(FEW, shorter)


def test_a_notebook_without_a_plan_is_refused():
    without = re.sub(r"^### 01 .*", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    with pytest.raises(ValueError, match="01: there is no plan"):
        teachers.page(FEW, without)


def test_a_notebook_that_was_never_run_is_refused(tmp_path):
    for notebook in FEW.notebooks:
        shutil.copy(REAL.text(notebook), tmp_path)
    shutil.copy(REAL.ipynb(FEW.notebooks[0]), tmp_path)
    name = FEW.notebooks[1].name
    with pytest.raises(ValueError, match=f"^{teachers.PAGE}: 01: it has no results to tell; {name}.ipynb was never"):
        teachers.page(msgspec.structs.replace(FEW, folder=tmp_path), TEXT)


def test_titles_are_filled_in():
    stale = TEXT.replace("### 05 [Recording control]", "### 05 [Another title]", 1)
    stale = re.sub(r"(\| 14 \| 1\. )[^|]*( \| Vote: `block`)", r"\1Another title\2", stale)
    assert stale != TEXT
    assert teachers.page(REAL, stale) == TEXT


def test_what_is_written_by_hand_is_the_houses_english():
    by_hand = re.sub(r"<!-- (\w+): generated.*?<!-- \1: end -->", "", TEXT, flags=re.DOTALL)
    by_hand = re.sub(r"`[^`]*`", "", by_hand)
    assert re.findall(r"\b(?:simply|just|easily|obviously|easy|trivial\w*)\b", by_hand, re.IGNORECASE) == []
    assert re.findall(r"\b\w*(?:color|behavior|optimiz|normaliz|initializ)\w*\b", by_hand, re.IGNORECASE) == []
