"""Batches on this machine: verdicts, every kind of fault caused for real, interruption, resumption, storage."""

import json
import os
import shlex
import subprocess
import threading

from tapelab.collection.cli import main
from tapelab.collection.reports.records import Problem
from tapelab.collection.running import pool, single_run

import nbformat
import pytest
from click.testing import CliRunner

pytestmark = pytest.mark.usefixtures("light_kernels")

# Whether the kernel was forked, and papermill.
ABOUT = f"""import psutil, sys
def words(process):
    try:
        return process.cmdline()
    except psutil.Error:  # it has ended meanwhile
        return []
family = psutil.Process({os.getpid()}).children(recursive=True)
print('wave' in sys.modules, not any('spawn_main' in word for process in family for word in words(process)))"""
# Each fault, and one notebook before and one after that have none.
FAULTS = {
    "00_good": ["seed = 0", "print('fine', seed)", ABOUT],
    "02_raises": ["seed = 0", "print('before')", "raise ValueError('no <b>luck</b>\\nsecond line')", "print('never')"],
    "03_killed": ["seed = 0", "print('before')", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "04_memory": [
        "seed = 0",
        "import psutil, resource\n"
        "resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + 2**29,) * 2)",
        "block = bytearray(2**33)",
    ],
    "05_leaves": ["seed = 0", "import os; os._exit(3)"],
    "06_good": ["seed = 0", "import time; print('fine', end=' ', flush=True); time.sleep(0.5); print(seed)"],
}
EXPECTED = {
    "00_good": None,
    "02_raises": ("cell", 3, "ValueError: no <b>luck</b>"),
    "03_killed": ("kernel died", 3, "the kernel was ended by SIGKILL; it may have run out of memory"),
    "04_memory": ("cell", 3, "MemoryError:"),
    "05_leaves": ("kernel died", 2, "the kernel was ended with exit status 3"),
    "06_good": None,
}


@pytest.fixture(scope="module", params=["forked", "plain"])
def faulty(tmp_path_factory, make_collection, run_batch, light_kernels, request):
    folder = tmp_path_factory.mktemp("faults")
    collection = make_collection(folder / "notebooks", FAULTS)
    executor = pool.Local(2, fork=request.param == "forked")
    status, shown = run_batch(collection, folder / "out", executor=executor)
    return folder, status, shown


@pytest.mark.thorough(keep=1)
def test_papermill_and_kernels_are_forked_or_neither(faulty, request, printed):
    folder, _, _ = faulty
    expected = "True True\n" if request.node.callspec.params["faulty"] == "forked" else "False False\n"
    assert printed(folder / "out" / "00_good.ipynb") == "fine 0\n" + expected


@pytest.mark.thorough(keep=1)
def test_each_fault_is_named_with_its_place_and_the_others_finish(faulty, records, printed, kernels):
    folder, status, shown = faulty
    assert status == 1
    assert "2 of 6 runs succeeded" in shown
    found = records(folder / "out")
    for name, expected in EXPECTED.items():
        problem = found[name]["problem"]
        assert (problem and (problem["kind"], problem["cell"], problem["message"])) == expected, name
        if expected:
            assert problem["source"] == FAULTS[name][expected[1] - 1]
            assert f"FAILED {name}" in shown
            assert f"cell {expected[1]}: {expected[2]}" in shown
        else:
            assert found[name]["verdict"] == "ran"
            # One output, however it arrived.
            (output,) = nbformat.read(folder / "out" / f"{name}.ipynb", as_version=4).cells[1].outputs
            assert output.text == "fine 0\n"
    for name in ("02_raises", "03_killed"):
        assert printed(folder / "out" / f"{name}.ipynb") == "before\n", name
        assert (folder / "out" / f"{name}.log").exists()
    assert not (folder / "out" / "00_good.log").exists()
    assert kernels() == []


@pytest.mark.thorough(keep=1)
def test_a_failed_notebook_says_itself_which_cells_ran(faulty):
    folder, _, _ = faulty
    for name, last in (("02_raises", "pending"), ("03_killed", None)):
        nb = nbformat.read(folder / "out" / f"{name}.ipynb", as_version=4)
        statuses = [cell.metadata.papermill.status for cell in nb.cells if cell.cell_type == "code"]
        assert statuses == ["completed", "completed", "failed", *([last] if last else [])]
        assert nb.metadata.papermill.exception is True


@pytest.mark.dear
def test_the_time_limit_ends_a_run(tmp_path, make_collection, run_batch, records, printed, monkeypatch, wait_for):
    class Timer(threading.Thread):
        """Expires when the cell has begun."""

        def __init__(self, seconds, expire):
            super().__init__(daemon=True)
            self.run = lambda: (wait_for((tmp_path / "notebooks" / "begun").exists), expire())

        def cancel(self):
            self.join()

    monkeypatch.setattr(single_run.threading, "Timer", Timer)
    sources = ["seed = 0", "print('before')", "open('begun', 'w')\nwhile True: pass", "print('never')"]
    collection = make_collection(tmp_path / "notebooks", {"00_forever": sources})
    status, _ = run_batch(collection, tmp_path / "out", timeout=25.0)
    assert status == 1
    problem = records(tmp_path / "out")["00_forever"]["problem"]
    assert (problem["kind"], problem["cell"]) == ("time limit", 3)
    assert problem["message"] == "ended after 25 s (the limit set with --timeout)"
    assert printed(tmp_path / "out" / "00_forever.ipynb") == "before\n"
    nb = nbformat.read(tmp_path / "out" / "00_forever.ipynb", as_version=4)
    statuses = [cell.metadata.papermill.status for cell in nb.cells]
    assert statuses == ["completed", "completed", "failed", "pending"]


@pytest.mark.thorough(keep=1)
def test_resumption_repeats_what_failed_and_nothing_else(faulty, make_collection, run_batch, records):
    folder, _, _ = faulty
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*good.ipynb")}
    repaired = {name: ["seed = 0", "print('repaired')"] for name in EXPECTED if EXPECTED[name]}
    collection = make_collection(folder / "notebooks", FAULTS | repaired)
    status, shown = run_batch(collection, folder / "out", executor=pool.Local(2), resume=True)
    assert status == 0, shown
    assert "2 of 6 runs are unchanged" in shown
    assert "6 of 6 runs succeeded" in shown
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*good.ipynb")} == before
    found = records(folder / "out")
    assert {name for name in found if found[name]["reused"]} == {"00_good", "06_good"}
    assert not list((folder / "out").glob("*.log"))


@pytest.fixture
def instant(monkeypatch):
    """Every run succeeds at once, without a process."""

    def run(job, source, **_):
        return single_run.Outcome(job.run.name, None, seconds=1.0, notebook=source.encode())

    monkeypatch.setattr(single_run, "run", run)


@pytest.fixture
def small(tmp_path, make_collection):
    return make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0\nname = 'x'", "print(seed, name)"]})


def test_what_is_resumed_depends_on_source_parameters_and_environment(tmp_path, small, run_batch, instant, monkeypatch):
    output = tmp_path / "out"

    def reused(**kwargs):
        _, shown = run_batch(small, output, resume=True, **kwargs)
        return " runs are unchanged" in shown

    assert not reused()
    assert reused()
    assert not reused(given=[("seed", "1")])
    assert reused()  # also after a batch of other runs
    monkeypatch.setattr(pool.environment, "of_kernel", lambda kernel: {"python": "4.0"})
    assert not reused()
    assert reused()
    nb = nbformat.read(small.folder / "00_one.ipynb", as_version=4)
    nb.cells[1].outputs = []
    nb.metadata["more"] = "no part of the source"
    nbformat.write(nb, small.folder / "00_one.ipynb")
    assert reused()
    nb.cells[1].source += "  # changed"
    nbformat.write(nb, small.folder / "00_one.ipynb")
    assert not reused()
    nb.cells[1].metadata["tags"] = ["raises-exception"]
    nbformat.write(nb, small.folder / "00_one.ipynb")
    assert not reused()
    assert reused()
    monkeypatch.setenv("TAPELAB_TEST_PLAIN", "some-value")
    assert not reused(executor=pool.Local(1, passed=["TAPELAB_TEST_PLAIN"]))


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("damage", ["gone", "half", "edited"])
def test_a_notebook_that_is_not_as_it_was_stored_is_executed_again(tmp_path, small, run_batch, instant, damage):
    run_batch(small, tmp_path / "out")
    executed = tmp_path / "out" / "00_one.ipynb"
    content = executed.read_bytes()
    if damage == "gone":
        executed.unlink()
    else:
        executed.write_bytes(content[: len(content) // 2] if damage == "half" else content.replace(b"seed", b"said"))
    status, shown = run_batch(small, tmp_path / "out", resume=True)
    assert status == 0
    assert "[1/1] ran 00_one" in shown
    assert executed.read_bytes() == content
    _, shown = run_batch(small, tmp_path / "out", resume=True)
    assert "1 of 1 runs are unchanged" in shown


def test_a_damaged_report_is_left_alone_and_nothing_runs(tmp_path, small):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text('{"format": 2, "runs": [{}]}')
    out = str(tmp_path / "out")
    for command in (["run", "--notebooks", str(small.folder), "--output", out], ["report", out]):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert done.stderr.startswith(f"Error: {out}/report.json is damaged (")
        assert done.stderr.endswith("Move it away, or choose another folder\n")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["report.json"]


def test_nothing_of_an_older_batch_is_shown_for_a_run_that_left_nothing(tmp_path, small, run_batch, monkeypatch):
    ended = {"notebook": b'{"cells": []}', "problem": None}

    def run(job, source, **_):
        return single_run.Outcome(
            job.run.name, ended["problem"], started="now", seconds=1.0, notebook=ended["notebook"]
        )

    monkeypatch.setattr(single_run, "run", run)
    run_batch(small, tmp_path / "out")
    assert (tmp_path / "out" / "00_one.ipynb").exists()
    ended |= {"notebook": None, "problem": Problem("kernel did not start", "no such kernel")}
    run_batch(small, tmp_path / "out")
    assert not (tmp_path / "out" / "00_one.ipynb").exists()
    # Also where it could not be removed, or lies there again.
    (tmp_path / "out" / "00_one.ipynb").write_bytes(b'{"cells": []}')
    assert CliRunner().invoke(main, ["report", str(tmp_path / "out")]).exit_code == 0
    assert "00_one.ipynb" not in (tmp_path / "out" / "report.html").read_text()


def test_a_run_that_never_began_leaves_the_older_results_alone(tmp_path, small, run_batch, instant, monkeypatch):
    run_batch(small, tmp_path / "out")
    before = (tmp_path / "out" / "00_one.ipynb").read_bytes()
    stopped = Problem("interrupted", "the batch was interrupted")
    monkeypatch.setattr(single_run, "run", lambda job, source, **_: single_run.Outcome(job.run.name, stopped))
    run_batch(small, tmp_path / "out")
    assert (tmp_path / "out" / "00_one.ipynb").read_bytes() == before
    assert "00_one.ipynb" not in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.dear
def test_what_a_notebook_says_reaches_the_console_as_one_plain_line(tmp_path, small, run_batch, monkeypatch):
    message = f"\x1b]52;c;cm0gLXJmIC8=\x07KeyError: x {'y' * 5_000_000}\x1b[2J"
    outcome = {"problem": Problem("cell", message, 2, message, message), "started": "now", "seconds": 1.0}
    monkeypatch.setattr(single_run, "run", lambda job, source, **_: single_run.Outcome(job.run.name, **outcome))
    _, shown = run_batch(small, tmp_path / "out")
    assert "cell 2: KeyError: x yyy" in shown
    assert "\x1b" not in shown
    assert len(shown) < 4000


def test_hostile_values_arrive_as_they_are_and_run_nothing(tmp_path, make_collection, run_batch, records, printed):
    cells = {"00_one": ["seed = 0\nname = 'x'\nodd = (1, {2})", "print(seed, name)", "print(odd)"]}
    small = make_collection(tmp_path / "notebooks", cells)
    value = "__import__('os').mkdir('owned'); \"'\\\n{seed.__class__} ∇ <script>"
    status, shown = run_batch(small, tmp_path / "out", given=[("name", value)])
    assert status == 0, shown
    (name,) = records(tmp_path / "out")
    assert printed(tmp_path / "out" / f"{name}.ipynb") == f"0 {value}\n(1, {{2}})\n"
    assert not list(tmp_path.rglob("owned"))
    assert {path.parent for path in tmp_path.rglob("*.ipynb")} == {tmp_path / "out", small.folder}


def write_kernel(folder, name, argv):
    (folder / "kernels" / name).mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": "python"}
    (folder / "kernels" / name / "kernel.json").write_text(json.dumps(spec))


@pytest.mark.dear
def test_a_kernel_that_does_not_start_is_named(tmp_path, small, run_batch, records, monkeypatch, kernels):
    write_kernel(tmp_path / "jupyter", "dies", ["/bin/false"])
    write_kernel(tmp_path / "jupyter", "missing", ["/no/such/python", "{connection_file}"])
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    for kernel, message in (("dies", "Kernel died before replying"), ("missing", "No such file or directory")):
        status, shown = run_batch(small, tmp_path / "out", kernel=kernel)
        assert status == 1
        problem = records(tmp_path / "out")["00_one"]["problem"]
        assert problem["kind"] == "kernel did not start"
        assert problem["cell"] is None
        assert message in problem["message"]
        assert message in shown
    assert kernels() == []


FULL = {"00_good": ["seed = 0", "print('fine')"], "01_large": ["seed = 0", "print('x' * 900_000)"]}


@pytest.mark.thorough
def test_a_full_disk_fails_one_run_and_spares_the_others(
    tmp_path, make_collection, records, printed, run_batch, command_line
):
    """A limit on the size of files works everywhere; a disk of its own only where one may be mounted."""
    collection = make_collection(tmp_path / "notebooks", FULL)
    output, kept = tmp_path / "out", tmp_path / "kept"
    run = shlex.join(command_line(output))
    command = ["bash", "-c", f"ulimit -f 600; {run}; status=$?; cp -a {output} {kept}; exit $status"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    found = records(kept)
    assert found["00_good"]["verdict"] == "ran"
    assert printed(kept / "00_good.ipynb") == "fine\n"
    problem = found["01_large"]["problem"]
    assert problem["kind"] == "not stored"
    assert "File too large" in problem["message"]
    assert "1 of 2 runs succeeded" in done.stdout
    status, shown = run_batch(collection, kept, resume=True)
    assert status == 0, shown
    assert "1 of 2 runs are unchanged" in shown


@pytest.mark.dear
def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path, make_collection, command_line):
    make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    (tmp_path / "file").touch()
    command = command_line(tmp_path / "file" / "out")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: cannot write to {tmp_path}")
    assert "Choose another folder with --output" in line


@pytest.mark.dear
def test_a_report_that_cannot_be_written_is_told_and_the_status_says_so(tmp_path, small, run_batch, command_line):
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    status, shown = run_batch(small, tmp_path / "out")
    assert status == 1
    assert "cannot write the report to" in shown
    assert "Is a directory" in shown
    assert "report.html" not in shown


def test_a_report_without_its_record_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def told():
        done = CliRunner().invoke(main, ["report", "out"])
        assert done.exit_code == 1
        return done.stderr

    assert told() == "Error: there is no folder out\n"
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    assert told() == "Error: there is no report.json in out; 'tapelab run' writes it\n"
    assert list((tmp_path / "out").iterdir()) == []


def test_kernels_listen_on_no_network_and_see_no_secrets(tmp_path, make_collection, run_batch, printed, monkeypatch):
    source = (
        "import os, psutil\n"
        "listening = [c for c in psutil.Process().net_connections('inet') if c.status == 'LISTEN']\n"
        "print({c.laddr.ip for c in listening} - {'127.0.0.1'})\n"
        "print(get_ipython().kernel.parent.transport)\n"
        "print(sorted(name for name in os.environ if 'TEST' in name))"
    )
    for name in ("TAPELAB_TEST_TOKEN", "TAPELAB_TEST_PLAIN", "TEST_URL", "TEST_PASSED_KEY"):
        monkeypatch.setenv(name, "hush-hush")
    collection = make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0", source]})
    executor = pool.Local(1, fork=False, passed=["TEST_PASSED_KEY"])
    status, shown = run_batch(collection, tmp_path / "out", executor=executor)
    assert status == 0, shown
    assert printed(tmp_path / "out" / "00_one.ipynb") == "set()\nipc\n['TAPELAB_TEST_PLAIN', 'TEST_PASSED_KEY']\n"
    assert not list((tmp_path / "notebooks").glob("k*"))


def test_no_environment_variable_is_stored(tmp_path, make_collection, run_batch, monkeypatch):
    monkeypatch.setenv("TAPELAB_TEST_PLAIN", "some-value")
    collection = make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0", "raise OSError('nothing')"]})
    status, _ = run_batch(collection, tmp_path / "out")
    assert status == 1
    written = list((tmp_path / "out").iterdir())
    assert {path.suffix for path in written} == {".html", ".ipynb", ".json", ".xml", ".log"}
    for path in written:
        assert "some-value" not in path.read_text(), path


def test_jobs_start_with_the_longest(tmp_path, make_collection, run_batch, monkeypatch):
    seconds = {"00_a": 1.0, "01_b": 3.0}
    monkeypatch.setattr(
        single_run, "run", lambda job, *_, **__: single_run.Outcome(job.run.name, None, seconds=seconds[job.run.name])
    )
    collection = make_collection(tmp_path / "notebooks", {name: ["seed = 0"] for name in seconds})
    _, first = run_batch(collection, tmp_path / "out", workers=1)
    _, second = run_batch(collection, tmp_path / "out", workers=1)
    assert "[1/2] ran 00_a" in first
    assert "[1/2] ran 01_b" in second


def test_a_job_that_cannot_be_done_at_all_has_an_outcome_too(tmp_path, small, run_batch, records, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a defect")

    monkeypatch.setattr(single_run, "run", broken)
    status, _ = run_batch(small, tmp_path / "out")
    assert status == 1
    assert records(tmp_path / "out")["00_one"]["problem"]["message"] == "RuntimeError: a defect"
