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
# # Training with a tape
#
# `model.fit` hides a loop of a few lines: take some examples, compute a loss, differentiate it, move every parameter
# against its gradient. A tape lets you write those lines yourself, and change any of them.
# **How do you train a classifier with a loop of your own?**

# %% [markdown] tags=["badges"]
# [![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)](https://colab.research.google.com/github/tapelab/tapelab/blob/main/notebooks/02_training_with_a_tape.ipynb)
#
# **Prerequisites:** [01 Gradient tape basics](01_gradient_tape_basics.ipynb) · **Time:** about 30 minutes to read and run

# %% [markdown]
# **You will be able to**
#
# - take one training step by hand, and say what the optimiser adds to it (section 1),
# - write the whole loop, and read its metrics for what they are (section 2),
# - compile the step with `tf.function`, and say how often its Python code runs (section 3),
# - judge a classifier by learning curves and a confusion matrix (section 4),
# - clip gradients by tensor or all together, and keep a run alive that explodes without it (section 5).

# %% tags=["setup"]
import importlib.util

if importlib.util.find_spec("tapelab") is None:  # in Colab: adds this package, leaves TensorFlow alone
    get_ipython().run_line_magic("pip", 'install -q --no-deps "tapelab @ git+https://github.com/tapelab/tapelab@main"')

import time

from tapelab import data, gradcheck, plots, runtime
from tapelab.exercises.sheets import training_with_a_tape as exercises
from tapelab.interactive import clipping

import matplotlib.pyplot as plt
import numpy as np
import tensorflow as tf

# %% tags=["parameters"]
seed = 0
dataset = "digits"  # or "mnist", which Keras downloads once
eager_epochs = 2  # passes over the training images by the loop of section 2
epochs = 15  # passes by the compiled loop of section 3
batch_size = 64  # images in each step
hidden = 48  # units of the hidden layer
learning_rate = 0.005  # of Adam
floor = 0.93  # the test accuracy that the trained model must reach
recurrent_steps = 200  # steps of the recurrent network in section 5
clip_norm = 0.2  # the largest gradient norm allowed there

# %%
runtime.start(seed)

# %% [markdown]
# ## 1. One training step
#
# The data are images of handwritten digits, with values from 0 to 1, and their labels, 0 to 9.

# %%
digits = data.load(dataset)
height, width = digits.x_train.shape[1:]
classes = 10

print("training on:    ", dataset)
print("training images:", digits.x_train.shape)
print("test images:    ", digits.x_test.shape)

# %% alt="Ten small grey-scale pictures in a row: one handwritten example of each digit from 0 to 9, bright strokes on a dark ground."
_, axes = plt.subplots(1, classes, figsize=(8, 1.4), layout="constrained")
for digit, ax in enumerate(axes):
    ax.imshow(digits.x_train[digits.y_train == digit][0], cmap="gray", vmin=0, vmax=1)
    ax.set(title=str(digit), xticks=[], yticks=[])
plt.suptitle(f"One training image of each class ({height} x {width} pixels)")
plt.show()

# %%
assert digits.x_train.shape[1:] == digits.x_test.shape[1:] == (height, width)
assert sorted(set(digits.y_train.tolist())) == list(range(classes))
assert digits.x_train.min() >= 0.0
assert digits.x_train.max() <= 1.0

# %% [markdown]
# The model has one hidden layer. Its last layer returns **logits**, any real numbers; the softmax that turns them into
# probabilities is part of the loss, where it can be computed without overflow. Hence `from_logits=True`.

# %%
model = tf.keras.Sequential(
    [
        tf.keras.Input((height, width)),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(hidden, activation="tanh"),
        tf.keras.layers.Dense(classes),
    ]
)
initial = model.get_weights()  # to start over from the same place
loss_fn = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

# %% [markdown]
# One step needs one batch, and the tape needs the forward pass and the loss inside its block.
#
# **Predict.** The model knows nothing yet. Near which number is its loss? What shape has each of the four gradients?

# %%
exercises.first_loss.guess(...)  # in place of `...`, your guess: the loss

# %%
images, labels = tf.constant(digits.x_train[:batch_size]), tf.constant(digits.y_train[:batch_size])

with tf.GradientTape() as tape:
    logits = model(images, training=True)
    loss = loss_fn(labels, logits)

gradients = tape.gradient(loss, model.trainable_variables)
for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
    print(f"{variable.name:<6}  variable {tuple(variable.shape)!s:<10}  gradient {tuple(gradient.shape)}")
print("the loss is within 1 of log(10) = 2.303:", abs(float(loss) - np.log(classes)) < 1)

# %%
exercises.first_loss.reveal(np.log(classes))

# %% [markdown]
# Each gradient has its variable's shape, so the two can be subtracted.

# %%
assert logits.shape == (batch_size, classes)
assert abs(float(loss) - np.log(classes)) < 1
assert [tuple(g.shape) for g in gradients] == [(height * width, hidden), (hidden,), (hidden, classes), (classes,)]

# %% [markdown]
# Gradient descent moves every variable a small step against its gradient: $v \leftarrow v - \eta\, \partial L/\partial v$.
#
# **Predict.** After this one step with $\eta = 0.1$, is the loss of *these* images lower? Must it be?

# %%
for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
    variable.assign_sub(0.1 * gradient)

by_hand = model.get_weights()
loss_after = loss_fn(labels, model(images, training=True))
print("the loss fell:", float(loss_after) < float(loss))

# %% [markdown]
# It falls, because the step is short. The gradient describes the loss near the point where it was taken; a step that is
# too long can end higher up. Section 5 shows one.
#
# An optimiser does the same assignment. It wants (gradient, variable) pairs, in this order.

# %%
model.set_weights(initial)
optimizer = tf.keras.optimizers.SGD(learning_rate=0.1)
optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

difference = max(np.abs(a - b).max() for a, b in zip(model.get_weights(), by_hand, strict=True))
print("plain SGD is the assignment by hand:", difference < 1e-6)

# %%
assert float(loss_after) < float(loss)
assert difference < 1e-6

# %% [markdown]
# So why an optimiser? Because others keep a memory: momentum, or Adam's running averages, one tensor or two for each
# variable. The step around them stays the same.
#
# One thing goes wrong here without a message. The logits below favour the wrong class, so the gradient should push hard.
#
# **Predict.** `from_logits=True` is left out in the second line. Is the loss larger or smaller? And the gradient?

# %%
bad_logits = tf.constant([[-1.0, 3.0]])  # the true class is 0
for name, function in {
    "from_logits=True": loss_fn,
    "left out        ": tf.keras.losses.SparseCategoricalCrossentropy(),
}.items():
    with tf.GradientTape() as tape:
        tape.watch(bad_logits)
        bad_loss = function(tf.constant([0]), bad_logits)
    bad_gradient = tape.gradient(bad_loss, bad_logits)
    print(f"{name}  loss {bad_loss.numpy():6.3f}  gradient", np.round(bad_gradient.numpy()[0], 3) + 0.0)
    if name == "from_logits=True":
        np.testing.assert_allclose(bad_loss, np.log(1 + np.exp(4.0)), rtol=1e-5)
        np.testing.assert_allclose(bad_gradient[0], [-0.98201, 0.98201], rtol=1e-4)

# %% [markdown]
# Without the argument, Keras takes −1 and 3 for probabilities and clips them into the interval from 0 to 1. Outside that
# interval a clipped value does not move, so its derivative is 0: the worst mistakes teach the model nothing.

# %%
assert float(bad_loss) > 15
np.testing.assert_array_equal(bad_gradient, [[0.0, 0.0]])

# %% [markdown]
# ### Exercise: What the loss sends back (8 min)
#
# The first thing that playback meets is the loss. Write its derivative without a tape. `labels` are the true classes, integers of shape (batch,); `logits` has shape
# (batch, classes). The loss is the mean over the examples of $-\log p_c$, where $p$ is the softmax of the example's logits and $c$ its true class. Return the
# gradient with respect to the logits, shape (batch, classes). Some logits are large, 500 and more.


# %%
def loss_gradient(labels, logits):
    return ...  # the gradient of the mean loss with respect to the logits


exercises.logits_gradient.check(loss_gradient)

# %% [markdown]
# ## 2. The loop
#
# An **epoch** is one pass over the training images, in random order, a batch at a time.


# %%
def batches(images, labels, generator):
    """Yield the examples in random order, `batch_size` at a time; the last batch holds what is left."""
    order = generator.permutation(len(labels))
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        yield tf.constant(images[chosen]), tf.constant(labels[chosen])


# %% [markdown]
# **Predict.** How many batches does one epoch have, and how large is the last? (The shapes are printed in section 1.)

# %%
sizes = [len(labels) for _, labels in batches(digits.x_train, digits.y_train, np.random.default_rng(seed))]
print("batches:", len(sizes), " first:", sizes[0], " last:", sizes[-1])

# %%
examples = len(digits.y_train)
assert len(sizes) == -(-examples // batch_size)
assert sum(sizes) == examples
assert set(sizes[:-1]) == {batch_size}

# %% [markdown]
# To follow the training you need numbers that gather over the batches. A Keras **metric** is such a number: `update_state`
# adds a batch, `result` reads the average so far, `reset_state` begins anew.
#
# **Predict.** The losses of epoch 1 are 4 and 2, that of epoch 2 is 1. What does the metric say after epoch 2 if nobody resets it?

# %%
exercises.metric_forgotten.guess(...)

# %%
metric = tf.keras.metrics.Mean()
metric.update_state(4.0)
metric.update_state(2.0)
metric.update_state(1.0)  # epoch 2, the reset forgotten
forgotten = float(metric.result())

metric.reset_state()
metric.update_state(1.0)
print(f"reset forgotten: {forgotten:.3f}")
print(f"after a reset:   {float(metric.result()):.3f}")

# %%
exercises.metric_forgotten.reveal(forgotten)

# %%
np.testing.assert_allclose(forgotten, 7 / 3, rtol=1e-6)
assert float(metric.result()) == 1.0

# %% [markdown]
# The second helper looks at a whole set of images with the weights as they are now.


# %%
def evaluate(model, images, labels):
    """The mean loss and the accuracy of the model as it is: two floats."""
    logits = model(images, training=False)
    hits = np.argmax(logits, axis=1) == labels
    return float(loss_fn(labels, logits)), float(hits.mean())


model.set_weights(initial)
untrained_loss, untrained_accuracy = evaluate(model, digits.x_test, digits.y_test)
print("untrained, fewer than four in ten right:", untrained_accuracy < 0.4)

# %%
assert untrained_accuracy < 0.4
assert abs(untrained_loss - np.log(classes)) < 1

# %% [markdown]
# Here is the complete loop. The optimiser is Adam; nothing else differs from the step in section 1.
#
# **Predict.** At the end of the first epoch the metric holds an accuracy on the training images. Then `evaluate` looks at the
# same images once more. Is its accuracy higher, lower, or the same?

# %%
exercises.afterwards_is.guess(...)  # "higher", "lower" or "the same"

# %% tags=["nbval-ignore-output"]
optimizer = tf.keras.optimizers.Adam(learning_rate)
loss_metric = tf.keras.metrics.Mean()
accuracy_metric = tf.keras.metrics.SparseCategoricalAccuracy()
generator = np.random.default_rng(seed)
step_losses, running, afterwards = [], [], []

for epoch in range(1, eager_epochs + 1):
    loss_metric.reset_state()
    accuracy_metric.reset_state()
    for images, labels in batches(digits.x_train, digits.y_train, generator):
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            loss = loss_fn(labels, logits)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

        step_losses.append(float(loss))
        loss_metric.update_state(loss, sample_weight=len(labels))  # the last batch is smaller and counts for less
        accuracy_metric.update_state(labels, logits)
    running.append(float(accuracy_metric.result()))
    afterwards.append(evaluate(model, digits.x_train, digits.y_train)[1])
    print(
        f"epoch {epoch}: loss {float(loss_metric.result()):.3f}, accuracy while training {running[-1]:.3f}, afterwards {afterwards[-1]:.3f}"
    )

# %%
exercises.afterwards_is.reveal("higher" if afterwards[0] > running[0] else "not higher")

# %%
assert afterwards[0] > running[0]
assert afterwards[0] > 2 * untrained_accuracy
assert len(step_losses) == eager_epochs * len(sizes)

# %% [markdown]
# This is why a test accuracy, taken *after* the epoch, can lie above the training accuracy at first. To
# compare the two sets, evaluate both with the same weights.
#
# ### Exercise: A batch that does not fit (12 min)
#
# The step of a large batch is wanted, and the memory holds only `limit` examples at a time. `loss(w, x, y)` is the *mean* loss of the examples that you give it, a scalar; it
# refuses more than `limit` of them. `w` is a variable, `x` has shape (examples, inputs), `y` has shape (examples,). Return the gradient of the mean loss over **all** the
# examples with respect to `w`, in the shape of `w`. Each example counts once.


# %%
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        ...  # the next examples, at most `limit`, and their part of the gradient
    return total


exercises.pieces.check(gradient_in_pieces)

# %% [markdown]
# ## 3. Compile the step
#
# In the loop above Python calls every operation, one after the other. `tf.function` **traces** the step: it runs the Python code once
# with symbolic tensors, records a graph, and from then on runs the graph. A tape inside is traced with the rest.
#
# The step below is that of section 2. One line is added on purpose: a Python list that notes the batch size. The optimiser's own variables are made before,
# by `build`: a traced function that creates variables on its first call has to be traced once more without them.


# %%
def make_train_step(model, optimizer, traced):
    """A compiled training step for this model and this optimiser; `traced` receives the batch size of every trace."""
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
# **Predict.** One epoch calls `train_step` once for each batch. How many entries has the list `traced` at the end, and what are they?

# %%
exercises.number_of_traces.guess(...)  # how many entries

# %%
model.set_weights(initial)
traced = []
train_step = make_train_step(model, tf.keras.optimizers.Adam(learning_rate), traced)
generator = np.random.default_rng(seed)
compiled_losses = [float(train_step(*batch)) for batch in batches(digits.x_train, digits.y_train, generator)]

print("steps: ", len(compiled_losses))
print("traced:", traced)

# %%
exercises.number_of_traces.reveal(len(traced))

# %% [markdown]
# Python code such as `append`, `print` or a counter runs while tracing and at no other time: to
# collect the losses, return them.
#
# The weights started from the same values and met the same batches in the same order, so the losses are those of section 2.

# %%
assert traced == list(dict.fromkeys(sizes))
np.testing.assert_allclose(compiled_losses, step_losses[: len(sizes)], rtol=1e-2, atol=1e-3)

# %% [markdown]
# ### Exercise: One graph for every batch size (5 min)
#
# With batches of many sizes, many graphs are made. Write `compile_once(f)`: it takes a function `f` from a float32 tensor of shape (batch, 5) to a tensor of shape (batch,),
# and returns a compiled `f` that is traced **once**, whatever sizes of batch it is called with. One of the arguments of `tf.function` does it; the
# [reference](https://www.tensorflow.org/api_docs/python/tf/function) lists them.


# %%
def compile_once(f):
    return ...  # a compiled f that is traced once, whatever the batch size


exercises.one_graph.check(compile_once)

# %% [markdown]
# **Predict.** A step of this small model is mostly Python's work. By which factor is the compiled step faster?
#
# `train_step.python_function` is the function without its compilation. Each way runs many times, and the fastest run counts.

# %% tags=["nbval-ignore-output"]
batch = next(batches(digits.x_train, digits.y_train, np.random.default_rng(seed)))
seconds = {}
for name, step in {"eager": train_step.python_function, "compiled": train_step}.items():
    runs = []
    for _ in range(15):
        start = time.perf_counter()
        step(*batch).numpy()
        runs.append(time.perf_counter() - start)
    seconds[name] = min(runs)
print(f"the compiled step is {seconds['eager'] / seconds['compiled']:.1f} times faster")

# %%
assert seconds["eager"] > seconds["compiled"]

# %% [markdown]
# Now the whole training. A compiled function keeps the model and the optimiser that it was traced with, so a new run gets a
# new optimiser *and* a new step. After each epoch both sets are evaluated with the same weights; epoch 0 is the untrained model.

# %%
model.set_weights(initial)
train_step = make_train_step(model, tf.keras.optimizers.Adam(learning_rate), [])
generator = np.random.default_rng(seed)


def evaluate_both():
    """One row of the history: training loss and accuracy, test loss and accuracy."""
    return (*evaluate(model, digits.x_train, digits.y_train), *evaluate(model, digits.x_test, digits.y_test))


history = [evaluate_both()]
for _ in range(epochs):
    for batch in batches(digits.x_train, digits.y_train, generator):
        train_step(*batch)
    history.append(evaluate_both())

train_loss, train_accuracy, test_loss, test_accuracy = np.array(history).T
print("the training loss fell to less than a third:", train_loss[-1] < train_loss[0] / 3)

# %%
assert len(history) == epochs + 1
assert train_loss[-1] < train_loss[0] / 3

# %% [markdown]
# ## 4. Judge the result
#
# The model has never seen the test images.
#
# **Predict.** Which of the two loss curves, training or test, ends lower? Does the gap say that something is wrong?

# %% alt="Two panels over the epochs. Left: training and test loss fall steeply and then flatten, and the test loss ends above the training loss. Right: both accuracies rise steeply and flatten above the floor, a dotted horizontal line."
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
for ax, train, test, name in (
    (left, train_loss, test_loss, "loss (nats)"),
    (right, train_accuracy, test_accuracy, "accuracy (fraction right)"),
):
    ax.plot(train, "-", color=plots.BLUE, label="training images")
    ax.plot(test, "--", color=plots.RED, label="test images")
    ax.set(xlabel="epoch", ylabel=name)
left.set(title="The loss falls", ylim=(0, None))
right.set(title="The accuracy rises", ylim=(0, 1.02))
right.axhline(floor, color=plots.GREY, linestyle=":", label="floor")
right.legend(loc="lower right")
plt.show()

# %%
print(f"trained on {dataset}: the test accuracy is above the floor of {floor}:", test_accuracy[-1] > floor)
print("the training loss ends below the test loss:", train_loss[-1] < test_loss[-1])

# %%
assert test_accuracy[-1] > floor
assert train_loss[-1] < test_loss[-1]

# %% [markdown]
# The training loss ends lower because those are the images that the steps were taken for. A gap alone is no fault. It becomes one, overfitting, when
# the test loss *rises* while the training loss goes on falling.
#
# One number does not say *which* digits are confused. A **confusion matrix** does: its entry $(i, j)$ counts the images of class $i$ that
# the model takes for class $j$.
#
# **Predict.** Three examples have the labels 0, 1, 1. The predictions are 1, 1, 1. What is the 2 × 2 matrix?

# %%
exercises.confusion.guess([[..., ...], [..., ...]])  # two rows

# %%
small = tf.math.confusion_matrix([0, 1, 1], [1, 1, 1]).numpy()
print(small)

# %%
exercises.confusion.reveal(small.tolist())

# %%
np.testing.assert_array_equal(small, [[0, 1], [0, 2]])  # rows: true classes, columns: predictions

# %% [markdown]
# Now for the test images. The colours end a little above the largest *mistake*, so that mistakes are visible; the diagonal
# goes far beyond the scale.

# %% alt="A ten by ten matrix with the true digit on the rows and the prediction on the columns. The diagonal is dark red and holds almost all counts; off the diagonal some paler cells hold small counts, and most are empty."
predictions = np.argmax(model(digits.x_test, training=False), axis=1)
confusion = tf.math.confusion_matrix(digits.y_test, predictions, num_classes=classes).numpy()
mistakes = confusion * (1 - np.eye(classes, dtype=int))

_, ax = plt.subplots(figsize=(5.6, 5), layout="constrained")
plots.matrix(
    confusion,
    title="Confusion matrix of the test images",
    xlabel="predicted digit",
    ylabel="true digit",
    ax=ax,
    limit=1.5 * max(1, mistakes.max()),
    colorbar=False,
)
for i, j in zip(*np.nonzero(confusion), strict=True):
    ax.text(
        j,
        i,
        str(confusion[i, j]),
        ha="center",
        va="center",
        color="white" if confusion[i, j] > mistakes.max() else "black",
        fontsize=9,
    )
ax.set(xticks=range(classes), yticks=range(classes))
plt.show()

# %% [markdown]
# Each row adds up to the number of test images of that digit. A row's diagonal entry over its sum is the **recall** of that class: the
# part of its images that were found. The diagonal's sum over the number of all images is the accuracy.

# %%
counts = np.bincount(digits.y_test, minlength=classes)
recall = np.diag(confusion) / counts
print("rows add up to the class counts:", np.array_equal(confusion.sum(axis=1), counts))
print("every class has a recall above 0.7:", bool((recall > 0.7).all()))

# %%
np.testing.assert_array_equal(confusion.sum(axis=1), counts)
np.testing.assert_allclose(np.trace(confusion) / confusion.sum(), test_accuracy[-1], rtol=1e-6)
assert (recall > 0.7).all()

# %% [markdown]
# ## 5. Clip the gradient
#
# A step must not be much longer than the distance over which the gradient is a good description. Clipping puts a limit on the gradient's norm.
# There are two ways, and they differ when a model has several variables:
#
# - `tf.clip_by_norm(g, c)` looks at *one tensor*: if $\lVert g\rVert > c$, it is scaled to norm $c$.
# - `tf.clip_by_global_norm(gs, c)` looks at *all of them*: if $\sqrt{\sum_k \lVert g_k\rVert^2} > c$, every tensor is scaled by the same factor.
#
# **Predict.** Two gradients have norms 5 and 12. The limit is 6.5. What are the two norms afterwards, each way?

# %%
exercises.clipped_norms.guess([..., ..., ..., ...])  # by tensor: first, second; globally: first, second

# %%
first, second = tf.constant([3.0, 4.0]), tf.constant([[12.0], [0.0], [0.0]])
limit = 6.5

by_tensor = [tf.clip_by_norm(g, limit) for g in (first, second)]
by_global, global_norm = tf.clip_by_global_norm([first, second], limit)

norms_by_tensor = [tf.norm(g).numpy() for g in by_tensor]
norms_by_global = [tf.norm(g).numpy() for g in by_global]
print("each tensor by its norm:  ", np.round(norms_by_tensor, 4))
print("all by their global norm: ", np.round(norms_by_global, 4))
print("the global norm was:      ", np.round(global_norm.numpy(), 4))

# %%
exercises.clipped_norms.reveal([float(norm) for norm in (*norms_by_tensor, *norms_by_global)])

# %% [markdown]
# The global norm that the function returns is the one *before* clipping: worth plotting, as you will see.

# %%
np.testing.assert_allclose(norms_by_tensor, [5.0, 6.5], rtol=1e-6)
np.testing.assert_allclose(norms_by_global, [2.5, 6.0], rtol=1e-6)
np.testing.assert_allclose(global_norm, 13.0, rtol=1e-6)

# %% alt="Three arrows from the origin in the plane of the two norms. The unclipped arrow ends at (5, 12). The globally clipped arrow lies on it and ends on a quarter circle of radius 6.5. The arrow clipped by tensor points elsewhere, to (5, 6.5), on the edge of a square of side 6.5."
_, ax = plt.subplots(figsize=(6, 5.4), layout="constrained")
angle = np.linspace(0, np.pi / 2, 100)
ax.plot(limit * np.cos(angle), limit * np.sin(angle), ":", color=plots.BLUE, label="global norm = 6.5")
ax.plot([0, limit, limit], [limit, limit, 0], ":", color=plots.RED, label="norm of a tensor = 6.5")
for end, colour, name, thick in (
    ((5, 12), plots.GREY, "unclipped", 2),
    (norms_by_tensor, plots.RED, "clipped by tensor", 3),
    (norms_by_global, plots.BLUE, "clipped globally", 3),
):
    ax.annotate(
        "",
        end,
        (0, 0),
        arrowprops={"arrowstyle": "-|>", "color": colour, "linewidth": thick, "shrinkA": 0, "shrinkB": 0},
    )
    ax.plot([], [], color=colour, linewidth=thick, label=name)
ax.set(
    title="What clipping does to the direction",
    xlabel="norm of the first gradient",
    ylabel="norm of the second gradient",
)
ax.set(xlim=(0, 14), ylim=(0, 13), aspect="equal")
ax.legend(loc="upper right")
plt.show()


# %% [markdown]
# Global clipping shortens the step and keeps its direction. Clipping by tensor turns it: the whole gradient is one long vector, and
# its parts have been scaled differently.


# %%
def cosine(a, b):
    """The cosine of the angle between two lists of tensors, each read as one long vector."""
    a, b = (np.concatenate([np.ravel(tensor) for tensor in tensors]) for tensors in (a, b))
    return a @ b / (np.linalg.norm(a) * np.linalg.norm(b))


print(f"cosine with the unclipped gradient, clipped globally:  {cosine([first, second], by_global):.3f}")
print(f"cosine with the unclipped gradient, clipped by tensor: {cosine([first, second], by_tensor):.3f}")

# %%
np.testing.assert_allclose(cosine([first, second], by_global), 1.0, rtol=1e-6)
np.testing.assert_allclose(cosine([first, second], by_tensor), (25 + 12 * 6.5) / (13 * np.hypot(5, 6.5)), rtol=1e-6)

# %% [markdown]
# Move it yourself. The first gradient below has norm 5; the norm of the second is yours to choose, and so is the limit. "Each norm" is clipping by tensor. "Value" is a third way,
# `tf.clip_by_value`: every *entry* is cut to the interval from −limit to limit. At the top, both gradients before and after; the dotted line is what a gradient may
# not cross. At the bottom, for all three ways and all limits: the angle by which the whole gradient has turned, and its length.
#
# **Predict.** Pull the limit down to 0.5. Which of the ways turn the gradient further and further, and does the angle stop growing? Then find the one norm of the second
# gradient at which clipping each norm does *not* turn it, however low the limit.

# %% alt="Four panels. Top: two gradients as arrows before and after clipping; the first lies inside a dotted circle of radius 6.5 and is unchanged, the second is cut at the circle. Bottom left, the angle to the true gradient against the limit: zero everywhere for the global norm; for each norm and for value it rises from zero as the limit falls, and then stays level. Bottom right, the length against the limit: a straight line for the global norm, above it the curves of the other two."
clipping.figure().show()

# %% [markdown]
# The angle stops growing once both gradients are cut: from there on they shrink together. With equal norms (5 and 5) they are always cut alike. Clipping by value turns even a
# single gradient, since its entries are cut apart. And for one limit the three ways allow different lengths: at most $c$ for the global norm, $\sqrt 2\, c$ for two norms, $2c$ for four entries.

# %%
true = [clipping.FIRST, 12.0 * np.array([0.96, -0.28])]
turns = {
    way: [clipping.turn(true, clipping.clip(true, limit, way)) for limit in (0.5, 5.0, 6.5)] for way in clipping.WAYS
}
for way, degrees in turns.items():
    print(f"{way:<11} turned at limit 0.5, 5, 6.5 by", " ".join(f"{abs(angle):.1f}°" for angle in degrees))

# %%
np.testing.assert_allclose(
    turns["each norm"], np.degrees(np.arccos([17 / 13 / np.sqrt(2)] * 2 + [103 / 13 / np.hypot(5, 6.5)]))
)
np.testing.assert_allclose(turns["global norm"], 0.0, atol=1e-4)
assert turns["value"][0] > turns["value"][1] > turns["value"][2] > 1.0
longest = {way: np.linalg.norm(np.concatenate(clipping.clip(true, 0.5, way))) for way in clipping.WAYS}
np.testing.assert_allclose(list(longest.values()), [0.5 * np.sqrt(2), 0.5, 1.0])  # each norm, global norm, value

# %% [markdown]
# A Keras optimiser does either for you, inside `apply_gradients`: `clipnorm` is by tensor, `global_clipnorm` is global. With a
# learning rate of 1 and variables at 0, the new values are the clipped gradients with a minus sign.
#
# **Predict.** Which value has the first variable in each case?

# %%
moved = {}
for option in ("clipnorm", "global_clipnorm"):
    variables = [tf.Variable(tf.zeros_like(first)), tf.Variable(tf.zeros_like(second))]
    sgd = tf.keras.optimizers.SGD(learning_rate=1.0, **{option: limit})
    sgd.apply_gradients(zip([first, second], variables, strict=True))
    moved[option] = [-variable.numpy() for variable in variables]
    print(f"{option:<15}", -np.round(moved[option][0], 4))

# %%
for option, expected in {"clipnorm": by_tensor, "global_clipnorm": by_global}.items():
    for value, gradient in zip(moved[option], expected, strict=True):
        np.testing.assert_allclose(value, gradient, rtol=1e-6)

# %% [markdown]
# Clipping cures *large* gradients. It does not cure an infinite one: the scale factor is then 0, and $0 \cdot \infty$ is not a number.
#
# **Predict.** One element of the first gradient is infinite. How many elements of both are NaN after global clipping?

# %%
exercises.nan_elements.guess([..., ...])  # of 2 in the first, of 3 in the second

# %%
infinite, _ = tf.clip_by_global_norm([tf.constant([np.inf, 4.0]), second], limit)
print("NaN elements:", [int(np.isnan(g).sum()) for g in infinite], "of", [int(tf.size(g)) for g in infinite])

# %%
exercises.nan_elements.reveal([int(np.isnan(g).sum()) for g in infinite])

# %%
assert [int(np.isnan(g).sum()) for g in infinite] == [2, 3]

# %% [markdown]
# ### Exercise: Clip the step, or skip it (8 min)
#
# `gradients` is a list of tensors. If any of their elements is infinite or NaN, return a list of zeros in their shapes and dtypes, so that the step changes nothing. Otherwise return them clipped by their
# **global** norm to `limit`: those that are short enough stay as they are.


# %%
def clip_or_skip(gradients, limit):
    return ...  # a list of tensors with the shapes of the gradients


exercises.clip_or_skip.check(clip_or_skip)

# %% [markdown]
# Now a run that needs clipping. A **recurrent** network reads the image row by row. The same matrix $W$ multiplies its state $h$ once for each row, here without a
# squashing function between: $h_{t+1} = x_t U + h_t W + b$. What $W$ does to the state, it does again to the gradient on the way back,
# once for each row.
#
# $W$ starts as a random rotation times a factor, chosen so that all rows together multiply by 10.

# %%
growth, units = 10.0, 32
factor = growth ** (1 / height)
generator = np.random.default_rng(seed)
rotation = np.linalg.qr(generator.standard_normal((units, units)))[0]
start_values = [
    generator.standard_normal((width, units)) / np.sqrt(width),  # U
    rotation * factor,  # W
    np.zeros(units),  # b
    generator.standard_normal((units, classes)) / np.sqrt(units),  # V
    np.zeros(classes),  # c
]


def read_rows(parameters, images, state):
    """Read the images row by row. Returns the logits and the last state."""
    U, W, b, V, c = parameters
    for row in range(height):
        state = images[:, row] @ U + state @ W + b
    return state @ V + c, state


# %% [markdown]
# **Predict.** Differentiate the last state with respect to the first, along a vector of norm 1. How long is the result?

# %%
parameters = [tf.Variable(value, dtype=tf.float32) for value in start_values]
state = tf.zeros((1, units))
direction = tf.constant(np.eye(1, units), tf.float32)  # norm 1

with tf.GradientTape() as tape:
    tape.watch(state)
    _, last_state = read_rows(parameters, tf.zeros((1, height, width)), state)

back_through_rows = tape.gradient(last_state, state, output_gradients=direction)
print("norm after the way back through all rows:", np.round(tf.norm(back_through_rows).numpy(), 2))

# %%
np.testing.assert_allclose(tf.norm(back_through_rows), growth, rtol=1e-4)

# %% [markdown]
# A factor of 10 is harmless in itself. The trouble is that a step changes $W$, and the factor is $W$'s to the power of the number of rows.
#
# The training step below is the one you know, with a `clip` function between gradient and update. It also
# returns two norms: of the whole gradient before clipping, and of what is applied.


# %%
def train_recurrent(clip, rate=0.5):
    """Train from the same start on the same batches. Returns an array (steps, 3) and the test accuracy.

    The columns: loss, gradient norm before clipping, gradient norm after. Stops when the loss is no longer finite.
    """
    parameters = [tf.Variable(value, dtype=tf.float32) for value in start_values]

    @tf.function
    def step(images, labels):
        with tf.GradientTape() as tape:
            logits, _ = read_rows(parameters, images, tf.zeros((tf.shape(images)[0], units)))
            loss = loss_fn(labels, logits)
        gradients = tape.gradient(loss, parameters)
        clipped = clip(gradients)
        for parameter, gradient in zip(parameters, clipped, strict=True):
            parameter.assign_sub(rate * gradient)
        return tf.stack([loss, tf.linalg.global_norm(gradients), tf.linalg.global_norm(clipped)])

    generator = np.random.default_rng(seed)
    rows = []
    for _ in range(recurrent_steps):
        chosen = generator.choice(len(digits.y_train), batch_size, replace=False)
        rows.append(step(tf.constant(digits.x_train[chosen]), tf.constant(digits.y_train[chosen])).numpy())
        if not np.isfinite(rows[-1][0]):
            break
    logits, _ = read_rows(parameters, tf.constant(digits.x_test), tf.zeros((len(digits.y_test), units)))
    return np.array(rows), float(np.mean(np.argmax(logits, axis=1) == digits.y_test))


# %% [markdown]
# First without clipping.
#
# **Predict.** The rate is 0.5, a value at which the clipped runs below learn. How many steps does the unclipped run survive?

# %% tags=["nbval-ignore-output"]
unclipped, unclipped_accuracy = train_recurrent(lambda gradients: gradients)
for number, (loss, norm, _) in enumerate(unclipped, start=1):
    print(f"step {number}: loss {loss:.3g}, gradient norm {norm:.3g}")

# %%
print("the loss is no longer finite:", not np.isfinite(unclipped[-1, 0]))
print("within twenty steps:         ", len(unclipped) <= 20)
print("test accuracy near chance:   ", unclipped_accuracy < 0.3)

# %%
assert not np.isfinite(unclipped[-1, 0])
assert len(unclipped) <= 20
assert unclipped_accuracy < 0.3

# %% [markdown]
# The first gradient is long, and the first step is half as long as that: in length it compares with
# the whole of $W$. After it the rows multiply by far more than 10, the next gradient is longer by powers of that, and
# within a few steps float32 has no number left.

# %%
first_step = 0.5 * unclipped[0, 1]
assert first_step > 0.5 * np.linalg.norm(start_values[1])  # against W
assert first_step > 10 * 0.5 * clip_norm  # against the longest step that global clipping allows

# %% [markdown]
# Now with clipping: one changed line, twice.
#
# **Predict.** After clipping by tensor with limit $c$, how long can the whole gradient of these *five* tensors still be?

# %%
runs = {
    "by tensor": train_recurrent(lambda gradients: [tf.clip_by_norm(g, clip_norm) for g in gradients]),
    "globally": train_recurrent(lambda gradients: tf.clip_by_global_norm(gradients, clip_norm)[0]),
}
for name, (rows, accuracy) in runs.items():
    print(f"clipped {name:<9}  finite to the end: {np.isfinite(rows).all()}  test accuracy above 0.7: {accuracy > 0.7}")

# %%
for rows, accuracy in runs.values():
    assert len(rows) == recurrent_steps
    assert np.isfinite(rows).all()
    assert accuracy > 0.7
assert runs["globally"][0][:, 2].max() <= clip_norm * 1.001
assert runs["by tensor"][0][:, 2].max() <= clip_norm * np.sqrt(5) * 1.001

# %% [markdown]
# Same start, same batches, same learning rate: the run that died within a few steps now learns. By tensor the whole gradient can be $\sqrt 5\, c$
# long, because each of the five may be $c$ long; compare the two ways with that in mind.

# %% alt="Two panels over the training steps, all axes logarithmic. Left, the loss: the unclipped curve shoots out of the top within a few steps; both clipped curves come down. Right, the gradient norm before clipping: the unclipped curve again leaves at the top; the clipped ones come down towards a dotted line at the limit."
_, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for rows, colour, style, name in (
    (unclipped, plots.GREY, "x-", "not clipped"),
    (runs["by tensor"][0], plots.RED, "-", "clipped by tensor"),
    (runs["globally"][0], plots.BLUE, "--", "clipped globally"),
):
    steps = np.arange(1, len(rows) + 1)
    drawn = np.nan_to_num(rows, nan=1e38, posinf=1e38)  # no longer finite: far above the picture
    left.plot(steps, drawn[:, 0], style, color=colour, label=name)
    right.plot(steps, drawn[:, 1], style, color=colour, label=name)
right.axhline(clip_norm, color="black", linestyle=":", label="limit")
for ax, title, name in ((left, "Loss", "loss (nats)"), (right, "Gradient norm before clipping", "global norm")):
    ax.set(title=title, xlabel="step (logarithmic)", ylabel=name, xscale="log", yscale="log", ylim=(0.03, 1e4))
right.legend(loc="upper right")
plt.show()

# %% [markdown]
# ## 6. Check it independently
#
# The classifier's loss needs nothing but NumPy: two matrix products, a `tanh`, and the logarithm of a sum of exponentials. In float64, its
# central differences along random directions in the space of *all* parameters must agree with the tape's gradient.


# %%
few_images, few_labels = digits.x_train[:7], digits.y_train[:7]
model.set_weights(initial)

with tf.GradientTape() as tape:
    loss = loss_fn(few_labels, model(few_images, training=True))
gradients = tape.gradient(loss, model.trainable_variables)


def numpy_loss(flat):
    """The loss of section 1 in float64; `flat` holds kernel, bias, kernel, bias, one after the other."""
    edges = np.cumsum([value.size for value in initial])[:-1]
    W1, b1, W2, b2 = (part.reshape(v.shape) for part, v in zip(np.split(flat, edges), initial, strict=True))
    logits = np.tanh(few_images.reshape(7, -1).astype(np.float64) @ W1 + b1) @ W2 + b2
    return np.mean(np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(7), few_labels])


flat_initial = np.concatenate([value.ravel() for value in initial])
flat_gradient = np.concatenate([np.ravel(gradient) for gradient in gradients])
error = gradcheck.check_gradient(numpy_loss, flat_gradient, flat_initial, rtol=1e-5)
print("the tape's gradient agrees with central differences:", error < 1e-5)

# %% [markdown]
# For the last bias there is a closed form as well: the derivative of the mean loss is the mean of (probabilities − one-hot labels).

# %%
probabilities = tf.nn.softmax(model(few_images, training=True)).numpy()
closed_form = np.mean(probabilities - np.eye(classes)[few_labels], axis=0)

# %%
assert error < 1e-5
np.testing.assert_allclose(float(loss), numpy_loss(flat_initial.astype(np.float64)), rtol=1e-5)
np.testing.assert_allclose(gradients[3], closed_form, rtol=1e-4, atol=1e-6)

# %% [markdown]
# ## Recap
#
# - A step is: forward pass and loss inside the tape, `tape.gradient`, then `apply_gradients`; plain SGD is `assign_sub` of rate times gradient, and other optimisers add a memory (section 1).
# - The loop shuffles, goes through the batches, and resets its metrics at every epoch; a metric gathered while training describes the epoch, not the model at its end (section 2).
# - `tf.function` compiles the step; its Python code runs once for each shape of the arguments, not once for each call (section 3).
# - Learning curves compare both sets with the same weights; the confusion matrix has the truth on its rows and says which classes are mistaken for which (section 4).
# - Clipping by global norm keeps the gradient's direction, clipping each tensor turns it; either keeps alive a run that explodes without it (section 5).
#
# | Trap | What you see | What to do |
# |---|---|---|
# | logits given to a loss that expects probabilities | a huge loss with a gradient of 0 | `from_logits=True` |
# | a metric is not reset | averages over all epochs so far | `reset_state()` at the start of each epoch |
# | training accuracy from the running metric | it lies below the test accuracy at first | evaluate both with the same weights |
# | Python side effects inside `tf.function` | they happen once for each trace | return what you need |
# | a new optimiser with an old compiled step | the step goes on with the old one | make both together |
# | the gradient holds an infinity | NaN everywhere after clipping | test for it and skip the step |
# | `clip_by_global_norm` returns two things | a tuple where a list is expected | `clipped, norm = ...` |
#
# **Read next:** [03 When the gradient is None](03_when_the_gradient_is_none.ipynb) is about steps in which a variable gets no gradient at all.
