"""The learner's copies: what they are, and that nothing which a learner has written is ever lost."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.cli import main
from tapelab.collection.publishing import copies

import nbformat
import pytest
from click.testing import CliRunner
from ipykernel.ipkernel import IPythonKernel
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_server.services.config.manager import ConfigManager

ROOT = Path(__file__).parents[1]
NAMES = ["00_one", "01_two"]


@pytest.fixture
def small(tmp_path, make_collection):
    collection = make_collection(tmp_path / "notebooks", {name: ["seed = 0", "print(seed)"] for name in NAMES})
    for name in NAMES:
        edit(collection.folder / f"{name}.ipynb", outputs=[nbformat.v4.new_output("stream", text="0\n")])
    return collection


@pytest.fixture
def place(tmp_path):
    return tmp_path / "work"


def edit(path, source=None, **changes):
    """Change a notebook's second cell, as a person would."""
    nb = nbformat.read(path, as_version=4)
    nb.cells[1].source = source or nb.cells[1].source
    nb.cells[1].update(changes)
    nbformat.write(nb, path)


def done(collection, place):
    return [(change.name, change.kind, change.path.name) for change in copies.refresh(collection, place)]


def source(path):
    return nbformat.read(path, as_version=4).cells[1].source


def files(place):
    return {path.name for path in place.iterdir()} - {".gitignore", copies.NOTES}


def test_copies_have_no_outputs_no_twin_and_the_same_names(small, place):
    assert done(small, place) == [(name, "made", f"{name}.ipynb") for name in NAMES]
    assert files(place) == {f"{name}.ipynb" for name in NAMES}  # so links between notebooks hold
    nb = nbformat.read(place / "00_one.ipynb", as_version=4)
    nbformat.validate(nb)
    assert [(cell.outputs, cell.execution_count) for cell in nb.cells] == [([], None)] * 2
    assert nb.metadata.jupytext == {"formats": "ipynb"}
    assert nbformat.read(small.folder / "00_one.ipynb", as_version=4).cells[1].outputs


def test_what_is_folded_in_the_original_is_folded_in_the_copy():
    cell = nbformat.v4.new_code_cell("assert 1", metadata={"tags": ["check"], "jupyter": {"source_hidden": True}})
    nb = copies.for_learners(nbformat.v4.new_notebook(cells=[cell]), home="https://example.org")
    assert nb.cells[0].metadata == {"tags": ["check"], "jupyter": {"source_hidden": True}}


def test_a_second_time_nothing_happens(small, place):
    done(small, place)
    before = {path: path.stat().st_mtime_ns for path in place.glob("*.ipynb")}
    assert done(small, place) == []
    assert {path: path.stat().st_mtime_ns for path in place.glob("*.ipynb")} == before


def test_a_copy_that_was_run_but_not_edited_follows_its_original(small, place):
    done(small, place)
    copy = place / "00_one.ipynb"
    edit(copy, outputs=[nbformat.v4.new_output("stream", text="ran")], execution_count=7)
    assert done(small, place) == []
    assert "ran" in copy.read_text()
    edit(small.folder / "00_one.ipynb", "print('better')")
    assert done(small, place) == [("00_one", "renewed", "00_one.ipynb")]
    assert source(copy) == "print('better')"
    edit(small.folder / "00_one.ipynb", metadata={"tags": ["figure"]})  # other folds are a new version, too
    assert done(small, place) == [("00_one", "renewed", "00_one.ipynb")]
    edit(small.folder / "00_one.ipynb", outputs=[], execution_count=99)  # other outputs are not
    assert done(small, place) == []


def test_an_edited_copy_is_kept_and_each_new_version_laid_beside_it_once(small, place):
    done(small, place)
    copy, original = place / "00_one.ipynb", small.folder / "00_one.ipynb"
    edit(copy, "print('mine')")
    mine = copy.read_bytes()
    assert done(small, place) == []
    edit(original, "print('better')")
    assert done(small, place) == [("00_one", "kept", "00_one.new.ipynb")]
    assert source(place / "00_one.new.ipynb") == "print('better')"
    assert done(small, place) == []
    (place / "00_one.new.ipynb").unlink()  # the learner does not want it
    assert done(small, place) == []
    edit(original, "print('best')")
    assert done(small, place) == [("00_one", "kept", "00_one.new.ipynb")]
    edit(place / "00_one.new.ipynb", "print('mine as well')")
    edit(original, "print('last')")
    assert done(small, place) == [("00_one", "kept", "00_one.new-2.ipynb")]
    assert source(place / "00_one.new.ipynb") == "print('mine as well')"
    assert copy.read_bytes() == mine


def test_who_takes_the_new_version_follows_the_original_again(small, place):
    done(small, place)
    edit(place / "00_one.ipynb", "print('mine')")
    edit(small.folder / "00_one.ipynb", "print('better')")
    done(small, place)
    (place / "00_one.new.ipynb").replace(place / "00_one.ipynb")
    assert done(small, place) == []
    edit(small.folder / "00_one.ipynb", "print('best')")
    assert done(small, place) == [("00_one", "renewed", "00_one.ipynb")]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"cells": []}', b"\xff"])
def test_a_copy_that_is_no_notebook_any_more_is_kept(small, place, content):
    done(small, place)
    (place / "00_one.ipynb").write_bytes(content)
    assert done(small, place) == []
    edit(small.folder / "00_one.ipynb", "print('better')")
    assert done(small, place) == [("00_one", "kept", "00_one.new.ipynb")]
    assert (place / "00_one.ipynb").read_bytes() == content


@pytest.mark.parametrize("notes", [None, b"", b"[]", b'{"00_one": {}}', b"\xff"])
def test_without_notes_nothing_is_taken_for_unedited(small, place, notes):
    done(small, place)
    edit(place / "00_one.ipynb", "print('mine')")
    (place / copies.NOTES).unlink() if notes is None else (place / copies.NOTES).write_bytes(notes)
    assert done(small, place) == [("00_one", "kept", "00_one.new.ipynb")]
    assert source(place / "00_one.ipynb") == "print('mine')"
    assert done(small, place) == []
    edit(small.folder / "01_two.ipynb", "print('better')")  # which was as it had been made, and was noted again
    assert done(small, place) == [("01_two", "renewed", "01_two.ipynb")]


def test_a_copy_that_is_gone_is_made_again(small, place):
    done(small, place)
    (place / "00_one.ipynb").unlink()
    assert done(small, place) == [("00_one", "made", "00_one.ipynb")]


def test_the_notebooks_own_folder_is_refused_by_any_name(small, tmp_path):
    (tmp_path / "link").symlink_to(small.folder)
    before = (small.folder / "00_one.ipynb").read_bytes()
    for folder in (small.folder, tmp_path / "link", small.folder / ".." / "notebooks"):
        with pytest.raises(copies.CopyError, match="holds the notebooks themselves"):
            copies.refresh(small, folder)
    assert (small.folder / "00_one.ipynb").read_bytes() == before


def test_a_folder_that_cannot_be_written_and_a_damaged_original_are_named(small, tmp_path, place):
    (tmp_path / "file").touch()
    with pytest.raises(copies.CopyError, match=r"cannot write to .*file/work: Not a directory"):
        copies.refresh(small, tmp_path / "file" / "work")
    (small.folder / "01_two.ipynb").write_text("{")
    with pytest.raises(catalogue.NotebookError, match=r"01_two\.ipynb is not a notebook"):
        copies.refresh(small, place)
    assert not place.exists()


def test_git_sees_nothing_of_the_copies(small, tmp_path):
    git = ["git", "-C", str(tmp_path), "-c", "core.excludesFile="]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "notebooks"], check=True)
    copies.refresh(small, tmp_path / "any" / "where")
    edit(tmp_path / "any" / "where" / "00_one.ipynb", "print('mine')")
    told = subprocess.run(
        [*git, "status", "--short", "--untracked-files=all"], capture_output=True, text=True, check=True
    )
    assert {line[:2] for line in told.stdout.splitlines()} == {"A "}


@pytest.fixture
def executed(monkeypatch, tmp_path):
    """The command lines that would have taken this process's place."""
    monkeypatch.setattr("platformdirs.user_data_dir", lambda name: str(tmp_path / "data"))
    found = []

    def execute(*arguments):
        found.append(arguments[-1])
        raise SystemExit(0)

    monkeypatch.setattr(os, "execv", execute)
    monkeypatch.setattr(subprocess, "call", execute)  # on Windows
    return found


def overrides():
    """The defaults of settings that JupyterLab would find, as jupyterlab_server looks for them."""
    return ConfigManager(config_dir_name="labconfig").get("default_setting_overrides")


@pytest.mark.parametrize(
    ("arguments", "folder", "rest"),
    [
        ([], "tapelab-work", []),
        (["mine"], "mine", []),
        (["--no-browser", "--port", "9999"], "tapelab-work", ["--no-browser", "--port", "9999"]),
        (["mine", "--allow-root"], "mine", ["--allow-root"]),
        (["--author", "--allow-root"], "notebooks", ["--allow-root"]),
    ],
)
def test_the_command_opens_copies_unless_an_author_asks(
    small, tmp_path, monkeypatch, executed, arguments, folder, rest
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", str(tmp_path / "mine"))
    told = CliRunner().invoke(main, ["lab", *arguments])
    assert os.environ["JUPYTER_CONFIG_PATH"].endswith(str(tmp_path / "mine"))  # what was there, still is
    (command,) = executed
    assert command[1:4] == ["-m", "jupyter", "lab"]
    assert "--ServerApp.ip=127.0.0.1" in command
    assert f"--ServerApp.root_dir={tmp_path / folder}" in command
    assert "--LabApp.default_url=/lab/tree/00_one.ipynb" in command
    assert command[7:] == [f"--LabApp.workspaces_dir={tmp_path / 'data' / 'workspaces'}", *rest]
    assert overrides()["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    named = "mine" if folder == "mine" else tmp_path / folder
    assert told.stdout == ("" if folder == "notebooks" else f"2 notebooks copied to {named}\n")
    assert nbformat.read(tmp_path / folder / "00_one.ipynb", as_version=4).cells[1].outputs == (
        [{"output_type": "stream", "name": "stdout", "text": "0\n"}] if folder == "notebooks" else []
    )


def test_the_command_says_what_it_kept(small, tmp_path, monkeypatch, executed):
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, ["lab", "--no-open"])
    assert executed == []
    edit(tmp_path / "tapelab-work" / "00_one.ipynb", "print('mine')")
    for name in NAMES:
        edit(small.folder / f"{name}.ipynb", "print('better')")
    told = CliRunner().invoke(main, ["lab", "--no-open"]).output.splitlines()
    assert told == [
        "00_one: left as you edited it; the new version lies beside it, 00_one.new.ipynb",
        "01_two: renewed, since its original has changed and you had not edited it",
    ]
    refused = CliRunner().invoke(main, ["lab", "notebooks"])
    assert (refused.exit_code, refused.output[:6]) == (1, "Error:")


def test_the_collections_own_notebooks_can_be_copied(tmp_path):
    real = catalogue.load(ROOT / "notebooks")
    before = {path: path.read_bytes() for path in (ROOT / "notebooks").iterdir()}
    assert len(copies.refresh(real, tmp_path / "work")) == len(real.notebooks)
    assert {path: path.read_bytes() for path in (ROOT / "notebooks").iterdir()} == before
    for n in real.notebooks:
        nb = nbformat.read(tmp_path / "work" / f"{n.name}.ipynb", as_version=4)
        nbformat.validate(nb)
        assert not any("](../" in cell.source for cell in nb.cells)  # JupyterLab could not open it
    home = f"https://github.com/{real.repository}/blob/{real.ref}"
    first = (tmp_path / "work" / f"{real.notebooks[0].name}.ipynb").read_text()
    assert f"]({home}/site/for_teachers.md)" in first


def test_a_copy_has_the_metadata_that_jupyterlab_writes_when_it_opens_it(small, place, monkeypatch):
    copies.refresh(small, place)
    metadata = nbformat.read(place / "00_one.ipynb", as_version=4).metadata
    spec = KernelSpecManager().get_kernel_spec("python3")
    assert metadata.kernelspec == {"display_name": spec.display_name, "language": "python", "name": "python3"}
    assert metadata.language_info == IPythonKernel.language_info
    newer = {"kernelspec": {"name": "python3"}, "language_info": {"name": "python", "version": "4.0"}}
    monkeypatch.setattr(copies, "KERNEL", newer)
    edit(place / "01_two.ipynb", "print('mine')")
    assert done(small, place) == []  # another Python makes no new version of a lesson


def colab_links(text):
    return re.findall(r"\]\(https://colab\.research\.google\.com/github/([^)\s]+)\)", text)


@pytest.mark.dear
def test_colabs_badges_lead_to_what_is_written_for_colab(tmp_path):
    real = catalogue.load(ROOT / "notebooks")
    told = CliRunner().invoke(main, ["colab", str(tmp_path / "branch"), "--notebooks", str(real.folder)])
    assert told.output == "colab-main\n"
    start = f"{real.repository}/blob/colab-main/"
    linked = set(colab_links((ROOT / "README.md").read_text(encoding="utf-8")))
    written = {path.relative_to(tmp_path / "branch").as_posix() for path in tmp_path.glob("branch/notebooks/*")}
    written -= {f"notebooks/{name}.ipynb" for notebook in real.notebooks for name in notebook.formerly}
    assert linked == {start + path for path in written}
    assert len(written) == len(real.notebooks)
    for path in written:
        nb = nbformat.read(tmp_path / "branch" / path, as_version=4)
        texts = "\n".join(cell.source for cell in nb.cells if cell.cell_type == "markdown")
        assert start + path in colab_links(texts)  # its own badge
        assert set(colab_links(texts)) <= linked
        assert re.findall(r"\]\((?!https?://|#)[^)]*\)", texts) == []  # nothing that only a folder has
        assert not any(cell.outputs for cell in nb.cells if cell.cell_type == "code")


def test_a_learners_copy_has_nothing_of_colab_and_keeps_what_stands_beside_it(tmp_path):
    real = catalogue.load(ROOT / "notebooks")
    copies.refresh(real, tmp_path)
    for notebook in real.notebooks:
        nb = nbformat.read(tmp_path / f"{notebook.name}.ipynb", as_version=4)
        (cell,) = [cell for cell in nb.cells if "badges" in cell.metadata.get("tags", [])]
        assert cell.source.startswith("**")
        assert "**Minutes:**" in cell.source
        assert not any("colab-badge" in cell.source or "@title" in cell.source for cell in nb.cells)
        assert any(cell.source.startswith("# Set-up\n") for cell in nb.cells)
    start = nbformat.read(tmp_path / f"{real.notebooks[0].name}.ipynb", as_version=4)
    (tables,) = [cell.source for cell in start.cells if "I. The tape" in cell.source and cell.cell_type == "markdown"]
    assert "| | Notebook | What it answers | Minutes: read + solve |" in tables
    assert "Colab" not in tables


def renamed(collection):
    """The small collection after its second notebook has got another name."""
    (collection.folder / "01_two.ipynb").rename(collection.folder / "02_second.ipynb")
    told = collection.folder / "collection.toml"
    told.write_text(told.read_text().replace('name = "01_two"', 'name = "02_second"\nformerly = ["01_two"]'))
    return catalogue.load(collection.folder)


def test_a_copy_of_a_notebook_s_old_name_stays_as_it_is(small, place):
    copies.refresh(small, place)
    edit(place / "01_two.ipynb", "my own")
    assert done(renamed(small), place) == [("02_second", "made", "02_second.ipynb")]
    assert source(place / "01_two.ipynb") == "my own"


def test_what_opened_a_notebook_in_colab_under_an_old_name_leads_to_it(small, tmp_path):
    new = renamed(small)
    copies.write_for_colab(new, tmp_path / "branch")
    (cell,) = nbformat.read(tmp_path / "branch" / "notebooks" / "01_two.ipynb", as_version=4).cells
    assert cell.source == f"This notebook is now [02 T]({copies.colab_url(new, new.by_name('02_second'))})."


def test_a_folder_for_colab_is_a_new_one(small, tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(copies.CopyError, match="is not empty"):
        copies.write_for_colab(small, tmp_path / "full")
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]


@pytest.fixture
def publish(tmp_path):
    """A function that publishes from a checkout whose notebooks run with Colab's versions, or do not."""
    checkout, remote = tmp_path / "checkout", tmp_path / "remote.git"
    (checkout / "ci").mkdir(parents=True)
    shutil.copy(ROOT / "ci" / "colab.sh", checkout / "ci")
    shutil.copytree(ROOT / "notebooks", checkout / "notebooks")
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    subprocess.run(["git", "init", "--quiet", "--bare", remote], check=True)
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    for command in (["init", "--quiet"], [*identity, "commit", "--quiet", "--allow-empty", "--message", "as it is"]):
        subprocess.run(["git", *command], cwd=checkout, check=True)

    def done(status):
        (checkout / "ci" / "versions.sh").write_text(f'[ "$*" = colab ] && exit {status}')
        return subprocess.run(["bash", checkout / "ci" / "colab.sh", remote], check=False).returncode

    return done, remote


def test_nothing_is_published_that_does_not_run_with_colab_s_versions(publish):
    done, remote = publish
    assert done(status=1) == 1
    assert subprocess.run(["git", "-C", remote, "branch"], capture_output=True, text=True).stdout == ""


@pytest.mark.thorough
def test_the_branch_is_one_commit_made_anew(publish):
    done, remote = publish
    assert done(status=0) == done(status=0) == 0
    log = subprocess.run(["git", "-C", remote, "log", "--format=%s", "colab-main"], capture_output=True, text=True)
    assert log.stdout.startswith("Notebooks without outputs, of ")
    assert log.stdout.count("\n") == 1
    command = ["git", "-C", remote, "ls-tree", "-r", "--name-only", "colab-main"]
    pushed = subprocess.run(command, capture_output=True, text=True).stdout.split()
    real = catalogue.load(ROOT / "notebooks")
    written = {name for notebook in real.notebooks for name in (notebook.name, *notebook.formerly)}
    assert {Path(path).stem for path in pushed if path.startswith("notebooks/")} == written
