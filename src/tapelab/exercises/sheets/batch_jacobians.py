"""Exercises and predictions of the notebook "Batch Jacobians"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value
from tapelab.exercises.sheets.jacobians import _count_passes

import tensorflow as tf

_SECONDS = 40.0  # for an answer: each Jacobian that it takes is traced anew for every input that is tried

passes = Prediction(
    "batch_jacobians.passes",
    remarks=(
        (42, "That is one for each output of each example, as `jacobian` does it. One pass serves the whole batch."),
        (7, "One for each example is not needed: a pass serves all of them, and gives one output's row of each."),
        (5, "Reverse mode pays for outputs. All inputs come with each pass."),
    ),
)

coupled_returns = Prediction(
    "batch_jacobians.coupled_returns",
    options=("an error", "a warning", "a tensor of shape (7, 6, 5)"),
    remarks=(
        ("an error", "To raise one, it would have to know that the examples are coupled. It sees shapes only."),
        ("a warning", "To warn, it would have to know that the examples are coupled. It sees shapes only."),
    ),
)

over = Prediction(
    "batch_jacobians.over",
    options=("target", "source"),
    remarks=(
        (
            "source",
            "Section 2 summed over the source's axis, which is the same while the patches are diagonal. The pass "
            "itself sums outputs.",
        ),
    ),
)

ones = Prediction(
    "batch_jacobians.ones",
    remarks=(
        (
            ["coupled", "coupled"],
            "Ones cannot see it: they give every example the same weight, as `batch_jacobian` did.",
        ),
        (["coupled", "independent"], "It is the other way round: weights that differ from example to example tell."),
        (
            ["independent", "independent"],
            "Random weights differ from example to example, and the two sides weigh the examples differently.",
        ),
    ),
)

not_a_loop = Prediction(
    "batch_jacobians.not_a_loop",
    remarks=(
        (
            ["roll 0", "roll -1"],
            "An axis counted from the front is found again behind the new one. Which other loses something?",
        ),
        (
            ["roll 0", "pad"],
            "An axis counted from the front is found again behind the new one. And one counted from the end?",
        ),
        (["roll -1", "reverse"], "`reverse` counts its axis rightly. Which operation has a number to remember?"),
    ),
)

too_late = Prediction(
    "batch_jacobians.too_late",
    options=("None", "zeros", "an error", "the second derivatives"),
    remarks=(
        ("None", "That is what `jacobian` and `gradient` return. `batch_jacobian` does not keep to it."),
        ("the second derivatives", "The inner call ran after the outer tape had closed, so it is not in the record."),
        ("an error", "A missing path is no error to `batch_jacobian`, and not even a `None`."),
    ),
)


def _losses(random, dtype):
    """Functions from weights to one loss for each example, each with weights. They carry the data, for the closed
    form."""

    def squares(batch, ins, outs):
        def losses(w):
            x, targets = (tf.constant(part, w.dtype) for part in losses.data)
            return tf.reduce_sum((tf.tanh(tf.linalg.matvec(w, x, transpose_a=True)) - targets) ** 2, axis=-1)

        losses.data = (random.normal(size=(batch, ins)), random.normal(size=(batch, outs)))
        return losses, tf.constant(0.3 * random.normal(size=(ins, outs)), dtype), batch

    return [squares(7, 5, 6), squares(3, 2, 4)]


def _weights_of_each(losses, w, batch):
    """The gradient of every loss, in closed form, shape (batch, ins, outs)."""
    x, targets = (tf.constant(part, w.dtype) for part in losses.data)
    y = tf.tanh(x @ w)
    return tf.einsum("ni,no->nio", x, 2.0 * (y - targets) * (1.0 - y**2))


shared_weights = Exercise(
    title="Each example's gradient, in one pass",
    minutes=12,
    beyond=True,
    seconds=_SECONDS,
    hints=(
        "`tape.gradient(losses(w), w)` is the sum of the gradients that you want. In section 2 the gradient of a sum "
        "over the batch *was* one row for each example. What does `x` have there that `w` does not have here?",
        "`losses` accepts weights of shape (batch, ins, outs): one matrix for each example. Loss `n` then depends on "
        "matrix `n` alone.",
        "Make the copies with `tf.tile(w[tf.newaxis], [batch, 1, 1])` *before* the tape uses them, watch the copies, "
        "and take the gradient with respect to them.",
    ),
    checker=Function(
        reference=_weights_of_each,
        inputs=_losses,
        observe=_count_passes("the gradients", lambda *arguments: 1, _weights_of_each),
        axes=("example", "input", "output"),
    ),
)


@shared_weights.starter("per_example_gradients")
def _(losses, w, batch):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, ins, outs), from one call of tape.gradient


@shared_weights.right
def _(losses, w, batch):
    """One weight matrix couples nothing, but it has no batch axis, and so its gradient is the sum over the examples.
    With a copy for each example, loss `n` depends on copy `n` alone: the gradient of the sum is then each example's own
    gradient, in one pass."""
    copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        each = losses(copies)
    return tape.gradient(each, copies)


@shared_weights.mistake("many_passes")
def _(losses, w, batch):
    """The gradients are right. They took one backward pass for each example, in a loop or inside `jacobian`. One pass
    is enough for all: read in section 2 how a pass serves the whole batch."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        each = losses(w)
    return tape.jacobian(each, w)


@shared_weights.mistake("one_for_all")
def _(losses, w, batch):
    """This is one gradient for the whole batch: the sum over the examples. All losses share the same `w`. What would
    keep their gradients apart?"""
    with tf.GradientTape() as tape:
        tape.watch(w)
        each = losses(w)
    return tape.gradient(each, w)


@shared_weights.mistake("repeated")
def _(losses, w, batch):
    """The shape is right, and every example has the same entries: the sum over the batch, repeated. The sum was taken
    first, and copied afterwards. Copy what goes *into* the losses."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        each = losses(w)
    return tf.tile(tape.gradient(each, w)[tf.newaxis], [batch, 1, 1])


@shared_weights.mistake("mean")
def _(losses, w, batch):
    """This is the mean of the gradients over the batch. Each example is to keep its own."""
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_mean(losses(w))
    return tape.gradient(loss, w)


@shared_weights.wrong("many_passes")
def _(losses, w, batch):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each = tf.unstack(losses(w))
    return tf.stack([tape.gradient(one, w) for one in each])


@shared_weights.wrong("many_passes")
def _(losses, w, batch):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each = losses(w)
    return tf.vectorized_map(lambda unit: tape.gradient(each, w, output_gradients=unit), tf.eye(batch, dtype=w.dtype))


@shared_weights.wrong("one_for_all")
def _(losses, w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
        each = losses(copies)
    return tape.gradient(each, w)


@shared_weights.wrong("none")
def _(losses, w, batch):
    copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
    with tf.GradientTape() as tape:
        each = losses(copies)
    return tape.gradient(each, copies)


@shared_weights.wrong("factor")
def _(losses, w, batch):
    copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        loss = tf.reduce_mean(losses(copies))
    return tape.gradient(loss, copies)


def _of_columns(random, dtype):
    """Functions from (ins, batch) to (outs, batch), each with an input. They carry the kernel, for the closed form."""

    def network(outs, ins):
        def function(x):
            return tf.tanh(tf.constant(function.kernel, x.dtype) @ x)

        function.kernel = 0.4 * random.normal(size=(outs, ins))
        return function

    return [
        (network(6, 5), tf.constant(random.normal(size=(5, 7)), dtype)),
        (network(2, 4), tf.constant(random.normal(size=(4, 3)), dtype)),
    ]


def _batch_last(function, x):
    """The derivative of tanh(K x), in closed form, shape (batch, outs, ins)."""
    return tf.einsum("on,oi->noi", 1.0 - function(x) ** 2, tf.constant(function.kernel, x.dtype))


batch_last = Exercise(
    title="The batch is the last axis",
    minutes=6,
    seconds=_SECONDS,
    hints=(
        "Which axis does `batch_jacobian` take for the batch, in the target and in the source? Which axis is it here?",
        "Either bring both into that order inside the tape, or take the full Jacobian, write down its four axes in "
        "order, and select the diagonal with `einsum`, as section 2 does.",
        "The full Jacobian has the axes (outs, batch, ins, batch). Give both batch axes one letter, and write that "
        "letter first in the result. Or: watch the transpose of `x`, and hand the function the transpose of *that*.",
    ),
    checker=Function(reference=_batch_last, inputs=_of_columns, axes=("example", "output", "input")),
)


@batch_last.starter("each_jacobian")
def _(function, x):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, outs, ins)


@batch_last.right
def _(function, x):
    """`batch_jacobian` takes the first axis of both for the batch. The tape differentiates with respect to the
    transposed input because that is the tensor that is watched, and from which the function's own input is made inside
    the tape. The diagonal of the full Jacobian, `tf.einsum("obib->boi", …)`, is the same."""
    examples_first = tf.transpose(x)
    with tf.GradientTape() as tape:
        tape.watch(examples_first)
        y = tf.transpose(function(tf.transpose(examples_first)))
    return tape.batch_jacobian(y, examples_first)


@batch_last.mistake("wrong_axis")
def _(function, x):
    """The batch is at the end: this has the axes (outs, ins, batch), as a selection of the diagonal leaves them when
    its letter is written last. Which axis is to stand first?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.einsum("onin->oin", tape.jacobian(y, x))


@batch_last.mistake("all_examples")
def _(function, x):
    """This sums over the examples: one matrix for the whole batch. Each example is to keep its own."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.reduce_sum(tape.jacobian(y, x), axis=[1, 3])


@batch_last.mistake("gradient")
def _(function, x):
    """This has the shape of `x`: `gradient` has added up the outputs of each example. Which call keeps them apart?"""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)


@batch_last.mistake("not_connected")
def _(function, x):
    """Zero everywhere: the zeros with which `batch_jacobian` says *not connected*. Did the tape watch the tensor that
    you differentiate with respect to? Did the function get its input from that very tensor? Was all that leads to the
    target computed inside the block?"""
    examples_first = tf.transpose(x)
    with tf.GradientTape() as tape:
        tape.watch(examples_first)
        y = tf.transpose(function(x))
    return tape.batch_jacobian(y, examples_first)


@batch_last.mistake("full")
def _(function, x):
    """This is the full Jacobian, with the axes (outs, batch, ins, batch). Of its two batch axes, keep the pairs of an
    example with itself."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.jacobian(y, x)


@batch_last.wrong("raised:ValueError")
def _(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.batch_jacobian(y, x)


@batch_last.wrong("axes_swapped")
def _(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.einsum("onin->nio", tape.jacobian(y, x))


_KERNEL = [[0.5, -1.0, 0.3], [0.2, 0.8, -0.6], [-0.7, 0.1, 0.9], [1.1, -0.4, 0.2]]  # 4 inputs, 3 outputs


def _safe():
    """For each function, whether `batch_jacobian` gives the diagonal of the full Jacobian: found by running both."""
    kernel = tf.constant(_KERNEL)
    functions = {
        "A": lambda x: tf.nn.softmax(x @ kernel),
        "B": lambda x: tf.cumsum(x @ kernel),
        "C": lambda x: tf.reverse(x @ kernel, axis=[1]),
        "D": lambda x: tf.math.l2_normalize(x) @ kernel,
        "E": lambda x: tf.sort(x, axis=1) @ kernel,
        "F": lambda x: (x - tf.stop_gradient(tf.reduce_mean(x, axis=0))) @ kernel,
    }
    x = tf.constant([[0.1, -0.5, 0.7, 0.3], [1.0, 0.2, -0.4, 0.6], [-0.8, 0.9, 0.5, -0.2]])
    found = {}
    for name, function in functions.items():
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = function(x)
        own = tf.einsum("bobi->boi", tape.jacobian(y, x, experimental_use_pfor=False))
        returned = tape.batch_jacobian(y, x, experimental_use_pfor=False)
        found[name] = bool(tf.reduce_max(tf.abs(returned - own)) < 1e-4)
    return found


may_use = Exercise(
    title="Which of them may use batch_jacobian?",
    minutes=5,
    seconds=_SECONDS,
    hints=(
        "For each: does one row of the result change when another row of `x` does? Where no axis is given, the "
        "function's documentation says which it takes: `help(tf.cumsum)`.",
        "Three of them name no axis, and their defaults are three different ones.",
        "F subtracts a mean over the batch. Which of the paths from `x` to the result does a tape see?",
    ),
    checker=Value(
        expected=_safe,
        mistakes=(
            Mistake(
                "softmax_default",
                "In A: this softmax names no axis. Its default is not the batch's. Which axis is last here?",
                {"A": False},
            ),
            Mistake(
                "cumsum_default",
                "In B: `cumsum` names no axis here. Which one does it run along by default?",
                {"B": True},
            ),
            Mistake(
                "within_the_row",
                "In C and E: mixing is no harm in itself. Reversing or sorting along axis 1 stays within an example.",
                {"C": False},
                where=lambda answer: answer["C"] is False or answer["E"] is False,
            ),
            Mistake(
                "norm_of_all",
                "In D: `l2_normalize` names no axis here. Over which entries does it then take the norm?",
                {"D": True},
            ),
            Mistake(
                "seen_by_the_tape",
                "In F: the values are coupled. The question is about two Jacobians that a tape returns. What does "
                "`stop_gradient` hide from both?",
                {"F": False},
            ),
        ),
        wrong=(
            ("within_the_row", {"A": True, "B": False, "C": True, "D": False, "E": False, "F": True}),
            ("keys", {"A": True, "B": False, "C": True, "D": False, "E": True}),
            ("type", [True, False, True, False, True, True]),
        ),
    ),
)


@may_use.starter()
def _():
    answers = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}  # True where batch_jacobian is right

    return answers


@may_use.right
def _():
    """What counts is the axis along which a function mixes, and its default differs from function to function: -1 for
    `softmax`, 0 for `cumsum`, all axes for `l2_normalize`. In F the examples are coupled in their values, but not in
    what the tape differentiates, and that is all that a Jacobian from a tape can show."""
    answers = {"A": True, "B": False, "C": True, "D": False, "E": True, "F": True}
    return answers


def _fields(random, dtype):
    """Functions from (batch, ins) to (batch,), each with an input. They carry their Hessians in closed form."""

    def network(ins):
        kernel, mix = 0.5 * random.normal(size=(ins, 4)), random.normal(size=4)

        def function(x):
            return tf.linalg.matvec(tf.tanh(x @ tf.constant(kernel, x.dtype)), tf.constant(mix, x.dtype))

        def hessians(x):
            k = tf.constant(kernel, x.dtype)
            y = tf.tanh(x @ k)
            return tf.einsum("nh,ih,jh->nij", tf.constant(mix, x.dtype) * -2.0 * y * (1.0 - y**2), k, k)

        function.hessians = hessians
        return function

    def saddle(x):
        return x[:, 0] ** 2 - 3.0 * x[:, 1] ** 2 + x[:, 0] * x[:, 1] ** 3

    def hessians(x):
        a, b = tf.unstack(x, axis=1)
        rows = [[2.0 + 0.0 * a, 3.0 * b**2], [3.0 * b**2, 6.0 * a * b - 6.0]]
        return tf.stack([tf.stack(row, axis=1) for row in rows], axis=1)

    saddle.hessians = hessians
    return [
        (saddle, tf.constant([[1.0, 2.0], [0.5, -1.0], [-2.0, 0.3]], dtype)),
        (network(5), tf.constant(random.normal(size=(7, 5)), dtype)),
    ]


def _laplacian(function, x):
    return tf.linalg.trace(function.hessians(x))


def _slopes_on_a_tape(function, x):
    """A tape and the slopes that it has recorded, for wrong answers."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)
    return outer, slopes


laplacian = Exercise(
    title="The Laplacian of each example",
    minutes=8,
    seconds=_SECONDS,
    hints=(
        "There is one output for each example, of shape (batch,). Which of `gradient` and `batch_jacobian` gives its "
        "first derivatives?",
        "The first derivatives have shape (batch, ins), their batch Jacobian (batch, ins, ins). Section 7 says where "
        "the first call must stand.",
        "`slopes = inner.gradient(y, x)`, inside the outer `with`; then `outer.batch_jacobian(slopes, x)` outside; "
        "then the sum over the diagonal of each matrix: `tf.linalg.trace`.",
    ),
    checker=Function(
        reference=_laplacian,
        inputs=_fields,
        observe=_count_passes("the Laplacians", lambda function, x: 1 + x.shape[1], _laplacian),
        axes=("example",),
    ),
)


@laplacian.starter("laplacians")
def _(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
    ...
    return ...  # shape (batch,)


@laplacian.right
def _(function, x):
    """With one output, each row of `gradient` is an example's own first derivative. Its `batch_jacobian` is one Hessian
    for each example, and the Laplacian is the trace. The first derivative is taken while the outer tape records."""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)  # shape (batch, ins): each example has one output, so one pass is enough
    hessians = outer.batch_jacobian(slopes, x)  # shape (batch, ins, ins)
    return tf.linalg.trace(hessians)


@laplacian.mistake("not_connected")
def _(function, x):
    """Zero for every example. It is the zero that means *not connected*: where does the inner derivative stand, inside
    the outer `with` or after it?"""
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
    slopes = inner.gradient(y, x)
    return tf.linalg.trace(outer.batch_jacobian(slopes, x))


@laplacian.mistake("every_pair")
def _(function, x):
    """The Laplacians are right, and `jacobian` took a pass for each slope of each example, most of it for zeros. Which
    function serves all examples with one pass?"""
    outer, slopes = _slopes_on_a_tape(function, x)
    return tf.einsum("bibi->b", outer.jacobian(slopes, x))


@laplacian.mistake("all_entries")
def _(function, x):
    """This adds up all second derivatives, the mixed ones too. Which entries of each Hessian belong to the
    Laplacian?"""
    outer, slopes = _slopes_on_a_tape(function, x)
    return tf.reduce_sum(outer.gradient(slopes, x), axis=1)


@laplacian.mistake("row_sums")
def _(function, x):
    """These are the sums of each Hessian's columns: `outer.gradient` adds up all the slopes before it differentiates.
    The unmixed derivatives have to be told apart first."""
    outer, slopes = _slopes_on_a_tape(function, x)
    return outer.gradient(slopes, x)


@laplacian.mistake("hessians")
def _(function, x):
    """These are the Hessians, one for each example. One step is missing."""
    outer, slopes = _slopes_on_a_tape(function, x)
    return outer.batch_jacobian(slopes, x)


@laplacian.mistake("diagonals")
def _(function, x):
    """These are the diagonals of the Hessians, shape (batch, ins). One sum is missing."""
    outer, slopes = _slopes_on_a_tape(function, x)
    return tf.linalg.diag_part(outer.batch_jacobian(slopes, x))


@laplacian.wrong("summed")
def _(function, x):
    outer, slopes = _slopes_on_a_tape(function, x)
    return tf.reduce_sum(tf.linalg.trace(outer.batch_jacobian(slopes, x)))


@laplacian.wrong("raised:ValueError")
def _(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.batch_jacobian(y, x)
    return tf.linalg.trace(outer.batch_jacobian(slopes, x))
