"""The fork server's process: import, wait for requests, fork.

One connection for each child. The server forks as soon as one is made, so no client can hold up another: the fork reads
the request, becomes a guard (`tapelab.collection.processes.guard`), and forks once more. The request holds the command,
its folder and environment, and the three standard streams. The child answers with its process id once it is set up;
when it and all that it started have ended, the guard sends its exit status. A client that goes away takes its child
along, and a runner that goes away takes the server and every child.

    python -m tapelab.collection.forkserver.server SOCKET MODULE ...

with the runner at the other end of a pipe on standard input, and one line of JSON on standard output when it is ready.
"""

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import os
import runpy
import signal
import socket
import sys
import time
import types
from collections.abc import Iterator
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path

from tapelab.collection.processes import guard

# Variables that may differ between the server and a child. Libraries read more than a hundred others while they are
# imported (TF_ENABLE_ONEDNN_OPTS, KERAS_BACKEND, PYTHONHASHSEED, TMPDIR, ...), too late for a child to change.
MAY_DIFFER = {
    *("JPY_PARENT_PID", "JPY_SESSION_NAME", "JUPYTER_PATH", "PYDEVD_DISABLE_FILE_VALIDATION"),  # Jupyter's own
    *("COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL", "_"),  # a shell's, or readline's
}
MAY_DIFFER_PREFIX = ("PYTEST_", "TAPELAB_")  # pytest says with them which test is under way

# In the order in which OpenBLAS looks at them.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")

REQUEST_SECONDS = 30  # in which a request must be complete
NOTICE_SECONDS = 2  # in which guards notice by themselves that there is an end, and tidy up; then they are killed

_libc = ctypes.CDLL(None)


def threads() -> int:
    """How many threads this process has, native ones included."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def import_all(modules: list[str]) -> dict[str, str]:
    """Import what the children will need.

    Returns:
        The environment variables that the imports set: a dict.
    """
    # OpenBLAS starts its threads when it is loaded; a child sets the number that it should have.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # ipykernel reads this while it is imported. With 1 it does not watch its parent, which is a guard that watches it.
    os.environ["JPY_PARENT_PID"] = "1"
    # matplotlib reads this while it is imported; ipykernel sets it, too late for a child.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    before = dict(os.environ)
    for module in ("threadpoolctl", *modules):  # which sets a variable itself
        importlib.import_module(module)
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def unfit() -> str | None:
    """One line on why this process must not be forked, or None."""
    if "tensorflow" in sys.modules:
        devices = {device.device_type for device in sys.modules["tensorflow"].config.list_physical_devices()}
        if devices != {"CPU"}:
            return f"a device other than the CPU is visible ({', '.join(sorted(devices - {'CPU'}))})"
    if threads() != 1:
        return f"the imports started {threads() - 1} threads"
    return None


class Server:
    """The loop that accepts connections and forks, and what each fork does with its request."""

    def __init__(self, listener: socket.socket, environment: dict[str, str], set_by_imports: dict[str, str]):
        """Serve requests that arrive on `listener`.

        Args:
            listener: a socket.
            environment: the environment that a child must have, but for `MAY_DIFFER`.
            set_by_imports: variables that the imports set in their own process, and so in every child.
        """
        self._listener = listener
        self._environment = environment
        self._set_by_imports = set_by_imports
        self._guards = set()  # their process ids

    def serve(self) -> list[str] | None:
        """Fork for each connection until the runner is gone, then end every child.

        Returns:
            None in the server; in each child, its command.
        """
        guard.adopt_orphans()  # what a guard cannot end that was itself killed
        wakeups, runner = guard.Wakeups(), sys.stdin.fileno()
        lifeline, held = os.pipe()  # held by the server alone, so that guards notice its end
        while True:
            ready = wait([runner, wakeups, self._listener])
            if wakeups in ready and wakeups.asked_to_end():
                break
            self._tidy()
            if runner in ready:
                break
            if self._listener in ready:
                accepted, _ = self._listener.accept()
                connection = Connection(accepted.detach())
                refusal = f"the fork server has {threads()} threads" if threads() != 1 else None
                pid = os.fork() if refusal is None else 0
                if pid:
                    self._guards.add(pid)
                elif refusal is not None:
                    _answer(connection, error=refusal)
                else:
                    wakeups.close()
                    self._listener.close()
                    os.close(held)
                    return self._follow(connection, lifeline)
                connection.close()
        os.close(held)
        until = time.monotonic() + NOTICE_SECONDS
        while self._guards and time.monotonic() < until:
            time.sleep(0.005)
            self._tidy()
        guard.end_descendants()
        return None

    def _tidy(self):
        """Collect the guards that have ended, and end what one has left that could not do it."""
        ended = guard.reap()
        self._guards -= ended.keys()
        if any(status < 0 for status in ended.values()):
            guard.end_descendants(keep=self._guards)

    def _follow(self, connection, lifeline):
        """Read a request, and split into a guard and the child. Returns the command in the child."""
        signal.alarm(REQUEST_SECONDS)
        streams = []
        try:
            request = json.loads(connection.recv_bytes())
            command, folder, environment = request["command"], request["cwd"], request["environment"]
            refusal = self._refuse(environment)
            streams += [reduction.recv_handle(connection) for _ in range(3)]
        except Exception as error:  # whatever a client that is not ours may send
            refusal = f"the request cannot be read: {type(error).__name__}: {error}"
        signal.alarm(0)
        if refusal is not None:
            _answer(connection, error=refusal)
            os._exit(0)
        try:
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
                os.close(stream)
            guard.split(connection.fileno(), lifeline, at_end=lambda status: _answer(connection, returncode=status))
            os.close(lifeline)
            os.setsid()
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(self._set_by_imports | environment, JPY_PARENT_PID=str(os.getppid()))
            _make_its_own()
        except BaseException as error:
            _answer(connection, error=str(error))
            os._exit(1)
        _answer(connection, pid=os.getpid())
        connection.close()
        return command

    def _refuse(self, environment):
        """One line on why a request cannot be served by a fork, or None."""
        ours, set_by_imports = self._environment, self._set_by_imports
        differ = [
            name
            for name in sorted(ours.keys() | environment.keys())
            if name not in MAY_DIFFER
            and not name.startswith(MAY_DIFFER_PREFIX)
            and environment.get(name) != ours.get(name)
            # A child's own child has these from the start.
            and not (name in set_by_imports and environment.get(name) == set_by_imports[name])
        ]
        return f"its environment is not the fork server's in {', '.join(differ)}" if differ else None


def _answer(connection, **content):
    with contextlib.suppress(OSError):  # the client has gone
        connection.send_bytes(json.dumps(content).encode())


def _make_its_own():
    """Give a forked child what it would have set up for itself while it imported its modules."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator sees to itself after a fork
    given = next((os.environ[name] for name in BLAS_THREADS if os.environ.get(name, "").isdigit()), None)
    blas_threads = int(given) if given else len(os.sched_getaffinity(0))
    if blas_threads > 1:
        sys.modules["threadpoolctl"].threadpool_limits(blas_threads, user_api="blas")


def run(command: list[str]) -> None:
    """Run what ``python *command`` would: ``[-P] -m MODULE ARGUMENT ...`` or ``[-P] -c CODE ARGUMENT ...``."""
    safe_path = command[0] == "-P"
    option, what, *arguments = command[safe_path:]
    if not safe_path:
        sys.path.insert(0, str(Path.cwd()) if option == "-m" else "")
    if option == "-m":
        sys.argv = [what, *arguments]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        sys.argv = ["-c", *arguments]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(what, "<string>", "exec"), vars(sys.modules["__main__"]))


class QuickExit:
    """Ends a child once its command and its exit handlers have run.

    The interpreter would go on to take apart every module. That takes longer than the fork, and the system frees the
    memory anyway. `multiprocessing` ends its forked children in the same way.
    """

    def __init__(self):
        """Be the first exit handler, which runs last."""
        self._status = None  # None: leave it to the interpreter
        atexit.register(self._end)

    @contextlib.contextmanager
    def after(self) -> Iterator[None]:
        """End this process with the exit status of the block."""
        try:
            yield
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                self._status = (end.code or 0) & 0xFF
            raise
        self._status = 0

    def _end(self):
        if self._status is not None:
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(AttributeError, OSError, ValueError):  # none, broken or closed
                    stream.flush()
            _libc.fflush(None)  # what native code has printed
            os._exit(self._status)


def main() -> None:
    """Import the modules, report on standard output, serve; in a child, run its command."""
    quick_exit = QuickExit()
    address, *modules = sys.argv[1:]
    sys.path.pop(0)  # the folder that `python -m` puts first: a child has its own
    environment = dict(os.environ)
    set_by_imports = import_all(modules)
    refusal = unfit()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    os.write(1, json.dumps({"refusal": refusal}).encode() + b"\n")
    if refusal is not None:
        return
    with Path(os.devnull).open("wb") as null:
        os.dup2(null.fileno(), 1)
    # The children share the memory of what is imported until they write to it: the collector would.
    gc.collect()
    gc.freeze()
    command = Server(listener, environment, set_by_imports).serve()
    if command is not None:
        with quick_exit.after():
            run(command)


if __name__ == "__main__":
    main()
