"""Nothing that a run has started survives it, however it ends: kernels at full work, programs, folders."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor

from tapelab.collection.running import children, single_run, sweep

import nbformat
import psutil
import pytest
from process_texts import read_text

# Starts a program, one in a session of its own and one that is nobody's child; tells all ids, the kernel's first.
STARTS = read_text("survivors", "STARTS")
BUSY = "import re; re.match('(a+)+$', 'a' * 60 + 'b')"  # for years, with Python's lock held


def kill_the_kernel(process, kernel):
    kernel.kill()


def kill_papermill(process, kernel):
    process.children()[0].kill()


def kill_papermills_guard(process, kernel):
    process.kill()


@pytest.fixture(params=[False, True], ids=["plain", "forked"])
def fork(request, light_kernels, serve):
    serve()
    return request.param


@pytest.fixture
def run_to_the_end(fork, tmp_path, wait_for, monkeypatch):
    """A function that executes cells that write ``pids``, does something then, and waits.

    Returns the outcome and the process ids.
    """

    def run(sources, ending):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
        notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
        job = single_run.Job(sweep.Run("a", "a", {}), "python3", str(tmp_path), 600.0)
        own, pids, processes = children.Children(os.environ, fork, say=pytest.fail), tmp_path / "pids", []

        class Noted(children.Child):
            def __init__(self, process, connection):
                super().__init__(process, connection)
                processes.append(psutil.Process(process.pid))

        monkeypatch.setattr(children, "Child", Noted)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(single_run.run, job, nbformat.writes(notebook), children=own)
            try:
                wait_for(lambda: pids.exists() or running.done())
                assert pids.exists(), running.result()
                started = [int(pid) for pid in pids.read_text().split()]
                if ending is not None:
                    ending(processes[0], psutil.Process(started[0]))
                return running.result(120), started
            finally:
                own.end_all()

    return run


@pytest.mark.dear
def test_what_a_run_has_started_ends_with_it(run_to_the_end, wait_for, gone):
    outcome, pids = run_to_the_end(["seed = 0", STARTS], None)
    assert outcome.problem is None
    wait_for(lambda: all(gone(pid) for pid in pids), 30)


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("ending", [kill_the_kernel, kill_papermill, kill_papermills_guard])
def test_a_run_that_loses_a_process_is_named_and_leaves_none(run_to_the_end, wait_for, ending, fork, gone):
    outcome, pids = run_to_the_end(["seed = 0", STARTS + BUSY], ending)
    if ending is kill_the_kernel:
        assert str(outcome.problem).startswith("cell 2: the kernel was ended by SIGKILL")
    else:
        assert str(outcome.problem) == "cell 2: the run's process ended with status -9"
    if ending is kill_papermills_guard and not fork:
        for pid in pids[1:]:  # nobody is left to end the programs, only the kernel ends by itself
            psutil.Process(pid).kill()
    wait_for(lambda: all(gone(pid) for pid in pids), 30)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("names", [("01_busy",), ("00_quick", "01_busy")], ids=["one plain", "several forked"])
def test_a_command_that_is_killed_leaves_no_process(tmp_path, make_collection, command_line, wait_for, names, gone):
    sources = {"00_quick": ["seed = 0"], "01_busy": ["seed = 0", STARTS, BUSY]}
    make_collection(tmp_path / "notebooks", {name: sources[name] for name in names})
    command = subprocess.Popen(command_line(tmp_path / "out"), cwd=tmp_path, stdout=subprocess.DEVNULL)
    busy = tmp_path / "notebooks" / "pids"
    done = [tmp_path / "out" / f"{name}.ipynb" for name in names[:-1]]
    wait_for(lambda: all(path.exists() for path in (busy, *done)) or command.poll() is not None)
    family = [process.pid for process in psutil.Process(command.pid).children(recursive=True)]
    command.kill()
    command.wait()
    wait_for(lambda: all(gone(pid) for pid in (*map(int, busy.read_text().split()), *family)))
