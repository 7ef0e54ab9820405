"""What a traced function reads and cannot be looked at again: random numbers, clocks, files, iterators, other objects.

Each is known by the object itself, whichever name the function has for it. Why, and what to do, is in a table.
"""

import builtins
import collections.abc
import functools
import io
import operator
import pathlib
import pkgutil
import random
import secrets
import sys
import time
import tomllib
from typing import Any

from tapelab.process.tensorflow import tf

import numpy as np

_FOLDER = pathlib.Path(__file__).parent
_TABLE = tomllib.loads((_FOLDER / "unwatchable.toml").read_text(encoding="utf-8"))
_NAMES = tomllib.loads((_FOLDER / "names.toml").read_text(encoding="utf-8"))
NAMES = {kind: frozenset(names.split()) for kind, names in _NAMES.items()}
WHY = {kind: " ".join(row.pop("why").split()) for kind, row in _TABLE.items()}
_UNSEEDED = {np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random, random.SystemRandom}
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_RANDOM_MODULES = (random, np.random, secrets)
# These read attributes by names that they compute.
_BY_NAME = {builtins.getattr, builtins.vars, builtins.dir, operator.attrgetter, operator.methodcaller}


@functools.cache
def _reasons() -> dict[Any, str]:
    """For each function of Python or NumPy that reads what cannot be watched, why."""
    found = {}
    for kind, owners in _TABLE.items():
        for owner, names in owners.items():
            read_from = pkgutil.resolve_name(owner)
            for value in [getattr(read_from, name, None) for name in names.split()]:
                if isinstance(value, collections.abc.Hashable):
                    found[value] = WHY[kind]
    return found


def why_not_read(value: Any, bare: bool) -> str | None:
    """Why what a chain of names leads to reads what cannot be watched; None if it does not.

    Args:
        value: a function, a class or a module.
        bare: whether it is called without arguments, and so without a seed.
    """
    if value is sys.modules:
        return WHY["computed"]
    if isinstance(getattr(value, "__self__", None), _RANDOM) and getattr(value, "__name__", "") != "seed":
        return WHY["random"]
    if isinstance(value, (dict, list, set)) or not isinstance(value, collections.abc.Hashable):
        return None
    try:
        return WHY["random"] if bare and value in _UNSEEDED else _reasons().get(value)
    except (TypeError, ValueError):  # it says that it is hashable, and is not, or holds what is not
        return None


def why_not_held(value: Any) -> str | None:
    """Why an object of a library that the function can reach cannot be watched; None if it can, or need not be."""
    kind = type(value)
    library = kind.__module__.split(".")[0].lstrip("_")
    if isinstance(value, _RANDOM):
        return WHY["random"]
    if library in NAMES["tensors"] or isinstance(value, tf.Module):
        return None  # a dataset's iterator too: what TensorFlow iterates over, it does when the program runs
    if isinstance(value, (collections.abc.Iterator, collections.abc.AsyncIterator)):
        return WHY["file"] if isinstance(value, io.IOBase) else WHY["next"]
    if isinstance(value, io.IOBase):
        return WHY["file"]
    if library in NAMES["harmless"] or (callable(value) and hasattr(value, "__name__")) or isinstance(value, np.dtype):
        return None
    return WHY["other"].format(kind.__name__, library)


def why_not_module(value: Any) -> str | None:
    """Why a module that is held as an object, not named in a chain, cannot be watched."""
    return WHY["random"] if value in _RANDOM_MODULES else WHY["clock"] if value is time else None


def reads_by_name(value: Any) -> bool:
    """Whether a function or class reads attributes by names that it computes, so that no code need name them."""
    if isinstance(value, (operator.attrgetter, operator.methodcaller)):
        return True
    if not callable(value) or not isinstance(value, collections.abc.Hashable):
        return False
    library = (getattr(value, "__module__", None) or "").split(".")[0]
    return library in NAMES["readers"] or any(value is reader for reader in _BY_NAME)
