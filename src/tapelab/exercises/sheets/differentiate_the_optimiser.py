"""Exercises and predictions of the notebook "Differentiate the optimiser"."""

from tapelab.exercises import Exercise, Function, Prediction

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

before = Prediction(
    "differentiate_the_optimiser.before",
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
    "differentiate_the_optimiser.dropped",
    options=("less than 1.1 times", "1.3 to 2 times", "more than 4 times"),
    remarks=(
        (
            "less than 1.1 times",
            "So it may be after many steps. After the one step that the starts were trained for, the second "
            "derivatives show.",
        ),
        (
            "more than 4 times",
            "That is what training jointly, without any step, costs. The first-order start still knows that a step "
            "follows.",
        ),
    ),
)


def _gradient_at(f, w):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = f(w)
    return tape.gradient(value, w)


def _product_at(f, w, v):
    with tf.GradientTape() as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = f(w)
        g = inner.gradient(value, w)
    return outer.gradient(g, w, output_gradients=v)


def _points(f, w, rates):
    """The points that gradient descent visits, the first and the last one included."""
    points = [w]
    for rate in tf.unstack(rates):
        points.append(points[-1] - rate * _gradient_at(f, points[-1]))
    return points


def _backwards(f, w, rates):
    """The chain rule by hand, from the last step to the first: no tape around the loop."""
    points = _points(f, w, rates)
    adjoint, found = _gradient_at(f, points[-1]), []
    for rate, point in zip(reversed(tf.unstack(rates)), reversed(points[:-1]), strict=True):
        found.append(-tf.tensordot(_gradient_at(f, point), adjoint, 1))
        adjoint -= rate * _product_at(f, point, adjoint)
    return tf.stack(found[::-1])


def _bowl(w):
    """A convex function whose curvature changes from place to place."""
    return tf.reduce_sum(tf.cosh(w)) + tf.reduce_sum(w) ** 2


def _valley(w):
    return tf.reduce_sum((w[1:] - w[:-1] ** 2) ** 2) + 0.5 * tf.reduce_sum((1.0 - w) ** 2)


def _runs(random, dtype):
    """Functions, starting points and a few rates, small enough that no run explodes."""
    trials = []
    for f, size, count in ((_bowl, 2, 2), (_bowl, 3, 4), (_valley, 4, 3)):
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
            w = w - rate * tf.stop_gradient(_gradient_at(f, w))
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
            w = w - rate * _gradient_at(f, w)
            after = f(w)
        found.append(outer.gradient(after, rate))
    return tf.stack(found)


@unrolled.mistake("shared")
def _(f, w, rates):
    """This is one number: the derivative by a rate that all steps share. Every step has its own."""
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
    for f, size, rate, steps in ((_bowl, 2, 0.1, 3), (_bowl, 3, 0.06, 10), (_valley, 4, 0.08, 5)):
        w = tf.constant(random.uniform(-1.0, 1.0, size=size), dtype)
        trials.append((f, w, tf.constant(rate, dtype), steps))
    return trials


sensitivity = Exercise(
    title="How a whole run answers to its rate",
    minutes=15,
    beyond=True,
    hints=(
        r"Differentiate the step $w_{t+1} = w_t - \eta\, g(w_t)$ itself by $\eta$. Which two things on its right-hand "
        r"side depend on $\eta$, besides $\eta$?",
        r"With $s_t = \mathrm dw_t/\mathrm d\eta$: $s_{t+1} = s_t - g(w_t) - \eta\, H(w_t)\, s_t$, and $s_0 = 0$. It "
        r"is forward mode, written out.",
        "Carry `w` and `s` together, and update `s` before `w`. $H(w_t)\\, s_t$ is a product as in [14 Without the "
        "matrix](14_without_the_matrix.ipynb): `outer.gradient(g, w, output_gradients=s)`.",
    ),
    checker=Function(reference=_by_jacobian, inputs=_long_runs),
)


@sensitivity.starter("point_by_rate")
def _(f, w, rate, steps):
    return ...  # the derivative of the last point by the rate, shape (n,)


@sensitivity.right
def _(f, w, rate, steps):
    r"""The derivative $s_t = \mathrm dw_t/\mathrm d\eta$ travels with the point: $s_{t+1} = s_t - g - \eta H s_t$. One
    number to differentiate by and a whole point to be differentiated: forward mode is the way to go. It keeps one
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
    return -sum(_gradient_at(f, point) for point in _points(f, w, tf.fill([steps], rate))[:-1])


@sensitivity.mistake("no_rate")
def _(f, w, rate, steps):
    r"""The term with the Hessian lacks a factor. The step subtracts $\eta\, g(w)$: differentiate the whole product."""
    s = tf.zeros_like(w)
    for _ in range(steps):
        g = _gradient_at(f, w)
        s = s - g - _product_at(f, w, s)
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


def _through_the_step(fit, judge, w, rate):
    with tf.GradientTape() as outer:
        outer.watch(w)
        moved = w - rate * _gradient_at(fit, w)
        value = judge(moved)
    return outer.gradient(value, w)


def _pairs(random, dtype):
    """A function to step on, another one to judge the result, a start and a rate."""

    def other(w):
        return tf.reduce_sum(tf.sin(w) * tf.range(1, len(w) + 1, dtype=w.dtype)) + tf.reduce_sum(w**4)

    trials = []
    for fit, judge, size, rate in ((_bowl, other, 2, 0.1), (_valley, other, 4, 0.2), (other, _valley, 3, 0.15)):
        w = tf.constant(random.uniform(-1.0, 1.0, size=size), dtype)
        trials.append((fit, judge, w, tf.constant(rate, dtype)))
    return trials


meta = Exercise(
    title="MAML's gradient from a Hessian product",
    minutes=8,
    hints=(
        r"Section 3 has the formula: $(I - \alpha H)\,\nabla L_B(w')$. Of which function is $H$, and at which point?",
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
    return _gradient_at(judge, w - rate * _gradient_at(fit, w))


@meta.mistake("unmoved")
def _(fit, judge, w, rate):
    """This is the gradient of `judge` at the start itself. Where is the step?"""
    return _gradient_at(judge, w)


@meta.mistake("other_hessian")
def _(fit, judge, w, rate):
    """The Hessian is that of `judge`. Which of the two functions was the step taken on?"""
    moved = w - rate * _gradient_at(fit, w)
    v = _gradient_at(judge, moved)
    return v - rate * _product_at(judge, moved, v)


@meta.mistake("at_the_moved_point")
def _(fit, judge, w, rate):
    """The Hessian is taken at the moved point. At which point was the gradient taken that made the step?"""
    moved = w - rate * _gradient_at(fit, w)
    v = _gradient_at(judge, moved)
    return v - rate * _product_at(fit, moved, v)


@meta.mistake("plus")
def _(fit, judge, w, rate):
    """The term with the Hessian has the wrong sign. The step *subtracts* the gradient."""
    v = _gradient_at(judge, w - rate * _gradient_at(fit, w))
    return v + rate * _product_at(fit, w, v)
