"""From the sources to what people open: generated text into the twins, the README and the site's pages, the twins into
notebooks, and the notebooks' outputs.

The py:percent text is the source. A cell tagged ``badges`` or ``catalogue`` is generated as a whole; a cell tagged
``setup`` begins with a generated bootstrap, and the notebook's own imports follow it. A cell that ends with an
exercise's check is that exercise's starter, below a heading with its title and minutes. What is not the lesson (set-up,
parameters, checks, the drawing of figures) is folded. A notebook is its text and outputs, and nothing else: so plain
jupytext, which others call, leaves it as it is.
"""

import importlib
import json
import os
import re
import subprocess
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tapelab.collection.catalogue import Catalogue, Notebook
from tapelab.collection.publishing import pages, times
from tapelab.collection.publishing.copies import KERNEL, colab_url
from tapelab.collection.templates import rendered
from tapelab.process.files import write_whole

import jupytext
import nbformat
from jupytext.combine import combine_inputs_with_outputs
from jupytext.compare import NotebookDifference, compare_notebooks
from nbclient import NotebookClient
from rich.console import Console
from rich.progress import track

KEPT = ("tags", "alt", "jupyter", "lines_to_next_cell")  # of a cell; the last is jupytext's own, whatever the filter
# Every twin's header. Jupytext drops what its filter does not name.
HEADER = {
    "jupytext": {
        "formats": "ipynb,py:percent",
        "notebook_metadata_filter": "kernelspec,jupytext,-jupytext.text_representation.jupytext_version",
        "cell_metadata_filter": "tags,alt,jupyter,-all",
    },
    "kernelspec": KERNEL["kernelspec"],
}

_CHECK = re.compile(r"^exercises\.(\w+)\.check\(.*\)\s*\Z", re.MULTILINE)  # a cell's last line
_EXERCISE = re.compile(r"^### Exercise: .*$", re.MULTILINE)


def _colab_badge(catalogue: Catalogue, notebook: Notebook) -> str:
    picture = "https://colab.research.google.com/assets/colab-badge.svg"
    return f"[![Open in Colab]({picture})]({colab_url(catalogue, notebook)})"


def badges(catalogue: Catalogue, notebook: Notebook, needed: times.Times) -> str:
    """The text of a notebook's cell tagged ``badges``: Colab's badge, prerequisites and the minutes that it needs."""
    earlier = [catalogue.by_name(name) for name in notebook.prerequisites]
    return rendered("badges.md", badge=_colab_badge(catalogue, notebook), earlier=earlier, needed=needed)


def bootstrap(catalogue: Catalogue) -> str:
    """The lines with which every notebook's cell tagged ``setup`` begins."""
    return rendered("setup.py", catalogue=catalogue) + "\n"


def as_code(catalogue: Catalogue) -> str:
    """The source of a cell of code tagged ``catalogue``: what a map of the collection is drawn from, where there is
    no catalogue. A dict from each number to its part, title and prerequisites.
    """
    rows = []
    for n in catalogue.notebooks:
        needs = [catalogue.by_name(name).number for name in n.prerequisites]
        rows.append(f"    {json.dumps(n.number)}: {json.dumps([n.part, n.title, needs], ensure_ascii=False)},")
    return "\n".join(["# @title Draw: what the map is made of", "collection = {", *rows, "}"])


def _read(catalogue: Catalogue, notebook: Notebook) -> nbformat.NotebookNode:
    """A notebook without outputs: its text, which is the source, or the notebook of which there is no text."""
    text, nb = catalogue.text(notebook), catalogue.ipynb(notebook)
    if text.exists():
        return jupytext.read(text)
    if nb.exists():
        return nbformat.read(nb, as_version=4)
    raise ValueError(f"there is neither {text} nor {nb}; the catalogue lists {notebook.name}")


def source(catalogue: Catalogue, notebook: Notebook, text: str) -> str:
    """A notebook's py:percent text with its generated cells filled in.

    Args:
        text: the twin's present content.

    Returns:
        The new content; equal to `text` where nothing has changed.

    Raises:
        ValueError: if the text checks an exercise that its sheet does not have, or that has no heading.
    """
    nb = jupytext.reads(text, fmt="py:percent")
    nb.metadata = nbformat.from_dict(HEADER)
    _fill_exercises(nb, notebook)
    for cell in nb.cells:
        tags = cell.metadata.get("tags", [])
        cell.metadata.pop("jupyter", None)
        if times.FOLDED & {*tags}:
            cell.metadata["jupyter"] = {"source_hidden": True}
        # In the order in which a save in JupyterLab writes them.
        cell.metadata = nbformat.from_dict(dict(sorted(cell.metadata.items())))
        if "badges" in tags:
            cell.source = badges(catalogue, notebook, times.of(nb))
        elif "catalogue" in tags:
            is_text = cell.cell_type == "markdown"
            cell.source = pages.table(catalogue, "", colab=False) if is_text else as_code(catalogue)
        elif "setup" in tags:
            # The bootstrap ends with the call of pip; what follows is the notebook's own.
            own = re.sub(r"\A.*-m pip install[^\n]*\n +\)\n", "", cell.source + "\n", flags=re.DOTALL)
            cell.source = bootstrap(catalogue) + "\n" + own.strip("\n")
    return jupytext.writes(nb, fmt="py:percent")


def _fill_exercises(nb: nbformat.NotebookNode, notebook: Notebook) -> None:
    """Put each exercise's starter into its cell, and its title and minutes into the heading above."""
    sheet, heading = f"tapelab.exercises.sheets.{notebook.name.partition('_')[2]}", None
    for cell in nb.cells:
        if cell.cell_type == "markdown" and _EXERCISE.search(cell.source):
            heading = cell
        elif cell.cell_type == "code" and (check := _CHECK.search(cell.source)):
            exercise = getattr(importlib.import_module(sheet), check[1], None)
            if exercise is None or heading is None:
                missing = (
                    f"{sheet} has no {check[1]}" if exercise is None else "no line '### Exercise: …' stands above it"
                )
                raise ValueError(f"{notebook.name} has a cell that ends with {check[0].strip()}, but {missing}")
            cell.source = exercise.starter_code
            heading.source = _EXERCISE.sub(lambda _, exercise=exercise: exercise.heading, heading.source)
            heading = None


def notebook_from_text(text: str, old: nbformat.NotebookNode | None = None) -> nbformat.NotebookNode:
    """The notebook that a py:percent text describes, with the outputs that an older version has for the same inputs."""
    nb = jupytext.reads(text, fmt="py:percent")
    given = [{key: value for key, value in cell.metadata.items() if key in KEPT} for cell in nb.cells]
    if old is not None:
        nb = combine_inputs_with_outputs(nb, old, fmt="py:percent")
    nb.metadata["language_info"] = nbformat.from_dict(KERNEL["language_info"])
    nb.nbformat, nb.nbformat_minor = 4, 5
    for number, cell in enumerate(nb.cells):
        cell.id, cell.metadata = f"cell-{number:02}", nbformat.from_dict(given[number])
    return nb


def differences(catalogue: Catalogue, notebook: Notebook) -> list[str]:
    """What of a notebook's pair is not as `make sync` would leave it: a list of sentences, empty where all is well."""
    text = catalogue.text(notebook).read_text(encoding="utf-8")
    found = []
    if source(catalogue, notebook, text) != text:
        found.append(f"{notebook.name}.py: its generated cells are out of date")
    nb = nbformat.read(catalogue.ipynb(notebook), as_version=4)
    try:
        compare_notebooks(nb, notebook_from_text(text), fmt="py:percent", compare_outputs=False)
    except NotebookDifference as error:
        found.append(f"{notebook.name}.ipynb is not its twin: {error}")
    return found


def refresh(catalogue: Catalogue, notebook: Notebook, *, execute: bool = True) -> None:
    """Bring one notebook up to date with its source, and store fresh outputs.

    Args:
        execute: False keeps the outputs of unchanged cells and runs nothing.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails; the files are then left as they were.
        ValueError: if somebody has written to the text meanwhile; what they wrote is left as it is.
    """
    text_path, nb_path = catalogue.text(notebook), catalogue.ipynb(notebook)
    written = text_path.read_text(encoding="utf-8")
    text = source(catalogue, notebook, written)
    old = nbformat.read(nb_path, as_version=4) if nb_path.exists() else None
    nb = notebook_from_text(text, old)
    if execute:
        resources = {"metadata": {"path": str(catalogue.folder)}}
        client = NotebookClient(
            nb, timeout=300, kernel_name="python3", resources=resources, record_timing=False, coalesce_streams=True
        )
        client.execute(stderr=subprocess.DEVNULL)
        for cell in nb.cells:
            cell.metadata.pop("execution", None)
            # What a library says on stderr depends on the machine; the figures' and results' place is stdout.
            if "outputs" in cell:
                cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    if text_path.read_text(encoding="utf-8") != written:
        raise ValueError(f"{text_path.name} was changed while its cells ran; run sync again")
    write_whole(text_path, text.encode())
    write_whole(nb_path, (nbformat.writes(nb) + "\n").encode())


def _why_not(act: Callable[..., object], *args: Any, **options: Any) -> str | None:
    """Do something. Returns why that failed, to report it with its name while the others go on; None if it did not."""
    try:
        act(*args, **options)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def refresh_all(
    catalogue: Catalogue, notebooks: Sequence[Notebook], *, execute: bool = True, workers: int = 1
) -> list[tuple[str, str]]:
    """Refresh notebooks side by side, with a progress bar, and then the README and the site's pages.

    Returns:
        A list of (name, message) for those that failed; their files are left as they were.
    """
    failures = []
    with ThreadPoolExecutor(workers) as pool:
        waiting = {pool.submit(_why_not, refresh, catalogue, n, execute=execute): n for n in notebooks}
        try:
            for future in track(as_completed(waiting), "notebooks", len(waiting), console=Console(stderr=True)):
                if message := future.result():
                    failures.append((waiting[future].name, message))
        except KeyboardInterrupt:
            os._exit(130)  # the kernels notice, and end as well; no file is ever half written
    for path in pages.paths(catalogue):
        if message := _why_not(_rewrite, catalogue, path):
            failures.append((path.relative_to(catalogue.folder.resolve().parent).as_posix(), message))
    return failures


def _rewrite(catalogue: Catalogue, path: Path) -> None:
    write_whole(path, pages.page(catalogue, path).encode())
