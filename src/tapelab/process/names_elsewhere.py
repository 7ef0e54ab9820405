"""Names that other libraries give to what is here under another: an error says which, and there is no alias."""

import sys
from collections.abc import Mapping
from typing import NoReturn

_IMPORTLIB = ("_frozen_importlib", "importlib._bootstrap")  # one module: the first is its name until it is imported


def refuse(module: str, name: str, ours: Mapping[str, str]) -> NoReturn:
    """Raise for a name that a module does not have; a module's ``__getattr__`` calls it.

    Args:
        module: its name.
        name: what was asked for.
        ours: for names that are known from elsewhere, what to write here.

    Raises:
        ImportError: for a known name in ``from module import name``.
        AttributeError: otherwise.
    """
    if name not in ours:
        raise AttributeError(f"module {module!r} has no attribute {name!r}", name=name, obj=sys.modules[module])
    message = f"{module} has no {name!r}; did you mean {ours[name]}?"
    # ``from module import name`` asks importlib whether there is such a name, and would replace an AttributeError by
    # one that says less.
    if sys._getframe(2).f_globals.get("__name__") in _IMPORTLIB:
        raise ImportError(message, name=module)
    raise AttributeError(message)
