"""Does one operation pass a gradient from an output to one of its inputs? If not: by which cause does it not?

The answers are cause codes of `tapelab.explain.causes`, or None where the gradient passes.
"""

from collections.abc import Callable
from typing import Any

from tapelab.explain.ground import hooks, private
from tapelab.explain.ground.log import Event, Kind, Log, can_carry

import tensorflow as tf

_CONVERSIONS = frozenset({"Cast", "Bitcast"})


def cause_of(
    op: str, takes: tf.DType, gives: tf.DType, passes: Callable[[], bool], is_custom: bool = False
) -> str | None:
    """Return the cause by which an operation cuts the gradient from one of its outputs to one of its inputs, or None.

    Args:
        op: its type.
        takes: the dtype of that input.
        gives: the dtype of that output. Another output may pass the gradient, as the values of TopKV2 do and its
            indices do not.
        passes: tries out whether its gradient function returns something for that input; may raise LookupError.
        is_custom: whether it has a custom gradient.
    """
    if op == "StopGradient":
        return "stop_gradient"
    if not can_carry(takes):
        return None  # what depends on the source has such a dtype only behind a cut, which was counted there
    if gives == tf.string:
        return "through_string"
    carries = can_carry(gives)
    if op in _CONVERSIONS and not carries:
        return "cast_to_integer"
    try:
        # Of an operation that gives whole numbers the tape asks for no gradient, so that a missing one raises nothing.
        if carries and (is_custom or private.has_gradient(op)) and passes():
            return None
    except LookupError:
        return "no_gradient_registered"
    return "custom_gradient_none" if is_custom and carries else "not_differentiable"


class Conductors:
    """Answers for the events of one log, each worked out once, with the registered gradient function itself."""

    def __init__(self, log: Log):
        self._log = log
        self._results = {}

    def cut_at(self, event: Event, position: int, output: int) -> str | None:
        """Return the cause by which an event, not a function's call, cuts the gradient from an output to an input.

        Args:
            event: an `Event` of the log.
            position: of the input.
            output: the key of the output.

        Returns:
            A cause code, or None if the gradient passes.
        """
        takes, gives = (self._log.tensors[key].dtype for key in (event.inputs[position], output))
        is_custom = event.kind is Kind.CUSTOM
        if "Dataset" in event.op and can_carry(takes) and not is_custom:
            return "left_tensorflow"
        return cause_of(event.op, takes, gives, lambda: self._returns(event, position), is_custom)

    def _returns(self, event: Event, position: int) -> bool:
        """Whether the gradient function, given ones, returns something for an input."""
        if event.index not in self._results:
            self._results[event.index] = self._run(event)
        result = self._results[event.index]
        if isinstance(result, LookupError):
            raise result
        # A gradient function that cannot be tried out is taken to work: the tape's own result has the last word.
        return result is None or (position < len(result) and result[position] is not None)

    def _run(self, event: Event) -> list[Any] | LookupError | None:
        outputs = [self._log.tensors[key] for key in event.outputs]
        if any(self._log.is_handle(key) for key in event.outputs):
            return None
        with hooks.deaf(), private.paused(), private.with_python_calls(self._log.python_calls_of.get(event.index, {})):
            upstream = [tf.ones_like(tensor) for tensor in outputs]
            try:
                if event.kind is Kind.CUSTOM:
                    found = event.backward(*upstream)
                    return list(found) if isinstance(found, (list, tuple)) else [found]
                inputs = [self._log.tensors[key] for key in event.inputs]
                return private.gradients_of(event.op, event.attributes, inputs, outputs, upstream)
            except LookupError as error:
                return error
            except Exception:
                return None
