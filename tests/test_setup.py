"""Set-up: the lock, environment.yml, and what make does when it is called in unusual ways."""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PYPROJECT["project"]["optional-dependencies"]
LOCK = (ROOT / "requirements.txt").read_text()


@pytest.mark.dear
def test_the_lock_is_what_pyproject_compiles_to():
    done = subprocess.run(["bash", "ci/lock.sh", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_pin_has_a_hash_and_no_address():
    blocks = re.split(r"^(?=[\w.-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) > 100
    assert all("--hash=sha256:" in block for block in blocks)
    assert "://" not in LOCK


def test_a_plain_install_needs_only_what_colab_has():
    names = {Requirement(text).name for text in PYPROJECT["project"]["dependencies"]}
    # platformdirs is what jupyter-core, and so every Jupyter, depends on; the last four come with the first six.
    assert names == {
        *("tensorflow", "keras", "numpy", "matplotlib", "scikit-learn", "ipywidgets", "platformdirs"),
        *("ipython", "ml-dtypes", "pillow", "scipy"),
    }


def test_each_keras_that_is_promised_runs_the_readme_s_programs():
    """And the lowest all notebooks; the newest is in the lock."""
    (keras,) = (Requirement(text) for text in PYPROJECT["project"]["dependencies"] if text.startswith("keras"))
    tried = re.search(r"versions=\(([\d. ]+)\)", (ROOT / "ci" / "readme.sh").read_text("utf-8"))[1].split()
    assert [f"3.{minor}" for minor in range(30) if keras.specifier.contains(f"3.{minor}.0")] == tried
    assert f"keras=={tried[0]}.*" in (ROOT / "ci" / "oldest.txt").read_text("utf-8")
    assert f"\nkeras=={tried[-1]}." in (ROOT / "requirements.txt").read_text("utf-8")


DISTRIBUTED_AS = {"IPython": "ipython", "PIL": "pillow", "sklearn": "scikit-learn"}


def imported(paths):
    """The distributions of which some of these modules import something, anywhere in them."""
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    modules = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names = {module.partition(".")[0] for module in modules} - sys.stdlib_module_names - {"tapelab"}
    return {canonicalize_name(DISTRIBUTED_AS.get(name, name)) for name in names}


def test_what_is_imported_is_declared():
    groups = {"plain": PYPROJECT["project"]["dependencies"], **EXTRAS}
    declared = {group: {Requirement(text).name for text in texts} for group, texts in groups.items()}
    modules = set((ROOT / "src" / "tapelab").rglob("*.py"))
    kept = {path for path in modules if "collection" in path.parts}
    needed = imported(kept)
    assert "click" in needed
    assert needed - set().union(*(declared[group] for group in ("plain", "lab", "dask", "site"))) == set()
    # tqdm's bar is shown where tqdm is.
    assert imported(modules - kept) - declared["plain"] == {"tqdm"}


def test_conda_takes_python_and_pip_and_leaves_the_rest_to_the_lock():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    python, pip, rest = environment["dependencies"]
    assert python == f"python {PYPROJECT['project']['requires-python']}"
    assert pip == "pip"
    assert rest == {"pip": ["--require-hashes", "-r requirements.txt"]}


def copy_of_build_files(folder):
    folder.mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "requirements.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "ci", folder / "ci", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def make(*arguments, cwd):
    # Under `make test` the outer make's flags are in the environment; this make is to know nothing of them.
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=outside, capture_output=True, text=True, check=False)


def fake_python(path, version):
    """An executable that answers the set-up's question for the version, and does nothing else."""
    path.write_text(f"#!/bin/sh\necho {version}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("version", ["3.10", "3.14", "2.7"])
def test_another_python_is_one_clear_line(tmp_path, version):
    copy = copy_of_build_files(tmp_path / "copy")
    done = make("run", f"PYTHON={fake_python(tmp_path / 'python', version)}", cwd=copy)
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if not line.startswith("make")]
    assert len(said) == 1
    assert "needs Python 3.11, 3.12 or 3.13" in said[0]
    assert f"is {version}" in said[0]
    assert not (copy / ".venv").exists()


def test_a_missing_python_is_one_clear_line(tmp_path):
    done = make("run", "PYTHON=no-such-python", cwd=copy_of_build_files(tmp_path / "copy"))
    assert done.returncode != 0
    assert "there is no 'no-such-python'" in done.stderr


def test_a_changed_lock_and_a_moved_checkout_are_set_up_again(tmp_path):
    copy = copy_of_build_files(tmp_path / "copy")
    (copy / ".venv").mkdir()
    (copy / ".venv" / "state").write_text(f"{copy.resolve()}|cpu")
    assert "setup.sh" not in make("--dry-run", "run", cwd=copy).stdout
    later = (copy / ".venv" / "state").stat().st_mtime + 60  # a file system's times may be too coarse for a touch
    os.utime(copy / "requirements.txt", (later, later))
    assert "setup.sh" in make("--dry-run", "run", cwd=copy).stdout
    (copy / ".venv" / "state").write_text("/somewhere/else|cpu")
    assert "setup.sh" in make("--dry-run", "run", cwd=copy).stdout


def test_make_works_from_elsewhere_and_with_spaces_in_the_path(tmp_path):
    copy = copy_of_build_files(tmp_path / "a folder with spaces")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (copy / "build").mkdir()
    done = make("-f", copy / "Makefile", "clean", cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert not (copy / "build").exists()
    done = make("-f", copy / "Makefile", "run", f"PYTHON={fake_python(tmp_path / 'python', '3.10')}", cwd=elsewhere)
    assert "needs Python 3.11" in done.stderr


def test_the_workflow_only_calls_the_pipelines_and_pins_its_actions():
    workflows = [yaml.safe_load(path.read_text()) for path in (ROOT / ".github" / "workflows").iterdir()]
    steps = [step for workflow in workflows for job in workflow["jobs"].values() for step in job["steps"]]
    commands = {step["run"] for step in steps if "run" in step}
    assert all(re.match(r"bash ci/\w+\.sh|make \w+", command) and "\n" not in command for command in commands)
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", action) for action in actions)


@pytest.mark.thorough
def test_the_gpu_pipeline_stops_where_there_is_no_gpu():
    from tapelab.runtime import tf

    done = subprocess.run([sys.executable, "ci/require_gpu.py"], cwd=ROOT, capture_output=True, text=True, check=False)
    if tf.config.list_physical_devices("GPU"):
        assert done.returncode == 0
    else:
        assert done.returncode == 1
        assert "TensorFlow sees no GPU here: CPU" in done.stderr
