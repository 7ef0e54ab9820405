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
# # Gradient tape basics
#
# The cell below runs a computation forwards, and TensorFlow tells you how a small change of its input would have changed the result. **How does a tape turn a computation into a gradient?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/01_gradient_tape_basics.ipynb)
#
# **Prerequisites:** [00 Start here](00_start_here.ipynb) · **Minutes:** 23 to read, 2 more to go further, 34 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
learning_rate = 0.12  # of gradient descent in section 4, between 0.09 and 0.13
steps = 60  # of gradient descent in section 4, between 40 and 80
batch = 7  # examples, in section 10, between 1 and 50
inputs = 5  # numbers in each example, between 1 and 20
hidden = 8  # units of the hidden layer, between 1 and 20
outputs = 6  # numbers that the network returns for each example, between 1 and 20

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import data, gradcheck, plots, runtime
from tapelab.exercises.sheets import gradient_tape_basics as exercises
from tapelab.explain import ExplainTape, draw, step_through, table

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
x = tf.Variable(2.0)

with tf.GradientTape() as tape:
    y = x * x + 5.0 * x

dy_dx = tape.gradient(y, x)
print("y     =", y.numpy())
print("dy/dx =", dy_dx.numpy())

nudge = 0.001
nudged = (x + nudge) * (x + nudge) + 5.0 * (x + nudge)
print(f"a nudge of x by {nudge} moves y by {nudged - y:.4f}")

# %% [markdown]
# The nudge of $x$ moved $y$ by about nine times as much. The derivative is that factor, for a nudge that goes to 0. By hand it is $2x + 5 = 9$.
#
# **You will be able to**
#
# - draw the tape of a short computation, and run its backward pass by hand (section 1),
# - write a tape of your own, train something with it, and find in TensorFlow's what is in yours (sections 2 and 3),
# - take steps down a gradient, and say how far one step lowers the loss (section 4),
# - say what `gradient` returns when the target is not a scalar (section 5),
# - say what a tape answers, what it watches, and what it keeps of an `if` or a loop (sections 6, 7 and 8).
#
# ## 1. Record forwards, read backwards
#
# TensorFlow saw three arithmetic operations, and wrote each one down as it ran. That
# list is the **tape**, and each of its lines is an **entry**. `y`, the result you ask about, is the **target**; `x`, the
# input you ask about, is the **source**.
#
# `ExplainTape`, which comes with these notebooks, is a `tf.GradientTape` that shows its list.

# %% alt="Computation graph. At the top x with the value 2; below it x times x with the value 4 and five times x with the value 10; below both their sum, 14. Beside each arrow down, an arrow up carries a gradient: 1 from the sum to each product; then 5 from one product to x, and from the other 2 and 2 on two arrows. The gradient of x is 9."
with ExplainTape() as tape:
    a = x * x
    b = 5.0 * x
    y = a + b

draw(tape, y, x, values=True)
plt.show()

# %% [markdown]
# The same as a table: step through it, down with the values, then up with the gradients. Row 0 is the source; rows 1 to 3 are entries. `#0` stands
# for the value of row 0.

# %%
step_through(tape, y, x)

# %% [markdown]
# Each entry has its **local derivatives**: how its result changes with its own inputs.
#
# | # | operation | value | local derivatives |
# |---|---|---|---|
# | 1 | `a = x * x` | 4 | 2 for the first `x`, 2 for the second |
# | 2 | `b = 5.0 * x` | 10 | 5 for `x` |
# | 3 | `y = a + b` | 14 | 1 for `a`, 1 for `b` |
#
# For the exercises: $a / b$ has $1/b$ for $a$ and $-a/b^2$ for $b$; $\tanh a$ has
# $1 - \tanh^2 a$.
#
# Values flow down the list. Derivatives flow **up**. Start at the bottom with $\mathrm dy/\mathrm dy = 1$. Each of the three entries multiplies what it was handed by each of its local derivatives, and hands the product, its **contribution**, to that
# input. Entry 3 hands $1 \cdot 1$ to `a` and $1 \cdot 1$ to `b`. Entry 2 hands $1 \cdot 5$ to `x`. Entry 1 uses `x` twice,
# so two arrows lead back from it, with $1 \cdot 2$ each. `x` adds up the
# contributions: $5 + 2 + 2 = 9$.
#
# Why from the end? Whoever uses an entry's result stands further down. So its sum is complete when you arrive.
#
# Two rules: **multiply along a path, add where paths meet.** Going up the list with them is the
# **backward pass**, and the method is **backpropagation**, or **reverse-mode** automatic differentiation. The sum
# of the contributions that an entry is handed is its **upstream gradient**, or *cotangent*.
#
# Now the last line becomes `y = a * b`.
#
# **Predict.** `x` is 2, `a` is 4 and `b` is 10. What is $\mathrm dy/\mathrm dx$?

# %%
exercises.dy_dx.guess(...)  # a number in place of the dots

# %%
with tf.GradientTape() as product_tape:
    a = x * x
    b = 5.0 * x
    product = a * b

dp_dx = product_tape.gradient(product, x)
print("dy/dx =", dp_dx.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.dy_dx.reveal(dp_dx)
assert dp_dx == 60.0 == 3 * 5 * x.numpy() ** 2  # y = 5 x³
assert (y, dy_dx) == (14.0, 9.0)
assert 8.99 < (nudged - 14.0) / nudge < 9.02  # (2x + 5) h + h², and rounding
assert [row.value for row in table(tape, y, x).rows] == ["2", "4", "10", "14"]
assert [row.gradient for row in table(tape, y, x).rows] == ["9", "1", "1", "1"]

# %% [markdown]
# The derivative of $a \cdot b$ with respect to `a` is `b`, and with respect to `b` it is `a`. So entry 3 hands 10 to `a` and 4 to
# `b`, and `x` receives $10 \cdot 2 + 10 \cdot 2 + 4 \cdot 5 = 60$.
#
# For this the tape kept *values*: the local derivatives of this product are its factors.
#
# ### Exercise: Draw a tape (6 min)
#
# Take three lines at $x = 3$: `a = x * x`, then `b = a + x`, then `y = a * b`. Draw their tape on paper. Which value has each entry, and which gradient has it collected when the backward pass
# reaches it?

# %%
answer = {
    "value of a": ...,
    "value of b": ...,
    "value of y": ...,
    "gradient of y": ...,
    "gradient of b": ...,
    "gradient of a": ...,
    "gradient of x": ...,
}

exercises.written_tape.check(answer)

# %% [markdown]
# ## 2. A tape of your own
#
# Here is a number that writes down how it was made, and a backward pass: `reversed` walks up the list, `*` multiplies and `+=` adds.

# %%
record = []  # entries: a result, and pairs of an input and a local derivative


class Number:
    """A value that writes down how it was made."""

    def __init__(self, value, made_from=()):
        self.value, self.gradient = value, 0.0
        record.append((self, made_from))

    def __add__(self, other):
        other = as_number(other)
        return Number(self.value + other.value, [(self, 1.0), (other, 1.0)])

    def __mul__(self, other):
        other = as_number(other)
        local = [(self, other.value), (other, self.value)]
        return Number(self.value * other.value, local)

    __radd__, __rmul__ = __add__, __mul__  # for 5.0 * x, where the number is second


def as_number(value):
    return value if isinstance(value, Number) else Number(value)


def backward_pass(target):
    target.gradient = 1.0
    for result, made_from in reversed(record):
        for number, local in made_from:
            number.gradient += result.gradient * local


root = Number(2.0)
result = root * root + 5.0 * root
backward_pass(result)

print("y     =", result.value)
print("dy/dx =", root.gradient)

# %% [markdown]
# The same 14 and 9. Three more runs at $x = 3$, through both tapes. The third's loop your tape never sees: it meets four products.


# %%
def fan_out(x):
    return x * x + 5.0 * x


def chain(x):
    u = 2.0 * x + 1.0
    return u * u


def loop(x):
    power = 1.0
    for _ in range(4):
        power = power * x
    return power


for f in (fan_out, chain, loop):
    record.clear()
    mine = Number(3.0)
    backward_pass(f(mine))

    theirs = tf.Variable(3.0)
    with tf.GradientTape() as tape:
        value = f(theirs)
    slope = tape.gradient(value, theirs)
    print(f"{f.__name__:8} value {value:5}   slope: yours {mine.gradient:5}, TensorFlow {slope:5}")

# %% [markdown]
# These lines are enough to *train*. A straight line $w\,t + c$ is to pass through (0, 1), (1, 3) and (2, 5). Your tape has no subtraction, hence `+ -wanted`.

# %%
w_value, c_value = 0.0, 0.0
for step in range(200):
    record.clear()
    w, c, loss = Number(w_value), Number(c_value), 0.0
    for t, wanted in ((0.0, 1.0), (1.0, 3.0), (2.0, 5.0)):
        error = w * t + c + -wanted
        loss = error * error + loss
    backward_pass(loss)
    w_value -= 0.1 * w.gradient  # down the gradient
    c_value -= 0.1 * c.gradient

print(f"w = {w_value:.3f}, c = {c_value:.3f}, loss {loss.value:.6f}, {len(record)} entries a step")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose([w_value, c_value], [2.0, 1.0], atol=1e-3)
assert (result.value, root.gradient) == (14.0, 9.0)
exact = {fan_out: lambda x: 2 * x + 5, chain: lambda x: 8 * x + 4, loop: lambda x: 4 * x**3}
for f, derivative in exact.items():
    for point in (-1.5, 0.0, 3.0):
        record.clear()
        mine, theirs = Number(point), tf.Variable(point)
        backward_pass(f(mine))
        with tf.GradientTape() as tape:
            value = f(theirs)
        assert mine.gradient == tape.gradient(value, theirs) == derivative(point)
assert len([made_from for _, made_from in record if made_from]) == 4  # the loop's products

# %% [markdown]
# In TensorFlow's tapes above, the `with` block kept such a record, a variable stood for `Number(3.0)`, `gradient` for `backward_pass`.
#
# ### Exercise: Two more entries (6 min)
#
# Do by hand, without a tape, what yours would do with a division and a tanh: write the forward and the backward pass
# of $y = \tanh(a / b)$ for two numbers. Return `y` and its gradients with respect to `a` and `b`. The local derivatives stand in section 1.
#
# Example: $a = 1$, $b = 2$ gives 0.4621, 0.3932 and −0.1966.


# %%
def tanh_of_quotient(a, b):
    q = a / b
    y = tf.tanh(q)
    ...  # the backward pass: what q is handed, then a and b
    return y, ..., ...  # the value, and the gradients with respect to a and b


exercises.two_more_entries.check(tanh_of_quotient)

# %% [markdown]
# ## 3. Gradients of a dense layer
#
# With tensors in place of numbers, this dense layer computes $y = xw + b$. Here `x` is one example of three numbers, `w` the **kernel** and `b` the **bias**. The loss is the mean of $y^2$.
#
# The sources come as a dict here, and so do the gradients.

# %%
x = tf.constant([[1.0, 2.0, 3.0]])
w = tf.Variable([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
b = tf.Variable([-13.0, -30.0])

with tf.GradientTape() as tape:
    y = x @ w + b
    loss = tf.reduce_mean(tf.square(y))

gradients = tape.gradient(loss, {"kernel": w, "bias": b})
print("y =", y.numpy())
for name, g in gradients.items():
    print(f"dloss/d {name}, shape {g.shape}:", g.numpy(), sep="\n")

# %% [markdown]
# **Each of the two gradients has its source's shape.** Entry $(i, j)$ of the first says how the loss changes when that
# entry of the kernel does. Here $y = (1, 2)$, and the mean of two squares has the derivative $2y/2$, so the upstream
# gradient that reaches the layer is $u = (1, 2)$. The kernel's entry $w_{ij}$ multiplies $x_i$ and adds to $y_j$:
#
# $$\frac{\partial L}{\partial w_{ij}} = x_i\,u_j, \qquad \frac{\partial L}{\partial b_j} = u_j.$$
#
# The local derivative of this `y` with respect to `w` is a whole array, the **Jacobian** $J$, with one number for each entry of `y` and each entry of `w`. With the kernel read row by row:
#
# $$J = \begin{pmatrix} 1 & 0 & 2 & 0 & 3 & 0 \\ 0 & 1 & 0 & 2 & 0 & 3 \end{pmatrix}, \qquad
# u^{\mathsf T} J = \begin{pmatrix} 1 & 2 & 2 & 4 & 3 & 6 \end{pmatrix}.$$
#
# For a layer from 1000 to 1000 numbers $J$ would have $10^9$ entries. `tape.gradient` built not even this one. The matrix product has a rule that goes straight from $u$ to $u^{\mathsf T} J$, a **vector–Jacobian product** (VJP): here the outer product $x_i u_j$, as large as the kernel. Backpropagation is one VJP after another.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert set(gradients) == {"kernel", "bias"}
np.testing.assert_array_equal(y, [[1.0, 2.0]])
np.testing.assert_array_equal(gradients["kernel"], [[1.0, 2.0], [2.0, 4.0], [3.0, 6.0]])
np.testing.assert_array_equal(gradients["bias"], [1.0, 2.0])
with tf.GradientTape() as tape:
    again = x @ w + b
jacobian = tape.jacobian(again, w)
matrix = tf.reshape(jacobian, [2, 6])
np.testing.assert_array_equal(matrix, [[1, 0, 2, 0, 3, 0], [0, 1, 0, 2, 0, 3]])
np.testing.assert_array_equal(y @ matrix, [[1, 2, 2, 4, 3, 6]])
np.testing.assert_array_equal(tf.tensordot(y, jacobian, 2), gradients["kernel"])  # uᵀJ, with u = y


@tf.function
def traced_gradient():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(x @ w + b))
    return tape.gradient(loss, w)


operations = traced_gradient.get_concrete_function().graph.get_operations()
assert max(t.shape.num_elements() or 0 for one in operations for t in one.outputs) == 6 < tf.size(jacobian)
with tf.GradientTape() as tape:
    again = tf.reduce_sum(x @ w + b)
nest = [w, {"nested": (b, w)}]
tf.nest.assert_same_structure(tape.gradient(again, nest), nest)

# %% [markdown]
# ### Exercise: A layer's backward pass, by hand (8 min)
#
# Write what a tape does with a dense layer $y = xw + b$, without a tape. Given are `x` of shape (batch, inputs), `w` of shape (inputs, outputs)
# and `upstream` of shape (batch, outputs): the gradient of some loss with respect to $y$. Return a tuple of three tensors: the gradients of the loss with respect to `x`, `w` and `b`. The bias `b` itself, of shape (outputs,), is not needed.
#
# The batch may be larger than one.


# %%
def backward(x, w, upstream):
    return ..., ..., ...  # the gradients with respect to x, w and b


exercises.dense_backward.check(backward)

# %% [markdown]
# ## 4. Gradient descent by hand
#
# To lower a smooth loss, go against its gradient: a step of size $s$ replaces each variable $v$ by
# $v - s\,g$, where $g$ is its gradient. To first order the loss then falls by $s\,\lVert g \rVert^2$, the step times the squared norm of the whole
# gradient.
#
# A walker notes the distance every half hour, and you fit a line. How far does the first-order promise hold?

# %%
hours = tf.constant([0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0])
noted = tf.constant([1.2, 1.5, 2.7, 3.1, 4.2, 4.5, 5.6, 6.4, 6.8])  # km
speed, head_start = tf.Variable(-0.5), tf.Variable(4.0)


def squared_error(speed, head_start):
    return tf.reduce_mean((speed * hours + head_start - noted) ** 2)


with tf.GradientTape() as tape:
    loss = squared_error(speed, head_start)

slopes = tape.gradient(loss, [speed, head_start])
print(f"loss {loss:.2f}, gradient ({slopes[0]:.2f}, {slopes[1]:.2f})")


def loss_after(step):
    """The loss after one step of that size; the variables stay where they are."""
    moved = [v - step * g for v, g in zip(start, slopes, strict=True)]
    return squared_error(*moved).numpy()


start = (speed.numpy(), head_start.numpy())
squared_norm = sum(g.numpy() ** 2 for g in slopes)
for step in (0.001, 0.01, 0.1):
    fall = loss_after(0.0) - loss_after(step)
    print(f"step {step:5}: falls by {fall:.3f}, promised {step * squared_norm:.3f}")

# %% alt="Line plot. The loss against the size of one step down the gradient: a parabola that follows its dashed tangent at first, bends away to a marked lowest point near 0.08, and climbs above the dotted line of the starting loss beyond 0.16." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the loss after one step
sizes = np.linspace(0.0, 0.2, 81)
along = np.array([loss_after(size) for size in sizes])
best = int(np.argmin(along))

_, ax = plt.subplots(figsize=(6, 3.8), layout="constrained")
ax.plot(sizes, along, color=plots.BLUE)
ax.plot(sizes, along[0] - sizes * squared_norm, "--", color=plots.RED)
ax.axhline(along[0], linestyle=":", color=plots.GREY)
ax.plot(sizes[best], along[best], "o", color=plots.BLUE)
ax.text(0.1, along[0] + 0.2, "loss at the start", color="#555555", ha="center")
ax.text(0.036, 1.1, "first order", color=plots.RED, ha="right")
ax.text(0.132, 3.3, "loss after the step", color=plots.BLUE)
ax.set(xlabel="step size s", ylabel="mean squared error (km²)", ylim=(0, 13))
ax.set_title("A step of 0.17 climbs")
plt.show()

# %% [markdown]
# The gradient is a slope *here*. Beyond a step of about 0.16 the loss ends higher than it began. So take small steps, each with a new tape. `assign_sub` subtracts from a variable in place.

# %%
variables = [speed, head_start]
path, losses = [start], [loss.numpy()]
for _ in range(steps):
    with tf.GradientTape() as tape:
        loss = squared_error(*variables)
    for v, g in zip(variables, tape.gradient(loss, variables), strict=True):
        v.assign_sub(learning_rate * g)
    path.append((speed.numpy(), head_start.numpy()))
    losses.append(squared_error(*variables).numpy())

print(f"speed {speed.numpy():.2f} km/h, head start {head_start.numpy():.2f} km")
print(f"loss {losses[0]:.2f}, after a step {losses[1]:.2f}, at the end {losses[-1]:.3f}")

# %% alt="Contour plot. Ellipses of equal loss in a long narrow valley, over speed and head start. The path of gradient descent zigzags across the valley for a few steps, then creeps along its floor towards a star at the least-squares line." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the path
best_line = np.polyfit(hours.numpy(), noted.numpy(), 1)
across, up = np.meshgrid(np.linspace(-1.0, 3.0, 121), np.linspace(0.3, 4.5, 121))
errors = across[..., None] * hours.numpy() + up[..., None] - noted.numpy()

_, ax = plt.subplots(figsize=(6, 5), layout="constrained")
heights = (errors**2).mean(axis=-1)
levels = [0.1, 0.5, 1, 2, 4, 8, 16]
lines = ax.contour(across, up, heights, levels=levels, colors=plots.GREY, linewidths=0.9)
ax.clabel(lines, fontsize=7)
ax.plot(*np.transpose(path), "o-", color=plots.RED, markersize=3, linewidth=1.2)
ax.plot(*best_line, "*", color=plots.BLUE, markersize=14)
ax.text(path[0][0] - 0.08, path[0][1] + 0.05, "start", ha="right", color=plots.RED)
ax.text(best_line[0] + 0.25, best_line[1] - 0.05, "least-squares line", color=plots.BLUE)
ax.set_title("Across the valley at once, along it slowly")
ax.set(xlabel="speed (km/h)", ylabel="head start (km)")
ax.set_aspect("equal")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
kept = {s: (loss_after(0.0) - loss_after(s)) / (s * squared_norm) for s in (0.001, 0.01, 0.1)}
assert 0.98 < kept[0.001] < 1.0
assert 0.9 < kept[0.01] < 0.98
assert kept[0.1] < 0.5
assert loss_after(0.15) < loss_after(0.0) < loss_after(0.17)
assert loss_after(0.08) < min(loss_after(0.06), loss_after(0.1))
assert np.all(np.diff(losses) < 0)
from_best = np.linalg.norm(path - np.polyfit(hours.numpy(), noted.numpy(), 1), axis=1)
curvature = 2.0 * np.mean([[hours**2, hours], [hours, hours**0]], axis=-1)  # of this loss, everywhere
slowest = np.abs(1.0 - learning_rate * np.linalg.eigvalsh(curvature)).max()
assert from_best[-1] <= slowest**steps * from_best[0] + 1e-3
moves = np.diff(path, axis=0)
assert moves[0] @ moves[1] < 0  # across the floor, and back
level = np.float32([-moves[0][1], moves[0][0]]) * 0.01 / np.linalg.norm(moves[0])  # at right angles to the first step
assert abs(squared_error(*(start + level)) - squared_error(*(start - level))) < 1e-3 * 0.02 * squared_norm**0.5
assert np.all(np.sum(moves[-6:-1] * moves[-5:], axis=1) > 0)  # at the end it creeps one way

# %% [markdown]
# ### Exercise: A step that never climbs (10 min)
#
# Let the loss decide how far to go. `loss` is a function from a variable or tensor to a scalar, `w` is a
# variable, and `size` is the first step size to try, a Python float.
#
# Take **one** step of gradient descent from where `w` is. Its size is the first of `size`, `size / 2`, `size / 4`, … after which the loss is *lower* than
# before. Change the variable in place, and return the size that was used. There need not be one: at a maximum the gradient is 0. A loss that is NaN is not lower. After 50 tries leave `w` where it is, and return 0.
#
# Example: for the sum of $w^2$ at $w = (1, -2)$, the sizes 3 and 1.5 overshoot. The size is 0.75, and `w` ends at $(-0.5, 1)$.


# %%
def careful_step(loss, w, size):
    with tf.GradientTape() as tape:
        before = loss(w)
    g = tape.gradient(before, w)
    for _ in range(50):
        ...  # try the size; if the loss is lower there, take the step and return the size
    return 0.0


exercises.careful_step.check(careful_step)

# %% [markdown]
# ## 5. Gradients of non-scalar targets
#
# At $x = 2$ the target $y = x \cdot (3, 4)$ is no scalar: its two entries have the derivatives 3 and 4.
#
# **Predict.** What does `tape.gradient(y, x)` return?

# %%
exercises.two_entries.guess(...)  # a number or a list in place of the dots

# %%
x = tf.Variable(2.0)

with tf.GradientTape() as tape:
    y = x * [3.0, 4.0]

dy_dx = tape.gradient(y, x)
print("y        =", y.numpy())
print("gradient =", dy_dx.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.two_entries.reveal(dy_dx)
np.testing.assert_array_equal(y, [6.0, 8.0])
assert dy_dx == 7.0

# %% [markdown]
# The source, a scalar, has room for one number. **The gradient of a non-scalar target, a tensor of floating-point numbers, is the gradient of its sum.** The backward pass starts with a one for every entry of the target: $3 + 4$. `output_gradients=tf.constant([1.0, 10.0])` would weight them: $3 + 40$ ([11](11_jacobians.ipynb)).
#
# **Where it goes wrong.** A loss for each example is a non-scalar target. Below: the walker's nine squared errors, then their mean.

# %%
speed = tf.Variable(0.0)


def gradient_of(reduce):
    with tf.GradientTape() as tape:
        target = reduce((speed * hours + 1.0 - noted) ** 2)
    g = tape.gradient(target, speed).numpy()
    print(f"target of shape {target.shape}: gradient {g:.2f}")
    return g


unreduced = gradient_of(lambda errors: errors)
averaged = gradient_of(tf.reduce_mean)

# %% [markdown]
# The first is the gradient of the *sum*: nine times too large. **The fix:** `tf.reduce_mean` before the block closes.
#
# **A gradient that is no tensor.** With `v = tf.Variable(tf.ones((4, 2)))`, the gradient `g` of `tf.reduce_sum(tf.gather(v, [0, 0]))` is `tf.IndexedSlices`: the rows that were read, with their gradients. `0.1 * g` raises a `TypeError`; `tf.convert_to_tensor(g)` writes it out.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(unreduced, 9 * averaged, rtol=1e-5)
with tf.GradientTape() as check_tape:
    check_y = x * [3.0, 4.0]
assert check_tape.gradient(check_y, x, output_gradients=tf.constant([1.0, 10.0])).numpy() == 43.0
assert averaged < -10
table_of_rows = tf.Variable(tf.ones((4, 2)))
with tf.GradientTape() as tape:
    looked_up = tf.reduce_sum(tf.gather(table_of_rows, [0, 0]))
slices = tape.gradient(looked_up, table_of_rows)
assert isinstance(slices, tf.IndexedSlices)
with np.testing.assert_raises(TypeError):
    0.1 * slices
np.testing.assert_array_equal(tf.convert_to_tensor(slices), [[2, 2], [0, 0], [0, 0], [0, 0]])

# %% [markdown]
# ## 6. Intermediate results and persistent tapes
#
# The result of an entry can be a source. Let $x = 3$, $y = x \cdot x$ and
# $z = y \cdot y$. Then $\mathrm dz/\mathrm dy = 2y = 18$, though nobody asked the tape to watch `y`.

# %%
x = tf.Variable(3.0)

with tf.GradientTape() as tape:
    y = x * x
    z = y * y

print("dz/dy =", tape.gradient(z, y).numpy())
refused = None
try:
    print("dy/dx =", tape.gradient(y, x).numpy())
except RuntimeError as error:
    refused = error
    print(f"RuntimeError: {error}")

# %% [markdown]
# This tape answered **one** call. One call takes several sources. For several calls about one run, `persistent=True` keeps the record and its values; after a step, take a new tape. `del tape` after your last question.

# %%
with tf.GradientTape(persistent=True) as tape:
    y = x * x
    z = y * y

dz_dy, dy_dx, dz_dx = tape.gradient(z, y), tape.gradient(y, x), tape.gradient(z, x)
print(f"dz/dy = {dz_dy}, dy/dx = {dy_dx}, and dz/dx = {dz_dx} is their product")
del tape

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert isinstance(refused, RuntimeError)
assert "non-persistent" in str(refused)
assert (dz_dy, dy_dx, dz_dx) == (18.0, 6.0, 108.0)
with tf.GradientTape(persistent=True) as tape:
    y = x * x
x.assign_sub(0.1 * tape.gradient(y, x))
assert tape.gradient(y, x) == 6.0 != 2.0 * x  # of the run that was recorded, not of where x is now
del tape

# %% [markdown]
# ## 7. What a tape watches
#
# The tapes above watched their variables unasked. This constant they do not watch until you ask:

# %%
x = tf.constant(3.0)

with tf.GradientTape() as tape:
    y = x * x
unwatched = tape.gradient(y, x)

with tf.GradientTape() as tape:
    tape.watch(x)
    y = x * x
watched = tape.gradient(y, x)

print(f"without watch: {unwatched}")
print(f"with watch:    {watched}")

# %% [markdown]
# Below, `watch` comes between two uses of `x`, and $y = x^2 + 5x$.
#
# **Predict.** What does the tape return at $x = 3$: 11, 6, 5 or `None`?

# %%
exercises.late_watch.guess(...)  # one of the four in place of the dots

# %%
with tf.GradientTape() as tape:
    first_term = x * x
    tape.watch(x)
    y = first_term + 5.0 * x

late = tape.gradient(y, x)
print(f"dy/dx = {late}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert unwatched is None
assert watched == 6.0
exercises.late_watch.reveal(late)
assert late == 5.0
with tf.GradientTape() as tape:
    tape.watch(x)
    y = x * x + 5.0 * x
assert tape.gradient(y, x) == 11.0

# %% [markdown]
# The true derivative is $2x + 5 = 11$. `watch` acted from its line on: the tape saw $5x$ alone. **The fix:** `watch` at the top of the block.
#
# ## 8. Control flow
#
# What does a tape make of Python's `if`?
#
# **Predict.** `a` is 2, `b` is 5, and `gate` is positive, so that `a * a` runs and `b**3` does not. What are the
# gradients with respect to `a`, `b` and `gate`?

# %%
exercises.gate.guess([..., ..., ...])  # a, b, gate: each a number or None

# %%
a, b, gate = tf.Variable(2.0), tf.Variable(5.0), tf.Variable(1.0)

with tf.GradientTape() as tape:
    result = a * a if gate > 0 else b**3
with_if = tape.gradient(result, [a, b, gate])

with tf.GradientTape() as tape:
    result = tf.where(gate > 0, a * a, b**3)
with_where = tape.gradient(result, [a, b, gate])

for name, found in (("if", with_if), ("tf.where", with_where)):
    print(f"{name:9}", [None if g is None else float(g) for g in found])

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.gate.reveal(with_if)
assert with_if[0] == 4.0
assert with_if[1] is with_if[2] is None
assert (with_where[0], with_where[1], with_where[2]) == (4.0, 0.0, None)

# %% [markdown]
# The tape saw the branch that ran: nothing was computed from `b`. `gate` chose the branch, a choice of Python's. With `tf.where` both sides were computed before it picked, so `b` is on the record. **Here `None` says that no gradient got through to the source, and 0 that one did, and is zero.**
#
# The next loop doubles a positive input until it reaches 100. From 3 it stops at 192, from 7 at 112.
#
# **Predict.** What is the slope of the result at $x = 3$, and at $x = 7$?

# %%
exercises.doublings.guess([..., ...])  # two numbers: from 3, from 7


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
    return y.numpy(), tape.gradient(y, x).numpy()


from_3, from_7 = value_and_slope(3.0), value_and_slope(7.0)
print("x = 3: value and slope", *from_3)
print("x = 7: value and slope", *from_7)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.doublings.reveal([from_3[1], from_7[1]])
assert from_3 == (192.0, 64.0)
assert from_7 == (112.0, 16.0)
assert value_and_slope(np.float32(6.25)) == (100.0, 16.0)
just_before = value_and_slope(np.nextafter(np.float32(6.25), np.float32(0)))
np.testing.assert_allclose(just_before, (200.0, 32.0), rtol=1e-6)
for at in np.linspace(2.0, 30.0, 57, dtype=np.float32):
    doubled, steepness = value_and_slope(at)
    assert 100.0 <= doubled < 200.0
    assert steepness == 2.0 ** np.ceil(np.log2(100.0 / at)) == doubled / at

# %% alt="Two line plots. Above, the value over x: pieces of straight lines that climb from 100 to 200 and begin again at 100, each flatter than the one before. Below, the slope: level pieces at 64, 32, 16, 8 and 4, with a gap wherever the value drops." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
grid = np.linspace(2.0, 30.0, 561, dtype=np.float32)
value, slope = np.transpose([value_and_slope(at) for at in grid])
drops = 1 + np.flatnonzero(np.diff(slope))  # a NaN there breaks the lines

_, (above, below) = plt.subplots(2, 1, figsize=(6, 4.6), sharex=True, layout="constrained")
for ax, heights, colour in ((above, value, plots.BLUE), (below, slope, plots.RED)):
    ax.plot(np.insert(grid, drops, np.nan), np.insert(heights, drops, np.nan), color=colour)
for piece in np.split(np.arange(len(grid)), drops):
    level = slope[piece[0]]
    below.text(grid[piece].mean(), level + 3, f"{level:.0f}", ha="center", color=plots.RED)
above.set(title="The slope knows nothing of the jumps", ylabel="value", ylim=(90, 210))
below.set(xlabel="x", ylabel="slope, from the tape", ylim=(0, 76))
plt.show()

# %% [markdown]
# Six doublings from 3, four from 7: $2^6 = 64$ and $2^4 = 16$. The tape holds the doublings that ran, and no loop.
#
# Where their number changes, the value drops by 100. There the function has no derivative, and the tape returns
# the derivative of the run.
#
# ### Exercise: None, zero or a number (4 min)
#
# `x` is a variable that holds 3. What does the tape return for each of the five results, with respect to `x`: `None`, `0.0`, or another number?
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

exercises.five_results.check(answer)

# %% [markdown]
# ## 9. Going further: a network, and the gradient of its input
#
# The loop of section 4 trains a network, too. Here are 1437 images of handwritten digits, 8 by 8 pixels each, and two dense layers
# with their four variables in a dict.

# %%
digits = data.load("digits", seed=seed)
images, labels = digits.x_train.reshape(-1, 64), digits.y_train

variables = {
    "w1": tf.Variable(tf.random.normal((64, 24)) / 8.0),
    "b1": tf.Variable(tf.zeros(24)),
    "w2": tf.Variable(tf.random.normal((24, 10)) / 24**0.5),
    "b2": tf.Variable(tf.zeros(10)),
}


def scores(x, v):
    """One score for each digit, shape (images, 10)."""
    return tf.tanh(x @ v["w1"] + v["b1"]) @ v["w2"] + v["b2"]


# %% tags=["nbval-ignore-output"]
for step in range(100):
    with tf.GradientTape() as tape:
        # for each image: small where the true digit's score is far above the others, large where it is not
        errors = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores(images, variables))
        loss = tf.reduce_mean(errors)
    for name, g in tape.gradient(loss, variables).items():
        variables[name].assign_sub(0.5 * g)
    if step in (0, 99):
        print(f"step {step + 1:3}: loss {loss:.2f}")

test_images = tf.constant(digits.x_test.reshape(-1, 64))
accuracy = np.mean(np.argmax(scores(test_images, variables), axis=1) == digits.y_test)
print(f"{accuracy:.0%} of {len(test_images)} new images are read correctly")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert images.shape == (1437, 64)
assert loss < 0.3
assert accuracy > 0.9

# %% [markdown]
# Now hold the network still, and ask how the score of a digit changes with each *pixel*: the gradient with respect to the input. The images are a tensor, so `watch` it. The target has an entry for each of four images; no score here depends on another image, so each row is the gradient of its own.

# %%
shown = [0, 3, 4, 7]
examples = tf.stack([test_images[list(digits.y_test).index(digit)] for digit in shown])

with tf.GradientTape() as tape:
    tape.watch(examples)
    own_scores = tf.gather(scores(examples, variables), shown, batch_dims=1)  # of each image, its own digit's score

by_pixel = tape.gradient(own_scores, examples)
print("shape of the gradient:", by_pixel.shape)

# %% alt="Images and heat maps. Four handwritten digits, 0, 3, 4 and 7, and under each an eight by eight map in red and blue: red pixels where a little ink raises the score of that digit, blue where it lowers it." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the input gradients
_, axes = plt.subplots(2, len(shown), figsize=(8, 4.4), layout="constrained")
limit = np.abs(by_pixel).max()
for column, digit in enumerate(shown):
    axes[0, column].imshow(tf.reshape(examples[column], (8, 8)), cmap="Greys")
    axes[0, column].set(title=f"a {digit}", xticks=[], yticks=[])
    picture = axes[1, column].imshow(
        tf.reshape(by_pixel[column], (8, 8)), cmap=plots.DIVERGING, vmin=-limit, vmax=limit
    )
    axes[1, column].set(xlabel=f"d score of {digit} / d pixel", xticks=[], yticks=[])
plt.colorbar(picture, ax=axes[1, :], label="score per unit of ink")
axes[0, 0].figure.suptitle("Red: a little ink raises the digit's score. Blue: it lowers it")
plt.show()

# %% [markdown]
# Look at the 0: in the middle of its hole, a little ink lowers the score. [17](17_gradient_of_the_input.ipynb) makes *saliency maps* of such gradients.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert by_pixel.shape == (len(shown), 64)
for row in range(len(shown)):  # each row against central differences at its strongest pixel
    pixel = int(np.argmax(np.abs(by_pixel[row])))
    nudge = 0.01 * tf.one_hot(pixel, 64)[None]
    image = examples[row : row + 1]
    change = scores(image + nudge, variables) - scores(image - nudge, variables)
    np.testing.assert_allclose(change[0, shown[row]] / 0.02, by_pixel[row, pixel], rtol=0.01)
hole = tf.reshape(by_pixel[0], (8, 8))[3:5, 3:5]
assert tf.reduce_mean(hole) < 0

# %% [markdown]
# ## 10. Check it independently
#
# Ask NumPy for the derivatives by **central differences**: nudge each entry of a network's first kernel up
# and down, in float64, and divide the change of the loss by the distance between the two.

# %% tags=["nbval-ignore-output"]
shapes = (batch, inputs), (batch, outputs), (inputs, hidden), (hidden, outputs)
examples, wanted, *kernels = (tf.random.normal(shape, dtype=tf.float64) for shape in shapes)
w1, w2 = map(tf.Variable, kernels)

with tf.GradientTape() as tape:
    loss = tf.reduce_mean((tf.tanh(examples @ w1) @ w2 - wanted) ** 2)
from_tape = tape.gradient(loss, w1)


def numpy_loss(w1):
    return np.mean((np.tanh(examples.numpy() @ w1) @ w2.numpy() - wanted.numpy()) ** 2)


from_differences = gradcheck.numerical_jacobian(numpy_loss, w1.numpy())
print("entries of the kernel:  ", from_differences.size)
print("evaluations of the loss:", 2 * from_differences.size)
print(f"largest difference:      {np.abs(from_tape - from_differences).max():.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert from_tape.shape == from_differences.shape == (inputs, hidden)
np.testing.assert_allclose(from_tape, from_differences, rtol=1e-6, atol=1e-8)

# %% [markdown]
# ## Recap
#
# - The tape is a list. Read upwards, multiply along each path and add where paths meet: that is the backward pass (section 1).
# - A tape of your own trained a straight line; a dense layer's rule turned the upstream gradient into a vector–Jacobian product in the source's shape (sections 2 and 3).
# - `assign_sub` took the step; a small step $s$ lowered the loss by about $s\,\lVert g \rVert^2$, a long one raised it (section 4).
# - The gradient of a non-scalar floating-point target is that of its sum (section 5).
# - The record answered one call, unless its tape was persistent; `watch` acted from its line on; of Python's `if` and `while` the tape kept the operations that ran (sections 6, 7 and 8).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a loss for each example, not reduced | the gradient of their sum, no error | `tf.reduce_mean` before the tape closes |
# | a gradient `g` that is `tf.IndexedSlices`, as that of `tf.gather(v, [0, 0])` was | `TypeError` at `0.1 * g` | `tf.convert_to_tensor(g)` |
# | a second `gradient` on a tape that is not persistent | `RuntimeError` | one call with several sources; for several targets `persistent=True`; after a step, a new tape |
# | a `tf.constant` of floats, used without `watch` or before it | `None`, or a gradient without those terms | `tape.watch`, at the top of the block |
#
# **Further reading**
#
# - TensorFlow Core guide, ["Introduction to gradients and automatic differentiation"](https://www.tensorflow.org/guide/autodiff).
# - D. E. Rumelhart, G. E. Hinton, R. J. Williams (1986), ["Learning representations by back-propagating errors"](https://doi.org/10.1038/323533a0).
# - A. G. Baydin, B. A. Pearlmutter, A. A. Radul, J. M. Siskind (2018), ["Automatic differentiation in machine learning: a survey"](https://arxiv.org/abs/1502.05767).
# - A. Griewank, A. Walther (2008), ["Evaluating Derivatives: Principles and Techniques of Algorithmic Differentiation"](https://doi.org/10.1137/1.9780898717761).
# - K. Simonyan, A. Vedaldi, A. Zisserman (2014), ["Deep inside convolutional networks: visualising image classification models and saliency maps"](https://arxiv.org/abs/1312.6034).
#
# **Read next:** [02 Training with a tape](02_training_with_a_tape.ipynb) trains a classifier on handwritten digits with these tools;
# [03 When the gradient is None](03_when_the_gradient_is_none.ipynb) collects ways to lose a gradient.
