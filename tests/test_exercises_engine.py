"""The engine behind the exercises: differences, checks, hostile answers, what is displayed, progress."""

import contextlib
import dataclasses
import json
import sys
import threading
import time
import tomllib
from pathlib import Path

from tapelab.exercises import (
    Exercise,
    Function,
    Mistake,
    Prediction,
    Repair,
    Value,
    compare,
    feedback,
    prediction,
    progress,
    sheets,
)
from tapelab.exercises.checks import without_a_tape
from tapelab.exercises.feedback import ERROR, NOT_ATTEMPTED, RIGHT, WRONG
from tapelab.process import session

import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf

JACOBIAN = np.arange(1.0, 16.0, dtype=np.float32).reshape(3, 5) ** 1.5
SQUARE = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.5], [7.0, 8.5, 10.0]])


ANSWERS = tomllib.loads((Path(__file__).parent / "programs" / "answers.toml").read_text("utf-8"))


def answers(table):
    """The rows of a table of answers, each the text of an expression and what is made of it."""
    return pytest.mark.parametrize(("text", "wanted"), ANSWERS[table].items())


def code_of(answer, expected, **options):
    found = compare.difference(answer, expected, **options)
    return found and found.code


@answers("differences")
def test_a_difference_is_named(text, wanted):
    assert code_of(*eval(text)) == (wanted or None)


def wrong_at(*places):
    """The Jacobian with 1 added at some places."""
    wrong = JACOBIAN.copy()
    for place in places:
        wrong[place] += 1
    return wrong


SUMMED, AXES = JACOBIAN.sum(axis=0), ("output", "input")


@pytest.mark.parametrize(
    ("answer", "expected", "axes", "said", "not_said"),
    [
        (wrong_at((1, 4), (2, 0)), JACOBIAN, AXES, ["[output 1, input 4]", "2 of 15 entries"], []),
        (SUMMED, JACOBIAN, AXES, ["what `gradient` gives", "(outputs)"], []),
        (JACOBIAN.sum(axis=1), JACOBIAN, AXES, [], ["what `gradient` gives"]),
        (SUMMED, JACOBIAN, ("batch", "input"), ["(batches)"], []),
        ({"the value": 1.0, "the slope": 5.0}, {"the value": 1.0, "the slope": 3.0}, (), ["In the slope: "], []),
        (None, (3, 2), (), ["a shape"], []),
        (None, (tf.zeros(3), tf.zeros(2)), (), [], ["a shape"]),
    ],
)
def test_a_difference_is_told(answer, expected, axes, said, not_said):
    text = compare.difference(answer, expected, axes=axes).text
    assert all(words in text for words in said), text
    assert not any(words in text for words in not_said), text


def drawn(figure):
    """What a figure shows: its images' values, and the (row, column) of each cross."""
    shown = [np.ma.filled(image.get_array(), np.nan) for ax in figure.axes for image in ax.images]
    crosses = [tuple(map(int, place[::-1])) for ax in figure.axes for line in ax.lines for place in line.get_xydata()]
    plt.close(figure)
    return shown, crosses


def test_a_wrong_matrix_is_drawn_beside_the_right_one_with_its_wrong_entries_crossed():
    wrong = wrong_at((1, 4))
    wrong[0, 2] = np.nan
    (yours, right), crosses = drawn(compare.difference(wrong, JACOBIAN).picture())
    np.testing.assert_array_equal(yours, wrong)
    np.testing.assert_array_equal(right, JACOBIAN)
    assert crosses == [(0, 2), (1, 4)]


def cube_gradient(x, upstream):
    return 3.0 * x**2 * upstream


def numbers(random, dtype):
    return [
        (tf.constant([-1.0, 2.0, 3.0], dtype), tf.constant([1.0, 0.5, -2.0], dtype)),
        (tf.constant(random.normal(size=(4, 3)), dtype), tf.constant(random.normal(size=(4, 3)), dtype)),
    ]


CUBE = Function(
    reference=cube_gradient,
    inputs=numbers,
    upstream=1,
    mistakes=(Mistake("forward", "This is the function itself.", lambda x, upstream: x**3),),
)


@answers("cubes")
def test_a_function_is_tried_and_its_misconception_named(text, wanted):
    result = CUBE.judge(eval(text))
    assert [result.verdict, result.code] == wanted[:2], result
    assert wanted[2] in result.text


def test_a_starter_that_computes_something_is_still_not_attempted():
    def starter(x, upstream):
        y = x**2 + ...
        return 2.0 * y

    def index(x, upstream):
        return 3.0 * x[..., :] ** 2 * upstream

    assert CUBE.judge(starter).verdict == NOT_ATTEMPTED
    assert CUBE.judge(index).verdict == RIGHT


def test_right_on_the_example_only_is_said():
    first = numbers(np.random.default_rng(0), tf.float32)[0][0].shape
    result = CUBE.judge(lambda x, upstream: (3.0 if x.shape == first else 2.0) * x**2 * upstream)
    assert result.verdict == WRONG
    assert "Right on the example" in result.text


def test_a_message_of_keras_says_what_happened_and_not_only_where():
    raised = ValueError(
        "Exception encountered when calling Dense.call().\n\n\x1b[1mRank 2 is expected.\x1b[0m\n\nArguments:"
    )
    assert feedback.of_error(raised).text.count("    ValueError: Rank 2 is expected.\n")


def test_an_error_is_shown_with_the_learners_own_lines_only():
    def inner(x):
        return tf.reshape(x, (100, 100))

    def outer(x, upstream):
        return inner(x)

    result = CUBE.judge(outer)
    assert result.verdict == ERROR
    assert "return tf.reshape(x, (100, 100))" in result.text
    assert "return inner(x)" in result.text
    assert "InvalidArgumentError" in result.text
    assert "site-packages" not in result.text
    assert "checks.py" not in result.text
    assert "__wrapped__" not in result.text


GRADIENT = Function(reference=lambda x: 2.0 * x, inputs=lambda random, dtype: [(tf.constant([1.0, -2.0], dtype),)])


@pytest.mark.parametrize("method", ["gradient", "jacobian"])
def test_a_derivative_that_is_none_is_explained_by_the_tape(method):
    def unwatched(x):
        with tf.GradientTape() as tape:
            y = x * x
        return getattr(tape, method)(y, x)

    result = GRADIENT.judge(unwatched)
    assert result.code == "none"
    assert "x is a plain tensor that the tape was not told to watch" in result.text
    assert "`y = x * x`" in result.text
    assert tf.GradientTape.__name__ == "GradientTape", "TensorFlow's own tape is back in its place"


def test_an_error_that_a_none_leads_to_is_explained_by_the_tape():
    def unwatched(x):
        with tf.GradientTape() as tape:
            y = x * x
        return tape.gradient(y, x) * 1.0

    result = GRADIENT.judge(unwatched)
    assert result.code == "raised:TypeError"
    assert "return tape.gradient(y, x) * 1.0" in result.text
    assert "x is a plain tensor that the tape was not told to watch" in result.text

    def another(x):
        return x.no_such_method()

    assert "gradient" not in GRADIENT.judge(another).text, "an error that no None led to"


def test_an_error_after_right_answers_comes_with_the_input():
    shapes = Function(
        reference=lambda x, axes: tf.reduce_sum(x),
        inputs=lambda random, dtype: [(tf.ones((2, 3), dtype), [0, 1]), (tf.ones(5, dtype), [0])],
    )
    result = shapes.judge(lambda x, axes: tf.reduce_sum(x, axis=[0, 1]))
    assert (result.verdict, result.code) == (ERROR, "raised:InvalidArgumentError")
    assert "Before that it was right. It raised on [1., 1., 1., 1., 1.] and [0]." in result.text
    never_right = shapes.judge(lambda x, axes: tf.reduce_sum(x, axis=7))
    assert "Before" not in never_right.text


def test_a_large_input_is_not_described_and_a_lone_number_is_told_beside_the_right_one():
    total = Function(reference=tf.reduce_sum, inputs=lambda random, dtype: [(tf.ones((7, 6), dtype),)])
    assert total.judge(lambda x: tf.reduce_sum(x) + 1.5).text == "You have 43.5, not 42."
    shown_first = Function(
        reference=tf.reduce_sum, inputs=lambda random, dtype: [(tf.ones(size, dtype),) for size in (3, 42)]
    )
    text = shown_first.judge(lambda x: tf.constant(3.0, x.dtype)).text
    assert text == "Right on the example, and not on an input that the text does not show. You have 3, not 42."
    assert Value(42.0).judge(43.5).text == "You have 43.5."


@pytest.mark.parametrize(
    "answer",
    [
        lambda x: forwards(x),
        lambda x: backwards(x),
        tf.function(lambda x: backwards(x)),
        pytest.param(lambda x: backwards(x) + 1.0, id="wrong, and by a tape"),
    ],
)
def test_a_tape_is_noticed_wherever_it_is_opened(answer):
    square = Function(
        reference=lambda x: 2.0 * x, inputs=lambda random, dtype: [(tf.ones(3, dtype),)], observe=without_a_tape
    )
    assert square.judge(lambda x: 2.0 * x).verdict == RIGHT
    result = square.judge(answer)
    assert (result.verdict, result.code) == (WRONG, "tape")
    assert sys.getprofile() is None


def backwards(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = x**2
    return tape.gradient(y, x)


def forwards(x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = x**2
    return accumulator.jvp(y)


def test_numpy_may_answer_in_float64():
    double = Function(reference=lambda x: 2.0 * x, inputs=lambda random, dtype: [(tf.ones(3, dtype),)])
    assert double.judge(lambda x: 2.0 * x.numpy().astype(np.float64)).verdict == RIGHT
    assert double.judge(lambda x: tf.cast(2.0 * x, tf.float64)).code == "dtype"


def test_a_value_knows_its_mistakes_and_its_options():
    value = Value(
        (7, 6, 5),
        mistakes=(
            Mistake("whole", "That is the full Jacobian.", (7, 6, 7, 5)),
            Mistake("string", "Give a tuple.", "7, 6, 5", where=lambda answer: isinstance(answer, str)),
        ),
    )
    assert value.judge((7, 6, 5)).verdict == RIGHT
    assert value.judge((7, 6, 7, 5)).code == "whole"
    assert value.judge("7,6,5").code == "string"
    assert value.judge((7, 5, 6)).code == "order"
    assert value.judge(...).verdict == NOT_ATTEMPTED
    assert value.judge((7, ..., 5)).verdict == NOT_ATTEMPTED
    choice = Value("forward", options=("forward", "reverse"))
    assert choice.judge("Forward").verdict == RIGHT
    assert choice.judge("sideways").code == "not_an_option"
    assert choice.judge("reverse").code == "other"


def test_a_mistake_in_a_dict_is_known_by_the_entries_that_it_names():
    sizes = {"one": 4, "two": 8, "three": None}
    value = Value(sizes, mistakes=(Mistake("halved", "Half of it.", {"two": 4}), Mistake("zero", "", {"three": 0})))
    assert value.tried() == [("halved", {**sizes, "two": 4}), ("zero", {**sizes, "three": 0})]
    for code, answer in value.tried():
        assert value.judge(answer).code == code
    assert value.judge({"one": 7, "two": 4, "three": None}).code == "halved"
    assert value.judge({"one": 4, "three": None}).code == "keys"
    assert value.judge([4, 4]).code == "type"


def make(checker, seconds=10.0):
    one = Exercise(title="An example", minutes=1, hints=("First.", "Second."), checker=checker, seconds=seconds)
    one.identifier, one.explanation = "99.example", "Because."
    return one


class Refuses:
    """An object on which everything raises."""

    def __eq__(self, other):
        raise RuntimeError("no comparison")

    __hash__ = None

    def __bool__(self):
        raise RuntimeError("no truth")

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")

    def __repr__(self):
        raise RuntimeError("no text")

    def __len__(self):
        raise RuntimeError("no length")


def endless(x, upstream):
    while True:
        pass


def endless_and_stubborn(x, upstream):
    while True:
        try:
            time.sleep(0.01)
        except Exception:
            continue


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("answer", [endless, endless_and_stubborn, lambda x, upstream: time.sleep(1000)])
def test_an_answer_that_never_returns_is_stopped(answer):
    began = time.monotonic()
    result = make(CUBE, seconds=0.5).judge(answer)
    assert time.monotonic() - began < 5
    assert result.code == "timeout"
    assert "0.5 s" in result.text


@contextlib.contextmanager
def no_thread_left():
    """Threads that the block starts end within some seconds."""
    before = set(threading.enumerate())
    yield
    give_up = time.monotonic() + 20
    while set(threading.enumerate()) - before:
        assert time.monotonic() < give_up, "the loop is still running"
        time.sleep(0.05)


def test_a_stopped_answer_leaves_no_thread_that_computes():
    with no_thread_left():
        make(CUBE, seconds=0.2).judge(endless)


@pytest.mark.thorough(keep=20, dear=5)
@pytest.mark.parametrize(
    "answer",
    [
        Refuses(),
        [Refuses()],
        lambda x, upstream: Refuses(),
        tf.constant("text"),
        tf.RaggedTensor.from_row_lengths([1.0, 2.0, 3.0], [1, 2]),
        tf.sparse.from_dense([[0.0, 1.0]]),
        lambda x, upstream: tf.zeros((40_000, 40_000), tf.bool),
        lambda x, upstream: np.broadcast_to(np.float32(1), (10**6, 10**6)),
        lambda x, upstream: sys.exit(3),
        lambda x, upstream: [x] * 10**6,
        object,
    ],
    ids=range(11),
)
@pytest.mark.parametrize("checker", [CUBE, Value(lambda: tf.constant(JACOBIAN)), Value((7, 6))], ids=range(3))
def test_a_hostile_answer_gets_a_message(checker, answer, capsys):
    make(checker, seconds=2.0).check(answer)
    shown = capsys.readouterr().out
    assert "Not right yet" in shown or "raised an error" in shown


def test_interrupting_a_check_stops_the_answer(monkeypatch):
    def interrupted(thread, seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "join", interrupted)
    with no_thread_left(), pytest.raises(KeyboardInterrupt):
        make(CUBE).judge(endless)


def test_check_says_what_to_do_next(capsys):
    one = make(Value(2.0))
    one.check(...)
    assert "exercises.example.hint()" in capsys.readouterr().out
    one.check(2.0)
    assert "Because." in capsys.readouterr().out
    one.check(3.0)
    assert "Because." not in capsys.readouterr().out


def test_tensorflows_log_does_not_stand_above_the_feedback(capfd):
    make(GRADIENT).check(lambda x: tf.linalg.matvec(tf.ones((2, 3), x.dtype), x))
    assert ".cc:" not in capfd.readouterr().err


def test_several_answers_are_judged_together():
    assert make(Value([1.0, None])).judge(1.0, None).verdict == RIGHT
    assert make(Value([1.0, None])).judge(1.0, ...).verdict == NOT_ATTEMPTED


def norm(x):
    return tf.sqrt(tf.reduce_sum(x**2))


def safe_norm(x):
    squared = tf.reduce_sum(x**2)
    return tf.where(squared > 0, tf.sqrt(tf.where(squared > 0, squared, 1.0)), 0.0)


def outside(x):
    return tf.sqrt(tf.reduce_sum(x**2)) + 0.0


def copied(x):
    return tf.sqrt(tf.reduce_sum(x**2))  # the code of `norm` under another name


def norm_and_gradient(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return {"the norm": y, "the gradient": tape.gradient(y, x)}


NORM = Repair(
    reference=safe_norm,
    inputs=lambda random, dtype: [(tf.zeros(2, dtype),), (tf.constant([3.0, 4.0], dtype),)],
    observe=norm_and_gradient,
    mistakes=(Mistake("squared", "That is the square.", lambda x: tf.reduce_sum(x**2)),),
    diagnosis=Value("slope", mistakes=(Mistake("no value", "The value is 0.", "value"),), options=("slope", "value")),
    broken=norm,
)


@answers("repairs")
def test_a_repair_is_a_diagnosis_and_then_a_function(text, wanted):
    result = NORM.judge(eval(text))
    assert [result.verdict, result.code] == wanted[:2], result


HEALTHY = dataclasses.replace(
    NORM,
    healthy=True,
    broken=safe_norm,
    diagnosis=Value("nothing", mistakes=(Mistake("no slope", "It is 0.", "slope"),), options=("nothing", "slope")),
)


@answers("healthy")
def test_a_program_in_which_nothing_is_wrong_is_to_be_left_alone(text, wanted):
    answer = eval(text)
    result = HEALTHY.judge(answer)
    assert [result.verdict, result.code] == wanted[:2], result
    if answer[0] == "nothing" and result.verdict == WRONG:
        assert result.text.startswith("The diagnosis is right, and so was the program. The change: "), result.text


@pytest.fixture
def told(monkeypatch):
    shown = []
    monkeypatch.setattr(prediction, "display", lambda one: shown.append(one.data))
    return shown


def test_a_prediction_shows_the_result_beside_the_guess_and_answers_the_guess(told):
    one = Prediction("99.p", remarks=((7.0, "Seven is tempting."),))
    one.guess(7.0)
    assert told[-1] == "Your guess: `7`. Now run on."
    one.reveal(tf.constant(3.0))
    assert told[-1].index("`7`") < told[-1].index("`3`") < told[-1].index("Seven is tempting.")
    for guess in (3, 3.02):  # within one per cent
        one.guess(guess)
        one.reveal(tf.constant(3.0))
        assert told[-1].endswith("Your guess was right.")
    one.reveal(tf.constant(7.0))
    assert told[-1].endswith("`7`\n\nYour guess was right for the cell as it stood.")


def test_without_a_guess_the_result_alone_is_shown(told):
    one = Prediction("99.p")
    one.reveal(None)
    assert told[-1] == "**Result:** `None`"
    one.guess([..., 1.0])
    assert "No guess yet" in told[-1]
    one.reveal([None, 1.0])
    assert "guess" not in told[-1]


@answers("guesses")
def test_guesses_are_compared_with_results_of_every_kind(told, text, wanted):
    guess, result = eval(text)
    one = Prediction("99.p")
    one.guess(guess)
    one.reveal(result)
    assert told[-1].endswith("Your guess was right.") == wanted
    assert told[-1].startswith("✓ **Your guess:**" if wanted else "✗ **Your guess:**")


@pytest.mark.parametrize("words", ["sixty", ["four", None]])
def test_words_are_no_guess_where_a_number_is_asked_for(told, words):
    one = Prediction("99.p")
    one.guess(words)
    assert told[-1].endswith("is in words.")
    one.reveal(60.0)
    assert "guess" not in told[-1]
    asks_for_words = Prediction("99.p", remarks=((["coupled", "coupled"], "No."),))
    asks_for_words.guess(["coupled", "independent"])
    asks_for_words.reveal(["coupled", "independent"])
    assert told[-1].endswith("Your guess was right.")


def test_a_choice_that_is_none_of_the_options_is_no_guess(told):
    one = Prediction("99.p", options=("v", "t"))
    one.guess("w")
    assert 'Choose one of "v", "t".' in told[-1]
    one.reveal("v")
    assert "guess" not in told[-1]
    one.guess("V")
    one.reveal("v")
    assert told[-1].endswith("Your guess was right."), "capitals do not matter"
    for guess in (1, float("nan"), None):
        one = Prediction("99.p", options=("1", "NaN", "None"))
        one.guess(guess)
        one.reveal({1: "1", None: "None"}.get(guess, "NaN"))
        assert told[-1].endswith("Your guess was right."), guess


@pytest.fixture
def learner(monkeypatch, tmp_path):
    """Someone at the keyboard, with a progress file of their own."""
    monkeypatch.setattr(session, "attended", lambda: True)
    monkeypatch.setenv("TAPELAB_PROGRESS", str(tmp_path / "data" / "progress.json"))
    return tmp_path / "data" / "progress.json"


def test_a_solved_exercise_is_remembered_and_a_wrong_one_is_not(learner):
    one = make(Value(2.0))
    one.check(3.0)
    assert not learner.exists()
    one.check(2.0)
    assert progress.solved() == {"99.example"}
    progress.record("sheet.other")
    assert json.loads(learner.read_text()) == {"solved": ["99.example", "sheet.other"]}
    assert list(learner.parent.iterdir()) == [learner], "no temporary file is left"


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"solved": 3}', '{"solved": [3]}', "\x00\xff"])
def test_a_damaged_file_is_reported_ignored_and_replaced(learner, damage):
    learner.parent.mkdir()
    learner.write_bytes(damage.encode("latin-1"))
    with pytest.warns(UserWarning, match="damaged"):
        assert progress.solved() == set()
    with pytest.warns(UserWarning, match="damaged"):
        progress.record("sheet.one")
    assert progress.solved() == {"sheet.one"}


def test_a_copy_that_asks_for_what_is_no_more_is_told_how_to_get_the_present_one(fresh):
    told = fresh(
        "from tapelab.exercises.sheets import forward_mode\n"
        "try:\n    forward_mode.passes\nexcept AttributeError as error:\n    print(error)"
    )
    assert told.startswith("Notebook 12 has no exercise or prediction 'passes'. ")
    assert "`make lab`, or `tapelab lab`, lays the present one beside it." in told


def test_a_file_that_cannot_be_written_is_reported_and_the_check_still_answers(learner, capsys):
    learner.parent.write_text("a file where the folder should be")
    with pytest.warns(UserWarning, match="could not be"):
        make(Value(2.0)).check(2.0)
    assert "Right" in capsys.readouterr().out


def test_a_batch_run_neither_reads_nor_writes(monkeypatch, learner):
    progress.record("sheet.one")
    monkeypatch.setattr(session, "attended", lambda: False)
    assert progress.solved() == set()
    progress.record("sheet.two")
    assert json.loads(learner.read_text()) == {"solved": ["sheet.one"]}


def test_the_file_is_in_the_users_own_data_folder(monkeypatch):
    monkeypatch.delenv("TAPELAB_PROGRESS", raising=False)
    assert progress.path().name == "progress.json"
    assert "tapelab" in progress.path().parts
    assert progress.path().is_absolute()


def test_the_start_page_shows_which_exercises_are_solved(learner, monkeypatch):
    shown = []
    monkeypatch.setattr(sheets, "display", lambda one: shown.append(one.data))
    first = sheets.exercises_of(sheets.sheets()["05"])[0]
    sheets.show_progress()
    assert f"○\N{NO-BREAK SPACE}{first.title}" in shown[-1]
    assert "Solved: 0 of" in shown[-1]
    assert "no longer in the collection" not in shown[-1]
    progress.record(first.identifier)
    progress.record("recording_control.no_longer_there")
    sheets.show_progress()
    assert f"✓\N{NO-BREAK SPACE}{first.title}" in shown[-1]
    assert "Solved: 1 of" in shown[-1]
    assert shown[-1].endswith("no longer in the collection: recording_control.no_longer_there.")
