"""Writing a file so that nobody ever reads half of it."""

import os
import secrets
import stat
from pathlib import Path


def write_whole(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file beside its place and rename it into place: no reader ever sees half of it.

    A new file gets the mode that the umask leaves, an existing one keeps its own. A symbolic link stays one: what is
    written is the file to which it leads. (Another hard link to an existing file keeps the old content.)

    Args:
        path: the file.
        content: all of its bytes.

    Raises:
        OSError: if it cannot be written; an existing file is then as it was.
    """
    place = Path(os.path.realpath(path))
    temporary = place.with_name(f".{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            if place.exists():
                # Before the content: at no time may others read what the file's mode keeps from them.
                temporary.chmod(stat.S_IMODE(place.stat().st_mode))
            file.write(content)
        temporary.replace(place)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
