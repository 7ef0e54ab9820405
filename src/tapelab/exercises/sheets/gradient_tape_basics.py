"""Exercises and predictions of notebook 01, Gradient tape basics."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import tensorflow as tf

chain = Prediction(
    "01.chain",
    reason="The square contributes $2u = 14$, the line before it contributes $2$, and the chain rule multiplies: $14 \\cdot 2 = 28$.",
    remarks=(
        (14.0, "14 is $\\mathrm dL/\\mathrm du$. One more entry of the record lies between $u$ and $w$."),
        (6.0, "6 is the slope of $w^2$. Here it is $u$ that is squared, and $u$ is 7."),
        (16.0, "Local derivatives are multiplied along a path. Only separate paths are added."),
    ),
)

shapes = Prediction(
    "01.shapes",
    reason=(
        "**A gradient has its source's shape.** Entry $(i, j)$ says how the loss changes when entry $(i, j)$ of the source does. "
        "That is what makes it possible to subtract a gradient from a variable."
    ),
    remarks=(
        ([(2, 3), (2,)], "The kernel's gradient is not transposed: it must fit onto the kernel, entry by entry."),
        (
            [(1, 2), (1, 2)],
            "That is the shape of $y$. The loss is one number; what it is differentiated by sets the shape.",
        ),
        ([(3, 2), (1, 2)], "`b` has one axis, and so has its gradient: broadcasting gives it no second one."),
        ([(), ()], "The loss is a scalar, and each entry of a source has a derivative of its own."),
    ),
)

summed = Prediction(
    "01.summed",
    reason=(
        "The gradient has the source's shape, a scalar, so there is room for one number. **The gradient of a non-scalar target is the "
        "gradient of its sum.** Playback starts with a one for every entry of the target, and adds up what reaches the source."
    ),
    remarks=(
        ([3.0, 4.0], "Those are the two derivatives. Two numbers do not fit into the shape of one source."),
        (3.5, "3.5 would be the gradient of the mean. Nothing divides by the number of entries."),
        (None, "There is a path from $x$ to each entry, so there is a number."),
    ),
)

unreduced_ratio = Prediction(
    "01.unreduced_ratio",
    reason=(
        "The unreduced gradient is that of the *sum*: larger by the batch size. The same learning rate then takes steps that are that many "
        "times too long, and the figure of section 3 shows where long steps end."
    ),
    remarks=(
        (
            1.0,
            "The mean divides by the number of examples. Without it the tape adds up the losses and divides by nothing.",
        ),
        (1 / 7, "It is the other way round: the mean's gradient is the smaller one."),
        (
            42.0,
            "The mean over the six outputs is taken in both cases (`axis=1`). Only the mean over the examples is missing.",
        ),
    ),
)

late_watch = Prediction(
    "01.late_watch",
    reason="The tape has seen $5x$ and nothing before it. A wrong number without a `None` is the worse kind. Watch first.",
    remarks=(
        (11.0, "11 is the true derivative. `x * x` had run before the tape was told to watch."),
        (6.0, "6 belongs to `x * x`, the part that the tape did not see."),
        (None, "One path was recorded, and one is enough for a number."),
    ),
)

one_branch = Prediction(
    "01.one_branch",
    reason="Nothing was computed from `b`. And `gate` chose the branch, but a choice is not an operation that has a derivative: it leaves no trace.",
    remarks=(
        ([4.0, 0.0, None], "0 would say that `b` was used and has no effect. The tape has never met `b`."),
        ([4.0, 0.0, 0.0], "`None` says *no path*. Neither `b` nor `gate` went into the operations that ran."),
        (
            [4.0, None, 0.0],
            "0 would say that `gate` went into an operation. It went into Python's `if`, and nowhere else.",
        ),
        ([4.0, 75.0, None], "75 is the slope of `b**3`. Python did not run that branch, so the tape could not see it."),
    ),
)

doublings = Prediction(
    "01.doublings",
    reason="Six doublings from 3, four from 7: $2^6 = 64$ and $2^4 = 16$. The tape holds the doublings that ran, and the loop has vanished.",
    remarks=(
        (
            [2.0, 2.0],
            "2 is the slope of one pass through the loop. The passes follow each other, so their slopes multiply.",
        ),
        ([None, None], "The loop's condition leaves no trace, but each doubling is an operation with a derivative."),
        ([12.0, 8.0], "The slopes of successive steps multiply; they do not add."),
        ([6.0, 4.0], "That is how often the loop runs. Each time it multiplies the slope by 2."),
    ),
)


def _numbers(random, dtype, *shape):
    return tf.constant(random.normal(size=shape), dtype)


def _layers(random, dtype):
    def layer(batch, inputs, outputs):
        sizes = (batch, inputs), (inputs, outputs), (batch, outputs)
        return tuple(_numbers(random, dtype, *shape) for shape in sizes)

    shown = ([[1.0, 2.0, 3.0]], [[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]], [[1.0, 2.0]])
    return [tuple(tf.constant(part, dtype) for part in shown), layer(7, 5, 6), layer(4, 2, 3)]


def _played_back(x, w, upstream):
    """What a tape returns, for any upstream gradient."""
    b = tf.zeros(w.shape[1], w.dtype)
    with tf.GradientTape() as tape:
        tape.watch([x, w, b])
        y = x @ w + b
    return tuple(tape.gradient(y, [x, w, b], output_gradients=upstream))


def _bias_for_each_example(x, w, upstream):
    dx, dw, _ = _played_back(x, w, upstream)
    return dx, dw, upstream


def _averaged(x, w, upstream):
    dx, dw, db = _played_back(x, w, upstream)
    return dx, dw / x.shape[0], db / x.shape[0]


def _bias_over_outputs(x, w, upstream):
    dx, dw, _ = _played_back(x, w, upstream)
    return dx, dw, tf.reduce_sum(upstream, axis=1)


def _kernel_for_each_example(x, w, upstream):
    dx, _, db = _played_back(x, w, upstream)
    return dx, x[:, :, None] * upstream[:, None, :], db


def _of_mean_square(x, w, upstream):
    y = x @ w
    return _played_back(x, w, 2.0 * y / tf.size(y, y.dtype))


def _wrong_order(x, w, upstream):
    dx, dw, db = _played_back(x, w, upstream)
    return dw, db, dx


dense_backward = Exercise(
    "01.dense_backward",
    title="Play a layer back by hand",
    minutes=8,
    beyond=True,
    starter="""
def backward(x, w, upstream):
    return ..., ..., ...  # the gradients with respect to x, w and b


exercises.dense_backward.check(backward)
""",
    solution_code="""
def backward(x, w, upstream):
    dx = upstream @ tf.transpose(w)
    dw = tf.transpose(x) @ upstream
    db = tf.reduce_sum(upstream, axis=0)
    return dx, dw, db
""",
    explanation=(
        "Every example adds $x_i\\,u_j$ to entry $(i, j)$ of the kernel's gradient, and the matrix product does the adding. The bias is used once by "
        "each example, so its gradient is a sum too. On the way to $x$ the same weights are used as on the way forwards, from the other side."
    ),
    hints=(
        "Start with the shapes: each result has its source's. Which products of the three arguments have them?",
        "Section 2 has the kernel's gradient for one example: $x_i$ times the upstream entry $j$. All examples share the kernel, so their contributions are added. The bias is shared in the same way.",
        "Entry $i$ of an example's $x$ reaches output $j$ through $w_{ij}$. So its gradient is the sum over $j$ of $w_{ij}$ times the upstream entry $j$: one of the two matrix products needs `tf.transpose(w)`, the other `tf.transpose(x)`.",
    ),
    checker=Function(
        reference=_played_back,
        inputs=_layers,
        upstream=2,
        mistakes=(
            Mistake(
                "bias_for_each_example",
                "The first two are right. The third has an entry for each example, and the bias, of shape (outputs,), is shared by all of them. How do the "
                "contributions of several examples to one bias come together?",
                _bias_for_each_example,
            ),
            Mistake(
                "bias_over_outputs",
                "The third has one entry for each example. The bias has one for each *output*, which all examples share: the sum runs over the other axis.",
                _bias_over_outputs,
            ),
            Mistake(
                "kernel_for_each_example",
                "The second holds one matrix for each example. There is one kernel, and all examples use it. How do their contributions come together?",
                _kernel_for_each_example,
            ),
            Mistake(
                "of_mean_square",
                "These are the gradients of the mean of $y^2$. The loss may be any other: all that you need to know of it is in `upstream`.",
                _of_mean_square,
            ),
            Mistake(
                "averaged",
                "The gradients of `w` and `b` are divided by the number of examples. If the loss is a mean, `upstream` has that division in it already.",
                _averaged,
            ),
            Mistake(
                "order",
                "All three gradients are there, in another order. Return those of `x`, `w` and `b`, in this order.",
                _wrong_order,
            ),
        ),
    ),
    wrong=(
        (
            """
def backward(x, w, upstream):
    return upstream @ tf.transpose(w), tf.transpose(x) @ upstream, upstream
""",
            "bias_for_each_example",
        ),
        (
            """
def backward(x, w, upstream):
    return upstream @ tf.transpose(w), tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=1)
""",
            "bias_over_outputs",
        ),
        (
            """
def backward(x, w, upstream):
    dw = x[:, :, None] * upstream[:, None, :]
    return upstream @ tf.transpose(w), dw, tf.reduce_sum(upstream, axis=0)
""",
            "kernel_for_each_example",
        ),
        (
            """
def backward(x, w, upstream):
    b = tf.zeros(w.shape[1], w.dtype)
    with tf.GradientTape() as tape:
        tape.watch([x, w, b])
        loss = tf.reduce_mean((x @ w + b) ** 2)
    return tape.gradient(loss, [x, w, b])
""",
            "of_mean_square",
        ),
        (
            """
def backward(x, w, upstream):
    dw = tf.transpose(x) @ upstream / x.shape[0]
    return upstream @ tf.transpose(w), dw, tf.reduce_mean(upstream, axis=0)
""",
            "averaged",
        ),
        (
            """
def backward(x, w, upstream):
    return tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=0), upstream @ tf.transpose(w)
""",
            "order",
        ),
        (
            """
def backward(x, w, upstream):
    return upstream @ tf.transpose(w), tf.transpose(upstream) @ x, tf.reduce_sum(upstream, axis=0)
""",
            "transpose",
        ),
        (
            """
def backward(x, w, upstream):
    ones = tf.ones_like(upstream)
    return ones @ tf.transpose(w), tf.transpose(x) @ ones, tf.reduce_sum(ones, axis=0)
""",
            "upstream",
        ),
        (
            """
def backward(x, w, upstream):
    return upstream @ w, tf.transpose(x) @ upstream, tf.reduce_sum(upstream, axis=0)
""",
            "raised:InvalidArgumentError",
        ),
    ),
)


def _bowl(w):
    return tf.reduce_sum(w**2)


def _steep_valley(w):
    return w[0] ** 2 + 30.0 * w[1] ** 2


def _waves(w):
    return tf.reduce_sum(tf.cos(w) + 0.1 * w**2)


def _slopes(random, dtype):
    return [
        (_bowl, tf.constant([1.0, -2.0], dtype), 3.0),
        (_bowl, tf.constant([1.5, 0.5, -1.0], dtype), 0.1),
        (_bowl, tf.constant([1.0, -2.0], dtype), 2.0),  # a step of 1 leads to the other side, as high as before
        (_steep_valley, tf.constant([1.0, 1.0], dtype), 1.0),
        (_waves, tf.constant([[0.3, 1.0, -0.5], [2.0, -0.2, 0.7]], dtype), 20.0),
    ]


def _observe_step(answer, loss, start, size):
    w, tries = tf.Variable(start), 0

    def counted(at):
        nonlocal tries
        tries += 1
        if tries > 200:  # a loop that does not end is told why, at once
            raise RuntimeError(
                "200 tries, and the loss was never lower. Does every try begin where w was, and does it go down the gradient?"
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
    used = next(size / 2**k for k in range(60) if loss(w - size / 2**k * g) < before)
    w.assign_sub(used * g)
    return used


def _untested(loss, w, size):
    g, _ = _slope_and_value(loss, w)
    w.assign_sub(size * g)
    return size


def _tested_once(loss, w, size):
    g, before = _slope_and_value(loss, w)
    return _untested(loss, w, size if loss(w - size * g) < before else size / 2)


def _not_higher(loss, w, size):
    g, before = _slope_and_value(loss, w)
    return _untested(loss, w, next(size / 2**k for k in range(60) if loss(w - size / 2**k * g) <= before))


def _halved_once_more(loss, w, size):
    used = _careful(loss, tf.Variable(w), size)
    g, _ = _slope_and_value(loss, w)
    w.assign_sub(used / 2 * g)
    return used / 2


def _not_moved(loss, w, size):
    return _careful(loss, tf.Variable(w), size)


careful_step = Exercise(
    "01.careful_step",
    title="A step that never climbs",
    minutes=10,
    beyond=True,
    starter="""
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    ...  # find the size, and take the step
    return size


exercises.careful_step.check(careful_step)
""",
    solution_code="""
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    while loss(w - size * g) >= before:
        size = size / 2
    w.assign_sub(size * g)
    return size
""",
    explanation=(
        "`w - size * g` is a tensor, so trying a size leaves the variable as it is; `assign_sub` takes the step once the size is known. A size small enough "
        "always exists where the gradient is not zero, because the loss falls by about $s\\,\\lVert g\\rVert^2$ there. This is a line search by backtracking."
    ),
    hints=(
        "Two things are done to `w`: trying sizes, which must leave it where it is, and the step itself, once. How does `loss_after` in section 3 try a size?",
        "A loop that halves `size` for as long as the loss at `w - size * g` is not below `before`.",
        "`while loss(w - size * g) >= before: size = size / 2`. After the loop comes one `assign_sub`.",
    ),
    checker=Function(
        reference=_careful,
        inputs=_slopes,
        observe=_observe_step,
        mistakes=(
            Mistake(
                "untested",
                "The step has the size that was given, whatever it does to the loss. On the example the loss is higher afterwards. Compare before you step.",
                _untested,
            ),
            Mistake(
                "tested_once",
                "The size is halved once at most. The half may be too large as well: on the example, 3 and 1.5 both are.",
                _tested_once,
            ),
            Mistake(
                "not_lower",
                "A step is taken after which the loss is as high as before. *Lower* is asked for.",
                _not_higher,
            ),
            Mistake(
                "halved_once_more",
                "The size is half of the first one that lowers the loss. Is it halved once more after it was found?",
                _halved_once_more,
            ),
            Mistake(
                "not_moved",
                "The size is right, and `w` is where it was. Was the step taken? `w = w - …` gives the name to a new tensor and leaves the variable alone; section 3 says what to use.",
                _not_moved,
            ),
        ),
    ),
    wrong=(
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    w.assign_sub(size * g)
    return size
""",
            "untested",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    w.assign_sub(size * g)
    while loss(w) >= before:
        size = size / 2
        w.assign_sub(size * g)
    return size
""",
            "raised:RuntimeError",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    if loss(w - size * g) >= before:
        size = size / 2
    w.assign_sub(size * g)
    return size
""",
            "tested_once",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    after = before
    while after >= before:
        after = loss(w - size * g)
        size = size / 2
    w.assign_sub(size * g)
    return size
""",
            "halved_once_more",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    while loss(w - size * g) >= before:
        size = size / 2
    w = w - size * g
    return size
""",
            "not_moved",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    while loss(w - size * g) > before:
        size = size / 2
    w.assign_sub(size * g)
    return size
""",
            "not_lower",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    while loss(w + size * g) >= before:
        size = size / 2
    w.assign_add(size * g)
    return size
""",
            "raised:RuntimeError",
        ),
        (
            """
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    while loss(w - size * g) >= before:
        size = size / 2
    w.assign_sub(size * g)
""",
            "none",
        ),
    ),
)


def _batches(random, dtype):
    def batch(examples, inputs, outputs, chosen):
        x, w = _numbers(random, dtype, examples, inputs), _numbers(random, dtype, inputs, outputs)
        return x, w, tf.constant([example in chosen for example in range(examples)])

    return [batch(7, 5, 6, {1, 2, 6}), batch(4, 3, 2, {0}), batch(6, 2, 5, {0, 1, 2, 3, 4, 5})]


def _observe_chosen(answer, x, w, chosen):
    with tf.GradientTape() as tape:
        tape.watch(w)
        losses = tf.reduce_mean(tf.tanh(x @ w) ** 2, axis=1)
    return answer(tape, losses, w, chosen)


def _gradient_of_chosen(tape, losses, w, chosen):
    share = 1.0 / tf.reduce_sum(tf.cast(chosen, losses.dtype))
    return _weighted(tape, losses, w, tf.where(chosen, share, 0.0))


def _weighted(tape, losses, w, weights):
    return tape.gradient(losses, w, output_gradients=tf.cast(weights, losses.dtype))


chosen_mean = Exercise(
    "01.chosen_mean",
    title="The mean that nobody recorded",
    minutes=6,
    beyond=True,
    starter="""
def gradient_of_chosen(tape, losses, w, chosen):
    return ...  # the gradient, with respect to w, of the mean of the chosen losses


exercises.chosen_mean.check(gradient_of_chosen)
""",
    solution_code="""
def gradient_of_chosen(tape, losses, w, chosen):
    weights = tf.cast(chosen, losses.dtype)
    return tape.gradient(losses, w, output_gradients=weights / tf.reduce_sum(weights))
""",
    explanation=(
        "The mean of the chosen losses is a weighted sum of all losses, with one over the number chosen as a weight, or zero. `output_gradients` takes those "
        "weights after the fact, so nothing need be recorded for it."
    ),
    hints=(
        "What is computed after the block has closed is not on the record. What can you still say to the tape when you ask it?",
        "`output_gradients` weights the sum (section 4). Write the mean of the chosen losses as a weighted sum of all of them.",
        "The weight of a chosen example is one over the number of chosen ones, that of the others is 0. `tf.cast(chosen, losses.dtype)` turns True and False into 1 and 0.",
    ),
    checker=Function(
        reference=_gradient_of_chosen,
        inputs=_batches,
        observe=_observe_chosen,
        axes=("input", "output"),
        mistakes=(
            Mistake(
                "sum_of_chosen",
                "This is the gradient of the *sum* of the chosen losses. What turns a sum into a mean?",
                lambda tape, losses, w, chosen: _weighted(tape, losses, w, chosen),
            ),
            Mistake(
                "over_all",
                "The chosen losses are added and divided by the number of *all* examples. The mean is over the chosen ones.",
                lambda tape, losses, w, chosen: _weighted(tape, losses, w, chosen) / losses.shape[0],
            ),
            Mistake(
                "nothing_chosen",
                "This is the gradient of the sum of *all* losses: `chosen` has had no influence.",
                lambda tape, losses, w, chosen: _weighted(tape, losses, w, tf.ones_like(losses)),
            ),
            Mistake(
                "mean_of_all",
                "This is the gradient of the mean of *all* losses: `chosen` has had no influence.",
                lambda tape, losses, w, chosen: _weighted(tape, losses, w, tf.ones_like(losses)) / losses.shape[0],
            ),
        ),
    ),
    wrong=(
        (
            """
def gradient_of_chosen(tape, losses, w, chosen):
    mean = tf.reduce_mean(tf.boolean_mask(losses, chosen))
    return tape.gradient(mean, w)
""",
            "none",
        ),
        (
            """
def gradient_of_chosen(tape, losses, w, chosen):
    return tape.gradient(losses, w, output_gradients=tf.cast(chosen, losses.dtype))
""",
            "sum_of_chosen",
        ),
        (
            """
def gradient_of_chosen(tape, losses, w, chosen):
    weights = tf.cast(chosen, losses.dtype) / losses.shape[0]
    return tape.gradient(losses, w, output_gradients=weights)
""",
            "over_all",
        ),
        (
            """
def gradient_of_chosen(tape, losses, w, chosen):
    return tape.gradient(losses, w)
""",
            "nothing_chosen",
        ),
        (
            """
def gradient_of_chosen(tape, losses, w, chosen):
    return tape.gradient(losses, w) / losses.shape[0]
""",
            "mean_of_all",
        ),
        (
            """
def gradient_of_chosen(tape, losses, w, chosen):
    weights = tf.cast(chosen, tf.float32)
    return tape.gradient(losses, w, output_gradients=weights / tf.reduce_sum(weights))
""",
            "one_dtype",
        ),
    ),
)


def _what_ran():
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


what_ran = Exercise(
    "01.what_ran",
    title="None, zero or a number",
    minutes=4,
    starter="""
answer = {"first": ..., "second": ..., "third": ..., "fourth": ..., "fifth": ...}

exercises.what_ran.check(answer)
""",
    solution_code="""
answer = {"first": 6.0, "second": 4.0, "third": 0.0, "fourth": None, "fifth": 27.0}
""",
    explanation=(
        "An `if` leaves the branch that ran: a slope of 6 in the first, a constant in the fourth. `tf.where` leaves both sides, so the third has a path from `x`, with no "
        "effect. The loop leaves two products, and $x \\cdot x \\cdot x$ has the slope $3x^2$; that `x` also decided how often it ran leaves no trace."
    ),
    hints=(
        "Write down the operations that run for $x = 3$, one by one, as the tape does. Which of them have `x` among their inputs?",
        "`None` means *no path*; 0 means *a path with no effect*. Section 7 shows one of each.",
        "In the fourth, Python takes the branch with the constant. In the third, TensorFlow computes `x**3` and does not choose it. In the fifth the body runs twice.",
    ),
    checker=Value(
        expected=_what_ran,
        mistakes=(
            Mistake(
                "where_is_no_if",
                "Look at the third again. `x**3` was not chosen, but has it been computed?",
                lambda answer: answer["third"] is None,
            ),
            Mistake(
                "constant_is_no_zero",
                "Look at the fourth again. A zero would say that there is a path from `x` with no effect. Which operation would that path run through?",
                lambda answer: answer["fourth"] is not None and float(answer["fourth"]) == 0.0,
            ),
            Mistake(
                "other_branch",
                "One of the slopes belongs to a side that was not chosen. Look again at which of the conditions hold for $x = 3$.",
                lambda answer: answer["first"] == 5.0 or answer["second"] in (27.0, 31.0) or answer["third"] == 27.0,
            ),
            Mistake(
                "values",
                "One of these is the value of a result. Its gradient is asked for: how fast the result changes with `x`.",
                lambda answer: answer["first"] == 9.0 or answer["second"] == 12.0 or answer["third"] == 4.0,
            ),
            Mistake(
                "loop_leaves_products",
                "Look at the fifth again. That `int(x)` leaves no trace is right. What do the two passes through the body leave?",
                lambda answer: answer["fifth"] is None,
            ),
            Mistake(
                "passes",
                "Look at the fifth again. How often does the loop's body run, and what is computed in the end? `range(2)` has two entries.",
                lambda answer: answer["fifth"] in (6.0, 108.0, 1.0, 3.0),
            ),
        ),
    ),
    wrong=(
        ('answer = {"first": 6.0, "second": 4.0, "third": None, "fourth": None, "fifth": 27.0}', "where_is_no_if"),
        ('answer = {"first": 6.0, "second": 4.0, "third": 0.0, "fourth": 0.0, "fifth": 27.0}', "constant_is_no_zero"),
        ('answer = {"first": 6.0, "second": 27.0, "third": 0.0, "fourth": None, "fifth": 27.0}', "other_branch"),
        ('answer = {"first": 6.0, "second": 4.0, "third": 0.0, "fourth": None, "fifth": 6.0}', "passes"),
        ('answer = {"first": 6.0, "second": 4.0, "third": 0.0, "fourth": None, "fifth": None}', "loop_leaves_products"),
        ('answer = {"first": 9.0, "second": 12.0, "third": 4.0, "fourth": 7.0, "fifth": 27.0}', "values"),
        ('answer = {"first": None, "second": 4.0, "third": 0.0, "fourth": None, "fifth": 27.0}', "none"),
        ("answer = [6.0, 4.0, 0.0, None, 27.0]", "type"),
    ),
)
