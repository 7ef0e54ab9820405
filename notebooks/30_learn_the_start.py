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
# # Learn the start
#
# Gradient descent has an input that nobody differentiates: the point where it begins. You will meet many small tasks, each with ten examples, and there is time for *one* gradient step. A tape around that step says how its result answers to the start.
# **From which weights does one gradient step fit a new task?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/30_learn_the_start.ipynb)
#
# **Prerequisites:** [14 Without the matrix](14_without_the_matrix.ipynb) · **Minutes:** 16 to read, 2 more to go further, 13 for the exercises; to work through it all, about 1 h

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
rounds = 2500  # of training a start, 16 tasks in each

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import learn_the_start as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %% [markdown]
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
# After 2500 rounds of training the error on new sines is still 3.0, where the answer 0 has 4.2, and one step, at the best of five rates, takes off about a sixth. The network is not to blame, nor the ten points, nor the single step. There are other weights of *this* network from which *one* step brings the error below a fifth of that. You find them below with one more tape.
#
# **You will be able to**
#
# - learn a start from which one gradient step fits a new task, and say what the gradient passes through (section 1),
# - say what the second derivatives in it are, what they cost, and what they buy against a rival at its best (section 2),
# - learn the rates of the step together with the start (section 3, which goes further).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 2.6 < curves["jointly"][0] < 3.4
assert curves["jointly"][1] > 2.0
assert joint_alpha not in (alphas[0], alphas[-1])  # the best rate lies between others
assert 3.5 < float(tf.reduce_mean(new[1] ** 2)) < 4.8
kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = np.split(starts["jointly"].numpy(), np.cumsum(SIZES)[:-1])
h = np.tanh(np.tanh(np.outer([-2.0, 0.5], kernel_1) + bias_1) @ kernel_2.reshape(40, 40) + bias_2)
by_numpy = h @ kernel_3 + bias_3
np.testing.assert_allclose(network(starts["jointly"][None], tf.constant([[-2.0, 0.5]]))[0], by_numpy, atol=1e-4)

# %% [markdown]
# ## 1. A gradient through a step
#
# **Model-agnostic meta-learning** (MAML) asks for what is wanted. Let $L_A$ be a task's loss on ten points, and $L_B$ its loss on the ten others. Minimise, on average over many tasks,
#
# $$L_B(w'), \qquad w' = w - \alpha\,\nabla L_A(w),$$
#
# with respect to the start $w$. The step happens inside the target, so the target's gradient passes through the step:
#
# $$\nabla_w\, L_B(w') = (I - \alpha H_A)\, \nabla L_B(w').$$
#
# Here $H_A$ is the Hessian of $L_A$ at the start $w$, and a tape around a tape multiplies by it. `adapt` above takes the step for all tasks at once. Take care to *add* the tasks' losses there, as it does: with their mean, 16 tasks would make every task's step 16 times too short.
#
# Two rates are to be chosen: $\alpha$ of the step, here 0.04, and that of the outer training. Each start is trained with three outer rates, and the one is kept that does best after one step on held-out sines.


# %%
ALPHA = 0.04


def after_one_step(second_derivatives):
    def start_loss(w, x, y):
        adapted = adapt(w, x[:, :10], y[:, :10], ALPHA, second_derivatives)
        return tf.reduce_mean(task_losses(adapted, x[:, 10:], y[:, 10:]))

    return start_loss


def best_start(train, sines_seen):
    tried = {rate: train(random_start, *sines_seen, tf.constant(rate)) for rate in (0.005, 0.01, 0.02)}
    return min(tried.values(), key=lambda start: errors_along(start, held_out, ALPHA, 1)[1])


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
# Before any step the errors are the same, about 3. No single curve can do better over all sines: the best one is the average of all sines, $-1.62 \cos x$, and its mean squared error is 3.0. Both starts come close to that average. So a good start is not a good model. It is a point from which the *gradient* leads somewhere: the one step takes this start to about a tenth.
#
# Is one step so much? Give the joint start time: 300 steps of Adam on the ten points of each sine, at the best of three rates.
#
# **Predict.** After these 300 steps, how large is the joint start's error relative to the other start's after its one?

# %%
exercises.patience.guess(...)  # "less than half", "the same within a tenth" or "larger"

# %% tags=["nbval-ignore-output"]
some_x, some_y = new[0][:100], new[1][:100]


@tf.function(jit_compile=True)
def fine_tune(start, rate):
    w = tf.broadcast_to(start, [100, len(start)])
    m, v = tf.zeros_like(w), tf.zeros_like(w)
    for i in tf.range(300):
        with tf.GradientTape() as tape:
            tape.watch(w)
            total = tf.reduce_sum(task_losses(w, some_x[:, :10], some_y[:, :10]))
        w, m, v = adam_step(w, tape.gradient(total, w), m, v, tf.cast(i, tf.float32), rate)
    return tf.reduce_mean(task_losses(w, some_x[:, 10:], some_y[:, 10:]))


patient = min(float(fine_tune(starts["jointly"], tf.constant(rate))) for rate in (1e-3, 3e-3, 1e-2))
at_once = errors_along(starts["second order"], (some_x, some_y), ALPHA, 1)[1]
print(f"jointly trained, then 300 steps of Adam: {patient:.2f}")
print(f"learnt start, then one gradient step:    {at_once:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
times = patient / at_once
exercises.patience.reveal("less than half" if times < 0.5 else "the same within a tenth" if times < 1.1 else "larger")
assert times > 1.15
assert patient < 0.5 * curves["jointly"][5]  # the patience does help

# %% [markdown]
# Three hundred patient steps do not take the joint start as far as *one* step takes the learnt one, on average over the hundred sines. Here ten points are few: what Adam finds fits them, and the sine between them is left to chance. The learnt start comes from 40,000 sines, and its step was trained on what lies between the points.
#
# Watch both on a new sine, step by step. The sine is grey, and the dots are the ten points that the steps see.

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
average = -2.55 * 2 / np.pi * np.cos(wide[0])  # of 2.55 sin(x - phase), over phases from 0 to pi
for path in paths.values():
    assert np.sqrt(np.mean((path[0] - average) ** 2)) < 0.7
x = np.linspace(-5, 5, 10001)
best_single = 5.0**3 / (3 * 4.9) / 2 - np.mean((2.55 * 2 / np.pi * np.cos(x)) ** 2)
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
# ## 2. With and without second derivatives
#
# The product with $H_A$ makes each round of training about twice as dear. `stop_gradient` on the inner gradient, as in `adapt`, cuts the path through it. What remains is $\nabla L_B(w')$, taken for the gradient with respect to $w$: the **first-order** version. At equal cost it may take twice the rounds. It gets 5000, and its own choice among the three outer rates.
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
# Not level, with twice the rounds. (Ten seeds are below.) And the lead is small beside what separates both from the start that was trained jointly.
#
# The formula says why. First order asks: which way does $L_B$ fall at $w'$? It moves the start that way. The factor $I - \alpha H_A$ asks also: how does a change of the start *change the step*? It arranges the start so that one step of rate 0.04 lands right.
#
# The second derivatives cost memory as well, and more with each inner step: a tape around ten of them keeps what all ten computed. Finn and others, who proposed both versions, report nearly equal results on images. A first-order start is a fair first try, and the second derivatives are what to add when the one step has to count.
#
# ### The rivals, over ten seeds
#
# One seed may flatter anyone, and so may a fixed $\alpha$, or a rival that takes no gradient step. The nearest one keeps the 40 features that the last hidden layer computes. It then *solves* for the last layer: ridge regression on the ten points, one linear system for each sine.


# %%
def after_solve(start, tasks, penalty):
    """The mean error on the others, after ridge regression on ten points for a change of the last layer."""
    x, y = (np.array(part, float) for part in tasks)
    kernel_1, bias_1, kernel_2, bias_2, kernel_3, bias_3 = np.split(start.numpy().astype(float), np.cumsum(SIZES)[:-1])
    h = np.tanh(np.tanh(x[..., None] * kernel_1 + bias_1) @ kernel_2.reshape(40, 40) + bias_2)
    features = np.concatenate([h, np.ones_like(h[..., :1])], axis=2)  # the one is for the bias
    known, others, left = features[:, :10], features[:, 10:], y - h @ kernel_3 - bias_3
    inner = known @ np.swapaxes(known, 1, 2) + penalty * np.eye(10)
    change = np.swapaxes(known, 1, 2) @ np.linalg.solve(inner, left[:, :10, None])
    return float(np.mean((left[:, 10:] - (others @ change)[..., 0]) ** 2))


def best_solve(candidates):
    tried = [(start, 10.0**power) for start in candidates for power in np.arange(-2.5, 1.1, 0.5)]
    start, penalty = min(tried, key=lambda pair: after_solve(pair[0], held_out, pair[1]))
    return after_solve(start, new, penalty)


thrice = sines(np.random.default_rng(seed + 9000), 3 * rounds, 16)
joint = [train_jointly(random_start, *thrice, tf.constant(rate)) for rate in (0.001, 0.002, 0.004, 0.008)]
solved = {"jointly": best_solve(joint), "second order": best_solve([starts["second order"]])}

# %% tags=["nbval-ignore-output"]
print(f"second order, then one gradient step:  {curves['second order'][1]:.3f}")
for kind, error in solved.items():
    print(f"{kind + ', then one linear solve:':38} {error:.3f}")

# %% [markdown]
# With the seeds 0 to 9, on the 500 new sines of each: minimum, median, maximum. What is tuned is chosen on the held-out sines. A round of joint training took 0.3 times the processor time of a round with second derivatives here, one of first order 0.5 times; so 7500, 5000 and 2500 rounds cost about the same.
#
# | Start | Tuned | Rounds | Then | Error |
# |---|---|---|---|---|
# | second order, $\alpha = 0.04$ | outer rate, of three | 2500 | one step | 0.276, 0.318, 0.342 |
# | first order, $\alpha = 0.04$ | outer rate, of three | 5000 | one step | 0.368, 0.427, 0.560 |
# | second order | outer rate, and $\alpha$ of four | 2500 | one step | 0.282, 0.311, 0.326 |
# | first order | outer rate, and $\alpha$ of four | 5000 | one step | 0.337, 0.405, 0.514 |
# | jointly | outer rate and $\alpha$, of four each | 7500 | one step | 2.30, 2.41, 2.63 |
# | jointly | Adam's rate, of three, by the true error | 2500 | 300 steps of Adam (100 sines) | 0.42, 0.57, 0.91 |
# | jointly | outer rate, of four, and penalty | 7500 | linear solve | 0.201, 0.267, 0.397 |
# | second order, $\alpha = 0.04$ | outer rate, of three, and penalty | 2500 | linear solve | 0.038, 0.045, 0.057 |
#
# First order is behind second order with each seed: with 0.04 for both by a factor of 1.13 to 1.78, in the middle 1.41; with an $\alpha$ of its own (0.03 or 0.04 was the best each time) by 1.11 to 1.68, in the middle 1.26. At equal *rounds* the factor would be 1.37 to 3.24: that comparison flatters the dearer method. After five steps, for which neither was trained, it is 1.03 to 2.18.
#
# The linear solve is the stronger rival. On the joint start's features it leaves 0.68 to 1.41 times what the one step leaves from the learnt start, in the middle 0.80; with nine of the ten seeds it leaves less. So the joint network has learnt what sines are made of, and no single gradient step makes use of it. The learnt start's features serve the solve better still, though nobody trained them for one. Where the last layer can be solved for, solve; a tape can go through the solve, too (Bertinetto and others). The step is for what has no such formula. And who knows that the tasks are sines needs no network: $a \sin x + b \cos x$ has two unknowns, and ten points give them exactly.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_spread = {  # the table: minimum and maximum with the seeds 0 to 9
    "second order": (curves["second order"][1], 0.276, 0.342),
    "first order": (curves["first order"][1], 0.368, 0.560),
    "jointly, Adam": (patient, 0.42, 0.91),
    "jointly, solve": (solved["jointly"], 0.201, 0.397),
    "second order, solve": (solved["second order"], 0.038, 0.057),
}
for check_name, (check_seen, check_least, check_most) in check_spread.items():
    assert 0.9 * check_least < check_seen < 1.1 * check_most, check_name
np.testing.assert_allclose(after_solve(starts["jointly"], new, 1e9), curves["jointly"][0], rtol=1e-3)  # no change
assert 0.6 < solved["jointly"] / curves["second order"][1] < 1.5
assert solved["second order"] < 0.25 * min(curves["second order"][1], solved["jointly"])
x, y = (np.array(part, float) for part in new)
basis = np.stack([np.sin(x), np.cos(x)], axis=2)
for k in range(20):
    unknowns = np.linalg.lstsq(basis[k, :10], y[k, :10], rcond=None)[0]
    np.testing.assert_allclose(basis[k, 10:] @ unknowns, y[k, 10:], atol=1e-4)

# %% [markdown]
# ## 3. Going further: learn the step, too
#
# The rate of the step is an input as well, and a tape says which way it should go (the exercise below writes it out). Why one rate for all? Give each of the 1761 weights its own: Li and others' **Meta-SGD**. The rates' logarithms are learnt together with the start, by the same tape. The step becomes $w' = w - a \odot \nabla L_A(w)$.


# %%
def start_and_rates(w, x, y):
    """The loss after a step with a rate for each weight; both are parts of `w`, shape (tasks, 2 × 1761)."""
    start, log_rates = tf.split(w, 2, axis=1)
    adapted = adapt(start, x[:, :10], y[:, :10], tf.exp(log_rates))
    return tf.reduce_mean(task_losses(adapted, x[:, 10:], y[:, 10:]))


both = tf.concat([random_start, tf.fill([1761], np.float32(np.log(ALPHA)))], 0)
learnt, log_rates = tf.split(trainer(start_and_rates)(both, *seen, tf.constant(0.02)), 2)
curves["start and rates"] = errors_along(learnt, new, np.exp(log_rates))

# %% tags=["nbval-ignore-output"]
print("steps                1      2")
for kind in ("second order", "start and rates"):
    print(f"{kind:16} {curves[kind][1]:6.3f} {curves[kind][2]:6.3f}")
rates = np.exp(log_rates)
print(f"rates from {rates.min():.4f} to {rates.max():.2f}, median {np.median(rates):.3f}")

# %% [markdown]
# With the seeds 0 to 9 one step leaves 9 to 19 % less than it does from the start alone. A second step gains far more: it leaves 0.46 to 0.63 of what the second step leaves there. That is a by-product, as the training looked one step ahead only. One learnt rate for *all* weights does not do that: in two draws (seeds 0 and 11) it ends near 0.032, and the error after one step is within 4 % of that of the start alone. The rates of the single weights span a factor of more than a hundred: the same slope moves one weight a hundred times as far as another.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.05 < 1 - curves["start and rates"][1] / curves["second order"][1] < 0.25
assert 0.4 < curves["start and rates"][2] / curves["second order"][2] < 0.7
assert rates.max() / rates.min() > 100

# %% [markdown]
# ### Exercise: How long should the step be? (5 min)
#
# The start is not the only number in $L_B(w - \alpha\,\nabla L_A(w))$. Return its derivative with respect to $\alpha$: `fit`, `judge`, `w` and `rate` are as above, the result is a scalar. Two gradients are enough.


# %%
def by_the_rate(fit, judge, w, rate):
    return ...  # a scalar


exercises.step_length.check(by_the_rate)

# %% [markdown]
# ## 4. Check it independently
#
# An oracle that knows nothing of tapes around steps: the formula for MAML's gradient, with the Hessian product that `derivatives.hvp` computes, in float64. The tape through the step must agree with it, and so must central differences. The first-order version must not.

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
with tf.GradientTape() as tape:
    there = after_a_step(w)
    tape.watch(there)
    value = loss_b(there)
at_moved = tape.gradient(value, there)
by_formula = at_moved - ALPHA * derivatives.hvp(loss_a)(w, vector=at_moved)
size = tf.norm(by_formula)
print(f"second order against (I - αH) times the gradient: {tf.norm(meta_gradients[True] - by_formula) / size:.0e}")
print(f"first order against it:                           {tf.norm(meta_gradients[False] - by_formula) / size:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(meta_gradients[True], by_formula, rtol=0, atol=1e-12 * float(size))
np.testing.assert_allclose(meta_gradients[False], at_moved, rtol=1e-12)
assert tf.norm(meta_gradients[False] - by_formula) > 1e-3 * size
gradcheck.check_gradient(lambda w: float(loss_b(after_a_step(tf.constant(w)))), by_formula.numpy(), w.numpy())

# %% [markdown]
# ## Recap
#
# - A tape around a training step gives the derivative of what the step reaches with respect to where it begins: $(I - \alpha H_A)\,\nabla L_B(w')$. A good start is not a good model: before any step both starts miss as much as the best single curve, 3.0; one step takes the learnt one to about a tenth (section 1).
# - Without the second derivatives a round costs about half. Given twice the rounds and rates of its own, the first-order start is far ahead of the joint one and behind the second-order one after one step, by a factor of 1.1 to 1.8 in ten draws. A linear solve for the last layer is the strongest rival; the learnt start serves it, too (section 2).
# - The step's rates are inputs as well, and can be learnt with the start (section 3).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | the mean of the tasks' losses in the inner step | steps that are too short | add them |
# | the points of the step also judge it | a larger error on other points than on those | others for $L_B$ |
# | `stop_gradient` on the inner gradient | the second derivatives are gone without a word | leave it out where one step has to count |
# | a comparison at equal rounds | the dearer method looks better than it is | equal cost, and rates for each |
# | many inner steps on a tape | memory grows with them | few steps, or first order |
#
# **Further reading**
#
# - C. Finn, P. Abbeel, S. Levine (2017), ["Model-agnostic meta-learning for fast adaptation of deep networks"](https://arxiv.org/abs/1703.03400).
# - A. Nichol, J. Achiam, J. Schulman (2018), ["On first-order meta-learning algorithms"](https://arxiv.org/abs/1803.02999).
# - Z. Li, F. Zhou, F. Chen, H. Li (2017), ["Meta-SGD: learning to learn quickly for few-shot learning"](https://arxiv.org/abs/1707.09835).
# - L. Bertinetto, J. F. Henriques, P. H. S. Torr, A. Vedaldi (2019), ["Meta-learning with differentiable closed-form solvers"](https://arxiv.org/abs/1805.08136).
# - A. Antoniou, H. Edwards, A. Storkey (2019), ["How to train your MAML"](https://arxiv.org/abs/1810.09502).
#
# **Read next:** [23 Differentiate the optimiser](23_differentiate_the_optimiser.ipynb) has the other inputs of a training loop, its rates;
# [20 The derivative of a solution](20_derivative_of_a_solution.ipynb) does without the steps.
