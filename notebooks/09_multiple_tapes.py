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
# # Multiple tapes
#
# In a generative adversarial network a **generator** forges numbers, and a **discriminator** tells them from real ones. Each has its own loss, and one run computes both.
# **What do several tapes over one computation give you, and what do they cost?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/09_multiple_tapes.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Minutes:** 16 to read, 25 for the exercises; to work through it all, about 1 h 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
depth = 12  # layers of the model in section 3, between 4 and 40
width = 64  # units of each of its layers, between 8 and 256
batch = 128  # examples, between 16 and 512

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import gc
import weakref

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import multiple_tapes as exercises
from tapelab.explain import ExplainTape, draw, explain, table

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
generator, discriminator = tf.Variable(0.5), tf.Variable(1.0)
real, noise = tf.constant([2.0, 3.0]), tf.constant([1.0, 2.0])

with tf.GradientTape() as one_tape, tf.GradientTape() as tape_g, tf.GradientTape() as tape_d:
    chance = tf.sigmoid(discriminator * generator * noise)  # that a forged number is real, to the discriminator
    loss_g = tf.reduce_mean(tf.math.log(1.0 - chance))
    loss_d = -loss_g - tf.reduce_mean(tf.math.log(tf.sigmoid(discriminator * real)))

at_once = one_tape.gradient([loss_g, loss_d], [generator, discriminator])
for_each = [tape_g.gradient(loss_g, generator), tape_d.gradient(loss_d, discriminator)]
print("one tape, both losses: ", [round(float(gradient), 2) for gradient in at_once])
print("a tape for each player:", [round(float(gradient), 2) for gradient in for_each])

# %% [markdown]
# Asked for both losses at once, a tape differentiates their *sum* ([01](01_gradient_tape_basics.ipynb)). Here the generator's loss cancels in it: its gradient is 0, and the discriminator's has the wrong
# sign. And `one_tape` answers once; a persistent one would answer for each. A second tape holds a second **record** of the run.
#
# **You will be able to**
#
# - differentiate one target with two tapes, and say what each of them knows (section 1),
# - give each tape a set of its own to watch (section 2),
# - count what a tape keeps, and the layers that its backward pass visits (section 3),
# - draw nested tapes as a timeline, and say what the outer one records (section 4),
# - hand a gradient from one tape to the next (section 5).
#
# ## 1. Two tapes, two sources
#
# Now $y = \sin x_0 + \sigma(x_1)$ at 0, with the sigmoid $\sigma$. `tape_0` watches $x_0$, and `tape_1` watches $x_1$. By hand the derivatives are
# $\cos 0 = 1$ and $\sigma(0)\,(1 - \sigma(0)) = 0.25$. Ask both tapes for both.
#
# **Predict.** What does each tape return for the *other* tape's source?

# %%
exercises.other_source.guess([..., ...])  # tape_0 for x_1, tape_1 for x_0: each a number or None

# %%
x_0, x_1 = tf.constant(0.0), tf.constant(0.0)

with tf.GradientTape() as tape_0, tf.GradientTape() as tape_1:
    tape_0.watch(x_0)
    tape_1.watch(x_1)
    y = tf.sin(x_0) + tf.sigmoid(x_1)

from_0 = tape_0.gradient(y, [x_0, x_1])
from_1 = tape_1.gradient(y, [x_0, x_1])
print("tape_0:", [g if g is None else float(g) for g in from_0])
print("tape_1:", [g if g is None else float(g) for g in from_1])

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.other_source.reveal([from_0[1], from_1[0]])

check_noise, check_real = np.array([1.0, 2.0]), np.array([2.0, 3.0])
check_chance = 1 / (1 + np.exp(-0.5 * check_noise))  # by hand: log(1 - sigmoid(u)) has the slope -sigmoid(u)
check_missed = 1 / (1 + np.exp(check_real))  # and log(sigmoid(u)) the slope sigmoid(-u)
check_of_d = np.mean(check_chance * 0.5 * check_noise) - np.mean(check_missed * check_real)
np.testing.assert_allclose(for_each, [-np.mean(check_chance * check_noise), check_of_d], rtol=1e-5)
np.testing.assert_allclose(at_once, [0.0, -np.mean(check_missed * check_real)], rtol=1e-5)
with tf.GradientTape(persistent=True) as check_tape:
    check_g = tf.reduce_mean(tf.math.log(1.0 - tf.sigmoid(discriminator * generator * noise)))
    check_d = -check_g - tf.reduce_mean(tf.math.log(tf.sigmoid(discriminator * real)))
check_twice = [check_tape.gradient(check_g, generator), check_tape.gradient(check_d, discriminator)]
np.testing.assert_allclose(check_twice, for_each, rtol=1e-6)
assert at_once[1] < 0.0 < for_each[1]
with np.testing.assert_raises_regex(RuntimeError, "non-persistent"):
    one_tape.gradient(loss_g, generator)
assert [from_0[0].numpy(), from_1[1].numpy()] == [1.0, 0.25]
assert [from_0[1], from_1[0]] == [None, None]
with ExplainTape() as of_0, ExplainTape() as of_1:
    of_0.watch(x_0)
    of_1.watch(x_1)
    y = tf.sin(x_0) + tf.sigmoid(x_1)
assert [row.title for row in table(of_0, y, x_0).rows] == ["x_0", "sin", "add"]
assert [row.title for row in table(of_1, y, x_1).rows] == ["x_1", "sigmoid", "add"]
assert explain(of_0, y, x_1).code == explain(of_1, y, x_0).code == "not_watched"
with tf.GradientTape() as check_tape:
    check_tape.watch([x_0, x_1])
    y = tf.sin(x_0) + tf.sigmoid(x_1)
assert [gradient.numpy() for gradient in check_tape.gradient(y, [x_0, x_1])] == [1.0, 0.25]

# %% alt="Timeline. A timeline with four lines of code from left to right: sin(x_0), sigmoid(x_1), their sum, and the gradient calls. Two bars, one for each tape, span the first three. tape_0 has dots at the sine and the sum, tape_1 at the sigmoid and the sum. At the gradient calls both have a diamond." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: a tape for each source
COLOURS = (plots.BLUE, plots.RED)


def timeline(lines, tapes, title):
    """Draw tapes over time. For each name: the spans in which it records, the columns it recorded, where it is asked."""
    _, ax = plt.subplots(figsize=(2.3 * len(lines) + 1.2, 1.7 + 0.55 * len(tapes)), layout="constrained")
    for row, ((name, (spans, recorded, asked)), colour) in enumerate(zip(tapes.items(), COLOURS, strict=True)):
        for start, end in spans:
            ax.barh(row, end - start, left=start, height=0.5, color=colour, alpha=0.25, edgecolor=colour)
        ax.plot(recorded, [row] * len(recorded), "o", color=colour, markersize=9)
        ax.plot(asked, row, "D", color="white", markeredgecolor=colour, markeredgewidth=2, markersize=9)
        ax.text(asked + 0.1, row, "asked", va="center", color=colour)
    ax.set(
        title=title,
        xlabel="time, one column for each line (bar: the tape is open, dot: the line is recorded)",
        xlim=(-0.55, len(lines) - 0.45),
    )
    ax.set_xticks(range(len(lines)), labels=lines, family="monospace")
    ax.set_yticks(range(len(tapes)), labels=list(tapes))
    ax.set_ylim(len(tapes) - 0.5, -0.5)
    ax.tick_params(length=0)


timeline(
    ["a = sin(x_0)", "b = sigmoid(x_1)", "y = a + b", "gradient"],
    {"tape_0": ([(-0.45, 2.45)], [0, 2], 3), "tape_1": ([(-0.45, 2.45)], [1, 2], 3)},
    "tape_0 writes down the sine and the sum, tape_1 the sigmoid and the sum",
)
plt.show()

# %% [markdown]
# Both tapes were open, yet `tape_0` did not write down the sigmoid, nor `tape_1` the sine. To `tape_0` the sigmoid is a constant:
# it knows of no path from $x_1$, and says `None`.
#
# One tape that watches both would have answered for both, in one backward pass. What is a second tape for? In the opening it had a loss of its own; in
# section 3 it has a life of its own, and in section 4 it records the first tape's backward pass.

# %% [markdown]
# ### Exercise: Two players, two losses (6 min)
#
# `game(x, y)` returns two scalar losses that share most of their computation. The player who moves `x`, a vector, wants to lower the first; the player who moves `y`, a
# vector too, wants to lower the second. Return the gradient of the first loss with respect to `x`, and the gradient of the second with respect to `y`. Call `game` once.


# %%
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        losses = game(x, y)  # two scalars: of the one who moves x, of the one who moves y
    return ..., ...  # of the first loss with respect to x, of the second with respect to y


exercises.two_players.check(gradients_of_players)

# %% [markdown]
# ## 2. Three tapes, three sets to watch
#
# Section 1's sources were tensors, named with `watch`. The weights below are variables, and a tape left at its
# default watches them as it meets them. To leave some out, turn that off with `watch_accessed_variables=False`, and name the others with `watch`, a Keras variable by its `.value`.
#
# Take a model of two layers: inputs of shape (7, 5), 8 hidden units, 6 outputs.

# %%
inputs = tf.random.normal((7, 5))
wanted = tf.random.normal((7, 6))
sources = {
    "inputs": inputs,
    "w1": tf.Variable(tf.random.normal((5, 8)) / np.sqrt(5), name="w1"),
    "b1": tf.Variable(tf.zeros(8), name="b1"),
    "w2": tf.Variable(tf.random.normal((8, 6)) / np.sqrt(8), name="w2"),
    "b2": tf.Variable(tf.zeros(6), name="b2"),
}


def two_layers():
    """The sum of squared errors, a scalar."""
    hidden = tf.tanh(inputs @ sources["w1"] + sources["b1"])
    outputs = hidden @ sources["w2"] + sources["b2"]
    return tf.reduce_sum((outputs - wanted) ** 2)


# %% [markdown]
# Three tapes record one run of it. The first is left at its default, the second watches the last layer, the *head*, and the third the inputs. Each is asked for all five gradients.
#
# **Predict.** How many of the fifteen answers are `None`?

# %%
exercises.how_many_none.guess(...)  # a whole number

# %%
tapes = {
    "default": tf.GradientTape(),
    "head": tf.GradientTape(watch_accessed_variables=False),
    "inputs": tf.GradientTape(watch_accessed_variables=False),
}

with tapes["default"], tapes["head"], tapes["inputs"]:
    tapes["head"].watch([sources["w2"], sources["b2"]])
    tapes["inputs"].watch(inputs)
    loss = two_layers()

gradients = {name: tape.gradient(loss, sources) for name, tape in tapes.items()}
for name, found in gradients.items():
    print(f"{name:<8}", sum(gradient is None for gradient in found.values()), "of 5 are None")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.how_many_none.reveal(sum(gradient is None for found in gradients.values() for gradient in found.values()))

known = np.array([[int(gradient is not None) for gradient in found.values()] for found in gradients.values()])
assert known.tolist() == [[0, 1, 1, 1, 1], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0]]
for found in gradients.values():
    for key, gradient in found.items():
        assert gradient is None or gradient.shape == sources[key].shape
for key in ("w2", "b2"):
    np.testing.assert_allclose(gradients["head"][key], gradients["default"][key], rtol=1e-5, atol=1e-6)

# %% alt="Table. A table of three tapes by five sources. The default tape has the gradients of w1, b1, w2 and b2; the head's tape those of w2 and b2; the inputs' tape that of the inputs. The other eight fields say None." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: which tape knows which gradient
has_gradient = np.array([[gradient is not None for gradient in found.values()] for found in gradients.values()])

_, ax = plt.subplots(figsize=(8, 3), layout="constrained")
title = "Of the five sources, each tape answers for those it watches"
plots.matrix(has_gradient, title=title, xlabel="source", ylabel="tape", limit=4, ax=ax, colorbar=False)
for row, found in enumerate(gradients.values()):
    for column, gradient in enumerate(found.values()):
        ax.text(column, row, "None" if gradient is None else tuple(gradient.shape), ha="center", va="center")
ax.set_xticks(range(len(sources)), labels=list(sources))
ax.set_yticks(range(len(tapes)), labels=list(tapes))
plt.show()

# %% [markdown]
# Seven gradients, and eight times `None`. What did the head's tape write down? A solid border means *recorded*, a dashed one *not
# recorded*. The dashed arrow with a cross is where the gradient is cut.

# %% alt="Computation graph. A graph that runs downwards from the weights w1 and w2 to the loss. From w1, which has a dashed border, a dashed arrow marked automatic watching off leads to a chain of the first layer's operations with dashed borders, not recorded. They meet w2, which has a solid border, at a matrix product; from there on every operation down to the loss is recorded." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the record of the head's tape
with ExplainTape(watch_accessed_variables=False) as tape:
    tape.watch([sources["w2"], sources["b2"]])
    loss = two_layers()

w1, w2 = sources["w1"], sources["w2"]
draw(tape, loss, [w1, w2])
plt.show()

# %% [markdown]
# The first layer ran and left no record. The record begins at the product with `w2`. Section 3 counts what that saves in a deep model.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with ExplainTape(watch_accessed_variables=False) as of_head:
    of_head.watch([sources["w2"], sources["b2"]])
    loss = two_layers()
assert explain(of_head, loss, sources["w1"]).code == "watching_off"
assert explain(of_head, loss, inputs).code == "not_watched"
assert table(of_head, loss, sources["w2"]).rows[1].title == "matmul"

# %% [markdown]
# ## 3. What watching too much costs
#
# Here is a deep model, and a count of its tensors that are still in memory ([05](05_recording_control.ipynb)):

# %%
weights = [tf.Variable(tf.random.normal((width, width)) / np.sqrt(width)) for _ in range(depth)]
deep_inputs = tf.random.normal((batch, width))


def deep_model():
    """Run the model. Returns the loss, and for each layer the weak references to its product and its activation."""
    h, references = deep_inputs, []
    for weight in weights:
        product = h @ weight
        h = tf.tanh(product)
        references.append([weakref.ref(product), weakref.ref(h)])
    return tf.reduce_sum(h**2), references


def alive(references):
    """How many of each layer's tensors are still alive, shape (layers,)."""
    gc.collect()
    return np.array([sum(reference() is not None for reference in layer) for layer in references])


loss, references = deep_model()
print("tensors alive, without a tape:", alive(references).sum())

# %% [markdown]
# Three tapes again: one watches all twelve weights; one the last weight, a new head on a frozen model; and one the inputs.
#
# **Predict.** The model has `depth` = 12 layers, each with a product and an activation. How many tensors does each tape keep?

# %%
exercises.activations.guess([..., ..., ...])  # watching all weights, the last weight, the inputs

# %%
watch_sets = {"all weights": weights, "the last weight": weights[-1:], "the inputs": [deep_inputs]}

kept = {}
for name, watch_set in watch_sets.items():
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watch_set)
        loss, references = deep_model()
    kept[name] = alive(references)
    print(f"{name:<16} {kept[name].sum():>2} tensors kept")
    del tape

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.activations.reveal([int(count.sum()) for count in kept.values()])

_, untaped = deep_model()
assert alive(untaped).tolist() == [0] * depth
assert kept["all weights"].tolist() == kept["the inputs"].tolist() == [1] * depth
assert kept["the last weight"].tolist() == [0] * (depth - 2) + [1, 1]
assert weights[0].dtype.size == 4  # the figure's unit
with tf.GradientTape(persistent=True) as check_tape:
    check_tape.watch(weights[-1])  # the others are watched all the same
    check_loss, check_kept = deep_model()
check_tape.gradient(check_loss, weights[-1])
assert alive(check_kept).tolist() == [1] * depth
with tf.GradientTape(watch_accessed_variables=False) as check_tape:
    check_tape.watch(weights[-1])
    check_loss = tf.reduce_sum(tf.tanh(deep_inputs @ weights[-1]))
    check_metric = tf.tanh(tf.tanh(deep_inputs @ weights[-1]) @ weights[0])  # a branch that the loss does not use
    check_branch = [weakref.ref(check_metric)]
del check_metric
assert alive([check_branch]).tolist() == [1]
del check_tape
assert alive([check_branch]).tolist() == [0]

# %% alt="Diagram. Three rows of one field for each layer. In the rows for all weights and for the inputs every field is filled; in the row for the last weight only the last two are. Each row's label gives the memory in KiB." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what each tape keeps alive
kibibytes = {name: count.sum() * 4 * batch * width / 1024 for name, count in kept.items()}  # float32: 4 bytes

_, ax = plt.subplots(figsize=(8, 2.6), layout="constrained")
title = "The tape of the last weight keeps two activations, the others all"
plots.matrix(
    list(kept.values()), title=title, xlabel="layer", ylabel="the tape watches", limit=2, ax=ax, colorbar=False
)
ax.set_xticks(range(depth), labels=range(1, depth + 1))
ax.set_xticks(np.arange(depth + 1) - 0.5, minor=True)
ax.set_yticks(range(3), labels=[f"{name}\n{size:.0f} KiB" for name, size in kibibytes.items()])
ax.set_yticks(np.arange(4) - 0.5, minor=True)
ax.grid(which="minor", color="white", linewidth=3)
ax.tick_params(which="both", length=0)
plt.show()

# %% [markdown]
# The tape of the last weight keeps two tensors: the activation that enters the last layer, for the product's derivative, and the one that leaves it, for the derivatives of `tanh` and of the square.
#
# The tape of the inputs, a single source, keeps as much as that of all weights. Not the *number* of sources made the difference here, but
# how much comes **after** them.
#
# And the backward pass? To count it, put a probe behind each layer: an identity whose backward function counts its calls
# ([custom gradients](07_custom_gradients.ipynb)).

# %%
passed = []


@tf.custom_gradient
def probe(h):
    def backward(upstream):
        passed.append(1)
        return upstream

    return tf.identity(h), backward


def layers_visited(watch_set, source):
    """The gradient with respect to the source, and how many layers the backward pass visits for it."""
    passed.clear()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watch_set)
        h = deep_inputs
        for weight in weights:
            h = probe(tf.tanh(h @ weight))
        loss = tf.reduce_sum(h**2)
    return tape.gradient(loss, source), len(passed)


# %% [markdown]
# **Predict.** You want the gradient with respect to the *last weight*, and nothing else. How many layers does the backward pass visit on the tape that watches that weight, and on the
# tape that watches all weights?

# %%
exercises.layers_visited.guess([..., ...])  # watching the last weight, watching all

# %%
by_modest, modest = layers_visited(weights[-1:], weights[-1])
by_greedy, greedy = layers_visited(weights, weights[-1])
print("watches the last weight:", modest)
print("watches all weights:    ", greedy)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.layers_visited.reveal([modest, greedy])

assert [modest, greedy] == [1, depth]
np.testing.assert_allclose(by_modest, by_greedy, rtol=1e-5, atol=1e-6)

# %% [markdown]
# The same gradient, and twelve layers visited instead of one: run eagerly, this tape went back through *all layers that it had recorded*.
#
# And three tapes over one run?
#
# **Predict.** Two tapes that watch all weights record the same run, and a third that watches the last weight. How many activations are alive? Then the
# tapes are dropped, one after the other. How many are left each time?

# %%
exercises.dropped.guess([..., ..., ..., ...])  # with all three tapes, then after each drop

# %%
with (
    tf.GradientTape() as first,
    tf.GradientTape() as second,
    tf.GradientTape(watch_accessed_variables=False) as modest_tape,
):
    modest_tape.watch(weights[-1])
    loss, references = deep_model()

left = [int(alive(references).sum())]
del first
left.append(int(alive(references).sum()))
del second
left.append(int(alive(references).sum()))
del modest_tape
left.append(int(alive(references).sum()))

for count, when in zip(left, ("three tapes", "without first", "without second", "without any"), strict=True):
    print(f"{when:<15} {count:>2}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.dropped.reveal(left)

assert left == [depth, depth, 2, 0]

# %% [markdown]
# The tapes hold *references*: the twelve activations are in memory once, though `first` and `second` both keep them.

# %% [markdown]
# ### Exercise: Pay for the head alone (5 min)
#
# `body(x)` runs several layers with variables of their own, and `head` is a variable, a matrix. Return two things: the tape, which can differentiate the loss with
# respect to `head`, and the loss, the sum of the squares of `body(x) @ head`. The gradient is asked for later, and once. Until then the tape must keep nothing of what the
# body's inner layers computed.


# %%
def record_head(body, head, x):
    with tf.GradientTape() as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return ..., loss  # first: is the tape good as it stands? Then return it


exercises.record_head.check(record_head)

# %% [markdown]
# ### Exercise: What two tapes cost (4 min)
#
# Twelve layers, as above: $h \leftarrow \tanh(h W_k)$ for $k = 1, \ldots, 12$. Tape A watches the weights of layers 4 and 8, tape B the weight of layer 12. Both record one run, with automatic watching
# off. Through how many layers does A go back when it is asked for the gradient of layer 8's weight? And how many activations are alive before that, with both tapes, and
# with B alone? (Python itself holds on to none of them.)

# %%
answer = {
    "layers": ...,  # that A goes back through, asked for layer 8's weight
    "kept": ...,  # activations alive while both tapes are
    "left": ...,  # activations alive when A has been dropped
}

exercises.bill.check(answer)

# %% [markdown]
# ## 4. One tape inside another
#
# So far the tapes ran side by side. Now the inner one is asked while the outer is open. Take $y = x^4$ at $x = 2$, where
# $y' = 4x^3 = 32$ and $y'' = 12x^2 = 48$.

# %%
x = tf.Variable(2.0)

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = x**4
    dy_dx = inner.gradient(y, x)

d2y_dx2 = outer.gradient(dy_dx, x)
print("dy/dx   =", dy_dx.numpy())
print("d²y/dx² =", d2y_dx2.numpy())

# %% alt="Timeline. A timeline with three lines of code: y = x ** 4, dy_dx = inner.gradient(y, x), and outer.gradient(dy_dx, x). The bar of the inner tape spans the first line only, and the tape is asked at the second. The bar of the outer tape spans the first two lines, with dots at both, and the tape is asked at the third." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: nested tapes as a timeline
timeline(
    ["y = x ** 4", "inner.gradient(y, x)", "outer.gradient(dy_dx, x)"],
    {"inner": ([(-0.45, 0.45)], [0], 1), "outer": ([(-0.45, 1.45)], [0, 1], 2)},
    "The inner tape is asked while the outer one still records",
)
plt.show()

# %% [markdown]
# Read the middle column. For the inner tape it is a question, for the outer one a line like any other: `inner.gradient` runs TensorFlow
# operations inside the outer block, which records them ([10](10_higher_order_gradients.ipynb) shows them).
# The first column counts, too: opened after it, this outer tape says `None`.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert [dy_dx.numpy(), d2y_dx2.numpy()] == [32.0, 48.0]
with ExplainTape() as check_outer:
    with tf.GradientTape() as inner:
        y = x**4
    check_slope = inner.gradient(y, x)
check_rows = table(check_outer, check_slope, x).rows
assert all(row.source.startswith("inner.gradient(y, x)") for row in check_rows[1:])
assert len(check_rows) > 1
with tf.GradientTape() as inner:
    y = x**4
with tf.GradientTape() as check_late:
    check_slope = inner.gradient(y, x)
assert check_late.gradient(check_slope, x) is None

# %% [markdown]
# ## 5. Two stretches, one chain
#
# Tapes can also take turns. Below, the two stretches share `h` alone: `tape_2` returns for it the **upstream gradient** that `tape_1` needs, and `output_gradients` takes it.
# Between the two calls it is in your hands: print it, or change it.

# %%
x = tf.constant([1.0, 2.0])

with tf.GradientTape() as tape_1:
    tape_1.watch(x)
    h = x**2  # the first stretch
with tf.GradientTape() as tape_2:
    tape_2.watch(h)
    y = tf.reduce_sum(h**3)  # the second

upstream = tape_2.gradient(y, h)
in_two = tape_1.gradient(h, x, output_gradients=upstream)
print("at h:", upstream.numpy())
print("at x:", in_two.numpy())

# %% alt="Timeline. A timeline with four lines of code: h = x ** 2, y = reduce_sum(h ** 3), tape_2.gradient(y, h), and tape_1.gradient(h, x). tape_1 has a bar and a dot at the first line, and is asked at the last; tape_2 has a bar and a dot at the second, and is asked at the third." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two tapes that take turns
timeline(
    ["h = x ** 2", "y = reduce_sum(h ** 3)", "tape_2.gradient(y, h)", "tape_1.gradient(h, x)"],
    {"tape_1": ([(-0.45, 0.45)], [0], 3), "tape_2": ([(0.55, 1.45)], [1], 2)},
    "The tape that records last is asked first, and hands on its answer",
)
plt.show()

# %% [markdown]
# With $y = \sum_i x_i^6$ the gradient is $6x_i^5$: 6 and 192. Now forget `tape_2.watch(h)`:

# %%
with tf.GradientTape() as tape_1:
    tape_1.watch(x)
    h = x**2
with tf.GradientTape() as tape_2:
    y = tf.reduce_sum(h**3)

nothing = tape_2.gradient(y, h)
wrong = tape_1.gradient(h, x, output_gradients=nothing)
print("at h:", nothing)
print("at x:", wrong.numpy(), "instead of", in_two.numpy())

# %% [markdown]
# No error: a lone `None` is the default of `output_gradients`, and `tape_1` began with ones.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(in_two, [6.0, 192.0], rtol=1e-6)
np.testing.assert_allclose(upstream, [3.0, 48.0], rtol=1e-6)
assert nothing is None
np.testing.assert_allclose(wrong, 2 * x)  # the gradient of the sum of h
with tf.GradientTape() as check_tape:
    check_tape.watch(x)
    check_h = x**2
with np.testing.assert_raises(ValueError):  # in a list it is no default
    check_tape.gradient([check_h], x, output_gradients=[None])

# %% [markdown]
# ### Exercise: Change the gradient half-way (10 min)
#
# `h = first(x)` and `y = second(h)`, with `x` of shape (batch, inputs), `h` of shape (batch, units) and `y` a scalar. Between the two stretches stands a function
# `change`: it takes the gradient of `y` with respect to `h` and returns another tensor of that shape, which is to be used in its place. Return the gradient with respect to `x` that
# follows. Use two tapes, one for each stretch, and no `tf.custom_gradient`.


# %%
def changed_half_way(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        y = second(h)  # something is missing before this line
    return ...  # dy/dx, with the gradient at h changed on the way


exercises.half_way.check(changed_half_way)

# %% [markdown]
# ## 6. Check it independently
#
# Section 1's two slopes at 0 by central differences, in float64; the check adds section 2's seven gradients:


# %%
def sigmoid_numpy(x):
    return 1 / (1 + np.exp(-x))


slopes = [float(gradcheck.numerical_jacobian(f, 0.0)) for f in (np.sin, sigmoid_numpy)]
print("sin, sigmoid at 0:", [round(slope, 6) for slope in slopes])

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(slopes, [from_0[0], from_1[1]], rtol=1e-8)
np.testing.assert_allclose(gradcheck.numerical_jacobian(lambda x: 4 * x**3, 2.0), d2y_dx2, rtol=1e-8)

values = {key: np.asarray(value, dtype=np.float64) for key, value in sources.items()}
wanted64 = wanted.numpy().astype(np.float64)


def loss_numpy(source, value):
    v = values | {source: value}
    outputs = np.tanh(v["inputs"] @ v["w1"] + v["b1"]) @ v["w2"] + v["b2"]
    return np.sum((outputs - wanted64) ** 2)


for found in gradients.values():
    for key, gradient in found.items():
        if gradient is not None:
            gradcheck.check_gradient(lambda x, s=key: loss_numpy(s, x), gradient, values[key], rtol=1e-5)

# %% [markdown]
# ## Recap
#
# - Two tapes over one run gave two gradients, each from a record of its own (section 1).
# - `watch_accessed_variables=False` and `watch` gave a tape its own set of sources; the head's tape left no record of the first layer (section 2).
# - For the last weight, the tape of all weights kept twelve activations and went back through twelve layers; the tape of the last weight kept two and went back through one (section 3).
# - For $y''$ the outer tape recorded $y$, and then the inner one's backward pass (section 4).
# - With `h` alone between the two stretches, the second tape's gradient at `h` went to the first as `output_gradients` (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a source made before the blocks that only another tape watches | `None` | ask the other tape, or `watch` it before its first use |
# | all weights of twelve `tanh` layers are watched, and the last one's gradient is wanted | twelve activations kept and twelve layers visited, for two and one | `watch` the last one, with automatic watching off |
# | the tensor between two tapes is not watched by the second, whose `None` is the first one's `output_gradients` | a wrong number: the first begins with ones | `watch` it on the second tape |
# | a tape that was not asked, or a persistent one, is still there | the activations that it keeps stay in memory | drop its last name, with `del` |
#
# **Further reading**
#
# - TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff): the section on multiple tapes.
# - A. Griewank and A. Walther, 2008, ["Evaluating Derivatives"](https://doi.org/10.1137/1.9780898717761): what a backward pass has to keep.
# - I. Goodfellow and others, 2014, ["Generative Adversarial Nets"](https://arxiv.org/abs/1406.2661): two players.
#
# **Read next:** [10 Higher-order gradients](10_higher_order_gradients.ipynb) goes on from section 4.
