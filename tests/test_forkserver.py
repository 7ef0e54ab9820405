"""The fork server: what is forked is right, on its own, and gone in time; where a fork is not sound, a new program."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time

from tapelab.collection import forkserver

import psutil
import pytest
from jupyter_client.manager import start_new_kernel

LIGHT = ("numpy", "wave", "ipykernel.kernelapp")  # nothing else imports `wave`: it shows what was forked


@pytest.fixture
def light(monkeypatch, serve, forked_kernels):
    """Kernels start ten times as fast without TensorFlow."""
    monkeypatch.setattr(forkserver, "KERNELS", LIGHT)
    serve()


@contextlib.contextmanager
def kernel(name="python3", **env):
    manager, channels = start_new_kernel(kernel_name=name, env=dict(os.environ) | env)
    try:
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


@pytest.mark.dear
def test_a_forked_kernel_computes_and_draws_as_a_plain_one_does_with_random_numbers_of_its_own(forked_kernels):
    code = """
        import sys; imported = "tensorflow" in sys.modules
        import random, numpy as np, tensorflow as tf, keras, matplotlib.pyplot as plt
        x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.function(lambda v: v @ v, jit_compile=True)(x) + tf.vectorized_map(tf.sin, x)
        print(imported, *(f"{d:.4f}" for d in tape.jacobian(y, x)[0, 0].numpy().ravel()))
        plt.plot([1, 2]); plt.show()
        drawn = [float(tf.random.normal(())), float(keras.random.normal(()))]
        print(random.random(), float(np.random.rand()), *drawn)
    """
    drawn = []
    for _ in range(2):
        with kernel() as (_, channels):
            written, shown = execute(channels, code)
            computed, numbers = written.splitlines()
            assert computed == "True 2.5403 3.0000 2.0000 0.0000"
            assert "image/png" in shown
            drawn.append(set(numbers.split()))
    assert not drawn[0] & drawn[1]


def test_two_kernels_side_by_side_share_nothing(light, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    monkeypatch.setenv("TAPELAB_Y", "the server's")
    code = """
        import importlib.util, numpy, os, sys, threadpoolctl
        threads = {lib["num_threads"] for lib in threadpoolctl.threadpool_info()}
        print("wave" in sys.modules, os.environ["TAPELAB_X"], "TAPELAB_Y" in os.environ, hasattr(numpy, "mark"))
        print(os.getcwd(), threads, get_ipython().kernel.parent.poller, importlib.util.find_spec("mine") is not None)
        numpy.mark = 1
        os.chdir("/")
    """
    settings = {"OPENBLAS_NUM_THREADS": "2"}
    with kernel(**settings, TAPELAB_X="1") as (_, one), kernel(**settings, TAPELAB_X="2") as (_, other):
        monkeypatch.delenv("TAPELAB_Y")
        for channels, number in ((one, 1), (other, 2)):
            # A thread that polls its parent is not needed: the guard does.
            expected = f"True {number} True False\n{tmp_path} {{2}} None True\n"
            assert execute(channels, code)[0] == expected
    with kernel(**settings, TAPELAB_X="3") as (_, third):
        assert execute(third, code)[0].startswith("True 3 False False\n")


@pytest.mark.dear
def test_a_kernel_with_variables_of_its_own_imports_for_itself(light, monkeypatch, tmp_path):
    """Keras reads its backend while it is imported: the server's is not a kernel's with another one."""
    spec = {"argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"], "display_name": ""}
    for name, backend in (("same", {}), ("other", {"KERAS_BACKEND": "jax"})):
        (tmp_path / "kernels" / name).mkdir(parents=True)
        (tmp_path / "kernels" / name / "kernel.json").write_text(json.dumps(spec | {"env": backend}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.delenv("KERAS_BACKEND", raising=False)
    code = "import os, sys; print('wave' in sys.modules, os.environ.get('KERAS_BACKEND'))"
    for name, expected in (("same", "True None\n"), ("other", "False jax\n")):
        with kernel(name) as (_, channels):
            assert execute(channels, code)[0] == expected


def test_a_kernel_is_interrupted_and_restarted_and_its_death_is_noticed(light, wait_for, gone):
    with kernel() as (manager, channels):
        # Interrupted before the cell's own code runs, ipykernel would go on to run it.
        asked = channels.execute("import time; print('here', flush=True); time.sleep(600)")
        wait_for(lambda: channels.get_iopub_msg(timeout=10)["msg_type"] == "stream")
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
        guard = psutil.Process(manager.provisioner.pid)
        guard.children()[0].kill()
        wait_for(lambda: not manager.is_alive())
        assert manager.provisioner.process is None or manager.provisioner.process.poll() == -signal.SIGKILL


TELLS_OF_A_GPU = """
import sys, types
kinds = [types.SimpleNamespace(device_type=kind) for kind in ("CPU", "GPU")]
config = types.SimpleNamespace(list_physical_devices=lambda: kinds)
sys.modules["tensorflow"] = types.SimpleNamespace(config=config)
"""


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(
    ("module", "line"),
    [
        (
            "import threading, time\nthreading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
            "Kernels start in the plain way: the imports started 1 threads.",
        ),
        (TELLS_OF_A_GPU, "Kernels start in the plain way: a device other than the CPU is visible (GPU)."),
        ("raise RuntimeError", "Papermill starts in the plain way: the fork server has ended."),
    ],
    ids=["threads", "GPU", "no server"],
)
def test_where_a_fork_is_not_sound_the_plain_way_is_taken_and_one_line_says_why(
    module, line, tmp_path, make_collection, command_line
):
    (tmp_path / "tests_unfit.py").write_text(module)
    source = "import sys; assert 'tests_unfit' not in sys.modules"
    make_collection(tmp_path / "notebooks", {name: ["seed = 0", source] for name in ("00_a", "01_b")})
    command = command_line(tmp_path / "out", first="forkserver.KERNELS = ('tests_unfit',)")
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert done.stdout.count(line) == 1


def test_a_killed_server_is_followed_by_another(light, wait_for, gone):
    with kernel() as (manager, _):
        pid = manager.provisioner.pid
        server = psutil.Process(pid).parent()
        assert server.pid != os.getpid(), "it was not forked"
        server.kill()
        wait_for(lambda: not manager.is_alive())
    wait_for(lambda: gone(pid))
    with kernel() as (manager, channels):
        assert isinstance(manager.provisioner.process, forkserver.Forked)
        assert execute(channels, "print(1 + 1)")[0] == "2\n"


def test_the_server_has_one_thread_and_keeps_nothing_of_its_children(light, wait_for):
    started = forkserver.start(time.sleep, 0.5)
    process = psutil.Process(started.pid).parent()
    started.join()
    wait_for(lambda: process.children() == [])
    before = process.num_fds()
    for _ in range(20):
        forkserver.start(time.sleep, 0).join()
    wait_for(lambda: process.children() == [])
    wait_for(lambda: process.num_fds() <= before, 30)  # the server closes the last one a little after its child is gone
    assert process.num_threads() == 1
