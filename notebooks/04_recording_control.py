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
# # Recording control
#
# A `tf.GradientTape` writes down every operation that touches something it watches.
# **Can a tape skip part of a computation, or throw away what it wrote and start over?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/04_recording_control.ipynb)
#
# **Prerequisites:** none · **Time:** about 15 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - keep part of a computation off the tape with `stop_recording` (section 1),
# - say what the skipped part saves, and measure it (section 2),
# - start a tape over with `reset`, and say what that does to the tensors it watched (section 3).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import gradcheck, plots, runtime

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
layers = 40  # of the model whose metric is skipped in section 2

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. Stop recording
#
# Take $z = x^2 + y^2$ at $x = 2$, $y = 3$. Both partial derivatives exist: $\partial z/\partial x = 2x = 4$ and
# $\partial z/\partial y = 2y = 6$.
#
# `tape.stop_recording()` opens a block in which the tape writes nothing. Operations inside it still run.
#
# **Predict.** Below, `y * y` is computed inside such a block. What is $z$? What are the two gradients: numbers, or `None`?

# %%
x = tf.Variable(2.0)
y = tf.Variable(3.0)

with tf.GradientTape() as tape:
    x_squared = x * x
    with tape.stop_recording():
        y_squared = y * y
    z = x_squared + y_squared

dz_dx, dz_dy = tape.gradient(z, [x, y])
print("z     =", z.numpy())
print("dz/dx =", dz_dx.numpy())
print("dz/dy =", dz_dy)

# %% [markdown]
# The value of `z` is complete: the block changes what is *recorded*, not what is *computed*. To the tape, `y_squared` is a
# constant that came from nowhere, so no path leads from `z` back to `y`, and the gradient is `None`.

# %%
assert z.numpy() == 13.0
assert dz_dx.numpy() == 4.0
assert dz_dy is None
