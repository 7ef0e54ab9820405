"""Exercises and predictions of notebook 13, What derivatives cost."""

import itertools

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value

import numpy as np
import tensorflow as tf

_SECONDS = 30.0  # for an answer: the right number is counted in graphs, which are traced for it

ratio = Prediction(
    "13.ratio",
    reason="One product of each layer becomes three: one forwards, two backwards. The first layer saves one, so the ratio stays below 3.",
    options=("1 to 2", "2 to 3", "784", "268 800"),
    remarks=(
        ("784", "One backward pass serves all inputs. The number of inputs is the price of *forward* mode."),
        (
            "268 800",
            "One backward pass serves all weights. That number would be forward mode's, one pass for each weight.",
        ),
        ("1 to 2", "Each layer goes backwards with two products: one for its weights, one for what comes before it."),
    ),
)

modes = Prediction(
    "13.modes",
    reason="A forward pass serves one input, a backward pass one output. The tall map has 8 inputs, the wide one 8 outputs.",
    remarks=(
        (["reverse", 2048, "forward", 2048], "Those are the dear ones. Which side does each mode start at?"),
        (
            ["reverse", 8, "forward", 8],
            "The numbers are right, and the modes are exchanged: forward mode starts at the inputs.",
        ),
        (
            ["forward", 2048, "reverse", 2048],
            "The modes are right. Their passes start at the smaller side, which has 8.",
        ),
    ),
)

doubled = Prediction(
    "13.doubled",
    reason="The Hessian has $n^2$ entries and the product $n$. Doubling $n$ multiplies them by $2^2$ and by 2.",
    remarks=(
        ([2.0, 2.0], "A Hessian grows along both of its axes."),
        ([4.0, 4.0], "The product is no matrix: it has one entry for each weight."),
        ([8.0, 2.0], "The Hessian is a matrix: two axes double, not three."),
    ),
)

eager = Prediction(
    "13.eager",
    reason="The matrix is tiny, so there is next to no arithmetic. What is left is Python starting operations one by one, and a graph does without it.",
    options=("less than 2", "2 to 5", "more than 5"),
    remarks=(
        ("less than 2", "That would be so if arithmetic filled the time. 30 weights give it little to do."),
        (
            "2 to 5",
            "It is more: every row of the Hessian starts its operations anew, and each start costs many times its arithmetic.",
        ),
    ),
)

tracing = Prediction(
    "13.tracing",
    reason="Tracing runs the Python code and builds the graph, which takes far longer than a graph of this size takes to run.",
    options=("about 2", "2 to 10", "more than 10"),
    remarks=(
        ("about 2", "Tracing is not one more run: it builds each operation's node, of the gradients as well."),
        (
            "2 to 10",
            "It is more. A graph of this size runs in less than a millisecond or two, and is not built in ten of these.",
        ),
    ),
)

gib = Prediction(
    "13.gib",
    reason="$4 n^2$ bytes, with $2^{30}$ bytes in a GiB: a matrix with a row and a column for each weight.",
    remarks=(
        (0.001, "That is the size of the gradient. The Hessian has a row of that size for each weight."),
        (538.4, "That would be float64. A float32 number takes 4 bytes."),
        (67.3, "That counts the entries. Each takes 4 bytes."),
        (289.0, "That is in GB of $10^9$ bytes; a GiB has $2^{30}$."),
    ),
)

dies = Prediction(
    "13.dies",
    reason="The size of the result is known from the shapes, so the library can refuse before it allocates anything.",
    options=("the process dies", "memory runs out", "an error before anything is allocated"),
    remarks=(
        ("the process dies", "That is what happens where nobody looks at the shapes first."),
        ("memory runs out", "TensorFlow says so only when it has tried. The shapes tell it before."),
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


def _layers(sizes, batch):
    return [batch * rows * columns for rows, columns in itertools.pairwise(sizes)]


frozen = Exercise(
    "13.frozen",
    title="What freezing layers saves",
    minutes=8,
    seconds=_SECONDS,
    starter="""
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]  # one product of each layer
    return ...


exercises.frozen.check(multiplications_of)
""",
    solution_code="""
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    forwards = sum(layers)
    for_weights = sum(layers[first:])
    for_activations = sum(layers[first + 1 :])
    return forwards + for_weights + for_activations
""",
    explanation=(
        "Every layer is run forwards. Backwards, a trained layer needs one product for its weights, and one for what comes into it if a "
        "trained layer lies before it. At the first trained layer the way back ends, so the frozen layers cost nothing there."
    ),
    hints=(
        "A layer has at most three products: $x W$, $x^\\top \\bar y$ and $\\bar y W^\\top$. Which of them are needed in a frozen layer? In the first trained one?",
        "$\\bar y W^\\top$ carries the gradient to the layer before. Is there anyone before the layer number `first` who asks for it?",
        "Add up: all of `layers`, those from `first` on, and those from `first + 1` on.",
    ),
    checker=Function(
        reference=_counted,
        inputs=_networks,
        dtypes=(tf.float32,),
        mistakes=(
            Mistake(
                "into_the_frozen",
                "One product too many: at the first trained layer, the gradient with respect to what comes in is asked for by nobody.",
                lambda sizes, batch, first: sum(_layers(sizes, batch)) + 2 * sum(_layers(sizes, batch)[first:]),
            ),
            Mistake(
                "no_forward",
                "The frozen layers are missing altogether. Their outputs are still computed: they do go forwards.",
                lambda sizes, batch, first: 3 * sum(_layers(sizes, batch)[first:]) - _layers(sizes, batch)[first],
            ),
            Mistake(
                "nothing_frozen",
                "This is the whole network's gradient, as in section 1: nothing is frozen in it.",
                lambda sizes, batch, first: 3 * sum(_layers(sizes, batch)) - _layers(sizes, batch)[0],
            ),
            Mistake(
                "weights_only",
                "The products for the weights are there. But how does the gradient get from the loss to the earlier ones of the trained layers?",
                lambda sizes, batch, first: sum(_layers(sizes, batch)) + sum(_layers(sizes, batch)[first:]),
            ),
            Mistake(
                "other_end",
                "The product that nobody asks for is left out at the wrong end: the last layer does hand the gradient on. Which layer has no one to hand it to?",
                lambda sizes, batch, first: (
                    sum(_layers(sizes, batch))
                    + sum(_layers(sizes, batch)[first:])
                    + sum(_layers(sizes, batch)[first:-1])
                ),
            ),
            Mistake(
                "all_three",
                "Three products for every layer. Frozen layers have no gradient with respect to their weights; what else do they do without?",
                lambda sizes, batch, first: 3 * sum(_layers(sizes, batch)),
            ),
            Mistake(
                "three_where_trained",
                "Three products for every trained layer, and none for the frozen ones. The frozen ones go forwards all the same. And who asks for what comes into the first trained layer?",
                lambda sizes, batch, first: 3 * sum(_layers(sizes, batch)[first:]),
            ),
            Mistake(
                "saved_at_layer_0",
                "In section 1 layer 0 was the first *trained* layer, and so it saved one product. Which layer is that here?",
                lambda sizes, batch, first: (
                    sum(_layers(sizes, batch)) + 2 * sum(_layers(sizes, batch)[first:]) - _layers(sizes, batch)[0]
                ),
            ),
            Mistake(
                "backward_only",
                "The backward products are right. The forward pass is missing.",
                lambda sizes, batch, first: (
                    sum(_layers(sizes, batch)[first:]) + sum(_layers(sizes, batch)[first + 1 :])
                ),
            ),
        ),
    ),
    wrong=(
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + 2 * sum(layers[first:])
""",
            "into_the_frozen",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + sum(layers[first:]) + sum(layers[first:-1])
""",
            "other_end",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers[first:]) - layers[first]
""",
            "no_forward",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers) - layers[0]
""",
            "nothing_frozen",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + sum(layers[first:])
""",
            "weights_only",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers[first:]) + sum(layers[first + 1 :])
""",
            "backward_only",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers)
""",
            "all_three",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return 3 * sum(layers[first:])
""",
            "three_where_trained",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return sum(layers) + 2 * sum(layers[first:]) - layers[0]
""",
            "saved_at_layer_0",
        ),
        (
            """
def multiplications_of(sizes, batch, first):
    layers = [batch * sizes[i] * sizes[i + 1] for i in range(len(sizes) - 1)]
    return layers
""",
            "type",
        ),
    ),
)


def _timings(random, dtype):
    """Costs that double their n at each step, under a fixed cost."""

    def law(fixed, factor, power, n):
        n = np.asarray(n, np.float64)
        return n, fixed + factor * n**power

    steps = 2.0 ** np.arange(6)
    return [
        law(1000.0, 0.5, 2.0, 16 * steps),
        law(500.0, 3.0, 1.0, 32 * steps[:4]),
        law(2.0, 0.01, 1.5, 8 * steps),
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


def _slope(n, cost):
    return np.polyfit(np.log(n), np.log(cost), 1)[0]


hidden_exponent = Exercise(
    "13.hidden_exponent",
    title="An exponent under a fixed cost",
    minutes=10,
    beyond=True,
    starter="""
def hidden_exponent(n, cost):
    return ...  # p, a number, where cost = a + c * n**p


exercises.hidden_exponent.check(hidden_exponent)
""",
    solution_code="""
def hidden_exponent(n, cost):
    steps = np.diff(cost)  # the fixed cost is gone
    return np.polyfit(np.log(n[:-1]), np.log(steps), 1)[0]
""",
    explanation=(
        "The difference of neighbours no longer holds the fixed cost: $c\\,(2n)^p - c\\,n^p = c\\,(2^p - 1)\\,n^p$. It is a straight line of slope $p$ again, "
        "because $n$ doubles each time and $2^p - 1$ is the same at every step."
    ),
    hints=(
        "The fixed cost $a$ bends the line: where $n$ is small it is all that you see. Which operation on neighbouring costs makes $a$ vanish?",
        "Write down $\\text{cost}(2n) - \\text{cost}(n)$. What power of $n$ is left, and what in it does not depend on $n$?",
        "`np.diff(cost)` against `n[:-1]`: its slope on logarithmic axes is the exponent, as in section 3.",
    ),
    checker=Function(
        reference=_power,
        inputs=_timings,
        dtypes=(tf.float64,),
        mistakes=(
            Mistake(
                "flattened",
                "This is the slope of the line through the costs as they are. The fixed cost flattens it, which is what section 3 says of its own "
                "product. It has to go first.",
                _slope,
            ),
            Mistake(
                "last_two",
                "This is the slope at the last two sizes. It comes closer, and the fixed cost is still in it.",
                lambda n, cost: np.log(cost[-1] / cost[-2]) / np.log(n[-1] / n[-2]),
            ),
            Mistake(
                "first_subtracted",
                "The first cost was taken for the fixed cost. It holds $c\\,n_0^p$ as well, so too much is subtracted.",
                lambda n, cost: _slope(n[1:], cost[1:] - cost[0]),
            ),
            Mistake(
                "slope_of_steps_in_n",
                "One too few: the steps were divided by the steps in $n$, which gives a derivative. Its exponent is $p - 1$.",
                lambda n, cost: _power(n, cost) - 1.0,
            ),
            Mistake(
                "growth",
                "This is by which factor the steps between the costs grow when $n$ doubles. Which power of 2 is it?",
                lambda n, cost: (cost[2] - cost[1]) / (cost[1] - cost[0]),
            ),
            Mistake(
                "natural_logarithm",
                "This is the logarithm of the steps' growth. A slope on logarithmic axes divides it by the logarithm of what $n$ grows by.",
                lambda n, cost: np.log((cost[2] - cost[1]) / (cost[1] - cost[0])),
            ),
            Mistake(
                "first_two",
                "This is the slope at the first two sizes. The fixed cost is still in both of them.",
                lambda n, cost: np.log2(cost[1] / cost[0]),
            ),
        ),
    ),
    wrong=(
        (
            """
def hidden_exponent(n, cost):
    return np.polyfit(np.log(n), np.log(cost), 1)[0]
""",
            "flattened",
        ),
        (
            """
def hidden_exponent(n, cost):
    return np.log(cost[-1] / cost[-2]) / np.log(n[-1] / n[-2])
""",
            "last_two",
        ),
        (
            """
def hidden_exponent(n, cost):
    return np.polyfit(np.log(n[1:]), np.log(cost[1:] - cost[0]), 1)[0]
""",
            "first_subtracted",
        ),
        (
            """
def hidden_exponent(n, cost):
    return np.polyfit(np.log(n[:-1]), np.log(np.diff(cost) / np.diff(n)), 1)[0]
""",
            "slope_of_steps_in_n",
        ),
        (
            """
def hidden_exponent(n, cost):
    steps = np.diff(cost)
    return steps[1] / steps[0]
""",
            "growth",
        ),
        (
            """
def hidden_exponent(n, cost):
    steps = np.diff(cost)
    return np.log(steps[1] / steps[0])
""",
            "natural_logarithm",
        ),
        (
            """
def hidden_exponent(n, cost):
    return np.log2(cost[1] / cost[0])
""",
            "first_two",
        ),
        (
            """
def hidden_exponent(n, cost):
    return np.polyfit(np.log(n[:-1]), np.log(np.diff(cost)), 1)
""",
            "shape",
        ),
        (
            """
def hidden_exponent(n, cost):
    return np.polyfit(n, cost, 1)[0]
""",
            "values",
        ),
    ),
)


def _prices(random, dtype):
    """First call, later call and eager call. All are dyadic fractions, so that no rounding decides."""
    return [
        (0.5, 0.0625, 0.125),
        (5.0, 0.75, 1.0),
        (4.0, 0.25, 0.5),
        (3.0, 0.25, 1.25),
        (0.25, 0.125, 0.5),
        (2.0, 0.5, 0.5),
    ]


def _pays_from(first_call, later_call, eager_call):
    for calls in range(1, 10_000):
        if first_call + (calls - 1) * later_call < calls * eager_call:
            return calls
    return None


def _without(mistaken):
    """A mistaken count, with None where compiling never pays."""
    return lambda first, later, eager: mistaken(first, later, eager) if later < eager else None


pays = Exercise(
    "13.pays",
    title="From which call on does compiling pay?",
    minutes=5,
    starter="""
def pays_from(first_call, later_call, eager_call):
    return ...  # an integer, or None


exercises.pays.check(pays_from)
""",
    solution_code="""
def pays_from(first_call, later_call, eager_call):
    if later_call >= eager_call:
        return 1 if first_call < eager_call else None
    return max(1, int(np.floor((first_call - later_call) / (eager_call - later_call))) + 1)
""",
    explanation=(
        "After $n$ calls the graph has taken $f + (n - 1)\\,l$ and eager $n\\,e$. The first is less once $n > (f - l)/(e - l)$: what tracing costs beyond a call, divided by "
        "what each call saves. Where a call saves nothing, it never pays."
    ),
    hints=(
        "Write down both totals after $n$ calls. How many of the graph's calls are later ones?",
        "Set the totals equal and solve for $n$. *Less* is asked for, so equality is not enough: which integer comes next?",
        "`int(np.floor((first_call - later_call) / (eager_call - later_call))) + 1`, where `later_call < eager_call`. Otherwise there is nothing to be saved.",
    ),
    checker=Function(
        reference=_pays_from,
        inputs=_prices,
        dtypes=(tf.float64,),
        mistakes=(
            Mistake(
                "equal_counts",
                "Where both totals are equal, this says that it pays already. Less time is asked for.",
                _without(lambda first, later, eager: int(np.ceil((first - later) / (eager - later)))),
            ),
            Mistake(
                "one_too_few",
                "One call too few: after that many the graph has not taken less time. Compute both totals to see it.",
                _without(lambda first, later, eager: int(np.floor((first - later) / (eager - later)))),
            ),
            Mistake(
                "first_counted_twice",
                "The first call also does its work: after $n$ calls there were $n - 1$ later ones, not $n$.",
                _without(lambda first, later, eager: int(np.floor(first / (eager - later))) + 1),
            ),
            Mistake(
                "first_against_eager",
                "This compares the first call with eager calls alone. The graph's later calls take time too.",
                _without(lambda first, later, eager: int(np.floor(first / eager)) + 1),
            ),
        ),
    ),
    wrong=(
        (
            """
def pays_from(first_call, later_call, eager_call):
    if later_call >= eager_call:
        return None
    return int((first_call - later_call) // (eager_call - later_call))
""",
            "one_too_few",
        ),
        (
            """
def pays_from(first_call, later_call, eager_call):
    if later_call >= eager_call:
        return None
    return int(np.ceil((first_call - later_call) / (eager_call - later_call)))
""",
            "equal_counts",
        ),
        (
            """
def pays_from(first_call, later_call, eager_call):
    if later_call >= eager_call:
        return None
    return int(first_call / (eager_call - later_call)) + 1
""",
            "first_counted_twice",
        ),
        (
            """
def pays_from(first_call, later_call, eager_call):
    return int(np.ceil(first_call / (eager_call - later_call))) if eager_call > later_call else None
""",
            "values",
        ),
        (
            """
def pays_from(first_call, later_call, eager_call):
    if later_call >= eager_call:
        return None
    return int(first_call / eager_call) + 1
""",
            "first_against_eager",
        ),
        (
            """
def pays_from(first_call, later_call, eager_call):
    return int((first_call - later_call) / (eager_call - later_call)) + 1
""",
            "raised:ZeroDivisionError",
        ),
        (
            """
def pays_from(first_call, later_call, eager_call):
    calls = 1
    while first_call + (calls - 1) * later_call >= calls * eager_call:
        calls += 1
    return calls
""",
            "timeout",
        ),
    ),
    seconds=5.0,
)

_WEIGHTS, _BATCH, _PIXELS, _SCORES = 1_000_000, 256, 784, 10


def _is(key, value):
    return lambda answer: answer[key] == value


fits = Exercise(
    "13.fits",
    title="Bytes, before you allocate them",
    minutes=5,
    starter="""
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {  # in bytes, float32
    "the gradient of the loss": ...,
    "the gradient of each example's loss": ...,
    "the Jacobian of all scores by the weights": ...,
    "batch_jacobian of the scores by the pixels": ...,
    "the Jacobian of all scores by all pixels": ...,
    "the Hessian over the weights": ...,
    "a Hessian-vector product": ...,
}

exercises.fits.check(size)
""",
    solution_code="""
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * examples * pixels,
    "the Hessian over the weights": 4 * weight_count**2,
    "a Hessian-vector product": 4 * weight_count,
}
""",
    explanation=(
        "Multiply the elements of the target by the elements of the source, then by 4. Only two of the seven are the size of the weights, and those are the two that training uses. The "
        "Jacobian by all pixels is a batch times as large as what `batch_jacobian` keeps of it."
    ),
    hints=(
        "A Jacobian's shape is the target's shape followed by the source's. Which of them have the batch in their shape?",
        "A scalar target adds no axis. The weights have no batch axis. `batch_jacobian` has the batch once, `jacobian` by the pixels twice (notebook 11).",
        "For example, all scores by the weights: (256, 10) by 1 000 000, four bytes each.",
    ),
    checker=Value(
        expected={
            "the gradient of the loss": 4 * _WEIGHTS,
            "the gradient of each example's loss": 4 * _BATCH * _WEIGHTS,
            "the Jacobian of all scores by the weights": 4 * _BATCH * _SCORES * _WEIGHTS,
            "batch_jacobian of the scores by the pixels": 4 * _BATCH * _SCORES * _PIXELS,
            "the Jacobian of all scores by all pixels": 4 * _BATCH * _SCORES * _BATCH * _PIXELS,
            "the Hessian over the weights": 4 * _WEIGHTS**2,
            "a Hessian-vector product": 4 * _WEIGHTS,
        },
        rtol=0.0,  # whole numbers
        mistakes=(
            Mistake(
                "elements",
                "These are the numbers of elements. How many bytes does a float32 take?",
                _is("the gradient of the loss", _WEIGHTS),
            ),
            Mistake(
                "float64",
                "With eight bytes for each element, this is float64.",
                _is("the gradient of the loss", 8 * _WEIGHTS),
            ),
            Mistake(
                "batch_in_the_gradient",
                "The loss is one number for the whole batch, so its gradient has the shape of the weights, however many examples there are.",
                _is("the gradient of the loss", 4 * _BATCH * _WEIGHTS),
            ),
            Mistake(
                "one_example",
                "In the Jacobian of all scores by the weights: every example has scores of its own.",
                _is("the Jacobian of all scores by the weights", 4 * _SCORES * _WEIGHTS),
            ),
            Mistake(
                "batch_twice",
                "In `batch_jacobian`: it pairs each example with itself alone. The batch stands in its shape once.",
                _is("batch_jacobian of the scores by the pixels", 4 * _BATCH * _SCORES * _BATCH * _PIXELS),
            ),
            Mistake(
                "batch_once",
                "In the Jacobian by all pixels: `jacobian` pairs every example's scores with every example's pixels. The batch stands in its shape twice.",
                _is("the Jacobian of all scores by all pixels", 4 * _BATCH * _SCORES * _PIXELS),
            ),
            Mistake(
                "product_is_a_matrix",
                "In the Hessian–vector product: it is what the Hessian would give when it is multiplied by a vector. What shape has that?",
                _is("a Hessian-vector product", 4 * _WEIGHTS**2),
            ),
        ),
    ),
    wrong=(
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": weight_count,
    "the gradient of each example's loss": examples * weight_count,
    "the Jacobian of all scores by the weights": examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": examples * scores * pixels,
    "the Jacobian of all scores by all pixels": examples * scores * examples * pixels,
    "the Hessian over the weights": weight_count**2,
    "a Hessian-vector product": weight_count,
}
""",
            "elements",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 8 * weight_count,
    "the gradient of each example's loss": 8 * examples * weight_count,
    "the Jacobian of all scores by the weights": 8 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 8 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 8 * examples * scores * examples * pixels,
    "the Hessian over the weights": 8 * weight_count**2,
    "a Hessian-vector product": 8 * weight_count,
}
""",
            "float64",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * examples * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * examples * pixels,
    "the Hessian over the weights": 4 * weight_count**2,
    "a Hessian-vector product": 4 * weight_count,
}
""",
            "batch_in_the_gradient",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * examples * pixels,
    "the Hessian over the weights": 4 * weight_count**2,
    "a Hessian-vector product": 4 * weight_count,
}
""",
            "one_example",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * examples * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * examples * pixels,
    "the Hessian over the weights": 4 * weight_count**2,
    "a Hessian-vector product": 4 * weight_count,
}
""",
            "batch_twice",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * pixels,
    "the Hessian over the weights": 4 * weight_count**2,
    "a Hessian-vector product": 4 * weight_count,
}
""",
            "batch_once",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * examples * pixels,
    "the Hessian over the weights": 4 * weight_count**2,
    "a Hessian-vector product": 4 * weight_count**2,
}
""",
            "product_is_a_matrix",
        ),
        (
            """
weight_count, examples, pixels, scores = 1_000_000, 256, 784, 10
size = {
    "the gradient of the loss": 4 * weight_count,
    "the gradient of each example's loss": 4 * examples * weight_count,
    "the Jacobian of all scores by the weights": 4 * examples * scores * weight_count,
    "batch_jacobian of the scores by the pixels": 4 * examples * scores * pixels,
    "the Jacobian of all scores by all pixels": 4 * examples * scores * examples * pixels,
    "the Hessian over the weights": 4 * weight_count,
    "a Hessian-vector product": 4 * weight_count,
}
""",
            "values",
        ),
    ),
)
