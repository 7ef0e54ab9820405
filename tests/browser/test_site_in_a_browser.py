"""The site as a person meets it: on a desktop and a phone, in the dark, by keyboard, with a screen reader's eyes."""

import re

import pytest
from axe_playwright_python.sync_playwright import Axe

PAGES = ["index", "gradient_is_none", "gradient_is_nan_or_zero", "which_derivative", "how_it_compares", "glossary"]
PAGES += ["working", "batches", "how_it_is_built", "retracing", "for_teachers", "search"]
PAGES += ["api/explain", "api/derivatives", "api/optimize"]


def all_pages(place):
    """The fixed pages and every notebook, as paths."""
    return [*PAGES, *sorted(f"notebooks/{path.stem}" for path in place.glob("notebooks/*.html"))]


def serious(page):
    """axe's serious and critical findings: rule, what is wrong, and the first places."""
    found = Axe().run(page).response["violations"]
    return [
        (one["id"], one["help"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(site, context, scheme):
    address, place = site
    page = context(color_scheme=scheme)
    found = {}
    # Another scheme changes colours alone, and those a page of each kind shows.
    kinds = ["index", "gradient_is_none", "api/optimize", "notebooks/04_when_the_gradient_is_wrong", "search"]
    for name in all_pages(place) if scheme == "light" else kinds:
        page.goto(f"{address}/{name}.html")
        page.wait_for_load_state("load")
        if problems := serious(page):
            found[name] = problems
    assert not found


def test_nothing_is_asked_of_another_host(site, context):
    address, place = site
    page = context()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    for name in all_pages(place):
        page.goto(f"{address}/{name}.html")
        page.wait_for_load_state("networkidle")
    assert asked
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


def test_it_works_from_a_folder_opened_offline(site, context):
    _, place = site
    page = context(offline=True)
    page.goto((place / "notebooks" / "11_hessians_and_newton.html").as_uri())
    page.wait_for_selector("mjx-container")
    page.goto((place / "search.html").as_uri() + "?q=Laplacian")
    page.wait_for_selector("#search-results li a")
    assert page.locator("#search-results li a").count() >= 2


def test_a_phone_scrolls_down_and_not_sideways(site, context):
    address, place = site
    page = context(width=390, height=844)
    for name in all_pages(place):
        page.goto(f"{address}/{name}.html")
        wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        assert wide <= 1, name


def test_every_figure_is_seen(site, context):
    address, place = site
    page = context()
    for name in all_pages(place):
        page.goto(f"{address}/{name}.html")
        page.wait_for_load_state("networkidle")
        lost = page.evaluate(
            "[...document.images].filter(one => !one.complete || !one.naturalWidth).map(one => one.src)"
        )
        assert lost == [], name


def test_folds_open_by_keyboard(site, context):
    address, _ = site
    page = context()
    page.goto(f"{address}/notebooks/12_without_the_matrix.html")
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


def test_formulas_are_set_and_say_what_they_are(site, context):
    address, place = site
    page = context()
    for name in all_pages(place):
        page.goto(f"{address}/{name}.html")
        page.wait_for_load_state("networkidle")
        assert page.locator("mjx-merror").count() == 0, name
        raw = page.evaluate(
            r"""[...document.querySelectorAll('article p, article li, article td')].filter(one => {
                const copy = one.cloneNode(true);
                copy.querySelectorAll('code, pre, mjx-container, .math').forEach(node => node.remove());
                return /\$[^$]+\$/.test(copy.textContent); }).map(one => one.textContent.slice(0, 80))"""
        )
        assert raw == [], name
