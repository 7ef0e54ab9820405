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
# # Hessians and Newton's method
#
# The gradient tells you which way a loss falls. It does not tell you how far that holds. The second derivatives do: together
# they form the Hessian, one matrix for all the parameters.
# **How do second derivatives find a better step?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/10_hessians_and_newton.ipynb)
#
# **Prerequisites:** [09 Jacobians](09_jacobians.ipynb) · **Time:** about 50 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - build the Hessian of a layer with two tapes, and read its eigenvalues (section 1),
# - take a Newton step with `solve`, and damp it where the Hessian is singular (section 2),
# - say why a raw Newton step can climb, and keep it from doing so (section 3),
# - put all variables of a model into one Hessian, and say when that stops being possible (section 4),
# - multiply by a Hessian that is never formed, train a classifier with such products, and get each of these in one line (sections 5 and 6).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import functools

from tapelab import data, derivatives, gradcheck, optimize, plots, runtime
from tapelab.exercises.sheets import hessians_and_newton as exercises
from tapelab.interactive import saddle

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# Without this rewrite of graphs, which is for float32, the compiler has nothing to say about float64.
tf.config.optimizer.set_experimental_options({"remapping": False})
# Each eager call of `jacobian` compiles a function of its own, and TensorFlow warns of every one after the fifth.
tf.get_logger().setLevel("ERROR")

# %% tags=["parameters"]
seed = 0
epsilon = 1e-3  # damping of the Newton step in section 2
floor = 3e-4  # sections 3 and 4: damp when the lowest eigenvalue is below half of this
newton_steps = 60  # of the whole model, in section 4
dataset = "digits"  # or "mnist", which needs a network the first time
examples = 600  # training images in section 5
hidden = 16  # hidden units of the classifier in section 5
weight_decay = 1e-3  # factor of the squared weights in section 5's loss
learning_rate = 2.0  # of gradient descent in section 5, which also tries a half and a quarter of it
budget = 400  # gradient-equivalents that each method may spend in section 5

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. The Hessian of a layer
#
# A gradient has its source's shape. Differentiate it again, every element with respect to every element, and you have the
# **Hessian**, the Jacobian of the gradient. The inner tape makes the gradient, the outer tape's `jacobian` differentiates it.
#
# **Predict.** Take $f(w) = w_0^2\, w_1$ at $w = (3, 5)$. Which four numbers are in its Hessian?

# %%
exercises.four_numbers.guess([..., ..., ..., ...])  # row by row

# %%
w = tf.Variable([3.0, 5.0])

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        f = w[0] ** 2 * w[1]
    gradient = inner.gradient(f, w)
hessian = outer.jacobian(gradient, w)
print(hessian.numpy())

# %%
exercises.four_numbers.reveal(hessian.numpy().ravel())

# %%
np.testing.assert_allclose(gradient, [30.0, 9.0], rtol=1e-6)
np.testing.assert_allclose(hessian, [[10.0, 6.0], [6.0, 0.0]], rtol=1e-6)

# %% [markdown]
# Now a network of two ReLU layers, 5 → 8 → 6, on a batch of 7, with the mean of the squared outputs as its loss. The arithmetic is in
# float64: this notebook solves linear systems, which lose digits, and it wants to tell zero from small.

# %%
rng = np.random.default_rng(seed)
dense = functools.partial(tf.keras.layers.Dense, dtype="float64")
x = tf.constant(rng.normal(size=(7, 5)))

first = dense(8, activation="relu")
second = dense(6, activation="relu")
print("outputs:", second(first(x)).shape, " first kernel:", first.kernel.shape)

# %%
assert second(first(x)).shape == (7, 6)
assert tuple(first.kernel.shape) == (5, 8)

# %% [markdown]
# **Predict.** The source is the first kernel, of shape (5, 8). What is the shape of its gradient, and what is the shape of its Hessian?

# %%
exercises.hessian_shape.guess(...)  # the Hessian's shape

# %%
with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = second(first(x))
        loss = tf.reduce_mean(y**2)
    gradient = inner.gradient(loss, first.kernel)
hessian = outer.jacobian(gradient, first.kernel)
print("gradient:", gradient.shape)
print("Hessian: ", hessian.shape)

# %%
exercises.hessian_shape.reveal(hessian.shape)

# %%
assert gradient.shape == (5, 8)
assert hessian.shape == (5, 8, 5, 8)

# %% [markdown]
# To do linear algebra, flatten each pair: the 5 × 8
# parameters become one axis of 40, and the Hessian a matrix. Element $(i, j)$ of the kernel is row $8i + j$.
#
# **Predict.** What does the order of differentiation change? What does that say about the matrix?

# %%
g = tf.reshape(gradient, [40])
H = tf.reshape(hessian, [40, 40])
print("symmetric:", np.allclose(H, tf.transpose(H), rtol=0, atol=1e-12))

# %% alt="A symmetric 40 by 40 matrix of second derivatives with grid lines every 8 rows and columns; rows and columns of hidden units that never fire, if there are any, are blank."
ax = plots.matrix(
    H,
    title="Hessian of the first kernel, ReLU",
    xlabel="parameter (8 × input + unit)",
    ylabel="parameter (8 × input + unit)",
)
for edge in range(8, 40, 8):
    ax.axhline(edge - 0.5, color=plots.GREY, linewidth=0.5)
    ax.axvline(edge - 0.5, color=plots.GREY, linewidth=0.5)
ax.set_aspect("equal")
plt.show()

# %%
np.testing.assert_allclose(H, tf.transpose(H), rtol=0, atol=1e-12)

# %% [markdown]
# A symmetric matrix has real eigenvalues: the curvatures of the loss along 40 orthogonal directions. A zero among them is a direction
# in which the gradient does not change at all.
#
# **Predict.** The kernel has 40 parameters. How many of the 40 eigenvalues are zero: none, a few, or a large part?

# %%
eigenvalues = np.linalg.eigvalsh(H)
active_pairs = int(tf.math.count_nonzero(y))
zeros = int(np.sum(np.abs(eigenvalues) <= 1e-10 * eigenvalues.max()))
print("outputs that are not zero:", active_pairs, "of", tf.size(y).numpy())
print("zero eigenvalues:         ", zeros, "of 40")

# %% alt="The 40 eigenvalues in ascending order: a row of crosses at zero on the left, then positive eigenvalues that rise; none is negative."
plots.spectrum(eigenvalues, title="Eigenvalues of the ReLU network's Hessian", threshold=1e-10)
plt.show()

# %% [markdown]
# A ReLU network is made of flat pieces: within one piece, each output is a linear function of the first kernel. A squared linear function
# has a constant Hessian of rank one, and an output that ReLU has set to zero adds none. So the rank of $H$ is at most the number of
# outputs that are not zero, and none of its eigenvalues is negative.
#
# The formula behind that: with $J$ the Jacobian of the 42 outputs, $H = \frac{2}{42} J^\top J$.

# %%
with tf.GradientTape() as tape:
    y = second(first(x))
J = tf.reshape(tape.jacobian(y, first.kernel), [42, 40])

np.testing.assert_allclose(H, 2 / 42 * tf.transpose(J) @ J, rtol=0, atol=1e-12)
assert zeros >= 40 - active_pairs > 0
assert eigenvalues.min() > -1e-12

# %% [markdown]
# The count depends on the draw of the weights. Code that sets no seed gets another Hessian on each run. Here are ten draws.


# %%
@tf.function
def relu_hessian():
    """The outputs of the ReLU network, and its first kernel's Hessian, flattened."""
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            y = second(first(x))
            loss = tf.reduce_mean(y**2)
        gradient = inner.gradient(loss, first.kernel)
    return y, tf.reshape(outer.jacobian(gradient, first.kernel), [40, 40])


saved = [first.kernel.numpy(), second.kernel.numpy()]
counts, bounds = [], []
for _ in range(10):
    first.kernel.assign(rng.uniform(-0.7, 0.7, size=(5, 8)))
    second.kernel.assign(rng.uniform(-0.7, 0.7, size=(8, 6)))
    outputs, drawn = relu_hessian()
    values = np.abs(np.linalg.eigvalsh(drawn))
    counts.append(int(np.sum(values <= 1e-10 * values.max())))
    bounds.append(40 - int(tf.math.count_nonzero(outputs)))
first.kernel.assign(saved[0])
second.kernel.assign(saved[1])
print("zero eigenvalues in ten draws:", counts)

# %%
assert all(count >= bound for count, bound in zip(counts, bounds, strict=True))
assert len(set(counts)) > 1

# %% [markdown]
# ## 2. A Newton step
#
# Near $w$ the loss is about $L(w + s) \approx L(w) + g^\top s + \tfrac12 s^\top H s$. The right-hand side is stationary where $H s = -g$.
# That $s$ is the **Newton step**. It is the solution of a linear system: one call of `tf.linalg.solve`.
#
# If the loss *is* quadratic, nothing is approximate. Least squares with one linear layer is such a loss.
#
# **Predict.** From a random kernel, how many Newton steps lead to the least-squares solution?

# %%
exercises.one_step.guess(...)  # a number

# %%
labels = tf.constant(rng.normal(size=(7, 6)))
kernel = tf.Variable(rng.normal(size=(5, 6)))

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        loss = tf.reduce_mean((x @ kernel - labels) ** 2)
    gradient = inner.gradient(loss, kernel)
quadratic_hessian = tf.reshape(outer.jacobian(gradient, kernel), [30, 30])

step = tf.linalg.solve(quadratic_hessian, -tf.reshape(gradient, [30, 1]))  # solve takes a matrix of right-hand sides
kernel.assign_add(tf.reshape(step, [5, 6]))

solution = np.linalg.lstsq(x.numpy(), labels.numpy(), rcond=None)[0]
print("at the solution after one step:", np.allclose(kernel, solution, rtol=1e-6, atol=1e-8))

# %%
exercises.one_step.reveal(1 if np.allclose(kernel, solution, rtol=1e-6, atol=1e-8) else "more than 1")

# %% [markdown]
# A Hessian that was off by a factor of two would stop halfway, so this is a sharp test. The Hessian also has a closed form: every
# output has its own column of the kernel, and all columns share $\frac{2}{42} X^\top X$.

# %%
np.testing.assert_allclose(kernel, solution, rtol=1e-6, atol=1e-8)
np.testing.assert_allclose(
    quadratic_hessian, np.kron(2 / 42 * x.numpy().T @ x.numpy(), np.eye(6)), rtol=1e-10, atol=1e-12
)

# %% [markdown]
# **When the Hessian is singular.** The ReLU network's $H$ has zero eigenvalues. Then $Hs = -g$ has no unique solution, and what `solve`
# returns is made of rounding errors, unless it notices and refuses.
#
# **Predict.** Change the gradient's elements in their twelfth digit and solve again. Does the step change in its twelfth digit?


# %%
def try_solve(matrix, vector):
    """The solution of a linear system, shape (n,), or None where the solver refuses or overflows."""
    with runtime.quiet_stderr():  # a refusal also writes to the log
        try:
            solution = tf.linalg.solve(matrix, vector[:, None])[:, 0].numpy()
        except tf.errors.InvalidArgumentError:
            return None
    return solution if np.isfinite(solution).all() else None


def relative_change(matrix, vector):
    """How far the solution moves, as a part of its length, if the vector's twelfth digit changes; inf if none."""
    noise = 1 + 1e-12 * np.random.default_rng(0).normal(size=vector.shape)
    before, after = try_solve(matrix, vector), try_solve(matrix, vector * noise)
    if before is None or after is None:
        return np.inf
    return np.linalg.norm(after - before) / np.linalg.norm(before)


raw_change = relative_change(H, -g)
print("refused, or changed by more than 1 %:", raw_change > 0.01)

# %%
assert raw_change > 0.01

# %% [markdown]
# The cure is **damping**: add a small multiple $\varepsilon$ of the identity. Every eigenvalue grows by $\varepsilon$, so none is zero any more.
# The step now minimises the quadratic model plus $\tfrac{\varepsilon}{2}\lVert s\rVert^2$: in a flat direction it stays where it is.

# %%
damped = H + epsilon * tf.eye(40, dtype=tf.float64)
damped_change = relative_change(damped, -g)
step = tf.linalg.solve(damped, -g[:, None])

before = tf.reduce_mean(second(first(x)) ** 2)
first.kernel.assign_add(tf.reshape(step, [5, 8]))
after = tf.reduce_mean(second(first(x)) ** 2)
first.kernel.assign(saved[0])
print("changed by more than 1e-6:", damped_change > 1e-6)
print(f"loss: {before:.3g} before the step, {after:.3g} after it")

# %%
assert damped_change < 1e-6
assert after < 0.5 * before

# %% [markdown]
# **Solve, never invert.** Formulas write the step as $-H^{-1}g$. Computing `tf.linalg.inv(H) @ g` takes about three times the work of `solve`,
# and it loses digits. With very little damping you can see how many: put each step back into the equation, and look at what is left.
#
# **Predict.** Both are "the same formula". By which factor do the two residuals $\lVert Hs + g\rVert$ differ: none, 10, or more than 100?

# %%
exercises.residuals.guess(...)  # "none", "10" or "more than 100"

# %%
barely_damped = H + 1e-9 * tf.eye(40, dtype=tf.float64)
by_solve = tf.linalg.solve(barely_damped, -g[:, None])
by_inverse = tf.linalg.inv(barely_damped) @ -g[:, None]

solve_residual, inverse_residual = (float(tf.norm(barely_damped @ s + g[:, None])) for s in (by_solve, by_inverse))
print("inverse leaves more than 100 times as much:", inverse_residual > 100 * solve_residual)

# %%
exercises.residuals.reveal("more than 100" if inverse_residual > 100 * solve_residual else "100 or less")

# %%
assert inverse_residual > 100 * solve_residual

# %% [markdown]
# **A smooth activation.** The zeros came from ReLU: its second derivative is 0 wherever it exists, and its first is often 0 too. Keep the sizes and take `tanh`.
#
# **Predict.** Are the zeros gone? What else can an eigenvalue be, now that the outputs are curved functions of the kernel?

# %%
smooth_first = dense(8, activation="tanh")
smooth_second = dense(6, activation="tanh")

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        loss = tf.reduce_mean(smooth_second(smooth_first(x)) ** 2)
    gradient = inner.gradient(loss, smooth_first.kernel)
smooth_H = tf.reshape(outer.jacobian(gradient, smooth_first.kernel), [40, 40])
smooth_g = tf.reshape(gradient, [40])
smooth_eigenvalues = np.linalg.eigvalsh(smooth_H)

# %% alt="The 40 eigenvalues of the tanh network in ascending order: negative ones on the left, positive ones on the right, and none that counts as zero."
plots.spectrum(smooth_eigenvalues, title="Eigenvalues of the tanh network's Hessian", threshold=1e-10)
plt.show()

# %% [markdown]
# No eigenvalue is zero, and `solve` has a unique answer. But some are negative: along those directions the loss curves downwards. The next
# section shows what a Newton step does there.

# %%
assert np.all(np.abs(smooth_eigenvalues) > 1e-10 * np.abs(smooth_eigenvalues).max())
assert smooth_eigenvalues.min() < 0 < smooth_eigenvalues.max()
assert relative_change(smooth_H, -smooth_g) < 1e-3

# %% [markdown]
# ## 3. When the step climbs
#
# $Hs = -g$ asks for a place where the model's gradient vanishes. Nothing in it says *minimum*, and nothing says that the model is
# good that far away. Two functions of one variable, one for each failure:
#
# - $f(w) = \log\cosh w$ at $1.5$ is convex, and flattens out: $f'' = 1 - \tanh^2 w$ is small.
# - $f(w) = \tfrac14 w^4 - \tfrac12 w^2$ at $0.4$ has negative curvature: $f'' = 3w^2 - 1 < 0$.
#
# **Predict.** In which of the two does the step $-f'/f''$ point uphill? In which does it point downhill and still arrive higher?

# %%
exercises.uphill.guess(...)  # which points uphill: "log cosh", "double well", "both" or "neither"?


# %%
def log_cosh(w):
    return tf.math.log(tf.cosh(w))


def double_well(w):
    return w**4 / 4 - w**2 / 2


def derivatives_1d(f, w):
    """f, f' and f'' at w, three scalars."""
    w = tf.constant(w, tf.float64)
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = f(w)
        slope = inner.gradient(value, w)
    return value.numpy(), slope.numpy(), outer.gradient(slope, w).numpy()


cases = {"log cosh": (log_cosh, np.float64(1.5)), "double well": (double_well, np.float64(0.4))}
landed, slopes = {}, {}  # where the steps end, and the slope along each at its start
for name, (f, start) in cases.items():
    value, slope, curvature = derivatives_1d(f, start)
    landed[name] = start - slope / curvature
    slopes[name] = slope * (landed[name] - start)
    print(
        f"{name:11}  f = {value:7.4f}  f' = {slope:7.4f}  f'' = {curvature:7.4f}  lands on f = {f(landed[name]):7.4f}"
    )

# %%
exercises.uphill.reveal(" and ".join(name for name, slope in slopes.items() if slope > 0))

# %%
_, slope, curvature = derivatives_1d(log_cosh, 1.5)
np.testing.assert_allclose([slope, curvature], [np.tanh(1.5), 1 - np.tanh(1.5) ** 2], rtol=1e-12)
_, slope, curvature = derivatives_1d(double_well, 0.4)
np.testing.assert_allclose([slope, curvature], [0.4**3 - 0.4, 3 * 0.4**2 - 1], rtol=1e-12)
assert slopes["double well"] > 0 > slopes["log cosh"]
for name, (f, start) in cases.items():
    assert f(landed[name]) > f(start)  # both climb

# %% alt="Two curves, each with a dashed parabola that touches it at the start. Left: an upward parabola whose lowest point lies far beyond the valley, where the curve is higher. Right: a downward parabola whose highest point lies uphill from the start."
_, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, (name, (f, start)), span in zip(axes, cases.items(), ((-4.2, 2.5), (-1.4, 1.4)), strict=True):
    value, slope, curvature = derivatives_1d(f, start)
    points = np.linspace(*span, 201)
    curve = f(tf.constant(points)).numpy()
    ax.plot(points, curve, color=plots.BLUE, label="f")
    model = value + slope * (points - start) + curvature / 2 * (points - start) ** 2
    ax.plot(points, model, "--", color=plots.GREY, label="quadratic model at the start")
    ax.plot(start, value, "o", color=plots.GREEN, label="start")
    ax.plot(landed[name], f(landed[name]), "v", color=plots.RED, markersize=9, label="after the Newton step")
    turn = value - slope**2 / (2 * curvature)  # the model's lowest or highest value
    margin = 0.15 * np.ptp(curve)
    ax.set(title=name, xlabel="w", ylabel="f(w)", ylim=(min(curve.min(), turn) - margin, curve.max() + margin))
axes[0].legend(loc="upper right", fontsize="small")
plt.show()

# %% [markdown]
# The double well's step points **uphill**, towards the model's maximum: the slope along it is $-g^\top H^{-1} g = -f'^2/f''$, which is positive.
# Shortening it does not help. The `log cosh` step points downhill, and **overshoots**: a shorter one would do. So there are two cures.
#
# 1. **Damping** makes the direction right. If $H + \lambda I$ has only positive eigenvalues, the slope along the step is negative.
# 2. A **line search** makes the length right: halve the step until the loss has fallen by a small part of what the slope promises.


# %%
def line_search(loss, start, step, value, slope):
    """Halve the step until the loss is low enough; `slope` is that of the loss along the step. Returns the factor."""
    factor = 1.0
    while float(loss(start + factor * step)) > value + 1e-4 * factor * slope and factor > 1e-10:
        factor /= 2
    return factor


factors = {}
for name, (f, start) in cases.items():
    value, slope, curvature = derivatives_1d(f, start)
    damping = max(0.0, floor - 2 * curvature)
    step = -slope / (curvature + damping)
    factors[name] = line_search(f, start, step, value, slope * step)
    landed[name] = start + factors[name] * step
    print(f"{name:11}  damping {damping:.3f}  factor {factors[name]}  f: {value:7.4f} -> {f(landed[name]):7.4f}")

# %% [markdown]
# The line search halved the `log cosh` step once and left the other whole; damping turned the double well's step round and left the first alone.

# %%
assert factors == {"log cosh": 0.5, "double well": 1.0}
for name, (f, start) in cases.items():
    assert f(landed[name]) < f(start)

# %% [markdown]
# ### Exercise: Which steps point downhill? (5 min)
#
# In two dimensions a step has parts in both directions. Take a Hessian with one negative eigenvalue, and two gradients:
#
# $$H = \begin{pmatrix} 4 & 0 \\ 0 & -1 \end{pmatrix}, \qquad g = \begin{pmatrix} 4 \\ 1 \end{pmatrix} \text{ or } g = \begin{pmatrix} 1 \\ 4 \end{pmatrix}.$$
#
# For each step say whether it points downhill at its start, `True` or `False`: the raw Newton step, the Newton step with a damping $\lambda$, and the gradient step, $-g$ times a
# positive rate.

# %%
descends = {
    "raw, g = (4, 1)": ...,
    "raw, g = (1, 4)": ...,
    "damping 0.5, g = (1, 4)": ...,
    "damping 2, g = (1, 4)": ...,
    "gradient, g = (1, 4)": ...,
}
exercises.descends.check(descends)

# %% [markdown]
# Now move it yourself, on $f(x, y) = x^2 + \tfrac14 y^4 - \tfrac12 y^2$: a saddle at the origin, and a minimum on either side of it. The figure draws three steps from one start, and says
# whether each points downhill and whether it ends lower. On the right is the loss along each of them.
#
# **Predict.** Turn the damping down from 1. Where does the damped step turn round, and how long is it there? Then set it to 0 and move the start along $x$: can the raw step
# point downhill though the lowest eigenvalue is negative?

# %% alt="Left, contours of a function with a saddle in the middle and a minimum above and below it. From a start between saddle and upper minimum, the raw Newton step leads down past the saddle and is marked uphill; the damped step leads to near the minimum and the gradient step a short way towards it, both marked downhill. Right, the function along each step: the raw one rises, the two others fall."
saddle.figure().show()

# %% [markdown]
# The damped step turns round where the damping equals minus the lowest eigenvalue, here at 0.52. Near that point the matrix is nearly singular and the step is very long, on both sides. A
# little damping can therefore be worse than none.

# %%
for damping, downhill in ((0.0, False), (0.4, False), (0.6, True), (3.0, True)):
    taken = saddle.steps([0.2, 0.4], damping)["damped Newton"]
    assert (taken.slope < 0) == downhill
weak, raw = (saddle.steps([0.2, 0.4], damping)["damped Newton"].change for damping in (0.4, 0.0))
assert weak > raw > 0
assert saddle.steps([1.2, 0.4], 0.0)["raw Newton"].slope < 0

# %% [markdown]
# Back to the `tanh` network, with its negative eigenvalues. The damping follows the lowest of them, $\lambda_{\min}$: take
# $\lambda = \max(0, \text{floor} - 2\lambda_{\min})$. Where $\lambda_{\min}$ is safely positive that is 0, and the step is Newton's own.
#
# **Predict.** Walk along both steps, from 0 to the full length. Which of the two curves must start downwards?

# %%
lowest = smooth_eigenvalues.min()
damping = max(0.0, floor - 2 * lowest)
raw_step = tf.linalg.solve(smooth_H, -smooth_g[:, None])[:, 0]
damped_step = tf.linalg.solve(smooth_H + damping * tf.eye(40, dtype=tf.float64), -smooth_g[:, None])[:, 0]
smooth_start = smooth_first.kernel.numpy().reshape(40)


@tf.function
def smooth_loss(flat):
    """Put a flat kernel, shape (40,), into the tanh network; return the loss, a scalar."""
    smooth_first.kernel.assign(tf.reshape(flat, [5, 8]))
    return tf.reduce_mean(smooth_second(smooth_first(x)) ** 2)


fractions = np.linspace(0, 1, 41)
raw_walk = [float(smooth_loss(smooth_start + t * raw_step)) for t in fractions]
damped_walk = [float(smooth_loss(smooth_start + t * damped_step)) for t in fractions]
print(f"start {raw_walk[0]:.3f}, after the raw step {raw_walk[-1]:.3f}, after the damped step {damped_walk[-1]:.3f}")

# %% alt="The loss along two steps that leave from one point. Along the damped step the loss falls from the start and ends below it; along the raw Newton step it ends above the start."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(fractions, raw_walk, "--", color=plots.RED, label="raw Newton step")
ax.plot(fractions, damped_walk, color=plots.BLUE, label="damped step")
ax.axhline(raw_walk[0], color=plots.GREY, linewidth=0.8)
ax.set(title="The tanh network along two steps", xlabel="fraction of the step taken", ylabel="loss")
ax.legend()
plt.show()

# %% [markdown]
# The slope of the damped step is negative, whatever the network; that is what the damping was chosen for. The raw step has no such promise, and
# here it ends above its start.

# %%
assert float(tf.tensordot(smooth_g, damped_step, 1)) < 0
assert damped_walk[1] < damped_walk[0]
assert damped_walk[-1] < raw_walk[0] < raw_walk[-1]

# %% [markdown]
# A **damped Newton method** repeats this: derivatives, damping, solve, line search. `derivatives` is to return the loss, the gradient and the
# Hessian at a flat vector of parameters.


# %%
def newton(derivatives, loss, start, steps):
    """Damped, with a line search. Returns the last point, and rows of (loss, gradient norm)."""
    w, history = tf.constant(start), []
    for _ in range(steps):
        value, g, H = derivatives(w)
        history.append((float(value), float(tf.norm(g))))
        if history[-1][1] < 1e-12:  # nothing but rounding is left
            break
        damping = max(0.0, floor - 2 * float(tf.linalg.eigvalsh(H)[0]))
        step = tf.linalg.solve(H + damping * tf.eye(len(w), dtype=w.dtype), -g[:, None])[:, 0]
        w += line_search(loss, w, step, float(value), float(tf.tensordot(g, step, 1))) * step
    return w, np.array(history)


@tf.function
def smooth_derivatives(flat):
    """The loss, the gradient (40,) and the Hessian (40, 40) of the tanh network's first kernel."""
    smooth_first.kernel.assign(tf.reshape(flat, [5, 8]))
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean(smooth_second(smooth_first(x)) ** 2)
        gradient = inner.gradient(loss, smooth_first.kernel)
    hessian = outer.jacobian(gradient, smooth_first.kernel)
    return loss, tf.reshape(gradient, [40]), tf.reshape(hessian, [40, 40])


_, smooth_history = newton(smooth_derivatives, smooth_loss, smooth_start, 12)
print("the loss fell in every step:  ", np.all(np.diff(smooth_history[:, 0]) < 0))
print("it fell by a factor above 100:", smooth_history[-1, 0] < smooth_history[0, 0] / 100)

# %%
assert np.all(np.diff(smooth_history[:, 0]) < 0)
assert smooth_history[-1, 0] < smooth_history[0, 0] / 100

# %% [markdown]
# ### Exercise: A step that uses negative curvature (15 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Damping lifts all eigenvalues, so it shortens every part of the step, also those that were right. Here is another cure. Split the raw Newton step into its parts along the eigenvectors of $H$. Keep the
# length of each part, and give each the direction in which it points downhill. Return their sum.
#
# `g` is the gradient, shape $(n,)$; `H` is the Hessian, symmetric, of shape $(n, n)$ and of the same dtype. No eigenvalue is zero. Return a tensor of shape $(n,)$ and that dtype.


# %%
def downhill_step(g, H):
    return ...  # shape (n,)


exercises.downhill.check(downhill_step)

# %% [markdown]
# Each of those calls of `jacobian` is inside a `tf.function`. Called eagerly, `jacobian` is translated anew each time, which takes far longer
# than the arithmetic at these sizes.

# %% [markdown]
# ## 4. The whole model in one Hessian
#
# A model has several variables. Its Hessian has a **block** for every pair: the gradient with respect to one, differentiated with respect to
# another. The whole matrix takes concatenation to build and slicing to use.
#
# The model: 5 → 8 → 6, `tanh` and then linear, with targets, and a penalty on the squared weights that keeps the minimum from being flat.

# %%
model = tf.keras.Sequential([dense(8, activation="tanh"), dense(6)])
model.build((None, 5))
variables = model.trainable_variables
sizes = [int(np.prod(v.shape)) for v in variables]
n = sum(sizes)
print("shapes:", [tuple(v.shape) for v in variables])
print("sizes: ", sizes, " together:", n)


def model_loss():
    penalty = sum(tf.reduce_sum(v**2) for v in variables)
    return tf.reduce_mean((model(x) - labels) ** 2) + 0.02 * penalty


# %%
assert sizes == [40, 8, 48, 6]
assert n == 102

# %% [markdown]
# **Predict.** The gradient of the first kernel, (5, 8), is differentiated with respect to the second kernel, (8, 6). What is the shape of
# that block, and which axes belong to which kernel?

# %%
exercises.mixed_shape.guess(...)  # the shape

# %%
with tf.GradientTape(persistent=True) as outer:
    with tf.GradientTape() as inner:
        loss = model_loss()
    gradients = inner.gradient(loss, variables)

mixed = outer.jacobian(gradients[0], variables[2])
print("gradient of kernel 1, by kernel 2:", mixed.shape)

# %%
exercises.mixed_shape.reveal(mixed.shape)

# %%
assert mixed.shape == (5, 8, 8, 6)

# %% [markdown]
# The second axis and the third have length 8 for the same reason, and count the same hidden units.
#
# Now all 4 × 4 blocks. Each one is reshaped to (target's size, source's size). A row of blocks is concatenated along axis 1, and the rows
# along axis 0.

# %%
rows = []
for gradient, size in zip(gradients, sizes, strict=True):
    blocks = outer.jacobian(gradient, variables)  # one block for each variable
    rows.append(tf.concat([tf.reshape(b, [size, s]) for b, s in zip(blocks, sizes, strict=True)], axis=1))
whole = tf.concat(rows, axis=0)
del outer
print("whole Hessian:", whole.shape, " symmetric:", np.allclose(whole, tf.transpose(whole), rtol=0, atol=1e-12))

# %%
assert whole.shape == (102, 102)
np.testing.assert_allclose(whole, tf.transpose(whole), rtol=0, atol=1e-12)

# %% [markdown]
# Drawn, with lines between the blocks. The few largest entries would leave the rest pale, so the colours end at the 99th percentile.

# %% tags=["cover"] alt="A symmetric 102 by 102 matrix divided by lines into four by four blocks for kernel 1, bias 1, kernel 2 and bias 2; the block of kernel 2 with itself shows diagonal stripes."
edges = np.cumsum([0, *sizes])
names = ["kernel 1", "bias 1", "kernel 2", "bias 2"]
limit = float(np.quantile(np.abs(whole), 0.99))
ax = plots.matrix(
    whole,
    title="The Hessian of all 102 parameters",
    xlabel="source",
    ylabel="target",
    limit=limit,
)
for edge in edges[1:-1]:
    ax.axhline(edge - 0.5, color="black", linewidth=0.8)
    ax.axvline(edge - 0.5, color="black", linewidth=0.8)
ax.set_xticks((edges[:-1] + edges[1:] - 1) / 2, labels=names, rotation=30)
ax.set_yticks((edges[:-1] + edges[1:] - 1) / 2, labels=names)
ax.set_aspect("equal")
plt.show()

# %% [markdown]
# Slicing is the way back. A block's rows and columns are those of its two variables. The block below the diagonal is the transpose
# of the one above it: with four axes, the first pair and the last pair change places.

# %%
start_1, end_1, start_2, end_2 = edges[0], edges[1], edges[2], edges[3]
above = tf.reshape(whole[start_1:end_1, start_2:end_2], [5, 8, 8, 6])
below = tf.reshape(whole[start_2:end_2, start_1:end_1], [8, 6, 5, 8])

np.testing.assert_allclose(above, mixed, rtol=0, atol=1e-14)
np.testing.assert_allclose(below, tf.transpose(mixed, [2, 3, 0, 1]), rtol=0, atol=1e-12)

# %% [markdown]
# There is a shorter way: concatenate the *gradients* into one flat vector while the outer tape still records, and ask for that vector's
# Jacobian. One call in place of four, and the rows are in place already. `put` is the slicing in the other direction: a flat vector goes into the variables.


# %%
def flatten(tensors):
    """One vector, shape (n,), from the elements of all tensors."""
    return tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)


def put(flat):
    """Assign the slices of a flat vector, shape (n,), to the model's variables."""
    for variable, piece in zip(variables, tf.split(flat, sizes), strict=True):
        variable.assign(tf.reshape(piece, variable.shape))


@tf.function
def model_derivatives(flat):
    """The loss, the gradient (n,) and the Hessian (n, n) with respect to all variables."""
    put(flat)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = model_loss()
        g = flatten(inner.gradient(loss, variables))
    blocks = outer.jacobian(g, variables)
    return loss, g, tf.concat([tf.reshape(b, [n, s]) for b, s in zip(blocks, sizes, strict=True)], axis=1)


start = flatten(variables)
_, g_start, H_start = model_derivatives(start)
print("same matrix:", np.allclose(H_start, whole, rtol=0, atol=1e-12))

# %%
np.testing.assert_allclose(H_start, whole, rtol=0, atol=1e-12)

# %% [markdown]
# With that, section 3's method runs on the whole model. Its last steps are the point: once the damping is gone and the model
# fits, the gradient's norm is about *squared* by each step.
#
# **Predict.** Gradient descent takes as many steps from the same start. What shape does each curve have on a logarithmic axis?


# %%
@tf.function
def model_value(flat):
    put(flat)
    return model_loss()


@tf.function
def model_gradient(flat):
    put(flat)
    with tf.GradientTape() as tape:
        loss = model_loss()
    return flatten(tape.gradient(loss, variables))


minimum, history = newton(model_derivatives, model_value, start, newton_steps)

w, descent = start, []
for _ in range(newton_steps):
    g = model_gradient(w)
    descent.append(float(tf.norm(g)))
    w -= 0.5 * g

# %% alt="Gradient norm on a logarithmic axis against steps: gradient descent decreases slowly; damped Newton wanders at first and then drops to rounding error within a few steps."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.semilogy(history[:, 1], "o-", markersize=4, color=plots.BLUE, label="damped Newton, whole Hessian")
ax.semilogy(descent, "--", color=plots.ORANGE, label="gradient descent")
ax.set(title="All 102 parameters", xlabel="step", ylabel="norm of the gradient")
ax.legend()
plt.show()

# %%
_, _, H_minimum = model_derivatives(minimum)
lowest = np.linalg.eigvalsh(H_minimum)[0]
print("Newton arrived (gradient below 1e-8):", history[-1, 1] < 1e-8)
print("and it is a minimum:                 ", lowest > 0)

# %%
assert history[-1, 1] < 1e-8
assert np.min(history[1:, 1] / history[:-1, 1]) < 1e-2  # at least one step of the final plunge
assert descent[-1] > 1e-4
assert lowest > 0
assert np.all(np.diff(history[:, 0]) < 1e-12)

# %% [markdown]
# **Blocks that are None.** In this model every variable meets every other. Where two do not, there is no path for the tape to follow.
#
# **Predict.** $f(a, b) = \sum a_i^3 + \sum b_k^2$. What is the block of $a$'s gradient by $b$: a zero matrix, or `None`?

# %%
exercises.no_path.guess(...)  # "a zero matrix" or "None"

# %%
a = tf.Variable([1.0, 2.0, 3.0])
b = tf.Variable([4.0, 5.0])

with tf.GradientTape(persistent=True) as outer:
    with tf.GradientTape() as inner:
        f = tf.reduce_sum(a**3) + tf.reduce_sum(b**2)
    gradient_a, gradient_b = inner.gradient(f, [a, b])

block_aa, block_ab = outer.jacobian(gradient_a, [a, b])
print("by a:\n", block_aa.numpy())
print("by b:", block_ab)

# %%
exercises.no_path.reveal("None" if block_ab is None else "a matrix")

# %% [markdown]
# Mathematics says zero. Concatenation then stops with an error, a long way from its cause.

# %%
try:
    tf.concat([block_aa, block_ab], axis=1)
    message = "no error"
except (ValueError, TypeError) as error:
    message = type(error).__name__
print(message)

# %% [markdown]
# Ask for zeros by name, in every call that builds blocks.

# %%
rows = []
for gradient in (gradient_a, gradient_b):
    blocks = outer.jacobian(gradient, [a, b], unconnected_gradients="zero")
    rows.append(tf.concat(blocks, axis=1))
separable = tf.concat(rows, axis=0)
del outer
print(separable.numpy())

# %%
assert block_ab is None
assert message != "no error"
np.testing.assert_allclose(separable, np.diag([6.0, 12.0, 18.0, 2.0, 2.0]), rtol=1e-6)

# %% [markdown]
# ### Exercise: Four blocks, one matrix (12 min)
#
# `f` takes two tensors, `a` and `b`, of any shapes, to a scalar. Return its whole Hessian, of shape $(N, N)$, where $N$ counts the elements of `a` and of `b` together: first those of `a`, row by
# row, then those of `b`. `a` and `b` are tensors, not variables, and the result has their dtype. They may not interact.


# %%
def whole_hessian(f, a, b):
    return ...  # shape (N, N), with N the elements of a and b together


exercises.whole.check(whole_hessian)

# %% [markdown]
# **What $N^2$ means.** The Hessian of $N$ parameters has $N^2$ entries. Building it takes $N$ backward passes, and a factorisation
# (Cholesky's, the cheapest) about $N^3/3$ multiplications and as many additions.
#
# **Predict.** A gradient of a million float32 numbers takes 4 MB. How much does the Hessian take?

# %%
exercises.terabytes.guess(...)  # in TB (1 TB = 10**12 bytes)


# %%
def readable(size):
    """A number of bytes in decimal units."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.4g} {unit}"
        size /= 1000
    return f"{size:.4g} TB"


print("parameters   gradient    Hessian   factorisation at 1e12 operations/s")
for count in (40, 102, 1_000, 1_000_000):
    print(f"{count:10,} {readable(4 * count):>10} {readable(4 * count**2):>10}   {2 * count**3 / 3 / 1e12:.1e} s")

# %%
exercises.terabytes.reveal(4 * 1_000_000**2 / 1e12)

# %% [markdown]
# At a thousand parameters the matrix is a photograph, 4 MB. At a million, which is a small network, it is 4 TB, and one step would take more
# than a week. Newton's method has to do without the matrix.

# %%
assert readable(4 * 1_000**2) == "4 MB"
assert readable(4 * 1_000_000**2) == "4 TB"
assert 2 * 1_000_000**3 / 3 / 1e12 > 7 * 24 * 3600

# %% [markdown]
# ## 5. Hessian–vector products, and Newton–CG
#
# $Hv$ is the derivative of the gradient in the direction $v$. That is one number for each parameter, and no $N^2$ appears on the way.
# There are two ways to it. The first differentiates the scalar $g^\top v$, with $v$ constant: $\nabla (g^\top v) = Hv$.
#
# **Predict.** How many backward passes does that take: 1, 2, or as many as there are parameters?

# %%
put(start)
v = tf.constant(rng.normal(size=n))

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        loss = model_loss()
    g = flatten(inner.gradient(loss, variables))
    inner_product = tf.tensordot(g, v, 1)
nested = flatten(outer.gradient(inner_product, variables))
print("shape:", nested.shape, " equal to H @ v:", np.allclose(nested, tf.linalg.matvec(H_start, v), rtol=0, atol=1e-10))

# %% [markdown]
# Two: one for the gradient, one through it.

# %%
assert nested.shape == (102,)
np.testing.assert_allclose(nested, tf.linalg.matvec(H_start, v), rtol=0, atol=1e-10)

# %% [markdown]
# The second way is **forward-over-reverse**. A `ForwardAccumulator` carries a direction forwards through a computation. Wrap it round the
# computation of a gradient, and it delivers that gradient's derivative along the direction.
#
# It takes the variables and their directions as two equal structures. Keras 3 variables are not TensorFlow's, and it does not accept them.

# %%
directions = [tf.reshape(piece, w.shape) for piece, w in zip(tf.split(v, sizes), variables, strict=True)]

try:
    tf.autodiff.ForwardAccumulator(variables, directions)
    refused = False
except Exception:  # which one depends on the version
    refused = True
print("Keras variables are refused:", refused)

# %% [markdown]
# Each wraps a `tf.Variable`, its `.value`. Pass that. The tape may go on using the Keras variables.

# %%
with tf.autodiff.ForwardAccumulator([w.value for w in variables], directions) as accumulator:
    with tf.GradientTape() as tape:
        loss = model_loss()
    gradients = tape.gradient(loss, variables)
forward_over_reverse = flatten([accumulator.jvp(gradient) for gradient in gradients])
print("equal to H @ v:", np.allclose(forward_over_reverse, tf.linalg.matvec(H_start, v), rtol=0, atol=1e-10))

# %%
assert refused
np.testing.assert_allclose(forward_over_reverse, tf.linalg.matvec(H_start, v), rtol=0, atol=1e-10)

# %% [markdown]
# ### Exercise: A product with a Hessian of several tensors (8 min)
#
# `f(*xs)` takes the tensors in the list `xs`, of any shapes, to a scalar. `vs` is a list of directions, one for each tensor and of its shape. Return the product of the whole Hessian with the
# directions, as a list of tensors of those shapes again. Form no Hessian: two calls of `gradient` are enough. Where a part of the product is zero because nothing depends on that tensor, return zeros.


# %%
def hessian_product(f, xs, vs):
    return ...  # one tensor for each tensor in xs, and of its shape


exercises.product.check(hessian_product)

# %% [markdown]
# Products are enough to solve $Hs = -g$. **Conjugate gradients** (CG) builds the solution from one product in each round. It
# assumes positive curvature, and it sees $p^\top H p$ for each of its directions $p$. Where that is not positive it stops with what it has, or with the
# downhill direction if it has nothing: that takes the place of damping.


# %%
def conjugate_gradients(product, g, tolerance, limit):
    """Solve H s = -g, up to a residual norm. Returns s, the number of products, and whether p'Hp <= 0 was met."""
    s, residual, p = tf.zeros_like(g), -g, -g
    squared = float(tf.tensordot(residual, residual, 1))
    for count in range(1, limit + 1):
        Hp = product(p)
        curvature = float(tf.tensordot(p, Hp, 1))
        if curvature <= 0:
            return (p if count == 1 else s), count, True
        s += squared / curvature * p
        residual -= squared / curvature * Hp
        previous, squared = squared, float(tf.tensordot(residual, residual, 1))
        if squared**0.5 <= tolerance:
            break
        p = residual + squared / previous * p
    return s, count, False


# %% [markdown]
# At the minimum of section 4 the Hessian is positive definite. There, CG and `solve` must agree.


# %%
@tf.function
def model_product(flat, v):
    """H v at a point, both of shape (n,), by forward-over-reverse."""
    put(flat)
    pieces = [tf.reshape(piece, w.shape) for piece, w in zip(tf.split(v, sizes), variables, strict=True)]
    with tf.autodiff.ForwardAccumulator([w.value for w in variables], pieces) as accumulator:
        with tf.GradientTape() as tape:
            loss = model_loss()
        gradients = tape.gradient(loss, variables)
    return flatten([accumulator.jvp(gradient) for gradient in gradients])


by_cg, _, negative = conjugate_gradients(lambda p: model_product(minimum, p), v, 1e-10, 1000)
by_solve = tf.linalg.solve(H_minimum, -v[:, None])[:, 0]
print("CG agrees with solve:", np.allclose(by_cg, by_solve, rtol=1e-5, atol=1e-5 * np.abs(by_solve).max()))

# %%
assert not negative
np.testing.assert_allclose(by_cg, by_solve, rtol=1e-5, atol=1e-5 * np.abs(by_solve).max())

# %% [markdown]
# Now real data: the digits. Two classifiers: softmax regression, whose loss is convex, and a network with one hidden layer, whose loss is not.
# Both have the cross-entropy of the training images as their loss, plus the squared weights times a small factor.

# %%
images = data.load(dataset)
pixels = images.x_train[0].size
digits = tf.constant(images.x_train[:examples].reshape(-1, pixels), tf.float64)
one_hot = tf.one_hot(images.y_train[:examples], 10, dtype=tf.float64)
test_digits = tf.constant(images.x_test.reshape(-1, pixels), tf.float64)

classifiers = {
    "softmax regression": tf.keras.Sequential([dense(10)]),
    "one hidden layer": tf.keras.Sequential([dense(hidden, activation="tanh"), dense(10)]),
}
for name, classifier in classifiers.items():
    classifier.build((None, pixels))
    print(f"{name}: {classifier.count_params():,} parameters")

# %%
assert classifiers["softmax regression"].count_params() == (pixels + 1) * 10
assert classifiers["one hidden layer"].count_params() == (pixels + 1) * hidden + (hidden + 1) * 10

# %% [markdown]
# For each classifier, three compiled functions of a flat vector: the loss, the loss with its gradient, and a Hessian–vector product.


# %%
def compiled(classifier):
    """Returns the starting point (N,) and three functions of a point (N,): value, value_and_gradient, product."""
    variables = [v.value for v in classifier.trainable_variables]
    sizes = [int(tf.size(v)) for v in variables]

    def pieces(flat):
        return [tf.reshape(piece, v.shape) for piece, v in zip(tf.split(flat, sizes), variables, strict=True)]

    def loss_at(flat):
        for variable, piece in zip(variables, pieces(flat), strict=True):
            variable.assign(piece)
        return loss()

    def loss():
        log_p = tf.nn.log_softmax(classifier(digits))
        penalty = sum(tf.reduce_sum(v**2) for v in variables)
        return -tf.reduce_mean(tf.reduce_sum(one_hot * log_p, axis=1)) + weight_decay / 2 * penalty

    def value_and_gradient(flat):
        with tf.GradientTape() as tape:
            value = loss_at(flat)
        return value, flatten(tape.gradient(value, variables))

    def product(flat, v):
        for variable, piece in zip(variables, pieces(flat), strict=True):
            variable.assign(piece)
        with tf.autodiff.ForwardAccumulator(variables, pieces(v)) as accumulator:
            with tf.GradientTape() as tape:
                value = loss()
            gradients = tape.gradient(value, variables)
        return flatten([accumulator.jvp(gradient) for gradient in gradients])

    return flatten(variables), tf.function(loss_at), tf.function(value_and_gradient), tf.function(product)


problems = {name: compiled(classifier) for name, classifier in classifiers.items()}

# %% [markdown]
# A product with the classifier's Hessian is checked before it is used: it must be symmetric, $u^\top (Hv) = v^\top (Hu)$, and agree with a central
# difference of the gradient.

# %%
for origin, _, value_and_gradient, product in problems.values():
    u, v = tf.constant(rng.normal(size=(2, len(origin))))
    Hu, Hv = product(origin, u), product(origin, v)
    np.testing.assert_allclose(tf.tensordot(u, Hv, 1), tf.tensordot(v, Hu, 1), rtol=1e-8, atol=1e-8)
    difference = (value_and_gradient(origin + 1e-5 * v)[1] - value_and_gradient(origin - 1e-5 * v)[1]) / 2e-5
    np.testing.assert_allclose(Hv, difference, rtol=0, atol=1e-5 * float(tf.norm(Hv)))
print("both products are right")

# %% [markdown]
# **Newton–CG** puts the parts together. Each step solves $Hs = -g$ by CG, roughly while the gradient is large and more exactly as it shrinks, and then
# searches along $s$.
#
# A step is dearer than one of gradient descent, so count its work in **gradient-equivalents**: a gradient is 1, a product 2, a loss
# in the line search 1. These prices are round, and rather high for the last two.


# %%
def newton_cg(problem, budget):
    """Returns the last point, rows of (work, loss, gradient norm), and how many steps met negative curvature."""
    w, value, value_and_gradient, product = problem
    last, work, rows, met = w, 0, [], 0
    while True:
        current, g = value_and_gradient(w)
        norm = float(tf.norm(g))
        work += 1
        if work > budget:  # the step overran the budget and does not count
            return last, np.array(rows), met
        rows.append((work, float(current), norm))
        if norm < 1e-12:
            return w, np.array(rows), met
        last = w
        s, products, negative = conjugate_gradients(lambda p, w=w: product(w, p), g, min(0.5, norm**0.5) * norm, 60)
        factor = line_search(value, w, s, rows[-1][1], float(tf.tensordot(g, s, 1)))
        w += factor * s
        work += 2 * products + 1 - int(np.log2(factor))
        met += negative


def gradient_descent(problem, learning_rate, budget):
    """Returns rows of (work, loss, gradient norm)."""
    w, _, value_and_gradient, _ = problem
    rows = []
    for work in range(1, budget + 1):
        current, g = value_and_gradient(w)
        rows.append((work, float(current), float(tf.norm(g))))
        w -= learning_rate * g
    return np.array(rows)


# %% [markdown]
# **Predict.** Both methods may spend the same work. On which of the two losses will Newton–CG win by more?

# %%
learning_rates = (learning_rate / 4, learning_rate / 2, learning_rate)
fast = {name: newton_cg(problem, budget) for name, problem in problems.items()}
slow = {name: [gradient_descent(problem, r, budget) for r in learning_rates] for name, problem in problems.items()}
for name in problems:
    print(
        f"{name}: Newton–CG ends below gradient descent:", all(fast[name][1][-1, 1] < run[-1, 1] for run in slow[name])
    )

# %% alt="Two panels against gradient-equivalents. Left, softmax regression: the distance to the minimum falls below one in a billion with Newton\u2013CG while three gradient descent curves fall slowly. Right, one hidden layer: Newton\u2013CG's loss ends below the three gradient descent curves, by less."
_, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
for ax, name in zip(axes, problems, strict=True):
    lowest = fast[name][1][-1, 1] if name == "softmax regression" else 0.0
    for rate, run, style in zip(learning_rates, slow[name], ("-", "--", ":"), strict=True):
        ax.semilogy(run[:, 0], run[:, 1] - lowest, style, color=plots.ORANGE, label=f"gradient descent, rate {rate}")
    rows = fast[name][1]
    shown = rows[:, 1] - lowest > 1e-14
    ax.semilogy(rows[shown, 0], rows[shown, 1] - lowest, "o-", markersize=4, color=plots.BLUE, label="Newton–CG")
    ax.set(title=name, xlabel="work (gradient-equivalents)", ylabel="loss − minimum" if lowest else "loss")
axes[1].legend(fontsize="small")
plt.show()

# %% [markdown]
# On the convex loss, Newton–CG reaches the minimum to rounding error. It is known to be the minimum: the penalty makes every
# eigenvalue of the Hessian at least `weight_decay`, so the loss is above its minimum by at most $\lVert g\rVert^2 / (2\,\texttt{weight\_decay})$.
#
# On the network it leads by less than a factor of two. There it meets negative curvature, where CG stops early and the step is no
# longer Newton's. Curvature pays most where the loss is nearly quadratic.

# %%
rows = fast["softmax regression"][1]
excess = rows[-1, 2] ** 2 / (2 * weight_decay)
best_descent = min(run[-1, 1] for run in slow["softmax regression"])
print("softmax regression: within 1e-9 of the minimum:", excess < 1e-9)
print("gradient descent still above it by 1e-4:       ", best_descent - rows[-1, 1] > 1e-4)
print("network: met negative curvature:               ", fast["one hidden layer"][2] > 0)

# %%
assert excess < 1e-9
assert best_descent - rows[-1, 1] > 1e-4
assert fast["softmax regression"][2] == 0  # convex: never negative
assert fast["one hidden layer"][2] > 0
assert min(run[-1, 1] for run in slow["one hidden layer"]) < 2 * fast["one hidden layer"][1][-1, 1]
for name in problems:
    assert np.all(np.diff(fast[name][1][:, 1]) < 1e-12)  # the line search lets no step climb
    assert all(fast[name][1][-1, 1] < run[-1, 1] for run in slow[name])

# %% [markdown]
# A low training loss is not the aim; the test images are. Both classifiers do well on them.

# %%
accuracy = {}
for name, classifier in classifiers.items():
    problems[name][1](fast[name][0])  # puts Newton–CG's last point into the classifier
    accuracy[name] = float(np.mean(np.argmax(classifier(test_digits), axis=1) == images.y_test))
    print(f"{name}: test accuracy above 80 %:", accuracy[name] > 0.8)

# %%
assert all(value > 0.8 for value in accuracy.values())

# %% [markdown]
# ## 6. In one line
#
# Everything above was written out, so that nothing is hidden. In your own code, call `tapelab.derivatives` and `tapelab.optimize`: they are
# compiled, check what they are given, and take Keras variables as they are.
#
# **Predict.** `derivatives.hessian(model_loss, wrt=variables, packed=True)` returns a function. What shape has the matrix that *it* returns? In
# which order are its rows?

# %%
put(start)
packed = derivatives.hessian(model_loss, wrt=variables, packed=True)()
product = derivatives.hvp(model_loss, wrt=variables)(directions)  # in the structure of the variables
print("hessian:", packed.shape, " equal to section 4's:", np.allclose(packed, H_start, rtol=0, atol=1e-10))
print("hvp:    ", [tuple(part.shape) for part in product])

# %% [markdown]
# All 102 parameters, in the order in which section 4 concatenated them: variable by variable, and each of them row by row.

# %%
assert packed.shape == (102, 102)
np.testing.assert_allclose(packed, H_start, rtol=0, atol=1e-10)
assert [part.shape for part in product] == [v.shape for v in variables]
np.testing.assert_allclose(derivatives.pack(product), forward_over_reverse, rtol=0, atol=1e-10)

# %% [markdown]
# The minimisers change the variables, and return a report of what they did. `optimize.newton` adapts its damping in another way than yours, so from a
# distant start the two may end in different minima. From a point near the minimum of section 4, both must return to it.

# %%
nearby = minimum + 1e-3 * rng.normal(size=n)
by_hand, _ = newton(model_derivatives, model_value, nearby, newton_steps)

put(nearby)
report = optimize.newton(model_loss, wrt=variables, iterations=newton_steps, tolerance=1e-9)
print("it converged:     ", report.converged)
print("to the same point:", np.allclose(flatten(variables), by_hand, rtol=0, atol=1e-5))

# %%
assert report.converged
assert report.gradient_norm <= 1e-9
np.testing.assert_allclose(flatten(variables), by_hand, rtol=0, atol=1e-5)
np.testing.assert_allclose(by_hand, minimum, rtol=0, atol=1e-5)

# %% [markdown]
# The loss of softmax regression is convex and has one minimum, so there the start does not matter. The helper passes on what follows the loss, here the images
# and their labels.


# %%
def softmax_loss(images, labels):
    log_p = tf.nn.log_softmax(softmax(images))
    penalty = sum(tf.reduce_sum(v**2) for v in softmax.trainable_variables)
    return -tf.reduce_mean(tf.reduce_sum(labels * log_p, axis=1)) + weight_decay / 2 * penalty


softmax = classifiers["softmax regression"]
for variable in softmax.trainable_variables:
    variable.assign(tf.zeros_like(variable))
report = optimize.newton_cg(
    softmax_loss, digits, one_hot, wrt=softmax.trainable_variables, iterations=60, tolerance=1e-7
)
difference = abs(report.value - fast["softmax regression"][1][-1, 1])
print("it converged:                       ", report.converged)
print("to section 5's loss, to within 1e-8:", difference < 1e-8)

# %%
assert report.converged
assert difference < 1e-8
assert all(step.slope < 0 and not step.negative_curvature for step in report.iterations)

# %% [markdown]
# ## 7. Check it independently
#
# Nothing below the next line knows of tapes: the loss of section 4's model, written in NumPy.


# %%
def numpy_loss(flat):
    kernel_1, bias_1, kernel_2, bias_2 = np.split(flat, np.cumsum(sizes)[:-1])
    h = np.tanh(x.numpy() @ kernel_1.reshape(5, 8) + bias_1)
    y = h @ kernel_2.reshape(8, 6) + bias_2
    return np.mean((y - labels.numpy()) ** 2) + 0.02 * np.sum(flat**2)


point = start.numpy()
np.testing.assert_allclose(numpy_loss(point), model_value(start), rtol=1e-12)

# %% [markdown]
# First the gradient, from differences of this loss. Then all 102 × 102 second derivatives, from differences of that gradient. Last, the
# curvature $v^\top H v$ along random directions, from second differences of the loss, without any gradient.

# %%
gradient_error = gradcheck.check_gradient(numpy_loss, g_start, point)
numerical = gradcheck.numerical_jacobian(model_gradient, point)
hessian_error = np.abs(H_start - numerical).max()

curvature_errors = []
for direction in rng.normal(size=(5, n)):
    direction /= np.linalg.norm(direction)
    shifted = [numpy_loss(point + shift * direction) for shift in (1e-4, 0.0, -1e-4)]
    expected = (shifted[0] - 2 * shifted[1] + shifted[2]) / 1e-8
    curvature_errors.append(abs(direction @ H_start.numpy() @ direction - expected))

print("gradient, from the loss:   within 1e-6:", gradient_error < 1e-6)
print("Hessian, from the gradient: within 1e-6:", hessian_error < 1e-6)
print("curvature, from the loss:  within 1e-5:", max(curvature_errors) < 1e-5)

# %%
assert numerical.shape == (102, 102)
assert gradient_error < 1e-6
assert hessian_error < 1e-6
assert max(curvature_errors) < 1e-5
assert np.abs(numerical).max() > 0.1  # the tolerances are small beside the entries

# %% [markdown]
# ## Recap
#
# - The Hessian is the Jacobian of the gradient: two tapes, `gradient` inside, `jacobian` outside, axes of the target first. Flattened it is symmetric; its eigenvalues are curvatures, and ReLU makes many of them zero (section 1).
# - A Newton step is `solve(H, -g)`, never a product with an inverse; it is exact for a quadratic loss, and needs damping where the Hessian is singular (section 2).
# - A raw step climbs where the curvature is negative or the model is trusted too far. Damping cures the direction, a line search the length (section 3).
# - All variables go into one Hessian by reshaping and concatenating its blocks, or by flattening the gradient first. It has $N^2$ entries: 4 MB for a thousand parameters, 4 TB for a million (section 4).
# - $Hv$ costs about as much as a few gradients, by nested tapes or forward-over-reverse. With it, Newton–CG trains a classifier and no Hessian is formed. `derivatives.hessian`, `derivatives.hvp`, `optimize.newton` and `optimize.newton_cg` are these in one line (sections 5 and 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | ReLU networks have singular Hessians | `solve` refuses, or returns rounding errors | damp, or use a smooth activation |
# | the Hessian has negative eigenvalues | a step that climbs, however short | damp by more than the lowest eigenvalue |
# | the quadratic model is trusted too far | a step that overshoots and climbs | line search |
# | `inv(H) @ g` | lost digits, three times the work | `solve` |
# | two variables do not interact | a block that is `None`, an error in `concat` | `unconnected_gradients="zero"` |
# | a Keras 3 variable in `ForwardAccumulator` | an error that names something else | pass `.value` |
# | eager `jacobian` in a loop | far slower than its arithmetic | put it in a `tf.function` |
# | the Hessian of a large model | no memory | Hessian–vector products |
#
# **Read next:** [11 Batch Jacobians](11_batch_jacobians.ipynb) asks for one Jacobian for each example;
# [13 What derivatives cost](13_what_derivatives_cost.ipynb) measures a Hessian against its products with vectors.
