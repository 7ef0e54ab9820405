"""Measure again what decides speed: the constants of `tapelab.derivatives.costs`, and which would be another here.

A constant chooses between ways to compute one result: whether XLA compiles it, or how much goes through at once. Each
has cases, some where it chooses the one and some where it chooses the other. All ways of a case are timed by turns.
Then each value that the constant could have is rated by what it would have chosen: the geometric mean, over the cases,
of the time that it takes in units of the shortest. A constant that is rated within 5 % of the best value holds.

Others have no other way to compare with: they bound how long a search goes on, or how much memory is kept. Of them it
is measured what the bound amounts to here.

    constants.py [--rounds 3] [--seconds 0.1] [--only NAME]      prints a line of JSON for each constant
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tapelab.derivatives import (
    CurvatureOperator,
    FallbackWarning,
    clipped_gradient,
    costs,
    ggnvp,
    hessian,
    hvp,
    jacobian,
    jvp,
    laplacian,
    per_example_gradients,
    per_example_norms,
    sparse_hessian,
    sparse_jacobian,
    value_and_gradient,
)
from tapelab.derivatives.sparse import colouring
from tapelab.runtime import tf

import numpy as np
import sparse_functions
import with_tensorflow
from scipy import sparse
from worker import measure, resident
from works import MAX_NORM, Work, batch, labels, weights

HOLDS = 1.05  # a constant holds if its choices take no longer, in units of those of the best value
XLA, GRAPH = "xla", "graph"
FILTERS, COPIES = "filters", "copies"
PIECES = ("ConcatV2", "Pad", "PadV2", "Slice")


@dataclass
class Case:
    """One work, done in several ways.

    Attributes:
        label: what it is.
        ways: {way: a function that computes the result}.
        size: what a limit is compared with; of a list of operations, those that the work has.
        taken: the way that the constant, as it is, was seen to choose; None where it was not looked at.
        seconds: {way: the median time of a call}.
    """

    label: str
    ways: dict[Any, Callable]
    size: Any = None
    taken: str | None = None
    seconds: dict[Any, float] = field(default_factory=dict)


@dataclass
class Choice:
    """A constant that chooses between ways.

    Attributes:
        cases: returns an iterator over `Case`; each is timed before the next one is made.
        values: takes the cases, returns the values that the constant could have.
        chosen: takes a value of the constant and a case, returns the way that it chooses.
    """

    cases: Callable
    values: Callable
    chosen: Callable


@dataclass
class Bound:
    """A constant that bounds a search, or what is kept.

    Attributes:
        amount: returns what the bound amounts to here.
        most: what it may amount to.
        unit: of both, and of what.
    """

    amount: Callable
    most: float
    unit: str


@contextlib.contextmanager
def given(**values):
    """Give constants other values."""
    before = {name: getattr(costs, name) for name in values}
    try:
        for name, value in values.items():
            setattr(costs, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(costs, name, value)


def under(run, **values):
    """A function that computes with other values of constants."""

    def called():
        with given(**values):
            return run()

    return called


# Rating


def rating(cases, chosen, value):
    """The time of what a value of the constant chooses, in units of the shortest: the geometric mean over cases."""
    ratios = [case.seconds[chosen(value, case)] / min(case.seconds.values()) for case in cases]
    return math.exp(statistics.fmean(map(math.log, ratios)))


def judged(name, question, cases):
    """Say how a constant is rated, which value is rated best, and whether that would be another one here.

    Raises RuntimeError if a case does not ask what the constant decides.
    """
    now = getattr(costs, name)
    for case in cases:
        if case.taken not in (None, question.chosen(now, case)):
            raise RuntimeError(f"{name} is not what decides in the case {case.label}: {case.taken} is taken")
    ratings = {value: rating(cases, question.chosen, value) for value in [now, *question.values(cases)]}
    best = min(ratings, key=lambda value: ratings[value])  # the first of several: the constant as it is, if it is one
    holds = ratings[now] <= HOLDS * ratings[best]
    return {
        "now": repr(now),
        "holds": holds,
        "told": f"{ratings[now]:.2f}; best {best!r}, {ratings[best]:.2f}",
        "cases": [case_told(case, question.chosen(now, case)) for case in cases],
    }


def case_told(case, chosen):
    least = min(case.seconds.values())
    ratios = {way: seconds / least for way, seconds in case.seconds.items()}
    others = ", ".join(f"{way} {'refused' if ratio == math.inf else f'{ratio:.2f}'}" for way, ratio in ratios.items())
    return f"{case.label}: {others} times {1e3 * least:.3g} ms; chooses {chosen}"


def timed(case, rounds, seconds):
    """Time the ways of a case by turns. What is refused, being wrong or without a derivative, takes for ever."""
    refused = []
    for way, run in list(case.ways.items()):
        try:
            with warnings.catch_warnings(action="ignore", category=FallbackWarning):
                run()  # compiles it
        except (LookupError, RuntimeError):
            refused.append(way)
            del case.ways[way]
    turns = {way: [] for way in case.ways}
    for _ in range(rounds):
        for way, run in case.ways.items():
            turns[way].append(measure(with_tensorflow, run, seconds)["median"])
    case.seconds = {way: statistics.median(found) for way, found in turns.items()} | dict.fromkeys(refused, math.inf)
    case.ways = {}  # what was compiled is free again
    return case


# XLA or a plain graph


def both(label, make, arguments, size, **vector):
    """A case of XLA and a graph.

    Args:
        label: what it is.
        make: a transformation, but for its ``compile``.
        arguments: of a call.
        size: takes the facts of the problem and the plan, returns what the constant is compared with.
        vector: of a call, as a keyword.
    """
    entry = make(compile="auto")._entry(arguments, dict(vector))[0]
    runs = {way: make(compile=way) for way in (XLA, GRAPH)}

    def compiled():
        """What XLA does not compile in the same way is not tried: auto would go on to the graph."""
        if runs[XLA].plan(*arguments, **vector).way != runs[GRAPH].plan(*arguments, **vector).way:
            raise RuntimeError("another way")
        return values_of(runs[XLA], *arguments, **vector)

    ways = {XLA: compiled, GRAPH: partial(values_of, runs[GRAPH], *arguments, **vector)}
    return Case(label, ways, size(entry.problem.facts, entry.plan), entry.plan.compiled)


def values_of(run, *arguments, **vector):
    """Call, and return tensors that one can wait for, also of sparse results."""
    return tf.nest.flatten(run(*arguments, **vector), expand_composites=True)


def up_to(limit, case):
    """XLA for all sizes up to a limit."""
    return XLA if case.size <= limit else GRAPH


def limits(cases):
    """Limits on either side of each size."""
    return [0, *sorted({case.size for case in cases})]


def by_size(cases):
    return Choice(cases, limits, up_to)


def unless(operations, case):
    """XLA unless one of some operations is there: how their names start."""
    return GRAPH if any(name.startswith(tuple(operations)) for name in case.size) else XLA


def unless_named(operations, case):
    """XLA unless one of some operations is there."""
    return XLA if case.size.isdisjoint(operations) else GRAPH


def by_operations(cases, candidates, chosen):
    """A list of operations, out of these."""
    lists = [some for count in range(len(candidates) + 1) for some in itertools.combinations(candidates, count)]
    return Choice(cases, lambda cases: lists, chosen)


def largest(facts, plan):
    return facts.largest


def operations(facts, plan):
    return facts.operations


def dense(sizes, examples):
    """A network's variables, its data, and a loss of both."""
    work = Work("", "mlp", sizes, examples)
    variables = [tf.Variable(weight) for weight in weights(work)]
    x, y = map(tf.constant, batch(work))
    return variables, x, y, lambda x, y: with_tensorflow.squared(variables, x, y)


def directions(variables):
    generator = np.random.default_rng(4)
    return [tf.constant(generator.standard_normal(v.shape), v.dtype) for v in variables]


def one_pass():
    for width, examples in ((4, 8), (16, 32), (32, 64), (64, 128), (128, 256), (256, 512)):
        variables, x, y, loss = dense((width, width, 4), examples)
        make = partial(value_and_gradient, loss, wrt=variables)
        yield both(f"gradient, {width}-{width}-4, batch {examples}", make, (x, y), largest)
    for n in (2**6, 2**9, 2**12, 2**15, 2**18):
        x = tf.linspace(0.1, 1.0, n)
        make = partial(jvp, lambda x: tf.sin(x) * tf.exp(-(x**2)) / (1 + x))
        yield both(f"jvp, {n} elements", make, (x,), largest, tangents=tf.ones_like(x))


def jacobians():
    for n in (30, 100, 300, 1000, 2000):
        generator = np.random.default_rng(5)
        first, last = (tf.constant(generator.standard_normal((n, n)) / n, tf.float32) for _ in range(2))
        x = tf.linspace(-1.0, 1.0, n)

        def f(x, first=first, last=last):
            return tf.linalg.matvec(last, tf.tanh(tf.linalg.matvec(first, x)))

        make = partial(jacobian, f, mode="reverse")
        yield both(f"network, {n} by {n}", make, (x,), lambda *_, n=n: n * n)
        make = partial(jacobian, lambda x: tf.sin(x) * tf.cumsum(x), mode="reverse")
        yield both(f"elementwise, {n} by {n}", make, (x,), lambda *_, n=n: n * n)


def hessians():
    """Of networks; without products there is no limit."""
    for sizes in ((5, 8, 6), (8, 16, 16, 6), (12, 24, 20, 8), (16, 32, 32, 12), (24, 48, 48, 10)):
        variables, x, y, loss = dense(sizes, 64)
        n = sum(math.prod(v.shape) for v in variables)
        make = partial(hessian, loss, wrt=variables, packed=True)
        yield both(f"network, n = {n}", make, (x, y), lambda *_, n=n: n)
    for n in (30, 300, 2000, 4000):
        make = partial(hessian, partial(sparse_functions.chain, tf))
        yield both(f"without products, n = {n}", make, (tf.linspace(-1.0, 1.0, n),), lambda *_: 0)


def operators():
    for sizes, examples in (
        ((5, 32, 32, 1), 32),
        ((10, 64, 64, 1), 64),
        ((10, 64, 64, 1), 512),
        ((10, 128, 128, 1), 512),
        ((5, 64, 64, 64, 1), 4096),
        ((20, 128, 128, 1), 256),
        ((50, 256, 256, 128, 1), 128),
        ((50, 256, 256, 128, 1), 512),
    ):
        variables, x, _, _ = dense(sizes, examples)
        make = partial(laplacian, partial(with_tensorflow.network, [tf.constant(v) for v in variables]))
        label = f"Laplacian, {named(sizes)}, batch {examples}"
        yield both(label, make, (x,), lambda facts, plan: plan.chunk * facts.largest)


def colours():
    for function, make, kind in (
        (sparse_functions.wide_band, sparse_jacobian, "band of 5"),
        (lambda xp, x: xp.reduce_sum(xp.sin(x) * xp.roll(x, 1, 0)), sparse_hessian, "ring"),
    ):
        for n in (10**2, 10**4, 10**5, 10**6):
            x = tf.linspace(-1.0, 1.0, n)
            made = partial(make, sparse_functions.in_framework(function, tf))
            label = f"{kind}, n = {n}"
            yield both(label, made, (x,), lambda facts, plan: plan.passes * facts.largest)


def normalised(variables, x):
    h = tf.tanh(x @ variables[0] + variables[1])
    mean = tf.reduce_mean(h, -1, keepdims=True)
    h = (h - mean) * tf.math.rsqrt(tf.reduce_mean((h - mean) ** 2, -1, keepdims=True) + 1e-3)
    return h @ variables[2] + variables[3]


def after_depthwise(x, *window):
    """Average pooling of what a depthwise convolution gives."""
    means = tf.ones([3, 3, x.shape[-1], 1]) / 9
    return tf.nn.avg_pool2d(tf.nn.depthwise_conv2d(x, means, [1, 1, 1, 1], "SAME"), *window)


MODELS = {
    "dense, small": (with_tensorflow.network, (16, 16, 10), 32),
    "dense": (with_tensorflow.network, (128, 256, 256, 10), 128),
    "normalisation": (normalised, (64, 128, 10), 128),
    "convolutions, average pooling": (with_tensorflow.convolutional, (16, 8, 16, 10), 64),
    "convolutions, max pooling": (partial(with_tensorflow.convolutional, pool=tf.nn.max_pool2d), (16, 8, 16, 10), 64),
    "convolutions, max pooling, large": (
        partial(with_tensorflow.convolutional, pool=tf.nn.max_pool2d),
        (28, 16, 32, 10),
        64,
    ),
    "convolutions, average pooling, large": (with_tensorflow.convolutional, (28, 16, 32, 10), 64),
    "depthwise convolutions": (partial(with_tensorflow.convolutional, pool=after_depthwise), (16, 8, 16, 10), 64),
}


def models():
    """Each model with its variables, its data, and the class of each example."""
    for name, (model, sizes, examples) in MODELS.items():
        variables, x, y = classified(model, sizes, examples)
        yield name, partial(model, variables), variables, x, y


def named(sizes):
    return "-".join(map(str, sizes))


def classified(model, sizes, examples):
    """A model's variables, its data, and the class of each example."""
    kind = "mlp" if model in (with_tensorflow.network, normalised) else "_cnn"
    work = Work("", kind, sizes, examples)
    return [tf.Variable(weight) for weight in weights(work)], tf.constant(batch(work)[0]), tf.constant(labels(work))


def losses_of_classes(model, variables, x, y):
    return with_tensorflow.losses_of_classes(y, model(variables, x))


def mean_of_classes(y, logits):
    return tf.reduce_mean(with_tensorflow.losses_of_classes(y, logits))


def of_model(model):
    return lambda x, y: mean_of_classes(y, model(x))


def second_order():
    for name, model, variables, x, y in models():
        vector = directions(variables)
        make = partial(hvp, of_model(model), wrt=variables)
        yield both(f"Hessian's, {name}", make, (x, y), operations, vector=vector)
        make = partial(ggnvp, model, mean_of_classes, wrt=variables)
        yield both(f"Gauss-Newton, {name}", make, (x, y), operations, vector=vector)


def per_example():
    for name, model, variables, x, y in models():
        yield both(name, partial(per_example_gradients, of_model(model), wrt=variables), (x, y), operations)


SPARSE = {
    "elementwise": lambda x: tf.sin(x) * tf.exp(-(x**2)),
    "rolled": lambda x: tf.sin(x) * tf.roll(x, 1, 0),
    "strided slices": lambda x: x[1:] * tf.sin(x[:-1]),
    "slices": lambda x: tf.slice(x, [1], [x.shape[0] - 1]) * tf.sin(tf.slice(x, [0], [x.shape[0] - 1])),
    "concatenation": lambda x: tf.concat([x[:1] ** 2, x[1:] * tf.sin(x[:-1])], 0),
    "padding": lambda x: tf.sin(tf.pad(x, [[1, 1]]))[1:-1] * tf.pad(x, [[2, 0]])[:-2],
    "padding with ones": lambda x: x * tf.pad(x, [[2, 0]], constant_values=1.0)[:-2],
}


def sparse_cases(label, make, function=lambda f: f):
    for (name, f), n in itertools.product(SPARSE.items(), (10**2, 10**4)):
        yield both(f"{label}, {name}, n = {n}", partial(make, function(f)), (tf.linspace(-1.0, 1.0, n),), operations)


def reverse_cases():
    return sparse_cases("reverse", partial(sparse_jacobian, mode="reverse"))


def other_cases():
    yield from sparse_cases("forward", partial(sparse_jacobian, mode="forward"))
    yield from sparse_cases("Hessian", sparse_hessian, lambda f: lambda x: tf.reduce_sum(f(x) ** 2))


# How much at once


def by_value(name, values, make):
    """Some values of a constant, all tried in each case.

    `make` yields pairs: a label, and a function that makes what is called.
    """

    def cases():
        for label, run in make():
            yield Case(label, {value: under(run(), **{name: value}) for value in values})

    return Choice(cases, lambda cases: values, lambda value, case: value)


def hessians_of(*networks):
    for sizes, examples in networks:
        variables, x, y, loss = dense(sizes, examples)
        make = partial(hessian, loss, wrt=variables, packed=True, compile=GRAPH)
        yield f"Hessian, {named(sizes)}, batch {examples}", lambda make=make, x=x, y=y: partial(make(), x, y)


def clipped_of(*networks):
    for model, sizes, examples in networks:
        variables, x, y = classified(model, sizes, examples)
        f = partial(losses_of_classes, model, variables)
        make = partial(clipped_gradient, f, wrt=variables, max_norm=MAX_NORM)
        yield f"clipped, {named(sizes)}, batch {examples}", lambda make=make, x=x, y=y: partial(make(), x, y)


def whole_batches(*networks):
    """As `clipped_of`, in chunks of at least 64 examples where not all go at once."""
    for label, run in clipped_of(*networks):
        yield label, lambda run=run: under(run(), CLIPPED_EXAMPLES=64)


def gathered():
    """A filter for each element of a patch, or copies of the image."""
    for side, channels in ((3, 1), (3, 2), (5, 1), (3, 3), (3, 4), (5, 2), (3, 8), (3, 16), (5, 16)):
        kernel = tf.Variable(tf.random.stateless_normal([side, side, channels, 8], [1, 2]))
        x = tf.random.stateless_normal([64, 16, 16, channels], [3, 4])

        def losses(x, kernel=kernel):
            return tf.reduce_sum(tf.nn.conv2d(x, kernel, 1, "SAME") ** 2, [1, 2, 3])

        ways = {
            way: under(partial(per_example_norms(losses, wrt=kernel), x), GATHERED=limit)
            for way, limit in ((FILTERS, math.inf), (COPIES, 0))
        }
        yield Case(f"patches of {side} by {side} by {channels}", ways, side * side * channels)


def products():
    for sizes, examples in (((64, 128, 10), 256), ((64, 512, 512, 10), 1024)):
        variables, x, y = classified(with_tensorflow.network, sizes, examples)
        model = partial(with_tensorflow.network, variables)
        matrix = CurvatureOperator(model, mean_of_classes, wrt=variables, data=(x, y), batch_size=256)
        columns = tf.random.stateless_normal([matrix.shape[0], 16], [5, 6])
        run = partial(matrix.__matmul__, columns)
        yield f"16 products, {named(sizes)}, {examples} examples", lambda run=run: run


def random_pattern(n, each):
    """A square pattern with so many entries in a row."""
    columns = np.random.default_rng(6).integers(0, n, n * each)
    return sparse.csr_array((np.ones(n * each, bool), (np.repeat(np.arange(n), each), columns)), (n, n))


# What bounds amount to


def price(name, more, make):
    """The longest time as it is, in units of that with another value of a constant, which takes more memory."""
    prices = []
    for _, run in make():
        now = getattr(costs, name)
        seconds = timed(Case("", {value: under(run(), **{name: value}) for value in (now, more)}), 3, 0.1).seconds
        prices.append(seconds[now] / seconds[more])
    return max(prices)


def price_of_room():
    return price("CLIPPED_ROOM", 3 * costs.CLIPPED_ROOM, partial(whole_batches, *CLIPPED[1:]))


def price_of_strips():
    return price("STRIP_SHARE", 2, partial(hessians_of, ((32, 72, 72, 6), 64)))


def megabytes_a_program():
    """MiB that a program of the smallest function keeps, compiled by XLA."""
    x, kept = tf.constant([0.5, 1.5]), []

    def compiled(count):
        for number in range(count):
            kept.append(value_and_gradient(lambda x, number=number: tf.reduce_sum(x * number), compile=XLA))
            kept[-1](x)

    compiled(5)  # loads the compiler
    before = resident()
    compiled(20)
    return (resident() - before) / 20 / 2**20


def megabytes_a_signature():
    """MiB that a signature of a small function's arguments keeps, in a graph."""
    run = value_and_gradient(lambda x: tf.reduce_sum(tf.sin(x)), compile=GRAPH)
    for n in range(1, 6):
        run(tf.ones([n]))
    before = resident()
    for n in range(6, 46):
        run(tf.ones([n]))
    return (resident() - before) / 40 / 2**20


def seconds_to_colour(each):
    """Seconds for as large a pattern as is coloured in all orders, with so many entries in a row."""
    pattern = random_pattern(costs.COLOURED_QUICKLY // each, each)
    start = time.perf_counter()
    colouring.colour_columns(pattern)
    return time.perf_counter() - start


def looped():
    """Seconds to follow a loop with so many operations in its turns."""
    turns = costs.LOOP_OPERATIONS // 20

    def f(x):
        for _ in tf.range(turns):
            x = tf.sin(x) * x[::-1]
        return x

    x = tf.ones([4])
    start = time.perf_counter()
    sparse_jacobian(tf.function(f), compile=GRAPH).plan(x)
    return time.perf_counter() - start


CNN, LARGE_CNN = (MODELS[name] for name in ("convolutions, average pooling", "convolutions, max pooling, large"))
CLIPPED = [(with_tensorflow.network, (784, 256, 256, 10), 1024), (*CNN[:2], 1024), (*LARGE_CNN[:2], 512)]
QUESTIONS = {
    "XLA_ONE_PASS": by_size(one_pass),
    "XLA_JACOBIAN": by_size(jacobians),
    "XLA_HESSIAN": by_size(hessians),
    "XLA_OPERATOR": by_size(operators),
    "XLA_SPARSE": by_size(colours),
    "SLOW_SECOND_ORDER": by_operations(second_order, ("Conv", "AvgPool", "MaxPool", "DepthwiseConv"), unless),
    "SLOW_PER_EXAMPLE": by_operations(per_example, ("Conv2D", "MaxPool"), unless_named),
    "UNMAPPED_REVERSE": by_operations(reverse_cases, PIECES, unless_named),
    "UNMAPPED": by_operations(other_cases, PIECES, unless_named),
    "HESSIAN_CACHED": by_value(
        "HESSIAN_CACHED",
        (2**18, 2**20, 2**22, 2**24),
        partial(hessians_of, ((16, 32, 32, 12), 64), ((24, 48, 48, 10), 64), ((16, 32, 32, 12), 512)),
    ),
    "HESSIAN_ROWS": by_value(
        "HESSIAN_ROWS", (8, 32, 128), partial(hessians_of, ((16, 32, 32, 12), 2048), ((24, 48, 48, 10), 1024))
    ),
    "STRIP": by_value("STRIP", (2**18, 2**20, 2**22, 2**24), partial(hessians_of, ((24, 48, 48, 10), 64))),
    "STRIP_SHARE": Bound(price_of_strips, 1.5, "times the time of strips of half the matrix"),
    "CLIPPED_EXAMPLES": by_value("CLIPPED_EXAMPLES", (32, 64, 128, 256, 512), partial(clipped_of, *CLIPPED[1:])),
    "CLIPPED_WHOLE": by_value("CLIPPED_WHOLE", (0.5, 1.3), partial(whole_batches, *CLIPPED[:1])),
    "CLIPPED_ROOM": Bound(price_of_room, 2, "times the time that three times the room would take"),
    "GATHERED": Choice(gathered, limits, lambda limit, case: FILTERS if case.size <= limit else COPIES),
    "VECTORS": by_value("VECTORS", (1, 4, 8, 16), products),
    "COLOURED_QUICKLY": Bound(partial(seconds_to_colour, 10), 20, "seconds for as many entries, in all orders"),
    "COLOURED_ROW": Bound(lambda: seconds_to_colour(costs.COLOURED_ROW), 60, "seconds if all rows are as long"),
    "LOOP_OPERATIONS": Bound(looped, 20, "seconds for a loop of as many"),
    "PROGRAMS": Bound(lambda: costs.PROGRAMS * megabytes_a_program(), 128, "MiB of programs, of one transform"),
    "ALL_PROGRAMS": Bound(lambda: costs.ALL_PROGRAMS * megabytes_a_program(), 1024, "MiB of programs, of all"),
    "SIGNATURES": Bound(lambda: costs.SIGNATURES * megabytes_a_signature(), 128, "MiB of graphs, of one transform"),
}


def measured(name, rounds, seconds):
    """Measure one constant."""
    question = QUESTIONS[name]
    if isinstance(question, Bound):
        amount = question.amount()
        holds = amount <= question.most
        told = f"{amount:.3g} of at most {question.most} {question.unit}"
        return {"now": repr(getattr(costs, name)), "holds": holds, "told": told, "cases": []}
    return judged(name, question, [timed(case, rounds, seconds) for case in question.cases()])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.1, help="for one way's turn in a round")
    parser.add_argument("--only", default="", help="only the constants whose name contains this")
    options = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever TensorFlow prints goes to stderr
    for name in QUESTIONS:
        if options.only in name:
            found = measured(name, options.rounds, options.seconds)
            print(json.dumps({"constant": name} | found), file=answers, flush=True)


if __name__ == "__main__":
    main()
