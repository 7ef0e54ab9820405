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
# # What derivatives cost
#
# A gradient has one entry for each weight of a model. It would be no surprise if it cost as many runs of the model.
# **What does each derivative cost, and how does the cost grow?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/16_what_derivatives_cost.ipynb)
#
# **Prerequisites:** [12 Forward mode](12_forward_mode.ipynb) · **Minutes:** 19 to read, 3 more to go further, 28 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
batch = 128  # examples of the first network: between 64 and 256
width = 256  # units of each of its hidden layers: between 128 and 384
calls = 10  # timed calls, of which the median counts: between 7 and 20

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import functools
import gc
import math
import time
import weakref
from itertools import pairwise

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import what_derivatives_cost as exercises
from tapelab.interactive import modes

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
sizes = [784, width, width, 10]
weights = [tf.Variable(tf.random.normal(pair) / np.sqrt(pair[0])) for pair in pairwise(sizes)]
x = tf.random.normal((batch, sizes[0]))
targets = tf.random.normal((batch, sizes[-1]))


def loss():
    h = x
    for weight in weights[:-1]:
        h = tf.tanh(h @ weight)
    return tf.reduce_mean((h @ weights[-1] - targets) ** 2)


@tf.function
def gradient():
    with tf.GradientTape() as tape:
        value = loss()
    return tape.gradient(value, weights)


forward = tf.function(loss)
print("derivatives:", sum(int(tf.size(part)) for part in gradient()))


# %% tags=["nbval-ignore-output"]
def medians(runs, calls=calls):
    """The median time of a call of each function, in seconds; the calls take turns, shuffled."""
    for run in runs.values():
        run()  # the first call traces: it does not count
    seconds = {name: [] for name in runs}
    for turn in range(calls):
        for k in np.random.default_rng(turn).permutation(len(runs)):
            name, run = list(runs.items())[k]
            begin = time.perf_counter()
            _ = tf.nest.flatten(run())[-1].numpy()  # a GPU is done only when a value is here
            seconds[name].append(time.perf_counter() - begin)
    return {name: float(np.median(taken)) for name, taken in seconds.items()}


seconds = medians({"forward": forward, "gradient": gradient}, 5 * calls)
print(f"the gradient's time, in forward passes: {seconds['gradient'] / seconds['forward']:.1f}")

# %% [markdown]
# The network has 268 800 weights, and their derivatives together took no longer than a few forward passes. Central differences would take 537 600.
#
# **You will be able to**
#
# - predict the cost of a gradient and of a Hessian–vector product (section 1),
# - find a scaling exponent by counting (section 2),
# - predict memory before you allocate it, and trade it for work (sections 3 and 4).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
n = sum(int(tf.size(part)) for part in gradient())
assert n == 784 * width + width * width + width * 10
assert n == 268_800 or width != 256
assert seconds["gradient"] < 10 * seconds["forward"]

# %% [markdown]
# ## 1. The cheap-gradient principle
#
# Why so few? A dense layer's forward pass is one matrix product, $y = x W$. Its backward pass is two:
#
# $$\bar W = x^\top \bar y, \qquad \bar x = \bar y\, W^\top,$$
#
# where a bar marks the loss's gradient with respect to that quantity. So this network's gradient takes at most the products of **three** forward
# passes, *however many weights there are*. This is the **cheap-gradient principle**: where each operation's backward rule costs a small multiple of
# the operation, so does the whole gradient.
#
# The multiplications of `@` can be counted off the traced graph, before anything runs. What stands in another `tf.function`, or leads to no result, is not
# counted.


# %%
def multiplications(function, *arguments):
    """Count the multiplications of the matrix products that a tf.function's results are made of."""
    total, seen = 0, set()
    ahead = [output.op for output in function.get_concrete_function(*arguments).graph.outputs]
    while ahead:  # shapes fixed, no loops or branches
        operation = ahead.pop()
        if operation in seen:
            continue
        seen.add(operation)
        ahead += [source.op for source in operation.inputs]
        if operation.type in ("MatMul", "BatchMatMulV2"):
            *_, height, depth = operation.inputs[0].shape
            inner = height * depth // operation.outputs[0].shape[-2]  # the axis summed over
            total += operation.outputs[0].shape.num_elements() * inner
    return total


print(f"forward:  {multiplications(forward):11,}")
print(f"gradient: {multiplications(gradient):11,}")
print(f"ratio:    {multiplications(gradient) / multiplications(forward):11.2f}")

# %% [markdown]
# Forwards, the layers take $128 \cdot (784 \cdot 256 + 256 \cdot 256 + 256 \cdot 10)$ multiplications. The gradient takes three times that, less the
# largest product: nobody asks for the gradient of the data. Hence 2.25.
#
# A Hessian–vector product ([14](14_without_the_matrix.ipynb)) differentiates the gradient once more.
#
# **Predict.** How many multiplications does it take, as a multiple of the *gradient's*?

# %%
exercises.product.guess(...)  # "about 1", "1 to 3", "784" or "268 800" in place of the dots

# %%
vectors = [tf.random.normal(weight.shape) for weight in weights]


@tf.function
def hessian_vector_product():
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = loss()
        gradients = inner.gradient(value, weights)
    return outer.gradient(gradients, weights, output_gradients=vectors)


runs = {"forward": forward, "gradient": gradient, "HVP": hessian_vector_product}
count = {name: multiplications(run) for name, run in runs.items()}
print(f"product / gradient: {count['HVP'] / count['gradient']:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.product.reveal("1 to 3" if 1 < count["HVP"] / count["gradient"] < 3 else "another")
layers = [batch * rows * columns for rows, columns in pairwise(sizes)]
assert count["forward"] == sum(layers)
check_nested = tf.function(lambda a: check_inside(a))
check_inside = tf.function(lambda a: a @ a)
check_variable = tf.Variable(tf.zeros((4, 4)))
check_assigned = tf.function(lambda a: [check_variable.assign(a @ a), a + 1.0][1])  # it runs, for no result
for check_function in (check_nested, check_assigned):
    assert multiplications(check_function, tf.ones((4, 4))) == 0
check_assigned(tf.ones((4, 4)))
assert check_variable[0, 0] == 4.0
assert count["gradient"] == 3 * sum(layers) - layers[0] < 3 * count["forward"]
assert width != 256 or abs(count["gradient"] / count["forward"] - 2.25) < 0.005
assert layers[0] == max(layers)
assert 1.5 < count["HVP"] / count["gradient"] < 2.5

# %% [markdown]
# Again each product of the gradient adds two more at most: less than three gradients. By the clock:

# %% tags=["nbval-ignore-output"]
seconds = medians(runs, 5 * calls)
pairs = (("gradient", "forward"), ("HVP", "gradient"))
for one, other in pairs:
    print(f"{one} / {other}: {count[one] / count[other]:.2f} counted, {seconds[one] / seconds[other]:.2f} measured")

# %% alt="Bar chart. Two pairs of bars, gradient over forward pass and Hessian-vector product over gradient: the counted ratio, hatched, beside the measured one. A dashed line at three lies above both counted bars." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: counted and measured
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
position = np.arange(2)
for shift, cost, colour, hatch, label in (
    (-0.2, count, plots.BLUE, "//", "multiplications, counted"),
    (0.2, seconds, plots.ORANGE, None, "time, measured here"),
):
    heights = [cost[one] / cost[other] for one, other in pairs]
    bars = ax.bar(position + shift, heights, 0.4, color=colour, hatch=hatch, edgecolor="white", label=label)
    ax.bar_label(bars, fmt="%.2f")
ax.axhline(3, color=plots.GREY, linestyle="--")
ax.text(1.45, 3.05, "three products for one", ha="right", color=plots.GREY)
ax.set_xticks(position, labels=["gradient / forward", "HVP / gradient"])
highest = max(bar.get_height() for bar in ax.patches)
ax.set(title="Counted, each differentiation multiplies\nthe work by less than three", ylim=(0, max(4.2, 1.4 * highest)))
ax.set(xlabel="what is compared", ylabel="ratio")
ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# A measured time also holds `tanh`, starting the operations, and memory.
#
# **The principle's hypothesis can fail.** The next function adds up the sines of 200 entries of a long vector, each picked by an index.
#
# **Predict.** Its gradient writes how many numbers, as a multiple of what the function writes, if the vector has 100,000 entries: "about 3", "about 500" or "about 50,000"?

# %%
exercises.slices.guess(...)  # one of the three, in quotes


# %%
def picked_one_by_one(x):
    return tf.add_n([tf.sin(x[i]) for i in range(200)])


def picked_together(x):
    return tf.reduce_sum(tf.sin(tf.gather(x, tf.range(200))))


def numbers_written(function, n):
    """How many numbers the operations write that depend on x, in the function's graph and in its gradient's."""

    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        return tape.gradient(y, x)

    written = []
    for run in (function, slope):
        graph = tf.function(run).get_concrete_function(tf.TensorSpec([n])).graph
        outputs = [output for operation in graph.get_operations() if operation.inputs for output in operation.outputs]
        written.append(sum(output.shape.num_elements() or 0 for output in outputs))
    return written


ratios = {}
for function in (picked_one_by_one, picked_together):
    for n in (1_000, 100_000):
        forwards, backwards = numbers_written(function, n)
        ratios[function.__name__, n] = backwards / forwards
        print(f"{function.__name__:18} n = {n:7,}: forwards {forwards:6,}, with the gradient {backwards:12,}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
large = ratios["picked_one_by_one", 100_000]
exercises.slices.reveal("about 50,000" if 20_000 < large < 100_000 else "something else")
assert seconds["gradient"] < 10 * seconds["forward"]
assert seconds["HVP"] < 10 * seconds["gradient"]
assert large > 50 * ratios["picked_one_by_one", 1_000]  # it grows with the number of inputs
assert ratios["picked_together", 100_000] == ratios["picked_together", 1_000] < 5
check_x = tf.random.normal((1_000,))
check_gradients = []
for function in (picked_one_by_one, picked_together):
    with tf.GradientTape() as check_tape:
        check_tape.watch(check_x)
        check_y = function(check_x)
    check_gradients.append(tf.convert_to_tensor(check_tape.gradient(check_y, check_x)))
np.testing.assert_allclose(check_gradients[0], check_gradients[1], rtol=1e-6)

# %% [markdown]
# The derivative of one such slice is a vector of $n$ entries, all zero but one, and its rule writes every zero: 200 slices write $200\,n$ numbers.
# `tf.gather` picks all at once, and its rule returns `IndexedSlices` here, the positions with their values.

# %% [markdown]
# ### Exercise: What freezing layers saves (8 min)
#
# In fine-tuning only the weights of layers `first`, `first + 1`, … (counted from 0) are trained. Return the number of multiplications of all matrix
# products that the loss and its gradient with respect to the *trained* weights take. `sizes` are the layers' sizes, such as `[784, 256, 256, 10]`, and
# `batch` is the number of examples. The tape watches the trained weights alone, and of these products TensorFlow leaves out what nobody asks for.


# %%
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]  # one product of each layer
    return ...


exercises.frozen.check(multiplications_of)

# %% [markdown]
# ## 2. Exponents: count, then time
#
# On logarithmic axes a cost of $c\, n^p$ is a straight line of slope $p$. A Hessian of $n$ weights has $n^2$ entries; `jacobian` fills it with $n$
# products.

# %%
data, labels = tf.random.normal((16, 16)), tf.random.normal((16, 8))


def gradient_of(w):
    """The gradient of a small network's loss with respect to all its weights, shape (n,)."""
    units = w.shape[0] // 24
    with tf.GradientTape() as tape:
        tape.watch(w)
        first, second = tf.split(w, [16 * units, 8 * units])
        h = tf.tanh(data @ tf.reshape(first, (16, units)))
        value = tf.reduce_mean((h @ tf.reshape(second, (units, 8)) - labels) ** 2)
    return tape.gradient(value, w)


@tf.function
def whole_hessian(w, v):  # takes v so that both functions have the same arguments
    with tf.GradientTape() as outer:
        outer.watch(w)
        g = gradient_of(w)
    return outer.jacobian(g, w)


@tf.function
def product_with(w, v):
    with tf.GradientTape() as outer:
        outer.watch(w)
        g = gradient_of(w)
    return outer.gradient(g, w, output_gradients=v)


# %% [markdown]
# **Predict.** The number of weights doubles. By which factor does the work grow, in multiplications, for the Hessian and for the product?

# %%
exercises.doubled.guess([..., ...])  # two factors: the Hessian, the product


# %%
def exponent(n, cost):
    """The slope p of the straight line through (log n, log cost)."""
    return np.polyfit(np.log(n), np.log(cost), 1)[0]


tf.get_logger().setLevel("ERROR")  # one function, nine shapes: TensorFlow would warn
points = [tf.unstack(tf.random.normal((2, 24 * units)) / 5.0) for units in (4, 8, 12, 16, 24, 32, 48, 64, 96)]
n = np.array([len(w) for w, _ in points])
second_order = {"Hessian": whole_hessian, "product": product_with}
counted = {what: [multiplications(run, *at) for at in points] for what, run in second_order.items()}
print("weights:", n)
for what, numbers in counted.items():
    print(f"{what}: from n = {n[0]} to {n[1]}, {numbers[1] / numbers[0]:.2f} times; slope {exponent(n, numbers):.2f}")

# %% [markdown]
# By the clock:

# %% tags=["nbval-ignore-output"]
times = medians(
    {(what, k): lambda run=run, at=at: run(*at) for what, run in second_order.items() for k, at in enumerate(points)}
)
timed = {what: np.array([times[what, k] for k in range(len(points))]) for what in second_order}

# %% alt="Two line plots. Two panels against the number of weights, all axes logarithmic. Left, multiplications counted: two straight lines, the Hessian's of slope 2 and far above the product's of slope 1. Right, time measured: at the smallest size the two lie closer together; the product's line stays low, and the Hessian's leaves it and climbs." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: counted slopes, measured times
_, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for what, style, colour in (("Hessian", "o-", plots.RED), ("product", "s--", plots.BLUE)):
    left.loglog(n, counted[what], style, color=colour, label=f"{what}: slope {exponent(n, counted[what]):.2f}")
    right.loglog(n, 1e3 * timed[what], style, color=colour, label=what)
left.set(title="Counted: slopes 2 and 1", xlabel="number of weights n", ylabel="multiplications")
right.set(title="Measured here: the gap widens", xlabel="number of weights n", ylabel="median time of a call (ms)")
for ax in (left, right):
    ax.set_xticks(n[::2], labels=n[::2])
    ax.set_xticks([], minor=True)
    ax.legend()
plt.show()

# %% [markdown]
# The smallest Hessian takes over fifty times the product's multiplications, but not fifty times its time: starting the operations costs a fixed amount. A line fitted to these times mixes it into its slope.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.doubled.reveal([round(counted[what][1] / counted[what][0], 2) for what in ("Hessian", "product")])
assert n[1] == 2 * n[0]
np.testing.assert_allclose([exponent(n, counted["Hessian"]), exponent(n, counted["product"])], [2, 1], atol=0.05)
assert timed["Hessian"][-1] > timed["product"][-1]
ratio = timed["Hessian"] / timed["product"]
assert np.median(ratio[-3:]) > np.median(ratio[:3])
assert counted["Hessian"][0] > 50 * counted["product"][0]
assert ratio[0] < 25
assert np.all(np.array(counted["Hessian"]) <= n * counted["product"])
assert np.all(
    np.array(counted["product"]) <= 3 * np.array([multiplications(tf.function(gradient_of), w) for w, _ in points])
)


@tf.function
def check_jacobian():
    with tf.GradientTape() as check_tape:
        check_h = tf.tanh(tf.tanh(x @ weights[0]) @ weights[1])
        check_outputs = tf.reduce_mean(check_h @ weights[2], axis=0)
    return check_outputs, check_tape.jacobian(check_outputs, weights)


check_backward = count["gradient"] - count["forward"]
assert 10 * check_backward <= multiplications(check_jacobian) - count["forward"] < 2 * 10 * count["forward"]
for w, v in points[:3]:
    np.testing.assert_allclose(tf.linalg.matvec(whole_hessian(w, v), v), product_with(w, v), rtol=1e-3, atol=1e-3)

# %% [markdown]
# ### Exercise: An exponent under a fixed cost (10 min)
#
# The start of the operations is a fixed cost $a$: a call takes $a + c\,n^p$. Find $p$ from measurements without noise. `n` and `cost` are NumPy
# arrays of the same length, 3 or more; `n` doubles from each entry to the next. Neither $a$ nor $c$ is known.


# %%
def hidden_exponent(n, cost):
    return ...  # p, a number, where cost = a + c * n**p


exercises.hidden_exponent.check(hidden_exponent)

# %% [markdown]
# ## 3. Memory, predicted
#
# The size of a dense result follows from its shape and dtype. A Hessian over $n$ float32 weights takes $4 n^2$ bytes.

# %%
weight_count = sum(int(tf.size(weight)) for weight in weights)
print("weights:", weight_count)
print(f"Hessian: {4 * weight_count**2 / 2**30:.1f} GiB")

# %% [markdown]
# `tapelab.derivatives` counts before it allocates, and refuses here. Its message names what to use instead: `hvp`, whose result takes 1 MiB.

# %% tags=["nbval-ignore-output"]
try:
    derivatives.hessian(loss, wrt=weights)()
    message = "no error"
except derivatives.MemoryLimitError as error:
    message = str(error)
print(message)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert weight_count == 784 * width + width * width + width * 10
assert width != 256 or f"{4 * weight_count**2 / 2**30:.1f}" == "269.2"
assert f"a matrix of shape ({weight_count}, {weight_count})" in message
assert "hvp" in message
assert width != 256 or 1.0 <= 4 * weight_count / 2**20 < 1.05
for part, by_tapes in zip(derivatives.hvp(loss, wrt=weights)(vector=vectors), hessian_vector_product(), strict=True):
    np.testing.assert_allclose(part, by_tapes, rtol=0, atol=1e-3 * np.max(np.abs(by_tapes)))

# %% [markdown]
# ### Exercise: Bytes, before you allocate them (5 min)
#
# A network with a million weights maps a batch of 256 examples of 784 pixels to 10 scores for each; the loss is one number. How many bytes does each of
# these results take in float32?

# %%
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {  # in bytes, float32
    "the gradient of the loss": ...,
    "the gradient of each example's loss": ...,
    "the Jacobian of all scores with respect to the weights": ...,
    "batch_jacobian of the scores with respect to the pixels": ...,
    "the Jacobian of all scores with respect to all pixels": ...,
    "the Hessian over the weights": ...,
    "a Hessian-vector product": ...,
}

exercises.fits.check(size)

# %% [markdown]
# A tape also keeps what its backward rules read: of the chain below, the result of every layer.
# Count them with weak references ([09](09_multiple_tapes.ipynb), section 3).

# %%
chain = [tf.random.normal((32, 32)) / np.sqrt(32) for _ in range(24)]
start = tf.random.normal((batch, 32))
results, held = [], []


def alive():
    return sum(reference() is not None for reference in results)


def layer(h, weight):
    h = tf.tanh(h @ weight)
    results.append(weakref.ref(h))
    held.append(alive())  # one number for each evaluation of a layer
    return h


with tf.GradientTape() as tape:
    tape.watch(chain)
    h = start
    for weight in chain:
        h = layer(h, weight)
    value = tf.reduce_mean(h**2)

del h
gc.collect()
print("layers:                  ", len(chain))
print("results kept by the tape:", alive())

# %%
by_plain_tape = tape.gradient(value, chain)
held_plain = list(held)
print("evaluations of a layer:", len(held_plain))

# %% [markdown]
# All 24 are kept: this record grows with the layers.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert held_plain == list(range(1, 25))
with tf.GradientTape() as tape_again:
    tape_again.watch(chain)
    results.clear(), held.clear()
    h = start
    for weight in chain[:12]:
        h = layer(h, weight)
del h
gc.collect()
assert alive() == 12  # half the layers, half the record
del tape_again

# %% [markdown]
# ## 4. Checkpointing: memory for work
#
# A tape need not keep what it can compute again. Cut the chain into blocks. Keep the result of each block only, its **checkpoint**; when the backward
# pass reaches a block, run it once more from its checkpoint, and then backwards through that record. This is *checkpointing*, or rematerialisation.
# `tf.recompute_grad(block)` does it, for a block that gets its tensors as positional arguments. By keyword a tensor or a variable gets `None`; taken from outside, a variable gets its gradient, and a tensor `None`.
# A Hessian–vector product of this chain, or forward mode, is then an error.
#
# **Predict.** The 24 layers are cut into 6 blocks of 4. How many results are kept after the forward pass, and how often is a layer evaluated in all, forwards and backwards?

# %%
exercises.checkpoints.guess([..., ...])  # two integers: results kept, evaluations of a layer


# %%
def block(h, *block_weights):
    for weight in block_weights:
        h = layer(h, weight)
    return h


def checkpointed(lengths):
    """Results kept after the forward pass, and the gradient, for blocks of these lengths; fills held."""
    results.clear(), held.clear()
    with tf.GradientTape() as tape:
        tape.watch(chain)
        h = start
        for part in np.split(np.arange(24), np.cumsum(lengths)[:-1]):
            h = tf.recompute_grad(block)(h, *[chain[k] for k in part])
        value = tf.reduce_mean(h**2)
    del h
    gc.collect()
    return alive(), tape.gradient(value, chain)


kept, by_checkpoints = checkpointed([4] * 6)
held_checkpointed = list(held)
print("results kept:          ", kept)
print("evaluations of a layer:", len(held_checkpointed))
print("most alive at once:    ", max(held_checkpointed))

# %% [markdown]
# Six checkpoints instead of 24 results, and every layer runs twice. The gradient is the same but for rounding. With $k$ blocks of $n / k$ such layers, at most $k + n/k$ results are alive at once: all checkpoints, and one block. Among equal blocks a $k$ near $\sqrt n$ is best, with about $2\sqrt n$.
#
# Equal blocks are not the best. When the backward pass reaches the first block, the other checkpoints are gone. So let the first block be the longest, and each one after it shorter by one.
#
# **Predict.** Blocks of 7, 6, 5, 4 and 2 layers. How many results are alive at once, at most, and how many evaluations does it take?

# %%
exercises.unequal.guess([..., ...])  # two integers: the most results alive, evaluations of a layer

# %%
_, by_unequal_blocks = checkpointed([7, 6, 5, 4, 2])
held_unequal = list(held)
print("evaluations of a layer:", len(held_unequal))
print("most alive at once:    ", max(held_unequal))

# %% alt="Line plot. The number of results alive against the evaluation of a layer. The plain tape's line climbs straight to 24 and ends. The line of six equal blocks climbs slowly in steps during the first 24 evaluations, jumps to a sawtooth whose first tooth reaches 10, and falls tooth by tooth; that of the unequal blocks has five teeth, none higher than 8." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what is alive
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.step(np.arange(1, 25), held_plain, "--", where="mid", color=plots.RED)
ax.step(np.arange(1, 49), held_checkpointed, where="mid", color=plots.BLUE)
ax.step(np.arange(1, 49), held_unequal, where="mid", color=plots.GREEN)
ax.axvline(24.5, color=plots.GREY, linestyle=":")
ax.text(25.5, 22.5, "plain tape", color=plots.RED)
ax.text(29, 10.5, "6 blocks of 4", color=plots.BLUE)
ax.text(37, 8.4, "7, 6, 5, 4, 2", color=plots.GREEN)
ax.set(title="Unequal blocks: no tooth is higher than 8", ylim=(0, 26))
ax.set(xlabel="evaluation of a layer (the second run starts at 25)", ylabel="results alive")
plt.show()

# %% [markdown]
# Eight, for the same 48 evaluations. With at most $M$ alive the blocks may be $M - 1, M - 2, \dots, 1$ layers long, $M(M - 1)/2$ in all: $M$ is about $\sqrt{2n}$. A chain of 1024 layers takes 46 results instead of 64.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.checkpoints.reveal([kept, len(held_checkpointed)])
exercises.unequal.reveal([max(held_unequal), len(held_unequal)])
assert kept == 6
assert len(held_checkpointed) == len(held_unequal) == 48
assert max(held_checkpointed) == 6 + 24 // 6 == 10
assert max(held_unequal) == 8
for plain, again, unequal in zip(by_plain_tape, by_checkpoints, by_unequal_blocks, strict=True):
    np.testing.assert_allclose(again, plain, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(unequal, plain, rtol=1e-6, atol=1e-9)
    assert np.max(np.abs(plain)) > 1e-6
for blocks in (2, 3, 4, 8, 12):
    checkpointed([24 // blocks] * blocks)
    assert max(held) == blocks + 24 // blocks

# %% [markdown]
# **A block runs twice, and has to compute the same again**: in training, batch normalisation moves its averages twice. Here `tf.nn.dropout` draws anew, and the gradient belongs to another mask. Of 1000 numbers, how many are dropped and have a gradient?


# %% tags=["nbval-ignore-output"]
def dropped_with_a_gradient(dropout):
    numbers = tf.ones(1000)
    with tf.GradientTape() as tape:
        tape.watch(numbers)
        h = tf.recompute_grad(dropout)(numbers)
    return int(tf.math.count_nonzero((h == 0) & (tape.gradient(h, numbers) != 0)))


def stateless(h):
    return tf.nn.experimental.stateless_dropout(h, 0.5, seed=[seed, 1])


redrawn = dropped_with_a_gradient(lambda h: tf.nn.dropout(h, 0.5))
print("dropout:          ", redrawn)
print("stateless dropout:", dropped_with_a_gradient(stateless))

# %% [markdown]
# A quarter; so it is with `seed=1`, and with a Keras `Dropout`, seeded or not. The stateless operation repeats its numbers.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 180 < redrawn < 320
assert dropped_with_a_gradient(stateless) == 0
with tf.GradientTape() as check_tape:
    check_tape.watch([start, chain[0]])
    check_outside = tf.recompute_grad(lambda h: layer(h, chain[0]))(start)
    check_keyword = tf.recompute_grad(layer)(start, weight=chain[0])
check_none = check_tape.gradient([check_outside, check_keyword], [start, chain[0]])
assert check_none[1] is None
assert np.any(check_none[0])
check_variable = tf.Variable(chain[0])
with tf.GradientTape() as check_tape:
    check_keyword = tf.recompute_grad(layer)(start, weight=check_variable)
assert check_tape.gradient(check_keyword, check_variable) is None
with tf.GradientTape() as check_tape:
    check_by_variable = tf.recompute_grad(lambda h: layer(h, check_variable))(start)
with tf.GradientTape() as check_plain:
    check_layer = layer(start, check_variable)
check_wanted = check_plain.gradient(check_layer, check_variable)
np.testing.assert_allclose(check_tape.gradient(check_by_variable, check_variable), check_wanted, rtol=1e-6)
assert 180 < dropped_with_a_gradient(lambda h: tf.nn.dropout(h, 0.5, seed=1)) < 320
for check_seed in (seed, None):
    check_layer = tf.keras.layers.Dropout(0.5, seed=check_seed)
    assert 180 < dropped_with_a_gradient(lambda h, layer=check_layer: layer(h, training=True)) < 320
check_norm, check_batch = tf.keras.layers.BatchNormalization(momentum=0.5), tf.random.normal((8, 3)) + 4.0
with tf.GradientTape() as check_tape:
    check_tape.watch(check_batch)
    check_y = tf.recompute_grad(lambda h: check_norm(h, training=True))(check_batch)
check_tape.gradient(check_y, check_batch)
np.testing.assert_allclose(check_norm.moving_mean, 0.75 * tf.reduce_mean(check_batch, axis=0), rtol=1e-4)


def check_value(check_wrap):
    check_h = start
    for k in range(0, 24, 4):
        check_h = check_wrap(block)(check_h, *chain[k : k + 4])
    return tf.reduce_mean(check_h**2)


def check_product(check_wrap):
    with tf.GradientTape() as check_outer:
        check_outer.watch(chain)
        with tf.GradientTape() as check_inner:
            check_inner.watch(chain)
            check_y = check_value(check_wrap)
        check_slopes = check_inner.gradient(check_y, chain)
    return check_outer.gradient(check_slopes, chain, output_gradients=chain)


def check_forward(check_wrap):
    with tf.autodiff.ForwardAccumulator(chain[0], chain[0]) as check_accumulator:
        check_y = check_value(check_wrap)
    return [check_accumulator.jvp(check_y)]


for check_run in (check_product, tf.function(check_product), check_forward):
    assert all(np.any(part) for part in check_run(lambda function: function))
    with np.testing.assert_raises_regex(NotImplementedError, "recompute_grad tried to transpose"):
        check_run(tf.recompute_grad)

# %% [markdown]
# ## 5. Going further: the binomial law
#
# With one layer at a time on the tape, fewer than $\sqrt n$ results can do. Before it is recorded, a layer may run $r$ times. With $s$ checkpoints, the start included, the longest chain has $\binom{s + r}{s}$ layers: six for $s = r = 2$, in the left panel. For the next checkpoint splits the chain: behind it $s - 1$ checkpoints are left, before it $r - 1$ runs are left, and the two lengths add up by Pascal's rule. This is the **binomial law**; Griewank and Walther's *revolve* reaches it. For 1024 layers $r = 3$ needs 17 checkpoints, $r = 4$ needs 11.

# %% alt="Scatter plot and line plot. Left, which of six layers is evaluated, in 14 evaluations: five layers run and the sixth is recorded; the fifth and fourth follow from a checkpoint after the third; then the first three, from the start and a checkpoint after the first. Right, the number of results that a schedule keeps against the number of layers, on logarithmic axes: the plain tape's line is steepest, then equal blocks, unequal blocks below them, and the binomial schedules with r = 3 and r = 4 lowest." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: a schedule, and what each schedule keeps
order = [1, 2, 3, 4, 5, 6, 4, 5, 4, 1, 2, 3, 2, 1]  # which layer is evaluated
recorded = [layer not in order[k + 1 :] for k, layer in enumerate(order)]  # its last evaluation
checkpoint_of = {1: (0, 14), 4: (3, 9), 2: (10, 13)}  # before a layer: from which evaluation to which
lengths = np.array([8, 16, 32, 64, 128, 256, 512, 1024])


def least_for(fits):
    """The least number s with fits(s, n), for each length n of a chain."""
    return [next(s for s in range(1, 2000) if fits(s, n)) for n in lengths]


schedules = {
    "plain tape": (lengths, "--", plots.RED),
    "equal blocks": (least_for(lambda s, n: any(k + -(-n // k) <= s for k in range(1, n + 1))), "-", plots.BLUE),
    "unequal blocks": (least_for(lambda s, n: s * (s - 1) // 2 >= n), "-", plots.GREEN),
    "binomial, r = 3": (least_for(lambda s, n: math.comb(s + 3, 3) >= n), "-.", plots.ORANGE),
    "binomial, r = 4": (least_for(lambda s, n: math.comb(s + 4, 4) >= n), ":", "black"),
}
_, (steps, ax) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for mark, colour, label, kind in (("o", plots.BLUE, "runs", False), ("s", plots.RED, "is recorded, goes back", True)):
    at = [k for k in range(len(order)) if recorded[k] == kind]
    steps.plot(np.array(at) + 1, np.array(order)[at], mark, color=colour, label=label)
for before, (begin, end) in checkpoint_of.items():
    label = "checkpoint" if before == 1 else None
    steps.plot((begin + 0.5, end + 0.5), (before - 0.5, before - 0.5), color=plots.GREY, label=label)
steps.set(
    title="Two checkpoints, six layers:\neach runs at most twice, then is recorded", xlabel="evaluation", ylabel="layer"
)
steps.legend(fontsize="small")
for name, (least, style, colour) in schedules.items():
    ax.loglog(lengths, least, style, color=colour, label=name)
ax.set(title="What each schedule keeps", xlabel="layers n", ylabel="results kept")
ax.set_xticks(lengths[::2], labels=lengths[::2])
ax.set_xticks([], minor=True)
ax.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert [least[-1] for least, _, _ in schedules.values()] == [1024, 64, 46, 17, 11]
assert [layer for k, layer in enumerate(order) if recorded[k]] == [6, 5, 4, 3, 2, 1]
assert max(order.count(layer) - 1 for layer in order) == 2
for k, layer in enumerate(order):
    alive_then = [before for before, (begin, end) in checkpoint_of.items() if begin <= k < end]
    goes_on = k > 0 and not recorded[k - 1] and order[k - 1] == layer - 1
    assert len(alive_then) <= 2
    assert goes_on or layer in alive_then
for before, (begin, _) in checkpoint_of.items():
    assert before == 1 or order[begin - 1] == before - 1  # what it keeps was there


@functools.cache
def check_runs(layers, checkpoints):
    """The least r for a chain: how often the layer that runs most often runs before it is recorded."""
    if layers == 1 or checkpoints == 1:  # the start alone: the first layer runs once for each layer behind it
        return layers - 1
    cuts = range(1, layers)  # where the next checkpoint is set: what lies behind it is done first
    return min(max(1 + check_runs(cut, checkpoints), check_runs(layers - cut, checkpoints - 1)) for cut in cuts)


for checkpoints in range(1, 5):
    for runs in range(1, 4):
        longest = math.comb(checkpoints + runs, checkpoints)
        assert check_runs(longest, checkpoints) == runs < check_runs(longest + 1, checkpoints)

# %% [markdown]
# ## 6. Going further: eager, graph, XLA
#
# A Hessian can be computed one operation at a time from Python (eager), as a graph that is traced once, or compiled by XLA. This one is tiny: 30 weights.
#
# **Predict.** By which factor is the graph faster than eager, once it is traced?

# %%
exercises.eager.guess(...)  # "less than 2", "2 to 5" or "more than 5" in place of the dots


# %% tags=["nbval-ignore-output"]
def small(w):
    return tf.reduce_sum(tf.tanh(tf.reshape(w, (6, 5)) @ tf.ones((5, 4))) ** 2)


def small_hessian(w):
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = small(w)
        g = inner.gradient(value, w)
    # in a graph all rows at once, eagerly one after another
    return outer.jacobian(g, w, experimental_use_pfor=not tf.executing_eagerly())


w = tf.random.normal((30,))
small_hessian(w)  # whoever comes first pays for TensorFlow's own start
tf.function(tf.square, jit_compile=True)(w)
ways = {"eager": small_hessian, "graph": tf.function(small_hessian)}
ways["xla"] = tf.function(small_hessian, jit_compile=True)
first_call, matrices = {}, {}
for way, run in ways.items():
    begin = time.perf_counter()
    matrices[way] = run(w)
    first_call[way] = time.perf_counter() - begin

later_call = medians({way: lambda run=run: run(w) for way, run in ways.items()})
for way in ways:
    print(f"{way:5}  first call {1e3 * first_call[way]:7.1f} ms, a later call {1e3 * later_call[way]:7.2f} ms")

# %% alt="Bar chart. Bars on a logarithmic axis for eager, graph and XLA: the first calls of all three take long; later calls of graph and XLA are far shorter than those of eager." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: first and later calls
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
for shift, taken, colour, hatch, label in (
    (-0.2, first_call, plots.GREY, "//", "first call"),
    (0.2, later_call, plots.BLUE, None, "a later call"),
):
    heights = [1e3 * taken[way] for way in ways]
    ax.bar(np.arange(3) + shift, heights, 0.4, color=colour, hatch=hatch, edgecolor="white", label=label)
ax.set_yscale("log")
ax.set_xticks(range(3), labels=["eager", "graph", "XLA"])
ax.set(
    title="Once compiled, this tiny Hessian takes less\nthan a fifth of the eager time",
    xlabel="how it is run",
    ylabel="time of a call (ms)",
)
ax.set_ylim(top=6e3 * max(first_call.values()))  # room for the legend
ax.legend(loc="upper right", ncols=2)
plt.show()

# %% [markdown]
# Eagerly, Python starts the operations one by one, row after row. The graph's first call pays for tracing.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.eager.reveal("more than 5" if later_call["graph"] < later_call["eager"] / 5 else "5 or less")
for way in ("graph", "xla"):
    assert later_call[way] < later_call["eager"] / 5
    assert first_call[way] > 10 * later_call[way]
    np.testing.assert_allclose(matrices[way], matrices["eager"], rtol=1e-4, atol=1e-4)

# %% [markdown]
# ### Exercise: From which call on does compiling pay? (5 min)
#
# The first call of a graph takes `first_call` seconds, tracing included, and each later one `later_call`. Every eager call takes `eager_call`. Return the least number of calls
# after which the graph has taken *less* time in total than eager, or `None` where it never has.


# %%
def pays_from(first_call, later_call, eager_call):
    return ...  # an integer, or None


exercises.pays.check(pays_from)

# %% [markdown]
# ## 7. Going further: passes and memory together
#
# A Jacobian takes a backward pass for each output or a forward pass for each input ([11](11_jacobians.ipynb)). Forward mode holds no record: of a chain of layers it keeps the last value and a tangent. Passes that run at once need a tangent or a cotangent each. Bytes for one example, for layers of one width $w$ in
# float32, beside the weights and the Jacobian:
#
# | passes | forward | reverse |
# |---|---|---|
# | one at a time | $4w \cdot 2$ | $4w\,(\text{layers} + 1)$ |
# | all at once | $4w\,(1 + \text{inputs})$ | $4w\,(\text{layers} + \text{outputs})$ |
#
# In the figure all run at once. On the solid line both modes take the same number of passes, on the dashed one they hold the same bytes, for 24 layers of 256 units.

# %% alt="Line plot and bar chart. On the left a plane of inputs and outputs on logarithmic axes, divided by a diagonal where both modes take the same number of passes; a dashed line of equal memory bends away below it. A point for 16 inputs and 8 outputs lies between the two lines. On the right, bars: reverse mode takes 8 passes and forward mode 16, but forward mode holds 17 KiB and reverse mode 32."
modes.figure().show()

# %% [markdown]
# Between the lines reverse mode takes fewer passes, and its record makes it hold more.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with tf.autodiff.ForwardAccumulator(start, tf.ones_like(start)) as accumulator:
    h, values, tangents = start, [], []
    for weight in chain:
        h = tf.tanh(h @ weight)
        values.append(weakref.ref(h))
        tangents.append(weakref.ref(accumulator.jvp(h)))
gc.collect()
assert sum(value() is not None for value in values) == 1
assert sum(tangent() is not None for tangent in tangents) == 1
assert modes.passes("reverse", 16, 8) < modes.passes("forward", 16, 8)
assert modes.held_bytes("reverse", 16, 8, layers=24) > modes.held_bytes("forward", 16, 8, layers=24)
assert modes.break_even(16, layers=1) == 16

# %% [markdown]
# ## 8. Check it independently
#
# In float64 and NumPy, central differences of the gradient's closed form give the Hessian–vector product of section 1, for the last layer.

# %% tags=["nbval-ignore-output"]
weights64, vectors64 = ([np.asarray(part, np.float64) for part in parts] for parts in (weights, vectors))
x64, targets64 = np.asarray(x, np.float64), np.asarray(targets, np.float64)


def last_layer_gradient(step):
    """The gradient with respect to the last weights, in closed form, after all weights have moved."""
    moved = [weight + step * vector for weight, vector in zip(weights64, vectors64, strict=True)]
    h = x64
    for weight in moved[:-1]:
        h = np.tanh(h @ weight)
    return 2.0 / targets64.size * h.T @ (h @ moved[-1] - targets64)


numerical = gradcheck.numerical_jacobian(last_layer_gradient, 0.0)
by_tapes = hessian_vector_product()[-1]
error = np.max(np.abs(by_tapes - numerical)) / np.max(np.abs(numerical))
print(f"largest difference, relative to the largest entry: {error:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert numerical.shape == by_tapes.shape == (width, 10)
assert error < 1e-3

# %% [markdown]
# ## Recap
#
# - The bounds below rest on backward rules that cost a small multiple of their operation; that of `x[i]` does not (section 1).
# - The counts showed the exponents. The times mixed in a fixed cost (section 2).
# - The chain's record grows with its layers; for one more forward pass, checkpoints bring it down to about $2\sqrt{\text{layers}}$ with equal blocks, $\sqrt{2\,\text{layers}}$ with unequal ones (sections 3 and 4).
#
# For dense layers with $n$ weights, in reverse mode and float32:
#
# | | backward passes | multiplications, at most | bytes of the result |
# |---|---|---|---|
# | gradient | 1 | 3 forward passes | $4n$ |
# | Hessian–vector product | 2 | 3 gradients | $4n$ |
# | Jacobian of $m$ outputs | $m$ | $1 + 2m$ forward passes | $4mn$ |
# | Hessian | $1 + n$ | $n$ products | $4n^2$ |
#
# | Trap | What you see | What to do |
# |---|---|---|
# | timing the first call of a `tf.function` | tracing in the time | call once, then time |
# | an exponent read off a few timings | the fixed cost in the slope | count the multiplications |
# | slices of a long vector in a loop | a gradient that writes a whole vector for each | gather once |
# | a small Hessian in eager mode | Python's time, not arithmetic's | a graph, or XLA |
# | a Hessian where a product would do | memory that grows with $n^2$ | `hvp`, or two tapes |
# | a deep network on a plain tape | each layer's results are kept | `tf.recompute_grad` around blocks, their tensors as positional arguments; first derivatives in reverse mode only |
# | `tf.nn.dropout`, eagerly with a seed too, or a Keras `Dropout`, in a checkpointed block | the gradient of another mask | a stateless operation, seeded anew each step |
#
# **Further reading**
#
# - The TensorFlow Core guide, ["Advanced automatic differentiation"](https://www.tensorflow.org/guide/advanced_autodiff), section "Jacobians"; the API page of [`tf.recompute_grad`](https://www.tensorflow.org/api_docs/python/tf/recompute_grad).
# - S. Linnainmaa (1976), ["Taylor expansion of the accumulated rounding error"](https://doi.org/10.1007/BF01931367): reverse accumulation, from his thesis of 1970.
# - W. Baur, V. Strassen (1983), ["The complexity of partial derivatives"](https://doi.org/10.1016/0304-3975%2883%2990110-X).
# - A. Griewank, A. Walther (2008), ["Evaluating Derivatives"](https://doi.org/10.1137/1.9780898717761).
# - B. A. Pearlmutter (1994), ["Fast exact multiplication by the Hessian"](https://doi.org/10.1162/neco.1994.6.1.147).
# - A. Griewank, A. Walther (2000), ["Algorithm 799: revolve: an implementation of checkpointing for the reverse or adjoint mode of computational differentiation"](https://doi.org/10.1145/347837.347846).
# - T. Chen, B. Xu, C. Zhang, C. Guestrin (2016), ["Training deep nets with sublinear memory cost"](https://arxiv.org/abs/1604.06174).
#
# **Read next:** [17 The gradient of the input](17_gradient_of_the_input.ipynb) opens part IV; [00 Start here](00_start_here.ipynb) has the map.
