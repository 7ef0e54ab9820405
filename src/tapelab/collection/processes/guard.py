"""A guard: the parent of a run's process or a kernel, which outlives it and ends with it all that it has started.

Programs that a notebook starts may leave their session, and lose their parents; a kernel may be too busy to notice that
its own is gone. On Linux all of them become children of the nearest *subreaper* above them, and that is the guard. It
ends them when the process has ended, or when whoever asked for the process has. SIGTERM asks it to end everything.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import time

import psutil

END_SECONDS = 5  # for killed processes to be gone, before the guard gives up on them

# linux/prctl.h
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_prctl = ctypes.CDLL(None).prctl


def split(owner: int) -> None:
    """Fork. In the child this returns; this process becomes its guard, and ends as it does.

    Args:
        owner: a descriptor that shows an end of file when the owner has ended. Then all ends.
    """
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    guard, pid = os.getpid(), os.fork()
    if pid == 0:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:
            os._exit(1)  # the guard died before the line above
        return
    try:
        _leave_with(_watch(pid, owner))
    finally:
        os._exit(0)


def _watch(pid: int, owner: int) -> int:
    """Wait until there is a reason to end, and end all. Returns the child's exit status, negative for a signal."""
    signal.signal(signal.SIGTERM, lambda *_: _leave_with(_end(pid)))
    signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):  # whoever reads from the child is to see its end
        os.dup2(null, stream)
    waiting = select.poll()
    for end in (owner, os.pidfd_open(pid)):
        waiting.register(end, select.POLLIN)
    waiting.poll()
    return _end(pid)


def _end(pid: int) -> int:
    """Kill every descendant of this process. Returns the exit status of one child."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    ended, deadline = {}, time.monotonic() + END_SECONDS
    # Again and again: one may have forked while it was being killed.
    while left := _collected(ended):
        if time.monotonic() > deadline:
            break
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.005)
    return ended.get(pid, -signal.SIGKILL)


def _collected(ended: dict[int, int]) -> list[psutil.Process]:
    """Collect the children that have ended into a dict from their ids to their statuses. Returns what still runs."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = os.waitstatus_to_exitcode(found[1])
    return psutil.Process().children(recursive=True)


def _leave_with(status: int) -> None:
    """End this process as another has ended: with its exit status, or by its signal if that is negative."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status & 0xFF)
