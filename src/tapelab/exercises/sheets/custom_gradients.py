"""Exercises and predictions of the notebook "Custom gradients"."""

from tapelab.exercises import Exercise, Function, Prediction

import tensorflow as tf

value_at_100 = Prediction(
    "custom_gradients.value_at_100",
    options=("100", "infinity", "NaN"),
    remarks=(
        ("100", "100 is right, to forty digits. `log1pexp` still computes it as before: look at its forward pass."),
        ("NaN", "The logarithm of infinity is infinity. NaN needs 0 · ∞, which the backward pass had."),
    ),
)

second_at_100 = Prediction(
    "custom_gradients.second_at_100",
    options=("0", "0.25", "NaN", "None"),
    remarks=(
        (
            "0",
            "The true value is below $10^{-43}$. The first derivative was written by hand; the derivative of what was "
            "written was not.",
        ),
        ("0.25", "0.25 is $f''(0)$. At 100, $f'(1 - f')$ is below $10^{-43}$. And the tape does not get there."),
        (
            "None",
            "There is a path: the backward function uses `e`, which was computed from `x`, in operations that a tape "
            "records.",
        ),
    ),
)

survives = Prediction(
    "custom_gradients.survives",
    remarks=(
        (
            [2, 2, 2, 2],
            "In this process, yes. In the fresh one nobody has registered the gradients that the graphs refer to by "
            "name.",
        ),
        ([0, 2, 2, 2], "The nested one has a custom gradient inside its backward function. Was that saved, too?"),
        (
            [0, 1, 1, 1],
            "The backward functions are saved as graphs of TensorFlow operations, and those can be differentiated.",
        ),
        ([0, 1, 2, 1], "The clip's backward function consists of TensorFlow operations, as that of `ordinary` does."),
    ),
)


def _called(answer, *arguments):
    try:
        return answer(*arguments)
    except TypeError as error:
        if "unsupported callable" not in str(error):  # what TensorFlow says of a second value that is not a function
            raise
        raise TypeError("under tf.custom_gradient, return two things: the value, and a backward function") from error


def _value_and_gradient(answer, x, upstream):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = _called(answer, x)
    return {"the value": y, "the gradient": tape.gradient(y, x, output_gradients=upstream)}


def _norm_with(gradient):
    """The rows' norms, with a gradient that is a function of x, its norms and the upstream gradient."""

    def norms_of(x):
        norms = tf.sqrt(tf.reduce_sum(x**2, axis=1))
        return norms, lambda upstream: gradient(x, norms, upstream)

    norms_of.__doc__ = gradient.__doc__
    return tf.custom_gradient(norms_of)


def _rows(random, dtype):
    def trial(rows, columns):
        x = random.normal(size=(rows, columns))
        x[rows // 2] = 0.0
        return tf.constant(x, dtype), tf.constant(random.normal(size=rows), dtype)

    example = tf.constant([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype)
    short = tf.constant([[3e-15, 4e-15], [0.0, 0.0]], dtype), tf.constant([1.0, 2.0], dtype)  # shorter than most ε
    return [(example, tf.constant([1.0, 2.0], dtype)), trial(7, 5), trial(4, 4), short]


norm_of_rows = Exercise(
    title="A norm that survives zero",
    minutes=8,
    hints=(
        r"For one row: $\lVert x \rVert = \sqrt{\sum_j x_j^2}$. What is its derivative with respect to $x_j$? Where "
        "is it 0/0?",
        "`upstream` and `norms` have one entry for each row, `x` has a row of them. `[:, tf.newaxis]` adds the axis "
        "that is missing.",
        "The gradient is `x`, times `upstream`, divided by `norms`. `tf.math.divide_no_nan` divides and gives 0 where "
        "the divisor is 0.",
    ),
    checker=Function(
        reference=_norm_with(
            lambda x, norms, upstream: (
                upstream[:, tf.newaxis] * x / tf.where(norms > 0, norms, tf.ones_like(norms))[:, tf.newaxis]
            )
        ),
        inputs=_rows,
        observe=_value_and_gradient,
        upstream=1,
        axes=("row", "column"),
    ),
)


@norm_of_rows.starter("norm_of_rows")
@tf.custom_gradient
def _(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return ...  # the gradient with respect to x

    return norms, backward


@norm_of_rows.right
@tf.custom_gradient
def _(x):
    r"""$\partial \lVert x \rVert / \partial x_j = x_j / \lVert x \rVert$. The quotient is 0/0 where the row is zero;
    the slope there is not defined, and the text asks for 0. The upstream gradient has one entry for each row and gets
    an axis to match `x`."""
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return tf.math.divide_no_nan(upstream, norms)[:, tf.newaxis] * x

    return norms, backward


@norm_of_rows.mistake("zero_row")
@_norm_with
def _(x, norms, upstream):
    """Right for every row but the zero one, where the gradient is NaN. Which gradient does the text ask for
    there?"""
    return upstream[:, tf.newaxis] * x / norms[:, tf.newaxis]


@norm_of_rows.mistake("epsilon")
@_norm_with
def _(x, norms, upstream):
    """Right for rows of ordinary length. A very short row gets a gradient that is too small: the ε in the divisor is
    larger than its norm. Choose, in place of adding."""
    return upstream[:, tf.newaxis] * x / (norms[:, tf.newaxis] + 1e-12)


@norm_of_rows.mistake("squared")
@_norm_with
def _(x, norms, upstream):
    """This is the gradient of the squared norm. Which factor does the square root bring?"""
    return upstream[:, tf.newaxis] * 2 * x


@norm_of_rows.mistake("not_divided")
@_norm_with
def _(x, norms, upstream):
    """The direction is right, and its length is not: each row but the zero one should have length 1 before the upstream
    gradient comes in."""
    return upstream[:, tf.newaxis] * x


@norm_of_rows.wrong("upstream")
@_norm_with
def _(x, norms, upstream):
    return tf.math.divide_no_nan(x, norms[:, tf.newaxis])


@norm_of_rows.wrong("raised:InvalidArgumentError")
@_norm_with
def _(x, norms, upstream):
    return upstream * x / norms


@norm_of_rows.wrong("shape")
@_norm_with
def _(x, norms, upstream):
    return tf.math.divide_no_nan(upstream, norms)


@norm_of_rows.wrong("raised:TypeError")
@tf.custom_gradient
def _(x):
    return tf.norm(x, axis=1)


def _root(y, a):
    """The real x with x³ + a x = y for a > 0, in closed form, which a tape differentiates."""
    return 2.0 * tf.sqrt(a / 3.0) * tf.sinh(tf.asinh(1.5 * y / a * tf.sqrt(3.0 / a)) / 3.0)


def _root_with(gradients):
    """A wrong answer: the root, with gradients that are a function of the root, y, a and the upstream gradient."""

    def root(y, a):
        x = _root(y, a)
        return x, lambda upstream: gradients(x, y, a, upstream)

    root.__doc__ = gradients.__doc__
    return tf.custom_gradient(root)


def _observe_root(answer, y, a, upstream):
    with tf.GradientTape() as tape:
        tape.watch([y, a])
        x = _called(answer, y, a)
    for_y, for_a = tape.gradient(x, [y, a], output_gradients=upstream)
    return {"the value": x, "the gradient with respect to y": for_y, "the gradient with respect to a": for_a}


def _equations(random, dtype):
    def trial(shape, a):
        y, upstream = (tf.constant(random.normal(size=shape, scale=3.0), dtype) for _ in range(2))
        return y, tf.constant(a, dtype), upstream

    example = tf.constant([2.0, -10.0, 0.5], dtype), tf.constant(1.0, dtype), tf.constant([1.0, 1.0, 2.0], dtype)
    return [example, trial(7, 2.5), trial((3, 5), 0.7)]


root_gradient = Exercise(
    title="Differentiate a search",
    minutes=15,
    beyond=True,
    hints=(
        "The search compares and chooses, and a tape finds no way through it. But what it finds satisfies an "
        "equation. Differentiate that.",
        r"In section 3, $dE/dM$ comes from $E - \varepsilon \sin E = M$ in the same way: a small change of $M$ must "
        "equal the change of the left side. Here the left side, $x^3 + a x$, changes with $x$ and with $a$.",
        r"$(3x^2 + a)\,dx + x\,da = dy$. With $da = 0$ you have $dx/dy$; with $dy = 0$ you have $dx/da$. Multiply "
        "each by `upstream`. `a` is a scalar that every entry uses: sum.",
    ),
    seconds=30.0,
    checker=Function(reference=_root, inputs=_equations, observe=_observe_root, upstream=2),
)


@root_gradient.starter("root")
@tf.custom_gradient
def _(y, a):
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        return ..., ...  # the gradients with respect to y and to a

    return x, backward


@root_gradient.right
@tf.custom_gradient
def _(y, a):
    r"""Differentiate the equation, not the search. From $x^3 + a x = y$ follows $(3x^2 + a)\,dx + x\,da = dy$; solve
    for $dx$. All roots use the one `a`, so its gradient is a sum over them."""
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        for_y = upstream / (3.0 * x**2 + a)
        return for_y, -tf.reduce_sum(for_y * x)

    return x, backward


@root_gradient.mistake("not_summed")
@_root_with
def _(x, y, a, upstream):
    """The gradient with respect to `a` has one entry for each root. `a` is a scalar that all of them use: what becomes
    of their contributions?"""
    slope = 3.0 * x**2 + a
    return upstream / slope, -upstream * x / slope


@root_gradient.mistake("upside_down")
@_root_with
def _(x, y, a, upstream):
    """This is how $y$ changes with $x$. The gradient asks how $x$ changes with $y$."""
    slope = 3.0 * x**2 + a
    return upstream * slope, -tf.reduce_sum(upstream * x / slope)


@root_gradient.mistake("upside_down")
@_root_with
def _(x, y, a, upstream):
    """The gradient with respect to `y` is how $y$ changes with $x$. It asks how $x$ changes with $y$."""
    slope = 3.0 * x**2 + a
    return upstream * slope, tf.reduce_sum(upstream * x)


@root_gradient.mistake("at_y")
@_root_with
def _(x, y, a, upstream):
    """The derivative of the equation's left side is taken at `y`. What stands there is the root, $x$."""
    return upstream / (3 * y**2 + a), -tf.reduce_sum(upstream * y / (3 * y**2 + a))


@root_gradient.mistake("without_a")
@_root_with
def _(x, y, a, upstream):
    """The term $a x$ depends on $x$, too. What does it bring to the derivative of the left side?"""
    return upstream / (3 * x**2), -tf.reduce_sum(upstream * x / (3 * x**2))


@root_gradient.mistake("averaged")
@_root_with
def _(x, y, a, upstream):
    """The gradient with respect to `a` is a mean over the roots. All of them use `a`: their contributions are added."""
    slope = 3.0 * x**2 + a
    return upstream / slope, -tf.reduce_mean(upstream * x / slope)


@root_gradient.mistake("swapped")
@_root_with
def _(x, y, a, upstream):
    """Both gradients are right, in the other order: first the one for `y`."""
    slope = 3.0 * x**2 + a
    return -tf.reduce_sum(upstream * x / slope), upstream / slope


@root_gradient.mistake("not_divided")
@_root_with
def _(x, y, a, upstream):
    """The gradient with respect to `y` is right. For `a`, set $dy = 0$ in the differentiated equation and solve it for
    $dx$: a divisor is missing."""
    slope = 3.0 * x**2 + a
    return upstream / slope, -tf.reduce_sum(upstream * x)


@root_gradient.wrong("sign")
@_root_with
def _(x, y, a, upstream):
    slope = 3.0 * x**2 + a
    return upstream / slope, tf.reduce_sum(upstream * x / slope)


@root_gradient.wrong("none")
@_root_with
def _(x, y, a, upstream):
    slope = 3.0 * x**2 + a
    return upstream / slope, None


@root_gradient.wrong("upstream")
@_root_with
def _(x, y, a, upstream):
    slope = 3.0 * x**2 + a
    return 1.0 / slope, -tf.reduce_sum(x / slope)


@root_gradient.wrong("raised:ValueError")
@_root_with
def _(x, y, a, upstream):
    slope = 3.0 * x**2 + a
    return upstream / slope
