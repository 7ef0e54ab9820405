"""Exercises and predictions of the notebook "Multiple tapes"."""

import traceback
import weakref

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

other_source = Prediction(
    "multiple_tapes.other_source",
    remarks=(
        (
            [0.25, 1.0],
            "Those are the derivatives. But `tape_0` does not watch `x_1`, nor `tape_1` `x_0`.",
        ),
        ([0.0, 0.0], "Neither tape knows a path from the other's source: that is `None`, not 0."),
        ([1.0, 0.25], "Those are the answers about each tape's own source. The question is about the other one's."),
    ),
)

how_many_none = Prediction(
    "multiple_tapes.how_many_none",
    remarks=(
        (7, "Seven is how many are *not* `None`."),
        (
            10,
            "The default tape has watched the four variables. Its answers for them are there.",
        ),
        (9, "Count the head's tape again: it watches `w2` and `b2`."),
        (4, "The head's tape was told of two variables, not of four, and the inputs' tape of none."),
    ),
)

activations = Prediction(
    "multiple_tapes.activations",
    remarks=(
        ([12, 1, 1], "One source is not one tensor: all twelve layers follow the inputs."),
        (
            [12, 1, 12],
            "The last layer needs two: its input, for the product's derivative, and its output, for that of `tanh`.",
        ),
        ([12, 2, 1], "The inputs come before the first layer: all twelve lie between them and the loss."),
        (
            [12, 12, 12],
            "To the tape of the last weight the layers before it are constants, and it does not record them.",
        ),
    ),
)

layers_visited = Prediction(
    "multiple_tapes.layers_visited",
    remarks=(
        ([1, 1], "One would be enough. The tape of all weights also visits the layers before your source."),
        ([12, 12], "The modest tape recorded nothing before the last layer, so it has nothing to visit there."),
    ),
)

dropped = Prediction(
    "multiple_tapes.dropped",
    remarks=(
        ([26, 14, 2, 0], "The tapes have no copies of the tensors: they refer to the same ones."),
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
    return {"the first gradient": found[0], "the second gradient": found[1], "the number of calls of game": len(calls)}


def _players(random, dtype):
    def trial(first, second):
        return tuple(tf.constant(random.normal(size=size), dtype) for size in (first, second))

    return [(tf.constant([0.0, 1.0], dtype), tf.constant([1.0, 2.0, 3.0], dtype)), trial(5, 3), trial(4, 4)]


two_players = Exercise(
    title="Two players, two losses",
    minutes=6,
    hints=(
        "What does `tape.gradient` do with a list of targets? And how often may this tape be asked?",
        "Section 1: two tapes can record one run, and neither call uses up the other tape.",
        "Open `tape_x` and `tape_y` in one `with` statement. One watches `x` and is asked about the first loss, the "
        "other watches `y` and is asked about the second.",
    ),
    checker=Function(reference=_game_gradients, inputs=_players, observe=_observe_game),
)


@two_players.starter("gradients_of_players")
def _(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        losses = game(x, y)  # two scalars: of the one who moves x, of the one who moves y
    return ..., ...  # of the first loss with respect to x, of the second with respect to y


@two_players.right
def _(game, x, y):
    """Each of the two tapes is asked once, about one loss. One call with both losses would differentiate their
    *sum*."""
    with tf.GradientTape() as tape_x, tf.GradientTape() as tape_y:
        tape_x.watch(x)
        tape_y.watch(y)
        loss_x, loss_y = game(x, y)
    return tape_x.gradient(loss_x, x), tape_y.gradient(loss_y, y)


@two_players.mistake("summed_losses")
def _(game, x, y):
    """These are the gradients of the two losses' *sum*, as of a list of both. Each player has a loss of its own."""
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss_x, loss_y = game(x, y)
    return tape.gradient([loss_x, loss_y], [x, y])


@two_players.mistake("two_runs")
def _(game, x, y):
    """Both gradients are right, and the game was played twice. Let one run be recorded for both."""
    with tf.GradientTape() as tape_x:
        tape_x.watch(x)
        loss_x, _ = game(x, y)
    with tf.GradientTape() as tape_y:
        tape_y.watch(y)
        _, loss_y = game(x, y)
    return tape_x.gradient(loss_x, x), tape_y.gradient(loss_y, y)


@two_players.mistake("same_loss")
def _(game, x, y):
    """Both gradients are of the first loss. The one for `y` should be of the second."""
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss_x, loss_y = game(x, y)
    return tape.gradient(loss_x, [x, y])


@two_players.mistake("exchanged")
def _(game, x, y):
    """Each gradient is of the other player's loss. `game` returns first the loss of the one who moves `x`."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([x, y])
        losses = game(x, y)
    return tape.gradient(losses[1], x), tape.gradient(losses[0], y)


@two_players.wrong("raised:RuntimeError")
def _(game, x, y):
    with tf.GradientTape() as tape:
        tape.watch([x, y])
        loss_x, loss_y = game(x, y)
    return tape.gradient(loss_x, x), tape.gradient(loss_y, y)


@two_players.wrong("none")
def _(game, x, y):
    with tf.GradientTape() as tape_x, tf.GradientTape() as tape_y:
        tape_x.watch(x)
        loss_x, loss_y = game(x, y)
    return tape_x.gradient(loss_x, x), tape_y.gradient(loss_y, y)


def _record_head(body, head, x):
    features = body(x)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((features @ head) ** 2)
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
    title="Pay for the head alone",
    minutes=5,
    hints=(
        "What does a default tape watch while `body(x)` runs?",
        "Section 2: `watch_accessed_variables=False` turns that off. What do you have to say then?",
        "Turn automatic watching off, and call `tape.watch(head)` before `head` is used. (Or compute `features` "
        "before you open the tape.)",
    ),
    checker=Function(reference=_record_head, inputs=_heads, observe=_observe_head),
)


@record_head.starter("record_head")
def _(body, head, x):
    with tf.GradientTape() as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return ..., loss  # first: is the tape good as it stands? Then return it


@record_head.right
def _(body, head, x):
    """The default tape watches the body's variables as they are used, and records the body. With `head` as its one
    source, the record begins at the product with it. You may also call `body` before the tape is opened."""
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head)
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss


@record_head.mistake("body_recorded")
def _(body, head, x):
    """The loss and the gradient are right, and the tape keeps the body's inner tensors too. What does it watch while
    the body runs? A cut behind the body does not change that."""
    with tf.GradientTape() as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss


@record_head.wrong("body_recorded")
def _(body, head, x):
    with tf.GradientTape() as tape:
        features = tf.stop_gradient(body(x))
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss


@record_head.wrong("none")
def _(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape, loss


@record_head.wrong("factor")
def _(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        features = body(x)
        tape.watch(head)
        loss = tf.reduce_mean((features @ head) ** 2)
    return tape, loss


@record_head.wrong("raised:TypeError")
def _(body, head, x):
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(head)
        features = body(x)
        loss = tf.reduce_sum((features @ head) ** 2)
    return tape.gradient(loss, head), loss


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
    title="What two tapes cost",
    minutes=4,
    hints=(
        "At which layer does A's record begin? Everything after that depends on something that A watches.",
        "For each layer of the record the tape keeps its output, and for a weight's own layer also its input. Section "
        "3 counts two for the last weight.",
        "A's record begins at layer 4 and ends at layer 12. Which activation enters layer 4? Does B keep one that A "
        "does not?",
    ),
    checker=Value(
        _bill,
        mistakes=(
            Mistake(
                "stops_at_the_source",
                "Five layers, 8 to 12, are enough for that weight. Does the backward pass stop there? See section 3.",
                {"layers": 5},
            ),
            Mistake(
                "all_layers",
                "The first layers depend on nothing that A watches. They are not recorded, and the backward pass does "
                "not visit them.",
                {"layers": 12, "kept": 12},
                where=lambda answer: answer["layers"] == 12 or answer["kept"] in (12, 13),
            ),
            Mistake(
                "input_forgotten",
                "The outputs of layers 4 to 12 are counted. What does the product's derivative in layer 4 need "
                "besides?",
                {"layers": 9, "kept": 9},
            ),
            Mistake(
                "counted_twice",
                "What both tapes keep is in memory once.",
                {"kept": 11},
                where=lambda answer: answer["layers"] == 9 and answer["kept"] in (11, 12),
            ),
            Mistake(
                "b_is_there",
                "B has not been dropped. What does it keep for the last weight? Section 3 counts.",
                {"left": 0},
                where=lambda answer: answer["left"] in (0, 1),
            ),
        ),
        wrong=(("values", {"layers": 9, "kept": 10, "left": 9}),),
    ),
)


@bill.starter()
def _():
    answer = {
        "layers": ...,  # that A goes back through, asked for layer 8's weight
        "kept": ...,  # activations alive while both tapes are
        "left": ...,  # activations alive when A has been dropped
    }

    return answer


@bill.right
def _():
    """A records from layer 4 to 12 and goes back through all nine, although layer 8's weight needs five. It keeps the
    outputs of these nine and the input of layer 4. What B keeps is among them; alone, B needs the last layer's input
    and output."""
    answer = {"layers": 9, "kept": 10, "left": 2}
    return answer


def _observe_middle(answer, x, weight):
    def first(x):
        return tf.tanh(x @ weight)

    def second(h):
        return tf.reduce_sum(h**3 + 2.0 * h)

    inside = []  # whether each call of change came from within a tape's backward pass

    def change(gradient):
        frames = traceback.walk_stack(None)
        inside.append(any(frame.f_code is tf.GradientTape.gradient.__code__ for frame, _ in frames))
        return _change(gradient)

    return {"the gradient": answer(first, second, change, x), "change runs inside a backward pass": any(inside)}


def _change(gradient):
    if gradient is None:
        raise ValueError(
            "change was given None, not the gradient at h. Which tape has that one, and does it know that h is a "
            "source?"
        )
    return tf.clip_by_norm(gradient, 1.0, axes=[1])


def _by_a_jacobian(first, second, change, x):
    """The same with each example's whole Jacobian of the first stretch."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        h = first(x)
    with tf.GradientTape() as second_tape:
        second_tape.watch(h)
        y = second(h)
    return tf.einsum("bu,bui->bi", change(second_tape.gradient(y, h)), tape.batch_jacobian(h, x))


def _middles(random, dtype):
    def trial(batch, inputs, units):
        shapes = (batch, inputs), (inputs, units)
        return tuple(tf.constant(random.normal(size=shape), dtype) for shape in shapes)

    example = ([[1.0, -1.0]], [[0.5, 1.0, 0.0], [0.0, 1.0, 2.0]])
    return [tuple(tf.constant(part, dtype) for part in example), trial(7, 5, 6), trial(4, 4, 4)]


def _recorded(first, second, x):
    """The first tape, with the end of each stretch and the gradient at h, for wrong answers."""
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        tape_2.watch(h)
        y = second(h)
    at_h = tape_2.gradient(y, h)
    return tape_1, h, y, at_h


half_way = Exercise(
    title="Change the gradient half-way",
    minutes=10,
    beyond=True,
    hints=(
        "Neither tape covers both stretches. What can `tape_2` tell you, and what does `tape_1` still need to know?",
        "For `tape_2`, `h` is a source that nobody watches yet. For `tape_1`, `h` is the target. It is not a scalar: "
        "how does a tape learn the weight of each of its entries?",
        "`tape.gradient` has the argument `output_gradients`: the upstream gradient at the target. Ask `tape_2` "
        "first, change what it returns, and hand that to `tape_1`.",
    ),
    checker=Function(reference=_by_a_jacobian, inputs=_middles, observe=_observe_middle, axes=("example", "input")),
)


@half_way.starter("changed_half_way")
def _(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        y = second(h)  # something is missing before this line
    return ...  # dy/dx, with the gradient at h changed on the way


@half_way.right
def _(first, second, change, x):
    """What `tape_2` returns for `h`, changed, is the upstream gradient that `tape_1` begins with."""
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        tape_2.watch(h)
        y = second(h)
    at_h = tape_2.gradient(y, h)
    return tape_1.gradient(h, x, output_gradients=change(at_h))


@half_way.mistake("not_changed")
def _(first, second, change, x):
    """This is the whole gradient, unchanged. What passes from one tape to the other is what `change` is for."""
    tape_1, h, y, at_h = _recorded(first, second, x)
    return tape_1.gradient(h, x, output_gradients=at_h)


@half_way.mistake("changed_at_x")
def _(first, second, change, x):
    """Here the gradient at `x` is changed, after both stretches. It should be the one at `h`."""
    tape_1, h, y, at_h = _recorded(first, second, x)
    return change(tape_1.gradient(h, x, output_gradients=at_h))


@half_way.mistake("sum_of_h")
def _(first, second, change, x):
    """This is the gradient of the *sum* of `h`. `tape_1` has not been told how `y` weighs the entries of `h`."""
    tape_1, h, y, at_h = _recorded(first, second, x)
    return tape_1.gradient(h, x)


@half_way.mistake("changed_h")
def _(first, second, change, x):
    """Here `change` is applied to `h` itself. It is for the gradient at `h`; the value goes on as it is."""
    tape_1, h, y, at_h = _recorded(first, lambda h: second(change(h)), x)
    return tape_1.gradient(h, x, output_gradients=at_h)


@half_way.mistake("inside_the_backward_pass")
def _(first, second, change, x):
    """The gradient is right, by a custom gradient: `change` runs inside the backward pass of one tape. Take the
    gradient from the second tape, change it, and hand it to the first."""
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = second(tf.custom_gradient(lambda h: (tf.identity(h), change))(first(x)))
    return tape.gradient(y, x)


@half_way.wrong("none")
def _(first, second, change, x):
    tape_1, h, y, at_h = _recorded(first, second, x)
    return tape_1.gradient(y, x)


@half_way.wrong("shape")
def _(first, second, change, x):
    tape_1, h, y, at_h = _recorded(first, second, x)
    return change(at_h)


@half_way.wrong("raised:InvalidArgumentError")
def _(first, second, change, x):
    tape_1, h, y, at_h = _recorded(first, second, x)
    return at_h * tape_1.gradient(h, x)


@half_way.wrong("raised:ValueError")
def _(first, second, change, x):
    with tf.GradientTape() as tape_1:
        tape_1.watch(x)
        h = first(x)
    with tf.GradientTape() as tape_2:
        pass
        y = second(h)
    at_h = tape_2.gradient(y, h)
    return tape_1.gradient(h, x, output_gradients=change(at_h))
