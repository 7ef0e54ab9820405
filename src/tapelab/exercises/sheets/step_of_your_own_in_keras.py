"""Exercises and predictions of the notebook "A step of your own in Keras"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

eight_epochs = Prediction(
    "step_of_your_own_in_keras.eight_epochs",
    options=("equal to the last bit", "equal to about six digits", "some per cent apart"),
    remarks=(
        ("equal to about six digits", "The same operations in the same order give the same bits."),
        (
            "some per cent apart",
            "Dropout would do that, if its masks differed. Both models draw them from the same seed.",
        ),
    ),
)

four_parts = Prediction(
    "step_of_your_own_in_keras.four_parts",
    options=("not at all", "by a few per cent", "by some tens of per cent"),
    remarks=(
        ("not at all", "Of equal parts it would be. How many images does the last part have?"),
        (
            "by a few per cent",
            "The last part has 4 % of the images. In the mean of four means it has a quarter of the weight.",
        ),
    ),
)


class _Model:
    """What a step sees of a Keras model: a call with `training`, and the penalties that the call leaves behind."""

    def __init__(self, kernel):
        self.kernel, self.losses = kernel, []

    def __call__(self, x, training=False):
        self.losses = [tf.reduce_sum(self.kernel**2) / 7, tf.reduce_mean(x) ** 2]
        return x @ self.kernel * (3.0 if training else 1.0)


def _batches(random, dtype):
    """A model, a batch of some rows, labels and weights that are not 1."""
    return [
        (
            _Model(tf.constant(random.normal(size=(5, 4)), dtype)),
            tf.constant(random.normal(size=(rows, 5)), dtype),
            tf.constant(random.integers(4, size=rows)),
            tf.constant(random.uniform(0.2, 3, size=rows), dtype),
        )
        for rows in (6, 3)
    ]


def _by_log_softmax(model, x, y, sample_weight):
    logits = np.asarray(model(x, training=True), np.float64)
    logits = logits - logits.max(axis=1, keepdims=True)
    chosen = logits[np.arange(len(logits)), y] - np.log(np.exp(logits).sum(axis=1))
    return tf.constant(-np.mean(sample_weight.numpy() * chosen) + sum(map(float, model.losses)), x.dtype)


def _costs_of(model, x, y, training=True):
    return tf.nn.sparse_softmax_cross_entropy_with_logits(y, model(x, training=training))


step_loss = Exercise(
    title="The loss of a careful step",
    minutes=6,
    hints=(
        "Four things are lost in the careless step. Three of them are in the loss.",
        "`tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)` is a loss for each example. Weigh it, then take "
        "the mean over the batch.",
        "`model.losses` is a list of scalars: `tf.add_n`, after the call.",
    ),
    checker=Function(reference=_by_log_softmax, inputs=_batches),
)


@step_loss.starter("step_loss")
def _(model, x, y, sample_weight):
    return ...  # a scalar


@step_loss.right
def _(model, x, y, sample_weight):
    """The call comes first: it is the call, with `training=True`, that leaves the penalties in `model.losses`."""
    logits = model(x, training=True)
    each = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
    return tf.reduce_mean(sample_weight * each) + tf.add_n(model.losses)


@step_loss.mistake("not_training")
def _(model, x, y, sample_weight):
    """The model was not told that it is being trained."""
    return tf.reduce_mean(sample_weight * _costs_of(model, x, y, False)) + tf.add_n(model.losses)


@step_loss.mistake("unweighted")
def _(model, x, y, sample_weight):
    """Each example counts the same. Where have the weights gone?"""
    return tf.reduce_mean(_costs_of(model, x, y)) + tf.add_n(model.losses)


@step_loss.mistake("no_penalty")
def _(model, x, y, sample_weight):
    """The penalties of the layers are missing."""
    return tf.reduce_mean(sample_weight * _costs_of(model, x, y))


@step_loss.mistake("weighted_mean")
def _(model, x, y, sample_weight):
    """The sum was divided by the weights' sum. Keras divides by the number of examples, so that a weight of 2 counts
    twice and not less elsewhere."""
    each = _costs_of(model, x, y)
    return tf.reduce_sum(sample_weight * each) / tf.reduce_sum(sample_weight) + tf.add_n(model.losses)


@step_loss.mistake("sum")
def _(model, x, y, sample_weight):
    """This is the sum over the batch. The step would grow with the batch."""
    return tf.reduce_sum(sample_weight * _costs_of(model, x, y)) + tf.add_n(model.losses)


@step_loss.mistake("all_careless")
def _(model, x, y, sample_weight):
    """This is the careless step's loss. The table of this section says what it loses."""
    return tf.reduce_mean(_costs_of(model, x, y, False))


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
    beyond=True,
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
