"""The fork server's process: import, wait for requests, fork.

One connection for each child. A request holds the command, its folder and environment, and the three standard streams.
The child answers with its process id once it is set up; when it ends, the server sends its exit status. A client that
goes away takes its child along, and a runner that goes away takes the server and every child.

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
import shutil
import signal
import socket
import sys
import time
import types
from multiprocessing import reduction
from multiprocessing.connection import Connection, wait
from pathlib import Path

import psutil

# Variables that may differ between the server and a child. Libraries read more than a hundred others while they are
# imported (TF_ENABLE_ONEDNN_OPTS, KERAS_BACKEND, PYTHONHASHSEED, TMPDIR, ...), too late for a child to change.
MAY_DIFFER = {
    *("JPY_PARENT_PID", "JPY_SESSION_NAME", "JUPYTER_PATH", "PYDEVD_DISABLE_FILE_VALIDATION"),  # Jupyter's own
    *("OLDPWD", "PWD", "SHLVL", "_"),  # a shell's
}
MAY_DIFFER_PREFIX = "TAPELAB_"

# In the order in which OpenBLAS looks at them.
BLAS_THREADS = ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS")

END_SECONDS = 5  # for killed children to be gone before the server gives up on them

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None)


def threads():
    """How many threads this process has, native ones included."""
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def import_all(modules):
    """Import what the children will need.

    Returns:
        The environment variables that the imports set: a dict.
    """
    # OpenBLAS starts its threads when it is loaded; a child sets the number that it should have.
    os.environ["OPENBLAS_NUM_THREADS"] = "1"
    # ipykernel reads its parent's process id while it is imported. A child's parent is this process.
    os.environ["JPY_PARENT_PID"] = str(os.getpid())
    # matplotlib reads this while it is imported; ipykernel sets it, too late for a child.
    os.environ.setdefault("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    before = dict(os.environ)
    for module in ("threadpoolctl", *modules):  # which sets a variable itself
        importlib.import_module(module)
    return {name: value for name, value in os.environ.items() if before.get(name) != value}


def unfit():
    """One line on why this process must not be forked, or None."""
    if "tensorflow" in sys.modules:
        devices = {device.device_type for device in sys.modules["tensorflow"].config.list_physical_devices()}
        if devices != {"CPU"}:
            return f"a device other than the CPU is visible ({', '.join(sorted(devices - {'CPU'}))})"
    if threads() != 1:
        return f"the imports started {threads() - 1} threads"
    return None


class Server:
    """The loop that accepts requests, forks, and looks after the children."""

    def __init__(self, listener, environment, set_by_imports):
        """Serve requests that arrive on `listener`.

        Args:
            listener: a socket.
            environment: the environment that a child must have, but for `MAY_DIFFER`.
            set_by_imports: variables that the imports set in their own process, and so in every child.
        """
        self._listener = listener
        self._environment = environment
        self._set_by_imports = set_by_imports
        self._connections = {}  # process id of each child -> its client's connection, or None when the client is gone
        self._wake, self._waker = socket.socketpair()
        self._ending = False

    def serve(self):
        """Answer until the runner is gone, then kill every child.

        Returns:
            None in the server; in each forked child, its command: a list of str.
        """
        for end in (self._wake, self._waker):
            end.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno())
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._stop)
        _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a kernel leaves behind stays ours to end
        runner = sys.stdin.fileno()
        while not self._ending:
            clients = {connection: pid for pid, connection in self._connections.items() if connection is not None}
            for ready in wait([runner, self._wake, self._listener, *clients]):
                if ready == runner:
                    self._ending = True
                elif ready is self._wake:
                    self._wake.recv(4096)
                    self._reap()
                elif ready is self._listener:
                    command = self._answer()
                    if command is not None:
                        return command
                # The client of a child that has ended a moment ago is no longer listed.
                elif self._connections.get(clients[ready]) is ready:
                    self._abandon(clients[ready])
        self._end_all()
        return None

    def _stop(self, *_):
        self._ending = True

    def _answer(self):
        """Take one request and fork. Returns the command in the child, None in the server."""
        accepted, _ = self._listener.accept()
        connection, streams = Connection(accepted.detach()), []
        try:
            request = json.loads(connection.recv_bytes())
            streams = [reduction.recv_handle(connection) for _ in range(3)]
            refusal = self._refuse(request["environment"])
            if refusal is not None:
                connection.send_bytes(json.dumps({"error": refusal}).encode())
                connection.close()
                return None
            pid = os.fork()
        except (OSError, EOFError) as error:
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps({"error": str(error)}).encode())
            connection.close()
        else:
            if pid == 0:
                self._become(request, streams, connection)
                return request["command"]
            self._connections[pid] = connection
        finally:
            for stream in streams:
                os.close(stream)
        return None

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
        if differ:
            return f"its environment is not the fork server's in {', '.join(differ)}"
        if threads() != 1:
            return f"the fork server has {threads()} threads"
        return None

    def _become(self, request, streams, connection):
        """Turn this forked child into the process that was asked for; tell the client, or end."""
        try:
            _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != int(os.environ["JPY_PARENT_PID"]):
                os._exit(1)  # the server died before the line above
            os.setsid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            for held in (self._listener, self._wake, self._waker, *self._connections.values()):
                if held is not None:
                    held.close()
            for number, stream in enumerate(streams):
                os.dup2(stream, number)
            os.chdir(request["cwd"])
            os.environ.clear()
            os.environ.update(self._set_by_imports | request["environment"], JPY_PARENT_PID=str(os.getppid()))
            _make_its_own()
            connection.send_bytes(json.dumps({"pid": os.getpid()}).encode())
            connection.close()
        except BaseException as error:
            with contextlib.suppress(OSError):
                connection.send_bytes(json.dumps({"error": str(error)}).encode())
            os._exit(1)

    def _reap(self):
        """Collect the children that have ended, and tell their clients."""
        while True:
            try:
                # Not collected yet, a child keeps its process id, so that nothing else can be hit below.
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if ended is None:
                return
            pid = ended.si_pid
            ours = pid in self._connections
            if ours:
                _kill_group(pid)
            _, status = os.waitpid(pid, 0)
            connection = self._connections.pop(pid) if ours else None
            if connection is not None:
                with contextlib.suppress(OSError):
                    connection.send_bytes(json.dumps({"returncode": os.waitstatus_to_exitcode(status)}).encode())
                connection.close()

    def _abandon(self, pid):
        """Kill a child whose client has gone, with all that descend from it."""
        self._connections[pid].close()
        self._connections[pid] = None
        with contextlib.suppress(psutil.NoSuchProcess):
            _kill([*psutil.Process(pid).children(recursive=True), psutil.Process(pid)])

    def _end_all(self):
        """Kill all descendants. Again and again: one may have forked while it was being killed."""
        deadline = time.monotonic() + END_SECONDS
        while (family := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
            _kill(family)
            self._reap()
            time.sleep(0.01)


def _kill(processes):
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def _kill_group(pid):
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _make_its_own():
    """Give a forked child what it would have set up for itself while it imported its modules."""
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # Python's own generator sees to itself after a fork
    given = next((os.environ[name] for name in BLAS_THREADS if os.environ.get(name, "").isdigit()), None)
    blas_threads = int(given) if given else len(os.sched_getaffinity(0))
    if blas_threads > 1:
        sys.modules["threadpoolctl"].threadpool_limits(blas_threads, user_api="blas")


def run(command):
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
    def after(self):
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


def main():
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
    else:
        shutil.rmtree(Path(address).parent, ignore_errors=True)  # a runner that was killed could not


if __name__ == "__main__":
    main()
