"""What asks the fork server: a runner, and Jupyter on behalf of papermill."""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from multiprocessing import reduction
from multiprocessing.connection import Client, wait
from pathlib import Path

from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Unicode

PROVISIONER = "tapelab-fork-provisioner"  # its name in pyproject.toml

# What the server imports: all that notebooks and papermill do. Only what starts no thread and runs no operation.
PRELOAD = (
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
    "papermill.cli",
)

READY_SECONDS = 120


class ForkError(RuntimeError):
    """A process cannot be started by a fork: the message says why. It can still be started in the plain way."""


class ServerGoneError(ForkError):
    """The fork server has ended, so no process can be started by a fork any more."""


class ForkedProcess:
    """A child of the fork server that behaves like a `subprocess.Popen`, for the one thread that holds it.

    It starts in a session of its own. It ends with this object's process: the server kills it when the connection
    between them closes.
    """

    stdin = stdout = stderr = None

    def __init__(self, address, command, *, cwd=None, env=None, stdin=None, stdout=None, stderr=None):
        """Fork a process.

        Args:
            address: the path of the server's socket.
            command: ``[sys.executable, "-m", module, argument, ...]``, or with ``"-c"`` and code.
            cwd: its folder; this process's if None.
            env: its environment; this process's if None.
            stdin, stdout, stderr: None, a file, a descriptor, `subprocess.DEVNULL`; for ``stderr``, also
                `subprocess.STDOUT`.

        Raises:
            ForkError: if the server refuses, or these arguments need another way to start.
            ServerGoneError: if the server has ended.
        """
        if command[0] != sys.executable or len(command) < 3 or command[1] not in ("-m", "-c"):
            raise ForkError(f"{command[:2]} is not {sys.executable} with -m or -c")
        if subprocess.PIPE in (stdin, stdout, stderr):
            raise ForkError("it would need a pipe")
        self.args, self.returncode = command, None
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
                self._connection.close()
                raise
        except (OSError, EOFError) as error:
            raise ServerGoneError(f"the fork server does not answer ({error or 'end of file'})") from error
        self.pid = answer["pid"]

    def _send(self, request, stdin, stdout, stderr):
        with Path(os.devnull).open("r+b") as null:
            numbers = []
            for number, stream in enumerate((stdin, stdout, stderr)):
                if stream is None:
                    numbers.append(number)
                elif stream == subprocess.DEVNULL:
                    numbers.append(null.fileno())
                elif stream == subprocess.STDOUT:
                    numbers.append(numbers[1])
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
        if self.returncode is None:
            if not wait([self._connection], timeout):
                raise subprocess.TimeoutExpired(self.args, timeout)
            try:
                self.returncode = json.loads(self._connection.recv_bytes())["returncode"]
            except (EOFError, OSError):
                self.returncode = -9  # the server died, and the kernel of the system killed its children
            self._connection.close()
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


class Starter:
    """Starts processes, and lets Jupyter start kernels: by a fork where possible, in the plain way elsewhere.

    Attributes:
        environment: what a process needs whose kernels are to be forked: a dict.
        address: the path of the fork server's socket, or None where everything starts in the plain way.
    """

    def __init__(self, environment, address=None, say=print):
        """Made by `starter`."""
        self.environment, self.address, self._say = environment, address, say

    def popen(self, command, *, env=None, **kwargs):
        """Start a Python process in a session of its own.

        Args:
            command: ``[sys.executable, "-m" or "-c", ...]``; any other is started in the plain way.
            env: its environment, `environment` if None. It may differ from that in variables that start with
                ``TAPELAB_``; other differences make the plain way necessary.
            **kwargs: ``cwd``, ``stdin``, ``stdout``, ``stderr``, as for `subprocess.Popen`.

        Returns:
            A `subprocess.Popen`, or a `ForkedProcess`, which has its ``pid``, ``poll``, ``wait``, ``send_signal`` and
            ``returncode``.
        """
        env = self.environment if env is None else env
        if self.address is not None:
            try:
                return ForkedProcess(self.address, command, env=env, **kwargs)
            except ServerGoneError as error:
                self._say(f"Everything starts in the plain way from here on: {error}.")
                self.address = None
            except ForkError as error:
                self._say(f"A process starts in the plain way: {error}.")
        return subprocess.Popen(command, env=env, start_new_session=True, **kwargs)


@contextlib.contextmanager
def starter(environment=None, *, kernel="python3", preload=PRELOAD, say=print):
    """Start a fork server for as long as the block runs. When the block ends, or this process does, all children end.

    Args:
        environment: the environment of every process and kernel: a dict; this process's if None.
        kernel: the name of the Jupyter kernel that shall start by a fork. Under this name, `Starter.environment` leads
            Jupyter to a copy of its specification, with `ForkProvisioner`.
        preload: the modules that the server imports.
        say: called with one line if everything starts in the plain way.

    Yields:
        A `Starter`.
    """
    environment = dict(os.environ if environment is None else environment)
    with contextlib.ExitStack() as cleanup:
        try:
            spec = _specification(kernel)
            folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="tapelab-")))
            address = str(folder / "socket")
            process = cleanup.enter_context(_server(folder, address, environment, preload))
        except ForkError as error:
            say(f"Kernels start in the plain way: {error}.")
            yield Starter(environment)
            return
        del process
        spec["metadata"]["kernel_provisioner"] = {"provisioner_name": PROVISIONER, "config": {"address": address}}
        (folder / "kernels" / kernel).mkdir(parents=True)
        (folder / "kernels" / kernel / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
        paths = [str(folder), environment.get("JUPYTER_PATH", "")]
        yield Starter(environment | {"JUPYTER_PATH": os.pathsep.join(filter(None, paths))}, address, say)


def _specification(kernel):
    """The kernel's specification as a dict, if a fork of this Python can stand for it."""
    if sys.platform != "linux":
        raise ForkError(f"a fork is safe on Linux only, and this is {sys.platform}")
    try:
        spec = KernelSpecManager().get_kernel_spec(kernel).to_dict()
    except NoSuchKernel:
        raise ForkError(f"there is no kernel {kernel!r}") from None
    pythons = {"python", "python3", "python{}.{}".format(*sys.version_info[:2]), sys.executable}  # as in jupyter_client
    if spec["argv"][0] not in pythons or spec["argv"][1:3] != ["-m", "ipykernel_launcher"]:
        raise ForkError(f"the kernel {kernel!r} is not this Python's ipykernel: {spec['argv'][:3]}")
    return spec


@contextlib.contextmanager
def _server(folder, address, environment, preload):
    """Run the server for as long as the block does. Raises `ForkError` if it does not become ready."""
    command = [sys.executable, "-m", "tapelab.collection.forkserver.server", address, *preload]
    with (folder / "log").open("wb") as log:
        streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    try:
        if not wait([process.stdout], READY_SECONDS):
            raise ForkError(f"the fork server was not ready after {READY_SECONDS} s")
        line = process.stdout.readline()
        if not line:
            last = (folder / "log").read_text(encoding="utf-8", errors="replace").strip().rpartition("\n")[2]
            raise ForkError(f"the fork server ended with status {process.wait()}: {last}")
        refusal = json.loads(line)["refusal"]
        if refusal is not None:
            raise ForkError(refusal)
        yield process
    finally:
        process.stdin.close()  # the server ends its children and itself
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
