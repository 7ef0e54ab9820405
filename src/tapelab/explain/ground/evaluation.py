"""Evaluating an expression of the learner's, or one made of such, with the values that the log has."""

import ast
import builtins
import copy
import math
import types
from collections.abc import Callable
from typing import Any

from tapelab.explain.ground.lines import Frame

import numpy as np
import tensorflow as tf

# Of Python's own functions what only computes; of the others nothing that draws, keeps, shows or stores.
_PYTHON = frozenset({"abs", "bool", "float", "int", "len", "list", "max", "min", "range", "round", "sum", "tuple"})
_ACTING = frozenset(
    {"Variable", "debugging", "dropout", "io", "numpy_function", "print", "py_function", "random", "save"}
)
_METHODS = frozenset(
    {"numpy", "mean", "sum", "std", "max", "min", "reshape", "ravel", "flatten", "astype", "item", "tolist"}
)
# By which names the learner knows what only computes.
MODULES = {"tf": tf, "np": np, "math": math, "keras": tf.keras}


class CannotRun(Exception):
    """A name has no value that is known, or something on the way cannot be run again."""


def in_frame(name: str, frame: Frame, code: types.CodeType) -> Any:
    """Return what a name stands for, in the learner's frame, where some code of the same file ran.

    Raises:
        CannotRun: if that is not known.
    """
    if frame is None or frame.f_code.co_filename != code.co_filename:
        raise CannotRun
    scope = frame.f_locals if frame.f_code is code else frame.f_globals
    if name not in scope:
        raise CannotRun
    return scope[name]


class Evaluation(ast.NodeTransformer):
    """One evaluation of expressions: what the log knows of them becomes names for its values.

    Args:
        known: text of an expression → the key of its value.
        values: key → value.
        find: takes a name that is not known, and returns a key or None, and a value.

    Attributes:
        names: of these values and of what is in no log.
        keys: the keys of those of the log → their values.
    """

    def __init__(self, known: dict[str, int], values: dict[int, tf.Tensor], find: Callable[[str], tuple[Any, Any]]):
        self._known, self._values, self._find = known, values, find
        self.names, self.keys, self._tape = dict(MODULES), {}, None

    def value(self, expression: ast.expr, tape: tf.GradientTape | None = None) -> Any:
        """Evaluate an expression, with its parts watched by a tape.

        Raises:
            CannotRun: if a name is not known, or it calls what is not known to compute and do nothing else.
            Exception: whatever the expression raises.
        """
        names = [one for one in ast.walk(expression) if isinstance(one, ast.Name)]
        self._tape = tape
        self._own = {*self.names, *vars(builtins), *(one.id for one in names if isinstance(one.ctx, ast.Store))}
        tree = ast.fix_missing_locations(ast.Expression(self.visit(copy.deepcopy(expression))))
        return eval(compile(tree, "<fix>", "eval"), self.names)

    def visit(self, node: ast.AST) -> ast.AST:
        """Replace what is known; called by `ast`."""
        if isinstance(node, ast.expr) and not isinstance(node, ast.Constant):
            text = ast.unparse(node)
            if text in self._known:
                return self._named(self._known[text], None)
            if isinstance(node, ast.Name) and node.id not in self._own:
                return self._named(*self._find(node.id))
            if isinstance(node, ast.Call) and not _only_computes(node.func):
                raise CannotRun  # the learner's own function might do anything
        return self.generic_visit(node)

    def _named(self, key: int | None, value: Any) -> ast.Name:
        name = f"_{len(self.names)}"
        if key is not None:
            value = self.keys[key] = self._values[key]
            if self._tape is not None and value.dtype.is_floating:
                self._tape.watch(value)
        self.names[name] = value
        return ast.Name(name, ast.Load())


def _only_computes(function: ast.expr) -> bool:
    if isinstance(function, ast.Attribute) and function.attr in _METHODS:
        return True
    root, *words = ast.unparse(function).split(".")
    return root in _PYTHON if not words else root in MODULES and _ACTING.isdisjoint(words)
