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
# # When the gradient is None
#
# You ask a tape for a gradient and it answers `None`. There is no error and no hint.
# **Why is this gradient None, and what cures it?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/03_when_the_gradient_is_none.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Time:** about 50 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - see whether a tape watches a source, and make it watch (section 1),
# - keep a path on the tape: inside TensorFlow (section 2), in floating point (section 3), free of assignments (section 4), from the source up to the target (section 5),
# - tell an operation that has no gradient registered from one that has none on purpose (section 6), and choose between zeros and `None` (section 7),
# - recognise gradients that are not `None` and still wrong (section 8),
# - find the place where a path breaks, whatever the cause (section 9), and let the tape itself name the cause (section 10).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

from tapelab import gradcheck, plots, runtime
from tapelab.exercises.sheets import when_the_gradient_is_none as exercises
from tapelab.explain import ExplainTape, draw, explain

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
half = 20  # points on each side of zero in section 8's figure
epsilon = 0.1  # width of the rounded tip in the same figure
height = 3  # of the image in section 6, in pixels
width = 4

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. Variables and watching
#
# `tape.gradient(target, source)` walks back from the target along the operations that the tape recorded. `None` is its answer
# when no recorded path reaches the source. It is not a number, and it is not zero: it says *no path*, and nothing about the
# derivative.
#
# A tape records an operation only if one of its inputs is being *watched*, or was computed from something watched. So the first
# question is whether the path ever began.
#
# **Predict.** Below, $y = a^2 + b^2 + c^2 + d^2$ has four sources of different kinds. Every derivative exists:
# 4, 6, 8 and 10. Which of them does the tape return?

# %%
exercises.four_sources.guess([..., ..., ..., ...])  # in place of each `...`, a number or None

# %%
sources = {
    "trainable variable": tf.Variable(2.0),
    "non-trainable variable": tf.Variable(3.0, trainable=False),
    "tensor": tf.Variable(3.0) + 1.0,  # a variable plus a number is a tensor
    "constant": tf.constant(5.0),
}

with tf.GradientTape() as tape:
    y = tf.add_n([source**2 for source in sources.values()])

gradients = tape.gradient(y, sources)
for name, gradient in gradients.items():
    print(f"{name:22}  {gradient if gradient is None else gradient.numpy()}")

# %%
exercises.four_sources.reveal(list(gradients.values()))

# %%
assert gradients["trainable variable"].numpy() == 4.0
assert gradients["non-trainable variable"] is None
assert gradients["tensor"] is None
assert gradients["constant"] is None

# %% [markdown]
# The diagnosis takes one line: `tape.watched_variables()` lists the variables that the tape has met. Here it is one of the two.

# %%
watched = tape.watched_variables()
print("variables watched:", len(watched), "with the value", watched[0].numpy())

# %%
assert len(watched) == 1
assert watched[0] is sources["trainable variable"]

# %% [markdown]
# The cure is one for all three: `tape.watch`. For a variable that you mean to train, leave out `trainable=False` instead.

# %%
with tf.GradientTape() as tape:
    tape.watch(sources)
    y = tf.add_n([source**2 for source in sources.values()])

cured = tape.gradient(y, sources)
for name, gradient in cured.items():
    print(f"{name:22}  {gradient.numpy()}")

# %%
assert [gradient.numpy() for gradient in cured.values()] == [4.0, 6.0, 8.0, 10.0]

# %% [markdown]
# Two more ways of not being watched.
#
# **Predict.** In the first tape, `watch` comes after the source was used. The second tape was made with
# `watch_accessed_variables=False`. What does each return?

# %%
x = tf.constant(3.0)
with tf.GradientTape() as tape:
    y = x**2
    tape.watch(x)  # too late: x**2 is past
watched_late = tape.gradient(y, x)

v = tf.Variable(3.0)
with tf.GradientTape(watch_accessed_variables=False) as tape:
    y = v**2
not_accessed = tape.gradient(y, v)

print("watched too late:              ", watched_late)
print("watch_accessed_variables=False:", not_accessed)

# %% [markdown]
# The order matters: a tape records forwards, and never goes back for what it missed. And a tape that is told not to watch variables by
# itself watches none until you name them.

# %%
assert watched_late is None
assert not_accessed is None

# %%
with tf.GradientTape() as tape:
    tape.watch(x)  # first watch, then use
    y = x**2
early = tape.gradient(y, x)

with tf.GradientTape(watch_accessed_variables=False) as tape:
    tape.watch(v)
    y = v**2
named = tape.gradient(y, v)

print("watched before use:", early.numpy())
print("named by hand:     ", named.numpy())

# %%
assert early.numpy() == 6.0
assert named.numpy() == 6.0

# %% [markdown]
# ## 2. Computation outside TensorFlow
#
# A tape sees TensorFlow's operations. NumPy's it does not see: NumPy asks the variable for its values, computes, and returns an
# array. Back in TensorFlow, that array is a constant.
#
# **Predict.** $y = \sum_i \ln(1 + x_i)$, once with `np.log1p` and once with `tf.math.log1p`. The values agree. The gradient is
# $1 / (1 + x_i)$. What does each tape return?

# %%
x = tf.Variable([0.0, 1.0, 3.0])

with tf.GradientTape() as tape:
    by_numpy = tf.reduce_sum(np.log1p(x))
outside = tape.gradient(by_numpy, x)

with tf.GradientTape() as tape:
    by_tensorflow = tf.reduce_sum(tf.math.log1p(x))
inside = tape.gradient(by_tensorflow, x)

print("np.log1p:     ", outside)
print("tf.math.log1p:", inside.numpy())

# %% [markdown]
# The cure is TensorFlow's operation of the same name. Where there is none, write the gradient yourself with `tf.custom_gradient`
# (notebook [06](06_custom_gradients.ipynb)).

# %%
assert outside is None
np.testing.assert_allclose(by_numpy, by_tensorflow, rtol=1e-6)
np.testing.assert_allclose(inside, [1.0, 0.5, 0.25], rtol=1e-6)

# %% [markdown]
# `tf.numpy_function` puts Python code *into* a TensorFlow graph, and still the tape cannot look inside. `tf.py_function` can, as long as the
# Python code computes with TensorFlow.

# %%
with tf.GradientTape() as tape:
    y = tf.numpy_function(lambda array: np.sum(array**2), [x], tf.float32)
numpy_function = tape.gradient(y, x)

with tf.GradientTape() as tape:
    y = tf.py_function(lambda tensor: tf.reduce_sum(tensor**2), [x], tf.float32)
py_function = tape.gradient(y, x)

print("tf.numpy_function:", numpy_function)
print("tf.py_function:   ", py_function.numpy())

# %%
assert numpy_function is None
np.testing.assert_array_equal(py_function, [0.0, 2.0, 6.0])

# %% [markdown]
# Leaving TensorFlow can be quieter than that. `float(...)`, `.numpy()` and `.item()` leave it too.
#
# **Predict.** $y = x \cdot x$ at $x = 3$, where one factor is read out with `float`. `None`, 3 or 6?

# %%
exercises.read_out.guess(...)

# %%
x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    y = x * float(x)
half_of_it = tape.gradient(y, x)
print("y     =", y.numpy())
print("dy/dx =", half_of_it.numpy(), " (the true derivative is 2x = 6)")

# %%
exercises.read_out.reveal(half_of_it)

# %%
assert y.numpy() == 9.0
assert half_of_it.numpy() == 3.0

# %% [markdown]
# ## 3. Integers and strings
#
# A derivative is a limit, and integers have no small steps. Gradients exist for floating-point (and complex) tensors only.
# Nothing stops you from making an integer variable: `tf.Variable(3)` is one, for want of a decimal point.
#
# **Predict.** The variable below is trainable. The tape lists it as watched. Before it is squared, it is cast to float. What is the gradient?

# %%
count = tf.Variable(3)  # int32
with tf.GradientTape() as tape:
    y = tf.cast(count, tf.float32) ** 2
integer_source = tape.gradient(y, count)

print("dtype:  ", count.dtype.name)
print("watched:", len(tape.watched_variables()) == 1)
print("dy/dx = ", integer_source)

# %% [markdown]
# The cast is a cure only *before* the source. The tape cannot pass back through it, since the other side has no gradients.

# %%
assert count.dtype == tf.int32
assert len(tape.watched_variables()) == 1
assert integer_source is None

# %% [markdown]
# When you watch an integer *tensor* by hand, TensorFlow does say something. It logs a warning, which gets lost among
# others; the filter below catches it, so that it can be printed here.

# %%
heard = []


def keep(record):
    """Takes a log record for `heard`, and keeps it off the screen."""
    heard.append(record.getMessage())
    return False


tf.get_logger().addFilter(keep)
x = tf.constant(3)
with tf.GradientTape() as tape:
    tape.watch(x)
    y = x * x
integer_tensor = tape.gradient(y, x)
tf.get_logger().removeFilter(keep)

print("gradient:", integer_tensor)
for message in heard:
    print("log:     ", message.split(",")[0])

# %%
assert integer_tensor is None
assert all("must be floating" in message for message in heard)  # it is logged a few times in a session, then no more

# %% [markdown]
# An integer on the *way* does the same, between a float source and a float target.
#
# **Predict.** `x` is a float variable at 2.7. It is cast to an integer and back. What are `y` and its gradient?

# %%
exercises.through_an_integer.guess([..., ...])  # y, dy/dx

# %%
x = tf.Variable(2.7)
with tf.GradientTape() as tape:
    whole = tf.cast(x, tf.int32)
    y = tf.cast(whole, tf.float32) ** 2
through_integer = tape.gradient(y, x)
print("y     =", y.numpy())
print("dy/dx =", through_integer)

# %%
exercises.through_an_integer.reveal([y, through_integer])

# %%
assert y.numpy() == 4.0
assert through_integer is None

# %% [markdown]
# Strings have no derivative either, as a source or on the way.

# %%
text = tf.Variable("3.0")
with tf.GradientTape() as tape:
    y = tf.strings.to_number(text) ** 2
string_source = tape.gradient(y, text)

x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    y = tf.strings.to_number(tf.strings.as_string(x)) ** 2
through_string = tape.gradient(y, x)

print("string source:   ", string_source)
print("through a string:", through_string)

# %%
assert string_source is None
assert through_string is None

# %% [markdown]
# The cure: convert once, *before* the variable is made, and stay in floating point from there to the target. What must be an integer or a
# text is kept beside the path, not on it. (Where a rounded value must be trained, see the straight-through estimator in notebook
# [05](05_stop_gradient.ipynb).)

# %%
as_float = tf.Variable(tf.strings.to_number("3.0"))  # from text to float, and only then a variable
with tf.GradientTape() as tape:
    y = as_float**2
    label = tf.strings.as_string(y)  # beside the path
float_source = tape.gradient(y, as_float)
print("dtype:", as_float.dtype.name, " gradient:", float_source.numpy())

# %%
assert as_float.dtype == tf.float32
assert float_source.numpy() == 6.0

# %% [markdown]
# ## 4. State
#
# A variable has state, and two things go wrong with it. The first is a Python name that stops being a variable.
#
# **Predict.** Two epochs of the same code. What is the gradient in each?

# %%
x = tf.Variable(2.0)
rebound = []
for epoch in range(2):
    with tf.GradientTape() as tape:
        y = x**2
    rebound.append(tape.gradient(y, x))
    print(f"epoch {epoch}: variable: {isinstance(x, tf.Variable)!s:5}  gradient: {rebound[-1]}")
    x = x + 1.0  # meant as an update

# %% [markdown]
# `x + 1.0` is a new tensor, and the assignment gives it the old name. The first epoch works; from the second on, `x` is a plain
# tensor that nobody watches. The cure is to change the variable's value and keep the variable: `assign_add`.

# %%
assert rebound[0].numpy() == 4.0
assert rebound[1] is None
assert not isinstance(x, tf.Variable)

# %%
x = tf.Variable(2.0)
kept = []
for epoch in range(2):
    with tf.GradientTape() as tape:
        y = x**2
    kept.append(tape.gradient(y, x).numpy())
    print(f"epoch {epoch}: variable: {isinstance(x, tf.Variable)!s:5}  gradient: {kept[-1]}")
    x.assign_add(1.0)

# %%
assert kept == [4.0, 6.0]
assert isinstance(x, tf.Variable)

# %% [markdown]
# The second thing is an assignment *inside* the tape. A tape reads a variable's value as it is; how the value got there is not
# recorded.
#
# **Predict.** `total` starts at 0, `step` (3) is added to it, and $y = \text{total}^2 = 9$. Is $\partial y / \partial\,\text{step}$ 6 or `None`?
# And $\partial y / \partial\,\text{total}$?

# %%
exercises.assigned.guess([..., ...])  # dy/dstep, dy/dtotal

# %%
step = tf.Variable(3.0)
total = tf.Variable(0.0)
with tf.GradientTape() as tape:
    total.assign_add(step)
    y = total**2
dy_dstep, dy_dtotal = tape.gradient(y, [step, total])
print("y         =", y.numpy())
print("dy/dstep  =", dy_dstep)
print("dy/dtotal =", dy_dtotal.numpy())

# %%
exercises.assigned.reveal([dy_dstep, dy_dtotal])

# %%
assert y.numpy() == 9.0
assert dy_dstep is None
assert dy_dtotal.numpy() == 6.0

# %% [markdown]
# The cure: add with an operation inside the tape, and assign outside, when the gradient is taken.

# %%
total.assign(0.0)
with tf.GradientTape() as tape:
    new_total = total + step
    y = new_total**2
dy_dstep = tape.gradient(y, step)
total.assign(new_total)
print("dy/dstep =", dy_dstep.numpy(), " total =", total.numpy())

# %%
assert dy_dstep.numpy() == 6.0
assert total.numpy() == 3.0

# %% [markdown]
# ### Exercise: A memory that the tape can follow (5 min)
#
# `average` and `x` are variables of one shape. Each call moves the average a little towards `x`: the new average is `0.9 * average + 0.1 * x`. The call happens inside a tape. Return the
# loss, the sum of the squares of the *new* average. Afterwards the variable `average` must hold the new average, and the gradient of the loss with respect to `x` must exist. You may
# change any line.


# %%
def loss_with_memory(average, x):
    average.assign(0.9 * average + 0.1 * x)
    return ...  # the sum of the squares of the new average


exercises.memory.check(loss_with_memory)

# %% [markdown]
# ## 5. Target and tape out of step
#
# Now nothing is wrong with the source or the operations. The target is the wrong one, or comes at the wrong time.
#
# **Predict.** First: two variables, two losses, and one slip of the pen, the gradient of `loss_b` with respect to `a`. Second: the right pair,
# but the target is computed *after* the `with` block. What does each give?

# %%
a = tf.Variable(2.0)
b = tf.Variable(5.0)
with tf.GradientTape(persistent=True) as tape:
    loss_a = a**2
    loss_b = b**2
unrelated = tape.gradient(loss_b, a)

with tf.GradientTape() as closed_tape:
    squared = a**2
late_target = 10.0 * squared  # the tape is closed
after_closing = closed_tape.gradient(late_target, a)

print("unrelated target:", unrelated)
print("computed late:   ", after_closing)

# %% [markdown]
# Both questions have the honest answer "no path". In the second case the tape holds `squared` and has never heard of the product.

# %%
assert late_target.numpy() == 40.0
assert unrelated is None
assert after_closing is None

# %%
related = tape.gradient(loss_a, a)
del tape

with tf.GradientTape() as tape:
    target = 10.0 * a**2  # all of it inside
in_time = tape.gradient(target, a)

print("related target:  ", related.numpy())
print("computed in time:", in_time.numpy())

# %%
assert related.numpy() == 4.0
assert in_time.numpy() == 40.0

# %% [markdown]
# ## 6. No gradient registered
#
# TensorFlow keeps a registry: for each type of operation, how to differentiate it. An entry can say "by this function", or "not
# differentiable". An operation can also be missing altogether.
#
# **Predict.** Rounding is registered as not differentiable. The contrast adjustment of an image is not registered at all. One of the two gives
# `None`. What does the other do?

# %%
x = tf.Variable([0.3, 0.7, 2.4])
with tf.GradientTape() as tape:
    y = tf.reduce_sum(tf.round(x) ** 2)
rounded = tape.gradient(y, x)
print("tf.round:", rounded)

# %%
image = tf.Variable(tf.random.uniform((height, width, 1)))
factor = 2.0
with tf.GradientTape() as tape:
    y = tf.reduce_sum(tf.image.adjust_contrast(image, factor) ** 2)

complaint = "no error"
try:
    tape.gradient(y, image)
except LookupError as error:
    complaint = f"LookupError about {str(error).rpartition(':')[2].strip()}"
print("tf.image.adjust_contrast:", complaint)

# %% [markdown]
# *Not differentiable* is a decision. A staircase has derivative zero between its steps and none on them, which is of no use to
# training, so TensorFlow passes nothing back, without a word. *Not registered* is a gap: the operation has a good derivative and nobody
# has written it. That is an error, raised when you ask for the gradient, not when the operation runs.

# %%
assert rounded is None
assert complaint.startswith("LookupError")
assert "AdjustContrast" in complaint

# %% [markdown]
# Other operations of the first kind: floors, comparisons, positions.

# %%
staircases = {
    "tf.floor": tf.floor,
    "tf.math.ceil": tf.math.ceil,
    "x > 0.5": lambda x: tf.cast(x > 0.5, tf.float32),
    "tf.argmax": lambda x: tf.cast(tf.argmax(x), tf.float32),
}
not_differentiable = {}
for name, operation in staircases.items():
    with tf.GradientTape() as tape:
        y = tf.reduce_sum(operation(x))
    not_differentiable[name] = tape.gradient(y, x)
    print(f"{name:12}  {not_differentiable[name]}")

# %%
assert all(gradient is None for gradient in not_differentiable.values())

# %% [markdown]
# To cure the gap, write the operation with others that are registered. Contrast is the distance from the image's mean, stretched:
# $m + f\,(p - m)$ for each pixel $p$. (Or register a gradient: notebook [06](06_custom_gradients.ipynb).)


# %%
def contrast(image, factor):
    """The image, shape (height, width, channels), with each channel's distances from its mean times `factor`."""
    mean = tf.reduce_mean(image, axis=(0, 1), keepdims=True)
    return mean + factor * (image - mean)


with tf.GradientTape() as tape:
    y = tf.reduce_sum(contrast(image, factor) ** 2)
contrast_gradient = tape.gradient(y, image)

difference = tf.reduce_max(tf.abs(contrast(image, factor) - tf.image.adjust_contrast(image, factor)))
print("same image as tf.image.adjust_contrast:", difference.numpy() < 1e-5)
print("gradient's shape:", contrast_gradient.shape)

# %%
assert difference.numpy() < 1e-5
assert contrast_gradient.shape == image.shape

# %% [markdown]
# ### Exercise: A count that can be trained, two ways (10 min)
#
# `hard` below counts the entries of `x` that lie above a threshold. Its gradient is `None`. Make the `None` go away in two ways, and return two scalars:
#
# - `smooth`, a stand-in: for each entry a *sigmoid* in place of the step from 0 to 1. Its middle lies at the threshold, and its argument is the distance from there divided by `width`.
# - `straight`, which has the **value** of `hard` and the **gradient** of `smooth`. Build it from these two; `tf.stop_gradient(t)` has the value of `t`, and is a constant to the tape.


# %%
def two_counts(x, threshold, width):
    hard = tf.reduce_sum(tf.cast(x > threshold, x.dtype))
    smooth = ...  # a stand-in for hard
    straight = ...  # the value of hard, the gradient of smooth
    return smooth, straight


exercises.two_counts.check(two_counts)

# %% [markdown]
# ## 7. Zeros instead of None
#
# `None` cannot be added or multiplied. When a loop over many variables needs numbers everywhere, ask for them:
# `unconnected_gradients="zero"`.
#
# **Predict.** $z = b^2$ does not depend on $a$, a vector of three. What does each of the three lines below give, and in which shape?

# %%
a = tf.Variable([1.0, 2.0, 3.0])
b = tf.Variable(5.0)
with tf.GradientTape(persistent=True) as tape:
    z = b**2
by_default = tape.gradient(z, a)
as_zeros = tape.gradient(z, a, unconnected_gradients="zero")
jacobian = tape.jacobian(z, a, unconnected_gradients="zero")
del tape

print("by default:  ", by_default)
print("with zeros:  ", np.asarray(as_zeros))
print("the Jacobian:", np.asarray(jacobian))

# %% [markdown]
# Zeros come in the source's shape. Here they are also the truth: $z$ does not depend on $a$.

# %%
assert by_default is None
np.testing.assert_array_equal(as_zeros, [0.0, 0.0, 0.0])
np.testing.assert_array_equal(jacobian, [0.0, 0.0, 0.0])

# %% [markdown]
# They are not always the truth.
#
# **Predict.** Take section 5's mistake: $x^2$ at $x = 3$, squared after the tape has closed. What does the same option return now?

# %%
exercises.hidden_mistake.guess(...)

# %%
x = tf.Variable(3.0)
with tf.GradientTape() as tape:
    shifted = x + 0.0
y = shifted**2  # too late
hidden_mistake = tape.gradient(y, x, unconnected_gradients="zero")
print("dy/dx =", hidden_mistake.numpy(), " (the true derivative is 2x = 6)")

# %%
exercises.hidden_mistake.reveal(hidden_mistake)

# %%
assert hidden_mistake.numpy() == 0.0

# %% [markdown]
# ## 8. Not None, and still wrong
#
# Four relatives of `None` give a number, or something like a number. Nothing stops; training goes wrong instead.
#
# **Predict.** `tf.sign` is as much a staircase as `tf.round`. Does it also give `None`?

# %%
x = tf.Variable([-0.5, 0.2, 3.0])
with tf.GradientTape(persistent=True) as tape:
    hard = tf.reduce_sum(tf.sign(x))
    soft = tf.reduce_sum(tf.tanh(x))
sign_gradient = tape.gradient(hard, x)
tanh_gradient = tape.gradient(soft, x)
del tape

print("tf.sign:", sign_gradient.numpy())
print("tf.tanh positive everywhere:", bool(tf.reduce_all(tanh_gradient > 0)))

# %% [markdown]
# `tf.sign` is the odd one out: it has a registered gradient, and that is zero everywhere. The derivative is right and of no use: nothing that
# feeds the sign will ever train. The cure is a smooth stand-in, such as `tf.tanh`, or a straight-through estimator.

# %%
np.testing.assert_array_equal(sign_gradient, [0.0, 0.0, 0.0])
assert (tanh_gradient.numpy() > 0).all()

# %% [markdown]
# Next, a function with two outputs. Each depends on one input: $p = a^2$, $q = b^2$.
#
# **Predict.** $\partial p / \partial b$ is asked of the same code twice: run eagerly, and as a `tf.function`. Are the answers equal?

# %%
exercises.compiled_twin.guess([..., ...])  # eager, compiled


# %%
def squares(a, b):
    return a**2, b**2


def dp_db(function):
    """The gradient of the first output with respect to the second input."""
    a, b = tf.Variable(3.0), tf.Variable(4.0)
    with tf.GradientTape() as tape:
        p, _ = function(a, b)
    return tape.gradient(p, b)


compiled = tf.function(squares)
print("eager:      ", dp_db(squares))
print("tf.function:", dp_db(compiled).numpy())

# %%
exercises.compiled_twin.reveal([dp_db(squares), dp_db(compiled)])

# %% [markdown]
# So in a compiled function with several outputs, a missing path does not show as `None`. With
# `tf.config.run_functions_eagerly(True)` the function's operations are recorded one by one, and the `None` is back.

# %%
tf.config.run_functions_eagerly(True)
unrolled = dp_db(compiled)
tf.config.run_functions_eagerly(False)
print("tf.function, run eagerly:", unrolled)

# %%
assert dp_db(squares) is None
assert dp_db(compiled).numpy() == 0.0
assert unrolled is None

# %% [markdown]
# Third, the Euclidean norm. Away from zero its gradient is the unit vector $x / \lVert x \rVert$; at zero there is none.
#
# **Predict.** The rows below are the vectors (3, 4) and (0, 0). What is the gradient of the sum of their norms?

# %%
rows = tf.Variable([[3.0, 4.0], [0.0, 0.0]])
with tf.GradientTape() as tape:
    y = tf.reduce_sum(tf.norm(rows, axis=1))
norm_gradient = tape.gradient(y, rows)
print("norms:    ", tf.norm(rows, axis=1).numpy())
print("gradient 0 is (0.6, 0.8):", np.allclose(norm_gradient[0], [0.6, 0.8]))
print("gradient 1:", norm_gradient[1].numpy())

# %% [markdown]
# The norm is $\sqrt{s}$ with $s = \sum_i x_i^2$. At zero, the root's derivative $1 / (2\sqrt{s})$ is infinite, the squares' derivative $2x_i$
# is 0, and their product is NaN. One such row is enough: the next update spreads the NaN over every weight that it meets.
#
# One cure gives the zero vector at zero. Note where the choice is made: *before* the root, so that no infinity arises. Another cure rounds
# the tip off: $\sqrt{s + \varepsilon^2}$.


# %%
def safe_norm(x):
    """The norms of the rows of x, shape (rows,); their gradient at a zero row is zero."""
    squared = tf.reduce_sum(x**2, axis=1)
    positive = squared > 0
    return tf.where(positive, tf.sqrt(tf.where(positive, squared, 1.0)), 0.0)


def smooth_norm(x):
    """The norms of the rows of x, shape (rows,), with the tip at zero rounded off."""
    return tf.sqrt(tf.reduce_sum(x**2, axis=1) + epsilon**2)


with tf.GradientTape() as tape:
    y = tf.reduce_sum(safe_norm(rows))
safe_gradient = tape.gradient(y, rows)
print("gradient 0 is (0.6, 0.8):", np.allclose(safe_gradient[0], [0.6, 0.8]))
print("gradient 1:", safe_gradient[1].numpy())

# %%
np.testing.assert_allclose(norm_gradient[0], [0.6, 0.8], rtol=1e-6)
assert np.isnan(norm_gradient[1]).all()
np.testing.assert_allclose(safe_gradient, [[0.6, 0.8], [0.0, 0.0]], rtol=1e-6)

# %% [markdown]
# Now along a line through zero: the vectors $(t, 0)$, and the gradient's first component.

# %%
t = np.arange(-half, half + 1, dtype=np.float32) / half
line = tf.constant(np.stack([t, np.zeros_like(t)], axis=1))

slopes = {}
for name, norm in {"tf.norm": lambda x: tf.norm(x, axis=1), "safe": safe_norm, "smooth": smooth_norm}.items():
    with tf.GradientTape() as tape:
        tape.watch(line)
        y = tf.reduce_sum(norm(line))
    slopes[name] = tape.gradient(y, line)[:, 0].numpy()

undefined = np.isnan(slopes["tf.norm"])
print("points where tf.norm's gradient is NaN:", t[undefined])

# %% alt="Three gradients over t from -1 to 1. That of tf.norm is -1 left of zero and 1 right of it, with a dotted vertical line at zero, where it is NaN. The safe norm has the value 0 there. The smooth norm's gradient rises from -1 to 1 in an S-shaped curve."
_, ax = plt.subplots(figsize=(6.5, 4), layout="constrained")
ax.axhline(0, color=plots.GREY, linewidth=0.8)
ax.plot(t, slopes["smooth"], "-", color=plots.GREEN, label="smooth: root of s + ε²")
ax.plot(t, slopes["tf.norm"], "o", markersize=4, color=plots.BLUE, label="tf.norm")
ax.plot(
    t[undefined],
    slopes["safe"][undefined],
    "s",
    markersize=9,
    fillstyle="none",
    color=plots.ORANGE,
    label="safe: 0 at zero",
)
ax.axvline(t[undefined][0], linestyle=":", color=plots.RED, label="tf.norm: NaN")
ax.set(title="The gradient of the norm of (t, 0)", xlabel="t", ylabel="first component of the gradient")
ax.legend(loc="lower right")
plt.show()

# %%
assert undefined.sum() == 1
assert t[undefined][0] == 0.0
np.testing.assert_allclose(slopes["tf.norm"][~undefined], np.sign(t[~undefined]), rtol=1e-6)
assert slopes["safe"][undefined][0] == 0.0
np.testing.assert_allclose(slopes["smooth"], t / np.sqrt(t**2 + epsilon**2), rtol=1e-5, atol=1e-6)

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
# Last, a table of which only some rows are used, as in an embedding.
#
# **Predict.** `table` has shape (4, 2). Rows 0, 2 and 0 are gathered, squared and summed. What is the shape of the gradient's `values`? What is its
# norm?

# %%
table = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]])
with tf.GradientTape() as tape:
    y = tf.reduce_sum(tf.gather(table, [0, 2, 0]) ** 2)
sparse = tape.gradient(y, table)

print("type:   ", type(sparse).__name__)
print("indices:", sparse.indices.numpy())
print("values: ", sparse.values.numpy().tolist())

# %% [markdown]
# `IndexedSlices` stores one slice for each *use* of a row, to spare the rows that were not used. Optimisers understand it. But row 0 was used twice,
# and its two slices have not been added up. Whatever works on `values` gets a different number from the gradient's, and the norm that
# gradient clipping uses is one such.

# %%
dense = tf.convert_to_tensor(sparse)
print("as a tensor:", dense.numpy().tolist())
print(f"norm by tf.linalg.global_norm: {tf.linalg.global_norm([sparse]).numpy():.2f}")
print(f"norm of the gradient:          {tf.norm(dense).numpy():.2f}")

# %%
assert isinstance(sparse, tf.IndexedSlices)
assert sparse.values.shape == (3, 2)
np.testing.assert_array_equal(dense, [[4.0, 8.0], [0.0, 0.0], [10.0, 12.0], [0.0, 0.0]])
np.testing.assert_allclose(tf.norm(dense), 18.0, rtol=1e-6)
np.testing.assert_allclose(tf.linalg.global_norm([sparse]), np.sqrt(284.0), rtol=1e-6)  # 16.85, too small

# %% [markdown]
# The cure, where the table is small enough, is `tf.convert_to_tensor`: it adds up the slices and fills in the zeros.

# %% [markdown]
# ## 9. Find the break
#
# In a real model the path is long, and `None` does not say where it ends. You can ask the tape about every tensor on the way. Walking back
# from the target, the first `None` comes right after the break.
#
# The path below has five steps. One of them leaves TensorFlow.
#
# **Predict.** For which of the six tensors, from `sum` back to `x`, does the gradient of the target exist?

# %%
exercises.blind_walk.guess(...)  # for how many of the six

# %%
x = tf.Variable([0.3, 0.7])
path = {
    "tanh": tf.tanh,
    "times 4": lambda h: 4.0 * h,
    "exp": lambda h: tf.constant(np.exp(h)),
    "square": tf.square,
    "sum": tf.reduce_sum,
}


def walk(path, watch_each):
    """For x and each step's result: does the gradient of the last result with respect to it exist?"""
    with tf.GradientTape(persistent=True) as tape:
        value = x
        values = {"x": x}
        for name, step in path.items():
            value = step(value)
            if watch_each:
                tape.watch(value)
            values[name] = value
    return {name: tape.gradient(value, v) is not None for name, v in values.items()}


blind = walk(path, watch_each=False)
print("exists:", [name for name in blind if blind[name]])

# %%
exercises.blind_walk.reveal(sum(blind.values()))

# %% [markdown]
# The trick is to *watch each intermediate tensor*. Then the tape records from there on, whatever happened before.

# %%
found = walk(path, watch_each=True)
print("exists:", [name for name in found if found[name]])
print("lost:  ", [name for name in found if not found[name]])

# %% [markdown]
# The gradient exists back to the result of `exp`, and not for that step's input, `times 4`. The step between the two is the culprit. With `tf.exp` in
# its place, the path is whole.

# %%
repaired = walk(path | {"exp": tf.exp}, watch_each=False)
print("lost after the repair:", [name for name in repaired if not repaired[name]])

# %%
assert [name for name in blind if blind[name]] == ["sum"]
assert [name for name in found if not found[name]] == ["x", "tanh", "times 4"]
assert all(repaired.values())

# %% alt="The path from x to sum as a chain of six boxes, drawn three times. With np.exp and nothing watched, only the last box has a gradient. With every tensor watched, the last three have one, and the break shows between times 4 and exp. With tf.exp all six have one."
_, ax = plt.subplots(figsize=(8, 3.4), layout="constrained")
runs = {"np.exp": blind, "np.exp,\nall watched": found, "tf.exp": repaired}
for row, result in enumerate(runs.values()):
    for column, (name, exists) in enumerate(result.items()):
        box = {
            "boxstyle": "round",
            "facecolor": plots.GREEN if exists else "white",
            "edgecolor": plots.GREEN if exists else plots.RED,
        }
        ax.text(
            column,
            row,
            name if exists else f"{name}\nNone",
            ha="center",
            va="center",
            color="white" if exists else plots.RED,
            bbox=box,
        )
    whole = list(result.values())
    for column in range(len(result) - 1):
        colour = plots.GREEN if whole[column] else plots.RED
        line_style = "-" if whole[column] else ":"
        ax.plot([column + 0.32, column + 0.66], [row, row], line_style, color=colour, linewidth=2)
ax.set(
    title="Does the gradient of the sum reach this tensor?",
    xlabel="step of the path (the gradient runs from right to left)",
)
ax.set_ylabel("the third step is")
ax.set_yticks(range(len(runs)), labels=list(runs))
ax.set_xticks(range(len(found)))
ax.set(xlim=(-0.5, 5.5), ylim=(2.6, -0.6))
plt.show()

# %% [markdown]
# With the place known, this table leads from what you see to what to do.
#
# | What you see | Look for | Cure | Section |
# |---|---|---|---|
# | `None`; `watched_variables()` lacks the source | a non-trainable variable, a tensor or a constant; `watch` after use; `watch_accessed_variables=False` | `tape.watch(source)` before its first use; `trainable=True` | 1 |
# | `None`; lost at a step that TensorFlow did not compute | NumPy, `float()`, `.numpy()`, `tf.numpy_function` | TensorFlow's own operation; `tf.custom_gradient` | 2 |
# | `None`; the source's dtype, or one on the way, is not floating | integers (a missing decimal point), strings, casts | floating point from source to target | 3 |
# | a gradient in the first epoch, `None` in the second | `x = x + ...`: the name now holds a tensor | `x.assign_add(...)` | 4 |
# | `None` for what was assigned into a variable | `assign`, `assign_add` inside the tape | add inside, assign outside | 4 |
# | `None` for every step; the source is watched | a target that is unrelated, or computed after the block | the right pair; all of the target inside the block | 5 |
# | `None`; lost at a rounding, a comparison or an `argmax` | an operation that is not differentiable on purpose | a smooth stand-in; a straight-through estimator | 6 |
# | `LookupError` | an operation whose gradient nobody has registered | other operations; a gradient of your own | 6 |
# | zeros, and you asked for `unconnected_gradients="zero"` | any of the causes above | look at it once without the option | 7 |
# | zeros, and you did not ask | `tf.sign`; a `tf.function` with several outputs | a smooth stand-in; `run_functions_eagerly(True)` to look | 8 |
# | NaN | a norm or a root at zero | choose before the root; add $\varepsilon^2$ under it | 8 |
# | a gradient without `.numpy()`, a clipping norm that is off | `IndexedSlices` from `gather` | `tf.convert_to_tensor` | 8 |
# | a number that is too small | one of several paths is cut | the walk of this section, on each path | 2 |

# %% [markdown]
# ### Exercise: Across the gap (15 min)
#
# Sometimes the step that leaves TensorFlow has to stay: a simulation, say, for which there is no operation. `simulate` is such a step, a NumPy function applied to each entry. `slope` is its
# derivative, also a NumPy function applied to each entry, and takes the same input as `simulate`. In the cell below the gradient of `loss` with respect to `x`, a tensor, is `None`. Return it all the same, a tensor in the shape of `x`.
# You may add lines, inside the block as well.


# %%
def gradient_across(x, simulate, slope):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        h = tf.tanh(x)
        s = tf.constant(simulate(h))  # leaves TensorFlow
        loss = tf.reduce_sum(s**2)
    return ...  # the gradient of loss with respect to x


exercises.bridge.check(gradient_across)

# %% [markdown]
# ## 10. Ask the tape
#
# By hand, you watch every tensor and walk back. `tapelab.explain` has a tape that does this for you. Three steps: write `ExplainTape()` in
# place of `tf.GradientTape()`, run the code again, and call `explain(tape, target, source)`. The gradients are those of a plain
# tape; besides, this one keeps a log of every operation that it saw. (That costs memory and some time: it is for finding a mistake, not
# for training.)
#
# The answer has a *code* for the cause, one sentence, the line of your code where the path was cut, and a fix.
#
# **Predict.** The loss below has one mistake. Which line is it, and from which of the sections above is the cause?

# %% tags=["nbval-ignore-output"]
x = tf.constant([0.3, 0.7])
with ExplainTape() as tape:
    scaled = 4.0 * x
    tape.watch(x)
    y = tf.reduce_sum(scaled**2)

answer = explain(tape, y, x)
print(answer)

# %% [markdown]
# Section 1, and line 3: the first operation that used `x`, which must come after `watch`. Line numbers count from the top of the
# cell. The parts can be had one by one, too.

# %%
print("code:    ", answer.code)
print("sentence:", answer.sentence)
print("line:    ", answer.line.number, "|", answer.line.text)
print("fix:     ", answer.fix)

# %%
assert tape.gradient(y, x) is None
assert answer.exists is False
assert answer.code == "watched_late"
assert answer.certain
assert answer.line.number == 3
assert answer.line.text == "scaled = 4.0 * x"

# %% [markdown]
# Apply the fix, and run it again. An explanation counts as true where the gradient exists.

# %%
with ExplainTape() as tape:
    tape.watch(x)
    scaled = 4.0 * x
    y = tf.reduce_sum(scaled**2)

repaired_answer = explain(tape, y, x)
print(repaired_answer)
repaired_gradient = tape.gradient(y, x)
print("gradient is 32x:", np.allclose(repaired_gradient, 32.0 * x))

# %%
assert repaired_answer
assert repaired_answer.code == "exists"
np.testing.assert_allclose(repaired_gradient, 32.0 * x, rtol=1e-6)

# %% [markdown]
# Now the causes of sections 1 to 6, one after the other. First those at the source (sections 1 and 3): what is asked about is a list, and
# the answers come by name.
#
# **Predict.** Which sentence belongs to which of the four?

# %%
trained = tf.Variable(2.0, name="trained")
frozen = tf.Variable(3.0, name="frozen", trainable=False)
fixed = tf.constant(5.0)
count = tf.Variable(3, name="count")

with ExplainTape() as tape:
    y = trained**2 + frozen**2 + fixed**2 + tf.cast(count, tf.float32)
at_source = explain(tape, y, [trained, frozen, fixed, count])
for name, one in at_source.items():
    print(f"{name:8} {one.code:14} {one.sentence}")

# %%
assert [one.code for one in at_source.values()] == ["exists", "not_trainable", "not_watched", "source_dtype"]
assert list(at_source) == ["trained", "frozen", "fixed", "count"]
assert len(at_source.missing()) == 3

# %%
v = tf.Variable(3.0)
with ExplainTape(watch_accessed_variables=False) as tape:
    y = v**2
switched_off = explain(tape, y, v)
print(f"{switched_off.code}: {switched_off.sentence}")

# %%
assert switched_off.code == "watching_off"

# %% [markdown]
# Then those on the way: NumPy (section 2), an integer (section 3), an assignment (section 4), and rounding and contrast (section 6). The
# name of an operation in a sentence is TensorFlow's own, such as `AssignAddVariableOp` for `assign_add`.
#
# **Predict.** All five are `None` or an error. About one of them the tape cannot be certain. Which one?

# %%
x = tf.Variable([0.3, 0.7, 2.4])
total = tf.Variable([0.0, 0.0, 0.0])

with ExplainTape() as tape:
    by_numpy = tf.reduce_sum(np.log1p(x))
    by_integer = tf.cast(tf.cast(x, tf.int32), tf.float32)
    total.assign_add(x)
    by_state = 2.0 * total
    by_rounding = 2.0 * tf.round(x)
    by_contrast = tf.image.adjust_contrast(tf.reshape(x, (3, 1, 1)), 2.0)

on_the_way = {
    "by_numpy": explain(tape, by_numpy, x),
    "by_integer": explain(tape, by_integer, x),
    "by_state": explain(tape, by_state, x),
    "by_rounding": explain(tape, by_rounding, x),
    "by_contrast": explain(tape, by_contrast, x),
}
for name, one in on_the_way.items():
    print(
        f"{name:11} line {one.line.number}, {'certain' if one.certain else 'probable'}, {one.code}\n    {one.sentence}"
    )

# %% [markdown]
# TensorFlow does not see what NumPy does with an array. The tape saw values of `x` leave, and a new constant come in later. That the one was made
# from the other is the likely story, and no more: the answer is marked as *probable*. Look at the line that it names before you
# change anything.

# %%
expected = ["left_tensorflow", "cast_to_integer", "state", "not_differentiable", "no_gradient_registered"]
assert [one.code for one in on_the_way.values()] == expected
assert [one.line.number for one in on_the_way.values()] == [5, 6, 7, 9, 10]
assert [name for name, one in on_the_way.items() if not one.certain] == ["by_numpy"]
assert not any(one.exists for one in on_the_way.values())

# %% [markdown]
# Last, the causes that lie in the order of things: a name that holds something else (section 4), and a target that is unrelated or late
# (section 5).
#
# **Predict.** Three codes. For the first, which line will be named: the one that squares, or the one that adds 1?

# %%
x = tf.Variable(2.0)
for _ in range(2):
    with ExplainTape() as tape:
        y = x**2
    rebound_answer = explain(tape, y, x)
    x = x + 1.0

a, b = tf.Variable(2.0), tf.Variable(5.0)
with ExplainTape() as tape:
    squared, loss_b = a**2, b**2
late_target = 10.0 * squared

in_order = [rebound_answer, explain(tape, loss_b, a), explain(tape, late_target, a)]
for one in in_order:
    print(f"{one.code}: {one.sentence}")
print("line of the first:", rebound_answer.line.number, "|", rebound_answer.line.text)

# %%
assert [one.code for one in in_order] == ["source_replaced", "unrelated", "target_after_tape"]
assert rebound_answer.line.text == "x = x + 1.0"
assert (
    not rebound_answer.certain
)  # in a loop this line runs after the question was asked: it is read from the source text

# %% [markdown]
# A path can be cut more than once, and a source can have more than one path. Then a picture tells more than a sentence. `draw(tape, target, sources)`
# shows each operation as a box, with the line that ran it; the rounded boxes are sources and target, and time runs downwards. A solid border
# and a filled circle mean *recorded*; a dashed border and an empty circle mean *not recorded*. Where the gradient does not pass, the arrow is
# dashed and has the cause written on it.
#
# **Predict.** In the next cell two paths lead from `x` to `y`. How many cuts will the picture show, and what is left of the paths if you repair
# one of them?

# %% alt="A graph that runs downwards from x to y. After a tanh it splits into two paths, and each has one dashed arrow with a cross: on one, marked not differentiable, before the rounding; on the other, marked stop_gradient, before a box with a dashed border, which was not recorded. Below the cuts the paths meet in a multiplication that leads to y."
x = tf.Variable([0.3, 0.7])
with ExplainTape() as tape:
    h = tf.tanh(x)
    whole = tf.reduce_sum(tf.round(4.0 * h))
    largest = tf.reduce_max(h)
    scale = tf.stop_gradient(largest)
    y = whole * scale

two_cuts = explain(tape, y, x)
draw(tape, y, x)
plt.show()

# %% [markdown]
# Two cuts, one on each path: as long as both are there, the answer is `None`. Repair one, and the gradient exists, with that path's part
# alone. The rounding was recorded, and still nothing passes through it: recorded and differentiable are two things.

# %%
print(two_cuts.sentence)
print("cuts:", [cut.code for cut in two_cuts.cuts])

# %%
assert tape.gradient(y, x) is None
assert two_cuts.exists is False
assert sorted(cut.code for cut in two_cuts.cuts) == ["not_differentiable", "stop_gradient"]

# %%
with ExplainTape() as tape:
    h = tf.tanh(x)
    rounded_part = tf.reduce_sum(tf.round(4.0 * h))
    y = rounded_part * tf.reduce_max(h)  # no longer stopped

print(explain(tape, y, x))
through_one = tape.gradient(y, x)
print("the smaller element's gradient:", through_one[0].numpy())

# %%
assert explain(tape, y, x).exists
assert through_one[0].numpy() == 0.0  # the maximum does not depend on it
parts = 3.0  # round(1.17) + round(2.42), which multiply the maximum's gradient
np.testing.assert_allclose(through_one[1], parts * (1.0 - np.tanh(0.7) ** 2), rtol=1e-5)

# %% [markdown]
# Know the limits. The tape explains a gradient that is missing, and not one that is wrong: where one of two paths is cut, the answer is
# *exists*. What it does add are *remarks*, for the surprises of section 8.
#
# **Predict.** Six gradients that exist: half of one (section 2), a sign, a norm at zero, a gathered table, the compiled `squares`, and the kernel of
# a frozen Keras layer. Which of them get no remark?

# %%
x = tf.Variable(3.0)
v = tf.Variable([-0.5, 3.0])
frozen_layer = tf.keras.layers.Dense(1)
frozen_layer.build((None, 2))
frozen_layer.trainable = False
with ExplainTape(persistent=True) as tape:
    half_target = x * float(x)
    sign_target = tf.reduce_sum(tf.sign(v))
    norm_target = tf.norm(v - v)
    gather_target = tf.reduce_sum(tf.gather(v, [0, 0]))
    p, q = compiled(x, v)
    frozen_target = frozen_layer(tf.ones((1, 2)))

surprises = {
    "one path of two": explain(tape, half_target, x),
    "tf.sign": explain(tape, sign_target, v),
    "tf.norm at zero": explain(tape, norm_target, v),
    "tf.gather": explain(tape, gather_target, v),
    "tf.function": explain(tape, p, v),
    "frozen layer": explain(tape, frozen_target, frozen_layer.kernel),
}
for name, one in surprises.items():
    print(f"{name:15} {one.code}, remarks: {', '.join(one.remarks) or 'none'}")

# %%
assert all(one.exists for one in surprises.values())
expected = [
    (),
    ("zero_from_sign",),
    ("nan_from_norm",),
    ("indexed_slices",),
    ("zero_from_function",),
    ("frozen_layer",),
]
assert [one.remarks for one in surprises.values()] == expected
assert frozen_layer.trainable_variables == []

# %% [markdown]
# The last one is a trap. Freezing a layer takes its variables out of `trainable_variables`, and that is all it does: the tape still watches them.
# Ask for `layer.kernel` by name, or for `model.variables`, and an optimiser trains the frozen layer.
#
# And a plain tape has no log. `explain` does not guess, but says that it could not explain, and what to do. It answers in this way, too, for
# a tape inside a `tf.function`, and whenever its own reading of the log and the tape's real result disagree.

# %%
with tf.GradientTape() as plain:
    y = tf.round(x)
silent = explain(plain, y, x)
print(silent)

# %%
assert silent.exists is None
assert silent.code == "plain_tape"

# %% [markdown]
# ## 11. Check it independently
#
# `None` says that no path was recorded. It says nothing about the derivative. Central differences in float64, which know
# nothing of tapes, show what was behind three of the `None`s and errors above: for `np.log1p` a derivative that was lost; for
# contrast one that nobody had written; for rounding a true zero.


# %%
def contrast_loss(image):
    mean = image.mean(axis=(0, 1), keepdims=True)
    return np.sum((mean + factor * (image - mean)) ** 2)


lost = gradcheck.numerical_jacobian(lambda x: np.sum(np.log1p(x)), [0.0, 1.0, 3.0])
staircase = gradcheck.numerical_jacobian(lambda x: np.sum(np.round(x) ** 2), [0.3, 0.7, 2.4])
unwritten = gradcheck.check_gradient(contrast_loss, contrast_gradient, image.numpy(), rtol=1e-5)
print("np.log1p:", lost.round(4))
print("np.round:", staircase)
print("contrast: the gradient from section 6 agrees:", unwritten < 1e-5)

# %%
np.testing.assert_allclose(lost, [1.0, 0.5, 0.25], rtol=1e-8)
np.testing.assert_allclose(lost, inside, rtol=1e-6)
np.testing.assert_array_equal(staircase, [0.0, 0.0, 0.0])
assert unwritten < 1e-5

# %% [markdown]
# The norm at zero has no derivative. Central differences there compare the two sides and find them equal: they agree with the zero of the safe norm,
# which is a choice, and one that keeps training alive.

# %%
at_zero = gradcheck.numerical_jacobian(np.linalg.norm, [0.0, 0.0])
away = gradcheck.numerical_jacobian(np.linalg.norm, [3.0, 4.0])
print("at (0, 0):", at_zero)
print("at (3, 4):", away.round(4))

# %%
np.testing.assert_array_equal(at_zero, safe_gradient[1])
np.testing.assert_allclose(away, safe_gradient[0], rtol=1e-6)

# %% [markdown]
# ## Recap
#
# - A tape watches trainable variables, and what you tell it to watch before use; `watched_variables()` shows which (section 1).
# - A path holds while it stays inside TensorFlow (section 2), in floating point (section 3), free of assignments (section 4), and inside the block up to the target (section 5).
# - An operation without a registered gradient raises `LookupError`, one that is not differentiable gives `None` (section 6); `unconnected_gradients="zero"` turns `None` into zeros, the honest ones and the mistakes (section 7).
# - `tf.sign`, a `tf.function` with several outputs, a norm at zero and a gathered table give numbers that are not what you need (section 8).
# - Watch every intermediate tensor and walk back from the target: the break lies before the last gradient that exists (section 9); `explain` on an `ExplainTape` names the cause, the line and the fix (section 10).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | `tf.Variable(3)` is an integer | `None`, though it is watched | write `3.0` |
# | `x = x + 1` in a training loop | `None` from the second epoch on | `x.assign_add(1)` |
# | `float(x)` on one of two paths | a gradient that is too small, without a warning | stay in tensors |
# | the target is finished after the `with` block | `None` | move the last line inside |
# | `unconnected_gradients="zero"` everywhere | zeros that look like a minimum | use it where you know that a pair is unconnected |
# | a compiled function with several outputs | 0.0 where you expect `None` | run it eagerly once |
# | a norm at zero | NaN, soon in every weight | choose before the root |
# | the norm of `IndexedSlices` | too small where a row is used twice | `tf.convert_to_tensor` first |
#
# **Read next:** [04 Recording control](04_recording_control.ipynb) leaves things off the tape on purpose.
