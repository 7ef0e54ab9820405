"""The Python function in a tf.function: its name and code, what it reads from outside, its calls."""

import ast
import builtins
import contextlib
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, TypeAlias

from tapelab.explain.ground import expressions
from tapelab.explain.ground.lines import Line

import tensorflow as tf

Function: TypeAlias = tf.types.experimental.PolymorphicFunction  # what tf.function returns


def is_function(value: Any) -> bool:
    """Whether a value is a ``tf.function``."""
    return isinstance(value, Function) and hasattr(value, "python_function")


def plain(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function with the learner's code: without decorators and without the object of a method."""
    python = plain_bound(function)
    return getattr(python, "__func__", python)


def name_of(function: Callable[..., Any]) -> str:
    """Return what a function is called."""
    return getattr(plain(function), "__name__", type(plain(function)).__name__)


def code_of(function: Callable[..., Any]) -> types.CodeType | Callable[..., Any]:
    """Return the code object that functions made anew from one definition share; the callable itself if it has none."""
    python = plain(function)
    return getattr(python, "__code__", python)


def captured(function: Callable[..., Any]) -> dict[str, bool | int | float | str]:
    """Return the plain numbers and texts that a function's code reads from outside: name → value, as they are now."""
    python = plain(function)
    names = getattr(getattr(python, "__code__", None), "co_names", ())
    outside = {name: python.__globals__[name] for name in names if name in python.__globals__} | _closure(function)
    return {name: value for name, value in outside.items() if isinstance(value, (bool, int, float, str))}


def in_closure(function: Callable[..., Any], name: str) -> Any:
    """Return what a function's closure has under a name, or None."""
    return _closure(function).get(name)


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """What a function's closure has: name → value. What is not bound yet is left out."""
    python, found = plain(function), {}
    cells = getattr(python, "__closure__", None) or ()
    for name, cell in zip(python.__code__.co_freevars if cells else (), cells, strict=True):
        with contextlib.suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def functions_within(value: Any, depth: int = 4) -> list[Function]:
    """Return each ``tf.function`` that a Python function holds in its closure, directly or through other functions."""
    if is_function(value):
        return [value, *functions_within(plain(value), depth - 1)] if depth else [value]
    values = _closure(value).values() if depth and callable(value) else ()
    found = [one for value in values for one in functions_within(value, depth - 1)]
    return list({id(one): one for one in found}.values())


def is_method(function: Callable[..., Any]) -> bool:
    """Whether a ``tf.function`` is what a decorated method became for one object."""
    return type(getattr(plain_bound(function), "__self__", None)).__name__ == "TfMethodTarget"


def plain_bound(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the Python function without decorators, but with its object where it is a method."""
    return inspect.unwrap(function.python_function if is_function(function) else function)


@functools.lru_cache(maxsize=256)
def call_on(line: Line | None, name: str) -> ast.Call | None:
    """Return the call of a function on a line, as an `ast.Call`: by its name, or else the only one that may be."""
    if line is None:
        return None
    calls = expressions.covering(line, ast.Call)
    named = [node for node in calls if ast.unparse(node.func).split(".")[-1] == name]
    others = [node for node in calls if isinstance(node.func, ast.Name) and not hasattr(builtins, node.func.id)]
    return next((found[0] for found in (named, others) if len(found) == 1), None)
