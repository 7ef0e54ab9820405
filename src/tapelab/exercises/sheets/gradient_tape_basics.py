"""Exercises and predictions of the notebook "Gradient tape basics"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value
from tapelab.exercises.checks import without_a_tape

import numpy as np
import tensorflow as tf

dy_dx = Prediction(
    "gradient_tape_basics.dy_dx",
    remarks=(
        (9.0, "9 belongs to the sum. `a * b` hands each factor the *other* factor, not 1."),
        (
            20.0,
            "20 is the product of the two derivatives, 4 and 5. Each factor's derivative is multiplied by the *other "
            "factor*, and the two are added.",
        ),
        (40.0, "40 is what `x` receives through `a`. There is a path through `b` as well."),
    ),
)

two_entries = Prediction(
    "gradient_tape_basics.two_entries",
    remarks=(
        ([3.0, 4.0], "Those are the two derivatives. Two numbers do not fit into the shape of `x`, a scalar."),
        (3.5, "3.5 would be the gradient of the mean. Nothing divides by the number of entries."),
        (None, "There is a path from $x$ to each entry, so there is a number."),
    ),
)

late_watch = Prediction(
    "gradient_tape_basics.late_watch",
    remarks=(
        (11.0, "11 is the true derivative. `x * x` had run before the tape was told to watch."),
        (6.0, "6 belongs to `x * x`, the part that the tape did not see."),
        (None, "`5.0 * x` was recorded, and it gives a number."),
    ),
)

gate = Prediction(
    "gradient_tape_basics.gate",
    remarks=(
        ([4.0, 0.0, None], "0 would say that `b` was used and has no effect. The tape has never met `b`."),
        (
            [4.0, 0.0, 0.0],
            "`None` says that no gradient got through. Neither `b` nor `gate` went into `a * a`, the branch that ran.",
        ),
        (
            [4.0, None, 0.0],
            "0 would say that `gate` went into the result. It went into a comparison, and that into Python's `if`.",
        ),
        ([4.0, 75.0, None], "75 is the slope of `b**3`. Python did not run that branch, so the tape could not see it."),
    ),
)

doublings = Prediction(
    "gradient_tape_basics.doublings",
    remarks=(
        (
            [2.0, 2.0],
            "2 is the slope of one pass through the loop. The passes follow each other, so their slopes multiply.",
        ),
        (
            [None, None],
            "The condition has no part in the gradient, but each doubling is an operation with a derivative.",
        ),
        ([12.0, 8.0], "The slopes of successive steps multiply; they do not add."),
        ([6.0, 4.0], "That is how often the loop runs. Each time it multiplies the slope by 2."),
    ),
)


def _numbers(random, dtype, *shape):
    return tf.constant(random.normal(size=shape), dtype)


def _table_of(x):
    a = x * x
    b = a + x
    return {"value of a": a, "value of b": b, "value of y": a * b} | {
        "gradient of y": 1.0,
        "gradient of b": a,
        "gradient of a": b + a,
        "gradient of x": 4.0 * x**3 + 3.0 * x**2,  # y is x⁴ + x³
    }


written_tape = Exercise(
    title="Draw a tape",
    minutes=6,
    hints=(
        "Draw the three entries one below the other, with an arrow into each entry from whatever it uses. Two arrows "
        "lead into `a`, both from `x`.",
        "The values first, from the top. Then 1 beside `y`, and upwards: each arrow carries what its entry was handed, "
        "times the local derivative.",
        "`a` is used by `b` and by `y`, so two numbers are added there: 9 and 12. `x` is used three times.",
    ),
    checker=Value(
        expected=lambda: _table_of(3.0),
        mistakes=(
            Mistake(
                "one_user_of_a",
                "The gradient of `a` has one of its two parts. Who uses `a`? Each user sends something back.",
                {"gradient of a": 12.0},
                where=lambda answer: answer["gradient of a"] in (9.0, 12.0),
            ),
            Mistake(
                "square_used_once",
                "Look at `a = x * x` again. It takes `x` at two places, and an arrow leads back from each.",
                {"gradient of x": 72.0},
                where=lambda answer: answer["gradient of x"] in (72.0, 63.0),
            ),
            Mistake(
                "no_path_through_b",
                "`x` has received what comes through `a`. `b = a + x` uses `x`, too.",
                {"gradient of x": 126.0},
            ),
            Mistake(
                "own_value",
                "The entry `y = a * b` hands each factor the *other* factor.",
                {"gradient of b": 12.0},
            ),
            Mistake(
                "derivative_of_values",
                "The first three are values: what each line computes for $x = 3$.",
                {"value of a": 6.0},
            ),
        ),
        wrong=(
            (
                "values",
                {"value of a": 9.0, "value of b": 12.0, "value of y": 21.0}
                | {key: number for key, number in _table_of(3.0).items() if key.startswith("gradient")},
            ),
        ),
    ),
)


@written_tape.starter()
def _():
    answer = {
        "value of a": ...,
        "value of b": ...,
        "value of y": ...,
        "gradient of y": ...,
        "gradient of b": ...,
        "gradient of a": ...,
        "gradient of x": ...,
    }

    return answer


@written_tape.right
def _():
    r"""Downwards 9, 12 and 108. Upwards, `y = a * b` hands 9 to `b` and 12 to `a`; `b = a + x` hands its 9 on to both,
    so `a` has $12 + 9 = 21$; `x * x` sends $21 \cdot 3$ back along each of its two arrows, and with the 9 from `b`
    that makes $63 + 63 + 9 = 135$. By hand: $y = x^4 + x^3$, so $4x^3 + 3x^2 = 108 + 27$."""
    answer = {
        "value of a": 9.0,
        "value of b": 12.0,
        "value of y": 108.0,
        "gradient of y": 1.0,
        "gradient of b": 9.0,
        "gradient of a": 21.0,
        "gradient of x": 135.0,
    }
    return answer


def _bent(a, b):
    """In closed form, from exponentials."""
    q = np.asarray(a) / np.asarray(b)
    slope = 4.0 / (np.exp(q) + np.exp(-q)) ** 2
    found = (np.exp(q) - np.exp(-q)) / (np.exp(q) + np.exp(-q)), slope / np.asarray(b), -slope * q / np.asarray(b)
    return tuple(tf.constant(number, a.dtype) for number in found)


def _pairs(random, dtype):
    pairs = [(1.0, 2.0), (-0.4, 0.8), *random.uniform(0.5, 1.5, size=(2, 2))]
    return [tuple(tf.constant(number, dtype) for number in pair) for pair in pairs]


two_more_entries = Exercise(
    title="Two more entries",
    minutes=6,
    hints=(
        "There are two entries: the quotient `q`, and the tanh of it. Each needs its local derivatives: $a/b$ one for "
        "`a` and one for `b`, the tanh one for `q`.",
        "The tanh has the derivative $1 - \\tanh^2$, and `y` *is* the tanh.",
        "The quotient's are $1/b$ for `a` and $-a/b^2$ for `b`. Both are multiplied by what `q` is handed.",
    ),
    checker=Function(reference=_bent, inputs=_pairs, observe=without_a_tape),
)


@two_more_entries.starter("tanh_of_quotient")
def _(a, b):
    q = a / b
    y = tf.tanh(q)
    ...  # the backward pass: what q is handed, then a and b
    return y, ..., ...  # the value, and the gradients with respect to a and b


@two_more_entries.right
def _(a, b):
    r"""The tanh hands `q` the number $1 - y^2$: a tape that keeps `y` need not compute it again. The quotient passes
    it on times $1/b$ to `a`, and times $-a/b^2$, which is $-q/b$, to `b`."""
    q = a / b
    y = tf.tanh(q)
    upstream = 1.0 - y**2
    return y, upstream / b, -upstream * q / b


@two_more_entries.mistake("sign")
def _(a, b):
    """The last has the wrong sign. What does the quotient do when `b` grows?"""
    q = a / b
    upstream = 1.0 - tf.tanh(q) ** 2
    return tf.tanh(q), upstream / b, upstream * q / b


@two_more_entries.mistake("quotient_alone")
def _(a, b):
    """These are the local derivatives of the quotient. They are multiplied by what the tanh hands back to `q`."""
    q = a / b
    return tf.tanh(q), 1.0 / b, -q / b


@two_more_entries.mistake("tanh_alone")
def _(a, b):
    """Both are what `q` is handed. The quotient has local derivatives of its own, one for `a` and one for `b`."""
    y = tf.tanh(a / b)
    return y, 1.0 - y**2, 1.0 - y**2


@two_more_entries.mistake("twice_bent")
def _(a, b):
    """The tanh's derivative is 1 minus the square of the tanh. `y` is the tanh already: you have taken it once more."""
    q = a / b
    y = tf.tanh(q)
    upstream = 1.0 - tf.tanh(y) ** 2
    return y, upstream / b, -upstream * q / b


@two_more_entries.wrong("one_dtype")
def _(a, b):
    q = a / b
    y = tf.tanh(q)
    upstream = tf.constant(1.0) - y**2
    return y, upstream / b, -upstream * q / b


@two_more_entries.wrong("tape")
def _(a, b):
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        y = tf.tanh(a / b)
    return y, *tape.gradient(y, [a, b])


def _layers(random, dtype):
    def layer(batch, inputs, outputs):
        sizes = (batch, inputs), (inputs, outputs), (batch, outputs)
        return tuple(_numbers(random, dtype, *shape) for shape in sizes)

    shown = ([[1.0, 2.0, 3.0]], [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], [[1.0, 2.0]])
    return [tuple(tf.constant(part, dtype) for part in shown), layer(7, 5, 6), layer(4, 2, 3)]


def _sent_back(x, w, upstream):
    """Index by index."""
    u = upstream.numpy()
    found = np.einsum("bo,io->bi", u, w), np.einsum("bi,bo->io", x, u), np.einsum("bo->o", u)
    return tuple(tf.constant(part, x.dtype) for part in found)


dense_backward = Exercise(
    title="A layer's backward pass, by hand",
    minutes=8,
    beyond=True,
    hints=(
        "Start with the shapes: each result has its source's. Which products of the three arguments have them?",
        "Section 3 has the kernel's gradient for one example: $x_i$ times the upstream entry $j$. All examples share "
        "the kernel, so their contributions are added. The bias is shared in the same way.",
        "Entry $i$ of an example's $x$ reaches output $j$ through $w_{ij}$. So its gradient is the sum over $j$ of "
        "$w_{ij}$ times the upstream entry $j$: one of the two matrix products needs `tf.transpose(w)`, the other "
        "`tf.transpose(x)`.",
    ),
    checker=Function(reference=_sent_back, inputs=_layers, observe=without_a_tape, upstream=2),
)


@dense_backward.starter("backward")
def _(x, w, upstream):
    return ..., ..., ...  # the gradients with respect to x, w and b


@dense_backward.right
def _(x, w, upstream):
    r"""Every example adds $x_i\,u_j$ to entry $(i, j)$ of the kernel's gradient, and the matrix product does the
    adding. The bias is used once by each example, so its gradient is a sum too. On the way to $x$ the same weights are
    used as on the way forwards, from the other side."""
    dx = upstream @ tf.transpose(w)
    dw = tf.transpose(x) @ upstream
    db = tf.reduce_sum(upstream, axis=0)
    return dx, dw, db


@dense_backward.mistake("bias_for_each_example")
def _(x, w, upstream):
    """The first two are right. The third has an entry for each example, and the bias, of shape (outputs,), is shared by
    all of them. How do the contributions of several examples to one bias come together?"""
    return upstream @ tf.transpose(w), tf.transpose(x) @ upstream, upstream


@dense_backward.mistake("bias_over_outputs")
def _(x, w, upstream):
    """The third has one entry for each example. The bias has one for each *output*, which all examples share: the sum
    runs over the other axis."""
    return upstream @ tf.transpose(w), tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=1)


@dense_backward.mistake("kernel_for_each_example")
def _(x, w, upstream):
    """The second holds one matrix for each example. There is one kernel, and all examples use it. How do their
    contributions come together?"""
    dw = x[:, :, None] * upstream[:, None, :]
    return upstream @ tf.transpose(w), dw, tf.reduce_sum(upstream, axis=0)


@dense_backward.mistake("of_mean_square")
def _(x, w, upstream):
    """These are the gradients of the mean of $y^2$. The loss may be any other: all that you need to know of it is in
    `upstream`."""
    y = x @ w
    upstream = 2.0 * y / tf.size(y, y.dtype)
    return upstream @ tf.transpose(w), tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=0)


@dense_backward.mistake("averaged")
def _(x, w, upstream):
    """The gradients of `w` and `b` are divided by the number of examples. If the loss is a mean, `upstream` has that
    division in it already."""
    dw = tf.transpose(x) @ upstream / x.shape[0]
    return upstream @ tf.transpose(w), dw, tf.reduce_mean(upstream, axis=0)


@dense_backward.mistake("order")
def _(x, w, upstream):
    """All three gradients are there, in another order. Return those of `x`, `w` and `b`, in this order."""
    return tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=0), upstream @ tf.transpose(w)


@dense_backward.wrong("tape")
def _(x, w, upstream):
    b = tf.zeros(w.shape[1], w.dtype)
    with tf.GradientTape() as tape:
        tape.watch([x, w, b])
        y = x @ w + b
    return tape.gradient(y, [x, w, b], output_gradients=upstream)


@dense_backward.wrong("tape")
def _(x, w, upstream):
    compiled = tf.function(lambda x, w, b: tf.gradients(x @ w + b, [x, w, b], grad_ys=upstream))
    return tuple(compiled(x, w, tf.zeros(w.shape[1], w.dtype)))


@dense_backward.wrong("transpose")
def _(x, w, upstream):
    return upstream @ tf.transpose(w), tf.transpose(upstream) @ x, tf.reduce_sum(upstream, axis=0)


@dense_backward.wrong("upstream")
def _(x, w, upstream):
    ones = tf.ones_like(upstream)
    return ones @ tf.transpose(w), tf.transpose(x) @ ones, tf.reduce_sum(ones, axis=0)


@dense_backward.wrong("raised:InvalidArgumentError")
def _(x, w, upstream):
    return upstream @ w, tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=0)


def _bowl(w):
    return tf.reduce_sum(w**2)


def _steep_valley(w):
    return w[0] ** 2 + 30.0 * w[1] ** 2


def _waves(w):
    return tf.reduce_sum(tf.cos(w) + 0.1 * w**2)


def _hill(w):
    return -tf.reduce_sum(w**2)


def _barrier(w):
    return tf.reduce_sum(w - tf.math.log(w))


def _flat_bottom(w):
    return tf.reduce_sum((w - 1.0) ** 2) + 1.0


def _slopes(random, dtype):
    return [
        (_bowl, tf.constant([1.0, -2.0], dtype), 3.0),
        (_bowl, tf.constant([1.5, 0.5, -1.0], dtype), 0.1),
        (_bowl, tf.constant([1.0, -2.0], dtype), 2.0),  # a step of 1 leads to the other side, as high as before
        (_steep_valley, tf.constant([1.0, 1.0], dtype), 1.0),
        (_waves, tf.constant([[0.3, 1.0, -0.5], [2.0, -0.2, 0.7]], dtype), 20.0),
        (_barrier, tf.constant([3.0, 2.0], dtype), 10.0),  # where a step is too long the loss is NaN
        (_bowl, tf.constant([1.0, -2.0], dtype), 2.0**48),  # 49 halvings: the last try
        (_bowl, tf.constant([1.0, -2.0], dtype), 2.0**49),  # 50: one more than are asked for
        (_hill, tf.constant([0.0, 0.0], dtype), 1.0),  # a maximum: the gradient is 0, and no step is a step
        (_flat_bottom, tf.constant([1.0 + 2.0**-18, 1.0 + 2.0**-30][dtype == tf.float64] * np.ones(2), dtype), 0.4),
    ]


def _observe_step(answer, loss, start, size):
    w, tries = tf.Variable(start), 0

    def counted(at):
        nonlocal tries
        tries += 1
        if tries > 200:  # a loop that does not end is told why, at once
            raise RuntimeError(
                "200 tries, and the loss was never lower. Does every try begin where w was, and go down the gradient? "
                "And does the loop end if no try helps?"
            )
        return loss(at)

    used = answer(counted, w, size)
    return {"the returned size": used, "`w`": w.read_value()}


def _slope_and_value(loss, w):
    with tf.GradientTape() as tape:
        value = loss(w)
    return tape.gradient(value, w), value


def _careful(loss, w, size):
    g, before = _slope_and_value(loss, w)
    used = next((size / 2**k for k in range(50) if loss(w - size / 2**k * g) < before), 0.0)
    w.assign_sub(used * g)
    return used


careful_step = Exercise(
    title="A step that never climbs",
    minutes=10,
    beyond=True,
    hints=(
        "Two things are done to `w`: trying sizes, which must leave it where it is, and the step itself, once. How "
        "does `loss_after` in section 4 try a size?",
        "A loop of at most 50 tries that halves `size` after each at which the loss at `w - size * g` is not below "
        "`before`.",
        "`for _ in range(50):` and in it `if loss(w - size * g) < before:` take the step with `assign_sub`, and "
        "return. After it, halve. After the loop nothing has helped: `return 0.0`.",
    ),
    checker=Function(reference=_careful, inputs=_slopes, observe=_observe_step),
)


@careful_step.starter("careful_step")
def _(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    for _ in range(50):
        ...  # try the size; if the loss is lower there, take the step and return the size
    return 0.0


@careful_step.right
def _(loss, w, size):
    r"""`w - size * g` is a tensor, so trying a size leaves the variable as it is; `assign_sub` takes the step once the
    size is known. Where a smooth loss has a gradient that is not zero, a small enough size lowers it by about
    $s\,\lVert g\rVert^2$, in exact arithmetic. In float32 that fall may be too small to see beside the loss, and at a
    maximum the gradient is zero: then no size helps, and a loop without an end would never come back. This is a line
    search by backtracking."""
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    for _ in range(50):
        if loss(w - size * g) < before:
            w.assign_sub(size * g)
            return size
        size = size / 2
    return 0.0


def _first_lower(loss, w, size, sign=-1.0, lower=lambda after, before: after < before):
    """The gradient, and the first size at which the loss is lower, for wrong answers; 0.0 if none of 50 is."""
    g, before = _slope_and_value(loss, w)
    return g, next((size / 2**k for k in range(50) if lower(loss(w + sign * size / 2**k * g), before)), 0.0)


@careful_step.mistake("untested")
def _(loss, w, size):
    """The step has the size that was given, whatever it does to the loss. On the example the loss is higher afterwards.
    Compare before you step."""
    g, before = _slope_and_value(loss, w)
    w.assign_sub(size * g)
    return size


@careful_step.mistake("tested_once")
def _(loss, w, size):
    """The size is halved once at most. The half may be too large as well: on the example, 3 and 1.5 both are."""
    g, before = _slope_and_value(loss, w)
    if loss(w - size * g) >= before:
        size = size / 2
    w.assign_sub(size * g)
    return size


@careful_step.mistake("not_lower")
def _(loss, w, size):
    """A step is taken after which the loss is as high as before. *Lower* is asked for."""
    g, used = _first_lower(loss, w, size, lower=lambda after, before: after <= before)
    w.assign_sub(used * g)
    return used


@careful_step.mistake("nan_is_lower")
def _(loss, w, size):
    """Too long a step can leave the region where the loss has a value. There it is NaN, and NaN is not lower. Ask
    whether the loss *is* lower, and not whether it fails to be higher."""
    g, used = _first_lower(loss, w, size, lower=lambda after, before: not after >= before)
    w.assign_sub(used * g)
    return used


@careful_step.mistake("too_few_tries")
def _(loss, w, size):
    """Right where fewer tries are enough. One of the trials begins with a size that takes 49 halvings. How many tries
    does your loop make?"""
    g, used = _first_lower(loss, w, size)
    used = used if used > size / 2**49 else 0.0
    w.assign_sub(used * g)
    return used


@careful_step.mistake("halved_once_more")
def _(loss, w, size):
    """The size is half of the first one that lowers the loss. Is it halved once more after it was found?"""
    g, used = _first_lower(loss, w, size)
    w.assign_sub(used / 2 * g)
    return used / 2


@careful_step.mistake("not_moved")
def _(loss, w, size):
    """The size is right, and `w` is where it was. Was the step taken? `w = w - …` gives the name to a new tensor and
    leaves the variable alone; section 4 says what to use."""
    return _first_lower(loss, w, size)[1]


@careful_step.mistake("size_where_none_helps")
def _(loss, w, size):
    """Right where a step lowers the loss. Where none does, `w` must stay, and the answer is 0."""
    g, used = _first_lower(loss, w, size)
    w.assign_sub(used * g)
    return used or size


@careful_step.wrong("raised:RuntimeError")
def _(loss, w, size):
    g, before = _slope_and_value(loss, w)
    while loss(w - size * g) >= before:
        size = size / 2
    w.assign_sub(size * g)
    return size


@careful_step.wrong("raised:RuntimeError")
def _(loss, w, size):
    g, before = _slope_and_value(loss, w)
    w.assign_sub(size * g)
    while loss(w) >= before:
        size = size / 2
        w.assign_sub(size * g)
    return size


@careful_step.wrong("values")
def _(loss, w, size):
    g, before = _slope_and_value(loss, w)
    used = next((size / 2**k for k in range(51) if loss(w - size / 2**k * g) < before), 0.0)
    w.assign_sub(used * g)
    return used


@careful_step.wrong("zeros")
def _(loss, w, size):
    g, used = _first_lower(loss, w, size, sign=1.0)
    w.assign_add(used * g)
    return used


@careful_step.wrong("none")
def _(loss, w, size):
    g, used = _first_lower(loss, w, size)
    w.assign_sub(used * g)


def _gradients():
    x = tf.Variable(3.0)
    with tf.GradientTape(persistent=True) as tape:
        results = {
            "first": x * x if x > 2.0 else 5.0 * x,
            "second": tf.where(x > 5.0, x**3, 4.0 * x),
            "third": tf.where(x > 5.0, x**3, 4.0),
            "fourth": tf.constant(7.0) if x > 2.0 else x * x,
        }
        fifth = x
        for _ in range(int(x) - 1):
            fifth = fifth * x
    gradients = {name: tape.gradient(result, x) for name, result in (results | {"fifth": fifth}).items()}
    return {name: None if gradient is None else float(gradient) for name, gradient in gradients.items()}


five_results = Exercise(
    title="None, zero or a number",
    minutes=4,
    hints=(
        "Write down the operations that run for $x = 3$, one by one, as the tape does. Which of them have `x` among "
        "their inputs?",
        "Here `None` says that no path leads to `x`, and 0 that one does and has no effect. Section 8 shows "
        "one of each.",
        "In the fourth, Python takes the branch with the constant. In the third, TensorFlow computes `x**3` and does "
        "not choose it. In the fifth the body runs twice.",
    ),
    checker=Value(
        expected=_gradients,
        mistakes=(
            Mistake(
                "where_is_no_if",
                "Look at the third again. `x**3` was not chosen, but has it been computed?",
                {"third": None},
            ),
            Mistake(
                "constant_is_no_zero",
                "Look at the fourth again. A zero would say that there is a path from `x` with no effect. Which "
                "operation would that path run through?",
                {"fourth": 0.0},
            ),
            Mistake(
                "other_branch",
                "One of the slopes belongs to a side that was not chosen. Look again at which of the conditions hold "
                "for $x = 3$.",
                {"second": 27.0},
                where=lambda answer: (
                    answer["first"] == 5.0 or answer["second"] in (27.0, 31.0) or answer["third"] == 27.0
                ),
            ),
            Mistake(
                "values",
                "One of these is the value of a result. Its gradient is asked for: how fast the result changes with "
                "`x`.",
                {"first": 9.0, "second": 12.0, "third": 4.0, "fourth": 7.0},
                where=lambda answer: answer["first"] == 9.0 or answer["second"] == 12.0 or answer["third"] == 4.0,
            ),
            Mistake(
                "loop_leaves_products",
                "Look at the fifth again. That `int(x)` leaves no trace is right. What do the two passes through the "
                "body leave?",
                {"fifth": None},
            ),
            Mistake(
                "passes",
                "Look at the fifth again. How often does the loop's body run, and what is computed in the end? "
                "`range(2)` has two entries.",
                {"fifth": 6.0},
                where=lambda answer: answer["fifth"] in (6.0, 108.0, 1.0, 3.0),
            ),
        ),
        wrong=(
            ("none", {"first": None, "second": 4.0, "third": 0.0, "fourth": None, "fifth": 27.0}),
            ("type", [6.0, 4.0, 0.0, None, 27.0]),
        ),
    ),
)


@five_results.starter()
def _():
    answer = {"first": ..., "second": ..., "third": ..., "fourth": ..., "fifth": ...}

    return answer


@five_results.right
def _():
    r"""Each `if` left the branch that ran: a slope of 6 in the first, a constant in the fourth. `tf.where` left both
    sides, so the third has a path from `x`, with no effect. The loop left two products, and $x \cdot x \cdot x$ has
    the slope $3x^2$; that `x` also decided how often it ran left no trace."""
    answer = {"first": 6.0, "second": 4.0, "third": 0.0, "fourth": None, "fifth": 27.0}
    return answer
