"""Batches on this machine: verdicts, every kind of fault caused for real, interruption, resumption, storage."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from tapelab.collection import one, plan, pool, storage
from tapelab.collection.storage import StorageError

import nbformat
import psutil
import pytest

SLEEP = "import time; time.sleep(600)"
# Whether the kernel had TensorFlow from the start, and how many processes have been started for papermill alone.
ABOUT = f"""import psutil, sys
family = psutil.Process({os.getpid()}).children(recursive=True)
print('tensorflow' in sys.modules, sum('tapelab.collection.child' in process.cmdline() for process in family) > 0)"""
# Each fault, and one notebook before and one after that have none.
FAULTS = {
    "00_good": ["seed = 0", "print('fine', seed)", ABOUT],
    "01_forever": ["seed = 0", "print('before')", "while True: pass", "print('never')"],
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
    "01_forever": ("time limit", 3, "ended after 25 s (the limit set with --timeout)"),
    "02_raises": ("cell", 3, "ValueError: no <b>luck</b>"),
    "03_killed": ("kernel died", 3, "the kernel was ended by SIGKILL; it may have run out of memory"),
    "04_memory": ("cell", 3, "MemoryError: "),
    "05_leaves": ("kernel died", 2, "the kernel was ended with exit status 3"),
    "06_good": None,
}


@pytest.fixture(scope="module", params=["forked", "plain"])
def faulty(tmp_path_factory, make_collection, run_batch, request):
    folder = tmp_path_factory.mktemp("faults")
    collection = make_collection(folder / "notebooks", FAULTS)
    executor = pool.Local(2, fork=request.param == "forked")
    status, shown = run_batch(collection, folder / "out", executor=executor, timeout=25.0)
    return folder, status, shown


def test_papermill_and_kernels_are_forked_or_neither(faulty, request, printed):
    folder, _, _ = faulty
    expected = "True False\n" if request.node.callspec.params["faulty"] == "forked" else "False True\n"
    assert printed(folder / "out" / "00_good.ipynb") == "fine 0\n" + expected


def test_each_fault_is_named_with_its_place_and_the_others_finish(faulty, records, printed, kernels):
    folder, status, shown = faulty
    assert status == 1
    assert "2 of 7 runs succeeded" in shown
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
    for name in ("01_forever", "02_raises", "03_killed"):
        assert printed(folder / "out" / f"{name}.ipynb") == "before\n", name
        assert (folder / "out" / f"{name}.log").exists()
    assert not (folder / "out" / "00_good.log").exists()
    assert kernels() == []


def test_a_failed_notebook_says_itself_which_cells_ran(faulty):
    folder, _, _ = faulty
    for name, last in (("01_forever", "pending"), ("03_killed", None)):
        nb = nbformat.read(folder / "out" / f"{name}.ipynb", as_version=4)
        statuses = [cell.metadata.papermill.status for cell in nb.cells if cell.cell_type == "code"]
        assert statuses == ["completed", "completed", "failed", *([last] if last else [])]
        assert nb.metadata.papermill.exception is True


def test_resumption_repeats_what_failed_and_nothing_else(faulty, make_collection, run_batch, records):
    folder, _, _ = faulty
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*good.ipynb")}
    repaired = {name: ["seed = 0", "print('repaired')"] for name in EXPECTED if EXPECTED[name]}
    collection = make_collection(folder / "notebooks", FAULTS | repaired)
    status, shown = run_batch(collection, folder / "out", resume=True)
    assert status == 0, shown
    assert "2 of 7 runs are unchanged" in shown
    assert "7 of 7 runs succeeded" in shown
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "out").glob("*good.ipynb")} == before
    found = records(folder / "out")
    assert {name for name in found if found[name]["reused"]} == {"00_good", "06_good"}
    assert not list((folder / "out").glob("*.log"))


@pytest.fixture
def instant(monkeypatch):
    """Every run succeeds at once, without a process."""

    def run(job, source, **_):
        return one.Outcome(job.run.name, None, seconds=1.0, notebook=source.encode())

    monkeypatch.setattr(one, "run", run)


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
    (output / "00_one.ipynb").unlink()
    assert not reused()


@pytest.mark.parametrize("content", ["{", "[]", '{"format": 1, "runs": [{}], "earlier": {}}', '{"format": 99}', "\x00"])
def test_a_damaged_report_is_reported_and_taken_for_none(tmp_path, small, run_batch, instant, records, content):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "report.json").write_text(content)
    status, shown = run_batch(small, tmp_path / "out", resume=True)
    assert status == 0
    assert "Every run starts anew" in shown
    assert records(tmp_path / "out")["00_one"]["verdict"] == "ran"


def test_hostile_values_arrive_as_they_are_and_run_nothing(tmp_path, small, run_batch, records, printed):
    value = "__import__('os').mkdir('owned'); \"'\\\n{seed.__class__} ∇ <script>"
    status, shown = run_batch(small, tmp_path / "out", given=[("name", value)])
    assert status == 0, shown
    (name,) = records(tmp_path / "out")
    assert printed(tmp_path / "out" / f"{name}.ipynb") == f"0 {value}\n"
    assert not list(tmp_path.rglob("owned"))
    assert {path.parent for path in tmp_path.rglob("*.ipynb")} == {tmp_path / "out", small.folder}


def write_kernel(folder, name, argv):
    (folder / "kernels" / name).mkdir(parents=True)
    spec = {"argv": argv, "display_name": name, "language": "python"}
    (folder / "kernels" / name / "kernel.json").write_text(json.dumps(spec))


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


def test_an_unknown_kernel_is_refused_before_anything_runs(tmp_path, small, run_batch):
    with pytest.raises(LookupError, match=r"no kernel is called 'nonesuch'; installed: .*python3"):
        run_batch(small, tmp_path / "out", kernel="nonesuch")
    assert list((tmp_path / "out").iterdir()) == []


def can_mount():
    probe = Path("/proc/self/mountinfo")
    if os.geteuid() != 0 or not probe.exists():
        return False
    command = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


FULL = {"00_good": ["seed = 0", "print('fine')"], "01_large": ["seed = 0", "print('x' * 900_000)"]}


def command_line(output, *arguments):
    return [sys.executable, "-m", "tapelab", "run", "--notebooks", "notebooks", "--output", str(output), *arguments]


# A limit on the size of files works everywhere; a disk of its own only where one may be mounted.
@pytest.mark.parametrize("disk", ["file size", *(["tmpfs"] if can_mount() else [])])
def test_a_full_disk_fails_one_run_and_spares_the_others(tmp_path, make_collection, records, printed, run_batch, disk):
    collection = make_collection(tmp_path / "notebooks", FULL)
    output, kept = tmp_path / "out", tmp_path / "kept"
    run = " ".join(command_line(output))
    if disk == "tmpfs":
        # In a mount namespace of its own, which ends with the command: what is on the disk is copied out before.
        script = f"mount -t tmpfs -o size=600k tmpfs {output} && {run}; status=$?; cp -a {output} {kept}; exit $status"
        output.mkdir()
        command = ["unshare", "--mount", "bash", "-c", script]
    else:
        command = ["bash", "-c", f"ulimit -f 600; {run}; status=$?; cp -a {output} {kept}; exit $status"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    found = records(kept)
    assert found["00_good"]["verdict"] == "ran"
    assert printed(kept / "00_good.ipynb") == "fine\n"
    problem = found["01_large"]["problem"]
    if disk == "tmpfs":
        assert problem["kind"] == "not stored"
        assert "No space left on device; what was executed is in " in problem["message"]
        place = Path(problem["message"].rsplit(" is in ", 1)[1])
        assert printed(place) == "x" * 900_000 + "\n"
        place.unlink()
        place.parent.rmdir()
    else:
        assert problem["kind"] == "files"
        assert "File too large" in problem["message"]
    assert "1 of 2 runs succeeded" in done.stdout
    status, shown = run_batch(collection, kept, resume=True)
    assert status == 0, shown
    assert "1 of 2 runs are unchanged" in shown


@pytest.mark.parametrize("way", ["below a file", *(["read-only"] if can_mount() else [])])
def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path, make_collection, way):
    make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    if way == "below a file":
        (tmp_path / "file").touch()
        command = command_line(tmp_path / "file" / "out")
    else:
        output = tmp_path / "out"
        output.mkdir()
        script = f"mount -t tmpfs -o ro tmpfs {output} && exec {' '.join(command_line(output))}"
        command = ["unshare", "--mount", "bash", "-c", script]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"Error: cannot write to {tmp_path}")
    assert "Choose another folder with --output" in line


def test_a_report_that_cannot_be_written_is_told_and_the_status_says_so(tmp_path, small, run_batch):
    (tmp_path / "out" / "report.html").mkdir(parents=True)
    status, shown = run_batch(small, tmp_path / "out")
    assert status == 1
    assert "cannot write the report to" in shown
    assert "Is a directory" in shown


def wait_for(condition, seconds=90):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.1)


def still_there(processes):
    _, alive = psutil.wait_procs(processes, timeout=20)
    return [process for process in alive if process.status() != psutil.STATUS_ZOMBIE]


LONG = {
    "00_quick": ["seed = 0"],
    "01_long": ["seed = 0", f"print('on'); open('started', 'w'); {SLEEP}"],
    "02_late": ["seed = 0"],
}


@pytest.mark.parametrize(("sent", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_every_kernel_and_what_was_executed_is_kept(
    tmp_path, make_collection, records, printed, run_batch, sent, status
):
    make_collection(tmp_path / "notebooks", LONG)
    command = command_line(tmp_path / "out", "--workers", "1")
    # A shell starts its background jobs with SIGINT ignored, and children inherit that.
    heeding = {"preexec_fn": lambda: signal.signal(sent, signal.SIG_DFL)}
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, **heeding)
    # The order is the catalogue's where nothing is known of the times.
    wait_for((tmp_path / "notebooks" / "started").exists)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2  # the run's process and its kernel
    process.send_signal(sent)
    shown, _ = process.communicate(timeout=60)
    assert process.returncode == status
    assert still_there(family) == []
    assert f"{sent.name}: ending the runs under way" in shown
    assert "1 of 3 runs succeeded" in shown
    found = records(tmp_path / "out")
    assert [record["verdict"] for record in found.values()] == ["ran", "interrupted", "interrupted"]
    assert found["01_long"]["problem"]["cell"] == 2
    assert printed(tmp_path / "out" / "01_long.ipynb") == "on\n"
    collection = make_collection(tmp_path / "notebooks", LONG | {"01_long": ["seed = 0"]})
    status, shown = run_batch(collection, tmp_path / "out", resume=True)
    assert status == 0
    assert "1 of 3 runs are unchanged" in shown


@pytest.mark.parametrize("names", [("01_long",), ("00_quick", "01_long")], ids=["one plain", "several forked"])
def test_no_kernel_outlives_a_command_that_is_killed(tmp_path, make_collection, names):
    make_collection(tmp_path / "notebooks", {name: LONG[name] for name in names})
    process = subprocess.Popen(command_line(tmp_path / "out"), cwd=tmp_path, stdout=subprocess.DEVNULL)
    wait_for((tmp_path / "notebooks" / "started").exists)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 2 * len(names)  # the run's process and its kernel; with several runs, also the fork servers
    process.kill()
    process.wait()
    assert still_there(family) == []


def tapelab_report(folder, place):
    command = [sys.executable, "-m", "tapelab", "report", place]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)


def test_a_command_that_is_killed_leaves_what_a_report_needs(tmp_path, make_collection, records):
    make_collection(tmp_path / "notebooks", LONG)
    process = subprocess.Popen(
        command_line(tmp_path / "out", "--workers", "1"), cwd=tmp_path, stdout=subprocess.DEVNULL
    )
    wait_for((tmp_path / "notebooks" / "started").exists)
    wait_for(lambda: '"verdict": "ran"' in (tmp_path / "out" / "report.json").read_text())
    process.kill()
    process.wait()
    assert not (tmp_path / "out" / "report.html").exists()
    done = tapelab_report(tmp_path, "out")
    assert done.returncode == 0, done.stderr
    assert "1 of 3 runs succeeded" in done.stdout
    found = records(tmp_path / "out")
    assert [record["verdict"] for record in found.values()] == ["ran", "interrupted", "interrupted"]
    assert found["02_late"]["problem"]["message"] == "the command ended before this run did"
    assert "1 of 3 runs succeeded" in (tmp_path / "out" / "report.html").read_text()


def test_a_report_without_its_record_is_refused(tmp_path):
    done = tapelab_report(tmp_path, "nowhere")
    assert (done.returncode, done.stderr) == (1, "Error: there is no folder nowhere\n")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "out").mkdir()
    done = tapelab_report(tmp_path, "out")
    assert (done.returncode, done.stderr) == (1, "Error: there is no report.json in out; 'tapelab run' writes it\n")
    (tmp_path / "out" / "report.json").write_text('{"format": 1, "runs": [{"name": "x"}], "earlier": {}}')
    done = tapelab_report(tmp_path, "out")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: out/report.json is damaged (")
    assert len(list((tmp_path / "out").iterdir())) == 1


KILLS_ITS_STARTER = "import os, psutil; psutil.Process(os.getppid()).kill()"
# A forked kernel's parent is the fork server for kernels; papermill is forked by the other one.
KILLS_PAPERMILL = """import os, psutil
server = psutil.Process(os.getppid())
(other,) = [p for p in server.parent().children() if 'papermill' in p.cmdline()]
for child in other.children():
    child.kill()"""


@pytest.mark.parametrize(("fork", "source"), [(False, KILLS_ITS_STARTER), (True, KILLS_PAPERMILL)])
def test_a_run_whose_process_is_killed_is_named(tmp_path, make_collection, run_batch, records, kernels, fork, source):
    cells = {"00_one": ["seed = 0"], "01_bad": ["seed = 0", f"{source}\n{SLEEP}"], "02_two": ["seed = 0"]}
    collection = make_collection(tmp_path / "notebooks", cells)
    status, _ = run_batch(collection, tmp_path / "out", executor=pool.Local(1, fork=fork))
    assert status == 1
    found = records(tmp_path / "out")
    assert found["00_one"]["verdict"] == found["02_two"]["verdict"] == "ran"
    assert found["01_bad"]["problem"]["kind"] == "process"
    assert "the run's process ended with status -9" in found["01_bad"]["problem"]["message"]
    assert found["01_bad"]["problem"]["cell"] == 2
    assert kernels() == []


def test_when_the_fork_server_for_kernels_dies_the_run_says_so_and_the_rest_goes_on(
    tmp_path, make_collection, run_batch, records, printed, kernels
):
    cells = {
        "00_bad": ["seed = 0", "print('before')", f"{KILLS_ITS_STARTER}\n{SLEEP}"],
        "01_good": ["seed = 0", "print('fine')"],
    }
    collection = make_collection(tmp_path / "notebooks", cells)
    status, _ = run_batch(collection, tmp_path / "out", executor=pool.Local(1))
    assert status == 1
    found = records(tmp_path / "out")
    assert found["00_bad"]["problem"]["kind"] == "kernel died"
    assert found["00_bad"]["problem"]["cell"] == 3
    assert printed(tmp_path / "out" / "00_bad.ipynb") == "before\n"
    assert printed(tmp_path / "out" / "01_good.ipynb") == "fine\n"
    assert kernels() == []


def test_kernels_listen_on_no_network_and_see_no_secrets(tmp_path, make_collection, run_batch, printed, monkeypatch):
    source = (
        "import os, psutil\n"
        "listening = [c for c in psutil.Process().net_connections('inet') if c.status == 'LISTEN']\n"
        "print({c.laddr.ip for c in listening} - {'127.0.0.1'})\n"
        "print(get_ipython().kernel.parent.transport)\n"
        "print(sorted(name for name in os.environ if name.startswith('TAPELAB_TEST')))"
    )
    monkeypatch.setenv("TAPELAB_TEST_TOKEN", "hush-hush")
    monkeypatch.setenv("TAPELAB_TEST_PLAIN", "some-value")
    collection = make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0", source]})
    status, shown = run_batch(collection, tmp_path / "out")
    assert status == 0, shown
    assert printed(tmp_path / "out" / "00_one.ipynb") == "set()\nipc\n['TAPELAB_TEST_PLAIN']\n"
    assert not list((tmp_path / "notebooks").glob("k*"))


def test_neither_home_nor_environment_variables_are_stored(tmp_path, make_collection, run_batch, monkeypatch):
    home = tmp_path / "a home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("TAPELAB_TEST_PLAIN", "some-value")
    cells = [
        "folder = ''",
        "import os, sys; print(os.path.expanduser('~/data')); print(os.path.expanduser('~'), file=sys.stderr)",
        "raise OSError(f'nothing in {os.path.expanduser(\"~/data\")}')",
    ]
    collection = make_collection(home / "notebooks", {"00_one": cells})
    status, _ = run_batch(collection, home / "out", given=[("folder", str(home / "data"))])
    assert status == 1
    written = [path for path in (home / "out").iterdir() if path.suffix != ".ipynb"]
    assert {path.suffix for path in written} == {".html", ".json", ".xml", ".log"}
    for path in written:
        assert str(home) not in path.read_text(), path
        assert "some-value" not in path.read_text(), path
    (executed,) = (home / "out").glob("*.ipynb")
    nb = nbformat.read(executed, as_version=4)
    for cell in nb.cells:
        assert str(home) not in str(cell.get("outputs")) + str(cell.metadata)
    assert "~/data" in str([cell.get("outputs") for cell in nb.cells])
    assert str(home) not in str(nb.metadata)


def test_jobs_start_with_the_longest(tmp_path, make_collection, run_batch):
    cells = {"00_a": ["seed = 0"], "01_b": ["seed = 0", "import time; time.sleep(3)"]}
    collection = make_collection(tmp_path / "notebooks", cells)
    _, first = run_batch(collection, tmp_path / "out", workers=1)
    _, second = run_batch(collection, tmp_path / "out", workers=1)
    assert "[1/2] ran 00_a" in first
    assert "[1/2] ran 01_b" in second


@pytest.mark.parametrize("url", ["memory://results", "file://{}/a place"])
def test_results_go_where_a_url_says(tmp_path, small, run_batch, url):
    url = url.format(tmp_path)
    status, shown = run_batch(small, url)
    assert status == 0
    place = storage.open_storage(url)
    assert place.names() == {"00_one.ipynb", "report.html", "report.json", "junit.xml"}
    assert nbformat.reads(place.read("00_one.ipynb").decode(), as_version=4).cells[1].outputs[0].text == "0 x\n"
    _, shown = run_batch(small, url, resume=True)
    assert "1 of 1 runs are unchanged" in shown


@pytest.mark.parametrize("url", ["nonesuch://place", "http://127.0.0.1:9/place"])
def test_a_url_that_cannot_be_written_is_refused(url):
    with pytest.raises(StorageError, match=f"cannot write to {url}"):
        storage.open_storage(url)


def test_runs_are_shown_as_starting_while_the_fork_servers_import(monkeypatch):
    imported, jobs = threading.Event(), [one.Job(plan.Run(name, name, {}, {}), "python3", "/", 9) for name in "ab"]

    @contextlib.contextmanager
    def starter(environment, **_):
        imported.wait(30)
        yield "the only one"

    monkeypatch.setattr(pool.forkserver, "starter", starter)
    monkeypatch.setattr(one, "run", lambda job, source, *, starter, **_: one.Outcome(job.run.name, None, where=starter))
    events = queue.Queue()
    with pool.Local(2) as executor:
        executor.start(jobs, {"a": "", "b": ""}, events)
        assert {events.get(timeout=10) for _ in jobs} == {("cell", "a", 0, 0, "here"), ("cell", "b", 0, 0, "here")}
        assert events.empty()
        imported.set()
        assert [events.get(timeout=10)[1].where for _ in jobs] == ["the only one"] * 2


def test_a_job_that_cannot_be_done_at_all_has_an_outcome_too(tmp_path, small, run_batch, records, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("a defect")

    monkeypatch.setattr(one, "run", broken)
    status, _ = run_batch(small, tmp_path / "out")
    assert status == 1
    assert records(tmp_path / "out")["00_one"]["problem"]["message"] == "RuntimeError: a defect"


def test_the_plan_is_checked_before_the_output_is_touched(tmp_path, make_collection):
    make_collection(tmp_path / "notebooks", {"00_one": ["seed = 0"]})
    for arguments, message in (
        (["-p", "sed", "1"], "known: seed"),
        (["--sweep", "seed"], "expected NAME=VALUES"),
        (["7"], "'7' names no notebook"),
        (["--dask", "tcp://127.0.0.1:9", "--workers", "2"], "--workers is for this machine"),
    ):
        command = command_line(tmp_path / "out", *arguments)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode in (1, 2)
        assert message in " ".join(done.stderr.split())
        assert not (tmp_path / "out").exists()


def test_the_command_without_its_extra_says_what_to_install():
    code = "import sys; sys.modules['rich'] = None; import tapelab.cli"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "pip install 'tapelab[lab]'" in done.stderr


def test_list_shows_the_collection():
    command = [sys.executable, "-m", "tapelab", "list"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    assert "06_custom_gradients" in done.stdout
