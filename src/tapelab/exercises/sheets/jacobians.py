"""Exercises and predictions of the notebook "Jacobians"."""

from unittest import mock

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

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
        (5.0, r"That is $\partial(ab)/\partial a = b$, the upper left: the column says by which input."),
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

gibibytes = Prediction(
    "jacobians.gibibytes",
    remarks=(
        (105.2, "In units of $10^9$ bytes it is 105.2 GB. A GiB is $2^{30}$ bytes."),
        (24.5, "Those are the entries, in units of $2^{30}$. A float32 takes 4 bytes."),
        (0.77, "That leaves out the batch: the target has 128 · 512 elements."),
        (0.191, "The kernel has two axes, 784 and 512, and both are in the Jacobian."),
    ),
)


def _chained(dz_dy, dy_dx, rank):
    """The product of two matrices, which the Jacobians are when the axes of each tensor are made one."""
    z, y, x = dz_dy.shape[: dz_dy.shape.rank - rank], dy_dx.shape[:rank], dy_dx.shape[rank:]
    rows, middle, columns = z.num_elements(), y.num_elements(), x.num_elements()
    product = tf.reshape(dz_dy, [rows, middle]) @ tf.reshape(dy_dx, [middle, columns])
    return tf.reshape(product, [*z, *x])


def _links(random, dtype):
    def trial(z, y, x):
        return (
            tf.constant(random.normal(size=(*z, *y)), dtype),
            tf.constant(random.normal(size=(*y, *x)), dtype),
            len(y),
        )

    return [
        trial(z=(3,), y=(7, 6), x=(5, 4)),
        trial(z=(2, 5), y=(4,), x=(3,)),
        trial(z=(3,), y=(2, 6, 4), x=(5,)),
        trial(z=(4,), y=(), x=(2, 3)),
    ]


chain = Exercise(
    title="The chain rule for tensors",
    minutes=10,
    hints=(
        r"For vectors the chain rule is the matrix product: $\sum_j (\partial z_i/\partial y_j)(\partial y_j/\partial "
        "x_k)$. What does $j$ become when $y$ has two axes?",
        "Where are the axes of $y$ in each of the two Jacobians? Section 3: the target's first, then the source's.",
        "Either make each tensor's axes one with `tf.reshape`, multiply two matrices and undo it, or look up what an "
        "integer means as `axes` of `tf.tensordot`.",
    ),
    checker=Function(reference=_chained, inputs=_links),
)


@chain.starter("chain")
def _(dz_dy, dy_dx, rank):
    return ...  # the Jacobian of z with respect to x


@chain.right
def _(dz_dy, dy_dx, rank):
    """The chain rule sums over every element of $y$, so over all its axes: the last `rank` of the first Jacobian with
    the first `rank` of the second. For vectors, `rank` 1, this is the product of two matrices."""
    return tf.tensordot(dz_dy, dy_dx, axes=rank)


@chain.mistake("source_first")
def _(dz_dy, dy_dx, rank):
    """The values are right; the axes of $x$ come before those of $z$. A Jacobian has its target's axes first, and $z$
    is the target."""
    y_in_x = list(range(rank))
    y_in_z = [len(dz_dy.shape) - rank + axis for axis in range(rank)]
    return tf.tensordot(dy_dx, dz_dy, axes=[y_in_x, y_in_z])


@chain.mistake("product_of_sums")
def _(dz_dy, dy_dx, rank):
    """You summed each Jacobian over $y$ and multiplied the sums. The chain rule multiplies first, element of $y$ by
    element of $y$, and then sums."""
    z_rank = len(dz_dy.shape) - rank
    left = tf.reduce_sum(dz_dy, axis=list(range(z_rank, z_rank + rank)))
    right = tf.reduce_sum(dy_dx, axis=list(range(rank)))
    return tf.tensordot(left, right, axes=0)


@chain.wrong("raised:InvalidArgumentError")
def _(dz_dy, dy_dx, rank):
    return dz_dy @ dy_dx


@chain.wrong("sign")
def _(dz_dy, dy_dx, rank):
    return -tf.tensordot(dz_dy, dy_dx, rank)


@chain.wrong("factor")
def _(dz_dy, dy_dx, rank):
    return tf.tensordot(dz_dy, dy_dx, rank) / 42


@chain.wrong("shape")
def _(dz_dy, dy_dx, rank):
    return tf.tensordot(dz_dy, dy_dx, axes=0)


_SHAPES = {
    "y by bias": (7, 6, 6),
    "size by kernel": (7, 5, 6),
    "size by x": (7, 7, 5),
    "loss by x": (7, 5),
    "g by bias": (5, 6, 6),
}

shapes = Exercise(
    title="Five shapes, nothing computed",
    minutes=4,
    hints=(
        "First write down the shape of every target and every source. `reduce_sum(…, axis=1)` removes one axis.",
        "The result is the two shapes side by side, the target's first: section 3. A scalar's shape is `()`.",
        "`g` is a gradient, so it has its source's shape, (5, 6). It is the target here. And `size` by `x` has the "
        "batch axis twice.",
    ),
    checker=Value(
        expected=_SHAPES,
        mistakes=(
            Mistake(
                "batch_once",
                'In "size by x": an example\'s size depends on its own features only, and `jacobian` does not know '
                "that. It keeps one entry for each pair of a target element and a source element.",
                {"size by x": (7, 5)},
            ),
            Mistake(
                "source_first",
                "The axes are the right ones, with the source's in front. Section 3 says which come first.",
                {"y by bias": (6, 7, 6), "size by kernel": (5, 6, 7), "size by x": (7, 5, 7), "g by bias": (6, 5, 6)},
                where=lambda answer: (
                    (tuple(answer["size by kernel"]), tuple(answer["g by bias"])) == ((5, 6, 7), (6, 5, 6))
                ),
            ),
            Mistake(
                "gradients",
                "These are the shapes of the gradients: the sources' own. What does `jacobian` add in front of them? "
                'See "size by kernel".',
                {"y by bias": (6,), "size by kernel": (5, 6), "g by bias": (6,)},
                where=lambda answer: tuple(answer["y by bias"]) == (6,) and tuple(answer["size by kernel"]) == (5, 6),
            ),
        ),
        wrong=(
            ("rank", _SHAPES | {"loss by x": (1, 7, 5)}),
            ("rank", _SHAPES | {"y by bias": (7, 6)}),
            ("sizes", _SHAPES | {"g by bias": (7, 6, 6)}),
            ("type", _SHAPES | {"size by x": 245}),
        ),
    ),
)


@shapes.starter()
def _():
    five_shapes = {
        "y by bias": ...,
        "size by kernel": ...,
        "size by x": ...,
        "loss by x": ...,
        "g by bias": ...,
    }
    return five_shapes


@shapes.right
def _():
    """Target's axes, then source's, whatever the function is. Of `size` by `x`, all but 7 · 5 entries are zero, and the
    shape does not know it; a scalar target adds no axes, so its Jacobian is its gradient."""
    five_shapes = {
        "y by bias": (7, 6) + (6,),
        "size by kernel": (7,) + (5, 6),
        "size by x": (7,) + (7, 5),
        "loss by x": () + (7, 5),
        "g by bias": (5, 6) + (6,),
    }
    return five_shapes


def _count_passes(limit):
    """An observer: the Jacobian, and the number of passes, which is told only where it is above limit(f, x)."""

    def observe(answer, f, x):
        count = 0

        class Tape(tf.GradientTape):
            def gradient(self, *args, **kwargs):
                nonlocal count
                count += 1
                return super().gradient(*args, **kwargs)

            def jacobian(self, target, *args, **kwargs):
                nonlocal count
                total = count + int(tf.size(target))
                result = super().jacobian(target, *args, **kwargs)
                count = total  # the passes of this call are in it, however many of them were traced as one
                return result

        class Accumulator(tf.autodiff.ForwardAccumulator):
            def __init__(self, *args, **kwargs):
                nonlocal count
                count += 1
                super().__init__(*args, **kwargs)

        with (
            mock.patch.object(tf, "GradientTape", Tape),
            mock.patch.object(tf.autodiff, "ForwardAccumulator", Accumulator),
        ):
            jacobian = answer(f, x)
        most = limit(f, x)
        return {"the Jacobian": jacobian, "the number of passes": f"at most {most}" if count <= most else f"{count}"}

    return observe


def _differences(f, x):
    """Central differences in float64: no passes at all."""
    x64, shift = tf.cast(x, tf.float64), 1e-5
    units = tf.unstack(shift * tf.eye(len(x), dtype=tf.float64))
    return tf.cast(tf.stack([(f(x64 + unit) - f(x64 - unit)) / (2 * shift) for unit in units], axis=1), x.dtype)


def _of_two(x):
    return tf.sin(tf.cast(tf.range(1, 10), x.dtype) * x[0]) * x[1]


def _of_seven(x):
    return tf.stack([tf.reduce_sum(x**2), tf.exp(x[1]) * x[5], tf.sin(x[0] * x[6])])


def _of_three(x):
    return tf.reshape(x[:, None] * tf.tanh(x)[None, :], [9])[:8]


def _maps(random, dtype):
    return [
        (_of_two, tf.constant([0.5, -1.5], dtype)),
        (_of_seven, tf.constant(random.normal(size=7), dtype)),
        (_of_three, tf.constant(random.normal(size=3), dtype)),
    ]


def _columns(f, x, units):
    """One forward pass for each unit vector, for wrong answers."""

    def column(unit):
        with tf.autodiff.ForwardAccumulator(primals=x, tangents=unit) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return tf.map_fn(column, units)


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
        observe=_count_passes(lambda f, x: min(len(f(x)), len(x))),
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
    """Reverse mode takes one pass for each output, forward mode one for each input, so the smaller of the two numbers
    decides. Evaluating `f` once tells you the number of outputs, and if rows it is, that evaluation is already on the
    tape."""
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
    """The Jacobians are right. You always take rows, one pass for each output; the first function tried has 9 outputs
    and 2 inputs."""
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
    """The Jacobians are right, and each of them took the more expensive way. Which mode takes one pass for each
    output?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] > x.shape[0]:
        return tape.jacobian(y, x)
    return tf.transpose(_columns(f, x, tf.eye(x.shape[0], dtype=x.dtype)))


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
        reference=_differences, inputs=_bands, observe=_count_passes(lambda f, x: 3), axes=("output", "input")
    ),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)


@band.starter("banded_jacobian")
def _(f, x):
    return ...  # shape (n, n)


@band.right
def _(f, x):
    """Columns 0, 3, 6, … share no row, so one forward pass along the sum of their unit vectors delivers all of them,
    each in its own rows. Columns $j$ and $j + 2$ do share a row, so two groups are too few. The number of passes does
    not grow with $n$; automatic differentiation of large sparse systems works this way (column compression, Curtis,
    Powell and Reid 1974)."""
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
