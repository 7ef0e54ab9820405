"""Exercises and predictions of the notebook "Hessians and Newton's method"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

zeros = Prediction(
    "hessians_and_newton.zeros",
    options=("none", "one to five", "ten or more"),
    remarks=(
        ("none", "That needs curvature along every one of 40 directions. How curved is a piece of a ReLU network?"),
        (
            "one to five",
            "Each output that ReLU has set to zero contributes nothing. How many of the 42 outputs are left?",
        ),
    ),
)

more_examples = Prediction(
    "hessians_and_newton.more_examples",
    options=("none", "one to five", "ten or more"),
    remarks=(
        ("one to five", "The bound is the number of active outputs. How many of 180 outputs may be active?"),
        ("ten or more", "That was with 42 outputs. With more examples $J$ has more rows, and ReLU has not changed."),
    ),
)

residuals = Prediction(
    "hessians_and_newton.residuals",
    options=("none", "10", "more than 1000"),
    remarks=(
        ("none", "In exact arithmetic, yes. Here one eigenvalue is many million times as large as another."),
        ("10", "The matrix is nearly singular, and far more than one digit is lost here."),
    ),
)

uphill = Prediction(
    "hessians_and_newton.uphill",
    options=("log cosh", "double well", "both", "neither"),
    remarks=(
        ("log cosh", "It is convex: $f'' > 0$, so the step points downhill. It ends higher because it is too long."),
        ("both", "Both *end* higher. Only one of them goes up right from its start."),
        (
            "neither",
            "Newton's step goes to where the model's slope is zero. What kind of point is that where $f'' < 0$?",
        ),
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
    title="Which steps point downhill?",
    minutes=5,
    hints=(
        r"A step $s$ points downhill where $g^\top s < 0$. $H$ is diagonal here: you can solve for $s$ in your head.",
        r"The raw step is $s = (-g_0/4,\ g_1)$. For a damping $\lambda$, divide by $4 + \lambda$ and by "
        r"$-1 + \lambda$.",
        "A negative eigenvalue turns one part of the step uphill. Whether the whole step points uphill depends on how "
        r"large the gradient is along it: compute $g^\top s$ each time.",
    ),
    checker=Value(
        expected=_DESCENDS,
        mistakes=(
            Mistake(
                "indefinite_is_uphill",
                "You seem to hold that a raw step always points uphill where an eigenvalue is negative. It *may*: the "
                r"sign is that of $g^\top s$, which is a sum of two terms. Compute it for g = (4, 1).",
                {"raw, g = (4, 1)": False},
            ),
            Mistake(
                "any_damping_helps",
                r"Is every damping enough? Compute the lowest eigenvalue of $H + 0.5\,I$.",
                {"damping 0.5, g = (1, 4)": True},
            ),
            Mistake(
                "newton_descends",
                r"Newton's step goes to where the model is stationary, which may be uphill. Compute $g^\top s$ for g "
                "= (1, 4).",
                {"raw, g = (1, 4)": True},
            ),
        ),
        wrong=(
            ("other", _DESCENDS | {"gradient, g = (1, 4)": False}),
            ("type", _DESCENDS | {"damping 2, g = (1, 4)": "yes"}),
        ),
    ),
)


@descends.starter()
def _():
    descends = {
        "raw, g = (4, 1)": ...,
        "raw, g = (1, 4)": ...,
        "damping 0.5, g = (1, 4)": ...,
        "damping 2, g = (1, 4)": ...,
        "gradient, g = (1, 4)": ...,
    }
    return descends


@descends.right
def _():
    r"""The slope along each Newton step here is $-\sum_i g_i^2/(\lambda_i + \lambda)$. The negative eigenvalue makes
    one term positive, and it wins or loses: $-16/4 + 1/1 < 0$, $-1/4 + 16/1 > 0$. Damping of 0.5 brings the
    eigenvalue nearer to zero, to $-0.5$, and makes the term larger. Above 1 there is no such term."""
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
    return descends


def _absolute(H):
    """The matrix with H's eigenvectors and the magnitudes of its eigenvalues: the root of H²."""
    H = tf.cast(H, tf.float64)
    return tf.linalg.sqrtm(H @ H)


def _solved(matrix, g):
    return tf.cast(tf.linalg.solve(matrix, -tf.cast(g, tf.float64)[:, None])[:, 0], g.dtype)


def _magnitude_step(g, H):
    return _solved(_absolute(H), g)


def _quadratics(random, dtype):
    def trial(eigenvalues):
        n = len(eigenvalues)
        vectors = np.linalg.qr(random.normal(size=(n, n)))[0]
        return (
            tf.constant(random.normal(size=n), dtype),
            tf.constant(vectors @ np.diag(eigenvalues) @ vectors.T, dtype),
        )

    first = (tf.constant([1.0, -3.0], dtype), tf.constant([[1.0, 2.0], [2.0, -1.0]], dtype))
    return [first, trial([-2.0, -0.5, 0.0625, 1.0, 4.0]), trial([0.5, 1.0, 2.0])]


downhill = Exercise(
    title="A step that uses negative curvature",
    minutes=15,
    beyond=True,
    hints=(
        "A symmetric matrix is diagonal in the basis of its eigenvectors. What is Newton's step for a diagonal "
        "matrix, one coordinate at a time?",
        "Which coordinates of that step go uphill, and what would turn each of them round without changing its length?",
        "`values, vectors = tf.linalg.eigh(H)` has the eigenvectors in the **columns** of `vectors`. The gradient's "
        "coordinates are `tf.linalg.matvec(vectors, g, transpose_a=True)`; a vector of coordinates goes back with "
        "`tf.linalg.matvec(vectors, coordinates)`.",
        "Divide the gradient's coordinates by `tf.abs(values)`, go back, and change the sign.",
    ),
    checker=Function(reference=_magnitude_step, inputs=_quadratics),
)


@downhill.starter("downhill_step")
def _(g, H):
    return ...  # shape (n,)


@downhill.right
def _(g, H):
    r"""In the basis of the eigenvectors Newton's step is $-g_i/\lambda_i$, direction by direction, and the negative
    $\lambda_i$ turn their parts uphill. With $|\lambda_i|$ every part keeps its length and points downhill: the slope
    is $-\sum_i g_i^2/|\lambda_i| < 0$. It is called the saddle-free Newton step (Dauphin and others, 2014). Where all
    eigenvalues are positive it is Newton's own."""
    values, vectors = tf.linalg.eigh(H)
    along = tf.linalg.matvec(vectors, g, transpose_a=True)  # the gradient along each eigenvector
    return -tf.linalg.matvec(vectors, along / tf.abs(values))


@downhill.mistake("raw")
def _(g, H):
    """This is the raw Newton step. Where an eigenvalue is negative, its part points uphill."""
    return -tf.linalg.solve(H, g[:, None])[:, 0]


@downhill.mistake("entries")
def _(g, H):
    """You took the magnitudes of the matrix's *entries*. It is the eigenvalues that are to be positive, and their signs
    are not those of the entries."""
    return -tf.linalg.solve(tf.abs(H), g[:, None])[:, 0]


@downhill.mistake("rows")
def _(g, H):
    """You used the rows of the matrix of eigenvectors; `eigh` puts them into its columns. Check `H @ vectors` against
    `vectors * values`."""
    values, vectors = tf.linalg.eigh(H)
    along = tf.linalg.matvec(vectors, g)
    return -tf.linalg.matvec(vectors, along / tf.abs(values), transpose_a=True)


@downhill.mistake("left_out")
def _(g, H):
    """The parts with positive curvature are right. Along the other eigenvectors your step is zero, and the quadratic
    model falls there too."""
    values, vectors = tf.linalg.eigh(H)
    along = tf.linalg.matvec(vectors, g, transpose_a=True)
    return -tf.linalg.matvec(vectors, tf.where(values > 0, along / values, tf.zeros_like(along)))


@downhill.mistake("turned_as_a_whole")
def _(g, H):
    """You turned the whole step round. The parts with positive curvature were right before that, and now point uphill:
    turn only those that need it."""
    step = -tf.linalg.solve(H, g[:, None])[:, 0]
    return step if tf.tensordot(g, step, 1) < 0 else -step


@downhill.mistake("coordinates")
def _(g, H):
    """You turned the step's *coordinates*. The parts are those along the eigenvectors, which are not the axes here."""
    step = -tf.linalg.solve(H, g[:, None])[:, 0]
    return -tf.sign(g) * tf.abs(step)


@downhill.mistake("not_back")
def _(g, H):
    """These are the right parts, as coordinates along the eigenvectors. Which vector has these coordinates?"""
    values, vectors = tf.linalg.eigh(H)
    along = tf.linalg.matvec(vectors, g, transpose_a=True)
    return -along / tf.abs(values)


@downhill.mistake("damped")
def _(g, H):
    """This is a damped step: it descends, and its parts along positive curvature are shorter than Newton's. Here each
    part keeps its length."""
    lowest = tf.linalg.eigvalsh(H)[0]
    damping = tf.maximum(tf.zeros_like(lowest), -2 * lowest)
    return -tf.linalg.solve(H + damping * tf.eye(len(g), dtype=g.dtype), g[:, None])[:, 0]


@downhill.mistake("floor")
def _(g, H):
    """The magnitudes of the small eigenvalues were raised to a floor, and their parts are shorter than Newton's. Here
    each part keeps its length."""
    values, vectors = tf.linalg.eigh(H)
    along = tf.linalg.matvec(vectors, g, transpose_a=True)
    return -tf.linalg.matvec(vectors, along / tf.maximum(tf.abs(values), 0.1))


@downhill.wrong("sign")
def _(g, H):
    values, vectors = tf.linalg.eigh(H)
    along = tf.linalg.matvec(vectors, g, transpose_a=True)
    return tf.linalg.matvec(vectors, along / tf.abs(values))


@downhill.wrong("raised:InvalidArgumentError")
def _(g, H):
    values, vectors = tf.linalg.eigh(H)
    return -tf.linalg.solve(vectors @ tf.linalg.diag(tf.abs(values)) @ tf.transpose(vectors), g)


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


def _pairs(random, dtype):
    def trial(f, shape_a, shape_b):
        return f, tf.constant(random.normal(size=shape_a), dtype), tf.constant(random.normal(size=shape_b), dtype)

    trials = [trial(_of_sizes, (2, 3), (4,)), trial(_separate, (2, 2), (3,)), trial(_linear_in_b, (3,), (2, 2))]
    return [*trials, (_without_curvature_in_b, *trials[1][1:])]  # here one part of a product has no path to it


def _pairs_for_jacobians(random, dtype):
    """Fewer in float64: an eager call of `jacobian` is slow."""
    return _pairs(random, dtype)[: 4 if dtype == tf.float32 else 1]


def _recorded(f, a, b):
    """The sizes, the outer tape and the gradients that it has recorded, for wrong answers."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch([a, b])
        with tf.GradientTape() as inner:
            inner.watch([a, b])
            value = f(a, b)
        gradients = inner.gradient(value, [a, b])
    return tf.size(a), tf.size(b), outer, gradients


whole = Exercise(
    title="Four blocks, one matrix",
    minutes=12,
    hints=(
        "Section 5 builds this matrix for a model. Here the sources are two tensors, and no variables: who watches "
        "them?",
        "For each of the two gradients, one call `outer.jacobian(gradient, [a, b])` gives a row of two blocks. "
        "Reshape each to two axes; concatenate along axis 1, then the rows along axis 0.",
        "If it is right for the first function and raises for the next: which block is `None` there? Section 9 has the "
        "cure.",
    ),
    checker=Function(reference=_whole_hessian, inputs=_pairs_for_jacobians, axes=("row", "column")),
    seconds=60.0,  # each eager call of `jacobian` traces anew
)


@whole.starter("whole_hessian")
def _(f, a, b):
    return ...  # shape (N, N), with N the elements of a and b together


@whole.right
def _(f, a, b):
    """Each block is a Jacobian of one gradient with respect to one source, reshaped to (target's size, source's size).
    Where two tensors do not interact, or `f` is linear in one, there may be no path back, and
    `unconnected_gradients="zero"` turns the missing block into zeros."""
    n_a, n_b = tf.size(a), tf.size(b)
    with tf.GradientTape(persistent=True) as outer:
        outer.watch([a, b])
        with tf.GradientTape() as inner:
            inner.watch([a, b])
            value = f(a, b)
        gradients = inner.gradient(value, [a, b])
    rows = []
    for gradient, size in zip(gradients, [n_a, n_b]):
        by_a, by_b = outer.jacobian(gradient, [a, b], unconnected_gradients="zero")
        rows.append(tf.concat([tf.reshape(by_a, [size, n_a]), tf.reshape(by_b, [size, n_b])], axis=1))
    return tf.concat(rows, axis=0)


@whole.mistake("b_first")
def _(f, a, b):
    """The blocks are right, in another order: `a` comes first here, in rows and in columns."""
    n_a, n_b, outer, gradients = _recorded(f, a, b)
    rows = []
    for gradient, size in zip(gradients[::-1], [n_b, n_a]):
        by_a, by_b = outer.jacobian(gradient, [a, b], unconnected_gradients="zero")
        rows.append(tf.concat([tf.reshape(by_b, [size, n_b]), tf.reshape(by_a, [size, n_a])], axis=1))
    return tf.concat(rows, axis=0)


@whole.mistake("own_blocks")
def _(f, a, b):
    """The blocks on the diagonal are right. Off it there are zeros: the gradient with respect to `a` also depends on
    `b`."""
    n_a, n_b, outer, gradients = _recorded(f, a, b)
    by_a = outer.jacobian(gradients[0], a, unconnected_gradients="zero")
    by_b = outer.jacobian(gradients[1], b, unconnected_gradients="zero")
    aa, bb = tf.reshape(by_a, [n_a, n_a]), tf.reshape(by_b, [n_b, n_b])
    upper = tf.concat([aa, tf.zeros([n_a, n_b], a.dtype)], axis=1)
    lower = tf.concat([tf.zeros([n_b, n_a], a.dtype), bb], axis=1)
    return tf.concat([upper, lower], axis=0)


@whole.mistake("above_only")
def _(f, a, b):
    """The block below the diagonal is zero. It is the gradient with respect to `b`, differentiated with respect to `a`:
    the transpose of the one above."""
    n_a, n_b, outer, gradients = _recorded(f, a, b)
    by_a, by_b = outer.jacobian(gradients[0], [a, b], unconnected_gradients="zero")
    bb = tf.reshape(outer.jacobian(gradients[1], b, unconnected_gradients="zero"), [n_b, n_b])
    upper = tf.concat([tf.reshape(by_a, [n_a, n_a]), tf.reshape(by_b, [n_a, n_b])], axis=1)
    lower = tf.concat([tf.zeros([n_b, n_a], a.dtype), bb], axis=1)
    return tf.concat([upper, lower], axis=0)


@whole.wrong("raised:ValueError")
def _(f, a, b):
    n_a, n_b, outer, gradients = _recorded(f, a, b)
    rows = []
    for gradient, size in zip(gradients, [n_a, n_b]):
        by_a, by_b = outer.jacobian(gradient, [a, b])
        rows.append(tf.concat([tf.reshape(by_a, [size, n_a]), tf.reshape(by_b, [size, n_b])], axis=1))
    return tf.concat(rows, axis=0)


@whole.wrong("shape")
def _(f, a, b):
    n_a, n_b, outer, gradients = _recorded(f, a, b)
    flat = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
    return flat


@whole.wrong("raised:ValueError")
def _(f, a, b):
    _, _, outer, gradients = _recorded(f, a, b)
    with outer:
        g = tf.concat([tf.reshape(gradient, [-1]) for gradient in gradients], axis=0)
    return tf.concat([tf.reshape(part, [len(g), -1]) for part in outer.jacobian(g, [a, b])], axis=1)
