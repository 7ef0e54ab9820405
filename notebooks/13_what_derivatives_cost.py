# ---
# jupyter:
#   jupytext:
#     cell_metadata_filter: tags,alt,-all
#     formats: ipynb,py:percent
#     notebook_metadata_filter: kernelspec,jupytext,-jupytext.text_representation.jupytext_version
#     text_representation:
#       extension: .py
#       format_name: percent
#       format_version: '1.3'
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # What derivatives cost
#
# A gradient has as many entries as the model has weights, and yet costs about as much as evaluating the model a few times. A
# Hessian does not. **What does each derivative cost, and how does the cost grow?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/13_what_derivatives_cost.ipynb)
#
# **Prerequisites:** [12 Forward mode](12_forward_mode.ipynb) · **Time:** about 30 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - predict the cost of a gradient and of a Hessian–vector product from the cost of the forward pass (section 1),
# - choose the mode of a Jacobian from its shape, and say what the wrong one costs (section 2),
# - read a scaling exponent off a plot, and tell a Hessian from a Hessian–vector product by it (section 3),
# - say what of a call's time is Python and what is arithmetic (section 4),
# - predict the memory of a Jacobian or Hessian before allocating it (section 5).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import time
from itertools import pairwise

from tapelab import derivatives, gradcheck, plots, runtime

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
batch = 128  # examples
width = 256  # units of each hidden layer in section 1
calls = 10  # of which the fastest counts

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. The cheap-gradient principle
#
# A dense layer's forward pass is one matrix product, $y = x W$. Its backward pass is two: $\bar W = x^\top \bar y$ and
# $\bar x = \bar y\, W^\top$, a bar standing for a cotangent. So a gradient costs about **three** forward passes (one forward, two backward), *however many weights there are*. The first
# layer saves one product: nobody asks for the gradient of the data.
#
# **Predict.** A network 784-256-256-10 on 128 examples. How many multiplications does the gradient take, as a multiple of the
# forward pass: 2 to 3, or 784? And a Hessian–vector product, as a multiple of the gradient?
#
# Multiplications can be counted exactly, from the graph, before anything runs.

# %%
sizes = [784, width, width, 10]
weights = [tf.Variable(tf.random.normal(pair) / np.sqrt(pair[0])) for pair in pairwise(sizes)]
vectors = [tf.random.normal(weight.shape) for weight in weights]
x = tf.random.normal((batch, sizes[0]))
targets = tf.random.normal((batch, sizes[-1]))


def loss(weights, x, targets):
    for weight in weights[:-1]:
        x = tf.tanh(x @ weight)
    return tf.reduce_mean((x @ weights[-1] - targets) ** 2)


@tf.function
def forward():
    return loss(weights, x, targets)


@tf.function
def gradient():
    with tf.GradientTape() as tape:
        value = loss(weights, x, targets)
    return tape.gradient(value, weights)


@tf.function
def hessian_vector_product():
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = loss(weights, x, targets)
        gradients = inner.gradient(value, weights)
    return outer.gradient(gradients, weights, output_gradients=vectors)


def multiplications(function):
    """Count the multiplications of all matrix products in a tf.function's graph."""
    total = 0
    for operation in function.get_concrete_function().graph.get_operations():
        if operation.type == "MatMul":
            rows, columns = operation.outputs[0].shape
            inner = operation.inputs[0].shape.num_elements() // rows
            total += rows * inner * columns
    return total


count = {f.python_function.__name__: multiplications(f) for f in (forward, gradient, hessian_vector_product)}
print(f"gradient / forward: {count['gradient'] / count['forward']:.2f}")
print(f"product / gradient: {count['hessian_vector_product'] / count['gradient']:.2f}")

# %% [markdown]
# In numbers: the layers take $128 \cdot (784 \cdot 256 + 256 \cdot 256 + 256 \cdot 10)$ multiplications forward. The
# gradient triples that, less the one product of the first layer.

# %%
layers = [batch * rows * columns for rows, columns in pairwise(sizes)]
assert count["forward"] == sum(layers)
assert count["gradient"] == 3 * sum(layers) - layers[0]
assert count["gradient"] / count["forward"] < 3
assert 1.5 < count["hessian_vector_product"] / count["gradient"] < 3

# %% [markdown]
# A count is not a time: memory, threads and the start of each operation come in. Measure both ratios. The fastest of several
# calls is the least disturbed one.


# %%
def fastest(function, calls=calls):
    """The least time of a call in seconds, after one that traces."""
    function()
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        result = function()
        _ = tf.reshape(tf.nest.flatten(result)[-1], [-1])[:1].numpy()  # a GPU is done only when a value is here
        times.append(time.perf_counter() - start)
    return min(times)


seconds = {f.python_function.__name__: fastest(f) for f in (forward, gradient, hessian_vector_product)}
print("a gradient costs less than 10 forward passes:", seconds["gradient"] < 10 * seconds["forward"])
print("a product costs less than 10 gradients:      ", seconds["hessian_vector_product"] < 10 * seconds["gradient"])

# %%
assert seconds["gradient"] < 10 * seconds["forward"]
assert seconds["hessian_vector_product"] < 10 * seconds["gradient"]

# %% alt="Two pairs of bars, gradient over forward pass and Hessian-vector product over gradient: the counted ratio beside the measured one, with the theory's line at three."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
position = np.arange(2)
pairs = (("gradient", "forward"), ("hessian_vector_product", "gradient"))
ax.bar(position - 0.2, [count[a] / count[b] for a, b in pairs], 0.4, color=plots.BLUE, label="multiplications, counted")
ax.bar(
    position + 0.2, [seconds[a] / seconds[b] for a, b in pairs], 0.4, color=plots.ORANGE, label="time, measured here"
)
ax.axhline(3, color=plots.GREY, linestyle="--", label="three matrix products for one")
ax.set_xticks(position, labels=["gradient / forward", "product / gradient"])
ax.set(title="Cheap derivatives", xlabel="what is compared", ylabel="ratio", ylim=(0, 4.5))
ax.legend()
plt.show()

# %% [markdown]
# ## 2. Jacobians: the mode decides
#
# A Jacobian takes one forward-mode pass for each input, or one reverse-mode pass for each output.
#
# **Predict.** $f: \mathbb{R}^8 \to \mathbb{R}^{1024}$. Which mode is faster, and by how many passes? And for $\mathbb{R}^{1024} \to \mathbb{R}^8$?

# %%
ratio = {}
for name, ins, outs in (("tall", 8, 1024), ("wide", 1024, 8)):
    first = tf.random.normal((ins, 64)) / np.sqrt(ins)
    second = tf.random.normal((64, outs)) / 8.0

    def f(x, first=first, second=second):
        return tf.tanh(tf.tanh(x[tf.newaxis] @ first) @ second)[0]

    point = tf.random.normal((ins,))
    by_mode = {mode: derivatives.jacobian(f, mode=mode) for mode in ("forward", "reverse")}
    np.testing.assert_allclose(by_mode["forward"](point), by_mode["reverse"](point), atol=1e-4)
    taken = {mode: fastest(lambda run=run, point=point: run(point)) for mode, run in by_mode.items()}
    ratio[name] = taken["forward"] / taken["reverse"]
    better = "forward" if ratio[name] < 1 else "reverse"
    print(f"{name}: {ins:4d} forward passes or {outs:4d} backward passes; faster: {better} mode")

# %% [markdown]
# The two modes return the same numbers; only the number of passes differs, by a factor of 128. Since all passes run at
# once, as one larger matrix product, the measured factor is smaller, but it does not change sides.

# %%
assert ratio["tall"] < 1 < ratio["wide"]

# %% [markdown]
# ## 3. Exponents: Hessian against Hessian–vector product
#
# On logarithmic axes, a cost of $c\, n^p$ is a straight line of slope $p$. With $n$ weights a Hessian has $n^2$ entries, and takes $n$
# products. One product takes a time proportional to $n$.
#
# **Predict.** The number of weights doubles. How much longer does each of them take, once $n$ is large?

# %%
widths = (16, 32, 64, 96)
elements, hessian_seconds, product_seconds = [], [], []
for units in widths:
    w = tf.random.normal((units * 24,)) / 5.0
    inputs_, targets_ = tf.random.normal((64, 16)), tf.random.normal((64, 8))

    def network_loss(w, x, y, units=units):
        first, second = tf.split(w, [16 * units, 8 * units])
        h = tf.tanh(x @ tf.reshape(first, (16, units)))
        return tf.reduce_mean((h @ tf.reshape(second, (units, 8)) - y) ** 2)

    matrix = derivatives.hessian(network_loss, compile="graph")
    product = derivatives.hvp(network_loss, compile="graph")
    v = tf.random.normal(w.shape)
    np.testing.assert_allclose(
        tf.linalg.matvec(matrix(w, inputs_, targets_), v), product(v, w, inputs_, targets_), atol=1e-3
    )
    elements.append(24 * units)
    hessian_seconds.append(fastest(lambda m=matrix, a=(w, inputs_, targets_): m(*a), calls=5))
    product_seconds.append(fastest(lambda p=product, a=(v, w, inputs_, targets_): p(*a), calls=5 * calls))

print("weights:", elements)


# %%
def exponent(n, seconds):
    """The slope of the straight line through (log n, log seconds)."""
    return np.polyfit(np.log(n), np.log(seconds), 1)[0]


print(
    "the Hessian's exponent is the larger:", exponent(elements, hessian_seconds) > exponent(elements, product_seconds)
)

# %% [markdown]
# At these sizes a single product is still mostly the start of its operations, so its line is flatter than the theory's. The
# Hessian's is near the theory's slope of 2: at $n = 10^6$, a small model today, it would have $10^{12}$ entries.

# %%
assert exponent(elements, hessian_seconds) > exponent(elements, product_seconds) + 0.3
assert hessian_seconds[-1] > product_seconds[-1]

# %% alt="Time against the number of weights on logarithmic axes: the Hessian's points climb along a dashed line of slope 2, the Hessian-vector product's points stay far below."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
n = np.array(elements)
ax.loglog(n, 1e3 * np.array(hessian_seconds), "o-", color=plots.RED, label="Hessian")
ax.loglog(n, 1e3 * np.array(product_seconds), "s-", color=plots.BLUE, label="Hessian–vector product")
ax.loglog(n, 1e3 * hessian_seconds[-1] * (n / n[-1]) ** 2, "--", color=plots.GREY, label="slope 2")
ax.loglog(n, 1e3 * product_seconds[-1] * (n / n[-1]), ":", color=plots.GREY, label="slope 1")
ax.set(title="How second derivatives scale", xlabel="number of weights n", ylabel="time of a call (ms)")
ax.legend()
plt.show()

# %% [markdown]
# ## 4. Eager, graph, XLA
#
# The same Hessian can be computed one operation at a time from Python, as a graph that is traced once, or compiled by XLA,
# which fuses operations.
#
# **Predict.** A Hessian of 30 weights, a tiny one. By which factor is the graph faster than eager: 2, or more than 10?


# %%
def small(w):
    return tf.reduce_sum(tf.tanh(tf.reshape(w, (6, 5)) @ tf.ones((5, 4))) ** 2)


w = tf.random.normal((30,))
taken, matrices = {}, {}
for way in ("eager", "graph", "xla"):
    run = derivatives.hessian(small, compile=way)
    matrices[way] = run(w)
    taken[way] = fastest(lambda run=run: run(w))
print("graph at least 3 times faster than eager:", taken["graph"] < taken["eager"] / 3)
print("XLA at least 3 times faster than eager:  ", taken["xla"] < taken["eager"] / 3)

# %% [markdown]
# Nearly all of the eager time is Python, which starts some thousand operations for a few thousand multiplications.
# Compiling has its own price, paid once for each shape: tracing takes tenths of a second, XLA more.

# %%
for way in ("graph", "xla"):
    assert taken[way] < taken["eager"] / 3
    np.testing.assert_allclose(matrices[way], matrices["eager"], atol=1e-4)

# %% [markdown]
# ## 5. Memory, predicted
#
# The size of a result is known from shapes alone. A Hessian over $n$ float32 weights takes $4 n^2$ bytes.
#
# **Predict.** How many GiB is the Hessian over the 268 800 weights of section 1's network?

# %%
n = sum(int(tf.size(weight)) for weight in weights)
print("weights:", n)
print(f"Hessian: {4 * n**2 / 2**30:.1f} GiB")

try:
    derivatives.hessian(loss)(weights, x, targets)
    message = "no error"
except derivatives.MemoryLimitError as error:
    message = str(error)
print(message[: message.index(";")])

# %% [markdown]
# The library predicts the matrix and the copies that are needed to assemble it, and refuses before it allocates. What fits
# is its product with a vector, which is no larger than the weights.

# %%
assert n == 784 * width + width * width + width * 10
assert n == 268_800
assert "hvp" in message
product = derivatives.hvp(loss)(vectors, [weight.value() for weight in weights], x, targets)
assert sum(int(tf.size(part)) for part in product) == n

# %% [markdown]
# ## 6. Check it independently
#
# Were the timed things right? In float64 and NumPy, central differences of the gradient's closed form along one direction give the
# Hessian–vector product of section 1's network.

# %%
weights64 = [weight.numpy().astype(np.float64) for weight in weights]
vectors64 = [vector.numpy().astype(np.float64) for vector in vectors]
x64, targets64 = x.numpy().astype(np.float64), targets.numpy().astype(np.float64)


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
print("they agree to 1 part in 1000:", error < 1e-3)

# %%
assert error < 1e-3

# %% [markdown]
# ## Recap
#
# - A gradient costs less than three forward passes in multiplications, a Hessian–vector product two to three gradients, whatever the number of weights (section 1).
# - A Jacobian costs the smaller of its two sides in passes, if you choose the mode by its shape (section 2).
# - A Hessian's time and memory grow with the square of the number of weights, a product's with the number (section 3).
# - At small sizes the time is Python's: compile what is called more than a few times (section 4).
# - Memory follows from shapes: compute it before you allocate it (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | timing the first call | tracing, tenths of a second | call once, then time |
# | timing one call | the machine's other work | the fastest of several |
# | a tall Jacobian in reverse mode | a hundred times too many passes | forward mode |
# | a Hessian where a product would do | $n^2$ memory | `hvp`, or two tapes |
#
# **Read next:** you have reached the last notebook; [00 Start here](00_start_here.ipynb) has the map of the collection.
