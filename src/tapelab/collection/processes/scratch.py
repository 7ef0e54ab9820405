"""Folders for the time of a run: in the system's folder for temporary files, unless its name is too long.

Kernels and fork servers listen on sockets in such folders, and the path of a socket may have some hundred characters.

A process that is killed cannot remove its folders. A *janitor* does: a small process of its own that is told of each
folder before it exists and after it is gone, and removes what is left when the other has ended, however it ended. Run
as a program, this file is the janitor, which needs nothing but the standard library.
"""

import contextlib
import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

LONGEST_SOCKET = 107 if sys.platform == "linux" else 103  # bytes: sun_path in sys/un.h, less the final null
NAMES = len("/tapelab-12345678/socket")  # what comes below the place
OTHERS = ("/tmp", "/var/tmp", "/dev/shm")
GONE_SECONDS = 30  # for the processes that write into a folder to end, before the janitor gives up on it


class NoPlaceError(LookupError):
    """No folder has a path that is short enough for sockets."""


def place() -> str:
    """The folder in which to make folders: the one for temporary files, or another if its path is too long.

    Raises:
        NoPlaceError: if there is none whose path is short enough.
    """
    usual = os.path.realpath(tempfile.gettempdir())  # a process that changes into it will see no links
    if os.name != "posix":
        return usual
    for candidate in (usual, os.environ.get("XDG_RUNTIME_DIR", ""), *OTHERS):
        path = os.path.realpath(candidate)
        usable = candidate and os.path.isdir(path) and os.access(path, os.W_OK | os.X_OK)  # noqa: PTH112
        if usable and len(os.fsencode(path)) + NAMES <= LONGEST_SOCKET:
            return path
    raise NoPlaceError(
        f"no folder for sockets: {usual} is longer than {LONGEST_SOCKET - NAMES} bytes, and neither XDG_RUNTIME_DIR "
        f"nor {', '.join(OTHERS)} can be used. Set TMPDIR to a folder with a shorter path"
    )


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder for the time of a block, which only its owner may enter. It goes even if this process is killed.

    Raises:
        NoPlaceError: as `place` does.
        OSError: if it cannot be made.
    """
    path = Path(place(), f"tapelab-{secrets.token_hex(4)}")
    janitor = _janitor(os.getpid())
    janitor.tell("+", path)
    try:
        path.mkdir(mode=0o700)
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        janitor.tell("-", path)


class _Janitor:
    """The janitor's process, and what it is told."""

    def __init__(self):
        self._lock = threading.Lock()
        command = [sys.executable, "-I", "-S", __file__]
        nowhere = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, cwd="/", start_new_session=True, **nowhere)

    def tell(self, what, path):
        # One that was killed is no reason for a run to fail: its folder is removed all the same.
        with self._lock, contextlib.suppress(OSError):
            os.write(self._process.stdin.fileno(), os.fsencode(f"{what}{path}") + b"\0")


@functools.cache
def _janitor(_of_process):
    return _Janitor()


def clean_up(told: bytes) -> None:
    """Remove the folders that are still there. The janitor's work, once its owner has ended.

    Args:
        told: what it was told: ``+`` or ``-`` and a path, with a null byte after each.
    """
    left = set()
    for item in told.split(b"\0")[:-1]:
        (left.add if item[:1] == b"+" else left.discard)(os.fsdecode(item[1:]))
    until = time.monotonic() + GONE_SECONDS
    while left and time.monotonic() < until:
        for path in list(left):
            shutil.rmtree(path, ignore_errors=True)
            if not Path(path).exists():
                left.remove(path)
        time.sleep(0.1)


if __name__ == "__main__":
    clean_up(sys.stdin.buffer.read())
