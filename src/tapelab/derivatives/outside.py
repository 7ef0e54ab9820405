"""What a function reads from outside its arguments, noted when it is traced, and looked at again before every call.

A traced function has the Python values built in that it read: globals, closures, attributes, a layer's flags. `Outside`
walks from the function over everything that its code names, and notes which object is found where. To look again costs
about 50 ns for each name. Seen are

- globals, closure cells and default values, of the function and of the Python functions that it reaches;
- attributes that the code names, on instances, classes and modules; the items of lists, tuples, dictionaries and sets;
- of Keras objects: their layers, variables, flags, dtype policies and public attributes;
- the elements of small NumPy arrays, which can be changed in place.

Two objects are the same if they are one object, or equal numbers, strings or tuples of those, of one type. The code of
libraries (what is installed, and Python itself) is not followed.
"""

import dis
import functools
import math
import operator
import sys
import sysconfig
import types
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

from tapelab.runtime import tf

import numpy as np

_MISSING = object()
_ITEMS = 1000  # of a container
_BYTES = 2**16  # of an array
_OBJECTS = 10_000
_SCALARS = (type(None), bool, int, float, complex, str, bytes, np.generic, np.dtype)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_OWN = str(Path(__file__).resolve().parent.parent)
# What Keras keeps under private names and builds into a trace; and what changes without a meaning for it.
_KERAS_PRIVATE = {
    "_dtype_policy", "_fn_kwargs", "_functional", "_layers", "_non_trainable_variables", "_trainable",
    "_trainable_variables",
}  # fmt: skip
_KERAS_IGNORED = {
    "build", "built", "compiled", "history", "loss", "name", "optimizer", "predict_function", "quantize",
    "steps_per_execution", "stop_training", "supports_jit", "test_function", "train_function",
    "unrolled_steps_per_execution",
}  # fmt: skip
_KERAS_CREATION = ("_constraint", "_initializer", "_parameters")  # matters when a layer is made, or trained by Keras
_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


class _Watch(NamedTuple):
    """One place: where to look, and what was found there.

    Attributes:
        look: returns an iterable of the objects that are there now.
        found: the objects that were there.
        labels: for each of them, where it was, in words.
        owner: the id of the object that holds them.
        own: whether the function may change it itself while it is traced.
    """

    look: Callable[[], Iterable]
    found: list
    labels: list[str]
    owner: int
    own: bool

    def differences(self) -> list[str]:
        """The labels of what is not the same any more."""
        try:
            now = list(self.look())
        except (AttributeError, KeyError, RuntimeError, ValueError):
            return self.labels
        return [label for label, old, new in zip(self.labels, self.found, now, strict=False) if not _same(old, new)]


class Outside:
    """What a function reads from outside, as it is now.

    Args:
        roots: the function, and whatever else is built into its trace.
        ignored: what `own_changes` of an earlier look has returned.
    """

    def __init__(self, *roots: Any, ignored: frozenset[tuple[int, str]] = frozenset()):
        self._ignored = ignored
        self._watches: list[_Watch] = []
        # Compared by ==: the lengths of containers, the contents of sets and arrays, Keras's global settings.
        self._contents: list[tuple[Callable[[], Any], Any, str]] = []
        self._names: set[str] = set()
        self._stored: set[str] = set()
        known = -1
        while known < len(self._names):  # a name found late may be an attribute of an object that was seen early
            known = len(self._names)
            self._watches.clear()
            self._contents.clear()
            self._seen: dict[int, Any] = {}
            for root in roots:
                self._visit(root)
        self._compare(tf.keras.config.floatx, "the Keras setting floatx")
        self._compare(_dtype_policy, "the Keras setting dtype_policy")
        del self._seen

    def unchanged(self) -> bool:
        """Whether everything is still the same."""
        try:
            for watch in self._watches:
                if not all(map(operator.is_, watch.look(), watch.found)) and not self._again(watch):
                    return False
            return all(look() == found for look, found, _ in self._contents)
        except (AttributeError, KeyError, RuntimeError, ValueError):  # deleted, or changed by a thread meanwhile
            return False

    def changed_by_others(self) -> str | None:
        """Name something that is not the same any more and that the function does not set itself; None if all is."""
        return next((label for watch in self._watches if not watch.own for label in watch.differences()), None)

    def own_changes(self) -> frozenset[tuple[int, str]]:
        """Return what the function has changed itself, such as a counter of its traces: no reason to trace again."""
        own = [watch for watch in self._watches if watch.own]
        return self._ignored | {(watch.owner, label) for watch in own for label in watch.differences()}

    def accept_own_changes(self) -> None:
        """Note anew what the function may have changed itself: it ran, and will run again."""
        for watch in self._watches:
            if watch.own:
                now = list(watch.look())
                watch.found[:] = now[: len(watch.found)]
        self._contents = [(look, look(), label) for look, _, label in self._contents]

    def _again(self, watch: _Watch) -> bool:
        """Compare by value where the objects are not identical, and note the new ones."""
        now = list(watch.look())
        if len(now) != len(watch.found) or not all(map(_same, watch.found, now)):
            return False
        watch.found[:] = now
        return True

    def _watch(self, look: Callable[[], Iterable], labels: list[str], owner: Any, own: bool = False) -> None:
        """Note what is found, and visit it."""
        found = list(look())
        if found and (id(owner), labels[0]) not in self._ignored:
            self._watches.append(_Watch(look, found, labels, id(owner), own))
        for value in found:
            self._visit(value)

    def _named(self, owner: Any, names: Iterable[str], where: str, own: bool = False) -> None:
        """Watch names in a dictionary or a class; those that the function's own code sets are watched apart."""
        get = owner.get if isinstance(owner, dict) else vars(owner).get
        labels = {name: f"{where} {name!r}" for name in sorted(names)}
        for own_part in (False, True):
            part = [
                name
                for name, label in labels.items()
                if (own or name in self._stored) == own_part and (id(owner), label) not in self._ignored
            ]
            look = functools.partial(map, get, part, repeat(_MISSING))
            self._watch(look, [labels[name] for name in part], owner, own_part)

    def _compare(self, look: Callable[[], Any], label: str) -> None:
        self._contents.append((look, look(), label))

    def _visit(self, value: Any) -> None:
        if value is _MISSING or isinstance(value, _SCALARS) or id(value) in self._seen or len(self._seen) > _OBJECTS:
            return
        self._seen[id(value)] = value
        if isinstance(value, _CONTAINERS):
            self._container(value)
        elif isinstance(value, np.ndarray):
            if value.nbytes <= _BYTES and value.dtype != object:
                self._compare(value.tobytes, "a NumPy array")
        elif isinstance(value, (tf.Tensor, tf.Variable, tf.keras.Variable, tf.DType, tf.TensorShape)):
            return  # a tensor does not change, and a variable is read when the program runs
        elif isinstance(value, types.FunctionType):
            self._function(value)
        elif isinstance(value, types.MethodType):
            self._visit(value.__func__)
            self._visit(value.__self__)
        elif isinstance(value, (staticmethod, classmethod)):
            self._visit(value.__func__)
        elif isinstance(value, (property, functools.cached_property)):
            self._visit(value.fget if isinstance(value, property) else value.func)
        elif isinstance(value, functools.partial):
            self._visit((value.func, value.args, value.keywords))
        elif isinstance(value, types.ModuleType):
            if not is_library(getattr(value, "__file__", None)):
                self._named(value, self._names & vars(value).keys(), f"{value.__name__}'s")
        elif isinstance(value, type):
            self._class(value)
        elif not isinstance(value, (types.BuiltinFunctionType, types.CodeType)):
            self._instance(value)

    def _container(self, value: Any) -> None:
        if len(value) > _ITEMS:
            self._compare(value.__len__, "the length of a container")
        elif isinstance(value, (set, frozenset)):
            self._compare(lambda: frozenset((type(item), item) for item in value), "a set")
        elif isinstance(value, dict):
            labels = ["the length", *[f"{what} {key!r:.40}" for what in ("the key", "the item") for key in value]]
            self._watch(lambda: chain((len(value),), value, value.values()), labels, value, own=True)
        else:
            labels = ["the length", *[f"the item {index}" for index in range(len(value))]]
            self._watch(lambda: chain((len(value),), value), labels, value, own=True)

    def _function(self, function: types.FunctionType) -> None:
        where = f"{function.__qualname__}'s"
        code = function.__code__
        if not is_library(code.co_filename):
            reads = self._code(code)
            scope = function.__globals__
            self._named(scope, reads, "the global")  # missing ones too: they may come to hide what Python has built in
            self._watch(lambda: _parts(function), [f"{where} {part}" for part in _FUNCTION_PARTS], function)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, cell in cells.items():
            if not _empty(cell):
                look = functools.partial(map, _CONTENTS, (cell,))
                self._watch(look, [f"{where} closure's {name!r}"], cell, name in self._stored)
        if "__wrapped__" in vars(function):
            self._visit(function.__wrapped__)

    def _code(self, code: types.CodeType) -> set[str]:
        """Note which attributes a code object names, and return which globals. Functions within it are included."""
        reads = set()
        self._names.update(code.co_names)
        for instruction in dis.get_instructions(code):
            operation, name = instruction.opname, instruction.argval
            if operation in ("LOAD_GLOBAL", "LOAD_NAME"):
                reads.add(name)
            elif operation in ("STORE_GLOBAL", "STORE_DEREF", "STORE_ATTR"):
                self._stored.add(name)
            elif operation == "IMPORT_NAME":
                self._visit(sys.modules.get(name, _MISSING))
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                reads |= self._code(constant)
            elif isinstance(constant, str) and constant.isidentifier():
                self._names.add(constant)  # getattr(settings, "scale")
        return reads

    def _class(self, kind: type) -> None:
        users = _users_classes(kind)
        names = {name for base in users for name in vars(base) if name in self._names}
        for base in users:
            self._named(base, names, f"{base.__name__}'s")

    def _instance(self, value: Any) -> None:
        kind = type(value)
        where = f"a {kind.__name__}'s"
        users = _users_classes(kind)
        methods = {name for base in users for name in vars(base)}
        for base in users:
            special = {"__call__", "__getitem__", "call"} & vars(base).keys()
            self._named(base, special | (methods & self._names), where)
            slots = [name for name in self._names if isinstance(vars(base).get(name), types.MemberDescriptorType)]
            look = functools.partial(_slots, value, slots)
            self._watch(look, [f"{where} {name!r}" for name in slots], value)
        attributes = getattr(value, "__dict__", None)
        if not isinstance(attributes, dict):
            return
        names = (attributes.keys() | methods) & self._names
        if kind.__module__.split(".")[0] == "keras" or isinstance(value, tf.keras.layers.Layer):
            public = {name for name in attributes if not name.startswith("_") and not name.endswith(_KERAS_CREATION)}
            kept = (public - _KERAS_IGNORED) | (_KERAS_PRIVATE & attributes.keys())
            self._named(attributes, kept | names, where, own=True)
        else:
            self._named(attributes, names, where)
        for name in ("__wrapped__", "_differentiated", "python_function", "_python_function"):
            if name in attributes:
                self._visit(attributes[name])


_CONTENTS = operator.attrgetter("cell_contents")
_parts = operator.attrgetter(*_FUNCTION_PARTS)


def _empty(cell: types.CellType) -> bool:
    try:
        _CONTENTS(cell)
    except ValueError:
        return True
    return False


def _slots(value: Any, names: list[str]) -> Iterator[Any]:
    return (getattr(value, name, _MISSING) for name in names)


def _dtype_policy() -> str:
    return tf.keras.config.dtype_policy().name


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, (float, np.floating)):
        return (old == new and math.copysign(1, old) == math.copysign(1, new)) or (old != old and new != new)
    if isinstance(old, (complex, np.complexfloating)):
        return _same(old.real, new.real) and _same(old.imag, new.imag)
    if isinstance(old, _SCALARS):
        return bool(old == new)
    return isinstance(old, tuple) and len(old) == len(new) and all(map(_same, old, new))


@functools.cache
def is_library(file: str | None) -> bool:
    """Whether code is from a library, by its file; code without one, or from a prompt, is the caller's own."""
    if file is None or file.startswith("<frozen"):
        return True
    installed = "site-packages" in file or "dist-packages" in file
    return installed or file.startswith(_LIBRARIES) or str(Path(file).resolve()).startswith(_OWN)


def _users_classes(kind: type) -> list[type]:
    """The classes in the order of method resolution that the caller wrote."""

    def written(base):
        module = sys.modules.get(base.__module__)
        file = getattr(module, "__file__", None)
        return base.__module__ == "__main__" or module is None or (file is not None and not is_library(file))

    return [base for base in kind.__mro__ if written(base)]
