"""Runs the programs of `faults.toml`, and looks for the project's cures: `python programs.py` prints both as JSON."""

import contextlib
import importlib
import inspect
import json
import os
import sys
import types
from collections.abc import Callable, Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

WRONG = "tapelab.derivatives.wrong"  # the room of the cures


def run(program: str) -> str:
    """What the assertion of a program says; "" where it holds."""
    try:
        exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
    except AssertionError as error:
        return str(error)
    return ""


def cure(operation: str) -> tuple[Callable, contextlib.AbstractContextManager] | None:
    """Our gradient or function in place of an operation's or a library function's, and what puts it there.

    Args:
        operation: a type of operations, or the name of a function.
    """
    try:
        package = importlib.import_module(f"{WRONG}.cures")
        replaced = importlib.import_module(f"{WRONG}.replaced_gradients").replaced
    except ImportError:  # a version without cures
        return None
    for family in package.FAMILIES:
        gradients = getattr(family, "GRADIENTS", {})
        if operation in gradients:
            return gradients[operation], replaced(dict(gradients), set())
        for replacement in getattr(family, "FUNCTIONS", []):
            if replacement.name == operation:
                return replacement.function, _patched(replacement)
    return None


@contextlib.contextmanager
def _patched(replacement) -> Iterator[None]:
    owners = [(owner, getattr(owner, replacement.name)) for owner in replacement.owners()]
    for owner, _ in owners:
        setattr(owner, replacement.name, replacement.function)
    try:
        yield
    finally:
        for owner, original in owners:
            setattr(owner, replacement.name, original)


def source(function: Callable) -> str:
    """The text of a function, after that of the project's functions that it calls."""
    function, found = inspect.unwrap(function), {}

    def collect(one):
        if one.__name__ in found:
            return
        found[one.__name__] = ""
        for name in one.__code__.co_names:
            other = one.__globals__.get(name)
            if isinstance(other, types.FunctionType) and other.__module__.startswith(WRONG):
                collect(inspect.unwrap(other))
        found[one.__name__] = found.pop(one.__name__) or inspect.getsource(one)

    collect(function)
    return "\n\n".join(found.values()).strip()


def measured(fault: dict) -> dict[str, str]:
    """What a fault's program says, and the text of our cure if the program holds with it."""
    result = {"says": run(fault["program"])}
    found = cure(fault["operation"]) if "operation" in fault else None
    if found is not None:
        function, applied = found
        with contextlib.suppress(Exception), applied:  # a cure that does not work here is none
            if not run(fault["program"]):
                result["cure"] = source(function)
    return result


def main() -> None:
    faults = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print would come between
    import keras
    import tensorflow as tf

    tf.get_logger().setLevel("ERROR")
    found = {fault["name"]: measured(fault) for fault in faults}
    json.dump({"versions": {"tensorflow": tf.__version__, "keras": keras.__version__}, "found": found}, out)
    out.close()


if __name__ == "__main__":
    main()
