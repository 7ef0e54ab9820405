"""Signals at every moment of a batch, and outputs that nobody reads: a true report and a true exit status always."""

import json
import os
import pty
import signal
import subprocess

from tapelab.collection.running import pool

import psutil
import pytest
from process_texts import read_text

# Every run succeeds at once without a process, but for those called long: they last until the batch ends.
FAKE = read_text("interrupts", "FAKE")
# Sends a signal when the module is imported.
WHILE_IMPORTING = read_text("interrupts", "WHILE_IMPORTING")
# Sends a signal when the page has been written.
AFTER_THE_PAGE = read_text("interrupts", "AFTER_THE_PAGE")


@pytest.fixture
def collection(tmp_path, make_collection):
    return make_collection(tmp_path / "notebooks", {name: ["seed = 0"] for name in ("00_a", "01_long", "02_b")})


@pytest.fixture
def begin(tmp_path, collection, command_line):
    """A function that starts the command in a folder with three notebooks. It heeds SIGINT, whoever started pytest."""

    def start(*arguments, **kwargs):
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | kwargs
        first = streams.pop("first", FAKE)
        command = command_line(tmp_path / "out", "--workers", "1", *arguments, first=first)
        heed = streams.pop("preexec_fn", lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
        return subprocess.Popen(command, cwd=tmp_path, text=True, preexec_fn=heed, **streams)

    return start


def verdicts(records, tmp_path):
    return [record["verdict"] for record in records(tmp_path / "out").values()]


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(
    ("number", "module"),
    [(signal.SIGINT, "tapelab.collection.cli"), (signal.SIGTERM, "tapelab.collection.running.batch")],
)
def test_a_signal_while_the_command_starts_is_reported(begin, records, tmp_path, number, module):
    process = begin("--no-fork", first=WHILE_IMPORTING.format(module=module, number=int(number)))
    shown, told = process.communicate(timeout=120)
    assert process.returncode == 128 + number, told
    assert f"{number.name}: ending the runs under way" in shown
    assert told == ""
    assert verdicts(records, tmp_path) == ["interrupted"] * 3
    assert json.loads((tmp_path / "out" / "report.json").read_text())["signal"] == number.name


@pytest.mark.dear
def test_a_signal_when_all_is_done_changes_nothing(begin, records, tmp_path):
    first = FAKE + AFTER_THE_PAGE.format(number=int(signal.SIGINT))
    process = begin("00", "02", "--no-fork", first=first)
    shown, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (0, ""), shown
    assert "2 of 2 runs succeeded" in shown
    assert verdicts(records, tmp_path) == ["ran", "ran"]


@pytest.mark.dear
def test_what_is_recorded_does_not_depend_on_who_reads_the_output(begin, records, tmp_path):
    process = begin("00", "02", "--no-fork")
    process.stdout.close()
    told = process.stderr.read()
    assert (process.wait(120), told) == (0, "")
    assert verdicts(records, tmp_path) == ["ran", "ran"]
    process.stderr.close()


@pytest.mark.dear
def test_a_terminal_that_is_closed_ends_the_batch_with_a_report(begin, records, tmp_path, wait_for):
    ours, theirs = pty.openpty()

    def own_the_terminal():
        os.setsid()
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the tests themselves may run under nohup
        os.close(os.open(os.ttyname(theirs), os.O_RDWR))  # the first terminal that a session opens is its own

    process = begin("--no-fork", stdin=theirs, stdout=theirs, stderr=theirs, preexec_fn=own_the_terminal)
    os.close(theirs)
    wait_for(lambda: (tmp_path / "started").exists() or process.poll() is not None)
    os.close(ours)
    assert process.wait(120) == 128 + signal.SIGHUP
    assert verdicts(records, tmp_path) == ["ran", "interrupted", "interrupted"]


def test_the_report_is_written_even_if_the_batch_itself_fails(tmp_path, collection, run_batch, records):
    class Broken(pool.Local):
        def start(self, jobs, sources, queue):
            raise RuntimeError("a defect")

    with pytest.raises(RuntimeError, match="a defect"):
        run_batch(collection, tmp_path / "out", executor=Broken(1))
    assert verdicts(records, tmp_path) == ["interrupted"] * 3


@pytest.mark.dear
def test_a_command_that_is_killed_leaves_what_a_report_needs(begin, records, tmp_path, wait_for):
    process = begin("--no-fork", first=FAKE + "from tapelab.collection.running import batch; batch.REPORT_SECONDS = 0")
    wait_for(lambda: (tmp_path / "started").exists() or process.poll() is not None)
    wait_for(lambda: '"verdict": "ran"' in (tmp_path / "out" / "report.json").read_text())
    process.kill()
    process.communicate()
    assert not (tmp_path / "out" / "report.html").exists()
    done = subprocess.run(
        [process.args[0], "-m", "tapelab", "report", "out"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "1 of 3 runs succeeded" in done.stdout
    found = records(tmp_path / "out")
    assert [record["verdict"] for record in found.values()] == ["ran", "interrupted", "interrupted"]
    assert found["02_b"]["problem"]["message"] == "the command ended before this run did"
    assert "1 of 3 runs succeeded" in (tmp_path / "out" / "report.html").read_text()


LONG = {
    "00_quick": ["seed = 0"],
    # What a cell printed has arrived when the next one begins.
    "01_long": ["seed = 0", "print('on')", "open('started', 'w'); import time; time.sleep(600)"],
    "02_late": ["seed = 0"],
}


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("number", "fork"), [(signal.SIGINT, "--fork"), (signal.SIGTERM, "--no-fork")])
def test_an_interrupt_ends_every_kernel_and_what_was_executed_is_kept(
    begin, tmp_path, make_collection, records, printed, wait_for, number, fork
):
    make_collection(tmp_path / "notebooks", LONG)
    process = begin(fork, first="pass")
    # The order is the catalogue's where nothing is known of the times.
    wait_for(lambda: (tmp_path / "notebooks" / "started").exists() or process.poll() is not None)
    family = psutil.Process(process.pid).children(recursive=True)
    assert len(family) >= 3  # the run's process, its guard and its kernel
    process.send_signal(number)
    shown, told = process.communicate(timeout=120)
    assert (process.returncode, told) == (128 + number, "")
    assert psutil.wait_procs(family, timeout=20)[1] == []
    assert f"{number.name}: ending the runs under way" in shown
    assert "1 of 3 runs succeeded" in shown
    assert verdicts(records, tmp_path) == ["ran", "interrupted", "interrupted"]
    found = records(tmp_path / "out")
    assert found["01_long"]["problem"]["cell"] == 3
    assert printed(tmp_path / "out" / "01_long.ipynb") == "on\n"
