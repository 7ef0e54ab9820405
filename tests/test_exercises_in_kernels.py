"""Whether a kernel knows a person from a batch run: in real kernels, which a Python without Jupyter does not have."""

import os
import subprocess
import sys

import pytest


@pytest.mark.thorough
@pytest.mark.parametrize("tool", ["papermill", "front-end"])
def test_a_kernel_knows_papermill_from_a_front_end(tool, tmp_path):
    """In a real kernel: papermill runs a notebook that solves an exercise; a front-end's client does the same."""
    code = (
        "from tapelab.exercises import progress\n"
        "progress.record('sheet.one')\n"
        "from tapelab.process import session\n"
        "print('attended', session.attended())"
    )
    program = f"""
import sys
if {tool!r} == "papermill":
    import nbformat, papermill
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell({code!r})])
    nb.metadata["kernelspec"] = {{"name": "python3", "display_name": "Python 3", "language": "python"}}
    nbformat.write(nb, "one.ipynb")
    papermill.execute_notebook("one.ipynb", "two.ipynb", progress_bar=False)
    print(nbformat.read("two.ipynb", 4).cells[0].outputs[-1].text)
else:
    from jupyter_client.manager import start_new_kernel
    manager, client = start_new_kernel(kernel_name="python3")
    client.execute_interactive({code!r}, allow_stdin=True, timeout=120)
    manager.shutdown_kernel(now=True)
"""
    environment = {**os.environ, "TAPELAB_PROGRESS": str(tmp_path / "progress.json")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert f"attended {tool == 'front-end'}" in done.stdout, done.stderr
    assert (tmp_path / "progress.json").exists() == (tool == "front-end")
