"""Attributes of modules and classes and entries of registries, replaced."""

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, MutableMapping
from typing import Any

from tapelab.process.leases import Block, Lease, Shared, inside, lock

_symbols = {}  # (identity of the owner, name) → `_Symbol` with leases, which keeps the owner alive


class _Symbol(Shared):
    """An attribute of a module or class, or an entry of a mapping: something else while anybody wants it replaced.

    Attributes:
        original: what is there when nobody wants it replaced.
        stand_in: what was there when all that was wanted was wanted in some contexts only, if that was so.
    """

    def __init__(self, owner: Any, name: Hashable):
        super().__init__()
        self._owner, self._name, self._key = owner, name, (id(owner), name)
        self._is_entry = isinstance(owner, MutableMapping)
        self.original = _look_up(owner, name)
        self.stand_in = None
        self._ours = [self.original]  # all that was ever placed here

    def settle(self) -> None:
        if _symbols.get(self._key) is not self:
            return  # it is as before, and may have another `_Symbol` since, with the same stand-in
        wanted = self.original
        if self.leases:
            last = self.leases[-1]
            wanted = last.replacement if last.everywhere else self._made_stand_in()
        now = self._owner[self._name] if self._is_entry else getattr(self._owner, self._name)
        # Where somebody else has put something in the meantime, that stays.
        if now is not wanted and any(now is ours for ours in self._ours):
            self._place(wanted)
        if not self.leases:
            del _symbols[self._key]

    def _made_stand_in(self) -> Callable[..., Any]:
        if self.stand_in is None:
            self.stand_in = _stand_in(self._key, self.original)
        return self.stand_in

    def _place(self, wanted: Any) -> None:
        self._ours.append(wanted)
        if self._is_entry:
            self._owner[self._name] = wanted
        else:
            setattr(self._owner, self._name, wanted)


@functools.lru_cache(maxsize=256)  # some places are replaced again and again, and making one takes as long as the rest
def _stand_in(key: tuple[int, Hashable], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original, updated=())
    def stand_in(*arguments: Any, **keywords: Any) -> Any:
        for lease in reversed(inside.get()):
            if lease.active and isinstance(lease, _Replacement) and lease.shared.stand_in is stand_in:
                return lease.replacement(*arguments, **keywords)
        return original(*arguments, **keywords)

    return stand_in


def _look_up(owner: Any, name: Hashable) -> Any:
    return owner[name] if isinstance(owner, MutableMapping) else getattr(owner, name)


class _Replacement(Lease):
    """A symbol or entry is what this block wants, in its context or everywhere."""

    def __init__(self, owner: Any, name: Hashable, replacement: Any, everywhere: bool = False):
        super().__init__(None)
        self._place = owner, name
        self.replacement, self.everywhere = replacement, everywhere

    def starting(self) -> None:
        # One that is in use knows the original. One that is not may be out of date.
        owner, name = self._place
        key = id(owner), name
        self.shared = _symbols.get(key) or _Symbol(owner, name)
        _symbols[key] = self.shared


def replaced(
    owner: Any, name: Hashable, replacement: Any, *, everywhere: bool = False
) -> contextlib.AbstractContextManager:
    """Have a callable replaced while the block runs, for the calls that are made in its context.

    Other threads call the original, through a stand-in that is there as long as anybody wants a replacement. Of nested
    blocks the innermost decides. The replacement calls `original(owner, name)` for what it does not do itself.

    Args:
        owner: a module, a class or a mapping such as a registry.
        name: the attribute's name, or the mapping's key.
        replacement: called with the same arguments.
        everywhere: whether it is put in place as it is, for all threads, as something that is no callable must be.

    Raises:
        AttributeError, KeyError: if there is nothing of that name.
    """
    _look_up(owner, name)
    return Block(_Replacement(owner, name, replacement, everywhere))


def all_replaced(places: Iterable[tuple[Any, Hashable, Callable]]) -> contextlib.AbstractContextManager:
    """Have several callables replaced while the block runs, as `replaced` does it with each: all of them, or none.

    Args:
        places: for each its owner, its name there, and the replacement.

    Raises:
        AttributeError, KeyError: if there is nothing of one of those names when the block begins.
    """
    return Block(*[_Replacement(*place) for place in places])


def original(owner: Any, name: Hashable) -> Callable:
    """Return what an attribute or entry is without the replacements made here.

    Raises:
        AttributeError, KeyError: if there is nothing of that name.
    """
    with lock:
        symbol = _symbols.get((id(owner), name))
        return symbol.original if symbol else _look_up(owner, name)
