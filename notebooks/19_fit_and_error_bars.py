# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,alt,jupyter,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3 (ipykernel)
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Fit and error bars
#
# You fit a model to a measured curve. The curve fits, and the model's parameters come out with many digits. Few of them may mean anything.
# **A fit gives you four numbers. How sure are they?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/19_fit_and_error_bars.ipynb)
#
# **Prerequisites:** [13 Hessians and Newton's method](13_hessians_and_newton.ipynb), [15 Batch Jacobians and per-example gradients](15_batch_jacobians.ipynb) · **Minutes:** 23 to read, 6 more to go further, 36 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
noise = 0.003  # standard deviation of one measurement, with a careful instrument: between 0.0028 and 0.0032
coarse = 10  # how many times as much noise the coarse instrument has: between 9 and 11
refits = 1000  # simulated measurements in sections 4 to 6: between 900 and 1200

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import gradcheck, optimize, plots, runtime
from tapelab.exercises.sheets import fit_and_error_bars as exercises
from tapelab.interactive import ellipse

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize  # comes with scikit-learn
import scipy.stats
import tensorflow as tf

runtime.start(seed)

# %% tags=["nbval-ignore-output"]
truth = np.array([1.0, 0.5, 1.0, 1.5])  # a₁, k₁, a₂, k₂
times = np.linspace(0, 6, 100)


def decays(t, a1, k1, a2, k2):
    """Two substances that decay, a slow one and a fast one, seen by one counter."""
    return a1 * np.exp(-k1 * t) + a2 * np.exp(-k2 * t)


rng = np.random.default_rng(seed)
repeats = []
for _ in range(20):  # the same measurement, twenty times
    measured = decays(times, *truth) + coarse * noise * rng.normal(size=100)
    fitted, _ = scipy.optimize.curve_fit(decays, times, measured, p0=[1, 0.1, 1, 5])
    repeats.append(fitted)

for name, column in zip(("a₁", "k₁", "a₂", "k₂"), np.transpose(repeats), strict=True):
    print(f"{name}: from {column.min():.2f} to {column.max():.2f}")

# %% alt="Line plot and dot plot. Left, a hundred measured points along a falling curve and twenty fitted curves that lie on top of each other as one line. Right, the four fitted parameters of the twenty fits as columns of dots: each column spreads by tens of per cent around the true value." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: twenty fits
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.plot(times, measured, ".", color=plots.GREY, markersize=4, label="one of the measurements")
for fitted in repeats:
    left.plot(times, decays(times, *fitted), color=plots.BLUE, linewidth=0.8)
left.plot([], [], color=plots.BLUE, label="twenty fitted curves")
left.set(title="Twenty fits: one curve …", xlabel="time t", ylabel="y")
left.legend()
for place, column in enumerate(np.transpose(repeats)):
    right.plot(place + np.linspace(-0.2, 0.2, 20), column, "o", color=plots.BLUE, markersize=4)
    right.hlines(truth[place], place - 0.3, place + 0.3, color="black", linestyle="--")
right.plot([], [], "--", color="black", label="true value")
right.set(title="… and twenty answers", xlabel="parameter", ylabel="fitted value")
right.set_xticks(range(4), labels=["a₁", "k₁", "a₂", "k₂"])
right.legend(loc="upper left")
plt.show()

# %% [markdown]
# $$y(t) = a_1 e^{-k_1 t} + a_2 e^{-k_2 t}$$
#
# The same true curve, measured twenty times with an error of 0.03. The twenty fits are one line to the eye. Their parameters differ by tens of per cent. You will have *one* measurement. Can it tell you how far its own numbers would scatter?
#
# It can, and from a matrix that the fit computes anyway: the Jacobian.
#
# **You will be able to**
#
# - write a Levenberg–Marquardt loop, and say what its damping is for (sections 1 and 2),
# - get standard errors and correlations from the Jacobian of a fit, and carry them over to other quantities (section 3),
# - test them on a thousand refits, with one backward pass for all their Jacobians (section 4),
# - draw the ellipsoid of a fit, say how a cloud can leave it while every width is right, and measure what does not bend (sections 5 and 6),
# - give a network's curve an error bar, and hold it against one that is sampled (section 7, where you go further).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
scatter = np.ptp(repeats, axis=0) / truth
assert np.all(scatter > 0.1)
assert scatter.max() > 0.3  # tens of per cent
assert np.ptp([decays(times, *fitted) for fitted in repeats], axis=0).max() < 0.1  # and one line

# %% [markdown]
# ## 1. A step from the Jacobian
#
# Take the careful instrument first, with an error of 0.003. Write the model in TensorFlow. It works along the last axis, so that `p` may hold the parameters of many fits later. The **residuals** are $r(p) = f(p) - y$, one for each measurement, and
# their Jacobian $J$ has shape (100, 4).


# %%
t = tf.constant(times)


def curve(p):
    a1, k1, a2, k2 = tf.unstack(p, axis=-1)
    return a1 * tf.exp(-k1 * t) + a2 * tf.exp(-k2 * t)


@tf.function
def linearise(p, y):
    with tf.GradientTape() as tape:
        tape.watch(p)
        r = curve(p) - y
    return r, tape.jacobian(r, p)


y = curve(tf.constant(truth)) + noise * rng.normal(size=100)
start = tf.constant([1.0, 0.1, 1.0, 5.0], tf.float64)
r, J = linearise(start, y)
print("residuals:", r.shape, " Jacobian:", J.shape)
print(f"sum of squares at the start: {tf.reduce_sum(r**2):.0f}")

# %% [markdown]
# Straighten the model: $r(p + s) \approx r + Js$. The right-hand side is linear in $s$, so the best $s$ is a linear least-squares problem,
#
# $$J^\top J\, s = -J^\top r .$$
#
# This is the **Gauss–Newton** step of [13](13_hessians_and_newton.ipynb): Newton's step with $J^\top J$ in place of the Hessian. It needs first derivatives only.
#
# **Predict.** The sum of squares is about 19. What is it after one such step?

# %%
exercises.undamped.guess(...)  # "about 2", "about 19" or "above a million"

# %% tags=["nbval-ignore-output"]
s = tf.linalg.solve(tf.transpose(J) @ J, -tf.linalg.matvec(J, r, transpose_a=True)[:, tf.newaxis])[:, 0]
promised = float(tf.reduce_sum((r + tf.linalg.matvec(J, s)) ** 2))
undamped, _ = linearise(start + s, y)
print(f"promised by the straight model: {promised:.2g}")
print(f"sum of squares after the step:  {tf.reduce_sum(undamped**2):.2g}")
print("parameters after the step:     ", np.round(start + s, 2))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
after = float(tf.reduce_sum(undamped**2))
exercises.undamped.reveal("above a million" if after > 1e6 else "about 19")
assert after > 1e9
assert (start + s).numpy().min() < -1  # a "decay" that grows
assert (start + s).numpy()[3] < -1
assert promised < 5
assert 16 < float(tf.reduce_sum(r**2)) < 22

# %% [markdown]
# Far above a billion. The fast decay's rate has become negative, and a decay with a negative rate grows: at $t = 6$ it has exploded. The step went far beyond the region where straight is right.
#
# The cure is to charge for distance. **Levenberg–Marquardt** solves
#
# $$(J^\top J + \lambda D)\, s = -J^\top r, \qquad D = \operatorname{diag}(J^\top J).$$
#
# With a large $\lambda$ the step is short and points downhill. With a small one it is nearly Gauss–Newton's. $D$ measures distance in each parameter by how much the curve reacts to it, so that seconds or hours make no difference.
# The rule for $\lambda$: a step that lowers the sum of squares is taken, and $\lambda$ divided by 10. Any other step is refused, and $\lambda$ multiplied by 10.

# %% [markdown]
# ## 2. Levenberg and Marquardt's loop


# %%
def levenberg_marquardt(linearise, p, y, damping=1e-2, steps=60):
    """Returns the parameters, the Jacobian there, and the sum of squares before each step and at the end."""
    r, J = linearise(p, y)
    squares = [float(tf.reduce_sum(r**2))]
    for _ in range(steps):
        JtJ = tf.transpose(J) @ J
        D = tf.linalg.diag(tf.linalg.diag_part(JtJ))
        s = tf.linalg.solve(JtJ + damping * D, -tf.linalg.matvec(J, r, transpose_a=True)[:, tf.newaxis])[:, 0]
        trial_r, trial_J = linearise(p + s, y)
        trial = float(tf.reduce_sum(trial_r**2))
        if trial < squares[-1]:  # not a number is not lower
            p, r, J, damping = p + s, trial_r, trial_J, damping / 10
            squares.append(trial)
        else:
            damping *= 10
            squares.append(squares[-1])
        if tf.reduce_max(tf.abs(s / p)) < 1e-9:
            break
    return p, J, squares


# %% [markdown]
# **Predict.** How many steps until the sum of squares is within a millionth of its minimum?

# %%
exercises.steps.guess(...)  # "about 10", "about 100" or "about 1000"

# %% tags=["nbval-ignore-output"]
p, J, squares = levenberg_marquardt(linearise, start, y)


def steps_to(squares, lowest=squares[-1]):
    """How many steps until a run is within a millionth of the minimum; infinite if it never is."""
    near = np.asarray(squares) <= lowest * (1 + 1e-6)
    return int(np.argmax(near)) if near.any() else np.inf


print("steps:", steps_to(squares))
print("parameters:", np.round(p, 3))
print("sums of squares:", " ".join(f"{value:.2g}" for value in squares[:11]))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.steps.reveal("about 10" if steps_to(squares) < 30 else "about 100")
assert 6 <= steps_to(squares) <= 15
assert np.all(np.diff(squares) <= 0)
gradient = tf.linalg.matvec(J, curve(p) - y, transpose_a=True)
assert np.abs(gradient).max() < 1e-8  # a stationary point
passed = []


def value_and_gradient(point):
    r, J = (part.numpy() for part in linearise(tf.constant(point), y))
    passed.append(r @ r)
    return r @ r, 2 * J.T @ r


scipy.optimize.minimize(
    value_and_gradient, start, jac=True, method="L-BFGS-B", options={"ftol": 0.0, "gtol": 1e-10, "maxiter": 500}
)
assert 36 < steps_to(passed) < 55
q, halved = start, [squares[0]]
for _ in range(12):
    r_q, J_q = linearise(q, y)
    s = tf.linalg.lstsq(J_q, -r_q[:, tf.newaxis])[:, 0]
    while not tf.reduce_sum((curve(q + s) - y) ** 2) < halved[-1] and tf.norm(s) > 1e-9:
        s /= 2
    q += s
    halved.append(float(tf.reduce_sum((curve(q) - y) ** 2)))
assert 4 <= steps_to(halved) <= 8

# %% [markdown]
# About ten. SciPy's L-BFGS takes some forty-five gradients from the same start (the check). It sees a number and its slope. Levenberg–Marquardt sees that the number is a sum of a hundred squares, and so it gets the curvature $J^\top J$ from first derivatives. And $J$ has the error bars in it. $\lambda$ is not the only cure: Gauss–Newton whose steps are halved until the sum falls arrives here in about six (the check).

# %% [markdown]
# ## 3. Error bars from the same Jacobian
#
# Repeat the measurement. The noise is another, so the data move by some $\delta$, and the minimum moves with them. At the old minimum the residuals are now $r - \delta$. In the straightened model the way to the new one is Gauss–Newton's step: $s = A\delta$ with $A = (J^\top J)^{-1} J^\top$. There the parameters are a linear function of the noise. If the noise
# of each point is independent, with variance $\sigma^2$, the parameters' covariance matrix is $\sigma^2 A A^\top$. Multiply out, and one $J^\top J$ cancels:
#
# $$C = \sigma^2\, (J^\top J)^{-1}, \qquad \sigma^2 \approx \hat\sigma^2 = \frac{\lVert r\rVert^2}{100 - 4}.$$
#
# Divide by $100 - 4$: four parameters have been fitted to the noise too, and the residuals are a little smaller than the noise. The roots of the diagonal of $C$ are the **standard errors**.

# %% tags=["nbval-ignore-output"]
variance = squares[-1] / (100 - 4)
C = variance * tf.linalg.inv(tf.transpose(J) @ J).numpy()
errors = np.sqrt(np.diag(C))
for name, value, error, true in zip(("a₁", "k₁", "a₂", "k₂"), p.numpy(), errors, truth, strict=True):
    print(f"{name} = {value:.4f} ± {error:.4f}   (true: {true})")
print(f"noise: {variance**0.5:.4f} (true: {noise})")

# %% [markdown]
# No true value lies more than three error bars away from its fit.
#
# **Predict.** Suppose somebody tells you the *other three* parameters exactly. How large is the standard error of $a_1$ then?

# %%
exercises.others_told.guess(...)  # "as large", "half" or "a twentieth"

# %% tags=["nbval-ignore-output"]
alone = variance**0.5 / tf.norm(J[:, 0]).numpy()  # one parameter, one column
print(f"error of a₁, fitted with the others: {errors[0]:.4f}")
print(f"error of a₁, the others known:       {alone:.4f}")
print("correlations:")
print(np.round(C / np.outer(errors, errors), 2))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.others_told.reveal("a twentieth" if errors[0] > 12 * alone else "half")
assert 16 < errors[0] / alone < 25
correlation = C / np.outer(errors, errors)
assert np.all(np.abs(correlation) > 0.85)
assert correlation[0, 2] < -0.98
assert np.all(np.abs(p - truth) < 3 * errors)
assert abs(variance**0.5 / noise - 1) < 0.35
assert abs(np.sqrt(squares[-1] / 100) / variance**0.5 - np.sqrt(0.96)) < 1e-9

# %% [markdown]
# A twentieth. If $a_1$ grows a little and $a_2$ shrinks by as much, with both rates shifted, the curve hardly moves. The data cannot tell these combinations apart, and the off-diagonal elements of $C$ say so: the **correlation** of $a_1$ and $a_2$, their element of $C$ divided by both standard errors, is $-0.99$.
#
# Error bars from the columns one by one, $\sigma/\lVert J_i\rVert$, take the others as known. They are the roots of the *inverse of the diagonal*; you want the *diagonal of the inverse*.
#
# In your own code, `optimize.levenberg_marquardt` hands such Jacobians to SciPy's `least_squares`. It changes variables in place, and its report has `covariance` and `standard_errors`.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
w = tf.Variable(start)
report = optimize.levenberg_marquardt(lambda: curve(w) - y, wrt=w)
assert report.converged
np.testing.assert_allclose(w, p, rtol=1e-6)
np.testing.assert_allclose(report.covariance, C, rtol=1e-5)
np.testing.assert_allclose(report.standard_errors, errors, rtol=1e-5)
shift = 1e-3 * noise * rng.normal(size=100)  # the step to the new minimum, for a small change of the data
moved, _, _ = levenberg_marquardt(linearise, p, y + shift)
predicted = np.linalg.solve(tf.transpose(J) @ J, J.numpy().T @ shift)
np.testing.assert_allclose(moved - p, predicted, rtol=0, atol=0.15 * np.abs(predicted).max())

# %% [markdown]
# ### Exercise: The error bar of another quantity (8 min)
#
# A fit gave parameters `p`, shape $(n,)$, and their `covariance`, shape $(n, n)$. You want another quantity, such as the area under the curve, $a_1/k_1 + a_2/k_2$: a TensorFlow function `f` from the parameters to a scalar. Return the standard error of `f(p)`, a scalar of the dtype of `p`.


# %%
def error_bar(f, p, covariance):
    return ...  # a scalar: the standard error of f(p)


exercises.error_bar.check(error_bar)

# %% [markdown]
# ### Exercise: By what factor? (5 min)
#
# Repeat the experiment with one thing changed. Before, $y$ was in volts and $t$ in seconds. Four times the points means four at each of the old times. By what factor does the *number* change that you print as the standard error?

# %%
factors = {
    "noise doubled, error of k₁": ...,
    "four times the points, error of k₁": ...,
    "y in mV, not V, error of a₁": ...,
    "y in mV, not V, error of k₁": ...,
    "t in minutes, not seconds, error of k₁": ...,
}

exercises.factors.check(factors)

# %% [markdown]
# ## 4. A thousand refits
#
# $C$ is a claim about measurements that you did not make. Make them: simulate a thousand data sets from the fitted curve with noise $\hat\sigma$, and fit each. This is the **parametric bootstrap** (Efron).
#
# That takes a thousand Jacobians in every step. `tape.batch_jacobian` would give them with a hundred backward passes, one for each time. One is enough. Give *every residual its own copy* of the parameters. Residual $i$ depends on copy $i$ alone, so the gradient of the sum of all residuals holds, at copy $i$, row $i$ of the Jacobian: the idea of the first exercise in [15](15_batch_jacobians.ipynb).


# %%
@tf.function
def linearise_all(p, y):
    """Residuals (fits, 100) and Jacobians (fits, 100, 4) of many fits, from one backward pass."""
    copies = tf.tile(p[:, tf.newaxis, :], [1, len(times), 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        r = curve(copies) - y
    return r, tape.gradient(r, copies)


def fit_all(linearise, p, y, steps=60):
    """The loop of section 2, with an axis for the fits and a damping for each. Returns parameters, residuals, Jacobians."""
    damping = tf.fill([len(p)], tf.constant(1e-2, tf.float64))
    r, J = linearise(p, y)
    for _ in range(steps):
        JtJ = tf.matmul(J, J, transpose_a=True)
        D = tf.linalg.diag(tf.linalg.diag_part(JtJ))
        g = tf.linalg.matvec(J, r, transpose_a=True)
        s = tf.linalg.solve(JtJ + damping[:, tf.newaxis, tf.newaxis] * D, -g[:, :, tf.newaxis])[:, :, 0]
        trial_r, trial_J = linearise(p + s, y)
        lower = tf.reduce_sum(trial_r**2, axis=1) < tf.reduce_sum(r**2, axis=1)
        p = tf.where(lower[:, tf.newaxis], p + s, p)
        r = tf.where(lower[:, tf.newaxis], trial_r, r)
        J = tf.where(lower[:, tf.newaxis, tf.newaxis], trial_J, J)
        damping *= tf.where(lower, tf.constant(0.1, tf.float64), tf.constant(10.0, tf.float64))
        if tf.reduce_max(tf.abs(s)) < 1e-7:
            break
    return p.numpy(), r.numpy(), J.numpy()


def simulate(sigma):
    """Simulated measurements, shape (refits, 100), and their fits."""
    data = curve(p) + sigma * rng.normal(size=(refits, 100))
    return data, fit_all(linearise_all, tf.tile(p[tf.newaxis], [refits, 1]), data)


_, (fits, _, _) = simulate(variance**0.5)

# %% [markdown]
# Is the cloud of refits as wide as the standard errors say, parameter by parameter? And has it the right shape? Measure each refit $b$'s distance from the centre $p$ by $C$ itself,
#
# $$d^2 = (b - p)^\top C^{-1} (b - p) = \lVert J (b - p) \rVert^2 / \hat\sigma^2 .$$
#
# If the model were straight, $d^2$ would be a sum of four squared standard normal numbers, 95 % of them below 9.49 ($\chi^2$ with four degrees of freedom). The set $d^2 \le 9.49$ is an **ellipsoid** in four dimensions, the joint 95 % region.

# %% tags=["nbval-ignore-output"]
limit = scipy.stats.chi2.ppf(0.95, 4)


def squared_distances(fits, C):
    off = fits - p.numpy()
    return np.einsum("bi,ij,bj->b", off, np.linalg.inv(C), off)


d2 = squared_distances(fits, C)
print("widths, measured / predicted:", np.round(fits.std(axis=0) / errors, 2))
print(f"inside the 95 % ellipsoid: {100 * np.mean(d2 < limit):.1f} % of {refits}")

# %% alt="Scatter plot. A thousand refits as dots in the plane of the parameters a\u2081 and k\u2082: a long tilted cloud that fills a thin tilted ellipse. Some fifty crosses, the fits outside the ellipsoid, lie around its border and inside it." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the cloud and the ellipse


def own_axes(fits, C):
    """Coordinates along the ellipsoid's own axes, the longest first: there it is a ball."""
    scale = np.sqrt(np.diag(C))
    variances, directions = np.linalg.eigh(C / np.outer(scale, scale))
    directions *= np.sign(directions[-1])
    return (((fits - p.numpy()) / scale) @ directions / np.sqrt(variances))[:, ::-1]


turn = np.linspace(0, 2 * np.pi, 181)
circle = np.sqrt(limit) * np.array([np.cos(turn), np.sin(turn)])


def shadow(C, i, j):
    """The border of the ellipsoid's shadow on the plane of two parameters, shape (2, 181)."""
    root = np.linalg.cholesky(C[np.ix_([i, j], [i, j])])
    return p.numpy()[[i, j]][:, np.newaxis] + root @ circle


def draw_cloud(ax, points, outside, border):
    ax.plot(*points[~outside].T, ".", color=plots.BLUE, markersize=3, label=f"inside: {np.sum(~outside)}")
    ax.plot(*points[outside].T, "x", color=plots.RED, markersize=4, label=f"outside: {np.sum(outside)}")
    ax.plot(*border, color="black", linewidth=1.2, label="shadow of the 95 % ellipsoid")


_, ax = plt.subplots(figsize=(6, 4.4), layout="constrained")
draw_cloud(ax, fits[:, [0, 3]], d2 > limit, shadow(C, 0, 3))
ax.set(title="A thousand refits fill the ellipsoid of one Jacobian", xlabel="a₁", ylabel="k₂")
ax.legend(fontsize="small", loc="upper left")
plt.show()

# %% [markdown]
# The widths agree within some per cent, and about 95 % lie inside. (The picture shows the ellipsoid's *shadow* on two of four axes. A cross in the shadow is outside along an axis that you do not see.) One Jacobian has foretold a thousand refits.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(fits.std(axis=0) / errors, 1, atol=0.1)
assert 0.925 < np.mean(d2 < limit) < 0.975
np.testing.assert_allclose(limit, 9.49, atol=0.005)
np.testing.assert_allclose(d2, np.sum(((fits - p.numpy()) @ J.numpy().T) ** 2, axis=1) / variance, rtol=1e-6)
some_y = tf.constant(curve(p) + noise * rng.normal(size=(5, 100)))
some, _, _ = fit_all(linearise_all, tf.tile(p[tf.newaxis], [5, 1]), some_y)
for one, data in zip(some, some_y, strict=True):
    np.testing.assert_allclose(one, levenberg_marquardt(linearise, p, data)[0], atol=1e-6)
several = tf.constant(fits[:5])
with tf.GradientTape() as tape:
    tape.watch(several)
    rows = curve(several[:, tf.newaxis])
np.testing.assert_allclose(linearise_all(several, some_y)[1], tape.batch_jacobian(rows, several), atol=1e-10)

# %% [markdown]
# ## 5. Ten times the noise
#
# Back to the coarse instrument of the opening: $C$ is a hundred times as large, and the ellipsoid ten times as long in every direction.

# %% tags=["nbval-ignore-output"]
coarse_C = coarse**2 * C
coarse_errors = coarse * errors
coarse_data, (coarse_fits, own_r, own_J) = simulate(coarse * variance**0.5)
own_variance = np.sum(own_r**2, axis=1) / (100 - 4)
own_errors = np.sqrt(own_variance[:, np.newaxis] * np.diagonal(np.linalg.inv(own_J.swapaxes(1, 2) @ own_J), 0, 1, 2))
off = (coarse_fits - p.numpy()) / own_errors  # in units of each fit's own error bars
print("widths, measured / predicted:        ", np.round(coarse_fits.std(axis=0) / coarse_errors, 2))
print("within ±1.96 own standard errors, in %:", np.round(100 * np.mean(np.abs(off) < 1.96, axis=0), 1))
print("too low, in %:                         ", np.round(100 * np.mean(off < -1.96, axis=0), 1))
print("too high, in %:                        ", np.round(100 * np.mean(off > 1.96, axis=0), 1))

# %% [markdown]
# Every single width is right, to a tenth or better. You will have one fit, and compute the error bar from *its* Jacobian and *its* $\hat\sigma$. Those intervals hold the true value in more than nine of ten fits here: nearly as promised. But the rates' misses are lopsided, mostly a $k_1$ too high or a $k_2$ too low: there a fit's own error bar is smaller.
#
# **Predict.** And the ellipsoid: what share of the thousand refits lies inside?

# %%
exercises.inside.guess(...)  # "95 %", "85 %" or "50 %"

# %% tags=["nbval-ignore-output"]
coarse_d2 = squared_distances(coarse_fits, coarse_C)
print(f"inside the 95 % ellipsoid: {100 * np.mean(coarse_d2 < limit):.1f} %")

# %% alt="Two scatter plots. Two pictures of one cloud of a thousand refits. Left, in the plane of a\u2081 and k\u2082, the cloud is bent like a banana, leaves the thin straight ellipse at both ends and keeps away from one side of it. Right, in the ellipsoid's own axes, where it is a round ball, the cloud is U-shaped: both arms rise far out of the ball along the thinnest axis." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the banana
_, (left, right) = plt.subplots(1, 2, figsize=(10, 4.8), layout="constrained")
outside = coarse_d2 > limit
draw_cloud(left, coarse_fits[:, [0, 3]], outside, shadow(coarse_C, 0, 3))
left.set(
    title=f"{100 * np.mean(~outside):.0f} % inside: the cloud bends, the ellipsoid does not", xlabel="a₁", ylabel="k₂"
)
left.legend(fontsize="small", loc="upper left")
own = own_axes(coarse_fits, coarse_C)
top = 8.0  # fits beyond it are drawn at the edge
draw_cloud(right, np.minimum(own[:, [0, 3]], top), outside, circle)
if np.any(own[:, 3] > top):
    right.annotate(
        f"{np.sum(own[:, 3] > top)} further up, drawn at {top:g}", (-4.7, top), va="center", fontsize="small"
    )
right.set(title="The same in the ellipsoid's own axes", aspect="equal")
right.set(xlabel="along its longest axis", ylabel="along its thinnest axis", xlim=(-5, 5), ylim=(-4.5, top + 0.5))
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
share = np.mean(coarse_d2 < limit)
exercises.inside.reveal("95 %" if share > 0.92 else "85 %" if share > 0.7 else "50 %")
assert 0.80 < share < 0.89
np.testing.assert_allclose(coarse_fits.std(axis=0) / coarse_errors, 1, atol=0.1)  # to a tenth
held = np.mean(np.abs(off) < 1.96, axis=0)
assert np.all((held > 0.91) & (held < 0.98))
lopsided = np.mean(off < -1.96, axis=0) / np.mean(np.abs(off) > 1.96, axis=0)
assert lopsided[1] < 0.4  # the misses of the rates: too high, and too low
assert lopsided[3] > 0.6
tilts = [np.corrcoef(bars, fits_of_one)[0, 1] for bars, fits_of_one in zip(own_errors.T, coarse_fits.T, strict=True)]
assert tilts[1] < -0.2  # a fit that is too high has the smaller error bar, and for k₂ one that is too low
assert tilts[3] > 0.2
assert np.mean(own[np.abs(own[:, 0]) > 1.5, 3]) > np.mean(own[np.abs(own[:, 0]) < 0.5, 3]) + 0.7  # U-shaped
axes = np.linalg.eigvalsh(correlation)
thinness = np.sqrt(axes[-1] / axes[0])
assert 35 < thinness < 65
far = np.abs(own[:, 0]) > 1.5
bend = np.mean(own[far, 3]) - np.mean(own[np.abs(own[:, 0]) < 0.5, 3])
assert 0.01 < bend / thinness / np.mean(np.abs(own[far, 0])) < 0.07  # in units of standard errors
assert np.all(coarse_fits[:, 1] < coarse_fits[:, 3])  # no fit has swapped the two decays

# %% [markdown]
# About 85 %: three times as many are outside as there should be. All four widths are right, and the *region* is wrong.
#
# On the right the ellipsoid's own axes are stretched until it is a ball; you see the longest and the thinnest of the four. Unstretched, with every parameter in units of its standard error, it is some fifty times as long as it is thick. Along its length the cloud bends aside by a few hundredths of that length. No width sees so little. But the ellipsoid is only two hundredths thick, and so both ends of the cloud leave it sideways. This is the **banana**.
#
# Move the noise. The same random numbers grow, and each fit moves on its own path:

# %% alt="Two scatter plots. Left, a thousand refits in the plane of a\u2081 and k\u2082 and the ellipse that is the shadow of the 95 % ellipsoid. Right, the same in the ellipsoid's own axes, where it is a circle. With a noise of 0.020 the cloud is slightly bent, and the title says that 89.3 per cent are inside."
ellipse.figure().show()

# %% [markdown]
# At 0.002 the cloud fills the ball. The widths in the title on the right stay near 1 all the way, while the count on the left falls to 80 %.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for level, low, high in ((0.002, 0.94, 0.96), (0.02, 0.87, 0.91), (0.04, 0.78, 0.82)):
    moved = ellipse.refits(level)
    assert low < np.mean(ellipse.distances(moved, level) < ellipse.LIMIT) < high
    np.testing.assert_allclose(moved.std(axis=0) / np.sqrt(np.diag(ellipse.covariance(level))), 1, atol=0.1)

# %% [markdown]
# ## 6. Measure the curve, not the parameters
#
# The ellipsoid's distance is $\lVert J(b - p)\rVert$, the change of the curve *if the model were straight*. But you have the model. Take the change of the curve itself:
#
# $$\lVert f(b) - f(p) \rVert^2 / \hat\sigma^2 \le 9.49 .$$
#
# The opening's fits gave one curve. The parameters are its coordinates, and it is the coordinates that bend.

# %% tags=["nbval-ignore-output"]
coarse_variance = coarse**2 * variance
by_curve = np.sum((curve(coarse_fits[:, np.newaxis]) - curve(p)) ** 2, axis=1) / coarse_variance
print(f"inside by the ellipsoid: {100 * np.mean(coarse_d2 < limit):.1f} %")
print(f"inside by the curve:     {100 * np.mean(by_curve < limit):.1f} %")

# %% alt="Scatter plot. The plane of the two rates with the cloud of refits at ten times the noise. A straight dashed ellipse misses the ends of the cloud and includes an empty strip; a solid bent contour follows the cloud all around." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the region that bends
_, ax = plt.subplots(figsize=(7, 4.8), layout="constrained")
slow, fast = np.meshgrid(np.linspace(0.28, 0.68, 161), np.linspace(0.85, 2.9, 161))
basis = np.exp(-np.stack([slow, fast], axis=-1)[:, :, np.newaxis] * times[:, np.newaxis])  # (161, 161, 100, 2)
aim = curve(p).numpy()
amplitudes = np.linalg.solve(
    np.swapaxes(basis, 2, 3) @ basis, (np.swapaxes(basis, 2, 3) @ aim)[..., np.newaxis]
)  # for given rates, the best amplitudes are linear least squares
least = np.sum(((basis @ amplitudes)[..., 0] - aim) ** 2, axis=-1) / coarse_variance
ax.plot(*coarse_fits[:, [1, 3]].T, ".", color=plots.BLUE, markersize=3, label="refits")
ax.plot(
    *shadow(coarse_C, 1, 3), "--", color="black", label=f"ellipsoid: {100 * np.mean(coarse_d2 < limit):.1f} % inside"
)
ax.contour(slow, fast, least, levels=[limit], colors=plots.RED, linewidths=2)
ax.plot(
    [],
    [],
    color=plots.RED,
    linewidth=2,
    label=f"same change of the curve: {100 * np.mean(by_curve < limit):.1f} % inside",
)
ax.set(title="The region drawn by the curve itself follows the cloud", xlabel="k₁", ylabel="k₂")
ax.legend(loc="upper left", fontsize="small")
plt.show()

# %% [markdown]
# About 95 %. Only the straightening is gone. (Both outlines are shadows again; the solid one takes the best amplitudes for each pair of rates, as in Golub and Pereyra's *variable projection*. The shares count all four parameters.)
#
# For a measurement $y$ of your own you have no cloud. You have the sum of squares $S(p) = \lVert f(p) - y\rVert^2$, and the region of its low values,
#
# $$S(p) \le S_{\min} + 9.49\, \hat\sigma^2 .$$
#
# This is Beale's region (1960). Close to this minimum it is nearly the ellipsoid. Try both on each of the thousand coarse measurements, with its own fit, Jacobian and $\hat\sigma$, as you would have to. Does the region hold the parameters that the measurement came from?

# %% tags=["nbval-ignore-output"]
by_own_ellipsoid = tf.reduce_sum(tf.linalg.matvec(own_J, p - coarse_fits) ** 2, axis=1) / own_variance
by_own_squares = np.sum((curve(p) - coarse_data) ** 2 - own_r**2, axis=1) / own_variance
print(f"the fit's own ellipsoid holds them: {100 * np.mean(by_own_ellipsoid < limit):.1f} %")
print(f"its own region of low squares:      {100 * np.mean(by_own_squares < limit):.1f} %")

# %% [markdown]
# Some 84 against some 95 in a hundred. Other coordinates change the ellipsoid's share: with the logarithms of all four it is about two thirds (the check).
#
# When do you need the second region? Run section 4 on your own fit: simulate from the fitted curve, refit, and count. If the ellipsoid holds 95 %, the model is straight enough for $C$, but a lifetime $1/k$ may still bend: look at its own scatter. If not, quote the region, or the refits themselves.
#
# That tests straightness alone, with your model and independent noise. If neighbours share their noise, $C$ is too small: plot the residuals, and look for neighbours of one sign. A small background that the model lacks leaves hardly a trace there: add 0.01 to every $y$ here, and $k_1$ is ten error bars off, while the residuals look like noise. So make what you cannot exclude a parameter. Here the error bar of $k_1$ becomes nearly four times as long, and holds (the check).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.925 < np.mean(by_curve < limit) < 0.975
change = [np.sum((decays(times, *b) - decays(times, *p.numpy())) ** 2) for b in coarse_fits]
np.testing.assert_allclose(by_curve, np.array(change) / (coarse**2 * variance), rtol=1e-8)
assert 0.79 < np.mean(by_own_ellipsoid < limit) < 0.885
assert 0.92 < np.mean(by_own_squares < limit) < 0.97
assert coarse_fits.min() > 0
shared = np.apply_along_axis(
    np.convolve, 1, np.random.default_rng(seed).normal(size=(200, 104)), np.full(5, 5**-0.5), "valid"
)  # by five
of_shared, shared_r, shared_J = fit_all(linearise_all, tf.tile(p[tf.newaxis], [200, 1]), curve(p) + noise * shared)
own_C = np.linalg.inv(shared_J.swapaxes(1, 2) @ shared_J) * np.sum(shared_r**2, axis=1)[:, np.newaxis, np.newaxis] / 96
claimed = np.sqrt(np.median(np.diagonal(own_C, 0, 1, 2), axis=0))
assert np.all(of_shared.std(axis=0) > 1.6 * claimed)  # neighbours share their noise: C is too small
of_one_sign = np.mean(shared_r[:, 1:] * shared_r[:, :-1] > 0)
assert of_one_sign > 0.7


@tf.function
def linearise_with_background(p, y):
    copies = tf.tile(p[:, tf.newaxis, :], [1, len(times), 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        r = curve(copies[..., :4]) + copies[..., 4] - y
    return r, tape.gradient(r, copies)


raised = curve(p) + 0.01 + noise * np.random.default_rng(seed).normal(size=(200, 100))
rates_off, rates_bars = {}, {}
for count, way in ((4, linearise_all), (5, linearise_with_background)):
    raised_fits, raised_r, raised_J = fit_all(way, tf.tile(np.append(p, 0)[np.newaxis, :count], [200, 1]), raised)
    inverse = np.linalg.inv(raised_J.swapaxes(1, 2) @ raised_J)
    rates_bars[count] = np.sqrt(inverse[:, 1, 1] * np.sum(raised_r**2, axis=1) / (100 - count))
    rates_off[count] = (raised_fits[:, 1] - p[1]) / rates_bars[count]
    assert 0.45 < np.mean(raised_r[:, 1:] * raised_r[:, :-1] > 0) < 0.54  # like noise
assert -11 < np.mean(rates_off[4]) < -9
assert 3.4 < np.median(rates_bars[5] / rates_bars[4]) < 4
assert np.mean(np.abs(rates_off[5]) < 1.96) > 0.9
in_logarithms = (own_J * coarse_fits[:, np.newaxis]) @ np.log(p.numpy() / coarse_fits)[..., np.newaxis]
held_in_logarithms = np.mean(np.sum(in_logarithms**2, axis=(1, 2)) / own_variance < limit)
assert 0.55 < held_in_logarithms < 0.75
inside_contour = least < limit
assert slow.min() < slow[inside_contour].min() < slow[inside_contour].max() < slow.max()
assert fast.min() < fast[inside_contour].min() < fast[inside_contour].max() < fast.max()
near = p + 1e-4 * errors
rise = float(tf.reduce_sum((curve(near) - y) ** 2)) - squares[-1]
np.testing.assert_allclose(rise, variance * squared_distances(near.numpy()[np.newaxis], C)[0], rtol=0.05)

# %% [markdown]
# ## 7. Going further: the error bar of a network
#
# A network is a curve with many parameters. Take 16 units of `tanh`, 48 weights, and 20 measured points that leave a gap in the middle. With fewer points than weights $J^\top J$ has no inverse. A **prior** mends that: before any measurement, each weight is $0 \pm 2$, with a normal distribution. To a fit this is *one more measurement of each weight*, whose result was 0 and whose noise was 2:
#
# $$r = \Big(\frac{f(w) - y}{\sigma},\ \frac{w - 0}{2}\Big), \qquad C = (J^\top J)^{-1}.$$
#
# The sum of squares is the loss with weight decay, and `fit_all` can minimise it. At any $x$ the curve then has the error bar $\sqrt{g^\top C g}$ of section 3, with $g$ the gradient of $f(x)$. For networks this is **Laplace's approximation**, linearised.


# %%
sigma, prior = 0.2, 2.0
size, phase = rng.normal(size=3), rng.uniform(0, 2 * np.pi, 3)


def wanted(x):
    """The true curve: three waves."""
    return (size * np.sin(np.outer(x, [1, 2, 3]) + phase)) @ [0.8, 0.57, 0.46]


x_seen = tf.constant(rng.choice([-1, 1], 20) * rng.uniform(0.7, 2, 20))  # none between -0.7 and 0.7
y_seen = wanted(x_seen) + sigma * rng.normal(size=20)


def network(w, x):
    """w of shape (..., 1 or points, 48), one set of weights or a copy for each point; the result is (..., points)."""
    kernel, bias, last = tf.split(w, 3, axis=-1)
    return tf.reduce_sum(last * tf.tanh(x[:, tf.newaxis] * kernel + bias), axis=-1)


@tf.function
def linearise_network(w, measured):
    """As `linearise_all`: 20 residuals of the curve, then 48 of the weights."""
    copies = tf.tile(w[:, tf.newaxis, :], [1, 20 + 48, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        weights = tf.linalg.diag_part(copies[:, 20:])
        r = tf.concat([network(copies[:, :20], x_seen) / sigma, weights / prior], axis=1) - measured
    return r, tape.gradient(r, copies)


measured = np.append(y_seen / sigma, np.zeros(48))
starts = tf.constant(prior * rng.normal(size=(20, 48)))
found, found_r, found_J = fit_all(linearise_network, starts, tf.constant(np.tile(measured, (20, 1))))
best = np.argmin(np.sum(found_r**2, axis=1))
w, C_w = tf.constant(found[best]), np.linalg.inv(found_J[best].T @ found_J[best])

# %% [markdown]
# Is it right? Section 4 asked refits. Here fresh noise goes onto *all* 68 measured numbers, the weights' zeros among them, so each refit is drawn towards its own sample of the prior: an **anchored ensemble**.
#
# The truth is the **posterior**: *every* set of weights counts, in proportion to $e^{-E(w)}$, with $E$ half the sum of squares. **Hamiltonian Monte Carlo** (HMC) draws from it with gradients. The weights roll on the landscape $E$ like a ball without friction. Give the ball a random velocity $v$, follow it for a while, and accept where it arrives: the energy $E + \tfrac12\lVert v \rVert^2$ is kept, except for errors of the finite steps, and an accept–reject step corrects those exactly.


# %%
@tf.function
def energy_and_slope(w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        f = network(w[:, tf.newaxis, :], x_seen)
        E = (tf.reduce_sum(((f - y_seen) / sigma) ** 2, axis=1) + tf.reduce_sum((w / prior) ** 2, axis=1)) / 2
    return E, tape.gradient(E, w)


@tf.function(jit_compile=True)
def hamiltonian_monte_carlo(energy_and_slope, w, draws=300, leaps=150, step=0.008):
    """Draws, shape (draws, chains, parameters), and which proposals were accepted; one chain for each row of w."""
    kept, accepted = tf.TensorArray(w.dtype, draws), tf.TensorArray(tf.bool, draws)
    E, slope = energy_and_slope(w)
    for i in tf.range(draws):
        v = tf.random.stateless_normal(w.shape, [seed, i], dtype=w.dtype)
        before = E + tf.reduce_sum(v**2, axis=1) / 2
        there, E_there, slope_there = w, E, slope
        v -= step / 2 * slope  # half a step ahead of the place
        for _ in tf.range(leaps):
            there += step * v
            E_there, slope_there = energy_and_slope(there)
            v -= step * slope_there
        v += step / 2 * slope_there
        after = E_there + tf.reduce_sum(v**2, axis=1) / 2
        u = tf.random.stateless_uniform([len(w)], [seed + 1000, i], dtype=w.dtype)
        yes = tf.math.log(u) < before - after
        w = tf.where(yes[:, tf.newaxis], there, w)
        E, slope = tf.where(yes, E_there, E), tf.where(yes[:, tf.newaxis], slope_there, slope)
        kept, accepted = kept.write(i, w), accepted.write(i, yes)
    return kept.stack(), accepted.stack()


simulated = measured + rng.normal(size=(100, 68))
refitted, _, _ = fit_all(linearise_network, tf.constant(prior * simulated[:, 20:]), tf.constant(simulated))
chains, accepted = hamiltonian_monte_carlo(energy_and_slope, tf.constant(refitted[:20]))
chains = chains[60:]  # without the way from the starts

# %% [markdown]
# **Predict.** The error bar from one Jacobian, beside the sampled one, in the gap: how wide is it?

# %%
exercises.in_gap.guess(...)  # "narrower", "about as wide" or "wider"


# %% tags=["nbval-ignore-output"]
def three_widths(x):
    """Standard deviations of the curve at x: by one Jacobian, by the refits, and by sampling."""
    copies = tf.tile(w[tf.newaxis], [len(x), 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        f = network(copies, x)
    g = tape.gradient(f, copies).numpy()
    sampled = network(chains[:, :, tf.newaxis], x).numpy().reshape(-1, len(x))
    refits_there = network(refitted[:, np.newaxis], x).numpy()
    return np.sqrt(np.sum(g @ C_w * g, axis=1)), refits_there.std(axis=0), sampled.std(axis=0)


in_gap, everywhere = tf.constant(np.linspace(-0.6, 0.6, 25)), tf.constant(np.linspace(-2.4, 2.4, 121))
for name, x in (("at the points", x_seen), ("in the gap   ", in_gap)):
    linear, refit, sampled = (np.mean(width) for width in three_widths(x))
    print(f"{name}: one Jacobian {linear:.2f}, refits {refit:.2f}, sampled {sampled:.2f}")
print(f"proposals accepted: {100 * np.mean(accepted):.0f} %")

# %% alt="Two line plots over x, with points at both sides of a gap. Left, twenty sampled curves pass by the points on both sides and fan out in the gap; the band of one Jacobian is much narrower there. Right, the three widths: alike at the points, and in the gap that of one Jacobian is the lowest, the sampled one and that of the refits far above it." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the curves, and three widths
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
widths = three_widths(everywhere)
middle = network(w[tf.newaxis], everywhere).numpy()
left.plot(everywhere, network(chains[-1][:, tf.newaxis], everywhere).numpy().T, color=plots.ORANGE, linewidth=0.6)
left.plot([], [], color=plots.ORANGE, label="sampled")
left.fill_between(everywhere, middle - 1.96 * widths[0], middle + 1.96 * widths[0], color=plots.BLUE, alpha=0.4)
left.plot(everywhere, middle, color=plots.BLUE, label="fit, ±1.96 error bars")
left.plot(everywhere, wanted(everywhere), "--", color="black", label="true curve")
left.plot(x_seen, y_seen, ".", color="black")
left.set(title="One fit and twenty sampled curves", xlabel="x", ylabel="y")
left.legend(fontsize="small")
styles = (("one Jacobian", "-", plots.BLUE), ("refits", "--", plots.GREEN), ("sampled", "-", plots.ORANGE))
for (name, style, colour), width in zip(styles, widths, strict=True):
    right.plot(everywhere, width, style, color=colour, label=name)
right.plot(x_seen, np.zeros(20), "|", color="black", markersize=10)
right.set(title="They agree where there are points", xlabel="x", ylabel="standard deviation of the curve")
right.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
linear, refit, sampled = three_widths(in_gap)
beside = np.median(sampled / linear)
exercises.in_gap.reveal("narrower" if beside > 1.2 else "about as wide" if beside > 0.8 else "wider")
assert 0.7 < beside < 6
assert 0.95 < np.median(refit / sampled) < 1.6
at_points = three_widths(x_seen)
assert 0.85 < np.median(at_points[2] / at_points[0]) < 1.2
values = network(chains[:, :, tf.newaxis], tf.concat([in_gap, x_seen], axis=0)).numpy()
rhat = np.sqrt(1 + values.mean(axis=0).var(axis=0, ddof=1) / values.var(axis=0).mean(axis=0))
assert rhat.max() < 1.03  # the chains agree with each other
assert np.mean(accepted) > 0.85
some_E, some_slope = energy_and_slope(starts[:3])
some_r, some_J = linearise_network(starts[:3], tf.constant(np.tile(measured, (3, 1))))
np.testing.assert_allclose(some_E, np.sum(some_r**2, axis=1) / 2, rtol=1e-10)
np.testing.assert_allclose(some_slope, tf.linalg.matvec(some_J, some_r, transpose_a=True), rtol=1e-8, atol=1e-8)
wide = tf.constant([1.0, 2.0], tf.float64)  # a density that is known: two independent normal numbers of these widths
normal, _ = hamiltonian_monte_carlo(
    lambda w: (tf.reduce_sum((w / wide) ** 2, axis=1) / 2, w / wide**2),
    tf.zeros([20, 2], tf.float64),
    leaps=8,
    step=0.2,
)
np.testing.assert_allclose(np.std(normal, axis=(0, 1)), wide, rtol=0.1)
np.testing.assert_allclose(np.mean(normal, axis=(0, 1)), 0, atol=0.15)

# %% [markdown]
# Narrower, in this run. Where there are points the two agree to about a tenth, and one Jacobian is enough. In the gap it is not. (A rival without chains or gradients agrees with the sampled width: the appendix.)
#
# To see why, take *all* points away. The prior is left, and its most probable weights are 0. What does the Jacobian say there?


# %% tags=["nbval-ignore-output"]
def size_of_g(sets):
    """The mean size of the curve's gradient by the weights in the gap, over some sets of weights."""
    copies = tf.tile(tf.reshape(sets, [-1, 1, 48]), [1, 25, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        f = network(copies, in_gap)
    return np.mean(tf.norm(tape.gradient(f, copies), axis=-1))


zero, drawn = tf.zeros([1, 48], tf.float64), tf.constant(prior * rng.normal(size=(1000, 48)))
linear, _, sampled = (np.mean(width) for width in three_widths(in_gap))
rows = (
    ("no points, one Jacobian", zero, prior * size_of_g(zero)),  # C is prior**2 times the unit matrix
    ("no points, drawn", drawn, np.mean(np.std(network(drawn[:, tf.newaxis], in_gap), axis=0))),
    ("20 points, one Jacobian", w, linear),
    ("20 points, sampled", chains[::20], sampled),
)
for name, sets, bar in rows:
    length = np.mean(tf.norm(sets, axis=-1))
    print(f"{name:24} weights {length:4.1f} long, size of g {size_of_g(sets):.1f}, error bar in the gap {bar:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert rows[0][2] == 0.0
np.testing.assert_allclose(np.mean(tf.norm(drawn, axis=1)), prior * np.sqrt(48), rtol=0.05)
assert np.min(tf.norm(drawn, axis=1)) > 6  # none is near 0
assert 5 < rows[1][2] < 8
lengths = np.linalg.norm(chains, axis=-1)
assert np.mean(lengths) > 1.6 * np.linalg.norm(w)
assert abs(np.mean(lengths) / np.mean(tf.norm(drawn, axis=1)) - 1) < 0.15
assert size_of_g(chains[::20]) > 1.5 * size_of_g(w)

# %% [markdown]
# "Nothing measured, error bar 0." At weight 0 the network reacts to *no* weight: $g = 0$. Yet the prior's draws are about $2\sqrt{48} \approx 14$ long, and their curves scatter by about 6. The most probable weights are like none of them. With the points it is the same in part: the fit is short, the samples are about as long as the prior's draws, and in the gap their curves react more strongly. A Jacobian at the fit knows nothing of that. The refits, each from its own draw of the prior, err here to the other side.
#
# So quote the Jacobian's error bar among data as dense as these. For a gap, sample or refit with the prior's draw; and remember how much of it is your prior.

# %% [markdown]
# ### Exercise: The error bars of a network (8 min)
#
# `J` is the Jacobian of the network's values at the training points, shape (points, weights), and `J_new` at other places, (others, weights). Both are without the residuals of the weights. The noise is `sigma`, and each weight's prior is $0 \pm$ `prior`. Return the standard deviation of the linearised curve at the others, without the noise of a measurement: shape (others,).


# %%
def error_bars(J, J_new, sigma, prior):
    return ...  # one standard deviation for each row of J_new


exercises.bars.check(error_bars)

# %% [markdown]
# ## 8. Going further: the error bar before the measurement
#
# $C$ needs $J$ and a noise level. Neither needs *data*. So you can compute the error bars of an experiment that has not been made, with parameters that you expect, and choose the best one: **optimal design**. A hundred points, the careful instrument: until when should it measure?


# %%
@tf.function
def planned_errors(end):
    """The standard errors of the four parameters after 100 measurements in 0 to end."""
    at = tf.linspace(tf.constant(0.0, tf.float64), end, 100)
    expected = tf.constant(truth)
    with tf.GradientTape() as tape:
        tape.watch(expected)
        a1, k1, a2, k2 = tf.unstack(expected)
        y = a1 * tf.exp(-k1 * at) + a2 * tf.exp(-k2 * at)
    J = tape.jacobian(y, expected)
    return noise * tf.sqrt(tf.linalg.diag_part(tf.linalg.inv(tf.transpose(J) @ J)))


planned = {end: planned_errors(tf.constant(float(end), tf.float64)).numpy() for end in (1, 2, 4, 8, 16)}
for end, planned_error in planned.items():
    print(f"until t = {end:2}: error of a₁ {planned_error[0]:.3f}, of k₂ {planned_error[3]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert min(planned, key=lambda end: planned[end][0]) == 8
assert min(planned, key=lambda end: planned[end][3]) == 8
assert 15 < planned[1][0] / planned[8][0] < 30
assert decays(8, *truth) < 0.01 * decays(0, *truth)

# %% [markdown]
# Until 8, of these five. Stop at 1, before the slow decay has shown itself, and the error of $a_1$ is twenty times as large. Wait until 16, and half of the points come when less than a hundredth of the start is left.
#
# ### Exercise: Where to measure once more (15 min)
#
# *This one needs an idea that the text does not spell out.*
#
# You have measured at `times`, shape $(N,)$, and may measure once more. `f(p, t)` returns what the model predicts at times `t`, of the shape of `t`; the noise is the same at all times, and `p` has shape $(n,)$. Return the one of `candidates`, shape (m,), that makes the standard error of parameter number `which` smallest.


# %%
def best_time(f, p, times, candidates, which):
    return ...  # one element of candidates, a scalar tensor


exercises.best_time.check(best_time)

# %% [markdown]
# ## 9. Check it independently
#
# The United States' National Institute of Standards and Technology publishes data sets with **certified** parameters and their standard errors, which it calls standard deviations. One of them, MGH17, is two exponentials and a constant, $b_1 + b_2 e^{-b_4 x} + b_3 e^{-b_5 x}$, with 33 points. NIST gives two starts; the loop sets out from the nearer one.

# %% tags=["nbval-ignore-output"]
x_nist = tf.constant(np.arange(0.0, 330.0, 10.0))
y_nist = [0.844, 0.908, 0.932, 0.936, 0.925, 0.908, 0.881, 0.850, 0.818, 0.784, 0.751, 0.718, 0.685, 0.658]
y_nist += [0.628, 0.603, 0.580, 0.558, 0.538, 0.522, 0.506, 0.490, 0.478, 0.467, 0.457, 0.448, 0.438, 0.431]
y_nist += [0.424, 0.420, 0.414, 0.411, 0.406]
certified = [0.37541005211, 1.9358469127, -1.4646871366, 0.012867534640, 0.022122699662]
certified_errors = [2.0723153551e-03, 0.22031669222, 0.22175707739, 4.4861358114e-04, 8.9471996575e-04]


@tf.function
def linearise_nist(b, y):
    with tf.GradientTape() as tape:
        tape.watch(b)
        r = b[0] + b[1] * tf.exp(-b[3] * x_nist) + b[2] * tf.exp(-b[4] * x_nist) - y
    return r, tape.jacobian(r, b)


b, J_nist, squares_nist = levenberg_marquardt(
    linearise_nist, tf.constant([0.5, 1.5, -1.0, 0.01, 0.02], tf.float64), tf.constant(y_nist, tf.float64)
)
errors_nist = np.sqrt(squares_nist[-1] / (33 - 5) * np.diag(tf.linalg.inv(tf.transpose(J_nist) @ J_nist)))
print(f"largest relative difference of the parameters:      {np.abs(b / certified - 1).max():.0e}")
print(f"largest relative difference of the standard errors: {np.abs(errors_nist / certified_errors - 1).max():.0e}")

# %% [markdown]
# From the farther start the loop stops with an error. In the step before, it accepted a rate $b_4$ of several hundred million, because the sum of squares is lower there. The first exponential is then zero at every point but $x = 0$, so that rate's column of $J$ is zero, and with it the entry of $D$: no $\lambda$ makes $J^\top J + \lambda D$ invertible. From that start, too, `optimize.levenberg_marquardt` arrives (the check).
#
# SciPy's `curve_fit` returns a second thing, which the opening threw away: the covariance of the parameters, from a Jacobian by differences. It agrees with yours to a hundredth.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(b, certified, rtol=1e-6)
far_start = tf.constant([50.0, 150.0, -100.0, 1.0, 2.0], tf.float64)
try:
    levenberg_marquardt(linearise_nist, far_start, tf.constant(y_nist, tf.float64))
    from_far = "it arrives"
except tf.errors.InvalidArgumentError as error:
    from_far = error.message
assert "not invertible" in from_far
w_nist = tf.Variable(far_start)
optimize.levenberg_marquardt(
    lambda: w_nist[0] + w_nist[1] * tf.exp(-w_nist[3] * x_nist) + w_nist[2] * tf.exp(-w_nist[4] * x_nist) - y_nist,
    wrt=w_nist,
)
np.testing.assert_allclose(w_nist, certified, rtol=1e-6)
far_J = linearise_nist(tf.constant([49.4, 149.0, -101.0, 4e8, 0.37], tf.float64), tf.constant(y_nist, tf.float64))[1]
np.testing.assert_array_equal(far_J[:, 3], 0.0)  # nothing depends on that rate any more
assert np.all(np.linalg.norm(far_J.numpy()[:, [0, 1, 2, 4]], axis=0) > 0.1)
np.testing.assert_allclose(errors_nist, certified_errors, rtol=1e-5)
np.testing.assert_allclose(squares_nist[-1], 5.4648946975e-05, rtol=1e-8)
_, pcov = scipy.optimize.curve_fit(decays, times, y.numpy(), p0=start.numpy())
np.testing.assert_allclose(pcov, C, rtol=1e-2)
numerical = gradcheck.numerical_jacobian(lambda point: decays(times, *point), p.numpy())
np.testing.assert_allclose(J, numerical, atol=1e-7)

# %% [markdown]
# <details><summary>Appendix: over how many seeds this was seen</summary>
#
# Ten curves, each with measurements of its own, and the 20 chains' agreement ($\hat R$, from within-chain and between-chain variances) at most 1.007. In the gap the sampled width was 0.9 to 3.9 times that of one Jacobian in the median over 25 places; on nine of ten curves it was more than 1.3 times. At the points it was 0.95 to 1.08 times. The refits' width in the gap was 1.08 to 1.38 times the sampled one, at the points 1.04 to 1.25 times. The samples were 2.1 to 5.1 times as long as the fit, and the gradient of the curve with respect to the weights 1.8 to 3.1 times as large in the gap. On one curve the Jacobian's 95 % interval held the true curve at a quarter of the places in the gap; sampling and refits held it at all of them, on all ten curves. In the gap of this page's curve chains of 2000 draws gave a width of 1.13. So did a rival without a gradient, since the last layer is linear: 20 000 draws of the hidden weights from the prior, the last solved for, each draw weighed by the density that it gives the data.
#
# </details>

# %% [markdown]
# ## Recap
#
# - Straighten the residuals, and each step is a linear least-squares problem with $J^\top J$. Undamped it may explode; with $\lambda D$ added, and refused steps, it arrives here in about ten (sections 1 and 2).
# - As far as the model is straight, the same Jacobian gives the covariance $C = \hat\sigma^2 (J^\top J)^{-1}$, and another quantity with the gradient $g$, if straight as well, has the variance $g^\top C g$ (section 3).
# - A copy of the parameters for every residual turns all Jacobians of a thousand fits into one backward pass, and the cloud of refits tests whether the model is straight enough for $C$ (section 4).
# - The ellipsoid can be thin. With more noise the cloud bent out of it, every width still right. The change of the curve itself, or the sum of squares, draws a region that bends along (sections 5 and 6).
# - A prior on the weights is one more measurement of each, and gives a network's curve an error bar. Beside one that is sampled it is right here where there are points, and in the gap too narrow (section 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | an undamped Gauss–Newton step from far away | a sum of squares that explodes | damp, and refuse what is not lower |
# | $\sigma/\lVert J_i\rVert$ as an error bar | errors that are too small, here twenty times | the diagonal of the inverse |
# | $\lVert r\rVert^2/N$ for the noise | errors a little too small, much with few data | divide by $N - n$ |
# | errors combined without covariances | an error bar too large or too small | $g^\top C g$ |
# | refits in which the two decays swap names (here none did) | a cloud in two pieces | sort by rate |
# | a linearised error bar in a gap between the data | here a band that is too narrow | sample, or refit with a draw of the prior |
# | widths taken for the region | here, three times too many outside | simulate, refit, count |
#
# **Further reading**
#
# - K. Levenberg (1944), ["A method for the solution of certain non-linear problems in least squares"](https://doi.org/10.1090/qam/10666); D. W. Marquardt (1963), ["An algorithm for least-squares estimation of nonlinear parameters"](https://doi.org/10.1137/0111030).
# - J. J. Moré (1978), ["The Levenberg–Marquardt algorithm: implementation and theory"](https://doi.org/10.1007/BFb0067700): MINPACK's.
# - E. M. L. Beale (1960), ["Confidence regions in non-linear estimation"](https://doi.org/10.1111/j.2517-6161.1960.tb00353.x): the region of low squares, and how far a fit bends.
# - D. M. Bates, D. G. Watts (1980), ["Relative curvature measures of nonlinearity"](https://doi.org/10.1111/j.2517-6161.1980.tb01094.x): in their examples the coordinates bend most.
# - D. J. C. MacKay (1992), ["A practical Bayesian framework for backpropagation networks"](https://doi.org/10.1162/neco.1992.4.3.448): the linearised error bar of a network; A. Y. K. Foong, Y. Li, J. M. Hernández-Lobato, R. E. Turner (2019), ["In-between uncertainty in Bayesian neural networks"](https://arxiv.org/abs/1906.11537): the gap.
# - R. M. Neal (2011), ["MCMC using Hamiltonian dynamics"](https://arxiv.org/abs/1206.1901); the method is that of S. Duane, A. D. Kennedy, B. J. Pendleton, D. Roweth (1987).
# - T. Pearce, F. Leibfried, A. Brintrup (2020), ["Uncertainty in neural networks: approximately Bayesian ensembling"](https://arxiv.org/abs/1810.05546): anchored ensembles.
# - National Institute of Standards and Technology, [Nonlinear regression](https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml), Statistical Reference Datasets.
#
# **Read next:** [20 The derivative of a solution](20_derivative_of_a_solution.ipynb) asks how such a minimum moves with the data.
