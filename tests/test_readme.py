"""The README's Python runs, and prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", README, flags=re.DOTALL)


def test_there_is_python_in_it():
    assert len(BLOCKS) == 2


@pytest.mark.parametrize(("code", "expected"), BLOCKS)
def test_it_runs_and_prints_what_it_says(tmp_path, code, expected):
    (tmp_path / "README.md").write_text(code)
    command = [sys.executable, "README.md"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == expected


def test_the_shapes_in_its_comments_are_right(tmp_path):
    (code,) = (code for code, _ in BLOCKS if "hessian" in code)
    check = "assert matrix.shape == (102, 102)\nassert [p.shape for p in product] == [v.shape for v in model.weights]\n"
    (tmp_path / "snippet.py").write_text(code + check)
    command = [sys.executable, "snippet.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
