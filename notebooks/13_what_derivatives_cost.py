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
# Hessian does not.
# **What does each derivative cost, and how does the cost grow?**

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

import gc
import time
import weakref
from itertools import pairwise

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import what_derivatives_cost as exercises
from tapelab.interactive import modes

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
batch = 128  # examples of section 1
width = 256  # units of each hidden layer in section 1, 64 or more: section 5 needs a Hessian that does not fit
calls = 10  # of which the fastest counts

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. The cheap-gradient principle
#
# A dense layer's forward pass is one matrix product, $y = x W$. Its backward pass is two: $\bar W = x^\top \bar y$ and
# $\bar x = \bar y\, W^\top$, where a bar marks the loss's gradient with respect to that quantity. So a gradient costs about **three** forward
# passes, one forwards and two backwards, *however many weights there are*. The first layer saves one product: nobody asks for the gradient of the data.
#
# Multiplications can be counted exactly, from the graph, before anything runs.
#
# **Predict.** A network 784-256-256-10 on 128 examples. How many multiplications does the gradient take, as a multiple of the
# forward pass? And a Hessian–vector product, as a multiple of the gradient?

# %%
exercises.ratio.guess(...)  # gradient / forward: "1 to 2", "2 to 3", "784" or "268 800"

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

# %%
exercises.ratio.reveal("2 to 3" if 2 < count["gradient"] / count["forward"] < 3 else "another")

# %% [markdown]
# In numbers: the layers take $128 \cdot (784 \cdot 256 + 256 \cdot 256 + 256 \cdot 10)$ multiplications forwards. The
# gradient triples that, less the one product of the first layer. The Hessian–vector product differentiates the gradient's own products,
# and again each of them asks for two at most: less than three gradients.

# %%
layers = [batch * rows * columns for rows, columns in pairwise(sizes)]
assert count["forward"] == sum(layers)
assert count["gradient"] == 3 * sum(layers) - layers[0]
assert count["gradient"] / count["forward"] < 3
assert 2 < count["hessian_vector_product"] / count["gradient"] < 3

# %% [markdown]
# A count is not a time: memory, threads and the start of each operation come in. So measure both ratios. The first call is left out, because it
# traces. The fastest of several calls is the one that the machine's other work has disturbed least.


# %%
def fastest(function, calls=calls):
    """The least time of a call in seconds, after one that traces."""
    function()  # traces
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

# %% alt="Two pairs of bars, gradient over forward pass and Hessian-vector product over gradient: the counted ratio beside the measured one, with the theory's dashed line at three above the counted bars."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
position = np.arange(2)
pairs = (("gradient", "forward"), ("hessian_vector_product", "gradient"))
ax.bar(position - 0.2, [count[a] / count[b] for a, b in pairs], 0.4, color=plots.BLUE, label="multiplications, counted")
ax.bar(
    position + 0.2, [seconds[a] / seconds[b] for a, b in pairs], 0.4, color=plots.ORANGE, label="time, measured here"
)
ax.axhline(3, color=plots.GREY, linestyle="--", label="three matrix products for one")
ax.set_xticks(position, labels=["gradient / forward", "product / gradient"])
highest = max(3, *(bar.get_height() for bar in ax.patches))
ax.set(title="Cheap derivatives", xlabel="what is compared", ylabel="ratio", ylim=(0, 1.5 * highest))  # room above
ax.legend()
plt.show()

# %% [markdown]
# The blue bars are the same on every machine. The orange ones are yours: where they are lower, both times contain work that no product
# counts, such as the `tanh` and the start of each operation.
#
# ### Exercise: What freezing layers saves (8 min)
#
# In fine-tuning, the first layers of a network are frozen: only the weights of the layers number `first`, `first + 1`, … are trained, counted from 0. Return the number
# of multiplications of all matrix products that the loss and its gradient with respect to the *trained* weights take. `sizes` are the layers' sizes, such as `[784, 256, 256, 10]`,
# and `batch` is the number of examples. TensorFlow leaves out what nobody asks for.


# %%
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]  # one product of each layer
    return ...


exercises.frozen.check(multiplications_of)

# %% [markdown]
# ## 2. Jacobians: the mode decides
#
# A Jacobian takes one forward-mode pass for each input, or one reverse-mode pass for each output.
#
# **Predict.** $f: \mathbb{R}^8 \to \mathbb{R}^{2048}$. Which mode is faster, and how many passes does each take? And for $\mathbb{R}^{2048} \to \mathbb{R}^8$?

# %%
exercises.modes.guess([..., ..., ..., ...])  # tall: "forward" or "reverse", passes; wide: mode, passes

# %%
shapes = {"tall": (8, 2048), "wide": (2048, 8)}  # inputs, outputs
ratio, faster = {}, []
for name, (ins, outs) in shapes.items():
    first = tf.random.normal((ins, 64)) / np.sqrt(ins)
    second = tf.random.normal((64, outs)) / 8.0

    def f(x, first=first, second=second):
        return tf.tanh(tf.tanh(x[tf.newaxis] @ first) @ second)[0]

    point = tf.random.normal((ins,))
    by_mode = {mode: derivatives.jacobian(f, mode=mode) for mode in ("forward", "reverse")}
    np.testing.assert_allclose(by_mode["forward"](point), by_mode["reverse"](point), rtol=1e-4, atol=1e-4)
    taken = {mode: fastest(lambda run=run, point=point: run(point), 2 * calls) for mode, run in by_mode.items()}
    ratio[name] = taken["forward"] / taken["reverse"]
    better = "forward" if ratio[name] < 1 else "reverse"
    faster += [better, ins if better == "forward" else outs]
    print(f"{name}: {ins:4d} forward passes or {outs:4d} backward passes; faster: {better} mode")

# %%
exercises.modes.reveal(faster)

# %% [markdown]
# The two modes return the same numbers; only the number of passes differs, by a factor of 256. All passes run at
# once, as one larger matrix product, so the measured factor is far smaller. It does not change sides.

# %%
passes = {name: ins / outs for name, (ins, outs) in shapes.items()}
assert passes == {"tall": 1 / 256, "wide": 256}
assert ratio["tall"] < 1 < ratio["wide"]
assert passes["tall"] < ratio["tall"]
assert ratio["wide"] < passes["wide"]

# %% [markdown]
# The passes themselves can be counted as well, in graphs as in section 1. Take a map from 3 inputs to 12 outputs that is one matrix product and a `tanh`.

# %%
kernel = tf.random.normal((3, 12))


def small_map(x):
    return tf.tanh(x[tf.newaxis] @ kernel)[0]


def by_columns():
    columns = []
    for unit in tf.unstack(tf.eye(3)):
        x = tf.ones(3)
        with tf.autodiff.ForwardAccumulator(x, unit) as accumulator:
            y = small_map(x)
        columns.append(accumulator.jvp(y))
    return tf.stack(columns, axis=-1)


def by_rows():
    x = tf.ones(3)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        elements = tf.unstack(small_map(x))
    return tf.stack([tape.gradient(element, x) for element in elements])


evaluation = 3 * 12  # multiplications
evaluations = {run.__name__: multiplications(tf.function(run)) // evaluation for run in (by_columns, by_rows)}
print("forward mode evaluates the map, with a tangent,", evaluations["by_columns"], "times")
print("reverse mode evaluates it once, and goes back", evaluations["by_rows"] - 1, "times")

# %%
np.testing.assert_allclose(by_columns(), by_rows(), rtol=1e-4, atol=1e-5)
assert evaluations == {"by_columns": 3, "by_rows": 1 + 12}

# %% alt="Two pairs of bars on a logarithmic axis, the cost of forward mode over that of reverse mode. For the tall Jacobian both bars go down from one, for the wide one both go up; the bars of passes are much longer than those of measured time."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
position = np.arange(2)
for shift, values, colour, label in (
    (-0.2, passes, plots.BLUE, "passes, counted"),
    (0.2, ratio, plots.ORANGE, "time, measured here"),
):
    heights = [values[name] - 1 for name in shapes]
    ax.bar(position + shift, heights, 0.4, bottom=1, color=colour, label=label)
ax.axhline(1, color=plots.GREY)
ax.set_yscale("log")
ax.set_xticks(position, labels=["tall, 8 → 2048", "wide, 2048 → 8"])
ax.set(title="The mode decides", xlabel="Jacobian", ylabel="forward mode / reverse mode")
ax.legend(loc="upper left")
plt.show()

# %% [markdown]
# ## 3. Exponents: Hessian against Hessian–vector product
#
# On logarithmic axes, a cost of $c\, n^p$ is a straight line of slope $p$. With $n$ weights a Hessian has $n^2$ entries, and takes $n$
# products to fill. One product takes a time proportional to $n$, and has $n$ entries.
#
# **Predict.** The number of weights doubles. By which factor does each of the two grow, in bytes? And in time, once $n$ is large?

# %%
exercises.doubled.guess([..., ...])  # in bytes: the Hessian, the product

# %%
widths = (16, 32, 64, 96)
elements, hessian_bytes, product_bytes, hessian_seconds, product_seconds = [], [], [], [], []
for units in widths:
    w = tf.random.normal((units * 24,)) / 5.0
    data, labels = tf.random.normal((64, 16)), tf.random.normal((64, 8))

    def network_loss(w, x, y, units=units):
        first, second = tf.split(w, [16 * units, 8 * units])
        h = tf.tanh(x @ tf.reshape(first, (16, units)))
        return tf.reduce_mean((h @ tf.reshape(second, (units, 8)) - y) ** 2)

    matrix = derivatives.hessian(network_loss, compile="graph")
    product = derivatives.hvp(network_loss, compile="graph")
    v = tf.random.normal(w.shape)
    H, Hv = matrix(w, data, labels), product(v, w, data, labels)
    np.testing.assert_allclose(tf.linalg.matvec(H, v), Hv, rtol=1e-3, atol=1e-3)
    elements.append(24 * units)
    hessian_bytes.append(H.numpy().nbytes)
    product_bytes.append(Hv.numpy().nbytes)
    hessian_seconds.append(fastest(lambda m=matrix, a=(w, data, labels): m(*a), calls=5))
    product_seconds.append(fastest(lambda p=product, a=(v, w, data, labels): p(*a), calls=5 * calls))

print("weights:", elements)

# %%
exercises.doubled.reveal([hessian_bytes[1] / hessian_bytes[0], product_bytes[1] / product_bytes[0]])


# %%
def exponent(n, cost):
    """The slope p of the straight line through (log n, log cost)."""
    return np.polyfit(np.log(n), np.log(cost), 1)[0]


in_time = {"Hessian": exponent(elements, hessian_seconds), "product": exponent(elements, product_seconds)}
print(f"bytes: Hessian n^{exponent(elements, hessian_bytes):.3f}, product n^{exponent(elements, product_bytes):.3f}")
print("time: the Hessian's exponent is the larger:", in_time["Hessian"] > in_time["product"])

# %%
np.testing.assert_allclose([exponent(elements, hessian_bytes), exponent(elements, product_bytes)], [2, 1], rtol=1e-9)
assert in_time["Hessian"] > in_time["product"] + 0.3
assert hessian_seconds[-1] > product_seconds[-1]

# %% alt="Time against the number of weights on logarithmic axes: the Hessian's points climb steeply towards a dashed line of slope 2, the Hessian-vector product's points stay far below and rise little."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
n = np.array(elements)
ax.loglog(n, 1e3 * np.array(hessian_seconds), "o-", color=plots.RED, label="Hessian")
ax.loglog(n, 1e3 * np.array(product_seconds), "s-", color=plots.BLUE, label="Hessian–vector product")
ax.loglog(n, 1e3 * hessian_seconds[-1] * (n / n[-1]) ** 2, "--", color=plots.GREY, label="slope 2")
ax.loglog(n, 1e3 * product_seconds[-1] * (n / n[-1]), ":", color=plots.GREY, label="slope 1")
ax.set(title="How second derivatives scale", xlabel="number of weights n", ylabel="time of a call (ms)")
ax.set_xticks(n, labels=n)
ax.set_xticks([], minor=True)
ax.legend()
plt.show()

# %% [markdown]
# Doubling $n$ makes the Hessian four times as large and the product twice. The times follow where arithmetic outweighs everything else. A
# single product of these sizes is mostly the start of its operations, so its line is flatter than the theory's slope 1. The Hessian's
# climbs towards slope 2. At $n = 10^6$, a small model today, it would have $10^{12}$ entries.
#
# ### Exercise: An exponent under a fixed cost (10 min)
#
# The start of the operations is a fixed cost $a$: a call takes $a + c\,n^p$. Find $p$ from measurements without noise. `n` and `cost` are NumPy
# arrays of the same length, 3 or more; `n` doubles from each entry to the next. Neither $a$ nor $c$ is known. Return a number.


# %%
def hidden_exponent(n, cost):
    return ...  # p, a number, where cost = a + c * n**p


exercises.hidden_exponent.check(hidden_exponent)

# %% [markdown]
# ## 4. Eager, graph, XLA
#
# The same Hessian can be computed one operation at a time from Python, as a graph that is traced once, or compiled by XLA,
# which fuses operations.
#
# **Predict.** A Hessian of 30 weights, a tiny one. By which factor is the graph faster than eager?

# %%
exercises.eager.guess(...)  # "less than 2", "2 to 5" or "more than 5"


# %%
def small(w):
    return tf.reduce_sum(tf.tanh(tf.reshape(w, (6, 5)) @ tf.ones((5, 4))) ** 2)


w = tf.random.normal((30,))
taken, first_call, matrices = {}, {}, {}
for way in ("eager", "graph", "xla"):
    run = derivatives.hessian(small, compile=way)
    begin = time.perf_counter()
    matrices[way] = run(w)
    first_call[way] = time.perf_counter() - begin
    taken[way] = fastest(lambda run=run: run(w))
print("graph more than 5 times faster than eager:", taken["graph"] < taken["eager"] / 5)
print("XLA more than 5 times faster than eager:  ", taken["xla"] < taken["eager"] / 5)

# %%
exercises.eager.reveal("more than 5" if taken["graph"] < taken["eager"] / 5 else "5 or less")

# %%
for way in ("graph", "xla"):
    assert taken[way] < taken["eager"] / 5
    np.testing.assert_allclose(matrices[way], matrices["eager"], rtol=1e-4, atol=1e-4)

# %% [markdown]
# The three matrices are the same, so the arithmetic is about the same. Nearly all of the eager time is Python, which starts the operations one
# by one, row of the Hessian after row.
#
# Compiling has its own price, paid once for each shape.
#
# **Predict.** The first call of the graph traces it. How many later calls does that cost?

# %%
exercises.tracing.guess(...)  # "about 2", "2 to 10" or "more than 10"

# %% alt="Bars on a logarithmic axis for eager, graph and XLA: the first calls of all three take long; later calls of graph and XLA are far shorter than eager ones."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
position = np.arange(3)
ax.bar(position - 0.2, [1e3 * first_call[way] for way in taken], 0.4, color=plots.GREY, label="first call")
ax.bar(position + 0.2, [1e3 * taken[way] for way in taken], 0.4, color=plots.BLUE, label="a later call")
ax.set_yscale("log")
ax.set_xticks(position, labels=["eager", "graph", "XLA"])
ax.set(title="A Hessian of 30 weights", xlabel="how it is run", ylabel="time of a call (ms)")
ax.legend()
plt.show()

# %%
exercises.tracing.reveal("more than 10" if first_call["graph"] > 10 * taken["graph"] else "10 or less")

# %% [markdown]
# For XLA it is more than 10 as well. What is called a few times only need not be compiled. What is called in a loop must be, and
# always with the same shapes.

# %%
for way in ("graph", "xla"):
    assert first_call[way] > 10 * taken[way]

# %% [markdown]
# ### Exercise: From which call on does compiling pay? (5 min)
#
# The first call of a graph takes `first_call` seconds, tracing included, and each later one `later_call`. Every eager call takes `eager_call`. Return the least number of calls
# after which the graph has taken *less* time in total than eager, or `None` where it never has. The call that traces counts as a call.


# %%
def pays_from(first_call, later_call, eager_call):
    return ...  # an integer, or None


exercises.pays.check(pays_from)

# %% [markdown]
# ## 5. Memory, predicted
#
# The size of a result is known from shapes alone. A Hessian over $n$ float32 weights takes $4 n^2$ bytes.
#
# **Predict.** How many GiB is the Hessian over the 268 800 weights of section 1's network?

# %%
exercises.gib.guess(...)  # a number

# %%
n = sum(int(tf.size(weight)) for weight in weights)
print("weights:", n)
print(f"Hessian: {4 * n**2 / 2**30:.1f} GiB")

# %%
exercises.gib.reveal(4 * n**2 / 2**30)

# %%
assert n == 784 * width + width * width + width * 10
if width == 256:
    assert n == 268_800
    assert f"{4 * n**2 / 2**30:.1f}" == "269.2"

# %% [markdown]
# ### Exercise: Bytes, before you allocate them (5 min)
#
# A network with a million weights maps a batch of 256 examples of 784 pixels to 10 scores for each; the loss is one number. How many bytes does each
# of these results take in float32? An expression such as `4 * weight_count` will do.

# %%
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {  # in bytes, float32
    "the gradient of the loss": ...,
    "the gradient of each example's loss": ...,
    "the Jacobian of all scores by the weights": ...,
    "batch_jacobian of the scores by the pixels": ...,
    "the Jacobian of all scores by all pixels": ...,
    "the Hessian over the weights": ...,
    "a Hessian-vector product": ...,
}

exercises.fits.check(size)

# %% [markdown]
# Ask `tapelab.derivatives` for it.
#
# **Predict.** Does the process die, does TensorFlow report that memory has run out, or does something else happen?

# %%
exercises.dies.guess(...)  # "the process dies", "memory runs out" or "an error before anything is allocated"

# %%
try:
    derivatives.hessian(loss)(weights, x, targets)
    message = "no error"
except derivatives.MemoryLimitError as error:
    message = str(error)
print(message.split(" bytes")[0].rsplit(" (", 1)[0])

# %%
exercises.dies.reveal("memory runs out" if message == "no error" else "an error before anything is allocated")

# %% [markdown]
# The library predicts the blocks of the matrix and the copy that it takes to join the rows of the largest, about 1.7 times the matrix in all, and
# refuses before it allocates. The rest of its message names what to use instead: `hvp`, the product with a vector, which is no larger than the weights.

# %%
product = derivatives.hvp(loss)(vectors, [weight.value() for weight in weights], x, targets)
print("elements of the product:", sum(int(tf.size(part)) for part in product))

# %%
assert f"a matrix of shape ({n}, {n})" in message
if width == 256:
    assert "would need about 470.1 GiB" in message
assert "hvp" in message
assert [part.shape for part in product] == [weight.shape for weight in weights]
for part, by_tapes in zip(product, hessian_vector_product(), strict=True):
    np.testing.assert_allclose(part, by_tapes, rtol=0, atol=1e-3 * np.max(np.abs(by_tapes)))

# %% [markdown]
# The result is not all that is held. While it runs, a tape keeps what it recorded, and forward mode keeps nothing that lies behind it. As in notebook
# [04](04_recording_control.ipynb), weak references tell which tensors are still alive after a chain of layers.
#
# **Predict.** A chain of 24 layers, each a matrix product and a `tanh`. How many of the 24 results of `tanh` are still alive at its end, in reverse mode and in forward mode?

# %%
chain = [tf.random.normal((32, 32)) / np.sqrt(32) for _ in range(24)]
start = tf.random.normal((1, 32))


def alive(references):
    """How many of the tensors behind weak references still exist."""
    gc.collect()
    return sum(reference() is not None for reference in references)


def held_by_reverse(layers):
    """The number of values that a tape keeps."""
    with tf.GradientTape() as tape:
        tape.watch(start)
        h, values = start, []
        for weight in chain[:layers]:
            h = tf.tanh(h @ weight)
            values.append(weakref.ref(h))
    return alive(values)


def held_by_forward(layers):
    """The number of values, and of their tangents, that forward mode keeps."""
    with tf.autodiff.ForwardAccumulator(start, tf.ones_like(start)) as accumulator:
        h, values, tangents = start, [], []
        for weight in chain[:layers]:
            h = tf.tanh(h @ weight)
            values.append(weakref.ref(h))
            tangents.append(weakref.ref(accumulator.jvp(h)))
    return alive(values), alive(tangents)


held = {layers: (held_by_reverse(layers), *held_by_forward(layers)) for layers in (6, 12, 24)}
for layers, (record, values, tangents) in held.items():
    print(f"{layers:2} layers: reverse mode {record:2} values, forward mode {values} value and {tangents} tangent")

# %% [markdown]
# The record grows with every layer. Forward mode holds the last layer's value and its tangent, however many layers there were. One record serves all
# backward passes, and one value all tangents. Passes that run at once need a tangent each, or on the way back a cotangent each. For layers of one width $w$ in
# float32 that makes
#
# $$\text{forward: } 4w\,(1 + \text{inputs}), \qquad \text{reverse: } 4w\,(\text{layers} + \text{outputs})$$
#
# bytes, beside the Jacobian itself, which is the same in both.

# %%
assert held == {layers: (layers, 1, 1) for layers in (6, 12, 24)}

# %% [markdown]
# Move the sliders of the next figure. On the left, the solid line is where both modes take the same number of passes, and on the dashed one they hold the same
# number of bytes; the layers have 256 units.
#
# **Predict.** Between the two lines, one mode takes fewer passes and the other holds less. Which one takes fewer passes? What happens to the dashed line when there is one layer only?

# %% alt="On the left a plane of inputs and outputs on logarithmic axes, divided by a diagonal where both modes take the same number of passes; a dashed line of equal memory bends away below it. A point for 16 inputs and 8 outputs lies between the two lines. On the right, bars: reverse mode takes 8 passes and forward mode 16, but forward mode holds 17 KiB and reverse mode 32."
modes.figure().show()

# %% [markdown]
# Between the lines it is reverse mode that takes fewer passes, and its record that makes it hold more. With one layer the record is as small as
# forward mode's one value, and the lines are one. With many inputs and few outputs, as in training, nothing helps forward mode.

# %%
assert modes.passes("reverse", 16, 8) < modes.passes("forward", 16, 8)
assert modes.held_bytes("reverse", 16, 8, layers=24) > modes.held_bytes("forward", 16, 8, layers=24)
assert modes.break_even(16, layers=1) == 16

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
assert numerical.shape == by_tapes.shape == (width, 10)
assert error < 1e-3

# %% [markdown]
# ## Recap
#
# - Counted in multiplications, a gradient costs less than three forward passes and a Hessian–vector product two to three gradients, whatever the number of weights (section 1).
# - A Jacobian costs the smaller of its two sides in passes, if you choose the mode by its shape (section 2).
# - On logarithmic axes an exponent is a slope: a Hessian's memory grows with the square of the number of weights, a product's with the number, and their times tend to the same (section 3).
# - At small sizes the time is Python's: compile what is called more than a few times (section 4).
# - Memory follows from shapes: compute it before you allocate it. Reverse mode also holds its record, which grows with every layer (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | timing the first call | tracing, many times a later call | call once, then time |
# | timing one call | the machine's other work | the fastest of several |
# | a tall Jacobian in reverse mode | hundreds of times too many passes | forward mode |
# | a small Hessian in eager mode | Python's time, not arithmetic's | a graph, or XLA |
# | a Hessian where a product would do | memory that grows with $n^2$ | `hvp`, or two tapes |
#
# **Read next:** you have reached the last notebook; [00 Start here](00_start_here.ipynb) has the map of the collection.
