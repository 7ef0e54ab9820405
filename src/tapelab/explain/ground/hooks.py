"""The hooks that watch operations run.

TensorFlow has no public way to see what a tape records. These hooks show it, each what the others are blind to:

========================  =======================================================================================
``op callback``           each eager operation, after it ran: its type, attributes, inputs and outputs
``execute``               the same for calls of a ``tf.function``, which take another way through TensorFlow
``record_operation``      custom gradients and function calls, with their backward functions
``fast path``             reads a variable that is handed straight to an operation in Python rather than in C++, where
                          the read would go unseen
``_numpy``                values that leave TensorFlow: ``.numpy()``, ``float()``, ``int()``, ``bool()``
``numpy_function``        eager calls of ``tf.numpy_function``, which run as plain Python
``py_function``           the tape that ``tf.py_function`` opens around the Python code is a persistent one, so that its
                          gradient can be asked for without using it up
========================  =======================================================================================

They are in place while a tape listens, in the threads that have one, and TensorFlow is as it was the rest of the time.
"""

import contextlib
import functools
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

from tapelab import process
from tapelab.explain.ground import hooks, lines, private
from tapelab.explain.ground.measure import Attributes

import tensorflow as tf

# What reads a tensor to show it, not to compute with it.
_SHOWING = frozenset({"__str__", "__repr__", "__format__", "numpy_text", "value_text"})

_held = {}  # identity of each listener → (what keeps the replacements, its thread's listeners and op callbacks)
_thread = threading.local()  # .listeners: the listeners of one thread, in the order in which they opened


def _listeners() -> tuple[Any, ...]:
    return getattr(_thread, "listeners", ())


def _tell(method: str, *arguments: Any) -> None:
    """Call one method of each listener of this thread. A listener's own failure must not become the learner's."""
    for listener in _listeners():
        try:
            getattr(listener, method)(*arguments)
        except Exception as error:
            listener.failed(error)


def _on_operation(
    op_type: bytes | str, inputs: Any, attributes: Attributes, outputs: Any, op_name: Any = None, graph: Any = None
) -> None:
    """The op callback. Inside a graph it is called while tracing, which says nothing about what will run."""
    if graph is None and _listeners():
        if isinstance(op_type, bytes):
            op_type = op_type.decode()
        function_code = private.CALL_OF_FUNCTION if op_type.startswith("__") else None
        place = lines.walk(sys._getframe(1), private.BACKWARD_PASS, function_code, private.scope())
        _tell("on_operation", op_type, inputs, attributes, outputs, place)


def _execute(*arguments: Any, **keywords: Any) -> Any:
    return private.execute.execute_with_callbacks(*arguments, **keywords)


def _record_operation(
    op_type: bytes | str, output_tensors: Any, input_tensors: Any, backward_function: Any, forward_function: Any = None
) -> Any:
    original = private.HOOKED["record_operation"][2]
    result = original(op_type, output_tensors, input_tensors, backward_function, forward_function)
    if _listeners() and tf.executing_eagerly() and not private.recording_stopped():
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        place = lines.walk(sys._getframe(1), private.BACKWARD_PASS, None)
        _tell("on_record", name, tuple(output_tensors), tuple(input_tensors), backward_function, place)
    return result


@functools.cache
def _is_variable(kind: type) -> bool:
    """Whether a type is one of variables, TensorFlow's or Keras's."""
    return hasattr(kind, "handle")


def _read(argument: Any) -> Any:
    if isinstance(argument, (list, tuple)):
        if any(_is_variable(type(item)) for item in argument):
            return type(argument)(_read(item) for item in argument)
        return argument
    return tf.convert_to_tensor(argument) if _is_variable(type(argument)) else argument


def _fast_path_execute(eager_context: Any, op_type: str, name: str | None, *arguments: Any) -> Any:
    # An operation on the variable itself takes its handle, not its value.
    # The test is written out here because it runs for every operation.
    for argument in arguments:
        kind = type(argument)
        if kind is list or kind is tuple or _is_variable(kind):
            if _listeners() and "Variable" not in op_type and "Resource" not in op_type:
                arguments = tuple(_read(argument) for argument in arguments)
            break
    return private.HOOKED["fast path"][2](eager_context, op_type, name, *arguments)


def _numpy(self) -> Any:
    if _listeners():
        caller = sys._getframe(1)
        if caller.f_code.co_name not in _SHOWING:
            place = lines.walk(caller, private.BACKWARD_PASS, None)
            _tell("on_leave", self, caller.f_code.co_name, place)
    return private.HOOKED["_numpy"][2](self)


def _py_func_common(
    func: Callable[..., Any], inp: Any, Tout: Any, stateful: bool = True, name: str | None = None
) -> Any:
    original = private.HOOKED["numpy_function"][2]
    if not _listeners() or not tf.executing_eagerly():
        return original(func, inp, Tout, stateful, name)
    inp = [_read(argument) for argument in inp]
    result = original(func, inp, Tout, stateful, name)
    flat = (tf.nest.flatten(values, expand_composites=True) for values in (inp, result))
    inputs, outputs = (list(filter(tf.is_tensor, values)) for values in flat)
    _tell("on_python", "numpy_function", inputs, outputs, lines.walk(sys._getframe(1), private.BACKWARD_PASS, None))
    return result


# What stands in for each symbol of `private.HOOKED`.
_replacements = {
    "execute": _execute,
    "record_operation": _record_operation,
    "fast path": _fast_path_execute,
    "_numpy": _numpy,
    "numpy_function": _py_func_common,
    # For the module in which tf.py_function looks the tape up.
    "py_function": types.SimpleNamespace(GradientTape=functools.partial(tf.GradientTape, persistent=True)),
}


def listen(listener: Any) -> None:
    """Tell a listener what runs in this thread from now on. To be undone by `silence` or `forget`.

    Args:
        listener: has the methods on_operation, on_record, on_python, on_leave and failed of
            `tapelab.explain.ground.log.Log`.
    """
    if not hasattr(_thread, "listeners"):
        _thread.listeners = []
    with contextlib.ExitStack() as blocks:
        for name, replacement in _replacements.items():
            owner, attribute, _ = private.HOOKED[name]
            blocks.enter_context(process.replaced_everywhere(owner, attribute, replacement))
        private.context.context().add_op_callback(_on_operation)
        _thread.listeners.append(listener)
        _held[id(listener)] = blocks.pop_all(), _thread.listeners, private.context.context().op_callbacks


def silence(listener: Any) -> None:
    """Undo `listen`; does nothing where the listener does not listen."""
    blocks = forget(listener)
    if blocks is not None:
        blocks.close()


def forget(listener: Any) -> contextlib.ExitStack | None:
    """Undo `listen` from any thread, as a finaliser may be called in any. The hooks go with the result."""
    blocks, listeners, callbacks = _held.pop(id(listener), (None, [], []))
    if listener in listeners:
        listeners.remove(listener)
    if not listeners and _on_operation in callbacks:
        callbacks.remove(_on_operation)
    return blocks


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Within this context the thread's listeners hear nothing: for what the explanation itself computes."""
    listeners, _thread.listeners = getattr(_thread, "listeners", []), []
    try:
        yield
    finally:
        _thread.listeners = listeners


@functools.cache
def blind() -> str | None:
    """Try the hooks out, once, and return None if they behave, else a sentence on what does not."""
    if private.BLIND:
        return private.BLIND
    verdict = []
    # In a thread of its own: the tapes that are open in this one must not record the trial.
    trial = threading.Thread(target=lambda: verdict.append(_try_out()))
    trial.start()
    trial.join()
    return verdict[0]


def _heard(method: str, arguments: tuple[Any, ...]) -> str:
    """What a listener was told, for the self-test: operations and ways to leave by name."""
    named = arguments[method == "on_leave"] if method in ("on_operation", "on_python", "on_leave") else method
    return "function" if method == "on_operation" and named.startswith("__") else named


def _try_out() -> str | None:
    probe = mock.Mock()
    try:
        variable, constant = tf.Variable(2.0), tf.constant(3.0)
        square = tf.function(lambda x: x * x, autograph=False)
        passing = tf.custom_gradient(lambda x: (x + 0.0, lambda upstream: upstream))
        with tf.GradientTape() as tape:
            tape.watch(constant)
            hooks.listen(probe)
            try:
                product = tf.multiply(variable, constant)
                square(product)
                passing(product)
                float(product)
                tf.numpy_function(lambda value: value, [product], tf.float32)
                tf.py_function(lambda value: value, [product], tf.float32)
            finally:
                hooks.silence(probe)
        _, (inner, arguments, returned) = private.python_calls().popitem()
        found = [inner.gradient(returned, arguments[0]) for _ in range(2)]
        found += private.gradients_of("Mul", (), [product, constant], [product * constant], [tf.ones(())])
        first, second = private.next_key(), private.key(tf.constant(1.0))
    except Exception as error:
        return f"trying the hooks out raised {type(error).__name__}: {error}"
    of_function = ["Mul"] if tf.config.functions_run_eagerly() else ["function", "on_record"]
    expected = ["ReadVariableOp", "Mul", *of_function, "AddV2", "Identity", "on_record", "__float__"]
    expected += ["numpy_function", "EagerPyFunc"]
    heard = [_heard(method, arguments) for method, arguments, _ in probe.method_calls]
    if heard != expected:
        return f"the hooks saw {heard} where {expected} ran"
    if any(gradient is None for gradient in found) or not first < second:
        return "the tape of a py_function, the gradient registry or the numbering of tensors is not what it was"
    return None
