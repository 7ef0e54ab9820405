"""The folder for results, and who may write there."""

import subprocess
import sys

from tapelab.collection.reports import storage
from tapelab.collection.reports.storage import Folder, StorageError

import pytest


@pytest.mark.parametrize("place", ["", "s3://bucket/prefix", "file:///somewhere"])
def test_what_is_no_folder_is_refused(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StorageError, match=r"it is a URL\. Give" if place else "it names no place"):
        Folder(place)
    assert list(tmp_path.iterdir()) == []


HOLDS = """import sys
from tapelab.collection.reports.storage import Folder
with Folder(sys.argv[1]).held():
    print('held', flush=True)
    input()"""


def holder(folder):
    command = [sys.executable, "-c", HOLDS, str(folder)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize("end", ["in order", "killed"])
def test_a_folder_is_held_by_one_process_and_free_again_at_its_end(tmp_path, end):
    process = holder(tmp_path)
    try:
        with (
            pytest.raises(StorageError, match=f"another batch writes to {tmp_path} at this moment"),
            Folder(tmp_path).held(),
        ):
            pass
    finally:
        process.kill() if end == "killed" else process.communicate("\n")
        process.wait()
    with Folder(tmp_path).held():
        assert {path.name for path in tmp_path.iterdir()} == {storage.LOCK}
    assert list(tmp_path.iterdir()) == []


def test_the_second_command_in_one_folder_is_told_so(tmp_path, make_collection):
    make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    output = tmp_path / "out"
    command = [sys.executable, "-m", "tapelab", "run", "--notebooks", "notebooks", "--output", str(output)]
    with Folder(output).held():
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert done.stderr.startswith(f"Error: another batch writes to {output} at this moment.")
        assert {path.name for path in output.iterdir()} == {storage.LOCK}
