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
# # Training with a tape
#
# `model.fit` hides a loop: take some examples, compute a loss, differentiate it, move the parameters. Write those lines
# yourself, and you can change any of them. **What is in a training loop, and what does each line do?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/colab-main/notebooks/02_training_with_a_tape.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Minutes:** 18 to read, 2 more to go further, 40 for the exercises; to work through it all, about 1 h 45 min

# %% jupyter={"source_hidden": true} tags=["parameters"]
# @title Parameters
seed = 0
dataset = "digits"  # or "mnist", which Keras downloads once
epochs = 15  # passes by the compiled loop of section 5, between 10 and 30
floor = 0.93  # the test accuracy that the trained model must reach, between 0 and 0.93

# %% jupyter={"source_hidden": true} tags=["setup"]
# @title Set-up
import importlib.util
import sys

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().system(
        f'"{sys.executable}" -m pip install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"'
    )

import time

from tapelab import data, gradcheck, plots, runtime
from tapelab.exercises.sheets import training_with_a_tape as exercises

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

runtime.start(seed)

# %% [markdown]
# Each step of this page's loop does four things with one **mini-batch** of images: run the model forwards, compare with the labels, run backwards, update. The first two stand *inside* the tape's block, to be recorded, the last two outside.

# %% alt="Diagram. A training step, drawn from left to right: a picture of a digit, then, in a shaded area labelled recorded, boxes for the model with its variables, the logits and the loss, joined by arrows; the labels enter at the loss. Below, an arrow labelled tape.gradient runs from the loss back to a box of gradients, and one labelled apply_gradients from there up to the variables." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: one training step
digits = data.load(dataset)
_, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
ax.add_patch(plt.Rectangle((1.9, 1.35), 8.1, 2.35, color="#E8F1F8"))
ax.text(0.8, 2.8, "images", ha="center", fontsize=11)
ax.text(2.05, 3.4, "recorded: with tf.GradientTape() as tape", color=plots.BLUE, fontsize=10)
boxes = ((3.3, 2.1, "model\n(variables)"), (6.3, 2.1, "logits"), (9.1, 2.1, "loss"), (9.1, 3.3, "labels"))
ax.imshow(digits.x_train[digits.y_train == 2][0], cmap="gray", extent=(0.2, 1.4, 1.5, 2.7), aspect="auto", zorder=2)
for x, y, name in (*boxes, (6.3, 0.5, "gradients")):
    edge = plots.RED if name == "gradients" else "black"
    box = {"boxstyle": "round,pad=0.45", "fc": "white", "ec": edge}
    ax.text(x, y, name, ha="center", va="center", fontsize=11, bbox=box)
for start, end in (
    ((1.5, 2.1), (2.5, 2.1)),
    ((4.15, 2.1), (5.7, 2.1)),
    ((6.95, 2.1), (8.55, 2.1)),
    ((9.1, 3.0), (9.1, 2.4)),
):
    ax.annotate("", end, start, arrowprops={"arrowstyle": "-|>", "linewidth": 1.6})
for line, end in ((((9.1, 9.1), (1.8, 0.5)), (7.2, 0.5)), (((5.4, 3.3), (0.5, 0.5)), (3.3, 1.65))):
    ax.plot(*line, color=plots.RED, linewidth=1.6)
    corner = (line[0][1], line[1][1])
    ax.annotate("", end, corner, arrowprops={"arrowstyle": "-|>", "linewidth": 1.6, "color": plots.RED})
for x, y, name, colour in (
    (4.9, 2.22, "1 forward", "black"),
    (7.75, 2.22, "2 compare", "black"),
    (8.2, 0.62, "3 tape.gradient", plots.RED),
    (4.4, 0.62, "4 apply_gradients", plots.RED),
):
    ax.text(x, y, name, ha="center", color=colour, fontsize=10)
ax.set(title="One step: values run to the right, gradients come back", xlim=(0, 10.1), ylim=(0.1, 3.8))
ax.axis("off")
plt.show()

# %% [markdown]
# Three words. The model's last layer returns **logits**: scores, which the loss turns into probabilities. An **optimiser** takes the gradients and moves the variables. A **metric** gathers a number, here the accuracy, over the batches.

# %% tags=["nbval-ignore-output"]
x_train, y_train, x_test, y_test = data.load(dataset)  # images, values from 0 to 1, and labels, 0 to 9
y_train, y_test = np.ravel(y_train), np.ravel(y_test)  # shape (n,), also where yours are (n, 1)
(x_train, x_val), (y_train, y_val) = np.split(x_train, [-300]), np.split(y_train, [-300])  # kept apart
image_shape, classes = x_train.shape[1:], 1 + int(y_train.max())
batch_size, hidden, learning_rate = 64, 48, 0.005

model = tf.keras.Sequential(
    [
        tf.keras.Input(image_shape),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(hidden, activation="tanh"),
        tf.keras.layers.Dense(classes),
    ]
)
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.Adam(learning_rate)
accuracy = tf.keras.metrics.SparseCategoricalAccuracy()
examples = tf.data.Dataset.from_tensor_slices((x_train, y_train))
batches = examples.shuffle(len(x_train)).batch(batch_size)


def evaluate(model, images, labels):
    """The mean loss and the accuracy of the model as it is now: two floats."""
    logits = model(images, training=False)
    hits = np.argmax(logits, axis=1) == labels
    return float(loss_fn(labels, logits)), float(hits.mean())


seen, unseen = [], []
for epoch in range(1, 4):
    accuracy.reset_state()
    for images, labels in batches:
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_fn(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        accuracy.update_state(labels, logits)
    seen.append(float(accuracy.result()))
    unseen.append(evaluate(model, x_val, y_val)[1])
    print(f"epoch {epoch}: training accuracy {seen[-1]:.3f}, validation accuracy {unseen[-1]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert classes == 10
assert unseen[0] > seen[0] + (0.1 if dataset == "digits" else 0.0)
assert unseen[-1] > 0.85
check_logits = model(x_val, training=False)
assert loss_fn(y_val[:, None], check_logits) == loss_fn(y_val, check_logits)  # the loss takes both
check_hits = np.argmax(check_logits, axis=1) == y_val[:, None]  # and the comparison makes a table of all pairs
assert check_hits.shape == (300, 300)
assert check_hits.mean() < 0.2 < 0.85 < unseen[-1]

# %% [markdown]
# Three passes over the images, three **epochs**, and the model reads some nine digits in ten. Look at epoch 1, though. The model does far *better* on the **validation** images, which were kept apart from the steps, than on the images it was trained on. Section 2 says why.
#
# **You will be able to**
#
# - write a training loop from memory, and test it on one batch (section 1),
# - read the numbers that it prints for what they are (section 2),
# - say what the loop has to ask of the model: `training=`, and `model.losses` (section 3),
# - compile the step with `tf.function`, and say how often its Python code runs (section 4),
# - judge a classifier by learning curves and a confusion matrix, and touch the test images once (section 5).

# %% [markdown]
# ## 1. The loop, taken apart
#
# Take a fresh model (here `clone_model` draws new weights) and one batch. The softmax that turns logits into probabilities is inside the loss: hence `from_logits=True`.
#
# **Predict.** The model knows nothing yet, and there are ten classes. What, roughly, is its loss?

# %%
exercises.first_loss.guess(...)  # the loss, in place of the dots

# %% tags=["nbval-ignore-output"]
model = tf.keras.models.clone_model(model)
initial = model.get_weights()  # to start over from the same point
images, labels = next(iter(batches))

with tf.GradientTape() as tape:
    logits = model(images, training=True)
    loss = loss_fn(labels, logits)

gradients = tape.gradient(loss, model.trainable_variables)
print(f"loss {float(loss):.3f}")
for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
    print(f"{variable.name:<6}  {tuple(variable.shape)!s:<9} gradient {tuple(gradient.shape)}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.first_loss.reveal(np.log(classes))
assert logits.shape == (len(labels), classes)
assert abs(float(loss) - np.log(classes)) < 0.75
assert [g.shape for g in gradients] == [(np.prod(image_shape), hidden), (hidden,), (hidden, classes), (classes,)]

# %% [markdown]
# A model that spreads its belief evenly over ten classes gives the true one the probability 1/10, and its loss, the
# cross-entropy, is $-\log\frac1{10} = \log 10 \approx 2.303$. This fresh model's lies near it.
#
# Gradient descent is $v \leftarrow v - \eta\,\partial L/\partial v$ for every variable $v$, with the learning rate $\eta$; with a random batch for every step it is *stochastic* gradient descent, SGD. `apply_gradients` wants (gradient, variable) pairs. Do both from the same start:

# %% tags=["nbval-ignore-output"]
for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
    variable.assign_sub(0.1 * gradient)
by_hand = model.get_weights()
loss_after = float(loss_fn(labels, model(images, training=True)))
print(f"loss of the same batch: {float(loss):.3f} before the step, {loss_after:.3f} after")

model.set_weights(initial)
sgd = tf.keras.optimizers.SGD(learning_rate=0.1)
sgd.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
difference = max(np.abs(a - b).max() for a, b in zip(model.get_weights(), by_hand, strict=True))
print(f"largest difference between the optimiser's step and yours: {difference:.1e}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert loss_after < float(loss) - 0.02
assert difference < 1e-6

# %% [markdown]
# Why an optimiser, then? Adam keeps a memory of earlier gradients.
#
# **A first test of the loop: overfit one batch.** Train on the same 64 images again and again. This model can learn them by heart, so the loss should come near 0. If it stays up, look for a mistake.

# %% tags=["nbval-ignore-output"]
model.set_weights(initial)
optimizer = tf.keras.optimizers.Adam(learning_rate)
for step in range(1, 101):
    with tf.GradientTape() as tape:
        loss = loss_fn(labels, model(images, training=True))
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if step in (1, 10, 100):
        print(f"step {step:3}: loss of the one batch {float(loss):.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert loss < 0.1

# %% [markdown]
# ## 2. What the printed numbers mean
#
# `update_state` adds a batch to this metric, `result` reads the average so far,
# `reset_state` starts anew. It knows nothing of epochs. Without a reset, a `Mean` that was given the losses 4 and 2 in epoch 1 and 1 in epoch 2 reads $7/3 \approx 2.333$, the mean loss of neither.
#
# With the reset, too, a metric can mislead. In the opening's first epoch the validation accuracy lay far above that in training. Are those images easier? Train the fresh model for one epoch, then `evaluate` the *training* images.
#
# **Predict.** Compared with what the metric gathered during the epoch, is that accuracy "higher", "lower" or "the same"?

# %%
exercises.afterwards_is.guess(...)  # "higher", "lower" or "the same"

# %% tags=["nbval-ignore-output"]
model.set_weights(initial)
optimizer = tf.keras.optimizers.Adam(learning_rate)
accuracy.reset_state()
of_each_batch = []
for images, labels in batches:
    with tf.GradientTape() as tape:
        logits = model(images, training=True)
        loss = loss_fn(labels, logits)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    accuracy.update_state(labels, logits)
    of_each_batch.append(np.mean(np.argmax(logits, axis=1) == labels))

running = float(accuracy.result())
afterwards = evaluate(model, x_train, y_train)[1]
print(f"training images:   {running:.3f} gathered during the epoch, {afterwards:.3f} afterwards")
print(f"validation images: {evaluate(model, x_val, y_val)[1]:.3f} afterwards")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.afterwards_is.reveal("higher" if afterwards > running else "not higher")
metric = tf.keras.metrics.Mean()
for number in (4.0, 2.0, 1.0):
    metric.update_state(number)
np.testing.assert_allclose(metric.result(), 7 / 3, rtol=1e-6)
assert afterwards > running + (0.1 if dataset == "digits" else 0.0)
assert len(of_each_batch) == -(-len(y_train) // batch_size)
assert abs(evaluate(model, x_val, y_val)[1] - afterwards) < 0.1

# %% [markdown]
# With the same weights the two accuracies lie close together. The metric averaged over the epoch's images, and each step used *other weights*; the first were random.

# %% alt="Line plot over the batches. The accuracy of each batch of the first epoch: it climbs from about one in ten to about three in four. A dashed horizontal line, the mean over the epoch, lies in the middle; a solid one, the accuracy of the final weights on the same images, lies above the end of the climb." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: accuracy within one epoch
_, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
steps = np.arange(1, len(of_each_batch) + 1)
ax.plot(steps, of_each_batch, "o-", color=plots.BLUE, markersize=4)
ax.axhline(running, color=plots.RED, linestyle="--")
ax.axhline(afterwards, color=plots.GREEN)
ax.text(1, running + 0.02, f"what the metric says: {running:.2f}", color=plots.RED)
ax.text(1, afterwards + 0.02, f"the final weights, same images: {afterwards:.2f}", color=plots.GREEN)
ax.set(title="The metric averages over models that are gone", xlabel="step within the first epoch")
ax.set(ylabel="accuracy of the batch", ylim=(0, 1))
plt.show()

# %% [markdown]
# So compare training and validation images with the *same* weights: evaluate both after the epoch.
#
# ### Exercise: A batch that does not fit (12 min)
#
# You want the step of a large batch, but memory holds only `limit` examples at a time. `loss(w, x, y)` is the *mean* loss of the examples that you give it, a scalar; it
# refuses more than `limit` of them. `w` is a variable, `x` has shape (examples, inputs), `y` has shape (examples,). Return the gradient of the mean loss over **all** the examples with respect to `w`, in the shape of `w`. Each example counts once, and no piece stays in memory while the next is worked on.


# %%
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        ...  # the next examples, at most `limit`, and their part of the gradient
    return total


exercises.pieces.check(gradient_in_pieces)

# %% [markdown]
# ## 3. What the loop must ask of the model
#
# Keras' own step in `model.fit` also tells the layers that they are being trained, and adds the model's own losses.
#
# **`training=`.** Some layers work in two ways. While training, the `Dropout(0.8)` below sets each element to 0 with probability 0.8, and multiplies the others by 5, so that the expectation stays; afterwards it passes its input on. The model below is trained with `training=True`. What does each way of asking say of it?

# %% tags=["nbval-ignore-output"]
fixed_batches = list(batches)  # the same batches, in the same order, for every run of this section


def build(layers):
    """A model with the given layers before its last one; the seed makes every start the same."""
    tf.keras.utils.set_random_seed(seed)
    outputs = tf.keras.layers.Dense(classes)
    return tf.keras.Sequential([tf.keras.Input(image_shape), tf.keras.layers.Flatten(), *layers, outputs])


def train(model, loss_of):
    optimizer = tf.keras.optimizers.Adam(learning_rate)
    for images, labels in 3 * fixed_batches:
        with tf.GradientTape() as tape:
            loss = loss_of(model, images, labels)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def plain_loss(model, images, labels):
    return loss_fn(labels, model(images, training=True))


dropping = build([tf.keras.layers.Dense(hidden, activation="tanh"), tf.keras.layers.Dropout(0.8)])
train(dropping, plain_loss)
hits = {
    asked: [float(np.mean(np.argmax(dropping(x_val, training=asked), axis=1) == y_val)) for _ in range(5)]
    for asked in (True, False)
}
for asked, shares in hits.items():
    print(f"training={asked!s:<6} validation accuracy, asked five times:", *[f"{share:.3f}" for share in shares])

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert len(set(hits[False])) == 1
assert np.mean(hits[True]) < hits[False][0] - 0.03
assert len(set(hits[True])) > 1
np.testing.assert_array_equal(dropping(x_val), dropping(x_val, training=False))  # left out
check_dropped = tf.keras.layers.Dropout(0.8, seed=1)(tf.ones(1000), training=True).numpy()
np.testing.assert_allclose(np.unique(check_dropped), [0.0, 5.0], rtol=1e-6)

# %% [markdown]
# With `training=True` the accuracy varies, and is lower. Left out, the argument means `False` here, and no dropout happens. So pass it in both places.
#
# **`model.losses`.** A **regulariser** is a penalty that belongs to a layer, here a hundredth of the sum of the squared entries of its kernel: it pulls these towards 0.
#
# **Predict.** A layer gets `kernel_regularizer=L2(0.01)`, and the loop as it stands trains the model. Beside the same model without the regulariser, is the kernel at the end "the same", "somewhat shorter" or "much shorter"?

# %%
exercises.kernel_is.guess(...)  # "the same", "somewhat shorter" or "much shorter"


# %% tags=["nbval-ignore-output"]
def penalised_loss(model, images, labels):
    return loss_fn(labels, model(images, training=True)) + sum(model.losses)


lengths = {}
for name, regulariser, loss_of in (
    ("no regulariser", None, plain_loss),
    ("regulariser, loop as it stands", tf.keras.regularizers.L2(0.01), plain_loss),
    ("regulariser, and sum(model.losses)", tf.keras.regularizers.L2(0.01), penalised_loss),
):
    regularised = build([tf.keras.layers.Dense(hidden, activation="tanh", kernel_regularizer=regulariser)])
    train(regularised, loss_of)
    lengths[name] = float(tf.norm(regularised.trainable_variables[0]))
    print(f"{name:<35} norm of the kernel {lengths[name]:.3f}")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
none, forgotten, counted = lengths.values()
exercises.kernel_is.reveal("the same" if abs(forgotten / none - 1) < 1e-3 else "somewhat shorter")
np.testing.assert_allclose(forgotten, none, rtol=1e-4)
assert counted < 0.7 * none
check_kernel = regularised.trainable_variables[0]
np.testing.assert_allclose(sum(regularised.losses), 0.01 * tf.reduce_sum(check_kernel**2), rtol=1e-5)
with tf.GradientTape() as check_tape:
    plain_loss(regularised, *fixed_batches[0])
assert check_tape.gradient(sum(regularised.losses), check_kernel) is None  # read outside the block
check_kernel.assign(2.0 * check_kernel)  # the model is not called again
np.testing.assert_allclose(sum(regularised.losses), 0.01 * tf.reduce_sum(check_kernel**2), rtol=1e-5)

# %% [markdown]
# The regulariser puts its penalty into the list `model.losses`. This loop does not add it, and no warning says so. Keras computes this penalty when you *read* the list, so read it inside the tape's block.
#
# ### Exercise: The loop, from an empty cell (15 min)
#
# Write the training loop without looking up. `batches` is a list of pairs `(x, y)`, `validation` is one such pair, and `loss_fn(y, outputs)` is the mean loss of a batch. In each epoch take a step with `optimizer` on every batch, in order; count
# the model's own losses; then note the loss on the validation data, without those. Return the list of these numbers, one for each epoch.


# %%
def fit(model, optimizer, loss_fn, batches, validation, epochs):
    return ...  # a list of the validation loss after each epoch


exercises.whole_loop.check(fit)

# %% [markdown]
# ## 4. Compile the step
#
# So far Python called the step's operations one by one: *eager* execution. `tf.function` **traces** the step: it runs the Python code with symbolic tensors, which have no values yet, and records a graph. Called again with tensors of the same shapes and dtypes, this step runs the graph.
#
# Below is the step you know, plus a list that notes the batch size. `optimizer.build` creates the optimiser's variables beforehand: a first call that created Adam's would be traced twice.


# %%
def make_train_step(model, optimizer, traced):
    """A compiled training step; `traced` receives the batch size of every trace."""
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(images, labels):
        traced.append(images.shape[0])  # Python code
        with tf.GradientTape() as tape:
            loss = loss_fn(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    return train_step


# %% [markdown]
# The 1137 digits for training make 17 batches of 64 and a last one of 49: 18 steps an epoch.
#
# **Predict.** One epoch calls `train_step` once for each batch. How many entries has the list `traced` at the end?

# %%
exercises.number_of_traces.guess(...)  # how many entries

# %%
model.set_weights(initial)
traced = []
train_step = make_train_step(model, tf.keras.optimizers.Adam(learning_rate), traced)
compiled_losses = [float(train_step(images, labels)) for images, labels in batches]
print("steps: ", len(compiled_losses))
print("traced:", traced)

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
exercises.number_of_traces.reveal(len(traced))
assert len(compiled_losses) == -(-len(y_train) // batch_size)
last = len(y_train) % batch_size
assert traced == ([batch_size, last] if last else [batch_size])
check_traced, check_adam = [], tf.keras.optimizers.Adam(learning_rate)  # not built


@tf.function
def check_step():
    check_traced.append("Python code")
    check_adam.apply_gradients([(tf.zeros_like(v), v) for v in model.trainable_variables])


check_step()
assert len(check_traced) == 2  # it creates Adam's variables

# %% [markdown]
# One entry for each *shape*, not for each call: this `append`, Python code, ran while tracing.
#
# Shapes are not all that decides.


# %%
@tf.function
def of_number(rate):
    return 2 * rate


@tf.function
def of_tensor(rate):
    return 2 * rate


for rate in (0.1, 0.2, 0.3):
    of_number(rate)
    of_tensor(tf.constant(rate))
print("three Python numbers: ", of_number.experimental_get_tracing_count(), "traces")
print("three float32 tensors:", of_tensor.experimental_get_tracing_count(), "trace")
of_tensor(tf.constant(0.3, tf.float64))
print("and one of float64:   ", of_tensor.experimental_get_tracing_count(), "traces")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert (of_number.experimental_get_tracing_count(), of_tensor.experimental_get_tracing_count()) == (3, 2)
of_tensor(tf.constant(0.4))
assert of_tensor.experimental_get_tracing_count() == 2  # known

# %% [markdown]
# Here each **Python value** got a graph. So hand a changing learning rate to a step as a tensor. Another **dtype** got a graph of its own. TensorFlow's guide has [the rules](https://www.tensorflow.org/guide/function#controlling_retracing).
#
# What does compiling save? `python_function` is the step without its compilation. Both take ten steps from the same start.

# %% tags=["nbval-ignore-output"]
images, labels = next(iter(batches))
ends, milliseconds = {}, {}
for name in ("eager", "compiled"):
    model.set_weights(initial)
    step = make_train_step(model, tf.keras.optimizers.Adam(learning_rate), [])
    step = step.python_function if name == "eager" else step
    times = []
    for _ in range(10):
        start = time.perf_counter()
        ends[name] = step(images, labels).numpy()
        times.append(1000 * (time.perf_counter() - start))
    milliseconds[name] = min(times)  # the first compiled call traces, and is slow
    print(f"{name:<8}  loss of step 10: {ends[name]:.3f}   fastest step {milliseconds[name]:5.2f} ms")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(ends["compiled"], ends["eager"], rtol=1e-3)
assert milliseconds["eager"] > 2 * milliseconds["compiled"]

# %% [markdown]
# Compiled, it took less than half the time. Section 6 shows what else compiling changed.


# %% [markdown]
# ## 5. Judge the result
#
# Now the whole training. This compiled step keeps the model and the optimiser it was traced with, so a new run gets a new optimiser *and* a new step. After each epoch both sets of images are evaluated, and the weights are kept if the validation loss is the lowest so far.


# %% tags=["nbval-ignore-output"]
def evaluate_both():
    """One row of the history: training loss and accuracy, validation loss and accuracy."""
    return (*evaluate(model, x_train, y_train), *evaluate(model, x_val, y_val))


model.set_weights(initial)
train_step = make_train_step(model, tf.keras.optimizers.Adam(learning_rate), [])
history = [evaluate_both()]
for _ in range(epochs):
    for images, labels in batches:
        train_step(images, labels)
    history.append(evaluate_both())
    if history[-1][2] == min(row[2] for row in history):
        best_epoch, best_weights = len(history) - 1, model.get_weights()

train_loss, train_accuracy, val_loss, val_accuracy = np.array(history).T
print(f"training images:   loss {train_loss[-1]:.3f}, accuracy {train_accuracy[-1]:.3f}")
print(
    f"validation images: loss {val_loss[-1]:.3f}, accuracy {val_accuracy[-1]:.3f}; lowest loss after epoch {best_epoch}"
)

# %% alt="Two line plots. Two panels over the epochs, both with a logarithmic vertical axis. Left: training and validation loss fall steeply and then more slowly, and the validation loss ends above the training loss. Right: the share of wrong answers falls from about nine in ten; it too ends lower on the training images than on the validation images." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: learning curves
_, (left, right) = plt.subplots(1, 2, figsize=(9.5, 3.7), layout="constrained")
for ax, trained, kept_apart in ((left, train_loss, val_loss), (right, 1 - train_accuracy, 1 - val_accuracy)):
    ax.plot(trained, "-", color=plots.BLUE)
    ax.plot(kept_apart, "--", color=plots.RED)
    ax.set(xlabel="epoch", xlim=(0, epochs * 1.3), yscale="log")
    ax.xaxis.get_major_locator().set_params(integer=True)
    ax.text(epochs * 1.02, trained[-1], "training", color=plots.BLUE, va="center")
    ax.text(epochs * 1.02, kept_apart[-1], "validation", color=plots.RED, va="center")
left.set(title="The validation loss ends above the training loss", ylabel="loss (logarithmic)")
right.set(title="The validation errors end higher, too", ylabel="share of wrong answers (logarithmic)")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert train_loss[-1] < train_loss[0] / 3
assert val_accuracy[0] < 0.4
assert train_loss[-1] < val_loss[-1]
assert train_accuracy[-1] > val_accuracy[-1]
assert val_loss[best_epoch] == val_loss.min()

# %% [markdown]
# When a validation loss *rises* while the training loss goes on falling, that is **overfitting**. The stored run ends before that: its last validation loss is its lowest. The validation images are there to choose: here, the epoch. So they do not test the model: the test images do, looked at **once**, after the last choice.
#
# One number does not say *which* digits are confused. A **confusion matrix** does: here its entry $(i, j)$ counts the images of class $i$ that the model takes for class $j$. The diagonal entry over its row's sum is the class's **recall**, the share of its images that were found.

# %% tags=["nbval-ignore-output"]
model.set_weights(best_weights)
predictions = np.argmax(model(x_test, training=False), axis=1)
confusion = tf.math.confusion_matrix(y_test, predictions, num_classes=classes).numpy()
recall = np.diag(confusion) / confusion.sum(axis=1)
print(f"accuracy {np.trace(confusion) / confusion.sum():.3f}")
for name, extreme in (("best", recall.max()), ("worst", recall.min())):
    print(f"{name:<5} recall: {extreme:.3f}, digit", *np.flatnonzero(recall == extreme))

# %% alt="Heat map. A ten by ten matrix with the true digit on the rows and the prediction on the columns. The diagonal is dark and holds almost all counts; off the diagonal some paler cells hold small counts, and most are empty." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the confusion matrix
mistakes = confusion * (1 - np.eye(classes, dtype=int))
_, ax = plt.subplots(figsize=(5.4, 4.9), layout="constrained")
plots.matrix(
    confusion,
    title=f"{mistakes.sum()} of {confusion.sum()} test images are misread",
    xlabel="predicted digit",
    ylabel="true digit",
    ax=ax,
    limit=1.5 * max(1, mistakes.max()),
    colorbar=False,
)
for i, j in zip(*np.nonzero(confusion), strict=True):
    colour = "white" if confusion[i, j] > mistakes.max() else "black"
    ax.text(j, i, str(confusion[i, j]), ha="center", va="center", color=colour, fontsize=9)
ax.set(xticks=range(classes), yticks=range(classes))
plt.show()

# %% [markdown]
# Look at its mistakes, too.

# %% alt="Images. A row of up to eight test images that the model got wrong, each with its true digit and what the model said." jupyter={"source_hidden": true} tags=["figure"]
# @title Draw: the mistakes themselves
wrong = np.flatnonzero(predictions != y_test)[:8]
_, axes = plt.subplots(1, 8, figsize=(9, 2.2), layout="constrained")
for ax in axes:
    ax.axis("off")
for ax, index in zip(axes, wrong, strict=False):
    ax.imshow(x_test[index], cmap="gray", vmin=0, vmax=1)
    ax.set_title(f"a {y_test[index]},\ntaken for {predictions[index]}", fontsize=9)
plt.suptitle("Some of what the model gets wrong")
plt.show()

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_array_equal(tf.math.confusion_matrix([0, 1, 1], [1, 1, 1]), [[0, 1], [0, 2]])
np.testing.assert_array_equal(confusion.sum(axis=1), np.bincount(y_test, minlength=classes))
for true_digit, predicted in ((8, 1), (9, 3), (3, 9)):
    assert confusion[true_digit, predicted] == np.sum((y_test == true_digit) & (predictions == predicted))
assert np.trace(confusion) / confusion.sum() > floor
assert recall.min() > 0.7

# %% [markdown]
# ## 6. Going further: the small print
#
# **Does compiling change only the speed?** Two programs where it changes more. First, an `if` on a variable.


# %%
def branch(a, b, gate):
    return a * a if gate > 0 else b**3


a, b, gate = tf.Variable(2.0), tf.Variable(5.0), tf.Variable(1.0)
ways, slopes = {"eager": lambda f: f, "compiled": tf.function}, {}
for name, way in ways.items():
    with tf.GradientTape() as tape:
        y = way(branch)(a, b, gate)
    slopes[name] = tape.gradient(y, b)
    print(f"{name:8}  dy/db {slopes[name]}")

# %% [markdown]
# Compiled, this `if` became an operation with both branches, so `b` gets 0 where eager code says `None`.
#
# Second, NumPy's noise.

# %% tags=["nbval-ignore-output"]
draws = {}
for name, way in ways.items():
    draw = way(lambda: tf.constant(np.random.normal()))
    draws[name] = [float(draw()) for _ in range(3)]
    print(f"{name:8}", *[f"{one:.2f}" for one in draws[name]])

# %% [markdown]
# NumPy drew while tracing: once. Compiled, use `tf.random.normal`.

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert slopes["eager"] is None
assert slopes["compiled"] == 0.0
with tf.GradientTape() as check_tape:
    check_y = tf.function(branch)(a, b, True)  # an `if` on a Python value
assert check_tape.gradient(check_y, b) is None
assert len(set(draws["eager"])) == 3
assert len(set(draws["compiled"])) == 1
check_noise = tf.function(lambda: tf.random.normal(()))
assert len({float(check_noise()) for _ in range(3)}) == 3

# %% [markdown]
# **An argument that raises no error when it is left out.** Below, the true class is 0 and the logits favour class 1, so the gradient ought to push hard.

# %%
bad_logits = tf.constant([[-1.0, 3.0]])
backwards = {}
for from_logits in (True, False):
    function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=from_logits)
    with tf.GradientTape() as tape:
        tape.watch(bad_logits)
        bad_loss = function(tf.constant([0]), bad_logits)
    backwards[from_logits] = bad_loss, tape.gradient(bad_loss, bad_logits)[0]
    numbers = ", ".join(f"{number:.3f}" for number in backwards[from_logits][1])
    print(f"from_logits={from_logits!s:<5}  loss {float(bad_loss):6.3f}  gradient [{numbers}]")

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
np.testing.assert_allclose(backwards[True][0], np.log(1 + np.exp(4.0)), rtol=1e-5)
np.testing.assert_allclose(backwards[True][1], np.array([-1, 1]) / (1 + np.exp(-4.0)), rtol=1e-4)
assert float(backwards[False][0]) > 15
np.testing.assert_array_equal(backwards[False][1], [0.0, 0.0])
check_inside = tf.constant([[0.2, 0.7]])
with tf.GradientTape() as check_tape:
    check_tape.watch(check_inside)
    check_loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=False)(tf.constant([0]), check_inside)
np.testing.assert_allclose(check_tape.gradient(check_loss, check_inside), [[-35 / 9, 10 / 9]], rtol=1e-4)
check_accuracy = {}
for check_from_logits in (True, False):
    check_model = build([tf.keras.layers.Dense(hidden, activation="tanh")])
    check_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=check_from_logits)
    train(check_model, lambda model, images, labels, f=check_function: f(labels, model(images, training=True)))
    check_accuracy[check_from_logits] = evaluate(check_model, x_val, y_val)[1]
assert check_accuracy[True] > check_accuracy[False] + 0.05

# %% [markdown]
# Without the argument Keras takes −1 and 3 for probabilities and clips them into the interval from 0 to 1. Here the clip passes nothing back: the loss is 16 and the gradient 0. The logits 0.2 and 0.7, inside the interval, get a gradient, of another loss: −3.9 and 1.1. A model trained so learns worse here.
# [04](04_when_the_gradient_is_wrong.ipynb) collects such gradients.
#
# ### Exercise: What the loss sends back (8 min)
#
# The backward pass meets the loss first. Write its derivative without a tape. `labels` are the true classes, integers of shape (batch,); `logits` has shape
# (batch, classes). The loss is the mean over the examples of $-\log p_c$, where $p$ is the softmax of the example's logits and $c$ its true class. Return the
# gradient with respect to the logits, shape (batch, classes), in their dtype. Some logits are large, 500 and more.


# %%
def loss_gradient(labels, logits):
    return ...  # the gradient of the mean loss with respect to the logits


exercises.logits_gradient.check(loss_gradient)

# %% [markdown]
# ### Exercise: One graph for every batch size (5 min)
#
# Write `compile_once(f)`: it takes a function `f` from a float32 tensor of shape (batch, 5) to a tensor of shape (batch,),
# and returns a compiled `f` that is traced **once**, whatever sizes of batch it is called with. One of the arguments of `tf.function` does it; the
# [reference](https://www.tensorflow.org/api_docs/python/tf/function) lists them.


# %%
def compile_once(f):
    return ...  # a compiled f that is traced once, whatever the batch size


exercises.one_graph.check(compile_once)

# %% [markdown]
# ## 7. Check it independently
#
# The classifier's loss in NumPy, in float64: central differences along random directions in the space of *all* parameters must agree with the tape's gradient. For the last bias there is a closed form as well: the mean of the probabilities minus the one-hot labels.

# %%
few_images, few_labels = x_train[:7], y_train[:7]
model.set_weights(initial)

with tf.GradientTape() as tape:
    loss = loss_fn(few_labels, model(few_images, training=True))
gradients = tape.gradient(loss, model.trainable_variables)


def numpy_loss(flat):
    """The same loss in float64; `flat` holds kernel, bias, kernel, bias, one after the other."""
    edges = np.cumsum([value.size for value in initial])[:-1]
    W1, b1, W2, b2 = (part.reshape(v.shape) for part, v in zip(np.split(flat, edges), initial, strict=True))
    logits = np.tanh(few_images.reshape(7, -1).astype(np.float64) @ W1 + b1) @ W2 + b2
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(7), few_labels])


# %% tags=["nbval-ignore-output"]
flat_initial = np.concatenate([value.ravel() for value in initial]).astype(np.float64)
flat_gradient = np.concatenate([np.ravel(gradient) for gradient in gradients])
error = gradcheck.check_gradient(numpy_loss, flat_gradient, flat_initial, rtol=1e-5)
print(f"{len(flat_initial)} parameters, largest relative error {error:.1e}")

probabilities = tf.nn.softmax(model(few_images, training=True)).numpy()
closed_form = np.mean(probabilities - np.eye(classes)[few_labels], axis=0)
print("last bias, tape:       ", np.round(gradients[3].numpy()[:5], 4))
print("last bias, closed form:", np.round(closed_form[:5], 4))

# %% jupyter={"source_hidden": true} tags=["check"]
# @title Check
assert error < 1e-5
np.testing.assert_allclose(float(loss), numpy_loss(flat_initial), rtol=1e-5)
np.testing.assert_allclose(gradients[3], closed_form, rtol=1e-4, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - A step is: forward pass and loss inside the tape, `tape.gradient`, `apply_gradients`. A first test of the loop was to overfit one batch (section 1).
# - A metric gathered during the epoch averaged over models that are gone; to compare training and validation images, evaluate both with the same weights (section 2).
# - Pass `training=` in both places, and add `sum(model.losses)`: without it the regulariser did nothing (section 3).
# - `tf.function` compiles the step; its Python code ran for each trace, not for each call (section 4).
# - Validation images choose; the test images are looked at once. A confusion matrix says which classes are taken for which (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | labels of shape (n, 1) beside predictions of shape (n,) | `predictions == labels` of shape (n, n), another accuracy | `np.ravel(labels)`, before you batch them |
# | logits given to a loss that expects probabilities | no error; for class 0 and logits −1 and 3, a loss of 16 and gradient 0 | `from_logits=True` |
# | a loop of your own without `model.losses` | the regulariser does nothing | add `sum(model.losses)` inside the tape's block |
# | `training=` left out of a step of your own | no dropout while training | `training=True` in the step, `False` in the evaluation |
# | a Python number that changes, given to a compiled step without `input_signature` | a trace for each value | pass a tensor |
# | `append` to a Python list from outside, or `np.random`, in a compiled step | it runs while tracing, and not at each call | return what you need; `tf.random.normal` |
#
# **Further reading**
#
# - TensorFlow Core guide, ["Writing a training loop from scratch"](https://www.tensorflow.org/guide/keras/writing_a_training_loop_from_scratch): the same loop, with validation, and a GAN.
# - TensorFlow Core guide, ["Customizing what happens in fit()"](https://www.tensorflow.org/guide/keras/customizing_what_happens_in_fit): override `train_step`, and keep `fit`.
# - TensorFlow Core guide, ["Better performance with tf.function"](https://www.tensorflow.org/guide/function): tracing, and when it happens again.
# - D. P. Kingma, J. Ba (2015), ["Adam: A method for stochastic optimization"](https://arxiv.org/abs/1412.6980).
#
# **Read next:** [03 When the gradient is None](03_when_the_gradient_is_none.ipynb), for the day on which one of these gradients is missing.
