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
# This network is shown no value of the function that it learns. It is told an equation, and its loss is how far it is from satisfying it.
# **Can a network be fitted to an equation alone, and how much of its error is the optimiser's?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/24_an_equation_and_no_data.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb), [19 Fit and error bars](19_fit_and_error_bars.ipynb) · **Minutes:** 25 to read, 3 more to go further, 25 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
hidden = 32  # units of the network, which has four weights for each
count = 300  # points at which the equation is asked for
few = 60  # the same in section 5: fewer than the weights
lm_steps = 120  # of Levenberg–Marquardt
adam_steps = 6000  # of Adam, in its longer run
bfgs_steps = 600  # of L-BFGS and of BFGS
sensors = 40  # measurements in section 6
draws = 25  # of their noise

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import time

from tapelab import derivatives, plots, runtime
from tapelab.exercises.sheets import an_equation_and_no_data as exercises

import matplotlib.pyplot as plt
import numpy as np
import scipy.fft  # comes with scikit-learn
import scipy.optimize
import tensorflow as tf
from threadpoolctl import threadpool_limits  # comes with scikit-learn

runtime.start(seed)

# %%
rng = np.random.default_rng(seed)
points = tf.constant(rng.uniform(size=(count, 2)))  # in the unit square
start = rng.normal(size=4 * hidden) * np.repeat([2.0, 1.0, hidden**-0.5], [2 * hidden, hidden, hidden])
start = tf.constant(start)


def network(x, w):
    """u at the points x, shape (n, 2). The weights w are flat, or of shape (n, weights): a copy for each point."""
    kernel, bias, readout = tf.split(w, [2 * hidden, hidden, hidden], axis=-1)
    h = tf.tanh(x[:, :1] * kernel[..., :hidden] + x[:, 1:] * kernel[..., hidden:] + bias)
    edge = 16 * x[:, 0] * (1 - x[:, 0]) * x[:, 1] * (1 - x[:, 1])  # zero on the boundary
    return edge * tf.reduce_sum(h * readout, axis=-1)


def source(x):
    """The right-hand side of the equation, f, at the points x."""
    return 800 * x[:, 0] * (1 - x[:, 0]) * x[:, 1] * (1 - x[:, 1]) * (x[:, 0] + 2 * x[:, 1] - 1)


print("weights:", start.shape[0], "  points:", count, "  known values of u: 0")


# %%
def laplacian_by_tapes(x, w):
    """The sum of the second derivatives of u with respect to both coordinates, at each point."""
    coordinates = [x[:, :1], x[:, 1:]]
    total = 0.0
    for coordinate in coordinates:
        with tf.GradientTape() as outer:
            outer.watch(coordinate)
            with tf.GradientTape() as inner:
                inner.watch(coordinate)
                u = network(tf.concat(coordinates, axis=1), w)
            slope = inner.gradient(u, coordinate)
        total += outer.gradient(slope, coordinate)[:, 0]
    return total


@tf.function(jit_compile=True)  # one program for the whole loop
def adam(laplacian, state, done, planned, rate):
    """Another 250 steps of Adam on the mean squared residual; the rate falls to zero along a cosine."""
    w, m, v = state
    for step in tf.range(250):
        with tf.GradientTape() as tape:
            tape.watch(w)
            residual = laplacian(points, w) + source(points)
            loss = tf.reduce_mean(residual**2)
        g = tape.gradient(loss, w)
        t = done + tf.cast(step + 1, tf.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        size = rate * (1 + tf.cos(np.pi * t / planned)) / 2
        w -= size * m / (1 - 0.9**t) / (tf.sqrt(v / (1 - 0.999**t)) + 1e-8)
    return w, m, v


def run_adam(laplacian, steps, rate):
    """Rows of (processor seconds, weights), one for each 250 steps."""
    numbers = [tf.constant(number, tf.float64) for number in (*range(0, steps, 250), steps, rate)]
    state, (*starts, planned, rate) = (start, tf.zeros_like(start), tf.zeros_like(start)), numbers
    adam(laplacian, state, starts[0], planned, rate)  # compiles
    rows, begin = [(0.0, start)], time.process_time()
    for done in starts:
        state = adam(laplacian, state, done, planned, rate)
        rows.append((time.process_time() - begin, state[0]))
    return rows


by_adam = run_adam(laplacian_by_tapes, 1500, 0.05)


# %% tags=["nbval-ignore-output"]
def square(cells):
    """The points of a grid on the unit square, its boundary included, shape ((cells + 1)², 2)."""
    axis = np.linspace(0, 1, cells + 1)
    return np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)


def reference(f, kappa=0.0, cells=160, five_point=False):
    """The solution of -Δu + κu = f by a sine transform, or by finite differences, at the points of the 40 × 40 grid."""
    load = np.reshape(f(square(cells)), (cells + 1, cells + 1))[1:-1, 1:-1]
    waves = np.pi * np.arange(1, cells)
    in_one = 2 * cells**2 * (1 - np.cos(waves / cells)) if five_point else waves**2  # -d²/dx² of sin kπx, over sin kπx
    u = scipy.fft.idstn(scipy.fft.dstn(load, type=1) / (in_one[:, None] + in_one + kappa), type=1)
    return np.pad(u, 1)[:: cells // 40, :: cells // 40].ravel()


grid = square(40)
solution = reference(source)


def error(w):
    """The relative error of u on a grid between the points: root mean square over root mean square."""
    return np.linalg.norm(network(tf.constant(grid), w) - solution) / np.linalg.norm(solution)


print(f"error before training {error(start):.1g}, after 1500 steps of Adam {error(by_adam[-1][1]):.1g}")

# %% alt="Two heat maps. Two square maps. Left, the network's u: a wide hill with its top above and to the right of the middle, zero on the boundary, with 300 black dots scattered at random. Right, its difference from the reference solution, on a scale some hundred times finer or more: irregular patches of both signs." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what the equation taught the network


def maps(panels, marks=None):
    """Square maps of values on the grid, each with a scale of its own; marks are points to show in the first."""
    figure, axes = plt.subplots(1, len(panels), figsize=(4.4 * len(panels), 3.8), layout="constrained")
    for ax, (title, values) in zip(axes, panels.items(), strict=True):
        values = np.reshape(values, (41, 41)).T
        limit = np.abs(values).max()
        style = {"extent": (0, 1, 0, 1), "origin": "lower", "cmap": plots.DIVERGING}
        figure.colorbar(ax.imshow(values, vmin=-limit, vmax=limit, **style), ax=ax, format="%.2g")
        ax.set(title=title, xlabel="x", ylabel="y")
    if marks is not None:
        axes[0].plot(*np.transpose(marks), ".", color="black", markersize=2.5)


u = network(tf.constant(grid), by_adam[-1][1]).numpy()
maps({"u after 1500 steps of Adam": u, "u minus the reference solution": u - solution}, points)
plt.show()

# %% [markdown]
# The network on the left was never told a value. At the 300 dots it was asked for one thing, $-\Delta u = f$: the sum of its two second derivatives, $\Delta u$, shall be what the equation says. No formula for $u$ is on this page: $f$ is a polynomial that is zero on the boundary, and
# $u$ is no polynomial, nor $f$ times a number. The error on the right, about a thousandth of $u$, is the difference from a second method that knows nothing of networks or tapes: a sum of sines. Each $\sin k\pi x \, \sin l\pi y$ in $f$, divided by $(k^2 + l^2)\,\pi^2$, is one in $u$. On a square that takes milliseconds.
#
# Is that all that 128 weights and 300 points can do? This page changes neither of them.
#
# **You will be able to**
#
# - turn a differential equation into a loss, with second derivatives by nested tapes, and say when they are right for a whole batch (section 1),
# - compute the Jacobian of all residuals in one backward pass, and take a Levenberg–Marquardt step with it (section 3),
# - tell the optimiser's error from the network's (sections 2 and 3),
# - judge a solution by its error and not by its residual (section 5),
# - find an unknown coefficient of the equation from noisy measurements, with its error bar (sections 6 and 7).

# %% [markdown]
# ## 1. The residual is the loss
#
# **Poisson's equation** on the unit square, with $u = 0$ on the boundary, is
#
# $$-\Delta u = f, \qquad \Delta u = \frac{\partial^2 u}{\partial x^2} + \frac{\partial^2 u}{\partial y^2}.$$
#
# It describes a membrane under a load $f$. Put a network $u_w$ in place of $u$. What remains at a point $x_n$, a pair of coordinates, is the **residual**, and its mean square is the loss:
#
# $$r_n(w) = \Delta u_w(x_n) + f(x_n), \qquad L(w) = \frac1N \sum_n r_n(w)^2.$$
#
# That is a **physics-informed neural network**. The boundary needs no loss here: the factor $16\,x(1-x)\,y(1-y)$ makes every such network zero there, whatever its weights are.
#
# The derivatives are with respect to the point's coordinates, the *data*, and then with respect to $w$: three tapes, one in the other. The two inner ones need care. You know from [10](10_higher_order_gradients.ipynb) that a gradient of a gradient is a column sum of the Hessian. Try it on $u = x^2 y^2$ at $(1, 2)$, where
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
        u = point[:, 0] ** 2 * point[:, 1] ** 2
    slopes = inner.gradient(u, point)
twice = outer.gradient(slopes, point)
print("gradient of the gradient:", twice.numpy()[0], "  added up:", tf.reduce_sum(twice).numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.columns.reveal(float(tf.reduce_sum(twice)))
np.testing.assert_allclose(twice, [[16, 10]], rtol=1e-12)
np.testing.assert_array_equal(
    network(tf.constant([[0.0, 0.3], [1.0, 0.7], [0.2, 0.0], [0.9, 1.0]], tf.float64), start), 0
)
coarse, fine = (reference(source, cells=cells, five_point=True) for cells in (80, 160))
by_size = [np.linalg.norm(values - solution) for values in (coarse, fine)]
assert by_size[1] < 1e-4 * np.linalg.norm(solution)
np.testing.assert_allclose(by_size[0] / by_size[1], 4, rtol=1e-2)  # the five-point formula's error falls with h²
np.testing.assert_allclose((4 * fine - coarse) / 3, solution, rtol=0, atol=1e-6)
f_on_grid = np.asarray(source(grid))
along = f_on_grid @ solution / np.linalg.norm(f_on_grid) / np.linalg.norm(solution)
assert along < 0.99  # no multiple of each other
for few_rows in (grid[:5], grid[600:605]):  # the batch's rows do not depend on each other
    alone = [laplacian_by_tapes(tf.constant(row[None]), start)[0] for row in few_rows]
    np.testing.assert_allclose(laplacian_by_tapes(tf.constant(few_rows), start), alone, rtol=1e-10)

# %% [markdown]
# 26: all four entries, the mixed derivatives twice among them. That is why `laplacian_by_tapes` splits the point into its coordinates. It differentiates twice with respect to $x$ alone, then twice with respect to $y$ alone, and never meets $\partial^2 u / \partial x \partial y$.
#
# A second sum is hidden in it, and that one is harmless. `u` holds the values at all 300 points, and `gradient` differentiates their sum. Row $n$ of the result is still the slope at point $n$, because $u(x_n)$ depends on $x_n$ and on no other point. A layer in which the points meet would break it; [15](15_batch_jacobians.ipynb) showed one.

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
# ## 2. First-order methods at their best
#
# The opening used Adam with a rate of 0.05 that falls to zero. Before anything is blamed, try larger rates and a smaller one, and four times as many steps with two of them. And there is **L-BFGS**, which [14](14_without_the_matrix.ipynb) recommends where each gradient is that of
# the whole data set; those who train such networks often let it finish the work. It, too, sees nothing but losses and gradients. It gets 600 steps, once with a memory of 10 steps and once of 100.
#
# The natural rival at 128 weights is **BFGS** with a dense matrix: from gradients alone it builds an estimate of the whole inverse Hessian, $128 \times 128$. It gets 600 steps too. And both finish what 1500 steps of Adam have begun. From here on the operator is `derivatives.laplacian`: a product with the Hessian for each direction.


# %%
# With respect to the first argument, at each point; a tape can differentiate it with respect to the weights.
# AutoGraph has nothing to rewrite in it, and would take its time.
laplacian = tf.function(derivatives.laplacian(network), autograph=False)


def residual(w):
    return laplacian(points, w) + source(points)


def loss(w):
    return tf.reduce_mean(residual(w) ** 2)


# %%
runs = {f"Adam, 1500 steps, rate {rate}": run_adam(laplacian, 1500, rate) for rate in (0.2, 0.1, 0.05, 0.02)}
runs |= {f"Adam, {adam_steps} steps, rate {rate}": run_adam(laplacian, adam_steps, rate) for rate in (0.1, 0.05)}


def lowest_error(beginning):
    """The name of the run that ends with the lowest error."""
    return min((name for name in runs if name.startswith(beginning)), key=lambda name: error(runs[name][-1][1]))


short, long = lowest_error("Adam, 1500 steps"), lowest_error(f"Adam, {adam_steps} steps")


# %%
@tf.function
def value_and_gradient(w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = loss(w)
    return value, tape.gradient(value, w)


def for_scipy(w):
    value, gradient = value_and_gradient(tf.constant(w))
    return float(value), gradient.numpy()


limited = [f"L-BFGS, {bfgs_steps} steps, memory {memory}" for memory in (10, 100)]
dense = f"BFGS, {bfgs_steps} steps"
finished = [f"Adam, then L-BFGS, {bfgs_steps} steps", f"Adam, then BFGS, {bfgs_steps} steps"]
to_the_end = {"maxiter": bfgs_steps, "gtol": 0.0}
short_memory = to_the_end | {"ftol": 0.0, "maxfun": 10**6, "maxcor": 10}
long_memory = short_memory | {"maxcor": 100}
at_once, after_adam = (0.0, start), runs["Adam, 1500 steps, rate 0.05"][-1]  # processor seconds, weights
rivals = {
    limited[0]: ("L-BFGS-B", short_memory, at_once),
    limited[1]: ("L-BFGS-B", long_memory, at_once),
    dense: ("BFGS", to_the_end, at_once),
    finished[0]: ("L-BFGS-B", long_memory, after_adam),
    finished[1]: ("BFGS", to_the_end, after_adam),
}

for_scipy(start)  # compiles
with threadpool_limits(1):  # SciPy's vectors are short, and threads would fight with TensorFlow's
    for name, (method, options, (spent, begin)) in rivals.items():
        rows = [(time.process_time(), begin.numpy())]
        scipy.optimize.minimize(
            for_scipy,
            begin.numpy(),
            jac=True,
            method=method,
            options=options,
            callback=lambda at, rows=rows: rows.append((time.process_time(), at.copy())),
        )
        runs[name] = [(spent + seconds - rows[0][0], tf.constant(at)) for seconds, at in rows[::25] + rows[-1:]]

# %% tags=["nbval-ignore-output"]
for name, run in runs.items():
    seconds, at = run[-1]
    print(f"{name:31} {seconds:5.2f} s of processor time   loss {loss(at):.0e}   error {error(at):.1e}")

# %% [markdown]
# Four times the steps, and Adam's error falls by a factor of one to five; with `seed = 17` it does not fall (factors here and below are those of the seeds 0 to 9, rounded). With its usual memory, L-BFGS gets about as far in 600 steps, or up to six times less far; with the long one its error is two to four times lower. None of them has stopped: with four times the steps, L-BFGS with the long memory ended two to five times lower again (tried).
#
# Finishing what Adam has begun helps both with most seeds: L-BFGS ends one to three times lower than from the start, and BFGS up to five times. It then ends two to eleven times lower than anything without a matrix. It is priced by that matrix: a step costs as many multiplications as the matrix has elements, times a few, which is little for 128 weights and impossible for a million.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(laplacian(points, start), laplacian_by_tapes(points, start), rtol=0, atol=1e-9)
polynomial = derivatives.laplacian(lambda x: x[:, 0] ** 2 * x[:, 1] ** 2)
np.testing.assert_allclose(polynomial(point), [10], rtol=1e-12)
ends = {name: error(run[-1][1]) for name, run in runs.items()}
assert 2e-4 < ends[short] < 3e-3
assert 0.9 < ends[short] / ends[long] < 8
ten, hundred = (ends[name] for name in limited)
assert 0.5 < ten / ends[long] < 8
assert 1.3 < ten / hundred < 5
without_matrix = [end for name, end in ends.items() if name not in (dense, finished[1])]
assert 1.7 < min(without_matrix) / ends[finished[1]] < 13
assert (
    0.7 < ends[dense] / ends[finished[1]] < 8
)  # it helps with most seeds; rounding moves it, 0.89 with TensorFlow 2.20
assert 0.8 < hundred / ends[finished[0]] < 4
assert abs(np.log(error(by_adam[-1][1]) / 1e-3)) < np.log(5)

# %% [markdown]
# ## 3. One Levenberg–Marquardt step
#
# The loss is a mean of squares, and [13](13_hessians_and_newton.ipynb) used that: with $J$ the Jacobian of the residuals, the Gauss–Newton matrix $J^\top J$ stands in for the Hessian. With 128 weights you can afford the matrix itself, and damp it (the factor 2 of the loss's derivatives cancels):
#
# $$\Big(\tfrac1N J^\top J + \mu I\Big)\, s = -\tfrac1N J^\top r.$$
#
# If the step lowers the loss, take it and make $\mu$ ten times smaller; if not, double $\mu$ and solve again. A large $\mu$ gives a short step along the negative gradient, a small one a Gauss–Newton step. That is the **Levenberg–Marquardt method**.
#
# It needs $J$, 300 rows of 128. A row for each backward pass would make 300 passes. But a residual depends on the weights and on *its own point*; give each point its own copy of the weights, and one pass returns all rows at once. That is the exercise "Each example's gradient, in one pass" of [15](15_batch_jacobians.ipynb); it is why `network` accepts weights of shape (n, weights).


# %%
@tf.function
def linearise(w):
    """The residuals, shape (N,), and their Jacobian, shape (N, weights), in one backward pass."""
    with tf.GradientTape() as tape:
        copies = tf.tile(w[tf.newaxis], [count, 1])
        tape.watch(copies)
        r = residual(copies)
    return r, tape.gradient(r, copies)  # row n: the gradient of r_n with respect to its own copy


def damped_step(r, J, mu):
    curvature, slope = J.T @ J / len(r), J.T @ r / len(r)
    return np.linalg.solve(curvature + mu * np.eye(len(slope)), -slope)


r, J = (part.numpy() for part in linearise(start))
print("J:", J.shape)

# %% tags=["nbval-ignore-output"]
print(f"loss at the start: {loss(start):.0f}")
for mu in (0.01, 1.0, 100.0, 10000.0):
    s = damped_step(r, J, mu)
    print(f"damping {mu:7g}: a step of length {np.linalg.norm(s):6.2f}, and the loss is {loss(start + s):.0f}")

# %% [markdown]
# Too small a damping trusts the linear model too far: the step is long, and the loss rises (with nine of the seeds 0 to 9). Too large a one hardly moves. In between a single step removes most of the loss. Which damping that is changes on the way, hence the rule: halve the trust when a step fails, and raise it tenfold when one succeeds.
#
# **Predict.** 120 such steps, from the same start, on the same points, with the same network. Adam's 1500 steps end at an error of about $10^{-3}$. Where do these end?

# %%
exercises.swapped.guess(...)  # "about there", "three times lower" or "more than ten times lower"


# %%
def levenberg_marquardt(linearise, loss, w, steps, mu=0.1):
    """Rows of (processor seconds, weights), one for each step taken."""
    linearise(w)  # compiles
    w, value = w.numpy(), float(loss(w))
    rows, begin = [(0.0, w)], time.process_time()
    for _ in range(steps):
        r, J = (part.numpy() for part in linearise(w))
        while mu < 1e10:
            trial = w + damped_step(r, J, mu)
            trial_value = float(loss(trial))
            if trial_value < value:
                break
            mu *= 2
        else:
            break  # no step lowers the loss
        w, value, mu = trial, trial_value, max(mu / 10, 1e-12)
        rows.append((time.process_time() - begin, w))
    return rows


with threadpool_limits(1):
    best = f"Levenberg–Marquardt, {lm_steps} steps"
    runs[best] = levenberg_marquardt(linearise, tf.function(loss), start, lm_steps)

# %% tags=["nbval-ignore-output"]
for name in (short, long, *limited, *finished, dense, best):
    seconds, at = runs[name][-1]
    print(f"{name:31} {seconds:5.2f} s of processor time   loss {loss(at):.0e}   error {error(at):.1e}")

last = 3 * hidden  # from here on, the readouts
readouts_alone = start + np.append(np.zeros(last), -np.linalg.lstsq(J[:, last:], r)[0])
print(f"the readouts alone, one solve: error {error(readouts_alone):.1e}")

# %% alt="Line plot. Relative error against processor time, both on logarithmic axes. Two curves of Adam and two of L-BFGS fall slowly and end between a thousandth and a ten-thousandth. BFGS ends lower, at some hundred-thousandths, and so does BFGS that continues from Adam's end. Levenberg\u2013Marquardt starts as high, falls steeply within a fraction of a second and ends lowest." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the error against the time that it took
shown = (short, long, *limited, dense, finished[1], best)
lines = (
    ("-", plots.ORANGE),
    ("--", plots.RED),
    ("-.", plots.GREY),
    ("-.", plots.GREEN),
    (":", "black"),
    ("+:", plots.GREY),
    ("o-", plots.BLUE),
)

_, ax = plt.subplots(figsize=(7, 4.4), layout="constrained")
for name, (style, colour) in zip(shown, lines, strict=True):
    seconds, at = zip(*runs[name], strict=True)
    ax.loglog(seconds[1:], [error(w) for w in at[1:]], style, color=colour, markersize=3, label=name)
ax.set(title="The same network, the same points, another optimiser")
ax.set(xlabel="processor time (s), without compiling", ylabel="relative error of u")
ax.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ends = {name: error(run[-1][1]) for name, run in runs.items()}
times_lower = ends[short] / ends[best]
exercises.swapped.reveal(
    "about there" if times_lower < 2 else "three times lower" if times_lower < 10 else "more than ten times lower"
)
assert 2e-6 < ends[best] < 3e-5
assert 25 < times_lower < 400
assert 8 < ends[long] / ends[best] < 150
assert all(4 < ends[name] / ends[best] < 200 for name in limited)
assert 1.2 < ends[dense] / ends[best] < 20
assert 0.9 < ends[finished[1]] / ends[best] < 15
r, J = (part.numpy() for part in linearise(start))
first = [float(loss(start + damped_step(r, J, mu))) for mu in (0.01, 1.0, 100.0, 10000.0)]
assert min(first[1:3]) < 0.5 * float(loss(start))
assert 0.3 * float(loss(start)) < first[3] < float(loss(start))
values = [float(loss(at)) for _, at in runs[best]]
assert np.all(np.diff(values) < 0)
np.testing.assert_array_equal(readouts_alone[:last], start[:last])
assert 4e-4 < error(readouts_alone) < 7e-3

# %% [markdown]
# About $10^{-5}$ (with ten seeds, 35 to 300 times lower than the best short run of Adam), with the same 128 weights and the same 300 points. So the network could do it all along, and the points asked for enough. Nearly all of Adam's error was the *optimiser's*, and four times the steps remove only a part of it.
#
# The closest rival is Adam followed by BFGS: it ends one to nine times higher, after one to two times the processor time. BFGS from the start ends one to thirteen times higher; with 2400 steps it ended between a little lower and four times higher (tried). So what is won at the end is not large. What is won is the way there: BFGS learns from hundreds of gradients which directions are flat; $J$ says it at once.
#
# And one rival takes no steps at all. $u$ is linear in the last 32 weights, the readouts. Leave the other 96 as they were drawn, and solve for these alone: a linear least-squares problem with the last 32 columns of $J$. Its error is 0.7 to 4 thousandths in ten seeds. So the short run of Adam, which moves all weights 1500 times, ends about where one solve begins.
#
# How large these distances are depends on the source. This one is kind: smooth, and zero on the boundary. Take $f = 40\,(x - y)$, which is not zero there. The solution then has weak singularities in the corners. $J$ does not depend on the source, so only the residuals change.


# %%
def plane(x):
    return 40 * (x[:, 0] - x[:, 1])


change = plane(points) - source(points)


def linearise_plane(w):
    r, J = linearise(w)
    return r + change, J


@tf.function
def loss_plane(w):
    return tf.reduce_mean((residual(w) + change) ** 2)


with threadpool_limits(1):
    _, at = levenberg_marquardt(linearise_plane, loss_plane, start, lm_steps)[-1]
of_plane = reference(plane, five_point=True)
error_plane = np.linalg.norm(network(tf.constant(grid), at) - of_plane) / np.linalg.norm(of_plane)

# %% tags=["nbval-ignore-output"]
print(f"another source, {best}: error {error_plane:.1e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
between_two = np.linalg.norm(reference(plane, cells=80, five_point=True) - of_plane) / np.linalg.norm(of_plane)
assert between_two < 5e-4  # finite differences are good enough to judge by
assert 5e-4 < error_plane < 6e-3
assert error_plane > 60 * ends[best]

# %% [markdown]
# Now the same method ends at an error of one to three thousandths, a hundred times higher or more. Twice the steps left it about there (tried), and Adam's 1500 steps ended at about three times as much: here the network and the points are the limit, and a better optimiser buys little. Measure which of the two it is before you enlarge the network.
#
# In your own code, `optimize.levenberg_marquardt` takes such steps ([19](19_fit_and_error_bars.ipynb) uses it). They are not meant for a classifier on mini-batches: there $J$ is too large to afford, and the noise of the batch hides what it says of flat directions.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
r, J = (part.numpy() for part in linearise(start))
rows_one_by_one = []
for n in (0, 1, count - 1):
    with tf.GradientTape() as tape:
        tape.watch(start)
        one = laplacian_by_tapes(points[n : n + 1], start)[0] + source(points[n : n + 1])[0]
    rows_one_by_one.append(tape.gradient(one, start))
np.testing.assert_allclose(J[[0, 1, -1]], rows_one_by_one, rtol=1e-8, atol=1e-8)

# %% [markdown]
# ## 4. Going further: what a first-order method leaves behind
#
# The Gauss–Newton matrix of the loss, $\tfrac2N J^\top J$, has eigenvalues, its **curvatures**. The singular value decomposition $J = U S V^\top$ gives them. $U$ and $V$ have orthonormal columns, and $S$ is diagonal with entries $\sigma_k$, so the curvatures are $\tfrac2N \sigma_k^2$. A step along $v_k$, a column of $V$, changes the residuals by $\sigma_k u_k$, and $(u_k^\top r)^2$ is the part of the squared residuals that lies along $u_k$.
#
# **Predict.** The network has 128 weights. At the start, how many curvatures are larger than a millionth of the largest: about 120, about 80 or about 40?

# %%
exercises.curvatures.guess(...)  # a number


# %%
def split(w):
    """The curvatures, falling, and the share of the squared residuals that belongs to each."""
    r, J = (part.numpy() for part in linearise(w))
    U, sigma, _ = np.linalg.svd(J, full_matrices=False)
    return 2 / count * sigma**2, (U.T @ r) ** 2 / np.sum(r**2)


with threadpool_limits(1):
    parts = {"at the start": split(start), f"after {adam_steps} steps of Adam": split(runs[long][-1][1])}
    parts["after Levenberg–Marquardt"] = split(tf.constant(runs[best][-1][1]))

# %% tags=["nbval-ignore-output"]
for name, (curvatures, shares) in parts.items():
    relative = curvatures / curvatures[0]
    flat = shares[relative < 1e-4].sum()
    print(f"{name:25} largest {curvatures[0]:.0f}, above a millionth of it {np.sum(relative > 1e-6):3}", end="; ")
    print(f"share of the residual below a ten-thousandth: {flat:.3f}")

# %% alt="Line plot. Cumulative share of the squared residuals against the curvature relative to the largest, from one down to a million-millionth on a logarithmic axis. At the start the curve rises nearly to one within the first hundredfold. After Adam it stays at zero over four decades and rises between a ten-thousandth and a hundred-millionth. After Levenberg\u2013Marquardt it stays near zero over four decades and rises further right." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: where the residual is, before and after Adam
_, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
for (name, (curvatures, shares)), style, colour in zip(
    parts.items(), ("-", "--", ":"), (plots.GREY, plots.RED, plots.BLUE), strict=True
):
    ax.step(curvatures / curvatures[0], np.cumsum(shares), style, color=colour, where="post", linewidth=2, label=name)
ax.set(xscale="log", xlim=(2, 1e-12), ylim=(-0.03, 1.03))
ax.set(title="Adam has emptied the steep directions; the rest lies in flat ones")
ax.set(xlabel="curvature, relative to the largest", ylabel="share of the squared residuals, so far")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
at_start, after_long, after_best = ((values / values[0], shares) for values, shares in parts.values())
counted = [int(np.sum(relative > 1e-6)) for relative, _ in (at_start, after_long, after_best)]
exercises.curvatures.reveal(int(round(counted[0], -1)))
assert all(25 < number < 60 for number in counted[:2])
assert counted[2] < 60
assert at_start[1][at_start[0] > 1e-2].sum() > 0.5
assert after_long[1][after_long[0] < 1e-4].sum() > 0.97
assert after_best[1][after_best[0] < 1e-4].sum() > 0.9
assert all(abs(shares.sum() - 1) < 0.01 for _, shares in (at_start, after_long))

# %% [markdown]
# About forty (27 to 39 with the seeds 0 to 9). The curvatures fall by a factor of ten for every few weights, all the way to rounding. At the start, most of the residual belongs to the steepest handful, within a factor of 100 of the largest: that is what Adam removes in its first steps. What its longer run leaves lies almost entirely in directions that are more than ten thousand times flatter. So does nearly all of what Levenberg–Marquardt leaves, and that is far less (section 3).
#
# [14](14_without_the_matrix.ipynb) has the reason. Gradient descent must keep its rate $\eta$ below $2/\lambda_{\max}$, and multiplies a part of curvature $\lambda$ by $1 - \eta\lambda$ in each step. For $\lambda = 10^{-6}\,\lambda_{\max}$ that is at best $1 - 2\cdot 10^{-6}$: half a million steps for a factor of $e$. Adam rescales each weight and has momentum, which helps, but it does not
# turn the axes: it cannot stretch a direction that mixes weights. L-BFGS remembers ten steps, or a hundred, and there are 128 directions. A Levenberg–Marquardt step multiplies the same part, as far as the residuals are linear, by
#
# $$\frac{\mu}{\sigma_k^2 / N + \mu}.$$
#
# Every direction above the damping is cleared in a few steps, however flat it is. And the damping falls as long as that goes well.
#
# Second derivatives in the *residual* make it worse than for other losses: a feature that oscillates twice as fast counts four times as much in $\Delta u$, sixteen times in the loss. So the loss of an equation is a long, curved valley, and this page's lesson is meant for such a loss.

# %% [markdown]
# ## 5. A small residual is not a small error
#
# Take away points: the equation is asked for at 60 of the 300, and there are 128 weights.
#
# **Predict.** 120 steps of Levenberg–Marquardt bring the loss at the 60 points from some hundreds to below a hundred-thousandth. How large is the mean squared residual *between* the points?

# %%
exercises.fewer.guess(...)  # "as small", "ten times larger" or "a hundred times larger or more"

# %%
few_points = points[:few]


def residual_at(x, w):
    return laplacian_by_tapes(x, w) + source(x)


@tf.function
def loss_at(x, w):
    return tf.reduce_mean(residual_at(x, w) ** 2)


@tf.function
def linearise_few(w):
    with tf.GradientTape() as tape:
        copies = tf.tile(w[tf.newaxis], [few, 1])
        tape.watch(copies)
        r = residual_at(few_points, copies)
    return r, tape.gradient(r, copies)


with threadpool_limits(1):
    _, fitted = levenberg_marquardt(linearise_few, lambda w: loss_at(few_points, w), start, lm_steps)[-1]
between = tf.constant(rng.uniform(size=(2000, 2)))  # the optimiser has not seen them
solved = runs[best][-1][1]
losses = {few: float(loss_at(few_points, fitted)), count: float(loss_at(points, solved))}
elsewhere = {few: float(loss_at(between, fitted)), count: float(loss_at(between, solved))}

# %% tags=["nbval-ignore-output"]
for n, w in ((few, fitted), (count, solved)):
    print(f"{n:3} points: loss {losses[n]:.0e}, at 2000 other points {elsewhere[n]:.0e}, error {error(w):.0e}")

# %% alt="Two heat maps. Two square maps of the error of u with black dots where the equation was asked for. Left, with 60 points: large patches of one sign. Right, with 300 points: a scale that is many times finer." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the errors with 60 points and with 300
maps(
    {
        f"{few} points: error of u": network(tf.constant(grid), fitted).numpy() - solution,
        f"{count} points: error of u": network(tf.constant(grid), solved).numpy() - solution,
    },
    few_points,
)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ratio = elsewhere[few] / losses[few]
exercises.fewer.reveal(
    "as small" if ratio < 3 else "ten times larger" if ratio < 30 else "a hundred times larger or more"
)
assert ratio > 30
assert losses[few] < min(1e-5, 3 * losses[count])
assert error(fitted) > 5 * error(solved)
assert elsewhere[few] > 10 * elsewhere[count]

# %% [markdown]
# A hundred times larger or more, and there is no limit: the loss at the points can go down to rounding. With more weights than equations the network satisfies all 60 of them and does between them what it likes: overfitting, in a problem without data. The loss says nothing of it. Its own value is about as small as that of the good solution, or smaller.
#
# So judge by the residual at points that the optimiser has not seen, as you judge a classifier by test data. Where a solution is known, or can be had in another way, judge by the *error*: even an honest residual is a second derivative of it, and weighs fast oscillations more than slow ones.

# %% [markdown]
# ### Exercise: The step in the space of residuals (12 min)
#
# *This one needs an idea that the text does not spell out.*
#
# With few points and many weights, $J^\top J$ is the larger matrix of the two: a network of a million weights has a $J^\top J$ that nobody stores, and 500 points have a $J J^\top$ of 500 × 500. `J`, `r` and `mu` are tensors: `J` has shape (N, P), `r` shape (N,), and `mu` is a positive scalar. Return the step $s$ that solves
#
# $$(J^\top J + \mu I)\, s = -J^\top r,$$
#
# of shape (P,), and solve only a system of $N$ unknowns.


# %%
def step_from_residuals(J, r, mu):
    return ...  # shape (P,)


exercises.dual.check(step_from_residuals)

# %% [markdown]
# ## 6. What it is for: an unknown coefficient
#
# On a square, for a linear equation that is known, nobody needs a network: the reference solution took milliseconds. Networks are tried where a grid is the difficulty, and where the equation has an **unknown coefficient** that measurements must determine. Let the membrane lie on a spongy bed. The bed pushes back in proportion to $u$, with an unknown stiffness $\kappa$:
#
# $$-\Delta u + \kappa u = f.$$
#
# At 40 places $u$ is measured, with a noise of known standard deviation $\sigma$. The parameters are the weights *and* $\kappa$. The residuals are of two kinds, and each is divided by what it may be: $(\Delta u_w(x_n) - \kappa u_w(x_n) + f(x_n))/\tau$ at the 300 points, and $(u_w(z_m) - y_m)/\sigma$ at the 40 places $z_m$. Here $\sigma$ is a property of the instrument, and $\tau$ is a choice: how far the equation may be missed.
#
# [19](19_fit_and_error_bars.ipynb) has the error bars: the covariance of all parameters is $(J^\top J)^{-1}$, with $J$ the Jacobian of these residuals. The weights are not determined well, and nobody asks for their error bars. For one parameter there is a way without that inverse. Split $J$ into the weights' columns $W$ and the column $k$ of $\kappa$. What a change of $\kappa$ does to the residuals can be undone in part by a
# change of the weights; the rest is $k$ minus its projection on $W$'s columns, and
#
# $$\text{standard error of } \kappa = \frac{1}{\min_s \lVert k - W s \rVert}.$$

# %%
kappa, tau = 30.0, 0.1
places = rng.choice(np.flatnonzero(np.all((grid > 0) & (grid < 1), axis=1)), size=sensors, replace=False)
true_values = reference(source, kappa)[places]
sigma = 0.02 * np.abs(reference(source, kappa)).max()
measured = true_values + sigma * rng.normal(size=(draws, sensors))  # the same places, other noise
z = tf.constant(grid[places])


def joint(copies, y, tau):
    """Both kinds of residuals, shape (N + M,). Row n of the copies holds the weights and κ for residual n."""
    w, k = copies[:, :-1], copies[:, -1]
    equation = residual(w[:count]) - k[:count] * network(points, w[:count])
    return tf.concat([equation / tau, (network(z, w[count:]) - y) / sigma], axis=0)


@tf.function
def linearise_joint(p, y, tau):
    with tf.GradientTape() as tape:
        copies = tf.tile(p[tf.newaxis], [count + sensors, 1])
        tape.watch(copies)
        r = joint(copies, y, tau)
    return r, tape.gradient(r, copies)


def fit(y, tau, p, steps, mu):
    """The parameters (weights, κ) that fit the equation and the measurements y, and κ's standard error."""
    y, tau = tf.constant(y), tf.constant(tau, tf.float64)

    def linear(p):
        return linearise_joint(p, y, tau)

    def mean_square(p):
        return tf.reduce_mean(linear(p)[0] ** 2)

    _, p = levenberg_marquardt(linear, mean_square, tf.constant(p), steps, mu)[-1]
    _, J = (part.numpy() for part in linear(p))
    W, k = J[:, :-1], J[:, -1]
    return p, 1 / np.linalg.norm(k - W @ np.linalg.lstsq(W, k)[0])


with threadpool_limits(1):
    first_fit, bar = fit(measured[0], tau, np.append(solved, 0.0), 60, mu=0.1)  # starts from κ = 0
    fits = [fit(y, tau, first_fit, 6, mu=1e-6) for y in measured]
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
ax.set(
    title="Most of the bars cross the true value",
    xlabel="draw of the noise",
    ylabel="stiffness κ, ±1.96 standard errors",
)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
inside = np.abs(found - kappa) < 1.96 * bars
assert inside.sum() >= 20  # of 25: fewer have a chance of less than 1 in 500 where 95 % is right
assert 0.6 < found.std(ddof=1) / bars.mean() < 1.5
assert loose_bar > 3 * bar

# %% [markdown]
# The stiffness is known to one or two hundredths of itself, and the error bar keeps its word (234 of 250 intervals in ten seeds): the 128 weights are little freedom beside the measurements, because the equation holds them.
#
# That is so as long as $\tau$ is small. Let the equation be missed by a hundred times as much, and the weights fit the noise in its place; the error bar says so, and grows several times. Too small a $\tau$ has another price: the valley gets steeper and the optimiser slower. A fit that has not arrived has a small error bar too, around a wrong value. So start again from elsewhere, or with other weights, and
# see whether the same value comes out.

# %% [markdown]
# ## 7. Check it independently
#
# The rival that you would prefer on a square knows nothing of networks or tapes: the sum of sines from the opening, with $\kappa$ as its *only* unknown, fitted to the same measurements. It has no $\tau$, and its error bar comes from a Jacobian with one column.


# %%
def sines(_, kappa):
    return reference(source, kappa)[places]


one_unknown = [scipy.optimize.curve_fit(sines, z, y, [10.0], np.full(sensors, sigma), True) for y in measured]
by_sines = np.array([best_kappa[0] for best_kappa, _ in one_unknown])
bars_by_sines = np.array([np.sqrt(covariance[0, 0]) for _, covariance in one_unknown])

# %% tags=["nbval-ignore-output"]
print(f"first draw: κ = {by_sines[0]:.3f} ± {bars_by_sines[0]:.3f}, with the network {found[0]:.3f} ± {bars[0]:.3f}")
print(f"largest difference in {draws} draws, in error bars: {np.abs(found - by_sines).max() / bars.mean():.1g}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(bars, bars_by_sines, rtol=0.02)
assert np.abs(found - by_sines).max() < 0.1 * bars.mean()

# %% [markdown]
# The same values, to a tenth of an error bar or better, and the same error bars, to two hundredths of themselves.

# %% [markdown]
# ## Recap
#
# - A differential equation becomes a loss: the mean squared residual at points. Differentiate with respect to one coordinate at a time, and let the sum over the batch do the rest where points do not depend on each other (section 1).
# - A residual depends on its own point and the weights. With a copy of the weights for each point, one backward pass gives the whole Jacobian, and a Levenberg–Marquardt step is one linear system away (section 3).
# - Adam and L-BFGS get to some ten-thousandths, and from there on more steps help slowly. BFGS with a dense matrix gets further, with most seeds furthest after a start by Adam, and with this source the same network can do with a small fraction of Adam's error (sections 2 and 3).
# - A residual that is small at the points promises nothing between them. Look at other points, and at the error where you can (section 5).
# - An unknown coefficient is one more parameter, and the measurements are more residuals. The Jacobian gives its error bar: what remains of its column after the weights' columns (sections 6 and 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a gradient of a gradient taken for a Laplacian | mixed derivatives in it: 26 for 10 | one coordinate at a time |
# | points that depend on each other | wrong second derivatives, without a warning | no batch normalisation inside $u$ |
# | ReLU in the network | a Laplacian without the network's own curvature: ReLU's second derivative is zero | `tanh`, or another smooth activation |
# | fewer points than weights | a tiny loss and a large error | more points; the residual at other points |
# | an equation held too loosely beside measurements | the weights fit the noise; a large error bar | a smaller $\tau$, until the error bar settles |
#
# **Further reading**
#
# - I. E. Lagaris, A. Likas, D. I. Fotiadis (1998), ["Artificial neural networks for solving ordinary and partial differential equations"](https://doi.org/10.1109/72.712178).
# - M. Raissi, P. Perdikaris, G. E. Karniadakis (2019), ["Physics-informed neural networks"](https://doi.org/10.1016/j.jcp.2018.10.045).
# - A. Krishnapriyan, A. Gholami, S. Zhe, R. Kirby, M. W. Mahoney (2021), ["Characterizing possible failure modes in physics-informed neural networks"](https://arxiv.org/abs/2109.01050).
# - J. Müller, M. Zeinhofer (2023), ["Achieving high accuracy with PINNs via energy natural gradient descent"](https://arxiv.org/abs/2302.13163).
# - P. Rathore, W. Lei, Z. Frangella, L. Lu, M. Udell (2024), ["Challenges in training PINNs: a loss landscape perspective"](https://arxiv.org/abs/2402.01868).
# - K. Levenberg (1944), ["A method for the solution of certain non-linear problems in least squares"](https://doi.org/10.1090/qam/10666).
# - D. W. Marquardt (1963), ["An algorithm for least-squares estimation of nonlinear parameters"](https://doi.org/10.1137/0111030).
#
# **Read next:** [14 Without the matrix](14_without_the_matrix.ipynb) does the same with products where $J^\top J$ is too large;
# [16 What derivatives cost](16_what_derivatives_cost.ipynb) measures what each of these derivatives costs.
