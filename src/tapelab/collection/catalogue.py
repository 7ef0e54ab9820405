"""`notebooks/collection.toml` as objects, and the choice of notebooks by number, name or pattern."""

import fnmatch
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path


class CatalogueError(ValueError):
    """The catalogue, or a choice from it, is not valid. The message says what was found and what was expected."""


@dataclass(frozen=True)
class Cover:
    """A section of a reference, and the heading of the notebook that covers it."""

    reference: str
    section: str
    heading: str


@dataclass(frozen=True)
class Notebook:
    """One entry of the catalogue; `name` is the file's name without its ending."""

    name: str
    title: str
    summary: str
    minutes: int
    prerequisites: tuple[str, ...]
    covers: tuple[Cover, ...]

    @property
    def number(self):
        return self.name.split("_", 1)[0]


@dataclass(frozen=True)
class Reference:
    """A published text that the collection covers, and its sections."""

    title: str
    sections: tuple[str, ...]
    url: str | None = None


@dataclass(frozen=True)
class Catalogue:
    """The whole of `collection.toml`."""

    folder: Path
    repository: str
    ref: str
    references: dict[str, Reference]
    notebooks: tuple[Notebook, ...]

    def text(self, notebook):
        """The path of a notebook's py:percent twin, which is the source."""
        return self.folder / f"{notebook.name}.py"

    def ipynb(self, notebook):
        """The path of the notebook with its outputs."""
        return self.folder / f"{notebook.name}.ipynb"

    def by_name(self, name):
        """The notebook of that name.

        Raises:
            CatalogueError: if there is none.
        """
        for notebook in self.notebooks:
            if notebook.name == name:
                return notebook
        raise CatalogueError(f"no notebook is called {name!r}; known: {', '.join(n.name for n in self.notebooks)}")

    def select(self, patterns):
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
                raise CatalogueError(f"{pattern!r} names no notebook; expected a number, a name or a glob of: {known}")
            chosen.update(found)
        return [n for n in self.notebooks if not patterns or n.name in chosen]


def load(folder):
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
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CatalogueError(f"there is no {path}; run inside a checkout of the collection") from None
    except tomllib.TOMLDecodeError as error:
        raise CatalogueError(f"{path} is not valid TOML: {error}") from error
    try:
        references = {
            key: Reference(title=entry["title"], sections=tuple(entry["sections"]), url=entry.get("url"))
            for key, entry in raw["references"].items()
        }
        notebooks = tuple(
            Notebook(
                name=entry["name"],
                title=entry["title"],
                summary=entry["summary"],
                minutes=entry["minutes"],
                prerequisites=tuple(entry.get("prerequisites", ())),
                covers=tuple(Cover(**cover) for cover in entry.get("covers", ())),
            )
            for entry in raw["notebook"]
        )
        catalogue = Catalogue(Path(folder), raw["repository"], raw["ref"], references, notebooks)
    except (KeyError, TypeError) as error:
        raise CatalogueError(f"{path} lacks an entry or has one too many: {error}") from error
    seen = []
    for notebook in notebooks:
        # Names become file names, here and in the folders that notebooks are executed into.
        if not (isinstance(notebook.name, str) and re.fullmatch(r"\w[\w-]{0,99}", notebook.name)):
            raise CatalogueError(
                f"{path}: a notebook is called {notebook.name!r}; expected letters, digits, _ and - only"
            )
        for earlier in notebook.prerequisites:
            if earlier not in seen:
                raise CatalogueError(f"{path}: {notebook.name} requires {earlier!r}, which is not an earlier notebook")
        seen.append(notebook.name)
    return catalogue
