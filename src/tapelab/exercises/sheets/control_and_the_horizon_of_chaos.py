"""Exercises and predictions of the notebook "Control and the horizon of chaos"."""

from tapelab.exercises import Exercise, Function, Prediction
from tapelab.exercises.checks import without_a_tape

import numpy as np
import tensorflow as tf

way_up = Prediction(
    "control_and_the_horizon_of_chaos.way_up",
    options=("go straight to the right", "swing to and fro first", "stay hanging"),
    remarks=(
        (
            "go straight to the right",
            "That is where the target is. A pole that swings to the other side first comes back with more speed.",
        ),
        ("stay hanging", "The gradient at nearly zero forces is small, and it is not zero."),
    ),
)

search = Prediction(
    "control_and_the_horizon_of_chaos.search",
    options=("about the same", "about ten times", "more than a hundred times"),
    remarks=(
        (
            "about the same",
            "One gradient holds 120 numbers about how to improve. A simulation without one gives a single number.",
        ),
        ("about ten times", "It is far off in the last digits: small errors of many forces at once are hard to guess."),
    ),
)

norm_20 = Prediction(
    "control_and_the_horizon_of_chaos.norm_20",
    options=("about 10", "about 1000", "more than a million"),
    remarks=(
        ("about 10", "Nudges that add up would grow so. These multiply: 4000 factors, each a little above 1."),
        ("about 1000", "That is reached after a few seconds, and every further second multiplies it."),
    ),
)

closer = Prediction(
    "control_and_the_horizon_of_chaos.closer",
    options=("a thousand times as late", "about ten times as late", "less than three times as late"),
    remarks=(
        ("a thousand times as late", "So it would be if the distance grew by the same amount in every second."),
        (
            "about ten times as late",
            "The distance has to grow by a factor of a thousand more. How long does it take for the first thousand?",
        ),
    ),
)

digits = Prediction(
    "control_and_the_horizon_of_chaos.digits",
    options=("about seven", "about three", "none"),
    remarks=(
        (
            "about seven",
            "Each product is computed to about that, for the path along which it is taken. Are the two paths the same?",
        ),
        ("about three", "So it is after a few seconds. Which paths are the Jacobians taken along at the end?"),
    ),
)


def _chains(random, dtype):
    """Jacobians of steps with respect to the state and to one force, and the gradient at the last state."""

    def chain(count, n):
        A = np.eye(n) + 0.4 * random.normal(size=(count, n, n))
        return tuple(tf.constant(part, dtype) for part in (A, random.normal(size=(count, n)), random.normal(size=n)))

    return [chain(3, 2), chain(6, 4)]


def _adjoint_in_full(A, B, g):
    """Each derivative by its whole product, from the left."""
    found = []
    for t in range(len(A)):
        moved = B[t]
        for later in range(t + 1, len(A)):
            moved = tf.linalg.matvec(A[later], moved)
        found.append(tf.tensordot(moved, g, 1))
    return tf.stack(found)


backwards = Exercise(
    title="Backwards through time",
    minutes=8,
    hints=(
        "The last force acts on the last state alone: its derivative is the inner product of `B[-1]` and `g`. What "
        "takes the place of `g` for the force before it?",
        "Carry a vector, the adjoint: the derivative of the loss with respect to the state *after* step $t$. Use it "
        "for the force of step $t$, and then take it back over step $t$.",
        "Taking it back is a product with the *transposed* Jacobian: `tf.linalg.matvec(A[t], a, transpose_a=True)`.",
    ),
    checker=Function(reference=_adjoint_in_full, inputs=_chains, observe=without_a_tape, axes=("step",)),
)


@backwards.starter("through_time")
def _(A, B, g):
    return ...  # one derivative for each step, shape (steps,)


@backwards.right
def _(A, B, g):
    """The adjoint after the last step is the loss's gradient. Each step back multiplies it by that step's transposed
    Jacobian. So all derivatives together take one product of a matrix and a vector for each step; a product for each
    pair of steps would be the square of that. It is what the tape's backward pass does."""
    adjoint, found = g, []
    for t in reversed(range(len(A))):
        found.append(tf.tensordot(B[t], adjoint, 1))
        adjoint = tf.linalg.matvec(A[t], adjoint, transpose_a=True)
    return tf.stack(found[::-1])


@backwards.mistake("own_step")
def _(A, B, g):
    """The force of step $t$ does not pass through $A_t$: it enters *in* this step, and moves the state after it. Which
    products follow?"""
    adjoint, found = g, []
    for t in reversed(range(len(A))):
        adjoint = tf.linalg.matvec(A[t], adjoint, transpose_a=True)
        found.append(tf.tensordot(B[t], adjoint, 1))
    return tf.stack(found[::-1])


@backwards.mistake("not_transposed")
def _(A, B, g):
    """The adjoint was multiplied by $A_t$, which takes nudges forwards in time. Backwards it is the transpose."""
    adjoint, found = g, []
    for t in reversed(range(len(A))):
        found.append(tf.tensordot(B[t], adjoint, 1))
        adjoint = tf.linalg.matvec(A[t], adjoint)
    return tf.stack(found[::-1])


@backwards.mistake("backwards")
def _(A, B, g):
    """These are the right numbers in the order in which they were found. The last force came first."""
    adjoint, found = g, []
    for t in reversed(range(len(A))):
        found.append(tf.tensordot(B[t], adjoint, 1))
        adjoint = tf.linalg.matvec(A[t], adjoint, transpose_a=True)
    return tf.stack(found)


@backwards.wrong("tape")
def _(A, B, g):
    u = tf.zeros(len(A), A.dtype)
    with tf.GradientTape() as tape:
        tape.watch(u)
        s = tf.zeros_like(g)
        for t in range(len(A)):
            s = tf.linalg.matvec(A[t], s) + B[t] * u[t]
    return tape.gradient(s, u, output_gradients=g)


@backwards.mistake("last_step_alone")
def _(A, B, g):
    """Each force was treated as if it were the last: the steps that follow it are missing."""
    return tf.linalg.matvec(B, g)


def _rounded_chains(random, dtype):
    """Jacobians of steps, and the rounding of each of them."""

    def chain(count, n):
        A = np.eye(n) + 0.4 * random.normal(size=(count, n, n))
        return tuple(tf.constant(part, dtype) for part in (A, random.normal(size=(count, n))))

    return [chain(3, 2), chain(7, 4)]


def _errors_in_full(A, r):
    """Each rounding is carried on by itself, and the carried ones are added."""
    found = [tf.zeros_like(r[0]) for _ in range(len(A))]
    for first in range(len(A)):
        carried = r[first]
        for t in range(first, len(A)):
            carried = tf.linalg.matvec(A[t], carried) if t > first else carried
            found[t] += carried
    return tf.stack(found)


rounding = Exercise(
    title="Each step rounds",
    minutes=8,
    hints=(
        "After the first step the error is `r[0]`. What does the second step do to it, and what does it add?",
        "The Jacobian of a step multiplies the error that is there *before* it. The rounding of the step comes "
        "afterwards.",
        "One vector is enough: `e = tf.linalg.matvec(A[t], e) + r[t]`, starting from zeros.",
    ),
    checker=Function(reference=_errors_in_full, inputs=_rounded_chains, axes=("step", "state")),
)


@rounding.starter("errors")
def _(A, r):
    return ...  # the error after each step, shape (steps, n)


@rounding.right
def _(A, r):
    r"""$e_{t+1} = A_t e_t + r_t$. Written out, each rounding is multiplied by the Jacobians of all steps after its own,
    and the results add up. Where the steps stretch, the early ones count most."""
    e, found = tf.zeros_like(r[0]), []
    for t in range(len(A)):
        e = tf.linalg.matvec(A[t], e) + r[t]
        found.append(e)
    return tf.stack(found)


@rounding.mistake("rounded_before")
def _(A, r):
    """Here each rounding is multiplied by the Jacobian of its own step. A step rounds its *result*."""
    e, found = tf.zeros_like(r[0]), []
    for t in range(len(A)):
        e = tf.linalg.matvec(A[t], e + r[t])
        found.append(e)
    return tf.stack(found)


@rounding.mistake("added_up")
def _(A, r):
    """The roundings are added up, and none of them grows. What do the later steps do to an error?"""
    return tf.cumsum(r, axis=0)


@rounding.mistake("first_alone")
def _(A, r):
    """Only the first rounding is carried on. Every step adds its own."""
    found = [r[0]]
    for t in range(1, len(A)):
        found.append(tf.linalg.matvec(A[t], found[-1]))
    return tf.stack(found)


@rounding.mistake("transposed")
def _(A, r):
    """An error was multiplied by the transposed Jacobian, which takes gradients backwards. Errors go forwards."""
    e, found = tf.zeros_like(r[0]), []
    for t in range(len(A)):
        e = tf.linalg.matvec(A[t], e, transpose_a=True) + r[t]
        found.append(e)
    return tf.stack(found)


@rounding.wrong("shape")
def _(A, r):
    e = tf.zeros_like(r[0])
    for t in range(len(A)):
        e = tf.linalg.matvec(A[t], e) + r[t]
    return e


def _long_chains(random, dtype):
    """Products with two steps and with many; of the latter the plain product loses its small singular values."""
    few = tf.constant([[[2.0, 1.0], [0.0, 0.5]], [[1.0, 0.0], [0.5, -1.5]]], dtype)
    strengths = np.diag([3.0, 1.0, 0.2])
    many = [np.linalg.qr(random.normal(size=(3, 3)))[0] @ strengths for _ in range(60)]
    return [(few, 0.5), (tf.constant(np.stack(many), dtype), 0.1)]


def _by_volumes(A, dt):
    """From the stretch of the first axis, of the first two, and so on: each by Gram's determinant, step by step."""
    A = A.numpy().astype(np.float64)
    n, total = A.shape[1], np.zeros(A.shape[1])
    basis = np.eye(n)
    for step in A:
        image = step @ basis
        volumes = [np.sqrt(np.linalg.det(image[:, :k].T @ image[:, :k])) for k in range(1, n + 1)]
        total += np.log(np.divide(volumes, [1.0, *volumes[:-1]]))
        for k in range(n):  # Gram and Schmidt
            for other in range(k):
                image[:, k] -= (image[:, other] @ image[:, k]) * image[:, other]
            image[:, k] /= np.linalg.norm(image[:, k])
        basis = image
    return total / (dt * len(A))


def _as_numbers(answer, A, dt):
    """What the answer returns, in float64: the arithmetic in which it adds up the logarithms is its own."""
    return tf.cast(answer(A, dt), tf.float64)


exponents = Exercise(
    title="All exponents",
    minutes=12,
    beyond=True,
    hints=(
        "One vector that is made of length 1 in each step gives the largest exponent. What must be done to a second "
        "vector, so that it does not turn to the first one's direction?",
        "`q, r = tf.linalg.qr(A[t] @ q)` makes the images orthonormal again. By how much the $k$-th was stretched "
        "stands on the diagonal of `r`, up to its sign.",
        "Add up the logarithms of the magnitudes of that diagonal over all steps, and divide by the whole time.",
    ),
    checker=Function(
        reference=_by_volumes, inputs=_long_chains, observe=_as_numbers, dtypes=(tf.float64,), axes=("exponent",)
    ),
)


@exponents.starter("exponents")
def _(A, dt):
    return ...  # one for each axis of the state, shape (n,), from n vectors that start as the unit vectors


@exponents.right
def _(A, dt):
    """Benettin's method (1980). The first vector turns to the direction of the largest stretch, the second to the
    largest stretch at a right angle to it, and so on. Nothing overflows, and no small number is lost beside a large
    one, because only logarithms are added up."""
    q, total = tf.eye(A.shape[1], dtype=A.dtype), tf.zeros(A.shape[1], A.dtype)
    for step in tf.unstack(A):
        q, r = tf.linalg.qr(step @ q)
        total += tf.math.log(tf.abs(tf.linalg.diag_part(r)))
    return total / (dt * len(A))


@exponents.mistake("plain_product")
def _(A, dt):
    """These come from the singular values of the plain product. Of a long one the smallest are lost in rounding."""
    product = tf.eye(A.shape[1], dtype=A.dtype)
    for step in tf.unstack(A):
        product = step @ product
    return tf.math.log(tf.linalg.svd(product, compute_uv=False)) / (dt * len(A))


@exponents.mistake("steps_apart")
def _(A, dt):
    """Each step was taken by itself, from the unit vectors. The vectors of one step are the start of the next."""
    total = tf.zeros(A.shape[1], A.dtype)
    for step in tf.unstack(A):
        _, r = tf.linalg.qr(step)
        total += tf.math.log(tf.abs(tf.linalg.diag_part(r)))
    return total / (dt * len(A))


@exponents.mistake("per_step")
def _(A, dt):
    """This is the growth for each *step*. An exponent is for each second."""
    q, total = tf.eye(A.shape[1], dtype=A.dtype), tf.zeros(A.shape[1], A.dtype)
    for step in tf.unstack(A):
        q, r = tf.linalg.qr(step @ q)
        total += tf.math.log(tf.abs(tf.linalg.diag_part(r)))
    return total / len(A)


@exponents.mistake("lengths_alone")
def _(A, dt):
    """Each vector was made of length 1, and nothing keeps them apart: all turn to the direction of the largest
    stretch."""
    q, total = tf.eye(A.shape[1], dtype=A.dtype), tf.zeros(A.shape[1], A.dtype)
    for step in tf.unstack(A):
        q = step @ q
        lengths = tf.norm(q, axis=0)
        q, total = q / lengths, total + tf.math.log(lengths)
    return total / (dt * len(A))


@exponents.wrong("shape")
def _(A, dt):
    v, total = tf.one_hot(0, A.shape[1], dtype=A.dtype), tf.zeros([], A.dtype)
    for step in tf.unstack(A):
        v = tf.linalg.matvec(step, v)
        total += tf.math.log(tf.norm(v))
        v = v / tf.norm(v)
    return total / (dt * len(A))
