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
# # When the gradient is None
#
# You ask a tape for a gradient, and it answers `None`: no error, no line number.
# **Why is this gradient None, and what cures it?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/03_when_the_gradient_is_none.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Minutes:** 23 to read, 3 more to go further, 30 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
height = 3  # of the image in section 8, in pixels, between 2 and 20
width = 4  # the same, between 2 and 20

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import warnings

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import when_the_gradient_is_none as exercises
from tapelab.explain import ExplainTape, draw, explain
from tapelab.explain.ground import private

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
price = tf.Variable(2.7)

with tf.GradientTape() as tape:
    demand = 10.0 - 2.0 * price
    sold = tf.cast(demand, tf.int32)  # whole items only
    income = 3.0 * tf.cast(sold, tf.float32)

print("income              =", income.numpy())
print("d income / d price  =", tape.gradient(income, price))

# %% [markdown]
# The value is right: 4.6 items are asked for, 4 are sold, at 3 each. The gradient is `None`: *no gradient got through from the target to the source*. That says nothing about the derivative.
#
# One of three lines cut the path. How do you find it among three hundred?
#
# **You will be able to**
#
# - find the break in a long program, with a plain tape and with one that keeps a log (sections 1 and 2),
# - see whether a tape watches a source, and make it watch (section 3),
# - keep a path on the tape: inside TensorFlow, in floating point, free of assignments, and up to the target (sections 4 to 7),
# - tell an operation that has no gradient registered from one that passes nothing back on purpose, and choose between zeros and `None` (sections 8 and 9).
#
# ## 1. Find the break
#
# Ask the tape about each tensor on the way: does the gradient of the target with respect to *this* one exist? The path below has five
# steps. The third calls NumPy's `exp`, which the tape does not see.
#
# **Predict.** There are six tensors: `x`, `h1` to `h4`, and `y`. For how many of them does the gradient of `y` exist?

# %%
exercises.blind_walk.guess(...)  # for how many of the six

# %%
x = tf.Variable([0.3, 0.7])
with tf.GradientTape(persistent=True) as tape:
    h1 = tf.tanh(x)
    h2 = 4.0 * h1
    h3 = tf.constant(np.exp(h2))
    h4 = tf.square(h3)
    y = tf.reduce_sum(h4)

blind = [tape.gradient(y, tensor) for tensor in (y, h4, h3, h2, h1, x)]
print("from y back to x:", *blind, sep="\n  ")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.blind_walk.reveal(sum(gradient is not None for gradient in blind))
np.testing.assert_allclose(y, np.sum(np.exp(8.0 * np.tanh([0.3, 0.7]))), rtol=1e-5)
assert blind[0].numpy() == 1.0
assert blind[1:] == [None] * 5

# %% [markdown]
# For one: `y` with respect to itself. After `np.exp` all is computed from a constant, and was not recorded either.
#
# So *watch each intermediate tensor before it is used*, and ask again.

# %%
with tf.GradientTape(persistent=True) as tape:
    h1 = tf.tanh(x)
    tape.watch(h1)
    h2 = 4.0 * h1
    tape.watch(h2)
    h3 = tf.constant(np.exp(h2))
    tape.watch(h3)
    h4 = tf.square(h3)
    tape.watch(h4)
    y = tf.reduce_sum(h4)

found = {}
for name, tensor in {"y": y, "h4": h4, "h3": h3, "h2": h2, "h1": h1, "x": x}.items():
    gradient = found[name] = tape.gradient(y, tensor)
    print(f"dy/d{name:2} =", gradient if gradient is None else gradient.numpy().round(2))

# %% [markdown]
# Read downwards: you walk back from the target. `h3` has a gradient and `h2` has none, so the culprit is the line between, `np.exp`. With `tf.exp` there, all six exist.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(y, np.sum(np.exp(8.0 * np.tanh([0.3, 0.7]))), rtol=1e-5)
np.testing.assert_allclose(found["h4"], [1.0, 1.0])
np.testing.assert_allclose(found["h3"], 2.0 * h3, rtol=1e-6)
assert [name for name, gradient in found.items() if gradient is None] == ["h2", "h1", "x"]


def check_reached(exp):
    """Whether the gradient exists, for each tensor from x to y, where all are watched too late."""
    values = [x]
    with tf.GradientTape(persistent=True) as tape:
        for step in (tf.tanh, lambda h: 4.0 * h, exp, tf.square, tf.reduce_sum):
            values.append(step(values[-1]))
        for value in values:
            tape.watch(value)  # after its use
    np.testing.assert_allclose(values[-1], y, rtol=1e-6)
    return [tape.gradient(values[-1], value) is not None for value in values]


assert check_reached(lambda h: tf.constant(np.exp(h))) == [False] * 5 + [True]
assert check_reached(tf.exp) == [True] * 6

# %% [markdown]
# ## 2. Let a tape find it
#
# In the opening's program the walk misses by a line: the integer `sold` has no gradient, so it names the line *after* the cast.
#
# An `ExplainTape` is a `tf.GradientTape` that also keeps a log.

# %% tags=["nbval-ignore-output"]
with ExplainTape() as tape:  # in place of tf.GradientTape()
    demand = 10.0 - 2.0 * price
    sold = tf.cast(demand, tf.int32)  # whole items only
    income = 3.0 * tf.cast(sold, tf.float32)

answer = explain(tape, income, price)
print(answer)

# %% [markdown]
# `explain(tape, target, source)` reads the log. Here it answers with a *code* for the cause, a sentence, the line of your program at which the path was cut, and a *hint*: a line to write instead, with an `x` where your name belongs.
#
# `draw` shows the same log as a graph. A solid border means *recorded*. The gradient has to climb from the target to the source, and a dashed arrow with a cross is one that it cannot climb.

# %% alt="Computation graph. A graph that runs downwards from price to income: a product and a difference with solid borders, then a dashed arrow with a cross, marked as a cast to an integer, into a cast; below it another cast and a product, both with dashed borders because they were not recorded, and income at the bottom." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
draw(tape, income, price)
plt.show()

# %% [markdown]
# The cast to `int32` ends the path: the steps after it are not recorded.
#
# The cure keeps the value in floating point: for this demand `tf.floor` cuts off the digits after the point as the cast does.
# Take on trust, until [06](06_stop_gradient.ipynb), that `tf.stop_gradient(t)` has the value of `t` and sends no gradient back to it. Then the next cell has the
# *value* of the rounded-down demand and the *gradient* of the demand: a **straight-through estimator**.

# %%
with tf.GradientTape() as tape:
    demand = 10.0 - 2.0 * price
    sold = demand + tf.stop_gradient(tf.floor(demand) - demand)
    income = 3.0 * sold

straight_through = tape.gradient(income, price)
print("income              =", income.numpy())
print("d income / d price  =", straight_through.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert answer.exists is False
assert answer.certain
assert answer.code == "cast_to_integer"
assert answer.line.text.startswith("sold = tf.cast(demand, tf.int32)")
check_level = tf.get_logger().level
tf.get_logger().setLevel("ERROR")  # the tape warns of the integer
with tf.GradientTape(persistent=True) as check_tape:
    check_demand = 10.0 - 2.0 * price
    check_tape.watch(check_demand)
    check_sold = tf.cast(check_demand, tf.int32)
    check_tape.watch(check_sold)
    check_income = 3.0 * tf.cast(check_sold, tf.float32)
check_path = (price, check_demand, check_sold, check_income)
assert [check_tape.gradient(check_income, v) is None for v in check_path] == [True] * 3 + [False]
tf.get_logger().setLevel(check_level)
np.testing.assert_allclose(income, 12.0, rtol=1e-6)
np.testing.assert_allclose(straight_through, 3.0 * -2.0, rtol=1e-6)
with tf.GradientTape() as check_tape:  # the fix as it is printed
    check_x = 10.0 - 2.0 * price
    check_sold = eval(answer.fix.splitlines()[-1], {"tf": tf, "x": check_x})
    check_income = 3.0 * check_sold
assert check_income == 12.0
np.testing.assert_allclose(check_tape.gradient(check_income, price), 3.0 * -2.0, rtol=1e-6)

# %% [markdown]
# The map shows this page's breaks and their sections.

# %% alt="Diagram. A path of four boxes from left to right: source, operation, operation, target. Below the source: not watched (3), integer or text (5), a name that holds something else (6). Below the arrows between: leaves TensorFlow (4), cast to an integer (2), assigned to a variable (6), passes nothing back (8). Below the target: the wrong one, or finished too late (7)." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: where a path can break
_, ax = plt.subplots(figsize=(9, 2.3), layout="constrained")
places = {
    "source": ["not watched (3)", "integer or text (5)", "name rebound (6)"],
    "operation": ["leaves TensorFlow (4)", "cast to an integer (2)"],
    " operation": ["assigned to a variable (6)", "passes nothing back (8)"],
    "target": ["unrelated (7)", "finished too late (7)"],
}
box = {"boxstyle": "round,pad=0.5", "facecolor": "white", "edgecolor": plots.BLUE, "linewidth": 1.8}
arrow = {"arrowstyle": "->", "color": plots.BLUE, "linewidth": 1.8}
for column, (name, breaks) in enumerate(places.items()):
    ax.text(column, 0, name.strip(), ha="center", va="center", fontsize=12, bbox=box)
    causes = "\n".join(f"✗ {text}" for text in breaks)
    ax.text(column, 0.4, causes, ha="center", va="top", fontsize=10, color=plots.RED, linespacing=1.5)
    if column:
        ax.annotate("", xy=(column - 0.28, 0), xytext=(column - 0.72, 0), arrowprops=arrow)
ax.set(xlim=(-0.5, 3.5), ylim=(1.2, -0.4), title="Where the path from source to target can break, and in which section")
ax.set_axis_off()
plt.show()

# %% [markdown]
# ## 3. Variables and watching
#
# Perhaps the path never began: was the source *watched*?
#
# **Predict.** Below, $y = a^2 + b^2 + c^2 + d^2$ has four sources of different kinds. Every derivative exists:
# 4, 6, 8 and 10. For each source, does the tape return the number or `None`?

# %%
exercises.four_sources.guess([..., ..., ..., ...])  # in place of each `...`, a number or None

# %%
sources = {
    "trainable variable": tf.Variable(2.0),
    "non-trainable variable": tf.Variable(3.0, trainable=False),
    "tensor": tf.Variable(3.0) + 1.0,  # a variable plus a number is a tensor
    "constant": tf.constant(5.0),
}

with tf.GradientTape() as tape:
    y = tf.add_n([source**2 for source in sources.values()])

gradients = tape.gradient(y, sources)
for name, gradient in gradients.items():
    print(f"{name:22}  {gradient if gradient is None else gradient.numpy()}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.four_sources.reveal(list(gradients.values()))
assert gradients["trainable variable"].numpy() == 4.0
assert gradients["non-trainable variable"] is None
assert gradients["tensor"] is None
assert gradients["constant"] is None
assert [variable.numpy() for variable in tape.watched_variables()] == [2.0]

# %% [markdown]
# By itself, this tape watched the *trainable variable*: `tape.watched_variables()` lists it alone. Here the cure is `tape.watch`, before the first use.

# %%
print("watched by itself:     ", [float(v) for v in tape.watched_variables()])

with tf.GradientTape() as tape:
    tape.watch(sources)
    y = tf.add_n([source**2 for source in sources.values()])

cured = tape.gradient(y, sources)
print("gradients, all watched:", [float(gradient) for gradient in cured.values()])

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert [gradient.numpy() for gradient in cured.values()] == [4.0, 6.0, 8.0, 10.0]
check_x = tf.constant(3.0)
with ExplainTape() as check_tape:
    check_y = check_x**2
    check_tape.watch(check_x)  # x**2 is past
assert explain(check_tape, check_y, check_x).code == "watched_late"

# %% [markdown]
# ## 4. Computation outside TensorFlow
#
# The tape below does not see `np.log1p`: NumPy asks the variable for its values, computes, and returns an array. Back in TensorFlow, that array is a constant.

# %%
x = tf.Variable([0.0, 1.0, 3.0])

with tf.GradientTape() as tape:
    by_numpy = tf.reduce_sum(np.log1p(x))
outside = tape.gradient(by_numpy, x)

with tf.GradientTape() as tape:
    by_tensorflow = tf.reduce_sum(tf.math.log1p(x))
inside = tape.gradient(by_tensorflow, x)

print(f"np.log1p:       {by_numpy:.4f}, gradient {outside}")
print(f"tf.math.log1p:  {by_tensorflow:.4f}, gradient {inside.numpy()}")

# %% [markdown]
# The values agree, and one gradient is lost. The cure is TensorFlow's own operation.
#
# More quietly, the `float(x)` below leaves TensorFlow too.
#
# **Predict.** $y = x \cdot x$ at $x = 3$, where one factor is read out with `float`. Is the gradient `None`, 3 or 6?

# %%
exercises.read_out.guess(...)

# %%
x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    y = x * float(x)

half_of_it = tape.gradient(y, x)
print("y     =", y.numpy())
print("dy/dx =", half_of_it.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.read_out.reveal(half_of_it)
assert outside is None
np.testing.assert_allclose(by_numpy, by_tensorflow, rtol=1e-6)
np.testing.assert_allclose(inside, [1.0, 0.5, 0.25], rtol=1e-6)
assert y.numpy() == 9.0
assert half_of_it.numpy() == 3.0

# %% [markdown]
# 3, where the true derivative is $2x = 6$. One path is cut and the other is whole, so there is no `None` to warn you: to the tape, $y$ is $3x$.
#
# ## 5. Integers and strings
#
# A derivative takes small steps, and integers have none. `tf.Variable(3)` holds one, for want of a decimal point.

# %%
count = tf.Variable(3)  # int32
with tf.GradientTape() as tape:
    y = tf.cast(count, tf.float32) ** 2
integer_source = tape.gradient(y, count)

text = tf.Variable("3.0")
with tf.GradientTape() as tape:
    y = tf.strings.to_number(text) ** 2
string_source = tape.gradient(y, text)

print("dtype", count.dtype.name, "  gradient", integer_source)
print("dtype", text.dtype.name, " gradient", string_source)

# %% [markdown]
# Both are trainable variables, and both give `None`. The cast inside the tape did not help: what goes into it is an integer. Convert *before*
# you create the variable: `tf.Variable(tf.strings.to_number("3.0"))`.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert count.trainable
assert count.dtype == tf.int32
assert text.trainable
assert text.dtype == tf.string
assert integer_source is None
assert string_source is None
check_x = tf.Variable(tf.strings.to_number("3.0"))
with tf.GradientTape() as check_tape:
    check_y = check_x**2
assert check_tape.gradient(check_y, check_x).numpy() == 6.0

# %% [markdown]
# ## 6. State
#
# A variable has state. Here two things go wrong with it. The first, in two epochs of the same code: a Python name stops being a variable.

# %%
x = tf.Variable(2.0)
rebound = []
for epoch in range(2):
    with ExplainTape() as tape:
        y = x**2
    rebound.append(explain(tape, y, x))
    print(f"epoch {epoch}: {type(x).__name__:16} gradient {tape.gradient(y, x)}")
    x = x + 1.0  # meant as an update

print(f"{rebound[1].code}: {rebound[1].sentence}")

# %% [markdown]
# `x + 1.0` is a new tensor under the old name. In the second epoch `x` is a plain tensor that nobody watches.
# Keep the variable, and change its value: `x.assign_add(1.0)`. `x = x.assign_add(1.0)` loses the name here as well.
#
# The second thing is an assignment *inside* the tape.
#
# **Predict.** `total` starts at 0, `step`, which is 3, is added to it, and $y = \text{total}^2$. What are $\partial y / \partial\,\text{step}$ and
# $\partial y / \partial\,\text{total}$: numbers, or `None`?

# %%
exercises.assigned.guess([..., ...])  # dy/dstep, dy/dtotal

# %%
step = tf.Variable(3.0)
total = tf.Variable(0.0)
with tf.GradientTape() as tape:
    total.assign_add(step)
    y = total**2

dy_dstep, dy_dtotal = tape.gradient(y, [step, total])
print("y         =", y.numpy())
print("dy/dstep  =", dy_dstep)
print("dy/dtotal =", dy_dtotal.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.assigned.reveal([dy_dstep, dy_dtotal])
assert [one.code for one in rebound] == ["exists", "source_replaced"]
check_x = tf.Variable(2.0)
check_x = check_x.assign_add(1.0)
with tf.GradientTape() as check_tape:
    check_y = check_x**2
assert check_y == 9.0
assert check_tape.gradient(check_y, check_x) is None
assert rebound[1].line.text.startswith("x = x + 1.0")
assert y.numpy() == 9.0
assert dy_dstep is None
assert dy_dtotal.numpy() == 6.0

# %% [markdown]
# The value arrived; its history did not. The assignment was not recorded. So `total` is a source that holds 3, and `step` leads nowhere.
#
# Add with an operation inside the tape, and assign when the gradient has been taken.

# %%
total.assign(0.0)
with tf.GradientTape() as tape:
    new_total = total + step
    y = new_total**2

dy_dstep = tape.gradient(y, step)
total.assign(new_total)
print("dy/dstep =", dy_dstep.numpy(), " total =", total.numpy())

# %% [markdown]
# ### Exercise: A memory that the tape can follow (5 min)
#
# `average` and `x` are variables of one shape. Each call moves the average a little towards `x`: the new average is `0.9 * average + 0.1 * x`. The call happens inside a tape. Return the
# loss, the sum of the squares of the *new* average. Afterwards the variable `average` must hold the new average, and the gradient of the loss with respect to `x` must exist. You may
# change any line.


# %%
def loss_with_memory(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return ...  # the sum of the squares of the new average


exercises.memory.check(loss_with_memory)

# %% [markdown]
# ## 7. Target and tape out of step
#
# Now the target is the wrong one, or finished after the block.

# %%
a, b = tf.Variable(2.0), tf.Variable(5.0)
with ExplainTape() as tape:
    squared = a**2
    loss_b = b**2
loss_a = 10.0 * squared  # the tape is closed

unrelated = explain(tape, loss_b, a)
finished_late = explain(tape, loss_a, a)
print(f"{unrelated.code}: {unrelated.sentence}")
print(f"{finished_late.code}: {finished_late.sentence}")

# %% [markdown]
# In the first nothing was lost. `loss_b` is made of `b` alone, so its derivative with respect to `a` is 0. `Pow` is the operation of `squared`, which leads to `loss_a`. Pass the loss that you meant.
#
# In the second the value is right, but the tape holds `squared` and never heard of the product. Move that line into the block, and the
# gradient is $20a = 40$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert dy_dstep.numpy() == 6.0
assert total.numpy() == 3.0
assert unrelated.exists is False
assert finished_late.exists is False
assert [unrelated.code, finished_late.code] == ["unrelated", "target_after_tape"]
with tf.GradientTape() as check_tape:
    check_y = 10.0 * a**2  # all of it inside
assert check_y == loss_a
assert check_tape.gradient(check_y, a).numpy() == 40.0

# %% [markdown]
# ## 8. No gradient registered
#
# TensorFlow keeps a registry that says how to differentiate an operation. Rounding has an entry, a function that returns `None`. The contrast adjustment
# of an image has no entry at all.

# %%
x = tf.Variable([0.3, 0.7, 2.4])
image = tf.Variable(tf.random.uniform((height, width, 1)))
factor = 2.0

with tf.GradientTape(persistent=True) as tape:
    by_rounding = tf.reduce_sum(tf.round(x) ** 2)
    by_contrast = tf.reduce_sum(tf.image.adjust_contrast(image, factor) ** 2)

rounded = tape.gradient(by_rounding, x)
print("tf.round:", rounded)
try:
    tape.gradient(by_contrast, image)
except LookupError as error:
    complaint = str(error)
    print("tf.image.adjust_contrast: LookupError,", complaint)

# %% [markdown]
# To pass nothing back is a *decision*. `tf.round` did so without a word; in the check below so do `tf.floor`, `tf.math.ceil`, `tf.argmax` and `x > 0.5`, cast to float. All but `tf.argmax` keep
# the shape: section 2's straight-through estimator mends these.
#
# *Not registered* is a gap. In this program it is an error, raised when the backward pass *reaches* the operation.
#
# Here the gap can be closed. Contrast stretches a pixel's distance from its channel's mean: $m + f\,(p - m)$.


# %%
def contrast(image, factor):
    """The image, shape (height, width, channels), stretched about each channel's mean."""
    mean = tf.reduce_mean(image, axis=(0, 1), keepdims=True)
    return mean + factor * (image - mean)


with tf.GradientTape() as tape:
    by_contrast = tf.reduce_sum(contrast(image, factor) ** 2)
contrast_gradient = tape.gradient(by_contrast, image)

built_in = tf.image.adjust_contrast(image, factor)
difference = tf.reduce_max(tf.abs(contrast(image, factor) - built_in)).numpy()
print(f"largest difference from tf.image.adjust_contrast: {difference:.4f}")
print("the gradient's shape:", contrast_gradient.shape)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert rounded is None
assert "AdjustContrast" in complaint
assert private.has_gradient("Round")  # an entry, and a function that returns None
for staircase in (tf.round, tf.floor, tf.math.ceil, tf.argmax, lambda x: x > 0.5):
    with tf.GradientTape(persistent=True) as check_tape:
        check_y = tf.cast(staircase(x), tf.float32)
        check_straight = x + tf.stop_gradient(check_y - x)
    assert check_tape.gradient(check_y, x) is None
    assert (check_y.shape == x.shape) == (staircase is not tf.argmax)  # does the shape stay?
    if staircase is not tf.argmax:
        np.testing.assert_allclose(check_straight, check_y, atol=1e-6)
        np.testing.assert_array_equal(check_tape.gradient(check_straight, x), [1.0, 1.0, 1.0])
assert difference < 1e-5
assert contrast_gradient.shape == image.shape

# %% [markdown]
# ## 9. Zeros instead of None
#
# `0.1 * None` is a `TypeError`. `unconnected_gradients="zero"` gives a number instead; for Keras variables see section 11.

# %%
a = tf.Variable([1.0, 2.0, 3.0])
b = tf.Variable(5.0)
with tf.GradientTape(persistent=True) as tape:
    z = b**2

by_default = tape.gradient(z, a)
as_zeros = tape.gradient(z, a, unconnected_gradients="zero")
print("by default:", by_default)
print("with zeros:", np.asarray(as_zeros))

# %% [markdown]
# The zeros come in the source's shape, and here they are also the truth: $z$ does not depend on $a$.
#
# **Predict.** Section 7's mistake: $x^2$ at $x = 3$, squared after the tape has closed. What does the same option return now?

# %%
exercises.same_option.guess(...)

# %%
x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    shifted = x + 0.0
y = shifted**2  # too late

too_late = tape.gradient(y, x, unconnected_gradients="zero")
print("dy/dx =", np.asarray(too_late))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.same_option.reveal(too_late)
assert by_default is None
np.testing.assert_array_equal(as_zeros, [0.0, 0.0, 0.0])
assert too_late.numpy() == 0.0

# %% [markdown]
# 0, where the true derivative is 6: a forgotten line looks like a minimum. Pass the option where you *know* that
# some pairs are unconnected.
#
# A `None` does not stop Keras' `SGD`: from `[g, None]` it takes the one step, and warns. Put `assert all(g is not None for g in gradients)` into a loop that is to move them all.
#
# What does a compiled function answer? The one below has two outputs, and each depends on one input: $p = a^2$, $q = b^2$. It runs eagerly, and as a `tf.function` ([02](02_training_with_a_tape.ipynb)).
#
# **Predict.** What is $\partial p / \partial b$ each time: a number, or `None`?

# %%
exercises.compiled_twin.guess([..., ...])  # eager, compiled


# %%
def squares(a, b):
    return a**2, b**2


def dp_db(function):
    """The gradient of the first output with respect to the second input."""
    a, b = tf.Variable(3.0), tf.Variable(4.0)
    with tf.GradientTape() as tape:
        p, _ = function(a, b)
    return tape.gradient(p, b)


eager, compiled = dp_db(squares), dp_db(tf.function(squares))
print("eager:      ", eager)
print("tf.function:", compiled.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.compiled_twin.reveal([eager, compiled])
assert eager is None
assert compiled.numpy() == 0.0
check_moves, check_stays, check_sgd = tf.Variable(1.0), tf.Variable(1.0), tf.keras.optimizers.SGD(0.1)
with warnings.catch_warnings(record=True) as check_heard:
    warnings.simplefilter("always")
    check_sgd.apply_gradients([(tf.constant(1.0), check_moves), (None, check_stays)])
assert (round(float(check_moves), 3), float(check_stays)) == (0.9, 1.0)
assert any("Gradients do not exist" in str(check_warning.message) for check_warning in check_heard)
tf.config.run_functions_eagerly(True)
check_unrolled = dp_db(tf.function(squares))
tf.config.run_functions_eagerly(False)
assert check_unrolled is None

# %% [markdown]
# The tape recorded the call of the `tf.function` as *one* operation. Its backward pass takes an upstream gradient for every output: 1 for $p$, and 0 for $q$, which the target does not
# use. That zero travels to $b$ and comes out as a number.
#
# ## 10. Going further: two cuts, and what the tape cannot know
#
# Below, two paths lead from `x` to `y`, and each is cut.

# %%
x = tf.Variable([0.3, 0.7])
with ExplainTape() as tape:
    h = tf.tanh(x)
    whole = tf.reduce_sum(tf.round(4.0 * h))
    largest = tf.reduce_max(h)
    scale = tf.stop_gradient(largest)
    y = whole * scale

two_cuts = explain(tape, y, x)
print(two_cuts.sentence)

# %% alt="Computation graph. A graph that runs downwards from x to y. After a tanh it splits into two paths, and each has one dashed arrow with a cross: on one, marked not differentiable, before the rounding; on the other, marked stop_gradient, before a box with a dashed border, which was not recorded. Below the cuts the paths meet in a multiplication that leads to y." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two paths, two cuts
draw(tape, y, x)
plt.show()

# %% [markdown]
# With both cuts the answer is `None`. Repair the `tf.stop_gradient` alone, and the gradient exists.
#
# Below, NumPy is at work in one target, so that "this constant was made from that value" is only likely: the answer is marked *probable*. The other comes from a frozen Keras layer:

# %%
layer = tf.keras.layers.Dense(1)
layer.build((None, 2))
layer.trainable = False
x = tf.Variable([0.5, 1.5, 2.5])

with ExplainTape(persistent=True) as tape:
    frozen_target = layer(tf.ones((1, 2)))
    numpy_target = tf.reduce_sum(np.log1p(x))
frozen = explain(tape, frozen_target, layer.kernel)
probable = explain(tape, numpy_target, x)

print("frozen kernel:", frozen.code, frozen.remarks)
print("NumPy:        ", probable.code, "" if probable.certain else "(probable)")

# %% [markdown]
# Freezing takes this layer's variables out of `trainable_variables`. The tape did not notice: it still watched the kernel.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert sorted(cut.code for cut in two_cuts.cuts) == ["not_differentiable", "stop_gradient"]
with ExplainTape() as check_tape:
    check_h = tf.tanh(tf.identity(x))
    check_y = tf.reduce_sum(tf.round(4.0 * check_h)) * tf.reduce_max(check_h)  # one of the two repaired
assert explain(check_tape, check_y, x).exists
assert frozen.exists
assert frozen.remarks == ("frozen_layer",)
assert layer.trainable_variables == []
assert probable.code == "left_tensorflow"
assert not probable.certain

# %% [markdown]
# ### Exercise: A count that can be trained, two ways (10 min)
#
# `hard` below counts the entries of `x` that lie above a threshold. Its gradient is `None`. Make the `None` go away in two ways, and return two scalars:
#
# - `smooth`, a stand-in: for each entry a *sigmoid* in place of the step from 0 to 1. Its middle lies at the threshold, and its argument is the distance from there divided by `width`.
# - `straight`, which has the **value** of `hard` and the **gradient** of `smooth`. Build it from these two; `tf.stop_gradient(t)` has the value of `t`, and is a constant to the tape.


# %%
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = ...  # a stand-in for hard
    straight = ...  # the value of hard, the gradient of smooth
    return smooth, straight


exercises.two_counts.check(two_counts)

# %% [markdown]
# ### Exercise: Across the gap (15 min)
#
# Sometimes the step that leaves TensorFlow has to stay: a simulation, say, for which there is no operation. `simulate` is such a step, a NumPy function applied to each entry. `slope` is its
# derivative, a function of the same kind and of the same input. In the cell below the gradient of `loss` with respect to `x`, a tensor, is `None`. Return it all the same, in the shape of `x`.
# You may add lines, inside the block as well.


# %%
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))  # leaves TensorFlow
        loss = tf.reduce_sum(s**2)
    return ...  # the gradient of loss with respect to x


exercises.bridge.check(gradient_across)

# %% [markdown]
# ## 11. Going further: choosing what is watched
#
# With `watch_accessed_variables=False` a tape watches nothing by itself. **Where it goes wrong.** This kernel of a Keras 3 layer *holds* a `tf.Variable` but is not one, and `watch` refuses it.

# %%
layer = tf.keras.layers.Dense(6)
layer.build((7, 5))
examples = tf.random.normal((7, 5))
refused = None

with tf.GradientTape(watch_accessed_variables=False) as tape:
    try:
        tape.watch(layer.kernel)
    except ValueError as error:
        refused = error
        print("ValueError: Passed in object …", str(error).rpartition("> ")[2])

    tape.watch(layer.kernel.value)
    loss = tf.reduce_mean(layer(examples) ** 2)

dl_dkernel, dl_dbias = tape.gradient(loss, [layer.kernel, layer.bias])
print("dloss/dkernel:", dl_dkernel.shape)
print("dloss/dbias:  ", dl_dbias)

# %% [markdown]
# **The fix:** its `.value` is the `tf.Variable` inside. As a *source* of `gradient`, this Keras variable itself is accepted. Unconnected, with `unconnected_gradients="zero"`, it raised an `AttributeError`: pass its `.value` there, too. The bias was not watched, so its gradient is `None`.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert isinstance(refused, ValueError)
by_hand = 2.0 * tf.transpose(examples) @ layer(examples) / (7 * 6)
np.testing.assert_allclose(dl_dkernel, by_hand, rtol=1e-4, atol=1e-6)
assert dl_dbias is None
check_layer = tf.keras.layers.Dense(1)
check_layer.build((None, 2))
check_refused = None
with tf.GradientTape(persistent=True) as check_tape:
    check_y = b**2
try:
    check_tape.gradient(check_y, check_layer.kernel, unconnected_gradients="zero")
except AttributeError as error:
    check_refused = error
assert check_refused is not None
check_zeros = check_tape.gradient(check_y, check_layer.kernel.value, unconnected_gradients="zero")
np.testing.assert_array_equal(check_zeros, [[0.0], [0.0]])

# %% [markdown]
# ## 12. Check it independently
#
# Central differences in float64 show what stood behind
# four of the `None`s and errors above: behind `np.log1p` and `assign_add` a derivative that was lost, behind contrast one that nobody had written, behind rounding a true zero.


# %%
def contrast_loss(image):
    mean = image.mean(axis=(0, 1), keepdims=True)
    return np.sum((mean + factor * (image - mean)) ** 2)


numerical = gradcheck.numerical_jacobian
lost = numerical(lambda x: np.sum(np.log1p(x)), [0.0, 1.0, 3.0])
assigned = numerical(lambda step: np.sum((0.0 + step) ** 2), [3.0])
staircase = numerical(lambda x: np.sum(np.round(x) ** 2), [0.3, 0.7, 2.4])
unwritten = gradcheck.check_gradient(contrast_loss, contrast_gradient, image.numpy(), rtol=1e-5)
print("np.log1p:  ", lost.round(4))
print("assign_add:", assigned.round(4))
print("np.round:  ", staircase)
print(f"contrast:   largest error of the gradient {unwritten:.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(lost, [1.0, 0.5, 0.25], rtol=1e-8)
np.testing.assert_allclose(assigned, [dy_dstep], rtol=1e-8)
np.testing.assert_array_equal(staircase, [0.0, 0.0, 0.0])
assert unwritten < 1e-5

# %% [markdown]
# ## Recap
#
# - Watch each intermediate tensor before its use, and walk back from the target: the break lay before the last gradient that existed. `explain` named the cause, the line and a line to write instead (sections 1 and 2).
# - Of four sources the tape watched the trainable variable by itself; tell it, before use, to watch the others (section 3).
# - Keep a path inside TensorFlow, in floating point, free of assignments, and inside the block up to the target (sections 4 to 7).
# - Not registered was a `LookupError` where the backward pass reached it; what passes nothing back gave `None`. `unconnected_gradients="zero"` turned `None` into zeros, once truly and once by mistake; so did a `tf.function` with two outputs (sections 8 and 9).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | not watched, or only after its use: a non-trainable variable, a tensor from before the tape | `None` | `watch` before the first use |
# | `tape.watch(layer.kernel)` in Keras 3 | `ValueError`: a `Variable`, "not tf.Tensor or tf.Variable" | `tape.watch(layer.kernel.value)` |
# | `np.log1p`, `.numpy()` or `float()` on the only path, run eagerly | `None`; on one of two paths its part is missing, without a warning | TensorFlow's own operation |
# | `tf.Variable(3)` is an integer | `None`, though it is trainable | write `3.0` |
# | `x = x + 1.0` on a variable, where the next tape does not watch `x` | `None` from the second epoch on | `x.assign_add(1.0)`, without `x =` |
# | `v.assign_add(step)` inside the tape, then a loss of `v` | `None` for `step` | a loss of `v + step`; assign after it |
# | the loss is finished after the block of its only tape | `None` | move the line inside |
# | `tf.image.adjust_contrast`, which has no gradient registered, between source and target | `LookupError` | write it with other operations |
# | a `None` among other gradients for Keras' `SGD` | a warning, and the variable stays | `assert` that none is `None`, unless one is meant |
# | `unconnected_gradients="zero"` where a line is forgotten | a zero that looks like a minimum | use it where you know that a pair is unconnected |
# | a `tf.function` that returns `a**2, b**2`, recorded | for `a**2` and `b`, 0 instead of `None` | run it eagerly once |
#
# **Further reading**
#
# - TensorFlow guide, [Introduction to gradients and automatic differentiation](https://www.tensorflow.org/guide/autodiff), section "Getting a gradient of `None`".
# - Y. Bengio, N. Léonard, A. Courville (2013), ["Estimating or propagating gradients through stochastic neurons for conditional computation"](https://arxiv.org/abs/1308.3432): the straight-through estimator.
# - A. Griewank, A. Walther (2008), ["Evaluating Derivatives"](https://doi.org/10.1137/1.9780898717761): the reverse mode, and what a tape is.
#
# **Read next:** [04 When the gradient is wrong](04_when_the_gradient_is_wrong.ipynb). The gradient exists, and it is NaN, infinite or zero. To practise: [28 First aid](28_first_aid.ipynb).
