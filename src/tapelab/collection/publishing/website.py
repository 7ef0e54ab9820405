"""The static site's sources, written for Sphinx: a page for each notebook, from its stored outputs, and the rest.

A page is for reading. The folds stay, under the name that they have in the notebook; what only a running notebook can
answer (a guess, an exercise) is shown as the question, and buttons open the notebook in Colab or save a copy.
"""

import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Iterator
from copy import deepcopy
from html import escape
from pathlib import Path
from types import ModuleType

from tapelab import explain
from tapelab.collection.catalogue import Catalogue, Notebook, read_notebook
from tapelab.collection.publishing import copies, ratios, times
from tapelab.collection.templates import ENVIRONMENT, rendered
from tapelab.derivatives.wrong import cure
from tapelab.graphs.operations import FACTS, OPERATIONS, WRONG, known
from tapelab.graphs.operations.operation import FAMILIES
from tapelab.process.session import alternatives

import nbformat

PAGES = "site"  # the folder of the pages that are not notebooks, beside that of the notebooks
AUDIT = "ci/derivative_audit"  # whose pages are generated there
COPIES = "copies"  # the learner's copies, to download
MOVED = "moved"  # what stands at the addresses that notebooks had; Sphinx copies it as it is
_TITLE = re.compile(r"# @title (.+)\n?")
_BADGE = re.compile(r"\[!\[Open in Colab\]\([^)]*\)\]")  # an image from another host
_UNANSWERED = re.compile(r"^exercises\.\w+\.(guess|check)\(", re.MULTILINE)
_API = {
    "explain": "Why a gradient is None, NaN, zero or huge",
    "derivatives": "Derivatives of whole models",
    "optimize": "Optimisers",
    "gradcheck": "Central differences",
    "exercises": "Exercises and predictions",
    "plots": "Pictures",
    "interactive": "Figures with controls",
    "data": "Data",
}


def _heading(title: str) -> str:
    """A title as a heading: the names in it as code, and otherwise a capital."""
    if "_" in title:
        return re.sub(r"\w+_\w+", r"`\g<0>`", title if title.isidentifier() else title[0].upper() + title[1:])
    return _literal(title[0].upper() + title[1:])


def _literal(text: str) -> str:
    """A sentence of a program as Markdown: stars and brackets in it are code's."""
    return re.sub(r"([*_<\[\]$`])", r"\\\1", text)


ENVIRONMENT.filters |= {"heading": _heading, "literal": _literal}


def _rooms() -> Iterator[tuple[str, str]]:
    """How each package works, which its docstring says to whoever reads the code: pairs of its name and the text."""
    for name in _API:
        _, begin, text = inspect.cleandoc(importlib.import_module(f"tapelab.{name}").__doc__).partition("How it works")
        if begin:
            yield name, begin + text


def _operations() -> list[tuple[str, list[tuple[str, ...]]]]:
    """What `tapelab.graphs` and `tapelab.derivatives` know of TensorFlow's operations, as rows for each family."""
    said = {kind: [row.why for row in rows] for kind, rows in WRONG.items()}
    for kind, own in cure.GRADIENTS.items():
        said.setdefault(kind, []).append((own.__doc__ or "").splitlines()[0])
    families = {}
    for kind in sorted(OPERATIONS.keys() | said):
        row = known(kind)
        cells = (f"`{kind}`", row.linear, row.facts, ". ".join(said.get(kind, [])))
        families.setdefault(row.family or "no row of its own", []).append(cells)
    return sorted(families.items())


def _generated(catalogue: Catalogue, pages: Path) -> dict[str, Callable[[], str]]:
    """What is filled in where a page has a line ``<!-- KEY -->``."""

    def needed(notebook: Notebook) -> times.Times:
        return times.of(read_notebook(catalogue.ipynb(notebook)))

    def picture() -> str:
        # As part of the page it follows the page's theme.
        return rendered("tape.md", picture=(pages / "_static" / "tape.svg").read_text(encoding="utf-8"))

    return {
        "TAPE": picture,
        "TABLE": lambda: rendered("table.md", parts=catalogue.parts(), times=needed),
        "RATIOS": lambda: ratios.figure(ratios.rows((pages / "how_it_compares.md").read_text(encoding="utf-8"))),
        "ROOMS": lambda: rendered("rooms.md", rooms=_rooms()),
        "OPERATIONS": lambda: rendered("operations.md", families=_operations(), meanings=FAMILIES, facts=FACTS),
        "CAUSES": lambda: rendered("causes.md", registry=explain.CAUSES),
        "VALUES": lambda: rendered("causes.md", registry=explain.VALUES),
        "RETRACING": lambda: rendered("retracing.md", reasons=explain.RETRACING),
    }


def address(catalogue: Catalogue) -> str:
    """Where GitHub publishes the site of a collection."""
    owner, name = catalogue.repository.split("/")
    return f"https://{owner}.github.io/{name}/"


def write_sources(catalogue: Catalogue, target: Path) -> None:
    """Write all that Sphinx reads into a folder, which is emptied before.

    Args:
        catalogue: the collection; the other pages are in the folder `PAGES` beside its notebooks.
        target: the folder.
    """
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(catalogue.folder.resolve().parent / PAGES, target)
    home, generated = copies.home_url(catalogue), _generated(catalogue, target)
    for page in target.glob("*.md"):
        text = re.sub(r"\]\(\.\./(notebooks/\w+\.ipynb)", r"](\1", page.read_text(encoding="utf-8"))
        text = re.sub(r"<!-- ([A-Z]+) -->", lambda found: generated[found[1]](), text)
        page.write_text(text.replace("](../", f"]({home}/"), encoding="utf-8")
    for folder in ("notebooks", COPIES, "api", f"{MOVED}/notebooks"):
        (target / folder).mkdir(parents=True)
    for notebook in catalogue.notebooks:
        nb = read_notebook(catalogue.ipynb(notebook))
        nbformat.write(_page(catalogue, notebook, deepcopy(nb)), target / "notebooks" / f"{notebook.name}.ipynb")
        nbformat.write(copies.for_learners(nb, home), target / COPIES / f"{notebook.name}.ipynb")
        for name in notebook.formerly:
            page = target / MOVED / "notebooks" / f"{name}.html"
            page.write_text(rendered("moved.html", notebook=notebook), encoding="utf-8")
    for name, title in _API.items():
        (target / "api" / f"{name}.md").write_text(_api_page(name, title), encoding="utf-8")
    _copy_audit(catalogue.folder.resolve().parent / AUDIT, target / "audit")
    index, packages = target / "index.md", [f"tapelab.{name} <api/{name}>" for name in _API]
    pages = [(part, [f"{n.number} {n.title} <notebooks/{n.name}>" for n in group]) for part, group in catalogue.parts()]
    contents = rendered("contents.md", parts=pages, packages=packages)
    index.write_text(index.read_text(encoding="utf-8") + f"{contents}\n", encoding="utf-8")


def _copy_audit(folder: Path, target: Path) -> None:
    """Copy the audit's pages; the list of faults becomes the way to the page of each."""
    for page in folder.rglob("*.md"):
        copy = target / page.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    faults = target / "upstream" / "README.md"
    names = sorted(page.stem for page in faults.parent.glob("*.md") if page != faults)
    contents = "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])
    faults.write_text(faults.read_text(encoding="utf-8") + contents, encoding="utf-8")


def _api_page(name: str, title: str) -> str:
    """What a package offers, in the order in which people need it: that of the names in its docstring."""
    module = importlib.import_module(f"tapelab.{name}")
    parts = {"To call": [], "Classes": [], "Errors and warnings": []}
    for public in _public(module):
        offered = getattr(module, public)
        if isinstance(offered, type) and issubclass(offered, Exception):
            parts["Errors and warnings"].append(("autoexception", public))
        elif isinstance(offered, type):
            is_called = re.search(rf"\b{public}\(", module.__doc__ or "")
            parts["To call" if is_called else "Classes"].append(("autoclass", public))
        elif callable(offered):
            parts["To call"].append(("autofunction", public))
    return rendered("api.md", title=title, module=module.__name__, parts=parts)


def _public(module: ModuleType) -> list[str]:
    """A module's public names; those that its docstring calls or quotes come first, in its order."""
    own = (name for name, found in vars(module).items() if getattr(found, "__module__", "") == module.__name__)
    names = getattr(module, "__all__", None) or [name for name in own if not name.startswith("_")]
    told = re.findall(r"\b(\w+)[(`]", module.__doc__ or "")
    return sorted(names, key=lambda name: told.index(name) if name in told else len(told))


def _page(catalogue: Catalogue, notebook: Notebook, nb: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """A notebook as a page of the site. The argument is changed."""
    home = copies.home_url(catalogue)
    for cell in nb.cells:
        mystnb = cell.metadata["mystnb"] = {"image": {"alt": cell.metadata["alt"]}} if "alt" in cell.metadata else {}
        if "badges" in cell.metadata.get("tags", []):
            cell.source = _buttons(catalogue, notebook) + cell.source.split("\n\n", 1)[1]
        elif cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\(\.\./(?!site/)", f"]({home}/", cell.source).replace("](../site/", "](../")
            cell.source = _BADGE.sub("[Open in Colab]", cell.source)
        elif set(cell.metadata.get("tags", [])) & times.FOLDED:
            title = _TITLE.match(cell.source)
            cell.source = cell.source[title.end() :]
            cell.metadata.tags.append("hide-input")  # by which myst-nb folds
            mystnb |= {"code_prompt_show": title[1], "code_prompt_hide": title[1]}
        elif _UNANSWERED.search(cell.source):
            cell.outputs = []
        if "outputs" in cell:
            cell.outputs = [shown for output in cell.outputs for shown in _with_numbers(output)]
        for output in cell.get("outputs", []) if "alt" in cell.metadata else []:
            if "text/html" in output.get("data", {}):  # a moving picture, which carries its title alone
                told = f'alt="{escape(cell.metadata["alt"])}"'
                output.data["text/html"] = re.sub(r'\balt="[^"]*"', lambda _, told=told: told, output.data["text/html"])
    return nb


def _with_numbers(output: nbformat.NotebookNode) -> Iterator[nbformat.NotebookNode]:
    """An output, and below a figure a fold with its numbers."""
    yield output
    if numbers := output.get("metadata", {}).get(alternatives.NUMBERS):
        yield nbformat.v4.new_output("display_data", {"text/html": numbers})


def _buttons(catalogue: Catalogue, notebook: Notebook) -> str:
    colab, copy = copies.colab_url(catalogue, notebook), f"../{COPIES}/{notebook.name}.ipynb"
    return (
        f"[Open in Colab]({colab}) · {{download}}`Download the notebook <{copy}>`\n\n"
        "Here you see the results. To answer the predictions and the exercises, run the notebook.\n\n"
    )
