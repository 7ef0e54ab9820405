"""Whole files: nobody reads half of one, and what a file was (its mode, a link to it) it stays."""

import os
import stat
from pathlib import Path

from tapelab.process.files import write_whole

import pytest


@pytest.fixture
def umask():
    """A function that sets the umask until the test ends."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(TypeError):
        write_whole(path, "text, where bytes belong")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_new_file_gets_the_mode_that_the_umask_leaves(tmp_path, umask, mask, expected):
    umask(mask)
    write_whole(tmp_path / "file", b"new")
    assert mode(tmp_path / "file") == expected


@pytest.mark.parametrize("existing", [0o600, 0o640, 0o755])
def test_an_existing_file_keeps_its_mode_from_before_the_first_byte(tmp_path, monkeypatch, existing):
    path = tmp_path / "file"
    path.write_text("old")
    path.chmod(existing)
    chmod, sizes = Path.chmod, []

    def watched(self, mode):
        chmod(self, mode)
        sizes.append(self.stat().st_size)

    monkeypatch.setattr(Path, "chmod", watched)
    write_whole(path, b"new")
    assert (path.read_bytes(), mode(path), sizes) == (b"new", existing, [0])


@pytest.mark.parametrize("there", [True, False])
def test_a_link_stays_a_link_and_the_file_behind_it_is_written(tmp_path, there):
    target, link = tmp_path / "elsewhere" / "file", tmp_path / "link"
    target.parent.mkdir()
    if there:
        target.write_text("old")
        target.chmod(0o600)
    link.symlink_to(target.relative_to(tmp_path))
    write_whole(link, b"new")
    assert link.is_symlink()
    assert target.read_bytes() == b"new"
    assert not there or mode(target) == 0o600
    assert sorted(tmp_path.rglob("*")) == [target.parent, target, link]


def test_a_name_as_long_as_the_file_system_takes_is_written(tmp_path):
    path = tmp_path / ("n" * 255)
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
