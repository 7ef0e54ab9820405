"""The TensorFlow symbols that are not public API, each with what happens when a release no longer has it."""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

from tapelab.process.tensorflow import Tensors, tf


def with_autograph(f: Callable) -> Callable:
    """Return f with Python control flow on tensors converted to graph operations, as `tf.function` does it.

    `tf.function(f)` is no substitute: a call of it hides which outputs are unconnected. Without
    ``tf.__internal__.autograph`` the function itself is returned, and one that branches on a tensor runs eagerly.

    It is converted whatever the caller's own code is: around it, a transform has switched AutoGraph off.
    """
    try:
        autograph = tf.__internal__.autograph
        current = autograph.control_status_ctx()
        enabled = type(current)(type(current.status).ENABLED)
        return autograph.tf_convert(f, enabled)
    except (AttributeError, TypeError):
        return f


def unconverted(kind: Any) -> Any:
    """Mark the methods of a class as what AutoGraph calls as it is, and return the class.

    `tf.autograph.experimental.do_not_convert` switches AutoGraph off for all that a method calls, too, which takes
    1 µs. Without its mark ``autograph_info__``, that is what the methods become.
    """
    for name, method in list(vars(kind).items()):
        if name == "__call__" or not name.startswith("_"):
            wrapped = tf.autograph.experimental.do_not_convert(method)
            if hasattr(wrapped, "autograph_info__"):
                kind.autograph_info__ = method.autograph_info__ = wrapped.autograph_info__
            else:
                setattr(kind, name, wrapped)
    return kind


def derivatives_wanted(tensors: Tensors) -> int:
    """Return how far the open tapes may differentiate what is computed from tensors: 0, 1, or 2 for higher orders.

    With a tape open it is at least 1: the tape may watch what the function reads besides the tensors. Without
    ``could_possibly_record`` and ``PossibleTapeGradientTypes`` it is 0, and what a tape cannot record fails.
    """
    try:
        from tensorflow.python.eager import record
        from tensorflow.python.ops import gradients_util

        if not record.could_possibly_record():
            return 0
        return max(1, int(gradients_util.PossibleTapeGradientTypes(list(tensors))))
    except (ImportError, AttributeError):
        return 0


def direct_call(concrete: tf.types.experimental.ConcreteFunction) -> Callable[[Tensors], Any]:
    """Return a function that calls a concrete function with a list of tensors, in the order of its inputs.

    ``ConcreteFunction._call_flat`` skips binding the arguments to a signature, which is about half of what calling a
    small function costs. Without it the public call is used.
    """
    if not hasattr(concrete, "_call_flat"):
        return lambda tensors: concrete(*tensors)
    captured = concrete.captured_inputs
    call = concrete._call_flat
    return lambda tensors: call(tensors, captured)


def keras_state() -> dict[str, Any] | None:
    """Return what Keras keeps for this thread: the scopes that are open, the layer that is being called, settings.

    Without ``GLOBAL_STATE_TRACKER``, or where what is looked for has another name there, None.
    """
    module = _keras_global_state()
    return None if module is None else vars(module.GLOBAL_STATE_TRACKER)  # another one after clear_session()


@functools.cache
def _keras_global_state() -> ModuleType | None:
    try:
        from keras.src.backend.common import global_state

        names = []

        class Layer(tf.keras.layers.Layer):
            def call(self, x: tf.Tensor, training: bool | None = None) -> tf.Tensor:
                names.extend(vars(global_state.GLOBAL_STATE_TRACKER))
                return x

        def look() -> None:
            with tf.keras.StatelessScope():
                Layer(name="layer", dtype="mixed_bfloat16")(tf.zeros(1), training=True)

        thread = threading.Thread(target=look)  # which has no scopes of its own yet
        thread.start()
        thread.join()
    except (ImportError, AttributeError):
        return None
    return global_state if {"autocast_scope", "current_call_ctx", "stateless_scope"} <= set(names) else None


@contextlib.contextmanager
def operations_run() -> Iterator[set[str]]:
    """Yield a set that the operations are added to, by name, which run at once in the block, in functions too.

    Without ``op_callbacks`` it stays empty, and nothing is known of what the function draws or changes.
    """
    found: set[str] = set()
    try:
        from tensorflow.python.eager import context
        from tensorflow.python.framework import op_callbacks
    except ImportError:
        yield found
        return

    def note(
        name: str | bytes, inputs: Any, attributes: Any, outputs: Any, op_name: Any = None, graph: Any = None
    ) -> None:
        called = tf.compat.as_str(name)  # bytes where a graph is built
        if called not in found:
            found.add(called)
            if context.context().has_function(called):
                for node in context.get_function_def(called).node_def:
                    note(node.op, None, None, None)
                    for attribute in node.attr.values():
                        if attribute.func.name:
                            note(attribute.func.name, None, None, None)

    op_callbacks.add_op_callback(note)
    try:
        yield found
    finally:
        op_callbacks.remove_op_callback(note)


def masked(tensors: Tensors) -> list[tf.Tensor]:
    """Return those of the tensors to which a Keras layer has attached a mask.

    Without ``_keras_mask`` in a tensor's attributes, as where Keras keeps masks elsewhere, none is found.
    """
    return [tensor for tensor in tensors if tensor.__dict__.get("_keras_mask") is not None]


def random_state() -> tuple:
    """Return TensorFlow's global seed and its global generator, each None where it is not set.

    Without ``global_seed`` and ``global_generator`` neither is known: a change of them after a trace is not seen.
    """
    try:
        from tensorflow.python.eager import context
        from tensorflow.python.ops import stateful_random_ops

        return context.global_seed(), stateful_random_ops.global_generator
    except (ImportError, AttributeError):
        return None, None


@functools.cache
def modules_with_moments() -> list[ModuleType]:
    """Return the modules in which ``moments`` is looked up, by `tf.nn.moments` and by its predecessor.

    Without TensorFlow's private module there are none, and second derivatives of variances by it are refused.
    """
    try:
        from tensorflow.python.ops import nn_impl

        return [module for module in (nn_impl, tf.compat.v1.nn) if hasattr(module, "moments")]
    except ImportError:
        return []


@functools.cache
def function_classes() -> tuple[type, type]:
    """Return the classes of what `tf.function` returns, and of its concrete functions."""
    function = tf.function(lambda: tf.constant(0.0))
    concrete = type(function.get_concrete_function())
    return type(function), next(kind for kind in concrete.__mro__ if "__call__" in vars(kind))
