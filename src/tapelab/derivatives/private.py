"""The TensorFlow symbols that are not public API, each with what happens when a release no longer has it."""

from tapelab.runtime import tf


def with_autograph(f):
    """Return f with Python control flow on tensors converted to graph operations, as `tf.function` does it.

    `tf.function(f)` is no substitute: a call of it hides which outputs are unconnected. Without
    ``tf.__internal__.autograph`` the function itself is returned, and one that branches on a tensor runs eagerly.
    """
    try:
        autograph = tf.__internal__.autograph
        return autograph.tf_convert(f, autograph.control_status_ctx())
    except AttributeError:
        return f


def direct_call(concrete):
    """Return a function that calls a concrete function with a list of tensors, in the order of its inputs.

    ``ConcreteFunction._call_flat`` skips binding the arguments to a signature, which is about half of what calling a
    small function costs. Without it the public call is used.
    """
    call_flat = getattr(concrete, "_call_flat", None)
    if call_flat is None:
        return lambda tensors: concrete(*tensors)
    captured = concrete.captured_inputs
    return lambda tensors: call_flat(tensors, captured)
