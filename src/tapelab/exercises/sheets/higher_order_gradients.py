"""Exercises and predictions of the notebook "Higher-order gradients"."""

import math

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.sheets.jacobians import _count_passes

import tensorflow as tf

outside = Prediction(
    "higher_order_gradients.outside",
    remarks=(
        ([3.0, 6.0], "6 is the true second derivative. Which operations made `dy_dx`, and which tape was open then?"),
        ([None, None], "The inner tape recorded the cube, and may be asked after its block is closed."),
        (
            [3.0, 0.0],
            "It is `None`, not 0: the tape does not say that `dy_dx` is constant, it knows nothing about it.",
        ),
        ([3.0, 3.0], "The outer tape was asked about `dy_dx`, not about `y`. Of `y` it does have a record."),
    ),
)

how_many = Prediction(
    "higher_order_gradients.how_many",
    remarks=(
        (
            9,
            "There are nine second derivatives. The outer `gradient` differentiates the sum of the gradient's three "
            "elements.",
        ),
        (
            6,
            "Six of the nine second derivatives can differ. Here `gradient` gives one number for each element of `x`.",
        ),
        (1, "This source has three elements."),
    ),
)

bias_alone = Prediction(
    "higher_order_gradients.bias_alone",
    options=("zero", "None", "ones"),
    remarks=(
        ("zero", "Mathematics says zero. The tape found no path, which is `None`."),
        (
            "ones",
            "That is the gradient of the *loss*, up to a factor. Is there still a path from the norm of the input "
            "gradient to the bias?",
        ),
    ),
)

dead_norm = Prediction(
    "higher_order_gradients.dead_norm",
    options=("zero", "NaN", "None", "infinite"),
    remarks=(
        ("zero", "So it should be: around this point the norm stays 0. But the tape goes through a root at 0."),
        ("None", "There is a path through ReLU, so there is a number. Which one?"),
        (
            "infinite",
            "One factor of the chain rule is infinite. What is the factor behind it, and what is their product?",
        ),
    ),
)

off_by = Prediction(
    "higher_order_gradients.off_by",
    options=("less than 0.001 %", "more than 1 %", "the tape has no second derivative"),
    remarks=(
        (
            "less than 0.001 %",
            "So it should be in float64, and so it is for the first derivative. Something in the layer is "
            "differentiated once only.",
        ),
        (
            "the tape has no second derivative",
            "It has one, and raises no error. That is the trap: a number is there, and it is the wrong one.",
        ),
    ),
)


def _penalised(w, x, y, weight, share=1.0):
    """The gradient in closed form; `share` multiplies the penalty's part.

    With the residuals r, loss i is r_i² and its input gradient 2 r_i w, whose squared norm is 4 r_i² |w|².
    """
    residuals = tf.linalg.matvec(x, w) - y
    back = tf.linalg.matvec(x, residuals, transpose_a=True)
    of_losses = 2 * back
    of_penalties = 8 * (back * tf.reduce_sum(w**2) + w * tf.reduce_sum(residuals**2))
    return (of_losses + share * weight * of_penalties) / len(y)


def _regressions(random, dtype):
    def trial(batch, inputs, weight):
        shapes = ((inputs,), (batch, inputs), (batch,))
        return (*(tf.constant(random.normal(size=shape), dtype) for shape in shapes), tf.constant(weight, dtype))

    return [trial(7, 5, 0.5), trial(4, 3, 1.25), trial(6, 2, 0.25)]


def _with_objective(objective):
    """A wrong answer: the solution with another objective, a function of the losses, their gradients and the weight."""

    def answer(w, x, y, weight):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(x)
                losses = (tf.linalg.matvec(x, w) - y) ** 2
            total = objective(losses, inner.gradient(losses, x), weight)
        return outer.gradient(total, w)

    answer.__doc__ = objective.__doc__
    return answer


penalty = Exercise(
    title="A training step through a gradient",
    minutes=15,
    hints=(
        "Which tape needs to see which computation? Section 3 has an inner tape for the input and an outer one for "
        "the parameters.",
        "Both tapes must record the line with `losses`. The inner one watches `x`; ask it for the gradient of "
        "`losses` inside the outer block. The outer one watches `w`, which is a tensor here.",
        "The input gradient has shape (batch, inputs). Its squared norms are one number for each example: sum the "
        "squares over the inputs, axis 1.",
        "`objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))`, still inside the outer block. "
        "Then the outer tape's gradient with respect to `w`.",
    ),
    checker=Function(reference=_penalised, inputs=_regressions),
)


@penalty.starter("penalised_gradient")
def _(w, x, y, weight):
    losses = (tf.linalg.matvec(x, w) - y) ** 2  # one for each example
    return ...


@penalty.right
def _(w, x, y, weight):
    r"""The inner tape is asked inside the outer block, so the outer tape records how the input gradients depend on `w`.
    Example $i$ appears in $\ell_i$ only, so row $i$ of the gradient of all losses together is its input gradient, $2
    r_i w$ with the residual $r_i$."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(x)
            losses = (tf.linalg.matvec(x, w) - y) ** 2
        g = inner.gradient(losses, x)
        objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))  # one norm for each example
    return outer.gradient(objective, w)


@penalty.mistake("penalty_is_constant")
def _(w, x, y, weight):
    """This is the gradient of the losses alone: to your outer tape the penalty is a constant. Where is the inner
    `gradient` call, inside the outer block or after it? Is `weight` used?"""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([w, x])
        losses = (tf.linalg.matvec(x, w) - y) ** 2
    g = tape.gradient(losses, x)
    with tape:
        objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))
    return tape.gradient(objective, w)


@penalty.mistake("norm_not_squared")
@_with_objective
def _(losses, g, weight):
    """The penalty is the norm of each input gradient; its **square** is asked for (section 3 says what the norm does at
    zero)."""
    return tf.reduce_mean(losses + weight * tf.norm(g, axis=1))


@penalty.mistake("penalties_summed")
@_with_objective
def _(losses, g, weight):
    """The penalty's part is too large, by as many times as there are examples: the mean covers the losses, but not the
    squared norms."""
    return tf.reduce_mean(losses) + weight * tf.reduce_sum(g**2)


@penalty.mistake("gradient_of_mean")
def _(w, x, y, weight):
    """The penalty's part is too small by the square of the batch size. Each example's gradient is that of its *own*
    loss; which target did you give to the inner tape?"""
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        g = inner.gradient(loss, x)
        objective = loss + weight * tf.reduce_mean(tf.reduce_sum(g**2, axis=1))
    return outer.gradient(objective, w)


@penalty.mistake("mean_over_inputs")
@_with_objective
def _(losses, g, weight):
    """The penalty's part is too small by the number of inputs: a squared norm is the *sum* of an example's squares, not
    their mean."""
    return tf.reduce_mean(losses) + weight * tf.reduce_mean(g**2)


@penalty.wrong("factor")
@_with_objective
def _(losses, g, weight):
    return tf.reduce_sum(losses + weight * tf.reduce_sum(g**2, axis=1))


@penalty.wrong("none")
def _(w, x, y, weight):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            losses = (tf.linalg.matvec(x, w) - y) ** 2
        g = inner.gradient(losses, x)
        objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))
    return outer.gradient(objective, w)


@penalty.wrong("raised:InvalidArgumentError")
@_with_objective
def _(losses, g, weight):
    return tf.reduce_mean(losses + weight * g**2)


def _curvature(f, x, v):
    """Second differences along v, in float64: no tape."""
    x64, v64 = tf.cast(x, tf.float64), tf.cast(v, tf.float64)
    shift = 1e-3
    return tf.cast((f(x64 + shift * v64) - 2 * f(x64) + f(x64 - shift * v64)) / shift**2, x.dtype)


def _of_three(x):
    return x[0] ** 2 * x[1] + x[1] ** 2 * x[2]


def _of_neighbours(x):
    return tf.reduce_sum(tf.sin(x[:-1] * x[1:])) + tf.reduce_sum(x**4) / 4


def _of_the_length(x):
    return tf.exp(tf.reduce_sum(x**2) / 5)


def _points_with_directions(random, dtype):
    return [
        (_of_three, tf.constant([1.0, 2.0, 3.0], dtype), tf.constant([1.0, 0.0, -1.0], dtype)),
        (_of_neighbours, tf.constant(random.normal(size=5), dtype), tf.constant(random.normal(size=5), dtype)),
        (_of_the_length, tf.constant(random.normal(size=4), dtype), tf.constant(2 * random.normal(size=4), dtype)),
    ]


def _gradient_on_a_tape(f, x):
    """A tape and the gradient that it has recorded, for wrong answers."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer, gradient


def _along(f, x, v, t):
    """The second derivative with respect to t, for wrong answers."""
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)


curvature = Exercise(
    title="The curvature along a direction",
    minutes=10,
    beyond=True,
    hints=(
        "Here are two ways. One makes `t` the source of both tapes. The other starts from what `output_gradients` "
        "does in section 6.",
        r"In terms of the Hessian the number is $v^\top H v = \sum_{ij} v_i H_{ij} v_j$: both indices are weighted "
        "with $v$. What weighs only one of them?",
        "With `t = tf.zeros([], x.dtype)`, both tapes watch `t`, and the inner one records `f(x + t * v)`. Then twice "
        "`gradient`, with respect to `t`.",
    ),
    checker=Function(
        reference=_curvature,
        inputs=_points_with_directions,
        observe=_count_passes("the curvature", lambda f, x, v: 3, _curvature),
    ),
    seconds=30.0,  # an answer that builds the Hessian traces anew with each call
)


@curvature.starter("curvature")
def _(f, x, v):
    return ...  # the second derivative of t -> f(x + t v) at t = 0


@curvature.right
def _(f, x, v):
    r"""The one number is $v^\top H v$. With the scalar $t$ as the only source, sum and Hessian are no longer two
    things. The other way is as short: weigh the rows with `output_gradients=v`, which gives $Hv$, and multiply by $v$
    again."""
    t = tf.zeros([], x.dtype)
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)


@curvature.mistake("slope")
def _(f, x, v):
    """This is the first derivative along `v`. Differentiate it once more, along `v` again."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.reduce_sum(tape.gradient(y, x) * v)


@curvature.mistake("one_index")
def _(f, x, v):
    """Here `v` weighs one index of the Hessian, and the other is summed with weights 1: $v$ times its column sums.
    Where does the inner sum get its weights?"""
    outer, gradient = _gradient_on_a_tape(f, x)
    return tf.reduce_sum(outer.gradient(gradient, x) * v)


@curvature.mistake("sums_for_the_diagonal")
def _(f, x, v):
    """Here each column sum of the Hessian is multiplied by the square of its entry of `v`. What lies off the diagonal
    belongs to two entries of `v`, one for its row and one for its column. Where could the other one come in?"""
    outer, gradient = _gradient_on_a_tape(f, x)
    return tf.reduce_sum(outer.gradient(gradient, x) * v**2)


@curvature.mistake("column_sums")
def _(f, x, v):
    """This is the gradient of the gradient's sum, one number for each input. `v` does not appear in it."""
    outer, gradient = _gradient_on_a_tape(f, x)
    return outer.gradient(gradient, x)


@curvature.mistake("one_weight")
def _(f, x, v):
    """This is $Hv$: how the gradient changes along `v`. The curvature is one number. What is left to do with `v`?"""
    outer, gradient = _gradient_on_a_tape(f, x)
    return outer.gradient(gradient, x, output_gradients=v)


@curvature.mistake("unit_direction")
def _(f, x, v):
    r"""This is the curvature along a direction of length 1. The function is $f(x + t\,v)$, with `v` as it is given."""
    return _along(f, x, v / tf.norm(v), tf.zeros([], x.dtype))


@curvature.mistake("at_the_end")
def _(f, x, v):
    """This is the curvature at $x + v$, where $t = 1$. It is asked for at the start of the walk."""
    return _along(f, x, v, tf.ones([], x.dtype))


@curvature.mistake("whole_hessian")
def _(f, x, v):
    """The numbers are right, and took a pass for each input: this builds the Hessian, of which you need one number."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    hessian = outer.jacobian(gradient, x)
    return tf.tensordot(v, tf.linalg.matvec(hessian, v), 1)


@curvature.wrong("none")
def _(f, x, v):
    t = tf.zeros([], x.dtype)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)


@curvature.wrong("other")
def _(f, x, v):
    return _curvature(f, x, v)


@curvature.wrong("one_dtype")
def _(f, x, v):
    return _along(f, x, v, tf.constant(0.0))


def _sum_of_terms(jet, x, h, order, factor=lambda h, k: h**k / math.factorial(k)):
    """The sum of jet(x, k) factor(h, k) over k = 0, …, order."""
    return tf.add_n([jet(x, k) * factor(h, k) for k in range(order + 1)])


def _exp_jet(x, k):
    return tf.exp(x)


def _sin_jet(x, k):
    return tf.sin(x + k * math.pi / 2)


def _taylor(f, x, h, order):
    return _sum_of_terms(f.jet, x, h, order)


def _with_jet(function, jet):
    """The function, with its k-th derivative in closed form, as a function that has no other name."""

    def f(x):
        return function(x)

    f.jet = jet
    return f


def _expansions(random, dtype):
    exp, sin = _with_jet(tf.exp, _exp_jet), _with_jet(tf.sin, _sin_jet)
    return [
        (exp, tf.constant([0.0, 1.0], dtype), tf.constant(0.5, dtype), 3),
        (sin, tf.constant(random.uniform(-2.0, 2.0, size=(2, 3)), dtype), tf.constant(1.25, dtype), 4),
        (sin, tf.constant(0.75, dtype), tf.constant(-1.5, dtype), 1),
        (exp, tf.constant(-0.5, dtype), tf.constant(2.0, dtype), 5),
    ]


def _derivative(f):
    """What the starter gives."""

    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    return df


taylor = Exercise(
    title="A Taylor series from nested tapes",
    minutes=8,
    hints=(
        "`derivative(f)` is a function. What does `derivative` make of *that*?",
        "Section 1 writes `second = derivative(first)`. In a loop, `f = derivative(f)` does one more each time round.",
        "Start with `total = f(x)`. For k = 1, …, `order`: differentiate once more, multiply a running factor by "
        "`h / k`, and add the factor times `f(x)`.",
    ),
    checker=Function(reference=_taylor, inputs=_expansions),
)


@taylor.starter()
def _():
    def derivative(f):
        def df(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            return tape.gradient(y, x)

        return df

    def taylor(f, x, h, order):
        return ...  # f(x) + f'(x) h + f''(x) h² / 2 + …, the last term with the derivative of that order

    return taylor


@taylor.right
def _():
    """Each round applies `derivative` to its own result. So the tape of round $k$ is open around those of rounds $1$ to
    $k - 1$, and records what they compute."""

    def derivative(f):
        def df(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = f(x)
            return tape.gradient(y, x)

        return df

    def taylor(f, x, h, order):
        total, factor = f(x), 1.0
        for k in range(1, order + 1):
            f = derivative(f)
            factor = factor * h / k
            total += factor * f(x)
        return total

    return taylor


@taylor.mistake("no_factorial")
def _(f, x, h, order):
    """These are the derivatives times the powers of `h`. Each term of the series is also divided by something."""
    total = f(x)
    for k in range(1, order + 1):
        f = _derivative(f)
        total += h**k * f(x)
    return total


@taylor.mistake("divided_by_k")
def _(f, x, h, order):
    """The term of order $k$ is divided by $k$. For $k = 1$ and $2$ that is right; what is it for $k = 3$?"""
    total = f(x)
    for k in range(1, order + 1):
        f = _derivative(f)
        total += h**k / k * f(x)
    return total


@taylor.mistake("one_term_short")
def _(f, x, h, order):
    """The last term is missing: count how often your loop runs. `range(n)` ends at n - 1."""
    total, factor = 0.0, 1.0
    for k in range(order):
        total += factor * f(x)
        f = _derivative(f)
        factor = factor * h / (k + 1)
    return total


@taylor.mistake("one_term_more")
def _(f, x, h, order):
    """There is one term too many: the derivative of the highest order belongs to `order`, not to `order + 1`."""
    total, factor = f(x), 1.0
    for k in range(order + 1):
        f = _derivative(f)
        factor = factor * h / (k + 1)
        total += factor * f(x)
    return total


@taylor.mistake("h_not_raised")
def _(f, x, h, order):
    """Every term has `h` itself as its factor. In the term of order $k$ it is a power of `h`."""
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = _derivative(f)
        factor = factor / k
        total += factor * h * f(x)
    return total


@taylor.mistake("always_first")
def _(f, x, h, order):
    """Every term has the **first** derivative. Does each round differentiate what the round before it made?"""
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        factor = factor * h / k
        total += factor * _derivative(f)(x)
    return total


@taylor.mistake("shifted")
def _(f, x, h, order):
    """Each factor meets the derivative of the next order. When in the round do you differentiate, and when do you
    add?"""
    total, factor = 0.0, 1.0
    for k in range(order + 1):
        f = _derivative(f)
        total += factor * f(x)
        factor = factor * h / (k + 1)
    return total


@taylor.mistake("stops_after_one")
def _(f, x, h, order):
    """It stops after the term with the first derivative, whatever `order` is. Does the `return` stand inside the
    loop?"""
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = _derivative(f)
        factor = factor * h / k
        total += factor * f(x)
        return total


@taylor.mistake("last_term_alone")
def _(f, x, h, order):
    """This is the last term alone. The terms before it have to be kept, and added."""
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = _derivative(f)
        factor = factor * h / k
        total = factor * f(x)
    return total


@taylor.wrong("values")
def _(f, x, h, order):
    derivatives = [f]
    for _ in range(4):  # and never beyond
        derivatives.append(_derivative(derivatives[-1]))
    return _sum_of_terms(lambda x, k: derivatives[k](x), x, h, min(order, 4))


@taylor.wrong("raised:ValueError")
def _(f, x, h, order):
    with tf.GradientTape() as tape:
        y = f(x)
    return f(x) + h * tape.gradient(y, x)
