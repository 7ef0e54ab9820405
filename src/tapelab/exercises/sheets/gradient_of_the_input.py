"""Exercises and predictions of the notebook "The gradient of the input"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

coins = Prediction(
    "gradient_of_the_input.coins",
    rtol=0.03,
    remarks=((30, "That is what the gradient's signs did. Random signs agree with them in about half of the pixels."),),
)

black_pixels = Prediction(
    "gradient_of_the_input.black_pixels",
    options=("none", "about a third", "about two thirds"),
    remarks=(
        ("none", "That holds for the black baseline, where x - b is 0 there. For the white one it is -1."),
        ("about a third", "About half of a scene's pixels are black, and each of them is far from a white baseline."),
    ),
)

untrained = Prediction(
    "gradient_of_the_input.untrained",
    options=("about 0", "about 0.4", "about 0.9"),
    remarks=(
        ("about 0", "The gradients have little in common. But a map is the gradients times the picture."),
        ("about 0.4", "More: the factor x - b is the same in both maps, and it is exactly 0 on black pixels."),
    ),
)


def _gradient_of(x, y):
    """The gradient of a loss that depends on the label: a softmax regression with fixed weights."""
    count = x.shape[1] * x.shape[2]
    weights = tf.sin(tf.reshape(tf.range(count * 10, dtype=x.dtype), [count, 10]))
    with tf.GradientTape() as tape:
        tape.watch(x)
        logits = tf.reshape(x, [-1, count]) @ weights
        loss = tf.reduce_sum(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
    return tape.gradient(loss, x)


def _step_down(gradient_of, x, wanted, epsilon):
    return np.minimum(np.maximum(x - epsilon * np.sign(gradient_of(x, wanted)), 0), 1)


def _pictures(random, dtype):
    """Pictures with black and white pixels, wanted labels, and how far a pixel may move."""
    trials = []
    for size, epsilon in ((4, 0.1), (3, 0.25)):
        x = tf.constant(np.clip(random.normal(0.5, 0.5, size=(5, size, size, 1)), 0, 1), dtype)
        trials.append((_gradient_of, x, tf.constant(random.integers(10, size=5)), tf.constant(epsilon, dtype)))
    return trials


towards = Exercise(
    title="Towards an answer of your choice",
    minutes=6,
    beyond=True,
    hints=(
        "The opening's step makes the loss of the true label grow. Which loss should do what here?",
        "The loss of the label `wanted` should fall.",
        "`tf.clip_by_value(…, 0.0, 1.0)` keeps the pixels in their range.",
    ),
    checker=Function(reference=_step_down, inputs=_pictures),
)


@towards.starter("towards")
def _(gradient_of, x, wanted, epsilon):
    return ...  # shape of x


@towards.right
def _(gradient_of, x, wanted, epsilon):
    """The network should see `wanted`, so its loss is to *fall*: a step against the sign of that loss's gradient."""
    return tf.clip_by_value(x - epsilon * tf.sign(gradient_of(x, wanted)), 0.0, 1.0)


@towards.mistake("away")
def _(gradient_of, x, wanted, epsilon):
    """This step makes the loss of `wanted` grow: it leads away from the digit that you chose."""
    return tf.clip_by_value(x + epsilon * tf.sign(gradient_of(x, wanted)), 0.0, 1.0)


@towards.mistake("unclipped")
def _(gradient_of, x, wanted, epsilon):
    """Some pixels have left the range from 0 to 1: there is no blacker than black."""
    return x - epsilon * tf.sign(gradient_of(x, wanted))


@towards.mistake("gradient_itself")
def _(gradient_of, x, wanted, epsilon):
    """Each pixel moves by `epsilon` times its own slope, which is another length for each. How far may a pixel move?"""
    return tf.clip_by_value(x - epsilon * gradient_of(x, wanted), 0.0, 1.0)


def _bend(x):
    return tf.reduce_sum(tf.sin(3 * x) * tf.reshape(tf.range(1, tf.size(x) + 1, dtype=x.dtype), x.shape))


def _product(x):
    return tf.reduce_sum(x[..., :-1] * x[..., 1:] ** 2) + x[..., 0][0] ** 3


def _mean_gradient(F, x, baseline, steps, offset=0.5):
    points = [baseline + (k + offset) / steps * (x - baseline) for k in range(steps)]
    with tf.GradientTape() as tape:
        tape.watch(points)
        total = tf.add_n([F(point) for point in points])
    return tf.reduce_mean(tf.stack(tape.gradient(total, points)), axis=0)


def _by_midpoints(F, x, baseline, steps):
    return (x - baseline) * _mean_gradient(F, x, baseline, steps)


def _walks(random, dtype):
    """A function, a point, a baseline that is not 0, and how many steps."""

    def draw(*shape):
        return tf.constant(random.normal(size=shape), dtype)

    return [
        (_bend, draw(4), tf.zeros(4, dtype), 8),
        (_product, draw(3, 5), draw(3, 5), 5),
        (_bend, draw(2, 2), draw(2, 2), 1),
    ]


def _with_sum(answer, F, x, baseline, steps):
    found = answer(F, x, baseline, steps)
    if found is None or found is ...:
        return found
    return {"the attributions": found, "their sum": tf.reduce_sum(found)}


integrated = Exercise(
    title="Integrated gradients of any function",
    minutes=8,
    hints=(
        "The points are $b + t_k (x - b)$ with $t_k = (k + ½) / n$.",
        "At each point a tape of its own, which watches that point.",
        "The mean of the gradients, times $x - b$.",
    ),
    checker=Function(reference=_by_midpoints, inputs=_walks, observe=_with_sum),
)


@integrated.starter("integrated")
def _(F, x, baseline, steps):
    return ...  # shape of x


@integrated.right
def _(F, x, baseline, steps):
    """Each point of the walk is a tensor of its own, watched by a tape of its own. The mean of the gradients is what
    the integral asks for, and the factor $x - b$ makes it a contribution."""
    total = tf.zeros_like(x)
    for k in range(steps):
        point = baseline + (k + 0.5) / steps * (x - baseline)
        with tf.GradientTape() as tape:
            tape.watch(point)
            value = F(point)
        total += tape.gradient(value, point)
    return (x - baseline) * total / steps


@integrated.mistake("no_factor")
def _(F, x, baseline, steps):
    """This is the mean gradient. It says how steep the way was, and not how far each element went."""
    return _mean_gradient(F, x, baseline, steps)


@integrated.mistake("factor_x")
def _(F, x, baseline, steps):
    """The factor is $x$. That is $x - b$ for a baseline of 0 only. Do the attributions add up for another one?"""
    return x * _mean_gradient(F, x, baseline, steps)


@integrated.mistake("left_ends")
def _(F, x, baseline, steps):
    """These are the left ends of the steps. The midpoint rule takes the middle of each."""
    return (x - baseline) * _mean_gradient(F, x, baseline, steps, offset=0.0)


@integrated.mistake("by_the_end")
def _(F, x, baseline, steps):
    """The tape watches `x`, and each point moves by $t$ when `x` moves by 1: every gradient has come out times $t$."""
    total = tf.zeros_like(x)
    for k in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = F(baseline + (k + 0.5) / steps * (x - baseline))
        total += tape.gradient(value, x)
    return (x - baseline) * total / steps


@integrated.mistake("gradient_times_input")
def _(F, x, baseline, steps):
    """This is the gradient at the end of the walk, times the distance: the first-order guess at the sum."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = F(x)
    return (x - baseline) * tape.gradient(value, x)


def _features_of(x):
    kernels = tf.stack([x, tf.sin(2 * x), tf.tanh(x - tf.reduce_mean(x))], axis=-1)
    return tf.nn.relu(kernels)


def _score_of(features):
    channels = tf.constant([1.0, -2.0, 0.7], features.dtype)
    return tf.reduce_sum(tf.reduce_max(features, axis=[0, 1]) * channels) + tf.reduce_mean(features[..., 0] ** 2)


def _cam_by_einsum(features_of, score_of, x):
    features = features_of(x)
    with tf.GradientTape() as tape:
        tape.watch(features)
        score = score_of(features)
    weights = tf.einsum("hwc->c", tape.gradient(score, features)) / (features.shape[0] * features.shape[1])
    return tf.nn.relu(tf.einsum("hwc,c->hw", features, weights))


def _observe_map(answer, features_of, score_of, x):
    calls = []

    def counted(x):
        calls.append(x)
        return features_of(x)

    return {"the map": answer(counted, score_of, x), "the calls of features_of": len(calls)}


def _scenes(random, dtype):
    """Pictures that are not square."""
    return [(_features_of, _score_of, tf.constant(random.normal(size=shape), dtype)) for shape in ((3, 4), (5, 2))]


cam = Exercise(
    title="Grad-CAM in one call",
    minutes=6,
    hints=(
        "What must the tape watch, and what must the score be computed from?",
        "Compute the features once, watch them, and give *them* to `score_of`.",
        "`tf.reduce_mean(…, axis=[0, 1])` of the gradient has one number for each channel.",
    ),
    checker=Function(reference=_cam_by_einsum, inputs=_scenes, observe=_observe_map),
)


@cam.starter("cam")
def _(features_of, score_of, x):
    return ...  # shape (height, width); features have the shape (height, width, channels)


@cam.right
def _(features_of, score_of, x):
    """The features are computed once, and the score from that very tensor. So it lies on the way, and the gradient is
    there."""
    features = features_of(x)
    with tf.GradientTape() as tape:
        tape.watch(features)
        score = score_of(features)
    weights = tf.reduce_mean(tape.gradient(score, features), axis=[0, 1])
    return tf.nn.relu(tf.reduce_sum(weights * features, axis=-1))


@cam.mistake("no_relu")
def _(features_of, score_of, x):
    """Negative entries are left. The map shows what speaks *for* the class."""
    features = features_of(x)
    with tf.GradientTape() as tape:
        tape.watch(features)
        score = score_of(features)
    weights = tf.reduce_mean(tape.gradient(score, features), axis=[0, 1])
    return tf.reduce_sum(weights * features, axis=-1)


@cam.mistake("place_by_place")
def _(features_of, score_of, x):
    """The gradient is multiplied place by place. That is the other map of this section, which keeps the places;
    Grad-CAM has one number for each channel."""
    features = features_of(x)
    with tf.GradientTape() as tape:
        tape.watch(features)
        score = score_of(features)
    return tf.nn.relu(tf.reduce_sum(tape.gradient(score, features) * features, axis=-1))


@cam.mistake("summed")
def _(features_of, score_of, x):
    """The gradients are summed over the places. The map is larger by the number of places."""
    features = features_of(x)
    with tf.GradientTape() as tape:
        tape.watch(features)
        score = score_of(features)
    weights = tf.reduce_sum(tape.gradient(score, features), axis=[0, 1])
    return tf.nn.relu(tf.reduce_sum(weights * features, axis=-1))


@cam.wrong("none")
def _(features_of, score_of, x):
    with tf.GradientTape() as tape:
        features = features_of(x)
        score = score_of(features_of(x))
    return tape.gradient(score, features)
