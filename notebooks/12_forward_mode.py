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
# # Forward mode
#
# A tape runs backwards: it starts at one output and finds the derivative with respect to every input. TensorFlow can also
# run forwards, from one direction of the inputs to every output.
# **When is forward the better way to go?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/12_forward_mode.ipynb)
#
# **Prerequisites:** [09 Jacobians](09_jacobians.ipynb), [10 Hessians and Newton's method](10_hessians_and_newton.ipynb) · **Time:** about 25 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - compute a Jacobian–vector product with `tf.autodiff.ForwardAccumulator`, and say what a tangent is (section 1),
# - push tangents through a Keras model's variables, and recognise the error that they cause (section 2),
# - build a Jacobian by columns, and say when that takes fewer passes than rows (section 3),
# - combine both modes into a Hessian–vector product (section 4),
# - get all of these from one line, compiled, with `tapelab.derivatives` (section 5).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import forward_mode as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
batch = 7  # examples
inputs = 5  # features of an example
hidden = 8  # units of the first layer
outputs = 6  # units of the second layer
points = 201  # of the curve in section 3

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. One direction, one pass
#
# A **tangent** is a direction in which the inputs move. If $x$ moves along $v$, then $f(x)$ moves along $J v$. This is the
# **Jacobian–vector product**, or JVP, and it has the shape of the *output*. Forward mode computes it together with $f$: each operation
# receives its inputs' tangents beside its inputs, and hands on its outputs' tangents beside its outputs. No record is kept,
# because nothing is walked backwards afterwards.
#
# `ForwardAccumulator(primals, tangents)` is the context that does this. The **primals** are the inputs that move, each with a tangent of
# its own shape. `.jvp(y)` reads off a result's tangent.
#
# **Predict.** Take $f(x) = (x_1 x_2,\; x_1 + x_2)$ at $x = (2, 3)$, and let only $x_1$ move: $v = (1, 0)$. What is $J v$?

# %%
exercises.column.guess([..., ...])  # the two entries of J v


# %%
def f(x):
    return tf.stack([x[0] * x[1], x[0] + x[1]])


x = tf.constant([2.0, 3.0])
v = tf.constant([1.0, 0.0])

with tf.autodiff.ForwardAccumulator(primals=x, tangents=v) as accumulator:
    y = f(x)

jvp = accumulator.jvp(y)
print("f(x) =", y.numpy())
print("J v  =", jvp.numpy())

# %%
exercises.column.reveal(jvp.numpy())

# %% [markdown]
# $J = \begin{pmatrix} 3 & 2 \\ 1 & 1 \end{pmatrix}$, and $v = (1, 0)$ picks its first *column*.
# A tape would give a *row*: how one output changes with both inputs.

# %%
assert y.numpy().tolist() == [6.0, 5.0]
assert jvp.numpy().tolist() == [3.0, 1.0]

# %% [markdown]
# Any direction costs the same one pass. Along $v = (1, -2)$ the two columns combine: $1 \cdot (3, 1) - 2 \cdot (2, 1)$.

# %%
v = tf.constant([1.0, -2.0])
with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
    y = f(x)

jvp = accumulator.jvp(y)
print("J v =", jvp.numpy())

# %%
assert jvp.numpy().tolist() == [-1.0, -1.0]

# %% [markdown]
# The tangent travels with the computation. What is computed outside the context has none.
#
# **Predict.** `f(x)` is computed again, after the context has closed. What does `.jvp` say of it?

# %%
exercises.outside.guess(...)  # two numbers in a list, or None

# %%
late = accumulator.jvp(f(x))
print("jvp, of a result from outside:", late)

# %%
exercises.outside.reveal(late)

# %%
assert late is None

# %% [markdown]
# ## 2. Through the variables of a model
#
# The moving quantity may also be a model's weights: how do the outputs change if every weight moves along some direction?
#
# **Predict.** Below, the primal is a Keras layer's kernel. What happens?

# %%
layer = tf.keras.layers.Dense(outputs, activation="tanh")
data = tf.random.normal((batch, inputs))
layer(data)  # builds the layer: now it has variables
direction = tf.random.normal((inputs, outputs))

try:
    with tf.autodiff.ForwardAccumulator(layer.kernel, direction) as accumulator:
        layer(data)
    refused = False
except Exception:  # which one depends on the version
    refused = True
print("a Keras variable is refused:", refused)

# %%
assert refused

# %% [markdown]
# The error speaks of something else: with TensorFlow 2.21 it is an `AttributeError` about a `'str' object`. A Keras 3 variable *wraps* a TensorFlow variable.
# `tape.gradient` unwraps it; the accumulator does not. Pass `.value`, the variable inside.
#
# **Predict.** The direction has the kernel's shape, (5, 6). What is the shape of the outputs' tangent?

# %%
exercises.tangent_shape.guess(...)  # a tuple of integers

# %%
with tf.autodiff.ForwardAccumulator(layer.kernel.value, direction) as accumulator:
    y = layer(data)

jvp = accumulator.jvp(y)
print("outputs:", y.shape)
print("tangent:", jvp.shape)

# %%
exercises.tangent_shape.reveal(jvp.shape)

# %% [markdown]
# For this layer the tangent is known in closed form: $y = \tanh(x W + b)$, so $\dot y = (1 - y^2) \odot (x \dot W)$, where a dot marks a
# tangent and $\odot$ multiplies element by element.

# %%
closed_form = (1.0 - y**2) * (data @ direction)
print("equal to the closed form:", np.allclose(jvp, closed_form, rtol=1e-4, atol=1e-5))

# %%
assert jvp.shape == y.shape == (batch, outputs)
np.testing.assert_allclose(jvp, closed_form, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ### Exercise: How the outputs answer to one weight (6 min)
#
# `layer` is a built Keras layer with a kernel of shape (ins, outs), and `data` has shape (batch, ins). Return the derivative of all its outputs with
# respect to one weight, the kernel's entry `[row, column]`: shape (batch, outs), in one forward pass.


# %%
def answer_to_weight(layer, data, row, column):
    direction = ...
    with tf.autodiff.ForwardAccumulator(...) as accumulator:
        outputs = layer(data)
    return accumulator.jvp(outputs)


exercises.one_weight.check(answer_to_weight)

# %% [markdown]
# ## 3. Jacobians by columns
#
# One pass gives one column, so a whole Jacobian takes as many forward passes as there are *inputs*. A tape takes as many
# backward passes as there are *outputs*.
#
# Here one number, $t$, shapes a whole curve. Its values at 201 points $s_k$ are $\sin(t\, s_k) / (1 + s_k^2/10)$.
#
# **Predict.** How many passes does the derivative of all 201 values with respect to $t$ take in forward mode, and how many in reverse mode?

# %%
exercises.passes.guess([..., ...])  # forward mode, reverse mode

# %%
grid = tf.linspace(-10.0, 10.0, points)
t = tf.constant(1.0)


def curve(t):
    return tf.sin(t * grid) / (1.0 + 0.1 * grid**2)


with tf.autodiff.ForwardAccumulator(t, tf.constant(1.0)) as accumulator:
    y = curve(t)
by_forward = accumulator.jvp(y)  # one pass: t is one number

with tf.GradientTape(persistent=True) as tape:
    tape.watch(t)
    elements = tf.unstack(curve(t))
by_reverse = tf.stack([tape.gradient(element, t) for element in elements])  # one pass for each element
del tape
print("backward passes:", len(elements))
print("the one forward pass gives the same:", np.allclose(by_forward, by_reverse, rtol=1e-4, atol=1e-5))

# %%
exercises.passes.reveal([int(tf.size(t)), len(elements)])

# %%
assert by_forward.shape == by_reverse.shape == (points,)
assert len(elements) == points
np.testing.assert_allclose(by_forward, by_reverse, rtol=1e-4, atol=1e-5)

# %% alt="A wave that fades to both sides, and dashed its derivative with respect to its frequency, which is zero in the middle and grows before it fades."
ax = plots.curve_with_derivative(
    grid,
    curve(t),
    by_forward,
    title="A curve, and how each of its points answers to t",
    label="y, the curve at t = 1",
    derivative_label="dy/dt, from one forward pass",
)
ax.set(xlabel="point s", ylabel="y and dy/dt", ylim=(-1.8, 2.6))  # room for the legend
plt.show()

# %% [markdown]
# At $s = 0$ the curve does not depend on $t$ at all; far out, a small change of $t$ shifts the waves by much, until the fading wins.
#
# A loop over unit directions gives the columns of any Jacobian, one for each pass. The next function has 3 inputs and 7 × 6 outputs.
#
# **Predict.** The columns are stacked. Along which axis, so that the result has the axes of `tape.jacobian`: outputs first, then inputs?

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
by_columns = tf.stack(columns, axis=-1)  # the input's axis comes last

with tf.GradientTape() as tape:
    tape.watch(x)
    y = tall(x)
by_rows = tape.jacobian(y, x)
print("by columns:", by_columns.shape)
print("by rows:   ", by_rows.shape)

# %%
assert len(columns) == 3
assert by_columns.shape == by_rows.shape == (batch, outputs, 3)
np.testing.assert_allclose(by_columns, by_rows, rtol=1e-4, atol=1e-5)

# %% [markdown]
# The rule: **more outputs than inputs: forward. More inputs than outputs: reverse.** A loss has one output and a model has many
# weights, which is why training runs in reverse.
#
# ### Exercise: Which mode, and how many passes? (5 min)
#
# For each of these, say which mode takes fewer passes, and how many. What is done with a pass's result afterwards, such as a product with a given vector, is no pass.
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
# ## 4. Forward over reverse
#
# The gradient $g(w)$ of a loss is itself a function, as wide as it is tall. Its Jacobian is the Hessian $H$, and so *its* JVP is a
# **Hessian–vector product**: $H v$ is how the gradient changes when the weights move along $v$. Notebook 10 trains with such products.
#
# Push a tangent forwards through a gradient that a tape computes backwards.
#
# **Predict.** $L(w) = w_1^2 w_2$ at $w = (3, 5)$, with $v = (1, 0)$. What is $H v$?

# %%
exercises.product.guess([..., ...])  # the two entries of H v


# %%
def small_loss(w):
    return w[0] ** 2 * w[1]


w = tf.constant([3.0, 5.0])
v = tf.constant([1.0, 0.0])

with tf.autodiff.ForwardAccumulator(w, v) as accumulator:
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = small_loss(w)
    gradient = tape.gradient(value, w)

hv = accumulator.jvp(gradient)
print("gradient =", gradient.numpy())
print("H v      =", hv.numpy())

# %%
exercises.product.reveal(hv.numpy())

# %%
assert gradient.numpy().tolist() == [30.0, 9.0]
assert hv.numpy().tolist() == [10.0, 6.0]

# %% [markdown]
# A model has several variables, and there is still one pass: primals and tangents are lists. Two tapes, one inside the
# other, give the same product, with the tangents as `output_gradients` of the outer one.
#
# **Predict.** The second way differentiates in reverse twice. $H v$ would then be $H^\top v$. Why is that no difference?

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


def loss():
    return tf.reduce_mean((model(data) - targets) ** 2)


with tf.autodiff.ForwardAccumulator(variables, tangents) as accumulator:
    with tf.GradientTape() as tape:
        value = loss()
    gradients = tape.gradient(value, variables)
forward_over_reverse = accumulator.jvp(gradients)

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        value = loss()
    gradients = inner.gradient(value, variables)
reverse_over_reverse = outer.gradient(gradients, variables, output_gradients=tangents)

for variable, one, other in zip(variables, forward_over_reverse, reverse_over_reverse, strict=True):
    print(f"{variable.shape!s:8} they agree: {np.allclose(one, other, rtol=1e-4, atol=1e-5)}")

# %% [markdown]
# A Hessian is symmetric.

# %%
for variable, one, other in zip(variables, forward_over_reverse, reverse_over_reverse, strict=True):
    assert one.shape == variable.shape
    assert np.max(np.abs(other)) > 1e-3  # the tolerance is small beside the entries
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)

# %% [markdown]
# The two modes also go together without a second derivative. For a function $f$ whose Jacobian at `x` is $J$, the matrix $J^\top J$
# stands in for the Hessian of $\frac12 \lVert f \rVert^2$ in the Gauss–Newton method.
#
# ### Exercise: A Gauss–Newton product (8 min)
#
# `f` takes a vector to a vector of another length. Return $J^\top (J v)$, as long as `x`, without building $J$: two passes.


# %%
def gauss_newton_product(f, x, v):
    ...
    return ...  # J transposed times J times v: a vector as long as x


exercises.gauss_newton.check(gauss_newton_product)

# %% [markdown]
# ### Exercise: A forward product from tapes alone (12 min)
#
# Some operations have a gradient and no rule for forward mode. Return $J v$, as long as `f(x)`, with `tf.GradientTape` alone: no `ForwardAccumulator`, and
# the number of passes does not depend on the sizes. You have seen all the parts: what one tape returns is itself a function that another tape can differentiate.


# %%
def jvp_from_tapes(f, x, v):
    ...
    return ...  # J times v, as long as f(x), without tf.autodiff.ForwardAccumulator


exercises.tapes_only.check(jvp_from_tapes)

# %% [markdown]
# ## 5. In one line
#
# The cells above run in Python, one operation at a time. `tapelab.derivatives` does the same compiled, chooses the mode by
# comparing the sizes of input and output, and takes Keras variables as they are.
#
# **Predict.** `derivatives.jacobian(tall)` returns a function. What shape does *that* return for an input of shape (3,)?

# %%
exercises.one_line.guess(...)  # a tuple of integers

# %%
in_one_line = derivatives.jacobian(tall)(x)
_, pushed = derivatives.jvp(tall)(tf.ones(3), x)
product = derivatives.hvp(loss, wrt=model.trainable_variables)(tangents)
print("jacobian:", in_one_line.shape)
print("jvp:     ", pushed.shape)
print("hvp:     ", [tuple(part.shape) for part in product])

# %%
exercises.one_line.reveal(in_one_line.shape)

# %% [markdown]
# The results are those that you built by hand. The tangent of ones adds up the Jacobian's three columns.

# %%
assert in_one_line.shape == (batch, outputs, 3)
np.testing.assert_allclose(in_one_line, by_columns, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(pushed, tf.reduce_sum(by_columns, axis=-1), rtol=1e-4, atol=1e-5)
for part, by_tapes in zip(product, reverse_over_reverse, strict=True):
    np.testing.assert_allclose(part, by_tapes, rtol=1e-4, atol=1e-5)

# %% [markdown]
# Three inputs are fewer than 42 outputs, so it goes forwards. Ask for a mode by name, and it takes that one: the numbers are the same, the cost
# is not. Notebook 13 measures it.

# %%
for mode in ("forward", "reverse"):
    by_name = derivatives.jacobian(tall, mode=mode)(x)
    np.testing.assert_allclose(by_name, by_columns, rtol=1e-4, atol=1e-5)
    print(f"{mode} mode gives the same:", np.allclose(by_name, by_columns, rtol=1e-4, atol=1e-5))

# %% [markdown]
# ## 6. Check it independently
#
# A JVP is a directional derivative, and central differences give one from two evaluations of the function. NumPy and float64,
# no TensorFlow: the curve of section 3 and the tall function.

# %%
grid64, mixing64, x64 = (np.asarray(value, np.float64) for value in (grid, mixing, x))


def curve64(t):
    return np.sin(t * grid64) / (1.0 + 0.1 * grid64**2)


def tall64(x):
    return np.tanh(x @ mixing64).reshape(batch, outputs)


curve_numerical = gradcheck.numerical_jacobian(curve64, 1.0)
tall_numerical = gradcheck.numerical_jacobian(tall64, x64)
print("the curve's derivative agrees:", np.allclose(by_forward, curve_numerical, rtol=1e-4, atol=1e-4))
print("the tall Jacobian agrees:     ", np.allclose(by_columns, tall_numerical, rtol=1e-4, atol=1e-4))

# %%
assert curve_numerical.shape == (points,)
assert tall_numerical.shape == (batch, outputs, 3)
np.testing.assert_allclose(by_forward, curve_numerical, rtol=1e-4, atol=1e-4)
np.testing.assert_allclose(by_columns, tall_numerical, rtol=1e-4, atol=1e-4)

# %% [markdown]
# ## Recap
#
# - `ForwardAccumulator(primals, tangents)` carries a direction through a computation; `.jvp(y)` is the Jacobian times that direction, in one pass and without a record (section 1).
# - The primals may be variables, but a Keras 3 variable must be passed as `.value` (section 2).
# - A Jacobian takes one forward pass for each input, or one backward pass for each output: forward for tall ones, reverse for wide ones (section 3).
# - A tangent pushed through a gradient gives a Hessian–vector product, the same as two nested tapes (section 4).
# - `derivatives.jvp`, `jacobian` and `hvp` do this compiled, and choose the mode by size (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a Keras 3 variable as a primal | an error that names something else | pass `.value` |
# | a loss's gradient, weight by weight in forward mode | as many passes as weights | use a tape |
# | a curve's derivative, point by point in reverse mode | as many passes as points | use one JVP |
# | `jvp` asked for something computed outside the context | `None` | compute it inside |
#
# **Read next:** [13 What derivatives cost](13_what_derivatives_cost.ipynb) measures what this notebook counted.
