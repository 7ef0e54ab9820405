"""Newton's methods: closed forms, negative curvature, what their ends are; interrupts of all methods."""

import re
import sys
from itertools import pairwise

from tapelab import data
from tapelab.derivatives import NotFiniteError, SingularMatrixError
from tapelab.optimize import (
    Objective,
    conjugate_gradient_direction,
    levenberg_marquardt,
    newton,
    newton_cg,
)
from tapelab.optimize.directions import newton_direction
from tapelab.optimize.standing import PRODUCTS
from tapelab.process.session import bar as progress
from tapelab.runtime import start, tf

import numpy as np
import pytest

MATRIX = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, -1.0], [0.0, -1.0, 2.0]])
VECTOR = np.array([1.0, -2.0, 0.5])
SADDLE = np.diag([2.0, -1.0, 3.0])


def quadratic(x):
    return 0.5 * tf.tensordot(x, tf.linalg.matvec(MATRIX, x), 1) - tf.tensordot(VECTOR, x, 1)


def test_direction_solves_the_system():
    direction, damping, negative = newton_direction(VECTOR, MATRIX)
    np.testing.assert_allclose(MATRIX @ direction.numpy(), -VECTOR, atol=1e-12)
    assert (damping, negative) == (0.0, False)
    direction, damping, _ = newton_direction(VECTOR, MATRIX, damping=2.0)
    np.testing.assert_allclose((MATRIX + 2 * np.eye(3)) @ direction.numpy(), -VECTOR, atol=1e-12)
    assert damping == 2.0


def test_damping_rises_until_the_direction_descends():
    climbing = -np.linalg.solve(SADDLE, [0.1, 1.0, 0.1])
    assert climbing @ [0.1, 1.0, 0.1] > 0
    direction, damping, negative = newton_direction(np.array([0.1, 1.0, 0.1]), SADDLE)
    assert negative
    assert 1.0 < damping <= 2.0
    assert np.dot(direction, [0.1, 1.0, 0.1]) < 0


def test_conjugate_gradients_solve_the_system_in_n_products():
    direction, products, negative = conjugate_gradient_direction(
        tf.constant(VECTOR), lambda v: tf.linalg.matvec(MATRIX, v), damping=0.5, tolerance=1e-12
    )
    np.testing.assert_allclose((MATRIX + 0.5 * np.eye(3)) @ direction.numpy(), -VECTOR, atol=1e-10)
    assert products == 3
    assert not negative


@pytest.mark.parametrize(("gradient", "products"), [([0.1, 1.0, 0.1], 1), ([1.0, 0.5, 1.0], 2)])
def test_conjugate_gradients_stop_at_negative_curvature_and_descend(gradient, products):
    direction, count, negative = conjugate_gradient_direction(
        tf.constant(gradient, tf.float64), lambda v: tf.linalg.matvec(SADDLE, v), tolerance=1e-12
    )
    assert negative
    assert count == products
    assert np.dot(direction, gradient) < 0


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_a_quadratic_takes_one_undamped_step(method):
    x = tf.Variable(np.zeros(3))
    options = {} if method is newton else {"iterations": 40}
    report = method(lambda: quadratic(x), wrt=x, damping=0.0, tolerance=1e-10, **options)
    np.testing.assert_allclose(x, np.linalg.solve(MATRIX, VECTOR), atol=1e-9)
    assert report.converged
    if method is newton:
        assert len(report.iterations) == 1
    assert report.value == pytest.approx(float(quadratic(x)))


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_rosenbrock_from_a_point_of_negative_curvature(method):
    x = tf.Variable([0.0, 1.0], dtype=tf.float64)  # the Hessian there has eigenvalues -398 and 200

    def rosenbrock(a):
        return (a - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2

    report = method(rosenbrock, tf.constant(1.0, tf.float64), wrt=[x], iterations=60, tolerance=1e-8)
    np.testing.assert_allclose(x, [1.0, 1.0], atol=1e-6)
    assert report.converged
    # Conjugate gradients stop before they meet it: their first direction is enough there.
    assert report.iterations[0].negative_curvature == (method is newton)
    values = [iteration.value for iteration in report.iterations]
    assert all(later < earlier for earlier, later in pairwise(values))
    assert all(iteration.slope < 0 for iteration in report.iterations)
    assert report.reason in str(report)


@tf.custom_gradient
def uphill(x):
    return 1.0 * x, lambda upstream: -upstream


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(
    ("method", "f"),
    [
        (newton, lambda y: tf.reduce_sum(y**2)),
        (newton_cg, lambda y: tf.reduce_sum(y**2)),
        (levenberg_marquardt, lambda y: y - 1),
    ],
)
def test_a_step_that_does_not_descend_is_refused(method, f):
    x = tf.Variable([0.5, -0.25], dtype=tf.float64)
    report = method(lambda: f(uphill(1.0 * x)), wrt=x)
    assert not report.converged
    assert ("refused" if method in (newton, newton_cg) else "SciPy stopped: ") in report.reason
    assert not any(one.step for one in report.iterations)
    np.testing.assert_array_equal(x, [0.5, -0.25])


def test_no_step_at_a_minimum():
    x = tf.Variable(np.linalg.solve(MATRIX, VECTOR))
    report = newton(lambda: quadratic(x), wrt=x)
    assert report.converged
    assert report.iterations == []


def rosenbrock(x):
    return lambda: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def rosenbrock_residuals(x):
    return lambda: tf.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("moment", ["in the callback", "in a trial step"])
@pytest.mark.parametrize("method", [newton, newton_cg, levenberg_marquardt])
def test_after_an_interrupt_the_variables_hold_the_best_point(method, moment):
    x, best, raised = tf.Variable([-1.2, 1.0], dtype=tf.float64), [], []
    of = rosenbrock_residuals if method is levenberg_marquardt else rosenbrock

    def f():
        if moment == "in a trial step" and len(best) == 3 and not np.array_equal(x, best[-1]) and not raised:
            raised.append(True)
            raise KeyboardInterrupt
        return of(x)()

    def callback(iteration):
        best.append(x.numpy())
        if moment == "in the callback" and len(best) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        method(Objective(f, wrt=x, compile="eager"), callback=callback)
    assert len(best) == 3
    np.testing.assert_array_equal(x, best[-1])
    assert float(rosenbrock(x)()) < 24  # it began at 24.2


@pytest.mark.dear
@pytest.mark.parametrize("method", [newton, levenberg_marquardt])
def test_a_bar_shows_the_progress_where_a_person_watches(method, monkeypatch):
    bars, x = [], tf.Variable([-1.2, 1.0], dtype=tf.float64)
    monkeypatch.setattr("tqdm.auto.tqdm", lambda **options: bars.append(Bar(options)) or bars[-1])
    f = (rosenbrock_residuals if method is levenberg_marquardt else rosenbrock)(x)
    for attended in (False, True):
        monkeypatch.setattr(progress, "attended", lambda attended=attended: attended)
        x.assign([-1.2, 1.0])
        found = method(f, wrt=x, iterations=2)
    assert [(bar.options["total"], bar.n, bar.closed) for bar in bars] == [(2, len(found.iterations), True)]
    method(f, wrt=x, iterations=200)  # more than it takes: the bar is full in the end, or tqdm would leave it there
    assert bars[1].total == bars[1].n < bars[1].options["total"] == 200
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)  # it is not installed
    method(f, wrt=x, iterations=2)
    assert len(bars) == 2


METHODS = (newton, newton_cg, levenberg_marquardt)


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("method", METHODS)
def test_a_held_objective_is_compiled_once(method):
    calls, w, squares = [], [tf.Variable(np.zeros(2))], method is levenberg_marquardt

    def f(target):
        calls.append(tf.executing_eagerly())
        return w[0] - target if squares else tf.reduce_sum((w[0] - target) ** 2)

    objective = Objective(f, wrt=w)
    w.append("what the list holds later is not differentiated")
    traces = []
    for target in ([1.0, 2.0], [3.0, -1.0], [0.5, 0.0]):
        report = method(objective, tf.constant(target, tf.float64))
        np.testing.assert_allclose(w[0], target, atol=1e-6)
        assert report.converged
        traces.append(calls.count(False))
    assert traces[0] > 0
    assert traces == [traces[0]] * 3
    w.pop()
    method(f, tf.constant([1.0, 2.0], tf.float64), wrt=w)  # held by nobody, and traced anew
    assert calls.count(False) > traces[0]


class Bar:
    """What stands in for tqdm's bar."""

    def __init__(self, options):
        self.options, self.total, self.n, self.closed = options, options["total"], 0, False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.closed = True

    def set_postfix(self, values, refresh):
        assert {"loss", "gradient"} <= values.keys()

    def update(self):
        self.n += 1


@pytest.fixture(scope="module")
def digits():
    start(0)
    images = data.load("digits")
    x = tf.reshape(images.x_train[:300], [300, 64])[:, 10:54:4]
    model = tf.keras.Sequential([tf.keras.Input((11,)), tf.keras.layers.Dense(4, "tanh"), tf.keras.layers.Dense(10)])
    cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def loss(x, y):
        penalty = tf.add_n([tf.reduce_sum(variable.value**2) for variable in model.trainable_variables])
        return cross_entropy(y, model(x)) + 1e-3 * penalty

    return loss, model, x, tf.constant(images.y_train[:300])


@pytest.mark.thorough
@pytest.mark.parametrize(("method", "iterations"), [(newton, 20), (newton_cg, 25)])
def test_newton_trains_a_classifier(digits, method, iterations):
    loss, model, x, y = digits
    start(0)
    for variable in model.trainable_variables:
        variable.assign(tf.random.normal(variable.shape, stddev=0.3))
    before = float(loss(x, y))
    report = method(loss, x, y, wrt=model.trainable_variables, iterations=iterations, tolerance=1e-4)
    assert report.value == pytest.approx(float(loss(x, y)), rel=1e-5)
    assert report.value < 0.5 * before


# What a point of small gradient is.

PLACES = {
    "minimum": (lambda x: tf.reduce_sum((x - 1) ** 2 * [1.0, 2.0, 3.0]), [0.0, 0.0, 0.0], "minimum", 2.0),
    "minimum at the start": (lambda x: tf.reduce_sum(x**2), [0.0, 0.0, 0.0], "minimum", 2.0),
    "saddle": (lambda x: x[0] ** 2 - x[1] ** 2 + x[2] ** 2, [0.0, 0.0, 0.0], "no minimum", -2.0),
    "maximum": (lambda x: -tf.reduce_sum(x**2 * [1.0, 2.0, 3.0]), [0.0, 0.0, 0.0], "no minimum", -6.0),
    "flat minimum": (lambda x: x[0] ** 2 + x[1] ** 4 + x[2] ** 2, [0.0, 0.0, 0.0], "flat", 0.0),
    "flat saddle": (lambda x: tf.reduce_sum(x**3), [0.0, 0.0, 0.0], "flat", 0.0),
    "valley": (lambda x: (tf.reduce_sum(x) - 1) ** 2, [0.0, 0.0, 0.0], "flat", 0.0),
    "constant": (lambda x: tf.reduce_sum(0 * x), [0.0, 0.0, 0.0], "flat", 0.0),
    "infinite elsewhere": (
        lambda x: tf.reduce_sum(x**2) + tf.where(x[0] > 5, tf.constant(np.inf, tf.float64), 0.0),
        [1.0, 1.0, 1.0],
        "minimum",
        2.0,
    ),
}
SENTENCES = {
    "minimum": "a minimum: the Hessian's smallest eigenvalue is 2",
    "no minimum": "not a minimum: the Hessian's smallest eigenvalue is -[26], and along that direction the loss curves",
    "flat": "a flat place: the Hessian's smallest eigenvalue is .* zero but for rounding",
}


@pytest.mark.thorough(keep=5, dear=1)
@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_what_a_point_of_small_gradient_is(method, name):
    f, start_at, kind, smallest = PLACES[name]
    x = tf.Variable(start_at, dtype=tf.float64)
    report = method(lambda: f(x), wrt=x, iterations=50)
    assert report.converged
    assert report.reason == "the gradient is within the tolerance of 1e-05"
    assert (report.standing.kind, report.standing.complete) == (kind, True)
    np.testing.assert_allclose(report.standing.smallest, smallest, atol=1e-4)
    assert re.match(SENTENCES[kind], report.stands)
    assert str(report).endswith(report.stands)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_one_downward_direction_among_a_hundred(method):
    """Products alone prove a saddle where they find one; they prove no minimum where they do not see all directions."""
    factors = np.append(np.arange(1.0, 100), -0.01)
    x = tf.Variable(np.zeros(100))
    report = method(lambda: tf.reduce_sum(x**2 * factors), wrt=x)
    assert report.standing.kind == "no minimum"
    assert -0.02 - 1e-12 <= report.standing.smallest < 0
    factors = np.arange(1.0, 101)
    report = method(lambda: tf.reduce_sum(x**2 * factors), wrt=x)
    if method is newton:
        assert (report.standing.kind, report.standing.products) == ("minimum", 0)
        return
    assert (report.standing.kind, report.standing.products) == ("unknown", PRODUCTS)
    assert 2 <= report.standing.smallest < 10
    assert "perhaps a minimum: in 20 products, the smallest curvature found is" in str(report)
    assert method(lambda: tf.reduce_sum(x**2 * factors), wrt=x, probes=0).standing is None
    assert method(lambda: tf.reduce_sum(x**2 * factors), wrt=x, probes=100).standing.kind == "minimum"


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_a_gradient_that_is_small_in_the_losss_units_is_no_minimum(method, dtype):
    """The minimum is at 3, and a step from 1 to it is not small, whatever the loss is counted in."""
    x = tf.Variable([1.0, 1.0], dtype=dtype)
    for beside in (0, 1000):
        found = method(lambda beside=beside: beside + 1e-9 * tf.reduce_sum((x - 3) ** 2), wrt=x)
        assert found.converged
        assert found.standing.kind == "distant"
        assert "no stationary point yet" in str(found)
        assert "Newton's step from here is 2 times as long" in found.stands
    # In other units of the parameters it is the value that tells.
    units = tf.constant([1.0, 1e-4], dtype)
    found = method(lambda: 1e-9 * tf.reduce_sum((x * units - [1.0, 3e-4]) ** 2 / units**2), wrt=x)
    assert found.standing.kind == "distant"
    # At the minimum it is one, and a value of zero there does not matter.
    found = method(lambda: 1e-9 * tf.reduce_sum((x - 1) ** 2), wrt=x)
    x.assign([1 + 1e-7, 1])
    again = method(lambda: tf.reduce_sum((x - 1) ** 2), wrt=x)
    assert found.standing.kind == again.standing.kind == "minimum"


def test_a_step_to_a_point_without_a_gradient_is_told():
    """The full step leads to 0, where the root has a value and no derivative."""
    x = tf.Variable(1.0, dtype=tf.float64)
    steep = lambda: tf.where(x > 0.5, x**2 / 2, -tf.sqrt(tf.abs(x)))  # noqa: E731
    with pytest.raises(NotFiniteError, match="magnitude nan one step from the point"):
        newton(steep, wrt=x, damping=0.0)
    assert float(x) == 1


def without_a_second_derivative(x):
    @tf.custom_gradient
    def f(x):
        return tf.reduce_sum(x**2), lambda upstream: upstream * tf.stop_gradient(2 * x)

    return f(tf.identity(x))


@pytest.mark.thorough(keep=4, dear=1)
@pytest.mark.parametrize(
    "f",
    [without_a_second_derivative, lambda x: tf.reduce_sum(tf.abs(x) ** 1.5), lambda x: tf.reduce_sum(tf.nn.relu(x))],
)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_where_the_hessian_is_not_the_loss_s_nothing_is_claimed(method, f):
    x = tf.Variable(np.zeros(2))
    report = method(lambda: f(x), wrt=x)
    assert report.converged
    assert report.standing.kind == "unknown"
    assert "whether this is a minimum is not known: the Hessian" in str(report)
    np.testing.assert_array_equal(x, [0, 0])  # where differences of gradients were taken is not where it ends


def test_second_derivatives_that_cannot_be_had_do_not_fail_a_minimisation():
    x = tf.Variable(np.zeros(2))

    @tf.custom_gradient
    def squares(x):
        value, gradient = tf.py_function(lambda x: (tf.reduce_sum(x**2), 2 * x), [x], [tf.float64, tf.float64])
        return tf.ensure_shape(value, []), lambda upstream: upstream * tf.ensure_shape(gradient, x.shape)

    report = newton_cg(lambda: squares(tf.identity(x)), wrt=x)
    assert report.converged
    assert report.standing.kind == "unknown"
    assert "the Hessian raises ValueError: hvp(" in str(report)


@pytest.mark.thorough(keep=1, dear=0)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_where_the_gradient_is_not_small_nothing_is_computed(method):
    x = tf.Variable([-1.2, 1.0], dtype=tf.float64)
    report = method(lambda: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, wrt=x, iterations=2)
    assert not report.converged
    assert report.standing is None
    assert str(report).endswith("all 2 iterations used")


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("method", [newton, newton_cg])
def test_rounding_is_no_curvature(method):
    """In float32, an eigenvalue of a few units of rounding below zero is no saddle."""
    for dtype, kind in (("float32", "flat"), ("float64", "no minimum")):
        x, factors = tf.Variable(tf.zeros(3, dtype)), tf.constant([1.0, 2.0, -3e-7], dtype)
        assert method(lambda x=x, factors=factors: tf.reduce_sum(x**2 * factors), wrt=x).standing.kind == kind


@pytest.mark.thorough(keep=2)
@pytest.mark.parametrize("method", METHODS)
def test_a_singular_matrix_at_the_start(method):
    x = tf.Variable([0.0], dtype=tf.float64)

    def f():
        inverse = tf.linalg.inv(x[0] * tf.eye(2, dtype=tf.float64))
        return inverse if method is levenberg_marquardt else tf.reduce_sum(inverse)

    with pytest.raises(
        SingularMatrixError, match=r"a matrix is singular.*, in MatrixInverse at .*test_optimize\.py:\d+"
    ):
        method(f, wrt=x)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("method", [newton, newton_cg, levenberg_marquardt])
def test_a_step_to_a_singular_matrix_is_not_taken(method):
    """The full step leads to 0 exactly, where there is no inverse: a shorter one is taken."""
    x, tried = tf.Variable(1.0, dtype=tf.float64), []

    def f():
        if tf.executing_eagerly():
            tried.append(float(x))
        inverse = tf.linalg.inv(tf.reshape(tf.stop_gradient(tf.sign(x)), [1, 1]))
        residual = x * tf.reshape(inverse, [])
        return residual if method is levenberg_marquardt else residual**2 / 2

    held = Objective(f, wrt=x, compile="eager")
    options = {} if method is levenberg_marquardt else {"damping": 0.0}
    method(held, iterations=5 if method is levenberg_marquardt else 1, **options)
    assert 0.0 in tried
    assert 0 < abs(float(x)) < 1
