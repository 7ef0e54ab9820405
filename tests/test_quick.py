"""What `make test` and .ci/run leave out, and what they keep of it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from process_texts import read_text

TESTS = read_text("quick", "TESTS")


@pytest.mark.dear(keep=2)
@pytest.mark.parametrize(
    ("options", "passed", "cases"),
    [
        (["--quick"], "5 passed, 3 deselected", ["0", "2", "4", "dear"]),
        ([], "8 passed", [*"01234", "dear"]),
        (["--quicker"], "3 passed, 5 deselected", ["0", "4"]),
    ],
)
def test_the_thorough_and_the_dear_are_left_out_but_for_some_cases_from_the_first_to_the_last(
    tmp_path, options, passed, cases
):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_these.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", "--strict-markers", "-s"]
    done = subprocess.run([*command, *options, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"= {passed} in" in done.stdout
    assert re.findall(r"case (\w+)", done.stdout) == cases
