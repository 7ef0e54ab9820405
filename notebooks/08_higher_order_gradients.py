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
# # Higher-order gradients
#
# A gradient is a computation like any other: a tape can record it. Two nested tapes give second derivatives, and with them a
# training loss that contains a gradient.
# **How do you differentiate a gradient?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/08_higher_order_gradients.ipynb)
#
# **Prerequisites:** [07 Multiple tapes](07_multiple_tapes.ipynb) · **Time:** about 35 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - nest tapes so that the outer one records the inner one's gradient, and say why a second derivative is `None` (section 1),
# - say what a gradient of a gradient is for a vector, and what it is not (section 2),
# - write a loss that contains the gradient with respect to the input, and differentiate it with respect to a layer (section 3),
# - train a classifier with such a penalty (section 4),
# - attack a classifier with the fast gradient sign method, and measure what the penalty changes (section 5).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import data, gradcheck, plots, runtime
from tapelab.exercises.sheets import higher_order_gradients as exercises
from tapelab.interactive import attack as attack_figure

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
dataset = "digits"  # or "mnist", which Keras downloads once
epochs = 10  # passes over the training images
batch_size = 64  # images in each step
hidden = 48  # units of the hidden layer
learning_rate = 0.005  # of Adam
penalty = 0.3  # weight of the squared input gradient in the loss
floor = 0.9  # the test accuracy that both classifiers must reach before the attack

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. A gradient of a gradient
#
# Take $y = x^3$ at $x = 1$. The inner tape records `y`; its `gradient` call computes $dy/dx = 3x^2$ with TensorFlow operations.
# That call stands inside the outer tape's block, so the outer tape records those operations too.
#
# **Predict.** What are the first and the second derivative at 1?

# %%
x = tf.Variable(1.0)

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        y = x**3
    dy_dx = inner.gradient(y, x)  # outside the inner block, inside the outer one

d2y_dx2 = outer.gradient(dy_dx, x)
print("dy/dx   =", dy_dx.numpy())
print("d²y/dx² =", d2y_dx2.numpy())

# %% [markdown]
# $3x^2 = 3$ and $6x = 6$. The order matters: close the inner block, ask the inner tape, and only then close the outer block.

# %%
np.testing.assert_allclose(dy_dx, 3.0, rtol=1e-6)
np.testing.assert_allclose(d2y_dx2, 6.0, rtol=1e-6)

# %% [markdown]
# **Predict.** Below, both tapes record the same line again, but the inner `gradient` call stands outside both blocks. Which of the two results changes, and to what?

# %%
exercises.outside.guess([..., ...])  # in place of each `...`, your guess: dy/dx, d²y/dx²

# %%
with tf.GradientTape() as outer, tf.GradientTape() as inner:
    y = x**3
dy_dx = inner.gradient(y, x)  # outside both blocks

d2y_dx2 = outer.gradient(dy_dx, x)
print("dy/dx   =", dy_dx.numpy())
print("d²y/dx² =", d2y_dx2)

# %%
exercises.outside.reveal([dy_dx, d2y_dx2])

# %% [markdown]
# Nothing warns you: the first derivative is there, and the second is `None`.

# %%
np.testing.assert_allclose(dy_dx, 3.0, rtol=1e-6)
assert d2y_dx2 is None

# %% [markdown]
# There is a second way to the same `None`. A variable is watched by every tape; a tensor is watched by the tapes that you name.
#
# **Predict.** Here `t` is a tensor, and the inner tape alone watches it. What are the two results?

# %%
exercises.one_watch.guess([..., ...])  # dy/dt, d²y/dt²

# %%
t = tf.constant(1.0)

with tf.GradientTape() as outer:
    with tf.GradientTape() as inner:
        inner.watch(t)
        y = t**3
    dy_dt = inner.gradient(y, t)

d2y_dt2 = outer.gradient(dy_dt, t)
print("dy/dt   =", dy_dt.numpy())
print("d²y/dt² =", d2y_dt2)

# %%
exercises.one_watch.reveal([dy_dt, d2y_dt2])

# %%
np.testing.assert_allclose(dy_dt, 3.0, rtol=1e-6)
assert d2y_dt2 is None

# %% [markdown]
# The cure is to watch on both. A function that returns a derivative gets the order and the watching right once, and can then be
# applied to its own result: the inner call runs inside the outer block by construction.


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
second = derivative(derivative(cube))
third = derivative(derivative(derivative(cube)))
print("at 1:", first(t).numpy(), second(t).numpy(), third(t).numpy())

# %%
np.testing.assert_allclose([first(t), second(t), third(t)], [3.0, 6.0, 6.0], rtol=1e-6)

# %% [markdown]
# The same functions take a whole vector of points.

# %% alt="Three curves over x from \u22122 to 2: the cubic x\u00b3 through the origin, its first derivative, an upward parabola touching zero at the origin, and its second derivative, a straight line through the origin."
points = tf.linspace(-2.0, 2.0, 201)

ax = plots.curve_with_derivative(
    points,
    cube(points),
    first(points),
    title="A cubic, its slope, and the slope of its slope",
    label="$x^3$",
    derivative_label="first derivative",
)
ax.plot(points, second(points), color=plots.GREEN, linestyle=":", linewidth=2, label="second derivative")
ax.legend()
plt.show()

# %%
np.testing.assert_allclose(first(points), 3 * points**2, rtol=1e-5, atol=1e-5)
np.testing.assert_allclose(second(points), 6 * points, rtol=1e-5, atol=1e-5)

# %% [markdown]
# ### Exercise: A Taylor series from nested tapes (8 min)
#
# Write `taylor(f, x, h, order)`, the Taylor polynomial of `f` around `x`:
#
# $$f(x) + f'(x)\,h + \frac{f''(x)}{2!}\,h^2 + \dots + \frac{f^{(n)}(x)}{n!}\,h^n, \qquad n = \texttt{order}.$$
#
# `f` works element by element, on a tensor `x` of any shape; the result has the shape of `x`. `h` is a scalar tensor, and `order` an integer of 1 or more.
# `derivative` is given.


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
# ## 2. The gradient of a sum, not a Hessian
#
# The curve above needs a second look. `first(points)` is a vector of 201 numbers, and `gradient` of a vector is the gradient of its
# **sum**. For $x^3$ that does no harm: each element depends on its own point alone. In general it does matter.
#
# Take $f(x) = x_0^2 x_1 + x_1^2 x_2$ at $x = (1, 2, 3)$. Its gradient is $(2x_0x_1,\; x_0^2 + 2x_1x_2,\; x_1^2) = (4, 13, 4)$.
# Its second derivatives are nine numbers, a matrix.
#
# **Predict.** What shape does the gradient of the gradient have?

# %%
exercises.nested_shape.guess(...)  # a shape is a tuple


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

# %%
exercises.nested_shape.reveal(nested.shape)

# %% [markdown]
# The outer call differentiated $4 + 13 + 4$, as it were. For the matrix itself, ask for the Jacobian of the gradient: every element of the gradient, differentiated with respect
# to every element of $x$. That is the **Hessian**.

# %%
hessian = outer.jacobian(gradient, x)
del outer
print(hessian.numpy())

# %% [markdown]
# **Predict.** How do the three numbers of the nested gradient follow from this matrix?

# %% alt="Two images with one colour scale. Above, the 3 by 3 Hessian with rows 4 2 0, 2 6 4 and 0 4 0. Below, a single row with its column sums: 6, 12, 4."
_, (upper, lower) = plt.subplots(2, 1, figsize=(4.6, 5), layout="constrained", height_ratios=[3, 1])
plots.matrix(
    hessian,
    title="Hessian",
    xlabel="element of x",
    ylabel="element of the gradient",
    ax=upper,
    limit=12,
    colorbar=False,
)
plots.matrix(
    nested[None, :],
    title="Gradient of the gradient: the column sums",
    xlabel="element of x",
    ylabel="",
    ax=lower,
    limit=12,
    colorbar=False,
)
for ax, values in ((upper, hessian.numpy()), (lower, nested.numpy()[None, :])):
    for i, j in np.ndindex(values.shape):
        ax.text(j, i, f"{values[i, j]:.0f}", ha="center", va="center", color="white" if values[i, j] > 8 else "black")
lower.set_yticks([])
plt.show()

# %% [markdown]
# They are its column sums. What happens *between* different elements is mixed in and cannot be separated again. For $x^3$, element by
# element, the Hessian is diagonal, and its column sums are the second derivatives: the curve of section 1 was right for that reason.

# %%
np.testing.assert_allclose(gradient, [4.0, 13.0, 4.0], rtol=1e-6)
np.testing.assert_allclose(nested, [6.0, 12.0, 4.0], rtol=1e-6)
np.testing.assert_allclose(hessian, [[4.0, 2.0, 0.0], [2.0, 6.0, 4.0], [0.0, 4.0, 0.0]], rtol=1e-6)
np.testing.assert_allclose(nested, tf.reduce_sum(hessian, axis=0), rtol=1e-6)

# %% [markdown]
# Where you want one row, or one weighted sum of rows, a gradient is enough: `output_gradients` are the weights.
#
# **Predict.** With weights $(0, 1, 0)$, which numbers come out?

# %%
exercises.row.guess([..., ..., ...])  # three numbers

# %%
with tf.GradientTape() as outer:
    outer.watch(x)
    with tf.GradientTape() as inner:
        inner.watch(x)
        y = f(x)
    gradient = inner.gradient(y, x)

row = outer.gradient(gradient, x, output_gradients=tf.constant([0.0, 1.0, 0.0]))
print("weights (0, 1, 0):", row.numpy())

# %%
exercises.row.reveal(row.numpy())

# %% [markdown]
# One row, for the price of one gradient. [Notebook 10](10_hessians_and_newton.ipynb) builds on this.

# %%
np.testing.assert_allclose(row, [2.0, 6.0, 4.0], rtol=1e-6)

# %% [markdown]
# ### Exercise: The curvature along a direction (10 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Walk from $x$ along $v$ and look at the value: $\varphi(t) = f(x + t\,v)$, a function of one variable. Its second derivative at $t = 0$ says how the
# walk curves. Return that number, a scalar tensor of the dtype of `x`. `f` takes a tensor of shape $(n,)$ to a scalar; `x` and `v` are tensors of shape $(n,)$,
# and $v$ need not have length 1. Two calls of `gradient` are enough; do not build the Hessian.


# %%
def curvature(f, x, v):
    return ...  # the second derivative of t -> f(x + t v) at t = 0


exercises.curvature.check(curvature)

# %% [markdown]
# ## 3. Penalise the input gradient
#
# How much can a small change of the input change a loss? To first order, the norm of $\partial L/\partial x$ says it. A model whose
# loss reacts less is harder to disturb, so one trains it to keep that norm small. The norm contains a gradient, and the
# training step differentiates it again: this time with respect to the *parameters*.
#
# Batch 7, inputs 5, outputs 10. The inner tape is there for the input alone, so it watches nothing else.
#
# **Predict.** What shapes have the input gradient `g1`, its norm, and the gradients of that norm with respect to the layer's two variables?

# %%
inputs = tf.random.normal((7, 5))
layer = tf.keras.layers.Dense(10)
layer.build(inputs.shape)
layer.bias.assign(tf.random.normal((10,)))

with tf.GradientTape() as outer:
    with tf.GradientTape(watch_accessed_variables=False) as inner:
        inner.watch(inputs)
        loss = tf.reduce_sum(layer(inputs) ** 2)
    g1 = inner.gradient(loss, inputs)
    g1_norm = tf.norm(g1)

dkernel, dbias = outer.gradient(g1_norm, layer.trainable_variables)
print("g1:          ", g1.shape)
print("norm of g1:  ", g1_norm.shape)
print("d norm/d kernel:", dkernel.shape)
print("d norm/d bias:  ", dbias.shape)

# %% [markdown]
# The inner tape did not watch the layer's variables, and the outer gradients exist all the same: each tape keeps its own list. The
# outer tape recorded the forward pass *and* the inner tape's backward pass; in both of them the kernel appears.

# %%
assert g1.shape == (7, 5)
assert g1_norm.shape == ()
assert dkernel.shape == (5, 10)
assert dbias.shape == (10,)
assert float(tf.norm(dkernel)) > 0.1
assert float(tf.norm(dbias)) > 0.1

# %% [markdown]
# The bias got a gradient because the loss is quadratic: $\partial L/\partial x = 2\,(xW + b)\,W^{\mathsf T}$ contains $b$.
#
# **Predict.** The loss is now the plain sum of the layer's outputs. What is the gradient of the norm with respect to the bias?

# %%
exercises.bias_alone.guess(...)  # a number, a shape, or None

# %%
with tf.GradientTape() as outer:
    with tf.GradientTape(watch_accessed_variables=False) as inner:
        inner.watch(inputs)
        loss = tf.reduce_sum(layer(inputs))
    g1 = inner.gradient(loss, inputs)
    g1_norm = tf.norm(g1)

dkernel, dbias = outer.gradient(g1_norm, layer.trainable_variables)
print("d norm/d kernel:", dkernel.shape)
print("d norm/d bias:  ", dbias)

# %%
exercises.bias_alone.reveal(dbias)

# %% [markdown]
# In a training step the penalty is added to the ordinary loss, and the bias gets its gradient from there.

# %%
assert dkernel.shape == (5, 10)
assert dbias is None
np.testing.assert_allclose(g1, tf.tile(tf.reduce_sum(layer.kernel, axis=1)[None, :], (7, 1)), rtol=1e-4, atol=1e-5)

# %% [markdown]
# One more thing goes wrong in practice. Behind a ReLU whose inputs are all negative, the input gradient is exactly zero.
#
# **Predict.** Zero is what the penalty wants. What is the gradient of the norm at this best possible point?

# %%
exercises.dead_norm.guess(...)  # "zero", "NaN", "None" or "infinite"


# %%
def penalty_gradient(size):
    """The kernel's gradient of a penalty size(g1), where g1 is the input gradient behind a dead ReLU."""
    with tf.GradientTape() as outer:
        with tf.GradientTape(watch_accessed_variables=False) as inner:
            inner.watch(inputs)
            loss = tf.reduce_sum(tf.nn.relu(layer(inputs) - 1000.0) ** 2)
        g1 = inner.gradient(loss, inputs)
        value = size(g1)
    return value, outer.gradient(value, layer.kernel)


value, dkernel = penalty_gradient(tf.norm)
print("the norm:", value.numpy())
print("NaN in its gradient:", int(np.isnan(dkernel).sum()), "of", int(tf.size(dkernel)))

# %%
exercises.dead_norm.reveal("NaN" if np.isnan(dkernel).all() else "not NaN")

# %% [markdown]
# One such step turns every weight into NaN. The squared norm has no root and no such point.

# %%
assert value.numpy() == 0.0
assert np.isnan(dkernel).all()

# %%
value, dkernel = penalty_gradient(lambda g1: tf.reduce_sum(g1**2))
print("the squared norm:", value.numpy())
print("largest element of its gradient:", np.abs(dkernel).max())

# %%
assert value.numpy() == 0.0
np.testing.assert_array_equal(dkernel, np.zeros((5, 10)))

# %% [markdown]
# ### Exercise: A training step through a gradient (15 min)
#
# A linear model predicts $x_i \cdot w$ for each example, and its loss is the squared error $\ell_i = (x_i \cdot w - y_i)^2$. The training objective is the
# mean over the examples of
#
# $$\ell_i + \texttt{weight} \cdot \Bigl\lVert \frac{\partial \ell_i}{\partial x_i} \Bigr\rVert^2.$$
#
# Return its gradient with respect to `w`, by nested tapes. `w` has shape (inputs,), `x` (batch, inputs) and `y` (batch,). All are tensors, none is a variable;
# `weight` is a scalar tensor. An example's loss depends on no other example's input.


# %%
def penalised_gradient(w, x, y, weight):
    losses = (tf.linalg.matvec(x, w) - y) ** 2  # one for each example
    return ...


exercises.penalty.check(penalised_gradient)

# %% [markdown]
# ## 4. Train with the penalty
#
# Now the digits. For each image $x_i$ with label $y_i$ the loss is the cross-entropy $\ell_i$ plus $\lambda\,\lVert\partial \ell_i/\partial x_i\rVert^2$, and a
# batch takes the mean over its images.
#
# The inner tape needs the input gradient of *every* image. The gradient of a sum helps for once: image $i$ appears in
# $\ell_i$ only, so row $i$ of the gradient of $\sum_i \ell_i$ is $\partial \ell_i/\partial x_i$.

# %%
digits = data.load(dataset)
height, width = digits.x_train.shape[1:]
classes = 10


def make_model():
    """A small classifier that returns logits. Its activation is smooth: it is differentiated twice."""
    return tf.keras.Sequential(
        [
            tf.keras.Input((height, width)),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(hidden, activation="tanh"),
            tf.keras.layers.Dense(classes),
        ]
    )


def input_gradients(model, images, labels):
    """The cross-entropy of each image, (batch,), and its gradient with respect to that image."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, model(images))
    return losses, tape.gradient(losses, images)


plain, regularised = make_model(), make_model()
regularised.set_weights(plain.get_weights())  # the same start

few_images, few_labels = tf.constant(digits.x_train[:7]), tf.constant(digits.y_train[:7])
losses, gradients = input_gradients(plain, few_images, few_labels)
print("training on:      ", dataset)
print("losses:           ", losses.shape)
print("one gradient each:", gradients.shape == few_images.shape)

# %% [markdown]
# **Predict.** Compute the third image's gradient again, this time in a batch of its own. Is it the same as row 2 of the gradient above?

# %%
_, alone = input_gradients(plain, few_images[2:3], few_labels[2:3])
print("the same as in a batch of its own:", np.allclose(alone[0], gradients[2], rtol=1e-4, atol=1e-6))

# %% [markdown]
# Yes, because no image influences another's loss. With batch normalisation in the model this would no longer hold;
# [notebook 11](11_batch_jacobians.ipynb) shows it.

# %%
assert losses.shape == (7,)
assert gradients.shape == (7, height, width)
np.testing.assert_allclose(alone[0], gradients[2], rtol=1e-4, atol=1e-6)

# %% [markdown]
# The training step has an outer tape for the parameters, and calls `input_gradients`, with the inner tape, in its block. A
# weight of 0 gives ordinary training with the same code.


# %%
def train(model, weight):
    """Train the model in place; `weight` is that of the penalty."""
    optimizer = tf.keras.optimizers.Adam(learning_rate)
    optimizer.build(model.trainable_variables)

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as outer:
            losses, gradients = input_gradients(model, images, labels)
            squared_norms = tf.reduce_sum(gradients**2, axis=(1, 2))  # one for each image
            objective = tf.reduce_mean(losses + weight * squared_norms)
        parameters = model.trainable_variables
        optimizer.apply_gradients(zip(outer.gradient(objective, parameters), parameters, strict=True))

    generator = np.random.default_rng(seed)
    for _ in range(epochs):
        order = generator.permutation(len(digits.y_train))
        for start in range(0, len(order), batch_size):
            chosen = order[start : start + batch_size]
            step(tf.constant(digits.x_train[chosen]), tf.constant(digits.y_train[chosen]))


train(plain, 0.0)
train(regularised, penalty)

# %% [markdown]
# **Predict.** Both models then see the test images. Which one has the smaller input gradients? Does the penalty cost accuracy?

# %%
test_images, test_labels = tf.constant(digits.x_test), tf.constant(digits.y_test)


def accuracy(model, images):
    """The fraction labelled correctly; `images` are the test images, changed or not."""
    return float(np.mean(np.argmax(model(images), axis=1) == digits.y_test))


mean_norms = {}
for name, model in {"plain": plain, "regularised": regularised}.items():
    _, gradients = input_gradients(model, test_images, test_labels)
    mean_norms[name] = float(tf.reduce_mean(tf.norm(tf.reshape(gradients, (len(digits.y_test), -1)), axis=1)))
    print(f"{name:<11}  test accuracy above {floor}:", accuracy(model, test_images) > floor)
print("the regularised model's input gradients are smaller:", mean_norms["regularised"] < mean_norms["plain"])

# %%
assert accuracy(plain, test_images) > floor
assert accuracy(regularised, test_images) > floor
assert abs(accuracy(plain, test_images) - accuracy(regularised, test_images)) < 0.05
assert mean_norms["regularised"] < 0.95 * mean_norms["plain"]

# %% [markdown]
# On clean images the two can hardly be told apart. The difference lies *beside* the images.
#
# ## 5. Attack both
#
# An attacker wants a wrong answer and may change each pixel by at most $\varepsilon$. To first order the loss grows by
# $\delta \cdot \partial \ell/\partial x$. With every $|\delta_j| \le \varepsilon$ the largest growth comes from
# $\delta = \varepsilon\,\operatorname{sign}(\partial \ell/\partial x)$: every pixel moves by the full amount, in its worse direction. This is the
# **fast gradient sign method**, one gradient with respect to the *input*. The result is cut to the range of an image, 0 to 1.


# %%
def attack(model, images, labels, strength):
    """Move each pixel by `strength`, to where the model's loss grows."""
    _, gradients = input_gradients(model, images, labels)
    return tf.clip_by_value(images + strength * tf.sign(gradients), 0.0, 1.0)


attacked = attack(plain, test_images, test_labels, 0.1)
clean_losses, _ = input_gradients(plain, test_images, test_labels)
attacked_losses, _ = input_gradients(plain, attacked, test_labels)
print("no pixel moved by more than 0.1:", np.abs(attacked - test_images).max() < 0.1 + 1e-6)
print("share of images whose loss grew, above 0.9:", float(np.mean(attacked_losses > clean_losses)) > 0.9)

# %%
assert np.abs(attacked - test_images).max() < 0.1 + 1e-6
assert float(tf.reduce_min(attacked)) >= 0.0
assert float(tf.reduce_max(attacked)) <= 1.0
assert np.mean(attacked_losses > clean_losses) > 0.9

# %% [markdown]
# **Predict.** The pixels change by a tenth of their range. How much of the plain model's accuracy is left? And if every pixel moves by the
# same amount, but in a random direction?

# %%
# "both above 0.85", "random above 0.85, attacked below 0.65" or "both below 0.65"
exercises.attacked.guess(...)

# %%
signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=test_images.shape).astype(np.float32)
shaken = tf.clip_by_value(test_images + 0.1 * signs, 0.0, 1.0)

print("random signs: accuracy still above 0.85:", accuracy(plain, shaken) > 0.85)
print("attacked:     accuracy below 0.65:      ", accuracy(plain, attacked) < 0.65)

# %%
as_expected = accuracy(plain, shaken) > 0.85 and accuracy(plain, attacked) < 0.65
exercises.attacked.reveal("random above 0.85, attacked below 0.65" if as_expected else "something else")

# %% [markdown]
# The size of the change is the same in both; the direction does the damage.

# %%
assert accuracy(plain, shaken) > 0.85
assert accuracy(plain, attacked) < 0.65

# %% alt="Two rows of six digit images. Above, test images with the model's correct answers as titles. Below, the same images after the attack: greyer and blotchy but still the same digits to the eye, with wrong answers as titles."
before, after = np.argmax(plain(test_images), axis=1), np.argmax(plain(attacked), axis=1)
fooled = np.flatnonzero((before == digits.y_test) & (after != digits.y_test))[:6]

_, axes = plt.subplots(2, 6, figsize=(8, 3.4), layout="constrained")
for column, index in enumerate(fooled):
    for ax, images, answer in zip(axes[:, column], (test_images, attacked), (before, after), strict=True):
        ax.imshow(images[index], cmap="gray", vmin=0, vmax=1)
        ax.set(title=f"answer: {answer[index]}", xticks=[], yticks=[])
axes[0, 0].set_ylabel("test image")
axes[1, 0].set_ylabel("attacked")
plt.suptitle("Each pixel moved by at most a tenth of its range")
plt.show()

# %%
assert len(fooled) == 6

# %% [markdown]
# ### Exercise: An attack of limited length (8 min)
#
# *This one needs an idea that the text does not spell out.*
#
# Another attacker may change each image by a $\delta$ of Euclidean length at most `strength`, spread over the pixels as they like. Given the loss's `gradients` with respect to the
# images, shape (images, height, width), return the changes that make each image's loss grow most to first order: a tensor of the same shape and dtype. Each image has a limit
# of its own. Where a gradient is exactly zero, return zeros. Cutting to the range 0 to 1 is not part of this.


# %%
def change(gradients, strength):
    return ...  # the same shape as gradients: (images, height, width)


exercises.euclidean.check(change)

# %% [markdown]
# **Predict.** Each model is attacked through its own gradients, with growing strength. Does the penalty shift the curve, flatten it, or
# leave it where it is?

# %% alt="Accuracy against attack strength from 0 to 0.3. Two falling curves start together near 1; the plain model's falls faster, the regularised model's lies clearly above it at strength 0.1, and both end near 0. A third curve, the plain model under random signs, stays high far longer."
strengths = np.linspace(0.0, 0.3, 7)  # the third is 0.1
curves = {
    name: np.array([accuracy(model, attack(model, test_images, test_labels, float(s))) for s in strengths])
    for name, model in {"plain": plain, "regularised": regularised}.items()
}
random_curve = [accuracy(plain, tf.clip_by_value(test_images + float(s) * signs, 0.0, 1.0)) for s in strengths]

_, ax = plt.subplots(figsize=(6.4, 4), layout="constrained")
ax.plot(strengths, curves["plain"], "o-", color=plots.RED, label="plain, attacked")
ax.plot(strengths, curves["regularised"], "s--", color=plots.BLUE, label="regularised, attacked")
ax.plot(strengths, random_curve, "^:", color=plots.GREY, label="plain, random signs")
ax.set(
    title="Accuracy under the fast gradient sign method",
    xlabel="attack strength (part of a pixel's range)",
    ylabel="accuracy (fraction right)",
    ylim=(-0.02, 1.02),
)
ax.legend(loc="center right")
plt.show()

# %%
gain = curves["regularised"][2] - curves["plain"][2]
print("at strength 0.1 the regularised model keeps more, by over 0.08:", gain > 0.08)
print("at strength 0.3 neither is right once in ten:", curves["plain"][-1] < 0.1 and curves["regularised"][-1] < 0.1)

# %%
for name, model in {"plain": plain, "regularised": regularised}.items():
    assert curves[name][0] == accuracy(model, test_images)
assert gain > 0.08
assert max(curves["plain"][-1], curves["regularised"][-1]) < 0.1

# %% [markdown]
# The penalty shifts the curve to the right: the same loss of accuracy takes a stronger attack. It buys resistance to *small* changes and no
# more than that, since it knows the loss only to first order.
#
# Now move it yourself. The figure has a control for the strength, one for what is attacked, and one for the image. The curves are those of above; on the right are one image before
# and after, and the probabilities that the attacked model gives. The gradients' signs were computed once, so each move takes forward passes only.
#
# **Predict.** The first image is one that the attack of strength 0.1 fools. From which strength on? Is it earlier or later for the regularised model, and for random signs?

# %% alt="Four panels. Left, accuracy against attack strength for the plain model, the regularised model and the plain model under random signs, with a dot on the plain curve at strength 0.1. Then one digit before and after the attack, and bars of the class probabilities, of which the tallest is not the right class."
victims = {"plain": plain, "regularised": regularised, "plain, random signs": plain}
directions = {
    name: tf.sign(input_gradients(model, test_images, test_labels)[1]).numpy() for name, model in victims.items()
}
directions["plain, random signs"] = signs

order = np.argsort(
    ~((before == digits.y_test) & (after != digits.y_test)), kind="stable"
)  # those that were fooled first
in_order = {name: direction[order] for name, direction in directions.items()}
attack_figure.figure(victims, digits.x_test[order], digits.y_test[order], in_order).show()

# %%
for name in ("plain", "regularised"):
    redone = attack_figure.accuracies(victims[name], digits.x_test, digits.y_test, directions[name], strengths)
    np.testing.assert_allclose(redone, curves[name], atol=2.5 / len(digits.y_test))  # rounding may tip a close call

# %% [markdown]
# A defence must not be judged by one weak attack. A stronger one takes ten short steps and computes the gradient anew for each.
#
# **Predict.** Does the regularised model still come out ahead?

# %%
kept = {}
for name, model in {"plain": plain, "regularised": regularised}.items():
    images = test_images
    for _ in range(10):
        images = attack(model, images, test_labels, 0.01)
    assert np.abs(images - test_images).max() < 0.1 + 1e-5
    kept[name] = accuracy(model, images)
    print(f"{name:<11}  ten steps leave no more than one step, within 0.02:", kept[name] <= curves[name][2] + 0.02)
print("the regularised model is ahead by over 0.05:", kept["regularised"] - kept["plain"] > 0.05)

# %%
assert kept["plain"] <= curves["plain"][2] + 0.02
assert kept["regularised"] <= curves["regularised"][2] + 0.02
assert kept["regularised"] - kept["plain"] > 0.05

# %% [markdown]
# ## 6. Check it independently
#
# First the small function. Its gradient is known in closed form, and central differences of that gradient give the Hessian without any tape.


# %%
def gradient_of_f(x):
    return np.array([2 * x[0] * x[1], x[0] ** 2 + 2 * x[1] * x[2], x[1] ** 2])


expected = gradcheck.numerical_jacobian(gradient_of_f, [1.0, 2.0, 3.0])
print(np.round(expected, 4) + 0.0)

# %%
np.testing.assert_allclose(hessian, expected, rtol=1e-6, atol=1e-6)
np.testing.assert_allclose(nested, expected.sum(axis=0), rtol=1e-6)

# %% [markdown]
# Then the training objective, gradient within gradient. With $h = \tanh(xW_1 + b_1)$ and probabilities $p$, the input gradient is
# $\bigl((p - y)\,W_2^{\mathsf T} \odot (1 - h^2)\bigr)\,W_1^{\mathsf T}$, with $y$ one-hot. NumPy computes the objective from it in float64; central differences
# along random directions in the space of all parameters must agree with the nested tapes.

# %%
one_hot = np.eye(classes)[digits.y_train[:7]]
untrained = make_model()
weights = [2 * value for value in untrained.get_weights()]  # doubled, so that no part of the gradient is tiny
untrained.set_weights(weights)


def numpy_objective(flat):
    """The objective of section 4 in float64; `flat` holds kernel, bias, kernel, bias, one after the other."""
    edges = np.cumsum([value.size for value in weights])[:-1]
    W1, b1, W2, b2 = (part.reshape(v.shape) for part, v in zip(np.split(flat, edges), weights, strict=True))
    h = np.tanh(digits.x_train[:7].reshape(7, -1).astype(np.float64) @ W1 + b1)
    logits = h @ W2 + b2
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    input_gradient = ((p - one_hot) @ W2.T * (1 - h**2)) @ W1.T
    return np.mean(-np.log((p * one_hot).sum(axis=1)) + penalty * (input_gradient**2).sum(axis=1))


flat_weights = np.concatenate([value.ravel() for value in weights])
objective_numpy = numpy_objective(flat_weights.astype(np.float64))

# %%
with tf.GradientTape() as outer:
    losses, gradients = input_gradients(untrained, few_images, few_labels)
    objective = tf.reduce_mean(losses + penalty * tf.reduce_sum(gradients**2, axis=(1, 2)))
parameter_gradients = outer.gradient(objective, untrained.trainable_variables)

flat_gradient = np.concatenate([np.ravel(gradient) for gradient in parameter_gradients])
error = gradcheck.check_gradient(numpy_objective, flat_gradient, flat_weights, rtol=1e-5)
print("nested tapes agree with central differences:", error < 1e-5)

# %%
assert error < 1e-5
np.testing.assert_allclose(float(objective), objective_numpy, rtol=1e-4)

# %% [markdown]
# ## Recap
#
# - The inner `gradient` call stands outside the inner block and inside the outer one, and a tensor is watched by both tapes; otherwise the second derivative is `None` (section 1).
# - For a vector, nested gradients are the column sums of the Hessian; the Hessian is the Jacobian of the gradient, and `output_gradients` picks a row (section 2).
# - The inner tape watches the input alone, the outer tape differentiates the input gradient's size with respect to the layer: shapes (5, 10) and (10,) (section 3).
# - One step of training then has an outer tape for the parameters around an inner tape for the input, and clean accuracy is kept (section 4).
# - The fast gradient sign method moves every pixel along the sign of its gradient; the penalty shifts the curve of accuracy against strength to the right (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | the inner `gradient` call outside the outer block | the second derivative is `None` | move it into the block |
# | a tensor watched by one tape only | `None` | `watch` it on both |
# | nested gradients taken for a Hessian | one number for each input, mixed | `jacobian` of the gradient |
# | the penalty does not depend on a variable | `None` for that variable | add the ordinary loss, or use `unconnected_gradients` |
# | the norm of a gradient that is zero | NaN in every weight | penalise the squared norm |
# | robustness judged by one weak attack | a number that is too good | try stronger attacks |
#
# **Read next:** [09 Jacobians](09_jacobians.ipynb) keeps every output apart instead of adding them up.
