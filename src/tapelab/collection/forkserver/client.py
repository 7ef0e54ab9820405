"""What asks the fork server: a runner, and Jupyter on behalf of papermill."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from multiprocessing import reduction
from multiprocessing.connection import Client, wait
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Unicode

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
    "jupyter_client.manager",
    "ipykernel.kernelspec",
    "tapelab.files",
    "tapelab.collection.forkserver",
)

READY_SECONDS = 120


class ForkError(RuntimeError):
    """A process cannot be started by a fork: the message says why. It can still be started in the plain way."""


class ServerGoneError(ForkError):
    """The fork server has ended, so no process can be started by a fork any more."""


class ForkedProcess:
    """A child of a fork server that behaves like a `subprocess.Popen`.

    It starts in a session of its own. It ends with this object's process: the server kills it when the connection
    between them closes.
    """

    def __init__(self, address, command, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None):
        """Fork a process.

        Args:
            address: the path of the server's socket.
            command: ``[sys.executable, "-m", module, argument, ...]``, or with ``"-c"`` and code. ``"-P"`` may come
                first, which keeps the folder off the path for imports.
            cwd: its folder; this process's if None.
            env: its environment; this process's if None.
            stdin, stdout, stderr: None, a file, a descriptor, `subprocess.DEVNULL` or `subprocess.PIPE`; for
                ``stderr``, also `subprocess.STDOUT`.

        Raises:
            ForkError: if the server refuses, or the command is none that it knows.
            ServerGoneError: if the server has ended.
        """
        if command[0] != sys.executable or not {"-m", "-c"} & set(command[1:3]):
            raise ForkError(f"{command[:3]} is not {sys.executable} with -m or -c")
        self.args, self.returncode = command, None
        self.stdin = self.stdout = self.stderr = None
        self._lock = threading.Lock()
        request = {
            "command": command[1:],
            "cwd": os.fspath(cwd or Path.cwd()),
            "environment": dict(os.environ if env is None else env),
        }
        try:
            self._connection = Client(address, family="AF_UNIX")
            try:
                self._send(request, stdin, stdout, stderr)
                answer = json.loads(self._connection.recv_bytes())
                if "pid" not in answer:
                    raise ForkError(answer.get("error", f"the fork ended at once with {answer}"))
            except BaseException:
                for opened in (self._connection, self.stdin, self.stdout, self.stderr):
                    if opened is not None:
                        opened.close()
                raise
        except (OSError, EOFError) as error:
            raise ServerGoneError(f"the fork server does not answer ({error or 'end of file'})") from error
        self.pid = answer["pid"]

    def _send(self, request, *streams):
        with contextlib.ExitStack() as sent:  # what this process need not keep
            numbers = []
            for number, (name, stream) in enumerate(zip(("stdin", "stdout", "stderr"), streams, strict=True)):
                if stream is None:
                    numbers.append(number)
                elif stream == subprocess.DEVNULL:
                    numbers.append(sent.enter_context(Path(os.devnull).open("r+b")).fileno())
                elif stream == subprocess.STDOUT:
                    numbers.append(numbers[1])
                elif stream == subprocess.PIPE:
                    read, write = os.pipe()
                    theirs, ours, mode = (read, write, "wb") if name == "stdin" else (write, read, "rb")
                    sent.callback(os.close, theirs)
                    setattr(self, name, open(ours, mode))  # noqa: PTH123, SIM115 (a descriptor, held as Popen does)
                    numbers.append(theirs)
                else:
                    numbers.append(stream if isinstance(stream, int) else stream.fileno())
            self._connection.send_bytes(json.dumps(request).encode())
            for number in numbers:
                reduction.send_handle(self._connection, number, None)

    def wait(self, timeout=None):
        """Return the exit status, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: after ``timeout`` seconds.
        """
        # The server sends the status and closes its end, so that all threads which wait here go on. This end stays
        # open as long as there may be any.
        if self.returncode is None and not wait([self._connection], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = json.loads(self._connection.recv_bytes())["returncode"]
                except (EOFError, OSError):
                    self.returncode = -9  # the server died, and the kernel of the system killed its children
        return self.returncode

    def poll(self):
        """Return the exit status, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number):
        """Send a signal, unless the process is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self):
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class ForkProvisioner(LocalProvisioner):
    """Starts a kernel by a fork of the server at `address`; in the plain way if that fails, with a line in the log.

    A kernel specification names it in its metadata. `Starter` writes such a specification.
    """

    address = Unicode(help="The path of the fork server's socket.").tag(config=True)

    async def launch_kernel(self, cmd, **kwargs):
        """Start the kernel process, and return its connection information."""
        streams = {name: kwargs.get(name) for name in ("stdout", "stderr")}
        try:
            self.process = ForkedProcess(
                self.address, cmd, cwd=kwargs.get("cwd"), env=kwargs["env"], stdin=subprocess.DEVNULL, **streams
            )
        except ForkError as error:
            self.log.warning("The kernel starts in the plain way: %s.", error)
            return await super().launch_kernel(cmd, **kwargs)
        self.pid = self.pgid = self.process.pid
        self.cwd = kwargs.get("cwd", Path.cwd())
        return self.connection_info

    async def kill(self, restart=False):
        """Kill the kernel, and wait a moment for its end: Jupyter itself looks ten times a second."""
        await super().kill(restart)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)


class Starter:
    """Starts processes, and lets Jupyter start kernels: by a fork where possible, in the plain way elsewhere.

    Attributes:
        environment: the environment of every process, which leads Jupyter to kernels that fork: a dict.
        kernels: the path of the socket of the fork server for kernels, or None where they start in the plain way.
        processes: the same for `popen`.
    """

    def __init__(self, environment, kernels=None, processes=None, say=print):
        """Made by `starter`; made without addresses, it starts everything in the plain way."""
        self.environment, self.kernels, self.processes, self._say = environment, kernels, processes, say

    def popen(self, command, **kwargs):
        """Start a Python process in a session of its own, with `environment`.

        Args:
            command: ``[sys.executable, "-m" or "-c", ...]``; any other is started in the plain way.
            **kwargs: ``cwd``, ``stdin``, ``stdout``, ``stderr``, as for `subprocess.Popen`.

        Returns:
            A `subprocess.Popen`, or a `ForkedProcess`, which has its ``pid``, ``poll``, ``wait``, ``send_signal``,
            ``kill``, ``stdin``, ``stdout``, ``stderr`` and ``returncode``.
        """
        if self.processes is not None:
            try:
                return ForkedProcess(self.processes, command, env=self.environment, **kwargs)
            except ServerGoneError as error:
                self._say(f"Papermill starts in the plain way from here on: {error}.")
                self.processes = None
            except ForkError as error:
                self._say(f"Papermill starts in the plain way: {error}.")
        return subprocess.Popen(command, env=self.environment, start_new_session=True, **kwargs)


@contextlib.contextmanager
def starter(environment=None, *, kernel="python3", kernels=KERNELS, processes=PROCESSES, say=print):
    """Start fork servers for as long as the block runs. When the block ends, or this process does, all children end.

    Args:
        environment: the environment of every process and kernel: a dict; this process's if None.
        kernel: the name of the Jupyter kernel that shall start by a fork. Under this name, `Starter.environment` leads
            Jupyter to a copy of its specification, with `ForkProvisioner`.
        kernels: the modules that the server for kernels imports.
        processes: the modules that the server for `Starter.popen` imports.
        say: called with one line if anything starts in the plain way.

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
            addresses["kernels"] = for_kernels.ready()
            paths = [for_kernels.add_kernel(kernel, spec), environment.get("JUPYTER_PATH", "")]
            environment["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
        except ForkError as error:
            say(f"Kernels start in the plain way: {error}.")
        try:
            addresses["processes"] = for_processes.ready()
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
        self._folder = Path(tempfile.mkdtemp(prefix="tapelab-"))
        self._address = str(self._folder / "socket")
        command = [sys.executable, "-m", "tapelab.collection.forkserver.server", self._address, *modules]
        with (self._folder / "log").open("wb") as log:
            streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
            self._process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)

    def ready(self):
        """Wait until it can fork. Returns its address. Raises `ForkError` if it does not become ready."""
        if not wait([self._process.stdout], READY_SECONDS):
            raise ForkError(f"the fork server was not ready after {READY_SECONDS} s")
        line = self._process.stdout.readline()
        if not line:
            last = (self._folder / "log").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise ForkError(f"the fork server ended with status {self._process.wait()}: {last}")
        refusal = json.loads(line)["refusal"]
        if refusal is not None:
            raise ForkError(refusal)
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
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)
