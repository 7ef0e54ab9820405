"""The site as a person meets it: on a desktop and a phone, in the dark, by keyboard, with a screen reader's eyes."""

import functools
import json
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TAPELAB_PYTHON", str(ROOT / ".venv" / "bin" / "python"))

# Another scheme changes colours alone, and those a page of each kind shows.
KINDS = (
    *("index", "gradient_is_none", "api/optimize", "notebooks/04_when_the_gradient_is_wrong", "search"),
    *("glossary", "for_teachers/03"),
)

FACTS = r"""async () => {
    await window.MathJax?.startup?.promise;
    document.querySelectorAll('details').forEach(one => { one.open = true; });
    await Promise.allSettled([...document.images].map(one => one.decode()));
    const raw = [...document.querySelectorAll('article p, article li, article td')].filter(one => {
        const copy = one.cloneNode(true);
        copy.querySelectorAll('code, pre, mjx-container, .math').forEach(node => node.remove());
        return /\$[^$]+\$/.test(copy.textContent); });
    raw.push(...[...document.querySelectorAll('article .math')].filter(one => !one.querySelector('mjx-container')));
    return {
        formulas: document.querySelectorAll('mjx-container').length,
        broken: [...document.querySelectorAll('mjx-merror')].map(one => one.textContent),
        raw: raw.map(one => one.textContent.slice(0, 80)),
        images: document.images.length,
        lost: [...document.images].filter(one => !one.naturalWidth).map(one => one.src.slice(0, 160)) }; }"""

# On a phone the theme lets the text's column scroll in itself, where the page does not.
TOO_WIDE = """Math.max(...[document.documentElement, ...document.querySelectorAll('.content')].map(
    one => one.scrollWidth - one.clientWidth))"""

# Code is thousands of words in a few colours, and axe looks at each for its contrast. One word of each kind, colour and
# ground says the same in a third of the time; the others become plain text of their block.
ONE_WORD_OF_EACH_COLOUR = """() => {
    const words = [...document.querySelectorAll('pre span, dt.sig span')].map(word => {
        const look = getComputedStyle(word), grounds = new Set();
        for (let one = word; one; one = one.parentElement) grounds.add(getComputedStyle(one).backgroundColor);
        const kind = [word.className, look.color, look.fontSize, look.fontWeight, look.opacity, ...grounds].join();
        return [word, kind, word.checkVisibility()]; });
    const seen = new Set();
    for (const [word, kind, visible] of words.reverse()) {  // inner words before the outer ones
        if (word.childElementCount) continue;
        if (seen.has(kind)) word.replaceWith(...word.childNodes);
        else if (visible) seen.add(kind); } }"""


def visit(context, serious, address, dark=False):
    """All that the tests ask of a page, from one visit: a dict."""
    page = context.new_page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    # A formula that is not set yet is a long word: it is measured as a reader sees it.
    page.evaluate("Promise.resolve(globalThis.MathJax?.startup?.promise).then(() => 0)")
    facts = page.evaluate(FACTS)
    facts["desktop"] = page.evaluate(TOO_WIDE)
    page.set_viewport_size({"width": 390, "height": 844})
    facts["phone"] = page.evaluate(TOO_WIDE)
    page.set_viewport_size({"width": 1300, "height": 1000})
    page.evaluate(ONE_WORD_OF_EACH_COLOUR)
    facts["light"] = serious(page)
    if dark:
        page.emulate_media(color_scheme="dark")
        facts["dark"] = serious(page)
    facts["asked"] = asked
    page.close()
    return facts


@pytest.fixture(scope="module")
def look(browser, serious):
    """`visit`, but for the page's address."""
    with browser.new_context(viewport={"width": 1300, "height": 1000}, color_scheme="light") as context:
        context.set_default_timeout(120_000)
        yield functools.partial(visit, context, serious)


@pytest.fixture(scope="module")
def seen(site, look):
    """The facts of every page of the site, each visited once: a dict from its name."""
    address, place = site
    found = [path for path in place.rglob("*.html") if 'http-equiv="refresh"' not in path.read_text("utf-8")]
    names = sorted(str(path.relative_to(place).with_suffix("")) for path in found)
    return {name: look(f"{address}/{name}.html", dark=name in KINDS) for name in names}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The page about a batch of two small notebooks, one of which fails; its address."""
    home = tmp_path_factory.mktemp("batch")
    cells = {
        "00_draws": ["seed = 0", "import matplotlib.pyplot as plt\nplt.plot([0, seed])\nplt.show()"],
        "01_fails": ["seed = 0", f"rows = [{', '.join(map(str, range(100)))}]\nrows[100]"],
    }
    entries = (f'[[notebook]]\nname = "{name}"\ntitle = "T"\nsummary = ""\n' for name in cells)
    (home / "collection.toml").write_text('repository = "o/r"\nref = "main"\n[references]\n' + "\n".join(entries))
    for name, sources in cells.items():
        nb = {
            "nbformat": 4,
            "nbformat_minor": 5,
            "metadata": {"kernelspec": {"name": "python3", "display_name": "P", "language": "python"}},
        }
        code = {"cell_type": "code", "execution_count": None, "outputs": []}
        nb["cells"] = [
            {**code, "id": f"c{number}", "source": source, "metadata": {} if number else {"tags": ["parameters"]}}
            for number, source in enumerate(sources)
        ]
        (home / f"{name}.ipynb").write_text(json.dumps(nb))
    output = home / "executed"
    command = [PYTHON, "-m", "tapelab", "run", "--notebooks", home, "--output", output, "--sweep", "seed=0,1"]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr  # one of them fails
    return (output / "report.html").as_uri()


def pages_with(seen, wrong):
    """The pages of which `wrong` says something, and what it says."""
    return {name: said for name, facts in seen.items() if (said := wrong(facts))}


def test_every_page_was_visited(seen):
    assert {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")} == {
        Path(name).name for name in seen if "notebooks/" in name
    }
    assert set(KINDS) <= set(seen)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(seen, scheme):
    assert pages_with(seen, lambda facts: facts.get(scheme)) == {}


def test_nothing_is_asked_of_another_host(seen, site):
    def foreign(facts):
        return [url for url in facts["asked"] if not url.startswith((site[0], "data:", "blob:"))]

    assert all(facts["asked"] for facts in seen.values())
    assert pages_with(seen, foreign) == {}


@pytest.mark.parametrize("screen", ["desktop", "phone"])
def test_a_page_scrolls_down_and_not_sideways(seen, screen):
    assert pages_with(seen, lambda facts: facts[screen] > 1) == {}


def test_every_figure_is_seen(seen):
    assert sum(facts["images"] for facts in seen.values()) > 50
    assert pages_with(seen, lambda facts: facts["lost"]) == {}


def test_formulas_are_set(seen):
    assert sum(facts["formulas"] for facts in seen.values()) > 200
    assert pages_with(seen, lambda facts: facts["broken"] + facts["raw"]) == {}


def test_the_report_of_a_batch_is_as_good(report, look):
    facts = look(report, dark=True)
    assert facts["images"] == 2
    assert facts["lost"] == []
    assert [url for url in facts["asked"] if not url.startswith((report, "data:"))] == []
    assert facts["light"] == []
    assert facts["dark"] == []
    assert facts["desktop"] <= 1
    assert facts["phone"] <= 1


def test_it_works_from_a_folder_opened_offline(site, context):
    _, place = site
    page = context(offline=True)
    page.goto((place / "notebooks" / "13_hessians_and_newton.html").as_uri())
    page.wait_for_selector("mjx-container")
    page.goto((place / "search.html").as_uri() + "?q=Laplacian")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() >= 2


def test_folds_open_by_keyboard(site, context):
    address, _ = site
    page = context()
    page.goto(f"{address}/notebooks/14_without_the_matrix.html")
    fold = page.locator("details.hide", has_text="Check").first
    assert not fold.locator("pre").first.is_visible()
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.locator("pre").first.is_visible()


def test_the_keyboard_reaches_the_text(site, context):
    address, _ = site
    page = context()
    page.goto(f"{address}/index.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")  # "skip to content"
    page.keyboard.press("Tab")
    inside = page.evaluate("document.activeElement.closest('article') !== null")
    assert inside or re.search("content", page.evaluate("document.activeElement.id"))


@pytest.mark.parametrize(("motion", "moves"), [("no-preference", True), ("reduce", False)])
def test_the_picture_of_the_tape_is_whole_and_moves_when_asked_unless_motion_is_not_wanted(
    site, context, motion, moves
):
    address, _ = site
    page = context(reduced_motion=motion)
    page.goto(f"{address}/index.html")
    seen = "[...document.querySelectorAll('figure.tape .moves')].every(one => getComputedStyle(one).opacity === '1')"
    assert page.evaluate(seen)
    assert page.locator("figure.tape button").is_visible() == moves
    for _ in range(2 * moves):
        page.locator("figure.tape button").click()
        assert not page.evaluate(seen)
        page.wait_for_function(seen)


def test_the_steps_through_a_tape_go_by_keyboard_without_a_script_and_print_whole(site, context):
    address, _ = site
    page = context(java_script_enabled=False)
    page.goto(f"{address}/notebooks/01_gradient_tape_basics.html")
    steps = page.locator("fieldset").first
    steps.locator("input").first.focus()
    for _ in range(6):
        page.keyboard.press("ArrowRight")
    assert steps.locator("p:visible").all_inner_texts() == ["Up: row 2 hands 5 to row 0."]
    assert "; sum 9" not in steps.locator("td span:visible").all_inner_texts()
    page.emulate_media(media="print")
    assert "; sum 9" in steps.locator("td span:visible").all_inner_texts()
    assert not steps.locator("input:visible").count()


def test_the_sidebar_shows_the_present_page(site, context):
    address, _ = site
    page = context(width=1440, height=700)
    page.goto(f"{address}/notebooks/27_generative_model_from_a_trace.html")
    box = page.locator(".sidebar-tree .current-page").bounding_box()
    assert 0 <= box["y"] < 700
    assert page.locator(".sidebar-tree details[open]").count() == 1


def test_the_text_stands_where_it_stood_on_a_page_without_contents(site, context):
    address, _ = site
    page = context(width=1440, height=900)
    left = []
    for name in ("index", "glossary"):  # the second has no column of contents
        page.goto(f"{address}/{name}.html")
        left.append(page.locator("h1").bounding_box()["x"])
    assert left == [left[0]] * 2


FOUND_FIRST = {
    "No gradients provided for any variable": "gradient_is_none",
    "Gradients do not exist for variables": "gradient_is_none",
    "None": "gradient_is_none",
    "A non-persistent GradientTape can only be used once": "gradient_is_none",
    "The dtype of the watched tensor must be floating": "gradient_is_none",
    "ExplainTape": "api/explain",
    "Tensor had NaN values": "gradient_is_nan_or_zero",
    "dead ReLU": "gradient_is_nan_or_zero",
    "triggered tf.function retracing": "retracing",
    "jacobian slow": "which_derivative",
    "Laplacian": "which_derivative",
    "cotangent": "glossary",
    "influence functions": "notebooks/22_influence_functions",
    "install": "working",
    "PyTorch": "phrasebook",
    "why is tape.gradient returning None": "gradient_is_none",
    "my model does not learn": "gradient_is_nan_or_zero",
    "'NoneType' object has no attribute 'numpy'": "gradient_is_none",
    "gradients per sample": "which_derivative",
    "traps": "traps",
    "cheat sheet": "cheat_sheet",
    "stop gradient target network": "notebooks/06_stop_gradient",
    "quiz solutions": "for_teachers",
}


def test_a_search_finds_the_right_page_first(site, context):
    address, _ = site
    browser, found = context(), {}
    for query in FOUND_FIRST:
        browser.goto(f"{address}/search.html?q={query}")
        first = browser.locator("#search-results li a").first
        found[query] = first.get_attribute("href").partition(".html")[0]
    assert found == FOUND_FIRST


def test_the_cheat_sheet_prints_on_one_page_and_the_traps_are_filtered(site, context):
    address, _ = site
    page = context()
    page.goto(f"{address}/cheat_sheet.html")
    assert len(re.findall(rb"/Type\s*/Page\b(?!s)", page.pdf(format="A4"))) == 1
    page.goto(f"{address}/traps.html")
    rows = page.locator("article tbody tr")
    assert rows.count() > 150
    page.fill(".filter input", "IndexedSlices")
    shown = [row.inner_text() for row in rows.all() if row.is_visible()]
    assert 0 < len(shown) < 10
    assert all("indexedslices" in text.lower() for text in shown)


def test_where_no_page_has_all_words_the_best_are_found_and_no_excerpt_is_folded_code(site, context):
    address, _ = site
    browser = context()
    browser.goto(f"{address}/search.html?q=zwitterion influence functions")
    browser.wait_for_selector("#search-results li p.context")
    links = browser.locator("#search-results li a").evaluate_all("all => all.map(one => one.getAttribute('href'))")
    assert links[0].startswith("notebooks/22_influence_functions.html")
    browser.wait_for_function("document.querySelectorAll('#search-results p.context').length >= 10")
    excerpts = browser.locator("#search-results li p.context").all_inner_texts()
    assert not any("importlib.util.find_spec" in text for text in excerpts)


def test_what_is_folded_is_not_searched(site):
    """The index knows no word that stands in set-up and checks alone."""
    _, place = site
    index = (place / "searchindex.js").read_text()
    assert '"importlib"' not in index
    assert '"explaintap"' in index


@pytest.mark.parametrize("name", ["how_it_compares", "which_derivative", "derivatives_by_task", "audit/RESULTS"])
def test_no_table_is_wider_than_its_column_and_on_a_phone_it_says_that_it_scrolls(site, context, name):
    address, _ = site
    wide = """() => { document.querySelectorAll('details').forEach(one => { one.open = true; });
        return new Promise(done => setTimeout(() => done([...document.querySelectorAll('.table-wrapper')]
            .filter(one => one.scrollWidth > one.clientWidth)
            .map(one => getComputedStyle(one, '::before').content)), 200)); }"""
    page = context(width=1440, height=1000)
    page.goto(f"{address}/{name}.html")
    assert page.evaluate(wide) == []
    page.set_viewport_size({"width": 390, "height": 844})
    assert set(page.evaluate(wide)) <= {'"This table scrolls sideways →"'}


def test_a_page_begins_at_its_top_on_a_phone(site, context):
    address, _ = site
    page = context(width=390, height=844)
    page.goto(f"{address}/notebooks/27_generative_model_from_a_trace.html")
    page.wait_for_load_state()
    assert page.evaluate("[scrollX, scrollY]") == [0, 0]
