"""Exercises and predictions of the notebook "Training with a tape"."""

import weakref

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.checks import without_a_tape

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

kernel_is = Prediction(
    "training_with_a_tape.kernel_is",
    options=("the same", "somewhat shorter", "much shorter"),
    remarks=(
        ("somewhat shorter", "Who adds the penalty to the loss? Look at the line of the loop that computes it."),
        ("much shorter", "It would be, if the penalty were part of the loss. Which line of the loop adds it?"),
    ),
)

number_of_traces = Prediction(
    "training_with_a_tape.number_of_traces",
    remarks=(
        (
            18,
            "18 is the number of calls. This `append` ran while a graph was made, and a graph serves many calls.",
        ),
        (1, "One graph would do if all batches had one size. The last is smaller."),
        (0, "The Python code has to run to make the graph: at the first call."),
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
    errors, kept = [], []  # what a tape keeps of each piece, and how many pieces it holds when the next one comes

    def loss(w, x, y):
        if len(x) > limit:
            raise ValueError(f"{len(x)} examples at once do not fit; at most {limit} do")
        kept.append(sum(error() is not None for error in errors))
        error = tf.linalg.matvec(x, w) - y
        if tf.executing_eagerly():
            errors.append(weakref.ref(error))
        return tf.reduce_mean(error**2)

    w = tf.Variable(w)
    gradient = answer(loss, w, x, y, limit)
    return {
        "`w`, which should stay as it is": w.read_value(),
        "the gradient": gradient,
        "the earlier pieces still in memory when the next one comes": max(kept, default=0),
    }


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
    gradient of a weighted sum is the weighted sum of the gradients. This is gradient accumulation."""
    total = tf.zeros_like(w)
    for start in range(0, len(x), limit):
        some_x, some_y = x[start : start + limit], y[start : start + limit]
        with tf.GradientTape() as tape:
            some_loss = loss(w, some_x, some_y)
        total += tape.gradient(some_loss, w) * len(some_x) / len(x)
    return total


@pieces.mistake("all_held")
def _(loss, w, x, y, limit):
    """The gradient is right. But one tape records all pieces, and holds every one of them until it is asked: the memory
    is that of the whole batch."""
    with tf.GradientTape() as tape:
        total = 0.0
        for start in range(0, len(x), limit):
            some_x, some_y = x[start : start + limit], y[start : start + limit]
            total += loss(w, some_x, some_y) * len(some_x) / len(x)
    return tape.gradient(total, w)


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


def _tasks(random, dtype):
    """Batches, validation data of another size, and a number of epochs."""

    def task(sizes, epochs):
        parts = [(_numbers(random, dtype, size, 5), _numbers(random, dtype, size, 1)) for size in sizes]
        return parts[:-1], parts[-1], epochs

    return [task((7, 7, 6, 11), 3), task((4, 4, 8), 2)]


def _small_model(asked):
    """A model with penalties and a layer that works in two ways; `asked` receives (examples, training) at each call."""

    class TwoWays(tf.keras.layers.Layer):
        def call(self, inputs, training=False):
            asked.add((inputs.shape[0], bool(training)))
            return 1.5 * inputs if training else inputs

    penalties = {"kernel_regularizer": tf.keras.regularizers.L2(0.1), "bias_regularizer": "l2"}
    penalised = tf.keras.layers.Dense(1, kernel_initializer="ones", **penalties)
    return tf.keras.Sequential([tf.keras.Input((5,)), TwoWays(), penalised])


def _error(y, outputs):
    """A mean squared error that notices when its arguments are exchanged: large targets count more."""
    return tf.reduce_mean((1.5 + tf.tanh(y)) * (y - outputs) ** 2)


def _run_loop(answer, batches, validation, epochs):
    """Run a learner's loop on a small model; what is compared is what the model was asked, and what became of it."""
    asked = set()
    model = _small_model(asked)
    asked.clear()
    optimizer = tf.keras.optimizers.SGD(0.05, momentum=0.5)  # a new one in each epoch would forget
    history = answer(model, optimizer, _error, batches, validation, epochs)
    kept_apart = len(validation[0])
    return {
        "`training` in the steps": sorted({flag for size, flag in asked if size != kept_apart}),
        "`training` on the validation data": sorted({flag for size, flag in asked if size == kept_apart}),
        "the weights after the last epoch": [tf.constant(variable.numpy()) for variable in model.trainable_variables],
        "the model was compiled, so that Keras' loop runs": model.compiled,
        "the list of validation losses": history if history is None else [float(loss) for loss in history],
    }


def _whole_loop(model, optimizer, loss_fn, batches, validation, epochs):
    """The right loop, with every choice that a wrong one makes differently."""
    return _loop_with(model, optimizer, loss_fn, batches, validation, epochs)


def _loop_with(
    model, optimizer, loss_fn, batches, validation, epochs, *, training=True, penalty=sum, judged=False, before=False
):
    history = []
    for _ in range(epochs):
        if before:
            history.append(loss_fn(validation[1], model(validation[0], training=judged)))
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=training)) + penalty(model.losses)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        if not before:
            history.append(loss_fn(validation[1], model(validation[0], training=judged)))
    return history


whole_loop = Exercise(
    title="The loop, from an empty cell",
    minutes=15,
    hints=(
        "Two loops, one inside the other: over the epochs and over the batches. What of a step has to be recorded?",
        "`with tf.GradientTape() as tape:` the model's outputs and the loss; outside it `tape.gradient` and the "
        "optimiser. Section 3 has two things that the model has to be told or asked.",
        "The loss of a step is `loss_fn(y, model(x, training=True)) + sum(model.losses)`. After the batches of an "
        "epoch: `loss_fn` again, on the validation pair, with `training=False` and without the sum.",
    ),
    seconds=60.0,
    checker=Function(reference=_whole_loop, inputs=_tasks, observe=_run_loop, dtypes=(tf.float32,)),
)


@whole_loop.starter("fit")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    return ...  # a list of the validation loss after each epoch


@whole_loop.right
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """Forward pass and loss are recorded, with the layers told that this is training and the model's own losses
    counted. The gradient and the update stand outside. The validation data meet the model as it will be used, take no
    step, and are judged by the loss alone, since the penalty says nothing about them."""
    history = []
    for _ in range(epochs):
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply(gradients, model.trainable_variables)
        x, y = validation
        history.append(float(loss_fn(y, model(x, training=False))))
    return history


@whole_loop.mistake("keras_loop")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """The numbers are right, and the loop is Keras' own: `compile` hands the steps over to it. Write the step yourself,
    with a tape."""
    model.compile(optimizer=optimizer, loss=loss_fn)
    history = []
    for _ in range(epochs):
        for x, y in batches:
            model.train_on_batch(x, y)
        history.append(loss_fn(validation[1], model(validation[0], training=False)))
    return history


@whole_loop.mistake("no_penalty")
def _(*task):
    """The loop runs and the loss falls, and the regulariser has no part in it. Where does the model keep its
    penalty?"""
    return _loop_with(*task, penalty=lambda losses: 0.0)


@whole_loop.mistake("first_penalty")
def _(*task):
    """One penalty is counted, and this model has two. `model.losses` is a list: how do you take all of it?"""
    return _loop_with(*task, penalty=lambda losses: losses[0])


@whole_loop.mistake("not_told")
def _(*task):
    """In the steps the layers are not told that this is training: a dropout would never happen. Which argument of the
    model says so?"""
    return _loop_with(*task, training=False)


@whole_loop.mistake("neither")
def _(*task):
    """Two things are missing in the steps. The layers are not told that this is training, and the regulariser has no
    part in the loss."""
    return _loop_with(*task, training=False, penalty=lambda losses: 0.0)


@whole_loop.mistake("judged_in_training")
def _(*task):
    """The steps are right. On the validation data the layers are told that this is training, too: a dropout would
    switch units off there."""
    return _loop_with(*task, judged=True)


@whole_loop.mistake("learns_from_validation")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """The validation data take steps as well. They are there to judge the model: keep them apart."""
    return _loop_with(model, optimizer, loss_fn, [*batches, validation], validation, epochs)


@whole_loop.mistake("judged_by_training_data")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """The steps are right. The numbers in the list are losses on a batch that the model was trained on; the validation
    data are never looked at."""
    return _loop_with(model, optimizer, loss_fn, batches, batches[-1], epochs)


@whole_loop.mistake("judged_by_the_step")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """The steps are right. The numbers in the list are the losses of the epochs' last steps; the validation data are
    never looked at."""
    history = []
    for _ in range(epochs):
        for x, y in batches:
            with tf.GradientTape() as tape:
                loss = loss_fn(y, model(x, training=True)) + sum(model.losses)
            optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        history.append(loss)
    return history


@whole_loop.mistake("exchanged")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """`loss_fn` gets the outputs first and the targets second. This one wants the targets first, and is
    not the same the other way round."""
    return _loop_with(model, optimizer, lambda y, outputs: loss_fn(outputs, y), batches, validation, epochs)


@whole_loop.mistake("judged_with_penalty")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """The steps are right. The numbers in the list hold the penalty, too. It is there to shape the weights, and says
    nothing about the validation data."""
    history = []
    for _ in range(epochs):
        (loss,) = _loop_with(model, optimizer, loss_fn, batches, validation, 1)
        history.append(loss + sum(model.losses))
    return history


@whole_loop.mistake("judged_before")
def _(*task):
    """The steps are right. The validation loss is noted *before* the steps of each epoch, and the last epoch is never
    judged."""
    return _loop_with(*task, before=True)


@whole_loop.mistake("judged_once")
def _(*task):
    """The steps are right, and the list has one number, of the end. One for each epoch is asked for."""
    return _loop_with(*task)[-1:]


@whole_loop.mistake("one_epoch")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """One epoch, where `epochs` are asked for."""
    return _loop_with(model, optimizer, loss_fn, batches, validation, 1)


@whole_loop.mistake("no_step")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """The weights are what they were: no step is taken, and the loss does not fall. What does the optimiser need?"""
    for x, y in batches:
        loss_fn(y, model(x, training=True))
    return [loss_fn(validation[1], model(validation[0], training=False)) for _ in range(epochs)]


@whole_loop.mistake("last_batch_only")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    """Each epoch takes one step, on its last batch. Does the gradient stand inside the loop over the batches?"""
    return _loop_with(model, optimizer, loss_fn, batches[-1:], validation, epochs)


@whole_loop.wrong("raised:ValueError")
def _(model, optimizer, loss_fn, batches, validation, epochs):
    return _loop_with(model, optimizer, loss_fn, [x for x, _ in batches], None, epochs)


@whole_loop.wrong("none")
def _(*task):
    _loop_with(*task)


def _answers(random, dtype):
    def labels(*values):
        return tf.constant(values, tf.int32)

    return [
        (labels(0), tf.constant([[-1.0, 3.0]], dtype)),
        (labels(0, 5, 2, 2, 1, 4, 3), _numbers(random, dtype, 7, 6)),
        (labels(2, 0, 1, 1), 300.0 * _numbers(random, dtype, 4, 3)),
    ]


def _loss_gradient(labels, logits):
    """In closed form, in float64."""
    z = logits.numpy().astype(np.float64)
    e = np.exp(z - z.max(axis=1, keepdims=True))
    p = e / e.sum(axis=1, keepdims=True) - np.eye(z.shape[1])[labels.numpy()]
    return tf.constant(p / len(z), logits.dtype)


logits_gradient = Exercise(
    title="What the loss sends back",
    minutes=8,
    beyond=True,
    hints=(
        r"Write the loss of one example, $-\log p_c$ with $p_c = e^{z_c} / \sum_k e^{z_k}$, as a difference of two "
        "terms. Differentiate each with respect to $z_j$.",
        r"The derivative of $\log\sum_k e^{z_k}$ with respect to $z_j$ is the probability $p_j$. The other term "
        "depends on $z_c$ alone. Compare with the numbers printed above, for the class 0 and the logits (−1, 3).",
        "Probabilities minus a matrix that has a 1 at each example's class: `tf.nn.softmax(logits)` and "
        "`tf.one_hot(labels, …, dtype=logits.dtype)`. What does the mean over the examples add?",
    ),
    checker=Function(reference=_loss_gradient, inputs=_answers, observe=without_a_tape, axes=("example", "class")),
)


@logits_gradient.starter("loss_gradient")
def _(labels, logits):
    return ...  # the gradient of the mean loss with respect to the logits


@logits_gradient.right
def _(labels, logits):
    r"""The loss of one example is $\log\sum_k e^{z_k} - z_c$, where $c$ is its class. With respect to $z_j$ the first
    term has the derivative $p_j$, and $z_c$ has 1 for $j = c$ and 0 otherwise. The mean divides by the number of
    examples."""
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


@logits_gradient.wrong("tape")
def _(labels, logits):
    with tf.GradientTape() as tape:
        tape.watch(logits)
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return tape.gradient(loss, logits)


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
    return [tuple(_numbers(random, dtype, size, 5) for size in sizes) for sizes in ((7, 3), (7, 7, 6, 2, 1), (3, 2000))]


def _observe_graphs(answer, *batches):
    traced, sizes = [], []

    def f(x):
        traced.append(tf.inside_function())
        sizes.append(x.shape.rank and x.shape[0])
        return tf.reduce_sum(x**2, axis=1)

    compiled = answer(f)
    if not callable(compiled):
        raise TypeError(f"compile_once returned {compiled!r}; expected a function to call with a batch")
    results = [compiled(x) for x in batches]
    return {
        "the results": results,
        "a graph runs": all(traced),
        "the number of traces": len(traced),
        "the size it is traced for": sizes[0],
    }


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


@one_graph.mistake("padded")
def _(f):
    """One trace, and right as long as no batch is larger than the size that yours are filled up to. `f` works on all
    those rows each time. The size can be left open."""
    compiled = tf.function(f)

    def filled_up(x):
        return compiled(tf.pad(x, [[0, 4000 - len(x)], [0, 0]]))[: len(x)]

    return filled_up


@one_graph.wrong("raised:InvalidArgumentError")
def _(f):
    compiled = tf.function(f)
    return lambda x: compiled(tf.pad(x, [[0, 1000 - len(x)], [0, 0]]))[: len(x)]


@one_graph.wrong("raised:TypeError")
def _(f):
    return tf.function(f, input_signature=[tf.TensorSpec((7, 5), tf.float32)])
