"""What a traced function reads and cannot be looked at again: random numbers, clocks, files, iterators, other objects.

Each is known by the object itself, whichever name the function has for it. What to do stands with it.
"""

import builtins
import collections.abc
import datetime
import decimal
import functools
import gc
import getpass
import glob
import importlib
import inspect
import io
import linecache
import locale
import operator
import os
import pathlib
import platform
import random
import secrets
import socket
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from typing import Any

from tapelab.process.tensorflow import tf

import numpy as np

_DRAWS = "draws random numbers: draw them with tf.random, or pass them as an argument"
_CLOCK = "is a clock: pass the time as an argument"
_FILE = "reads files: read before, and pass what was read as an argument"
_MACHINE = "asks the user, the machine or this process: ask before, and pass the answer as an argument"
_COMPUTED = "finds by a computed name what it reads: name that in the function, or pass it as an argument"
_NEXT = "gives another item each time: take the item before, and pass it as an argument"
TOO_LARGE = "can change in place, and is too large to be compared: make it a tensor by tf.constant, or read-only"
TOO_LONG = "has more than {} items, of which the number alone is compared: make it a tensor, a tuple, or an argument"
_OTHER = (
    "is a {} of the library {}, whose changes are not seen: pass as an argument what you take from it, or ask for the "
    "derivative again after a change"
)
TOO_MANY = (
    "is beyond the first {} objects that the function reaches, which are compared: pass what changes as an argument"
)

_FUNCTIONS = {
    _CLOCK: {
        time: (
            "time time_ns perf_counter perf_counter_ns monotonic monotonic_ns process_time process_time_ns thread_time "
            "localtime gmtime ctime asctime strftime"
        ),
        datetime.datetime: "now utcnow today",
        datetime.date: "today",
    },
    _DRAWS: {os: "urandom", uuid: "uuid1 uuid4", secrets: "choice randbelow randbits token_bytes token_hex"},
    _FILE: {
        builtins: "open",
        io: "open",
        os: "listdir scandir walk stat getcwd open read",
        os.path: "exists isfile isdir getmtime getsize abspath realpath",
        glob: "glob iglob",
        linecache: "getline getlines",
        np: "load loadtxt genfromtxt fromfile memmap",
        pathlib.Path: "open read_text read_bytes exists is_file is_dir stat iterdir glob rglob cwd home resolve",
    },
    _MACHINE: {
        builtins: "input",
        decimal: "Decimal getcontext localcontext",
        gc: "get_count get_stats get_objects",
        getpass: "getpass getuser",
        locale: "getlocale localeconv setlocale str format_string atof",
        os: "getpid getloadavg cpu_count times popen system",
        np: "geterr get_printoptions array2string array_str array_repr",
        platform: "node platform uname",
        socket: "gethostname socket create_connection",
        subprocess: "run Popen check_output call check_call getoutput",
        sys: "getrefcount",
        threading: "active_count current_thread enumerate get_ident",
        urllib.request: "urlopen",
    },
    _COMPUTED: {
        builtins: "globals eval exec __import__",
        importlib: "import_module reload",
        inspect: "currentframe stack getmembers getattr_static getclosurevars",
        sys: "_getframe modules",
    },
}
_UNSEEDED = {np.random.default_rng, np.random.RandomState, np.random.SeedSequence, random.Random, random.SystemRandom}
_RANDOM = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)
_RANDOM_MODULES = (random, np.random, secrets)
# Libraries whose objects hold tensors, or nothing that computes; and classes of Python that do not change, or the same.
_KNOWN = {"tensorflow", "keras", "tf_keras", "tensorflow_probability", "tapelab", "ml_dtypes"}
_HARMLESS = {
    "abc", "ast", "builtins", "collections", "contextlib", "dataclasses", "datetime", "decimal", "enum",
    "fractions", "functools", "importlib", "inspect", "logging", "numbers", "operator", "pathlib", "re", "string",
    "thread", "threading", "types", "typing", "uuid", "warnings", "weakref", "zoneinfo",
}  # fmt: skip
# These read attributes by names that they compute.
_BY_NAME = {builtins.getattr, builtins.vars, builtins.dir, operator.attrgetter, operator.methodcaller}
_READERS = {"attr", "attrs", "cloudpickle", "copy", "dataclasses", "inspect", "json", "pickle", "pprint"}


@functools.cache
def _reasons() -> dict[Any, str]:
    """For each function of Python or NumPy that reads what cannot be watched, why."""
    return {
        getattr(owner, name): why
        for why, owners in _FUNCTIONS.items()
        for owner, names in owners.items()
        for name in names.split()
        if isinstance(getattr(owner, name, None), collections.abc.Hashable)
    }


def why_not_read(value: Any, bare: bool) -> str | None:
    """Why what a chain of names leads to reads what cannot be watched; None if it does not.

    Args:
        value: a function, a class or a module.
        bare: whether it is called without arguments, and so without a seed.
    """
    if value is sys.modules:
        return _COMPUTED
    if isinstance(getattr(value, "__self__", None), _RANDOM) and getattr(value, "__name__", "") != "seed":
        return _DRAWS
    if isinstance(value, (dict, list, set)) or not isinstance(value, collections.abc.Hashable):
        return None
    try:
        return _DRAWS if bare and value in _UNSEEDED else _reasons().get(value)
    except (TypeError, ValueError):  # it says that it is hashable, and is not, or holds what is not
        return None


def why_not_held(value: Any) -> str | None:
    """Why an object of a library that the function can reach cannot be watched; None if it can, or need not be."""
    kind = type(value)
    library = kind.__module__.split(".")[0].lstrip("_")
    if isinstance(value, _RANDOM):
        return _DRAWS
    if library in _KNOWN or isinstance(value, tf.Module):
        return None  # a dataset's iterator too: what TensorFlow iterates over, it does when the program runs
    if isinstance(value, (collections.abc.Iterator, collections.abc.AsyncIterator)):
        return _FILE if isinstance(value, io.IOBase) else _NEXT
    if isinstance(value, io.IOBase):
        return _FILE
    if library in _HARMLESS or (callable(value) and hasattr(value, "__name__")) or isinstance(value, np.dtype):
        return None
    return _OTHER.format(kind.__name__, library)


def why_not_module(value: Any) -> str | None:
    """Why a module that is held as an object, not named in a chain, cannot be watched."""
    return _DRAWS if value in _RANDOM_MODULES else _CLOCK if value is time else None


def reads_by_name(value: Any) -> bool:
    """Whether a function or class reads attributes by names that it computes, so that no code need name them."""
    if isinstance(value, (operator.attrgetter, operator.methodcaller)):
        return True
    if not callable(value) or not isinstance(value, collections.abc.Hashable):
        return False
    library = (getattr(value, "__module__", None) or "").split(".")[0]
    return library in _READERS or any(value is reader for reader in _BY_NAME)
