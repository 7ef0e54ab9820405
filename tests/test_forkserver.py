"""The fork server: what is forked is right, on its own, and gone in time; where it cannot fork, the plain way."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Client
from pathlib import Path

from tapelab.collection import forkserver
from tapelab.collection.forkserver import server

import nbformat
import psutil
import pytest
from jupyter_client.manager import start_new_kernel

# What most tests need starts ten times as fast without TensorFlow.
LIGHT = ("numpy", "ipykernel.kernelapp")


@pytest.fixture(scope="module")
def environment():
    """The environment of every process here.

    Pytest changes its own from test to test; scikit-learn, if it is imported, adds two that the server is to add; and
    without buffers nothing that is printed could get lost.
    """
    without = ("PYTEST_", "KMP_", "PYTHONUNBUFFERED")
    return {name: value for name, value in os.environ.items() if not name.startswith(without)}


@pytest.fixture(scope="module")
def light(environment):
    environment = environment | {"OPENBLAS_NUM_THREADS": "2"}
    with forkserver.starter(environment, kernels=LIGHT, processes=LIGHT, say=pytest.fail) as starter:
        yield starter


@pytest.fixture(scope="module")
def full(environment):
    with forkserver.starter(environment, say=pytest.fail) as starter:
        yield starter


def wait_until(condition, seconds=10):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid):
    """Whether a process has ended; a zombie has."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def server_of(starter):
    """The process of the server for kernels."""
    (found,) = [p for p in psutil.Process().children() if starter.kernels in p.cmdline()]
    return found


@contextlib.contextmanager
def kernel(starter, monkeypatch, *, how=forkserver.ForkedProcess, **env):
    monkeypatch.setenv("JUPYTER_PATH", starter.environment["JUPYTER_PATH"])
    manager, channels = start_new_kernel(kernel_name="python3", env=starter.environment | env)
    try:
        assert isinstance(manager.provisioner.process, how)
        yield manager, channels
    finally:
        channels.stop_channels()
        manager.shutdown_kernel(now=True)


def execute(channels, code):
    """Run a cell. Returns what it wrote to standard output, and the kinds of its other outputs."""
    written, shown = [], []

    def collect(message):
        content = message["content"]
        if message["msg_type"] == "stream" and content["name"] == "stdout":
            written.append(content["text"])
        if message["msg_type"] == "display_data":
            shown.extend(content["data"])

    reply = channels.execute_interactive(textwrap.dedent(code), output_hook=collect, timeout=60)
    assert reply["content"]["status"] == "ok", reply["content"]
    return "".join(written), shown


def python(starter, code, *arguments, **kwargs):
    """What a process prints that the server for kernels has forked."""
    with tempfile.TemporaryFile() as out:
        command = [sys.executable, "-c", textwrap.dedent(code), *arguments]
        process = forkserver.ForkedProcess(
            starter.kernels, command, stdout=out, **({"env": starter.environment} | kwargs)
        )
        assert process.wait(30) == 0
        out.seek(0)
        return out.read().decode()


def test_a_forked_kernel_computes_and_draws_as_a_plain_one_does(full, monkeypatch):
    with kernel(full, monkeypatch) as (_, channels):
        written, shown = execute(
            channels,
            """
            import sys; imported = "tensorflow" in sys.modules
            import tensorflow as tf, matplotlib.pyplot as plt
            x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = tf.function(lambda v: v @ v, jit_compile=True)(x) + tf.vectorized_map(tf.sin, x)
            print(imported, *(f"{d:.4f}" for d in tape.jacobian(y, x)[0, 0].numpy().ravel()))
            plt.plot([1, 2]); plt.show()
            """,
        )
    assert written == "True 2.5403 3.0000 2.0000 0.0000\n"
    assert "image/png" in shown


def test_unseeded_random_numbers_differ_between_forks(full):
    code = """
        import random, numpy as np, tensorflow as tf, keras
        tf_numbers = [float(tf.random.normal(())), float(keras.random.normal(()))]
        print([random.random(), float(np.random.rand()), *tf_numbers])
    """
    one, other = (json.loads(python(full, code)) for _ in range(2))
    assert not set(one) & set(other)


def test_settings_of_the_thread_pools_hold_in_a_fork(light):
    code = "import threadpoolctl; print(sorted({lib['num_threads'] for lib in threadpoolctl.threadpool_info()}))"
    assert python(light, code) == "[2]\n"


# A kernel's parent is its guard, and that one's the server.
GRANDPARENT = "import psutil; print(psutil.Process().parent().ppid(), seed)"


def test_papermill_forks_too_and_its_kernel_from_the_other_server(full, tmp_path):
    cells = [nbformat.v4.new_code_cell("seed = 1"), nbformat.v4.new_code_cell(GRANDPARENT)]
    cells[0].metadata["tags"] = ["parameters"]
    notebook = nbformat.v4.new_notebook(cells=cells)
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-p", "seed", "3", "--kernel", "python3"]
    with (tmp_path / "log").open("wb") as log:
        process = full.popen([*command, "--no-progress-bar"], cwd=tmp_path, stdout=log, stderr=subprocess.STDOUT)
    assert isinstance(process, forkserver.ForkedProcess)
    assert process.wait(60) == 0, (tmp_path / "log").read_text()
    executed = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert executed.cells[-1].outputs[0].text == f"{server_of(full).pid} 3\n"


@pytest.mark.filterwarnings("error::ResourceWarning", "error::pytest.PytestUnraisableExceptionWarning")
def test_pipes_lead_to_the_child_and_several_threads_may_wait_for_it(light):
    code = "import sys; print([line.upper() for line in sys.stdin], flush=True); print('told', file=sys.stderr)"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = light.popen([sys.executable, "-c", code], **pipes)
    assert isinstance(process, forkserver.ForkedProcess)
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(process.wait, 30) for _ in range(4)]
        process.stdin.write(b"one\ntwo\n")
        process.stdin.close()  # nobody else holds that end: the child sees the end of file
        assert (process.stdout.read(), process.stderr.read()) == (b"['ONE\\n', 'TWO\\n']\n", b"told\n")
        assert [future.result() for future in waiting] == [0] * 4
    assert process.wait() == process.poll() == 0
    for stream in (process.stdout, process.stderr):
        stream.close()
    before = psutil.Process().num_fds()
    for _ in range(3):
        with pytest.raises(forkserver.ForkError):
            forkserver.ForkedProcess(light.processes, [sys.executable, "-c", ""], cwd="/no/folder", **pipes)
    assert psutil.Process().num_fds() == before


def test_with_a_safe_path_the_folder_is_not_imported_from(light, tmp_path):
    (tmp_path / "mine.py").touch()
    for option, where in ((["-P"], "None"), ([], str(tmp_path / "mine.py"))):
        code = "import importlib.util; found = importlib.util.find_spec('mine'); print(found and found.origin)"
        process = light.popen([sys.executable, *option, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE)
        assert isinstance(process, forkserver.ForkedProcess)
        with process.stdout:
            assert process.stdout.read().decode() == f"{where}\n"
        assert process.wait(30) == 0


def test_folder_environment_streams_and_arguments_are_the_childs_own(light, tmp_path):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(f"where = {name!r}")
        code = """
            import mine, os, sys
            x, y = (os.environ.get(f"TAPELAB_{letter}") for letter in "XY")
            print(mine.where, os.getcwd(), x, y, sys.argv, __name__, sys.stdin.read(), file=sys.stderr)
            os.environ["TAPELAB_Y"] = mine.where = "leaks"
        """
        found = python(
            light,
            code,
            "a b",
            cwd=tmp_path / name,
            env=light.environment | {"TAPELAB_X": name},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
        )
        assert found == f"{name} {tmp_path / name} {name} None ['-c', 'a b'] __main__ \n"


def test_a_child_holds_no_file_of_the_servers_and_nothing_that_only_the_server_needs(light):
    other = light.popen([sys.executable, "-c", "import time; time.sleep(600)"])
    code = """
        import os, signal
        files = [os.readlink(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd") if int(number) > 2
                 and os.path.exists(f"/proc/self/fd/{number}")]
        handlers = [signal.getsignal(number).name for number in (signal.SIGCHLD, signal.SIGTERM)]
        print(files, handlers, signal.set_wakeup_fd(-1), os.environ.get("MPLBACKEND"))
    """
    assert python(light, code) == "[] ['SIG_DFL', 'SIG_DFL'] -1 None\n"
    other.send_signal(signal.SIGKILL)
    assert other.wait(10) == -signal.SIGKILL


def test_what_a_child_started_ends_with_it(light, tmp_path):
    code = "import subprocess; print(subprocess.Popen(['sleep', '600']).pid, flush=True); import os; os._exit(1)"
    with (tmp_path / "out").open("wb") as out:
        assert light.popen([sys.executable, "-c", code], stdout=out).wait(30) == 1
    wait_until(lambda: gone(int((tmp_path / "out").read_text())))


def test_two_kernels_side_by_side_share_nothing(light, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with (
        kernel(light, monkeypatch, TAPELAB_X="1") as (_, one),
        kernel(light, monkeypatch, TAPELAB_X="2") as (_, other),
    ):
        code = "import os, numpy; print(os.environ['TAPELAB_X'], hasattr(numpy, 'mark'), os.getcwd()); numpy.mark = 1"
        assert execute(one, code)[0] == f"1 False {tmp_path}\n"
        execute(one, "os.chdir('/')")
        # A thread that polls its parent is not needed: the guard does.
        assert execute(one, "print(get_ipython().kernel.parent.poller)")[0] == "None\n"
        assert execute(other, code)[0] == f"2 False {tmp_path}\n"


def test_a_difference_that_imports_would_miss_needs_the_plain_way(light):
    said = []
    other = "0" if os.environ.get("TF_ENABLE_ONEDNN_OPTS") == "1" else "1"
    environment = light.environment | {"TF_ENABLE_ONEDNN_OPTS": other}
    starter = forkserver.Starter(environment, processes=light.processes, say=said.append)
    process = starter.popen(
        [sys.executable, "-c", "import os; raise SystemExit(int(os.environ['TF_ENABLE_ONEDNN_OPTS']) + 6)"]
    )
    assert isinstance(process, subprocess.Popen)
    assert process.wait(30) == 6 + int(other)
    assert said == [
        "Papermill starts in the plain way: its environment is not the fork server's in TF_ENABLE_ONEDNN_OPTS."
    ]


def test_exit_handlers_run_threads_are_waited_for_and_nothing_printed_is_lost(light):
    code = """
        import atexit, ctypes, threading, time
        atexit.register(print, "handler")
        threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
        ctypes.CDLL(None).printf(b"native\\n")
        print("main")
    """
    assert sorted(python(light, code).split()) == ["handler", "main", "native", "thread"]


def test_exit_statuses_and_signals(light):
    def start(code):
        return light.popen([sys.executable, "-c", code])

    assert start("raise SystemExit(3)").wait(30) == 3
    assert start("import os; os.abort()").wait(30) == -signal.SIGABRT
    assert start("raise SystemExit('a reason')").wait(30) == 1
    assert start("1 / 0").wait(30) == 1
    process = start("import time; time.sleep(600)")
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == -signal.SIGTERM == process.poll()
    process.send_signal(signal.SIGTERM)  # to nobody, without an error
    with pytest.raises(forkserver.ForkError, match="No such file or directory"):
        forkserver.ForkedProcess(light.processes, [sys.executable, "-c", ""], cwd="/no/folder", env=light.environment)


def test_a_kernel_is_interrupted_and_restarted_and_its_death_is_noticed(light, monkeypatch):
    with kernel(light, monkeypatch) as (manager, channels):
        # Interrupted before the cell's own code runs, ipykernel would go on to run it.
        asked = channels.execute("import time; print('here', flush=True); time.sleep(600)")
        wait_until(lambda: channels.get_iopub_msg(timeout=10)["msg_type"] == "stream")
        manager.interrupt_kernel()
        while (reply := channels.get_shell_msg(timeout=10))["parent_header"]["msg_id"] != asked:
            pass
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        first = manager.provisioner.pid
        manager.restart_kernel(now=True)
        channels.wait_for_ready(timeout=30)
        assert execute(channels, "print(1 + 1)")[0] == "2\n"
        assert manager.provisioner.pid != first
        assert gone(first)
        os.kill(manager.provisioner.pid, signal.SIGKILL)
        wait_until(lambda: not manager.is_alive())


def test_a_killed_kernel_is_known_to_have_ended(light, monkeypatch):
    with kernel(light, monkeypatch) as (manager, _):
        asyncio.run(manager.provisioner.kill())
        assert manager.provisioner.process.returncode == -signal.SIGKILL


def test_a_child_ends_with_the_process_that_asked_for_it_and_takes_its_own_along(light, tmp_path):
    code = f"""
        import os, subprocess, sys, time
        from tapelab.collection.forkserver import ForkedProcess
        sleep = "import time; time.sleep(600)"
        inner = "import subprocess, sys; command = [sys.executable, '-c', 'import time; time.sleep(600)'];"
        inner += "print(subprocess.Popen(command, start_new_session=True).pid, flush=True);" + sleep
        child = ForkedProcess({light.processes!r}, [sys.executable, "-c", inner])
        print(child.pid, flush=True)
        time.sleep(600)
    """
    with (tmp_path / "out").open("wb") as out:
        owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], env=light.environment, stdout=out)
    wait_until(lambda: (tmp_path / "out").read_text().count("\n") == 2)
    family = [int(line) for line in (tmp_path / "out").read_text().split()]
    assert not any(gone(pid) for pid in family)
    owner.kill()
    owner.wait()
    wait_until(lambda: all(gone(pid) for pid in family))


# A process that leaves its parent's session, and whose parent ends, is nobody's child.
STRAY = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("ending", ["the block ends", "the runner is killed", "the server is terminated"])
def test_no_process_survives(environment, tmp_path, ending):
    code = f"""
        import sys, time
        from tapelab.collection import forkserver
        with forkserver.starter(kernels=(), processes=(), say=sys.exit) as starter:
            child = starter.popen([sys.executable, "-c", {STRAY!r}])
            print(starter.processes, flush=True)
            sys.stdin.readline()
    """
    with (tmp_path / "out").open("wb") as out:
        command = [sys.executable, "-c", textwrap.dedent(code)]
        runner = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=out)
    wait_until(lambda: (tmp_path / "out").read_text().count("\n") == 3)
    address, *pids = sorted((tmp_path / "out").read_text().split(), key=str.isdigit)
    (the_server,) = [p for p in psutil.Process(runner.pid).children() if address in p.cmdline()]
    family = [the_server.pid, *map(int, pids)]
    assert not any(gone(pid) for pid in family)
    if ending == "the runner is killed":
        runner.kill()
    elif ending == "the server is terminated":
        the_server.terminate()
    else:
        runner.stdin.close()
    wait_until(lambda: all(gone(pid) for pid in family))
    if ending != "the runner is killed":
        runner.stdin.close()
        assert runner.wait(30) == 0
    runner.wait()
    assert not Path(address).parent.exists()


def test_a_killed_server_takes_its_children_along_and_the_next_start_in_the_plain_way(environment, monkeypatch, caplog):
    said = []
    with forkserver.starter(environment, kernels=LIGHT, processes=(), say=said.append) as starter:
        with kernel(starter, monkeypatch) as (manager, _):
            pid = manager.provisioner.pid
            server_of(starter).kill()
            wait_until(lambda: gone(pid) and not manager.is_alive())
        with kernel(starter, monkeypatch, how=subprocess.Popen) as (_, channels):
            assert execute(channels, "print(1 + 1)")[0] == "2\n"
        assert "The kernel starts in the plain way: the fork server does not answer" in caplog.text
        child = starter.popen([sys.executable, "-c", "import time; time.sleep(600)"])
        psutil.Process(child.pid).parent().parent().kill()
        assert child.wait(10) == -signal.SIGKILL
        wait_until(lambda: gone(child.pid))
        for _ in range(2):
            process = starter.popen([sys.executable, "-c", "raise SystemExit(5)"])
            assert process.wait(30) == 5
    assert len(said) == 1
    assert said[0].startswith("Papermill starts in the plain way from here on: the fork server does not answer")


@pytest.mark.parametrize(
    ("preload", "kernel_name", "reason"),
    [
        (("no_such_module",), "python3", "No module named 'no_such_module'"),
        (("tests_threads",), "python3", "the imports started 1 threads"),
        (("tests_gpu",), "python3", "a device other than the CPU is visible (GPU)"),
        ((), "no-such-kernel", "there is no kernel 'no-such-kernel'"),
    ],
)
def test_where_a_fork_cannot_be_had_one_line_says_why(environment, tmp_path, preload, kernel_name, reason):
    (tmp_path / "tests_threads.py").write_text(
        "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    )
    (tmp_path / "tests_gpu.py").write_text(
        "import sys, types\nkinds = [types.SimpleNamespace(device_type=kind) for kind in ('CPU', 'GPU')]\n"
        "config = types.SimpleNamespace(list_physical_devices=lambda: kinds)\n"
        "sys.modules['tensorflow'] = types.SimpleNamespace(config=config)"
    )
    said = []
    path = [str(tmp_path), environment.get("PYTHONPATH", "")]
    environment = environment | {"PYTHONPATH": os.pathsep.join(filter(None, path))}
    with forkserver.starter(environment, kernel=kernel_name, kernels=preload, processes=(), say=said.append) as starter:
        assert starter.kernels is None
        assert starter.environment == environment
        # The other server is none the worse for it.
        assert isinstance(starter.popen([sys.executable, "-c", ""]), forkserver.ForkedProcess)
    assert len(said) == 1
    assert said[0].startswith("Kernels start in the plain way: ")
    assert reason in said[0]


def test_without_the_server_for_processes_kernels_fork_all_the_same(environment):
    said = []
    with forkserver.starter(environment, kernels=(), processes=("no_such_module",), say=said.append) as starter:
        assert starter.kernels is not None
        process = starter.popen([sys.executable, "-c", "raise SystemExit(4)"])
        assert isinstance(process, subprocess.Popen)
        assert process.wait(30) == 4
    assert len(said) == 1
    assert re.match("Papermill starts in the plain way: .*No module named 'no_such_module'", said[0])


def test_elsewhere_than_on_linux_nothing_forks(environment, monkeypatch):
    said = []
    monkeypatch.setattr(sys, "platform", "darwin")
    with forkserver.starter(environment, say=said.append) as starter:
        assert starter.kernels is starter.processes is None
    assert said == ["Everything starts in the plain way: a fork is safe on Linux only, and this is darwin."]


def test_the_server_has_one_thread_and_keeps_nothing_of_its_children(full):
    process = server_of(full)
    python(full, "import tensorflow as tf; tf.ones((2, 2)) @ tf.ones((2, 2))")
    wait_until(lambda: process.children() == [])
    before = process.num_fds()
    for _ in range(20):
        python(full, "pass")
    wait_until(lambda: process.children() == [])
    wait_until(lambda: process.num_fds() == before)
    assert process.num_threads() == 1


def test_neither_a_silent_client_nor_a_malformed_request_holds_up_others(light):
    with Client(light.processes, family="AF_UNIX"):  # says nothing
        for content in (b"no JSON", b"[]", b'{"command": 5}', b'{"command": [], "cwd": "/", "environment": 1}'):
            with Client(light.processes, family="AF_UNIX") as malformed:
                malformed.send_bytes(content)
                assert "the request cannot be read" in json.loads(malformed.recv_bytes())["error"]
        process = light.popen([sys.executable, "-c", "raise SystemExit(4)"])
        assert isinstance(process, forkserver.ForkedProcess)
        assert process.wait(30) == 4


def test_the_socket_is_the_users_alone(light):
    for address in (light.kernels, light.processes):
        assert Path(address).parent.stat().st_mode & 0o077 == 0


def test_what_a_request_may_change():
    served = server.Server(None, {"A": "1", "PWD": "/"}, {"SET": "2"})
    assert served._refuse({"A": "1", "PWD": "/tmp", "JPY_SESSION_NAME": "n", "TAPELAB_X": "1"}) is None
    assert served._refuse({"A": "1", "SET": "2"}) is None
    assert served._refuse({"A": "2"}) == "its environment is not the fork server's in A"
    assert served._refuse({"A": "1", "SET": "3"}) == "its environment is not the fork server's in SET"
    assert "SET" not in (served._refuse({}) or "")
