"""What is passed beside tensors, and is compiled into the function: when two calls have the same of it.

Two values that compare as equal may still give two functions: 1 and True, two dataclasses that differ in a field with
``compare=False``. So a value is told apart by everything that it holds, or, where it is compared by identity, is
itself; what a function reads of that, `tapelab.derivatives.machinery.outside.outside` watches.
"""

import enum
import types
from collections.abc import Hashable
from typing import Any

from tapelab.process.tensorflow import tf

import numpy as np

NUMBERS = (bool, int, float, complex)
# What is never a tensor: known without asking TensorFlow and Keras, which takes 10 µs.
PLAIN = (type(None), str, bytes, *NUMBERS)
_WRITTEN_IN_PYTHON = 1 << 9  # Py_TPFLAGS_HEAPTYPE: what an instance holds is in its attributes


class Static:
    """A part of the arguments that is not a tensor: compiled into the function, as `tf.function` does.

    Two are equal if their values have one type and hold the same; of numbers, 0.0 and -0.0 differ, and NaN equals NaN.

    Raises:
        TypeError: if the value is not hashable, or holds something that can change unseen.
    """

    __slots__ = ("_hash", "_key", "value")

    def __init__(self, value: Any):
        try:
            if type(value) not in PLAIN:
                hash(value)  # what can change, such as a set, has none
            self._key = _exact(value)
            self._hash = hash(self._key)
        except (TypeError, RecursionError):
            raise TypeError(
                f"an argument of type {type(value).__name__} is neither a tensor nor hashable, with all that it holds; "
                "pass tensors, arrays, numbers, strings, or dictionaries, lists and tuples of them"
            ) from None
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Static) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash


class _Same:
    """An object that is equal to itself alone, whatever its class says."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


def is_variable(value: Any) -> bool:
    """Whether this is a variable. A Keras 3 variable wraps a tf.Variable and is not one itself."""
    return isinstance(value, (tf.Variable, tf.keras.Variable))


def _exact(value: Any) -> Hashable:
    """Something hashable that is equal for values that no function can tell apart, except by their identity."""
    kind = type(value)
    if kind in PLAIN:  # unlike ==, repr tells 0.0 from -0.0, and finds that NaN is NaN
        return kind, repr(value) if kind in (float, complex) else value
    if kind in (list, tuple):
        return kind, tuple(map(_exact, value))
    if kind in (set, frozenset):
        return kind, frozenset(map(_exact, value))
    if kind is dict:
        return kind, tuple([(_exact(key), _exact(item)) for key, item in value.items()])
    if isinstance(value, types.MethodType):
        return kind, _Same(value.__self__), _Same(value.__func__)
    if kind.__eq__ is object.__eq__ or isinstance(value, (enum.Enum, tf.Tensor, np.ndarray)) or is_variable(value):
        return _Same(value)
    state = _state(value)
    if state and all(base is object or base.__flags__ & _WRITTEN_IN_PYTHON for base in kind.__mro__):
        return kind, state
    return kind, value, repr(value), state


def _state(value: Any) -> tuple[tuple[str, Hashable], ...]:
    """The attributes of an object, those in slots too, as pairs of their names and what tells them apart."""
    found = dict(getattr(value, "__dict__", {}))
    for base in type(value).__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                found[name] = getattr(value, name)
    return tuple([(name, _exact(attribute)) for name, attribute in sorted(found.items())])
