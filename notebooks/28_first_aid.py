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
# # First aid
#
# Fifteen small programs, each made after what people ask in public.
# **What is wrong with this small program, if anything, and which line needs the repair?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/28_first_aid.ipynb)
#
# **Prerequisites:** [02 Training with a tape](02_training_with_a_tape.ipynb), [03 When the gradient is None](03_when_the_gradient_is_none.ipynb) · **Minutes:** 14 to read, 5 more to go further, 70 for the exercises; to work through it all, about 2 h 30 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
steps = 40  # of training, in case 9, between 1 and 200

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import warnings

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import exercises_of
from tapelab.exercises.sheets import first_aid as exercises
from tapelab.explain import ExplainTape, explain

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

np.set_printoptions(precision=4, suppress=True)
runtime.start(seed)

# %% [markdown]
# A training step in five lines:
#
# ```python
# w = tf.Variable([1.0, -1.0])
# with tf.GradientTape() as tape:
#     loss = tf.reduce_sum(np.square(w))     # the line of the loss
# gradient = tape.gradient(loss, w)          # the line of the gradient
# w.assign_sub(0.1 * gradient)               # the line of the step
# ```
#
# **Predict.** It raises an error. In which line? "the line of the loss", "the line of the gradient" or "the line of the step"

# %%
exercises.nothing_raised.guess(...)  # "the line of the loss", "the line of the gradient" or "the line of the step"

# %%
raised_in = "the line of the loss"
try:
    w = tf.Variable([1.0, -1.0])
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(np.square(w))
    raised_in = "the line of the gradient"
    gradient = tape.gradient(loss, w)
    raised_in = "the line of the step"
    w.assign_sub(0.1 * gradient)
except TypeError as error:
    print(f"loss {loss:.1f}, gradient {gradient}, then in {raised_in}:\n{error}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.nothing_raised.reveal(raised_in)
assert raised_in == "the line of the step"
assert gradient is None
assert loss == 2.0

# %% [markdown]
# The line that raised has done nothing wrong. `np.square`, two lines above it, has taken the numbers out of TensorFlow.
#
# **You will be able to**
#
# - find the line after which a gradient is `None` (section 1),
# - read in two error messages the mistake of an earlier line (section 2),
# - notice a number that cannot be right, although nothing complains (section 3),
# - say of an unsorted program whether anything is wrong at all (section 4, going further).
#
# ## How a case goes
#
# The links lead to what people asked; the programs are ours. Your cell holds the program once more. Name the **cause** and **repair** the function: it has to be right on inputs that you have not seen.
# **Some programs are not broken.** Then say so, and leave the function as it is.
#
# Take cases 1 to 4, then 5 to 8, then 9 and 10; the last five another day.
# `exercises.NAME.hint()` gives one hint at a time, `.solution()` the repair and its reason.
#
# Four questions help, asked on the way from source to loss:
#
# | Ask | with |
# |---|---|
# | Is it still a tensor? | `print(type(...))` of each result |
# | Is it a floating-point number? | `print(a.dtype)` of the source and each result |
# | Is the source watched, and does the block reach to the loss? | `tape.watched_variables()` lists variables, not tensors |
# | Which shapes meet here? | `print(a.shape, b.shape)` before the line |

# %% [markdown]
# ## 1. None
#
# **Case 1.** A loss of one's own in a custom training loop, and a gradient that stays `None` (after [tensorflow #36596](https://github.com/tensorflow/tensorflow/issues/36596) and [#31919](https://github.com/tensorflow/tensorflow/issues/31919)). The loss comes out right.


# %%
def loss_slope(w, x, y):
    with tf.GradientTape() as tape:
        distance = np.abs(tf.linalg.matvec(x, w) - y)
        loss = tf.reduce_mean(distance)
    return tape.gradient(loss, w)


w = tf.Variable([1.0, -1.0])
x, y = tf.constant([[1.0, 2.0], [0.0, 1.0], [3.0, 1.0]]), tf.constant([0.5, 0.5, 1.0])
print("gradient:", loss_slope(w, x, y))

# %% [markdown]
# ### Exercise: Case 1, the loss that lost its history (4 min)
#
# Return the gradient of the mean *distance* (the absolute value, as it stands).

# %%
cause = ...  # "the line of distance", "the line of loss" or "the variable"


def repaired(w, x, y):
    with tf.GradientTape() as tape:
        distance = np.abs(tf.linalg.matvec(x, w) - y)
        loss = tf.reduce_mean(distance)
    return tape.gradient(loss, w)


exercises.own_loss.check(cause, repaired)

# %% [markdown]
# An `ExplainTape`, from this package, also keeps a log, which `explain` reads:

# %% tags=["nbval-ignore-output"]
with ExplainTape() as tape:
    distance = np.abs(tf.linalg.matvec(x, w) - y)
    loss = tf.reduce_mean(distance)

answer = explain(tape, loss, w)
print(answer)

# %% [markdown]
# `left_tensorflow` is its name for the cause: `np.abs` read the numbers, and to the tape the array that came back is a constant. In this program the hint means `tf.abs`.
#
# **Case 2.** A Keras model, asked for its predictions (after [tensorflow #20630](https://github.com/tensorflow/tensorflow/issues/20630) and [TensorFlow.NET #1197](https://github.com/SciSharp/TensorFlow.NET/issues/1197)).


# %%
def model_slopes(model, x, y):
    with tf.GradientTape() as tape:
        predicted = model.predict(x, verbose=0)
        loss = tf.reduce_mean((predicted - y) ** 2)
    return tape.gradient(loss, model.trainable_variables)


model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
predict_slopes = model_slopes(model, x, y[:, None])
print("gradients:", predict_slopes)

# %% [markdown]
# ### Exercise: Case 2, predictions that came with nothing (4 min)
#
# Return the gradients of the mean squared error, one for each trainable variable.

# %%
cause = ...  # "the last line", "the line of loss" or "the line of predicted"


def repaired(model, x, y):
    with tf.GradientTape() as tape:
        predicted = model.predict(x, verbose=0)
        loss = tf.reduce_mean((predicted - y) ** 2)
    return tape.gradient(loss, model.trainable_variables)


exercises.keras_model.check(cause, repaired)

# %% [markdown]
# **Case 3.** A prediction, a loss, a gradient: nothing else is there (after [tensorflow #42167](https://github.com/tensorflow/tensorflow/issues/42167) and the [guide to automatic differentiation](https://www.tensorflow.org/guide/autodiff)).


# %%
def late_slope(w, x, y):
    with tf.GradientTape() as tape:
        predicted = tf.linalg.matvec(x, w)
    loss = tf.reduce_mean((predicted - y) ** 2)
    return tape.gradient(loss, w)


print("gradient:", late_slope(w, x, y))

# %% [markdown]
# ### Exercise: Case 3, three lines in a row (3 min)
#
# Return the gradient of the mean squared error.

# %%
cause = ...  # "the last line", "the line of loss" or "the line of predicted"


def repaired(w, x, y):
    with tf.GradientTape() as tape:
        predicted = tf.linalg.matvec(x, w)
    loss = tf.reduce_mean((predicted - y) ** 2)
    return tape.gradient(loss, w)


exercises.three_lines.check(cause, repaired)

# %% [markdown]
# **Case 4.** Which pixels matter? The gradient of each image's score with respect to that image (after [tensorflow #56968](https://github.com/tensorflow/tensorflow/issues/56968) and a [question on Stack Overflow](https://stackoverflow.com/questions/59145221/how-to-compute-gradient-of-output-wrt-input-in-tensorflow-2-0)).


# %%
def saliency(kernel, x):
    with tf.GradientTape() as tape:
        score = tf.reduce_sum(tf.tanh(tf.matmul(x, kernel)), axis=1)
    return tape.gradient(score, x)


kernel = tf.Variable([[0.5, -1.0], [1.0, 0.25]])
print("gradient:", saliency(kernel, x))

# %% [markdown]
# ### Exercise: Case 4, which pixels matter (4 min)
#
# `kernel` is a variable, and `x` a tensor with an image in each row. Return one gradient for each pixel, in the shape of `x`.

# %%
cause = ...  # "the images", "the kernel" or "the sum"


def repaired(kernel, x):
    with tf.GradientTape() as tape:
        score = tf.reduce_sum(tf.tanh(tf.matmul(x, kernel)), axis=1)
    return tape.gradient(score, x)


exercises.pixels.check(cause, repaired)

# %% [markdown]
# **Case 5.** Gradient descent, written as in the textbook: $w \leftarrow w - 0.1\,g$. One step works. (After [a reader's question](https://github.com/dragen1860/Deep-Learning-with-TensorFlow-book/issues/156) and the
# [guide](https://www.tensorflow.org/guide/autodiff).)


# %%
def descend(start, x, y, steps):
    w = tf.Variable(start)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w = w - 0.1 * tape.gradient(loss, w)
    return tf.convert_to_tensor(w)


start = tf.constant([1.0, -1.0])
print("1 step: ", descend(start, x, y, 1).numpy())
descended = None
try:
    descended = descend(start, x, y, 2)
except TypeError as error:
    print("2 steps:", error)

# %% [markdown]
# ### Exercise: Case 5, one step and no second (4 min)
#
# Return the weights after `steps` steps.

# %%
cause = ...  # "the line of loss", "the line of the step" or "the tape"


def repaired(start, x, y, steps):
    w = tf.Variable(start)
    for _ in range(steps):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w = w - 0.1 * tape.gradient(loss, w)
    return tf.convert_to_tensor(w)


exercises.second_step.check(cause, repaired)

# %% [markdown]
# **Case 6.** A straight line, $w_0 + w_1 x$, that starts at 2 and 0 (after [keras #20058](https://github.com/keras-team/keras/issues/20058) and [tensorflow #43845](https://github.com/tensorflow/tensorflow/issues/43845)).


# %% tags=["nbval-ignore-output"]
def line_slope(start, x, y):
    w = tf.Variable(start)
    with tf.GradientTape() as tape:
        predicted = tf.cast(w[0], x.dtype) + tf.cast(w[1], x.dtype) * x
        loss = tf.reduce_mean((predicted - y) ** 2)
    return tape.gradient(loss, w)


line_gradient = line_slope([2, 0], x[:, 0], y)
print("gradient:", line_gradient)

# %% [markdown]
# ### Exercise: Case 6, two and nothing (4 min)
#
# Return the gradient with respect to the variable, in the dtype of `x`.

# %%
cause = ...  # "the line of loss", "the line of predicted" or "the line of w"


def repaired(start, x, y):
    w = tf.Variable(start)
    with tf.GradientTape() as tape:
        predicted = tf.cast(w[0], x.dtype) + tf.cast(w[1], x.dtype) * x
        loss = tf.reduce_mean((predicted - y) ** 2)
    return tape.gradient(loss, w)


exercises.straight_line.check(cause, repaired)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert loss_slope(w, x, y) is None
assert answer.exists is False
assert "np.abs" in answer.line.text
assert predict_slopes == [None, None]
assert late_slope(w, x, y) is None
assert saliency(kernel, x) is None
assert descended is None
np.testing.assert_allclose(descend(start, x, y, 1), exercises.second_step.right_answer[1](start, x, y, 1), rtol=1e-6)
assert line_gradient is None
with tf.GradientTape() as check_tape:
    check_tape.watch(x)
    check_whole = tf.cast(w, tf.int32)
    check_sum = tf.reduce_sum(tf.cast(check_whole, x.dtype) * x)
assert check_tape.gradient(check_sum, w) is None  # float at both ends, whole numbers between
assert [check_one.ref() for check_one in check_tape.watched_variables()] == [w.ref()]  # and not x
check_renamed = tf.Variable(start).assign_sub(start)  # with `w =` before it
with tf.GradientTape() as check_tape:
    check_sum = tf.reduce_sum(check_renamed)
assert check_tape.gradient(check_sum, check_renamed) is None


def mended(one):
    """Judge the model repair as a learner's: right on all inputs; and the broken function: wrong."""
    assert one.judge(*one.right_answer).verdict == "right", one.name
    assert one.judge(one.right_answer[0], one.checker.broken).verdict == "wrong", one.name


for check_name in ("own_loss", "keras_model", "three_lines", "pixels", "second_step", "straight_line"):
    mended(getattr(exercises, check_name))

# %% [markdown]
# ## 2. An error message
#
# **Case 7.** Two losses, and each is to move a source of its own (after [tensorflow #31265](https://github.com/tensorflow/tensorflow/issues/31265) and [StyleGAN2-Tensorflow-2.0 #14](https://github.com/manicman1999/StyleGAN2-Tensorflow-2.0/issues/14)).


# %% tags=["nbval-ignore-output"]
def two_slopes(a, b, x, y):
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        hidden = tf.tanh(x * a)
        fit = tf.reduce_mean((hidden * b - y) ** 2)
        size = tf.reduce_mean(hidden**2)
    return tape.gradient(fit, b), tape.gradient(size, a)


two_answers = None
try:
    two_answers = two_slopes(tf.constant(0.5), tf.constant(2.0), x[:, 0], y)
except RuntimeError as error:
    print(error)

# %% [markdown]
# ### Exercise: Case 7, the second question (4 min)
#
# Return the gradient of `fit` with respect to `b`, and the gradient of `size` with respect to `a`.

# %%
cause = ...  # "how the tape is made", "the two losses" or "the watching"


def repaired(a, b, x, y):
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        hidden = tf.tanh(x * a)
        fit = tf.reduce_mean((hidden * b - y) ** 2)
        size = tf.reduce_mean(hidden**2)
    return tape.gradient(fit, b), tape.gradient(size, a)


exercises.two_losses.check(cause, repaired)

# %% [markdown]
# **Case 8.** "No gradients provided for any variable" (after [tensorflow #30190](https://github.com/tensorflow/tensorflow/issues/30190) and [#50111](https://github.com/tensorflow/tensorflow/issues/50111)). A list collects the losses, and Keras's optimiser takes the step.


# %% tags=["nbval-ignore-output"]
def step_of_list(start, x, y):
    w, losses = tf.Variable(start), []
    with tf.GradientTape() as tape:
        for row, target in zip(x, y, strict=True):
            error = tf.tensordot(row, w, 1) - target
            losses.append(float(error**2))
        loss = tf.reduce_mean(losses)
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    return tf.convert_to_tensor(w)


stepped = None
try:
    stepped = step_of_list(start, x, y)
except ValueError as error:
    print(error)

# %% [markdown]
# ### Exercise: Case 8, a list of losses (5 min)
#
# Return the weights after one step of gradient descent on the mean of the losses.

# %%
cause = ...  # "the line of append", "the line of loss" or "the optimiser"


def repaired(start, x, y):
    w, losses = tf.Variable(start), []
    with tf.GradientTape() as tape:
        for row, target in zip(x, y, strict=True):
            error = tf.tensordot(row, w, 1) - target
            losses.append(float(error**2))
        loss = tf.reduce_mean(losses)
    optimizer = tf.keras.optimizers.SGD(0.1)
    optimizer.apply_gradients([(tape.gradient(loss, w), w)])
    return tf.convert_to_tensor(w)


exercises.step_by_keras.check(cause, repaired)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert two_answers is None
assert stepped is None
mended(exercises.two_losses)
mended(exercises.step_by_keras)

# %% [markdown]
# ## 3. A number that cannot be right
#
# **Case 9.** "Neural network only outputting 1 regardless of the input" (after [keras #500](https://github.com/keras-team/keras/issues/500); Keras's page on [activations](https://keras.io/api/layers/activations/) has the functions involved): a classifier for two classes, with one output unit.


# %%
def one_unit_loss(kernel, bias, x, y):
    p = tf.nn.softmax(tf.matmul(x, kernel) + bias)[:, 0]
    return tf.reduce_mean((p - y) ** 2)


def value_and_gradient(program, source, *rest):
    with tf.GradientTape() as tape:
        tape.watch(source)
        value = program(source, *rest)
    return value.numpy(), tape.gradient(value, source).numpy()


unit_kernel, unit_bias = tf.constant([[0.5], [-1.0]]), tf.constant([0.0])
classified = tf.constant([0.0, 1.0, 0.0])
one_unit_seen = value_and_gradient(one_unit_loss, unit_kernel, unit_bias, x, classified)
print(f"loss {one_unit_seen[0]:.4f}   gradient {one_unit_seen[1][:, 0]}")

# %% [markdown]
# **Predict.** Start the kernel from five other places, and train each for 40 steps. What is the lowest loss of the five? The one above is 0.6667.

# %%
exercises.trained_on.guess(...)  # a number

# %%
final_losses = []
for number in range(5):
    at = tf.random.stateless_normal([2, 1], seed=[seed, number])
    for _ in range(steps):
        value, slope = value_and_gradient(one_unit_loss, at, unit_bias, x, classified)
        at = at - 0.5 * slope
    final_losses.append(value)
print(f"lowest {min(final_losses):.4f}, highest {max(final_losses):.4f}")

# %% [markdown]
# ### Exercise: Case 9, as sure as can be (4 min)
#
# Give the unit the output of logistic regression: a probability for each example by itself. The squared error stays.

# %%
cause = ...  # "the softmax", "the squared error" or "the weights"


def repaired(kernel, bias, x, y):
    p = tf.nn.softmax(tf.matmul(x, kernel) + bias)[:, 0]
    return tf.reduce_mean((p - y) ** 2)


exercises.one_unit.check(cause, repaired)

# %% [markdown]
# **Case 10.** A linear model with the right weights, so every prediction equals its target. The loss should be 0 (after [tensorflow #37770](https://github.com/tensorflow/tensorflow/issues/37770) and, in PyTorch, [pytorch #16045](https://github.com/pytorch/pytorch/issues/16045)).


# %%
def regression_loss(w, x, y):
    predicted = tf.matmul(x, w)
    return tf.reduce_mean((predicted - y) ** 2)


true_w = tf.constant([[2.0], [-1.0]])
exact_y = tf.matmul(x, true_w)[:, 0]
shapes_seen = value_and_gradient(regression_loss, true_w, x, exact_y)
print(f"loss {shapes_seen[0]:.2f}   gradient {shapes_seen[1][:, 0]}")

# %% [markdown]
# ### Exercise: Case 10, a perfect model with a loss (4 min)
#
# `x` has shape (n, features), `w` (features, 1) and `y` (n,). Return the mean squared error.

# %%
cause = ...  # "the difference", "the mean" or "the product"


def repaired(w, x, y):
    predicted = tf.matmul(x, w)
    return tf.reduce_mean((predicted - y) ** 2)


exercises.perfect_model.check(cause, repaired)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.trained_on.reveal(float(min(final_losses)))
assert not one_unit_seen[1].any()
np.testing.assert_allclose(final_losses, 2 / 3, rtol=1e-6)
for check_type in (tf.float16, tf.float32, tf.float64):
    for check_size in (0.0, 0.001, 1.0, 1000.0):
        check_kernel, *check_rest = (tf.cast(part, check_type) for part in (unit_kernel, unit_bias, x, classified))
        check_value, check_slope = value_and_gradient(one_unit_loss, check_size * check_kernel, *check_rest)
        np.testing.assert_allclose(check_value, 2 / 3, rtol=1e-3)  # every output is 1
        assert not check_slope.any()
assert (tf.matmul(x, true_w) - exact_y).shape == (3, 3)
assert shapes_seen[0] > 1.0
assert np.abs(shapes_seen[1]).max() > 0.1
mended(exercises.one_unit)
mended(exercises.perfect_model)

# %% [markdown]
# ## 4. Going further: five more, unsorted
#
# Here "nothing is wrong" is among the answers each time, true or not.
#
# **Case 11.** A network of two layers. The first comes from elsewhere and is to stay as it is; the second is to learn (after [tensorflow #26404](https://github.com/tensorflow/tensorflow/issues/26404) and Keras's guide to [transfer learning](https://keras.io/guides/transfer_learning/)).


# %%
def learn_second_layer(model, x, y):
    model.layers[0].trainable = False
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    for i, gradient in enumerate(gradients):
        model.variables[i].assign_sub(0.1 * gradient)


def two_layers():
    """Two layers of two units, with the same start each time."""
    layers = [tf.keras.layers.Dense(2, use_bias=False) for _ in range(2)]
    network = tf.keras.Sequential([tf.keras.Input((2,)), *layers])
    network.set_weights([np.array([[1.0, -0.5], [0.5, 1.0]]), np.array([[0.5, 1.0], [-1.0, 0.5]])])
    return network


targets = tf.stack([y, -y], axis=1)
network = two_layers()
mse = tf.reduce_mean((network(x) - targets) ** 2)
learn_second_layer(network, x, targets)
print(f"loss {mse:.3f}, after the step {tf.reduce_mean((network(x) - targets) ** 2):.3f}")

# %% [markdown]
# ### Exercise: Case 11, the layer that was to stay (6 min)
#
# The loss has fallen. Do what the case says.

# %%
cause = ...  # "nothing is wrong", "the freezing" or "the last line"


def repaired(model, x, y):
    model.layers[0].trainable = False
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    for i, gradient in enumerate(gradients):
        model.variables[i].assign_sub(0.1 * gradient)


exercises.kept_layer.check(cause, repaired)

# %% [markdown]
# **Case 12.** Two tasks share a trunk, and each has a head. This batch is of the first task. "Gradients do not exist for variables", Keras warned (after [tensorflow #37501](https://github.com/tensorflow/tensorflow/issues/37501) and [bert-for-tf2 #46](https://github.com/kpe/bert-for-tf2/issues/46)).


# %%
def first_task(trunk, head, other, x, y):
    with tf.GradientTape() as tape:
        hidden = tf.tanh(tf.matmul(x, trunk))
        loss = tf.reduce_mean((tf.matmul(hidden, head) - y) ** 2)
    return tape.gradient(loss, [trunk, head, other])


trunk, head, other = (tf.Variable(start) for start in ([[0.5, -1.0], [1.0, 0.5]], [[1.0], [-0.5]], [[0.5], [0.5]]))
for name, gradient in zip(("trunk", "head", "other"), first_task(trunk, head, other, x, y[:, None]), strict=True):
    print(f"{name:6}", None if gradient is None else np.round(gradient.numpy().ravel(), 3))

# %% [markdown]
# ### Exercise: Case 12, a head without a gradient (5 min)
#
# Return what an optimiser is to be handed for the three variables.

# %%
cause = ...  # "nothing is wrong", "the line of hidden" or "the line of loss"


def repaired(trunk, head, other, x, y):
    with tf.GradientTape() as tape:
        hidden = tf.tanh(tf.matmul(x, trunk))
        loss = tf.reduce_mean((tf.matmul(hidden, head) - y) ** 2)
    return tape.gradient(loss, [trunk, head, other])


exercises.second_head.check(cause, repaired)

# %% [markdown]
# An optimiser with momentum has moved two variables once. In the next step one gets the gradient `None`, the other zeros.
#
# **Predict.** Which of them moves in that step? "neither", "the one with None", "the one with zeros" or "both"

# %%
exercises.with_momentum.guess(...)  # "neither", "the one with None", "the one with zeros" or "both"

# %%
pair = {"None": tf.Variable([1.0]), "zeros": tf.Variable([1.0])}
optimizer = tf.keras.optimizers.SGD(0.1, momentum=0.9)
optimizer.apply_gradients([(tf.constant([1.0]), variable) for variable in pair.values()])
before = {name: float(variable[0]) for name, variable in pair.items()}
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # Keras's warning about the None, which is meant here
    optimizer.apply_gradients([(None, pair["None"]), (tf.constant([0.0]), pair["zeros"])])
for name, variable in pair.items():
    print(f"{name:6}{before[name]:.2f} -> {float(variable[0]):.2f}")

# %% [markdown]
# With the gradient 0 this optimiser went on; with `None` it left the variable out.
#
# **Case 13.** Why not train for the share of right answers itself? (After [keras #9712](https://github.com/keras-team/keras/issues/9712) and [#17682](https://github.com/keras-team/keras/issues/17682).)


# %%
def error_rate_slope(w, x, labels):
    with tf.GradientTape() as tape:
        logits = tf.matmul(x, w)
        hits = tf.cast(tf.argmax(logits, axis=1) == labels, x.dtype)
        loss = 1.0 - tf.reduce_mean(hits)
    return tape.gradient(loss, w)


three_classes = tf.Variable([[0.5, -1.0, 0.0], [1.0, 0.5, -0.5]])
labels = tf.constant([0, 1, 2], tf.int64)
print("gradient:", error_rate_slope(three_classes, x, labels))

# %% [markdown]
# ### Exercise: Case 13, the share of right answers (6 min)
#
# If a repair is due, take the mean cross-entropy of the logits as the loss, and return its gradient.

# %%
cause = ...  # "nothing is wrong", "the line of hits" or "the line of logits"


def repaired(w, x, labels):
    with tf.GradientTape() as tape:
        logits = tf.matmul(x, w)
        hits = tf.cast(tf.argmax(logits, axis=1) == labels, x.dtype)
        loss = 1.0 - tf.reduce_mean(hits)
    return tape.gradient(loss, w)


exercises.right_answers.check(cause, repaired)

# %% [markdown]
# **Case 14.** A network whose output kernel starts at 0, so that its first answer is 0. The first layer has the gradient 0 (after [HGQ2 #13](https://github.com/calad0i/HGQ2/issues/13) and, in PyTorch, [a question](https://github.com/smallflyingpig/universal_adversarial_perturbation_generative_network_for_speaker_recognition/issues/4)).


# %%
def both_layers(hidden, output, x, y):
    with tf.GradientTape() as tape:
        h = tf.tanh(tf.matmul(x, hidden))
        loss = tf.reduce_mean((tf.matmul(h, output) - y) ** 2)
    return tape.gradient(loss, [hidden, output])


hidden, output = tf.Variable([[0.5, -1.0], [1.0, 0.5]]), tf.Variable(tf.zeros([2, 1]))
at_start = both_layers(hidden, output, x, y[:, None])
print("first layer\n", at_start[0].numpy(), "\noutput\n", at_start[1].numpy().round(3))

# %% [markdown]
# ### Exercise: Case 14, a first layer that does not move (5 min)
#
# Return the gradients of the two kernels.

# %%
cause = ...  # "nothing is wrong", "the activation" or "the line of loss"


def repaired(hidden, output, x, y):
    with tf.GradientTape() as tape:
        h = tf.tanh(tf.matmul(x, hidden))
        loss = tf.reduce_mean((tf.matmul(h, output) - y) ** 2)
    return tape.gradient(loss, [hidden, output])


exercises.first_layer.check(cause, repaired)

# %% [markdown]
# **Case 15.** The same model, data and rate as in `fit`, and a loop of one's own that explodes (after [tensorflow #31184](https://github.com/tensorflow/tensorflow/issues/31184) and [#28028](https://github.com/tensorflow/tensorflow/issues/28028)). In the model, batch normalisation comes before the one dense layer.


# %%
def training_step(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


def normalising():
    """A model with the same start each time."""
    layers = [tf.keras.layers.BatchNormalization(momentum=0.9), tf.keras.layers.Dense(1)]
    one = tf.keras.Sequential([tf.keras.Input((2,)), *layers])
    layers[1].set_weights([np.array([[0.5], [-0.25]]), np.zeros(1)])
    return one


far = 20.0 + 5.0 * x
own_model, fitted_model = normalising(), normalising()
fitted_model.compile(optimizer=tf.keras.optimizers.SGD(0.1), loss="mse")
own_losses = [float(training_step(own_model, far, y[:, None])) for _ in range(3)]
fit_losses = fitted_model.fit(far, y[:, None], epochs=3, batch_size=3, verbose=0).history["loss"]
print("own loop:", "  ".join(f"{loss:.3g}" for loss in own_losses))
print("fit:     ", "  ".join(f"{loss:.3g}" for loss in fit_losses))

# %% [markdown]
# ### Exercise: Case 15, the loop that is worse than fit (8 min)
#
# *The idea is in [02](02_training_with_a_tape.ipynb), section 3.*
#
# Take one step, and return its loss. The model is to be after it what `fit` would make of it.

# %%
cause = ...  # "nothing is wrong", "the line of loss" or "the line of the step"


def repaired(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    for gradient, variable in zip(gradients, model.trainable_variables, strict=True):
        variable.assign_sub(0.1 * gradient)
    return loss


exercises.worse_than_fit.check(cause, repaired)

# %% [markdown]
# Case 14 again, over ten steps:

# %% alt="Line plot. The size of the gradient of both layers over the first ten steps of training. That of the output layer starts high and falls. That of the first layer is exactly zero at step 0, and small but not zero from step 1 on; in the last steps it is the larger of the two." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the two gradients in the first steps
first_kernel, last_kernel = tf.Variable(hidden), tf.Variable(output)
sizes = []
for _ in range(11):
    two = both_layers(first_kernel, last_kernel, x, y[:, None])
    sizes.append([float(tf.norm(one)) for one in two])
    for variable, one in zip((first_kernel, last_kernel), two, strict=True):
        variable.assign_sub(0.2 * one)
sizes = np.array(sizes)
_, ax = plt.subplots(figsize=(6.5, 3.6), layout="constrained")
ax.plot(sizes[:, 1], "s--", color=plots.RED, label="output layer")
ax.plot(sizes[:, 0], "o-", color=plots.BLUE, label="first layer")
ax.set(title="The gradients of a network that starts at 0", xlabel="step of training", ylabel="size of the gradient")
ax.legend(frameon=False)
plt.show()

# %% [markdown]
# The first layer's gradient is 0 at the start, and in none of the ten steps after it. Where *both* kernels of this network start at 0, the hidden units are 0, too, and both gradients stay 0.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.with_momentum.reveal(
    {(False, True): "the one with zeros", (False, False): "neither", (True, False): "the one with None"}.get(
        tuple(float(pair[check_name][0]) != before[check_name] for check_name in ("None", "zeros")), "both"
    )
)
assert pair["None"][0] == before["None"]
np.testing.assert_allclose(float(pair["zeros"][0]), before["zeros"] - 0.1 * 0.9, rtol=1e-5)
check_network = two_layers()
check_start = check_network.get_weights()
learn_second_layer(check_network, x, targets)
assert np.abs(check_network.get_weights()[0] - check_start[0]).max() > 0.01  # the layer that was to stay
np.testing.assert_array_equal(check_network.get_weights()[1], check_start[1])
with tf.GradientTape() as check_tape:
    check_loss = tf.reduce_mean(check_network(x) ** 2)
assert None not in check_tape.gradient(check_loss, check_network.variables)  # the frozen layer is watched
check_heads = first_task(trunk, head, other, x, y[:, None])
assert [check_one is None for check_one in check_heads] == [False, False, True]
assert error_rate_slope(three_classes, x, labels) is None
assert not at_start[0].numpy().any()
assert at_start[1].numpy().any()
assert sizes[0, 0] == 0.0
assert sizes[1:, 0].min() > 0.0
check_kernels = [tf.Variable(tf.zeros_like(check_one)) for check_one in (hidden, output)]
for _ in range(50):
    check_two = both_layers(*check_kernels, x, y[:, None])
    assert not any(check_one.numpy().any() for check_one in check_two)
    for check_variable, check_one in zip(check_kernels, check_two, strict=True):
        check_variable.assign_sub(0.2 * check_one)
assert own_losses[2] > 1e6 * own_losses[0]
assert fit_losses[0] > fit_losses[1] > fit_losses[2]
for check_name in ("kept_layer", "right_answers", "worse_than_fit"):
    mended(getattr(exercises, check_name))
for check_one in (exercises.second_head, exercises.first_layer):
    assert check_one.judge(*check_one.right_answer).verdict == "right"
    assert check_one.judge("nothing is wrong", check_one.checker.mistakes[0].answer).verdict == "wrong"

# %% [markdown]
# ## 5. Check it independently
#
# The repairs are held against central differences of *values*, in float64, at other inputs; in cases 2, 11 and 15 against one step of Keras's `fit`. Differences cannot tell `None` from 0, so case 12 asks for the `None` itself.
#
# The crosses are the programs as shown, which must fail; in cases 12 and 14, where these are right, a needless repair.

# %% alt="Scatter plot. The error of each case's program, from 1 to 15, on a logarithmic axis. The fifteen dots of the repairs lie far below one ten-thousandth. The fifteen crosses of the other programs lie far above it, and most of them in a band at the top for an error, a None too many, or one missing." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: repairs and programs against the differences
rng = np.random.default_rng(seed)
repair = {number: one.right_answer[1] for number, one in enumerate(exercises_of(exercises), start=1)}


def wide(*shape):
    return tf.constant(rng.normal(size=shape))


def against_differences(value, source, gradient):
    """How far a gradient is from central differences of `value`, relative to their largest entry."""
    expected = gradcheck.numerical_jacobian(lambda x: tf.reduce_sum(value(tf.constant(x))), source, 1e-5)
    return float(np.max(np.abs(gradient - expected)) / max(1.0, np.max(np.abs(expected))))


def against_fit(make, step, x, y, rate=0.1):
    """How far the weights after a step are from those after one of Keras's `fit`, with the same start."""
    ours, keras = make(), make()
    step(ours)
    keras.compile(optimizer=tf.keras.optimizers.SGD(rate), loss="mse", run_eagerly=True)
    keras.fit(x, y, batch_size=len(x), verbose=0)
    return max(float(np.max(np.abs(a - b))) for a, b in zip(ours.get_weights(), keras.get_weights(), strict=True))


def one_layer():
    one = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
    one.set_weights([np.array([[0.5], [-0.25]]), np.zeros(1)])
    return one


def frozen_two_layers():
    one = two_layers()
    one.layers[0].trainable = False
    return one


def step_with(slopes):
    def step(model):
        for gradient, variable in zip(slopes(model), model.trainable_variables, strict=True):
            variable.assign_sub(0.1 * gradient)

    return step


w1, x1, y1 = wide(2), wide(5, 2), wide(5)
kernel1, unit1, head1, trunk1 = wide(2, 3), wide(2, 1), wide(3, 1), wide(2, 3)
hits1, labels1 = tf.constant([1.0, 0.0, 1.0, 1.0, 0.0], tf.float64), tf.constant([0, 2, 1, 0, 2], tf.int64)
bias1, whole1 = wide(1), tf.constant([2.0, -1.0], tf.float64)
both_sides = tf.linalg.matvec(x1, w1) + tf.constant([0.5, -1.0, 2.0, -0.5, 1.0], tf.float64)  # targets above and below


def squared(w):
    return tf.reduce_mean((tf.linalg.matvec(x1, w) - y1) ** 2)


def through_tanh(trunk, head):
    return tf.reduce_mean((tf.matmul(tf.tanh(tf.matmul(x1, trunk)), head) - y1[:, None]) ** 2)


def logistic(kernel):
    """The loss of logistic regression with squared errors, in NumPy."""
    p = 1 / (1 + np.exp(-(x1.numpy() @ kernel.numpy() + bias1.numpy())[:, 0]))
    return np.mean((p - hits1.numpy()) ** 2)


def cross_entropy(w):
    logits = tf.matmul(x1, w)
    return tf.reduce_mean(tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, labels1, batch_dims=1))


def of_two_steps(program):
    one, two = program(w1, x1, y1, 1), program(w1, x1, y1, 2)
    return max(against_differences(squared, at, (at - to) / 0.1) for at, to in ((w1, one), (one, two)))


def of_two_losses(program):
    fit, size = program(w1[0], w1[1], y1, x1[:, 0])
    return max(
        against_differences(lambda b: tf.reduce_mean((tf.tanh(y1 * w1[0]) * b - x1[:, 0]) ** 2), w1[1], fit),
        against_differences(lambda a: tf.reduce_mean(tf.tanh(y1 * a) ** 2), w1[0], size),
    )


def of_kernels(found, head):
    """The gradients of both kernels of a network whose output layer starts at `head`."""
    return max(
        against_differences(lambda trunk: through_tanh(trunk, head), trunk1, found[0]),
        against_differences(lambda head: through_tanh(trunk1, head), head, found[1]),
    )


def of_heads(program):
    found = program(*(tf.Variable(start) for start in (trunk1, head1, head1)), x1, y1[:, None])
    return of_kernels(found, head1) if found[2] is None else np.inf


def of_zero_start(program):
    start = 0.0 * head1
    return of_kernels(program(tf.Variable(trunk1), tf.Variable(start), x1, y1[:, None]), start)


comparisons = {
    1: lambda program: against_differences(
        lambda w: tf.reduce_mean(tf.abs(tf.linalg.matvec(x1, w) - both_sides)),
        w1,
        program(tf.Variable(w1), x1, both_sides),
    ),
    2: lambda program: against_fit(one_layer, step_with(lambda model: program(model, x, y[:, None])), x, y[:, None]),
    3: lambda program: against_differences(squared, w1, program(tf.Variable(w1), x1, y1)),
    4: lambda program: against_differences(
        lambda x: tf.tanh(tf.matmul(x, kernel1)), x1, program(tf.Variable(kernel1), x1)
    ),
    5: of_two_steps,
    6: lambda program: against_differences(
        lambda w: tf.reduce_mean((w[0] + w[1] * x1[:, 0] - y1) ** 2), whole1, program([2, -1], x1[:, 0], y1)
    ),
    7: of_two_losses,
    8: lambda program: against_differences(squared, w1, (w1 - program(w1, x1, y1)) / 0.1),
    9: lambda program: against_differences(logistic, unit1, value_and_gradient(program, unit1, bias1, x1, hits1)[1]),
    10: lambda program: against_differences(
        lambda w: squared(w[:, 0]), unit1, value_and_gradient(program, unit1, x1, y1)[1]
    ),
    11: lambda program: against_fit(frozen_two_layers, lambda model: program(model, x, targets), x, targets),
    12: of_heads,
    13: lambda program: against_differences(cross_entropy, kernel1, program(tf.Variable(kernel1), x1, labels1)),
    14: of_zero_start,
    15: lambda program: against_fit(normalising, lambda model: program(model, far, y[:, None]), far, y[:, None]),
}


def wrong_by(number, program):
    """The error of a program; infinite if it raises or leaves a gradient out."""
    try:
        return comparisons[number](program)
    except (IndexError, RuntimeError, TypeError, ValueError, tf.errors.OpError):  # None minus a number: a TypeError
        return np.inf


shown = [loss_slope, model_slopes, late_slope, saliency, descend, line_slope, two_slopes, step_of_list, one_unit_loss]
shown += [regression_loss, learn_second_layer, first_task, error_rate_slope, both_layers, training_step]
wrong = dict(enumerate(shown, start=1))
wrong[12], wrong[14] = (one.checker.mistakes[0].answer for one in (exercises.second_head, exercises.first_layer))
errors_found = {number: wrong_by(number, program) for number, program in repair.items()}
errors_of_wrong = {number: wrong_by(number, program) for number, program in wrong.items()}
_, ax = plt.subplots(figsize=(7.5, 3.8), layout="constrained")
raised = 1e4  # where an infinite error is drawn
ax.semilogy(
    list(errors_found), [max(error, 1e-16) for error in errors_found.values()], "o", color=plots.BLUE, label="repaired"
)
ax.semilogy(
    list(errors_of_wrong),
    np.minimum(list(errors_of_wrong.values()), raised),
    "x",
    color=plots.RED,
    label="as shown, or repaired without need",
)
ax.axhline(raised / 10, color=plots.GREY, linewidth=0.5)
ax.text(15.4, 6 * raised, "an error, a None too many, or one missing", ha="right", va="bottom")
ax.set(
    title="Each repair agrees with differences, or with fit",
    xlabel="case",
    ylabel="error (0 is drawn at 1e-16)",
    xticks=range(1, 16),
    ylim=(1e-17, 1e6),
)
ax.legend(frameon=False, loc="center right")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for check_number, check_error in errors_found.items():
    check_tolerance = 1e-4 if check_number in (2, 11, 15) else 1e-7  # those compute in float32
    assert check_error < check_tolerance, (check_number, check_error)
    assert errors_of_wrong[check_number] > 0.001, (check_number, errors_of_wrong[check_number])
for check_number in (12, 14):
    assert wrong_by(check_number, shown[check_number - 1]) < 1e-7
for check_number, check_exercise in enumerate(exercises_of(exercises), start=1):  # wrong repairs fail, too
    for check_mistake in check_exercise.checker.mistakes:
        check_error = wrong_by(check_number, check_mistake.answer)
        if check_mistake.code in ("exponentials", "log_of_softmax", "one_further"):
            # Wrong at large logits alone, and these are small; wrong if two variables stay, and here it is one.
            assert check_error < 1e-7
        else:
            assert check_error > 0.001, (check_number, check_mistake.code, check_error)
assert wrong_by(14, lambda hidden, output, *data: [tf.zeros_like(hidden), tf.zeros_like(output)]) > 0.005
assert len(errors_found) == len(errors_of_wrong) == 15


def step_against_differences(make, step, x, y, **how):
    """How far a step is from 0.1 times central differences of the loss: exact but for rounding, since all are squares."""
    still, moved, worst = make(), make(), 0.0
    step(moved)
    for variable, after in zip(still.trainable_variables, moved.trainable_variables, strict=True):

        def loss(value, variable=variable):
            variable.assign(value)
            return np.float64(tf.reduce_mean((still(x, **how) - y) ** 2))

        start = variable.numpy()
        expected = start - 0.1 * gradcheck.numerical_jacobian(loss, start, 0.1)
        variable.assign(start)
        worst = max(worst, float(np.max(np.abs(after - expected))))
    return worst


for check_make, check_right, check_broken, check_data, check_how in (
    (one_layer, step_with(lambda model: repair[2](model, x, y[:, None])), None, (x, y[:, None]), {}),
    (frozen_two_layers, lambda model: repair[11](model, x, targets), learn_second_layer, (x, targets), {}),
    (
        normalising,
        lambda model: repair[15](model, far, y[:, None]),
        training_step,
        (far, y[:, None]),
        {"training": True},
    ),
):
    assert step_against_differences(check_make, check_right, *check_data, **check_how) < 1e-4
    if check_broken is not None:

        def check_step(model, broken=check_broken, data=check_data):
            broken(model, *data)

        assert step_against_differences(check_make, check_step, *check_data, **check_how) > 0.01

# %% [markdown]
# ## Recap
#
# - The `None`s came from arrays, whole numbers, sources that were not watched, and a loss after the block (section 1).
# - "Can only be used to compute one set of gradients" was about how the tape was made; "no gradients provided" said that the one gradient was `None` (section 2).
# - Print outputs and shapes: 1s stood behind the zero that stayed, (3, 3) behind the loss that should have been 0 (section 3).
# - Ask first whether anything is wrong: a `None` and a 0 can be the true answer (section 4).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | `np.abs`, `float` or `model.predict`, run eagerly, on the only way from source to a loss that is a tensor | `None` | `tf.abs`; the tensor itself; `model(x)`, in training `model(x, training=True)` |
# | a variable `w` and `w = w - rate * g`, where the next tape does not watch the result | one step works, the second gets `None` | `w.assign_sub(rate * g)`, without `w =` |
# | `tf.Variable([2, 0])` | `None`, even if it is cast to float later | `tf.Variable([2.0, 0.0])` |
# | softmax over one unit, squared error | output 1 and gradient 0, for any finite logits | sigmoid |
# | (3, 1) minus (3,) | (3, 3), a loss for right predictions of unequal targets | equal shapes |
# | a frozen first layer; gradients of `trainable_variables`, applied to `variables` | where the shapes fit, the frozen layer moves | `trainable_variables` for both |
# | zeros in place of a rightful `None` | with momentum from an earlier step, a variable that drifts | hand the `None` to Keras's optimiser, beside other gradients |
#
# **Further reading**
#
# - TensorFlow guide, [Introduction to gradients and automatic differentiation](https://www.tensorflow.org/guide/autodiff), section "Getting a gradient of None".
# - Keras guide, [Writing a training loop from scratch](https://keras.io/guides/writing_a_training_loop_from_scratch/).
# - Keras guide, [Transfer learning and fine-tuning](https://keras.io/guides/transfer_learning/).
# - E. J. Hu et al. (2021), ["LoRA: low-rank adaptation of large language models"](https://arxiv.org/abs/2106.09685): one of two factors starts at 0, as in case 14.
#
# **Read next:** [04 When the gradient is wrong](04_when_the_gradient_is_wrong.ipynb) has zeros and NaN, and then come the [hard cases](29_hard_cases.ipynb).
