"""Exercises and predictions of the notebook "A small transformer"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

largest = Prediction(
    "small_transformer.largest",
    options=("about 0.1", "about 0.5", "more than 0.99"),
    remarks=(
        ("about 0.1", "So it would be for scores that hardly differ. How far apart are sums of 1024 random terms?"),
        ("about 0.5", "The scores' standard deviation is 32. What is $e$ to the power of such a difference?"),
    ),
)

means = Prediction(
    "small_transformer.means",
    options=("not at all", "some per cent", "as far as a random gradient"),
    remarks=(
        ("not at all", "So it is with equal numbers. How many characters does each of the eight means divide by?"),
        ("as far as a random gradient", "Each part's mean is a fair gradient. Only the parts' weights are wrong."),
    ),
)

kept = Prediction(
    "small_transformer.kept",
    options=("about 2", "about 8", "more than 12"),
    remarks=(
        ("about 2", "Count what a block makes: three projections, scores, shares, a layer four times as wide …"),
        ("about 8", "Eight inputs of blocks are still kept. How many tensors of that size does *one* block keep?"),
    ),
)

zeros = Prediction(
    "small_transformer.zeros",
    options=("a few in both models", "most in the new model", "most in the trained model"),
    remarks=(
        ("a few in both models", "What happens to the gradient's size as a model becomes sure of its answers?"),
        ("most in the new model", "A new model is wrong nearly everywhere. Is its gradient small or large?"),
    ),
)

both = Prediction(
    "small_transformer.both",
    options=("it learns as well", "it learns, more slowly", "it stays where it is"),
    remarks=(
        ("it learns as well", r"Put $A = B = 0$ into $G B^\top$ and $A^\top G$."),
        ("it learns, more slowly", "More slowly would need a first step. What are the two gradients at the start?"),
    ),
)


def _rows(random, dtype):
    """Rows of softmaxes of two, three and four axes, each with an upstream gradient."""
    shapes = (3, 5), (2, 4, 6), (2, 3, 2, 7)
    return [
        (tf.nn.softmax(tf.constant(2 * random.normal(size=s), dtype)), tf.constant(random.normal(size=s), dtype))
        for s in shapes
    ]


def _through_jacobians(p, upstream):
    jacobians = tf.linalg.diag(p) - p[..., :, None] * p[..., None, :]
    return tf.linalg.matvec(jacobians, upstream)


backward = Exercise(
    title="The softmax without its Jacobian",
    minutes=6,
    beyond=True,
    hints=(
        r"Multiply $\operatorname{diag}(p) - p p^\top$ by the upstream gradient, and do not write the matrix down.",
        r"The first part is $p_i \bar p_i$. In the second, $p_j \bar p_j$ is added up over $j$, in each row.",
        "`tf.reduce_sum(p * upstream, axis=-1, keepdims=True)` is that number.",
    ),
    checker=Function(reference=_through_jacobians, inputs=_rows, upstream=1),
)


@backward.starter("softmax_backward")
def _(p, upstream):
    return ...  # as large as p


@backward.right
def _(p, upstream):
    r"""$p_i (\bar p_i - \sum_j p_j \bar p_j)$: the sum is one number for each row. FlashAttention computes it from the
    head's output, as $u_i^\top o_i$, and so needs no table of shares either."""
    return p * (upstream - tf.reduce_sum(p * upstream, axis=-1, keepdims=True))


@backward.mistake("diagonal")
def _(p, upstream):
    """This is the Jacobian's diagonal alone. When one score rises, what becomes of the *other* shares?"""
    return p * (1 - p) * upstream


@backward.mistake("first_part")
def _(p, upstream):
    """The shares of a row add up to 1, and this gradient does not know it. Where is the second part of the Jacobian?"""
    return p * upstream


@backward.mistake("all_rows")
def _(p, upstream):
    """The sum runs over all rows. Each row has a softmax, and a sum, of its own."""
    return p * (upstream - tf.reduce_sum(p * upstream))


@backward.mistake("unweighted")
def _(p, upstream):
    """The mean that is subtracted must be the one with the shares as weights."""
    return p * (upstream - tf.reduce_mean(upstream, axis=-1, keepdims=True))


@backward.wrong("sign")
def _(p, upstream):
    return -_through_jacobians(p, upstream)


def _texts(random, dtype):
    """A loss for each line, weights, and texts with different numbers of lines."""
    trials = []
    for numbers, d in (((5, 1, 2), 3), ((1, 6), 4), ((2, 3, 1, 7), 2)):
        w = tf.constant(random.normal(size=(d, 2)), dtype)
        parts = [tf.constant(random.normal(size=(n, d)) + n, dtype) for n in numbers]
        trials.append((_costs, w, parts))
    return trials


def _costs(w, text):
    return tf.reduce_sum(tf.tanh(text @ w) ** 2 + 0.1 * text @ w, axis=1)


def _joined(costs, w, parts):
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = tf.reduce_mean(costs(w, tf.concat(parts, axis=0)))
    return tape.gradient(value, w)


def _gradients(costs, w, parts, reduce):
    found = []
    for part in parts:
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = reduce(costs(w, part))
        found.append(tape.gradient(value, w))
    return found


parts = Exercise(
    title="Parts that do not count equally",
    minutes=6,
    hints=(
        "A gradient of a sum is the sum of gradients. Of which sum is the mean over all lines a multiple?",
        "Open a tape for each part, differentiate the *sum* of its costs, and add up the gradients.",
        "Divide once, at the end, by the number of all lines.",
    ),
    checker=Function(reference=_joined, inputs=_texts),
)


@parts.starter("by_parts")
def _(costs, w, parts):
    return ...  # as large as w


@parts.right
def _(costs, w, parts):
    """Each part gives the gradient of its sum, and one record is alive at a time. The division comes last, by the
    number of all lines."""
    total, number = tf.zeros_like(w), 0
    for part in parts:
        with tf.GradientTape() as tape:
            tape.watch(w)
            value = tf.reduce_sum(costs(w, part))
        total += tape.gradient(value, w)
        number += len(part)
    return total / number


@parts.mistake("mean_of_means")
def _(costs, w, parts):
    """This is the mean of the parts' means. A line in a small part then counts for more than one in a large part."""
    return tf.add_n(_gradients(costs, w, parts, tf.reduce_mean)) / len(parts)


@parts.mistake("sum_of_means")
def _(costs, w, parts):
    """The means are added up. The result grows with the number of parts, and small parts count too much."""
    return tf.add_n(_gradients(costs, w, parts, tf.reduce_mean))


@parts.mistake("not_divided")
def _(costs, w, parts):
    """This is the gradient of the sum over all lines. The mean was asked for."""
    return tf.add_n(_gradients(costs, w, parts, tf.reduce_sum))


@parts.mistake("number_of_parts")
def _(costs, w, parts):
    """Sums over lines were divided by the number of *parts*. How many lines are there?"""
    return tf.add_n(_gradients(costs, w, parts, tf.reduce_sum)) / len(parts)


@parts.mistake("last_part")
def _(costs, w, parts):
    """Only the last part is left. Add up what the parts give."""
    return _gradients(costs, w, parts, tf.reduce_mean)[-1]


def _gradients_in_half(random, dtype):
    """Good gradients, and some with an entry that is infinite or no number."""
    trials = []
    for bad in (None, np.inf, np.nan, -np.inf, None):
        scale = 2.0 ** random.integers(4, 9)
        g = scale * random.normal(size=(3, 2))
        if bad is not None:
            g[1, 0] = bad
        trials.append(tuple(tf.constant(part, dtype) for part in (random.normal(size=(3, 2)), g, scale)))
    return trials


def _skipping(w, gradient, scale):
    good = np.all(np.isfinite(gradient))
    step = 0.1 * np.asarray(gradient) / np.asarray(scale) if good else np.zeros(w.shape)
    return tf.constant(w.numpy() - step, w.dtype), tf.constant(scale.numpy() * (1.0 if good else 0.5), scale.dtype)


skipped = Exercise(
    title="A step that may be skipped",
    minutes=7,
    hints=(
        "`tf.math.is_finite` is true where an entry is a number; one bad entry spoils the whole step.",
        "`tf.reduce_all(tf.math.is_finite(gradient))` decides. Both cases return two tensors.",
        "The gradient is that of `scale` times the loss: divide it by `scale` before the step.",
    ),
    checker=Function(reference=_skipping, inputs=_gradients_in_half),
)


@skipped.starter("step")
def _(w, gradient, scale):
    return ...  # w and the scale, two tensors


@skipped.right
def _(w, gradient, scale):
    """One entry that is not finite means that some number on the way was too large, and others may have been wrong as
    well. So the whole step is left out, and the next one has half the scale."""
    if not tf.reduce_all(tf.math.is_finite(gradient)):
        return w, scale / 2
    return w - 0.1 * gradient / scale, scale


@skipped.mistake("scaled_step")
def _(w, gradient, scale):
    """The step is `scale` times too long: the gradient belongs to `scale` times the loss."""
    if not tf.reduce_all(tf.math.is_finite(gradient)):
        return w, scale / 2
    return w - 0.1 * gradient, scale


@skipped.mistake("infinite_alone")
def _(w, gradient, scale):
    """An infinity minus an infinity on the way is NaN, and that is not infinite. It went into the weights."""
    if tf.reduce_any(tf.math.is_inf(gradient)):
        return w, scale / 2
    return w - 0.1 * gradient / scale, scale


@skipped.mistake("zeros_for_bad")
def _(w, gradient, scale):
    """The bad entries were made zero, and the step was taken with the rest. That is another direction, and nobody
    knows whether the rest is right: leave the step out."""
    finite = tf.math.is_finite(gradient)
    good = tf.where(finite, gradient, tf.zeros_like(gradient))
    return w - 0.1 * good / scale, scale if tf.reduce_all(finite) else scale / 2


@skipped.mistake("same_scale")
def _(w, gradient, scale):
    """The step was skipped, and the scale has stayed. The next gradient will overflow again."""
    if not tf.reduce_all(tf.math.is_finite(gradient)):
        return w, scale
    return w - 0.1 * gradient / scale, scale


@skipped.mistake("never_skipped")
def _(w, gradient, scale):
    """A gradient that is not finite went into the weights, and nothing brings them back."""
    return w - 0.1 * gradient / scale, scale


def _factors(random, dtype):
    """Two thin matrices and the gradient of their product; no two sizes are the same."""
    return [
        tuple(
            tf.constant(random.normal(size=shape), dtype) for shape in ((rows, rank), (rank, columns), (rows, columns))
        )
        for rows, rank, columns in ((4, 2, 3), (5, 1, 6), (3, 4, 7))
    ]


def _by_tape(a, b, g):
    with tf.GradientTape() as tape:
        tape.watch([a, b])
        product = a @ b
    return tuple(tape.gradient(product, [a, b], output_gradients=g))


adapter = Exercise(
    title="Two gradients from one",
    minutes=5,
    hints=(
        r"Where $a$ moves by $\delta$, the product moves by $\delta b$. Which matrix makes $g$ as large as $a$?",
        "Each gradient is `g` times the *other* matrix, transposed, on the side where that one stands.",
    ),
    checker=Function(reference=_by_tape, inputs=_factors),
)


@adapter.starter("adapter_gradients")
def _(a, b, g):
    return ...  # two matrices


@adapter.right
def _(a, b, g):
    r"""$\bar a = g b^\top$ and $\bar b = a^\top g$: the shapes leave no other choice. Each is zero where the other
    matrix is zero."""
    return g @ tf.transpose(b), tf.transpose(a) @ g


@adapter.mistake("exchanged")
def _(a, b, g):
    """These are the two gradients in the wrong order: `a`'s comes first."""
    return tf.transpose(a) @ g, g @ tf.transpose(b)


@adapter.mistake("transposed")
def _(a, b, g):
    """Each gradient is transposed. It must be as large as the matrix that it belongs to."""
    return b @ tf.transpose(g), tf.transpose(g) @ a


@adapter.mistake("without_g")
def _(a, b, g):
    """What arrives from the loss, `g`, is missing: here it is replaced by ones."""
    return _by_tape(a, b, tf.ones_like(g))
