"""Exercises and predictions of notebook 11, Batch Jacobians."""

from unittest import mock

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import tensorflow as tf

_SECONDS = 40.0  # for an answer: each Jacobian that it takes is traced anew for every input that is tried

full_shape = Prediction(
    "11.full_shape",
    reason="The target's axes come first, (batch, outs), then the source's, (batch, ins): every output of every example by every input of every example.",
    remarks=(
        ((7, 5, 7, 6), "These are the source's axes before the target's. `jacobian` puts the target's first."),
        ((7, 6, 5), "That is one Jacobian for each example. `jacobian` also pairs each example with the six others."),
        ((7, 7, 6, 5), "The axes are not sorted by kind: all of the target's stand before all of the source's."),
        ((42, 35), "These are the right entries; `jacobian` keeps the axes apart and flattens nothing."),
    ),
)

nonzero = Prediction(
    "11.nonzero",
    reason="An example's output depends on the same example's input alone, so the entries that can differ from zero are the diagonal.",
    remarks=(
        (49, "That many would need every example to depend on every other. No layer here mixes them."),
        (1, "Each of the 7 examples has one entry: its own output by its own input."),
        (42, "Those are the ones off the diagonal: one example's output by another example's input."),
    ),
)

passes = Prediction(
    "11.passes",
    reason="One pass differentiates one output of all 7 examples at once, so there is one for each of the 6 outputs.",
    remarks=(
        (42, "That is one for each output of each example, as `jacobian` does it. One pass serves the whole batch."),
        (7, "One for each example is not needed: a pass serves all of them, and gives one output's row of each."),
        (5, "Reverse mode pays for outputs. All inputs come with each pass."),
    ),
)

coupled_returns = Prediction(
    "11.coupled_returns",
    reason="The guard compares the first sizes, 7 and 7. It does not look at what depends on what, so it lets the coupled examples through.",
    options=("an error", "a warning", "a tensor of shape (7, 6, 5)"),
    remarks=(
        ("an error", "To raise one, it would have to know that the examples are coupled. It sees shapes only."),
        ("a warning", "To warn, it would have to know that the examples are coupled. It sees shapes only."),
    ),
)

over = Prediction(
    "11.over",
    reason="Each pass differentiates the sum of one output over the batch. What is summed before differentiating is the target.",
    options=("target", "source"),
    remarks=(
        (
            "source",
            "Section 2 summed over the source's axis, which is the same while the patches are diagonal. The pass itself sums outputs.",
        ),
    ),
)

blind = Prediction(
    "11.blind",
    reason="`batch_jacobian` has summed over the target's examples with weight one each. A cotangent of ones does that same sum again, so both sides agree.",
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

too_late = Prediction(
    "11.too_late",
    reason="No tape recorded the inner call, so nothing connects its result with `x`. `jacobian` says `None`; `batch_jacobian` fills in zeros.",
    options=("None", "zeros", "an error", "the second derivatives"),
    remarks=(
        ("None", "That is what `jacobian` and `gradient` say. `batch_jacobian` does not keep to it."),
        ("the second derivatives", "The inner call ran after the outer tape had closed, so it is not in the record."),
        ("an error", "A missing path is no error to `batch_jacobian`, and not even a `None`."),
    ),
)


def _losses(random, dtype):
    """Functions from weights to one loss for each example, each with weights. They carry the data, for the closed form."""

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


def _observe_passes(answer, losses, w, batch):
    calls = []

    class Counting(tf.GradientTape):
        def gradient(self, *args, **kwargs):
            calls.append("gradient")
            return super().gradient(*args, **kwargs)

        def jacobian(self, *args, **kwargs):
            calls.append("jacobian")
            return super().jacobian(*args, **kwargs)

    with mock.patch.object(tf, "GradientTape", Counting):
        gradients = answer(losses, w, batch)
    return {"the gradients": gradients, "more than one pass": "jacobian" in calls or calls.count("gradient") > 1}


def _in_a_loop(losses, w, batch):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each = tf.unstack(losses(w))
    return tf.stack([tape.gradient(one, w) for one in each])


shared_weights = Exercise(
    "11.shared_weights",
    title="Each example's gradient, in one pass",
    minutes=12,
    beyond=True,
    seconds=_SECONDS,
    starter="""
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, ins, outs), from one call of tape.gradient


exercises.shared_weights.check(per_example_gradients)
""",
    solution_code="""
def per_example_gradients(losses, w, batch):
    copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        each = losses(copies)
    return tape.gradient(each, copies)
""",
    explanation=(
        "One weight matrix couples nothing, but it has no batch axis, and so its gradient is the sum over the examples. With a copy for each example, "
        "loss `n` depends on copy `n` alone: the gradient of the sum is then each example's own gradient, in one pass. The copies cost a batch "
        "times the weights' memory, which the answer has anyhow."
    ),
    hints=(
        "`tape.gradient(losses(w), w)` is the sum of the gradients that you want. In section 2 the gradient of a sum over the batch "
        "*was* one row for each example. What does `x` have there that `w` does not have here?",
        "`losses` accepts weights of shape (batch, ins, outs): one matrix for each example. Loss `n` then depends on matrix `n` alone.",
        "Make the copies with `tf.tile(w[tf.newaxis], [batch, 1, 1])` *before* the tape uses them, watch the copies, and "
        "take the gradient with respect to them.",
    ),
    checker=Function(
        reference=_weights_of_each,
        inputs=_losses,
        observe=_observe_passes,
        axes=("example", "input", "output"),
        mistakes=(
            Mistake(
                "many_passes",
                "The gradients are right. They took one backward pass for each example, in a loop or inside `jacobian`. One pass "
                "is enough for all: read in section 2 how a pass serves the whole batch.",
                _in_a_loop,
            ),
            Mistake(
                "one_for_all",
                "This is one gradient for the whole batch: the sum over the examples. All losses share the same `w`. What "
                "would keep their gradients apart?",
                lambda losses, w, batch: tf.reduce_sum(_weights_of_each(losses, w, batch), axis=0),
            ),
            Mistake(
                "repeated",
                "The shape is right, and every example has the same entries: the sum over the batch, repeated. The sum was "
                "taken first, and copied afterwards. Copy what goes *into* the losses.",
                lambda losses, w, batch: tf.stack([tf.reduce_sum(_weights_of_each(losses, w, batch), axis=0)] * batch),
            ),
            Mistake(
                "mean",
                "This is the mean of the gradients over the batch. Each example is to keep its own.",
                lambda losses, w, batch: tf.reduce_mean(_weights_of_each(losses, w, batch), axis=0),
            ),
        ),
    ),
    wrong=(
        (
            """
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        each = losses(w)
    return tape.gradient(each, w)
""",
            "one_for_all",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        each = losses(w)
    return tape.jacobian(each, w)
""",
            "many_passes",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each = tf.unstack(losses(w))
    return tf.stack([tape.gradient(one, w) for one in each])
""",
            "many_passes",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        each = losses(w)
    return tf.tile(tape.gradient(each, w)[tf.newaxis], [batch, 1, 1])
""",
            "repeated",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        loss = tf.reduce_mean(losses(w))
    return tape.gradient(loss, w)
""",
            "mean",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    with tf.GradientTape() as tape:
        tape.watch(w)
        copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
        each = losses(copies)
    return tape.gradient(each, w)
""",
            "one_for_all",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
    with tf.GradientTape() as tape:
        each = losses(copies)
    return tape.gradient(each, copies)
""",
            "none",
        ),
        (
            """
def per_example_gradients(losses, w, batch):
    copies = tf.tile(w[tf.newaxis], [batch, 1, 1])
    with tf.GradientTape() as tape:
        tape.watch(copies)
        loss = tf.reduce_mean(losses(copies))
    return tape.gradient(loss, copies)
""",
            "factor",
        ),
    ),
)


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


def _full(function, x):
    """The full Jacobian, shape (outs, batch, ins, batch)."""
    return tf.einsum("noi,nm->onim", _batch_last(function, x), tf.eye(x.shape[1], dtype=x.dtype))


batch_last = Exercise(
    "11.batch_last",
    title="The batch is the last axis",
    minutes=6,
    seconds=_SECONDS,
    starter="""
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        ...
    return ...  # shape (batch, outs, ins)


exercises.batch_last.check(each_jacobian)
""",
    solution_code="""
def each_jacobian(function, x):
    examples_first = tf.transpose(x)
    with tf.GradientTape() as tape:
        tape.watch(examples_first)
        y = tf.transpose(function(tf.transpose(examples_first)))
    return tape.batch_jacobian(y, examples_first)
""",
    explanation=(
        "`batch_jacobian` takes the first axis of both for the batch. The tape differentiates with respect to the transposed "
        "input because that is the tensor that is watched, and from which the function's own input is made inside the tape. "
        'The diagonal of the full Jacobian, `tf.einsum("obib->boi", …)`, gives the same and costs a batch times as much.'
    ),
    hints=(
        "Which axis does `batch_jacobian` take for the batch, in the target and in the source? Which axis is it here?",
        "Either bring both into that order inside the tape, or take the full Jacobian, write down its four axes in order, and "
        "select the diagonal with `einsum`, as section 2 does.",
        "The full Jacobian has the axes (outs, batch, ins, batch). Give both batch axes one letter, and write that letter first in the "
        "result. Or: watch the transpose of `x`, and hand the function the transpose of *that*.",
    ),
    checker=Function(
        reference=_batch_last,
        inputs=_of_columns,
        axes=("example", "output", "input"),
        mistakes=(
            Mistake(
                "wrong_axis",
                "The batch is at the end: this has the axes (outs, ins, batch), as a selection of the diagonal leaves them "
                "when its letter is written last. Which axis is to stand first?",
                lambda function, x: tf.transpose(_batch_last(function, x), [1, 2, 0]),
            ),
            Mistake(
                "all_examples",
                "This sums over the examples: one matrix for the whole batch. Each example is to keep its own.",
                lambda function, x: tf.reduce_sum(_batch_last(function, x), axis=0),
            ),
            Mistake(
                "gradient",
                "This has the shape of `x`: `gradient` has added up the outputs of each example. Which call keeps them apart?",
                lambda function, x: tf.transpose(tf.reduce_sum(_batch_last(function, x), axis=1)),
            ),
            Mistake(
                "not_connected",
                "Zero everywhere: the zeros with which `batch_jacobian` says *not connected*. Did the tape watch the tensor that you "
                "differentiate with respect to? Did the function get its input from that very tensor? Was all that leads to the target computed "
                "inside the block?",
                lambda function, x: tf.zeros_like(_batch_last(function, x)),
            ),
            Mistake(
                "full",
                "This is the full Jacobian, with the axes (outs, batch, ins, batch). Of its two batch axes, keep the pairs of "
                "an example with itself.",
                _full,
            ),
        ),
    ),
    wrong=(
        (
            """
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.batch_jacobian(y, x)
""",
            "raised:ValueError",
        ),
        (
            """
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x)
""",
            "gradient",
        ),
        (
            """
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.jacobian(y, x)
""",
            "full",
        ),
        (
            """
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.einsum("onin->oin", tape.jacobian(y, x))
""",
            "wrong_axis",
        ),
        (
            """
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.einsum("onin->nio", tape.jacobian(y, x))
""",
            "axes_swapped",
        ),
        (
            """
def each_jacobian(function, x):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tf.reduce_sum(tape.jacobian(y, x), axis=[1, 3])
""",
            "all_examples",
        ),
        (
            """
def each_jacobian(function, x):
    examples_first = tf.transpose(x)
    with tf.GradientTape() as tape:
        tape.watch(examples_first)
        y = tf.transpose(function(x))
    return tape.batch_jacobian(y, examples_first)
""",
            "not_connected",
        ),
    ),
)


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
    "11.may_use",
    title="Which of them may use batch_jacobian?",
    minutes=5,
    seconds=_SECONDS,
    starter="""
answers = {"A": ..., "B": ..., "C": ..., "D": ..., "E": ..., "F": ...}  # True where batch_jacobian is right

exercises.may_use.check(answers)
""",
    solution_code="""
answers = {"A": True, "B": False, "C": True, "D": False, "E": True, "F": True}
""",
    explanation=(
        "What counts is the axis along which a function mixes, and its default differs from function to function: -1 for `softmax`, 0 for `cumsum`, "
        "all axes for `l2_normalize`. In F the examples are coupled in their values, but not in what the tape differentiates, and that is all that "
        "a Jacobian from a tape can show."
    ),
    hints=(
        "For each: does one row of the result change when another row of `x` does? Where no axis is given, the function's documentation "
        "says which it takes: `help(tf.cumsum)`.",
        "Three of them name no axis, and their defaults are three different ones.",
        "F subtracts a mean over the batch. Which of the paths from `x` to the result does a tape see?",
    ),
    checker=Value(
        expected=_safe,
        mistakes=(
            Mistake(
                "softmax_default",
                "In A: this softmax names no axis. Its default is not the batch's. Compare with the one in section 4.",
                lambda answer: answer["A"] is False,
            ),
            Mistake(
                "cumsum_default",
                "In B: `cumsum` names no axis here. Which one does it run along by default?",
                lambda answer: answer["B"] is True,
            ),
            Mistake(
                "within_the_row",
                "In C and E: mixing is no harm in itself. Reversing or sorting along axis 1 stays within an example.",
                lambda answer: answer["C"] is False or answer["E"] is False,
            ),
            Mistake(
                "norm_of_all",
                "In D: `l2_normalize` names no axis here. Over which entries does it then take the norm?",
                lambda answer: answer["D"] is True,
            ),
            Mistake(
                "seen_by_the_tape",
                "In F: the values are coupled. The question is about two Jacobians that a tape returns. What does `stop_gradient` hide from both?",
                lambda answer: answer["F"] is False,
            ),
        ),
    ),
    wrong=(
        ('answers = {"A": False, "B": False, "C": True, "D": False, "E": True, "F": True}', "softmax_default"),
        ('answers = {"A": True, "B": True, "C": True, "D": False, "E": True, "F": True}', "cumsum_default"),
        ('answers = {"A": True, "B": False, "C": False, "D": False, "E": True, "F": True}', "within_the_row"),
        ('answers = {"A": True, "B": False, "C": True, "D": False, "E": False, "F": True}', "within_the_row"),
        ('answers = {"A": True, "B": False, "C": True, "D": True, "E": True, "F": True}', "norm_of_all"),
        ('answers = {"A": True, "B": False, "C": True, "D": False, "E": True, "F": False}', "seen_by_the_tape"),
        ('answers = {"A": True, "B": False, "C": True, "D": False, "E": True}', "keys"),
        ("answers = [True, False, True, False, True, True]", "type"),
    ),
)


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


laplacian = Exercise(
    "11.laplacian",
    title="The Laplacian of each example",
    minutes=8,
    seconds=_SECONDS,
    starter="""
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
    ...
    return ...  # shape (batch,)


exercises.laplacian.check(laplacians)
""",
    solution_code="""
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)  # shape (batch, ins): each example has one output, so one pass is enough
    hessians = outer.batch_jacobian(slopes, x)  # shape (batch, ins, ins)
    return tf.linalg.trace(hessians)
""",
    explanation=(
        "With one output, each row of `gradient` is an example's own first derivative. Its `batch_jacobian` is one Hessian for each example, and the Laplacian "
        "is the trace. The first derivative is taken while the outer tape records."
    ),
    hints=(
        "There is one output for each example, of shape (batch,). Which of `gradient` and `batch_jacobian` gives its first derivatives?",
        "The first derivatives have shape (batch, ins), their batch Jacobian (batch, ins, ins). Section 5 says where the first call must stand.",
        "`slopes = inner.gradient(y, x)`, inside the outer `with`; then `outer.batch_jacobian(slopes, x)` outside; then the "
        "sum over the diagonal of each matrix: `tf.linalg.trace`.",
    ),
    checker=Function(
        reference=_laplacian,
        inputs=_fields,
        axes=("example",),
        mistakes=(
            Mistake(
                "not_connected",
                "Zero for every example. It is the zero that means *not connected*: where does the inner derivative stand, inside the outer "
                "`with` or after it?",
                lambda function, x: tf.zeros(x.shape[:1], x.dtype),
            ),
            Mistake(
                "all_entries",
                "This adds up all second derivatives, the mixed ones too. Which entries of each Hessian belong to the Laplacian?",
                lambda function, x: tf.reduce_sum(function.hessians(x), axis=[1, 2]),
            ),
            Mistake(
                "row_sums",
                "These are the sums of each Hessian's columns: `outer.gradient` adds up all the slopes before it differentiates. The unmixed derivatives have to be told apart first.",
                lambda function, x: tf.reduce_sum(function.hessians(x), axis=1),
            ),
            Mistake(
                "hessians",
                "These are the Hessians, one for each example. One step is missing.",
                lambda function, x: function.hessians(x),
            ),
            Mistake(
                "diagonals",
                "These are the diagonals of the Hessians, shape (batch, ins). One sum is missing.",
                lambda function, x: tf.linalg.diag_part(function.hessians(x)),
            ),
        ),
    ),
    wrong=(
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
    slopes = inner.gradient(y, x)
    return tf.linalg.trace(outer.batch_jacobian(slopes, x))
""",
            "not_connected",
        ),
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)
    return tf.reduce_sum(outer.gradient(slopes, x), axis=1)
""",
            "all_entries",
        ),
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)
    return outer.gradient(slopes, x)
""",
            "row_sums",
        ),
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)
    return outer.batch_jacobian(slopes, x)
""",
            "hessians",
        ),
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)
    return tf.linalg.diag_part(outer.batch_jacobian(slopes, x))
""",
            "diagonals",
        ),
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.gradient(y, x)
    return tf.reduce_sum(tf.linalg.trace(outer.batch_jacobian(slopes, x)))
""",
            "summed",
        ),
        (
            """
def laplacians(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        slopes = inner.batch_jacobian(y, x)
    return tf.linalg.trace(outer.batch_jacobian(slopes, x))
""",
            "raised:ValueError",
        ),
    ),
)
