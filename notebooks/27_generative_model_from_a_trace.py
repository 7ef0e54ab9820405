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
# # A generative model from a trace
#
# You have points, and you want more of their kind. Nobody tells you their probability density, and a network for a density would have to integrate to one. A network for the slope of its *logarithm* does not. **Can samples alone teach a network the slope of a density that nobody knows?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/27_generative_model_from_a_trace.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb), [15 Batch Jacobians and per-example gradients](15_batch_jacobians.ipynb) · **Minutes:** 24 to read, 3 more to go further, 21 for the exercises; to work through it all, about 1 h 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
steps = 2000  # of each training: between 1700 and 2300
walkers = 1000  # points that become samples: between 800 and 2000

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import time
from types import SimpleNamespace

from tapelab import data as datasets
from tapelab import plots, runtime
from tapelab.exercises.sheets import generative_model_from_a_trace as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn.metrics import pairwise_distances
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_score
from sklearn.svm import SVC
from threadpoolctl import threadpool_limits  # comes with scikit-learn

threadpool_limits(1)  # NumPy's matrices are small here
runtime.start(seed)

# %%
rng = np.random.default_rng(seed)
angles = 2 * np.pi * np.arange(5) / 5
centres = 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
width = 0.35


def points_from_the_ring(n):
    return np.float32(centres[rng.integers(0, 5, n)] + width * rng.normal(size=(n, 2)))


data, test = points_from_the_ring(5000), points_from_the_ring(2000)


def shapes(ends, hidden):
    """Of the kernels and biases of a network with two hidden layers, as many outputs as inputs."""
    return [(ends, hidden), (hidden,), (hidden, hidden), (hidden,), (hidden, ends), (ends,)]


def random_weights(shapes):
    parts = [rng.normal(size=s) / s[0] ** 0.5 if len(s) == 2 else np.zeros(s) for s in shapes]
    return tf.constant(np.concatenate([part.ravel() for part in parts]), tf.float32)


def network(w, x, shapes, activation=tf.tanh):
    sizes = [int(np.prod(shape)) for shape in shapes]
    parts = [tf.reshape(part, shape) for part, shape in zip(tf.split(w, sizes), shapes, strict=True)]
    kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = parts
    return activation(activation(x @ kernel_1 + bias_1) @ kernel_2 + bias_2) @ kernel_3 + bias_3


def score(w, x):
    """Two numbers for each point: which way, and how steeply, the log-density rises. w is flat."""
    return network(w, x, shapes(2, 48))


start = random_weights(shapes(2, 48))
print(len(data), "points,", len(start), "weights")


def one_probe(w, x, v, score=score):
    """What section 4 minimises: a trace, estimated with one random vector of signs, plus half a square."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        s = score(w, x)
    trace = tf.reduce_sum(v * tape.gradient(s, x, output_gradients=v), axis=1)
    return tf.reduce_mean(trace + 0.5 * tf.reduce_sum(s**2, axis=1))


# %%
@tf.function(jit_compile=True)
def hundred_steps(objective, state, batches, noise, rates):
    """A hundred steps of Adam; `objective` takes weights, points and random numbers for each of them."""
    w, m, v, count = state
    for step in tf.range(100):
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = objective(w, batches[step], noise[step])
        g = tape.gradient(value, w)
        count += 1.0
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        w -= rates[step] * m / (1 - 0.9**count) / (tf.sqrt(v / (1 - 0.999**count)) + 1e-8)
    return w, m, v, count


def train(objective, draw, start=start, data=data, steps=steps):
    """The weights after every hundred steps on batches of 256. `draw(shape)` makes the random numbers."""
    pick = np.random.default_rng(seed + 100)  # the same batches for every objective
    state, passed = (start, tf.zeros_like(start), tf.zeros_like(start), tf.constant(0.0)), [start]
    for begin in range(0, steps, 100):
        batches = tf.constant(data[pick.integers(0, len(data), (100, 256))])
        rates = tf.constant(0.005 * np.maximum(1 - (begin + np.arange(100)) / steps, 0), tf.float32)
        state = hundred_steps(objective, state, batches, tf.constant(draw(batches.shape), tf.float32), rates)
        passed.append(state[0])
    return passed


def signs(shape):
    return rng.choice([-1.0, 1.0], shape)


with_one_probe = train(one_probe, signs)
learnt = with_one_probe[-1]


# %%
@tf.function(jit_compile=True)
def settle(score, w, x, noise):
    """Langevin steps of 0.01: up the slope, and a random kick; where the points are after each."""
    places = tf.TensorArray(tf.float32, len(noise))
    for step in tf.range(len(noise)):
        places = places.write(step, x)
        x += 0.01 * score(w, x) + tf.sqrt(0.02) * noise[step]
    return x, places.stack()


def kicks(n, dimensions=2):
    return tf.constant(rng.standard_normal((500, n, dimensions), np.float32))


anywhere = tf.constant(3 * rng.normal(size=(walkers, 2)), tf.float32)
samples, places = settle(score, learnt, anywhere, kicks(walkers))

# %% alt="Animation. Left, 1000 of the given points: five round clusters on a circle. Right, as many points scattered at random settle within some dozens of steps into the same five clusters, and jitter there." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: points that settle
figure, (given, made) = plt.subplots(1, 2, figsize=(6.6, 3.7), sharex=True, sharey=True, layout="constrained")
given.plot(*data[:walkers].T, ".", color=plots.ORANGE, markersize=2)
given.set(title="given", xlim=(-4, 4), ylim=(-4, 4), aspect="equal")
(cloud,) = made.plot([], [], ".", color=plots.BLUE, markersize=2)
made.set(title="made from noise", aspect="equal")
for ax in (given, made):
    ax.set(xlabel="x", ylabel="y")


def draw(step):
    cloud.set_data(*places[step].numpy().T)


plots.animate(figure, draw, [*range(0, 40, 3), *range(40, 500, 65)], milliseconds=90).show()

# %% [markdown]
# The points on the right began as noise. A network told each of them which way points become more frequent, and how steeply. It has learnt that from the points on the left alone.
#
# What it minimised is in `one_probe`: the trace of a Jacobian, plus half a square. With a random vector for the trace it is called **sliced score matching** (Song, Garg, Shi and Ermon, 2019).
#
# **You will be able to**
#
# - say what a score is, and what a normalising constant does to it (section 1),
# - turn the unknown score out of the loss by an integration by parts, and write the loss with a Jacobian's trace (section 2),
# - estimate a trace with one vector–Jacobian product, and say how wide the estimate scatters (section 3),
# - train and sample in the plane, and judge both against baselines (sections 4 and 5),
# - do the same for images of 64 pixels, and say what one probe saves there (section 6).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
from_centres = np.linalg.norm(samples.numpy()[:, None] - centres, axis=-1)
assert np.mean(from_centres.min(axis=1) < 3 * width) > 0.93
from_anywhere = np.linalg.norm(anywhere.numpy()[:, None] - centres, axis=-1)
assert np.mean(from_anywhere.min(axis=1) < 3 * width) < 0.5  # they did not begin there

# %% [markdown]
# ## 1. The slope of a logarithm
#
# The **score** of a density $p$ is the gradient of its logarithm with respect to the *point*:
#
# $$s(x) = \nabla_x \log p(x).$$
#
# It is an arrow at each place, towards where points are more frequent. For a Gaussian of width (standard deviation) $\sigma$ around $c$ it is $(c - x)/\sigma^2$: a spring that pulls to the centre.
#
# The five clusters are a mixture of such Gaussians, so for once you can write the density down and differentiate it. The code leaves out the constant that makes it integrate to one.


# %%
def log_density(x):
    """Of the five clusters, up to a constant: shape (n,)."""
    squares = tf.reduce_sum((x[:, None] - centres) ** 2, axis=2)
    return tf.reduce_logsumexp(-squares / (2 * width**2), axis=1)


def true_score(x):
    x = tf.constant(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        logarithm = log_density(x)
    return tape.gradient(logarithm, x)


# %% [markdown]
# **Predict.** The true density is this one times a constant, $1/(5 \cdot 2\pi\sigma^2) \approx 0.26$. What is the true score, as a multiple of what `true_score` returns?

# %%
exercises.constant.guess(...)  # a number

# %%
constant = 1 / (5 * 2 * np.pi * width**2)
place = tf.constant([[1.0, 0.5]], tf.float64)
with tf.GradientTape() as tape:
    tape.watch(place)
    logarithm = tf.math.log(constant * tf.exp(log_density(place)))
normalised = tape.gradient(logarithm, place)
print("score without the constant:", np.round(true_score(place)[0], 3))
print("score with it:             ", np.round(normalised[0], 3))

# %% alt="Two vector fields. Two fields of arrows in the plane. Left, the true score: everywhere the arrows point to the nearest of five clusters on a circle, and they are short at the centres. Right, the network's score: the same picture near the clusters, and rounder directions far outside, where there are no points." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two fields
lattice = np.stack(np.meshgrid(*[np.linspace(-3.4, 3.4, 19)] * 2), axis=-1).reshape(-1, 2)
fields = {"true score": true_score(lattice).numpy(), "the network's": score(learnt, np.float32(lattice)).numpy()}
_, axes = plt.subplots(1, 2, figsize=(9, 4.5), sharex=True, sharey=True, layout="constrained")
for ax, (name, field) in zip(axes, fields.items(), strict=True):
    long = np.linalg.norm(field, axis=1, keepdims=True)
    ax.plot(*data[:600].T, ".", color=plots.ORANGE, markersize=2)
    ax.quiver(*lattice.T, *(field / (long + 4)).T, color=plots.BLUE, scale=22, width=0.004)
    ax.set(title=name, xlabel="x", ylabel="y", aspect="equal")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.constant.reveal(float((normalised / true_score(place))[0, 0]))
np.testing.assert_allclose(normalised, true_score(place), rtol=1e-9)
squares = ((test[:, None].astype(float) - centres) ** 2).sum(axis=2)
shares = np.exp(-squares / (2 * width**2))
shares /= shares.sum(axis=1, keepdims=True)
by_hand = (shares[:, :, None] * (centres - test[:, None])).sum(axis=1) / width**2
np.testing.assert_allclose(true_score(test), by_hand, rtol=1e-6, atol=1e-7)

# %% [markdown]
# The same. $\log (Zp) = \log Z + \log p$, and a constant has the slope 0: the factor that makes the density integrate to one drops out. In the figure judge the network's field where the points are: elsewhere it has seen nothing.
#
# ## 2. The unknown leaves the loss
#
# A network $s_w$ ought to be near the true score where the points are. That is a squared error,
#
# $$\tfrac12 \, \mathrm E\, \lVert s_w(x) - \nabla \log p(x) \rVert^2 = \tfrac12\, \mathrm E \lVert s_w \rVert^2 \;-\; \mathrm E\, \big[s_w^\top \nabla \log p\big] \;+\; \text{constant},$$
#
# and the middle term has the unknown in it. But $p\, \nabla \log p = \nabla p$, so the mean in the middle term is $\int s_w^\top \nabla p \, \mathrm dx$. Integrate by parts, in each coordinate. If the density has no edge (points spread evenly over a square have one), and times the arrows vanishes far away, there remains $-\int p \sum_i \partial s_{w,i} / \partial x_i\, \mathrm dx$. The minus in front of the middle term makes it a plus, and the constant does not depend on $w$:
#
# $$L(w) = \mathrm E \Big[\, \operatorname{tr} \frac{\partial s_w}{\partial x} + \tfrac12 \lVert s_w \rVert^2 \Big].$$
#
# The unknown is gone: the **trace** of a Jacobian has taken its place. Hyvärinen found it in 2005, and the method is called *score matching*.
#
# Try it where one number is to be learnt: points of width 2 on a line, and $s_a(x) = -a x$. The Jacobian is $-a$, and the loss $-a + \tfrac12 a^2\, \mathrm E x^2$ is least at $a = \tfrac14$, the true score's $1/\sigma^2$. The second term alone would have liked $a = 0$, the first alone $a = \infty$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
line = tf.constant(2 * rng.normal(size=100_000))
a = tf.Variable(1.0, dtype=tf.float64)
mean_square = tf.reduce_mean(line**2)
for _ in range(60):
    with tf.GradientTape() as tape:
        value = -a + 0.5 * a**2 * mean_square
    a.assign_sub(0.1 * tape.gradient(value, a))
np.testing.assert_allclose(a.numpy(), 0.25, rtol=0.03)

# %% [markdown]
# **Predict.** Leave the trace out for the network of the ring, and train it on $\tfrac12\lVert s_w\rVert^2$ alone, for a quarter of the steps. What does it learn?

# %%
exercises.traceless.guess(...)  # "the score, more slowly", "nothing: it stays random" or "zero everywhere"


# %% tags=["nbval-ignore-output"]
def without_trace(w, x, v):
    return 0.5 * tf.reduce_mean(tf.reduce_sum(score(w, x) ** 2, axis=1))


def size(w):
    """The root mean square of the score at the test points."""
    return float(tf.sqrt(tf.reduce_mean(tf.reduce_sum(score(w, test) ** 2, axis=1))))


without = train(without_trace, signs, steps=steps // 4)[-1]
print(f"size of the score: {size(without):.4f} without the trace, {size(learnt):.2f} with it;", end=" ")
print(f"the true one's {np.sqrt(np.mean(np.sum(true_score(test).numpy() ** 2, axis=1))):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
true_size = np.sqrt(np.mean(np.sum(true_score(test).numpy() ** 2, axis=1)))
exercises.traceless.reveal("zero everywhere" if size(without) < 0.01 * true_size else "nothing: it stays random")
assert size(without) < 0.01 * true_size
assert 0.9 < size(learnt) / true_size < 1.05

# %% [markdown]
# Zero. A field without arrows has the smallest square there is. The trace is what keeps the arrows: it rewards a field whose arrows *converge* where the points are, since there $\partial s_i/\partial x_i$ is negative. For that the activation has to be smooth. With `relu` the ring's network stays near zero: its slopes are constant in pieces, and the tape does not see their borders move.
#
# ### Exercise: The loss of a field (8 min)
#
# `field(x)` takes points, shape (n, d), to arrows of the same shape; each arrow depends on its own point. Return the score matching loss, a scalar: the mean over the points of the trace of the Jacobian plus half the squared length of the arrow. Compute the trace exactly, for any $d$.


# %%
def score_matching(field, x):
    return ...  # a scalar


exercises.matching.check(score_matching)

# %% [markdown]
# ## 3. A trace from one product
#
# How do you get $\operatorname{tr} J$ at each point? [15](15_batch_jacobians.ipynb) has the batch Jacobian: $d$ rows, a backward pass for each, and of its $d^2$ entries you keep the $d$ on the diagonal. For an image of 1000 pixels that is 1000 passes, in every step.
#
# Multiply $J$ from both sides with a vector of random signs instead, $v_i = \pm 1$:
#
# $$v^\top J v = \sum_i v_i^2 J_{ii} + \sum_{i \ne j} v_i v_j J_{ij} = \operatorname{tr} J + \sum_{i \neq j} v_i v_j J_{ij}.$$
#
# The squares are 1, so the diagonal comes out whole. The products of different signs are $+1$ as often as $-1$: on average the rest is 0. This is **Hutchinson's estimator** (1990), and it takes *one* vector–Jacobian product: `gradient` with `output_gradients=v`, times $v$.

# %%
small = tf.constant([[-8.0, 3.0], [3.0, -6.0]], tf.float64)
many = signs((1000, 2))
estimates = tf.reduce_sum(many * tf.linalg.matvec(small, many), axis=1)  # v'Jv for each v
print("trace:", float(tf.linalg.trace(small)))

# %% [markdown]
# **Predict.** A thousand estimates of this trace, $-14$, with a thousand random vectors of two signs. How many *different* numbers are among them?

# %%
exercises.values.guess(...)  # a number

# %% tags=["nbval-ignore-output"]
values, how_often = np.unique(estimates, return_counts=True)
print("estimates:", values, " how often:", how_often, " mean:", round(float(np.mean(estimates)), 2))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.values.reveal(len(values))
np.testing.assert_allclose(values, [-20, -8], rtol=1e-12)
assert 0.4 < how_often[0] / 1000 < 0.6
assert abs(np.mean(estimates) + 14) < 0.8

# %% [markdown]
# Two: $-14 \pm 2 \cdot 3$. Signs multiply to $+1$ or $-1$, and only the off-diagonal entry comes with a random sign. For a symmetric $J$ the variance is $2 \sum_{i \ne j} J_{ij}^2$: where $J$ is diagonal, one probe is exact.
#
# Now at the points of the ring: the batch Jacobian by `tape.batch_jacobian`, one pass for each axis by hand, and the mean of many probes.

# %% tags=["nbval-ignore-output"]
x = tf.constant(test[:200])


@tf.function
def product(x, v):
    """For each point, v'J: a vector–Jacobian product."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        s = score(learnt, x)
    return tape.gradient(s, x, output_gradients=v)


axes_of_plane = [tf.broadcast_to(axis, x.shape) for axis in tf.eye(2)]
by_axes = tf.add_n([product(x, axis)[:, i] for i, axis in enumerate(axes_of_plane)])
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    s = score(learnt, x)
jacobians = tape.batch_jacobian(s, x, experimental_use_pfor=False)  # two rows: a loop will do
by_batch = tf.linalg.trace(jacobians)
probes = [np.float32(signs(x.shape)) for _ in range(400)]
by_probes = np.array([tf.reduce_sum(v * product(x, v), axis=1) for v in probes])

print(f"batch Jacobian against one pass for each axis: {np.abs(by_batch - by_axes).max():.0e}")
print(f"mean trace {np.mean(by_axes):.3f}; the mean of one probe for each point {by_probes[0].mean():.3f}")
print(f"a single point's estimate is off by {np.sqrt(np.mean((by_probes - by_axes) ** 2)):.2f} in the root mean square")

# %% alt="Histogram and line plot. Left, a histogram of estimates of a trace at one point: two bars of nearly equal height, at the same distance left and right of the dashed line of the true trace. Right, the error of the mean against the number of probes on logarithmic axes: it falls along the dashed line of one over the square root." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two values, and their mean
_, (bars, fall) = plt.subplots(1, 2, figsize=(9.5, 3.4), layout="constrained")
mixed = int(np.argmax(by_probes.std(axis=0)))
bars.hist(by_probes[:, mixed], bins=30, color=plots.BLUE)
bars.axvline(by_axes[mixed], color=plots.RED, linestyle="--", label="trace")
bars.set(title="400 estimates at one point: two values", xlabel="vᵀJv", ylabel="how often")
bars.legend(loc="center", bbox_to_anchor=(0.73, 0.5))  # between the line and the right bar
numbers = np.unique(np.geomspace(1, 400, 15).astype(int))
falls = [np.sqrt(np.mean((by_probes[:n].mean(axis=0) - by_axes) ** 2)) for n in numbers]
fall.loglog(numbers, falls, "o-", color=plots.BLUE, label="mean of so many probes")
fall.loglog(numbers, falls[0] / np.sqrt(numbers), "--", color=plots.GREY, label="1/√probes")
fall.set(title="The error at a point", xlabel="probes", ylabel="root mean square error")
fall.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(by_batch, by_axes, rtol=1e-3, atol=1e-3)
scatter = np.abs(jacobians[:, 0, 1] + jacobians[:, 1, 0])
np.testing.assert_allclose(np.abs(by_probes - by_axes), np.broadcast_to(scatter, by_probes.shape), rtol=1e-2, atol=1e-2)
assert falls[-1] < 0.12 * falls[0]

# %% [markdown]
# ### Exercise: One product (6 min)
#
# `field` and `x` are as in the exercise of section 2, and `v` holds a vector of random signs for each point, shape (n, d). Return Hutchinson's estimate at each point, shape (n,), from one call of `gradient`.


# %%
def one_estimate(field, x, v):
    return ...  # one number for each point


exercises.estimate.check(one_estimate)

# %% [markdown]
# ### Exercise: Signs or bells (7 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Probes of standard normal numbers have the right mean, too: $\mathrm E\, v_i v_j$ is 1 for $i = j$ and 0 otherwise. Take the matrix of this section, with $-8$ and $-6$ on its diagonal and 3 beside it. What is the variance of $v^\top J v$ with random signs, and what with standard normal numbers?

# %%
variances = {"signs": ..., "normal": ...}

exercises.bells.check(variances)

# %% [markdown]
# ## 4. Is one probe enough?
#
# Four hundred probes bring the error at a point down to about a twentieth. But the loss is a mean over 256 points, its gradient is used once, and the next step draws new probes.
#
# **Predict.** The opening trained with one probe. Train once more, from the same start with the same batches, with the exact trace. What becomes of the error of the score?

# %%
exercises.enough.guess(...)  # "a tenth", "a half" or "nearly the same"


# %%
def exact_trace(w, x, v):
    """The loss with a pass for each axis."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        s = score(w, x)
        coordinates = tf.unstack(s, axis=1)
    trace = tf.add_n([tape.gradient(part, x)[:, i] for i, part in enumerate(coordinates)])
    return tf.reduce_mean(trace + 0.5 * tf.reduce_sum(s**2, axis=1))


with_exact_trace = train(exact_trace, signs)

# %% [markdown]
# And what would you do without any trace, or without training? Four rivals:
#
# - **A kernel density estimate**: a small Gaussian on each of the 5000 points. Its score is a formula; its width is the best of three, by the true error, which favours it.
# - **Denoising score matching** (Vincent 2011): add noise $\tau z$ to a point, with a standard normal $z$, and train the network to return $-z/\tau$ there, an arrow back to the point. No derivative with respect to $x$ at all. It learns the score of the *blurred* density. The better of two $\tau$, by the true error. Then once more with each $z$ used twice, as $+z$ and as $-z$, and $\tau = 0.07$.
# - **A linear model.** Where $s$ is linear in its weights, the loss is a square in them, and its minimum is one `solve`, as Hyvärinen noted in 2007. Here $s$ is the slope of 300 Gaussian bumps of width 0.6, at as many of the points, and of one wide hill. The weight decay is the best of three by the true error.
# - **A mixture of Gaussians**, fitted by scikit-learn (EM, the expectation–maximisation algorithm). The number of Gaussians, from 3 to 8, is the one with the best BIC, a criterion that sees the given points alone. Its log-density is a formula; a tape has its slope.


# %% tags=["nbval-ignore-output"]
wanted = true_score(test).numpy()


def error(found):
    """Mean squared error of a score at the test points, relative to the true one's mean square."""
    return float(np.mean(np.sum((found - wanted) ** 2, axis=1)) / np.mean(np.sum(wanted**2, axis=1)))


def kernel_score(bandwidth, x=test, data=data):
    squares = np.sum(x**2, axis=1)[:, None] - 2 * x @ data.T + np.sum(data**2, axis=1)
    shares = np.exp(-(squares - squares.min(axis=1, keepdims=True)) / (2 * bandwidth**2))
    return (shares @ data / shares.sum(axis=1, keepdims=True) - x) / bandwidth**2


def denoising(w, x, numbers, score=score):
    noise, arrow = tf.unstack(numbers)
    return 0.5 * tf.reduce_mean(tf.reduce_sum((score(w, x + noise) - arrow) ** 2, axis=1))


def in_pairs(w, x, numbers):
    """Denoising with each noise used twice, as +z and as -z."""
    noise, arrow = tf.unstack(numbers)
    return (denoising(w, x, [noise, arrow]) + denoising(w, x, [-noise, -arrow])) / 2


def noise_and_arrow(tau, rng=rng):
    def draw(shape):
        z = rng.standard_normal(shape, np.float32)
        return np.stack([tau * z, -z / tau], axis=1)  # a pair of arrays for each step

    return draw


def mixture_score(mixture, x):
    x = tf.constant(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        apart = x[:, None] - mixture.means_
        squares = tf.einsum("nki,kij,nkj->nk", apart, mixture.precisions_, apart)
        heights = np.log(mixture.weights_) + np.linalg.slogdet(mixture.precisions_)[1] / 2
        logarithm = tf.reduce_logsumexp(heights - squares / 2, axis=1)
    return tape.gradient(logarithm, x)


def slopes_and_traces(x, at, width):
    """Of bumps and a hill: the gradient of each at each point, shape (n, k, 2), and its Laplacian, (n, k)."""
    apart = np.float64(x)[:, None] - at
    squares = np.sum(apart**2, axis=2) / width**2
    bumps = np.exp(-squares / 2)
    hill = -np.float64(x)[:, None], np.full((len(x), 1), -2.0)
    return (
        np.concatenate([-apart * bumps[..., None] / width**2, hill[0]], axis=1),
        np.concatenate([(squares - 2) * bumps / width**2, hill[1]], axis=1),
    )


def linear(x, width, decays, at=data[:300]):
    """For each weight decay the score at x of the linear model with the lowest loss on the points: one solve."""
    slopes, traces = slopes_and_traces(data, at, width)
    square, there = np.tensordot(slopes, slopes, axes=([0, 2], [0, 2])) / len(data), slopes_and_traces(x, at, width)[0]
    solved = [np.linalg.solve(square + decay * np.eye(len(square)), -traces.mean(axis=0)) for decay in decays]
    return [np.einsum("nki,k->ni", there, weights) for weights in solved]


mixtures = [GaussianMixture(k, random_state=seed).fit(data) for k in range(3, 9)]
mixture = min(mixtures, key=lambda mixture: mixture.bic(data))
denoised = [train(denoising, noise_and_arrow(tau))[-1] for tau in (0.07, 0.1)]
ways = {"one probe": error(score(learnt, test)), "exact trace": error(score(with_exact_trace[-1], test))}
ways["denoising, best of two"] = min(error(score(w, test)) for w in denoised)
paired = train(in_pairs, noise_and_arrow(0.07, np.random.default_rng(seed)))[-1]
ways["denoising in pairs"] = error(score(paired, test))
ways["kernel density, best of three"] = min(error(kernel_score(h)) for h in (0.1, 0.13, 0.16))
ways["linear, best of three"] = min(error(s) for s in linear(test, 0.6, (1e-5, 1e-4, 1e-3)))
ways[f"mixture of {len(mixture.means_)} Gaussians"] = error(mixture_score(mixture, test))
for name, relative in ways.items():
    print(f"{name:31} relative squared error {relative:.3f}")

# %% alt="Line plot. The relative squared error of the score against training steps, on a logarithmic axis. The lines of one probe and of the exact trace fall together and lie nearly on each other to the end, at some two per cent. Five horizontal lines: the kernel density estimate highest, plain denoising and the linear model below it, denoising in pairs where the two lines end, and the mixture far below all." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: one probe and the exact trace
_, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
at = 100 * np.arange(len(with_one_probe))
ax.semilogy(at, [error(score(w, test)) for w in with_exact_trace], "s-", color=plots.ORANGE, label="exact trace")
ax.semilogy(at, [error(score(w, test)) for w in with_one_probe], ".--", color=plots.BLUE, label="one probe")
looks = ((plots.GREEN, ":"), (plots.GREEN, "-"), (plots.GREY, "-."), (plots.RED, "-."), ("black", ":"))
for name, (colour, style) in zip(list(ways)[2:], looks, strict=True):
    ax.axhline(ways[name], color=colour, linestyle=style, linewidth=1, label=name)
ax.set(
    title="On the ring one random probe is as good as the exact trace",
    xlabel="step",
    ylabel="relative squared error",
)
ax.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ratio = ways["one probe"] / ways["exact trace"]
exercises.enough.reveal("nearly the same" if ratio < 1.25 else "a half" if ratio < 4 else "a tenth")
assert 0.8 < ratio < 1.25
assert ways["one probe"] < 0.035


def check_kinked(w, x):
    return network(w, x, shapes(2, 48), tf.nn.relu)


check_rng = np.random.default_rng(seed)
check_flat = train(lambda w, x, v: one_probe(w, x, v, check_kinked), lambda size: check_rng.choice([-1.0, 1.0], size))
assert error(check_kinked(check_flat[-1], test)) > 0.5  # section 2: relu has no slope that changes
assert 1.4 < ways["kernel density, best of three"] / ways["one probe"] < 3.1
assert 1.2 < ways["denoising, best of two"] / ways["one probe"] < 1.95
assert 0.85 < ways["denoising in pairs"] / ways["one probe"] < 1.19
assert 1.1 < ways["linear, best of three"] / ways["one probe"] < 3.5
slopes, traces = slopes_and_traces(test[:50], data[:3], 0.5)
moved = [slopes_and_traces(test[:50] + np.float64(1e-5) * s * a, data[:3], 0.5)[0] for a in np.eye(2) for s in (1, -1)]
np.testing.assert_allclose(
    ((moved[0] - moved[1])[..., 0] + (moved[2] - moved[3])[..., 1]) / 2e-5, traces, rtol=0, atol=1e-6
)
assert ways["mixture of 5 Gaussians"] < 0.5 * ways["one probe"]
step, here = np.array([1e-5, 0.0]), np.float64(test[:50])
for of_some in mixtures:  # the weights of three Gaussians differ, those of five hardly do
    differences = (of_some.score_samples(here + step) - of_some.score_samples(here - step)) / 2e-5
    np.testing.assert_allclose(mixture_score(of_some, here)[:, 0], differences, rtol=0, atol=1e-4)

# %% [markdown]
# Nearly the same: an error of two per cent in this run, with either. Each point and each step has a new probe, as each step has a new mini-batch. And a probe is cheaper: `exact_trace` takes $d$ backward passes in each step before the one for $w$, `one_probe` takes one. On the ring $d$ is 2, in section 6 it is 64.
#
# The kernel density estimate, plain denoising and the linear model, whose training is one `solve`, are further off here. Denoising in pairs is level with one probe, with no derivative with respect to $x$: used as $+z$ and as $-z$, most of the noise in its target cancels. The mixture is far ahead, at a few thousandths: the ring *is* a mixture of five Gaussians, and BIC finds the five. If you know the family of the density, fit that.
#
# ## 5. Samples
#
# With a score you can make points. **Langevin's** steps climb the slope and are kicked at random,
#
# $$x \leftarrow x + \varepsilon\, s(x) + \sqrt{2\varepsilon}\, z,$$
#
# with a new standard normal $z$ in each, and in the long run, for small $\varepsilon$, these points are distributed nearly as the ring's $p$. In the opening, 500 steps of $\varepsilon = 0.01$ from noise filled the clusters about equally.
#
# **Predict.** Begin with all thousand points in *one* cluster instead. After as many steps, 500, which share of them is in that cluster? (In the long run a fifth.)

# %%
exercises.share.guess(...)  # a number between 0 and 1

# %% tags=["nbval-ignore-output"]
in_one = tf.constant(np.float32(centres[0] + width * rng.normal(size=(walkers, 2))))
from_one, _ = settle(score, learnt, in_one, kicks(walkers))
apart = np.linalg.norm(samples.numpy()[:, None] - centres, axis=-1)
cluster = np.linalg.norm(from_one.numpy()[:, None] - centres, axis=-1).argmin(axis=1)
print("from noise, share of each cluster:", np.bincount(apart.argmin(axis=1), minlength=5) / walkers)
print("from one cluster:                 ", np.bincount(cluster, minlength=5) / walkers)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
stayed = np.mean(cluster == 0)
exercises.share.reveal(stayed)
assert 0.4 < stayed < 0.9
equal = np.bincount(apart.argmin(axis=1), minlength=5) / walkers
assert equal.min() > 0.12
assert equal.max() < 0.29
near = apart.min(axis=1) < 3 * width
spread = np.sqrt(np.mean(apart.min(axis=1)[near] ** 2) / 2) / width
assert 0.93 < spread < 1.08

# %% [markdown]
# Far more than a fifth. Between the clusters the slope points back, and few kicks of this size carry a point across. The samples from noise look right because the noise put about as many points around each cluster as belong there. Diffusion models go around that: they learn the scores of many blurred densities, and begin with the most blurred one, in which there are no gaps.

# %% [markdown]
# ## 6. Sixty-four dimensions: digits
#
# The 1437 handwritten digits of the training set, $8 \times 8$ pixels each, are points in 64 dimensions, and nobody knows their density. Two things are new.
#
# **A blur.** Pixels are multiples of $1/16$, and some in the corners are 0 in every image: such a density has no slope. So add noise $\tau z$ to the images, $\tau = 0.2$, new in each step. The blurred images have a density with a score everywhere.
#
# **A network that returns an image.** The blurred density is a mixture, like the ring's: a Gaussian of width $\tau$ around each clean image $c$ that there may be. Each pulls with $(c - x)/\tau^2$, and the score is their mean, so with the mean $D(x)$ of the clean images that $x$ may have come from,
#
# $$s(x) = \frac{D(x) - x}{\tau^2}.$$
#
# Let the network return $D(x)$, 64 numbers between 0 and 1. Then $x + \tau^2 s(x) = D(x)$ is an image without the noise, and it is the last step of the sampler. (The formula is Robbins' of 1956, and is called Tweedie's.) The loss is the one you know, with one probe for each image and step.

# %%
images = datasets.load("digits", seed=seed)
digits, unseen = images.x_train.reshape(-1, 64), images.x_test.reshape(-1, 64)
tau = 0.2


def clean_image(w, x):
    """D(x), shape (n, 64)."""
    return tf.sigmoid(network(w, x, shapes(64, 128)))


def score_of_images(w, x):
    return (clean_image(w, x) - x) / tau**2


def one_probe_of_blurred(w, x, numbers):
    v, z = tf.unstack(numbers)
    return one_probe(w, x + tau * z, v, score_of_images)


def signs_and_noise(shape):
    return np.stack([np.float32(signs(shape)), rng.standard_normal(shape, np.float32)], axis=1)


start_64 = random_weights(shapes(64, 128))
taught = train(one_probe_of_blurred, signs_and_noise, start_64, digits)[-1]

from_noise = tf.constant(0.5 + rng.normal(size=unseen.shape), tf.float32)
settled, _ = settle(score_of_images, taught, from_noise, kicks(len(unseen), 64))
made = clean_image(taught, settled).numpy()

# %% alt="Images. Three rows of fifteen small grey images. Top, noise. Middle, what it settled to: digits under grey specks. Bottom, the same digits without the specks; most can be read." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: from noise to digits
_, axes = plt.subplots(3, 1, figsize=(9, 2.2), layout="constrained")
stages = {"noise": from_noise, "settled": settled, "made": made}
for ax, (name, stage) in zip(axes, stages.items(), strict=True):
    tiles = np.pad(np.reshape(stage[:15], (15, 8, 8)), ((0, 0), (0, 0), (1, 1)))
    ax.imshow(np.concatenate(tiles, axis=1), cmap="gray_r", vmin=0, vmax=1)
    ax.set(xticks=[], yticks=[], ylabel=name)
axes[0].set_title("Noise settles, and the network takes the blur off")
plt.show()

# %% [markdown]
# **What does one probe save?** The batch Jacobian takes 64 backward passes for the exact trace. Both losses, on unseen images with a blur:


# %% tags=["nbval-ignore-output"]
def exact_of_blurred(w, x, v):
    """The loss with the whole batch Jacobian, 64 passes; v is not used."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        s = score_of_images(w, x)
    traces = tf.linalg.trace(tape.batch_jacobian(s, x))
    return tf.reduce_mean(traces + 0.5 * tf.reduce_sum(s**2, axis=1))


@tf.function
def gradient_of(objective, w, x, v):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = objective(w, x, v)
    return value, tape.gradient(value, w)


def probe_of_images(w, x, v):
    return one_probe(w, x, v, score_of_images)


noise = np.float32(rng.normal(size=unseen.shape))
blurred = unseen + np.float32(tau) * noise
x, v = tf.constant(blurred), tf.constant(signs(blurred.shape), tf.float32)
found, milliseconds = {}, {}
for name, objective in {"one probe": probe_of_images, "exact trace": exact_of_blurred}.items():
    found[name] = gradient_of(objective, taught, x, v)  # compiles
    begin = time.process_time()
    for _ in range(5):
        gradient_of(objective, taught, x, v)
    milliseconds[name] = 200 * (time.process_time() - begin)
    print(f"{name:11} loss {found[name][0]:.0f}, its gradient in {milliseconds[name]:.0f} ms of processor time")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert milliseconds["exact trace"] > 4 * milliseconds["one probe"]
np.testing.assert_allclose(found["one probe"][0], found["exact trace"][0], rtol=0.05)

# %% [markdown]
# The losses are close, and the exact trace takes many times the processor time.
#
# **Are they good?** The rivals' images are drawn from one Gaussian, fitted to the training images; from ten Gaussians, one for each digit, a rival that is told the labels; and from a mixture of ten that EM fits without them.

# %%
covariance = np.cov(digits.T)
gaussian = rng.multivariate_normal(digits.mean(axis=0), covariance, len(unseen)).clip(0, 1)
of_each = [digits[images.y_train == digit] for digit in range(10)]
ten_gaussians = [rng.multivariate_normal(same.mean(axis=0), np.cov(same.T), 36) for same in of_each]
ten_gaussians = rng.permutation(np.concatenate(ten_gaussians)).clip(0, 1)
mixture_of_ten = GaussianMixture(10, random_state=seed, max_iter=50).fit(np.float64(digits))
by_em = np.random.default_rng(seed).permutation(mixture_of_ten.sample(len(unseen))[0]).clip(0, 1)
collections = {"unseen": unseen, "made": made, "one Gaussian": gaussian}
collections |= {"ten Gaussians, told the labels": ten_gaussians, "ten Gaussians by EM": by_em}

# %% alt="Images. Three panels of sixty small grey images each. Unseen: handwritten digits. Made by the network: most are digits of the same kind, some cannot be read. Ten Gaussians by EM: digits with ragged edges and grey specks, about as many of them readable." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: digits that nobody wrote
_, axes = plt.subplots(1, 3, figsize=(11, 4.4), layout="constrained")
for ax, name in zip(axes, ("unseen", "made", "ten Gaussians by EM"), strict=True):
    tiles = np.pad(np.reshape(collections[name][:60], (6, 10, 8, 8)), ((0, 0), (0, 0), (1, 1), (1, 1)))
    ax.imshow(tiles.transpose(0, 2, 1, 3).reshape(60, 100), cmap="gray_r", vmin=0, vmax=1)
    ax.set(title=name, xticks=[], yticks=[])
plt.show()

# %% [markdown]
# The distance to the nearest training image tells copies (it is too small) from clouds (too large). The label of that nearest image tells which digits occur. And a support vector machine is trained to tell the 360 made images from 360 unseen ones: right in half of the cases if there is nothing to tell.


# %% tags=["nbval-ignore-output"]
def to_training(points):
    """The distance from each point to each training image."""
    return pairwise_distances(np.float64(points), np.float64(digits))


nearest, told_apart = {}, {}
fake = np.repeat([0, 1], len(unseen))
for name, points in collections.items():
    nearest[name] = to_training(points).min(axis=1)
    told_apart[name] = cross_val_score(SVC(C=10), np.concatenate([unseen, points]), fake, cv=5).mean()
    print(f"{name:30} nearest training image at {np.median(nearest[name]):.2f} (median)", end="")
    print("" if name == "unseen" else f", told from unseen ones: {told_apart[name]:.2f}")
occur = np.bincount(images.y_train[to_training(made).argmin(axis=1)], minlength=10) / len(made)
print("share of each digit among the made ones:", np.round(occur, 2))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.9 < np.median(nearest["made"]) / np.median(nearest["unseen"]) < 1.25
assert np.mean(nearest["made"] < 0.3) < 0.01  # no copies
assert np.median(nearest["one Gaussian"]) > 1.3 * np.median(nearest["unseen"])
assert occur.min() > 0.02
assert occur.max() < 0.25
assert 0.7 < told_apart["made"] < 0.96
assert abs(told_apart["made"] - told_apart["ten Gaussians, told the labels"]) < 0.15
assert abs(told_apart["made"] - told_apart["ten Gaussians by EM"]) < 0.15
assert told_apart["one Gaussian"] > told_apart["made"]
assert abs(told_apart["ten Gaussians by EM"] - told_apart["ten Gaussians, told the labels"]) < 0.08

# %% [markdown]
# All ten digits occur. They are no copies: the nearest training image is about as far from a made digit as from an unseen real one. They are not perfect: the support vector machine is right far more often than in half of the cases. With the ten Gaussians of either kind it is right about as often: for this judge you need no network.
#
# ## 7. Going further: is the score right?
#
# The image $x + \tau^2 s(x)$ ought to be near the clean one, and in the mean square nothing comes nearer than the true score's $D$. So clean the blurred unseen images, by the score of each rival, and cut off what leaves the pixels' range, $[0, 1]$, which the network cannot leave. The mixture of ten is blurred by adding $\tau^2$ to its variances. Denoising (section 4) trains the same network from the same start with as many steps.


# %% tags=["nbval-ignore-output"]
blurred_gaussian = np.linalg.inv(covariance + tau**2 * np.eye(64))


def denoising_images(w, x, numbers):
    return denoising(w, x, numbers, score_of_images)


by_denoising = train(denoising_images, noise_and_arrow(tau), start_64, digits)[-1]
blurred_mixture = SimpleNamespace(means_=mixture_of_ten.means_, weights_=mixture_of_ten.weights_)
blurred_mixture.precisions_ = np.linalg.inv(mixture_of_ten.covariances_ + tau**2 * np.eye(64))
forty = np.float64(digits)[np.argsort(to_training(digits), axis=1)[:, 1:41]] - digits[:, None]
covariances = 0.02 * np.swapaxes(forty, 1, 2) @ forty + 0.006 * np.eye(64)  # 0.8 of the mean of 40
local = SimpleNamespace(means_=np.float64(digits), weights_=np.ones(len(digits)))
local.precisions_ = np.linalg.inv(covariances + tau**2 * np.eye(64))
scores = {
    "no score": 0.0,
    "kernel density, best of six": [kernel_score(h, blurred, digits) for h in (0.2, 0.25, 0.3, 0.35, 0.4, 0.5)],
    "one Gaussian": (digits.mean(axis=0) - blurred) @ blurred_gaussian,
    "ten Gaussians by EM": mixture_score(blurred_mixture, blurred).numpy(),
    "Gaussians of 40 neighbours": np.concatenate(
        [mixture_score(local, part).numpy() for part in np.split(np.float64(blurred), 12)]
    ),
    "one probe": score_of_images(taught, blurred).numpy(),
    "denoising": score_of_images(by_denoising, blurred).numpy(),
}
cleaned = {}
for name, of_rival in scores.items():
    images_of_rival = blurred + tau**2 * np.asarray(of_rival)
    if name != "no score":
        images_of_rival = images_of_rival.clip(0, 1)
    squares = np.mean((images_of_rival - unseen) ** 2, axis=(-2, -1))
    cleaned[name] = float(np.min(squares))
    print(f"{name:28} mean squared error of a pixel {cleaned[name]:.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert cleaned["one probe"] < 0.88 * cleaned["one Gaussian"]
assert 0.9 < cleaned["ten Gaussians by EM"] / cleaned["one probe"] < 1.15
assert cleaned["one probe"] < 0.92 * cleaned["kernel density, best of six"]
assert 0.97 < cleaned["one probe"] / cleaned["denoising"] < 1.06
assert cleaned["Gaussians of 40 neighbours"] < 0.97 * min(cleaned["one probe"], cleaned["denoising"])
np.testing.assert_allclose(cleaned["no score"], tau**2 * np.mean(noise**2), rtol=1e-3)
# The loss, which has no clean image in it, says how far the cleaned images are from the clean ones: in the mean over
# the noise, so the excess of this draw's squares, which the loss has in it, is taken off.
without_clean = 2 * tau**4 * float(found["exact trace"][0]) / 64 + tau**2 * (2 - np.mean(noise**2))
np.testing.assert_allclose(without_clean, cleaned["one probe"], rtol=0.15)

# %% [markdown]
# In this run one probe cleans nearly as well as denoising, and the ten Gaussians that EM fits come close. One Gaussian and the kernel density estimate, whose Gaussians are round, are further off. But give each image's Gaussian the shape of its forty nearest images, and this formula cleans better than both networks, with nothing trained. A network trained with the exact trace cleaned a hundredth better.
#
# Section 6's loss can be read, too, though no clean image appears in it: $2\tau^4$ times the loss, plus $64\tau^2$, is the expected squared error, summed over the 64 pixels (Stein 1981).
#
# ## 8. Going further: the ring once more, with other numbers of steps
#
# In section 4 all networks had the same number of steps, and plain denoising takes no derivative with respect to $x$. So give denoising twice the steps, with section 4's best $\tau$, and the exact trace three quarters. All have one start and one schedule of learning rates, which was tuned for none.

# %% tags=["nbval-ignore-output"]
best_tau = (0.07, 0.1)[int(np.argmin([error(score(w, test)) for w in denoised]))]
longer = train(denoising, noise_and_arrow(best_tau), steps=2 * steps)[-1]
equal_cost = {"one probe": ways["one probe"]}
equal_cost["exact trace"] = error(score(train(exact_trace, signs, steps=3 * steps // 4)[-1], test))
equal_cost["denoising"] = error(score(longer, test))
equal_cost["in pairs"] = ways["denoising in pairs"]
for name, relative in equal_cost.items():
    print(f"{name:12} relative squared error {relative:.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.95 < equal_cost["exact trace"] / equal_cost["one probe"] < 1.4
assert 0.9 < equal_cost["denoising"] / equal_cost["one probe"] < 1.6
assert ways["kernel density, best of three"] > max(equal_cost.values())
assert ways["mixture of 5 Gaussians"] < 0.25 * min(equal_cost.values())

# %% [markdown]
# In this run the four lie within a quarter of each other.
#
# <details><summary>Appendix: with three seeds</summary>
#
# The relative squared error with the seeds 0, 1 and 2, and other draws than this page's:
#
# | Way | How it is tuned | Steps | Error |
# |---|---|---|---|
# | one probe | nothing to tune | 2000 | 0.0192, 0.0213, 0.0195 |
# | exact trace | nothing to tune | 1500 | 0.0231, 0.0218, 0.0217 |
# | denoising | $\tau$, the best of five by the true error | 4000 | 0.0228, 0.0268, 0.0262 |
# | denoising in pairs | $\tau$, the best of two by the true error | 2000 | 0.0196, 0.0202, 0.0210 |
# | kernel density | width, the best of six by the true error | none | 0.0494, 0.0492, 0.0569 |
# | mixture of five Gaussians | their number by BIC, from the points | none: EM | 0.0032, 0.0029, 0.0025 |
#
# </details>

# %% [markdown]
# ## 9. Check it independently
#
# The integration by parts needs no training to be checked: on a fine grid the means on both sides of it are sums. For the true score itself, integration by parts says that $\mathrm E \operatorname{tr} \partial s/\partial x = -\mathrm E \lVert s \rVert^2$, and so the lowest loss there can be is $-\tfrac12 \mathrm E \lVert s \rVert^2$.

# %%
line_of_grid = np.linspace(-5, 5, 201)
grid = np.stack(np.meshgrid(line_of_grid, line_of_grid), axis=-1).reshape(-1, 2)
density = np.exp(log_density(tf.constant(grid)).numpy())
density /= density.sum()
exact = true_score(grid).numpy()

h = 1e-5  # the trace by central differences of the score: no second derivative of TensorFlow's
differences = sum(
    (true_score(grid + h * axis).numpy() - true_score(grid - h * axis).numpy())[:, i] / (2 * h)
    for i, axis in enumerate(np.eye(2))
)
print("mean of the trace:        ", round(float(density @ differences), 4))
print("minus the mean square:    ", round(float(-density @ np.sum(exact**2, axis=1)), 4))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(density @ differences, -density @ np.sum(exact**2, axis=1), rtol=1e-5)
lowest = -0.5 * density @ np.sum(exact**2, axis=1)
reached = float(exact_trace(learnt, tf.constant(test), None))
assert abs(reached / lowest - 1) < 0.1  # on 2000 points that it has not seen
weights = tf.constant(np.random.default_rng(seed).normal(size=start.shape), tf.float64)
wide = tf.constant(grid[::10])
moved = [
    (score(weights, wide + 1e-5 * axis) - score(weights, wide - 1e-5 * axis))[:, i] / 2e-5
    for i, axis in enumerate(np.eye(2))
]
with tf.GradientTape(persistent=True) as tape:
    tape.watch(wide)
    s = score(weights, wide)
    coordinates = tf.unstack(s, axis=1)
found = tf.add_n([tape.gradient(part, wide)[:, i] for i, part in enumerate(coordinates)])
np.testing.assert_allclose(found, tf.add_n(moved), rtol=0, atol=1e-5)

# %% [markdown]
# ## Recap
#
# - The score $\nabla \log p$ is a field of arrows towards the points. A normalising constant does not change it (section 1).
# - Integration by parts turns the error against the unknown score into $\mathrm E[\operatorname{tr} \partial s/\partial x + \tfrac12 \lVert s\rVert^2]$. Without the trace the best field is zero (section 2).
# - $v^\top J v$ with random signs has the mean $\operatorname{tr} J$ and takes one vector–Jacobian product; only off-diagonal entries scatter it (section 3).
# - On the ring one probe for each point and step trains as well as the exact trace; Langevin steps turned noise into samples, and hardly crossed the gaps (sections 4 and 5).
# - In 64 dimensions the gradient with one probe took a small part of the processor time of the trace by the batch Jacobian. Blurred digits have a score, and a network for it makes digits that are no copies (section 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | the gradient of the *sum* of the outputs taken for the trace | off-diagonal entries in it; the loss falls, and the field is not the score | $v$ on both sides, or one output at a time |
# | `relu` in a network that is trained with the trace | a field near zero, or a poor one | a smooth activation: `tanh`, `silu` |
# | one probe for all points and all steps | another loss: off-diagonal entries count | a new probe in each step |
# | data with a constant coordinate, or on a coarse grid | no slope to learn: the loss falls without end | blur the data, and take the blur off at the end |
# | "it reached all the clusters" | it was started in all of them | start in one, and look |
#
# **Further reading**
#
# - A. Hyvärinen (2005), ["Estimation of non-normalized statistical models by score matching"](https://jmlr.org/papers/v6/hyvarinen05a.html); (2007) ["Some extensions of score matching"](https://doi.org/10.1016/j.csda.2006.09.003): one solve.
# - M. F. Hutchinson (1990), ["A stochastic estimator of the trace of the influence matrix for Laplacian smoothing splines"](https://doi.org/10.1080/03610919008812866).
# - Y. Song, S. Garg, J. Shi, S. Ermon (2019), ["Sliced score matching: a scalable approach to density and score estimation"](https://arxiv.org/abs/1905.07088).
# - P. Vincent (2011), ["A connection between score matching and denoising autoencoders"](https://doi.org/10.1162/NECO_a_00142).
# - H. Robbins (1956), ["An empirical Bayes approach to statistics"](https://projecteuclid.org/ebooks/berkeley-symposium-on-mathematical-statistics-and-probability/Proceedings-of-the-Third-Berkeley-Symposium-on-Mathematical-Statistics-and/chapter/An-Empirical-Bayes-Approach-to-Statistics/bsmsp/1200501653).
# - C. M. Stein (1981), ["Estimation of the mean of a multivariate normal distribution"](https://doi.org/10.1214/aos/1176345632).
# - Y. Song, S. Ermon (2019), ["Generative modeling by estimating gradients of the data distribution"](https://arxiv.org/abs/1907.05600).
# - G. O. Roberts, R. L. Tweedie (1996), ["Exponential convergence of Langevin distributions and their discrete approximations"](https://doi.org/10.2307/3318418).
#
# **Read next:** [14 Without the matrix](14_without_the_matrix.ipynb) uses products with random vectors for spectra;
# [24 An equation and no data](24_an_equation_and_no_data.ipynb) has the other trace of a Jacobian, the Laplacian.
