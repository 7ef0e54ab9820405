"""A guard: the parent of a run's process, which outlives it and ends with it all that it has started.

Programs that a notebook starts may leave their session, and lose their parents; a kernel may be too busy to notice that
its own is gone. On Linux all of them become children of the nearest *subreaper* above them, and that is the guard. It
ends them when the process has ended, or when whoever asked for the process has.

The plain way to a guarded process, `forkserver.Starter.popen`, is

    python -P -m tapelab.collection.processes.guard LIFELINE PROGRAM ARGUMENT ...

with the reading end of a pipe as descriptor LIFELINE, which the owner holds open at the other end. SIGTERM asks the
guard to end everything. It ends with the process's status. The fork server calls `split` in a fork of its own.

Imports are few: each run waits for them.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable

import psutil

END_SECONDS = 5  # for killed processes to be gone, before the guard gives up on them

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl


class Wakeups:
    """A descriptor that becomes readable when a child ends or SIGTERM arrives, for a loop that waits for others too."""

    WATCHED = (signal.SIGCHLD, signal.SIGTERM)

    def __init__(self):
        self._reads, self._writes = socket.socketpair()
        for end in (self._reads, self._writes):
            end.setblocking(False)
        signal.set_wakeup_fd(self._writes.fileno(), warn_on_full_buffer=False)
        for number in self.WATCHED:
            signal.signal(number, lambda *_: None)

    def fileno(self) -> int:
        return self._reads.fileno()

    def asked_to_end(self) -> bool:
        """Whether SIGTERM is among the signals that have arrived since the last call."""
        return signal.SIGTERM in self._reads.recv(4096)

    def close(self) -> None:
        """Let the signals do again what they do in a process of its own."""
        signal.set_wakeup_fd(-1)
        for number in self.WATCHED:
            signal.signal(number, signal.SIG_DFL)
        self._reads.close()
        self._writes.close()


def adopt_orphans() -> None:
    """Make this process the parent of every descendant that loses its own."""
    _prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap() -> dict[int, int]:
    """Collect the children that have ended. Returns their exit statuses, negative for signals, by process id."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return ended


def end_descendants(keep: Iterable[int] = ()) -> dict[int, int]:
    """Kill every descendant of this process, but for some children and theirs.

    Again and again: one may have forked while it was being killed.

    Returns:
        The exit statuses of the children that have ended meanwhile, by process id.
    """
    ended, deadline, keep = {}, time.monotonic() + END_SECONDS, set(keep)
    while time.monotonic() < deadline:
        left = [child for child in psutil.Process().children() if child.pid not in keep]
        if not left:
            break
        for child in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                for process in [*child.children(recursive=True), child]:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
        time.sleep(0.005)
        ended |= reap()
    return ended


def leave_with(status: int) -> None:
    """End this process as another has ended: with its exit status, or by its signal if that is negative."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)


def split(*owners: int, at_end: Callable[[int], None] = leave_with) -> None:
    """Fork. In the child this returns; this process becomes its guard, and ends with it.

    Args:
        *owners: descriptors that become readable, or show an end of file, when an owner has ended. Then all ends.
        at_end: called in the guard with the child's exit status, negative for a signal, when all has ended.
    """
    adopt_orphans()
    wakeups, guard = Wakeups(), os.getpid()
    pid = os.fork()
    if pid == 0:
        wakeups.close()
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)  # the guard died before the line above
        return
    try:
        at_end(_watch(pid, wakeups, owners))
    finally:
        os._exit(0)


def _watch(pid, wakeups, owners):
    """Wait until there is a reason to end, and end all. Returns the child's exit status."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # whoever reads from the child is to see its end
        os.dup2(null, stream)
    waiting = select.poll()
    for end in (wakeups, *owners):
        waiting.register(end, select.POLLIN)
    ended = {}
    while pid not in ended:
        ready = {number for number, _ in waiting.poll()}
        if ready.intersection(owners) or (wakeups.fileno() in ready and wakeups.asked_to_end()):
            break
        ended |= reap()
    ended |= end_descendants()
    return ended.get(pid, -signal.SIGKILL)


def main() -> None:
    """Run a program below a guard."""
    lifeline, *command = sys.argv[1:]
    os.set_inheritable(int(lifeline), False)
    split(int(lifeline))
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and a program would go on to do so
        signal.signal(number, signal.SIG_DFL)
    os.execv(command[0], command)


if __name__ == "__main__":
    main()
