"""Case 12, all batches at once."""

import weakref

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import numpy as np
import tensorflow as tf


class _Layer:
    """A loss with one intermediate result, which counts how many of its rows are held at once."""

    def __init__(self):
        self.results, self.most = [], 0

    def __call__(self, w, x):
        hidden = tf.tanh(x * w)
        self.results.append(weakref.ref(hidden))
        held = [result() for result in self.results]
        self.most = max(self.most, sum(len(one) for one in held if one is not None))
        return tf.reduce_sum(hidden**2)


def _observe_memory(answer, w, batches):
    layer = _Layer()
    gradient = answer(layer, w, batches)
    rows = [len(x) for x in batches]
    held = "one or two batches" if layer.most <= 2 * max(rows) else f"{layer.most} of {sum(rows)} rows"
    return {"the gradient": gradient, "what is in memory at once": held}


def _many_batches(random, dtype):
    return [
        (normals(random, dtype, 3), [normals(random, dtype, rows, 3) for rows in sizes])
        for sizes in ((2, 2, 2, 2), (1, 4, 2, 3, 5, 2))
    ]


def _summed_gradient(f, w, batches):
    for x in batches:
        f(w, x)  # no tape: nothing is kept
    hidden = [np.tanh(x * w) for x in batches]
    return tf.constant(
        sum(np.sum(2.0 * h * (1.0 - h**2) * x.numpy(), axis=0) for h, x in zip(hidden, batches, strict=True)), w.dtype
    )


held_batches = Exercise(
    title="Case 12, all batches at once",
    minutes=6,
    hints=(
        "How long does the tape live, and what has it recorded by the end of the loop?",
        "A tape keeps each intermediate result that its backward pass needs, until `gradient` is called. A persistent "
        "tape, or a list of tapes, keeps them too; `stop_recording` and `stop_gradient` lose the gradient.",
        "Gradients of a sum are sums of gradients. Where can `gradient` be called, so that one batch is forgotten "
        "before the next begins?",
        "One tape for each batch: `total += tape.gradient(loss, w)` inside the loop.",
    ),
    checker=Repair(
        reference=_summed_gradient,
        inputs=_many_batches,
        observe=_observe_memory,
        diagnosis=diagnosis(
            "where the tape begins",
            the_sum="`total` is one number. It is the tape that holds what the number was computed from.",
            a_leak="Nothing leaks: all of it is released when `gradient` returns. It is needed until then.",
        ),
    ),
)


@held_batches.starter()
def _():
    cause = ...  # "a leak", "the sum" or "where the tape begins"

    def repaired(f, w, batches):
        with tf.GradientTape() as tape:
            tape.watch(w)
            total = 0.0
            for x in batches:
                total += f(w, x)
        return tape.gradient(total, w)

    return cause, repaired


@held_batches.right
def _():
    """A tape holds the intermediate results that its backward pass needs until that pass. With one tape for each batch,
    a batch is forgotten before the next one begins, and the gradients add up to the same."""
    cause = "where the tape begins"

    def repaired(f, w, batches):
        total = tf.zeros_like(w)
        for x in batches:
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = f(w, x)
            total += tape.gradient(loss, w)
        return total

    return cause, repaired


@held_batches.mistake("last_batch")
def _(f, w, batches):
    """Little memory, and only the last batch's gradient: what came before has been reset, not added."""
    for x in batches:
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = f(w, x)
    return tape.gradient(loss, w)


@held_batches.mistake("averaged")
def _(f, w, batches):
    """Little memory, and a mean where there was a sum."""
    return _summed_gradient(f, w, batches) / len(batches)


@held_batches.mistake("stopped")
def _(f, w, batches):
    """Nothing is held, because nothing is recorded: the zeros are not the gradient."""
    for x in batches:
        f(w, x)
    return tf.zeros_like(w)


@held_batches.wrong("as_before")
def _(f, w, batches):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = f(w, tf.concat(batches, axis=0))
    return tape.gradient(loss, w)


@held_batches.wrong("as_before")
def _(f, w, batches):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        losses = [f(w, x) for x in batches]
    return tf.add_n([tape.gradient(loss, w) for loss in losses])
