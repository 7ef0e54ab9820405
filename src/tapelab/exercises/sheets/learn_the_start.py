"""Exercises and predictions of the notebook "Learn the start"."""

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.landscapes import bowl, gradient_at, product_at, valley

import tensorflow as tf

before = Prediction(
    "learn_the_start.before",
    options=("smaller", "about the same", "larger by half or more"),
    remarks=(
        ("smaller", "Nothing in its training asked for a small error before the step."),
        (
            "larger by half or more",
            "Nothing in its training forbids it. But a start far from all sines would have a longer way to go in its "
            "one step.",
        ),
    ),
)

patience = Prediction(
    "learn_the_start.patience",
    options=("less than half", "the same within a tenth", "larger"),
    remarks=(
        (
            "less than half",
            "On the ten points that it sees, Adam leaves next to nothing. The error is measured on ten others.",
        ),
        (
            "the same within a tenth",
            "Nothing makes them meet: one was led there by other sines, the other by ten points alone.",
        ),
    ),
)

dropped = Prediction(
    "learn_the_start.dropped",
    options=("at most 1.05 times", "1.05 to 2 times", "more than 4 times"),
    remarks=(
        (
            "at most 1.05 times",
            "Twice the rounds buy back much of what the second derivatives give. Not all of it, here.",
        ),
        (
            "more than 4 times",
            "That is what training jointly, without any step, costs. The first-order start still knows that a step "
            "follows.",
        ),
    ),
)


def _through_the_step(fit, judge, w, rate):
    with tf.GradientTape() as outer:
        outer.watch(w)
        moved = w - rate * gradient_at(fit, w)
        value = judge(moved)
    return outer.gradient(value, w)


def _pairs(random, dtype):
    """A function to step on, another one to judge the result, a start and a rate."""

    def other(w):
        return tf.reduce_sum(tf.sin(w) * tf.range(1, len(w) + 1, dtype=w.dtype)) + tf.reduce_sum(w**4)

    trials = []
    for fit, judge, size, rate in ((bowl, other, 2, 0.1), (valley, other, 4, 0.2), (other, valley, 3, 0.15)):
        w = tf.constant(random.uniform(-1.0, 1.0, size=size), dtype)
        trials.append((fit, judge, w, tf.constant(rate, dtype)))
    return trials


meta = Exercise(
    title="MAML's gradient from a Hessian product",
    minutes=8,
    hints=(
        r"Section 1 has the formula: $(I - \alpha H)\,\nabla L_B(w')$. Of which function is $H$, and at which point?",
        r"First $w'$, from the gradient of `fit` at $w$. Then $v = \nabla L_B(w')$, the gradient of `judge` there. "
        r"Last $Hv$, with the Hessian of `fit` at $w$.",
        "`outer.gradient(g, w, output_gradients=v)` is $Hv$, where `g` is the gradient of `fit` at `w`, computed while "
        "the outer tape records.",
    ),
    checker=Function(reference=_through_the_step, inputs=_pairs),
)


@meta.starter("meta_gradient")
def _(fit, judge, w, rate):
    return ...  # shape (n,), as w


@meta.right
def _(fit, judge, w, rate):
    r"""The step $w' = w - \alpha\, g(w)$ has the Jacobian $I - \alpha H$, which is symmetric, and the chain rule
    multiplies $\nabla L_B(w')$ by it. One product with the Hessian of `fit` at the *old* point: that is all that the
    second derivatives cost."""
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = fit(w)
        g = inner.gradient(value, w)
    moved = w - rate * g
    with tf.GradientTape() as tape:
        tape.watch(moved)
        value = judge(moved)
    v = tape.gradient(value, moved)
    return v - rate * outer.gradient(g, w, output_gradients=v)


@meta.mistake("first_order")
def _(fit, judge, w, rate):
    """This is the first-order version: the gradient at the moved point, as if the step did not depend on the start.
    The term with the Hessian is missing."""
    return gradient_at(judge, w - rate * gradient_at(fit, w))


@meta.mistake("unmoved")
def _(fit, judge, w, rate):
    """This is the gradient of `judge` at the start itself. Where is the step?"""
    return gradient_at(judge, w)


@meta.mistake("other_hessian")
def _(fit, judge, w, rate):
    """The Hessian is that of `judge`. Which of the two functions was the step taken on?"""
    moved = w - rate * gradient_at(fit, w)
    v = gradient_at(judge, moved)
    return v - rate * product_at(judge, moved, v)


@meta.mistake("at_the_moved_point")
def _(fit, judge, w, rate):
    """The Hessian is taken at the moved point. At which point was the gradient taken that made the step?"""
    moved = w - rate * gradient_at(fit, w)
    v = gradient_at(judge, moved)
    return v - rate * product_at(fit, moved, v)


@meta.mistake("plus")
def _(fit, judge, w, rate):
    """The term with the Hessian has the wrong sign. The step *subtracts* the gradient."""
    v = gradient_at(judge, w - rate * gradient_at(fit, w))
    return v + rate * product_at(fit, w, v)


def _by_tape(fit, judge, w, rate):
    with tf.GradientTape() as tape:
        tape.watch(rate)
        value = judge(w - rate * gradient_at(fit, w))
    return tape.gradient(value, rate)


step_length = Exercise(
    title="How long should the step be?",
    minutes=5,
    beyond=True,
    hints=(
        r"$w' = w - \alpha\, g$ moves along $-g$ when $\alpha$ grows. How does `judge` change along that direction?",
        r"A derivative along a direction is an inner product with the gradient, which is taken at $w'$.",
        "It is minus `tf.reduce_sum` of the product of two gradients: that of `fit` at `w`, that of `judge` at the "
        "moved point.",
    ),
    checker=Function(reference=_by_tape, inputs=_pairs),
)


@step_length.starter("by_the_rate")
def _(fit, judge, w, rate):
    return ...  # a scalar


@step_length.right
def _(fit, judge, w, rate):
    r"""The moved point depends on $\alpha$ through $-\alpha g$ alone, and $g$ is taken at the start, where $\alpha$
    plays no part: no second derivative comes in. If the two gradients point the same way, the step was too short."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = fit(w)
    g = tape.gradient(value, w)
    moved = w - rate * g
    with tf.GradientTape() as tape:
        tape.watch(moved)
        value = judge(moved)
    return -tf.reduce_sum(g * tape.gradient(value, moved))


@step_length.mistake("at_the_start")
def _(fit, judge, w, rate):
    r"""The gradient of `judge` is taken at the start: this is the derivative at $\alpha = 0$. Where does the chain rule
    take it?"""
    return -tf.reduce_sum(gradient_at(fit, w) * gradient_at(judge, w))


@step_length.mistake("plus")
def _(fit, judge, w, rate):
    """The sign is wrong. The step *subtracts* the gradient."""
    g = gradient_at(fit, w)
    return tf.reduce_sum(g * gradient_at(judge, w - rate * g))


@step_length.mistake("one_function")
def _(fit, judge, w, rate):
    """Both gradients are those of `fit`. By which function is the moved point judged?"""
    g = gradient_at(fit, w)
    return -tf.reduce_sum(g * gradient_at(fit, w - rate * g))


@step_length.mistake("logarithm")
def _(fit, judge, w, rate):
    """There is a factor of the rate too many: it belongs to the derivative with respect to the rate's *logarithm*."""
    g = gradient_at(fit, w)
    return -rate * tf.reduce_sum(g * gradient_at(judge, w - rate * g))
