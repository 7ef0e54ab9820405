"""Exercises and predictions of the notebook "What derivatives cost"."""

import itertools

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

_SECONDS = 30.0  # for an answer: the right number is counted in graphs, which are traced for it

product = Prediction(
    "what_derivatives_cost.product",
    options=("about 1", "1 to 3", "784", "268 800"),
    remarks=(
        ("about 1", "The gradient is a computation like any other, and differentiating it adds a backward pass to it."),
        ("784", "One backward pass serves all inputs, however many there are."),
        ("268 800", "That many products fill the whole Hessian. One product is one direction."),
    ),
)

doubled = Prediction(
    "what_derivatives_cost.doubled",
    remarks=(
        ([2.0, 2.0], "A Hessian grows along both of its axes."),
        ([4.0, 4.0], "The product is a vector, not a matrix: it has one entry for each weight."),
        ([8.0, 2.0], "The Hessian is a matrix: two axes double, not three."),
    ),
)

eager = Prediction(
    "what_derivatives_cost.eager",
    options=("less than 2", "2 to 5", "more than 5"),
    remarks=(
        ("less than 2", "That would be so if arithmetic filled the time. 30 weights give it little to do."),
        (
            "2 to 5",
            "It is more: every row of the Hessian starts its operations anew, for very little arithmetic.",
        ),
    ),
)

slices = Prediction(
    "what_derivatives_cost.slices",
    options=("about 3", "about 500", "about 50,000"),
    remarks=(
        (
            "about 3",
            "So the principle says. Its hypothesis is about each rule: what does the derivative of `x[i]` look like?",
        ),
        (
            "about 500",
            "One vector as long as x, for 200 picked numbers, would make that. How many such vectors are there?",
        ),
    ),
)

unequal = Prediction(
    "what_derivatives_cost.unequal",
    remarks=(
        ([10, 48], "That is what six equal blocks need. Which checkpoints are left when the block of 7 runs again?"),
        (
            [12, 48],
            "Five checkpoints and seven results are never alive together: the block of 7 is the last one to run again.",
        ),
        (
            [7, 48],
            "The block of 7 runs again from the data. What else is alive: what does its last layer write, for whom?",
        ),
    ),
)

checkpoints = Prediction(
    "what_derivatives_cost.checkpoints",
    remarks=(
        ([24, 24], "That is the plain tape: it keeps every result, and computes none again."),
        ([4, 48], "Each block keeps one result, however many layers it has. How many blocks are there?"),
        ([6, 24], "What was not kept is computed again."),
        ([6, 42], "The last layer of a block also runs again: the whole block does."),
        ([6, 30], "Each block runs again, with all four of its layers."),
    ),
)


def _networks(random, dtype):
    return [([784, 256, 256, 10], 128, 1), ([5, 8, 6], 7, 0), ([5, 8, 6, 9, 3], 7, 2), ([5, 8, 6, 9], 7, 2)]


def _counted(sizes, batch, first):
    """Count the multiplications in the graph of such a gradient."""
    weights = [tf.zeros(pair) for pair in itertools.pairwise(sizes)]

    @tf.function
    def gradient():
        x = tf.zeros([batch, sizes[0]])
        with tf.GradientTape() as tape:
            tape.watch(weights[first:])
            for weight in weights:
                x = tf.tanh(x @ weight)
            loss = tf.reduce_sum(x)
        return tape.gradient(loss, weights[first:])

    products = [one for one in gradient.get_concrete_function().graph.get_operations() if one.type == "MatMul"]
    # rows * inner * columns: an operand has rows * inner elements, the result rows * columns
    return sum(
        one.inputs[0].shape.num_elements() * one.outputs[0].shape.num_elements() // one.outputs[0].shape[0]
        for one in products
    )


frozen = Exercise(
    title="What freezing layers saves",
    minutes=8,
    seconds=_SECONDS,
    hints=(
        r"A layer has at most three products: $x W$, $x^\top \bar y$ and $\bar y W^\top$. Which of them are needed in "
        "a frozen layer? In the first trained one?",
        r"$\bar y W^\top$ carries the gradient to the layer before. Is there anyone before the layer number `first` "
        "who asks for it?",
        "Add up: all of `layers`, those from `first` on, and those from `first + 1` on.",
    ),
    checker=Function(reference=_counted, inputs=_networks, dtypes=(tf.float32,), rtol=0.0),
)


@frozen.starter("multiplications_of")
def _(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]  # one product of each layer
    return ...


@frozen.right
def _(sizes, batch, first):
    """Every layer is run forwards. Backwards, a trained layer needs one product for its weights, and one for what comes
    into it if a trained layer lies before it. At the first trained layer the backward pass ends, so the frozen layers
    cost nothing there."""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    forwards = sum(layers)
    for_weights = sum(layers[first:])
    for_activations = sum(layers[first + 1 :])
    return forwards + for_weights + for_activations


@frozen.mistake("into_the_frozen")
def _(sizes, batch, first):
    """One product too many: at the first trained layer, the gradient with respect to what comes in is asked for by
    nobody."""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + 2 * sum(layers[first:])


@frozen.mistake("no_forward")
def _(sizes, batch, first):
    """The frozen layers are missing altogether. Their outputs are still computed: they do go forwards."""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers[first:]) - layers[first]


@frozen.mistake("nothing_frozen")
def _(sizes, batch, first):
    """This is the whole network's gradient, as in section 1: nothing is frozen in it."""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers) - layers[0]


@frozen.mistake("weights_only")
def _(sizes, batch, first):
    """The products for the weights are there. But how does the gradient get from the loss to the earlier ones of the
    trained layers?"""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + sum(layers[first:])


@frozen.mistake("other_end")
def _(sizes, batch, first):
    """The product that nobody asks for is left out at the wrong end: the last layer does hand the gradient on. Which
    layer has no one to hand it to?"""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + sum(layers[first:]) + sum(layers[first:-1])


@frozen.mistake("all_three")
def _(sizes, batch, first):
    """Three products for every layer. Frozen layers have no gradient with respect to their weights; what else do they
    do without?"""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers)


@frozen.mistake("three_where_trained")
def _(sizes, batch, first):
    """Three products for every trained layer, and none for the frozen ones. The frozen ones go forwards all the same.
    And who asks for what comes into the first trained layer?"""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers[first:])


@frozen.mistake("saved_at_layer_0")
def _(sizes, batch, first):
    """In section 1 layer 0 was the first *trained* layer, and so it saved one product. Which layer is that here?"""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + 2 * sum(layers[first:]) - layers[0]


@frozen.mistake("backward_only")
def _(sizes, batch, first):
    """The backward products are right. The forward pass is missing."""
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers[first:]) + sum(layers[first + 1 :])


@frozen.wrong("type")
def _(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return layers


def _timings(random, dtype):
    """Costs that double their n at each step, under a fixed cost."""

    def law(fixed, factor, power, n):
        n = np.asarray(n, np.float64)
        return n, fixed + factor * n**power

    steps = 2.0 ** np.arange(6)
    return [
        law(1000.0, 0.5, 2.0, 16 * steps),
        law(500.0, 3.0, 1.0, 32 * steps[:4]),
        law(2.0, 0.01, 1.37, 8 * steps),
        law(0.0, 4.0, 3.0, steps[:3]),
    ]


def _power(n, cost):
    """Search for the power whose law, with a free fixed cost and factor, leaves the least error."""

    def error(power):
        design = np.stack([np.ones_like(n), (n / n[-1]) ** power], axis=1)
        return np.sum((design @ np.linalg.lstsq(design, cost, rcond=None)[0] - cost) ** 2)

    if n.size == 3:  # three points fit any power exactly where it is the right one: ask the ratio of their steps
        return np.log((cost[2] - cost[1]) / (cost[1] - cost[0])) / np.log(n[1] / n[0])
    low, high = 0.2, 5.0
    for _ in range(60):  # a golden-section search
        left, right = high - (high - low) / 1.618034, low + (high - low) / 1.618034
        low, high = (low, right) if error(left) < error(right) else (left, high)
    return (low + high) / 2


hidden_exponent = Exercise(
    title="An exponent under a fixed cost",
    minutes=10,
    beyond=True,
    hints=(
        "The fixed cost $a$ bends the line: where $n$ is small it is all that you see. Which operation on "
        "neighbouring costs makes $a$ vanish?",
        r"Write down $\text{cost}(2n) - \text{cost}(n)$. What power of $n$ is left, and what in it does not depend on "
        "$n$?",
        "`np.diff(cost)` against `n[:-1]`: its slope on logarithmic axes is the exponent, as in section 2.",
    ),
    checker=Function(reference=_power, inputs=_timings, dtypes=(tf.float64,)),
)


@hidden_exponent.starter("hidden_exponent")
def _(n, cost):
    return ...  # p, a number, where cost = a + c * n**p


@hidden_exponent.right
def _(n, cost):
    r"""The difference of neighbours no longer holds the fixed cost: $c\,(2n)^p - c\,n^p = c\,(2^p - 1)\,n^p$. It is a
    straight line of slope $p$ again, because $n$ doubles each time and $2^p - 1$ is the same at every step."""
    steps = np.diff(cost)  # the fixed cost is gone
    return np.polyfit(np.log(n[:-1]), np.log(steps), 1)[0]


@hidden_exponent.mistake("flattened")
def _(n, cost):
    """This is the slope of the line through the costs as they are. The fixed cost flattens it.
    It has to go first."""
    return np.polyfit(np.log(n), np.log(cost), 1)[0]


@hidden_exponent.mistake("last_two")
def _(n, cost):
    """This is the slope at the last two sizes. It comes closer, and the fixed cost is still in it."""
    return np.log(cost[-1] / cost[-2]) / np.log(n[-1] / n[-2])


@hidden_exponent.mistake("first_subtracted")
def _(n, cost):
    r"""The first cost was taken for the fixed cost. It holds $c\,n_0^p$ as well, so too much is subtracted."""
    return np.polyfit(np.log(n[1:]), np.log(cost[1:] - cost[0]), 1)[0]


@hidden_exponent.mistake("slope_of_steps_in_n")
def _(n, cost):
    """One too few: the steps were divided by the steps in $n$, which gives a derivative. Its exponent is $p - 1$."""
    return np.polyfit(np.log(n[:-1]), np.log(np.diff(cost) / np.diff(n)), 1)[0]


@hidden_exponent.mistake("growth")
def _(n, cost):
    """This is by which factor the steps between the costs grow when $n$ doubles. Which power of 2 is it?"""
    steps = np.diff(cost)
    return steps[1] / steps[0]


@hidden_exponent.mistake("natural_logarithm")
def _(n, cost):
    """This is the logarithm of the steps' growth. A slope on logarithmic axes divides it by the logarithm of what $n$
    grows by."""
    steps = np.diff(cost)
    return np.log(steps[1] / steps[0])


@hidden_exponent.mistake("first_two")
def _(n, cost):
    """This is the slope at the first two sizes. The fixed cost is still in both of them."""
    return np.log2(cost[1] / cost[0])


@hidden_exponent.wrong("values")
def _(n, cost):
    return round(2 * np.log2((cost[2] - cost[1]) / (cost[1] - cost[0]))) / 2


@hidden_exponent.wrong("shape")
def _(n, cost):
    return np.polyfit(np.log(n[:-1]), np.log(np.diff(cost)), 1)


@hidden_exponent.wrong("values")
def _(n, cost):
    return np.polyfit(n, cost, 1)[0]


_WEIGHTS, _BATCH, _PIXELS, _SCORES = 1_000_000, 256, 784, 10


_BYTES = {
    "the gradient of the loss": 4 * _WEIGHTS,
    "the gradient of each example's loss": 4 * _BATCH * _WEIGHTS,
    "the Jacobian of all scores with respect to the weights": 4 * _BATCH * _SCORES * _WEIGHTS,
    "batch_jacobian of the scores with respect to the pixels": 4 * _BATCH * _SCORES * _PIXELS,
    "the Jacobian of all scores with respect to all pixels": 4 * _BATCH * _SCORES * _BATCH * _PIXELS,
    "the Hessian over the weights": 4 * _WEIGHTS**2,
    "a Hessian-vector product": 4 * _WEIGHTS,
}

fits = Exercise(
    title="Bytes, before you allocate them",
    minutes=5,
    hints=(
        "A Jacobian's shape is the target's shape followed by the source's. Which of them have the batch in their "
        "shape?",
        "A scalar target adds no axis. The weights have no batch axis. `batch_jacobian` has the batch once, "
        "`jacobian` with respect to the pixels twice ([15](15_batch_jacobians.ipynb)).",
        "For example, all scores with respect to the weights: (256, 10) times 1 000 000, four bytes each.",
    ),
    checker=Value(
        expected=_BYTES,
        rtol=0.0,  # whole numbers
        mistakes=(
            Mistake(
                "elements",
                "These are the numbers of elements. How many bytes does a float32 take?",
                {name: size // 4 for name, size in _BYTES.items()},
                where=lambda answer: answer["the gradient of the loss"] == _WEIGHTS,
            ),
            Mistake(
                "float64",
                "With eight bytes for each element, this is float64.",
                {name: 2 * size for name, size in _BYTES.items()},
                where=lambda answer: answer["the gradient of the loss"] == 8 * _WEIGHTS,
            ),
            Mistake(
                "batch_in_the_gradient",
                "The loss is one number for the whole batch, so its gradient has the shape of the weights, however "
                "many examples there are.",
                {"the gradient of the loss": 4 * _BATCH * _WEIGHTS},
            ),
            Mistake(
                "one_example",
                "In the Jacobian of all scores with respect to the weights: every example has scores of its own.",
                {"the Jacobian of all scores with respect to the weights": 4 * _SCORES * _WEIGHTS},
            ),
            Mistake(
                "batch_twice",
                "In `batch_jacobian`: it pairs each example with itself alone. The batch is in its shape once.",
                {"batch_jacobian of the scores with respect to the pixels": 4 * _BATCH * _SCORES * _BATCH * _PIXELS},
            ),
            Mistake(
                "batch_once",
                "In the Jacobian with respect to all pixels: `jacobian` pairs every example's scores with every "
                "example's pixels. The batch is in its shape twice.",
                {"the Jacobian of all scores with respect to all pixels": 4 * _BATCH * _SCORES * _PIXELS},
            ),
            Mistake(
                "product_is_a_matrix",
                "In the Hessian–vector product: it is what the Hessian would give when it is multiplied by a vector. "
                "What shape does that have?",
                {"a Hessian-vector product": 4 * _WEIGHTS**2},
            ),
        ),
        wrong=(
            ("values", _BYTES | {"the Hessian over the weights": 4 * _WEIGHTS}),
            ("values", _BYTES | {"the Hessian over the weights": 4 * _WEIGHTS**2 + 1}),
        ),
    ),
)


@fits.starter()
def _():
    weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
    size = {  # in bytes, float32
        "the gradient of the loss": ...,
        "the gradient of each example's loss": ...,
        "the Jacobian of all scores with respect to the weights": ...,
        "batch_jacobian of the scores with respect to the pixels": ...,
        "the Jacobian of all scores with respect to all pixels": ...,
        "the Hessian over the weights": ...,
        "a Hessian-vector product": ...,
    }

    return size


@fits.right
def _():
    """Multiply the elements of the target by the elements of the source, then by 4. Only two of the seven are the size
    of the weights. The Jacobian with respect to all pixels is a batch times as large as what `batch_jacobian` keeps of
    it."""
    weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
    size = {
        "the gradient of the loss": 4 * weight_count,
        "the gradient of each example's loss": 4 * examples * weight_count,
        "the Jacobian of all scores with respect to the weights": 4 * examples * scores * weight_count,
        "batch_jacobian of the scores with respect to the pixels": 4 * examples * scores * pixels,
        "the Jacobian of all scores with respect to all pixels": 4 * examples * scores * examples * pixels,
        "the Hessian over the weights": 4 * weight_count**2,
        "a Hessian-vector product": 4 * weight_count,
    }
    return size


def _prices(random, dtype):
    """First call, later call and eager call. All are dyadic fractions, so that no rounding decides."""
    return [
        (0.5, 0.0625, 0.125),
        (5.0, 0.75, 1.0),
        (4.0, 0.25, 0.5),
        (3.0, 0.25, 1.25),
        (0.25, 0.125, 0.5),
        (2.0, 0.5, 0.5),
        (2.0, 0.75, 0.5),
        (64.0, 0.125, 0.25),
        (0.25, 0.75, 0.5),
        (0.125, 0.25, 0.5),
    ]


def _pays_from(first_call, later_call, eager_call):
    for calls in range(1, 10_000):
        if first_call + (calls - 1) * later_call < calls * eager_call:
            return calls
    return None


pays = Exercise(
    title="From which call on does compiling pay?",
    minutes=5,
    hints=(
        "Write down both totals after $n$ calls. How many of the graph's calls are later ones?",
        "Set the totals equal and solve for $n$. *Less* is asked for, so equality is not enough: which integer comes "
        "next?",
        "1 where the first call is cheaper already. Else, where `later_call < eager_call`, "
        "`int(np.floor((first_call - later_call) / (eager_call - later_call))) + 1`.",
    ),
    checker=Function(reference=_pays_from, inputs=_prices, dtypes=(tf.float64,)),
    seconds=5.0,
)


@pays.starter("pays_from")
def _(first_call, later_call, eager_call):
    return ...  # an integer, or None


@pays.right
def _(first_call, later_call, eager_call):
    r"""After $n$ calls the graph has taken $f + (n - 1)\,l$ and eager $n\,e$. The first is less once $n > (f - l)/(e -
    l)$: what tracing costs beyond a call, divided by what each call saves. Where the first call is not cheaper and a
    later one saves nothing, it never pays."""
    if first_call < eager_call:
        return 1
    if later_call >= eager_call:
        return None
    return int(np.floor((first_call - later_call) / (eager_call - later_call))) + 1


@pays.mistake("first_cheaper")
def _(first_call, later_call, eager_call):
    """Right, but for a first call that is cheaper than an eager one. After how many calls has the graph taken less time
    there?"""
    if later_call >= eager_call:
        return None
    return int(np.floor((first_call - later_call) / (eager_call - later_call))) + 1


@pays.mistake("equal_counts")
def _(first_call, later_call, eager_call):
    """Where both totals are equal, this says that it pays already. Less time is asked for."""
    if later_call >= eager_call:
        return None
    return int(np.ceil((first_call - later_call) / (eager_call - later_call)))


@pays.mistake("one_too_few")
def _(first_call, later_call, eager_call):
    """One call too few: after that many the graph has not taken less time. Compute both totals to see it."""
    if later_call >= eager_call:
        return None
    return int((first_call - later_call) // (eager_call - later_call))


@pays.mistake("first_counted_twice")
def _(first_call, later_call, eager_call):
    """The first call also does its work: after $n$ calls there were $n - 1$ later ones, not $n$."""
    if later_call >= eager_call:
        return None
    return int(first_call / (eager_call - later_call)) + 1


@pays.mistake("first_against_eager")
def _(first_call, later_call, eager_call):
    """This compares the first call with eager calls alone. The graph's later calls take time too."""
    if later_call >= eager_call:
        return None
    return int(first_call / eager_call) + 1


@pays.wrong("not_none")
def _(first_call, later_call, eager_call):
    if later_call == eager_call:  # and where each later call costs more?
        return None
    return max(1, int(np.floor((first_call - later_call) / (eager_call - later_call))) + 1)


@pays.wrong("none")
def _(first_call, later_call, eager_call):
    return next((n for n in range(1, 100) if first_call + (n - 1) * later_call < n * eager_call), None)


@pays.wrong("values")
def _(first_call, later_call, eager_call):
    return int(np.ceil(first_call / (eager_call - later_call))) if eager_call > later_call else None


@pays.wrong("raised:ZeroDivisionError")
def _(first_call, later_call, eager_call):
    return int((first_call - later_call) / (eager_call - later_call)) + 1


@pays.wrong("timeout")
def _(first_call, later_call, eager_call):
    calls = 1
    while first_call + (calls - 1) * later_call >= calls * eager_call:
        calls += 1
    return calls
