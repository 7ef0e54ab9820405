"""The static site: built whole and without a warning, complete in itself, its links lead somewhere."""

import importlib
import re
import subprocess
import sys
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urldefrag

from tapelab import explain
from tapelab.collection import catalogue
from tapelab.collection.publishing import copies
from tapelab.collection.publishing import pages as pages_
from tapelab.exercises.sheets import recording_control
from tapelab.graphs.operations import WRONG
from tapelab.process.session.alternatives import NUMBERS

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
CATALOGUE = catalogue.load(ROOT / "notebooks")
pytestmark = pytest.mark.thorough  # all of them: the site takes long to build


class _Page(HTMLParser):
    """What a test asks of a page: where it links to, its images, folds, headings and ids."""

    def __init__(self, text):
        super().__init__()
        self.links, self.images, self.folds, self.ids, self.language = [], [], [], set(), None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        if tag == "html":
            self.language = found.get("lang")
        if tag == "a" and "href" in found:
            self.links.append(found["href"])
        if tag == "img":
            self.images.append(found)
        if tag == "details":
            self.folds.append(found)


@pytest.fixture(scope="module")
def site(once):
    """The folder of the site, as `tapelab site` builds it: a warning would have stopped that."""

    def build(place):
        command = [sys.executable, "-m", "tapelab", "site", str(place)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    return once("site", build)


@pytest.fixture(scope="module")
def pages(site):
    moved = {site / "notebooks" / f"{name}.html" for n in CATALOGUE.notebooks for name in n.formerly}
    found = set(site.rglob("*.html")) - moved
    return {path.relative_to(site).as_posix(): _Page(path.read_text("utf-8")) for path in found}


def test_there_is_a_page_for_each_notebook_and_package(pages):
    assert {f"notebooks/{n.name}.html" for n in CATALOGUE.notebooks} <= pages.keys()
    assert {"index.html", "search.html", "glossary.html", "api/explain.html", "api/derivatives.html"} <= pages.keys()
    assert all(page.language == "en-GB" for page in pages.values())


def test_it_is_no_larger_than_what_it_shows(site):
    assert not (site / ".doctrees").exists()
    assert sum(path.stat().st_size for path in site.rglob("*") if path.is_file()) < 25e6


def test_each_page_says_where_its_text_is_and_where_to_report(site):
    def about(name):
        return re.search(r'<p class="about-the-page">.*?</p>', (site / name).read_text("utf-8"))[0]

    assert "/edit/main/notebooks/05_recording_control.py" in about("notebooks/05_recording_control.html")
    assert "/edit/main/site/for_teachers.md" in about("for_teachers/05.html")
    assert "/edit/" not in about("api/explain.html")
    assert "/issues/new?title=glossary%3A%20" in about("glossary.html")
    assert f"tapelab {metadata.version('tapelab')}" in about("index.html")


def test_what_is_not_there_is_answered_from_any_folder(site):
    text = (site / "404.html").read_text("utf-8")
    assert "/tapelab/_static/" in text
    assert 'href="_static' not in text


def test_a_lesson_is_a_page_and_its_table_leads_there(site, pages):
    numbers = [n.number for n in CATALOGUE.notebooks]
    assert {f"for_teachers/{number}.html" for number in numbers} <= {*pages["for_teachers.html"].links} & {*pages}
    assert len((site / "for_teachers.html").read_text("utf-8")) < 150_000


def test_below_an_exercise_stand_its_hints_and_its_solution_folded(site):
    text = (site / "notebooks" / "05_recording_control.html").read_text("utf-8")
    title = recording_control.metric_off.title
    assert text.count(f": {title}</summary>") == len(recording_control.metric_off.hints) + 1


def test_links_within_it_lead_somewhere(site, pages):
    for name, page in pages.items():
        for link in page.links:
            path, anchor = urldefrag(link)
            if re.match(r"\w+:", path):
                continue
            path = path.removeprefix("/tapelab/")  # the answer to an unknown address lies in no folder
            target = (site / name).parent / unquote(path) if path else site / name
            assert target.exists(), f"{name}: {link}"
            if anchor and target.suffix == ".html":
                assert unquote(anchor) in pages[target.resolve().relative_to(site).as_posix()].ids, f"{name}: {link}"


def test_an_address_that_a_notebook_had_leads_to_it(site):
    for notebook in CATALOGUE.notebooks:
        for name in notebook.formerly:
            text = (site / "notebooks" / f"{name}.html").read_text("utf-8")
            (address,) = re.findall(r'http-equiv="refresh" content="0; url=([^"]+)"', text)
            assert address == f"{notebook.name}.html"
            assert (site / "notebooks" / address).is_file()


def test_each_page_says_what_it_is_and_shows_a_picture_where_it_is_linked(site, pages):
    for name in pages.keys() - {"404.html", "genindex.html", "py-modindex.html", "search.html"}:
        text = (site / name).read_text("utf-8")
        told = dict(re.findall(r'<meta (?:name|property)="([\w:]+)" content="([^"]*)"', text))
        assert len(told["description"]) > 30, name
        assert told["og:title"], name
        picture = re.fullmatch(r"https://tapelab\.github\.io/tapelab/(\S+)", told["og:image"])
        assert (site / picture[1]).is_file()
    assert (site / "_static" / "favicon.svg").is_file()


def test_the_sidebar_opens_the_part_of_the_present_page_alone(site, pages):
    for name in pages:
        tree = (site / name).read_text("utf-8").partition('<div class="sidebar-tree">')[2].partition("</aside>")[0]
        parts = re.findall(r"<details( open)?><summary>(.*?)</summary>(.*?)</details>", tree, re.DOTALL)
        assert len(parts) >= 8, name
        opened = [pages for is_open, _, pages in parts if is_open]
        assert len(opened) == 1, name
        assert ("current-page" in tree) == ("current-page" in opened[0]), name


def test_figures_have_their_texts(pages):
    for notebook in CATALOGUE.notebooks:
        nb = nbformat.read(CATALOGUE.ipynb(notebook), as_version=4)
        texts = {cell.metadata["alt"] for cell in nb.cells if "alt" in cell.metadata}
        found = pages[f"notebooks/{notebook.name}.html"].images
        assert all(image.get("alt") for image in found), notebook.name
        assert texts <= {image["alt"] for image in found}, notebook.name


def test_below_a_figure_its_numbers_are_folded(site):
    shown = 0
    for notebook in CATALOGUE.notebooks:
        cells = nbformat.read(CATALOGUE.ipynb(notebook), as_version=4).cells
        kept = [
            o.metadata[NUMBERS] for cell in cells for o in cell.get("outputs", ()) if NUMBERS in o.get("metadata", {})
        ]
        text = (site / "notebooks" / f"{notebook.name}.html").read_text("utf-8")
        assert all(numbers in text for numbers in kept), notebook.name
        shown += len(kept)
    assert shown > 100


def test_what_is_folded_stays_folded_under_its_name(site, pages):
    for notebook in CATALOGUE.notebooks:
        nb = nbformat.read(CATALOGUE.ipynb(notebook), as_version=4)
        folded = [cell for cell in nb.cells if "jupyter" in cell.metadata]
        name = f"notebooks/{notebook.name}.html"
        hidden = [fold for fold in pages[name].folds if "hide" in (fold.get("class") or "")]
        assert len(hidden) == len(folded)
        assert not any("open" in fold for fold in hidden)
        text = (site / name).read_text("utf-8")
        assert "# @title" not in text
        assert text.count('<p class="collapsed admonition-title">Check</p>') == sum(
            "check" in cell.metadata["tags"] for cell in folded
        )


def test_exercises_are_questions_and_their_notebook_can_be_saved_without_outputs(site):
    for notebook in CATALOGUE.notebooks:
        text = (site / "notebooks" / f"{notebook.name}.html").read_text("utf-8")
        assert "Not attempted yet" not in text
        assert "No guess yet" not in text
        (saved,) = site.glob(f"_downloads/*/{notebook.name}.ipynb")
        assert not any(cell.get("outputs") for cell in nbformat.read(saved, as_version=4).cells)


def test_what_opens_in_colab_is_on_the_branch_that_is_published(pages, tmp_path):
    copies.write_for_colab(CATALOGUE, tmp_path)
    start = f"https://colab.research.google.com/github/{CATALOGUE.repository}/blob/{copies.colab_branch(CATALOGUE)}/"
    published = {start + path.relative_to(tmp_path).as_posix() for path in tmp_path.glob("notebooks/*")}
    linked = {name: {link for link in page.links if "//colab." in link} for name, page in pages.items()}
    former = {f"{start}notebooks/{name}.ipynb" for n in CATALOGUE.notebooks for name in n.formerly}
    assert set().union(*linked.values()) == published - former
    for notebook in CATALOGUE.notebooks:
        assert f"{start}notebooks/{notebook.name}.ipynb" in linked[f"notebooks/{notebook.name}.html"]


def test_code_in_a_docstring_is_shown_as_it_is(site):
    text = re.sub(r"<[^>]+>", "", (site / "api" / "derivatives.html").read_text("utf-8"))
    assert "shape (*f(x), *x)\n" in text  # in a block of code
    assert "\\*" not in text


@pytest.mark.parametrize(
    ("page", "first"),
    [
        ("derivatives", ["value_and_gradient", "jvp", "vjp"]),
        ("explain", ["ExplainTape", "explain", "draw", "diagnose"]),
        ("optimize", ["newton", "newton_cg", "levenberg_marquardt"]),
    ],
)
def test_a_package_s_page_begins_with_what_people_call(site, page, first):
    text = (site / "api" / f"{page}.html").read_text("utf-8")
    named = re.findall(rf'<dt class="sig sig-object py" id="tapelab\.{page}\.(\w+)"', text)
    assert named[: len(first)] == first
    offered = importlib.import_module(f"tapelab.{page}").__all__
    assert {name for name in offered if callable(getattr(importlib.import_module(f"tapelab.{page}"), name))} == set(
        named
    )


def test_every_cause_is_listed(pages):
    def headings(codes):
        return {code.replace("_", "-") for code in codes}

    assert headings(explain.CAUSES) <= pages["gradient_is_none.html"].ids
    assert headings(explain.VALUES) <= pages["gradient_is_nan_or_zero.html"].ids


def test_placeholders_of_the_cures_are_filled_in(site):
    for name in ("gradient_is_none", "gradient_is_nan_or_zero"):
        text = (site / f"{name}.html").read_text("utf-8")
        assert not re.search(r"\{(?:source|target|watchable|op|of)\}", re.sub(r"<[^>]+>", "", text))


def test_each_operation_that_is_known_is_listed_with_what_is_wrong_with_its_derivative(site):
    text = (site / "operations.html").read_text("utf-8")
    rows = dict(
        re.findall(r"<tr[^>]*><td><p><code[^>]*><span class=\"pre\">(\w+)</span></code></p></td>(.*?)</tr>", text, re.S)
    )
    assert rows.keys() >= WRONG.keys()
    assert "second derivatives leave out terms" in rows["SelfAdjointEigV2"]
    assert "Write the resizing as a product" in rows["ResizeBilinear"]


def test_every_page_is_on_the_way(site):
    written = {path.stem for path in (ROOT / pages_.FOLDER).glob("*.md")}
    index = _Page((site / "index.html").read_text("utf-8"))
    assert {f"{name}.html" for name in written - {"index"}} <= set(index.links)


def test_the_audit_s_page_is_on_the_way(site):
    assert "audit/RESULTS.html" in _Page((site / "index.html").read_text("utf-8")).links
