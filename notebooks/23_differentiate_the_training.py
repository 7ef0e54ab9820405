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
# # Differentiate the training
#
# A training loop is a program like any other: multiply, subtract, repeat. So a tape can record it, if each step makes new tensors, and differentiate its *result* with respect to what you would otherwise set by hand: the rates of the steps, and the point where they begin.
# **What does a gradient through a training loop find?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/23_differentiate_the_training.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb) · **Minutes:** 24 to read, 3 more to go further, 36 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
rounds = 2500  # of training a start, 16 tasks in each: between 2400 and 2600

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import itertools

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import differentiate_the_training as exercises

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize  # comes with scikit-learn
import tensorflow as tf

runtime.start(seed)

# %% [markdown]
# Take a quadratic loss $\tfrac12 \lambda w^2$ for each of 200 curvatures $\lambda$ between 1 and 100. Each starts at $w = 1$, the minimum is at 0, and you have eight steps of gradient descent. With one rate for all steps, the best for the worst curvature is $2/(1 + 100)$: it leaves as much at $\lambda = 1$ as at $\lambda = 100$.


# %%
angles = np.pi * (np.arange(200) + 0.5) / 200
curvatures = tf.constant(1 + 99 * (1 - np.cos(angles)) / 2)  # from 1 to 100, denser at the ends


def descend(rates):
    """What a step with each rate leaves of w = 1, for every curvature: shape (200,)."""
    w = tf.ones_like(curvatures)
    for rate in tf.unstack(rates):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_sum(curvatures * w**2) / 2
        w -= rate * tape.gradient(loss, w)
    return w


constant = tf.fill([8], tf.constant(2 / 101, tf.float64))
print(f"largest error left by eight equal rates: {tf.reduce_max(tf.abs(descend(constant))):.3f}")

# %% [markdown]
# Now let the rates differ, and learn them. An outer tape goes around `descend`, eight inner gradients and all. The target is the logarithm of the root mean square of what is left. Adam follows the gradient, from eight random rates.

# %%
rng = np.random.default_rng(seed)
beginning = np.log(2 / 101) + 0.3 * rng.normal(size=8)  # the rates' logarithms: rates stay positive
log_rates = tf.Variable(beginning)
adam = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.PolynomialDecay(0.1, 300, 0.0))


@tf.function
def learn():
    with tf.GradientTape() as tape:
        mean_square = tf.reduce_mean(descend(tf.exp(log_rates)) ** 2)
        target = tf.math.log(mean_square) / 2
    adam.apply_gradients([(tape.gradient(target, log_rates), log_rates)])


for _ in range(300):
    learn()
learnt = tf.exp(log_rates)
print(f"largest error left by eight learnt rates: {tf.reduce_max(tf.abs(descend(learnt))):.3f}")

# %% alt="Line plot. The error that eight steps leave, against the curvature from 1 to 100. With one constant rate it is 0.85 at both ends and almost zero in between. With learnt rates it starts at 0.58 at the left end and then runs in low waves, each lower than the one before." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what is left
smooth = np.linspace(1, 100, 2001)


def error_left(rates):
    """|w| after steps with these rates, on a fine grid of curvatures."""
    return np.abs(np.prod(1 - np.asarray(rates)[:, None] * smooth, axis=0))


_, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(smooth, error_left(constant), "--", color=plots.ORANGE, label="one rate for all steps, the best")
ax.plot(smooth, error_left(learnt), color=plots.BLUE, label="eight learnt rates")
ax.set(title="Eight steps of gradient descent: the rates matter", xlabel="curvature λ", ylabel="|w| after eight steps")
ax.legend()
plt.show()

# %% [markdown]
# The same number of steps, and the worst curvature keeps 0.58 in place of 0.85. Ask for the best *worst case*, and the rates that the gradient finds have a name.
#
# **You will be able to**
#
# - record a training loop on a tape, and differentiate its result with respect to every rate (section 1),
# - say what the learnt rates are, and what becomes of the limit $2/\lambda_{\max}$ (section 1),
# - learn a start from which one gradient step fits a new task (section 2),
# - hold it against tuned rivals (section 3),
# - say what a derivative that looks one step ahead does not see (section 4, which goes further).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert error_left(constant).max() > 0.85
np.testing.assert_allclose(error_left(constant).max(), (99 / 101) ** 8, rtol=1e-12)  # reached at both ends
np.testing.assert_allclose(error_left(constant)[[0, -1]], (99 / 101) ** 8, rtol=1e-9)
for other in (0.97, 1.03):  # a smaller constant rate is worse, and a larger one
    assert error_left(other * constant).max() > error_left(constant).max()
np.testing.assert_allclose(error_left(learnt).max(), 0.5762, atol=2e-3)
assert np.argmax(error_left(learnt)) == 0  # at the left end

# %% [markdown]
# ## 1. Eight rates
#
# On a quadratic the inner gradient is $\lambda w$, so each step multiplies $w$ by a number, and eight steps by a polynomial in $\lambda$:
#
# $$w_8 = \prod_{t=1}^{8} (1 - \eta_t \lambda).$$
#
# The factor of step $t$ is zero at the curvature $\lambda = 1/\eta_t$. In the figure above, the learnt curve shows all eight zeros.
#
# With one rate for ever, the factor $1 - \eta\lambda$ comes again in every step. It must be below 1 in size at $\lambda_{\max}$: the rate must stay below $2/\lambda_{\max} = 0.02$, or the steps explode. [14](14_without_the_matrix.ipynb) called it the speed limit of gradient descent.
#
# **Predict.** How many of the eight learnt rates exceed 0.02?

# %%
exercises.beyond_limit.guess(...)  # a number from 0 to 8

# %%
print("learnt rates:", np.round(np.sort(learnt), 3))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.beyond_limit.reveal(int(np.sum(learnt > 0.02)))
assert np.sum(learnt > 0.02) == 4
assert np.max(learnt) > 0.25  # more than twelve times the limit

# %% [markdown]
# Half of them, and the largest by far. That step alone multiplies the error at $\lambda = 100$ by about $-30$, and the seven others repair it. A *product* has to be small, not each of its factors.
#
# The waves in the figure get lower from left to right. That was asked for: a small mean *square*, in which a few curvatures may keep a lot. You want little to be left at the worst one. The maximum's gradient sees one curvature at a time: close to the minimum the worst one changes every few steps, and Adam needs a falling rate to get down on it. A mean of high powers comes close to the maximum, sees them all, and is smooth:
#
# $$\Big(\operatorname{mean}_\lambda |w_8|^p\Big)^{1/p} \to \max_\lambda |w_8| \qquad (p \to \infty).$$
#
# For eight numbers Newton's method ([13](13_hessians_and_newton.ipynb)) is affordable. Undamped, it needs a start that is close, and for $p = 2$ you have one: where Adam stopped. So raise $p$ by a factor of $2^{1/4}$ at a time, and begin each stage where the last one ended. This is **continuation**, or a *homotopy*. The product is written out now, which spares a third tape.


# %%
def power_mean(v, p):
    """The logarithm of the mean of |w|^p, to the power 1/p; v holds the logarithms of the rates."""
    factors = 1 - tf.exp(v)[:, None] * curvatures
    logarithms = tf.reduce_sum(tf.math.log(tf.abs(factors)), axis=0)  # of |w|, which itself may overflow
    return (tf.reduce_logsumexp(p * logarithms) - np.log(200)) / p


@tf.function
def second_order(v, p):
    with tf.GradientTape() as outer:
        outer.watch(v)
        with tf.GradientTape() as inner:
            inner.watch(v)
            target = power_mean(v, p)
        g = inner.gradient(target, v)
    return g, outer.jacobian(g, v)  # shapes (8,) and (8, 8)


# %% tags=["nbval-ignore-output"]
v, stages, sizes_of_g = tf.identity(log_rates), {}, {}
for p in 2.0 ** np.arange(1, 7.25, 0.25):  # 2, 2.4, 2.8, ..., 128
    sizes_of_g[p] = []
    for _ in range(4):
        g, H = second_order(v, tf.constant(p))
        v -= tf.linalg.solve(H, g[:, None])[:, 0]
        sizes_of_g[p].append(float(tf.reduce_max(tf.abs(g))))
    stages[p] = np.sort(tf.exp(v))
print("p = 2, largest entry of the gradient:", [f"{size:.0e}" for size in sizes_of_g[2.0]])
for p in (2.0, 8.0, 32.0, 128.0):
    print(f"p = {p:3.0f}: largest error left {error_left(stages[p]).max():.4f}")
found = stages[128.0]


@tf.function
def at_once(v):
    with tf.GradientTape() as tape:
        tape.watch(v)
        target = power_mean(v, 128.0)
    return target, tape.gradient(target, v)


rival = np.sort(np.exp(scipy.optimize.minimize(at_once, beginning, jac=True, method="L-BFGS-B").x))
print(f"L-BFGS, p = 128 at once: {error_left(rival).max():.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert sizes_of_g[2.0][0] < 1e-2
assert sizes_of_g[2.0][-1] < 1e-11  # quadratic convergence
assert max(sizes[-1] for sizes in sizes_of_g.values()) < 0.01
np.testing.assert_allclose(error_left(stages[2.0]).max(), 0.5762, atol=1e-4)
assert np.all(np.diff([error_left(rates).max() for rates in stages.values()]) < 0)
np.testing.assert_allclose(error_left(found).max(), 0.3891, atol=1e-3)
assert np.sum(found > 0.02) == 4
assert 28 < abs(1 - 100 * float(np.max(learnt))) < 32
astray = tf.math.log(tf.constant(stages[2.0]))  # p doubled at once, and no damping
for _ in range(8):
    g, H = second_order(astray, tf.constant(4.0, tf.float64))
    astray -= tf.linalg.solve(H, g[:, None])[:, 0]
assert not error_left(np.exp(astray)).max() < 0.9
np.testing.assert_allclose(error_left(rival).max(), 0.3891, atol=1e-3)
np.testing.assert_allclose(rival, found, rtol=1e-2)


def on_the_maximum(v, falling):
    """300 steps of Adam on the logarithm of the maximum: the largest error left, and the worst curvatures' places."""
    m, s, places = 0.0, 0.0, []
    for k in range(300):
        factors = 1 - np.exp(v)[:, None] * curvatures.numpy()
        places.append(np.argmax(np.abs(np.prod(factors, axis=0))))
        g = -np.exp(v) * curvatures.numpy()[places[-1]] / factors[:, places[-1]]
        m, s = 0.9 * m + 0.1 * g, 0.999 * s + 0.001 * g**2
        move = m / (1 - 0.9 ** (k + 1)) / (np.sqrt(s / (1 - 0.999 ** (k + 1))) + 1e-8)
        v = v - 0.01 * (1 - falling * k / 300) * move
    return error_left(np.exp(v)).max(), places


assert on_the_maximum(log_rates.numpy(), falling=1.0)[0] < 0.395
stuck, places = on_the_maximum(log_rates.numpy(), falling=0.0)
assert stuck > 0.4
assert np.sum(np.diff(places[-100:]) != 0) > 25  # the worst one changes

# %% [markdown]
# At $p = 2$ the gradient falls quadratically, down to rounding. The stages are small, as no step is damped: from 2 to 4 at once, eight such steps leave 0.9 of the error or more. L-BFGS ([14](14_without_the_matrix.ipynb)) needs none: at $p = 128$ it comes from the random rates to the same end.
#
# The largest error left falls to 0.389, where the best constant rate leaves 0.852 and takes 48 steps to leave as little. Look at the rates' reciprocals, $1/\eta_t$: the curvatures at which one step lands on 0. Draw a half circle over the curvatures, and cut it into eight equal arcs.

# %% alt="Line plot and diagram. Left: the error left against curvature. The constant rate leaves 0.85 at both ends; the learnt rates leave nine waves of equal height 0.39, and a dotted curve for Chebyshev's polynomial lies on them. Right: a half circle over the curvatures from 1 to 100, cut into eight equal arcs; straight down from the middle of every arc, on the axis, lies the reciprocal of a learnt rate." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: waves of one height, and a half circle
chebyshev_nodes = 50.5 + 49.5 * np.cos(np.pi * (2 * np.arange(8) + 1) / 16)
_, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained", width_ratios=[1.1, 1])
left.plot(smooth, error_left(constant), "--", color=plots.ORANGE, label="one rate")
left.plot(smooth, error_left(stages[128.0]), color=plots.BLUE, linewidth=3, label="learnt, p = 128")
left.plot(smooth, error_left(1 / chebyshev_nodes), ":", color="black", label="Chebyshev")
left.set(title="Learnt: waves of one height", xlabel="curvature λ", ylabel="|w| after eight steps")
left.legend(loc="upper center")
circle = np.linspace(0, np.pi, 200)
right.plot(50.5 + 49.5 * np.cos(circle), 49.5 * np.sin(circle), color=plots.GREY)
heights = 49.5 * np.sin(np.pi * (2 * np.arange(8) + 1) / 16)
right.vlines(chebyshev_nodes, 0, heights, color=plots.GREY, linewidth=0.8, linestyle="--")
right.plot(chebyshev_nodes, heights, "s", color="white", markeredgecolor="black", label="middle of an equal arc")
right.plot(1 / stages[128.0], np.zeros(8), "o", color=plots.BLUE, label="1 / learnt rate")
right.set(title="The reciprocals lie under equal arcs", xlabel="curvature λ", yticks=[], ylim=(-8, 78))
right.set_aspect("equal")
right.legend(loc="upper center", ncols=2, fontsize="small")
plt.show()

# %% [markdown]
# The gradient has found **Chebyshev's rates**. Their reciprocals are the roots of the Chebyshev polynomial $T_8$, defined by $T_8(\cos\theta) = \cos 8\theta$, stretched from $[-1, 1]$ to the interval from $\lambda_{\min} = 1$ to $\lambda_{\max} = 100$:
#
# $$\frac{1}{\eta_t} = \frac{\lambda_{\max} + \lambda_{\min}}{2} + \frac{\lambda_{\max} - \lambda_{\min}}{2} \cos \frac{(2t - 1)\,\pi}{16}, \qquad t = 1, \dots, 8.$$
#
# Of all polynomials of degree at most 8 that are 1 at $\lambda = 0$ (with no step, nothing changes), this one has the lowest maximum of its absolute value between $\lambda_{\min}$ and $\lambda_{\max}$: it spends its whole allowance in waves of one height. D. M. Young used these rates in 1953, for linear systems. At $p = 128$ the learnt rates agree with them to better than 1 %.
#
# What would you bet against them? *Momentum* first: two numbers in place of eight, and a memory of all earlier gradients. Here is the best of a grid of both numbers.


# %%
def with_momentum(rate, momentum, steps):
    """The largest error left after steps of gradient descent with momentum."""
    w, move = np.ones_like(smooth), 0.0
    for _ in range(steps):
        move = momentum * move - rate * smooth * w
        w = w + move
    return np.abs(w).max()


pairs = [(rate, momentum) for rate in np.linspace(0.026, 0.034, 41) for momentum in np.linspace(0.6, 0.8, 21)]
by_momentum = {}
for steps in (8, 9, 10):
    by_momentum[steps], rate, momentum = min((with_momentum(*pair, steps), *pair) for pair in pairs)
    print(f"{steps:2} steps with momentum: {by_momentum[steps]:.3f} left, rate {rate:.4f}, momentum {momentum:.2f}")

# %% [markdown]
# In eight steps momentum leaves 0.502, and in ten as little as the eight rates in eight. In eight it cannot get below Chebyshev's rates: its error is a polynomial of degree 8 that is 1 at 0, too. Conjugate gradients ([14](14_without_the_matrix.ipynb)) end at a lower sum of the losses here.
#
# A trap: do not *start* with eight equal rates. Then all eight derivatives are equal too, and the rates move alike. The best equal rates are a saddle, and only rounding errors lead away.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
chebyshev = np.sort(1 / chebyshev_nodes)
assert np.abs(found / chebyshev - 1).max() < 0.01
assert error_left(found).max() < 0.392
assert error_left(constant).max() > 0.85
np.testing.assert_allclose(by_momentum[8], 0.502, atol=1e-3)
assert by_momentum[9] > 0.42
assert 0.37 < by_momentum[10] < error_left(found).max()
assert ((99 / 101) ** np.arange(60) <= 0.389).argmax() == 48  # steps of the constant rate
peaks = error_left(chebyshev)
tops = np.flatnonzero((peaks[1:-1] > peaks[:-2]) & (peaks[1:-1] > peaks[2:])) + 1
assert len(tops) == 7  # and the two ends: nine waves
np.testing.assert_allclose(peaks[[0, *tops, -1]], peaks[0], rtol=1e-3)
equal, bent = second_order(tf.math.log(constant), tf.constant(2.0, tf.float64))
np.testing.assert_allclose(equal, tf.fill([8], equal[0]), rtol=1e-9)
assert bent[0, 0] < bent[0, 1]  # the curvature that parts two equal rates is negative
w, residual = np.ones(200), curvatures.numpy()  # conjugate gradients on the same problem
direction = residual
for _ in range(8):
    image = curvatures.numpy() * direction
    length = residual @ residual / (direction @ image)
    w, after = w - length * direction, residual - length * image
    direction, residual = after + (after @ after) / (residual @ residual) * direction, after
by_chebyshev = np.prod(1 - chebyshev[:, None] * curvatures.numpy(), axis=0)
assert np.sum(curvatures.numpy() * w**2) < np.sum(curvatures.numpy() * by_chebyshev**2)

# %% [markdown]
# ### Exercise: A derivative for every rate (8 min)
#
# `f` takes a tensor of shape $(n,)$ to a scalar, `w` is where gradient descent on `f` starts, and `rates`, of shape $(T,)$, holds one rate for each step. Return the derivatives of the *last* value, `f` after all $T$ steps, with respect to each of the rates: shape $(T,)$.
# All three are tensors or take tensors, of one dtype.


# %%
def by_each_rate(f, w, rates):
    return ...  # shape (T,), as rates


exercises.unrolled.check(by_each_rate)

# %% [markdown]
# ## 2. A gradient through a step
#
# Training has another input: the point where it begins. You will meet many small tasks, each with ten examples and time for *one* gradient step.
#
# A task is a sine, with an amplitude from 0.1 to 5 and a phase of its own. You see ten of its points, and are asked for ten others. The network has two hidden layers of 40 units; its 1761 weights are one tensor, with a leading axis of tasks, so that many tasks are trained side by side.

# %%
SIZES = [40, 40, 1600, 40, 40, 1]  # kernels and biases of a network 1-40-40-1


def network(w, x):
    """Weights of shape (tasks, 1761) and points of shape (tasks, points) to outputs of shape (tasks, points)."""
    kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = tf.split(w, SIZES, axis=1)
    h = tf.tanh(x[:, :, None] * kernel_1[:, None] + bias_1[:, None])
    h = tf.tanh(h @ tf.reshape(kernel_2, [-1, 40, 40]) + bias_2[:, None])
    return tf.linalg.matvec(h, kernel_3) + bias_3


def task_losses(w, x, y):
    return tf.reduce_mean((network(w, x) - y) ** 2, axis=1)


def adapt(w, x, y, alpha, second_derivatives=True):
    """One gradient step for every task."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        total = tf.reduce_sum(task_losses(w, x, y))
    g = tape.gradient(total, w)
    return w - alpha * (g if second_derivatives else tf.stop_gradient(g))


def sines(rng, *shape):
    """Random tasks, 20 points each: x and y, both of shape (*shape, 20)."""
    amplitude, phase = rng.uniform(0.1, 5.0, (*shape, 1)), rng.uniform(0.0, np.pi, (*shape, 1))
    x = rng.uniform(-5.0, 5.0, (*shape, 20))
    return tf.constant(x, tf.float32), tf.constant(amplitude * np.sin(x - phase), tf.float32)


new = sines(np.random.default_rng(seed + 1000), 500)  # to judge by
print(f"mean squared error of the answer 0, over {len(new[0])} sines: {tf.reduce_mean(new[1] ** 2):.1f}")

# %% [markdown]
# What you might try first: train one network **jointly**, on 40,000 sines and all of their points. Then take one step on ten points of a new sine, and measure on its ten others.


# %%
def adam_step(w, g, m, v, k, rate):
    """Step number k, from 0, of Adam, written out for XLA: returns the new w, m and v."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
    corrected, spread = m / (1.0 - 0.9 ** (k + 1.0)), v / (1.0 - 0.999 ** (k + 1.0))
    return w - rate * corrected / (tf.sqrt(spread) + 1e-8), m, v


def trainer(start_loss):
    """A function that trains a start: `start_loss` takes weights (tasks, 1761) and points x, y to a scalar."""

    @tf.function(jit_compile=True)
    def train(w, all_x, all_y, rate):
        m, v, last = tf.zeros_like(w), tf.zeros_like(w), tf.cast(len(all_x), tf.float32)
        for i in tf.range(len(all_x)):
            with tf.GradientTape() as tape:
                tape.watch(w)
                every = tf.broadcast_to(w, [16, len(w)])  # each task begins at w
                loss = start_loss(every, all_x[i], all_y[i])
            k = tf.cast(i, tf.float32)
            w, m, v = adam_step(w, tape.gradient(loss, w), m, v, k, rate * (1.0 - k / last) + 1e-4)
        return w

    return train


@tf.function
def measure_and_step(w, x, y, alpha):
    return tf.reduce_mean(task_losses(w, x[:, 10:], y[:, 10:])), adapt(w, x[:, :10], y[:, :10], alpha)


def errors_along(start, tasks, alpha, steps=5):
    """The mean error on the points that the steps do not see, after 0, 1, ... steps."""
    w, errors = tf.repeat(start[None], len(tasks[0]), axis=0), []
    for _ in range(steps + 1):
        error, w = measure_and_step(w, *tasks, tf.constant(alpha))
        errors.append(float(error))
    return np.array(errors)


rng = np.random.default_rng(seed)
scales = [1.0, 0.0, 40**-0.5, 0.0, 40**-0.5, 0.0]
random_start = tf.constant(rng.normal(size=1761) * np.repeat(scales, SIZES), tf.float32)
seen = sines(rng, rounds, 16)
held_out = sines(np.random.default_rng(seed + 5000), 500)  # to choose rates by

train_jointly = trainer(lambda w, x, y: tf.reduce_mean(task_losses(w, x, y)))
starts = {"jointly": train_jointly(random_start, *seen, tf.constant(0.01))}

# %% tags=["nbval-ignore-output"]
alphas = (0.005, 0.01, 0.02, 0.04, 0.08)
joint_alpha = min(alphas, key=lambda alpha: errors_along(starts["jointly"], held_out, alpha, 1)[1])
curves = {"jointly": errors_along(starts["jointly"], new, joint_alpha)}
print(f"trained jointly, before any step: {curves['jointly'][0]:.2f}")
print(f"after one step of the best rate:  {curves['jointly'][1]:.2f}")

# %% [markdown]
# Still about 3, where the answer 0 has about 4, and one step, at the best of five rates, leaves most of it. There are other weights of *this* network from which *one* step brings the error below a fifth of that. One more tape finds them.
#
# **Model-agnostic meta-learning** (MAML, Finn and others) asks for what is wanted. Let $L_A$ be a task's loss on ten points, and $L_B$ its loss on the ten others. Minimise, on average over many tasks,
#
# $$L_B(w'), \qquad w' = w - \alpha\,\nabla L_A(w),$$
#
# with respect to the start $w$. The step happens inside the target, so the target's gradient passes through the step:
#
# $$\nabla_w\, L_B(w') = (I - \alpha H_A)\, \nabla L_B(w').$$
#
# Here $H_A$ is the Hessian of $L_A$ at the start $w$, and a tape around a tape multiplies by it. `adapt` above takes the step for all tasks at once. It *adds* the tasks' losses: with their mean, 16 tasks would make every step 16 times too short.
#
# Two rates are to be chosen: $\alpha$ of the step, here 0.04, and that of the outer training. Each start is trained with three outer rates, and the one is kept that does best after one step on held-out sines.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 2.6 < curves["jointly"][0] < 3.4
assert curves["jointly"][1] > 2.0
assert curves["jointly"][1] > 0.7 * curves["jointly"][0]
assert joint_alpha not in (alphas[0], alphas[-1])  # the best rate lies between others
assert 3.5 < float(tf.reduce_mean(new[1] ** 2)) < 4.8
kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = np.split(starts["jointly"].numpy(), np.cumsum(SIZES)[:-1])
h = np.tanh(np.tanh(np.outer([-2.0, 0.5], kernel_1) + bias_1) @ kernel_2.reshape(40, 40) + bias_2)
in_numpy = h @ kernel_3 + bias_3
np.testing.assert_allclose(network(starts["jointly"][None], tf.constant([[-2.0, 0.5]]))[0], in_numpy, atol=1e-4)


# %%
ALPHA = 0.04


def after_one_step(second_derivatives):
    def start_loss(w, x, y):
        adapted = adapt(w, x[:, :10], y[:, :10], ALPHA, second_derivatives)
        return tf.reduce_mean(task_losses(adapted, x[:, 10:], y[:, 10:]))

    return start_loss


def best_start(train, sines_seen, alpha=ALPHA):
    tried = [train(random_start, *sines_seen, tf.constant(rate)) for rate in (0.005, 0.01, 0.02)]
    return min(tried, key=lambda start: errors_along(start, held_out, alpha, 1)[1])


starts["second order"] = best_start(trainer(after_one_step(second_derivatives=True)), seen)

# %% [markdown]
# **Predict.** Before any step, how does this start's error on a new sine compare with that of the jointly trained one?

# %%
exercises.before.guess(...)  # "smaller", "about the same" or "larger by half or more"

# %% tags=["nbval-ignore-output"]
curves["second order"] = errors_along(starts["second order"], new, ALPHA)
print("steps            0      1      5")
for kind, errors in curves.items():
    print(f"{kind:12} {errors[0]:6.2f} {errors[1]:6.2f} {errors[5]:6.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ratio = curves["second order"][0] / curves["jointly"][0]
exercises.before.reveal("smaller" if ratio < 0.8 else "about the same" if ratio < 1.5 else "larger by half or more")
assert 0.9 < ratio < 1.25
assert curves["second order"][1] < 0.2 * curves["jointly"][1]
assert curves["second order"][1] < 0.15 * curves["second order"][0]

# %% [markdown]
# Before any step the errors are nearly the same, about 3. On average over all such sines no single curve does better: the best one is their mean, $-1.62 \cos x$, and its mean squared error is 3.0. So a good start is not a good model. It is a point from which the *gradient* leads somewhere: the one step takes this start to about a tenth.
#
# Watch both on a new sine (grey); the dots are the ten points that the steps see.

# %% alt="Animation. Two panels, one for each start, from no gradient step to five. In each, a grey sine wave of amplitude 4 against x, ten points on it, and the network's curve. The learnt start bends to the sine with the first step; the jointly trained one is still far from it after five." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: a new sine, step by step
demo_x = tf.constant(np.linspace(-4.5, 4.5, 10)[None], tf.float32)
demo_y = 4.0 * tf.sin(demo_x - 0.5)
wide = tf.constant(np.linspace(-5, 5, 120)[None], tf.float32)
truth = 4.0 * np.sin(wide[0] - 0.5)
looks = {"jointly": ("^:", plots.ORANGE), "second order": ("o-", plots.BLUE), "first order": ("s--", plots.GREEN)}
paths = {}
for kind, alpha in {"jointly": joint_alpha, "second order": ALPHA}.items():
    w, paths[kind] = starts[kind][None], []
    for _ in range(6):
        paths[kind].append(network(w, wide)[0].numpy())
        w = adapt(w, demo_x, demo_y, tf.constant(alpha))
figure, axes = plt.subplots(1, 2, figsize=(7, 3.0), layout="constrained", sharey=True)
lines = []
for ax, kind in zip(axes, paths, strict=True):
    ax.plot(wide[0], truth, color=plots.GREY, linewidth=3, alpha=0.5)
    ax.plot(demo_x[0], demo_y[0], "o", color="black", markersize=4)
    lines.extend(ax.plot(wide[0], paths[kind][0], looks[kind][0][1:], color=looks[kind][1], linewidth=2))
    ax.set(title=f"start trained: {kind}", xlabel="x", ylim=(-6, 6))
axes[0].set_ylabel("y")


def show_step(step):
    for line, kind in zip(lines, paths, strict=True):
        line.set_ydata(paths[kind][step])
    figure.suptitle(f"A new sine after {step} gradient step{'s' if step != 1 else ''}")


plots.animate(figure, show_step, range(6), milliseconds=900).show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
misses = {kind: [float(np.mean((curve - truth) ** 2)) for curve in path] for kind, path in paths.items()}
for step in (1, 3, 5):
    assert misses["second order"][step] < 0.4 * misses["jointly"][step]
x = np.linspace(-5, 5, 10001)
best_single = 5.0**3 / (3 * 4.9) / 2 - np.mean((2.55 * 2 / np.pi * np.cos(x)) ** 2)  # 2.55: the mean amplitude
np.testing.assert_allclose(best_single, 3.0, atol=0.02)
np.testing.assert_allclose(2.55 * 2 / np.pi, 1.62, atol=0.005)
three = tf.stack([starts["jointly"], starts["second order"], random_start])  # a task's step is its own
one_by_one = [adapt(start[None], new[0][k : k + 1], new[1][k : k + 1], ALPHA)[0] for k, start in enumerate(three)]
np.testing.assert_allclose(adapt(three, new[0][:3], new[1][:3], ALPHA), one_by_one, rtol=0, atol=1e-4)

# %% [markdown]
# ### Exercise: MAML's gradient from a Hessian product (8 min)
#
# `fit` and `judge` take a tensor of shape $(n,)$ to a scalar; `w` is the start, `rate` a scalar tensor. Return the gradient of `judge(w - rate * g)` with respect to `w`, where `g` is the gradient of `fit` at `w`: shape $(n,)$. Put no tape around the step: use the formula, with
# one product with a Hessian.


# %%
def meta_gradient(fit, judge, w, rate):
    return ...  # shape (n,), as w


exercises.meta.check(meta_gradient)

# %% [markdown]
# ## 3. With and without second derivatives
#
# The product with $H_A$ about doubles the matrix products of a round (the check counts them). `stop_gradient` on the inner gradient, as in `adapt`, cuts the path through it. What remains is $\nabla L_B(w')$, taken for the gradient with respect to $w$: the **first-order** version. For the same products it may take twice the rounds. It gets 5000, and its own choice among the three outer rates.
#
# **Predict.** After one step: how large is the first-order start's error, relative to the second-order start's?

# %%
exercises.dropped.guess(...)  # "at most 1.05 times", "1.05 to 2 times" or "more than 4 times"

# %%
twice_as_many = sines(np.random.default_rng(seed + 9000), 2 * rounds, 16)
starts["first order"] = best_start(trainer(after_one_step(second_derivatives=False)), twice_as_many)
curves["first order"] = errors_along(starts["first order"], new, ALPHA)

# %% tags=["nbval-ignore-output"]
print("steps            0      1      5")
for kind, errors in curves.items():
    print(f"{kind:12} {errors[0]:6.2f} {errors[1]:6.2f} {errors[5]:6.2f}")

# %% alt="Line plot. The mean squared error on new sines against the number of gradient steps from 0 to 5, on a logarithmic axis. All three curves begin near 3. The second-order start falls furthest with the first step, the first-order start a little less; later steps take both further down, and gain less. The jointly trained start falls slowly and stays far above." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: error against steps
_, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for kind, errors in curves.items():
    ax.semilogy(errors, looks[kind][0], color=looks[kind][1], label=f"start trained: {kind}")
ax.set(title="One step from three starts, and four more", xlabel="gradient steps", ylabel="error on new sines")
ax.set_yticks([0.1, 0.2, 0.3, 0.5, 1, 2, 3], labels=["0.1", "0.2", "0.3", "0.5", "1", "2", "3"])
ax.minorticks_off()
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
lost = curves["first order"][1] / curves["second order"][1]
exercises.dropped.reveal(
    "at most 1.05 times" if lost <= 1.05 else "1.05 to 2 times" if lost < 3 else "more than 4 times"
)
assert 1.02 < lost < 2.2
assert curves["first order"][1] < 0.3 * curves["jointly"][1]


def products_for(second_derivatives):
    """How many matrix products a gradient through the step takes."""

    @tf.function
    def gradient(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            moved = adapt(w, new[0][:3], new[1][:3], ALPHA, second_derivatives)
            loss = tf.reduce_sum(task_losses(moved, new[0][:3], new[1][:3]))
        return tape.gradient(loss, w)

    operations = gradient.get_concrete_function(three).graph.get_operations()
    return sum("MatMul" in operation.type for operation in operations)


assert 1.5 < products_for(second_derivatives=True) / products_for(second_derivatives=False) < 2.5

# %% [markdown]
# Behind, with twice the rounds. The formula says what is missing. First order asks: which way does $L_B$ fall at $w'$? It moves the start that way. The factor $I - \alpha H_A$ asks also: how does a change of the start *change the step*?
#
# ### The rivals
#
# What would you bet against second order? Three questions:
#
# 1. *Which start, for one step?* **Reptile** (Nichol and others) moves the start towards where a few steps on each task end. **ANIL** (almost no inner loop, Raghu and others) lets the step move the last layer alone, 41 of the 1761 weights, in training and in use.
# 2. *Is one step the best use of ten points?* The joint start gets *time*: three times the rounds, then 300 steps of Adam. Or no gradient: keep a start's last 40 features, and *solve* for the last layer, by ridge regression on the ten points.
# 3. *Do these tasks need a network?* A **Gaussian process** draws a smooth curve through the ten points. 200 **random cosines** take the place of the features. And the **covariance** of the seen sines, counted in 40 bins, has two large directions: solve for these two.

# %%
LAST = tf.constant(np.repeat([0, 0, 0, 0, ALPHA, ALPHA], SIZES), tf.float32)  # a rate for the last layer alone


def last_layer_only(w, x, y):
    """ANIL: the step moves the last layer, the outer training all."""
    body, last = w[:, :-41], w[:, -41:]
    with tf.GradientTape() as tape:
        tape.watch(last)
        total = tf.reduce_sum(task_losses(tf.concat([body, last], axis=1), x[:, :10], y[:, :10]))
    last -= ALPHA * tape.gradient(total, last)
    return tf.reduce_mean(task_losses(tf.concat([body, last], axis=1), x[:, 10:], y[:, 10:]))


def towards_the_end(w, x, y):
    """Reptile: not a loss to be read, but its gradient is the mean way back from the end of three steps."""
    end = w
    for part in (slice(10), slice(10, 20), slice(10)):
        end = adapt(end, x[:, part], y[:, part], ALPHA)
    return tf.reduce_sum(w * tf.stop_gradient(w - end)) / (16 * ALPHA)


# %%
def after_solve(tasks, start, penalty):
    """The mean error on the others, after ridge regression on ten points for a change of the last layer."""
    x, y = (np.array(part, float) for part in tasks)
    kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = np.split(start.numpy().astype(float), np.cumsum(SIZES)[:-1])
    h = np.tanh(np.tanh(x[..., None] * kernel_1 + bias_1) @ kernel_2.reshape(40, 40) + bias_2)
    features = np.concatenate([h, np.ones_like(h[..., :1])], axis=2)  # the one is for the bias
    return ridge(features, y - h @ kernel_3 - bias_3, penalty)


def ridge(features, left, penalty):
    """The mean error on the others of what ridge regression on the first ten points explains of `left`."""
    known, others = features[:, :10], features[:, 10:]
    inner = known @ np.swapaxes(known, 1, 2) + penalty * np.eye(10)
    change = np.swapaxes(known, 1, 2) @ np.linalg.solve(inner, left[:, :10, None])
    return float(np.mean((left[:, 10:] - (others @ change)[..., 0]) ** 2))


cosines = np.random.default_rng(seed).normal(size=(4, 2, 200))


def random_cosines(tasks, draw, penalty):
    """The mean error on the others, after ridge regression on ten points for 200 cosines of random slope and phase."""
    slopes, phases = (0.3 + 0.1 * draw) * cosines[draw, 0], 9 * cosines[draw, 1]
    x, y = (np.array(part, float) for part in tasks)
    return ridge(np.cos(x[..., None] * slopes + phases), y, penalty)


def smooth_curve(tasks, reach, noise):
    """The mean error on the others of a Gaussian process with a squared exponential kernel, given ten points."""
    x, y = (np.array(part, float) for part in tasks)
    kernel = np.exp(-((x[:, :, None] - x[:, None]) ** 2) / (2 * reach**2))
    weights = np.linalg.solve(kernel[:, :10, :10] + noise * np.eye(10), y[:, :10, None])
    return float(np.mean((y[:, 10:] - (kernel[:, 10:, :10] @ weights)[..., 0]) ** 2))


def principal(x, y):
    """Of sines in 40 bins of x: the covariance's eigenvalues; their mean and its two largest directions, as curves."""
    x, y = (np.reshape(part, (-1, 20)).astype(float) for part in (x, y))
    bins = np.clip(4 * (x + 5), 0, 39).astype(int)
    mean = np.bincount(bins.ravel(), y.ravel()) / np.bincount(bins.ravel())
    left = y - mean[bins]
    place = (bins + 40 * np.arange(len(bins))[:, None]).ravel()
    sums, counts = (
        np.bincount(place, part, 40 * len(bins)).reshape(-1, 40) for part in (left.ravel(), np.ones(left.size))
    )
    own = [np.diag(np.bincount(bins.ravel(), part)) for part in (left.ravel() ** 2, None)]  # a point with itself
    eigenvalues, directions = np.linalg.eigh((sums.T @ sums - own[0]) / (counts.T @ counts - own[1]))
    return eigenvalues, (mean, *directions[:, -2:].T)


def two_unknowns(tasks, curves, penalty):
    """The mean error on the others, after ridge regression on ten points for two curves, added to the first."""
    x, y = (np.array(part, float) for part in tasks)
    mean, *features = (np.interp(x, np.linspace(-4.875, 4.875, 40), curve) for curve in curves)
    return ridge(np.stack(features, axis=2), y - mean, penalty)


def tuned(error, first, second):
    """The error on new tasks, with the pair of values that is best on the held-out ones."""
    return error(new, *min(itertools.product(first, second), key=lambda pair: error(held_out, *pair)))


def best_solve(starts):
    return tuned(after_solve, starts, 10.0 ** np.arange(-2.5, 1.1, 0.5))


thrice = sines(np.random.default_rng(seed + 9000), 3 * rounds, 16)
joint = [train_jointly(random_start, *thrice, tf.constant(rate)) for rate in (0.001, 0.002, 0.004, 0.008)]


@tf.function(jit_compile=True)
def fine_tune(start, x, y, rate):
    """The error on the ten others after 300 steps of Adam on ten points of each sine."""
    w = tf.repeat(start[None], len(x), axis=0)
    m, v = tf.zeros_like(w), tf.zeros_like(w)
    for i in tf.range(300):
        with tf.GradientTape() as tape:
            tape.watch(w)
            total = tf.reduce_sum(task_losses(w, x[:, :10], y[:, :10]))
        w, m, v = adam_step(w, tape.gradient(total, w), m, v, tf.cast(i, tf.float32), rate)
    return tf.reduce_mean(task_losses(w, x[:, 10:], y[:, 10:]))


def patient(starts):
    tried = [(start, tf.constant(rate)) for start in starts for rate in (1e-3, 3e-3, 1e-2)]
    start, rate = min(tried, key=lambda pair: fine_tune(pair[0], held_out[0][:100], held_out[1][:100], pair[1]))
    return float(fine_tune(start, new[0][:100], new[1][:100], rate))


eigenvalues, curves_of_sines = principal(*seen)
rivals = {
    "Reptile, then one step": errors_along(best_start(trainer(towards_the_end), seen), new, ALPHA)[1],
    "second order, then one step": curves["second order"][1],
    "ANIL, then one step": errors_along(best_start(trainer(last_layer_only), seen, LAST), new, LAST)[1],
    "jointly, 300 of Adam (100 sines)": patient(joint),
    "jointly, then a linear solve": best_solve(joint),
    "second order, then a linear solve": best_solve([starts["second order"]]),
    "a Gaussian process": tuned(smooth_curve, (1, 1.5, 2, 2.5, 3, 4), 10.0 ** np.arange(-8, -2)),
    "200 random cosines": tuned(random_cosines, range(4), 10.0 ** np.arange(-7, -1)),
    "the seen sines' covariance": tuned(two_unknowns, [curves_of_sines], 10.0 ** np.arange(-6, -2)),
}

# %% tags=["nbval-ignore-output"]
for number, (kind, error) in enumerate(rivals.items()):
    print(f"{number // 3 + 1}. {kind:34} {error:.3f}")

# %% alt="Dot plot. The error on new sines of nine methods, on a logarithmic axis, in three groups. One step from three starts: all between 0.25 and 0.5, Reptile the largest, ANIL the smallest. Other uses of ten points: the joint start about as the first group, the linear solve on the second-order start's features near 0.04. Without a network: a Gaussian process below 0.1, random cosines lower, the covariance of the seen sines lowest, near 0.001." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the rivals
_, ax = plt.subplots(figsize=(7.5, 3.9), layout="constrained")
groups = ("1. one step", "2. other uses of ten points", "3. no network")
for number, (group, colour) in enumerate(zip(groups, (plots.BLUE, plots.ORANGE, plots.GREEN), strict=True)):
    names = list(rivals)[3 * number : 3 * number + 3]
    ax.plot([rivals[name] for name in names], names, "o", markersize=9, color=colour, label=group)
ax.axvline(curves["second order"][1], color="black", linestyle="--", linewidth=1)
ax.set(xscale="log", xlim=(5e-4, 1), xlabel="error on new sines", title="Against second order and one step (dashed)")
ax.invert_yaxis()
ax.grid(axis="y", alpha=0.4)
ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# **The gradient finds a good start for one step. It does not say that one step is a good use of ten points, and here it is not**: a linear solve on the same start's features leaves less than a quarter of the error, though nobody trained them for one. A tape can go through the solve, too (Bertinetto and others).
#
# 1. Reptile stays behind second order, as first order did. ANIL is ahead: the features may stay as they are.
# 2. Time does not help the joint start as much as the linear solve does.
# 3. No network is needed. These sines are sums of two curves, $\sin x$ and $\cos x$, and who solves for two unknowns wins.
#
# <details><summary>Appendix: with ten seeds</summary>
#
# The error with the seeds 0 to 9, on the 500 new sines of each: minimum, median, maximum. What is tuned is chosen on the held-out sines. A round without second derivatives has fewer products, so first order and joint training get more rounds.
#
# | Start | Tuned | Rounds | Then | Error |
# |---|---|---|---|---|
# | second order, $\alpha = 0.04$ | outer rate, of three | 2500 | one step | 0.276, 0.318, 0.342 |
# | first order, $\alpha = 0.04$ | outer rate, of three | 5000 | one step | 0.368, 0.427, 0.560 |
# | Reptile, three steps | outer rate and $\alpha$, of three each | 2500 | one step | 0.345, 0.386, 0.429 |
# | ANIL | outer rate, and $\alpha$ of four | 2500 | one step of the last layer | 0.257, 0.281, 0.304 |
# | jointly | outer rate and $\alpha$, of four each | 7500 | one step | 2.30, 2.41, 2.63 |
# | jointly | outer rate of four, Adam's rate of three | 7500 | 300 steps of Adam (100 sines) | 0.35, 0.51, 0.72 |
# | jointly | outer rate, of four, and penalty | 7500 | linear solve | 0.201, 0.267, 0.397 |
# | none: a Gaussian process | length and noise, of six each | 0 | linear solve | 0.019, 0.058, 0.074 |
# | second order, $\alpha = 0.04$ | outer rate, of three, and penalty | 2500 | linear solve | 0.038, 0.045, 0.057 |
# | none: 200 random cosines | draw, each with its size of the slopes, of four, and penalty, of six | 0 | linear solve | 0.003, 0.014, 0.026 |
# | none: the covariance of 40,000 sines | bins, rank and penalty | 0 | linear solve | 0.0009, 0.0012, 0.0015 |
#
# </details>

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_spread = {  # the table: minimum and maximum with the seeds 0 to 9
    "Reptile, then one step": (0.345, 0.429),
    "jointly, 300 of Adam (100 sines)": (0.348, 0.715),
    "ANIL, then one step": (0.257, 0.304),
    "second order, then one step": (0.276, 0.342),
    "jointly, then a linear solve": (0.201, 0.397),
    "a Gaussian process": (0.019, 0.074),
    "200 random cosines": (0.003, 0.026),
    "second order, then a linear solve": (0.038, 0.057),
    "the seen sines' covariance": (0.0009, 0.0015),
}
assert rivals.keys() == check_spread.keys()
for check_name, (check_least, check_most) in check_spread.items():
    assert 0.9 * check_least < rivals[check_name] < 1.1 * check_most, check_name
assert 0.9 * 0.368 < curves["first order"][1] < 1.1 * 0.560
assert rivals["ANIL, then one step"] / 1.05 < curves["second order"][1] < rivals["Reptile, then one step"]
assert rivals["second order, then a linear solve"] < 0.25 * curves["second order"][1]
assert rivals["second order, then a linear solve"] < 0.6 * min(list(rivals.values())[:5])
assert rivals["jointly, then a linear solve"] < rivals["jointly, 300 of Adam (100 sines)"]
assert rivals["200 random cosines"] < rivals["second order, then a linear solve"]
assert rivals["the seen sines' covariance"] < 0.1 * rivals["second order, then a linear solve"]
assert rivals["the seen sines' covariance"] < 0.9 * rivals["200 random cosines"]
assert eigenvalues[-2] > 10 * np.abs(eigenvalues[:-2]).max()  # two directions
for check_w in (tf.broadcast_to(starts["second order"], [16, 1761]), tf.broadcast_to(random_start, [16, 1761])):
    check_moved = adapt(check_w, seen[0][0][:, :10], seen[1][0][:, :10], LAST)  # the whole gradient, and LAST's zeros
    check_loss = tf.reduce_mean(task_losses(check_moved, seen[0][0][:, 10:], seen[1][0][:, 10:]))
    np.testing.assert_allclose(last_layer_only(check_w, seen[0][0], seen[1][0]), check_loss, rtol=1e-4)
np.testing.assert_allclose(after_solve(new, starts["jointly"], 1e9), curves["jointly"][0], rtol=1e-3)  # no change
x, y = (np.array(part, float) for part in new)
basis = np.stack([np.sin(x), np.cos(x)], axis=2)
for k in range(20):
    unknowns = np.linalg.lstsq(basis[k, :10], y[k, :10], rcond=None)[0]
    np.testing.assert_allclose(basis[k, 10:] @ unknowns, y[k, 10:], atol=1e-4)

# %% [markdown]
# ### Exercise: How long should the step be? (5 min)
#
# The start is not the only number in $L_B(w - \alpha\,\nabla L_A(w))$. Return its derivative with respect to $\alpha$: `fit`, `judge`, `w` and `rate` are as above, the result is a scalar. Two gradients are enough.


# %%
def by_the_rate(fit, judge, w, rate):
    return ...  # a scalar


exercises.step_length.check(by_the_rate)

# %% [markdown]
# ## 4. Going further: one step ahead, and many steps
#
# The tape of the opening keeps all eight steps until it is asked. It would be cheaper to look *one* step ahead, while the training runs. The step is $w' = w - \eta g$ with $g = \nabla L(w)$, and the loss after it depends on the rate:
#
# $$\frac{\mathrm d L(w - \eta g)}{\mathrm d \eta} = -\nabla L(w')^\top g.$$
#
# This is a **hypergradient**: a derivative with respect to a *hyper*parameter. If the two have a positive inner product, a slightly longer step would have been better. Baydin and others let the rate follow it, with two gradients that the training computes anyway: that of this step and that of the last.
#
# How good a guide is it? Follow it to the end: let every step have the rate that is best right after it, at which the hypergradient is zero. The target is the opening's, the root mean square of what is left, and so is the rival: eight rates learnt together, through all steps.


# %%
w, greedy = np.ones(200), []
for _ in range(8):
    g = curvatures.numpy() * w
    greedy.append(g @ w / (g @ g))  # the least mean square after this step
    w = w - greedy[-1] * g


def root_mean_square(rates):
    return np.sqrt(np.mean(np.prod(1 - np.asarray(rates)[:, None] * curvatures, axis=0) ** 2))


single = min(np.linspace(0.015, 0.02, 101), key=lambda rate: root_mean_square([rate] * 8))
for name, rates in {"one rate, the best": [single] * 8, "greedy": greedy, "learnt together": stages[2.0]}.items():
    print(f"{name:18} {root_mean_square(rates):.3f}")

# %% [markdown]
# Greedy rates leave hardly less than one single rate; rates that are learnt together leave about half. No greedy step multiplies the error at $\lambda = 100$ by more than 1.3. The rates learnt together contain a step that multiplies it by 29, for a gain that comes at other steps. This is **short-horizon bias** (Wu and others): the one-step derivative does not know what a later step is good for.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
w = tf.ones_like(curvatures)
for rate in greedy:  # by tapes: at each of these rates the hypergradient is zero
    with tf.GradientTape() as outer:
        eta = tf.constant(rate)
        outer.watch(eta)
        w_after = w - eta * curvatures * w
        target = tf.reduce_mean(w_after**2)
    assert abs(float(outer.gradient(target, eta))) < 1e-9 * float(tf.reduce_mean((curvatures * w) ** 2))
    w = w_after
assert max(abs(1 - 100 * rate) for rate in greedy) < 1.3
np.testing.assert_allclose(max(abs(1 - 100 * rate) for rate in stages[2.0]), 29.4, atol=0.1)
np.testing.assert_allclose(root_mean_square([single] * 8), 0.2821, atol=5e-4)
np.testing.assert_allclose(root_mean_square(greedy), 0.2781, atol=5e-4)
np.testing.assert_allclose(root_mean_square(stages[2.0]), 0.1475, atol=5e-4)

# %% [markdown]
# ### Exercise: How a whole run answers to its rate (15 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Here is a derivative through *all* steps that needs no long tape. Gradient descent on `f` starts at `w`, shape $(n,)$, and takes `steps` steps with one `rate`, a scalar tensor. Return the derivative of the last *point* $w_T$ with respect to the rate: shape $(n,)$. Let
# the memory that you need not grow with the number of steps.


# %%
def point_by_rate(f, w, rate, steps):
    return ...  # the derivative of the last point with respect to the rate, shape (n,)


exercises.sensitivity.check(point_by_rate)

# %% [markdown]
# A product does not care about order, on paper. Here are 64 such rates, from $T_{64}$, on a quadratic loss of 30 weights with a full Hessian `A`, in two orders. The start is 1 along every eigenvector of `A`.

# %% tags=["nbval-ignore-output"]
directions = np.linalg.qr(rng.normal(size=(30, 30)))[0]
A = directions @ np.diag(np.linspace(1, 100, 30)) @ directions.T
many = 1 / (50.5 + 49.5 * np.cos(np.pi * (2 * np.arange(64) + 1) / 128))  # ascending
order = [0]
while len(order) < 64:  # behind each index its mirror image, in a list that is twice as long
    order = [j for i in order for j in (i, 2 * len(order) - 1 - i)]
ends = {}
for name, rates in {"ascending": many, "paired": many[order]}.items():
    w = directions @ np.ones(30)
    for rate in rates:
        w = w - rate * (A @ w)
    ends[name] = np.abs(directions.T @ w).max()
    print(f"64 rates, {name}: largest error left {ends[name]:.1e}")

# %% [markdown]
# The largest rates, one after the other, multiply rounding errors of $10^{-16}$ by up to $10^{27}$, and none is left to repair that.
#
# The second order is the cure, of V. I. Lebedev and S. A. Finogenov (1971), for $2^k$ rates: behind each rate stands its mirror image, behind each pair the mirrored pair, and so on. So the smallest rate comes before the largest, and shrinks what that one magnifies. Among the pairs it is the same: the outer ones magnify, the inner ones shrink. (A shuffle does as well with 64 rates, but promises nothing.) Or write Chebyshev's method as a recurrence: it then is momentum whose two numbers change from step to step.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert ends["ascending"] > 1e6
factors = np.abs(1 - many[:, None] * np.linspace(1, 100, 30))
assert 1e26 < np.cumprod(factors[::-1], axis=0).max() < 1e28  # the largest rates, one after the other
by_product = np.prod(factors, axis=0).max()
np.testing.assert_allclose(by_product, 1 / np.cosh(64 * np.arccosh(101 / 99)), rtol=1e-9)
assert sorted(order) == list(range(64))
np.testing.assert_allclose(ends["paired"], by_product, rtol=1e-10)
w, shift, weight = directions @ np.ones(30), 0.0, 1.0  # Chebyshev's recurrence
for t in range(64):
    weight = 1.0 if t == 0 else 1 / (1 - (49.5 / 50.5) ** 2 * weight / (2 if t == 1 else 4))
    before, w = w, w + (weight - 1) * shift - weight / 50.5 * (A @ w)
    shift = w - before
np.testing.assert_allclose(np.abs(directions.T @ w).max(), by_product, rtol=1e-10)

# %% [markdown]
# ## 5. Check it independently
#
# Here are answers that know nothing of tapes around loops. Chebyshev's own formula gives the lowest possible maximum, $1 / T_8\big(\tfrac{101}{99}\big)$, with $T_8(x) = \cosh(8 \operatorname{arcosh} x)$ for $x \ge 1$ ($-\tfrac{101}{99}$ is where the stretching has $\lambda = 0$, and $T_8$ is even). Central differences of whole runs give the derivative with respect to each rate's logarithm. And MAML's gradient comes from its formula, with the Hessian product written out, in float64.

# %% tags=["nbval-ignore-output"]
lowest = 1 / np.cosh(8 * np.arccosh(101 / 99))
print(f"largest error left: {lowest:.4f} is the lowest possible, {error_left(found).max():.4f} was learnt")


def by_numpy(v):
    left = np.prod(1 - np.exp(v)[:, None] * curvatures.numpy(), axis=0)
    return np.log(np.mean(left**2)) / 2


with tf.GradientTape() as tape:
    v = tf.constant(beginning)
    tape.watch(v)
    target = tf.math.log(tf.reduce_mean(descend(tf.exp(v)) ** 2)) / 2
through_the_loop = tape.gradient(target, v)
differences = np.ravel(gradcheck.numerical_jacobian(by_numpy, beginning))
print("each rate's, by the tape:   ", np.round(through_the_loop[:4], 4))
print("each rate's, by differences:", np.round(differences[:4], 4))

# %% tags=["nbval-ignore-output"]
one_x, one_y = tf.cast(new[0][:1], tf.float64), tf.cast(new[1][:1], tf.float64)
w = tf.cast(random_start, tf.float64)


def loss_a(w):
    return tf.reduce_sum(task_losses(w[None], one_x[:, :10], one_y[:, :10]))


def loss_b(w):
    return tf.reduce_sum(task_losses(w[None], one_x[:, 10:], one_y[:, 10:]))


def after_a_step(w, second_derivatives=True):
    return adapt(w[None], one_x[:, :10], one_y[:, :10], tf.constant(ALPHA, tf.float64), second_derivatives)[0]


meta_gradients = {}
for second_derivatives in (True, False):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = loss_b(after_a_step(w, second_derivatives))
    meta_gradients[second_derivatives] = tape.gradient(value, w)

there = after_a_step(w)
with tf.GradientTape() as tape:
    tape.watch(there)
    value = loss_b(there)
at_moved = tape.gradient(value, there)
with tf.GradientTape() as outer:  # the Hessian of loss_a, times at_moved
    outer.watch(w)
    with tf.GradientTape() as inner:
        inner.watch(w)
        value = loss_a(w)
    g = inner.gradient(value, w)
by_formula = at_moved - ALPHA * outer.gradient(g, w, output_gradients=at_moved)
size = tf.norm(by_formula)
print(f"second order against (I - αH) times the gradient: {tf.norm(meta_gradients[True] - by_formula) / size:.0e}")
print(f"first order against it:                           {tf.norm(meta_gradients[False] - by_formula) / size:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 1.0 <= error_left(found).max() / lowest < 1.01
np.testing.assert_allclose(error_left(1 / chebyshev_nodes).max(), lowest, rtol=1e-9)
np.testing.assert_allclose(through_the_loop, differences, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(meta_gradients[True], by_formula, rtol=0, atol=1e-12 * float(size))
np.testing.assert_allclose(meta_gradients[False], at_moved, rtol=1e-12)
assert tf.norm(meta_gradients[False] - by_formula) > 1e-3 * size
gradcheck.check_gradient(lambda w: float(loss_b(after_a_step(tf.constant(w)))), by_formula.numpy(), w.numpy())

# %% [markdown]
# ## Recap
#
# - A tape around eight steps, inner gradients and all, gave the derivative of their result with respect to every rate (section 1).
# - Eight learnt rates are Chebyshev's: their product is small everywhere, and half of them exceed $2/\lambda_{\max}$. They leave 0.389, where the best constant rate leaves 0.852 and momentum 0.502 (section 1).
# - With respect to the start, the gradient through one step is $(I - \alpha H_A)\,\nabla L_B(w')$. A good start is not a good model: here, before the step, it misses as much as the best single curve, after it a tenth of that (section 2).
# - The first-order start stayed behind, with twice the rounds. A good start for one step does not make one step a good use of ten points: a linear solve on the same features left less than a quarter of the error, and two unknowns in place of a network the least (section 3).
# - A derivative that looks one step ahead is greedy: here its rates were hardly better than one single rate (section 4).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | all rates start equal | they stay equal for hundreds of steps | start them apart |
# | many large rates in a row | rounding errors explode | Lebedev and Finogenov's order, or Chebyshev's recurrence |
# | a maximum as a target | the worst case changes from step to step: at a fixed rate Adam stays above | a falling rate, or a mean of high powers (undamped Newton: in small stages) |
# | a derivative that looks one step ahead | greedy rates | look further ahead, or know the bias |
# | the mean of the tasks' losses in the inner step | steps that are too short | add them |
# | `stop_gradient` on the inner gradient | the second derivatives are gone without a word | leave it out where one step has to count |
# | many steps on a tape | memory grows with them | few steps, first order, or forward mode for one number |
#
# **Further reading**
#
# - D. M. Young (1953), ["On Richardson's method for solving linear systems with positive definite matrices"](https://doi.org/10.1002/sapm1953321243). Lebedev and Finogenov's order stands in the Encyclopedia of Mathematics under ["Chebyshev iteration method"](https://encyclopediaofmath.org/wiki/Chebyshev_iteration_method).
# - D. Maclaurin, D. Duvenaud, R. P. Adams (2015), ["Gradient-based hyperparameter optimization through reversible learning"](https://arxiv.org/abs/1502.03492).
# - A. G. Baydin, R. Cornish, D. Martínez Rubio, M. Schmidt, F. Wood (2018), ["Online learning rate adaptation with hypergradient descent"](https://arxiv.org/abs/1703.04782).
# - Y. Wu, M. Ren, R. Liao, R. Grosse (2018), ["Understanding short-horizon bias in stochastic meta-optimization"](https://arxiv.org/abs/1803.02021).
# - C. Finn, P. Abbeel, S. Levine (2017), ["Model-agnostic meta-learning for fast adaptation of deep networks"](https://arxiv.org/abs/1703.03400).
# - A. Nichol, J. Achiam, J. Schulman (2018), ["On first-order meta-learning algorithms"](https://arxiv.org/abs/1803.02999): Reptile.
# - A. Raghu, M. Raghu, S. Bengio, O. Vinyals (2020), ["Rapid learning or feature reuse? Towards understanding the effectiveness of MAML"](https://arxiv.org/abs/1909.09157): ANIL.
# - L. Bertinetto, J. F. Henriques, P. H. S. Torr, A. Vedaldi (2019), ["Meta-learning with differentiable closed-form solvers"](https://arxiv.org/abs/1805.08136).
#
# **Read next:** [20 The derivative of a solution](20_derivative_of_a_solution.ipynb) does without the steps;
# [14 Without the matrix](14_without_the_matrix.ipynb) has conjugate gradients, which finds its own polynomial.
