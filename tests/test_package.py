"""What is released: a wheel with the notebooks in it, from which `tapelab lab` opens copies anywhere."""

import email
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

from tapelab.collection import catalogue
from tapelab.collection.publishing import website

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from process_texts import read_text

ROOT = Path(__file__).parents[1]
NAMES = [notebook.name for notebook in catalogue.load(ROOT / "notebooks").notebooks]
ALONE = read_text("package", "ALONE")

PLAIN = read_text("package", "PLAIN")

pytestmark = pytest.mark.dear  # all of them: the wheel takes long to build


@pytest.fixture(scope="module")
def built(once):
    """The folder with the wheel and the source distribution, built as a release is."""

    def build(place):
        place.mkdir()
        for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "NOTICE"):
            shutil.copy(ROOT / name, place)
        for name in ("src", "notebooks"):
            leave = shutil.ignore_patterns("__pycache__", "*.egg-info", ".ipynb_checkpoints")
            shutil.copytree(ROOT / name, place / name, ignore=leave)
        # The wheel is made from the source distribution, as an index's users might.
        command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", place / "dist", place]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    return once("package", build) / "dist"


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The folder that holds what the wheel installs, and nothing else."""
    place = tmp_path_factory.mktemp("installed")
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(place)
    return place


def in_package(installed, folder, *arguments):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "tapelab", *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.thorough
def test_an_index_takes_both(built):
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout
    assert len(list(built.iterdir())) == 2


@pytest.mark.thorough
def test_the_notebooks_travel_without_their_outputs(built, installed):
    found = sorted((installed / "tapelab" / "notebooks").glob("*.ipynb"))
    assert [path.stem for path in found] == NAMES
    for path in found:
        cells = [cell for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
        assert cells
        assert not any(cell["outputs"] or cell["execution_count"] for cell in cells)
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        assert {f"{NAMES[0]}.ipynb", f"{NAMES[0]}.py"} <= {Path(name).name for name in archive.getnames()}


TABLES = sorted({str(path.parent.relative_to(ROOT / "src")) for path in (ROOT / "src" / "tapelab").rglob("*.toml")})


@pytest.mark.parametrize("room", TABLES)
def test_the_tables_travel(installed, room):
    found = {path.name for path in (installed / room).glob("*.toml")}
    assert found == {path.name for path in (ROOT / "src" / room).glob("*.toml")} != set()


def test_lab_makes_copies_in_the_present_folder(installed, tmp_path):
    done = in_package(installed, tmp_path, "lab", "--no-open")
    assert done.returncode == 0, done.stderr
    assert sorted(path.stem for path in (tmp_path / "tapelab-work").glob("*.ipynb")) == NAMES
    assert not any((installed / "tapelab").glob("tapelab-work"))


def test_a_checkout_comes_before_what_the_package_has(installed, tmp_path):
    (tmp_path / "notebooks").mkdir()
    empty = 'repository = "a/b"\nref = "main"\nnotebook = []\n[references]\n'
    (tmp_path / "notebooks" / "collection.toml").write_text(empty)
    assert NAMES[0] not in in_package(installed, tmp_path, "list").stdout
    assert NAMES[0][:8] in in_package(installed, installed, "list").stdout


@pytest.mark.parametrize("command", ["site", "sync", "lab --author"])
def test_what_needs_a_checkout_says_so(installed, tmp_path, command):
    done = in_package(installed, tmp_path, *command.split())
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: 'tapelab {command}' needs a checkout: ")
    assert "git clone https://github.com/tapelab/tapelab" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_the_command_says_what_a_plain_install_lacks(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", PLAIN], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert re.fullmatch(r"The command 'tapelab' needs the package '\w+': pip install 'tapelab\[lab\]'\n", done.stderr)


@pytest.fixture(scope="module")
def metadata(installed):
    """What an index shows: the header's fields, and the description as the payload."""
    (found,) = installed.glob("*.dist-info/METADATA")
    return email.message_from_string(found.read_text("utf-8"))


def test_the_readmes_links_and_pictures_hold_on_an_index(metadata):
    text = metadata.get_payload()
    assert metadata["Description-Content-Type"] == "text/markdown"
    start = "](https://github.com/tapelab/tapelab/blob/main"
    pictures = "](https://raw.githubusercontent.com/tapelab/tapelab/main"
    assert f"[Start with notebook 00{start}/notebooks/00_start_here.ipynb)" in text
    assert (
        f"A Keras model does not learn{start}/site/gradient_is_nan_or_zero.md#when-a-keras-model-does-not-learn)"
        in text
    )
    assert f"{pictures}/site/_static/tape.svg)" in text
    assert re.findall(r"\]\((?!https://)[^)]*\)", text) == []
    # Nothing else is changed: taken back, they are the README.
    assert text.replace(f"{start}/", "](").replace(f"{pictures}/", "](").strip() == (
        (ROOT / "README.md").read_text("utf-8").strip()
    )


def test_an_index_can_say_what_it_is_and_where(metadata):
    addresses = dict(line.split(", ") for line in metadata.get_all("Project-URL"))
    real = catalogue.load(ROOT / "notebooks")
    assert addresses["Source"] == f"https://github.com/{real.repository}"
    assert addresses["Documentation"] == website.address(real)
    assert {"Issues", "Changelog"} <= addresses.keys()
    assert "GradientTape" in metadata["Keywords"].split(",")
    pythons = {version for version in range(20) if f"3.{version}" in SpecifierSet(metadata["Requires-Python"])}
    classifiers = metadata.get_all("Classifier")
    named = {
        name.rpartition(" :: ")[2] for name in classifiers if name.startswith("Programming Language :: Python :: 3.")
    }
    assert named == {f"3.{version}" for version in pythons}
    assert "Intended Audience :: Education" in classifiers


@pytest.mark.thorough
def test_the_first_answer_needs_tensorflow_and_numpy_alone(installed, tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    done = subprocess.run(
        [sys.executable, "-c", ALONE], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert "d y / d x is None: not_differentiable" in done.stdout, done.stderr[-2000:]


def test_the_version_is_the_same_wherever_it_is_written():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[1] == version
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))["version"] == version


def test_a_tag_that_is_not_the_version_is_not_released():
    done = subprocess.run(["bash", ROOT / "ci" / "release.sh", "v9.9.9"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "the tag is v9.9.9, and pyproject.toml has version" in done.stderr
