"""Exercises and predictions of the notebook "The edge of stability"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

growth = Prediction(
    "edge_of_stability.growth",
    remarks=(
        (1.03, r"That is the curvature's excess over the limit. What does one step multiply the distance by?"),
        (
            3,
            "Three per cent is little, and 100 steps are many. Compute the factor of one step, then its power.",
        ),
        (
            19.2,
            r"That is $1.03^{100}$. The factor of a step is not 1.03 but $1 - \eta\lambda$ with $\eta\lambda = 2.06$.",
        ),
        (100, "It would grow by its own size at each step if the factor were 2. Which one is it?"),
    ),
    rtol=0.1,
)

limit = Prediction(
    "edge_of_stability.limit",
    options=("it stays where it is", "it falls", "it rises to 5 and stays there", "it rises beyond 5"),
    remarks=(
        ("it stays where it is", "That holds for a parabola: its Hessian is the same everywhere. A network's is not."),
        ("it falls", "A step goes downhill, which need not be where the ground is flatter. Look at the numbers."),
        (
            "it rises beyond 5",
            "It overshoots a little and comes back. On a parabola the loss would grow without bound.",
        ),
    ),
)

height = Prediction(
    "edge_of_stability.height",
    remarks=(
        (5, "That is the height for the rate 0.4. What is special about the number 5 there?"),
        (3.125, "You made it smaller with the rate. On a parabola a smaller rate bears *more* curvature."),
        (2.5, "That is where it starts. The start does not know the rate."),
        (0.125, "That is half the rate. The limit is its inverse."),
    ),
    rtol=0.05,
)


def _certain(product, v, count):
    """By the whole matrix: powers of it applied to v."""
    matrix = tf.stack([product(row) for row in tf.unstack(tf.eye(len(v), dtype=v.dtype))], axis=1)
    for _ in range(count):
        v = tf.linalg.normalize(tf.linalg.matvec(matrix, v))[0]
    image = tf.linalg.matvec(matrix, v)
    value = tf.reduce_sum(v * image)
    return value, tf.norm(image - value * v)


def _products(random, dtype):
    """Products with four matrices; in two of them the eigenvalue of the largest magnitude is negative."""
    trials = []
    for eigenvalues, count in (
        ([5.0, 2.0, 1.0], 3),
        ([-6.0, 3.0, 0.5, 1.0], 4),
        ([4.0, 3.0, -1.0, 0.5, 2.0], 2),
        ([-3.0, 1.0, 2.0], 2),
    ):
        n = len(eigenvalues)
        vectors = np.linalg.qr(random.normal(size=(n, n)))[0]
        matrix = tf.constant(vectors @ np.diag(eigenvalues) @ vectors.T, dtype)
        start = tf.constant(1.7 * vectors @ np.ones(n), dtype)  # not of length 1
        trials.append((lambda v, matrix=matrix: tf.linalg.matvec(matrix, v), start, count))
    return trials


certain = Exercise(
    title="An eigenvalue with its error",
    minutes=8,
    hints=(
        r"Which vector is meant in $\lambda = v^\top H v$ and in $\lVert Hv - \lambda v \rVert$? One and the same, of "
        "length 1: the last one.",
        "The last round leaves a $v$ that has not been multiplied yet. One more product serves both numbers.",
        "`image = product(v)` after the loop, then `tf.tensordot(v, image, 1)` and a `tf.norm`.",
    ),
    checker=Function(reference=_certain, inputs=_products, rtol=2e-3),
)


@certain.starter("certain")
def _(product, v, count):
    return ..., ...  # the eigenvalue and its error, two scalars


@certain.right
def _(product, v, count):
    r"""Both numbers belong to one unit vector, so they take one more product after the last round. The bound holds for
    symmetric matrices: write $v$ in eigenvectors, and $\lVert Hv - \lambda v\rVert^2$ is the mean of
    $(\lambda_i - \lambda)^2$ with the squared parts of $v$ as weights. It cannot be smaller than its smallest term."""
    for _ in range(count):
        v = product(v)
        v = v / tf.norm(v)
    image = product(v)
    value = tf.tensordot(v, image, 1)
    return value, tf.norm(image - value * v)


@certain.mistake("unsigned")
def _(product, v, count):
    r"""$\lVert Hv\rVert$ has no sign. Which eigenvalue do you report where the largest in magnitude is negative?"""
    for _ in range(count):
        v = product(v)
        v = v / tf.norm(v)
    image = product(v)
    value = tf.norm(image)
    return value, tf.norm(image - value * v)


@certain.mistake("not_normalised")
def _(product, v, count):
    """The vector is not of length 1, so both numbers contain its length. What has to follow each product?"""
    for _ in range(count):
        v = product(v)
    image = product(v)
    value = tf.tensordot(v, image, 1)
    return value, tf.norm(image - value * v)


@certain.mistake("previous")
def _(product, v, count):
    """These belong to the vector *before* the last round. The last one has been computed: use it."""
    for _ in range(count):
        image = product(v / tf.norm(v))
        value = tf.tensordot(v / tf.norm(v), image, 1)
        error = tf.norm(image - value * v / tf.norm(v))
        v = image / tf.norm(image)
    return value, error


@certain.mistake("two_vectors")
def _(product, v, count):
    """The product belongs to one vector and what you subtract to the next one. Take both from the same."""
    v = v / tf.norm(v)
    for _ in range(count + 1):
        image = product(v)
        value = tf.tensordot(v, image, 1)
        v = image / tf.norm(image)
    return value, tf.norm(image - value * v)


@certain.wrong("shape")
def _(product, v, count):
    for _ in range(count):
        v = product(v)
        v = v / tf.norm(v)
    image = product(v)
    value = tf.tensordot(v, image, 1)
    return value, image - value * v


def _limit(rate, momentum):
    return 2 / rate + 2 * momentum / rate


def _rates(random, dtype):
    return [
        tuple(tf.constant(value, dtype) for value in trial)
        for trial in ((0.4, 0.3), (0.1, 0.9), (0.25, 0.5), (0.02, 0.99))
    ]


momentum = Exercise(
    title="The limit with momentum",
    minutes=10,
    hints=(
        r"On a parabola, $g = \lambda w$. Put $m_t = w_t - w_{t-1}$ into the two lines: what links $w_{t+1}$ with "
        r"$w_t$ and $w_{t-1}$?",
        r"$w_{t+1} = (1 + \beta - \eta\lambda)\, w_t - \beta\, w_{t-1}$. Try $w_t = z^t$. At the limit the iterate "
        "flips its sign and keeps its size: which $z$ is that?",
        r"Put $z = -1$ into $z^2 = (1 + \beta - \eta\lambda)\, z - \beta$ and solve for $\lambda$.",
    ),
    checker=Function(reference=_limit, inputs=_rates),
    beyond=True,
)


@momentum.starter("limit")
def _(rate, momentum):
    return ...  # the largest curvature that is still stable


@momentum.right
def _(rate, momentum):
    r"""$z = -1$ gives $1 = -(1 + \beta - \eta\lambda) - \beta$, so $\eta\lambda = 2 + 2\beta$. Momentum remembers the
    last step, which went the other way, and so damps the bounce: it bears *more* curvature, although it moves
    $1/(1-\beta)$ times as fast along the valley."""
    return 2 * (1 + momentum) / rate


@momentum.mistake("without")
def _(rate, momentum):
    r"""That is the limit without momentum. What does $\beta m$ do to an iterate that flips its sign at every step?"""
    return 2 / rate + 0 * momentum


@momentum.mistake("effective_rate")
def _(rate, momentum):
    r"""You put in the effective rate $\eta/(1-\beta)$. It describes steps that all point the *same* way; a bounce
    points to and fro."""
    return 2 * (1 - momentum) / rate


@momentum.mistake("half")
def _(rate, momentum):
    r"""Half of it. Both $1$ and $\beta$ occur twice when you put $z = -1$ into the equation."""
    return (1 + momentum) / rate


@momentum.mistake("divided")
def _(rate, momentum):
    r"""You multiplied the plain limit by $1/(1-\beta)$. Derive the factor from the equation for $z$."""
    return 2 / rate / (1 - momentum)
