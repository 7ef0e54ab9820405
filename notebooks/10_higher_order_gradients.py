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
# # Higher-order gradients
#
# `tape.gradient` runs TensorFlow operations, and a second tape around it can record them. So you can train a model whose loss contains a gradient.
# **How do you differentiate a gradient?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/10_higher_order_gradients.ipynb)
#
# **Prerequisites:** [09 Multiple tapes](09_multiple_tapes.ipynb) · **Minutes:** 22 to read, 2 more to go further, 33 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
points = 100  # training points in the plane, section 4: between 60 and 200
penalty = 0.1  # weight of the squared input gradient in their loss: between 0.05 and 0.2

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import higher_order_gradients as exercises
from tapelab.explain import ExplainTape, draw, explain, table

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf
from sklearn.datasets import make_moons

runtime.start(seed)

# %%
x = tf.Variable(1.0)

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = x**3
    dy_dx = inner.gradient(y, x)  # outside the inner block, inside the outer one

d2y_dx2 = outer.gradient(dy_dx, x)
print("y       =", y.numpy())
print("dy/dx   =", dy_dx.numpy())
print("d²y/dx² =", d2y_dx2.numpy())

# %% [markdown]
# By hand: $y' = 3x^2 = 3$ and $y'' = 6x = 6$ at $x = 1$. The inner tape recorded the cube. The outer tape was asked about `dy_dx`, which
# only `inner.gradient` computes.
#
# **You will be able to**
#
# - nest two tapes, and say why a second derivative is `None` (section 1),
# - say what the gradient of a gradient is for a vector (section 2),
# - train with a penalty on an input gradient (sections 3 and 4),
# - recognise a second derivative that is wrong without warning, and cure it (section 5).

# %% [markdown]
# ## 1. A gradient of a gradient
#
# `ExplainTape` is a `tf.GradientTape` that can show its record. As the outer tape it lists everything between `x` and `dy_dx`.

# %%
with ExplainTape() as outer:
    with tf.GradientTape() as inner:
        y = x**3
    dy_dx = inner.gradient(y, x)

print(table(outer, dy_dx, x))

# %% [markdown]
# Entries 1 and 2 come from the line `inner.gradient(y, x)`. They are the inner tape's **backward pass**: the power rule, $3 \cdot x^2$.
#
# **Predict.** Both tapes record the same line again, but now `inner.gradient` stands outside both blocks. What are the first and the second derivative?

# %%
exercises.outside.guess([..., ...])  # in place of each `...`, your guess: dy/dx, d²y/dx²

# %%
with tf.GradientTape() as outer, tf.GradientTape() as inner:
    y = x**3
dy_dx = inner.gradient(y, x)  # outside both blocks

d2y_dx2 = outer.gradient(dy_dx, x)
print("dy/dx   =", dy_dx.numpy())
print("d²y/dx² =", d2y_dx2)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.outside.reveal([dy_dx, d2y_dx2])

with ExplainTape() as outer:
    with tf.GradientTape() as inner:
        y = x**3
    inside = inner.gradient(y, x)
with ExplainTape() as too_early, tf.GradientTape() as inner:
    y = x**3
late = inner.gradient(y, x)

np.testing.assert_allclose(dy_dx, 3.0, rtol=1e-6)
assert d2y_dx2 is None
np.testing.assert_allclose(outer.gradient(inside, x), 6.0, rtol=1e-6)
with tf.GradientTape() as outer, tf.GradientTape() as inner:
    y = x**3
    inside_both = inner.gradient(y, x)
np.testing.assert_allclose(outer.gradient(inside_both, x), 6.0, rtol=1e-6)
assert explain(too_early, late, x).code == "target_after_tape"
with tf.GradientTape() as inner:
    y = x**3
with tf.GradientTape() as outer:  # the call moved in, and the inner block left outside
    moved_alone = inner.gradient(y, x)
    objective = x**2 + moved_alone
assert outer.gradient(objective, x) == 2.0  # the loss's slope alone, where 2 + 6 would be right
with tf.GradientTape() as inner:
    y = x**3
before_outer = inner.gradient(y, x)
with tf.GradientTape(persistent=True) as outer:
    objective = x**2 + before_outer
    with tf.GradientTape() as inner:
        y = x**3
    both_moved = x**2 + inner.gradient(y, x)
assert outer.gradient(objective, x) == 2.0
np.testing.assert_allclose(outer.gradient(both_moved, x), 8.0, rtol=1e-6)

# %% [markdown]
# The first derivative is still right. But the backward pass ran when neither tape was recording. To the outer tape `dy_dx` is a number from nowhere,
# and the second derivative is `None`, without an error.
#
# There is a second way to the same `None`. `x` was a variable. Take a *tensor*, which only the inner tape watches:

# %%
t = tf.constant(3.0)

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        inner.watch(t)  # the outer tape is not told
        y = t**3
    dy_dt = inner.gradient(y, t)

d2y_dt2 = outer.gradient(dy_dt, t)
print("dy/dt   =", dy_dt.numpy())
print("d²y/dt² =", d2y_dt2)

# %% [markdown]
# Watch `t` on both. Or write a function that returns a derivative, and apply it to its own result: the inner block then runs inside the outer one, and each tape watches.


# %%
def derivative(f):
    """The derivative of f, a function of a tensor, as a function of a tensor."""

    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    return df


def cube(x):
    return x**3


first = derivative(cube)
second = derivative(first)
third = derivative(second)
for name, df in {"3x²": first, "6x": second, "6": third}.items():
    print(f"{name:<3} at 3: {df(t).numpy()}")

# %% alt="Line plot. Three curves over x from \u22122 to 2: the cubic x\u00b3 through the origin, its first derivative, an upward parabola touching zero at the origin, and its second derivative, a straight line through the origin. Each curve carries its name." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the cubic and its two derivatives
xs = tf.linspace(-2.0, 2.0, 201)

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.axhline(0, color=plots.GREY, linewidth=0.8)
curves = [
    (cube(xs), "$x^3$", "-", plots.BLUE, (1.35, 0.9)),
    (first(xs), "first: $3x^2$", "--", plots.RED, (-1.25, 6.2)),
    (second(xs), "second: $6x$", ":", plots.GREEN, (0.02, 8.2)),
]
for values, name, style, colour, where in curves:
    ax.plot(xs, values, style, color=colour, linewidth=2)
    ax.text(*where, name, color=colour)
ax.set(title="A cubic, its slope, and the slope of its slope", xlabel="x", ylabel="value")
plt.show()

# %% [markdown]
# Four surprises remain:

# %%
line = derivative(lambda x: 2.0 * x)
print("1. second derivative of 2x:   ", derivative(line)(t))

times_t = derivative(lambda v: v * t)
print("2. slope of v * t, at t:      ", times_t(t).numpy(), "  at a copy:", times_t(tf.identity(t)).numpy())

gathered = derivative(lambda x: tf.reduce_sum(tf.gather(x, [0, 0, 1]) ** 3))
print("3. gradient through tf.gather:", type(gathered(tf.constant([1.0, 2.0]))).__name__)

zero = tf.constant(0.0)
by_power = derivative(derivative(derivative(lambda x: tf.exp(-(x**2)))))
by_product = derivative(derivative(derivative(lambda x: tf.exp(-x * x))))
print("4. third of exp(-x²), at 0:   ", by_power(zero).numpy(), "  with x * x:", abs(by_product(zero).numpy()))

# %% [markdown]
# | | Here | Cause | Instead |
# |---|---|---|---|
# | 1 | `None`; the third derivative is an error | the slope of $2x$ is a constant | `unconnected_gradients="zero"` in `derivative` |
# | 2 | 6, not 3 | both factors are watched | a copy of `t` |
# | 3 | the second derivative is an error | `gradient` refuses `IndexedSlices` as its target | `tf.convert_to_tensor` first |
# | 4 | NaN at 0 | the third derivative of `x**2` meets $0 \cdot 0^{-1}$ | `x * x` |

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with ExplainTape() as untold:
    with tf.GradientTape() as inner:
        inner.watch(t)
        y = t**3
    slope = inner.gradient(y, t)

np.testing.assert_allclose(dy_dt, 27.0, rtol=1e-6)
assert d2y_dt2 is None
assert explain(untold, slope, t).code == "not_watched"
assert derivative(lambda x: 2.0 * x)(t) == 2.0
assert derivative(derivative(derivative(lambda x: x * x)))(t) is None
assert derivative(derivative(derivative(lambda x: x**2)))(t) == 0.0
np.testing.assert_allclose([first(t), second(t), third(t)], [27.0, 18.0, 6.0], rtol=1e-6)
np.testing.assert_allclose(first(xs), 3 * xs**2, rtol=1e-5, atol=1e-5)
assert derivative(line)(t) is None
assert np.isnan(by_power(zero))
assert by_product(zero) == 0.0
assert np.isnan(derivative(derivative(derivative(lambda x: x**2)))(zero))
with np.testing.assert_raises((AttributeError, TypeError)):  # which one depends on the version
    derivative(derivative(line))(t)
np.testing.assert_allclose(second(xs), 6 * xs, rtol=1e-5, atol=1e-5)
with tf.GradientTape(persistent=True) as outer:
    outer.watch(t)
    with tf.GradientTape() as inner:
        inner.watch(t)
        y = line(t)
    check_zero = inner.gradient(y, t, unconnected_gradients="zero")
assert check_zero == outer.gradient(check_zero, t, unconnected_gradients="zero") == 0.0  # second and third
assert times_t(t) == 6.0
assert times_t(tf.identity(t)) == 3.0
check_pair = tf.constant([1.0, 2.0])
assert isinstance(gathered(check_pair), tf.IndexedSlices)
with np.testing.assert_raises((AttributeError, TypeError)):
    derivative(gathered)(check_pair)
check_second = derivative(lambda x: tf.convert_to_tensor(gathered(x)))(check_pair)
np.testing.assert_allclose(tf.convert_to_tensor(check_second), [12.0, 12.0], rtol=1e-6)

# %% [markdown]
# ## 2. The gradient of a sum, not a Hessian
#
# The slope in the figure is `first(xs)`, with `xs` a vector of 201 points: the gradient of the **sum** of 201 cubes. Each cube contains one point,
# and the slopes are right.
#
# Now take $f(x) = x_0^2 x_1 + x_1^2 x_2$ at $x = (1, 2, 3)$. Its gradient is $(2x_0x_1,\; x_0^2 + 2x_1x_2,\; x_1^2) = (4, 13, 4)$, and each of these
# three has a slope in three directions.
#
# **Predict.** How many numbers does the gradient of the gradient hold?

# %%
exercises.how_many.guess(...)  # a whole number


# %%
def f(x):
    return x[0] ** 2 * x[1] + x[1] ** 2 * x[2]


x = tf.constant([1.0, 2.0, 3.0])

with tf.GradientTape(persistent=True) as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
        inner.watch(x)
        y = f(x)
    gradient = inner.gradient(y, x)

nested = outer.gradient(gradient, x)
print("gradient:                ", gradient.numpy())
print("gradient of the gradient:", nested.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.how_many.reveal(int(tf.size(nested)))

np.testing.assert_allclose(gradient, [4.0, 13.0, 4.0], rtol=1e-6)
np.testing.assert_allclose(nested, [6.0, 12.0, 4.0], rtol=1e-6)

# %% [markdown]
# Three. The outer call differentiated the sum of the gradient's elements. To keep them apart, ask for the **Jacobian** of the gradient:
# `outer.jacobian(gradient, x)`, which [11](11_jacobians.ipynb) explains. This matrix of the nine second derivatives is the **Hessian** of $f$.
#
# The nested gradient is its **column sums**: $6 = 4 + 2 + 0$. The Hessian of the sum of 201 cubes is diagonal, and its column sums *are* the
# second derivatives.

# %%
hessian = outer.jacobian(gradient, x)
del outer
print(hessian.numpy())

# %% alt="Two heat maps. Two images with one colour scale. Above, the 3 by 3 Hessian with rows 4 2 0, 2 6 4 and 0 4 0. Below, a single row with its column sums: 6, 12, 4." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the Hessian and its column sums
_, (upper, lower) = plt.subplots(2, 1, figsize=(4.6, 5), layout="constrained", height_ratios=[3, 1])
style = {"xlabel": "element of x", "limit": 12, "colorbar": False}
plots.matrix(hessian, title="The Hessian", ylabel="element of the gradient", ax=upper, **style)
plots.matrix(nested[None, :], title="The gradient of the gradient is its column sums", ylabel="", ax=lower, **style)
for ax, values in ((upper, hessian.numpy()), (lower, nested.numpy()[None, :])):
    for i, j in np.ndindex(values.shape):
        ax.text(j, i, f"{values[i, j]:.0f}", ha="center", va="center", color="white" if values[i, j] > 8 else "black")
lower.set_yticks([])
plt.show()

# %% [markdown]
# ## 3. Penalise the input gradient
#
# How much can a small change of the input change a differentiable loss $L$? To first order, at most its length times the norm of
# $\partial L/\partial x$. Let training keep that norm small.
#
# The norm contains a gradient, and the training step differentiates it once more, with respect to the *parameters*: **double backpropagation**
# (Drucker and LeCun, 1992). Batch 7, inputs 5, outputs 10:

# %%
inputs = tf.random.normal((7, 5))
layer = tf.keras.layers.Dense(10)
layer.build(inputs.shape)
layer.bias.assign(tf.random.normal((10,)))

with tf.GradientTape() as outer:
    with tf.GradientTape(watch_accessed_variables=False) as inner:
        inner.watch(inputs)  # the inner tape is there for the inputs alone
        loss = tf.reduce_sum(layer(inputs) ** 2)
    g1 = inner.gradient(loss, inputs)
    g1_norm = tf.norm(g1)

dkernel, dbias = outer.gradient(g1_norm, layer.trainable_variables)
print("input gradient: ", g1.shape, "  its norm:", g1_norm.shape)
print("d norm/d kernel:", dkernel.shape)
print("d norm/d bias:  ", dbias.shape)

# %% alt="Computation graph. A graph that runs downwards. The kernel enters twice: at a matrix product marked layer(inputs), near the top, and by a long arrow down the side at a second matrix product marked inner.gradient(loss, inputs). The bias enters once, at the top. From the second product the graph goes on through a square and a sum to the squared norm." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the outer tape's record
kernel, bias = layer.kernel, layer.bias
with ExplainTape() as recorded:
    with tf.GradientTape(watch_accessed_variables=False) as inner:
        inner.watch(inputs)
        loss = tf.reduce_sum(layer(inputs) ** 2)
    gradient = inner.gradient(loss, inputs)
    squared_norm = tf.reduce_sum(gradient**2)

draw(recorded, squared_norm, [kernel, bias])
plt.show()

# %% [markdown]
# The outer tape's record, for the squared norm. The inner tape does not watch the kernel, and the outer gradient exists all the same.
# The input gradient is $2\,(xW + b)\,W^{\mathsf T}$: the kernel enters twice, at `layer(inputs)` and at `inner.gradient`, the bias once.
#
# Two traps. First, let the loss be the plain sum of the layer's outputs.
#
# **Predict.** What is now the gradient of the norm with respect to the bias?

# %%
exercises.bias_alone.guess(...)  # "zero", "None" or "ones"


# %%
def penalty_gradients(loss_of, size=tf.norm):
    """The size of the input gradient, and its gradients with respect to the kernel and the bias."""
    with tf.GradientTape() as outer:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(inputs)
            loss = loss_of(layer(inputs))
        value = size(inner.gradient(loss, inputs))
    return value, *outer.gradient(value, [layer.kernel, layer.bias])


_, only_dkernel, no_dbias = penalty_gradients(tf.reduce_sum)
print("d norm/d kernel:", only_dkernel.shape)
print("d norm/d bias:  ", no_dbias)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.bias_alone.reveal("None" if no_dbias is None else "something else")

assert no_dbias is None
assert tf.function(lambda: penalty_gradients(tf.reduce_sum)[2])() is None  # compiled, too
with tf.GradientTape() as outer:  # zeros, where the model itself is a tf.function
    with tf.GradientTape(watch_accessed_variables=False) as inner:
        inner.watch(inputs)
        loss = tf.reduce_sum(tf.function(layer)(inputs))
    size = tf.norm(inner.gradient(loss, inputs))
np.testing.assert_array_equal(outer.gradient(size, bias), np.zeros(10))
sums = tf.reduce_sum(layer.kernel, axis=1)  # of the kernel's columns: the norm is √7 times their length
np.testing.assert_allclose(only_dkernel, np.sqrt(7) * np.repeat(sums / tf.norm(sums), 10).reshape(5, 10), rtol=1e-4)

# The loss with squares: the input gradient, and the derivatives of its norm.
assert [g1.shape, g1_norm.shape] == [(7, 5), ()]
assert [dkernel.shape, dbias.shape] == [(5, 10), (10,)]
np.testing.assert_allclose(g1, 2 * (inputs @ kernel + bias) @ tf.transpose(kernel), rtol=1e-4, atol=1e-4)
x64, b64 = inputs.numpy().astype(np.float64), bias.numpy().astype(np.float64)
gradcheck.check_gradient(lambda w: np.linalg.norm(2 * (x64 @ w + b64) @ w.T), dkernel, kernel.numpy(), rtol=1e-5)
w64 = kernel.numpy().astype(np.float64)
gradcheck.check_gradient(lambda b: np.linalg.norm(2 * (x64 @ w64 + b) @ w64.T), dbias, bias.numpy(), rtol=1e-5)

# %% [markdown]
# The seven rows of the input gradient are now alike: the sum of the kernel's columns, without input or bias. No path leads from the norm to the bias,
# and that is `None`. Section 4 adds the ordinary loss, and a bias gets its gradient there.
#
# Second, a dead ReLU. `dead_loss` lets no output through: the input gradient is exactly zero, the least that its norm can be.
#
# **Predict.** What is the gradient of the *norm* at this best point?

# %%
exercises.dead_norm.guess(...)  # "zero", "NaN", "None" or "infinite"


# %%
def dead_loss(outputs):
    return tf.reduce_sum(tf.nn.relu(outputs - 1000.0) ** 2)


norm, of_norm, _ = penalty_gradients(dead_loss)
print("the norm:", norm.numpy())
print("NaN in its gradient:", int(np.isnan(of_norm).sum()), "of", int(tf.size(of_norm)))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.dead_norm.reveal("NaN" if np.isnan(of_norm).all() else "something else")

assert norm.numpy() == 0.0
assert np.isnan(of_norm).all()
value, of_value, _ = penalty_gradients(dead_loss, size=lambda g: tf.reduce_sum(g**2))
assert value.numpy() == 0.0
np.testing.assert_array_equal(of_value, np.zeros((5, 10)))
_, of_root, _ = penalty_gradients(dead_loss, size=lambda g: (tf.norm(g) - 1.0) ** 2)
assert np.isnan(of_root).all()
_, of_root, _ = penalty_gradients(dead_loss, size=lambda g: (tf.sqrt(tf.reduce_sum(g**2) + 1e-12) - 1.0) ** 2)
np.testing.assert_array_equal(of_root, np.zeros((5, 10)))

# %% [markdown]
# `tf.norm` took a square root, and the slope of $\sqrt u$ at $u = 0$ is infinite. The zero behind it makes $\infty \cdot 0$, which is NaN: one step
# of gradient descent would turn the whole kernel into NaN. A penalty such as $(\lVert g\rVert - 1)^2$ needs its root. Here, with $10^{-12}$ under it, its
# gradient is 0. The *squared* norm has no root:

# %%
squared, of_squared, _ = penalty_gradients(dead_loss, size=lambda g: tf.reduce_sum(g**2))
print("the squared norm:", squared.numpy())
print("largest element of its gradient:", np.abs(of_squared).max())

# %% [markdown]
# ### Exercise: A training step through a gradient (15 min)
#
# A linear model predicts $x_i \cdot w$ for each example, and its loss is the squared error $\ell_i = (x_i \cdot w - y_i)^2$. The training objective is the
# mean over the examples of
#
# $$\ell_i + \texttt{weight} \cdot \Bigl\lVert \frac{\partial \ell_i}{\partial x_i} \Bigr\rVert^2.$$
#
# Return its gradient with respect to `w`, by nested tapes. `w` has shape (inputs,), `x` (batch, inputs) and `y` (batch,). All are tensors;
# `weight` is a scalar.


# %%
def penalised_gradient(w, x, y, weight):
    losses = (tf.linalg.matvec(x, w) - y) ** 2  # one for each example
    return ...


exercises.penalty.check(penalised_gradient)

# %% [markdown]
# ## 4. Train with the penalty
#
# For each example $x_i$ with label $y_i$ take the cross-entropy $\ell_i$, and penalise its input gradient:
#
# $$\frac1n \sum_i \Bigl( \ell_i + \lambda \Bigl\lVert \frac{\partial \ell_i}{\partial x_i} \Bigr\rVert^2 \Bigr).$$
#
# Here the gradient of a sum is a help: in this model $x_i$ appears in $\ell_i$ only, so row $i$ of the gradient of $\sum_i \ell_i$ is
# $\partial \ell_i/\partial x_i$.
#
# The training step calls `input_gradients`, with the inner tape, inside its outer tape's block.


# %%
def input_gradients(model, x, labels):
    """The loss of each example, (batch,), and its gradient with respect to that example, the shape of x."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(x)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x))
    return losses, tape.gradient(losses, x)


def train(model, x, labels, weight, epochs, rate):
    """Train the model in place; `weight` is the penalty's."""
    steps = epochs * len(x) // 64
    optimizer = tf.keras.optimizers.Adam(tf.keras.optimizers.schedules.CosineDecay(rate, steps))
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(x, labels):
        with tf.GradientTape() as outer:
            losses, gradients = input_gradients(model, x, labels)
            squared_norms = tf.reduce_sum(gradients**2, axis=1)  # one for each example
            objective = tf.reduce_mean(losses + weight * squared_norms)
        parameters = model.trainable_variables
        optimizer.apply_gradients(zip(outer.gradient(objective, parameters), parameters, strict=True))

    examples = tf.data.Dataset.from_tensor_slices((x, labels)).shuffle(len(x), seed=seed)
    for batch in examples.repeat(epochs).batch(64, drop_remainder=True):
        step(*batch)


# %% [markdown]
# The data are two interleaved half-moons, so noisy that they overlap. Both networks start from the same weights. The colours show each network's probability; the black line is the **decision boundary**, where it is one half.


# %%
def make_model(inputs, hidden_layers, outputs):
    """A classifier that returns logits."""
    hidden = [tf.keras.layers.Dense(40, activation="tanh") for _ in range(hidden_layers)]
    return tf.keras.Sequential([tf.keras.Input((inputs,)), *hidden, tf.keras.layers.Dense(outputs)])


moons, moon_labels = make_moons(points, noise=0.35, random_state=seed)
moons = tf.constant(moons, tf.float32)

flat = {"plain": make_model(2, 2, 2), "penalised": make_model(2, 2, 2)}
flat["penalised"].set_weights(flat["plain"].get_weights())
train(flat["plain"], moons, moon_labels, weight=0.0, epochs=1000, rate=0.03)
train(flat["penalised"], moons, moon_labels, weight=penalty, epochs=1000, rate=0.03)

# %% alt="Two scatter plots over maps of the probability. Two panels with the same points of two interleaved half-moons, circles and squares. Left, the plain network: the black decision boundary bends sharply around single points, with the colours saturated on either side. Right, the penalised network: a smoother boundary runs between the moons, further from the points, with pale bands of intermediate probabilities in places." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the decision boundary, before and after
xs_, ys_ = np.meshgrid(np.linspace(-2, 3, 201), np.linspace(-1.8, 2.2, 201))
grid = np.stack([xs_.ravel(), ys_.ravel()], axis=1).astype(np.float32)


def nearest_tenth(model):
    """The distance from the boundary, on the grid, within which a tenth of the training points lie."""
    at_grid, at_points = np.argmax(model(grid), axis=1), np.argmax(model(moons), axis=1)
    pairs = zip(moons.numpy(), at_points, strict=True)
    return np.quantile([np.linalg.norm(grid[at_grid != k] - p, axis=1).min() for p, k in pairs], 0.1)


_, axes = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained", sharey=True)
margins = {name: nearest_tenth(model) for name, model in flat.items()}
for ax, (name, model) in zip(axes, flat.items(), strict=True):
    probability = tf.nn.softmax(model(grid))[:, 1].numpy().reshape(xs_.shape)
    image = ax.contourf(xs_, ys_, probability, levels=np.linspace(0, 1, 11), cmap="RdBu_r", alpha=0.45)
    ax.contour(xs_, ys_, probability, levels=[0.5], colors="black", linewidths=2)
    for label, marker, colour in ((0, "o", plots.BLUE), (1, "s", "#A03000")):
        ax.plot(*moons.numpy()[moon_labels == label].T, marker, color=colour, markeredgecolor="white", markersize=6)
    ax.set(title=f"{name}: a tenth of the points lie\nwithin {margins[name]:.2f} of the boundary", xlabel="first input")
axes[0].set_ylabel("second input")
axes[0].figure.colorbar(image, ax=axes, label="probability of a square", ticks=[0, 0.5, 1])
plt.show()

# %% [markdown]
# The plain network bends its boundary around single points, and passes close to them: a short step changes the answer. The
# penalised one gives up a few of those points and keeps more distance. On a thousand new points it is far less steep, and about as accurate:

# %% tags=["nbval-ignore-output"]
new_points, new_labels = make_moons(1000, noise=0.35, random_state=seed + 100)
new_points = tf.constant(new_points, tf.float32)

steepness, fresh = {}, {}
for name, model in flat.items():
    _, gradients = input_gradients(model, new_points, new_labels)
    steepness[name] = float(tf.reduce_mean(tf.norm(gradients, axis=1)))
    fresh[name] = np.mean(np.argmax(model(new_points), axis=1) == new_labels)
    print(f"{name:<9}  input gradient, mean norm: {steepness[name]:.2f}   accuracy: {fresh[name]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert margins["penalised"] > 1.25 * margins["plain"]
assert steepness["penalised"] < 0.7 * steepness["plain"]
assert fresh["penalised"] > fresh["plain"] - 0.05
right = {name: np.mean(np.argmax(model(moons), axis=1) == moon_labels) for name, model in flat.items()}
assert right["plain"] > right["penalised"] > 0.75
_, gradients = input_gradients(flat["plain"], moons, moon_labels)
_, alone = input_gradients(flat["plain"], moons[2:3], moon_labels[2:3])
np.testing.assert_allclose(alone[0], gradients[2], rtol=1e-3, atol=1e-6)  # no example influences another's loss

# %% [markdown]
# ## 5. A second derivative that is wrong
#
# Layer normalisation needs a variance. Here is the Hessian of the variance of three numbers, by `tf.nn.moments` and written out:


# %%
def hessian_of(variance):
    numbers = tf.constant([1.0, 2.0, 4.0])
    with tf.GradientTape() as outer:
        outer.watch(numbers)
        gradient = derivative(variance)(numbers)  # section 1
    return outer.jacobian(gradient, numbers)


stopped = hessian_of(lambda x: tf.nn.moments(x, [0])[1])
written_out = hessian_of(lambda x: tf.reduce_mean((x - tf.reduce_mean(x)) ** 2))

# %% alt="Two heat maps. Two 3 by 3 matrices. Left, by tf.nn.moments: 0.67 on the diagonal and 0 elsewhere. Right, with the variance written out: 0.44 on the diagonal and \u22120.22 elsewhere." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two Hessians of one variance
_, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
titles = ("tf.nn.moments: the mean is held still", "written out: the mean moves along")
for ax, values, title in zip(axes, (stopped.numpy(), written_out.numpy()), titles, strict=True):
    plots.matrix(values, title=title, xlabel="element", ylabel="element", ax=ax, limit=1, colorbar=False)
    for i, j in np.ndindex(values.shape):
        ax.text(j, i, f"{values[i, j] + 0.0:.2f}", ha="center", va="center")
plt.suptitle("The Hessian of the variance of three numbers")
plt.show()

# %% [markdown]
# Add the same amount to all three: the variance stays, and so does its gradient. So each row of the Hessian must add up to 0. On the left none
# does, and there is no error and no warning.
#
# The cause is one line in `tf.nn.moments`. It computes the variance as
#
# $$v = \frac1n \sum_i \bigl(x_i - \operatorname{stop}(\bar x)\bigr)^2,$$
#
# with `tf.stop_gradient` on the mean. That leaves out of the first derivative a multiple of $\sum_i (x_i - \bar x) = 0$. But in what is left,
# $\frac2n (x_i - \bar x)$, the mean is stopped too. It depends on all $x_j$, and the second derivative needs that.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(stopped, 2 / 3 * np.eye(3), atol=1e-6)
np.testing.assert_allclose(written_out, 2 / 3 * (np.eye(3) - 1 / 3), atol=1e-6)
np.testing.assert_allclose(hessian_of(tf.math.reduce_variance), written_out, atol=1e-6)

# %% [markdown]
# Keras' `LayerNormalization` calls `tf.nn.moments`. The *critic* of a Wasserstein GAN gives each sample a score. Gulrajani and others (2017) penalise the
# score's input gradient, and recommend layer normalisation. Here is a small critic, in float64: a kernel, layer normalisation, softplus, and a
# weighted sum. The penalty is the squared norm of the input gradient of seven samples' summed score.

# %%
generator = np.random.default_rng(seed)
samples = tf.constant(generator.normal(size=(7, 5)))
kernel = tf.constant(generator.normal(size=(5, 3)))
readout = tf.constant(generator.normal(size=(3, 1)))


def score(normalise, samples, kernel):
    return tf.reduce_sum(tf.nn.softplus(normalise(samples @ kernel)) @ readout)


def penalty_and_gradient(normalise, kernel):
    with tf.GradientTape() as outer:
        outer.watch(kernel)
        with tf.GradientTape() as inner:
            inner.watch(samples)
            y = score(normalise, samples, kernel)
        size = tf.reduce_sum(inner.gradient(y, samples) ** 2)
    return size, outer.gradient(size, kernel)


# %% [markdown]
# **Predict.** How far is the tape's gradient from central differences of the penalty: "less than 0.001 %", "more than 1 %" or "the tape has no second derivative"?

# %%
exercises.off_by.guess(...)  # one of the three, in quotes


# %%
def differences(normalise):
    """The penalty's gradient with respect to the kernel, by central differences."""
    return gradcheck.numerical_jacobian(lambda k: penalty_and_gradient(normalise, tf.constant(k))[0], kernel)


layer_norm = tf.keras.layers.LayerNormalization(dtype="float64")
_, by_tape = penalty_and_gradient(layer_norm, kernel)
true = differences(layer_norm)
off = np.linalg.norm(by_tape - true) / np.linalg.norm(true)
print("first row by the tape:   ", np.round(by_tape[0], 3))
print("first row by differences:", np.round(true[0], 3))
print(f"relative error: {100 * off:.1f} %")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.off_by.reveal("more than 1 %" if off > 0.01 else "something else")

assert off > 0.01
with tf.GradientTape() as tape:
    tape.watch(kernel)
    y = score(layer_norm, samples, kernel)
first_by_differences = gradcheck.numerical_jacobian(lambda k: score(layer_norm, samples, tf.constant(k)), kernel)
np.testing.assert_allclose(tape.gradient(y, kernel), first_by_differences, rtol=1e-7, atol=1e-8)

# %% [markdown]
# Wrong again, without a warning. The *first* derivative through this layer is right. The next check finds second derivatives through
# `GroupNormalization(1)` and `BatchNormalization` with `training=True` wrong, too. [A table](../ci/derivative_audit/RESULTS.md) lists more.
#
# The cure is to write the variance out, or to call `tf.math.reduce_variance`. Section 7 keeps the Keras layer.


# %%
def normalise(x):
    """Layer normalisation, with a variance that can be differentiated twice."""
    centred = x - tf.reduce_mean(x, axis=1, keepdims=True)
    variance = tf.reduce_mean(centred**2, axis=1, keepdims=True)
    return centred / tf.sqrt(variance + layer_norm.epsilon)


_, by_tape = penalty_and_gradient(normalise, kernel)
print("first row by the tape:   ", np.round(by_tape[0], 3))
print("first row by differences:", np.round(true[0], 3))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
group_norm, batch_norm = (
    kind(dtype="float64")
    for kind in (lambda dtype: tf.keras.layers.GroupNormalization(1, dtype=dtype), tf.keras.layers.BatchNormalization)
)
along = generator.normal(size=samples.shape)
for normaliser in (layer_norm, group_norm, lambda x: batch_norm(x, training=True)):
    slope_of_score = derivative(lambda at, normaliser=normaliser: score(normaliser, at, kernel))
    with tf.GradientTape() as outer:
        outer.watch(samples)
        slope = slope_of_score(samples)
    product = outer.gradient(slope, samples, output_gradients=tf.constant(along))
    wanted = (slope_of_score(samples + 1e-5 * along) - slope_of_score(samples - 1e-5 * along)) / 2e-5
    assert np.linalg.norm(product - wanted) > 0.01 * np.linalg.norm(wanted)

np.testing.assert_allclose(by_tape, true, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(normalise(samples @ kernel), layer_norm(samples @ kernel), rtol=1e-9)

# %% [markdown]
# ## 6. Going further: one row, one direction, one series
#
# For a single row of the Hessian, or one weighted sum of its rows, call `gradient`, with the weights as `output_gradients`:

# %%
with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
        inner.watch(x)
        y = f(x)
    gradient = inner.gradient(y, x)

row = outer.gradient(gradient, x, output_gradients=tf.constant([0.0, 1.0, 0.0]))
print("weights (0, 1, 0):", row.numpy())

# %% [markdown]
# This is the middle row of the matrix in section 2. With other weights $v$ you get $v^{\mathsf T} H$, which is $Hv$ as $H$ is symmetric: a
# **Hessian–vector product**. [12](12_forward_mode.ipynb) computes it another way, and [14](14_without_the_matrix.ipynb) builds on it.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(row, hessian[1], rtol=1e-6)
np.testing.assert_allclose(row, [2.0, 6.0, 4.0], rtol=1e-6)

# %% [markdown]
# ### Exercise: The curvature along a direction (10 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Walk from $x$ along $v$ and look at the value: $\varphi(t) = f(x + t\,v)$, a function of one variable. Its second derivative at $t = 0$ says how the
# walk curves. Return that number, a scalar tensor of the dtype of `x`. `f`, smooth and not linear, takes a tensor of shape $(n,)$ to a scalar; `x` and `v` are tensors of shape $(n,)$,
# and $v$ need not have length 1. Two calls of `gradient` are enough; do not build the Hessian.


# %%
def curvature(f, x, v):
    return ...  # the second derivative of t -> f(x + t v) at t = 0


exercises.curvature.check(curvature)

# %% [markdown]
# ### Exercise: A Taylor series from nested tapes (8 min)
#
# Write `taylor(f, x, h, order)`, the Taylor polynomial of `f` around `x`:
#
# $$f(x) + f'(x)\,h + \frac{f''(x)}{2!}\,h^2 + \dots + \frac{f^{(n)}(x)}{n!}\,h^n, \qquad n = \texttt{order}.$$
#
# `f`, smooth and no polynomial, works element by element, on a tensor `x` of any shape; the result has the shape of `x`. `h` is a scalar tensor, and `order` an integer of 1 or more.


# %%
def derivative(f):
    def df(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    return df


def taylor(f, x, h, order):
    return ...  # f(x) + f'(x) h + f''(x) h² / 2 + …, the last term with the derivative of that order


exercises.taylor.check(taylor)

# %% [markdown]
# ## 7. Going further: keep the Keras layer
#
# `value_and_gradient` of `tapelab.derivatives` evaluates the score below without the stop in `moments`. It returns the value and a gradient, which
# the outer tape differentiates.

# %%
with tf.GradientTape() as outer:
    outer.watch(kernel)
    slopes = derivatives.value_and_gradient(lambda samples, kernel: score(layer_norm, samples, kernel))
    size = tf.reduce_sum(slopes(samples, kernel)[1] ** 2)
by_helper = outer.gradient(size, kernel)
print("first row by the helper: ", np.round(by_helper[0], 3))
print("first row by differences:", np.round(true[0], 3))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(by_helper, true, rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## 8. Check it independently
#
# For the function of section 2, take central differences of the gradient in closed form.
#
# For the training objective of section 4 take $h = \tanh(xW_1 + b_1)$, probabilities $p$ and one-hot labels $y$. The input gradient is
# $\bigl((p - y)\,W_2^{\mathsf T} \odot (1 - h^2)\bigr)\,W_1^{\mathsf T}$. NumPy computes the objective from it in float64, and its central
# differences agree with the nested tapes.


# %%
def gradient_of_f(x):
    return np.array([2 * x[0] * x[1], x[0] ** 2 + 2 * x[1] * x[2], x[1] ** 2])


expected = gradcheck.numerical_jacobian(gradient_of_f, [1.0, 2.0, 3.0])
print(np.round(expected, 4) + 0.0)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(hessian, expected, rtol=1e-6, atol=1e-6)
np.testing.assert_allclose(hessian, [[4.0, 2.0, 0.0], [2.0, 6.0, 4.0], [0.0, 4.0, 0.0]], rtol=1e-6)
np.testing.assert_allclose(nested, expected.sum(axis=0), rtol=1e-6)

few, few_labels = moons[:7], moon_labels[:7]
x64, one_hot = few.numpy().astype(np.float64), np.eye(2)[few_labels]
untrained = make_model(2, 1, 2)
weights = [2 * value for value in untrained.get_weights()]  # doubled, so that no part of the gradient is tiny
untrained.set_weights(weights)


def numpy_objective(flat_weights):
    """The objective in float64; `flat_weights` holds kernel, bias, kernel, bias, one after the other."""
    edges = np.cumsum([value.size for value in weights])[:-1]
    parts = np.split(flat_weights, edges)
    W1, b1, W2, b2 = (part.reshape(value.shape) for part, value in zip(parts, weights, strict=True))
    h = np.tanh(x64 @ W1 + b1)
    p = np.exp(h @ W2 + b2)
    p /= p.sum(axis=1, keepdims=True)
    input_gradient = ((p - one_hot) @ W2.T * (1 - h**2)) @ W1.T
    return np.mean(-np.log((p * one_hot).sum(axis=1)) + penalty * (input_gradient**2).sum(axis=1))


with tf.GradientTape() as outer:
    losses, gradients = input_gradients(untrained, few, few_labels)
    objective = tf.reduce_mean(losses + penalty * tf.reduce_sum(gradients**2, axis=1))
found = outer.gradient(objective, untrained.trainable_variables)

flat_weights = np.concatenate([value.ravel() for value in weights])
flat_gradient = np.concatenate([np.ravel(gradient) for gradient in found])
gradcheck.check_gradient(numpy_objective, flat_gradient, flat_weights, rtol=1e-5)
np.testing.assert_allclose(float(objective), numpy_objective(flat_weights.astype(np.float64)), rtol=1e-4)

# %% [markdown]
# ## Recap
#
# - Put the inner block and its `gradient` call inside the outer block, and watch a tensor on both tapes (section 1).
# - With three inputs the gradient of the gradient was three numbers, the column sums of the Hessian. The Hessian is the Jacobian of the gradient (section 2).
# - Double backpropagation: the inner tape watches the input alone, the outer tape differentiates the size of its gradient (sections 3 and 4).
# - `tf.nn.moments` stops the gradient of the mean in its variance: through Keras' `LayerNormalization` the gradient of an input-gradient penalty was wrong, without a warning (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | the inner `gradient` call outside the outer block | `None`, or the loss's gradient without the penalty's | move the call and its inner block inside |
# | a tensor from outside, watched by the inner tape only | a second derivative of `None` | `watch` it on both |
# | `x**2` differentiated three times, at 0 | NaN | `x * x` |
# | nested gradients taken for a Hessian | the Hessian's column sums | `jacobian` of the gradient |
# | no path leads from the penalty to a bias | `None` (zeros where the model itself is a `tf.function`) | add the ordinary loss |
# | `tf.norm` of an input gradient that is zero | NaN in the kernel's gradient | penalise the squared norm |
# | an input-gradient penalty through Keras' `LayerNormalization` | a wrong gradient of the kernel before it, and no warning | write the variance out, or `value_and_gradient` of `tapelab.derivatives` |
#
# **Further reading**
#
# - TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff#higher-order_gradients): higher-order gradients, input gradient regularisation.
# - H. Drucker and Y. LeCun, 1992, ["Improving Generalization Performance Using Double Backpropagation"](https://doi.org/10.1109/72.165600): the penalty of section 4.
# - I. Gulrajani, F. Ahmed, M. Arjovsky, V. Dumoulin and A. Courville, 2017, ["Improved Training of Wasserstein GANs"](https://arxiv.org/abs/1704.00028): a penalised critic.
#
# **Read next:** [11 Jacobians](11_jacobians.ipynb) keeps every output apart instead of adding them up.
