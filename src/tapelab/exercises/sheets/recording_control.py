"""Exercises and predictions of the notebook "Recording control"."""

import weakref

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.explain import ExplainTape
from tapelab.explain.ground import log
from tapelab.graphs import walks

import tensorflow as tf

block = Prediction(
    "recording_control.block",
    remarks=(
        ([13.0, 4.0, 6.0], "6 is the true derivative. The tape did not see where `y_squared` came from."),
        ([13.0, 4.0, 0.0], "It is `None`, not 0: the tape does not say that `y` has no influence, it knows of none."),
        ([4.0, 4.0, None], "The block still computes. It is only the record that is missing."),
    ),
)

size_in_block = Prediction(
    "recording_control.size_in_block",
    remarks=(
        (
            -2.0,
            "−2 is the true derivative of $z$. The tape differentiates what it recorded, and to it the divisor is the "
            "constant 4.",
        ),
        (None, "One path is recorded, through $8x$, and that is enough for a number."),
        (8.0, "8 is the slope of the numerator. The divisor is a constant to the tape, and it still divides."),
        (-4.0, "−4 is what the divisor contributes, and the tape has not seen it."),
    ),
)

factor = Prediction(
    "recording_control.factor",
    remarks=(
        (
            2.5,
            "2.5 compares the tensors that are *made*, five with two. Of the two that a layer makes, which one does "
            "the "
            "derivative of `tanh` need?",
        ),
        (2.0, "The metric keeps more than one tensor alive: the softmax, the logarithm and their product."),
    ),
)

after_reset = Prediction(
    "recording_control.after_reset",
    options=("v", "t", "both", "neither"),
    remarks=(
        ("both", "`t` was watched before the reset, and `reset` forgets what was watched."),
        ("neither", "`v` needs no `watch`: it is watched again when it is used after the reset."),
        ("t", "It is the other way round: `watch(t)` was forgotten, and `v` never needed it."),
    ),
)


def _recorded_for_nothing(tape, loss):
    """How many of the operations that an `ExplainTape` recorded do not lead to the loss."""
    made_by = {key: event for event in tape.log.events for key in event.outputs}
    leading = walks.reachable(log.keys_of(loss), lambda key: made_by[key].inputs if key in made_by else ())
    return sum(event.unrecorded is None and leading.isdisjoint(event.outputs) for event in tape.log.events)


def _observe_metric(answer, x):
    with ExplainTape(persistent=True) as tape:
        tape.watch(x)
        loss, metric = answer(tape, x)
    return {
        "the loss": loss,
        "the metric": metric,
        "the gradient of the loss": tape.gradient(loss, x),
        "the gradient of the metric": tape.gradient(metric, x) if tf.is_tensor(metric) else None,
        "recorded operations that the loss does not need": f"{_recorded_for_nothing(tape, loss)}",
        "operations that read x": sum(log.keys_of(x)[0] in event.inputs for event in tape.log.events),
    }


def _loss_and_metric(tape, x):
    cube = x**3
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(cube))
    return tf.reduce_sum(cube), metric


def _vectors(random, dtype):
    return [
        (tf.constant([1.0, -2.0, 0.5], dtype),),
        (tf.constant(random.normal(size=7), dtype),),
        (tf.constant(random.normal(size=(3, 5)), dtype),),
    ]


metric_off = Exercise(
    title="A metric off the tape",
    minutes=5,
    hints=(
        "`tape.stop_recording()` is a context manager. Which of the three steps (cube, sum, largest magnitude) "
        "belongs inside?",
        "What the loss needs must be recorded: the cube and its sum. The other step goes into the block.",
        "`with tape.stop_recording():` and, inside, `metric = tf.reduce_max(tf.abs(cube))`. Return both after the "
        "block.",
    ),
    checker=Function(reference=_loss_and_metric, inputs=_vectors, observe=_observe_metric),
)


@metric_off.starter("loss_and_metric")
def _(tape, x):
    cube = x**3
    return ...  # the sum of cube, and the largest magnitude in cube


@metric_off.right
def _(tape, x):
    """The cube belongs to the loss, so it is recorded. The metric may use it: inside the block a recorded tensor is
    read like any other."""
    cube = x**3
    loss = tf.reduce_sum(cube)
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(cube))
    return loss, metric


@metric_off.mistake("metric_recorded")
def _(tape, x):
    """Both values are right, and the tape has recorded the metric too: `tape.gradient(metric, x)` is not `None`. Which
    call keeps the tape from writing?"""
    cube = x**3
    return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))


@metric_off.mistake("cut_after")
def _(tape, x):
    """The values and gradients are right, and the tape has recorded the metric all the same. A cut after the operations
    leaves them on the tape. Which call keeps the tape from writing?"""
    cube = x**3
    return tf.reduce_sum(cube), tf.stop_gradient(tf.reduce_max(tf.abs(cube)))


@metric_off.mistake("loss_not_recorded")
def _(tape, x):
    """Both values are right, and the loss has no gradient any more: no recorded path leads from it to `x`. Leave in the
    block only what the loss does not need, and cut nothing else."""
    with tape.stop_recording():
        cube = x**3
        return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))


@metric_off.mistake("cubed_twice")
def _(tape, x):
    """All numbers are right, and `x` was read more than once. Inside the block you may read what was recorded
    before it."""
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(x**3))
    return tf.reduce_sum(x**3), metric


@metric_off.mistake("mean")
def _(tape, x):
    """The loss is the mean of the cube; the sum is asked for."""
    cube = x**3
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(cube))
    return tf.reduce_mean(cube), metric


@metric_off.wrong("values")
def _(tape, x):
    cube = x**3
    with tape.stop_recording():
        metric = tf.reduce_max(cube)
    return tf.reduce_sum(cube), metric


metric_off.wrong("not_a_function")(3.0)


def _observe_truncated(answer, w, h, steps, keep):
    states, early = [], 0

    def step(w, h):
        nonlocal early
        early = sum(state() is not None for state in states[: max(steps - keep - 1, 0)])
        made = tf.tanh(w * h)
        states.append(weakref.ref(made))
        return made

    found = answer(step, w, h, steps, keep)
    return {
        "the gradient": found,
        "calls of step": len(states),
        "early states still in memory at the last step": early,
    }


def _truncated(step, w, h, steps, keep):
    for _ in range(steps - keep):
        h = step(w, h)
    with tf.GradientTape() as tape:
        tape.watch(w)
        for _ in range(keep):
            h = step(w, h)
    return tape.gradient(h, w)


def _loops(random, dtype):
    def number(value):
        return tf.constant(value, dtype)

    return [
        (number(1.5), number(0.5), 5, 2),
        (number(0.8), number(-1.0), 6, 1),
        (number(random.uniform(1.0, 2.0)), number(0.3), 4, 4),
    ]


truncated = Exercise(
    title="Differentiate the last steps only",
    minutes=10,
    beyond=True,
    hints=(
        "When `reset` is called, the tape forgets what it recorded. Before which step should that happen, if `keep` "
        "steps are to be left?",
        "The steps that count are `steps - keep`, …, `steps - 1`. `w` is a tensor: what does section 3 say about "
        "watched tensors and `reset`?",
        "`if number == steps - keep:` reset the tape and watch `w` again. After the `with` block: "
        "`tape.gradient(h, w)`.",
    ),
    checker=Function(reference=_truncated, inputs=_loops, observe=_observe_truncated),
)


@truncated.starter("truncated_gradient")
def _(step, w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            h = step(w, h)  # something is missing before this line
    return ...  # the gradient of h with respect to w, through the last `keep` steps


@truncated.right
def _(step, w, h, steps, keep):
    """To the tape the `h` from the earlier steps is a constant. After a reset `w`, a tensor, must be watched again.
    The value runs through all steps, the gradient only through the last `keep`."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            if number == steps - keep:
                tape.reset()
                tape.watch(w)
            h = step(w, h)
    return tape.gradient(h, w)


@truncated.mistake("early_states_kept")
def _(step, w, h, steps, keep):
    """The gradient is right, and early states are still in memory at the last step. Does a list of yours hold them? Or
    the tape? `tf.stop_gradient` would leave its record as it is. Which method empties it?"""
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            if number == steps - keep:
                h = tf.stop_gradient(h)
            h = step(w, h)
    return tape.gradient(h, w)


@truncated.wrong("early_states_kept")
def _(step, w, h, steps, keep):
    states = [h]
    for _ in range(steps - keep):
        states.append(step(w, states[-1]))
    return _truncated(step, w, states[-1], keep, keep)


@truncated.mistake("all_steps")
def _(step, w, h, steps, keep):
    """This is the gradient through all the steps. The first ones are to be forgotten: where is the reset?"""
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            h = step(w, h)
    return tape.gradient(h, w)


@truncated.mistake("one_step_short")
def _(step, w, h, steps, keep):
    """This is the gradient through one step fewer than asked. Count which step the window begins with."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            h = step(w, h)
            if number == steps - keep:
                tape.reset()
                tape.watch(w)
    return tape.gradient(h, w)


@truncated.mistake("one_step_more")
def _(step, w, h, steps, keep):
    """This is the gradient through one step more than asked. Count which step the window begins with."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            if number == max(steps - keep - 1, 0):
                tape.reset()
                tape.watch(w)
            h = step(w, h)
    return tape.gradient(h, w)


@truncated.mistake("first_steps_left_out")
def _(step, w, h, steps, keep):
    """This leaves out the first `keep` steps. How many are to be left out, if the last `keep` are to be left?"""
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            if number == min(keep, steps - 1):
                tape.reset()
                tape.watch(w)
            h = step(w, h)
    return tape.gradient(h, w)


@truncated.wrong("none")
def _(step, w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            if number == steps - keep:
                tape.reset()
            h = step(w, h)
    return tape.gradient(h, w)


@truncated.wrong("none")
def _(step, w, h, steps, keep):
    with tf.GradientTape() as tape:
        for number in range(steps):
            if number == steps - keep:
                tape.watch(h)
            h = step(w, h)
    return tape.gradient(h, w)
