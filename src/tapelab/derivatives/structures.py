"""Nested arguments as flat lists: dictionaries, lists, tuples and named tuples of tensors, and back.

`tf.nest` does this too. Here the walk that finds the leaves also builds a hashable description of everything around
them, which is what the compiled functions are looked up by: one pass over the arguments for each call.
"""

from collections.abc import Iterator
from typing import Any

from tapelab.runtime import tf

import numpy as np

LEAF = "leaf"
_CONTAINERS = (list, tuple)
_NUMBERS = (bool, int, float, complex)
# What is never a leaf, or only a number: known without asking TensorFlow and Keras, which takes 10 µs.
_PLAIN = (type(None), str, bytes, *_NUMBERS)


class Static:
    """A part of the arguments that is not a tensor: compiled into the function, as `tf.function` does.

    Two are equal if their values have one type and are equal; of numbers, 0.0 and -0.0 differ, and NaN equals NaN.
    """

    __slots__ = ("_hash", "_key", "value")

    def __init__(self, value):
        # Unlike ==, repr tells 0.0 from -0.0, and finds that NaN is NaN.
        self._key = repr(value) if isinstance(value, (float, complex)) else value
        try:
            self._hash = hash(self._key)
        except TypeError:
            raise TypeError(
                f"an argument of type {type(value).__name__} is neither a tensor nor hashable; pass tensors, arrays, "
                "numbers, strings, or dictionaries, lists and tuples of them"
            ) from None
        self.value = value

    def __eq__(self, other):
        return isinstance(other, Static) and type(self.value) is type(other.value) and self._key == other._key

    def __hash__(self):
        return self._hash


# What `flatten` tells of a value: `LEAF`, a `Static`, or the kind of a container with the descriptions in it.
Description = str | Static | tuple


def _is_variable(value):
    # A Keras 3 variable wraps a tf.Variable and is not one itself.
    return isinstance(value, (tf.Variable, tf.keras.Variable))


def _is_leaf(value, numbers):
    if isinstance(value, (tf.Tensor, np.ndarray, np.generic)) or _is_variable(value) or tf.is_tensor(value):
        return True
    return numbers and isinstance(value, _NUMBERS)


def flatten(value: Any, leaves: list, *, numbers: bool = False) -> Description:
    """Append the leaves of a nested value to a list, and describe what is around them.

    Args:
        value: tensors, arrays and variables, in dictionaries, lists, tuples and named tuples.
        leaves: the list to append to.
        numbers: whether a Python number is a leaf. Otherwise it is static: a part of the description.

    Returns:
        The description, hashable; dictionaries are described with sorted keys.

    Raises:
        TypeError: if something is neither a leaf nor hashable.
    """
    kind = type(value)
    if kind in _CONTAINERS:
        return kind, tuple([flatten(part, leaves, numbers=numbers) for part in value])
    if kind in _PLAIN and not (numbers and kind in _NUMBERS):
        return Static(value)
    if kind is not dict and _is_leaf(value, numbers):
        leaves.append(value)
        return LEAF
    if isinstance(value, dict):
        keys = tuple(sorted(value))
        return dict, keys, tuple([flatten(value[key], leaves, numbers=numbers) for key in keys])
    if isinstance(value, (list, tuple)):
        # Keras and tf.Module wrap the lists that they track: those come back as plain ones. Named tuples stay.
        kind = kind if hasattr(kind, "_fields") else (list if isinstance(value, list) else tuple)
        return kind, tuple([flatten(part, leaves, numbers=numbers) for part in value])
    return Static(value)


def unflatten(description: Description, leaves: Iterator[Any]) -> Any:
    """Build the nested value that a description belongs to, taking its leaves from an iterator."""
    if description is LEAF:
        return next(leaves)
    if isinstance(description, Static):
        return description.value
    kind, *keys, parts = description
    values = [unflatten(part, leaves) for part in parts]
    if kind is dict:
        return dict(zip(keys[0], values, strict=True))
    return kind(*values) if hasattr(kind, "_fields") else kind(values)


def statics(description: Description) -> list[Any]:
    """Return the list of the values in a description that are not leaves."""
    if description is LEAF:
        return []
    if isinstance(description, Static):
        return [description.value]
    return [value for part in description[-1] for value in statics(part)]


def names(description: Description, prefix: str) -> list[str]:
    """Name every leaf of a description by the expression that reaches it, such as ``x['w'][0]``."""
    if description is LEAF:
        return [prefix]
    if isinstance(description, Static):
        return []
    kind, *keys, parts = description
    labels = [f"[{key!r}]" for key in (keys[0] if kind is dict else range(len(parts)))]
    if hasattr(kind, "_fields"):
        labels = [f".{field}" for field in kind._fields]
    return [name for label, part in zip(labels, parts, strict=True) for name in names(part, prefix + label)]
