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
# # Batch Jacobians
#
# A network maps each example of a batch to an output of its own. The Jacobian of the whole batch pairs every output with every
# input of every other example as well, and most of that is zero.
# **What is the Jacobian of each example in a batch?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/11_batch_jacobians.ipynb)
#
# **Prerequisites:** [09 Jacobians](09_jacobians.ipynb) · **Time:** about 30 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - name the four axes of a batch's full Jacobian, and see that its examples are independent (section 1),
# - get one Jacobian for each example in three ways, and say why `batch_jacobian` is the cheap one (section 2),
# - say what `batch_jacobian` returns when the examples are *not* independent (section 3),
# - test for independence with one more backward pass, by hand and with a helper that always does (sections 4 and 6),
# - take second derivatives for each example without being handed silent zeros (section 5).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import batch_jacobians as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
batch = 7  # examples
inputs = 5  # features of an example
hidden = 8  # units of the first layer
outputs = 6  # units of the second layer

# %%
runtime.start(seed)
tf.get_logger().setLevel("ERROR")  # each eager Jacobian traces a graph, and TensorFlow would warn of that

# %% [markdown]
# ## 1. The full Jacobian of a batch
#
# Two dense layers with ELU activations take `x`, of shape (7, 5), to `y`, of shape (7, 6).
#
# **Predict.** What is the shape of `tape.jacobian(y, x)`, and what does each axis stand for?

# %%
exercises.full_shape.guess(...)  # a tuple of integers

# %%
x = tf.random.normal((batch, inputs))
layer1 = tf.keras.layers.Dense(hidden, activation="elu")
layer2 = tf.keras.layers.Dense(outputs, activation="elu")

with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = layer2(layer1(x))

full = tape.jacobian(y, x)
print("x:   ", x.shape)
print("y:   ", y.shape)
print("full:", full.shape)

# %%
exercises.full_shape.reveal(full.shape)

# %% [markdown]
# In short: **(batch, outs, batch, ins)**. The prose of TensorFlow's own guide names the
# axes in another order, with the inputs before the outputs. The shape settles it: the 6, which only the output has, stands in
# second place, and the 5, which only the input has, stands last.

# %%
assert x.shape == (batch, inputs)
assert y.shape == (batch, outputs)
assert full.shape == (batch, outputs, batch, inputs)

# %% [markdown]
# A value settles it again. Entry `full[m, o, n, i]` is the derivative of output `o` of example `m` with respect to input `i` of
# example `n`. So nudge one input of one example, and compare the change of all outputs with the slice that belongs to it.
#
# **Predict.** Input 3 of example 2 grows by 0.001. In which rows of `y`, which has one row for each example, do you expect a change?

# %%
nudge = np.zeros((batch, inputs), np.float32)
nudge[2, 3] = 1e-3
change = (layer2(layer1(x + nudge)) - layer2(layer1(x - nudge))) / 2e-3
changed_rows = [int(row) for row in np.flatnonzero(np.any(change != 0, axis=1))]
print("rows of y that change:", changed_rows)
print("full[:, :, 2, 3] tells:", [int(row) for row in np.flatnonzero(np.any(full[:, :, 2, 3] != 0, axis=1))])

# %%
assert changed_rows == [2]
np.testing.assert_allclose(full[:, :, 2, 3], change, atol=5e-3)

# %% [markdown]
# Only example 2 answers: no layer here mixes the examples. Look at all of it. For a fixed output `o` and a fixed input `i`, the
# slice `full[:, o, :, i]` is a (7, 7) matrix: which example's output depends on which example's input.
#
# **Predict.** How many of its 49 entries can differ from zero, and where do they lie?

# %%
exercises.nonzero.guess(...)  # how many

# %% alt="A matrix of 7 by 7 squares, white except for its diagonal: each example's output depends on the same example's input alone."
one_slice = full[:, 0, :, 0]
ax = plots.matrix(
    one_slice, title="Output 0 by input 0, for all pairs of examples", xlabel="example of x", ylabel="example of y"
)
ax.set_aspect("equal")
plt.show()

# %%
exercises.nonzero.reveal(np.count_nonzero(one_slice))

# %%
assert one_slice.shape == (batch, batch)
np.testing.assert_array_equal(one_slice, np.diag(np.diag(one_slice)))
assert np.count_nonzero(np.diag(one_slice)) == batch

# %% [markdown]
# Now all slices at once: one (7, 7) patch for each of the 6 · 5 pairs of an output and an input.

# %% alt="A grid of 6 by 5 patches; in every patch only the diagonal is coloured, the rest is white."
plots.batch_patches(
    full,
    title="The full Jacobian: every patch is diagonal",
    ax=plt.subplots(figsize=(6.5, 6.5), layout="constrained")[1],
)
plt.show()

# %% [markdown]
# Every patch is diagonal. Of the 1470 entries, 1260 are zeros that cost as much as the others.

# %%
same_example = np.eye(batch, dtype=bool)[
    :, None, :, None
]  # shape (batch, 1, batch, 1): True where both examples are one
assert not np.any(np.where(same_example, 0.0, full))
assert tf.size(full) == batch * outputs * batch * inputs

# %% [markdown]
# ## 2. One Jacobian for each example
#
# What you want has shape (batch, outs, ins) = (7, 6, 5): entry `[n, o, i]` is the derivative of output `o` with respect to input
# `i`, within example `n`. Two ways lead there from the full Jacobian.
#
# - **Sum** over the repeated batch axis: in each row of a patch, one number plus six zeros.
# - **Select** the diagonal of every patch. In `einsum`, a letter that stands twice takes the diagonal.
#
# **Predict.** `full` has shape (batch, outs, batch, ins). Over which axis do you sum to get (7, 6, 5)?

# %%
summed = tf.reduce_sum(full, axis=2)
selected = tf.einsum("bobi->boi", full)
print("summed:  ", summed.shape)
print("selected:", selected.shape)

# %%
assert summed.shape == selected.shape == (batch, outputs, inputs)
np.testing.assert_allclose(summed, selected, rtol=1e-6, atol=1e-7)

# %% [markdown]
# Both compute the large Jacobian first and then throw most of it away. `batch_jacobian` never makes it.

# %%
per_example = tape.batch_jacobian(y, x)
print("batch_jacobian:", per_example.shape)

# %%
assert per_example.shape == (batch, outputs, inputs)

# %%
difference = max(tf.reduce_max(tf.abs(per_example - other)).numpy() for other in (summed, selected))
print("no difference from the other two, up to rounding:", difference < 1e-6)

# %%
assert difference < 1e-6

# %% [markdown]
# How does it avoid the zeros? Take output 0 of *all* examples as one target, a vector of 7 elements. `gradient` differentiates the sum of that
# vector. As example `n` is moved by its own input alone, row `n` of the result is the derivative of example `n`'s output. One backward
# pass serves the whole batch.
#
# **Predict.** How many backward passes does that take for all outputs: 5, 6, 7 or 42?

# %%
exercises.passes.guess(...)

# %%
by_hand = []
with tf.GradientTape(persistent=True) as tape_by_hand:
    tape_by_hand.watch(x)
    columns = tf.unstack(layer2(layer1(x)), axis=1)  # one vector of shape (batch,) for each output

for column in columns:
    by_hand.append(tape_by_hand.gradient(column, x))  # shape (batch, ins), the gradient of the column's sum
del tape_by_hand
print("passes:", len(by_hand))
by_hand = tf.stack(by_hand, axis=1)
print("result:", by_hand.shape)

# %%
exercises.passes.reveal(len(columns))

# %%
assert by_hand.shape == (batch, outputs, inputs)
np.testing.assert_allclose(by_hand, per_example, rtol=1e-5, atol=1e-6)

# %% [markdown]
# TensorFlow's `batch_jacobian` does the same. Count its passes with an identity that notes every upstream gradient it meets;
# `experimental_use_pfor=False` makes the passes run one after the other.

# %%
upstreams = []


@tf.custom_gradient
def counted(tensor):
    """The identity; notes every backward pass."""

    def backward(upstream):
        upstreams.append(tuple(upstream.shape))
        return upstream

    return tf.identity(tensor), backward


with tf.GradientTape(persistent=True) as counting_tape:
    counting_tape.watch(x)
    y_counted = counted(layer2(layer1(x)))

passes = {}
for name in ("jacobian", "batch_jacobian"):
    upstreams.clear()
    result = getattr(counting_tape, name)(y_counted, x, experimental_use_pfor=False)
    passes[name] = len(upstreams)
    print(f"{name + ':':15} {passes[name]:2} backward passes, {result.numpy().nbytes:4} bytes")

# %% [markdown]
# A seventh of the passes and a seventh of the bytes: the factor is the batch size. For a batch of 128 it is 128.

# %%
assert passes == {"jacobian": batch * outputs, "batch_jacobian": outputs}
assert result.numpy().nbytes == 4 * batch * outputs * inputs
assert full.numpy().nbytes == batch * result.numpy().nbytes

# %% [markdown]
# ### Exercise: Each example's gradient, in one pass (12 min)
#
# A layer's weights `w`, of shape (ins, outs), are shared by all examples, so `tape.gradient` returns one gradient for the whole
# batch. You want one for each example, as for clipping each example's influence: shape (batch, ins, outs).
#
# `losses(w)` returns one loss for each example, shape (batch,). It takes weights of shape (ins, outs), or of shape (batch, ins, outs): then
# example `n` is computed with `w[n]`. Make one backward pass: no loop, and no `tape.jacobian`. The idea is the one above; where to apply it is yours to find.


# %%
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, ins, outs), from one call of tape.gradient


exercises.shared_weights.check(per_example_gradients)

# %% [markdown]
# One guard comes with `batch_jacobian`: target and source need the same first axis.

# %%
with tf.GradientTape() as short_tape:
    short_tape.watch(x)
    part = layer2(layer1(x))[:3]

try:
    short_tape.batch_jacobian(part, x)
    message = "no error"
except ValueError as error:
    message = str(error)
print(message)

# %%
assert "Need first dimension of target shape" in message

# %% [markdown]
# The first axis must also *be* the batch. Where it is not, the guard stops you at best: with as many outputs as inputs it lets everything through.
#
# ### Exercise: The batch is the last axis (6 min)
#
# Some code stores a batch with one example in each column: `x` has shape (ins, batch), and `function(x)` has shape (outs, batch). The examples are
# independent. Return one Jacobian for each example in the usual order, shape (batch, outs, ins). `function` itself cannot be changed.


# %%
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, outs, ins)


exercises.batch_last.check(each_jacobian)

# %% [markdown]
# ## 3. When the examples are not independent
#
# The guard compares two sizes. It does not ask whether example 2 depends on example 4. Batch normalisation in training mode makes it so:
# it subtracts the *batch's* mean and divides by the *batch's* standard deviation, so that every example moves every other.
#
# **Predict.** With batch normalisation between the two layers, what happens to the diagonal patches? And what does `batch_jacobian` do: raise an
# error, warn, or return something of shape (7, 6, 5)?

# %%
exercises.coupled_returns.guess(...)  # "an error", "a warning" or "a tensor of shape (7, 6, 5)"

# %%
normalise = tf.keras.layers.BatchNormalization()

with tf.GradientTape(persistent=True) as coupled_tape:
    coupled_tape.watch(x)
    y_coupled = layer2(normalise(layer1(x), training=True))

full_coupled = coupled_tape.jacobian(y_coupled, x)
returned = coupled_tape.batch_jacobian(y_coupled, x)
print("jacobian:      ", full_coupled.shape)
print("batch_jacobian:", returned.shape)

# %%
exercises.coupled_returns.reveal(f"a tensor of shape {tuple(returned.shape)}")

# %%
assert full_coupled.shape == (batch, outputs, batch, inputs)
assert returned.shape == (batch, outputs, inputs)
off_diagonal = np.max(
    np.abs(np.where(same_example, 0.0, full_coupled)), axis=(0, 2)
)  # of each patch, shape (outs, ins)
assert np.all(off_diagonal > 1e-4)

# %% alt="A grid of 6 by 5 patches that have colour off their diagonals as well: with batch normalisation the examples depend on each other."
plots.batch_patches(
    full_coupled,
    title="With batch normalisation: no patch is diagonal",
    ax=plt.subplots(figsize=(6.5, 6.5), layout="constrained")[1],
)
plt.show()

# %% [markdown]
# The patches fill up, and `batch_jacobian` says nothing. Compare it with the diagonals of the patches, the true
# derivative of each example's output with respect to its own input.

# %%
own = tf.einsum("bobi->boi", full_coupled)
error = tf.reduce_max(tf.abs(returned - own)).numpy()
size = tf.reduce_max(tf.abs(own)).numpy()
print("batch_jacobian is wrong by more than a quarter of the largest derivative:", error > 0.25 * size)

# %%
assert error > 0.25 * size
assert error > 0.3

# %% [markdown]
# What are these numbers, then? You know the mechanism of section 2: for output `o`, `batch_jacobian` differentiates the sum of that output
# over the batch.
#
# **Predict.** They are a sum of the full Jacobian over one of its two batch axes. Over the target's or over the source's? Section 2 summed over
# the source's.

# %%
exercises.over.guess(...)  # "target" or "source"

# %%
over_target = tf.transpose(tf.reduce_sum(full_coupled, axis=0), [1, 0, 2])  # (outs, batch, ins) to (batch, outs, ins)
over_source = tf.reduce_sum(full_coupled, axis=2)
matches = []
for name, candidate in (("target", over_target), ("source", over_source)):
    match = np.allclose(returned, candidate, rtol=1e-4, atol=5e-6)
    matches += [name] if match else []
    print(f"summed over the {name}'s batch axis, it is what batch_jacobian returned: {match}")

# %%
exercises.over.reveal(" and ".join(matches))

# %% [markdown]
# Row `n` is the derivative of the sum of all examples' outputs with respect to example `n`'s input:
#
# $$\text{returned}[n, o, i] = \sum_m \text{full}[m, o, n, i].$$
#
# While the patches are diagonal the two sums are the same, so nobody has to choose. Once they are not, `batch_jacobian` answers
# another question: how does one example's input move the whole batch's outputs?

# %%
np.testing.assert_allclose(returned, over_target, rtol=1e-4, atol=5e-6)  # seen: a few times 1e-7
assert np.max(np.abs(returned - over_source)) > 0.1

# %% alt="Two matrices of 6 by 5 for the first example, side by side on one colour scale: its true Jacobian on the left and what batch_jacobian returned on the right; they differ clearly."
_, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained")
limit = max(np.max(np.abs(own[0])), np.max(np.abs(returned[0])))
for ax, values, title in zip(axes, (own[0], returned[0]), ("true", "batch_jacobian"), strict=True):
    plots.matrix(values, title=f"First example: {title}", xlabel="input", ylabel="output", ax=ax, limit=limit)
plt.show()

# %%
assert np.max(np.abs(returned[0] - own[0])) > 0.1 * limit

# %% [markdown]
# The extreme case: batch normalisation as the *last* layer. Each output then has the same sum over the batch, whatever the inputs are.
#
# **Predict.** What does `batch_jacobian` return for such a network?

# %%
last = tf.keras.layers.BatchNormalization()

with tf.GradientTape(persistent=True) as last_tape:
    last_tape.watch(x)
    y_last = last(layer2(layer1(x)), training=True)

returned_last = last_tape.batch_jacobian(y_last, x)
own_last = tf.einsum("bobi->boi", last_tape.jacobian(y_last, x))
print("batch_jacobian is zero everywhere, up to rounding:", bool(np.max(np.abs(returned_last)) < 1e-5))
print("the true derivatives are:                         ", bool(np.max(np.abs(own_last)) < 1e-5))

# %%
assert returned_last.shape == own_last.shape == (batch, outputs, inputs)
assert np.max(np.abs(returned_last)) < 1e-5
assert np.max(np.abs(own_last)) > 0.3

# %% [markdown]
# The cure depends on what you mean. In inference mode batch normalisation uses its stored statistics, the examples are independent again, and `batch_jacobian` is
# right. If you do mean training mode, take the full Jacobian and its diagonal.

# %%
with tf.GradientTape(persistent=True) as inference_tape:
    inference_tape.watch(x)
    y_inference = layer2(normalise(layer1(x), training=False))

full_inference = inference_tape.jacobian(y_inference, x)
returned_inference = inference_tape.batch_jacobian(y_inference, x)
print("diagonal again:", not np.any(np.where(same_example, 0.0, full_inference)))

# %%
assert not np.any(np.where(same_example, 0.0, full_inference))
np.testing.assert_allclose(returned_inference, tf.reduce_sum(full_inference, axis=2), rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## 4. A test for independence
#
# The full Jacobian shows the coupling, and costs too much to be a test. One more backward pass is enough.
#
# Choose a cotangent `u` of the target's shape: a weight for each output of each example. One `gradient` call with
# `output_gradients=u` gives $\sum_{m,o} u_{mo}\,\text{full}[m, o, n, i]$, whatever depends on what. If the examples are
# independent, the per-example Jacobians must give the same:
#
# $$\sum_{m,o} u_{mo}\,\text{full}[m,o,n,i] \;=\; \sum_o u_{no}\,\text{returned}[n,o,i].$$
#
# If they differ, the examples are coupled.


# %%
def independence_error(tape, target, source, jacobians, cotangents):
    """How far one backward pass departs from what the per-example Jacobians say, relative to their size."""
    from_tape = tape.gradient(target, source, output_gradients=cotangents)
    from_jacobians = tf.einsum("bo,boi->bi", cotangents, jacobians)
    scale = tf.reduce_max(tf.abs(from_tape)) + tf.reduce_max(tf.abs(from_jacobians)) + 1e-3
    return (tf.reduce_max(tf.abs(from_tape - from_jacobians)) / scale).numpy()


random_cotangents = tf.random.normal((batch, outputs))
error = independence_error(tape, y, x, per_example, random_cotangents)
print("the network of section 1 passes:", error < 1e-4)

# %%
assert error < 1e-4

# %% [markdown]
# **Predict.** A cotangent of ones looks like the natural choice. With ones, does the test catch the batch normalisation of section 3? And with random numbers?

# %%
exercises.blind.guess([..., ...])  # with ones, with random numbers: "coupled" or "independent"

# %%
ones = tf.ones((batch, outputs))
said = []
for name, cotangents in (("ones", ones), ("random", random_cotangents)):
    error = independence_error(coupled_tape, y_coupled, x, returned, cotangents)
    said.append("coupled" if error > 1e-2 else "independent")
    print(f"{name + ':':8}", said[-1])

# %%
exercises.blind.reveal(said)

# %% [markdown]
# Ones are blind. In symbols: put a cotangent that is the same for all examples, $u_{mo} = c_o$, into the two sides and use what `batch_jacobian` returns, the sum of section 3:
# both sides are $\sum_{m,o} c_o\,\text{full}[m,o,n,i]$. They agree **for every coupling there is**. What shows a coupling is the difference between
# the two sides,
#
# $$\sum_{m,o} (u_{mo} - u_{no})\,\text{full}[m,o,n,i],$$
#
# which needs cotangents that differ from example to example. Random ones do, and miss a coupling only by an accident of probability zero.

# %%
per_output = tf.tile(tf.random.normal((1, outputs)), [batch, 1])  # random, but the same for all examples
assert independence_error(coupled_tape, y_coupled, x, returned, ones) < 1e-4
assert independence_error(coupled_tape, y_coupled, x, returned, per_output) < 1e-4
assert independence_error(coupled_tape, y_coupled, x, returned, random_cotangents) > 1e-2

# %% [markdown]
# Try it on other couplings, of the kind that one writes by accident: normalising by the batch, comparing with the batch's mean, and
# an axis that is off by one, so that each example is given its neighbour's output.
#
# **Predict.** Which of these does each test call independent?

# %%
networks = {
    "two layers": lambda x: layer2(layer1(x)),
    "softmax over the batch": lambda x: tf.nn.softmax(layer2(layer1(x)), axis=0),
    "minus the batch's mean": lambda x: layer2(layer1(x - tf.reduce_mean(x, axis=0))),
    "the neighbour's output": lambda x: tf.roll(layer2(layer1(x)), shift=1, axis=0),
}
verdicts = {}
for name, network in networks.items():
    with tf.GradientTape(persistent=True) as tested:
        tested.watch(x)
        target = network(x)
    jacobians = tested.batch_jacobian(target, x)
    errors = [independence_error(tested, target, x, jacobians, u) for u in (ones, random_cotangents)]
    verdicts[name] = ["coupled" if error > 1e-2 else "independent" for error in errors]
    print(f"{name + ':':24} ones say {verdicts[name][0]}, random numbers say {verdicts[name][1]}")

# %%
assert verdicts.pop("two layers") == ["independent", "independent"]
assert all(verdict == ["independent", "coupled"] for verdict in verdicts.values())

# %% [markdown]
# ### Exercise: Which of them may use batch_jacobian? (5 min)
#
# `x` has shape (3, 4), one example in each row, and `kernel` has shape (4, 3). For which of these functions does `tape.batch_jacobian(f(x), x)` equal the
# diagonal of the full Jacobian, `tf.einsum("bobi->boi", tape.jacobian(f(x), x))`? Say `True` or `False` for each; decide before you try it.
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
# ## 5. A batch Jacobian of a batch Jacobian
#
# Second derivatives for each example have shape (7, 6, 5, 5): a 5 × 5 Hessian for each output of each example. Two calls of
# `batch_jacobian` give them. The first one must happen *inside* a tape that is still recording, or the second has nothing to differentiate.
#
# **Predict.** Below, the inner `batch_jacobian` is called after both tapes have closed. `jacobian` answers `None` in such a case.
# What does `batch_jacobian` answer?

# %%
exercises.too_late.guess(...)  # "None", "zeros", "an error" or "the second derivatives"

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
print("batch_jacobian:", silent.shape, "all zeros:", not np.any(silent))
del outer

# %%
exercises.too_late.reveal("zeros" if not np.any(silent) else "the second derivatives")

# %% [markdown]
# The zeros have the right shape and come without a warning. They are not a derivative: they mean *not connected*. Here `batch_jacobian` does
# not keep to the default, `unconnected_gradients="none"`.

# %%
assert nothing is None
assert silent.shape == (batch, outputs, inputs, inputs)
assert not np.any(silent)

# %% [markdown]
# The fix is one level of indentation. It stands in a `tf.function` here, so that the nested Jacobians are traced once and then
# only run.


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
print("batch_jacobian:", hessians.shape, "all zeros:", not np.any(hessians))

# %% [markdown]
# A Hessian is symmetric, and these are. As a guard in your own code, ask `jacobian` or `gradient` once: where nothing is
# connected, they say `None`.

# %%
assert hessians.shape == (batch, outputs, inputs, inputs)
assert np.max(np.abs(hessians)) > 0.05
np.testing.assert_allclose(hessians, tf.transpose(hessians, [0, 1, 3, 2]), atol=1e-5)

# %% [markdown]
# ### Exercise: The Laplacian of each example (8 min)
#
# `function` takes `x` of shape (batch, ins) to one number for each example, shape (batch,). The examples are independent. Return each example's
# Laplacian $\sum_i \partial^2 f / \partial x_i^2$: the sum of the unmixed second derivatives, shape (batch,). It stands in many equations of physics.


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
# ## 6. In one line
#
# `tapelab.derivatives.batch_jacobian` takes a function of the batch, and returns a compiled function that gives one Jacobian for each
# example. In each call it makes the test of section 4, with random cotangents.
#
# **Predict.** Give it the two layers, and then the same layers with batch normalisation in training mode. What does each call return?


# %%
def two_layers(x):
    return layer2(layer1(x))


def normalised(x):
    return layer2(normalise(layer1(x), training=True))


in_one_line = derivatives.batch_jacobian(two_layers)(x)
print("two layers:", in_one_line.shape)

# %%
assert in_one_line.shape == (batch, outputs, inputs)
np.testing.assert_allclose(in_one_line, per_example, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(in_one_line, by_hand, rtol=1e-4, atol=1e-5)

# %%
try:
    derivatives.batch_jacobian(normalised)(x)
    name, message = "no error", ""
except derivatives.CoupledExamplesError as error:
    name, message = type(error).__name__, str(error)
print(f"{name}: {message.split(' (coupled')[0]}")

# %% [markdown]
# The first call returns what you built by hand. The second one refuses: an error that names the first coupled example takes the place of plausible
# numbers. With batch normalisation that is example 0, as every example is coupled.
#
# **Predict.** In the next function, example 4 is given a little of example 2's output. Which of the two does the error name?


# %%
def one_leak(x):
    y = two_layers(x)
    return tf.tensor_scatter_nd_add(y, [[4]], 0.5 * y[2:3])


try:
    derivatives.batch_jacobian(one_leak)(x)
    leak = "no error"
except derivatives.CoupledExamplesError as error:
    leak = str(error)
print(leak.split(" (coupled")[0])

# %% [markdown]
# Example 2, which comes first. Its own output is what it was, but it now moves another example's output as well: hence the "or they on it". The
# cure is section 3's: find the coupling, or take `derivatives.jacobian` and its diagonal.

# %%
assert name == "CoupledExamplesError"
assert "example 0 depends on other examples, or they on it" in message
assert "example 2 depends on other examples, or they on it" in leak

# %% [markdown]
# ## 7. Check it independently
#
# The same network in NumPy and float64, and central differences: the full Jacobian with its four axes, and the Hessians as
# differences of NumPy's own closed form of the per-example Jacobian.

# %%
x64 = np.asarray(x, np.float64)
(k1, b1), (k2, b2) = ([np.asarray(v, np.float64) for v in (layer.kernel, layer.bias)] for layer in (layer1, layer2))


def elu(z):
    return np.where(z > 0, z, np.expm1(np.minimum(z, 0)))


def elu_slope(z):
    return np.where(z > 0, 1.0, np.exp(np.minimum(z, 0)))


def network(x):
    return elu(elu(x @ k1 + b1) @ k2 + b2)


def example_jacobian(example):
    """The closed form for one example, shape (outs, ins)."""
    z1 = example @ k1 + b1
    z2 = elu(z1) @ k2 + b2
    return (elu_slope(z2)[None, :] * (k1 @ (elu_slope(z1)[:, None] * k2))).T


numerical = gradcheck.numerical_jacobian(network, x64)
closed = np.stack([example_jacobian(example) for example in x64])
numerical_hessians = np.stack([gradcheck.numerical_jacobian(example_jacobian, example) for example in x64])
print("the full Jacobian agrees:       ", np.allclose(full, numerical, rtol=1e-4, atol=1e-5))
print("the per-example Jacobians agree:", np.allclose(per_example, closed, rtol=1e-4, atol=1e-5))
print("the Hessians agree:             ", np.allclose(hessians, numerical_hessians, rtol=1e-3, atol=1e-5))

# %%
assert numerical.shape == full.shape
np.testing.assert_allclose(full, numerical, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(per_example, closed, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(hessians, numerical_hessians, rtol=1e-3, atol=1e-5)

# %% [markdown]
# ## Recap
#
# - A batch's full Jacobian has the axes (batch, outs, batch, ins); where examples are independent, every (batch, batch) slice is diagonal (section 1).
# - Sum over the repeated batch axis, select the diagonal, or call `batch_jacobian`: one backward pass for each output, not for each output of each example (section 2).
# - Where examples are coupled, `batch_jacobian` returns the full Jacobian summed over the target's batch axis, of the right shape and without a warning (section 3).
# - One more backward pass with random cotangents tells whether the examples are independent; cotangents that are the same for all examples cannot. `derivatives.batch_jacobian` makes that test in each call (sections 4 and 6).
# - For second derivatives the inner `batch_jacobian` belongs inside the outer tape; outside it, the outer one returns zeros (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | axes read as (batch, ins, batch, outs) | a transposed Jacobian, unnoticed where ins = outs | remember: the target's axes first |
# | batch normalisation in training mode | plausible numbers of the right shape | inference mode, or the full Jacobian's diagonal |
# | batch normalisation as the last layer | zeros | the same |
# | testing independence with ones | every network passes | random cotangents |
# | the inner `batch_jacobian` is called outside the outer tape | zeros | call it inside |
#
# **Read next:** [12 Forward mode](12_forward_mode.ipynb) goes from the inputs to the outputs, and builds a Jacobian by columns.
