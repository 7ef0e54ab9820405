"""Exercises and predictions of the notebook "The derivative of a solution"."""

from tapelab.exercises import Exercise, Function, Mistake, Prediction, Value
from tapelab.exercises.checks import without_a_tape

import numpy as np
import tensorflow as tf

nearer = Prediction(
    "derivative_of_a_solution.nearer",
    options=("unrolling", "the equation", "both alike"),
    remarks=(
        (
            "unrolling",
            "It is the exact derivative of what was computed. But what was computed on the way was not yet the "
            "solution.",
        ),
        ("both alike", "They use the same work. They use it at different places: which $z$ does each Jacobian see?"),
    ),
)

one_step = Prediction(
    "derivative_of_a_solution.one_step",
    options=("about 0.1", "about 0.5", "about 0.9", "about 1"),
    remarks=(
        ("about 0.1", "The series starts with its longest term. The others are too short to turn the sum far."),
        ("about 0.5", "About a half is the relative *error*. The angle is smaller than that suggests."),
        ("about 1", "One term of a long series is not the sum. The terms that are missing turn it a little."),
    ),
)

worst = Prediction(
    "derivative_of_a_solution.worst",
    remarks=(
        (12, "That is what chance gives: 120 of 300 are wrong."),
        (20, "Better than chance. It is better still."),
        (25, "Close. At the very end of the ranking there are hardly any right labels left."),
    ),
)

by_loss = Prediction(
    "derivative_of_a_solution.by_loss",
    options=("about 0.5", "about 0.7", "about 0.95"),
    remarks=(
        ("about 0.5", "It is better than a coin: more images keep their label than lose it."),
        (
            "about 0.95",
            "If the wrong labels were drawn at random, yes. Here they have a system, and a system can be learnt.",
        ),
    ),
)


def _by_the_whole_jacobian(f, z, theta, upstream):
    """All of dz/dtheta, one column for each parameter; then the product."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, theta])
        again = f(z, theta)
    inverse = tf.linalg.inv(tf.eye(len(z), dtype=z.dtype) - tape.jacobian(again, z))
    return tf.linalg.matvec(inverse @ tape.jacobian(again, theta), upstream, transpose_a=True)


def _equations(random, dtype):
    """Three equations z = f(z, theta), each with a solution that repeating `f` leads away from."""
    trials = []
    for n, parameters in ((3, 3), (4, 2), (2, 2)):
        matrix = random.normal(size=(n, n))
        matrix = 4.0 * matrix / np.linalg.norm(matrix, 2)
        z, mix = random.uniform(-0.5, 0.5, size=n), random.normal(size=(n, parameters))
        theta = random.uniform(0.3, 0.9, size=parameters)
        rest = np.arctanh(z) - matrix @ z - mix @ theta**2
        matrix, z, mix, theta, rest = (tf.constant(part, dtype) for part in (matrix, z, mix, theta, rest))

        def f(z, theta, matrix=matrix, mix=mix, rest=rest):
            return tf.tanh(tf.linalg.matvec(matrix, z) + tf.linalg.matvec(mix, theta**2) + rest)

        trials.append((f, z, theta, tf.constant(random.normal(size=n), dtype)))
    return trials


any_equation = Exercise(
    title="Any equation",
    minutes=10,
    hints=(
        "One application of `f` at the solution, on a tape, has everything: the Jacobian by `z`, and the way back to "
        "`theta`. The tape is asked twice.",
        r"Which system does $u$ solve? Mind the transpose: `tf.linalg.solve` has an argument for it. Its right-hand "
        "side is a matrix, here of one column, and `tf.eye` needs the `dtype` of `z`.",
        "`upstream` is $v$. With $u$ in its place, the last step is one `tape.gradient` with `output_gradients`.",
    ),
    checker=Function(reference=_by_the_whole_jacobian, inputs=_equations, upstream=3),
)


@any_equation.starter("vjp_of_solution")
def _(f, z, theta, upstream):
    return ...  # of the shape of theta


@any_equation.right
def _(f, z, theta, upstream):
    r"""One application is recorded, at the solution. The adjoint equation $(I - J)^\top u = v$ takes the upstream
    gradient through the search that nobody recorded; the tape takes $u$ on to the parameters."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, theta])
        again = f(z, theta)
    system = tf.eye(len(z), dtype=z.dtype) - tape.jacobian(again, z)
    u = tf.linalg.solve(system, upstream[:, tf.newaxis], adjoint=True)[:, 0]
    return tape.gradient(again, theta, output_gradients=u)


@any_equation.mistake("not_transposed")
def _(f, z, theta, upstream):
    """You solved with $I - J$. An upstream gradient travels backwards: which matrix takes it there?"""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, theta])
        again = f(z, theta)
    system = tf.eye(len(z), dtype=z.dtype) - tape.jacobian(again, z)
    u = tf.linalg.solve(system, upstream[:, tf.newaxis])[:, 0]
    return tape.gradient(again, theta, output_gradients=u)


@any_equation.mistake("one_step")
def _(f, z, theta, upstream):
    """This is the one-step gradient. `theta` also moves the `z` that goes *into* `f`."""
    with tf.GradientTape() as tape:
        tape.watch(theta)
        again = f(z, theta)
    return tape.gradient(again, theta, output_gradients=upstream)


@any_equation.mistake("two_terms")
def _(f, z, theta, upstream):
    """These are the first two terms of the Neumann series. The sum goes on."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, theta])
        again = f(z, theta)
    u = upstream + tape.gradient(again, z, output_gradients=upstream)
    return tape.gradient(again, theta, output_gradients=u)


@any_equation.mistake("series")
def _(f, z, theta, upstream):
    """The rounds for $u$ run away here: $J$ has an eigenvalue beyond 1. The equation has a solution all the same:
    solve it."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, theta])
        again = f(z, theta)
    u = upstream
    for _ in range(20):
        u = upstream + tape.gradient(again, z, output_gradients=u)
    return tape.gradient(again, theta, output_gradients=u)


@any_equation.wrong("upstream")
def _(f, z, theta, upstream):
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([z, theta])
        again = f(z, theta)
    system = tf.eye(len(z), dtype=z.dtype) - tape.jacobian(again, z)
    u = tf.linalg.solve(system, tf.ones_like(upstream)[:, tf.newaxis], adjoint=True)[:, 0]
    return tape.gradient(again, theta, output_gradients=u)


def _slope_of_the_minimum(x, y, new_x, new_y, decay):
    """How the minimum moves, and from it how the new loss does."""
    inverse = tf.linalg.inv(tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype))
    w = inverse @ tf.transpose(x) @ y[:, tf.newaxis]
    return tf.reduce_sum((new_x @ w - new_y[:, tf.newaxis]) * (new_x @ -inverse @ w))


def _regressions(random, dtype):
    """Data to fit and data to judge by, and a penalty."""
    trials = []
    for rows, columns, decay in ((6, 2, 0.5), (8, 3, 2.0), (5, 4, 1.0)):
        given = (random.normal(size=size) for size in ((rows, columns), rows, (4, columns), 4))
        trials.append((*(tf.constant(part, dtype) for part in given), tf.constant(decay, dtype)))
    return trials


penalty = Exercise(
    title="How strong should a penalty be?",
    minutes=12,
    beyond=True,
    hints=(
        r"What are $H$ and the mixed derivative $\partial_\lambda \nabla_w \ell$? Both fit on one line: differentiate "
        r"$\nabla_w \ell = X^\top(Xw - y) + \lambda w$.",
        "`w` is the solution of a linear system with $H$, and so is `u`. The right-hand side of `u` is the gradient "
        "of the *new* loss by `w`.",
        r"The last step is $-u^\top \partial_\lambda \nabla_w \ell$, a scalar.",
    ),
    checker=Function(reference=_slope_of_the_minimum, inputs=_regressions, observe=without_a_tape),
)


@penalty.starter("penalty_slope")
def _(x, y, new_x, new_y, decay):
    return ...  # a scalar


@penalty.right
def _(x, y, new_x, new_y, decay):
    r"""$H = X^\top X + \lambda I$, and the mixed derivative of $X^\top(Xw - y) + \lambda w$ by $\lambda$ is $w$ itself.
    So the slope is $-u^\top w$ with $Hu = v$: a step towards the best penalty, without a grid."""
    matrix = tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype)
    w = tf.linalg.solve(matrix, tf.transpose(x) @ y[:, tf.newaxis])
    v = tf.transpose(new_x) @ (new_x @ w - new_y[:, tf.newaxis])
    u = tf.linalg.solve(matrix, v)
    return -tf.reduce_sum(u * w)


@penalty.mistake("value")
def _(x, y, new_x, new_y, decay):
    """This is the derivative of the smallest *training* loss (the envelope theorem: there the motion of $w$ does not
    count). You want to know what the motion of $w$ does to the other loss."""
    matrix = tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype)
    w = tf.linalg.solve(matrix, tf.transpose(x) @ y[:, tf.newaxis])
    return tf.reduce_sum(w * w) / 2


@penalty.mistake("unsolved")
def _(x, y, new_x, new_y, decay):
    """The solve is missing: this is what one step of gradient descent on $w$ would do."""
    matrix = tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype)
    w = tf.linalg.solve(matrix, tf.transpose(x) @ y[:, tf.newaxis])
    v = tf.transpose(new_x) @ (new_x @ w - new_y[:, tf.newaxis])
    return -tf.reduce_sum(v * w)


@penalty.mistake("training_data")
def _(x, y, new_x, new_y, decay):
    """The loss that you differentiate is the one on the data that $w$ was fitted to. The new data do not enter."""
    matrix = tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype)
    w = tf.linalg.solve(matrix, tf.transpose(x) @ y[:, tf.newaxis])
    v = tf.transpose(x) @ (x @ w - y[:, tf.newaxis])
    return -tf.reduce_sum(tf.linalg.solve(matrix, v) * w)


@penalty.wrong("tape")
def _(x, y, new_x, new_y, decay):
    with tf.GradientTape() as tape:
        tape.watch(decay)
        matrix = tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype)
        w = tf.linalg.solve(matrix, tf.transpose(x) @ y[:, tf.newaxis])[:, 0]
        value = tf.reduce_sum((tf.linalg.matvec(new_x, w) - new_y) ** 2) / 2
    return tape.gradient(value, decay)


@penalty.wrong("sign")
def _(x, y, new_x, new_y, decay):
    matrix = tf.transpose(x) @ x + decay * tf.eye(x.shape[1], dtype=x.dtype)
    w = tf.linalg.solve(matrix, tf.transpose(x) @ y[:, tf.newaxis])
    v = tf.transpose(new_x) @ (new_x @ w - new_y[:, tf.newaxis])
    return tf.reduce_sum(tf.linalg.solve(matrix, v) * w)


solves = Exercise(
    title="Count the solves",
    minutes=5,
    hints=(
        r"$\mathrm dw/\mathrm ds = -H^{-1} M$ has 650 rows and 300 columns, with $M$ the mixed derivative. From which "
        "side do you multiply?",
        "From the left comes one vector for each loss; from the right, one for each weight that is changed.",
        "For the whole matrix you may start from either side. Take the shorter one.",
    ),
    checker=Value(
        {
            "one loss by all 300 weights": 1,
            "three losses by all 300 weights": 3,
            "all 650 parameters by one of the 300 weights": 1,
            "all 650 parameters by all 300 weights": 300,
        },
        rtol=0.0,  # whole numbers
        mistakes=(
            Mistake(
                "for_each_weight",
                "A loss asks for one vector $u$, and $u$ does not depend on which of the weights is changed.",
                {"one loss by all 300 weights": 300},
            ),
            Mistake(
                "for_each_parameter",
                "One weight that is changed gives one column of the mixed derivative. Solve with that column: all "
                "parameters come at once.",
                {"all 650 parameters by one of the 300 weights": 650},
            ),
            Mistake(
                "longer_side",
                "650 solves would do, one for each row. Is the matrix shorter on the other side?",
                {"all 650 parameters by all 300 weights": 650},
            ),
            Mistake(
                "one_for_all",
                "One solve gives one row or one column. This is the whole matrix, 650 by 300.",
                {"all 650 parameters by all 300 weights": 1},
            ),
        ),
        wrong=(
            (
                "keys",
                {"one loss by all 300 weights": 1},
            ),
        ),
    ),
)


@solves.starter()
def _():
    solves = {
        "one loss by all 300 weights": ...,
        "three losses by all 300 weights": ...,
        "all 650 parameters by one of the 300 weights": ...,
        "all 650 parameters by all 300 weights": ...,
    }

    return solves


@solves.right
def _():
    """A solve for each vector that is multiplied from the left, or for each column from the right, whichever are
    fewer. It is reverse and forward mode once more: few losses, go backwards; few parameters, go forwards."""
    solves = {
        "one loss by all 300 weights": 1,
        "three losses by all 300 weights": 3,
        "all 650 parameters by one of the 300 weights": 1,
        "all 650 parameters by all 300 weights": 300,
    }

    return solves
