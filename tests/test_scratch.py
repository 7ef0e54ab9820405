"""Folders for the time of a run, where the folder for temporary files has a path that is too long for sockets."""

import socket
import tempfile
from pathlib import Path

from tapelab.collection.processes import scratch

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
    with scratch.folder() as folder, socket.socket(socket.AF_UNIX) as it:
        assert not folder.is_relative_to(long)
        it.bind(f"{folder}/k-12345")


def test_the_usual_folder_serves_up_to_the_last_byte(monkeypatch):
    room = scratch.LONGEST_SOCKET - scratch.NAMES
    with tempfile.TemporaryDirectory(prefix="t", dir=Path("/tmp").resolve()) as base:
        for length in (room, room + 1):
            place = Path(base, "n" * (length - len(base) - 1))
            place.mkdir()
            link = Path(base, f"link{length}")  # a short name for a long path: a process in it sees the long one
            link.symlink_to(place)
            for usual in (place, link):
                monkeypatch.setattr(tempfile, "tempdir", str(usual))
                with scratch.folder() as folder:
                    assert (folder.parent == place) == (length == room)


def test_a_run_succeeds_and_leaves_nothing_behind(long, tmp_path, make_collection, run_batch, printed, light_kernels):
    collection = make_collection(
        tmp_path / "notebooks", {"00_one": ["seed = 0", "import os; print(os.environ['TMPDIR'])"]}
    )
    status, shown = run_batch(collection, tmp_path / "out")
    assert status == 0, shown
    assert printed(tmp_path / "out" / "00_one.ipynb") == f"{long}\n"
    assert list(long.iterdir()) == []


def test_a_folder_goes_with_its_block_and_is_its_owners_alone():
    with scratch.folder() as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "file").write_text("")
    assert not folder.exists()
    with pytest.raises(KeyError), scratch.folder() as folder:
        raise KeyError
    assert not folder.exists()
