"""The static site's sources, written for Sphinx: a page for each notebook, from its stored outputs, and the rest.

A page is for reading. The folds stay, under the name that they have in the notebook; what only a running notebook can
answer (a guess, an exercise) is shown as the question, and buttons open the notebook in Colab or save a copy.
"""

import importlib
import inspect
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from html import escape
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any

from tapelab import explain
from tapelab.collection.catalogue import Catalogue, Notebook, read_notebook
from tapelab.collection.publishing import copies, ratios, times
from tapelab.derivatives.wrong import cure
from tapelab.graphs.operations import FACTS, OPERATIONS, WRONG, known
from tapelab.process.session import alternatives

import nbformat

PAGES = "site"  # the folder of the pages that are not notebooks, beside that of the notebooks
AUDIT = "ci/derivative_audit"  # whose pages are generated there
COPIES = "copies"  # the learner's copies, to download
MOVED = "moved"  # what stands at the addresses that notebooks had; Sphinx copies it as it is
_LEAD_IN = (
    "gradient_is_none",
    "gradient_is_nan_or_zero",
    "which_derivative",
    "derivatives_by_task",
    "retracing",
    "for_teachers",
)
_REFERENCE = ("glossary", "working", "batches", "how_it_compares", "operations", "how_it_is_built")
_AUDITED = ("audit/upstream/README", "audit/SPECIAL_POINTS", "audit/RESULTS")
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


def _entries(registry: Mapping[str, Any]) -> str:
    """Every cause of a registry of `tapelab.explain`: its title, what happens, its code, how it is told, the fix.

    Links lead to its code, with hyphens.
    """
    names = {"source": "x", "target": "y", "watchable": "x", "op": "the operation", "of": "x"}
    return "\n\n".join(
        f"({cause.code.replace('_', '-')})=\n### {_heading(cause.title)}\n\n"
        f"{_literal(cause.meaning)} The tape calls it `{cause.code}`.\n\n"
        f"Recognised: {_literal(cause.recognised)}\n\n"
        f"```python\n{cause.example}\n```\n\nCure:\n\n```python\n{cause.fix.format_map(names)}\n```"
        for cause in registry.values()
    )


def _heading(title: str) -> str:
    """A title as a heading: the names in it as code, and otherwise a capital."""
    if "_" in title:
        return re.sub(r"\w+_\w+", r"`\g<0>`", title if title.isidentifier() else title[0].upper() + title[1:])
    return _literal(title[0].upper() + title[1:])


def _literal(text: str) -> str:
    """A sentence of a program as Markdown: stars and brackets in it are code's."""
    return re.sub(r"([*_<\[\]$`])", r"\\\1", text)


def _table(catalogue: Catalogue) -> str:
    """All notebooks with their questions and minutes, in a fold for each part; the first is open."""
    found = []
    for part, notebooks in groupby(catalogue.notebooks, key=lambda notebook: notebook.part):
        fold = "<details>" if found else "<details open>"
        rows = [f"{fold}<summary>{part}</summary>\n"]
        rows += ["| | Notebook | What it answers | Minutes: read + solve |", "|---|---|---|---|"]
        for n in notebooks:
            needed = times.of(read_notebook(catalogue.ipynb(n)))
            minutes = f"{needed.reading} + {needed.exercises}"
            rows.append(f"| {n.number} | [{n.title}](notebooks/{n.name}.ipynb) | {n.summary} | {minutes} |")
        found.append("\n".join([*rows, "\n</details>"]))
    return "\n\n".join(found)


def _picture(catalogue: Catalogue) -> str:
    """The picture of a tape as part of the page, so that it follows the page's theme, and a button to play it again."""
    picture = (catalogue.folder.resolve().parent / PAGES / "_static" / "tape.svg").read_text(encoding="utf-8")
    return f'<figure class="tape">\n{picture}<button type="button" hidden>Play again</button>\n</figure>'


def _ratios(catalogue: Catalogue) -> str:
    """The picture of the times of others, drawn from the table of the same page."""
    page = catalogue.folder.resolve().parent / PAGES / "how_it_compares.md"
    works = ratios.rows(page.read_text(encoding="utf-8"))
    return f'<figure class="ratios">\n{ratios.legend()}\n{ratios.svg(works)}\n</figure>'


def _reasons(registry: Mapping[str, str]) -> str:
    return "\n".join(f"- `{code}`: {_literal(text)}" for code, text in registry.items())


def _rooms() -> str:
    """How each package works, which its docstring says to whoever reads the code."""
    found = []
    for name in _API:
        _, begin, text = inspect.cleandoc(importlib.import_module(f"tapelab.{name}").__doc__).partition("How it works")
        if begin:
            found.append(f"### tapelab.{name}\n\n{begin}{text}")
    return "\n\n".join(found)


def _operations() -> str:
    """What `tapelab.graphs` and `tapelab.derivatives` know of TensorFlow's operations, in a fold for each family."""
    said = {kind: [row.why for row in rows] for kind, rows in WRONG.items()}
    for kind, own in cure.GRADIENTS.items():
        said.setdefault(kind, []).append((own.__doc__ or "").splitlines()[0])
    families = {}
    for kind in sorted(OPERATIONS.keys() | said):
        row = known(kind)
        cells = (f"`{kind}`", row.linear, row.facts, ". ".join(said.get(kind, [])))
        families.setdefault(row.family or "no row of its own", []).append(cells)
    found = []
    for family, rows in sorted(families.items()):
        lines = [f"<details><summary>{family} ({len(rows)})</summary>\n"]
        lines += [
            "| Operation | Linear in | What else holds | Where TensorFlow's derivative is wrong |",
            "|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |" for cells in rows]
        found.append("\n".join([*lines, "\n</details>"]))
    facts = "\n".join(f"- *{fact}*: {meaning}" for fact, meaning in FACTS.items())
    return "\n\n".join([*found, "What the words say:", facts])


# What is filled in where a page has a line ``<!-- KEY -->``.
_LISTS: dict[str, Callable[[Catalogue], str]] = {
    "TAPE": _picture,
    "TABLE": _table,
    "RATIOS": _ratios,
    "ROOMS": lambda _: _rooms(),
    "OPERATIONS": lambda _: _operations(),
    "CAUSES": lambda _: _entries(explain.CAUSES),
    "VALUES": lambda _: _entries(explain.VALUES),
    "RETRACING": lambda _: _reasons(explain.RETRACING),
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
    home = copies.home_url(catalogue)
    for page in target.glob("*.md"):
        text = re.sub(r"\]\(\.\./(notebooks/\w+\.ipynb)", r"](\1", page.read_text(encoding="utf-8"))
        for key, listed in _LISTS.items():
            text = text.replace(f"<!-- {key} -->", listed(catalogue))
        page.write_text(text.replace("](../", f"]({home}/"), encoding="utf-8")
    for folder in ("notebooks", COPIES, "api", f"{MOVED}/notebooks"):
        (target / folder).mkdir(parents=True)
    for notebook in catalogue.notebooks:
        nb = read_notebook(catalogue.ipynb(notebook))
        nbformat.write(_page(catalogue, notebook, deepcopy(nb)), target / "notebooks" / f"{notebook.name}.ipynb")
        nbformat.write(copies.for_learners(nb, home), target / COPIES / f"{notebook.name}.ipynb")
        for name in notebook.formerly:
            (target / MOVED / "notebooks" / f"{name}.html").write_text(_moved(notebook), encoding="utf-8")
    for name, title in _API.items():
        (target / "api" / f"{name}.md").write_text(_api_page(name, title), encoding="utf-8")
    _copy_audit(catalogue.folder.resolve().parent / AUDIT, target / "audit")
    index = target / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + "\n".join(_contents(catalogue)) + "\n", encoding="utf-8")


def _moved(notebook: Notebook) -> str:
    """The page at an address that a notebook had: it leads on to the present one."""
    place, title = f"{notebook.name}.html", escape(f"{notebook.number} {notebook.title}")
    return (
        f'<!doctype html>\n<html lang="en-GB">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta http-equiv="refresh" content="0; url={place}">\n<link rel="canonical" href="{place}">\n'
        f'<p>This notebook is now <a href="{place}">{title}</a>.</p>\n</html>\n'
    )


def _contents(catalogue: Catalogue) -> Iterator[str]:
    """The tables of contents: the pages that lead in, one for each part, and the reference."""
    yield from ("\n```{toctree}\n:caption: Start\n:hidden:\n", *_LEAD_IN, "```")
    for part, notebooks in groupby(catalogue.notebooks, key=lambda notebook: notebook.part):
        yield f"\n```{{toctree}}\n:caption: {part}\n:hidden:\n"
        yield from (f"{n.number} {n.title} <notebooks/{n.name}>" for n in notebooks)
        yield "```"
    yield from ("\n```{toctree}\n:caption: Reference\n:hidden:\n", *_REFERENCE)
    yield from (f"tapelab.{name} <api/{name}>" for name in _API)
    yield "```"
    if (catalogue.folder.resolve().parent / AUDIT).is_dir():
        yield from ("\n```{toctree}\n:caption: TensorFlow's derivatives, audited\n:hidden:\n", *_AUDITED, "```")


def _copy_audit(folder: Path, target: Path) -> None:
    """Copy the audit's pages; the list of faults becomes the way to the page of each."""
    for page in folder.rglob("*.md"):
        copy = target / page.relative_to(folder)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    faults = target / "upstream" / "README.md"
    if faults.exists():
        names = sorted(page.stem for page in faults.parent.glob("*.md") if page != faults)
        contents = "\n".join(["", "```{toctree}", ":hidden:", "", *names, "```", ""])
        faults.write_text(faults.read_text(encoding="utf-8") + contents, encoding="utf-8")


def _api_page(name: str, title: str) -> str:
    """What a package offers, in the order in which people need it: that of the names in its docstring."""
    module = importlib.import_module(f"tapelab.{name}")
    used, classes, errors = [], [], []
    for public in _public(module):
        offered = getattr(module, public)
        path = f"{module.__name__}.{public}\n"
        if isinstance(offered, type) and issubclass(offered, Exception):
            errors.append(f".. autoexception:: {path}")
        elif isinstance(offered, type):
            kind = used if re.search(rf"\b{public}\(", module.__doc__ or "") else classes
            kind.append(f".. autoclass:: {path}   :members:\n")
        elif callable(offered):
            used.append(f".. autofunction:: {path}")
    text = f"# {title}\n\n```{{eval-rst}}\n.. automodule:: {module.__name__}\n```\n"
    for heading, entries in (("To call", used), ("Classes", classes), ("Errors and warnings", errors)):
        if entries:
            listed = "\n".join(entries)
            text += f"\n## {heading}\n\n```{{eval-rst}}\n{listed}```\n"
    return text


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
        if "badges" in cell.metadata.get("tags", []):
            cell.source = _buttons(catalogue, notebook) + cell.source.split("\n\n", 1)[1]
        elif cell.cell_type == "markdown":
            cell.source = re.sub(r"\]\(\.\./(?!site/)", f"]({home}/", cell.source).replace("](../site/", "](../")
            cell.source = _BADGE.sub("[Open in Colab]", cell.source)
        elif set(cell.metadata.get("tags", [])) & times.FOLDED:
            title = _TITLE.match(cell.source)
            cell.source = cell.source[title.end() :]
            cell.metadata.setdefault("mystnb", {}).update(code_prompt_show=title[1], code_prompt_hide=title[1])
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
