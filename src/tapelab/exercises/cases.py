"""What the cases of *First aid* and *Hard cases* share: their diagnosis, and how a gradient is observed."""

from collections.abc import Callable
from typing import Any

from tapelab.exercises import Mistake, Value

import numpy as np
import tensorflow as tf


def normals(random: np.random.Generator, dtype: tf.DType, *shape: int) -> tf.Tensor:
    """Normal random numbers, a tensor of that shape."""
    return tf.constant(random.normal(size=shape), dtype)


def diagnosis(right: str, **wrong: str) -> Value:
    """The cause, and for each other choice what speaks against it. An underscore stands for a space."""
    choices = {name.replace("_", " "): text for name, text in wrong.items()}
    mistakes = tuple(Mistake(f"not {cause}", text, cause) for cause, text in choices.items())
    return Value(right, mistakes=mistakes, options=tuple(sorted((right, *choices))))


def with_gradients(*names: str, value: str = "the value") -> Callable[..., dict[str, Any]]:
    """How a function is observed: its result, and the gradients for its first arguments, which have these names."""

    def observe(answer: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        sources = arguments[: len(names)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = answer(*arguments)
        parts = (
            dict.fromkeys(names) if result is None else dict(zip(names, tape.gradient(result, sources), strict=True))
        )
        return {value: result, **{f"the gradient of {name}": part for name, part in parts.items()}}

    return observe
