"""Every private TensorFlow symbol that the explanations need.

They are tested twice. At import: what is replaced exists; `BLIND` says what does not. That runs no operation, because
the first operation fixes the device settings that a notebook has yet to make. When the first tape opens, `hooks.blind`
tries the hooks out.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from tapelab.explain.ground.measure import Attributes, Cotangents, Gradient
from tapelab.process.tensorflow import Tensors, tf

BLIND = None
try:
    from tensorflow.python import pywrap_tfe
    from tensorflow.python.eager import backprop, context, execute, record
    from tensorflow.python.eager.polymorphic_function import atomic_function
    from tensorflow.python.framework import function_def_to_graph, ops
    from tensorflow.python.ops import script_ops

    # What the hooks replace: where it is, under which name, and as it was.
    HOOKED = {
        "execute": (execute, "execute", execute.execute),
        "record_operation": (record, "record_operation", record.record_operation),
        "fast path": (pywrap_tfe, "TFE_Py_FastPathExecute", pywrap_tfe.TFE_Py_FastPathExecute),
        "_numpy": (ops._EagerTensorBase, "_numpy", ops._EagerTensorBase._numpy),
        "numpy_function": (script_ops, "py_func_common", script_ops.py_func_common),
        "py_function": (script_ops, "backprop", script_ops.backprop),
    }
    # Frames of these functions are recognised on the stack.
    CALL_OF_FUNCTION = atomic_function.AtomicFunction.call_flat.__code__
    BACKWARD_PASS = frozenset(
        method.__code__
        for method in (tf.GradientTape.gradient, tf.GradientTape.jacobian, tf.GradientTape.batch_jacobian)
    )
except (ImportError, AttributeError) as error:
    BLIND = f"TensorFlow {tf.__version__} lacks a symbol that tapelab.explain looks through: {error}"


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
    op_type: str, attributes: Attributes, inputs: Tensors, outputs: Tensors, upstream: Cotangents
) -> list[Gradient | None]:
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


def run(op_type: str, attributes: Attributes, inputs: Tensors, output_count: int) -> list[tf.Tensor]:
    """Run one operation eagerly, given as the log or a graph has it. To be called within `deaf` and `paused`.

    Args:
        op_type: its name, such as "MatMul".
        attributes: a tuple of alternating names and values.
        inputs: a list of eager tensors; those of a list argument one after the other.
        output_count: how many tensors it gives.

    Returns:
        A list of eager tensors.
    """
    found = HOOKED["execute"][2](op_type, output_count, inputs, attributes, context.context())
    return list(found) if isinstance(found, (list, tuple)) else [found]


def scope() -> str:
    """Return the name scope in which eager operations run now: Keras opens one for each layer. "" outside."""
    return context.context().scope_name
