"""What others call on the pairs, without `make`: jupytext's own commands, and a save under its manager."""

import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NAMES = sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.fixture
def clone(tmp_path):
    """The notebooks and the settings beside them, as a repository of their own in which nothing has changed."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks", ignore=shutil.ignore_patterns(".*", "__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.c")
    for command in (("init", "--quiet"), ("add", "."), ("commit", "--quiet", "--message=all")):
        subprocess.run([*git, *command], cwd=tmp_path, check=True)
    return tmp_path


def changed(clone):
    return subprocess.run(["git", "diff"], cwd=clone, check=True, capture_output=True, text=True).stdout


def run(clone, *arguments):
    command = [sys.executable, "-m", "jupytext", "--quiet", *arguments]
    done = subprocess.run(command, cwd=clone, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.dear
@pytest.mark.parametrize("newer", ["ipynb", "py"])
def test_a_sync_leaves_git_clean(clone, newer):
    for name in NAMES:
        (clone / "notebooks" / f"{name}.{newer}").touch()
    run(clone, "--sync", *(f"notebooks/{name}.ipynb" for name in NAMES))
    assert changed(clone) == ""


@pytest.mark.dear
@pytest.mark.parametrize(("source", "target"), [("ipynb", "py:percent"), ("py", "notebook")])
def test_the_strict_round_trip_passes(clone, source, target):
    run(clone, "--test-strict", "--to", target, *(f"notebooks/{name}.{source}" for name in NAMES))


def test_a_notebook_made_from_the_text_alone_has_its_folds(clone):
    name = NAMES[1]
    path = clone / "notebooks" / f"{name}.ipynb"
    stored = nbformat.read(path, as_version=4)
    path.unlink()
    run(clone, "--to", "notebook", f"notebooks/{name}.py")
    made = nbformat.read(path, as_version=4)
    assert [cell.metadata for cell in made.cells] == [cell.metadata for cell in stored.cells]
    assert sum(cell.metadata.get("jupyter") == {"source_hidden": True} for cell in made.cells) > 10


def test_a_save_in_jupyterlab_writes_what_was_there(clone, monkeypatch):
    monkeypatch.chdir(clone)
    manager = jupytext.TextFileContentsManager(root_dir=str(clone))
    for name in NAMES:
        path = f"notebooks/{name}.ipynb"
        manager.save(manager.get(path), path)
    assert changed(clone) == ""
