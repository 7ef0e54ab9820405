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
# # Hessians and Newton's method
#
# The gradient says which way a loss falls. It does not say how far that stays true. The second derivatives say how the gradient changes, and together
# they form one matrix, the Hessian. **How do second derivatives find a better step?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/13_hessians_and_newton.ipynb)
#
# **Prerequisites:** [11 Jacobians](11_jacobians.ipynb) · **Minutes:** 19 to read, 7 more to go further, 32 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
epsilon = 1e-3  # damping of the Newton step in section 2: between 1e-4 and 3e-3
floor = 3e-4  # sections 3, 4 and 7: damp when the lowest eigenvalue is below half of this: between 1e-4 and 1e-3
newton_steps = 60  # at most, for the whole model in section 7: between 50 and 90

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import functools

from tapelab import derivatives, gradcheck, optimize, plots, runtime
from tapelab.exercises.sheets import hessians_and_newton as exercises
from tapelab.interactive import saddle

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %% [markdown]
# Rosenbrock's function is a curved valley, steep across and nearly flat along, with its minimum, 0, at $(1, 1)$. `second_order` nests two tapes: here it
# returns the loss, its gradient $g$ and the matrix $H$ of its second derivatives. From a distant start, a thousand gradient steps race against six steps
# of Newton's method, which solves a linear system with $H$ for each.


# %%
tf.get_logger().setLevel("ERROR")  # `second_order` is traced for each new function; TensorFlow would warn of it


def banana(w):
    return (1 - w[0]) ** 2 + 100 * (w[1] - w[0] ** 2) ** 2


@tf.function
def second_order(f, w):
    """The value of f at w, its gradient and its Hessian."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = f(w)
        g = inner.gradient(value, w)
    return value, g, outer.jacobian(g, w)


far = tf.constant([-1.2, 1.0], tf.float64)
print("Hessian at the start:", np.round(second_order(banana, far)[2], 4).tolist())

# %% tags=["nbval-ignore-output"]
w, descent = far, [far]
for _ in range(1000):
    w -= 0.001 * second_order(banana, w)[1]  # the gradient alone
    descent.append(w)
print(f"gradient descent, 1000 steps: loss {banana(w):.2g}")

w, raw_newton = far, [far]
for _ in range(6):
    _, g, H = second_order(banana, w)
    w += tf.linalg.solve(H, -g[:, None])[:, 0]
    raw_newton.append(w)
print(f"Newton's method,    6 steps: loss {banana(w):.2g}")

# %% alt="Contour plot. Contours of a narrow valley shaped like a banana. Gradient descent creeps along its floor and stops well short of the minimum; Newton's path of six steps leaves the valley once, far below the picture's middle, and ends on the minimum." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: both paths on the contours


def contours(ax, title, low=-3.4):
    """Rosenbrock's function as contours, its start and its minimum."""
    across, up = np.meshgrid(np.linspace(-1.6, 1.6, 161), np.linspace(low, 2.4, 161))
    heights = (1 - across) ** 2 + 100 * (up - across**2) ** 2
    ax.contour(across, up, np.log10(heights + 1e-3), levels=12, colors=plots.GREY, linewidths=0.5)
    ax.plot(*far, "s", color="black")
    ax.plot(1, 1, "*", color="black", markersize=12)
    ax.annotate("start", far, (-4, 8), textcoords="offset points", ha="right")
    ax.annotate("minimum", (1, 1), (8, 2), textcoords="offset points")
    ax.set(title=title, xlabel="$w_0$", ylabel="$w_1$", xlim=(-1.6, 1.6), ylim=(low, 2.4))


_, ax = plt.subplots(figsize=(7, 5), layout="constrained")
contours(ax, "Six Newton steps arrive; a thousand gradient steps do not")
ax.plot(*np.transpose(descent), color=plots.ORANGE, linewidth=3, label="gradient descent, 1000 steps")
ax.plot(*np.transpose(raw_newton), "o--", color=plots.BLUE, markersize=5, label="Newton's method, 6 steps")
ax.legend(loc="lower left")
plt.show()

# %% [markdown]
# Six steps, and a detour: the second jumps out of the valley, from a loss of 4.7 to one of 1412. Why is the step so good, and why can it go so
# wrong?
#
# **You will be able to**
#
# - build the Hessian of a layer, and say why most of its eigenvalues are zero here (section 1),
# - take a Newton step with `solve`, and damp it where the Hessian is singular (section 2),
# - say why a raw Newton step can climb, and cure its direction and its length (section 3),
# - put all variables of a model into one Hessian, and say when that stops (sections 5 and 6).

# %% [markdown]
# ## 1. The Hessian of a layer
#
# Differentiate every element of a gradient again, with respect to every element of the source, and you have the **Hessian**:
# the Jacobian of the gradient. For Rosenbrock's function you can do it by hand:
#
# $$H = \begin{pmatrix} 1200\,w_0^2 - 400\,w_1 + 2 & -400\,w_0 \\ -400\,w_0 & 200 \end{pmatrix},$$
#
# which at $(-1.2, 1)$ is the matrix printed above.
#
# Now a network of two ReLU layers, 5 → 8 → 6, on a batch of 7, with the mean of the squared outputs as its loss. The source is the first kernel. float64
# tells zero from small here.

# %%
# One of TensorFlow's graph rewrites warns about float64 layers: off.
tf.config.optimizer.set_experimental_options({"remapping": False})

rng = np.random.default_rng(seed)
dense = functools.partial(tf.keras.layers.Dense, dtype="float64")
x = tf.constant(rng.normal(size=(7, 5)))
first, second = dense(8, activation="relu"), dense(6, activation="relu")

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = second(first(x))
        loss = tf.reduce_mean(y**2)
    gradient = inner.gradient(loss, first.kernel)
hessian = outer.jacobian(gradient, first.kernel)

g, H = tf.reshape(gradient, [40]), tf.reshape(hessian, [40, 40])
print("gradient:", gradient.shape)
print("Hessian: ", hessian.shape)
print("H:       ", H.shape)

# %% [markdown]
# Both pairs of axes are (5, 8), the target's first. `tf.reshape` flattens each pair. The matrix is symmetric, because the order of two
# derivatives does not matter where the second derivatives are continuous.

# %% alt="Heat map. A symmetric 40 by 40 matrix of second derivatives with grid lines every 8 rows and columns. Rows and columns of hidden units that reach no output, if there are any, are blank." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
_, ax = plt.subplots(figsize=(5.6, 4.6), layout="constrained")
axis = "parameter (8 × input + unit)"
plots.matrix(H, title="The Hessian of the first kernel is symmetric", xlabel=axis, ylabel=axis, ax=ax)
for edge in range(8, 40, 8):
    ax.axhline(edge - 0.5, color=plots.GREY, linewidth=0.5)
    ax.axvline(edge - 0.5, color=plots.GREY, linewidth=0.5)
ax.set_aspect("equal")
plt.show()

# %% [markdown]
# A real symmetric matrix has real eigenvalues $\lambda$ and an orthogonal basis of eigenvectors $v$, with $Hv = \lambda v$. The eigenvalues of a Hessian are
# **curvatures**: along an eigenvector the gradient changes at the rate of its eigenvalue.
#
# **Predict.** How many of the 40 eigenvalues are zero: none, one to five, or ten or more?

# %%
exercises.zeros.guess(...)  # "none", "one to five" or "ten or more"

# %%
eigenvalues = np.linalg.eigvalsh(H)
zeros = int(np.sum(np.abs(eigenvalues) <= 1e-10 * eigenvalues.max()))
active = int(tf.math.count_nonzero(y))
print("zero eigenvalues:         ", zeros, "of 40")
print("outputs that are not zero:", active, "of", int(tf.size(y)))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.zeros.reveal("none" if zeros == 0 else "one to five" if zeros <= 5 else "ten or more")
assert gradient.shape == (5, 8)
assert hessian.shape == (5, 8, 5, 8)
np.testing.assert_allclose(H, tf.transpose(H), rtol=0, atol=1e-12)
assert zeros >= max(10, 40 - active)
assert eigenvalues.min() > -1e-12
at_far, slope_at_far, curvature_at_far = second_order(banana, far)
np.testing.assert_allclose(slope_at_far, [-215.6, -88.0], rtol=1e-12)
np.testing.assert_allclose(curvature_at_far, [[1330.0, 480.0], [480.0, 200.0]], rtol=1e-12)
assert banana(descent[-1]) > 0.4
assert descent[-1][0] < 0.4  # well short of 1
losses = [float(banana(point)) for point in raw_newton]
np.testing.assert_allclose(losses[:3], [24.2, 4.731884, 1411.845], rtol=1e-5)  # the published run
assert losses[-1] < 1e-15

# %% [markdown]
# The count of outputs says why. Near this kernel each output is a *linear* function of it, until a unit switches. Its square has a
# constant Hessian of rank one at most, and an output that ReLU has set to zero contributes nothing. With $J$ the Jacobian of the 42 outputs:
#
# $$H = \tfrac{2}{42}\, J^\top J, \qquad \operatorname{rank} H = \operatorname{rank} J \le \text{active outputs}.$$
#
# $J^\top J$ is the **Gauss–Newton matrix**. On paper it has no negative eigenvalue, because $v^\top J^\top J v = \lVert Jv\rVert^2$.


# %% tags=["nbval-ignore-output"]
@tf.function  # an eager call of `jacobian` is translated anew each time
def jacobian_of_outputs():
    with tf.GradientTape() as tape:
        y = second(first(x))
    return tape.jacobian(y, first.kernel)


J = tf.reshape(jacobian_of_outputs(), [42, 40])
gauss_newton_matrix = 2 / 42 * tf.transpose(J) @ J
print("largest entry of H:            ", f"{np.abs(H).max():.3f}")
print("largest entry of H − 2/42 JᵀJ: ", f"{np.abs(H - gauss_newton_matrix).max():.0e}")

# %% [markdown]
# The bound of 12 active outputs leaves at least 28 zeros among 40.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(H, gauss_newton_matrix, rtol=0, atol=1e-12)
assert np.linalg.matrix_rank(J) == 40 - zeros
check_flat = np.linalg.eigvalsh(np.kron(x.numpy().T @ x.numpy(), second.kernel.numpy() @ second.kernel.numpy().T))
assert np.sum(check_flat < 1e-10 * check_flat.max()) == 10  # without an activation

# %% [markdown]
# ## 2. A Newton step
#
# Near $w$ a smooth loss is about
#
# $$L(w + s) \approx L(w) + g^\top s + \tfrac12\, s^\top H s.$$
#
# The right-hand side, the **quadratic model**, is stationary where $Hs = -g$. That $s$ is the **Newton step**: one call of `tf.linalg.solve`.
#
# If the loss *is* quadratic, the model is the loss: least squares with one linear layer, here from a random kernel of shape (5, 6).

# %% tags=["nbval-ignore-output"]
labels = tf.constant(rng.normal(size=(7, 6)))
kernel = tf.constant(rng.normal(size=30))


def least_squares(flat):
    return tf.reduce_mean((x @ tf.reshape(flat, [5, 6]) - labels) ** 2)


solution = np.linalg.lstsq(x.numpy(), labels.numpy(), rcond=None)[0].ravel()
distances = []
for taken in range(3):
    distances.append(np.linalg.norm(kernel - solution))
    print(f"after {taken} steps: distance {distances[-1]:.0e}")
    _, slope, quadratic = second_order(least_squares, kernel)
    kernel += tf.linalg.solve(quadratic, -slope[:, None])[:, 0]  # a matrix of right-hand sides

# %% [markdown]
# One step; the second changes only rounding errors.
#
# **A singular Hessian.** With 7 examples the ReLU network's $Hs = -g$ has no unique solution. Solve it twice, the second time with each element of $g$
# changed in its twelfth digit.


# %% tags=["nbval-ignore-output"]
def solve(matrix, vector):
    """The solution, shape (n,); NaN where the solver finds the matrix singular and refuses."""
    try:
        with runtime.quiet_stderr():  # a refusal also writes to the log
            return tf.linalg.solve(matrix, vector[:, None])[:, 0].numpy()
    except tf.errors.InvalidArgumentError:
        return np.full(len(vector), np.nan)


def network_loss(activation, examples):
    """The loss as a function of the first kernel, flat, shape (40,)."""

    def loss(flat):
        hidden = activation(examples @ tf.reshape(flat, [5, 8]))
        return tf.reduce_mean(activation(hidden @ second.kernel) ** 2)

    return loss


nudged = g * (1 + 1e-12 * rng.normal(size=40))
damped = H + epsilon * tf.eye(40, dtype=tf.float64)
for name, matrix in {"H": H, "H + εI": damped}.items():
    step, other = solve(matrix, -g), solve(matrix, -nudged)
    change = np.linalg.norm(other - step) / np.linalg.norm(step)
    print(f"{name:6}  step of length {np.linalg.norm(step):8.2f}, relative change {change:.0e}")

damped_step = tf.linalg.solve(damped, -g[:, None])[:, 0]
relu_loss, flat_kernel = network_loss(tf.nn.relu, x), tf.reshape(first.kernel, [40])
before, after = relu_loss(flat_kernel), relu_loss(flat_kernel + damped_step)
print(f"loss before the damped step {before:.4f}, after it {after:.4f}")

# %% [markdown]
# With $H$ itself the step is made of rounding errors, or `nan` where the solver refuses. The second row has Levenberg's cure,
# **damping**: add a small multiple $\varepsilon$ of the identity, far above $H$'s rounding errors. No eigenvalue of this $H$ is negative, so
# now none is zero.
#
# This step minimises the quadratic model plus $\tfrac{\varepsilon}{2}\lVert s\rVert^2$.
#
# **Solve, do not invert.** Formulas write the step as $-H^{-1}g$. An inverse can lose digits. To see how many, damp very little, and put each step back
# into the equation.
#
# **Predict.** By what factor do the residuals $\lVert Hs + g\rVert$ differ: none, 10, or more than 1000?

# %%
exercises.residuals.guess(...)  # "none", "10" or "more than 1000"

# %% tags=["nbval-ignore-output"]
barely = H + 1e-9 * tf.eye(40, dtype=tf.float64)
by_solve = tf.linalg.solve(barely, -g[:, None])
by_inverse = tf.linalg.inv(barely) @ -g[:, None]

residual_of_solve = float(tf.norm(barely @ by_solve + g[:, None]))
residual_of_inverse = float(tf.norm(barely @ by_inverse + g[:, None]))
print(f"residual with solve: {residual_of_solve:.0e}")
print(f"residual with inv:   {residual_of_inverse:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.residuals.reveal("more than 1000" if residual_of_inverse > 1000 * residual_of_solve else "less")
assert residual_of_inverse > 1000 * residual_of_solve
raw_change = np.linalg.norm(solve(H, -nudged) - solve(H, -g)) / np.linalg.norm(solve(H, -g))
damped_change = np.linalg.norm(solve(damped, -nudged) - solve(damped, -g)) / np.linalg.norm(solve(damped, -g))
assert not raw_change < 0.01  # NaN where the solver refuses
assert damped_change < 1e-8
assert after < 0.5 * before
check_right = tf.constant(np.random.default_rng(seed).normal(size=(40, 5)))  # at random: no such difference
check_solved, check_inverted = tf.linalg.solve(barely, check_right), tf.linalg.inv(barely) @ check_right
check_ratio = tf.norm(barely @ check_inverted - check_right) / tf.norm(barely @ check_solved - check_right)
assert 0.01 < check_ratio < 100
assert tf.norm(check_solved) > 1e6 * tf.norm(by_solve)  # a long s
check_rounding = np.finfo(np.float64).eps
check_wrong_by = np.linalg.norm(barely @ tf.linalg.inv(barely) - np.eye(40), 2)
assert 0.01 < check_wrong_by / (check_rounding * np.linalg.cond(barely)) < 100
assert residual_of_solve < 10 * check_rounding * np.linalg.norm(barely, 2) * np.linalg.norm(by_solve)
assert distances[0] > 1 > 1e-7 > distances[1]
np.testing.assert_allclose(quadratic, np.kron(2 / 42 * x.numpy().T @ x.numpy(), np.eye(6)), rtol=1e-10, atol=1e-12)

# %% [markdown]
# This inverse is wrong by about one rounding error times the **condition number**, here the largest eigenvalue over the smallest, and the product
# passes that on. The residual of `solve` is of the order of the rounding of $\lVert H\rVert \lVert s\rVert$, and this $s$ is short.

# %% [markdown]
# ## 3. When the step climbs
#
# $Hs = -g$ asks where the model's gradient vanishes. Nothing in it says *minimum*, or that the model still holds that far away. Two functions of one
# variable, one for each failure:
#
# - $f(w) = \log\cosh w$ at $1.5$ is convex and flattens out: $f'' = 1 - \tanh^2 w$ is small;
# - $f(w) = \tfrac14 w^4 - \tfrac12 w^2$, a double well, at $0.4$ has negative curvature: $f'' = 3w^2 - 1 < 0$.
#
# **Predict.** Both steps $-f'/f''$ end higher than they started. Which of them points *uphill* right from its start?

# %%
exercises.uphill.guess(...)  # "log cosh", "double well", "both" or "neither"

# %%
cases = {
    "log cosh": (lambda w: tf.math.log(tf.cosh(w)), np.float64(1.5)),
    "double well": (lambda w: w**4 / 4 - w**2 / 2, np.float64(0.4)),
}
one_dimensional = {}  # what the figure draws: the start, f, f', f'' there, and the step
for name, (f, at) in cases.items():
    w = tf.constant(at)
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = f(w)
        slope = inner.gradient(value, w)
    value, slope, curvature = value.numpy(), slope.numpy(), outer.gradient(slope, w).numpy()
    step = -slope / curvature
    one_dimensional[name] = at, value, slope, curvature, step
    print(f"{name:11}  f' = {slope:6.3f}  f'' = {curvature:6.3f}  step {step:6.3f}", end="  ")
    print(f"f: {value:6.3f} -> {f(at + step):6.3f}")

# %% alt="Two line plots. Two curves, each with a dashed parabola that touches it at the start. Left: an upward parabola whose lowest point lies far beyond the valley, where the curve is higher. Right: a downward parabola whose highest point lies uphill from the start." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the quadratic models
_, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
titles = {"log cosh": "log cosh: downhill, and too far", "double well": "double well: uphill from the start"}
for ax, (name, (f, _)), span in zip(axes, cases.items(), ((-4.2, 2.5), (-1.4, 1.4)), strict=True):
    at, value, slope, curvature, step = one_dimensional[name]
    points = np.linspace(*span, 201)
    curve = f(tf.constant(points)).numpy()
    ax.plot(points, curve, color=plots.BLUE, label="f")
    model = value + slope * (points - at) + curvature / 2 * (points - at) ** 2
    ax.plot(points, model, "--", color=plots.GREY, label="quadratic model at the start")
    ax.plot(at, value, "o", color=plots.GREEN, label="start")
    ax.plot(at + step, f(at + step), "v", color=plots.RED, markersize=9, label="after the Newton step")
    turn = value - slope**2 / (2 * curvature)  # the model's lowest or highest value
    margin = 0.15 * np.ptp(curve)
    ax.set(title=titles[name], xlabel="w", ylabel="f(w)")
    ax.set(ylim=(min(curve.min(), turn) - margin, curve.max() + margin))
axes[0].legend(loc="upper right", fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
slopes_along = {name: slope * step for name, (_, _, slope, _, step) in one_dimensional.items()}
exercises.uphill.reveal(" and ".join(name for name, along in slopes_along.items() if along > 0))
assert slopes_along["double well"] > 0 > slopes_along["log cosh"]
np.testing.assert_allclose(one_dimensional["log cosh"][2:4], [np.tanh(1.5), 1 - np.tanh(1.5) ** 2], rtol=1e-12)
np.testing.assert_allclose(one_dimensional["double well"][2:4], [0.4**3 - 0.4, 3 * 0.4**2 - 1], rtol=1e-12)
for name, (f, at) in cases.items():
    assert f(at + one_dimensional[name][4]) > f(at)  # both end higher
check_from, check_to = raw_newton[1:3]
np.testing.assert_allclose(np.linalg.eigvalsh(second_order(banana, check_from)[2]), [0.3435, 1306.9], rtol=1e-3)
assert banana(check_from + (check_to - check_from) / 8) < banana(check_from) < banana(check_to)

# %% [markdown]
# The slope along the step is $-f'^2/f''$: the sign of the curvature decides. The double well's step points **uphill**, towards
# the model's maximum. The `log cosh` step points downhill and **overshoots**, as the opening's jump did. Two cures:
#
# 1. **Damping for the direction.** If $H + \lambda I$ has only positive eigenvalues, the slope along its step,
# $-g^\top (H + \lambda I)^{-1} g$, is negative wherever $g \ne 0$.
# 2. **A line search for the length.** Halve a downhill step until the loss has fallen by at least a small part of what the slope promises: **Armijo's
# condition**, $L(w + ts) \le L(w) + 10^{-4}\, t\, g^\top s$. A NaN is no fall.


# %%
def line_search(loss, w, step, value, slope):
    """The first of 1, 1/2, 1/4, … that meets Armijo's condition, or one below 1e-10; slope is that along the step."""
    t = 1.0
    while not float(loss(w + t * step)) <= value + 1e-4 * t * slope and t > 1e-10:
        t /= 2
    return t


cured = {}
for name, (f, _) in cases.items():
    at, value, slope, curvature, _ = one_dimensional[name]
    damping = max(0.0, floor - 2 * curvature)  # turns -c into c + floor, leaves c above floor / 2 as it is
    step = -slope / (curvature + damping)
    t = line_search(f, at, step, value, slope * step)
    cured[name] = t, float(f(at + t * step))
    print(f"{name:11}  damping {damping:.3f}  t = {t}  f: {value:6.3f} -> {cured[name][1]:6.3f}")

# %% [markdown]
# Here each cure leaves the other's case alone. In many dimensions the lowest eigenvalue decides: with a small positive floor,
# $\lambda = \max(0, \text{floor} - 2\lambda_{\min})$ turns a negative $\lambda_{\min}$ into $\text{floor} + |\lambda_{\min}|$. The floor has the Hessian's units.
#
# Now put `tanh` in place of ReLU, on the same 7 examples. The outputs are curved functions of the kernel: $H$ has a further term beside $J^\top J$, and
# negative eigenvalues. The part of the raw step along positive curvature leads down, the part along negative curvature leads up, and the heavier one
# decides how the step starts.

# %%
tanh_loss, tanh_start = network_loss(tf.tanh, x), flat_kernel
tanh_value, tanh_g, tanh_H = second_order(tanh_loss, tanh_start)
tanh_eigenvalues = np.linalg.eigvalsh(tanh_H)
damping = max(0.0, floor - 2 * tanh_eigenvalues.min())
lifted = tanh_H + damping * tf.eye(40, dtype=tf.float64)
raw_step = tf.linalg.solve(tanh_H, -tanh_g[:, None])[:, 0]
damped_step = tf.linalg.solve(lifted, -tanh_g[:, None])[:, 0]

print("negative eigenvalues:", np.sum(tanh_eigenvalues < 0), "of 40")
print(f"start                 {tanh_value:.4f}")
print(f"after the raw step    {tanh_loss(tanh_start + raw_step):.4f}")
print(f"after the damped step {tanh_loss(tanh_start + damped_step):.4f}")

# %% alt="Line plot. The loss along two steps that leave from one point. Along the damped step the loss falls from the start and ends below it; along the raw Newton step it ends above the start." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the loss along both steps
fractions = np.linspace(0, 1, 41)
walks = {
    name: np.array([tanh_loss(tanh_start + t * step) for t in fractions])
    for name, step in {"raw": raw_step, "damped": damped_step}.items()
}
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.plot(fractions, walks["raw"], "--", color=plots.RED, label="raw Newton step")
ax.plot(fractions, walks["damped"], color=plots.BLUE, label="damped step")
ax.axhline(tanh_value, color=plots.GREY, linewidth=0.8)
ax.annotate("loss at the start", (1, tanh_value), (0, -4), textcoords="offset points", ha="right", va="top")
ax.set(title="The tanh network: only the damped step ends lower")
ax.set(xlabel="fraction of the step taken", ylabel="loss")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert [t for t, _ in cured.values()] == [0.5, 1.0]
assert all(end < one_dimensional[name][1] for name, (_, end) in cured.items())
check_log = {-1.25: np.nan, 2.5: 2.5 - np.log(2.5), 0.625: 0.625 - np.log(0.625)}  # w - log w
assert line_search(check_log.get, 2.5, -3.75, check_log[2.5], -2.25) == 0.5
np.testing.assert_allclose(np.linalg.eigvalsh(lifted)[0], floor - tanh_eigenvalues.min(), rtol=1e-9)
assert 13 <= np.sum(tanh_eigenvalues < 0) <= 27
assert float(tf.tensordot(tanh_g, damped_step, 1)) < 0  # whatever the network
assert tanh_loss(tanh_start + 0.025 * damped_step) < tanh_value
assert tanh_loss(tanh_start + damped_step) < tanh_value < tanh_loss(tanh_start + raw_step)
check_lengths = []
for check_damping in (1.01, 2.0):  # a little more than 1, and clearly more: both downhill
    check_step = -np.linalg.solve(np.diag([4.0, -1.0]) + check_damping * np.eye(2), [1.0, 4.0])
    assert check_step @ [1.0, 4.0] < 0
    check_lengths.append(np.linalg.norm(check_step))
np.testing.assert_allclose(check_lengths, [400.0, 4.0], rtol=1e-2)


def check_flat_slope(w):  # a bowl and a double well, which at 3 ** -0.5 has a slope and no curvature
    return w[0] ** 2 + w[1] ** 4 / 4 - w[1] ** 2 / 2


check_at = tf.constant([1.0, 3**-0.5], tf.float64)
check_value, check_g, check_H = second_order(check_flat_slope, check_at)
np.testing.assert_allclose(np.linalg.eigvalsh(check_H), [0.0, 2.0], rtol=0, atol=1e-12)
check_step = -np.linalg.solve(check_H + epsilon * np.eye(2), check_g)  # damped far above rounding
check_t = line_search(check_flat_slope, check_at, check_step, float(check_value), check_g.numpy() @ check_step)
assert check_flat_slope(check_at + check_step) > check_value > check_flat_slope(check_at + check_t * check_step)

# %% [markdown]
# ### Exercise: Which steps point downhill? (5 min)
#
# Take a Hessian with one negative eigenvalue, and two gradients:
#
# $$H = \begin{pmatrix} 4 & 0 \\ 0 & -1 \end{pmatrix}, \qquad g = \begin{pmatrix} 4 \\ 1 \end{pmatrix} \text{ or } g = \begin{pmatrix} 1 \\ 4 \end{pmatrix}.$$
#
# For each step say whether it points downhill at its start: the raw Newton step, the Newton step with a damping $\lambda$, and minus the gradient times
# a positive rate.

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
# ## 4. Going further: paths on a contour
#
# Put the parts together, and you have a **damped Newton method**: derivatives, damping, solve, line search. Its first argument returns a loss, a gradient and a matrix.


# %% tags=["nbval-ignore-output"]
def newton(derivatives, loss, w, steps):
    """Returns the points, one row each, and rows of (loss, gradient norm)."""
    points, history = [], []
    for _ in range(steps):
        value, g, H = derivatives(w)
        points.append(w.numpy())
        history.append((float(value), float(tf.norm(g))))
        if history[-1][1] < 1e-12:  # nothing but rounding is left
            break
        damping = max(0.0, floor - 2 * float(tf.linalg.eigvalsh(H)[0]))
        step = tf.linalg.solve(H + damping * tf.eye(len(w), dtype=w.dtype), -g[:, None])[:, 0]
        slope = float(tf.tensordot(g, step, 1))
        w += line_search(loss, w, step, history[-1][0], slope) * step
    return np.array(points), np.array(history)


searched, searched_history = newton(functools.partial(second_order, banana), banana, far, 60)
print("steps:", len(searched) - 1, " losses:", np.round(searched_history[:7, 0], 3), "…")

# %% [markdown]
# No jump this time: every step goes down, and the path keeps to the valley. It takes more steps.
#
# Rosenbrock's function is a sum of two squared residuals, $r_0 = 1 - w_0$ and $r_1 = 10\,(w_1 - w_0^2)$. With $J$ their Jacobian,
#
# $$g = 2 J^\top r, \qquad H = 2 J^\top J + 2 \sum_k r_k \nabla^2 r_k.$$
#
# **Gauss–Newton** drops the last sum, which is zero at this minimum. What is left needs first derivatives only.


# %% tags=["nbval-ignore-output"]
@tf.function
def gauss_newton(w):
    """The sum of squared residuals, its gradient, and the Gauss–Newton matrix."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        r = tf.stack([1 - w[0], 10 * (w[1] - w[0] ** 2)])
    J = tape.jacobian(r, w)
    gradient = 2 * tf.linalg.matvec(J, r, transpose_a=True)
    return tf.reduce_sum(r**2), gradient, 2 * tf.transpose(J) @ J


w, raw_gauss_newton = far, [far]
for _ in range(2):
    _, g, G = gauss_newton(w)
    w += tf.linalg.solve(G, -g[:, None])[:, 0]
    raw_gauss_newton.append(w)
print("Gauss–Newton, raw:", [f"{banana(w):.2g}" for w in raw_gauss_newton])

searched_gauss_newton, _ = newton(gauss_newton, banana, far, 60)
print("with a line search:", len(searched_gauss_newton) - 1, "steps")

# %% alt="Two contour plots. Two panels with the contours of the banana-shaped valley. Left, raw steps: Newton's path leaves the valley once and Gauss\u2013Newton's leaves it even farther, straight down, and both arrive. Right, with damping and a line search: both paths go round the bend with the valley and arrive, Newton's on its floor and Gauss\u2013Newton's a little below it; gradient descent, on the floor as well, stops short of the minimum." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: three methods on the contours
_, axes = plt.subplots(1, 2, figsize=(11, 5), layout="constrained")
contours(axes[0], "Raw steps leave the valley", low=-4.2)
axes[0].plot(*np.transpose(raw_newton), "o--", color=plots.BLUE, label="Newton, 6 steps")
axes[0].plot(*np.transpose(raw_gauss_newton), "^-", color=plots.RED, label="Gauss–Newton, 2 steps")
contours(axes[1], "With damping and a line search they follow it", low=-0.8)
axes[1].plot(*np.transpose(descent), color=plots.ORANGE, linewidth=4, alpha=0.7, label="gradient descent, 1000 steps")
axes[1].plot(*searched.T, "o--", color=plots.BLUE, markersize=5, label=f"Newton, {len(searched) - 1} steps")
axes[1].plot(
    *searched_gauss_newton.T,
    "^-",
    color=plots.RED,
    markersize=5,
    label=f"Gauss–Newton, {len(searched_gauss_newton) - 1} steps",
)
axes[0].legend(loc="lower left")
axes[1].legend(loc="upper center")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert np.all(np.diff(searched_history[:, 0]) < 0)
assert searched_history[:, 0].max() == searched_history[0, 0]
for here, taken in zip(searched[:-1], np.diff(searched, axis=0), strict=True):  # Armijo's condition
    value, slope, _ = second_order(banana, tf.constant(here))
    promised = slope.numpy() @ taken
    assert promised < 0
    assert banana(here + taken) <= value + 1e-4 * promised + 1e-15
for here, taken in zip(searched[-4:-1], np.diff(searched[-4:], axis=0), strict=True):  # at the end, the raw step
    _, slope, curvature = second_order(banana, tf.constant(here))
    np.testing.assert_allclose(taken, np.linalg.solve(curvature, -slope), rtol=0, atol=1e-12)
np.testing.assert_allclose(searched[-1], [1, 1], atol=1e-8)
assert 6 < len(searched) - 1 < 30
assert banana(raw_gauss_newton[1]) > 2000 > 1e-20 > banana(raw_gauss_newton[2])
np.testing.assert_allclose(searched_gauss_newton[-1], [1, 1], atol=1e-8)
assert len(searched_gauss_newton) < len(searched)
curvature_of_residuals = 2 * 10 * (1.0 - 1.2**2) * np.array([[-20.0, 0.0], [0.0, 0.0]])
np.testing.assert_allclose(second_order(banana, far)[2] - gauss_newton(far)[2], curvature_of_residuals, atol=1e-9)
(across, up), check_count = far.numpy().tolist(), 0
while (1 - across) ** 2 + 100 * (up - across**2) ** 2 > 1e-8:  # gradient descent from closed forms
    rise = up - across**2
    across, up = across + 0.001 * (2 * (1 - across) + 400 * across * rise), up - 0.001 * 200 * rise
    check_count += 1
assert 20_000 < check_count < 22_000

# %% [markdown]
# Both raw methods jump, Gauss–Newton to a loss above 2000, and then arrive. Gradient descent at this rate needs more than 20,000 steps to come
# within $10^{-8}$ of the minimum's value.
#
# Each Newton step takes a Hessian and a linear solve. What does that mean for a whole model?

# %% [markdown]
# ## 5. The whole model in one Hessian
#
# A model has several variables, and its Hessian a **block** for every pair of them. The model here is 5 → 8 → 6, `tanh` and then linear, with targets,
# and a penalty of 0.02 times the squares of all parameters, which adds 0.04 to every curvature.

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


# %% [markdown]
# `jacobian` takes one target. So flatten early: join the gradients into one vector of 102 *while the outer tape still records* (later there is no
# path), and ask for that vector's Jacobian. It comes back as one piece for each variable, the first of shape (102, 5, 8). Reshaped and put side by side, these are the columns of $H$.


# %%
def flatten(tensors):
    return tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0)


def put(flat):
    for variable, piece in zip(variables, tf.split(flat, sizes), strict=True):
        variable.assign(tf.reshape(piece, variable.shape))


@tf.function
def model_derivatives(flat):
    """The loss, the gradient (n,) and the Hessian (n, n) over all variables."""
    put(flat)
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            loss = model_loss()
        g = flatten(inner.gradient(loss, variables))
    pieces = outer.jacobian(g, variables)
    return loss, g, tf.concat([tf.reshape(p, [n, -1]) for p in pieces], axis=1)


start = flatten(variables)
_, model_g, model_H = model_derivatives(start)
print("whole Hessian:", model_H.shape)

# %% alt="Heat map. A symmetric 102 by 102 matrix divided by lines into four by four blocks for kernel 1, bias 1, kernel 2 and bias 2; the block of kernel 2 with itself shows diagonal stripes." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
edges = np.cumsum([0, *sizes])
names = ["kernel 1", "bias 1", "kernel 2", "bias 2"]


def draw_blocks(matrix, title, limit):
    """A matrix over all 102 parameters, with a line around each block."""
    ax = plots.matrix(matrix, title=title, xlabel="source", ylabel="target", limit=limit)
    for edge in edges[1:-1]:
        ax.axhline(edge - 0.5, color="black", linewidth=0.8)
        ax.axvline(edge - 0.5, color="black", linewidth=0.8)
    ax.set_xticks((edges[:-1] + edges[1:] - 1) / 2, labels=names, rotation=30)
    ax.set_yticks((edges[:-1] + edges[1:] - 1) / 2, labels=names)
    ax.set_aspect("equal")


limit = float(np.quantile(np.abs(model_H), 0.99))  # the few largest entries would leave the rest pale
draw_blocks(
    model_H,
    f"The Hessian of all 102 parameters\n(colours end at {limit:.2f}; the largest entry is {np.abs(model_H).max():.2f})",
    limit,
)
plt.show()

# %% [markdown]
# The stripes belong to kernel 2 with itself: here two of its weights interact only if they lead to the same output. A block is a slice.

# %%
block = tf.reshape(model_H[0:40, 48:96], [5, 8, 8, 6])  # kernel 1's gradient, with respect to kernel 2
print("largest entry of the block:", f"{np.abs(block).max():.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        loss = model_loss()
    gradients = inner.gradient(loss, variables)
mixed = outer.jacobian(gradients[0], variables[2])
assert sizes == [40, 8, 48, 6]
assert mixed.shape == (5, 8, 8, 6)
assert model_H.shape == (102, 102)
np.testing.assert_allclose(model_H, tf.transpose(model_H), rtol=0, atol=1e-12)
np.testing.assert_allclose(block, mixed, rtol=0, atol=1e-12)
below = tf.reshape(model_H[48:96, 0:40], [8, 6, 5, 8])
np.testing.assert_allclose(below, tf.transpose(mixed, [2, 3, 0, 1]), rtol=0, atol=1e-12)
other_output = np.arange(6)[:, None] != np.arange(6)  # stripes: no entry between different outputs
stripes = tf.reshape(model_H[48:96, 48:96], [8, 6, 8, 6]).numpy().transpose(0, 2, 1, 3)
assert np.abs(stripes[:, :, other_output]).max() < 1e-14 < 1e-3 < np.abs(stripes).max()

# %% [markdown]
# ## 6. What N² means
#
# The Hessian of $N$ parameters has $N^2$ entries, four bytes each in float32. To solve with it where all eigenvalues are positive, a Cholesky
# factorisation takes about $N^3/6$ multiplications and as many additions.

# %%
print("parameters   gradient, MB    Hessian, MB   factorisation at 1e12 operations/s")
for count in (102, 1_000, 1_000_000):
    seconds = 2 * count**3 / 6 / 1e12
    print(f"{count:10,} {4 * count / 1e6:14,.6f} {4 * count**2 / 1e6:14,.2f}   {seconds:.1e} s")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 4 * 1_000_000**2 == 4e12  # bytes
np.testing.assert_allclose(seconds, 1_000_000**3 / 3 / 1e12, rtol=1e-12)
assert round(seconds / (24 * 3600), 1) == 3.9  # days
multiplied, factor = 0, np.zeros((40, 40))  # Cholesky's factorisation by hand, counted
for column in range(40):
    for row in range(column, 40):
        rest = damped[row, column] - factor[row, :column] @ factor[column, :column]
        multiplied += column  # and as many additions
        factor[row, column] = np.sqrt(rest) if row == column else rest / factor[column, column]
np.testing.assert_allclose(factor @ factor.T, damped, rtol=0, atol=1e-12)
assert multiplied == (40**3 - 40) // 6

# %% [markdown]
# For a million parameters the matrix takes 4 TB, and one factorisation 3.9 days at this speed. [14](14_without_the_matrix.ipynb) takes Newton steps without the matrix.

# %% [markdown]
# ## 7. Going further: the plunge
#
# With the whole Hessian, section 4's method runs on the whole model. Near this minimum, whose curvatures are positive, the error of the quadratic model is of
# third order, so a step leaves a distance of the order of the *square* of the one before. This is **quadratic convergence**. Watch the exponents of the distance to the last point grow.


# %% tags=["nbval-ignore-output"]
@tf.function
def model_value(flat):
    put(flat)
    return model_loss()


points, history = newton(model_derivatives, model_value, start, newton_steps)

w, descent_norms = start, []
for _ in range(newton_steps):
    g = model_derivatives(w)[1]
    descent_norms.append(float(tf.norm(g)))
    w -= 0.5 * g
distances = np.linalg.norm(points - points[-1], axis=1)
print("distance, the last Newton steps:", [f"{distance:.0e}" for distance in distances[-6:-1]])

# %% alt="Line plot. Gradient norm on a logarithmic axis against steps: gradient descent decreases slowly; damped Newton wanders at first and then drops to rounding error within a few steps." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the plunge
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
ax.semilogy(history[:, 1], "o-", markersize=4, color=plots.BLUE, label="damped Newton, whole Hessian")
ax.semilogy(descent_norms, "--", color=plots.ORANGE, label="gradient descent")
ax.set(title="All 102 parameters: Newton wanders, then plunges", xlabel="step", ylabel="norm of the gradient")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
minimum = tf.constant(points[-1])
assert history[-1, 1] < 1e-8
for check_before, check_after in zip(distances[-5:-2], distances[-4:-1], strict=True):
    assert check_after < (20 if seed == 0 else 100) * check_before**2 + 1e-9
check_spectrum = np.linalg.eigvalsh(model_derivatives(minimum)[2])
assert check_spectrum[-1] > 200 * check_spectrum[0]  # steep and flat directions
assert np.min(history[1:, 1] / history[:-1, 1]) < 1e-2  # at least one step of the final plunge
assert descent_norms[-1] > 1e-4
assert np.linalg.eigvalsh(model_derivatives(minimum)[2])[0] > 0  # it is a minimum
assert np.all(np.diff(history[:, 0]) < 1e-12)

# %% [markdown]
# ## 8. Going further: a step that uses negative curvature
#
# Take $f(x, y) = x^2 + \tfrac14 y^4 - \tfrac12 y^2$: a saddle at the origin, a minimum on either side of it. The figure draws three steps from one
# start, raw Newton, damped Newton and minus the gradient times a rate, and says whether each points downhill and ends lower. Turn the damping down
# from 1. Then set it to 0, and move the start along $x$.

# %% alt="Contour plot and line plot. Left, contours of a function with a saddle in the middle and a minimum above and below it. From a start between saddle and upper minimum, the raw Newton step leads down past the saddle and is marked uphill; the damped step leads to near the minimum and the gradient step a short way towards it, both marked downhill. Right, the function along each step: the raw one rises, the two others fall."
saddle.figure().show()

# %% [markdown]
# From the first start the damped step turns round where the damping equals minus the lowest eigenvalue, 0.52. Near that value the step is very long:
# a damping of 0.4 ends higher than none. Far out along $x$ the raw step points downhill, although one eigenvalue is negative.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for damping, downhill in ((0.0, False), (0.4, False), (0.6, True), (3.0, True)):
    taken = saddle.steps([0.2, 0.4], damping)["damped Newton"]
    assert (taken.slope < 0) == downhill
weak, raw = (saddle.steps([0.2, 0.4], damping)["damped Newton"].change for damping in (0.4, 0.0))
assert weak > raw > 0
assert saddle.steps([1.2, 0.4], 0.0)["raw Newton"].slope < 0
np.testing.assert_allclose(np.linalg.eigvalsh(saddle.hessian([0.2, 0.4]))[0], -0.52, atol=1e-12)

# %% [markdown]
# ### Exercise: A step that uses negative curvature (15 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Damping also shortens the parts of the step along positive curvature, which were right. Split the raw Newton step into its parts along the eigenvectors of $H$. Keep the
# length of each part, and give each the direction in which it points downhill. Return their sum, the *saddle-free Newton* step.
#
# `g` is the gradient, shape $(n,)$; `H` is the Hessian, symmetric, of shape $(n, n)$ and of the same dtype. No eigenvalue is zero. Return a tensor of shape $(n,)$ and that dtype.


# %%
def downhill_step(g, H):
    return ...  # shape (n,)


exercises.downhill.check(downhill_step)

# %% [markdown]
# ## 9. Going further: blocks that are None
#
# Take $f(a, b) = \sum_i a_i^3 + \sum_k b_k^2$. The block between $a$ and $b$ is zero. But on the tape the gradient with respect to $a$ has no path to $b$: the block is `None`, and joining the blocks would stop with an error. Pass `unconnected_gradients="zero"`; of Keras variables, pass the `.value`.

# %%
a = tf.Variable([1.0, 2.0, 3.0])
b = tf.Variable([4.0, 5.0])

with tf.GradientTape(persistent=True) as outer:
    with tf.GradientTape() as inner:
        f = tf.reduce_sum(a**3) + tf.reduce_sum(b**2)
    gradient_a, gradient_b = inner.gradient(f, [a, b])

by_a, by_b = outer.jacobian(gradient_a, [a, b])
zeros_by_b = outer.jacobian(gradient_a, b, unconnected_gradients="zero")
print("the block of a with b:            ", by_b)
print('with unconnected_gradients="zero":', zeros_by_b.numpy().tolist())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert by_b is None
np.testing.assert_allclose(by_a, np.diag([6.0, 12.0, 18.0]), rtol=1e-6)
np.testing.assert_array_equal(zeros_by_b, np.zeros((3, 2)))
with np.testing.assert_raises(ValueError):
    tf.concat([by_a, by_b], axis=1)

# %% [markdown]
# ### Exercise: Four blocks, one matrix (12 min)
#
# `f` takes two tensors, `a` and `b`, of any shapes, to a scalar that depends on both. Return its whole Hessian, of shape $(N, N)$, where $N$ counts the elements of `a` and of `b` together: first those of `a`, row by
# row, then those of `b`. `a` and `b` are tensors, not variables, and the result has their dtype. Perhaps they do not interact.


# %%
def whole_hessian(f, a, b):
    return ...  # shape (N, N), with N the elements of a and b together


exercises.whole.check(whole_hessian)

# %% [markdown]
# ## 10. Going further: more examples, and `tanh`
#
# Give section 1's ReLU network 30 examples, and the bound lies above 40.
#
# **Predict.** How many eigenvalues are zero then: none, one to five, or ten or more?


# %%
exercises.more_examples.guess(...)  # "none", "one to five" or "ten or more"

# %%
thirty = tf.concat([x, tf.constant(np.random.default_rng(seed + 1).normal(size=(23, 5)))], axis=0)

spectra, zero_counts = {}, {}
for name, activation, examples in (
    ("ReLU, 7", tf.nn.relu, x),
    ("ReLU, 30", tf.nn.relu, thirty),
    ("tanh, 7", tf.tanh, x),
    ("tanh, 2", tf.tanh, x[:2]),
):
    of_network = second_order(network_loss(activation, examples), flat_kernel)[2]
    spectra[name] = np.linalg.eigvalsh(of_network)
    zero_counts[name] = int(np.sum(np.abs(spectra[name]) <= 1e-10 * spectra[name].max()))
    negative = int(np.sum(spectra[name] < -1e-10 * spectra[name].max()))
    print(f"{name:8} examples: {zero_counts[name]:2} zero, {negative:2} negative")

# %% [markdown]
# None, here: each active output of a further example adds a row to $J$.
#
# `tanh` is never off, and yet two examples show the loss only $2 \times 8$ numbers: at most 16 eigenvalues differ from zero. These are more than the 12
# outputs: section 3's further term breaks the bound.

# %% alt="Three dot plots. Three spectra of 40 eigenvalues in ascending order, on axes that are logarithmic but for zero. Left, ReLU on 7 examples: a long row of grey crosses at zero, then positive eigenvalues that rise. Middle, ReLU on 30 examples: all positive. Right, tanh on 7 examples: about half are red triangles below zero, the rest positive." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: three spectra
_, axes = plt.subplots(1, 3, figsize=(12, 4), layout="constrained")
for ax, name in zip(axes, ("ReLU, 7", "ReLU, 30", "tanh, 7"), strict=True):
    smallest = np.sort(np.abs(spectra[name]))[zero_counts[name]]
    title = f"{name} examples: {zero_counts[name]} zeros,\nall others at least {smallest:.1e} in size"
    plots.spectrum(spectra[name], title=title, threshold=1e-10, ax=ax)
    ax.set_yscale("symlog", linthresh=1e-7)
plt.show()


# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.more_examples.reveal("none" if zero_counts["ReLU, 30"] == 0 else "ten or more")
assert zero_counts["ReLU, 7"] == zeros
assert zero_counts["ReLU, 30"] == zero_counts["tanh, 7"] == 0
assert zero_counts["tanh, 2"] == 40 - 2 * 8
assert min(spectra["ReLU, 30"]) > 0
check_active = int(tf.math.count_nonzero(tf.nn.relu(tf.nn.relu(thirty @ first.kernel) @ second.kernel)))
assert check_active > 40


# %% [markdown]
# ## 11. Going further: in one line
#
# `tapelab.derivatives.hessian` and `tapelab.optimize.newton` take Keras variables as they are. Through Keras' `LayerNormalization`, section 5's way
# can be wrong yet symmetric ([10](10_higher_order_gradients.ipynb), section 5); `hessian` is right. `newton` stops at a small gradient, a saddle's
# too; with a negative eigenvalue there, its report says "not a minimum".

# %% tags=["nbval-ignore-output"]
put(start)
packed = derivatives.hessian(model_loss, wrt=variables, packed=True)()
print("largest difference from section 5:", f"{np.abs(packed - model_H).max():.0e}")

put(points[-1] + 1e-3 * rng.normal(size=n))
report = optimize.newton(model_loss, wrt=variables, iterations=newton_steps, tolerance=1e-9)
print("gradient:", f"{report.gradient_norm:.0e}", "after", len(report.iterations), "steps;", report.reason)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(packed, model_H, rtol=0, atol=1e-10)
assert report.converged
np.testing.assert_allclose(flatten(variables), minimum, rtol=0, atol=1e-5)
check_w = tf.Variable([0.3, 0.0], dtype=tf.float64)  # on the line that leads to section 8's saddle
check_report = optimize.newton(lambda: check_w[0] ** 2 + check_w[1] ** 4 / 4 - check_w[1] ** 2 / 2, wrt=[check_w])
assert check_report.converged
assert "not a minimum: the Hessian's smallest eigenvalue is -1," in str(check_report)
check_weights = tf.constant(np.random.default_rng(seed).normal(size=(7, 4)))
for check_kind in ("LayerNormalization", "GroupNormalization", "BatchNormalization"):
    check_arguments = {"groups": 1} if check_kind == "GroupNormalization" else {}
    check_layer = getattr(tf.keras.layers, check_kind)(dtype="float64", **check_arguments)
    check_layer.build((None, 4))

    def check_normed(flat, check_layer=check_layer):
        return tf.reduce_sum(check_weights * tf.sin(check_layer(x @ tf.reshape(flat, [5, 4]), training=True)))

    def check_slope(flat, check_normed=check_normed):
        return second_order(check_normed, flat)[1]

    check_flat = tf.constant(np.random.default_rng(seed).normal(size=20))
    check_by_tapes = second_order(check_normed, check_flat)[2]
    check_right = gradcheck.numerical_jacobian(check_slope, check_flat.numpy())
    np.testing.assert_allclose(check_by_tapes, tf.transpose(check_by_tapes), rtol=0, atol=1e-10)
    assert np.linalg.norm(check_by_tapes - check_right) > 1e-4 * np.linalg.norm(check_right)
    check_hessian = derivatives.hessian(check_normed)(check_flat)
    assert np.linalg.norm(check_hessian - check_right) < 1e-6 * np.linalg.norm(check_right)

# %% [markdown]
# ## 12. Check it independently
#
# `numpy_loss` is the model's loss in NumPy. Its differences give the gradient, its second differences the curvature $v^\top H v$ along a random
# direction. Differences of the gradient give all 102 × 102 second derivatives.


# %%
def numpy_loss(flat):
    kernel_1, bias_1, kernel_2, bias_2 = np.split(flat, np.cumsum(sizes)[:-1])
    h = np.tanh(x.numpy() @ kernel_1.reshape(5, 8) + bias_1)
    y = h @ kernel_2.reshape(8, 6) + bias_2
    return np.mean((y - labels.numpy()) ** 2) + 0.02 * np.sum(flat**2)


@tf.function
def model_gradient(flat):
    put(flat)
    with tf.GradientTape() as tape:
        loss = model_loss()
    return flatten(tape.gradient(loss, variables))


point = start.numpy()
numerical = gradcheck.numerical_jacobian(model_gradient, point)

v = rng.normal(size=n)
v /= np.linalg.norm(v)
shifted = [numpy_loss(point + shift * v) for shift in (1e-4, 0.0, -1e-4)]
curvature = (shifted[0] - 2 * shifted[1] + shifted[2]) / 1e-8
print(f"curvature along v: {v @ model_H.numpy() @ v:.4f} by tapes, {curvature:.4f} by differences")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(numpy_loss(point), model_derivatives(start)[0], rtol=1e-12)
assert gradcheck.check_gradient(numpy_loss, model_g, point) < 1e-6
assert numerical.shape == (102, 102)
np.testing.assert_allclose(model_H, numerical, rtol=0, atol=1e-6)
assert np.abs(numerical).max() > 0.1  # the tolerance is small beside the entries
np.testing.assert_allclose(v @ model_H.numpy() @ v, curvature, rtol=0, atol=1e-5)

# %% [markdown]
# ## Recap
#
# - The Hessian is the Jacobian of the gradient, and its eigenvalues are curvatures. For the ReLU network's first kernel, its rank was at most the number of active outputs (section 1).
# - A Newton step is `solve(H, -g)`. For a quadratic loss one was exact; where the Hessian was singular, damping helped (section 2).
# - A raw step can climb. Damping cured the direction, a line search the length (section 3).
# - Flatten the gradient first, and section 5's variables go into one Hessian. It has $N^2$ entries (sections 5 and 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a singular Hessian without negative eigenvalues | `solve` refuses, or rounding decides the step | damp, far above rounding, then line search |
# | the Hessian has negative eigenvalues | a step that may climb from its start | damp by clearly more than $-\lambda_{\min}$, then line search |
# | the quadratic model is trusted too far | a downhill step that ends higher | line search |
# | `inv(H) @ g` with a nearly singular $H$ and a short solution | a residual far larger than that of `solve` | `solve` |
# | a Hessian by tapes through Keras' `LayerNormalization`, `GroupNormalization` or training `BatchNormalization` | wrong numbers, symmetric, no warning | `tapelab.derivatives.hessian`: right, or a refusal |
# | no path from one variable's gradient to another | a block that is `None`, an error when the blocks are joined | `unconnected_gradients="zero"`; pass a Keras variable's `.value` |
# | the Hessian of a large model | no memory | Hessian–vector products |
#
# **Further reading**
#
# - TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff), "Example: Hessian".
# - J. Nocedal, S. J. Wright (2006), ["Numerical Optimization"](https://doi.org/10.1007/978-0-387-40065-5), 2nd edition: line search in chapter 3, least squares in chapter 10.
# - H. H. Rosenbrock (1960), ["An automatic method for finding the greatest or least value of a function"](https://doi.org/10.1093/comjnl/3.3.175).
# - L. Armijo (1966), ["Minimization of functions having Lipschitz continuous first partial derivatives"](https://doi.org/10.2140/pjm.1966.16.1).
# - A. Druinsky, S. Toledo (2012), ["How accurate is inv(A)\*b?"](https://arxiv.org/abs/1201.6035): when a product with the inverse loses digits.
# - K. Levenberg (1944), ["A method for the solution of certain non-linear problems in least squares"](https://doi.org/10.1090/qam/10666).
# - D. W. Marquardt (1963), ["An algorithm for least-squares estimation of nonlinear parameters"](https://doi.org/10.1137/0111030).
# - Y. Dauphin and others (2014), ["Identifying and attacking the saddle point problem in high-dimensional non-convex optimization"](https://arxiv.org/abs/1406.2572).
#
# **Read next:** [14 Without the matrix](14_without_the_matrix.ipynb) uses a Hessian that is too large to store;
# [15 Batch Jacobians](15_batch_jacobians.ipynb) asks for one Jacobian for each example.
