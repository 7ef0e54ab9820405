"""What a function reads from outside its arguments, noted when it is traced, and looked at again before every call.

A traced function has the Python values built in that it read. What it can reach and is made of Python's own containers
or of classes that the caller wrote is watched, whichever way the function reads it, and a change is noticed. Whatever
it can reach and cannot be watched is in `unseen`, for a warning.

Seen are globals, closures, defaults and attributes of functions; attributes of objects, classes and modules; items of
containers; small arrays; of Keras objects, layers, variables, flags, policies and public attributes. Of an object,
attributes that no code can read are left out, so that a counter beside them costs nothing: all of them can be read
where some code takes attributes by computed names, and those that some code names anywhere else. Two objects are the
same if they are one object, or equal numbers, strings or tuples of those. The code of libraries is not followed.
"""

import builtins
import contextvars
import functools
import operator
import os
import sys
import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, UserString, deque
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from typing import Any

from tapelab.derivatives import unwatchable
from tapelab.derivatives.code_names import CodeNames
from tapelab.derivatives.libraries import is_library, split_classes
from tapelab.derivatives.watches import MISSING, SCALARS, Watch, Where, same
from tapelab.runtime import tf

import numpy as np

_ITEMS = 1000  # of a container
_BYTES = 2**16  # of an array
_OBJECTS = 10_000
_LISTS, _SETS = (list, tuple, deque), (set, frozenset)
_MAPPINGS = (dict, types.MappingProxyType)
_BUFFERS = (bytearray, memoryview)
_PYTHONS_OWN = (UserDict, UserList, UserString, ChainMap, types.SimpleNamespace, threading.local)  # as the caller's
_CONSTANT = (tf.Tensor, tf.Variable, tf.DType, tf.TensorShape)  # or read when the program runs
_PLAIN_BASES = {"abc", "builtins", "typing"}  # they read no attributes
# What is not called by an operation on an object, but when its class makes, copies or describes one.
_MAKING = {"__init__", "__new__", "__post_init__", "__init_subclass__", "__set_name__"}
_NO_OPERATION = {"__del__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__setattr__", "__dir__"}
_NO_HOOKS = {"build", "get_config", "from_config", "__init__"}  # of Keras: nothing that a built layer reads
# What Keras keeps under private names and builds into a trace; and what changes without a meaning for it.
_KERAS_PRIVATE = {
    "_compile_loss", "_dtype_policy", "_fn_kwargs", "_functional", "_layers", "_non_trainable_variables", "_trainable",
    "_trainable_variables", "_user_loss", "_user_loss_weights",
}  # fmt: skip
_KERAS_IGNORED = {
    "build", "built", "compiled", "history", "loss", "name", "optimizer", "predict_function", "quantize",
    "steps_per_execution", "stop_training", "supports_jit", "test_function", "train_function",
    "unrolled_steps_per_execution",
}  # fmt: skip
_KERAS_CREATION = ("_constraint", "_initializer", "_parameters")  # matters when a layer is made, or trained by Keras
_FUNCTION_PARTS = ("__code__", "__defaults__", "__kwdefaults__")


class Outside:
    """What a function reads from outside, as it is now.

    Args:
        roots: the function, and whatever else is built into its trace.
        ignored: what `own_changes` of an earlier look has returned.

    Attributes:
        unseen: a dictionary of what cannot be watched: where it is → why and what to do, both in words.
    """

    def __init__(self, *roots: Any, ignored: frozenset[tuple[int, str]] = frozenset()):
        self._ignored = ignored
        self._names: set[str] = set()
        self._stored: set[str] = set()
        self._by_name = False  # whether some code takes attributes by computed names
        self._read: dict[types.CodeType, CodeNames] = {}
        known = None
        while known != (known := (len(self._names), self._by_name)):  # a name found late may be of an object seen early
            self._walk(roots)
        self._compare(tf.keras.config.floatx, "the Keras setting floatx")
        self._compare(_dtype_policy, "the Keras setting dtype_policy")
        del self._seen, self._kinds, self._variables, self._read, self._next, self._last

    def unchanged(self) -> bool:
        """Whether everything is still the same."""
        try:
            for watch in self._watches:
                if not all(map(operator.is_, watch.look(), watch.found)) and not watch.again():
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

    def _walk(self, roots):
        self._watches: list[Watch] = []
        # Compared by ==: the lengths of containers, the contents of sets and arrays, Keras's global settings.
        self._contents: list[tuple[Callable[[], Any], Any, str]] = []
        self._seen: dict[int, Any] = {}
        self._kinds: set[type] = set()  # of objects that were seen
        self._variables: list[tf.keras.Variable] = []
        self.unseen: dict[str, str] = {}
        # What libraries hold comes last: it is not named, and what is reached in another way too is.
        self._next, self._last = deque(), deque()
        for root in roots:
            self._next.append((root, Where(getattr(root, "__name__", f"a {type(root).__name__}"), ""), True))
        self._visit_all()
        for name in ("trainable", "regularizer"):  # of Keras's variables
            look = functools.partial(map, operator.attrgetter(name), self._variables)
            places = [Where(f"{variable.path}.{name}", "") for variable in self._variables]
            self._watch(look, [f"a variable's {name!r}"] * len(places), places, self._variables, True, named=False)
        self._visit_all()

    def _visit_all(self):
        while self._next or self._last:
            value, where, named = (self._next or self._last).popleft()
            if value is MISSING or isinstance(value, SCALARS) or id(value) in self._seen:
                continue
            if len(self._seen) > _OBJECTS:
                self._tell(where, unwatchable.TOO_MANY.format(_OBJECTS))
                self._next.clear()
                self._last.clear()
                return
            self._seen[id(value)] = value
            self._visit(value, where, named)

    def _tell(self, where: Where, why: str | None) -> None:
        if why:
            self.unseen[where.said()] = why

    def _later(self, value: Any, where: Where, named: bool = True) -> None:
        (self._next if named else self._last).append((value, where, named))

    def _watch(self, look, labels, places, owner, own=False, named=True) -> None:
        """Note what is found, and visit it."""
        found = list(look())
        if found and (id(owner), labels[0]) not in self._ignored:
            self._watches.append(Watch(look, found, labels, id(owner), own))
        for value, place in zip(found, places, strict=False):
            self._later(value, place, named)

    def _attributes(self, get, names: Iterable[str], said: str, places, owner, own=False, named=True) -> None:
        """Watch names; those that the function's own code sets are watched apart.

        Args:
            get: returns what looks a name up, with a default; asked at every look.
            said: whose they are, in words.
            places: returns where the object of a name is.
        """
        labels = {name: f"{said} {name!r}" for name in sorted(names)}
        for own_part in (False, True):
            part = [
                name
                for name, label in labels.items()
                if (own or name in self._stored) == own_part and (id(owner), label) not in self._ignored
            ]
            if part:
                look = functools.partial(_values, get, part)
                self._watch(look, [labels[name] for name in part], map(places, part), owner, own_part, named)

    def _compare(self, look: Callable[[], Any], label: str) -> None:
        self._contents.append((look, look(), label))

    def _visit(self, value: Any, where: Where, named: bool) -> None:
        """Watch what an object holds, by its kind."""
        if isinstance(value, _LISTS) or isinstance(value, _MAPPINGS) or isinstance(value, _SETS):
            self._container(value, where, named)
            if split_classes(type(value))[0]:
                self._instance(value, where, named)
        elif isinstance(value, np.ndarray):
            self._array(value, where, named)
        elif isinstance(value, _BUFFERS):
            self._compare(lambda: bytes(value), "a buffer")
        elif isinstance(value, _CONSTANT):
            return
        elif isinstance(value, tf.keras.Variable):
            self._variables.append(value)
        elif isinstance(value, types.FunctionType):
            self._function(value, where)
        elif isinstance(value, types.ModuleType):
            self._module(value, where, named)
        elif isinstance(value, type):
            self._class(value, where)
            self._later(type(value), where)
        elif isinstance(value, contextvars.ContextVar):
            self._watch(lambda: (value.get(MISSING),), ["a ContextVar"], [where], value)
        elif isinstance(value, weakref.ref):
            self._watch(lambda: (value(),), ["what a weak reference is to"], [where], value)
        elif value is os.environ:
            self._compare(getattr(value, "_data", value).copy, "the environment")
        else:
            self._held(value, where, named)

    def _held(self, value, where, named):
        """What is made of other objects, or is an instance of a class."""
        parts = {
            types.MethodType: ("__func__", "__self__"),
            staticmethod: ("__func__",),
            classmethod: ("__func__",),
            property: ("fget",),
            functools.cached_property: ("func",),
            functools.partial: ("func", "args", "keywords"),
            functools.partialmethod: ("func", "args", "keywords"),
            functools.singledispatchmethod: ("dispatcher", "func"),
            types.BuiltinMethodType: ("__self__",),
            types.MethodWrapperType: ("__self__",),
            np.vectorize: ("pyfunc",),
        }
        for kind, names in parts.items():
            if isinstance(value, kind):
                for name in names:
                    self._later(getattr(value, name), where._replace(name=where.name), named)
                return
        if not isinstance(value, types.CodeType):
            self._instance(value, where, named)

    def _container(self, value, where, named):
        size = len(value)
        constant = type(value) in (tuple, frozenset)
        if size > _ITEMS and not (constant and all(isinstance(item, SCALARS) for item in value)):
            self._compare(value.__len__, "the length of a container")
            self._tell(where, unwatchable.TOO_LONG.format(_ITEMS) if named else None)
        elif isinstance(value, _MAPPINGS):
            keys = list(value)
            labels = ["the length", *[f"{what} {key!r:.40}" for what in ("the key", "the item") for key in keys]]
            places = [where, *[where] * size, *[Where(f"[{key!r:.40}]", where) for key in keys]]
            look = lambda: chain((len(value),), value, value.values())  # noqa: E731
            self._watch(look, labels, places, value, own=True, named=named)
        elif constant or isinstance(value, _SETS):
            for item in value:
                self._later(item, where, named)
            if not constant:
                self._compare(lambda: frozenset((type(item), item) for item in value), "a set")
        else:
            labels = ["the length", *[f"the item {index}" for index in range(size)]]
            places = [where, *[Where(f"[{index}]", where) for index in range(size)]]
            self._watch(lambda: chain((len(value),), value), labels, places, value, own=True, named=named)

    def _array(self, value, where, named):
        if value.dtype == object and value.size <= _ITEMS:
            labels = [f"the item {index} of an array" for index in range(value.size)]
            self._watch(lambda: iter(value.flat), labels, repeat(where), value, named=named)
        elif value.dtype != object and value.nbytes <= _BYTES:
            self._compare(value.tobytes, "a NumPy array")
            self._compare(lambda: (value.shape, value.dtype), "a NumPy array")
        elif named and _writable(value):
            self._tell(where, unwatchable.TOO_LARGE)
        if type(value) is not np.ndarray:
            self._instance(value, where, named)

    def _function(self, function, where):
        said = f"{function.__qualname__}'s"
        code = function.__code__
        library = is_library(code.co_filename)
        reads = None if library else self._code(code)
        if reads:
            places = {
                name: Where(name, f"{function.__qualname__}, line {line}") for name, line in reads.globals.items()
            }
            scope = function.__globals__
            # Missing ones too: they may come to hide what Python has built in.
            self._attributes(lambda: scope.get, places, "the global", places.get, scope)
            parts = operator.attrgetter(*_FUNCTION_PARTS)
            labels = [f"{said} {part}" for part in _FUNCTION_PARTS]
            self._watch(lambda: parts(function), labels, [Where(f".{p}", where) for p in _FUNCTION_PARTS], function)
            attributes = vars(function)
            names = self._names & attributes.keys() if not self._by_name else attributes.keys()
            self._attributes(lambda: attributes.get, names, said, lambda name: Where(f".{name}", where), attributes)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        for name, cell in cells.items():
            if not _empty(cell):
                line = reads.lines.get(name, code.co_firstlineno) if reads else code.co_firstlineno
                place = Where(name, f"{function.__qualname__}, line {line}")
                look = functools.partial(map, _CONTENTS, (cell,))
                own = name in self._stored
                self._watch(look, [f"{said} closure's {name!r}"], [place], cell, own, named=not library)
        if "__wrapped__" in vars(function):
            self._later(function.__wrapped__, where)
        for link in reads.chains if reads else ():
            self._follow(link, function, cells, reads.loose)

    def _code(self, code) -> CodeNames:
        """Note which attributes a code object names. Functions within it are included."""
        if code not in self._read:
            self._read[code] = reads = CodeNames(code)
            self._names |= reads.names
            self._stored |= reads.stored
            self._by_name |= reads.matches or not reads.names.isdisjoint(("__dict__", "__getattribute__"))
        return self._read[code]

    def _follow(self, link, function, cells, loose):
        """Look at what a chain of names leads to: a function of a library, or a module as an object."""
        where = Where(link.root, f"{function.__qualname__}, line {link.line}")
        if link.kind == "free":
            value = _CONTENTS(cells[link.root]) if link.root in cells and not _empty(cells[link.root]) else MISSING
        elif link.kind == "module":
            value = sys.modules.get(link.root, MISSING)
            self._later(value, where)
        else:
            value = function.__globals__.get(link.root, getattr(builtins, link.root, MISSING))
        for name in link.attributes:
            owner = value
            if not isinstance(owner, (types.ModuleType, type)):
                owner = type(value)
            if isinstance(owner, type) and split_classes(owner)[0]:
                return  # what the caller's classes have is watched, and may be computed
            where = Where(f".{name}", where)
            value = getattr(owner, name, MISSING)
            if isinstance(owner, types.ModuleType) and is_library(getattr(owner, "__file__", None)):
                if isinstance(value, (*SCALARS, *_MAPPINGS, *_LISTS, *_SETS)) or value is os.environ:
                    self._attributes(lambda o=owner: vars(o).get, {name}, f"{owner.__name__}'s", lambda _: where, owner)  # noqa: B023
        if isinstance(value, types.ModuleType):
            if not link.kept:
                self._escaped(value, where)
            return
        self._tell(where, unwatchable.why_not_read(value, link.bare))
        self._by_name |= unwatchable.reads_by_name(value)
        if value is os.getenv:
            self._later(os.environ, where)
        if isinstance(value, type) and not split_classes(value)[0]:
            for name in loose:  # Path("name").read_text()
                self._tell(Where(f"().{name}", where), unwatchable.why_not_read(getattr(value, name, None), False))

    def _escaped(self, module, where):
        """A module that is read in another way than by a name of what is in it."""
        self._tell(where, unwatchable.why_not_module(module))
        if not is_library(getattr(module, "__file__", None)):
            self._later(vars(module), where)

    def _module(self, value, where, named):
        if not is_library(getattr(value, "__file__", None)):
            names = self._names & vars(value).keys()
            place = lambda name: Where(f".{name}", where)  # noqa: E731
            self._attributes(lambda: vars(value).get, names, f"{value.__name__}'s", place, value, named=named)

    def _class(self, kind, where, made=True):
        """Watch what a class has that some code names, and what operations on its instances call.

        Args:
            made: whether the function may make instances of it.
        """
        own, others = split_classes(kind)
        hooks = {name for base in others for name in vars(base)} - _NO_HOOKS
        held = {name: value for base in own for name, value in vars(base).items()}
        names = {name for name, value in held.items() if _is_operation(name, value) or name in hooks}
        names |= held.keys() & (self._names | (_MAKING if made else set()))
        if self._by_name:
            names |= {name for name in held if not name.startswith("__")}
        for base in own:
            place = lambda name: Where(f".{name}", where)  # noqa: E731
            self._attributes(lambda b=base: vars(b).get, names, f"{base.__name__}'s", place, base)
            self._compare(vars(base).__len__, f"{base.__name__}'s attributes")

    def _instance(self, value, where, named):
        kind = type(value)
        said = f"a {kind.__name__}'s"
        own, others = split_classes(kind)
        if own and kind not in self._kinds:
            self._kinds.add(kind)
            self._class(kind, where, made=False)
            if split_classes(type(kind))[0]:
                self._later(kind, where)
        keras = kind.__module__.split(".")[0] == "keras" or isinstance(value, tf.keras.layers.Layer)
        whole = (own or isinstance(value, _PYTHONS_OWN)) and not keras and self._is_read_whole(others)
        if named and not own and not isinstance(value, (_PYTHONS_OWN, np.ndarray)):
            self._tell(where, unwatchable.why_not_held(value))
        self._by_name |= unwatchable.reads_by_name(value)
        place = lambda name: Where(f".{name}", where)  # noqa: E731
        slots = {
            name
            for base in own
            for name, slot in vars(base).items()
            if isinstance(slot, types.MemberDescriptorType) and (whole or name in self._names)
        }
        self._attributes(lambda: functools.partial(getattr, value), slots, said, place, value)
        attributes = _dictionary(value)
        for name in ("__wrapped__", "_differentiated", "python_function", "_python_function"):
            self._later(attributes.get(name, MISSING), where)
        methods = {name for base in own for name in vars(base)}
        names = (attributes.keys() | methods) & self._names
        look = lambda: _dictionary(value).get  # noqa: E731  the object may get another dictionary
        if keras:
            public = {name for name in attributes if not name.startswith("_") and not name.endswith(_KERAS_CREATION)}
            kept = (public - _KERAS_IGNORED) | (_KERAS_PRIVATE & attributes.keys())
            self._attributes(look, kept | names, said, place, attributes, own=True, named=named and bool(own))
        else:
            names = names | attributes.keys() if whole else names
            self._attributes(look, names, said, place, attributes, named=named and (bool(own) or whole))
        if own and not keras or whole:
            self._compare(lambda: (type(value), len(_dictionary(value))), f"{said} attributes")

    def _is_read_whole(self, others) -> bool:
        """Whether attributes of an object can be read that no code names: the code of its library classes may."""
        libraries = [base for base in others if base.__module__ not in _PLAIN_BASES]
        tensorflows = {name for base in libraries if base.__module__.startswith("tensorflow") for name in vars(base)}
        foreign = any(not base.__module__.startswith(("tensorflow", "keras")) for base in libraries)
        return self._by_name or foreign or not (tensorflows & self._names - {"name", "__module__"}) == set()


_CONTENTS = operator.attrgetter("cell_contents")


def _values(get, names):
    return map(get(), names, repeat(MISSING))


def _is_operation(name, value):
    """Whether an operation on an object can call this, such as ``__mul__``."""
    special = name.startswith("__") and name.endswith("__") and name not in _NO_OPERATION | _MAKING
    return special and (isinstance(value, types.FunctionType) or hasattr(type(value), "__get__"))


def _empty(cell):
    try:
        _CONTENTS(cell)
    except ValueError:
        return True
    return False


def _dictionary(value):
    """The attributes of an object, past what its class makes of reading one."""
    if isinstance(value, threading.local):
        return value.__dict__  # the calling thread's
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}


def _writable(array):
    """Whether the memory of an array can be written to, if not by itself then by what it is a view of."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return False


def _dtype_policy() -> str:
    return tf.keras.config.dtype_policy().name
