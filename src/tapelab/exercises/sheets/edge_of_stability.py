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

climbs = Prediction(
    "edge_of_stability.climbs",
    options=("it falls", "it stays", "it rises"),
    remarks=(
        ("it falls", "Descent looks for low ground, not for flat ground. Look at the numbers."),
        ("it stays", "That holds for a parabola: its Hessian is the same everywhere. A network's is not."),
    ),
)

limit = Prediction(
    "edge_of_stability.limit",
    options=("the loss blows up", "it goes on rising", "it stays there", "it falls back"),
    remarks=(
        ("the loss blows up", "So says the parabola of section 1, and it is the forecast of the textbooks."),
        (
            "it goes on rising",
            "Then the steps along the top direction would grow without bound, and the loss with them.",
        ),
        ("it falls back", "What made it rise is still there. Something has to balance it."),
    ),
)

height = Prediction(
    "edge_of_stability.height",
    remarks=(
        (5, "That is the height for the rate 0.4. What is special about the number 5 there?"),
        (3.125, "You made it smaller with the rate. A smaller rate bears *more* curvature."),
        (2.5, "That is where it starts. The start does not know the rate."),
        (0.125, "That is half the rate. The limit is its inverse."),
    ),
    rtol=0.05,
)

jump = Prediction(
    "edge_of_stability.jump",
    options=("the loss blows up for good", "the sharpness stays near 8", "the sharpness falls to 5"),
    remarks=(
        ("the loss blows up for good", "It does blow up, for some ten steps. Then what held it at 8 acts again."),
        ("the sharpness stays near 8", "With the new rate each step along the top direction multiplies by $-2.2$."),
    ),
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


def _bounce(rate, pull, target):
    b = tf.sqrt(2 / rate)
    return tf.sqrt(pull * target / b - pull)


def _valleys(random, dtype):
    return [
        tuple(tf.constant(value, dtype) for value in trial)
        for trial in ((0.4, 0.02, 3.0), (0.25, 0.3, 4.0), (0.8, 0.01, 2.0), (0.32, 0.05, 6.0))
    ]


bounce = Exercise(
    title="The bounce that holds the edge",
    minutes=12,
    beyond=True,
    hints=(
        r"A step takes $a$ to $(1 - \eta b^2)\, a$. For which $b$ does $a$ flip its sign and keep its size?",
        r"$b$ stands still where $\partial L/\partial b = 0$. Which two terms does that derivative have?",
        r"$b^2 = 2/\eta$, and $a^2 b = \text{pull}\,(B - b)$. Solve for $a$.",
    ),
    checker=Function(reference=_bounce, inputs=_valleys),
)


@bounce.starter("bounce")
def _(rate, pull, target):
    return ...  # a positive scalar


@bounce.right
def _(rate, pull, target):
    r"""$a$ keeps its size where $1 - \eta b^2 = -1$, so $b = \sqrt{2/\eta}$; and $b$ stands still where the bounce
    pushes as hard as the pull draws, $a^2 b = \text{pull}\,(B - b)$. The two equations say how large the bounce is: as
    large as it must be to cancel the drift. A stronger pull makes it larger; the height stays at the limit."""
    b = tf.sqrt(2 / rate)
    return tf.sqrt(pull * (target - b) / b)


@bounce.mistake("curvature_for_b")
def _(rate, pull, target):
    r"""You set $b = 2/\eta$. The *curvature* is at $2/\eta$, and it is $b^2$."""
    b = 2 / rate
    return tf.sqrt(tf.abs(pull * (target - b) / b))


@bounce.mistake("square")
def _(rate, pull, target):
    """This is $a^2$. The bounce is $a$."""
    b = tf.sqrt(2 / rate)
    return pull * (target - b) / b


@bounce.mistake("curvature_divides")
def _(rate, pull, target):
    r"""You divided by $b^2$. Differentiate $\tfrac12 a^2 b^2$ by $b$ once more: which power of $b$ is left?"""
    b = tf.sqrt(2 / rate)
    return tf.sqrt(pull * (target - b) / b**2)


@bounce.mistake("balance_at_minimum")
def _(rate, pull, target):
    """You took the pull at $b = 0$. It is proportional to the distance that $b$ still has to go."""
    b = tf.sqrt(2 / rate)
    return tf.sqrt(pull * target / b)


@bounce.wrong("sign")
def _(rate, pull, target):
    b = tf.sqrt(2 / rate)
    return -tf.sqrt(pull * (target - b) / b)


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
