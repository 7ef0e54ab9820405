"""The learner's copies: the notebooks without outputs, in a folder of their own that git does not track.

A copy that nobody has edited follows its original. An edited one is never written to: a later version is laid beside
it, once. What was made of which original is noted in a file beside the copies.

Colab opens copies, too: those on a branch that the workflow makes anew from each state of the notebooks (ci/colab.sh).
"""

import hashlib
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tapelab.collection.catalogue import Catalogue, Notebook, NotebookError, read_notebook
from tapelab.process.files import write_whole

import click
import msgspec
import nbformat
from ipykernel.ipkernel import IPythonKernel

FOLDER = "tapelab-work"  # beside the folder of the notebooks
NOTES = ".tapelab-copies.json"
# What JupyterLab writes into a notebook that it opens, with the version of its Python. Where it stands there already,
# one that was only looked at need not be saved.
KERNEL = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": IPythonKernel.language_info,
}
_BADGE = re.compile(r"\[!\[Open in Colab\]\([^)]*\)\]\([^)]*\)\s*")
_LINK = re.compile(r"\]\((\w+\.ipynb)")


class CopyError(click.ClickException, ValueError):
    """The folder cannot hold copies. The message says why."""


@dataclass(frozen=True)
class Note:
    """What is known of a copy.

    Attributes:
        version: a digest of the original of which it was made, as the learner gets it.
        sources: a digest of its cells' sources when it was made.
        offered: the version that was laid beside it last.
    """

    version: str
    sources: str
    offered: str | None = None


@dataclass(frozen=True)
class Change:
    """What was done: a copy was made, was renewed, or was kept and the new version written to `path`."""

    name: str
    kind: Literal["made", "renewed", "kept"]
    path: Path


def for_learners(nb: nbformat.NotebookNode, home: str) -> nbformat.NotebookNode:
    """A notebook without outputs and without a twin; what is not the lesson stays folded. The argument is changed.

    Args:
        nb: a notebook of the collection.
        home: the collection's address. A link to what is beside the notebooks' folder leads there: a copy may lie
            anywhere, and JupyterLab opens nothing outside the folder of the copies.
    """
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
        else:
            cell.source = cell.source.replace("](../", f"]({home}/")
    # Under the collection's pyproject.toml a save would otherwise write a .py file, too.
    nb.metadata["jupytext"] = {"formats": "ipynb"}
    return nb


def _for_jupyterlab(nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook without what is Colab's: the badge, whose picture comes from the network, and the mark of a form,
    which JupyterLab would show with the title of each folded cell. The argument is changed."""
    for cell in nb.cells:
        if cell.cell_type == "code":
            cell.source = re.sub(r"\A# @title ", "# ", cell.source)
        elif "badges" in cell.metadata.get("tags", []):
            cell.source = _BADGE.sub("", cell.source)
    return nb


def colab_branch(catalogue: Catalogue) -> str:
    """The branch of the copies that Colab opens."""
    return f"colab-{catalogue.ref}"


def colab_url(catalogue: Catalogue, notebook: Notebook) -> str:
    """Where Colab opens a notebook of the collection."""
    place = f"{catalogue.repository}/blob/{colab_branch(catalogue)}/notebooks/{notebook.name}.ipynb"
    return f"https://colab.research.google.com/github/{place}"


def write_for_colab(catalogue: Catalogue, folder: Path) -> None:
    """Write what belongs on `colab_branch` into a new folder. Links to other notebooks open them in Colab.

    Raises:
        CopyError: if there is something in the folder, or it cannot be written.
        NotebookError: if an original is missing or is no notebook.
    """
    home = home_url(catalogue)
    addresses = {f"{notebook.name}.ipynb": colab_url(catalogue, notebook) for notebook in catalogue.notebooks}
    copies = {}
    for notebook in catalogue.notebooks:
        nb = for_learners(read_notebook(catalogue.ipynb(notebook)), home)
        for cell in nb.cells:
            if "jupyter" in cell.metadata:
                cell.metadata["cellView"] = "form"  # Colab's fold
            if cell.cell_type == "markdown":
                cell.source = _LINK.sub(lambda found: f"]({addresses.get(found[1], found[1])}", cell.source)
        copies[f"{notebook.name}.ipynb"] = _bytes(nb)
        way = f"This notebook is now [{notebook.number} {notebook.title}]({colab_url(catalogue, notebook)})."
        moved = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(way, id="moved")])
        copies |= {f"{name}.ipynb": _bytes(moved) for name in notebook.formerly}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise CopyError(f"{folder} is not empty; expected a new folder")
        text = f"The notebooks of {home} without outputs, for Colab. Made from each commit: change the originals.\n"
        write_whole(folder / "README.md", text.encode())
        (folder / "notebooks").mkdir()
        for name, content in copies.items():
            write_whole(folder / "notebooks" / name, content)
    except OSError as error:
        raise CopyError(f"cannot write to {folder}: {error.strerror}") from error


def home_url(catalogue: Catalogue) -> str:
    """The collection's address, to which a path in the checkout is added."""
    return f"https://github.com/{catalogue.repository}/blob/{catalogue.ref}"


def refresh(catalogue: Catalogue, folder: Path) -> list[Change]:
    """Bring the copies in a folder up to date. The folder is made if it is missing.

    Returns:
        What was done; nothing is said of copies that stay as they are.

    Raises:
        CopyError: if the folder is that of the notebooks, or cannot be written.
        NotebookError: if an original is missing or is no notebook.
    """
    if folder.resolve() == catalogue.folder.resolve():
        raise CopyError(f"{folder} holds the notebooks themselves; expected another folder, for copies")
    home = home_url(catalogue)
    originals = {
        n.name: _for_jupyterlab(for_learners(read_notebook(catalogue.ipynb(n)), home)) for n in catalogue.notebooks
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / ".gitignore").exists():
            write_whole(folder / ".gitignore", b"*\n")  # wherever it lies, git leaves it alone
        notes, changes = _read_notes(folder), []
        for name, nb in originals.items():
            notes[name], change = _refresh(folder, name, nb, notes.get(name))
            changes.append(change)
            write_whole(folder / NOTES, msgspec.json.encode(notes))
    except OSError as error:
        raise CopyError(f"cannot write to {folder}: {error.strerror}") from error
    return [change for change in changes if change is not None]


def _refresh(folder: Path, name: str, nb: nbformat.NotebookNode, note: Note | None) -> tuple[Note, Change | None]:
    """Bring one copy up to date. Returns its new note, and the change or None."""
    path, version = folder / f"{name}.ipynb", hashlib.sha256(_bytes(nb)).hexdigest()
    new = Note(version, _digest(nb))
    nb.metadata |= KERNEL  # after the digest: another Python makes no new version of a lesson
    content = _bytes(nb)
    if not path.exists():
        write_whole(path, content)
        return new, Change(name, "made", path)
    present = _digest_of(path)
    untouched = note is not None and present == note.sources
    if untouched and note.version != new.version:
        write_whole(path, content)
        return new, Change(name, "renewed", path)
    if untouched or present == new.sources:
        return new, None
    if note is not None and new.version in (note.version, note.offered):
        return note, None
    beside = next(place for place in _places_beside(path) if not place.exists())
    write_whole(beside, content)
    return replace(note or Note("", ""), offered=new.version), Change(name, "kept", beside)


def _bytes(nb: nbformat.NotebookNode) -> bytes:
    return (nbformat.writes(nb) + "\n").encode()


def _places_beside(path: Path) -> Iterator[Path]:
    yield path.with_name(f"{path.stem}.new.ipynb")
    for number in itertools.count(2):
        yield path.with_name(f"{path.stem}.new-{number}.ipynb")


def _digest(nb: nbformat.NotebookNode) -> str:
    """A digest of the cells' sources: neither running nor saving a notebook changes it."""
    cells = [[cell.cell_type, cell.source] for cell in nb.cells]
    return hashlib.sha256(json.dumps(cells).encode()).hexdigest()


def _digest_of(path: Path) -> str | None:
    try:
        return _digest(read_notebook(path))
    except NotebookError:  # it was edited into something that is no notebook
        return None


def _read_notes(folder: Path) -> dict[str, Note]:
    """The notes; without them, every copy that is not as it would be made now counts as edited."""
    try:
        return msgspec.json.decode((folder / NOTES).read_bytes(), type=dict[str, Note])
    except (FileNotFoundError, msgspec.MsgspecError, UnicodeError):
        return {}
