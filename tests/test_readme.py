"""The README's Python runs, and prints what the README says it prints."""

import re
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, flags=re.DOTALL)


def test_there_is_python_in_it():
    assert len(BLOCKS) == 8


@pytest.mark.parametrize(("code", "expected"), BLOCKS)
def test_it_runs_and_prints_what_it_says(fresh, code, expected):
    assert fresh(code, name="README.md") == expected


def test_the_shapes_in_its_comments_are_right(fresh):
    (code,) = (code for code, _ in BLOCKS if "hessian" in code)
    assert "shape (102, 102)" in code
    assert "one tensor for each variable" in code
    shapes = "print(matrix.shape, [p.shape for p in product] == [v.shape for v in model.weights])"
    assert fresh(f"{code}\n{shapes}") == "(102, 102) True\n"
