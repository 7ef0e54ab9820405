"""An observer for exercises that ask for few passes: it counts them while an answer runs."""

import math
from collections.abc import Callable
from typing import Any
from unittest import mock

import tensorflow as tf


def count_passes(name: str, most: Callable[..., int]) -> Callable[..., dict[str, Any]]:
    """Return an observer for `Function`: an answer's result, and whether it took few passes.

    A pass is a call of `gradient`, an accumulator, or one element of the target of `jacobian`; of `batch_jacobian`,
    one output. Within `tf.vectorized_map` it counts once for each element.

    Args:
        name: what the result is called in the feedback.
        most: from a trial's arguments to the number of passes that is few enough.
    """

    def observe(answer: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        count = 0

        def counted(method: Callable[..., Any], passes: Callable[[Any], int]) -> Callable[..., Any]:
            def call(self: Any, target: Any, *args: Any, **kwargs: Any) -> Any:
                nonlocal count
                total = count + passes(target)
                result = method(self, target, *args, **kwargs)
                count = total  # the passes of this call are in it, however many of them were traced as one
                return result

            return call

        class Tape(tf.GradientTape):
            gradient = counted(tf.GradientTape.gradient, lambda target: 1)
            jacobian = counted(tf.GradientTape.jacobian, lambda target: int(tf.size(target)))
            batch_jacobian = counted(tf.GradientTape.batch_jacobian, lambda target: math.prod(target.shape[1:]))

        class Accumulator(tf.autodiff.ForwardAccumulator):
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                nonlocal count
                count += 1
                super().__init__(*args, **kwargs)

        vectorized_map = tf.vectorized_map

        def counted_map(function: Callable[..., Any], elements: Any, *args: Any, **kwargs: Any) -> Any:
            nonlocal count
            before = count
            result = vectorized_map(function, elements, *args, **kwargs)
            count = before + (count - before) * len(tf.nest.flatten(elements)[0])  # the function is traced once
            return result

        with (
            mock.patch.object(tf, "GradientTape", Tape),
            mock.patch.object(tf, "vectorized_map", counted_map),
            mock.patch.object(tf.autodiff, "ForwardAccumulator", Accumulator),
        ):
            result = answer(*arguments)
        few = most(*arguments)
        return {name: result, "the number of passes": f"{'at most' if count <= few else 'more than'} {few}"}

    return observe
