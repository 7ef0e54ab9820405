"""Exercises and predictions of notebook 02, Training with a tape."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction

import numpy as np
import tensorflow as tf

first_loss = Prediction(
    "02.first_loss",
    reason=(
        "A model that spreads its belief evenly gives each class probability 1/10, and the loss is $-\\log(1/10) = \\log 10$. Random weights come out "
        "somewhat above that: they are unsure, and now and then sure of the wrong class. A first loss far from $\\log 10$ is a sign of a mistake."
    ),
    rtol=0.2,
    remarks=(
        (0.0, "A loss of 0 is for a model that is sure of the right class every time. This one has learnt nothing."),
        (0.1, "0.1 is the probability of the right class. The loss is minus its logarithm."),
        (
            0.9,
            "0.9 is the share of images that a guess gets wrong. The loss is the logarithm of a probability, not a share.",
        ),
        (10.0, "There are 10 classes, and the loss is the logarithm of that."),
    ),
)

metric_forgotten = Prediction(
    "02.metric_forgotten",
    reason="The metric has met three numbers, 4, 2 and 1, and knows nothing of epochs: it says $7/3$, the mean of all three.",
    remarks=(
        (1.0, "1 is the mean of epoch 2. The metric still holds what it met in epoch 1."),
        (
            2.0,
            "2 is the mean of the two epochs' means, 3 and 1. The metric counts every number alike, and epoch 1 has two.",
        ),
    ),
)

afterwards_is = Prediction(
    "02.afterwards_is",
    reason=(
        "The metric averages over steps, and each step used other weights: the first of them were random. It describes the epoch, not the model at its end."
    ),
    options=("higher", "lower", "the same"),
    remarks=(
        ("the same", "The images are the same and the weights are not: they changed after every step of the epoch."),
        ("lower", "These are the images that the model was trained on, and by now it has met them all."),
    ),
)

number_of_traces = Prediction(
    "02.number_of_traces",
    reason=(
        "One entry for each *shape*, not for each call. The graph is made for the shape of its arguments, so the smaller last batch needs a graph of its own."
    ),
    remarks=(
        (
            23,
            "23 is the number of calls. Python's `append` runs only while a graph is made, and a graph serves many calls.",
        ),
        (1, "One graph would do if all batches had one size. The last is smaller."),
        (0, "The Python code has to run to make the graph: at the first call."),
    ),
)

confusion = Prediction(
    "02.confusion",
    reason="The row is the true class, the column the prediction. The 0 was taken for a 1: row 0, column 1. Both 1s were found: row 1, column 1.",
    remarks=(
        ([[0, 0], [1, 2]], "This is the transpose: the truth is on the *rows*."),
        ([[1, 0], [0, 2]], "The image of class 0 was not found: it was taken for a 1."),
        ([[1, 1], [0, 1]], "There is one example of class 0 and there are two of class 1; the rows add up to 1 and 2."),
    ),
)

clipped_norms = Prediction(
    "02.clipped_norms",
    reason=(
        "By tensor, the first gradient is short enough and stays; the second alone is cut. The global norm is $\\sqrt{5^2 + 12^2} = 13$, twice the limit, so "
        "everything is halved."
    ),
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
    "02.nan_elements",
    reason=(
        "All of them: TensorFlow marks the whole step as unusable, rather than to hide the fault in one tensor. Test for it, and skip the step."
    ),
    remarks=(
        ([1, 0], "The scale factor is one number for all tensors, and it is that number which is no longer usable."),
        ([2, 0], "The scale factor is shared by *all* tensors, not by the elements of one."),
        ([0, 0], "An infinite norm makes the scale factor 0, and $0 \\cdot \\infty$ is not a number."),
    ),
)


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


def _one_hot(labels, logits):
    return tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)


def _not_averaged(labels, logits):
    return tf.nn.softmax(logits) - _one_hot(labels, logits)


logits_gradient = Exercise(
    "02.logits_gradient",
    title="What the loss sends back",
    minutes=8,
    beyond=True,
    starter="""
def loss_gradient(labels, logits):
    return ...  # the gradient of the mean loss with respect to the logits


exercises.logits_gradient.check(loss_gradient)
""",
    solution_code="""
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (tf.nn.softmax(logits) - true) / logits.shape[0]
""",
    explanation=(
        "The loss of one example is $\\log\\sum_k e^{z_k} - z_c$, where $c$ is its class. The first term has the derivative $p_j$ by $z_j$, the second one 1 for $j = c$. "
        "The mean divides by the number of examples. The wrong classes are pushed down by as much probability as they hold, the true one up by what it lacks."
    ),
    hints=(
        "Write the loss of one example, $-\\log p_c$ with $p_c = e^{z_c} / \\sum_k e^{z_k}$, as a difference of two terms. Differentiate each by $z_j$.",
        "The derivative of $\\log\\sum_k e^{z_k}$ by $z_j$ is the probability $p_j$. The other term depends on $z_c$ alone. Compare with the numbers printed above, for the class 0 and the logits (−1, 3).",
        "Probabilities minus a matrix that has a 1 at each example's class: `tf.nn.softmax(logits)` and `tf.one_hot(labels, …, dtype=logits.dtype)`. What does the mean over the examples add?",
    ),
    checker=Function(
        reference=_loss_gradient,
        inputs=_answers,
        axes=("example", "class"),
        mistakes=(
            Mistake(
                "not_averaged",
                "This is the gradient of the *sum* of the losses. On the example there is one, so the two agree. What does the mean divide by?",
                _not_averaged,
            ),
            Mistake(
                "divided_by_all",
                "Too small: it is divided by the number of all entries. The mean runs over the examples, not over the classes.",
                lambda labels, logits: _not_averaged(labels, logits) / tf.size(logits, logits.dtype),
            ),
            Mistake(
                "true_class_only",
                "Right in the true class of each example, and 0 in the others. The other logits are in the denominator of every probability.",
                lambda labels, logits: _loss_gradient(labels, logits) * _one_hot(labels, logits),
            ),
            Mistake(
                "probabilities",
                "These are the probabilities, divided by the number of examples. Nothing has been taken off for the true class; `labels` has no influence.",
                lambda labels, logits: tf.nn.softmax(logits) / logits.shape[0],
            ),
            Mistake(
                "softmax_over_examples",
                "The probabilities of one *class* add up to 1 over the examples. Those of one example, a row, should add up to 1.",
                lambda labels, logits: (
                    (tf.nn.softmax(logits, axis=0) - _one_hot(labels, logits)) / tf.cast(len(logits), logits.dtype)
                ),
            ),
            Mistake(
                "one_row",
                "This is the mean over the examples, one number for each class. Here every logit is a source of its own: a row for each example.",
                lambda labels, logits: tf.reduce_mean(_not_averaged(labels, logits), axis=0),
            ),
            Mistake(
                "of_probabilities",
                "This is the derivative with respect to the *probabilities*. One more link of the chain leads from there to the logits.",
                lambda labels, logits: (
                    -_one_hot(labels, logits) / tf.nn.softmax(logits) / tf.cast(logits.shape[0], logits.dtype)
                ),
            ),
        ),
    ),
    wrong=(
        (
            """
def loss_gradient(labels, logits):
    return tf.nn.softmax(logits) - tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
""",
            "not_averaged",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (tf.nn.softmax(logits) - true) / tf.size(logits, logits.dtype)
""",
            "divided_by_all",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return true * (tf.nn.softmax(logits) - 1.0) / logits.shape[0]
""",
            "true_class_only",
        ),
        (
            """
def loss_gradient(labels, logits):
    return tf.nn.softmax(logits) / logits.shape[0]
""",
            "probabilities",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (tf.nn.softmax(logits, axis=0) - true) / logits.shape[0]
""",
            "softmax_over_examples",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return tf.reduce_mean(tf.nn.softmax(logits) - true, axis=0)
""",
            "one_row",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return -true / tf.nn.softmax(logits) / logits.shape[0]
""",
            "of_probabilities",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    return (true - tf.nn.softmax(logits)) / logits.shape[0]
""",
            "sign",
        ),
        (
            """
def loss_gradient(labels, logits):
    true = tf.one_hot(labels, logits.shape[1], dtype=logits.dtype)
    p = tf.exp(logits) / tf.reduce_sum(tf.exp(logits), axis=1, keepdims=True)
    return (p - true) / logits.shape[0]
""",
            "not_finite",
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


def _of_pieces(w, x, y, limit):
    return [_of_mean(w, x[start : start + limit], y[start : start + limit]) for start in range(0, len(x), limit)]


def _without_the_rest(loss, w, x, y, limit):
    full = len(x) // limit * limit
    return _of_mean(w, x[:full], y[:full])


pieces = Exercise(
    "02.pieces",
    title="A batch that does not fit",
    minutes=12,
    beyond=True,
    starter="""
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        ...  # the next examples, at most `limit`, and their part of the gradient
    return total


exercises.pieces.check(gradient_in_pieces)
""",
    solution_code="""
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        some_x, some_y = x[start : start + limit], y[start : start + limit]
        with tf.GradientTape() as tape:
            some_loss = loss(w, some_x, some_y)
        total += tape.gradient(some_loss, w) * len(some_x) / len(x)
    return total
""",
    explanation=(
        "The mean over all examples is the mean over each piece, weighted by the piece's share of the examples, and the gradient of a weighted sum is the weighted sum of the "
        "gradients. This is gradient accumulation: the memory of a small batch, the step of a large one."
    ),
    hints=(
        "Each piece has a tape of its own. Its gradient is that of a mean over *this piece*. How do the means of the pieces make the mean of all?",
        "The last piece may be smaller. The loop of section 2 has met the same question with its loss metric: look at `sample_weight`.",
        "Weight each piece's gradient by `len(some_x) / len(x)`, and add up.",
    ),
    checker=Function(
        reference=lambda loss, w, x, y, limit: _of_mean(w, x, y),
        inputs=_examples,
        observe=_observe_pieces,
        mistakes=(
            Mistake(
                "sum_of_means",
                "The pieces' gradients are added up. Each of them is that of a mean, so with every further piece the sum grows. What should it be instead?",
                lambda loss, w, x, y, limit: tf.add_n(_of_pieces(w, x, y, limit)),
            ),
            Mistake(
                "mean_of_means",
                "Right where all pieces have the same size, as in the first trial. The last piece may be smaller, and here it counts for as much as the others.",
                lambda loss, w, x, y, limit: tf.reduce_mean(tf.stack(_of_pieces(w, x, y, limit)), axis=0),
            ),
            Mistake(
                "last_piece",
                "This is the last piece's gradient, as if it stood for all. What becomes of the ones before it?",
                lambda loss, w, x, y, limit: _of_pieces(w, x, y, limit)[-1],
            ),
            Mistake(
                "rest_dropped",
                "The examples of the last, smaller piece are missing. `x[start : start + limit]` may reach beyond the end: it then gives what is left.",
                _without_the_rest,
            ),
            Mistake(
                "weighted_by_limit",
                "Every piece counts as if it had `limit` examples. How many has the last one?",
                lambda loss, w, x, y, limit: tf.add_n(_of_pieces(w, x, y, limit)) * limit / len(x),
            ),
            Mistake(
                "sum_of_losses",
                "This is the gradient of the *sum* of all losses: each piece is weighted by its size. The mean divides by something, once.",
                lambda loss, w, x, y, limit: _of_mean(w, x, y) * len(x),
            ),
        ),
    ),
    wrong=(
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        with tf.GradientTape() as tape:
            some_loss = loss(w, x[start : start + limit], y[start : start + limit])
        total += tape.gradient(some_loss, w)
    return total
""",
            "sum_of_means",
        ),
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    starts = range(0, len(x), limit)
    for start in starts:
        with tf.GradientTape() as tape:
            some_loss = loss(w, x[start : start + limit], y[start : start + limit])
        total += tape.gradient(some_loss, w) / len(starts)
    return total
""",
            "mean_of_means",
        ),
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    for start in range(0, len(x), limit):
        with tf.GradientTape() as tape:
            some_loss = loss(w, x[start : start + limit], y[start : start + limit])
        total = tape.gradient(some_loss, w)
    return total
""",
            "last_piece",
        ),
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    number = len(x) // limit
    for piece in range(number):
        with tf.GradientTape() as tape:
            some_loss = loss(w, x[piece * limit : (piece + 1) * limit], y[piece * limit : (piece + 1) * limit])
        total += tape.gradient(some_loss, w) / number
    return total
""",
            "rest_dropped",
        ),
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        with tf.GradientTape() as tape:
            some_loss = loss(w, x[start : start + limit], y[start : start + limit])
        total += tape.gradient(some_loss, w) * limit / len(x)
    return total
""",
            "weighted_by_limit",
        ),
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        some_x, some_y = x[start : start + limit], y[start : start + limit]
        with tf.GradientTape() as tape:
            some_loss = loss(w, some_x, some_y)
        total += tape.gradient(some_loss, w) * len(some_x)
    return total
""",
            "sum_of_losses",
        ),
        (
            """
def gradient_in_pieces(loss, w, x, y, limit):
    with tf.GradientTape() as tape:
        all_losses = loss(w, x, y)
    return tape.gradient(all_losses, w)
""",
            "raised:ValueError",
        ),
    ),
)


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
    "02.one_graph",
    title="One graph for every batch size",
    minutes=5,
    beyond=True,
    starter="""
def compile_once(f):
    return ...  # a compiled f that is traced once, whatever the batch size


exercises.one_graph.check(compile_once)
""",
    solution_code="""
def compile_once(f):
    return tf.function(f, input_signature=[tf.TensorSpec((None, 5), tf.float32)])
""",
    explanation=(
        "An input signature says beforehand what the arguments look like, and `None` in a shape stands for any size. The one graph then knows less about its input: "
        "while it is traced, `x.shape[0]` is `None`."
    ),
    hints=(
        "A graph is made for the shape that it is told. Who tells it, if not the first call? Look for the arguments of `tf.function`.",
        "`input_signature` takes a list with one `tf.TensorSpec(shape, dtype)` for each argument.",
        "In the shape of a `tf.TensorSpec`, `None` stands for a size that may change. Which of the two sizes does?",
    ),
    checker=Function(
        reference=_one_graph,
        inputs=_calls,
        observe=_observe_graphs,
        dtypes=(tf.float32,),
        mistakes=(
            Mistake(
                "one_for_each_size",
                "The results are right, and there is one trace for each batch size. What can you tell `tf.function` about the shape before the first call?",
                tf.function,
            ),
            Mistake(
                "relaxed_later",
                "Two traces: the first for the exact shape of the first batch, the second, with the size left open, when another came. Leave it open from the start.",
                lambda f: tf.function(f, reduce_retracing=True),
            ),
            Mistake(
                "not_compiled",
                "The results are right, and Python runs `f` in every call: nothing is compiled.",
                lambda f: f,
            ),
        ),
    ),
    wrong=(
        ("def compile_once(f):\n    return tf.function(f)\n", "one_for_each_size"),
        ("def compile_once(f):\n    return tf.function(f, reduce_retracing=True)\n", "relaxed_later"),
        ("def compile_once(f):\n    return f\n", "not_compiled"),
        (
            "def compile_once(f):\n    return tf.function(f, input_signature=[tf.TensorSpec((7, 5), tf.float32)])\n",
            "raised:TypeError",
        ),
    ),
)


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


def _zeros_unless_finite(gradients, clipped):
    return clipped if np.isfinite(tf.linalg.global_norm(gradients)) else [tf.zeros_like(g) for g in gradients]


def _one_by_one(gradients, limit):
    return _zeros_unless_finite(gradients, [tf.clip_by_norm(g, limit) for g in gradients])


def _only_bad_elements(gradients, limit):
    kept = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in gradients]
    return tf.clip_by_global_norm(kept, limit)[0]


clip_or_skip = Exercise(
    "02.clip_or_skip",
    title="Clip the step, or skip it",
    minutes=8,
    starter="""
def clip_or_skip(gradients, limit):
    return ...  # a list of tensors with the shapes of the gradients


exercises.clip_or_skip.check(clip_or_skip)
""",
    solution_code="""
def clip_or_skip(gradients, limit):
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    finite = tf.math.is_finite(norm)
    return [tf.where(finite, g, tf.zeros_like(g)) for g in clipped]
""",
    explanation=(
        "One bad element makes the global norm infinite or NaN, so the one test is enough for all tensors. `tf.where` picks, it does not multiply: a product of the NaN with 0 would be "
        "NaN again. It works in a compiled step as well, where Python cannot look at the value."
    ),
    hints=(
        "`tf.clip_by_global_norm` returns two things, and the second is what to test: one bad element anywhere shows in it.",
        "`tf.math.is_finite` tests a tensor. Zeros must be put in the place of the clipped gradients; multiplying them by 0 does not help, because $0 \\cdot \\mathrm{NaN}$ is NaN.",
        "For each clipped tensor: `tf.where(finite, g, tf.zeros_like(g))`, with `finite` made from the norm.",
    ),
    checker=Function(
        reference=_clip_or_skip,
        inputs=_gradients,
        mistakes=(
            Mistake(
                "not_skipped",
                "The clipping is right. With an infinity or a NaN among the gradients, NaN comes back: the step must be skipped then, with zeros.",
                lambda gradients, limit: tf.clip_by_global_norm(gradients, limit)[0],
            ),
            Mistake(
                "both_results",
                "`tf.clip_by_global_norm` returns two things: the list of clipped gradients, and the norm. You returned both.",
                tf.clip_by_global_norm,
            ),
            Mistake(
                "one_by_one",
                "Each tensor is clipped by its own norm, which turns the direction. The limit is meant for all of them together.",
                _one_by_one,
            ),
            Mistake(
                "one_by_one_not_skipped",
                "Each tensor is clipped by its own norm, which turns the direction: the limit is meant for all of them together. (And nothing is skipped yet.)",
                lambda gradients, limit: [tf.clip_by_norm(g, limit) for g in gradients],
            ),
            Mistake(
                "only_bad_elements",
                "The bad elements became 0, and the step is taken with the rest. If one part of a gradient is not finite, how far can you trust the others? Skip the whole step.",
                _only_bad_elements,
            ),
            Mistake(
                "lengthened",
                "A gradient shorter than the limit has been *lengthened* to it. Clipping leaves short gradients alone.",
                lambda gradients, limit: _zeros_unless_finite(
                    gradients, [g * limit / tf.linalg.global_norm(gradients) for g in gradients]
                ),
            ),
            Mistake(
                "by_value",
                "Each *entry* is cut to the limit, which turns the direction. The limit is meant for the norm of all of them together.",
                lambda gradients, limit: _zeros_unless_finite(
                    gradients, [tf.clip_by_value(g, -limit, limit) for g in gradients]
                ),
            ),
        ),
    ),
    wrong=(
        (
            """
def clip_or_skip(gradients, limit):
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    return clipped
""",
            "not_skipped",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    return tf.clip_by_global_norm(gradients, limit)
""",
            "both_results",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    if not np.isfinite(tf.linalg.global_norm(gradients)):
        return [tf.zeros_like(g) for g in gradients]
    return [tf.clip_by_norm(g, limit) for g in gradients]
""",
            "one_by_one",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    return [tf.clip_by_norm(g, limit) for g in gradients]
""",
            "one_by_one_not_skipped",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    gradients = [tf.where(tf.math.is_finite(g), g, tf.zeros_like(g)) for g in gradients]
    return tf.clip_by_global_norm(gradients, limit)[0]
""",
            "only_bad_elements",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    norm = tf.linalg.global_norm(gradients)
    if not np.isfinite(norm):
        return [tf.zeros_like(g) for g in gradients]
    return [g * limit / norm for g in gradients]
""",
            "lengthened",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    if not np.isfinite(tf.linalg.global_norm(gradients)):
        return [tf.zeros_like(g) for g in gradients]
    return [tf.clip_by_value(g, -limit, limit) for g in gradients]
""",
            "by_value",
        ),
        (
            """
def clip_or_skip(gradients, limit):
    clipped, norm = tf.clip_by_global_norm(gradients, limit)
    finite = tf.cast(tf.math.is_finite(norm), norm.dtype)
    return [g * finite for g in clipped]
""",
            "not_skipped",
        ),
    ),
)
