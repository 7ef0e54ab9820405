"""The notebooks can fail: TensorFlow is broken on purpose, one meaning at a time, in the kernel that runs the notebook,
and the notebook that teaches that meaning must stop at one of its own assertions.

That the same notebooks run to the end with TensorFlow as it is, nbval shows in the other half of `make test`.
"""

import subprocess
import textwrap
import tomllib
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
BREAKAGES = tomllib.loads(Path(__file__).with_name("breakages.toml").read_text("utf-8"))
TAUGHT_IN = [(name, notebook) for name, breakage in BREAKAGES.items() for notebook in breakage["taught_in"]]


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize(("breakage", "name"), TAUGHT_IN, ids=lambda value: value.replace(" ", "-"))
def test_the_notebook_that_teaches_it_notices(breakage, name, forked_kernels):
    nb = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    setup = next(i for i, cell in enumerate(nb.cells) if "setup" in cell.metadata.get("tags", []))
    # Within a function: the names that a breakage uses are then out of the notebook's reach.
    code = textwrap.indent(BREAKAGES[breakage]["code"], "    ")
    nb.cells.insert(setup + 1, nbformat.v4.new_code_cell(f"def sabotage():\n{code}\nsabotage()"))
    client = NotebookClient(nb, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(NOTEBOOKS)}})
    with pytest.raises(CellExecutionError) as failure:
        client.execute(stderr=subprocess.DEVNULL)
    assert failure.value.ename == "AssertionError", f"stopped by {failure.value.ename}: {failure.value.evalue}"


def test_every_breakage_is_taught_somewhere():
    assert all(breakage["taught_in"] for breakage in BREAKAGES.values())
