"""Case 11, compiled again, and again."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals
from tapelab.exercises.sheets.hard_cases.tools import watched_losses

import numpy as np
import tensorflow as tf


def _observe_descent(answer, w, rates):
    result, witness = watched_losses(answer, w, rates)
    return {"w": result, "the number of eager runs": witness.eager, "the number of traces": witness.traced}


def _rates(random, dtype):
    return [
        (normals(random, dtype, 2), [0.4, 0.3, 0.2]),
        (normals(random, dtype, 3), [0.1, 0.05, 0.025, 0.0125, 0.2]),
    ]


def _descend(f, w, rates):
    tf.function(f).get_concrete_function(w)  # one trace; the minimum is at 1, and the slope is 2 (w - 1)
    return 1.0 + (w - 1.0) * float(np.prod([1.0 - 2.0 * rate for rate in rates]))


retraced = Exercise(
    title="Case 11, compiled again, and again",
    minutes=6,
    hints=(
        "How often was the loss traced, and for how many steps? What is different from one call to the next?",
        "Each rate, a Python number, got a graph of its own. `reduce_retracing=True` "
        "relaxes shapes, not numbers; running eagerly has no traces because it has no graphs.",
        "What must the rate be, to be an input of the graph?",
        "`step(w, tf.constant(rate, w.dtype))`.",
    ),
    checker=Repair(
        reference=_descend,
        inputs=_rates,
        observe=_observe_descent,
        diagnosis=diagnosis(
            "the argument rate",
            the_tape="A tape inside a compiled function is traced with it, and does no harm.",
            the_argument_w="`w` has one shape throughout.",
        ),
    ),
)


@retraced.starter()
def _():
    cause = ...  # "the argument rate", "the argument w" or "the tape"

    def repaired(f, w, rates):
        @tf.function
        def step(w, rate):
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = f(w)
            return w - rate * tape.gradient(loss, w)

        for rate in rates:
            w = step(w, rate)
        return w

    return cause, repaired


@retraced.right
def _():
    """Each new rate, a Python number, was a constant of a new graph. A tensor is an input: here tensors of one shape
    and dtype share a graph."""
    cause = "the argument rate"

    def repaired(f, w, rates):
        @tf.function
        def step(w, rate):
            with tf.GradientTape() as tape:
                tape.watch(w)
                loss = f(w)
            return w - rate * tape.gradient(loss, w)

        for rate in rates:
            w = step(w, tf.constant(rate, w.dtype))
        return w

    return cause, repaired


def _step(f, w, rate):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = f(w)
    return w - rate * tape.gradient(loss, w)


@retraced.mistake("run_eagerly")
def _(f, w, rates):
    """No traces, because nothing is compiled: every step runs in Python. Silencing the warning this way gives up what
    `tf.function` was for."""
    for rate in rates:
        w = _step(f, w, rate)
    return w


@retraced.wrong("run_eagerly")
def _(f, w, rates):
    tf.config.run_functions_eagerly(True)
    step = tf.function(lambda w, rate: _step(f, w, rate))
    for rate in rates:
        w = step(w, rate)
    return w


@retraced.mistake("frozen_rate")
def _(f, w, rates):
    """One trace, and the first rate for all steps: that is case 10. The rate has to come in as a tensor."""
    step = tf.function(lambda w: _step(f, w, rates[0]))
    for _ in rates:
        w = step(w)
    return w


@retraced.wrong("as_before")
def _(f, w, rates):
    step = tf.function(lambda w, rate: _step(f, w, rate), reduce_retracing=True)
    for rate in rates:
        w = step(w, rate)
    return w


@retraced.wrong("as_before")
def _(f, w, rates):
    for rate in rates:
        w = tf.function(_step)(f, w, tf.constant(rate, w.dtype))
    return w
