"""Exercises and predictions of the notebook "Jacobians"."""

import functools
import inspect
import math
from unittest import mock

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.checks import without_a_tape

import tensorflow as tf

scalar_source = Prediction(
    "jacobians.scalar_source",
    remarks=(
        ((), "One number is what `gradient` gives: the sum. `jacobian` keeps the derivatives apart."),
        ((201, 1), "A scalar has no axis at all, not an axis of size 1."),
        ((1, 201), "A scalar has no axis at all, and the source's axes would come last."),
        ((201, 201), "That would be one derivative for each pair of points. The source is the one knob `delta`."),
    ),
)

upper_right = Prediction(
    "jacobians.upper_right",
    remarks=(
        (1.0, r"That is $\partial(a + 3b)/\partial a$, the lower left: you wrote the transpose."),
        (5.0, r"That is $\partial(ab)/\partial a = b$, the upper left: the column says with respect to which input."),
        (3.0, r"That is $\partial(a + 3b)/\partial b$, the lower right."),
    ),
)

kernel_shape = Prediction(
    "jacobians.kernel_shape",
    remarks=(
        ((5, 10, 7, 10), "The right axes, the source's first. It is the target that comes first."),
        ((5, 10), "That is the shape of the gradient, which has summed over the target."),
        ((70, 50), "As a matrix, yes. `jacobian` leaves the axes of both as they are."),
        (
            (7, 10, 5),
            "You left out the zeros: unit `o` reads column `o` only. `jacobian` does not know that, and both axes of "
            "size 10 stay.",
        ),
    ),
)

passes = Prediction(
    "jacobians.passes",
    remarks=(
        (3500, "One pass gives a whole row, not one entry."),
        (50, "That counts the source's elements. They are all reached by the same pass."),
        (1, "One pass gives the gradient of *one* scalar. Here each target element is a scalar of its own."),
        (7, "That counts the examples. Each example has 10 outputs, and each of them is a target element."),
    ),
)

sum_agrees = Prediction(
    "jacobians.sum_agrees",
    options=("both", "the first", "the second", "neither"),
    remarks=(
        ("both", "So it should be. One of the two goes through a rule of TensorFlow's that is wrong."),
        ("the first", "One of them is wrong, but it is the other: the axis is counted from the end in the wrong one."),
        ("neither", "One of the two agrees. What differs between them is the sign of an axis."),
    ),
)

gibibytes = Prediction(
    "jacobians.gibibytes",
    remarks=(
        (105.2, "In units of $10^9$ bytes it is 105.2 GB. A GiB is $2^{30}$ bytes."),
        (24.5, "Those are the entries, in units of $2^{30}$. A float32 takes 4 bytes."),
        (0.77, "That leaves out the batch: the target has 128 · 512 elements."),
        (0.191, "The kernel has two axes, 784 and 512, and both are in the Jacobian."),
    ),
)


def _count_passes(name, most, reference=None):
    """Return an observer for `Function`: an answer's result, and whether it took few passes.

    A pass is a call of `gradient`, an accumulator, or one element of the target of `jacobian`; of `batch_jacobian`,
    one output. Within `tf.vectorized_map` it counts once for each element.

    Args:
        name: what the result is called in the feedback.
        most: from a trial's arguments to the number of passes that is few enough.
        reference: the one function that may do without a pass. Of any other that is told: differences of values are
            no derivative by a tape.
    """

    def observe(answer, *arguments):
        count = 0

        def counted(method, passes):
            def call(self, target, *args, **kwargs):
                nonlocal count
                total = count + passes(target)
                result = method(self, target, *args, **kwargs)
                count = total  # the passes of this call are in it, however many of them were traced as one
                return result

            return call

        class Tape(tf.GradientTape):
            gradient = counted(tf.GradientTape.gradient, lambda target: 1)
            jacobian = counted(tf.GradientTape.jacobian, lambda target: int(tf.size(target)))
            batch_jacobian = counted(tf.GradientTape.batch_jacobian, lambda target: math.prod(target.shape[1:]))

        start = tf.autodiff.ForwardAccumulator.__init__

        def counted_start(self, *args, **kwargs):
            nonlocal count
            count += 1
            start(self, *args, **kwargs)

        vectorized_map = tf.vectorized_map

        def counted_map(function, elements, *args, **kwargs):
            nonlocal count
            before = count
            result = vectorized_map(function, elements, *args, **kwargs)
            count = before + (count - before) * len(tf.nest.flatten(elements)[0])  # the function is traced once
            return result

        with (
            mock.patch.object(tf, "GradientTape", Tape),
            mock.patch.object(tf, "vectorized_map", counted_map),
            mock.patch.object(tf.autodiff.ForwardAccumulator, "__init__", counted_start),  # under any name
        ):
            result = answer(*arguments)
        few = most(*arguments)
        told = f"{'at most' if count <= few else 'more than'} {few}"
        if not count and inspect.unwrap(answer) is not reference:
            told = "none, by a tape or an accumulator"
        return {name: result, "the number of passes": told}

    return observe


def _of_eight(x):
    return tf.concat([tf.sin(x[0] * x), [tf.reduce_sum(x**2)]], axis=0)


def _of_seven(x):
    return tf.stack([tf.reduce_sum(x**2), tf.exp(x[1]) * x[5], tf.sin(x[0] * x[6])])


def _of_two(x):
    return tf.stack([x[0] * x[1], tf.exp(x[0]), tf.sin(x[1])])


def _maps(random, dtype):
    return [
        (_of_eight, tf.cast(tf.linspace(0.5, -1.5, 8), dtype)),
        (_of_seven, tf.constant(random.normal(size=7), dtype)),
        (_of_two, tf.constant(random.normal(size=2), dtype)),
    ]


def _columns(f, x, units):
    """One forward pass for each unit vector, for wrong answers."""

    def column(unit):
        with tf.autodiff.ForwardAccumulator(primals=x, tangents=unit) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return tf.map_fn(column, units)


def _differences(f, x):
    """The Jacobian of f at x by central differences in float64, the target's axes first: no passes at all."""
    x64, shift = tf.cast(x, tf.float64), 1e-5
    units = tf.unstack(shift * tf.eye(len(x), dtype=tf.float64))
    return tf.cast(tf.stack([(f(x64 + unit) - f(x64 - unit)) / (2 * shift) for unit in units], axis=-1), x.dtype)


fewest_passes = Exercise(
    title="As few passes as possible",
    minutes=12,
    hints=(
        "Which of the two ways of section 5 takes as many passes as there are inputs, and which takes as many as "
        "there are outputs?",
        "`x.shape[0]` is known. For the outputs, evaluate `f(x)` and look at the shape. Then choose.",
        "Rows: `tape.jacobian(y, x)`, with `x` watched. Columns: `by_columns` of section 5. Its `tf.eye` makes "
        "float32 unless you tell it the dtype, and its result is stacked column by column.",
    ),
    checker=Function(
        reference=_differences,
        inputs=_maps,
        observe=_count_passes("the Jacobian", lambda f, x: min(len(f(x)), len(x)), _differences),
        axes=("output", "input"),
        dtypes=(tf.float32, tf.float64),
    ),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)


@fewest_passes.starter("jacobian_of")
def _(f, x):
    return ...  # shape (outputs, inputs)


@fewest_passes.right
def _(f, x):
    """Rows take one pass for each output, columns one for each input, and the smaller of the two numbers decides.
    Evaluating `f` once tells you the number of outputs, and if rows it is, that evaluation is already on the tape."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] <= x.shape[0]:
        return tape.jacobian(y, x)

    def column(unit):
        with tf.autodiff.ForwardAccumulator(primals=x, tangents=unit) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0], dtype=x.dtype)))


@fewest_passes.mistake("always_rows")
def _(f, x):
    """The Jacobians are right. Where there are fewer inputs than outputs, you take rows, one pass for each output; the
    first function tried has 9 outputs and 8 inputs."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)


@fewest_passes.mistake("always_columns")
def _(f, x):
    """The Jacobians are right. You always take columns, one pass for each input; one of the functions tried has 3
    outputs and 7 inputs."""
    return tf.transpose(_columns(f, x, tf.eye(x.shape[0], dtype=x.dtype)))


@fewest_passes.mistake("other_way_round")
def _(f, x):
    """The Jacobians are right, and each of them took the way with more passes. Which mode takes one pass for each
    output?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] > x.shape[0]:
        return tape.jacobian(y, x)
    return tf.transpose(_columns(f, x, tf.eye(x.shape[0], dtype=x.dtype)))


@fewest_passes.mistake("inputs_alone")
def _(f, x):
    """The Jacobians are right. With 8 inputs and 9 outputs you take rows: which numbers are to be compared?"""
    if x.shape[0] < 5:
        return tf.transpose(_columns(f, x, tf.eye(x.shape[0], dtype=x.dtype)))
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)


@fewest_passes.wrong("other")
def _(f, x):
    return _differences(f, x)


@fewest_passes.wrong("transpose")
def _(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] <= x.shape[0]:
        return tape.jacobian(y, x)
    return _columns(f, x, tf.eye(x.shape[0], dtype=x.dtype))


@fewest_passes.wrong("one_dtype")
def _(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] <= x.shape[0]:
        return tape.jacobian(y, x)
    return tf.transpose(_columns(f, x, tf.eye(x.shape[0])))


@fewest_passes.wrong("summed")
def _(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


@fewest_passes.wrong("none")
def _(f, x):
    with tf.GradientTape() as tape:
        y = f(x)
    return tape.jacobian(y, x)


def _one_vector(random, dtype):
    shown = tf.constant([1.0, 2.0, 5.0], dtype)
    return [(shown,), (tf.constant(random.uniform(0.5, 2.0, size=5), dtype),)]


def _by_a_tape(f, x):
    """A wrong answer where the formula is asked."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)


def _jacobian_of(f):
    """A reference: the Jacobian of f by central differences."""
    return lambda x: _differences(f, x)


running = Exercise(
    title="Running sums",
    minutes=4,
    hints=(
        r"Write $y_i = \sum_{j \le i} x_j$, and differentiate with respect to $x_k$. When is $x_k$ among the terms?",
        r"$\partial y_i/\partial x_k$ is 1 where $k \le i$, and 0 elsewhere. Rows are outputs.",
        "Compare `tf.range(n)` as a column with `tf.range(n)` as a row, or look up `tf.linalg.band_part`. "
        "The ones have the dtype of `x`.",
    ),
    checker=Function(
        reference=_jacobian_of(tf.cumsum), inputs=_one_vector, observe=without_a_tape, axes=("output", "input")
    ),
)


@running.starter("jacobian_of_running_sums")
def _(x):
    return ...  # shape (n, n)


@running.wrong("tape")
def _(x):
    return _by_a_tape(tf.cumsum, x)


@running.right
def _(x):
    r"""$\partial y_i / \partial x_k = \sum_{j \le i} \delta_{jk}$: of the sum one term is left if $k \le i$, and none
    otherwise. The function is linear, so its Jacobian is the same at every $x$."""
    n = x.shape[0]
    return tf.linalg.band_part(tf.ones((n, n), x.dtype), -1, 0)


@running.mistake("own_alone")
def _(x):
    """This is the Jacobian of a function that leaves `x` as it is. $y_i$ has more terms than its own."""
    return tf.eye(x.shape[0], dtype=x.dtype)


@running.mistake("without_own")
def _(x):
    """The diagonal is missing: is $x_i$ among the terms of $y_i$?"""
    ones = tf.ones((x.shape[0], x.shape[0]), x.dtype)
    return tf.linalg.band_part(ones, -1, 0) - tf.eye(x.shape[0], dtype=x.dtype)


@running.mistake("all_terms")
def _(x):
    """Here every input is in every output. Which of them come after $y_i$ was formed?"""
    return tf.ones((x.shape[0], x.shape[0]), x.dtype)


@running.wrong("transpose")
def _(x):
    return tf.linalg.band_part(tf.ones((x.shape[0], x.shape[0]), x.dtype), 0, -1)


@running.wrong("dtype")
def _(x):
    return tf.linalg.band_part(tf.ones((x.shape[0], x.shape[0])), -1, 0)


def _shares_of(x):
    return x / tf.reduce_sum(x)


shares = Exercise(
    title="Shares of a whole",
    minutes=6,
    hints=(
        r"$y_i = x_i / s$ with $s = \sum_j x_j$. In how many ways does $y_i$ depend on $x_k$?",
        r"The quotient rule: $\partial y_i/\partial x_k = (s\,\partial x_i/\partial x_k - x_i\,\partial s/\partial "
        r"x_k) / s^2$. Which two letters does $\partial x_i/\partial x_k$ compare? What is $\partial s/\partial x_k$?",
        r"$\delta_{ik}/s - x_i/s^2$. In the second part the row decides: `x[:, tf.newaxis]`.",
    ),
    checker=Function(
        reference=_jacobian_of(_shares_of), inputs=_one_vector, observe=without_a_tape, axes=("output", "input")
    ),
)


@shares.starter("jacobian_of_shares")
def _(x):
    return ...  # shape (n, n)


@shares.wrong("tape")
def _(x):
    return _by_a_tape(_shares_of, x)


@shares.right
def _(x):
    r"""$x_k$ counts twice: it is the numerator of its own share, $\delta_{ik}/s$, and it is in the sum that divides
    every share, $-x_i/s^2$. Each column adds up to zero: whatever $x_k$ does, the shares add up to one."""
    s = tf.reduce_sum(x)
    return tf.eye(x.shape[0], dtype=x.dtype) / s - x[:, tf.newaxis] / s**2


@shares.mistake("sum_held")
def _(x):
    """The sum was held constant. It contains $x_k$, and it divides every share."""
    return tf.eye(x.shape[0], dtype=x.dtype) / tf.reduce_sum(x)


@shares.mistake("sum_alone")
def _(x):
    """This is what goes through the sum. On the diagonal there is one more path: $x_i$ is the numerator of its own
    share."""
    return -tf.repeat(x[:, tf.newaxis], x.shape[0], axis=1) / tf.reduce_sum(x) ** 2


@shares.mistake("column_decides")
def _(x):
    r"""The diagonal is right. In $\partial y_i/\partial x_k$ the second part has $y_i$'s own numerator: is that $x_i$
    or $x_k$?"""
    s = tf.reduce_sum(x)
    return tf.eye(x.shape[0], dtype=x.dtype) / s - x / s**2


@shares.mistake("sum_once")
def _(x):
    """The second part has the derivative of $1/s$ in it. What is the power of $s$ there?"""
    s = tf.reduce_sum(x)
    return (tf.eye(x.shape[0], dtype=x.dtype) - x[:, tf.newaxis]) / s


@shares.wrong("sign")
def _(x):
    s = tf.reduce_sum(x)
    return x[:, tf.newaxis] / s**2 - tf.eye(x.shape[0], dtype=x.dtype) / s


def _pairs_of(x):
    return x[:, tf.newaxis] - x


pairs = Exercise(
    title="Differences of all pairs",
    minutes=6,
    hints=(
        "The target has two letters, $i$ and $j$, the source a third, $k$. How many axes has the result, and in which "
        "order?",
        r"$\partial (x_i - x_j)/\partial x_k = \delta_{ik} - \delta_{jk}$.",
        r"`tf.eye(n)` is $\delta$. As `[:, tf.newaxis, :]` its letters are $i$ and $k$; where do $j$ and $k$ stand?",
    ),
    checker=Function(
        reference=_jacobian_of(_pairs_of), inputs=_one_vector, observe=without_a_tape, axes=("row", "column", "input")
    ),
)


@pairs.starter("jacobian_of_differences")
def _(x):
    return ...  # shape (n, n, n)


@pairs.wrong("tape")
def _(x):
    return _by_a_tape(_pairs_of, x)


@pairs.right
def _(x):
    r"""$\delta_{ik} - \delta_{jk}$: each difference goes up with one of its two and down with the other. Where $i = j$
    the two cancel, and the row is zero, as a difference of a number from itself must be. Of $n^3$ entries
    $2n(n-1)$ are not zero."""
    same = tf.eye(x.shape[0], dtype=x.dtype)
    return same[:, tf.newaxis, :] - same[tf.newaxis, :, :]


@pairs.mistake("first_alone")
def _(x):
    """This is how the differences change with their *first* number. They have a second one."""
    same = tf.eye(x.shape[0], dtype=x.dtype)
    return same[:, tf.newaxis, :] + 0.0 * same


@pairs.mistake("source_first")
def _(x):
    """The letters stand in another order: the source's axis is the first. The target's come first."""
    same = tf.eye(x.shape[0], dtype=x.dtype)
    return same[:, :, tf.newaxis] - same[:, tf.newaxis, :]


@pairs.mistake("added")
def _(x):
    """This is the Jacobian of the *sums* of all pairs. How does $x_i - x_j$ change with $x_j$?"""
    same = tf.eye(x.shape[0], dtype=x.dtype)
    return same[:, tf.newaxis, :] + same


@pairs.wrong("sign")
def _(x):
    same = tf.eye(x.shape[0], dtype=x.dtype)
    return same - same[:, tf.newaxis, :]


@pairs.wrong("summed")
def _(x):
    same = tf.eye(x.shape[0], dtype=x.dtype)
    return tf.reduce_sum(same[:, tf.newaxis, :] - same, axis=0)


def _batches(random, dtype):
    def batch(examples, inputs, outputs, chosen):
        x, w = (tf.constant(random.normal(size=size), dtype) for size in ((examples, inputs), (inputs, outputs)))
        return x, w, tf.constant([example in chosen for example in range(examples)])

    return [batch(7, 5, 6, {1, 2, 6}), batch(4, 3, 2, {0}), batch(6, 2, 5, {0, 1, 2, 3, 4, 5})]


def _asked_of_a_tape(answer, x, w, chosen):
    with tf.GradientTape() as tape:
        tape.watch(w)
        losses = tf.reduce_mean(tf.tanh(x @ w) ** 2, axis=1)
    return answer(tape, losses, w, chosen)


def _observe_chosen(answer, *arguments):
    counted = _count_passes("the gradient", lambda *_: 1)
    return counted(functools.partial(_asked_of_a_tape, answer), *arguments)


def _gradient_of_chosen(tape, losses, w, chosen):
    share = 1.0 / tf.reduce_sum(tf.cast(chosen, losses.dtype))
    return _weighted(tape, losses, w, tf.where(chosen, share, 0.0))


def _weighted(tape, losses, w, weights):
    return tape.gradient(losses, w, output_gradients=tf.cast(weights, losses.dtype))


chosen_mean = Exercise(
    title="The mean that nobody recorded",
    minutes=6,
    beyond=True,
    hints=(
        "What is computed after the block has closed is not on the record. What can you still say to the tape when "
        "you ask it?",
        "`output_gradients` weights the sum (section 10). Write the mean of the chosen losses as a weighted sum of all "
        "of them.",
        "The weight of a chosen example is one over the number of chosen ones, that of the others is 0. "
        "`tf.cast(chosen, losses.dtype)` turns True and False into 1 and 0.",
    ),
    checker=Function(reference=_gradient_of_chosen, inputs=_batches, observe=_observe_chosen, axes=("input", "output")),
)


@chosen_mean.starter("gradient_of_chosen")
def _(tape, losses, w, chosen):
    return ...  # the gradient, with respect to w, of the mean of the chosen losses


@chosen_mean.right
def _(tape, losses, w, chosen):
    """The mean of the chosen losses is a weighted sum of all losses, with one over the number chosen as a weight, or
    zero. `output_gradients` takes those weights after the fact, so nothing need be recorded for it."""
    weights = tf.cast(chosen, losses.dtype)
    return tape.gradient(losses, w, output_gradients=weights / tf.reduce_sum(weights))


@chosen_mean.mistake("sum_of_chosen")
def _(tape, losses, w, chosen):
    """This is the gradient of the *sum* of the chosen losses. What turns a sum into a mean?"""
    return tape.gradient(losses, w, output_gradients=tf.cast(chosen, losses.dtype))


@chosen_mean.mistake("over_all")
def _(tape, losses, w, chosen):
    """The chosen losses are added and divided by the number of *all* examples. The mean is over the chosen ones."""
    weights = tf.cast(chosen, losses.dtype) / losses.shape[0]
    return tape.gradient(losses, w, output_gradients=weights)


@chosen_mean.mistake("nothing_chosen")
def _(tape, losses, w, chosen):
    """This is the gradient of the sum of *all* losses: `chosen` has had no influence."""
    return tape.gradient(losses, w)


@chosen_mean.mistake("mean_of_all")
def _(tape, losses, w, chosen):
    """This is the gradient of the mean of *all* losses: `chosen` has had no influence."""
    return tape.gradient(losses, w) / losses.shape[0]


@chosen_mean.mistake("a_pass_for_each_example")
def _(tape, losses, w, chosen):
    """The gradient is right, and took a pass for each example: `jacobian` keeps the losses apart before you average
    them. One backward pass is enough, with weights on the losses."""
    return tf.reduce_mean(tf.boolean_mask(tape.jacobian(losses, w), chosen), axis=0)


@chosen_mean.wrong("none")
def _(tape, losses, w, chosen):
    mean = tf.reduce_mean(tf.boolean_mask(losses, chosen))
    return tape.gradient(mean, w)


@chosen_mean.wrong("one_dtype")
def _(tape, losses, w, chosen):
    weights = tf.cast(chosen, tf.float32)
    return tape.gradient(losses, w, output_gradients=weights / tf.reduce_sum(weights))
