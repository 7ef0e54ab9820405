"""The walk from a function over all that it can reach: what is watched of each kind of object.

The module `outside` says what is watched and why. Code and modules are in `reach_code`, classes and their instances in
`reach_objects`.
"""

import contextvars
import functools
import operator
import os
import types
import weakref
from collections import deque
from collections.abc import MappingView
from itertools import chain, repeat
from typing import Any

from tapelab.derivatives.machinery.outside import unwatchable
from tapelab.derivatives.machinery.outside.reach_code import watch_function, watch_module
from tapelab.derivatives.machinery.outside.reach_objects import watch_class, watch_instance
from tapelab.derivatives.machinery.outside.watches import MISSING, SCALARS, Reached, Where
from tapelab.graphs.libraries import split_classes
from tapelab.process.tensorflow import tf

import numpy as np

_ITEMS = 1000  # of a container
_BYTES = 2**16  # of an array
_OBJECTS = 10_000
_LISTS, _SETS = (list, tuple, deque), (set, frozenset)
_MAPPINGS = (dict, types.MappingProxyType)
_BUFFERS = (bytearray, memoryview)
_CONSTANT = (tf.Tensor, tf.Variable, tf.DType, tf.TensorShape)  # or read when the program runs
_PARTS = {
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


class Reach(Reached):
    """All that is reached from the roots: the function, and whatever else is built into its trace."""

    def __init__(self, roots: tuple[Any, ...], ignored: frozenset[tuple[int, str]]):
        super().__init__(ignored)
        known = None
        while known != (known := (len(self.names), self.by_name)):  # a name found late may be of an object seen early
            self._walk(roots)

    def _walk(self, roots: tuple[Any, ...]) -> None:
        self.clear()
        self._seen: dict[int, Any] = {}
        self._variables: list[tf.keras.Variable] = []
        for root in roots:
            self.next.append((root, Where(getattr(root, "__name__", f"a {type(root).__name__}"), ""), True))
        self._visit_all()
        for name in ("trainable", "regularizer"):  # of Keras's variables
            look = functools.partial(map, operator.attrgetter(name), self._variables)
            places = [Where(f"{variable.path}.{name}", "") for variable in self._variables]
            self.watch(look, [f"a variable's {name!r}"] * len(places), places, self._variables, True, named=False)
        self._visit_all()

    def _visit_all(self) -> None:
        while self.next or self.last:
            value, where, named = (self.next or self.last).popleft()
            if value is MISSING or isinstance(value, SCALARS) or id(value) in self._seen:
                continue
            if len(self._seen) > _OBJECTS:
                self.tell(where, unwatchable.WHY["too_many"].format(_OBJECTS))
                self.next.clear()
                self.last.clear()
                return
            self._seen[id(value)] = value
            self._visit(value, where, named)

    def _visit(self, value: Any, where: Where, named: bool) -> None:
        """Watch what an object holds, by its kind."""
        if isinstance(value, (*_LISTS, *_MAPPINGS, *_SETS)):
            self._container(value, where, named)
            if split_classes(type(value))[0]:
                watch_instance(self, value, where, named)
        elif isinstance(value, np.ndarray):
            self._array(value, where, named)
        elif isinstance(value, _BUFFERS):
            self.compare(lambda: bytes(value), "a buffer")
        elif isinstance(value, MappingView):
            self.later(getattr(value, "mapping", getattr(value, "_mapping", MISSING)), where, named)
        elif isinstance(value, _CONSTANT):
            return
        elif isinstance(value, tf.keras.Variable):
            self._variables.append(value)
        elif isinstance(value, types.FunctionType):
            watch_function(self, value, where)
        elif isinstance(value, types.ModuleType):
            watch_module(self, value, where, named)
        elif isinstance(value, type):
            watch_class(self, value, where)
            self.later(type(value), where)
        elif isinstance(value, contextvars.ContextVar):
            self.watch(lambda: (value.get(MISSING),), ["a ContextVar"], [where], value)
        elif isinstance(value, weakref.ref):
            self.watch(lambda: (value(),), ["what a weak reference is to"], [where], value)
        elif value is os.environ:
            self.compare(getattr(value, "_data", value).copy, "the environment")
        else:
            self._held(value, where, named)

    def _held(self, value: Any, where: Where, named: bool) -> None:
        """What is made of other objects, or is an instance of a class."""
        for kind, names in _PARTS.items():
            if isinstance(value, kind):
                for name in names:
                    self.later(getattr(value, name), where._replace(name=where.name), named)
                return
        if not isinstance(value, types.CodeType):
            watch_instance(self, value, where, named)

    def _container(self, value: Any, where: Where, named: bool) -> None:
        size = len(value)
        constant = type(value) in (tuple, frozenset)
        if size > _ITEMS and not (constant and all(isinstance(item, SCALARS) for item in value)):
            self.compare(value.__len__, "the length of a container")
            self.tell(where, unwatchable.WHY["too_long"].format(_ITEMS) if named else None)
        elif isinstance(value, _MAPPINGS):
            keys = list(value)
            labels = ["the length", *[f"{what} {key!r:.40}" for what in ("the key", "the item") for key in keys]]
            places = [where, *[where] * size, *[Where(f"[{key!r:.40}]", where) for key in keys]]
            look = lambda: chain((len(value),), value, value.values())  # noqa: E731
            self.watch(look, labels, places, value, own=True, named=named)
        elif constant or isinstance(value, _SETS):
            for item in value:
                self.later(item, where, named)
            if not constant:
                self.compare(lambda: frozenset((type(item), item) for item in value), "a set")
        else:
            labels = ["the length", *[f"the item {index}" for index in range(size)]]
            places = [where, *[Where(f"[{index}]", where) for index in range(size)]]
            self.watch(lambda: chain((len(value),), value), labels, places, value, own=True, named=named)

    def _array(self, value: np.ndarray, where: Where, named: bool) -> None:
        if value.dtype == object and value.size <= _ITEMS:
            labels = [f"the item {index} of an array" for index in range(value.size)]
            self.watch(lambda: iter(value.flat), labels, repeat(where), value, named=named)
        elif value.dtype != object and value.nbytes <= _BYTES:
            self.compare(value.tobytes, "a NumPy array")
            self.compare(lambda: (value.shape, value.dtype), "a NumPy array")
        elif named and _writable(value):
            self.tell(where, unwatchable.WHY["too_large"])
        if type(value) is not np.ndarray:
            watch_instance(self, value, where, named)


def _writable(array: Any) -> bool:
    """Whether the memory of an array can be written to, if not by itself then by what it is a view of."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return False
