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
# # Jacobians
#
# The gradient of a target with many elements is the gradient of their sum: it no longer tells which element did what.
# **How does each output depend on each input, and what does it cost to know?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/09_jacobians.ipynb)
#
# **Prerequisites:** [08 Higher-order gradients](08_higher_order_gradients.ipynb) · **Time:** about 30 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - get one derivative for each element of a target with `tape.jacobian` (section 1),
# - read a Jacobian's axes, and recover the gradient from it (section 2),
# - ask for several sources at once, and for several targets (section 3),
# - count the passes that a Jacobian takes, and choose between reverse and forward mode (section 4),
# - predict the bytes that a Jacobian takes before anything is allocated (section 5).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import time

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import jacobians as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
points = 201  # points of the curve in section 1
batch = 7  # examples
inputs = 5  # features of an example
outputs = 10  # units of the layer in sections 2 to 4
width = 1024  # units of the square layer that section 4 times
hidden = 4096  # hidden units of the network in section 5

# %%
runtime.start(seed)
tf.get_logger().setLevel("ERROR")  # section 4 says which warning this holds back

# %% [markdown]
# ## 1. A scalar source
#
# You want the derivative of the sigmoid at many points at once. Give all points one common knob: with
# $y_k = \sigma(x_k + \delta)$, the derivative $\partial y_k/\partial\delta$ at $\delta = 0$ is $\sigma'(x_k)$. There is one source, a
# scalar, and one target with many elements.
#
# **Predict.** `x` has shape (201,). What does `tape.gradient(y, delta)` return: 201 derivatives, or one number?

# %%
x = tf.linspace(-10.0, 10.0, points)
delta = tf.Variable(0.0)

with tf.GradientTape(persistent=True) as tape:
    y = tf.sigmoid(x + delta)

summed = tape.gradient(y, delta)
print("y:       ", y.shape)
print("gradient:", summed.shape)

# %% [markdown]
# One number: `gradient` adds the derivatives of all elements of its target. `jacobian` keeps them apart.
#
# **Predict.** What is the shape of `tape.jacobian(y, delta)`?

# %%
exercises.scalar_source.guess(...)  # a shape is a tuple

# %%
dy_dx = tape.jacobian(y, delta)
del tape
print("y:       ", y.shape)
print("jacobian:", dy_dx.shape)

# %%
exercises.scalar_source.reveal(dy_dx.shape)

# %%
assert y.shape == (points,)
assert summed.shape == ()
assert dy_dx.shape == (points,)
np.testing.assert_allclose(tf.reduce_sum(dy_dx), summed, rtol=1e-5)
np.testing.assert_allclose(dy_dx, y * (1.0 - y), rtol=1e-5, atol=1e-7)

# %% [markdown]
# The Jacobian has one entry for each element of `y`, its sum is the gradient, and each entry is what calculus says:
# $\sigma' = \sigma\,(1 - \sigma)$, at most one quarter.

# %% alt="An S-shaped solid curve, the sigmoid, rises from 0 to 1 between -10 and 10; a dashed bell-shaped curve, its derivative, peaks at 0.25 where x is 0."
plots.curve_with_derivative(
    x, y, dy_dx, title="The sigmoid and its derivative", label="sigmoid(x)", derivative_label="jacobian"
)
plt.show()

# %%
assert abs(float(x[np.argmax(dy_dx)])) <= 20.0 / (points - 1)  # the peak lies at zero, as near as the points allow
assert np.max(dy_dx) <= 0.25 + 1e-6

# %% [markdown]
# ## 2. A tensor source
#
# With a source that has axes of its own, the result has the **target's axes first, then the source's**:
# `jacobian[i..., j...]` is the derivative of `target[i...]` with respect to `source[j...]`. For two vectors this is the matrix of
# the textbooks, $J_{ij} = \partial y_i/\partial x_j$: one row for each output, one column for each input.
#
# Where target and source have the same size, the shape cannot tell you which is which. Values can. Take
# $(a, b) \mapsto (a\,b,\ a + 3b)$ at $a = 2$, $b = 5$.
#
# **Predict.** Write down the 2 × 2 Jacobian. Which entry is in the upper right: $\partial(ab)/\partial b$ or $\partial(a + 3b)/\partial a$?

# %%
exercises.upper_right.guess(...)  # the number in the upper right

# %%
ab = tf.constant([2.0, 5.0])

with tf.GradientTape() as tape:
    tape.watch(ab)
    a, b = tf.unstack(ab)
    pair = tf.stack([a * b, a + 3.0 * b])

square = tape.jacobian(pair, ab)
print(square.numpy())

# %%
exercises.upper_right.reveal(square[0, 1])

# %%
np.testing.assert_array_equal(square, [[5.0, 2.0], [1.0, 3.0]])

# %% [markdown]
# Now a dense layer. A batch of 7 examples with 5 features each goes through 10 units: the output has shape (7, 10), the kernel
# has shape (5, 10).
#
# **Predict.** What is the shape of the Jacobian of the output with respect to the kernel? How many entries does it have?

# %%
exercises.kernel_shape.guess(...)  # the shape

# %%
x = tf.random.normal((batch, inputs))
layer = tf.keras.layers.Dense(outputs, activation="tanh")

with tf.GradientTape(persistent=True) as tape:
    y = layer(x)

jacobian = tape.jacobian(y, layer.kernel)
print("output:  ", y.shape)
print("kernel:  ", layer.kernel.shape)
print("jacobian:", jacobian.shape, "with", int(tf.size(jacobian)), "entries")

# %%
exercises.kernel_shape.reveal(jacobian.shape)

# %%
assert y.shape == (batch, outputs)
assert layer.kernel.shape == (inputs, outputs)
assert jacobian.shape == (batch, outputs, inputs, outputs)

# %% [markdown]
# `jacobian[n, o, i, k]` says how unit `o`, on example `n`, depends on the kernel's element `[i, k]`. `gradient` is the
# gradient of the sum of all target elements.
#
# **Predict.** Over which axes do you have to sum the Jacobian to get the gradient, the first two or the last two?

# %%
gradient = tape.gradient(y, layer.kernel)
del tape
from_jacobian = tf.reduce_sum(jacobian, axis=[0, 1])
print("gradient:                           ", gradient.shape)
print("jacobian summed over target's axes: ", from_jacobian.shape)
print("largest difference below 1e-6:      ", bool(tf.reduce_max(tf.abs(from_jacobian - gradient)) < 1e-6))

# %% [markdown]
# Over the target's axes, the first two. The remaining difference, about 2e-7 here, is float32 rounding: the two add the same numbers
# in another order.

# %%
assert gradient.shape == from_jacobian.shape == (inputs, outputs)
np.testing.assert_allclose(from_jacobian, gradient, rtol=1e-5, atol=3e-6)

# %% [markdown]
# **Predict.** Unit `o` reads column `o` of the kernel and no other. What part of the Jacobian is zero?

# %% alt="A wide matrix of 10 rows and 50 columns, white except for one diagonal line in each of its five blocks: in each block an output unit depends on its own kernel column alone."
ax = plots.matrix(
    tf.reshape(jacobian[0], (outputs, inputs * outputs)),
    title="The Jacobian of the first example, one block for each input feature",
    xlabel="kernel element; within a block, the unit that it feeds",
    ylabel="output unit",
    ax=plt.subplots(figsize=(9, 2.6), layout="constrained")[1],
)
for edge in range(1, inputs):
    ax.axvline(edge * outputs - 0.5, color="black", linewidth=0.6)
plt.show()

# %% [markdown]
# Nine entries of ten are zero, and known to be zero beforehand: one unit does not read another unit's column. The rest has a closed form,
# since $y_{no} = \tanh(\sum_i x_{ni} K_{io} + b_o)$:
#
# $$\frac{\partial y_{no}}{\partial K_{ik}} = (1 - y_{no}^2)\; x_{ni}\; \delta_{ok}.$$
#
# `tape.jacobian` knows nothing of this. It computes and stores every zero.

# %%
closed_form = np.einsum("no,ni,ok->noik", 1.0 - y**2, x, np.eye(outputs))
np.testing.assert_allclose(jacobian, closed_form, rtol=1e-4, atol=1e-6)
assert np.count_nonzero(jacobian) <= batch * outputs * inputs  # one entry of every ten

# %% [markdown]
# ### Exercise: The chain rule for tensors (10 min)
#
# $z$ depends on $y$, and $y$ depends on $x$. You have the two Jacobians as `tape.jacobian` returns them: `dz_dy` of $z$ with respect to $y$, and `dy_dx` of $y$ with
# respect to $x$. Return the Jacobian of $z$ with respect to $x$, with the axes in `jacobian`'s order. $x$, $y$ and $z$ may have any number of axes; `rank` is
# that of $y$. For example: $z$ of shape (3,), $y$ of shape (7, 6) and $x$ of shape (5, 4), so `rank` is 2.


# %%
def chain(dz_dy, dy_dx, rank):
    return ...  # the Jacobian of z with respect to x


exercises.chain.check(chain)

# %% [markdown]
# ## 3. Several sources, several targets
#
# `sources` may be a container, as in `gradient`: a list, a tuple, a dictionary, nested or not.
#
# **Predict.** The bias has shape (10,). What are the two shapes in the result below?

# %%
with tf.GradientTape(persistent=True) as tape:
    y = layer(x)
    size = tf.reduce_sum(y**2, axis=1)  # a second target, one number for each example

both = tape.jacobian(y, {"kernel": layer.kernel, "bias": layer.bias})
for name, value in both.items():
    print(f"{name + ':':8}", value.shape)

# %%
assert list(both) == ["kernel", "bias"]
assert both["kernel"].shape == (batch, outputs, inputs, outputs)
assert both["bias"].shape == (batch, outputs, outputs)
np.testing.assert_allclose(both["kernel"], jacobian, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(both["bias"], np.einsum("no,ok->nok", 1.0 - y**2, np.eye(outputs)), rtol=1e-4, atol=1e-6)

# %% [markdown]
# A source that the target does not depend on gives `None`, or zeros of the full shape if you ask for them.

# %%
unused = tf.Variable(tf.zeros((3, 4)))

nothing = tape.jacobian(y, unused)
zeros = tape.jacobian(y, unused, unconnected_gradients="zero")
print("by default:                    ", nothing)
print('unconnected_gradients="zero":  ', zeros.shape)

# %%
assert nothing is None
assert zeros.shape == (batch, outputs, 3, 4)
assert not np.any(zeros)

# %% [markdown]
# **Predict.** `gradient` takes a list of targets and adds their gradients. What does `jacobian` do with a list of targets?

# %%
assert tape.gradient([y, size], layer.kernel).shape == (inputs, outputs)  # gradient takes the list

try:
    refused = tape.jacobian([y, size], layer.kernel)
except AttributeError as error:
    refused = f"{type(error).__name__}: {error}"
print(refused)

# %% [markdown]
# `target` has to be one tensor: `jacobian` asks for its shape. The message does not say so, so it pays to have seen it once. Two
# cures: call `jacobian` once for each target, on a persistent tape …

# %%
assert refused == "AttributeError: 'list' object has no attribute 'shape'"

one_by_one = {name: tape.jacobian(target, layer.kernel) for name, target in {"y": y, "size": size}.items()}
del tape
for name, value in one_by_one.items():
    print(f"{name + ':':6}", value.shape)

# %%
assert one_by_one["y"].shape == (batch, outputs, inputs, outputs)
assert one_by_one["size"].shape == (batch, inputs, outputs)

# %% [markdown]
# … or flatten and concatenate the targets **inside** the tape, and split the result. Outside it, the concatenation would not be
# recorded, and the Jacobian would be `None`.

# %%
with tf.GradientTape() as tape:
    y = layer(x)
    size = tf.reduce_sum(y**2, axis=1)
    together = tf.concat([tf.reshape(y, [-1]), size], axis=0)

joined = tape.jacobian(together, layer.kernel)
of_y, of_size = tf.split(joined, [batch * outputs, batch])
print("together:", joined.shape)
print("split:   ", of_y.shape, "and", of_size.shape)

# %%
assert joined.shape == (batch * outputs + batch, inputs, outputs)
np.testing.assert_allclose(tf.reshape(of_y, one_by_one["y"].shape), one_by_one["y"], rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(of_size, one_by_one["size"], rtol=1e-5, atol=1e-6)

# %% [markdown]
# ### Exercise: Five shapes, nothing computed (4 min)
#
# A batch of 7 examples, `x` of shape (7, 5), goes through a layer with a `kernel` of shape (5, 6) and a `bias` of shape (6,):
#
# - `y = tf.tanh(x @ kernel + bias)`,
# - `size = tf.reduce_sum(y**2, axis=1)`,
# - `loss = tf.reduce_mean(size)`,
# - `g`, the *gradient* of `loss` with respect to `kernel`, itself recorded by an outer tape.
#
# Below, `"size by x"` stands for `tape.jacobian(size, x)`, and so on. Give the five shapes, as tuples.

# %%
five_shapes = {
    "y by bias": ...,
    "size by kernel": ...,
    "size by x": ...,
    "loss by x": ...,
    "g by bias": ...,
}
exercises.shapes.check(five_shapes)

# %% [markdown]
# ## 4. What it costs: passes
#
# A backward pass starts at one target element and reaches every source element: it gives one **row** of the Jacobian. To
# count passes, put an identity into the path that notes each upstream gradient it meets.

# %%
upstreams = []  # the shape of each upstream gradient that came through


@tf.custom_gradient
def counted(tensor):
    """The identity; notes every backward pass."""

    def backward(upstream):
        upstreams.append(tuple(upstream.shape))
        return upstream

    return tf.identity(tensor), backward


with tf.GradientTape() as tape:
    z = counted(tf.constant(3.0) * layer.bias)
_ = tape.gradient(z, layer.bias)
print("upstream shapes of one gradient call:", upstreams)

# %%
assert upstreams == [(outputs,)]

# %% [markdown]
# With `experimental_use_pfor=False`, `jacobian` makes its backward passes one after the other.
#
# **Predict.** The Jacobian of section 2 has 7 · 10 · 5 · 10 = 3500 entries. How many backward passes does it take?

# %%
exercises.passes.guess(...)  # a number

# %%
upstreams.clear()
with tf.GradientTape(persistent=True) as tape:
    y = counted(layer(x))

looped = tape.jacobian(y, layer.kernel, experimental_use_pfor=False)
print("backward passes:", len(upstreams))

# %%
exercises.passes.reveal(len(upstreams))

# %% [markdown]
# The size of the source does not matter: a kernel with a million elements would
# take 70 passes too, each of them longer.

# %%
assert len(upstreams) == batch * outputs
assert looped.shape == (batch, outputs, inputs, outputs)
np.testing.assert_allclose(looped, jacobian, rtol=1e-5, atol=1e-6)

# %% [markdown]
# A loop of passes needs a persistent tape. On any other tape it stops with a `RuntimeError`.

# %%
with tf.GradientTape() as used_up:
    y_again = layer(x)

try:
    used_up.jacobian(y_again, layer.kernel, experimental_use_pfor=False)
    message = "no error"
except RuntimeError as error:
    message = str(error)
print("asks for persistent=True:", "persistent=True" in message)

# %%
assert "persistent=True" in message

# %% [markdown]
# By default `jacobian` does not loop. It traces **one** backward pass into a graph, and rewrites that graph so that each of its
# operations handles all 70 upstream gradients in a stack. The arithmetic is that of 70 passes; the overhead is that of one.
#
# **Predict.** You call `tape.jacobian` three times, eagerly. How often is the backward pass traced? And three times within one
# `tf.function`?

# %%
exercises.traces.guess([..., ...])  # in three eager calls, in three compiled calls

# %%
upstreams.clear()
for _ in range(3):
    vectorised = tape.jacobian(y, layer.kernel)
del tape
eager_traces = len(upstreams)


@tf.function
def compiled(x):
    with tf.GradientTape() as tape:
        y = counted(layer(x))
    return tape.jacobian(y, layer.kernel)


upstreams.clear()
for _ in range(3):
    from_function = compiled(x)
print("traces, three eager calls:   ", eager_traces)
print("traces, three compiled calls:", len(upstreams))

# %%
exercises.traces.reveal([eager_traces, len(upstreams)])

# %% [markdown]
# Tracing and compiling takes far longer than the arithmetic of a small Jacobian. After five such calls TensorFlow
# warns of *retracing*; this is the warning that the cell at the top holds back. In a training loop, put `jacobian` inside
# a `tf.function`.

# %%
assert eager_traces == 3
assert len(upstreams) == 1
np.testing.assert_allclose(vectorised, looped, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(from_function, looped, rtol=1e-5, atol=1e-6)

# %% [markdown]
# There is a second way. **Forward mode** starts at one source element and carries its derivative along with the computation: one forward
# pass gives one **column** of the Jacobian. `tf.autodiff.ForwardAccumulator` does it. Here are both ways, written out for a function of
# a vector; `tf.map_fn` runs the passes one after the other.


# %%
def by_rows(f, x):
    """The Jacobian of f at x, one backward pass for each output: shape (outputs, inputs)."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = counted(f(x))

    def row(unit):
        return tape.gradient(y, x, output_gradients=unit)

    return tf.map_fn(row, tf.eye(y.shape[0]))


def by_columns(f, x):
    """The Jacobian of f at x, one forward pass for each input: shape (outputs, inputs)."""

    def column(unit):
        with tf.autodiff.ForwardAccumulator(primals=x, tangents=unit) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0])))


# %% [markdown]
# The test function is a network with one wide square layer, $f(x) = B \tanh(H \tanh(Ax))$. It counts its own evaluations.

# %%
evaluations = []
square_layer = tf.random.normal((width, width)) / np.sqrt(width)


def make_network(outs, ins):
    """A function of a vector with `ins` elements, to a vector with `outs` elements."""
    entrance = tf.random.normal((width, ins)) / np.sqrt(ins)
    exit_layer = tf.random.normal((outs, width)) / np.sqrt(width)

    def f(x):
        evaluations.append(outs)
        h = tf.tanh(tf.linalg.matvec(entrance, x))
        return tf.linalg.matvec(exit_layer, tf.tanh(tf.linalg.matvec(square_layer, h)))

    return f


f, point = make_network(3, 2), tf.random.normal((2,))
rows, columns = by_rows(f, point), by_columns(f, point)
print("by rows:   ", rows.shape)
print("by columns:", columns.shape)

# %%
assert rows.shape == columns.shape == (3, 2)
np.testing.assert_allclose(rows, columns, rtol=1e-3, atol=1e-4)

# %% [markdown]
# **Predict.** Three Jacobians: tall, square and wide. How many backward passes do they take by rows, and how many
# forward passes by columns?

# %%
shapes = [(64, 2), (32, 4), (12, 12), (4, 32), (2, 64)]
problems = {(m, n): (make_network(m, n), tf.random.normal((n,))) for m, n in shapes}
counts = {}
for m, n in shapes[::2]:
    upstreams.clear()
    rows = by_rows(*problems[m, n])
    evaluations.clear()
    columns = by_columns(*problems[m, n])
    counts[m, n] = len(upstreams), len(evaluations)
    np.testing.assert_allclose(rows, columns, rtol=1e-3, atol=1e-4)
for (m, n), (backward, forward) in counts.items():
    print(f"{m:2} outputs, {n:2} inputs: {backward:2} backward passes or {forward:2} forward passes")

# %% [markdown]
# Backward passes equal outputs, forward passes equal inputs. So take columns for a tall Jacobian and rows for a wide one. A
# loss is the extreme case, one output and a million inputs: this is why training runs in reverse mode.

# %%
assert counts == {(64, 2): (64, 2), (12, 12): (12, 12), (2, 64): (2, 64)}

# %% [markdown]
# ### Exercise: As few passes as possible (12 min)
#
# Write `jacobian_of(f, x)` for a function `f` from a vector to a vector, `x` of shape (inputs,). Return the Jacobian, of shape (outputs, inputs) and of the dtype of `x`,
# in as few passes as the two modes allow: one forward pass for each input, or one backward pass for each output, whichever are fewer. Evaluating `f` without
# differentiating it is not a pass. A call of `tape.jacobian` counts as one pass for each target element.


# %%
def jacobian_of(f, x):
    return ...  # shape (outputs, inputs)


exercises.fewest_passes.check(jacobian_of)

# %% [markdown]
# **Predict.** Does the clock follow the counts? The tallest of these Jacobians has 32 times as many rows as columns. Is the way by columns 32
# times as fast?
#
# Both ways are compiled for this, so that Python's overhead stays out of the measurement.

# %%
compiled_rows, compiled_columns = tf.function(by_rows), tf.function(by_columns)


def seconds(compute, f, x, repeats=6):
    """The least wall-clock time of a few runs of compute(f, x), after one that traces it."""
    times = []
    for _ in range(1 + repeats):
        start = time.perf_counter()
        _ = compute(f, x).numpy()
        times.append(time.perf_counter() - start)
    return min(times)


time_ratio = [seconds(compiled_rows, *problem) / seconds(compiled_columns, *problem) for problem in problems.values()]

# %% alt="Time by rows over time by columns against outputs per input, both on logarithmic axes: the measured points rise near the dashed line of the ratio of passes."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
pass_ratio = [m / n for m, n in shapes]
ax.axhline(1.0, color=plots.GREY, linewidth=0.8)
ax.plot(pass_ratio, pass_ratio, "--", color=plots.GREY, label="ratio of passes")
ax.plot(pass_ratio, time_ratio, "o-", color=plots.BLUE, label="ratio of times, measured")
ax.set_xscale("log", base=2)
ax.set_yscale("log", base=2)
ax.set(
    title="Rows or columns? Above 1, columns are faster", xlabel="outputs per input", ylabel="time by rows / by columns"
)
ax.legend()
plt.show()

# %% [markdown]
# The clock follows the counts, but not to the letter. The rows share one evaluation of the function, while each forward pass
# computes the function again; and every measurement holds some overhead that the number of passes does not change.

# %%
# Only what holds on any machine, busy or not: columns do far better on the tallest Jacobian than on the widest.
assert time_ratio[0] > 4 * time_ratio[-1]

# %% [markdown]
# ### Exercise: A band in three passes (20 min)
#
# *This one needs an idea that the text does not spell out.*
#
# In a discretised differential equation each output depends on its own input and the two next to it: $y_i$ depends on $x_{i-1}$, $x_i$ and $x_{i+1}$ alone. The Jacobian of
# shape $(n, n)$ is zero outside a band of three diagonals. `f` is such a function of a vector, `x` has shape $(n,)$ with $n \ge 5$. Return the whole Jacobian, zeros included,
# of the dtype of `x`, in at most **three** forward or backward passes, whatever $n$ is. A call of `tape.jacobian` counts as $n$.


# %%
def banded_jacobian(f, x):
    return ...  # shape (n, n)


exercises.band.check(banded_jacobian)

# %% [markdown]
# ## 5. What it costs: bytes
#
# The size of a Jacobian is the *product* of the sizes of target and source. Two shapes and a dtype are enough to know it.


# %%
def jacobian_bytes(target_shape, source_shape, dtype=tf.float32):
    """Bytes that a Jacobian will take, from the shapes of its target and its source."""
    return int(np.prod(tuple(target_shape) + tuple(source_shape))) * dtype.size


predicted = jacobian_bytes(y.shape, layer.kernel.shape)
print("predicted:", predicted, "bytes")
print("allocated:", jacobian.numpy().nbytes, "bytes")

# %%
assert predicted == jacobian.numpy().nbytes

# %% [markdown]
# **Predict.** A layer takes images of 784 pixels to 512 units; its kernel has 1.5 MiB. You want the Jacobian of its output with respect to its
# kernel, for a batch of 128. Does it fit into the memory of your machine?

# %%
exercises.gibibytes.guess(...)  # how many GiB (1 GiB = 2**30 bytes)?

# %%
large = jacobian_bytes((128, 512), (784, 512))
print(f"kernel:   {4 * 784 * 512 / 2**20:.1f} MiB")
print(f"jacobian: {large / 2**30:.1f} GiB")

# %%
exercises.gibibytes.reveal(large / 2**30)

# %% [markdown]
# It is 65 536 times as large as the kernel. So
# predict first, and ask for less: a gradient, one row, or one product with a vector.

# %%
assert large == 98 * 2**30
assert large == 65536 * (4 * 784 * 512)

# %% [markdown]
# The result is not all. The stack of backward passes that `jacobian` runs by default holds **every intermediate gradient** once for
# each target element. A network with a wide hidden layer shows it: 5 features, 4096 hidden units, 6 outputs.
#
# A traced graph knows the shapes of its tensors before it has run. Read them there: nothing is computed in this cell.

# %%
first = tf.random.normal((inputs, hidden)) / np.sqrt(inputs)
second = tf.random.normal((hidden, 6)) / np.sqrt(hidden)


@tf.function
def wide_jacobian(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x @ first) @ second
    return tape.jacobian(y, x)


def largest_tensor(function, *arguments):
    """Bytes of the largest tensor in the function's graph, which is traced and not run."""
    graph = function.get_concrete_function(*arguments).graph
    tensors = [tensor for operation in graph.get_operations() for tensor in operation.outputs]
    return max((tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors)


# %% [markdown]
# **Predict.** The result has shape (7, 6, 7, 5). The activations of the hidden layer have shape (7, 4096). What is the largest
# tensor on the way to this Jacobian?

# %%
result_bytes = jacobian_bytes((batch, 6), (batch, inputs))
activation_bytes = 4 * batch * hidden
stack_bytes = largest_tensor(wide_jacobian, tf.TensorSpec((batch, inputs)))
print("the Jacobian itself:           ", result_bytes, "bytes")
print("the hidden layer's activations:", activation_bytes, "bytes")
print("the largest tensor on the way: ", stack_bytes, "bytes")

# %% [markdown]
# The largest tensor is the hidden layer's gradient, stacked 42 times: shape (42, 7, 4096), one slice for each of the 7 · 6
# target elements. It is hundreds of times as large as the result.

# %%
assert result_bytes == wide_jacobian(x).numpy().nbytes
assert stack_bytes == batch * 6 * activation_bytes
assert stack_bytes > 100 * result_bytes

# %% [markdown]
# Where the stack does not fit, `experimental_use_pfor=False` trades time for memory: one pass at a time, one slice at a time.
# Count what passes through the hidden layer.

# %%
upstreams.clear()
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    wide = counted(tf.tanh(x @ first)) @ second

one_at_a_time = tape.jacobian(wide, x, experimental_use_pfor=False)
del tape
print("backward passes:        ", len(upstreams))
print("upstream gradient shape:", upstreams[0])

# %%
assert upstreams == [(batch, hidden)] * (batch * 6)
np.testing.assert_allclose(one_at_a_time, wide_jacobian(x), rtol=1e-3, atol=1e-5)

# %% [markdown]
# Look at the shape of this Jacobian again: (7, 6, 7, 5). Examples do not influence each other here, so six of every seven entries are zero.
# `batch_jacobian` leaves them out: that is the subject of [11 Batch Jacobians](11_batch_jacobians.ipynb).

# %%
for n in range(batch):
    for m in range(batch):
        assert np.any(one_at_a_time[n, :, m]) == (n == m)

# %% [markdown]
# ## 6. Check it independently
#
# Central differences in float64 know nothing of tapes: two evaluations for each source element, in NumPy. They use the
# same order of axes.

# %%
x64, kernel64, bias64 = (np.asarray(value, np.float64) for value in (x, layer.kernel, layer.bias))


def layer_of_kernel(kernel):
    return np.tanh(x64 @ kernel + bias64)


def pair_of(ab):
    return np.stack([ab[0] * ab[1], ab[0] + 3.0 * ab[1]])


numerical = gradcheck.numerical_jacobian(layer_of_kernel, kernel64)
numerical_square = gradcheck.numerical_jacobian(pair_of, [2.0, 5.0])
print("the layer's Jacobian agrees:", numerical.shape, np.allclose(jacobian, numerical, rtol=1e-4, atol=1e-5))
print("the square one agrees:      ", numerical_square.shape, np.allclose(square, numerical_square))

# %%
assert numerical.shape == jacobian.shape
np.testing.assert_allclose(jacobian, numerical, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(square, numerical_square, rtol=1e-6)

# %% [markdown]
# ## Recap
#
# - `tape.jacobian` gives one derivative for each element of the target, where `gradient` gives their sum (section 1).
# - The target's axes come first, then the source's; summed over the target's axes, the Jacobian is the gradient (section 2).
# - Sources may come in a container; the target is one tensor, so call again or concatenate inside the tape (section 3).
# - Reverse mode takes one pass for each output, forward mode one for each input: rows for a wide Jacobian, columns for a tall one (section 4).
# - A Jacobian takes target size × source size × bytes of an element, and the stacked passes may take far more; both are known from shapes alone (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | target and source of the same size | a transposed Jacobian has the right shape | check one entry by its value |
# | a list of targets | `AttributeError` about `shape` | one call for each target, or concatenate inside the tape |
# | a source that the target does not use | `None` | `unconnected_gradients="zero"`, if zeros are what you mean |
# | `experimental_use_pfor=False` on an ordinary tape | `RuntimeError` | `persistent=True` |
# | `jacobian` called eagerly in a loop | slow, and a warning of retracing | put it in a `tf.function` |
# | a wide layer on the way | out of memory, though the result is small | `experimental_use_pfor=False` |
#
# **Read next:** [10 Hessians and Newton's method](10_hessians_and_newton.ipynb) takes the Jacobian of a gradient;
# [11 Batch Jacobians](11_batch_jacobians.ipynb) takes one Jacobian for each example.
