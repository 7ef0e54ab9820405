"""Exercises and predictions of the notebook "When the gradient is None"."""

from tapelab.exercises import Exercise, Function, Prediction, compare

import numpy as np
import tensorflow as tf

four_sources = Prediction(
    "when_the_gradient_is_none.four_sources",
    remarks=(
        ([4.0, 6.0, 8.0, 10.0], "All four derivatives exist. The tape has recorded the path to one of them."),
        (
            [4.0, 6.0, None, None],
            "`trainable=False` says that this variable is not to be trained, and the tape takes it at its word.",
        ),
        (
            [4.0, None, 8.0, None],
            "A variable went into the tensor, but before the tape was opened. What it holds is a plain tensor.",
        ),
        (
            [4.0, 6.0, 8.0, None],
            "Neither the non-trainable variable nor the tensor is watched: no one has asked for it.",
        ),
    ),
)

read_out = Prediction(
    "when_the_gradient_is_none.read_out",
    remarks=(
        (6.0, "6 is the true derivative. `float(x)` is a number that Python holds; to the tape it is the constant 3."),
        (None, "The first factor is still `x` itself: one path is whole, and gives a number."),
    ),
)

assigned = Prediction(
    "when_the_gradient_is_none.assigned",
    remarks=(
        (
            [6.0, 6.0],
            "6 is the true derivative for both. An assignment changes what the variable holds, and is not recorded.",
        ),
        ([6.0, None], "It is the other way round: the assignment is not recorded, the reading of `total` after it is."),
        ([None, 0.0], "When `total` is squared it holds 3, not the 0 with which it began."),
    ),
)

same_option = Prediction(
    "when_the_gradient_is_none.same_option",
    remarks=(
        (6.0, "6 is the true derivative. The square was computed after the block had closed."),
        (None, "There is no path, and the option turns this `None` into a zero, too."),
        (1.0, "1 is the slope of `shifted`, which is on the tape. The target is `y`, which is not."),
    ),
)

compiled_twin = Prediction(
    "when_the_gradient_is_none.compiled_twin",
    remarks=(
        (
            [None, None],
            "That is what you would wish for. The tape does not look inside the compiled function: it sees one "
            "operation that has `b` as an input.",
        ),
        (
            [0.0, 0.0],
            "Run eagerly, the two squares are recorded one by one, and neither leads from `b` to $p$: `None`.",
        ),
        ([0.0, None], "It is the other way round: it is the compiled function that hides the missing path."),
    ),
)

blind_walk = Prediction(
    "when_the_gradient_is_none.blind_walk",
    remarks=(
        (
            3,
            "Three lie after the break. But they are computed from a constant that nobody watches, so the tape has not "
            "recorded them.",
        ),
        (0, "This target's gradient with respect to itself is 1, recorded or not."),
        (6, "The third step leaves TensorFlow, so no path leads back to `x`."),
        (
            2,
            "The sum and the square come after the break. Nobody watches what they are computed from, so they are not "
            "recorded.",
        ),
    ),
)


def _numbers(random, dtype, *shape):
    return tf.constant(random.normal(size=shape), dtype)


def _memories(random, dtype):
    shown = tf.constant([1.0, 2.0, -1.0], dtype), tf.constant([3.0, -2.0, 1.0], dtype)
    return [shown, *((_numbers(random, dtype, *shape), _numbers(random, dtype, *shape)) for shape in ((7,), (2, 5)))]


def _observe_memory(answer, average, x):
    average, x = tf.Variable(average, name="average"), tf.Variable(x, name="x")
    with tf.GradientTape() as tape:
        loss = answer(average, x)
    return {"the loss": loss, "the average": average.read_value(), "the gradient of x": tape.gradient(loss, x)}


def _new_average(average, x):
    return 0.9 * average + 0.1 * x


def _with_memory(average, x):
    new = _new_average(average, x)
    average.assign(new)
    return tf.reduce_sum(new**2)


memory = Exercise(
    title="A memory that the tape can follow",
    minutes=5,
    hints=(
        "The starter's first line reads `x` on its way into a variable. What is on the tape when the variable is read "
        "again?",
        "The last example of section 6 has the same cure. Which tensor must the loss be computed from?",
        "Give the new average a name, compute the loss from it, and assign it to the variable as well.",
    ),
    checker=Function(reference=_with_memory, inputs=_memories, observe=_observe_memory),
)


@memory.starter("loss_with_memory")
def _(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return ...  # the sum of the squares of the new average


@memory.right
def _(average, x):
    """The new average has a name of its own, and the loss uses that name: its path to `x` is on the tape. The
    assignment stores a copy of the value beside the path. Reading it back would lose the history."""
    new_average = 0.9 * average + 0.1 * x
    average.assign(new_average)
    return tf.reduce_sum(new_average**2)


@memory.mistake("not_stored")
def _(average, x):
    """Loss and gradient are right, and `average` still holds its old value: the next call will know nothing of this
    `x`."""
    new_average = 0.9 * average + 0.1 * x
    return tf.reduce_sum(new_average**2)


@memory.mistake("updated_twice")
def _(average, x):
    """The average has been updated twice: when the second line runs, the variable holds the new value already."""
    average.assign(0.9 * average + 0.1 * x)
    new_average = 0.9 * average + 0.1 * x
    average.assign(new_average)
    return tf.reduce_sum(new_average**2)


@memory.mistake("used_twice")
def _(average, x):
    """The average that is stored is right. The loss uses one that has been updated twice: when the second line runs,
    the variable holds the new value already."""
    average.assign(0.9 * average + 0.1 * x)
    return tf.reduce_sum((0.9 * average + 0.1 * x) ** 2)


@memory.wrong("none")
def _(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return tf.reduce_sum(average**2)


@memory.wrong("not_stored")
def _(average, x):
    average = 0.9 * average + 0.1 * x
    return tf.reduce_sum(average**2)


@memory.wrong("values")
def _(average, x):
    average.assign_add(0.1 * x)
    return tf.reduce_sum((0.9 * average + 0.1 * x) ** 2)


def _counts(random, dtype):
    def number(value):
        return tf.constant(value, dtype)

    return [
        (tf.constant([0.2, 0.45, 0.6, 1.0], dtype), number(0.5), number(0.1)),
        (_numbers(random, dtype, 7), number(0.0), number(0.5)),
        (_numbers(random, dtype, 3, 5), number(-0.3), number(2.0)),
    ]


def _observe_counts(answer, x, threshold, width):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        returned = answer(x, threshold, width)
    if type(returned) not in (tuple, list) or len(returned) != 2:
        raise TypeError(f"two_counts returned {compare.describe(returned)}; expected two scalars: smooth, straight")
    smooth, straight = returned
    return {
        "smooth": smooth,
        "the gradient of smooth": tape.gradient(smooth, x),
        "straight": straight,
        "the gradient of straight": tape.gradient(straight, x),
    }


def _hard(x, threshold):
    return tf.reduce_sum(tf.cast(x > threshold, x.dtype))


def _smooth(x, threshold, width):
    return tf.reduce_sum(tf.sigmoid((x - threshold) / width))


def _counted(x, threshold, width):
    """The gradient in closed form."""

    @tf.custom_gradient
    def straight(x):
        part = 1.0 / (1.0 + tf.exp((threshold - x) / width))
        return _hard(x, threshold), lambda upstream: upstream * part * (1.0 - part) / width

    return _smooth(x, threshold, width), straight(x)


two_counts = Exercise(
    title="A count that can be trained, two ways",
    minutes=10,
    beyond=True,
    hints=(
        "For the stand-in: which smooth function climbs from 0 to 1, with its middle at 0? "
        "Shift it to the threshold and stretch it by the width.",
        "For the other: `straight` must be `smooth` plus something, so that the gradient of `smooth` is in it. What "
        "must be added to get the value of `hard`?",
        "What is added must have no gradient of its own. The cure of section 2 has the pattern: `tf.stop_gradient(t)` "
        "has "
        "the value of `t`, and is a constant to the tape.",
    ),
    checker=Function(reference=_counted, inputs=_counts, observe=_observe_counts),
)


@two_counts.starter("two_counts")
def _(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = ...  # a stand-in for hard
    straight = ...  # the value of hard, the gradient of smooth
    return smooth, straight


@two_counts.right
def _(x, threshold, width):
    """The value of `straight` is `smooth` plus what is missing to `hard`. What is missing is a constant to the tape, so
    the gradient is that of `smooth` alone. The smooth way trains a count that is not quite the count; the
    straight-through way keeps the count, and trains along a slope that is not quite its own."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    straight = smooth + tf.stop_gradient(hard - smooth)
    return smooth, straight


@two_counts.mistake("cancelled")
def _(x, threshold, width):
    """All values are right, and the gradient of `straight` is zero: what was added and taken away again cancels in the
    gradient, too. One of the two must be a constant to the tape."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, hard + smooth - smooth


@two_counts.mistake("exchanged")
def _(x, threshold, width):
    """The roles in `straight` are exchanged: its value is that of `smooth`, and the count, which has no gradient, is
    what stands outside the cut."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    straight = hard + tf.stop_gradient(smooth - hard)
    return smooth, straight


@two_counts.mistake("swapped")
def _(x, threshold, width):
    """Both are right, in the other order: `smooth` is to come first."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    straight = smooth + tf.stop_gradient(hard - smooth)
    return straight, smooth


@two_counts.mistake("sum_of_both")
def _(x, threshold, width):
    """The gradient of `straight` is right. Its value is that of `hard` and `smooth` together. What must be taken off,
    and how does it stay out of the gradient?"""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, smooth + tf.stop_gradient(hard)


@two_counts.mistake("smooth_twice")
def _(x, threshold, width):
    """`straight` is `smooth` once more. Its gradient is right; its value should be the count."""
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, smooth


@two_counts.mistake("times_width")
def _(x, threshold, width):
    """The distance is multiplied by the width. A wider step should be less steep."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) * width))
    return smooth, smooth + tf.stop_gradient(hard - smooth)


@two_counts.mistake("falling")
def _(x, threshold, width):
    """`smooth` falls where `hard` climbs: it counts the entries below the threshold."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((threshold - x) / width))
    return smooth, smooth + tf.stop_gradient(hard - smooth)


@two_counts.mistake("without_width")
def _(x, threshold, width):
    """`smooth` has the width 1, whatever `width` is."""
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid(x - threshold))
    return smooth, smooth + tf.stop_gradient(hard - smooth)


@two_counts.wrong("raised:TypeError")
def _(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth + tf.stop_gradient(hard - smooth)


@two_counts.wrong("none")
def _(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, hard


@two_counts.wrong("sign")
def _(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, tf.stop_gradient(hard + smooth) - smooth


@two_counts.wrong("one_dtype")
def _(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, tf.float32))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, smooth + tf.stop_gradient(hard - smooth)


def _on_arrays(function):
    """The function, applied to what `.numpy()` gives: the explaining tape sees a tensor leave by that door."""
    return lambda values: function(values.numpy() if tf.is_tensor(values) else values)


def _gaps(random, dtype):
    return [
        (tf.constant([0.3, 0.7], dtype), _on_arrays(np.exp), _on_arrays(np.exp)),
        (_numbers(random, dtype, 7), _on_arrays(np.sin), _on_arrays(np.cos)),
        (_numbers(random, dtype, 3, 5), _on_arrays(np.square), _on_arrays(lambda values: 2.0 * values)),
    ]


def _across(x, simulate, slope):
    h = tf.tanh(x)
    return 2.0 * simulate(h) * slope(h) * (1.0 - h**2)


def _recorded(x, simulate, watched=True):
    """What the starter records, for wrong answers; `watched` says whether the tape watches s."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        if watched:
            tape.watch(s)
        loss = tf.reduce_sum(s**2)
    return tape, h, s, loss


bridge = Exercise(
    title="Across the gap",
    minutes=15,
    beyond=True,
    hints=(
        "The chain has three links: from `loss` back to `s`, from `s` to `h`, from `h` to `x`. Which of them can the "
        "tape give, and which one can you?",
        "The tape records from `s` on if it is told to *watch* `s`, as section 1 does. `slope(h)` is the link that "
        "the tape does not have.",
        "`output_gradients` (notebook 01) starts the backward pass with a gradient of yours in place of the ones. Ask "
        "for the "
        "gradient of `h` with respect to `x`, and start with what has arrived at `h`: that is "
        "`tape.gradient(loss, s)` times `slope(h)`.",
    ),
    checker=Function(reference=_across, inputs=_gaps),
)


@bridge.starter("gradient_across")
def _(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))  # leaves TensorFlow
        loss = tf.reduce_sum(s**2)
    return ...  # the gradient of loss with respect to x


@bridge.right
def _(x, simulate, slope):
    """The tape has two pieces of the chain, one on each side of the gap. You carry the gradient across by hand: what
    arrives at `s`, times the slope of the simulation, is what leaves from `h`, and `output_gradients` hands it to the
    second piece. `tf.custom_gradient` (notebook 07) puts the same product on the tape."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        tape.watch(s)
        loss = tf.reduce_sum(s**2)
    upstream = tape.gradient(loss, s)
    return tape.gradient(h, x, output_gradients=upstream * slope(h))


@bridge.mistake("slope_left_out")
def _(x, simulate, slope):
    """The two pieces on the tape are joined as if the simulation returned its input. One link of the chain is missing:
    how fast does `s` change with `h`?"""
    tape, h, s, loss = _recorded(x, simulate)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s))


@bridge.mistake("upstream_left_out")
def _(x, simulate, slope):
    """This is the gradient of the sum of `s`. The loss is the sum of the *squares*: what is the loss's gradient with
    respect to `s`?"""
    tape, h, s, loss = _recorded(x, simulate, watched=False)
    return tape.gradient(h, x) * slope(h)


@bridge.mistake("up_to_h")
def _(x, simulate, slope):
    """This is the gradient with respect to `h`. One more link leads to `x`."""
    tape, h, s, loss = _recorded(x, simulate)
    return tape.gradient(loss, s) * slope(h)


@bridge.mistake("nothing_carried")
def _(x, simulate, slope):
    """This is the gradient of the sum of `h`: nothing has been carried across. Is what you give to `output_gradients` a
    tensor, or `None`? The tape records from `s` on if it watches `s`."""
    tape, h, s, loss = _recorded(x, simulate, watched=False)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s))


@bridge.mistake("slope_at_s")
def _(x, simulate, slope):
    """The slope was taken at `s`, which is what comes out of the simulation. It belongs to what goes in."""
    tape, h, s, loss = _recorded(x, simulate)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s) * slope(s))


@bridge.mistake("slope_at_x")
def _(x, simulate, slope):
    """The slope was taken at `x`. What goes into the simulation?"""
    tape, h, s, loss = _recorded(x, simulate)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s) * slope(x))


@bridge.wrong("none")
def _(x, simulate, slope):
    tape, h, s, loss = _recorded(x, simulate, watched=False)
    return tape.gradient(loss, x)


@bridge.wrong("zeros")
def _(x, simulate, slope):
    tape, h, s, loss = _recorded(x, simulate, watched=False)
    return tape.gradient(loss, x, unconnected_gradients="zero")
