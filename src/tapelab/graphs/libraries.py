"""Which code the caller wrote, and which is a library's: what is installed, Python itself, and this package."""

import functools
import sysconfig
from pathlib import Path

_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = str(Path(__file__).resolve().parents[1])


@functools.cache
def is_library(file: str | None) -> bool:
    """Whether code is from a library, by its file; code without one, or from a prompt, is the caller's own."""
    if file is None or file.startswith("<frozen"):
        return True
    installed = "site-packages" in file or "dist-packages" in file
    return installed or file.startswith(_LIBRARIES) or str(Path(file).resolve()).startswith(_OWN)
