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
# # Without the matrix
#
# A Hessian has $N^2$ entries, 4 TB in float32 for a million parameters. You can *multiply* by it without building it, and products are enough here for a Newton step and a spectrum.
# **How do you use a Hessian that is too large to store?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/14_without_the_matrix.ipynb)
#
# **Prerequisites:** [12 Forward mode](12_forward_mode.ipynb), [13 Hessians and Newton's method](13_hessians_and_newton.ipynb) · **Minutes:** 18 to read, 8 more to go further, 31 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
hidden = 1000  # hidden units of the network in section 1: between 600 and 1500
weight_decay = 1e-3  # factor of the squared weights of softmax regression, in sections 3 and 5: between 7e-4 and 1.3e-3
budget = 300  # gradient-equivalents that each method may spend on softmax regression: between 250 and 400
fit_budget = 600  # and on the fit of a network: between 500 and 600

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import functools
import time
from itertools import pairwise

from tapelab import data, derivatives, optimize, plots, runtime
from tapelab.exercises.sheets import without_the_matrix as exercises

import matplotlib.pyplot as plt
import numpy as np
import scipy.optimize  # comes with scikit-learn
import tensorflow as tf
from threadpoolctl import threadpool_limits  # comes with scikit-learn


def compiled(loss):
    """What the methods need, compiled: (loss, loss with gradient), and the Hessian's product."""

    @tf.function
    def value_and_gradient(w):
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = loss(w)
        return value, tape.gradient(value, w)

    @tf.function
    def product(w, v):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(w)
                value = loss(w)
            g = inner.gradient(value, w)
        return outer.gradient(g, w, output_gradients=v)

    return (tf.function(loss), value_and_gradient), product


def matrix_products(function, *given):
    """How many matrix products in a compiled function's graph lead to an output."""
    met, ahead = set(), [output.op for output in function.get_concrete_function(*given).graph.outputs]
    while ahead:
        operation = ahead.pop()
        if operation not in met:
            met.add(operation)
            ahead += [source.op for source in operation.inputs]
    return sum(operation.type == "MatMul" for operation in met)


def gradient_descent(w, problem, rate, budget):
    rows = []
    for work in range(1, budget + 1):
        value, g = problem[1](w)
        rows.append((work, float(value)))
        w -= rate * g
    return np.array(rows)


def lbfgs(w, problem, budget):
    """Returns rows of (work, loss) and the last point; the work is the number of gradients."""
    rows = []

    def evaluate(flat):
        value, g = problem[1](tf.constant(flat))
        rows.append((len(rows) + 1, float(value)))
        return float(value), g.numpy()

    options = {"maxfun": budget, "maxiter": budget, "ftol": 0.0, "gtol": 1e-10}
    with threadpool_limits(1):  # its vectors are short
        found = scipy.optimize.minimize(evaluate, w, jac=True, method="L-BFGS-B", options=options)
    return np.array(rows[:budget]), tf.constant(found.x)


# One of TensorFlow's graph rewrites warns about float64 layers: off.
tf.config.optimizer.set_experimental_options({"remapping": False})
runtime.start(seed)

# %%
images = data.load("digits")
x = tf.constant(images.x_train[:600].reshape(600, 64))
labels = tf.constant(images.y_train[:600])

layers = [tf.keras.layers.Dense(hidden, activation="tanh"), tf.keras.layers.Dense(10)]
model = tf.keras.Sequential(layers)
model.build((None, 64))
variables = [w.value for w in model.trainable_variables]  # TensorFlow's own, inside Keras's
n = model.count_params()
print(f"{n:,} parameters: the Hessian has {n**2:,} entries, {4 * n**2 / 1e9:.1f} GB in float32")


# %%
def loss():
    entropy = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(x))
    return tf.reduce_mean(entropy)


v = [tf.random.normal(w.shape, seed=seed) for w in variables]  # a direction

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        value = loss()
    g = inner.gradient(value, variables)
Hv = outer.gradient(g, variables, output_gradients=v)
print("the Hessian times a vector:", [tuple(part.shape) for part in Hv])

# %% [markdown]
# The second cell multiplied that matrix by a vector $v$ and never built it; the result takes 0.3 MB.
#
# **You will be able to**
#
# - multiply a vector by a Hessian in three ways (section 1),
# - solve a linear system from products, by conjugate gradients (section 2),
# - build Newton–CG from products, price a product, and judge the method fairly against L-BFGS (section 3).

# %% [markdown]
# ## 1. Three ways to a product
#
# $Hv$ is the derivative of the gradient in the direction $v$:
#
# $$Hv = \frac{\mathrm d}{\mathrm dt}\, g(w + t v)\,\Big|_{t=0}.$$
#
# The definition suggests the first way: a **difference of two gradients**, $\big(g(w + hv) - g(w)\big) / h$ or, with both
# sides, $\big(g(w + hv) - g(w - hv)\big) / 2h$.
#
# **Predict.** float32 carries about seven digits. With the best step $h$ and both sides, how many digits of $Hv$ are right?

# %%
exercises.digits.guess(...)  # "about 7", "about 4" or "about 1"


# %%
@tf.function
def gradient():
    with tf.GradientTape() as tape:
        value = loss()
    return tf.concat([tf.reshape(part, [-1]) for part in tape.gradient(value, variables)], axis=0)


def gradient_at(shift):
    """The gradient at w + shift v, shape (n,); the variables end as they began."""
    saved = [tf.identity(w) for w in variables]
    for w, direction in zip(variables, v, strict=True):
        w.assign_add(shift * direction)
    result = gradient()
    for w, at in zip(variables, saved, strict=True):
        w.assign(at)
    return result


exact = tf.concat([tf.reshape(part, [-1]) for part in Hv], axis=0)
length_of_v = float(tf.linalg.global_norm(v))
lengths = 10.0 ** np.arange(-5, 2.5, 0.5)  # of the step, h times the length of v
errors = {"one side": [], "both sides": []}
for h in lengths / length_of_v:
    ahead, here, behind = gradient_at(h), gradient_at(0.0), gradient_at(-h)
    for sides, product in (("one side", (ahead - here) / h), ("both sides", (ahead - behind) / (2 * h))):
        errors[sides].append(float(tf.norm(product - exact) / tf.norm(exact)))

# %% tags=["nbval-ignore-output"]
for sides, error in errors.items():
    print(f"{sides:10}  best relative error {min(error):.0e}, at a step of length {lengths[np.argmin(error)]:.2g}")

# %% alt="Line plot. Relative error of a difference of gradients against the length of the step, both on logarithmic axes: two Vs. Towards small steps both errors rise in proportion to one over the length. Towards large steps the error with one side rises in proportion to the length, that with both sides with its square; the second V is deeper, and lowest at a longer step. Both lie far above the line of float32's rounding." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the error against the length of the step
_, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
for (sides, error), style, colour in zip(errors.items(), ("s--", "o-"), (plots.ORANGE, plots.BLUE), strict=True):
    ax.loglog(lengths, error, style, color=colour, label=sides)
ax.axhline(np.finfo(np.float32).eps, color=plots.GREY, linestyle=":")
ax.annotate("float32's rounding", (100, np.finfo(np.float32).eps), (0, 4), textcoords="offset points", ha="right")
ax.set(title="A difference of this network's gradients: 3 digits, or 4")
ax.set(xlabel="length of the step", ylabel="relative error of Hv")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
best = -np.log10(min(errors["both sides"]))
exercises.digits.reveal("about 7" if best > 6 else "about 4" if 3 < best < 5.3 else "about 1")
assert 3.8 < best < 5.3  # of seven
best_of_one = -np.log10(min(errors["one side"]))
assert 2.7 < best_of_one < best - 0.7
assert lengths[np.argmin(errors["one side"])] < lengths[np.argmin(errors["both sides"])]
for error in errors.values():
    assert min(error[0], error[-1]) > 100 * min(error)
    assert 0.7 < np.log10(error[1] / error[3]) < 1.3  # ten times the step, a tenth of the error
for sides, power in (("one side", 1), ("both sides", 2)):
    begin = np.argmin(errors[sides]) + 1  # ten times the step, ten or a hundred times the error
    assert abs(np.log10(errors[sides][begin + 2] / errors[sides][begin]) - power) < 0.4
check_A, check_w, check_v = (tf.random.normal(shape, seed=1) for shape in ((600, 64), (64,), (64,)))


def check_gradient(w, function=lambda w: tf.reduce_mean(tf.linalg.matvec(check_A, w) ** 2)):
    with tf.GradientTape() as check_tape:
        check_tape.watch(w)
        check_value = function(w)
    return check_tape.gradient(check_value, w)


check_exact = 2 / 600 * tf.linalg.matvec(check_A, tf.linalg.matvec(check_A, check_v), transpose_a=True)
check_long = (check_gradient(check_w + 10 * check_v) - check_gradient(check_w - 10 * check_v)) / 20
assert tf.norm(check_long - check_exact) < 3e-6 * tf.norm(check_exact)  # a quadratic: no step is too long
assert 4 * n**2 / 1e9 > 22 or hidden < 1000

# %% [markdown]
# - **Short steps.** The two gradients agree in most of their digits, and the difference loses these: an error in proportion to $\varepsilon/h$, with $\varepsilon = 10^{-7}$ for float32.
# - **Long steps.** This gradient is no longer linear: an error in proportion to $h$ with one side, $h^2$ with both.
#
# Where the two errors balance, about $\varepsilon^{1/2} = 3 \cdot 10^{-4}$ is left, or $\varepsilon^{2/3} = 2 \cdot 10^{-5}$, and this network comes near both.
#
# The opening cell has the second way, **reverse over reverse**. Differentiate the scalar $g^\top v$ with $v$ constant: $\nabla (g^\top v) = H^\top v = Hv$, since $H$ is symmetric. `output_gradients=v` forms the inner product.
#
# The third is **forward over reverse** (section 5 of [12](12_forward_mode.ipynb)), without the outer tape. `ForwardAccumulator` refuses Keras's own variables, hence `variables`.


# %%
@tf.function
def reverse_over_reverse(v):
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            value = loss()
        g = inner.gradient(value, variables)
    return outer.gradient(g, variables, output_gradients=v)


@tf.function
def forward_over_reverse(v):
    with tf.autodiff.ForwardAccumulator(variables, v) as accumulator:
        with tf.GradientTape() as tape:
            value = loss()
        g = tape.gradient(value, variables)
    return [accumulator.jvp(part) for part in g]


# %% tags=["nbval-ignore-output"]
ways = {"gradient": gradient}
ways["reverse over reverse"] = lambda: reverse_over_reverse(v)
ways["forward over reverse"] = lambda: forward_over_reverse(v)
taken = {name: [] for name in ways}
for _ in range(12):  # the first call compiles
    for name, way in ways.items():
        begin = time.process_time()
        result = way()
        result[0].numpy()
        taken[name].append(time.process_time() - begin)
prices = {name: np.median(seconds[1:]) / np.median(taken["gradient"][1:]) for name, seconds in taken.items()}
for name, price in prices.items():
    print(f"{name:22} {price:.1f} gradients of processor time")
pearlmutter = tf.concat([tf.reshape(part, [-1]) for part in result], axis=0)
print(f"relative difference of the two: {tf.norm(pearlmutter - exact) / tf.norm(exact):.0e}")

# %% [markdown]
# Both are exact here but for rounding, and cost a few gradients, not $N$. With the `LayerNormalization` in the check below, both are wrong
# ([10](10_higher_order_gradients.ipynb), section 5), and `tapelab.derivatives.hvp` is right.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert tf.norm(pearlmutter - exact) < 1e-5 * tf.norm(exact)
assert max(prices.values()) < 20  # not n times
try:
    tf.autodiff.ForwardAccumulator(model.trainable_variables, v)
    refused = False
except Exception:  # which one depends on the version
    refused = True
assert refused
check_B = tf.constant([[1.0, 0.5], [2.0, -1.0], [0.3, 0.4]], tf.float64)
check_at, check_along = tf.constant([1.0, 0.4], tf.float64), tf.constant([0.3, 1.0], tf.float64)
check_norm = tf.keras.layers.LayerNormalization(dtype="float64")


def check_normalised(w):
    return tf.reduce_sum(tf.nn.softplus(check_norm(check_B * w)) * check_B)


check_sides = (check_gradient(check_at + sign * 1e-6 * check_along, check_normalised) for sign in (1, -1))
check_difference = (next(check_sides) - next(check_sides)) / 2e-6
with tf.GradientTape() as check_tape, tf.autodiff.ForwardAccumulator(check_at, check_along) as accumulator:
    check_tape.watch(check_at)
    check_slope = check_gradient(check_at, check_normalised)
by_check_tapes = check_tape.gradient(check_slope, check_at, output_gradients=check_along)
for check_product in (accumulator.jvp(check_slope), by_check_tapes):
    assert tf.norm(check_product - check_difference) > 0.01 * tf.norm(check_difference)
by_check_helper = derivatives.hvp(check_normalised)(check_at, vector=check_along)
assert tf.norm(by_check_helper - check_difference) < 1e-4 * tf.norm(check_difference)
check_table, check_rows = tf.Variable(check_B), [0, 2, 2]  # an embedding
with (
    tf.GradientTape(persistent=True) as check_tape,
    tf.autodiff.ForwardAccumulator(check_table, check_B) as accumulator,
):
    with tf.GradientTape() as inner:
        check_value = tf.reduce_sum(tf.gather(check_table, check_rows) ** 3)
    check_slices = inner.gradient(check_value, check_table)
    check_dense = tf.convert_to_tensor(check_slices)
for check_way in (accumulator.jvp, lambda g: check_tape.gradient(g, check_table, output_gradients=check_B)):
    with np.testing.assert_raises(AttributeError):
        check_way(check_slices)
    np.testing.assert_allclose(
        tf.convert_to_tensor(check_way(check_dense)), 6.0 * check_B**2 * [[1.0], [0.0], [2.0]], rtol=1e-6
    )

# %% [markdown]
# ### Exercise: A product with a Hessian of several tensors (8 min)
#
# `f(*xs)` takes the tensors in the list `xs`, of any shapes, to a scalar. `vs` is a list of directions, one for each tensor and of its shape. Return
# the product of the whole Hessian with the directions, as a list of tensors of those shapes. Two calls of `gradient` are enough. `f` depends on each
# tensor; where no gradient does, return zeros.


# %%
def hessian_product(f, xs, vs):
    return ...  # one tensor for each tensor in xs, and of its shape


exercises.product.check(hessian_product)

# %% [markdown]
# ## 2. Solve with products: conjugate gradients
#
# A Newton step solves $Hs = -g$. **Conjugate gradients** (CG) builds the solution from one product in each round. It goes along a direction $p$ until
# the quadratic model stops falling, and then chooses the next direction *conjugate* to all earlier ones, $p_i^\top H p_j = 0$: gains along one are not
# spoilt by the next. After $k$ rounds, $s$ is the model's lowest point in the space spanned by $g, Hg, \dots, H^{k-1}g$, a **Krylov space**.


# %%
def conjugate_gradients(product, g, tolerance, limit):
    """Solve H s = -g to a residual norm. Returns s, the products, and whether p'Hp <= 0 was met."""
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
# All this holds in exact arithmetic, where $H$ has positive eigenvalues; $n$ unknowns then take at most $n$ rounds.
#
# **Predict.** A 400 × 400 matrix has only three different eigenvalues: 1, 10 and 100. How many products does CG need to solve with it to eight digits?

# %%
exercises.products.guess(...)  # a number

# %% tags=["nbval-ignore-output"]
rng = np.random.default_rng(seed)
eigenvalues = tf.constant(rng.permutation(np.repeat([1.0, 10.0, 100.0], [200, 150, 50])))
right = tf.constant(rng.normal(size=400))

s, count, _ = conjugate_gradients(lambda p: eigenvalues * p, -right, 1e-8 * float(tf.norm(right)), 400)
print("products:", count)
print(f"relative error: {float(tf.norm(s - right / eigenvalues) / tf.norm(s)):.0e}")

# %% alt="Contour plot and line plot. Left, the ellipses of a quadratic: steepest descent zigzags down the long axis in many short legs, conjugate gradients arrives in two. Right, the relative error of conjugate gradients against products for three spectra: with three different eigenvalues it drops to rounding error after three products, with three tight clusters it falls fast, a stair for every three products; with an even spread it falls slowly and steadily." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: two dimensions, and three spectra
_, (plane, curve) = plt.subplots(1, 2, figsize=(11, 4.2), layout="constrained")
H2, w = np.diag([1.0, 12.0]), np.array([-4.0, 0.9])
across, up = np.meshgrid(np.linspace(-4.6, 1.2, 101), np.linspace(-1.4, 1.4, 101))
plane.contour(across, up, (across**2 + 12 * up**2) / 2, levels=12, colors=plots.GREY, linewidths=0.5)
zigzag = [w]
for _ in range(30):
    slope = H2 @ zigzag[-1]
    zigzag.append(zigzag[-1] - slope @ slope / (slope @ H2 @ slope) * slope)
legs = [w + conjugate_gradients(lambda p: H2 @ p, H2 @ w, 0.0, k)[0].numpy() for k in (1, 2)]
plane.plot(*np.transpose(zigzag), "o-", color=plots.ORANGE, markersize=3, label="steepest descent, best step lengths")
plane.plot(*np.transpose([w, *legs]), "s--", color=plots.BLUE, label="conjugate gradients, 2 products")
plane.set(title="Two dimensions, two products", xlabel="$s_0$", ylabel="$s_1$", ylim=(-1.4, 1.9))
plane.legend(loc="upper right", fontsize="small")
spectra = {
    "three different eigenvalues": (eigenvalues.numpy(), "o-", plots.BLUE),
    "three clusters, 2 % wide": (eigenvalues.numpy() * rng.uniform(0.99, 1.01, 400), "^--", plots.GREEN),
    "spread evenly from 1 to 100": (np.linspace(1, 100, 400), "s:", plots.RED),
}
relative_errors = {}
for name, (values, style, colour) in spectra.items():
    solution = right.numpy() / values
    relative_errors[name] = [1.0]
    for k in range(1, 13):
        found = conjugate_gradients(lambda p, values=values: values * p, -right, 1e-14, k)[0]
        relative_errors[name].append(float(np.linalg.norm(found - solution) / np.linalg.norm(solution)))
    curve.semilogy(relative_errors[name], style, color=colour, markersize=4, label=name)
curve.set(title="Three spectra: the even spread is slowest", xlabel="products", ylabel="relative error")
curve.legend(fontsize="small")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.products.reveal(count)
assert count == 3
np.testing.assert_allclose(s, right / eigenvalues, rtol=1e-6, atol=1e-9)
np.testing.assert_allclose(legs[1], [0, 0], atol=1e-12)
assert np.linalg.norm(zigzag[10]) > 1e-3
assert relative_errors["three different eigenvalues"][3] < 1e-10
assert relative_errors["three clusters, 2 % wide"][4] < 1e-2
assert relative_errors["three clusters, 2 % wide"][12] < 1e-4
assert relative_errors["spread evenly from 1 to 100"][12] > 0.05
_, met_at, met = conjugate_gradients(lambda p: tf.constant([2.0, -1.0]) * p, tf.constant([1.0, 1.0]), 0.0, 2)
assert met
assert met_at == 2
at_once = conjugate_gradients(lambda p: -p, tf.constant([1.0, 2.0]), 0.0, 2)
np.testing.assert_array_equal(at_once[0], [-1.0, -2.0])  # nothing yet, so the downhill direction
assert at_once[1:] == (1, True)

# %% [markdown]
# CG builds from $k$ products a polynomial in $H$ of degree $k - 1$, applied to $-g$. To give $-H^{-1}g$ it has to be $1/\lambda$ at each of these
# eigenvalues $\lambda$, and degree 2 is enough for three values, however often each occurs.
#
# Where $p^\top H p \le 0$, the `if` stops it with what it has, or with the downhill direction if it has nothing: the **truncated Newton rule** of Dembo and Steihaug.

# %% [markdown]
# ## 3. Newton–CG and its rivals
#
# A race: softmax regression on the digits, 650 parameters. Its loss is convex, and a small penalty keeps every eigenvalue of the Hessian at
# `weight_decay` or above: there is one minimum. The set-up holds `compiled` and the rivals.

# %%
pixels, targets = tf.cast(x, tf.float64), tf.one_hot(labels, 10, dtype=tf.float64)


def softmax_loss(w):
    """Cross-entropy of softmax regression, and a penalty; w holds the kernel and ten biases."""
    logits = pixels @ tf.reshape(w[:-10], [64, 10]) + w[-10:]
    entropy = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
    return tf.reduce_mean(entropy) + weight_decay / 2 * tf.reduce_sum(w**2)


softmax, softmax_product = compiled(softmax_loss)
origin = tf.zeros(650, tf.float64)
in_a_loss, in_a_gradient = (matrix_products(function, origin) for function in softmax)
in_a_product = matrix_products(softmax_product, origin, origin)
print("matrix products in a loss, a gradient, H v:", in_a_loss, in_a_gradient, in_a_product)

# %% [markdown]
# The work is in the products with the matrix of pixels. Compiled, $Hv$ skips the one that ends the gradient: nothing needs it. Count the work in **gradient-equivalents**: a gradient is 1, so this $Hv$ is 1.5, and a loss a half.
#
# - **Gradient descent** takes the best rate out of three.
# - **L-BFGS**, here SciPy's, estimates the curvature from its last ten changes of point and gradient.
# - **Newton–CG** solves $Hs = -g$ by CG, roughly while the gradient is large and more exactly as it shrinks, and then searches along $s$ as
#   [13](13_hessians_and_newton.ipynb) does.
#
# **Predict.** Each may spend 300 gradient-equivalents. Which comes within $10^{-8}$ of the minimum's loss first?

# %%
exercises.first.guess(...)  # "gradient descent", "Newton–CG" or "L-BFGS"


# %%
def newton_cg(w, problem, products_at, prices, budget):
    """Minimise from w. `problem` holds two functions, the loss and the loss with its gradient; `prices` those of a
    product and of a loss, in gradients. `products_at(w)` returns the function p -> H p for the Hessian at w.

    Returns rows of (work, loss), the last point, and how often curvature p'Hp <= 0 was met.
    """
    value_at, value_and_gradient = problem
    of_product, of_loss = prices
    work, rows, met = 0.0, [], 0
    while True:
        value, g = value_and_gradient(w)
        norm, work = float(tf.norm(g)), work + 1
        if work > budget or norm < 1e-11:
            return np.array(rows), w, met
        rows.append((work, float(value)))
        tolerance = min(0.5, norm**0.5) * norm
        s, products, negative = conjugate_gradients(products_at(w), g, tolerance, 60)
        work, met = work + products * of_product + of_loss, met + negative
        t, slope = 1.0, float(tf.tensordot(g, s, 1))
        while not float(value_at(w + t * s)) <= rows[-1][1] + 1e-4 * t * slope and t > 1e-10:
            t, work = t / 2, work + of_loss
        w += t * s


# %%
descents = {rate: gradient_descent(origin, softmax, rate, budget) for rate in (2.0, 4.0, 8.0)}
best_rate = min(descents, key=lambda rate: descents[rate][-1, 1])

runs = {f"gradient descent, rate {best_rate:g}": descents[best_rate]}


def at(product):
    """A `products_at` that keeps nothing: each product starts anew at w."""
    return lambda w: functools.partial(product, w)


from_scratch = (in_a_product / in_a_gradient, in_a_loss / in_a_gradient)
runs["Newton–CG"], minimum, _ = newton_cg(origin, softmax, at(softmax_product), from_scratch, budget)
runs["L-BFGS"], _ = lbfgs(origin, softmax, budget)
lowest = min(run[:, 1].min() for run in runs.values())


def work_to(run, above, lowest):
    """The work after which a run is that close to the lowest loss; infinite if it never is."""
    near = run[:, 1] - lowest <= above
    return run[np.argmax(near), 0] if near.any() else np.inf


# %% tags=["nbval-ignore-output"]
for name, run in runs.items():
    print(f"{name:24} ends {run[-1, 1] - lowest:.0e} above; work to 1e-8: {work_to(run, 1e-8, lowest):.0f}")

# %% alt="Line plot. The distance to the minimum on a logarithmic axis against gradient-equivalents. L-BFGS falls fastest, to a billionth after about 100; Newton\u2013CG, a dot for each step, falls in ever larger leaps and gets there later; gradient descent falls slowly and stays above one in ten thousand. A cross ends each line." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: distance to the minimum per gradient spent
styles = {
    "gradient descent": ("-", plots.ORANGE),
    "Newton–CG": ("o-", plots.BLUE),
    "Gauss–Newton–CG": ("^:", plots.RED),
    "L-BFGS": ("--", plots.GREEN),
}


def draw_race(runs, lowest, title):
    _, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
    for name, run in runs.items():
        style, colour = styles[name.partition(",")[0]]
        distance = np.maximum(np.minimum.accumulate(run[:, 1] - lowest), 1e-13)  # below it there is only rounding
        shown = slice(np.searchsorted(-distance, -1e-13) + 1)  # until it is there
        ax.semilogy(run[shown, 0], distance[shown], style, color=colour, markersize=4, label=name)
        ax.semilogy(run[shown, 0][-1], distance[shown][-1], "kx", zorder=3)
    ax.set(title=title, xlabel="work (gradient-equivalents)", ylabel="loss minus the minimum's loss")
    ax.legend(fontsize="small")


draw_race(runs, lowest, "Softmax regression: Newton–CG takes few steps, and more work")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
reached = {name.partition(",")[0]: work_to(run, 1e-8, lowest) for name, run in runs.items()}
exercises.first.reveal(min(reached, key=reached.get))
assert (in_a_loss, in_a_gradient, in_a_product, in_a_product / in_a_gradient) == (1, 2, 3, 1.5)
assert reached["L-BFGS"] < 0.8 * reached["Newton–CG"]
assert reached["Newton–CG"] <= budget < reached["gradient descent"]
assert float(tf.norm(softmax[1](minimum)[1])) ** 2 / (2 * weight_decay) < 1e-12  # so it is the minimum
assert best_rate == 4.0  # a smaller rate and a larger one are worse
assert descents[best_rate][-1, 1] - lowest > 1e-5
above = runs["Newton–CG"][:, 1] - lowest
assert len(above) < len(runs["L-BFGS"]) / 5  # steps
plunging = (above[:-1] < 1e-2) & (above[:-1] > 1e-8)
assert all(10 < paid / from_scratch[0] < 30 for paid in np.diff(runs["Newton–CG"][:, 0])[plunging])  # products
assert all(after < before / 30 for before, after in pairwise(above) if 1e-8 < before < 1e-4)  # the plunge

# %% [markdown]
# L-BFGS, and it never sees a Hessian. Newton–CG needs far fewer steps, its dots in the picture, and near the minimum pays for each with ten to thirty products. Gradient descent does not get there
# (`inf`).

# %% [markdown]
# **The price decides.** All products of one CG solve are taken at the same $w$, and each computes the logits there once more.
# **Linearise** the gradient once for each step, and keep what depends on $w$ alone: for softmax regression the probabilities $p$. With $X$ the pixels,
# $V$ the direction as a matrix and $Z = XV$,
#
# $$Hv:\qquad X^\top \bigl(p \odot (Z - \textstyle\sum_k p_k Z_k)\bigr) / m + \text{weight decay} \cdot V.$$
#
# **Predict.** From scratch $Hv$ took three matrix products. How many now?

# %%
exercises.linearised.guess(...)  # a whole number


# %%
@tf.function
def probabilities(w):
    return tf.nn.softmax(pixels @ tf.reshape(w[:-10], [64, 10]) + w[-10:])


@tf.function
def linear_product(p, v):
    """H v, from the probabilities at w."""
    z = pixels @ tf.reshape(v[:-10], [64, 10]) + v[-10:]
    moved = p * (z - tf.reduce_sum(p * z, axis=1, keepdims=True)) / len(pixels)
    of_kernel = tf.matmul(pixels, moved, transpose_a=True)
    return tf.concat([tf.reshape(of_kernel, [-1]), tf.reduce_sum(moved, axis=0)], axis=0) + weight_decay * v


def linearise(w):
    p = probabilities(w)
    return lambda v: linear_product(p, v)


in_linear_product = matrix_products(linear_product, probabilities(origin), origin)
print("matrix products:", in_linear_product)

linear_price = (in_linear_product / in_a_gradient, in_a_loss / in_a_gradient)


def race(penalty):
    """The runs of the three methods, with another penalty in place of weight_decay."""
    more = penalty - weight_decay
    problem, product = compiled(lambda w: softmax_loss(w) + more / 2 * tf.reduce_sum(w**2))

    def products_at(w):
        linear = linearise(w)
        return lambda v: linear(v) + more * v

    return {
        "Newton–CG": newton_cg(origin, problem, at(product), from_scratch, budget)[0],
        "linearised Newton–CG": newton_cg(origin, problem, products_at, linear_price, budget)[0],
        "L-BFGS": lbfgs(origin, problem, budget)[0],
    }


# %% tags=["nbval-ignore-output"]
works = []
print("penalty   work to                1e-4   1e-8  1e-12   * the least, within 5 %")
for penalty in (10 * weight_decay, weight_decay, weight_decay / 10):
    raced = race(penalty)
    best = min(run[:, 1].min() for run in raced.values())
    works.append({name: [work_to(run, above, best) for above in (1e-4, 1e-8, 1e-12)] for name, run in raced.items()})
    least = np.min(list(works[-1].values()), axis=0)
    for name, work in works[-1].items():
        marks = np.where(work <= 1.05 * least, "*", " ")
        print(f"{penalty:<9.2g} {name:20}", "".join(f"{one:6.0f}{mark}" for one, mark in zip(work, marks, strict=True)))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.linearised.reveal(in_linear_product)
for check_point in (origin, minimum):
    check_product = softmax_product(check_point, minimum)
    np.testing.assert_allclose(linearise(check_point)(minimum), check_product, rtol=0, atol=1e-12)
for check_scratch, check_linear, check_rival in (work.values() for work in works):
    assert check_rival[0] < check_linear[0] + 1 < 0.76 * check_scratch[0] + 1
assert check_linear[2] < 0.92 * check_rival[2]  # with the smallest penalty
assert 0.75 < works[0]["linearised Newton–CG"][2] / works[0]["L-BFGS"][2] < 1.15
check_scratch, check_linear, check_rival = works[1].values()
assert 2 / 3 < check_linear[1] / check_scratch[1] < 0.72
assert 0.75 < check_linear[1] / check_rival[1] < 1.3  # a tie, but for what depends on the last bits
assert check_rival[0] < check_linear[0]
assert check_linear[2] < 1.1 * check_rival[2] < 1.1 * check_scratch[2]  # 115 against 131 as printed here

# %% [markdown]
# Two, the price of a gradient. L-BFGS comes first to $10^{-4}$ at each penalty. At `weight_decay` the race is a tie at $10^{-8}$, and the linearised
# Newton–CG comes first to $10^{-12}$. With a tenth of the penalty it does there, too; with ten times, the two are close.

# %% [markdown]
# ## 4. Going further: a loss that is not convex
#
# A `tanh` network, 5 → 8 → 6, the *student*, is to imitate a smaller one, 5 → 4 → 6, its *teacher*, on 64 random inputs; so the minimum is known, 0.
# The loss is a mean of $m$ squared residuals, which admits a fourth method, **Gauss–Newton**: replace $H$ by
#
# $$G = \tfrac{2}{m} J^\top J, \qquad Gv = \tfrac{2}{m} J^\top (Jv).$$
#
# One forward pass for $Jv$, one backward pass for $J^\top$. On paper $G$ has no negative eigenvalue. Either product counts as two gradients here, and a loss as one.

# %%
fit_x = tf.constant(rng.normal(size=(64, 5)))


def network(w, units):
    """5 inputs, `units` hidden units, 6 outputs; w is flat."""
    kernel_1, bias_1, kernel_2, bias_2 = tf.split(w, [5 * units, units, units * 6, 6])
    h = tf.tanh(fit_x @ tf.reshape(kernel_1, [5, units]) + bias_1)
    return h @ tf.reshape(kernel_2, [units, 6]) + bias_2


def random_weights(units):
    sizes = [5 * units, units, units * 6, 6]
    scales = [5**-0.5, 0.5, units**-0.5, 0.5]
    return tf.constant(rng.normal(size=sum(sizes)) * np.repeat(scales, sizes))


aim = network(random_weights(4), 4)
fit_start = random_weights(8)
fit, fit_product = compiled(lambda w: tf.reduce_mean((network(w, 8) - aim) ** 2))


# %%
@tf.function
def gauss_newton_product(w, v):
    with tf.autodiff.ForwardAccumulator(w, v) as accumulator, tf.GradientTape() as tape:
        tape.watch(w)
        r = network(w, 8) - aim
    Jv = accumulator.jvp(r)
    return tape.gradient(r, w, output_gradients=2 * Jv / (64 * 6))


# %%
fits = {rate: gradient_descent(fit_start, fit, rate, fit_budget) for rate in (1.0, 2.0, 4.0)}
fit_rate = min(fits, key=lambda rate: np.nan_to_num(fits[rate][-1, 1], nan=np.inf))

fit_prices = (2, 1)  # of a product and of a loss, in gradients
fit_runs = {f"gradient descent, rate {fit_rate:g}": fits[fit_rate]}
fit_runs["Newton–CG"], _, met = newton_cg(fit_start, fit, at(fit_product), fit_prices, fit_budget)
fit_runs["Gauss–Newton–CG"], _, _ = newton_cg(fit_start, fit, at(gauss_newton_product), fit_prices, fit_budget)
fit_runs["L-BFGS"], _ = lbfgs(fit_start, fit, fit_budget)

# %% tags=["nbval-ignore-output"]
for name, run in fit_runs.items():
    print(f"{name:24} lowest loss {np.nanmin(run[:, 1]):.0e}")

# %% alt="Line plot. The distance to the minimum, which is 0, on a logarithmic axis against gradient-equivalents. L-BFGS is far below the others from the start; Gauss\u2013Newton\u2013CG goes down in leaps and leaves gradient descent behind; Newton\u2013CG stalls on plateaus. A cross ends each line." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the same for the network
draw_race(fit_runs, 0.0, "A network's fit, at these prices: L-BFGS leads")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
ends = {name.partition(",")[0]: np.nanmin(run[:, 1]) for name, run in fit_runs.items()}
assert ends["L-BFGS"] < ends["Gauss–Newton–CG"] / 2
assert ends["L-BFGS"] < ends["Newton–CG"] / 2
assert ends["Gauss–Newton–CG"] < ends["gradient descent"] / 3
assert fit_rate < 4.0  # a larger rate is worse
# its whole budget: with 500 a step may be missing
check_cheaper, _, _ = newton_cg(fit_start, fit, at(gauss_newton_product), (1.6, 0.4), 600)
assert check_cheaper[:, 1].min() < ends["L-BFGS"]
assert met > 0
assert np.all(np.diff(fit_runs["Newton–CG"][:, 1]) < 0)  # the line search lets no step climb
spent, at_gradients = [], []  # the work, by a count of the calls


def priced(price, f):
    def call(*given):
        spent.append(price)
        at_gradients.extend([sum(spent)] if f is fit[1] else [])
        return f(*given)

    return call


rows, _, _ = newton_cg(fit_start, (priced(1, fit[0]), priced(1, fit[1])), at(priced(2, fit_product)), fit_prices, 300)
np.testing.assert_array_equal(rows[:, 0], at_gradients[: len(rows)])
u, other = tf.constant(rng.normal(size=(2, len(fit_start))))
one_way, back = tf.tensordot(u, fit_product(fit_start, other), 1), tf.tensordot(other, fit_product(fit_start, u), 1)
np.testing.assert_allclose(one_way, back, rtol=0, atol=1e-10)
with tf.GradientTape() as tape:
    tape.watch(fit_start)
    r = tf.reshape(network(fit_start, 8) - aim, [384])
J = tape.jacobian(r, fit_start)
by_matrix = 2 / 384 * tf.linalg.matvec(tf.transpose(J) @ J, u)
np.testing.assert_allclose(gauss_newton_product(fit_start, u), by_matrix, rtol=0, atol=1e-10)

# %% [markdown]
# At these prices L-BFGS leads, and Gauss–Newton–CG leaves gradient descent behind. With a product at 1.6 and a loss at 0.4, Gauss–Newton–CG ends
# below L-BFGS. Newton–CG meets negative curvature, where its CG stops early.

# %% [markdown]
# ## 5. Going further: the spectrum, by Lanczos
#
# CG's Krylov space holds more than a solution. **Lanczos' method** builds an orthonormal basis $Q$ of it, again with one product for each vector, and a small tridiagonal matrix $T = Q^\top H Q$. In exact arithmetic $T$'s eigenvalues lie between $H$'s lowest and highest. It stops where the next vector is a remainder of rounding. Read the outermost: an inner one may lie where $H$ has none.


# %%
def lanczos(product, start, steps):
    """The eigenvalues of T, ascending, and the weight of each: the squared part of `start` along it."""
    q = start / np.linalg.norm(start)
    basis, diagonal, beside = [], [], []
    for _ in range(steps):
        basis.append(q)
        r = np.asarray(product(tf.constant(q)))
        diagonal.append(q @ r)
        for _ in range(2):  # take out what is in the space already; rounding asks for it twice
            r = r - np.transpose(basis) @ (np.array(basis) @ r)
        beside.append(np.linalg.norm(r))
        if beside[-1] <= 1e-10 * np.max(np.abs(diagonal)):
            break
        q = r / beside[-1]
    T = np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    values, vectors = np.linalg.eigh(T)
    return values, vectors[0] ** 2


# %% [markdown]
# Take softmax regression at its minimum: a 650 × 650 matrix, small enough to know every eigenvalue. The model tells ten classes apart.
#
# **Predict.** How many of the 650 eigenvalues stand clear of all the others?

# %%
exercises.clear.guess(...)  # a number

# %%
ritz, _ = lanczos(lambda v: softmax_product(minimum, v), rng.normal(size=len(minimum)), 60)
print("largest eigenvalues of T:", np.round(ritz[:-11:-1], 3))
print("fastest stable rate of gradient descent, 2 / largest:", round(2 / ritz[-1], 2))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
gaps = ritz[-14:][1:] / ritz[-14:][:-1]
exercises.clear.reveal(len(gaps) - int(np.argmax(gaps)))
assert np.argmax(gaps) == len(gaps) - 9
assert 4.0 < 2 / ritz[-1] < 8.0
check_inner, _ = lanczos(lambda q: eigenvalues * q, right.numpy(), 2)  # of a matrix with 1, 10 and 100
assert np.min(np.abs(check_inner[0] - np.array([1, 10, 100]))) > 1
check_low = np.random.default_rng(seed).normal(size=(8, 300))  # rank 8
check_values, _ = lanczos(lambda q: check_low.T @ (check_low @ q.numpy()), rng.normal(size=300), 30)
check_rank = np.linalg.eigvalsh(check_low @ check_low.T)
np.testing.assert_allclose(check_values[[0, -1]], [0.0, check_rank[-1]], rtol=1e-6, atol=1e-6)
assert descents[8.0][-1, 1] > descents[4.0][-1, 1]

# %% [markdown]
# Nine, and not ten: raising all ten logits by the same amount changes nothing but the penalty. That nine stand *clear* is the pixels' doing: with their mean taken out, the gap after the ninth eigenvalue all but closes. Sixty products gave the nine to three digits.
#
# The largest one is the speed limit of gradient descent. Near this minimum, along its eigenvector, a step of rate $\eta$ multiplies the distance by $1 - \eta\lambda$, so it settles only if $\eta < 2/\lambda_{\max}$. In section 3 the rate 4 did best, and 8 was worse.
#
# A start of random signs has, on average, the same squared part along every eigenvector (Hutchinson). So the weights that `lanczos` also returns, averaged over such starts, estimate what share of all eigenvalues lies above a value: **stochastic Lanczos quadrature** (Ubaru, Chen and Saad).

# %%
probes = [
    lanczos(lambda v: softmax_product(minimum, v), rng.choice([-1.0, 1.0], size=len(minimum)), 40) for _ in range(6)
]
nodes = np.concatenate([values for values, _ in probes])
weights = np.concatenate([share for _, share in probes]) / len(probes)
for limit in (0.002, 0.01, 0.05):
    print(f"eigenvalues above {limit}: about {len(minimum) * weights[nodes > limit].sum():.0f}")

# %% alt="Line plot. How many of 650 eigenvalues lie above a value, on logarithmic axes, falling from 650 at 0.001 to 9 on a plateau and then to 1 near 0.4. The estimate from 240 products runs along the exact staircase, and may miss it by some at the plateau." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the whole spectrum
features = np.hstack([pixels.numpy(), np.ones((len(pixels), 1))])  # the bias is the weight of a constant 1
logits = pixels.numpy() @ minimum.numpy()[:-10].reshape(64, 10) + minimum.numpy()[-10:]
p = np.exp(logits - logits.max(axis=1, keepdims=True))
p /= p.sum(axis=1, keepdims=True)
A = p[:, :, None] * np.eye(10) - p[:, :, None] * p[:, None, :]
closed_form = np.einsum("bi,bjl,bk->ijkl", features, A, features, optimize=True).reshape(len(minimum), -1)
closed_form = closed_form / len(pixels) + weight_decay * np.eye(len(minimum))
true = np.linalg.eigvalsh(closed_form)

_, ax = plt.subplots(figsize=(7, 4.2), layout="constrained")
grid = np.geomspace(0.9 * true[0], 1.1 * true[-1], 300)
ax.loglog(grid, [np.sum(true > t) or np.nan for t in grid], color=plots.GREY, linewidth=4, label="exact")
estimate = np.array([len(minimum) * weights[nodes > t].sum() for t in grid])
ax.loglog(grid, np.where(estimate > 0.5, estimate, np.nan), "--", color=plots.BLUE, label="Lanczos, 240 products")
ax.annotate("nine stand clear", (0.05, 9), (0, 8), textcoords="offset points", ha="center")
ax.set(title="All 650 eigenvalues at the minimum, sketched from products")
ax.set(xlabel="λ", ylabel="eigenvalues above λ")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(ritz[-9:], true[-9:], rtol=5e-4)
assert true[-9] > 2 * true[-10]
check_vector = np.linspace(-1, 1, len(minimum))
check_product = softmax_product(minimum, tf.constant(check_vector))
np.testing.assert_allclose(check_product, closed_form @ check_vector, rtol=0, atol=1e-10)
check_features = features - features.mean(axis=0) * (np.arange(65) < 64)  # the same slopes without the pixels' mean
check_matrix = np.einsum("bi,bjl,bk->ijkl", check_features, A, check_features, optimize=True).reshape(650, 650)
check_centred = np.linalg.eigvalsh(check_matrix / len(pixels) + weight_decay * np.eye(650))
assert check_centred[-9] < 1.3 * check_centred[-10]
np.testing.assert_allclose(weights.sum(), 1, rtol=1e-9)
assert len(nodes) == 240  # a product for each
for limit in (0.002, 0.01, 0.05):
    assert abs(len(minimum) * weights[nodes > limit].sum() - np.sum(true > limit)) < 0.3 * np.sum(true > limit) + 3
at_origin, _ = lanczos(lambda v: softmax_product(origin, v), rng.normal(size=len(origin)), 8)
assert np.sum(at_origin > 1) == 1  # nine equal eigenvalues at the origin: Lanczos finds the value once
too_many, _ = lanczos(lambda v: softmax_product(origin, v), rng.normal(size=len(origin)), 60)
assert np.sum(too_many > 1) > 1
counted = 0.0
for signs in np.random.default_rng(seed).choice([-1.0, 1.0], size=(20, len(origin))):
    values, share = lanczos(lambda v: softmax_product(origin, v), signs, 8)
    counted += len(origin) * share[values > 1].sum() / 20
assert abs(counted - 9) < 4  # its standard deviation is about 1

# %% [markdown]
# In exact arithmetic a single start vector shows each *value* at most once, however often it occurs. At the start, all weights zero, the
# nine large eigenvalues are equal, and eight steps of Lanczos return one. Averaged over twenty starts, its weight estimates the nine, give or take one. Sixty steps return several: rounding brings in copies.
#
# For the opening's network twenty products give the largest eigenvalue, and show that some are negative.

# %% tags=["nbval-ignore-output"]
sizes = [int(tf.size(w)) for w in variables]


def large_product(flat):
    pieces = [tf.reshape(part, w.shape) for part, w in zip(tf.split(flat, sizes), variables, strict=True)]
    return tf.concat([tf.reshape(part, [-1]) for part in reverse_over_reverse(pieces)], axis=0)


top, _ = lanczos(large_product, rng.normal(size=n).astype(np.float32), 20)
print(f"{n:,} parameters; eigenvalues of T: largest {top[-1]:.3g}, lowest {top[0]:.3g}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
again, _ = lanczos(large_product, np.random.default_rng(seed + 1).normal(size=n).astype(np.float32), 40)
np.testing.assert_allclose(top[-1], again[-1], rtol=1e-3)  # another start, and twice the products
assert again[0] < top[0] + 1e-3  # more products reach lower
assert top[0] < 0  # before training, the Hessian is indefinite

# %% [markdown]
# ### Exercise: The trace from products (8 min)
#
# The sum of all eigenvalues is the trace, the sum of the diagonal. Estimate it without the diagonal, with one product for each probe. `product(v)`
# returns $Hv$ for a vector of shape $(n,)$; `probes` has shape $(k, n)$, and its rows are random signs, $\pm 1$. Return the mean over the rows of a
# number whose expectation is the trace: a scalar, of the probes' dtype.


# %%
def trace(product, probes):
    return ...  # a scalar


exercises.trace.check(trace)

# %% [markdown]
# ### Exercise: The lowest eigenvalue (15 min)
#
# *This one needs an idea that the text does not spell out.*
#
# [13](13_hessians_and_newton.ipynb) damps a Newton step by the lowest eigenvalue. `product(v)` returns $Hv$ for a symmetric $H$ of shape $(n, n)$ and a vector of shape $(n,)$; `v`, to start from, has a part along every eigenvector. Different eigenvalues differ clearly in magnitude. Return the lowest, which is negative here, as a
# scalar of the dtype of `v`. Take at most 1000 products. One of the matrices tried has more rows than that.


# %%
def lowest_eigenvalue(product, v):
    return ...  # a scalar


exercises.lowest.check(lowest_eigenvalue)

# %% [markdown]
# ## 6. Going further: in one line
#
# `tapelab.derivatives.hvp` takes Keras variables as they are, and `tapelab.optimize.newton_cg` changes the variables and returns a report. `derivatives.linearize` of the gradient gives the products that section 3 wrote by hand.

# %% tags=["nbval-ignore-output"]
one_line = derivatives.hvp(loss, wrt=model.trainable_variables)(vector=v)
print("product:", [tuple(part.shape) for part in one_line])

w = tf.Variable(origin)
report = optimize.newton_cg(lambda: softmax_loss(w), wrt=w, iterations=60, tolerance=1e-7)
print("loss:", f"{report.value:.6f}", "after", len(report.iterations), "steps;", report.reason)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert derivatives.pack(one_line).shape == exact.shape
assert tf.norm(derivatives.pack(one_line) - exact) < 1e-5 * tf.norm(exact)
assert report.converged
assert abs(report.value - lowest) < 1e-8
_, check_push = derivatives.linearize(lambda w: softmax[1](w)[1])(minimum)
np.testing.assert_allclose(check_push(origin + 1.0), softmax_product(minimum, origin + 1.0), rtol=0, atol=1e-10)
assert all(step.slope < 0 and not step.negative_curvature for step in report.iterations)

# %% [markdown]
# ## 7. Check it independently
#
# Softmax regression has a Hessian in closed form. With $p$ the probabilities of an example and $\tilde x$ its pixels and a 1 for the bias,
#
# $$H = \frac1m \sum_{\text{examples}} \tilde x\, \tilde x^\top \otimes \big(\operatorname{diag}(p) - p\,p^\top\big) + \text{weight decay} \cdot I.$$
#
# At the origin all $p$ are $\tfrac{1}{10}$, and the nine largest eigenvalues are equal: a tenth of the largest one of $\tfrac1m \sum \tilde x\, \tilde x^\top$, plus the weight decay.

# %% tags=["nbval-ignore-output"]
ones = np.ones((len(pixels), 1))
second_moments = np.hstack([pixels, ones]).T @ np.hstack([pixels, ones]) / len(pixels)
centring = np.eye(10) / 10 - np.ones((10, 10)) / 100
at_origin = np.kron(second_moments, centring) + weight_decay * np.eye(len(origin))

direction = tf.constant(rng.normal(size=len(origin)))
by_tapes = softmax_product(origin, direction)
print("largest difference of H v:", f"{np.abs(by_tapes - at_origin @ direction.numpy()).max():.0e}")
print("ten largest eigenvalues:  ", np.round(np.linalg.eigvalsh(at_origin)[:-11:-1], 3))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(by_tapes, at_origin @ direction.numpy(), rtol=0, atol=1e-10)
expected = np.linalg.eigvalsh(second_moments)[-1] / 10 + weight_decay
np.testing.assert_allclose(np.linalg.eigvalsh(at_origin)[-9:], expected, rtol=1e-9)
product_at_minimum = softmax_product(minimum, direction)
shifted = [softmax[1](minimum + h * direction)[1] for h in (1e-5, -1e-5)]
np.testing.assert_allclose(product_at_minimum, (shifted[0] - shifted[1]) / 2e-5, rtol=0, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - $Hv$ cost a few gradients, and no Hessian was formed. A difference of gradients in float32 kept three digits with one side, four with both (section 1).
# - With positive eigenvalues, conjugate gradients solves $Hs = -g$ by one product in each round; three different ones took three. Ours stops at negative curvature (section 2).
# - Newton–CG lost to L-BFGS with products from scratch. With products linearised at $w$ it was behind at $10^{-4}$, and ahead at $10^{-12}$ with the two smaller penalties (section 3).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | a product by differences in float32 | at the best step, three or four of seven digits for a tanh network | differentiate the gradient |
# | a gradient that is `IndexedSlices`, in `jvp` or as `gradient`'s target | `AttributeError` | `tf.convert_to_tensor` inside the block |
# | CG on an indefinite Hessian | a step that may climb | stop where $p^\top H p \le 0$ |
# | steps compared instead of work | Newton–CG seems to win | count gradients and products |
# | each product of a CG solve starts at the loss again | three matrix products for two, in softmax regression | linearise once for each step |
# | equal eigenvalues | eight steps of Lanczos show one | average the weights over many random starts |
#
# **Further reading**
#
# - TensorFlow Core guide, [Advanced automatic differentiation](https://www.tensorflow.org/guide/advanced_autodiff), "Example: Hessian".
# - B. A. Pearlmutter (1994), ["Fast exact multiplication by the Hessian"](https://doi.org/10.1162/neco.1994.6.1.147).
# - R. S. Dembo, T. Steihaug (1983), ["Truncated-Newton algorithms for large-scale unconstrained optimization"](https://doi.org/10.1007/BF02592055); T. Steihaug (1983), ["The conjugate gradient method and trust regions in large scale optimization"](https://doi.org/10.1137/0720042).
# - J. Martens (2010), ["Deep learning via Hessian-free optimization"](https://www.cs.toronto.edu/~jmartens/docs/Deep_HessianFree.pdf).
# - D. C. Liu, J. Nocedal (1989), ["On the limited memory BFGS method for large scale optimization"](https://doi.org/10.1007/BF01589116).
# - M. R. Hestenes, E. Stiefel (1952), ["Methods of conjugate gradients for solving linear systems"](https://doi.org/10.6028/jres.049.044); C. Lanczos (1950), ["An iteration method for the solution of the eigenvalue problem of linear differential and integral operators"](https://doi.org/10.6028/jres.045.026).
# - M. F. Hutchinson (1990), ["A stochastic estimator of the trace of the influence matrix"](https://doi.org/10.1080/03610919008812866); S. Ubaru, J. Chen, Y. Saad (2017), ["Fast estimation of tr(f(A)) via stochastic Lanczos quadrature"](https://doi.org/10.1137/16M1104974).
# - L. Sagun, L. Bottou, Y. LeCun (2016), ["Eigenvalues of the Hessian in deep learning"](https://arxiv.org/abs/1611.07476); V. Papyan (2019), ["Measurements of three-level hierarchical structure in the outliers in the spectrum of deepnet Hessians"](https://arxiv.org/abs/1901.08244). B. Ghorbani, S. Krishnan, Y. Xiao (2019), ["An investigation into neural net optimization via Hessian eigenvalue density"](https://arxiv.org/abs/1901.10159).
#
# **Read next:** [15 Batch Jacobians](15_batch_jacobians.ipynb) asks for one Jacobian for each example;
# [16 What derivatives cost](16_what_derivatives_cost.ipynb) measures a Hessian against its products.
