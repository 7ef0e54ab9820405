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
# # Multiple tapes
#
# Tapes do not exclude each other: while one records, others may record the same operations, each with sources of its own.
# **What do several tapes over one computation give, and what do they cost?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/07_multiple_tapes.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Time:** about 15 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - differentiate one target by several tapes, and say what each of them knows (section 1),
# - give each tape a set of its own to watch (section 2),
# - say which tapes are expensive, in memory and in work on the way back, and measure both (section 3).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import gc
import weakref

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import multiple_tapes as exercises
from tapelab.explain import ExplainTape, draw, explain

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
depth = 12  # layers of the model in section 3, at least 4
width = 64  # units of each layer
batch = 128  # examples

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. Two tapes, two sources
#
# Two tensors, two tapes: `tape_0` watches `x_0`, `tape_1` watches `x_1`. The target depends on both,
# $y = \sin x_0 + \sigma(x_1)$, with the sigmoid $\sigma(x) = 1/(1 + e^{-x})$.
#
# **Predict.** Both inputs are 0. Each tape is asked for *both* derivatives. Which four answers do you expect?

# %%
exercises.four_answers.guess([..., ..., ..., ...])  # tape_0: for x_0, for x_1; tape_1: for x_0, for x_1

# %%
x_0 = tf.constant(0.0)
x_1 = tf.constant(0.0)

with tf.GradientTape() as tape_0, tf.GradientTape() as tape_1:
    tape_0.watch(x_0)
    tape_1.watch(x_1)
    y = tf.sin(x_0) + tf.sigmoid(x_1)

from_0 = tape_0.gradient(y, [x_0, x_1])
from_1 = tape_1.gradient(y, [x_0, x_1])
print("tape_0:", [g if g is None else float(g) for g in from_0])
print("tape_1:", [g if g is None else float(g) for g in from_1])

# %%
exercises.four_answers.reveal(from_0 + from_1)

# %% [markdown]
# Neither call used up the other tape. Each tape can be asked once, as if it were alone.

# %%
assert from_0[1] is None
assert from_1[0] is None
assert from_0[0].numpy() == 1.0
assert from_1[1].numpy() == 0.25

# %% [markdown]
# With 201 points instead of one, the same two tapes draw both derivatives. The target now has shape (201,), so each gradient is that of the target's
# sum; and each element of the sum depends on one point.

# %% alt="Two panels over x from minus 6 to 6, each with a function and its derivative: on the left the sine and, shifted, the cosine, which is 1 at 0; on the right the sigmoid, rising from 0 to 1, and its derivative, a bump whose top is 0.25 at 0."
x_0 = tf.linspace(-6.0, 6.0, 201)
x_1 = tf.linspace(-6.0, 6.0, 201)

with tf.GradientTape() as tape_0, tf.GradientTape() as tape_1:
    tape_0.watch(x_0)
    tape_1.watch(x_1)
    sine, sigmoid = tf.sin(x_0), tf.sigmoid(x_1)
    y = sine + sigmoid

by_tape_0 = tape_0.gradient(y, x_0)
by_tape_1 = tape_1.gradient(y, x_1)

_, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
plots.curve_with_derivative(
    x_0, sine, by_tape_0, title="sin(x₀), and what tape_0 gives", label="sin", derivative_label="tape_0", ax=axes[0]
)
plots.curve_with_derivative(
    x_1, sigmoid, by_tape_1, title="σ(x₁), and what tape_1 gives", label="σ", derivative_label="tape_1", ax=axes[1]
)
axes[0].set_ylim(-1.2, 1.9)
axes[0].legend(loc="upper right")
plt.show()

# %%
assert by_tape_0.shape == by_tape_1.shape == (201,)
np.testing.assert_allclose(by_tape_0, np.cos(x_0), atol=1e-6)
np.testing.assert_allclose(by_tape_1, sigmoid * (1 - sigmoid), atol=1e-6)

# %% [markdown]
# What you do to one tape leaves the other alone. `stop_recording`, for example, pauses the tape it belongs to.
#
# **Predict.** $y = x^2 + x^3$ at $x = 3$; the cube is computed while `tape_0` pauses. What does each tape give for $dy/dx$?

# %%
exercises.paused.guess([..., ...])  # tape_0, tape_1

# %%
x = tf.Variable(3.0)

with tf.GradientTape() as tape_0, tf.GradientTape() as tape_1:
    y = x * x
    with tape_0.stop_recording():
        cube = x * x * x
    y = y + cube

by_tape_0 = tape_0.gradient(y, x)
by_tape_1 = tape_1.gradient(y, x)
print("tape_0, which paused:", by_tape_0.numpy())
print("tape_1:              ", by_tape_1.numpy())

# %%
exercises.paused.reveal([by_tape_0, by_tape_1])

# %%
assert by_tape_0.numpy() == 6.0
assert by_tape_1.numpy() == 33.0

# %% [markdown]
# ### Exercise: Two players, two losses (6 min)
#
# `game(x, y)` returns two scalar losses that share most of their computation. The player who moves `x`, a vector, wants to lower the first; the player who moves `y`, a
# vector of another length, wants to lower the second. Return the gradient of the first loss with respect to `x`, and that of the second with respect to `y`. Call `game` once.


# %%
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        losses = game(x, y)  # two scalars: of the one who moves x, of the one who moves y
    return ..., ...  # the gradient of the first for x, of the second for y


exercises.two_players.check(gradients_of_players)

# %% [markdown]
# ## 2. Three tapes, three sets to watch
#
# A tape watches every trainable variable at its first use, and no tensor. `watch_accessed_variables=False` turns the first
# half off; then `watch` says what is wanted.
#
# The model has two layers: inputs of shape (7, 5), a hidden layer of 8 units, and 6 outputs.

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


print("the loss has shape", two_layers().shape)

# %%
assert two_layers().shape == ()

# %% [markdown]
# Three tapes record one run of it. The first is left at its default. The second watches the last layer, the *head*. The third watches the inputs.
#
# **Predict.** Each tape is asked for all five gradients. Which of the fifteen answers are `None`?

# %%
exercises.how_many_none.guess(...)  # how many of the fifteen are None

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
    shapes = {source: None if g is None else tuple(g.shape) for source, g in found.items()}
    print(f"{name:<8}", "  ".join(f"{source}: {shape}" for source, shape in shapes.items()))

# %%
exercises.how_many_none.reveal(sum(gradient is None for found in gradients.values() for gradient in found.values()))

# %% alt="A table of three tapes by five sources. The default tape has the gradients of w1, b1, w2 and b2; the head's tape those of w2 and b2; the inputs' tape that of the inputs. The other eight fields say None."
has_gradient = np.array([[found[source] is not None for source in sources] for found in gradients.values()])

_, ax = plt.subplots(figsize=(8, 3), layout="constrained")
plots.matrix(
    has_gradient,
    title="Which tape knows which gradient",
    xlabel="source",
    ylabel="tape",
    limit=4,
    ax=ax,
    colorbar=False,
)
for row, found in enumerate(gradients.values()):
    for column, gradient in enumerate(found.values()):
        ax.text(column, row, "None" if gradient is None else tuple(gradient.shape), ha="center", va="center")
ax.set_xticks(range(len(sources)), labels=list(sources))
ax.set_yticks(range(len(tapes)), labels=list(tapes))
plt.show()

# %% [markdown]
# Each gradient has its source's shape, and each tape answers for what it watches and for nothing else. The default tape does not know the inputs: they are
# a tensor, and nobody told it to watch them.

# %%
assert has_gradient.astype(int).tolist() == [[0, 1, 1, 1, 1], [0, 0, 0, 1, 1], [1, 0, 0, 0, 0]]
for found in gradients.values():
    for source, gradient in found.items():
        assert gradient is None or gradient.shape == sources[source].shape

# %% [markdown]
# Where two tapes both know a gradient, they agree. And every tape can say which variables it has watched.

# %%
for source in ("w2", "b2"):
    np.testing.assert_allclose(gradients["head"][source], gradients["default"][source], rtol=1e-5, atol=1e-6)

watched = {name: [variable.name for variable in tape.watched_variables()] for name, tape in tapes.items()}
for name, names in watched.items():
    print(f"{name:<8}", names)

# %%
assert watched == {"default": ["w1:0", "b1:0", "w2:0", "b2:0"], "head": ["w2:0", "b2:0"], "inputs": []}

# %% [markdown]
# What did the head's tape write down? `ExplainTape` is a `tf.GradientTape` that also keeps a log of what it saw, and `draw` shows it
# (notebook [03](03_when_the_gradient_is_none.ipynb), section 10). The model is run once more under such a tape, with the head's watch set.
#
# Each box is an operation; time runs downwards. A solid border and a filled circle mean *recorded*, a dashed border and an empty circle *not
# recorded*. The dashed arrow with a cross is where the gradient is cut, and says why.

# %% alt="A graph that runs downwards from the weights w1 and w2 to the loss. From w1, which has a dashed border, a dashed arrow marked automatic watching off leads to a chain of the first layer's operations with dashed borders, not recorded. They meet w2, which has a solid border, at a matrix product; from there on every operation down to the loss is recorded."
with ExplainTape(watch_accessed_variables=False) as tape:
    tape.watch([sources["w2"], sources["b2"]])
    loss = two_layers()

w1, w2 = sources["w1"], sources["w2"]
draw(tape, loss, [w1, w2])
plt.show()

# %% [markdown]
# The first layer ran and left no record. The record begins at the first operation that meets something watched, the product with
# `w2`, and goes on to the loss.

# %%
assert explain(tape, loss, w1).code == "watching_off"
assert explain(tape, loss, inputs).code == "not_watched"
assert explain(tape, loss, w2).exists

# %% [markdown]
# Do you need three tapes for three gradients? Not for that. One tape with a list of sources returns them all, in one pass. Several tapes are of
# use when they are to record different stretches, to be dropped at different times, or when one is to record the other's gradient
# computation, as in [notebook 08](08_higher_order_gradients.ipynb).

# %%
with tf.GradientTape() as one_tape:
    one_tape.watch(inputs)
    loss = two_layers()

together = one_tape.gradient(loss, sources)
np.testing.assert_allclose(together["inputs"], gradients["inputs"]["inputs"], rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(together["w1"], gradients["default"]["w1"], rtol=1e-5, atol=1e-6)
assert all(gradient is not None for gradient in together.values())
print("one tape, all five sources: the same gradients")

# %% [markdown]
# ### Exercise: A hand on the gradient half-way (10 min)
#
# `h = first(x)` and `y = second(h)`, with `x` of shape (batch, inputs), `h` of shape (batch, units) and `y` a scalar. Between the two stretches a function `change` is to have
# its say: it takes the gradient of `y` with respect to `h` and returns another tensor of that shape, which is to be used in its place. Return the gradient for `x` that
# follows. Two tapes, one for each stretch, do it without `tf.custom_gradient`.


# %%
def changed_half_way(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        y = second(h)  # something is missing before this line
    return ...  # the gradient of y for x, with the gradient at h changed on the way


exercises.half_way.check(changed_half_way)

# %% [markdown]
# ## 3. What watching too much costs
#
# A tape records an operation if one of its inputs is watched, or was computed from something watched. To differentiate it later, it keeps tensors
# alive that Python has long dropped. So the cost depends on the watch set. How?
#
# Take a deep model and three tapes: one watches all weights, one the last layer's weight, one the inputs. Think of training, of training a new head on a
# frozen model, and of asking which input matters.
#
# The next cell defines the model, and runs it without a tape. A weak reference tells whether a tensor is still alive.

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

# %%
assert alive(references).tolist() == [0] * depth

# %% [markdown]
# **Predict.** The model has `depth` layers, each with an activation that the tape may have to keep. How many activations does each tape keep: all of
# them, one, or something between?

# %%
exercises.kept_activations.guess([..., ..., ...])  # the tape that watches all weights, the last weight, the inputs

# %%
watch_sets = {"all weights": weights, "the last weight": weights[-1:], "the inputs": [deep_inputs]}


def record(watch_set):
    """A tape that watches these sources and nothing else, the loss, and what its recording keeps alive."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watch_set)
        loss, references = deep_model()
    return tape, loss, references


kept = {}
for name, watch_set in watch_sets.items():
    tape, loss, references = record(watch_set)
    kept[name] = alive(references)
    print(f"{name:<16} {kept[name].sum():>2} tensors kept")
    del tape

# %%
exercises.kept_activations.reveal([int(count.sum()) for count in kept.values()])

# %% [markdown]
# The tape that watches the last weight keeps two: the activation that enters the last layer, for the product's derivative, and the one that leaves it, for
# that of `tanh`. Everything before does not depend on anything watched, and is not recorded.
#
# The tape that watches the inputs keeps as much as the tape that watches everything, although it has a single source. How *many* sources there are does not
# matter.

# %%
assert kept["all weights"].tolist() == [1] * depth
assert kept["the last weight"].tolist() == [0] * (depth - 2) + [1, 1]
assert kept["the inputs"].tolist() == [1] * depth

# %% alt="Memory that a tape keeps, added up over the layers. The lines for all weights and for the inputs coincide and rise straight from the first layer to the last; the line for the last weight stays at zero and rises over the last two layers."
kibibytes = 4 * batch * width / 1024
layer = np.arange(1, depth + 1)

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
styles = [("o-", plots.RED, 9), ("s--", plots.BLUE, 5), ("^:", plots.ORANGE, 5)]
for (name, count), (style, colour, size) in zip(kept.items(), styles, strict=True):
    ax.plot(layer, np.cumsum(count) * kibibytes, style, color=colour, markersize=size, label=f"watches {name}")
ax.set(title="What a tape keeps alive", xlabel="layer", ylabel="memory of kept tensors, added up (KiB)")
ax.legend()
plt.show()

# %%
assert weights[0].dtype.size == 4  # float32: the figure's unit
assert (np.cumsum(kept["all weights"]) == layer).all()

# %% [markdown]
# Memory is one half. The other half is the way back. To count it, put a probe behind each layer: an identity whose backward
# function, attached by `tf.custom_gradient` ([notebook 06](06_custom_gradients.ipynb)), counts its calls.
#
# **Predict.** You want the gradient for the *last weight*. How many probes does the way back pass, on the tape that watches that weight, and on the tape
# that watches all weights?

# %%
exercises.way_back.guess([..., ...])  # the tape that watches the last weight, the tape that watches all

# %%
passed = []


@tf.custom_gradient
def probe(h):
    def backward(upstream):
        passed.append(1)
        return upstream

    return tf.identity(h), backward


def probes_passed(watch_set, source):
    """The gradient for the source, and how many layers the backward pass visits for it."""
    passed.clear()
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(watch_set)
        h = deep_inputs
        for weight in weights:
            h = probe(tf.tanh(h @ weight))
        loss = tf.reduce_sum(h**2)
    return tape.gradient(loss, source), len(passed)


by_modest, modest = probes_passed(weights[-1:], weights[-1])
by_greedy, greedy = probes_passed(weights, weights[-1])
print("watches the last weight:", modest)
print("watches all weights:    ", greedy)

# %%
exercises.way_back.reveal([modest, greedy])

# %% [markdown]
# The gradient is the same; the work is not.

# %%
assert modest == 1
assert greedy == depth
np.testing.assert_allclose(by_modest, by_greedy, rtol=1e-5, atol=1e-6)

# %% [markdown]
# And several tapes over one run? Each has its own list of operations. But a list holds *references*, and a tensor that two tapes keep is in memory once.
#
# **Predict.** Two tapes that watch all weights record the same run, and a third that watches the last weight. How many activations
# are alive? Then the tapes are dropped, one after the other: how many are left each time?

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

left = [alive(references).sum()]
del first
left.append(alive(references).sum())
del second
left.append(alive(references).sum())
del modest_tape
left.append(alive(references).sum())

for count, when in zip(left, ("three tapes", "without first", "without second", "without any"), strict=True):
    print(f"{when:<15} {count:>2}")

# %%
exercises.dropped.reveal([int(count) for count in left])

# %% [markdown]
# A forgotten greedy tape keeps everything, however modest the others are.

# %%
assert left == [depth, depth, 2, 0]

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
# Twelve layers, as above: $h \leftarrow \tanh(h W_k)$ for $k = 1, \ldots, 12$. Tape A watches the weights of layers 4 and 8, tape B that of layer 12. Both record one run, with automatic watching
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
# ## 4. Check it independently
#
# The two slopes at 0 by central differences, in float64:


# %%
def sigmoid_numpy(x):
    return 1 / (1 + np.exp(-x))


slopes = [float(gradcheck.numerical_jacobian(f, 0.0)) for f in (np.sin, sigmoid_numpy)]
print("sin, sigmoid at 0:", [round(slope, 6) for slope in slopes])

# %%
np.testing.assert_allclose(slopes, [1.0, 0.25], rtol=1e-8)

# %% [markdown]
# The gradients of section 2, along random directions. The model is written a second time, in NumPy, as a function of one source while the others keep
# their values.

# %%
values = {source: np.asarray(value, dtype=np.float64) for source, value in sources.items()}
wanted64 = wanted.numpy().astype(np.float64)


def loss_numpy(source, value):
    v = values | {source: value}
    outputs = np.tanh(v["inputs"] @ v["w1"] + v["b1"]) @ v["w2"] + v["b2"]
    return np.sum((outputs - wanted64) ** 2)


for name, found in gradients.items():
    for source, gradient in found.items():
        if gradient is not None:
            gradcheck.check_gradient(lambda x, s=source: loss_numpy(s, x), gradient, values[source], rtol=1e-5)
    print(f"{name:<8} agrees with central differences")

# %% [markdown]
# ## Recap
#
# - Tapes that are open together record the same operations independently; each knows the paths that begin at what it watches, and is used up, paused and dropped by itself (section 1).
# - `watch_accessed_variables=False` and `watch` give each tape its own set of sources; everything else is a constant to it (section 2).
# - A tape costs what lies between its sources and the target: memory until the last tape is dropped, and a way back through all that it recorded, whichever gradient you ask for (section 3).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a tape is asked for another tape's source | `None` | ask the tape that watches it |
# | `watch_accessed_variables=False`, and a source not watched | `None` | `watch` each source before its first use |
# | one early source is watched besides a late one | memory and time as if everything were watched | a tape that watches the late source alone |
# | a tape outlives its use | its tensors stay in memory | `del tape`, or leave the function that made it |
#
# **Read next:** [08 Higher-order gradients](08_higher_order_gradients.ipynb) puts one tape inside another.
