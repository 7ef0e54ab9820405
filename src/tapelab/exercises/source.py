"""What a sheet's functions say: the text of a notebook's cell, and the prose of a docstring.

A sheet's functions are all called `_`, so that none hides another or stands among the exercises. The learner's name is
put in here; the sheet's decorator and the docstring are left out.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable


def prose(function: Callable) -> str:
    """Return a function's docstring as one paragraph.

    Raises:
        TypeError: if it has none.
    """
    text = inspect.unwrap(function).__doc__
    if not text:
        raise TypeError(f"{function!r} has no docstring; the learner is told what stands there")
    return " ".join(map(str.strip, text.splitlines()))


def of_function(function: Callable, name: str) -> str:
    """Return a function's source under another name, with its own decorators and without the first, the sheet's."""
    head, body, _ = _parts(function)
    return "\n".join([*head[:-1], head[-1].replace("def _(", f"def {name}(", 1), *body])


def of_body(function: Callable) -> tuple[str, str]:
    """Return the source of a function's body without its last line, a `return`, and what that one returns."""
    _, body, tree = _parts(function)
    text = textwrap.dedent("\n".join(body))
    if any(isinstance(statement, ast.FunctionDef) for statement in tree.body):
        text = re.sub(r"\n\n(?=\S)", "\n\n\n", text)  # in a cell, blank lines around a function are two
    text, _, last = text.rpartition("\n")
    return text, last.removeprefix("return ")


def _parts(function: Callable) -> tuple[list[str], list[str], ast.FunctionDef]:
    """The lines before a function's body, those of the body, and the syntax tree."""
    lines = textwrap.dedent(inspect.getsource(inspect.unwrap(function))).splitlines()
    tree = ast.parse("\n".join(lines)).body[0]
    first = tree.decorator_list[1].lineno if len(tree.decorator_list) > 1 else tree.lineno
    last = tree.body[0].end_lineno if ast.get_docstring(tree) else tree.lineno
    return lines[first - 1 : tree.lineno], lines[last : tree.end_lineno], tree
