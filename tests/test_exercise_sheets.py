"""What holds for every exercise and prediction of the collection."""

import dataclasses
import functools
import itertools
import json
import linecache
import types
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.exercises import Function, Repair, Value, exercise, prediction, sheets
from tapelab.exercises.checks import without_a_tape
from tapelab.exercises.feedback import NOT_ATTEMPTED, RIGHT

import nbformat
import numpy as np
import pytest
import tensorflow as tf

FOLDER = Path(__file__).parents[1] / "notebooks"
CATALOGUE = catalogue.load(FOLDER)
SHEETS = sheets.sheets()
CASES = {"first_aid": 15, "hard_cases": 17}  # the two notebooks that are made of exercises
EXERCISES = [one for module in SHEETS.values() for one in sheets.exercises_of(module)]
# How a function is observed unless its exercise says otherwise: by what it returns.
PLAIN_CALL = next(field.default for field in dataclasses.fields(Function) if field.name == "observe")
_counter = itertools.count()


# By module, so that all that is asked of an exercise is asked in one process, which keeps its reference's results.
by_exercise = pytest.mark.parametrize("one", EXERCISES, ids=lambda one: one.identifier, scope="module")
by_sheet = pytest.mark.parametrize("number", SHEETS)


def answer_in(one, source):
    """Run an exercise's source as a notebook's cell would be, and return what it gives to `check`."""
    given = []
    stand_in = types.SimpleNamespace(**{one.name: types.SimpleNamespace(check=lambda *answer: given.append(answer))})
    name = f"<string>-exercise-{next(_counter)}"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # so that it has a source
    exec(compile(source, name, "exec"), {"tf": tf, "np": np, "exercises": stand_in})
    assert len(given) == 1, "the starter's last statement is the check"
    return given[0][0] if len(given[0]) == 1 else given[0]


@functools.cache
def solution_of(one):
    return answer_in(one, f"{one.solution_code}\n{one.starter_code.splitlines()[-1]}\n")


@functools.cache
def economical(one):
    """The exercise's checker, which asks a function only once for the same input.

    Every wrong answer is held against the reference and the mistakes, and most wrong answers are mistakes.
    """
    checker, seen = one.checker, {}
    if isinstance(checker, Value):
        return dataclasses.replace(
            checker, expected=checker.expected() if callable(checker.expected) else checker.expected
        )
    inputs = functools.cache(lambda dtype: checker.inputs(np.random.default_rng(0), dtype))

    def observe(function, *arguments):
        key = function, *map(id, arguments)
        if key not in seen:
            seen[key] = arguments, checker.observe(function, *arguments)  # kept, so that no other gets its id
        return seen[key][1]

    return dataclasses.replace(checker, inputs=lambda random, dtype: inputs(dtype), observe=observe)


@pytest.fixture
def judge(monkeypatch):
    """Judge an answer to an exercise, as its `judge` does."""

    def judge(one, answer):
        monkeypatch.setattr(one, "checker", economical(one))
        return one.judge(answer)

    return judge


def notebook_of(one):
    return notebook(one.identifier.partition(".")[0])


@functools.cache
def notebook(sheet):
    entry = next(entry for entry in CATALOGUE.notebooks if entry.name.partition("_")[2] == sheet)
    return nbformat.read(CATALOGUE.ipynb(entry), as_version=4)


def test_every_notebook_has_a_sheet_with_its_name():
    names = {entry.number: entry.name.partition("_")[2] for entry in CATALOGUE.notebooks}
    assert {number: module.__name__.rpartition(".")[2] for number, module in SHEETS.items()} == names


@by_sheet
def test_a_sheet_has_enough_and_its_names_are_those_of_its_module(number):
    module = SHEETS[number]
    exercises, predictions = sheets.exercises_of(module), sheets.predictions_of(module)
    if number == "00":  # a warm-up: one of each
        assert exercises
        assert predictions
    else:
        most = CASES.get(module.__name__.rpartition(".")[2], 4)
        assert len(exercises) >= 2
        assert len([one for one in exercises if not one.beyond]) <= most
        assert len(exercises) <= max(most, 6)
        assert len(predictions) >= 2
        assert any(one.beyond for one in exercises)
    for one in (*exercises, *predictions):
        assert one.identifier == f"{module.__name__.rpartition('.')[2]}.{one.name}"
        assert getattr(module, one.name) is one


@by_sheet
def test_a_sheet_lists_its_exercises_in_the_notebooks_order(number):
    exercises = sheets.exercises_of(SHEETS[number])
    cells = [cell.source for cell in notebook_of(exercises[0]).cells if cell.cell_type == "code"]
    places = [next(i for i, cell in enumerate(cells) if f"exercises.{one.name}.check(" in cell) for one in exercises]
    assert places == sorted(places)


@by_sheet
def test_an_exercise_is_complete(number):
    for one in sheets.exercises_of(SHEETS[number]):
        assert 1 <= one.minutes <= 20, one.identifier
        assert len(one.hints) >= 2, one.identifier
        assert len(set(one.hints)) == len(one.hints), one.identifier
        codes = [code for code, _ in economical(one).tried()]
        assert len(codes) >= 3, one.identifier
        assert len(set(codes)) >= 2, f"{one.identifier}: three ways to be wrong, not one"
        assert one.explanation.strip(), one.identifier


@by_sheet
def test_the_starter_is_not_attempted(number):
    for one in sheets.exercises_of(SHEETS[number]):
        assert one.judge(answer_in(one, one.starter_code)).verdict == NOT_ATTEMPTED, one.identifier


@pytest.mark.thorough(keep=8, dear=2)
@by_exercise
def test_the_solution_is_right(one, judge):
    result = judge(one, solution_of(one))
    assert result.verdict == RIGHT, result


@by_exercise
@pytest.mark.thorough(keep=6, dear=2)
def test_every_wrong_answer_gets_its_feedback(one, judge):
    for code, answer in economical(one).tried():
        result = judge(one, answer)
        assert result.verdict not in (RIGHT, NOT_ATTEMPTED), code
        assert result.code == code, f"{answer}\n{result}"


@by_sheet
def test_the_notebook_holds_the_starters_and_nothing_of_the_solutions(number):
    exercises = sheets.exercises_of(SHEETS[number])
    cells = notebook_of(exercises[0]).cells
    everything = json.dumps([[cell.source, cell.get("outputs")] for cell in cells], ensure_ascii=False)
    plain = " ".join(everything.replace("\\n", "\n").replace('\\"', '"').split())
    for one in exercises:
        assert any(cell.source == one.starter_code for cell in cells), f"{one.identifier}: no cell is the starter"
        assert any(one.heading in cell.source.splitlines() for cell in cells), f"{one.identifier}: no heading"
        for text in (one.explanation, *one.hints, one.solution_code):
            assert " ".join(text.split()) not in plain


@by_sheet
def test_predictions_are_guessed_before_they_are_revealed(number):
    for one in sheets.predictions_of(SHEETS[number]):
        code = [cell.source for cell in notebook_of(one).cells if cell.cell_type == "code"]
        guessed = [place for place, source in enumerate(code) if f"exercises.{one.name}.guess(" in source]
        revealed = [place for place, source in enumerate(code) if f"exercises.{one.name}.reveal(" in source]
        assert len(guessed) == len(revealed) == 1, one.identifier
        assert guessed[0] < revealed[0], one.identifier


@by_sheet
def test_a_predictions_remarks_can_be_met(number, monkeypatch):
    told = []
    monkeypatch.setattr(prediction, "display", lambda shown: told.append(shown.data))
    for one in sheets.predictions_of(SHEETS[number]):
        assert one.remarks, one.identifier
        for guess, text in one.remarks:
            assert text.strip(), one.identifier
            if one.options:
                assert guess in one.options, one.identifier
            told.clear()
            fresh = dataclasses.replace(one)
            fresh.guess(guess)
            fresh.reveal("something that no one guesses")
            assert text in told[-1]


@by_sheet
def test_every_hint_is_reached_in_order_and_the_solution_is_shown(number, monkeypatch):
    told = []
    monkeypatch.setattr(exercise, "display", lambda shown: told.append(shown.data))
    for one in sheets.exercises_of(SHEETS[number]):
        monkeypatch.setattr(one, "_shown", 0)
        for place, hint in enumerate(one.hints, start=1):
            one.hint()
            assert hint in told[-1]
            assert all(later not in told[-1] for later in one.hints[place:])
        one.hint()
        assert one.hints[-1] in told[-1]
        one.solution()
        assert f"```python\n{one.solution_code}\n```" in told[-1]
        assert one.explanation in told[-1]


# Mutants: the solution with one thing wrong. None may be called right.


def on_tensors(change, result):
    """Apply a change to the floating-point tensors of a structure; everything else stays."""
    return tf.nest.map_structure(
        lambda part: change(part) if tf.is_tensor(part) and part.dtype.is_floating else part, result
    )


def to_other_dtype(tensor):
    return tf.cast(tensor, tf.float64 if tensor.dtype == tf.float32 else tf.float32)


def wrong_axis(tensor):
    if tensor.shape.rank is None or tensor.shape.rank == 0:
        return tensor
    return tf.transpose(tensor) if tensor.shape.rank > 1 else tf.reverse(tensor, [0])


CHANGES = {"sign": tf.negative, "dtype": to_other_dtype, "axis": wrong_axis, "factor": lambda tensor: 2.0 * tensor}


def gradient_mutants(function):
    """The same values, with a derivative whose sign or upstream factor is wrong."""

    def sign(x, *rest):
        return function(2.0 * tf.stop_gradient(x) - x, *rest)

    def upstream(x, *rest):
        @tf.custom_gradient
        def inner(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = function(x, *rest)
            return tf.identity(y), lambda given: tape.gradient(y, x, output_gradients=tf.ones_like(given))

        return inner(x)

    return {"gradient's sign": sign, "gradient's upstream factor": upstream}


def mutants_of_function(one, function):
    checker = one.checker
    for name, change in CHANGES.items():
        yield name, lambda *given, change=change: on_tensors(change, function(*given))
    if checker.upstream is not None:
        if checker.observe in (PLAIN_CALL, without_a_tape):

            def without(*given):
                ones = tf.nest.map_structure(tf.ones_like, given[checker.upstream])
                return function(*given[: checker.upstream], ones, *given[checker.upstream + 1 :])

            yield "upstream factor", without
        else:
            yield from gradient_mutants(function).items()


def remembering(function):
    """The function, which computes only once what it is asked for again: most mutants change what it has returned."""
    known = {}

    def key(part):
        if tf.is_tensor(part):
            return part.dtype, tuple(part.shape), part.numpy().tobytes()
        if isinstance(part, (list, tuple)):
            return type(part), *map(key, part)
        return type(part), part

    def call(*given):
        try:
            asked = key(given)
            hash(asked)
        except (AttributeError, TypeError):  # a tensor in a graph, or something that has no fixed value
            return function(*given)
        if asked not in known:
            known[asked] = function(*given)
        return known[asked]

    return call


def observations(checker, function):
    seen = []
    for _, arguments in checker.trials():
        try:
            seen.append(checker.observe(function, *arguments))
        except Exception as error:
            seen.append(error)
    return seen


def alike(one, other):
    """Whether two lists of observations are the same in kind, shape, dtype and value."""

    def flat(structure):
        return tf.nest.flatten(structure, expand_composites=False)

    def key(part):
        if tf.is_tensor(part):
            return (part.dtype, tuple(part.shape))
        return type(part)

    mine, theirs = flat(one), flat(other)
    if [key(part) for part in mine] != [key(part) for part in theirs]:
        return False
    return all(
        np.allclose(a, b, rtol=1e-6, equal_nan=True) if tf.is_tensor(a) else isinstance(a, Exception) or a == b
        for a, b in zip(mine, theirs, strict=True)
    )


def mutants_of_value(value):
    if isinstance(value, dict):
        for key, part in value.items():
            yield from ({**value, key: other} for other in mutants_of_value(part))
    elif value is None:
        yield from (0.0, "None", False)
    elif isinstance(value, bool):
        yield from (not value, None)
    elif isinstance(value, str):
        yield from (value + "x", None)
    elif tf.is_tensor(value):
        changed = [change(value) for change in CHANGES.values()] + [None, tf.expand_dims(value, 0)]
        yield from (other for other in changed if not alike([value], [other]))
    elif isinstance(value, (int, float)):
        yield from (-value if value else 1, value + 1, None)
    elif all(type(size) is int for size in value):
        yield from ((*value, 1), value[::-1] if value[::-1] != value else (7, *value), None)
    else:
        for place, part in enumerate(value):
            for other in mutants_of_value(part):
                yield type(value)([*value[:place], other, *value[place + 1 :]])


@by_exercise
@pytest.mark.thorough(keep=3, dear=1)
def test_no_mutant_of_the_solution_is_right(one):
    checker, function = economical(one), solution_of(one)
    if isinstance(checker, Value):
        tried = list(mutants_of_value(checker.expected))
        assert tried
        for mutant in tried:
            assert checker.judge(mutant).verdict != RIGHT, mutant
        return

    def judge(function):
        return checker.judge(function)

    if isinstance(checker, Repair):
        cause, function = function
        for mutant in mutants_of_value(cause):
            assert checker.judge((mutant, function)).verdict != RIGHT, mutant

        def judge(function):
            return checker.judge((cause, function))

    if one.checker.observe is PLAIN_CALL:
        function = remembering(function)
    for name, mutant in mutants_of_function(one, function):
        if judge(mutant).verdict == RIGHT:
            assert alike(observations(checker, function), observations(checker, mutant)), name
