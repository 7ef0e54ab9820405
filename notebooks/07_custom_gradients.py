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
# # Custom gradients
#
# Below, three derivatives that TensorFlow computes do not serve you: one overflows, one is zero where you need a direction, and one goes through a search that it does not
# need. **When is TensorFlow's own derivative not the one you want?**
#
# Begin with $f(x) = \log(1 + e^x)$. It is smooth, and its derivative, $1 - 1/(1 + e^x)$, lies between 0 and 1.

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/07_custom_gradients.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Minutes:** 13 to read, 8 more to go further, 23 for the exercises; to work through it all, about 1 h 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
steps = 40  # of gradient descent in section 2, between 20 and 100
learning_rate = 0.1  # of the same, between 0.08 and 0.5
iterations = 40  # of the solver in section 3, between 30 and 100

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import functools
import inspect
import os
import subprocess
import tempfile
import weakref
from pathlib import Path
from unittest import mock

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import custom_gradients as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)


# %%
def slope(f, x):
    """df/dx at x."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


def log1pexp_plain(x):
    return tf.math.log(1.0 + tf.exp(x))


print("f'(0)   =", slope(log1pexp_plain, 0.0).numpy())
print("f'(100) =", slope(log1pexp_plain, 100.0).numpy())

# %% [markdown]
# The true $f'(100)$ is 1, to more than forty digits. Nothing warned.
#
# **You will be able to**
#
# - replace a derivative that overflows with `tf.custom_gradient` (section 1),
# - pass a gradient straight through a rounding or a clip (section 2),
# - differentiate the solution of an equation without differentiating the solver (section 3),
# - write a custom gradient that works with variables and in a `tf.function` (section 4),
# - say what becomes of a custom gradient when it is differentiated again, or saved (sections 5 and 6, which go further).

# %% [markdown]
# ## 1. Replace a derivative that overflows
#
# Where does the NaN come from? On the left, the values, downwards, and the backward pass, upwards; on the right, the cure.

# %% alt="Diagram. Two columns of boxes. Left, without a custom gradient: from x = 100 down through exp, which gives infinity, plus 1 and log to y; arrows lead back up past each box with the gradients 1, 0, 0 and NaN at x. Right: the same four boxes in grey inside one dashed frame labelled log1pexp; a single arrow leads round it from y back to x, with 1 at its start and 1 at its end." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the box that a custom gradient replaces
_, axes = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained")
labels = ["x = 100", "e = exp(x) = ∞", "s = 1 + e = ∞", "y = log(s) = ∞"]
ups = ["dy/dx = 0 · ∞ = NaN", "dy/de = 0 · 1 = 0", "dy/ds = 1 · 1/∞ = 0", "dy/dy = 1"]
down = {"arrowstyle": "-|>", "color": plots.GREY, "linewidth": 1.4}
up = {"arrowstyle": "-|>", "linewidth": 2.4}
for ax, custom in zip(axes, (False, True), strict=True):
    shade = plots.GREY if custom else "black"
    for row, label in enumerate(labels):
        inside = custom and row > 0
        box = {"boxstyle": "round,pad=0.4", "facecolor": "#EEEEEE" if inside else "white", "edgecolor": shade}
        ax.text(0, -row, label, ha="center", va="center", bbox=box, color="#555555" if inside else "black")
        if row:
            ax.annotate("", (0, -row + 0.22), (0, -row + 0.78), arrowprops=down)
    ax.set(xlim=(-1.3, 3.0), ylim=(-3.6, 0.5))
    ax.set_axis_off()
for row, label in enumerate(ups):
    colour = plots.RED if row == 0 else plots.BLUE
    axes[0].text(1.25, -row, label, va="center", color=colour, fontweight="bold" if row == 0 else None)
    if row:
        colour = plots.RED if row == 1 else plots.BLUE
        axes[0].annotate("", (1.05, -row + 0.85), (1.05, -row + 0.15), arrowprops={**up, "color": colour})
frame = plt.Rectangle((-1.0, -3.4), 2.0, 2.8, fill=False, edgecolor="black", linestyle="--", linewidth=1.5)
axes[1].add_patch(frame)
axes[1].text(-0.95, -0.57, "log1pexp", va="bottom", fontweight="bold")
bend = {**up, "color": plots.BLUE, "connectionstyle": "arc3,rad=0.5"}
axes[1].annotate("", (0.5, 0.0), (1.05, -3.0), arrowprops=bend)
axes[1].text(1.12, -3.05, "dy/dy = 1", va="center", color=plots.BLUE)
axes[1].text(0.75, 0.2, "dy/dx = 1", va="center", color=plots.BLUE)
axes[1].text(1.85, -1.6, "backward(1)\n= 1 · (1 − 1/(1 + ∞))\n= 1", va="center", color=plots.BLUE)
axes[0].set_title("Without: three steps back, and 0 · ∞ on the last")
axes[1].set_title("With a custom gradient: one step back, past the box")
plt.show()

# %% [markdown]
# Float32 ends at $3.4 \cdot 10^{38}$, so `exp` gives $\infty$. The logarithm passes on $1/s = 1/\infty = 0$. The exponential multiplies it by its own derivative, $e = \infty$. And
# $0 \cdot \infty$ is NaN.
#
# Each step obeys the chain rule. So replace *all the steps at once* by the formula $1 - 1/(1 + e^x)$, which is harmless when $e^x = \infty$.

# %% [markdown]
# `tf.custom_gradient` makes the function below one box with one rule. In `slope(log1pexp, x)` the backward pass asks the rule, in place of the operations inside.
#
# The function returns two things: its value, and a *backward function*. The backward function receives
# the **upstream gradient**, the derivative of the target with respect to the function's value: 1 in `slope(log1pexp, x)`, twice the value in the slope of its square. It returns the derivative of the target with respect to `x`. It may use values of the forward pass, here `e`.


# %%
@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)

    def backward(upstream):
        return upstream * (1.0 - 1.0 / (1.0 + e))

    return tf.math.log(1.0 + e), backward


# %% [markdown]
# **Predict.** At 100 the derivative is now 1. And the value, `log1pexp(100.0)`: "100", "infinity" or "NaN"?

# %%
exercises.value_at_100.guess(...)  # "100", "infinity" or "NaN"

# %%
print("f'(0)   =", slope(log1pexp, 0.0).numpy())
print("f'(100) =", slope(log1pexp, 100.0).numpy())
print("f(100)  =", log1pexp(100.0).numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.value_at_100.reveal("infinity" if np.isinf(log1pexp(100.0)) else "a number")
with tf.GradientTape(persistent=True) as tape:
    x = tf.constant(100.0)
    tape.watch(x)
    e = tf.exp(x)
    s = 1.0 + e
    y = tf.math.log(s)
assert [tensor.numpy() for tensor in (e, s, y)] == [np.inf] * 3
assert [tape.gradient(y, tensor).numpy() for tensor in (y, s, e)] == [1.0, 0.0, 0.0]
assert np.isnan(tape.gradient(y, x))
assert np.exp(100.0) > np.finfo(np.float32).max
assert slope(log1pexp_plain, np.float64(100.0)).numpy() == 1.0
assert np.isnan(slope(log1pexp_plain, np.float64(710.0)))
assert slope(log1pexp, [0.0, 100.0]).numpy().tolist() == [0.5, 1.0]
assert np.isnan(slope(lambda x: log1pexp(x=x), 100.0))  # by keyword
check_setting = tf.custom_gradient(lambda x, limit: (tf.minimum(x, limit), lambda upstream: (7.0 * upstream, None)))
assert slope(lambda x: check_setting(x, 0.5), 3.0) == 7.0
assert np.isinf(log1pexp(100.0))
check_three = [tf.nn.softplus(100.0), slope(tf.nn.softplus, 100.0), slope(tf.nn.softplus, -20.0)]
np.testing.assert_allclose(check_three, [100.0, 1.0, 1 / (1 + np.exp(20.0))], rtol=1e-5)
np.testing.assert_allclose([slope(log1pexp, -20.0), slope(log1pexp_plain, -20.0)], [0.0, check_three[2]], rtol=1e-5)
check_upstreams = []
check_noting = tf.custom_gradient(
    lambda x: (log1pexp(x), lambda upstream: check_upstreams.append(upstream) or upstream)
)
slope(check_noting, 2.0), slope(lambda x: check_noting(x) ** 2, 2.0)
np.testing.assert_allclose(check_upstreams, [1.0, 2.0 * log1pexp(2.0)], rtol=1e-6)

# %% [markdown]
# This mends the *derivative*. The value, 100 to forty digits, still overflows. The rule is asked at −20 too: it rounds to 0, where TensorFlow's own derivative has $2 \cdot 10^{-9}$. `tf.nn.softplus` has all three right.
#
# Pass `x` by position: called eagerly as `log1pexp(x=x)`, the box's rule is not asked. For two arguments by position return a pair of gradients, with `None` for a mere setting.

# %% [markdown]
# ### Exercise: A norm that survives zero (8 min)
#
# The norm of a zero row is 0, and a tape returns NaN for the gradient of `tf.norm(x, axis=1)` there. Write the backward function of `norm_of_rows`: `x` has shape
# (rows, columns), the value has shape (rows,), and so does `upstream`. Where a row is zero, its gradient is to be zero.


# %%
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return ...  # the gradient with respect to x

    return norms, backward


exercises.norm_of_rows.check(norm_of_rows)

# %% [markdown]
# ## 2. Another gradient for the same value: straight through
#
# A brightness must lie in $[0, 1]$, so this model clips it. The parameter $v$ behind it has strayed to 1.5, and the target is 0.3. Outside $[0, 1]$ the clipped value
# does not change with $v$: its derivative is 0. That is correct, and useless.
#
# So pretend on the backward pass that nothing was clipped. This is the **straight-through estimator** (Bengio and others, 2013), which [06](06_stop_gradient.ipynb) built
# from `stop_gradient`.


# %%
@tf.custom_gradient
def clip_straight(v):
    return tf.clip_by_value(v, 0.0, 1.0), lambda upstream: upstream


def descend(clip):
    """Every v on the way down (clip(v) - 0.3)², from v = 1.5."""
    v, path = 1.5, [1.5]
    for _ in range(steps):
        v -= learning_rate * slope(lambda v: (clip(v) - 0.3) ** 2, v).numpy()
        path.append(v)
    return np.array(path)


stuck = descend(lambda v: tf.clip_by_value(v, 0.0, 1.0))
freed = descend(clip_straight)
print(f"the clip's own gradient: v = {stuck[0]:.1f} becomes {stuck[-1]:.1f}")
print(f"straight through:        v = {freed[0]:.1f} becomes {freed[-1]:.1f}")

straight_round = tf.grad_pass_through(tf.round)
print("round, straight through:", slope(straight_round, [0.2, 1.3, 2.7]).numpy())

# %% [markdown]
# With the clip's own gradient every step is zero. Straight through, descent sees an error of the right sign, and moves until the value is right.
#
# `tf.grad_pass_through(tf.round)` rounds, and passes the gradient on unchanged. This gradient and that of `clip_straight` are wrong on purpose.

# %% alt="Two line plots. Left: rounding is a staircase over x from minus 2.5 to 2.5, and its straight-through gradient a level dashed line at 1. Right: over the steps of descent, v stays at 1.5 with the clip's own gradient, and falls to the dotted target line at 0.3 with the straight-through gradient." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
_, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
line = tf.linspace(-2.5, 2.5, 501)
plots.curve_with_derivative(
    line,
    straight_round(line),
    slope(straight_round, line),
    title="Rounding: a staircase with the gradient of a ramp",
    label="round(x)",
    derivative_label="gradient",
    ax=axes[0],
)
for path, name, style, colour in (
    (stuck, "the clip's own gradient", "-", plots.RED),
    (freed, "straight through", "--", plots.BLUE),
):
    axes[1].plot(path, style, color=colour)
    axes[1].text(len(path) - 1, path[-1] + 0.05, name, color=colour, ha="right", va="bottom")
axes[1].axhline(0.3, color=plots.GREY, linestyle=":")
axes[1].text(0, 0.3, "target", color="#555555", va="bottom")
axes[1].set(title="Only straight through does v reach the target", xlabel="step", ylabel="v", ylim=(0, 1.75))
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert (stuck == 1.5).all()
assert abs(freed[-1] - 0.3) < 0.05
assert slope(tf.round, [0.2, 1.3, 2.7]) is None
assert slope(lambda x: straight_round(x) ** 2, [0.2, 1.3, 2.7]).numpy().tolist() == [0.0, 2.0, 6.0]
assert (slope(straight_round, line).numpy() == 1.0).all()

# %% [markdown]
# ## 3. Differentiate a solution, not the search for it
#
# Where is a planet at a given time? For an orbit of eccentricity $\varepsilon$, Kepler's equation, $E - \varepsilon \sin E = M$, relates the time, as the *mean anomaly* $M$, to the position, as an angle $E$,
# the *eccentric anomaly*. Solve it for $E$ by iterating $E \leftarrow M + \varepsilon \sin E$.
#
# The derivative does not need the search. Differentiate the *equation*:
#
# $$\mathrm dE - \varepsilon \cos E \,\mathrm dE = \mathrm dM \quad\Rightarrow\quad \frac{\mathrm dE}{\mathrm dM} = \frac{1}{1 - \varepsilon \cos E}.$$
#
# This is the **implicit function theorem**. It needs $1 - \varepsilon\cos E$, the equation's derivative with respect to the unknown, not to be 0: for $0 \le \varepsilon < 1$ it is positive.
#
# So the backward function needs one value from the forward pass, the solution `e`.

# %%
eccentricity = 0.6
mean_anomaly = tf.random.uniform((11,), 0.0, 2 * np.pi)


def solve(m):
    """The E of Kepler's equation for each M, by fixed-point iteration."""
    e = m
    for _ in range(iterations):
        e = m + eccentricity * tf.sin(e)
    return e


@tf.custom_gradient
def kepler(m):
    e = solve(tf.stop_gradient(m))

    def backward(upstream):
        return upstream / (1.0 - eccentricity * tf.cos(e))

    return e, backward


through, implicit = slope(solve, mean_anomaly), slope(kepler, mean_anomaly)
print(f"dE/dM at the first M: {through[0]:.3f} through the iterations, {implicit[0]:.3f} implicit")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(implicit, through, rtol=1e-4, atol=100 * eccentricity**iterations)
check_residual = solve(mean_anomaly) - eccentricity * tf.sin(solve(mean_anomaly)) - mean_anomaly
np.testing.assert_allclose(check_residual, np.zeros(11), atol=1e-5 + 20 * eccentricity**iterations)


def check_kept(cut):
    """How many iterates are alive between the forward and the backward pass of a custom gradient."""
    iterates = []

    @tf.custom_gradient
    def solved(m):
        e = m = tf.stop_gradient(m) if cut else m
        for _ in range(iterations):
            e = m + eccentricity * tf.sin(e)
            iterates.append(weakref.ref(e))
        return e, lambda upstream: upstream / (1.0 - eccentricity * tf.cos(e))

    with tf.GradientTape() as tape:
        tape.watch(mean_anomaly)
        e = solved(mean_anomaly)
    alive = sum(reference() is not None for reference in iterates)
    np.testing.assert_allclose(tape.gradient(e, mean_anomaly), implicit, rtol=1e-5)
    return alive


assert (check_kept(cut=False), check_kept(cut=True)) == (iterations, 1)

# %% [markdown]
# The gradients agree. `tf.stop_gradient(m)` is there for the memory. Without it this eager tape also *records* the iteration, and keeps all the iterates.
# With it one is left, `e`, which `backward` holds.
#
# The price is the second derivative: to a tape, this `e` is a constant. That of $E$ is `None`, that of $E^2$ a wrong number without a warning (section 5's check). [20](20_derivative_of_a_solution.ipynb) does this for a whole layer.

# %% alt="Line plot. The solution E against M from 0 to 2 pi: a curve that rises steeply at first, then more gently, then steeply again. At M = 0.8 a column of small circles climbs to the curve: the iterates. At three points of the curve a short red tangent lies along it, with its slope written beside it." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the search is vertical, the derivative is along the curve
line = tf.linspace(0.0, 2 * np.pi, 200)
_, ax = plt.subplots(figsize=(6.5, 4.4), layout="constrained")
ax.plot(line, solve(line), color=plots.BLUE)
shown, history = tf.constant(0.8), [0.8]
for _ in range(8):
    history.append(float(shown + eccentricity * tf.sin(history[-1])))
ax.plot([0.8] * len(history), history, "o", color=plots.ORANGE, markerfacecolor="white", label="iterates at M = 0.8")
for m, dx in ((0.8, 18), (3.14, 14), (5.2, 14)):
    e, s = float(solve(tf.constant(m))), float(slope(kepler, m))
    half = 0.6 / np.hypot(1.0, s)
    ax.plot([m - half, m + half], [e - half * s, e + half * s], color=plots.RED, linewidth=3)
    ax.annotate(f"dE/dM = {s:.2f}", (m, e), (dx, -14), textcoords="offset points", color=plots.RED)
ax.set(
    title="The search climbs to the curve; the derivative lies along it",
    xlabel="mean anomaly M (rad)",
    ylabel="E (rad)",
)
ax.legend(loc="lower right")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert np.diff(history).min() > -1e-6  # each iterate lies above the one before

# %% [markdown]
# ### Exercise: Differentiate a search (15 min)
#
# For $a > 0$, the equation $x^3 + a\,x = y$ has one real solution $x$. `root` looks for it, for each entry of `y`, a tensor of any shape, by halving an
# interval, from −10 to 10 at first; `a` is a scalar tensor. A tape finds no way through these comparisons. Write the backward function: return the gradient with respect to `y`, in the shape of `y`, and the
# gradient with respect to `a`, a scalar. `upstream` and `x` have the shape of `y`.


# %%
@tf.custom_gradient
def root(y, a):
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        return ..., ...  # the gradients with respect to y and to a

    return x, backward


exercises.root_gradient.check(root)

# %% [markdown]
# ## 4. Inside a model: variables and `tf.function`
#
# Here a custom gradient limits what a Keras layer passes back to its
# input: `tf.clip_by_norm(t, 0.5)`, on trust until [08](08_clipping.ipynb), shortens that to the length 0.5.

# %%
layer = tf.keras.layers.Dense(3, kernel_initializer="ones")
layer.build((None, 4))
h = tf.ones((2, 4))


@tf.custom_gradient
def limited_layer(h):
    def backward(upstream):
        return tf.clip_by_norm(upstream @ tf.transpose(layer.kernel), 0.5)

    return layer(h), backward


try:
    slope(limited_layer, h)
except TypeError as error:
    message = str(error).split(", since")[0]
    print(message)

# %% [markdown]
# The box hides the layer from the backward pass, and the layer's trainable variables with it. So the backward function must answer for them too. TensorFlow refused this one.
#
# With trainable variables inside, the form is this. `variables` is the list of those that were used. The return value is a *pair*, whose second part is a list with one gradient for each:
#
# ```python
# @tf.custom_gradient
# def f(x):
#     y = ...  # from x and the variables; backward may use it
#
#     def backward(upstream, variables=None):
#         return d_x, d_variables
#
#     return y, backward
# ```
#
# Below, a tape inside `backward` supplies the pair, on a second run of the layer.


# %%
@tf.custom_gradient
def limited_layer(h):
    def backward(upstream, variables=None):
        with tf.GradientTape() as tape:
            tape.watch(h)
            y = layer(h)
        d_h, d_variables = tape.gradient(y, [h, variables], output_gradients=upstream)
        return tf.clip_by_norm(d_h, 0.5), d_variables

    return layer(h), backward


def gradients_of(f):
    with tf.GradientTape() as tape:
        tape.watch(h)
        y = f(h)
    return tape.gradient(y, [h, layer.kernel, layer.bias])


for name, f in {"layer": layer, "limited": limited_layer}.items():
    d_h, _, d_bias = gradients_of(f)
    print(f"{name:<8} norm for the input {tf.norm(d_h).numpy():.3f}, bias {d_bias.numpy()}")

# %% [markdown]
# The input's gradient is limited, the variables' gradients are the layer's own. A watched *tensor* from outside was not refused in the check, and got `None`: make it an argument.
#
# But the second run can differ: here dropout, in training, draws another mask. `once` opens its tape *before* `backward`, around the one call whose value it returns. The tape is persistent, so `backward` may be asked twice.

# %%
dropout = tf.keras.layers.Dropout(0.5, seed=seed)


@tf.custom_gradient
def twice(v):
    def backward(upstream):
        with tf.GradientTape() as tape:
            tape.watch(v)
            y = dropout(v, training=True)
        return tape.gradient(y, v, output_gradients=upstream)

    return dropout(v, training=True), backward


@tf.custom_gradient
def once(v):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(v)
        y = dropout(v, training=True)

    return y, lambda upstream: tape.gradient(y, v, output_gradients=upstream)


def value_and_slope(f, entries=8):
    ones = tf.ones(entries)
    with tf.GradientTape() as tape:
        tape.watch(ones)
        y = f(ones)
    return y.numpy(), tape.gradient(y, ones).numpy()


for name, f in {"twice": twice, "once": once}.items():
    y, d_y = value_and_slope(f)
    print(f"{name:<6} value {y}, gradient {d_y}")

# %% [markdown]
# At ones, a mask's slope is its value. `twice` gave the gradient of another mask.
#
# In a `tf.function`, `limited_layer` works. `noted` below does not: its backward function turns a tensor into a Python number, and while the graph is traced there is no number yet. With `float(upstream)` it is not **traceable**.

# %% tags=["nbval-ignore-output"]
passing = []


@tf.custom_gradient
def noted(v):
    def backward(upstream):
        passing.append(float(upstream))
        return upstream

    return tf.identity(v), backward


try:
    slope(tf.function(noted), 2.0)
except Exception as error:
    print(f"{type(error).__name__}: {error}")

print(f"limited, compiled: {tf.norm(gradients_of(tf.function(limited_layer))[0]).numpy():.3f}")


# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
def traced(f):
    try:
        slope(tf.function(f), 2.0)
    except Exception:  # which one depends on the version
        return False
    return True


assert message.endswith("grad_fn must accept keyword argument 'variables'")
plain = gradients_of(layer)
np.testing.assert_allclose(tf.norm(plain[0]), 3 * np.sqrt(8), rtol=1e-6)
for f in (limited_layer, tf.function(limited_layer)):
    np.testing.assert_allclose(tf.norm(gradients_of(f)[0]), 0.5, rtol=1e-5)
    for by_hand, by_layer in zip(gradients_of(f)[1:], plain[1:], strict=True):
        np.testing.assert_allclose(by_hand, by_layer, rtol=1e-6)
assert (traced(noted), traced(log1pexp)) == (False, True)
assert slope(noted, 2.0).numpy() == passing[-1] == 1.0  # eagerly it works
assert tf.is_tensor(limited_layer(h))
dense = tf.keras.layers.Dense
with mock.patch.object(dense, "call", autospec=True, side_effect=dense.call) as check_calls:
    gradients_of(limited_layer)
assert check_calls.call_count == 2
for f, check_same in ((twice, False), (once, True), (tf.function(once), True)):
    assert np.array_equal(*value_and_slope(f, entries=200)) == check_same
check_ones = tf.ones(200)
with tf.GradientTape(persistent=True) as check_tape:
    check_tape.watch(check_ones)
    check_y = once(check_ones)
assert all(np.array_equal(check_tape.gradient(check_y, check_ones), check_y) for _ in range(2))
check_outside, check_x = tf.constant(3.0), tf.constant(2.0)
check_reads = tf.custom_gradient(lambda x: (check_outside * x, lambda upstream: upstream * check_outside))
check_takes = tf.custom_gradient(lambda x, a: (a * x, lambda upstream: (upstream * a, upstream * x)))
for check_f, check_found in ((check_reads, None), (lambda x: check_takes(x, check_outside), 2.0)):
    with tf.GradientTape() as check_tape:
        check_tape.watch([check_x, check_outside])
        check_y = check_f(check_x)
    assert check_tape.gradient(check_y, check_outside) == check_found
check_layer = tf.keras.layers.Dense(1, kernel_initializer="ones")
check_layer.build((None, 2))
check_clip = tf.custom_gradient(lambda v: (tf.clip_by_value(v, 0.0, 1.0), lambda upstream: upstream))
with tf.GradientTape(persistent=True) as check_tape:
    check_y = tf.reduce_sum((check_clip(check_layer.kernel.value) - 0.25) ** 2)
    with np.testing.assert_raises_regex(TypeError, "variables"):
        check_clip(check_layer.kernel)
np.testing.assert_array_equal(check_tape.gradient(check_y, check_layer.kernel), [[1.5], [1.5]])

# %% [markdown]
# ## 5. Going further: the second derivative
#
# The backward function of `log1pexp` consists of TensorFlow operations, so a second tape around the first can record and differentiate them in turn; [10](10_higher_order_gradients.ipynb) is about that. The true second derivative of $\log(1 + e^x)$ is
# $f'' = f'(1 - f')$: 0.25 at 0, and below $10^{-43}$ at 100.
#
# **Predict.** `log1pexp` has a custom gradient that is right at 100. What does a second tape give for $f''(100)$?

# %%
exercises.second_at_100.guess(...)  # "0", "0.25", "NaN" or "None"


# %%
def curvature(f, x):
    """d²f/dx² at x."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        first = slope(f, x)
    return tape.gradient(first, x)


print("f''(0)   =", curvature(log1pexp, 0.0).numpy())
print("f''(100) =", curvature(log1pexp, 100.0).numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.second_at_100.reveal("NaN" if np.isnan(curvature(log1pexp, 100.0)) else "a number")
assert curvature(log1pexp, 0.0).numpy() == 0.25
assert np.isnan(curvature(log1pexp, 100.0))

# %% [markdown]
# NaN is back, one order later. Your formula mended $f'$. The second tape differentiates the formula itself, by TensorFlow's own rules, and its $1/(1 + e)$
# leads through the infinite `e` again.
#
# So give the formula a custom gradient of its own, as a function of `x`. Its value is $s = 1 - 1/(1 + e^x)$, its slope $s\,(1 - s)$, in float32 0 at 100.
# The product with `upstream` stays outside: TensorFlow differentiates that.


# %%
@tf.custom_gradient
def logistic(x):
    s = 1.0 - 1.0 / (1.0 + tf.exp(x))
    return s, lambda upstream: upstream * s * (1.0 - s)


@tf.custom_gradient
def log1pexp_twice(x):
    return tf.math.log(1.0 + tf.exp(x)), lambda upstream: upstream * logistic(x)


for x in (0.0, 100.0):
    first, second = slope(log1pexp_twice, x), curvature(log1pexp_twice, x)
    print(f"f'({x:.0f}) = {first.numpy()}, f''({x:.0f}) = {second.numpy()}")

# %% alt="Two line plots. Two panels over x from minus 20 to 120. Left, the first derivative rises from 0 to 1; the plain version's line ends near 88, the others go on at 1. Right, the second derivative is a bump of height 0.25 around 0; the plain version's line jumps to 1 between 44 and 52 and ends near 88, the line of the custom first derivative ends there too, and only the one with both goes on at 0." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw
x = tf.linspace(-20.0, 120.0, 141)
versions = [
    ("no custom gradient", log1pexp_plain, plots.RED, "-", 7),
    ("custom first derivative", log1pexp, plots.ORANGE, "-", 4),
    ("custom first and second", log1pexp_twice, plots.BLUE, "--", 1.5),
]
_, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
curves = {}
for ax, order, name in zip(axes, (slope, curvature), ("first derivative", "second derivative"), strict=True):
    for label, f, colour, style, width in versions:
        curves[name, label] = order(f, x).numpy()
        ax.plot(x, curves[name, label], style, color=colour, linewidth=width, label=label)
    ax.set(xlabel="x", ylabel=f"{name} of log(1 + exp(x))", xlim=(-20, 120))
    ax.axvline(88.7, color=plots.GREY, linestyle=":", linewidth=1)
axes[0].set_title("One custom gradient saves the first derivative …")
axes[1].set_title("… and a second one saves the second")
axes[0].text(91, 0.05, "exp(x) = ∞\nin float32", color="#555555")
axes[0].legend(loc="center left", bbox_to_anchor=(0.2, 0.5))
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert curvature(kepler, 1.0) is None
check_curved = [curvature(lambda m, f=f: f(m) ** 2, 1.0) for f in (kepler, solve)]
assert check_curved[0] > check_curved[1] + 1.0  # 1.93 in place of 0.11
assert slope(log1pexp_twice, [0.0, 100.0]).numpy().tolist() == [0.5, 1.0]
assert curvature(log1pexp_twice, [0.0, 100.0]).numpy().tolist() == [0.25, 0.0]
np.testing.assert_allclose(curvature(log1pexp_plain, tf.linspace(52.0, 70.0, 37)), np.ones(37), rtol=1e-6)
late = np.linspace(-20.0, 120.0, 141) > 90
nan_late = {
    (order.__name__, f.__name__)
    for order in (slope, curvature)
    for _, f, *_ in versions
    if np.isnan(order(f, tf.linspace(-20.0, 120.0, 141)).numpy()[late]).all()
}
assert nan_late == {("slope", "log1pexp_plain"), ("curvature", "log1pexp_plain"), ("curvature", "log1pexp")}
assert np.isfinite(curvature(log1pexp_twice, tf.linspace(-20.0, 120.0, 141))).all()
check_f = tf.custom_gradient(lambda x: (tf.math.log(1.0 + tf.exp(x)), lambda upstream: upstream * tf.sigmoid(x)))
for _ in range(5):
    check_f = functools.partial(slope, check_f)
    assert np.isfinite(check_f([-100.0, 0.0, 2.0, 100.0])).all()

# %% [markdown]
# On the right the plain version does something worse than NaN. From $x = 52$ to 70 its second derivative is 1, but for rounding, where the truth is below $10^{-22}$: finite, wrong, and without a warning. It
# is $e^x/(1 + e^x) - e^{2x}/(1 + e^x)^2$, and in the second term $1/(1 + e^x)^2 < 10^{-45}$ has underflowed to 0.
#
# A shorter cure: a backward function that is *stable by itself*. `upstream * tf.sigmoid(x)` is: in the check TensorFlow
# differentiates it four times more, and all stays finite at −100, 0, 2 and 100.
#
# Why not write the second rule inside `backward`, where `s` is at hand?
#
# ```python
# def backward(upstream):
#     @tf.custom_gradient
#     def first_derivative(upstream):
#         return upstream * s, lambda upstream2: upstream2 * s * (1.0 - s)
#
#     return first_derivative(upstream)
# ```
#
# A rule answers for its *arguments*, and `x` is not one. In the check $f''(100)$ is then `None` in a `tf.function`, and $(f^2)''$ at 2 is 0.185 in place of 1.998.


# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
@tf.custom_gradient
def check_closure(x):
    s = 1.0 - 1.0 / (1.0 + tf.exp(x))

    def backward(upstream):
        @tf.custom_gradient
        def first_derivative(upstream):
            return upstream * s, lambda upstream2: upstream2 * s * (1.0 - s)

        return first_derivative(upstream)

    return tf.math.log(1.0 + tf.exp(x)), backward


assert slope(check_closure, 100.0).numpy() == 1.0
assert np.isnan(curvature(check_closure, 100.0))
assert tf.function(lambda x: curvature(check_closure, x))(tf.constant(100.0)) is None
check_scale = tf.Variable(1.0)
assert curvature(lambda x: check_scale * check_closure(x), 100.0) is None
assert curvature(lambda x: check_scale * log1pexp_twice(x), 100.0).numpy() == 0.0
check_squares = [curvature(lambda x, f=f: f(x) ** 2, 2.0) for f in (check_closure, log1pexp_twice)]
np.testing.assert_allclose(check_squares, [0.185, 1.998], atol=1e-3)
assert tf.function(lambda x: curvature(log1pexp_twice, x))(tf.constant(100.0)).numpy() == 0.0

# %% [markdown]
# ## 6. Going further: save and load
#
# A custom gradient is a Python function, and a SavedModel, TensorFlow's format on disk, holds graphs. So, saving the models below, TensorFlow traces their backward functions, unless the switch `experimental_custom_gradients` is off.
#
# Save four models, and load them again: a clip of the gradient to 0.5 with the switch off and on, and two versions of $\log(1 + e^x)$ whose second derivative is right. The backward function of *ordinary* consists of
# ordinary operations; *nested* is section 5's.


# %%
@tf.custom_gradient
def clip_half(v):
    return tf.identity(v), lambda upstream: tf.clip_by_norm(upstream, 0.5)


@tf.custom_gradient
def log1pexp_ordinary(x):
    return tf.math.log(1.0 + tf.exp(x)), lambda upstream: upstream * tf.sigmoid(x)


models = {
    "clip-off": (lambda v: clip_half(v * v), False),
    "clip": (lambda v: clip_half(v * v), True),
    "ordinary": (log1pexp_ordinary, True),
    "nested": (log1pexp_twice, True),
}

# %%
tf.get_logger().setLevel("WARNING")  # saving would log the folder's name
folder = tempfile.TemporaryDirectory()
for name, (f, switch) in models.items():
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=switch)
    module = tf.Module()
    module.f = tf.function(f, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, str(Path(folder.name, name)), options=options)

for name in models:
    loaded = tf.saved_model.load(str(Path(folder.name, name)))
    print(f"{name:<9} slope at 2: {slope(loaded.f, 2.0).numpy():.4f}")

# %% [markdown]
# All load, and all gradients are right. That proves nothing: these graphs refer to their gradients by name, and *this* process still has the names in its registry. The test is a process
# that never ran your Python code.
#
# **Predict.** In the fresh process, how many of the two derivatives, first and second, does each model still give?

# %%
exercises.survives.guess([..., ..., ..., ...])  # 0, 1 or 2 for each: clip-off, clip, ordinary, nested

# %%
program = "import sys\nimport tensorflow as tf\n"
program += inspect.getsource(slope) + inspect.getsource(curvature)
program += """
for name in sys.argv[2:]:
    model = tf.saved_model.load(sys.argv[1] + "/" + name)
    for order in (slope, curvature):
        try:
            result = f"{order(model.f, 2.0).numpy():.4f}"
        except LookupError as error:
            result = "LookupError: " + str(error).split(" (")[0]
        print(name, order.__name__, result, sep=" | ")
"""
fresh = subprocess.run(
    [sys.executable, "-c", program, folder.name, *models],
    env=os.environ | {"CUDA_VISIBLE_DEVICES": "-1"},
    capture_output=True,
    text=True,
)
print(fresh.stdout)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
found = {name: [] for name in models}
for line in fresh.stdout.splitlines():
    name, _, result = line.split(" | ")
    found[name].append(result)
survived = {name: sum("Error" not in result for result in results) for name, results in found.items()}
exercises.survives.reveal(list(survived.values()))
assert survived == {"clip-off": 0, "clip": 2, "ordinary": 2, "nested": 1}
logistic_2 = 1 / (1 + np.exp(-2.0))
assert len(found["clip-off"]) == 2
for result in (*found["clip-off"], found["nested"][1]):
    assert result.startswith("LookupError: No gradient defined for operation")
    assert "IdentityN" in result
np.testing.assert_allclose(np.float64(found["clip"]), [2.0, 1.0], atol=1e-4)
np.testing.assert_allclose(np.float64(found["ordinary"]), [logistic_2, logistic_2 * (1 - logistic_2)], atol=1e-4)
np.testing.assert_allclose(np.float64(found["nested"][0]), logistic_2, atol=1e-4)
for version in (log1pexp_ordinary, log1pexp_twice):  # two backward functions, one value
    np.testing.assert_allclose(version(tf.constant(2.0)), np.logaddexp(0.0, 2.0), rtol=1e-5)
assert fresh.stderr.count("unsaved custom gradients") >= 2
assert curvature(log1pexp_ordinary, 100.0).numpy() == 0.0
assert tf.saved_model.SaveOptions().experimental_custom_gradients is True
folder.cleanup()

# %% [markdown]
# - *clip-off* has no gradient left: `IdentityN`, the operation that stands for a custom gradient in a graph, refers to one that was not saved.
# - *clip* and *ordinary* give both derivatives. The saved backward function consists of TensorFlow operations, which have derivatives of their own.
# - *nested* gives the first alone: the custom gradient *inside* the backward function was not saved. The log has a warning of "unsaved custom gradients".

# %% [markdown]
# ## 7. Going further: register a gradient for an operation
#
# TensorFlow's own derivatives stand in a *registry*: a table from types of operations to gradient functions. Contrast adjustment, `AdjustContrastv2`, has no
# entry. With $m$ the mean of a channel over the image, the operation computes $y = c\,(x - m) + m$ for the factor $c$. Given the upstream gradient $u$, the chain rule asks for $c\,u + (1 - c)\,\operatorname{mean}(u)$ with respect to the
# image, and for $\sum u\,(x - m)$ with respect to the factor. `tf.RegisterGradient(name)` enters such a function. Here it receives the operation, whose `inputs` it reads, and the upstream gradient, and returns one gradient for each input.

# %%
image, weights = tf.random.uniform((4, 5, 3)), tf.random.normal((4, 5, 3))


def contrast_slopes():
    """The gradients of a weighted sum of the adjusted image, with respect to image and factor; or the error."""
    factor = tf.constant(1.5)
    with tf.GradientTape() as tape:
        tape.watch([image, factor])
        target = tf.reduce_sum(weights * tf.image.adjust_contrast(image, factor))
    try:
        return tape.gradient(target, [image, factor])
    except LookupError as error:
        return str(error).split(" (")[0]


def contrast_gradient(op, upstream):
    x, c = op.inputs
    mean_upstream = tf.reduce_mean(upstream, axis=(-3, -2), keepdims=True)
    mean = tf.reduce_mean(x, axis=(-3, -2), keepdims=True)
    return c * upstream + (1 - c) * mean_upstream, tf.reduce_sum(upstream * (x - mean))


before = contrast_slopes()
print("before:", before)
for attempt in ("first", "second"):
    try:
        tf.RegisterGradient("AdjustContrastv2")(contrast_gradient)
    except KeyError as error:
        print(f"{attempt} entry: KeyError:", error.args[0].split(" with ")[0], "...")
d_image, d_factor = contrast_slopes()
print(f"after:  {d_factor.numpy():.3f} for the factor, shape {d_image.shape} for the image")


# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
def check_contrast(x, c):
    mean = x.mean(axis=(0, 1), keepdims=True)
    return np.sum(weights.numpy() * (c * (x - mean) + mean), dtype=np.float64)


assert "AdjustContrastv2" in before
check_image = image.numpy().astype(np.float64)
gradcheck.check_gradient(lambda x: check_contrast(x, 1.5), d_image, check_image, rtol=1e-5)
gradcheck.check_gradient(lambda c: check_contrast(check_image, c), d_factor, 1.5, rtol=1e-5)
check_asked = []


@tf.custom_gradient
def check_around(x, c):
    def backward(upstream):
        check_asked.append(True)
        return contrast_gradient(mock.Mock(inputs=(x, c)), upstream)

    return tf.image.adjust_contrast(x, c), backward


check_factor_slope = slope(lambda c: tf.reduce_sum(weights * check_around(image, c)), 1.5)
check_image_slope = slope(lambda x: tf.reduce_sum(weights * check_around(x, tf.constant(1.5))), image)
np.testing.assert_allclose(check_factor_slope, d_factor, rtol=1e-6)
np.testing.assert_allclose(check_image_slope, d_image, rtol=1e-6)
assert check_asked == [True, True]

# %% [markdown]
# The registry is **global**: one table for the whole process. The entry above is for show: a custom gradient around `tf.image.adjust_contrast` gives the same numbers in the check.

# %% [markdown]
# ## 8. Check it independently
#
# TensorFlow took what these backward functions returned: check it. Central differences in float64, of NumPy
# functions, know nothing of tapes.
#
# The last line disagrees, as it should.


# %%
def solve_numpy(m):
    e = m
    for _ in range(200):
        e = m + eccentricity * np.sin(e)
    return e


def stable(x):
    return np.logaddexp(0.0, x)


difference = gradcheck.numerical_jacobian
print("                     custom  differences")
print(f"log(1 + exp) at 2    {slope(log1pexp_twice, 2.0):.4f}  {difference(stable, 2.0):.4f}")
print(f"log(1 + exp) at 100  {slope(log1pexp_twice, 100.0):.4f}  {difference(stable, 100.0):.4f}")
print(f"Kepler at 1          {slope(kepler, 1.0):.4f}  {difference(solve_numpy, 1.0):.4f}")
print(f"rounding at 1.3      {slope(straight_round, 1.3):.4f}  {difference(np.round, 1.3):.4f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for x in (-3.0, 0.0, 2.0, 100.0):
    second = difference(lambda x: 1 / (1 + np.exp(-x)), x)
    np.testing.assert_allclose(slope(log1pexp_twice, x), difference(stable, x), atol=1e-5)
    np.testing.assert_allclose(curvature(log1pexp_twice, x), second, atol=1e-5)
slopes = np.diag(difference(solve_numpy, mean_anomaly))
np.testing.assert_allclose(implicit, slopes, rtol=1e-4, atol=100 * eccentricity**iterations)
assert (slope(straight_round, 1.3).numpy(), difference(np.round, 1.3)) == (1.0, 0.0)

# %% [markdown]
# ## Recap
#
# - `tf.custom_gradient` replaced the derivative of $\log(1 + e^x)$ by one rule, a formula that does not overflow at 100 (section 1).
# - A backward function passed the gradient straight through a rounding and a clip (section 2).
# - The implicit function theorem gave the derivative of a solution from the equation; `tf.stop_gradient` on the solver's input saved the memory (section 3).
# - For a Keras layer inside, the backward function had to take `variables=`; for a `tf.function`, to be traceable (section 4).
# - The second derivative was NaN at 100. Two cures: a custom gradient inside the backward function, as a function of `x`; or a backward function stable by itself, which was saved whole (sections 5 and 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | inside a backward function, a custom gradient of `upstream` alone reads a value made from the outer argument `x` | for the second derivative `None`, a wrong number, or TensorFlow's own derivative | make it a function of `x` |
# | a backward function reads a value made from its argument behind `tf.stop_gradient` | the second derivative is `None` or a wrong number | differentiate once |
# | a function under `tf.custom_gradient` called eagerly with keyword arguments alone | the rule is not asked, without a warning | pass by position what you differentiate |
# | a function under `tf.custom_gradient` reads a trainable variable from outside | `TypeError`: `grad_fn must accept keyword argument 'variables'` | take `variables`, return their gradients too; if it is a Keras variable as argument, pass its `.value` |
# | `float(upstream)` of a scalar in a backward function | `tape.gradient` works eagerly, and fails through a compiled `tf.function` | TensorFlow operations; `tf.print` to look |
# | a model saved without its custom gradient, tested in the process that saved it | gradients work there, where a fresh process has `LookupError` | load it in a fresh process |
# | a custom gradient inside a backward function, in a SavedModel | in a fresh process `LookupError` at the second derivative | a backward function of ordinary, stable operations |
# | an entry in the gradient registry for an operation that is not yours | other code in the process uses it | `tf.custom_gradient` |
#
# **Further reading**
#
# - The TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff), sections "Custom gradients" and "Custom gradients in SavedModel".
# - Y. Bengio, N. Léonard, A. Courville (2013), ["Estimating or propagating gradients through stochastic neurons for conditional computation"](https://arxiv.org/abs/1308.3432).
# - M. Blondel and others (2022), ["Efficient and modular implicit differentiation"](https://arxiv.org/abs/2105.15183).
# - S. Bai, J. Z. Kolter, V. Koltun (2019), ["Deep equilibrium models"](https://arxiv.org/abs/1909.01377).
#
# **Read next:** [08 Clipping](08_clipping.ipynb) limits a gradient, after the tape and inside a model.
