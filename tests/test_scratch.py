"""Folders for the time of a run, where the folder for temporary files has a path that is too long for sockets."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tapelab.collection import forkserver
from tapelab.collection.processes import scratch

import psutil
import pytest


@pytest.fixture
def long(tmp_path, monkeypatch):
    """A folder for temporary files with a path of two hundred characters and more."""
    folder = tmp_path / ("n" * 200)
    folder.mkdir()
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_a_socket_fits_into_a_folder_that_is_made_there(long):
    with (
        tempfile.TemporaryDirectory(prefix="tapelab-", dir=scratch.place()) as folder,
        socket.socket(socket.AF_UNIX) as it,
    ):
        assert not Path(folder).is_relative_to(long)
        it.bind(f"{folder}/socket")


def test_the_usual_folder_serves_up_to_the_last_byte(monkeypatch):
    room = scratch.LONGEST_SOCKET - scratch.NAMES
    with tempfile.TemporaryDirectory(prefix="t", dir=Path("/tmp").resolve()) as base:
        for length in (room, room + 1):
            folder = Path(base, "n" * (length - len(base) - 1))
            folder.mkdir()
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            assert (scratch.place() == str(folder)) == (length == room)
            link = Path(base, f"link{length}")  # a short name for a long path: a process in it sees the long one
            link.symlink_to(folder)
            monkeypatch.setattr(tempfile, "tempdir", str(link))
            assert (scratch.place() == str(folder)) == (length == room)


def test_where_no_folder_serves_that_is_said_before_anything_runs(
    long, tmp_path, make_collection, run_batch, monkeypatch
):
    monkeypatch.setattr(scratch, "OTHERS", (str(long), "/no/such"))
    collection = make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    with pytest.raises(scratch.NoPlaceError, match=f"no folder for sockets: {long} is longer than .*Set TMPDIR to"):
        run_batch(collection, tmp_path / "out")
    assert list((tmp_path / "out").iterdir()) == []


def test_a_run_succeeds_and_leaves_nothing_behind(long, tmp_path, make_collection, run_batch, printed):
    collection = make_collection(
        tmp_path / "notebooks", {"00_one": ["seed = 0", "import os; print(os.environ['TMPDIR'])"]}
    )
    status, shown = run_batch(collection, tmp_path / "out")
    assert status == 0, shown
    assert printed(tmp_path / "out" / "00_one.ipynb") == f"{long}\n"
    assert list(long.iterdir()) == []


def test_fork_servers_find_a_place_too(long):
    said = []
    with forkserver.starter(kernels=("json",), processes=("json",), say=said.append) as starter:
        process = starter.popen([sys.executable, "-c", "print('forked')"], stdout=subprocess.PIPE, cwd="/")
        assert process.stdout.read() == b"forked\n"
        process.stdout.close()
        assert process.wait() == 0
    assert said == []
    assert list(long.iterdir()) == []


def test_a_folder_goes_with_its_block_and_is_its_owners_alone():
    with scratch.folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("")
    assert not folder.exists()
    with pytest.raises(KeyError), scratch.folder() as folder:
        raise KeyError
    assert not folder.exists()


HOLDS = """
from tapelab.collection.processes import scratch
with scratch.folder() as first:
    pass
with scratch.folder() as second:
    (second / "file").write_text("")
    first.mkdir()  # somebody else's by now
    print(first, second, scratch._janitor(__import__("os").getpid())._process.pid, flush=True)
    input()
"""


def test_a_folder_goes_with_a_process_that_is_killed(wait_for):
    process = subprocess.Popen([sys.executable, "-c", HOLDS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    first, second, janitor = process.stdout.readline().split()
    assert Path(second, "file").exists()
    process.kill()
    process.communicate()
    wait_for(lambda: not psutil.pid_exists(int(janitor)) or psutil.Process(int(janitor)).status() == "zombie")
    assert not Path(second).exists()
    Path(first).rmdir()  # what was given back is left alone


def test_a_janitor_that_was_killed_stops_nobody():
    janitor = scratch._janitor(os.getpid())
    with scratch.folder() as folder:
        janitor._process.kill()
        janitor._process.wait()
    assert not folder.exists()
    scratch._janitor.cache_clear()
