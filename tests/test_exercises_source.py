"""A sheet's exercises: what the decorators keep, and the text that a learner sees."""

import importlib.util
import re
from pathlib import Path

from tapelab.exercises import Exercise, Function, Value, sheets
from tapelab.exercises.feedback import NOT_ATTEMPTED, RIGHT, WRONG
from tapelab.exercises.sheets import hard_cases, stop_gradient

import pytest
import tensorflow as tf

double = Exercise(
    title="Twice",
    minutes=1,
    hints=("One.", "Two."),
    checker=Function(reference=lambda x: 2.0 * x, inputs=lambda random, dtype: [(tf.ones(3, dtype),)]),
)


@double.starter("twice")
@tf.custom_gradient
def _(x):
    half = x / 2.0  # what is given

    def backward(upstream):
        return ...

    return half, backward


@double.right
def _(x):
    """Twice $x$ is
    $x + x$."""
    # added, not multiplied
    return x + x


@double.mistake("squared")
def _(x):
    r"""This is $x \cdot x$, with the wrong
    operation."""
    return 3.0 * x * x


@double.wrong("sign")
def _(x):
    return -2.0 * x


double.wrong("not_a_function")(3.0)

three = Exercise(title="Three", minutes=1, hints=("One.", "Two."), checker=Value(3))


@three.starter()
def _():
    one = 1

    def add(x):
        return ...

    return one, add


@three.right
def _():
    """It counts."""
    # in a loop

    def add(x):
        return x + 1

    answer = add(2)
    return answer  # noqa: RET504  the cell's last line is the one above


def test_a_functions_text_has_the_learners_name_its_own_decorators_and_the_check():
    assert (
        double.starter_code
        == """\
@tf.custom_gradient
def twice(x):
    half = x / 2.0  # what is given

    def backward(upstream):
        return ...

    return half, backward


exercises.double.check(twice)"""
    )


def test_a_solutions_text_has_no_docstring_and_the_docstring_is_the_explanation():
    assert double.solution_code == "def twice(x):\n    # added, not multiplied\n    return x + x"
    assert double.explanation == "Twice $x$ is $x + x$."


def test_without_a_name_the_body_is_the_cell_and_what_it_returns_is_checked():
    assert three.starter_code == "one = 1\n\n\ndef add(x):\n    return ...\n\n\nexercises.three.check(one, add)"
    assert three.solution_code == "# in a loop\n\n\ndef add(x):\n    return x + 1\n\n\nanswer = add(2)"


def test_an_exercise_is_called_after_its_module_and_its_name_there():
    assert (stop_gradient.hard_choice.identifier, stop_gradient.hard_choice.name) == (
        "stop_gradient.hard_choice",
        "hard_choice",
    )
    assert hard_cases.sinc.identifier == "hard_cases.sinc"  # whose module is a case of the sheet's
    assert double.heading == "### Exercise: Twice (1 min)"


def test_a_mistake_without_a_docstring_is_refused():
    with pytest.raises(TypeError, match="has no docstring"):
        double.mistake("untold")(lambda x: x)


def test_a_mistake_is_told_its_docstring_and_every_wrong_answer_is_tried():
    assert [code for code, _ in double.checker.tried()] == ["squared", "sign", "not_a_function"]
    for code, answer in double.checker.tried():
        result = double.judge(answer)
        assert (result.verdict, result.code) == (WRONG, code)
    assert double.judge(lambda x: 3.0 * x**2).text == r"This is $x \cdot x$, with the wrong operation."


@pytest.mark.parametrize("module", sheets.sheets().values(), ids=lambda module: module.__name__.rpartition(".")[2])
def test_what_a_learner_finds_in_a_sheet_are_exercises_and_predictions(module):
    """A function of a sheet is private: its name must be neither that of an exercise nor among those offered."""
    functions = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    assert all(name.startswith("_") for name in functions), functions


def test_the_page_on_writing_shows_an_exercise_that_works(tmp_path):
    page = (Path(__file__).parents[1] / "src/tapelab/exercises/WRITING.md").read_text(encoding="utf-8")
    (tmp_path / "template.py").write_text(re.search(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)[1])
    spec = importlib.util.spec_from_file_location("template", tmp_path / "template.py")
    template = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(template)
    for text, verdict in ((template.cube.starter_code, NOT_ATTEMPTED), (template.cube.solution_code, RIGHT)):
        cell = {"tf": tf}
        exec(text.partition("\n\n\n")[0], cell)
        assert template.cube.judge(cell["backward"]).verdict == verdict
    for code, answer in template.cube.checker.tried():
        assert template.cube.judge(answer).code == code
