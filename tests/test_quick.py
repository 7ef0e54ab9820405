"""What `make test` leaves out, and what it keeps of it."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from process_texts import read_text

TESTS = read_text("quick", "TESTS")


@pytest.mark.parametrize(
    ("option", "passed", "cases"),
    [((), "7 passed", [*"01234"]), (("--quick",), "3 passed, 4 deselected", ["0", "4"])],
)
def test_the_thorough_tests_are_left_out_but_for_some_cases_from_the_first_to_the_last(tmp_path, option, passed, cases):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_these.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", "--strict-markers", "-s"]
    done = subprocess.run([*command, *option, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"= {passed} in" in done.stdout
    assert re.findall(r"case (\d)", done.stdout) == cases
