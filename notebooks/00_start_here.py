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
# # Start here
#
# You write a program in TensorFlow that computes numbers. Below, TensorFlow hands you their derivatives, with no
# formula from you. **What is in this collection, and how does a notebook work?**
#
# **Where to start?** New to tapes: run this page, with Shift+Enter in each cell from the top, then [01](01_gradient_tape_basics.ipynb). With a question of your own: the list in section 3.

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/00_start_here.ipynb)
#
# **Prerequisites:** none · **Minutes:** 10 to read, 1 for the exercises; to work through it all, about 15 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
points = 100  # where the sigmoid is drawn, on each side of 0: between 10 and 500
goal = "13"  # the notebook whose route is marked on the map in section 3

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import textwrap

from tapelab import gradcheck, plots, runtime
from tapelab.exercises import sheets
from tapelab.exercises.sheets import start_here as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %% alt="Line plot over x from \u221210 to 10. The sigmoid rises from 0 to 1 in an S. Below it, dashed, its slope is a bell that is 0.25 high at x = 0 and flat at zero on both sides."
x = tf.linspace(-10.0, 10.0, 2 * points + 1)

with tf.GradientTape() as tape:
    tape.watch(x)
    y = 1.0 / (1.0 + tf.exp(-x))

slope = tape.gradient(y, x)

plots.curve_with_derivative(
    x,
    y,
    slope,
    title="The sigmoid is steepest at 0",
    label="y, the sigmoid of x",
    derivative_label="dy/dx, from the tape",
)
plt.show()

# %% [markdown]
# **You will be able to**
#
# - let a tape compute a derivative, and draw it over its function (section 1),
# - work through a notebook: predict, run, compare, solve an exercise (section 2),
# - find on the map what to read for what you need (section 3),
# - say what your session runs on, and get the same random numbers twice (section 4).

# %% [markdown]
# ## 1. First taste: the derivative of the sigmoid
#
# The sigmoid $\sigma(x) = 1/(1 + e^{-x})$ squeezes the real numbers into the interval from 0 to 1. The cell above computes it while a `tf.GradientTape` records, and watches `x`.
# `tape.gradient(y, x)` returned the slope, at all the points in one call. It can, because here each entry of `y` depends on its own entry of `x` alone.

# %%
steepest = int(np.argmax(slope))
print(f"largest slope: {slope[steepest]:.4f}, at |x| = {abs(x[steepest]):.1f}")
print(f"slope at x = {x[-1]:.0f}:  {slope[-1]:.6f}")

# %% [markdown]
# The slope is $1/4$ at 0 and nearly nothing at $\pm 10$.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(slope[steepest], 0.25, atol=1e-5)
np.testing.assert_allclose(x[steepest], 0.0, atol=1e-5)
assert slope.shape == x.shape
assert 0.0 < slope[0] < 1e-4
assert 0.0 < slope[-1] < 1e-4

# %% [markdown]
# ## 2. How a notebook works
#
# Before a result that may surprise you, write down a guess.


# %%
def product_of_three(x):
    result = 1.0
    for _ in range(3):
        result = result * x
    return result


# %% [markdown]
# **Predict.** At $x = 2$, what is $y$, the result, and what is $\mathrm dy/\mathrm dx$? Put your two numbers in place of
# the dots, and run the cell. It runs with the dots, too.

# %%
exercises.at_two.guess([..., ...])  # two numbers: y, dy/dx

# %%
at = tf.Variable(2.0)

with tf.GradientTape() as tape:
    cube = product_of_three(at)

slope_at_two = tape.gradient(cube, at)
print("y     =", cube.numpy())
print("dy/dx =", slope_at_two.numpy())

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.at_two.reveal([cube, slope_at_two])
assert cube == 8.0
assert slope_at_two == 12.0

# %% [markdown]
# The loop multiplies by $x$ three times, so $y = x^3$, and $3x^2 = 12$. The tape wrote down three products. The variable `at` was watched unasked; section 1's tensor needed `tape.watch(x)`.

# %% [markdown]
# **The line that says ✓** comes from a folded cell, titled *Check*. This one puts your guess beside the result, and tests that $y$ is 8 and the slope 12. Click on its title to open it.
#
# Change the 2.0 of `at` to 3.0, run its cell, and run the check again. The check complains, with the page's 8 beside your 27. Your guess was for 2.0, so it may get a ✗ too. Nothing is broken: run the next cell.

# %% [markdown]
# **An exercise** answers at once. When you are stuck,
# `exercises.slope_at_five.hint()` in a new cell gives a hint, and a second call one more; `exercises.slope_at_five.solution()` shows a solution, and why it is one.
#
# ### Exercise: The slope somewhere else (1 min)
#
# What is $\mathrm dy/\mathrm dx$ of `product_of_three` at $x = 5$?

# %%
slope_at_five = ...  # a number

exercises.slope_at_five.check(slope_at_five)

# %% [markdown]
# **Work in a copy of your own.** On your machine, `make lab` (or `tapelab lab`) copies all notebooks, without outputs, to
# the folder `tapelab-work`, and opens this page there; the next time it leaves alone what you edited. In Colab, use *File > Save a copy in Drive*.
#
# **Your solved exercises are kept** in a small file in your data folder. In Colab it goes with the session.

# %% [markdown]
# ## 3. The map
#
# Which way to go?
#
# - **You have an hour:** [01](01_gradient_tape_basics.ipynb), its first two sections with a pencil.
# - **You have a day:** 01, then [02](02_training_with_a_tape.ipynb), [03](03_when_the_gradient_is_none.ipynb) and [04](04_when_the_gradient_is_wrong.ipynb): train a model, and see where gradients fail. **You may stop there.**
# - **You take a course:** all of them, in order.
# - **"My gradient is None":** [03](03_when_the_gradient_is_none.ipynb). It is NaN, infinite or zero: [04](04_when_the_gradient_is_wrong.ipynb).
# - **"I want another gradient than TensorFlow's":** [05](05_recording_control.ipynb), [06](06_stop_gradient.ipynb), [07](07_custom_gradients.ipynb).
# - **"I need a Hessian":** 01, [09](09_multiple_tapes.ipynb), [10](10_higher_order_gradients.ipynb), [11](11_jacobians.ipynb), [13](13_hessians_and_newton.ipynb); if it is too large to store, [14](14_without_the_matrix.ipynb).
# - **"What is it good for?":** any notebook of part IV, [error bars](19_fit_and_error_bars.ipynb) first.
# - **"I come from PyTorch or JAX":** the [phrasebook](../site/phrasebook.md) sets the three side by side. To look something up: the tape on [one page](../site/cheat_sheet.md), and [the traps](../site/traps.md).
# - **"I want to practise":** [first aid](28_first_aid.ipynb), small programs, not all of them broken; then [hard cases](29_hard_cases.ipynb).

# %% [markdown]
# Each box of the map is a notebook, each column a part. "Needs" says what to read before; each runs on its own. The dark ones are the notebook you want, the parameter `goal`, here `"13"`, and all that it rests on. An arrow leads from a notebook to one that needs it.

# %% jupyter={"source_hidden": true} tags=["catalogue", "figure"]
# @title Draw: what the map is made of
collection = {
    "00": ["I. The tape", "Start here", []],
    "01": ["I. The tape", "Gradient tape basics", ["00"]],
    "02": ["I. The tape", "Training with a tape", ["01"]],
    "03": ["I. The tape", "When the gradient is None", ["01"]],
    "04": ["I. The tape", "When the gradient is wrong", ["03"]],
    "05": ["I. The tape", "Recording control", ["01"]],
    "06": ["II. Gradients of your own making", "Stop gradient", ["05"]],
    "07": ["II. Gradients of your own making", "Custom gradients", ["01"]],
    "08": ["II. Gradients of your own making", "Clipping", ["02", "07"]],
    "09": ["II. Gradients of your own making", "Multiple tapes", ["01"]],
    "10": ["III. Second order and whole Jacobians", "Higher-order gradients", ["09"]],
    "11": ["III. Second order and whole Jacobians", "Jacobians", ["10"]],
    "12": ["III. Second order and whole Jacobians", "Forward mode", ["11"]],
    "13": ["III. Second order and whole Jacobians", "Hessians and Newton's method", ["11"]],
    "14": ["III. Second order and whole Jacobians", "Without the matrix", ["12", "13"]],
    "15": ["III. Second order and whole Jacobians", "Batch Jacobians and per-example gradients", ["11"]],
    "16": ["III. Second order and whole Jacobians", "What derivatives cost", ["12"]],
    "17": ["IV. What derivatives are for", "The gradient of the input", ["02"]],
    "18": ["IV. What derivatives are for", "A step of your own in Keras", ["08", "10"]],
    "19": ["IV. What derivatives are for", "Fit and error bars", ["13", "15"]],
    "20": ["IV. What derivatives are for", "The derivative of a solution", ["07", "14"]],
    "21": ["IV. What derivatives are for", "The edge of stability", ["14"]],
    "22": ["IV. What derivatives are for", "Influence functions", ["14", "15"]],
    "23": ["IV. What derivatives are for", "Differentiate the training", ["14"]],
    "24": ["IV. What derivatives are for", "An equation and no data", ["14", "19"]],
    "25": ["IV. What derivatives are for", "Control and the horizon of chaos", ["14", "15"]],
    "26": ["IV. What derivatives are for", "The gradient of an expectation", ["06"]],
    "27": ["IV. What derivatives are for", "A generative model from a trace", ["14", "15"]],
    "28": ["V. Clinic", "First aid", ["02", "03"]],
    "29": ["V. Clinic", "Hard cases", ["04", "10"]],
}


# %% alt="Diagram. The notebooks as boxes in one column for each part; under each title stand the numbers of the notebooks that it needs. The boxes that the goal rests on are filled dark blue and joined by arrows, each from a notebook to one that needs it; the others are white. Without another goal the dark ones are 00, 01, 09, 10, 11 and 13." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the map
def needed_for(number):
    """The notebooks that one rests on, and itself, in the order of the collection."""
    before = [number]
    for one in before:
        before.extend(need for need in collection[one][2] if need not in before)
    return sorted(before)


def direct(number):
    """The needs of a notebook that none of its other needs rests on."""
    needs = collection[number][2]
    return [need for need in needs if not any(need in needed_for(other) for other in needs if other != need)]


route = needed_for(goal)
columns = {}
for n, (part, _, _) in collection.items():
    columns.setdefault(part, []).append(n)
place = {n: (x, y) for x, column in enumerate(columns.values()) for y, n in enumerate(column)}
longest = max(map(len, columns.values()))
half, tall = 0.42, 0.37  # of a box: half its width, half its height

_, ax = plt.subplots(figsize=(2.4 * len(columns), 0.74 * longest + 1.1), layout="constrained")
for n, (_, title, needs) in collection.items():
    (column, row), dark = place[n], n in route
    colours = {"facecolor": plots.BLUE if dark else "white", "edgecolor": plots.BLUE, "zorder": 2}
    ax.add_patch(plt.Rectangle((column - half, row - tall), 2 * half, 2 * tall, **colours))
    words = textwrap.fill(f"{n}  {title}", 26) + (f"\nneeds {', '.join(needs)}" if needs else "")
    ax.text(column, row, words, ha="center", va="center", fontsize=9, color="white" if dark else "black")
    for need in direct(n) if dark else []:
        other, above = place[need]
        bend = 0.0
        if other != column:
            start, end = (other + half, above), (column - half - 0.02, row)
        elif row == above + 1:
            start, end = (column, above + tall), (column, row - tall - 0.02)
        else:
            start, end, bend = (column - half, above), (column - half, row), 0.25
        look = {"arrowstyle": "->", "connectionstyle": f"arc3,rad={bend}", "shrinkA": 0, "shrinkB": 0}
        look |= {"color": "black", "lw": 1.8}
        if column > other + 1:  # around the boxes between, in the gap next to the row where it starts
            gap = above - 0.5 if above else 0.5
            corners = [start, (other + 0.5, gap), (column - 0.5, gap)]
            ax.plot(*zip(*corners, strict=True), color="black", lw=1.8, zorder=1)
            start = corners[-1]
        ax.annotate("", end, start, arrowprops=look, zorder=3)
for column, part in enumerate(columns):
    ax.text(column, -0.6, textwrap.fill(part, 22), ha="center", fontsize=10, fontweight="bold")
ax.set(xlim=(-0.62, len(columns) - 0.5), ylim=(longest - 0.5, -1.2))
ax.set_title(f"Before {goal}, read {', '.join(route[:-1]) or 'nothing'}")
ax.axis("off")
plt.show()

# %% [markdown] tags=["catalogue"]
# <details open><summary><b>I. The tape</b></summary>
#
# | | Notebook | What it answers | Minutes: read + solve |
# |---|---|---|---|
# | 00 | [Start here](00_start_here.ipynb) | What is in this collection, and how does a notebook work? | 10 + 1 |
# | 01 | [Gradient tape basics](01_gradient_tape_basics.ipynb) | How does a tape turn a computation into a gradient? | 25 + 34 |
# | 02 | [Training with a tape](02_training_with_a_tape.ipynb) | What is in a training loop, and what does each line do? | 20 + 40 |
# | 03 | [When the gradient is None](03_when_the_gradient_is_none.ipynb) | Why is this gradient None, and what cures it? | 26 + 30 |
# | 04 | [When the gradient is wrong](04_when_the_gradient_is_wrong.ipynb) | Where does a gradient go wrong, and what cures it? | 24 + 26 |
# | 05 | [Recording control](05_recording_control.ipynb) | Can a tape leave out part of a computation, or start over? | 20 + 15 |
#
# </details>
#
# <details><summary><b>II. Gradients of your own making</b></summary>
#
# | | Notebook | What it answers | Minutes: read + solve |
# |---|---|---|---|
# | 06 | [Stop gradient](06_stop_gradient.ipynb) | How do you cut one path and keep the others? | 24 + 27 |
# | 07 | [Custom gradients](07_custom_gradients.ipynb) | When is TensorFlow's own derivative not the one you want? | 21 + 23 |
# | 08 | [Clipping](08_clipping.ipynb) | What does cutting a gradient buy, and what does it do to the step? | 25 + 23 |
# | 09 | [Multiple tapes](09_multiple_tapes.ipynb) | What do several tapes over one computation give you, and what do they cost? | 16 + 25 |
#
# </details>
#
# <details><summary><b>III. Second order and whole Jacobians</b></summary>
#
# | | Notebook | What it answers | Minutes: read + solve |
# |---|---|---|---|
# | 10 | [Higher-order gradients](10_higher_order_gradients.ipynb) | How do you differentiate a gradient? | 24 + 33 |
# | 11 | [Jacobians](11_jacobians.ipynb) | How does each output depend on each input, and what does it cost to know? | 26 + 34 |
# | 12 | [Forward mode](12_forward_mode.ipynb) | When is forward the better way to go? | 27 + 51 |
# | 13 | [Hessians and Newton's method](13_hessians_and_newton.ipynb) | How do second derivatives find a better step? | 26 + 32 |
# | 14 | [Without the matrix](14_without_the_matrix.ipynb) | How do you use a Hessian that is too large to store? | 26 + 31 |
# | 15 | [Batch Jacobians and per-example gradients](15_batch_jacobians.ipynb) | What belongs to each example alone, and how do you get it without computing the rest? | 24 + 31 |
# | 16 | [What derivatives cost](16_what_derivatives_cost.ipynb) | What does each derivative cost, and how does the cost grow? | 22 + 28 |
#
# </details>
#
# <details><summary><b>IV. What derivatives are for</b></summary>
#
# | | Notebook | What it answers | Minutes: read + solve |
# |---|---|---|---|
# | 17 | [The gradient of the input](17_gradient_of_the_input.ipynb) | Which pixels decide, and how little must they change? | 20 + 20 |
# | 18 | [A step of your own in Keras](18_step_of_your_own_in_keras.ipynb) | What else was in the method that you replaced? | 17 + 19 |
# | 19 | [Fit and error bars](19_fit_and_error_bars.ipynb) | A fit gives you four numbers. How sure are they? | 29 + 36 |
# | 20 | [The derivative of a solution](20_derivative_of_a_solution.ipynb) | An iteration searches for a solution. Must its derivative remember the search? | 23 + 27 |
# | 21 | [The edge of stability](21_edge_of_stability.ipynb) | What does training do where gradient descent ought to diverge? | 18 + 18 |
# | 22 | [Influence functions](22_influence_functions.ipynb) | What would change if one training example had not been there? | 29 + 44 |
# | 23 | [Differentiate the training](23_differentiate_the_training.ipynb) | What does a gradient through a training loop find? | 27 + 36 |
# | 24 | [An equation and no data](24_an_equation_and_no_data.ipynb) | Can a network be fitted to an equation alone, and how much of its error is the optimiser's? | 24 + 25 |
# | 25 | [Control and the horizon of chaos](25_control_and_the_horizon_of_chaos.ipynb) | What does a gradient through a simulation buy, and how far ahead does it mean anything? | 28 + 28 |
# | 26 | [The gradient of an expectation](26_gradient_of_an_expectation.ipynb) | How do you differentiate a mean with respect to a parameter that decides how the dice fall? | 28 + 31 |
# | 27 | [A generative model from a trace](27_generative_model_from_a_trace.ipynb) | Can samples alone teach a network the slope of a density that nobody knows? | 27 + 21 |
#
# </details>
#
# <details><summary><b>V. Clinic</b></summary>
#
# | | Notebook | What it answers | Minutes: read + solve |
# |---|---|---|---|
# | 28 | [First aid](28_first_aid.ipynb) | What is wrong with this small program, if anything, and which line needs the repair? | 19 + 70 |
# | 29 | [Hard cases](29_hard_cases.ipynb) | What is wrong with this gradient, and which repair mends it and does not only silence it? | 25 + 121 |
#
# </details>

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
for n, (_, _, needs) in collection.items():
    assert all(need < n for need in needs)  # every arrow leads onwards
    assert n == "00" or "00" in needed_for(n)  # and every way begins here
assert all(need in route for n in route for need in collection[n][2])
assert needed_for("03") == ["00", "01", "03"]
assert needed_for("13") == ["00", "01", "09", "10", "11", "13"]
assert "13" in needed_for("14")

# %% [markdown]
# ## 4. This session, and what is kept
#
# Your device and versions may differ.

# %% tags=["nbval-ignore-output"]
print(runtime.report())

# %% [markdown]
# `runtime.start(seed)`, at the end of the set-up cell, sets the global random seeds. Below it runs before the first two draws.

# %%
draws = []
for start_again in (True, True, False):
    if start_again:
        runtime.start(seed)
    draws.append(tf.random.normal((4,)).numpy())
    print("started again:" if start_again else "went on:      ", draws[-1].round(2))

# %% [markdown]
# The third draw differs: the seeds were not set again.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_array_equal(draws[0], draws[1])
assert np.abs(draws[2] - draws[1]).max() > 0.01

# %% [markdown]
# Your exercises, solved and still to do:

# %% tags=["nbval-ignore-output"]
sheets.show_progress()

# %% [markdown]
# ## 5. Check it independently
#
# Two other ways to the same slope: calculus, $\sigma' = \sigma\,(1 - \sigma)$, and a central difference in NumPy,
# $(\sigma(x + h) - \sigma(x - h)) / 2h$, in float64.


# %% tags=["nbval-ignore-output"]
def numpy_sigmoid(x):
    return 1 / (1 + np.exp(-x))


everywhere = numpy_sigmoid(x.numpy().astype(np.float64))
closed_form = everywhere * (1 - everywhere)
five = np.linspace(0, 2 * points, 5).astype(int)
differences = np.array([gradcheck.numerical_jacobian(numpy_sigmoid, x.numpy()[i]) for i in five])

distances = np.abs(slope - closed_form), np.abs(slope.numpy()[five] - differences)
print(f"largest distance from the closed form:         {distances[0].max():.0e}")
print(f"largest distance from the central differences: {distances[1].max():.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(slope, closed_form, rtol=0, atol=1e-6)
np.testing.assert_allclose(slope.numpy()[five], differences, rtol=0, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - `tape.gradient(y, x)` gave the sigmoid's slope at every point: $1/4$ at 0, nearly 0 at $\pm 10$ (section 1).
# - Commit to a prediction, run the cell, compare; work in a copy of your own (section 2).
# - The map shows what to read before a notebook (section 3).
# - `runtime.report()` says what a session runs on; `runtime.start(seed)` made a draw repeat (section 4).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | the set-up cell was not run | a `NameError` about `tf`, or another name from that cell | run it, then the cells below it |
# | a check fails after you changed a cell | ✗ or an `AssertionError`, with what the text says and what you found | read it, and run the next cell; to come back, undo the change, restart, run all |
#
# **Further reading**
#
# - TensorFlow Core guide, ["Introduction to gradients and automatic differentiation"](https://www.tensorflow.org/guide/autodiff).
# - TensorFlow Core guide, ["Advanced automatic differentiation"](https://www.tensorflow.org/guide/advanced_autodiff).
# - A. G. Baydin, B. A. Pearlmutter, A. A. Radul, J. M. Siskind (2018), ["Automatic differentiation in machine learning: a survey"](https://arxiv.org/abs/1502.05767).
#
# **Read next:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) opens the tape, builds one, and walks downhill with it.
#
# **You teach?** [For teachers](../site/for_teachers.md) has lessons of 50 minutes.
