"""Nested arguments as flat lists: dictionaries, lists, tuples and named tuples of tensors, and back.

`tf.nest` does this too. Here the walk that finds the leaves also builds a hashable description of everything around
them, which is what the compiled functions are looked up by: one pass over the arguments for each call. What it is built
from comes back as it was: a dictionary in its own order, and a class of the caller's own with its attributes.
"""

import functools
from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from typing import Any, NamedTuple

from tapelab.derivatives.machinery.arguments.statics import NUMBERS, PLAIN, Static, is_variable
from tapelab.process.tensorflow import tf

import numpy as np

LEAF: Any = "leaf"  # told apart by identity, which is the fastest way in a call, and mypy does not follow it
_TRACKING = ("keras", "tensorflow")  # the lists and dictionaries that they wrap, to track them, come back as plain ones
_ITSELF: Any = "the container itself"
_ITEM: Any = "the item of that name"
_STRINGS = {str}


class Container(NamedTuple):
    """A list, tuple or dictionary, or an instance of a class made from one.

    Attributes:
        kind: its class.
        parts: the descriptions of what is in it; a dictionary's by sorted key.
        keys: of a dictionary, sorted.
        order: where each of its keys stands among the sorted ones, in the caller's order.
        apart: those of the keys that are no strings, as `Static`, which 1 and True are not.
        attributes: pairs of a name and a `Static`, or `_ITEM`; or `_ITSELF`.
    """

    kind: type
    parts: tuple
    keys: tuple = ()
    order: tuple = ()
    apart: tuple = ()
    attributes: tuple[tuple[str, Static], ...] = ()


_NONE = Static(None)
_NOTHING = Container(dict, ())
_made = functools.partial(tuple.__new__, Container)  # all of its fields: half the time of calling the class

# What `flatten` tells of a value: `LEAF`, a `Static`, or a `Container` of descriptions.
Description = Static | Container


def _is_leaf(value: Any, numbers: bool) -> bool:
    if isinstance(value, (np.ndarray, np.generic)) or is_variable(value) or tf.is_tensor(value):
        return True
    return numbers and isinstance(value, NUMBERS)


def flatten(value: Any, leaves: list, *, numbers: bool = False) -> Description:
    """Append the leaves of a nested value to a list, and describe what is around them.

    Args:
        value: tensors, arrays and variables, in dictionaries, lists, tuples and named tuples.
        leaves: the list to append to; those of dictionaries by sorted key.
        numbers: whether a Python number is a leaf. Otherwise it is static: a part of the description.

    Returns:
        The description, hashable.

    Raises:
        TypeError: if something is neither a leaf nor hashable.
    """
    if value is None:
        return _NONE
    if isinstance(value, tf.Tensor):
        leaves.append(value)
        return LEAF
    kind = type(value)
    if kind is dict:
        return _dictionary(value, leaves, numbers)
    if kind is list or kind is tuple:
        return _made((kind, tuple([flatten(part, leaves, numbers=numbers) for part in value]), (), (), (), ()))
    if kind in PLAIN and not (numbers and kind in NUMBERS):
        return Static(value)
    if _is_leaf(value, numbers):
        leaves.append(value)
        return LEAF
    if not isinstance(value, (dict, list, tuple)):
        return Static(value)
    if kind.__module__.partition(".")[0] in _TRACKING:
        return flatten(_untracked(value), leaves, numbers=numbers)
    return _dictionary(value, leaves, numbers) if isinstance(value, dict) else _sequence(value, leaves, numbers)


def _untracked(value: dict | list | tuple) -> dict | list | tuple:
    if hasattr(value, "__wrapped__"):
        return value.__wrapped__
    return next(plain for plain in (dict, list, tuple) if isinstance(value, plain))(value)


def _dictionary(value: dict, leaves: list, numbers: bool) -> Container:
    kind = type(value)
    if kind is dict and not value:
        return _NOTHING
    items = value if kind is dict else dict(_base(kind).items(value))
    names = tuple(items)
    if set(map(type, names)) == _STRINGS:
        keys, order = _sorted(names)
        apart: tuple[Static, ...] = ()
    else:  # those that are equal may differ, such as 1 and True
        keys, order = _sorted.__wrapped__(names)
        apart = tuple([Static(key) for key in keys])
    parts = tuple([flatten(items[key], leaves, numbers=numbers) for key in keys])
    return _made((kind, parts, keys, order, apart, () if kind is dict else _attributes(value, items)))


@functools.lru_cache(1000)
def _sorted(names: tuple) -> tuple[tuple, tuple[int, ...]]:
    """The keys of a dictionary in the order that all dictionaries with them share, and `Container.order`."""
    try:
        keys = tuple(sorted(names))
    except TypeError:
        return names, ()
    if keys == names:
        return keys, ()
    places = {key: place for place, key in enumerate(keys)}
    return keys, tuple([places[key] for key in names])


def _sequence(value: list | tuple, leaves: list, numbers: bool) -> Container:
    base: Any = list if isinstance(value, list) else tuple
    parts = tuple([flatten(part, leaves, numbers=numbers) for part in base.__iter__(value)])
    return Container(type(value), parts, attributes=_attributes(value, {}))


def _base(kind: type) -> type[dict]:
    """The dictionary of Python's own that a class is made from: its items are found and set by that class's methods."""
    return next(base for base in (OrderedDict, defaultdict, dict) if issubclass(kind, base))


def _attributes(value: Any, items: dict) -> tuple[tuple[str, Static], ...]:
    """What an instance of the caller's own class has beside its items."""
    kind = type(value)
    if any(base.__dict__.get("__slots__") for base in kind.__mro__):
        raise TypeError(
            f"an argument or result is a {kind.__name__}, a {kind.__mro__[-2].__name__} with __slots__, which cannot "
            "be rebuilt around other tensors; pass a plain one, or leave __slots__ out"
        )
    own = getattr(value, "__dict__", {})
    if own is value:  # so that items can be read as attributes
        return _ITSELF
    found = [("default_factory", Static(value.default_factory))] if isinstance(value, defaultdict) else []
    for name, attribute in own.items():
        if name in items and items[name] is attribute:
            found.append((name, _ITEM))
            continue
        try:
            found.append((name, Static(attribute)))
        except TypeError:
            raise TypeError(
                f"an argument or result is a {kind.__name__}, a {kind.__mro__[-2].__name__} whose attribute {name!r} "
                f"is a {type(attribute).__name__}; only what is hashable can stand there. Pass it as an argument of "
                "its own, or as an item"
            ) from None
    return tuple(found)


def unflatten(description: Description, leaves: Iterator[Any]) -> Any:
    """Build the nested value that a description belongs to, taking its leaves from an iterator."""
    if description is LEAF:
        return next(leaves)
    if isinstance(description, Static):
        return description.value
    kind = description.kind
    values = [next(leaves) if part is LEAF else unflatten(part, leaves) for part in description.parts]
    if kind is list:
        return values
    if kind is tuple:
        return tuple(values)
    if kind is dict and not description.order:
        return dict(zip(description.keys, values, strict=True))
    items = list(zip(description.keys, values, strict=False))
    items = [items[place] for place in description.order] or items
    if kind is dict:
        return dict(items)
    return _rebuilt(description, values, items)


def _rebuilt(description: Container, values: list, items: list[tuple[Any, Any]]) -> Any:
    kind: Any = description.kind
    value: Any
    if issubclass(kind, tuple):
        value = tuple.__new__(kind, values)
    elif issubclass(kind, list):
        value = list.__new__(kind)
        list.extend(value, values)
    else:
        base = _base(kind)
        value = base.__new__(kind)
        for key, item in items:
            base.__setitem__(value, key, item)
    if description.attributes is _ITSELF:
        value.__dict__ = value
        return value
    for name, attribute in description.attributes:
        found = dict(items)[name] if attribute is _ITEM else attribute.value
        if name == "default_factory" and isinstance(value, defaultdict):
            value.default_factory = found
        else:
            vars(value)[name] = found
    return value


def statics(description: Description) -> list[Any]:
    """Return the list of what a description holds that is no leaf: values, attributes and the caller's own classes."""
    if description is LEAF:
        return []
    if isinstance(description, Static):
        return [description.value]
    found = [value for part in description.parts for value in statics(part)]
    if description.kind in (list, tuple, dict):
        return found
    attributes = () if description.attributes is _ITSELF else description.attributes
    own = [attribute.value for _, attribute in attributes if attribute is not _ITEM]
    return [description.kind, *own, *found]


def names(description: Description, prefix: str) -> list[str]:
    """Name every leaf of a description by the expression that reaches it, such as ``x['w'][0]``."""
    if description is LEAF:
        return [prefix]
    if isinstance(description, Static):
        return []
    kind, parts = description.kind, description.parts
    labels = [f"[{key!r}]" for key in (description.keys if issubclass(kind, dict) else range(len(parts)))]
    if hasattr(kind, "_fields"):
        labels = [f".{field}" for field in kind._fields]
    return [name for label, part in zip(labels, parts, strict=True) for name in names(part, prefix + label)]
