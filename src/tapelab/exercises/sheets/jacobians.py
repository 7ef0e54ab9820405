"""Exercises and predictions of notebook 09, Jacobians."""

from unittest import mock

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import tensorflow as tf

scalar_source = Prediction(
    "09.scalar_source",
    reason="The target's axes come first, then the source's. A scalar has no axes, so those of the target are all there are.",
    remarks=(
        ((), "One number is what `gradient` gives: the sum. `jacobian` keeps the derivatives apart."),
        ((201, 1), "A scalar has no axis at all, not an axis of size 1."),
        ((1, 201), "A scalar has no axis at all, and the source's axes would come last."),
        ((201, 201), "That would be one derivative for each pair of points. The source is the one knob `delta`."),
    ),
)

upper_right = Prediction(
    "09.upper_right",
    reason=r"The first row belongs to the first output: $\partial(ab)/\partial a = b = 5$ and $\partial(ab)/\partial b = a = 2$.",
    remarks=(
        (1.0, r"That is $\partial(a + 3b)/\partial a$, the lower left: you wrote the transpose."),
        (5.0, r"That is $\partial(ab)/\partial a = b$, the upper left: the column says by which input."),
        (3.0, r"That is $\partial(a + 3b)/\partial b$, the lower right."),
    ),
)

kernel_shape = Prediction(
    "09.kernel_shape",
    reason="The target's axes (7, 10), then the source's (5, 10): 70 outputs times 50 kernel elements.",
    remarks=(
        ((5, 10, 7, 10), "The right axes, the source's first. It is the target that comes first."),
        ((5, 10), "That is the shape of the gradient, which has summed over the target."),
        ((70, 50), "As a matrix, yes. `jacobian` leaves the axes of both as they are."),
        (
            (7, 10, 5),
            "You left out that unit `o` reads column `o` only. `jacobian` does not know it: both axes of size 10 stay.",
        ),
    ),
)

passes = Prediction(
    "09.passes",
    reason="A backward pass starts at one target element and reaches all of the source: one pass for each of the 7 · 10 target elements.",
    remarks=(
        (3500, "One pass gives a whole row, not one entry."),
        (50, "That counts the source's elements. They are all reached by the same pass."),
        (1, "One pass gives the gradient of *one* scalar. Here each target element is a scalar of its own."),
        (7, "That counts the examples. Each example has 10 outputs, and each of them is a target element."),
    ),
)

traces = Prediction(
    "09.traces",
    reason="Eagerly, each call builds a new graph of the backward pass. A `tf.function` keeps the graph that its first call has traced.",
    remarks=(
        ([1, 1], "An eager call has nowhere to keep its graph, so it traces again."),
        (
            [3, 3],
            "A `tf.function` traces on its first call with arguments of this shape and dtype; after that it runs the graph.",
        ),
        ([210, 70], "That counts passes of a loop. By default one pass is traced, and rewritten to do the work of 70."),
    ),
)

gibibytes = Prediction(
    "09.gibibytes",
    reason="128 · 512 target elements times 784 · 512 source elements times 4 bytes. That is one copy of the kernel's shape for each of 65 536 target elements.",
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


def _chained_source_first(dz_dy, dy_dx, rank):
    product = _chained(dz_dy, dy_dx, rank)
    ends = dz_dy.shape.rank - rank
    return tf.transpose(product, [*range(ends, product.shape.rank), *range(ends)])


def _product_of_sums(dz_dy, dy_dx, rank):
    ends = dz_dy.shape.rank - rank
    left = tf.reduce_sum(dz_dy, axis=list(range(ends, dz_dy.shape.rank)))
    return tf.tensordot(left, tf.reduce_sum(dy_dx, axis=list(range(rank))), axes=0)


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
    "09.chain",
    title="The chain rule for tensors",
    minutes=10,
    starter="""
def chain(dz_dy, dy_dx, rank):
    return ...  # the Jacobian of z with respect to x


exercises.chain.check(chain)
""",
    solution_code="""
def chain(dz_dy, dy_dx, rank):
    return tf.tensordot(dz_dy, dy_dx, axes=rank)
""",
    explanation=(
        "The chain rule sums over every element of $y$, so over all its axes: the last `rank` of the first Jacobian with the first `rank` of the second. "
        "For vectors, `rank` 1, this is the product of two matrices."
    ),
    hints=(
        "For vectors the chain rule is the matrix product: $\\sum_j (\\partial z_i/\\partial y_j)(\\partial y_j/\\partial x_k)$. What does $j$ become when $y$ has two axes?",
        "Where are the axes of $y$ in each of the two Jacobians? Section 2: the target's first, then the source's.",
        "Either make each tensor's axes one with `tf.reshape`, multiply two matrices and undo it, or look up what an integer means as `axes` of `tf.tensordot`.",
    ),
    checker=Function(
        reference=_chained,
        inputs=_links,
        mistakes=(
            Mistake(
                "source_first",
                "The values are right; the axes of $x$ come before those of $z$. A Jacobian has its target's axes first, and $z$ is the target.",
                _chained_source_first,
            ),
            Mistake(
                "product_of_sums",
                "You summed each Jacobian over $y$ and multiplied the sums. The chain rule multiplies first, element of $y$ by element of $y$, and then sums.",
                _product_of_sums,
            ),
        ),
    ),
    wrong=(
        (
            """
def chain(dz_dy, dy_dx, rank):
    y_in_x = list(range(rank))
    y_in_z = [len(dz_dy.shape) - rank + axis for axis in range(rank)]
    return tf.tensordot(dy_dx, dz_dy, axes=[y_in_x, y_in_z])
""",
            "source_first",
        ),
        (
            """
def chain(dz_dy, dy_dx, rank):
    z_rank = len(dz_dy.shape) - rank
    left = tf.reduce_sum(dz_dy, axis=list(range(z_rank, z_rank + rank)))
    right = tf.reduce_sum(dy_dx, axis=list(range(rank)))
    return tf.tensordot(left, right, axes=0)
""",
            "product_of_sums",
        ),
        ("def chain(dz_dy, dy_dx, rank):\n    return dz_dy @ dy_dx", "raised:InvalidArgumentError"),
        ("def chain(dz_dy, dy_dx, rank):\n    return -tf.tensordot(dz_dy, dy_dx, rank)", "sign"),
        ("def chain(dz_dy, dy_dx, rank):\n    return tf.tensordot(dz_dy, dy_dx, rank) / 42", "factor"),
        ("def chain(dz_dy, dy_dx, rank):\n    return tf.tensordot(dz_dy, dy_dx, axes=0)", "shape"),
    ),
)


_SHAPES = {
    "y by bias": (7, 6, 6),
    "size by kernel": (7, 5, 6),
    "size by x": (7, 7, 5),
    "loss by x": (7, 5),
    "g by bias": (5, 6, 6),
}

shapes = Exercise(
    "09.shapes",
    title="Five shapes, nothing computed",
    minutes=4,
    starter="""
five_shapes = {
    "y by bias": ...,
    "size by kernel": ...,
    "size by x": ...,
    "loss by x": ...,
    "g by bias": ...,
}
exercises.shapes.check(five_shapes)
""",
    solution_code="""
five_shapes = {
    "y by bias": (7, 6) + (6,),
    "size by kernel": (7,) + (5, 6),
    "size by x": (7,) + (7, 5),
    "loss by x": () + (7, 5),
    "g by bias": (5, 6) + (6,),
}
""",
    explanation=(
        "Target's axes, then source's, whatever the function is. Of `size` by `x`, all but 7 · 5 entries are zero, and the shape does not know it; "
        "a scalar target adds no axes, so its Jacobian is its gradient."
    ),
    hints=(
        "First write down the shape of every target and every source. `reduce_sum(…, axis=1)` removes one axis.",
        "The result is the two shapes side by side, the target's first: section 2. A scalar's shape is `()`.",
        "`g` is a gradient, so it has its source's shape, (5, 6). It is the target here. And `size` by `x` has the batch axis twice.",
    ),
    checker=Value(
        expected=_SHAPES,
        mistakes=(
            Mistake(
                "batch_once",
                'In "size by x": an example\'s size depends on its own features only, and `jacobian` does not know that. It keeps one entry for each pair '
                "of a target element and a source element.",
                lambda answer: tuple(answer["size by x"]) == (7, 5),
            ),
            Mistake(
                "source_first",
                "The axes are the right ones, with the source's in front. Section 2 says which come first.",
                lambda answer: (tuple(answer["size by kernel"]), tuple(answer["g by bias"])) == ((5, 6, 7), (6, 5, 6)),
            ),
            Mistake(
                "gradients",
                'These are the shapes of the gradients: the sources\' own. What does `jacobian` add in front of them? See "size by kernel".',
                lambda answer: tuple(answer["y by bias"]) == (6,) and tuple(answer["size by kernel"]) == (5, 6),
            ),
        ),
    ),
    wrong=(
        (f"five_shapes = {_SHAPES | {'size by x': (7, 5)}}", "batch_once"),
        (
            """
five_shapes = {
    "y by bias": (6, 7, 6),
    "size by kernel": (5, 6, 7),
    "size by x": (7, 5, 7),
    "loss by x": (7, 5),
    "g by bias": (6, 5, 6),
}
""",
            "source_first",
        ),
        (
            """
five_shapes = {"y by bias": (6,), "size by kernel": (5, 6), "size by x": (7, 7, 5), "loss by x": (7, 5), "g by bias": (6,)}
""",
            "gradients",
        ),
        (f"five_shapes = {_SHAPES | {'loss by x': (1, 7, 5)}}", "rank"),
        (f"five_shapes = {_SHAPES | {'y by bias': (7, 6)}}", "rank"),
        (f"five_shapes = {_SHAPES | {'g by bias': (7, 6, 6)}}", "sizes"),
        (f"five_shapes = {_SHAPES | {'size by x': 245}}", "type"),
    ),
)


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


def _by_rows(f, x):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        parts = tf.unstack(f(x))
    return tf.stack([tape.gradient(part, x) for part in parts])


def _along(f, x, tangent):
    with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
        y = f(x)
    return accumulator.jvp(y)


def _by_columns(f, x):
    return tf.stack([_along(f, x, unit) for unit in tf.unstack(tf.eye(len(x), dtype=x.dtype))], axis=1)


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


_COLUMNS = """
    def column(unit):
        with tf.autodiff.ForwardAccumulator(primals=x, tangents=unit) as accumulator:
            y = f(x)
        return accumulator.jvp(y)
"""

fewest_passes = Exercise(
    "09.fewest_passes",
    title="As few passes as possible",
    minutes=12,
    starter="""
def jacobian_of(f, x):
    return ...  # shape (outputs, inputs)


exercises.fewest_passes.check(jacobian_of)
""",
    solution_code=f"""
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] <= x.shape[0]:
        return tape.jacobian(y, x)
{_COLUMNS}
    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0], dtype=x.dtype)))
""",
    explanation=(
        "Reverse mode takes one pass for each output, forward mode one for each input, so the smaller of the two numbers decides. "
        "Evaluating `f` once tells you the number of outputs, and if rows it is, that evaluation is already on the tape."
    ),
    hints=(
        "Which of the two ways of section 4 takes as many passes as there are inputs, and which takes as many as there are outputs?",
        "`x.shape[0]` is known. For the outputs, evaluate `f(x)` and look at the shape. Then choose.",
        "Rows: `tape.jacobian(y, x)`, with `x` watched. Columns: `by_columns` of section 4. Its `tf.eye` makes float32 unless you tell it the dtype, and its result is stacked column by column.",
    ),
    checker=Function(
        reference=_differences,
        inputs=_maps,
        observe=_count_passes(lambda f, x: min(len(f(x)), len(x))),
        axes=("output", "input"),
        mistakes=(
            Mistake(
                "always_rows",
                "The Jacobians are right. You always take rows, one pass for each output; the first function tried has 9 outputs and 2 inputs.",
                _by_rows,
            ),
            Mistake(
                "always_columns",
                "The Jacobians are right. You always take columns, one pass for each input; one of the functions tried has 3 outputs and 7 inputs.",
                _by_columns,
            ),
            Mistake(
                "other_way_round",
                "The Jacobians are right, and each of them took the dearer way. Which mode takes one pass for each output?",
                lambda f, x: _by_rows(f, x) if len(f(x)) > len(x) else _by_columns(f, x),
            ),
        ),
        dtypes=(tf.float32, tf.float64),
    ),
    wrong=(
        (
            """
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)
""",
            "always_rows",
        ),
        (
            f"""
def jacobian_of(f, x):
{_COLUMNS}
    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0], dtype=x.dtype)))
""",
            "always_columns",
        ),
        (
            f"""
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] > x.shape[0]:
        return tape.jacobian(y, x)
{_COLUMNS}
    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0], dtype=x.dtype)))
""",
            "other_way_round",
        ),
        (
            f"""
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] <= x.shape[0]:
        return tape.jacobian(y, x)
{_COLUMNS}
    return tf.map_fn(column, tf.eye(x.shape[0], dtype=x.dtype))
""",
            "transpose",
        ),
        (
            f"""
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    if y.shape[0] <= x.shape[0]:
        return tape.jacobian(y, x)
{_COLUMNS}
    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0])))
""",
            "one_dtype",
        ),
        (
            """
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)
""",
            "summed",
        ),
        (
            """
def jacobian_of(f, x):
    with tf.GradientTape() as tape:
        y = f(x)
    return tape.jacobian(y, x)
""",
            "none",
        ),
    ),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)


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


def _by_groups(f, x, groups, within=1):
    """Each entry of the Jacobian, read from the product with all unit vectors of its column's group."""
    index = tf.range(len(x))
    products = [_along(f, x, tf.cast(index % groups == group, x.dtype)) for group in range(groups)]
    spread = tf.gather(tf.stack(products, axis=1), index % groups, axis=1)
    return tf.where(tf.abs(index[:, None] - index[None, :]) <= within, spread, tf.zeros_like(spread))


_BAND = """
def banded_jacobian(f, x):
    index = tf.range(x.shape[0])
    products = []
    for group in range({groups}):
        tangent = tf.cast(index % {groups} == group, x.dtype)
        with tf.autodiff.ForwardAccumulator(x, tangent) as accumulator:
            y = f(x)
        products.append(accumulator.jvp(y))
    spread = tf.gather(tf.stack(products, axis=1), index % {groups}, axis=1)
    {result}
"""

band = Exercise(
    "09.band",
    title="A band in three passes",
    minutes=20,
    beyond=True,
    starter="""
def banded_jacobian(f, x):
    return ...  # shape (n, n)


exercises.band.check(banded_jacobian)
""",
    solution_code=_BAND.format(
        groups=3,
        result="near = tf.abs(index[:, None] - index[None, :]) <= 1\n    return tf.where(near, spread, tf.zeros_like(spread))",
    ),
    explanation=(
        "Columns 0, 3, 6, … share no row, so one forward pass along the sum of their unit vectors delivers all of them, each in its own rows. "
        "Columns $j$ and $j + 2$ do share a row, so two groups are too few. The number of passes does not grow with $n$; automatic differentiation of "
        "large sparse systems works this way (column compression, Curtis, Powell and Reid 1974)."
    ),
    hints=(
        "A forward pass along $v$ gives $Jv$, a sum of columns. When can you tell the columns apart in the sum?",
        "Column $j$ has entries in the rows $j - 1$, $j$ and $j + 1$ only. Which columns share no row with column 0, and none with each other?",
        "Three groups, by $j \\bmod 3$. For each, one pass along the vector that is 1 on the group and 0 elsewhere. Row $i$ of the product belonging to $j$'s group is entry $(i, j)$.",
        "Stack the three products to shape (n, 3). Entry $(i, j)$ is in row $i$, column $j \\bmod 3$ of it where $|i - j| \\le 1$, and 0 elsewhere: `tf.gather` along axis 1, then `tf.where`.",
    ),
    checker=Function(
        reference=_differences,
        inputs=_bands,
        observe=_count_passes(lambda f, x: 3),
        axes=("output", "input"),
        mistakes=(
            Mistake(
                "n_passes",
                "The Jacobian is right, and it took as many passes as it has columns (or rows). Three are allowed, for every n: one pass has to give several columns.",
                _by_columns,
            ),
            Mistake(
                "two_groups",
                "With two groups, columns $j - 1$ and $j + 1$ are in one product, and row $j$ has entries in both. How far apart must columns be?",
                lambda f, x: _by_groups(f, x, groups=2),
            ),
            Mistake(
                "no_zeros",
                "Inside the band all is right. Outside it are entries of other columns of the same group; what is known to be there?",
                lambda f, x: _by_groups(f, x, groups=3, within=len(x)),
            ),
            Mistake(
                "diagonal_only",
                "The diagonal is right. The two lines beside it are missing: row $i$ of a product belongs to column $i - 1$, $i$ or $i + 1$, whichever is in its group.",
                lambda f, x: _by_groups(f, x, groups=3, within=0),
            ),
        ),
    ),
    wrong=(
        (
            """
def banded_jacobian(f, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.jacobian(y, x)
""",
            "n_passes",
        ),
        (
            _BAND.format(
                groups=2,
                result="near = tf.abs(index[:, None] - index[None, :]) <= 1\n    return tf.where(near, spread, tf.zeros_like(spread))",
            ),
            "two_groups",
        ),
        (_BAND.format(groups=3, result="return spread"), "no_zeros"),
        (
            _BAND.format(groups=3, result="return tf.linalg.diag(tf.linalg.diag_part(spread))"),
            "diagonal_only",
        ),
        (
            _BAND.format(
                groups=3,
                result="near = tf.abs(index[:, None] - index[None, :]) <= 1\n    return tf.transpose(tf.where(near, spread, tf.zeros_like(spread)))",
            ),
            "transpose",
        ),
        (_BAND.format(groups=3, result="return tf.stack(products, axis=1)"), "shape"),
    ),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)
