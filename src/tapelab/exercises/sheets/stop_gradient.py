"""Exercises and predictions of the notebook "Stop gradient"."""

import weakref

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

side_of_cut = Prediction(
    "stop_gradient.side_of_cut",
    remarks=(
        ([None, None], "The cut is on the way to $y$. Between `v` and `w` there is none."),
        ([324.0, 0.0], "It is `None`, not 0: no path to $y$ is left."),
        ([324.0, 432.0], "432 is the true derivative. Every path to $y$ leads through the cut."),
        ([36.0, None], r"36 is $\partial v/\partial u$. The cut keeps the value 9, and $u = 9w$ has derivative 9."),
    ),
)

same_cut = Prediction(
    "stop_gradient.same_cut",
    remarks=(
        (None, "One path is cut. The other, through $5y$, is open."),
        (11.0, "11 is the true derivative. The path through $y^2$ contributes 6 to it, and that path is cut."),
        (6.0, "6 comes from $y^2$, which is the path that is cut."),
        (0.0, "The cut closes one path. The other, through $5y$, is open."),
    ),
)

whom = Prediction(
    "stop_gradient.whom",
    remarks=(
        (
            [1.0, 1.0, 1.0, 1.0],
            "The outer tape was not paused: it recorded the square, although the inner one did not.",
        ),
        ([1.0, 7.0, 1.0, 7.0], "The cut is in the computation. The outer tape meets it like the inner one."),
        (
            [7.0, 7.0, 1.0, 1.0],
            "The inner tape was paused while the square was computed, and to it the square is a constant.",
        ),
    ),
)

straight = Prediction(
    "stop_gradient.straight",
    remarks=(
        (
            [1.0, None],
            "`None` is what `tf.round` itself gives. The first $x$ stands outside the cut, and its path is open.",
        ),
        (
            [1.0, 0.0],
            "0 would be the staircase's derivative. The gradient is that of the first $x$, which stands outside the "
            "cut.",
        ),
        ([0.7, 1.0], "The cut keeps the bracket's value, which is $1 - 0.7$."),
    ),
)

teacher_at = Prediction(
    "stop_gradient.teacher_at",
    options=("below 1", "at 1", "above 1"),
    remarks=(
        ("at 1", "There its own error is 0, and the student's is not. Which way would a small move of $p$ lower that?"),
        ("above 1", "A steeper parabola is further from its best constant. Which way lowers the student's error?"),
    ),
)

true_values = Prediction(
    "stop_gradient.true_values",
    options=("cut", "open", "both", "neither"),
    remarks=(
        ("both", "The losses are equal and not zero. What lowers them is another matter when the targets can move."),
        ("neither", "With the cut, the pulls of the two steps from each state cancel at the truth."),
        ("open", "It is the other way round: the open path is what moves away from the truth."),
    ),
)

saves_memory = Prediction(
    "stop_gradient.saves_memory",
    options=("the end", "the beginning", "both", "neither"),
    remarks=(
        ("the end", "The cut at the end comes after this branch has been recorded."),
        ("both", "Both save backward work. This branch is recorded as it runs, before the cut at its end."),
        ("neither", "After the cut at the beginning nothing of this branch is recorded, and so nothing is kept."),
    ),
)


@tf.custom_gradient
def _two_learners(scores, values, rewards):
    """The loss with the two learners' gradients written by hand."""
    error = rewards - values

    def backward(upstream):
        return -upstream * error, -2.0 * upstream * error, tf.zeros_like(rewards)

    return tf.reduce_sum(error**2) - tf.reduce_sum(scores * error), backward


def _observe_learners(answer, scores, values, rewards):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([scores, values])
        loss = answer(scores, values, rewards)
    return {
        "the loss": loss,
        "the gradient with respect to scores": tape.gradient(loss, scores),
        "the gradient with respect to values": tape.gradient(loss, values),
    }


def _learners(random, dtype):
    def vector(entries):
        return tf.constant(entries, dtype)

    return [
        (vector([0.5, -1.0]), vector([1.0, 2.0]), vector([3.0, 0.0])),
        tuple(vector(random.normal(size=7)) for _ in range(3)),
        tuple(vector(random.normal(size=5)) for _ in range(3)),
    ]


two_learners = Exercise(
    title="One loss, two learners",
    minutes=5,
    hints=(
        "Two paths lead from the loss to `values`, one through each term. Which of them is to be closed?",
        "Section 2: a cut belongs to a path. In the actor's term, `error` is a number to multiply by; in the critic's "
        "term it is what is learned.",
        "Put `tf.stop_gradient` around `error` in the line of `actor`, and nowhere else.",
    ),
    checker=Function(reference=_two_learners, inputs=_learners, observe=_observe_learners),
)


@two_learners.starter("loss_of_both")
def _(scores, values, rewards):
    error = rewards - values
    critic = tf.reduce_sum(error**2)
    actor = -tf.reduce_sum(scores * error)
    return ...  # critic + actor, with a cut somewhere above


@two_learners.right
def _(scores, values, rewards):
    """`error` is used twice, and `values` is to learn from one of the two uses only. The cut is on the other use, not
    on the name."""
    error = rewards - values
    critic = tf.reduce_sum(error**2)
    actor = -tf.reduce_sum(scores * tf.stop_gradient(error))
    return critic + actor


@two_learners.mistake("no_cut")
def _(scores, values, rewards):
    """The loss is right, and `values` learns from the actor's term too. Which path leads from that term to
    `values`?"""
    error = rewards - values
    critic = tf.reduce_sum(error**2)
    actor = -tf.reduce_sum(scores * error)
    return critic + actor


@two_learners.mistake("other_term")
def _(scores, values, rewards):
    """The cut is in the other term: `values` now learns from the actor's term and not from its own."""
    error = rewards - values
    critic = tf.reduce_sum(tf.stop_gradient(error) ** 2)
    actor = -tf.reduce_sum(scores * error)
    return critic + actor


@two_learners.mistake("both_terms")
def _(scores, values, rewards):
    """The cut closes both paths to `values`, and the critic learns nothing. `error` has two uses. Does the cut have to
    hold for both?"""
    error = tf.stop_gradient(rewards - values)
    critic = tf.reduce_sum(error**2)
    actor = -tf.reduce_sum(scores * error)
    return critic + actor


@two_learners.wrong("none")
def _(scores, values, rewards):
    error = rewards - values
    critic = tf.reduce_sum(error**2)
    actor = -tf.reduce_sum(scores * error)
    return critic + tf.stop_gradient(actor)


@two_learners.wrong("values")
def _(scores, values, rewards):
    error = rewards - values
    critic = tf.reduce_sum(error**2)
    actor = tf.reduce_sum(scores * tf.stop_gradient(error))
    return critic + actor


@tf.custom_gradient
def _hard(scores):
    """The one-hot choice with the softmax's gradient written by hand."""
    p = tf.exp(scores - tf.reduce_max(scores, axis=1, keepdims=True))
    p /= tf.reduce_sum(p, axis=1, keepdims=True)
    chosen = tf.cast(scores == tf.reduce_max(scores, axis=1, keepdims=True), scores.dtype)
    return chosen, lambda upstream: p * (upstream - tf.reduce_sum(p * upstream, axis=1, keepdims=True))


def _observe_choice(answer, scores, upstream):
    with tf.GradientTape() as tape:
        tape.watch(scores)
        y = answer(scores)
    return {"the value": y, "the gradient": _played_back(tape, y, scores, upstream)}


def _score_tables(random, dtype):
    def pair(shape):
        return tf.constant(random.normal(size=shape), dtype), tf.constant(random.normal(size=shape), dtype)

    example = tf.constant([[2.0, 1.0, 0.0], [0.0, 1.0, 3.0]], dtype)
    close = tf.constant(random.permutation(5) * 0.01 * np.finfo(dtype.as_numpy_dtype).eps, dtype)
    return [
        (example, tf.constant([[1.0, 0.0, 0.0], [0.0, 2.0, 0.0]], dtype)),
        pair((7, 5)),
        pair((4, 6)),
        (close[tf.newaxis], pair((1, 5))[1]),  # to a softmax these five are equal
    ]


hard_choice = Exercise(
    title="A hard choice with a soft gradient",
    minutes=10,
    hints=(
        "In section 4 the value is that of `round`, and the gradient that of the identity. Which part of the formula "
        "is the identity?",
        "Both $x$ in `x + stop(round(x) - x)` stand for the function whose gradient you want. Here that is the "
        "softmax of each row.",
        "With `soft = tf.nn.softmax(scores, axis=1)`: which of `hard` and `soft` stays outside the cut, and what is "
        "added inside it so that the other is left as the value?",
    ),
    checker=Function(
        reference=_hard, inputs=_score_tables, observe=_observe_choice, upstream=1, axes=("example", "class")
    ),
)


@hard_choice.starter("choose")
def _(scores):
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    return ...  # the value of hard, the gradient of the softmax


@hard_choice.right
def _(scores):
    """The straight-through pattern with another stand-in: the value is that of `hard`, but for rounding, and the
    gradient that of `soft`."""
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=1)
    return soft + tf.stop_gradient(hard - soft)


@hard_choice.mistake("identity")
def _(scores):
    """The value is right, and the gradient is the identity's: the upstream gradient comes back unchanged. Which
    function should it be that of?"""
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    return scores + tf.stop_gradient(hard - scores)


@hard_choice.mistake("not_hard")
def _(scores):
    """The gradient is right, and the value is the softmax. What has to be added, inside a cut, to make it the one-hot
    choice?"""
    return tf.nn.softmax(scores, axis=1)


@hard_choice.mistake("roles_exchanged")
def _(scores):
    """The value is the softmax, and no path is left to differentiate. Which of `hard` and `soft` is to be the value,
    and which the path?"""
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=1)
    return hard + tf.stop_gradient(soft - hard)


@hard_choice.mistake("cancelled")
def _(scores):
    """The value is right, and the gradient is zero. What stands outside the cut is to have the gradient of the
    softmax."""
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=1)
    return soft + tf.stop_gradient(hard) - soft


@hard_choice.mistake("batch_axis")
def _(scores):
    """The softmax runs over the examples. The choice is made within each row: which axis holds the classes?"""
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=0)
    return soft + tf.stop_gradient(hard - soft)


@hard_choice.mistake("all_over_batch")
def _(scores):
    """Both the choice and the softmax run over the examples. Which axis holds the classes?"""
    hard = tf.one_hot(tf.argmax(scores, axis=0), scores.shape[0], axis=0, dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=0)
    return soft + tf.stop_gradient(hard - soft)


@hard_choice.mistake("softmax_chooses")
def _(scores):
    """Right where the scores are far apart. In a row of nearly equal scores the softmax, rounded, made them all equal.
    Choose by the scores, as `hard` does."""
    soft = tf.nn.softmax(scores, axis=1)
    return soft + tf.stop_gradient(tf.one_hot(tf.argmax(soft, axis=1), scores.shape[1], dtype=scores.dtype) - soft)


@hard_choice.mistake("steep_softmax")
def _(scores):
    """Right where the scores are far apart. In a row of nearly equal scores the steep softmax, rounded, chose none of
    them. `hard` has the choice."""
    soft = tf.nn.softmax(scores, axis=1)
    return soft + tf.stop_gradient(tf.round(tf.nn.softmax(1e4 * scores, axis=1)) - soft)


@hard_choice.wrong("summed")
def _(scores):
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=1)
    return tf.reduce_sum(soft + tf.stop_gradient(hard - soft), axis=1)


@hard_choice.wrong("none")
def _(scores):
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1], dtype=scores.dtype)
    soft = tf.nn.softmax(scores, axis=1)
    return tf.stop_gradient(hard)


@hard_choice.wrong("one_dtype")
def _(scores):
    hard = tf.one_hot(tf.argmax(scores, axis=1), scores.shape[1])
    soft = tf.nn.softmax(scores, axis=1)
    return soft + tf.stop_gradient(hard - soft)


def _scaled(x, factor):
    held = tf.numpy_function(lambda value: value, [x], x.dtype)  # a constant by way of NumPy
    return held + factor * (x - held)


def _played_back(tape, y, x, upstream):
    """The gradient for an upstream gradient; None for a value of another shape, which is what the learner is told."""
    if not tf.is_tensor(y) or y.shape != upstream.shape:
        return None
    return tape.gradient(y, x, output_gradients=upstream)


def _observe_scaled(answer, x, factor, upstream):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = answer(x, factor)
    with tf.autodiff.ForwardAccumulator(x, upstream) as accumulator:
        forward = accumulator.jvp(answer(x, factor), unconnected_gradients="zero")
    compiled = tf.function(answer)(x, factor)
    return {
        "the value": y,
        "the gradient": _played_back(tape, y, x, upstream),
        "forward mode": forward,
        "compiled": compiled,
    }


def _scalings(random, dtype):
    def pair(size, factor):
        return tf.constant(random.normal(size=size), dtype), factor, tf.constant(random.normal(size=size), dtype)

    return [
        (tf.constant([1.0, -2.0, 0.0], dtype), -1.0, tf.ones(3, dtype)),
        pair(7, 0.25),
        pair((3, 5), 3.0),
        pair(5, -0.5),
        pair(4, 0.0),
    ]


turn_gradient = Exercise(
    title="Scale or reverse a gradient",
    minutes=8,
    beyond=True,
    hints=(
        "What you differentiate must have derivative `factor`. What is the plainest such expression?",
        "Section 4: an open term brings the gradient, and a cut term mends the value. The open term is `factor * x`.",
        "By how much does `factor * x` miss the value `x`? Add that difference inside `tf.stop_gradient`.",
    ),
    checker=Function(reference=_scaled, inputs=_scalings, observe=_observe_scaled, upstream=2),
)


@turn_gradient.starter("scale_gradient")
def _(x, factor):
    return ...  # the value of x; backwards, factor times the upstream gradient


@turn_gradient.right
def _(x, factor):
    r"""Write the value as a sum of what is differentiated and what is not: $x = c\,x + (1 - c)\,x$. Cut the second.
    With $c = -1$ this is a *gradient reversal layer* (Ganin and Lempitsky, 2015)."""
    return factor * x + tf.stop_gradient((1.0 - factor) * x)


@turn_gradient.mistake("custom_gradient")
def _(x, factor):
    """Right for a tape. Forward mode did not ask the custom gradient, and found the identity. A cut is part of the
    computation (section 3)."""

    @tf.custom_gradient
    def identity(x):
        return tf.identity(x), lambda upstream: tf.cast(factor, x.dtype) * upstream

    return identity(x)


@turn_gradient.mistake("value_scaled")
def _(x, factor):
    """The gradient is right, and the value is scaled with it. Which cut term would bring the value back to `x`?"""
    return factor * x


@turn_gradient.mistake("identity")
def _(x, factor):
    """The value is right, and the gradient passes unscaled. The term outside the cut decides the gradient."""
    return x + tf.stop_gradient(factor * x - factor * x)


@turn_gradient.mistake("roles_exchanged")
def _(x, factor):
    """The roles are exchanged: the value is scaled, and the gradient passes unscaled."""
    return x + tf.stop_gradient(factor * x - x)


@turn_gradient.mistake("rest_open")
def _(x, factor):
    """The value is right. The gradient is `1 - factor` times the upstream one: the wrong one of the two terms is
    cut."""
    return tf.stop_gradient(factor * x) + (1.0 - factor) * x


@turn_gradient.mistake("divided")
def _(x, factor):
    """Right, but for the factor 0: `x` divided by it is not finite, and 0 times that is NaN. Which cut term brings the
    value back to `x` without a division?"""
    return factor * (x + tf.stop_gradient(x / factor - x))


@turn_gradient.wrong("none")
def _(x, factor):
    return tf.stop_gradient(x)


@turn_gradient.wrong("raised:AttributeError")
def _(x, factor):
    held = tf.constant(x.numpy())
    return held + factor * (x - held)


@turn_gradient.wrong("not_finite")
def _(x, factor):
    return factor * x * tf.stop_gradient(x / x) + tf.stop_gradient((1.0 - factor) * x)


@turn_gradient.wrong("values")
def _(x, factor):
    return -x + tf.stop_gradient(2.0 * x)


def _who_learns():
    """Run the four ways: which of body and head gets a gradient, and which way lets go of the body's first layer."""
    body = [tf.Variable(tf.eye(5)) for _ in range(3)]
    head = tf.Variable(tf.ones((5, 1)))
    first_layer = []

    def features(x):
        for weight in body:
            x = tf.tanh(x @ weight)
            if weight is body[0]:
                first_layer.append(weakref.ref(x))
        return x

    def paused(tape, x):
        with tape.stop_recording():
            made = features(x)
        return made @ head

    ways = {
        "A": lambda tape, x: features(tf.stop_gradient(x)) @ head,
        "B": lambda tape, x: tf.stop_gradient(features(x)) @ head,
        "C": lambda tape, x: tf.stop_gradient(features(x) @ head),
        "D": paused,
    }
    names = {(True, True): "both", (True, False): "body", (False, True): "head", (False, False): "neither"}
    found = {}
    for letter, way in ways.items():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(way(tape, tf.ones((7, 5))))
        if first_layer[-1]() is None:
            found["frees"] = letter
        gradients = tape.gradient(loss, [body[0], head])
        found[letter] = names[tuple(gradient is not None for gradient in gradients)]
    return {key: found[key] for key in ("A", "B", "C", "D", "frees")}


freeze_body = Exercise(
    title="Four ways to freeze",
    minutes=4,
    hints=(
        "For each way, go back from the loss: which of the two do you meet before the cut?",
        "The body's variables are not made from `x`; they join it in each layer. Is that before the cut in A, or "
        "after it? For the memory, see section 6.",
        'In A, nothing that is trained lies behind the cut. In C, everything does. For "frees": which way keeps the '
        "tape from recording the layers?",
    ),
    checker=Value(
        _who_learns,
        mistakes=(
            Mistake(
                "variables_enter_later",
                "Look at A again. The cut is around `x`, which is data. The body's variables are used *after* it.",
                {"A": "head"},
                where=lambda answer: answer["A"] in ("head", "neither"),
            ),
            Mistake(
                "too_late",
                "Look at the memory again. In B the cut comes after the layers have run, and the tape has recorded "
                "them by then (section 6).",
                {"frees": "B"},
                where=lambda answer: answer["frees"] in ("B", "C"),
            ),
            Mistake(
                "variables_are_recorded",
                "Look at the memory again. In section 6 nothing in the branch was watched after the cut. In A the "
                "body's variables are, in every layer.",
                {"frees": "A"},
            ),
            Mistake(
                "wrong_side",
                "Look at B again, and at the prediction of section 1. What stands between the cut and the loss "
                "still learns.",
                {"B": "body"},
                where=lambda answer: answer["B"] in ("body", "neither"),
            ),
        ),
        wrong=(
            ("other", {"A": "both", "B": "head", "C": "head", "D": "head", "frees": "D"}),
            ("other", {"A": "both", "B": "head", "C": "neither", "D": "both", "frees": "D"}),
        ),
    ),
)


@freeze_body.starter()
def _():
    answer = {
        "A": ...,  # "both", "body", "head" or "neither"
        "B": ...,
        "C": ...,
        "D": ...,
        "frees": ...,  # a letter
    }

    return answer


@freeze_body.right
def _():
    """Variables enter where they are used. A cut around `x` comes before every layer of the body, so it freezes
    nothing, and the body is recorded as ever. The cut at the body's end freezes it, and comes too late to save
    memory."""
    answer = {"A": "both", "B": "head", "C": "neither", "D": "head", "frees": "D"}
    return answer
