"""Every private TensorFlow symbol that the explanations need, and the hooks that watch operations run.

TensorFlow has no public way to see what a tape records. Four hooks show it, each covering what the others are blind to:

========================  =======================================================================================
``op callback``           each eager operation, after it ran: its type, attributes, inputs and outputs
``execute``               the same for calls of a ``tf.function``, which take another way through TensorFlow
``record_operation``      custom gradients and function calls, with their backward functions
``fast path``             reads a variable that is handed straight to an operation in Python rather than in C++, where
                          the read would go unseen
``_numpy``                values that leave TensorFlow: ``.numpy()``, ``float()``, ``int()``, ``bool()``
========================  =======================================================================================

They are in place while a tape listens, in the threads that have one, and TensorFlow is as it was the rest of the time.
Which symbols exist is looked at when this module is imported; that they behave is tried out when the first tape opens,
not at import, because running an operation fixes the device settings that a notebook has yet to make. `BLIND` and
`blind()` say what went wrong.
"""

import contextlib
import functools
import sys
import threading

from tapelab.explain import lines

import tensorflow as tf

BLIND = None
try:
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import backprop, context, execute, record
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.framework import function_def_to_graph, ops

    _SAVED = {
        "execute": (execute, "execute", execute.execute),
        "record_operation": (record, "record_operation", record.record_operation),
        "fast path": (pywrap_tfe, "TFE_Py_FastPathExecute", pywrap_tfe.TFE_Py_FastPathExecute),
        "_numpy": (ops._EagerTensorBase, "_numpy", ops._EagerTensorBase._numpy),
    }
    _NEEDED = (
        execute.execute_with_callbacks,
        context.context().add_op_callback,
        context.context().remove_op_callback,
        context.context().get_function_def,
        record.stop_recording,
        pywrap_tfe.TFE_Py_TapeSetIsStopped,
        backprop._gradient_function,
        function_def_to_graph.function_def_to_graph,
        ops.uid,
    )
    # Frames of these functions are recognised on the stack.
    _CALL_OF_FUNCTION = atomic_function.AtomicFunction.call_flat.__code__
    _BACKWARD_PASS = frozenset(
        method.__code__
        for method in (tf.GradientTape.gradient, tf.GradientTape.jacobian, tf.GradientTape.batch_jacobian)
    )
except (ImportError, AttributeError) as error:
    BLIND = f"TensorFlow {tf.__version__} lacks a symbol that tapelab.explain looks through: {error}"

# What reads a tensor to show it, not to compute with it.
_SHOWING = frozenset({"__str__", "__repr__", "__format__", "numpy_text", "value_text"})

_lock = threading.Lock()
_listening = set()  # identities of all listeners, in all threads
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
        place = lines.walk(sys._getframe(1), _BACKWARD_PASS, _CALL_OF_FUNCTION if op_type.startswith("__") else None)
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


def _refresh():
    """Put the replacements in place if anyone listens, the originals if no one does. Called with the lock held."""
    for name, (owner, attribute, original) in _SAVED.items():
        setattr(owner, attribute, _replacements.get(name, original) if _listening else original)


def listen(listener):
    """Tell a listener what runs in this thread from now on. To be undone by `silence`, in the same thread.

    Args:
        listener: has the methods on_operation, on_record, on_leave and failed of `tapelab.explain.log.Log`.
    """
    if not hasattr(_thread, "listeners"):
        _thread.listeners = []
    with _lock:
        _thread.listeners.append(listener)
        _listening.add(id(listener))
        _refresh()
        context.context().add_op_callback(_on_operation)


def silence(listener):
    """Undo `listen`; does nothing where the listener does not listen."""
    with _lock:
        _listening.discard(id(listener))
        _refresh()
        if listener in _listeners():
            _thread.listeners.remove(listener)
        if not _listeners():
            with contextlib.suppress(KeyError):
                context.context().remove_op_callback(_on_operation)


def symbols():
    """Return what the hooks replace: a list of (name, the object now in TensorFlow, the object before any hook)."""
    here = [(name, getattr(owner, attribute), original) for name, (owner, attribute, original) in _SAVED.items()]
    return [*here, ("op callback", list(context.context().op_callbacks), [])]


def key(tensor):
    """Return the number by which a tape knows an eager tensor. Later tensors have higher numbers."""
    return tensor._id


def next_key():
    """Return a number higher than that of every tensor made so far and lower than that of every later one."""
    return ops.uid()


def recording_stopped():
    """Whether TensorFlow itself has suspended all tapes of this thread, as it does within a function call."""
    return pywrap_tfe.TFE_Py_TapeSetIsStopped()


def paused():
    """Return a context manager that suspends all tapes of this thread."""
    return record.stop_recording()


def gradients_of(op_type, attributes, inputs, outputs, upstream):
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


def has_gradient(op_type):
    """Whether a gradient is registered for a type of operation.

    Returns:
        True, or False if it is registered as not differentiable.

    Raises:
        LookupError: if nothing is registered.
    """
    return ops._gradient_registry.lookup(op_type) is not None


def rebuild(name):
    """Return a graph of our own with the body of a function that TensorFlow's runtime knows by name.

    Analysing a body adds operations to its graph, so the learner's own graph is left alone.

    Raises:
        tf.errors.NotFoundError: if the runtime has forgotten the function.
    """
    with tf.init_scope():
        return function_def_to_graph.function_def_to_graph(context.context().get_function_def(name))


def graph_of(function):
    """Return the learner's own graph of a function as `tapelab.explain.lines.Place` has it; None for None."""
    return None if function is None else function.graph


def inner_graph(graph, name):
    """Return the learner's own graph of a function that is called in a graph, or None if it is not known."""
    try:
        return graph._get_function(name).graph
    except AttributeError:  # there is no graph, or no such function, or it is not one of Python's
        return None


@contextlib.contextmanager
def deaf():
    """Within this context the thread's listeners hear nothing: for what the explanation itself computes."""
    listeners, _thread.listeners = list(_listeners()), []
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

    def on_leave(self, tensor, how, place):
        self.heard.append(how)

    def failed(self, error):
        self.heard.append(repr(error))


@functools.cache
def blind():
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
            finally:
                silence(probe)
        found = gradients_of("Mul", (), [product, constant], [product * constant], [tf.ones(())])
        first, second = next_key(), key(tf.constant(1.0))
    except Exception as error:
        return f"trying the hooks out raised {type(error).__name__}: {error}"
    expected = ["ReadVariableOp", "Mul", "function", "record", "AddV2", "Identity", "record", "__float__"]
    if probe.heard != expected:
        return f"the hooks saw {probe.heard} where {expected} ran"
    if any(gradient is None for gradient in found) or not first < second:
        return "the gradient registry or the numbering of tensors is not what it was"
    return None
