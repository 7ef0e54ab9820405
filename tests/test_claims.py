"""A notebook's folded checks: what a person is told, what a batch run raises, and that nothing else changes."""

from tapelab.process import session
from tapelab.process.session import claims

import numpy as np
import pytest
import tensorflow as tf
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output


@pytest.fixture
def run(monkeypatch):
    """A function that runs a cell in an IPython of its own, and returns its result and what it displayed."""
    shell = InteractiveShell()
    shell.user_ns.update(np=np, tf=tf)
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    claims.watch()
    claims.watch()  # once is enough

    def cell(source):
        with capture_output() as captured:
            result = shell.run_cell(source, store_history=True)
        shown = [output.data.get("text/plain", "") for output in captured.outputs]
        return result, [*captured.stdout.splitlines(), *shown]

    cell.names = shell.user_ns
    return cell


@pytest.fixture
def person(monkeypatch):
    monkeypatch.setattr(session, "attended", lambda: True)


CHECK = "# @title Check\n"


@pytest.mark.parametrize("attended", [False, True])
def test_checks_that_hold_are_counted(run, monkeypatch, attended):
    monkeypatch.setattr(session, "attended", lambda: attended)
    loop, claims = (
        "for x in (1, 2):\n    assert x\n",
        "np.testing.assert_allclose(x, two)\ntf.debugging.assert_equal(x, 2)",
    )
    result, shown = run(f"{CHECK}two = 2\n{loop}{claims}")
    assert result.success
    assert shown == ["✓ the text holds (3 checks)"]
    assert run(CHECK + "assert True")[1] == ["✓ the text holds (1 check)"]
    assert run("# Check\nassert True")[1] == ["✓ the text holds (1 check)"], "as a learner's copy has it"
    assert run(CHECK + "x = 3")[1] == []
    assert run("# Checked by hand\nassert True")[1] == []
    assert run("assert True")[1] == [], "only a cell of checks reports"
    assert run.names["x"] == 3


def test_a_batch_run_gets_the_error_itself_with_what_the_text_says(run):
    result, shown = run(CHECK + "x = 1\nassert x == 2, 'why'")
    assert isinstance(result.error_in_exec, AssertionError)
    assert str(result.error_in_exec) == "It says `x == 2`. Yours: `1`.\nwhy"
    traceback = result.error_in_exec.__traceback__
    while traceback.tb_next:
        traceback = traceback.tb_next
    assert traceback.tb_lineno == 3
    assert not any("✓" in line for line in shown)


@pytest.mark.parametrize("title", ["# @title Parameters", "# Parameters"])
@pytest.mark.parametrize("rate", [0.3, 0.05, 0.2, 0.01])
def test_a_parameter_outside_its_range_is_named(run, monkeypatch, rate, title):
    run(f"{title}\nseed = 0\nrate = 0.1  # of descent: between 0.05 and 2e-1\nsteps = 3  # between meals")
    run(f"# Parameters\nrate = {rate}")  # as papermill gives it
    outside = "" if 0.05 <= rate <= 0.2 else f" rate is {rate}; the text holds between 0.05 and 0.2."
    result, _ = run(CHECK + "assert rate > 1")
    assert str(result.error_in_exec) == f"It says `rate > 1`. Yours: `{rate}`.{outside}"
    monkeypatch.setattr(session, "attended", lambda: True)
    assert run(CHECK + "assert rate > 1")[1] == [f"✗ Your run has left the text. {result.error_in_exec}"]


def test_a_person_reads_what_the_text_says_and_what_was_found(run, person):
    result, shown = run(CHECK + "x = np.float32(27.5)\nassert x == 28.0\nassert x > 0\nassert round(float(x)) == 29")
    assert result.success
    assert shown == [
        "✗ Your run has left the text. It says `x == 28.0`. Yours: `27.5`.",
        "✗ Your run has left the text. It says `round(float(x)) == 29`. Yours: `28`.",
    ]


def test_a_tensor_is_shown_as_its_number_and_code_as_code(run, person):
    _, shown = run(CHECK + "assert tf.constant(5.0) == 2.0")
    assert shown == ["✗ Your run has left the text. It says `tf.constant(5.0) == 2.0`. Yours: `5.0`."]
    _, shown = run(CHECK + "assert tf.constant([1, 2])[0] < 1, 'x < y'")
    line = claims._Line(shown[0])._repr_html_()
    assert line.endswith("It says <code>tf.constant([1, 2])[0] &lt; 1</code>. Yours: <code>1</code>.</small>")


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("assert not [1]", ["It says `not [1]`."]),
        ("assert [].pop() == 2", ["IndexError: pop from empty list"]),
        ("np.testing.assert_allclose(1.0, 2.0)", ["It says `np.testing.assert_allclose(1.0, 2.0)`.", "Mismatched"]),
        ("tf.debugging.assert_less(2, 1)", ["It says `tf.debugging.assert_less(2, 1)`."]),
        ("for x in (1, 2):\n    assert x < 2", ["It says `x < 2`. Yours: `2`."]),
        ("assert nothing == 2", ["needs a cell above it", "name 'nothing' is not defined"]),
        ("oracle = nothing\nassert oracle == 2", ["needs a cell above it", "name 'nothing' is not defined"]),
        ("1 / 0\nassert True", ["ZeroDivisionError"]),
        ("def f(x):\n    assert x\nf(0)", ["AssertionError"]),
        (f"assert '{'a' * 999}' == 2", ["a …`."]),
        ("left = iter([1])\nassert next(left) == 2", ["It says `next(left) == 2`."]),
    ],
)
def test_whatever_fails_a_person_reads_one_line_and_the_notebook_goes_on(run, person, source, parts):
    result, shown = run(CHECK + source)
    assert result.success, result
    (line,) = shown
    assert line.startswith("✗ Your run has left the text. ")
    for part in parts:
        assert part in line
    assert "_error_of_a_check" not in run.names


def test_a_cell_with_a_mistake_in_its_syntax_changes_nothing(run):
    assert not run(CHECK + "assert (")[0].success
    assert run("assert True")[1] == []
    assert run(CHECK + "assert True")[1] == ["✓ the text holds (1 check)"]


def test_without_ipython_there_is_nothing_to_watch(monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    claims.watch()
