"""Exercises and predictions of notebook 04, Recording control."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction

import tensorflow as tf

block = Prediction(
    "04.block",
    reason="The block runs `y * y`, so `z` is complete. The tape has no record of it, so no path leads from `z` back to `y`.",
    remarks=(
        ([13.0, 4.0, 6.0], "6 is the true derivative. The tape did not see where `y_squared` came from."),
        ([13.0, 4.0, 0.0], "It is `None`, not 0: the tape does not say that `y` has no influence, it knows of none."),
        ([4.0, 4.0, None], "The block still computes. It is only the record that is missing."),
    ),
)

loses_silently = Prediction(
    "04.loses_silently",
    reason="The tape saw only $3x$. Both squares came from inside the block, so to the tape they are constants.",
    remarks=(
        (
            7.0,
            "7 is the true derivative of $z$. The tape differentiates what it recorded, and $x^2$ is not in the record.",
        ),
        (None, "One path is recorded, $3x$, and that is enough for a number. This is why nothing warns you."),
        (4.0, "4 belongs to $x^2$, which is the part that was not recorded."),
    ),
)

factor = Prediction(
    "04.factor",
    reason="One tensor for each layer serves `tanh`; recording the metric keeps three more alive: softmax, logarithm, product.",
    remarks=(
        (2.0, "The metric keeps more than one tensor alive: each of its steps keeps what its own derivative needs."),
    ),
)

after_reset = Prediction(
    "04.after_reset",
    reason="A trainable variable is watched at each use. A tensor is watched because you said so, and `reset` forgets that.",
    options=("v", "t", "both", "neither"),
    remarks=(
        ("both", "`t` was watched before the reset, and `reset` forgets what was watched."),
        ("neither", "`v` needs no `watch`: it is watched again when it is used after the reset."),
        ("t", "It is the other way round: `watch(t)` was forgotten, and `v` never needed it."),
    ),
)


def _observe_metric(answer, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        loss, metric = answer(tape, x)
    return {
        "the loss": loss,
        "the metric": metric,
        "the gradient of the loss": tape.gradient(loss, x),
        "the gradient of the metric": tape.gradient(metric, x),
    }


def _loss_and_metric(tape, x):
    loss = tf.reduce_sum(x**3)
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(x**3))
    return loss, metric


def _records_all(tape, x):
    cube = x**3
    return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))


def _records_nothing(tape, x):
    with tape.stop_recording():
        return _records_all(tape, x)


def _vectors(random, dtype):
    return [
        (tf.constant([1.0, -2.0, 0.5], dtype),),
        (tf.constant(random.normal(size=7), dtype),),
        (tf.constant(random.normal(size=(3, 5)), dtype),),
    ]


metric_off = Exercise(
    "04.metric_off",
    title="A metric that costs no memory",
    minutes=5,
    starter="""
def loss_and_metric(tape, x):
    cube = x**3
    return ...  # the sum of cube, and the largest magnitude in cube


exercises.metric_off.check(loss_and_metric)
""",
    solution_code="""
def loss_and_metric(tape, x):
    cube = x**3
    loss = tf.reduce_sum(cube)
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(cube))
    return loss, metric
""",
    explanation=(
        "The cube belongs to the loss, so it is recorded. The metric may use it: inside the block a recorded tensor is read like any "
        "other, and what is made from it there is a constant to the tape."
    ),
    hints=(
        "`tape.stop_recording()` is a context manager. Which of the three steps (cube, sum, largest magnitude) belongs inside?",
        "What the loss needs must be recorded: the cube and its sum. The other step goes into the block.",
        "`with tape.stop_recording():` and, inside, `metric = tf.reduce_max(tf.abs(cube))`. Return both after the block.",
    ),
    checker=Function(
        reference=_loss_and_metric,
        inputs=_vectors,
        observe=_observe_metric,
        mistakes=(
            Mistake(
                "metric_recorded",
                "Both values are right, and the tape has recorded the metric too: `tape.gradient(metric, x)` is not `None`. "
                "Which call keeps the tape from writing?",
                _records_all,
            ),
            Mistake(
                "loss_not_recorded",
                "Both values are right, and the loss has no gradient any more: every path from it to `x` runs through the block. "
                "Leave in the block only what is never differentiated.",
                _records_nothing,
            ),
            Mistake(
                "mean",
                "The loss is the mean of the cube; the sum is asked for.",
                lambda tape, x: (tf.reduce_mean(x**3), tf.stop_gradient(tf.reduce_max(tf.abs(x**3)))),
            ),
        ),
    ),
    wrong=(
        (
            """
def loss_and_metric(tape, x):
    cube = x**3
    return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))
""",
            "metric_recorded",
        ),
        (
            """
def loss_and_metric(tape, x):
    with tape.stop_recording():
        cube = x**3
        return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))
""",
            "loss_not_recorded",
        ),
        (
            """
def loss_and_metric(tape, x):
    cube = x**3
    with tape.stop_recording():
        metric = tf.reduce_max(tf.abs(cube))
    return tf.reduce_mean(cube), metric
""",
            "mean",
        ),
        (
            """
def loss_and_metric(tape, x):
    with tape.stop_recording():
        cube = x**3
    return tf.reduce_sum(cube), tf.reduce_max(tf.abs(cube))
""",
            "loss_not_recorded",
        ),
        (
            """
def loss_and_metric(tape, x):
    cube = x**3
    with tape.stop_recording():
        metric = tf.reduce_max(cube)
    return tf.reduce_sum(cube), metric
""",
            "values",
        ),
        ("loss_and_metric = 3.0", "not_a_function"),
    ),
)


def _truncated(w, h, steps, keep):
    for _ in range(steps - keep):
        h = tf.tanh(w * h)
    with tf.GradientTape() as tape:
        tape.watch(w)
        for _ in range(keep):
            h = tf.tanh(w * h)
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
    "04.truncated",
    title="Differentiate the last steps only",
    minutes=10,
    beyond=True,
    starter="""
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            h = tf.tanh(w * h)  # something is missing before this line
    return ...  # the gradient of h with respect to w, through the last `keep` steps


exercises.truncated.check(truncated_gradient)
""",
    solution_code="""
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            if step == steps - keep:
                tape.reset()
                tape.watch(w)
            h = tf.tanh(w * h)
    return tape.gradient(h, w)
""",
    explanation=(
        "After the reset, the `h` that comes from the earlier steps is a constant, and `w`, a tensor, must be watched again. This is how "
        "backpropagation through time is truncated: the value runs through all steps, the gradient and the memory only through the last."
    ),
    hints=(
        "When `reset` is called, everything before it is forgotten. Before which step should that happen, if `keep` steps are to be left?",
        "The steps that count are `steps - keep`, …, `steps - 1`. `w` is a tensor: what does section 3 say about watched tensors and `reset`?",
        "`if step == steps - keep:` reset the tape and watch `w` again. After the `with` block: `tape.gradient(h, w)`.",
    ),
    checker=Function(
        reference=_truncated,
        inputs=_loops,
        mistakes=(
            Mistake(
                "all_steps",
                "This is the gradient through all the steps. Nothing was forgotten: where is the reset?",
                lambda w, h, steps, keep: _truncated(w, h, steps, steps),
            ),
            Mistake(
                "one_step_short",
                "This is the gradient through one step fewer than asked. Count which step the reset comes before.",
                lambda w, h, steps, keep: _truncated(w, h, steps, keep - 1),
            ),
            Mistake(
                "one_step_more",
                "This is the gradient through one step more than asked. Count which step the reset comes before.",
                lambda w, h, steps, keep: _truncated(w, h, steps, min(keep + 1, steps)),
            ),
        ),
    ),
    wrong=(
        (
            """
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            h = tf.tanh(w * h)
    return tape.gradient(h, w)
""",
            "all_steps",
        ),
        (
            """
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            if step == steps - keep:
                tape.reset()
            h = tf.tanh(w * h)
    return tape.gradient(h, w)
""",
            "none",
        ),
        (
            """
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            if step == max(steps - keep - 1, 0):
                tape.reset()
                tape.watch(w)
            h = tf.tanh(w * h)
    return tape.gradient(h, w)
""",
            "one_step_more",
        ),
        (
            """
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            h = tf.tanh(w * h)
            if step == steps - keep:
                tape.reset()
                tape.watch(w)
    return tape.gradient(h, w)
""",
            "one_step_short",
        ),
        (
            """
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        for step in range(steps):
            if step == steps - keep:
                tape.watch(h)
            h = tf.tanh(w * h)
    return tape.gradient(h, w)
""",
            "none",
        ),
    ),
)
