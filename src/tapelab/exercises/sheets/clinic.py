"""Exercises and predictions of the notebook "Clinic"."""

import weakref

from tapelab.exercises import Exercise, Mistake, Prediction, Repair, Value

import numpy as np
import tensorflow as tf

silenced = Prediction(
    "clinic.silenced",
    remarks=(
        (
            0.0,
            "0 is where a mended gradient takes it. The silenced one is 0 from the first step on: what does it move?",
        ),
        (float("nan"), "The NaN has been replaced before the step. What has it been replaced by?"),
    ),
)

very_negative = Prediction(
    "clinic.very_negative",
    options=("zeros", "NaN", "the mean of all values"),
    remarks=(
        ("zeros", "That is what you would want. A softmax's weights add up to 1, though, whatever its inputs are."),
        (
            "NaN",
            "−1e9 is finite, and a softmax subtracts the largest score first. What is left of equal scores?",
        ),
    ),
)

clamped = Prediction(
    "clinic.clamped",
    options=("0", "0.0001", "0.014"),
    remarks=(
        ("0", "The cosine can no longer be 1. What is the angle whose cosine is 0.9999?"),
        ("0.0001", "Near 1 the cosine falls with the square of the angle: 1 − θ²/2 = 0.9999."),
    ),
)

frozen_losses = Prediction(
    "clinic.frozen_losses",
    options=("1, 6, 11", "1, 1, 1", "an error"),
    remarks=(
        (
            "1, 6, 11",
            "That is what the Python code says, and what it gives without `tf.function`. When does Python run?",
        ),
        ("an error", "There is none. Python's `penalty` is found at the first call, and what becomes of it then?"),
    ),
)

flat_top = Prediction(
    "clinic.flat_top",
    remarks=(
        (-1 / 3, "That is the truth, from sin(x)/x = 1 − x²/6 + …. Which branch does the tape differentiate at 0?"),
        (float("nan"), "The double where keeps the NaN out, also of the second derivative."),
    ),
)


def _numbers(random, dtype, *shape):
    return tf.constant(random.normal(size=shape), dtype)


def _diagnosis(right, **wrong):
    """The cause, and for each other choice what speaks against it. An underscore stands for a space."""
    choices = {name.replace("_", " "): text for name, text in wrong.items()}
    mistakes = tuple(Mistake(f"not {cause}", text, cause) for cause, text in choices.items())
    return Value(right, mistakes=mistakes, options=tuple(sorted((right, *choices))))


def _with_gradients(*names, value="the value"):
    """How a function is observed: its result, and the gradients for its first arguments, which have these names."""

    def observe(answer, *arguments):
        sources = arguments[: len(names)]
        with tf.GradientTape() as tape:
            tape.watch(sources)
            result = answer(*arguments)
        parts = (
            dict.fromkeys(names) if result is None else dict(zip(names, tape.gradient(result, sources), strict=True))
        )
        return {value: result, **{f"the gradient of {name}": part for name, part in parts.items()}}

    return observe


# 1


def _lines(random, dtype):
    """Weights that are a variable, inputs and targets."""
    return [
        (tf.Variable(_numbers(random, dtype, 2)), _numbers(random, dtype, rows, 2), _numbers(random, dtype, rows))
        for rows in (3, 8)
    ]


def _slope(w, x, y):
    sides = np.sign(x.numpy() @ w.numpy() - y.numpy())
    return tf.constant(np.mean(sides[:, None] * x.numpy(), axis=0))


left_tensorflow = Exercise(
    title="Case 1, the loss that lost its history",
    minutes=4,
    hints=(
        "Read what `explain` said above: the line, and the fix.",
        "What is `type(distance)`? The tape records operations of TensorFlow, and nothing else.",
        "`unconnected_gradients` changes what a missing path is *called*. It adds no path. `tape.watch` cannot help "
        "either: `w` is a variable, and watched. The line that leaves TensorFlow has to stay inside.",
        "`np.abs` has a twin in TensorFlow, `tf.abs`.",
    ),
    checker=Repair(
        reference=_slope,
        inputs=_lines,
        diagnosis=_diagnosis(
            "NumPy",
            absolute_value="The absolute value has a slope everywhere but at 0, and `tf.abs` has one at 0 as well: 0. "
            "An infinite or missing slope of an operation is not what `None` means.",
            not_watched="`w` is a trainable variable, and tapes watch those by themselves.",
        ),
    ),
)


@left_tensorflow.starter()
def _():
    cause = ...  # "absolute value", "not watched" or "NumPy"

    def repaired(w, x, y):
        with tf.GradientTape() as tape:
            distance = np.abs(tf.linalg.matvec(x, w) - y)
            loss = tf.reduce_mean(distance)
        return tape.gradient(loss, w)

    return cause, repaired


@left_tensorflow.right
def _():
    """`np.abs` takes a tensor, reads its numbers and returns an array. The numbers are right, and an array has no
    history: to the tape the loss is a constant. `tf.abs` does the same inside TensorFlow."""
    cause = "NumPy"

    def repaired(w, x, y):
        with tf.GradientTape() as tape:
            distance = tf.abs(tf.linalg.matvec(x, w) - y)
            loss = tf.reduce_mean(distance)
        return tape.gradient(loss, w)

    return cause, repaired


@left_tensorflow.mistake("zeros_for_none")
def _(w, x, y):
    """The `None` is gone, and there are zeros in its place: now the training loop believes that it is at a minimum, and
    says nothing. There is still no path from the loss to `w`."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(np.abs(tf.linalg.matvec(x, w) - y))
    return tape.gradient(loss, w, unconnected_gradients="zero")


@left_tensorflow.mistake("another_loss")
def _(w, x, y):
    """A gradient, and of another loss: that of the mean *squared* distance. A repair leaves the value as it was."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return tape.gradient(loss, w)


@left_tensorflow.mistake("without_distance")
def _(w, x, y):
    """The path is there. The absolute value is not: positive and negative errors now cancel."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.linalg.matvec(x, w) - y)
    return tape.gradient(loss, w)


@left_tensorflow.wrong("none")
def _(w, x, y):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_mean(tf.constant(np.abs(tf.linalg.matvec(x, w) - y)))
    return tape.gradient(loss, w)


# 2


def _pixels(random, dtype):
    def labels(size):
        return tf.constant(random.integers(0, 2, size=size), dtype)

    shown = tf.constant([[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]], dtype), tf.constant([1.0, 0.0, 0.0], dtype)
    return [shown, *((_numbers(random, dtype, size, 2), labels(size)) for size in (6, 20))]


def _soft_dice(logits, labels):
    p = 0.5 * (1.0 + tf.tanh(0.5 * (logits[:, 1] - logits[:, 0])))
    return 1.0 - 2.0 * tf.tensordot(p, labels, 1) / tf.reduce_sum(p + labels)


counted_pixels = Exercise(
    title="Case 2, the mask that cannot move",
    minutes=6,
    hints=(
        "Which of the operations returns integers? What is the derivative of an integer?",
        "Move a logit a little: the winner stays the winner, and the mask stays what it was. Even with a path, the "
        "derivative would be 0 everywhere. What *does* move with the logits?",
        "A steeper softmax is nearly a mask, and nearly flat as well: that only hides the trouble. Use the probability "
        "itself.",
        "`tf.nn.softmax(logits)[:, 1]` takes the place of both lines with `winner` and `mask`.",
    ),
    checker=Repair(
        reference=_soft_dice,
        inputs=_pixels,
        observe=_with_gradients("the logits"),
        diagnosis=_diagnosis(
            "argmax",
            one_hot="`tf.one_hot` is handed integers already. The path was cut one line above.",
            the_ratio="Products and quotients of floating-point tensors pass gradients on. Is there one that arrives?",
        ),
    ),
)


@counted_pixels.starter()
def _():
    cause = ...  # "argmax", "one hot" or "the ratio"

    def repaired(logits, labels):
        winner = tf.argmax(logits, axis=1)
        mask = tf.one_hot(winner, 2, dtype=logits.dtype)[:, 1]
        overlap = tf.reduce_sum(mask * labels)
        return 1.0 - 2.0 * overlap / (tf.reduce_sum(mask) + tf.reduce_sum(labels))

    return cause, repaired


@counted_pixels.right
def _():
    """`tf.argmax` gives an index, and an index does not move when a logit moves by a little. The probability does. With
    it the ratio is called the *soft* Dice loss; it is smaller than 1 for a pixel that is nearly right, where the hard
    one saw no difference."""
    cause = "argmax"

    def repaired(logits, labels):
        mask = tf.nn.softmax(logits)[:, 1]
        overlap = tf.reduce_sum(mask * labels)
        return 1.0 - 2.0 * overlap / (tf.reduce_sum(mask) + tf.reduce_sum(labels))

    return cause, repaired


def _dice(mask, labels):
    return 1.0 - 2.0 * tf.reduce_sum(mask * labels) / (tf.reduce_sum(mask) + tf.reduce_sum(labels))


@counted_pixels.mistake("one_logit")
def _(logits, labels):
    """The sigmoid of one logit forgets the other: adding a constant to both classes changes this loss, and should
    not."""
    return _dice(tf.sigmoid(logits[:, 1]), labels)


@counted_pixels.mistake("straight_through")
def _(logits, labels):
    """The value is that of the hard mask, and the gradient that of the probability: a straight-through estimator. It
    trains, along a slope that belongs to no loss. The loss that is asked for has both from one function."""
    soft = tf.nn.softmax(logits)[:, 1]
    hard = tf.one_hot(tf.argmax(logits, axis=1), 2, dtype=logits.dtype)[:, 1]
    return _dice(soft + tf.stop_gradient(hard - soft), labels)


@counted_pixels.mistake("steep")
def _(logits, labels):
    """The steep softmax is nearly the mask, and its gradient is nearly that of the mask: 0, but for pixels that are
    undecided. `None` has become a zero."""
    return _dice(tf.nn.softmax(100.0 * logits)[:, 1], labels)


@counted_pixels.mistake("raw_logits")
def _(logits, labels):
    """A gradient arrives. But logits are not between 0 and 1, and this ratio is no overlap of anything."""
    return _dice(logits[:, 1], labels)


@counted_pixels.mistake("half_soft")
def _(logits, labels):
    """The probability stands in the overlap, and the hard mask still in the sum below it: the value mixes two masks,
    and half of the gradient is missing."""
    hard = tf.one_hot(tf.argmax(logits, axis=1), 2, dtype=logits.dtype)[:, 1]
    overlap = tf.reduce_sum(tf.nn.softmax(logits)[:, 1] * labels)
    return 1.0 - 2.0 * overlap / (tf.reduce_sum(hard) + tf.reduce_sum(labels))


@counted_pixels.mistake("other_class")
def _(logits, labels):
    """This is the probability of class 0. The mask was that of class 1."""
    return _dice(tf.nn.softmax(logits)[:, 0], labels)


# 3


def _tasks(random, dtype):
    def task(rate, rows):
        x, y = _numbers(random, dtype, rows, 2), _numbers(random, dtype, rows)
        return tf.constant(rate, dtype), _numbers(random, dtype, 2), x, y

    return [task(0.1, 3), task(0.3, 6)]


def _after_one_step(rate, w, x, y):
    """The gradient of the inner loss in closed form."""
    adapted = w - rate * 2.0 * tf.linalg.matvec(x, tf.linalg.matvec(x, w) - y, transpose_a=True) / len(y)
    return tf.reduce_mean((tf.linalg.matvec(x, adapted) - y) ** 2)


inner_step = Exercise(
    title="Case 3, learning how to learn",
    minutes=8,
    hints=(
        "Two lines turn tensors into the state of a variable. Which?",
        "What an assignment stores has no history: reading the variable back gives numbers, and a tape does not know "
        "where they come from. A tensor with a name of its own does have one.",
        "Compute `adapted = w - rate * …` and use it in the last line. Is the gradient of `w` there as well, or only "
        "that of `rate`?",
        "The first line cuts the path to `w` in the same way. Without it `w` is a tensor, and the inner tape has to be "
        "told to watch it. (`tf.stop_gradient` around the inner gradient is a known shortcut, not this derivative.)",
    ),
    checker=Repair(
        reference=_after_one_step,
        inputs=_tasks,
        observe=_with_gradients("the rate", "w"),
        diagnosis=_diagnosis(
            "assignment",
            the_inner_tape="The inner gradient is right, and the outer tape records how it was computed. What happens "
            "to it next?",
            constant_rate="The outer tape is told to watch `rate`: a constant is no obstacle then.",
        ),
    ),
)


@inner_step.starter()
def _():
    cause = ...  # "assignment", "constant rate" or "the inner tape"

    def repaired(rate, w, x, y):
        w = tf.Variable(w)
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w.assign_sub(rate * inner.gradient(loss, w))
        return tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)

    return cause, repaired


@inner_step.right
def _():
    """A variable is a box: what is put in has no history when it is taken out. `tf.Variable(w)` and `assign_sub` both
    put something in. With tensors only, the outer tape follows the step, and the gradient of `w` has a second
    derivative of the loss in it."""
    cause = "assignment"

    def repaired(rate, w, x, y):
        with tf.GradientTape() as inner:
            inner.watch(w)
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        adapted = w - rate * inner.gradient(loss, w)
        return tf.reduce_mean((tf.linalg.matvec(x, adapted) - y) ** 2)

    return cause, repaired


def _inner_gradient(w, x, y):
    with tf.GradientTape() as inner:
        inner.watch(w)
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return inner.gradient(loss, w)


def _loss_at(w, x, y):
    return tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)


@inner_step.mistake("still_a_box")
def _(rate, w, x, y):
    """Half mended: the gradient of `rate` is right, and that of `w` is `None`. One more line puts a tensor into a
    variable."""
    box = tf.Variable(w)
    return _loss_at(box - rate * _inner_gradient(box, x, y), x, y)


@inner_step.mistake("first_order")
def _(rate, w, x, y):
    """The values are right, and so is the gradient of `rate`. That of `w` lacks a part: the step itself changes with
    `w`, and here it counts as a constant: a `stop_gradient` does that, and so does a gradient taken at a variable. As a
    shortcut it has a name, first-order MAML; it is another gradient."""
    return _loss_at(w - rate * tf.stop_gradient(_inner_gradient(w, x, y)), x, y)


@inner_step.mistake("no_step")
def _(rate, w, x, y):
    """This is the loss before the step: the assignment is gone, and nothing has taken its place."""
    return _loss_at(w, x, y)


@inner_step.mistake("uphill")
def _(rate, w, x, y):
    """The path is there. The step goes uphill: `assign_sub` subtracts."""
    return _loss_at(w + rate * _inner_gradient(w, x, y), x, y)


# 4


def _margins(random, dtype):
    def trial(scores, sides):
        return tf.constant(scores, dtype), tf.constant(sides, dtype)

    shown = trial([2.0, -1.0, 1000.0], [1.0, 1.0, -1.0])
    sides = np.sign(random.normal(size=7))
    return [shown, trial(random.normal(size=7), sides), trial([1500.0, -2000.0, 0.5], [1.0, -1.0, -1.0])]


def _soft_margin(scores, sides):
    z = -sides * scores
    return tf.reduce_mean(tf.maximum(z, 0.0) + tf.math.log1p(tf.exp(-tf.abs(z))))


soft_margin = Exercise(
    title="Case 4, most wrong, least taught",
    minutes=5,
    hints=(
        r"The third score is 1000, on the wrong side. What is $e^{1000}$ in floating point?",
        "The logarithm would bring it back to 1000, and never sees it. Clipping the exponent makes the loss finite: "
        "what is the gradient of a clip where it clips?",
        "Section 3 of notebook 04 has a table of operations that do two steps in one.",
        "`tf.nn.softplus(z)` is `log(1 + exp(z))`.",
    ),
    checker=Repair(
        reference=_soft_margin,
        inputs=_margins,
        observe=_with_gradients("the scores"),
        diagnosis=_diagnosis(
            "overflow",
            log_of_zero="The logarithm's argument is 1 or more. What is it at its largest?",
            a_wrong_label="An example on the wrong side is what the loss is for. Its slope should be the largest.",
        ),
    ),
)


@soft_margin.starter()
def _():
    cause = ...  # "a wrong label", "log of zero" or "overflow"

    def repaired(scores, sides):
        z = -sides * scores
        return tf.reduce_mean(tf.math.log(1.0 + tf.exp(z)))

    return cause, repaired


@soft_margin.right
def _():
    """The exponential overflows to infinity before the logarithm can bring it back. `tf.nn.softplus` is arranged so
    that no exponent is positive; its slope is the sigmoid of z, at most 1, and 1 where the example is most wrong."""
    cause = "overflow"

    def repaired(scores, sides):
        z = -sides * scores
        return tf.reduce_mean(tf.nn.softplus(z))

    return cause, repaired


@soft_margin.mistake("clipped")
def _(scores, sides):
    """Finite, and dead: a clip passes no gradient where it clips, so the examples that are most wrong teach nothing.
    The value is wrong for them, too."""
    return tf.reduce_mean(tf.math.log(1.0 + tf.exp(tf.minimum(-sides * scores, 80.0))))


@soft_margin.mistake("dropped")
def _(scores, sides):
    """The infinite losses have been replaced by 0, so the worst example counts as perfect; and in the backward pass the
    infinity is still there, multiplied by the 0 of `tf.where`."""
    losses = tf.math.log(1.0 + tf.exp(-sides * scores))
    return tf.reduce_mean(tf.where(tf.math.is_finite(losses), losses, 0.0))


@soft_margin.mistake("chosen_after")
def _(scores, sides):
    """The value is right everywhere, and the gradient still NaN: `tf.where` chooses after both branches were computed.
    That is case 5; here one operation does it all."""
    z = -sides * scores
    return tf.reduce_mean(tf.where(z > 80.0, z, tf.math.log(1.0 + tf.exp(z))))


@soft_margin.mistake("log1p")
def _(scores, sides):
    """There is still an infinity. The exponential has overflowed before `log1p`, or an ε, can do anything about it; and
    with the logarithm of a sigmoid, the sigmoid has become 0 before its logarithm is taken."""
    return tf.reduce_mean(tf.math.log1p(tf.exp(-sides * scores)))


@soft_margin.mistake("hinge")
def _(scores, sides):
    """A hinge has no overflow, and is another loss: it is flat as soon as the side is right."""
    return tf.reduce_mean(tf.nn.relu(-sides * scores))


# 5


def _ratios(random, dtype):
    def trial(predicted, target):
        return tf.constant(predicted, dtype), tf.constant(target, dtype)

    target = random.normal(size=8)
    target[[2, 5]] = 0.0
    return [
        trial([2.2, 0.4, 0.9], [2.0, 0.0, 1.0]),
        trial(random.normal(size=8), target),
        trial([1.2e-3, -0.3, 0.1], [1e-3, 0.0, -1.0]),
    ]


def _relative(predicted, target):
    known = np.asarray(target) != 0
    error = (predicted - np.where(known, target, 0.0)) / tf.constant(np.where(known, target, 1.0), predicted.dtype)
    return tf.reduce_mean(error**2)


relative_error = Exercise(
    title="Case 5, the branch that was not taken",
    minutes=6,
    hints=(
        "The loss is finite. So the NaN is made on the way back. Which operation has no finite slope at this target?",
        "`tf.where` sends 0 to the branch that it did not choose. What is 0 divided by 0?",
        "Replacing the NaN by 0 afterwards loses what came through the branch that *was* chosen. The infinity must not "
        "arise: choose before the division as well. A small ε added to every target changes the small ones.",
        "Divide by `tf.where(target == 0.0, 1.0, target)`; the last `tf.where` stays as it is.",
    ),
    checker=Repair(
        reference=_relative,
        inputs=_ratios,
        observe=_with_gradients("the prediction"),
        diagnosis=_diagnosis(
            "the branch not taken",
            the_branch_taken="`predicted` has the slope 1, and its square is tame.",
            the_comparison="`target == 0.0` gives booleans, which have no gradient, and nothing asks them for one.",
        ),
    ),
)


@relative_error.starter()
def _():
    cause = ...  # "the branch not taken", "the branch taken" or "the comparison"

    def repaired(predicted, target):
        relative = (predicted - target) / target
        error = tf.where(target == 0.0, predicted, relative)
        return tf.reduce_mean(error**2)

    return cause, repaired


@relative_error.right
def _():
    """Both branches are computed and differentiated; the choice comes afterwards. With a harmless divisor where the
    quotient is not wanted, its slope is finite, and 0 times a finite slope is 0. `tf.math.divide_no_nan` does as
    well."""
    cause = "the branch not taken"

    def repaired(predicted, target):
        divisor = tf.where(target == 0.0, 1.0, target)
        relative = (predicted - target) / divisor
        error = tf.where(target == 0.0, predicted, relative)
        return tf.reduce_mean(error**2)

    return cause, repaired


@tf.custom_gradient
def _finite_gradient(x):
    """The identity, that replaces what is not finite on the way back by 0."""
    return tf.identity(x), lambda upstream: tf.where(tf.math.is_finite(upstream), upstream, 0.0)


@relative_error.mistake("nan_to_zero")
def _(predicted, target):
    """The alarm is off, and the patient is not well: the element with target 0 has a gradient of its own, through the
    branch that was taken. It was added to the NaN, and you have thrown away the sum."""
    predicted = _finite_gradient(predicted)
    error = tf.where(target == 0.0, predicted, (predicted - target) / target)
    return tf.reduce_mean(error**2)


@relative_error.mistake("stopped")
def _(predicted, target):
    """No NaN any more, and no gradient from any relative error either: `tf.stop_gradient` has cut them all off."""
    relative = tf.stop_gradient((predicted - target) / target)
    return tf.reduce_mean(tf.where(target == 0.0, predicted, relative) ** 2)


@relative_error.mistake("left_out")
def _(predicted, target):
    """The elements with target 0 have been left out of the mean. They count, with their absolute error."""
    known = target != 0.0
    return tf.reduce_mean(tf.boolean_mask((predicted - target) / target, known) ** 2)


@relative_error.mistake("epsilon")
def _(predicted, target):
    """Finite, and an ε of that size is as large as some of the targets: their relative errors are now wrong. There is
    an exact way."""
    relative = (predicted - target) / (target + 1e-3)
    return tf.reduce_mean(tf.where(target == 0.0, predicted, relative) ** 2)


@relative_error.mistake("masked")
def _(predicted, target):
    """A product does not choose: 0 · ∞ is NaN, and now the value has it as well."""
    zero = tf.cast(target == 0.0, predicted.dtype)
    return tf.reduce_mean((zero * predicted + (1.0 - zero) * (predicted - target) / target) ** 2)


# 6


def _columns(random, dtype):
    mixed = random.normal(size=(8, 4))
    mixed[:, 2] = 0.25
    return [
        (tf.constant([[1.0, 3.0], [2.0, 3.0], [4.0, 3.0], [5.0, 3.0]], dtype),),
        (tf.constant(mixed, dtype),),
        (tf.constant(mixed * 0.03125, dtype),),
        (tf.constant(mixed * 2.0**-22, dtype),),  # quiet
    ]


@tf.custom_gradient
def _spread(x):
    """Value and gradient in closed form, with NumPy."""
    values = x.numpy().astype(np.float64)
    centred = values - values.mean(axis=0)
    std = values.std(axis=0)
    slope = np.where(std > 0, centred / np.where(std > 0, std, 1.0), 0.0) / values.size
    return tf.constant(std.mean(), x.dtype), lambda upstream: upstream * tf.constant(slope, x.dtype)


spread = Exercise(
    title="Case 6, no spread at all",
    minutes=6,
    hints=(
        "The second column is constant. What is its variance, and what is the slope of a square root there?",
        "An ε that is added *after* the root has derivative 0 and cures nothing. One inside the root changes every "
        "small spread. Exchanging a NaN for a 0 in the *value* finds none: the value is fine.",
        "Make the choice before the root, as `safe_norm` of notebook 04 does: where the variance is 0, give the root "
        "something harmless.",
        "`flat = variance == 0.0`, then `tf.where(flat, 0.0, tf.sqrt(tf.where(flat, 1.0, variance)))`.",
    ),
    checker=Repair(
        reference=_spread,
        inputs=_columns,
        observe=_with_gradients("x"),
        diagnosis=_diagnosis(
            "the root",
            negative_variance="A mean of squares is not negative. What is it exactly, in the second column?",
            the_mean="A mean has the slope 1/n, and subtracting it is linear.",
        ),
    ),
)


@spread.starter()
def _():
    cause = ...  # "negative variance", "the mean" or "the root"

    def repaired(x):
        centred = x - tf.reduce_mean(x, axis=0)
        variance = tf.reduce_mean(centred**2, axis=0)
        return tf.reduce_mean(tf.sqrt(variance))

    return cause, repaired


@spread.right
def _():
    """The root's slope at 0 is infinite, and the squares' slope there is 0: their product is NaN. A standard deviation
    has a kink at equal numbers, like a norm at 0, and 0 is a fair choice of slope. The choice before the root leaves
    every other column exactly as it was. `tf.math.reduce_std` has the same trap."""
    cause = "the root"

    def repaired(x):
        centred = x - tf.reduce_mean(x, axis=0)
        variance = tf.reduce_mean(centred**2, axis=0)
        flat = variance == 0.0
        deviation = tf.where(flat, 0.0, tf.sqrt(tf.where(flat, 1.0, variance)))
        return tf.reduce_mean(deviation)

    return cause, repaired


def _variance(x):
    return tf.reduce_mean((x - tf.reduce_mean(x, axis=0)) ** 2, axis=0)


@spread.mistake("epsilon_inside")
def _(x):
    """No NaN. But this ε is as large as the variances of quiet columns: their spread, and its slope, are wrong now."""
    return tf.reduce_mean(tf.sqrt(_variance(x) + 1e-3))


@spread.mistake("variance")
def _(x):
    """The variance has no kink, and is another quantity: twice the spread counts four times."""
    return tf.reduce_mean(_variance(x))


@spread.mistake("columns_left_out")
def _(x):
    """The mean now runs over fewer columns: a constant one counts, with a spread of 0."""
    variance = _variance(x)
    return tf.reduce_mean(tf.sqrt(tf.boolean_mask(variance, variance > 0.0)))


@spread.mistake("stopped")
def _(x):
    """The NaN is gone, together with every gradient: a spread that cannot be trained."""
    return tf.reduce_mean(tf.sqrt(tf.stop_gradient(_variance(x)))) + 0.0 * tf.reduce_sum(x)


@spread.mistake("clipped")
def _(x):
    """Every column below the clip is flat now, not only the constant ones: quiet columns get the wrong value and no
    gradient."""
    return tf.reduce_mean(tf.sqrt(tf.maximum(_variance(x), 1e-2)))


@spread.wrong("as_before")
def _(x):
    return tf.reduce_mean(tf.sqrt(_variance(x))) + 1e-12


@spread.wrong("as_before")
def _(x):
    deviation = tf.sqrt(_variance(x))
    return tf.reduce_mean(tf.where(tf.math.is_nan(deviation), 0.0, deviation))


# 7


def _images(random, dtype):
    def trial(errors, mask):
        return tf.constant(errors, dtype), tf.constant(mask, dtype)

    mask = random.integers(0, 2, size=(4, 6))
    mask[:, 0], mask[2] = 1, 0
    return [
        trial([[1.0, 2.0], [3.0, 4.0]], [[1.0, 1.0], [0.0, 0.0]]),
        trial(random.normal(size=(4, 6)), mask),
        trial(random.normal(size=(3, 2)), [[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]),
    ]


def _marked(errors, mask):
    counts = np.sum(mask, axis=1, keepdims=True)
    weights = tf.constant(np.asarray(mask) / np.where(counts > 0, counts, 1.0), errors.dtype)
    return tf.reduce_mean(tf.reduce_sum(weights * errors**2, axis=1))


empty_mask = Exercise(
    title="Case 7, one image with nothing in it",
    minutes=5,
    hints=(
        "How many pixels are marked in the second image? What is the mean over that many?",
        "0/0 is NaN, and a mean over images hands it on to the whole batch. Exchanging the NaN for 0 after the "
        "division mends the value alone: look at the gradient of that image's errors.",
        "Give the division something it can divide by, where the count is 0, and nowhere else: adding 1 to every count "
        "changes all means.",
        "`tf.maximum(count, 1.0)`, or `tf.math.divide_no_nan(total, count)`.",
    ),
    checker=Repair(
        reference=_marked,
        inputs=_images,
        observe=_with_gradients("the errors"),
        diagnosis=_diagnosis(
            "an empty mean",
            overflow="The errors are small. Which number is the total divided by?",
            the_mask="A mask of zeros and ones is a good mask, and a product with 0 is 0 while the other factor is "
            "finite. What follows the product?",
        ),
    ),
)


@empty_mask.starter()
def _():
    cause = ...  # "an empty mean", "overflow" or "the mask"

    def repaired(errors, mask):
        total = tf.reduce_sum(mask * errors**2, axis=1)
        count = tf.reduce_sum(mask, axis=1)
        return tf.reduce_mean(total / count)

    return cause, repaired


@empty_mask.right
def _():
    """An image without marked pixels has the total 0 and the count 0. With a count of at least 1 its mean is 0, with a
    gradient of 0, and the counts of all other images are as they were."""
    cause = "an empty mean"

    def repaired(errors, mask):
        total = tf.reduce_sum(mask * errors**2, axis=1)
        count = tf.reduce_sum(mask, axis=1)
        return tf.reduce_mean(total / tf.maximum(count, 1.0))

    return cause, repaired


def _means(errors, mask):
    return tf.reduce_sum(mask * errors**2, axis=1), tf.reduce_sum(mask, axis=1)


@empty_mask.mistake("nan_to_zero")
def _(errors, mask):
    """The value is right now, and the gradient is still NaN for the empty image: `tf.where` sends it a 0, the division
    by a count of 0 makes an infinity of nothing, and their product is NaN. The optimizer gets that."""
    total, count = _means(errors, mask)
    mean = total / count
    return tf.reduce_mean(tf.where(tf.math.is_nan(mean), 0.0, mean))


@empty_mask.mistake("batch_thrown_away")
def _(errors, mask):
    """One empty image, and the whole batch counts as 0. Nothing is learnt from the others, and the NaN is still in the
    gradient."""
    total, count = _means(errors, mask)
    loss = tf.reduce_mean(total / count)
    return tf.where(tf.math.is_nan(loss), 0.0, loss)


@empty_mask.mistake("one_more")
def _(errors, mask):
    """Every mean is too small: 1 was added to every count, also to those that were in order."""
    total, count = _means(errors, mask)
    return tf.reduce_mean(total / (count + 1.0))


@empty_mask.mistake("images_left_out")
def _(errors, mask):
    """The mean now runs over the images that have marked pixels. All images were to count, the empty ones with 0."""
    total, count = _means(errors, mask)
    return tf.reduce_sum(tf.math.divide_no_nan(total, count)) / tf.reduce_sum(tf.cast(count > 0.0, errors.dtype))


@empty_mask.mistake("pixels_pooled")
def _(errors, mask):
    """One mean over all marked pixels of the batch: images with many pixels now weigh more than others."""
    total, count = _means(errors, mask)
    return tf.reduce_sum(total) / tf.reduce_sum(count)


# 8


def _queries(random, dtype):
    def trial(scores, values, allowed):
        return tf.constant(scores, dtype), tf.constant(values, dtype), tf.constant(allowed)

    allowed = random.integers(0, 2, size=(5, 4)).astype(bool)
    allowed[:, 1], allowed[3] = True, False
    scores, values = random.normal(size=(5, 4)), random.normal(size=(4, 3))
    unknown = scores.copy()
    unknown[0, 1] = np.nan
    return [
        trial([[1.0, 2.0], [0.5, 0.5]], [[1.0, 2.0], [3.0, 5.0]], [[True, True], [False, False]]),
        trial(scores, values, allowed),
        trial(unknown, values, allowed),
    ]


def _observe_attention(answer, scores, values, allowed):
    if np.isnan(scores).any():  # a score that is really broken has to stay visible
        return {"the result for a score that is NaN": answer(scores, values, allowed)}
    return _with_gradients("the scores", "the values", value="the result")(answer, scores, values, allowed)


def _attention(scores, values, allowed):
    """The softmax written out over what is allowed."""
    kept = tf.constant(np.asarray(allowed), scores.dtype)
    exponentials = kept * tf.exp(scores)
    total = tf.reduce_sum(exponentials, axis=1, keepdims=True)
    empty = tf.constant(~np.any(allowed, axis=1, keepdims=True), scores.dtype)
    return tf.matmul(exponentials / (total + empty), values)


attention = Exercise(
    title="Case 8, nothing to attend to",
    minutes=8,
    hints=(
        "What does `explain` say about the second row? A softmax subtracts the largest score first: what is −∞ − (−∞)?",
        "With a very negative number in place of −∞ there is no NaN, and all weights of that row are equal: it attends "
        "to everything that was masked. What factor makes them 0?",
        "Exchanging NaN for 0 in the weights gives the right zeros here, and hides a score that is NaN for a real "
        "reason. The mask knows which weights are to be 0; ask the mask.",
        "Replace −∞ by `-1e9`, and multiply the softmax by `tf.cast(allowed, scores.dtype)`. In a row where something "
        "is allowed, the other weights are 0 already.",
    ),
    checker=Repair(
        reference=_attention,
        inputs=_queries,
        observe=_observe_attention,
        diagnosis=_diagnosis(
            "a row without scores",
            minus_infinity="−∞ among finite scores is what everyone does, and quite right: its weight is exactly 0. "
            "The first row has had no trouble.",
            large_scores="The scores are about 1, and a softmax has no trouble with large ones.",
        ),
    ),
)


@attention.starter()
def _():
    cause = ...  # "a row without scores", "large scores" or "minus infinity"

    def repaired(scores, values, allowed):
        scores = tf.where(allowed, scores, -np.inf)
        weights = tf.nn.softmax(scores)
        return tf.matmul(weights, values)

    return cause, repaired


@attention.right
def _():
    """A row of −∞ only has no largest score to subtract. A finite stand-in gives such a row equal weights, and the
    product with the mask makes them 0, in the value and in the gradient. Rows that have something to attend to do not
    notice: what the product removes from them was 0 before."""
    cause = "a row without scores"

    def repaired(scores, values, allowed):
        scores = tf.where(allowed, scores, -1e9)
        weights = tf.nn.softmax(scores) * tf.cast(allowed, scores.dtype)
        return tf.matmul(weights, values)

    return cause, repaired


@attention.mistake("very_negative")
def _(scores, values, allowed):
    """Finite, and the row attends to what it must not see: equal scores have equal weights, however negative they are.
    Padding now flows into the result, and gradients flow back into padding."""
    return tf.matmul(tf.nn.softmax(tf.where(allowed, scores, -1e9)), values)


@attention.mistake("nan_to_zero")
def _(scores, values, allowed):
    """All is well for healthy scores. One that is NaN, because something broke before, gives zeros now as well: the
    alarm has been taken down for good. The mask says which rows are to be 0, and `is_nan` guesses it."""
    weights = tf.nn.softmax(tf.where(allowed, scores, -np.inf))
    return tf.matmul(tf.where(tf.math.is_nan(weights), tf.zeros_like(weights), weights), values)


@attention.mistake("result_replaced")
def _(scores, values, allowed):
    """The result is right. The weights behind it are still NaN, and the gradient of the *values*, which all rows share,
    is 0 · NaN: one padded row poisons every value."""
    result = tf.matmul(tf.nn.softmax(tf.where(allowed, scores, -np.inf)), values)
    some = tf.reduce_any(allowed, axis=1, keepdims=True)
    return tf.where(some, result, tf.zeros_like(result))


@attention.mistake("scores_times_mask")
def _(scores, values, allowed):
    """A score of 0 is no mask: its weight is in proportion to e⁰ = 1."""
    return tf.matmul(tf.nn.softmax(scores * tf.cast(allowed, scores.dtype)), values)


@attention.mistake("not_normalised")
def _(scores, values, allowed):
    """Masked after the softmax, with the scores unmasked: the weights that are left no longer add up to 1."""
    return tf.matmul(tf.nn.softmax(scores) * tf.cast(allowed, scores.dtype), values)


# 9


def _classified(random, dtype):
    def trial(rows):
        kernel, bias = _numbers(random, dtype, 3, 1), _numbers(random, dtype, 1)
        return kernel, bias, _numbers(random, dtype, rows, 3), tf.constant(random.integers(0, 2, size=rows), dtype)

    return [trial(4), trial(9)]


def _probability_loss(kernel, bias, x, y):
    z = tf.tensordot(x, kernel[:, 0], 1) + bias
    return tf.reduce_mean((0.5 * (1.0 + tf.tanh(0.5 * z)) - y) ** 2)


one_unit = Exercise(
    title="Case 9, as sure as can be",
    minutes=4,
    hints=(
        "Print `p`. What do a softmax's outputs add up to, and how many are there in a row?",
        "The output is 1 whatever the weights are: no learning rate and no other loss can change that. A softmax over "
        "axis 0 does move, but it shares one probability out among the *examples*.",
        "One unit for two classes asks for the function that takes a single number to a probability.",
        "`tf.sigmoid`.",
    ),
    checker=Repair(
        reference=_probability_loss,
        inputs=_classified,
        observe=_with_gradients("the kernel", "the bias"),
        diagnosis=_diagnosis(
            "softmax of one number",
            saturation="A saturated unit has a slope that is small, and other weights would wake it. Try weights of 0: "
            "here the slope is 0 for all of them.",
            a_minimum="At a minimum the loss could not be lower. Here two of three examples are wrong, with "
            "full confidence.",
        ),
    ),
)


@one_unit.starter()
def _():
    cause = ...  # "a minimum", "saturation" or "softmax of one number"

    def repaired(kernel, bias, x, y):
        p = tf.nn.softmax(tf.matmul(x, kernel) + bias)[:, 0]
        return tf.reduce_mean((p - y) ** 2)

    return cause, repaired


@one_unit.right
def _():
    """A softmax divides each exponential by their sum. With one number in a row that is 1, and a constant has the
    gradient 0. The sigmoid is a softmax over two numbers of which the other is 0."""
    cause = "softmax of one number"

    def repaired(kernel, bias, x, y):
        p = tf.sigmoid(tf.matmul(x, kernel) + bias)[:, 0]
        return tf.reduce_mean((p - y) ** 2)

    return cause, repaired


def _squared(p, y):
    return tf.reduce_mean((p - y) ** 2)


@one_unit.mistake("over_the_batch")
def _(kernel, bias, x, y):
    """Now the gradient moves, and the loss may even fall. The softmax runs over the examples: they share one
    probability, and what is said of one depends on who else is in the batch."""
    return _squared(tf.nn.softmax(tf.matmul(x, kernel) + bias, axis=0)[:, 0], y)


@one_unit.mistake("two_shapes")
def _(kernel, bias, x, y):
    """The output is right. But `p` has kept its second axis, and every output is now compared with every label: print
    the shape of `p - y`. That is case 11."""
    return _squared(tf.sigmoid(tf.matmul(x, kernel) + bias), y)


@one_unit.mistake("no_activation")
def _(kernel, bias, x, y):
    """A gradient, and no probability: without an activation the output can be any number."""
    return _squared((tf.matmul(x, kernel) + bias)[:, 0], y)


@one_unit.mistake("tanh")
def _(kernel, bias, x, y):
    """`tanh` moves between −1 and 1. A probability lies between 0 and 1."""
    return _squared(tf.tanh(tf.matmul(x, kernel) + bias)[:, 0], y)


@one_unit.mistake("relu")
def _(kernel, bias, x, y):
    """A ReLU has no upper end, and half of its inputs have no gradient."""
    return _squared(tf.nn.relu(tf.matmul(x, kernel) + bias)[:, 0], y)


# 10


def _fits(random, dtype):
    def trial(start, target, steps):
        return tf.constant(start, dtype), tf.constant(target, dtype), steps

    return [
        trial([1.75, 0.25, 0.5], [0.5, 0.75, 1.5], 3),
        trial(random.normal(size=5), random.uniform(size=5), 6),
        trial([-0.5, 0.125], [0.875, -0.25], 12),
    ]


def _projected(start, target, steps):
    p, goal = start.numpy().copy(), target.numpy()
    for _ in range(steps):
        p = np.clip(p - 0.25 * 2.0 * (p - goal), 0.0, 1.0)
    return tf.constant(p, start.dtype)


beyond_the_clip = Exercise(
    title="Case 10, the parameter that does not come back",
    minutes=6,
    hints=(
        "The first entry starts at 1.75. What does the loss see of it? And if it moved to 1.74?",
        "A clip is flat outside its range: no learning rate moves what has the gradient 0. Even an entry that starts "
        "inside can step across the border, and is lost from then on.",
        "The constraint belongs to the variable, not to the loss: let the loss see `p` itself.",
        "Clip after the step: `p.assign(tf.clip_by_value(p - 0.25 * gradient, 0.0, 1.0))`.",
    ),
    checker=Repair(
        reference=_projected,
        inputs=_fits,
        diagnosis=_diagnosis(
            "flat outside the range",
            learning_rate="The other entries do move, with the same learning rate.",
            assign_sub="The assignment stands outside the tape, where it belongs.",
        ),
    ),
)


@beyond_the_clip.starter()
def _():
    cause = ...  # "assign sub", "flat outside the range" or "learning rate"

    def repaired(start, target, steps):
        p = tf.Variable(start)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                inside = tf.clip_by_value(p, 0.0, 1.0)
                loss = tf.reduce_sum((inside - target) ** 2)
            p.assign_sub(0.25 * tape.gradient(loss, p))
        return p.read_value()

    return cause, repaired


@beyond_the_clip.right
def _():
    """Outside its range a clip is constant, and its gradient is 0, rightly. The loss sees the variable itself, and the
    constraint is met by the step: *projected* gradient descent."""
    cause = "flat outside the range"

    def repaired(start, target, steps):
        p = tf.Variable(start)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((p - target) ** 2)
            p.assign(tf.clip_by_value(p - 0.25 * tape.gradient(loss, p), 0.0, 1.0))
        return p.read_value()

    return cause, repaired


def _descended(start, target, steps, seen, stepped=lambda p: p):
    """Gradient descent; the loss sees `seen(p)`, and each step ends with `stepped`."""
    p = tf.identity(start)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(p)
            loss = tf.reduce_sum((seen(p) - target) ** 2)
        p = stepped(p - 0.25 * tape.gradient(loss, p))
    return p


def _clip(p):
    return tf.clip_by_value(p, 0.0, 1.0)


@beyond_the_clip.mistake("constraint_removed")
def _(start, target, steps):
    """Everything moves, and nothing holds the parameter inside: where the target lies outside, it follows."""
    return _descended(start, target, steps, lambda p: p)


@beyond_the_clip.mistake("start_clipped")
def _(start, target, steps):
    """A better start. But a step can still cross the border, and out there the loss is flat: the parameter stays
    outside."""
    return _descended(_clip(start), target, steps, _clip)


@beyond_the_clip.mistake("straight_through")
def _(start, target, steps):
    """The clip now pretends to have the slope 1 everywhere. The loss sees a value inside, while the parameter itself
    wanders on outside: what is returned is not in the range."""
    return _descended(start, target, steps, lambda p: p + tf.stop_gradient(_clip(p) - p))


@beyond_the_clip.mistake("clipped_once_at_the_end")
def _(start, target, steps):
    """The result lies inside, and its value is not what descent would reach: the clip in the loss is still flat on the
    way."""
    return _clip(_descended(start, target, steps, _clip))


@beyond_the_clip.mistake("clipped_twice")
def _(start, target, steps):
    """Inside after every step. But the loss still sees a clip, and an entry that starts outside has no gradient in its
    first step: it is put on the border, wherever it was heading."""
    return _descended(start, target, steps, _clip, _clip)


@beyond_the_clip.mistake("leaky")
def _(start, target, steps):
    """The slope outside is small in place of 0: the parameter comes back some day, and it is outside until then."""
    return _descended(start, target, steps, lambda p: _clip(p) + 0.01 * (p - _clip(p)))


# 11


def _regressions(random, dtype):
    def trial(rows):
        return _numbers(random, dtype, 3, 1), _numbers(random, dtype, rows, 3), _numbers(random, dtype, rows)

    return [trial(2), trial(7)]


def _regression(w, x, y):
    return tf.reduce_mean((tf.tensordot(x, w[:, 0], 1) - y) ** 2)


two_shapes = Exercise(
    title="Case 11, a perfect model with a loss",
    minutes=4,
    hints=(
        "Print the shapes of `predicted`, of `y` and of their difference.",
        "(n, 1) and (n,) broadcast to (n, n): every prediction is compared with every target. The best that such a "
        "loss can teach is the mean of the targets.",
        "Adding up where the mean was, or another learning rate, changes nothing about which pairs are compared. Give "
        "both the same shape.",
        "`predicted[:, 0] - y`, or `predicted - y[:, None]`.",
    ),
    checker=Repair(
        reference=_regression,
        inputs=_regressions,
        observe=_with_gradients("w"),
        diagnosis=_diagnosis(
            "broadcasting",
            the_mean="A mean over the right differences is right. Over how many does it run?",
            rounding="Rounding leaves seven digits right. Here not one is.",
        ),
    ),
)


@two_shapes.starter()
def _():
    cause = ...  # "broadcasting", "rounding" or "the mean"

    def repaired(w, x, y):
        predicted = tf.matmul(x, w)
        return tf.reduce_mean((predicted - y) ** 2)

    return cause, repaired


@two_shapes.right
def _():
    """The prediction has shape (n, 1), the targets (n,), and their difference is a table of n times n. With one shape
    for both, each prediction meets its own target. No tool can be sure that you did not want the table; ask for the
    shape of a difference whenever a loss surprises you."""
    cause = "broadcasting"

    def repaired(w, x, y):
        predicted = tf.matmul(x, w)[:, 0]
        return tf.reduce_mean((predicted - y) ** 2)

    return cause, repaired


@two_shapes.mistake("mean_target")
def _(w, x, y):
    """Each prediction is compared with the mean of the targets: that is what the broken loss taught, by a shorter
    way."""
    return tf.reduce_mean((tf.matmul(x, w) - tf.reduce_mean(y)) ** 2)


@two_shapes.mistake("summed")
def _(w, x, y):
    """A sum, in place of a mean, over the same table of n times n."""
    return tf.reduce_sum((tf.matmul(x, w) - y) ** 2)


@two_shapes.mistake("mean_inside")
def _(w, x, y):
    """The table is averaged before the square, so each target is compared with the mean of the predictions."""
    return tf.reduce_mean(tf.reduce_mean(tf.matmul(x, w) - y, axis=0) ** 2)


@two_shapes.mistake("divided_by_rows")
def _(w, x, y):
    """Dividing by n does not bring back the pairs: the table still compares every prediction with every target."""
    return tf.reduce_mean((tf.matmul(x, w) - y) ** 2) / tf.cast(len(y), y.dtype)


# 12


def _micro_batches(random, dtype):
    def trial(*sizes):
        batches = []
        for rows in sizes:
            kept = random.integers(0, 2, size=rows)
            kept[0] = 1
            x, y = _numbers(random, dtype, rows, 2), _numbers(random, dtype, rows)
            batches.append((x, y, tf.constant(kept, dtype)))
        return tf.Variable(_numbers(random, dtype, 2)), batches

    return [trial(2, 6), trial(3, 8, 5), trial(4)]


def _over_all(w, batches):
    x, y, kept = (tf.concat(parts, axis=0) for parts in zip(*batches, strict=True))
    return 2.0 * tf.linalg.matvec(x, kept * (tf.linalg.matvec(x, w) - y), transpose_a=True) / tf.reduce_sum(kept)


accumulated = Exercise(
    title="Case 12, four small steps for one large",
    minutes=7,
    hints=(
        "Take one batch with 2 kept rows and one with 6. How much does a row of each count in the mean of the two "
        "means? And in the mean over all 8?",
        "Weighting by the number of *rows* is not it: rows that are masked are no rows.",
        "Add up the gradients of the *sums*, and the counts. What is left to do at the end?",
        "Inside: `loss = tf.reduce_sum(kept * errors)` and `count += tf.reduce_sum(kept)`; at the end `total / count`.",
    ),
    checker=Repair(
        reference=_over_all,
        inputs=_micro_batches,
        diagnosis=_diagnosis(
            "a mean of means",
            several_tapes="Gradients are linear: those of two tapes add up to the gradient of the sum. Of which sum?",
            rounding="Rounding leaves about seven digits right. Here the first differs.",
        ),
    ),
)


@accumulated.starter()
def _():
    cause = ...  # "a mean of means", "rounding" or "several tapes"

    def repaired(w, batches):
        total = tf.zeros_like(w)
        for x, y, kept in batches:
            with tf.GradientTape() as tape:
                errors = (tf.linalg.matvec(x, w) - y) ** 2
                loss = tf.reduce_sum(kept * errors) / tf.reduce_sum(kept)
            total += tape.gradient(loss, w)
        return total / len(batches)

    return cause, repaired


@accumulated.right
def _():
    """A mean of means counts each batch the same, and so a row of a sparse batch more than a row of a full one. Sums
    add up without such weights; the one division comes last, by the number of rows that were kept."""
    cause = "a mean of means"

    def repaired(w, batches):
        total, count = tf.zeros_like(w), 0.0
        for x, y, kept in batches:
            with tf.GradientTape() as tape:
                errors = (tf.linalg.matvec(x, w) - y) ** 2
                loss = tf.reduce_sum(kept * errors)
            total += tape.gradient(loss, w)
            count += tf.reduce_sum(kept)
        return total / count

    return cause, repaired


def _batch_gradient(w, x, y, kept):
    """Of the sum over the kept rows."""
    return 2.0 * tf.linalg.matvec(x, kept * (tf.linalg.matvec(x, w) - y), transpose_a=True)


@accumulated.mistake("by_rows")
def _(w, batches):
    """Each batch's mean is weighted by its number of rows, and the masked ones are among them. What did each mean
    divide by?"""
    rows = sum(len(y) for _, y, _ in batches)
    return sum(len(y) / rows * _batch_gradient(w, x, y, kept) / tf.reduce_sum(kept) for x, y, kept in batches)


@accumulated.mistake("undivided")
def _(w, batches):
    """The gradient of the sum over all rows. The mean is asked for: there is one division left."""
    return sum(_batch_gradient(w, *batch) for batch in batches)


@accumulated.mistake("means_added")
def _(w, batches):
    """Means added up in place of averaged: still means, each divided by its own count."""
    return sum(_batch_gradient(w, x, y, kept) / tf.reduce_sum(kept) for x, y, kept in batches)


@accumulated.mistake("divided_by_all_rows")
def _(w, batches):
    """The sums are right. They have been divided by the number of all rows; the masked ones have no part in the
    mean."""
    return sum(_batch_gradient(w, *batch) for batch in batches) / float(sum(len(y) for _, y, _ in batches))


@accumulated.mistake("last_batch")
def _(w, batches):
    """Only the last batch has arrived. Is `total` added to, or replaced?"""
    x, y, kept = batches[-1]
    return _batch_gradient(w, x, y, kept) / sum(tf.reduce_sum(kept) for _, _, kept in batches)


# 13 and 16: a function that knows how it was run


class _Witness:
    """A loss that counts how often Python ran it, while tracing and eagerly."""

    def __init__(self):
        self.traced = self.eager = 0

    def __call__(self, w):
        if tf.executing_eagerly():
            self.eager += 1
        else:
            self.traced += 1
        return tf.reduce_sum((w - 1.0) ** 2)


def _watched_losses(answer, w, numbers):
    witness, eagerly = _Witness(), tf.config.functions_run_eagerly()
    try:
        result = answer(witness, w, numbers)
    finally:
        tf.config.run_functions_eagerly(eagerly)  # an answer may have changed it for the whole process
    return result, witness


def _observe_penalties(answer, w, penalties):
    result, witness = _watched_losses(answer, w, penalties)
    return {"the losses": result, "the number of eager runs": witness.eager}


def _penalties(random, dtype):
    return [
        (_numbers(random, dtype, 2), [0.0, 1.0, 2.0]),
        (_numbers(random, dtype, 4), [0.5, 0.25, 0.125, 3.0]),
        (_numbers(random, dtype, 3), [2.0, 2.0, 0.0]),
    ]


def _penalised(f, w, penalties):
    @tf.function
    def both(w):
        return f(w), tf.reduce_sum(w**2)

    loss, squares = both(w)
    return loss + tf.constant(penalties, w.dtype) * squares


frozen = Exercise(
    title="Case 13, the schedule that nobody follows",
    minutes=6,
    hints=(
        "How often does Python run the body of `loss`? Put a `print` in it.",
        "Python runs it once, to trace it. What it finds in `penalty` then becomes a constant of the graph. Running "
        "everything eagerly would hide that, and cost you the graph.",
        "What changes between calls has to come in as an argument, or live in a `tf.Variable`.",
        "`def loss(w, penalty)`, called with `tf.constant(penalty, w.dtype)`.",
    ),
    checker=Repair(
        reference=_penalised,
        inputs=_penalties,
        observe=_observe_penalties,
        diagnosis=_diagnosis(
            "frozen when traced",
            the_loop="The loop goes through all penalties, and without `tf.function` the losses are right.",
            rounding="The losses agree in every digit, although the penalties are far apart.",
        ),
    ),
)


@frozen.starter()
def _():
    cause = ...  # "frozen when traced", "rounding" or "the loop"

    def repaired(f, w, penalties):
        @tf.function
        def loss(w):
            return f(w) + penalty * tf.reduce_sum(w**2)

        losses = []
        for penalty in penalties:
            losses.append(loss(w))
        return tf.stack(losses)

    return cause, repaired


@frozen.right
def _():
    """The first call traces `loss`: Python runs its body once, and a Python number that it meets becomes a constant of
    the graph. Later calls run the graph, and Python's `penalty` is not looked at again. A tensor that comes in as an
    argument is an input of the graph. (A Python number that comes in as an argument gives the right losses as well, and
    a new trace for each number: case 16.)"""
    cause = "frozen when traced"

    def repaired(f, w, penalties):
        @tf.function
        def loss(w, penalty):
            return f(w) + penalty * tf.reduce_sum(w**2)

        losses = []
        for penalty in penalties:
            losses.append(loss(w, tf.constant(penalty, w.dtype)))
        return tf.stack(losses)

    return cause, repaired


@frozen.mistake("run_eagerly")
def _(f, w, penalties):
    """The losses are right, because nothing is compiled any more. The switch, or the missing `tf.function`, hides the
    cause, and each call pays for it in Python."""
    return tf.stack([f(w) + penalty * tf.reduce_sum(w**2) for penalty in penalties])


@frozen.wrong("run_eagerly")
def _(f, w, penalties):
    tf.config.run_functions_eagerly(True)
    loss = tf.function(lambda w: f(w) + penalty * tf.reduce_sum(w**2))
    losses = []
    for penalty in penalties:
        losses.append(loss(w))
    return tf.stack(losses)


@frozen.mistake("the_last_one")
def _(f, w, penalties):
    """All losses have the last penalty now. Each call was to have its own."""
    return tf.stack([_penalised(f, w, penalties)[-1]] * len(penalties))


@frozen.mistake("penalty_left_out")
def _(f, w, penalties):
    """The penalty has gone missing: this is the loss without it."""
    return tf.stack([_penalised(f, w, [0.0])[0]] * len(penalties))


# 14


def _half_rows(random, dtype):
    rows = random.uniform(1.0, 2.0, size=(2, 8)) * np.sign(random.normal(size=(2, 8)))
    return [
        (tf.constant([[3.0, 4.0], [300.0, 400.0]], dtype),),
        (tf.constant(rows * 1000.0, dtype),),
        (tf.constant(rows * 1e-4, dtype),),
    ]


@tf.custom_gradient
def _rms(x):
    """Value and gradient in float64, with NumPy."""
    values = x.numpy().astype(np.float64)
    rms = np.sqrt(np.mean(values**2, axis=1))
    slope = values / (values.shape[1] * rms[:, None])
    return tf.constant(rms, x.dtype), lambda upstream: upstream[:, None] * tf.constant(slope, x.dtype)


half_rms = Exercise(
    title="Case 14, half the digits, a fraction of the range",
    minutes=6,
    hints=(
        "The largest number of float16 is 65504. What is 300 squared? What is its smallest positive number, and what "
        "is 0.0001 squared?",
        "Scaling everything down by a constant saves the large numbers and loses the small ones. Clipping the squares "
        "gives the large ones no gradient.",
        "Square in a wider type. Where must the cast stand: before the square or after it?",
        "`wide = tf.cast(x, tf.float32)`, all the rest with `wide`, and `tf.cast(…, x.dtype)` around the result.",
    ),
    checker=Repair(
        reference=_rms,
        inputs=_half_rows,
        observe=_with_gradients("x"),
        dtypes=(tf.float16,),
        rtol=5e-3,
        diagnosis=_diagnosis(
            "the squares",
            the_root="The root brings numbers back into the range. Were they in it before?",
            the_mean="A sum overflows as well, one line later. In which line is the first infinity?",
        ),
    ),
)


@half_rms.starter()
def _():
    cause = ...  # "the mean", "the root" or "the squares"

    def repaired(x):
        squares = x**2
        return tf.sqrt(tf.reduce_mean(squares, axis=1))

    return cause, repaired


@half_rms.right
def _():
    """float16 ends at 65504, so squares of numbers above 256 are infinite, and below 6e-8 there is only 0, so squares
    of numbers below 0.0002 vanish. In float32 both fit, and the result fits into float16 again. Mixed precision works
    this way: wide where numbers are added up or squared, narrow where they are stored."""
    cause = "the squares"

    def repaired(x):
        wide = tf.cast(x, tf.float32)
        return tf.cast(tf.sqrt(tf.reduce_mean(wide**2, axis=1)), x.dtype)

    return cause, repaired


@half_rms.mistake("cast_too_late")
def _(x):
    """The mean and the root are wide now. The squares overflowed before: a cast brings no infinity back."""
    return tf.cast(tf.sqrt(tf.reduce_mean(tf.cast(x**2, tf.float32), axis=1)), x.dtype)


@half_rms.mistake("scaled")
def _(x):
    """The large numbers are saved, and the small ones are lost: their squares are 0 now, and the slope of the root at 0
    is infinite."""
    return 1024.0 * tf.sqrt(tf.reduce_mean((x / 1024.0) ** 2, axis=1))


@half_rms.mistake("clipped")
def _(x):
    """No infinity. Every square above the clip counts as the clip, with a gradient of 0: large numbers cannot be
    trained, and the value is wrong."""
    return tf.sqrt(tf.reduce_mean(tf.minimum(x, 80.0) ** 2, axis=1))


@half_rms.mistake("mean_of_magnitudes")
def _(x):
    """No squares, no overflow, and another quantity: the mean of the magnitudes."""
    return tf.reduce_mean(tf.abs(x), axis=1)


@half_rms.wrong("dtype")
def _(x):
    return tf.sqrt(tf.reduce_mean(tf.cast(x, tf.float32) ** 2, axis=1))


# 15


def _directions(random, dtype):
    """Rows of unit vectors in float64, rounded: equal, far apart, and very close."""

    def trial(u, v):
        return tuple(tf.constant(rows / np.linalg.norm(rows, axis=1, keepdims=True), dtype) for rows in (u, v))

    u, v = random.normal(size=(4, 3)), random.normal(size=(4, 3))
    close = u / np.linalg.norm(u, axis=1, keepdims=True)
    across = np.cross(close, v)
    return [
        trial(np.eye(3), np.array([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0], [0.0, 0.6, 0.8]])),
        trial(u, v),
        trial(close, close + 1e-3 * across / np.linalg.norm(across, axis=1, keepdims=True)),
    ]


def _observe_angle(answer, u, v):
    """The value, and the gradients along the sphere: off it, formulas for an angle differ."""
    seen = _with_gradients("u", "v", value="the angle")(answer, u, v)
    for name, unit in (("u", u), ("v", v)):
        gradient = seen.pop(f"the gradient of {name}")
        if tf.is_tensor(gradient):
            gradient = gradient - unit * tf.reduce_sum(gradient * unit, axis=1, keepdims=True)
        seen[f"the gradient of {name}, along the sphere"] = gradient
    return seen


@tf.custom_gradient
def _angle(u, v):
    """Value and gradient in float64, with NumPy: the slope is 1, along the great circle."""
    a, b = u.numpy().astype(np.float64), v.numpy().astype(np.float64)
    sine = np.linalg.norm(np.cross(a, b), axis=1)
    cosine = np.sum(a * b, axis=1)
    divisor = np.where(sine > 0, sine, np.inf)[:, None]
    slopes = (-(b - cosine[:, None] * a) / divisor, -(a - cosine[:, None] * b) / divisor)

    def backward(upstream):
        return tuple(upstream[:, None] * tf.constant(slope, u.dtype) for slope in slopes)

    return tf.constant(np.arctan2(sine, cosine), u.dtype), backward


angle = Exercise(
    title="Case 15, the angle between two directions",
    minutes=12,
    hints=(
        "What is the slope of `acos` at 1? And why does a cosine know so little of a small angle: how many digits of "
        r"$1 - \theta^2/2$ are left for $\theta = 0.001$?",
        "Clamping the cosine below 1 makes the slope finite, and every angle below the clamp's the same, with the "
        "gradient 0. The sine is what small angles are made of.",
        r"$\theta = \mathrm{atan2}(\sin\theta, \cos\theta)$, and $\sin\theta$ is the norm of `tf.linalg.cross(u, v)`. "
        "Which trap has a norm?",
        "`squared = tf.reduce_sum(cross**2, axis=1)`, then the safe norm of case 6, `sine = tf.where(squared == 0.0, "
        "0.0, tf.sqrt(tf.where(squared == 0.0, 1.0, squared)))`, and `tf.atan2(sine, cosine)`.",
    ),
    checker=Repair(
        reference=_angle,
        inputs=_directions,
        observe=_observe_angle,
        rtol=2e-3,
        diagnosis=_diagnosis(
            "the slope of acos",
            a_cosine_above_1="That happens too, by rounding, and then the *value* is NaN. Here the value is 0.",
            vectors_not_normalised="They have length 1. Two that are equal have the cosine 1, and that is right.",
        ),
    ),
)


@angle.starter()
def _():
    cause = ...  # "a cosine above 1", "the slope of acos" or "vectors not normalised"

    def repaired(u, v):
        cosine = tf.reduce_sum(u * v, axis=1)
        return tf.acos(cosine)

    return cause, repaired


@angle.right
def _():
    """At 1 the slope of `acos` is infinite, and near 1 a cosine has hardly any digits left for the angle. The sine has
    all of them. `atan2` uses whichever is better, and the safe norm chooses the slope 0 where two directions are
    equal."""
    cause = "the slope of acos"

    def repaired(u, v):
        cosine = tf.reduce_sum(u * v, axis=1)
        squared = tf.reduce_sum(tf.linalg.cross(u, v) ** 2, axis=1)
        equal = squared == 0.0
        sine = tf.where(equal, 0.0, tf.sqrt(tf.where(equal, 1.0, squared)))
        return tf.atan2(sine, cosine)

    return cause, repaired


def _cosine(u, v):
    return tf.reduce_sum(u * v, axis=1)


@angle.mistake("clamped")
def _(u, v):
    """Finite, and blind: all directions closer than 0.014 radians have the same angle, and no gradient. Training stops
    short there, and every model ends with the same error."""
    return tf.acos(tf.clip_by_value(_cosine(u, v), -0.9999, 0.9999))


@angle.mistake("clipped_at_1")
def _(u, v):
    """This keeps the cosine from being above 1. At 1 itself the slope is as infinite as before, and a clip passes the
    gradient on at its edge."""
    return tf.acos(tf.clip_by_value(_cosine(u, v), -1.0, 1.0))


@angle.mistake("chord")
def _(u, v):
    """The distance of the tips is right for small angles, and too short for large ones."""
    squared = tf.reduce_sum((u - v) ** 2, axis=1)
    return tf.where(squared == 0.0, 0.0, tf.sqrt(tf.where(squared == 0.0, 1.0, squared)))


@angle.mistake("sine_not_safe")
def _(u, v):
    """The right formula. The norm of the cross product is a root at 0 where the directions are equal, and there is
    still a NaN."""
    return tf.atan2(tf.sqrt(tf.reduce_sum(tf.linalg.cross(u, v) ** 2, axis=1)), _cosine(u, v))


@angle.mistake("from_the_sine")
def _(u, v):
    """`asin` knows no angle above 90 degrees. `atan2` takes the cosine as well."""
    squared = tf.reduce_sum(tf.linalg.cross(u, v) ** 2, axis=1)
    equal = squared == 0.0
    return tf.asin(tf.minimum(1.0, tf.where(equal, 0.0, tf.sqrt(tf.where(equal, 1.0, squared)))))


@angle.mistake("acos_guarded")
def _(u, v):
    """No NaN at equal directions. Very close ones still come from a cosine that has lost nearly all digits of the
    angle."""
    cosine = _cosine(u, v)
    equal = cosine >= 1.0
    return tf.where(equal, 0.0, tf.acos(tf.where(equal, 0.0, cosine)))


# 16


def _observe_descent(answer, w, rates):
    result, witness = _watched_losses(answer, w, rates)
    return {"w": result, "the number of eager runs": witness.eager, "the number of traces": witness.traced}


def _rates(random, dtype):
    return [
        (_numbers(random, dtype, 2), [0.4, 0.3, 0.2]),
        (_numbers(random, dtype, 3), [0.1, 0.05, 0.025, 0.0125, 0.2]),
    ]


def _descend(f, w, rates):
    tf.function(f).get_concrete_function(w)  # one trace; the minimum is at 1, and the slope is 2 (w - 1)
    return 1.0 + (w - 1.0) * float(np.prod([1.0 - 2.0 * rate for rate in rates]))


retraced = Exercise(
    title="Case 16, compiled again, and again",
    minutes=6,
    hints=(
        "How often was the loss traced, and for how many steps? What is different from one call to the next?",
        "A Python number is part of what a graph is made for: another number, another graph. `reduce_retracing=True` "
        "relaxes shapes, not numbers; running eagerly has no traces because it has no graphs.",
        "What must the rate be, to be an input of the graph?",
        "`step(w, tf.constant(rate, w.dtype))`.",
    ),
    checker=Repair(
        reference=_descend,
        inputs=_rates,
        observe=_observe_descent,
        diagnosis=_diagnosis(
            "Python numbers",
            the_tape="A tape inside a compiled function is traced with it, and does no harm.",
            new_shapes="`w` has one shape throughout. Another shape would indeed be another graph.",
        ),
    ),
)


@retraced.starter()
def _():
    cause = ...  # "new shapes", "Python numbers" or "the tape"

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
    """A Python number is a constant of the graph, so each new one needs a new graph. A tensor is an input, and all
    tensors of one shape and dtype share a graph."""
    cause = "Python numbers"

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
    """One trace, and the first rate for all steps: that is case 13. The rate has to come in as a tensor."""
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


# 17


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
        (_numbers(random, dtype, 3), [_numbers(random, dtype, rows, 3) for rows in sizes])
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
    title="Case 17, a tape that holds everything",
    minutes=6,
    hints=(
        "How long does the tape live, and what has it recorded by the end of the loop?",
        "A tape keeps each intermediate result that its backward pass needs, until `gradient` is called. A persistent "
        "tape, or a list of tapes, keeps even more; `stop_recording` and `stop_gradient` keep nothing and lose the "
        "gradient.",
        "Gradients of a sum are sums of gradients. Where can `gradient` be called, so that one batch is forgotten "
        "before the next begins?",
        "One tape for each batch: `total += tape.gradient(loss, w)` inside the loop.",
    ),
    checker=Repair(
        reference=_summed_gradient,
        inputs=_many_batches,
        observe=_observe_memory,
        diagnosis=_diagnosis(
            "one tape for all",
            the_sum="`total` is one number. It is the tape that holds what the number was computed from.",
            a_leak="Nothing leaks: all of it is released when `gradient` returns. It is needed until then.",
        ),
    ),
)


@held_batches.starter()
def _():
    cause = ...  # "a leak", "one tape for all" or "the sum"

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
    """A tape holds every intermediate result of its block until its backward pass. With one tape for each batch, a
    batch is forgotten before the next one begins, and the gradients add up to the same."""
    cause = "one tape for all"

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


# 18


def _networks(random, dtype):
    def trial(points, units):
        return (
            _numbers(random, dtype, points),
            _numbers(random, dtype, units),
            _numbers(random, dtype, units),
            _numbers(random, dtype, units),
        )

    return [trial(3, 4), trial(6, 5)]


def _curvature(x, kernel, bias, output):
    t = tf.tanh(x[:, None] * kernel + bias)
    return tf.linalg.matvec(-2.0 * t * (1.0 - t**2) * kernel**2, output)


no_curvature = Exercise(
    title="Case 18, an equation that holds for everything",
    minutes=4,
    hints=(
        "What does the graph of this network look like between two kinks?",
        "It is straight, so its second derivative is 0 wherever it exists. A persistent tape or other weights change "
        "nothing about that, and a leaky ReLU has two straight pieces as well.",
        "The equation asks for the second derivative, and its training for the one after that. Use an activation that "
        "has them all.",
        "`tf.tanh` in place of `tf.nn.relu`.",
    ),
    checker=Repair(
        reference=_curvature,
        inputs=_networks,
        diagnosis=_diagnosis(
            "straight pieces",
            the_order_of_the_tapes="The inner gradient is taken inside the outer tape, as it should be.",
            the_weights="Any other weights give the same zeros.",
        ),
    ),
)


@no_curvature.starter()
def _():
    cause = ...  # "straight pieces", "the order of the tapes" or "the weights"

    def repaired(x, kernel, bias, output):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                u = tf.linalg.matvec(tf.nn.relu(x[:, None] * kernel + bias), output)
            u_x = inner.gradient(u, x)
        return outer.gradient(u_x, x)

    return cause, repaired


@no_curvature.right
def _():
    """A network of ReLUs is a polygon: straight between its kinks, and the tape knows nothing of a kink's infinite
    curvature. Its second derivative is 0, rightly, and a training loss made of it is blind. With tanh all derivatives
    exist, and vary."""
    cause = "straight pieces"

    def repaired(x, kernel, bias, output):
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                u = tf.linalg.matvec(tf.tanh(x[:, None] * kernel + bias), output)
            u_x = inner.gradient(u, x)
        return outer.gradient(u_x, x)

    return cause, repaired


def _twice(x, kernel, bias, output, activation):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            u = tf.linalg.matvec(activation(x[:, None] * kernel + bias), output)
        u_x = inner.gradient(u, x)
    return outer.gradient(u_x, x)


@no_curvature.mistake("elu")
def _(x, kernel, bias, output):
    """Curved on one side of 0 and straight on the other, with a jump in the curvature between: half of the units are
    still blind."""
    return _twice(x, kernel, bias, output, tf.nn.elu)


@no_curvature.mistake("squared_relu")
def _(x, kernel, bias, output):
    """There is a second derivative now, and it is constant between the kinks: the third one, which training needs, is
    0."""
    return _twice(x, kernel, bias, output, lambda z: tf.nn.relu(z) ** 2)


@no_curvature.mistake("first_derivative")
def _(x, kernel, bias, output):
    """This is the first derivative of the smooth network."""
    t = tf.tanh(x[:, None] * kernel + bias)
    return tf.linalg.matvec((1.0 - t**2) * kernel, output)


@no_curvature.wrong("as_before")
def _(x, kernel, bias, output):
    return _twice(x, kernel, bias, output, lambda z: tf.nn.leaky_relu(z) + 0.0)


@no_curvature.wrong("as_before")
def _(x, kernel, bias, output):
    return tf.zeros_like(x)


# 19


def _near_zero(random, dtype):
    return [
        (tf.constant([0.0, 1.0], dtype),),
        (tf.constant([1e-4, -1e-3, 0.0, 0.02, 3.0], dtype),),
        (tf.constant([0.09, -0.6], dtype),),
        (tf.constant(random.uniform(-4.0, 4.0, size=6), dtype),),
    ]


def _observe_twice(answer, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = answer(x)
        first = inner.gradient(y, x)
    second = None if first is None else outer.gradient(first, x)
    return {"the value": y, "the first derivative": first, "the second derivative": second}


def _sinc(x):
    """The power series in float64, all the way."""
    square, term, total = tf.cast(x, tf.float64) ** 2, 1.0, 1.0
    for k in range(1, 16):
        term = term * -square / ((2 * k) * (2 * k + 1))
        total = total + term
    return tf.cast(total, x.dtype)


sinc = Exercise(
    title="Case 19, the cure that flattens",
    minutes=12,
    hints=(
        "Which branch does the tape differentiate at 0, and what is the second derivative of that branch?",
        "A branch has to agree with the function in all the derivatives that you ask for, not only in its value. Which "
        "polynomial agrees with sin(x)/x around 0?",
        "Only *at* 0 is not enough: next to 0, the quotient's second derivative is a difference of huge numbers, and "
        "float32 has seven digits. Use the polynomial in a whole neighbourhood, say |x| < 0.1, and keep the double "
        "where for the quotient.",
        "`near = tf.abs(x) < 0.1`, `safe = tf.where(near, 1.0, x)`, and `tf.where(near, 1.0 - x**2 / 6.0 + x**4 / "
        "120.0, tf.sin(safe) / safe)`.",
    ),
    checker=Repair(
        reference=_sinc,
        inputs=_near_zero,
        observe=_observe_twice,
        diagnosis=_diagnosis(
            "a constant branch",
            an_unselected_branch="The quotient is kept from 0 by a harmless argument. Its derivatives there are "
            "finite, and multiplied by 0.",
            rounding="The result is 0 exactly, in float64 as well.",
        ),
    ),
)


@sinc.starter()
def _():
    cause = ...  # "a constant branch", "an unselected branch" or "rounding"

    def repaired(x):
        safe = tf.where(x == 0.0, 1.0, x)
        return tf.where(x == 0.0, 1.0, tf.sin(safe) / safe)

    return cause, repaired


@sinc.right
def _():
    """At 0 the tape differentiates the constant 1. Its slope is right by luck, because the function is level there; its
    curvature is 0, and not −1/3. A polynomial that agrees to fourth order has the right derivatives, and in a whole
    neighbourhood it also spares the quotient the place where its digits cancel. The double where keeps NaN out; it does
    not make a branch right."""
    cause = "a constant branch"

    def repaired(x):
        near = tf.abs(x) < 0.1
        safe = tf.where(near, 1.0, x)
        series = 1.0 - x**2 / 6.0 + x**4 / 120.0
        return tf.where(near, series, tf.sin(safe) / safe)

    return cause, repaired


@sinc.mistake("only_at_zero")
def _(x):
    """Right at 0, and wrong next to it: the quotient's second derivative subtracts huge numbers there, and in float32
    little of it is left. The polynomial needs a neighbourhood."""
    zero = x == 0.0
    safe = tf.where(zero, 1.0, x)
    return tf.where(zero, 1.0 - x**2 / 6.0, tf.sin(safe) / safe)


@sinc.mistake("wider_constant")
def _(x):
    """A wider neighbourhood of the wrong function: now there are more places at which the curvature is 0."""
    near = tf.abs(x) < 0.1
    safe = tf.where(near, 1.0, x)
    return tf.where(near, 1.0, tf.sin(safe) / safe)


@sinc.mistake("one_where")
def _(x):
    """The inner choice is gone, and the NaN is back: 0/0 in the branch that is not taken."""
    return tf.where(tf.abs(x) < 0.1, 1.0 - x**2 / 6.0 + x**4 / 120.0, tf.sin(x) / x)


@sinc.mistake("epsilon")
def _(x):
    """No branch, and no NaN. Next to 0 the second derivative is still a difference of huge numbers, and with so small a
    divisor nothing of it is right."""
    return tf.sin(x + 1e-6) / (x + 1e-6)


@sinc.mistake("series_everywhere")
def _(x):
    """Right near 0. Far away three terms of the series are not enough: there the quotient has no trouble."""
    return 1.0 - x**2 / 6.0 + x**4 / 120.0


# 20


def _samples(random, dtype):
    return [
        (tf.constant([[1.0, 2.0, 4.0]], dtype),),
        (_numbers(random, dtype, 2, 5),),
        (_numbers(random, dtype, 2, 4) + 1000.0,),
    ]


def _observe_hessian(answer, x):
    weights = tf.reshape(tf.sin(tf.cast(tf.range(1, tf.size(x) + 1), x.dtype)), x.shape)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = answer(x)
        first = inner.gradient(y, x, output_gradients=weights)
    units = tf.reshape(tf.eye(tf.size(x), dtype=x.dtype), (-1, *x.shape))
    rows = [] if first is None else [outer.gradient(first, x, output_gradients=unit) for unit in units]
    return {
        "the value": y,
        "the gradient": first,
        "the Hessian": tf.stack(rows) if rows and all(row is not None for row in rows) else None,
    }


def _normalised(x):
    size = x.shape[1]
    centred = tf.matmul(x, tf.constant(np.eye(size) - 1.0 / size, x.dtype))
    return centred / tf.sqrt(tf.reduce_sum(centred**2, axis=1, keepdims=True) / size + 1e-3)


moments = Exercise(
    title="Case 20, right once, wrong twice",
    minutes=12,
    beyond=True,
    hints=(
        "The values are right, the gradient is right, and differences of the gradient say that its derivative is not. "
        "Which line computes something that you cannot see?",
        "Look up the source of `tf.nn.moments`, or the pull request above: where does the variance take its mean from?",
        "A `stop_gradient` on the mean leaves the first derivative as it is, since the distances from a mean add up to "
        "0. The second derivative is missing what it cut. So the variance has to be computed without it. (The mean of "
        "the squares minus the square of the mean is the same on paper; try it on numbers around 1000.)",
        "`variance = tf.reduce_mean((x - mean) ** 2, axis=1, keepdims=True)`.",
    ),
    checker=Repair(
        reference=_normalised,
        inputs=_samples,
        observe=_observe_hessian,
        rtol=5e-3,
        diagnosis=_diagnosis(
            "a hidden stop gradient",
            rounding="In float64 the difference is the same.",
            the_epsilon="The ε stands inside the root, where it belongs, and is no more than a constant.",
        ),
    ),
)


@moments.starter()
def _():
    cause = ...  # "a hidden stop gradient", "rounding" or "the epsilon"

    def repaired(x):
        mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-3)

    return cause, repaired


@moments.right
def _():
    """`tf.nn.moments` takes the variance around a mean that it has stopped. For one derivative that changes nothing,
    and saves time: the distances from a mean add up to 0. The derivative of that derivative lacks a term. Written out,
    the variance has it. Keras's normalisation layers use the same function, so a gradient penalty, a Hessian or a
    Laplacian through them is a little wrong; those of `tapelab.derivatives` put the term back."""
    cause = "a hidden stop gradient"

    def repaired(x):
        mean = tf.reduce_mean(x, axis=1, keepdims=True)
        variance = tf.reduce_mean((x - mean) ** 2, axis=1, keepdims=True)
        return (x - mean) / tf.sqrt(variance + 1e-3)

    return cause, repaired


def _mean(x):
    return tf.reduce_mean(x, axis=1, keepdims=True)


@moments.mistake("squares_minus_square")
def _(x):
    """The same on paper. For numbers around 1000 the two terms agree in nearly all their digits, and in float32 their
    difference is noise."""
    variance = _mean(x**2) - _mean(x) ** 2
    return (x - _mean(x)) / tf.sqrt(variance + 1e-3)


@moments.mistake("all_stopped")
def _(x):
    """Now the first derivative is wrong as well: value and slope take the variance for a constant."""
    variance = tf.stop_gradient(_mean((x - _mean(x)) ** 2))
    return (x - _mean(x)) / tf.sqrt(variance + 1e-3)


@moments.mistake("large_epsilon")
def _(x):
    """With a large ε everything is smaller, the error too. And it is no longer the normalisation that was asked for."""
    mean, variance = tf.nn.moments(x, axes=[1], keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1.0)


@moments.mistake("without_scale")
def _(x):
    """Without the division there is no second derivative to be wrong about, and no normalisation."""
    return x - _mean(x)


@moments.mistake("over_the_batch")
def _(x):
    """Normalised over the examples, each column by itself. The layer normalises each example by itself."""
    mean = tf.reduce_mean(x, axis=0, keepdims=True)
    variance = tf.reduce_mean((x - mean) ** 2, axis=0, keepdims=True)
    return (x - mean) / tf.sqrt(variance + 1e-3)


@moments.wrong("as_before")
def _(x):
    mean = _mean(x)
    return (x - mean) * tf.math.rsqrt(_mean((x - tf.stop_gradient(mean)) ** 2) + 1e-3)
