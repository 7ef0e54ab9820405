"""Whether the hooks see all of a small program: tried once, when the first tape opens."""

import functools
import threading
from collections.abc import Callable
from typing import Any

from tapelab.explain.ground import hooks, private

import tensorflow as tf


class _Probe:
    """A listener that takes down what it hears, for the self-test: operations and ways to leave by name."""

    def __init__(self):
        self.heard = []

    def __getattr__(self, method: str) -> Callable[..., None]:
        def listen(first: Any, second: Any = None, *more: Any) -> None:
            named = {"on_operation": first, "on_python": first, "on_leave": second}.get(method, method)
            is_call = method == "on_operation" and named.startswith("__")
            self.heard.append("function" if is_call else named)

        return listen


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


def _try_out() -> str | None:
    probe = _Probe()
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
    expected = ["ReadVariableOp", "Mul", "function", "on_record", "AddV2", "Identity", "on_record", "__float__"]
    expected += ["numpy_function", "EagerPyFunc"]
    if probe.heard != expected:
        return f"the hooks saw {probe.heard} where {expected} ran"
    if any(gradient is None for gradient in found) or not first < second:
        return "the tape of a py_function, the gradient registry or the numbering of tensors is not what it was"
    return None
