"""Our gradients of single operations in place of TensorFlow's, for what is differentiated within a block.

TensorFlow looks a gradient up by the type of an operation, when a tape or a graph is differentiated. A function that
`tf.function` traced keeps the backward functions that were built from what was found, so it has a *twin* here: the same
graph, with backward functions that are built and used within such blocks only. What TensorFlow builds later, from a
call that was recorded within a block, is built in such a block, too.
"""

import contextlib
import contextvars
import copy
import functools
import weakref
from collections.abc import Callable, Iterator

from tapelab import process
from tapelab.derivatives import private

_twins = weakref.WeakKeyDictionary()  # what keeps backward functions → its twin, and the operations that it met
_met = contextvars.ContextVar("the types of the operations whose cure was looked up", default=None)


def plain(kind: str) -> Callable:
    """Return TensorFlow's own gradient of a type of operation."""
    registry = private.gradient_registry()
    return process.original(type(registry), "lookup")(registry, kind)


@contextlib.contextmanager
def replaced(gradients: dict[str, Callable], met: set[str]) -> Iterator[None]:
    """Have this thread find these gradients in place of TensorFlow's while the block runs.

    Args:
        gradients: by the type of the operation.
        met: the types that were looked up are added to it.
    """
    registry, classes = private.gradient_registry(), private.classes_with_backward_functions()
    if registry is None:
        yield
        return

    def lookup(where, kind):
        kind = getattr(kind, "decode", lambda: kind)()
        if where is registry and kind in gradients:
            _met.get().add(kind)
            return gradients[kind]
        return process.original(type(registry), "lookup")(where, kind)

    def carrying(function):
        """The same function, in a block of its own."""

        @functools.wraps(function)
        def within(*args, **kwargs):
            with replaced(gradients, set()):
                return function(*args, **kwargs)

        return within

    def call_flat(concrete, *args, **kwargs):
        return _through(
            _twin_of_function(concrete, carrying), process.original(classes[0], "_call_flat"), *args, **kwargs
        )

    def forward_backward(delayed, *args, **kwargs):
        if vars(delayed).get("is_twin"):
            return process.original(classes[1], "forward_backward")(delayed, *args, **kwargs)
        return _through(_twin_of_rewriting(delayed, carrying), classes[1].forward_backward, *args, **kwargs)

    with contextlib.ExitStack() as stack:
        stack.enter_context(process.replaced(type(registry), "lookup", lookup))
        if classes is not None:
            stack.enter_context(process.replaced(classes[0], "_call_flat", call_flat))
            stack.enter_context(process.replaced(classes[1], "forward_backward", forward_backward))
        token = _met.set(met)
        try:
            yield
        finally:
            _met.reset(token)


def _through(twin, call, *args, **kwargs):
    """Call a function with a twin; what was met when its backward functions were built counts as met again."""
    outer, own = _met.get(), vars(twin)["met"]
    token = _met.set(own)
    try:
        return call(twin, *args, **kwargs)
    finally:
        _met.reset(token)
        outer |= own


def _twin_of_function(concrete, carrying):
    if (twin := _twins.get(concrete)) is None:
        twin = copy.copy(concrete)
        twin.met = set()
        twin._first_order_tape_functions, twin._higher_order_tape_functions = {}, {}
        twin._delayed_rewrite_functions = _twin_of_rewriting(concrete._delayed_rewrite_functions, carrying)
        select = twin._select_forward_and_backward_functions

        def select_carrying(*args):
            call = select(*args)
            functions = call._functions
            if hasattr(functions, "_wrap_backward_function") and "wrapped" not in vars(functions):
                wrap, functions.wrapped = functions._wrap_backward_function, True

                def wrap_carrying(*args):
                    backward, outputs = wrap(*args)
                    return carrying(backward), outputs

                functions._wrap_backward_function = wrap_carrying
            return call

        twin._select_forward_and_backward_functions = select_carrying
        twin = _twins.setdefault(concrete, twin)
    return twin


def _twin_of_rewriting(delayed, carrying):
    if (twin := _twins.get(delayed)) is None:
        twin = copy.copy(delayed)
        twin.met, twin.is_twin = set(), True
        twin._cached_function_pairs = {}
        twin._rewrite_forward_and_call_backward = carrying(twin._rewrite_forward_and_call_backward)
        twin = _twins.setdefault(delayed, twin)
    return twin
