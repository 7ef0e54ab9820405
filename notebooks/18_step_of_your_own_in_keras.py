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
# # A step of your own in Keras
#
# `model.fit` takes each batch through one method, `train_step`. Write it yourself, and the tape is yours: a batch in parts, a scaled loss, a penalty on a gradient. **What else was in the method that you replaced?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/18_step_of_your_own_in_keras.ipynb)
#
# **Prerequisites:** [08 Clipping](08_clipping.ipynb), [10 Higher-order gradients](10_higher_order_gradients.ipynb) · **Minutes:** 17 to read, 19 for the exercises; to work through it all, about 1 h

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
nines = 12  # images of a nine that are left in the training data: between 8 and 16

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import contextlib

from tapelab import data, plots, runtime
from tapelab.exercises.sheets import step_of_your_own_in_keras as exercises

import keras
import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# Section 5 needs two devices. They must be asked for before TensorFlow starts: a second run of this cell leaves them.
with contextlib.suppress(RuntimeError):
    two = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], two)
runtime.start(seed)

# %% [markdown]
# The data are digits, and nearly all nines are missing. `class_weight` is made for that: it lets each nine count thirty times.

# %%
images, rng = data.load("digits"), np.random.default_rng(seed)
x_all, y_all = images.x_train.reshape(-1, 64), images.y_train
x_test, y_test = images.x_test.reshape(-1, 64), images.y_test
kept = rng.permutation(np.concatenate([np.flatnonzero(y_all != 9), np.flatnonzero(y_all == 9)[:nines]]))
x, y = x_all[kept], y_all[kept]
print(f"{np.sum(y == 9)} nines among {len(y)} training images, {np.sum(y_test == 9)} among {len(y_test)} for the test")

cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
weights_of_classes = {digit: 30.0 if digit == 9 else 1.0 for digit in range(10)}


def network(kind):
    """A small classifier, always with the same start: dropout, and a penalty on the first kernel."""
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((64,))
    h = keras.layers.Dense(64, "relu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
    return kind(inputs, keras.layers.Dense(10)(keras.layers.Dropout(0.3)(h)))


def trained(kind, class_weight=None):
    model = network(kind)
    model.compile(keras.optimizers.SGD(0.3), cross_entropy)
    model.fit(x, y, batch_size=128, epochs=8, class_weight=class_weight, shuffle=False, verbose=0)
    return model


# %% [markdown]
# Now a step of your own.


# %% tags=["nbval-ignore-output"]
class Careless(keras.Model):
    def train_step(self, batch):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            loss = cross_entropy(y, self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def recall(model):
    """The part of the nines among the test images that the model calls nines."""
    return np.mean(np.argmax(model(x_test[y_test == 9]), axis=1) == 9)


found = {}
for name, kind in (("Keras' own step", keras.Model), ("Careless", Careless)):
    for weighted in (None, weights_of_classes):
        found[name, weighted is not None] = model = trained(kind, weighted)
        loss = model.history.history["loss"][-1]
        print(f"{name:16} class_weight {'yes' if weighted else 'no':3} nines found {recall(model):.2f} loss {loss:.2f}")

# %% alt="Bar chart. The part of the nines that is found, without and with class weights. With Keras' own step the bar rises from 0 to most of them; with the careless step both are at 0." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what class weights do in two steps
_, ax = plt.subplots(figsize=(6.5, 3), layout="constrained")
for shift, weighted, colour in ((-0.2, False, plots.GREY), (0.2, True, plots.BLUE)):
    heights = [recall(found[name, weighted]) for name in ("Keras' own step", "Careless")]
    label = f"{'with' if weighted else 'without'} class_weight"
    ax.bar_label(ax.bar(np.arange(2) + shift, heights, 0.38, color=colour, label=label), fmt="%.2f")
ax.set(xticks=range(2), xticklabels=["Keras' own step", "Careless"], ylim=(0, 1), ylabel="nines found")
ax.set_title("A step that throws the weights away")
ax.legend()
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check


def flat(model):
    return np.concatenate([np.ravel(w) for w in model.get_weights()])


assert recall(found["Keras' own step", True]) > 0.6
assert recall(found["Keras' own step", False]) < 0.45
np.testing.assert_array_equal(flat(found["Careless", True]), flat(found["Careless", False]))
assert found["Careless", True].history.history["loss"] == [0.0] * 8

# %% [markdown]
# With the careless step the two models are equal to the last bit. `class_weight` reached `train_step` as a third tensor, and the underscore threw it away. No message, and a loss of 0.
#
# **You will be able to**
#
# - write a `train_step` that keeps what `fit` promises, and prove that it does (section 1),
# - take a large batch in parts, and say when the result is not that of the batch (section 2),
# - train in half precision: scale the loss, and clip what is no longer scaled (section 3),
# - penalise a gradient inside a step, with two tapes (section 4),
# - divide a loss rightly among several replicas (section 5).

# %% [markdown]
# ## 1. What is yours now
#
# `fit` makes the batches, runs `train_step`, prints, and resets metrics between epochs. These were *in* the step:
#
# | the careless step | what is lost |
# |---|---|
# | `_` in place of `sample_weight` | sample weights and class weights |
# | `self(x)` without `training=True` | dropout is off, the averages of `BatchNormalization` stand still |
# | its own loss alone | `self.losses`: the penalties of the layers |
# | updates no metric | the mean loss of the epoch; with compiled metrics `fit` raises |
#
# `compute_loss` is the compiled loss, weighted, plus `self.losses`; `compute_metrics` updates the compiled metrics and returns them all. The first of `self.metrics`, the mean of the loss, you update yourself. `replicas` is 1 until section 5.


# %%
class Careful(keras.Model):
    def train_step(self, batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted, sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        examples = tf.shape(tf.nest.flatten(x)[0])[0]  # of any input, if there are several
        replicas = tf.distribute.get_strategy().num_replicas_in_sync  # compute_loss has divided by it
        self.metrics[0].update_state(loss * replicas, sample_weight=examples)
        return self.compute_metrics(x, y, predicted, sample_weight)


# %% [markdown]
# **Predict.** Train `Careful` and Keras' own step from the same start, with the same batches, class weights and dropout. How far apart are the weights after eight epochs?

# %%
exercises.eight_epochs.guess(...)  # "equal to the last bit", "equal to about six digits" or "some per cent apart"

# %%
found["Careful", True] = trained(Careful, weights_of_classes)
apart = np.abs(flat(found["Careful", True]) - flat(found["Keras' own step", True])).max()
print(f"largest difference of a weight: {apart:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.eight_epochs.reveal("equal to the last bit" if apart == 0 else "equal to about six digits")
assert apart < 1e-5
with_penalty, without = (found[name, False] for name in ("Keras' own step", "Careless"))
sizes = [np.linalg.norm(model.get_weights()[0]) for model in (with_penalty, without)]
assert sizes[0] < 0.95 * sizes[1]  # the penalty keeps the kernel small; the careless step forgets it
watched = network(Careful)
watched.compile("sgd", cross_entropy, metrics=["accuracy"])
history = watched.fit(x[:100], y[:100], batch_size=64, validation_data=(x[:100], y[:100]), verbose=0).history
assert set(history) == {"loss", "accuracy", "val_loss", "val_accuracy"}
assert min(history["loss"][0], history["val_loss"][0]) > 0.1
np.testing.assert_allclose(history["val_loss"][0], watched.evaluate(x[:100], y[:100], verbose=0)[0], rtol=1e-5)
check_forgets = network(Careless)
check_forgets.compile("sgd", cross_entropy, metrics=["accuracy"])
np.testing.assert_raises(ValueError, check_forgets.fit, x[:100], y[:100], verbose=0)  # a metric never built
check_losses = []
for check_kind in (keras.Model, Careful):  # two inputs, in a dict
    keras.utils.set_random_seed(seed)
    check_inputs = {name: keras.Input((64,), name=name) for name in "ab"}
    check_model = check_kind(check_inputs, keras.layers.Dense(10)(keras.layers.Add()(list(check_inputs.values()))))
    check_model.compile("sgd", cross_entropy)
    check_images = dict.fromkeys("ab", x[:100])
    check_history = check_model.fit(check_images, y[:100], batch_size=64, shuffle=False, verbose=0).history
    check_losses.append(check_history["loss"])
np.testing.assert_allclose(*check_losses, rtol=1e-5)

# %% [markdown]
# The dropout masks agree too: one seed. That is the test of a step of your own: **before you add anything, it reproduces `fit`.** Without the line of `self.metrics[0]` the loss is 0, as in the opening: Keras shows its own mean, which nobody has updated.
#
# `validation_data`, and with it `EarlyStopping`, work as before: the test step is still Keras' own.
#
# ### Exercise: The loss of a careful step (6 min)
#
# `model(x, training=…)` gives logits, `model.losses` is a list of scalars that is filled by the call. Return the scalar that a step differentiates: the mean over the batch of the sample weight times the cross-entropy, and the penalties.


# %%
def step_loss(model, x, y, sample_weight):
    return ...  # a scalar


exercises.step_loss.check(step_loss)

# %% [markdown]
# ## 2. A batch in parts
#
# A batch that does not fit into memory is taken in parts, and the gradients are added up: **gradient accumulation**. A gradient of a sum is the sum of gradients. Here: a hundred images in parts of 32, the last of four.


# %%
def gradient(model, x, y, reduce):
    with tf.GradientTape() as tape:
        each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=True))
        loss = reduce(each)
    return tf.concat([tf.reshape(g, [-1]) for g in tape.gradient(loss, model.trainable_variables)], axis=0)


def classifier(*between):
    keras.utils.set_random_seed(seed)
    return keras.Sequential(
        [keras.Input((64,)), keras.layers.Dense(32), *between, keras.layers.ReLU(), keras.layers.Dense(10)]
    )


def off(found, exact):
    return float(tf.norm(found - exact) / tf.norm(exact))


plain = classifier()
parts = [(x[i : i + 32], y[i : i + 32]) for i in (0, 32, 64)] + [(x[96:100], y[96:100])]
whole = gradient(plain, x[:100], y[:100], tf.reduce_mean)
of_means = sum(gradient(plain, *part, tf.reduce_mean) for part in parts) / 4
of_sums = sum(gradient(plain, *part, tf.reduce_sum) for part in parts) / 100

# %% [markdown]
# **Predict.** How far is the mean of the four parts' gradients from the gradient of the hundred?

# %%
exercises.four_parts.guess(...)  # "not at all", "by a few per cent" or "by some tens of per cent"

# %% tags=["nbval-ignore-output"]
print(f"mean of the parts' means: {off(of_means, whole):.0%} off")
print(f"sums, divided once:       {off(of_sums, whole):.0e} off")

# %% [markdown]
# The four images of the last part count eight times as much. The cure: differentiate *sums*, and divide once, by the number of examples. `SGD(gradient_accumulation_steps=4)` takes the mean of the parts' gradients, so with a smaller last part it has this fault.
#
# A penalty is no sum over the examples: add it once, not in each part. And with `BatchNormalization` sums are no cure: in training it subtracts the mean of the *part*, not of the batch.

# %% tags=["nbval-ignore-output"]
normalised = classifier(keras.layers.BatchNormalization())
whole_bn = gradient(normalised, x[:96], y[:96], tf.reduce_mean)
parts_bn = sum(gradient(normalised, *part, tf.reduce_sum) for part in parts[:3]) / 96
print(f"with BatchNormalization, three equal parts: {off(parts_bn, whole_bn):.0%} off")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.four_parts.reveal("by some tens of per cent" if off(of_means, whole) > 0.1 else "by a few per cent")
assert 0.15 < off(of_means, whole) < 1.2
assert off(of_sums, whole) < 1e-5
assert 0.01 < off(parts_bn, whole_bn) < 0.9
layered = classifier(keras.layers.LayerNormalization())
whole_ln = gradient(layered, x[:96], y[:96], tf.reduce_mean)
parts_ln = sum(gradient(layered, *part, tf.reduce_sum) for part in parts[:3]) / 96
assert off(parts_ln, whole_ln) < 1e-5  # of each example alone
check_start = [tf.identity(w) for w in plain.trainable_variables]
check_sgd = keras.optimizers.SGD(1.0, gradient_accumulation_steps=4)
for check_part in parts:
    with tf.GradientTape() as tape:
        loss = cross_entropy(check_part[1], plain(check_part[0], training=True))
    check_sgd.apply(tape.gradient(loss, plain.trainable_variables), plain.trainable_variables)
check_moved = [tf.reshape(a - b, [-1]) for a, b in zip(check_start, plain.trainable_variables, strict=True)]
assert off(tf.concat(check_moved, axis=0), of_means) < 1e-4

# %% [markdown]
# ### Exercise: Parts that do not count equally (6 min)
#
# `costs(w, rows)` returns a loss for each row, and `parts` is a list of tensors with different numbers of rows. Return the gradient with respect to `w`, a tensor, of the mean loss over all rows, and record one part at a time.


# %%
def by_parts(costs, w, parts):
    return ...  # as large as w


exercises.parts.check(by_parts)

# %% [markdown]
# ## 3. Half the digits
#
# After `keras.config.set_dtype_policy("mixed_float16")` the hidden layer below keeps its weights in float32 and computes in float16. `compile` then wraps the optimiser.

# %% tags=["nbval-ignore-output"]
keras.config.set_dtype_policy("mixed_float16")


def in_half(kind, optimizer, **options):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((64,))
    model = kind(inputs, keras.layers.Dense(10, dtype="float32")(keras.layers.Dense(64, "relu")(inputs)))
    model.compile(optimizer, cross_entropy, **options)
    model.fit(x_all, y_all, batch_size=64, epochs=4, verbose=0)
    return np.mean(np.argmax(model(x_test), axis=1) == y_test), type(model.optimizer).__name__


half = {}
for name, kind in (("Keras' own step", keras.Model), ("Careful", Careful)):
    half[name], wrapper = in_half(kind, keras.optimizers.SGD(0.5))
    print(f"{name:16} accuracy {half[name]:.2f}, the optimiser is a {wrapper}")

# %% [markdown]
# With SGD the step that reproduced `fit` to the last bit has learnt *nothing*. The `LossScaleOptimizer` divides each gradient by a number $S$, $2^{15}$ to begin with, and nobody multiplied the loss: Keras' own step does, by `self.optimizer.scale_loss(loss)`. That alone is the fault: with `auto_scale_loss=False`, without a wrapper, `Careful` learns. `Adam(1e-2)` hides the fault: it divides a gradient by its own size plus $10^{-7}$, and about nine in ten are right. `RMSprop(1e-2)`, whose $10^{-7}$ stands under the root, learns nothing (the check).
#
# A float16 ends early at both sides: above 65504 there is infinity, and what is smaller than $2^{-25} \approx 3\cdot 10^{-8}$ falls through the floor, to zero. **Loss scaling** lifts it: with $S$ times the loss every gradient is $S$ times as large, and the division comes last, in float32.


# %% tags=["nbval-ignore-output"]
class Scaled(Careful):
    limit = None  # for the norm of the gradient

    def train_step(self, batch):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        with tf.GradientTape() as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted, sample_weight)
            scaled = self.optimizer.scale_loss(loss)  # new
        gradients = tape.gradient(scaled, self.trainable_variables)  # new
        if self.limit is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.limit)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        examples = tf.shape(tf.nest.flatten(x)[0])[0]  # of any input, if there are several
        replicas = tf.distribute.get_strategy().num_replicas_in_sync  # compute_loss has divided by it
        self.metrics[0].update_state(loss * replicas, sample_weight=examples)
        return self.compute_metrics(x, y, predicted, sample_weight)


class Clipped(Scaled):
    limit = 1.0


for name, kind, optimizer in (
    ("scaled", Scaled, keras.optimizers.SGD(0.5)),
    ("scaled, then clipped to 1 in the step", Clipped, keras.optimizers.SGD(0.5)),
    ("scaled, clipped to 1 by the optimiser", Scaled, keras.optimizers.SGD(0.5, global_clipnorm=1.0)),
):
    half[name], _ = in_half(kind, optimizer)
    print(f"{name:38} accuracy {half[name]:.2f}")

# %% [markdown]
# In the step the gradient is still $2^{15}$ times too large. Clip *that* to a norm of 1, let the wrapper divide, and what arrives has a norm of $2^{-15}$. **Clip what is no longer scaled**: give the limit to the optimiser, which the wrapper calls after the division.
#
# The other half format, **bfloat16**, spends its sixteen bits otherwise: float32's exponents, and 8 binary digits. Nothing is scaled, and `Careful` learns again.

# %% tags=["nbval-ignore-output"]
keras.config.set_dtype_policy("mixed_bfloat16")
half["bfloat16, not scaled"], wrapper = in_half(Careful, keras.optimizers.SGD(0.5))
print(f"bfloat16, Careful: accuracy {half['bfloat16, not scaled']:.2f}, the optimiser is {wrapper}")

# %% [markdown]
# How much falls through the floor? Train a network until little is left to learn, and compare its gradient in three formats.

# %% tags=["nbval-ignore-output"]
keras.config.set_dtype_policy("float32")
keras.utils.set_random_seed(seed)
sure = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64, "relu"), keras.layers.Dense(10)])
sure.compile(keras.optimizers.Adam(2e-2), cross_entropy, steps_per_execution=50)
sure.fit(np.tile(x_all, (50, 1)), np.tile(y_all, 50), batch_size=256, epochs=2, verbose=0)  # each image 100 times
weights = [tf.constant(w) for w in sure.get_weights()]


def in_format(dtype, scale=1.0):
    """The gradient of the mean loss over all images, computed in another format: one array, and the loss."""
    with tf.GradientTape() as tape:
        tape.watch(weights)
        kernel_1, bias_1, kernel_2, bias_2 = (tf.cast(w, dtype) for w in weights)
        logits = tf.nn.relu(tf.cast(x_all, dtype) @ kernel_1 + bias_1) @ kernel_2 + bias_2
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y_all, tf.cast(logits, tf.float32))
        loss = scale * tf.reduce_mean(losses)
    return np.concatenate([np.ravel(g) for g in tape.gradient(loss, weights)]) / scale, float(loss) / scale


exact, loss = in_format(tf.float32)
print(f"loss {loss:.1e}, median entry of the gradient, without zeros, {np.median(np.abs(exact[exact != 0])):.0e}")
zero, cosine = {}, {}
for name, dtype, scale in (
    ("float16", tf.float16, 1.0),
    ("float16, scaled", tf.float16, 2.0**15),
    ("bfloat16", tf.bfloat16, 1.0),
):
    g, _ = in_format(dtype, scale)
    zero[name] = np.mean(g[exact != 0] == 0)
    cosine[name] = g @ exact / np.linalg.norm(g) / np.linalg.norm(exact)
    print(f"{name:16} {zero[name]:4.0%} of the entries are zero, cosine with float32's gradient {cosine[name]:.3f}")

# %% alt="Histogram. Sizes of the gradient's entries on a logarithmic axis. The gradient has its peak near 3e-5 and a long tail to the left; the part of the tail below 3e-8, the floor of float16, is black, and a little of it above: these entries are zero there. The same histogram, scaled by 2 to the 15, has its peak near 1; nearly all of it lies between the floor and the ceiling at 65504." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: what falls through the floor
sizes, bins = np.abs(exact[exact != 0]), 10.0 ** np.arange(-12, 5.1, 0.25)
is_zero = in_format(tf.float16)[0][exact != 0] == 0
_, ax = plt.subplots(figsize=(7, 3.4), layout="constrained")
ax.hist(2.0**15 * sizes, bins, color=plots.BLUE, alpha=0.7, label="scaled by $2^{15}$")
ax.hist(sizes, bins, color=plots.ORANGE, alpha=0.7, label="gradient")
ax.hist(sizes[is_zero], bins, color="black", label="zero in float16")
for end, name in ((2.0**-25, "floor"), (65504.0, "ceiling")):
    ax.axvline(end, color="black", linestyle="--", linewidth=1)
    ax.text(end, 1.02, name, transform=ax.get_xaxis_transform(), ha="center")
ax.set(xscale="log", xlabel="size of an entry", ylabel="entries")
ax.set_title("Between the floor and the ceiling of float16", pad=20)
ax.legend(loc="upper left")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert np.max(sizes[is_zero]) < 1e-6 < 1e-5 < np.median(sizes) < 1e-4
assert np.max(sizes[is_zero]) > 2.0**-25  # black bars above the floor
assert np.mean(2.0**15 * sizes < 2.0**-25) < 0.02
assert np.max(2.0**15 * sizes) < 65504
assert min(half["Keras' own step"], half["scaled"], half["scaled, clipped to 1 by the optimiser"]) > 0.8
assert max(half["Careful"], half["scaled, then clipped to 1 in the step"]) < 0.4
assert zero["float16"] > 0.03
assert zero["float16, scaled"] < 0.02
assert zero["bfloat16"] < 0.02
assert cosine["float16"] > 0.85
assert 0.2 < cosine["bfloat16"] < cosine["float16, scaled"]
assert half["bfloat16, not scaled"] > 0.8
keras.config.set_dtype_policy("mixed_float16")
assert in_half(Careful, keras.optimizers.SGD(0.5), auto_scale_loss=False)[0] > half["Keras' own step"] - 0.05
assert in_half(Careful, keras.optimizers.Adam(1e-2))[0] > 0.8  # m / (√v + 1e-7): its own size, until near 1e-7
assert in_half(Careful, keras.optimizers.RMSprop(1e-2))[0] < 0.4  # g / √(v + 1e-7): its own size, until near 3e-4
assert in_half(keras.Model, keras.optimizers.RMSprop(1e-2))[0] > 0.8
keras.config.set_dtype_policy("float32")
assert np.float16(2.9e-8) == 0 < np.float16(3.1e-8)
assert np.isinf(np.float32(65520).astype(np.float16))

# %% [markdown]
# What falls through is small, so here the rest points nearly the right way. Some entries above the floor are zero too: a product on the way fell through. bfloat16 loses no entry, and turns the gradient further here: float16 has 11 binary digits.
#
# The scale follows the training: when an entry overflows, `LossScaleOptimizer` skips that step and halves $S$; after many good steps it doubles it.
#
# ### Exercise: A step that may be skipped (7 min)
#
# `gradient` is the gradient of `scale` times the loss, and may hold what is not finite. Return the new `w` and the new scale: after a good gradient a step of gradient descent with rate 0.1, and the same scale; otherwise no step, and half the scale.


# %%
def step(w, gradient, scale):
    return ...  # w and the scale, two tensors


exercises.skipped.check(step)

# %% [markdown]
# ## 4. A gradient in the loss
#
# A *Wasserstein critic* $f$ is trained to tell real points from made ones by the difference of its means, $\mathbb E f(\text{real}) - \mathbb E f(\text{made})$. Scale $f$ up, and the difference grows with it, so the slope of $f$ is held. Gulrajani and others (2017) do that by a penalty: at points between the two kinds, $(\lVert\nabla_x f\rVert - 1)^2$ joins the loss. With the slope at most 1 the best difference is a distance between the two distributions, the *Wasserstein distance*.
#
# Here the made points are standard normal, the real ones the same, moved by 3: the distance is 3.
#
# The penalty is a gradient by the input, and the step differentiates it by the weights: two tapes ([10](10_higher_order_gradients.ipynb)). First try: the penalty is computed, then the step's tape opens.


# %% tags=["nbval-ignore-output"]
def slope_penalty(critic, real, made):
    """How far the critic's slope is from 1, at points between the real and the made ones."""
    between = real + tf.random.uniform([tf.shape(real)[0], 1]) * (made - real)
    with tf.GradientTape() as tape:
        tape.watch(between)
        values = tf.reduce_sum(critic(between, training=True))
    slopes = tf.norm(tape.gradient(values, between), axis=1)
    return tf.reduce_mean((slopes - 1.0) ** 2)


class Outside(keras.Model):
    factor = 10.0

    def train_step(self, batch):
        real, made = batch
        penalty = slope_penalty(self, real, made)
        with tf.GradientTape() as tape:
            difference = tf.reduce_mean(self(real, training=True)) - tf.reduce_mean(self(made, training=True))
            loss = self.factor * penalty - difference
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"difference": difference}


class NoPenalty(Outside):
    factor = 0.0


made = rng.normal(size=(2000, 2)).astype("float32")
real = rng.normal(size=(2000, 2)).astype("float32") + np.float32([3.0, 0.0])
critics = {}


def train_critic(kind):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((2,))
    h = keras.layers.Dense(32, "tanh")(keras.layers.Dense(32, "tanh")(inputs))
    critic = kind(inputs, keras.layers.Dense(1)(h))
    critic.compile(keras.optimizers.Adam(1e-2))
    critic.optimizer.build(critic.trainable_variables)  # here, and not while the step is traced: that is quicker
    critic.fit(real, made, batch_size=200, epochs=8, shuffle=False, verbose=0)
    critics[kind.__name__] = critic, float(np.mean(critic(real)) - np.mean(critic(made)))
    print(f"{kind.__name__:10} difference of the means {critics[kind.__name__][1]:6.2f}")


train_critic(Outside)
train_critic(NoPenalty)

# %% [markdown]
# Far more than 3, and the two critics are equal to the last bit, although one step added a penalty. For the step's tape the slopes are plain numbers: the penalty's gradient is None, the other part of the loss has one, and their sum hides it. A test for a new term of a loss: **switch it off, and see that something changes.**
#
# The inner `gradient` call has to be recorded by the outer tape. One line moves.


# %% tags=["nbval-ignore-output"]
class Critic(Outside):
    def train_step(self, batch):
        real, made = batch
        with tf.GradientTape() as tape:
            penalty = slope_penalty(self, real, made)  # moved
            difference = tf.reduce_mean(self(real, training=True)) - tf.reduce_mean(self(made, training=True))
            loss = self.factor * penalty - difference
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"difference": difference}


train_critic(Critic)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert abs(critics["Critic"][1] - 3.45) < 0.25
assert critics["NoPenalty"][1] > 10
assert abs(np.linalg.norm(real.mean(axis=0) - made.mean(axis=0)) - 3) < 0.15
np.testing.assert_array_equal(flat(critics["Outside"][0]), flat(critics["NoPenalty"][0]))  # the penalty never was

# %% [markdown]
# The critic now says a little more than 3. Its slope is not held at 1, it is *pulled* there: with a slope $s$ everywhere the objective is $3s - 10\,(s - 1)^2$, which is largest at $s = 1 + 3/20 = 1.15$, where $3s = 3.45$. (For a mere shift nobody needs a critic: the distance of the means is the answer.)

# %% [markdown]
# ## 5. Two replicas
#
# `tf.distribute.MirroredStrategy` runs a step on several devices, here two virtual CPUs, each with a part of the batch, and `all_reduce` adds up the gradients. The model is $v\,x$ with eight values of $x$, 1 to 8; the gradient of its mean by $v$ is 4.5.

# %%
tf.get_logger().setLevel("ERROR")  # a strategy tells of each sum over the replicas
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    v = tf.Variable(0.0)


def four_values(context):
    return tf.constant([[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]][context.replica_id_in_sync_group])


@tf.function
def summed_gradient(loss_of):
    def on_a_replica(values):
        with tf.GradientTape() as tape:
            loss = loss_of(v * values)
        return tf.distribute.get_replica_context().all_reduce("sum", tape.gradient(loss, v))

    return strategy.run(on_a_replica, args=(strategy.experimental_distribute_values_from_function(four_values),))


def mean_of_its_own(each):
    return tf.reduce_mean(each)


def share_of_the_batch(each):
    return tf.nn.compute_average_loss(each, global_batch_size=8)


with strategy.scope():
    in_keras = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    in_keras.compile(loss=lambda y, predicted: predicted)


def of_keras(each):
    return in_keras.compute_loss(y=tf.zeros([4]), y_pred=each)


gradients = {}
for loss_of in (mean_of_its_own, share_of_the_batch, of_keras):
    gradients[loss_of.__name__] = float(strategy.experimental_local_results(summed_gradient(loss_of))[0])
    print(f"{loss_of.__name__:18} {gradients[loss_of.__name__]}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert gradients == {"mean_of_its_own": 9.0, "share_of_the_batch": 4.5, "of_keras": 4.5}
assert strategy.num_replicas_in_sync == 2
plain_v = tf.Variable(0.0)
with tf.GradientTape() as tape:
    loss = tf.reduce_mean(plain_v * tf.range(1.0, 9.0))
assert tape.gradient(loss, plain_v) == 4.5


def on(scope, kind):
    """The losses that fit prints, and the weights, for a line with a penalty."""
    keras.utils.set_random_seed(seed)
    with scope:
        inputs = keras.Input((64,))
        model = kind(inputs, keras.layers.Dense(10, kernel_regularizer=keras.regularizers.L2(0.01))(inputs))
        model.compile(keras.optimizers.SGD(0.5), cross_entropy)
    return model.fit(x[:96], y[:96], batch_size=32, epochs=2, shuffle=False, verbose=0).history["loss"], flat(model)


printed, of_one = on(contextlib.nullcontext(), keras.Model)
for kind in (keras.Model, Careful, Scaled):
    printed_by_two, of_two = on(strategy.scope(), kind)
    np.testing.assert_allclose(printed_by_two, printed, rtol=1e-4)
    np.testing.assert_allclose(of_two, of_one, atol=1e-5)

# %% [markdown]
# Each replica's mean is divided by 4, the gradients are *added*, and the result is twice as large. Divide by the size of the **global** batch, and a penalty of your own by the number of replicas.
#
# Keras' `compute_loss`, the third line, has divided by the number of replicas: while all have equally many examples, `Careful` steps rightly. Its factor `replicas` is for what `fit` prints, which would be half the loss. A last batch that they share unequally has the fault of section 2, in Keras' own step as well.

# %% [markdown]
# ## 6. Check it independently
#
# This oracle knows neither Keras nor a tape: one step of gradient descent on a softmax regression, by its closed form in NumPy, with sample weights and a penalty.

# %% tags=["nbval-ignore-output"]
keras.utils.set_random_seed(seed)
inputs = keras.Input((64,))
line = Careful(inputs, keras.layers.Dense(10, use_bias=False, kernel_regularizer=keras.regularizers.L2(0.01))(inputs))
line.compile(keras.optimizers.SGD(0.5), cross_entropy)
(kernel,) = line.get_weights()
some, labels, weight = x[:50], y[:50], rng.uniform(0.5, 2.0, size=50).astype("float32")
line.fit(some, labels, sample_weight=weight, batch_size=50, verbose=0)

scores = np.exp(some @ kernel)
probability = scores / scores.sum(axis=1, keepdims=True)
by_hand = some.T @ (weight[:, None] * (probability - np.eye(10)[labels])) / 50 + 2 * 0.01 * kernel
apart = np.abs(line.get_weights()[0] - (kernel - 0.5 * by_hand)).max()
print(f"the step and the formula differ by {apart:.0e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert apart < 1e-5
assert np.abs(0.5 * by_hand).max() > 100 * apart

# %% [markdown]
# ## Recap
#
# - A step of your own keeps sample weights, `training=True`, the layers' penalties and the mean loss, or loses them without a word. Before you change it, it reproduces `fit` (section 1).
# - The gradient of a batch's mean loss is the sum of its parts' gradients of *sums*, divided once. With `BatchNormalization`, in training, parts are another function, and a penalty is added once (section 2).
# - In float16 the loss is scaled, by `scale_loss`, and the gradient is clipped after it is unscaled. bfloat16 needed no scale here, and has fewer digits (section 3).
# - For a penalty on a gradient, call the inner `gradient` inside the outer tape. Switch a new term off to see that it was on (section 4).
# - Among replicas gradients are added, so a mean divides by the global batch, and a penalty by the number of replicas (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | `x, y, _ =` in `train_step` | class weights change nothing | hand `sample_weight` to `compute_loss` |
# | `self(x)` | dropout off, moving averages still | `self(x, training=True)` |
# | a loss of your own, without `self.losses` | penalties do nothing | `compute_loss`, or add them |
# | no mean of the loss | `loss: 0.0000e+00` | update `self.metrics[0]`, Keras' own mean |
# | mean of the parts' means | a last, smaller part counts too much | sums, divided once; a penalty added once |
# | no `scale_loss` in mixed float16 | here SGD learns nothing | `self.optimizer.scale_loss(loss)` inside the tape |
# | clipping in the step, scaled | here SGD learns nothing | clip in the optimiser |
# | inner `gradient` outside the outer tape | the penalty has no effect | inside |
# | a mean on each replica | gradients too large, by the number of devices | `compute_average_loss(global_batch_size=…)`; penalties: `scale_regularization_loss` |
#
# **Further reading**
#
# - Keras guide, ["Customizing what happens in fit() with TensorFlow"](https://keras.io/guides/custom_train_step_in_tensorflow/).
# - P. Micikevicius and others (2018), ["Mixed precision training"](https://arxiv.org/abs/1710.03740).
# - I. Gulrajani and others (2017), ["Improved training of Wasserstein GANs"](https://arxiv.org/abs/1704.00028).
# - TensorFlow guide, ["Custom training with tf.distribute.Strategy"](https://www.tensorflow.org/tutorials/distribute/custom_training).
#
# **Read next:** [08 Clipping](08_clipping.ipynb), for what a limit does to a step; [16 What derivatives cost](16_what_derivatives_cost.ipynb), for the memory that parts save.
