"""Exercises and predictions of the notebook "Influence functions"."""

from tapelab.exercises import Exercise, Function, Prediction

import numpy as np
import tensorflow as tf

angle = Prediction(
    "influence_functions.angle",
    options=("about 0°", "about 40°", "about 80°"),
    remarks=(
        ("about 0°", "That would need a Hessian that is a multiple of the identity: a round valley."),
        (
            "about 40°",
            "The valley is narrower than that: slope and height can stand in for each other.",
        ),
    ),
)

agreement = Prediction(
    "influence_functions.agreement",
    options=("about 0.5", "about 0.9", "above 0.99"),
    remarks=(
        ("about 0.5", "That is a fair guess for a first-order formula. One image in 500 is a small change, though."),
        ("about 0.9", "It does better: one image in 500 hardly changes the Hessian."),
    ),
)

without = Prediction(
    "influence_functions.without",
    options=("about 0", "about 0.5", "about 0.95"),
    remarks=(
        ("about 0", "Gradients that agree do say something. They leave out how far each direction gives way."),
        ("about 0.95", "That would need directions that all give way alike. Think of the valley in section 1."),
    ),
)

mislabelled = Prediction(
    "influence_functions.mislabelled",
    options=("about 5", "about 12", "about 22"),
    remarks=(
        ("about 5", "That is four times as many as by chance. A wrong label does more harm than that."),
        ("about 12", "Half would be plausible, if odd drawings did as much harm as wrong labels. Here they did less."),
    ),
)

a_tenth = Prediction(
    "influence_functions.a_tenth",
    options=("as before", "a third or more too small", "too large"),
    remarks=(
        ("as before", "The weak decay holds the weights less, so a single example holds them more."),
        ("too large", "Without the example the valley is softer, not stiffer. What does that do to the motion?"),
    ),
)


def _minimum(x, y, decay):
    """The minimum of logistic regression with a penalty, by Newton's method."""
    count, n = x.shape
    w = np.zeros(n)
    for _ in range(12):
        p = 1 / (1 + np.exp(y * (x @ w)))  # of the other label
        g = decay * w - x.T @ (y * p) / count
        w -= np.linalg.solve((x.T * p * (1 - p)) @ x / count + decay * np.eye(n), g)
    return w


def _logistic(x, y):
    """From weights to the loss of each row of x, whose labels y are 1 or -1."""
    return lambda w: tf.nn.softplus(-tf.cast(y, w.dtype) * tf.linalg.matvec(tf.cast(x, w.dtype), w))


def _models(random, dtype):
    """Logistic regressions at their minimum: losses, the test loss, the decay, and the weights."""
    trials = []
    for count, n, decay in ((6, 2, 0.1), (9, 3, 0.3), (5, 4, 0.2)):
        x, x_test = random.normal(size=(count, n)), random.normal(size=(4, n))
        y, y_test = random.choice([-1.0, 1.0], size=count), random.choice([-1.0, 1.0], size=4)
        losses, on_test = _logistic(x, y), _logistic(x_test, y_test)
        w = tf.constant(_minimum(x, y, decay), dtype)
        trials.append((losses, lambda w, on_test=on_test: tf.reduce_mean(on_test(w)), decay, w))
    return trials


def _hessian(losses, decay, w):
    """The Hessian of the objective, row by row."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(w)
        with tf.GradientTape() as inner:
            inner.watch(w)
            value = tf.reduce_mean(losses(w)) + decay / 2 * tf.reduce_sum(w**2)
        parts = tf.unstack(inner.gradient(value, w))
    return tf.stack([outer.gradient(part, w) for part in parts])


def _influences(losses, test_loss, decay, w):
    """Each example alone: how its removal moves the minimum, and what that does to the test loss."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each, on_test = tf.unstack(losses(w)), test_loss(w)
    inverse, g_test = tf.linalg.inv(_hessian(losses, decay, w)), tape.gradient(on_test, w)
    motions = [tf.linalg.matvec(inverse, tape.gradient(loss, w)) / len(each) for loss in each]
    return tf.stack([tf.tensordot(g_test, motion, 1) for motion in motions])


influences = Exercise(
    title="All influences from one solve",
    minutes=8,
    hints=(
        "Three derivatives are needed at `w`: the gradient of each example's loss, the Hessian of what was minimised, "
        "and the gradient of the test loss. Which of the two gradients goes into the one linear system?",
        "`tape.jacobian(losses(w), w)` has the examples' gradients as rows. The Hessian is that of "
        "`tf.reduce_mean(losses(w)) + decay / 2 * tf.reduce_sum(w**2)`.",
        r"Solve $Hs = g_T$ once; the answer is $G s / N$. Leaving out is a change of the weight by $-1$, and $-1$ "
        r"times $-H^{-1}g_i/N$ has which sign?",
    ),
    checker=Function(reference=_influences, inputs=_models),
    seconds=30.0,
)


@influences.starter("influences")
def _(losses, test_loss, decay, w):
    return ...  # one number for each example


@influences.right
def _(losses, test_loss, decay, w):
    r"""The system is solved for the one test gradient, and the examples' gradients only meet its solution. The Hessian
    is that of the whole objective, because it is the objective's gradient that stays zero while the minimum moves. The
    sign is plus: an example that agrees with the test gradient was lowering the test loss, and is missed."""
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(w)
        with tf.GradientTape(persistent=True) as inner:
            inner.watch(w)
            each = losses(w)
            value = tf.reduce_mean(each) + decay / 2 * tf.reduce_sum(w**2)
            on_test = test_loss(w)
        g = inner.gradient(value, w)
    s = tf.linalg.solve(outer.jacobian(g, w), inner.gradient(on_test, w)[:, None])[:, 0]
    return tf.linalg.matvec(inner.jacobian(each, w), s) / len(each)


@influences.mistake("not_divided")
def _(losses, test_loss, decay, w):
    """Too large by a factor. The objective has the *mean* of the losses: which part of it is one example?"""
    return _influences(losses, test_loss, decay, w) * len(losses(w))


@influences.mistake("upweighted")
def _(losses, test_loss, decay, w):
    """This is the effect of *more* weight on each example. You want that of leaving it out."""
    return -_influences(losses, test_loss, decay, w)


@influences.mistake("no_penalty")
def _(losses, test_loss, decay, w):
    """The Hessian is that of the losses alone. The gradient that stays zero is that of everything that was
    minimised."""
    return _influences(losses, test_loss, 0.0, w)


@influences.mistake("no_hessian")
def _(losses, test_loss, decay, w):
    """These are the inner products of the gradients. They do not say how far the minimum gives way: what stands between
    a pull and a motion?"""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each, on_test = losses(w), test_loss(w)
    return tf.linalg.matvec(tape.jacobian(each, w), tape.gradient(on_test, w)) / len(each)


@influences.mistake("multiplied")
def _(losses, test_loss, decay, w):
    """You multiplied by the Hessian. The motion $m$ has to satisfy $Hm = g_i / N$."""
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(w)
        each, on_test = losses(w), test_loss(w)
    along = tf.linalg.matvec(_hessian(losses, decay, w), tape.gradient(on_test, w))
    return tf.linalg.matvec(tape.jacobian(each, w), along) / len(each)


@influences.mistake("own_penalty")
def _(losses, test_loss, decay, w):
    """Each example took a share of the penalty with it. The penalty belongs to no example, and stays when one
    leaves."""
    return _influences(lambda w: losses(w) + decay / 2 * tf.reduce_sum(w**2), test_loss, 0.0, w)


@influences.wrong("summed")
def _(losses, test_loss, decay, w):
    return tf.reduce_sum(_influences(losses, test_loss, decay, w))


def _errors_left_out(x, y, decay):
    """Trained again without each row."""
    count, n = x.shape
    errors = []
    for i in range(count):
        keep = [j for j in range(count) if j != i]
        others, values = tf.gather(x, keep), tf.gather(y, keep)
        matrix = tf.transpose(others) @ others / count + decay * tf.eye(n, dtype=x.dtype)
        w = tf.linalg.solve(matrix, tf.transpose(others) @ values[:, None] / count)[:, 0]
        errors.append(tf.tensordot(x[i], w, 1) - y[i])
    return tf.stack(errors)


def _regressions(random, dtype):
    return [
        (tf.constant(random.normal(size=(count, n)), dtype), tf.constant(random.normal(size=count), dtype), decay)
        for count, n, decay in ((5, 2, 0.1), (8, 3, 0.02), (4, 4, 0.5))
    ]


left_out = Exercise(
    title="The error on the example left out",
    minutes=12,
    hints=(
        r"Take the corrected motion of section 5, $w_{-i} - w = H^{-1} g_i / (N (1 - h_i))$. What is $g_i$ here, and "
        "what does the motion do to the prediction for $x_i$?",
        r"$g_i = x_i e_i$ with the error $e_i = x_i^\top w - y_i$ of the full model. So the new error is $e_i + h_i "
        r"e_i / (1 - h_i)$. Simplify it.",
        r"All leverages at once, $h_i = x_i^\top H^{-1} x_i / N$: solve for the matrix $H^{-1}$ `x`ᵀ, transpose it, "
        r"multiply it by `x` element by element, sum each row, and divide by $N$.",
    ),
    checker=Function(reference=_errors_left_out, inputs=_regressions),
    beyond=True,
)


@left_out.starter("errors_left_out")
def _(x, y, decay):
    return ...  # one error for each example


@left_out.right
def _(x, y, decay):
    r"""$e_i + h_i e_i / (1 - h_i) = e_i / (1 - h_i)$: the error of the full model, enlarged by the leverage. This is
    leave-one-out cross-validation without a second training; the sum of the squares is Allen's PRESS (1974)."""
    count, n = x.shape
    H = tf.transpose(x) @ x / count + decay * tf.eye(n, dtype=x.dtype)
    w = tf.linalg.solve(H, tf.transpose(x) @ y[:, None] / count)[:, 0]
    leverage = tf.reduce_sum(x * tf.transpose(tf.linalg.solve(H, tf.transpose(x))), axis=1) / count
    return (tf.linalg.matvec(x, w) - y) / (1 - leverage)


def _errors_and_leverage(x, y, decay):
    """The full model's errors, and each example's leverage."""
    count, n = x.shape
    H = tf.transpose(x) @ x / count + decay * tf.eye(n, dtype=x.dtype)
    w = tf.linalg.solve(H, tf.transpose(x) @ y[:, None] / count)[:, 0]
    leverage = tf.reduce_sum(x * tf.transpose(tf.linalg.solve(H, tf.transpose(x))), axis=1) / count
    return tf.linalg.matvec(x, w) - y, leverage


@left_out.mistake("training_errors")
def _(x, y, decay):
    """These are the errors of the model that has seen all examples. Each example pulled the model towards itself."""
    return _errors_and_leverage(x, y, decay)[0]


@left_out.mistake("first_order")
def _(x, y, decay):
    """This is the influence function's prediction, with the Hessian that still contains the example. It was to be
    exact: section 5 has the factor."""
    errors, leverage = _errors_and_leverage(x, y, decay)
    return errors * (1 + leverage)


@left_out.mistake("wrong_way")
def _(x, y, decay):
    """These errors are smaller than those of the full model. Does a model do better on what it has not seen?"""
    errors, leverage = _errors_and_leverage(x, y, decay)
    return errors * (1 - leverage)


@left_out.mistake("change")
def _(x, y, decay):
    """This is by how much the error *changes*. Add what it was before."""
    errors, leverage = _errors_and_leverage(x, y, decay)
    return errors * leverage / (1 - leverage)


@left_out.mistake("no_penalty")
def _(x, y, decay):
    """The leverage is that of least squares without weight decay. Which Hessian does this model have?"""
    errors, _ = _errors_and_leverage(x, y, decay)
    inverse = tf.linalg.inv(tf.transpose(x) @ x + 1e-6 * tf.eye(x.shape[1], dtype=x.dtype))
    return errors / (1 - tf.einsum("ni,ij,nj->n", x, inverse, x))


@left_out.wrong("sign")
def _(x, y, decay):
    errors, leverage = _errors_and_leverage(x, y, decay)
    return -errors / (1 - leverage)


def _inverse_product(losses, decay, w, v):
    return tf.linalg.solve(_hessian(losses, decay, w), v[:, None])[:, 0]


def _systems(random, dtype):
    """Logistic regressions, and a right-hand side for each."""
    trials = []
    for count, n, decay in ((6, 2, 0.1), (9, 4, 0.3), (12, 6, 0.05)):
        losses = _logistic(random.normal(size=(count, n)), random.choice([-1.0, 1.0], size=count))
        w, v = tf.constant(random.normal(size=(2, n)), dtype)
        trials.append((losses, decay, w, v))
    return trials


products = Exercise(
    title="The same from products",
    minutes=12,
    hints=(
        "Write `product(p)` first: two nested tapes, and `outer.gradient(g, w, output_gradients=p)`. Then the loop of "
        "section 6 around it.",
        "What is differentiated twice is `tf.reduce_mean(losses(w)) + decay / 2 * tf.reduce_sum(w**2)`. Then the "
        "penalty is in the product already.",
        "Stop when the norm of the residual is below `1e-5` times that of `v`. In exact arithmetic that takes $n$ "
        "rounds at most; leave a few more for rounding.",
    ),
    checker=Function(reference=_inverse_product, inputs=_systems),
    seconds=30.0,
)


@products.starter("inverse_product")
def _(losses, decay, w, v):
    return ...  # shape (n,)


@products.right
def _(losses, decay, w, v):
    """Conjugate gradients with a product from two tapes. The penalty keeps every curvature at `decay` or above (these
    losses are convex), so no direction needs Steihaug's rule, and the number of rounds stays small. For a model with
    millions of weights only `product` changes: it goes through the data in batches."""

    def product(p):
        with tf.GradientTape() as outer:
            outer.watch(w)
            with tf.GradientTape() as inner:
                inner.watch(w)
                value = tf.reduce_mean(losses(w)) + decay / 2 * tf.reduce_sum(w**2)
            g = inner.gradient(value, w)
        return outer.gradient(g, w, output_gradients=p)

    s, residual, p = tf.zeros_like(v), v, v
    for _ in range(len(v) + 10):
        if tf.norm(residual) < 1e-5 * tf.norm(v):
            break
        Hp, squared = product(p), tf.reduce_sum(residual**2)
        step = squared / tf.reduce_sum(p * Hp)
        s += step * p
        residual -= step * Hp
        p = residual + tf.reduce_sum(residual**2) / squared * p
    return s


def _rounds(losses, decay, w, v, tolerance):
    """Conjugate gradients, stopped at this residual."""
    H = _hessian(losses, decay, w)
    s, residual, p = tf.zeros_like(v), v, v
    for _ in range(len(v) + 10):
        if tf.norm(residual) < tolerance * tf.norm(v):
            break
        Hp, squared = tf.linalg.matvec(H, p), tf.reduce_sum(residual**2)
        step = squared / tf.reduce_sum(p * Hp)
        s += step * p
        residual -= step * Hp
        p = residual + tf.reduce_sum(residual**2) / squared * p
    return s


@products.mistake("no_penalty")
def _(losses, decay, w, v):
    """This solves with the Hessian of the losses alone. Where does the penalty come in?"""
    return _inverse_product(losses, 0.0, w, v)


@products.mistake("multiplied")
def _(losses, decay, w, v):
    """This is $Hv$. You want the vector that $H$ takes to $v$."""
    return tf.linalg.matvec(_hessian(losses, decay, w), v)


@products.mistake("one_round")
def _(losses, decay, w, v):
    """This is a multiple of `v`: one round of conjugate gradients. Go on until the residual is small."""
    return v * tf.tensordot(v, v, 1) / tf.tensordot(v, tf.linalg.matvec(_hessian(losses, decay, w), v), 1)


@products.mistake("loose")
def _(losses, decay, w, v):
    """Stopped too early: a residual of a tenth of `v` is left, and the softest directions are the last to arrive."""
    return _rounds(losses, decay, w, v, 0.1)


@products.wrong("sign")
def _(losses, decay, w, v):
    return -_inverse_product(losses, decay, w, v)


def _newton_motion(inverse, J, p, y, count):
    """With the Hessian that is left, of n unknowns."""
    A = tf.linalg.diag(p) - p[:, None] * p[None]
    without = tf.linalg.inv(inverse) - tf.transpose(J) @ A @ J / count
    return tf.linalg.solve(without, tf.linalg.matvec(J, p - y, transpose_a=True)[:, None])[:, 0] / count


def _examples_of_classes(random, dtype):
    """An inverse Hessian, the Jacobian of an example's logits, its probabilities and label, and a count."""
    trials = []
    for classes, n, count in ((3, 5, 4), (2, 4, 6), (4, 7, 5)):
        J, p = random.normal(size=(classes, n)), random.dirichlet(np.ones(classes))
        others = random.normal(size=(n, n))
        A = np.diag(p) - np.outer(p, p)
        H = others @ others.T / n + 0.5 * np.eye(n) + J.T @ A @ J / count  # the example's part is in it
        y = np.eye(classes)[random.integers(classes)]
        trials.append((*(tf.constant(part, dtype) for part in (np.linalg.inv(H), J, p, y)), count))
    return trials


second_step = Exercise(
    title="The second step",
    minutes=12,
    hints=(
        r"Sherman and Morrison's formula has one for matrices, Woodbury's. Multiply $H - J^\top A J / N$ by a "
        r"vector of the form $H^{-1} J^\top z$, and ask which $z$ makes the result $J^\top (p - y) / N$.",
        r"With $K = J H^{-1} J^\top / N$ that is $J^\top (I - A K)\, z$. So $c$ unknowns give $z$.",
        r"Solve $(I - AK)\, z = (p - y) / N$, and return $H^{-1} J^\top z$. For one logit that is $1/(1 - h)$.",
    ),
    checker=Function(reference=_newton_motion, inputs=_examples_of_classes),
    beyond=True,
)


@second_step.starter("newton_motion")
def _(inverse, J, p, y, count):
    return ...  # shape (n,)


@second_step.right
def _(inverse, J, p, y, count):
    r"""Woodbury's formula: the factor $1/(1 - h)$ of section 5 has become the matrix $(I - AK)^{-1}$. On the page's 500
    images, moved by this step and evaluated, the root mean square error is about half of what it was. What
    remains is that the loss is not quadratic: one Newton step does not reach the minimum."""
    A = tf.linalg.diag(p) - p[:, None] * p[None]
    K = J @ inverse @ tf.transpose(J) / count
    z = tf.linalg.solve(tf.eye(len(p), dtype=p.dtype) - A @ K, (p - y)[:, None]) / count
    return (inverse @ tf.transpose(J) @ z)[:, 0]


def _steps(inverse, J, p, y, count):
    """Woodbury's parts: A, K and the motion of first order."""
    A = tf.linalg.diag(p) - p[:, None] * p[None]
    return A, J @ inverse @ tf.transpose(J) / count, inverse @ tf.transpose(J) @ (p - y)[:, None] / count


@second_step.mistake("first_order")
def _(inverse, J, p, y, count):
    """This is the influence function's motion, with the Hessian that still contains the example."""
    return _steps(inverse, J, p, y, count)[2][:, 0]


@second_step.mistake("added")
def _(inverse, J, p, y, count):
    """The example's part of the Hessian is added here, and it goes away: without it the valley is softer."""
    A, K, _ = _steps(inverse, J, p, y, count)
    z = tf.linalg.solve(tf.eye(len(p), dtype=p.dtype) + A @ K, (p - y)[:, None]) / count
    return (inverse @ tf.transpose(J) @ z)[:, 0]


@second_step.mistake("probabilities_alone")
def _(inverse, J, p, y, count):
    """The curvature of the cross-entropy is `diag(p)` less the outer product of `p` with itself."""
    _, K, _ = _steps(inverse, J, p, y, count)
    z = tf.linalg.solve(tf.eye(len(p), dtype=p.dtype) - tf.linalg.diag(p) @ K, (p - y)[:, None]) / count
    return (inverse @ tf.transpose(J) @ z)[:, 0]


@second_step.mistake("other_order")
def _(inverse, J, p, y, count):
    """$AK$ and $KA$ are not the same matrix. Multiply $H - J^\\top A J / N$ by $H^{-1} J^\\top z$ once more."""
    A, K, _ = _steps(inverse, J, p, y, count)
    z = tf.linalg.solve(tf.eye(len(p), dtype=p.dtype) - K @ A, (p - y)[:, None]) / count
    return (inverse @ tf.transpose(J) @ z)[:, 0]


@second_step.mistake("no_count")
def _(inverse, J, p, y, count):
    """`count` times too long: the objective is a mean, so the gradient that is left over is $g / N$."""
    A, K, _ = _steps(inverse, J, p, y, count)
    z = tf.linalg.solve(tf.eye(len(p), dtype=p.dtype) - A @ K, (p - y)[:, None])
    return (inverse @ tf.transpose(J) @ z)[:, 0]


@second_step.wrong("sign")
def _(inverse, J, p, y, count):
    A, K, _ = _steps(inverse, J, p, y, count)
    z = tf.linalg.solve(tf.eye(len(p), dtype=p.dtype) - A @ K, (y - p)[:, None]) / count
    return (inverse @ tf.transpose(J) @ z)[:, 0]
