"""Case 10, the schedule that nobody follows."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals
from tapelab.exercises.sheets.hard_cases.tools import watched_losses

import tensorflow as tf


def _observe_penalties(answer, w, penalties):
    result, witness = watched_losses(answer, w, penalties)
    traces = ("none", "one", "more than one")[min(witness.traced, 2)]
    return {"the losses": result, "the number of eager runs": witness.eager, "the number of traces": traces}


def _penalties(random, dtype):
    return [
        (normals(random, dtype, 2), [0.0, 1.0, 2.0]),
        (normals(random, dtype, 4), [0.5, 0.25, 0.125, 3.0]),
        (normals(random, dtype, 3), [2.0, 2.0, 0.0]),
    ]


def _penalised(f, w, penalties):
    @tf.function
    def both(w):
        return f(w), tf.reduce_sum(w**2)

    loss, squares = both(w)
    return loss + tf.constant(penalties, w.dtype) * squares


schedule = Exercise(
    title="Case 10, the schedule that nobody follows",
    minutes=6,
    hints=(
        "How often does Python run the body of `loss`? Put a `print` in it.",
        "Python runs it once, to trace it. What it finds in `penalty` then becomes a constant of the graph. Running "
        "everything eagerly would hide that, and cost you the graph.",
        "A tensor that comes in as an argument may change between calls.",
        "`def loss(w, penalty)`, called with `tf.constant(penalty, w.dtype)`.",
    ),
    checker=Repair(
        reference=_penalised,
        inputs=_penalties,
        observe=_observe_penalties,
        diagnosis=diagnosis(
            "how the penalty gets in",
            the_loop="The loop goes through all penalties, and without `tf.function` the losses are right.",
            rounding="The losses agree in every digit, although the penalties are far apart.",
        ),
    ),
)


@schedule.starter()
def _():
    cause = ...  # "how the penalty gets in", "rounding" or "the loop"

    def repaired(f, w, penalties):
        @tf.function
        def loss(w):
            return f(w) + penalty * tf.reduce_sum(w**2)

        losses = []
        for penalty in penalties:
            losses.append(loss(w))
        return tf.stack(losses)

    return cause, repaired


@schedule.right
def _():
    """The first call traces `loss`: Python runs its body once, and a Python number that it meets becomes a constant of
    the graph. Later calls with this `w` run it, and Python's `penalty` is not looked at again. A tensor that comes in
    as an argument is an input of the graph."""
    cause = "how the penalty gets in"

    def repaired(f, w, penalties):
        @tf.function
        def loss(w, penalty):
            return f(w) + penalty * tf.reduce_sum(w**2)

        losses = []
        for penalty in penalties:
            losses.append(loss(w, tf.constant(penalty, w.dtype)))
        return tf.stack(losses)

    return cause, repaired


@schedule.mistake("run_eagerly")
def _(f, w, penalties):
    """The losses are right, because nothing is compiled any more. The switch, or the missing `tf.function`, hides the
    cause."""
    return tf.stack([f(w) + penalty * tf.reduce_sum(w**2) for penalty in penalties])


@schedule.wrong("run_eagerly")
def _(f, w, penalties):
    tf.config.run_functions_eagerly(True)
    loss = tf.function(lambda w: f(w) + penalty * tf.reduce_sum(w**2))
    losses = []
    for penalty in penalties:
        losses.append(loss(w))
    return tf.stack(losses)


@schedule.mistake("a_graph_for_each")
def _(f, w, penalties):
    """The losses are right, and each penalty has a graph of its own: that is case 11. As a tensor the penalty is an
    input of one graph."""
    loss = tf.function(lambda w, penalty: f(w) + penalty * tf.reduce_sum(w**2))
    return tf.stack([loss(w, penalty) for penalty in penalties])


@schedule.wrong("a_graph_for_each")
def _(f, w, penalties):
    losses = []
    for penalty in penalties:
        losses.append(tf.function(lambda w, penalty=penalty: f(w) + penalty * tf.reduce_sum(w**2))(w))
    return tf.stack(losses)


@schedule.mistake("the_last_one")
def _(f, w, penalties):
    """All losses have the last penalty now. Each call was to have its own."""
    return tf.stack([_penalised(f, w, penalties)[-1]] * len(penalties))


@schedule.mistake("penalty_left_out")
def _(f, w, penalties):
    """The penalty has gone missing: this is the loss without it."""
    return tf.stack([_penalised(f, w, [0.0])[0]] * len(penalties))
