"""The static site's sources, written for Sphinx: a page for each notebook, from its stored outputs, and the rest.

A page is for reading. The folds stay, under the name that they have in the notebook; what only a running notebook can
answer (a guess, an exercise) is shown as the question, and buttons open the notebook in Colab or save a copy.
"""

import importlib
import json
import re
import shutil
from base64 import b64decode, b64encode
from collections.abc import Iterator
from copy import deepcopy
from html import escape
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import ModuleType

from tapelab.collection.catalogue import Catalogue, Notebook, read_notebook
from tapelab.collection.publishing import copies, teachers, times
from tapelab.collection.publishing.pages import FOLDER, PACKAGES
from tapelab.collection.templates import rendered
from tapelab.process.session import alternatives

import nbformat
from PIL import Image

AUDIT = "ci/derivative_audit/RESULTS.md"  # a page that is generated there
COPIES = "copies"  # the learner's copies, to download
MATHJAX = ("tex-chtml.js", "output/chtml/fonts")  # what a page loads; the package has five times as much
_TAPE = re.compile(r"!\[.*\]\(_static/tape\.svg\)")
_TITLE = re.compile(r"# @title (.+)\n?")
_BADGE = re.compile(r"\[!\[Open in Colab\]\([^)]*\)\]")  # an image from another host
_UNANSWERED = re.compile(r"^exercises\.\w+\.(guess|check)\(", re.MULTILINE)
_EXERCISE = re.compile(r"^exercises\.(\w+)\.check\(", re.MULTILINE)


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
    shutil.copytree(catalogue.folder.resolve().parent / FOLDER, target)
    _divide(target / Path(teachers.PAGE).name)
    home = copies.home_url(catalogue)
    tape = rendered("tape.md", picture=(target / "_static" / "tape.svg").read_text(encoding="utf-8"))
    for page in target.rglob("*.md"):
        text = re.sub(r"\]\((?:\.\./)+(notebooks/\w+\.ipynb)", r"](/\1", page.read_text(encoding="utf-8"))
        text = _TAPE.sub(lambda _: tape, text)  # as a part of the page, it follows the page's theme
        page.write_text(text.replace("](../", f"]({home}/"), encoding="utf-8")
    for folder in ("notebooks", COPIES, "api", "audit"):
        (target / folder).mkdir(parents=True)
    for notebook in catalogue.notebooks:
        nb = read_notebook(catalogue.ipynb(notebook))
        nbformat.write(_page(catalogue, notebook, deepcopy(nb)), target / "notebooks" / f"{notebook.name}.ipynb")
        nbformat.write(copies.for_learners(nb, home), target / COPIES / f"{notebook.name}.ipynb")
    for name, title in PACKAGES.items():
        (target / "api" / f"{name}.md").write_text(_api_page(name, title), encoding="utf-8")
    audit = (catalogue.folder.resolve().parent / AUDIT).read_text(encoding="utf-8")
    (target / "audit" / "RESULTS.md").write_text(audit.replace("](../../", f"]({home}/"), encoding="utf-8")
    mathjax = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
    for part in MATHJAX:
        copy = shutil.copytree if (mathjax / part).is_dir() else shutil.copyfile
        (target / "_static" / "mathjax" / part).parent.mkdir(parents=True, exist_ok=True)
        copy(mathjax / part, target / "_static" / "mathjax" / part)
    moved = {f"notebooks/{name}": f"{n.name}.html" for n in catalogue.notebooks for name in n.formerly}
    settings = {"address": address(catalogue), "repository": copies.home_url(catalogue), "moved": moved}
    (target / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    index, packages = target / "index.md", [f"tapelab.{name} <api/{name}>" for name in PACKAGES]
    pages = [(part, [f"{n.number} {n.title} <notebooks/{n.name}>" for n in group]) for part, group in catalogue.parts()]
    contents = rendered("contents.md", parts=pages, packages=packages)
    index.write_text(index.read_text(encoding="utf-8") + f"{contents}\n", encoding="utf-8")


def _divide(page: Path) -> None:
    """Make a page of each lesson: the whole is as long as a book."""
    text = page.read_text(encoding="utf-8")
    lessons = teachers.parts(text)
    page.with_suffix("").mkdir()
    for number, lesson in lessons.items():
        title = re.sub(r"[#\[\]]|\(.*\)", "", lesson.partition("\n")[0]).strip()
        text = text.replace(lesson, f"- [{title}]({page.stem}/{number}.md)\n")
        text = re.sub(rf"\(#{number}-[^)]*\)", f"({page.stem}/{number}.md)", text)
        lesson = re.sub(r"\]\((?=\w+\.md)", "](/", lesson.removeprefix("##").replace("\n#### ", "\n## "))
        (page.with_suffix("") / f"{number}.md").write_text(f"---\norphan: true\n---\n{lesson}", encoding="utf-8")
    page.write_text(text, encoding="utf-8")


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
    home, shown = copies.home_url(catalogue), []
    sheet = importlib.import_module(f"tapelab.exercises.sheets.{notebook.name.partition('_')[2]}")
    for cell in nb.cells:
        shown.append(cell)
        mystnb = {"image": {"alt": cell.metadata["alt"]}} if "alt" in cell.metadata else {}
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
            if exercise := _EXERCISE.search(cell.source):
                one = getattr(sheet, exercise[1])
                shown.append(nbformat.v4.new_markdown_cell(rendered("exercise.md", one=one)))
        cell.metadata["mystnb"] = mystnb
        if "outputs" in cell:
            cell.outputs = [each for output in cell.outputs for each in _with_numbers(_smaller(output))]
        for output in cell.get("outputs", []) if "alt" in cell.metadata else []:
            if "text/html" in output.get("data", {}):  # a moving picture, which carries its title alone
                told = f'alt="{escape(cell.metadata["alt"])}"'
                output.data["text/html"] = re.sub(r'\balt="[^"]*"', lambda _, told=told: told, output.data["text/html"])
    nb.cells = shown
    return nb


def _smaller(output: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """An output, its figure without the transparency that it does not use. The argument is changed."""
    if "image/png" in output.get("data", {}):
        picture, file = Image.open(BytesIO(b64decode(output.data["image/png"]))), BytesIO()
        if picture.mode == "RGBA" and picture.getextrema()[3] == (255, 255):
            picture.convert("RGB").save(file, "PNG", optimize=True)
            output.data["image/png"] = b64encode(file.getvalue()).decode()
    return output


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
