"""Exercises and predictions of the notebook "Fit and error bars"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

undamped = Prediction(
    "fit_and_error_bars.undamped",
    options=("about 2", "about 19", "above a million"),
    remarks=(
        ("about 2", "The straightened model promises less still. The curve itself is not straight."),
        ("about 19", "The step is far from short. It goes where the straight model has its minimum."),
    ),
)

steps = Prediction(
    "fit_and_error_bars.steps",
    options=("about 10", "about 100", "about 1000"),
    remarks=(
        ("about 100", "With gradients alone, L-BFGS takes some forty-five here. This one also has the curvature."),
        ("about 1000", "Gradients alone may take that many. Here every step solves a linear system."),
    ),
)

others_told = Prediction(
    "fit_and_error_bars.others_told",
    options=("as large", "half", "a twentieth"),
    remarks=(
        (
            "as large",
            "Then the others would tell nothing about this one. Look for what can make up for a change of a₁.",
        ),
        ("half", "Smaller, yes, but by much more than that. How nearly can the three others imitate a change of a₁?"),
    ),
)

inside = Prediction(
    "fit_and_error_bars.inside",
    options=("95 %", "85 %", "50 %"),
    remarks=(
        ("95 %", "All four widths are right, and that is not enough: a cloud has a shape as well."),
        ("50 %", "The cloud leaves the ellipsoid, but not by that much."),
    ),
)


in_gap = Prediction(
    "fit_and_error_bars.in_gap",
    options=("narrower", "about as wide", "wider"),
    remarks=(
        ("about as wide", "Among the points, yes. What does one set of weights know of the others that fit as well?"),
        ("wider", "The straight line goes on for ever, true. But at which weights is its slope taken?"),
    ),
)


def _norm_of_directions(f, p, covariance):
    """The directional derivatives of f along the columns of a root of the covariance, and their norm."""
    root = tf.linalg.cholesky(covariance)
    slopes = []
    for direction in tf.unstack(root, axis=1):
        with tf.autodiff.ForwardAccumulator(p, direction) as accumulator:
            value = f(p)
        slopes.append(accumulator.jvp(value))
    return tf.norm(tf.stack(slopes))


def _quantities(random, dtype):
    """Scalar functions of the parameters, with parameters and covariances."""

    def area(p):
        return p[0] / p[1] + p[2] / p[3]

    def level(p):
        return p[0] * tf.exp(-2.0 * p[1])

    trials = []
    for f, n in ((area, 4), (level, 2), (area, 4)):
        p = tf.constant(random.uniform(0.8, 1.6, size=n), dtype)
        root = 0.1 * random.normal(size=(n, n))
        trials.append((f, p, tf.constant(root @ root.T + 0.01 * np.eye(n), dtype)))
    return trials


error_bar = Exercise(
    title="The error bar of another quantity",
    minutes=8,
    hints=(
        r"If the parameters move by a small $\delta$, by how much does $f$ move?",
        r"By $g^\top \delta$, with $g$ the gradient of $f$. What is the variance of a weighted sum $g^\top \delta$ if "
        r"$\delta$ has the covariance $C$?",
        r"It is $g^\top C g$. The gradient comes from a tape that watches `p`, and the error bar is a root.",
    ),
    checker=Function(reference=_norm_of_directions, inputs=_quantities),
)


@error_bar.starter("error_bar")
def _(f, p, covariance):
    return ...  # a scalar: the standard error of f(p)


@error_bar.right
def _(f, p, covariance):
    r"""To first order $f$ moves by $g^\top \delta$, and the variance of that is $g^\top C g$. For several quantities at
    once $g$ becomes their Jacobian, and $J C J^\top$ is their covariance matrix."""
    with tf.GradientTape() as tape:
        tape.watch(p)
        value = f(p)
    g = tape.gradient(value, p)
    return tf.sqrt(tf.tensordot(g, tf.linalg.matvec(covariance, g), 1))


@error_bar.mistake("diagonal")
def _(f, p, covariance):
    """You used the four error bars and left out the covariances. These parameters are not independent: what one of them
    adds, another may take away."""
    with tf.GradientTape() as tape:
        tape.watch(p)
        value = f(p)
    g = tape.gradient(value, p)
    return tf.sqrt(tf.reduce_sum(g**2 * tf.linalg.diag_part(covariance)))


@error_bar.mistake("variance")
def _(f, p, covariance):
    """This is the variance. An error bar has the unit of the quantity itself."""
    with tf.GradientTape() as tape:
        tape.watch(p)
        value = f(p)
    g = tape.gradient(value, p)
    return tf.tensordot(g, tf.linalg.matvec(covariance, g), 1)


@error_bar.mistake("added")
def _(f, p, covariance):
    """You added the sizes of the single contributions, as if all of them always pushed the same way. Use the
    covariances: they say how the parameters move together."""
    with tf.GradientTape() as tape:
        tape.watch(p)
        value = f(p)
    g = tape.gradient(value, p)
    return tf.reduce_sum(tf.abs(g) * tf.sqrt(tf.linalg.diag_part(covariance)))


@error_bar.wrong("shape")
def _(f, p, covariance):
    with tf.GradientTape() as tape:
        tape.watch(p)
        value = f(p)
    g = tape.gradient(value, p)
    return tf.sqrt(tf.abs(g * tf.linalg.matvec(covariance, g)))


factors = Exercise(
    title="By what factor?",
    minutes=5,
    hints=(
        r"Standard errors are roots of the diagonal of $\sigma^2 (J^\top J)^{-1}$. What does each change do to "
        r"$\sigma$, and what to $J^\top J$, a sum over the points?",
        "A change of units changes a parameter's number, and its error's number by the same factor. Which of the four "
        "parameters carry that unit?",
    ),
    checker=Value(
        {
            "noise doubled, error of k₁": 2,
            "four times the points, error of k₁": 0.5,
            "y in mV, not V, error of a₁": 1000,
            "y in mV, not V, error of k₁": 1,
            "t in minutes, not seconds, error of k₁": 60,
        },
        mistakes=(
            Mistake(
                "variance",
                "Four times the points make $J^\\top J$ four times as large, and the *variance* a quarter. The error "
                "bar is its root.",
                {"four times the points, error of k₁": 0.25},
            ),
            Mistake(
                "squared",
                "The variance grows with the square of the noise. The error bar is its root.",
                {"noise doubled, error of k₁": 4},
            ),
            Mistake(
                "unit_of_rate",
                "A rate is one over a time, whatever unit $y$ has. Does it know of volts?",
                {"y in mV, not V, error of k₁": 1000},
            ),
            Mistake(
                "per_minute",
                "A decay of 0.5 per second is one of 30 per minute. In which direction does its error go?",
                {"t in minutes, not seconds, error of k₁": 1 / 60},
            ),
        ),
        wrong=(
            ("keys", {"noise doubled, error of k₁": 2}),
            (
                "unit_of_rate",
                {
                    "noise doubled, error of k₁": 2,
                    "four times the points, error of k₁": 0.5,
                    "y in mV, not V, error of a₁": 1000,
                    "y in mV, not V, error of k₁": 1000,
                    "t in minutes, not seconds, error of k₁": 1,
                },
            ),
        ),
        rtol=1e-4,
    ),
)


@factors.starter()
def _():
    factors = {
        "noise doubled, error of k₁": ...,
        "four times the points, error of k₁": ...,
        "y in mV, not V, error of a₁": ...,
        "y in mV, not V, error of k₁": ...,
        "t in minutes, not seconds, error of k₁": ...,
    }

    return factors


@factors.right
def _():
    r"""The error bar is proportional to $\sigma$, and to one over the root of the number of points. Under a change of
    units the error's number changes as the parameter's does: $a_1$ has the unit of $y$, $k_1$ is one over a time."""
    factors = {
        "noise doubled, error of k₁": 2,
        "four times the points, error of k₁": 0.5,
        "y in mV, not V, error of a₁": 1000,
        "y in mV, not V, error of k₁": 1,
        "t in minutes, not seconds, error of k₁": 60,
    }

    return factors


def _jacobians(random, dtype):
    """Jacobians at training points and at others, the noise and the prior; more weights than points, and fewer."""
    return [
        (
            tf.constant(random.normal(size=(points, weights)), dtype),
            tf.constant(random.normal(size=(others, weights)), dtype),
            sigma,
            prior,
        )
        for points, others, weights, sigma, prior in ((3, 2, 5, 0.5, 1.8), (7, 4, 3, 0.7, 0.7), (4, 6, 6, 1.5, 1.3))
    ]


def _by_kernels(J, J_new, sigma, prior):
    """The same variance as a Gaussian process gives it, with matrices of the size of the points."""
    among = J @ tf.transpose(J) * prior**2 + sigma**2 * tf.eye(len(J), dtype=J.dtype)
    across = J_new @ tf.transpose(J) * prior**2
    before = tf.reduce_sum(J_new**2, axis=1) * prior**2
    return tf.sqrt(before - tf.reduce_sum(across * tf.transpose(tf.linalg.solve(among, tf.transpose(across))), axis=1))


def _precision(J, sigma, prior):
    return tf.transpose(J) @ J / sigma**2 + tf.eye(J.shape[1], dtype=J.dtype) / prior**2


def _variances(J_new, covariance):
    return tf.reduce_sum((J_new @ covariance) * J_new, axis=1)


bars = Exercise(
    title="The error bars of a network",
    minutes=8,
    hints=(
        r"The residuals of the weights are measurements too: divide each row of the whole Jacobian by its noise. "
        r"What do they add to $J^\top J/\sigma^2$?",
        r"They add $I/s^2$, with $s$ the prior's width, and $C$ is the inverse of the sum. For one row $j$ of `J_new` "
        r"the variance is $j C j^\top$.",
        "`tf.reduce_sum((J_new @ C) * J_new, axis=1)` is that diagonal.",
    ),
    checker=Function(reference=_by_kernels, inputs=_jacobians, rtol=2e-3),
)


@bars.starter("error_bars")
def _(J, J_new, sigma, prior):
    return ...  # one standard deviation for each row of J_new


@bars.right
def _(J, J_new, sigma, prior):
    """What the data tell and what the prior tells add up. The inverse of the sum is the covariance of the weights, and
    each row carries it to a prediction."""
    H = tf.transpose(J) @ J / sigma**2 + tf.eye(J.shape[1], dtype=J.dtype) / prior**2
    C = tf.linalg.inv(H)
    return tf.sqrt(tf.reduce_sum((J_new @ C) * J_new, axis=1))


@bars.mistake("variance")
def _(J, J_new, sigma, prior):
    """This is the variance. An error bar has the unit of the prediction itself."""
    return _variances(J_new, tf.linalg.inv(_precision(J, sigma, prior)))


@bars.mistake("diagonal")
def _(J, J_new, sigma, prior):
    """You inverted the diagonal alone, as if the weights were independent. The inverse of the diagonal is not the
    diagonal of the inverse."""
    return tf.sqrt(tf.linalg.matvec(J_new**2, 1 / tf.linalg.diag_part(_precision(J, sigma, prior))))


@bars.mistake("widths")
def _(J, J_new, sigma, prior):
    """You used each weight's own error bar and left out the covariances."""
    return tf.sqrt(tf.linalg.matvec(J_new**2, tf.linalg.diag_part(tf.linalg.inv(_precision(J, sigma, prior)))))


@bars.mistake("with_noise")
def _(J, J_new, sigma, prior):
    """This is the error bar of a new *measurement*: the noise is in it. That of the curve was asked for."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, sigma, prior))) + sigma**2)


@bars.mistake("sigma_once")
def _(J, J_new, sigma, prior):
    r"""The loss is divided by $2\sigma^2$, so $J^\top J$ is divided by the *square* of the noise."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, sigma**0.5, prior))))


@bars.mistake("prior_variance")
def _(J, J_new, sigma, prior):
    """A wide prior tells little of a weight, so it adds little: one over its square. You added the square."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, sigma, 1 / prior))))


@bars.mistake("noise_left_out")
def _(J, J_new, sigma, prior):
    r"""$J^\top J$ without the noise: then precise and coarse measurements would give the same error bar."""
    return tf.sqrt(_variances(J_new, tf.linalg.inv(_precision(J, 1.0, prior))))


def _best_of_all(f, p, times, candidates, which):
    """For every candidate, the whole covariance with its row added, from central differences."""

    def derivatives(at):
        columns = []
        for unit in np.eye(len(p)):
            shift = tf.constant(1e-5 * unit, p.dtype)
            columns.append((f(p + shift, at) - f(p - shift, at)).numpy() / 2e-5)
        return np.stack(columns, axis=-1)

    variances = []
    for candidate in candidates:
        J = derivatives(tf.concat([times, candidate[tf.newaxis]], axis=0))
        variances.append(np.linalg.inv(J.T @ J)[which, which])
    return candidates[int(np.argmin(variances))]


def _experiments(random, dtype):
    """Models with parameters, the times measured so far, times to choose from, and the parameter that matters."""

    def two_decays(p, t):
        return p[0] * tf.exp(-p[1] * t) + p[2] * tf.exp(-p[3] * t)

    def growth(p, t):
        return p[0] * (1 - tf.exp(-p[1] * t))

    two = tf.constant([1.0, 0.5, 1.0, 1.5], dtype)
    measured = tf.constant(np.linspace(0, 6, 13), dtype)
    choices = tf.constant([0.0, 0.4, 1.0, 2.0, 3.5, 6.0, 9.0], dtype)
    trials = [(two_decays, two, measured, choices, which) for which in (3, 0, 1)]
    one = tf.constant([2.0, 0.7], dtype)
    early = tf.constant([0.2, 0.4, 0.8, 1.5], dtype)
    trials += [(growth, one, early, tf.constant([0.1, 0.5, 1.5, 3.0, 8.0], dtype), which) for which in (0, 1)]
    return trials


best_time = Exercise(
    title="Where to measure once more",
    minutes=15,
    beyond=True,
    hints=(
        r"Which covariance will the fit have when one more time is measured? Nothing in $\sigma^2 (J^\top J)^{-1}$ "
        "needs the new value of $y$.",
        r"A new time adds one row $j$ to $J$, so $J^\top J$ becomes $J^\top J + j j^\top$. `tape.jacobian` of "
        "`f(p, times)` gives the rows of all old times, and that of `f(p, candidates)` those of the new ones. (For two "
        "Jacobians the tape must be persistent.)",
        "For each candidate, invert and look at the diagonal's element `which`. The noise is the same for all, so it "
        "does not matter. Return the time, not its place.",
    ),
    # The rows of several times differ by little: in float32 the best of two good times would be chance.
    checker=Function(reference=_best_of_all, inputs=_experiments, dtypes=(tf.float64,)),
    seconds=40.0,  # each Jacobian is traced anew
)


@best_time.starter("best_time")
def _(f, p, times, candidates, which):
    return ...  # one element of candidates, a scalar tensor


@best_time.right
def _(f, p, times, candidates, which):
    r"""The covariance depends on where you measure, not on what you will find there. So try every candidate's row
    before you measure: $(J^\top J + j j^\top)^{-1}$. Choosing measurements by their predicted covariance is called
    optimal design."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(p)
        measured, possible = f(p, times), f(p, candidates)
    J, rows = tape.jacobian(measured, p), tape.jacobian(possible, p)
    with_one_more = tf.transpose(J) @ J + rows[:, :, tf.newaxis] * rows[:, tf.newaxis, :]
    variances = tf.linalg.inv(with_one_more)[:, which, which]
    return candidates[tf.argmin(variances)]


@best_time.mistake("most_sensitive")
def _(f, p, times, candidates, which):
    """This is the time at which the curve is most sensitive to that parameter. The other parameters may imitate the
    change there. What does the whole matrix say?"""
    with tf.GradientTape() as tape:
        tape.watch(p)
        possible = f(p, candidates)
    rows = tape.jacobian(possible, p)
    return candidates[tf.argmax(tf.abs(rows[:, which]))]


@best_time.mistake("all_parameters")
def _(f, p, times, candidates, which):
    """This makes the *sum* of all variances smallest. One parameter was asked for."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(p)
        measured, possible = f(p, times), f(p, candidates)
    J, rows = tape.jacobian(measured, p), tape.jacobian(possible, p)
    with_one_more = tf.transpose(J) @ J + rows[:, :, tf.newaxis] * rows[:, tf.newaxis, :]
    return candidates[tf.argmin(tf.linalg.trace(tf.linalg.inv(with_one_more)))]


@best_time.mistake("least_known")
def _(f, p, times, candidates, which):
    """This is the time at which the curve is least well known. It shrinks the ellipsoid's *volume* most, which need not
    help the parameter that was asked for."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(p)
        measured, possible = f(p, times), f(p, candidates)
    J, rows = tape.jacobian(measured, p), tape.jacobian(possible, p)
    covariance = tf.linalg.inv(tf.transpose(J) @ J)
    return candidates[tf.argmax(tf.einsum("ci,ij,cj->c", rows, covariance, rows))]


@best_time.mistake("information")
def _(f, p, times, candidates, which):
    r"""You looked at the diagonal of $J^\top J$. Its inverse is not the diagonal of the inverse: that would be the
    error if the other parameters were known."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(p)
        measured, possible = f(p, times), f(p, candidates)
    J, rows = tape.jacobian(measured, p), tape.jacobian(possible, p)
    with_one_more = tf.transpose(J) @ J + rows[:, :, tf.newaxis] * rows[:, tf.newaxis, :]
    return candidates[tf.argmin(with_one_more[:, which, which])]


@best_time.mistake("place")
def _(f, p, times, candidates, which):
    """This is the candidate's place in the list. Return the time itself."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(p)
        measured, possible = f(p, times), f(p, candidates)
    J, rows = tape.jacobian(measured, p), tape.jacobian(possible, p)
    with_one_more = tf.transpose(J) @ J + rows[:, :, tf.newaxis] * rows[:, tf.newaxis, :]
    variances = tf.linalg.inv(with_one_more)[:, which, which]
    return tf.cast(tf.argmin(variances), p.dtype)
