"""Exercises and predictions of the notebook "Differentiate the training"."""

import weakref

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.landscapes import bowl, gradient_at, product_at, valley

import tensorflow as tf

beyond_limit = Prediction(
    "differentiate_the_training.beyond_limit",
    remarks=(
        (0, "So it must be for a rate that is used for ever. These eight are used once each."),
        (1, "One is far above it, at more than twelve times the limit. It is not alone."),
        (8, "Then nothing would hold the steep directions: some of the eight must serve curvatures near 100."),
    ),
)

before = Prediction(
    "differentiate_the_training.before",
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

dropped = Prediction(
    "differentiate_the_training.dropped",
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


def _points(f, w, rates):
    """The points that gradient descent visits, the first and the last one included."""
    points = [w]
    for rate in tf.unstack(rates):
        points.append(points[-1] - rate * gradient_at(f, points[-1]))
    return points


def _backwards(f, w, rates):
    """The chain rule by hand, from the last step to the first: no tape around the loop."""
    points = _points(f, w, rates)
    adjoint, found = gradient_at(f, points[-1]), []
    for rate, point in zip(reversed(tf.unstack(rates)), reversed(points[:-1]), strict=True):
        found.append(-tf.tensordot(gradient_at(f, point), adjoint, 1))
        adjoint -= rate * product_at(f, point, adjoint)
    return tf.stack(found[::-1])


def _runs(random, dtype):
    """Functions, starting points and a few rates, small enough that no run explodes."""
    trials = []
    for f, size, count in ((bowl, 2, 2), (bowl, 3, 4), (valley, 4, 3)):
        w = tf.constant(random.uniform(-1.0, 1.0, size=size), dtype)
        trials.append((f, w, tf.constant(random.uniform(0.05, 0.15, size=count), dtype)))
    return trials


unrolled = Exercise(
    title="A derivative for every rate",
    minutes=8,
    hints=(
        "What must a tape see so that it knows how the last point came about?",
        "All steps stand inside the outer tape, and every gradient is taken by a tape of its own *inside* it. The "
        "outer tape has to watch `rates`.",
        "`tf.unstack(rates)` gives the rates one by one, as the tape records. The target is `f(w)` after the last "
        "step.",
    ),
    checker=Function(reference=_backwards, inputs=_runs),
)


@unrolled.starter("by_each_rate")
def _(f, w, rates):
    return ...  # shape (T,), as rates


@unrolled.right
def _(f, w, rates):
    """The outer tape records the whole run, the inner gradients included: a rate moves every later point, and so every
    later gradient. It keeps all steps until it is asked, so memory grows with their number."""
    with tf.GradientTape() as outer:
        outer.watch(rates)
        for rate in tf.unstack(rates):
            with tf.GradientTape() as inner:
                inner.watch(w)
                value = f(w)
            w = w - rate * inner.gradient(value, w)
        last = f(w)
    return outer.gradient(last, rates)


@unrolled.mistake("frozen")
def _(f, w, rates):
    """The gradients of the steps are constants here: each rate moves the last point along its own gradient, and the
    later gradients do not notice. They do notice. What has cut the path?"""
    with tf.GradientTape() as outer:
        outer.watch(rates)
        for rate in tf.unstack(rates):
            w = w - rate * tf.stop_gradient(gradient_at(f, w))
        last = f(w)
    return outer.gradient(last, rates)


@unrolled.mistake("greedy")
def _(f, w, rates):
    """Each entry is the derivative of the value right *after* its own step. The value after the *last* step is asked
    for."""
    found = []
    for rate in tf.unstack(rates):
        with tf.GradientTape() as outer:
            outer.watch(rate)
            w = w - rate * gradient_at(f, w)
            after = f(w)
        found.append(outer.gradient(after, rate))
    return tf.stack(found)


@unrolled.mistake("shared")
def _(f, w, rates):
    """This is one number: the derivative with respect to a rate that all steps share. Every step has its own."""
    with tf.GradientTape() as outer:
        outer.watch(rates)
        last = f(_points(f, w, rates)[-1])
    return tf.reduce_sum(outer.gradient(last, rates))


@unrolled.wrong("none")
def _(f, w, rates):
    with tf.GradientTape() as outer:
        last = f(_points(f, w, rates)[-1])
    return outer.gradient(last, rates)


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
        r"Section 2 has the formula: $(I - \alpha H)\,\nabla L_B(w')$. Of which function is $H$, and at which point?",
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
    plays no part: no second derivative comes in. If the inner product is positive, a slightly longer step is better."""
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


def _long_runs(random, dtype):
    trials = []
    for f, size, rate, steps in ((bowl, 2, 0.1, 3), (bowl, 3, 0.06, 10), (valley, 4, 0.08, 5)):
        w = tf.constant(random.uniform(-1.0, 1.0, size=size), dtype)
        trials.append((f, w, tf.constant(rate, dtype), steps))
    return trials


def _observe_run(answer, f, w, rate, steps):
    levels, kept = [], []  # what a tape keeps of each step; how many steps it holds at the next one

    def watched(w):
        kept.append(sum(one() is not None for one in levels))
        level = tf.tanh(f(w) / 8)
        if tf.executing_eagerly():
            levels.append(weakref.ref(level))
        return 8 * level

    return {
        "the derivative": answer(watched, w, rate, steps),
        "the earlier steps still in memory at a later one": max(kept, default=0),
    }


def _carried(f, w, rate, steps):
    """Forward mode, by TensorFlow."""
    with tf.autodiff.ForwardAccumulator(rate, tf.ones_like(rate)) as accumulator:
        for _ in range(steps):
            w = w - rate * gradient_at(f, w)
    return accumulator.jvp(w)


sensitivity = Exercise(
    title="How a whole run answers to its rate",
    minutes=15,
    beyond=True,
    hints=(
        r"Differentiate the step $w_{t+1} = w_t - \eta\, g(w_t)$ itself with respect to $\eta$. Which two things on "
        r"its right-hand side depend on $\eta$, besides $\eta$?",
        r"With $s_t = \mathrm dw_t/\mathrm d\eta$: $s_{t+1} = s_t - g(w_t) - \eta\, H(w_t)\, s_t$, and $s_0 = 0$. It "
        r"is forward mode, written out.",
        "Carry `w` and `s` together, and update `s` before `w`. $H(w_t)\\, s_t$ is a product as in [14 Without the "
        "matrix](14_without_the_matrix.ipynb): `outer.gradient(g, w, output_gradients=s)`.",
    ),
    checker=Function(reference=_carried, inputs=_long_runs, observe=_observe_run),
    seconds=40.0,
)


@sensitivity.starter("point_by_rate")
def _(f, w, rate, steps):
    return ...  # the derivative of the last point with respect to the rate, shape (n,)


@sensitivity.right
def _(f, w, rate, steps):
    r"""The derivative $s_t = \mathrm dw_t/\mathrm d\eta$ travels with the point: $s_{t+1} = s_t - g - \eta H s_t$:
    forward mode. It keeps one vector, however many steps there are; a tape around the loop would keep them all."""
    s = tf.zeros_like(w)
    for _ in range(steps):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(w)
                value = f(w)
            g = inner.gradient(value, w)
        Hs = outer.gradient(g, w, output_gradients=s)
        s = s - g - rate * Hs
        w = w - rate * g
    return s


@sensitivity.mistake("long_tape")
def _(f, w, rate, steps):
    """The numbers are right. But one tape has recorded the whole run and keeps every step. What can travel with the
    point?"""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(rate)
        point = _points(f, w, tf.fill([steps], rate))[-1]
        parts = tf.unstack(point)
    return tf.stack([tape.gradient(part, rate) for part in parts])


@sensitivity.mistake("frozen")
def _(f, w, rate, steps):
    """This is minus the sum of the gradients, as if each of them stayed what it is when the rate changes. But the point
    at which it is taken moves."""
    return -sum(gradient_at(f, point) for point in _points(f, w, tf.fill([steps], rate))[:-1])


@sensitivity.mistake("no_rate")
def _(f, w, rate, steps):
    r"""The term with the Hessian lacks a factor. The step subtracts $\eta\, g(w)$: differentiate the whole product."""
    s = tf.zeros_like(w)
    for _ in range(steps):
        g = gradient_at(f, w)
        s = s - g - product_at(f, w, s)
        w = w - rate * g
    return s


@sensitivity.mistake("value")
def _(f, w, rate, steps):
    """This is the derivative of the last *value*, a scalar. The derivative of the last *point* is asked for."""
    with tf.GradientTape() as outer:
        outer.watch(rate)
        last = f(_points(f, w, tf.fill([steps], rate))[-1])
    return outer.gradient(last, rate)


@sensitivity.mistake("summed")
def _(f, w, rate, steps):
    """This is the derivative of the *sum* of the last point's entries: a tape adds up a target of several entries."""
    with tf.GradientTape() as outer:
        outer.watch(rate)
        last = _points(f, w, tf.fill([steps], rate))[-1]
    return outer.gradient(last, rate)
