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
# On a parabola, gradient descent with rate $\eta$ diverges if the curvature is above $2/\eta$. A network's loss is no parabola. **What does training do where gradient descent ought to diverge?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/21_edge_of_stability.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb) · **Minutes:** 17 to read, 1 more to go further, 18 for the exercises; to work through it all, about 1 h

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
rate = 0.4  # of gradient descent: between 0.38 and 0.42

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import data, derivatives, plots, runtime
from tapelab.exercises.sheets import edge_of_stability as exercises

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


def network(w, x, activation):
    """64 inputs, twice 32 units, 10 outputs; w is flat, 3466 numbers."""
    parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(w, sizes), shapes, strict=True)]
    kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = parts
    return activation(activation(x @ kernel_1 + bias_1) @ kernel_2 + bias_2) @ kernel_3 + bias_3


def tanh_squares(w, x, y):
    return 0.5 * tf.reduce_mean(tf.reduce_sum((network(w, x, tf.tanh) - y) ** 2, axis=1))


def relu_squares(w, x, y):
    return 0.5 * tf.reduce_mean(tf.reduce_sum((network(w, x, tf.nn.relu) - y) ** 2, axis=1))


def tanh_cross_entropy(w, x, y):
    return -tf.reduce_mean(tf.reduce_sum(y * tf.nn.log_softmax(network(w, x, tf.tanh)), axis=1))


def start_of(gain):
    """Kernels of size gain / sqrt(inputs), biases zero."""
    kernels = [gain * rng.normal(size=shape) / shape[0] ** 0.5 for shape in shapes[::2]]
    flat = np.concatenate([part for kernel in kernels for part in (kernel.ravel(), np.zeros(kernel.shape[1]))])
    return tf.constant(flat, tf.float32)


small, steps = start_of(0.7), 2500
trainings = {
    "tanh, squared loss": (tanh_squares, small, rate),
    "ReLU from He's start, squared loss": (relu_squares, start_of(2**0.5), rate),
    "tanh, cross-entropy, 5 times the rate": (tanh_cross_entropy, small, 5 * rate),
}
print(len(x), "images of digits,", len(small), "parameters")


# %% tags=["nbval-ignore-output"]
def value_and_gradient(loss, w, x, y):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = loss(w, x, y)
    return value, tape.gradient(value, w)


@tf.function
def ten_steps(loss, w, rate):
    """Gradient descent on all images at once: the weights after ten steps, and the loss before each."""
    losses = []
    for _ in range(10):
        value, g = value_and_gradient(loss, w, x, y)
        losses.append(value)
        w -= rate * g
    return w, tf.stack(losses)


def descend(loss, w, rate):
    """The loss before each step, and the weights before every tenth."""
    losses, passed = [], []
    for _ in range(steps // 10):
        passed.append(w)
        w, ten = ten_steps(loss, w, tf.constant(rate))
        losses.append(ten)
    return np.concatenate(losses), passed


runs = {name: descend(*training) for name, training in trainings.items()}
losses = {name: values for name, (values, _) in runs.items()}
for name, values in losses.items():
    rises = np.mean(np.diff(values) > 0)
    print(f"{name:38} loss {values[0]:.2f} -> {values[-1]:.4f}; it rose after {rises:.0%} of the steps")

# %% alt="Three line plots. The loss of 2500 steps on a logarithmic axis, for three trainings. With tanh and a squared loss it falls smoothly for some hundred steps, then has a sharp peak and one bump after another, while the bumps as a whole sink; wherever it rises the line is thick. With ReLU from He's start, and with the cross-entropy, the loss falls nearly without a rise." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: three losses
_, axes = plt.subplots(1, 3, figsize=(12, 3.2), layout="constrained")
for ax, (name, values) in zip(axes, losses.items(), strict=True):
    ax.semilogy(values, color=plots.BLUE, linewidth=0.8, label="loss")
    rises = np.diff(values) > 0
    rising = np.append(rises, False) | np.append(False, rises)
    ax.semilogy(np.where(rising, values, np.nan), color=plots.RED, linewidth=2.5, label="where it rises")
    ax.set(title=name, xlabel="step")
axes[0].set(ylabel="loss")
axes[0].legend(fontsize="small")
plt.show()

# %% [markdown]
# All 200 images take part in each step, so nothing is random after the start. In the first training about a third of the steps raised the loss, and it falls all the same, to about a fiftieth. The other two ran down with hardly a rise here: ReLU units with kernels twice as large (*He's start*) at the same rate, and the cross-entropy at five times the rate.
#
# **You will be able to**
#
# - derive the limit $2/\eta$, and say what a parabola does beyond it (section 1),
# - find the sharpness of a network by power iteration, and follow it through a training run (section 2),
# - show where the parabola's forecast fails, and what held the sharpness at the limit (section 3),
# - say whose sharpness the limit is about in training with mini-batches (section 4).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_rises = {name: np.mean(np.diff(values) > 0) for name, values in losses.items()}
first, second, third = check_rises.values()
assert 0.2 < first < 0.5
assert max(second, third) < first / 2
assert 0.01 < losses["tanh, squared loss"][-1] / losses["tanh, squared loss"][0] < 0.04

# %% [markdown]
# ## 1. The limit of a parabola
#
# Take $L(w) = \tfrac12 \lambda w^2$, a parabola of **curvature** $\lambda > 0$. Its gradient is $\lambda w$, and a step of gradient descent is a multiplication:
#
# $$w \;\leftarrow\; w - \eta\lambda w = (1 - \eta\lambda)\, w.$$
#
# The distance to the minimum shrinks if $|1 - \eta\lambda| < 1$, that is, if $\lambda < 2/\eta$. Below $1/\eta$ the iterate approaches from one side. Between $1/\eta$ and $2/\eta$ it overshoots at each step and bounces from side to side, closer each time. Beyond $2/\eta$ the bounce grows.
#
# In many dimensions a quadratic loss is such a parabola along each eigenvector of its Hessian. As the rate grows, the largest eigenvalue crosses the limit first. Its name here is the **sharpness**.
#
# **Predict.** The sharpness is 3 % above the limit. By which factor does the distance grow in 100 steps?

# %%
exercises.growth.guess(...)  # a number

# %%
distances = {}
for excess in (0.9, 1.0, 1.03):
    curvature, w = excess * 2 / rate, 1.0
    for _ in range(100):
        w -= rate * curvature * w
    distances[excess] = w
    print(f"curvature {excess:4.2f} of the limit: distance {abs(w):.3g} after 100 steps")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
grown = abs(distances[1.03])
exercises.growth.reveal(grown)
np.testing.assert_allclose(grown, 1.06**100, rtol=1e-9)
assert 339 < grown < 340
assert abs(distances[0.9]) < 1e-9
np.testing.assert_allclose(abs(distances[1.0]), 1, rtol=1e-9)

# %% [markdown]
# Three per cent above the limit the factor of a step is $1 - 2.06 = -1.06$, and $1.06^{100} = 339$. The loss grows with its square, a hundred-thousandfold.

# %% [markdown]
# ## 2. The sharpness of a network, while it trains
#
# The Hessian of 3466 parameters has twelve million entries. So far the curvature was given. Now you need the largest eigenvalue of that matrix, and [14](14_without_the_matrix.ipynb) has shown how to multiply by the matrix without building it: differentiate the gradient once more.
#
# **Power iteration** gets from products to an eigenvalue: multiply a vector by $H$, make its length 1, repeat. A product stretches most the part along the eigenvector whose eigenvalue is the largest in magnitude, so the vector turns towards it. The eigenvalue is then $v^\top H v$, the *Rayleigh quotient*.


# %%
def product(loss, w, v, x, y):
    """The Hessian at w times v."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        g = value_and_gradient(loss, w, x, y)[1]
    return outer.gradient(g, w, output_gradients=v)


@tf.function
def power_iteration(loss, w, v, x, y, count):
    """The sharpness after so many products, a tensor, and the unit vector."""
    sharpness = 0.0
    v /= tf.norm(v)
    for _ in tf.range(count):
        Hv = product(loss, w, v, x, y)
        sharpness = tf.tensordot(v, Hv, 1)
        v = Hv / tf.norm(Hv)
    return sharpness, v


random_start = tf.constant(rng.normal(size=len(small)), tf.float32)

# %% tags=["nbval-ignore-output"]
estimates = {
    count: float(power_iteration(tanh_squares, small, random_start, x, y, tf.constant(count))[0])
    for count in (1, 5, 10, 60)
}
for count, estimate in estimates.items():
    print(f"after {count:2} products: {estimate:.4f}")
print("2 / rate:          ", 2 / rate)

# %% [markdown]
# The sharpness begins at about half of $2/\eta$. So far this training obeys the limit.
#
# A step moves the weights a little, and the top eigenvector with them. So start the next power iteration from the last vector: ten products every ten steps keep up here.
#
# **Predict.** In the first training the sharpness starts below $2/\eta = 5$. What does it do?

# %%
exercises.limit.guess(...)  # "it stays where it is", "it falls", "it rises to 5 and stays there" or "it rises beyond 5"


# %%
def sharpness_along(loss, passed):
    """The sharpness at each of these weights."""
    _, v = power_iteration(loss, passed[0], random_start, x, y, tf.constant(60))
    sharpness = []
    for w in passed:
        top, v = power_iteration(loss, w, v, x, y, tf.constant(10))
        sharpness.append(float(top))
    return np.array(sharpness)


sharpness = {name: sharpness_along(loss, runs[name][1]) for name, (loss, _, _) in trainings.items()}
in_parts = {name: sharpness[name] * eta / 2 for name, (_, _, eta) in trainings.items()}

# %% tags=["nbval-ignore-output"]
print("sharpness, in parts of 2 / rate:       start   highest   median of the second half   end")
for name, parts in in_parts.items():
    late = np.median(parts[len(parts) // 2 :])
    print(f"{name:38} {parts[0]:5.2f} {parts.max():9.2f} {late:27.2f} {parts[-1]:5.2f}")

# %% alt="Line plot. The sharpness in parts of 2 over the rate, over 2500 steps, for the three trainings. With tanh and a squared loss it climbs from about a half to the dotted line at 1, overshoots it a little, and then runs along it to the end. With ReLU from He's start it begins above the line, falls at once, and stays about or below it. With the cross-entropy it peaks below the line within some ten steps and falls to nearly nothing." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the sharpness of three trainings
_, ax = plt.subplots(figsize=(8, 3.8), layout="constrained")
for (name, parts), style, colour in zip(
    in_parts.items(), ("-", "--", "-."), (plots.BLUE, plots.ORANGE, plots.GREEN), strict=True
):
    ax.plot(10 * np.arange(len(parts)), parts, style, color=colour, label=name)
ax.axhline(1, color=plots.RED, linestyle=":", label="2/η")
ax.set(title="Three trainings and one limit", xlabel="step", ylabel="sharpness / (2/η)", ylim=(0, None))
ax.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_tanh, check_relu, check_entropy = in_parts.values()
check_late = check_tanh[len(check_tanh) // 2 :]
settled = 0.99 < np.median(check_late) < 1.03
exercises.limit.reveal("it rises to 5 and stays there" if settled else "it rises beyond 5")
assert settled
assert 0.9 < check_late.min() < check_late.max() < 1.12
assert 0.4 < check_tanh[0] < 0.95
assert 1.05 < check_tanh.max() < 1.28
check_arrived = 10 * int(np.argmax(check_tanh > 1))
assert 20 < np.argmax(np.diff(losses["tanh, squared loss"]) > 0) - check_arrived < 200  # smooth up to the limit
assert check_relu[0] > 1
assert 0.3 < np.median(check_relu[len(check_relu) // 2 :]) < 1.05
assert 0.5 < check_entropy.max() < 1.4
assert check_entropy[-1] < 0.1
assert estimates[1] < 0.5 * estimates[60]
np.testing.assert_allclose(estimates[60], check_tanh[0] * 2 / rate, rtol=5e-3)

# %% [markdown]
# In the first training it rises, although nobody asked for it: the loss has no term for it, and a quadratic loss could not do it at all. Up to its arrival at the limit the loss has not risen at a single step. Then the sharpness stays there, to the end. Jastrzębski and others saw the rise in 2018. Cohen and others (2021) named it **progressive sharpening**, and the place where it stopped in their trainings on all of the data the **edge of stability**.
#
# The other two are not held there. With ReLU from He's start the sharpness begins *above* the limit, falls below it within ten steps, and ends at about two thirds of it in this run. With the cross-entropy it comes near the limit and then falls to nearly nothing. There the network has become sure of its images, and the second derivative of the cross-entropy by a logit, $p(1-p)$, vanishes with the doubt.
#
# So the edge is no law. Swap the start, and tanh is held from He's as well. Double the rate, and ReLU from He's start comes near the edge, too (the check below runs both). Activation and rate decide together.
#
# If the rate sets the height, another rate sets another.
#
# **Predict.** The first training again, from the same start, with the rate 0.25. At which height will the sharpness settle?

# %%
exercises.height.guess(...)  # a number

# %% tags=["nbval-ignore-output"]
lower = sharpness_along(tanh_squares, descend(tanh_squares, small, 0.25)[1][-50:])
print(f"rate {rate}: sharpness {np.median(sharpness['tanh, squared loss'][-50:]):.2f} in the last 500 steps")
print(f"rate 0.25: sharpness {np.median(lower):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
settled_at = np.median(lower)
exercises.height.reveal(round(float(settled_at)))
assert 0.95 < settled_at * 0.25 / 2 < 1.06
check_he = trainings["ReLU from He's start, squared loss"][1]
check_swapped = descend(tanh_squares, check_he, rate)[1]
check_doubled = descend(relu_squares, check_he, 2 * rate)[1]
assert sharpness_along(tanh_squares, check_swapped[:1])[0] * rate / 2 > 1.2
assert (
    0.98 < np.median(sharpness_along(tanh_squares, check_swapped[-50:])) * rate / 2 < 1.05
)  # tanh is held from He's start
assert 0.82 < np.median(sharpness_along(relu_squares, check_doubled[-50:])) * rate < 1.05  # and ReLU, at twice the rate

# %% [markdown]
# Eight, $2/0.25$: the lower rate trained towards a sharper place, given the steps.
#
# Three cautions about the method. Where the most negative eigenvalue is the largest in magnitude, power iteration finds that one. And in exact arithmetic the Rayleigh quotient does not exceed the largest eigenvalue, so an estimate that has not settled is too low. When a second eigenvalue overtakes the first, a start from the last vector may stay with the first for a while, with a small error: now and then start anew. In your own code, `derivatives.CurvatureOperator` and its `spectrum` find both ends by Lanczos' method, over a data set.

# %% [markdown]
# ### Exercise: An eigenvalue with its error (8 min)
#
# For a symmetric $H$, a unit vector $v$ and $\lambda = v^\top H v$, there is an eigenvalue within $\lVert Hv - \lambda v \rVert$ of $\lambda$. `product(v)` returns $Hv$; `v` is a vector to start from, of any length. Multiply and normalise `count` times, and return $\lambda$
# and that error for the vector you then have: two scalars of the dtype of `v`.


# %%
def certain(product, v, count):
    return ..., ...  # the eigenvalue and its error, two scalars


exercises.certain.check(certain)

# %% [markdown]
# ## 3. What holds it there
#
# Perhaps section 1 was applied too coarsely, to one direction of three thousand? Give the theory its best chance: the whole second-order Taylor polynomial, with the true loss, gradient and Hessian at the weights $w_0$ where the sharpness is first seen more than 5 % above the limit:
#
# $$q(w_0 + d) = L(w_0) + g^\top d + \tfrac12 d^\top H d, \qquad \nabla q = g + Hd.$$
#
# Run gradient descent on it, a product a step. Beside it runs the training itself, from the same $w_0$ with the same rate.

# %% tags=["nbval-ignore-output"]
passed = runs["tanh, squared loss"][1]
crossing = int(np.argmax(in_parts["tanh, squared loss"] > 1.05))
centre = passed[crossing]
multiply = tf.function(product)
value, g = value_and_gradient(tanh_squares, centre, x, y)

d, forecast = tf.zeros_like(centre), []
for _ in range(200):
    Hd = multiply(tanh_squares, centre, d, x, y)
    forecast.append(float(value + tf.tensordot(g, d, 1) + 0.5 * tf.tensordot(d, Hd, 1)))
    d -= rate * (g + Hd)
actual = losses["tanh, squared loss"][10 * crossing : 10 * crossing + 200]
for step in (0, 20, 199):
    print(f"{step:3} steps on: Taylor polynomial {forecast[step]:10.3g}, network {actual[step]:.3g}")

# %% [markdown]
# At first the two are the same. Then the forecast explodes, as section 1 said. The network has the same loss, gradient and Hessian at $w_0$. So what saves it is in the third derivative, or beyond.
#
# Damian, Nichani and Lee (2023) have the candidate. Let the iterate bounce by $\pm a$ along the top eigenvector $v$, and expand the gradient one order further than usual:
#
# $$g(w \pm a v) = g \;\pm\; a\,\lambda v \;+\; \tfrac{a^2}{2}\, \nabla\lambda \;+\; \dots \qquad \text{with}\quad \nabla \lambda = \nabla\,(v^\top H v), \quad v \text{ held fixed}.$$
#
# The term with $\lambda$ changes its sign from step to step: the bounce. The last term does not. Whichever side the iterate is on, it adds the gradient of the *sharpness*, so a bounce performs descent on the sharpness. They call it **self-stabilisation**: the sharpness rises above $2/\eta$, the bounce grows, its square pushes the sharpness down, the bounce dies, and the rise begins again.
#
# The expansion is Taylor's theorem; that it fits would be no evidence. The claim is about *cause*: without the bounce the sharpness would go on rising. So take the bounce away. From $w_0$ on, remove from each step its part along $v$, one number of 3466. For comparison, remove as much of the rest of the step instead.


# %% tags=["nbval-ignore-output"]
@tf.function
def watched_step(w, v, rate, bounce, as_much):
    """A step without `bounce` times its part along v, and `as_much` times as long a part of the rest of it.

    Returns the weights, v, the sharpness, and half the way along v.
    """
    g = value_and_gradient(tanh_squares, w, x, y)[1]
    top, v = power_iteration(tanh_squares, w, v, x, y, tf.constant(3))  # v turns slowly
    along = tf.tensordot(v, g, 1)
    rest = g - along * v
    removed = bounce * along * v + as_much * tf.minimum(1.0, tf.abs(along) / tf.norm(rest)) * rest
    return w - rate * (g - removed), v, top, -0.5 * rate * along


kinds = {
    "gradient descent": (0.0, 0.0),
    "without the bounce": (1.0, 0.0),
    "without as much of the rest": (0.0, 1.0),
}
watched = {}
for name, removed in kinds.items():
    w, rows = centre, []
    v = power_iteration(tanh_squares, w, random_start, x, y, tf.constant(60))[1]
    for _ in range(300):
        w, v, top, bounce = watched_step(w, v, tf.constant(rate), *map(tf.constant, removed))
        rows.append((float(top) * rate / 2, float(bounce)))
    watched[name] = np.transpose(rows)
    tops = watched[name][0]
    print(f"{name:27} sharpness in parts of 2/rate: {tops[0]:.2f}, after 300 steps {tops[-1]:.2f}")

# %% alt="Two line plots. Two panels over 300 steps from the crossing. Above, the sharpness divided by 2 over the rate. With gradient descent it climbs to nearly 1.2, drops below 1, and swings about 1 from then on; without the bounce, dashed, it goes on climbing far above, with a dip near step 150. Below, the size of the bounce under gradient descent is near zero and has a peak wherever the sharpness drops." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: with the bounce and without it
_, (above, beneath) = plt.subplots(2, 1, figsize=(8, 4.6), sharex=True, layout="constrained")
for name, style, colour in (("gradient descent", "-", plots.BLUE), ("without the bounce", "--", plots.GREY)):
    above.plot(watched[name][0], style, color=colour, label=name)
above.axhline(1.0, color=plots.RED, linestyle=":")
above.set(title="Take the bounce away, and the sharpness leaves", ylabel="sharpness / (2/η)")
above.legend(fontsize="small")
beneath.plot(np.abs(watched["gradient descent"][1]), color=plots.ORANGE)
beneath.set(xlabel="steps after the crossing", ylabel="size of the bounce")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert abs(forecast[10] / actual[10] - 1) < 0.1
assert forecast[-1] > 100 * forecast[0]
assert actual.max() < 5 * actual[0]
tops, bounces = watched["gradient descent"]
assert np.mean(bounces[1:] * bounces[:-1] < 0) > 0.9  # it changes sides at nearly every step
check_force = np.convolve(bounces**2, np.ones(5) / 5, "same")[10:-10]
check_change = np.gradient(np.convolve(tops, np.ones(5) / 5, "same"))[10:-10]
assert np.corrcoef(check_force, check_change)[0, 1] < -0.5
assert watched["without the bounce"][0][-1] > max(1.1, tops[-50:].max() + 0.05)
assert 0.9 < np.median(watched["without as much of the rest"][0][-50:]) < 1.1
w, v, u = centre, power_iteration(tanh_squares, centre, random_start, x, y, tf.constant(60))[1], random_start
check_line = watched["without the bounce"][0]
check_dip = np.maximum.accumulate(check_line) - check_line  # how far below its height so far
for _ in range(np.argmax(check_line[: np.argmax(check_dip) + 1]) - 10):  # along the dashed line, to before its dip
    w, v, _, _ = watched_step(w, v, tf.constant(rate), tf.constant(1.0), tf.constant(0.0))
for _ in range(100):  # the second eigenvalue: power iteration at right angles to v
    u -= tf.tensordot(u, v, 1) * v
    u /= tf.norm(u)
    check_second, u = tf.tensordot(u, multiply(tanh_squares, w, u, x, y), 1), multiply(tanh_squares, w, u, x, y)
assert check_second * rate / 2 > 1 or check_dip.max() < 0.04  # no dip but by a second bounce

# %% [markdown]
# Without the bounce the sharpness climbs on, beyond where the bounce had turned it back. With it, it comes back and swings about 1; without as much of the rest, too. Where the bounce is large the sharpness drops. So here the bounce along $v$ holds it.
#
# In this run the dashed line dips near step 150. By then the *second* eigenvalue is above the limit as well (the check). Along its eigenvector nothing stops the bounce: it peaks at the dip, and pushes the sharpness down from there.

# %% [markdown]
# ## 4. Mini-batches: the batch's own sharpness
#
# A step on a mini-batch follows the gradient of that batch's loss. Train again at the same rate on batches of 50 and of 16 of the 200 images. Watch the sharpness of the whole loss, and two means over ten batches: the top eigenvalue of the Hessian of a *batch's* loss, and its curvature along the batch's own gradient.


# %% tags=["nbval-ignore-output"]
@tf.function
def noisy_steps(w, rate, batches):
    for indices in batches:
        w -= rate * value_and_gradient(tanh_squares, w, tf.gather(x, indices), tf.gather(y, indices))[1]
    return w


noise = np.random.default_rng(seed)
batches_of = {}
for size in (50, 16):
    w, v, rows = small, random_start, []
    for hundred in range(1, steps // 100 + 1):
        batches = np.stack([noise.permutation(200)[:size] for _ in range(100)])
        w = noisy_steps(w, tf.constant(rate), tf.constant(batches))
        if hundred % 3 == 0 and hundred > steps // 200:  # the second half
            whole, v = power_iteration(tanh_squares, w, v, x, y, tf.constant(30))
            own, along = [], []
            for indices in batches[:10]:
                part = tf.gather(x, indices), tf.gather(y, indices)
                own.append(power_iteration(tanh_squares, w, v, *part, tf.constant(30))[0])
                g = value_and_gradient(tanh_squares, w, *part)[1]
                along.append(tf.tensordot(g, multiply(tanh_squares, w, g, *part), 1) / tf.tensordot(g, g, 1))
            rows.append([float(np.mean(each)) * rate / 2 for each in (whole, own, along)])
    batches_of[size] = np.median(rows, axis=0)
    print(f"batches of {size}, in parts of the limit:", end=" ")
    print("the whole {:.2f}, a batch {:.2f}, along its gradient {:.2f}".format(*batches_of[size]))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
(whole_50, own_50, along_50), (whole_16, own_16, along_16) = batches_of.values()
assert 0.88 < whole_50 < 1.04
assert 0.6 < whole_16 < whole_50 - 0.04
assert 1 < min(own_50, own_16) < max(own_50, own_16) < 1.35
assert 0.5 < along_16 < along_50 < 1  # neither has settled at the limit
assert along_16 < 0.9

# %% [markdown]
# With batches of 50 the sharpness of the whole loss stays near the limit, with 16 clearly below it. The *batch's* Hessian has its top eigenvalue at the limit or a little above it with both. That it is above the whole's is arithmetic: the whole Hessian is the batches' mean, and the largest eigenvalue of a mean is at most the mean of the largest. *How far* it climbs is the finding, in these 2500 steps: a step knows nothing but its batch, and these 16 images have a sharper direction of their own than the 200 have in common.
#
# Andreyev and Beneventano report an *edge of stochastic stability*: in their trainings the curvature along the batch's own gradient settles at $2/\eta$. Here it stays below, with 16 clearly. Measure yours.

# %% [markdown]
# ## 5. Going further: momentum
#
# With momentum a step is $m \leftarrow \beta m - \eta g$, $w \leftarrow w + m$. The limit is another one.
#
# ### Exercise: The limit with momentum (10 min)
#
# *This one needs an idea that the text does not spell out.*
#
# On a parabola of curvature $\lambda$, up to which $\lambda$ does gradient descent with rate $\eta$ and momentum $\beta$ stay bounded? Return that limit, a scalar. With $\beta = 0$ it is $2/\eta$.


# %%
def limit(rate, momentum):
    return ...  # the largest curvature that is still stable


exercises.momentum.check(limit)

# %% [markdown]
# Does a network keep to it? Here it trains with $\beta = 0.3$. Compare the number with what your `limit` says.


# %% tags=["nbval-ignore-output"]
@tf.function
def with_momentum(w, m, rate, beta):
    for _ in range(10):
        m = beta * m - rate * value_and_gradient(tanh_squares, w, x, y)[1]
        w += m
    return w, m


w, m, v, heavy = small, tf.zeros_like(small), random_start, []
for ten in range(steps // 10):
    w, m = with_momentum(w, m, tf.constant(rate), tf.constant(0.3))
    if ten >= steps // 20 and ten % 5 == 0:
        top, v = power_iteration(tanh_squares, w, v, x, y, tf.constant(10))
        heavy.append(float(top))
print(f"sharpness in the second half, in the median: {np.median(heavy):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
heavy_limit, beta = 2 * 1.3 / rate, 0.3
assert 0.95 < np.median(heavy) / heavy_limit < 1.06
for curvature, stable in ((0.99 * heavy_limit, True), (1.01 * heavy_limit, False)):
    roots = np.roots([1, -(1 + beta - rate * curvature), beta])
    assert (np.abs(roots).max() < 1) == stable

# %% [markdown]
# ## 6. Check it independently
#
# The whole page hangs on one number, so get it without a second derivative. SciPy's `eigsh` (ARPACK) finds the largest eigenvalue of a symmetric matrix from its products; let a central difference of two gradients in float64 multiply.

# %% tags=["nbval-ignore-output"]
x64, y64 = tf.cast(x, tf.float64), tf.cast(y, tf.float64)
gradient64 = tf.function(lambda w: value_and_gradient(tanh_squares, w, x64, y64)[1])


def eigenvalue(w):
    def difference(v):
        unit = 1e-4 * v.ravel() / np.linalg.norm(v)
        change = gradient64(tf.constant(w + unit)) - gradient64(tf.constant(w - unit))
        return change.numpy() / 2e-4 * np.linalg.norm(v)

    matrix = LinearOperator((len(w), len(w)), matvec=difference, dtype=np.float64)
    begin = np.random.default_rng(seed).normal(size=len(w))
    return eigsh(matrix, k=1, which="LA", tol=1e-4, v0=begin, return_eigenvectors=False)[0]


by_power = sharpness["tanh, squared loss"][-1]
by_scipy = eigenvalue(passed[-1].numpy().astype(np.float64))
print(f"at the end: {by_scipy:.4f} by SciPy and differences, {by_power:.4f} by power iteration")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(by_scipy, by_power, rtol=0.03)
weights = tf.Variable(small)
operator = derivatives.CurvatureOperator(
    lambda x: network(weights, x, tf.tanh),
    lambda y, outputs: 0.5 * tf.reduce_mean(tf.reduce_sum((outputs - y) ** 2, axis=1)),
    wrt=weights,
    data=(x, y),
)
check_ends = operator.spectrum(steps=30, probes=1, seed=seed)
np.testing.assert_allclose(check_ends.top(1).values[0], estimates[60], rtol=5e-3)
assert check_ends.bottom(1).values[0] > -estimates[60]  # the top is the largest in magnitude

# %% [markdown]
# ## Recap
#
# - On a parabola a step multiplies the distance by $1 - \eta\lambda$. Above $\lambda = 2/\eta$ it diverges: 3 % above, by a factor of 339 in 100 steps (section 1).
# - Power iteration finds the sharpness from Hessian–vector products. In one setting of three it climbed to $2/\eta$ and was held there; the activation alone did not decide (section 2).
# - The Taylor polynomial of second order diverged from the same point. Without the bounce along the top eigenvector the sharpness left the limit: the bounce held it (section 3).
# - With batches of 16 the sharpness of the whole loss stayed below the limit, and the batches' own came to it or a little above (section 4).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a loss that rises taken for a rate that is too large | here a lower rate led to a sharper place | look whether it falls over some dozens of steps |
# | one setting taken for all | "training ends at $2/\eta$" | measure yours |
# | power iteration with few products from a random vector | a sharpness that is too low | start from the last vector, now and then from a random one, and compute the error |
# | the largest magnitude taken for the largest eigenvalue | a negative "sharpness" | look at the sign of $v^\top Hv$; Lanczos finds both ends |
# | the whole loss's sharpness, and mini-batches | here a sharpness below the "limit" | the Hessian of a batch; no height is sure |
# | momentum, and $2/\eta$ | a sharpness above the "limit" | the limit of *your* optimiser |
#
# **Further reading**
#
# - S. Jastrzębski, Z. Kenton, N. Ballas, A. Fischer, Y. Bengio, A. Storkey (2019), ["On the relation between the sharpest directions of DNN loss and the SGD step length"](https://arxiv.org/abs/1807.05031): first posted in 2018.
# - J. Cohen, S. Kaur, Y. Li, J. Z. Kolter, A. Talwalkar (2021), ["Gradient descent on neural networks typically occurs at the edge of stability"](https://arxiv.org/abs/2103.00065).
# - A. Damian, E. Nichani, J. D. Lee (2023), ["Self-stabilization: the implicit bias of gradient descent at the edge of stability"](https://arxiv.org/abs/2209.15594).
# - A. Andreyev, P. Beneventano (2024), ["Edge of stochastic stability: revisiting the edge of stability for SGD"](https://arxiv.org/abs/2412.20553): the batch's own sharpness.
# - L. Wu, C. Ma, W. E (2018), ["How SGD selects the global minima in over-parameterized learning: a dynamical stability perspective"](https://proceedings.neurips.cc/paper/2018/hash/6651526b6fb8f29a00507de6a49ce30f-Abstract.html).
# - B. T. Polyak (1964), ["Some methods of speeding up the convergence of iteration methods"](https://doi.org/10.1016/0041-5553%2864%2990137-5).
#
# **Read next:** [13 Hessians and Newton's method](13_hessians_and_newton.ipynb) takes steps that know the curvature;
# [14 Without the matrix](14_without_the_matrix.ipynb) has Lanczos' method in the open.
