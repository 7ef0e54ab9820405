"""What several cases of the clinic share."""

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


class Witness:
    """A loss that counts how often Python ran it, while tracing and eagerly."""

    def __init__(self):
        self.traced = self.eager = 0

    def __call__(self, w):
        if tf.executing_eagerly():
            self.eager += 1
        else:
            self.traced += 1
        return tf.reduce_sum((w - 1.0) ** 2)


def watched_losses(answer, w, numbers):
    witness, eagerly = Witness(), tf.config.functions_run_eagerly()
    try:
        result = answer(witness, w, numbers)
    finally:
        tf.config.run_functions_eagerly(eagerly)  # an answer may have changed it for the whole process
    return result, witness
