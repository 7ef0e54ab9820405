"""What was met of TensorFlow's wrong derivatives while a function was evaluated and differentiated."""

import contextlib
import contextvars
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tapelab import process
from tapelab.derivatives import private
from tapelab.derivatives.wrong import replaced_gradients
from tapelab.derivatives.wrong.cures import FAMILIES
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.replaced_function import Replacement
from tapelab.process.tensorflow import tf

GRADIENTS: dict[str, Callable] = {}
WIDER: dict[str, Callable] = {}
FUNCTIONS: list[Replacement] = []
for _family in FAMILIES:
    GRADIENTS |= getattr(_family, "GRADIENTS", {})
    WIDER |= getattr(_family, "WIDER", {})
    FUNCTIONS += getattr(_family, "FUNCTIONS", [])
# Of concrete functions, the replacements whose originals are in the graph.
_traced: weakref.WeakKeyDictionary[Any, list[Replacement]] = weakref.WeakKeyDictionary()
_applied: contextvars.ContextVar["Cure | None"] = contextvars.ContextVar("the cure of this context", default=None)


class Cure:
    """The cures for one function and its derivative.

    Attributes:
        left: for each `Replacement`, the names of the functions that have its original in a graph that cannot be
            traced anew.
        operations: the types whose gradients were looked up, and are ours.
        accumulates: whether the function opens a `tf.autodiff.ForwardAccumulator`.
    """

    def __init__(self) -> None:
        self.left: dict[Replacement, list[str]] = {}
        self._functions: list[Callable] = []  # of ours, those that were called
        self.operations: set[str] = set()
        self.accumulates = False
        self._copies: dict[int, tuple[Any, Any]] = {}

    @property
    def notes(self) -> list[str]:
        """What was cured, each in a sentence."""
        used = [*self._functions, *(GRADIENTS[kind] for kind in sorted(self.operations))]
        return list(dict.fromkeys((own.__doc__ or own.__name__).splitlines()[0] for own in used))

    def why_not(self, needs: Needs, operations: Iterable[str]) -> str | None:
        """Say why this kind of derivative would be wrong, if it would, of a function of these operations."""
        if not replaced_gradients.complete() and (lacking := sorted(GRADIENTS.keys() & operations)):
            return (
                f"it computes {', '.join(lacking)}, of which TensorFlow's gradients are wrong at some points, and this "
                "release does not let them be replaced. Use other operations"
            )
        for replacement, names in self.left.items():
            if replacement.needs <= needs:
                return (
                    f"{', '.join(names)} computes {replacement.what}, which TensorFlow does not differentiate rightly, "
                    "in a graph that was traced before and cannot be traced anew. Call the Python function or layer "
                    "that it was made from, not a loaded or concrete one"
                )
        return None

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Have this thread compute and differentiate with the cures while the block runs."""
        if _applied.get() is self:
            yield
            return
        function, concrete = private.function_classes()
        places: list[tuple[Any, str, Callable[..., Any]]] = [
            (function, "__call__", self._call),
            (concrete, "__call__", self._call_concrete),
            (tf.autodiff.ForwardAccumulator, "__enter__", self._accumulate),
        ]
        for replacement in FUNCTIONS:
            own = self._noting(replacement.function)
            # Keras has some of them from a later version on.
            owners = [owner for owner in replacement.owners() if hasattr(owner, replacement.name)]
            places += [(owner, replacement.name, own) for owner in owners]
        with process.all_replaced(places), replaced_gradients.replaced(GRADIENTS, self.operations, wider=WIDER):
            token = _applied.set(self)
            try:
                yield
            finally:
                _applied.reset(token)

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            self._note(function)
            return function(*args, **kwargs)

        return noted

    def _note(self, function: Callable[..., Any]) -> None:
        if function not in self._functions:
            self._functions.append(function)

    def _call(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a `tf.function`, or a fresh copy of it if it has a trace of what is replaced."""
        call = process.original(private.function_classes()[0], "__call__")
        if found := {replacement for trace in private.traces(function) for replacement in _originals(trace)}:
            copy, _ = self._copies.setdefault(id(function), (None, function))
            copy = copy or private.fresh_copy(function)
            for replacement in found:
                self._note(replacement.function)
            if copy is None:
                self._leave(getattr(function, "name", None) or "a loaded function", found)
            else:
                self._copies[id(function)] = copy, function  # the function stays alive, and so its id
                function = copy
        return call(function, *args, **kwargs)

    def _call_concrete(self, function: tf.types.experimental.ConcreteFunction, *args: Any, **kwargs: Any) -> Any:
        self._leave(function.name, _originals(function))
        return process.original(private.function_classes()[1], "__call__")(function, *args, **kwargs)

    def _accumulate(self, accumulator: tf.autodiff.ForwardAccumulator) -> tf.autodiff.ForwardAccumulator:
        self.accumulates = True
        return process.original(tf.autodiff.ForwardAccumulator, "__enter__")(accumulator)

    def _leave(self, name: str | bytes, found: Iterable[Replacement]) -> None:
        name = str(getattr(name, "decode", lambda: name)())
        for replacement in found:
            names = self.left.setdefault(replacement, [])
            if name not in names:
                names.append(name)


def cured_calls() -> contextlib.AbstractContextManager:
    """Have calls of our graphs that are made in this block differentiated with our gradients of operations."""
    return replaced_gradients.replaced(GRADIENTS, set(), wider=WIDER, kept=True)


def _originals(concrete: tf.types.experimental.ConcreteFunction) -> list[Replacement]:
    """The replacements whose originals are in the graph of a concrete function, or of one that it calls."""
    try:
        return _traced[concrete]
    except KeyError:
        definition = concrete.graph.as_graph_def()
        found = _traced[concrete] = [replacement for replacement in FUNCTIONS if replacement.traced(definition)]
        return found
