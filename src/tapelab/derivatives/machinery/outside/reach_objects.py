"""What is watched of classes, and of their instances."""

import threading
import types
import weakref
from collections import ChainMap, UserDict, UserList, UserString
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from tapelab.derivatives.machinery.outside import unwatchable
from tapelab.derivatives.machinery.outside.watches import MISSING, Reached, Where, lookup, lookup_now
from tapelab.graphs.libraries import split_classes
from tapelab.process.tensorflow import tf

import numpy as np

_PYTHONS_OWN = (  # as the caller's
    UserDict, UserList, UserString, ChainMap, types.SimpleNamespace, threading.local, threading.Event,
    threading.Semaphore,
)  # fmt: skip
_PLAIN_BASES = {"abc", "builtins", "typing"}  # they read no attributes
NAMES = unwatchable.NAMES
_KERAS_CREATION = tuple(NAMES["keras_creation"])


def watch_class(reach: Reached, kind: type, where: Where, made: bool = True) -> None:
    """Watch what a class has that some code names, and what operations on its instances call.

    Args:
        made: whether the function may make instances of it.
    """
    own, others = split_classes(kind)
    hooks = {name for base in others for name in vars(base)} - NAMES["no_hooks"]
    held = {name: value for base in own for name, value in vars(base).items()}
    names = {name for name, value in held.items() if _is_operation(name, value) or name in hooks}
    names |= held.keys() & (reach.names | (NAMES["making"] if made else set()))
    if reach.by_name:
        names |= {name for name in held if not name.startswith("__")}
    for base in own:
        place = lambda name: Where(f".{name}", where)  # noqa: E731
        reach.attributes(partial(lookup, vars(base).get), names, f"{base.__name__}'s", place, base)
        reach.compare(vars(base).__len__, f"{base.__name__}'s attributes")


def watch_instance(reach: Reached, value: Any, where: Where, named: bool) -> None:
    """Watch the class and the attributes of an object: those that some code names, or all if others can be read."""
    kind = type(value)
    said = f"a {kind.__name__}'s"
    own, others = split_classes(kind)
    if own and kind not in reach.kinds:
        reach.kinds.add(kind)
        watch_class(reach, kind, where, made=False)
        if split_classes(type(kind))[0]:
            reach.later(kind, where)
    keras = kind.__module__.split(".")[0] == "keras" or isinstance(value, tf.keras.layers.Layer)
    whole = (own or isinstance(value, _PYTHONS_OWN)) and not keras and _is_read_whole(reach, others)
    if named and not own and not isinstance(value, (_PYTHONS_OWN, np.ndarray)):
        reach.tell(where, unwatchable.why_not_held(value))
    reach.by_name |= unwatchable.reads_by_name(value)
    place = lambda name: Where(f".{name}", where)  # noqa: E731
    slots = {
        name
        for base in own
        for name, slot in vars(base).items()
        if isinstance(slot, types.MemberDescriptorType) and (whole or name in reach.names)
    }
    reach.attributes(partial(lookup, partial(getattr, value)), slots, said, place, value)
    attributes = _dictionary(value)
    for name in ("__wrapped__", "_differentiated", "python_function", "_python_function"):
        reach.later(attributes.get(name, MISSING), where)
    methods = {name for base in own for name in vars(base)}
    names = (attributes.keys() | methods) & reach.names
    look = partial(lookup_now, partial(_dictionary, value))
    if keras:
        public = {name for name in attributes if not name.startswith("_") and not name.endswith(_KERAS_CREATION)}
        kept = (public - NAMES["keras_ignored"]) | (NAMES["keras_private"] & attributes.keys())
        reach.attributes(look, kept | names, said, place, attributes, own=True, named=named and bool(own))
    else:
        names = names | attributes.keys() if whole else names
        reach.attributes(look, names, said, place, attributes, named=named and (bool(own) or whole))
    if whole or (own and not keras):
        reach.compare(_form(value), f"{said} attributes")


def _is_read_whole(reach: Reached, others: Iterable[type]) -> bool:
    """Whether attributes of an object can be read that no code names: the code of its library classes may."""
    libraries = [base for base in others if base.__module__ not in _PLAIN_BASES]
    tensorflows = {name for base in libraries if base.__module__.startswith("tensorflow") for name in vars(base)}
    foreign = any(not base.__module__.startswith(("tensorflow", "keras")) for base in libraries)
    return reach.by_name or foreign or bool(tensorflows & reach.names - {"name", "__module__"})


def _is_operation(name: str, value: Any) -> bool:
    """Whether an operation on an object can call this, such as ``__mul__``."""
    special = name.startswith("__") and name.endswith("__") and name not in NAMES["no_operation"] | NAMES["making"]
    return special and (isinstance(value, types.FunctionType) or hasattr(type(value), "__get__"))


def _form(value: Any) -> Callable[[], tuple[type, int]]:
    """Return what looks at the class of an object and the number of its attributes, and does not keep it alive."""
    found = type(value), len(_dictionary(value))
    try:
        reference = weakref.ref(value)
    except TypeError:
        return lambda: (type(value), len(_dictionary(value)))

    def look() -> tuple[type, int]:
        thing = reference()
        return found if thing is None else (type(thing), len(_dictionary(thing)))  # nothing reads what is gone

    return look


def _dictionary(value: Any) -> dict[str, Any]:
    """The attributes of an object, past what its class makes of reading one."""
    if isinstance(value, threading.local):
        return value.__dict__  # the calling thread's
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return {}
    return attributes if isinstance(attributes, dict) else {}
