"""Exercises and predictions of the notebook "Training with a tape"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

first_loss = Prediction(
    "training_with_a_tape.first_loss",
    rtol=0.2,
    remarks=(
        (0.0, "A loss of 0 is for a model that is sure of the right class every time. This one has learnt nothing."),
        (0.1, "0.1 is the probability of the right class. The loss is minus its logarithm."),
        (
            0.9,
            "0.9 is the share of images that a guess gets wrong. The loss is the logarithm of a probability, not a "
            "share.",
        ),
        (10.0, "There are 10 classes, and the loss is the logarithm of that."),
    ),
)

afterwards_is = Prediction(
    "training_with_a_tape.afterwards_is",
    options=("higher", "lower", "the same"),
    remarks=(
        ("the same", "The images are the same and the weights are not: they changed after every step of the epoch."),
        ("lower", "These are the images that the model was trained on, and by now it has met them all."),
    ),
)

number_of_traces = Prediction(
    "training_with_a_tape.number_of_traces",
    remarks=(
        (
            23,
            "23 is the number of calls. Python's `append` runs only while a graph is made, and a graph serves many "
            "calls.",
        ),
        (1, "One graph would do if all batches had one size. The last is smaller."),
        (0, "The Python code has to run to make the graph: at the first call."),
    ),
)

steps_cut = Prediction(
    "training_with_a_tape.steps_cut",
    rtol=0.6,
    remarks=(
        (0, "Without the limit the run dies within a few steps, so the limit must act at least there."),
        (1, "One cut is not enough here: the steps after the first are too long as well, before the network settles."),
        (
            100,
            "Fewer. The gradients are long at the start; once the network has settled, nearly all of them are below "
            "the limit.",
        ),
        (
            200,
            "It would be all 200 if the gradients stayed as long as the first. They become short once the network has "
            "settled.",
        ),
    ),
)

clipped_norms = Prediction(
    "training_with_a_tape.clipped_norms",
    remarks=(
        (
            [5.0, 6.5, 5.0, 6.5],
            "Globally, both are scaled by the same factor, also the one that is short enough by itself.",
        ),
        ([2.5, 6.0, 5.0, 6.5], "The two ways are exchanged: *by tensor* looks at one tensor at a time."),
        (
            [6.5, 6.5, 6.5, 6.5],
            "The limit is no target. A norm below it stays, and globally it holds for both together, not for each.",
        ),
        ([6.5, 6.5, 2.5, 6.0], "Clipping never lengthens: a norm of 5 is below the limit, and stays."),
        ([5.0, 6.5, 5.0, 12.0], "13, the norm of both together, is above the limit, though 5 is not."),
    ),
)

nan_elements = Prediction(
    "training_with_a_tape.nan_elements",
    remarks=(
        ([1, 0], "The scale factor is one number for all tensors, and it is that number which is no longer usable."),
        ([2, 0], "The scale factor is shared by *all* tensors, not by the elements of one."),
        (
            [0, 0],
            "A norm that is not finite leaves no usable scale factor, and the function says so: NaN, in every element.",
        ),
    ),
)


def _examples(random, dtype):
    def examples(number, inputs, limit):
        return (
            _numbers(random, dtype, inputs),
            _numbers(random, dtype, number, inputs),
            _numbers(random, dtype, number),
            limit,
        )

    return [examples(6, 5, 3), examples(7, 5, 3), examples(9, 2, 4), examples(3, 4, 3)]


def _observe_pieces(answer, w, x, y, limit):
    def loss(w, x, y):
        if len(x) > limit:
            raise ValueError(f"{len(x)} examples at once do not fit; at most {limit} do")
        return tf.reduce_mean((tf.linalg.matvec(x, w) - y) ** 2)

    w = tf.Variable(w)
    gradient = answer(loss, w, x, y, limit)
    return {"`w`, which should stay as it is": w.read_value(), "the gradient": gradient}


def _of_mean(w, x, y):
    """The gradient of the mean loss, in closed form."""
    error = tf.linalg.matvec(x, tf.convert_to_tensor(w)) - y
    return 2.0 * tf.linalg.matvec(x, error, transpose_a=True) / len(x)


def _of_pieces(loss, w, x, y, limit):
    """Each piece's gradient and its number of examples, for wrong answers."""
    found = []
    for start in range(0, len(x), limit):
        some_x, some_y = x[start : start + limit], y[start : start + limit]
        with tf.GradientTape() as tape:
            some_loss = loss(w, some_x, some_y)
        found.append((tape.gradient(some_loss, w), len(some_x)))
    return found


pieces = Exercise(
    title="A batch that does not fit",
    minutes=12,
    beyond=True,
    hints=(
        "Each piece has a tape of its own. Its gradient is that of a mean over *this piece*. How do the means of the "
        "pieces make the mean of all?",
        "The last piece may be smaller, and then its mean must count for less. In proportion to what?",
        "Weight each piece's gradient by `len(some_x) / len(x)`, and add up.",
    ),
    checker=Function(
        reference=lambda loss, w, x, y, limit: _of_mean(w, x, y), inputs=_examples, observe=_observe_pieces
    ),
)


@pieces.starter("gradient_in_pieces")
def _(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        ...  # the next examples, at most `limit`, and their part of the gradient
    return total


@pieces.right
def _(loss, w, x, y, limit):
    """The mean over all examples is the mean over each piece, weighted by the piece's share of the examples, and the
    gradient of a weighted sum is the weighted sum of the gradients. This is gradient accumulation: the memory of a
    small batch, the step of a large one."""
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        some_x, some_y = x[start : start + limit], y[start : start + limit]
        with tf.GradientTape() as tape:
            some_loss = loss(w, some_x, some_y)
        total += tape.gradient(some_loss, w) * len(some_x) / len(x)
    return total


@pieces.mistake("sum_of_means")
def _(loss, w, x, y, limit):
    """The pieces' gradients are added up. Each of them is that of a mean, so with every further piece the sum grows.
    What should it be instead?"""
    return sum(gradient for gradient, _ in _of_pieces(loss, w, x, y, limit))


@pieces.mistake("mean_of_means")
def _(loss, w, x, y, limit):
    """Right where all pieces have the same size, as in the first trial. The last piece may be smaller, and here it
    counts for as much as the others."""
    pieces = _of_pieces(loss, w, x, y, limit)
    return sum(gradient for gradient, _ in pieces) / len(pieces)


@pieces.mistake("last_piece")
def _(loss, w, x, y, limit):
    """This is the last piece's gradient, as if it stood for all. What becomes of the ones before it?"""
    return _of_pieces(loss, w, x, y, limit)[-1][0]


@pieces.mistake("rest_dropped")
def _(loss, w, x, y, limit):
    """The examples of the last, smaller piece are missing. `x[start : start + limit]` may reach beyond the end: it then
    gives what is left."""
    number = len(x) // limit
    return sum(gradient for gradient, _ in _of_pieces(loss, w, x, y, limit)[:number]) / number


@pieces.mistake("weighted_by_limit")
def _(loss, w, x, y, limit):
    """Every piece counts as if it had `limit` examples. How many has the last one?"""
    return sum(gradient * limit / len(x) for gradient, _ in _of_pieces(loss, w, x, y, limit))


@pieces.mistake("sum_of_losses")
def _(loss, w, x, y, limit):
    """This is the gradient of the *sum* of all losses: each piece is weighted by its size. The mean divides by
    something, once."""
    return sum(gradient * size for gradient, size in _of_pieces(loss, w, x, y, limit))


@pieces.wrong("raised:ValueError")
def _(loss, w, x, y, limit):
    with tf.GradientTape() as tape:
        all_losses = loss(w, x, y)
    return tape.gradient(all_losses, w)


def _numbers(random, dtype, *shape):
    return tf.constant(random.normal(size=shape), dtype)


def _answers(random, dtype):
    def labels(*values):
        return tf.constant(values, tf.int32)

    return [
        (labels(0), tf.constant([[-1.0, 3.0]], dtype)),
        (labels(0, 5, 2, 2, 1, 4, 3), _numbers(random, dtype, 7, 6)),
        (labels(2, 0, 1, 1), 300.0 * _numbers(random, dtype, 4, 3)),
    ]


def _loss_gradient(labels, logits):
    """What a tape returns."""
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return tape.gradient(loss, logits)


logits_gradient = Exercise(
    title="What the loss sends back",
    minutes=8,
    beyond=True,
    hints=(
        r"Write the loss of one example, $-\log p_c$ with $p_c = e^{z_c} / \sum_k e^{z_k}$, as a difference of two "
        "terms. Differentiate each by $z_j$.",
        r"The derivative of $\log\sum_k e^{z_k}$ by $z_j$ is the probability $p_j$. The other term depends on $z_c$ "
        "alone. Compare with the numbers printed above, for the class 0 and the logits (−1, 3).",
        "Probabilities minus a matrix that has a 1 at each example's class: `tf.nn.softmax(logits)` and "
        "`tf.one_hot(labels, …, dtype=logits.dtype)`. What does the mean over the examples add?",
    ),
    checker=Function(reference=_loss_gradient, inputs=_answers, axes=("example", "class")),
)


@logits_gradient.starter("loss_gradient")
def _(labels, logits):
    return ...  # the gradient of the mean loss with respect to the logits


@logits_gradient.right
def _(labels, logits):
    r"""The loss of one example is $\log\sum_k e^{z_k} - z_c$, where $c$ is its class. The first term has the derivative
    $p_j$ by $z_j$, the second one 1 for $j = c$. The mean divides by the number of examples. The wrong classes are
    pushed down by as much probability as they hold, the true one up by what it lacks."""
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (tf.nn.softmax(logits) - true) / logits.shape[0]


@logits_gradient.mistake("not_averaged")
def _(labels, logits):
    """This is the gradient of the *sum* of the losses. On the example there is one, so the two agree. What does the
    mean divide by?"""
    return tf.nn.softmax(logits) - tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)


@logits_gradient.mistake("divided_by_all")
def _(labels, logits):
    """Too small: it is divided by the number of all entries. The mean runs over the examples, not over the classes."""
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (tf.nn.softmax(logits) - true) / tf.size(logits, logits.dtype)


@logits_gradient.mistake("true_class_only")
def _(labels, logits):
    """Right in the true class of each example, and 0 in the others. The other logits are in the denominator of every
    probability."""
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return true * (tf.nn.softmax(logits) - 1.0) / logits.shape[0]


@logits_gradient.mistake("probabilities")
def _(labels, logits):
    """These are the probabilities, divided by the number of examples. Nothing has been taken off for the true class;
    `labels` has no influence."""
    return tf.nn.softmax(logits) / logits.shape[0]


@logits_gradient.mistake("softmax_over_examples")
def _(labels, logits):
    """The probabilities of one *class* add up to 1 over the examples. Those of one example, a row, should add up to
    1."""
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (tf.nn.softmax(logits, axis=0) - true) / logits.shape[0]


@logits_gradient.mistake("one_row")
def _(labels, logits):
    """This is the mean over the examples, one number for each class. Here every logit is a source of its own: a row for
    each example."""
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return tf.reduce_mean(tf.nn.softmax(logits) - true, axis=0)


@logits_gradient.mistake("of_probabilities")
def _(labels, logits):
    """This is the derivative with respect to the *probabilities*. One more link of the chain leads from there to the
    logits."""
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return -true / tf.nn.softmax(logits) / logits.shape[0]


@logits_gradient.wrong("sign")
def _(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (true - tf.nn.softmax(logits)) / logits.shape[0]


@logits_gradient.wrong("not_finite")
def _(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    p = tf.exp(logits) / tf.reduce_sum(tf.exp(logits), axis=1, keepdims=True)
    return (p - true) / logits.shape[0]


def _calls(random, dtype):
    return [tuple(_numbers(random, dtype, size, 5) for size in sizes) for sizes in ((7, 3), (7, 7, 6, 2, 1))]


def _observe_graphs(answer, *batches):
    traced = []

    def f(x):
        traced.append(tf.inside_function())
        return tf.reduce_sum(x**2, axis=1)

    compiled = answer(f)
    if not callable(compiled):
        raise TypeError(f"compile_once returned {compiled!r}; expected a function to call with a batch")
    results = [compiled(x) for x in batches]
    return {"the results": results, "a graph runs": all(traced), "the number of traces": len(traced)}


def _one_graph(f):
    return tf.function(f, input_signature=[tf.TensorSpec((None, 5), tf.float32)])


one_graph = Exercise(
    title="One graph for every batch size",
    minutes=5,
    beyond=True,
    hints=(
        "A graph is made for the shape that it is told. Who tells it, if not the first call? Look for the arguments "
        "of `tf.function`.",
        "`input_signature` takes a list with one `tf.TensorSpec(shape, dtype)` for each argument.",
        "In the shape of a `tf.TensorSpec`, `None` stands for a size that may change. Which of the two sizes does?",
    ),
    checker=Function(reference=_one_graph, inputs=_calls, observe=_observe_graphs, dtypes=(tf.float32,)),
)


@one_graph.starter("compile_once")
def _(f):
    return ...  # a compiled f that is traced once, whatever the batch size


@one_graph.right
def _(f):
    """An input signature says beforehand what the arguments look like, and `None` in a shape stands for any size. The
    one graph then knows less about its input: while it is traced, `x.shape[0]` is `None`."""
    return tf.function(f, input_signature=[tf.TensorSpec((None, 5), tf.float32)])


@one_graph.mistake("one_for_each_size")
def _(f):
    """The results are right, and there is one trace for each batch size. What can you tell `tf.function` about the
    shape before the first call?"""
    return tf.function(f)


@one_graph.mistake("relaxed_later")
def _(f):
    """Two traces: the first for the exact shape of the first batch, the second, with the size left open, when another
    came. Leave it open from the start."""
    return tf.function(f, reduce_retracing=True)


@one_graph.mistake("not_compiled")
def _(f):
    """The results are right, and Python runs `f` in every call: nothing is compiled."""
    return f


@one_graph.wrong("raised:TypeError")
def _(f):
    return tf.function(f, input_signature=[tf.TensorSpec((7, 5), tf.float32)])


def _gradients(random, dtype):
    def gradients(*parts):
        return [tf.constant(part, dtype) for part in parts]

    return [
        (gradients([3.0, 4.0], [[12.0], [0.0], [0.0]]), 6.5),
        (gradients([0.3, 0.4], [[0.0], [1.2], [0.0]]), 6.5),
        (gradients([np.inf, 4.0], [[12.0], [0.0], [0.0]]), 6.5),
        (gradients([3.0, 4.0], [[12.0], [np.nan], [0.0]]), 6.5),
        (gradients([0.0, 0.0], [[0.0]]), 1.0),
        (gradients(random.normal(size=5), random.normal(size=(5, 6)), random.normal(size=6)), 0.2),
    ]


def _clip_or_skip(gradients, limit):
    norm = np.sqrt(sum(np.sum(np.square(g)) for g in gradients))
    if not np.isfinite(norm):
        return [tf.zeros_like(g) for g in gradients]
    return [g * min(1.0, limit / max(norm, 1e-30)) for g in gradients]


clip_or_skip = Exercise(
    title="Clip the step, or skip it",
    minutes=8,
    hints=(
        "`tf.clip_by_global_norm` returns two things, and the second is what to test: one bad element anywhere shows "
        "in it.",
        "`tf.math.is_finite` tests a tensor. Zeros must be put in the place of the clipped gradients; multiplying "
        r"them by 0 does not help, because $0 \cdot \mathrm{NaN}$ is NaN.",
        "For each clipped tensor: `tf.where(finite, g, tf.zeros_like(g))`, with `finite` made from the norm.",
    ),
    checker=Function(reference=_clip_or_skip, inputs=_gradients),
)


@clip_or_skip.starter("clip_or_skip")
def _(gradients, limit):
    return ...  # a list of tensors with the shapes of the gradients


@clip_or_skip.right
def _(gradients, limit):
    """One bad element makes the global norm infinite or NaN, so the one test is enough for all tensors. `tf.where`
    picks, it does not multiply: a product of the NaN with 0 would be NaN again. It works in a compiled step as well,
    where Python cannot look at the value."""
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    finite = tf.math.is_finite(norm)
    return [tf.where(finite, g, tf.zeros_like(g)) for g in clipped]


@clip_or_skip.mistake("not_skipped")
def _(gradients, limit):
    """The clipping is right. With an infinity or a NaN among the gradients, NaN comes back: the step must be skipped
    then, with zeros."""
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    return clipped


@clip_or_skip.mistake("both_results")
def _(gradients, limit):
    """`tf.clip_by_global_norm` returns two things: the list of clipped gradients, and the norm. You returned both."""
    return tf.clip_by_global_norm(gradients, limit)


@clip_or_skip.mistake("one_by_one")
def _(gradients, limit):
    """Each tensor is clipped by its own norm, which turns the direction. The limit is meant for all of them
    together."""
    if not np.isfinite(tf.linalg.global_norm(gradients)):
        return [tf.zeros_like(g) for g in gradients]
    return [tf.clip_by_norm(g, limit) for g in gradients]


@clip_or_skip.mistake("one_by_one_not_skipped")
def _(gradients, limit):
    """Each tensor is clipped by its own norm, which turns the direction: the limit is meant for all of them together.
    (And nothing is skipped yet.)"""
    return [tf.clip_by_norm(g, limit) for g in gradients]


@clip_or_skip.mistake("only_bad_elements")
def _(gradients, limit):
    """The bad elements became 0, and the step is taken with the rest. If one part of a gradient is not finite, how far
    can you trust the others? Skip the whole step."""
    gradients = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in gradients]
    return tf.clip_by_global_norm(gradients, limit)[0]


@clip_or_skip.mistake("lengthened")
def _(gradients, limit):
    """A gradient shorter than the limit has been *lengthened* to it. Clipping leaves short gradients alone."""
    norm = tf.linalg.global_norm(gradients)
    if not np.isfinite(norm):
        return [tf.zeros_like(g) for g in gradients]
    return [g * limit / norm for g in gradients]


@clip_or_skip.mistake("by_value")
def _(gradients, limit):
    """Each *entry* is cut to the limit, which turns the direction. The limit is meant for the norm of all of them
    together."""
    if not np.isfinite(tf.linalg.global_norm(gradients)):
        return [tf.zeros_like(g) for g in gradients]
    return [tf.clip_by_value(g, -limit, limit) for g in gradients]


@clip_or_skip.wrong("not_skipped")
def _(gradients, limit):
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    finite = tf.cast(tf.math.is_finite(norm), norm.dtype)
    return [g * finite for g in clipped]
