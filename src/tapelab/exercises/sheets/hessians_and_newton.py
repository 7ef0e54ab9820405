"""Exercises and predictions of notebook 10, Hessians and Newton's method."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

four_numbers = Prediction(
    "10.four_numbers",
    reason=(
        r"$\partial^2 f/\partial w_0^2 = 2 w_1 = 10$, $\partial^2 f/\partial w_0 \partial w_1 = 2 w_0 = 6$, and $f$ is linear in $w_1$, "
        "so the last one is 0."
    ),
    remarks=(
        ([10.0, 0.0, 0.0, 0.0], r"The mixed ones are not zero: the slope along $w_0$, $2 w_0 w_1$, depends on $w_1$."),
        ([10.0, 6.0, 6.0, 9.0], "9 is the gradient's second element, $w_0^2$. It does not depend on $w_1$."),
        ([16.0, 6.0], "Those are the column sums, which nested `gradient` calls give."),
    ),
)

hessian_shape = Prediction(
    "10.hessian_shape",
    reason="The target of the outer tape is the gradient, (5, 8), and its source the kernel, (5, 8): the target's axes first, then the source's.",
    remarks=(
        ((5, 8), "That is the gradient's shape. Each of its 40 elements has 40 derivatives."),
        ((40, 40), "As a matrix, yes. `jacobian` keeps the axes of both; flattening them is the next step."),
        ((5, 5, 8, 8), "The right sizes. The gradient's two axes stay together, and come first."),
        ((8, 8), "The units are one axis of the kernel; the inputs are the other."),
    ),
)

one_step = Prediction(
    "10.one_step",
    reason="The quadratic model of a quadratic loss is the loss itself, so its stationary point is the solution: one step.",
    remarks=(
        (30, "A step changes all 30 parameters at once."),
        (2, "One that is off by a factor of two would stop halfway. What is approximate in this case?"),
    ),
)

residuals = Prediction(
    "10.residuals",
    reason=(
        "An inverse has rounding errors of its own, in proportion to the largest eigenvalue over the smallest, and the product passes them on. `solve` "
        "finds the $s$ that fits this one right-hand side."
    ),
    options=("none", "10", "more than 100"),
    remarks=(
        ("none", "In exact arithmetic, yes. Here one eigenvalue is a billion times as large as another."),
        ("10", "The matrix is nearly singular, so what is lost is far more than one digit."),
    ),
)

uphill = Prediction(
    "10.uphill",
    reason=(
        "The slope along the step $-f'/f''$ is $-f'^2/f''$, so the sign of $f''$ decides: uphill where the curvature is negative. The other step points "
        "downhill, and overshoots."
    ),
    options=("log cosh", "double well", "both", "neither"),
    remarks=(
        ("log cosh", "It is convex: $f'' > 0$, so the step points downhill. It ends higher because it is too long."),
        ("both", "Both *end* higher. Only one of them goes up from its first bit on."),
        (
            "neither",
            "Newton's step goes to where the model's slope is zero. Which kind of place is that where $f'' < 0$?",
        ),
    ),
)

mixed_shape = Prediction(
    "10.mixed_shape",
    reason="The first two axes are the first kernel's, whose gradient is the target; the last two are the second kernel's.",
    remarks=(
        ((8, 6, 5, 8), "The right axes in the other order: that is the gradient of kernel 2, by kernel 1."),
        ((40, 48), "As a block of a matrix, yes: after reshaping. `jacobian` keeps all axes."),
        ((5, 8, 6), "The two axes of size 8 count the same units, and both are kept."),
    ),
)

no_path = Prediction(
    "10.no_path",
    reason="No operation leads from the gradient of $a$, $3a^2$, back to $b$. The tape says that it found no path.",
    options=("a zero matrix", "None"),
    remarks=(("a zero matrix", "Mathematics says zero. For zeros from the tape, you have to ask."),),
)

terabytes = Prediction(
    "10.terabytes",
    reason=r"$N^2 = 10^{12}$ entries of 4 bytes. That is the gradient's 4 MB a million times.",
    remarks=(
        (1.0, r"$10^{12}$ entries, yes; and each takes 4 bytes."),
        (0.000004, "That is the gradient. The Hessian has a row of that size for every parameter."),
        (0.008, r"Twice the gradient? A matrix has $N^2$ entries, not $2N$."),
        (2.0, "Half of it would do, since it is symmetric. The tape makes all of it."),
    ),
)

_DESCENDS = {
    "raw, g = (4, 1)": True,
    "raw, g = (1, 4)": False,
    "damping 0.5, g = (1, 4)": False,
    "damping 2, g = (1, 4)": True,
    "gradient, g = (1, 4)": True,
}

descends = Exercise(
    "10.descends",
    title="Which steps point downhill?",
    minutes=5,
    starter="""
descends = {
    "raw, g = (4, 1)": ...,
    "raw, g = (1, 4)": ...,
    "damping 0.5, g = (1, 4)": ...,
    "damping 2, g = (1, 4)": ...,
    "gradient, g = (1, 4)": ...,
}
exercises.descends.check(descends)
""",
    solution_code="""
H = np.diag([4.0, -1.0])


def points_downhill(g, damping):
    step = np.linalg.solve(H + damping * np.eye(2), -np.array(g))
    return bool(np.dot(g, step) < 0)


descends = {
    "raw, g = (4, 1)": points_downhill((4.0, 1.0), 0.0),
    "raw, g = (1, 4)": points_downhill((1.0, 4.0), 0.0),
    "damping 0.5, g = (1, 4)": points_downhill((1.0, 4.0), 0.5),
    "damping 2, g = (1, 4)": points_downhill((1.0, 4.0), 2.0),
    "gradient, g = (1, 4)": True,
}
""",
    explanation=(
        r"The slope along a Newton step is $-\sum_i g_i^2/(\lambda_i + \lambda)$. A negative eigenvalue makes one term positive, and it wins or loses: $-16/4 + 1/1 < 0$, "
        r"$-1/4 + 16/1 > 0$. Damping of 0.5 brings the eigenvalue nearer to zero, to $-0.5$, and makes the term larger. Above 1 there is no such term."
    ),
    hints=(
        "A step $s$ points downhill where $g^\\top s < 0$. $H$ is diagonal here: you can solve for $s$ in your head.",
        "The raw step is $s = (-g_0/4,\\ g_1)$. For a damping $\\lambda$, divide by $4 + \\lambda$ and by $-1 + \\lambda$.",
        "A negative eigenvalue turns one part of the step uphill. Whether the whole step points uphill depends on how large the gradient is along it: compute $g^\\top s$ each time.",
    ),
    checker=Value(
        expected=_DESCENDS,
        mistakes=(
            Mistake(
                "indefinite_is_uphill",
                "You seem to hold that a raw step always points uphill where an eigenvalue is negative. It *may*: the sign is that of $g^\\top s$, which is a sum of "
                "two terms. Compute it for g = (4, 1).",
                lambda answer: answer["raw, g = (4, 1)"] is False,
            ),
            Mistake(
                "any_damping_helps",
                "Is every damping enough? Compute the lowest eigenvalue of $H + 0.5\\,I$.",
                lambda answer: answer["damping 0.5, g = (1, 4)"] is True,
            ),
            Mistake(
                "newton_descends",
                "Newton's step goes to where the model is stationary, which may be uphill. Compute $g^\\top s$ for g = (1, 4).",
                lambda answer: answer["raw, g = (1, 4)"] is True,
            ),
        ),
    ),
    wrong=(
        (f"descends = {_DESCENDS | {'raw, g = (4, 1)': False}}", "indefinite_is_uphill"),
        (f"descends = {_DESCENDS | {'damping 0.5, g = (1, 4)': True}}", "any_damping_helps"),
        (f"descends = {_DESCENDS | {'raw, g = (1, 4)': True}}", "newton_descends"),
        (f"descends = {_DESCENDS | {'gradient, g = (1, 4)': False}}", "other"),
        (f"descends = {_DESCENDS | {'damping 2, g = (1, 4)': 'yes'}}", "type"),
    ),
)


def _absolute(H):
    """The matrix with H's eigenvectors and the magnitudes of its eigenvalues: the root of H²."""
    H = tf.cast(H, tf.float64)
    return tf.linalg.sqrtm(H @ H)


def _solved(matrix, g):
    return tf.cast(tf.linalg.solve(matrix, -tf.cast(g, tf.float64)[:, None])[:, 0], g.dtype)


def _magnitude_step(g, H):
    return _solved(_absolute(H), g)


def _only_positive(g, H):
    """The step in the directions of positive curvature alone."""
    H64 = tf.cast(H, tf.float64)
    return tf.cast(tf.linalg.matvec(tf.linalg.pinv(H64 + _absolute(H)), -2 * tf.cast(g, tf.float64)), g.dtype)


def _rows_as_eigenvectors(g, H):
    values, vectors = tf.linalg.eigh(H)
    return -tf.linalg.matvec(vectors, tf.linalg.matvec(vectors, g) / tf.abs(values), transpose_a=True)


def _not_back(g, H):
    values, vectors = tf.linalg.eigh(H)
    return -tf.linalg.matvec(vectors, g, transpose_a=True) / tf.abs(values)


def _turned_as_a_whole(g, H):
    step = _solved(tf.cast(H, tf.float64), g)
    return -tf.sign(tf.tensordot(g, step, 1)) * step


def _lifted(g, H):
    """The damped step of section 3, with no floor."""
    lowest = tf.linalg.eigvalsh(H)[0]
    damping = tf.maximum(tf.zeros_like(lowest), -2 * lowest)
    return _solved(tf.cast(H + damping * tf.eye(len(g), dtype=g.dtype), tf.float64), g)


def _quadratics(random, dtype):
    def trial(eigenvalues):
        n = len(eigenvalues)
        vectors = np.linalg.qr(random.normal(size=(n, n)))[0]
        return (
            tf.constant(random.normal(size=n), dtype),
            tf.constant(vectors @ np.diag(eigenvalues) @ vectors.T, dtype),
        )

    first = (tf.constant([1.0, -3.0], dtype), tf.constant([[1.0, 2.0], [2.0, -1.0]], dtype))
    return [first, trial([-2.0, -0.5, 0.25, 1.0, 4.0]), trial([0.5, 1.0, 2.0])]


_EIGH = """
def downhill_step(g, H):
    values, vectors = tf.linalg.eigh(H)
    {}
"""

downhill = Exercise(
    "10.downhill",
    title="A step that uses negative curvature",
    minutes=15,
    beyond=True,
    starter="""
def downhill_step(g, H):
    return ...  # shape (n,)


exercises.downhill.check(downhill_step)
""",
    solution_code=_EIGH.format(
        "along = tf.linalg.matvec(vectors, g, transpose_a=True)  # the gradient along each eigenvector\n"
        "    return -tf.linalg.matvec(vectors, along / tf.abs(values))"
    ),
    explanation=(
        r"In the basis of the eigenvectors Newton's step is $-g_i/\lambda_i$, direction by direction, and the negative $\lambda_i$ turn their parts uphill. With $|\lambda_i|$ every part "
        r"keeps its length and points downhill: the slope is $-\sum_i g_i^2/|\lambda_i| < 0$. It is called the saddle-free Newton step (Dauphin and others, 2014). Where all "
        "eigenvalues are positive it is Newton's own."
    ),
    hints=(
        "A symmetric matrix is diagonal in the basis of its eigenvectors. What is Newton's step for a diagonal matrix, one coordinate at a time?",
        "Which coordinates of that step go uphill, and what would turn each of them round without changing its length?",
        "`values, vectors = tf.linalg.eigh(H)` has the eigenvectors in the **columns** of `vectors`. The gradient's coordinates are `tf.linalg.matvec(vectors, g, transpose_a=True)`; "
        "a vector of coordinates goes back with `tf.linalg.matvec(vectors, coordinates)`.",
        "Divide the gradient's coordinates by `tf.abs(values)`, go back, and change the sign.",
    ),
    checker=Function(
        reference=_magnitude_step,
        inputs=_quadratics,
        mistakes=(
            Mistake(
                "raw",
                "This is the raw Newton step. Where an eigenvalue is negative, its part points uphill.",
                lambda g, H: _solved(tf.cast(H, tf.float64), g),
            ),
            Mistake(
                "entries",
                "You took the magnitudes of the matrix's *entries*. It is the eigenvalues that are to be positive, and their signs are not those of the entries.",
                lambda g, H: _solved(tf.abs(tf.cast(H, tf.float64)), g),
            ),
            Mistake(
                "rows",
                "You used the rows of the matrix of eigenvectors; `eigh` puts them into its columns. Check `H @ vectors` against `vectors * values`.",
                _rows_as_eigenvectors,
            ),
            Mistake(
                "left_out",
                "The parts with positive curvature are right. Along the other eigenvectors your step is zero, and the loss falls there too, on both sides of a crest.",
                _only_positive,
            ),
            Mistake(
                "turned_as_a_whole",
                "You turned the whole step round. The parts with positive curvature were right before that, and now point uphill: turn only those that need it.",
                _turned_as_a_whole,
            ),
            Mistake(
                "coordinates",
                "You turned the step's *coordinates*. The parts are those along the eigenvectors, which are not the axes here.",
                lambda g, H: -tf.sign(g) * tf.abs(_solved(tf.cast(H, tf.float64), g)),
            ),
            Mistake(
                "not_back",
                "These are the right parts, as coordinates along the eigenvectors. Which vector has these coordinates?",
                _not_back,
            ),
            Mistake(
                "damped",
                "This is a damped step: it descends, and the damping shortens *every* part of it. Here each part keeps the length that Newton's has.",
                _lifted,
            ),
        ),
    ),
    wrong=(
        ("def downhill_step(g, H):\n    return -tf.linalg.solve(H, g[:, None])[:, 0]", "raw"),
        ("def downhill_step(g, H):\n    return -tf.linalg.solve(tf.abs(H), g[:, None])[:, 0]", "entries"),
        (
            _EIGH.format(
                "along = tf.linalg.matvec(vectors, g)\n"
                "    return -tf.linalg.matvec(vectors, along / tf.abs(values), transpose_a=True)"
            ),
            "rows",
        ),
        (
            _EIGH.format(
                "along = tf.linalg.matvec(vectors, g, transpose_a=True)\n"
                "    return -tf.linalg.matvec(vectors, tf.where(values > 0, along / values, tf.zeros_like(along)))"
            ),
            "left_out",
        ),
        (
            """
def downhill_step(g, H):
    lowest = tf.linalg.eigvalsh(H)[0]
    damping = tf.maximum(tf.zeros_like(lowest), -2 * lowest)
    return -tf.linalg.solve(H + damping * tf.eye(len(g), dtype=g.dtype), g[:, None])[:, 0]
""",
            "damped",
        ),
        (
            """
def downhill_step(g, H):
    step = -tf.linalg.solve(H, g[:, None])[:, 0]
    return step if tf.tensordot(g, step, 1) < 0 else -step
""",
            "turned_as_a_whole",
        ),
        (
            """
def downhill_step(g, H):
    step = -tf.linalg.solve(H, g[:, None])[:, 0]
    return -tf.sign(g) * tf.abs(step)
""",
            "coordinates",
        ),
        (
            _EIGH.format("along = tf.linalg.matvec(vectors, g, transpose_a=True)\n    return -along / tf.abs(values)"),
            "not_back",
        ),
        (
            _EIGH.format(
                "along = tf.linalg.matvec(vectors, g, transpose_a=True)\n"
                "    return tf.linalg.matvec(vectors, along / tf.abs(values))"
            ),
            "sign",
        ),
        (
            _EIGH.format(
                "return -tf.linalg.solve(vectors @ tf.linalg.diag(tf.abs(values)) @ tf.transpose(vectors), g)"
            ),
            "raised:InvalidArgumentError",
        ),
    ),
)


def _of_sizes(a, b):
    return tf.reduce_sum(a**2) * tf.reduce_sum(b**2)


def _separate(a, b):
    return tf.reduce_sum(a**3) + tf.reduce_sum(tf.exp(b))


def _linear_in_b(a, b):
    return tf.reduce_sum(a**2) * tf.reduce_sum(b) + tf.reduce_sum(a**3)


def _without_curvature_in_b(a, b):
    return tf.reduce_sum(a**3) + tf.reduce_sum(b)


def _blocks(f, a, b):
    """The four blocks in closed form, each a matrix: a by a, a by b, b by a, b by b."""
    a, b = tf.reshape(a, [-1]), tf.reshape(b, [-1])
    of_a, of_b = tf.eye(len(a), dtype=a.dtype), tf.eye(len(b), dtype=b.dtype)
    if f is _of_sizes:
        mixed = 4 * a[:, None] * b[None, :]
        return 2 * tf.reduce_sum(b**2) * of_a, mixed, tf.transpose(mixed), 2 * tf.reduce_sum(a**2) * of_b
    if f is _separate:
        mixed = tf.zeros([len(a), len(b)], a.dtype)
        return tf.linalg.diag(6 * a), mixed, tf.transpose(mixed), tf.linalg.diag(tf.exp(b))
    if f is _without_curvature_in_b:
        mixed = tf.zeros([len(a), len(b)], a.dtype)
        return tf.linalg.diag(6 * a), mixed, tf.transpose(mixed), 0 * of_b
    mixed = tf.repeat(2 * a[:, None], len(b), axis=1)
    return tf.linalg.diag(2 * tf.reduce_sum(b) + 6 * a), mixed, tf.transpose(mixed), 0 * of_b


def _whole(aa, ab, ba, bb):
    return tf.concat([tf.concat([aa, ab], axis=1), tf.concat([ba, bb], axis=1)], axis=0)


def _whole_hessian(f, a, b):
    return _whole(*_blocks(f, a, b))


def _b_first(f, a, b):
    aa, ab, ba, bb = _blocks(f, a, b)
    return _whole(bb, ba, ab, aa)


def _own_blocks(f, a, b):
    aa, ab, ba, bb = _blocks(f, a, b)
    return _whole(aa, tf.zeros_like(ab), tf.zeros_like(ba), bb)


def _above_only(f, a, b):
    aa, ab, ba, bb = _blocks(f, a, b)
    return _whole(aa, ab, tf.zeros_like(ba), bb)


def _pairs(random, dtype):
    def trial(f, shape_a, shape_b):
        return f, tf.constant(random.normal(size=shape_a), dtype), tf.constant(random.normal(size=shape_b), dtype)

    return [trial(_of_sizes, (2, 3), (4,)), trial(_separate, (2, 2), (3,)), trial(_linear_in_b, (3,), (2, 2))]


def _pairs_for_jacobians(random, dtype):
    """Fewer in float64: an eager call of `jacobian` is slow."""
    return _pairs(random, dtype)[: 3 if dtype == tf.float32 else 1]


_WHOLE = """
def whole_hessian(f, a, b):
    n_a, n_b = tf.size(a), tf.size(b)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch([a, b])
        with tf.GradientTape() as inner:
            inner.watch([a, b])
            value = f(a, b)
        gradients = inner.gradient(value, [a, b])
{}
"""

whole = Exercise(
    "10.whole",
    title="Four blocks, one matrix",
    minutes=12,
    starter="""
def whole_hessian(f, a, b):
    return ...  # shape (N, N), with N the elements of a and b together


exercises.whole.check(whole_hessian)
""",
    solution_code=_WHOLE.format("""    rows = []
    for gradient, size in zip(gradients, [n_a, n_b]):
        by_a, by_b = outer.jacobian(gradient, [a, b], unconnected_gradients="zero")
        rows.append(tf.concat([tf.reshape(by_a, [size, n_a]), tf.reshape(by_b, [size, n_b])], axis=1))
    return tf.concat(rows, axis=0)"""),
    explanation=(
        "Each block is a Jacobian of one gradient by one source, reshaped to (target's size, source's size). Where two tensors do not interact, or `f` is linear in one, no path leads "
        'back, and only `unconnected_gradients="zero"` turns the missing block into zeros.'
    ),
    hints=(
        "Section 4 builds this matrix twice. Here the sources are two tensors, and no variables: who watches them?",
        "For each of the two gradients, one call `outer.jacobian(gradient, [a, b])` gives a row of two blocks. Reshape each to two axes; concatenate along axis 1, then the rows along axis 0.",
        "If it is right for the first function and raises for the next: which block is `None` there? The paragraph *Blocks that are None* has the cure.",
    ),
    checker=Function(
        reference=_whole_hessian,
        inputs=_pairs_for_jacobians,
        axes=("row", "column"),
        mistakes=(
            Mistake(
                "b_first",
                "The blocks are right, in another order: `a` comes first here, in rows and in columns.",
                _b_first,
            ),
            Mistake(
                "own_blocks",
                "The blocks on the diagonal are right. Off it there are zeros: the gradient by `a` also depends on `b`.",
                _own_blocks,
            ),
            Mistake(
                "above_only",
                "The block below the diagonal is zero. It is the gradient by `b`, differentiated by `a`: the transpose of the one above.",
                _above_only,
            ),
        ),
    ),
    wrong=(
        (
            _WHOLE.format("""    rows = []
    for gradient, size in zip(gradients[::-1], [n_b, n_a]):
        by_a, by_b = outer.jacobian(gradient, [a, b], unconnected_gradients="zero")
        rows.append(tf.concat([tf.reshape(by_b, [size, n_b]), tf.reshape(by_a, [size, n_a])], axis=1))
    return tf.concat(rows, axis=0)"""),
            "b_first",
        ),
        (
            _WHOLE.format("""    by_a = outer.jacobian(gradients[0], a, unconnected_gradients="zero")
    by_b = outer.jacobian(gradients[1], b, unconnected_gradients="zero")
    aa, bb = tf.reshape(by_a, [n_a, n_a]), tf.reshape(by_b, [n_b, n_b])
    upper = tf.concat([aa, tf.zeros([n_a, n_b], a.dtype)], axis=1)
    lower = tf.concat([tf.zeros([n_b, n_a], a.dtype), bb], axis=1)
    return tf.concat([upper, lower], axis=0)"""),
            "own_blocks",
        ),
        (
            _WHOLE.format("""    by_a, by_b = outer.jacobian(gradients[0], [a, b], unconnected_gradients="zero")
    bb = tf.reshape(outer.jacobian(gradients[1], b, unconnected_gradients="zero"), [n_b, n_b])
    upper = tf.concat([tf.reshape(by_a, [n_a, n_a]), tf.reshape(by_b, [n_a, n_b])], axis=1)
    lower = tf.concat([tf.zeros([n_b, n_a], a.dtype), bb], axis=1)
    return tf.concat([upper, lower], axis=0)"""),
            "above_only",
        ),
        (
            _WHOLE.format("""    rows = []
    for gradient, size in zip(gradients, [n_a, n_b]):
        by_a, by_b = outer.jacobian(gradient, [a, b])
        rows.append(tf.concat([tf.reshape(by_a, [size, n_a]), tf.reshape(by_b, [size, n_b])], axis=1))
    return tf.concat(rows, axis=0)"""),
            "raised:ValueError",
        ),
        (
            _WHOLE.format("""    flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
    return flat"""),
            "shape",
        ),
    ),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)


def _product(f, xs, vs):
    """The whole Hessian times all directions, and split again."""
    sizes = [int(tf.size(x)) for x in xs]
    flat = tf.concat([tf.reshape(v, [-1]) for v in vs], axis=0)
    product = tf.linalg.matvec(_whole_hessian(f, *xs), flat)
    return [tf.reshape(part, x.shape) for part, x in zip(tf.split(product, sizes), xs, strict=True)]


def _product_of_own_blocks(f, xs, vs):
    aa, _, _, bb = _blocks(f, *xs)
    parts = [tf.linalg.matvec(block, tf.reshape(v, [-1])) for block, v in zip((aa, bb), vs, strict=True)]
    return [tf.reshape(part, x.shape) for part, x in zip(parts, xs, strict=True)]


def _directions(random, dtype):
    trials = []
    pairs = _pairs(random, dtype)
    pairs.append((_without_curvature_in_b, *pairs[1][1:]))  # here one part of the product has no path to it
    for f, a, b in pairs:
        vs = [tf.constant(random.normal(size=part.shape), dtype) for part in (a, b)]
        trials.append((f, [a, b], vs))
    return trials


_NESTED = """
def hessian_product(f, xs, vs):
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
        {}
    {}
"""
_INNER_PRODUCT = "total = sum(tf.reduce_sum(g * v) for g, v in zip(gradients, vs))"

product = Exercise(
    "10.product",
    title="A product with a Hessian of several tensors",
    minutes=8,
    starter="""
def hessian_product(f, xs, vs):
    return ...  # one tensor for each tensor in xs, and of its shape


exercises.product.check(hessian_product)
""",
    solution_code=_NESTED.format(_INNER_PRODUCT, 'return outer.gradient(total, xs, unconnected_gradients="zero")'),
    explanation=(
        "All gradients and directions go into **one** scalar, so its gradient by each tensor collects the blocks with all the others. Two backward passes, no matrix. "
        "`outer.gradient(gradients, xs, output_gradients=vs)` does the same in one call."
    ),
    hints=(
        "Section 5 flattens everything into one vector first. Do you need to? What is $g^\\top v$ when $g$ and $v$ are lists of tensors?",
        "The inner product of two lists is the sum of the inner products of their parts: one scalar, made while the outer tape still records.",
        "`outer.gradient(total, xs)` is the product, part by part. Some parts may have no path to `total`; section 4 has the cure for `None`.",
    ),
    checker=Function(
        reference=_product,
        inputs=_directions,
        mistakes=(
            Mistake(
                "own_blocks",
                "Each part is the product with its *own* block of the Hessian. The blocks between the two tensors are missing: what must the scalar contain that you differentiate?",
                _product_of_own_blocks,
            ),
            Mistake(
                "column_sums",
                "These are the Hessian's column sums: `vs` does not enter. What is differentiated is the gradient's inner product with the directions.",
                lambda f, xs, vs: _product(f, xs, [tf.ones_like(v) for v in vs]),
            ),
        ),
    ),
    wrong=(
        (
            """
def hessian_product(f, xs, vs):
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
    return [
        outer.gradient(g, x, output_gradients=v, unconnected_gradients="zero")
        for g, x, v in zip(gradients, xs, vs)
    ]
""",
            "own_blocks",
        ),
        (_NESTED.format("pass", 'return outer.gradient(gradients, xs, unconnected_gradients="zero")'), "column_sums"),
        (_NESTED.format(_INNER_PRODUCT, "return outer.gradient(total, xs)"), "none"),
        (
            _NESTED.format(
                "pass", f'{_INNER_PRODUCT}\n    return outer.gradient(total, xs, unconnected_gradients="zero")'
            ),
            "zeros",
        ),
        (
            _NESTED.format(
                "flat = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)\n"
                "        total = tf.tensordot(flat, tf.concat([tf.reshape(v, [-1]) for v in vs], axis=0), 1)",
                'return tf.concat([tf.reshape(p, [-1]) for p in outer.gradient(total, xs, unconnected_gradients="zero")], axis=0)',
            ),
            "type",
        ),
    ),
    seconds=30.0,  # forward-over-reverse, where the answer takes it, is slow the first time
)
