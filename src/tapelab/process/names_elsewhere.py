"""Names that other libraries give to what is here under another: an error says which, and there is no alias.

A package that is asked for has a table of them, ``names_elsewhere.toml``.
"""

import functools
import pathlib
import sys
import tomllib
from typing import NoReturn

_IMPORTLIB = ("_frozen_importlib", "importlib._bootstrap")  # one module: the first is its name until it is imported


@functools.cache
def ours(package: str) -> dict[str, str]:
    """Return what to write in a package for names that are known from elsewhere."""
    table = pathlib.Path(sys.modules[package].__file__ or "").with_name("names_elsewhere.toml")
    return tomllib.loads(table.read_text(encoding="utf-8"))


def refuse(module: str, name: str) -> NoReturn:
    """Raise for a name that a module does not have; a module's ``__getattr__`` calls it.

    Args:
        module: its name.
        name: what was asked for.

    Raises:
        ImportError: for a known name in ``from module import name``.
        AttributeError: otherwise.
    """
    if name not in ours(module):
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
    message = f"{module} has no {name!r}; did you mean {ours(module)[name]}?"
    # ``from module import name`` asks importlib whether there is such a name, and would replace an AttributeError by
    # one that says less.
    if sys._getframe(2).f_globals.get("__name__") in _IMPORTLIB:
        raise ImportError(message, name=module)
    raise AttributeError(message)
