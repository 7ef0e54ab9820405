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
# # Gradient tape basics
#
# Python runs your computation forwards, one operation after another. A `tf.GradientTape` takes notes, and can then read
# them backwards. **How does a tape turn a computation into a gradient?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/01_gradient_tape_basics.ipynb)
#
# **Prerequisites:** [00 Start here](00_start_here.ipynb) · **Time:** about 30 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - record a computation and read off its gradients, each with its source's shape (sections 1 and 2),
# - train a small network by hand, and say how far one step lowers the loss (section 3),
# - say what `gradient` returns when the target is not a scalar (section 4),
# - ask a tape about intermediate results, more than once, and choose what it watches (sections 5 and 6),
# - say what a tape keeps of an `if` and of a loop (section 7).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import gc
import weakref

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import gradient_tape_basics as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
batch = 7  # examples
inputs = 5  # numbers in each example
hidden = 8  # units of the hidden layer in section 3
outputs = 6  # numbers that the network returns for each example
learning_rate = 0.2  # of gradient descent in section 3
steps = 60  # of gradient descent in section 3

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. Recording and playback
#
# Inside the `with` block the tape **records**: each operation, with the tensors that went in and came out. `tape.gradient`
# **plays back**: it walks through the record from the end to the beginning and multiplies the local derivatives.
#
# Take $L = w^2$ at $w = 3$.
#
# **Predict.** What is $L$, and what is $\mathrm dL/\mathrm dw$?

# %%
w = tf.Variable(3.0)

with tf.GradientTape() as tape:
    loss = tf.square(w)

dl_dw = tape.gradient(loss, w)
print(f"loss     = {loss}")
print(f"dloss/dw = {dl_dw}")

# %% [markdown]
# $\mathrm dL/\mathrm dw = 2w = 6$. The first argument of `gradient` is the **target**, the result that changes; the second is
# the **source**, the input that causes the change.

# %%
assert loss == 9.0
assert dl_dw == 6.0

# %% [markdown]
# The record is a list, and each entry knows its own derivative only. Let $u = 2w + 1$ and $L = u^2$.
#
# **Predict.** What is $\mathrm dL/\mathrm dw$ at $w = 3$? Play the tape back by hand: the last operation first.

# %%
exercises.chain.guess(...)  # in place of `...`, your guess

# %%
with tf.GradientTape() as tape:
    u = 2.0 * w + 1.0
    loss = tf.square(u)

dl_dw = tape.gradient(loss, w)
print(f"loss     = {loss}")
print(f"dloss/dw = {dl_dw}")

# %%
exercises.chain.reveal(dl_dw)

# %%
assert loss == 49.0
assert dl_dw == 28.0

# %% [markdown]
# A derivative is a slope. The next cell asks a tape for the slope of $w^2$ at four points.


# %%
def square_and_slope(at):
    w = tf.Variable(at)
    with tf.GradientTape() as tape:
        loss = tf.square(w)
    return loss.numpy(), tape.gradient(loss, w).numpy()


touching = [-2.0, -0.5, 1.0, 2.5]
values, slopes = np.transpose([square_and_slope(at) for at in touching])
print("slopes:", slopes)

# %%
assert slopes.tolist() == [-4.0, -1.0, 2.0, 5.0]

# %% [markdown]
# Each slope draws a straight line through its point. If the slopes are right, the lines touch the curve and do not cross it.

# %% alt="A parabola over w with four straight lines, each of which touches it at a marked point without crossing: two lines fall on the left, two rise on the right."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
curve = np.linspace(-3.2, 3.2, 101)
ax.plot(curve, curve**2, color=plots.BLUE, label="loss = w²")
for at, value, slope in zip(touching, values, slopes, strict=True):
    near = np.array([at - 1.0, at + 1.0])
    ax.plot(
        near, value + slope * (near - at), "--", color=plots.RED, label="slope from the tape" if at == 1.0 else None
    )
ax.plot(touching, values, "o", color=plots.RED)
ax.set(title="Slopes of w², from a tape", xlabel="w", ylabel="loss")
ax.legend()
plt.show()

# %% [markdown]
# ## 2. Gradients of a dense layer
#
# A source need not be a scalar. A dense layer computes $y = xw + b$. Here `x` is one example of three numbers, shape (1, 3); the
# kernel `w` has shape (3, 2), the bias `b` has shape (2,). The loss is the mean of $y^2$.
#
# **Predict.** Which shapes do the gradients with respect to `w` and `b` have?

# %%
exercises.shapes.guess([..., ...])  # two tuples: the shape of dloss/dw, the shape of dloss/db

# %%
x = tf.constant([[1.0, 2.0, 3.0]])
w = tf.Variable([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
b = tf.Variable([-13.0, -30.0])


def record():
    """Run the layer under a new tape. Returns the tape and the loss."""
    with tf.GradientTape() as tape:
        y = x @ w + b
        loss = tf.reduce_mean(tf.square(y))
    return tape, loss


tape, loss = record()
dl_dw, dl_db = tape.gradient(loss, [w, b])
print("shape of dloss/dw:", dl_dw.shape)
print("shape of dloss/db:", dl_db.shape)

# %%
exercises.shapes.reveal([dl_dw.shape, dl_db.shape])

# %%
assert dl_dw.shape == w.shape == (3, 2)
assert dl_db.shape == b.shape == (2,)

# %% [markdown]
# The numbers were chosen so that you can follow: $y = (1, 2)$ and $\partial L/\partial y = y$, because the mean of two squares
# has the derivative $2y/2$.
#
# **Predict.** Entry $(i, j)$ of the kernel multiplies $x_i$ and adds to $y_j$. What is the gradient's row for $x_3 = 3$?

# %%
print("dloss/dw =")
print(dl_dw.numpy())
print("dloss/db =", dl_db.numpy())

# %% [markdown]
# $\partial L/\partial w_{ij} = x_i\, y_j$: the last row is $3 \cdot (1, 2)$. The bias adds to $y$ directly, so its gradient is $y$.

# %%
assert dl_dw.numpy().tolist() == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
assert dl_db.numpy().tolist() == [1.0, 2.0]

# %% [markdown]
# The sources may come in a list, in a tuple, in a dict, or in any nest of these.
#
# **Predict.** What does the tape return for `{"kernel": w, "others": [b]}`?

# %%
sources = {"kernel": w, "others": [b]}
tape, loss = record()
gradients = tape.gradient(loss, sources)

print("keys:                 ", list(gradients))
print("type under 'others':  ", type(gradients["others"]).__name__)
print("shape under 'kernel': ", gradients["kernel"].shape)

# %% [markdown]
# The answer has the structure of the question. A dict keyed by name cannot be unpacked in the wrong order, as a list can.

# %%
tf.nest.assert_same_structure(gradients, sources)
assert gradients["kernel"].numpy().tolist() == [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]]
assert gradients["others"][0].numpy().tolist() == [1.0, 2.0]

# %% [markdown]
# ### Exercise: Play a layer back by hand (8 min)
#
# Write what a tape does with a dense layer $y = xw + b$, without a tape. Given are `x` of shape (batch, inputs), `w` of shape (inputs, outputs)
# and `upstream` of shape (batch, outputs): the gradient of some loss with respect to $y$, that is, what playback has arrived at when it reaches this
# layer. Return a tuple of three tensors: the gradients of the loss with respect to `x`, `w` and `b`. The bias `b` itself, of shape (outputs,), is not needed.
#
# Above, `upstream` is the 1 by 2 matrix that holds $y = (1, 2)$, and the batch is one example. Here a batch may be larger.


# %%
def backward(x, w, upstream):
    return ..., ..., ...  # the gradients with respect to x, w and b


exercises.dense_backward.check(backward)

# %% [markdown]
# ## 3. Gradient descent by hand
#
# The gradient points uphill. To lower a loss, go the other way. Here is a small network with one hidden layer, and
# random data for it to fit.

# %%
examples = tf.random.normal((batch, inputs))
wanted = tf.random.normal((batch, outputs))

variables = {
    "w1": tf.Variable(tf.random.normal((inputs, hidden)) / np.sqrt(inputs)),
    "b1": tf.Variable(tf.zeros(hidden)),
    "w2": tf.Variable(tf.random.normal((hidden, outputs)) / np.sqrt(hidden)),
    "b2": tf.Variable(tf.zeros(outputs)),
}


def network(v):
    """The outputs for all examples, shape (batch, outputs)."""
    return tf.tanh(examples @ v["w1"] + v["b1"]) @ v["w2"] + v["b2"]


def mean_squared_error(v):
    """The loss, a scalar."""
    return tf.reduce_mean((network(v) - wanted) ** 2)


with tf.GradientTape() as tape:
    loss = mean_squared_error(variables)

gradients = tape.gradient(loss, variables)
for name, g in gradients.items():
    print(name, g.shape)

# %%
assert loss.shape == ()
for name, variable in variables.items():
    assert gradients[name].shape == variable.shape
assert gradients["w1"].shape == (inputs, hidden)
assert gradients["w2"].shape == (hidden, outputs)

# %% [markdown]
# A step of size $s$ replaces each variable $v$ by $v - s\,g$, where $g$ is its gradient. To first order the loss then falls by
# $s\,\lVert g \rVert^2$, the sum running over all entries of all gradients.
#
# **Predict.** Does a step ten times as large lower the loss ten times as much? Sketch the loss against $s$, from 0 to 10.


# %%
def loss_after(step):
    """The loss at the end of one step of that size; the variables stay as they are."""
    return mean_squared_error({name: v - step * gradients[name] for name, v in variables.items()}).numpy()


squared_norm = sum(tf.reduce_sum(g**2).numpy() for g in gradients.values())
start = loss_after(0.0)
small = 0.01
print("the loss falls:                    ", bool(loss_after(small) < start))
print(
    "by s times the squared norm, to 5%:", bool(np.isclose(start - loss_after(small), small * squared_norm, rtol=0.05))
)

# %%
assert loss_after(small) < start
np.testing.assert_allclose(start - loss_after(small), small * squared_norm, rtol=0.05)

# %% alt="The loss against the size of one step down the gradient: the curve falls along its dashed tangent at first, bends away to a marked minimum, and then climbs above the dotted line of the loss at the start."
sizes = np.linspace(0.0, 10.0, 101)
along = np.array([loss_after(size) for size in sizes])
best = int(np.argmin(along))

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(sizes, along, color=plots.BLUE, label="loss after the step")
ax.plot(sizes, start - sizes * squared_norm, "--", color=plots.RED, label="first order: start − s ‖g‖²")
ax.axhline(start, linestyle=":", color=plots.GREY, label="loss at the start")
ax.plot(sizes[best], along[best], "o", color=plots.GREEN, label="lowest point")
ax.set(title="One step down the gradient", xlabel="step size s", ylabel="mean squared error")
ax.set_ylim(0.0, 2.5 * start)
ax.legend()
plt.show()

# %% [markdown]
# The gradient is a slope *here*. It promises nothing about what lies far away: past the minimum the loss climbs, and the largest
# steps end higher than they began. That is why a learning rate is small, and why there are many steps.

# %%
assert 0 < best < len(sizes) - 1
assert along[-1] > start

# %% [markdown]
# Now take the steps. `assign_sub` subtracts in place, so that the variable stays a variable. (`v = v - …` would turn it into a tensor;
# [03 When the gradient is None](03_when_the_gradient_is_none.ipynb) shows what happens then.)
#
# One step first.

# %%
for name, variable in variables.items():
    variable.assign_sub(learning_rate * gradients[name])

print("lower than before:", bool(mean_squared_error(variables) < start))

# %%
assert mean_squared_error(variables) < start

# %% [markdown]
# **Predict.** Does each further step lower the loss by as much as the first one did?
#
# Each step needs a new tape, since the variables have changed.

# %%
losses = [start]
for _ in range(steps):
    with tf.GradientTape() as tape:
        loss = mean_squared_error(variables)
    losses.append(loss.numpy())
    for name, g in tape.gradient(loss, variables).items():
        variables[name].assign_sub(learning_rate * g)

falls = -np.diff(losses)
print("every step lowered the loss:", bool(np.all(falls > 0)))
print("the first fall was largest: ", bool(np.argmax(falls) == 0))

# %% alt="The mean squared error over the steps of gradient descent: steep at first, then flatter and flatter, always falling."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(losses, "o-", markersize=3, color=plots.BLUE)
ax.set(title="Gradient descent, by hand", xlabel="steps taken", ylabel="mean squared error")
ax.set_ylim(0.0, None)
plt.show()

# %% [markdown]
# As the gradient shrinks, so do the steps and what they gain. This loop is all of training; what
# [02 Training with a tape](02_training_with_a_tape.ipynb) adds is real data, an optimiser, and speed.

# %%
assert np.all(falls > 0)
assert losses[-1] < losses[0] / 2

# %% [markdown]
# ### Exercise: A step that never climbs (10 min)
#
# A learning rate that suits one place is too large for another. Let the loss decide. `loss` is a function from a variable or tensor to a scalar, `w` is a
# variable, and `size` is the first step size to try, a Python float.
#
# Take **one** step of gradient descent from where `w` is. Its size is the first of `size`, `size / 2`, `size / 4`, … after which the loss is *lower* than
# before. Change the variable in place, and return the size that was used. (`w` is not at a minimum, so there is one.)
#
# Example: for the sum of $w^2$ at $w = (1, -2)$, the sizes 3 and 1.5 overshoot. The size is 0.75, and `w` ends at $(-0.5, 1)$.


# %%
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    ...  # find the size, and take the step
    return size


exercises.careful_step.check(careful_step)

# %% [markdown]
# ## 4. Gradients of non-scalar targets
#
# A loss is a scalar. `gradient` does not insist on that.
#
# **Predict.** At $x = 2$ the target is $y = x \cdot (3, 4)$. Its two entries have the derivatives 3 and 4. What does the tape return?

# %%
exercises.summed.guess(...)

# %%
x = tf.Variable(2.0)

with tf.GradientTape() as tape:
    y = x * [3.0, 4.0]

dy_dx = tape.gradient(y, x)
print(f"y        = {y}")
print(f"gradient = {dy_dx}")

# %%
exercises.summed.reveal(dy_dx)

# %%
assert y.numpy().tolist() == [6.0, 8.0]
assert dy_dx == 7.0

# %% [markdown]
# A list of targets is summed in the same way.
#
# **Predict.** The targets are $x^2$ and $x^3$, at $x = 2$. What is the gradient of `[square, cube]`?

# %%
with tf.GradientTape() as tape:
    square = x * x
    cube = x * x * x

of_both = tape.gradient([square, cube], x)
print(f"gradient = {of_both}")

# %%
assert of_both == 4.0 + 12.0

# %% [markdown]
# `output_gradients` replaces the ones by weights of your own, in the shape of the target: the result is the gradient of the weighted sum.
#
# **Predict.** What do the weights (1, 0), (0, 1) and (10, 1) give for $y = x \cdot (3, 4)$?

# %%
weighted = []
for weights in ([1.0, 0.0], [0.0, 1.0], [10.0, 1.0]):
    with tf.GradientTape() as tape:
        y = x * [3.0, 4.0]
    weighted.append(tape.gradient(y, x, output_gradients=tf.constant(weights)).numpy())

print("weighted gradients:", *weighted)

# %% [markdown]
# A one and zeros select an entry; $10 \cdot 3 + 1 \cdot 4 = 34$. To get all the entries' derivatives at once, use `tape.jacobian`
# ([09 Jacobians](09_jacobians.ipynb)).

# %%
assert weighted == [3.0, 4.0, 34.0]

# %% [markdown]
# **Where it goes wrong.** A loss for each example, never reduced to one number, is a non-scalar target. There is no error message.
#
# **Predict.** With one loss for each of the `batch` examples, how many times larger is the gradient than that of their mean?

# %%
exercises.unreduced_ratio.guess(...)


# %%
def kernel_gradient(reduce):
    """The gradient of the first kernel, shape (inputs, hidden), from the losses of all examples."""
    with tf.GradientTape() as tape:
        per_example = tf.reduce_mean((network(variables) - wanted) ** 2, axis=1)
        target = reduce(per_example)
    return tape.gradient(target, variables["w1"]), target.shape


unreduced, unreduced_shape = kernel_gradient(lambda losses: losses)
print("shape of the target:          ", unreduced_shape)
print("shape of the gradient:        ", unreduced.shape)

# %% [markdown]
# The shape of the gradient gives nothing away. The fix is `reduce_mean`.

# %%
averaged, averaged_shape = kernel_gradient(tf.reduce_mean)
ratio = tf.norm(unreduced) / tf.norm(averaged)
print("shape of the target:          ", averaged_shape)
print("ratio of the gradients' norms:", round(float(ratio), 3))

# %%
exercises.unreduced_ratio.reveal(ratio)

# %%
assert unreduced_shape == (batch,)
assert averaged_shape == ()
np.testing.assert_allclose(unreduced, batch * averaged, rtol=1e-4, atol=1e-6)

# %% [markdown]
# ### Exercise: The mean that nobody recorded (6 min)
#
# `tape` has recorded `losses`, one for each example, shape (batch,). Its block is closed, and nobody reduced them. `chosen`, a tensor of booleans of shape
# (batch,), marks some of the examples (at least one). Return the gradient with respect to `w` of the mean of the *chosen* losses. The tape answers one question.


# %%
def gradient_of_chosen(tape, losses, w, chosen):
    return ...  # the gradient, with respect to w, of the mean of the chosen losses


exercises.chosen_mean.check(gradient_of_chosen)

# %% [markdown]
# ## 5. Intermediate results and persistent tapes
#
# Everything on the record can be a source, not only what you started with. Let $x = 3$, $y = x \cdot x$ and $z = y \cdot y$.
#
# **Predict.** What is $\mathrm dz/\mathrm dy$?

# %%
x = tf.Variable(3.0)

with tf.GradientTape() as tape:
    y = x * x
    z = y * y

dz_dy = tape.gradient(z, y)
print(f"dz/dy = {dz_dy}")

# %% [markdown]
# $\mathrm dz/\mathrm dy = 2y = 18$. `y` is a tensor that nobody watched, but it was computed from a watched variable while the tape ran. That puts
# it on the record.

# %%
assert dz_dy == 18.0

# %% [markdown]
# **Predict.** Now ask the same tape for $\mathrm dy/\mathrm dx$. The function below returns the gradient, or the tape's error.


# %%
def ask(tape, target, source):
    try:
        return tape.gradient(target, source)
    except RuntimeError as error:
        return f"RuntimeError: {error}"


second_answer = ask(tape, y, x)
print(second_answer)

# %% [markdown]
# A tape lets go of its record while it plays back, which frees memory early. It answers **one** call. Several sources
# in one call are fine. For several calls, say `persistent=True`.

# %%
assert isinstance(second_answer, str)
assert "non-persistent" in second_answer

# %%
with tf.GradientTape(persistent=True) as tape:
    y = x * x
    z = y * y

dz_dy, dy_dx, dz_dx = ask(tape, z, y), ask(tape, y, x), ask(tape, z, x)
print(f"dz/dy = {dz_dy}")
print(f"dy/dx = {dy_dx}")
print(f"dz/dx = {dz_dx}")

# %% [markdown]
# The chain rule, in numbers: $18 \cdot 6 = 108$.

# %%
assert dz_dy == 18.0
assert dy_dx == 6.0
assert dz_dx == 108.0

# %% [markdown]
# The price: a persistent tape holds its record until the tape itself is gone. A weak reference tells whether a tensor is still in memory.
#
# **Predict.** Python's last name for `y` is deleted. Is the tensor still there? And after `del tape`?

# %%
reference = weakref.ref(y)
del y
alive_with_tape = reference() is not None

del tape
gc.collect()
alive_without_tape = reference() is not None

print("after del y:   alive =", alive_with_tape)
print("after del tape: alive =", alive_without_tape)

# %% [markdown]
# The tape needs `y` for the derivative of `y * y`. In a large model the record holds every layer's activations, so `del tape` as soon as
# you have asked your last question.

# %%
assert alive_with_tape
assert not alive_without_tape

# %% [markdown]
# ## 6. Controlling what the tape watches
#
# A tape records an operation only if something that goes into it is watched. Trainable variables are watched at their first use. Tensors are not.
#
# **Predict.** Both cells below compute $x^2$ at $x = 3$. What do they print?

# %%
x = tf.constant(3.0)

with tf.GradientTape() as tape:
    y = x * x

unwatched = tape.gradient(y, x)
print(f"dy/dx = {unwatched}")

# %%
with tf.GradientTape() as tape:
    tape.watch(x)
    y = x * x

watched = tape.gradient(y, x)
print(f"dy/dx = {watched}")

# %%
assert unwatched is None
assert watched == 6.0

# %% [markdown]
# `watch` acts from then on. It does not bring back what has already run.
#
# **Predict.** Here `watch` comes between two uses of `x`, and $y = x^2 + 5x$. What is the gradient: 11, 6, 5 or `None`?

# %%
exercises.late_watch.guess(...)

# %%
with tf.GradientTape() as tape:
    first_term = x * x
    tape.watch(x)
    y = first_term + 5.0 * x

late = tape.gradient(y, x)
print(f"dy/dx = {late}   (the true derivative is 2x + 5 = 11)")

# %%
exercises.late_watch.reveal(late)

# %%
assert late == 5.0

# %%
with tf.GradientTape() as tape:
    tape.watch(x)
    first_term = x * x
    y = first_term + 5.0 * x

in_time = tape.gradient(y, x)
print(f"dy/dx = {in_time}")

# %%
assert in_time == 11.0

# %% [markdown]
# The other direction: `watch_accessed_variables=False` watches no variable by itself, and `watch` adds those that you want.
# `watched_variables()` lists them.
#
# **Predict.** The product is $a \cdot b$ with $a = 2$, $b = 5$, and only `a` is watched. What are the two gradients?

# %%
a = tf.Variable(2.0, name="a")
b = tf.Variable(5.0, name="b")

with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(a)
    product = a * b

names = [variable.name for variable in tape.watched_variables()]
dp_da, dp_db = tape.gradient(product, [a, b])
print("watched:", names)
print(f"d(a b)/da = {dp_da}")
print(f"d(a b)/db = {dp_db}")

# %%
assert names == ["a:0"]
assert dp_da == 5.0
assert dp_db is None

# %% [markdown]
# **Where it goes wrong.** A Keras layer's kernel is a Keras variable, which holds a `tf.Variable` and is not one.
#
# **Predict.** Does `tape.watch(layer.kernel)` work?

# %%
layer = tf.keras.layers.Dense(outputs)
layer.build((batch, inputs))

refused = None
with tf.GradientTape(watch_accessed_variables=False) as tape:
    try:
        tape.watch(layer.kernel)
    except ValueError as error:
        refused = error
print("refused with:", type(refused).__name__)

# %% [markdown]
# `watch` wants a `tf.Variable` or a tensor. **The fix:** `.value` is the `tf.Variable` inside.

# %%
assert isinstance(refused, ValueError)

# %%
with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(layer.kernel.value)
    loss = tf.reduce_mean(layer(examples) ** 2)

dl_dkernel, dl_dbias = tape.gradient(loss, [layer.kernel, layer.bias])
print("dloss/dkernel:", None if dl_dkernel is None else dl_dkernel.shape)
print("dloss/dbias:  ", dl_dbias)

# %% [markdown]
# As a *source* the Keras variable itself is accepted, by `gradient` here and by `jacobian` below. The bias was not watched, hence `None`.
#
# With each output's mean over the batch as the target, the Jacobian has the target's shape and then the source's.

# %%
with tf.GradientTape() as tape:
    means = tf.reduce_mean(layer(examples), axis=0)

dmeans_dkernel = tape.jacobian(means, layer.kernel)
print("shape of the target:  ", means.shape)
print("shape of the Jacobian:", dmeans_dkernel.shape)

# %%
assert dl_dkernel.shape == (inputs, outputs)
assert dl_dbias is None
assert dmeans_dkernel.shape == (outputs, inputs, outputs)

# %% [markdown]
# ## 7. Control flow
#
# The tape records operations, not Python. An `if` decides which operations run; the tape sees those and no others.
#
# **Predict.** `gate` is positive, so the first branch runs. What are the gradients with respect to `a`, `b` and `gate`?

# %%
exercises.one_branch.guess([..., ..., ...])  # a, b, gate

# %%
gate = tf.Variable(1.0)

with tf.GradientTape() as tape:
    result = a * a if gate > 0 else b**3  # a is 2, b is 5

with_if = tape.gradient(result, [a, b, gate])
for name, g in zip(["a", "b", "gate"], with_if, strict=True):
    print(f"d result/d {name} = {g}")

# %%
exercises.one_branch.reveal(with_if)

# %%
assert with_if[0] == 4.0
assert with_if[1] is None
assert with_if[2] is None

# %% [markdown]
# `tf.where` looks like an `if` and is none: it computes both sides and picks.
#
# **Predict.** Which of the three gradients changes, and to what?

# %%
with tf.GradientTape() as tape:
    result = tf.where(gate > 0, a * a, b**3)

with_where = tape.gradient(result, [a, b, gate])
for name, g in zip(["a", "b", "gate"], with_where, strict=True):
    print(f"d result/d {name} = {g}")

# %% [markdown]
# `b**3` ran, so `b` is on the record, with a derivative of 0. `None` means *no path*; 0 means *a path with no effect*.

# %%
assert with_where[0] == 4.0
assert with_where[1] == 0.0
assert with_where[2] is None

# %% [markdown]
# A loop may run a different number of times for each input. This one doubles its input until it reaches 100.
#
# **Predict.** From $x = 3$ it arrives at 192. What is the slope? And from $x = 7$?

# %%
exercises.doublings.guess([..., ...])  # from 3, from 7


# %%
def double_up(x):
    while x < 100.0:
        x = 2.0 * x
    return x


def value_and_slope(at):
    x = tf.constant(at)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = double_up(x)
    return y, tape.gradient(y, x)


from_3, from_7 = value_and_slope(3.0), value_and_slope(7.0)
print(f"x = 3: value {from_3[0]}, slope {from_3[1]}")
print(f"x = 7: value {from_7[0]}, slope {from_7[1]}")

# %%
exercises.doublings.reveal([from_3[1], from_7[1]])

# %%
assert from_3[0] == 192.0
assert from_3[1] == 64.0
assert from_7[0] == 112.0
assert from_7[1] == 16.0

# %% alt="A sawtooth over x: the value climbs from 100 to 200, drops back to 100, and climbs again more slowly. The dashed slope is a staircase that halves at every drop and shows no sign of the drop itself."
grid = np.linspace(2.0, 30.0, 281)
sawtooth, staircase = np.transpose([[t.numpy() for t in value_and_slope(at)] for at in grid.astype(np.float32)])
ax = plots.curve_with_derivative(
    grid, sawtooth, staircase, title="Doubling until 100", label="value", derivative_label="slope, from the tape"
)
ax.legend(loc=(0.58, 0.22))
plt.show()

# %% [markdown]
# Where the number of doublings changes, the value drops by 100. The function has no derivative there, and the tape returns one all the same: that of
# the run. A tape differentiates **what ran**, at this input; it knows nothing of what would have run next door.

# %%
assert np.all((sawtooth >= 100.0) & (sawtooth < 200.0))
np.testing.assert_allclose(staircase, sawtooth / grid, rtol=1e-5)
assert set(staircase.tolist()) == {64.0, 32.0, 16.0, 8.0, 4.0}

# %% [markdown]
# ### Exercise: None, zero or a number (4 min)
#
# `x` is a variable that holds 3. What does the tape return for each of the five results, with respect to `x`: `None`, `0.0`, or another number? Work it out on
# paper; the tape can tell you afterwards.
#
# ```python
# with tf.GradientTape(persistent=True) as tape:
#     first = x * x if x > 2.0 else 5.0 * x
#     second = tf.where(x > 5.0, x**3, 4.0 * x)
#     third = tf.where(x > 5.0, x**3, 4.0)
#     fourth = tf.constant(7.0) if x > 2.0 else x * x
#     fifth = x
#     for _ in range(int(x) - 1):
#         fifth = fifth * x
# ```

# %%
answer = {"first": ..., "second": ..., "third": ..., "fourth": ..., "fifth": ...}

exercises.what_ran.check(answer)

# %% [markdown]
# ## 8. Check it independently
#
# The network of section 3, once more, in float64. The tape's gradient of the first kernel stands against central differences of
# a NumPy function that knows nothing of tapes, or of TensorFlow: two evaluations for every entry of the kernel.

# %%
exact = {name: tf.Variable(tf.cast(variable, tf.float64)) for name, variable in variables.items()}
x64, wanted64 = tf.cast(examples, tf.float64), tf.cast(wanted, tf.float64)

with tf.GradientTape() as tape:
    prediction = tf.tanh(x64 @ exact["w1"] + exact["b1"]) @ exact["w2"] + exact["b2"]
    loss = tf.reduce_mean((prediction - wanted64) ** 2)

from_tape = tape.gradient(loss, exact["w1"])
print("shape:", from_tape.shape)


# %%
def numpy_loss(w1):
    v = {name: variable.numpy() for name, variable in exact.items()}
    prediction = np.tanh(x64.numpy() @ w1 + v["b1"]) @ v["w2"] + v["b2"]
    return np.mean((prediction - wanted64.numpy()) ** 2)


from_differences = gradcheck.numerical_jacobian(numpy_loss, exact["w1"].numpy())
agree = np.allclose(from_tape, from_differences, rtol=1e-6, atol=1e-9)
print("evaluations:", 2 * from_differences.size)
print("they agree: ", agree)

# %% [markdown]
# The tape needed one pass forwards and one backwards, whatever the number of entries. Central differences need two passes for each entry: fit for a
# check, hopeless for training.

# %%
assert from_tape.shape == from_differences.shape == (inputs, hidden)
np.testing.assert_allclose(from_tape, from_differences, rtol=1e-6, atol=1e-9)

# %% [markdown]
# ## Recap
#
# - The tape records operations and plays them back in reverse; each gradient has its source's shape, in the structure you asked for (sections 1 and 2).
# - `assign_sub` takes the step; a small step $s$ lowers the loss by about $s\,\lVert g \rVert^2$, a large one may raise it (section 3).
# - The gradient of a non-scalar target is the gradient of its sum; `output_gradients` weights that sum (section 4).
# - Intermediate tensors can be sources, `persistent=True` allows several calls, and `watch` decides what is recorded (sections 5 and 6).
# - An `if` or a loop leaves behind only the operations that ran (section 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a loss for each example, never reduced | gradients larger by the batch size, no error | `tf.reduce_mean` before the tape closes |
# | a step that is too large | the loss climbs | a smaller learning rate, more steps |
# | a second call on one tape | `RuntimeError` | one call with several sources, or `persistent=True` |
# | a persistent tape that stays in scope | memory that is not given back | `del tape` |
# | a tensor that is not watched | `None` | `tape.watch`, at the top of the block |
# | `watch` after the first use | a gradient with terms missing | `tape.watch`, at the top of the block |
# | `tape.watch(layer.kernel)` in Keras 3 | `ValueError` | `tape.watch(layer.kernel.value)` |
# | `tf.where` taken for an `if` | 0 where you expected `None` | remember that both sides are computed |
#
# **Read next:** [02 Training with a tape](02_training_with_a_tape.ipynb) trains a classifier on handwritten digits with these means;
# [03 When the gradient is None](03_when_the_gradient_is_none.ipynb) collects the ways to lose a gradient.
