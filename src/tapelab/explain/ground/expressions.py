"""The learner's own expression that ran an operation, from the code's positions, and changes to it."""

from __future__ import annotations

import ast
import copy
import functools
import itertools
import linecache
import types
from typing import TYPE_CHECKING

from tapelab import syntax

if TYPE_CHECKING:  # these modules import this one
    from tapelab.explain.ground.lines import Line
    from tapelab.explain.values.rerun.nodes import Node

# By which words a line calls an operation, where only the line is known: within a tf.function.
_WORDS = {
    "Log": ("log",),
    "Log1p": ("log1p",),
    "Sqrt": ("sqrt", "norm", "reduce_std"),
    "Rsqrt": ("rsqrt",),
    "EuclideanNorm": ("reduce_euclidean_norm",),
    "Exp": ("exp",),
    "Acos": ("acos",),
    "Asin": ("asin",),
    "Relu": ("relu",),
    "Softmax": ("softmax",),
    "Sigmoid": ("sigmoid",),
    "Tanh": ("tanh",),
    "Sign": ("sign",),
    "Pow": ("pow", ast.Pow),
    "RealDiv": ("divide", "truediv", ast.Div),
    "Mul": ("multiply", ast.Mult),
    "Sub": ("subtract", ast.Sub),
    "AddV2": ("add", ast.Add),
    "MatMul": ("matmul", ast.MatMult),
    "Cholesky": ("cholesky",),
    "Cumprod": ("cumprod",),
    "SelectV2": ("where",),
    "Maximum": ("maximum",),
    "Minimum": ("minimum",),
}


@functools.lru_cache(maxsize=32)
def _parsed(source):
    try:
        return syntax.parse(source)
    except SyntaxError:
        return None


def tree_of(file: str) -> ast.Module | None:
    """Return the syntax tree of a file or of a notebook's cell; None where its source has an error."""
    return _parsed("".join(linecache.getlines(file)))


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


def _position(node):
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)


def of_node(node: Node) -> ast.expr | None:
    """Return the expression that ran a `tapelab.explain.values.rerun.nodes.Node`, an `ast.expr`, or None.

    In eager code it is the call or the operator that the learner wrote. Within a tf.function only the line is known:
    there it is the one expression in it that can have made this operation, if there is one.
    """
    line = node.line
    if line is None:
        return None
    if line == node.event.line and node.event.place.code is not None:
        found = at(node.event.place.code, node.event.place.instruction)
        if found is not None:
            return found
    words = _WORDS.get(node.op, ())
    statement = statement_at(line)
    if statement is None or not words:
        return None
    found = [one for one in ast.walk(statement) if _word(one) in words]
    return found[0] if len(found) == 1 else None


def _word(node):
    """The last part of the name that a call has, or the type of an operator."""
    if isinstance(node, ast.Call):
        function = node.func
        return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    return type(node.op) if isinstance(node, ast.BinOp) else None


called = _word


def statement_at(line: Line) -> ast.stmt | None:
    """Return the smallest statement that covers a `Line`, an `ast.stmt`, or None."""
    tree = tree_of(line.file)
    if tree is None:
        return None
    around = [
        node for node in ast.walk(tree) if isinstance(node, ast.stmt) and node.lineno <= line.number <= node.end_lineno
    ]
    return min(around, key=lambda node: node.end_lineno - node.lineno, default=None)


def contains(whole: ast.AST, part: ast.AST | None) -> bool:
    """Whether one expression lies within another, or is it."""
    return part is not None and any(_is_same(node, part) for node in ast.walk(whole))


def _is_same(one, other):
    return isinstance(one, ast.expr) and isinstance(other, ast.expr) and _position(one) == _position(other)


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self._old, self._new = old, new

    def visit(self, node):
        return self._new if _is_same(node, self._old) and type(node) is type(self._old) else self.generic_visit(node)


def replaced(whole: ast.AST, old: ast.expr, new: ast.expr | str) -> ast.AST:
    """Return a copy of an expression or statement with one of its expressions replaced, by an `ast.expr` or by text."""
    if isinstance(new, str):
        new = ast.parse(new, mode="eval").body
        for node in ast.walk(new):  # positions of its own, so that nothing in it is taken for the learner's
            if isinstance(node, ast.expr):
                node.lineno = node.end_lineno = node.col_offset = node.end_col_offset = -1
    return _Replace(old, new).visit(copy.deepcopy(whole))


def text(expression: ast.expr) -> str:
    """Return the source of an expression; with parentheses where it is an operator, so that it can be put anywhere."""
    return ast.unparse(expression)


def closed(expression: ast.expr) -> str:
    """Return the source of an expression, as an operand: `a + b` in parentheses."""
    source = ast.unparse(expression)
    atoms = (ast.Name, ast.Call, ast.Attribute, ast.Subscript, ast.Constant, ast.List, ast.Tuple)
    return source if isinstance(expression, atoms) else f"({source})"
