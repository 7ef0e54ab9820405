"""Exercises and predictions of the notebook "Without the matrix"."""

import functools
import inspect

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.sheets.hessians_and_newton import _pairs, _whole_hessian
from tapelab.exercises.sheets.jacobians import _count_passes

import numpy as np
import tensorflow as tf

digits = Prediction(
    "without_the_matrix.digits",
    options=("about 7", "about 4", "about 1"),
    remarks=(
        ("about 7", "The two gradients agree in most of theirs, and what they share cancels."),
        ("about 1", "With a bad step, yes, or none at all. The best step lies between too large and too small."),
    ),
)

products = Prediction(
    "without_the_matrix.products",
    remarks=(
        (
            400,
            "That is the bound in exact arithmetic. How many *different* eigenvalues are there?",
        ),
        (100, "That is the largest eigenvalue over the smallest. The number of different eigenvalues is smaller."),
        (
            20,
            "How many *different* eigenvalues are there?",
        ),
        (1, "One product gives the best point along one line. Every further one adds a direction."),
    ),
)

linearised = Prediction(
    "without_the_matrix.linearised",
    remarks=(
        (3, "That is the price of starting anew each time. What of it depends on the point alone, and not on v?"),
        (1, "The pixels come in twice: once to move the logits, once to bring the change back to the weights."),
    ),
)

first = Prediction(
    "without_the_matrix.first",
    options=("gradient descent", "Newton–CG", "L-BFGS"),
    remarks=(
        ("gradient descent", "Its steps are cheap, and it needs more of them than it is given here."),
        ("Newton–CG", "It takes the fewest *steps*. Count what each of them pays in products."),
    ),
)

clear = Prediction(
    "without_the_matrix.clear",
    remarks=(
        (
            1,
            "There are ten classes to tell apart.",
        ),
        (10, "Nearly. Raise all ten logits by the same amount: what happens to the loss?"),
        (64, "That is the number of pixels. How many differences are there between the logits?"),
        (650, "Then none would stand clear of the rest."),
    ),
)


def _product(f, xs, vs):
    """The whole Hessian times all directions, and split again."""
    sizes = [int(tf.size(x)) for x in xs]
    flat = tf.concat([tf.reshape(v, [-1]) for v in vs], axis=0)
    product = tf.linalg.matvec(_whole_hessian(inspect.unwrap(f), *xs), flat)
    return [tf.reshape(part, x.shape) for part, x in zip(tf.split(product, sizes), xs, strict=True)]


def _directions(random, dtype):
    trials = []
    for f, a, b in _pairs(random, dtype):
        vs = [tf.constant(random.normal(size=part.shape), dtype) for part in (a, b)]
        trials.append((f, [a, b], vs))
    return trials


def _observe_product(answer, f, xs, vs):
    """The product, whether it took few passes, and whether f was evaluated away from xs."""
    moved = False

    @functools.wraps(f)  # the reference unwraps it
    def at_xs(*given):
        nonlocal moved
        pairs = zip(given, xs, strict=True)
        moved |= any(tf.executing_eagerly() and bool(tf.reduce_any(here != x)) for here, x in pairs)
        return f(*given)

    counted = _count_passes("the product", lambda *_: 5, _product)(answer, at_xs, xs, vs)
    return counted | {"a step away from xs": moved}


product = Exercise(
    title="A product with a Hessian of several tensors",
    minutes=8,
    hints=(
        r"Do you need to flatten everything into one vector first? What is $g^\top v$ when $g$ and $v$ are lists of "
        "tensors?",
        "The inner product of two lists is the sum of the inner products of their parts: one scalar, made while the "
        "outer tape still records.",
        "`outer.gradient(total, xs)` is the product, part by part. Some parts may have no path to `total`: which "
        "argument of `gradient` turns `None` into zeros?",
    ),
    checker=Function(
        reference=_product,
        inputs=_directions,
        observe=_observe_product,
    ),
    seconds=30.0,  # forward-over-reverse, where the answer takes it, is slow the first time
)


@product.starter("hessian_product")
def _(f, xs, vs):
    return ...  # one tensor for each tensor in xs, and of its shape


@product.right
def _(f, xs, vs):
    """All gradients and directions go into **one** scalar, so its gradient with respect to each tensor collects the
    blocks with all the others. Two backward passes, no matrix."""
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
        total = sum(tf.reduce_sum(g * v) for g, v in zip(gradients, vs))
    return outer.gradient(total, xs, unconnected_gradients="zero")


@product.mistake("whole_hessian")
def _(f, xs, vs):
    """The product is right, and the whole Hessian was built for it, a pass for each of its rows. Two passes are
    enough."""
    products = []
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
    for gradient in gradients:
        blocks = outer.jacobian(gradient, xs, unconnected_gradients="zero")
        products.append(sum(tf.tensordot(block, v, axes=len(v.shape)) for block, v in zip(blocks, vs, strict=True)))
    return products


@product.mistake("differences")
def _(f, xs, vs):
    """This is a difference of two gradients, from points beside `xs`. In float32 it loses digits: the tapes can
    differentiate the gradient itself."""
    step = 1e-2 if xs[0].dtype == tf.float32 else 1e-5

    def gradient(sign):
        moved = [x + sign * step * v for x, v in zip(xs, vs, strict=True)]
        with tf.GradientTape() as tape:
            tape.watch(moved)
            value = f(*moved)
        return tape.gradient(value, moved, unconnected_gradients="zero")

    return [(ahead - behind) / (2 * step) for ahead, behind in zip(gradient(1), gradient(-1), strict=True)]


@product.mistake("own_blocks")
def _(f, xs, vs):
    """Each part is the product with its *own* block of the Hessian. The blocks between the two tensors are missing:
    what must the scalar contain that you differentiate?"""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
    return [
        outer.gradient(g, x, output_gradients=v, unconnected_gradients="zero") for g, x, v in zip(gradients, xs, vs)
    ]


@product.mistake("column_sums")
def _(f, xs, vs):
    """These are the Hessian's column sums: `vs` does not enter. What is differentiated is the gradient's inner product
    with the directions."""
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
    return outer.gradient(gradients, xs, unconnected_gradients="zero")


@product.mistake("entry_by_entry")
def _(f, xs, vs):
    """These are the Hessian's column sums, each times its own entry of `vs`. In a product each entry of the result has
    a row of the Hessian to itself, and all of `vs`. What must the scalar contain that you differentiate?"""
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
    return [part * v for part, v in zip(outer.gradient(gradients, xs, unconnected_gradients="zero"), vs)]


@product.wrong("none")
def _(f, xs, vs):
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
        total = sum(tf.reduce_sum(g * v) for g, v in zip(gradients, vs))
    return outer.gradient(total, xs)


@product.wrong("zeros")
def _(f, xs, vs):
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
    total = sum(tf.reduce_sum(g * v) for g, v in zip(gradients, vs))
    return outer.gradient(total, xs, unconnected_gradients="zero")


@product.wrong("type")
def _(f, xs, vs):
    with tf.GradientTape() as outer:
        outer.watch(xs)
        with tf.GradientTape() as inner:
            inner.watch(xs)
            value = f(*xs)
        gradients = inner.gradient(value, xs)
        flat = tf.concat([tf.reshape(g, [-1]) for g in gradients], axis=0)
        total = tf.tensordot(flat, tf.concat([tf.reshape(v, [-1]) for v in vs], axis=0), 1)
    return tf.concat([tf.reshape(p, [-1]) for p in outer.gradient(total, xs, unconnected_gradients="zero")], axis=0)


def _trace(product, probes):
    """The mean of z'Hz over the rows of probes."""
    return tf.reduce_mean(tf.stack([tf.tensordot(z, product(z), 1) for z in tf.unstack(probes)]))


def _products(random, dtype):
    """Products with three matrices, each with a few rows of signs."""
    trials = []
    for n, count in ((3, 2), (5, 4), (4, 1)):
        matrix = random.normal(size=(n, n))
        matrix = tf.constant(matrix + matrix.T + np.diag(np.arange(1.0, n + 1)), dtype)
        probes = tf.constant(random.choice([-1.0, 1.0], size=(count, n)), dtype)
        trials.append((lambda v, matrix=matrix: tf.linalg.matvec(matrix, v), probes))
    return trials


def _count_products(name, most):
    """Return an observer for `Function`: an answer's result, and whether it took few products.

    Args:
        name: what the result is called in the feedback.
        most: from a trial's vectors to the number of products that is few enough.
    """

    def observe(answer, product, vectors):
        count = 0

        @functools.wraps(product)  # with what the product carries for the reference
        def counted(vector):
            nonlocal count
            count += 1
            return product(vector)

        result = answer(counted, vectors)
        few = most(vectors)
        return {name: result, "the number of products": f"{'at most' if count <= few else 'more than'} {few}"}

    return observe


trace = Exercise(
    title="The trace from products",
    minutes=8,
    hints=(
        r"What is the expectation of $z_i z_j$ for independent random signs, if $i = j$, and if $i \ne j$?",
        r"$z^\top H z$ is one number for each probe: `tf.tensordot(z, product(z), 1)`. Its expectation is the trace.",
        "`tf.unstack(probes)` gives the probes one by one. Average the numbers.",
    ),
    checker=Function(reference=_trace, inputs=_products, observe=_count_products("the estimate", len)),
)


@trace.starter("trace")
def _(product, probes):
    return ...  # a scalar


@trace.right
def _(product, probes):
    r"""$z^\top H z = \sum_{ij} z_i H_{ij} z_j$. On the diagonal $z_i^2 = 1$; off it the signs agree as often as they
    differ, so these terms average to zero. It is called Hutchinson's estimator (1990)."""
    samples = [tf.tensordot(z, product(z), 1) for z in tf.unstack(probes)]
    return tf.reduce_mean(tf.stack(samples))


@trace.mistake("total")
def _(product, probes):
    """This is the sum over the probes. Each of them estimates the whole trace."""
    return sum(tf.tensordot(z, product(z), 1) for z in tf.unstack(probes))


@trace.mistake("mean_eigenvalue")
def _(product, probes):
    r"""This is the trace divided by $n$, the mean of the eigenvalues: you divided by $z^\top z$."""
    return tf.reduce_mean(tf.stack([z * product(z) for z in tf.unstack(probes)]))


@trace.mistake("entries")
def _(product, probes):
    """You summed the entries of $Hz$. The probe has to come in once more, from the left."""
    return tf.reduce_mean(tf.stack([tf.reduce_sum(product(z)) for z in tf.unstack(probes)]))


@trace.mistake("matrix_built")
def _(product, probes):
    """The number is right, and took a product for each unknown: you built the matrix. One product for each probe is
    enough."""
    matrix = _matrix_of(product, probes[0])
    return tf.reduce_mean(tf.reduce_sum(probes * (probes @ matrix), axis=1))


@trace.wrong("shape")
def _(product, probes):
    return tf.reduce_mean(tf.stack([z * product(z) for z in tf.unstack(probes)]), axis=0)


def _matrix_of(product, v):
    return tf.stack([product(row) for row in tf.unstack(tf.eye(len(v), dtype=v.dtype))])


def _lowest(product, v):
    return product.lowest


_PRODUCTS = 1000  # fewer than the largest matrix has rows


def _indefinite(random, dtype):
    """Products with matrices of which the lowest eigenvalue is negative, and a vector to start from."""
    trials = []
    for eigenvalues in ([-1.0, 2.0, 6.0], [-3e3, -1e3, 500.0, 2e3, 8e3], [-9.0, -2.0, 1.0, 4.0]):
        n = len(eigenvalues)
        vectors = np.linalg.qr(random.normal(size=(n, n)))[0]
        matrix = tf.constant(vectors @ np.diag(eigenvalues) @ vectors.T, dtype)
        start = tf.constant(vectors @ np.geomspace(1.0, 0.01, n), dtype)  # a part along every eigenvector

        def by_matrix(v, matrix=matrix):
            return tf.linalg.matvec(matrix, v)

        by_matrix.lowest = tf.constant(min(eigenvalues), dtype)
        trials.append((by_matrix, start))

    n = _PRODUCTS + 200
    unit = random.normal(size=n)
    mirror = tf.constant(unit / np.linalg.norm(unit), dtype)  # a reflection takes the place of the eigenvectors
    diagonal = tf.constant(np.resize([-5.0, 1.0, 3.0, 9.0], n), dtype)

    def reflected(v):
        return v - 2 * tf.tensordot(mirror, v, 1) * mirror

    def without_a_matrix(v):
        return reflected(diagonal * reflected(v))

    without_a_matrix.lowest = tf.constant(-5.0, dtype)
    return [*trials, (without_a_matrix, reflected(tf.ones(n, dtype)))]


lowest = Exercise(
    title="The lowest eigenvalue",
    minutes=15,
    beyond=True,
    hints=(
        "Multiply a vector by $H$ again and again, and make its length 1 each time. Which eigenvector does it turn "
        "to? That is power iteration.",
        r"Power iteration finds the eigenvalue of the largest *magnitude*. What are the eigenvalues of $\sigma I - "
        r"H$, and for which $\sigma$ does the lowest of $H$ become the largest in magnitude?",
        r"A product with $\sigma I - H$ is `shift * u - product(u)`. Take for $\sigma$ the magnitude that a first "
        "power iteration found. Undo the shift at the end.",
    ),
    checker=Function(
        reference=_lowest,
        inputs=_indefinite,
        observe=_count_products("the eigenvalue", lambda v: _PRODUCTS),
    ),
    seconds=30.0,  # an answer that builds the largest matrix
)


@lowest.starter("lowest_eigenvalue")
def _(product, v):
    return ...  # a scalar


@lowest.right
def _(product, v):
    r"""In these trials power iteration finds the eigenvalue of the largest magnitude, whichever sign it has. With that
    magnitude as $\sigma$, all eigenvalues of $\sigma I - H$ are at least zero, and the largest of them is $\sigma -
    \lambda_{\min}$: power iteration finds it, from products alone."""

    def power_iteration(product, v):
        for _ in range(300):
            v = product(v)
            v = v / tf.norm(v)
        return tf.tensordot(v, product(v), 1)

    dominant = power_iteration(product, v)
    shift = tf.abs(dominant)  # no eigenvalue is above this
    return shift - power_iteration(lambda u: shift * u - product(u), v)


@lowest.mistake("matrix_built")
def _(product, v):
    """The eigenvalues are right, and each matrix was built from as many products as it has rows: the largest has more
    rows than you may take products."""
    matrix = tf.stack([product(row) for row in tf.unstack(tf.eye(len(v), dtype=v.dtype))])
    return tf.linalg.eigvalsh(matrix)[0]


@lowest.mistake("dominant")
def _(product, v):
    """This is the eigenvalue of the largest *magnitude*, to which power iteration turns. The lowest one is smaller in
    magnitude in some of the trials."""

    def power_iteration(product, v):
        for _ in range(300):
            v = product(v)
            v = v / tf.norm(v)
        return tf.tensordot(v, product(v), 1)

    return power_iteration(product, v)


@lowest.mistake("highest")
def _(product, v):
    """This is the highest eigenvalue. You want the other end of the spectrum."""

    def power_iteration(product, v):
        for _ in range(300):
            v = product(v)
            v = v / tf.norm(v)
        return tf.tensordot(v, product(v), 1)

    shift = tf.abs(power_iteration(product, v))
    return power_iteration(lambda u: shift * u + product(u), v) - shift


@lowest.mistake("shifted")
def _(product, v):
    """This is an eigenvalue of the shifted matrix. Undo the shift."""

    def power_iteration(product, v):
        for _ in range(300):
            v = product(v)
            v = v / tf.norm(v)
        return tf.tensordot(v, product(v), 1)

    shift = tf.abs(power_iteration(product, v))
    return power_iteration(lambda u: shift * u - product(u), v)


@lowest.mistake("fixed_shift")
def _(product, v):
    """A shift that suits one matrix is too small for another, and too large a one takes too many products. Which number
    bounds the eigenvalues of the matrix that you are given?"""
    for _ in range(400):
        v = 20 * v - product(v)
        v = v / tf.norm(v)
    return tf.tensordot(v, product(v), 1)


@lowest.mistake("smallest_magnitude")
def _(product, v):
    """This is the eigenvalue nearest to zero. The lowest is the most negative."""
    eigenvalues = tf.linalg.eigvalsh(_matrix_of(product, v))
    return eigenvalues[tf.argmin(tf.abs(eigenvalues))]


@lowest.wrong("fixed_shift")
def _(product, v):
    for _ in range(900):
        v = 100 * v - product(v)
        v = v / tf.norm(v)
    return tf.tensordot(v, product(v), 1)


@lowest.wrong("values")
def _(product, v):
    shift = 2 * tf.norm(product(v)) / tf.norm(v)
    for _ in range(300):
        v = shift * v - product(v)
        v = v / tf.norm(v)
    return tf.tensordot(v, product(v), 1)
