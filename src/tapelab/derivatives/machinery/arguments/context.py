"""What a function may see of the context that it is called in, beside its arguments.

What was compiled in one context is not taken in another. `context` reads at each call, in about 1 µs, what TensorFlow
and Keras keep for the thread and for the process:

- whether operations run at once or go into a graph; `tf.config.run_functions_eagerly`;
- of Keras: floatx, epsilon, image data format, dtype policy, flash attention, distribution; the dtype that a layer
  casts variables to; the training flag, and whatever else the layers being called hand down.

`chance` tells where random numbers come from, which matters to a function that draws some.

In a `keras.StatelessScope`, which is also that of ``stateless_call``, variables have other values and may be given new
ones. What is compiled there is used once, and a function that gives new ones is refused. In the scope of a distribution
strategy there are no derivatives (`tapelab.derivatives.machinery.arguments.checks.require_no_strategy`).

Scopes of devices, of names and of rematerialisation are not looked at: they change no number.
"""

import contextlib
from collections.abc import Hashable, Iterator
from typing import Any

from tapelab.derivatives.machinery.arguments.statics import Static
from tapelab.derivatives.private import keras_state, random_state
from tapelab.process.tensorflow import tf

# What Keras keeps for the thread. The last ones are compared as they are.
_STATE = ("dtype_policy", "symbolic_scope", "autocast_scope", "current_call_ctx", "flash_attention", "distribution")


def context(name: str) -> Hashable:
    """Return the context of this call, equal to that of another call if a function cannot tell the two apart.

    Args:
        name: of the derivative, for messages.

    Raises:
        TypeError: if a layer hands down something that is not hashable, such as a tensor.
    """
    state = keras_state()
    if state is None:
        return object()  # what the layers hand down is not known: no two calls are alike
    config = tf.keras.config
    floatx = config.floatx()
    policy, symbolic, autocast, call, *others = map(state.get, _STATE)
    return (
        tf.executing_eagerly(),
        tf.config.functions_run_eagerly(),
        floatx,
        floatx if policy is None else policy.name,  # asked for, Keras would settle it
        config.epsilon(),
        config.image_data_format(),
        symbolic is None,
        None if autocast is None else autocast.dtype,
        None if call is None else _handed_down(call, name),
        *others,
    )


def _handed_down(call: Any, name: str) -> tuple[tuple[str, Static], ...]:
    """What the layer that is being called hands down to those that it calls, such as the training flag."""
    found = []
    for key, value in sorted(vars(call).items()):
        if key != "entry_layer" and value is not None:
            try:
                found.append((key, Static(value)))
            except TypeError as error:
                raise TypeError(
                    f"{name}: it is called in a Keras layer that was called with {key}= a {type(value).__name__}, "
                    "which the layers in the function would get too. Pass a Python value, such as True"
                ) from error
    return tuple(found)


def chance() -> tuple:
    """Return where random numbers come from, compared by ==: the seed and the generators that are global."""
    state = keras_state() or {}
    return *random_state(), state.get("global_seed_generator")


def stateless_scope() -> Any:
    """Return the `keras.StatelessScope` that is open; None if there is none, or it is not known."""
    return (keras_state() or {}).get("stateless_scope")


@contextlib.contextmanager
def stateless_scope_unchanged(name: str) -> Iterator[None]:
    """Undo what the function does to a `keras.StatelessScope`, where tensors of the graph that is traced are useless.

    Raises:
        RuntimeError: if a variable was given a value there, or a loss was added. Not while a model is put together
            from symbolic tensors: then nobody reads them.
    """
    scope = stateless_scope()
    if scope is None:
        yield
        return
    before, losses = dict(scope.state_mapping), list(scope.losses)
    try:
        yield
        now = scope.state_mapping
        changed = now.keys() != before.keys() or any(now[key] is not value for key, value in before.items())
        if (changed or len(scope.losses) > len(losses)) and (keras_state() or {}).get("symbolic_scope") is None:
            raise RuntimeError(
                f"{name}: called in a keras.StatelessScope or in stateless_call, where the function gives a variable a "
                "value or adds a loss, as dropout and batch normalisation do in training. What is compiled cannot "
                "leave that in the scope: call it outside, or the function with training=False"
            )
    finally:
        scope.state_mapping.clear()
        scope.state_mapping.update(before)
        scope.losses[:] = losses
