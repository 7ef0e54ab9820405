"""Exercises and predictions of the notebook "When the gradient is wrong"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

outside_epsilon = Prediction(
    "when_the_gradient_is_wrong.outside_epsilon",
    options=("0", "NaN", "infinity"),
    remarks=(
        ("0", "That is what you would choose. But a constant added after the root has the derivative 0."),
        ("infinity", "The root's slope is infinite, and the squares' slope multiplies it. What is that slope at 0?"),
    ),
)

sure_of_one = Prediction(
    "when_the_gradient_is_wrong.sure_of_one",
    remarks=(
        (1.0, "1 is what a loss from the logit would give. Here the sigmoid's own slope multiplies it."),
        (2.0, "2 is the slope of the square, where the sigmoid is 1. The sigmoid's own slope multiplies it."),
        (0.25, "0.25 is the sigmoid's largest slope, at 0. How steep is it at 30?"),
        (-1.0, "How steep is the sigmoid at 30? Its slope multiplies all that comes from the loss."),
    ),
)

through_twelve = Prediction(
    "when_the_gradient_is_wrong.through_twelve",
    options=("1e-1", "1e-4", "1e-8"),
    remarks=(
        ("1e-1", "The factors multiply. Twelve of them, each at most a quarter: how much is left?"),
        ("1e-4", "A quarter to the power six is near that. There are twelve."),
    ),
)

sick_layer = Prediction(
    "when_the_gradient_is_wrong.sick_layer",
    remarks=(
        (1, "Its gradient is zero, and it is a victim: the backward pass comes from layer 12 and never reaches it."),
        (
            8,
            "Is its gradient fine? Then the backward pass has reached it: which is next on the way to the input?",
        ),
        (12, "The backward pass begins there, and its gradient is fine. How far does it come?"),
    ),
)


def _probabilities(random, dtype):
    def rows(values):
        values = np.asarray(values)
        return (tf.constant(values / values.sum(axis=1, keepdims=True), dtype),)

    random_rows = random.uniform(0.1, 1.0, (7, 6))
    random_rows[[0, 2, 3], [1, 5, 5]] = 0.0
    return [rows([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]]), rows(random_rows), rows([[0.0, 1e-30, 1e-6, 1.0]])]


def _observe_entropy(answer, p):
    with tf.GradientTape() as tape:
        tape.watch(p)
        entropies = answer(p)
    return {"the entropies": entropies, "the gradient": tape.gradient(entropies, p)}


@tf.custom_gradient
def _entropy(p):
    """Value and gradient in closed form, with NumPy."""
    present = p.numpy() > 0
    log_p = np.log(np.where(present, p, 1.0)).astype(p.dtype.as_numpy_dtype)
    slope = np.where(present, -(log_p + 1.0), 0.0).astype(log_p.dtype)
    return tf.constant(-np.sum(p * log_p, axis=1)), lambda upstream: upstream[:, None] * slope


entropy = Exercise(
    title="Nothing times minus infinity",
    minutes=8,
    hints=(
        r"What are the value and the derivative of $p \ln p$ at 0, as floating-point arithmetic finds them? Which "
        "factor is to blame?",
        "Section 1 has the same difficulty with a sum of logarithms. Where does the double where make its choice?",
        "Give the logarithm something harmless wherever `p` is 0: `tf.where(p > 0.0, p, 1.0)`. The factor `p` outside "
        "stays as it is.",
    ),
    checker=Function(reference=_entropy, inputs=_probabilities, observe=_observe_entropy, axes=("row", "class")),
)


@entropy.starter("entropy")
def _(p):
    return ...  # the entropy of each row of p


@entropy.right
def _(p):
    r"""The choice is made before the logarithm, so no infinity arises in the forward pass, and nothing multiplies one
    in the backward pass: `tf.where` sends a zero to the side that was not chosen, and $0 \cdot \infty$ is NaN.
    `-tf.reduce_sum(tf.math.xlogy(p, p), axis=1)` is right, too: that operation was made for this."""
    safe = tf.where(p > 0.0, p, 1.0)
    return -tf.reduce_sum(p * tf.math.log(safe), axis=1)


@entropy.mistake("choice_after_log")
def _(p):
    """The entropies are right, and the gradient is NaN wherever `p` is 0. The choice comes too late: the logarithm of 0
    has been taken, and the backward pass multiplies its infinite slope by 0."""
    return -tf.reduce_sum(tf.where(p > 0.0, p * tf.math.log(p), 0.0), axis=1)


@entropy.mistake("no_choice")
def _(p):
    r"""$0 \cdot \ln 0$ is NaN, in the value and in the gradient. The entropy of a row with a zero in it should be that
    of the row without it."""
    return -tf.reduce_sum(p * tf.math.log(p), axis=1)


@entropy.mistake("small_dropped")
def _(p):
    """Right where no probability is small. A small one, such as 1e-6, has its part in the entropy and a large gradient:
    leave out the zeros and nothing else."""
    return -tf.reduce_sum(p * tf.math.log(tf.where(p > 0.01, p, 1.0)), axis=1)


@entropy.mistake("all_rows")
def _(p):
    """This is the sum over all rows. Each row has an entropy of its own."""
    safe = tf.where(p > 0.0, p, 1.0)
    return -tf.reduce_sum(p * tf.math.log(safe))


@entropy.wrong("sign")
def _(p):
    safe = tf.where(p > 0.0, p, 1.0)
    return tf.reduce_sum(p * tf.math.log(safe), axis=1)


@entropy.mistake("epsilon")
def _(p):
    """An ε stands inside the logarithm: a zero then has a gradient, about −ln ε, and a probability below ε has a wrong
    one. Choose before the logarithm, and leave the ε out."""
    return -tf.reduce_sum(p * tf.math.log(p + 1e-7), axis=1)


@entropy.wrong("none")
def _(p):
    safe = tf.where(p > 0.0, p, 1.0)
    return tf.constant(-np.sum(p * np.log(safe), axis=1))


def _with_gradient(name):
    """How a function of one tensor is observed: its result, under a name, and the gradient of that."""

    def observe(answer, x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = answer(x)
        weights = None
        if tf.is_tensor(result) and result.dtype == x.dtype:
            weights = tf.reshape(tf.range(1, tf.size(result) + 1), tf.shape(result))
            weights = tf.cast(weights, x.dtype) / tf.cast(tf.size(result), x.dtype)
        return {name: result, "the gradient": tape.gradient(result, x, output_gradients=weights)}

    return observe


def _rows(random, dtype):
    return [
        (tf.constant([[0.0, 1.0, 2.0], [1000.0, 999.0, 998.0]], dtype),),
        (tf.constant(random.normal(size=(7, 6)), dtype),),
        (tf.constant([[800.0, 801.0], [-900.0, -901.0], [0.0, 0.5]], dtype),),
        (tf.constant([[1000.0, 0.0, 0.0], [0.0, -1000.0, 2.0]], dtype),),  # one entry far above the others, and below
    ]


@tf.custom_gradient
def _log_mean_exp(x):
    """Value and gradient in closed form, with NumPy."""
    values = x.numpy().astype(np.float64)
    value = np.logaddexp.reduce(values, axis=1)
    softmax = np.exp(values - value[:, None])
    value = tf.constant(value - np.log(values.shape[1]), x.dtype)
    return value, lambda upstream: upstream[:, None] * tf.constant(softmax, x.dtype)


log_mean_exp = Exercise(
    title="A mean that does not overflow",
    minutes=6,
    hints=(
        r"$\ln \sum_j e^{x_j} = m + \ln \sum_j e^{x_j - m}$ for every number $m$. Which $m$ keeps all exponents at or "
        "below 0, and one of them at 0?",
        "Each row needs a maximum of its own: `tf.reduce_max(x, axis=1, keepdims=True)` has shape (rows, 1), which can "
        "be subtracted from `x`.",
        "Take `tf.reduce_mean` of `tf.exp(x - largest)` over axis 1, its logarithm, and add `largest` again, now in "
        "shape "
        "(rows,): `largest[:, 0]`.",
    ),
    checker=Function(
        reference=_log_mean_exp, inputs=_rows, observe=_with_gradient("the values"), axes=("row", "column")
    ),
)


@log_mean_exp.starter("log_mean_exp")
def _(x):
    return ...  # for each row of x, the logarithm of the mean of exp(x)


@log_mean_exp.right
def _(x):
    """Subtracting a row's maximum makes its largest exponent 0, so nothing overflows, and the mean is at least 1/n, so
    its logarithm is finite. Adding the maximum again leaves the value as it was. It leaves the gradient too: what
    passes through the maximum is −1 on one path and +1 on the other. `tf.reduce_logsumexp(x, axis=1)` minus $\\ln n$ is
    right, too: it takes off the maximum for you."""
    largest = tf.reduce_max(x, axis=1, keepdims=True)
    mean = tf.reduce_mean(tf.exp(x - largest), axis=1)
    return largest[:, 0] + tf.math.log(mean)


@log_mean_exp.mistake("overflows")
def _(x):
    """In the row (1000, 999, 998) `tf.exp` overflows to infinity, in (−900, −901) it underflows to 0, and the gradient
    is NaN in both. What can you take off `x` first, and give back at the end?"""
    return tf.math.log(tf.reduce_mean(tf.exp(x), axis=1))


@log_mean_exp.mistake("not_given_back")
def _(x):
    """Nothing overflows now. But what was subtracted from `x` has not been given back."""
    largest = tf.reduce_max(x, axis=1, keepdims=True)
    return tf.math.log(tf.reduce_mean(tf.exp(x - largest), axis=1))


@log_mean_exp.mistake("sum")
def _(x):
    """This is the logarithm of the sum. The mean is asked for."""
    return tf.reduce_logsumexp(x, axis=1)


@log_mean_exp.mistake("one_maximum")
def _(x):
    """One maximum for all rows: where a row lies far below it, every exponential underflows to 0, and its logarithm is
    not finite. Each row needs its own."""
    largest = tf.reduce_max(x)
    return largest + tf.math.log(tf.reduce_mean(tf.exp(x - largest), axis=1))


@log_mean_exp.mistake("mean_subtracted")
def _(x):
    """Subtracting the *mean* of a row helps while its entries lie close together. In the row (1000, 0, 0) the first is
    still 667 after that, and `tf.exp` overflows. What leaves no exponent above 0?"""
    middle = tf.reduce_mean(x, axis=1, keepdims=True)
    return middle[:, 0] + tf.math.log(tf.reduce_mean(tf.exp(x - middle), axis=1))


@log_mean_exp.mistake("maximum_stopped_once")
def _(x):
    """The values are right, and the gradient is not: `tf.stop_gradient` stands around one of the two maxima and not
    around the other. Stop both, or neither."""
    largest = tf.reduce_max(x, axis=1, keepdims=True)
    shifted = x - tf.stop_gradient(largest)
    return largest[:, 0] + tf.math.log(tf.reduce_mean(tf.exp(shifted), axis=1))


@log_mean_exp.wrong("none")
def _(x):
    largest = np.max(x, axis=1, keepdims=True)
    return tf.constant(largest[:, 0] + np.log(np.mean(np.exp(x - largest), axis=1)), x.dtype)


def _points(random, dtype):
    def repeated(points):
        points[-1] = points[0]  # two points at one place, beside each point's distance from itself
        return (tf.constant(points, dtype),)

    shown = (tf.constant([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]], dtype),)
    near = repeated(1e-6 * random.normal(size=(4, 2)))  # where the ε of section 2, 1e-12, is no smaller than the rest
    far = repeated(1000.0 + random.normal(size=(4, 2)))  # where |a|² + |b|² - 2 a·b has lost its digits
    return [shown, repeated(random.normal(size=(5, 3))), repeated(random.normal(size=(7, 2))), near, far]


@tf.custom_gradient
def _distances(x):
    """Value and gradient in closed form."""
    apart = x[:, None] - x[None]
    squared = tf.reduce_sum(apart**2, axis=2)
    safe = tf.where(squared > 0, tf.sqrt(tf.where(squared > 0, squared, 1.0)), 1.0)

    def backward(upstream):
        both = (upstream + tf.transpose(upstream)) / safe
        return tf.reduce_sum(both[..., None] * apart, axis=1)

    return tf.where(squared > 0, safe, 0.0), backward


def _observe_distances(answer, x):
    seen = _with_gradient("the distances")(answer, x)
    same_place = np.all(x.numpy()[:, None] == x.numpy()[None], axis=2)
    found = seen["the distances"]
    exact = np.shape(found) == same_place.shape and not np.any(np.asarray(found)[same_place])
    seen["the distances of equal points: are they exactly 0?"] = exact
    if x.dtype == tf.float32 and len(x) == 3:  # one compilation is enough
        compiled = tf.function(lambda x: _with_gradient("the distances")(answer, x), jit_compile=True)
        lost = seen["the gradient"] is None
        seen["the gradient, compiled by XLA"] = None if lost else compiled(x)["the gradient"]
    return seen


distances = Exercise(
    title="The distance from oneself",
    minutes=12,
    beyond=True,
    hints=(
        "`x[:, None]` has shape (points, 1, axes), and `x[None]` has shape (1, points, axes). What is the shape of "
        "their "
        "difference, and over which axis do you sum the squares?",
        "Each point's distance from itself is a root at 0. `safe_norm` of section 2 makes its choice before the root.",
        "Let `squared` be the sums of squares, shape (points, points). Take the root of `tf.where(squared > 0, "
        "squared, "
        "1.0)`, and put 0 back where `squared` is 0.",
    ),
    checker=Function(reference=_distances, inputs=_points, observe=_observe_distances, axes=("point", "other point")),
)


@distances.starter("distances")
def _(x):
    return ...  # the distance of each point from each, shape (points, points)


@distances.right
def _(x):
    """The diagonal is a root at 0, and so is each pair of equal points. The inner `tf.where` gives the root something
    harmless there, so that its slope is finite; the outer one puts the 0 back, and passes the gradient 0. The outer one
    alone works eagerly, and not under XLA."""
    squared = tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2)
    apart = squared > 0
    return tf.where(apart, tf.sqrt(tf.where(apart, squared, 1.0)), 0.0)


@distances.mistake("root_at_zero")
def _(x):
    """The distances are right, and the gradient is NaN: the diagonal takes the root at 0, of infinite slope."""
    return tf.sqrt(tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2))


@distances.mistake("epsilon_in_the_value")
def _(x):
    """The gradient is finite, and an ε stands in the values: each point now has a small distance from itself. The
    distances are to be exact, so choose before the root in place of shifting it."""
    return tf.sqrt(tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2) + 1e-4)


@distances.mistake("small_epsilon")
def _(x):
    """Right where the points lie far apart. Some lie 1e-6 apart, and there the ε under the root is as large as the
    squares. The distances are to be exact, so choose before the root in place of shifting it."""
    return tf.sqrt(tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2) + 1e-12)


@distances.mistake("one_where")
def _(x):
    """Right when it is run eagerly. Compiled by XLA, the gradient is NaN: the root of 0 has been taken, and what
    TensorFlow's own kernel clears away XLA multiplies out. Choose before the root as well."""
    squared = tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2)
    return tf.where(squared > 0, tf.sqrt(squared), 0.0)


@distances.wrong("one_where")
def _(x):
    squared = tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2)
    return tf.math.divide_no_nan(squared, tf.sqrt(squared))


@distances.mistake("tiny_floor")
def _(x):
    """The gradient is right, and equal points are 1e-15 apart: the floor under the root is in the value. The distances
    are to be exact."""
    squared = tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2)
    return tf.sqrt(tf.maximum(squared, 1e-30))


@distances.mistake("expanded_square")
def _(x):
    """Right near the origin. At points about 1000 the squares are about 10⁶, and their sum minus twice the product has
    lost the digits of the distance. Subtract the points first, and square then."""
    products = x @ tf.transpose(x)
    norms = tf.linalg.diag_part(products)
    squared = tf.maximum(norms[:, None] + norms - 2.0 * products, 0.0)
    return tf.where(squared > 0, tf.sqrt(tf.where(squared > 0, squared, 1.0)), 0.0)


@distances.mistake("squared")
def _(x):
    """These are the squares of the distances."""
    return tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2)


@distances.mistake("diagonal_only")
def _(x):
    """The diagonal is mended. Two *different* points can lie at one place as well, and there the root still meets 0.
    Look at the squared distance, not at the index."""
    squared = tf.reduce_sum((x[:, None] - x[None]) ** 2, axis=2)
    squared = tf.linalg.set_diag(squared, tf.ones_like(x[:, 0]))
    return tf.linalg.set_diag(tf.sqrt(squared), tf.zeros_like(x[:, 0]))


@distances.mistake("sum_of_magnitudes")
def _(x):
    """The magnitudes of the differences were added up. The distance is Euclidean: the root of the sum of the
    squares."""
    return tf.reduce_sum(tf.abs(x[:, None] - x[None]), axis=2)


@distances.wrong("none")
def _(x):
    return tf.constant(np.linalg.norm(x[:, None] - x[None], axis=2), x.dtype)
