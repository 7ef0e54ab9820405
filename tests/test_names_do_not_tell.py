"""What an exercise or a prediction is called gives nothing away: its name stands beside the question."""

import re
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import teachers
from tapelab.exercises import sheets

import nbformat
import pytest
from data_tables import read_rows

CATALOGUE = catalogue.load(Path(__file__).parents[1] / "notebooks")
SHEETS = sheets.sheets()
# The clinic's cases are named by what their programs do, and every line of these is on the page.
LESSONS = [entry for entry in CATALOGUE.notebooks if not entry.part.startswith("V.")]
COUNTS = {"one", "two", "three", "first", "second", "third", "more", "only", "way"}  # too common to tell anything


def words(text):
    """The words of a text in small letters, without names such as `exercises.some_name`."""
    return {word.lower() for word in re.findall(r"[A-Za-z]{3,}", re.sub(r"exercises\.\w+", "", text))}


def stem(word):
    """What "summed", "sums" and "summing" share."""
    cut = re.sub(r"(?<=\w{3})(?:ing|e)?(?:s|d|ly)?$", "", word)
    return cut[:-1] if len(cut) > 3 and cut[-1] == cut[-2] else cut


def has(text, word):
    """Whether a text has a word, in any of its forms."""
    mine = stem(word)
    found = {stem(other) for other in words(text)}
    return mine in found or any(min(len(mine), len(other)) >= 4 and other.startswith(mine) for other in found)


def telling(name, asked, answered):
    """The words of a name that are in the answer and not in what the learner has read when the question is put."""
    return [word for word in name.split("_") if word not in COUNTS and has(answered, word) and not has(asked, word)]


def place(cells, call):
    return next(i for i, cell in enumerate(cells) if cell.cell_type == "code" and call in cell.source)


@pytest.mark.parametrize("entry", LESSONS, ids=lambda entry: entry.name)
def test_a_predictions_name_has_no_word_of_its_result_or_of_the_reason(entry):
    cells = nbformat.read(CATALOGUE.ipynb(entry), as_version=4).cells
    results, found = teachers.results(CATALOGUE, entry), {}
    for one in sheets.predictions_of(SHEETS[entry.number]):
        question = place(cells, f"exercises.{one.name}.guess(")
        after = cells[place(cells, f"exercises.{one.name}.reveal(") + 1 :]
        reason = next((cell.source for cell in after if cell.cell_type == "markdown"), "").partition("**Predict.**")[0]
        asked = cells[question - 1].source + cells[question].source
        found[one.name] = telling(one.name, asked, f"{results[one.name]} {reason}")
    assert {name: told for name, told in found.items() if told} == {}


@pytest.mark.parametrize("entry", LESSONS, ids=lambda entry: entry.name)
def test_an_exercises_name_has_no_word_of_its_explanation(entry):
    cells = nbformat.read(CATALOGUE.ipynb(entry), as_version=4).cells
    found = {}
    for one in sheets.exercises_of(SHEETS[entry.number]):
        check = place(cells, f"exercises.{one.name}.check(")
        found[one.name] = telling(one.name, cells[check - 1].source + cells[check].source, one.explanation)
    assert {name: told for name, told in found.items() if told} == {}


@pytest.mark.parametrize(("name", "asked", "answered", "told"), read_rows("names", "words", globals()))
def test_a_word_tells_if_the_answer_has_it_and_the_question_has_not(name, asked, answered, told):
    assert telling(name, asked, answered) == told
