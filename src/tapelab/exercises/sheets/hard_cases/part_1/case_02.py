"""Case 2, learning how to learn."""

from tapelab.exercises import Exercise, Repair
from tapelab.exercises.cases import diagnosis, normals, with_gradients

import tensorflow as tf


def _tasks(random, dtype):
    def task(rate, rows):
        x, y = normals(random, dtype, rows, 2), normals(random, dtype, rows)
        return tf.constant(rate, dtype), normals(random, dtype, 2), x, y

    return [task(0.1, 3), task(0.3, 6)]


def _after_one_step(rate, w, x, y):
    """The gradient of the inner loss in closed form."""
    adapted = w - rate * 2.0 * tf.linalg.matvec(x, tf.linalg.matvec(x, w) - y, transpose_a=True) / len(y)
    return tf.reduce_mean((tf.linalg.matvec(x, adapted) - y) ** 2)


inner_step = Exercise(
    title="Case 2, learning how to learn",
    minutes=8,
    hints=(
        "Two lines turn tensors into the state of a variable. Which?",
        "What an assignment stores has no history: reading the variable back gives numbers, and a tape does not know "
        "where they come from. A tensor with a name of its own does have one.",
        "Compute `adapted = w - rate * …` and use it in the last line. Is the gradient of `w` there as well, or only "
        "that of `rate`?",
        "The first line cuts the path to `w` in the same way. Without it `w` is a tensor, and the inner tape has to be "
        "told to watch it. (`tf.stop_gradient` around the inner gradient is a known shortcut, not this derivative.)",
    ),
    checker=Repair(
        reference=_after_one_step,
        inputs=_tasks,
        observe=with_gradients("the rate", "w"),
        diagnosis=diagnosis(
            "assignment",
            the_inner_tape="The inner gradient is right, and the outer tape records how it was computed. What happens "
            "to it next?",
            constant_rate="The outer tape is told to watch `rate`: a constant is no obstacle then.",
        ),
    ),
)


@inner_step.starter()
def _():
    cause = ...  # "assignment", "constant rate" or "the inner tape"

    def repaired(rate, w, x, y):
        w = tf.Variable(w)
        with tf.GradientTape() as inner:
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        w.assign_sub(rate * inner.gradient(loss, w))
        return tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)

    return cause, repaired


@inner_step.right
def _():
    """A variable is a box: what is put in has no history when it is taken out. `tf.Variable(w)` and `assign_sub` both
    put something in. With tensors only, the outer tape follows the step, and the gradient of `w` has a second
    derivative of the loss in it."""
    cause = "assignment"

    def repaired(rate, w, x, y):
        with tf.GradientTape() as inner:
            inner.watch(w)
            loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
        adapted = w - rate * inner.gradient(loss, w)
        return tf.reduce_mean((tf.linalg.matvec(x, adapted) - y) ** 2)

    return cause, repaired


def _inner_gradient(w, x, y):
    with tf.GradientTape() as inner:
        inner.watch(w)
        loss = tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)
    return inner.gradient(loss, w)


def _loss_at(w, x, y):
    return tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)


@inner_step.mistake("still_a_box")
def _(rate, w, x, y):
    """Half mended: the gradient of `rate` is right, and that of `w` is `None`. One more line puts a tensor into a
    variable."""
    box = tf.Variable(w)
    return _loss_at(box - rate * _inner_gradient(box, x, y), x, y)


@inner_step.mistake("first_order")
def _(rate, w, x, y):
    """The values are right, and so is the gradient of `rate`. That of `w` lacks a part: the step itself changes with
    `w`, and here it counts as a constant: a `stop_gradient` does that, and so does a gradient taken at a variable. As a
    shortcut it has a name, first-order MAML; it is another gradient."""
    return _loss_at(w - rate * tf.stop_gradient(_inner_gradient(w, x, y)), x, y)


@inner_step.mistake("no_step")
def _(rate, w, x, y):
    """This is the loss before the step: the assignment is gone, and nothing has taken its place."""
    return _loss_at(w, x, y)


@inner_step.mistake("uphill")
def _(rate, w, x, y):
    """The path is there. The step goes uphill: `assign_sub` subtracts."""
    return _loss_at(w + rate * _inner_gradient(w, x, y), x, y)
