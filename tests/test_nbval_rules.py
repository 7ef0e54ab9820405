"""The plugin for nbval: kernels are forked, or start in the plain way where that cannot be, and share the cores."""

import os
import subprocess
import sys
from pathlib import Path

from tapelab.collection.running import variables

import nbformat
import pytest

CI = Path(__file__).parents[1] / "ci"
# `wave`, which nothing else imports, shows whether the kernel was forked.
SOURCE = "import os, sys; print('wave' in sys.modules, os.environ['OMP_NUM_THREADS'])"
SETTINGS = "from tapelab.collection import forkserver\nforkserver.KERNELS = {!r}\n"
LIGHT, THREAD = ("wave", "ipykernel.kernelapp"), ("a_thread",)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize(
    ("modules", "workers", "options"),
    [(LIGHT, 1, []), (LIGHT, 2, ["-n", "2", "--dist", "loadscope"]), (THREAD, 1, ["-n", "1"])],
    ids=["forked", "forked by a worker of xdist", "plain"],
)
def test_kernels_are_forked_where_that_can_be(modules, workers, options, tmp_path):
    (tmp_path / "settings.py").write_text(SETTINGS.format(modules))
    (tmp_path / "a_thread.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=[600]).start()"
    )
    stored = nbformat.v4.new_output("stream", text=f"{modules == LIGHT} {max(1, variables.cores() // workers)}\n")
    cells = [nbformat.v4.new_code_cell(SOURCE, outputs=[stored], execution_count=1) for _ in range(2)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), tmp_path / "a.ipynb")
    path = os.pathsep.join([str(CI), str(tmp_path), os.environ.get("PYTHONPATH", "")])
    plugins = ["-p", "settings", "-p", "nbval_rules", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plugins, "--nbval", "--nbval-current-env", *options, "a.ipynb"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr
