"""Batches on a Dask cluster of separate processes: a scheduler and two workers, each with its nanny."""

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import time

from tapelab.collection.running import cluster

import distributed
import psutil
import pytest

pytestmark = pytest.mark.usefixtures("light_kernels")

SOURCES = {
    "00_good": ["seed = 0", "print('fine', seed)"],
    "01_raises": ["seed = 0", "print('before')", "1 / 0"],
}
# The first time, the run's worker is killed: the kernel's great-grandparent, above a guard and what it guards.
KILLS_ONCE = "import os, pathlib, psutil\nif not pathlib.Path('{0}').exists():\n    pathlib.Path('{0}').touch()\n    "
KILLS = "import psutil; psutil.Process().parent().parent().parent().kill(); import time; time.sleep(600)"


class Dask:
    """A scheduler and its workers, as processes."""

    def __init__(self, folder, workers=2):
        self.file = folder / "scheduler.json"
        environment = os.environ | {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "1"}
        common = {"cwd": folder, "env": environment, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        scheduler = ["--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(self.file)]
        worker = ["--scheduler-file", str(self.file), "--nworkers", str(workers), "--nthreads", "1", "--no-dashboard"]
        self.scheduler = subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_scheduler", *scheduler], **common
        )
        self.workers = subprocess.Popen([sys.executable, "-m", "distributed.cli.dask_worker", *worker], **common)
        until = time.monotonic() + 60
        while not self.file.exists():
            assert time.monotonic() < until
            time.sleep(0.1)
        self.address = json.loads(self.file.read_text())["address"]
        with distributed.Client(self.address, set_as_default=False) as client:
            client.wait_for_workers(workers, timeout=60)

    def runs(self):
        """The processes of runs and of kernels under the workers: all but the fork servers themselves."""
        found = []
        for process in psutil.Process(self.workers.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                words, above = (" ".join(one.cmdline()) for one in (process, process.parent()))
                if "tapelab.collection" in words and (words == above or "forkserver" not in words):
                    found.append(process)
        return found

    def close(self):
        processes = [self.workers, self.scheduler]
        for process in processes:
            tree = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
            for one in [process, *tree]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.wait(20)


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    running = Dask(tmp_path_factory.mktemp("dask"))
    yield running
    running.close()


@pytest.mark.thorough
def test_a_cluster_gives_what_this_machine_gives(dask, tmp_path, make_collection, run_batch, records, printed):
    collection = make_collection(tmp_path / "notebooks", SOURCES)
    sweep = [("seed", "0..1")]
    there, told = run_batch(collection, tmp_path / "there", sweeps=sweep, executor=cluster.Cluster(dask.address))
    here, _ = run_batch(collection, tmp_path / "here", sweeps=sweep)
    assert there == here == 1
    assert "2 of 4 runs succeeded" in told
    far, near = records(tmp_path / "there"), records(tmp_path / "here")
    assert far.keys() == near.keys()
    for name in near:
        assert printed(tmp_path / "there" / f"{name}.ipynb") == printed(tmp_path / "here" / f"{name}.ipynb")
        assert far[name]["verdict"] == near[name]["verdict"]
        assert far[name]["problem"] == near[name]["problem"]
        assert far[name]["fingerprint"] == near[name]["fingerprint"]
        assert far[name]["where"].startswith("tcp://127.0.0.1:")
    assert json.loads((tmp_path / "there" / "report.json").read_text())["workers"] == 2
    # So each can go on with what the other did.
    _, told = run_batch(collection, tmp_path / "there", sweeps=sweep, resume=True)
    assert "2 of 4 runs are unchanged" in told


@pytest.mark.thorough
def test_a_killed_worker_costs_its_own_run_at_most(dask, tmp_path, make_collection, run_batch, records, printed):
    once = KILLS_ONCE.format(tmp_path / "killed") + KILLS
    cells = {
        "00_once": ["seed = 0", once, "print('second time')"],
        "01_always": ["seed = 0", KILLS],
        "02_good": ["seed = 0", "print('fine')"],
        "03_good": ["seed = 0", "print('fine')"],
    }
    collection = make_collection(tmp_path / "notebooks", cells)
    status, told = run_batch(collection, tmp_path / "out", executor=cluster.Cluster(dask.address))
    assert status == 1
    assert (tmp_path / "killed").exists()
    found = records(tmp_path / "out")
    assert {name: record["verdict"] for name, record in found.items() if name != "01_always"} == {
        "00_once": "ran",
        "02_good": "ran",
        "03_good": "ran",
    }
    assert printed(tmp_path / "out" / "00_once.ipynb") == "second time\n"
    problem = found["01_always"]["problem"]
    assert problem["kind"] == "worker died"
    assert "2 workers died while running it, the last was tcp://127.0.0.1:" in problem["message"]
    assert "FAILED 01_always" in told
    # What the killed workers had started ends by itself.
    until = time.monotonic() + 30
    while dask.runs():
        assert time.monotonic() < until
        time.sleep(0.2)
    collection = make_collection(tmp_path / "notebooks", cells | {"01_always": ["seed = 0"]})
    status, told = run_batch(collection, tmp_path / "out", executor=cluster.Cluster(dask.address), resume=True)
    assert status == 0
    assert "3 of 4 runs are unchanged" in told


@pytest.fixture
def long_batch(dask, tmp_path, make_collection, command_line):
    """A command of which two endless runs are under way, one on each worker, and one waits."""
    # What a cell printed has arrived when the next one begins.
    long = [
        "seed = 0",
        "print('on')",
        f"import os, time; open(f'{tmp_path}/started-{{os.getpid()}}', 'w'); time.sleep(600)",
    ]
    cells = {"00_long": long, "01_long": long, "02_late": ["seed = 0"]}
    make_collection(tmp_path / "notebooks", cells)
    command = command_line(tmp_path / "out", "--dask", str(dask.file))
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    until = time.monotonic() + 90
    while len(list(tmp_path.glob("started-*"))) < 2:
        assert time.monotonic() < until
        time.sleep(0.1)
    return process


@pytest.mark.thorough
def test_an_interrupt_ends_the_runs_on_the_workers(dask, long_batch, tmp_path, records, printed):
    under_way = dask.runs()
    assert len(under_way) >= 4
    long_batch.send_signal(signal.SIGTERM)
    told, _ = long_batch.communicate(timeout=60)
    assert long_batch.returncode == 143
    _, alive = psutil.wait_procs(under_way, timeout=20)
    assert alive == []
    assert "0 of 3 runs succeeded" in told
    found = records(tmp_path / "out")
    assert {record["verdict"] for record in found.values()} == {"interrupted"}
    kept = [path.name for path in (tmp_path / "out").glob("*.ipynb")]
    assert kept
    assert any("on" in printed(tmp_path / "out" / name) for name in kept)


@pytest.mark.thorough
def test_the_runs_of_a_command_that_is_killed_end_on_the_workers_too(dask, long_batch):
    under_way = dask.runs()
    assert len(under_way) >= 4
    long_batch.kill()
    long_batch.communicate()
    _, alive = psutil.wait_procs(under_way, timeout=30)
    assert alive == []


@pytest.mark.thorough
def test_a_scheduler_that_dies_is_one_sentence_and_what_was_done_is_kept(
    tmp_path, make_collection, command_line, records, printed
):
    own = Dask(tmp_path, workers=1)
    try:
        kills = f"import os; os.kill({own.scheduler.pid}, 9); import time; time.sleep(600)"
        cells = {"00_good": ["seed = 0", "print('fine')"], "01_kills": ["seed = 0", kills], "02_late": ["seed = 0"]}
        make_collection(tmp_path / "notebooks", cells)
        command = command_line(tmp_path / "out", "--dask", own.address)
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
        assert (done.returncode, done.stderr) == (1, "")
        sentence = f"the Dask scheduler at {own.address} is gone"
        assert done.stdout.count(sentence) == 1, done.stdout
        assert "FAILED" not in done.stdout
        found = records(tmp_path / "out")
        assert [record["verdict"] for record in found.values()] == ["ran", "interrupted", "interrupted"]
        assert found["01_kills"]["problem"]["message"] == sentence
        assert printed(tmp_path / "out" / "00_good.ipynb") == "fine\n"
    finally:
        own.close()


def test_no_scheduler_is_one_clear_error(monkeypatch):
    monkeypatch.setattr(cluster, "CONNECT_SECONDS", 1)
    with pytest.raises(cluster.ClusterError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        cluster.Cluster("tcp://127.0.0.1:9")


def test_a_worker_must_have_the_variables_that_it_passes(dask, monkeypatch):
    monkeypatch.setenv("TEST_URL", "hush-hush")  # which the workers do not have
    with (
        cluster.Cluster(dask.address, passed=["TEST_URL"]) as executor,
        pytest.raises(LookupError, match=rf"--pass-env TEST_URL: there is no such variable on {platform.node()}"),
    ):
        executor.environment("python3")


@pytest.mark.dear
def test_workers_that_differ_are_refused(dask, monkeypatch):
    with cluster.Cluster(dask.address) as executor:
        same = {"python": "3.12", "packages": {"numpy": "2.0", "keras": "3.0"}}
        other = {"python": "3.12", "packages": {"numpy": "2.1", "keras": "3.0"}}
        monkeypatch.setattr(executor._client, "run", lambda *_: {"tcp://a:1": same, "tcp://b:2": other})
        with pytest.raises(cluster.ClusterError, match=r"environments differ in numpy: tcp://a:1; tcp://b:2"):
            executor.environment("python3")
