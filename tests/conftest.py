"""What several test files need: small collections, batches of them, and a look at what a batch leaves behind.

Every pytest reads this file, also one in an environment without Jupyter: fixtures import what they need.
"""

import io
import json
import xml.etree.ElementTree as ET

import pytest


@pytest.fixture(scope="session")
def make_collection():
    """A function that writes notebooks from {name: list of code cells}, the first cell with the parameters."""
    from tapelab.collection import catalogue

    import nbformat

    def make(folder, sources):
        folder.mkdir(parents=True, exist_ok=True)
        entries = (f'[[notebook]]\nname = "{name}"\ntitle = "T"\nsummary = ""\nminutes = 1\n' for name in sources)
        (folder / "collection.toml").write_text('repository = "o/r"\nref = "main"\n[references]\n' + "\n".join(entries))
        for name, cells in sources.items():
            nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
            nb.cells[0].metadata["tags"] = ["parameters"]
            nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
            nbformat.write(nb, folder / f"{name}.ipynb")
        return catalogue.load(folder)

    return make


@pytest.fixture(scope="session")
def run_batch():
    """A function that runs a batch in this process. Returns its exit status and what it printed."""
    from tapelab.collection import batch, plan, pool
    from tapelab.collection.storage import open_storage

    from rich.console import Console

    def run(collection, output, *, given=(), sweeps=(), executor=None, workers=2, names=(), **settings):
        written = io.StringIO()
        runs = plan.make_plan(collection, collection.select(names), given, sweeps)
        console = Console(file=written, width=140)
        with executor or pool.Local(workers, fork=False) as executor:
            settings = batch.Settings(**({"timeout": 120.0} | settings))
            status = batch.Batch(collection, runs, executor, open_storage(output), settings, console).run()
        return status, written.getvalue()

    return run


@pytest.fixture(scope="session")
def records():
    """A function that reads a batch's records by the run's name, and asserts that every file in the folder is whole."""
    import nbformat

    def read(folder):
        for path in folder.iterdir():
            assert not path.name.startswith("."), path
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
            if ("ipykernel" in words or "tapelab" in words) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(words)
        return found

    return find


@pytest.fixture(scope="session")
def printed():
    """A function that returns all that a notebook's cells printed."""
    import nbformat

    def read(path):
        cells = nbformat.read(path, as_version=4).cells
        return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))

    return read
