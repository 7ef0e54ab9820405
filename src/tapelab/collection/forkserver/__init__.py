"""Start processes by forking one that has imported already what takes long to import.

Importing TensorFlow takes most of the time that a short notebook runs. The fork server of Python's `multiprocessing`
imports it once, with papermill; each run's process and each kernel is a fork of it, which takes a fraction of a second.

A fork copies one thread. TensorFlow's thread pools, and CUDA, do not survive that, but neither exists before the first
operation runs. So the server runs none, and where its imports have started a thread, or a GPU is visible, a kernel
takes the place of its fork as a new program. Elsewhere than on Linux, processes start in the plain way.

`before` and `after` are what the server imports first and last.
"""

import contextlib
import importlib
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

from tapelab.collection.processes import interrupts

from jupyter_client.provisioning import LocalProvisioner

PROVISIONER = "tapelab-fork-provisioner"  # its name in pyproject.toml
DEFAULT = "JUPYTER_DEFAULT_PROVISIONER_NAME"  # the variable by which Jupyter starts all kernels with it

# What the server imports: all that notebooks do, and all that papermill does. Only what starts no thread and runs no
# operation.
KERNELS = (
    "tapelab.runtime",
    "keras",
    "matplotlib.pyplot",
    "tapelab.data",
    "tapelab.derivatives",
    "tapelab.explain",
    "tapelab.gradcheck",
    "tapelab.optimize",
    "tapelab.plots",
    "ipykernel.kernelapp",
)
PAPERMILL = ("tapelab.collection.running.execution",)

# In the order in which OpenBLAS looks at them.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")


def imports() -> list[str]:
    """The modules that the server imports, in order."""
    return [f"{__name__}.before", *KERNELS, *PAPERMILL, f"{__name__}.after"]


def unfit() -> str | None:
    """Why this process is no sound copy of the fork server, in a line; None if it is one, or was not forked at all."""
    after = sys.modules.get(f"{__name__}.after")
    return after and after.UNFIT


def start(target: Callable, *arguments: Any, fork: bool = True) -> multiprocessing.process.BaseProcess:
    """Start a process that calls a function and ends: by a fork, or, where that is not wanted or not Linux, anew.

    Raises:
        OSError, EOFError: if there is no fork server, or it ends during its imports.
    """
    forks = fork and sys.platform == "linux"
    context = multiprocessing.get_context("forkserver" if forks else "spawn")
    if forks:
        context.set_forkserver_preload(imports())
    process = context.Process(target=target, args=arguments)
    with _uninterrupted():
        process.start()
    return process


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Block signals: a new program inherits that, and must not be interrupted before it is one of its own."""
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, interrupts.WATCHED)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def settle(folder: str | os.PathLike, environment: Mapping[str, str], *streams: int) -> None:
    """Make this process one of its own, below a guard: what it is started with, it shares with nobody.

    Args:
        folder: the one to work in.
        environment: all of its variables.
        streams: the descriptors of standard output and error.
    """
    own_session()
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if sys.platform == "linux":
        from tapelab.collection.processes import guard  # which only Linux has what it takes for

        guard.split(multiprocessing.parent_process().sentinel)


def own_session() -> None:
    """Let no interrupt from the keyboard reach this process, but every signal that is sent to it."""
    if hasattr(os, "setsid"):
        with contextlib.suppress(PermissionError):  # it leads one already
            os.setsid()
        signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _run_kernel(
    command: list[str],
    folder: str | os.PathLike,
    environment: Mapping[str, str],
    out: Connection,
    error: Connection,
) -> None:
    """Be a forked kernel: run what ``python -m MODULE ARGUMENT ...`` would."""
    settle(folder, environment, out.fileno(), error.fileno())
    if unfit():
        os.execv(command[0], command)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator sees to itself after a fork
    limits = {"blas": _threads(*BLAS_THREADS), "openmp": _threads("OMP_NUM_THREADS")}
    importlib.import_module("threadpoolctl").threadpool_limits(limits)
    if not sys.flags.safe_path:
        sys.path.pop(0)  # the folder of the program that asked for this
    _, _, module, *sys.argv[1:] = command
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _threads(*names: str) -> int:
    given = next((os.environ[name] for name in names if os.environ.get(name, "").isdigit()), None)
    return int(given or len(os.sched_getaffinity(0)))


class Forked:
    """A forked process that behaves like a `subprocess.Popen`, as far as Jupyter asks."""

    stdin = stdout = stderr = None

    def __init__(self, process: multiprocessing.process.BaseProcess):
        self._process, self.pid = process, process.pid

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end. Returns what `poll` does."""
        self._process.join(timeout)
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send a signal to its guard, which ends all where it is to be killed, and passes an interrupt on."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM if number == signal.SIGKILL else number)


class ForkProvisioner(LocalProvisioner):
    """Starts a kernel by a fork; in the plain way if it is not this Python's ipykernel, or the fork fails.

    Also if its specification sets variables: libraries read more than a hundred of them (KERAS_BACKEND,
    TF_ENABLE_ONEDNN_OPTS, ...) while they are imported, which the server has done.

    The variable `DEFAULT`, set to `PROVISIONER`, has Jupyter use it.
    """

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
        """Start the kernel process, and return its connection information."""
        is_ours = cmd[:3] == [sys.executable, "-m", "ipykernel_launcher"] and not self.kernel_spec.env
        if sys.platform != "linux" or not is_ours:
            return await super().launch_kernel(cmd, **kwargs)
        out, error = (_descriptor(kwargs.get(name), usual) for name, usual in (("stdout", 1), ("stderr", 2)))
        try:
            folder = kwargs.get("cwd") or os.getcwd()  # noqa: PTH109
            self.process = Forked(start(_run_kernel, cmd, folder, kwargs["env"], out, error))
        except (OSError, EOFError) as problem:
            self.log.warning("The kernel starts in the plain way: %s.", problem or "the fork server has ended")
            return await super().launch_kernel(cmd, **kwargs)
        self.pid = self.process.pid
        return self.connection_info

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel, and wait a moment for its end: Jupyter itself looks ten times a second."""
        await super().kill(restart)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)


def _descriptor(stream: Any, usual: int) -> Connection:
    """A stream as what can be sent to another process: a connection that nothing is sent over."""
    if stream == subprocess.DEVNULL:
        return Connection(os.open(os.devnull, os.O_RDWR))
    number = usual if stream is None else stream if isinstance(stream, int) else stream.fileno()
    return Connection(os.dup(number))
