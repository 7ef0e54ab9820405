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
# # An equation and no data
#
# This function is shown none of its values but the zeros on the boundary. It is told an equation, and what it gets wrong is how far it is from satisfying it.
# **Can a network be fitted to an equation alone, and how much of its error is the optimiser's?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/24_an_equation_and_no_data.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb), [19 Fit and error bars](19_fit_and_error_bars.ipynb) · **Minutes:** 24 to read, 25 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
count = 300  # points at which the equation is asked for: between 250 and 400
sensors = 40  # measurements in section 5: between 30 and 60
draws = 25  # of their noise: between 20 and 40

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import time

from tapelab import derivatives, optimize, plots, runtime
from tapelab.exercises.sheets import an_equation_and_no_data as exercises

import matplotlib.pyplot as plt
import numpy as np
import scipy.fft  # comes with scikit-learn
import scipy.optimize
import tensorflow as tf
from threadpoolctl import threadpool_limits  # comes with scikit-learn

threadpool_limits(1)  # NumPy's matrices are small here, and its threads would fight with TensorFlow's
runtime.start(seed)


# %%
def laplacian(u, x):
    """The sum of the second derivatives of u with respect to each coordinate, at points x of shape (n, d)."""
    coordinates = tf.split(x, x.shape[1], axis=1)
    total = 0.0
    for coordinate in coordinates:
        with tf.GradientTape() as outer:
            outer.watch(coordinate)
            with tf.GradientTape() as inner:
                inner.watch(coordinate)
                values = u(tf.concat(coordinates, axis=1))
            slope = inner.gradient(values, coordinate)
        total += outer.gradient(slope, coordinate)[:, 0]
    return total


def laplacians(features, x):
    """The Laplacian of each feature at each point, shape (n, features): a derivative with respect to its weight."""
    c = tf.zeros_like(features(x))  # a copy of the weights for each point
    with tf.GradientTape() as tape:
        tape.watch(c)
        values = laplacian(lambda x: tf.reduce_sum(c * features(x), axis=1), x)
    return tape.gradient(values, c).numpy()


at_one_point = laplacian(lambda x: x[:, 0] ** 2 + x[:, 1] ** 3, tf.constant([[1.0, 2.0]]))
print("Laplacian of x² + y³ at (1, 2):", at_one_point.numpy())


# %% [markdown]
# Take 128 waves with random slopes, `tanh` of random linear functions, and multiply each by a factor that is zero on the boundary of the unit square. Their sum with weights $c$ is $u$. Ask for $-\Delta u = f$ at 300 points: 300 linear equations for 128 weights.


# %% tags=["nbval-ignore-output"]
def source(x):
    """The right-hand side of the equation, f, at the points x."""
    return 800 * x[:, 0] * (1 - x[:, 0]) * x[:, 1] * (1 - x[:, 1]) * (x[:, 0] + 2 * x[:, 1] - 1)


def edge(x):
    return 16 * x[:, 0] * (1 - x[:, 0]) * x[:, 1] * (1 - x[:, 1])  # zero on the boundary


def waves(scale):
    """128 features of points, with random slopes of this size."""
    kernel, bias = scale * rng.normal(size=(2, 128)), rng.normal(size=128)
    return lambda x: edge(x)[:, None] * tf.tanh(x @ kernel + bias)


rng = np.random.default_rng(seed)
points, between = (tf.constant(rng.uniform(size=(n, 2))) for n in (count, 2000))
solved = {}
for scale in (0.5, 1.0, 2.0, 4.0):
    features = waves(scale)
    c = np.linalg.lstsq(laplacians(features, points), -source(points))[0]
    elsewhere = np.mean((laplacians(features, between) @ c + source(between)) ** 2)
    solved[scale] = elsewhere, features, c
    print(f"slopes of size {scale}: mean squared residual {elsewhere:.0e} at 2000 other points")
_, features, c = solved[min(solved, key=lambda scale: solved[scale][0])]


# %% tags=["nbval-ignore-output"]
def square(cells):
    """The points of a grid on the unit square, its boundary included, shape ((cells + 1)², 2)."""
    axis = np.linspace(0, 1, cells + 1)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def reference(f, kappa=0.0, cells=160, five_point=False):
    """The solution of -Δu + κu = f by a sine transform, or by finite differences, at the points of the 40 × 40 grid."""
    load = np.reshape(f(square(cells)), (cells + 1, cells + 1))[1:-1, 1:-1]
    k = np.pi * np.arange(1, cells)
    in_one = 2 * cells**2 * (1 - np.cos(k / cells)) if five_point else k**2  # -d²/dx² of sin kx, over sin kx
    u = scipy.fft.idstn(scipy.fft.dstn(load, type=1) / (in_one[:, None] + in_one + kappa), type=1)
    return np.pad(u, 1)[:: cells // 40, :: cells // 40].ravel()


grid = tf.constant(square(40))
solution = reference(source)


def error(u, truth=solution):
    """The relative error of values on the grid: root mean square over root mean square."""
    return np.linalg.norm(u - truth) / np.linalg.norm(truth)


u = (features(grid) @ c[:, None])[:, 0]
print(f"relative error of u: {error(u):.0e}")

# %% alt="Two heat maps. Two square maps. Left, u: a wide hill with its top above and to the right of the middle, zero on the boundary, with 300 black dots scattered at random. Right, its difference from the reference solution, on a scale about a million times finer: irregular patches of both signs." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what the equation alone has fixed


def maps(panels, marks):
    """Square maps of values on the grid, each with a scale of its own; marks are points to show in the first."""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.8), layout="constrained")
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        values = np.reshape(values, (41, 41)).T
        limit = np.abs(values).max()
        style = {"extent": (0, 1, 0, 1), "origin": "lower", "cmap": plots.DIVERGING}
        figure.colorbar(ax.imshow(values, vmin=-limit, vmax=limit, **style), ax=ax, format="%.2g")
        ax.set(title=title, xlabel="x", ylabel="y")
    axes[0].plot(*np.transpose(marks), ".", color="black", markersize=2.5)


maps({"u from one least-squares solve": u, "u minus the reference solution": u - solution}, points)
plt.show()

# %% [markdown]
# No value of $u$ was given, nothing was trained, and the relative error is below a hundred-thousandth. Only the size of the slopes was chosen, by the residual at points that the solve has not seen.
#
# The error on the right is the difference from a second method that knows nothing of tapes: a sum of sines. Each $\sin k\pi x \, \sin l\pi y$ in $f$, divided by $(k^2 + l^2)\,\pi^2$, is one in $u$.
#
# Random features with one linear solve are the rival of every trained network on this page. Networks for such equations are called **physics-informed**.
#
# **You will be able to**
#
# - turn a differential equation into residuals, with second derivatives by nested tapes, and say when they are right for a whole batch (section 1),
# - compute the Jacobian of all residuals in one backward pass, take a Levenberg–Marquardt step with it, and tell the optimiser's error from the network's (section 2),
# - judge a solution by its residual at other points (section 3),
# - name two ways to better features than random ones (section 4),
# - find an unknown coefficient of the equation from noisy measurements, with its error bar (sections 5 and 6).

# %% [markdown]
# ## 1. The residual is the loss
#
# **Poisson's equation** on the unit square, with $u = 0$ on the boundary, is
#
# $$-\Delta u = f, \qquad \Delta u = \frac{\partial^2 u}{\partial x^2} + \frac{\partial^2 u}{\partial y^2}.$$
#
# It describes a membrane under a load $f$. Put a function $u_w$ with weights $w$ in place of $u$. What remains at a point $x_n$, a pair of coordinates, is the **residual**, and its mean square is the loss:
#
# $$r_n(w) = \Delta u_w(x_n) + f(x_n), \qquad L(w) = \frac1N \sum_n r_n(w)^2.$$
#
# The boundary needs no loss here: the factor $16\,x(1-x)\,y(1-y)$ makes every such function zero there, whatever its weights are.
#
# The derivatives are with respect to the point's coordinates, the *data*, and then with respect to the weights: three tapes, one in the other. The two inner ones need care. You know from [10](10_higher_order_gradients.ipynb) that a gradient of a gradient is a column sum of the Hessian. Try it on $u = x^2 y^2$ at $(1, 2)$, where
#
# $$H = \begin{pmatrix} 2y^2 & 4xy \\ 4xy & 2x^2 \end{pmatrix} = \begin{pmatrix} 8 & 8 \\ 8 & 2 \end{pmatrix}.$$
#
# **Predict.** Watch the whole point, take the gradient twice, add up the two elements. The Laplacian is 10. What comes out?

# %%
exercises.columns.guess(...)  # a number

# %%
point = tf.constant([[1.0, 2.0]], tf.float64)

with tf.GradientTape() as outer:
    outer.watch(point)
    with tf.GradientTape() as inner:
        inner.watch(point)
        value = point[:, 0] ** 2 * point[:, 1] ** 2
    slopes = inner.gradient(value, point)
twice = outer.gradient(slopes, point)
print("gradient of the gradient:", twice.numpy()[0], "  added up:", tf.reduce_sum(twice).numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.columns.reveal(float(tf.reduce_sum(twice)))
np.testing.assert_allclose(twice, [[16, 10]], rtol=1e-12)
np.testing.assert_allclose(laplacian(lambda x: x[:, 0] ** 2 * x[:, 1] ** 2, point), [10], rtol=1e-12)
np.testing.assert_allclose(derivatives.laplacian(lambda x: x[:, 0] ** 2 * x[:, 1] ** 2)(point), [10], rtol=1e-12)
assert error(u) < 1e-5
on_the_boundary = tf.constant([[0.0, 0.3], [1.0, 0.7], [0.2, 0.0], [0.9, 1.0]], tf.float64)
np.testing.assert_array_equal(features(on_the_boundary), 0)
coarse, fine = (reference(source, cells=cells, five_point=True) for cells in (80, 160))
by_size = [np.linalg.norm(values - solution) for values in (coarse, fine)]
assert by_size[1] < 1e-4 * np.linalg.norm(solution)
np.testing.assert_allclose(by_size[0] / by_size[1], 4, rtol=1e-2)  # the five-point formula's error falls with h²
np.testing.assert_allclose((4 * fine - coarse) / 3, solution, rtol=0, atol=1e-6)
check_f = source(grid).numpy()
assert check_f @ solution / np.linalg.norm(check_f) / np.linalg.norm(solution) < 0.99  # no multiple of each other
check_matrix, check_at = laplacians(features, points), tf.constant(points[5:6])
for check_k in (0, 7, 127):  # one feature alone, at one point alone
    check_one = laplacian(lambda x, k=check_k: features(x)[:, k], check_at)
    np.testing.assert_allclose(check_matrix[5, check_k], check_one[0], rtol=1e-9, atol=1e-9)

# %% [markdown]
# 26: all four entries, the mixed derivatives twice among them. That is why `laplacian` splits the point into its coordinates. It differentiates twice with respect to $x$ alone, then twice with respect to $y$ alone, and never meets $\partial^2 u / \partial x \partial y$. In your own code: `derivatives.laplacian(u)(x)`.
#
# A second sum is hidden in it, and that one is harmless. `values` holds $u$ at all points, and `gradient` differentiates their sum. Row $n$ of the result is still the slope at point $n$, because $u(x_n)$ depends on $x_n$ and on no other point. A layer in which the points meet would break it; [15](15_batch_jacobians.ipynb) showed one.
#
# `laplacians` uses the same fact once more. It gives each point its own copy of the weights. Then one backward pass returns a row for each point: what the weights do to *that* point's Laplacian.

# %% [markdown]
# ### Exercise: The residual of an oscillator (8 min)
#
# A hard spring obeys $u'' + u^3 = f$. `u` is a function from times, shape (n,), to positions, shape (n,); each position depends on its own time. `t` holds the times and `f` the right-hand side at each of them. Return the residual $u'' + u^3 - f$ at each time, shape (n,).


# %%
def residual_of_spring(u, t, f):
    return ...  # one number for each time


exercises.spring.check(residual_of_spring)

# %% [markdown]
# ### Exercise: May the batch be summed? (5 min)
#
# Nested `gradient` calls add up the outputs of all points before they differentiate. For which of these layers, inside $u$, is each point's second derivative still right? Answer "yes" or "no".


# %%
may = {
    "dense layer": ...,
    "batch normalisation in training": ...,
    "layer normalisation": ...,
    "softmax over the points": ...,
}

exercises.summed.check(may)

# %% [markdown]
# ## 2. A network, and two optimisers
#
# Now let the slopes inside the `tanh` be trained as well. That makes $u$ a network with one hidden layer: four weights for each unit, two slopes, a bias and a readout. The problem is not linear any more, so it needs an optimiser. First the usual one: 2500 steps of **Adam**, at a rate that begins at 0.07, chosen among six, and falls to zero along a cosine, for 16, 32 and 64 units. (32 units have 128 weights, as many as the features.)


# %%
def network(x, w):
    """u at the points x, shape (n, 2). The weights w are flat, or of shape (n, weights): a copy for each point."""
    units = w.shape[-1] // 4
    kernel, bias, readout = tf.split(w, [2 * units, units, units], axis=-1)
    h = tf.tanh(x[:, :1] * kernel[..., :units] + x[:, 1:] * kernel[..., units:] + bias)
    return edge(x) * tf.reduce_sum(h * readout, axis=-1)


def residual(w):
    return laplacian(lambda x: network(x, w), points) + source(points)


@tf.function
def loss(w):
    return tf.reduce_mean(residual(w) ** 2)


@tf.function(jit_compile=True)  # one program for the whole loop
def adam(w):
    m, v, t = tf.zeros_like(w), tf.zeros_like(w), tf.constant(0.0, tf.float64)
    for _ in tf.range(2500):
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = tf.reduce_mean(residual(w) ** 2)
        g = tape.gradient(value, w)
        t += 1.0
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        size = 0.07 * (1 + tf.cos(np.pi * t / 2500)) / 2
        w -= size * m / (1 - 0.9**t) / (tf.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w


def of(w):
    """The error of the network with these weights."""
    return error(network(grid, tf.constant(w)))


def trained(start):
    """By Adam, in one compiled program for all widths: units of zeros, which stay zero, fill each network up to 64."""
    units = len(start) // 4
    filled = tf.pad(tf.reshape(start, [4, units]), [[0, 0], [0, 64 - units]])
    return tf.reshape(tf.reshape(adam(tf.reshape(filled, [-1])), [4, 64])[:, :units], [-1])


starts, by_adam, seconds = {}, {}, {}
for units in (16, 32, 64):
    size = np.repeat([2.0, 1.0, units**-0.5], [2 * units, units, units])
    starts[units] = tf.constant(size * rng.normal(size=4 * units))
    begin = time.process_time()
    by_adam[units] = trained(starts[units])
    seconds["Adam"] = time.process_time() - begin

# %% tags=["nbval-ignore-output"]
for units, w in by_adam.items():
    print(f"{units} units, 2500 steps of Adam: loss {loss(w):.0e}, error {of(w):.0e}")

# %% [markdown]
# Some ten-thousandths. In this run that is hundreds of times the error of the features, which nobody trained. Is it the network, the points or the optimiser?
#
# The loss is a mean of squares, and [13](13_hessians_and_newton.ipynb) used that: with $J$ the Jacobian of the residuals, the Gauss–Newton matrix $J^\top J$ stands in for the Hessian. You can afford the matrix itself, and damp it (the factor 2 of the loss's derivatives cancels):
#
# $$\Big(\tfrac1N J^\top J + \mu I\Big)\, s = -\tfrac1N J^\top r.$$
#
# If the step lowers the loss, take it and make $\mu$ ten times smaller; if not, double $\mu$ and solve again. A large $\mu$ gives a short step, nearly along the negative gradient, a small one nearly a Gauss–Newton step. That is the **Levenberg–Marquardt method**.
#
# It needs $J$, a row for each point. The copies of the weights from section 1 give all rows in one backward pass; it is why `network` accepts weights of shape (n, weights).
#
# **Predict.** 100 such steps, from the same start, on the same points, with the same network. Where do these end?

# %%
exercises.swapped.guess(...)  # "about there", "three times lower" or "more than ten times lower"


# %%
@tf.function
def linearise(w):
    """The residuals, shape (N,), and their Jacobian, shape (N, weights), in one backward pass."""
    with tf.GradientTape() as tape:
        copies = tf.tile(w[None], [count, 1])
        tape.watch(copies)
        r = residual(copies)
    return r, tape.gradient(r, copies)  # row n: the gradient of r_n with respect to its own copy


def levenberg_marquardt(linearise, loss, w, steps, mu=0.1):
    """The weights after so many steps, fewer where no step lowers the loss."""
    value = loss(tf.constant(w))
    for _ in range(steps):
        r, J = (part.numpy() for part in linearise(tf.constant(w)))
        curvature, slope = J.T @ J / len(r), J.T @ r / len(r)
        while mu < 1e10:
            trial = w - np.linalg.solve(curvature + mu * np.eye(len(w)), slope)
            trial_value = loss(tf.constant(trial))
            if trial_value < value:
                break
            mu *= 2
        else:
            break
        w, value, mu = trial, trial_value, max(mu / 10, 1e-12)
    return w


by_lm = {}
for units, w in starts.items():
    linearise(w)  # traces it for this width
    begin = time.process_time()
    by_lm[units] = levenberg_marquardt(linearise, loss, w.numpy(), 100)
    seconds["Levenberg–Marquardt"] = time.process_time() - begin

# %% tags=["nbval-ignore-output"]
for units in starts:
    adams, lms = of(by_adam[units]), of(by_lm[units])
    print(f"{units} units: error {adams:.0e} by Adam, {lms:.0e} by Levenberg–Marquardt, {adams / lms:.0f} times lower")
print("processor time with 64 units:", ", ".join(f"{name} {t:.1f} s" for name, t in seconds.items()))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_ratios = {units: of(by_adam[units]) / of(by_lm[units]) for units in starts}
exercises.swapped.reveal("more than ten times lower" if check_ratios[32] > 10 else "three times lower")
assert all(3e-5 < of(w) < 5e-3 for w in by_adam.values())
assert check_ratios[16] > 0.7
assert check_ratios[32] > 4
assert check_ratios[64] > 15
assert min(of(w) for w in by_adam.values()) > 20 * error(u)  # the rival without an optimiser
check_r, check_J = linearise(starts[32])
check_rows = []
for n in (0, count - 1):
    with tf.GradientTape() as tape:
        tape.watch(starts[32])
        check_one = laplacian(lambda x: network(x, starts[32]), points[n : n + 1])[0] + source(points[n : n + 1])[0]
    check_rows.append(tape.gradient(check_one, starts[32]))
np.testing.assert_allclose(check_J.numpy()[[0, -1]], check_rows, rtol=1e-8, atol=1e-8)
check_w = tf.Variable([1.0, 3.0], dtype=tf.float64)
optimize.levenberg_marquardt(lambda: tf.stack([check_w[0] ** 2 - 2, check_w[1] - 1, 1 - check_w[1]]), wrt=check_w)
np.testing.assert_allclose(check_w, [2**0.5, 1], rtol=1e-9)

# %% [markdown]
# About thirty times lower with 32 units in this run, and eighty times with 64. So these two networks could do it all along: nearly all of Adam's error was the *optimiser's*. Adam scales each weight's slope by a size of its own. The new step divides the slope along each *direction* by its curvature, which $J$ knows, plus $\mu$. In your own code: `optimize.levenberg_marquardt(residuals, wrt=w)`.
#
# Can a rival that sees gradients alone finish what Adam began? **BFGS** estimates the whole inverse Hessian, in 300 steps.


# %% tags=["nbval-ignore-output"]
@tf.function
def value_and_gradient(w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = loss(w)
    return value, tape.gradient(value, w)


def for_scipy(w):
    value, gradient = value_and_gradient(tf.constant(w))
    return float(value), gradient.numpy()


options = {"maxiter": 300, "gtol": 0.0}
by_bfgs = scipy.optimize.minimize(for_scipy, by_adam[32].numpy(), jac=True, method="BFGS", options=options).x
print(f"32 units, Adam and then BFGS: error {of(by_bfgs):.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert of(by_bfgs) < 0.5 * of(by_adam[32])
assert 0.5 < of(by_bfgs) / of(by_lm[32]) < 60
assert min(of(by_bfgs), of(by_lm[32])) > 2 * error(u)

# %% [markdown]
# BFGS takes off most of Adam's error in this run. And neither it nor Levenberg–Marquardt gets below the features of the opening. On this square, with an equation that is linear and known, the network has been a detour.

# %% [markdown]
# ## 3. A small residual is not a small error
#
# So far 300 points asked for enough. Now take points away: the equation is asked for at 60 of the 300, and there are 128 weights. Solve for these again: features and one least-squares solve.
#
# **Predict.** There are more weights than equations, so the residual at the 60 points is zero but for rounding. How large is the mean squared residual *between* the points, beside the one at the 300 points' solution?

# %%
exercises.fewer.guess(...)  # "as small", "ten times larger" or "a hundred times larger or more"

# %% tags=["nbval-ignore-output"]
few = points[:60]
c_few = np.linalg.lstsq(laplacians(features, few), -source(few))[0]
u_few = (features(grid) @ c_few[:, None])[:, 0]
rows = {"60 points": (few, c_few, u_few), f"{count} points": (points, c, u)}
c_forty = np.append(np.linalg.lstsq(laplacians(features, few)[:, :40], -source(few))[0], np.zeros(88))
forty = {"60 points, 40 features": (few, c_forty, (features(grid) @ c_forty[:, None])[:, 0])}
losses = {}
for name, (at, weights, values) in (rows | forty).items():
    losses[name] = [np.mean((laplacians(features, x) @ weights + source(x)) ** 2) for x in (at, between)]
    print("{:22}: loss {:.0e}, at 2000 other points {:.0e}".format(name, *losses[name]), f"error {error(values):.0e}")

# %% alt="Two heat maps. Two square maps of the error of u. Left, with 60 points, shown as black dots: large patches of one sign. Right, with all the points: a scale that is about a hundred times finer." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the errors with 60 points and with all
maps({f"{name}: error of u": values - solution for name, (_, _, values) in rows.items()}, few)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
(check_few, check_between), (check_all, check_all_between), (_, check_forty_between) = losses.values()
check_ratio = check_between / check_all_between
exercises.fewer.reveal(
    "as small" if check_ratio < 3 else "ten times larger" if check_ratio < 30 else "a hundred times larger or more"
)
assert check_few < 1e-12 < check_all
assert check_ratio > 100
assert check_forty_between > 100 * check_all_between  # fewer weights are no cure
assert error(forty["60 points, 40 features"][2]) > 50 * error(u)
assert 50 * error(u) < error(u_few) < 0.02

# %% [markdown]
# About a thousand times larger in this run. Between the 60 points nothing holds the function but the solver's choice of the smallest weights. The loss says nothing of it. Fewer weights are no cure (the third row): points are missing.
#
# So judge by the residual at points that the solve has not seen, as you judge a classifier by test data. Where a solution can be had in another way, judge by the *error*: the residual is the error's Laplacian, and weighs fast oscillations more than slow ones.

# %% [markdown]
# ### Exercise: The step in the space of residuals (12 min)
#
# *This one needs an idea that the text does not spell out.*
#
# With few points and many weights, $J^\top J$ is a larger matrix than $J J^\top$. `J`, `r` and `mu` are tensors: `J` has shape (N, P), `r` shape (N,), and `mu` is a positive scalar. Return the step $s$ that solves
#
# $$(J^\top J + \mu I)\, s = -J^\top r,$$
#
# of shape (P,), and solve only a system of $N$ unknowns.


# %%
def step_from_residuals(J, r, mu):
    return ...  # shape (P,)


exercises.dual.check(step_from_residuals)

# %% [markdown]
# ## 4. Features that must be found
#
# In the plane 128 random slopes were enough. Now go to six dimensions. Let $u$ be a wave across the unit ball, along *one* direction $a$ that nobody tells you, and zero on the sphere:
#
# $$u(x) = \big(1 - \lVert x \rVert^2\big)\, \sin\big(3\, a^\top x + \tfrac12\big), \qquad -\Delta u = f.$$
#
# $f$ is computed from this $u$, and then $u$ is put away to judge by. The equation is asked for at 1000 points. There are three ways to slopes:
#
# - **Drawn at random**, 500 or 1500 of size 0.3. Then one solve.
# - **Trained**: a network with 16 units, 30 steps of Levenberg–Marquardt.
# - **Drawn, and stretched by the derivative of $f$.** A tape has $\nabla f$ at each point. The matrix $M = \tfrac1N \sum_n \nabla f(x_n)\, \nabla f(x_n)^\top$ has large eigenvalues along the directions in which $f$ varies most, its **active subspace**. Multiply 500 random slopes by $M$, divided by its largest eigenvalue. Then one solve.


# %%
def in_the_ball(n):
    x = rng.normal(size=(n, 6))
    return tf.constant(x / np.linalg.norm(x, axis=1, keepdims=True) * rng.uniform(size=(n, 1)) ** (1 / 6))


direction = rng.normal(size=(6, 1))
direction /= np.linalg.norm(direction)


def inside(x):
    return 1 - tf.reduce_sum(x**2, axis=1)  # zero on the sphere


def wave(x):
    return inside(x) * tf.sin(3 * (x @ direction)[:, 0] + 0.5)


x_six, test_six = in_the_ball(1000), in_the_ball(2000)
truth = wave(test_six)
with tf.GradientTape() as tape:
    tape.watch(x_six)
    f_six = -laplacian(wave, x_six)
slopes_of_f = tape.gradient(f_six, x_six).numpy()


def by_one_solve(kernel, bias):
    """The error with the features of these slopes and biases, whose weights come from one least-squares solve."""

    def features(x):
        return inside(x)[:, None] * tf.tanh(x @ kernel + bias)

    c = np.linalg.lstsq(laplacians(features, x_six), -f_six)[0]
    return error((features(test_six) @ c[:, None])[:, 0], truth)


by_features = {
    number: by_one_solve(0.3 * rng.normal(size=(6, number)), rng.normal(size=number)) for number in (500, 1500)
}


# %%
def network_six(x, w):
    """16 units, 128 weights; w is flat, or has a row for each point."""
    kernel, bias, readout = tf.split(w, [96, 16, 16], axis=-1)
    kernel = tf.reshape(kernel, [-1, 6, 16])
    h = tf.tanh(tf.reduce_sum(x[:, :, None] * kernel, axis=1) + bias)
    return inside(x) * tf.reduce_sum(h * readout, axis=-1)


def residual_six(w):
    return laplacian(lambda x: network_six(x, w), x_six) + f_six


@tf.function(jit_compile=True)
def linearise_six(w):
    with tf.GradientTape() as tape:
        copies = tf.tile(w[None], [1000, 1])
        tape.watch(copies)
        r = residual_six(copies)
    return r, tape.gradient(r, copies)


def loss_six(w):
    return tf.reduce_mean(linearise_six(w)[0] ** 2)  # compiled once for both


start_six = rng.normal(size=128) * np.repeat([1.0, 1.0, 0.25], [96, 16, 16])
w_six = levenberg_marquardt(linearise_six, loss_six, start_six, 30)
error_six = error(network_six(test_six, tf.constant(w_six)), truth)
M = slopes_of_f.T @ slopes_of_f
by_stretched = by_one_solve(M @ rng.normal(size=(6, 500)) / np.linalg.norm(M, 2), rng.normal(size=500))
by_trained, by_untrained = (by_one_solve(w[:96].reshape(6, 16), w[96:112]) for w in (w_six, start_six))

# %% tags=["nbval-ignore-output"]
for number, of_number in by_features.items():
    print(f"{number:4} random features, one solve:    error {of_number:.0e}")
print(f"  16 trained units, 30 steps:       error {error_six:.0e}")
print(
    f"     their readouts solved again:   error {by_trained:.0e}, with the slopes before the training {by_untrained:.0e}"
)
print(f" 500 stretched features, one solve: error {by_stretched:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert min(by_features.values()) > 1e-3
assert by_trained < 0.2 * min(by_features.values())
assert by_untrained > 0.1
assert by_stretched < 0.05 * by_trained
assert np.linalg.norm(M @ direction) > 0.99 * np.linalg.norm(M, 2)  # it has found the direction
check_line = np.linalg.lstsq(np.column_stack([x_six, np.ones(1000)]), f_six)[0][:6]
assert np.abs(check_line @ direction[:, 0]) > 0.95 * np.linalg.norm(check_line)  # and so has a regression

# %% [markdown]
# In six dimensions random slopes point along $a$ only by chance, and in this run fifteen hundred of them leave an error of 5e-3. Training pays: keep the 16 trained slopes and biases, solve for the readouts alone as in the opening, and the error is 3e-5. With the 16 from before the training it is 0.5. That is what the hidden layer adds here: it finds features.
#
# The matrix $M$ has found $a$, too, as has, less sharply, a linear regression of $f$, without a derivative (the check). 500 features stretched along $M$, with nothing trained, end at 4e-8.
#
# Both use that this $u$ varies along a single direction, but for the factor that makes it zero on the sphere.

# %% [markdown]
# ## 5. An unknown coefficient
#
# The network's other use is an equation with an **unknown coefficient** that measurements must determine. Let the membrane of section 1 lie on a spongy bed, which pushes back in proportion to $u$ with an unknown stiffness $\kappa$:
#
# $$-\Delta u + \kappa u = f.$$
#
# At 40 places $u$ is measured, with a noise of known standard deviation $\sigma$. The parameters are the weights *and* $\kappa$. The residuals are of two kinds, and each is divided by what it may be: $(\Delta u_w(x_n) - \kappa u_w(x_n) + f(x_n))/\tau$ at the points, and $(u_w(z_m) - y_m)/\sigma$ at the places $z_m$. Here $\sigma$ is a property of the instrument, and $\tau$ is a choice: how far the equation may be missed. Choose it well above what the network itself leaves of the equation, or $\kappa$ pays for the network's error.
#
# [Fit and error bars](19_fit_and_error_bars.ipynb) has the error bars: the covariance of all parameters is $(J^\top J)^{-1}$, with $J$ the Jacobian of these residuals. For one parameter there is a way without that inverse. Split $J$ into the weights' columns $W$ and the column $k$ of $\kappa$. What a change of $\kappa$ does to the residuals can be undone in part by a change of the weights; the rest is $k$ minus its projection on $W$'s columns, and
#
# $$\text{standard error of } \kappa = \frac{1}{\min_s \lVert k - W s \rVert}.$$

# %%
kappa, tau = 30.0, 0.1
inner_places = np.flatnonzero(np.all((grid > 0) & (grid < 1), axis=1))
places = rng.choice(inner_places, size=sensors, replace=False)
z, true_values = tf.gather(grid, places), reference(source, kappa)[places]
sigma = 0.02 * np.abs(reference(source, kappa)).max()
measured = true_values + sigma * rng.normal(size=(draws, sensors))  # the same places, other noise


def joint(p, y, tau):
    """Both kinds of residuals, shape (N + M,). Row n of p holds the weights and κ for residual n."""
    w, k = p[:, :-1], p[:, -1]
    equation = residual(w[:count]) - k[:count] * network(points, w[:count])
    return tf.concat([equation / tau, (network(z, w[count:]) - y) / sigma], axis=0)


@tf.function(jit_compile=True)
def linearise_joint(p, y, tau):
    with tf.GradientTape() as tape:
        copies = tf.tile(p[None], [count + sensors, 1])
        tape.watch(copies)
        r = joint(copies, y, tau)
    return r, tape.gradient(r, copies)


def fit(y, tau, p, steps, mu):
    """The parameters (weights, κ) that fit the equation and the measurements y, and κ's standard error."""
    y, tau = tf.constant(y), tf.constant(tau, tf.float64)

    def linear(p):
        return linearise_joint(p, y, tau)

    p = levenberg_marquardt(linear, lambda p: tf.reduce_mean(linear(p)[0] ** 2), p, steps, mu)
    W, k = np.split(linear(tf.constant(p))[1].numpy(), [-1], axis=1)
    return p, 1 / np.linalg.norm(k - W @ np.linalg.lstsq(W, k)[0])


first_fit, bar = fit(measured[0], tau, np.append(by_lm[32], 0.0), 40, mu=0.1)  # starts from κ = 0
fits = [fit(y, tau, first_fit, 3, mu=1e-6) for y in measured]
_, loose_bar = fit(measured[0], 100 * tau, first_fit, 20, mu=0.1)
found = np.array([p[-1] for p, _ in fits])
bars = np.array([bar for _, bar in fits])

# %% tags=["nbval-ignore-output"]
print(f"κ = {first_fit[-1]:.2f} ± {bar:.2f}, the true value is {kappa:g}")
print(f"{draws} draws of the noise: κ spreads by {found.std(ddof=1):.2f}, mean error bar {bars.mean():.2f}")
print(f"within ±1.96 standard errors of the true value: {np.sum(np.abs(found - kappa) < 1.96 * bars)} of {draws}")
print(f"an equation that may be missed by a hundred times as much: ± {loose_bar:.2f}")

# %% alt="Scatter plot. The stiffness that is found for 25 draws of the noise, each with a bar of 1.96 standard errors to both sides, around a dashed line at the true value, 30. The values scatter on both sides of the line, and nearly all of the bars cross it." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the coefficient and its error bar, for each draw of the noise
_, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.errorbar(np.arange(1, draws + 1), found, 1.96 * bars, fmt="o", color=plots.BLUE, capsize=3, markersize=4)
ax.axhline(kappa, color=plots.GREY, linestyle="--")
ax.set(title="Most of the bars cross the true value", xlabel="draw of the noise")
ax.set(ylabel="stiffness κ, ±1.96 standard errors")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_inside = np.sum(np.abs(found - kappa) < 1.96 * bars)
assert check_inside >= 0.8 * draws  # fewer have a chance of less than 1 in 500 where 95 % is right
assert 0.6 < found.std(ddof=1) / bars.mean() < 1.5
assert loose_bar > 3 * bar

# %% [markdown]
# The error bar is one or two hundredths of $\kappa$, and the spread over the draws of the noise is of its size: the equation leaves the 128 weights little freedom.
#
# Let the equation be missed by a hundred times as much, and the weights fit the noise in its place; the error bar says so, and grows several times.
#
# Two rivals get the same measurements. The first *smooths first*: it fits the measurements alone, then chooses the $\kappa$ that suits the equation best, with the features or with ten slow sines, $\sin i\pi x \, \sin j\pi y$ with $i + j \le 5$. The second solves both at once, as the network did, with the features of the opening: given $\kappa$, their weights are one linear solve, and $\kappa$ moves by what that solve leaves over, divided by the same column that gave the error bar.

# %%
A, B, D = laplacians(features, points), features(points).numpy(), features(z).numpy()
f = source(points).numpy()


i, j = np.array([(i, j) for i in range(1, 5) for j in range(1, 6 - i)]).T
S, S_places = (np.sin(np.pi * i * x[:, :1]) * np.sin(np.pi * j * x[:, 1:]) for x in (points.numpy(), z.numpy()))


def smooth_first(y, A, B, D):
    """κ from functions whose Laplacians and values at the points are A and B, and whose values at the places are D."""
    c = np.linalg.lstsq(D, y)[0]
    return (B @ c) @ (A @ c + f) / np.sum((B @ c) ** 2)


def with_features(y, k=0.0):
    """κ and its standard error, from the features' weights and κ at once."""
    for _ in range(8):
        W, target = np.vstack([(A - k * B) / tau, D / sigma]), np.append(-f / tau, y / sigma)
        c = np.linalg.lstsq(W, target)[0]
        column = np.append(-B @ c / tau, np.zeros(sensors))
        column -= W @ np.linalg.lstsq(W, column)[0]  # what the weights cannot undo
        k -= column @ (W @ c - target) / np.sum(column**2)
    return k, 1 / np.linalg.norm(column)


smoothed = np.array([smooth_first(y, A, B, D) for y in measured])
by_ten_sines = np.array([smooth_first(y, -(np.pi**2) * (i**2 + j**2) * S, S, S_places) for y in measured])
by_features_too, bars_too = np.transpose([with_features(y) for y in measured])

# %% tags=["nbval-ignore-output"]
print(f"smooth first, with the features: κ is {np.median(smoothed):.0f} in the median of {draws} draws")
print(f"smooth first, with ten sines:    κ is {np.median(by_ten_sines):.1f},", end=" ")
print(f"off by {np.sqrt(np.mean((by_ten_sines - kappa) ** 2)) / bars.mean():.1f} error bars in the root mean square")
print(f"features and κ:      {by_features_too[0]:.3f} ± {bars_too[0]:.3f} for the first draw")
print(f"the network and κ:   {found[0]:.3f} ± {bars[0]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(bars_too, bars, rtol=0.02)
assert np.abs(found - by_features_too).max() < 0.1 * bars.mean()
assert np.median(np.abs(smoothed - kappa)) > 5 * bars.mean()
assert 0.5 < np.sqrt(np.mean((by_ten_sines - kappa) ** 2)) / bars.mean() < 4

# %% [markdown]
# To smooth first with the features, unpenalised, fails: they follow the noise of 40 values, and two derivatives of that are mostly noise. Ten sines follow it less, and are off by about one error bar in this run. To fit both at once works with features as with the network, to a tenth of an error bar. So neither the network nor its optimiser is what finds $\kappa$ here. The *residuals* of equation and measurements in one vector, each over what it may be, say what the data leave open.

# %% [markdown]
# ## 6. Check it independently
#
# One more rival knows nothing of features or tapes: the sum of sines from the opening, with $\kappa$ as its *only* unknown, fitted to the same measurements. It has no $\tau$, and its error bar comes from a Jacobian with one column.


# %% tags=["nbval-ignore-output"]
def sines(_, kappa):
    return reference(source, kappa)[places]


one_unknown = [scipy.optimize.curve_fit(sines, None, y, [10.0], np.full(sensors, sigma), True) for y in measured]
by_sines = np.array([best_kappa[0] for best_kappa, _ in one_unknown])
bars_by_sines = np.array([np.sqrt(covariance[0, 0]) for _, covariance in one_unknown])
print(f"first draw: κ = {by_sines[0]:.3f} ± {bars_by_sines[0]:.3f}, with the network {found[0]:.3f} ± {bars[0]:.3f}")
print(f"largest difference in {draws} draws, in error bars: {np.abs(found - by_sines).max() / bars.mean():.1g}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(bars, bars_by_sines, rtol=0.02)
assert np.abs(found - by_sines).max() < 0.1 * bars.mean()

# %% [markdown]
# The same values, to a tenth of an error bar or better, and the same error bars, to two hundredths.

# %% [markdown]
# ## Recap
#
# - A differential equation becomes residuals at points. Differentiate with respect to one coordinate at a time, and let the sum over the batch do the rest where points do not depend on each other (section 1).
# - A residual depends on its own point and the weights. With a copy of the weights for each point, one backward pass gives the whole Jacobian. With it a Levenberg–Marquardt step is one linear system away, and most of Adam's error went; random features and one linear solve did better still (section 2).
# - A residual of zero at the points promises nothing between them. Look at other points, and at the error where you can (section 3).
# - Along one unknown direction in six dimensions 16 trained units beat fifteen hundred random features. The slopes of the right-hand side know the direction, too, and one solve with them beats the training (section 4).
# - An unknown coefficient is one more parameter, and the measurements are more residuals. The Jacobian gives its error bar: what remains of its column after the weights' columns (sections 5 and 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a network where a linear solve would do | training, and, for Poisson's equation on a square, a larger error | try random features and one `lstsq` first |
# | a gradient of a gradient taken for a Laplacian | mixed derivatives in it: for $x^2y^2$ at (1, 2), 26 in place of 10 | one coordinate at a time |
# | points that depend on each other | wrong second derivatives, without a warning | nothing inside $u$ that mixes the points, as batch normalisation does in training |
# | ReLU in the network | a Laplacian without the network's own curvature: ReLU's second derivative is zero | `tanh`, or another smooth activation |
# | few points | a loss near zero, and an error that it does not show | more points; the residual at other points |
# | a flexible fit to noisy values, differentiated twice | a coefficient that is far off | a stiffer fit, or both at once |
# | an equation held too loosely beside measurements | the weights fit the noise; a large error bar | a smaller $\tau$, until the error bar settles, but well above the residual that the network leaves: far below it the coefficient is wrong, and its error bar small |
#
# **Further reading**
#
# - I. E. Lagaris, A. Likas, D. I. Fotiadis (1998), ["Artificial neural networks for solving ordinary and partial differential equations"](https://doi.org/10.1109/72.712178).
# - M. Raissi, P. Perdikaris, G. E. Karniadakis (2019), ["Physics-informed neural networks"](https://doi.org/10.1016/j.jcp.2018.10.045).
# - V. Dwivedi, B. Srinivasan (2019), ["Physics informed extreme learning machine (PIELM)"](https://arxiv.org/abs/1907.03507): random features and one linear solve.
# - P. G. Constantine, E. Dow, Q. Wang (2014), ["Active subspace methods in theory and practice"](https://arxiv.org/abs/1304.2070).
# - A. Krishnapriyan, A. Gholami, S. Zhe, R. Kirby, M. W. Mahoney (2021), ["Characterizing possible failure modes in physics-informed neural networks"](https://arxiv.org/abs/2109.01050).
# - J. Müller, M. Zeinhofer (2023), ["Achieving high accuracy with PINNs via energy natural gradient descent"](https://arxiv.org/abs/2302.13163).
# - P. Rathore, W. Lei, Z. Frangella, L. Lu, M. Udell (2024), ["Challenges in training PINNs: a loss landscape perspective"](https://arxiv.org/abs/2402.01868).
# - D. W. Marquardt (1963), ["An algorithm for least-squares estimation of nonlinear parameters"](https://doi.org/10.1137/0111030); K. Levenberg had it in [1944](https://doi.org/10.1090/qam/10666).
#
# **Read next:** [14 Without the matrix](14_without_the_matrix.ipynb) does the same with products where $J^\top J$ is too large;
# [16 What derivatives cost](16_what_derivatives_cost.ipynb) measures what each of these derivatives costs.
