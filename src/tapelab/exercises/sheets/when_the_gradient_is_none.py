"""Exercises and predictions of notebook 03, When the gradient is None."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, compare

import numpy as np
import tensorflow as tf

four_sources = Prediction(
    "03.four_sources",
    reason=(
        "A tape watches *trainable variables* by itself, and nothing else. `tf.constant` makes a tensor like any other; the sum of a variable and a number is a "
        "tensor too, even though a variable went into it."
    ),
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
    "03.read_out",
    reason="One path is cut and the other is whole, so there is no `None` to warn you: the gradient is that of $3x$.",
    remarks=(
        (6.0, "6 is the true derivative. `float(x)` is a number that Python holds; to the tape it is the constant 3."),
        (None, "The first factor is still `x` itself, and one whole path is enough for a number."),
    ),
)

through_an_integer = Prediction(
    "03.through_an_integer",
    reason="The cast to an integer cuts off the fraction: 2, and its square is 4. Integers carry no gradient, so the path ends at the cast.",
    remarks=(
        ([7.29, 5.4], "The integer has no room for the 0.7, and none for a derivative."),
        ([4.0, 4.0], "4 would be the slope at 2. The tape cannot pass the integer on its way back."),
        (
            [4.0, 0.0],
            "The staircase has slope 0 between its steps, but that is not what the tape says: it finds no path.",
        ),
        ([9.0, None], "`tf.cast` cuts the fraction off; it does not round."),
    ),
)

assigned = Prediction(
    "03.assigned",
    reason="The value arrived, its history did not. To the tape, `total` is a source that holds 3.",
    remarks=(
        (
            [6.0, 6.0],
            "6 is the true derivative for both. An assignment changes what the variable holds, and is not recorded.",
        ),
        ([6.0, None], "It is the other way round: the assignment is not recorded, the reading of `total` after it is."),
        ([None, 0.0], "When `total` is squared it holds 3, not the 0 with which it began."),
    ),
)

hidden_mistake = Prediction(
    "03.hidden_mistake",
    reason=(
        'A zero that means "you forgot something" looks like a zero that means "you have reached a minimum". Ask for zeros where you *know* that some pairs are '
        "unconnected, as in the blocks of a Hessian. Everywhere else `None` is the better answer: it stops you."
    ),
    remarks=(
        (6.0, "6 is the true derivative. The square was computed after the block had closed."),
        (None, "There is no path, and the option turns every `None` into zeros, whatever the cause."),
        (1.0, "1 is the slope of `shifted`, which is on the tape. The target is `y`, which is not."),
    ),
)

compiled_twin = Prediction(
    "03.compiled_twin",
    reason=(
        "A tape records a call of a `tf.function` as *one* operation. Its backward pass takes an upstream gradient for every output: 1 for $p$, and for $q$, which the "
        "target does not use, 0. That zero travels from $q$ to $b$ and comes out as a number."
    ),
    remarks=(
        (
            [None, None],
            "That is what you would wish for. The tape does not look inside the compiled function: it sees one operation that has `b` as an input.",
        ),
        (
            [0.0, 0.0],
            "Run eagerly, every operation is recorded by itself, and none leads from `b` to $p$: no path is `None`.",
        ),
        ([0.0, None], "It is the other way round: it is the compiled function that hides the missing path."),
    ),
)

blind_walk = Prediction(
    "03.blind_walk",
    reason=(
        "The target's gradient with respect to itself, which is 1, and nothing else. Everything after the break is computed from a constant, so the tape did not record it either."
    ),
    remarks=(
        (
            3,
            "Three lie after the break. But they are computed from a constant that nobody watches, so the tape has not recorded them.",
        ),
        (0, "The target's gradient with respect to itself exists always."),
        (6, "The third step leaves TensorFlow, so no path leads back to `x`."),
        (
            2,
            "The sum and the square come after the break. Nobody watches what they are computed from, so they are not recorded.",
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


def _updated_twice(average, x):
    average.assign(_new_average(average, x))
    return _with_memory(average, x)


def _used_twice(average, x):
    average.assign(_new_average(average, x))
    return tf.reduce_sum(_new_average(average, x) ** 2)


memory = Exercise(
    "03.memory",
    title="A memory that the tape can follow",
    minutes=5,
    starter="""
def loss_with_memory(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return ...  # the sum of the squares of the new average


exercises.memory.check(loss_with_memory)
""",
    solution_code="""
def loss_with_memory(average, x):
    new_average = 0.9 * average + 0.1 * x
    average.assign(new_average)
    return tf.reduce_sum(new_average**2)
""",
    explanation=(
        "The new average has a name of its own, and the loss uses that name: its path to `x` is on the tape. The assignment stores a copy of the value beside the path. Reading it back would "
        "lose the history."
    ),
    hints=(
        "The starter's first line reads `x` on its way into a variable. What is on the tape when the variable is read again?",
        "The last example of section 4 has the same cure. Which tensor must the loss be computed from?",
        "Give the new average a name, compute the loss from it, and assign it to the variable as well.",
    ),
    checker=Function(
        reference=_with_memory,
        inputs=_memories,
        observe=_observe_memory,
        mistakes=(
            Mistake(
                "not_stored",
                "Loss and gradient are right, and `average` still holds its old value: the next call will know nothing of this `x`.",
                lambda average, x: tf.reduce_sum(_new_average(average, x) ** 2),
            ),
            Mistake(
                "updated_twice",
                "The average has been updated twice: when the second line runs, the variable holds the new value already.",
                _updated_twice,
            ),
            Mistake(
                "used_twice",
                "The average that is stored is right. The loss uses one that has been updated twice: when the second line runs, the variable holds the new value already.",
                _used_twice,
            ),
        ),
    ),
    wrong=(
        (
            """
def loss_with_memory(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return tf.reduce_sum(average**2)
""",
            "none",
        ),
        (
            """
def loss_with_memory(average, x):
    new_average = 0.9 * average + 0.1 * x
    return tf.reduce_sum(new_average**2)
""",
            "not_stored",
        ),
        (
            """
def loss_with_memory(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return tf.reduce_sum((0.9 * average + 0.1 * x) ** 2)
""",
            "used_twice",
        ),
        (
            """
def loss_with_memory(average, x):
    average.assign(0.9 * average + 0.1 * x)
    new_average = 0.9 * average + 0.1 * x
    average.assign(new_average)
    return tf.reduce_sum(new_average**2)
""",
            "updated_twice",
        ),
        (
            """
def loss_with_memory(average, x):
    average = 0.9 * average + 0.1 * x
    return tf.reduce_sum(average**2)
""",
            "not_stored",
        ),
        (
            """
def loss_with_memory(average, x):
    average.assign_add(0.1 * x)
    return tf.reduce_sum((0.9 * average + 0.1 * x) ** 2)
""",
            "values",
        ),
    ),
)


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


def _cancelled(x, threshold, width):
    smooth = _smooth(x, threshold, width)
    return smooth, _hard(x, threshold) + smooth - smooth


def _sum_of_both(x, threshold, width):
    smooth = _smooth(x, threshold, width)
    return smooth, _hard(x, threshold) + smooth


def _smooth_twice(x, threshold, width):
    return (_smooth(x, threshold, width),) * 2


def _times_width(x, threshold, width):
    return _counted(x, threshold, 1.0 / width)


def _falling(x, threshold, width):
    smooth = _smooth(x, threshold, -width)
    return smooth, smooth + tf.stop_gradient(_hard(x, threshold) - smooth)


def _without_width(x, threshold, width):
    return _counted(x, threshold, tf.ones_like(width))


two_counts = Exercise(
    "03.two_counts",
    title="A count that can be trained, two ways",
    minutes=10,
    beyond=True,
    starter="""
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = ...  # a stand-in for hard
    straight = ...  # the value of hard, the gradient of smooth
    return smooth, straight


exercises.two_counts.check(two_counts)
""",
    solution_code="""
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    straight = smooth + tf.stop_gradient(hard - smooth)
    return smooth, straight
""",
    explanation=(
        "The value of `straight` is `smooth` plus what is missing to `hard`. What is missing is a constant to the tape, so the gradient is that of `smooth` alone. The smooth way "
        "trains a count that is not quite the count; the straight-through way keeps the count, and trains along a slope that is not quite its own."
    ),
    hints=(
        "For the stand-in: which smooth function climbs from 0 to 1 around 0, and does so over a distance of about 1? Shift it to the threshold and stretch it by the width.",
        "For the other: `straight` must be `smooth` plus something, so that the gradient of `smooth` is in it. What must be added to get the value of `hard`?",
        "What is added must have no gradient of its own. Section 6 says what to look for, and the fix that `explain` prints in section 10 for a cast or a rounding has the pattern: `tf.stop_gradient(t)` has the value of `t`, and is a constant to the tape.",
    ),
    checker=Function(
        reference=_counted,
        inputs=_counts,
        observe=_observe_counts,
        mistakes=(
            Mistake(
                "cancelled",
                "All values are right, and the gradient of `straight` is zero: what was added and taken away again cancels in the gradient, too. One of the two must be a constant to the tape.",
                _cancelled,
            ),
            Mistake(
                "exchanged",
                "The roles in `straight` are exchanged: its value is that of `smooth`, and the count, which has no gradient, is what stands outside the cut.",
                lambda x, threshold, width: (
                    _smooth(x, threshold, width),
                    tf.stop_gradient(_smooth(x, threshold, width)),
                ),
            ),
            Mistake(
                "swapped",
                "Both are right, in the other order: `smooth` is to come first.",
                lambda x, threshold, width: _counted(x, threshold, width)[::-1],
            ),
            Mistake(
                "sum_of_both",
                "The gradient of `straight` is right. Its value is that of `hard` and `smooth` together. What must be taken off, and how does it stay out of the gradient?",
                _sum_of_both,
            ),
            Mistake(
                "smooth_twice",
                "`straight` is `smooth` once more. Its gradient is right; its value should be the count.",
                _smooth_twice,
            ),
            Mistake(
                "times_width",
                "The distance is multiplied by the width. A wider step should be less steep.",
                _times_width,
            ),
            Mistake(
                "falling",
                "`smooth` falls where `hard` climbs: it counts the entries below the threshold.",
                _falling,
            ),
            Mistake(
                "without_width",
                "`smooth` has the width 1, whatever `width` is.",
                _without_width,
            ),
        ),
    ),
    wrong=(
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    straight = hard + tf.stop_gradient(smooth - hard)
    return smooth, straight
""",
            "exchanged",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    straight = smooth + tf.stop_gradient(hard - smooth)
    return straight, smooth
""",
            "swapped",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth + tf.stop_gradient(hard - smooth)
""",
            "raised:TypeError",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, hard
""",
            "none",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, hard + smooth - smooth
""",
            "cancelled",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, smooth + tf.stop_gradient(hard)
""",
            "sum_of_both",
        ),
        (
            """
def two_counts(x, threshold, width):
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, smooth
""",
            "smooth_twice",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) * width))
    return smooth, smooth + tf.stop_gradient(hard - smooth)
""",
            "times_width",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((threshold - x) / width))
    return smooth, smooth + tf.stop_gradient(hard - smooth)
""",
            "falling",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid(x - threshold))
    return smooth, smooth + tf.stop_gradient(hard - smooth)
""",
            "without_width",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, tf.stop_gradient(hard + smooth) - smooth
""",
            "sign",
        ),
        (
            """
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, tf.float32))
    smooth = tf.reduce_sum(tf.sigmoid((x - threshold) / width))
    return smooth, smooth + tf.stop_gradient(hard - smooth)
""",
            "one_dtype",
        ),
    ),
)


def _probabilities(random, dtype):
    def rows(values):
        values = np.asarray(values)
        return (tf.constant(values / values.sum(axis=1, keepdims=True), dtype),)

    random_rows = random.uniform(0.1, 1.0, (7, 6))
    random_rows[[0, 2, 3], [1, 5, 5]] = 0.0
    return [rows([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), rows(random_rows), rows([[0.0, 0.0, 0.0, 1.0]])]


def _observe_entropy(answer, p):
    with tf.GradientTape() as tape:
        tape.watch(p)
        entropies = answer(p)
    return {"the entropies": entropies, "the gradient": tape.gradient(entropies, p)}


@tf.custom_gradient
def _entropy(p):
    """Value and gradient in closed form, with NumPy."""
    present = p.numpy() > 0
    log_p = np.log(np.where(present, p, 1.0)).astype(p.dtype.as_numpy_dtype)
    slope = np.where(present, -(log_p + 1.0), 0.0).astype(log_p.dtype)
    return tf.constant(-np.sum(p * log_p, axis=1)), lambda upstream: upstream[:, None] * slope


def _choice_after_log(p):
    return -tf.reduce_sum(tf.where(p > 0.0, p * tf.math.log(p), 0.0), axis=1)


entropy = Exercise(
    "03.entropy",
    title="Nothing times minus infinity",
    minutes=8,
    starter="""
def entropy(p):
    return ...  # the entropy of each row of p


exercises.entropy.check(entropy)
""",
    solution_code="""
def entropy(p):
    safe = tf.where(p > 0.0, p, 1.0)
    return -tf.reduce_sum(p * tf.math.log(safe), axis=1)
""",
    explanation=(
        "The choice is made before the logarithm, so no infinity arises on the way forwards, and nothing multiplies one on the way back: `tf.where` sends a zero to the side that was not "
        "chosen, and $0 \\cdot \\infty$ is NaN. `-tf.reduce_sum(tf.math.xlogy(p, p), axis=1)` is right, too: that operation was made for this."
    ),
    hints=(
        "What are the value and the derivative of $p \\ln p$ at 0, as floating-point arithmetic finds them? Which factor is to blame?",
        "`safe_norm` in section 8 has the same difficulty with a root. Where does it make its choice?",
        "Give the logarithm something harmless wherever `p` is 0: `tf.where(p > 0.0, p, 1.0)`. The factor `p` outside stays as it is.",
    ),
    checker=Function(
        reference=_entropy,
        inputs=_probabilities,
        observe=_observe_entropy,
        axes=("row", "class"),
        mistakes=(
            Mistake(
                "choice_after_log",
                "The entropies are right, and the gradient is NaN wherever `p` is 0. The choice comes too late: the logarithm of 0 has been taken, and playback multiplies its "
                "infinite slope by 0.",
                _choice_after_log,
            ),
            Mistake(
                "no_choice",
                "$0 \\cdot \\ln 0$ is NaN, in the value and in the gradient. The entropy of a row with a zero in it should be that of the row without it.",
                lambda p: -tf.reduce_sum(p * tf.math.log(p), axis=1),
            ),
            Mistake(
                "all_rows",
                "This is the sum over all rows. Each row has an entropy of its own.",
                lambda p: tf.reduce_sum(_entropy(p)),
            ),
        ),
    ),
    wrong=(
        (
            """
def entropy(p):
    return -tf.reduce_sum(tf.where(p > 0.0, p * tf.math.log(p), 0.0), axis=1)
""",
            "choice_after_log",
        ),
        (
            """
def entropy(p):
    return -tf.reduce_sum(p * tf.math.log(p), axis=1)
""",
            "no_choice",
        ),
        (
            """
def entropy(p):
    safe = tf.where(p > 0.0, p, 1.0)
    return -tf.reduce_sum(p * tf.math.log(safe))
""",
            "all_rows",
        ),
        (
            """
def entropy(p):
    safe = tf.where(p > 0.0, p, 1.0)
    return tf.reduce_sum(p * tf.math.log(safe), axis=1)
""",
            "sign",
        ),
        (
            """
def entropy(p):
    return -tf.reduce_sum(p * tf.math.log(p + 1e-7), axis=1)
""",
            "only x > 0",
        ),
        (
            """
def entropy(p):
    safe = tf.where(p > 0.0, p, 1.0)
    return tf.constant(-np.sum(p * np.log(safe), axis=1))
""",
            "none",
        ),
    ),
)


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


def _slope_left_out(x, simulate, slope):
    h = tf.tanh(x)
    return 2.0 * simulate(h) * (1.0 - h**2)


def _upstream_left_out(x, simulate, slope):
    h = tf.tanh(x)
    return slope(h) * (1.0 - h**2)


def _up_to_h(x, simulate, slope):
    h = tf.tanh(x)
    return tf.constant(2.0 * simulate(h) * slope(h))


def _nothing_carried(x, simulate, slope):
    return 1.0 - tf.tanh(x) ** 2


def _slope_at_s(x, simulate, slope):
    h = tf.tanh(x)
    return 2.0 * simulate(h) * slope(simulate(h)) * (1.0 - h**2)


def _slope_at_x(x, simulate, slope):
    h = tf.tanh(x)
    return 2.0 * simulate(h) * slope(x) * (1.0 - h**2)


bridge = Exercise(
    "03.bridge",
    title="Across the gap",
    minutes=15,
    beyond=True,
    starter="""
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))  # leaves TensorFlow
        loss = tf.reduce_sum(s**2)
    return ...  # the gradient of loss with respect to x


exercises.bridge.check(gradient_across)
""",
    solution_code="""
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        tape.watch(s)
        loss = tf.reduce_sum(s**2)
    upstream = tape.gradient(loss, s)
    return tape.gradient(h, x, output_gradients=upstream * slope(h))
""",
    explanation=(
        "The tape has two pieces of the chain, one on each side of the gap. You carry the gradient across by hand: what arrives at `s`, times the slope of the simulation, is what "
        "leaves from `h`, and `output_gradients` hands it to the second piece. `tf.custom_gradient` (notebook 06) puts the same product on the tape."
    ),
    hints=(
        "The chain has three links: from `loss` back to `s`, from `s` to `h`, from `h` to `x`. Which of them can the tape give, and which one can you?",
        "The tape records from `s` on if it is told to *watch* `s`, as section 9 does. `slope(h)` is the link that the tape does not have.",
        "`output_gradients` (notebook 01, section 4) starts playback with a gradient of yours in place of the ones. Ask for the gradient of `h` with respect to `x`, and start with what has arrived at `h`: that is `tape.gradient(loss, s)` times `slope(h)`.",
    ),
    checker=Function(
        reference=_across,
        inputs=_gaps,
        mistakes=(
            Mistake(
                "slope_left_out",
                "The two pieces on the tape are joined as if the simulation returned its input. One link of the chain is missing: how fast does `s` change with `h`?",
                _slope_left_out,
            ),
            Mistake(
                "upstream_left_out",
                "This is the gradient of the sum of `s`. The loss is the sum of the *squares*: what is the loss's gradient with respect to `s`?",
                _upstream_left_out,
            ),
            Mistake(
                "up_to_h",
                "This is the gradient with respect to `h`. One more link leads to `x`.",
                _up_to_h,
            ),
            Mistake(
                "nothing_carried",
                "This is the gradient of the sum of `h`: nothing has been carried across. Is what you give to `output_gradients` a tensor, or `None`? The tape records from `s` on if it watches `s`.",
                _nothing_carried,
            ),
            Mistake(
                "slope_at_s",
                "The slope was taken at `s`, which is what comes out of the simulation. It belongs to what goes in.",
                _slope_at_s,
            ),
            Mistake(
                "slope_at_x",
                "The slope was taken at `x`. What goes into the simulation?",
                _slope_at_x,
            ),
        ),
    ),
    wrong=(
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        loss = tf.reduce_sum(s**2)
    return tape.gradient(loss, x)
""",
            "none",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        tape.watch(s)
        loss = tf.reduce_sum(s**2)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s))
""",
            "slope_left_out",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        loss = tf.reduce_sum(s**2)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s))
""",
            "nothing_carried",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        tape.watch(s)
        loss = tf.reduce_sum(s**2)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s) * slope(s))
""",
            "slope_at_s",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        loss = tf.reduce_sum(s**2)
    return tape.gradient(h, x) * slope(h)
""",
            "upstream_left_out",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        tape.watch(s)
        loss = tf.reduce_sum(s**2)
    return tape.gradient(loss, s) * slope(h)
""",
            "up_to_h",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        tape.watch(s)
        loss = tf.reduce_sum(s**2)
    return tape.gradient(h, x, output_gradients=tape.gradient(loss, s) * slope(x))
""",
            "slope_at_x",
        ),
        (
            """
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))
        loss = tf.reduce_sum(s**2)
    return tape.gradient(loss, x, unconnected_gradients="zero")
""",
            "zeros",
        ),
    ),
)
