"""`notebooks/collection.toml` as objects, the choice of notebooks by number, name or pattern, and their files."""

import fnmatch
import tomllib
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Annotated

from tapelab.collection import texts

import click
import msgspec
import nbformat
from msgspec import Meta
from nbformat.validator import iter_validate

Line = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]*\Z", max_length=1000)]
# It becomes the name of files, here and in the folders that notebooks are executed into.
Name = Annotated[str, Meta(pattern=r"^\w[\w-]*\Z", max_length=100)]


class CatalogueError(click.ClickException, ValueError):
    """The catalogue, or a choice from it, is not valid. The message says what was found and what was expected."""


class NotebookError(CatalogueError):
    """A file that is missing, or is no valid notebook. The message says why."""


class Cover(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A section of a reference, and the heading of the notebook that covers it."""

    reference: Line
    section: Line
    heading: Line


class Notebook(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One entry of the catalogue.

    Attributes:
        name: the file's name without its ending.
        part: the heading it stands under.
        formerly: names under which it was published before. What leads to them leads to it.
    """

    name: Name
    title: Line
    summary: Line
    part: Line = ""
    prerequisites: tuple[Line, ...] = ()
    covers: tuple[Cover, ...] = ()
    formerly: tuple[Name, ...] = ()

    @property
    def number(self) -> str:
        return self.name.split("_", 1)[0]


class Reference(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A published text that the collection covers, and its sections."""

    title: Line
    sections: tuple[Line, ...]
    url: Line | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of `collection.toml`."""

    # These become part of addresses, and of Python code in the set-up cells.
    repository: Annotated[str, Meta(pattern=r"^[\w.-]+/[\w.-]+\Z")]
    ref: Annotated[str, Meta(pattern=r"^[\w./-]+\Z")]
    references: dict[str, Reference]
    notebooks: tuple[Notebook, ...] = msgspec.field(name="notebook")


class Catalogue(_File, frozen=True, kw_only=True):
    """The whole of `collection.toml`, and the folder in which it lies."""

    folder: Path

    def text(self, notebook: Notebook) -> Path:
        """The path of a notebook's py:percent twin, which is the source."""
        return self.folder / f"{notebook.name}.py"

    def ipynb(self, notebook: Notebook) -> Path:
        """The path of the notebook with its outputs."""
        return self.folder / f"{notebook.name}.ipynb"

    def by_name(self, name: str) -> Notebook:
        """The notebook of that name.

        Raises:
            CatalogueError: if there is none.
        """
        for notebook in self.notebooks:
            if notebook.name == name:
                return notebook
        raise CatalogueError(f"no notebook is called {name!r}; known: {', '.join(n.name for n in self.notebooks)}")

    def needs(self, notebook: Notebook) -> str:
        """The numbers of a notebook's prerequisites, with commas between."""
        return ", ".join(self.by_name(name).number for name in notebook.prerequisites)

    def parts(self) -> list[tuple[str, list[Notebook]]]:
        """The notebooks by the part that they stand under, in order."""
        return [(part, list(group)) for part, group in groupby(self.notebooks, key=lambda notebook: notebook.part)]

    def select(self, patterns: Iterable[str]) -> list[Notebook]:
        """The notebooks that any pattern names, in the catalogue's order; all of them for no pattern.

        Args:
            patterns: each a number (``4`` or ``04``), a name, a file name with its ending, or a glob (``0[1-3]*``).

        Raises:
            CatalogueError: if a pattern names no notebook.
        """
        chosen = set()
        for pattern in patterns:
            wanted = Path(pattern).name.removesuffix(".ipynb").removesuffix(".py")
            wanted = f"{int(wanted):02}_*" if wanted.isdecimal() else wanted
            found = [n.name for n in self.notebooks if fnmatch.fnmatchcase(n.name, wanted)]
            if not found:
                known = ", ".join(n.name for n in self.notebooks)
                raise CatalogueError(
                    f"{pattern!r} names no notebook; expected a number, a name or a glob of: {known}. "
                    f"A notebook of your own joins them with an entry [[notebook]] in {self.folder / 'collection.toml'}"
                )
            chosen.update(found)
        return [n for n in self.notebooks if not patterns or n.name in chosen]


def load(folder: str | Path) -> Catalogue:
    """Read `collection.toml` in a folder of notebooks.

    Args:
        folder: the folder, a path.

    Returns:
        A `Catalogue`.

    Raises:
        CatalogueError: if the file is missing, or is not valid.
    """
    path = Path(folder) / "collection.toml"
    try:
        found = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), _File)
    except (FileNotFoundError, NotADirectoryError):
        raise CatalogueError(f"there is no {path}; run inside a checkout of the collection") from None
    except OSError as error:
        raise CatalogueError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # of the encoding, of TOML, or of what is expected there
        raise CatalogueError(f"{path} is not a catalogue: {error}") from error
    _check_names(path, found.notebooks)
    return Catalogue(folder=Path(folder), **msgspec.structs.asdict(found))


def _check_names(path: Path, notebooks: Iterable[Notebook]) -> None:
    """Raise unless each name belongs to one notebook, and is required by later ones only."""
    seen, present = set(), []
    for notebook in notebooks:
        for name in (notebook.name, *notebook.formerly):
            if name in seen:
                raise CatalogueError(f"{path}: two notebooks have one name, {name}")
            seen.add(name)
        for earlier in notebook.prerequisites:
            if earlier not in present:
                raise CatalogueError(f"{path}: {notebook.name} requires {earlier!r}, which is not an earlier notebook")
        present.append(notebook.name)


def read_notebook(path: Path) -> nbformat.NotebookNode:
    """A notebook, in the present format.

    Raises:
        NotebookError: if the file is missing, or is no valid notebook.
    """
    try:
        # Not nbformat.read, which logs what is not valid and goes on; papermill would fail over it later.
        nb = nbformat.convert(nbformat.reader.reads(path.read_text(encoding="utf-8")), 4)
    except FileNotFoundError:
        raise NotebookError(f"there is no {path}; make it with 'tapelab sync'") from None
    except Exception as error:  # whatever a JSON parser and a converter raise
        raise NotebookError(f"{path} is not a notebook: {texts.one_line(str(error))}") from error
    for error in iter_validate(nb):
        place = "/".join(map(str, error.absolute_path))
        raise NotebookError(f"{path} is not a notebook: at {place or 'its top'}, {texts.one_line(error.message)}")
    return nb
