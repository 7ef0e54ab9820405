"""Our gradients of single operations in place of TensorFlow's, for what is differentiated within a block.

TensorFlow looks a gradient up by the type of an operation, when a tape or a graph is differentiated. A function that
`tf.function` traced keeps the backward functions that were built from what was found, so it has a *twin* here: the same
graph, with backward functions that are built and used within such blocks only. What TensorFlow makes later of a call
that a tape recorded within a block is made in such a block, too.
"""

import contextlib
import contextvars
import copy
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tapelab import process
from tapelab.derivatives import private
from tapelab.process.tensorflow import tf

_twins: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()  # what keeps backward functions → its twin
_forward_mode: dict[str, Any] = {}  # "cache": of the products with tangents that an accumulator traced within a block


class _Block(NamedTuple):
    """What holds while a block runs.

    Attributes:
        gradients: by the type of the operation.
        wider: likewise, where those do not apply: used without a word.
        met: the types of the operations that were differentiated by our gradient.
        kept: whether a call that goes into a graph keeps our gradients, wherever that graph is differentiated.
    """

    gradients: dict[str, Callable]
    wider: dict[str, Callable]
    met: set[str]
    kept: bool


_block: contextvars.ContextVar[_Block] = contextvars.ContextVar("the innermost block of this context")


def plain(kind: str) -> Callable:
    """Return TensorFlow's own gradient of a type of operation."""
    registry = private.gradient_registry()
    return process.original(type(registry), "lookup")(registry, kind)


def complete() -> bool:
    """Whether all that TensorFlow differentiates within a block is differentiated by our gradients."""
    return len(_places()) == 4


def in_a_block() -> bool:
    """Whether gradients are replaced here."""
    return _block.get(None) is not None


@contextlib.contextmanager
def replaced(
    gradients: dict[str, Callable],
    met: set[str],
    *,
    wider: dict[str, Callable] | None = None,
    kept: bool = False,
) -> Iterator[None]:
    """Have this thread find these gradients in place of TensorFlow's while the block runs.

    Args:
        gradients: by the type of the operation.
        met: the types of the operations that are differentiated by one of them are added to it.
        wider: as `gradients`, where those do not apply: as TensorFlow's, in a wider range, and used without a word.
        kept: whether a call that goes into a graph keeps our gradients, wherever that graph is differentiated: for the
            graphs of derivatives. The graph of a function of the caller's has TensorFlow's outside such blocks.
    """
    if not (places := _places()):
        yield
        return
    with process.all_replaced(places):
        token = _block.set(_Block(gradients, wider or {}, met, kept))
        try:
            yield
        finally:
            _block.reset(token)


@functools.cache
def _places() -> list[tuple[Any, str, Callable[..., Any]]]:
    """What is replaced in TensorFlow: triples of its owner, its name and ours."""
    registry, (concrete, rewriting) = private.gradient_registry(), private.classes_with_backward_functions()
    if registry is None:
        return []
    places: list[tuple[Any, str, Callable[..., Any]]] = [(type(registry), "lookup", _lookup)]
    if concrete is not None:
        places += [(concrete, "_call_flat", _call_flat), (rewriting, "forward_backward", _forward_backward)]
    module, _ = private.forward_mode_cache()
    if module is not None:
        places.append((module, "call_function", _call_function))
    return places


def _lookup(registry: Any, kind: str | bytes) -> Callable[..., Any] | None:
    kind = getattr(kind, "decode", lambda: kind)()
    block = _block.get()
    if registry is private.gradient_registry() and (kind in block.gradients or kind in block.wider):
        return functools.partial(_differentiate, kind)
    return process.original(type(registry), "lookup")(registry, kind)


def _differentiate(kind: str, op: tf.Operation, *upstreams: tf.Tensor | None) -> Any:
    block = _block.get()
    for table in (block.gradients, block.wider):
        ours = table.get(kind)
        if ours is not None and getattr(ours, "applies", lambda *_: True)(op, *upstreams):
            if table is block.gradients:
                block.met.add(kind)
            return ours(op, *upstreams)
    return plain(kind)(op, *upstreams)


def _call_flat(concrete: tf.types.experimental.ConcreteFunction, *args: Any, **kwargs: Any) -> Any:
    call = process.underneath(private.classes_with_backward_functions()[0], "_call_flat", _call_flat)
    return _with_own_record(_twin_of_function(concrete), call, *args, **kwargs)


def _forward_backward(rewriting: Any, *args: Any, **kwargs: Any) -> Any:
    call = process.original(private.classes_with_backward_functions()[1], "forward_backward")
    if "met" in vars(rewriting):
        return call(rewriting, *args, **kwargs)
    return _with_own_record(_twin_of_rewriting(rewriting), call, *args, **kwargs)


def _call_function(args: Any = None, kwargs: Any = None, tracing_options: Any = None) -> Any:
    module, cache = private.forward_mode_cache()
    if getattr(tracing_options, "function_cache", None) is cache:
        tracing_options = copy.copy(tracing_options)
        tracing_options.function_cache = _forward_mode.setdefault("cache", type(tracing_options.function_cache)())
    return process.original(module, "call_function")(args, kwargs, tracing_options)


def _with_own_record(twin: Any, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call with a twin. What was met when its backward functions were built counts as met again."""
    block = _block.get()
    token = _block.set(block._replace(met=twin.met))
    try:
        return call(twin, *args, **kwargs)
    finally:
        _block.reset(token)
        block.met.update(twin.met)


def _twin_of_function(concrete: tf.types.experimental.ConcreteFunction) -> tf.types.experimental.ConcreteFunction:
    if (twin := _twins.get(concrete)) is not None:
        return twin
    twin = copy.copy(concrete)
    twin.met = set()
    twin._first_order_tape_functions, twin._higher_order_tape_functions = {}, {}
    rewriting = concrete._delayed_rewrite_functions
    twin._delayed_rewrite_functions = own = _twin_of_rewriting(rewriting)

    def get_gradient_function() -> Callable[..., Any]:
        chosen = own if _block.get().kept else rewriting
        return chosen._rewrite_forward_and_call_backward

    select = twin._select_forward_and_backward_functions

    def select_forward_and_backward_functions(*args: Any) -> Any:
        call = select(*args)
        _keep_in_backward_functions(call._functions)
        return call

    twin._get_gradient_function = get_gradient_function
    twin._select_forward_and_backward_functions = select_forward_and_backward_functions
    return _twins.setdefault(concrete, twin)


def _twin_of_rewriting(rewriting: Any) -> Any:
    """The twin of what has the backward functions of the calls in graphs."""
    if (twin := _twins.get(rewriting)) is not None:
        return twin
    twin = copy.copy(rewriting)
    twin.met = set()
    twin._cached_function_pairs = {}
    twin._rewrite_forward_and_call_backward = _in_a_block(twin._rewrite_forward_and_call_backward)
    return _twins.setdefault(rewriting, twin)


def _keep_in_backward_functions(functions: Any) -> None:
    """Have the backward functions that a tape records call what they call in a block."""
    if not hasattr(functions, "_wrap_backward_function") or "_wrap_backward_function" in vars(functions):
        return
    wrap = functions._wrap_backward_function

    def wrap_backward_function(*args: Any) -> tuple[Callable[..., Any], Any]:
        backward, outputs = wrap(*args)
        return _in_a_block(backward), outputs

    functions._wrap_backward_function = wrap_backward_function


def _in_a_block(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, in a block like this one whenever it is called."""
    block = _block.get()

    @functools.wraps(function)
    def within(*args: Any, **kwargs: Any) -> Any:
        with replaced(block.gradients, set(), wider=block.wider, kept=block.kept):
            return function(*args, **kwargs)

    return within
