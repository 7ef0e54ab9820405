"""Exercises and predictions of notebook 07, Multiple tapes."""

import weakref

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

four_answers = Prediction(
    "07.four_answers",
    reason=(
        r"$\cos 0 = 1$ and $\sigma(0)(1 - \sigma(0)) = 0.25$. Both tapes saw the target made, yet each knows only the paths that begin at what *it* watches: "
        "the other input is a constant to it."
    ),
    remarks=(
        (
            [1.0, 0.25, 1.0, 0.25],
            "The target is one tensor, and each tape has a record of its own, with its own watched source.",
        ),
        ([1.0, 0.0, 0.0, 0.25], "A source that a tape does not watch gives `None`, not 0."),
        ([0.0, None, None, 0.25], r"The derivative of the sine is the cosine, and $\cos 0 = 1$."),
        ([1.0, None, None, 0.5], r"0.5 is the sigmoid's value at 0. Its derivative is $\sigma(1 - \sigma)$."),
    ),
)

paused = Prediction(
    "07.paused",
    reason="`tape_0` has seen $x^2$ alone and answers $2x$. `tape_1` was not paused: $2x + 3x^2$.",
    remarks=(
        ([6.0, 6.0], "`stop_recording` pauses the tape that it is called on. `tape_1` went on."),
        ([33.0, 33.0], "`tape_0` was paused while the cube was computed."),
        ([33.0, 6.0], "It is the other way round: the pause is `tape_0`'s."),
        ([None, 33.0], "`tape_0` recorded the square, and that path is left."),
    ),
)

how_many_none = Prediction(
    "07.how_many_none",
    reason="The default tape knows the four variables, the head's tape two of them, the third tape the inputs: seven gradients. The other eight are `None`.",
    remarks=(
        (7, "Seven is how many are *not* `None`."),
        (
            10,
            "The default tape watches each variable that the computation uses. Its answers for the four are there.",
        ),
        (9, "Count the head's tape again: it watches `w2` and `b2`."),
        (4, "A tape with automatic watching off knows what it was told to watch and nothing else."),
    ),
)

kept_activations = Prediction(
    "07.kept_activations",
    reason=(
        "What counts is how much of the computation lies *between* source and target. For the last weight these are the last layer's input and its output. For the inputs "
        "it is every layer, as for all weights."
    ),
    remarks=(
        ([12, 1, 1], "One source is not one tensor: the inputs are followed by every layer."),
        (
            [12, 1, 12],
            "The last layer needs two: its input, for the product's derivative, and its output, for that of `tanh`.",
        ),
        ([12, 2, 1], "The inputs come before the first layer, so every layer lies between them and the loss."),
        (
            [12, 12, 12],
            "What comes before the last weight depends on nothing that its tape watches, and is not recorded.",
        ),
    ),
)

way_back = Prediction(
    "07.way_back",
    reason=(
        "The tape goes back from the target through *everything that it recorded*, whichever source you ask for. It does not stop where the last path to your "
        "source ends."
    ),
    remarks=(
        ([1, 1], "One would be enough. The tape visits all that it recorded, also where your source does not lie."),
        ([12, 12], "The modest tape recorded nothing before the last layer, so it has nothing to go back through."),
    ),
)

dropped = Prediction(
    "07.dropped",
    reason=(
        "A tape's list holds *references*: a tensor that several tapes keep is in memory once. It is free when the *last* tape that needs it is gone; the modest tape "
        "needs two."
    ),
    remarks=(
        ([26, 14, 2, 0], "Each tape has its own list, but not its own copy of a tensor."),
        (
            [12, 0, 0, 0],
            "After `first` is gone, `second` still refers to the same tensors.",
        ),
        ([12, 12, 0, 0], "After both greedy tapes the modest one is left, and it needs two."),
    ),
)


def _game_gradients(game, x, y):
    """The two players' gradients in closed form, for the game of `_observe_game`."""
    game(x, y)
    return tf.cos(x) * tf.reduce_sum(y) + 2.0 * x, 1.0 - 2.0 * y * tf.reduce_sum(tf.sin(x))


def _observe_game(answer, x, y):
    calls = []

    def game(x, y):
        calls.append(1)
        both = tf.reduce_sum(tf.sin(x))
        return both * tf.reduce_sum(y) + tf.reduce_sum(x**2), tf.reduce_sum(y) - both * tf.reduce_sum(y**2)

    found = answer(game, x, y)
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise TypeError("return two gradients: one for x, one for y")
    return {"the gradient for x": found[0], "the gradient for y": found[1], "the number of calls of game": len(calls)}


def _summed_losses(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        losses = game(x, y)
    return tape.gradient(losses, [x, y])


def _by_one_tape(game, x, y, for_x=0, for_y=1):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        losses = game(x, y)
    return tape.gradient(losses[for_x], x), tape.gradient(losses[for_y], y)


def _players(random, dtype):
    def trial(first, second):
        return tuple(tf.constant(random.normal(size=size), dtype) for size in (first, second))

    return [(tf.constant([0.0, 1.0], dtype), tf.constant([1.0, 2.0, 3.0], dtype)), trial(5, 3), trial(4, 4)]


two_players = Exercise(
    "07.two_players",
    title="Two players, two losses",
    minutes=6,
    starter="""
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        losses = game(x, y)  # two scalars: of the one who moves x, of the one who moves y
    return ..., ...  # the gradient of the first for x, of the second for y


exercises.two_players.check(gradients_of_players)
""",
    solution_code="""
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape_x, tf.GradientTape() as tape_y:
        tape_x.watch(x)
        tape_y.watch(y)
        loss_x, loss_y = game(x, y)
    return tape_x.gradient(loss_x, x), tape_y.gradient(loss_y, y)
""",
    explanation=(
        "Each tape can be asked once, about one target. One call with both losses would differentiate their *sum*. Two tapes, or one that is persistent, keep them apart. A "
        "generator and a discriminator are trained in this way."
    ),
    hints=(
        "What does `tape.gradient` do with a list of targets? And how often may this tape be asked?",
        "Section 1: two tapes can record one run, and neither call uses up the other tape.",
        "Open `tape_x` and `tape_y` in one `with` statement. One watches `x` and is asked about the first loss, the other watches `y` and is asked about the second.",
    ),
    checker=Function(
        reference=_game_gradients,
        inputs=_players,
        observe=_observe_game,
        mistakes=(
            Mistake(
                "summed_losses",
                "These are the gradients of the two losses' *sum*: with a list of targets, a tape adds them up. Each player minds its own loss.",
                _summed_losses,
            ),
            Mistake(
                "two_runs",
                "Both gradients are right, and the game was played twice. Let one run be recorded for both.",
                lambda game, x, y: (_by_one_tape(game, x, y)[0], _by_one_tape(game, x, y)[1]),
            ),
            Mistake(
                "same_loss",
                "Both gradients are of the first loss. The one for `y` should be of the second.",
                lambda game, x, y: _by_one_tape(game, x, y, for_y=0),
            ),
            Mistake(
                "exchanged",
                "Each gradient is of the other player's loss. `game` returns first the loss of the one who moves `x`.",
                lambda game, x, y: _by_one_tape(game, x, y, for_x=1, for_y=0),
            ),
        ),
    ),
    wrong=(
        (
            """
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss_x, loss_y = game(x, y)
    return tape.gradient([loss_x, loss_y], [x, y])
""",
            "summed_losses",
        ),
        (
            """
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape_x:
        tape_x.watch(x)
        loss_x, _ = game(x, y)
    with tf.GradientTape() as tape_y:
        tape_y.watch(y)
        _, loss_y = game(x, y)
    return tape_x.gradient(loss_x, x), tape_y.gradient(loss_y, y)
""",
            "two_runs",
        ),
        (
            """
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss_x, loss_y = game(x, y)
    return tape.gradient(loss_x, [x, y])
""",
            "same_loss",
        ),
        (
            """
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss_x, loss_y = game(x, y)
    return tape.gradient(loss_x, x), tape.gradient(loss_y, y)
""",
            "raised:RuntimeError",
        ),
        (
            """
def gradients_of_players(game, x, y):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        losses = game(x, y)
    return tape.gradient(losses[1], x), tape.gradient(losses[0], y)
""",
            "exchanged",
        ),
        (
            """
def gradients_of_players(game, x, y):
    with tf.GradientTape() as tape_x, tf.GradientTape() as tape_y:
        tape_x.watch(x)
        loss_x, loss_y = game(x, y)
    return tape_x.gradient(loss_x, x), tape_y.gradient(loss_y, y)
""",
            "none",
        ),
    ),
)


def _observe_middle(answer, x, weight):
    def first(x):
        return tf.tanh(x @ weight)

    def second(h):
        return tf.reduce_sum(h**3 + 2.0 * h)

    return answer(first, second, _change, x)


def _change(gradient):
    if gradient is None:
        raise ValueError(
            "change was given None, not the gradient at h. Which tape has that one, and does it know that h is a source?"
        )
    return tf.clip_by_norm(gradient, 1.0, axes=[1])


def _by_a_custom_gradient(first, second, change, x):
    """The same by one tape and an identity whose backward function changes the gradient."""

    @tf.custom_gradient
    def changed(h):
        return tf.identity(h), change

    with tf.GradientTape() as tape:
        tape.watch(x)
        y = second(changed(first(x)))
    return tape.gradient(y, x)


def _not_changed(first, second, change, x):
    return _by_a_custom_gradient(first, second, tf.identity, x)


def _middles(random, dtype):
    def trial(batch, inputs, units):
        shapes = (batch, inputs), (inputs, units)
        return tuple(tf.constant(random.normal(size=shape), dtype) for shape in shapes)

    example = ([[1.0, -1.0]], [[0.5, 1.0, 0.0], [0.0, 1.0, 2.0]])
    return [tuple(tf.constant(part, dtype) for part in example), trial(7, 5, 6), trial(4, 4, 4)]


half_way = Exercise(
    "07.half_way",
    title="A hand on the gradient half-way",
    minutes=10,
    beyond=True,
    starter="""
def changed_half_way(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        y = second(h)  # something is missing before this line
    return ...  # the gradient of y for x, with the gradient at h changed on the way


exercises.half_way.check(changed_half_way)
""",
    solution_code="""
def changed_half_way(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        tape_2.watch(h)
        y = second(h)
    at_h = tape_2.gradient(y, h)
    return tape_1.gradient(h, x, output_gradients=change(at_h))
""",
    explanation=(
        "The chain rule works stretch by stretch: what one tape returns for `h` is what the other takes as its upstream gradient. Between the two it lies in your hands. "
        "Training on several machines, and saving memory by recording a stretch again, rest on this."
    ),
    hints=(
        "Neither tape covers both stretches. What can `tape_2` tell you, and what does `tape_1` still need to know?",
        "For `tape_2`, `h` is a source that nobody watches yet. For `tape_1`, `h` is the target. It is not a scalar: how does a tape learn the weight of each of its entries?",
        "`tape.gradient` has the argument `output_gradients`: the upstream gradient at the target. Ask `tape_2` first, change what it returns, and hand that to `tape_1`.",
    ),
    checker=Function(
        reference=_by_a_custom_gradient,
        inputs=_middles,
        observe=_observe_middle,
        axes=("example", "input"),
        mistakes=(
            Mistake(
                "not_changed",
                "This is the whole gradient, unchanged. What passes from one tape to the other is what `change` is for.",
                _not_changed,
            ),
            Mistake(
                "changed_at_x",
                "Here the gradient at `x` is changed, at the end of the way. It should be the one at `h`.",
                lambda first, second, change, x: change(_not_changed(first, second, change, x)),
            ),
            Mistake(
                "sum_of_h",
                "This is the gradient of the *sum* of `h`. `tape_1` has not been told how `y` weighs the entries of `h`.",
                lambda first, second, change, x: _not_changed(first, tf.reduce_sum, change, x),
            ),
            Mistake(
                "changed_h",
                "Here `change` is applied to `h` itself. It is for the gradient at `h`; the value goes on as it is.",
                lambda first, second, change, x: _not_changed(first, lambda h: second(change(h)), change, x),
            ),
        ),
    ),
    wrong=tuple(
        (
            f"""
def changed_half_way(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        {watch}
        y = second({middle})
    at_h = tape_2.gradient(y, h)
    return {result}
""",
            code,
        )
        for watch, middle, result, code in (
            ("tape_2.watch(h)", "h", "tape_1.gradient(h, x, output_gradients=at_h)", "not_changed"),
            ("tape_2.watch(h)", "h", "change(tape_1.gradient(h, x, output_gradients=at_h))", "changed_at_x"),
            ("tape_2.watch(h)", "h", "tape_1.gradient(h, x)", "sum_of_h"),
            ("tape_2.watch(h)", "h", "tape_1.gradient(y, x)", "none"),
            ("tape_2.watch(h)", "h", "change(at_h)", "shape"),
            ("tape_2.watch(h)", "h", "at_h * tape_1.gradient(h, x)", "raised:InvalidArgumentError"),
            ("pass", "h", "tape_1.gradient(h, x, output_gradients=change(at_h))", "raised:ValueError"),
            ("tape_2.watch(h)", "change(h)", "tape_1.gradient(h, x, output_gradients=at_h)", "changed_h"),
        )
    ),
)


def _record_head(body, head, x):
    features = body(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss


def _record_all(body, head, x):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((body(x) @ head) ** 2)
    return tape, loss


def _observe_head(answer, x, head, weights):
    head, weights = tf.Variable(head), [tf.Variable(weight) for weight in weights]
    inner = []

    def body(x):
        for weight in weights:
            x = tf.tanh(x @ weight)
            inner.append(weakref.ref(x))
        return x

    found = answer(body, head, x)
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[0], tf.GradientTape)):
        raise TypeError("return two things: the tape and the loss")
    tape, loss = found
    kept = sum(reference() is not None for reference in inner[:-1])  # the last one is the head's input
    return {
        "the loss": loss,
        "the gradient for head": tape.gradient(loss, head),
        "the number of the body's inner tensors that are kept": kept,
    }


def _heads(random, dtype):
    def trial(batch, units, outputs, layers):
        shapes = [(batch, units), (units, outputs), *[(units, units)] * layers]
        x, head, *weights = (tf.constant(random.normal(size=shape), dtype) for shape in shapes)
        return x, head, weights

    return [trial(2, 3, 1, 3), trial(7, 5, 6, 4)]


record_head = Exercise(
    "07.record_head",
    title="Pay for the head alone",
    minutes=5,
    starter="""
def record_head(body, head, x):
    with tf.GradientTape() as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return ..., loss  # first: is the tape good as it stands? Then return it


exercises.record_head.check(record_head)
""",
    solution_code="""
def record_head(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head)
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss
""",
    explanation=(
        "A default tape watches the body's variables as they are used, so it records the body. With its own watch set it begins at the first operation that meets `head`. "
        "To call `body` before the tape is opened does the same."
    ),
    hints=(
        "What does a default tape watch while `body(x)` runs?",
        "Section 2: `watch_accessed_variables=False` turns that off. What do you have to say then?",
        "Turn automatic watching off, and call `tape.watch(head)` before `head` is used. (Or compute `features` before you open the tape.)",
    ),
    checker=Function(
        reference=_record_head,
        inputs=_heads,
        observe=_observe_head,
        mistakes=(
            Mistake(
                "body_recorded",
                "The loss and the gradient are right, and the tape keeps the body's inner tensors too: it watches the body's variables. A cut does not change what has "
                "been recorded before it.",
                _record_all,
            ),
        ),
    ),
    wrong=(
        (
            """
def record_head(body, head, x):
    with tf.GradientTape() as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss
""",
            "body_recorded",
        ),
        (
            """
def record_head(body, head, x):
    with tf.GradientTape() as tape:
        features = tf.stop_gradient(body(x))
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss
""",
            "body_recorded",
        ),
        (
            """
def record_head(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss
""",
            "none",
        ),
        (
            """
def record_head(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        features = body(x)
        tape.watch(head)
        loss = tf.reduce_mean((features @ head) ** 2)
    return tape, loss
""",
            "factor",
        ),
        (
            """
def record_head(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head)
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape.gradient(loss, head), loss
""",
            "raised:TypeError",
        ),
    ),
)


def _bill():
    """Record twelve layers on two tapes and count."""
    weights = [tf.Variable(tf.eye(3)) for _ in range(12)]
    passed, alive = [], []

    @tf.custom_gradient
    def probe(h):
        def backward(upstream):
            passed.append(1)
            return upstream

        return tf.identity(h), backward

    def kept():
        return sum(reference() is not None for reference in alive)

    def run(tapes):
        with tapes[0], tapes[1]:
            for tape, watched in zip(tapes, ([3, 7], [11]), strict=True):
                tape.watch([weights[index] for index in watched])
            h = tf.constant(np.eye(3, dtype=np.float32))
            for weight in weights:
                h = tf.tanh(h @ weight)
                alive.append(weakref.ref(h))
                if counting:
                    h = probe(h)
            return tf.reduce_sum(h**2)

    def two_tapes():
        return [tf.GradientTape(watch_accessed_variables=False) for _ in range(2)]

    counting = True
    tapes = two_tapes()
    tapes[0].gradient(run(tapes), weights[7])
    layers, counting = len(passed), False
    alive.clear()
    tapes = two_tapes()
    run(tapes)
    both = kept()
    del tapes[0]
    return {"layers": layers, "kept": both, "left": kept()}


bill = Exercise(
    "07.bill",
    title="What two tapes cost",
    minutes=4,
    starter="""
answer = {
    "layers": ...,  # that A goes back through, asked for layer 8's weight
    "kept": ...,  # activations alive while both tapes are
    "left": ...,  # activations alive when A has been dropped
}

exercises.bill.check(answer)
""",
    solution_code="""
answer = {"layers": 9, "kept": 10, "left": 2}
""",
    explanation=(
        "A records from layer 4 to 12 and goes back through all nine, although layer 8's weight needs five. It keeps the outputs of these nine and the "
        "input of layer 4. What B keeps is among them; alone, B needs the last layer's input and output."
    ),
    hints=(
        "At which layer does A's record begin? Everything after that depends on something that A watches.",
        "For each layer of the record the tape keeps its output, and for a weight's own layer also its input. Section 3 counts two for the last weight.",
        "A's record begins at layer 4 and ends at layer 12. Which activation enters layer 4? Does B keep one that A does not?",
    ),
    checker=Value(
        _bill,
        mistakes=(
            Mistake(
                "stops_at_the_source",
                "Five layers, 8 to 12, are enough for that weight. Does the way back stop there? See section 3.",
                lambda answer: answer["layers"] == 5,
            ),
            Mistake(
                "all_layers",
                "The first layers depend on nothing that A watches. They are not recorded, and there is no way back through them.",
                lambda answer: answer["layers"] == 12 or answer["kept"] in (12, 13),
            ),
            Mistake(
                "input_forgotten",
                "The outputs of layers 4 to 12 are counted. What does the product's derivative in layer 4 need besides?",
                lambda answer: answer["layers"] == 9 and answer["kept"] == 9,
            ),
            Mistake(
                "counted_twice",
                "What both tapes keep is in memory once.",
                lambda answer: answer["layers"] == 9 and answer["kept"] in (11, 12),
            ),
            Mistake(
                "b_is_there",
                "B has not been dropped. What does it keep for the last weight? Section 3 counts.",
                lambda answer: answer["left"] in (0, 1),
            ),
        ),
    ),
    wrong=(
        ('answer = {"layers": 5, "kept": 10, "left": 2}', "stops_at_the_source"),
        ('answer = {"layers": 12, "kept": 12, "left": 2}', "all_layers"),
        ('answer = {"layers": 9, "kept": 9, "left": 2}', "input_forgotten"),
        ('answer = {"layers": 9, "kept": 11, "left": 2}', "counted_twice"),
        ('answer = {"layers": 9, "kept": 10, "left": 0}', "b_is_there"),
        ('answer = {"layers": 9, "kept": 10, "left": 9}', "values"),
    ),
)
