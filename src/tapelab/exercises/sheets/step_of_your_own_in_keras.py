"""Exercises and predictions of the notebook "A step of your own in Keras"."""

import weakref

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

eight_epochs = Prediction(
    "step_of_your_own_in_keras.eight_epochs",
    options=("equal to the last bit", "equal to about six digits", "some per cent apart"),
    remarks=(
        (
            "equal to about six digits",
            "Both steps do the same operations in the same order. Here they gave the same bits.",
        ),
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


def _by_log_sum(model, x, y, sample_weight):
    logits = model(x, training=True)
    each = tf.reduce_logsumexp(logits, axis=1) - tf.gather(logits, y, batch_dims=1)
    return tf.reduce_mean(sample_weight * each) + model.losses[0] + model.losses[1]


def _differentiated(answer, model, *batch):
    """A loss, and what a step takes from it."""
    with tf.GradientTape() as tape:
        tape.watch(model.kernel)
        loss = answer(model, *batch)
    return {"the loss": loss, "its gradient": tape.gradient(loss, model.kernel) if tf.is_tensor(loss) else loss}


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
    # In float32, in which Keras' own losses compute.
    checker=Function(reference=_by_log_sum, inputs=_batches, observe=_differentiated, dtypes=(tf.float32,)),
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
    """The sum was divided by the weights' sum. Keras' default divides by the number of examples: a weight of 2
    counts twice and not less elsewhere."""
    each = _costs_of(model, x, y)
    return tf.reduce_sum(sample_weight * each) / tf.reduce_sum(sample_weight) + tf.add_n(model.losses)


@step_loss.mistake("sum")
def _(model, x, y, sample_weight):
    """This is the sum over the batch. The step would grow with the batch."""
    return tf.reduce_sum(sample_weight * _costs_of(model, x, y)) + tf.add_n(model.losses)


@step_loss.mistake("penalties_as_numbers")
def _(model, x, y, sample_weight):
    """The value is right, and its gradient is not: the penalties are numbers here, so nothing pulls at the weights."""
    return tf.reduce_mean(sample_weight * _costs_of(model, x, y)) + sum(map(float, model.losses))


@step_loss.mistake("all_careless")
def _(model, x, y, sample_weight):
    """This is the careless step's loss. The table of this section says what it loses."""
    return tf.reduce_mean(_costs_of(model, x, y, False))


def _texts(random, dtype):
    """Weights, and texts with different numbers of lines."""
    trials = []
    for numbers, d in (((5, 1, 2), 3), ((1, 6), 4), ((2, 3, 1, 7), 2)):
        w = tf.constant(random.normal(size=(d, 2)), dtype)
        trials.append((w, [tf.constant(random.normal(size=(n, d)) + n, dtype) for n in numbers]))
    return trials


def _observe_parts(answer, w, parts):
    bent, lines, kept = [], [], []  # what a tape keeps of each part; how many parts it holds when the next one comes

    def costs(w, text):
        kept.append(sum(one() is not None for one in bent))
        lines.append(len(text))
        tanh = tf.tanh(text @ w)
        if tf.executing_eagerly():
            bent.append(weakref.ref(tanh))
        return tf.reduce_sum(tanh**2 + 0.1 * text @ w, axis=1)

    return {
        "the gradient": answer(costs, w, parts),
        "the rows recorded at once": max(lines, default=0),
        "the earlier parts still in memory when the next one comes": max(kept, default=0),
    }


def _weighed(costs, w, parts):
    """Each part's mean, weighed by its share of the lines."""
    number = sum(map(len, parts))
    means = zip(parts, _gradients(costs, w, parts, tf.reduce_mean), strict=True)
    return tf.add_n([len(part) / number * mean for part, mean in means])


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
    checker=Function(reference=_weighed, inputs=_texts, observe=_observe_parts),
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


@parts.mistake("joined")
def _(costs, w, parts):
    """All lines were recorded at once: the batch that did not fit into memory is back."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = tf.reduce_mean(costs(w, tf.concat(parts, axis=0)))
    return tape.gradient(value, w)


@parts.mistake("one_tape")
def _(costs, w, parts):
    """One tape has recorded all parts, and keeps them until it is asked. Open one for each part, and ask it."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        value = tf.add_n([tf.reduce_sum(costs(w, part)) for part in parts]) / sum(map(len, parts))
    return tape.gradient(value, w)


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
    """Where one entry is not finite, others may be wrong as well. So the whole step is left out, and the next one has
    half the scale."""
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
    """The step was skipped, and the scale has stayed. What keeps the next one from overflowing?"""
    if not tf.reduce_all(tf.math.is_finite(gradient)):
        return w, scale
    return w - 0.1 * gradient / scale, scale


@skipped.mistake("never_skipped")
def _(w, gradient, scale):
    """A gradient that is not finite went into the weights, and nothing brings them back."""
    return w - 0.1 * gradient / scale, scale
