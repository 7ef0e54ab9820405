"""The learner's own expressions: the one that an instruction evaluates, what a call was given, and changes to them."""

import ast
import copy
import functools
import itertools
import linecache
import types
from collections.abc import Container, Iterator, Sequence
from typing import Any

from tapelab.explain.ground.lines import Line
from tapelab.process import syntax


@functools.lru_cache(maxsize=32)
def _parsed(source: str) -> ast.Module | None:
    try:
        return syntax.parse(source)
    except SyntaxError:
        return None


def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file or of a notebook's cell; None where its source has an error."""
    return _parsed("".join(linecache.getlines(file)))


@functools.lru_cache(maxsize=1024)
def at(code: types.CodeType | None, instruction: int | None) -> ast.expr | None:
    """Return the expression that an instruction of a code object evaluates.

    Args:
        code: a code object, or None.
        instruction: its index, as `frame.f_lasti` has it.

    Returns:
        An `ast.expr` with the positions that it has in its file; None where the source is not known.
    """
    if code is None:
        return None
    first, last, left, right = next(itertools.islice(code.co_positions(), instruction // 2, None))
    tree = None if None in (first, last, left, right) else tree_of(code.co_filename)
    if tree is None:
        return None
    wanted = (first, left, last, right)
    return next((node for node in ast.walk(tree) if isinstance(node, ast.expr) and _position(node) == wanted), None)


def operands(expression: ast.expr, values: Sequence[Any]) -> Iterator[tuple[ast.expr, Any]]:
    """Pair the expressions that an expression's operation works on with the values that it was given, where it can.

    A call's first argument is the first value; all are paired where there are as many of the one as of the other.
    """
    if isinstance(expression, ast.BinOp):
        parts = [expression.left, expression.right]
    elif isinstance(expression, ast.Compare):
        parts = [expression.left, *expression.comparators]
    elif isinstance(expression, ast.Call):
        parts = expression.args
    else:
        parts = [getattr(expression, "operand", None) or getattr(expression, "value", None)]
    count = len(parts) if len(parts) == len(values) else min(1, len(values))
    return zip(filter(None, parts[:count]), values, strict=False)


def _position(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


_SIGNS = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.MatMult: "@", ast.Pow: "**"}


def called(node: ast.AST | None) -> str | None:
    """Return the last part of the name that a call has, the sign of an operator such as "*", or None."""
    if isinstance(node, ast.Call):
        function = node.func
        return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return _SIGNS.get(type(node.op)) if isinstance(node, ast.BinOp) else None


def arguments(frame: types.FrameType) -> ast.Call | None:
    """Return the call that a frame is making, as an `ast.Call`, or None where its source is not known."""
    call = at(frame.f_code, frame.f_lasti)
    return call if isinstance(call, ast.Call) else None


def argument(call: ast.Call | None, position: int, names: Container[str]) -> ast.expr | None:
    """Return the expression that a call has for one parameter, as an `ast.expr`, or None.

    Args:
        call: an `ast.Call` or None.
        position: of the parameter, from 0.
        names: what the parameter may be called.
    """
    if call is None or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    if position < len(call.args):
        return call.args[position]
    return next((keyword.value for keyword in call.keywords if keyword.arg in names), None)


def elements(expression: ast.expr | None, count: int) -> list[ast.expr | None]:
    """Return the expressions of the elements of a list, tuple or dict that is written out; None for each elsewhere."""
    found = []
    if isinstance(expression, (ast.List, ast.Tuple)):
        found = expression.elts
    elif isinstance(expression, ast.Dict) and None not in expression.keys:
        found = expression.values
    if len(found) != count or any(isinstance(one, ast.Starred) for one in found):
        return [None] * count
    return found


def assigned_in(code: types.CodeType | None, name: str, before: int) -> list[ast.expr]:
    """Return what the statements of some code assign to a name above a line, the last first."""
    tree = (code and tree_of(code.co_filename)) or ast.Module([], [])
    whole = [one for one in ast.walk(tree) if getattr(one, "name", "") == code.co_name] if code else []
    scope = next((one for one in whole if one.lineno <= before <= one.end_lineno), tree)
    found = [node for node in ast.walk(scope) if name in assigned(node) and node.lineno <= before]
    return [one.value for one in sorted(found, key=lambda one: -one.lineno)]


def reference(expression: ast.expr | None) -> str | None:
    """Return the source of an expression that names an object: ``x``, ``layer.kernel``, ``params["w"]``; else None."""
    part = expression
    while isinstance(part, (ast.Attribute, ast.Subscript)):
        if isinstance(part, ast.Subscript) and not isinstance(part.slice, (ast.Constant, ast.Name, ast.UnaryOp)):
            return None
        part = part.value
    return ast.unparse(expression) if isinstance(part, ast.Name) else None


def assigned(statement: ast.AST | None) -> set[str]:
    """Return the names that a statement assigns to."""
    return set(map(ast.unparse, statement.targets)) if isinstance(statement, ast.Assign) else set()


def covering(line: Line, kind: type[ast.AST]) -> list[Any]:
    """Return the statements, calls or other nodes of one kind that cover a `Line`."""
    nodes = ast.walk(tree_of(line.file) or ast.Module([], []))
    return [node for node in nodes if isinstance(node, kind) and node.lineno <= line.number <= node.end_lineno]


def statement_at(line: Line, expression: ast.expr | None = None) -> ast.stmt | None:
    """Return the smallest statement that covers a `Line`, and holds an expression in it if there is one; or None."""
    around = covering(line, ast.stmt)
    if expression is not None:
        around = [node for node in around if contains(node, expression)][::-1]
    return min(around, key=lambda node: node.end_lineno - node.lineno, default=None)


def contains(whole: ast.AST, part: ast.AST | None) -> bool:
    """Whether one expression lies within another, or is it."""
    return part is not None and any(same(node, part) for node in ast.walk(whole))


def same(one: ast.AST | None, other: ast.AST | None) -> bool:
    """Whether two expressions stand at one place, so that they are one."""
    return isinstance(one, ast.expr) and isinstance(other, ast.expr) and _position(one) == _position(other)


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.expr, new: ast.expr):
        self._old, self._new = old, new

    def visit(self, node: ast.AST) -> Any:
        return self._new if same(node, self._old) and type(node) is type(self._old) else self.generic_visit(node)


def replaced(whole: ast.AST, old: ast.expr, new: ast.expr | str) -> ast.AST:
    """Return a copy of an expression or statement with one of its expressions replaced, by an `ast.expr` or by text."""
    if isinstance(new, str):
        new = ast.parse(new, mode="eval").body
        for node in ast.walk(new):  # positions of its own, so that nothing in it is taken for the learner's
            if isinstance(node, ast.expr):
                node.lineno = node.end_lineno = node.col_offset = node.end_col_offset = -1
    return _Replace(old, new).visit(copy.deepcopy(whole))
