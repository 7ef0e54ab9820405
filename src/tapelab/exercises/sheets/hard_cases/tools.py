"""What several of the hard cases share: a loss that counts how often Python runs it."""

import tensorflow as tf


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
