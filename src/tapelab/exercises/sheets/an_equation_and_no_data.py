"""Exercises and predictions of the notebook "An equation and no data"."""

import contextlib

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value
from tapelab.exercises.checks import Unmet

import tensorflow as tf

columns = Prediction(
    "an_equation_and_no_data.columns",
    remarks=(
        (10.0, "That is the Laplacian, the sum over the Hessian's diagonal. Which other entries are in a column sum?"),
        (18.0, "Each mixed derivative stands in the Hessian twice: above the diagonal and below it."),
        (16.0, "These are the mixed derivatives alone, or the first column's sum. Both columns are added up."),
        (8.0, "That is the second derivative along the first coordinate. The others are in the sum as well."),
    ),
)

swapped = Prediction(
    "an_equation_and_no_data.swapped",
    options=("about there", "three times lower", "more than ten times lower"),
    remarks=(
        (
            "about there",
            "It is the same network on the same points. Was it the network or the points that held Adam up, then?",
        ),
        ("three times lower", "Adam scales each weight alone. How does a step that knows $J$ treat flat directions?"),
    ),
)

fewer = Prediction(
    "an_equation_and_no_data.fewer",
    options=("as small", "ten times larger", "a hundred times larger or more"),
    remarks=(
        ("as small", "Nothing was asked for between the points, and there are more weights than equations."),
        ("ten times larger", "The loss at the points is zero but for rounding. What is between them is not asked for."),
    ),
)


def _spring(u, t, f):
    """The second derivative as the diagonal of the slopes' Jacobian."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            positions = u(t)
        slopes = inner.gradient(positions, t)
    return tf.linalg.diag_part(outer.jacobian(slopes, t, experimental_use_pfor=False)) + u(t) ** 3 - f


def _motions(random, dtype):
    """Three motions, each at a few times and with a right-hand side."""
    motions = (
        lambda t: t**3 + t,
        lambda t: tf.sin(2.0 * t) + 0.5,
        lambda t: t * tf.tanh(1.5 * t - 0.5),
    )
    trials = []
    for number, motion in enumerate(motions):
        times = [1.0, 2.0] if number == 0 else random.uniform(-1.5, 1.5, size=number + 3)
        f = [1.0, 0.0] if number == 0 else random.normal(size=number + 3)
        trials.append((motion, tf.constant(times, dtype), tf.constant(f, dtype)))
    return trials


spring = Exercise(
    title="The residual of an oscillator",
    minutes=8,
    hints=(
        "How does `laplacian` get the second derivative with respect to one coordinate?",
        "The inner tape's `gradient` must be called while the outer tape records. Both watch `t`.",
        "The outer `gradient` of the slopes is $u''$ at each time. The cube is $u^3$ itself, not differentiated.",
    ),
    checker=Function(reference=_spring, inputs=_motions),
)


@spring.starter("residual_of_spring")
def _(u, t, f):
    return ...  # one number for each time


@spring.right
def _(u, t, f):
    """Two nested tapes give $u''$ at each time: a sum over the batch is differentiated, and each time has its own term
    in it. The rest of the equation is arithmetic. It is nonlinear, and nothing changes for that."""
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            positions = u(t)
        slopes = inner.gradient(positions, t)
    return outer.gradient(slopes, t) + positions**3 - f


@spring.mistake("slope")
def _(u, t, f):
    """You differentiated once. The equation has the acceleration in it, not the speed."""
    with tf.GradientTape() as tape:
        tape.watch(t)
        positions = u(t)
    return tape.gradient(positions, t) + positions**3 - f


@spring.mistake("whole_side")
def _(u, t, f):
    """The cube was differentiated with the rest: this has the second derivative of $u + u^3$. The spring's force is
    $u^3$ itself."""
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            positions = u(t)
            total = positions + positions**3
        slopes = inner.gradient(total, t)
    return outer.gradient(slopes, t) - f


@spring.mistake("summed")
def _(u, t, f):
    """The second derivatives of all times were added up. There is a residual for *each* time."""
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            positions = u(t)
        slopes = inner.gradient(positions, t)
    return tf.reduce_sum(outer.gradient(slopes, t)) + positions**3 - f


@spring.mistake("squared_slope")
def _(u, t, f):
    """This has the square of the first derivative. $u''$ is the derivative of the derivative."""
    with tf.GradientTape() as tape:
        tape.watch(t)
        positions = u(t)
    return tape.gradient(positions, t) ** 2 + positions**3 - f


@spring.mistake("right_side")
def _(u, t, f):
    """The right-hand side has the wrong sign. For a solution the residual is zero."""
    with tf.GradientTape() as outer:
        outer.watch(t)
        with tf.GradientTape() as inner:
            inner.watch(t)
            positions = u(t)
        slopes = inner.gradient(positions, t)
    return outer.gradient(slopes, t) + positions**3 + f


_LAYERS = {
    "dense layer": "yes",
    "batch normalisation in training": "no",
    "layer normalisation": "yes",
    "softmax over the points": "no",
}

summed = Exercise(
    title="May the batch be summed?",
    minutes=5,
    hints=(
        "For which of them does the value at one point change when *another* point of the batch is moved?",
        "Over which axis does each of them take a mean, or a sum: that of the features, or that of the points?",
    ),
    checker=Value(
        _LAYERS,
        mistakes=(
            Mistake(
                "always",
                "Not always. The sum over the batch is harmless where each point has one term of its own in it. Which "
                "of these layers lets a point into the others' terms?",
                dict.fromkeys(_LAYERS, "yes"),
            ),
            Mistake(
                "features",
                "Layer normalisation takes its mean over the *features* of one point. No other point comes in.",
                {"layer normalisation": "no"},
            ),
            Mistake(
                "batch",
                "Batch normalisation in training takes its mean over the batch: every point is in it.",
                {"batch normalisation in training": "yes"},
            ),
            Mistake(
                "softmax",
                "The softmax divides by a sum over all points. Move one, and every other value changes.",
                {"softmax over the points": "yes"},
            ),
            Mistake(
                "dense",
                "A dense layer is a matrix product with each point's features. The points do not meet in it.",
                {"dense layer": "no"},
            ),
        ),
    ),
)


@summed.starter()
def _():
    may = {
        "dense layer": ...,
        "batch normalisation in training": ...,
        "layer normalisation": ...,
        "softmax over the points": ...,
    }

    return may


@summed.right
def _():
    """The sum is harmless where the Jacobian of the outputs by the points is diagonal in the batch. Batch normalisation
    in training and a softmax over the points fill the rest of it, and nothing warns you."""
    may = {
        "dense layer": "yes",
        "batch normalisation in training": "no",
        "layer normalisation": "yes",
        "softmax over the points": "no",
    }

    return may


def _dual(J, r, mu):
    """The step from the singular values."""
    s, u, v = tf.linalg.svd(J)
    return -tf.linalg.matvec(v, s / (s**2 + mu) * tf.linalg.matvec(u, r, transpose_a=True))


def _without_the_large_matrix(answer, J, r, mu):
    """Observe the step, and raise `Unmet` if a matrix of the size of the weights was made for it."""
    size, operations = J.shape[1], []
    found = answer(J, r, mu)
    with contextlib.suppress(Exception):  # an answer in NumPy cannot be traced
        operations = tf.function(answer).get_concrete_function(J, r, mu).graph.get_operations()
    shapes = [result.shape for operation in operations for result in operation.outputs]
    if any(shape.rank and shape.num_elements() and shape.num_elements() >= size**2 for shape in shapes):
        text = (
            f"A matrix of {size} × {size} was made for it, or a larger one. Only a system of {J.shape[0]} is allowed."
        )
        raise Unmet("large_system", text)
    return found


def _wide(random, dtype):
    """Jacobians with more columns than rows, residuals and a damping."""
    trials = []
    for rows, weights, mu in ((2, 3, 1.0), (3, 8, 0.5), (4, 20, 2.0)):
        J = [[1.0, 0.0, 2.0], [0.0, 1.0, 1.0]] if rows == 2 else random.normal(size=(rows, weights))
        r = [1.0, -1.0] if rows == 2 else random.normal(size=rows)
        trials.append((tf.constant(J, dtype), tf.constant(r, dtype), tf.constant(mu, dtype)))
    return trials


dual = Exercise(
    title="The step in the space of residuals",
    minutes=12,
    beyond=True,
    hints=(
        r"Every such step is a combination of the rows of $J$: $s = -J^\top y$ for some $y$ of shape (N,). Why?",
        r"Put $s = -J^\top y$ into the equation, and take $J^\top$ out to the left on both sides. What must $y$ solve?",
        r"$(J J^\top + \mu I)\, y = r$, in $N$ unknowns. `tf.linalg.matvec(J, y, transpose_a=True)` is $J^\top y$.",
    ),
    checker=Function(reference=_dual, inputs=_wide, observe=_without_the_large_matrix),
)


@dual.starter("step_from_residuals")
def _(J, r, mu):
    return ...  # shape (P,)


@dual.right
def _(J, r, mu):
    r"""$(J^\top J + \mu I)\, J^\top = J^\top (J J^\top + \mu I)$, so the inverses may be pushed through as well:
    $s = -J^\top (J J^\top + \mu I)^{-1} r$. $J J^\top$ is the *neural tangent kernel* of the residuals at these points.
    Its eigenvalues are those of $J^\top J$ but for zeros."""
    kernel = J @ tf.transpose(J) + mu * tf.eye(J.shape[0], dtype=J.dtype)
    y = tf.linalg.solve(kernel, r[:, None])[:, 0]
    return -tf.linalg.matvec(J, y, transpose_a=True)


@dual.mistake("uphill")
def _(J, r, mu):
    """This is the step with the other sign: it raises the loss."""
    kernel = J @ tf.transpose(J) + mu * tf.eye(J.shape[0], dtype=J.dtype)
    y = tf.linalg.solve(kernel, r[:, None])[:, 0]
    return tf.linalg.matvec(J, y, transpose_a=True)


@dual.mistake("undamped")
def _(J, r, mu):
    r"""The damping is missing: this is the shortest Gauss–Newton step. Where does $\mu I$ end up when $J^\top$ is taken
    out?"""
    y = tf.linalg.solve(J @ tf.transpose(J), r[:, None])[:, 0]
    return -tf.linalg.matvec(J, y, transpose_a=True)


@dual.mistake("gradient")
def _(J, r, mu):
    """This is the negative gradient over the damping: the step for a very large damping. No system has been solved."""
    return -tf.linalg.matvec(J, r, transpose_a=True) / mu


@dual.wrong("large_system")
def _(J, r, mu):
    normal = tf.transpose(J) @ J + mu * tf.eye(J.shape[1], dtype=J.dtype)
    return -tf.linalg.solve(normal, tf.linalg.matvec(J, r, transpose_a=True)[:, None])[:, 0]


@dual.wrong("large_system")
def _(J, r, mu):
    tall = tf.concat([J, tf.sqrt(mu) * tf.eye(J.shape[1], dtype=J.dtype)], axis=0)
    return tf.linalg.lstsq(tall, tf.pad(-r, [[0, J.shape[1]]])[:, None], fast=False)[:, 0]


@dual.wrong("shape")
def _(J, r, mu):
    kernel = J @ tf.transpose(J) + mu * tf.eye(J.shape[0], dtype=J.dtype)
    return -tf.linalg.solve(kernel, r[:, None])[:, 0]
