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
# # Forward mode
#
# A tape's gradient runs backwards, from an output to the inputs. Derivatives can also run forwards, beside the values, from an input to the outputs.
# **When is forward the better way to go?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/12_forward_mode.ipynb)
#
# **Prerequisites:** [11 Jacobians](11_jacobians.ipynb) · **Minutes:** 18 to read, 9 more to go further, 51 for the exercises; to work through it all, about 2 h 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
points = 201  # of the curve: between 101 and 401
batch = 7  # examples: between 4 and 12
inputs = 5  # features of an example: between 3 and 8
hidden = 8  # units of the first layer: between 4 and 16
outputs = 6  # units of the second layer: between 4 and 9

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import math

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import forward_mode as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
s = tf.linspace(0.0, 20.0, points)


def curve(t):
    """One number in, one value for each point s."""
    return tf.sin(t * s) / (1.0 + 0.1 * s**2)


t = tf.constant(1.0)
with tf.autodiff.ForwardAccumulator(primals=t, tangents=tf.constant(1.0)) as accumulator:
    y = curve(t)

dy_dt = accumulator.jvp(y)
print("inputs: 1, outputs:", len(y))
print("derivatives:       ", len(dy_dt))

# %% alt="Line plot. A wave that fades to the right, and dashed its derivative with respect to its frequency: it starts at zero, dips deep where the curve first falls, and then waves on, far higher than the curve itself." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the curve and its derivative
ax = plots.curve_with_derivative(
    s,
    y,
    dy_dt,
    title="One forward pass: 201 points, 201 derivatives" if points == 201 else "One forward pass",
    label="y(t, s) at t = 1",
    derivative_label="dy/dt",
)
ax.set(xlabel="point s", ylabel="y and dy/dt")
plt.show()

# %% [markdown]
# The frequency $t$ is one number, and it moves a whole curve. One run gave the curve and how *each* of its 201 points responds to $t$. One backward
# pass of a tape would give a weighted sum of these 201 derivatives.
#
# **You will be able to**
#
# - build forward mode out of dual numbers (section 1),
# - compute a Jacobian–vector product with `tf.autodiff.ForwardAccumulator` (sections 2 and 3),
# - build a Jacobian by columns, and say which mode takes fewer passes (section 4),
# - combine both modes into a Hessian–vector product (section 5),
# - say what forward mode makes of a custom gradient (section 6).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(dy_dt, s * tf.cos(t * s) / (1.0 + 0.1 * s**2), rtol=1e-4, atol=1e-5)
with tf.GradientTape() as tape:
    tape.watch(t)
    y_again = curve(t)
np.testing.assert_allclose(tape.gradient(y_again, t), tf.reduce_sum(dy_dt), rtol=1e-4, atol=1e-3)
assert dy_dt[0] == 0.0
assert abs(np.max(dy_dt)) > abs(np.max(y))

# %% [markdown]
# ## 1. A number with a slope
#
# Let $x$ move a little. Call the small amount $\varepsilon$, and write the moving number as $x + \dot x\,\varepsilon$: a **value** $x$, and a
# **tangent** $\dot x$ that says how fast it moves. Such a pair is a **dual number**. One rule makes it work: a small amount squared is too small to
# count, $\varepsilon^2 = 0$.
#
# $$(u + \dot u\,\varepsilon)(v + \dot v\,\varepsilon) = uv + (\dot u v + u \dot v)\,\varepsilon + \dot u \dot v\,\underbrace{\varepsilon^2}_{0}$$
#
# The value is the product; the tangent is the product rule. A smooth function multiplies the tangent by its slope,
# $f(x + \dot x\,\varepsilon) = f(x) + f'(x)\,\dot x\,\varepsilon$.

# %% alt="Diagram. Left, a rectangle of sides u and v, with a strip along its right side and a strip along its top; the small square where the strips meet is hatched and marked as left out. Right, the sine curve with a short horizontal arrow at a point on the x axis, and the vertical arrow that the slope makes of it on the y axis." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what a dual number is
_, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
u, v, du, dv = 3.0, 2.0, 0.5, 0.4
for corner, w, h, colour, hatch in (
    ((0, 0), u, v, "#dddddd", None),
    ((u, 0), du, v, "#9fcbe8", None),
    ((0, v), u, dv, "#f6d58a", None),
    ((u, v), du, dv, "white", "xxx"),
):
    left.add_patch(plt.Rectangle(corner, w, h, facecolor=colour, edgecolor="black", hatch=hatch))
for x_at, y_at, text in ((1.5, 1.0, "uv"), (3.25, 1.0, "u̇v ε"), (1.5, 2.2, "uv̇ ε")):
    left.text(x_at, y_at, text, ha="center", va="center", fontsize=12)
left.annotate("u̇v̇ ε²: left out", (3.25, 2.42), (2.2, 2.75), arrowprops={"arrowstyle": "->"})
left.set(title="A product grows by two strips", xlim=(-0.1, 4.0), ylim=(-0.1, 3.0), aspect="equal")
left.set(xlabel="u, and its growth u̇ ε", ylabel="v, and its growth v̇ ε")

at, reach = 0.6, 0.5
axis = np.linspace(-0.1, 1.6, 100)
right.plot(axis, np.sin(axis), color=plots.GREY)
right.plot(at, np.sin(at), "o", color="black")
slope = np.cos(at)
right.plot([at, at + reach], np.sin(at) + slope * np.array([0, reach]), "k--", linewidth=1)
for x_at in (at, at + reach):
    height = np.sin(at) + slope * (x_at - at)
    right.plot([x_at, x_at, 0], [0, height, height], ":", color=plots.GREY, linewidth=1)
arrow = {"arrowstyle": "-|>", "lw": 3, "shrinkA": 0, "shrinkB": 0}
right.annotate("", (at + reach, 0), (at, 0), arrowprops=arrow | {"color": plots.BLUE})
top = np.sin(at) + slope * reach
right.annotate("", (0, top), (0, np.sin(at)), arrowprops=arrow | {"color": plots.RED})
right.text(at, -0.12, "x", ha="center", fontsize=12)
right.text(at + reach / 2, -0.12, "ẋ ε", color=plots.BLUE, ha="center", fontsize=12)
right.text(0.04, np.sin(at) - 0.09, "f(x)", fontsize=12)
right.text(0.04, (np.sin(at) + top) / 2, "f′(x) ẋ ε", color=plots.RED, va="center", fontsize=12)
right.set(title="A slope turns one arrow into another", xlabel="x", ylabel="f(x) = sin x", ylim=(-0.2, 1.15))
plt.show()

# %% [markdown]
# A dual number is a point with an arrow. Carried through a program, it makes **forward-mode automatic differentiation**. In code:


# %%
class Dual:
    """A value and how fast it moves: value + tangent · ε, where ε² = 0."""

    def __init__(self, value, tangent=0.0):
        self.value, self.tangent = value, tangent

    def __add__(self, other):
        other = as_dual(other)
        return Dual(self.value + other.value, self.tangent + other.tangent)

    def __mul__(self, other):
        other = as_dual(other)
        tangent = self.tangent * other.value + self.value * other.tangent
        return Dual(self.value * other.value, tangent)

    __radd__, __rmul__ = __add__, __mul__  # for 5.0 * x, where the number is second


def as_dual(value):
    return value if isinstance(value, Dual) else Dual(value)  # a constant: tangent 0


def sin(x):
    return Dual(np.sin(x.value), np.cos(x.value) * x.tangent)


# %% [markdown]
# Give $x$ the tangent 1 and run $x^2 + 5x$ at 2. The derivative arrives with the value.

# %%
x = Dual(2.0, 1.0)
a = x * x
b = 5.0 * x
y = a + b
for name, number in (("x", x), ("a = x * x", a), ("b = 5 * x", b), ("y = a + b", y)):
    print(f"{name:10} value {number.value:4.0f}   tangent {number.tangent:3.0f}")

# %% [markdown]
# The tape of [01](01_gradient_tape_basics.ipynb) records the same three operations, and is read *upwards*, after the run. Here you read *downwards*,
# during the run. The tangent of `a` is $1 \cdot 2 + 2 \cdot 1 = 4$, the tangent of `b` is 5, and `y` adds them: 9.
#
# With two inputs, of tangents 1 and 0, such a run would answer for the first.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert [a.value, a.tangent, b.tangent, y.value, y.tangent] == [4.0, 4.0, 5.0, 14.0, 9.0]
for function, library in (
    (lambda x: x * x + 5.0 * x, lambda x: x * x + 5.0 * x),
    (lambda x: sin(x * x) * x, lambda x: tf.sin(x * x) * x),
    (lambda x: sin(sin(x) + 0.3) + x * x * x, lambda x: tf.sin(tf.sin(x) + 0.3) + x**3),
):
    by_hand = function(Dual(1.3, 1.0))
    source = tf.Variable(1.3, dtype=tf.float64)
    with tf.GradientTape() as tape:
        target = library(source)
    np.testing.assert_allclose([by_hand.value, by_hand.tangent], [target, tape.gradient(target, source)], rtol=1e-6)
two = Dual(3.0, 1.0) * Dual(2.0, 0.0)  # the second input has no tangent: the answer is for the first alone
assert two.tangent == 2.0
both = Dual(3.0, np.array([1.0, 0.0])) * Dual(2.0, np.array([0.0, 1.0]))  # two tangents beside each other
assert both.tangent.tolist() == [2.0, 3.0]
small = 1e-4  # the corner of the rectangle is left out: it is of second order
corner = (u + du * small) * (v + dv * small) - u * v - (du * v + u * dv) * small
np.testing.assert_allclose(corner, du * dv * small**2, rtol=1e-5)

# %% [markdown]
# ## 2. One direction, one pass
#
# TensorFlow does this with tensors. `ForwardAccumulator(primals, tangents)` is a context. The **primals** are the inputs that move, each with a tangent
# of its own shape. `.jvp(y)` reads off a result's tangent: below, the **Jacobian–vector product** $Jv$ of [11](11_jacobians.ipynb), with the shape of the
# *output*.
#
# **Predict.** Take $f(x) = (x_1 x_2,\; x_1 + x_2)$ at $x = (2, 3)$, and let only $x_1$ move: $v = (1, 0)$. What is $J v$?

# %%
exercises.one_moves.guess([..., ...])  # the two entries of J v, numbers in place of the dots


# %%
def f(x):
    return tf.stack([x[0] * x[1], x[0] + x[1]])


x = tf.constant([2.0, 3.0])
v = tf.constant([1.0, 0.0])

with tf.autodiff.ForwardAccumulator(primals=x, tangents=v) as accumulator:
    y = f(x)

Jv = accumulator.jvp(y)
print("f(x) =", y.numpy())
print("J v  =", Jv.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.one_moves.reveal(Jv.numpy())
assert y.numpy().tolist() == [6.0, 5.0]
assert Jv.numpy().tolist() == [3.0, 1.0]

# %% [markdown]
# $J = \begin{pmatrix} 3 & 2 \\ 1 & 1 \end{pmatrix}$, and $v = (1, 0)$ picks its first *column*: how both outputs change with $x_1$.
# A tape's $J^\top u$, with $u = (1, 0)$, is a *row*.
#
# Along $(1, -2)$ the columns combine, $1 \cdot (3, 1) - 2 \cdot (2, 1)$, still in one pass:

# %%
with tf.autodiff.ForwardAccumulator(x, tf.constant([1.0, -2.0])) as accumulator:
    y = f(x)

mixed = accumulator.jvp(y)
print("J v =", mixed.numpy())

# %% [markdown]
# **Predict.** `f(x)` is computed once more, after the context has closed. What does `.jvp` return for it?

# %%
exercises.outside.guess(...)  # two numbers in a list, or None

# %%
late = accumulator.jvp(f(x))
print("jvp of a later result:", late)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.outside.reveal(late)
assert mixed.numpy().tolist() == [-1.0, -1.0]
assert late is None

# %% [markdown]
# The tangent of `y` was computed beside its value, while the context was open. For the later result the accumulator has no tangent, and no record to
# compute one from.

# %% [markdown]
# ## 3. Through the variables of a model
#
# Let a model's weights move. Hand the kernel of a Keras layer to the accumulator:

# %% tags=["nbval-ignore-output"]
layer = tf.keras.layers.Dense(outputs, activation="tanh")
data = tf.random.normal((batch, inputs))
layer(data)  # builds the layer: now it has variables
direction = tf.random.normal((inputs, outputs))

try:
    with tf.autodiff.ForwardAccumulator(layer.kernel, direction):
        message = "no error"
except Exception as error:  # which one depends on the version
    message = f"{type(error).__name__}: {error}"
print(message)

# %% [markdown]
# `layer.kernel` is a Keras 3 variable, which *wraps* a TensorFlow variable. `tape.gradient` unwraps it; the
# accumulator does not. Pass `.value`, the variable inside.
#
# **Predict.** The kernel and the direction have shape (5, 6). There are 7 examples. What is the shape of the outputs' tangent?

# %%
exercises.tangent_shape.guess(...)  # a tuple of integers in place of the dots

# %%
with tf.autodiff.ForwardAccumulator(layer.kernel.value, direction) as accumulator:
    y = layer(data)

moved = accumulator.jvp(y)
print("outputs:", y.shape)
print("tangent:", moved.shape)

# %% [markdown]
# The tangent of the outputs has their shape, not the kernel's. With $y = \tanh(x W + b)$,
#
# $$\dot y = (1 - y^2) \odot (x \dot W),$$
#
# where $\odot$ multiplies element by element.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.tangent_shape.reveal(moved.shape)
assert message != "no error"
assert moved.shape == y.shape == (batch, outputs)
np.testing.assert_allclose(moved, (1.0 - y**2) * (data @ direction), rtol=1e-4, atol=1e-5)

# %% [markdown]
# ### Exercise: How the outputs respond to one weight (6 min)
#
# `layer` is a built Keras layer with a kernel of shape (ins, outs), and `data` has shape (batch, ins). Return the derivative of all its outputs with
# respect to the kernel's entry `[row, column]`: shape (batch, outs), in the kernel's dtype, in one forward pass.


# %%
def answer_to_weight(layer, data, row, column):
    direction = ...
    with tf.autodiff.ForwardAccumulator(...) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


exercises.one_weight.check(answer_to_weight)

# %% [markdown]
# ## 4. Jacobians by columns
#
# Along a unit direction a forward pass gives one column of the Jacobian. The next function has 3 inputs and 7 × 6 outputs. In the result of `tape.jacobian` the outputs' axes come first, so the columns are stacked on the *last*:

# %%
mixing = tf.random.normal((3, batch * outputs))


def tall(x):
    return tf.reshape(tf.tanh(x[tf.newaxis] @ mixing), (batch, outputs))


x = tf.random.normal((3,))
columns = []
for unit in tf.unstack(tf.eye(3)):
    with tf.autodiff.ForwardAccumulator(x, unit) as accumulator:
        y = tall(x)
    columns.append(accumulator.jvp(y))

by_columns = tf.stack(columns, axis=-1)
print("one column:  ", columns[0].shape)
print("the Jacobian:", by_columns.shape, "in", len(columns), "passes")

# %% alt="Two heat maps. Two copies of a tall matrix with 42 rows and 3 columns, red and blue. On the left one of its columns is framed, on the right one of its rows." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: columns and rows
_, axes = plt.subplots(1, 2, figsize=(8, 5), layout="constrained")
flat = tf.reshape(by_columns, (batch * outputs, 3))
for ax, frame, title in (
    (axes[0], ((0.5, -0.5), 1, batch * outputs), "Forward: 3 columns, 3 passes"),
    (axes[1], ((-0.5, 19.5), 3, 1), f"Reverse: {batch * outputs} rows, {batch * outputs} passes"),
):
    plots.matrix(flat, title=title, xlabel="input", ylabel="output, flattened", ax=ax, colorbar=False)
    ax.add_patch(plt.Rectangle(*frame, fill=False, edgecolor="black", linewidth=3, clip_on=False))
    ax.set_aspect("auto")
    ax.set_xticks(range(3))
plt.show()

# %% [markdown]
# When is forward the better way? It takes one pass for each input, or direction; reverse takes one for each output, or weighting. Count which
# are fewer. Passes are not time: `tape.jacobian` runs its passes at once.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with tf.GradientTape(persistent=True) as tape:
    tape.watch(x)
    y = tall(x)
by_rows = tape.jacobian(y, x)
check_weights = tf.unstack(tf.reshape(tf.eye(batch * outputs), (-1, batch, outputs)))  # one backward pass for each
check_rows = [tape.gradient(y, x, output_gradients=weights) for weights in check_weights]
np.testing.assert_allclose(tf.reshape(check_rows, by_columns.shape), by_columns, rtol=1e-4, atol=1e-5)
assert len(columns) == 3
assert by_columns.shape == by_rows.shape == (batch, outputs, 3)
np.testing.assert_allclose(by_columns, by_rows, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ### Exercise: Which mode, and how many passes? (5 min)
#
# For each of these, say which mode takes fewer passes, and how many. An inner product afterwards is not a pass.
#
# | | Function | What is wanted |
# |---|---|---|
# | A | 4 numbers that place a camera → an image of 64 × 64 pixels | the Jacobian |
# | B | 784 pixels → 10 scores | the Jacobian |
# | C | 784 pixels → 10 scores | how all scores change along one given direction of the pixels |
# | D | 784 pixels → 10 scores | how one given weighted sum of the scores changes with every pixel |
# | E | 1000 weights → a loss | the loss's slope along each of 7 given directions of the weights |

# %%
answers = {  # for each: "forward" or "reverse", and the number of passes
    "A": (..., ...),
    "B": (..., ...),
    "C": (..., ...),
    "D": (..., ...),
    "E": (..., ...),
}

exercises.which_mode.check(answers)

# %% [markdown]
# ## 5. Forward over reverse
#
# The gradient $g(w)$ of a loss is itself a function. Its Jacobian is the **Hessian**, $H_{ij} = \partial^2 L / \partial w_i \partial w_j$. So the
# gradient's JVP is a **Hessian–vector product**: $H v$ is how the gradient changes when the weights move along $v$. [14](14_without_the_matrix.ipynb) is
# about such products.
#
# To compute one, push a tangent forwards through a gradient that a tape computes backwards: **forward over reverse**, or *Pearlmutter's trick*.
#
# **Predict.** $L(w) = w_1^2 w_2$ at $w = (3, 5)$, with $v = (1, 0)$. What is $H v$?

# %%
exercises.product.guess([..., ...])  # the two entries of H v, numbers in place of the dots

# %%
w = tf.constant([3.0, 5.0])
v = tf.constant([1.0, 0.0])

with tf.autodiff.ForwardAccumulator(w, v) as accumulator:
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = w[0] ** 2 * w[1]
    gradient = tape.gradient(loss, w)

Hv = accumulator.jvp(gradient)
print("gradient =", gradient.numpy())
print("H v      =", Hv.numpy())

# %% [markdown]
# The gradient is $(2 w_1 w_2,\ w_1^2)$. When $w_1$ moves, it changes by $(2 w_2,\ 2 w_1) = (10, 6)$, the Hessian's first column. `tape.gradient` is
# called *inside* the context: the gradient's own operations need tangents too.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.product.reveal(Hv.numpy())
assert gradient.numpy().tolist() == [30.0, 9.0]
assert Hv.numpy().tolist() == [10.0, 6.0]
with tf.autodiff.ForwardAccumulator(w, v) as closed, tf.GradientTape() as tape:
    tape.watch(w)
    loss = w[0] ** 2 * w[1]
assert closed.jvp(tape.gradient(loss, w)) is None  # the gradient came after the context

# %% [markdown]
# This model has four variables. Primals and tangents are lists, and there is still one forward pass over one backward pass:

# %%
model = tf.keras.Sequential(
    [
        tf.keras.Input((inputs,)),
        tf.keras.layers.Dense(hidden, activation="tanh"),
        tf.keras.layers.Dense(outputs),
    ]
)
targets = tf.random.normal((batch, outputs))
variables = [variable.value for variable in model.trainable_variables]
tangents = [tf.random.normal(variable.shape) for variable in variables]

with tf.autodiff.ForwardAccumulator(variables, tangents) as accumulator:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(data) - targets) ** 2)
    gradients = tape.gradient(loss, variables)

products = accumulator.jvp(gradients)
for variable, product in zip(variables, products, strict=True):
    print(f"variable {variable.shape!s:8} its part of H v {product.shape}")

# %% [markdown]
# Two nested tapes give the same product. Keras' `LayerNormalization`, which made a second
# derivative wrong in [10](10_higher_order_gradients.ipynb), section 5, can make both wrong; `derivatives.hvp` (section 12) is right.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        loss = tf.reduce_mean((model(data) - targets) ** 2)
    gradients = inner.gradient(loss, variables)
by_two_tapes = outer.gradient(gradients, variables, output_gradients=tangents)
for variable, one, other in zip(variables, products, by_two_tapes, strict=True):
    assert one.shape == variable.shape
    assert np.max(np.abs(other)) > 1e-3  # the tolerance is small beside the entries
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

check_random = np.random.default_rng(seed)
check_rows, check_w, check_v = (tf.constant(check_random.normal(size=shape)) for shape in ((batch, 5), (5, 4), (5, 4)))
check_weights = tf.constant(check_random.normal(size=(batch, 4)))
for check_kind in ("LayerNormalization", "GroupNormalization", "BatchNormalization"):
    check_arguments = {"groups": 1} if check_kind == "GroupNormalization" else {}
    check_layer = getattr(tf.keras.layers, check_kind)(dtype="float64", **check_arguments)

    def check_gradient(w, check_layer=check_layer):
        with tf.GradientTape() as tape:
            tape.watch(w)
            loss = tf.reduce_sum(check_weights * tf.sin(check_layer(check_rows @ w, training=True)))
        return tape.gradient(loss, w), loss

    with tf.GradientTape() as outer, tf.autodiff.ForwardAccumulator(check_w, check_v) as accumulator:
        outer.watch(check_w)
        check_slope, _ = check_gradient(check_w)
    check_right = (check_gradient(check_w + 1e-5 * check_v)[0] - check_gradient(check_w - 1e-5 * check_v)[0]) / 2e-5
    for check_wrong in (accumulator.jvp(check_slope), outer.gradient(check_slope, check_w, output_gradients=check_v)):
        assert tf.norm(check_wrong - check_right) > 1e-4 * tf.norm(check_right)
    check_product = derivatives.hvp(lambda w: check_gradient(w)[1])(check_w, vector=check_v)
    assert tf.norm(check_product - check_right) < 1e-6 * tf.norm(check_right)

# %% [markdown]
# The modes also go together without a second derivative: push $v$ forwards through a function, and pull the result back.
#
# ### Exercise: There and back (8 min)
#
# `f` takes a vector to a vector of another length, and $J$ is its Jacobian at `x`. Return $J^\top (J v)$, as long as `x`, without building $J$: two passes.


# %%
def there_and_back(f, x, v):
    ...
    return ...  # J transposed times J times v: a vector as long as x


exercises.round_trip.check(there_and_back)

# %% [markdown]
# ## 6. A derivative that you wrote yourself
#
# [07](07_custom_gradients.ipynb) gave functions a backward rule of their own. Here are two: $\log(1 + e^x)$, whose rule stays finite,
# and a clip that lets the gradient pass. At 100 and at 1.5 the operations inside give NaN and 0, and the rules give a tape the number 1.
#
# **Predict.** What does an accumulator return for the clip at 1.5, which is beyond the limit of 1?

# %%
exercises.clip_tangent.guess(...)  # a number, float("nan") or None


# %%
@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)
    return tf.math.log(1.0 + e), lambda upstream: upstream * (1.0 - 1.0 / (1.0 + e))


@tf.custom_gradient
def clip(x):
    return tf.clip_by_value(x, -1.0, 1.0), lambda upstream: upstream


one = tf.constant(1.0)
by_tape, by_accumulator = {}, {}
for function, at in ((log1pexp, 100.0), (clip, 1.5)):
    at = tf.constant(at)
    with tf.GradientTape() as tape, tf.autodiff.ForwardAccumulator(at, one) as accumulator:
        tape.watch(at)
        y = function(at)
    name = function.__name__
    by_tape[name], by_accumulator[name] = tape.gradient(y, at).numpy(), accumulator.jvp(y).numpy()
    print(f"{name:9} tape {by_tape[name]}, accumulator {by_accumulator[name]}")

# %% [markdown]
# The tape asked your rule. The accumulator, here, followed the operations *inside* the decorated function, and returned the very derivative that you
# had replaced, without a warning.
#
# **The cure** here is to take the product from two tapes, which ask the rule. `tapelab.derivatives.jvp` does so:

# %%
for function, at in ((log1pexp, 100.0), (clip, 1.5)):
    _, tangent = derivatives.jvp(function)(tf.constant(at), tangents=one)
    print(f"{function.__name__:9} jvp {tangent.numpy()}")

# %% [markdown]
# Section 10 builds it. Both rules are *linear* in the upstream gradient, as this needs. A rule that clips it is not: `jvp` refuses it, and
# two tapes return a meaningless number.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.clip_tangent.reveal(by_accumulator["clip"])
assert by_tape == {"log1pexp": 1.0, "clip": 1.0}
assert np.isnan(by_accumulator["log1pexp"])
assert by_accumulator["clip"] == 0.0


def check_two_tapes(check_f, check_x, check_u=None):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(check_x)
            check_y = check_f(check_x)
        u = tf.ones_like(check_y) if check_u is None else check_u
        outer.watch(u)
        back = tf.convert_to_tensor(inner.gradient(check_y, check_x, output_gradients=u))
    return outer.gradient(back, u, output_gradients=tf.ones_like(check_x))


for check_f, check_at in ((log1pexp, 100.0), (clip, 1.5)):
    assert derivatives.jvp(check_f)(tf.constant(check_at), tangents=one)[1] == 1.0
    assert check_two_tapes(check_f, tf.constant(check_at)) == 1.0  # the cure, by hand


@tf.custom_gradient
def check_clipping(x):
    return x**2, lambda upstream: tf.clip_by_value(2.0 * x * upstream, -1.0, 1.0)


check_called = tf.function(lambda slope: tf.clip_by_value(slope, -1.0, 1.0))
check_hidden = tf.custom_gradient(lambda x: (x**2, lambda upstream: check_called(2.0 * x * upstream)))
check_by_norm = tf.custom_gradient(lambda x: (x**2, lambda upstream: tf.clip_by_norm(2.0 * x * upstream, 1.0)))
for check_f in (check_clipping, check_hidden, check_by_norm):
    with np.testing.assert_raises_regex(ValueError, "not linear in its cotangents"):
        derivatives.jvp(check_f)(one, tangents=one)
assert check_two_tapes(check_clipping, one, tf.constant(0.1)) == 2.0  # it depends on u
assert check_two_tapes(check_clipping, one, tf.constant(1.0)) == 0.0

# %% [markdown]
# ## 7. Going further: where there is no slope
#
# ReLU has a kink at 0: slope 0 on the left, 1 on the right. TensorFlow's rule gives 0 there. Now
# $x = \operatorname{relu}(x) - \operatorname{relu}(-x)$, and also $x = \min(x, 0) + \max(x, 0)$.
#
# **Predict.** Both are the function $x$. What does a tape return for their derivatives at 0?

# %%
exercises.kinks.guess([..., ...])  # two numbers in place of the dots


# %%
def by_relus(x):
    return tf.nn.relu(x) - tf.nn.relu(-x)


def by_min_and_max(x):
    return tf.minimum(x, 0.0) + tf.maximum(x, 0.0)


zero, slopes = tf.constant(0.0), {}
for function in (by_relus, by_min_and_max):
    with tf.GradientTape() as tape, tf.autodiff.ForwardAccumulator(zero, one) as accumulator:
        tape.watch(zero)
        y = function(zero)
    difference = (function(tf.constant(0.1)) - function(tf.constant(-0.1))) / 0.2
    slopes[function.__name__] = [float(each) for each in (tape.gradient(y, zero), accumulator.jvp(y), difference)]
    print(
        "{:15} tape {}, accumulator {}, difference quotient {:.1f}".format(
            function.__name__, *slopes[function.__name__]
        )
    )

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.kinks.reveal([slopes["by_relus"][0], slopes["by_min_and_max"][0]])
np.testing.assert_allclose(slopes["by_relus"], [0.0, 0.0, 1.0], atol=1e-6)
np.testing.assert_allclose(slopes["by_min_and_max"], [2.0, 2.0, 1.0], atol=1e-6)
near = tf.constant([-2.0, -1e-30, 1e-30, 3.0])
for function in (by_relus, by_min_and_max):
    with tf.GradientTape() as check_tape:
        check_tape.watch(near)
        check_y = function(near)
    np.testing.assert_array_equal(check_y, near)
    np.testing.assert_array_equal(check_tape.gradient(check_y, near), np.ones(4))  # away from the kink

# %% [markdown]
# The derivative is 1. The tape says 0 and 2: fed with the slopes chosen at the kinks, the chain rule returned something else. The accumulator agrees
# with the tape, the values with neither. Bolte and Pauwels call such a rule of slopes **conservative**: off a set of measure zero, here off 0, it gives the
# gradient.

# %% [markdown]
# ## 8. Going further: a band in three passes
#
# Known zeros can save passes. In this discretised differential equation each output depends on its own input and those beside it:


# %%
def neighbours(x):
    """Diffusion along a line, with a source term."""
    padded = tf.pad(x, [[1, 1]])
    return padded[:-2] - 2.0 * x + padded[2:] + tf.sin(x)


line = tf.random.normal((12,))
with tf.GradientTape() as tape:
    tape.watch(line)
    rate = neighbours(line)

banded = tape.jacobian(rate, line)
print("entries:", int(tf.size(banded)), " not zero:", int(tf.math.count_nonzero(banded)))

# %% alt="Heat map. A matrix of 12 by 12 squares, white except for three diagonals that lie beside each other: the middle one blue, the two beside it red." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: a banded Jacobian
ax = plots.matrix(banded, title="Three diagonals, and zeros", xlabel="input", ylabel="output")
ax.set_aspect("equal")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
index = np.arange(12)
assert np.all((banded.numpy() != 0) == (np.abs(index[:, None] - index) <= 1))
assert np.count_nonzero(banded) == 34
np.testing.assert_allclose(np.diag(banded), np.cos(line) - 2.0, rtol=1e-5)

# %% [markdown]
# By rows or by columns, this takes 12 passes.
#
# ### Exercise: A band in three passes (20 min)
#
# *This one needs an idea that the text does not spell out.*
#
# `x` has shape $(n,)$ with $n \ge 5$, and $y_i$ of `f` depends on $x_{i-1}$, $x_i$ and $x_{i+1}$ alone. Return the whole Jacobian of shape $(n, n)$,
# zeros included, of the dtype of `x`, in at most **three** forward or backward passes, whatever $n$ is. A call of `tape.jacobian` counts as $n$.


# %%
def banded_jacobian(f, x):
    return ...  # shape (n, n)


exercises.band.check(banded_jacobian)

# %% [markdown]
# ## 9. Going further: Taylor coefficients
#
# A dual number drops $\varepsilon^2$. Keep it, and more powers, and the same run yields higher derivatives: a **truncated Taylor series** with coefficients
# $c_k = f^{(k)}(x) / k!$. To multiply two of them, multiply the polynomials and drop the high powers. For $r = 1/c$, solve $c\,r = 1$ one power at a time:
#
# $$r_0 = 1/c_0, \qquad r_k = -r_0 \sum_{j=1}^{k} c_j\, r_{k-j}$$


# %%
def multiply(a, b):
    return np.convolve(a, b)[: len(a)]


def reciprocal(c):
    r = np.zeros_like(c)
    r[0] = 1.0 / c[0]
    for k in range(1, len(c)):
        r[k] = -r[0] * np.dot(c[1 : k + 1], r[k - 1 :: -1])
    return r


order = 60
x = np.zeros(order + 1)
x[:2] = 0.5, 1.0  # the value 0.5, the tangent 1
one = np.eye(order + 1)[0]
taylor = reciprocal(one + multiply(x, x))  # of 1 / (1 + x²) at 0.5
print("c0 to c3:", taylor[:4].round(4))

# %% [markdown]
# This is *Taylor-mode* automatic differentiation. The function is smooth on the whole real line. Draw its Taylor polynomials around 0.5.
#
# **Predict.** How far from 0.5 do the polynomials follow the function, as the order grows?

# %%
exercises.radius.guess(...)  # a distance, a number in place of the dots

# %% alt="Line plot. The bell-shaped function and three of its Taylor polynomials around 0.5. Between two dotted lines near -0.62 and 1.62 the polynomials come closer to the function as the order grows; outside, each shoots up or down, the higher its order the more steeply."
k = np.arange(order // 2, order + 1)
radius = 1.0 / np.max(np.abs(taylor[k]) ** (1.0 / (k + 1)))  # the root test; k + 1 for k nears its limit sooner
print(f"radius of convergence: {radius:.2f}")

at = np.linspace(-1.5, 2.5, 400)
plt.plot(at, 1 / (1 + at**2), color="black", linewidth=3, label="1 / (1 + x²)")
for degree, style, colour in ((4, "-.", plots.ORANGE), (12, "--", plots.BLUE), (60, "-", plots.RED)):
    plt.plot(at, np.polyval(taylor[degree::-1], at - 0.5), style, color=colour, label=f"order {degree}")
for edge in (0.5 - radius, 0.5 + radius):
    plt.axvline(edge, linestyle=":", color=plots.GREY)
plt.ylim(-0.5, 2.0)
plt.xlabel("x")
plt.ylabel("value")
plt.plot(0.5, 0.8, "o", color="black")
plt.annotate("centre", (0.5, 0.8), (0.62, 0.88))
plt.title(f"The polynomials converge only within {radius:.2f} of the centre")
plt.legend()
plt.show()

# %% [markdown]
# No further than 1.12: this is the **radius of convergence**. The obstacle is not on the real line. At $x = \pm i$ the function is infinite, and the
# distance from 0.5 to $i$ in the complex plane is $\sqrt{0.25 + 1} \approx 1.118$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.radius.reveal(radius)
np.testing.assert_allclose(radius, np.sqrt(1.25), rtol=0.01)
k = np.arange(order + 1)
np.testing.assert_allclose(taylor, (-1.0) ** k * np.imag((0.5 - 1j) ** -(k + 1.0)), rtol=1e-9, atol=1e-12)  # 1/(x - i)
for distance in (-1.0, 1.0):  # inside: the error falls
    errors = [np.polyval(taylor[n::-1], distance) - 1 / (1 + (0.5 + distance) ** 2) for n in (20, 40, 60)]
    assert np.abs(errors[2]) < 5e-3 < np.abs(errors[0])
for distance in (-1.25, 1.25):  # outside: it grows
    errors = [np.polyval(taylor[n::-1], distance) - 1 / (1 + (0.5 + distance) ** 2) for n in (12, 60)]
    assert np.abs(errors[1]) > 20 * np.abs(errors[0]) > 5

# %% [markdown]
# TensorFlow's accumulators give the same coefficients by **nesting**, each differentiating what the one inside it computes:


# %%
def derivative(f):
    def slope(x):
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return slope


def bell(x):
    return 1.0 / (1.0 + x * x)  # with x**2, the third derivative at 0 is NaN


f = bell
for k in range(4):
    print(f"c{k} = {f(tf.constant(0.5)).numpy() / math.factorial(k):7.4f}")
    f = derivative(f)

# %% [markdown]
# Dual numbers inside dual numbers carry $2^k$ numbers for order $k$, a series $k + 1$.
#
# Nesting has a trap, and your `Dual` falls into it. The inner derivative below, of $x + y$ with respect to $y$, is 1 whatever $x$ is. So the outer one, of $x \cdot 1$, is 1.

# %%
x = Dual(1.0, 1.0)
inner_slope = (x + Dual(1.0, 1.0)).tangent
print("Dual:        ", (x * inner_slope).tangent)


def nested(x):
    y = tf.constant(1.0)
    with tf.autodiff.ForwardAccumulator(y, tf.constant(1.0)) as accumulator:
        z = x + y
    return x * accumulator.jvp(z)


print("accumulators:", derivative(nested)(tf.constant(1.0)).numpy())

# %% [markdown]
# `Dual` says 2. `x` and the inner number both move by the same $\varepsilon$, so the inner tangent holds the outer one too: **perturbation
# confusion**. The two accumulators keep their tangents apart, and say 1.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
f = bell
for k in range(4):
    np.testing.assert_allclose(f(tf.constant(0.5)) / math.factorial(k), taylor[k], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(f(tf.constant(0.0)) / math.factorial(k), [1.0, 0.0, -1.0, 0.0][k], atol=1e-6)
    f = derivative(f)
assert np.isnan(derivative(derivative(derivative(lambda x: 1.0 / (1.0 + x**2))))(tf.constant(0.0)))
four_numbers = Dual(Dual(2.0, 1.0), Dual(1.0, 0.0))  # for the second order
assert (four_numbers * four_numbers * four_numbers).tangent.tangent == 12.0
assert (Dual(1.0, 1.0) * inner_slope).tangent == 2.0  # confused
assert derivative(nested)(tf.constant(1.0)) == 1.0

# %% [markdown]
# ## 10. Going further: where the accumulator gets its rules
#
# Your `Dual` needed a rule of its own for `sin`. The accumulator takes the *backward* rule of `tf.sin`, $u \mapsto J^\top u$, which is *linear in
# $u$*. Differentiate it with respect to $u$, in reverse, and you multiply by the transpose of $J^\top$, which is $J$. This is the *two-tape trick*
# (Townsend, 2017).


# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_rows = tf.random.normal((4, 3))
np.testing.assert_allclose(check_two_tapes(tf.sin, check_rows), tf.cos(check_rows), rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(  # a gather's gradient is IndexedSlices
    check_two_tapes(lambda x: tf.gather(x, [0, 2, 2]) ** 2, check_rows),
    2.0 * tf.gather(check_rows, [0, 2, 2]),
    rtol=1e-5,
)

# %% [markdown]
# ### Exercise: A forward product from tapes alone (12 min)
#
# Return $J v$, as long as `f(x)`, with `tf.GradientTape` alone, in two passes. `f` may gather entries of `x`: then its gradient is
# `IndexedSlices`, which `tf.convert_to_tensor` makes a tensor.


# %%
def jvp_from_tapes(f, x, v):
    ...
    return ...  # J times v, as long as f(x), without tf.autodiff.ForwardAccumulator


exercises.tapes_only.check(jvp_from_tapes)

# %% [markdown]
# ## 11. Going further: where the accumulator differs or fails
#
# First a custom gradient, as in section 6: $x^2$ with the backward rule $3u$, at 2.

# %%
square = tf.custom_gradient(lambda x: (x**2, lambda upstream: 3.0 * upstream))


def pushed(function, x):
    with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
        y = function(x)
    return accumulator.jvp(y)


at = tf.constant(2.0)
with tf.GradientTape() as tape:
    tape.watch(at)
    squared = square(at)

by_rule = tape.gradient(squared, at)
print("tape:                            ", by_rule.numpy())
print("accumulator, square:             ", pushed(square, at).numpy())
print("accumulator, tf.function(square):", pushed(tf.function(square), at).numpy())

# %% [markdown]
# The tape asks the rule: 3. Two more programs: a loop with a `tf.TensorArray` inside a `tf.function`, and a picture added to its bilinear
# enlargement, where every pixel moves by 1.


# %% tags=["nbval-ignore-output"]
numbers = tf.constant([1.0, 2.0, 3.0])


def squares(x):
    results = tf.TensorArray(x.dtype, size=3)
    for k in tf.range(3):
        results = results.write(k, x[k] ** 2)
    return results.stack()


print("the loop, eagerly:         ", pushed(squares, numbers).numpy())
try:
    refused = tf.function(lambda: pushed(squares, numbers))()
except TypeError as error:
    refused = f"TypeError: {str(error).strip().splitlines()[-1].strip().removeprefix('TypeError: ')}"
print("the loop, in a tf.function:", refused)

picture = tf.random.normal((1, 6, 6, 2))


def with_its_enlargement(x):
    return tf.reduce_sum(x) + tf.reduce_sum(tf.image.resize(x, (9, 9)))


cut = pushed(with_its_enlargement, picture)
change = (with_its_enlargement(picture + 0.1) - with_its_enlargement(picture - 0.1)) / 0.2
print(f"enlargement: accumulator {cut:.0f}, difference of values {change:.0f}")

# %% [markdown]
# | The accumulator meets | It says | Two tapes say |
# |---|---|---|
# | `square`, eagerly or both in one `tf.function` | 4, the true slope, from the operations inside | 3 |
# | `tf.function(square)` | 3, the rule: that call has a graph of its own | 3 |
# | the loop, both in one `tf.function` | `TypeError` | the derivative |
# | bilinear enlargement | its part is missing, without an error: its backward rule's operation is *declared* to have no derivative | the same |
#
# At the enlargement the difference of *values* is right, and `tapelab.derivatives.jvp` refuses.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(cut, picture.shape.num_elements(), rtol=1e-5)
np.testing.assert_allclose(change, picture.shape.num_elements() + 2 * 9 * 9, rtol=1e-3)
of_rows = tf.image.resize(tf.eye(6)[..., tf.newaxis], (9, 6))[..., 0]  # the cure: two constant matrices
np.testing.assert_allclose(
    tf.einsum("hp,npqc,wq->nhwc", of_rows, picture, of_rows), tf.image.resize(picture, (9, 9)), rtol=1e-4, atol=1e-5
)
with np.testing.assert_raises(ValueError):
    derivatives.jvp(with_its_enlargement)(picture, tangents=tf.ones_like(picture))
assert str(refused).startswith("TypeError")

check_loops = {
    "TensorArray": (squares, [2.0, 4.0, 6.0]),
    "map_fn": (lambda x: tf.map_fn(lambda number: number**2, x), [2.0, 4.0, 6.0]),
    "scan": (lambda x: tf.scan(lambda total, number: total * number, x), [1.0, 3.0, 11.0]),
    "foldl": (lambda x: tf.foldl(lambda total, number: total * number, x), 11.0),
}
for check_f, expected in check_loops.values():
    np.testing.assert_allclose(pushed(check_f, numbers), expected, rtol=1e-6)
    np.testing.assert_allclose(
        tf.function(lambda check_f=check_f: check_two_tapes(check_f, numbers))(), expected, rtol=1e-6
    )
    # A map_fn that fails leaves its variable scope changed: give it one of its own.
    with tf.compat.v1.variable_scope("apart"), np.testing.assert_raises(TypeError):
        tf.function(lambda check_f=check_f: pushed(check_f, numbers))()
assert by_rule == check_two_tapes(square, at) == check_two_tapes(tf.function(square), at) == 3.0
assert tf.function(lambda: pushed(square, at))() == pushed(square, at) == 4.0
tripled = tf.custom_gradient(lambda x: (tf.round(x), lambda upstream: 3.0 * upstream))


def in_a_loop(x):
    return tf.while_loop(lambda k, _: k < 1, lambda k, x: (k + 1, square(x)), [0, x])[1]


def in_a_branch(x):
    return tf.cond(x > 0.0, lambda: square(x), lambda: x)


for check_f, expected in ((tripled, 3.0), (tf.function(square), 3.0)):
    assert pushed(check_f, at) == expected
for check_f in (in_a_loop, in_a_branch):
    assert pushed(check_f, at) == 4.0  # eagerly these are Python
    assert tf.function(lambda check_f=check_f: pushed(check_f, at))() == 3.0
check_sampling = tf.keras.layers.UpSampling2D
assert pushed(check_sampling(2, interpolation="bilinear"), picture) is None
np.testing.assert_array_equal(pushed(check_sampling(2), picture), np.ones((1, 12, 12, 2)))
np.testing.assert_allclose(check_two_tapes(with_its_enlargement, picture), cut, rtol=1e-5)
with tf.GradientTape() as outer:
    outer.watch(picture)
    with tf.GradientTape() as inner:
        inner.watch(picture)
        check_y = tf.reduce_sum(tf.image.resize(picture, (9, 9)) ** 2)
    check_slope = inner.gradient(check_y, picture)
assert outer.gradient(check_slope, picture) is None

# %% [markdown]
# ## 12. Going further: in one line
#
# `tapelab.derivatives` does the same compiled. Here `jacobian` goes forwards, and `hvp` takes the Keras variables as they are.

# %%
x = tf.random.normal((3,))
jacobian = derivatives.jacobian(tall)(x)
value, pushed = derivatives.jvp(tall)(x, tangents=tf.ones(3))
hessian_product = derivatives.hvp(lambda: tf.reduce_mean((model(data) - targets) ** 2), wrt=model.trainable_variables)(
    vector=tangents
)
print("jacobian:", jacobian.shape)
print("jvp:     ", pushed.shape)
print("hvp:     ", [tuple(part.shape) for part in hessian_product])

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert jacobian.shape == (batch, outputs, 3)
np.testing.assert_allclose(value, tall(x), rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(pushed, tf.reduce_sum(jacobian, axis=-1), rtol=1e-4, atol=1e-5)
for mode in ("forward", "reverse"):
    np.testing.assert_allclose(derivatives.jacobian(tall, mode=mode)(x), jacobian, rtol=1e-4, atol=1e-5)
for part, by_tapes in zip(hessian_product, by_two_tapes, strict=True):
    np.testing.assert_allclose(part, by_tapes, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## 13. Check it independently
#
# Dual numbers have a relative in NumPy: complex numbers. Replace $\varepsilon$ by $ih$ with $h = 10^{-30}$; then $(ih)^2 = -h^2$ vanishes in
# rounding, and the imaginary part of this curve at $t + ih$, divided by $h$, is its derivative.

# %% tags=["nbval-ignore-output"]
s64 = np.asarray(s, np.float64)
h = 1e-30
complex_step = (np.sin((1.0 + 1j * h) * s64) / (1.0 + 0.1 * s64**2)).imag / h


def tall64(x):
    return np.tanh(x @ np.asarray(mixing, np.float64)).reshape(batch, outputs)


numerical = gradcheck.numerical_jacobian(tall64, np.asarray(x, np.float64))
print(f"curve: largest difference {np.max(np.abs(dy_dt - complex_step)):.0e}")
print(f"tall:  largest difference {np.max(np.abs(jacobian - numerical)):.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(complex_step, s64 * np.cos(s64) / (1.0 + 0.1 * s64**2), rtol=1e-12, atol=1e-14)
np.testing.assert_allclose(dy_dt, complex_step, rtol=1e-4, atol=1e-5)
assert numerical.shape == (batch, outputs, 3)
np.testing.assert_allclose(jacobian, numerical, rtol=1e-4, atol=1e-4)

# %% [markdown]
# ## Recap
#
# - A dual number is a value with a tangent, and $\varepsilon^2 = 0$. Carried along a computation, it is forward mode (section 1).
# - `ForwardAccumulator(primals, tangents)` carries tangents; `.jvp(y)` gave the Jacobian times the direction, in one pass (sections 2 and 3).
# - By columns the Jacobian took 3 passes, by rows 42 (section 4).
# - A tangent pushed through a gradient gave a Hessian–vector product (section 5).
# - At `log1pexp` and `clip` two tapes asked the custom rule; the accumulator did not (section 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a Keras 3 variable as a primal | an error that names something else | pass `.value` |
# | `jvp` of a result computed after the context | `None` | compute it inside, a gradient too |
# | a `tf.custom_gradient` whose operations have derivatives, under an accumulator, eagerly or with it in one `tf.function`, outside loops and branches | their derivative and not the rule's, without a warning | `tapelab.derivatives.jvp` |
# | a Hessian–vector product by accumulator or tapes through Keras' `LayerNormalization`, `GroupNormalization` or training `BatchNormalization` | wrong numbers, without a warning | `tapelab.derivatives.hvp` |
# | a smooth function written with `relu`, `min` or `max`, at their kink | perhaps a wrong slope: 0 for `relu(x) - relu(-x)` at 0 | compare with a difference of values |
# | an accumulator inside a `tf.function`, around a loop that fills a `tf.TensorArray`, as `tf.map_fn` or a Keras `LSTM` does | `TypeError` | two tapes |
# | `tf.image.resize` without `antialias`, or `UpSampling2D`, both bilinear, in forward mode, or before a nonlinear step in a second derivative, by two tapes too | its part is missing, or `None`; no error | two products with constant matrices |
#
# **Further reading**
#
# - The TensorFlow Core guide, ["Advanced automatic differentiation"](https://www.tensorflow.org/guide/advanced_autodiff), section "Jacobians"; the API page of [`tf.autodiff.ForwardAccumulator`](https://www.tensorflow.org/api_docs/python/tf/autodiff/ForwardAccumulator).
# - R. E. Wengert (1964), ["A simple automatic derivative evaluation program"](https://doi.org/10.1145/355586.364791).
# - B. A. Pearlmutter (1994), ["Fast exact multiplication by the Hessian"](https://doi.org/10.1162/neco.1994.6.1.147).
# - J. N. Lyness, C. B. Moler (1967), ["Numerical differentiation of analytic functions"](https://doi.org/10.1137/0704019); W. Squire, G. Trapp (1998), ["Using complex variables to estimate derivatives of real functions"](https://doi.org/10.1137/S003614459631241X).
# - J. M. Siskind, B. A. Pearlmutter (2008), ["Nesting forward-mode AD in a functional framework"](https://doi.org/10.1007/s10990-008-9037-1): perturbation confusion.
# - J. Bolte, E. Pauwels (2021), ["Conservative set valued fields, automatic differentiation, stochastic gradient methods and deep learning"](https://arxiv.org/abs/1909.10300): what a tape returns at a kink.
# - A. R. Curtis, M. J. D. Powell, J. K. Reid (1974), ["On the estimation of sparse Jacobian matrices"](https://doi.org/10.1093/imamat/13.1.117); J. Townsend (2017), ["A new trick for calculating Jacobian vector products"](https://j-towns.github.io/2017/06/12/A-new-trick.html): forward mode from reverse mode.
#
# **Read next:** [13 Hessians and Newton's method](13_hessians_and_newton.ipynb) builds the whole Hessian and finds a better step with it;
# [16 What derivatives cost](16_what_derivatives_cost.ipynb) measures what this notebook counted.
