"""Where folders for the time of a run are made: the system's folder for temporary files, unless its name is too long.

Kernels and fork servers listen on sockets in such folders, and the path of a socket may have some hundred characters.
"""

import os
import sys
import tempfile

LONGEST_SOCKET = 107 if sys.platform == "linux" else 103  # bytes: sun_path in sys/un.h, less the final null
NAMES = len("/tapelab-12345678/socket")  # what comes below the place
OTHERS = ("/tmp", "/var/tmp", "/dev/shm")


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
