"""Fork servers, for as long as they are needed, and what starts processes by them or without."""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from multiprocessing.connection import wait
from typing import Any

from tapelab.collection.forkserver.process import ForkedProcess, ForkError, PlainProcess, ServerGoneError
from tapelab.collection.processes.scratch import folder

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

PROVISIONER = "tapelab-fork-provisioner"  # its name in pyproject.toml

# What the servers import: all that notebooks do, and all that papermill does. Only what starts no thread and runs no
# operation. Papermill has a server of its own: its processes are a tenth as large without TensorFlow, start and end in
# a third of the time, and outlive the other server, to say what has become of a kernel.
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
PROCESSES = (
    "papermill",
    "jupyter_client.asynchronous",
    "jupyter_client.manager",
    "ipykernel.kernelspec",
    "tapelab.process.files",
    "tapelab.collection.forkserver",
    "tapelab.collection.running.kernel",
)

READY_SECONDS = 120
END_SECONDS = 10  # for a server and its children to end
LOOK_SECONDS = 0.1  # between two looks at whether a server need not become ready any more


class Starter:
    """Starts processes, and lets Jupyter start kernels: by a fork where possible, in the plain way elsewhere.

    Attributes:
        environment: the environment of every process, which leads Jupyter to kernels that fork: a dict.
        kernels: the path of the socket of the fork server for kernels, or None where they start in the plain way.
        processes: the same for `popen`.
    """

    def __init__(
        self,
        environment: dict[str, str],
        kernels: str | None = None,
        processes: str | None = None,
        say: Callable[[str], None] = print,
    ):
        """Made by `starter`; made without addresses, it starts everything in the plain way."""
        self.environment, self.kernels, self.processes, self._say = environment, kernels, processes, say

    def popen(self, command: Sequence[str], **kwargs: Any) -> PlainProcess | ForkedProcess:
        """Start a Python process in a session of its own, with `environment`.

        Args:
            command: ``[sys.executable, "-m" or "-c", ...]``; any other is started in the plain way.
            **kwargs: ``cwd``, ``stdin``, ``stdout``, ``stderr``, as for `subprocess.Popen`.

        Returns:
            A `PlainProcess`, which is a `subprocess.Popen`, or a `ForkedProcess`, which has its ``pid``, ``poll``,
            ``wait``, ``send_signal``, ``kill``, ``stdin``, ``stdout``, ``stderr`` and ``returncode``.
        """
        if self.processes is not None:
            try:
                return ForkedProcess(self.processes, command, env=self.environment, **kwargs)
            except ServerGoneError as error:
                self._say(f"Papermill starts in the plain way from here on: {error}.")
                self.processes = None
            except ForkError as error:
                self._say(f"Papermill starts in the plain way: {error}.")
        return PlainProcess(command, env=self.environment, **kwargs)


class Shared:
    """One `Starter` for several threads, made when the first of them asks for it, while the others wait."""

    def __init__(
        self,
        environment: Mapping[str, str],
        *,
        fork: bool,
        say: Callable[[str], None],
        kernels: Iterable[str] | None = None,
    ):
        """Prepare; nothing starts yet.

        Args:
            environment: as for `starter`.
            fork: whether there are to be fork servers.
            say: as for `starter`.
            kernels: as for `starter`; what tapelab's own notebooks need, if None.
        """
        self._environment, self._fork, self._say = environment, fork, say
        self._kernels = KERNELS if kernels is None else kernels
        self._lock, self._cleanup, self._made = threading.Lock(), contextlib.ExitStack(), None
        self._called_off = threading.Event()

    def get(self, kernel: str) -> Starter:
        """The starter. With the first call, the servers import what the kernel of this name needs."""
        with self._lock:
            if self._made is None:
                self._made = Starter(dict(self._environment))
                if self._fork and not self._called_off.is_set():
                    servers = starter(
                        self._environment,
                        kernel=kernel,
                        kernels=self._kernels,
                        say=self._tell,
                        called_off=self._called_off.is_set,
                    )
                    self._made = self._cleanup.enter_context(servers)
            return self._made

    def _tell(self, line):
        if not self._called_off.is_set():
            self._say(line)

    def rest(self) -> None:
        """End the servers. The next call of `get` starts them anew."""
        with self._lock:
            self._cleanup.close()
            self._made = None

    def call_off(self) -> None:
        """Wait for no import any more: `get` returns at once. Servers that are ready stay."""
        self._called_off.set()

    def close(self) -> None:
        """End the servers for good."""
        self.call_off()
        self.rest()


@contextlib.contextmanager
def starter(
    environment: Mapping[str, str] | None = None,
    *,
    kernel: str = "python3",
    kernels: Iterable[str] = KERNELS,
    processes: Iterable[str] = PROCESSES,
    say: Callable[[str], None] = print,
    called_off: Callable[[], bool] = lambda: False,
) -> Iterator[Starter]:
    """Start fork servers for as long as the block runs. When the block ends, or this process does, all children end.

    Args:
        environment: the environment of every process and kernel: a dict; this process's if None.
        kernel: the name of the Jupyter kernel that shall start by a fork. Under this name, `Starter.environment` leads
            Jupyter to a copy of its specification, with `ForkProvisioner`.
        kernels: the modules that the server for kernels imports.
        processes: the modules that the server for `Starter.popen` imports.
        say: called with one line if anything starts in the plain way.
        called_off: whether nobody waits for the servers any more; asked while they import.

    Yields:
        A `Starter`.
    """
    environment = dict(os.environ if environment is None else environment)
    if sys.platform != "linux":
        say(f"Everything starts in the plain way: a fork is safe on Linux only, and this is {sys.platform}.")
        yield Starter(environment)
        return
    with contextlib.ExitStack() as cleanup:
        addresses = {}
        for_processes = cleanup.enter_context(_Server(environment, processes))  # both import at the same time
        try:
            spec = _specification(kernel)
            for_kernels = cleanup.enter_context(_Server(environment, kernels))
            addresses["kernels"] = for_kernels.ready(called_off)
            paths = [for_kernels.add_kernel(kernel, spec), environment.get("JUPYTER_PATH", "")]
            environment["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
        except ForkError as error:
            say(f"Kernels start in the plain way: {error}.")
        try:
            addresses["processes"] = for_processes.ready(called_off)
        except ForkError as error:
            say(f"Papermill starts in the plain way: {error}.")
        yield Starter(environment, **addresses, say=say)


def _specification(kernel):
    """The kernel's specification as a dict, if a fork of this Python can stand for it."""
    try:
        spec = KernelSpecManager().get_kernel_spec(kernel).to_dict()
    except NoSuchKernel:
        raise ForkError(f"there is no kernel {kernel!r}") from None
    pythons = {"python", "python3", "python{}.{}".format(*sys.version_info[:2]), sys.executable}  # as in jupyter_client
    if spec["argv"][0] not in pythons or spec["argv"][1:3] != ["-m", "ipykernel_launcher"]:
        raise ForkError(f"the kernel {kernel!r} is not this Python's ipykernel: {spec['argv'][:3]}")
    return spec


class _Server:
    """A fork server's process, for as long as the block runs, and its folder."""

    def __init__(self, environment, modules):
        """Start the process, which begins with its imports."""
        self._scratch = contextlib.ExitStack()
        self._folder = self._scratch.enter_context(folder())
        self._address, self._ready = str(self._folder / "socket"), False
        command = [sys.executable, "-m", "tapelab.collection.forkserver.server", self._address, *modules]
        with (self._folder / "log").open("wb") as log:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)

    def ready(self, called_off):
        """Wait until it can fork. Returns its address. Raises `ForkError` if it does not become ready."""
        until = time.monotonic() + READY_SECONDS
        while not wait([self._process.stdout], LOOK_SECONDS):
            if called_off():
                raise ForkError("it is called off")
            if time.monotonic() > until:
                raise ForkError(f"the fork server was not ready after {READY_SECONDS} s")
        line = self._process.stdout.readline()
        if not line:
            last = (self._folder / "log").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise ForkError(f"the fork server ended with status {self._process.wait()}: {last}")
        refusal = json.loads(line)["refusal"]
        if refusal is not None:
            raise ForkError(refusal)
        self._ready = True
        return self._address

    def add_kernel(self, name, spec):
        """Write a kernel's specification, such that the kernel starts by a fork. Returns what Jupyter's path needs."""
        config = {"address": self._address}
        spec["metadata"]["kernel_provisioner"] = {"provisioner_name": PROVISIONER, "config": config}
        place = self._folder / "kernels" / name
        place.mkdir(parents=True)
        (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        return str(self._folder)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._process.stdin.close()  # the server ends its children and itself
        try:
            # In the middle of its imports it would not notice, and has no children.
            self._process.wait(timeout=END_SECONDS if self._ready else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._scratch.close()
