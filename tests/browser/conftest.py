"""A real browser, the built site, and a real JupyterLab on fresh copies: `make test-browser`."""

import contextlib
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
PYTHON = os.environ.get("TAPELAB_PYTHON", str(ROOT / ".venv" / "bin" / "python"))
CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")  # which one, ci/test_browser.sh finds out
SECONDS = int(os.environ.get("TAPELAB_SECONDS", "600"))  # for a notebook to run, on a slow machine


THEMES = "@jupyterlab/apputils-extension:themes"


def pytest_addoption(parser):
    parser.addoption("--every", action="store_true", help="run every notebook in JupyterLab, rather than some")


@pytest.fixture(scope="session")
def browser():
    with sync_playwright() as playwright:
        options = ["--no-sandbox", "--disable-gpu"]
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=options)
        yield started
        started.close()


@pytest.fixture
def context(browser):
    """A function that opens a page; `width`, `height`, and what else a browser's context takes."""
    opened = []

    def new(width=1300, height=1000, **options):
        opened.append(browser.new_context(viewport={"width": width, "height": height}, **options))
        page = opened[-1].new_page()
        page.set_default_timeout(120_000)
        return page

    yield new
    for one in opened:
        one.close()


def _serious(page, within=None):
    """axe's serious and critical findings: rule, what is wrong, and the first places.

    Args:
        page: Playwright's.
        within: a selector, or the whole page. There has to be text in it whose contrast is looked at.
    """
    found = Axe().run(page, context={"include": [[within]]} if within else None).response
    looked_at = [one["id"] for one in found["violations"] + found["passes"]]
    assert "color-contrast" in looked_at, looked_at
    return [
        (one["id"], one["help"], [node["html"][:160] for node in one["nodes"][:3]])
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
    ]


@pytest.fixture(scope="session")
def serious():
    """The function that lists axe's serious findings in a page."""
    return _serious


class _Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        pass


@pytest.fixture(scope="session")
def site(tmp_path_factory):
    """The address of the site, built anew."""
    place = tmp_path_factory.mktemp("site") / "built"
    subprocess.run([PYTHON, "-m", "tapelab", "site", str(place)], cwd=ROOT, check=True)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Silent, directory=str(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", place
    server.shutdown()


class Lab:
    """JupyterLab in a page, and what a test asks of the notebook that is open in it."""

    PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"

    def __init__(self, page, address, token):
        self.page, self.address, self.token = page, address, token

    def open(self, name):
        self.page.goto(f"{self.address}/lab/tree/{name}.ipynb?token={self.token}&reset")
        self.page.wait_for_function(
            """() => { const panel = window.jupyterapp?.shell.currentWidget;
                return panel?.sessionContext?.isReady && panel.content.widgets.length > 1
                    && panel.sessionContext.session?.kernel?.status === 'idle'; }""",
            timeout=1000 * SECONDS,
        )

    def rest(self):
        """Wait until the kernel has had nothing to do for two seconds."""
        indicator = f"document.querySelector('{self.PANEL} .jp-Notebook-ExecutionIndicator')"
        end, quiet = time.monotonic() + SECONDS, 0
        while quiet < 4:
            assert time.monotonic() < end, "the kernel does not come to rest"
            idle = self.page.evaluate(f"{indicator}?.getAttribute('data-status')") == "idle"
            quiet = quiet + 1 if idle else 0
            time.sleep(0.5)

    def command(self, name):
        """Begin one of JupyterLab's commands, as menus and keys do; it may ask something, so nothing waits for it."""
        self.page.evaluate("name => { window.jupyterapp.commands.execute(name); }", name)

    def finish(self, name):
        """Have a command done that asks nothing."""
        self.page.evaluate(
            """name => { window.done = false;
                window.jupyterapp.commands.execute(name).finally(() => { window.done = true; }); }""",
            name,
        )
        self.page.wait_for_function("window.done", timeout=1000 * SECONDS)

    def run_all(self):
        self.finish("notebook:run-all-cells")

    def cells(self):
        """Each cell's source, whether it is hidden, and its outputs' text; the page need not have drawn it."""
        return self.page.evaluate(
            """() => window.jupyterapp.shell.currentWidget.content.widgets.map(cell => ({
                type: cell.model.type, source: cell.model.sharedModel.getSource(), hidden: cell.inputHidden,
                alt: cell.model.getMetadata('alt') ?? null, tags: cell.model.getMetadata('tags') ?? [],
                outputs: cell.model.type === 'code' ? cell.model.outputs.toJSON() : []}))"""
        )

    def place(self, wanted):
        """The number of the first cell whose source has this in it."""
        return next(number for number, cell in enumerate(self.cells()) if wanted in cell["source"])

    def select(self, number):
        self.page.evaluate(
            """number => { const notebook = window.jupyterapp.shell.currentWidget.content;
                notebook.activeCellIndex = number; notebook.mode = 'command'; notebook.activate();
                return notebook.scrollToItem(number); }""",
            number,
        )

    def write(self, number, source):
        self.page.evaluate(
            """([number, source]) => window.jupyterapp.shell.currentWidget.content.widgets[number]
                .model.sharedModel.setSource(source)""",
            [number, source],
        )

    @staticmethod
    def text_of(cell):
        """What a cell's outputs say, as text or Markdown."""
        found = []
        for output in cell["outputs"]:
            data = output.get("data", {})
            found.append(output.get("text") or data.get("text/markdown") or data.get("text/plain", ""))
        return "\n".join("".join(text) for text in found)

    def darken(self):
        """Change to JupyterLab's dark theme; the next page has the light one again."""
        self.page.evaluate(
            "() => { window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'}); }"
        )
        self.page.wait_for_selector("body[data-jp-theme-light=false]")
        # While a theme loads, JupyterLab's splash lies over the page, and axe calls no colour behind it seen.
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def serious_in_outputs(self):
        """axe's serious findings in what the cells put out; the rest of the page is JupyterLab's own."""
        # axe takes for invisible what is scrolled away, and all that is in a body without a height, as JupyterLab's is.
        self.page.add_style_tag(content="body { height: 100vh }")
        box = f"document.querySelector('{self.PANEL} .jp-WindowedPanel-outer')"
        height = 1000 + self.page.evaluate(f"{box}.querySelector('.jp-WindowedPanel-viewport').offsetHeight")
        self.page.set_viewport_size({"width": self.page.viewport_size["width"], "height": height})
        self.page.wait_for_function(f"{box}.clientHeight > {height} - 500")
        self.page.evaluate(f"{box}.scrollTop = 0")
        # The colours of tracebacks and of standard error are JupyterLab's, too.
        return _serious(self.page, f"{self.PANEL} .jp-OutputArea-output:not([data-mime-type$=stderr])")

    def run(self, number):
        """Run a cell, and return the text of its outputs."""
        self.select(number)
        self.finish("notebook:run-cell")
        return self.text_of(self.cells()[number])


@contextlib.contextmanager
def _jupyterlab(home, *start):
    """A JupyterLab: its address, its token, and where progress is kept."""
    kept = home / "progress.json"
    own = {name: str(home / name) for name in ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")}
    environment = {**os.environ, **own, "JUPYTER_RUNTIME_DIR": str(home / "runtime"), "TAPELAB_PROGRESS": str(kept)}
    options = ["--no-browser", "--ServerApp.port=0", "--LabApp.expose_app_in_browser=True"]
    options += ["--allow-root"] if os.getuid() == 0 else []
    log = home / "log.txt"
    with log.open("w") as file:
        command = [PYTHON, "-m", *start, *options]
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=file, stderr=file)
    try:
        for _ in range(240):
            if found := re.search(r"(http://(?:127\.0\.0\.1|localhost):\d+)/\S*\?token=(\w+)", log.read_text()):
                break
            assert process.poll() is None, log.read_text()
            time.sleep(0.5)
        else:
            raise AssertionError(log.read_text())
        yield found[1], found[2], kept
    finally:
        process.terminate()
        process.wait(60)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """A JupyterLab on fresh copies, as `tapelab lab` starts it: its address, its token, and where progress is kept."""
    home = tmp_path_factory.mktemp("lab")
    with _jupyterlab(home, "tapelab", "lab", str(home / "copies")) as started:
        yield started


@pytest.fixture
def plain(tmp_path, context):
    """A page with a JupyterLab that somebody starts by hand, in a copy of the notebooks beside jupytext's settings."""
    shutil.copytree(ROOT / "notebooks", tmp_path / "notebooks")
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    with _jupyterlab(tmp_path, "jupyter", "lab", str(tmp_path / "notebooks")) as (address, token, _):
        yield Lab(context(), address, token)


@pytest.fixture
def lab(server, context):
    """A function that opens a page with JupyterLab; takes what `context` takes, and the settings of plugins."""
    address, token, _ = server
    changed = {THEMES}

    def ask(method, path, content=None):
        body = None if content is None else json.dumps(content).encode()
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        asked = urllib.request.Request(f"{address}/{path}", body, headers, method=method)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def put(plugin, values):
        ask("PUT", f"lab/api/settings/{plugin}", {"raw": json.dumps(values)})

    def new(settings=None, **options):
        for plugin, values in (settings or {}).items():
            changed.add(plugin)
            put(plugin, values)
        return Lab(context(**options), address, token)

    yield new
    for plugin in changed:
        put(plugin, {})
    for session in ask("GET", "api/sessions"):  # a kernel keeps some 700 MB
        ask("DELETE", f"api/sessions/{session['id']}")
