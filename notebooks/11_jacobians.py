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
# # Jacobians
#
# Ask a tape for the gradient of the two outputs below, and you learn how their *sum* depends on each input. A Jacobian keeps the outputs apart.
# **How does each output depend on each input, and what does it cost to know?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/11_jacobians.ipynb)
#
# **Prerequisites:** [10 Higher-order gradients](10_higher_order_gradients.ipynb) · **Minutes:** 22 to read, 4 more to go further, 34 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
points = 201  # points of the curve in section 2: between 51 and 401
batch = 7  # examples: between 3 and 12
inputs = 5  # features of an example: between 3 and 8
outputs = 10  # units of the layer in sections 3 to 5: between 4 and 12
width = 1024  # units of the square layer that section 5 times: between 768 and 1536
hidden = 4096  # hidden units of the network in section 9: between 1024 and 8192

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import time

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import jacobians as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)


# %%
def f(point):
    """Two inputs, two outputs."""
    a, b = tf.unstack(point)
    return tf.stack([a * b, a + 3.0 * b])


point = tf.constant([2.0, 5.0])
with tf.GradientTape(persistent=True) as tape:
    tape.watch(point)
    y = f(point)

gradient_of_sum = tape.gradient(y, point)
print("outputs: ", y.numpy())
print("gradient:", gradient_of_sum.numpy())

# %% [markdown]
# Two outputs, two inputs, and two numbers: raise `a` a little, and the sum of the outputs rises six times as much. Which output rises, and how much?
# Take a small step in every direction, and see where the outputs go.

# %% alt="Two vector diagrams. Two panels at one scale. Left, the plane of the inputs: a unit circle with twelve dots, one marked a alone, one marked b alone. Right, the plane of the outputs: the same dots lie on a long, tilted ellipse." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: small steps in, changes out
reach = 0.01  # the steps' length; both panels are magnified by its inverse
angles = np.linspace(0, 2 * np.pi, 97)
steps = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
changes = np.stack([(f(point + reach * step) - f(point)) / reach for step in steps])

_, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
for ax, path, title, names in (
    (axes[0], steps, "Small steps of the inputs: a circle …", ("a", "b")),
    (axes[1], changes, "… and what f makes of them: an ellipse", ("ab", "a + 3b")),
):
    ax.axhline(0, color=plots.GREY, linewidth=0.6)
    ax.axvline(0, color=plots.GREY, linewidth=0.6)
    ax.plot(*path.T, color=plots.BLUE)
    ax.plot(*path[:-1:8].T, "o", color=plots.BLUE, markersize=4)
    for index, marker, colour, name in ((0, "s", plots.RED, "a alone"), (24, "D", plots.GREEN, "b alone")):
        ax.plot(*path[index], marker, color=colour, markersize=8)
        ax.annotate(name, path[index], xytext=(8, 6), textcoords="offset points", color=colour)
    ax.set(title=title, xlim=(-7.7, 7.7), ylim=(-5.1, 5.1), aspect="equal")
    ax.set(xlabel=f"change of {names[0]}, in step lengths", ylabel=f"change of {names[1]}, in step lengths")
plt.show()

# %% [markdown]
# The small circle has become, very nearly, an ellipse. Four numbers say which ellipse, and which dot lands where: the
# function's *Jacobian* at the point.
#
# **You will be able to**
#
# - push a tangent forwards through a Jacobian, and pull a cotangent back (section 1),
# - name the axes of a Jacobian, for one source or several (sections 2 to 4),
# - predict the passes and bytes that a Jacobian takes (sections 5 and 6),
# - test a Jacobian with one product, and find one that is wrong (section 7).

# %% [markdown]
# ## 1. A linear map
#
# Near a point, a differentiable function acts on small steps $v$ as a matrix does, $f(x + v) \approx f(x) + Jv$. That matrix is the
# Jacobian,
#
# $$J_{ij} = \frac{\partial y_i}{\partial x_j},$$
#
# with one row for each output and one column for each input. The function is $(a, b) \mapsto (ab,\ a + 3b)$, the point $(2, 5)$.
#
# **Predict.** Which number stands in the upper right of $J$?

# %%
exercises.upper_right.guess(...)  # a number in place of the dots

# %%
J = tape.jacobian(y, point)
print(J.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.upper_right.reveal(J[0, 1])
np.testing.assert_array_equal(J, [[5.0, 2.0], [1.0, 3.0]])
np.testing.assert_array_equal(gradient_of_sum, np.sum(J, axis=0))  # 6 = 5 + 1
np.testing.assert_allclose(changes, steps @ np.transpose(J), atol=0.02)  # the ellipse is J's
np.testing.assert_allclose(changes[[0, 24]], [[5.0, 1.0], [2.0, 3.0]], atol=0.02)  # a alone, b alone
np.testing.assert_allclose(np.linalg.norm(np.linalg.solve(J, changes.T), axis=0), 1.0, atol=0.02)

# %% [markdown]
# The first row belongs to the first output: $\partial(ab)/\partial a = b = 5$, then $\partial(ab)/\partial b = a = 2$. The gradient's 6 is the sum of
# the first column. In the picture the columns are where the steps of `a` alone and of `b` alone land.
#
# **Forwards.** A *tangent* $v$ is a direction in which the inputs move. The **Jacobian–vector product** $Jv$ (JVP, or pushforward) is how the outputs
# then move. A `ForwardAccumulator` carries it along; take it on trust until [12](12_forward_mode.ipynb).

# %%
v = tf.constant([0.8, 0.6])  # as many numbers as inputs

with tf.autodiff.ForwardAccumulator(primals=point, tangents=v) as accumulator:
    y = f(point)

Jv = accumulator.jvp(y)
print("Jv:", Jv.numpy().round(4))

# %% [markdown]
# **Backwards.** A *cotangent* $u$ weights the outputs: it makes the scalar $u \cdot y$ of them. The **vector–Jacobian product** $u^\top J$ (VJP, or
# pullback) is that scalar's gradient: one backward pass.

# %%
u = tf.constant([0.6, -0.8])  # as many numbers as outputs

with tf.GradientTape() as tape:
    tape.watch(point)
    y = f(point)

uJ = tape.gradient(y, point, output_gradients=u)
print("uJ:    ", uJ.numpy().round(4))
print("u · Jv:", tf.tensordot(u, Jv, 1).numpy().round(4))
print("uJ · v:", tf.tensordot(uJ, v, 1).numpy().round(4))

# %% [markdown]
# The last two numbers are equal, since $u^\top J v$ may be multiplied from either end:
#
# $$\langle u,\ Jv\rangle \;=\; u^\top J v \;=\; \langle J^\top u,\ v\rangle.$$
#
# One pushes $v$ to the outputs and weighs there, with $u$; the other pulls $u$ back to the inputs and weighs there.
#
# Tangents are solid, from left to right; cotangents are dashed, from right to left.

# %% alt="Two vector diagrams. Two panels at one scale. Left, the inputs: the unit circle with the tangent v, and a dashed ellipse with the arrow that u is pulled back to. Right, the outputs: the solid ellipse with Jv, and a dashed unit circle with u." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: v goes forwards, u comes back
circle = steps.T
_, axes = plt.subplots(1, 2, figsize=(9, 4.4), layout="constrained")
pictures = (
    (axes[0], circle, v, "v", np.transpose(J) @ circle, uJ, "Jᵀu", "Inputs: v starts here, Jᵀu arrives"),
    (axes[1], J.numpy() @ circle, Jv, "Jv", circle, u, "u", "Outputs: Jv arrives, u starts here"),
)
for ax, solid, tangent, forward_name, dashed, cotangent, backward_name, title in pictures:
    ax.plot(*solid, color=plots.BLUE)
    ax.plot(*dashed, "--", color=plots.RED)
    for arrow, name, colour in ((tangent, forward_name, plots.BLUE), (cotangent, backward_name, plots.RED)):
        end = np.asarray(arrow)
        ax.annotate(
            "", end, (0, 0), arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 2, "shrinkA": 0, "shrinkB": 0}
        )
        ax.text(*(end + 0.7 * end / np.linalg.norm(end)), name, color=colour, ha="center", va="center", fontsize=13)
    ax.set(title=title, xlim=(-7.7, 7.7), ylim=(-5.1, 5.1), aspect="equal")
axes[0].set(xlabel="a", ylabel="b")
axes[1].set(xlabel="ab", ylabel="a + 3b")
plt.show()

# %% [markdown]
# | | forwards | backwards |
# |---|---|---|
# | product | Jacobian–vector, $Jv$ | vector–Jacobian, $u^\top J$ |
# | you give | a tangent, of the input's shape | a cotangent, of the output's shape |
# | you get | the output's shape | the input's shape |
# | TensorFlow | `ForwardAccumulator(x, v)`, then `.jvp(y)` | `tape.gradient(y, x, output_gradients=u)` |
# | with a unit vector | one **column** of $J$ | one **row** of $J$ |
#
# Here both run through the operations of $f$, with $3b$ as a node of its own:

# %% alt="Computation graph. A graph from a and b on the left through 3b to ab and a plus 3b on the right. Each link carries its local derivative. In each node a tangent, marked with an arrow to the right, stands above a cotangent, marked with an arrow to the left." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: tangents forwards, cotangents back
a, b = tf.unstack(point)
with tf.GradientTape() as tape, tf.autodiff.ForwardAccumulator([a, b], tf.unstack(v)) as accumulator:
    tape.watch([a, b])
    product = a * b
    triple = 3.0 * b
    total = a + triple

nodes = [a, b, triple, product, total]
tangents = accumulator.jvp(nodes)
cotangents = tape.gradient([product, total], nodes, output_gradients=tf.unstack(u))

names = ["a", "b", "3b", "ab", "a + 3b"]
where = np.array([[0, 2.0], [0, 0.0], [1.5, 0.0], [3, 2.0], [3, 0.0]])
links = [(0, 3, b, 0.25), (1, 3, a, 0.25), (1, 2, 3.0, 0.5), (0, 4, 1.0, 0.25), (2, 4, 1.0, 0.5)]

_, ax = plt.subplots(figsize=(9, 4), layout="constrained")
for start, end, local, along in links:
    ax.plot(*where[[start, end]].T, color=plots.GREY, zorder=1)
    ax.text(*(where[start] + along * (where[end] - where[start])), f"×{float(local):g}", ha="center", va="center",
            backgroundcolor="white", zorder=2)  # fmt: skip
for (x_at, y_at), name, tangent, cotangent in zip(where, names, tangents, cotangents, strict=True):
    ax.scatter(x_at, y_at, s=6200, color="white", edgecolor="black", zorder=3)
    ax.text(x_at, y_at + 0.24, name, ha="center", va="center", weight="bold", zorder=4)
    ax.text(
        x_at, y_at, f"→ {float(tangent):.1f}".replace("-", "−"), color=plots.BLUE, ha="center", va="center", zorder=4
    )
    ax.text(
        x_at,
        y_at - 0.24,
        f"← {float(cotangent):.1f}".replace("-", "−"),
        color=plots.RED,
        ha="center",
        va="center",
        zorder=4,
    )
ax.set(title="Tangents run forwards (→), cotangents run back (←), over the same local derivatives")
ax.set(xlim=(-0.55, 3.55), ylim=(-0.75, 2.75))
ax.set_axis_off()
plt.show()

# %% [markdown]
# Both multiply along a path and add where paths meet. Forwards, `ab` receives $5 \cdot 0.8 + 2 \cdot 0.6 = 5.2$. Backwards, `b` receives
# $2 \cdot 0.6 + 3 \cdot (-0.8) = -1.2$.
#
# With random $u$ and $v$, $\langle u, Jv\rangle = \langle J^\top u, v\rangle$ tests a backward rule that you wrote yourself: the **dot-product test**. Take
# its $Jv$ from *values*: an accumulator can use the wrong rule as well, and agree. Of two rules for $x^3$ the second is wrong. Halve $h$, and its gap
# stays:


# %%
def gap(f, x, u, v, h):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    Jv = (f(x + h * v) - f(x - h * v)) / (2 * h)
    return tf.reduce_sum(u * Jv) - tf.reduce_sum(tape.gradient(y, x, output_gradients=u) * v)


right = tf.custom_gradient(lambda x: (x**3, lambda upstream: 3 * x**2 * upstream))
wrong = tf.custom_gradient(lambda x: (x**3, lambda upstream: 3 * x * upstream))
draws = tf.constant(np.random.default_rng(seed).normal(size=(3, 5)))  # float64; x, u and v
for name, rule in {"3x²": right, "3x": wrong}.items():
    print(f"{name:<3}", *(f"{gap(rule, *draws, h):10.6f}" for h in (0.01, 0.005)))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(Jv, np.asarray(J) @ np.asarray(v), rtol=1e-6)
np.testing.assert_allclose(uJ, np.asarray(u) @ np.asarray(J), rtol=1e-6)
np.testing.assert_allclose([np.dot(u, Jv), np.dot(uJ, v)], 1.04, rtol=1e-5)
np.testing.assert_allclose(tangents, [0.8, 0.6, 1.8, 5.2, 2.6], rtol=1e-5)
np.testing.assert_allclose(cotangents, [2.2, -1.2, -0.8, 0.6, -0.8], rtol=1e-5)
pairs = np.multiply(tangents, cotangents)
np.testing.assert_allclose([pairs[:2].sum(), pairs[3:].sum()], 1.04, rtol=1e-5)
through_triple = 1.8 * -0.8 + 0.8 * 1.0 * -0.8 + pairs[3]  # a cut in the middle: 3b, the link from a, and ab
np.testing.assert_allclose(through_triple, 1.04, rtol=1e-5)
wrong_square = tf.function(tf.custom_gradient(lambda x: (x**2, lambda upstream: 3.0 * upstream)))  # 2x would be right
with tf.GradientTape() as check_tape, tf.autodiff.ForwardAccumulator(primals=point, tangents=v) as check_accumulator:
    check_tape.watch(point)
    check_y = wrong_square(point)
pulled = np.dot(check_tape.gradient(check_y, point, output_gradients=u), v)
np.testing.assert_allclose(np.dot(u, check_accumulator.jvp(check_y)), pulled, atol=1e-6)  # blind to the fault
for check_u, check_expected in ((tf.constant([1.0, 10.0]), 43.0), ([1.0, 10.0], 7.0), ([10.0, 1.0], 70.0)):
    check_factor = tf.Variable(2.0)
    with tf.GradientTape() as check_tape:
        check_y = check_factor * [3.0, 4.0]
    assert check_tape.gradient(check_y, check_factor, output_gradients=check_u) == check_expected
np.testing.assert_allclose(gap(right, *draws, 0.005) / gap(right, *draws, 0.01), 0.25, rtol=1e-3)
np.testing.assert_allclose(gap(wrong, *draws, 0.005) / gap(wrong, *draws, 0.01), 1.0, rtol=0.05)
assert abs(np.dot(u, np.transpose(J) @ np.asarray(v)) - np.dot(uJ, v)) > 0.1  # a transposed Jacobian of the right shape

# %% [markdown]
# ## 2. A scalar source
#
# You want the derivative of the sigmoid at 201 points at once. Give all points one common knob: with $y_k = \sigma(x_k + \delta)$,
# $\partial y_k/\partial\delta$ at $\delta = 0$ is $\sigma'(x_k)$.
#
# **Predict.** The target `y` has shape (201,), the source is a scalar. What is the shape of `tape.jacobian(y, delta)`?

# %%
exercises.scalar_source.guess(...)  # a tuple in place of the dots

# %%
x = tf.linspace(-10.0, 10.0, points)
delta = tf.Variable(0.0)

with tf.GradientTape(persistent=True) as tape:
    y = tf.sigmoid(x + delta)

summed = tape.gradient(y, delta)
dy_dx = tape.jacobian(y, delta)
print("gradient:", summed.shape, summed.numpy().round(3))
print("jacobian:", dy_dx.shape)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.scalar_source.reveal(dy_dx.shape)
assert summed.shape == ()
assert dy_dx.shape == y.shape == (points,)
np.testing.assert_allclose(tf.reduce_sum(dy_dx), summed, rtol=1e-5)
np.testing.assert_allclose(dy_dx, y * (1.0 - y), rtol=1e-5, atol=1e-7)
assert abs(float(x[np.argmax(dy_dx)])) <= 20.0 / (points - 1)  # the peak is at 0, as near as the points allow
assert 0.249 < np.max(dy_dx) < 0.25 + 1e-6

# %% [markdown]
# The scalar `delta` has no axes, and the result has those of `y`; `gradient` returned the sum of the 201 entries. Each is
# $\sigma' = \sigma\,(1 - \sigma)$.

# %% alt="Line plot. An S-shaped solid curve, the sigmoid, rises from 0 to 1 between -10 and 10; a dashed bell-shaped curve, its derivative, peaks at 0.25 where x is 0."
title = "The sigmoid's slope peaks at 0.25"
plots.curve_with_derivative(x, y, dy_dx, title=title, label="sigmoid(x)")
plt.show()

# %% [markdown]
# ## 3. A tensor source
#
# A kernel has axes of its own. In the result of `tape.jacobian` the **target's axes come first, then the source's**.
#
# A batch of 7 examples with 5 features goes through 10 units: the output has shape (7, 10), the kernel (5, 10).
#
# **Predict.** What is the shape of the Jacobian of the output with respect to the kernel?

# %%
exercises.kernel_shape.guess(...)  # a tuple in place of the dots

# %%
x = tf.random.normal((batch, inputs))
layer = tf.keras.layers.Dense(outputs, activation="tanh")

with tf.GradientTape(persistent=True) as tape:
    y = layer(x)

jacobian = tape.jacobian(y, layer.kernel)
print("output:  ", y.shape)
print("kernel:  ", layer.kernel.shape)
print("jacobian:", jacobian.shape, "=", int(tf.size(jacobian)), "entries")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.kernel_shape.reveal(jacobian.shape)
assert y.shape == (batch, outputs)
assert layer.kernel.shape == (inputs, outputs)
assert jacobian.shape == (batch, outputs, inputs, outputs)
closed_form = np.einsum("no,ni,ok->noik", 1.0 - y**2, x, np.eye(outputs))
np.testing.assert_allclose(jacobian, closed_form, rtol=1e-4, atol=1e-6)

# %% [markdown]
# The target's (7, 10), then the source's (5, 10). Entry `jacobian[n, o, i, k]` says how unit `o`, on example `n`, depends on the
# kernel's element `[i, k]`.
#
# Sum this Jacobian over the *target's* axes, the first two, and you have the `gradient`:

# %% tags=["nbval-ignore-output"]
gradient = tape.gradient(y, layer.kernel)
from_jacobian = tf.reduce_sum(jacobian, axis=[0, 1])
difference = tf.reduce_max(tf.abs(from_jacobian - gradient))
print("gradient:          ", gradient.shape)
print("summed jacobian:   ", from_jacobian.shape)
print(f"largest difference: {difference:.0e}")

# %% [markdown]
# The difference is rounding.
#
# Unit `o` reads column `o` of the kernel and no other: nine in ten entries are zero. Here is the first example's part, one row for each unit:

# %% alt="Heat map. A wide matrix of 10 rows and 50 columns, white except for one diagonal line in each of its five blocks: in each block an output unit depends on its own kernel column alone." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: one example's Jacobian
ax = plots.matrix(
    tf.reshape(jacobian[0], (outputs, inputs * outputs)),
    title="A unit depends on its own kernel column alone: nine in ten entries are zero",
    xlabel="kernel element; one block for each feature, and within it the unit that it feeds",
    ylabel="output unit",
    ax=plt.subplots(figsize=(9, 2.6), layout="constrained")[1],
)
for edge in range(1, inputs):
    ax.axvline(edge * outputs - 0.5, color="black", linewidth=0.6)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert gradient.shape == from_jacobian.shape == (inputs, outputs)
np.testing.assert_allclose(from_jacobian, gradient, rtol=1e-5, atol=3e-6)
check_layer = tf.keras.layers.Dense(outputs, activation="tanh", dtype="float64")
with tf.GradientTape(persistent=True) as check_tape:
    check_y = check_layer(tf.cast(x, tf.float64))
check_jacobian = check_tape.jacobian(check_y, check_layer.kernel, experimental_use_pfor=False)
check_sum = tf.reduce_sum(check_jacobian, axis=[0, 1])
np.testing.assert_allclose(check_sum, check_tape.gradient(check_y, check_layer.kernel), rtol=0, atol=1e-13)
assert not np.any(jacobian.numpy()[:, ~np.eye(outputs, dtype=bool)[:, None, :].repeat(inputs, axis=1)])
assert np.count_nonzero(jacobian) <= jacobian.numpy().size / outputs  # one entry of every ten

# %% [markdown]
# ## 4. Several sources, several targets
#
# Ask for three variables at once: the layer's two, and `unused`, from which no path leads to `y`. Then ask for two targets.
#
# The first line below holds back a warning: outside a `tf.function` each of these calls of `jacobian` traces a new graph (section 9).

# %%
tf.get_logger().setLevel("ERROR")

unused = tf.Variable(tf.zeros((3, 4)))
sources = {"kernel": layer.kernel, "bias": layer.bias, "unused": unused}
jacobians = tape.jacobian(y, sources)
zeros = tape.jacobian(y, unused, unconnected_gradients="zero")

print("kernel:", jacobians["kernel"].shape)
print("bias:  ", jacobians["bias"].shape)
print("unused:", jacobians["unused"], "or", zeros.shape)

with tf.GradientTape() as tape:
    y = layer(x)
    size = tf.reduce_sum(y**2, axis=1)  # a second target, one number for each example

try:
    refused = tape.jacobian([y, size], layer.kernel)
except AttributeError as error:
    refused = f"{type(error).__name__}: {error}"
print(refused)

# %% [markdown]
# The result has the dictionary's keys. For `unused` it is `None`, or zeros of the full shape if you ask for them.
#
# A list of targets is refused. Call `jacobian` once for each, on a persistent tape. Or flatten and concatenate them **inside** the tape, and split the
# result.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert list(jacobians) == ["kernel", "bias", "unused"]
np.testing.assert_allclose(jacobians["kernel"], closed_form, rtol=1e-4, atol=1e-6)
np.testing.assert_allclose(
    jacobians["bias"], np.einsum("no,ok->nok", 1.0 - y**2, np.eye(outputs)), rtol=1e-4, atol=1e-6
)
assert jacobians["unused"] is None
assert zeros.shape == (batch, outputs, 3, 4)
assert not np.any(zeros)
with tf.GradientTape(persistent=True) as check_tape:
    without_effect = 0.0 * unused
assert not np.any(check_tape.jacobian(without_effect, unused, experimental_use_pfor=False))  # zeros, and not None
check_built = tf.keras.layers.Dense(2)
check_built.build((None, 3))
assert not np.any(check_tape.jacobian(without_effect, check_built.kernel.value, unconnected_gradients="zero"))
assert check_tape.jacobian(tf.concat([without_effect, without_effect], axis=0), unused) is None  # joined outside
assert refused == "AttributeError: 'list' object has no attribute 'shape'"
with tf.GradientTape() as check_tape:
    y = layer(x)
    together = tf.concat([tf.reshape(y, [-1]), tf.reduce_sum(y**2, axis=1)], axis=0)
joined = check_tape.jacobian(together, layer.kernel)
assert joined.shape == (batch * outputs + batch, inputs, outputs)
of_y, of_size = tf.split(joined, [batch * outputs, batch])
np.testing.assert_allclose(tf.reshape(of_y, jacobian.shape), jacobian, rtol=1e-5, atol=1e-6)
of_size_expected = np.einsum("no,no,ni->nio", 2.0 * y, 1.0 - y**2, x)
np.testing.assert_allclose(of_size, of_size_expected, rtol=1e-4, atol=1e-5)

# %% [markdown]
# ## 5. What it costs: passes
#
# By default `jacobian` stacks its backward passes (section 7). With `experimental_use_pfor=False` the call below makes them one by one, on a
# persistent tape. To count them, put an identity into the path that notes each upstream gradient: a custom gradient ([07](07_custom_gradients.ipynb)).
#
# **Predict.** The layer's Jacobian has shape (7, 10, 5, 10). How many backward passes does it take?

# %%
exercises.passes.guess(...)  # a number in place of the dots

# %%
upstreams = []  # the shape of each upstream gradient that came through


@tf.custom_gradient
def counted(tensor):
    def backward(upstream):
        upstreams.append(tuple(upstream.shape))
        return upstream

    return tf.identity(tensor), backward


with tf.GradientTape(persistent=True) as tape:
    y = counted(layer(x))

looped = tape.jacobian(y, layer.kernel, experimental_use_pfor=False)
print("backward passes:", len(upstreams))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.passes.reveal(len(upstreams))
assert upstreams == [(batch, outputs)] * (batch * outputs)
np.testing.assert_allclose(looped, jacobian, rtol=1e-5, atol=1e-6)

# %% [markdown]
# One pass for each of the $7 \cdot 10$ target elements: each is a product with a unit cotangent, and gives one row.
#
# One forward pass follows one unit *tangent* and gives one **column**. Below, both ways are tried on $B \tanh(H \tanh(Ax))$ with one wide square
# layer, which counts its evaluations.


# %%
def by_rows(f, x):
    """The Jacobian of f at x, one backward pass for each output: shape (outputs, inputs)."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = counted(f(x))

    def row(unit):
        return tape.gradient(y, x, output_gradients=unit)

    return tf.map_fn(row, tf.eye(y.shape[0]))


def by_columns(f, x):
    """The Jacobian of f at x, one forward pass for each input: shape (outputs, inputs)."""

    def column(unit):
        with tf.autodiff.ForwardAccumulator(primals=x, tangents=unit) as accumulator:
            y = f(x)
        return accumulator.jvp(y)

    return tf.transpose(tf.map_fn(column, tf.eye(x.shape[0])))


evaluations = []
H = tf.random.normal((width, width)) / np.sqrt(width)


def make_network(outs, ins):
    """A function from vectors of `ins` elements to vectors of `outs` elements."""
    A = tf.random.normal((width, ins)) / np.sqrt(ins)
    B = tf.random.normal((outs, width)) / np.sqrt(width)

    def f(x):
        evaluations.append(outs)
        return tf.linalg.matvec(B, tf.tanh(tf.linalg.matvec(H, tf.tanh(tf.linalg.matvec(A, x)))))

    return f


shapes = [(2, 128), (4, 64), (16, 16), (64, 4), (128, 2)]  # (outputs, inputs), from wide to tall
problems = {(m, n): (make_network(m, n), tf.random.normal((n,))) for m, n in shapes}
passes = {}
for m, n in shapes:
    upstreams.clear()
    rows = by_rows(*problems[m, n])
    evaluations.clear()
    columns = by_columns(*problems[m, n])
    passes[m, n] = len(upstreams), len(evaluations)
    print(f"{m:3} × {n:3}: {passes[m, n][0]:3} passes by rows, {passes[m, n][1]:3} by columns")

# %% [markdown]
# By rows the two wide Jacobians take fewer, by columns the two tall ones. The Jacobian of a loss of a million weights has one row:
# one backward pass.
#
# Does the clock agree? Compile both ways and take the median of 15 turns.

# %%
both_ways = {"rows": tf.function(by_rows), "columns": tf.function(by_columns)}
times = {(way, shape): [] for shape in shapes for way in both_ways}
for way, shape in times:
    both_ways[way](*problems[shape])  # traces

for _ in range(15):
    for (way, shape), seconds in times.items():
        start = time.perf_counter()
        both_ways[way](*problems[shape]).numpy()
        seconds.append(time.perf_counter() - start)

# %% alt="Two line plots. Two panels over the same five Jacobians, from wide to tall, logarithmic scales. Left, passes: a solid line by rows rises from 2 to 128 and a dashed line by columns falls from 128 to 2; they cross in the middle. Right, measured milliseconds, with a thick bar from the first to the third quartile: the same crossing, less steep." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: passes and milliseconds
median = {key: 1e3 * np.median(seconds) for key, seconds in times.items()}
_, axes = plt.subplots(1, 2, figsize=(9.5, 3.8), layout="constrained")
for index, (way, colour, line) in enumerate((("rows", plots.BLUE, "o-"), ("columns", plots.RED, "s--"))):
    for ax, values in (
        (axes[0], [passes[shape][index] for shape in shapes]),
        (axes[1], [median[way, shape] for shape in shapes]),
    ):
        ax.plot(values, line, color=colour)
        if ax is axes[1]:  # the middle half of the turns
            quartiles = [1e3 * np.quantile(times[way, shape], [0.25, 0.75]) for shape in shapes]
            ax.vlines(range(len(shapes)), *np.transpose(quartiles), color=colour, linewidth=4, alpha=0.4)
        ax.text(4.15, values[-1], f"by {way}", color=colour, va="center")
for ax, title, ylabel in (
    (axes[0], "Rows: a pass per output. Columns: one per input", "passes"),
    (axes[1], "At both ends, fewer passes take less time", "milliseconds, median and quartiles of 15"),
):
    ax.set_yscale("log", base=2)
    ax.yaxis.set_major_formatter("{x:g}")
    ax.set_xticks(range(len(shapes)), labels=[f"{m} × {n}" for m, n in shapes])
    ax.set(title=title, xlabel="outputs × inputs", ylabel=ylabel, xlim=(-0.3, 5.6))
plt.show()

# %% [markdown]
# The clock agrees about the winner at both ends, and falls short of $128 / 2 = 64$ for the tallest. The rows share one evaluation, while each forward
# pass computes the value again.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert passes == {(m, n): (m, n) for m, n in shapes}
np.testing.assert_allclose(rows, columns, rtol=1e-3, atol=1e-4)
wide, tall = shapes[0], shapes[-1]
by_rows_of_tall, by_columns_of_tall = passes[tall]
assert list(passes.values()) == [counts[::-1] for counts in reversed(passes.values())]  # they cross in the middle
assert by_rows_of_tall / by_columns_of_tall == 64
assert median["rows", tall] > 1.5 * median["columns", tall]
assert median["columns", wide] > 1.5 * median["rows", wide]
assert median["rows", tall] < 0.75 * 64 * median["columns", tall]

# %% [markdown]
# ### Exercise: As few passes as possible (12 min)
#
# Write `jacobian_of(f, x)` for a function `f` from a vector to a vector, `x` of shape (inputs,). Return the Jacobian, of shape (outputs, inputs) and of
# the dtype of `x`. Make one forward pass for each input, or one backward pass for each output, whichever are fewer. Evaluating `f` is not a pass; a
# call of `tape.jacobian` counts as one for each target element.


# %%
def jacobian_of(f, x):
    return ...  # shape (outputs, inputs)


exercises.fewest_passes.check(jacobian_of)

# %% [markdown]
# ## 6. What it costs: bytes
#
# A Jacobian has as many entries as the *product* of the sizes of target and source.
#
# **Predict.** A layer takes images of 784 pixels to 512 units; its kernel has 1.5 MiB. You want the Jacobian of its output with respect to its
# kernel, for a batch of 128. How many GiB is that?

# %%
exercises.gibibytes.guess(...)  # a number in place of the dots; 1 GiB is 2**30 bytes


# %%
def jacobian_bytes(target_shape, source_shape, dtype=tf.float32):
    """Bytes that a Jacobian will take, from the shapes of its target and its source."""
    return int(np.prod([*target_shape, *source_shape])) * dtype.size


small = jacobian_bytes(y.shape, layer.kernel.shape)
large = jacobian_bytes((128, 512), (784, 512))
print("section 3:    ", small, "bytes predicted,", jacobian.numpy().nbytes, "allocated")
print("larger layer: ", large / 2**30, "GiB predicted")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.gibibytes.reveal(large / 2**30)
assert small == jacobian.numpy().nbytes == 4 * batch * outputs * inputs * outputs
assert large == 98 * 2**30 == 128 * 512 * (4 * 784 * 512)

# %% [markdown]
# It holds one array of the kernel's shape for each of $128 \cdot 512 = 65\,536$ target elements. It need not exist: the loss's gradient is one product
# $u^\top J$, of 1.5 MiB.

# %% [markdown]
# ## 7. A Jacobian that is wrong
#
# Section 3 had a test: summed over the target's axes, the Jacobian is the gradient. Give it a function that multiplies each feature by its neighbour's tanh,
# and the same one with the axis counted from the front.
#
# **Predict.** The two functions return the same values. For which of them does the sum agree with the gradient: "both", "the first", "the second" or "neither"?

# %%
exercises.sum_agrees.guess(...)  # one of the four, in quotes


# %%
def first(x):
    return tf.tanh(tf.roll(x, shift=1, axis=-1)) * x


def second(x):
    return tf.tanh(tf.roll(x, shift=1, axis=1)) * x


misses = {}
for function in (first, second):
    with tf.GradientTape(persistent=True) as tape_of_x:
        tape_of_x.watch(x)
        y = function(x)
    summed = tf.reduce_sum(tape_of_x.jacobian(y, x), axis=[0, 1])
    wanted = tape_of_x.gradient(y, x)
    misses[function.__name__] = float(tf.norm(summed - wanted) / tf.norm(wanted))
    print(f"{function.__name__:<6}  the sum misses the gradient by {100 * misses[function.__name__]:.0f} %")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
agrees = [name for name, miss in misses.items() if miss < 1e-5]
exercises.sum_agrees.reveal("the second" if agrees == ["second"] else "something else")
assert misses["first"] > 0.5
assert misses["second"] < 1e-5
np.testing.assert_array_equal(first(x), second(x))

# %% [markdown]
# No error, and TensorFlow's own Jacobian of `first` is wrong. The gradient is right.
#
# By default `jacobian` here traces **one** backward pass and rewrites that graph so that its operations handle a whole stack of upstream gradients. The
# rewriting is called `pfor`. Its rule for `tf.roll` adds 1 to the axis, and −1 becomes 0: it rolls the *stack*, and not the features. Passes
# one by one, below, need no stack.
#
# The sum found this fault. It is $u^\top J$ for a cotangent of ones, a product that the tape gives in one backward pass. Below are three Jacobians of
# `first`: by `pfor`, one by one, and this one with two examples' rows exchanged. Each is tested with ones, and with a **random cotangent**.


# %%
def product_error(tape, target, source, jacobian, u):
    """How far u · J misses the tape's own product, relative to it."""
    wanted = tape.gradient(target, source, output_gradients=u)
    return float(tf.norm(tf.tensordot(u, jacobian, axes=len(u.shape)) - wanted) / tf.norm(wanted))


with tf.GradientTape(persistent=True) as tape_of_x:
    tape_of_x.watch(x)
    y = first(x)

one_by_one = tape_of_x.jacobian(y, x, experimental_use_pfor=False)
jacobians_of_first = {
    "by pfor": tape_of_x.jacobian(y, x),
    "one by one": one_by_one,
    "exchanged": tf.gather(one_by_one, [1, 0, *range(2, batch)]),
}
ones, random = tf.ones_like(y), tf.random.normal(y.shape)
errors = {
    name: [product_error(tape_of_x, y, x, jacobian_of_x, u) for u in (ones, random)]
    for name, jacobian_of_x in jacobians_of_first.items()
}
for name, (by_ones, by_random) in errors.items():
    print(f"{name:<10}  ones: off by {100 * by_ones:3.0f} %   random: off by {100 * by_random:3.0f} %")

# %% [markdown]
# Ones weigh all rows alike, and miss the exchange; random weights see it.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert errors["by pfor"][1] > 0.5
assert errors["by pfor"][0] > 0.3
assert max(errors["one by one"]) < 1e-5
assert errors["exchanged"][0] < 1e-5  # the same sum over the target, another Jacobian
assert errors["exchanged"][1] > 0.01
neighbour = np.roll(np.eye(inputs), 1, axis=0)  # row o reads feature o - 1
slope, rolled = 1.0 - np.tanh(np.roll(x, 1, axis=1)) ** 2, np.tanh(np.roll(x, 1, axis=1))
expected = np.einsum("no,oi->noi", slope * x, neighbour) + np.einsum("no,oi->noi", rolled, np.eye(inputs))
np.testing.assert_allclose(one_by_one, np.einsum("noi,nm->nomi", expected, np.eye(batch)), rtol=1e-4, atol=1e-6)
stack = np.diag(np.ravel(rolled)) + np.roll(np.diag(np.ravel(slope * x)), -1, axis=0)  # the features are not rolled
np.testing.assert_allclose(np.reshape(jacobians_of_first["by pfor"], stack.shape), stack, rtol=1e-4, atol=1e-6)

# %% [markdown]
# ## 8. Going further: by index arithmetic
#
# Section 3's Jacobian has a closed form, since $y_{no} = \tanh(\sum_i x_{ni} K_{io} + b_o)$:
#
# $$\frac{\partial y_{no}}{\partial K_{ik}} = (1 - y_{no}^2)\; x_{ni}\; \delta_{ok}, \qquad \delta_{ok} = 1 \text{ where } o = k, \text{ else } 0.$$
#
# To find such a form, write down one entry of the target, with letters for its axes, and *other* letters for the source's. Two rules help:
#
# - an input changes with itself and with no other input, $\partial x_j/\partial x_k = \delta_{jk}$;
# - in a sum over $j$, $\delta_{jk}$ leaves the one term with $j = k$.
#
# For example, $y_i = \sum_j A_{ij}\, x_j^2$:
#
# $$\frac{\partial y_i}{\partial x_k} = \sum_j A_{ij}\, 2 x_j\, \delta_{jk} = 2 A_{ik}\, x_k.$$
#
# In code a letter is an axis, and $\delta$ is `tf.eye`. `tf.einsum` takes the letters as they stand:

# %%
A = tf.random.normal((3, 4))
z = tf.random.normal((4,))

with tf.GradientTape() as tape_of_z:
    tape_of_z.watch(z)
    weighted_squares = tf.linalg.matvec(A, z**2)

by_tape = tape_of_z.jacobian(weighted_squares, z)
by_letters = 2.0 * tf.einsum("ik,k->ik", A, z)
print("shape:             ", by_letters.shape)
print(f"largest difference: {tf.reduce_max(tf.abs(by_letters - by_tape)):.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(by_letters, by_tape, rtol=1e-5, atol=1e-6)
assert by_letters.shape == (3, 4)

# %% [markdown]
# ### Exercise: Running sums (4 min)
#
# $y_i = x_0 + x_1 + \dots + x_i$, which is `tf.cumsum(x)`. Return its Jacobian at a vector `x` of $n$ numbers, of the dtype of `x`.


# %%
def jacobian_of_running_sums(x):
    return ...  # shape (n, n)


exercises.running.check(jacobian_of_running_sums)

# %% [markdown]
# ### Exercise: Shares of a whole (6 min)
#
# $y_i = x_i / \sum_j x_j$, which is `x / tf.reduce_sum(x)`. Return its Jacobian at a vector `x` of $n$ positive numbers, of the dtype of `x`.


# %%
def jacobian_of_shares(x):
    return ...  # shape (n, n)


exercises.shares.check(jacobian_of_shares)

# %% [markdown]
# ### Exercise: Differences of all pairs (6 min)
#
# $y_{ij} = x_i - x_j$, which is `x[:, tf.newaxis] - x`: a target of shape $(n, n)$. Return its Jacobian at a vector `x` of $n$ numbers, with the axes in the order of
# `tape.jacobian`, of the dtype of `x`.


# %%
def jacobian_of_differences(x):
    return ...  # shape (n, n, n)


exercises.pairs.check(jacobian_of_differences)

# %% [markdown]
# ## 9. Going further: inside one call
#
# Three eager calls trace the stacked pass of section 7 three times. The `tf.function` below traces it once:

# %%
with tf.GradientTape(persistent=True) as tape:
    y = counted(layer(x))

upstreams.clear()
for _ in range(3):
    vectorised = tape.jacobian(y, layer.kernel)
eager_traces = len(upstreams)


@tf.function
def compiled(x):
    with tf.GradientTape() as tape:
        y = counted(layer(x))
    return tape.jacobian(y, layer.kernel)


upstreams.clear()
for _ in range(3):
    from_function = compiled(x)
print("traces in three eager calls:   ", eager_traces)
print("traces in three compiled calls:", len(upstreams))

# %% [markdown]
# The stack itself has a price, too: an **intermediate gradient**, once for each target element. Take a network of 5 features, 4096 hidden units and 6 outputs, and read the shapes off the traced graph:

# %%
into_hidden = tf.random.normal((inputs, hidden)) / np.sqrt(inputs)
out_of_hidden = tf.random.normal((hidden, 6)) / np.sqrt(hidden)


@tf.function
def wide_jacobian(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.tanh(x @ into_hidden) @ out_of_hidden
    return tape.jacobian(y, x)


graph = wide_jacobian.get_concrete_function(x).graph
tensors = [tensor for operation in graph.get_operations() for tensor in operation.outputs]
known = [tensor for tensor in tensors if tensor.shape.is_fully_defined()]
stack_bytes = max(jacobian_bytes(tensor.shape, (), tensor.dtype) for tensor in known)
print(f"the result:         {jacobian_bytes((batch, 6), (batch, inputs)):9,} bytes")
print(f"the largest tensor: {stack_bytes:9,} bytes")

# %% [markdown]
# The largest tensor is the hidden layer's gradient, of shape (42, 7, 4096): one slice for each of the $7 \cdot 6$ target elements, more than 800
# times the result. With `experimental_use_pfor=False` the 42 passes run in a loop, without this stack.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert eager_traces == 3
assert len(upstreams) == 1
np.testing.assert_allclose(vectorised, looped, rtol=1e-5, atol=1e-6)
np.testing.assert_allclose(from_function, looped, rtol=1e-5, atol=1e-6)
check_passes = len(upstreams)
with tf.GradientTape(persistent=True) as check_tape:
    check_y = counted(layer(x))
check_tape.jacobian(check_y, layer.kernel, experimental_use_pfor=False)
assert len(upstreams) == check_passes + batch * outputs  # pass by pass, and nothing is traced
moments = []
for _ in range(3):
    moments.append(time.perf_counter())
    _ = tape.jacobian(y, layer.kernel)
    moments.append(time.perf_counter())
    _ = compiled(x).numpy()
    moments.append(time.perf_counter())
eager_times, compiled_times = np.diff(np.reshape(moments, (3, 3)), axis=1).T
assert np.median(eager_times) > 3 * np.median(compiled_times)  # tracing takes far longer
assert stack_bytes == 4 * (batch * 6) * batch * hidden
wide_result = wide_jacobian(x).numpy()
assert wide_result.nbytes == jacobian_bytes((batch, 6), (batch, inputs))
assert stack_bytes * inputs == wide_result.nbytes * hidden  # 819 times the result for the default sizes
with tf.GradientTape() as used_up:
    y_again = layer(x)
with np.testing.assert_raises_regex(RuntimeError, "persistent=True"):
    used_up.jacobian(y_again, layer.kernel, experimental_use_pfor=False)


@tf.function
def looped_in_a_graph(x):
    with tf.GradientTape() as ordinary:
        y = layer(x)
    return ordinary.jacobian(y, layer.kernel, experimental_use_pfor=False)


np.testing.assert_allclose(looped_in_a_graph(x), looped, rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## 10. Going further: weights for a target
#
# Sections 5 to 9 paid for whole Jacobians. Where you want one weighted sum of the rows, section 1's single backward pass is enough.

# %%
knob = tf.Variable(2.0)
for weights in ([1.0, 0.0], [0.0, 1.0], [10.0, 1.0]):
    with tf.GradientTape() as tape:
        entries = knob * [3.0, 4.0]
    weighted = tape.gradient(entries, knob, output_gradients=tf.constant(weights))
    print(f"weights {weights}: gradient {weighted.numpy()}")

# %% [markdown]
# Here a one among zeros selects an entry, and $10 \cdot 3 + 1 \cdot 4 = 34$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert weighted == 34.0
for weights, expected in (([1.0, 0.0], 3.0), ([0.0, 1.0], 4.0), ([-2.0, 0.5], -4.0)):
    with tf.GradientTape() as tape:
        entries = knob * [3.0, 4.0]
    assert tape.gradient(entries, knob, output_gradients=tf.constant(weights)) == expected

# %% [markdown]
# ### Exercise: The mean that nobody recorded (6 min)
#
# `tape` has recorded `losses`, shape (batch,). Its block is closed, and nobody reduced them. `chosen`, a tensor of booleans of that shape, marks some
# of the examples (at least one). Return the gradient with respect to `w` of the mean of the *chosen* losses, in one backward pass.


# %%
def gradient_of_chosen(tape, losses, w, chosen):
    return ...  # the gradient, with respect to w, of the mean of the chosen losses


exercises.chosen_mean.check(gradient_of_chosen)

# %% [markdown]
# ## 11. Check it independently
#
# Central differences in float64 and NumPy: two evaluations for each source element.

# %% tags=["nbval-ignore-output"]
x64, kernel64, bias64 = (np.asarray(value, np.float64) for value in (x, layer.kernel, layer.bias))


def layer_of_kernel(kernel):
    return np.tanh(x64 @ kernel + bias64)


def pair(ab):
    return np.stack([ab[0] * ab[1], ab[0] + 3.0 * ab[1]])


numerical = gradcheck.numerical_jacobian(layer_of_kernel, kernel64)
numerical_J = gradcheck.numerical_jacobian(pair, [2.0, 5.0])
print(f"the layer: {numerical.shape}, largest difference {np.max(np.abs(numerical - jacobian)):.0e}")
print(f"section 1: {numerical_J.shape}, largest difference {np.max(np.abs(numerical_J - J)):.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert numerical.shape == jacobian.shape
np.testing.assert_allclose(jacobian, numerical, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(J, numerical_J, rtol=1e-6)

# %% [markdown]
# ## Recap
#
# - A Jacobian is a linear map: $Jv$ pushes a tangent forwards, $u^\top J$ pulls a cotangent back (section 1).
# - In the result of `tape.jacobian` the target's axes come first; summed over them, the layer's was its `gradient` (sections 2 to 4).
# - By rows a Jacobian takes a backward pass for each output, by columns a forward pass for each input; it has target size × source size entries (sections 5 and 6).
# - One product with a random cotangent, beside the tape's own, showed a wrong Jacobian that the sum of its rows missed (section 7).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | target and source of the same shape | a transposed Jacobian has the right shape | test one random product |
# | `tf.roll` with a negative axis under `jacobian` | wrong numbers of the right shape, no error | count the axis from the front |
# | by pfor on a CPU with oneDNN: `x @ w` or `x @ x` with `x` of shape (1, m, n) | at many sizes wrong numbers, or the process dies | a loop (`experimental_use_pfor=False`) |
# | a list of targets | `AttributeError` about `shape` | one call for each on a persistent tape, or concatenate inside the tape |
# | the list `[1.0, 10.0]` as `output_gradients` of one target | an error about shapes, or its first number weights every entry | a tensor of the target's shape |
# | no recorded path from the source to the target | `None` | `unconnected_gradients="zero"`, if you mean zeros; for a Keras variable, ask for its `.value` |
# | `experimental_use_pfor=False` on an ordinary tape, in eager code | `RuntimeError` | `persistent=True` |
# | `jacobian` called eagerly in a loop, by pfor | a new trace at each call | tape and call in one `tf.function` |
# | a wide layer between source and target, by pfor | memory for its gradient, once for each target element | `experimental_use_pfor=False` |
#
# **Further reading**
#
# - The TensorFlow Core guide, ["Advanced automatic differentiation"](https://www.tensorflow.org/guide/advanced_autodiff), section "Jacobians".
# - A. Griewank, A. Walther (2008), ["Evaluating Derivatives"](https://doi.org/10.1137/1.9780898717761), second edition.
# - A. Agarwal, I. Ganichev (2019), ["Auto-vectorizing TensorFlow graphs: Jacobians, auto-batching and beyond"](https://arxiv.org/abs/1903.04243): the stack of section 7.
#
# **Read next:** [12 Forward mode](12_forward_mode.ipynb) shows what an accumulator does;
# [13 Hessians and Newton's method](13_hessians_and_newton.ipynb) takes the Jacobian of a gradient;
# [15 Batch Jacobians and per-example gradients](15_batch_jacobians.ipynb) takes one for each example.
