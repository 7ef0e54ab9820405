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
# # Custom gradients
#
# TensorFlow knows a derivative for almost every operation. Sometimes there is none; sometimes there is one that overflows, costs
# too much, or is zero where you need a direction. Then you write your own.
# **When is TensorFlow's own derivative not the one you want?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/06_custom_gradients.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Time:** about 45 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - give an operation a gradient through the registry, and say which tapes see it (section 1),
# - replace a derivative that overflows, at first and at second order (section 2),
# - write a gradient that reuses an expensive value, and one that ignores a rounding (sections 3 and 4),
# - clip a gradient at the place that does what you mean (section 5),
# - save a model whose gradients survive loading in another process (section 6).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
import weakref
from pathlib import Path

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import custom_gradients as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
iterations = 40  # of the solver in section 3
points = 10_000  # values that it solves for at once, when it is timed
steps = 40  # of gradient descent in section 4
learning_rate = 0.1  # of the same

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. A new operation: register its gradient
#
# TensorFlow keeps a *registry*: a table from names to gradient functions. The name is, as a rule, the type of an operation, such as
# `Square`. Most types have an entry. Contrast adjustment has none.

# %%
image = tf.random.uniform((4, 5, 3))
factor = tf.constant(1.5)

with tf.GradientTape() as tape:
    tape.watch([image, factor])
    adjusted = tf.image.adjust_contrast(image, factor)

try:
    tape.gradient(adjusted, [image, factor])
    message = "no error"
except LookupError as error:
    message = str(error)
print(message)

# %%
assert "AdjustContrastv2" in message

# %% [markdown]
# The missing derivative is short. With $m$ the mean of a channel over the image, the operation computes $y = c\,(x - m) + m$ for the factor
# $c$. Given the upstream gradient $u$, the chain rule asks for $c\,u + (1 - c)\,\operatorname{mean}(u)$ for the image, and for
# $\sum u\,(x - m)$ for the factor.
#
# `tf.RegisterGradient(name)` enters a function into the registry. It receives the operation, whose `inputs` it may read, and the upstream gradient.
# It returns one gradient for each input.
#
# The registry is global: one table for the whole process, in which a name can be entered once. The cell below therefore
# makes up names that have not been used before, also when you run it again.

# %%
unique = uuid.uuid4().hex


@tf.RegisterGradient(f"Contrast-{unique}")
def contrast_gradient(op, upstream):
    x, c = op.inputs
    mean_upstream = tf.reduce_mean(upstream, axis=(-3, -2), keepdims=True)
    mean = tf.reduce_mean(x, axis=(-3, -2), keepdims=True)
    return c * upstream + (1 - c) * mean_upstream, tf.reduce_sum(upstream * (x - mean))


# %% [markdown]
# **Predict.** What happens when the same name is registered again?

# %%
try:
    tf.RegisterGradient(f"Contrast-{unique}")(contrast_gradient)
    outcome = "accepted"
except KeyError as error:
    outcome = "KeyError: " + error.args[0].split(" with ")[0] + " ..."  # the rest names files of this machine
print(outcome)

# %%
assert "Registering two gradient" in outcome

# %% [markdown]
# (Under the type's own name, `AdjustContrastv2`, the entry would reach every tape in this process, and could not be taken back. That is the right choice
# for an operation that you have written yourself, and for nothing else.)
#
# An entry under a name of your own changes nothing yet. A graph's `gradient_override_map` says: while this block builds the graph, operations of
# *this type* use the gradient registered under *that name*. The change is confined to the block.
#
# Graphs are built inside a `tf.function`, so that is where the map works.

# %%
weights = tf.random.normal(image.shape)  # makes the target a scalar that depends on every pixel


@tf.function
def contrast(x, c):
    with tf.compat.v1.get_default_graph().gradient_override_map({"AdjustContrastv2": f"Contrast-{unique}"}):
        return tf.image.adjust_contrast(x, c)


with tf.GradientTape() as tape:
    tape.watch([image, factor])
    target = tf.reduce_sum(weights * contrast(image, factor))
d_image, d_factor = tape.gradient(target, [image, factor])
print("gradient for the image: shape ", d_image.shape)
print("gradient for the factor: shape", d_factor.shape)

# %%
assert d_image.shape == (4, 5, 3)
assert d_factor.shape == ()

# %% [markdown]
# ### Exercise: The way back through a matrix product (6 min)
#
# Suppose that matrix multiplication had no entry. Write its backward function: `a` has shape (rows, inner), `b` has shape (inner, columns), and `upstream`, the upstream
# gradient, has the shape of `a @ b`, (rows, columns). Return two tensors: the gradient for `a` and the gradient for `b`. Open no tape.


# %%
def product_gradients(a, b, upstream):
    return ..., ...  # the gradients for a and for b, where a @ b was computed


exercises.product_backward.check(product_gradients)

# %% [markdown]
# The operation has a gradient now; section 7 checks its values against central differences.
#
# Which tapes see an override? To find out, override a derivative that *has* an entry, with a value that gives itself away: for the square, half of its
# true derivative $2x$. At $x = 3$ the override says 3 and TensorFlow's own derivative says 6.

# %%
half = f"HalfSquare-{unique}"


@tf.RegisterGradient(half)
def half_of_the_derivative(op, upstream):
    return upstream * op.inputs[0]


def overridden_square(x):
    with tf.compat.v1.get_default_graph().gradient_override_map({"Square": half}):
        return tf.square(x)


square_function = tf.function(overridden_square)

# %% [markdown]
# **Predict.** 3 or 6, in each of these cases?
#
# 1. `tf.gradients`, inside the graph;
# 2. a tape around the call of the `tf.function`;
# 3. a tape opened inside the graph;
# 4. a tape in eager code, without any `tf.function`.

# %%
exercises.override.guess([..., ..., ..., ...])  # the four cases, in this order


# %%
@tf.function
def by_tf_gradients(x):
    return tf.gradients(overridden_square(x), x)[0]


@tf.function
def by_a_tape_inside(x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = overridden_square(x)
    return tape.gradient(y, x)


def slope(f, x):
    """df/dx at x, by a tape around the call of f."""
    x = tf.constant(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


three = tf.constant(3.0)
results = {
    "tf.gradients inside the graph": by_tf_gradients(three),
    "a tape around the call": slope(square_function, 3.0),
    "a tape inside the graph": by_a_tape_inside(three),
    "a tape in eager code": slope(overridden_square, 3.0),
}
for case, result in results.items():
    print(f"{case:<30} {result.numpy()}")

# %%
exercises.override.reveal(list(results.values()))

# %% [markdown]
# So the third and the fourth give 6 without a warning. Whether an override holds depends on who differentiates, and where.

# %%
assert [result.numpy() for result in results.values()] == [3.0, 3.0, 6.0, 6.0]

# %% [markdown]
# The map matches types, not meanings. `x * x` has the square's value, but its type is `Mul`.


# %%
@tf.function
def product(x):
    with tf.compat.v1.get_default_graph().gradient_override_map({"Square": half}):
        return x * x


print("x * x under the same map:", slope(product, 3.0).numpy())

# %%
assert slope(product, 3.0).numpy() == 6.0

# %% [markdown]
# For a computation made of TensorFlow's operations there is a better tool, which every tape sees. It is the subject of all that follows.
#
# ## 2. An unstable derivative: replace it
#
# The function $f(x) = \log(1 + e^x)$ is smooth, and its derivative $1 - 1/(1 + e^x)$ lies between 0 and 1.
#
# **Predict.** What does a tape give for $f'(100)$ when $f$ is written as it stands?

# %%
exercises.plain_at_100.guess(...)  # "0", "1", "infinity" or "NaN"


# %%
def log1pexp_plain(x):
    return tf.math.log(1 + tf.exp(x))


print("f'(0)   =", slope(log1pexp_plain, 0.0).numpy())
print("f'(100) =", slope(log1pexp_plain, 100.0).numpy())

# %%
exercises.plain_at_100.reveal("NaN" if np.isnan(slope(log1pexp_plain, 100.0)) else "a number")

# %% [markdown]
# Neither factor is wrong; their product in this order is.

# %%
assert slope(log1pexp_plain, 0.0).numpy() == 0.5
assert np.isnan(slope(log1pexp_plain, 100.0))

# %% [markdown]
# `tf.custom_gradient` replaces the derivative of a whole function. The decorated function returns two things: its value, and a *backward
# function*. The backward function takes the upstream gradient and returns the gradient for the inputs. What it needs from the forward pass
# it finds in the enclosing scope.


# %%
@tf.custom_gradient
def log1pexp(x):
    e = tf.exp(x)

    def backward(upstream):
        return upstream * (1 - 1 / (1 + e))

    return tf.math.log(1 + e), backward


print("f'(0)   =", slope(log1pexp, 0.0).numpy())
print("f'(100) =", slope(log1pexp, 100.0).numpy())
print("f(100)  =", log1pexp(100.0).numpy())

# %% [markdown]
# With $e^x = \infty$ the new formula gives $1 - 0 = 1$. Note the last line: a custom gradient mends the *derivative*. The value, 100 in exact
# arithmetic, still overflows. (`tf.math.softplus` mends both.)

# %%
assert slope(log1pexp, 0.0).numpy() == 0.5
assert slope(log1pexp, 100.0).numpy() == 1.0
assert np.isinf(log1pexp(100.0))

# %% [markdown]
# The backward function consists of TensorFlow operations, so an outer tape can differentiate it in turn. The second derivative is
# $f'' = f'(1 - f')$: 0.25 at 0, and 0 to float32's precision at 100.
#
# **Predict.** Does the custom gradient give the second derivative at 100 as well?

# %%
exercises.second_at_100.guess(...)  # True or False


# %%
def curvature(f, x):
    """d²f/dx² at x, by two nested tapes."""
    x = tf.constant(x)
    with tf.GradientTape() as outer:
        outer.watch(x)
        first = slope(f, x)
    return outer.gradient(first, x)


print("f''(0)   =", curvature(log1pexp, 0.0).numpy())
print("f''(100) =", curvature(log1pexp, 100.0).numpy())

# %%
exercises.second_at_100.reveal(bool(np.isfinite(curvature(log1pexp, 100.0))))

# %% [markdown]
# NaN is back, one order later.

# %%
assert curvature(log1pexp, 0.0).numpy() == 0.25
assert np.isnan(curvature(log1pexp, 100.0))

# %% [markdown]
# So the first derivative needs a custom gradient of its own. A first attempt nests it in the backward function, where the value `s` of the first
# derivative is at hand in the enclosing scope.


# %%
@tf.custom_gradient
def log1pexp_closure(x):
    s = 1 - 1 / (1 + tf.exp(x))

    def backward(upstream):
        @tf.custom_gradient
        def first_derivative(upstream):
            return upstream * s, lambda upstream2: upstream2 * s * (1 - s)

        return first_derivative(upstream)

    return tf.math.log(1 + tf.exp(x)), backward


# %% [markdown]
# **Predict.** `first_derivative` knows `s` and `s * (1 - s)`. What is the second derivative at 100, in eager code and inside a `tf.function`?


# %%
@tf.function
def curvature_in_a_graph(x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = log1pexp_closure(x)
        first = inner.gradient(y, x)
    return first, outer.gradient(first, x)


first, second = curvature_in_a_graph(tf.constant(100.0))
print("eager:         f''(100) =", curvature(log1pexp_closure, 100.0).numpy())
print("in a function: f''(100) =", second)

# %% [markdown]
# Neither is 0. A custom gradient is a derivative *with respect to the function's arguments*. The only argument of
# `first_derivative` is `upstream`, and `upstream` does not depend on `x`. Inside a graph the custom gradient is all there is, no path leads to `x`, and
# the result is `None`. In eager code no tape watches `upstream`, so the custom gradient is not recorded at all; the outer tape follows the operations
# that computed `s`, and NaN is back.
#
# In eager code, too, the result is `None` as soon as a tape does watch `upstream`. A variable that multiplies the function is enough.

# %%
scale = tf.Variable(1.0)
scaled_second = curvature(lambda x: scale * log1pexp_closure(x), 100.0)
print("eager, times a variable: f''(100) =", scaled_second)

# %%
assert first.numpy() == 1.0
assert second is None
assert np.isnan(curvature(log1pexp_closure, 100.0))
assert scaled_second is None

# %% [markdown]
# So pass the value as an *argument*. The first derivative becomes a function of `x`, with a custom gradient for `x`; the backward
# function multiplies it by the upstream gradient with an ordinary product, which TensorFlow differentiates correctly.


# %%
@tf.custom_gradient
def logistic(x):
    s = 1 - 1 / (1 + tf.exp(x))
    return s, lambda upstream: upstream * s * (1 - s)


@tf.custom_gradient
def log1pexp_twice(x):
    return tf.math.log(1 + tf.exp(x)), lambda upstream: upstream * logistic(x)


for x in (0.0, 100.0):
    print(f"x = {x}: f' = {slope(log1pexp_twice, x).numpy()}, f'' = {curvature(log1pexp_twice, x).numpy()}")

# %%
assert slope(log1pexp_twice, 0.0).numpy() == 0.5
assert slope(log1pexp_twice, 100.0).numpy() == 1.0
assert curvature(log1pexp_twice, 0.0).numpy() == 0.25
assert curvature(log1pexp_twice, 100.0).numpy() == 0.0
assert curvature(lambda x: scale * log1pexp_twice(x), 100.0).numpy() == 0.0

# %% [markdown]
# The picture shows where each version still has a value. float32 overflows at $e^{88.7}$.

# %% alt="Two panels over x from minus 20 to 120. The first derivative rises from 0 to 1; the plain version's line ends near 88, the others go on at 1. The second derivative is a bump of height 0.25 around 0; the plain version's line leaves it for 1 at about 45 to 50 and ends near 88, the line of the custom first derivative ends there too, and only that of the nested custom gradient goes on at 0."
x = tf.linspace(-20.0, 120.0, 141)
versions = [
    ("no custom gradient", log1pexp_plain, plots.RED, "-", 7),
    ("custom first derivative", log1pexp, plots.ORANGE, "-", 4),
    ("custom first and second", log1pexp_twice, plots.BLUE, "--", 1.5),
]

_, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
derivatives = {}
for ax, order, name in zip(axes, (slope, curvature), ("first derivative", "second derivative"), strict=True):
    for label, f, colour, style, width in versions:
        derivatives[name, label] = order(f, x).numpy()
        ax.plot(x, derivatives[name, label], style, color=colour, linewidth=width, label=label)
    ax.set(title=f"{name} of log(1 + exp(x)), float32", xlabel="x", ylabel=name, xlim=(-20, 120))
    ax.axvline(88.7, color=plots.GREY, linestyle=":", linewidth=1)
axes[0].legend(loc="center", bbox_to_anchor=(0.45, 0.5))
plt.show()

# %% [markdown]
# On the right is something worse than NaN. Well before the end, the plain version's second derivative goes to 1, where the truth is 0: finite, wrong, and
# without a warning. It is the difference of two terms that nearly cancel, and the second, which contains $e^{-2x}$, underflows to 0 first.
#
# (Close to 88, $e^{-x}$ itself is below float32's smallest normal number. Where a device rounds such numbers to 0, the plain version falls to 0 before it ends.)

# %%
print("x = 60: plain f''  =", curvature(log1pexp_plain, 60.0).numpy())
print("x = 60: nested f'' =", curvature(log1pexp_twice, 60.0).numpy())

# %%
assert curvature(log1pexp_plain, 60.0).numpy() == 1.0
assert curvature(log1pexp_twice, 60.0).numpy() < 1e-7

late = x.numpy() > 90
nans = {key: np.isnan(values[late]).all() for key, values in derivatives.items()}
assert nans == {
    ("first derivative", "no custom gradient"): True,
    ("first derivative", "custom first derivative"): False,
    ("first derivative", "custom first and second"): False,
    ("second derivative", "no custom gradient"): True,
    ("second derivative", "custom first derivative"): True,
    ("second derivative", "custom first and second"): False,
}
assert all(np.isfinite(values[x.numpy() < 88]).all() for values in derivatives.values())
assert np.isfinite(derivatives["second derivative", "custom first and second"]).all()

# %% [markdown]
# ### Exercise: A norm that survives zero (8 min)
#
# The Euclidean norm of a zero vector is 0, and a tape that differentiates it returns NaN. Write the backward function of `norm_of_rows`: `x` has shape
# (rows, columns), the value has shape (rows,), and so does `upstream`. Where a row is zero, its gradient shall be zero.


# %%
@tf.custom_gradient
def norm_of_rows(x):
    norms = tf.norm(x, axis=1)

    def backward(upstream):
        return ...  # the gradient for x

    return norms, backward


exercises.norm_of_rows.check(norm_of_rows)

# %% [markdown]
# ## 3. An expensive value: keep it for the way back
#
# Some derivatives are short once the value is known. Kepler's equation, $E - \varepsilon \sin E = M$, has no closed solution for $E$; one
# iterates $E \leftarrow M + \varepsilon \sin E$ until nothing moves. Yet the derivative of that solution is one line:
#
# $$\frac{dE}{dM} = \frac{1}{1 - \varepsilon \cos E}.$$
#
# The solver counts every evaluation of $M + \varepsilon \sin E$, and keeps a weak reference to its result, so that you can tell later which tensors
# are still alive.

# %%
eccentricity = 0.6
evaluations = []  # one weak reference for each evaluation


def solve(mean_anomaly, iterations=iterations):
    """The E of Kepler's equation for each M, by fixed-point iteration."""
    e = mean_anomaly
    for _ in range(iterations):
        e = mean_anomaly + eccentricity * tf.sin(e)
        evaluations.append(weakref.ref(e))
    return e


mean_anomaly = tf.random.uniform((11,), 0.0, 2 * np.pi)
e = solve(mean_anomaly)
print("evaluations:", len(evaluations))

# %%
assert len(evaluations) == iterations
np.testing.assert_allclose(e - eccentricity * tf.sin(e), mean_anomaly, atol=1e-5 + 20 * eccentricity**iterations)

# %% [markdown]
# Two ways to write the gradient. The first solves again when it is asked for the derivative; the second keeps the solution.


# %%
@tf.custom_gradient
def solve_again(mean_anomaly):
    def backward(upstream):
        return upstream / (1 - eccentricity * tf.cos(solve(mean_anomaly)))

    return solve(mean_anomaly), backward


@tf.custom_gradient
def solve_and_keep(mean_anomaly):
    e = solve(mean_anomaly)

    def backward(upstream):
        return upstream / (1 - eccentricity * tf.cos(e))

    return e, backward


# %% [markdown]
# **Predict.** How many evaluations does a value with its gradient take, in each version? And how many of the iterates does the tape keep
# alive until it is asked?

# %%
exercises.evaluations.guess(
    [..., ..., ...]
)  # evaluations of solve_again, of solve_and_keep; iterates kept by solve_and_keep


# %%
def forward_and_backward(f):
    """The gradient, the number of evaluations, and the number of iterates alive between the two passes."""
    evaluations.clear()
    with tf.GradientTape() as tape:
        tape.watch(mean_anomaly)
        e = f(mean_anomaly)
    alive = sum(reference() is not None for reference in evaluations)
    return tape.gradient(e, mean_anomaly), len(evaluations), alive


gradients, counts, kept = {}, {}, {}
for f in (solve, solve_again, solve_and_keep):
    name = f.__name__
    gradients[name], counts[name], kept[name] = forward_and_backward(f)
    print(f"{name:<16} {counts[name]} evaluations, {kept[name]} iterates kept")

# %%
exercises.evaluations.reveal([counts["solve_again"], counts["solve_and_keep"], kept["solve_and_keep"]])

# %% [markdown]
# `solve_and_keep` needs half the evaluations of `solve_again`. It also does without the long way back that plain `solve` takes, through every iteration.
# The last column is the surprise: it saves work, and no memory yet.

# %%
assert counts == {"solve": iterations, "solve_again": 2 * iterations, "solve_and_keep": iterations}
assert kept["solve_and_keep"] == iterations
for name in ("solve_again", "solve_and_keep"):
    np.testing.assert_allclose(gradients[name], gradients["solve"], rtol=1e-4, atol=100 * eccentricity**iterations)

# %% [markdown]
# Cut the input off before the expensive part, with `tf.stop_gradient`: nothing that follows depends on anything the tape watches, so nothing is recorded.
# The custom gradient supplies the path that was cut.


# %%
@tf.custom_gradient
def solve_unrecorded(mean_anomaly):
    e = solve(tf.stop_gradient(mean_anomaly))

    def backward(upstream):
        return upstream / (1 - eccentricity * tf.cos(e))

    return e, backward


gradient, count, alive = forward_and_backward(solve_unrecorded)
print(f"{'solve_unrecorded':<16} {count} evaluations, {alive} iterate kept")

# %%
assert count == iterations
assert alive == 1
np.testing.assert_array_equal(gradient, gradients["solve_and_keep"])

# %% [markdown]
# The price is the second derivative. Inside the backward function, `e` is now a constant to every tape.

# %%
print("second derivative, recorded:  ", type(curvature(solve_and_keep, 1.0)).__name__)
print("second derivative, unrecorded:", curvature(solve_unrecorded, 1.0))

# %%
at_one = solve(1.0).numpy()
true_curvature = -eccentricity * np.sin(at_one) / (1 - eccentricity * np.cos(at_one)) ** 3
np.testing.assert_allclose(
    curvature(solve_and_keep, 1.0), true_curvature, rtol=1e-3, atol=100 * eccentricity**iterations
)
assert curvature(solve_unrecorded, 1.0) is None

# %% [markdown]
# What does the shorter way back save in time? Below, the backward pass alone is measured, for a growing number of iterations, in units of one
# iteration of the solver.


# %%
def backward_seconds(f, iterations, repeats=4):
    """The shortest time of the backward pass of f, in seconds."""
    values = tf.random.uniform((points,), 0.0, 2 * np.pi)
    shortest = np.inf
    for _ in range(repeats):
        with tf.GradientTape() as tape:
            tape.watch(values)
            e = f(values, iterations)
        _ = e.numpy()  # waits until the forward pass is done
        begin = time.perf_counter()
        np.asarray(tape.gradient(e, values))  # waits for the result
        shortest = min(shortest, time.perf_counter() - begin)
    return shortest


def again(values, iterations):
    @tf.custom_gradient
    def inner(values):
        return solve(values, iterations), lambda u: u / (1 - eccentricity * tf.cos(solve(values, iterations)))

    return inner(values)


def keep(values, iterations):
    @tf.custom_gradient
    def inner(values):
        e = solve(tf.stop_gradient(values), iterations)
        return e, lambda u: u / (1 - eccentricity * tf.cos(e))

    return inner(values)


lengths = [10, 20, 40, 80]
seconds = {
    label: [backward_seconds(f, n) for n in lengths]
    for label, f in (("through every iteration", solve), ("solve again", again), ("keep the value", keep))
}
begin = time.perf_counter()
np.asarray(solve(tf.random.uniform((points,), 0.0, 2 * np.pi), 80))
unit = (time.perf_counter() - begin) / 80

# %% alt="Time of the backward pass against the number of iterations, both axes logarithmic. Two lines rise with the number of iterations: the tape through every iteration and the custom gradient that solves again. The line of the custom gradient that keeps the value stays level, far below them at the right end."
_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
styles = [("o-", plots.RED), ("s-", plots.ORANGE), ("^--", plots.BLUE)]
for (label, values), (style, colour) in zip(seconds.items(), styles, strict=True):
    ax.loglog(lengths, np.array(values) / unit, style, color=colour, label=label)
ax.set_xticks(lengths, labels=[str(n) for n in lengths])
ax.minorticks_off()
ax.set(
    title="The way back from an iterative solution",
    xlabel="iterations of the forward pass",
    ylabel="time of the backward pass (iterations)",
)
ax.legend()
plt.show()

# %%
# At 80 iterations the expected ratio is far above 10; a busy machine leaves a wide margin.
assert seconds["keep the value"][-1] < 0.5 * seconds["through every iteration"][-1]
assert seconds["keep the value"][-1] < 0.5 * seconds["solve again"][-1]

# %% [markdown]
# ### Exercise: Differentiate a search (15 min)
#
# For $a > 0$, the equation $x^3 + a\,x = y$ has one real solution $x$. `root` finds it for each entry of `y`, a tensor of any shape, by halving an
# interval; `a` is a scalar tensor. A tape finds no way through the comparisons. Write the backward function: return the gradient for `y`, in the shape of `y`, and the
# gradient for `a`, a scalar. `upstream` has the shape of `x`, which is that of `y`.


# %%
@tf.custom_gradient
def root(y, a):
    low, high = tf.zeros_like(y) - 10.0, tf.zeros_like(y) + 10.0
    for _ in range(40):
        x = (low + high) / 2.0
        too_small = x**3 + a * x < y
        low, high = tf.where(too_small, x, low), tf.where(too_small, high, x)

    def backward(upstream):
        return ..., ...  # the gradients for y and for a

    return x, backward


exercises.root_gradient.check(root)

# %% [markdown]
# ## 4. Another value, the same gradient
#
# Rounding has a derivative of 0 almost everywhere. That is correct and useless: no optimiser can find its way on a staircase. The *straight-through*
# gradient rounds on the way forward and pretends, on the way back, that nothing was rounded.
#
# **Predict.** At $x = (0.2, 1.3, 2.7)$, what is the gradient of $\sum_j \operatorname{round}(x_j)^2$: by TensorFlow's own rule, and straight through?

# %%
exercises.straight_through.guess([..., ...])  # TensorFlow's rule, straight through: None, or a list of three numbers


# %%
@tf.custom_gradient
def round_straight(x):
    return tf.round(x), lambda upstream: upstream


x = [0.2, 1.3, 2.7]
plain = slope(lambda x: tf.round(x) ** 2, x)
straight = slope(lambda x: round_straight(x) ** 2, x)
print("tf.round:        ", plain)
print("straight through:", straight.numpy())

# %%
exercises.straight_through.reveal([plain, straight.numpy().tolist()])

# %%
assert plain is None
assert straight.numpy().tolist() == [0.0, 2.0, 6.0]

# %% [markdown]
# For this pattern there is a ready-made wrapper: `tf.grad_pass_through(f)` computes `f` and lets the gradient through.

# %%
passed = slope(lambda x: tf.grad_pass_through(tf.round)(x) ** 2, x)
print(passed.numpy())

# %%
assert passed.numpy().tolist() == [0.0, 2.0, 6.0]

# %% [markdown]
# Clipping is the second example. A brightness must lie in $[0, 1]$, so the model clips it. The parameter $v$ behind it starts at 1.5, and the target is 0.3.
#
# **Predict.** Gradient descent on $(\operatorname{clip}(v) - 0.3)^2$ starts at $v = 1.5$. Where does it end, with each gradient?


# %%
@tf.custom_gradient
def clip_straight(v):
    return tf.clip_by_value(v, 0.0, 1.0), lambda upstream: upstream


def descend(clip):
    """The values of v on the way, shape (steps + 1,)."""
    v = tf.Variable(1.5)
    path = [v.numpy()]
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = (clip(v) - 0.3) ** 2
        v.assign_sub(learning_rate * tape.gradient(loss, v))
        path.append(v.numpy())
    return np.array(path)


paths = {
    "clip_by_value": descend(lambda v: tf.clip_by_value(v, 0.0, 1.0)),
    "straight through": descend(clip_straight),
}
for name, path in paths.items():
    print(f"{name:<17} v ends at {path[-1]:.1f}")

# %% [markdown]
# Outside $[0, 1]$ the clipped value does not change, its derivative is 0, and descent never leaves the spot. Straight through, it sees an error of the right
# sign and moves until the value is right.

# %%
assert (paths["clip_by_value"] == 1.5).all()
assert abs(paths["straight through"][-1] - 0.3) < 0.05

# %% alt="Left: rounding is a staircase over x from minus 2.5 to 2.5, and its straight-through gradient a level line at 1. Right: over the steps of descent, v stays at 1.5 with the clip's own gradient, and falls to the dotted target line at 0.3 with the straight-through gradient."
_, axes = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")
x = tf.linspace(-2.5, 2.5, 501)
plots.curve_with_derivative(
    x,
    round_straight(x),
    slope(round_straight, x),
    title="Rounding, and its straight-through gradient",
    label="round(x)",
    derivative_label="gradient",
    ax=axes[0],
)
for (name, path), style, colour in zip(paths.items(), ("-", "--"), (plots.RED, plots.BLUE), strict=True):
    axes[1].plot(path, style, color=colour, label=f"gradient: {name}")
axes[1].axhline(0.3, color=plots.GREY, linestyle=":", label="target")
axes[1].set(title="Descent on a clipped value", xlabel="step", ylabel="v")
axes[1].legend()
plt.show()

# %%
assert (slope(round_straight, x).numpy() == 1.0).all()

# %% [markdown]
# The gradient is now wrong on purpose: it is not the derivative of the value. Use it where you know why.
#
# ## 5. The same value, another gradient: clip in the right place
#
# The reverse also occurs: a function that changes nothing on the way forward and limits the gradient on the way back. Here the norm is limited
# to 0.5.


# %%
@tf.custom_gradient
def clip_gradient(v):
    return tf.identity(v), lambda upstream: tf.clip_by_norm(upstream, 0.5)


# %% [markdown]
# **Predict.** At $v = 2$, the derivative of $v^2$ is 4. What does the tape give for `clip_gradient(v * v)`?

# %%
exercises.clip_at_target.guess(...)

# %%
clipped = slope(lambda v: clip_gradient(v * v), 2.0)
print(f"{clipped.numpy():.4g}")

# %%
np.testing.assert_allclose(clipped, 2.0, rtol=1e-6)

# %% [markdown]
# Not 0.5, although "the gradient is clipped to 0.5" is how this is usually explained. The next cell prints what goes into the backward function and what
# comes out of it.


# %%
@tf.custom_gradient
def clip_gradient_and_tell(v):
    def backward(upstream):
        limited = tf.clip_by_norm(upstream, 0.5)
        tf.print("received", upstream, "- passed on", limited, output_stream=sys.stdout)
        told.append((float(upstream), float(limited)))
        return limited

    return tf.identity(v), backward


told = []
result = slope(lambda v: clip_gradient_and_tell(v * v), 2.0)
print(f"result {result.numpy():.4g}")

# %%
exercises.clip_at_target.reveal(result)

# %%
np.testing.assert_allclose(told[-1], (1.0, 0.5), rtol=1e-6)

# %% [markdown]
# So a clip limits the derivative of the target with respect to the clip's *output*. Here its output is the target.
#
# **Predict.** What is the result for `clip_gradient(25 * v * v)`, whose derivative at 2 is 100?

# %%
exercises.clip_scaled.guess(...)

# %%
scaled = slope(lambda v: clip_gradient_and_tell(25 * v * v), 2.0)
print(f"result {scaled.numpy():.4g}")

# %%
exercises.clip_scaled.reveal(scaled)

# %%
np.testing.assert_allclose(told[-1], (1.0, 0.5), rtol=1e-6)
np.testing.assert_allclose(scaled, 50.0, rtol=1e-6)

# %% [markdown]
# Half of 100, not 0.5. To limit the gradient *that arrives at* `v`, the clip must be the last thing on the way back, so it must be the first on the
# way forward: apply it to `v`.


# %%
def clip_at_the_source(v):
    u = clip_gradient_and_tell(v)
    return 25 * u * u


right = slope(clip_at_the_source, 2.0)
print(f"result {right.numpy():.4g}")

# %%
np.testing.assert_allclose(told[-1], (100.0, 0.5), rtol=1e-6)
np.testing.assert_allclose(right, 0.5, rtol=1e-6)

# %% [markdown]
# Now the backward function receives 100 and passes on 0.5. Clip *once* and use the result twice. Two separate clips limit two separate paths, and
# the sum of the two is not limited.

# %%
twice = slope(lambda v: 25 * clip_gradient(v) * clip_gradient(v), 2.0)
print(f"two clips: {twice.numpy():.4g}")

# %%
np.testing.assert_allclose(twice, 1.0, rtol=1e-6)

# %% [markdown]
# If the gradient of a source is all you want to limit, leave the graph alone and clip what the tape returns, as [notebook 02](02_training_with_a_tape.ipynb)
# does. A clip inside the graph is for a gradient that passes through the middle of a model.

# %%
after = tf.clip_by_norm(slope(lambda v: 25 * v * v, 2.0), 0.5)
print(f"clipped after the tape: {after.numpy():.4g}")

# %%
np.testing.assert_allclose(after, 0.5, rtol=1e-6)

# %% alt="The gradient at v against the scale s of s times v squared, both axes logarithmic. Without a clip it rises as 4 s; with the clip at the target it rises in parallel as 2 s, which is half; with the clip at the source it stays level at 0.5, the limit."
scales = np.float32([1, 2, 5, 10, 25, 100])
arriving = {
    "no clip": [slope(lambda v, s=s: s * v * v, 2.0).numpy() for s in scales],
    "clip at the target": [slope(lambda v, s=s: clip_gradient(s * v * v), 2.0).numpy() for s in scales],
    "clip at the source": [slope(lambda v, s=s: s * clip_gradient(v) ** 2, 2.0).numpy() for s in scales],
}

_, ax = plt.subplots(figsize=(6, 4), layout="constrained")
styles = [("o-", plots.GREY), ("s-", plots.RED), ("^--", plots.BLUE)]
for (label, values), (style, colour) in zip(arriving.items(), styles, strict=True):
    ax.loglog(scales, values, style, color=colour, label=label)
ax.set(
    title="What a clip to 0.5 limits",
    xlabel="scale s of the target s·v², at v = 2",
    ylabel="gradient that arrives at v",
)
ax.legend()
plt.show()

# %%
np.testing.assert_allclose(arriving["no clip"], 4 * scales, rtol=1e-6)
np.testing.assert_allclose(arriving["clip at the target"], 2 * scales, rtol=1e-6)
np.testing.assert_allclose(arriving["clip at the source"], np.full(len(scales), 0.5), rtol=1e-6)

# %% [markdown]
# ### Exercise: A limit for each example (5 min)
#
# `h`, of shape (batch, units), passes through the middle of a model. Write a function that returns its value unchanged, and that limits the gradient on the way back:
# for each *example* by itself, to the norm 1. An example whose gradient is shorter keeps it.


# %%
@tf.custom_gradient
def limit_each(h):
    return tf.identity(h), lambda upstream: ...


exercises.limit_rows.check(limit_each)

# %% [markdown]
# ## 6. Save and load
#
# A custom gradient is a Python function, and a SavedModel holds graphs. Can a model be saved with it? `tf.saved_model.SaveOptions` has a switch,
# `experimental_custom_gradients`: with it, the backward functions are traced and saved as graphs of their own. In current TensorFlow it is on by
# default.

# %%
print("default:", tf.saved_model.SaveOptions().experimental_custom_gradients)

# %%
assert tf.saved_model.SaveOptions().experimental_custom_gradients is True

# %% [markdown]
# Three models: the clip of section 5 behind a square, and the two versions of $\log(1 + e^x)$ whose second derivative exists at 2, one whose
# backward function is ordinary TensorFlow code and one with a nested custom gradient.


# %%
@tf.custom_gradient
def log1pexp_ordinary(x):
    return tf.math.log(1 + tf.exp(x)), lambda upstream: upstream * tf.sigmoid(x)


class Model(tf.Module):
    def __init__(self, f):
        super().__init__()
        self.f = f

    @tf.function(input_signature=[tf.TensorSpec([], tf.float32)])
    def __call__(self, x):
        return self.f(x)


tf.get_logger().setLevel("WARNING")  # saving would log the folder's name
folder = tempfile.TemporaryDirectory()
clipped_square = Model(lambda v: clip_gradient(v * v))
to_save = [
    ("without", clipped_square, False),
    ("with", clipped_square, True),
    ("ordinary", Model(log1pexp_ordinary), True),
    ("nested", Model(log1pexp_twice), True),
]
for name, model, switch in to_save:
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=switch)
    tf.saved_model.save(model, str(Path(folder.name, name)), options=options)
print("saved:", sorted(path.name for path in Path(folder.name).iterdir()))

# %% [markdown]
# **Predict.** Load `with` and `without` in this process, and differentiate both at 2. Does each give 2?

# %%
loaded_slopes = {}
for name in ("with", "without"):
    loaded = tf.saved_model.load(str(Path(folder.name, name)))
    loaded_slopes[name] = slope(loaded, 2.0)
    print(f"{name:<8} {loaded_slopes[name].numpy():.4g}")

# %% [markdown]
# Both do. Do not be reassured: the loaded graph refers to its gradient by name, and *this* process still has that name in its registry. The test that counts is a
# process that never ran your Python code.

# %%
np.testing.assert_allclose(loaded_slopes["with"], 2.0, rtol=1e-6)
np.testing.assert_allclose(loaded_slopes["without"], 2.0, rtol=1e-6)

# %% [markdown]
# The next cell writes such a program and runs it with the same Python. It knows nothing of this notebook but the folders. For each model it reports
# the first and the second derivative at 2, or the error.
#
# **Predict.** Which of the four models give a first derivative in the fresh process? Which a second?

# %%
program = """
import json, sys
import tensorflow as tf

def derivatives(model):
    x = tf.constant(2.0)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = model(x)
    yield float(tape.gradient(y, x))
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = model(x)
        first = inner.gradient(y, x)
    yield float(outer.gradient(first, x))

report = {}
for name in ("without", "with", "ordinary", "nested"):
    found = report[name] = []
    try:
        model = tf.saved_model.load(sys.argv[1] + "/" + name)
        found.append("loaded")
        found.extend(derivatives(model))
    except LookupError as error:
        found.append("LookupError: " + str(error))
print(json.dumps(report))
"""

cpu_only = os.environ | {"CUDA_VISIBLE_DEVICES": "-1"}
fresh = subprocess.run([sys.executable, "-c", program, folder.name], env=cpu_only, capture_output=True, text=True)
assert fresh.returncode == 0, fresh.stderr[-2000:]
report = json.loads(fresh.stdout.splitlines()[-1])

for name, (_, *found) in report.items():
    print(f"{name:<9}", *[item.split(":")[0] if isinstance(item, str) else f"{item:.4f}" for item in found], sep="   ")

# %% [markdown]
# - `without` loads, and computes values. Asked for a gradient, it raises `LookupError`: no gradient is defined for an operation of type
#   `IdentityN`, the marked operation with which a graph carries a custom gradient.
# - `with` gives 2.
# - `ordinary` gives both derivatives: its backward function was saved as a graph of TensorFlow operations, which have derivatives of their own.
# - `nested` gives the first derivative only. The switch saves the backward function, but not the custom gradient *inside* it.

# %%
error = report["without"][1]
assert report["without"][0] == "loaded"
assert error.startswith("LookupError")
assert "No gradient defined for operation" in error
assert "IdentityN" in error
np.testing.assert_allclose(report["with"][1], 2.0, rtol=1e-6)

s = 1 / (1 + np.exp(-2.0))
np.testing.assert_allclose(report["ordinary"][1:], [s, s * (1 - s)], rtol=1e-5)
np.testing.assert_allclose(report["nested"][1], s, rtol=1e-5)
assert "IdentityN" in report["nested"][2]

# %% [markdown]
# So a model that is to be differentiated twice after loading needs backward functions that are stable by themselves. `tf.sigmoid` is: at 100 its derivative is 0,
# not NaN.

# %%
print("f''(100), ordinary backward function:", curvature(log1pexp_ordinary, 100.0).numpy())
folder.cleanup()

# %%
assert curvature(log1pexp_ordinary, 100.0).numpy() == 0.0

# %% [markdown]
# ## 7. Check it independently
#
# A custom gradient is a claim that nobody checks: TensorFlow believes whatever you return. So check it. Central differences in float64, of functions written
# in NumPy, know nothing of tapes or registries.

# %%
weights64, factor64 = weights.numpy().astype(np.float64), float(factor)


def contrast_numpy(x, c):
    mean = x.mean(axis=(0, 1), keepdims=True)
    return np.sum(weights64 * (c * (x - mean) + mean))


image64 = image.numpy().astype(np.float64)
gradcheck.check_gradient(lambda x: contrast_numpy(x, factor64), d_image, image64, rtol=1e-5)
gradcheck.check_gradient(lambda c: contrast_numpy(image64, c), d_factor, factor64, rtol=1e-5)
print("contrast adjustment: agrees")

# %% [markdown]
# For $\log(1 + e^x)$, NumPy's `logaddexp` is stable, and the second derivative is the slope of the stable logistic function.

# %%
for x in (-3.0, 0.0, 2.0, 100.0):
    first = gradcheck.numerical_jacobian(lambda x: np.logaddexp(0.0, x), x)
    second = gradcheck.numerical_jacobian(lambda x: 1 / (1 + np.exp(-x)), x)
    np.testing.assert_allclose(slope(log1pexp_twice, x), first, atol=1e-5)
    np.testing.assert_allclose(curvature(log1pexp_twice, x), second, atol=1e-5)
print("log(1 + exp(x)), both derivatives: agrees")

# %% [markdown]
# Kepler's equation in float64, iterated until it has converged:


# %%
def solve_numpy(mean_anomaly):
    e = mean_anomaly
    for _ in range(200):
        e = mean_anomaly + eccentricity * np.sin(e)
    return e


jacobian = gradcheck.numerical_jacobian(solve_numpy, mean_anomaly)
np.testing.assert_allclose(
    gradients["solve_and_keep"], np.diag(jacobian), rtol=1e-4, atol=100 * eccentricity**iterations
)
print("Kepler's equation: agrees")

# %% [markdown]
# And a check that fails, as it should: the straight-through gradient is not a derivative.

# %%
try:
    gradcheck.check_gradient(np.round, slope(round_straight, 1.3), 1.3)
    verdict = "agrees"
except AssertionError:
    verdict = "does not agree"
print("straight-through rounding:", verdict)

# %%
assert verdict == "does not agree"

# %% [markdown]
# ## Recap
#
# - `tf.RegisterGradient` enters a gradient into a global registry and `gradient_override_map` uses it for a block of a graph; `tf.gradients` and a tape around the `tf.function` see it, a tape inside the graph does not (section 1).
# - `tf.custom_gradient` replaces a derivative that overflows; for a second order, give the first derivative a custom gradient and pass what it depends on as an argument (section 2).
# - A backward function can reuse a value that the forward pass paid for, and it can let the gradient straight through a rounding or a clip (sections 3 and 4).
# - A clip inside the graph limits the *upstream* gradient; apply it to the source, once, or clip what the tape returns (section 5).
# - Custom gradients are saved with a model by default, one level deep; only a fresh process tells whether they were (section 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | `gradient_override_map` with a tape inside the graph, or in eager code | TensorFlow's own gradient, without a warning | `tf.custom_gradient`, or a tape around the call |
# | a name registered twice | `KeyError` | one name for each gradient; the registry is global |
# | a nested custom gradient that reads a value from the enclosing scope | `None`, or the default derivative | pass the value as an argument |
# | an expensive forward pass inside `tf.custom_gradient` | the tape keeps every intermediate tensor | `tf.stop_gradient` on its input |
# | `clip_by_norm` near the target | a gradient far above the limit | clip at the source, once |
# | a saved model tested in the process that saved it | it works there, and `LookupError` elsewhere | load it in a fresh process |
# | a nested custom gradient in a saved model | `LookupError` at the second derivative | a backward function of ordinary, stable operations |
#
# **Read next:** [07 Multiple tapes](07_multiple_tapes.ipynb) lets several tapes record one computation.
