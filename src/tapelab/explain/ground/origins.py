"""Where something came from that no tape saw: who holds it, and which statement of the learner's put it there.

Objects are told by identity: from the names of the learner's frames one walks through their objects, lists and dicts to
the one that is looked for. Which statement assigned a name or an attribute, its source tells.
"""

import ast
import collections
import functools
import itertools
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from tapelab.explain.ground import lines
from tapelab.explain.ground.expressions import argument, called, tree_of
from tapelab.explain.ground.lines import Frame, Line
from tapelab.graphs.libraries import is_library

import tensorflow as tf

_MOST = 20_000  # objects that are looked at
_CALLS = 50  # expressions that are followed from call to call
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_FILLING = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "appendleft"})
_MAKING = ("__init__", "build")  # what runs once


class Origin(NamedTuple):
    """A statement, and the function that it is in: its name, "" at the top of a file."""

    line: Line
    function: str


class _Scope(NamedTuple):
    """Code, with what its names stand for."""

    file: str
    tree: ast.AST
    names: Mapping[str, Any]

    @property
    def function(self) -> str:
        return getattr(self.tree, "name", "")

    def at(self, node: ast.expr | ast.stmt) -> Origin:
        return Origin(Line(self.file, node.lineno), self.function)


class _Held(NamedTuple):
    """How an object is held: by a name in a scope or an attribute of an object, or within what is held so."""

    owner: Any
    name: str


class Origins:
    """Finds where objects came from.

    Args:
        frame: of the learner, or None. Those around it are looked at too.
        known: further objects to begin with, such as a model.
    """

    def __init__(self, frame: Frame, known: Iterable[Any] = ()):
        self._parts: dict[int, frozenset[int]] = {}
        self._scopes = list(_scopes(frame))
        named = [(one, _Held(scope, name)) for scope in self._scopes for name, one in list(scope.names.items())]

        def parts(value: Any, held: _Held | None) -> Iterator[tuple[Any, _Held | None]]:
            yield from ((part, held if name is None else _Held(value, name)) for name, part in _parts_of(value))

        found = _walked([*((one, None) for one in known), *named], parts)
        self._held: dict[int, _Held | None] = {key: held for key, (_, held) in found.items()}  # None: it was given
        self._alive = [value for value, _ in found.values()]  # what the numbers in these stand for

    def made(self, value: Any) -> Line | None:
        """Return where a value was made, or the object that it belongs to: the last line that can have done so."""
        for held in self._holders(value):
            found = [scope.at(statement).line for scope, statement, _ in _assignments(held)]
            if found:
                return found[-1]
        return None

    def reading(self, value: Any, source: Any) -> Origin | None:
        """Return the statement by which a value was made of a source, or None where that cannot be told."""
        found = (self._made_of(held, _names_of(source), set()) for held in self._holders(value))
        return next(filter(None, found), None)

    def read_for(self, call: ast.expr, code: types.CodeType, source: Any) -> Origin | None:
        """Return where what a call in some code is given was made of a source, or None where that cannot be told.

        For code that has returned: of its names those are known that were assigned in it, and its own object.
        """
        own = [
            one for one in self._alive if any(getattr(f, "__code__", None) is code for f in vars(type(one)).values())
        ]
        outside = [one.names for one in self._scopes if one.file == code.co_filename and not one.function]
        names = collections.ChainMap({code.co_varnames[0]: own[0]} if own and code.co_argcount else {}, *outside)
        given = [*call.args, *(one.value for one in call.keywords)] if isinstance(call, ast.Call) else [call]
        waiting = [(scope, part) for scope in _function_scope(code, names) for part in given]
        for scope, part in waiting:
            for name in {node.id for node in ast.walk(part) if isinstance(node, ast.Name)}:
                if found := self._made_of(_Held(scope, name), _names_of(source), {name}):
                    return found
                if len(waiting) < _CALLS:
                    waiting += _passed_as(scope, name, own[0] if own else None)
        return None

    def read_by_datasets(self, source: Any) -> Origin | None:
        """Return where a `tf.data.Dataset` that the learner holds was made with a function that reads a source."""
        found = (self.reading(one, source) for one in self._alive if isinstance(one, tf.data.Dataset))
        return next((origin for origin in found if origin is not None), None)

    def models(self) -> list[tf.keras.Model]:
        """Return the Keras models that the learner holds."""
        return [one for one in self._alive if isinstance(one, tf.keras.Model)]

    def read_once(self, source: Any) -> Origin | None:
        """Return where an object that holds a source reads it only when it is made, in __init__ or build, or None."""
        for held in itertools.islice(self._holders(source), 1):
            parts = ((scope, node) for scope in _methods(held.owner) for node in ast.walk(scope.tree))
            named = [(scope, node) for scope, node in parts if _is_held(scope, held)(node)]
            uses = [(scope, node) for scope, node in named if isinstance(node.ctx, ast.Load)]
            if uses and all(scope.function in _MAKING for scope, _ in uses):
                return uses[-1][0].at(uses[-1][1])
        return None

    def rebound(self, tensor: Any) -> Line | None:
        """Return the line that put a tensor in place of a variable, such as `x = x + 1`, or None."""
        found = [(held, *one) for held in itertools.islice(self._holders(tensor), 1) for one in _assignments(held)]
        was_variable = any("Variable" in ast.unparse(value) for *_, value in found)
        itself = [
            scope.at(node).line
            for held, scope, node, value in found
            if isinstance(node, ast.AugAssign) or any(map(_is_held(scope, held), ast.walk(value)))
        ]
        return itself[-1] if itself and was_variable else None

    def _holders(self, value: Any) -> Iterator[_Held]:
        """How a value is held, and then how each object is that holds it."""
        held = next((self._held[name] for name in _names_of(value) if name in self._held), None)
        while held is not None:
            yield held
            held = None if isinstance(held.owner, _Scope) else self._held.get(id(held.owner))

    def _made_of(self, held: _Held, wanted: frozenset[int], seen: set[str]) -> Origin | None:
        """Where what is held was made of a source, by the last statement that did so."""
        made = list(_assignments(held))[::-1]
        return next(filter(None, (self._reads(expression, scope, wanted, seen) for scope, _, expression in made)), None)

    def _reads(self, expression: ast.expr, scope: _Scope, wanted: frozenset[int], seen: set[str]) -> Origin | None:
        """Where an expression, or what its names were made of, has a source in what it names."""
        for node in _outermost(expression):
            value = _looked_up(node, scope.names)
            while value is None and isinstance(node, ast.Attribute):  # such as a property: what it is one of
                node = node.value
                value = _looked_up(node, scope.names)
            if not wanted.isdisjoint(_names_of(value) if tf.is_tensor(value) else self._within(value)):
                return scope.at(expression)
            name = node.id if isinstance(node, ast.Name) else ""
            if name and name not in seen:
                seen.add(name)
                if found := self._made_of(_Held(scope, name), wanted, seen):
                    return found
        return None

    def _within(self, value: Any) -> frozenset[int]:
        """What can be reached from an object, by identity."""
        if id(value) not in self._parts:
            found = _walked([(value, 0)], lambda one, at: ((part, at + 1) for _, part in _parts_of(one, at < 3)))
            self._alive.extend(one for one, _ in found.values())
            self._parts[id(value)] = frozenset(found)
        return self._parts[id(value)]


def _walked(
    starts: Iterable[tuple[Any, Any]], parts: Callable[[Any, Any], Iterable[tuple[Any, Any]]]
) -> dict[int, tuple[Any, Any]]:
    """What can be reached from objects, the nearest first: identity → the object, and what is known of it."""
    found, waiting = {}, collections.deque(starts)
    while waiting and len(found) < _MOST:
        value, known = waiting.popleft()
        if id(value) not in found:
            found[id(value)] = value, known
            waiting.extend(parts(value, known))
    return found


def _names_of(value: Any) -> frozenset[int]:
    """By which identities a value is known: of a Keras variable also that of TensorFlow's inside it."""
    return frozenset({id(value), *([id(value.value)] if hasattr(value, "path") and hasattr(value, "value") else ())})


def _scopes(frame: Frame) -> Iterator[_Scope]:
    """The code of a frame and of those around it that are the learner's, and of the modules that these know."""
    seen = set()
    while frame is not None:
        if lines.own_frame(frame) is frame:
            code, namespace = frame.f_code, frame.f_globals
            if frame.f_locals is not namespace:
                yield from _function_scope(code, frame.f_locals)
            modules = [one for one in namespace.values() if isinstance(one, types.ModuleType)]
            own = [vars(one) for one in modules if not is_library(getattr(one, "__file__", None))]
            for names in (namespace, *own):
                if id(names) not in seen:
                    seen.add(id(names))
                    file = code.co_filename if names is namespace else names["__file__"]
                    yield _Scope(file, tree_of(file) or ast.Module([], []), names)
        frame = frame.f_back


def _function_scope(code: types.CodeType, names: Mapping[str, Any]) -> Iterator[_Scope]:
    tree = tree_of(code.co_filename) or ast.Module([], [])
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and getattr(node, "name", "<lambda>") == code.co_name:
            decorated = (node, *getattr(node, "decorator_list", ()))
            if min(one.lineno for one in decorated) == code.co_firstlineno:
                yield _Scope(code.co_filename, node, names)


def _methods(owner: Any) -> Iterator[_Scope]:
    """The methods that the learner wrote for an object's class, in each of which its first argument is known."""
    for base in type(owner).__mro__ if not isinstance(owner, _Scope) else ():
        for function in vars(base).values():
            code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
            if code is not None and code.co_argcount and not is_library(code.co_filename):
                names = collections.ChainMap({code.co_varnames[0]: owner}, getattr(function, "__globals__", {}))
                yield from _function_scope(code, names)


def _passed_as(scope: _Scope, name: str, owner: Any) -> Iterator[tuple[_Scope, ast.expr]]:
    """What the calls of a function in its file pass as one of its parameters, each with the code that calls."""
    parameters = [one.arg for one in getattr(getattr(scope.tree, "args", None), "args", ())]
    if name not in parameters:
        return
    position = parameters.index(name) - (owner is not None)
    for function in ast.walk(tree_of(scope.file) or ast.Module([], [])):
        if isinstance(function, ast.FunctionDef) and (owner is None or hasattr(type(owner), function.name)):
            for call in _own_nodes(function):
                part = argument(call, position, (name,)) if called(call) == scope.function else None
                if part is not None:
                    yield _Scope(scope.file, function, scope.names), part


def _own_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a file or function, in order, without those of functions and classes in it."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield from _own_nodes(node)


def _assignments(held: _Held) -> Iterator[tuple[_Scope, ast.stmt | ast.expr, ast.expr]]:
    """The statements that put something under a name or an attribute: (scope, statement, expression), in order."""
    scopes = [held.owner] if isinstance(held.owner, _Scope) else _methods(held.owner)
    for scope in scopes:
        is_it = _is_held(scope, held)
        for node in _own_nodes(scope.tree):
            for target, value in _pairs(node):
                part = target
                while isinstance(part, (ast.Subscript, ast.Starred)):
                    part = part.value
                if is_it(part) and value is not None:
                    yield scope, node if hasattr(node, "lineno") else value, value


def _is_held(scope: _Scope, held: _Held) -> Callable[[ast.AST], bool]:
    """Whether a part of some code is the name or the attribute by which an object is held."""
    if scope is held.owner:
        return lambda node: isinstance(node, ast.Name) and node.id == held.name
    return lambda node: (
        isinstance(node, ast.Attribute) and node.attr == held.name and _looked_up(node.value, scope.names) is held.owner
    )


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """What a statement assigns, or fills, with what: (target, expression)."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            yield from _unpacked(target, node.value)
    elif isinstance(node, (ast.AugAssign, ast.AnnAssign, ast.NamedExpr)):
        yield node.target, node.value
    elif isinstance(node, (ast.For, ast.comprehension)):
        yield from _unpacked(node.target, node.iter)
    elif isinstance(node, ast.Call) and called(node) in _FILLING and isinstance(node.func, ast.Attribute) and node.args:
        yield node.func.value, node.args[-1]


def _unpacked(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if not isinstance(target, (ast.Tuple, ast.List)):
        yield target, value
        return
    parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else ()
    is_each = len(parts) == len(target.elts)
    for number, one in enumerate(target.elts):
        yield from _unpacked(one, parts[number] if is_each else value)


def _outermost(expression: ast.expr) -> Iterator[ast.expr]:
    """The names in an expression, and the chains of attributes that begin with one, each as long as it is."""
    part = expression
    while isinstance(part, ast.Attribute):
        part = part.value
    if isinstance(part, ast.Name):
        yield expression
    else:
        for one in ast.iter_child_nodes(part):
            yield from _outermost(one)


def _looked_up(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a name or a chain of attributes stands for, or None; nothing is computed for it."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if not isinstance(node, ast.Attribute):
        return None
    owner = _looked_up(node.value, names)
    if isinstance(owner, types.ModuleType):
        return None
    function = getattr(type(owner), node.attr, None)
    if isinstance(function, types.FunctionType):
        return types.MethodType(function, owner)
    return getattr(owner, "__dict__", {}).get(node.attr)


@functools.cache
def _is_opened(kind: type) -> bool:
    """Whether to look into the attributes of objects of a type: the learner's, and what holds variables."""
    return hasattr(kind, "trainable_variables") or (
        not issubclass(kind, (type, types.ModuleType)) and not is_library(_file_of(kind))
    )


def _file_of(kind: type) -> str | None:
    codes = (getattr(one, "__code__", None) for one in vars(kind).values())
    return next((one.co_filename for one in codes if one is not None), "<frozen")


def _parts_of(value: Any, with_code: bool = False) -> Iterator[tuple[str | None, Any]]:
    """What an object holds: (name of the attribute, or None within a list or the like, value).

    Args:
        with_code: whether what a function reads counts, too.
    """
    if isinstance(value, (str, bytes)) or tf.is_tensor(value) or hasattr(value, "handle"):
        return
    if isinstance(value, Mapping):
        yield from ((None, one) for one in list(value.values()))
    elif isinstance(value, (list, tuple, set, frozenset, collections.deque)):
        yield from ((None, one) for one in list(value))
    elif isinstance(value, types.MethodType):
        yield None, value.__self__
        if with_code:
            yield None, value.__func__
    elif isinstance(value, types.FunctionType):
        cells = [cell for cell in value.__closure__ or () if cell != types.CellType()]
        yield from ((None, cell.cell_contents) for cell in cells)
        if with_code and not is_library(value.__code__.co_filename):
            names = (value.__globals__.get(name) for name in value.__code__.co_names)
            yield from ((None, one) for one in names if not isinstance(one, types.ModuleType))
    elif _is_opened(type(value)) and hasattr(value, "__dict__"):
        yield from list(vars(value).items())
