"""Exercises and predictions of the notebook "Error bars for a network"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import tensorflow as tf

determined = Prediction(
    "error_bars_for_a_network.determined",
    remarks=(
        (97, "There are fewer points than weights, so J^T J has zeros among its eigenvalues."),
        (60, "That is the largest rank that it can have. But neighbouring points tell nearly the same."),
    ),
    rtol=0.35,
)

diagonal = Prediction(
    "error_bars_for_a_network.diagonal",
    options=("narrower", "nearly the same", "wider"),
    remarks=(
        ("narrower", 'Each weight alone is narrower, as in "Fit and error bars". What do the covariances do to a sum?'),
        ("nearly the same", "Two weights that make up for each other both vary. Who says that they do so together?"),
    ),
)

gap = Prediction(
    "error_bars_for_a_network.gap",
    options=("the full matrix", "the ensemble of the same cost", "the ensemble of five times the cost"),
    remarks=(
        (
            "the ensemble of the same cost",
            "Five networks that are not quite trained do differ, on some curves by enough. What makes them?",
        ),
        (
            "the ensemble of five times the cost",
            "Longer training makes the five agree better, in the gap too, and rightly or wrongly.",
        ),
    ),
)

negative = Prediction(
    "error_bars_for_a_network.negative",
    options=("less than a thousandth", "about a tenth", "about a half"),
    remarks=(
        ("about a tenth", "That is what the Gaussian says. Which signs can u and v have, if the points rise with x?"),
        ("about a half", "Both signs of u and v occur, but always together: what is the sign of their product?"),
    ),
)

own = Prediction(
    "error_bars_for_a_network.own",
    options=("better", "the same", "worse"),
    remarks=(
        ("better", "For the curves it was, by a little. A softmax's parabola is flat where the network is already sure."),
        ("the same", "Look at the size of the prior's width, 1/√δ, beside that of the weights."),
    ),
)


def _jacobians(random, dtype):
    """Jacobians at training points and at others; more weights than points, and fewer."""
    return [
        (
            tf.constant(random.normal(size=(points, weights)), dtype),
            tf.constant(random.normal(size=(others, weights)), dtype),
            sigma,
            delta,
        )
        for points, others, weights, sigma, delta in ((3, 2, 5, 0.5, 0.3), (7, 4, 3, 0.7, 2.0), (4, 6, 6, 1.5, 0.6))
    ]


def _by_kernels(J, J_new, sigma, delta):
    """The same variance as a Gaussian process gives it, with matrices of the size of the points."""
    among = J @ tf.transpose(J) / delta + sigma**2 * tf.eye(len(J), dtype=J.dtype)
    across = J_new @ tf.transpose(J) / delta
    prior = tf.reduce_sum(J_new**2, axis=1) / delta
    return tf.sqrt(prior - tf.reduce_sum(across * tf.transpose(tf.linalg.solve(among, tf.transpose(across))), axis=1))


def _precision(J, sigma, delta):
    return tf.transpose(J) @ J / sigma**2 + delta * tf.eye(J.shape[1], dtype=J.dtype)


def _variances(J_new, covariance):
    return tf.reduce_sum((J_new @ covariance) * J_new, axis=1)


bars = Exercise(
    title="The error bars of a network",
    minutes=8,
    hints=(
        "First the matrix $H$, of shape (weights, weights), as in the text. What does `tf.linalg.inv(H)` mean?",
        r"For one row $j$ of `J_new` the variance is $j C j^\top$. You need the diagonal of `J_new @ C @ J_new^T`.",
        "`tf.reduce_sum((J_new @ C) * J_new, axis=1)` is that diagonal.",
    ),
    checker=Function(reference=_by_kernels, inputs=_jacobians, rtol=2e-3),
)


@bars.starter("error_bars")
def _(J, J_new, sigma, delta):
    return ...  # one standard deviation for each row of J_new


@bars.right
def _(J, J_new, sigma, delta):
    r"""The data's precision and the prior's add up to $H$. Its inverse is the covariance of the weights, and each row
    carries it to a prediction."""
    H = tf.transpose(J) @ J / sigma**2 + delta * tf.eye(J.shape[1], dtype=J.dtype)
    C = tf.linalg.inv(H)
    return tf.sqrt(tf.reduce_sum((J_new @ C) * J_new, axis=1))


@bars.mistake("variance")
def _(J, J_new, sigma, delta):
    """This is the variance. An error bar has the unit of the prediction itself."""
    return _variances(J_new, tf.linalg.inv(_precision(J, sigma, delta)))


@bars.mistake("diagonal")
def _(J, J_new, sigma, delta):
    """You used the diagonal of $H$ alone, as if the weights were independent. Section 4 shows what becomes of that."""
    return tf.sqrt(tf.linalg.matvec(J_new**2, 1 / tf.linalg.diag_part(_precision(J, sigma, delta))))


@bars.mistake("widths")
def _(J, J_new, sigma, delta):
    """You used each weight's own error bar and left out the covariances."""
    return tf.sqrt(tf.linalg.matvec(J_new**2, tf.linalg.diag_part(tf.linalg.inv(_precision(J, sigma, delta)))))


@bars.mistake("with_noise")
def _(J, J_new, sigma, delta):
    """This is the error bar of a new *measurement*: the noise is in it. That of the curve was asked for."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, sigma, delta))) + sigma**2)


@bars.mistake("sigma_once")
def _(J, J_new, sigma, delta):
    r"""The loss is divided by $2\sigma^2$, so $J^\top J$ is divided by the *square* of the noise."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, sigma**0.5, delta))))


@bars.mistake("prior_variance")
def _(J, J_new, sigma, delta):
    r"""$\delta$ is the prior's precision: it is added to $J^\top J/\sigma^2$ as it is. You added $1/\delta$."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, sigma, 1 / delta))))


@bars.mistake("noise_left_out")
def _(J, J_new, sigma, delta):
    r"""$J^\top J$ without the noise: then precise and coarse measurements would give the same error bar."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, 1.0, delta))))


def _fits(random, dtype):
    """Most probable weights and the eigenvalues of the data's matrix, some of which are zero."""
    trials = []
    for weights, known in ((4, 2), (6, 5), (9, 3)):
        eigenvalues = [*random.uniform(0.3, 40, known), *[0.0] * (weights - known)]
        w = random.normal(size=weights)
        trials.append((tf.constant(w, dtype), tf.constant(eigenvalues, dtype), float(random.uniform(0.2, 3))))
    return trials


def _update(w, eigenvalues, delta):
    """Each direction's share is one minus the share of the prior."""
    unknown = delta * tf.reduce_sum(1 / (eigenvalues + delta))
    return (len(w) - unknown) / tf.tensordot(w, w, 1)


update = Exercise(
    title="MacKay's step",
    minutes=6,
    hints=(
        "First the effective number of parameters $\\gamma$, from the formula of section 1.",
        r"At the maximum $\delta \lVert w_* \rVert^2 = \gamma$. Solve for $\delta$, with the $\gamma$ of the old one.",
    ),
    checker=Function(reference=_update, inputs=_fits),
)


@update.starter("new_delta")
def _(w, eigenvalues, delta):
    return ...  # a scalar


@update.right
def _(w, eigenvalues, delta):
    r"""The prior's variance is the mean square of the weights that the data determine, $\lVert w\rVert^2/\gamma$, and
    $\delta$ is one over it. Train again with the new $\delta$, and repeat."""
    gamma = tf.reduce_sum(eigenvalues / (eigenvalues + delta))
    return gamma / tf.reduce_sum(w**2)


@update.mistake("all_weights")
def _(w, eigenvalues, delta):
    """You counted every weight. Those of which the data know nothing are small because the prior holds them, and tell
    nothing about it."""
    return len(w) / tf.reduce_sum(w**2)


@update.mistake("unknown")
def _(w, eigenvalues, delta):
    r"""You counted the directions that the *prior* determines. The data's share is $\lambda/(\lambda + \delta)$."""
    return tf.reduce_sum(delta / (eigenvalues + delta)) / tf.reduce_sum(w**2)


@update.mistake("upside_down")
def _(w, eigenvalues, delta):
    r"""That is the prior's variance. $\delta$ is its precision, one over it."""
    return tf.reduce_sum(w**2) / tf.reduce_sum(eigenvalues / (eigenvalues + delta))


@update.mistake("length")
def _(w, eigenvalues, delta):
    """You divided by the length of the weights; the prior's term has its square."""
    return tf.reduce_sum(eigenvalues / (eigenvalues + delta)) / tf.norm(w)


@update.mistake("old_factor")
def _(w, eigenvalues, delta):
    r"""The old $\delta$ belongs in $\gamma$ only. Solve $\delta \lVert w\rVert^2 = \gamma$ for the new one."""
    return tf.reduce_sum(eigenvalues / (eigenvalues + delta)) / (delta * tf.reduce_sum(w**2))


factors = Exercise(
    title="By what factor?",
    minutes=5,
    beyond=True,
    hints=(
        "In a direction with eigenvalue $\\lambda$ the variance of a weight is $1/(\\lambda + \\delta)$.",
        "For the known direction leave out $\\delta$, for the unknown one $\\lambda$. What is $\\lambda$ made of?",
    ),
    checker=Value(
        {
            "known, noise doubled": 2,
            "known, four times the points": 0.5,
            "known, δ four times": 1,
            "unknown, noise doubled": 1,
            "unknown, four times the points": 1,
            "unknown, δ four times": 0.5,
        },
        mistakes=(
            Mistake(
                "variances",
                "That is the factor of the variance. The error bar is its root.",
                {"known, noise doubled": 4},
            ),
            Mistake(
                "more_points",
                "More points of the same kind leave an eigenvalue of zero where it is.",
                {"unknown, four times the points": 0.5},
            ),
            Mistake(
                "noise_everywhere",
                "The noise divides λ, and here λ is zero. What is left of H?",
                {"unknown, noise doubled": 2},
            ),
            Mistake(
                "strong_prior",
                "δ is the prior's precision: the larger it is, the narrower the prior.",
                {"unknown, δ four times": 2},
            ),
            Mistake(
                "prior_matters",
                "Where λ is far above δ, the sum λ + δ hardly notices δ.",
                {"known, δ four times": 0.5},
            ),
        ),
        wrong=(("keys", {"known, noise doubled": 2}),),
    ),
)


@factors.starter()
def _():
    factors = {
        "known, noise doubled": ...,
        "known, four times the points": ...,
        "known, δ four times": ...,
        "unknown, noise doubled": ...,
        "unknown, four times the points": ...,
        "unknown, δ four times": ...,
    }

    return factors


@factors.right
def _():
    r"""The variance along a direction is $1/(\lambda + \delta)$, and $\lambda$ is proportional to the number of points
    and to $1/\sigma^2$. What the data know follows the data; what they do not know is the prior, whatever you measure
    at the same places."""
    factors = {
        "known, noise doubled": 2,
        "known, four times the points": 0.5,
        "known, δ four times": 1,
        "unknown, noise doubled": 1,
        "unknown, four times the points": 1,
        "unknown, δ four times": 0.5,
    }

    return factors
