"""Case 11, the layer that was to stay."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals

import tensorflow as tf


def _kernels(random, dtype):
    def trial(rows, inside=1):
        first = [normals(random, dtype, 2, 2) for _ in range(inside)]
        return first, *(normals(random, dtype, *shape) for shape in ((2, 2), (rows, 2), (rows, 2)))

    return [trial(3), trial(6), trial(6, inside=2)]


def _after(answer, first, second, x, y):
    """The kernels after the training step, in a model of its own: the step changes it."""
    *inside, last = (tf.keras.layers.Dense(2, use_bias=False) for _ in (*first, second))
    layers = [*inside, last] if len(inside) == 1 else [tf.keras.Sequential(inside), last]  # a layer of two layers
    model = tf.keras.Sequential([tf.keras.Input((2,)), *layers])
    model.set_weights([*first, second])
    answer(model, x, y)
    return {"the first layer": tf.stack(layers[0].get_weights()), "the second kernel": tf.constant(last.kernel)}


def _second_moved(model, x, y):
    first, second = model.layers[0], model.layers[1].kernel
    hidden = first(x).numpy()
    errors = hidden @ second.numpy() - y.numpy()
    second.assign(second.numpy() - 0.1 * hidden.T @ (2.0 * errors / errors.size))


kept_layer = Exercise(
    title="Case 11, the layer that was to stay",
    minutes=6,
    hints=(
        "How many gradients are there? How many variables does the loop count through?",
        "Print the names: `[v.path for v in model.trainable_variables]`, and the same for `model.variables`.",
        "Freezing is wanted. Ask for the same list as you move: the one that leaves the frozen layer out.",
        "Count through `model.trainable_variables` in the last line as well.",
    ),
    checker=Repair(
        reference=_second_moved,
        inputs=_kernels,
        observe=_after,
        dtypes=(tf.float32,),
        diagnosis=diagnosis(
            "the last line",
            the_freezing="`trainable = False` does what it says. Print the gradients: how many are there, and whose?",
            nothing_is_wrong="There is no error, no `None` and no NaN. Which layer was to stay, and which has moved?",
        ),
    ),
)


@kept_layer.starter()
def _():
    cause = ...  # "nothing is wrong", "the freezing" or "the last line"

    def repaired(model, x, y):
        model.layers[0].trainable = False
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for i, gradient in enumerate(gradients):
            model.variables[i].assign_sub(0.1 * gradient)

    return cause, repaired


@kept_layer.right
def _():
    """A frozen layer leaves `trainable_variables`, and stays in `variables`: from there on the two lists are shifted
    against each other. The gradient of the second kernel was subtracted from the first: the shapes agree, and nothing
    raised. `zip(gradients, model.trainable_variables, strict=True)` keeps a gradient and its variable together."""
    cause = "the last line"

    def repaired(model, x, y):
        model.layers[0].trainable = False
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        for i, gradient in enumerate(gradients):
            model.trainable_variables[i].assign_sub(0.1 * gradient)

    return cause, repaired


def _moved(model, x, y, kernels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    for kernel, gradient in zip(kernels, tape.gradient(loss, kernels), strict=True):
        kernel.assign_sub(0.1 * gradient)


@kept_layer.mistake("thawed")
def _(model, x, y):
    """Gradients and variables fit together now, and the layer that was to stay is among them: it learns along. A layer
    that is frozen leaves `trainable_variables`, not `variables`."""
    _moved(model, x, y, model.variables)


@kept_layer.wrong("thawed")
def _(model, x, y):
    model.layers[0].trainable = False
    _moved(model, x, y, model.variables)


@kept_layer.mistake("nothing_moves")
def _(model, x, y):
    """The first layer stays, and so does the second: nothing is learnt."""


@kept_layer.mistake("other_layer")
def _(model, x, y):
    """Now the first layer learns, with its own gradient, and the second stays. It was to be the other way round."""
    _moved(model, x, y, model.layers[0].variables)


@kept_layer.mistake("one_further")
def _(model, x, y):
    """Right, while the layer that stays has one variable. In another network it has two, and the second of them has
    moved."""
    kernel, wrong = model.layers[1].kernel, model.variables[1]
    start = tf.constant(kernel)
    _moved(model, x, y, [kernel])
    step = kernel - start
    kernel.assign(start)
    wrong.assign_add(step)


@kept_layer.mistake("uphill")
def _(model, x, y):
    """The right layer moves, and uphill."""
    kernel = model.layers[1].kernel
    start = tf.constant(kernel)
    _moved(model, x, y, [kernel])
    kernel.assign(2.0 * start - kernel)
