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
# # Start here
#
# You write a program that computes a number. TensorFlow can hand you the derivative of that program, exact to rounding, with
# no formula from you. This collection shows how, from one multiplication to Newton's method on a whole model.
# **What is in the collection, and how does a notebook work?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/00_start_here.ipynb)
#
# **Prerequisites:** none · **Time:** about 10 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - say what your session runs on, and get the same random numbers twice (section 1),
# - work through a notebook by predict, run, explain, check (section 2),
# - let a tape compute a derivative, and draw it over its function (section 3).

# %% [markdown]
# ## The map
#
# "Needs" lists the notebooks whose ideas are used. Each notebook runs alone, in any order.

# %% [markdown] tags=["catalogue"]
# | | Notebook | What it answers | Needs | Minutes | |
# |---|---|---|---|---|---|
# | 00 | [Start here](00_start_here.ipynb) | What is in the collection, and how does a notebook work? | none | 10 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/00_start_here.ipynb) |
# | 01 | [Gradient tape basics](01_gradient_tape_basics.ipynb) | How does a tape turn a computation into a gradient? | 00 | 30 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/01_gradient_tape_basics.ipynb) |
# | 02 | [Training with a tape](02_training_with_a_tape.ipynb) | How do you train a classifier with a loop of your own? | 01 | 30 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/02_training_with_a_tape.ipynb) |
# | 03 | [When the gradient is None](03_when_the_gradient_is_none.ipynb) | Why is this gradient None, and what cures it? | 01 | 50 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/03_when_the_gradient_is_none.ipynb) |
# | 04 | [Recording control](04_recording_control.ipynb) | Can a tape leave out part of a computation, or start over? | 01 | 15 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/04_recording_control.ipynb) |
# | 05 | [Stop gradient](05_stop_gradient.ipynb) | How do you cut one path and keep the others? | 04 | 20 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/05_stop_gradient.ipynb) |
# | 06 | [Custom gradients](06_custom_gradients.ipynb) | When is TensorFlow's own derivative not the one you want? | 01 | 45 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/06_custom_gradients.ipynb) |
# | 07 | [Multiple tapes](07_multiple_tapes.ipynb) | What do several tapes over one computation give, and what do they cost? | 01 | 15 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/07_multiple_tapes.ipynb) |
# | 08 | [Higher-order gradients](08_higher_order_gradients.ipynb) | How do you differentiate a gradient? | 07 | 35 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/08_higher_order_gradients.ipynb) |
# | 09 | [Jacobians](09_jacobians.ipynb) | How does each output depend on each input, and what does it cost to know? | 08 | 30 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/09_jacobians.ipynb) |
# | 10 | [Hessians and Newton's method](10_hessians_and_newton.ipynb) | How do second derivatives find a better step? | 09 | 50 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/10_hessians_and_newton.ipynb) |
# | 11 | [Batch Jacobians](11_batch_jacobians.ipynb) | What is the Jacobian of each example in a batch? | 09 | 30 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/11_batch_jacobians.ipynb) |
# | 12 | [Forward mode](12_forward_mode.ipynb) | When is forward the better way to go? | 09, 10 | 25 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/12_forward_mode.ipynb) |
# | 13 | [What derivatives cost](13_what_derivatives_cost.ipynb) | What does each derivative cost, and how does the cost grow? | 12 | 30 | [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/13_what_derivatives_cost.ipynb) |

# %% [markdown]
# Three routes, if you do not want to read from the top to the bottom:
#
# - **You train models.** 01, 02, 03: the tape, a training loop of your own, and what to do when a gradient is `None`.
# - **You want to change a gradient.** 01, 04, 05, 06: leave records out, cut a path, write a derivative yourself.
# - **You want more than a gradient.** 01, 07, 08, 09, then 10 or 11: curvature, Newton's method, one Jacobian for each example.
#
# To run this page, press Shift+Enter in each cell, from the top. The next cell prepares the session.

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import gradcheck, plots, runtime
from tapelab.exercises import sheets
from tapelab.exercises.sheets import start_here as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% [markdown]
# Every notebook has a cell of parameters. Change a value there, then run everything below it again.

# %% tags=["parameters"]
seed = 0
points = 201  # where the sigmoid is drawn in section 3; odd, so that 0 is one of them

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. What this session runs on
#
# The next line names the device and the versions. Yours may differ from the stored one; the lessons are the same.

# %% tags=["nbval-ignore-output"]
print(runtime.report())

# %% [markdown]
# `runtime.start(seed)` sets the seed of every random generator, so that a notebook shows the same numbers each time.
#
# **Predict.** Below, the session is started again before the first draw and before the second, but not before the third.
# Which of the three draws are equal?

# %%
draws = []
for start_again in (True, True, False):
    if start_again:
        runtime.start(seed)
    draws.append(tf.random.normal((4,)).numpy())

first_equals_second = np.array_equal(draws[0], draws[1])
second_equals_third = np.array_equal(draws[1], draws[2])
print("first draw equals second:", first_equals_second)
print("second draw equals third:", second_equals_third)

# %% [markdown]
# The generator goes on from where it stands; a seed sends it back to the start. So the order in which cells run matters.
# Run a cell twice, and it continues with other random numbers. When in doubt, restart the kernel and run all cells.

# %%
assert first_equals_second
assert not second_equals_third

# %% [markdown]
# ## 2. Predict, run, explain, check
#
# Every section of every notebook makes these four moves. Here they are once, slowly, on a Python function with a loop in it.

# %%
x = tf.Variable(2.0)


def product_of_three(x):
    result = 1.0
    for _ in range(3):
        result = result * x
    return result


# %% [markdown]
# `tf.GradientTape` watches a computation, and then answers one question: how does the result change when an input changes a little?
#
# **Predict.** What is `y` at $x = 2$, and what is $\mathrm dy/\mathrm dx$? Commit yourself: put your numbers in place of the two `...`, and run
# the cell. A number that you gave can be wrong, and a wrong number is where you learn something; "I would have known that" teaches nothing.

# %%
exercises.cubed.guess([..., ...])  # y, dy/dx

# %% [markdown]
# **Run.** The short cell with one idea in it.

# %%
with tf.GradientTape() as tape:
    y = product_of_three(x)

dy_dx = tape.gradient(y, x)
print("y     =", y.numpy())
print("dy/dx =", dy_dx.numpy())

# %% [markdown]
# **Explain.** The next cell puts your guess beside the result, and says why the result is what it is.

# %%
exercises.cubed.reveal([y, dy_dx])

# %% [markdown]
# **Check.** Wherever the text states a number, an assertion stands beside it. If it were false, the notebook would stop there.

# %%
assert y.numpy() == 8.0
assert dy_dx.numpy() == 12.0

# %% [markdown]
# A cell of assertions prints nothing when all is well. Would it notice an error? Let one fail, and catch it.
#
# **Predict.** This cell claims that the slope is 4. Which of its two lines is printed?

# %%
noticed = False
try:
    assert dy_dx.numpy() == 4.0, "the slope is not 4"
    print("the check passed")
except AssertionError as error:
    noticed = True
    print("the check failed:", error)

# %%
assert noticed

# %% [markdown]
# Try it: go back to `x = tf.Variable(2.0)`, write `5.0`, predict, and run from there. The assertions will object. They state what holds
# for the text as it stands, and they tell you when your experiment has left it.

# %% [markdown]
# Some sections end with an exercise. You put code or a value in place of `...` and run the cell, and the cell answers: what is right, or what
# went wrong and where to look. When you are stuck, `exercises.NAME.hint()` in a new cell gives a hint, and each further call one more;
# `exercises.NAME.solution()` shows a solution and why it is one. Here is a small one.
#
# ### Exercise: The slope somewhere else (1 min)
#
# What is $\mathrm dy/\mathrm dx$ of `product_of_three` at $x = 5$?

# %%
slope_at_five = ...  # a number

exercises.slope_at_five.check(slope_at_five)

# %% [markdown]
# What you have solved is kept in a small file in your own data folder. This table shows it, for the whole collection.

# %%
sheets.show_progress()

# %% [markdown]
# ## 3. First taste: the derivative of the sigmoid
#
# The sigmoid $\sigma(x) = 1/(1 + e^{-x})$ squeezes any number into the interval from 0 to 1. It turns a score into a probability.
#
# **Predict.** Where is it steepest, and how steep is it there? How steep is it at $x = 10$?

# %%
x = tf.linspace(-10.0, 10.0, points)

with tf.GradientTape() as tape:
    y = tf.sigmoid(x)

slope = tape.gradient(y, x)
print("slope:", slope)

# %% [markdown]
# **The problem:** no slope at all. **The cause:** this `x` is a tensor, and in section 2 it was a `tf.Variable`. A tape follows trainable
# variables by itself, tensors only when you ask. **The fix** is one line: `tape.watch(x)`.

# %%
assert slope is None

# %%
with tf.GradientTape() as tape:
    tape.watch(x)
    y = tf.sigmoid(x)

slope = tape.gradient(y, x)
print("shape of x:    ", x.shape)
print("shape of slope:", slope.shape)

# %%
assert y.shape == slope.shape == x.shape == (points,)

# %% [markdown]
# One call has given a slope for every point: each value of `y` depends on its own value of `x` and on no other.
# [01 Gradient tape basics](01_gradient_tape_basics.ipynb) shows what `gradient` returns where that does not hold.

# %% alt="The sigmoid rises from 0 to 1 in an S; below it, dashed, its derivative is a bell that is 0.25 high at x = 0 and flat at zero on both sides. A dotted tangent touches the S at x = 0."
ax = plots.curve_with_derivative(
    x, y, slope, title="The sigmoid and its derivative", label="σ(x)", derivative_label="dσ/dx, from the tape"
)
near_zero = np.array([-2.0, 2.0])
ax.plot(near_zero, 0.5 + 0.25 * near_zero, ":", color=plots.GREY, label="tangent at 0, slope 1/4")
ax.legend()
plt.show()

# %%
steepest = int(np.argmax(slope))
print(f"largest slope: {slope[steepest]:.4f}, at |x| = {abs(x[steepest]):.1f}")
print("slope at the ends below 0.0001:", bool(slope[0] < 1e-4 and slope[-1] < 1e-4))

# %% [markdown]
# The sigmoid is steepest at 0, where its slope is $1/4$. Far out it is flat. A model whose outputs sit there
# learns almost nothing from its errors: a derivative that is nearly zero says "no change of this input will help".
# Much of what follows is about finding out where a derivative goes missing, and what to do then.

# %%
np.testing.assert_allclose(slope[steepest], 0.25, atol=1e-5)
np.testing.assert_allclose(x[steepest], 0.0, atol=1e-5)
assert 0.0 < slope[0] < 1e-4
assert 0.0 < slope[-1] < 1e-4

# %% [markdown]
# ## 4. Check it independently
#
# Each notebook ends by asking someone who has never seen a tape. Here two witnesses speak. The first is calculus:
# $\sigma' = \sigma\,(1 - \sigma)$. The second is a central difference, $(\sigma(x + h) - \sigma(x - h)) / 2h$, in NumPy's float64,
# at five points.


# %%
def numpy_sigmoid(x):
    return 1 / (1 + np.exp(-x))


everywhere = numpy_sigmoid(x.numpy().astype(np.float64))
closed_form = everywhere * (1 - everywhere)

five = np.linspace(0, points - 1, 5).astype(int)
differences = np.array([gradcheck.numerical_jacobian(numpy_sigmoid, x.numpy()[i]) for i in five])

print("closed form agrees:         ", np.allclose(slope, closed_form, rtol=0, atol=1e-6))
print("central differences agree:  ", np.allclose(slope.numpy()[five], differences, rtol=0, atol=1e-6))

# %%
np.testing.assert_allclose(slope, closed_form, rtol=0, atol=1e-6)
np.testing.assert_allclose(slope.numpy()[five], differences, rtol=0, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - `runtime.report()` says what a session runs on; `runtime.start(seed)` makes its random numbers repeat (section 1).
# - Commit to a prediction, run the cell, read why, and let the assertion beneath confirm it (section 2).
# - `tape.gradient(y, x)` gave the sigmoid's slope at every point: $1/4$ at 0, nearly 0 far out (section 3).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | cells run twice, or out of order | other random numbers than in the text, or a `NameError` | restart the kernel, run all cells |
# | a parameter is changed and only its own cell is run | the old results | run every cell below it as well |
# | the source is a tensor that nobody watched | `None` | `tape.watch` it before it is used |
#
# **Read next:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) opens the tape, and walks a network downhill with it.
