"""Which code the caller wrote, and which is a library's: what is installed, Python itself, and this package."""

import functools
import sys
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


def split_classes(kind: type) -> tuple[list[type], list[type]]:
    """Return the classes in the order of method resolution: those that the caller wrote, and those of libraries."""

    def written(base: type) -> bool:
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        return base.__module__ == "__main__" or module is None or (file is not None and not is_library(file))

    own = [base for base in kind.__mro__ if written(base)]
    return own, [base for base in kind.__mro__ if base not in own and base is not object]
