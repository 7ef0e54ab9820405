"""The generated mutants of the notebooks: which there are, and what counts as noticed."""

import importlib.util
from concurrent.futures import Future
from pathlib import Path

import pytest
from data_tables import read_rows
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("mutants", ROOT / "ci" / "mutants.py")
mutants = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mutants)


def sources(*cells):
    nb = new_notebook(cells=[new_code_cell(cell) if isinstance(cell, str) else cell for cell in cells])
    return [mutant.source for mutant in mutants.mutants_of("nb", nb)]


@pytest.mark.parametrize(("code", "expected"), read_rows("mutants", "cells", globals()))
def test_the_mutants_of_a_cell(code, expected):
    assert set(sources(code)) == expected


def test_a_mutant_says_what_it_changes():
    nb = new_notebook(cells=[new_code_cell("a = b\ny = f(a * b)  # note")])
    changes = [mutant.change for mutant in mutants.mutants_of("nb", nb)]
    assert changes == ["y = f(a * b)  # note    [f(a * b) → a * b]", "y = f(a * b)  # note    [a * b → a / b]"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("check", "noticed"),
    [
        ("assert y == 3", "assertion"),
        (new_code_cell("_ = [7][y - 3]", metadata={"tags": ["check"]}), "error"),
        ("_ = [7][y - 3]", "refused"),
        ("print('y is', y)", "output"),
        ("print('a number')", None),
    ],
)
def test_what_notices_a_mutant(check, noticed, tmp_path, light_kernels, forked_kernels):
    nb = new_notebook(cells=[new_code_cell("y = 3"), new_code_cell(check) if isinstance(check, str) else check])
    nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    mutant = next(mutants.mutants_of("nb", nb))
    expected = Future()
    expected.set_result(mutants.as_it_is(nb, tmp_path))
    assert mutants.judge(mutant, nb, expected, tmp_path).noticed == noticed


def test_the_report_counts_and_lists_what_nothing_holds(monkeypatch):
    made = [mutants.Mutant("05_x", number, "", f"change {number}") for number in range(6)]
    noticed = ["assertion", "error", "output", None, None, "refused"]
    monkeypatch.setattr(mutants, "reasons", lambda: {("05_x", "change 4"): "it means the same"})
    text = mutants.report([mutants.Verdict(*both) for both in zip(made, noticed, strict=True)])
    assert "| all | 6 | 5 | 1 | 1 | 1 | 1 | 1 |" in text
    assert "Noticed: 0.75, by an assertion 0.25 of the 4 that run" in text
    assert "With those that Python refuses: 0.80." in text
    assert "- 05_x, cell 3: `change 3`: **nothing holds this**" in text
    assert "- 05_x, cell 4: `change 4`: it means the same" in text


def test_every_reason_names_a_line_that_exists():
    for name, change in mutants.reasons():
        line = change.partition("    [")[0]
        assert line in (ROOT / "notebooks" / f"{name}.py").read_text(encoding="utf-8"), change
