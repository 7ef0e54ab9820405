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
# # Stop gradient
#
# Sometimes you mean a value in a formula as a *number*, although a path leads from it back to the source.
# **How do you cut one path and keep the others?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/06_stop_gradient.ipynb)
#
# **Prerequisites:** [05 Recording control](05_recording_control.ipynb) · **Minutes:** 17 to read, 7 more to go further, 27 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
examples = 64  # of the regression in section 4, between 40 and 200
steps = 60  # of its training, between 60 and 200
learning_rate = 0.05  # of its training, between 0.04 and 0.08
states = 5  # of the random walk in section 7, between 3 and 7
sweeps = 300  # of its training, between 300 and 1000
depth = 6  # operations of the branch in section 6, between 1 and 20

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
from tapelab.exercises.sheets import stop_gradient as exercises
from tapelab.explain import ExplainTape, draw, explain
from tapelab.interactive import paths

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
y = tf.Variable(3.0)
with tf.GradientTape(persistent=True) as tape:
    products = {
        "y * y": y * y,
        "y * stop(y)": y * tf.stop_gradient(y),
        "stop(y) * stop(y)": tf.stop_gradient(y) * tf.stop_gradient(y),
    }

gradients = {name: tape.gradient(product, y) for name, product in products.items()}
for name, gradient in gradients.items():
    shown = gradient if gradient is None else gradient.numpy()
    print(f"{name:<18} value {products[name].numpy()}, gradient {shown}")

# %% [markdown]
# The value is 9 in all three, and the gradients differ. The product rule has two terms, one for each factor, and each is 3 here. `tf.stop_gradient` around a factor
# took its term away. Nothing warned.
#
# **You will be able to**
#
# - cut a path with `tf.stop_gradient`, and say what the tape returns then (sections 1 and 2),
# - choose between `stop_gradient` and `stop_recording` (section 3),
# - train through a rounding with a straight-through estimator (section 4),
# - hold a moving target still, and say what goes wrong otherwise (section 5),
# - say what a cut saves, and what an open target path does to a random walk's values (sections 6 and 7, which go further).

# %% [markdown]
# ## 1. Cut one path
#
# In [05](05_recording_control.ipynb), $z = x^2 + y^2$ at $(2, 3)$ had $y^2$ kept from the tape. Now `tf.stop_gradient(t)`: it has the value of `t`, and to a tape it is a constant, through which nothing goes back. So `z = x**2 + tf.stop_gradient(y**2)` has the same value and gradients,
# 13, 4 and `None`.
#
# **Predict.** $v = u^2$ with $u = w\,(y^2)$, at $w = 2$. The cut is around $y^2 = 9$. What are $\mathrm dv/\mathrm dw$ and $\mathrm dv/\mathrm dy$?

# %%
exercises.side_of_cut.guess([..., ...])  # in place of each `...`, a number or None: dv/dw, dv/dy

# %%
w = tf.Variable(2.0)
with tf.GradientTape() as tape:
    u = w * tf.stop_gradient(y**2)
    v = u**2

dv_dw, dv_dy = tape.gradient(v, [w, y])
print("dv/dw =", dv_dw.numpy())
print("dv/dy =", dv_dy)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.side_of_cut.reveal([dv_dw, dv_dy])
assert {name: product.numpy() for name, product in products.items()} == dict.fromkeys(products, 9.0)
assert [None if g is None else g.numpy() for g in gradients.values()] == [6.0, 3.0, None]
check_x = tf.Variable(2.0)
with tf.GradientTape() as tape:
    check_z = check_x**2 + tf.stop_gradient(y**2)
assert check_z.numpy() == 13.0
assert [None if g is None else g.numpy() for g in tape.gradient(check_z, [check_x, y])] == [4.0, None]
assert [None if g is None else g.numpy() for g in (dv_dw, dv_dy)] == [324.0, None]

# %% [markdown]
# $\mathrm dv/\mathrm dw = 2u \cdot 9 = 324$ with $u = 18$: $w$ enters after the cut. $y$ enters before it, and no other path leads there.

# %% [markdown]
# ## 2. A path, not a variable
#
# Has the cut around $y^2$ frozen $y$?
#
# **Predict.** $z = y^2 + 5y$ at $y = 3$, with the same cut around $y^2$. The true derivative is $2y + 5 = 11$. What does the tape return?

# %%
exercises.same_cut.guess(...)  # a number or None

# %%
with ExplainTape() as tape:  # a tf.GradientTape that also keeps a log of what it saw
    square = y**2
    cut = tf.stop_gradient(square)
    straight = 5.0 * y
    z = cut + straight

dz_dy = tape.gradient(z, y)
print("z     =", z.numpy())
print("dz/dy =", dz_dy.numpy())

# %% alt="Computation graph. A graph that runs downwards from y to z on two paths. On one, y is squared, and a dashed arrow marked stop_gradient leads to a box with a dashed border, not recorded, and from there into the sum. On the other, solid arrows lead from y through a recorded multiplication into the sum."
draw(tape, z, y)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.same_cut.reveal(dz_dy)
assert (z.numpy(), dz_dy.numpy()) == (24.0, 5.0)
assert explain(tape, z, y).exists
why = explain(tape, cut, y)
assert (why.code, why.line.text) == ("stop_gradient", "cut = tf.stop_gradient(square)")

# %% [markdown]
# Of two paths from `z` back to $y$ one is cut, and the gradient comes from the open one, $5y$.
# In the picture the square *is* recorded: the cut comes after it, on the dashed arrow.
#
# The answer is the gradient of another function, $9 + 5y$, in which what is cut **is held at its present value**.

# %% [markdown]
# Now move the cut yourself. Three paths lead from $x$ to $z = f(x)\,g(x) + h(x)$, with $f(x) = x^2$, $g(x) = \cos x$ and $h(x) = x$. A thick arrow carries the gradient
# back up to $x$, and a cross marks a cut. On the right stands $z$ with two tangents: the true one, wide and grey, and the tape's, dashed. The dotted curve is the function in
# which what is cut is held still.
#
# With which cuts does the tape's slope no longer depend on $x$?

# %% alt="Computation graph and line plot. Left: a graph of the paths from x through f, g and h to z; the arrow from g is dashed and has a cross; the thick arrows point back to x. Right: the curve of z over x, with a wide grey tangent and a dashed red one of another slope at the same point; the red one touches a dotted curve."
paths.figure().show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert all(paths.gradient(at, ("f", "g")) == 1.0 for at in (-3.0, 0.0, 1.4, 3.0))
assert paths.gradient(1.4, ()) < 0 < paths.gradient(1.4, ("g",))
for at, held in ((-1.3, ("f",)), (1.4, ("g",)), (2.0, ("f", "h"))):
    slope = gradcheck.numerical_jacobian(lambda point, at=at, held=held: paths.held(point, at, held), at)
    np.testing.assert_allclose(paths.gradient(at, held), slope, rtol=1e-6)

# %% [markdown]
# With $f$ and $g$ cut and $h$ open, the path through $h$ is left, and its slope is 1. With $g$ alone cut, at $x = 1.4$, the tape says *up* where the truth is *down*.

# %% [markdown]
# ### Exercise: One loss, two learners (5 min)
#
# `scores`, `values` and `rewards` are vectors of one length. An actor learns `scores` and a critic learns `values`, from one loss:
#
# $$\sum_i (r_i - v_i)^2 - \sum_i s_i\,(r_i - v_i).$$
#
# The first sum is the critic's, the second the actor's. Return the loss, a scalar. Its value stays as it is. The gradient with respect to `scores` must come from the
# actor's term, and the gradient with respect to `values` from the critic's term alone.


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
# Around `y**2`, `stop_recording` and `stop_gradient` gave the same numbers. They differ in *whom* they tell.
#
# **Predict.** Two tapes, one inside the other, and $z = y^2 + y$ at $y = 3$. The square is kept from the inner tape with `inner.stop_recording()`, and then with
# `tf.stop_gradient`. What does each tape return? Without any of this it is $2y + 1 = 7$.

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

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.whom.reveal(paused + stopped)
assert paused == [1.0, 7.0]
assert stopped == [1.0, 1.0]

# %% [markdown]
# `stop_recording` was a message to one tape; the outer one recorded the square. `stop_gradient` is part of the computation, and both met it.
# So `partly` below cuts a path of its own, also where it is compiled as a `tf.function`.


# %%
def partly(x):
    return x**2 + tf.stop_gradient(x**3)


compiled, two = tf.function(partly), tf.constant(2.0)
with tf.GradientTape() as tape:
    tape.watch(two)
    compiled_value = compiled(two)
reverse = tape.gradient(compiled_value, two)
print("compiled: value", compiled_value.numpy(), " derivative", reverse.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(compiled_value, 12.0, rtol=1e-6)
np.testing.assert_allclose(reverse, 4.0, rtol=1e-6)
assert compiled.experimental_get_tracing_count() == 1

# %% [markdown]
# It is $2x = 4$; uncut it would be $2x + 3x^2 = 16$. So take `stop_gradient` for a number in the formula, and `stop_recording` for
# work that one tape need not note down, such as a metric.
#
# | | `tape.stop_recording()` | `tf.stop_gradient(t)` |
# |---|---|---|
# | what it is | a block | an operation on one tensor |
# | whom it told here | one tape | both tapes, and one around a `tf.function` |
# | what it cut here | what ran in the block | the path through its result |

# %% [markdown]
# ## 4. A straight-through estimator
#
# A cut can also *replace* a derivative. Rounding is a staircase, and for `tf.round` the tape below gives `None`. Now write
#
# $$q = x + \operatorname{stop}(\operatorname{round}(x) - x).$$
#
# **Predict.** What is the value of $q$ at $x = 0.7$? What is its gradient: `None`, 0 or 1?

# %%
exercises.straight.guess([..., ...])  # value, gradient


# %%
def straight_through_round(x):
    """Round to whole numbers; on the backward pass, behave like the identity."""
    return x + tf.stop_gradient(tf.round(x) - x)


x = tf.Variable(0.7)
with tf.GradientTape(persistent=True) as tape:
    rounded = tf.round(x)
    q = straight_through_round(x)
plain_gradient, estimate = tape.gradient(rounded, x), tape.gradient(q, x)

print("tf.round:         value", rounded.numpy(), " gradient", plain_gradient)
print("straight through: value", q.numpy(), " gradient", estimate.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.straight.reveal([q, estimate])
assert rounded.numpy() == q.numpy() == 1.0
assert plain_gradient is None
assert estimate.numpy() == 1.0
spread = tf.random.normal((10_000,)) * 10.0 ** tf.random.uniform((10_000,), -8.0, 8.0)
np.testing.assert_array_equal(straight_through_round(spread), tf.round(spread))
assert np.isnan(straight_through_round(tf.constant(7e4, tf.float16)))  # infinite in float16, and does not cancel

# %% [markdown]
# On the forward pass the two $x$ cancel if finite, and the rounded value is left. On the backward pass the bracket is a constant, and the first $x$ is left, with derivative 1. This gradient
# belongs to another function than the one computed, on purpose: the **straight-through estimator** (Bengio and others, 2013).
#
# Put it to work: a linear model whose five weights must be whole numbers. The trained weights are **latent**: fractions, in which small steps add up. Only their rounded values are used.

# %%
true_weights = np.random.default_rng(seed).integers(-3, 4, size=(5, 1)).astype(np.float32)
features = tf.random.normal((examples, 5))
labels = features @ true_weights

latent = tf.Variable(tf.zeros((5, 1)))
history, losses = [], []
for _ in range(steps):
    with tf.GradientTape() as tape:
        predictions = features @ straight_through_round(latent)
        loss = tf.reduce_mean((predictions - labels) ** 2)
    history.append(latent.numpy().ravel())
    losses.append(loss.numpy())
    latent.assign_sub(learning_rate * tape.gradient(loss, latent))

print("true weights:   ", true_weights.ravel())
print("latent, rounded:", tf.round(latent).numpy().ravel())
print(f"loss: {losses[0]:.1f} at the start, {losses[-1]:.1f} at the end")

# %% alt="Two line plots over the training steps. Left: five latent weights start at zero, move over the training steps, and come to rest, each inside a grey band of the numbers that round to its true value; the true values are written at the right. Right: the loss changes in a few jumps and reaches zero." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
_, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
path = np.array(history)
for index, colour in enumerate([plots.BLUE, plots.ORANGE, plots.GREEN, plots.RED, plots.GREY]):
    true = true_weights[index, 0]
    left.axhspan(true - 0.47, true + 0.47, color="#EEEEEE", zorder=0)
    left.plot(path[:, index], color=colour, linewidth=2)
    left.text(
        steps + 1, true, "true: 0" if true == 0 else f"true: {true:+.0f}", color=colour, va="center", fontweight="bold"
    )
left.set(
    title="Each latent weight stops where it rounds to the true one",
    xlabel="training step",
    ylabel="latent weight (bands: rounds to the true value)",
    xlim=(0, 1.28 * steps),
)
right.step(range(steps), losses, color=plots.BLUE, where="post")
right.set(title="The loss changes in jumps, and reaches zero", xlabel="training step", ylabel="mean squared error")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert (tf.round(latent).numpy() == true_weights).all()
assert losses[-1] < 1e-9 < losses[0]
assert len(set(map(float, losses))) <= steps / 2
assert np.abs(history[-1] - true_weights.ravel()).max() <= 0.5
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((features @ tf.round(latent) - labels) ** 2)
assert tape.gradient(loss, latent) is None

# %% [markdown]
# Straight through, all five weights are found. Each latent weight stops somewhere in the band that rounds to the right number: once all five are right, the error is zero, and so is the
# gradient.

# %% [markdown]
# ### Exercise: A hard choice with a soft gradient (10 min)
#
# `scores` has shape (batch, classes). Return a tensor of that shape and dtype: in each row a 1 at the largest score and 0 elsewhere. The gradient of `hard` below is `None`. So
# borrow the gradient of the softmax of each row: for any upstream gradient, `tape.gradient` must return what it returns for
# `tf.nn.softmax(scores, axis=1)`.


# %%
def choose(scores):
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    return ...  # the value of hard, the gradient of the softmax


exercises.hard_choice.check(choose)

# %% [markdown]
# ### Exercise: Scale or reverse a gradient (8 min)
#
# Return a tensor with the value, shape and dtype of `x`. On the backward pass the upstream gradient is multiplied by `factor`, a Python number, which may be
# negative or 0. Use `tf.stop_gradient` and arithmetic, nothing else. `x` has any shape.


# %%
def scale_gradient(x, factor):
    return ...  # the value of x; backwards, factor times the upstream gradient


exercises.turn_gradient.check(scale_gradient)

# %% [markdown]
# ## 5. A target that holds still
#
# Sometimes a model is trained towards a value that is itself being learnt. A **teacher**, $p\,t^2$, is fitted to measurements, $t^2$. A **student**, the constant $c$, is to follow the teacher. One loss holds both errors:
#
# $$\overline{(p\,t^2 - t^2)^2} + \overline{(c - p\,t^2)^2}.$$
#
# A constant does not fit this parabola, so the student stays wrong. The teacher alone would end at $p = 1$. But two paths lead back to $p$:

# %% alt="Diagram. Thick arrows lead from a box, loss, back to two boxes, the teacher's error and the student's error. From the teacher's error a blue arrow leads on to the box teacher and from there to p. From the student's error a blue arrow leads to c, and a red one, marked target, to the teacher, too." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the second path
_, ax = plt.subplots(figsize=(8, 2.4), layout="constrained")
boxes = {
    "p": (0.0, 1.0),
    "c": (0.0, 0.0),
    "teacher, p t²": (1.6, 1.0),
    "teacher's error": (3.7, 1.0),
    "student's error": (3.7, 0.0),
    "loss": (5.4, 0.5),
}
for label, (across, up) in boxes.items():
    box = {"boxstyle": "round,pad=0.4", "facecolor": "white", "edgecolor": "black"}
    ax.text(across, up, label, ha="center", va="center", bbox=box)
for start, end, colour in (
    ((5.15, 0.62), (4.25, 0.92), plots.BLUE),
    ((5.15, 0.38), (4.25, 0.08), plots.BLUE),
    ((3.2, 1.0), (2.05, 1.0), plots.BLUE),
    ((1.15, 1.0), (0.15, 1.0), plots.BLUE),
    ((3.2, 0.0), (0.15, 0.0), plots.BLUE),
    ((3.2, 0.2), (2.0, 0.8), plots.RED),
):
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "linewidth": 2.4, "color": colour})
ax.text(2.5, 0.4, "target", color=plots.RED, ha="right", va="center", fontweight="bold")
ax.set(title="Two ways back from the loss to p", xlim=(-0.4, 5.9), ylim=(-0.35, 1.35))
ax.set_axis_off()
plt.show()

# %% [markdown]
# **Predict.** Nothing is cut, and both are trained. Where does $p$ end: "below 1", "at 1" or "above 1"?

# %%
exercises.teacher_at.guess(...)  # "below 1", "at 1" or "above 1"

# %%
t = tf.linspace(-1.0, 1.0, 41)


def teacher_and_student(cut):
    """The teacher's weight, the student's, and the loss, after training."""
    p, c = tf.Variable(0.5), tf.Variable(0.0)
    for _ in range(100):
        with tf.GradientTape() as tape:
            taught = p * t**2
            target = tf.stop_gradient(taught) if cut else taught
            loss = tf.reduce_mean((taught - t**2) ** 2) + tf.reduce_mean((c - target) ** 2)
        for variable, gradient in zip((p, c), tape.gradient(loss, (p, c)), strict=True):
            variable.assign_sub(0.5 * gradient)
    return p.numpy(), c.numpy(), loss.numpy()


learnt = {"open": teacher_and_student(cut=False), "cut": teacher_and_student(cut=True)}
for name, (p, c, loss) in learnt.items():
    print(f"target's path {name:<5} teacher {p:.3f}, student {c:.3f}, loss {loss:.4f}")

# %% alt="Line plot. Over t from -1 to 1 the measurements, a parabola of dots. The teacher with the cut lies on them; the teacher with the path open is a flatter parabola below. Two level dashed lines, the two students, cross them at about a third of the height." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: teachers and students
_, ax = plt.subplots(figsize=(6.5, 3.8), layout="constrained")
ax.plot(t, t**2, ".", color=plots.GREY)
for (name, (p, c, _)), colour in zip(learnt.items(), (plots.RED, plots.BLUE), strict=True):
    ax.plot(t, p * t**2, color=colour)
    ax.axhline(c, linestyle="--", linewidth=1, color=colour)
    ax.text(1.03, p, f"teacher, path {name}", color=colour, va="center")
ax.text(0.0, 0.37, "students", ha="center", color="#555555")
ax.set(title="With the path open, the student holds the teacher back", xlabel="t", ylabel="value", xlim=(-1.05, 1.75))
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.teacher_at.reveal("below 1" if learnt["open"][0] < 0.99 else "at 1")
check_fourth, check_variance = np.mean(t**4), np.var(t**2)
np.testing.assert_allclose(learnt["open"][0], check_fourth / (check_fourth + check_variance), rtol=1e-3)
np.testing.assert_allclose(learnt["cut"][0], 1.0, rtol=1e-3)
assert learnt["open"][2] < 0.8 * learnt["cut"][2]

# %% [markdown]
# Below 1. The student's error falls when the student moves to the target, and when the *target moves to the student*. With the path open, that held the teacher back: the **lower loss and the wrong teacher**. That is no failure of training: there the loss has its minimum.
#
# `tf.stop_gradient` around the target cuts the arrow marked *target*: the student follows, and the teacher does not. DQN, Q-learning with a network, keeps its target in a **target network** as well: a copy of the weights, renewed now and then.

# %% [markdown]
# ## 6. Going further: what a cut saves, and what it does not
#
# Does a cut, with all values still computed, save the work of the backward pass, and the memory that
# the tape keeps for it?
#
# The branch is a chain of operations that count the calls of their backward function. Take its `tf.custom_gradient` on trust, until [07](07_custom_gradients.ipynb) explains it. A weak reference tells
# whether a result is still in memory.

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


# %% [markdown]
# The target is `branch(v) + v`, and the cut is put at the *end* of the branch, or at its *beginning*.
#
# **Predict.** Which of the two cuts saves memory?

# %%
exercises.saves_memory.guess(...)  # "the end", "the beginning", "both" or "neither"


# %%
def measure(build):
    """Tensors of the branch that the tape keeps, backward calls in it, and the gradient."""
    backward_calls.clear()
    results.clear()
    v = tf.ones(7)
    with tf.GradientTape() as tape:
        tape.watch(v)
        target = build(tape, v) + v
    gc.collect()
    kept = sum(reference() is not None for reference in results)
    gradient = tape.gradient(target, v)
    return kept, len(backward_calls), gradient.numpy()


def paused_branch(tape, v):
    with tape.stop_recording():
        return branch(v)


# %%
ways = {
    "no cut": lambda tape, v: branch(v),
    "cut at the end": lambda tape, v: tf.stop_gradient(branch(v)),
    "cut at the beginning": lambda tape, v: branch(tf.stop_gradient(v)),
    "stop_recording": paused_branch,
}
measured = {name: measure(build) for name, build in ways.items()}
for name, (kept, calls, gradient) in measured.items():
    print(f"{name:21} tensors kept: {kept}  backward calls: {calls}  gradient: {gradient[0]:.2f}")

# %% alt="Bar chart. Bars for four ways to compute the branch. Without a cut, tensors kept and backward calls are both as many as the branch has operations. With the cut at the end only the tensors remain. With the cut at the beginning and with stop_recording both are zero." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
_, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
position = np.arange(len(measured))
for offset, column, colour, label in (
    (-0.2, 0, plots.ORANGE, "tensors kept by the tape"),
    (0.2, 1, plots.BLUE, "backward calls"),
):
    bars = ax.bar(position + offset, [row[column] for row in measured.values()], 0.4, color=colour, label=label)
    ax.bar_label(bars)
ax.set(title="This cut at the end comes too late to save memory", xlabel="way to compute the branch", ylabel="count")
ax.set_xticks(position, labels=list(measured))
ax.margins(y=0.15)
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
frees = tuple(measured[f"cut at {place}"][0] == 0 for place in ("the end", "the beginning"))
names = {(False, False): "neither", (True, False): "the end", (False, True): "the beginning", (True, True): "both"}
exercises.saves_memory.reveal(names[frees])
assert {name: row[:2] for name, row in measured.items()} == {
    "no cut": (depth, depth),
    "cut at the end": (depth, 0),
    "cut at the beginning": (0, 0),
    "stop_recording": (0, 0),
}
assert (measured["no cut"][2] > 1.0).all()
for name in list(ways)[1:]:
    np.testing.assert_array_equal(measured[name][2], np.ones(7))
check_layer = tf.keras.layers.Dense(7)
check_layer.build((1, 7))
with tf.GradientTape(persistent=True) as check_tape:
    check_cut = check_layer(tf.stop_gradient(tf.ones((1, 7))))
    with check_tape.stop_recording():
        check_paused = check_layer(tf.ones((1, 7)))
assert check_tape.gradient(check_cut, check_layer.kernel) is not None  # recorded, though the input was cut
assert check_tape.gradient(check_paused, check_layer.kernel) is None

# %% [markdown]
# Each cut here saves the backward work: no upstream gradient arrives, so the branch's backward functions are not called.
#
# Memory is another matter. Run eagerly, this branch was recorded before the cut at its end, and the tape keeps its tensors. After the cut at the *beginning* nothing in the
# branch was watched, so nothing was recorded. It has no variables. In the check a dense layer is recorded although its input is cut, since the tape watches its kernel; under `stop_recording` it is not.

# %% [markdown]
# ### Exercise: Four ways to freeze (4 min)
#
# A `body` of three `tanh` layers and a `head` of one linear layer have their own variables. Run eagerly, a tape computes a loss from data `x` in one of four ways:
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
# ## 7. Going further: a target with a random next state
#
# A walker moves on a line of states, with an exit at either end. Each step goes
# left or right with equal probability. The right exit pays a reward of 1, the left one nothing. What is the **value** of each state, the
# reward to be expected from there?

# %% alt="Diagram. A row of circles numbered from 1, with a square exit at either end. Arrows lead from each circle to its two neighbours. The right exit is labelled reward 1, the left one reward 0; under the circles stand the true values, rising in equal steps from left to right." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the random walk
_, ax = plt.subplots(figsize=(8, 1.9), layout="constrained")
for state in range(states + 2):
    inside = 0 < state <= states
    ax.text(
        state,
        0,
        f"{state}" if inside else "exit",
        ha="center",
        va="center",
        bbox={
            "boxstyle": "circle,pad=0.4" if inside else "square,pad=0.5",
            "facecolor": "#E3F0F8" if inside else "white",
        },
    )
    if inside:
        for side in (-1, 1):
            arrow = {"arrowstyle": "-|>", "color": plots.GREY}
            ax.annotate("", (state + side * 0.72, 0.12 * side), (state + side * 0.24, 0.12 * side), arrowprops=arrow)
        ax.text(state, -0.62, f"{state}/{states + 1}", ha="center", color=plots.BLUE)
ax.text(0, 0.5, "reward 0", ha="center")
ax.text(states + 1, 0.5, "reward 1", ha="center")
ax.text(0, -0.62, "true value:", ha="center", color=plots.BLUE)
ax.set(title="Left or right with probability ½: what is a state worth?", xlim=(-0.7, states + 1.7), ylim=(-0.85, 0.75))
ax.set_axis_off()
plt.show()

# %% [markdown]
# The value of a state is the average over its two steps of $r + V(s')$, the reward and the value of the next state. So move the table entry $V(s)$, after each
# step from $s$ to $s'$, towards the *target* $r + V(s')$. But the target contains $V$ as well: the squared difference has two paths to $V$. `cut` closes the second.

# %%
start = tf.repeat(tf.range(1, states + 1), 2)  # 1 1 2 2 3 3 …: two steps from each state
arrival = start + tf.tile([-1, 1], [states])  # 0 2 1 3 2 4 …
reward = tf.cast(arrival == states + 1, tf.float32)


def loss_of(values, cut):
    """A quarter of the squared differences' sum over all steps, a scalar; values has shape (states,)."""
    with_exits = tf.pad(values, [[1, 1]])
    target = reward + tf.gather(with_exits, arrival)
    if cut:
        target = tf.stop_gradient(target)
    prediction = tf.gather(with_exits, start)
    return 0.25 * tf.reduce_sum((target - prediction) ** 2)


# %% [markdown]
# **Predict.** Put the true values into the table: nothing is left to learn. For which version is the gradient zero, with the target's path cut, or with both paths open?

# %%
exercises.true_values.guess(...)  # "cut", "open", "both" or "neither"

# %%
truth = np.arange(1, states + 1) / (states + 1)
table = tf.Variable(truth, dtype=tf.float32)
steepest = {}
for name, cut in {"cut": True, "open": False}.items():
    with tf.GradientTape() as tape:
        loss = loss_of(table, cut)
    steepest[name] = abs(tape.gradient(loss, table).numpy()).max()
    print(f"target's path {name:<5} loss {loss.numpy():.4f}, largest gradient {steepest[name]:.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
zero = tuple(steepest[name] < 1e-6 for name in ("cut", "open"))
names = {(True, False): "cut", (False, True): "open", (True, True): "both", (False, False): "neither"}
exercises.true_values.reveal(names[zero])
np.testing.assert_allclose(steepest["cut"], 0.0, atol=1e-6)
np.testing.assert_allclose(steepest["open"], 0.5 / (states + 1), rtol=1e-4)
assert loss_of(table, cut=True).numpy() == loss_of(table, cut=False).numpy()
np.testing.assert_allclose(loss_of(table, cut=True), 0.5 * states / (states + 1) ** 2, rtol=1e-5)
assert (start.shape, float(tf.reduce_sum(reward))) == ((2 * states,), 1.0)
assert start.numpy().tolist()[:6] == [1, 1, 2, 2, 3, 3][: 2 * states]
assert arrival.numpy().tolist()[:6] == [0, 2, 1, 3, 2, 4][: 2 * states]
tried = tf.Variable(tf.random.uniform((states,)))
with tf.GradientTape() as tape:
    loss = loss_of(tried, cut=True)
around = np.pad(tried.numpy(), 1, constant_values=(0.0, 1.0))  # the right exit pays 1
np.testing.assert_allclose(tape.gradient(loss, tried), tried - (around[:-2] + around[2:]) / 2, atol=1e-6)

# %% [markdown]
# One loss, two gradients. With the target cut, and the factor ¼, the gradient with respect to $V(s)$ is $V(s)$ minus the average of its two targets. At the truth these are equal, and descent comes to rest. This is the **semi-gradient** of temporal-difference learning.
#
# A single target still differs from its prediction, by $\pm 1/6$ for five states. With the paths open, descent can lower the squared differences' sum by moving the *targets* too: it *leaves* the truth. Where does it go?


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
    return values.numpy(), loss.numpy()


values_cut, loss_cut = trained(cut=True)
values_open, loss_open = trained(cut=False)
print("true values:", truth.round(3))
print("cut:        ", values_cut.round(3), f"loss {loss_cut:.4f}")
print("open:       ", values_open.round(3), f"loss {loss_open:.4f}")

# %% alt="Line plot. Value against state for each state. The trained values with the cut, round markers, lie on the straight line of the true values. Without the cut, square markers lie on a flatter straight line that crosses it in the middle." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
_, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
state = np.arange(1, states + 1)
ax.plot(state, truth, "-", color=plots.GREY, label="true values")
ax.plot(state, values_cut, "o", color=plots.BLUE, label="target's path cut")
ax.plot(state, values_open, "s--", color=plots.RED, label="target's path open")
ax.set(title="With the path open, the values end too close together", xlabel="state", ylabel="value (expected reward)")
ax.set_xticks(state)
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(values_cut, truth, atol=1e-4)
np.testing.assert_allclose(values_open, np.arange(2, states + 2) / (states + 3), atol=1e-4)
assert loss_open < loss_cut - 1e-3
assert (np.diff(values_open) < np.diff(truth) - 1e-3).all()

# %% [markdown]
# A lower loss, and wrong values: as in section 5, the targets moved, too.

# %% [markdown]
# ## 8. Check it independently
#
# The cuts of sections 1 and 2 can be stated without a tape: what is cut is held at its present value. Central differences in float64 of *that* function give the tape's
# answers. For the straight-through estimator they disagree: the staircase is flat at 0.7.

# %%
difference = gradcheck.numerical_jacobian
print("                          differences     tape")
print(f"(9w)²          at w = 2          {difference(lambda w: (9.0 * w) ** 2, 2.0):7.3f}  {dv_dw:7.3f}")
print(f"9 + 5y         at y = 3          {difference(lambda y: 9.0 + 5.0 * y, 3.0):7.3f}  {dz_dy:7.3f}")
print(f"round(x)       at x = 0.7        {difference(np.round, 0.7):7.3f}  {estimate:7.3f}")

# %% [markdown]
# For the walk, linear algebra knows both answers. The truth solves $V = PV + r$, with the probabilities $P$ of going from state to state and the expected
# reward $r$. The open path leads to a least-squares problem in the differences between targets and predictions.

# %%
probabilities = 0.5 * (np.eye(states, k=1) + np.eye(states, k=-1))
expected_reward = 0.5 * (np.arange(1, states + 1) == states)
solved = np.linalg.solve(np.eye(states) - probabilities, expected_reward)

indicator = np.eye(states + 2)[:, 1:-1]  # row: a state or exit; column: a table entry
steps_apart = indicator[start.numpy()] - indicator[arrival.numpy()]
least_squares = np.linalg.lstsq(steps_apart, reward.numpy().astype(np.float64), rcond=None)[0]
print("V = PV + r:   ", solved.round(3), " cut: ", values_cut.round(3))
print("least squares:", least_squares.round(3), " open:", values_open.round(3))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for held, at, by_tape in ((lambda w: (9.0 * w) ** 2, 2.0, dv_dw), (lambda y: 9.0 + 5.0 * y, 3.0, dz_dy)):
    np.testing.assert_allclose(gradcheck.numerical_jacobian(held, at), by_tape, rtol=1e-8)
assert (gradcheck.numerical_jacobian(np.round, 0.7), estimate.numpy()) == (0.0, 1.0)
np.testing.assert_allclose(solved, truth, rtol=1e-10)
np.testing.assert_allclose(values_cut, solved, atol=1e-4)
np.testing.assert_allclose(values_open, least_squares, atol=1e-4)

# %% [markdown]
# ## Recap
#
# - `tf.stop_gradient` kept the value and made it a constant: the tape returned the gradient of what was left with this value held still (sections 1 and 2).
# - `stop_recording` told one tape; `stop_gradient` was part of the computation, for both tapes and through a `tf.function` (section 3).
# - `x + tf.stop_gradient(tf.round(x) - x)` rounded 0.7, with the gradient of the identity; with it, five weights were trained through a rounding (section 4).
# - With the path of its target open, a student that could not reach it held the teacher back: a lower loss, and the wrong teacher (section 5).
# - Run eagerly, a cut at either end of the branch saved its backward pass, and the cut at the beginning its memory, too. On the random walk the open target path led to wrong values (sections 6 and 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a variable is to be frozen and only one of its paths is cut | the gradient of the paths left open | cut every path, or leave the variable out of the sources |
# | `stop_gradient` around a factor that the formula does not mean as a number | a gradient without that factor's term, `None` if no other is left, and no warning from the tape | cut what it means as a number, and nothing else |
# | a target that is being learnt, its path open and its weights among the sources | the follower's error trains the target, too | `tf.stop_gradient(target)` |
# | a cut at the end of a chain of `tanh`, run eagerly | with the tape, its tensors stay in memory | `stop_recording` on each open tape; or cut at the beginning, if nothing else that is watched enters the chain |
#
# **Further reading**
#
# - The TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff), section "Stop gradient".
# - Y. Bengio, N. Léonard, A. Courville (2013), ["Estimating or propagating gradients through stochastic neurons for conditional computation"](https://arxiv.org/abs/1308.3432).
# - R. S. Sutton (1988), ["Learning to predict by the methods of temporal differences"](https://doi.org/10.1007/BF00115009).
# - L. Baird (1995), ["Residual algorithms: reinforcement learning with function approximation"](https://doi.org/10.1016/B978-1-55860-377-6.50013-X): the open path, or *residual gradient*.
# - R. S. Sutton, A. G. Barto (2018), ["Reinforcement learning: an introduction"](http://incompleteideas.net/book/the-book-2nd.html): the random walk, semi-gradients, and the naive residual gradient.
#
# **Read next:** [07 Custom gradients](07_custom_gradients.ipynb) replaces a derivative by one of your own.
