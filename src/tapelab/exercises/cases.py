"""What the cases of *First aid* and *Hard cases* share: their diagnosis, and how a gradient is observed."""

from tapelab.exercises import Mistake, Value

import tensorflow as tf


def normals(random, dtype, *shape):
    return tf.constant(random.normal(size=shape), dtype)


def diagnosis(right, **wrong):
    """The cause, and for each other choice what speaks against it. An underscore stands for a space."""
    choices = {name.replace("_", " "): text for name, text in wrong.items()}
    mistakes = tuple(Mistake(f"not {cause}", text, cause) for cause, text in choices.items())
    return Value(right, mistakes=mistakes, options=tuple(sorted((right, *choices))))


def with_gradients(*names, value="the value"):
    """How a function is observed: its result, and the gradients for its first arguments, which have these names."""

    def observe(answer, *arguments):
        sources = arguments[: len(names)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = answer(*arguments)
        parts = (
            dict.fromkeys(names) if result is None else dict(zip(names, tape.gradient(result, sources), strict=True))
        )
        return {value: result, **{f"the gradient of {name}": part for name, part in parts.items()}}

    return observe
