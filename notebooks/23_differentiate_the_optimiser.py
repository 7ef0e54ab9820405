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
# # Differentiate the optimiser
#
# A training loop is a program like any other: multiply, subtract, repeat. So a tape can record it, optimiser and all, and differentiate its *result* with respect to what you would otherwise set by hand: the rates of the steps.
# **What does a gradient through a training loop find?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/23_differentiate_the_optimiser.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb), [12 Forward mode](12_forward_mode.ipynb) · **Minutes:** 21 to read, 23 for the exercises; to work through it all, about 1 h 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import data, gradcheck, optimize, plots, runtime
from tapelab.exercises.sheets import differentiate_the_optimiser as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %% [markdown]
# A quadratic loss $\tfrac12 \lambda w^2$ for each of 200 curvatures $\lambda$ between 1 and 100; all of them start at $w = 1$, the minimum is at 0. You may take eight steps of gradient descent. With one rate for all steps, the best for the worst curvature is $2/(1 + 100)$: it leaves as much at $\lambda = 1$ as at $\lambda = 100$.


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
log_rates = tf.Variable(np.log(2 / 101) + 0.3 * rng.normal(size=8))  # their logarithms: rates stay positive
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
# The same number of steps, the same price for each, and the worst curvature keeps 0.58 in place of 0.85. Nobody told the rates what to be. Ask for the best *worst case*, and what they find has a name, and has been known since the 1950s.
#
# **You will be able to**
#
# - record a training loop on a tape, and differentiate its result with respect to every rate (section 1),
# - say what the learnt rates are, and what becomes of the limit $2/\lambda_{\max}$ (section 1),
# - let a learning rate tune itself, and say what looking one step ahead costs (section 2).

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
# With one rate for ever, $|1 - \eta\lambda| < 1$ has to hold for all $\lambda$: the rate must stay below $2/\lambda_{\max} = 0.02$, or the steps explode. [14](14_without_the_matrix.ipynb) called it the speed limit of gradient descent.
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
# Half of them, and the largest by far. That step alone multiplies the error at $\lambda = 100$ by about $-30$, and the seven others repair it. A *product* has to be small, not each of its factors. And a product does not care about order: these eight numbers work in any order.
#
# In the figure above, what is left starts at 0.58, and the waves get lower. That is what was asked for: a small mean *square*, in which a few curvatures may keep a lot. You want little to be left at the worst curvature. A maximum is a slow target, as its gradient sees one curvature at a time: with the logarithm of the largest error as target, 300 steps of Adam leave 0.43 to 0.82, and 2000 steps about 0.40 (tried with twelve starts). A mean of high powers comes close to it and is smooth:
#
# $$\Big(\operatorname{mean}_\lambda |w_8|^p\Big)^{1/p} \to \max_\lambda |w_8| \qquad (p \to \infty).$$
#
# There are only eight numbers to find, so this is a case for Newton's method ([13](13_hessians_and_newton.ipynb)). First by hand, for $p = 2$, from where Adam stopped. The inner gradient is written out now, $\lambda w$, which keeps the graph small.


# %%
def power_mean(v, p):
    """The logarithm of the mean of |w|^p, to the power 1/p; v holds the logarithms of the rates."""
    w = tf.ones_like(curvatures)
    for rate in tf.unstack(tf.exp(v)):
        w -= rate * curvatures * w
    return tf.math.log(tf.reduce_mean((w**2) ** (p / 2))) / p  # (w²)^(p/2): |w| has no second derivative at 0


@tf.function
def second_order(v):
    with tf.GradientTape() as outer:
        outer.watch(v)
        with tf.GradientTape() as inner:
            inner.watch(v)
            target = power_mean(v, 2.0)
        g = inner.gradient(target, v)
    return g, outer.jacobian(g, v)


# %% tags=["nbval-ignore-output"]
v, sizes_of_g = tf.identity(log_rates), []
for _ in range(4):
    g, H = second_order(v)
    sizes_of_g.append(float(tf.reduce_max(tf.abs(g))))
    v += tf.linalg.solve(H, -g[:, None])[:, 0]
print("largest entry of the gradient:", [f"{size:.0e}" for size in sizes_of_g])

# %% [markdown]
# A second derivative of eight steps of an optimiser, and it converges quadratically, down to rounding. `optimize.newton` does the same with damping and a line search, so that it also works far from the minimum. It calls `raise_power` after each step. This function doubles the power $p$, from 2 up to 128, whenever the gradient is small.

# %% tags=["nbval-ignore-output"]
power, stages = tf.Variable(2.0, dtype=tf.float64), {}


def raise_power(step):
    p = float(power)
    if step.gradient_norm < 1e-3:
        stages[p] = np.sort(tf.exp(log_rates))
        power.assign(min(2.0 * p, 128.0))


report = optimize.newton(
    lambda: power_mean(log_rates, power), wrt=log_rates, iterations=100, tolerance=1e-9, callback=raise_power
)
for p, rates in stages.items():
    print(f"p = {p:3.0f}: largest error left {error_left(rates).max():.4f}")
found = stages[128.0]

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert sizes_of_g[0] < 1e-2
assert sizes_of_g[-1] < 1e-11  # quadratic convergence
np.testing.assert_allclose(stages[2.0], np.sort(tf.exp(v)), rtol=1e-6)  # by hand and by the helper
np.testing.assert_allclose(error_left(stages[2.0]).max(), 0.5762, atol=1e-4)
assert list(stages) == [2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0]
assert np.all(np.diff([error_left(rates).max() for rates in stages.values()]) < 0)
np.testing.assert_allclose(error_left(stages[128.0]).max(), 0.3891, atol=1e-3)
assert np.sum(stages[128.0] > 0.02) == 4
assert 24 < stages[128.0].max() / 0.02 < 26.5
assert 28 < abs(1 - 100 * float(np.max(learnt))) < 32

# %% [markdown]
# The largest error left falls to 0.389, where the best constant rate leaves 0.852. To leave as little, the constant rate needs 48 steps in place of eight. What are these numbers? Look at their reciprocals, $1/\eta_t$: the curvatures at which one step lands exactly on 0. Draw a half circle over the curvatures, and cut it into eight equal arcs.

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
# Of all polynomials of degree at most 8 that are 1 at $\lambda = 0$ (with no step, nothing changes), this one has the lowest maximum (of its absolute value) between $\lambda_{\min}$ and $\lambda_{\max}$: it spends its whole allowance in waves of one height. D. M. Young, among others, worked out these rates in 1953, for linear systems. At $p = 128$ the learnt rates agree with these to 0.7 %, twice as closely as at $p = 64$.
#
# There are two traps. Do not *start* with eight equal rates. Then all eight derivatives are equal too, and the rates move alike. The best constant rate is a saddle of this search: only rounding errors lead away from it. (From eight equal rates of 0.015, Adam needed some six hundred steps to begin to part them; from eight of $2/101$ it had not in 3000. Tried.)
#
# The second trap is the order: "in any order" holds on paper. Here are 64 such rates, from $T_{64}$, on a quadratic loss of 30 weights with a full Hessian `A`, in three orders. The start is 1 along every eigenvector of `A`.

# %% tags=["nbval-ignore-output"]
directions = np.linalg.qr(rng.normal(size=(30, 30)))[0]
A = directions @ np.diag(np.linspace(1, 100, 30)) @ directions.T
many = 1 / (50.5 + 49.5 * np.cos(np.pi * (2 * np.arange(64) + 1) / 128))  # ascending
order = [0]
while len(order) < 64:  # behind each index its mirror image, in a list that is twice as long
    order = [j for i in order for j in (i, 2 * len(order) - 1 - i)]
ends = {}
for name, rates in {"ascending": many, "shuffled": rng.permutation(many), "paired": many[order]}.items():
    w = directions @ np.ones(30)
    for rate in rates:
        w = w - rate * (A @ w)
    ends[name] = np.abs(directions.T @ w).max()
    print(f"64 rates, {name}: largest error left {ends[name]:.1e}")

# %% [markdown]
# The largest rates, one after the other, multiply rounding errors of $10^{-16}$ by up to $10^{27}$, and none is left to repair that. Shuffled like this, they leave what the product says. It is not safe: of 2000 random orders about one in sixty was off by more than 5 %, the worst by a factor of $10^5$ (tried).
#
# The third order is the cure, of V. I. Lebedev and S. A. Finogenov (1971), for $2^k$ rates: behind each rate stands its mirror image, behind each pair the mirrored pair, and so on. So the smallest rate comes before the largest, and shrinks what that one magnifies. Here this order leaves what the product says to ten digits. So does Chebyshev's recurrence, which has no such rates: it makes each point from the two before it (the check runs it).
#
# For *one* such loss these rates are not the best. There the method of conjugate gradients ([14](14_without_the_matrix.ipynb)) reaches a lower value in as many steps. It needs two inner products for each step. Chebyshev's rates are known before the first one, and hold for every quadratic loss with curvatures between $\lambda_{\min}$ and $\lambda_{\max}$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
chebyshev = np.sort(1 / chebyshev_nodes)
assert np.abs(found / chebyshev - 1).max() < 0.01
assert error_left(found).max() < 0.392
assert error_left(constant).max() > 0.85
assert ((99 / 101) ** np.arange(60) <= 0.389).argmax() == 48  # steps of the constant rate
peaks = error_left(chebyshev)
tops = np.flatnonzero((peaks[1:-1] > peaks[:-2]) & (peaks[1:-1] > peaks[2:])) + 1
assert len(tops) == 7  # and the two ends: nine waves
np.testing.assert_allclose(peaks[[0, *tops, -1]], peaks[0], rtol=1e-3)
off = {p: np.abs(rates / chebyshev - 1).max() for p, rates in stages.items()}
np.testing.assert_allclose(off[64.0] / off[128.0], 2.0, atol=0.1)
equal, bent = second_order(tf.math.log(constant))
np.testing.assert_allclose(equal, tf.fill([8], equal[0]), rtol=1e-9)
assert bent[0, 0] < bent[0, 1]  # the curvature that parts two equal rates is negative
assert ends["ascending"] > 1e6
factors = np.abs(1 - many[:, None] * np.linspace(1, 100, 30))
assert 1e26 < np.cumprod(factors[::-1], axis=0).max() < 1e28  # the largest rates, one after the other
by_product = np.prod(factors, axis=0).max()
np.testing.assert_allclose(by_product, 1 / np.cosh(64 * np.arccosh(101 / 99)), rtol=1e-9)
np.testing.assert_allclose(ends["shuffled"], by_product, rtol=0.05)
assert sorted(order) == list(range(64))
np.testing.assert_allclose(ends["paired"], by_product, rtol=1e-10)
w, shift, weight = directions @ np.ones(30), 0.0, 1.0  # Chebyshev's recurrence
for t in range(64):
    weight = 1.0 if t == 0 else 1 / (1 - (49.5 / 50.5) ** 2 * weight / (2 if t == 1 else 4))
    before, w = w, w + (weight - 1) * shift - weight / 50.5 * (A @ w)
    shift = w - before
np.testing.assert_allclose(np.abs(directions.T @ w).max(), by_product, rtol=1e-10)
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
# ## 2. A rate that tunes itself
#
# Eight steps fit on a tape, and so would the 300 of the training below (about 100 MB, tried). But the tape keeps every step: memory grows with the training, and you have the derivative only when it is over. To set the rate on the way, look *one* step ahead. The step is $w' = w - \eta g$ with $g = \nabla L(w)$, and the loss after it depends on the rate:
#
# $$\frac{\mathrm d L(w - \eta g)}{\mathrm d \log\eta} = -\,\eta\; \nabla L(w')^\top g.$$
#
# This is a **hypergradient**: a derivative with respect to a *hyper*parameter, while the training runs. It says: if the new gradient still points the way of the old, the step was too short. If it points back, the step has overshot.
#
# The training is a 64-32-10 network on digits, 300 steps with 100 images each; the hypergradient looks at the images of its own step. The last three arguments of `train` say how the rate's logarithm follows the hypergradient: by its value, or by fixed amounts up and down.

# %%
# One of TensorFlow's graph rewrites is meant for float32 and warns about float64 layers: off.
tf.config.optimizer.set_experimental_options({"remapping": False})

images = data.load("digits")
pixels = tf.constant(images.x_train.reshape(-1, 64), tf.float64)
targets = tf.one_hot(images.y_train, 10, dtype=tf.float64)


def draw(rng):
    """The images of each step, and the weights at the beginning."""
    batches = tf.constant(rng.integers(0, len(pixels), size=(300, 100)))
    kernels = [rng.normal(size=2048) / 8, np.zeros(32), rng.normal(size=320) / 32**0.5, np.zeros(10)]
    return batches, tf.constant(np.concatenate(kernels))


batches, initial = draw(rng)


def digits_loss(w, x, y):
    kernel_1, bias_1, kernel_2, bias_2 = tf.split(w, [2048, 32, 320, 10])
    h = tf.tanh(x @ tf.reshape(kernel_1, [64, 32]) + bias_1)
    logits = h @ tf.reshape(kernel_2, [32, 10]) + bias_2
    return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(y, logits))


def batch_loss(w, batch):
    return digits_loss(w, tf.gather(pixels, batch), tf.gather(targets, batch))


def batch_gradient(w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = batch_loss(w, batch)
    return tape.gradient(loss, w)


@tf.function(jit_compile=True)
def train(batches, w, log_rate, by_value, up, down):
    """Returns the loss over all images after 300 steps, and the rate after each of them."""
    rates = tf.TensorArray(tf.float64, 300)
    for i in tf.range(300):
        g = batch_gradient(w, batches[i])
        with tf.GradientTape() as tape:
            tape.watch(log_rate)
            w_after = w - tf.exp(log_rate) * g  # the optimiser's step, on a tape
            loss_after = batch_loss(w_after, batches[i])
        h = tape.gradient(loss_after, log_rate)  # the hypergradient
        w, log_rate = w_after, log_rate - by_value * h + tf.where(h < 0, up, -down)
        rates = rates.write(i, tf.exp(log_rate))
    return digits_loss(w, pixels, targets), rates.stack()


def run(rate, by_value=0.0, up=0.0, down=0.0, drawn=(batches, initial)):
    numbers = [tf.constant(number, tf.float64) for number in (np.log(rate), by_value, up, down)]
    last, rates = train(*drawn, *numbers)
    return float(last), rates.numpy()


# %% [markdown]
# First the plain way, gradient descent on the rate's logarithm. The rate begins at 0.0001, which is far too small.

# %% tags=["nbval-ignore-output"]
plain_loss, plain_rates = run(1e-4, by_value=0.1)
print(f"the rate 0.0001 becomes {plain_rates[-1]:.6f}, the loss is {plain_loss:.2f}")

# %% [markdown]
# It does not move, and the loss stays where it began. (A hundred times as fast, it does not either; a thousand times as fast, it overshoots and the loss explodes. Tried.) The formula says why: the hypergradient carries a factor $\eta$. The smaller the rate, the fainter the voice that calls for a larger one. But its *sign* is right at any size. So move the logarithm by fixed amounts: up by 0.1 where the sign asks for a longer step, down by 0.2 where it asks for a shorter one. (Down faster than up, because the best rates are neighbours of those that explode.)
#
# **Predict.** The rate begins at 0.000001. Fixed there, 300 steps leave the loss above 2. What does the rate that follows the sign leave?

# %%
exercises.follows_sign.guess(...)  # "above 2", "between 0.5 and 2" or "below 0.2"

# %%
beginnings = [1e-6, 1e-4, 1e-2, 1.0]
tuned = {rate: run(rate, up=0.1, down=0.2) for rate in beginnings}
fixed = {rate: run(rate)[0] for rate in [1e-6, 1e-4, 1e-2, 0.1, 0.3, 0.6, 1.0, 1.5, 3.0]}

# %% tags=["nbval-ignore-output"]
for rate in beginnings:
    print(f"begins at {rate:8g}: fixed there {fixed[rate]:.3f}, self-tuned {tuned[rate][0]:.3f}")
best = min(fixed, key=fixed.get)
print(f"best fixed rate, {best:g}: {fixed[best]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ended = tuned[1e-6][0]
exercises.follows_sign.reveal("above 2" if ended > 2 else "below 0.2" if ended < 0.2 else "between 0.5 and 2")
assert ended < 0.2
assert fixed[1e-6] > 2
assert fixed[1e-4] > 2
assert plain_rates[-1] < 2e-4  # the plain way: the rate stays
assert plain_loss > 2
assert max(last for last, _ in tuned.values()) < 0.2
climbing = tuned[1e-6][1]
np.testing.assert_allclose(climbing[99], 1e-6 * np.exp(10.0), rtol=1e-6)  # up, a hundred times
assert 120 < np.argmax(climbing > 0.5) < 160
for _, rates in tuned.values():
    assert 0.4 < np.median(rates[200:]) < 2.5  # one plateau
    assert 0.25 < np.mean(np.diff(rates[150:]) < 0) < 0.42  # up by 0.1 twice as often as down by 0.2
assert best < 3
assert fixed[3.0] > 2  # a neighbour that explodes
assert fixed[best] < min(last for last, _ in tuned.values())


@tf.function(jit_compile=True)
def by_size(batches, w, rate, beta):
    for i in tf.range(300):
        g = batch_gradient(w, batches[i])
        with tf.GradientTape() as tape:
            tape.watch(rate)
            w_after = w - rate * g
            loss_after = batch_loss(w_after, batches[i])
        w, rate = w_after, rate - beta * tape.gradient(loss_after, rate)
    return digits_loss(w, pixels, targets)


def baydin(rate, beta, drawn=(batches, initial)):
    return float(by_size(*drawn, tf.constant(rate, tf.float64), tf.constant(beta, tf.float64)))


assert baydin(1e-6, 0.3) < ended
assert run(10.0, up=0.1, down=0.2)[0] > 0.5  # from the other side: not back yet

# %% alt="Two line plots. Left, the self-tuned rate against steps on a logarithmic axis: from four beginnings, a millionth to one, straight lines climb at one slope and meet on one jagged plateau around one. Right, the loss after 300 steps against the rate at the beginning: for fixed rates it falls from above 2 to a few hundredths at 1 and 1.5, and at 3 it is far above 10; the self-tuned ones lie below 0.2 all along." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the climb, and what it is worth
_, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
for (rate, (_, rates)), style in zip(tuned.items(), ("-", "--", "-.", ":"), strict=True):
    left.semilogy(rates, style, label=f"begins at {rate:g}")
left.set(title="Six orders of magnitude, then one plateau", xlabel="step", ylabel="rate")
left.legend(loc="lower right")
right.loglog(list(fixed), list(fixed.values()), "o--", color=plots.ORANGE, label="fixed there")
right.loglog(beginnings, [last for last, _ in tuned.values()], "s-", color=plots.BLUE, label="self-tuned")
right.set(title="The loss after 300 steps", xlabel="rate at the beginning", ylabel="loss")
right.legend()
plt.show()

# %% [markdown]
# Below 0.2, from each of the four beginnings. The rate climbs by the same factor each step, until it overshoots at one step in three; then up and down balance. (0.1 on the logarithm is a factor of $e^{0.1} \approx 1.1$; the climb from a millionth takes some 140 steps.) From the other side it comes back slowly: begun at 10, the first steps saturate the tanh units, and the loss ends at 0.8 to 2.3 (with the seeds 0 to 9).
#
# The sign is one cure. The other is to leave the logarithm out: $\mathrm d L / \mathrm d \eta = -\nabla L(w')^\top g$ has no factor $\eta$, and Baydin and others subtract $\beta$ times it from the rate. From a millionth that ends lower than the sign does, at 0.06 to 0.08 for $\beta$ from 0.1 to 1. With $\beta = 2$ one run of ten explodes, with $\beta = 3$ nine (the check runs 0.3; the rest was tried with the seeds 0 to 9). So $\beta$ has to be found. The sign's two numbers have no unit, but they were found as well: 0.3 and 0.6 climb three times as fast and end at 0.06 to 0.10; 0.05 and 0.1 end at 0.25 to 0.32 (tried with the same seeds).
#
# Nothing of this is free. The best fixed rate ends lower than every self-tuned run, and begun at 1 the self-tuned one ends higher than 1 left alone (0.060 and 0.055 here; so in 23 of 25 other draws). To know the best, you train several times:
#
# | way | how it is tuned | gradients | loss, seeds 0 to 9: minimum, median, maximum |
# |---|---|---|---|
# | fixed rate | the best of nine by the loss itself, on the training images: 1.5 with each seed | 300 a run, 2700 for all nine | 0.030, 0.036, 0.041 |
# | sign, from 0.000001 | 0.1 up and 0.2 down, the same with each seed | 600: two a step | 0.091, 0.097, 0.111 |
# | sign, from 1 | the same | 600 | 0.052, 0.057, 0.065 |
# | rate itself (Baydin), from 0.000001 | $\beta = 0.3$, the same with each seed | 600 | 0.058, 0.064, 0.076 |
# | rate itself, from 1 | the same | 600 | 0.057, 0.061, 0.073 |
# | Adam, fixed rate | the best of five by the median of this loss: 0.03 | 300 a run, 1500 for all five | 0.006, 0.007, 0.012 |
#
# On thirty other draws, three for each seed, one of the runs with the sign from 1 ended at 0.30, the others below 0.09.
#
# All but the last have one rate for all weights. Adam, the rival from outside, has one for each weight. It ends about five times lower than the best fixed rate, and needs its own rate as well: with 0.003 it ends at 0.12 to 0.13 (the same seeds).


# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
@tf.function(jit_compile=True)
def adams_loss(batches, w, rate):
    m, v = tf.zeros_like(w), tf.zeros_like(w)
    for i in tf.range(300):
        g = batch_gradient(w, batches[i])
        t = tf.cast(i + 1, tf.float64)
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w -= rate * m / (1 - 0.9**t) / (tf.sqrt(v / (1 - 0.999**t)) + 1e-7)
    return digits_loss(w, pixels, targets)


begun_at_one = []
for k in range(3):  # the table's order and sizes, on other batches and from other weights
    drawn = draw(np.random.default_rng([seed, k]))
    by_rate = {rate: run(rate, drawn=drawn)[0] for rate in fixed}
    from_tiny, from_one = (run(rate, up=0.1, down=0.2, drawn=drawn)[0] for rate in (1e-6, 1.0))
    least = min(by_rate.values())
    assert least == by_rate[1.5] or seed > 9  # the seeds of the table
    assert 0.025 < least < from_one
    assert 0.08 < from_tiny < 0.16
    begun_at_one.append(from_one)
    by_value_of_h = baydin(1e-6, 0.3, drawn)
    assert least < by_value_of_h < 0.9 * from_tiny
    by_adam = {rate: float(adams_loss(*drawn, tf.constant(rate, tf.float64))) for rate in (0.003, 0.03)}
    assert by_adam[0.03] < 0.7 * least
    assert 0.11 < by_adam[0.003] < 0.14
assert sorted(begun_at_one)[1] < 0.09  # but for one

# %% [markdown]
# Why do the self-tuned runs end higher? The steps lost in the climb are one reason. There is a deeper one: looking one step ahead is *greedy*. Try it on section 1's quadratics, choosing each rate for the lowest loss, summed over all 200 curvatures, right after its own step: steepest descent with an exact line search ([13](13_hessians_and_newton.ipynb)). The rival learns its eight rates together, through all the steps, for the same loss.

# %% tags=["nbval-ignore-output"]
w, greedy = np.ones(200), []
for _ in range(8):
    g = curvatures.numpy() * w
    greedy.append(g @ g / (g @ (curvatures.numpy() * g)))  # where the hypergradient is 0
    w = w - greedy[-1] * g


def summed_loss(rates):
    """The loss after steps with these rates, summed over the 200 curvatures."""
    w = tf.ones_like(curvatures)
    for rate in tf.unstack(rates):
        w -= rate * curvatures * w
    return tf.reduce_sum(curvatures * w**2) / 2


together = tf.Variable(np.log(found))
optimize.lbfgs(lambda: tf.math.log(summed_loss(tf.exp(together))), wrt=together, iterations=300, tolerance=1e-8)
schedules = {"greedy": greedy, "all eight together": np.exp(together)}
schedules["the best single rate"] = np.full(8, min(np.linspace(0.005, 0.02, 301), key=lambda r: summed_loss([r] * 8)))
summed = {name: float(summed_loss(tf.constant(rates, tf.float64))) for name, rates in schedules.items()}
for name, left in summed.items():
    print(f"{name:22} summed loss {left:5.1f}")

# %% [markdown]
# Greedy rates are hardly better than one single rate; rates that are learnt together leave about a quarter. (So it is with eight steps. With two they leave 0.85 of what greedy rates leave, with sixteen 0.04; tried.) None of the greedy steps makes the error at $\lambda = 100$ larger by more than a tenth. The rates learnt together contain a step that multiplies it by sixteen, for a gain that comes at other steps. This is **short-horizon bias**: a derivative through few steps does not know what a later one is good for.
#
# On the digits the bias is larger than it looks. Let the hypergradient look at *all* images in place of those of its own step: from 1 the rate then sinks to about 0.1, and the loss ends at 0.17 to 0.19, three times as high (tried with eight seeds, with the same amounts up and down). On the images that a step was computed from it looks better than it is, and here that happens to make up for the greed.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
w = tf.ones_like(curvatures)
for rate in greedy:  # by tapes: at each of these rates the hypergradient is zero
    with tf.GradientTape() as outer:
        eta = tf.constant(rate)
        outer.watch(eta)
        w_after = w - eta * curvatures * w
        loss = tf.reduce_sum(curvatures * w_after**2) / 2
    assert abs(float(outer.gradient(loss, eta))) < 1e-6 * float(tf.reduce_sum((curvatures * w) ** 2))
    w = w_after
assert max(greedy) < 0.03
assert 0.84 < error_left(greedy).max() < 0.88
assert max(abs(1 - 100 * rate) for rate in greedy) < 1.1
np.testing.assert_allclose(abs(1 - 100 * float(np.max(schedules["all eight together"]))), 16, atol=1)
assert 0.9 < summed["greedy"] / summed["the best single rate"] < 1.0
assert 0.2 < summed["all eight together"] / summed["greedy"] < 0.35

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
# ## 3. Check it independently
#
# Here are two answers that know nothing of tapes around loops. Chebyshev's own formula gives the lowest possible maximum, $1 / T_8\big(\tfrac{101}{99}\big)$, with $T_8(x) = \cosh(8 \operatorname{arcosh} x)$ for $x \ge 1$ ($-\tfrac{101}{99}$ is where the stretching has $\lambda = 0$, and $T_8$ is even). Central differences of whole runs give the
# derivative with respect to each rate's logarithm.

# %% tags=["nbval-ignore-output"]
lowest = 1 / np.cosh(8 * np.arccosh(101 / 99))
print(f"largest error left: {lowest:.4f} is the lowest possible, {error_left(found).max():.4f} was learnt")


def by_numpy(v):
    left = np.prod(1 - np.exp(v)[:, None] * curvatures.numpy(), axis=0)
    return np.log(np.mean(left**2)) / 2


point = np.log(2 / 101) + 0.3 * np.random.default_rng(seed).normal(size=8)  # where the opening began
with tf.GradientTape() as tape:
    v = tf.constant(point)
    tape.watch(v)
    target = tf.math.log(tf.reduce_mean(descend(tf.exp(v)) ** 2)) / 2
through_the_loop = tape.gradient(target, v)
differences = gradcheck.numerical_jacobian(by_numpy, point)
print("each rate's, by the tape:       ", np.round(through_the_loop[:4], 4))
print("each rate's, by differences:", np.round(differences[:4], 4))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 1.0 <= error_left(found).max() / lowest < 1.01
np.testing.assert_allclose(error_left(1 / chebyshev_nodes).max(), lowest, rtol=1e-9)
np.testing.assert_allclose(through_the_loop, np.ravel(differences), rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - A tape around a training loop, inner gradients and all, gives the derivative of its result with respect to every rate; it keeps every step until it is asked (section 1).
# - Eight learnt rates are Chebyshev's: their product is small everywhere, and half of the factors exceed $2/\lambda_{\max}$. They leave 0.389 where the best constant rate leaves 0.852 (section 1).
# - The hypergradient $-\eta\, \nabla L(w')^\top g$ tunes a rate while it trains, if you follow its sign. It looks one step ahead, and greedy rates are hardly better than one single rate on section 1's quadratics (section 2).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | all rates start equal | they stay equal for hundreds of steps | start them apart |
# | many large rates in a row | rounding errors explode | each rate's mirror image behind it (Lebedev and Finogenov's order), or Chebyshev's recurrence |
# | a maximum as a target | one curvature is served at a time | a mean of high powers, raised in stages |
# | the hypergradient's size, on a logarithm | a small rate stays small | follow its sign, faster down than up; or the derivative with respect to the rate itself |
# | a derivative through few steps | greedy choices | look further ahead, or know the bias |
# | a long loop on a tape | memory grows with the steps | forward mode for one number, or few steps |
#
# **Further reading**
#
# - D. M. Young (1953), ["On Richardson's method for solving linear systems with positive definite matrices"](https://doi.org/10.1002/sapm1953321243).
# - V. I. Lebedev, S. A. Finogenov (1971) gave the order of the rates; the Encyclopedia of Mathematics has it under ["Chebyshev iteration method"](https://encyclopediaofmath.org/wiki/Chebyshev_iteration_method).
# - D. Maclaurin, D. Duvenaud, R. P. Adams (2015), ["Gradient-based hyperparameter optimization through reversible learning"](https://arxiv.org/abs/1502.03492).
# - A. G. Baydin, R. Cornish, D. Martínez Rubio, M. Schmidt, F. Wood (2018), ["Online learning rate adaptation with hypergradient descent"](https://arxiv.org/abs/1703.04782).
# - K. Chandra, A. Xie, J. Ragan-Kelley, E. Meijer (2022), ["Gradient descent: the ultimate optimizer"](https://arxiv.org/abs/1909.13371).
# - Y. Wu, M. Ren, R. Liao, R. Grosse (2018), ["Understanding short-horizon bias in stochastic meta-optimization"](https://arxiv.org/abs/1803.02021).
#
# **Read next:** [30 Learn the start](30_learn_the_start.ipynb) differentiates with respect to the point where the steps begin;
# [14 Without the matrix](14_without_the_matrix.ipynb) has conjugate gradients, which finds its own polynomial for every system.
