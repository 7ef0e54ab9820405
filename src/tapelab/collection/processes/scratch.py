"""Folders for the time of a run, in the system's folder for temporary files, unless its name is too long.

Kernels listen on sockets in such folders, and the path of a socket may have some hundred characters.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

LONGEST_SOCKET = 107 if sys.platform == "linux" else 103  # bytes: sun_path in sys/un.h, less the final null
NAMES = len("/tapelab-12345678/k-12345")  # what comes below the place


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A new folder for the time of a block, which only its owner may enter.

    Raises:
        OSError: if it cannot be made.
    """
    usual = os.path.realpath(tempfile.gettempdir())  # a process that changes into it will see no links
    fits = os.name != "posix" or len(os.fsencode(usual)) + NAMES <= LONGEST_SOCKET
    made = tempfile.TemporaryDirectory(prefix="tapelab-", dir=usual if fits else "/tmp", ignore_cleanup_errors=True)
    with made as path:
        yield Path(path)
