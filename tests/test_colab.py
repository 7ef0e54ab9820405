"""One notebook alone in an empty folder, where TensorFlow is installed and tapelab is not: as in Colab, but offline.

git sends the repository's address to a copy of this checkout, and pip has no index: were anything but tapelab itself
to be installed, the run would fail.
"""

import json
import os
import shutil
import site
import subprocess
import sys
from pathlib import Path

from tapelab.collection import catalogue

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
CATALOGUE = catalogue.load(ROOT / "notebooks")
NOTEBOOK = "05_recording_control"


def git(*arguments, cwd):
    identity = ["-c", "user.name=test", "-c", "user.email=test@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """The package as it is in this working tree, committed under the branch or tag that the notebooks ask for."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
    for name in ("src", "notebooks"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    git("init", "--quiet", f"--initial-branch={CATALOGUE.ref}", cwd=folder)
    git("add", "--all", cwd=folder)
    git("commit", "--quiet", "--message", "as it is", cwd=folder)
    return folder


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory):
    """An interpreter that finds every installed package but tapelab."""
    folder = tmp_path_factory.mktemp("bare") / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    for installed in Path(site.getsitepackages()[0]).iterdir():
        if "tapelab" not in installed.name:
            (packages / installed.name).symlink_to(installed)
    return folder / "bin" / "python"


def run_alone(python, folder, environment):
    shutil.copy(CATALOGUE.folder / f"{NOTEBOOK}.ipynb", folder)
    command = [str(python), "-m", "papermill", f"{NOTEBOOK}.ipynb", "out.ipynb", "--no-progress-bar"]
    outside = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    # PIP_NO_BUILD_ISOLATION=false is pip's spelling of --no-build-isolation: setuptools comes from the environment.
    offline = {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "false", "GIT_TERMINAL_PROMPT": "0"}
    return subprocess.run(
        command,
        cwd=folder,
        env=outside | offline | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def installed_versions(python):
    code = "import importlib.metadata as m, json; print(json.dumps([(d.name, d.version) for d in m.distributions()]))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    return {tuple(pair) for pair in json.loads(done.stdout)}


@pytest.mark.thorough
def test_it_installs_itself_from_the_repository_and_runs(repository, bare_python, tmp_path):
    before = installed_versions(bare_python)
    assert "tapelab" not in {name for name, _ in before}
    redirect = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": f"https://github.com/{CATALOGUE.repository}",
    }
    done = run_alone(bare_python, tmp_path, redirect)
    assert done.returncode == 0, done.stderr[-3000:]
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code")
    assert {name for name, _ in installed_versions(bare_python) - before} == {"tapelab"}
    assert before <= installed_versions(bare_python)
    assert "restart" not in nbformat.writes(executed)  # as %pip prints, where nothing has to be restarted
