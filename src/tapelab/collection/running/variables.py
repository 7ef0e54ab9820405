"""The environment variables that notebooks get: those that Python, TensorFlow and Jupyter need, and those passed.

A notebook could print any variable, and outputs are shared. Names of variables that hold passwords cannot be listed
(``DATABASE_URL``, ``GH_PAT``, ``HTTPS_PROXY``), so what is harmless is listed instead.
"""

import os
import platform
import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import click

_LISTS = tomllib.loads((Path(__file__).parent / "variables.toml").read_text(encoding="utf-8"))
THREADS, NAMES, PREFIXES = (tuple(_LISTS[name]) for name in ("threads", "names", "prefixes"))
# Among them are JUPYTER_TOKEN and NVIDIA_API_KEY.
SECRETS = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|PRIVATE|AUTH|(^|_)(KEY|PWD|PAT)(_|$)|APIKEY", re.IGNORECASE)


class UnsetVariableError(click.ClickException, LookupError):
    """A variable that shall be passed does not exist."""


def check(passed: Iterable[str]) -> None:
    """Make sure that variables can be passed.

    Raises:
        UnsetVariableError: if one of them does not exist.
    """
    for name in passed:
        if name not in os.environ:
            raise UnsetVariableError(f"--pass-env {name}: there is no such variable on {platform.node()}")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads(side_by_side: int) -> dict[str, str]:
    """The variables that tell libraries how many threads to start, if so many runs share this machine's cores."""
    return dict.fromkeys(THREADS, str(max(1, cores() // side_by_side)))


def for_kernels(side_by_side: int, passed: Iterable[str] = ()) -> dict[str, str]:
    """The environment variables of papermill's process and of a kernel, taken from this process.

    Args:
        side_by_side: how many runs share this machine's cores.
        passed: the names of further variables, as far as they exist.
    """
    harmless = {name: value for name, value in os.environ.items() if _is_harmless(name)}
    return harmless | threads(side_by_side) | {name: os.environ[name] for name in passed if name in os.environ}


def _is_harmless(name: str) -> bool:
    upper = name.upper()  # Windows does not distinguish
    return (upper in NAMES or upper.startswith(PREFIXES)) and not SECRETS.search(name)
