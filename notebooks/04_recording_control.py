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
# # Recording control
#
# A `tf.GradientTape` writes down every operation that touches something it watches.
# **Can a tape leave out part of a computation, or start over?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/04_recording_control.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Time:** about 15 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - keep part of a computation off the tape with `stop_recording` (section 1),
# - say what that saves, and measure it (section 2),
# - start a tape over with `reset`, and say what becomes of the tensors it watched (section 3).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import gc
import weakref

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import recording_control as exercises
from tapelab.explain import ExplainTape, draw, explain

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
depth = 12  # layers of the model in section 2
width = 64  # units of each layer
batch = 128  # examples

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. Stop recording
#
# Take $z = x^2 + y^2$ at $x = 2$, $y = 3$. Both partial derivatives exist: $\partial z/\partial x = 2x = 4$ and
# $\partial z/\partial y = 2y = 6$.
#
# `tape.stop_recording()` opens a block in which the tape writes nothing. The operations inside it still run.
#
# **Predict.** Below, `y * y` is computed inside such a block. What is `z`? What are the two gradients: numbers, or `None`?

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

# %%
exercises.block.reveal([z, dz_dx, dz_dy])

# %% [markdown]
# The block changes what is *recorded*, not what is *computed*. To the tape, `y_squared` is a constant that came from nowhere.

# %%
assert z.numpy() == 13.0
assert dz_dx.numpy() == 4.0
assert dz_dy is None

# %% [markdown]
# A picture of what the tape wrote down. `ExplainTape` is a `tf.GradientTape` that also keeps a log of what it saw; `draw` shows it, and
# `explain` says in words why a gradient is `None` (notebook [03](03_when_the_gradient_is_none.ipynb), section 10).
#
# Each box is an operation, with the line of the cell that ran it; the rounded boxes are the sources and the target. Time runs
# downwards. A solid border and a filled circle mean *recorded*; a dashed border and an empty circle mean *not recorded*. The dashed arrow
# with a cross is where the gradient is cut, and says by what.

# %% alt="A graph that runs downwards from the sources x and y to z. From x, solid arrows lead through a recorded multiplication and a recorded addition to z. From y, a dashed arrow marked recording stopped leads to a multiplication with a dashed border, not recorded, and on to the same addition."
with ExplainTape() as tape:
    x_squared = x * x
    with tape.stop_recording():
        y_squared = y * y
    z = x_squared + y_squared

why = explain(tape, z, y)
print(why.code)
draw(tape, z, [x, y])
plt.show()

# %% [markdown]
# The multiplication on the right ran: its value goes into the sum. The way back from `z` ends at the sum's other side.

# %%
assert why.code == "recording_stopped"
assert why.line.text == "y_squared = y * y"
assert explain(tape, z, x).exists

# %% [markdown]
# The block pauses the *tape*, for everything. It does not cut one path: whatever else runs inside it is lost too.
#
# **Predict.** Now `x_squared` moves into the block as well, and `z` adds a recorded $3x$. What is $\partial z/\partial x$?

# %%
exercises.loses_silently.guess(...)

# %%
with tf.GradientTape() as tape:
    with tape.stop_recording():
        x_squared = x * x
        y_squared = y * y
    z = x_squared + y_squared + 3.0 * x

dz_dx = tape.gradient(z, x)
print("z     =", z.numpy())
print("dz/dx =", dz_dx.numpy(), " (the true derivative is 2x + 3 = 7)")

# %%
exercises.loses_silently.reveal(dz_dx)

# %% [markdown]
# The tape returns the derivative of what it saw. There is no `None` to warn you, because one path is left.

# %%
assert z.numpy() == 19.0
assert dz_dx.numpy() == 3.0

# %% [markdown]
# A tape that has not been opened has nothing to pause, and says so.

# %%
unopened = tf.GradientTape()
try:
    with unopened.stop_recording():
        pass
except RuntimeError as error:
    message = str(error)
print(message)

# %%
assert "not recording" in message

# %% [markdown]
# ## 2. What it saves
#
# The usual reason for `stop_recording` is a quantity that you want to *see* and not to *differentiate*: a metric in the
# middle of a model. Here it is the entropy of each layer's activations, read as probabilities:
# $H = -\sum_j p_j \log p_j$ with $p = \operatorname{softmax}(h)$.
#
# To differentiate an operation later, the tape keeps its inputs and outputs. A recorded metric therefore keeps its
# intermediate tensors alive, long after Python has dropped them.
#
# **Predict.** The model has one matrix product and one `tanh` for each layer. The metric needs a softmax, a logarithm, a
# product, and two reductions. By which factor does recording the metric raise what the tape keeps: 1.1, 2, or more?

# %%
exercises.factor.guess(...)

# %% [markdown]
# The next cell defines the model; a weak reference tells later whether a tensor is still alive.

# %%
weights = [tf.Variable(tf.random.normal((width, width)) / np.sqrt(width)) for _ in range(depth)]
inputs = tf.random.normal((batch, width))


def entropy(h, made):
    """The mean entropy of softmax(h), a scalar; the tensors made on the way are appended to `made`."""
    p = tf.nn.softmax(h)
    log_p = tf.math.log(p)
    terms = p * log_p
    made += [weakref.ref(tensor) for tensor in (p, log_p, terms)]
    return -tf.reduce_mean(tf.reduce_sum(terms, axis=1))


def forward(tape, record_metric):
    """Run the model. Returns the loss, each layer's entropy, and each layer's list of weak references."""
    h, entropies, references = inputs, [], []
    for weight in weights:
        product = h @ weight
        h = tf.tanh(product)
        made = [weakref.ref(product), weakref.ref(h)]
        if record_metric:
            entropies.append(entropy(h, made).numpy())
        else:
            with tape.stop_recording():
                entropies.append(entropy(h, made).numpy())
        references.append(made)
    return tf.reduce_mean(h**2), entropies, references


# %% [markdown]
# Run it both ways, and count the bytes of the tensors that are still alive while the tape waits to be asked.


# %%
def kept_bytes(references):
    """Bytes of the tensors in each layer's list that are still alive, shape (layers,)."""
    gc.collect()
    alive = [[tensor for tensor in (reference() for reference in made) if tensor is not None] for made in references]
    return np.array([sum(tensor.dtype.size * int(tf.size(tensor)) for tensor in tensors) for tensors in alive])


kept, gradients, entropies = {}, {}, {}
for record_metric in (True, False):
    with tf.GradientTape() as tape:
        loss, entropies[record_metric], references = forward(tape, record_metric)
    kept[record_metric] = kept_bytes(references)
    gradients[record_metric] = tape.gradient(loss, weights)
    del tape

tensor_bytes = 4 * batch * width
print("tensors kept for each layer, metric recorded:    ", kept[True].max() // tensor_bytes)
print("tensors kept for each layer, metric not recorded:", kept[False].max() // tensor_bytes)

# %%
exercises.factor.reveal(kept[True].max() // kept[False].max())

# %% [markdown]
# What `tanh` needs for its derivative $1 - \tanh^2$ is its own output. Nobody ever asks for the metric's gradient.
#
# The metric's values and the loss's gradients are the same in both runs.

# %%
assert kept[True].max() == 4 * tensor_bytes
assert kept[False].max() == tensor_bytes
np.testing.assert_array_equal(entropies[True], entropies[False])
for with_metric, without_metric in zip(gradients[True], gradients[False], strict=True):
    np.testing.assert_allclose(with_metric, without_metric, rtol=1e-5, atol=1e-7)

# %% alt="Two rising straight lines over the layer number: the memory that the tape keeps when the metric is recorded grows four times as fast as when it is not."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
layer = np.arange(1, depth + 1)
ax.plot(layer, np.cumsum(kept[True]) / 1024, "o-", color=plots.RED, label="metric recorded")
ax.plot(layer, np.cumsum(kept[False]) / 1024, "s--", color=plots.BLUE, label="metric under stop_recording")
ax.set(title="What a tape keeps alive", xlabel="layer", ylabel="memory of kept tensors (KiB)")
ax.legend()
plt.show()

# %%
# Every layer costs the same, so the two lines are straight; their slopes are what one layer keeps.
assert len(set(kept[True])) == 1
assert len(set(kept[False])) == 1

# %% [markdown]
# ### Exercise: A metric that costs no memory (5 min)
#
# Return two scalars: the sum of the entries of $x^3$, which is the loss, and their largest magnitude, a metric. The tape is open, and
# it must be able to differentiate the loss. It must not record the metric. Compute $x^3$ once.


# %%
def loss_and_metric(tape, x):
    cube = x**3
    return ...  # the sum of cube, and the largest magnitude in cube


exercises.metric_off.check(loss_and_metric)

# %% [markdown]
# ## 3. Reset: start over
#
# `tape.reset()` empties the tape and goes on recording. Closing the `with` block and opening a new tape is easier to read.
# `reset` is for the case in which the code cannot leave the block, as in a loop that decides late to discard its beginning.
#
# **Predict.** The same $z = x^2 + y^2$. This time `y * y` *is* recorded, and then the tape is reset. Which gradients exist?

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

# %% [markdown]
# The numbers are those of section 1, for the same reason: no record of `y * y` is left.

# %%
assert z.numpy() == 13.0
assert dz_dx.numpy() == 4.0
assert dz_dy is None

# %% [markdown]
# `reset` also forgets *what the tape watched*. A trainable variable does not notice: the tape watches it again at its next
# use. A tensor that you watched by hand does.
#
# **Predict.** Both `v` (a variable) and `t` (a watched tensor) are used after the reset. Which of the two gradients exists?

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

# %%
exercises.after_reset.reveal("v" if dp_dv is not None and dp_dt is None else "not v alone")

# %%
assert dp_dv.numpy() == 5.0
assert dp_dt is None

# %% [markdown]
# The cure is to watch again after every reset.

# %%
with tf.GradientTape() as tape:
    tape.watch(t)
    tape.reset()
    tape.watch(t)
    product = v * t

dp_dv, dp_dt = tape.gradient(product, [v, t])
print("d(v t)/dv =", dp_dv.numpy())
print("d(v t)/dt =", dp_dt.numpy())

# %%
assert dp_dv.numpy() == 5.0
assert dp_dt.numpy() == 3.0

# %% [markdown]
# The list of `watched_variables()` is emptied in the same way, so it tells you what was used *since the last reset*.

# %%
first = tf.Variable(1.0, name="first")
second = tf.Variable(1.0, name="second")

with tf.GradientTape() as tape:
    _ = first * 2.0
    before = [variable.name for variable in tape.watched_variables()]
    tape.reset()
    _ = second * 2.0
    after = [variable.name for variable in tape.watched_variables()]

print("before the reset:", before)
print("after the reset: ", after)

# %%
assert before == ["first:0"]
assert after == ["second:0"]

# %% [markdown]
# ### Exercise: Differentiate the last steps only (10 min)
#
# A recurrent step, $h \leftarrow \tanh(w h)$, runs `steps` times. Return the gradient of the last $h$ with respect to `w`, a tensor, as if the
# state before the last `keep` steps were a given constant: the value runs through all steps, the gradient through the last `keep`. Keep the one loop and
# the one tape.


# %%
def truncated_gradient(w, h, steps, keep):
    with tf.GradientTape() as tape:
        tape.watch(w)
        for step in range(steps):
            h = tf.tanh(w * h)  # something is missing before this line
    return ...  # the gradient of h with respect to w, through the last `keep` steps


exercises.truncated.check(truncated_gradient)

# %% [markdown]
# ## 4. Check it independently
#
# What a tape returned in section 1 can be stated without a tape. With `y_squared` frozen at 9, $z$ is a function of $x$
# alone, and central differences of *that* function give the tape's answer. With nothing frozen they give the derivatives that
# the tape was told to leave out.


# %%
def z_frozen(x):
    return x**2 + 9.0


def z_full(xy):
    return xy[0] ** 2 + xy[1] ** 2


frozen = gradcheck.numerical_jacobian(z_frozen, 2.0)
full = gradcheck.numerical_jacobian(z_full, [2.0, 3.0])
print(f"y*y frozen:     dz/dx = {frozen:.4f}")
print(f"nothing frozen: dz/dx = {full[0]:.4f}, dz/dy = {full[1]:.4f}")

# %%
np.testing.assert_allclose(frozen, 4.0, rtol=1e-8)
np.testing.assert_allclose(full, [4.0, 6.0], rtol=1e-8)

# %% [markdown]
# ## Recap
#
# - `with tape.stop_recording():` runs a block and keeps it off the tape; what is computed there is a constant to the tape (section 1).
# - It saves the memory of every tensor that the block's operations would have kept alive: here three quarters of it (section 2).
# - `tape.reset()` forgets all records and everything that was watched; variables are watched again when they are next used, tensors are not (section 3).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a quantity that the loss needs is computed inside the block | a gradient that is too small, without a warning | keep only what you never differentiate inside |
# | all paths run through the block | `None` | move the computation out of the block |
# | a watched tensor is used after `reset` | `None` | `watch` it again |
# | `stop_recording` on a tape that is not open | `RuntimeError` | call it inside the tape's `with` block |
#
# **Read next:** [05 Stop gradient](05_stop_gradient.ipynb) cuts one path and leaves the tape running.
