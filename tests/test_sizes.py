"""How large each room may be, in code lines: a room that grows says so here, where somebody decides that it may.

No blank lines, comments and docstrings count; of TOML all lines do. Where a room is above its goal, its bound is what
it was when the bound was last lowered, and the goal stands beside it.
"""

import ast
import functools
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = "src/tapelab"
SILENT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# The bound, and what is counted: patterns of files; a pattern that begins with "!" leaves some out.
ROOMS = {
    "derivatives and graphs": (4_200, [f"{PACKAGE}/derivatives/**/*.py", f"{PACKAGE}/graphs/**/*.py"]),
    "optimize": (500, [f"{PACKAGE}/optimize/**/*.py"]),
    "explain": (6_500, [f"{PACKAGE}/explain/**/*.py"]),
    "exercises": (1_000, [f"{PACKAGE}/exercises/*.py"]),
    "interactive": (750, [f"{PACKAGE}/interactive/**/*.py"]),
    "collection": (2_700, [f"{PACKAGE}/collection/**/*.py"]),
    "process and top": (750, [f"{PACKAGE}/process/**/*.py", f"{PACKAGE}/*.py"]),
    "the package": (16_500, [f"{PACKAGE}/**/*.py", "!exercises/sheets/"]),
    "tables of the package": (2_400, [f"{PACKAGE}/**/*.toml"]),
    "tests": (13_500, ["tests/**/*.py"]),
    "tables of tests": (6_500, ["tests/**/*.toml"]),
    "bench": (700, ["ci/bench/*.py"]),
    "audit": (900, ["ci/derivative_audit/*.py"]),
    "ci": (2_200, ["ci/**/*.py"]),
}


@functools.cache
def lines(path):
    """The code lines of a file."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return len(text.splitlines())
    silent, used = set(), set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            silent |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            used |= set(range(token.start[0], token.end[0] + 1))
    return len(used - silent)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_is_no_larger_than_its_bound(room):
    bound, (first, *more) = ROOMS[room]
    left_out = [pattern[1:] for pattern in more if pattern.startswith("!")]
    patterns = [first, *(pattern for pattern in more if not pattern.startswith("!"))]
    files = {path for pattern in patterns for path in ROOT.glob(pattern)}
    sizes = {path: lines(path) for path in files if not any(part in str(path) for part in left_out)}
    assert sizes
    assert sum(sizes.values()) <= bound
