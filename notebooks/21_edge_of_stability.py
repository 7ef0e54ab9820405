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
# # The edge of stability
#
# Gradient descent with rate $\eta$ diverges where the loss curves more strongly than $2/\eta$. So says the theory of parabolas, and networks do not keep to parabolas. **What does training do where gradient descent ought to diverge?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/21_edge_of_stability.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb) · **Minutes:** 25 to read, 1 more to go further, 30 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
rate = 0.4  # of gradient descent: between 0.38 and 0.42
lower_rate = 0.25  # and in the second run of section 3
steps = 2500  # of each run: between 2400 and 2700
beta = 0.3  # momentum, in section 6: between 0.2 and 0.4

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from functools import partial

from tapelab import data, derivatives, plots, runtime
from tapelab.exercises.sheets import edge_of_stability as exercises
from tapelab.interactive import edge

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from scipy.sparse.linalg import LinearOperator, eigsh  # comes with scikit-learn

runtime.start(seed)

# %%
rng = np.random.default_rng(seed)
images = data.load("digits")
chosen = rng.permutation(len(images.x_train))[:200]
x = images.x_train[chosen].reshape(200, 64)
x = tf.constant(x - x.mean(axis=0))
y = tf.one_hot(images.y_train[chosen], 10)

shapes = [(64, 32), (32,), (32, 32), (32,), (32, 10), (10,)]  # kernels and biases
sizes = [int(np.prod(shape)) for shape in shapes]
kernels = [0.7 * rng.normal(size=shape) / shape[0] ** 0.5 for shape in shapes[::2]]
flat = np.concatenate([part for kernel in kernels for part in (kernel.ravel(), np.zeros(kernel.shape[1]))])
start = tf.constant(flat, tf.float32)


def network(w, x):
    """64 inputs, twice 32 tanh units, 10 outputs; w is flat."""
    parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(w, sizes), shapes, strict=True)]
    kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = parts
    return tf.tanh(tf.tanh(x @ kernel_1 + bias_1) @ kernel_2 + bias_2) @ kernel_3 + bias_3


def loss(w):
    return 0.5 * tf.reduce_mean(tf.reduce_sum((network(w, x) - y) ** 2, axis=1))


print(len(x), "images of digits,", len(start), "parameters")


# %% tags=["nbval-ignore-output"]
def value_and_gradient(w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = loss(w)
    return value, tape.gradient(value, w)


@tf.function(jit_compile=True)
def descend(w, rate, steps):
    """Gradient descent on all images at once; the losses before each step."""
    losses = tf.TensorArray(tf.float32, steps)
    for step in tf.range(steps):
        value, g = value_and_gradient(w)
        losses = losses.write(step, value)
        w -= rate * g
    return losses.stack()


losses = descend(start, tf.constant(rate), steps).numpy()
rises = np.diff(losses) > 0
print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}; steps after which it was higher: {rises.sum()} of {steps}")

# %% alt="Line plot. The loss of 2500 steps on a logarithmic axis. For some hundred steps it falls smoothly; then comes a sharp peak, and after it one bump follows another, while the bumps as a whole sink to some fiftieth of the start. Wherever the loss rises the line is drawn thick." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the loss
_, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
ax.semilogy(losses, color=plots.BLUE, linewidth=0.8, label="loss")
rising = np.append(rises, False) | np.append(False, rises)
ax.semilogy(np.where(rising, losses, np.nan), color=plots.RED, linewidth=2.5, label="where it rises")
ax.set(title="No noise, no mini-batches: and yet the loss rises, again and again", xlabel="step", ylabel="loss")
ax.legend(fontsize="small")
plt.show()

# %% [markdown]
# The whole data set at every step: nothing is random here. A gradient step lowers the loss if it is short enough. About a third of these raised it, so the steps are too long. The loss falls all the same, to about a fiftieth of what it was.
#
# **You will be able to**
#
# - derive the limit $2/\eta$, and say what a parabola does beyond it (section 1),
# - find the sharpness of a network by power iteration, from Hessian–vector products (section 2),
# - follow the sharpness of a training run, and predict what another rate does to it (section 3),
# - show where the parabola's forecast fails, and measure the third derivative that makes it fail (sections 4 and 5).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.2 * steps < rises.sum() < 0.5 * steps
assert 0.01 < losses[-1] / losses[0] < 0.04
assert np.isfinite(losses).all()

# %% [markdown]
# ## 1. The limit of a parabola
#
# Take $L(w) = \tfrac12 \lambda w^2$, a parabola of **curvature** $\lambda$. Its gradient is $\lambda w$, and a step of gradient descent is a multiplication:
#
# $$w \;\leftarrow\; w - \eta\lambda w = (1 - \eta\lambda)\, w.$$
#
# The distance to the minimum shrinks if $|1 - \eta\lambda| < 1$, that is, if $\lambda < 2/\eta$. Below $1/\eta$ the iterate approaches from one side. Between $1/\eta$ and $2/\eta$ it overshoots at each step and bounces from side to side, closer each time. Beyond $2/\eta$ the bounce grows.
#
# In many dimensions a quadratic loss is such a parabola along each eigenvector of its Hessian. The largest eigenvalue crosses the limit first. It has a name in this trade: the **sharpness**.
#
# **Predict.** The sharpness is 3 % above the limit. By which factor does the distance grow in 100 steps?

# %%
exercises.growth.guess(...)  # a number

# %%
distances = {}
for excess in (0.9, 1.0, 1.03):
    curvature, w = excess * 2 / rate, 1.0
    distances[excess] = [w]
    for _ in range(100):
        w -= rate * curvature * w
        distances[excess].append(w)
    print(f"curvature {excess:4.2f} of the limit: distance {abs(w):.3g} after 100 steps")

# %% alt="Line plot. The signed distance to a parabola's minimum in the first forty steps, for three curvatures. At 0.9 of the limit it bounces from side to side and shrinks to nothing; at the limit it bounces between plus one and minus one; at 1.03 of the limit the bounce grows." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: three curvatures
_, axes = plt.subplots(1, 3, figsize=(11, 2.8), sharex=True, layout="constrained")
for ax, (excess, path), colour in zip(axes, distances.items(), (plots.GREEN, plots.GREY, plots.RED), strict=True):
    ax.plot(path[:41], ".-", color=colour, linewidth=0.8)
    ax.axhline(0, color="black", linewidth=0.5)
    ax.set(title=f"curvature = {excess:g} · 2/η", xlabel="step")
axes[0].set(ylabel="distance to the minimum")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
grown = abs(distances[1.03][-1])
exercises.growth.reveal(grown)
np.testing.assert_allclose(grown, 1.06**100, rtol=1e-9)
assert 339 < grown < 340
assert abs(distances[0.9][-1]) < 1e-9
np.testing.assert_allclose(np.abs(distances[1.0]), 1, rtol=1e-9)

# %% [markdown]
# Three per cent above the limit the factor of a step is $1 - 2.06 = -1.06$, and $1.06^{100} = 339$. The loss grows with its square, a hundred-thousandfold. There is no mild way of being above the limit.

# %% [markdown]
# ## 2. The sharpness of a network
#
# The network has 3466 parameters, its Hessian twelve million entries. You need one eigenvalue of it, the largest, and [14](14_without_the_matrix.ipynb) has shown how to multiply by the matrix without building it: differentiate the gradient once more.
#
# The oldest way from products to an eigenvalue is **power iteration**: multiply a vector by $H$, make its length 1, repeat. Each product stretches the part along the top eigenvector more than all other parts, so the vector turns towards it. The eigenvalue is then $v^\top H v$, the *Rayleigh quotient*.


# %%
@tf.function(jit_compile=True)
def product(w, v):
    """The Hessian at w times v."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        g = value_and_gradient(w)[1]
    return outer.gradient(g, w, output_gradients=v)


def power_iteration(product, v, count):
    """The estimates of the eigenvalue after each of `count` products, and the vector."""
    estimates = []
    for _ in range(count):
        v = v / tf.norm(v)
        Hv = product(v)
        estimates.append(float(tf.tensordot(v, Hv, 1)))
        v = Hv
    return np.array(estimates), v / tf.norm(v)


# %% [markdown]
# Does it work? Begin where you know the answer: $\begin{pmatrix} 2 & 1 \\ 1 & 2 \end{pmatrix}$ has the eigenvalues 3 and 1.

# %%
small = tf.constant([[2.0, 1.0], [1.0, 2.0]], tf.float64)
estimates, v = power_iteration(lambda v: tf.linalg.matvec(small, v), tf.constant([1.0, 0.0], tf.float64), 6)
print("estimates:", np.round(estimates, 4), " vector:", np.round(v.numpy(), 3))

# %% [markdown]
# Each product shrinks the tangent of the angle to the eigenvector by $\lambda_2/\lambda_1 = \tfrac13$. A small angle enters the Rayleigh quotient with its square, so the error soon falls to a ninth with each product. Now the network at its start, from a random vector:

# %% tags=["nbval-ignore-output"]
random_start = tf.constant(rng.normal(size=len(start)), tf.float32)
at_start, top_vector = power_iteration(lambda v: product(start, v), random_start, 60)
for count in (1, 5, 10, 20, 60):
    print(f"after {count:2} products: {at_start[count - 1]:.4f}")
print("2 / rate:          ", 2 / rate)

# %% [markdown]
# The sharpness begins at about half of $2/\eta$. So far this training obeys the limit.
#
# In your own code, `derivatives.hvp` gives the product for any function, and `derivatives.CurvatureOperator` is the Hessian of a model's loss over a data set. Its `spectrum` runs Lanczos' method, the careful sister of power iteration: it keeps all the vectors and takes the best of them together.

# %% tags=["nbval-ignore-output"]
by_helper = derivatives.hvp(loss)(start, vector=random_start)
by_hand = product(start, random_start)
print(f"hvp: relative difference {float(tf.norm(by_helper - by_hand) / tf.norm(by_hand)):.0e}")

weights = tf.Variable(start)


def half_squares(y, outputs):
    return 0.5 * tf.reduce_mean(tf.reduce_sum((outputs - y) ** 2, axis=1))


operator = derivatives.CurvatureOperator(lambda x: network(weights, x), half_squares, wrt=weights, data=(x, y))
top = operator.spectrum(steps=30, probes=1, seed=seed).top(4)
print(f"largest eigenvalue: {top.values[0]:.4f} by spectrum, {at_start[-1]:.4f} by power iteration")

# %% alt="Vector diagram and line plot. Left, in the plane, a unit vector that starts along the first axis and turns at each product with the matrix, in ever smaller angles, towards the dashed line of the eigenvector at 45 degrees. Right, the error of the network's estimated sharpness against the number of products on a logarithmic axis: it falls by orders of magnitude within some twenty products and ends at float32's rounding, near one in ten million." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: a vector that turns
_, (plane, curve) = plt.subplots(1, 2, figsize=(10, 3.6), width_ratios=[1, 1.6], layout="constrained")
turning = np.array([1.0, 0.0])
for count in range(5):
    plane.annotate("", turning, (0, 0), arrowprops={"arrowstyle": "->", "color": plots.BLUE, "lw": 1.6})
    if count < 3:
        plane.annotate(f"$v_{count}$", turning, (5, 1), textcoords="offset points")
    turning = small.numpy() @ turning
    turning /= np.linalg.norm(turning)
plane.plot([0, 0.95], [0, 0.95], "--", color=plots.GREY)
plane.annotate("top eigenvector", (0.9, 0.92), (-4, 0), textcoords="offset points", ha="right")
plane.set(title="Each product turns the vector", xlim=(-0.05, 1.2), ylim=(-0.05, 1.05), aspect="equal")
errors = np.abs(at_start / top.values[0] - 1)
curve.semilogy(np.arange(1, 61), np.maximum(errors, 1e-9), ".-", color=plots.BLUE)
curve.axhline(np.finfo(np.float32).eps, color=plots.RED, linestyle=":", label="float32's rounding")
curve.set(title="The network's sharpness, from a random vector", xlabel="products", ylabel="relative error")
curve.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(estimates[-1], 3, rtol=1e-4)
np.testing.assert_allclose((3 - estimates[4]) / (3 - estimates[3]), 1 / 9, rtol=1e-2)
np.testing.assert_allclose(at_start[-1], top.values[0], rtol=5e-3)
assert np.all(np.diff(at_start[5:]) > -1e-5)  # it rises to the eigenvalue
assert errors[0] > 0.5
assert tf.norm(by_helper - by_hand) < 1e-5 * tf.norm(by_hand)
assert 0.4 < at_start[-1] * rate / 2 < 0.7
assert operator.spectrum(steps=30, probes=1, seed=seed).bottom(1).values[0] > -at_start[-1]  # the top is the largest

# %% [markdown]
# Two cautions. Power iteration finds the eigenvalue of the largest *magnitude*: where the most negative one is larger, you get that. And the Rayleigh quotient never exceeds the largest eigenvalue, so an estimate that has not settled is too low.
#
# ### Exercise: An eigenvalue with its error (8 min)
#
# For a symmetric $H$, a unit vector $v$ and $\lambda = v^\top H v$, there is an eigenvalue within $\lVert Hv - \lambda v \rVert$ of $\lambda$. `product(v)` returns $Hv$; `v` is a vector to start from, of any length. Multiply and normalise `count` times, and return $\lambda$
# and that error for the vector you then have: two scalars of the dtype of `v`.


# %%
def certain(product, v, count):
    return ..., ...  # the eigenvalue and its error, two scalars


exercises.certain.check(certain)

# %% [markdown]
# ## 3. Watch it while training
#
# A step moves the weights a little, and the top eigenvector with them. So start each power iteration from the last vector: thirty products every ten steps are plenty. With only a few the sharpness comes out too low, because the second eigenvalue comes close to the first on the way.


# %%
@tf.function(jit_compile=True)
def ten_steps(w, v, rate):
    sharpness = 0.0
    for _ in tf.range(30):
        Hv = product(w, v)
        sharpness = tf.tensordot(v, Hv, 1)
        v = Hv / tf.norm(Hv)
    losses = tf.TensorArray(tf.float32, 10)
    for step in tf.range(10):
        value, g = value_and_gradient(w)
        losses = losses.write(step, value)
        w -= rate * g
    return w, v, losses.stack(), sharpness


def watched(w, v, rate, steps):
    """The sharpness before every tenth step, all losses, and the weights with the vector, every ten steps."""
    sharpness, losses, passed = [], [], [(w, v)]
    for _ in range(steps // 10):
        w, v, ten_losses, top = ten_steps(w, v, tf.constant(rate))
        sharpness.append(float(top))
        losses.append(ten_losses)
        passed.append((w, v))
    return np.array(sharpness), np.concatenate(losses), passed


# %% [markdown]
# **Predict.** The loss will fall to about a fiftieth. What does the sharpness do in the first 200 steps?

# %%
exercises.climbs.guess(...)  # "it falls", "it stays" or "it rises"

# %% tags=["nbval-ignore-output"]
sharpness, watched_losses, passed = watched(start, top_vector, rate, steps)
for step in range(0, 201, 40):
    print(f"step {step:3}: loss {watched_losses[step]:.3f}, sharpness {sharpness[step // 10]:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
early = sharpness[20] / sharpness[0]
exercises.climbs.reveal("it rises" if early > 1.1 else "it falls" if early < 0.9 else "it stays")
assert early > 1.1
np.testing.assert_allclose(watched_losses[:100], losses[:100], rtol=1e-3)  # the same training

# %% [markdown]
# It rises, although nobody asked for it: the loss has no term for it, and a quadratic loss could not do it at all. Cohen and others, who found it in networks of many kinds, call it **progressive sharpening**. Why it happens is not settled.
#
# It is still below $2/\eta = 5$, and it goes on rising.
#
# **Predict.** What happens when it arrives there?

# %%
exercises.limit.guess(...)  # "the loss blows up", "it goes on rising", "it stays there" or "it falls back"

# %% tags=["nbval-ignore-output"]
for begin in range(0, steps, 500):
    tenths = sharpness[begin // 10 : begin // 10 + 50]
    rose = (np.diff(watched_losses[begin : begin + 501]) > 0).sum()
    print(
        f"steps {begin:4} to {begin + 500}: sharpness {np.median(tenths):.2f} in the median, loss rose {rose:3} times"
    )


# %% alt="Two line plots. Two panels, one above the other, over 2500 steps. Above, the sharpness climbs from about half of the dotted line at 2 over the rate, 5, overshoots it a little after some hundred steps, and then runs along it to the end. Below, the loss on a logarithmic axis: smooth until the sharpness arrives at the line, from there on one bump after another, while it still sinks." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the sharpness, and the loss beneath it
def draw_runs(runs, title):
    """Each run: a name, the rate, the sharpness, the losses, a colour and a line style."""
    _, (above, beneath) = plt.subplots(2, 1, figsize=(8, 5), sharex=True, height_ratios=[1.3, 1], layout="constrained")
    for name, run_rate, run_sharpness, run_losses, colour, style in runs:
        above.plot(10 * np.arange(len(run_sharpness)), run_sharpness, style, color=colour, label=name)
        above.axhline(2 / run_rate, color=colour, linestyle=":")
        above.annotate(f"2/{run_rate:g}", (0, 2 / run_rate), (2, 3), textcoords="offset points")
        beneath.semilogy(run_losses, style, color=colour, linewidth=0.8)
    above.set(title=title, ylabel="sharpness", ylim=(0, None))
    above.legend(loc="lower right", fontsize="small")
    beneath.set(xlabel="step", ylabel="loss")


first_run = ("rate 0.4", rate, sharpness, watched_losses, plots.BLUE, "-")
draw_runs([first_run], "The sharpness climbs to 2/η, and stays")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
late = sharpness[len(sharpness) // 2 :] * rate / 2
settled = 0.99 < np.median(late) < 1.03
exercises.limit.reveal("it stays there" if settled else "it goes on rising")
assert settled
assert late.min() > 0.9
assert late.max() < 1.12
assert 1.1 < (sharpness * rate / 2).max() < 1.28
arrived = 10 * int(np.argmax(sharpness * rate / 2 > 1))
assert 100 < arrived < 1000
assert 20 < np.argmax(np.diff(watched_losses) > 0) - arrived < 200  # smooth, up to the limit and beyond
assert (np.diff(watched_losses) > 0).sum() > 0.2 * steps

# %% [markdown]
# Section 1 forecast the first answer, and it is the third. The sharpness overshoots by 15 or 20 %, falls back, and then stays at $2/\eta$, in the median one or two per cent above it, to the end of the run. Up to its arrival the loss has not risen at a single step, and for some sixty to a hundred steps after it neither: the bounce has to grow first. From there on the loss rises and falls, and still goes down.
# This is the **edge of stability**.
#
# And the largest eigenvalue is not the only one that climbs:

# %% tags=["nbval-ignore-output"]
weights.assign(passed[-2][0])  # where the sharpness was measured last
top_at_end = operator.spectrum(steps=40, probes=1, seed=seed).top(4)
print("four largest eigenvalues at the start:", np.round(top.values, 2))
print("and at the end:                       ", np.round(top_at_end.values, 2))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(sharpness[-1], top_at_end.values[0], rtol=0.03)  # thirty products keep up
assert top_at_end.values[1] / top_at_end.values[0] > max(0.9, top.values[1] / top.values[0])
from_the_last, _ = power_iteration(lambda v: product(passed[-2][0], v), passed[-2][1], 60)
assert from_the_last[-1] >= sharpness[-1] * (1 - 1e-4)  # fewer products estimate lower

# %% [markdown]
# The second has caught up with the first: one after another, the eigenvalues queue at the limit. It is also why the power iteration turns more slowly now than at the start.
#
# If it is the rate that sets the height, another rate must set another.
#
# **Predict.** The same start, and the rate 0.25. At which height will the sharpness settle?

# %%
exercises.height.guess(...)  # a number

# %% tags=["nbval-ignore-output"]
lower_sharpness, lower_losses, lower_passed = watched(start, top_vector, lower_rate, steps)
print(f"rate {rate}: sharpness {np.median(sharpness[-50:]):.2f} in the last 500 steps, 2/rate = {2 / rate:.2f}")
print(f"rate {lower_rate}: sharpness {np.median(lower_sharpness[-50:]):.2f}, 2/rate = {2 / lower_rate:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
settled_at = np.median(lower_sharpness[-50:])
exercises.height.reveal(settled_at)
assert 0.95 < settled_at * lower_rate / 2 < 1.06
assert lower_sharpness[0] * lower_rate / 2 < 0.5
assert abs(np.median(lower_sharpness[-50:]) / np.median(sharpness[-50:]) / (rate / lower_rate) - 1) < 0.05

# %% [markdown]
# Eight. Here the rate alone decided how sharp a place the training ended in. The lower rate gets later to its limit, which is higher.
#
# Now take the weights at the end of that run, where the sharpness is 8, and raise the rate to 0.4. The limit is 5 from one step to the next. Section 1 dealt with 3 % above it; this is 60 %.
#
# **Predict.** What happens?

# %%
exercises.jump.guess(...)  # "the loss blows up for good", "the sharpness stays near 8" or "the sharpness falls to 5"

# %% tags=["nbval-ignore-output"]
jump_sharpness, jump_losses, _ = watched(*lower_passed[-1], rate, 800)
print("loss:     ", " ".join(f"{value:.3f}" for value in jump_losses[:30:3]))
print("sharpness:", " ".join(f"{value:.2f}" for value in jump_sharpness[:8]), "...", round(jump_sharpness[-1], 2))

# %% alt="Two line plots. Two panels over 3300 steps. Above, the sharpness at the rate 0.4 runs along 5; at the rate 0.25, dashed, it climbs later and runs along 8. At step 2500 the dashed run's rate is raised to 0.4, and its sharpness drops at once from 8 and from there on runs along 5. Below, the losses; at step 2500 the dashed run's loss leaps up steeply and comes back." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two rates, and the jump from one to the other
joined = np.concatenate([lower_sharpness, jump_sharpness]), np.concatenate([lower_losses, jump_losses])
second_run = ("rate 0.25, at step 2500 raised to 0.4", lower_rate, *joined, plots.ORANGE, "--")
draw_runs([first_run, second_run], "The rate chooses the height")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ends_at = np.median(jump_sharpness[-20:])
exercises.jump.reveal(
    "the sharpness falls to 5" if 4.7 < ends_at < 5.4 else "the sharpness stays near 8" if ends_at > 7 else "neither"
)
assert 4.7 < ends_at < 5.4
assert jump_sharpness[0] > 7.3
assert jump_sharpness[4:].max() < 5.8  # within forty steps
assert jump_losses[:20].max() > 30 * jump_losses[0]
assert jump_losses[40:80].mean() < 0.3 * jump_losses[:20].max()
assert jump_losses[100:].max() < 0.2 * jump_losses[:40].max()
assert not np.isfinite(descend(lower_passed[-1][0], tf.constant(0.8), steps).numpy()).all()  # no way back from there

# %% [markdown]
# Within twenty steps the loss leaps to more than thirty times its value. After forty the sharpness is at the new limit, the loss is on its way down, and training goes on. Lewkowycz and others call such a leap a *catapult*. Whatever holds the sharpness at $2/\eta$ works from 60 % above as well.
#
# Not from anywhere. From the same weights, the loss overflowed at a rate of 0.6 with each of the seeds 0 to 9, and at 0.5, where the sharpness is twice the limit, with one of them (tried; the check runs 0.8). The paper, too, has an upper limit, beyond which training diverges.

# %% [markdown]
# ## 4. The forecast of a parabola
#
# Perhaps the theory of section 1 was applied too coarsely, to one direction of three thousand? Then give it its best chance: the whole second-order Taylor polynomial, with the true loss, gradient and Hessian at the weights $w_0$ where the sharpness is first 5 % above the limit:
#
# $$q(w_0 + d) = L(w_0) + g^\top d + \tfrac12 d^\top H d, \qquad \nabla q = g + Hd.$$
#
# A product a step, and you can run gradient descent on it. Beside it runs the training itself, from the same $w_0$ with the same rate.

# %% tags=["nbval-ignore-output"]
crossing = int(np.argmax(sharpness * rate / 2 > 1.05))
centre, centre_vector = passed[crossing]
value, g = value_and_gradient(centre)

d, forecast = tf.zeros_like(centre), []
for _ in range(200):
    Hd = product(centre, d)
    forecast.append(float(value + tf.tensordot(g, d, 1) + 0.5 * tf.tensordot(d, Hd, 1)))
    d -= rate * (g + Hd)
actual = watched_losses[10 * crossing : 10 * crossing + 200]
for step in (0, 20, 199):
    print(f"{step:3} steps on: Taylor polynomial {forecast[step]:10.3g}, network {actual[step]:.3g}")

# %% alt="Line plot. The loss over 200 steps on a logarithmic axis, from weights where the sharpness is 5 per cent above the limit. The Taylor polynomial, dashed, follows the network for some dozens of steps and then grows without bound along a straight line. The network's loss rises to about twice its value, comes back, and goes on falling." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the forecast and the training
_, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.semilogy(forecast, "--", color=plots.ORANGE, label="gradient descent on the Taylor polynomial")
ax.semilogy(actual, color=plots.BLUE, label="the network")
ax.set(title="The parabola leaves; the network does not", xlabel="steps after the crossing", ylabel="loss")
ax.set(ylim=(actual.min() / 2, 100))
ax.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert abs(forecast[10] / actual[10] - 1) < 0.1
assert len(forecast) == len(actual)
assert forecast[-1] > 100 * forecast[0]
assert actual.max() < 5 * actual[0]
assert np.median(watched_losses[10 * crossing + 200 : 10 * crossing + 400]) < actual[0]  # it goes on falling
assert forecast[-1] / forecast[-11] > 2  # it goes on growing

# %% [markdown]
# At first the two are the same. Then the forecast explodes, as section 1 said it must: it grows at every step by the same factor. (Meanwhile the network's sharpness climbs on beyond the 5 %; the parabola's cannot.) The network has the same loss, the same gradient and the same Hessian at $w_0$. What saves it is in none of the three. It must be in the third derivative, or beyond.

# %% [markdown]
# ## 5. The third derivative pushes back
#
# Let the iterate bounce by $\pm a$ along the top eigenvector $v$, and expand the gradient one order further than usual:
#
# $$g(w \pm a v) = g \;\pm\; a\,\lambda v \;+\; \tfrac{a^2}{2}\, \nabla\lambda \;+\; \dots \qquad \text{with}\quad \nabla \lambda = \nabla\,(v^\top H v), \quad v \text{ held fixed}.$$
#
# That is the gradient of the sharpness: $v$ moves with the weights, but to first order its turning does not change $v^\top H v$, as $v$ is an eigenvector. The term with $\lambda$ changes its sign from step to step: the bounce. The last term does not. Whichever side the iterate is on, it adds the same gradient, that of the *sharpness*. So **a bounce performs gradient descent on the sharpness**, with a force that grows with
# its square. Damian, Nichani and Lee call this *self-stabilisation*:
#
# 1. The sharpness rises above $2/\eta$, and the bounce grows.
# 2. The larger bounce pushes the weights towards lower sharpness.
# 3. The sharpness falls below $2/\eta$; the bounce dies down, and so does the push.
# 4. Progressive sharpening takes over again.
#
# First the push. Three nested tapes give $\nabla\lambda$, a third derivative. The average of two gradients, one on each side, gives the push with no second derivative at all:


# %% tags=["nbval-ignore-output"]
@tf.function(jit_compile=True)
def sharpness_gradient(w, v):
    """The gradient of v'Hv with respect to the weights, for a fixed v: two tapes are in the product."""
    with tf.GradientTape() as third:
        third.watch(w)
        curvature = tf.tensordot(v, product(w, v), 1)
    return third.gradient(curvature, w)


w = passed[-1][0]
_, v = power_iteration(lambda v: product(w, v), passed[-1][1], 60)
nabla = sharpness_gradient(w, v)
g = value_and_gradient(w)[1]
agreement = []
for a in (0.1, 0.2, 0.4):
    push = (value_and_gradient(w + a * v)[1] + value_and_gradient(w - a * v)[1]) / 2 - g
    cosine = float(tf.tensordot(push, nabla, 1) / tf.norm(push) / tf.norm(nabla))
    size = float(tf.norm(push) / (a**2 / 2 * tf.norm(nabla)))
    agreement.append((cosine, size))
    print(f"bounce {a}: cosine {cosine:.4f}, length {size:.3f} of a²/2 · |gradient of the sharpness|")

# %% [markdown]
# The push is the gradient of the sharpness, in direction and in length, to a few per cent even for the largest bounce.
#
# Those bounces were chosen. Does the training run bounce by itself, and does the sharpness obey? Take up the run of section 4 at the crossing, follow $v$ from step to step, and note two numbers: the sharpness, and the bounce
# $a$, half the step's length along $v$.


# %% tags=["nbval-ignore-output"]
@tf.function(jit_compile=True)
def followed_step(w, v, rate):
    _, g = value_and_gradient(w)
    for _ in range(4):  # v turns slowly
        Hv = product(w, v)
        v = Hv / tf.norm(Hv)
    return w - rate * g, v, tf.tensordot(v, product(w, v), 1), -0.5 * rate * tf.tensordot(v, g, 1)


w_now, v_now, measured = centre, centre_vector, []
for _ in range(300):
    w_now, v_now, top_now, bounce_now = followed_step(w_now, v_now, tf.constant(rate))
    measured.append((float(top_now), float(bounce_now)))
tops, bounces = np.transpose(measured)
print(f"steps after which the bounce had changed sides: {np.sum(bounces[1:] * bounces[:-1] < 0)} of {len(bounces) - 1}")

# %% alt="Two line plots. Two panels over 300 steps from the crossing. Above, the sharpness divided by 2 over the rate climbs from a little above 1 to nearly 1.2, drops below 0.9, and swings about 1 from then on. Below, the size of the bounce is near zero and has a peak wherever the sharpness drops: the first by far the highest, then smaller ones." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the bounce and the sharpness of the network
_, (above, beneath) = plt.subplots(2, 1, figsize=(8, 4.4), sharex=True, layout="constrained")
above.plot(tops * rate / 2, color=plots.BLUE)
above.axhline(1.0, color=plots.RED, linestyle=":")
above.set(title="Where the network bounces, its sharpness drops", ylabel="sharpness / (2/η)")
beneath.plot(np.abs(bounces), color=plots.ORANGE)
beneath.set(xlabel="steps after the crossing", ylabel="size of the bounce")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for cosine, size in agreement:
    assert 0.995 < cosine < 1.001
    assert abs(size - 1) < 0.05
assert np.mean(bounces[1:] * bounces[:-1] < 0) > 0.95
check_force = np.convolve(bounces**2, np.ones(5) / 5, "same")[10:-10]
check_change = np.gradient(np.convolve(tops, np.ones(5) / 5, "same"))[10:-10]
assert np.corrcoef(check_force, check_change)[0, 1] < -0.7
assert np.mean(check_change[check_force > np.quantile(check_force, 0.8)] < 0) > 0.8
assert np.mean(check_change[check_force < np.quantile(check_force, 0.2)] > 0) > 0.8


@tf.function(jit_compile=True)
def noisy_steps(w, rate, batches):
    for indices in batches:
        with tf.GradientTape() as tape:
            tape.watch(w)
            errors = network(w, tf.gather(x, indices)) - tf.gather(y, indices)
            value = 0.5 * tf.reduce_mean(tf.reduce_sum(errors**2, axis=1))
        w -= rate * tape.gradient(value, w)
    return w


check_growth, check_above = np.log(np.abs(bounces[5:] / bounces[:-5])), tops[:-5] * rate > 2
assert np.mean(check_growth[check_above] > 0) > 0.7
assert np.mean(check_growth[~check_above] < 0) > 0.7
noise = np.random.default_rng(seed)
w_noisy, v_noisy, noisy_tops = start, top_vector, []
for _ in range(steps // 100):
    w_noisy = noisy_steps(w_noisy, tf.constant(rate), tf.constant(noise.integers(len(x), size=(100, 16))))
    _, v_noisy = power_iteration(partial(product, w_noisy), v_noisy, 20)
    noisy_tops.append(float(tf.tensordot(v_noisy, product(w_noisy, v_noisy), 1)))
assert 0.6 < max(noisy_tops) * rate / 2 < 0.97

# %% [markdown]
# It does. The iterate changes sides at nearly every step. Where the bounce is large the sharpness drops, and where it is small the sharpness climbs: all four lines of the list, in the network.
#
# That is one network with a squared loss, descended on all of its data. With mini-batches it is otherwise: from the same start, with the same rate and 16 of the 200 images at a time, the sharpness does not reach the limit in 2500 steps (the check above ran them). Cohen and others report
# the same of mini-batches, and for the cross-entropy a sharpness that falls again late in training.
#
# Back to the bounce. The smallest loss that has all of this has two weights:
#
# $$L(a, b) = \tfrac12 (ab)^2 + \tfrac12\, \text{pull}\, (3 - b)^2.$$
#
# A valley with its floor at $a = 0$. Across the floor the curvature is $b^2$. The pull draws $b$ up to 3, where the minimum is, and on the way the valley narrows: progressive sharpening. The push of a bounce on $b$ is $a^2 b$, downwards. One thing has to be added: a small kick of $a$ at each step, $\pm 0.01$, for
# the thousands of other directions that never let the bounce of a network die out altogether.


# %%
@tf.function
def valley_gradient(a, b, pull):
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        height = (a * b) ** 2 / 2 + pull * (3 - b) ** 2 / 2
    return tape.gradient(height, [a, b])


pull = tf.constant(0.02, tf.float64)
kicks = 0.01 * np.random.default_rng(0).choice([-1.0, 1.0], size=400)
a, b = tf.constant(0.3, tf.float64), tf.constant(1.2, tf.float64)
path = []
for kick in kicks:
    path.append((float(a), float(b)))
    down_a, down_b = valley_gradient(a, b, pull)
    a, b = a - 0.4 * down_a + kick, b - 0.4 * down_b
path = np.array(path)
late_curvature = path[200:, 1] ** 2
print(f"b² in the last 200 steps: {np.median(late_curvature):.2f} in the median; at the minimum it would be 9")

# %% alt="Animation. Left, a narrowing valley in the plane of a and b: the iterate climbs along the floor, begins to bounce from side to side above the dotted height where b squared is 2 over the rate, is pushed down by the bounce, calms, and climbs again. Right, b squared against the step rises to the dotted line at 5 and swings about it; the loss beneath rises whenever the bounce is large." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the bounce
figure, axes = plt.subplot_mosaic(
    [["plane", "curvature"], ["plane", "loss"]], figsize=(7.2, 3.6), width_ratios=[1, 1.3], layout="constrained"
)
plane, curve, beneath = axes["plane"], axes["curvature"], axes["loss"]
across, upwards = np.meshgrid(np.linspace(-0.32, 0.32, 81), np.linspace(1.7, 2.5, 81))
plane.contour(
    across, upwards, (across * upwards) ** 2 / 2, levels=np.geomspace(3e-4, 0.3, 9), colors="0.8", linewidths=0.6
)
plane.axhline(5**0.5, color=plots.RED, linestyle=":")
plane.set(title="in the valley", xlabel="a", ylabel="b", xlim=(-0.32, 0.32), ylim=(1.7, 2.5))
(trail,) = plane.plot([], [], "-", color=plots.BLUE, linewidth=0.6)
(dot,) = plane.plot([], [], "o", color=plots.BLUE)
heights = (path[:, 0] * path[:, 1]) ** 2 / 2 + 0.01 * (3 - path[:, 1]) ** 2
curve.axhline(5, color=plots.RED, linestyle=":", label="2/η")
(climb,) = curve.plot([], [], color=plots.BLUE)
curve.set(title="b², and the loss beneath it", xlim=(50, 400), ylim=(3, 6.2))
curve.legend(loc="lower right", fontsize="small")
(line,) = beneath.semilogy([], [], color=plots.BLUE)
beneath.set(xlabel="step", xlim=(50, 400), ylim=(0.003, 0.3))


def draw(step):
    recent = slice(max(0, step - 9), step + 1)
    trail.set_data(*path[recent].T)
    dot.set_data(*path[step : step + 1].T)
    climb.set_data(np.arange(50, step + 1), path[50 : step + 1, 1] ** 2)
    line.set_data(np.arange(50, step + 1), heights[50 : step + 1])


plots.animate(figure, draw, range(56, 400, 7), milliseconds=120).show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.95 < np.median(late_curvature) / 5 < 1.06
assert late_curvature.max() < 6
np.testing.assert_allclose(edge.descend(0.4, 0.02).points, path, rtol=0, atol=1e-6)  # the figure below runs the same
swing, turn = np.abs(path[100:399, 0]), np.diff(path[100:, 1])
assert turn[swing > 0.15].max() < 0  # a large bounce pushes b down
assert turn[swing < 0.03].min() > 0  # a small one lets it climb
assert np.sum((path[100:399, 1] ** 2 < 5) & (path[101:400, 1] ** 2 >= 5)) >= 3  # it comes back again and again

# %% [markdown]
# Bounce, push, calm, climb. The minimum at $b = 3$ is never reached, as its curvature, 9, is more than the rate bears.
#
# Move the rate. Below $2/9 \approx 0.22$ the minimum itself is stable. At 0.3 the swings about the limit are small, at 0.6 they are wide. Then raise the pull. Dashed is what the Taylor polynomial of section 4 would do.

# %% alt="Contour plot and line plots. Left, the valley's contours in the plane of a and b, and the path: from the start it moves to the floor, climbs along it, and bounces about the dotted height where b squared is 2 over the rate, well below the minimum. Right, the sharpness climbs to the dotted line at 5 and swings about it; beneath, the loss rises with each bounce and falls again, while the dashed parabola leaves the picture."
edge.figure().show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for valley_rate in (0.3, 0.4, 0.5, 0.6):
    run = edge.descend(valley_rate, 0.02)
    assert 0.95 < np.median(run.sharpness[200:]) * valley_rate / 2 < 1.06
widths = {r: np.ptp(edge.descend(r, 0.02).sharpness[200:]) * r / 2 for r in (0.3, 0.35, 0.6)}
assert max(widths[0.3], widths[0.35]) < 0.25 < 0.5 < widths[0.6]
calm = edge.descend(0.2, 0.02, steps=3000, kick=0.0)
np.testing.assert_allclose(calm.points[-1], [0, 3], atol=1e-4)
assert edge.descend(0.4, 0.02).parabola[-1] > 1e6

# %% [markdown]
# ### Exercise: The bounce that holds the edge (12 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Without the kicks there is one bounce that goes on for ever: $a$ flips its sign at each step, keeps its size, and pushes exactly as hard as the pull draws, so that $b$ stands still. For $L = \tfrac12 (ab)^2 + \tfrac12\, \text{pull}\, (B - b)^2$, given the rate, the pull and the
# target $B$, return the size of $a$: a positive scalar. The minimum at $b = B$ is sharper than the rate bears.


# %%
def bounce(rate, pull, target):
    return ...  # a positive scalar


exercises.bounce.check(bounce)

# %% [markdown]
# ## 6. Going further: momentum
#
# With momentum a step is $m \leftarrow \beta m - \eta g$, $w \leftarrow w + m$. The sharpness settles again, at another height.
#
# ### Exercise: The limit with momentum (10 min)
#
# On a parabola of curvature $\lambda$, up to which $\lambda$ does gradient descent with rate $\eta$ and momentum $\beta$ stay bounded? Return that limit, a scalar. With $\beta = 0$ it is $2/\eta$.


# %%
def limit(rate, momentum):
    return ...  # the largest curvature that is still stable


exercises.momentum.check(limit)

# %% [markdown]
# Does a network keep to it? Here it trains with $\beta = 0.3$. Compare the number with what your `limit` says.


# %% tags=["nbval-ignore-output"]
@tf.function(jit_compile=True)
def with_momentum(w, m, rate, beta):
    for _ in tf.range(10):
        m = beta * m - rate * value_and_gradient(w)[1]
        w += m
    return w, m


w, m, v, heavy_sharpness = start, tf.zeros_like(start), top_vector, []
for _ in range(steps // 10):
    w, m = with_momentum(w, m, tf.constant(rate), tf.constant(beta))
    _, v, _, height = ten_steps(w, v, tf.constant(0.0))  # a rate of 0: it measures, and moves nothing
    heavy_sharpness.append(float(height))
heavy_sharpness = np.array(heavy_sharpness)
print(f"sharpness in the second half, in the median: {np.median(heavy_sharpness[len(heavy_sharpness) // 2 :]):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
heavy_limit = 2 * (1 + beta) / rate
assert 0.95 < np.median(heavy_sharpness[len(heavy_sharpness) // 2 :]) / heavy_limit < 1.06
for curvature, stable in ((0.99 * heavy_limit, True), (1.01 * heavy_limit, False)):
    roots = np.roots([1, -(1 + beta - rate * curvature), beta])
    assert (np.abs(roots).max() < 1) == stable

# %% [markdown]
# ## 7. Check it independently
#
# Everything here hangs on one number, so get it without a second derivative. SciPy's `eigsh` (ARPACK) finds the largest eigenvalue of whatever multiplies; let that be a central difference of two gradients in float64. It shares the network with the products of section 2, and neither a second tape nor their precision.

# %% tags=["nbval-ignore-output"]
x64, y64 = tf.cast(x, tf.float64), tf.cast(y, tf.float64)


@tf.function
def gradient64(w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = 0.5 * tf.reduce_mean(tf.reduce_sum((network(w, x64) - y64) ** 2, axis=1))
    return tape.gradient(value, w)


def eigenvalue(w):
    def difference(v):
        unit = 1e-4 * v.ravel() / np.linalg.norm(v)
        change = gradient64(tf.constant(w + unit)) - gradient64(tf.constant(w - unit))
        return change.numpy() / 2e-4 * np.linalg.norm(v)

    matrix = LinearOperator((len(w), len(w)), matvec=difference, dtype=np.float64)
    begin = np.random.default_rng(seed).normal(size=len(w))
    return eigsh(matrix, k=1, which="LA", tol=1e-4, v0=begin, return_eigenvectors=False)[0]


where = {"at the start": (start, at_start[-1]), "at the end": (passed[-2][0], sharpness[-1])}
by_scipy = {name: eigenvalue(w.numpy().astype(np.float64)) for name, (w, _) in where.items()}
for name, (_, ours) in where.items():
    print(f"{name:12}: {by_scipy[name]:.4f} by SciPy and differences, {ours:.4f} by power iteration")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(by_scipy["at the start"], at_start[-1], rtol=5e-3)
np.testing.assert_allclose(by_scipy["at the start"], top.values[0], rtol=5e-3)
np.testing.assert_allclose(by_scipy["at the end"], sharpness[-1], rtol=0.03)
np.testing.assert_allclose(by_scipy["at the end"], top_at_end.values[0], rtol=5e-3)

for excess in (0.9, 1.0, 1.03):
    np.testing.assert_allclose(distances[excess][-1], (1 - 2 * excess) ** 100, rtol=1e-9)

# %% [markdown]
# ## Recap
#
# - On a parabola a step multiplies the distance by $1 - \eta\lambda$. Above $\lambda = 2/\eta$ it diverges, and quickly: 3 % above, by 339 in 100 steps (section 1).
# - Power iteration finds the sharpness from Hessian–vector products, at a pace that the second eigenvalue sets; an estimate that has not settled is too low (section 2).
# - In this training (a tanh network, squared loss, all of the data in each step) the sharpness climbs to $2/\eta$ and stays near it. In gradient descent the rate sets the height; raise it by half or so, and the sharpness drops to the new limit (section 3). Momentum moves the limit.
# - The Taylor polynomial of second order diverges from the very same point. A bounce along the top eigenvector adds $\tfrac{a^2}{2}\nabla\lambda$ to the gradient, a third derivative, and so descends on the sharpness (sections 4 and 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a loss that rises taken for a rate that is too large | you lower the rate, and train more slowly towards a sharper place | look whether it falls over some dozens of steps |
# | a rate so low that the limit is never reached | a sharpness that climbs to the end | train longer, or raise the rate |
# | power iteration with few products from a random vector | a sharpness that is too low | start from the last vector, and look at the error |
# | the largest magnitude taken for the largest eigenvalue | a negative "sharpness" | look at the sign of $v^\top Hv$; Lanczos finds both ends |
# | $\lVert Hv \rVert$ for the eigenvalue | no sign, and too large before it has settled | the Rayleigh quotient |
# | judging by a single step | a sharpness 10 % off the limit | take the median of many |
# | momentum, and $2/\eta$ | a sharpness above the "limit" | the limit of *your* optimiser |
#
# **Further reading**
#
# - J. Cohen, S. Kaur, Y. Li, J. Z. Kolter, A. Talwalkar (2021), ["Gradient descent on neural networks typically occurs at the edge of stability"](https://arxiv.org/abs/2103.00065).
# - A. Damian, E. Nichani, J. D. Lee (2023), ["Self-stabilization: the implicit bias of gradient descent at the edge of stability"](https://arxiv.org/abs/2209.15594).
# - A. Lewkowycz, Y. Bahri, E. Dyer, J. Sohl-Dickstein, G. Gur-Ari (2020), ["The large learning rate phase of deep learning: the catapult mechanism"](https://arxiv.org/abs/2003.02218).
# - X. Zhu, Z. Wang, X. Wang, M. Zhou, R. Ge (2023), ["Understanding edge-of-stability training dynamics with a minimalist example"](https://arxiv.org/abs/2210.03294).
# - L. Wu, C. Ma, W. E (2018), ["How SGD selects the global minima in over-parameterized learning: a dynamical stability perspective"](https://proceedings.neurips.cc/paper/2018/hash/6651526b6fb8f29a00507de6a49ce30f-Abstract.html).
# - B. T. Polyak (1964), ["Some methods of speeding up the convergence of iteration methods"](https://doi.org/10.1016/0041-5553%2864%2990137-5).
#
# **Read next:** [13 Hessians and Newton's method](13_hessians_and_newton.ipynb) takes steps that know the curvature;
# [14 Without the matrix](14_without_the_matrix.ipynb) has Lanczos' method in the open.
