"""The static site's sources, written for Sphinx: a page for each notebook, from its stored outputs, and the rest.

A page is for reading. The folds stay, under the name that they have in the notebook; what only a running notebook can
answer (a guess, an exercise) is shown as the question, and buttons open the notebook in Colab or save a copy.
"""

import importlib
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any

from tapelab import explain
from tapelab.collection.catalogue import Catalogue, Notebook
from tapelab.collection.publishing import copies, times
from tapelab.collection.running.sweep import read_notebook

import nbformat

PAGES = "site"  # the folder of the pages that are not notebooks, beside that of the notebooks
AUDIT = "ci/derivative_audit"  # whose pages are generated there
COPIES = "copies"  # the learner's copies, to download
_LEAD_IN = (
    "gradient_is_none",
    "gradient_is_nan_or_zero",
    "which_derivative",
    "derivatives_by_task",
    "retracing",
    "for_teachers",
)
_REFERENCE = ("glossary", "working", "batches", "how_it_compares", "how_it_is_built")
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
    """Every cause of a registry of `tapelab.explain`: a heading with its code, what happens, an example and the fix."""
    names = {"source": "x", "target": "y", "watchable": "x", "op": "the operation", "of": "x"}
    return "\n\n".join(
        f"### {cause.code}\n\n**{cause.title[0].upper()}{cause.title[1:]}.** {_literal(cause.meaning)}\n\n"
        f"```python\n{cause.example}\n```\n\nCure:\n\n```python\n{cause.fix.format_map(names)}\n```"
        for cause in registry.values()
    )


def _literal(text: str) -> str:
    """A sentence of a program as Markdown: stars and brackets in it are code's."""
    return re.sub(r"([*_<\[\]$`])", r"\\\1", text)


def _table(catalogue: Catalogue) -> str:
    """All notebooks with their questions and minutes, by parts."""
    found = []
    for part, notebooks in groupby(catalogue.notebooks, key=lambda notebook: notebook.part):
        rows = [f"## {part}\n\n| | Notebook | What it answers | Minutes: read + solve |\n|---|---|---|---|"]
        for n in notebooks:
            needed = times.of(read_notebook(catalogue.ipynb(n)))
            minutes = f"{needed.reading} + {needed.exercises}"
            rows.append(f"| {n.number} | [{n.title}](notebooks/{n.name}.ipynb) | {n.summary} | {minutes} |")
        found.append("\n".join(rows))
    return "\n\n".join(found)


def _reasons(registry: Mapping[str, str]) -> str:
    return "\n".join(f"- `{code}`: {_literal(text)}" for code, text in registry.items())


# What is filled in where a page has a line ``<!-- KEY -->``.
_LISTS: dict[str, Callable[[Catalogue], str]] = {
    "TABLE": _table,
    "CAUSES": lambda _: _entries(explain.CAUSES),
    "VALUES": lambda _: _entries(explain.VALUES),
    "RETRACING": lambda _: _reasons(explain.RETRACING),
}


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
    for folder in ("notebooks", COPIES, "api"):
        (target / folder).mkdir()
    for notebook in catalogue.notebooks:
        nb = read_notebook(catalogue.ipynb(notebook))
        nbformat.write(_page(catalogue, notebook, deepcopy(nb)), target / "notebooks" / f"{notebook.name}.ipynb")
        nbformat.write(copies.for_learners(nb, home), target / COPIES / f"{notebook.name}.ipynb")
    for name, title in _API.items():
        (target / "api" / f"{name}.md").write_text(_api_page(name, title), encoding="utf-8")
    _copy_audit(catalogue.folder.resolve().parent / AUDIT, target / "audit")
    index = target / "index.md"
    index.write_text(index.read_text(encoding="utf-8") + "\n".join(_contents(catalogue)) + "\n", encoding="utf-8")


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
    module = importlib.import_module(f"tapelab.{name}")
    imported = "   :imported-members:\n" if hasattr(module, "__all__") else ""
    return f"# {title}\n\n```{{eval-rst}}\n.. automodule:: tapelab.{name}\n   :members:\n{imported}```\n"


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
    return nb


def _buttons(catalogue: Catalogue, notebook: Notebook) -> str:
    colab, copy = copies.colab_url(catalogue, notebook), f"../{COPIES}/{notebook.name}.ipynb"
    return (
        f"[Open in Colab]({colab}) · {{download}}`Download the notebook <{copy}>`\n\n"
        "Here you see the results. To answer the predictions and the exercises, run the notebook.\n\n"
    )
