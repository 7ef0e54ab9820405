"""Exercises and predictions of notebook 08, Higher-order gradients."""

import math

from tapelab.exercises import Exercise, Function, Mistake, Prediction

import numpy as np
import tensorflow as tf

outside = Prediction(
    "08.outside",
    reason=(
        "The first derivative is still right. The outer tape was closed when it was computed, and has no record of it: "
        "to that tape `dy_dx` is a number from nowhere."
    ),
    remarks=(
        ([3.0, 6.0], "6 is the true second derivative. Which operations made `dy_dx`, and which tape was open then?"),
        ([None, None], "The inner tape recorded the cube. It may be asked after its block is closed, as any tape may."),
        (
            [3.0, 0.0],
            "It is `None`, not 0: the tape does not say that `dy_dx` is constant, it knows nothing about it.",
        ),
        ([3.0, 3.0], "The outer tape was asked about `dy_dx`, not about `y`. Of `y` it does have a record."),
    ),
)

one_watch = Prediction(
    "08.one_watch",
    reason=(
        "The inner tape watches `t`, so its gradient is there. The outer tape was never told of `t`; all that is computed from `t` alone "
        "is a constant to it."
    ),
    remarks=(
        ([3.0, 6.0], "The order of the calls is right this time. But `watch` belongs to one tape, not to the tensor."),
        ([None, None], "The inner tape does watch `t`, and it is the inner tape that the first derivative comes from."),
        ([3.0, 0.0], "A missing record gives `None`, not 0."),
    ),
)

nested_shape = Prediction(
    "08.nested_shape",
    reason=(
        "Three numbers, not nine. `gradient` of a vector is the gradient of the **sum** of its elements, here of "
        r"$\sum_i \partial f/\partial x_i$, and has the source's shape."
    ),
    remarks=(
        (
            (3, 3),
            "That is the shape of all second derivatives. `gradient` adds its targets up before it differentiates.",
        ),
        ((9,), "There are nine second derivatives. `gradient` gives one number for each element of its source."),
        ((), "One number is what a scalar source gets. This source has three elements."),
    ),
)

row = Prediction(
    "08.row",
    reason="The weights single out the gradient's middle element, and its derivatives are the middle row of the Hessian.",
    remarks=(
        (
            [0.0, 13.0, 0.0],
            "That is the weighted *gradient*. The weights are applied to it, and the result is then differentiated.",
        ),
        ([6.0, 12.0, 4.0], "Those are the column sums, which is what the weights (1, 1, 1) give."),
        ([0.0, 6.0, 0.0], "The weights choose among outputs. The middle output depends on all three inputs."),
        ([4.0, 2.0, 0.0], "That is the first row. The weight 1 stands in the middle place."),
    ),
)

bias_alone = Prediction(
    "08.bias_alone",
    reason=(
        "Each row of the input gradient is now the sum of the kernel's columns, whatever the input and the bias are. "
        "No path leads from the norm to the bias."
    ),
    remarks=(
        (0.0, "Mathematics says zero. The tape says that it found no path, which is `None`."),
        ((10,), "The bias has that shape. Is there still a path from the norm of the *input gradient* to the bias?"),
    ),
)

dead_norm = Prediction(
    "08.dead_norm",
    reason=(
        r"The norm is a square root, and the slope of $\sqrt u$ at $u = 0$ is infinite. The chain rule multiplies it by the zero behind "
        r"it, and $\infty \cdot 0$ is not a number."
    ),
    options=("zero", "NaN", "None", "infinite"),
    remarks=(
        ("zero", "So it should be at a lowest point. But the norm has a corner there, and no slope."),
        ("None", "There is a path through ReLU, so there is a number. Which one?"),
        (
            "infinite",
            "One factor of the chain rule is infinite. What is the factor behind it, and what is their product?",
        ),
    ),
)

attacked = Prediction(
    "08.attacked",
    reason=(
        "Both changes have the same size. In many dimensions a random direction is nearly orthogonal to the gradient, and its effects "
        "cancel; those of the attack add up, pixel by pixel."
    ),
    options=("both above 0.85", "random above 0.85, attacked below 0.65", "both below 0.65"),
    remarks=(
        ("both above 0.85", "A tenth of the range looks harmless to the eye. The gradient knows where it is not."),
        ("both below 0.65", "Noise of this size does little. It is the direction that does the damage."),
    ),
)


def _sum_of_terms(jet, x, h, order, factor=lambda h, k: h**k / math.factorial(k)):
    """The sum of jet(x, k) factor(h, k) over k = 0, …, order."""
    return tf.add_n([jet(x, k) * factor(h, k) for k in range(order + 1)])


def _exp_jet(x, k):
    return tf.exp(x)


def _sin_jet(x, k):
    return tf.sin(x + k * math.pi / 2)


_JETS = {tf.exp: _exp_jet, tf.sin: _sin_jet}  # the k-th derivative in closed form


def _taylor(f, x, h, order):
    return _sum_of_terms(_JETS[f], x, h, order)


def _expansions(random, dtype):
    return [
        (tf.exp, tf.constant([0.0, 1.0], dtype), tf.constant(0.5, dtype), 3),
        (tf.sin, tf.constant(random.uniform(-2.0, 2.0, size=5), dtype), tf.constant(1.25, dtype), 4),
        (tf.sin, tf.constant(0.75, dtype), tf.constant(-1.5, dtype), 1),
    ]


_DERIVATIVE = """
def derivative(f):
    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    return df
"""

taylor = Exercise(
    "08.taylor",
    title="A Taylor series from nested tapes",
    minutes=8,
    starter=f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    return ...  # f(x) + f'(x) h + f''(x) h² / 2 + …, the last term with the derivative of that order


exercises.taylor.check(taylor)
""",
    solution_code=f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = derivative(f)
        factor = factor * h / k
        total += factor * f(x)
    return total
""",
    explanation=(
        "Each round applies `derivative` to its own result. So the tape of round $k$ is open around those of rounds $1$ to $k - 1$, and "
        "records what they compute."
    ),
    hints=(
        "`derivative(f)` is a function. What does `derivative` make of *that*?",
        "Section 1 writes `derivative(derivative(cube))`. In a loop, `f = derivative(f)` does one more each time round.",
        "Start with `total = f(x)`. For k = 1, …, `order`: differentiate once more, multiply a running factor by `h / k`, and add the factor times `f(x)`.",
    ),
    checker=Function(
        reference=_taylor,
        inputs=_expansions,
        mistakes=(
            Mistake(
                "no_factorial",
                "These are the derivatives times the powers of `h`. Each term of the series is also divided by something.",
                lambda f, x, h, order: _sum_of_terms(_JETS[f], x, h, order, lambda h, k: h**k),
            ),
            Mistake(
                "divided_by_k",
                "The term of order $k$ is divided by $k$. For $k = 1$ and $2$ that is right; what is it for $k = 3$?",
                lambda f, x, h, order: _sum_of_terms(_JETS[f], x, h, order, lambda h, k: h**k / max(k, 1)),
            ),
            Mistake(
                "one_term_short",
                "The last term is missing: count how often your loop runs. `range(n)` ends at n - 1.",
                lambda f, x, h, order: _sum_of_terms(_JETS[f], x, h, order - 1),
            ),
            Mistake(
                "one_term_more",
                "There is one term too many: the derivative of the highest order belongs to `order`, not to `order + 1`.",
                lambda f, x, h, order: _sum_of_terms(_JETS[f], x, h, order + 1),
            ),
            Mistake(
                "h_not_raised",
                "Every term has `h` itself as its factor. In the term of order $k$ it is a power of `h`.",
                lambda f, x, h, order: _sum_of_terms(
                    _JETS[f], x, h, order, lambda h, k: (h if k else 1.0) / math.factorial(k)
                ),
            ),
            Mistake(
                "always_first",
                "Every term has the **first** derivative. Does each round differentiate what the round before it made?",
                lambda f, x, h, order: _sum_of_terms(lambda x, k: _JETS[f](x, min(k, 1)), x, h, order),
            ),
            Mistake(
                "shifted",
                "Each factor meets the derivative of the next order. When in the round do you differentiate, and when do you add?",
                lambda f, x, h, order: _sum_of_terms(lambda x, k: _JETS[f](x, k + 1), x, h, order),
            ),
            Mistake(
                "stops_after_one",
                "It stops after the term with the first derivative, whatever `order` is. Does the `return` stand inside the loop?",
                lambda f, x, h, order: _sum_of_terms(_JETS[f], x, h, 1),
            ),
            Mistake(
                "last_term_alone",
                "This is the last term alone. The terms before it have to be kept, and added.",
                lambda f, x, h, order: _JETS[f](x, order) * h**order / math.factorial(order),
            ),
        ),
    ),
    wrong=(
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total = f(x)
    for k in range(1, order + 1):
        f = derivative(f)
        total += h**k * f(x)
    return total
""",
            "no_factorial",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        factor = factor * h / k
        total += factor * derivative(f)(x)
    return total
""",
            "always_first",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total = f(x)
    for k in range(1, order + 1):
        f = derivative(f)
        total += h**k / k * f(x)
    return total
""",
            "divided_by_k",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = 0.0, 1.0
    for k in range(order):
        total += factor * f(x)
        f = derivative(f)
        factor = factor * h / (k + 1)
    return total
""",
            "one_term_short",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = f(x), 1.0
    for k in range(order + 1):
        f = derivative(f)
        factor = factor * h / (k + 1)
        total += factor * f(x)
    return total
""",
            "one_term_more",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = derivative(f)
        factor = factor / k
        total += factor * h * f(x)
    return total
""",
            "h_not_raised",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = 0.0, 1.0
    for k in range(order + 1):
        f = derivative(f)
        total += factor * f(x)
        factor = factor * h / (k + 1)
    return total
""",
            "shifted",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = derivative(f)
        factor = factor * h / k
        total += factor * f(x)
        return total
""",
            "stops_after_one",
        ),
        (
            f"""{_DERIVATIVE}

def taylor(f, x, h, order):
    total, factor = f(x), 1.0
    for k in range(1, order + 1):
        f = derivative(f)
        factor = factor * h / k
        total = factor * f(x)
    return total
""",
            "last_term_alone",
        ),
        (
            """
def taylor(f, x, h, order):
    with tf.GradientTape() as tape:
        y = f(x)
    return f(x) + h * tape.gradient(y, x)
""",
            "raised:ValueError",
        ),
    ),
)


def _curvature(f, x, v):
    """Second differences along v, in float64: no tape."""
    x64, v64 = tf.cast(x, tf.float64), tf.cast(v, tf.float64)
    shift = 1e-3
    return tf.cast((f(x64 + shift * v64) - 2 * f(x64) + f(x64 - shift * v64)) / shift**2, x.dtype)


def _nested(f, x, weights):
    """The weighted sum of the Hessian's rows."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x, output_gradients=weights)


def _slope(f, x, v):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.tensordot(tape.gradient(y, x), v, 1)


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


curvature = Exercise(
    "08.curvature",
    title="The curvature along a direction",
    minutes=10,
    beyond=True,
    starter="""
def curvature(f, x, v):
    return ...  # the second derivative of t -> f(x + t v) at t = 0


exercises.curvature.check(curvature)
""",
    solution_code="""
def curvature(f, x, v):
    t = tf.zeros([], x.dtype)
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)
""",
    explanation=(
        r"The one number is $v^\top H v$. With the scalar $t$ as the only source, sum and Hessian are no longer two things. The other way "
        "is as short: weigh the rows with `output_gradients=v`, which gives $Hv$, and multiply by $v$ again."
    ),
    hints=(
        "There are two ways. One makes `t` the source of both tapes. The other starts from what `output_gradients` did at the end of section 2.",
        r"In terms of the Hessian the number is $v^\top H v = \sum_{ij} v_i H_{ij} v_j$: both indices are weighted with $v$. What weighs only one of them?",
        "With `t = tf.zeros([], x.dtype)`, both tapes watch `t`, and the inner one records `f(x + t * v)`. Then twice `gradient`, with respect to `t`.",
    ),
    checker=Function(
        reference=_curvature,
        inputs=_points_with_directions,
        mistakes=(
            Mistake(
                "slope",
                "This is the first derivative along `v`. Differentiate it once more, along `v` again.",
                _slope,
            ),
            Mistake(
                "one_index",
                "Here `v` weighs one index of the Hessian, and the other is summed with weights 1: $v$ times its column sums. "
                "Where does the inner sum get its weights?",
                lambda f, x, v: tf.tensordot(_nested(f, x, tf.ones_like(x)), v, 1),
            ),
            Mistake(
                "column_sums",
                "This is the gradient of the gradient's sum, one number for each input. `v` does not appear in it.",
                lambda f, x, v: _nested(f, x, tf.ones_like(x)),
            ),
            Mistake(
                "one_weight",
                "This is $Hv$: how the gradient changes along `v`. The curvature is one number. What is left to do with `v`?",
                lambda f, x, v: _nested(f, x, v),
            ),
            Mistake(
                "unit_direction",
                "This is the curvature along a direction of length 1. The function is $f(x + t\\,v)$, with `v` as it is given.",
                lambda f, x, v: _curvature(f, x, v / tf.norm(v)),
            ),
            Mistake(
                "at_the_end",
                "This is the curvature at $x + v$, where $t = 1$. It is asked for at the start of the walk.",
                lambda f, x, v: _curvature(f, x + v, v),
            ),
        ),
    ),
    wrong=(
        (
            """
def curvature(f, x, v):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.reduce_sum(tape.gradient(y, x) * v)
""",
            "slope",
        ),
        (
            """
def curvature(f, x, v):
    t = tf.ones([], x.dtype)
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)
""",
            "at_the_end",
        ),
        (
            """
def curvature(f, x, v):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return tf.reduce_sum(outer.gradient(gradient, x) * v)
""",
            "one_index",
        ),
        (
            """
def curvature(f, x, v):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x)
""",
            "column_sums",
        ),
        (
            """
def curvature(f, x, v):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        gradient = inner.gradient(y, x)
    return outer.gradient(gradient, x, output_gradients=v)
""",
            "one_weight",
        ),
        (
            """
def curvature(f, x, v):
    v = v / tf.norm(v)
    t = tf.zeros([], x.dtype)
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)
""",
            "unit_direction",
        ),
        (
            """
def curvature(f, x, v):
    t = tf.zeros([], x.dtype)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)
""",
            "none",
        ),
        (
            """
def curvature(f, x, v):
    t = tf.constant(0.0)
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            y = f(x + t * v)
        slope = inner.gradient(y, t)
    return outer.gradient(slope, t)
""",
            "one_dtype",
        ),
    ),
    seconds=30.0,  # an answer that builds the Hessian traces anew with each call
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


def _penalised_by_the_norm(w, x, y, weight):
    """The same, with the norm 2 |r_i| |w| in place of its square."""
    residuals = tf.linalg.matvec(x, w) - y
    of_penalties = 2 * (
        tf.linalg.matvec(x, tf.sign(residuals), transpose_a=True) * tf.norm(w)
        + w / tf.norm(w) * tf.reduce_sum(tf.abs(residuals))
    )
    return _penalised(w, x, y, weight, share=0.0) + weight * of_penalties / len(y)


def _regressions(random, dtype):
    def trial(batch, inputs, weight):
        shapes = ((inputs,), (batch, inputs), (batch,))
        return (*(tf.constant(random.normal(size=shape), dtype) for shape in shapes), tf.constant(weight, dtype))

    return [trial(7, 5, 0.5), trial(4, 3, 1.25), trial(6, 2, 0.25)]


_PENALISED = """
def penalised_gradient(w, x, y, weight):
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(x)
            losses = (tf.linalg.matvec(x, w) - y) ** 2
        g = inner.gradient(losses, x)
        {}
    return outer.gradient(objective, w)
"""

penalty = Exercise(
    "08.penalty",
    title="A training step through a gradient",
    minutes=15,
    starter="""
def penalised_gradient(w, x, y, weight):
    losses = (tf.linalg.matvec(x, w) - y) ** 2  # one for each example
    return ...


exercises.penalty.check(penalised_gradient)
""",
    solution_code=_PENALISED.format(
        "objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))  # one norm for each example"
    ),
    explanation=(
        "The inner tape is asked inside the outer block, so the outer tape records how the input gradients depend on `w`. Example $i$ "
        r"appears in $\ell_i$ only, so row $i$ of the gradient of all losses together is its input gradient, $2 r_i w$ with the residual $r_i$."
    ),
    hints=(
        "Which tape needs to see which computation? Section 3 has an inner tape for the input and an outer one for the parameters.",
        "Both tapes must record the line with `losses`. The inner one watches `x`; ask it for the gradient of `losses` inside the outer block. The outer one watches `w`, which is a tensor here.",
        "The input gradient has shape (batch, inputs). Its squared norms are one number for each example: sum the squares over the inputs, axis 1.",
        "`objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))`, still inside the outer block. Then the outer tape's gradient with respect to `w`.",
    ),
    checker=Function(
        reference=_penalised,
        inputs=_regressions,
        mistakes=(
            Mistake(
                "penalty_is_constant",
                "This is the gradient of the losses alone: to your outer tape the penalty is a constant. Where is the inner `gradient` "
                "call, inside the outer block or after it? Is `weight` used?",
                lambda w, x, y, weight: _penalised(w, x, y, weight, share=0.0),
            ),
            Mistake(
                "norm_not_squared",
                "The penalty is the norm of each input gradient; its **square** is asked for (section 3 says what the norm does at zero).",
                _penalised_by_the_norm,
            ),
            Mistake(
                "penalties_summed",
                "The penalty's part is too large, by as many times as there are examples: the mean covers the losses, but not the squared norms.",
                lambda w, x, y, weight: _penalised(w, x, y, weight, share=len(y)),
            ),
            Mistake(
                "gradient_of_mean",
                "The penalty's part is too small by the square of the batch size. Each example's gradient is that of its *own* loss; "
                "which target did you give to the inner tape?",
                lambda w, x, y, weight: _penalised(w, x, y, weight, share=1 / len(y) ** 2),
            ),
            Mistake(
                "mean_over_inputs",
                "The penalty's part is too small by the number of inputs: a squared norm is the *sum* of an example's squares, not their mean.",
                lambda w, x, y, weight: _penalised(w, x, y, weight, share=1 / len(w)),
            ),
        ),
    ),
    wrong=(
        (
            """
def penalised_gradient(w, x, y, weight):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([w, x])
        losses = (tf.linalg.matvec(x, w) - y) ** 2
    g = tape.gradient(losses, x)
    with tape:
        objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))
    return tape.gradient(objective, w)
""",
            "penalty_is_constant",
        ),
        (_PENALISED.format("objective = tf.reduce_mean(losses + weight * tf.norm(g, axis=1))"), "norm_not_squared"),
        (
            _PENALISED.format("objective = tf.reduce_mean(losses) + weight * tf.reduce_sum(g**2)"),
            "penalties_summed",
        ),
        (
            """
def penalised_gradient(w, x, y, weight):
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(x)
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        g = inner.gradient(loss, x)
        objective = loss + weight * tf.reduce_mean(tf.reduce_sum(g**2, axis=1))
    return outer.gradient(objective, w)
""",
            "gradient_of_mean",
        ),
        (
            _PENALISED.format("objective = tf.reduce_mean(losses) + weight * tf.reduce_mean(g**2)"),
            "mean_over_inputs",
        ),
        (
            _PENALISED.format("objective = tf.reduce_sum(losses + weight * tf.reduce_sum(g**2, axis=1))"),
            "factor",
        ),
        (
            """
def penalised_gradient(w, x, y, weight):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            losses = (tf.linalg.matvec(x, w) - y) ** 2
        g = inner.gradient(losses, x)
        objective = tf.reduce_mean(losses + weight * tf.reduce_sum(g**2, axis=1))
    return outer.gradient(objective, w)
""",
            "none",
        ),
        (_PENALISED.format("objective = tf.reduce_mean(losses + weight * g**2)"), "raised:InvalidArgumentError"),
    ),
)


def _changes(gradients, strength):
    """One image after the other, in NumPy."""
    changes = np.zeros(gradients.shape)
    for change, gradient in zip(changes, gradients.numpy().astype(np.float64), strict=True):
        length = np.sqrt((gradient**2).sum())
        if length > 0:
            change[...] = float(strength) * gradient / length
    return tf.constant(changes, gradients.dtype)


def _of_unit_rms(gradients, strength):
    pixels = np.prod(gradients.shape[1:])
    return strength * tf.sign(gradients) / np.sqrt(pixels)


def _image_gradients(random, dtype):
    with_a_zero = random.normal(size=(3, 6, 2))
    with_a_zero[1] = 0.0
    return [
        (tf.constant(random.normal(size=(7, 5, 4)), dtype), tf.constant(0.5, dtype)),
        (tf.constant(0.01 * random.normal(size=(2, 3, 8)), dtype), tf.constant(2.0, dtype)),
        (tf.constant(with_a_zero, dtype), tf.constant(1.5, dtype)),
    ]


euclidean = Exercise(
    "08.euclidean",
    title="An attack of limited length",
    minutes=8,
    beyond=True,
    starter="""
def change(gradients, strength):
    return ...  # the same shape as gradients: (images, height, width)


exercises.euclidean.check(change)
""",
    solution_code="""
def change(gradients, strength):
    lengths = tf.sqrt(tf.reduce_sum(gradients**2, axis=(1, 2), keepdims=True))
    return strength * tf.math.divide_no_nan(gradients, lengths)
""",
    explanation=(
        r"Of all changes of one length, $\delta \cdot g$ is largest for the one that is parallel to $g$ (Cauchy–Schwarz). The sign was the answer to another limit, "
        "one for each pixel. Each image has a length of its own, so the norm runs over height and width, and keeps those axes to broadcast."
    ),
    hints=(
        r"With each $|\delta_j| \le \varepsilon$, every pixel moves by the full amount. Now the limit is one for all pixels of an image: which ones should get more of it?",
        r"$\delta \cdot g = \lVert\delta\rVert\,\lVert g\rVert \cos\theta$. The lengths are fixed. Which angle $\theta$ makes this largest?",
        "Divide each image's gradient by its own length: the sum of squares over axes 1 and 2, with `keepdims=True`. Where the length is zero, `tf.math.divide_no_nan` gives zero.",
    ),
    checker=Function(
        reference=_changes,
        inputs=_image_gradients,
        axes=("image", "row", "column"),
        mistakes=(
            Mistake(
                "each_pixel",
                "This is the fast gradient sign method: each *pixel* moves by `strength`. Here an image's whole change has that length.",
                lambda gradients, strength: strength * tf.sign(gradients),
            ),
            Mistake(
                "sign_of_right_length",
                "The length is right, the direction is not the best: the signs treat all pixels alike, and some matter more than others.",
                _of_unit_rms,
            ),
            Mistake(
                "one_length_for_all",
                "You divided by the length of all images' gradients together. Each image has a limit of its own: over which axes does its norm run?",
                lambda gradients, strength: strength * gradients / tf.norm(gradients),
            ),
            Mistake(
                "length_of_rows",
                "You divided by the length of each row of pixels. An image has two axes: over which does its norm run?",
                lambda gradients, strength: (
                    strength * tf.math.divide_no_nan(gradients, tf.norm(gradients, axis=-1, keepdims=True))
                ),
            ),
            Mistake(
                "zero_over_zero",
                "Right, except for an image whose gradient is zero: there you divide 0 by 0. Such an image has no worse direction, and stays as it is.",
                lambda gradients, strength: strength * gradients / tf.norm(gradients, axis=(1, 2), keepdims=True),
            ),
            Mistake(
                "squared_length",
                "You divided by the sum of squares. A length is its square root.",
                lambda gradients, strength: (
                    strength * tf.math.divide_no_nan(gradients, tf.reduce_sum(gradients**2, axis=(1, 2), keepdims=True))
                ),
            ),
            Mistake(
                "only_shortened",
                "Longer gradients are cut to `strength`; shorter ones stay short. The largest growth takes the whole of what is allowed.",
                lambda gradients, strength: tf.clip_by_norm(gradients, strength, axes=[1, 2]),
            ),
            Mistake(
                "not_scaled_down",
                "This is the gradient times `strength`: an image with a larger gradient moves further. Every image may move by `strength`, and no more.",
                lambda gradients, strength: strength * gradients,
            ),
        ),
    ),
    wrong=(
        ("def change(gradients, strength):\n    return strength * tf.sign(gradients)", "each_pixel"),
        (
            """
def change(gradients, strength):
    signs = tf.sign(gradients)
    pixels = gradients.shape[1] * gradients.shape[2]
    return strength * signs / np.sqrt(pixels)
""",
            "sign_of_right_length",
        ),
        (
            "def change(gradients, strength):\n    return strength * gradients / tf.norm(gradients)",
            "one_length_for_all",
        ),
        (
            "def change(gradients, strength):\n    return strength * tf.math.l2_normalize(gradients, axis=-1)",
            "length_of_rows",
        ),
        (
            """
def change(gradients, strength):
    return strength * gradients / tf.norm(gradients, axis=(1, 2), keepdims=True)
""",
            "zero_over_zero",
        ),
        ("def change(gradients, strength):\n    return strength * gradients", "not_scaled_down"),
        (
            """
def change(gradients, strength):
    squares = tf.reduce_sum(gradients**2, axis=(1, 2), keepdims=True)
    return strength * tf.math.divide_no_nan(gradients, squares)
""",
            "squared_length",
        ),
        (
            "def change(gradients, strength):\n    return tf.clip_by_norm(gradients, strength, axes=[1, 2])",
            "only_shortened",
        ),
        (
            """
def change(gradients, strength):
    return -strength * tf.math.l2_normalize(gradients, axis=(1, 2))
""",
            "sign",
        ),
    ),
)
