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
# # Batch Jacobians and per-example gradients
#
# The network below maps each example of a batch to outputs of its own. The Jacobian of the whole batch also pairs each example's outputs with every *other*
# example's inputs.
# **What belongs to each example alone, and how do you get it without computing the rest?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/15_batch_jacobians.ipynb)
#
# **Prerequisites:** [11 Jacobians](11_jacobians.ipynb) · **Minutes:** 22 to read, 2 more to go further, 31 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
batch = 7  # examples: between 6 and 12
inputs = 5  # features of an example: between 4 and 8
hidden = 8  # units of the first layer: between 6 and 12
outputs = 6  # units of the second layer: between 4 and 9
examples = 512  # that section 8 draws mini-batches from: between 256 and 1024

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import time

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import batch_jacobians as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
x = tf.random.normal((batch, inputs))
layer1 = tf.keras.layers.Dense(hidden, activation="elu")  # elu(z) is z above 0 and exp(z) - 1 below
layer2 = tf.keras.layers.Dense(outputs, activation="elu")

with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = layer2(layer1(x))

full = tape.jacobian(y, x)
print("shape:   ", full.shape)
print("entries: ", int(tf.size(full)))
print("not zero:", int(tf.math.count_nonzero(full)))

# %% alt="Heat map. A grid of 6 by 5 patches, each of 7 by 7 squares; in every patch only the diagonal is coloured, the rest is white." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the full Jacobian
plots.batch_patches(
    full,
    title="One patch for each output and input: every patch is diagonal",
    ax=plt.subplots(figsize=(6.5, 6), layout="constrained")[1],
)
plt.show()

# %% [markdown]
# Two dense layers take 7 examples of 5 features to 7 outputs of 6 numbers. Six in every seven entries of the Jacobian are zero, and `jacobian` computed
# them all.
#
# **You will be able to**
#
# - get one Jacobian for each example, in three ways (sections 1 and 2),
# - compute one gradient for each example with `tf.vectorized_map`, test it, and clip it (sections 3 and 4),
# - test with one backward pass whether examples are coupled (sections 5 and 6),
# - take second derivatives for each example (section 7).

# %% [markdown]
# ## 1. The full Jacobian of a batch
#
# The target's axes come first, then the source's: **(batch, outs, batch, ins)**. The 6, which only the output has, stands in second place.
#
# Entry `full[m, o, n, i]` is the derivative of output `o` of example `m` with respect to input `i` of example `n`. For a fixed output and a fixed
# input, a slice is one of the patches:

# %%
print(full[:, 0, :, 0].numpy().round(2))

# %% [markdown]
# Each example here responds to its own input alone: neither layer mixes the examples.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
nudge = np.zeros((batch, inputs), np.float32)
nudge[2, 3] = 1e-3
change = (layer2(layer1(x + nudge)) - layer2(layer1(x - nudge))) / 2e-3
assert full.shape == (batch, outputs, batch, inputs)
same_example = np.eye(batch, dtype=bool)[:, None, :, None]  # True where both examples are one
assert not np.any(np.where(same_example, 0.0, full))
assert np.count_nonzero(full) == batch * outputs * inputs
np.testing.assert_array_equal(np.flatnonzero(np.any(change != 0, axis=1)), [2])
np.testing.assert_allclose(full[:, :, 2, 3], change, atol=5e-3)

# %% [markdown]
# ## 2. One Jacobian for each example
#
# The Jacobians that you want have shape (batch, outs, ins) = (7, 6, 5): entry `[n, o, i]` belongs to example `n` alone. From the full Jacobian,
# **sum** over the second batch axis: in each row of a patch, one number and six zeros. Or **select** the diagonal of every patch: in `bobi->boi` the
# letter `b` stands twice on the left and once on the right. The third way, `batch_jacobian`, does not make the large one. Output 0 of example 2:

# %%
tf.get_logger().setLevel("ERROR")  # each eager Jacobian traces a graph; TensorFlow would warn of it

summed = tf.reduce_sum(full, axis=2)
selected = tf.einsum("bobi->boi", full)
per_example = tape.batch_jacobian(y, x)
print("sum:           ", summed.shape, summed[2, 0].numpy().round(3))
print("einsum:        ", selected.shape, selected[2, 0].numpy().round(3))
print("batch_jacobian:", per_example.shape, per_example[2, 0].numpy().round(3))

# %% [markdown]
# How does `batch_jacobian` avoid the zeros? Take output 0 of *all* examples as one target. `gradient` differentiates its
# sum. Here output 0 of example `n` moves with its own input alone, so row `n` of the result belongs to it:
# one backward pass serves the whole batch.
#
# **Predict.** How many backward passes does that take for all outputs: 5, 6, 7 or 42?

# %%
exercises.passes.guess(...)  # a number in place of the dots

# %%
by_hand = []
with tf.GradientTape(persistent=True) as tape_by_hand:
    tape_by_hand.watch(x)
    columns = tf.unstack(layer2(layer1(x)), axis=1)  # one vector of shape (batch,) for each output

for column in columns:
    by_hand.append(tape_by_hand.gradient(column, x))  # shape (batch, ins)

print("passes:", len(by_hand))
by_hand = tf.stack(by_hand, axis=1)
print("result:", by_hand.shape)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.passes.reveal(len(columns))
assert summed.shape == selected.shape == per_example.shape == by_hand.shape == (batch, outputs, inputs)
for one_way in (summed, selected, by_hand):
    np.testing.assert_allclose(one_way, per_example, rtol=1e-5, atol=1e-6)
upstreams = []


@tf.custom_gradient
def counted(tensor):
    """The identity; notes the shape of each upstream gradient."""
    return tf.identity(tensor), lambda upstream: (upstreams.append(tuple(upstream.shape)), upstream)[1]


counts = {}
for name in ("jacobian", "batch_jacobian"):
    with tf.GradientTape(persistent=True) as counting:
        counting.watch(x)
        noted = counted(layer2(layer1(x)))
    upstreams.clear()
    getattr(counting, name)(noted, x, experimental_use_pfor=False)
    counts[name] = len(upstreams)
assert counts == {"jacobian": batch * outputs, "batch_jacobian": outputs}
assert full.numpy().nbytes == batch * per_example.numpy().nbytes

# %% [markdown]
# Six: one for each output. All inputs and examples come with each pass. Without `pfor`, `batch_jacobian` makes the same six here, where `jacobian` makes $7 \cdot 6 = 42$ passes. The factor, in passes and in bytes, is the batch size.

# %% [markdown]
# ## 3. One gradient for each example
#
# The seven examples share the weights. So `tape.gradient` of their mean loss returns the mean of the gradients that each would have
# alone. These **per-example gradients** have shape (7, 5, 8) for the first kernel.
#
# `batch_jacobian` does not apply: a kernel has no batch axis. Without `pfor`, `tape.jacobian(losses, kernel)` makes 7 passes, each through the whole batch. Better:
# write the gradient of **one** example, and let `tf.vectorized_map` do all at once.

# %%
targets = tf.random.normal((batch, outputs))


def gradient_of_one(example):
    features, target = example
    with tf.GradientTape() as tape:
        error = layer2(layer1(features[tf.newaxis])) - target
        loss = tf.reduce_mean(error**2)
    return tape.gradient(loss, layer1.kernel)


each = tf.vectorized_map(gradient_of_one, (x, targets))
print("kernel:              ", layer1.kernel.shape)
print("per-example gradients:", each.shape)

# %% [markdown]
# `vectorized_map` is meant to compute what a loop over the first axis would. Here it traces the function for one example, and rewrites the graph by
# `pfor`'s rules ([11](11_jacobians.ipynb), section 7). Both compiled, for the seven examples 64 times over:

# %% tags=["nbval-ignore-output"]
many = tf.repeat(x, 64, axis=0), tf.repeat(targets, 64, axis=0)
ways = {
    "a loop": tf.function(lambda: tf.map_fn(gradient_of_one, many, fn_output_signature=tf.float32)),
    "vectorized_map": tf.function(lambda: tf.vectorized_map(gradient_of_one, many)),
}
fastest = {}
for name, way in ways.items():
    taken = []
    for _ in range(6):  # the first call traces
        begin = time.process_time()
        way().numpy()
        taken.append(1000 * (time.process_time() - begin))
    fastest[name] = min(taken)
    print(f"{name:15} {fastest[name]:6.2f} ms of processor time")

# %% [markdown]
# The vectorised graph starts its operations once for the whole stack.
#
# "Is meant to": two of the four operations below come out wrong.
#
# **Predict.** `tf.roll(row, 1, axis=0)`, `tf.roll(row, 1, axis=-1)`, `tf.pad(row, [[1, 1]], constant_values=3.0)`, `tf.reverse(row, [-1])`: for which does `vectorized_map` over the rows differ from a loop?

# %%
exercises.not_a_loop.guess([..., ...])  # two of "roll 0", "roll -1", "pad", "reverse"

# %%
of_a_row = {
    "roll 0": lambda row: tf.roll(row, 1, axis=0),
    "roll -1": lambda row: tf.roll(row, 1, axis=-1),
    "pad": lambda row: tf.pad(row, [[1, 1]], constant_values=3.0),
    "reverse": lambda row: tf.reverse(row, [-1]),
}
off_by = {}
for name, function in of_a_row.items():
    looped = tf.stack([function(row) for row in x])
    off_by[name] = float(tf.reduce_max(tf.abs(tf.vectorized_map(function, x) - looped)))
    print(f"{name:8} off by {off_by[name]:.1f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.not_a_loop.reveal([name for name, off in off_by.items() if off > 0.1])
assert off_by["roll 0"] == off_by["reverse"] == 0.0
assert off_by["roll -1"] > 0.1
np.testing.assert_allclose(off_by["pad"], 3.0)


def check_slope_of_a_loop(row):
    with tf.GradientTape() as check_tape:
        check_tape.watch(row)
        check_y = tf.map_fn(lambda number: number**2, row)
    return check_tape.gradient(check_y, row)


np.testing.assert_allclose(check_slope_of_a_loop(x[0]), 2.0 * x[0], rtol=1e-6)
tf.get_logger().setLevel("CRITICAL")  # the failure is also logged, at length
with tf.compat.v1.variable_scope("apart"), np.testing.assert_raises(TypeError):  # and stays in this scope
    tf.vectorized_map(check_slope_of_a_loop, x)
tf.get_logger().setLevel("ERROR")

# %% [markdown]
# Silently `roll` rolled the stack of rows, and `pad` forgot its 3 and put 0. So ask for a **certificate**: of a function that draws no random numbers and changes no variable, compute three examples alone.


# %% tags=["nbval-ignore-output"]
def certified(function, rows, elements):
    """The largest difference in the first row, the last, and one drawn at random, from the function of that element."""
    found = []
    for n in (0, np.random.default_rng().integers(len(tf.nest.flatten(rows)[0])), -1):
        alone = function(tf.nest.map_structure(lambda part, n=n: part[n], elements))
        pairs = zip(tf.nest.flatten(rows), tf.nest.flatten(alone), strict=True)  # one tensor or several
        found += [tf.reduce_max(tf.abs(row[n] - one)) for row, one in pairs]
    return float(np.max(found))


print(f"per-example gradients: off by {certified(gradient_of_one, each, (x, targets)):.0e}")
print(f"pad:                   off by {certified(of_a_row['pad'], tf.vectorized_map(of_a_row['pad'], x), x):.0e}")

# %% [markdown]
# Both faults above show in every row; others in a few: at a branch that depends on the row, or, by the traps' second line, in the last rows. A second test: here the loss is a mean over independent examples, so the rows' mean has to be the batch's gradient:

# %% tags=["nbval-ignore-output"]
with tf.GradientTape(persistent=True) as tape_of_losses:
    losses = tf.reduce_mean((layer2(layer1(x)) - targets) ** 2, axis=1)
    loss = tf.reduce_mean(losses)

of_the_mean = tape_of_losses.gradient(loss, layer1.kernel)
difference = tf.reduce_max(tf.abs(tf.reduce_mean(each, axis=0) - of_the_mean))
print(f"mean of the gradients − gradient of the mean: {difference:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert each.shape == (batch, inputs, hidden)
np.testing.assert_allclose(tf.reduce_mean(each, axis=0), of_the_mean, rtol=1e-4, atol=1e-6)
rows = tape_of_losses.jacobian(losses, layer1.kernel)
np.testing.assert_allclose(each, rows, rtol=1e-4, atol=1e-5)
with tf.GradientTape(persistent=True) as counting:
    noted = counted(layer1(x))
    losses_noted = tf.reduce_mean((layer2(noted) - targets) ** 2, axis=1)
upstreams.clear()
_ = counting.jacobian(losses_noted, layer1.kernel, experimental_use_pfor=False)
assert upstreams == [(batch, hidden)] * batch  # 7 passes, each through the whole batch
traces = []
_ = tf.vectorized_map(lambda example: traces.append(1) or gradient_of_one(example), (x, targets))
assert len(traces) == 1  # for one example, once
np.testing.assert_allclose(ways["vectorized_map"](), ways["a loop"](), rtol=1e-4, atol=1e-6)
assert fastest["a loop"] > 2 * fastest["vectorized_map"]
assert certified(gradient_of_one, each, (x, targets)) < 1e-5
assert certified(of_a_row["pad"], tf.vectorized_map(of_a_row["pad"], x), x) == 3.0
np.testing.assert_allclose(certified(lambda row: (row, row), (x, x + 1.0), x), 1.0, rtol=1e-5)
assert certified(tf.sin, tf.concat([tf.sin(x[:-1]), tf.cos(x[-1:])], axis=0), x) > 1e-2  # the last row alone is wrong


def check_rarely(row):
    return tf.cond(row[0] > 2.0, lambda: tf.roll(row, 1, axis=-1), lambda: row)


check_rows = np.random.default_rng(0).normal(size=(700, inputs))
check_rolled = np.where(check_rows[:, :1] > 2.0, np.roll(check_rows, 1, axis=1), check_rows)
check_wrong = np.any(tf.vectorized_map(check_rarely, tf.constant(check_rows)) != check_rolled, axis=1)
assert 0 < np.mean(check_wrong) < 0.1  # a fault that one row in ten shows
check_sums = []
for mapped in (tf.map_fn, tf.vectorized_map):
    running = tf.Variable(0.0)

    def add_up(number, running=running):
        running.assign_add(number)
        return 1.0 * running

    check_sums.append(mapped(add_up, tf.constant([1.0, 2.0, 3.0])))
np.testing.assert_array_equal(check_sums[0], [1.0, 3.0, 6.0])
assert not np.array_equal(*check_sums)  # a function that changes a variable

# %% [markdown]
# ### Exercise: Each example's gradient, in one pass (12 min)
#
# A layer's weights `w`, of shape (ins, outs), are shared by all examples. You want one gradient for each example, shape (batch, ins, outs), without
# `tf.vectorized_map`.
#
# `losses(w)` returns one loss for each example, shape (batch,). It takes weights of shape (ins, outs), or of shape (batch, ins, outs): then example `n`
# is computed with `w[n]`. Make one backward pass: no loop, and no `tape.jacobian`.


# %%
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, ins, outs), from one call of tape.gradient


exercises.shared_weights.check(per_example_gradients)

# %% [markdown]
# ## 4. Clip each example's gradient
#
# One label was stored in the wrong unit, a hundred times too large. Compare directions by their cosine: 1 for the
# same direction, 0 for a right angle.

# %%
spoilt = targets.numpy()
spoilt[4] *= 100.0
unclipped = tf.vectorized_map(gradient_of_one, (x, spoilt))
norms = tf.norm(unclipped, axis=[1, 2])
limit = np.median(norms[norms > 0])
clipped = unclipped * tf.minimum(1.0, limit / norms)[:, tf.newaxis, tf.newaxis]


def cosine(a, b):
    return float(tf.reduce_sum(a * b) / (tf.norm(a) * tf.norm(b)))


mean, mean_clipped = tf.reduce_mean(unclipped, axis=0), tf.reduce_mean(clipped, axis=0)
healthy = tf.reduce_mean(np.delete(unclipped, 4, axis=0), axis=0)  # of the other six
print(f"mean and the bad example:          {cosine(mean, unclipped[4]):.2f}")
print(f"mean and the healthy mean:         {cosine(mean, healthy):.2f}")
print(f"clipped mean and the healthy mean: {cosine(mean_clipped, healthy):.2f}")

# %% alt="Bar chart. A bar for each of seven examples: the norm of its gradient, with its value. Example 4's bar is more than ten times as long as any other. A dashed line marks the median; darker bars, the norms after clipping, end there or before." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the norms, before and after clipping
_, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
ax.barh(range(batch), norms, color="#BFD9EC", edgecolor=plots.BLUE)
ax.barh(range(batch), tf.norm(clipped, axis=[1, 2]), height=0.45, color=plots.BLUE)
for n, norm in enumerate(norms):
    ax.annotate(f"{float(norm):.1f}", (max(norm, limit), n), xytext=(5, 0), textcoords="offset points", va="center")
ax.axvline(limit, color="black", linestyle="--", linewidth=1)
ax.annotate("limit: the median", (limit, batch - 0.35), xytext=(5, 0), textcoords="offset points")
ax.set(title="One bad label outweighs all others; clipped (dark), it has one vote in seven")
ax.set(xlabel="norm of the example's gradient", ylabel="example", ylim=(-0.6, batch + 0.2))
ax.set(xlim=(0, 1.1 * float(np.max(norms))), yticks=range(batch))
plt.show()

# %% [markdown]
# The mean points where the bad example does. The clipped gradients' mean points with the healthy ones again. Clipping the mean's norm
# ([08](08_clipping.ipynb)) would leave its direction as it is.
#
# Clipping each example's gradient, over all its variables at once, gives it one vote at most: none contributes more than a seventh of the limit.
# The limit must be above zero: where most examples satisfy a hinge loss, the norms' median is 0, and 0/0 is NaN. Leave out a gradient that is
# inf: clipping makes it NaN.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert cosine(mean, unclipped[4]) > 0.95
assert cosine(mean, healthy) < 0.6
assert cosine(mean_clipped, healthy) > max(0.7, cosine(mean, healthy) + 0.2)
assert norms[4] > 2 * np.sum(np.delete(norms, 4))  # all others together
assert np.max(tf.norm(clipped, axis=[1, 2])) < 1.0001 * limit
np.testing.assert_allclose(cosine(tf.clip_by_norm(mean, limit), healthy), cosine(mean, healthy), atol=1e-5)
check_margin = np.mean(np.sort(tf.reduce_sum(layer1(x), axis=1))[-2:])  # all examples but one satisfy it


def check_hinge(row):
    with tf.GradientTape() as check_tape:
        check_loss = tf.nn.relu(tf.reduce_sum(layer1(row[tf.newaxis])) - check_margin)
    return check_tape.gradient(check_loss, layer1.kernel)


def check_clip(check_gradients, choose):
    check_norms = tf.norm(check_gradients, axis=[1, 2])
    check_factors = tf.minimum(1.0, np.median(check_norms[choose(check_norms)]) / check_norms)
    return check_gradients * check_factors[:, tf.newaxis, tf.newaxis]


check_each = tf.vectorized_map(check_hinge, x)
assert np.all(np.isnan(tf.reduce_mean(check_clip(check_each, lambda check_norms: check_norms >= 0), axis=0)))
np.testing.assert_array_equal(check_clip(check_each, lambda check_norms: check_norms > 0), check_each)
assert np.any(check_each)
check_infinite = tf.concat([unclipped[:4], [tf.fill(layer1.kernel.shape, np.inf)]], axis=0)
check_nan = np.any(np.isnan(check_clip(check_infinite, lambda check_norms: check_norms > 0)), axis=(1, 2))
np.testing.assert_array_equal(check_nan, [False] * 4 + [True])

# %% [markdown]
# ## 5. When the examples are not independent
#
# `batch_jacobian` assumes two things. The first: the batch is the first axis of target and source. Where these axes differ in size, it raises an error.
# With as many outputs as inputs, a batch that stands last is not noticed. A target of shape (7,) is refused: give it a
# second axis, inside the block (outside: zeros, section 7).
#
# ### Exercise: The batch is the last axis (6 min)
#
# Some code stores one example in each column: `x` has shape (ins, batch), and `function(x)` has shape (outs, batch). The examples are independent.
# Return one Jacobian for each example in the usual order, shape (batch, outs, ins). `function` itself cannot be changed.


# %%
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, outs, ins)


exercises.batch_last.check(each_jacobian)

# %% [markdown]
# The second: examples are independent. Batch normalisation in training mode breaks it: it subtracts the *batch's* mean, so one example
# moves the others.
#
# **Predict.** With batch normalisation between the two layers, what does `batch_jacobian` give you: "an error", "a warning" or "a tensor of shape
# (7, 6, 5)"?

# %%
exercises.coupled_returns.guess(...)  # one of the three, in quotes

# %%
normalise = tf.keras.layers.BatchNormalization()

with tf.GradientTape(persistent=True) as coupled_tape:
    coupled_tape.watch(x)
    y_coupled = layer2(normalise(layer1(x), training=True))

full_coupled = coupled_tape.jacobian(y_coupled, x)
returned = coupled_tape.batch_jacobian(y_coupled, x)
own = tf.einsum("bobi->boi", full_coupled)  # of each example's output with respect to its own input
print("batch_jacobian:     ", returned.shape)
print(f"largest derivative:  {np.max(np.abs(own)):.2f}")
print(f"largest error:       {np.max(np.abs(returned - own)):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.coupled_returns.reveal(f"a tensor of shape {tuple(returned.shape)}")
assert returned.shape == own.shape == (batch, outputs, inputs)
assert np.max(np.abs(returned - own)) > max(0.3, 0.25 * np.max(np.abs(own)))
off_diagonal = np.max(np.abs(np.where(same_example, 0.0, full_coupled)), axis=(0, 2))  # of each patch
assert np.all(off_diagonal > 1e-4)
with tf.GradientTape() as short_tape:
    short_tape.watch(x)
    part = layer2(layer1(x))[:3]
with np.testing.assert_raises_regex(ValueError, "Need first dimension of target shape"):
    short_tape.batch_jacobian(part, x)
in_columns = tf.transpose(x)
with tf.GradientTape() as unnoticed_tape:  # as many outputs as inputs, and the batch stands last
    unnoticed_tape.watch(in_columns)
    as_many = tf.random.normal((inputs, inputs)) @ in_columns
assert unnoticed_tape.batch_jacobian(as_many, in_columns).shape == (inputs, batch, batch)

# %% alt="Two heat maps. Two grids of 6 by 5 patches on one colour scale. Left, without batch normalisation: only the diagonals of the patches are coloured. Right, with it: all patches have colour off their diagonals as well." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: independent and coupled, on one scale
_, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
largest = max(np.max(np.abs(full)), np.max(np.abs(full_coupled)))
for ax, jacobian, title in (
    (axes[0], full, "Independent: every patch is diagonal"),
    (axes[1], full_coupled, "With batch normalisation: no patch is"),
):
    plots.batch_patches(jacobian, title=title, ax=ax)
    ax.images[0].set_clim(-largest, largest)
plt.show()

# %% [markdown]
# For each output, `batch_jacobian` differentiates the sum of that output over the batch. So the numbers returned here are the full Jacobian, summed over one of its two batch axes.
#
# **Predict.** Over which: the target's batch axis (the first), or the source's (the third), as in section 2?

# %%
exercises.over.guess(...)  # "target" or "source"

# %% tags=["nbval-ignore-output"]
over_target = tf.einsum("moni->noi", full_coupled)
over_source = tf.einsum("moni->moi", full_coupled)
errors = {
    "target": np.max(np.abs(returned - over_target)),
    "source": np.max(np.abs(returned - over_source)),
}
for name, error in errors.items():
    print(f"summed over the {name}'s batch axis: off by {error:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.over.reveal(min(errors, key=errors.get))
np.testing.assert_allclose(returned, over_target, rtol=1e-4, atol=5e-6)  # seen: a few times 1e-7
assert errors["source"] > 0.1

# %% [markdown]
# The target is what is summed before differentiating:
#
# $$\text{returned}[n, o, i] = \sum_m \text{full}[m, o, n, i].$$
#
# So `batch_jacobian` answers another question: how does one example's input move the outputs of the whole batch? With
# batch normalisation as the *last* layer, each output's sum over the batch is fixed, and the answer is zero:

# %% tags=["nbval-ignore-output"]
last = tf.keras.layers.BatchNormalization()

with tf.GradientTape(persistent=True) as last_tape:
    last_tape.watch(x)
    y_last = last(layer2(layer1(x)), training=True)

returned_last = last_tape.batch_jacobian(y_last, x)
own_last = tf.einsum("bobi->boi", last_tape.jacobian(y_last, x))
print(f"batch_jacobian, largest entry:  {np.max(np.abs(returned_last)):.0e}")
print(f"true derivative, largest entry: {np.max(np.abs(own_last)):.2f}")

# %% [markdown]
# In inference mode (`training=False`) `batch_jacobian` is right again. In training mode take the full Jacobian's diagonal.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert returned_last.shape == own_last.shape == (batch, outputs, inputs)
assert np.max(np.abs(returned_last)) < 1e-5
assert np.max(np.abs(own_last)) > 0.3
with tf.GradientTape(persistent=True) as inference_tape:
    inference_tape.watch(x)
    y_inference = layer2(normalise(layer1(x), training=False))
full_inference = inference_tape.jacobian(y_inference, x)
returned_inference = inference_tape.batch_jacobian(y_inference, x)
assert not np.any(np.where(same_example, 0.0, full_inference))
np.testing.assert_allclose(returned_inference, tf.einsum("bobi->boi", full_inference), rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## 6. A test for independence
#
# The full Jacobian shows the coupling. A test takes one more backward pass. Choose a cotangent $u$ of the target's shape.
# `gradient` gives the left-hand side below, coupled or not. If the examples are independent, and `pfor`'s rules right, the right-hand side
# is the same:
#
# $$\sum_{m,o} u_{mo}\,\text{full}[m,o,n,i] \;=\; \sum_o u_{no}\,\text{returned}[n,o,i].$$


# %%
def independence_error(tape, target, source, jacobians, u):
    """The largest difference between the two sides, relative to their size: in float32 up to 1e-4 is rounding."""
    from_tape = tape.gradient(target, source, output_gradients=u)
    from_jacobians = tf.einsum("bo,boi->bi", u, jacobians)
    scale = tf.reduce_max(tf.abs(from_tape)) + tf.reduce_max(tf.abs(from_jacobians))
    return float(tf.reduce_max(tf.abs(from_tape - from_jacobians)) / (scale + 1e-3))


# %% [markdown]
# **Predict.** A cotangent of ones looks like the natural choice. What does the test say of the network with batch normalisation, "coupled" or
# "independent": with ones, and with random numbers?

# %%
exercises.ones.guess([..., ...])  # with ones, with random numbers: "coupled" or "independent"

# %% tags=["nbval-ignore-output"]
ones = tf.ones((batch, outputs))
random = tf.random.normal((batch, outputs))
print("error                  ones   random")
print(f"two layers             {independence_error(tape, y, x, per_example, ones):.0e}  ", end="")
print(f"{independence_error(tape, y, x, per_example, random):.0e}")
errors = [independence_error(coupled_tape, y_coupled, x, returned, u) for u in (ones, random)]
print(f"batch normalisation    {errors[0]:.0e}  {errors[1]:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.ones.reveal(["coupled" if error > 1e-4 else "independent" for error in errors])
assert errors[0] < 1e-4
assert errors[1] > 1e-2
left = np.einsum("mo,moni->ni", random, full_coupled)
right = np.einsum("no,moni->ni", random, full_coupled)
expected = np.max(np.abs(left - right)) / (np.max(np.abs(left)) + np.max(np.abs(right)))
np.testing.assert_allclose(errors[1], expected, rtol=0.01)
assert independence_error(tape, y, x, per_example, random) < 1e-4
with tf.GradientTape(persistent=True) as check_tape:
    check_tape.watch(x)
    check_rolled = tf.roll(x, 1, axis=-1) * x
    check_padded = tf.pad(tf.sin(x), [[0, 0], [1, 1]], constant_values=3.0)
check_diagonals = {}
for check_pfor in (True, False):
    check_diagonals[check_pfor] = [
        tf.einsum("bobi->boi", check_tape.jacobian(check_y, x, experimental_use_pfor=check_pfor))
        for check_y in (check_rolled, check_padded)
    ]
    check_jacobians = check_tape.batch_jacobian(check_rolled, x, experimental_use_pfor=check_pfor)
    check_error = independence_error(check_tape, check_rolled, x, check_jacobians, tf.random.normal(x.shape))
    assert check_error > 1e-2 if check_pfor else check_error < 1e-5
check_off_by = [np.max(np.abs(by_pfor - by_loop)) for by_pfor, by_loop in zip(*check_diagonals.values(), strict=True)]
assert check_off_by[0] > 1e-2 > 1e-6 > check_off_by[1]  # `roll` is wrong in a Jacobian too, `pad` is not
per_output = tf.tile(tf.random.normal((1, outputs)), [batch, 1])  # random, but the same for all examples
assert independence_error(coupled_tape, y_coupled, x, returned, per_output) < 1e-4
with tf.GradientTape(persistent=True) as check_tape:
    check_tape.watch(x)
    check_tiny = 1e-7 * layer2(normalise(layer1(x), training=True))
    check_off = layer2(layer1(x)) + tf.nn.relu(tf.reduce_mean(x) - 100.0)  # the coupling is off at this x
for check_target in (check_tiny, check_off):
    check_jacobians = check_tape.batch_jacobian(check_target, x)
    assert independence_error(check_tape, check_target, x, check_jacobians, random) < 1e-2
for network in (
    lambda x: tf.nn.softmax(layer2(layer1(x)), axis=0),  # over the batch
    lambda x: layer2(layer1(x - tf.reduce_mean(x, axis=0))),  # minus the batch's mean
    lambda x: tf.roll(layer2(layer1(x)), shift=1, axis=0),  # the neighbour's output
):
    with tf.GradientTape(persistent=True) as tested:
        tested.watch(x)
        target = network(x)
    jacobians = tested.batch_jacobian(target, x)
    assert independence_error(tested, target, x, jacobians, ones) < 1e-2
    assert independence_error(tested, target, x, jacobians, random) > 1e-2

# %% [markdown]
# Ones are blind. Insert what `batch_jacobian` returns, the sum over $m$, and the two sides differ by
#
# $$\sum_{m,o} (u_{mo} - u_{no})\,\text{full}[m,o,n,i].$$
#
# If $u$ is the same for all examples, this is zero **for every coupling there is**. Random cotangents see the coupling here. They
# cannot see one that is off at this `x`, behind a ReLU for example, nor one that rounding hides.
#
# ### Exercise: Which of them may use batch_jacobian? (5 min)
#
# `x` has shape (3, 4), one example in each row, and `kernel` has shape (4, 3). For which of these functions does `tape.batch_jacobian(f(x), x)` equal the
# diagonal of the full Jacobian, `tf.einsum("bobi->boi", tape.jacobian(f(x), x))`? Say `True` or `False` for each, before you try it.
#
# | | `f(x)` |
# |---|---|
# | A | `tf.nn.softmax(x @ kernel)` |
# | B | `tf.cumsum(x @ kernel)` |
# | C | `tf.reverse(x @ kernel, axis=[1])` |
# | D | `tf.math.l2_normalize(x) @ kernel` |
# | E | `tf.sort(x, axis=1) @ kernel` |
# | F | `(x - tf.stop_gradient(tf.reduce_mean(x, axis=0))) @ kernel` |

# %%
answers = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}  # True where batch_jacobian is right

exercises.may_use.check(answers)

# %% [markdown]
# ## 7. Second derivatives, and silent zeros
#
# Second derivatives for each example have shape (7, 6, 5, 5). Two calls of `batch_jacobian` give them here, and not through `tf.nn.moments` ([10](10_higher_order_gradients.ipynb), section 5). Below, the inner one is called after both tapes
# have closed. `jacobian` returns `None` in such a case.
#
# **Predict.** What does `batch_jacobian` return: "None", "zeros", "an error" or "the second derivatives"?

# %%
exercises.too_late.guess(...)  # one of the four, in quotes

# %%
with tf.GradientTape(persistent=True) as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
        inner.watch(x)
        y = layer2(layer1(x))

first = inner.batch_jacobian(y, x)  # too late: no tape records this
nothing = outer.jacobian(first, x)
silent = outer.batch_jacobian(first, x)
print("jacobian:      ", nothing)
print("batch_jacobian:", silent.shape, "largest entry", np.max(np.abs(silent)))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.too_late.reveal("zeros" if not np.any(silent) else "the second derivatives")
np.testing.assert_allclose(first, per_example, rtol=1e-5, atol=1e-6)
assert nothing is None
assert silent.shape == (batch, outputs, inputs, inputs)
assert not np.any(silent)
with tf.GradientTape() as check_tape:
    check_tape.watch(x)
    check_sums = tf.reduce_sum(layer2(layer1(x)), axis=1)
assert not np.any(check_tape.batch_jacobian(check_sums[:, tf.newaxis], x))

# %% [markdown]
# Zeros, of the right shape, without a warning. They mean *not connected*: `batch_jacobian` does not keep to its documented default,
# `unconnected_gradients="none"`. The cure is one level of indentation.


# %%
@tf.function
def second_derivatives(x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = layer2(layer1(x))
        first = inner.batch_jacobian(y, x)  # the outer tape records this
    return outer.batch_jacobian(first, x)


hessians = second_derivatives(x)
print("batch_jacobian:", hessians.shape, f"largest entry {np.max(np.abs(hessians)):.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert hessians.shape == (batch, outputs, inputs, inputs)
assert np.max(np.abs(hessians)) > 0.05
np.testing.assert_allclose(hessians, tf.transpose(hessians, [0, 1, 3, 2]), atol=1e-5)

# %% [markdown]
# As a guard, call `jacobian` or `gradient` once: where nothing is connected, they return `None`.
#
# ### Exercise: The Laplacian of each example (8 min)
#
# `function` takes `x` of shape (batch, ins) to one number for each example, shape (batch,). The examples are independent. Return each example's
# Laplacian $\sum_i \partial^2 f / \partial x_i^2$, shape (batch,), in at most one backward pass for the slopes and one for each input.


# %%
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
    ...
    return ...  # shape (batch,)


exercises.laplacian.check(laplacians)

# %% [markdown]
# ## 8. Going further: the noise of a mini-batch
#
# A mini-batch's gradient is a noisy estimate of the whole data set's, $g$. For a mean loss over $B$ independent examples, drawn at random with replacement, the expected
# squared distance is
#
# $$\mathbb E\,\lVert g_B - g\rVert^2 = \frac{\operatorname{tr}\Sigma}{B}, \qquad \operatorname{tr}\Sigma = \frac1N \sum_n \lVert g_n - g\rVert^2,$$
#
# with the per-example gradients $g_n$. Predict it, draw 400 mini-batches of each size and measure.

# %% tags=["nbval-ignore-output"]
features, labels = tf.random.normal((examples, inputs)), tf.random.normal((examples, outputs))
g_n = tf.vectorized_map(gradient_of_one, (features, labels))
g = tf.reduce_mean(g_n, axis=0)
trace = float(tf.reduce_mean(tf.reduce_sum((g_n - g) ** 2, axis=[1, 2])))


def gradient_of_batch(index):
    with tf.GradientTape() as tape:
        error = layer2(layer1(tf.gather(features, index))) - tf.gather(labels, index)
        loss = tf.reduce_mean(error**2)
    return tape.gradient(loss, layer1.kernel)


measured = {}
for size in (2, 8, 32, 128):
    drawn = tf.vectorized_map(gradient_of_batch, tf.random.uniform((400, size), 0, examples, tf.int32))
    measured[size] = float(tf.reduce_mean(tf.reduce_sum((drawn - g) ** 2, axis=[1, 2])))
    print(f"{size:3} examples: predicted {trace / size:.3f}, measured {measured[size]:.3f}")

# %% alt="Line plot with dots. On logarithmic axes, the distance between a mini-batch's gradient and the whole data set's falls with the batch size along a straight line. Four measured dots lie on the predicted line. A dashed horizontal line, the length of the gradient itself, crosses it at some twenty examples." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the noise of a mini-batch
_, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
sizes = np.array(list(measured))
scale = trace / float(tf.norm(g)) ** 2
ax.plot(sizes, np.sqrt(trace / sizes), color=plots.BLUE)
ax.plot(sizes, np.sqrt(list(measured.values())), "o", color=plots.RED)
ax.axhline(float(tf.norm(g)), color="black", linestyle="--", linewidth=1)
ax.text(2, float(tf.norm(g)) * 1.06, "length of the gradient itself", va="bottom")
ax.text(9, np.sqrt(trace / 8) * 1.08, f"line: predicted from {examples} gradients\ndots: measured on 400 mini-batches")
ax.set_xscale("log", base=2)
ax.set_yscale("log", base=2)
for axis in (ax.xaxis, ax.yaxis):
    axis.set_major_formatter("{x:g}")
ax.set(title="Per-example gradients predict the noise of a mini-batch")
ax.set(xlabel="examples in the mini-batch", ylabel="distance to the full gradient (rms)")
plt.show()

# %% [markdown]
# Four times the examples, half the distance. Where the two lines cross, at $B = \operatorname{tr}\Sigma / \lVert g\rVert^2$, the noise is as long as the gradient: $B$ is
# the **gradient noise scale**, in its simple form. Of a mini-batch's expected squared gradient, the share $\lVert g\rVert^2 / (\lVert g\rVert^2 + \operatorname{tr}\Sigma/B)$ is signal. Well below the noise scale, twice the
# examples nearly double that share; far above it, they hardly change it.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for size, value in measured.items():
    np.testing.assert_allclose(value, trace / size, rtol=0.25)
assert 2 < scale < 128  # the lines cross within the figure
share = [
    float(tf.norm(g)) ** 2 / (float(tf.norm(g)) ** 2 + trace / size) for size in scale * np.array([0.1, 0.2, 10, 20])
]
assert share[1] / share[0] > 1.8
assert share[3] / share[2] < 1.1

# %% [markdown]
# ## 9. Going further: in one line
#
# `tapelab.derivatives` has batch Jacobians and per-example gradients. By definition row $n$ is the derivative for the batch that holds example $n$ *alone*. With batch normalisation in training mode that is not this example's share of the
# whole batch's: compare the rows' mean with the tape's gradient.


# %% tags=["nbval-ignore-output"]
def two_layers(x):
    return layer2(layer1(x))


def loss_of(x, targets):
    return tf.reduce_mean((two_layers(x) - targets) ** 2)


in_one_line = derivatives.batch_jacobian(two_layers)(x)
gradients_of = derivatives.per_example_gradients(loss_of, wrt=[layer1.kernel, layer2.kernel])(x, targets)
print("Jacobians:", in_one_line.shape)
print("gradients:", [tuple(part.shape) for part in gradients_of])

rows_add_up = tf.reduce_max(tf.abs(tf.reduce_mean(gradients_of[0], axis=0) - of_the_mean))
print(f"mean of the rows − gradient of the batch: {rows_add_up:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(in_one_line, per_example, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(gradients_of[0], each, rtol=1e-4, atol=1e-5)
assert rows_add_up < 1e-5


def check_rows_of_one(example):  # the definition, with a tape: a batch that holds one example
    with tf.GradientTape() as check_tape:
        check_loss = loss_of(*(part[tf.newaxis] for part in example))
    return check_tape.gradient(check_loss, layer2.kernel)


np.testing.assert_allclose(
    gradients_of[1], [check_rows_of_one(example) for example in zip(x, targets, strict=True)], rtol=1e-4, atol=1e-5
)


def check_normalised_loss(x, targets):
    return tf.reduce_mean((layer2(normalise(layer1(x), training=True)) - targets) ** 2)


def check_normalised_gradient(x, targets):
    with tf.GradientTape() as check_tape:
        check_loss = check_normalised_loss(x, targets)
    return check_tape.gradient(check_loss, layer2.kernel)


check_alone = tf.stack([check_normalised_gradient(x[n : n + 1], targets[n : n + 1]) for n in range(batch)])
check_together = check_normalised_gradient(x, targets)  # coupled: batches of one do not add up to the batch
assert tf.norm(tf.reduce_mean(check_alone, axis=0) - check_together) > 0.1 * tf.norm(check_together)

# %% [markdown]
# ## 10. Check it independently
#
# The same network in NumPy and float64, and central differences.

# %% tags=["nbval-ignore-output"]
x64, targets64, k1, b1, k2, b2 = (
    np.asarray(value, np.float64) for value in (x, targets, layer1.kernel, layer1.bias, layer2.kernel, layer2.bias)
)


def elu(z):
    return np.where(z > 0, z, np.expm1(np.minimum(z, 0)))


def network64(x, kernel):
    return elu(elu(x @ kernel + b1) @ k2 + b2)


def losses64(kernel):
    return np.mean((network64(x64, kernel) - targets64) ** 2, axis=1)


numerical = gradcheck.numerical_jacobian(lambda x: network64(x, k1), x64)
numerical_each = gradcheck.numerical_jacobian(losses64, k1)
print(f"full Jacobian {numerical.shape}: off by {np.max(np.abs(numerical - full)):.0e}")
print(f"per-example gradients {numerical_each.shape}: off by {np.max(np.abs(numerical_each - each)):.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(full, numerical, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(per_example, np.einsum("bobi->boi", numerical), rtol=1e-4, atol=1e-5)


def slope(z):
    """The derivative of elu."""
    return np.where(z > 0, 1.0, np.exp(np.minimum(z, 0)))


def example_jacobian(example):
    """The closed form for one example, shape (outs, ins)."""
    z1 = example @ k1 + b1
    z2 = elu(z1) @ k2 + b2
    return (slope(z2)[None, :] * (k1 @ (slope(z1)[:, None] * k2))).T


numerical_hessians = np.stack([gradcheck.numerical_jacobian(example_jacobian, example) for example in x64])
np.testing.assert_allclose(hessians, numerical_hessians, rtol=1e-3, atol=1e-5)

# %% [markdown]
# ## Recap
#
# - A batch's full Jacobian has the axes (batch, outs, batch, ins); where examples are independent, every (batch, batch) slice is diagonal. `batch_jacobian` gets the diagonals with one backward pass for each output (sections 1 and 2).
# - `tf.vectorized_map` turns the gradient of one example into a gradient for each, by rules of which two were wrong here: compute a few rows alone. Clipped one by one, none counts for more than the limit (sections 3 and 4).
# - Behind batch normalisation, `batch_jacobian` returned the full Jacobian summed over the target's batch axis. One backward pass with random cotangents found it (sections 5 and 6).
# - For second derivatives the inner `batch_jacobian` belongs inside the outer tape (section 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | under `vectorized_map`, with two rows or more: `tf.pad` with a constant other than 0, `tf.roll` with a negative axis (in a Jacobian by `pfor` too) | wrong numbers of the right shape | a few rows alone as a certificate; axis from the front; `tf.concat` |
# | under `vectorized_map` or by `pfor` (`jacobian`), on a CPU with oneDNN: `row[tf.newaxis] @ w` with a row of two axes, `tf.linalg.expm`, Keras' `EinsumDense` and `MultiHeadAttention` | at many sizes wrong numbers, or the process dies | a loop (`experimental_use_pfor=False`), or `TF_ENABLE_ONEDNN_OPTS=0` before the import |
# | axes read as (batch, ins, batch, outs) | a transposed Jacobian, unnoticed where ins = outs | remember: the target's axes first |
# | `batch_jacobian` behind batch normalisation in training mode | plausible numbers of the right shape | inference mode, or the full Jacobian's diagonal |
# | independence of examples tested with cotangents of ones | batch normalisation passes | random cotangents |
# | a target made outside the tape: an inner `batch_jacobian`, `y[:, None]` | zeros from `batch_jacobian`, `None` from `gradient` | make it inside |
# | clipping the mean's norm against one bad example | a shorter step in its direction | clip each example's gradient |
#
# **Further reading**
#
# - TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff), "Batch Jacobian".
# - A. Agarwal, I. Ganichev (2019), ["Auto-vectorizing TensorFlow graphs: Jacobians, auto-batching and beyond"](https://arxiv.org/abs/1903.04243).
# - I. Goodfellow (2015), ["Efficient per-example gradient computations"](https://arxiv.org/abs/1510.01799).
# - M. Abadi and others (2016), ["Deep learning with differential privacy"](https://arxiv.org/abs/1607.00133): DP-SGD.
# - S. McCandlish, J. Kaplan, D. Amodei and others (2018), ["An empirical model of large-batch training"](https://arxiv.org/abs/1812.06162): the gradient noise scale.
# - S. Ioffe, C. Szegedy (2015), ["Batch normalization: Accelerating deep network training by reducing internal covariate shift"](https://arxiv.org/abs/1502.03167).
#
# **Read next:** [16 What derivatives cost](16_what_derivatives_cost.ipynb) measures what this part has built;
# [19 Fit and error bars](19_fit_and_error_bars.ipynb) uses one row for each data point.
