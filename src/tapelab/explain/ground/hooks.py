"""Every private TensorFlow symbol that the explanations need, and the hooks that watch operations run.

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

The self-test has two parts. At import: the symbols exist and take the arguments that they are called with. That runs no
operation, because the first operation fixes the device settings that a notebook has yet to make. When the first tape
opens: a small program runs, and the hooks must see all of it. `BLIND` and `blind()` say what went wrong.
"""

import contextlib
import functools
import inspect
import sys
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tapelab import process
from tapelab.explain.ground import lines

import tensorflow as tf

BLIND = None
try:
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import backprop, context, execute, record
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.framework import func_graph, function_def_to_graph, ops
    from tensorflow.python.ops import script_ops

    _SAVED = {
        "execute": (execute, "execute", execute.execute),
        "record_operation": (record, "record_operation", record.record_operation),
        "fast path": (pywrap_tfe, "TFE_Py_FastPathExecute", pywrap_tfe.TFE_Py_FastPathExecute),
        "_numpy": (ops._EagerTensorBase, "_numpy", ops._EagerTensorBase._numpy),
        "numpy_function": (script_ops, "py_func_common", script_ops.py_func_common),
        "py_function": (script_ops, "backprop", script_ops.backprop),
    }
    # What is replaced or called, and its arguments; None where Python cannot tell them.
    _NEEDED = {
        execute.execute: "op_name num_outputs inputs attrs ctx name",
        execute.execute_with_callbacks: "op_name num_outputs inputs attrs ctx name",
        record.record_operation: "op_type output_tensors input_tensors backward_function forward_function",
        ops._EagerTensorBase._numpy: "self",
        script_ops.py_func_common: "func inp Tout stateful name",
        script_ops.backprop.GradientTape: "persistent watch_accessed_variables",
        script_ops.tape_cache.pop: None,
        pywrap_tfe.TFE_Py_FastPathExecute: None,
        pywrap_tfe.TFE_Py_TapeSetIsStopped: None,
        context.context().add_op_callback: "callback",
        context.context().remove_op_callback: "callback",
        context.context().get_function_def: "name",
        record.stop_recording: "",
        backprop._gradient_function: (
            "op_name attr_tuple num_inputs inputs outputs out_grads skip_input_indices forward_pass_name_scope"
        ),
        function_def_to_graph.function_def_to_graph: None,
        ops.uid: "",
        func_graph.FuncGraph: None,
    }
    # Frames of these functions are recognised on the stack.
    _CALL_OF_FUNCTION = atomic_function.AtomicFunction.call_flat.__code__
    _BACKWARD_PASS = frozenset(
        method.__code__
        for method in (tf.GradientTape.gradient, tf.GradientTape.jacobian, tf.GradientTape.batch_jacobian)
    )
    for _symbol, _arguments in _NEEDED.items():
        _found = None if _arguments is None else " ".join(inspect.signature(_symbol).parameters)
        if _found != _arguments:
            BLIND = (
                f"in TensorFlow {tf.__version__}, {_symbol.__qualname__}, through which tapelab.explain looks, takes "
                f"the arguments ({_found}) where ({_arguments}) were expected"
            )
            break
except (ImportError, AttributeError) as error:
    BLIND = f"TensorFlow {tf.__version__} lacks a symbol that tapelab.explain looks through: {error}"

# What reads a tensor to show it, not to compute with it.
_SHOWING = frozenset({"__str__", "__repr__", "__format__", "numpy_text", "value_text"})

_held = {}  # identity of each listener → (what keeps the replacements, its thread's listeners and op callbacks)
_thread = threading.local()  # .listeners: the listeners of one thread, in the order in which they opened
_replacements = {}


def _replacement(name):
    """Register the function that stands in for one symbol of `_SAVED`."""

    def register(function):
        _replacements[name] = function
        return function

    return register


def _listeners():
    return getattr(_thread, "listeners", ())


def _tell(method, *arguments):
    """Call one method of each listener of this thread. A listener's own failure must not become the learner's."""
    for listener in _listeners():
        try:
            getattr(listener, method)(*arguments)
        except Exception as error:
            listener.failed(error)


def _on_operation(op_type, inputs, attributes, outputs, op_name=None, graph=None):
    """The op callback. Inside a graph it is called while tracing, which says nothing about what will run."""
    if graph is None and _listeners():
        if isinstance(op_type, bytes):
            op_type = op_type.decode()
        if outputs is None:
            outputs = ()
        elif not isinstance(outputs, (list, tuple)):
            outputs = (outputs,)
        function_code = _CALL_OF_FUNCTION if op_type.startswith("__") else None
        place = lines.walk(sys._getframe(1), _BACKWARD_PASS, function_code, scope())
        _tell("on_operation", op_type, inputs, attributes, outputs, place)


@_replacement("execute")
def _execute(*arguments, **keywords):
    return execute.execute_with_callbacks(*arguments, **keywords)


@_replacement("record_operation")
def _record_operation(op_type, output_tensors, input_tensors, backward_function, forward_function=None):
    original = _SAVED["record_operation"][2]
    result = original(op_type, output_tensors, input_tensors, backward_function, forward_function)
    if _listeners() and tf.executing_eagerly() and not recording_stopped():
        name = op_type.decode() if isinstance(op_type, bytes) else op_type
        place = lines.walk(sys._getframe(1), _BACKWARD_PASS, None)
        _tell("on_record", name, tuple(output_tensors), tuple(input_tensors), backward_function, place)
    return result


@functools.cache
def _is_variable(kind):
    """Whether a type is one of variables, TensorFlow's or Keras's."""
    return hasattr(kind, "handle")


def _read(argument):
    if isinstance(argument, (list, tuple)):
        if any(_is_variable(type(item)) for item in argument):
            return type(argument)(_read(item) for item in argument)
        return argument
    return tf.convert_to_tensor(argument) if _is_variable(type(argument)) else argument


@_replacement("fast path")
def _fast_path_execute(eager_context, op_type, name, *arguments):
    # An operation on the variable itself takes its handle, not its value.
    # The test is written out here because it runs for every operation.
    for argument in arguments:
        kind = type(argument)
        if kind is list or kind is tuple or _is_variable(kind):
            if _listeners() and "Variable" not in op_type and "Resource" not in op_type:
                arguments = tuple(_read(argument) for argument in arguments)
            break
    return _SAVED["fast path"][2](eager_context, op_type, name, *arguments)


@_replacement("_numpy")
def _numpy(self):
    if _listeners():
        caller = sys._getframe(1)
        if caller.f_code.co_name not in _SHOWING:
            place = lines.walk(caller, _BACKWARD_PASS, None)
            _tell("on_leave", self, caller.f_code.co_name, place)
    return _SAVED["_numpy"][2](self)


@_replacement("numpy_function")
def _py_func_common(func, inp, Tout, stateful=True, name=None):
    original = _SAVED["numpy_function"][2]
    if not _listeners() or not tf.executing_eagerly():
        return original(func, inp, Tout, stateful, name)
    inp = [_read(argument) for argument in inp]
    result = original(func, inp, Tout, stateful, name)
    inputs, outputs = (
        [value for value in tf.nest.flatten(values, expand_composites=True) if tf.is_tensor(value)]
        for values in (inp, result)
    )
    _tell("on_python", "numpy_function", inputs, outputs, lines.walk(sys._getframe(1), _BACKWARD_PASS, None))
    return result


def _persistent_tape():
    return tf.GradientTape(persistent=True)


# Stands in for the module in which tf.py_function looks the tape up.
_replacements["py_function"] = types.SimpleNamespace(GradientTape=_persistent_tape)


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
            owner, attribute, _ = _SAVED[name]
            blocks.enter_context(process.replaced(owner, attribute, replacement, everywhere=True))
        context.context().add_op_callback(_on_operation)
        _thread.listeners.append(listener)
        _held[id(listener)] = blocks.pop_all(), _thread.listeners, context.context().op_callbacks


def silence(listener: Any) -> None:
    """Undo `listen`; does nothing where the listener does not listen."""
    blocks = forget(listener)
    if blocks is not None:
        blocks.close()


def forget(listener: Any) -> contextlib.ExitStack | None:
    """Undo `listen` without ever waiting for a lock, from any thread: for finalisers. The hooks go with the result."""
    blocks, listeners, callbacks = _held.pop(id(listener), (None, [], []))
    if listener in listeners:
        listeners.remove(listener)
    if not listeners and _on_operation in callbacks:
        callbacks.remove(_on_operation)
    return blocks


def symbols() -> list[tuple[str, Any, Any]]:
    """Return what the hooks replace: a list of (name, the object now in TensorFlow, the object before any hook)."""
    here = [(name, getattr(owner, attribute), original) for name, (owner, attribute, original) in _SAVED.items()]
    return [*here, ("op callback", list(context.context().op_callbacks), [])]


def key(tensor: tf.Tensor) -> int:
    """Return the number by which a tape knows an eager tensor. Later tensors have higher numbers."""
    return tensor._id


def next_key() -> int:
    """Return a number higher than that of every tensor made so far and lower than that of every later one."""
    return ops.uid()


def recording_stopped() -> bool:
    """Whether TensorFlow itself has suspended all tapes of this thread, as it does within a function call."""
    return pywrap_tfe.TFE_Py_TapeSetIsStopped()


def paused() -> contextlib.AbstractContextManager[None]:
    """Return a context manager that suspends all tapes of this thread."""
    return record.stop_recording()


def python_calls() -> dict[bytes, tuple[tf.GradientTape, Any, Any]]:
    """Return what each tf.py_function keeps for its gradient: token → (its tape, its arguments, what it returned)."""
    return script_ops.tape_cache


@contextlib.contextmanager
def with_python_calls(calls: Mapping[bytes, tuple[tf.GradientTape, Any, Any]]) -> Iterator[None]:
    """Within this context the gradients of these calls of tf.py_function can be computed; after it nothing has changed.

    A py_function's gradient takes the tape away that it needs: it can be computed once.

    Args:
        calls: as `python_calls` returned it while the hooks were in place.
    """
    kept = script_ops.tape_cache
    before = {token: kept[token] for token in calls if token in kept}
    kept.update(calls)
    try:
        yield
    finally:
        for token in calls:
            kept.pop(token, None)
        kept.update(before)


def gradients_of(
    op_type: str,
    attributes: tuple[Any, ...],
    inputs: Sequence[tf.Tensor],
    outputs: Sequence[tf.Tensor],
    upstream: Sequence[tf.Tensor | None],
) -> list[tf.Tensor | tf.IndexedSlices | None]:
    """Run the gradient function registered for an operation.

    Args:
        op_type: its name, such as "MatMul".
        attributes: a tuple of alternating names and values.
        inputs, outputs: lists of eager tensors.
        upstream: one tensor, or None, for each output.

    Returns:
        One tensor, or None, for each input.

    Raises:
        LookupError: if none is registered.
    """
    with paused():
        found = backprop._gradient_function(op_type, attributes, len(inputs), inputs, outputs, upstream, (), "")
    found = list(found) if isinstance(found, (list, tuple)) else [found]
    return found + [None] * (len(inputs) - len(found))


def has_gradient(op_type: str) -> bool:
    """Whether a gradient is registered for a type of operation.

    Returns:
        True, or False if it is registered as not differentiable.

    Raises:
        LookupError: if nothing is registered.
    """
    return ops._gradient_registry.lookup(op_type) is not None


def rebuild(name: str) -> tf.Graph:
    """Return a graph of our own with the body of a function that TensorFlow's runtime knows by name.

    Analysing a body adds operations to its graph, so the learner's own graph is left alone.

    Raises:
        tf.errors.NotFoundError: if the runtime has forgotten the function.
    """
    with tf.init_scope():
        return function_def_to_graph.function_def_to_graph(context.context().get_function_def(name))


def run(op_type: str, attributes: tuple[Any, ...], inputs: Sequence[tf.Tensor], output_count: int) -> list[tf.Tensor]:
    """Run one operation eagerly, given as the log or a graph has it. To be called within `deaf` and `paused`.

    Args:
        op_type: its name, such as "MatMul".
        attributes: a tuple of alternating names and values.
        inputs: a list of eager tensors; those of a list argument one after the other.
        output_count: how many tensors it gives.

    Returns:
        A list of eager tensors.
    """
    found = _SAVED["execute"][2](op_type, output_count, inputs, attributes, context.context())
    return list(found) if isinstance(found, (list, tuple)) else [found]


def scope() -> str:
    """Return the name scope in which eager operations run now: Keras opens one for each layer. "" outside."""
    return context.context().scope_name


def inside_custom_gradient(
    operation: tf.Operation, upstream: Sequence[tf.Tensor]
) -> tuple[tf.Graph, list[tf.Tensor], list[int | None]]:
    """Build what the custom gradient of an operation in a graph computes, in a graph of its own.

    Args:
        operation: of a graph, marked as having a custom gradient.
        upstream: a list of eager tensors, for their shapes and dtypes.

    Returns:
        (graph, captured, positions): the graph, whose inputs are the upstream gradients and then what it took from the
        operation's own graph; these, a list of symbolic tensors; and for each input of the operation the position
        of its gradient in the graph's outputs, or None.
    """
    backward = ops._gradient_registry.lookup(operation.get_attr("_gradient_op_type"))
    graph = func_graph.FuncGraph("custom_gradient")
    with graph.as_default():
        placeholders = [tf.compat.v1.placeholder(one.dtype, one.shape) for one in upstream]
        found = backward(operation, *placeholders)
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        found = [None if one is None else tf.convert_to_tensor(one) for one in found]
        captured = graph.captures
        graph.outputs = [one for one in found if one is not None]
        graph.inputs = placeholders + [internal for _, internal in captured]
    count = iter(range(len(found)))
    return graph, [external for external, _ in captured], [None if one is None else next(count) for one in found]


def graph_of(function: Any) -> tf.Graph | None:
    """Return the learner's own graph of a function as `tapelab.explain.ground.lines.Place` has it; None for None."""
    return None if function is None else function.graph


def inner_graph(graph: tf.Graph | None, name: str) -> tf.Graph | None:
    """Return the learner's own graph of a function that is called in a graph, or None if it is not known."""
    try:
        return graph._get_function(name).graph
    except AttributeError:  # there is no graph, or no such function, or it is not one of Python's
        return None


@contextlib.contextmanager
def deaf() -> Iterator[None]:
    """Within this context the thread's listeners hear nothing: for what the explanation itself computes."""
    listeners, _thread.listeners = getattr(_thread, "listeners", []), []
    try:
        yield
    finally:
        _thread.listeners = listeners


class _Probe:
    """A listener that takes down what it hears, for the self-test."""

    def __init__(self):
        self.heard = []

    def on_operation(self, op_type, inputs, attributes, outputs, place):
        self.heard.append("function" if op_type.startswith("__") else op_type)

    def on_record(self, op_type, outputs, inputs, backward, place):
        self.heard.append("record")

    def on_python(self, name, inputs, outputs, place):
        self.heard.append(name)

    def on_leave(self, tensor, how, place):
        self.heard.append(how)

    def failed(self, error):
        self.heard.append(repr(error))


@functools.cache
def blind() -> str | None:
    """Try the hooks out, once, and return None if they behave, else a sentence on what does not."""
    if BLIND:
        return BLIND
    verdict = []
    # In a thread of its own: the tapes that are open in this one must not record the trial.
    trial = threading.Thread(target=lambda: verdict.append(_try_out()))
    trial.start()
    trial.join()
    return verdict[0]


def _try_out():
    probe = _Probe()
    try:
        variable, constant = tf.Variable(2.0), tf.constant(3.0)
        square = tf.function(lambda x: x * x, autograph=False)
        passing = tf.custom_gradient(lambda x: (x + 0.0, lambda upstream: upstream))
        with tf.GradientTape() as tape:
            tape.watch(constant)
            listen(probe)
            try:
                product = tf.multiply(variable, constant)
                square(product)
                passing(product)
                float(product)
                tf.numpy_function(lambda value: value, [product], tf.float32)
                tf.py_function(lambda value: value, [product], tf.float32)
            finally:
                silence(probe)
        _, (inner, arguments, returned) = python_calls().popitem()
        found = [inner.gradient(returned, arguments[0]) for _ in range(2)]
        found += gradients_of("Mul", (), [product, constant], [product * constant], [tf.ones(())])
        first, second = next_key(), key(tf.constant(1.0))
    except Exception as error:
        return f"trying the hooks out raised {type(error).__name__}: {error}"
    expected = ["ReadVariableOp", "Mul", "function", "record", "AddV2", "Identity", "record", "__float__"]
    expected += ["numpy_function", "EagerPyFunc"]
    if probe.heard != expected:
        return f"the hooks saw {probe.heard} where {expected} ran"
    if any(gradient is None for gradient in found) or not first < second:
        return "the tape of a py_function, the gradient registry or the numbering of tensors is not what it was"
    return None
