"""A process below a guard, started by a fork or in the plain way, and the provisioner that Jupyter calls."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping, Sequence
from multiprocessing import reduction
from multiprocessing.connection import Client, wait
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.provisioning import LocalProvisioner
from traitlets import Unicode


class ForkError(RuntimeError):
    """A process cannot be started by a fork: the message says why. It can still be started in the plain way."""


class ServerGoneError(ForkError):
    """The fork server has ended, so no process can be started by a fork any more."""


class ForkedProcess:
    """A child of a fork server that behaves like a `subprocess.Popen`.

    It starts in a session of its own. It ends with this object's process: its guard kills it when the connection
    between them closes. Whatever it has started ends with it.
    """

    def __init__(
        self,
        address: str,
        command: Sequence[str],
        *,
        cwd: str | os.PathLike | None = None,
        env: Mapping[str, str] | None = None,
        stdin=None,
        stdout=None,
        stderr=None,
    ):
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

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal.

        Raises:
            subprocess.TimeoutExpired: after ``timeout`` seconds.
        """
        # The guard sends the status and closes its end, so that all threads which wait here go on. This end stays
        # open as long as there may be any.
        if self.returncode is None and not wait([self._connection], timeout):
            raise subprocess.TimeoutExpired(self.args, timeout)
        with self._lock:
            if self.returncode is None:
                try:
                    self.returncode = json.loads(self._connection.recv_bytes())["returncode"]
                except (EOFError, OSError):
                    self.returncode = -signal.SIGKILL  # the guard died, and the system killed its child
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process is known to have ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class PlainProcess(subprocess.Popen):
    """A program below a guard of its own, where there are guards (on Linux): `pid` is then the guard's.

    It starts in a session of its own. It ends with this object's process, as a `ForkedProcess` does.
    """

    def __init__(self, command: Sequence[str], **kwargs):
        """Start the program. Takes what `subprocess.Popen` takes."""
        self._guarded = sys.platform == "linux"
        if not self._guarded:
            super().__init__(command, start_new_session=True, **kwargs)
            return
        lifeline, held = os.pipe()
        weakref.finalize(self, os.close, held)
        guard = [sys.executable, "-P", "-m", "tapelab.collection.processes.guard", str(lifeline)]
        try:
            super().__init__([*guard, *command], pass_fds=(lifeline,), start_new_session=True, **kwargs)
        finally:
            os.close(lifeline)

    def kill(self) -> None:
        """End the program and all that it has started."""
        if self._guarded:
            self.send_signal(signal.SIGTERM)  # to the guard
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        super().kill()


class ForkProvisioner(LocalProvisioner):
    """Starts a kernel by a fork of the server at `address`; in the plain way if that fails, with a line in the log.

    A kernel specification names it in its metadata. `Starter` writes such a specification.
    """

    address = Unicode(help="The path of the fork server's socket.").tag(config=True)

    async def launch_kernel(self, cmd: list[str], **kwargs: Any) -> dict[str, Any]:
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

    async def kill(self, restart: bool = False) -> None:
        """Kill the kernel, and wait a moment for its end: Jupyter itself looks ten times a second."""
        await super().kill(restart)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
