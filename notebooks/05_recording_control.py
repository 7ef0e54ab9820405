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
# # Recording control
#
# The tape below writes down operation after operation, for a backward pass that may follow. **Can a tape leave out part of a computation, or start over?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/05_recording_control.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Minutes:** 17 to read, 3 more to go further, 15 for the exercises; to work through it all, about 1 h

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
depth = 12  # layers of the model in section 2, between 4 and 24
width = 64  # units of each layer, between 32 and 128
batch = 128  # examples, between 64 and 256

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import contextlib
import gc
import time
import weakref

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import recording_control as exercises
from tapelab.explain import ExplainTape, draw, explain

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf


class Alive:
    """Notes tensors without keeping them in memory. Its length is the number of those that are still there."""

    def __init__(self):
        self.references = []

    def __call__(self, tensor):
        self.references.append(weakref.ref(tensor))
        return tensor

    def __len__(self):
        return sum(reference() is not None for reference in self.references)


runtime.start(seed)

# %%
weight = tf.Variable(tf.random.normal((32, 32)) / np.sqrt(32))
kept = {}
for steps in (10, 100, 1000):
    in_memory, state = Alive(), tf.ones((7, 32))
    with tf.GradientTape() as tape:
        for _ in range(steps):
            state = in_memory(tf.tanh(state @ weight))  # noted by a weak reference, which keeps nothing in memory
    kept[steps] = len(in_memory)
    print(f"{steps:4} steps: {kept[steps]} states in memory, {4 * 7 * 32 * kept[steps] / 1024:.0f} KiB")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert kept == {10: 10, 100: 100, 1000: 1000}
in_memory, state = Alive(), tf.ones((7, 32))
for _ in range(100):
    state = in_memory(tf.tanh(state @ weight))
assert len(in_memory) == 1  # without a tape

# %% [markdown]
# The loop overwrites `state` at every step. Without a tape one state would be in memory; this tape holds on to all, in case you ask for a gradient. Two methods put you in charge of the record.
#
# **You will be able to**
#
# - keep part of a computation off the tape with `stop_recording`, and say which gradients come back (section 1),
# - say what that saves, and measure it (section 2),
# - start a tape over with `reset`, and say what it forgets (section 3),
# - train on a long stream by truncated backpropagation through time, and say what the truncation leaves out (section 4).

# %% [markdown]
# ## 1. Stop recording
#
# Take $z = x^2 + y^2$ at $x = 2$, $y = 3$: the derivatives are $2x = 4$ and $2y = 6$. Below, `tape.stop_recording()` pauses the tape for a block, in which `y * y` is computed.
#
# **Predict.** What are `z`, `dz/dx` and `dz/dy`? Three answers: numbers or `None`.

# %%
exercises.block.guess([..., ..., ...])  # in place of each `...`, your guess: z, dz/dx, dz/dy

# %%
x = tf.Variable(2.0)
y = tf.Variable(3.0)

with tf.GradientTape() as tape:
    x_squared = x * x
    with tape.stop_recording():
        y_squared = y * y
    z = x_squared + y_squared

dz_dx, dz_dy = tape.gradient(z, [x, y])
print("z     =", z.numpy())
print("dz/dx =", dz_dx.numpy())
print("dz/dy =", dz_dy)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.block.reveal([z, dz_dx, dz_dy])
assert z.numpy() == 13.0
assert dz_dx.numpy() == 4.0
assert dz_dy is None

# %% [markdown]
# The block changed what was *recorded*, not what was *computed*: `z` is complete. To the tape, `y_squared` is a constant:
# no path leads from `z` back to `y`.
#
# In the picture a dashed border means *not recorded*, and a crossed arrow is a cut.

# %% alt="Computation graph. A graph that runs downwards from the sources x and y to z. From x, solid arrows lead through a recorded multiplication and a recorded addition to z. From y, a dashed arrow marked recording stopped leads to a multiplication with a dashed border, not recorded, and on to the same addition."
with ExplainTape() as tape:
    x_squared = x * x
    with tape.stop_recording():
        y_squared = y * y
    z = x_squared + y_squared

draw(tape, z, [x, y])
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
why = explain(tape, z, y)
assert why.code == "recording_stopped"
assert why.line.text == "y_squared = y * y"
assert explain(tape, z, x).exists

# %% [markdown]
# **Predict.** Below, $z = 8x / x^2$ at $x = 2$. That is $8/x$, with the slope $-8/x^2 = -2$. Its divisor is computed in such a block. What does the tape return for `dz/dx`?

# %%
exercises.size_in_block.guess(...)  # dz/dx

# %%
with tf.GradientTape() as tape:
    with tape.stop_recording():
        size = x * x
    z = 8.0 * x / size

dz_dx = tape.gradient(z, x)
print("z     =", z.numpy())
print("dz/dx =", dz_dx.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.size_in_block.reveal(dz_dx)
assert z.numpy() == 4.0
assert dz_dx.numpy() == 2.0
np.testing.assert_allclose(gradcheck.numerical_jacobian(lambda x: 8.0 * x / x**2, 2.0), -2.0, rtol=1e-7)
np.testing.assert_allclose(gradcheck.numerical_jacobian(lambda x: 8.0 * x / 4.0, 2.0), 2.0, rtol=1e-8)

# %% [markdown]
# 2, with the wrong *sign*, and no warning. The tape returned the derivative of what it saw, $8x/4$. So keep in the block only what this tape may take for a constant.
#
# ## 2. What it saves
#
# Take a metric in the middle of a model, to be *seen* and not *differentiated*: the entropy of each layer's activations $h$, read as probabilities:
#
# $$H = -\sum_j p_j \log p_j, \qquad p = \operatorname{softmax}(h).$$

# %%
weights = [tf.Variable(tf.random.normal((width, width)) / np.sqrt(width)) for _ in range(depth)]
inputs = tf.random.normal((batch, width))


def entropy(h, made):
    """The mean entropy of softmax(h), a scalar; `made` counts the tensors of shape (batch, width)."""
    p = made(tf.nn.softmax(h))
    terms = made(p * made(tf.math.log(p)))
    return -tf.reduce_mean(tf.reduce_sum(terms, axis=1))


def forward(tape, record_metric):
    """Run the model. Returns the loss, the entropies, and for each layer what it made."""
    h, entropies, layers = inputs, [], []
    for weight in weights:
        made = Alive()
        h = made(tf.tanh(made(h @ weight)))
        with contextlib.nullcontext() if record_metric else tape.stop_recording():
            entropies.append(entropy(h, made))
        layers.append(made)
    return tf.reduce_mean(h**2), entropies, layers


# %% [markdown]
# For the backward pass, the tape keeps some of the tensors that these operations take in and give out. Each layer makes two of shape (batch, width), its metric three more.
#
# **Predict.** Recording the metric multiplies the number of these tensors that are kept. By which factor?

# %%
exercises.factor.guess(...)  # the factor

# %%
kept, gradients, entropies = {}, {}, {}
for record_metric in (True, False):
    with tf.GradientTape() as tape:
        loss, entropies[record_metric], layers = forward(tape, record_metric)
    gc.collect()
    kept[record_metric] = [len(made) for made in layers]
    gradients[record_metric] = tape.gradient(loss, weights)

kibibytes = 4 * batch * width / 1024  # of one tensor of shape (batch, width), float32
for record_metric, counts in kept.items():
    name = "metric recorded:    " if record_metric else "metric not recorded:"
    print(f"{name} tensors kept for each layer: {max(counts)}; in all {kibibytes * sum(counts):.0f} KiB")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.factor.reveal(sum(kept[True]) / sum(kept[False]))
assert kept == {True: [4] * depth, False: [1] * depth}
np.testing.assert_array_equal(entropies[True], entropies[False])
for with_metric, without_metric in zip(gradients[True], gradients[False], strict=True):
    np.testing.assert_allclose(with_metric, without_metric, rtol=1e-5, atol=1e-7)
with tf.GradientTape() as tape:
    loss, _, layers = forward(tape, record_metric=True)
gc.collect()  # made: the product, its tanh, the softmax, the logarithm, their product
assert [made() is not None for made in layers[0].references] == [False, True, True, True, True]
for check_operation, check_kept in (  # of what goes in and what comes out; a minus sign keeps nothing
    (tf.negative, [False, False]),
    (tf.tanh, [False, True]),
    (tf.nn.softmax, [False, True]),
    (tf.math.log, [True, False]),
    (lambda t: t * inputs, [True, False]),
    (lambda t: t @ weights[0], [True, False]),
    (tf.reduce_sum, [True, False]),
):
    made = Alive()
    with tf.GradientTape() as tape:
        check_result = -made(check_operation(made(-(inputs @ weights[0]))))
    assert [reference() is not None for reference in made.references] == check_kept

# %% [markdown]
# Four: one tensor a layer, three more for the metric. Metric and gradients agree either way.
#
# | A layer makes | Kept | for the derivative of |
# |---|---|---|
# | `h @ weight` | no | nothing |
# | its `tanh` | yes | `tanh`, $1 - \tanh^2$, and the next `h @ weight` |
# | `p`, the softmax | if recorded | the softmax, the logarithm, their product |
# | the logarithm | if recorded | the product |
# | `terms`, the product | if recorded | `reduce_sum`, which needs the shape alone |

# %% alt="Line plot. Two rising straight lines over the layer number: the memory that the tape keeps when the metric is recorded grows four times as fast as when it is not." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the memory, layer by layer
_, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
layer = np.arange(1, depth + 1)
for record_metric, colour, style, name in (
    (True, plots.RED, "o-", "metric recorded"),
    (False, plots.BLUE, "s--", "metric under stop_recording"),
):
    memory = kibibytes * np.cumsum(kept[record_metric])
    ax.plot(layer, memory, style, color=colour)
    ax.text(depth, memory[-1] + 0.06 * kibibytes * sum(kept[True]), name, color=colour, ha="right")
ax.set(title="What the tape keeps alive grows four times as fast", xlabel="layer")
ax.set(ylabel="memory of kept tensors (KiB)", ylim=(0, 1.2 * kibibytes * sum(kept[True])))
plt.show()

# %% [markdown]
# And time? Here the metric is computed either way, and the backward pass from the loss does not visit it.

# %% tags=["nbval-ignore-output"]
milliseconds = {True: [], False: []}
for _ in range(25):
    for record_metric, times in milliseconds.items():
        start = time.process_time()
        with tf.GradientTape() as tape:
            loss, _, _ = forward(tape, record_metric)
        tape.gradient(loss, weights)[0].numpy()
        times.append(1000 * (time.process_time() - start))
typical = {record_metric: np.median(times) for record_metric, times in milliseconds.items()}
print(f"metric recorded:     {typical[True]:.1f} ms")
print(f"metric not recorded: {typical[False]:.1f} ms")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
visited = []


@tf.custom_gradient
def probe(x):
    return tf.identity(x), lambda upstream: visited.append("backward pass") or upstream


with tf.GradientTape(persistent=True) as tape:
    metric = tf.reduce_sum(probe(weights[0]) ** 2)
    loss = tf.reduce_sum(weights[0] ** 2)
tape.gradient(loss, weights[0])
assert visited == []  # the backward pass from the loss does not visit the metric
tape.gradient(metric, weights[0])
assert visited == ["backward pass"]
assert 0.6 < typical[True] / typical[False] < 1.6

# %% [markdown]
# Next to nothing. The block saved memory.
#
# ### Exercise: A metric off the tape (5 min)
#
# Return two scalars: the sum of the entries of $x^3$, which is the loss, and their largest magnitude, a metric. The open tape
# must be able to differentiate the loss, and must not record the metric. Keep the line of `cube`, and compute nothing else from `x`.


# %%
def loss_and_metric(tape, x):
    cube = x**3
    return ...  # the sum of cube, and the largest magnitude in cube


exercises.metric_off.check(loss_and_metric)

# %% [markdown]
# ## 3. Reset: start over
#
# Below, `tape.reset()` empties the tape, which then goes on recording. Of the same $z = x^2 + y^2$, `y * y` *is* recorded, before the reset.

# %%
x = tf.Variable(2.0)
y = tf.Variable(3.0)

with tf.GradientTape() as tape:
    y_squared = y * y
    tape.reset()  # everything above is forgotten
    x_squared = x * x
    z = x_squared + y_squared

dz_dx, dz_dy = tape.gradient(z, [x, y])
print("z     =", z.numpy())
print("dz/dx =", dz_dx.numpy())
print("dz/dy =", dz_dy)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert z.numpy() == 13.0
assert dz_dx.numpy() == 4.0
assert dz_dy is None

# %% [markdown]
# Section 1's numbers: no record of `y * y` is left.
#
# **Predict.** Below, `v` is a variable and `t` a tensor watched by hand; both are used after the reset. Whose gradient exists: "v", "t", "both" or "neither"?

# %%
exercises.after_reset.guess(...)  # "v", "t", "both" or "neither"

# %%
v = tf.Variable(3.0)
t = tf.constant(5.0)

with tf.GradientTape() as tape:
    tape.watch(t)
    tape.reset()
    product = v * t

dp_dv, dp_dt = tape.gradient(product, [v, t])
print("d(v t)/dv =", dp_dv.numpy())
print("d(v t)/dt =", dp_dt)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.after_reset.reveal("v" if dp_dv is not None and dp_dt is None else "not v alone")
assert dp_dv.numpy() == 5.0
assert dp_dt is None

# %% [markdown]
# The tape has forgotten what it *watched*, too. By default `v`, a trainable variable, is watched again as `v * t` reads it. `t` is not. Name it again:

# %%
with tf.GradientTape() as tape:
    tape.watch(t)
    tape.reset()
    tape.watch(t)
    product = v * t

dp_dv, dp_dt = tape.gradient(product, [v, t])
print("d(v t)/dv =", dp_dv.numpy())
print("d(v t)/dt =", dp_dt.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert dp_dv.numpy() == 5.0
assert dp_dt.numpy() == 3.0
with tf.GradientTape() as tape:
    v * 2.0
    assert len(tape.watched_variables()) == 1
    tape.reset()
    assert len(tape.watched_variables()) == 0
with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(v)
    tape.reset()
    product = v * t
assert tape.gradient(product, v) is None  # not by default: then it has to be named again, too

# %% [markdown]
# ## 4. Truncated backpropagation through time
#
# This **recurrent network** reads a stream, $h_{t+1} = \tanh(h_t W + x_t U)$, and must predict the next input from $h$. Backpropagation through *time* goes back through all steps
# since the start; in the opening cell the tape kept a state for each.
#
# **Truncated** backpropagation goes back through a window. Here, after each window: take the gradient, update, forget the record, keep the state.

# %% alt="Diagram. A row of nine states in boxes, joined by black arrows to the right, three to a window. Below each window red arrows run back from its last state to its first. Between the windows a dotted vertical line marked new tape: the black arrow crosses it, the red ones do not." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what goes on to the next tape
_, ax = plt.subplots(figsize=(9, 2.3), layout="constrained")
for step in range(9):
    ax.text(step, 0, f"$h_{step + 1}$", ha="center", va="center", bbox={"boxstyle": "round,pad=0.35", "fc": "white"})
    if step < 8:
        ax.annotate("", (step + 0.75, 0.08), (step + 0.25, 0.08), arrowprops={"arrowstyle": "-|>", "linewidth": 1.5})
    if step % 3 < 2:
        back = {"arrowstyle": "-|>", "linewidth": 1.5, "color": plots.RED}
        ax.annotate("", (step + 0.25, -0.12), (step + 0.75, -0.12), arrowprops=back)
for edge in (2.5, 5.5):
    ax.axvline(edge, color=plots.GREY, linestyle=":")
    ax.text(edge, 0.85, " new tape", color=plots.GREY, va="top")
ax.text(0, 0.45, "values go on", va="center")
ax.text(0, -0.55, "gradients stay in the window", color=plots.RED, va="center")
ax.set(title="Truncated backpropagation, in windows of three steps", xlim=(-0.4, 8.4), ylim=(-0.75, 0.9))
ax.axis("off")
plt.show()

# %%
stream = np.sin(np.arange(241) * 0.3) + 0.5 * np.sin(np.arange(241) * 0.71)
stream = tf.constant(stream[:, None, None], tf.float32)  # 241 times, one example, one input
units = 24
generator = np.random.default_rng(seed)
start_values = [
    generator.standard_normal((units, units)) * 0.8 / np.sqrt(units),  # W
    generator.standard_normal((1, units)),  # U
    np.zeros((units, 1)),  # the readout, V
]


def train_on_stream(window, rate=0.05):
    """Read the stream once. Returns the loss of each step, and the number of states in memory after it."""
    W, U, V = variables = [tf.Variable(value, dtype=tf.float32) for value in start_values]
    state, losses, counts, in_memory = tf.zeros((1, units)), [], [], Alive()
    for start in range(0, len(stream) - 1, window):
        with tf.GradientTape() as tape:  # a new tape for each window; `state` comes in as a constant
            total = 0.0
            for step in range(start, min(start + window, len(stream) - 1)):
                state = in_memory(tf.tanh(state @ W + stream[step] @ U))
                loss = tf.reduce_mean((state @ V - stream[step + 1]) ** 2)
                total += loss
                losses.append(float(loss))
                counts.append(len(in_memory))
        for variable, gradient in zip(variables, tape.gradient(total, variables), strict=True):
            variable.assign_sub(rate / window * gradient)
    return np.array(losses), np.array(counts)


# %% tags=["nbval-ignore-output"]
window = 12
losses, in_memory = train_on_stream(window)
no_update, growing = train_on_stream(window=len(stream))  # one window for the whole stream

print(f"mean loss of the first 40 steps {losses[:40].mean():.3f}, of the last 40 {losses[-40:].mean():.3f}")
print(f"states in memory at most: {in_memory.max()} with a window of {window}, {growing.max()} without")

# %% alt="Two line plots. Two panels over the step of the stream. Left, states in memory: without truncation a straight line climbs to 240; with a window of 12 a small sawtooth stays near the bottom. Right, the squared error of the prediction on a logarithmic axis: without updates it stays level, with truncated backpropagation it falls to a fraction." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: memory and loss along the stream
_, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
left.plot(growing, "--", color=plots.RED)
left.plot(in_memory, color=plots.BLUE)
left.text(215, 225, "one window", color=plots.RED, ha="right")
left.text(235, 20, f"a new tape every {window} steps", color=plots.BLUE, ha="right")
left.set(title="The record stops growing", xlabel="step of the stream", ylabel="states in memory")
for values, colour, style, name in (
    (no_update, plots.GREY, ":", "no update"),
    (losses, plots.BLUE, "-", f"an update every {window} steps"),
):
    smooth = np.convolve(values, np.ones(24) / 24, mode="valid")
    right.plot(np.arange(12, 12 + len(smooth)), smooth, style, color=colour, label=name)
right.set(title="And the network learns", xlabel="step of the stream", yscale="log")
right.set(
    ylabel="squared error, mean of 24 steps", yticks=[0.05, 0.1, 0.2, 0.5], yticklabels=["0.05", "0.1", "0.2", "0.5"]
)
right.minorticks_off()
right.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert in_memory.max() == window + 1
assert growing.max() == len(stream) - 1
assert losses[-40:].mean() < losses[:40].mean() / 3
assert losses[-40:].mean() < no_update[-40:].mean() / 5

# %% [markdown]
# At most 13 states: twelve in the window, and the one before it.
#
# **What does the truncation leave out?** It cuts the gradient at the window's edge. Two weights, and a window of *one* step: $h \leftarrow a\,h + b\,x$, where $x$ is 1 at the first step and 0 at the next five. Only the last step has a loss, $(h - 1)^2$. The last window sees $h = a \cdot \text{(a constant)}$.

# %%
a, b = tf.Variable(0.5), tf.Variable(0.5)
for _ in range(300):
    memory = tf.constant(0.0)
    for x_t in (1.0, 0.0, 0.0, 0.0, 0.0, 0.0):
        with tf.GradientTape() as tape:  # a window of one step
            memory = a * memory + b * x_t
            loss = (memory - 1.0) ** 2
    slopes = tape.gradient(loss, [a, b])  # of the last step
    a.assign_sub(0.05 * slopes[0])
    b.assign_sub(0.05 * slopes[1])

print(f"a = {a.numpy():.3f}, b = {b.numpy():.3f}, memory at the end {memory.numpy():.3f}")

# %% [markdown]
# It learns to remember, through a window that reaches back one step! The last step rewards a larger $a$, and $a$ is the weight of *every* step. But $b$ has not moved. It acts at the first step alone, and there no gradient arrived.
#
# So this gradient leaves out the way in which the weights acted before the window. How much is that? Below, $W$ is $\rho$ times an orthogonal matrix: $h W$ is $\rho$ times as long as $h$. The slope of $\tanh$ is at most 1, so each step back multiplies a gradient's length by at most $\rho$.

# %% tags=["nbval-ignore-output"]
orthogonal = np.linalg.qr(generator.standard_normal((units, units)))[0]
U = tf.constant(0.3 * generator.standard_normal((1, units)), tf.float32)
v = tf.constant(generator.standard_normal((units, 1)), tf.float32)


def gradient_through_last(keep, rho, steps=60):
    """The gradient of one output with respect to W, through the last `keep` steps of the stream."""
    W, state = tf.constant(rho * orthogonal, tf.float32), tf.zeros((1, units))
    for step in range(steps - keep):
        state = tf.tanh(state @ W + stream[step] @ U)  # no tape is open
    with tf.GradientTape() as tape:
        tape.watch(W)
        for step in range(steps - keep, steps):
            state = tf.tanh(state @ W + stream[step] @ U)
        output = state @ v
    return tape.gradient(output, W).numpy()


windows, errors = (1, 2, 4, 8, 16, 32), {}
for rho in (0.5, 0.8, 0.95):
    full = gradient_through_last(60, rho)
    gaps = [np.linalg.norm(gradient_through_last(keep, rho) - full) for keep in windows]
    errors[rho] = np.array(gaps) / np.linalg.norm(full)
    print(f"rho {rho:<4}  relative error, window of 8: {errors[rho][3]:.1e}, of 32: {errors[rho][5]:.1e}")

# %% alt="Line plot. The relative error of the truncated gradient against the window, both axes showing powers, for three networks. For rho 0.5 it falls steeply, to far below a thousandth at a window of 16; for 0.8 it falls more slowly; for 0.95 it is still of the order of one per cent at a window of 32." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the error against the window
_, ax = plt.subplots(figsize=(6.6, 4), layout="constrained")
for (rho, error), colour, style in zip(
    errors.items(), (plots.BLUE, plots.GREEN, plots.RED), ("o-", "s--", "^-."), strict=True
):
    ax.plot(windows, error, style, color=colour)
    ax.text(windows[-1] * 1.1, error[-1], f"ρ = {rho}", color=colour, va="center")
ax.set(title="At a larger ρ the same window leaves out more", xlabel="window (steps)")
ax.set(ylabel="relative error of the gradient", xscale="log", yscale="log", xlim=(0.9, 60))
ax.set_xticks(windows, labels=windows)
ax.minorticks_off()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert errors[0.5][3] < 0.01
assert errors[0.95][3] > 0.15
assert all(error[5] < error[0] / 10 for error in errors.values())
np.testing.assert_allclose(orthogonal.T @ orthogonal, np.eye(units), atol=1e-12)
assert errors[0.5][3] < errors[0.8][3] < errors[0.95][3]
assert errors[0.5][5] < errors[0.8][5] < errors[0.95][5]
with tf.GradientTape() as tape:
    tape.watch(stream)
    state = tf.tanh(stream[0] @ U)
    tape.reset()
    tape.watch(stream)
    state = tf.tanh(state + stream[1] @ U)
before_the_window, in_the_window = np.ravel(tape.gradient(state, stream))[:2]
assert before_the_window == 0.0
assert in_the_window != 0.0
assert b.numpy() == 0.5
np.testing.assert_allclose(a**5 * b, 1.0, atol=1e-3)

# %% [markdown]
# At $\rho = 0.5$ this gradient through eight steps is off by less than 1 %; at 0.95 by more than 15 %.
#
# ### Exercise: Differentiate the last steps only (10 min)
#
# A recurrent step, `step(w, h)`, here $\tanh(w h)$, runs `steps` times. Return the gradient of the last $h$ with respect to `w`, a tensor, as if the
# state before the last `keep` steps were a given constant: the value runs through all steps, the gradient through the last `keep`. At the last step no state from before that constant may be in memory.


# %%
def truncated_gradient(step, w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for number in range(steps):
            h = step(w, h)  # something is missing before this line
    return ...  # the gradient of h with respect to w, through the last `keep` steps


exercises.truncated.check(truncated_gradient)

# %% [markdown]
# ## 5. Going further: one tape for the whole stream
#
# Here the training of section 4 stays in the block of one tape, and `reset` ends each window. A plain tape is emptied by its own answer, which leaves `reset` nothing to end; this one is persistent. The pause keeps the backward pass off the record.


# %%
def in_one_block(window, rate=0.05):
    """The same training with one tape. Returns the loss of each step."""
    W, U, V = variables = [tf.Variable(value, dtype=tf.float32) for value in start_values]
    state, total, losses = tf.zeros((1, units)), 0.0, []
    with tf.GradientTape(persistent=True) as tape:
        for step in range(len(stream) - 1):
            state = tf.tanh(state @ W + stream[step] @ U)
            losses.append(tf.reduce_mean((state @ V - stream[step + 1]) ** 2))
            total += losses[-1]
            if (step + 1) % window == 0:
                with tape.stop_recording():
                    gradients = tape.gradient(total, variables)
                    for variable, gradient in zip(variables, gradients, strict=True):
                        variable.assign_sub(rate / window * gradient)
                tape.reset()  # forget the window
                total = 0.0
    return np.array(losses)


difference = np.abs(in_one_block(window) - losses).max()
print(f"largest difference from a new tape for each window: {difference:.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(in_one_block(window), losses, rtol=1e-3, atol=1e-5)
number = tf.Variable(2.0)
with tf.GradientTape(persistent=True) as tape:
    cube = number**3
    with tape.stop_recording():
        slope = tape.gradient(cube, number)
assert slope.numpy() == 12.0
assert tape.gradient(slope, number) is None  # the backward pass is not on the tape
for check_persistent, check_answers in ((False, [1.0, 2.0, 4.0]), (True, [1.0, 4.0, 12.0])):  # without a reset
    power, check_found = tf.constant(1.0), []
    with tf.GradientTape(persistent=check_persistent) as tape:
        for _ in range(3):
            power = power * number
            with tape.stop_recording():
                check_found.append(float(tape.gradient(power, number)))
    assert check_found == check_answers  # plain: of the last factor alone; persistent: of all factors


def check_kept(pause):
    """How many results of a backward function the tape keeps after five calls of `gradient` while it records."""
    results = Alive()

    @tf.custom_gradient
    def growth(x):
        def backward(upstream):
            return results(tf.exp(upstream * x))

        return tf.exp(x), backward

    with tf.GradientTape(persistent=True) as tape:
        grown = growth(1.0 * number)
        for _ in range(5):
            with tape.stop_recording() if pause else contextlib.nullcontext():
                tape.gradient(grown, number)
        return len(results)


check_level = tf.get_logger().level
tf.get_logger().setLevel("ERROR")  # a persistent tape warns of it
assert (check_kept(pause=False), check_kept(pause=True)) == (5, 0)
tf.get_logger().setLevel(check_level)

# %% [markdown]
# ## 6. Going further: where a pause does not reach
#
# Below, the first block is inside a `tf.function`, and the tape outside. It pauses the tape *while Python runs the block*, and that is while the function is traced.

# %%
w = tf.Variable(3.0)


@tf.function
def cube_unrecorded():
    with tape.stop_recording():
        return w**3


with tf.GradientTape() as tape:
    p = cube_unrecorded() + w
inside = tape.gradient(p, w)

with tf.GradientTape() as tape:
    with tape.stop_recording():
        cube = cube_unrecorded()
    p = cube + w
around = tape.gradient(p, w)

print("block inside the function:", inside.numpy())
print("block around the call:    ", around.numpy())

# %% [markdown]
# With $w^3$ off the record, $\mathrm dp/\mathrm dw = 1$. The block inside had no effect: 28 is the full derivative, $3w^2 + 1$. To the tape outside, this call is one operation,
# recorded when the block has closed. Put the block around the call, or, for a part of the function, `tf.stop_gradient` around that part ([06](06_stop_gradient.ipynb)).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert (inside.numpy(), around.numpy()) == (28.0, 1.0)
with tf.GradientTape() as tape:
    again = cube_unrecorded() + w  # traced before: Python does not run
assert tape.gradient(again, w).numpy() == 28.0
check_step = tf.function(lambda: w**2 + tf.stop_gradient(w**3))
with tf.GradientTape() as tape:
    check_sum = check_step()
assert (check_sum.numpy(), tape.gradient(check_sum, w).numpy()) == (36.0, 6.0)

# %% [markdown]
# ## 7. Going further: when a tape lets go
#
# This persistent tape has answered its question. Then Python's last name for `y` goes, then the tape.

# %%
x = tf.Variable(3.0)
with tf.GradientTape(persistent=True) as tape:
    y = x * x
    z = y * y

dz_dx = tape.gradient(z, x)
in_memory = Alive()
in_memory(y)
del y
with_tape = len(in_memory) == 1
del tape
gc.collect()
without_tape = len(in_memory) == 1

for moment, remains in (("after del y", with_tape), ("after del tape", without_tape)):
    print(f"{moment:15}", "y is in memory" if remains else "y is gone")

# %% [markdown]
# The tape kept `y`, for the derivative of `y * y`, in case you ask again. A plain one, in the check, let go of it with its answer.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert with_tape
assert not without_tape
assert dz_dx == 108.0
with tf.GradientTape() as tape:
    squared = x * x
    fourth = squared * squared
tape.gradient(fourth, x)
in_memory = Alive()
in_memory(squared)
del squared
gc.collect()
assert len(in_memory) == 0  # a tape for one answer has let go

# %% [markdown]
# ## 8. Check it independently
#
# Section 1's answers, without a tape: with `y_squared` frozen at 9, $z$ is a function of $x$ alone, and central differences of *that* function give the tape's answer. With nothing frozen they also give the 6.


# %%
def z_frozen(x):
    return x**2 + 9.0


def z_full(xy):
    return xy[0] ** 2 + xy[1] ** 2


frozen = gradcheck.numerical_jacobian(z_frozen, 2.0)
full = gradcheck.numerical_jacobian(z_full, [2.0, 3.0])
print(f"y*y frozen:     dz/dx = {frozen:.4f}")
print(f"nothing frozen: dz/dx = {full[0]:.4f}, dz/dy = {full[1]:.4f}")

# %% [markdown]
# Section 4's truncated gradient, too, is that of a function in which the state before the window is frozen.


# %% tags=["nbval-ignore-output"]
def numpy_output(W, state, first, last):
    """The output and the state after the steps from `first` to `last`, in float64."""
    for step in range(first, last):
        state = np.tanh(state @ W + stream[step].numpy().astype(np.float64) @ U.numpy())
    return state @ v.numpy().astype(np.float64), state


W = 0.8 * orthogonal
_, before = numpy_output(W, np.zeros((1, units)), 0, 56)  # frozen
truncated = gradient_through_last(4, 0.8)
direction = generator.standard_normal((units, units))
step = 1e-5
above, below = (numpy_output(W + sign * step * direction, before, 56, 60)[0].item() for sign in (1, -1))
slope = (above - below) / (2 * step)
print(f"along one direction: tape {np.sum(truncated * direction):.4f}, differences {slope:.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert z_frozen(2.0) == z_full([2.0, 3.0]) == 13.0  # two functions with one value
np.testing.assert_allclose(frozen, 4.0, rtol=1e-8)
np.testing.assert_allclose(full, [4.0, 6.0], rtol=1e-8)
np.testing.assert_allclose(np.sum(truncated * direction), slope, rtol=1e-3, atol=1e-4)

# %% [markdown]
# ## Recap
#
# - `with tape.stop_recording():` ran `y * y` and kept it off the tape, to which `y_squared` was a constant (section 1).
# - For a metric in each layer it saved three of four kept tensors, and next to no time (section 2).
# - `tape.reset()` forgot the record and what was watched; the trainable variable was watched again at its next use, the tensor was not (section 3).
# - Truncated backpropagation through time kept the state and dropped the record after each window: the states in memory stopped growing in number. No gradient arrived at the weight that acted before the window alone; the one that acts at every step learnt to remember (section 4).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a step from source to loss is inside `tape.stop_recording()`, run eagerly | `None`, or the gradient of the other recorded paths, without a warning | keep inside only what this tape may take for a constant |
# | a constant watched before `tape.reset()` is used after it | `None` | `watch` it again before that use |
# | `stop_recording` is in a compiled `tf.function`, the open tape outside | it has no effect, without a warning | put it around the call; for a part of the function, `tf.stop_gradient` |
# | a persistent tape computes gradients while it records | a warning; what the backward pass computes from watched tensors is recorded too | `with tape.stop_recording():` around `gradient`, if you do not differentiate its result |
# | under truncated backpropagation a weight acts only before the window that needs it | from that window its gradient is 0, or `None` | a window that reaches back to the weight |
#
# **Further reading**
#
# - TensorFlow Core guide, ["Advanced automatic differentiation"](https://www.tensorflow.org/guide/advanced_autodiff), sections "Stop recording" and "Reset/start recording from scratch".
# - P. J. Werbos (1990), ["Backpropagation through time: What it does and how to do it"](https://doi.org/10.1109/5.58337).
# - R. J. Williams, J. Peng (1990), ["An efficient gradient-based algorithm for on-line training of recurrent network trajectories"](https://doi.org/10.1162/neco.1990.2.4.490): truncated backpropagation through time.
#
# **Read next:** [06 Stop gradient](06_stop_gradient.ipynb) cuts one path and leaves the tape running.
