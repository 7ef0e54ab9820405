"""Nothing before its explanation: which notebook explains a name, and no earlier page uses it openly.

An earlier page may name it in a sentence that links to the notebook that explains it, and from there on in its prose.
Its code may use it where such a sentence asks to take it on trust.
"""

import functools
import re
import tomllib
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import times

import nbformat
import pytest

CATALOGUE = catalogue.load(Path(__file__).parents[1] / "notebooks")
PAGES = [entry.name.partition("_")[2] for entry in CATALOGUE.notebooks]

# A name as it is found in code or prose, and the notebook that explains it.
NAMES = tomllib.loads(Path(__file__).with_name("order.toml").read_text("utf-8"))["NAMES"]


@functools.cache
def read(entry):
    return nbformat.read(CATALOGUE.ipynb(entry), as_version=4)


def sentences(markdown):
    """The sentences of a Markdown cell; a heading, a row of a table and an item of a list end where they end."""
    text = re.sub(r"^(?=#|\||- |\d+\. )", "\n", markdown, flags=re.MULTILINE)
    blocks = (re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\n|\n(?=#|\||- |\d+\. )", text))
    return [one for block in blocks for one in re.split(r"(?<=[.?!])\s+(?=[A-Z`*(\[$])", block) if one]


def uses(nb, name, page):
    """What a page says or runs of a name that it has not introduced, as a list of texts."""
    link = re.compile(rf"\d\d_{page}\.ipynb")
    pointed = trusted = False
    found = []
    for cell in nb.cells:
        if set(cell.metadata.get("tags", [])) & (times.FOLDED | times.GENERATED):
            continue
        if cell.cell_type == "code":
            if not trusted and re.search(name, cell.source):
                found.append(next(line for line in cell.source.splitlines() if re.search(name, line)))
            continue
        for sentence in sentences(cell.source.partition("**Further reading**")[0]):
            if re.search(name, sentence):
                pointed = pointed or bool(link.search(sentence))
                trusted = trusted or bool(link.search(sentence) and "on trust" in sentence)
                if not pointed:
                    found.append(sentence)
    return found


@pytest.mark.parametrize("entry", CATALOGUE.notebooks, ids=lambda entry: entry.name)
def test_a_page_uses_what_has_been_explained(entry):
    nb = read(entry)
    here = PAGES.index(entry.name.partition("_")[2])
    later = {name: page for name, page in NAMES.items() if PAGES.index(page) > here}
    assert {name: found for name, page in later.items() if (found := uses(nb, name, page))} == {}


@pytest.mark.parametrize("name", NAMES)
def test_the_notebook_that_explains_a_name_has_it_in_its_prose(name):
    cells = read(CATALOGUE.notebooks[PAGES.index(NAMES[name])]).cells
    assert any(re.search(name, cell.source) for cell in cells if cell.cell_type == "markdown")
