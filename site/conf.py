"""Sphinx's configuration. `tapelab site` copies it, with all pages, to where it builds."""

import json
import re
from importlib import metadata
from pathlib import Path
from urllib.parse import quote

from docutils import nodes
from sphinx import addnodes

SETTINGS = json.loads(Path(__file__).with_name("settings.json").read_text("utf-8"))  # of the collection

project = "tapelab"
release = metadata.version("tapelab")
author = "The tapelab authors"
copyright = "The tapelab authors"
language = "en_GB"

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinxext.opengraph",
    "sphinx_reredirects",
    "notfound.extension",
]
exclude_patterns = ["copies"]
suppress_warnings = ["myst.xref_missing"]  # an anchor that a page sets in HTML; a test looks at every link
ogp_site_url = SETTINGS["address"]
ogp_image = f"{ogp_site_url}_static/card.png"
ogp_image_alt = "A program's lines with values going down and gradients coming up"
ogp_social_cards = {"enable": False}
redirects = SETTINGS["moved"]
notfound_urls_prefix = "/tapelab/"
linkcheck_ignore = [r"https://(colab\.research\.google|github)\.com/.*tapelab/tapelab.*"]  # those of this very state
mathjax_path = "mathjax/tex-chtml.js"  # the site asks no other host for anything

nb_execution_mode = "off"  # the outputs are those that the tests compare
nb_ipywidgets_js = {}  # from another host by default; no stored output has a widget
nb_mime_priority_overrides = [("html", "text/html", 5)]
nb_merge_streams = True
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_dmath_double_inline = True
myst_heading_anchors = 3

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_inherit_docstrings = False  # TensorFlow's are not in reStructuredText
add_module_names = False
copybutton_exclude = ".linenos, .gp, .go"

html_search_scorer = str(Path(__file__).with_name("scorer.js"))
html_theme = "furo"
html_title = "tapelab"
html_favicon = "_static/favicon.svg"
html_static_path = ["_static"]
html_css_files = ["tapelab.css"]
html_js_files = ["tapelab.js"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
pygments_style = "a11y-high-contrast-light"
pygments_dark_style = "a11y-high-contrast-dark"
html_theme_options = {"navigation_with_keys": True}


_TEX = {
    "ᵀ": r"^\top ",
    "⁻¹": "^{-1}",
    "²": "^2",
    "ᵏ": "^k",
    "ᵐ": "^m",
    "Σ": r"\sum",
    "Δ": r"\Delta ",
    "∂": r"\partial",
    "∇": r"\nabla ",
    "·": r"\cdot ",
    "↦": r"\mapsto ",
    "≠": r"\ne ",
    "…": r"\dots",
    "κ": r"\kappa ",
    "σ": r"\sigma ",  # noqa: RUF001
    "ε": r"\varepsilon",
    "∛": r"\sqrt[3]",
}


def _formula(found):
    """A formula as TeX: a docstring has it in the signs that a terminal shows."""
    text = re.sub(r"_([A-Za-z]{2,})", r"_{\1}", found[1])
    text = re.sub(r"√\((.*)\)", r"\\sqrt{\1}", text)
    text = re.sub(r"\b(samples)\b", r"\\text{\1}", text)
    text = re.sub("|".join(_TEX), lambda sign: _TEX[sign[0]], text)
    return f":math:`{text.strip()}`"


def _escape(app, what, name, obj, options, lines):
    """A docstring's stars and bars are products and norms, and no markup, but in code; its formulas are set.

    How a module works stands in the page "How it is built".
    """
    if what == "module":
        text = "\n".join(lines).partition("How it works")[0]
        text = re.sub(r"\s\(`tapelab\.[\w.]+`\)", "", text)
        # What is indented there is code.
        lines[:] = re.sub(r"(?m)(^(?!::)\S.*\n\n)(?=    )", r"\1::\n\n", text).split("\n")
    code = None  # how far the line is indented that announces a block of code
    for number, line in enumerate(lines):
        indented = len(line) - len(line.lstrip())
        if line and code is not None and indented <= code:
            code = None
        if code is None:
            escaped = re.sub(
                r"(`[^`]*`|\\.|(?<=:returns: )\*[^*]+\*(?= --))|([*|])", lambda found: found[1] or f"\\{found[2]}", line
            )
            lines[number] = re.sub(r":math:`([^`]*)`", _formula, escaped)
            code = indented if line.endswith("::") else None


def _say_where_it_stands(app, page, template, context, doctree):
    """Below each page: where its text can be changed, and where to say that it is wrong."""
    if doctree is None:
        return
    home, _, _ = SETTINGS["repository"].partition("/blob/")
    source = f"{page}.py" if page.startswith("notebooks/") else f"site/{page.partition('/')[0]}.md"
    generated = page.startswith(("api/", "audit/"))
    edit = (
        ""
        if generated
        else f'<a href="{SETTINGS["repository"].replace("/blob/", "/edit/")}/{source}">Edit this page</a> · '
    )
    title = quote(f"{page}: ")
    report = f'<a href="{home}/issues/new?title={title}">Report what is wrong on it</a>'
    place = f'<a href="{home}">The repository</a>'
    context["body"] += f'<p class="about-the-page">{edit}{report} · {place} · tapelab {release}</p>'


def _leave_out_of_search(app, doctree):
    """What is folded in a notebook is not the lesson: whoever searches for "None" wants no check of set-up, and who
    searches for a number no figure's.
    """
    for cell in doctree.findall(lambda node: "tag_hide-input" in getattr(node, "attributes", {}).get("classes", ())):
        cell["classes"].append("no-search")
    for table in doctree.findall(nodes.raw):
        if table.astext().startswith("<details><summary>The numbers of this figure"):
            table["classes"].append("no-search")


def _navigate_by_titles(app, page, template, context, doctree):
    """The sidebar names pages, not their sections, which Sphinx copies for each page of all pages, and drops then.

    They are taken away here, once; a page that others stand below keeps what leads to them.
    """
    env = app.env
    if not hasattr(env, "titles_alone"):
        env.titles_alone = {
            name: contents if any(contents.findall(addnodes.toctree)) else _title_of(contents)
            for name, contents in env.tocs.items()
        }

    def navigate(toctree=context["toctree"], **options):
        whole, env.tocs = env.tocs, env.titles_alone
        try:
            return toctree(**options)
        finally:
            env.tocs = whole

    context["toctree"] = navigate


def _title_of(contents):
    alone = contents.deepcopy()
    for entry in alone.children:
        del entry[1:]
    return alone


def _fold_the_sidebar(app, page, template, context, doctree):
    """Each part of the sidebar is a fold; the present page's is open, and elsewhere the first."""
    tree = context.get("furo_navigation_tree", "")
    caption = r'<p class="caption" role="heading"><span class="caption-text">(.*?)</span></p>'
    start, *parts = re.split(caption, tree)
    titles, lists = parts[::2], parts[1::2]
    present = next((number for number, pages in enumerate(lists) if "current" in pages), 0)
    folds = (
        f"<details{' open' if number == present else ''}><summary>{title}</summary>{pages}</details>"
        for number, (title, pages) in enumerate(zip(titles, lists, strict=True))
    )
    context["furo_navigation_tree"] = start + "".join(folds)


def setup(app):
    app.connect("autodoc-process-docstring", _escape, priority=900)  # after napoleon
    app.connect("doctree-read", _leave_out_of_search)
    app.connect("html-page-context", _say_where_it_stands)
    app.connect("html-page-context", _navigate_by_titles, priority=400)  # before the theme
    app.connect("html-page-context", _fold_the_sidebar, priority=900)  # after the theme
