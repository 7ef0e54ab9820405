"""What `make test` leaves out, and what it keeps of it."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from data_tables import read_text

TESTS = read_text("quick", "TESTS")


@pytest.mark.parametrize(("option", "passed"), [((), "7 passed"), (("--quick",), "3 passed, 4 deselected")])
def test_the_thorough_tests_are_left_out_but_for_their_first_cases(tmp_path, option, passed):
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_these.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", "-p", "no:cacheprovider", "--strict-markers", *option]
    done = subprocess.run([*command, tmp_path], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert f"= {passed} in" in done.stdout
