"""Exercises and predictions of the notebook "A generative model from a trace"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value
from tapelab.exercises.sheets.jacobians import _count_passes

import tensorflow as tf

constant = Prediction(
    "generative_model_from_a_trace.constant",
    remarks=(
        (0.26, "That is the density's factor. The score is the slope of its *logarithm*."),
        (-1.35, "That is the logarithm of the constant, and it is added. What is the slope of something added?"),
        (0, "The constant's own slope is 0. What is left of the slope of the sum?"),
    ),
    rtol=0.02,
)

traceless = Prediction(
    "generative_model_from_a_trace.traceless",
    options=("the score, more slowly", "nothing: it stays random", "zero everywhere"),
    remarks=(
        ("the score, more slowly", "Nothing in the rest of the loss knows where the points are dense."),
        ("nothing: it stays random", "There is a gradient, and it makes something smaller. What?"),
    ),
)

values = Prediction(
    "generative_model_from_a_trace.values",
    remarks=(
        (1000, "The vectors consist of signs, and there are not many of these in two dimensions."),
        (4, "There are four vectors. Which of them give the same number? Try v and -v."),
        (3, "The product of two signs is +1 or -1, and never 0."),
        (1, "The diagonal always comes out whole. The other entries, 3, do not vanish in a single estimate."),
    ),
)

enough = Prediction(
    "generative_model_from_a_trace.enough",
    options=("a tenth", "a half", "nearly the same"),
    remarks=(
        ("a tenth", "A single estimate is indeed far off. How many of them meet in one training?"),
        ("a half", "Compare the probe's noise with the noise that a batch of 256 points has anyway."),
    ),
)

share = Prediction(
    "generative_model_from_a_trace.share",
    remarks=(
        (0.2, "That is the long run. Think of the arrows between two clusters: which way do they point?"),
        (1.0, "Some do get across: without a slope the kicks of 500 steps add up to about three along each axis."),
    ),
    rtol=0.15,
)


def _fields(random, dtype):
    """Fields of arrows in two, three and four dimensions, with points; the Jacobians are not symmetric."""
    trials = []
    for d, n in ((2, 5), (3, 4), (4, 7)):
        inner = tf.constant(random.normal(size=(d, 6)) / d**0.5, dtype)
        outer = tf.constant(random.normal(size=(6, d)), dtype)
        x = tf.constant(random.normal(size=(n, d)), dtype)
        trials.append((lambda x, inner=inner, outer=outer: tf.tanh(x @ inner) @ outer, x))
    return trials


def _jacobians(field, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    return arrows, tape.batch_jacobian(arrows, x)


def _score_matching(field, x):
    arrows, jacobians = _jacobians(field, x)
    return tf.reduce_mean(tf.linalg.trace(jacobians) + tf.reduce_sum(arrows**2, axis=1) / 2)


matching = Exercise(
    title="The loss of a field",
    minutes=8,
    hints=(
        "The Jacobian of each arrow by its own point has the shape (n, d, d). Which call of the tape returns it?",
        "`tape.batch_jacobian(arrows, x)`, and `tf.linalg.trace` of it has the shape (n,).",
        "Half the squared length of each arrow is `0.5 * tf.reduce_sum(arrows**2, axis=1)`. Take the mean last.",
    ),
    checker=Function(reference=_score_matching, inputs=_fields, rtol=2e-4),
)


@matching.starter("score_matching")
def _(field, x):
    return ...  # a scalar


@matching.right
def _(field, x):
    r"""The batch Jacobian's diagonal holds $\partial s_i / \partial x_i$ at each point. Both terms belong to a point,
    and the mean over the points comes last."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    traces = tf.linalg.trace(tape.batch_jacobian(arrows, x))
    return tf.reduce_mean(traces + 0.5 * tf.reduce_sum(arrows**2, axis=1))


@matching.mistake("all_entries")
def _(field, x):
    """`gradient` of the arrows adds up all their components, so the sum of its result holds every entry of the
    Jacobian. The trace is the diagonal alone."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    every = tf.reduce_sum(tape.gradient(arrows, x), axis=1)
    return tf.reduce_mean(every + 0.5 * tf.reduce_sum(arrows**2, axis=1))


@matching.mistake("sign_of_trace")
def _(field, x):
    """The integration by parts turns the sign once, and the square's mixed term had a minus already."""
    arrows, jacobians = _jacobians(field, x)
    return tf.reduce_mean(0.5 * tf.reduce_sum(arrows**2, axis=1) - tf.linalg.trace(jacobians))


@matching.mistake("no_half")
def _(field, x):
    """The square has lost its half. Its minimum would be half the score."""
    arrows, jacobians = _jacobians(field, x)
    return tf.reduce_mean(tf.linalg.trace(jacobians) + tf.reduce_sum(arrows**2, axis=1))


@matching.mistake("mean_over_components")
def _(field, x):
    """The squared length is a *sum* over the components. A mean makes it smaller by the number of dimensions."""
    arrows, jacobians = _jacobians(field, x)
    return tf.reduce_mean(tf.linalg.trace(jacobians)) + 0.5 * tf.reduce_mean(arrows**2)


@matching.mistake("sum_over_points")
def _(field, x):
    """This is the sum over the points. The loss is a mean: it must not grow with the batch."""
    arrows, jacobians = _jacobians(field, x)
    return tf.reduce_sum(tf.linalg.trace(jacobians) + 0.5 * tf.reduce_sum(arrows**2, axis=1))


def _fields_with_signs(random, dtype):
    return [
        (field, x, tf.constant(random.choice([-1.0, 1.0], size=x.shape), dtype)) for field, x in _fields(random, dtype)
    ]


def _one_estimate(field, x, v):
    """By a forward pass: the arrows' change along v, times v."""
    with tf.autodiff.ForwardAccumulator(x, v) as accumulator:
        arrows = field(x)
    return tf.reduce_sum(v * accumulator.jvp(arrows), axis=1)


estimate = Exercise(
    title="One product",
    minutes=6,
    hints=(
        r"`output_gradients=v` multiplies the Jacobian from the left: `gradient` returns $v^\top J$ at each point.",
        "Multiply that by $v$ once more, and add up over the axis of the dimensions, not over the points.",
    ),
    checker=Function(
        reference=_one_estimate,
        inputs=_fields_with_signs,
        observe=_count_passes("the estimate", lambda field, x, v: 1, _one_estimate),
        rtol=2e-4,
    ),
)


@estimate.starter("one_estimate")
def _(field, x, v):
    return ...  # one number for each point


@estimate.right
def _(field, x, v):
    r"""The backward pass gives $v^\top J$ at each point, at the price of one gradient. Times $v$ it is $v^\top J v$."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    return tf.reduce_sum(v * tape.gradient(arrows, x, output_gradients=v), axis=1)


@estimate.mistake("once")
def _(field, x, v):
    """$v$ stands on one side only. The diagonal entries keep random signs, and their mean is 0."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    return tf.reduce_sum(tape.gradient(arrows, x, output_gradients=v), axis=1)


@estimate.mistake("no_signs_inside")
def _(field, x, v):
    """`gradient` without `output_gradients` starts with ones in the place of $v$."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    return tf.reduce_sum(v * tape.gradient(arrows, x), axis=1)


@estimate.mistake("added_over_points")
def _(field, x, v):
    """One number for all points. Each point has an estimate of its own."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        arrows = field(x)
    return tf.reduce_sum(v * tape.gradient(arrows, x, output_gradients=v))


@estimate.mistake("whole_jacobian")
def _(field, x, v):
    """The estimate is right, and the whole Jacobian was computed for it: a pass for each dimension. One is enough, and
    that is what the estimate is for."""
    return tf.einsum("ni,nij,nj->n", v, _jacobians(field, x)[1], v)


@estimate.wrong("sign")
def _(field, x, v):
    return -_one_estimate(field, x, v)


bells = Exercise(
    title="Signs or bells",
    minutes=7,
    beyond=True,
    hints=(
        "With signs the estimate takes two values with equal probability. How far is each from their mean?",
        "With normal numbers the diagonal scatters as well: the square of a standard normal number has the variance 2.",
        r"The summands $J_{ii} v_i^2$ and $2 J_{12} v_1 v_2$ are uncorrelated. Add up their variances: "
        r"$2 J_{11}^2 + 2 J_{22}^2 + 4 J_{12}^2$, and only the last of them with signs.",
    ),
    checker=Value(
        {"signs": 36, "normal": 236},
        mistakes=(
            Mistake("deviation", "This is the distance from the mean. The variance is its square.", {"signs": 6}),
            Mistake(
                "one_entry", "Both entries beside the diagonal count: they always have the same sign.", {"signs": 9}
            ),
            Mistake(
                "same", "With normal numbers the squares on the diagonal are no longer 1: they scatter.", {"normal": 36}
            ),
            Mistake(
                "diagonal_alone", "The entry beside the diagonal scatters with normal numbers, too.", {"normal": 200}
            ),
        ),
        wrong=(("keys", {"signs": 36}),),
    ),
)


@bells.starter()
def _():
    variances = {"signs": ..., "normal": ...}

    return variances


@bells.right
def _():
    r"""With signs only the entries beside the diagonal scatter: $-14 \pm 6$, the variance is 36. With normal numbers
    the diagonal does, too, with the variance $2 J_{ii}^2$ for each entry: $2 \cdot 64 + 2 \cdot 36 + 4 \cdot 9 = 236$.
    Signs are the better probes unless the diagonal is zero."""
    variances = {"signs": 36, "normal": 236}

    return variances
