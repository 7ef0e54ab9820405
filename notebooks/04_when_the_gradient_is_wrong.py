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
# # When the gradient is wrong
#
# The tape returns a gradient, and it is NaN, infinite or zero. The loss may look healthy.
# **Where does a gradient go wrong, and what cures it?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/04_when_the_gradient_is_wrong.ipynb)
#
# **Prerequisites:** [03 When the gradient is None](03_when_the_gradient_is_none.ipynb) · **Minutes:** 22 to read, 2 more to go further, 26 for the exercises; to work through it all, about 1 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
epsilon = 0.1  # width of the rounded tip in section 2's figure, between 0.02 and 0.3
depth = 30  # layers in section 5's figure, between 20 and 40
sick = 7  # which of section 6's twelve layers is sick, between 2 and 11
steps = 100  # of training, in the same section, between 100 and 200

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import when_the_gradient_is_wrong as exercises
from tapelab.explain import ExplainTape, diagnose, draw, explain

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %%
w = tf.Variable([2.0, 0.0])

with ExplainTape() as tape:  # a tf.GradientTape that keeps a log
    loss = tf.reduce_sum(tf.where(w > 0, tf.math.log(w), 0.0))

gradient = tape.gradient(loss, w)
print(f"loss     = {loss:.4f}")
print("gradient =", gradient.numpy())

# %% [markdown]
# The loss is right: $\ln 2$, and 0 for the weight that has no logarithm. The gradient is NaN, at the very element that `tf.where` kept out.
#
# One step with it, and that weight is NaN. Even then this loss stays finite: `NaN > 0` is false. The tape can say where it began:

# %% tags=["nbval-ignore-output"]
answer = explain(tape, loss, w)
print(answer)

# %% [markdown]
# After "is NaN" stands a **code**: `explain`'s short name for the mechanism. Below stand what happened, the element and your line. `SelectV2`, TensorFlow's name for this `tf.where`, passed 0 back, and `Log` made NaN of it.
#
# **You will be able to**
#
# - follow a NaN through the backward pass to the place where 0 meets ∞ (section 1),
# - keep roots, logarithms and exponentials finite: choose before, put ε inside a norm's root, use the fused operation (sections 2 and 3),
# - say why a gradient is zero (section 4),
# - tell vanishing from exploding over depth, and name three cures (section 5),
# - find the sick layer of a model (section 6).

# %% [markdown]
# ## 1. Where a NaN is born
#
# `explain` replays the backward pass from the log, and so does the picture. Blue arrows carry values down. Brown ones carry the upstream gradient back up, its size beside them.

# %% alt="Computation graph. A graph from w at the top to loss at the bottom: log, with a thick border and the note that NaN begins here, unselected_branch; greater; then where and reduce_sum. Beside the links, upwards: 1 from loss, norm 1.414 from the sum to where, norm 1 with 50 % zeros from where to log, and from log to w one of two elements is NaN." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: values forwards, gradients backwards
draw(tape, loss, w, values=True)
plt.show()

# %% [markdown]
# Read it upwards. `tf.where` passes 1 to the element that it selected and 0 to the other. Next comes the logarithm. Its
# slope, $1/w$, is infinite at 0. Backpropagation multiplies:
#
# $$0 \cdot \infty = \text{NaN}.$$
#
# Both branches of `tf.where` were computed; the choice came afterwards. So let no infinity arise: *choose before the operation as well as after it*. This is called the **double where**. With the mask `[1.0, 0.0] * tf.math.log(w)` even the *value* is NaN.

# %%
with tf.GradientTape() as tape:
    safe = tf.where(w > 0, w, 1.0)  # something harmless where log has no value
    loss = tf.reduce_sum(tf.where(w > 0, tf.math.log(safe), 0.0))

double_where = tape.gradient(loss, w)
print(f"loss     = {loss:.4f}")
print("gradient =", double_where.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_array_equal(gradient, [0.5, np.nan])
assert (answer.symptom, answer.code, answer.chain[0].op) == ("nan", "unselected_branch", "Log")
check_w = tf.Variable(w - 0.1 * gradient)  # a step of training
assert np.isnan(check_w[1])
assert np.isfinite(tf.reduce_sum(tf.where(check_w > 0, tf.math.log(check_w), 0.0)))
assert np.isnan(tf.linalg.matvec(tf.ones((3, 2)), check_w)).all()
np.testing.assert_array_equal(double_where, [0.5, 0.0])
np.testing.assert_allclose(loss, np.log(2.0), rtol=1e-6)
with ExplainTape() as check_tape:
    check_y = tf.reduce_sum(tf.constant([1.0, 0.0]) * tf.math.log(w))
assert np.isnan(check_y)
assert explain(check_tape, check_y, w).code == "masked_by_zero"

# %% [markdown]
# ### Exercise: Nothing times minus infinity (8 min)
#
# `p` has shape (rows, classes); each row holds probabilities, and some are 0. Return the entropy of each row, shape (rows,): $-\sum_j p_j \ln p_j$, where $0 \ln 0$ counts as 0. The gradient must be
# $-(\ln p_j + 1)$ where $p_j$ is positive, and 0 where it is zero: no NaN, no infinity, no $\varepsilon$.


# %%
def entropy(p):
    return ...  # the entropy of each row of p


exercises.entropy.check(entropy)

# %% [markdown]
# ## 2. Roots and norms: where ε belongs
#
# The slope of a square root at 0 is infinite. The norm of a zero vector, $\sqrt{s}$ with
# $s = \sum_i x_i^2$, multiplies it by $2 x_i = 0$. The Euclidean distance of two equal points is such a norm.

# %%
x = tf.Variable([0.0, 0.0])
with ExplainTape(persistent=True) as tape:
    roots = tf.reduce_sum(tf.sqrt(x))
    norm = tf.norm(x)

for name, target in {"sqrt": roots, "norm": norm}.items():
    found = explain(tape, target, x)
    print(name, tape.gradient(target, x).numpy(), f"{found.code}: {found.sentence}")

# %% [markdown]
# One code, since one mechanism is behind both: the root's slope is ∞. In the norm a 0 follows: NaN. Suppose you add a small ε.
#
# **Predict.** The norm of the zero vector, plus `1e-6`. What is each element of its gradient now: "0", "NaN" or "infinity"?

# %%
exercises.outside_epsilon.guess(...)  # "0", "NaN" or "infinity"

# %%
with tf.GradientTape(persistent=True) as tape:
    outside = tf.norm(x) + 1e-6
    inside = tf.sqrt(tf.reduce_sum(x**2) + 1e-12)

outside_gradient = tape.gradient(outside, x)
inside_gradient = tape.gradient(inside, x)
print("ε outside the root:", outside_gradient.numpy())
print("ε inside the root: ", inside_gradient.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.outside_epsilon.reveal("NaN" if np.isnan(outside_gradient).all() else "a number")
assert np.isnan(outside_gradient).all()
with ExplainTape(persistent=True) as check_tape:
    check_root, check_norm = tf.reduce_sum(tf.sqrt(x)), tf.norm(x)
assert [explain(check_tape, one, x).code for one in (check_root, check_norm)] == ["root_at_zero", "root_at_zero"]
assert np.isinf(check_tape.gradient(check_root, x)).all()
assert np.isnan(check_tape.gradient(check_norm, x)).all()
np.testing.assert_array_equal(inside_gradient, [0.0, 0.0])
assert tf.constant(1e-12, tf.float16) == 0.0
with tf.GradientTape() as check_tape:
    check_root = tf.reduce_sum(tf.sqrt(x + 1e-12))
np.testing.assert_allclose(check_tape.gradient(check_root, x), 5e5, rtol=1e-5)

# %% [markdown]
# Still NaN: a constant added after the root has the derivative 0. In this norm it helps *inside* the root, if it fits the dtype: in float16 `1e-12` is 0. A root alone then has the slope 500 000 at 0: choose before it instead.
#
# Two norms follow: the double where, which chooses the slope 0 at norm 0, and the smooth one, which rounds the tip off. At $\varepsilon = 0.1$ that costs it half a per cent of the slope at 1.


# %%
def safe_norm(x):
    """The norms of the rows of x, shape (rows,); their gradient at a zero row is zero."""
    squared = tf.reduce_sum(x**2, axis=1)
    positive = squared > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, squared, 1.0)), 0.0)


def smooth_norm(x):
    """The norms of the rows of x, shape (rows,), with the tip at zero rounded off."""
    return tf.sqrt(tf.reduce_sum(x**2, axis=1) + epsilon**2)


t = np.linspace(-1.0, 1.0, 41, dtype=np.float32)
line = tf.constant(np.stack([t, np.zeros_like(t)], axis=1))  # the vectors (t, 0)
norms = {"tf.norm": lambda x: tf.norm(x, axis=1), "safe": safe_norm, "smooth": smooth_norm}

slopes = {}
for name, norm in norms.items():
    with tf.GradientTape() as tape:
        tape.watch(line)
        y = tf.reduce_sum(norm(line))
    slopes[name] = tape.gradient(y, line)[:, 0].numpy()
    print(f"{name:8} at t = 0: {slopes[name][20]:4.1f}   at t = 1: {slopes[name][-1]:.4f}")

# %% alt="Line plot. Three gradients over t from -1 to 1. That of tf.norm is -1 left of zero and 1 right of it, with a dotted vertical line at zero, where it is NaN. The safe norm has the value 0 there. The smooth norm's gradient rises from -1 to 1 in an S-shaped curve." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the slope of three norms
_, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.axhline(0, color=plots.GREY, linewidth=0.8)
ax.axvline(0, linestyle=":", color=plots.RED)
ax.plot(t, slopes["smooth"], "-", color=plots.GREEN)
ax.plot(t, slopes["tf.norm"], "o", markersize=4, color=plots.BLUE)
ax.plot(0, slopes["safe"][20], "s", markersize=9, fillstyle="none", color="black")
ax.text(0.03, -0.9, "tf.norm: NaN", color=plots.RED)
ax.text(0.06, -0.14, "safe: 0", color="black")
ax.text(0.35, 0.76, "smooth", color=plots.GREEN)
ax.text(0.35, 1.06, "tf.norm, and safe", color=plots.BLUE)
ax.set(title="The slopes of three norms, at zero and near it", ylim=(-1.2, 1.25))
ax.set(xlabel="t, in the vector (t, 0)", ylabel="slope of the norm")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert t[20] == 0.0
away = t != 0
assert np.isnan(slopes["tf.norm"][20])
assert slopes["safe"][20] == 0.0
np.testing.assert_allclose(slopes["tf.norm"][away], np.sign(t[away]), rtol=1e-6)
np.testing.assert_allclose(slopes["safe"][away], np.sign(t[away]), rtol=1e-6)
np.testing.assert_allclose(slopes["smooth"], t / np.sqrt(t**2 + epsilon**2), rtol=1e-5, atol=1e-6)

# %% [markdown]
# ## 3. Overflow: let one operation do both
#
# $e^{200}$ is $7 \cdot 10^{86}$, and float32 ends at $3.4 \cdot 10^{38}$. The exponential overflows to ∞, the logarithm around it passes back $1/\infty = 0$, and $0 \cdot \infty$ is NaN. The other way round, the softmax below underflows to 0, and its logarithm is $-\infty$.

# %%
logits = tf.Variable([0.0, 200.0])
programs = {
    "log(sum(exp))": lambda: tf.math.log(tf.reduce_sum(tf.exp(logits))),
    "reduce_logsumexp": lambda: tf.reduce_logsumexp(logits),
    "log(softmax)": lambda: tf.math.log(tf.nn.softmax(logits))[0],
    "log_softmax": lambda: tf.nn.log_softmax(logits)[0],
}
overflows = {}
for name, program in programs.items():
    with ExplainTape() as tape:
        y = program()
    overflows[name] = explain(tape, y, logits).code
    print(f"{name:17} {y:6.1f}  {tape.gradient(y, logits).numpy()!s:10}  {overflows[name]}")

# %% [markdown]
# The last column says which step failed; `exists`: the gradient is there. Those two programs are **fused**: one function does both steps, arranged so that nothing overflows here.
#
# | Instead of | write | because at the edge |
# |---|---|---|
# | `log(reduce_sum(exp(x)))` | `tf.reduce_logsumexp(x)` | exp overflows |
# | `log(softmax(x))` | `tf.nn.log_softmax(x)` | softmax underflows |
# | `log(1 + exp(x))` | `tf.nn.softplus(x)` | exp overflows |
# | `log(1 + x)` | `tf.math.log1p(x)` | 1 + x forgets a small x |
# | `p * log(p)` | `tf.math.xlogy(p, p)` | 0 · ∞ |
#
# At 0 `xlogy` gave 0, in the value and in the gradient: a choice. [07](07_custom_gradients.ipynb) writes such a pair's derivative by hand.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert list(overflows.values()) == ["overflow", "exists", "log_of_zero", "exists"]
for check_name in ("log(sum(exp))", "log(softmax)"):
    with tf.GradientTape() as check_tape:
        check_y = programs[check_name]()
    assert np.isnan(check_tape.gradient(check_y, logits)).any()
for check_plain, point in ((lambda x: tf.math.log(1.0 + tf.exp(x)), 100.0), (lambda p: p * tf.math.log(p), 0.0)):
    check_x = tf.Variable(point)
    with tf.GradientTape() as check_tape:
        check_y = check_plain(check_x)
    assert np.isnan(check_tape.gradient(check_y, check_x))
assert np.exp(200.0) > 7e86 > float(np.finfo(np.float32).max) > 3.4e38
fused = [
    (tf.reduce_logsumexp, [0.0, 200.0], 200.0, [0.0, 1.0]),
    (lambda x: tf.nn.log_softmax(x)[0], [0.0, 200.0], -200.0, [1.0, -1.0]),
    (lambda x: tf.reduce_sum(tf.nn.softplus(x)), [100.0], 100.0, [1.0]),
    (lambda x: tf.reduce_sum(tf.math.log1p(x)), [1e-9], 1e-9, [1.0]),
    (lambda x: tf.reduce_sum(tf.math.xlogy(x, x)), [0.0, 1.0], 0.0, [0.0, 1.0]),
]
for check_function, point, value, expected in fused:
    check_x = tf.Variable(point)
    with tf.GradientTape() as check_tape:
        check_y = check_function(check_x)
    np.testing.assert_allclose(check_y, value, rtol=1e-6)
    np.testing.assert_allclose(check_tape.gradient(check_y, check_x), expected, rtol=1e-5, atol=1e-6)
assert tf.math.log(1.0 + tf.constant(1e-9)).numpy() == 0.0

# %% [markdown]
# ### Exercise: A mean that does not overflow (6 min)
#
# `x` has shape (rows, columns), with entries as large as 1000. For each row return $\ln \frac{1}{n} \sum_j e^{x_j}$, where $n$ is the number of columns, shape (rows,). Value and gradient must
# be finite, in the dtype of `x`. `tf.exp`, `tf.math.log` and `tf.reduce_max` are enough.


# %%
def log_mean_exp(x):
    return ...  # for each row of x, the logarithm of the mean of exp(x)


exercises.log_mean_exp.check(log_mean_exp)

# %% [markdown]
# ## 4. Sure, and wrong
#
# **Predict.** A classifier's logit is 30, so it is sure of the answer 1. The true answer is 0: it could not be more wrong. The loss is $(\sigma(z) - 0)^2$, where $\sigma$
# is the sigmoid. What is the gradient with respect to $z = 30$?

# %%
exercises.sure_of_one.guess(...)  # a number

# %%
z = tf.Variable(30.0)
losses = {
    "squared error": lambda: tf.sigmoid(z) ** 2,
    "clipped log": lambda: -tf.math.log(1 - tf.clip_by_value(tf.sigmoid(z), 1e-7, 1 - 1e-7)),
    "from the logit": lambda: tf.nn.sigmoid_cross_entropy_with_logits(0.0, z),
}
flat = {}
for name, program in losses.items():
    with ExplainTape() as tape:
        y = program()
    found = explain(tape, y, z)
    flat[name] = (tape.gradient(y, z).numpy(), found.code)
    print(f"{name:15} loss {y:5.2f}   gradient {flat[name][0]}   {found.code}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.sure_of_one.reveal(flat["squared error"][0])
assert tf.sigmoid(z).numpy() == 1.0
check_z = tf.Variable(30.0, dtype=tf.float64)
with tf.GradientTape() as check_tape:
    check_y = tf.sigmoid(check_z) ** 2
np.testing.assert_allclose(check_tape.gradient(check_y, check_z), 2e-13, rtol=0.1)
assert [round(float(program())) for program in losses.values()] == [1, 16, 30]  # a mistake; −ln 1e-7; the logit
assert flat == {"squared error": (0.0, "saturated"), "clipped log": (0.0, "clipped"), "from the logit": (1.0, "exists")}

# %% [markdown]
# Zero. This sigmoid is flat: it is **saturated**. In exact
# arithmetic $2\sigma^2(1-\sigma)$ is $2 \cdot 10^{-13}$; in float32, $\sigma(30)$ rounds to 1. The clipped logarithm holds out up to a logit of about 16. At 30 only the loss from the logit has a gradient, $\sigma(z) - 0 = 1$.

# %% alt="Line plot. The gradient of three losses over the logit from -25 to 25, true answer 0. The squared error's is a bump around 0.7 that is zero on both sides. That of the cross-entropy from the logit is the sigmoid, which rises from 0 to 1 and stays there. The clipped one follows it up to a logit of about 16 and falls to zero there." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the gradient of three losses
zs = tf.linspace(-25.0, 25.0, 1001)
curves = {}
with tf.GradientTape(persistent=True) as tape:
    tape.watch(zs)
    curves["squared error"] = tf.sigmoid(zs) ** 2
    curves["clipped log"] = -tf.math.log(1.0 - tf.clip_by_value(tf.sigmoid(zs), 1e-7, 1.0 - 1e-7))
    curves["from the logit"] = tf.nn.sigmoid_cross_entropy_with_logits(labels=tf.zeros_like(zs), logits=zs)
pushes = {name: tape.gradient(curve, zs).numpy() for name, curve in curves.items()}

_, ax = plt.subplots(figsize=(7, 3.8), layout="constrained")
ax.plot(zs, pushes["from the logit"], color=plots.GREEN, linewidth=3)
ax.plot(zs, pushes["clipped log"], "--", color=plots.RED)
ax.plot(zs, pushes["squared error"], color=plots.BLUE)
ax.text(25.0, 1.03, "from the logit", color=plots.GREEN, ha="right")
ax.text(16.8, 0.45, "clipped log", color=plots.RED)
ax.text(4.5, 0.18, "squared error", color=plots.BLUE)
ax.set(title="At a logit of 20 only the loss from the logit still pushes", xlabel="logit (the true answer is 0)")
ax.set(ylabel="gradient of the loss", ylim=(-0.05, 1.12))
plt.show()

# %% [markdown]
# ### More zeros, and which of them is right
#
# Four more programs with a gradient of zeros:

# %%
features = tf.constant([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
kernel = tf.Variable(tf.fill((3, 2), -1.0))
blank = tf.Variable(tf.zeros((2, 4)))
flat_programs = {
    "sign": lambda: tf.sign(features @ kernel),
    "ReLU": lambda: tf.nn.relu(features @ kernel),
    "sigmoid": lambda: tf.sigmoid(100.0 * features @ kernel),
    "zero weights": lambda: (features @ kernel) @ blank,
}
reasons = {}
for name, program in flat_programs.items():
    with ExplainTape() as tape:
        y = tf.reduce_sum(program())
    found = explain(tape, y, kernel)
    norm = tf.norm(tape.gradient(y, kernel)).numpy()
    reasons[name] = (norm, found.code)
    print(f"{name:13} norm {norm}  {found.code}")

# %% [markdown]
# | `explain` says | What happened here | Cure |
# |---|---|---|
# | `flat_operation` | `tf.sign` is a staircase. Its gradient is 0, where that of `tf.round` is `None` | straight-through ([06](06_stop_gradient.ipynb)) |
# | `dead_relu` | no input of the ReLU is above 0 | `tf.nn.leaky_relu` |
# | `saturated` | the sigmoid is at its end | smaller inputs; a loss from logits |
# | `zero_weights` | a later factor is 0 | none, if training moves that factor; else start it at random |
# | `clipped` | the value lies outside the clip | the logit, with `from_logits=True` |
#
# Three more zeros. A look at the *value* tells them apart:

# %%
u = tf.Variable([0.0, 0.0])
zeros = {
    "minimum u·u": lambda u: tf.reduce_sum(u * u),
    "saddle u₀·u₁": lambda u: u[0] * u[1],
    "cancelling paths": lambda u: tf.reduce_mean(tf.exp(u) - tf.reduce_mean(tf.exp(u))),
}
direction = tf.constant([1.0, -1.0])
for name, f in zeros.items():
    with tf.GradientTape() as tape:
        y = f(u)
    moved = [f(u + step * direction).numpy() - y.numpy() for step in (-0.1, 0.1)]
    print(f"{name:17} norm {tf.norm(tape.gradient(y, u)):.0f}   moved either way: {moved[0]:+.3f} {moved[1]:+.3f}")

# %% [markdown]
# From this **minimum** no way leads down: the zero is right. At this **saddle** the printed direction leads down both ways. In the third program the **paths cancel** at every $u$, and the value does not move: it is a mean minus the same mean. There the *loss* is wrong.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for check_name, check_f in zeros.items():
    with tf.GradientTape() as check_tape:
        check_y = check_f(u)
    np.testing.assert_allclose(check_tape.gradient(check_y, u), [0.0, 0.0], atol=1e-7)
    check_moved = [float(check_f(u + np.float32(0.1) * np.float32(way)) - check_y) for way in ((1.0, -1.0), (1.0, 1.0))]
    wanted = {"minimum u·u": [0.02, 0.02], "saddle u₀·u₁": [-0.01, 0.01], "cancelling paths": [0.0, 0.0]}
    np.testing.assert_allclose(check_moved, wanted[check_name], atol=1e-6)
codes = {"sign": "flat_operation", "ReLU": "dead_relu", "sigmoid": "saturated", "zero weights": "zero_weights"}
assert reasons == {name: (0.0, code) for name, code in codes.items()}
check_cures = {  # the table's
    "flat_operation": lambda h: h + tf.stop_gradient(tf.sign(h) - h),
    "dead_relu": tf.nn.leaky_relu,
    "saturated": lambda h: tf.sigmoid(0.1 * h),
    "zero_weights": lambda h: h @ tf.random.stateless_normal((2, 4), (seed, 0)),
}
assert list(check_cures) == list(codes.values())
with tf.GradientTape(persistent=True) as check_tape:
    check_loss = tf.reduce_sum((features @ kernel @ blank - 1.0) ** 2)
assert not np.any(check_tape.gradient(check_loss, kernel))
check_blank = blank - 0.01 * check_tape.gradient(check_loss, blank)  # a step moves the factor
with tf.GradientTape() as check_tape:
    check_loss = tf.reduce_sum((features @ kernel @ check_blank - 1.0) ** 2)
assert tf.norm(check_tape.gradient(check_loss, kernel)) > 0.1
for check_cure in check_cures.values():
    with tf.GradientTape() as check_tape:
        check_y = tf.reduce_sum(check_cure(features @ kernel))
    assert tf.norm(check_tape.gradient(check_y, kernel)) > 0.1
with tf.GradientTape() as check_tape:
    check_y = tf.keras.losses.BinaryCrossentropy(from_logits=True)([[0.0]], [[z]])
np.testing.assert_allclose(check_tape.gradient(check_y, z), 1.0, rtol=1e-6)
check_z = zs.numpy()
np.testing.assert_allclose(pushes["from the logit"], 1.0 / (1.0 + np.exp(-check_z)), rtol=1e-4, atol=1e-6)
assert np.all(pushes["clipped log"][check_z > 17.0] == 0.0)
sound = (check_z > 7.0) & (check_z < 14.0)
np.testing.assert_allclose(pushes["clipped log"][sound], 1.0, atol=2e-3)
assert np.all(pushes["squared error"][sound] < 2e-3)
assert np.all(np.abs(pushes["clipped log"] - pushes["from the logit"])[check_z < 10.0] < 1e-2)
assert 0.5 < check_z[np.argmax(pushes["squared error"])] < 0.9  # the bump
assert np.all(pushes["squared error"][check_z > 20.0] < 1e-6)

# %% [markdown]
# ## 5. Vanishing and exploding over depth
#
# The next program applies a sigmoid twelve times, never where it is flat.
#
# **Predict.** The slope of a sigmoid is at most 0.25. About how large is the gradient of the twelfth with respect to the first input: "1e-1", "1e-4" or "1e-8"?

# %%
exercises.through_twelve.guess(...)  # "1e-1", "1e-4" or "1e-8"

# %%
x = tf.Variable(0.0)
with ExplainTape() as tape:
    h = x
    for _ in range(12):
        h = tf.sigmoid(h)

through_twelve = tape.gradient(h, x).numpy()
vanishing = explain(tape, h, x)
print(f"gradient {through_twelve:.2e}, {vanishing.code}")
print(vanishing.sentence)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.through_twelve.reveal("1e-8" if 1e-9 < through_twelve < 1e-7 else "another")
assert vanishing.code == "vanishing"
np.testing.assert_allclose(through_twelve, 1.957e-8, rtol=1e-3)

# %% [markdown]
# Backpropagation multiplies along the path, and twelve factors of about 0.228 make $2 \cdot 10^{-8}$. A product that shrinks like this **vanishes**; one that grows with its factors **explodes**. Here are many layers, $h \to \tanh(h W)$, at three scales of $W$.


# %% tags=["nbval-ignore-output"]
def norms_over_depth(scale, layer, width=50):
    """The norms of the gradient with respect to the input and each state."""
    states = [tf.random.normal((7, width))]
    with tf.GradientTape() as tape:
        tape.watch(states[0])
        for _ in range(depth):
            kernel = scale * tf.random.normal((width, width)) / width**0.5
            states.append(layer(states[-1], kernel))
        y = tf.reduce_sum(states[-1])
    return [tf.norm(g).numpy() for g in tape.gradient(y, states)]


def plain(h, kernel):
    return tf.tanh(h @ kernel)


flows = {scale: norms_over_depth(scale, plain) for scale in (0.5, 1.0, 3.0)}
for scale, flow in flows.items():
    factor = (flow[0] / flow[-1]) ** (1 / depth)
    print(f"scale {scale}: first / last = {flow[0] / flow[-1]:.0e}, {factor:.2f} a layer")

# %% alt="Line plot. Norm of the gradient on a log scale over the layer, from the last one on the right to the input on the left. At scale 0.5 it falls in a straight line by some nine orders of magnitude. At scale 1 it stays within about one order. At scale 3 it rises in a straight line by several orders." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the gradient over depth
_, ax = plt.subplots(figsize=(7, 4), layout="constrained")
styles = {0.5: ("--", plots.RED, "vanishes"), 1.0: ("-", plots.BLUE, "fades"), 3.0: ("-.", plots.ORANGE, "explodes")}
for scale, flow in flows.items():
    style, colour, word = styles[scale]
    ax.semilogy(range(depth + 1), flow, style, color=colour)
    ax.text(-0.3, flow[0], f"scale {scale}: {word}", color=colour, ha="right", va="center")
ax.set(title="The gradient over depth, at three scales of the weights", xlim=(-0.37 * depth, depth + 0.5))
ax.set(xlabel="layer (the gradient runs from right to left)", ylabel="norm of the gradient")
ax.set_xticks(range(0, depth + 1, 5))
plt.show()

# %% [markdown]
# One factor, again and again, is a straight line on a log scale. Three cures of vanishing:
#
# - An **initialisation** that fits the activation. He's rule, for ReLU, draws weights of variance 2/inputs; Glorot's, for tanh, 2/(inputs + outputs). Here Glorot's is scale 1, where the gradient still fades, slowly.
# - A **residual connection**, $h + f(h)$: the identity beside the layer has the factor 1.
# - A **layer normalisation** before the kernel.

# %% tags=["nbval-ignore-output"]
normalise = tf.keras.layers.LayerNormalization()
cures = {"residual": lambda h, W: h + plain(h, W), "normalisation": lambda h, W: plain(normalise(h), W)}
by_cure = {}
for name, layer in cures.items():
    for scale in (0.5, 3.0):
        flow = norms_over_depth(scale, layer)
        factor = by_cure[name, scale] = (flow[0] / flow[-1]) ** (1 / depth)
        print(f"{name:13} at scale {scale}: {factor:.2f} a layer")

# %% [markdown]
# At scale 0.5 neither vanishes; at scale 3 both still explode, which is a subject of [08](08_clipping.ipynb).

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
growth = {scale: (flow[0] / flow[-1]) ** (1 / depth) for scale, flow in flows.items()}
np.testing.assert_allclose(flow[-1] * factor**depth, flow[0], rtol=1e-4)  # a factor for each layer leads to the input
assert 0.4 < growth[0.5] < 0.55
assert 0.85 < growth[1.0] < 1.0  # fades
assert growth[3.0] > 1.15
for case, (least, most) in {
    ("residual", 0.5): (0.95, 1.15),
    ("residual", 3.0): (1.12, 1.4),
    ("normalisation", 0.5): (0.9, 1.05),
    ("normalisation", 3.0): (1.25, 1.6),
}.items():
    assert least < by_cure[case] < most
for scale in (0.5, 3.0):  # a straight line, but for noise
    logs = np.log(flows[scale])
    assert np.corrcoef(np.arange(depth + 1), logs)[0, 1] ** 2 > 0.9

# %% [markdown]
# ## 6. Twelve layers, one of them sick
#
# Twelve dense layers, tanh in all but the last. Someone has set one layer's bias to 20. In training,
# the loss comes down a little and stops.


# %%
def twelve_layers(sick=None):
    """Twelve dense layers; the bias of the sick one starts at 20."""
    layers = [tf.keras.Input((5,))]
    for n in range(1, 12):
        bias = tf.keras.initializers.Constant(20.0 if n == sick else 0.0)
        name = f"layer_{n}"
        layers.append(tf.keras.layers.Dense(16, "tanh", bias_initializer=bias, name=name))
    layers.append(tf.keras.layers.Dense(2, name="layer_12"))
    return tf.keras.Sequential(layers, name="twelve")


model = twelve_layers(sick)
inputs = tf.random.normal((64, 5))
outputs = tf.stack([tf.sin(2.0 * inputs[:, 0]), inputs[:, 1] * inputs[:, 2]], axis=1)

# %% tags=["nbval-ignore-output"]
with tf.GradientTape() as tape:
    loss = tf.reduce_mean((model(inputs) - outputs) ** 2)

kernels = [layer.kernel for layer in model.layers]
kernel_norms = [tf.norm(g).numpy() for g in tape.gradient(loss, kernels)]
print("layer:", *[f"{n:6d}" for n in range(1, 13)])
print("norm: ", *[f"{norm:6.3f}" for norm in kernel_norms])

# %% [markdown]
# **Predict.** These are the norms of the kernels' gradients, from the input to the loss. Which layer is sick?

# %%
exercises.sick_layer.guess(...)  # the number of a layer, 1 to 12

# %% tags=["nbval-ignore-output"]
diagnosis = diagnose(model, "mse", inputs, outputs)
print(diagnosis)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.sick_layer.reveal(sick)
cut_off = {f"layer_{n}/{part}" for n in range(1, sick + 1) for part in ("kernel", "bias")}
assert {one.name for one in diagnosis.sick} == cut_off
assert {(one.code, one.layer) for one in diagnosis.sick} == {("saturated", f"layer_{sick}")}
assert all(norm == 0.0 for norm in kernel_norms[:sick])
assert all(norm > 0.0 for norm in kernel_norms[sick:])
check_dense = [
    tf.keras.layers.Dense(8, "relu", bias_initializer=tf.constant_initializer(bias)) for bias in (0.1, -99.0, 0.1, 0.1)
]
check_dead = tf.keras.Sequential([tf.keras.Input((5,)), *check_dense])
with tf.GradientTape() as check_tape:
    check_y = tf.reduce_sum(check_dead(inputs))
check_norms = [tf.norm(g) for g in check_tape.gradient(check_y, [layer.kernel for layer in check_dense])]
np.testing.assert_array_equal(check_norms[:3], [0.0, 0.0, 0.0])  # before it, in it and next after it
assert check_norms[3] > 0.0
check_two = twelve_layers(sick)  # two are sick: mend the one that is named, and the other shows
check_second = 1 if sick > 6 else 11
check_two.layers[check_second - 1].bias.assign([20.0] * 16)
for _ in range(2):
    (check_named,) = {one.layer for one in diagnose(check_two, "mse", inputs, outputs).sick}
    check_two.get_layer(check_named).bias.assign([0.0] * 16)
assert not diagnose(check_two, "mse", inputs, outputs).sick

# %% [markdown]
# The backward pass comes from the loss. It meets a tanh that is flat, where $\tanh(20)$ rounds to 1, and what comes before is cut off: here the sick layer is the bad one nearest the loss. A dead ReLU outputs 0: there the kernel after it is bad, too.
#
# `diagnose` named the cause and the layer. In its table `ratio` is the gradient's norm over the weight's, `zeros` the share of its entries that are 0. Of two sick layers in this model it names one: mend that, and **ask again**. `plot` draws the gradient flow: look for the cliff.

# %% alt="Dot plot. Norms of the gradients of the 24 variables, the input on top. Those of the first layers, up to the sick one, lie on the left, beyond a dotted line, and are marked zero; from the next layer on they are of ordinary size and marked fine."
diagnosis.plot()
plt.show()

# %% [markdown]
# The hint, a batch normalisation *between the layer and its tanh*, would subtract the 20 while training. Here a new model starts with bias 0. Let both train. The sick one can still
# learn the mean of the outputs, but its prediction is the same for every
# input: its loss stops at the variance of the data.


# %%
def train(model):
    """The loss before each of some steps of Adam."""
    optimizer = tf.keras.optimizers.Adam(0.003)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(inputs) - outputs) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients)  # to the variables that it was built for
        return loss

    return [step().numpy() for _ in range(steps)]


# %% tags=["nbval-ignore-output"]
healthy = twelve_layers()
cured = diagnose(healthy, "mse", inputs, outputs)
print(cured.heading)

sick_losses, healthy_losses = train(model), train(healthy)
spread = tf.reduce_mean(tf.math.reduce_variance(outputs, axis=0)).numpy()
print(f"loss of the best constant: {spread:.3f}")
print(f"sick:    {sick_losses[0]:.3f} -> {sick_losses[-1]:.3f}")
print(f"healthy: {healthy_losses[0]:.3f} -> {healthy_losses[-1]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert bool(cured)
assert min(sick_losses) > 0.999 * spread  # never better than a constant
assert sick_losses[-1] < 1.2 * spread
assert healthy_losses[-1] < 0.6 * spread
assert np.ptp(model(inputs), axis=0).max() == 0.0  # the same for every input
check_layers = twelve_layers(sick).layers
check_sick, check_tanh = check_layers[sick - 1], tf.keras.layers.Activation("tanh")
check_sick.activation = tf.identity  # its tanh stands after it
check_got = set()
for check_place in range(3):  # of a batch normalisation: before the layer, between it and its tanh, after both
    check_middle = [check_sick, check_tanh]
    check_middle.insert(check_place, tf.keras.layers.BatchNormalization())
    check_model = tf.keras.Sequential([*check_layers[: sick - 1], *check_middle, *check_layers[sick:]])
    for check_training in (True, False):
        with tf.GradientTape() as check_tape:
            check_y = tf.reduce_mean((check_model(inputs, training=check_training) - outputs) ** 2)
        if tf.norm(check_tape.gradient(check_y, check_layers[0].kernel)) > 0.01:
            check_got.add((check_place, check_training))
assert check_got == {(1, True)}

# %% [markdown]
# ## 7. Going further: a compiler changes the answer
#
# Is `tf.where` over a root as bad as over a logarithm? Below, TensorFlow's own kernel for the gradient of `tf.sqrt` returns 0 where the upstream gradient is 0; with `x**0.5` in its place you get NaN. XLA, the compiler that `jit_compile=True` asks for, multiplies $0 \cdot \infty$.


# %%
def where_root(x):
    return tf.where(x > 0, tf.sqrt(x), 0.0)


def double_where_root(x):
    return tf.where(x > 0, tf.sqrt(tf.where(x > 0, x, 1.0)), 0.0)


# %% tags=["nbval-ignore-output"]
x = tf.Variable([1.0, 0.0])
by_compiler = {}
for function in (where_root, double_where_root):
    compiled = tf.function(function, jit_compile=True)
    for name, run in (("eager", function), ("XLA", compiled)):
        with tf.GradientTape() as tape:
            y = run(x)
        slope = by_compiler[function.__name__, name] = tape.gradient(y, x).numpy()
        print(f"{function.__name__:18} {name:6} {slope}")

# %% [markdown]
# The double where holds under both.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert np.isnan(by_compiler["where_root", "XLA"][1])
np.testing.assert_array_equal(by_compiler["where_root", "eager"], [0.5, 0.0])
with tf.GradientTape() as check_tape:
    check_y = tf.where(x > 0, x**0.5, 0.0)
assert np.isnan(check_tape.gradient(check_y, x)[1])
for name in ("eager", "XLA"):
    np.testing.assert_array_equal(by_compiler["double_where_root", name], [0.5, 0.0])

# %% [markdown]
# ### Exercise: The distance from oneself (12 min)
#
# `x` has shape (points, axes). Return the Euclidean distance of each point from each, shape (points, points). Between equal points it is exactly 0, and so is what they add to the gradient. It must hold under XLA, too.


# %%
def distances(x):
    return ...  # the distance of each point from each, shape (points, points)


exercises.distances.check(distances)

# %% [markdown]
# ## 8. Going further: why attention divides by $\sqrt d$
#
# Here an attention score is the dot product of two vectors of $d$ independent random numbers each, mean 0 and variance 1. Its standard deviation is $\sqrt d$, 32 for $d = 1024$: the softmax saturates, and passes little back.

# %% tags=["nbval-ignore-output"]
sizes = np.array([4, 16, 64, 256, 1024])
passed_back = {"scores as they are": [], "divided by √d": []}
for d in sizes:
    query, keys = tf.random.normal((200, 1, d)), tf.random.normal((200, 16, d))
    products = tf.reduce_sum(query * keys, axis=2)  # 16 scores for each of 200 queries
    for name, scores in (("scores as they are", products), ("divided by √d", products / d**0.5)):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            first_weight = tf.reduce_sum(tf.nn.softmax(scores)[:, 0])
        passed_back[name].append(np.mean(tf.norm(tape.gradient(first_weight, scores), axis=1)))
    print(
        f"d = {d:4}: gradient {passed_back['scores as they are'][-1]:.4f}, divided {passed_back['divided by √d'][-1]:.4f}"
    )

# %% alt="Line plot. The mean norm of the gradient that a softmax passes back to its scores, over the dimension d from 4 to 1024, both axes logarithmic. With the scores as they are it falls steadily; with the scores divided by the root of d it stays level." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: a softmax over products of d numbers
_, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
for (name, norms), colour in zip(passed_back.items(), (plots.RED, plots.BLUE), strict=True):
    ax.loglog(sizes, norms, "o-", color=colour, label=name)
ax.set(title="Undivided scores saturate the softmax", xlabel="dimension d", ylabel="gradient passed back to the scores")
ax.set_xticks(sizes, labels=sizes)
ax.set_yticks([0.005, 0.01, 0.02, 0.05], labels=[0.005, 0.01, 0.02, 0.05])
ax.minorticks_off()
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
check_plain, check_divided = map(np.array, passed_back.values())
assert check_plain[-1] < 0.35 * check_plain[0]
assert check_divided.min() > 0.6 * check_divided.max()
assert check_divided[-1] > 3.0 * check_plain[-1]

# %% [markdown]
# ## 9. Check it independently
#
# Central differences in float64 confirm two of the gradients above. At the tip of the norm no derivative exists: the differences agree with the zero that the safe norm chose.


# %%
def sigmoid(z):
    return 1.0 / (1.0 + np.exp(-z))


def twelve_sigmoids(x):
    for _ in range(12):
        x = sigmoid(x)
    return np.sum(x)


numerical = gradcheck.numerical_jacobian
tip = numerical(np.linalg.norm, [0.0, 0.0])
push = numerical(lambda z: np.sum(np.logaddexp(0.0, z)), [30.0])
chain = numerical(lambda x: 1e6 * twelve_sigmoids(x), [0.0]) / 1e6
print("norm at (0, 0):       ", tip)
print("loss from the logit:  ", push.round(4))
print(f"through twelve layers: {chain[0]:.2e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_array_equal(tip, [slopes["safe"][20], 0.0])
np.testing.assert_allclose(push, [flat["from the logit"][0]], rtol=1e-6)
np.testing.assert_allclose(chain, [through_twelve], rtol=1e-2)

# %% [markdown]
# ## Recap
#
# - The NaN was born where an infinite slope met a zero (section 1).
# - Choose before the operation as well as after it, put ε inside a norm's root, and use the fused operation (sections 2 and 3).
# - A gradient of zeros was right at a minimum. Elsewhere something was flat or clipped, a factor was 0 (for one step, where it is trained), or paths cancelled; a saddle showed in the value (section 4).
# - Over depth, factors multiply. A fitting initialisation slowed the vanishing; a residual connection and a layer normalisation stopped it (section 5).
# - Here the bad layer nearest the loss was the sick one; `diagnose` named it. Mend it and ask again (section 6).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | `tf.where(x > 0, tf.math.log(x), 0.)` at 0 | a good loss, NaN in the gradient | the double where |
# | `tf.norm(x)` of a zero vector | NaN in its own gradient | ε inside the root, or choose before it |
# | `log(softmax(x))`, `log(sum(exp(x)))` | NaN in the gradient at the float32 logits 0 and 200 | `log_softmax`, `reduce_logsumexp` |
# | squared error on a sigmoid; `log` of a clipped one | gradient 0 at a float32 logit of 30, sure and wrong | a loss from logits |
# | a mean minus the same mean | gradient 0, and the value does not move | another loss: this one is constant |
# | a layer whose tanh rounds to 1, in a plain stack | zeros from the input up to that layer | `diagnose` |
#
# **Further reading**
#
# - TensorFlow guide, [Introduction to gradients and automatic differentiation](https://www.tensorflow.org/guide/autodiff), and the documentation of [`tf.where`](https://www.tensorflow.org/api_docs/python/tf/where), which describes the double where.
# - S. Hochreiter (1998), ["The vanishing gradient problem during learning recurrent neural nets and problem solutions"](https://doi.org/10.1142/S0218488598000094).
# - X. Glorot, Y. Bengio (2010), ["Understanding the difficulty of training deep feedforward neural networks"](https://proceedings.mlr.press/v9/glorot10a.html): saturation, and an initialisation that avoids it.
# - R. Pascanu, T. Mikolov, Y. Bengio (2013), ["On the difficulty of training recurrent neural networks"](https://arxiv.org/abs/1211.5063): exploding gradients.
# - K. He, X. Zhang, S. Ren, J. Sun (2015), ["Delving deep into rectifiers"](https://arxiv.org/abs/1502.01852): the initialisation for ReLU.
# - P. Blanchard, D. J. Higham, N. J. Higham (2021), ["Accurately computing the log-sum-exp and softmax functions"](https://doi.org/10.1093/imanum/draa038).
# - A. Vaswani and others (2017), ["Attention is all you need"](https://arxiv.org/abs/1706.03762): the division by $\sqrt d$.
#
# **You may stop here.** The [clinic](28_first_aid.ipynb) has fifteen programs to practise on.
#
# **Read next:** [05 Recording control](05_recording_control.ipynb) leaves things off the tape on purpose. For a gradient that is finite and not the one you want: [07 Custom gradients](07_custom_gradients.ipynb).
