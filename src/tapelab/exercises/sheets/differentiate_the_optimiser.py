"""Exercises and predictions of the notebook "Differentiate the optimiser"."""

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.landscapes import bowl, gradient_at, product_at, valley

import tensorflow as tf

beyond_limit = Prediction(
    "differentiate_the_optimiser.beyond_limit",
    remarks=(
        (0, "So it must be for a rate that is used for ever. These eight are used once each."),
        (1, "One is far above it, at more than twelve times the limit. It is not alone."),
        (8, "Then nothing would hold the steep directions: some of the eight must serve curvatures near 100."),
    ),
)

follows_sign = Prediction(
    "differentiate_the_optimiser.follows_sign",
    options=("above 2", "between 0.5 and 2", "below 0.2"),
    remarks=(
        ("above 2", "So it would be if the *size* of the derivative set the pace. Here only its sign does."),
        (
            "between 0.5 and 2",
            "The climb takes under half of the steps: from a rate of 1e-6 to one of 1 are fourteen units of the "
            "logarithm, at a tenth a step.",
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


def _by_jacobian(f, w, rate, steps):
    """The whole run on a tape, and as many backward passes as the point has entries."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(rate)
        point = _points(f, w, tf.fill([steps], rate))[-1]
        parts = tf.unstack(point)
    return tf.stack([tape.gradient(part, rate) for part in parts])


def _long_runs(random, dtype):
    trials = []
    for f, size, rate, steps in ((bowl, 2, 0.1, 3), (bowl, 3, 0.06, 10), (valley, 4, 0.08, 5)):
        w = tf.constant(random.uniform(-1.0, 1.0, size=size), dtype)
        trials.append((f, w, tf.constant(rate, dtype), steps))
    return trials


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
    checker=Function(reference=_by_jacobian, inputs=_long_runs),
)


@sensitivity.starter("point_by_rate")
def _(f, w, rate, steps):
    return ...  # the derivative of the last point with respect to the rate, shape (n,)


@sensitivity.right
def _(f, w, rate, steps):
    r"""The derivative $s_t = \mathrm dw_t/\mathrm d\eta$ travels with the point: $s_{t+1} = s_t - g - \eta H s_t$. One
    number as the source and a whole point to be differentiated: forward mode is the way to go. It keeps one
    vector, however many steps there are; a tape around the loop would keep them all."""
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
