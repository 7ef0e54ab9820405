"""What several test files need: small collections, batches of them, and a look at what a batch leaves behind.

Every pytest reads this file, also one in an environment without Jupyter: fixtures import what they need.
"""

import collections
import gc
import io
import json
import linecache
import math
import multiprocessing.forkserver
import os
import runpy
import sys
import time
import tomllib
import types
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

# A kernel starts ten times as fast from a fork server without TensorFlow. `wave`, which nothing else imports, shows
# whether it was forked.
LIGHT = ("numpy", "wave", "ipykernel.kernelapp")


# What runs a program in a forked process: its output goes to a file from the first line to the last.
FORKED = """
import os, runpy
os.chdir({folder!r})
log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
out = os.open("out.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
os.dup2(out, 1)
os.dup2(log, 2)
runpy.run_path({name!r}, run_name="__main__")
"""


PROGRAMS = Path(__file__).with_name("programs")


def pytest_addoption(parser):
    parser.addoption("--quick", action="store_true", help="leave out what is marked thorough")
    parser.addoption("--quicker", action="store_true", help="and what is marked dear, as `make test` does")


def pytest_configure(config):
    config.addinivalue_line("markers", "thorough(keep=0, dear=0): only so many cases of it with --quick or --quicker")
    config.addinivalue_line("markers", "dear(keep=0): with --quicker, only so many cases of it are run")
    config.addinivalue_line("markers", "programs(*files): the files of tests/programs from which `program` comes")
    gc.disable()  # to collect the tests makes millions of objects that stay


def pytest_collection_finish():
    """What is there now stays to the end: it need not be looked through again and again for what has become garbage."""
    gc.freeze()
    gc.enable()


# Two programs that differ in none of these show the same behaviour: with --quick, the first of them is enough.
KIND = ("code", "symptom", "op", "healthy", "certain", "tried")


def pytest_generate_tests(metafunc):
    """A test that takes a `program` is asked with each table of the files of `programs/` that its mark names."""
    mark = metafunc.definition.get_closest_marker("programs")
    if not mark:
        return
    tables = [tomllib.loads((PROGRAMS / f"{file}.toml").read_text("utf-8")) for file in mark.args]
    named = {name: program for table in tables for name, program in table.items()}
    thorough, kinds, asked = metafunc.definition.get_closest_marker("thorough"), set(), []
    for name, program in named.items():
        kind = str({key: program[key] for key in KIND if key in program})
        again = kind in kinds - {"{}"} and not thorough
        asked.append(pytest.param(program, id=name, marks=pytest.mark.thorough if again else ()))
        kinds.add(kind)
    metafunc.parametrize("program", asked)


def spread(count, keep):
    """The places of so many among all, from the first to the last: whatever a test is asked with varies in them."""
    return {round(place * (count - 1) / max(keep - 1, 1)) for place in range(min(keep, count))}


def most(item, level):
    """How many cases of its function stay where what is `level` is left out: thorough or dear. None if all do."""
    mark, thorough = item.get_closest_marker(level), item.get_closest_marker("thorough")
    if mark:
        return mark.kwargs.get("keep", 0)
    return thorough.kwargs.get(level) if thorough else None


def thinned(items, level):
    """The tests that stay and those that go."""
    functions = [item.nodeid.split("[")[0] for item in items]
    cases, met, chosen, left = collections.Counter(functions), collections.Counter(), [], []
    for item, function in zip(items, functions, strict=True):
        keep = most(item, level)
        kept = keep is None or met[function] in spread(cases[function], keep)
        (chosen if kept else left).append(item)
        met[function] += 1
    return chosen, left


def pytest_collection_modifyitems(config, items):
    """With --quick, leave out the thorough tests, but for `keep` cases of each; with --quicker, the dear ones as well.

    What looks at the site comes first: at the end of a run all workers would wait for the one that builds it. Then what
    runs in fresh processes: one worker alone starts the fork server for them.
    """
    items.sort(key=lambda item: ("site" not in item.fixturenames, "fresh" not in item.fixturenames))
    quicker = config.getoption("--quicker")
    for level, asked in (("thorough", quicker or config.getoption("--quick")), ("dear", quicker)):
        if asked:
            items[:], left = thinned(items, level)
            config.hook.pytest_deselected(items=left)


@pytest.fixture(autouse=True)
def _same_seed():
    """Weights and data that a test draws do not depend on which tests ran before it in the same process."""
    if "tensorflow" in sys.modules:
        sys.modules["tensorflow"].keras.utils.set_random_seed(0)


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """A function that gives the folder of this name, which `make` fills: once for all workers of a run, which share it.

    Else each worker that gets one test of a file would build what all of them look at.
    """
    from filelock import FileLock

    place = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent

    def built(name, make):
        folder, done = place / name, place / f"{name}.done"
        with FileLock(place / f"{name}.lock"):
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return built


@pytest.fixture(scope="session")
def serve():
    """A function that ends this process's fork server if it imports something else than is wanted now."""

    def wanted(modules=None):
        if modules is None:
            from tapelab.collection import forkserver

            modules = forkserver.imports()
        server = multiprocessing.forkserver._forkserver
        if server._preload_modules != modules:
            server._stop()
            server.set_forkserver_preload(modules)

    return wanted


@pytest.fixture(scope="session")
def fresh(tmp_path_factory, serve):
    """A function that runs a program in a process that has imported TensorFlow alone, and returns what it printed.

    The process is forked from one that waits for this: TensorFlow's import takes seconds, a fork some milliseconds.
    """
    context = multiprocessing.get_context("forkserver")

    def run(code, name="program.py"):
        folder = tmp_path_factory.mktemp("fresh")
        (folder / name).write_text(code)
        (folder / "forked.py").write_text(FORKED.format(folder=str(folder), name=name))
        serve(["tensorflow"])
        process = context.Process(target=runpy.run_path, args=(str(folder / "forked.py"),))
        process.start()
        process.join(120)
        log = (folder / "log.txt").read_text()
        assert process.exitcode == 0, log[-2000:]
        return (folder / "out.txt").read_text()

    return run


@pytest.fixture(scope="session")
def cell():
    """A function that runs a program as a cell of a notebook, so that its lines are known.

    Other names can be given. It returns the cell's file, the numbers of the lines that end with "# here", and the names
    that the program bound: `answer` too, if `ask` says what `explain` is asked of its tape.
    """
    from tapelab import explain

    import keras
    import numpy as np
    import tensorflow as tf

    def run(text, ask=None, **given):
        lines = [*text.splitlines(), *([f"answer = explain(tape, {ask})"] if ask else [])]
        text = "".join(f"{line}\n" for line in lines)
        file = f"<ipython-input-program-{hash(text)}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        names = {"__name__": "__main__", "math": math, "tf": tf, "np": np, "keras": keras}
        names |= {name: getattr(explain, name) for name in ("ExplainTape", "draw", "explain", "explain_retracing")}
        names |= given
        exec(compile(text, file, "exec"), names)
        marked = [number for number, line in enumerate(lines, 1) if line.endswith("# here")]
        return types.SimpleNamespace(file=file, marked=marked, names=names, answer=names.get("answer"))

    return run


@pytest.fixture(scope="session")
def make_collection():
    """A function that writes notebooks from {name: list of code cells}, the first cell with the parameters."""
    from tapelab.collection import catalogue

    import nbformat

    def make(folder, sources):
        folder.mkdir(parents=True, exist_ok=True)
        entries = (f'[[notebook]]\nname = "{name}"\ntitle = "T"\nsummary = ""\n' for name in sources)
        (folder / "collection.toml").write_text('repository = "o/r"\nref = "main"\n[references]\n' + "\n".join(entries))
        for name, cells in sources.items():
            nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
            nb.cells[0].metadata["tags"] = ["parameters"]
            nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(nb, folder / f"{name}.ipynb")
        return catalogue.load(folder)

    return make


@pytest.fixture(scope="session")
def run_batch(serve):
    """A function that runs a batch in this process. Returns its exit status and what it printed."""
    from tapelab.collection.reports.storage import Folder
    from tapelab.collection.running import batch, pool, sweep

    from rich.console import Console

    def run(collection, output, *, given=(), sweeps=(), executor=None, workers=2, names=(), **settings):
        serve()
        written = io.StringIO()
        runs = sweep.expand(collection, collection.select(names), given, sweeps)
        console = Console(file=written, width=140)
        with executor or pool.Local(workers, fork=False) as executor:
            settings = batch.Settings(**({"timeout": 120.0} | settings))
            status = batch.Batch(collection, runs, executor, Folder(output), settings, console).run()
        return status, written.getvalue()

    return run


@pytest.fixture(scope="session")
def records():
    """A function that reads a batch's records by the run's name, and asserts that every file in the folder is whole."""
    import nbformat

    def read(folder):
        for path in folder.iterdir():
            assert path.name == ".lock" or not path.name.startswith("."), path  # it stays where a command is killed
            if path.suffix == ".ipynb":
                nbformat.validate(nbformat.read(path, as_version=4))
        assert (folder / "report.html").read_text().rstrip().endswith("</html>")
        ET.parse(folder / "junit.xml")
        return {record["name"]: record for record in json.loads((folder / "report.json").read_text())["runs"]}

    return read


@pytest.fixture(scope="session")
def kernels():
    """A function that lists the processes of runs and kernels that descend from this process."""
    import psutil

    def find():
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                words = " ".join(process.cmdline())
            except psutil.Error:
                continue
            if "forkserver import main" in words and process.parent().pid == os.getpid():
                continue  # the server itself, which waits for more
            if ("ipykernel" in words or "tapelab.collection" in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(words)
        return found

    return find


@pytest.fixture(scope="session")
def gone():
    """A function that tells whether a process has ended; a zombie has."""
    import psutil

    def told(pid):
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    return told


@pytest.fixture(scope="session")
def printed():
    """A function that returns all that a notebook's cells printed."""
    import nbformat

    def read(path):
        cells = nbformat.read(path, as_version=4).cells
        return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))

    return read


@pytest.fixture(scope="module")
def light_kernels(serve):
    """The modules that a fork server imports for kernels, without TensorFlow: also in each batch of this process."""
    from tapelab.collection import forkserver

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forkserver, "KERNELS", LIGHT)
        serve()
        yield LIGHT


@pytest.fixture
def forked_kernels(monkeypatch, serve):
    """Kernels that this process starts are forked, also if it has started others before."""
    from tapelab.collection import forkserver

    from jupyter_client.provisioning import KernelProvisionerFactory

    serve()
    factory = KernelProvisionerFactory.instance()
    monkeypatch.setattr(factory, "default_provisioner_name", forkserver.PROVISIONER)


@pytest.fixture(scope="session")
def command_line():
    """A function that returns the command `tapelab run`, with light kernels and with code that runs first."""

    def make(output, *arguments, first="pass"):
        light = f"from tapelab.collection import forkserver; forkserver.KERNELS = {LIGHT!r}"
        code = f"{light}\n{first}\nfrom tapelab.__main__ import main; main()"
        return [sys.executable, "-c", code, "run", "--notebooks", "notebooks", "--output", str(output), *arguments]

    return make


@pytest.fixture(scope="session")
def wait_for():
    """A function that waits until a condition holds, and fails if that takes very long."""

    def wait(condition, seconds=120):
        until = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.02)

    return wait
