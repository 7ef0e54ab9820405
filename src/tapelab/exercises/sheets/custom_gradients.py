"""Exercises and predictions of notebook 06, Custom gradients."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction

import tensorflow as tf

override = Prediction(
    "06.override",
    reason=(
        "The map leaves a mark on the *operation in the graph*. `tf.gradients` and the call of a `tf.function` differentiate the finished graph "
        "and read the mark. A tape inside the graph looks the type up in the registry, and eager code builds no graph."
    ),
    remarks=(
        (
            [3.0, 3.0, 3.0, 3.0],
            "The map is for graphs, and a tape does not look for marks: it goes by the operation's type.",
        ),
        (
            [3.0, 3.0, 3.0, 6.0],
            "A tape inside the graph records the operation as a tape does anywhere. It never sees the mark.",
        ),
        (
            [3.0, 6.0, 6.0, 6.0],
            "The way back through the call of a `tf.function` is a graph too, made from the marked one.",
        ),
    ),
)

plain_at_100 = Prediction(
    "06.plain_at_100",
    reason=(
        r"$e^{100}$ overflows in float32. The tape multiplies the logarithm's derivative, $1/\infty = 0$, with that of the exponential, $\infty$, "
        r"and $0 \cdot \infty$ is NaN."
    ),
    options=("0", "1", "infinity", "NaN"),
    remarks=(
        ("1", "1 is the true derivative. The tape arrives at it through two factors, one of which overflows."),
        ("infinity", "One factor is infinite. The other is 0."),
        ("0", "One factor is 0. The other is infinite."),
    ),
)

second_at_100 = Prediction(
    "06.second_at_100",
    reason="The custom gradient is for the first derivative. The outer tape differentiates `1 - 1 / (1 + e)` by its own rules, through the infinite `e`.",
    remarks=((True, "The backward function was written by hand. Its own derivative was not."),),
)

evaluations = Prediction(
    "06.evaluations",
    reason=(
        "`solve_again` pays for the solution twice. And a custom gradient does not stop an eager tape from *recording* what runs inside the function: "
        "its records hold every iterate, although a first derivative never uses them."
    ),
    remarks=(
        (
            [80, 40, 1],
            "One iterate is all that the backward function needs. The tape does not know that, and keeps them all.",
        ),
        ([80, 40, 0], "Nothing is needed but the solution. The tape does not know that, and keeps every iterate."),
        ([40, 40, 40], "`solve_again` calls the solver in its backward function as well."),
    ),
)

straight_through = Prediction(
    "06.straight_through",
    reason="TensorFlow registers rounding as not differentiable. Straight through, the square's derivative is taken at the *rounded* value and passed on.",
    remarks=(
        ([None, [0.4, 2.6, 5.4]], "The square is computed from the rounded values, so its derivative is taken there."),
        (
            [None, [1.0, 1.0, 1.0]],
            "The rounding passes on what it receives. What it receives is the square's derivative.",
        ),
        ([0.0, [0.0, 2.0, 6.0]], "The staircase's derivative is 0. TensorFlow says `None` instead."),
        ([[0.0, 0.0, 0.0], [0.0, 2.0, 6.0]], "The staircase's derivative is 0. TensorFlow says `None` instead."),
    ),
)

clip_at_target = Prediction(
    "06.clip_at_target",
    reason=(
        "The backward function receives the gradient *upstream of it*. Between it and the target lies nothing, so that is 1. It is clipped to 0.5, and then "
        "the chain rule multiplies by $2v = 4$."
    ),
    remarks=(
        (0.5, "0.5 is the usual explanation. It is what leaves the clip, and the way to $v$ goes on from there."),
        (4.0, "4 is what the square makes of 1. The clip has made 0.5 of that 1 before."),
        (1.0, "1 is what arrives at the clip, which makes 0.5 of it."),
    ),
)

clip_scaled = Prediction(
    "06.clip_scaled",
    reason="Again 1 arrives at the clip and 0.5 leaves it. Whatever lies between `v` and the clip, here a factor of 100, is not limited at all.",
    remarks=(
        (0.5, "The limit holds where the clip is, and the clip is at the target."),
        (2.0, "The factor 25 lies between the clip and $v$, so it multiplies what leaves the clip."),
        (100.0, "100 is the derivative without the clip, which halves the 1 that arrives there."),
    ),
)


def _product_gradients(a, b, upstream):
    return tf.einsum("ik,jk->ij", upstream, b), tf.einsum("ij,ik->jk", a, upstream)


def _products(random, dtype):
    def trial(rows, inner, columns):
        shapes = (rows, inner), (inner, columns), (rows, columns)
        return tuple(tf.constant(random.normal(size=shape), dtype) for shape in shapes)

    example = ([[1.0, 2.0]], [[1.0, 0.0, 2.0], [0.0, 3.0, 1.0]], [[1.0, 2.0, -1.0]])
    return [tuple(tf.constant(part, dtype) for part in example), trial(7, 5, 6), trial(4, 4, 4)]


product_backward = Exercise(
    "06.product_backward",
    title="The way back through a matrix product",
    minutes=6,
    starter="""
def product_gradients(a, b, upstream):
    return ..., ...  # the gradients for a and for b, where a @ b was computed


exercises.product_backward.check(product_gradients)
""",
    solution_code="""
def product_gradients(a, b, upstream):
    return upstream @ tf.transpose(b), tf.transpose(a) @ upstream
""",
    explanation=(
        r"$y_{ik} = \sum_j a_{ij} b_{jk}$, so $\partial y_{ik} / \partial a_{ij} = b_{jk}$, and summing $u_{ik} b_{jk}$ over $k$ is $u\,b^\top$. The same for $b$. "
        "Each gradient has the shape of its input, which leaves one way to multiply."
    ),
    hints=(
        "Each gradient has the shape of its own input. Which products of `upstream` with the other factor have that shape?",
        r"Write one entry: $y_{ik} = \sum_j a_{ij} b_{jk}$. The gradient for $a_{ij}$ is $\sum_k u_{ik} b_{jk}$: a matrix product, with one of its factors transposed.",
        "For `a`, multiply `upstream` from the right by the transposed `b`. For `b`, multiply it from the left by the transposed `a`.",
    ),
    checker=Function(
        reference=_product_gradients,
        inputs=_products,
        upstream=2,
        axes=("row", "column"),
        mistakes=(
            Mistake(
                "exchanged",
                "Both gradients are right, in the other order. The first is the one for `a`.",
                lambda a, b, upstream: _product_gradients(a, b, upstream)[::-1],
            ),
            Mistake(
                "both_transposed",
                "Both are the transposed gradients. A gradient has the shape of its input.",
                lambda a, b, upstream: tuple(map(tf.transpose, _product_gradients(a, b, upstream))),
            ),
        ),
    ),
    wrong=(
        (
            "def product_gradients(a, b, upstream):\n    return tf.transpose(a) @ upstream, upstream @ tf.transpose(b)\n",
            "exchanged",
        ),
        (
            "def product_gradients(a, b, upstream):\n    return b @ tf.transpose(upstream), tf.transpose(upstream) @ a\n",
            "both_transposed",
        ),
        (
            """
def product_gradients(a, b, upstream):
    ones = tf.ones_like(upstream)
    return ones @ tf.transpose(b), tf.transpose(a) @ ones
""",
            "upstream",
        ),
        (
            "def product_gradients(a, b, upstream):\n    return upstream @ b, a @ upstream\n",
            "raised:InvalidArgumentError",
        ),
        (
            "def product_gradients(a, b, upstream):\n    return upstream @ tf.transpose(b), tf.transpose(upstream) @ a\n",
            "transpose",
        ),
        (
            "def product_gradients(a, b, upstream):\n    return upstream @ tf.transpose(b), -tf.transpose(a) @ upstream\n",
            "sign",
        ),
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
    """The rows' norms, with a gradient that is a function of x, its norms and the upstream gradient, as columns."""

    @tf.custom_gradient
    def norms_of(x):
        norms = tf.sqrt(tf.reduce_sum(x**2, axis=1))
        return norms, lambda upstream: gradient(x, norms[:, tf.newaxis], upstream[:, tf.newaxis])

    return norms_of


def _rows(random, dtype):
    def trial(rows, columns):
        x = random.normal(size=(rows, columns))
        x[rows // 2] = 0.0
        return tf.constant(x, dtype), tf.constant(random.normal(size=rows), dtype)

    example = tf.constant([[3.0, 4.0, 0.0], [0.0, 0.0, 0.0]], dtype)
    return [(example, tf.constant([1.0, 2.0], dtype)), trial(7, 5), trial(4, 4)]


norm_of_rows = Exercise(
    "06.norm_of_rows",
    title="A norm that survives zero",
    minutes=8,
    starter="""
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return ...  # the gradient for x

    return norms, backward


exercises.norm_of_rows.check(norm_of_rows)
""",
    solution_code="""
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return tf.math.divide_no_nan(upstream, norms)[:, tf.newaxis] * x

    return norms, backward
""",
    explanation=(
        r"$\partial \lVert x \rVert / \partial x_j = x_j / \lVert x \rVert$. The quotient is 0/0 where the row is zero; the slope there is not defined, and 0 is a sound "
        "choice, since descent then stays at the minimum. The upstream gradient has one entry for each row and gets an axis to match `x`."
    ),
    hints=(
        r"For one row: $\lVert x \rVert = \sqrt{\sum_j x_j^2}$. What is its derivative with respect to $x_j$? Where is it 0/0?",
        "`upstream` and `norms` have one entry for each row, `x` has a row of them. `[:, tf.newaxis]` adds the axis that is missing.",
        "The gradient is `x`, times `upstream`, divided by `norms`. `tf.math.divide_no_nan` divides and gives 0 where the divisor is 0.",
    ),
    checker=Function(
        reference=_norm_with(lambda x, norms, upstream: upstream * tf.math.l2_normalize(x, axis=1)),
        inputs=_rows,
        observe=_value_and_gradient,
        upstream=1,
        axes=("row", "column"),
        mistakes=(
            Mistake(
                "zero_row",
                "Right for every row but the zero one, where the gradient is NaN: 0/0. What is to come back there?",
                _norm_with(lambda x, norms, upstream: upstream * x / norms),
            ),
            Mistake(
                "squared",
                "This is the gradient of the squared norm. Which factor does the square root bring?",
                _norm_with(lambda x, norms, upstream: upstream * 2.0 * x),
            ),
            Mistake(
                "not_divided",
                "The direction is right, and its length is not: each row should have length 1 before the upstream gradient comes in.",
                _norm_with(lambda x, norms, upstream: upstream * x),
            ),
        ),
    ),
    wrong=(
        (
            """
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return upstream[:, tf.newaxis] * x / norms[:, tf.newaxis]

    return norms, backward
""",
            "zero_row",
        ),
        (
            """
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return tf.math.divide_no_nan(x, norms[:, tf.newaxis])

    return norms, backward
""",
            "upstream",
        ),
        (
            """
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return upstream[:, tf.newaxis] * 2 * x

    return norms, backward
""",
            "squared",
        ),
        (
            """
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return upstream[:, tf.newaxis] * x

    return norms, backward
""",
            "not_divided",
        ),
        (
            """
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return upstream * x / norms

    return norms, backward
""",
            "raised:InvalidArgumentError",
        ),
        (
            """
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return tf.math.divide_no_nan(upstream, norms)

    return norms, backward
""",
            "shape",
        ),
        ("@tf.custom_gradient\ndef norm_of_rows(x):\n    return tf.norm(x, axis=1)\n", "raised:TypeError"),
    ),
)


def _root(y, a):
    """The real x with x³ + a x = y for a > 0, in closed form, which a tape differentiates."""
    return 2.0 * tf.sqrt(a / 3.0) * tf.sinh(tf.asinh(1.5 * y / a * tf.sqrt(3.0 / a)) / 3.0)


def _root_with(gradients):
    """The root, with gradients for y and a that are a function of the root, a and the upstream gradient."""

    @tf.custom_gradient
    def root(y, a):
        x = _root(y, a)
        return x, lambda upstream: gradients(x, a, upstream)

    return root


def _for_y_and_a(x, a, upstream):
    for_y = upstream / (3.0 * x**2 + a)
    return for_y, -tf.reduce_sum(for_y * x)


def _observe_root(answer, y, a, upstream):
    with tf.GradientTape() as tape:
        tape.watch([y, a])
        x = _called(answer, y, a)
    for_y, for_a = tape.gradient(x, [y, a], output_gradients=upstream)
    return {"the value": x, "the gradient for y": for_y, "the gradient for a": for_a}


def _equations(random, dtype):
    def trial(shape, a):
        y, upstream = (tf.constant(random.normal(size=shape, scale=3.0), dtype) for _ in range(2))
        return y, tf.constant(a, dtype), upstream

    example = tf.constant([2.0, -10.0, 0.5], dtype), tf.constant(1.0, dtype), tf.constant([1.0, 1.0, 2.0], dtype)
    return [example, trial(7, 2.5), trial((3, 5), 0.7)]


root_gradient = Exercise(
    "06.root_gradient",
    title="Differentiate a search",
    minutes=15,
    beyond=True,
    starter="""
@tf.custom_gradient
def root(y, a):
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        return ..., ...  # the gradients for y and for a

    return x, backward


exercises.root_gradient.check(root)
""",
    solution_code="""
@tf.custom_gradient
def root(y, a):
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        for_y = upstream / (3.0 * x**2 + a)
        return for_y, -tf.reduce_sum(for_y * x)

    return x, backward
""",
    explanation=(
        r"Differentiate the equation, not the search. From $x^3 + a x = y$ follows $(3x^2 + a)\,dx + x\,da = dy$; solve for $dx$. "
        "All roots use the one `a`, so its gradient is a sum over them."
    ),
    hints=(
        "The search compares and chooses, and a tape finds no way through it. But what it finds satisfies an equation. Differentiate that.",
        r"In section 3, $dE/dM$ comes from $E - \varepsilon \sin E = M$ in the same way: a small change of $M$ must equal the change of the left side. Here the left side, "
        "$x^3 + a x$, changes with $x$ and with $a$.",
        r"$(3x^2 + a)\,dx + x\,da = dy$. With $da = 0$ you have $dx/dy$; with $dy = 0$ you have $dx/da$. Multiply each by `upstream`. `a` is a scalar that "
        "every entry uses: sum.",
    ),
    seconds=30.0,
    checker=Function(
        reference=_root,
        inputs=_equations,
        observe=_observe_root,
        upstream=2,
        mistakes=(
            Mistake(
                "not_summed",
                "The gradient for `a` has one entry for each root. `a` is a scalar that all of them use: what becomes of their contributions?",
                _root_with(lambda x, a, u: (u / (3.0 * x**2 + a), -u * x / (3.0 * x**2 + a))),
            ),
            Mistake(
                "upside_down",
                "This is how $y$ changes with $x$. The gradient asks how $x$ changes with $y$.",
                _root_with(lambda x, a, u: (u * (3.0 * x**2 + a), -tf.reduce_sum(u * x / (3.0 * x**2 + a)))),
            ),
            Mistake(
                "upside_down",
                "The gradient for `y` is how $y$ changes with $x$. It asks how $x$ changes with $y$.",
                _root_with(lambda x, a, u: (u * (3.0 * x**2 + a), tf.reduce_sum(u * x))),
            ),
            Mistake(
                "at_y",
                "The derivative of the equation's left side is taken at `y`. What stands there is the root, $x$.",
                _root_with(lambda x, a, u: _for_y_and_a(x**3 + a * x, a, u)),
            ),
            Mistake(
                "without_a",
                "The term $a x$ depends on $x$, too. What does it bring to the derivative of the left side?",
                _root_with(lambda x, a, u: _for_y_and_a(x, 0.0, u)),
            ),
            Mistake(
                "averaged",
                "The gradient for `a` is a mean over the roots. All of them use `a`: their contributions are added.",
                _root_with(lambda x, a, u: (u / (3.0 * x**2 + a), -tf.reduce_mean(u * x / (3.0 * x**2 + a)))),
            ),
            Mistake(
                "swapped",
                "Both gradients are right, in the other order: first the one for `y`.",
                _root_with(lambda x, a, u: _for_y_and_a(x, a, u)[::-1]),
            ),
            Mistake(
                "not_divided",
                r"The gradient for `y` is right. For `a`, set $dy = 0$ in the differentiated equation and solve it for $dx$: a divisor is missing.",
                _root_with(lambda x, a, u: (u / (3.0 * x**2 + a), -tf.reduce_sum(u * x))),
            ),
        ),
    ),
    wrong=tuple(
        (
            f"""
@tf.custom_gradient
def root(y, a):
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        slope = 3.0 * x**2 + a
        return {gradients}

    return x, backward
""",
            code,
        )
        for gradients, code in (
            ("upstream / slope, -upstream * x / slope", "not_summed"),
            ("upstream * slope, -tf.reduce_sum(upstream * x / slope)", "upside_down"),
            ("upstream * slope, tf.reduce_sum(upstream * x)", "upside_down"),
            ("upstream / (3 * y**2 + a), -tf.reduce_sum(upstream * y / (3 * y**2 + a))", "at_y"),
            ("upstream / (3 * x**2), -tf.reduce_sum(upstream * x / (3 * x**2))", "without_a"),
            ("upstream / slope, -tf.reduce_mean(upstream * x / slope)", "averaged"),
            ("-tf.reduce_sum(upstream * x / slope), upstream / slope", "swapped"),
            ("upstream / slope, -tf.reduce_sum(upstream * x)", "not_divided"),
            ("upstream / slope, tf.reduce_sum(upstream * x / slope)", "sign"),
            ("upstream / slope, None", "none"),
            ("1.0 / slope, -tf.reduce_sum(x / slope)", "upstream"),
            ("upstream / slope", "raised:ValueError"),
        )
    ),
)


def _identity_with(gradient):
    @tf.custom_gradient
    def identity(h):
        return tf.identity(h), gradient

    return identity


def _limit_rows(upstream):
    lengths = tf.sqrt(tf.reduce_sum(upstream**2, axis=1, keepdims=True))
    return upstream * tf.minimum(1.0 / lengths, tf.ones_like(lengths))


def _tables(random, dtype):
    def trial(shape):
        scale = np_scales(shape[0])
        h, upstream = (random.normal(size=shape) for _ in range(2))
        return tf.constant(h, dtype), tf.constant(upstream * scale, dtype)

    def np_scales(rows):
        return random.permutation([0.1, 3.0] * rows)[:rows, None]  # some rows below the limit, some above

    example = tf.constant([[3.0, 4.0], [0.3, 0.4]], dtype)
    return [(tf.constant([[5.0, -6.0], [7.0, 8.0]], dtype), example), trial((7, 5)), trial((4, 4))]


limit_rows = Exercise(
    "06.limit_rows",
    title="A limit for each example",
    minutes=5,
    starter="""
@tf.custom_gradient
def limit_each(h):
    return tf.identity(h), lambda upstream: ...


exercises.limit_rows.check(limit_each)
""",
    solution_code="""
@tf.custom_gradient
def limit_each(h):
    return tf.identity(h), lambda upstream: tf.clip_by_norm(upstream, 1.0, axes=[1])
""",
    explanation=(
        "Each row of `upstream` belongs to one example. With `axes=[1]` the norm is taken along the row. Without it there is one norm for the whole batch, and an "
        "example's gradient would depend on who else is in it."
    ),
    hints=(
        "What arrives is `upstream`, of shape (batch, units). Over which axis must the norm run, so that there is one for each example?",
        "`tf.clip_by_norm` has an argument `axes`: the axes along which the norm is computed. Without it, all of them.",
        "It is the clip of section 5 with the limit 1 and `axes=[1]`.",
    ),
    checker=Function(
        reference=_identity_with(_limit_rows),
        inputs=_tables,
        observe=_value_and_gradient,
        upstream=1,
        axes=("example", "unit"),
        mistakes=(
            Mistake(
                "whole_batch",
                "Here the whole batch shares one limit. How many norms are there to be?",
                _identity_with(lambda upstream: tf.clip_by_norm(upstream, 1.0)),
            ),
            Mistake(
                "units_axis",
                "Here each *unit* has a limit, over the batch. Which axis is the batch?",
                _identity_with(lambda upstream: tf.clip_by_norm(upstream, 1.0, axes=[0])),
            ),
            Mistake(
                "each_entry",
                "Here each entry has a limit. That turns the direction of a row; a limit on its norm keeps it.",
                _identity_with(lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)),
            ),
            Mistake(
                "always_one",
                "Rows that were below the limit are made longer. A limit leaves them as they are.",
                _identity_with(lambda upstream: tf.math.l2_normalize(upstream, axis=1)),
            ),
            Mistake(
                "no_limit",
                "The gradient comes back as it arrived: nothing is limited.",
                _identity_with(tf.identity),
            ),
        ),
    ),
    wrong=tuple(
        (f"@tf.custom_gradient\ndef limit_each(h):\n    return {value}, lambda upstream: {gradient}\n", code)
        for value, gradient, code in (
            ("tf.identity(h)", "tf.clip_by_norm(upstream, 1.0)", "whole_batch"),
            ("tf.identity(h)", "tf.clip_by_norm(upstream, 1.0, axes=[0])", "units_axis"),
            ("tf.identity(h)", "tf.clip_by_value(upstream, -1.0, 1.0)", "each_entry"),
            ("tf.identity(h)", "upstream / tf.norm(upstream, axis=1, keepdims=True)", "always_one"),
            ("tf.identity(h)", "upstream", "no_limit"),
            ("tf.identity(h)", "tf.clip_by_norm(h, 1.0, axes=[1])", "values"),
            ("tf.clip_by_norm(h, 1.0, axes=[1])", "upstream", "values"),
        )
    ),
)
