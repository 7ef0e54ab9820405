"""Attributes of modules and classes, replaced."""

import contextlib
import contextvars
import functools
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_lock = threading.RLock()  # a block may also end while garbage is collected, in a thread that has the lock
_symbols: "dict[tuple[int, str], _Symbol]" = {}  # (identity of the owner, name) → the symbol while it is replaced
_replacements: "contextvars.ContextVar[Mapping[_Symbol, Callable]]" = contextvars.ContextVar(
    "what this context has called in place of symbols", default=types.MappingProxyType({})
)


class _Symbol:
    """An attribute while anybody wants it replaced: what it was, what it is, and for which blocks."""

    def __init__(self, owner: Any, name: str, make: "Callable[[_Symbol], Any]"):
        self.owner, self.original = owner, getattr(owner, name)
        self.placed = make(self)
        self.blocks: set[object] = set()


@contextlib.contextmanager
def _placed(owner: Any, name: str, make: Callable[[_Symbol], Any]) -> Iterator[_Symbol]:
    """Replace an attribute for the first block, and put it back after the last; where somebody else has put something
    in the meantime, that stays."""
    key, block = (id(owner), name), object()
    try:
        with _lock:
            symbol = _symbols.get(key) or _Symbol(owner, name, make)
            symbol.blocks.add(block)
            _symbols[key] = symbol
            if getattr(owner, name) is symbol.original:
                setattr(owner, name, symbol.placed)
        yield symbol
    finally:
        try:
            _leave(key, block)
        except BaseException:  # an interrupt, as the exception that stops a thread: it ends nevertheless
            _leave(key, block)
            raise


def _leave(key: tuple[int, str], block: object) -> None:
    with _lock:
        if symbol := _symbols.get(key):
            symbol.blocks.discard(block)
            if not symbol.blocks:
                if getattr(symbol.owner, key[1]) is symbol.placed:
                    setattr(symbol.owner, key[1], symbol.original)
                del _symbols[key]


def replaced_everywhere(owner: Any, name: str, value: Any) -> contextlib.AbstractContextManager:
    """Have an attribute be another value while the block runs, for all threads. Of several blocks the first decides.

    Raises:
        AttributeError: if there is nothing of that name when the block begins.
    """
    return _placed(owner, name, lambda symbol: value)


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Have a function replaced while the block runs, for the calls that are made in its context.

    Other threads call the original, through a stand-in that is there as long as anybody wants a replacement. Of nested
    blocks the innermost decides.

    Args:
        owner: a module or a class.
        name: the attribute's name.
        replacement: called with the original and the same arguments.

    Raises:
        AttributeError: if there is nothing of that name when the block begins.
    """
    before = _replacements.get()
    with _placed(owner, name, _stand_in) as symbol:
        try:
            _replacements.set({**before, symbol: replacement})
            yield
        finally:
            _replacements.set(before)


def _stand_in(symbol: _Symbol) -> Callable[..., Any]:
    @functools.wraps(symbol.original, updated=())
    def stand_in(*arguments: Any, **keywords: Any) -> Any:
        if symbol in (mine := _replacements.get()):
            return mine[symbol](symbol.original, *arguments, **keywords)
        return symbol.original(*arguments, **keywords)

    return stand_in
