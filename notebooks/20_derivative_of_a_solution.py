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
# # The derivative of a solution
#
# Some programs search: they repeat a step until nothing moves, and return what they found. A root finder does, and so does training. You want the derivative of what was found.
# **An iteration searches for a solution. Must its derivative remember the search?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/20_derivative_of_a_solution.ipynb)
#
# **Prerequisites:** [07 Custom gradients](07_custom_gradients.ipynb), [14 Without the matrix](14_without_the_matrix.ipynb) · **Minutes:** 21 to read, 2 more to go further, 27 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
steps = 160  # of the iteration that finds the equilibrium: between 140 and 200
spectral_norm = 0.97  # of the layer's weights; below 1, so that the iteration settles: between 0.95 and 0.98

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import weakref

from tapelab import data, derivatives, gradcheck, plots, runtime
from tapelab.exercises.sheets import derivative_of_a_solution as exercises

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize  # comes with scikit-learn
import tensorflow as tf

runtime.start(seed)

# %%
rng = np.random.default_rng(seed)
W = rng.normal(size=(30, 30))
W = tf.constant(spectral_norm * W / np.linalg.norm(W, 2))
x = tf.constant(0.2 * rng.normal(size=(20, 30)))  # 20 examples
target = tf.constant(rng.normal(size=(20, 30)))
iterates = []  # weak references: they tell which tensors are still in memory


def iterate(W, z, steps):
    """Apply a layer to its own output, again and again."""
    for _ in range(steps):
        z = tf.tanh(z @ W + x)
        iterates.append(weakref.ref(z))
    return z


def alive():
    return sum(reference() is not None for reference in iterates)


with tf.GradientTape() as tape:
    tape.watch(W)
    z = iterate(W, tf.zeros_like(x), steps)
    loss = tf.reduce_sum((z - target) ** 2) / 2
kept_unrolled = alive()
unrolled = tape.gradient(loss, W)
print("through the iteration: ", kept_unrolled, "tensors kept")

# %% tags=["nbval-ignore-output"]
iterates.clear()
z = iterate(W, tf.zeros_like(x), steps)  # no tape
kept = alive()

v = z - target  # the loss's gradient by z
slope = 1 - z**2  # tanh's slope at the solution
u = v
for _ in range(steps):
    u = v + (u * slope) @ tf.transpose(W)
from_solution = tf.transpose(z) @ (u * slope)
print("from the solution:     ", kept, "tensor kept")
print(f"relative difference of the two gradients: {tf.norm(from_solution - unrolled) / tf.norm(unrolled):.0e}")

# %% [markdown]
# The second cell has forgotten the search. It knows where the iteration ended, keeps one tensor instead of 160, and its gradient agrees to the last digits.
#
# **You will be able to**
#
# - differentiate the solution of an equation from the solution alone, with one linear solve (section 1),
# - say what a gradient is worth when the iteration stopped early, or when only its last step was recorded (section 2),
# - differentiate a minimum, with a Hessian and a mixed second derivative (section 3),
# - ask a trained classifier which of its labels did harm, and judge the answer against its rivals (section 4).

# %% [markdown]
# ## 1. Differentiate the equation
#
# The layer above returns a $z$ that it maps to itself:
#
# $$z = \tanh(zW + x).$$
#
# A layer whose output is such a **fixed point** is called a *deep equilibrium* layer. [07](07_custom_gradients.ipynb) met the smallest relative, Kepler's equation: one number at a time, and the derivative was a division by $1 - \varepsilon \cos E$.
# Here an example has 30 numbers, and each depends on all the others. What becomes of the division?
#
# Write the equation as $F(z, \theta) = 0$; here $F = f(z, \theta) - z$, with $f$ one application of the layer and $\theta$ its weights. Change $\theta$ a little. Now $F$ is not zero any more, and $z$ has to move until it is:
#
# $$F_z\, \mathrm dz + F_\theta\, \mathrm d\theta = 0 \quad\Rightarrow\quad \frac{\mathrm dz}{\mathrm d\theta} = -F_z^{-1} F_\theta .$$
#
# This is the **implicit function theorem**. It asks that $F$ is continuously differentiable near the solution and that $F_z$ can be inverted there. How $z$ was found does not occur in it.
# The figure has one number $z$ and one $\theta$: $F = \tanh(0.75\, z + \theta) - z$. There $F_\theta$ is positive and $F_z$ negative.

# %% alt="Contour plot. The plane of a parameter theta and a solution z, coloured by F: blue below zero, red above. The curve F = 0 rises through it. From a point on the curve a horizontal arrow changes theta and leaves the curve; a vertical arrow, nearly twice as long in the units of the axes, changes z until it meets the dashed tangent, close to the curve again." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: leave the curve, and come back
across, up = np.meshgrid(np.linspace(-0.35, 0.5, 241), np.linspace(-0.9, 0.9, 241))
_, ax = plt.subplots(figsize=(6.8, 4.4), layout="constrained")
F = np.tanh(0.75 * up + across) - up
shades = ax.contourf(across, up, F, levels=np.linspace(-1, 1, 21), cmap=plots.DIVERGING, alpha=0.7)
ax.figure.colorbar(shades, ax=ax, label="F", ticks=[-1, 0, 1])
ax.contour(across, up, F, levels=[0.0], colors="black", linewidths=2)
z0 = 0.5
theta0 = np.arctanh(z0) - 0.75 * z0
F_theta, F_z = 1 - z0**2, 0.75 * (1 - z0**2) - 1
d_theta = 0.12
d_z = -F_theta / F_z * d_theta
arrow = {"arrowstyle": "-|>", "linewidth": 2.5, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 16}
ax.annotate("", (theta0 + d_theta, z0), (theta0, z0), arrowprops=arrow | {"color": "black"})
ax.annotate("", (theta0 + d_theta, z0 + d_z), (theta0 + d_theta, z0), arrowprops=arrow | {"color": plots.GREEN})
ax.plot([theta0 - d_theta, theta0 + d_theta], [z0 - d_z, z0 + d_z], "--", color="black", linewidth=1)
ax.plot(theta0, z0, "o", color="black")
ax.text(theta0 + 0.5 * d_theta, z0 - 0.05, "dθ: F grows\nby $F_θ$ dθ", ha="center", va="top", fontsize="small")
ax.text(theta0 + d_theta + 0.015, z0 + 0.4 * d_z, "dz: F falls back\nby $F_z$ dz", va="center", fontsize="small")
ax.text(-0.33, -0.27, "F = 0: the solutions", fontsize="small")
ax.set(title="Move θ, and z has to follow", xlabel="θ", ylabel="z")
plt.show()

# %% [markdown]
# A loss does not need all of $\mathrm dz/\mathrm d\theta$. It needs $v^\top \mathrm dz/\mathrm d\theta$, with $v$ the loss's gradient with respect to $z$. So multiply from the left. With $J = f_z$, the Jacobian of one application, $F_z = J - I$ and $F_\theta = f_\theta$. Call the row that then stands on the left $u^\top = v^\top (I - J)^{-1}$:
#
# $$v^\top \frac{\mathrm dz}{\mathrm d\theta} = u^\top f_\theta, \qquad (I - J)^\top u = v .$$
#
# First **one linear solve** for $u$, the *adjoint equation*. Then one ordinary backward pass through *one* application of $f$, with $u$ in the place of the upstream gradient. $W$ has 900 entries, and there is one solve for each example.

# %% tags=["nbval-ignore-output"]
with tf.GradientTape(persistent=True) as tape:
    tape.watch([z, W])
    again = tf.tanh(z @ W + x)  # one application, at the solution

J = tape.batch_jacobian(again, z)  # (20, 30, 30): one for each example
u_solved = tf.linalg.solve(tf.eye(30, dtype=tf.float64) - J, v[..., tf.newaxis], adjoint=True)[..., 0]
by_solve = tape.gradient(again, W, output_gradients=u_solved)
print("Jacobians:", J.shape)
print(f"relative difference from the unrolled gradient: {tf.norm(by_solve - unrolled) / tf.norm(unrolled):.0e}")

# %% [markdown]
# `adjoint=True` solves with the transpose. Forget it here, and you get numbers of the right size and shape that are wrong.
#
# The opening formed no Jacobian. It found $u$ by an iteration of its own, $u \leftarrow v + J^\top u$, where $J^\top u$ is a vector–Jacobian product: `(u * slope) @ tf.transpose(W)`, for all examples at once. Written out, that is the **Neumann series**
#
# $$u = v + J^\top v + (J^\top)^2 v + \dots$$
#
# Near the solution the search multiplies its error by the same $J$ in each step, so here the series converges when the search does.
#
# With a custom gradient all this becomes a function of $W$. `tf.stop_gradient` keeps the search off the tape, as in [07](07_custom_gradients.ipynb). Here $x$ is data. Were it the output of other layers, they would get `None`: give the function $x$ as a second argument, stop that too, and return `u * slope` as its gradient. A second derivative is silently wrong: to it `z` is a constant.


# %%
@tf.custom_gradient
def equilibrium(W):
    z = iterate(tf.stop_gradient(W), tf.zeros_like(x), steps)

    def backward(v):
        slope = 1 - z**2
        u = v
        for _ in range(steps):
            u = v + (u * slope) @ tf.transpose(W)
        return tf.transpose(z) @ (u * slope)

    return z, backward


iterates.clear()
with tf.GradientTape() as tape:
    tape.watch(W)
    loss = tf.reduce_sum((equilibrium(W) - target) ** 2) / 2
kept_by_layer = alive()
by_layer = tape.gradient(loss, W)
print("tensors kept:", kept_by_layer)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert kept_unrolled == steps
assert kept == kept_by_layer == 1
for one_way in (from_solution, by_solve, by_layer):
    assert tf.norm(one_way - unrolled) < 1e-12 * tf.norm(unrolled)
not_transposed = tf.linalg.solve(tf.eye(30, dtype=tf.float64) - J, v[..., tf.newaxis])[..., 0]
with tf.GradientTape() as tape:
    tape.watch(W)
    again = tf.tanh(z @ W + x)
forgotten = tape.gradient(again, W, output_gradients=not_transposed)
assert 0.1 < tf.norm(forgotten) / tf.norm(unrolled) < 10  # of the right size
assert tf.norm(forgotten - unrolled) > 0.1 * tf.norm(unrolled)
held, refused = tf.Variable(1.0), False


@tf.custom_gradient
def reads_a_variable(x):
    return x * held, lambda upstream: upstream


try:
    reads_a_variable(tf.constant(1.0))
except TypeError:
    refused = True
assert refused
assert abs(np.tanh(0.75 * z0 + theta0) - z0) < 1e-12  # the figure's point is a solution
assert 1.5 * d_theta < d_z < 2 * d_theta
assert abs(np.tanh(0.75 * (z0 + d_z) + theta0 + d_theta) - (z0 + d_z)) < 0.4 * F_theta * d_theta

# %% [markdown]
# ### Exercise: Any equation (10 min)
#
# `f(z, theta)` takes tensors of shapes $(n,)$ and $(m,)$ to one of shape $(n,)$, and `z` solves $z = f(z, \theta)$. How it was found you are not told. `upstream`, of shape $(n,)$, is a loss's gradient with respect to `z`. Return the loss's gradient with respect to `theta`, shape $(m,)$. Do not iterate: solve.


# %%
def vjp_of_solution(f, z, theta, upstream):
    return ...  # of the shape of theta


exercises.any_equation.check(vjp_of_solution)

# %% [markdown]
# ## 2. Stopped early
#
# The theorem speaks of a solution. Stop after 20 steps instead of 160: unrolling has 20 steps forwards and 20 backwards; the equation has the same 20 steps, then 20 terms of the series for $u$.
#
# **Predict.** Whose gradient is nearer to the exact one, that of section 1 after 160 steps?

# %%
exercises.nearer.guess(...)  # "unrolling", "the equation" or "both alike"


# %% tags=["nbval-ignore-output"]
def by_unrolling(start, steps):
    with tf.GradientTape() as tape:
        tape.watch(W)
        z = iterate(W, start, steps)
        loss = tf.reduce_sum((z - target) ** 2) / 2
    return tape.gradient(loss, W)


def by_equation(z, rounds):
    """The gradient with the first terms of the Neumann series, `rounds` of them."""
    v, slope = z - target, 1 - z**2
    u = v
    for _ in range(rounds - 1):
        u = v + (u * slope) @ tf.transpose(W)
    return tf.transpose(z) @ (u * slope)


def error(gradient):
    """Relative, against the gradient through all 160 steps."""
    return float(tf.norm(gradient - unrolled) / tf.norm(unrolled))


cold = tf.zeros_like(x)
counts = (1, 2, 3, 5, 8, 12, 16, 20, 25, 30)
errors_unrolled = [error(by_unrolling(cold, n)) for n in counts]
errors_equation = [error(by_equation(iterate(W, cold, n), n)) for n in counts]
residual = tf.norm(iterate(W, cold, 21) - iterate(W, cold, 20)) / tf.norm(z)

at = counts.index(20)
print(f"error after 20 steps, unrolled:     {errors_unrolled[at]:.0e}")
print(f"error after 20 steps, the equation: {errors_equation[at]:.0e}")
print(f"what one more step would change:    {float(residual):.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.nearer.reveal("the equation" if errors_equation[at] < errors_unrolled[at] / 1.5 else "both alike")
assert errors_equation[at] < 0.6 * errors_unrolled[at]
assert errors_equation[at] > 0.02 * errors_unrolled[at]
assert 0.05 * residual < errors_equation[at] < 50 * residual

# %% [markdown]
# The equation, in this run. Unrolling multiplies Jacobians of *all* the $z$ on the way, early ones too, which were far from the solution. The equation takes its Jacobian at the last $z$. Its error is a few times the **residual** here, which is what one more step would change.
#
# So give unrolling the same advantage. Search first, without a tape; then record $k$ more steps from the solution.

# %% tags=["nbval-ignore-output"]
errors_recorded = [error(by_unrolling(z, k)) for k in counts]
# `error` subtracts `unrolled`, so add it to what should be zero.
difference = max(error(by_unrolling(z, k) - by_equation(z, k) + unrolled) for k in counts)
print(f"k steps recorded at the solution, against k terms of the series: they differ by {difference:.0e}")

# %% [markdown]
# The same numbers, but for rounding. Unrolling this iteration from the solution *is* the equation, with the series for $u$ cut off after $k$ terms, and with $k$ tensors kept instead of one. What the equation adds is freedom: another solver may find $u$. Section 5 uses that.
#
# The shortest cut is $k = 1$: search, then record one last step. Training equilibrium models with it is called *Jacobian-free backpropagation*.
#
# **Predict.** What is the cosine of the angle between this one-step gradient and the exact one? (1 is the same direction, 0 a right angle.)

# %%
exercises.one_step.guess(...)  # "about 0.1", "about 0.5", "about 0.9" or "about 1"

# %%
one_step = by_unrolling(z, 1)
cosine = float(tf.reduce_sum(one_step * unrolled) / (tf.norm(one_step) * tf.norm(unrolled)))
print(f"cosine {cosine:.2f}, relative error {error(one_step):.2f}")

# %% alt="Line plot. Relative error of the gradient on a logarithmic axis against steps. Three straight lines fall from about one to below one in ten million at 30 steps. Unrolling from a cold start lies highest; the equation, stopped after as many steps, and the last steps recorded at the solution lie close together below it. The leftmost point of the lowest line is marked: one step, error one half." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the gradient's error against the steps
_, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
ax.semilogy(counts, errors_unrolled, "s-", color=plots.ORANGE, label="unrolled: n steps recorded from zero")
ax.semilogy(counts, errors_equation, "o-", color=plots.BLUE, label="equation: n steps, then n rounds for u")
ax.semilogy(counts, errors_recorded, "^--", color=plots.GREEN, label="solution known: n steps recorded, or n rounds")
ax.annotate("one step", (1, errors_recorded[0]), (0.6, 1e-3), arrowprops={"arrowstyle": "->"})
ax.set(title="Unrolled from zero, the gradient is late", xlabel="n", ylabel="relative error of the gradient")
ax.legend(fontsize="small")
plt.show()

# %% [markdown]
# About 0.9, with an error of about a half. Here the direction goes roughly downhill; how nearly depends on $J$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.one_step.reveal("about 0.9" if 0.7 < cosine < 0.97 else "about 1" if cosine > 0.97 else "about 0.5")
assert 0.75 < cosine < 0.96
assert 0.35 < errors_recorded[0] < 0.7
assert difference < 1e-12
for n, one, other in zip(counts, errors_unrolled, errors_equation, strict=True):
    assert n < 8 or other < 0.75 * one
for other, best in zip(errors_equation[4:], errors_recorded[4:], strict=True):
    assert 0.3 * other < best < 1.5 * other  # close together
assert max(errors_unrolled[-1], errors_recorded[-1]) < 1e-5

# %% [markdown]
# ## 3. A minimum is a solution too
#
# At a minimum of a differentiable loss, without constraints, the gradient is zero. That is an equation. Let $w^*(\theta)$ minimise $\ell(w, \theta)$; then $F = \nabla_w \ell$, and $F_w$ is the Hessian $H$, which is to be inverted:
#
# $$\frac{\mathrm dw^*}{\mathrm d\theta} = -H^{-1}\, \frac{\partial}{\partial\theta} \nabla_w \ell .$$
#
# The last factor is a **mixed** second derivative, once with respect to $w$ and once with respect to $\theta$. The smallest example is an average. Three measurements $y_i$ with weights $s_i$; the $w$ that minimises $\tfrac12 \sum_i s_i (w - y_i)^2$ is their weighted mean. How does it move if a measurement counts more?

# %%
y = tf.constant([1.0, 2.0, 6.0])
s = tf.constant([1.0, 1.0, 1.0])
w = tf.reduce_sum(s * y) / tf.reduce_sum(s)  # the minimum, 3

with tf.GradientTape(persistent=True) as outer:
    outer.watch([w, s])
    with tf.GradientTape() as inner:
        inner.watch(w)
        spread = tf.reduce_sum(s * (w - y) ** 2) / 2
    g = inner.gradient(spread, w)
H = outer.gradient(g, w)
mixed = outer.gradient(g, s)
print("gradient: ", g.numpy())
print("H:        ", H.numpy())
print("mixed:    ", mixed.numpy())
print("dw / ds:  ", (-mixed / H).numpy().round(3))

# %% [markdown]
# The mixed derivative of $s_i$ is the gradient of term $i$ alone, $w - y_i$. Downhill is the other way, $y_i - w$: the pull of that measurement. At the minimum the pulls cancel. Strengthen one, and $w$ goes the way it pulls, as far as the curvature $H$ lets it. The measurement 6 draws the mean upwards, at a rate of 1 for each unit of weight.
#
# Both kinds of solution fit one table. As before, $v$ is the gradient of a loss with respect to the solution.
#
# | found by | solves | $F_z$ | first | then |
# |---|---|---|---|---|
# | an iteration | $f(z, \theta) - z = 0$ | $J - I$ | $(I - J)^\top u = v$ | $u^\top f_\theta$ |
# | a minimiser | $\nabla_w \ell(w, \theta) = 0$ | $H$ | $H u = v$ | $-u^\top\, \partial_\theta \nabla_w \ell$ |
#
# $H$ needs no transpose, as it is symmetric. And the loss that gives $v$ is a *second* loss, one that judges what was found. (If it holds $\theta$ itself, add that partial derivative.) For $\ell$ itself $v$ is zero: to first order, the minimum's *value* does not notice that $w^*$ moves.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(g, 0, atol=1e-6)
np.testing.assert_allclose(H, 3.0, rtol=1e-6)
np.testing.assert_allclose(mixed, w - y, rtol=1e-6)
closed_form = (y - w) / tf.reduce_sum(s)  # of sum(s y) / sum(s)
np.testing.assert_allclose(-mixed / H, closed_form, rtol=1e-6)
np.testing.assert_allclose(closed_form, [-2 / 3, -1 / 3, 1], rtol=1e-6)

# %% [markdown]
# ### Exercise: How strong should a penalty be? (12 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Ridge regression finds the $w$ that minimises $\tfrac12 \lVert Xw - y \rVert^2 + \tfrac{\lambda}{2} \lVert w \rVert^2$. New data judge it: $\tfrac12 \lVert X_{\text{new}} w - y_{\text{new}} \rVert^2$. Return the derivative of this new loss with respect to the penalty $\lambda$ (`decay`, a scalar): should it be stronger or weaker?
# `x` and `new_x` are matrices with a row for each example, `y` and `new_y` vectors. Do it with the table, two linear solves and no tape.


# %%
def penalty_slope(x, y, new_x, new_y, decay):
    return ...  # a scalar


exercises.penalty.check(penalty_slope)

# %% [markdown]
# ## 4. Three hundred labels, one solve
#
# 300 images of digits come with labels, and 120 of these are wrong: stored as the next digit, a 3 as a 4, a 9 as a 0. Nobody tells you which. You trust the labels of 100 other images.
#
# Give each of the 300 a weight $s_i = 1$ in the training loss, and train softmax regression to the minimum: 650 weights, and a penalty. Newton steps get there, with the Hessian by `derivatives.hessian`.

# %%
images = data.load("digits")
order = rng.permutation(len(images.x_train))
pixels, digits = images.x_train[order].reshape(-1, 64).astype(np.float64), images.y_train[order]
wrong = np.zeros(300, bool)
wrong[rng.permutation(300)[:120]] = True
stored = np.where(wrong, (digits[:300] + 1) % 10, digits[:300])

noisy_x, noisy_y = tf.constant(pixels[:300]), tf.one_hot(stored, 10, dtype=tf.float64)
clean_x, clean_y = tf.constant(pixels[300:400]), tf.one_hot(digits[300:400], 10, dtype=tf.float64)


# %% tags=["nbval-ignore-output"]
def scores(w, x):
    return x @ tf.reshape(w[:640], [64, 10]) + w[640:]


def losses(w, x, y):
    """One for each example."""
    return -tf.reduce_sum(y * tf.nn.log_softmax(scores(w, x)), axis=1)


def training_loss(w, x, y, s, decay):
    return tf.reduce_mean(s * losses(w, x, y)) + decay / 2 * tf.reduce_sum(w**2)


@tf.function
def value_and_gradient(w, *problem):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = training_loss(w, *problem)
    return value, tape.gradient(value, w)


hessian = derivatives.hessian(training_loss)


def train(*problem, w=None):
    """The minimum of the training loss, by Newton steps; a step that climbs is halved."""
    w = tf.zeros(650, tf.float64) if w is None else w
    for _ in range(100):
        value, g = value_and_gradient(w, *problem)
        if tf.norm(g) < 1e-10:
            return w
        step = tf.linalg.solve(hessian(w, *problem), g[:, tf.newaxis])[:, 0]
        t = 1.0
        while value_and_gradient(w - t * step, *problem)[0] > value + 1e-12 and t > 1e-6:
            t /= 2
        w -= t * step
    raise RuntimeError("no minimum after 100 Newton steps")


ones, decay = tf.ones(300, tf.float64), tf.constant(1e-2, tf.float64)
trained_on = noisy_x, noisy_y, ones, decay
w = train(*trained_on)
H = hessian(w, *trained_on)
print("gradient at the minimum:", f"{tf.norm(value_and_gradient(w, *trained_on)[1]):.0e}")

# %% [markdown]
# Now the question, as a derivative. The loss on the 100 trusted images depends on $w^*$, and $w^*$ depends on the 300 weights. **How would the loss on the trusted images change if label $i$ counted a little more in training?** Retraining 300 times would tell. So does this: $v$, the solve, and one backward pass through the
# training gradient.


# %%
def pulls(u):
    """The derivative of -u'g with respect to the 300 weights, where g is the training loss's gradient."""
    with tf.GradientTape() as tape:
        tape.watch(ones)
        g = value_and_gradient(w, noisy_x, noisy_y, ones, decay)[1]
    return tape.gradient(g, ones, output_gradients=-u).numpy()


with tf.GradientTape() as tape:
    tape.watch(w)
    trusted_loss = tf.reduce_mean(losses(w, clean_x, clean_y))
v = tape.gradient(trusted_loss, w)  # 650 numbers

u = tf.linalg.solve(H, v[:, tf.newaxis])[:, 0]  # the one solve
harm = pulls(u)  # 300 derivatives
print("derivatives:", harm.shape, "of which positive:", np.sum(harm > 0))

# %% [markdown]
# A positive derivative means harm: more weight on this label, more loss on the trusted images. Thirty labels drawn at random would contain 12 wrong ones in the mean.
#
# **Predict.** How many of the 30 most harmful labels are wrong?

# %%
exercises.worst.guess(...)  # a number from 0 to 30

# %%
ranking = np.argsort(-harm)
print("wrong among the 30 most harmful: ", wrong[ranking[:30]].sum())
print("wrong among the 30 least harmful:", wrong[ranking[-30:]].sum())

# %% alt="Images and histograms. Above, the ten most harmful training images, each with the digit it was stored as, which is the one after the digit seen. Below, two histograms of the derivatives: right labels lie mostly below zero, wrong labels mostly above, and the two overlap around zero." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the ten most harmful labels, and all 300
figure = plt.figure(figsize=(9, 5), layout="constrained")
above, below = figure.subfigures(2, 1, height_ratios=[1, 2])
above.suptitle("The ten most harmful, with the digits they are stored as")
for ax, i in zip(above.subplots(1, 10), ranking[:10], strict=True):
    ax.imshow(pixels[i].reshape(8, 8), cmap="gray_r")
    ax.set_title(f"“{stored[i]}”", fontsize="medium")
    ax.set_axis_off()
ax = below.subplots()
bins = np.linspace(harm.min(), harm.max(), 41)
ax.hist(harm[~wrong], bins, color=plots.BLUE, alpha=0.6, label="right labels")
ax.hist(harm[wrong], bins, color=plots.RED, alpha=0.6, hatch="///", edgecolor="white", label="wrong labels")
ax.axvline(0, color="black", linewidth=1)
ax.set(title="300 derivatives of one trained classifier", ylabel="labels")
ax.set_xlabel("derivative of the trusted loss with respect to the label's weight (positive: harm)")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.worst.reveal(int(wrong[ranking[:30]].sum()))
assert wrong[ranking[:30]].sum() >= 27
assert wrong[ranking[-30:]].sum() <= 9
assert np.median(harm[wrong]) > 0 > np.median(harm[~wrong])
assert np.mean(stored[ranking[:10]] == (digits[ranking[:10]] + 1) % 10) > 0.75  # stored as the next digit
with tf.GradientTape() as tape:
    tape.watch(w)
    g = value_and_gradient(w, *trained_on)[1]
np.testing.assert_allclose(H, tape.jacobian(g, w), rtol=0, atol=1e-10)
with tf.GradientTape() as tape:
    tape.watch(w)
    each = losses(w, noisy_x, noisy_y)
rows = tape.jacobian(each, w)
np.testing.assert_allclose(harm, -tf.linalg.matvec(rows, u) / 300, rtol=0, atol=1e-10)  # the pulls, as in section 3

# %% [markdown]
# Thirty, in this run. As in section 3, entry $i$ is the pull of example $i$, $-\nabla \ell_i$, here multiplied by $\tfrac1{300} u^\top$, which turns it into a change of the trusted loss.
#
# A wrong label should also stand out by its own *training loss*, where the classifier disagrees with it. Score a ranking like this: draw one wrong label and one right one; how often does the wrong one rank higher? A coin gets 0.50.
#
# **Predict.** The derivative gets about 0.95. What does the training loss of each example get?

# %%
exercises.by_loss.guess(...)  # "about 0.5", "about 0.7" or "about 0.95"

# %%
rival = train(clean_x, clean_y, tf.ones(100, tf.float64), tf.constant(3e-3, tf.float64))
distances = np.linalg.norm(pixels[:300, np.newaxis] - pixels[300:400], axis=2)  # to each of the 100
same = digits[300:400] == stored[:, np.newaxis]
far = np.where(same, distances, np.inf).min(axis=1) / np.where(same, np.inf, distances).min(axis=1)
C = np.eye(65)
C[:64, 64] = -pixels[:300].mean(axis=0)  # C times the pixels and a 1: the pixels minus their means, and the 1
# The centred model's weights have the gradient C v. A step of theirs, times C.T, is a step of w.
centred = tf.reshape(C.T @ C @ tf.reshape(v, [65, 10]), [650])
rankings = {
    "the derivative": (harm, "a Hessian, a solve, the 100"),
    "the derivative with u = v, unsolved": (pulls(v), "the 100"),
    "unsolved, for centred pixels": (pulls(centred), "the 100"),
    "its own training loss": (losses(w, noisy_x, noisy_y).numpy(), "nothing more"),
    "its loss, trained on the 100 alone": (losses(rival, noisy_x, noisy_y).numpy(), "one more training, the 100"),
    "nearest of its label / of another": (far, "no training, the 100"),
}
parted = {}
for name, (score, takes) in rankings.items():
    parted[name] = np.mean(score[wrong][:, np.newaxis] > score[~wrong])  # over all pairs
    print(f"{name:36} {parted[name]:.2f}   takes {takes}")

# %% [markdown]
# About 0.7: the fourth line. The mistakes here have a system: of the images stored as 4, many are a 3, and the classifier learns part of that. (With as many labels wrong at random, the check finds above 0.94 for the loss.)
#
# Without the solve, $u = v$ asks what *one step* of gradient descent would do, and on these pixels that ranks badly (the second line). Subtract each pixel's mean, the same model with another bias, and one step ranks nearly as well here (the third line). So you do not solve to find wrong labels. You solve for a *derivative*, which two trainings confirm (section 6).
#
# Now the last two. Train on the 100 trusted images alone, and let *that* classifier judge. Or train nothing: divide the distance to the nearest trusted image of the stored label by that to the nearest of another label. In this run both rank at least as well as the derivative. So begin with them: with *one* trusted image of each class they were still ahead (the check). They have little to say about a label whose class has none; there the derivative ranks poorly, too (the appendix). But it answers what they do not: in which direction to move a penalty, or the weight of a whole source of data.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
by_loss = parted["its own training loss"]
exercises.by_loss.reveal("about 0.7" if 0.58 < by_loss < 0.82 else "about 0.5" if by_loss < 0.58 else "about 0.95")
assert 0.58 < by_loss < 0.82
assert 0.88 < parted["the derivative"] < 0.995
assert parted["the derivative with u = v, unsolved"] < parted["the derivative"] - 0.05
assert parted["unsolved, for centred pixels"] > parted["the derivative"] - 0.09
assert parted["its loss, trained on the 100 alone"] > max(0.95, parted["the derivative"] - 0.002)
assert parted["nearest of its label / of another"] > max(0.97, parted["the derivative"] - 0.002)
ten = np.unique(digits[300:400], return_index=True)[1]  # a trusted image of each class, in the order of the classes
ten_x, ten_y = tf.gather(clean_x, ten), tf.gather(clean_y, ten)
with tf.GradientTape() as tape:
    tape.watch(w)
    loss_of_ten = tf.reduce_mean(losses(w, ten_x, ten_y))
of_ten = pulls(tf.linalg.solve(H, tape.gradient(loss_of_ten, w)[:, tf.newaxis])[:, 0])
trained_on_ten = train(ten_x, ten_y, tf.ones(10, tf.float64), tf.constant(3e-3, tf.float64))
to_others = np.where(np.arange(10) == stored[:, np.newaxis], np.inf, distances[:, ten]).min(axis=1)
by_ten = [
    np.mean(score[wrong][:, np.newaxis] > score[~wrong])
    for score in (
        of_ten,
        losses(trained_on_ten, noisy_x, noisy_y).numpy(),
        distances[range(300), ten[stored]] / to_others,
    )
]
assert 0.7 < by_ten[0] < min(by_ten[1:]) < 1  # both rivals are ahead
as_stored = tf.argmax(scores(w, noisy_x), axis=1).numpy() == stored
assert as_stored[wrong].mean() > 0.3  # learnt as they are stored
at_random = np.where(wrong, (digits[:300] + np.random.default_rng(9).integers(1, 10, 300)) % 10, digits[:300])
random_y = tf.one_hot(at_random, 10, dtype=tf.float64)
random_loss = losses(train(noisy_x, random_y, ones, decay), noisy_x, random_y).numpy()
assert np.mean(random_loss[wrong][:, np.newaxis] > random_loss[~wrong]) > 0.94

# %% [markdown]
# ### Exercise: Count the solves (5 min)
#
# How many linear solves with $H$, of one right-hand side each, does each of these derivatives take at least? The classifier has 650 parameters, and there are 300 weights of labels. “All 650 parameters by …” asks for the derivatives of $w^*$ themselves.


# %%
solves = {
    "one loss by all 300 weights": ...,
    "three losses by all 300 weights": ...,
    "all 650 parameters by one of the 300 weights": ...,
    "all 650 parameters by all 300 weights": ...,
}

exercises.solves.check(solves)

# %% [markdown]
# ## 5. Going further: without the matrix
#
# A Hessian of 650 weights fits into memory; one of a million does not. But the adjoint equation $Hu = v$ asks for one solution, and [14](14_without_the_matrix.ipynb) solves such systems by conjugate gradients (CG), from products with $H$ alone. CG needs a symmetric matrix with positive eigenvalues, as $H$ is here; on section 1's $I - J$ it fails. A product is a gradient of a gradient.
#
# The rival again is unrolling: gradient descent with momentum (the heavy ball), at Polyak's rate and momentum for this spectrum, recorded from zero or from the solution.


# %%
@tf.function
def product(p):
    """The Hessian of the training loss times p."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        g = value_and_gradient(w, *trained_on)[1]
    return tape.gradient(g, w, output_gradients=p)


def by_cg(count):
    """The 300 derivatives with the solution of Hu = v after so many products."""
    u, residual, direction = tf.zeros_like(v), v, v
    for _ in range(count):
        along, squared = product(direction), tf.reduce_sum(residual**2)
        step = squared / tf.reduce_sum(direction * along)
        u += step * direction
        residual -= step * along
        direction = residual + tf.reduce_sum(residual**2) / squared * direction
    return pulls(u)


low, high = np.sqrt(np.linalg.eigvalsh(H)[[0, -1]])  # roots of the smallest and the largest eigenvalue
rate, momentum = (2 / (low + high)) ** 2, ((high - low) / (high + low)) ** 2  # Polyak's


def heavy_ball(start, count):
    """The 300 derivatives through recorded steps of training."""
    with tf.GradientTape() as tape:
        tape.watch(ones)
        point, velocity = start, tf.zeros_like(start)
        for _ in range(count):
            velocity = momentum * velocity - rate * value_and_gradient(point, *trained_on)[1]
            point += velocity
        loss = tf.reduce_mean(losses(point, clean_x, clean_y))
    return tape.gradient(loss, ones).numpy()


lengths = (5, 10, 20, 30, 40, 60)
ways = {
    "training recorded from zero": lambda n: heavy_ball(tf.zeros_like(w), n),
    "training recorded from the solution": lambda n: heavy_ball(w, n),
    "conjugate gradients": by_cg,
}
errors = {name: [np.linalg.norm(way(n) - harm) / np.linalg.norm(harm) for n in lengths] for name, way in ways.items()}

# %% tags=["nbval-ignore-output"]
for name, row in errors.items():
    print(f"{name:36} after 40: {row[4]:.0e}")

# %% alt="Line plot. Relative error of the 300 derivatives on a logarithmic axis against recorded steps or products. Training recorded from zero starts above one and falls late; recorded from the solution it falls at once, steadily; conjugate gradients falls far faster and is below one in a million after 40 products." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the error of the 300 derivatives
_, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
for (name, row), style, colour in zip(
    errors.items(), ("s-", "^--", "o-"), (plots.ORANGE, plots.GREEN, plots.BLUE), strict=True
):
    ax.semilogy(lengths, np.maximum(row, 1e-14), style, color=colour, label=name)
ax.set(title="The same 300 derivatives in three ways", xlabel="steps recorded, or products", ylabel="relative error")
ax.legend(fontsize="small")
plt.show()

# %% [markdown]
# In this run 40 products give CG seven digits of the 300 derivatives; 40 recorded steps give three from the solution, and two from zero. And CG keeps four vectors, where a recording keeps its steps.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(product(v), derivatives.hvp(training_loss)(w, *trained_on, vector=v), rtol=0, atol=1e-12)
at_40 = {name: row[4] for name, row in errors.items()}
assert at_40["conjugate gradients"] < 2e-6
assert 5e-5 < at_40["training recorded from the solution"] < 5e-2
assert at_40["training recorded from zero"] > 5e-3
assert at_40["training recorded from zero"] > 3 * at_40["training recorded from the solution"]

# %% [markdown]
# ## 6. Check it independently
#
# Find the equilibrium by another way, SciPy's root finder, and take a central difference of its results. For the labels, train again with one weight changed up and down.


# %%
def equilibrium_loss(weights):
    total = 0.0
    for row, aim in zip(x.numpy(), target.numpy(), strict=True):
        root = scipy.optimize.root(lambda z, row=row: np.tanh(z @ weights + row) - z, np.zeros(30), tol=1e-13).x
        total += np.sum((root - aim) ** 2) / 2
    return total


def trusted(s):
    retrained = train(noisy_x, noisy_y, s, decay, w=w)
    return float(tf.reduce_mean(losses(retrained, clean_x, clean_y)))


def difference(f, at, index, h):
    """A central difference of f by one entry."""
    shift = np.zeros_like(at)
    shift[index] = h
    return (f(at + shift) - f(at - shift)) / (2 * h)


entry = np.unravel_index(np.argmax(np.abs(by_layer)), by_layer.shape)
pairs = {
    "a weight of the layer": (by_layer.numpy()[entry], difference(equilibrium_loss, W.numpy(), entry, 1e-5)),
    "the most harmful label": (harm[ranking[0]], difference(trusted, np.ones(300), ranking[0], 1e-3)),
}

# %% tags=["nbval-ignore-output"]
for name, (theorem, by_difference) in pairs.items():
    print(f"{name:24} theorem {theorem:10.6f}   difference {by_difference:10.6f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for theorem, by_difference in pairs.values():
    np.testing.assert_allclose(theorem, by_difference, rtol=1e-5)
gradcheck.check_gradient(lambda W: tf.reduce_sum((iterate(W, cold, steps) - target) ** 2) / 2, by_layer, W)

# %% [markdown]
# <details><summary>Appendix: other seeds, other weights</summary>
#
# After 20 steps the equation's gradient was 2.5 to 15 times as good as the unrolled one (sixty seeds); with a symmetric $W$ of the same norm 1.3 to 2.2 times (twenty seeds). The cosine of one recorded step was about 0.7 with a spectral norm of 1.5, and 0.5 to 0.6 with a symmetric $W$ and $x$ ten times smaller. In section 4, in the draws tried, the derivative had 0.94 to 0.99, unsolved 0.57 to 0.87, centred 0.88 to 1.00. With one trusted image of each class, in thirty draws from three seeds, the derivative had 0.73 to 0.90, in the mean 0.82, and the rivals, ahead in every draw, 0.92 and 0.93. With ten at random, among labels of a class that had none, it had 0.70 in the mean, the classifier trained on the ten 0.65.
#
# </details>

# %% [markdown]
# ## Recap
#
# - A solution's derivative follows from its equation: solve $(I - J)^\top u = v$ once, then one backward pass through one application. The search left one tensor behind, and not one for each iterate (section 1).
# - Stopped after 20 steps, the equation's gradient erred by a few residuals; unrolled from the start it erred more. One recorded step pointed roughly downhill, with an error of about a half (section 2).
# - A minimum solves $\nabla_w \ell = 0$: solve $Hu = v$, then differentiate $-u^\top \nabla_w \ell$ with respect to the parameter (section 3).
# - One solve gives a derivative for each of 300 labels, and the 30 most harmful were wrong. Here the training loss saw less of the mistakes, which had a system; two rivals that judge by the trusted images alone ranked at least as well as the derivative (section 4).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | $J$ in the place of $J^\top$ | a gradient of plausible size, and wrong | `adjoint=True`; a central difference |
# | the iteration has not converged | a gradient with an error like the residual's, or larger | print the residual |
# | no `stop_gradient` around the search | every iterate is kept after all | see [07](07_custom_gradients.ipynb) |
# | a trainable `tf.Variable` read inside a `custom_gradient` whose backward has no `variables` | an error about `variables` | pass tensors |
# | you differentiated the minimum's *value* | no solve was needed, and the second loss does not occur | take $v$ from the second loss, solve with $H$ |
#
# **Further reading**
#
# - B. Christianson (1994), ["Reverse accumulation and attractive fixed points"](https://doi.org/10.1080/10556789408805572).
# - S. Bai, J. Z. Kolter, V. Koltun (2019), ["Deep equilibrium models"](https://arxiv.org/abs/1909.01377).
# - S. W. Fung and others (2022), ["JFB: Jacobian-free backpropagation for implicit networks"](https://arxiv.org/abs/2103.12803).
# - M. Blondel and others (2022), ["Efficient and modular implicit differentiation"](https://arxiv.org/abs/2105.15183).
# - J. Lorraine, P. Vicol, D. Duvenaud (2020), ["Optimizing millions of hyperparameters by implicit differentiation"](https://arxiv.org/abs/1911.02590).
# - P. W. Koh, P. Liang (2017), ["Understanding black-box predictions via influence functions"](https://arxiv.org/abs/1703.04730).
#
# **Read next:** [07 Custom gradients](07_custom_gradients.ipynb) has the scalar case in section 3;
# [14 Without the matrix](14_without_the_matrix.ipynb) has more on solving with products;
# [22 Influence functions](22_influence_functions.ipynb) asks the question of section 4 of every training example.
