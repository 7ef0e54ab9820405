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
# # The gradient of the input
#
# Training differentiates the loss by the weights. The same tape differentiates it by the picture. **Which pixels decide, and how little must they change?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/17_gradient_of_the_input.ipynb)
#
# **Prerequisites:** [02 Training with a tape](02_training_with_a_tape.ipynb) · **Minutes:** 20 to read, 20 for the exercises; to work through it all, about 1 h 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
epsilon = 0.1  # how far a pixel may move, of a range from 0 to 1: between 0.08 and 0.15

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

from tapelab import data, plots, runtime
from tapelab.exercises.sheets import gradient_of_the_input as exercises

import matplotlib.pyplot as plt
import numpy as np
import scipy.stats  # comes with scikit-learn
import tensorflow as tf

runtime.start(seed)

# %% [markdown]
# A network learns to read a digit that stands in one quarter of a scene. The other three quarters hold digits with shuffled pixels. So you know *where* the answer is.

# %% tags=["nbval-ignore-output"]
images, rng = data.load("digits"), np.random.default_rng(seed)


def scenes(digits):
    """Scenes of 16 x 16 pixels, one for each digit, shape (n, 16, 16, 1), and the quarter that holds it, (n,)."""
    quarter = rng.integers(4, size=len(digits))
    shuffled = [rng.permuted(rng.permutation(digits).reshape(-1, 64), axis=1).reshape(-1, 8, 8) for _ in range(4)]
    tiles = [np.where((quarter == q)[:, None, None], digits, shuffled[q]) for q in range(4)]
    return np.block([[tiles[0], tiles[1]], [tiles[2], tiles[3]]]).reshape(-1, 16, 16, 1), quarter


layers = tf.keras.layers
model = tf.keras.Sequential(
    [
        tf.keras.Input((16, 16, 1)),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu", name="features"),
        layers.GlobalMaxPooling2D(),
        layers.Dense(10),  # a score for each digit: logits
    ]
)
cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(tf.keras.optimizers.Adam(3e-3), cross_entropy)
model.fit(scenes(np.tile(images.x_train, (4, 1, 1)))[0], np.tile(images.y_train, 4), batch_size=32, epochs=3, verbose=0)

scenes_test, quarter = scenes(images.x_test[:180])
x, y = tf.constant(scenes_test, tf.float32), images.y_test[:180]


def answers(x):
    return np.argmax(model(x), axis=1)


def accuracy(x):
    return np.mean(answers(x) == y)


print(f"right for {accuracy(x):.1%} of {len(x)} scenes that it has not seen")

# %% [markdown]
# Each pixel moves by at most 0.1, in the direction in which the loss grows.


# %% tags=["nbval-ignore-output"]
@tf.function
def loss_gradient(x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x)))
    return tape.gradient(loss, x)


nudged = tf.clip_by_value(x + epsilon * tf.sign(loss_gradient(x, y)), 0.0, 1.0)
print(f"right for {accuracy(nudged):.1%} of the nudged scenes")

# %% alt="Images. Three scenes of 16 by 16 pixels above, the digit's quarter framed, the same three below with each pixel moved by a tenth of the range. A person reads the same digit in both rows; the network's answer, written above each, is right in the upper row and wrong in the lower one." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: three scenes, before and after
CORNERS = [(-0.5, -0.5), (7.5, -0.5), (-0.5, 7.5), (7.5, 7.5)]


def frame(ax, i):
    ax.add_patch(plt.Rectangle(CORNERS[quarter[i]], 8, 8, fill=False, edgecolor=plots.RED, linewidth=2))
    ax.set(xticks=[], yticks=[])


before, after = answers(x), answers(nudged)
shown = np.flatnonzero((before == y) & (after != y))[:3]
_, axes = plt.subplots(2, 3, figsize=(7, 5.2), layout="constrained")
for row, pictures, said in zip(axes, (x, nudged), (before, after), strict=True):
    for ax, i in zip(row, shown, strict=True):
        ax.imshow(pictures[i, :, :, 0], cmap="gray", vmin=0, vmax=1)
        ax.set_title(f"the network says {said[i]}", color="black" if said[i] == y[i] else plots.RED)
        frame(ax, i)
axes[0, 0].set_ylabel("as it was")
axes[1, 0].set_ylabel("nudged")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert accuracy(x) > 0.93
assert accuracy(nudged) < 0.65
assert tf.reduce_max(tf.abs(nudged - x)) < epsilon + 1e-6
i = int(np.argmax(quarter == 3))
np.testing.assert_array_equal(x[i, 8:, 8:, 0], images.x_test[i])  # the quarter is where it is said to be

# %% [markdown]
# Such a picture is an **adversarial example**. The method is Goodfellow's *fast gradient sign method*: one forward and one backward pass, for all scenes at once.
#
# **You will be able to**
#
# - take the gradient of a loss or a score by the input, and say why a small step along its sign does so much (section 1),
# - draw a saliency map, and say what it shows and what it does not (section 2),
# - compute integrated gradients, test that they add up, and choose their baseline knowingly (section 3),
# - take the gradient by an inner layer, without the None that waits there, and choose a map by your question (section 4),
# - ask whether a map depends on the network at all (section 5).

# %% [markdown]
# ## 1. Why so little is enough
#
# A picture is a tensor, not a variable, and nobody watches it: `tape.watch(x)`. Cast it to floats first: integers, as in a file, get `None`, watched or not. The loss is *summed* over the scenes. In this network each scene's loss depends on its own pixels alone, so each row of the gradient is its scene's own.
#
# To first order a step $d$ changes the loss by $\sum_i g_i d_i$. If no pixel may move by more than $\varepsilon$, the largest such sum is that of $d_i = \varepsilon\operatorname{sign} g_i$: $\varepsilon \sum_i |g_i| = \varepsilon \lVert g\rVert_1$.
#
# **Predict.** The rival is a step of the same size in a *random* direction: each pixel moves by 0.1, up or down as a coin falls. For how many per cent of the scenes is the network still right?

# %%
exercises.coins.guess(...)  # a number of per cent

# %% tags=["nbval-ignore-output"]
coins = tf.constant(rng.choice([-1.0, 1.0], size=x.shape), tf.float32)
with_coins = tf.clip_by_value(x + epsilon * coins, 0.0, 1.0)
print(f"right with random signs: {accuracy(with_coins):.1%}")

g = tf.reshape(loss_gradient(x, y), [len(x), 256])
by_sign = tf.reduce_sum(tf.abs(g), axis=1)
by_coins = tf.abs(tf.reduce_sum(g * tf.reshape(coins, [-1, 256]), axis=1))
ratio = np.median(by_sign) / np.median(by_coins)
print(f"to first order, the gradient's signs change the loss {ratio:.0f} times as much as the coins")

# %% jupyter={"source_hidden": true} tags=["check", "nbval-ignore-output"]
# @title Check
exercises.coins.reveal(round(100 * float(accuracy(with_coins))))
assert accuracy(with_coins) > accuracy(x) - 0.08
assert accuracy(with_coins) > accuracy(nudged) + 0.25
assert 8 < ratio < 30
assert np.all(np.linalg.norm(g, axis=1) <= by_sign + 1e-6)

# %% [markdown]
# With random signs the terms cancel: the sum's root mean square is $\varepsilon\lVert g\rVert_2$. Were all $n$ slopes equally large, $\lVert g\rVert_1$ would be $\sqrt{n}$ times that, and $\sqrt{256}$ is 16. The gradient's signs make all pixels pull the same way.
#
# The step goes along a gradient that holds at the old picture. *Projected gradient descent* takes several small steps, each along a new gradient and each brought back into the box of $\pm\varepsilon$ around the scene: here ten. Two rivals have no gradient: the worst of twenty throws, and 256 questions, which raise each pixel alone: does the loss grow?


# %% tags=["nbval-ignore-output"]
@tf.function
def lead_gradient(x, y, factor=1.0):
    """The gradient of the lead that the largest of the other logits has over the true one."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = factor * model(x)
        others = tf.reduce_max(logits - 1e9 * tf.one_hot(y, 10), axis=1)
        lead = tf.reduce_sum(others - tf.gather(logits, y, batch_dims=1))
    return tape.gradient(lead, x)


def ten_steps(gradient):
    stepped = x
    for _ in range(10):
        stepped = stepped + epsilon / 4 * tf.sign(gradient(stepped, y))
        stepped = tf.clip_by_value(tf.clip_by_value(stepped, x - epsilon, x + epsilon), 0.0, 1.0)
    return stepped


stepped, by_lead = ten_steps(loss_gradient), ten_steps(lead_gradient)

always = np.ones(len(x), bool)
for _ in range(20):
    thrown = tf.clip_by_value(x + epsilon * rng.choice([-1.0, 1.0], size=x.shape).astype("float32"), 0.0, 1.0)
    always &= answers(thrown) == y


@tf.function
def losses(x, y):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x))


asked, unasked = x[:50], losses(x[:50], y[:50])  # fifty scenes: 257 forward passes take their time
for pixel in np.eye(256, dtype="float32").reshape(-1, 16, 16, 1):
    grows = losses(x[:50] + epsilon * pixel, y[:50]) - unasked
    asked += epsilon * tf.sign(grows)[:, None, None, None] * pixel
asked_right = np.mean(answers(tf.clip_by_value(asked, 0.0, 1.0)) == y[:50])

for name, right in (
    ("one step", accuracy(nudged)),
    ("ten steps", accuracy(stepped)),
    ("ten, of the lead", accuracy(by_lead)),
    ("worst of 20 throws", always.mean()),
    ("each pixel asked", asked_right),
):
    print(f"{name:20} {right:.1%}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert accuracy(stepped) < accuracy(nudged)
assert always.mean() > accuracy(nudged) + 0.15
assert abs(asked_right - accuracy(nudged)) < 0.15
assert tf.reduce_max(tf.abs(stepped - x)) < epsilon + 1e-6
assert tf.reduce_min(stepped) >= 0.0
assert tf.reduce_max(stepped) <= 1.0


@tf.function
def steep_gradient(x, y):
    with tf.GradientTape() as tape:
        tape.watch(x)
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, 1000 * model(x)))
    return tape.gradient(loss, x)


assert 0.9 < np.mean(~np.any(steep_gradient(x, y), axis=(1, 2, 3))) < 1  # scenes whose gradient is exactly 0
assert accuracy(ten_steps(steep_gradient)) > accuracy(x) - 0.03
assert abs(accuracy(by_lead) - accuracy(stepped)) < 0.06
same_signs = tf.sign(lead_gradient(x, y)) == tf.sign(lead_gradient(x, y, 1000.0))
assert np.mean(same_signs) > 0.999
assert abs(accuracy(ten_steps(lambda x, y: lead_gradient(x, y, 1000.0))) - accuracy(by_lead)) < 0.03

# %% [markdown]
# Ten steps find more. Twenty throws do not come near the one step. The questions do: they are the gradient by differences, from 257 forward passes. The tape took one, and one backward.
#
# Multiply this network's logits by a thousand: no answer changes, but for nineteen scenes in twenty the loss's gradient is exactly 0 in float32, and the ten steps find nearly nothing. So attack the lead of the largest other logit over the true one: no factor changes its gradient's signs (the check).
#
# ### Exercise: Towards an answer of your choice (6 min)
#
# Let the network see a *chosen* digit. Write one step. `gradient_of(x, y)` gives the gradient of the loss by the picture `x`, with `y` taken for the true label; `wanted` holds the labels to reach. Pixels move by `epsilon` and stay between 0 and 1.


# %%
def towards(gradient_of, x, wanted, epsilon):
    return ...  # shape of x


exercises.towards.check(towards)

# %% [markdown]
# ## 2. A saliency map
#
# Which pixels does an answer hang on? That can be four questions, and each has maps of its own. The first: **what would a small change of this pixel do?** The size of the gradient of a *score* says it, pixel by pixel: Simonyan's **saliency map**. Which class? Here the true one. And which score: the logit, or the probability after the softmax?


# %% tags=["nbval-ignore-output"]
@tf.function
def score_gradient(x, y, probability=False):
    """The gradient of each scene's own score: the logit of class y, or its probability."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = model(x)
        scores = tf.nn.softmax(logits) if probability else logits
        score = tf.reduce_sum(tf.gather(scores, y, batch_dims=1))
    return tape.gradient(score, x)


saliency = score_gradient(x, y)
of_probability = score_gradient(x, y, probability=True)
for name, gradient in (("logit", saliency), ("probability", of_probability)):
    sizes = np.linalg.norm(np.reshape(gradient, [len(x), 256]), axis=1)
    print(f"gradient of the {name:11}: median size {np.median(sizes):.1e}, smallest {sizes.min():.0e}")

# %% [markdown]
# Where this network gives the digit a probability of 0.999, the softmax is flat: the probability's gradient is small where the answer is clearest. **Take the logit.** (Or its lead over the largest of the others, which is free of what all ten logits share.)
#
# Since you know where each digit stands, a map can be graded: which *share* of it lies in the right quarter? A map that does not know the place has a quarter there in the mean.


# %% tags=["nbval-ignore-output"]
def share(maps, power=1):
    """The part of each map's mass, size to a power, that lies in the digit's quarter: its mean over the scenes."""
    mass = tf.reduce_sum(tf.reshape(tf.abs(maps) ** power, [-1, 2, 8, 2, 8]), axis=[2, 4]) + 1e-12
    mass = np.reshape(mass / tf.reduce_sum(mass, axis=[1, 2], keepdims=True), [-1, 4])
    return float(mass[np.arange(len(mass)), quarter[: len(mass)]].mean())


grades = {"the picture itself": share(x), "gradient": share(saliency), "of the probability": share(of_probability)}
for name, grade in grades.items():
    print(f"{name:22} {grade:.2f}")

# %% alt="Images. Three scenes with the digit's quarter framed, and below each its saliency map. The maps are brighter inside the frame, speckled, and do not show the shape of the digit." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: three scenes and their saliency
_, axes = plt.subplots(2, 3, figsize=(7, 5), layout="constrained")
for column, i in zip(axes.T, shown, strict=True):
    column[0].imshow(x[i, :, :, 0], cmap="gray")
    column[1].imshow(tf.abs(saliency[i, :, :, 0]), cmap="viridis")
    for ax in column:
        frame(ax, i)
axes[0, 0].set_ylabel("scene")
axes[1, 0].set_ylabel("size of the gradient")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert 0.2 < grades["the picture itself"] < 0.3
assert 0.5 < grades["gradient"] < 0.85
assert abs(grades["of the probability"] - grades["gradient"]) < 0.08
sizes = [np.median(np.linalg.norm(np.reshape(each, [len(x), 256]), axis=1)) for each in (saliency, of_probability)]
assert sizes[1] < sizes[0] / 20
on_black_pixels = tf.reduce_sum(tf.where(x == 0, tf.abs(saliency), 0.0)) / tf.reduce_sum(tf.abs(saliency))
assert 0.25 < on_black_pixels < 0.75
near = x[:8] + 1e-3 * coins[:8]
first_order = tf.reduce_sum(saliency[:8] * (near - x[:8]), axis=[1, 2, 3])
moved = tf.gather(model(near) - model(x[:8]), y[:8], batch_dims=1)
assert np.median(np.abs(moved - first_order)) < 0.05 * np.median(np.abs(moved)) + 1e-4

# %% [markdown]
# The map's larger part lies in the quarter, and inside it you see speckle and no digit. This network of convolutions, ReLUs and maxima is **piecewise linear**: its gradient jumps where one piece ends and the next begins.
#
# Smilkov's **SmoothGrad** therefore asks the same question of noisy copies of the picture, and averages; a variant averages the squares. The rival needs no noise: the one gradient, squared.

# %% tags=["nbval-ignore-output"]
noisy = [score_gradient(x + rng.normal(scale=0.15, size=x.shape).astype("float32"), y) for _ in range(25)]
smooth = tf.reduce_mean(noisy, axis=0)
grades["SmoothGrad"] = share(smooth)
squared = {
    "gradient": share(saliency, power=2),
    "mean of 25 squares": share(tf.sqrt(tf.reduce_mean(tf.square(noisy), axis=0)), power=2),
    "SmoothGrad": share(smooth, power=2),
}
print(f"one gradient: {grades['gradient']:.2f}, SmoothGrad, the mean of 25: {grades['SmoothGrad']:.2f}")
print(f"squared, one: {squared['gradient']:.2f}, the mean of 25 squares:    {squared['mean of 25 squares']:.2f}")
print(f"SmoothGrad, squared: {squared['SmoothGrad']:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert abs(grades["SmoothGrad"] - grades["gradient"]) < 0.06
assert abs(squared["mean of 25 squares"] - squared["gradient"]) < 0.06
assert squared["gradient"] > grades["gradient"] + 0.08
assert squared["gradient"] < squared["SmoothGrad"] < squared["gradient"] + 0.1

# %% [markdown]
# This noise buys little, the most by an average that is squared afterwards; the square itself buys much. Squaring moves a map's mass from its small values to its large ones. Compare maps at the same power. From here on: sizes.

# %% [markdown]
# ## 3. Integrated gradients
#
# The second question: **what did this pixel contribute?** Compared with a black picture a black pixel has contributed nothing, however much a change of it would do. So name a **baseline** $b$: here black. The first attempt is **gradient × input**: each pixel's slope times its way, $(x_i - b_i)\,\partial F/\partial x_i$. Were $F$ straight, these would add up to $F(x) - F(b)$.
#
# It is not: the slope changes on the way. So walk from $b$ to $x$ in a straight line. The derivative of the score along it is $(x - b)\cdot\nabla F$, and the fundamental theorem of calculus adds it up:
#
# $$F(x) - F(b) = \int_0^1 (x - b)\cdot\nabla F\bigl(b + t(x - b)\bigr)\,\mathrm dt = \sum_i \underbrace{(x_i - b_i)\int_0^1 \frac{\partial F}{\partial x_i}\,\mathrm dt}_{A_i}.$$
#
# $A_i$ is what Sundararajan, Taly and Yan call the **integrated gradient** of pixel $i$: the *mean* slope times the way. The attributions *add up* to the difference of two outputs. This *completeness* is a test that your program can run.


# %% tags=["nbval-ignore-output"]
def integrated_gradients(x, y, baseline, steps):
    """Attributions by the midpoint rule, shape of x."""
    total = tf.zeros_like(x)
    for k in range(steps):
        total += score_gradient(baseline + (k + 0.5) / steps * (x - baseline), y)
    return (x - baseline) * total / steps


@tf.function
def scores(x):
    return tf.gather(model(x), y, batch_dims=1)


black = tf.zeros_like(x)
difference = scores(x) - scores(black)
by_input = (x - black) * saliency
sums = {"gradient × input": by_input}
sums |= {f"{steps} steps": integrated_gradients(x, y, black, steps) for steps in (5, 20, 50)}
gaps = {}
for name, each in sums.items():
    gap = tf.abs(tf.reduce_sum(each, axis=[1, 2, 3]) - difference)
    gaps[name] = float(np.median(gap / tf.abs(difference)))
    print(f"{name:16}: the sum misses the difference of the outputs by {gaps[name]:.1%}")
attributions = sums["50 steps"]
grades |= {"gradient × input": share(by_input), "integrated gradients": share(attributions)}
for name in ("gradient × input", "integrated gradients"):
    print(f"share in the right quarter, {name}: {grades[name]:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert gaps["50 steps"] < gaps["20 steps"] < gaps["5 steps"]
assert gaps["50 steps"] < 0.01
assert gaps["gradient × input"] > 4 * gaps["50 steps"]
assert -0.01 < grades["integrated gradients"] - grades["gradient"] < 0.1
assert abs(grades["gradient × input"] - grades["integrated gradients"]) < 0.05
weights = tf.constant(rng.normal(size=256), tf.float32)  # a linear score: attributions are w (x - b), by hand
flat = tf.reshape(x, [-1, 256])
with tf.GradientTape() as tape:
    tape.watch(flat)
    linear = tf.linalg.matvec(flat, weights)
np.testing.assert_allclose(flat * tape.gradient(linear, flat), flat * weights, rtol=1e-6)

# %% [markdown]
# By the share, the one pass of gradient × input is about as good. To *add up* is what you pay fifty passes for.
#
# **Predict.** Take a *white* baseline in place of the black one. About half of a scene's pixels are exactly black. How much of the attributions' total size falls on pixels that are exactly black?

# %%
exercises.black_pixels.guess(...)  # "none", "about a third" or "about two thirds"

# %% tags=["nbval-ignore-output"]
white = tf.ones_like(x)
of_white = integrated_gradients(x, y, white, 50)
on_black = {}
for name, each in (("black", attributions), ("white", of_white)):
    size = tf.abs(each)
    on_black[name] = float(tf.reduce_sum(tf.where(x == 0, size, 0.0)) / tf.reduce_sum(size))
    print(f"{name} baseline: {on_black[name]:.0%} on black pixels, share in the right quarter {share(each):.2f}")

# %% alt="Images. One scene and two maps of its attributions, blue for negative, red for positive. With a black baseline only pixels that are not black are coloured, the strongest in the framed quarter; with a white baseline the black pixels are coloured, in the other quarters too." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: one scene, two baselines
i = shown[0]
_, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
axes[0].imshow(x[i, :, :, 0], cmap="gray")
axes[0].set_title("scene")
for ax, name, each in zip(axes[1:], ("black", "white"), (attributions, of_white), strict=True):
    limit = float(tf.reduce_max(tf.abs(each[i])))
    ax.imshow(each[i, :, :, 0], cmap=plots.DIVERGING, vmin=-limit, vmax=limit)
    ax.set_title(f"baseline {name}")
for ax in axes:
    frame(ax, i)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.black_pixels.reveal(
    min(
        {"none": 0.0, "about a third": 0.33, "about two thirds": 0.67}.items(),
        key=lambda o: abs(o[1] - on_black["white"]),
    )[0]
)
assert on_black["black"] == 0.0
assert on_black["white"] > 0.4
assert share(of_white) < grades["integrated gradients"] - 0.08
complete = tf.reduce_sum(of_white, axis=[1, 2, 3]) - (scores(x) - scores(white))
assert np.median(np.abs(complete) / np.abs(scores(x) - scores(white))) < 0.03  # complete as well

# %% [markdown]
# Both maps add up, to different differences. A pixel that equals the baseline has $x_i - b_i = 0$: a finite gradient leaves it nothing, *whatever the network does with it*. The baseline is half of the question: *compared with what?*
#
# ### Exercise: Integrated gradients of any function (8 min)
#
# `F` takes a tensor of any shape to a scalar. Return the attributions by the midpoint rule with `steps` evaluations. They are judged on what they add up to as well.


# %%
def integrated(F, x, baseline, steps):
    return ...  # shape of x


exercises.integrated.check(integrated)

# %% [markdown]
# ## 4. The gradient by an inner layer
#
# The third question: **which places speak for the class?** The last convolution of the network has 32 channels of 8 by 8 places, and each place has seen a neighbourhood. Selvaraju's **Grad-CAM** asks there: how does the score depend on each channel, and where is that channel active? The first attempt:

# %%
features_of = tf.keras.Model(model.inputs, model.get_layer("features").output)

with tf.GradientTape() as tape:
    features = features_of(x)
    score = tf.reduce_sum(tf.gather(model(x), y, batch_dims=1))
print(tape.gradient(score, features))

# %% [markdown]
# `None`. The score was computed not from `features`, but from the output that the layer gave when `model(x)` called it a *second* time: another tensor, with the same numbers. What you differentiate by must lie on the way. So let one model give both, in one call.

# %% tags=["nbval-ignore-output"]
both = tf.keras.Model(model.inputs, [model.get_layer("features").output, model.outputs[0]])

with tf.GradientTape() as tape:
    features, logits = both(x)
    score = tf.reduce_sum(tf.gather(logits, y, batch_dims=1))
by_features = tape.gradient(score, features)

of_channels = tf.reduce_mean(by_features, axis=[1, 2], keepdims=True)  # a number for each channel
grad_cam = tf.nn.relu(tf.reduce_sum(of_channels * features, axis=-1, keepdims=True))
by_place = tf.nn.relu(tf.reduce_sum(by_features * features, axis=-1, keepdims=True))
for name, each in (("Grad-CAM", grad_cam), ("multiplied place by place", by_place)):
    grades[name] = share(tf.image.resize(each, [16, 16], "nearest"))
    print(f"{name:26} share {grades[name]:.2f}")

# %% [markdown]
# Grad-CAM averages each channel's gradient over the places, and then weighs the channel with that one number: *where* the gradient was is forgotten. Here a maximum over all places follows the layer, and an active channel's gradient goes to the one place that won. Multiplied place by place, as in Draelos and Carin's *HiResCAM*, the map keeps it. Had an average over all places followed, the two maps would be one.
#
# The fourth question needs no gradient: **what happens without this patch?** Cover it with grey, run the network again, and see how far the score falls; then the next patch. Only falls count. One gradient forecasts them all to first order: gradient × input with the baseline grey, added up over each patch. Compare the last four lines.

# %% tags=["nbval-ignore-output"]
grey = tf.fill(x.shape, tf.reduce_mean(x))
uncovered = scores(x)
falls = {name: np.zeros(x.shape, np.float32) for name in ("covered patch by patch", "forecast by one gradient")}
for top in range(0, 16, 2):
    for left in range(0, 16, 2):
        patch = np.zeros((16, 16, 1), bool)
        patch[max(0, top - 1) : top + 3, max(0, left - 1) : left + 3] = True
        fall = uncovered - scores(tf.where(patch, grey, x))
        forecast = tf.reduce_sum(tf.where(patch, (x - grey) * saliency, 0.0), axis=[1, 2, 3])
        for name, each in zip(falls, (fall, forecast), strict=True):
            falls[name][:, top : top + 2, left : left + 2] = np.maximum(each, 0)[:, None, None, None]
grades |= {name: share(each) for name, each in falls.items()}
for name, grade in grades.items():
    print(f"{name:26} {grade:.2f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
with tf.GradientTape() as twice:
    apart = features_of(x[:2])
    value = tf.reduce_sum(model(x[:2]))
assert twice.gradient(value, apart) is None
np.testing.assert_array_equal(apart, features[:2])  # another tensor, with the same numbers
assert grades["multiplied place by place"] > grades["Grad-CAM"] + 0.1
assert grades["covered patch by patch"] > grades["gradient"] + 0.05
assert abs(grades["forecast by one gradient"] - grades["covered patch by patch"]) < 0.08
assert 0.3 < np.sum(falls["forecast by one gradient"]) / np.sum(falls["covered patch by patch"]) < 0.9
active = tf.reduce_max(features, axis=[1, 2]) > 0
winners = tf.reduce_sum(tf.cast(by_features != 0, tf.int32), axis=[1, 2])
assert np.mean(winners[active] <= 1) > 0.95  # an active channel's gradient is at one place
pooled = tf.keras.Sequential([layers.GlobalAveragePooling2D(), model.layers[-1]])
with tf.GradientTape() as average:
    average.watch(features)
    value = tf.reduce_sum(tf.gather(pooled(features), y, batch_dims=1))
flat_gradient = average.gradient(value, features)
np.testing.assert_allclose(
    flat_gradient, tf.reduce_mean(flat_gradient, [1, 2], keepdims=True) + 0 * features, atol=1e-6
)

# %% alt="Images. One scene, its digit's quarter framed, and seven maps of it. Gradient and SmoothGrad are speckled and reach over the frame; gradient \u00d7 input and integrated gradients are dark where the scene is black; Grad-CAM is coarse and bright outside the frame, too; multiplied place by place it is bright in a few places inside; the covers make one broad bright spot." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: one scene, seven maps, and each map's share over all scenes
maps = {
    "gradient": saliency,
    "SmoothGrad": smooth,
    "gradient × input": by_input,
    "integrated gradients": attributions,
    "Grad-CAM": tf.image.resize(grad_cam, [16, 16], "nearest"),
    "multiplied place by place": tf.image.resize(by_place, [16, 16], "nearest"),
    "covered patch by patch": falls["covered patch by patch"],
}
i = shown[0]
_, axes = plt.subplots(2, 4, figsize=(11, 6.2), layout="constrained")
axes[0, 0].imshow(x[i, :, :, 0], cmap="gray")
axes[0, 0].set_title("scene")
for ax, (name, each) in zip(axes.flat[1:], maps.items(), strict=True):
    ax.imshow(np.abs(each[i, :, :, 0]), cmap="viridis")
    ax.set_title(f"{name}\nshare {grades[name]:.2f}")
for ax in axes.flat:
    frame(ax, i)
plt.show()

# %% [markdown]
# Choose by your question:
#
# | You ask | Take | Passes | What you saw |
# |---|---|---|---|
# | What would a small change do? | gradient | 1 | speckle, on black pixels too |
# | | SmoothGrad | 25 | here as good as one, squared a little better |
# | What did it contribute, compared with $b$? | gradient × input | 1 | nothing where $x_i = b_i$; does not add up |
# | | integrated gradients | 50 | nothing there either; adds up |
# | Which places speak for the class? | Grad-CAM | 1 | forgets where the gradient was |
# | | multiplied place by place | 1 | keeps it |
# | What happens without this patch? | covers | 64 | the plain answer; one gradient forecasts nearly the same share, but smaller falls |
#
# ### Exercise: Grad-CAM in one call (6 min)
#
# `features_of` takes a picture to the inner layer's output, `score_of` takes that output to the scalar score. Return the map, shape (height, width): the channels' mean gradients, times the channels, summed over the channels, and what is negative set to 0.


# %%
def cam(features_of, score_of, x):
    return ...  # shape (height, width); features have the shape (height, width, channels)


exercises.cam.check(cam)

# %% [markdown]
# ## 5. Does the map depend on the network?
#
# You would trust a map that looks like the digit. But the digit itself looks like the digit, and a map may have its looks from there. Adebayo and others propose a test: give the network *random* weights, and draw the map again. A map that explains the trained network should change beyond recognition.
#
# **Predict.** Compare the sizes of the maps of the trained network and of the untrained one by their rank correlation, scene by scene: 1 is the same order of pixels, 0 is none in common. What is it for integrated gradients?

# %%
exercises.untrained.guess(...)  # "about 0", "about 0.4" or "about 0.9"

# %% tags=["nbval-ignore-output"]
trained_weights = model.get_weights()
drawn = {}
for name in ("trained", "untrained"):
    if name == "untrained":
        model.set_weights(tf.keras.models.clone_model(model).get_weights())
    gradient = score_gradient(x[:60], y[:60])
    drawn[name] = {
        "size of the gradient": gradient,
        "gradient × input": gradient * x[:60],
        "integrated gradients": integrated_gradients(x[:60], y[:60], black[:60], 20),
    }
model.set_weights(trained_weights)

alike, pointing = {}, {}
for name, maps in drawn["trained"].items():
    pairs = zip(np.abs(maps), np.abs(drawn["untrained"][name]), strict=True)
    alike[name] = np.median([scipy.stats.spearmanr(a.ravel(), b.ravel())[0] for a, b in pairs])
    print(f"{name:22} rank correlation {alike[name]:.2f}")

# %% alt="Images. A scene, and beside it two maps of integrated gradients, of the trained and of the untrained network. Both are dark exactly where the scene is black. The trained network's is bright in the framed quarter alone, the untrained one's wherever the scene is bright." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the maps of a trained and of an untrained network
_, axes = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
axes[0].imshow(x[0, :, :, 0], cmap="gray")
axes[0].set_title("scene")
for ax, name in zip(axes[1:], drawn, strict=True):
    ax.imshow(np.abs(drawn[name]["integrated gradients"][0, :, :, 0]), cmap="viridis")
    ax.set_title(f"{name}: size of the attributions")
for ax in axes:
    frame(ax, 0)
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.untrained.reveal(
    min(
        {"about 0": 0.0, "about 0.4": 0.4, "about 0.9": 0.9}.items(),
        key=lambda o: abs(o[1] - alike["integrated gradients"]),
    )[0]
)
assert alike["integrated gradients"] > 0.75
assert alike["gradient × input"] > 0.6
assert alike["size of the gradient"] < 0.4
assert accuracy(x) > 0.93  # the trained weights are back

# %% [markdown]
# By the number, integrated gradients of a network that knows *nothing* are nearly those of the trained one. By the picture they are not. Both maps have the factor $x_i - b_i$: where the scene is black both are exactly 0, and about half of the pixels are black. Leave those out, and ask the two maps where the digit is. A rival has seen no network: it marks each quarter by how much that looks like the *mean* of all training digits.

# %% tags=["nbval-ignore-output"]
bright = np.where(x[:60] > 0, 1.0, np.nan)


def among(mask, name):
    """The median rank correlation of the two networks' maps among the pixels of a mask."""
    found = []
    for a, b, keep in zip(drawn["trained"][name], drawn["untrained"][name], mask, strict=True):
        inside = np.isfinite(keep)
        found.append(scipy.stats.spearmanr(np.abs(a)[inside], np.abs(b)[inside])[0])
    return np.median(found)


for name in alike:
    pointing[name] = [share(drawn[kind][name]) for kind in drawn]
    print(
        f"{name:22} where not black {among(bright, name):.2f}; share {pointing[name][0]:.2f} and {pointing[name][1]:.2f}"
    )

mean_digit = images.x_train.mean(axis=0) - images.x_train.mean()
likeness = tf.nn.relu(tf.reduce_sum(tf.reshape(x, [-1, 2, 8, 2, 8]) * mean_digit[:, None], axis=[2, 4]))
of_mean_digit = share(tf.repeat(tf.repeat(likeness, 8, axis=1), 8, axis=2))
print(f"like the mean digit: share {of_mean_digit:.2f}, of any network")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert among(bright, "integrated gradients") < 0.65 < alike["integrated gradients"]
for name, (trained, untrained) in pointing.items():
    assert trained > 0.5, name
    assert untrained < min(0.45, trained - 0.2), name
assert np.mean(x == 0) > 0.4
assert of_mean_digit > max(trained for trained, _ in pointing.values()) + 0.03

# %% [markdown]
# The three maps did depend on the network. For the last two the first measure hid it: it counts what is equal by construction.
#
# The share in the right quarter is measured against something *known*. Alone it is no proof either: the mean digit has a higher one than all three, and it has never met the network. So ask both. The maps' shares are high, and fall when the weights are drawn anew; the mean digit's stays. To trust a map of your own data, plant something whose place you know, and then take the training away.

# %% [markdown]
# ## 6. Check it independently
#
# Without a tape: the same network in float64, from its weights, and central differences of its score by single pixels.


# %% tags=["nbval-ignore-output"]
def plain(picture):
    """The trained network's logits of one picture, in float64, from its weights alone."""
    k1, b1, k2, b2, k3, b3, k4, b4 = (w.astype(np.float64) for w in trained_weights)
    h = tf.nn.relu(tf.nn.conv2d(picture[None], k1, 1, "SAME") + b1)
    h = tf.nn.max_pool2d(tf.nn.relu(tf.nn.conv2d(h, k2, 1, "SAME") + b2), 2, 2, "VALID")
    h = tf.reduce_max(tf.nn.relu(tf.nn.conv2d(h, k3, 1, "SAME") + b3), axis=[1, 2])
    return (h @ k4 + b4)[0]


i = int(shown[0])
picture, label = x[i].numpy().astype(np.float64), int(y[i])
by_differences = np.zeros((16, 16))
for row, column in np.ndindex(16, 16):
    step = np.zeros_like(picture)
    step[row, column] = 1e-6
    by_differences[row, column] = (plain(picture + step)[label] - plain(picture - step)[label]) / 2e-6
gap = np.abs(by_differences - saliency[i, :, :, 0])
print(
    f"largest gradient {np.abs(by_differences).max():.1f}; nine of ten pixels differ by less than {np.percentile(gap, 90):.0e}"
)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(plain(picture), model(x[i : i + 1])[0], atol=1e-3)
assert np.percentile(gap, 90) < 1e-4 * np.abs(by_differences).max()
assert np.mean(gap > 1e-2 * np.abs(by_differences).max()) < 0.05  # a kink lies between the two, if anything does

# %% [markdown]
# ## Recap
#
# - `tape.watch(x)` and a gradient by the picture: one backward pass for all pixels. A step of $\varepsilon$ along its signs changes the loss by $\varepsilon\lVert g\rVert_1$ to first order, before the clip, here many times what random signs do (section 1).
# - A saliency map says what a small change would do, not what a pixel contributed (section 2).
# - Integrated gradients add up to a difference of two outputs, which is a test. The baseline says compared with what (section 3).
# - What you differentiate by must lie on the way to the score: one model with two outputs. The table has four questions and their maps (section 4).
# - Randomise the weights and draw the map again. A similarity hid the change here: it counted pixels that are 0 in both maps. Ask whether a share of something known falls with the weights (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | the picture is not watched, or in integers | `None` | cast to floats, then `tape.watch(x)` |
# | inner layer in one call, score in another | `None` | one model with both outputs |
# | the probability's gradient | nearly 0 where the network is sure | take the logit, or its lead over the largest of the others |
# | too few steps of integrated gradients | a sum that misses the difference | print both, and add steps |
# | a black baseline on dark pictures | nothing on black pixels | say "compared with what", try another |
# | a similarity that counts what is 0 in every map | 0.9 for a network that knows nothing | leave it out, or measure against something known |
# | a high share in the right place | a template that never saw the network has it, too | draw the weights anew: the share must fall |
# | random noise as the test of robustness | a network that seems robust | several projected steps along the gradient's signs, of the loss and of the lead |
#
# **Further reading**
#
# - K. Simonyan, A. Vedaldi, A. Zisserman (2013), ["Deep inside convolutional networks: visualising image classification models and saliency maps"](https://arxiv.org/abs/1312.6034).
# - I. Goodfellow, J. Shlens, C. Szegedy (2015), ["Explaining and harnessing adversarial examples"](https://arxiv.org/abs/1412.6572).
# - M. Sundararajan, A. Taly, Q. Yan (2017), ["Axiomatic attribution for deep networks"](https://arxiv.org/abs/1703.01365).
# - R. R. Selvaraju and others (2017), ["Grad-CAM: visual explanations from deep networks via gradient-based localization"](https://arxiv.org/abs/1610.02391).
# - D. Smilkov and others (2017), ["SmoothGrad: removing noise by adding noise"](https://arxiv.org/abs/1706.03825).
# - A. Madry and others (2018), ["Towards deep learning models resistant to adversarial attacks"](https://arxiv.org/abs/1706.06083): projected gradient descent.
# - J. Adebayo and others (2018), ["Sanity checks for saliency maps"](https://arxiv.org/abs/1810.03292).
# - R. L. Draelos, L. Carin (2020), ["Use HiResCAM instead of Grad-CAM for faithful explanations of convolutional neural networks"](https://arxiv.org/abs/2011.08891).
#
# **Read next:** [26 The gradient of an expectation](26_gradient_of_an_expectation.ipynb) differentiates what is averaged over noise.
