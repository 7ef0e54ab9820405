"""Exercises and predictions of the notebook "Forward mode"."""

import functools
import traceback
from unittest import mock

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value
from tapelab.exercises.sheets.jacobians import _count_passes, _differences

import numpy as np
import tensorflow as tf

_SECONDS = 40.0  # for an answer: forward mode traces the rule of each new operation

one_moves = Prediction(
    "forward_mode.one_moves",
    remarks=(
        ([3.0, 2.0], "That is the first *row*: how one output changes with both inputs. A tape would give you that."),
        ([2.0, 1.0], "That is the second column, which $v = (0, 1)$ would pick."),
        ([6.0, 0.0], "A tangent is multiplied by the Jacobian, not by the values."),
    ),
)

outside = Prediction(
    "forward_mode.outside",
    remarks=(
        (
            [-1.0, -1.0],
            "The value is the same as before. Its tangent was not computed, and no record was kept to compute it from.",
        ),
        (
            [0.0, 0.0],
            "Zero would mean that it does not move along $v$. The accumulator knows nothing about it, and returns "
            "`None`.",
        ),
    ),
)

tangent_shape = Prediction(
    "forward_mode.tangent_shape",
    remarks=(
        (
            (5, 6),
            "That is the direction's own shape, the kernel's. A *gradient* with respect to the kernel would have it.",
        ),
        ((7, 6, 5, 6), "That is the whole Jacobian. It is multiplied by the direction, and never built."),
        ((6,), "Every example has outputs of its own, and each of them moves."),
    ),
)

product = Prediction(
    "forward_mode.product",
    remarks=(
        ([30.0, 9.0], "That is the gradient itself. Its tangent is asked for: how it changes along $v$."),
        ([10.0, 0.0], "The second entry of the gradient, $w_1^2$, also changes with $w_1$."),
        (
            [6.0, 0.0],
            "The last entry of the column is $\\partial^2 L / \\partial w_1 \\partial w_2 = 2 w_1$, and the first is "
            "$2 w_2$.",
        ),
    ),
)

clip_tangent = Prediction(
    "forward_mode.clip_tangent",
    remarks=(
        (1.0, "That is what the rule says, and what a tape returns. The accumulator does not ask the rule here."),
        (None, "The operation inside is an ordinary one, and carries a tangent."),
    ),
)

kinks = Prediction(
    "forward_mode.kinks",
    remarks=(
        (
            [1.0, 1.0],
            "Both functions are x, so 1 is their derivative. A tape multiplies and adds what it has for each part.",
        ),
        (
            [0.0, 0.0],
            "For the second, look at each of its two terms: what is the slope of min, and of max, where both are 0?",
        ),
        (
            [0.0, 1.0],
            "For the second, look at each of its two terms: what is the slope of min, and of max, where both are 0?",
        ),
        ([2.0, 2.0], "That is what the second gives. Which slope does TensorFlow take for relu at 0?"),
    ),
)


radius = Prediction(
    "forward_mode.radius",
    remarks=(
        (float("inf"), "So it would be for a polynomial, or for the exponential function. Being smooth is not enough."),
        (1.0, r"That is the distance around 0. Around 0.5 the obstacle is a little further away, at a slant."),
        (0.5, "Nothing is wrong at 0. The obstacle is not on the real line."),
    ),
)


def _layers(random, dtype):
    """Keras layers, each with data and the place of one weight."""

    def dense(ins, outs, batch, row, column, activation="tanh"):
        layer = tf.keras.layers.Dense(outs, activation=activation, dtype=dtype.name)
        layer.build((batch, ins))
        layer.set_weights([random.normal(size=(ins, outs)), random.normal(size=outs)])
        return layer, tf.constant(random.normal(size=(batch, ins)), dtype), row, column

    return [dense(5, 6, 7, 3, 2), dense(4, 2, 3, 1, 0), dense(3, 4, 5, 2, 1, "sigmoid")]


def _one_weight(layer, data, row, column):
    """The closed form: only output `column` moves, by the slope of the activation times the data's entry `row`."""
    y = layer(data)
    slope = 1.0 - y**2 if layer.activation is tf.keras.activations.tanh else y * (1.0 - y)
    return slope * data[:, row, tf.newaxis] * tf.one_hot(column, y.shape[1], dtype=y.dtype)


one_weight = Exercise(
    title="How the outputs respond to one weight",
    minutes=6,
    seconds=_SECONDS,
    hints=(
        "The primal is the whole kernel. What is its tangent, if one of its entries moves by one and the others stay?",
        "The tangent has the kernel's shape and dtype: zeros, and a one at [row, column]. Section 3 says what to hand "
        "over in place of a Keras variable.",
        "`tf.scatter_nd([[row, column]], tf.ones([1], dtype), shape)` makes such a tangent. The primal is "
        "`layer.kernel.value`.",
    ),
    checker=Function(
        reference=_one_weight,
        inputs=_layers,
        observe=_count_passes("the derivative", lambda *arguments: 1, _one_weight),
        axes=("example", "output"),
    ),
)


@one_weight.starter("answer_to_weight")
def _(layer, data, row, column):
    direction = ...
    with tf.autodiff.ForwardAccumulator(...) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


@one_weight.right
def _(layer, data, row, column):
    """The derivative with respect to one weight is the tangent along the unit direction of that weight: one pass for
    all outputs of all examples. Only output `column` moves, by the activation's slope times the data's feature
    `row`."""
    kernel = layer.kernel.value
    direction = tf.scatter_nd([[row, column]], tf.ones([1], kernel.dtype), kernel.shape)
    with tf.autodiff.ForwardAccumulator(kernel, direction) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


@one_weight.mistake("whole_jacobian")
def _(layer, data, row, column):
    """The numbers are right, and a whole Jacobian was built for them, a pass for each output of each example. One
    forward pass along one direction of the kernel is enough."""
    with tf.GradientTape() as tape:
        outputs = layer(data)
    return tape.jacobian(outputs, layer.kernel)[..., row, column]


@one_weight.mistake("not_reached")
def _(layer, data, row, column):
    """`jvp` returned `None`: no tangent has reached these outputs. Were they computed inside the context, and from the
    primal that you gave it?"""
    kernel = layer.kernel.value
    direction = tf.scatter_nd([[row, column]], tf.ones([1], kernel.dtype), kernel.shape)
    outputs = layer(data)
    with tf.autodiff.ForwardAccumulator(kernel, direction) as accumulator:
        pass
    return accumulator.jvp(outputs)


@one_weight.mistake("every_weight")
def _(layer, data, row, column):
    """Here every weight of the kernel moves at once: the tangent is all ones. One weight is to move."""
    kernel = layer.kernel.value
    with tf.autodiff.ForwardAccumulator(kernel, tf.ones_like(kernel)) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


@one_weight.mistake("whole_row")
def _(layer, data, row, column):
    """Here a whole row of the kernel moves: all outputs respond. Only the weight in column `column` is to move."""
    kernel = layer.kernel.value
    direction = np.zeros(kernel.shape, kernel.dtype.as_numpy_dtype)
    direction[row] = 1.0
    with tf.autodiff.ForwardAccumulator(kernel, tf.constant(direction)) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


@one_weight.mistake("row_and_column")
def _(layer, data, row, column):
    """This is the response to the weight at [column, row]. Which of the kernel's axes are the inputs?"""
    kernel = layer.kernel.value
    direction = np.zeros(kernel.shape, kernel.dtype.as_numpy_dtype)
    direction[column, row] = 1.0
    with tf.autodiff.ForwardAccumulator(kernel, tf.constant(direction)) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


@one_weight.wrong("raised:AttributeError")
def _(layer, data, row, column):
    direction = np.zeros(layer.kernel.shape, layer.kernel.dtype)
    direction[row, column] = 1.0
    with tf.autodiff.ForwardAccumulator(layer.kernel, tf.constant(direction)) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


@one_weight.wrong("one_dtype")
def _(layer, data, row, column):
    kernel = layer.kernel.value
    direction = np.zeros(kernel.shape, np.float32)
    direction[row, column] = 1.0
    with tf.autodiff.ForwardAccumulator(kernel, tf.constant(direction)) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


def _modes(answer, names):
    """The modes given for some of the functions, such as "forward reverse"; raises where one is no mode at all."""
    given = []
    for name in names:
        mode, _ = answer[name]
        given.append({"forward": "forward", "reverse": "reverse"}[mode.strip().casefold()])
    return " ".join(given)


_MODES = {"A": ("forward", 4), "B": ("reverse", 10), "C": ("forward", 1), "D": ("reverse", 1), "E": ("reverse", 1)}

which_mode = Exercise(
    title="Which mode, and how many passes?",
    minutes=5,
    hints=(
        "A forward pass takes one direction of the inputs; a backward pass takes one weighting of the outputs. How "
        "many of each does the question need?",
        "Only A and B ask for whole Jacobians. In C, D and E compare the number of directions with the number of "
        "weightings, not the numbers of inputs and outputs.",
        "For E: forward mode takes a pass for each direction. What does a single backward pass of the loss give, and "
        "how do you get a slope along a direction from it?",
    ),
    checker=Value(
        expected=_MODES,
        mistakes=(
            Mistake(
                "sides_exchanged",
                "In A or B the mode is the other one. A forward pass starts at one input, a backward pass at one "
                "output: which side is the smaller?",
                {"A": ("reverse", 4096)},
                where=lambda answer: _modes(answer, "AB") != "forward reverse",
            ),
            Mistake(
                "other_count",
                "In A or B the mode is right and the number of passes is not. What does one pass of that mode start "
                "at, and how many of these are there?",
                {"A": ("forward", 4096)},
                where=lambda answer: _modes(answer, "AB") and (answer["A"][1] != 4 or answer["B"][1] != 10),
            ),
            Mistake(
                "other_mode",
                "In C or D the mode is the other one. What is given: a direction of the inputs, or a weighting of the "
                "outputs?",
                {"C": ("reverse", 10)},
                where=lambda answer: _modes(answer, "CD") != "forward reverse",
            ),
            Mistake(
                "whole_jacobian",
                "In C or D the number of passes is too large: a whole Jacobian would cost that. You are asked for a "
                "single product with it.",
                {"A": ("Forward", 4), "B": ("Reverse", 10), "C": ("forward", 784)},
                where=lambda answer: _modes(answer, "CD") and (answer["C"][1] != 1 or answer["D"][1] != 1),
            ),
            Mistake(
                "a_pass_for_each",
                "In E: a pass for each direction, or for each weight, would do. Fewer do as well: a loss is one "
                "output, and what comes after the pass, such as an inner product, does not count.",
                {"E": ("forward", 7)},
                where=lambda answer: _modes(answer, "E") != "reverse" or answer["E"][1] != 1,
            ),
        ),
        wrong=(
            ("type", _MODES | {"A": "forward"}),
            ("type", _MODES | {"A": (4, "forward")}),
            ("other_count", _MODES | {"B": ("reverse", 784)}),
            ("whole_jacobian", _MODES | {"C": ("forward", 784)}),
            ("keys", {"A": ("forward", 4), "B": ("reverse", 10), "C": ("forward", 1), "D": ("reverse", 1)}),
        ),
    ),
)


@which_mode.starter()
def _():
    answers = {  # for each: "forward" or "reverse", and the number of passes
        "A": (..., ...),
        "B": (..., ...),
        "C": (..., ...),
        "D": (..., ...),
        "E": (..., ...),
    }

    return answers


@which_mode.right
def _():
    """In A and B the smaller side counts the passes. In C one direction takes one forward pass, in D one weighting of
    the scores one backward pass. In E the one backward pass gives the gradient, and each slope is its inner product
    with a direction."""
    answers = {
        "A": ("forward", 4),
        "B": ("reverse", 10),
        "C": ("forward", 1),
        "D": ("reverse", 1),
        "E": ("reverse", 1),
    }
    return answers


def _residuals(random, dtype):
    """Functions with their Jacobians in closed form, each with a point and a direction."""

    def network(ins, outs):
        kernel = 0.6 * random.normal(size=(outs, ins))

        def function(x):
            return tf.tanh(tf.linalg.matvec(tf.constant(kernel, x.dtype), x))

        def jacobian(x):
            return (1.0 - function(x) ** 2)[:, tf.newaxis] * tf.constant(kernel, x.dtype)

        function.jacobian = jacobian
        return function, *(tf.constant(random.normal(size=ins), dtype) for _ in range(2))

    def curved(x):
        return tf.stack([x[0] ** 2, x[0] * x[1], x[1] * x[2], x[2] - 1.0])

    def jacobian(x):
        zero, one = tf.zeros_like(x[0]), tf.ones_like(x[0])
        rows = [2.0 * x[0], zero, zero], [x[1], x[0], zero], [zero, x[2], x[1]], [zero, zero, one]
        return tf.stack([tf.stack(row) for row in rows])

    curved.jacobian = jacobian
    example = (curved, tf.constant([2.0, 3.0, -1.0], dtype), tf.constant([1.0, -2.0, 0.5], dtype))
    return [example, network(5, 6)]


def _round_trip(function, x, v):
    jacobian = function.jacobian(x)
    return tf.linalg.matvec(jacobian, tf.linalg.matvec(jacobian, v), transpose_a=True)


round_trip = Exercise(
    title="There and back",
    minutes=8,
    seconds=_SECONDS,
    hints=(
        r"Read $J^\top (J v)$ from the right. Which mode multiplies by $J$, and which by $J^\top$?",
        "The first product has the shape of the output. Which argument of `tape.gradient` takes a tensor of that "
        "shape (section 1 of 11 uses it)?",
        "`jv = accumulator.jvp(y)` from an accumulator with `x` and `v`; then "
        "`tape.gradient(y, x, output_gradients=jv)` from a tape that watched `x`.",
    ),
    checker=Function(
        reference=_round_trip,
        inputs=_residuals,
        observe=_count_passes("the product", lambda *arguments: 2, _round_trip),
        axes=("input",),
    ),
)


@round_trip.starter("there_and_back")
def _(f, x, v):
    ...
    return ...  # J transposed times J times v: a vector as long as x


@round_trip.right
def _(f, x, v):
    r"""Forwards gives $J v$, as long as the output; backwards takes it as the upstream gradient and gives $J^\top (J
    v)$. Two passes, and no matrix. For a loss $\frac12 \lVert f \rVert^2$ the matrix $J^\top J$ is the Hessian without
    the term that holds $f$'s own curvature."""
    with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
    return tape.gradient(y, x, output_gradients=accumulator.jvp(y))


@round_trip.mistake("whole_jacobian")
def _(f, x, v):
    """The product is right, and the whole of $J$ was built for it: a pass for each of its rows or columns. Two passes
    are enough."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    J = tape.jacobian(y, x)
    return tf.linalg.matvec(J, tf.linalg.matvec(J, v), transpose_a=True)


@round_trip.mistake("forward_only")
def _(f, x, v):
    r"""This is $J v$, as long as the output. One product is missing: by $J^\top$."""
    with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


@round_trip.mistake("no_direction")
def _(f, x, v):
    r"""This is $J^\top \mathbf{1}$, the gradient of the sum: `v` has not come in. What does the tape get as the
    upstream gradient?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


@round_trip.mistake("entry_by_entry")
def _(f, x, v):
    r"""This is $J^\top \mathbf{1}$, and then each entry times its own entry of `v`. In $J v$ every output mixes the
    entries of `v`: which of the two modes does that?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x) * v


@round_trip.mistake("residual")
def _(f, x, v):
    r"""This is $J^\top f(x)$: the upstream gradient was the value of `f`, not its tangent along `v`."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=y)


@round_trip.mistake("full_hessian")
def _(f, x, v):
    r"""This is the Hessian of $\frac12 \lVert f \rVert^2$ times `v`. It has a second term, with the second derivatives
    of `f`, that is not asked for."""
    with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = 0.5 * tf.reduce_sum(f(x) ** 2)
        gradient = tape.gradient(y, x)
    return accumulator.jvp(gradient)


@round_trip.wrong("whole_jacobian")
def _(f, x, v):
    columns = []
    for unit in tf.eye(len(x), dtype=x.dtype):
        with tf.autodiff.ForwardAccumulator(x, unit) as accumulator:
            y = f(x)
        columns.append(accumulator.jvp(y))
    J = tf.stack(columns, axis=-1)
    return tf.linalg.matvec(J, tf.linalg.matvec(J, v), transpose_a=True)


@round_trip.wrong("none")
def _(f, x, v):
    with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
        with tf.GradientTape() as tape:
            y = f(x)
    return tape.gradient(y, x, output_gradients=accumulator.jvp(y))


@round_trip.wrong("raised:InvalidArgumentError")
def _(f, x, v):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=v)


def _neighbours(x):
    padded = tf.pad(x, [[1, 1]])
    return tf.sin(padded[:-2]) * x + padded[2:] ** 2


def _stencil(x):
    padded = tf.pad(x, [[1, 1]])
    return 2.0 * x**3 - padded[:-2] - 0.5 * padded[2:] * x


def _bands(random, dtype):
    return [
        (_neighbours, tf.constant([1.0, 2.0, -1.0, 0.5, 1.5, -0.5], dtype)),
        (_stencil, tf.constant(random.normal(size=8), dtype)),
        (_neighbours, tf.constant(random.normal(size=5), dtype)),
    ]


def _in_groups(f, x, groups=3):
    """The products, those spread over their columns, and what of them is in the band, for wrong answers."""
    index = tf.range(x.shape[0])
    products = []
    for group in range(groups):
        tangent = tf.cast(index % groups == group, x.dtype)
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            y = f(x)
        products.append(accumulator.jvp(y))
    spread = tf.gather(tf.stack(products, axis=1), index % groups, axis=1)
    near = tf.abs(index[:, None] - index[None, :]) <= 1
    return tf.stack(products, axis=1), spread, tf.where(near, spread, tf.zeros_like(spread))


band = Exercise(
    title="A band in three passes",
    minutes=20,
    beyond=True,
    hints=(
        "A forward pass along $v$ gives $Jv$, a sum of columns. When can you tell the columns apart in the sum?",
        "Column $j$ has entries in the rows $j - 1$, $j$ and $j + 1$ only. Which columns share no row with column 0, "
        "and none with each other?",
        r"Three groups, by $j \bmod 3$. For each, one pass along the vector that is 1 on the group and 0 elsewhere. "
        "Row $i$ of the product belonging to $j$'s group is entry $(i, j)$.",
        r"Stack the three products to shape (n, 3). Entry $(i, j)$ is in row $i$, column $j \bmod 3$ of it where "
        r"$|i - j| \le 1$, and 0 elsewhere: `tf.gather` along axis 1, then `tf.where`.",
    ),
    checker=Function(
        reference=_differences,
        inputs=_bands,
        observe=_count_passes("the Jacobian", lambda f, x: 3, _differences),
        axes=("output", "input"),
    ),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)


@band.starter("banded_jacobian")
def _(f, x):
    return ...  # shape (n, n)


@band.right
def _(f, x):
    """Columns 0, 3, 6, … share no row, so one forward pass along the sum of their unit vectors delivers all of them,
    each in its own rows. Columns $j$, $j + 1$ and $j + 2$ do share a row: two groups are too few. This is column
    compression; Curtis, Powell and Reid (1974) did it with differences."""
    index = tf.range(x.shape[0])
    products = []
    for group in range(3):
        tangent = tf.cast(index % 3 == group, x.dtype)
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            y = f(x)
        products.append(accumulator.jvp(y))
    spread = tf.gather(tf.stack(products, axis=1), index % 3, axis=1)
    near = tf.abs(index[:, None] - index[None, :]) <= 1
    return tf.where(near, spread, tf.zeros_like(spread))


@band.mistake("n_passes")
def _(f, x):
    """The Jacobian is right, and it took as many passes as it has columns (or rows). Three are allowed, for every n:
    one pass has to give several columns."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)


@band.mistake("two_groups")
def _(f, x):
    """With two groups, columns $j - 1$ and $j + 1$ are in one product, and row $j$ has entries in both. How far apart
    must columns be?"""
    return _in_groups(f, x, groups=2)[2]


@band.mistake("no_zeros")
def _(f, x):
    """Inside the band all is right. Outside it are entries of other columns of the same group; what is known to be
    there?"""
    return _in_groups(f, x)[1]


@band.mistake("diagonal_only")
def _(f, x):
    """The diagonal is right. The two lines beside it are missing: row $i$ of a product belongs to column $i - 1$, $i$
    or $i + 1$, whichever is in its group."""
    _, spread, _ = _in_groups(f, x)
    return tf.linalg.diag(tf.linalg.diag_part(spread))


@band.wrong("transpose")
def _(f, x):
    return tf.transpose(_in_groups(f, x)[2])


@band.wrong("shape")
def _(f, x):
    return _in_groups(f, x)[0]


def _gathering(random, dtype):
    """The functions of the other exercise, and one that gathers: its gradient is `IndexedSlices`."""

    def gathered(x):
        return tf.tanh(tf.gather(x, [0, 2, 2, 1])) ** 2

    def jacobian(x):
        y = tf.tanh(x)
        return tf.gather(tf.linalg.diag(2.0 * y * (1.0 - y**2)), [0, 2, 2, 1])

    gathered.jacobian = jacobian
    vectors = (tf.constant(random.normal(size=3), dtype) for _ in range(2))
    return [*_residuals(random, dtype), (gathered, *vectors)]


def _observe_tapes_only(answer, *arguments):
    used = helped = False

    @functools.wraps(answer)
    def watched(function, *given):
        @functools.wraps(function)
        def f(x):
            nonlocal helped
            frames = traceback.walk_stack(None)
            helped |= any(frame.f_globals.get("__name__", "").startswith("tapelab.derivatives") for frame, _ in frames)
            return function(x)

        nonlocal used
        kind = tf.autodiff.ForwardAccumulator
        with mock.patch.object(kind, "__init__", autospec=True, side_effect=kind.__init__) as start:
            result = answer(f, *given)
        used = start.called
        return result

    counted = _count_passes("the product", lambda *given: 2, _jv)(watched, *arguments)
    origin = "tapelab.derivatives" if helped else "the tapes"
    return counted | {"an accumulator was used": used, "the source of the product": origin}


def _jv(function, x, v):
    return tf.linalg.matvec(function.jacobian(x), v)


tapes_only = Exercise(
    title="A forward product from tapes alone",
    minutes=12,
    beyond=True,
    seconds=_SECONDS,
    hints=(
        r"A tape multiplies by a transpose: $J^\top u$. What would you have to differentiate, so that the transpose "
        "of its Jacobian is $J$ itself?",
        r"Look at $g(u) = J^\top u$ as a function of $u$, with $x$ held fixed. It is linear. What is its Jacobian? "
        "And what does a second tape give for it, with `v` as the upstream gradient?",
        "Let an outer tape watch `u`, a tensor of ones of the output's shape. Inside it, "
        "`inner.gradient(y, x, output_gradients=u)`. Then ask the outer tape for the gradient of that with respect to "
        "`u`, with `output_gradients=v`.",
    ),
    checker=Function(reference=_jv, inputs=_gathering, observe=_observe_tapes_only, axes=("output",)),
)


@tapes_only.starter("jvp_from_tapes")
def _(f, x, v):
    ...
    return ...  # J times v, as long as f(x), without tf.autodiff.ForwardAccumulator


@tapes_only.right
def _(f, x, v):
    r"""What a tape returns for the upstream gradient $u$ is $g(u) = J^\top u$. It is linear in $u$, so its Jacobian
    with respect to $u$ is $J^\top$, whatever $u$ is. A second tape multiplies by the transpose of *that*:
    $(J^\top)^\top v = J v$. This is forward mode from reverse mode, applied twice."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        u = tf.ones_like(y)  # any value does
        outer.watch(u)
        back = tf.convert_to_tensor(inner.gradient(y, x, output_gradients=u))  # that of a gather is IndexedSlices
    return outer.gradient(back, u, output_gradients=v)


@tapes_only.wrong("raised:AttributeError")
def _(f, x, v):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        u = tf.ones_like(y)
        outer.watch(u)
        back = inner.gradient(y, x, output_gradients=u)
    return outer.gradient(back, u, output_gradients=v)


@tapes_only.mistake("accumulator")
def _(f, x, v):
    """The product is right, and a `ForwardAccumulator` computed it. Here you are to do without it."""
    with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


_kept = tf.autodiff.ForwardAccumulator  # under another name, as after `from tensorflow.autodiff import … as …`


@tapes_only.wrong("accumulator")
def _(f, x, v):
    with _kept(x, v) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


@tapes_only.mistake("whole_jacobian")
def _(f, x, v):
    """The product is right, and a whole Jacobian was built for it: a pass for each output. Here the number of passes
    must not depend on the sizes."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.linalg.matvec(tape.jacobian(y, x), v)


@tapes_only.mistake("gradient")
def _(f, x, v):
    r"""This is $J^\top$ times a vector of ones, as long as the input. It is the first half: it depends on the upstream
    gradient. How?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tf.convert_to_tensor(tape.gradient(y, x))


@tapes_only.mistake("columns_added")
def _(f, x, v):
    """This adds up the columns of $J$: the product with a vector of ones. Where does `v` come in?"""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        u = tf.ones_like(y)
        outer.watch(u)
        back = tf.convert_to_tensor(inner.gradient(y, x, output_gradients=u))
    return outer.gradient(back, u)


@tapes_only.mistake("derivative_in_x")
def _(f, x, v):
    r"""As long as the input, and with second derivatives of `f` in it: the outer tape differentiated $J^\top u$ with
    respect to `x`. It is linear in something else."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        back = tf.convert_to_tensor(inner.gradient(y, x))
    return outer.gradient(back, x, output_gradients=v)


@tapes_only.wrong("other")
def _(f, x, v):
    x64, step = tf.cast(x, tf.float64), 1e-5 * tf.cast(v, tf.float64)
    return tf.cast((f(x64 + step) - f(x64 - step)) / 2e-5, x.dtype)


@tapes_only.wrong("none")
def _(f, x, v):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        u = tf.ones_like(y)
        back = tf.convert_to_tensor(inner.gradient(y, x, output_gradients=u))
    return outer.gradient(back, u, output_gradients=v)


@tapes_only.wrong("raised:InvalidArgumentError")
def _(f, x, v):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x, output_gradients=v)
