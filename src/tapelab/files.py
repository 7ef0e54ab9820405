"""Writing a file so that nobody ever reads half of it."""

import os
import tempfile
from pathlib import Path


def write_whole(path, content):
    """Write a file, of bytes, beside its place and rename it into place: no reader ever sees half of it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(name).chmod(0o644)
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
