"""Batch execution on small notebooks: verdicts, parameters, failures, time limits, interruption."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tapelab.collection import catalogue, execute

import nbformat
import psutil
import pytest

HEAD = 'repository = "o/r"\nref = "main"\n[references]\n'


def make_collection(folder, sources):
    """A collection with one notebook for each (name, list of code cells); the first cell holds the parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        f'[[notebook]]\nname = "{name}"\ntitle = "{name}"\nsummary = ""\nminutes = 1\n' for name, _ in sources.items()
    ]
    (folder / "collection.toml").write_text(HEAD + "\n".join(entries))
    for name, cells in sources.items():
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        nb.cells[0].metadata["tags"] = ["parameters"]
        nb.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        nbformat.write(nb, folder / f"{name}.ipynb")
    return catalogue.load(folder)


def run(collection, output, *, given=(), workers=2, timeout=60):
    chosen = execute.validate_parameters(collection, collection.notebooks, given)
    return execute.run_and_report(
        collection, collection.notebooks, chosen, output=output, workers=workers, timeout=timeout
    )


def streams(path):
    cells = nbformat.read(path, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


def test_a_good_and_a_bad_notebook(tmp_path, capsys):
    collection = make_collection(
        tmp_path / "a folder" / "notebooks",
        {
            "00_bad": ["seed = 0", "print('before')", "1 / 0", "print('never')"],
            "01_good": ["dataset = 'digits'", "print('fine', dataset)"],
        },
    )
    output = tmp_path / "a folder" / "executed"
    assert run(collection, output, workers=1) == 1
    shown = capsys.readouterr().out
    assert "1 of 2 notebooks ran" in shown
    assert "data set: digits" in shown
    assert "code cell 3: ZeroDivisionError: division by zero" in " ".join(shown.replace("│", " ").split())
    assert streams(output / "01_good.ipynb") == "fine digits\n"
    assert "before" in streams(output / "00_bad.ipynb")
    assert sorted(path.name for path in output.iterdir()) == ["00_bad.ipynb", "00_bad.log", "01_good.ipynb"]


def test_all_good_is_status_zero(tmp_path):
    collection = make_collection(tmp_path / "n", {"00_one": ["seed = 0"], "01_two": ["seed = 0"]})
    assert run(collection, tmp_path / "out") == 0


def test_parameters_reach_the_notebooks_that_have_them(tmp_path):
    collection = make_collection(
        tmp_path / "n",
        {
            "00_one": ["seed = 0\nrate = 0.1\nname = 'x'\nfast = True", "print(seed, rate, name, fast)"],
            "01_two": ["k = 1"],
        },
    )
    given = [("seed", "7"), ("rate", "1"), ("name", "a'; import os #"), ("fast", "false")]
    assert run(collection, tmp_path / "out", given=given) == 0
    assert streams(tmp_path / "out" / "00_one.ipynb") == "7 1.0 a'; import os # False\n"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("sed", "1"), "no chosen notebook has a parameter 'sed'; known: fast, seed"),
        (("seed", "one"), "parameter seed is 'one'; expected a value of type int, like its default, 0"),
        (("fast", "maybe"), "expected a value of type bool"),
        (("seed=0; import os", "1"), "no chosen notebook has a parameter"),
    ],
)
def test_wrong_parameters_are_refused_before_anything_runs(tmp_path, given, message):
    collection = make_collection(tmp_path / "n", {"00_one": ["seed = 0\nfast = True"]})
    with pytest.raises(execute.ParameterError, match=message):
        run(collection, tmp_path / "out", given=[given])
    assert not (tmp_path / "out").exists()


def test_a_notebook_over_its_time_is_ended_and_named(tmp_path, capsys):
    collection = make_collection(tmp_path / "n", {"00_slow": ["seed = 0", "import time; time.sleep(600)"]})
    assert run(collection, tmp_path / "out", timeout=5) == 1
    assert "ended after 5 s" in " ".join(capsys.readouterr().out.split())
    assert nbformat.read(tmp_path / "out" / "00_slow.ipynb", as_version=4).cells[0].execution_count == 1


def test_a_kernel_that_dies_is_a_failure(tmp_path, capsys):
    collection = make_collection(
        tmp_path / "n", {"00_dies": ["seed = 0", "import os; os.kill(os.getpid(), 9)"], "01_good": ["seed = 0"]}
    )
    assert run(collection, tmp_path / "out") == 1
    assert "Kernel died" in capsys.readouterr().out
    assert (tmp_path / "out" / "01_good.ipynb").exists()


def test_an_output_that_cannot_be_written_is_one_clear_line(tmp_path, capsys):
    collection = make_collection(tmp_path / "n", {"00_one": ["seed = 0"]})
    (tmp_path / "file").touch()
    assert run(collection, tmp_path / "file" / "out") == 1
    assert "cannot write to" in capsys.readouterr().out


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_every_kernel_and_keeps_what_was_finished(tmp_path, sent):
    names = {"00_quick": ["seed = 0"], "01_long": ["seed = 0", "import os, time; print(os.getpid()); time.sleep(600)"]}
    make_collection(tmp_path / "n", names)
    command = [sys.executable, "-m", "tapelab", "run", "--notebooks", "n", "--output", "out", "--workers", "2"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    partial = tmp_path / "out" / ".01_long.partial.ipynb"
    deadline = time.monotonic() + 60
    while not ((tmp_path / "out" / "00_quick.ipynb").exists() and started(partial)):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2  # papermill and its kernel
    os.kill(process.pid, sent)
    shown, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "1 of 2 notebooks ran" in shown
    assert not [child for child in family if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def started(partial):
    """Whether papermill has stored the first cell's execution, so that the second is under way."""
    try:
        return nbformat.read(partial, as_version=4).cells[0].execution_count == 1
    except (FileNotFoundError, ValueError):
        return False


def test_the_command_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['rich'] = None; import tapelab.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'tapelab[lab]'" in done.stderr


def test_list_shows_the_collection():
    command = [sys.executable, "-m", "tapelab", "list"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert "06_custom_gradients" in done.stdout
