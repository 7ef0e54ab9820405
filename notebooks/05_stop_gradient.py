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
# # Stop gradient
#
# A tape that records everything can still be told where a gradient must not go.
# **How do you cut one path and keep the others?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/05_stop_gradient.ipynb)
#
# **Prerequisites:** [04 Recording control](04_recording_control.ipynb) · **Time:** about 20 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - cut a path with `tf.stop_gradient`, and say which gradients that changes (section 1) and which it leaves alone (section 2),
# - choose between `stop_gradient` and `stop_recording` (section 3),
# - train through a rounding with a straight-through estimator (section 4),
# - hold a moving target still, and say what goes wrong otherwise (section 5),
# - say what `stop_gradient` saves and what it does not (section 6).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import gc
import weakref

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import stop_gradient as exercises
from tapelab.explain import ExplainTape, draw, explain
from tapelab.interactive import paths

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
examples = 64  # of the regression in section 4
steps = 60  # of its training
learning_rate = 0.05  # of its training
states = 5  # of the random walk in section 5
sweeps = 300  # of its training; more than seven states need more
depth = 6  # operations of the branch in section 6

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. Cut one path
#
# `tf.stop_gradient(t)` returns the value of `t`. Backwards, nothing passes through it: to every tape, its result is a constant.
#
# **Predict.** $z = x^2 + y^2$ at $x = 2$, $y = 3$, with `tf.stop_gradient` around the second square. What are `z` and the two gradients?

# %%
x = tf.Variable(2.0)
y = tf.Variable(3.0)

with tf.GradientTape() as tape:
    z = x**2 + tf.stop_gradient(y**2)

dz_dx, dz_dy = tape.gradient(z, [x, y])
print("z     =", z.numpy())
print("dz/dx =", dz_dx.numpy())
print("dz/dy =", dz_dy)

# %% [markdown]
# The numbers are those of `stop_recording` and of `reset` in notebook [04](04_recording_control.ipynb): `z` is complete, and no path leads back
# to $y$.

# %%
assert z.numpy() == 13.0
assert dz_dx.numpy() == 4.0
assert dz_dy is None

# %% [markdown]
# The cut is at one place, and it matters which side of it you ask about.
#
# **Predict.** $z = u^2$ with $u = w\,(y^2)$, and the cut is around $y^2 = 9$. With $w = 2$: which of the gradients with respect to $w$ and $y$
# exists, and what is it?

# %%
exercises.side_of_cut.guess([..., ...])  # in place of each `...`, a number or None: dz/dw, dz/dy

# %%
w = tf.Variable(2.0)
with tf.GradientTape() as tape:
    u = w * tf.stop_gradient(y**2)
    z = u**2

dz_dw, dz_dy = tape.gradient(z, [w, y])
print("dz/dw =", dz_dw.numpy())
print("dz/dy =", dz_dy)

# %%
exercises.side_of_cut.reveal([dz_dw, dz_dy])

# %% [markdown]
# Everything between the cut and the target still learns. Everything before the cut does not. That is how the first layers of a network are
# frozen: one `stop_gradient` after them.

# %%
assert dz_dw.numpy() == 324.0
assert dz_dy is None

# %% [markdown]
# ## 2. A path, not a variable
#
# It would be wrong to say that `stop_gradient` "freezes $y$". It knows nothing of $y$.
#
# **Predict.** $z = x^2 + y^2 + 5y$, with the same cut around $y^2$. The true derivative is $2y + 5 = 11$. What does the tape return?

# %%
exercises.open_path.guess(...)

# %%
with tf.GradientTape() as tape:
    z = x**2 + tf.stop_gradient(y**2) + 5.0 * y

dz_dy = tape.gradient(z, y)
print("z     =", z.numpy())
print("dz/dy =", dz_dy.numpy())

# %%
exercises.open_path.reveal(dz_dy)

# %% [markdown]
# The value is complete, and the gradient is that of $5y$ alone.

# %%
assert z.numpy() == 28.0
assert dz_dy.numpy() == 5.0

# %% [markdown]
# A picture of the two paths. `ExplainTape` is a `tf.GradientTape` that also keeps a log of what it saw, and `draw` shows it (notebook
# [03](03_when_the_gradient_is_none.ipynb), section 10). The sum is written in four lines here, so that each box can name its own.
#
# Each box is an operation; time runs downwards. A solid border and a filled circle mean *recorded*, a dashed border and an empty circle *not
# recorded*. The dashed arrow with a cross is where the gradient is cut.

# %% alt="A graph that runs downwards from y to z on two paths. On one, y is squared, and a dashed arrow marked stop_gradient leads to a box with a dashed border, not recorded, and from there into the sum. On the other, solid arrows lead from y through a recorded multiplication into the sum."
with ExplainTape() as tape:
    square = y**2
    cut = tf.stop_gradient(square)
    straight = 5.0 * y
    z = cut + straight

draw(tape, z, y)
plt.show()

# %% [markdown]
# The square *was* recorded: the cut comes after it. What `stop_gradient` returns is a constant to the tape, so nothing before it can be
# reached that way. Backwards from `z`, one path ends at the cross, and the other arrives at `y`.
#
# So `explain`, which says why a gradient is `None`, says here that it exists. It has an answer for the closed path alone.

# %%
assert tape.gradient(z, y).numpy() == 5.0
assert explain(tape, z, y).exists
why = explain(tape, cut, y)
assert why.code == "stop_gradient"
assert why.line.text == "cut = tf.stop_gradient(square)"
print("z:  ", explain(tape, z, y).code)
print("cut:", why.code)

# %% [markdown]
# A path can be as short as one factor.
#
# **Predict.** Each line below has the value $y^2 = 9$. What are the gradients?

# %%
exercises.factors.guess([..., ..., ...])  # no factor cut, one, both

# %%
with tf.GradientTape(persistent=True) as tape:
    neither = y * y
    one_factor = y * tf.stop_gradient(y)
    both_factors = tf.stop_gradient(y) * tf.stop_gradient(y)

gradients = [tape.gradient(target, y) for target in (neither, one_factor, both_factors)]
del tape
print("no factor cut:   ", gradients[0].numpy())
print("one factor cut:  ", gradients[1].numpy())
print("both factors cut:", gradients[2])

# %%
exercises.factors.reveal(gradients)

# %% [markdown]
# Note that the middle line gives a number that is wrong for $y^2$, without a warning.

# %%
assert neither.numpy() == one_factor.numpy() == both_factors.numpy() == 9.0
assert gradients[0].numpy() == 6.0
assert gradients[1].numpy() == 3.0
assert gradients[2] is None

# %% [markdown]
# Now move the cut yourself. Three paths lead from $x$ to $z = f(x)\,g(x) + h(x)$, with $f(x) = x^2$, $g(x) = \cos x$ and $h(x) = x$. On the left you see the
# paths: a thick arrow carries the gradient back, a dashed one with a cross is cut. On the right there is $z$ with two tangents at $x$: the true one
# (wide and grey) and the one that the tape's gradient gives (dashed). The dotted curve holds what is cut at its present value.
#
# **Predict.** Before you move anything: at which cut has the tape's tangent the same slope wherever $x$ is? Then look for a cut and an $x$ at which the
# tape says *up* and the truth is *down*, and for the curve that the dashed tangent touches.

# %% alt="Left: a graph of the paths from x through f, g and h to z; the arrow from f is dashed and has a cross. Right: the curve of z over x, with a wide grey tangent and a dashed red one of another slope at the same point; the red one touches a dotted curve."
paths.figure().show()

# %% [markdown]
# With $f$ and $g$ both cut, the path through $h$ is left, and its slope is 1 everywhere. The dashed tangent always touches the *dotted* curve: a tape with a cut
# gives the exact derivative of another function, in which what is cut does not move.

# %%
assert all(paths.gradient(x, ("f", "g")) == 1.0 for x in (-3.0, 0.0, 1.4, 3.0))
assert paths.gradient(1.4, ()) < 0 < paths.gradient(1.4, ("g",))

# %% [markdown]
# ### Exercise: One loss, two learners (5 min)
#
# `scores`, `values` and `rewards` are vectors of one length. An actor learns `scores` and a critic learns `values`, from one loss:
#
# $$\sum_i (r_i - v_i)^2 - \sum_i s_i\,(r_i - v_i).$$
#
# The first sum is the critic's, the second the actor's. Return the loss, a scalar. Its value stays as it is. The gradient for `scores` shall come from the
# actor's term, and the gradient for `values` from the critic's term alone.


# %%
def loss_of_both(scores, values, rewards):
    error = rewards - values
    critic = tf.reduce_sum(error**2)
    actor = -tf.reduce_sum(scores * error)
    return ...  # critic + actor, with a cut somewhere above


exercises.two_learners.check(loss_of_both)

# %% [markdown]
# ## 3. Cut a path, or pause a tape?
#
# `stop_recording` and `stop_gradient` gave the same numbers in section 1. They differ in *whom* they tell. `stop_recording` is a message to one
# tape. `stop_gradient` is part of the computation, and holds for all who differentiate it.
#
# **Predict.** Two tapes, one inside the other, and $z = y^2 + y$ at $y = 3$. The square is kept from the inner tape with `stop_recording`, and then with
# `stop_gradient`. What does each tape return? (Without any of this it is $2y + 1 = 7$.)

# %%
exercises.whom.guess([..., ..., ..., ...])  # stop_recording: inner, outer; stop_gradient: inner, outer

# %%
with tf.GradientTape() as outer, tf.GradientTape() as inner:
    with inner.stop_recording():
        square = y * y
    z = square + y
paused = [inner.gradient(z, y).numpy(), outer.gradient(z, y).numpy()]

with tf.GradientTape() as outer, tf.GradientTape() as inner:
    z = tf.stop_gradient(y * y) + y
stopped = [inner.gradient(z, y).numpy(), outer.gradient(z, y).numpy()]

print("stop_recording: inner tape", paused[0], " outer tape", paused[1])
print("stop_gradient:  inner tape", stopped[0], " outer tape", stopped[1])

# %%
exercises.whom.reveal(paused + stopped)

# %%
assert paused == [1.0, 7.0]
assert stopped == [1.0, 1.0]

# %% [markdown]
# So a function can cut its own path, without knowing which tape is running, or whether one is. That works inside a layer, inside a
# `tf.function`, and in forward mode too.
#
# **Predict.** `partly` computes $x^2 + x^3$ with a cut around the cube. At $x = 2$ the full derivative is $4 + 12$. What do a compiled call and
# forward mode give?


# %%
def partly(x):
    return x**2 + tf.stop_gradient(x**3)


compiled = tf.function(partly)
x = tf.constant(2.0)

with tf.GradientTape() as tape:
    tape.watch(x)
    y_reverse = compiled(x)
reverse = tape.gradient(y_reverse, x)

with tf.autodiff.ForwardAccumulator(primals=x, tangents=tf.constant(1.0)) as accumulator:
    y_forward = partly(x)
forward = accumulator.jvp(y_forward)

print("value:              ", y_reverse.numpy(), "and", y_forward.numpy())
print("tf.function, a tape:", reverse.numpy())
print("forward mode:       ", forward.numpy())

# %%
np.testing.assert_allclose([y_reverse, y_forward], 12.0, rtol=1e-6)
np.testing.assert_allclose([reverse, forward], 4.0, rtol=1e-6)

# %% [markdown]
# | | `tape.stop_recording()` | `tf.stop_gradient(t)` |
# |---|---|---|
# | what it is | a block | an operation on one tensor |
# | whom it tells | one tape | every tape, and forward mode |
# | what it cuts | all that runs in the block | the paths through `t` |
# | where it works | where the tape is at hand | anywhere |

# %% [markdown]
# ## 4. A straight-through estimator
#
# A cut can also *replace* a derivative. Rounding is a staircase, and its gradient is `None`: nothing can be trained through it. Now write
#
# $$q = x + \operatorname{stop}(\operatorname{round}(x) - x).$$
#
# **Predict.** What is the value of $q$ at $x = 0.7$? What is its gradient: `None`, 0 or 1?

# %%
exercises.straight.guess([..., ...])  # value, gradient


# %%
def straight_through_round(x):
    """Round to whole numbers; backwards, behave like the identity."""
    return x + tf.stop_gradient(tf.round(x) - x)


x = tf.Variable(0.7)
with tf.GradientTape(persistent=True) as tape:
    rounded = tf.round(x)
    q = straight_through_round(x)
plain_gradient = tape.gradient(rounded, x)
estimate = tape.gradient(q, x)
del tape

print("tf.round:        value", rounded.numpy(), " gradient", plain_gradient)
print("straight through: value", q.numpy(), " gradient", estimate.numpy())

# %%
exercises.straight.reveal([q, estimate])

# %% [markdown]
# The gradient is that of another function than the one that was computed. That is the purpose.

# %%
assert rounded.numpy() == q.numpy() == 1.0
assert plain_gradient is None
assert estimate.numpy() == 1.0

# %% alt="A staircase that climbs from -3 to 3 in whole steps over x from -3 to 3, and a flat dashed line at 1: the gradient that is passed through."
line = tf.linspace(-3.0, 3.0, 301)
with tf.GradientTape() as tape:
    tape.watch(line)
    stairs = straight_through_round(line)
passed = tape.gradient(stairs, line)

ax = plots.curve_with_derivative(
    line,
    stairs,
    passed,
    title="Rounding with a straight-through gradient",
    label="value",
    derivative_label="gradient passed back",
)
ax.set(ylabel="value, gradient")
plt.show()

# %%
np.testing.assert_array_equal(stairs, tf.round(line))
np.testing.assert_array_equal(passed, tf.ones_like(line))

# %% [markdown]
# Put it to work: a linear model whose five weights must be whole numbers, as for hardware without fractions. The data come from five
# whole numbers between -3 and 3.
#
# **Predict.** The weights are rounded in the forward pass and trained by gradient descent. With `tf.round`, what is the gradient of the
# loss? With the straight-through version, can the loss reach zero?

# %%
true_weights = np.random.default_rng(seed).integers(-3, 4, size=(5, 1)).astype(np.float32)
features = tf.random.normal((examples, 5))
labels = features @ true_weights


def loss_with(rounding, latent):
    """The mean squared error of a linear model with rounded weights, a scalar."""
    return tf.reduce_mean((features @ rounding(latent) - labels) ** 2)


latent = tf.Variable(tf.zeros((5, 1)))
with tf.GradientTape() as tape:
    loss = loss_with(tf.round, latent)
no_gradient = tape.gradient(loss, latent)
print("through tf.round:", no_gradient)

# %%
assert no_gradient is None

# %% [markdown]
# The trained weights are *latent*: they stay fractions, so that small steps add up, and only their rounded values are used.

# %%
history, losses = [], []
for _ in range(steps):
    with tf.GradientTape() as tape:
        loss = loss_with(straight_through_round, latent)
    gradient = tape.gradient(loss, latent)
    history.append(latent.numpy().ravel())
    losses.append(float(loss))
    latent.assign_sub(learning_rate * gradient)

found = tf.round(latent).numpy()
print("every weight found:", bool((found == true_weights).all()))
print("loss is zero:      ", losses[-1] < 1e-9)

# %%
assert (found == true_weights).all()
assert losses[-1] < 1e-9

# %% alt="Left: five latent weights start at zero, move over the training steps, and come to rest, each within half a unit of a dashed whole number. Right: the loss changes in jumps and reaches zero."
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
history = np.array(history)
colours = [plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.GREY]
for index, colour in enumerate(colours):
    left.plot(history[:, index], color=colour, label=f"weight {index}")
    left.axhline(true_weights[index, 0], color=colour, linestyle="--", linewidth=0.8)
left.set(title="Latent weights (true values dashed)", xlabel="training step", ylabel="weight")
left.set_xlim(right=1.45 * steps)  # room for the legend
left.legend(fontsize="small", loc="center right")
right.plot(losses, color=plots.BLUE)
right.set(title="Loss of the rounded model", xlabel="training step", ylabel="mean squared error")
plt.show()

# %% [markdown]
# The latent weights do not stop *at* the whole numbers. Each stops somewhere in the interval that rounds to the right one: once all five are
# right, the error is zero, and so is the gradient.

# %%
assert np.abs(history[-1] - true_weights.ravel()).max() <= 0.5

# %% [markdown]
# ### Exercise: A hard choice with a soft gradient (10 min)
#
# `scores` has shape (batch, classes). Return a tensor of that shape and dtype: in each row a 1 at the largest score and 0 elsewhere. That choice is flat, so
# let the gradient be that of the softmax of each row: for any upstream gradient, `tape.gradient` shall return what it returns for
# `tf.nn.softmax(scores, axis=1)`.


# %%
def choose(scores):
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    return ...  # the value of hard, the gradient of the softmax


exercises.hard_choice.check(choose)

# %% [markdown]
# ### Exercise: Turn a gradient round (8 min)
#
# Return a tensor with the value, shape and dtype of `x`. Backwards, the upstream gradient shall be multiplied by `factor`, a Python number, which may be
# negative. Use `tf.stop_gradient` and arithmetic, nothing else. `x` has any shape.


# %%
def scale_gradient(x, factor):
    return ...  # the value of x; backwards, factor times the upstream gradient


exercises.turn_gradient.check(scale_gradient)

# %% [markdown]
# ## 5. A target that holds still
#
# Sometimes a model is trained towards a value that it computes itself. Take a walker on a line of places (five, unless you changed `states`), with an exit at either end. Each step goes
# left or right, with equal chances. The right exit pays 1, the left one nothing. What is each place *worth*: what payment is to be expected from there?
#
# A place is worth the average of what its two neighbours are worth. So one takes each step from place $s$ to place $s'$, and trains the table $V$ to bring
# $V(s)$ closer to the target $r + V(s')$, with the payment $r$. But the target contains $V$ as well.
#
# First the possible steps: two from each place, all equally frequent. Place 0 is the left exit, the last one the right exit.

# %%
start = tf.repeat(tf.range(1, states + 1), 2)
arrival = start + tf.tile([-1, 1], [states])
payment = tf.cast(arrival == states + 1, tf.float32)
print("from:   ", start.numpy())
print("to:     ", arrival.numpy())
print("payment:", payment.numpy())

# %%
assert start.shape == arrival.shape == payment.shape == (2 * states,)
assert tf.reduce_sum(payment).numpy() == 1.0

# %% [markdown]
# The squared difference has two paths to $V$: through the prediction $V(s)$ and through the target. `cut` closes the second.


# %%
def loss_of(values, cut):
    """A quarter of the squared differences' sum over all steps, a scalar; values has shape (states,)."""
    with_exits = tf.pad(values, [[1, 1]])  # nothing more to earn at the exits
    target = payment + tf.gather(with_exits, arrival)
    if cut:
        target = tf.stop_gradient(target)
    prediction = tf.gather(with_exits, start)
    return 0.25 * tf.reduce_sum((target - prediction) ** 2)


# %% [markdown]
# **Predict.** Put the true values into the table; for five places they are $1/6, 2/6, \ldots, 5/6$. Nothing is left to learn. Is the gradient zero with
# the target's path cut? With both paths open?

# %%
exercises.at_the_truth.guess([..., ...])  # True or False: zero with the path cut, zero with both open

# %%
truth = np.arange(1, states + 1) / (states + 1)
values = tf.Variable(truth, dtype=tf.float32)
with tf.GradientTape(persistent=True) as tape:
    loss_open = loss_of(values, cut=False)
    loss_cut = loss_of(values, cut=True)
gradient_open = tape.gradient(loss_open, values).numpy()
gradient_cut = tape.gradient(loss_cut, values).numpy()
del tape

print("equal losses:", loss_open.numpy() == loss_cut.numpy())
print(f"largest gradient, target's path cut:  {abs(gradient_cut).max():.4f}")
print(f"largest gradient, target's path open: {abs(gradient_open).max():.4f}")

# %%
exercises.at_the_truth.reveal([bool(abs(gradient).max() < 1e-6) for gradient in (gradient_cut, gradient_open)])

# %% [markdown]
# One loss, two gradients. With the cut, the truth is where descent comes to rest. With both paths open, descent *leaves* the truth.

# %%
assert loss_open.numpy() == loss_cut.numpy()
np.testing.assert_allclose(gradient_cut, np.zeros(states), atol=1e-6)
np.testing.assert_allclose(abs(gradient_open).max(), 0.5 / (states + 1), rtol=1e-4)  # 1/12 for five places

# %% [markdown]
# Where does it go? Train both tables from zero. (`tf.function` compiles one sweep over all steps, for speed.)


# %%
def trained(cut):
    """The table after training from zero, and its loss."""
    values = tf.Variable(tf.zeros(states))

    @tf.function
    def sweep():
        with tf.GradientTape() as tape:
            loss = loss_of(values, cut)
        values.assign_sub(0.5 * tape.gradient(loss, values))
        return loss

    for _ in range(sweeps):
        loss = sweep()
    return values.numpy(), float(loss)


values_cut, loss_cut = trained(cut=True)
values_open, loss_open = trained(cut=False)
print("true values:       ", truth.round(3))
print("target's path cut: ", values_cut.round(3))
print("target's path open:", values_open.round(3))

# %% [markdown]
# Cut, the table finds the truth. Open, it settles on values that are too close to each other: for five places $2/8, 3/8, \ldots, 6/8$. It was not trained too
# little. It has found the minimum of what it was asked to minimise, and its loss is *lower* than the truth's. With both paths open, gradient descent
# also moves the targets towards the predictions: the values of all neighbours are drawn together.

# %%
np.testing.assert_allclose(values_cut, truth, atol=1e-4)
np.testing.assert_allclose(values_open, np.arange(2, states + 2) / (states + 3), atol=1e-4)
assert loss_open < loss_cut

# %% alt="Value against place for each place. The trained values with the cut lie on the straight line of the true values. Without the cut they lie on a flatter straight line that crosses it in the middle."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
place = np.arange(1, states + 1)
ax.plot(place, truth, "-", color=plots.GREY, label="true values")
ax.plot(place, values_cut, "o", color=plots.BLUE, label="target's path cut")
ax.plot(place, values_open, "s--", color=plots.RED, label="target's path open")
ax.set(title="What each place is worth", xlabel="place", ylabel="expected payment")
ax.set_xticks(place)
ax.legend()
plt.show()

# %% [markdown]
# In deep reinforcement learning the target comes from a *target network*: a second copy of the weights, refreshed now and then. The copy is not
# among the sources, so its path needs no cut.
#
# **Predict.** The copy holds the same values as the table that is trained. Is the gradient that of the cut, or that of the open path?

# %%
table = tf.Variable(tf.random.uniform((states,)))
copy = tf.Variable(table)


def loss_towards(copy):
    target = payment + tf.gather(tf.pad(copy, [[1, 1]]), arrival)
    prediction = tf.gather(tf.pad(table, [[1, 1]]), start)
    return 0.25 * tf.reduce_sum((target - prediction) ** 2)


with tf.GradientTape(persistent=True) as tape:
    by_copy = loss_towards(copy)
    by_cut = loss_of(table, cut=True)
copy_gradient = tape.gradient(by_copy, table)
cut_gradient = tape.gradient(by_cut, table)
leak = tape.gradient(by_copy, copy)
del tape
print("copy and cut agree:", np.allclose(copy_gradient, cut_gradient, atol=1e-6))
print("path to the copy:  ", "open" if leak is not None else "closed")

# %% [markdown]
# They agree as long as nobody passes the copy to an optimiser. The path to it is open, and `model.trainable_variables` of a model that contains both would
# reach it. With `stop_gradient` around the target, it is closed for everyone.

# %%
np.testing.assert_allclose(copy_gradient, cut_gradient, atol=1e-6)
assert leak is not None

# %% [markdown]
# ## 6. What it saves, and what it does not
#
# The forward pass does not change: every value is still computed. What may be saved is the work of the backward pass, and the memory that
# the tape keeps for it.
#
# The branch below is a chain of operations with a gradient of its own, which counts the calls of its backward function. A weak reference tells
# later whether an operation's result is still alive.

# %%
backward_calls, results = [], []


@tf.custom_gradient
def counted_tanh(h):
    y = tf.tanh(h)
    results.append(weakref.ref(y))

    def backward(upstream):
        backward_calls.append(1)
        return upstream * (1.0 - y**2)

    return y, backward


def branch(h):
    for _ in range(depth):
        h = counted_tanh(h)
    return h


print("branch(0) =", branch(tf.constant(0.0)).numpy(), " operations:", len(results))

# %% [markdown]
# **Predict.** The loss is `branch(v) + v`, summed. The cut is put at the *end* of the branch, or at its *beginning*. Which of the two saves backward
# work? Which saves memory? How does `stop_recording` compare?

# %%
exercises.saves_memory.guess(...)  # which cut saves memory: "the end", "the beginning", "both" or "neither"


# %%
def measure(build):
    """Tensors of the branch that the tape keeps, backward calls in it, and the gradient."""
    backward_calls.clear()
    results.clear()
    v = tf.Variable(tf.ones(7))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(build(tape, v) + v)
    gc.collect()
    kept = sum(reference() is not None for reference in results)
    gradient = tape.gradient(loss, v)
    return kept, len(backward_calls), gradient.numpy()


def without_tape(tape, v):
    with tape.stop_recording():
        return branch(v)


ways = {
    "no cut": lambda tape, v: branch(v + 0.0),
    "cut at the end": lambda tape, v: tf.stop_gradient(branch(v + 0.0)),
    "cut at the beginning": lambda tape, v: branch(tf.stop_gradient(v + 0.0)),
    "stop_recording": without_tape,
}
measured = {name: measure(build) for name, build in ways.items()}
for name, (kept, calls, _) in measured.items():
    print(f"{name:21} tensors kept: {kept}  backward calls: {calls}")

# %%
frees = {place: measured[f"cut at {place}"][0] == 0 for place in ("the end", "the beginning")}
names = {(False, False): "neither", (True, False): "the end", (False, True): "the beginning", (True, True): "both"}
exercises.saves_memory.reveal(names[tuple(frees.values())])

# %% [markdown]
# Every cut saves the backward work: no upstream gradient arrives, so the branch's backward functions are not called. A cut at the
# *end* saves no memory. A cut at the *beginning* takes the branch off the tape from the start, like `stop_recording`.
#
# All three cuts give one gradient: 1, that of the path `+ v`.

# %%
assert {name: row[:2] for name, row in measured.items()} == {
    "no cut": (depth, depth),
    "cut at the end": (depth, 0),
    "cut at the beginning": (0, 0),
    "stop_recording": (0, 0),
}
assert (measured["no cut"][2] > 1.0).all()
for name in list(ways)[1:]:
    np.testing.assert_array_equal(measured[name][2], np.ones(7))

# %% alt="Bars for four ways to compute the branch. Without a cut, tensors kept and backward calls are both as many as the branch has operations. With the cut at the end only the tensors remain. With the cut at the beginning and with stop_recording both are zero."
_, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
position = np.arange(len(measured))
for offset, column, colour, label in (
    (-0.2, 0, plots.ORANGE, "tensors kept by the tape"),
    (0.2, 1, plots.BLUE, "backward calls"),
):
    bars = ax.bar(position + offset, [row[column] for row in measured.values()], 0.4, color=colour, label=label)
    ax.bar_label(bars)
ax.set(title=f"What a cut saves in a branch of {depth} operations", xlabel="way to compute the branch", ylabel="count")
ax.set_xticks(position, labels=list(measured))
ax.margins(y=0.15)
ax.legend()
plt.show()

# %% [markdown]
# ### Exercise: Four ways to freeze (4 min)
#
# A `body` of three dense layers and a `head` of one have their own variables. A tape computes a loss from `x`, a batch of data, in one of four ways:
#
# | | prediction |
# |---|---|
# | A | `head(body(tf.stop_gradient(x)))` |
# | B | `head(tf.stop_gradient(body(x)))` |
# | C | `tf.stop_gradient(head(body(x)))` |
# | D | `head(features)`, with `features = body(x)` computed under `tape.stop_recording()` |
#
# For each letter: whose variables get a gradient? Give `"both"`, `"body"`, `"head"` or `"neither"`. And for `"frees"`, the letter of the one way in which the tape does not keep
# what the body's inner layers computed.

# %%
answer = {
    "A": ...,  # "both", "body", "head" or "neither"
    "B": ...,
    "C": ...,
    "D": ...,
    "frees": ...,  # a letter
}

exercises.freeze_body.check(answer)

# %% [markdown]
# ## 7. Check it independently
#
# A cut can be stated without a tape: what is cut is held at its present value. Central differences in float64 of *that* function give the tape's
# answers of sections 1 and 2.


# %%
def cut_sum(xy):
    return xy[0] ** 2 + 9.0  # y*y is held at 9


def cut_sum_and_line(y):
    return 4.0 + 9.0 + 5.0 * y


def cut_factor(y):
    return y * 3.0  # one factor is held at 3


sum_gradient = gradcheck.numerical_jacobian(cut_sum, [2.0, 3.0])
line_gradient = gradcheck.numerical_jacobian(cut_sum_and_line, 3.0)
factor_gradient = gradcheck.numerical_jacobian(cut_factor, 3.0)
print("section 1:", sum_gradient.round(4))
print(f"section 2: {line_gradient:.4f} and {factor_gradient:.4f}")

# %%
np.testing.assert_allclose(sum_gradient, [4.0, 0.0], rtol=1e-8)
np.testing.assert_allclose(line_gradient, 5.0, rtol=1e-8)
np.testing.assert_allclose(factor_gradient, 3.0, rtol=1e-8)

# %% [markdown]
# For the straight-through estimator they disagree, as they must: the staircase is flat at 0.7.
#
# For the walk, linear algebra knows both answers. The truth solves $V = PV + r$, with the chances $P$ of going from place to place and the expected
# payment $r$. The open path leads to a least-squares problem.

# %%
flat = gradcheck.numerical_jacobian(np.round, 0.7)
print("derivative of the staircase at 0.7:", flat, " straight through:", estimate.numpy())

chances = 0.5 * (np.eye(states, k=1) + np.eye(states, k=-1))
expected_payment = 0.5 * (np.arange(1, states + 1) == states)
solved = np.linalg.solve(np.eye(states) - chances, expected_payment)

places = np.eye(states + 2)[:, 1:-1]  # row: a place or exit; column: a table entry
difference = places[start.numpy()] - places[arrival.numpy()]
least_squares = np.linalg.lstsq(difference, payment.numpy().astype(np.float64), rcond=None)[0]
print("cut finds the solution of V = PV + r:", np.allclose(values_cut, solved, atol=1e-4))
print("open finds the least-squares fit:    ", np.allclose(values_open, least_squares, atol=1e-4))

# %%
assert flat == 0.0
np.testing.assert_allclose(solved, truth, rtol=1e-10)
np.testing.assert_allclose(values_cut, solved, atol=1e-4)
np.testing.assert_allclose(values_open, least_squares, atol=1e-4)

# %% [markdown]
# ## Recap
#
# - `tf.stop_gradient(t)` keeps the value and makes it a constant for differentiation: `None` where no other path is left (section 1), the open paths' gradient where there is one (section 2).
# - `stop_recording` tells one tape and needs it at hand; `stop_gradient` is part of the computation and holds for every tape and for forward mode (section 3).
# - `x + stop_gradient(f(x) - x)` computes $f$ and differentiates like the identity; with it, weights can be trained through a rounding (section 4).
# - A target that the model computes itself must be held still: with its path open, descent finds a lower loss and wrong values (section 5).
# - A cut saves backward work wherever it is, and memory only at the beginning of a branch; the forward pass costs the same (section 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a variable is to be frozen and only one of its paths is cut | a gradient that is not zero | cut every path, or leave the variable out of the sources |
# | `stop_gradient` around one factor of a product | a gradient that is too small, without a warning | cut what is constant in the formula, and nothing else |
# | the target's path left open | a lower loss, and values that are wrong | `tf.stop_gradient(target)` |
# | a cut at the end of a large branch | the memory is still in use | cut at the beginning, or use `stop_recording` |
# | a straight-through gradient checked by finite differences | 0 against 1 | nothing: it is meant to differ |
#
# **Read next:** [06 Custom gradients](06_custom_gradients.ipynb) replaces a derivative by any other.
