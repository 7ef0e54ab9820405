"""The page for teachers: up to date, its plans fit the notebooks, and each lesson takes its 50 minutes."""

import re
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import teachers

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / teachers.PAGE).read_text(encoding="utf-8")
REAL = catalogue.load(ROOT / "notebooks")
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
