"""Least squares against NIST's certified values and SciPy, and L-BFGS: reports, covariances, refusals, interrupts.

The regressions with certified results are in `nist.toml`.
"""

import tomllib
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

from tapelab.derivatives import FallbackWarning, NotFiniteError
from tapelab.optimize import Objective, lbfgs, least_squares, levenberg_marquardt, quasi_newton
from tapelab.process.session.bar import progress_bar
from tapelab.runtime import tf

import numpy as np
import pytest


def _thurber(x, b):
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (1 + b[4] * x + b[5] * x**2 + b[6] * x**3)


# What each data set of `nist.toml` is fitted with.
MODELS = {
    "Misra1a": lambda x, b: b[0] * (1 - tf.exp(-b[1] * x)),
    "BoxBOD": lambda x, b: b[0] * (1 - tf.exp(-b[1] * x)),
    "MGH09": lambda x, b: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
    "MGH10": lambda x, b: b[0] * tf.exp(b[1] / (x + b[2])),
    "Thurber": _thurber,
}
NIST = tomllib.loads(Path(__file__).with_name("nist.toml").read_text("utf-8"))


def regression(name):
    """A data set's certified values and model, and its observations: the problem, x and y."""
    problem = SimpleNamespace(model=MODELS[name], **NIST[name])
    return problem, tf.constant(problem.x, tf.float64), tf.constant(problem.y, tf.float64)


X = tf.constant(np.linspace(0.0, 2.0, 9))
DESIGN = np.stack([np.ones(9), X, X**2], axis=1)
LINE = np.array([0.3, -1.1, 0.8])
NOISE = np.array([1.0, -2.0, 0.5, 1.5, -1.0, 0.0, 2.0, -1.5, 0.25]) / 10


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize(
    ("name", "start"),
    [*[(name, start) for name in ("Misra1a", "MGH09", "Thurber") for start in (0, 1)], ("BoxBOD", 1), ("MGH10", 1)],
)
def test_certified_values_of_nist(name, start):
    problem, x, y = regression(name)
    b = tf.Variable(problem.starts[start], dtype=tf.float64)
    report = levenberg_marquardt(lambda: problem.model(x, b) - y, wrt=b, iterations=400)
    assert report.converged, report.reason
    # Six digits: certified are eleven, and the parameters of these problems are poorly determined.
    np.testing.assert_allclose(report.parameters, problem.parameters, rtol=1e-6)
    np.testing.assert_allclose(report.standard_errors, problem.standard_errors, rtol=1e-5)
    assert 2 * report.value == pytest.approx(problem.sum_of_squares, rel=1e-9)
    np.testing.assert_array_equal(b, report.parameters)
    assert report.degrees_of_freedom == len(problem.y) - b.shape[0]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(
    ("name", "scaling"),
    # Misra1a's parameters differ by a factor of half a million, which the identity does not know.
    [("Misra1a", "columns"), ("BoxBOD", "columns"), ("BoxBOD", "identity")],
)
def test_certified_values_by_the_callers_jacobian_and_by_either_scaling(name, scaling):
    problem, x, y = regression(name)
    b, calls = tf.Variable(problem.starts[1], dtype=tf.float64), []

    def by_hand(y):
        """The derivatives of b0 (1 - exp(-b1 x)), both data sets' model."""
        calls.append(y)
        falling = np.exp(-b[1] * x)
        return np.stack([1 - falling, b[0] * x * falling], axis=1)

    options = {"scaling": scaling, "jacobian": by_hand, "iterations": 1000}
    report = levenberg_marquardt(lambda y: problem.model(x, b) - y, y, wrt=b, **options)
    assert report.converged, report.reason
    assert report.plan is None
    assert len(calls) == len(report.iterations) + 1
    np.testing.assert_allclose(report.parameters, problem.parameters, rtol=1e-6)
    np.testing.assert_allclose(report.standard_errors, problem.standard_errors, rtol=1e-5)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("scaling", ["columns", "identity"])
def test_the_first_step_is_that_of_the_formula(scaling):
    y, b = DESIGN @ LINE + NOISE, tf.Variable(np.zeros(3))
    design = DESIGN * [1.0, 1.0, 100.0]
    report = levenberg_marquardt(
        lambda: tf.linalg.matvec(design, b) - y, wrt=b, iterations=1, damping=0.5, scaling=scaling
    )
    squares = np.sum(design**2, axis=0)
    d = np.diag(squares) if scaling == "columns" else squares.max() * np.eye(3)
    np.testing.assert_allclose(b, np.linalg.solve(design.T @ design + 0.5 * d, design.T @ y), rtol=1e-9)
    assert report.iterations[0].damping == 0.5


def test_the_identity_finds_a_minimum_too():
    x = tf.Variable([-1.2, 1.0], dtype=tf.float64)
    assert levenberg_marquardt(rosenbrock_residuals(x), wrt=x, scaling="identity").converged
    np.testing.assert_allclose(x, [1, 1], rtol=1e-8)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_jacobian_that_is_wrong_is_refused(dtype):
    parameters = {"b": tf.Variable([0.5, 2.0], dtype=dtype), "a": tf.Variable(1.0, dtype=dtype)}
    x = tf.cast(X, dtype)
    units = np.array([1.0, 1e6, 1e-6])  # of the parameters, in the order of pack

    def residuals():
        return units[0] * parameters["a"] + units[1] * parameters["b"][0] * x + units[2] * parameters["b"][1] * x**2 - 1

    right, objective = DESIGN * units, Objective(residuals, wrt=parameters)
    levenberg_marquardt(objective, jacobian=lambda: right, iterations=1)
    for wrong in (right[:, ::-1], -right, right * [1, 1, 1.01], right * [1, 0.99, 1], right[::-1]):
        with pytest.raises(ValueError, match=r"does not agree with the residuals: along a random vector, residual \d"):
            levenberg_marquardt(objective, jacobian=lambda wrong=wrong: wrong)
    for wrong, told in (
        (right.T, r"shape \(3, 9\); expected one matrix of shape \(9, 3\): a row for each residual"),
        (right[:, 0], r"shape \(9,\)"),
        (None, r"shape \(\)"),
        ([right[:, :2], right[:, 2]], "returned a list, which is no matrix"),
        ("matrix", "returned a str, which is no matrix"),
    ):
        with pytest.raises(ValueError, match=told):
            levenberg_marquardt(objective, jacobian=lambda wrong=wrong: wrong)
    with pytest.raises(NotFiniteError):
        levenberg_marquardt(objective, jacobian=lambda: right * np.nan)
    with pytest.raises(TypeError, match="jacobian is a ndarray; expected a function"):
        levenberg_marquardt(objective, jacobian=right)
    with pytest.raises(ValueError, match="scaling is 'rows'; expected one of 'columns', 'identity'"):
        levenberg_marquardt(objective, scaling="rows")


def line(parameters, x):
    return parameters["a"] + parameters["b"][0] * x + parameters["b"][1] * x**2


def fresh():
    return {"b": tf.Variable([0.0, 0.0], dtype=tf.float64), "a": tf.Variable(0.0, dtype=tf.float64)}


def test_a_linear_problem_in_a_nested_structure():
    parameters, y = fresh(), DESIGN @ LINE + NOISE
    seen = []
    report = levenberg_marquardt(lambda x: line(parameters, x) - y, X, wrt=parameters, callback=seen.append)
    expected, *_ = np.linalg.lstsq(DESIGN, y, rcond=None)
    np.testing.assert_allclose(report.parameters, expected, rtol=1e-7)
    r = DESIGN @ expected - y
    np.testing.assert_allclose(report.covariance, r @ r / 6 * np.linalg.inv(DESIGN.T @ DESIGN), rtol=1e-7)
    np.testing.assert_allclose(report.standard_errors**2, np.diag(report.covariance))
    assert (report.rank, report.residuals, report.degrees_of_freedom) == (3, 9, 6)
    assert seen == report.iterations
    assert all(one.slope < 0 for one in seen)
    assert report.value == pytest.approx(r @ r / 2)
    assert report.reason in str(report)
    np.testing.assert_allclose(parameters["b"], expected[1:], rtol=1e-7)


@pytest.mark.dear
def test_units_do_not_matter():
    """A parameter counted in other units takes the same path."""
    problem, x, y = regression("Misra1a")
    counts = []
    for unit in (1.0, 2.0**30):
        b = tf.Variable(np.array(problem.starts[1]) * [1, unit])
        report = levenberg_marquardt(lambda b=b, unit=unit: problem.model(x, b / [1, unit]) - y, wrt=b)
        counts.append([one.value for one in report.iterations])
        np.testing.assert_allclose(report.parameters / [1, unit], problem.parameters, rtol=1e-6)
    np.testing.assert_allclose(*counts, rtol=1e-6)


def test_residuals_of_zero_and_nested_residuals():
    x = tf.Variable([-1.2, 1.0], dtype=tf.float64)
    report = levenberg_marquardt(lambda: (1 - x[0], {"r": 10 * (x[1] - x[0] ** 2)}), wrt=[x])
    assert report.converged
    np.testing.assert_allclose(x, [1, 1], rtol=1e-8)
    with pytest.raises(ValueError, match="2 residuals for 2 parameters leave no degrees of freedom"):
        _ = report.covariance


def test_in_float32():
    a = tf.Variable([1.0, 0.0])
    x = tf.range(6.0)
    report = levenberg_marquardt(lambda: a[0] + a[1] * x - (2 - 3 * x + tf.sin(9 * x) / 100), wrt=a)
    assert report.converged
    np.testing.assert_allclose(a, [2, -3], atol=0.02)
    assert report.rank == 2


def test_no_covariance_where_parameters_are_not_determined():
    y = DESIGN @ LINE + NOISE
    b = tf.Variable(np.zeros(4))
    report = levenberg_marquardt(lambda: b[0] + (b[1] + b[3]) * X + b[2] * X**2 - y, wrt=b)
    assert report.converged
    assert report.rank == 3
    with pytest.raises(ValueError, match=r"rank 3 for 4 parameters.*elements 1, 3 "):
        _ = report.standard_errors
    # More parameters than residuals.
    report = levenberg_marquardt(lambda: b[:3] * b[1] - 2.0, wrt=b)
    assert report.rank <= 3
    with pytest.raises(ValueError, match="for 4 parameters"):
        _ = report.covariance


def test_no_covariance_on_a_plateau():
    """From NIST's far start the exponential saturates: the second parameter moves nothing any more."""
    problem, x, y = regression("BoxBOD")
    b = tf.Variable(problem.starts[0], dtype=tf.float64)
    b.assign([100.0, 200.0])
    report = levenberg_marquardt(lambda: problem.model(x, b) - y, wrt=b)
    assert report.parameters[0] == pytest.approx(np.mean(problem.y))
    with pytest.raises(ValueError, match=r"rank 1 for 2 parameters.*elements 1 "):
        _ = report.covariance


def test_all_iterations_used():
    x = tf.Variable([-1.2, 1.0], dtype=tf.float64)
    report = levenberg_marquardt(lambda: tf.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)]), wrt=x, iterations=3)
    assert not report.converged
    assert (len(report.iterations), report.reason) == (3, "all 3 iterations used")


def rosenbrock_residuals(x):
    return lambda: tf.stack([1 - x[0], 10 * (x[1] - x[0] ** 2)])


def rosenbrock(x):
    return lambda: (1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2


def test_lbfgs_finds_the_minimum_and_reports_each_step():
    x, seen = [tf.Variable(-1.2, dtype=tf.float64), tf.Variable(1.0, dtype=tf.float64)], []
    report = lbfgs(lambda a: (a - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2, X[4], wrt=x, callback=seen.append)
    assert report.converged
    assert report.reason == "the gradient is within the tolerance of 1e-05"
    np.testing.assert_allclose(x, [1, 1], rtol=1e-4)
    assert seen == report.iterations
    values = [one.value for one in seen] + [report.value]
    assert all(later < earlier for earlier, later in pairwise(values))
    assert values[0] == pytest.approx(24.2)
    assert all(one.slope < 0 for one in seen)
    assert report.gradient_norm <= 1e-5


@tf.function(jit_compile=True)
def unrolled(w, kept):
    """A loop that XLA compiles: six steps, of which each is kept."""
    states, x = tf.TensorArray(tf.float64, 6), tf.constant(0.1, tf.float64)
    for step in tf.range(6):
        x = tf.sin(x) + w[step] * x
        states = states.write(step, x)
    return tf.reduce_sum((states.stack() - kept) ** 2)


@pytest.mark.dear
def test_lbfgs_minimises_through_a_loop_that_xla_compiles():
    """TensorFlow's tape does not get at what such a loop keeps; compiled as a whole, it does."""
    w, kept = tf.Variable(np.full(6, 0.3)), np.linspace(0.2, 0.7, 6)
    report = lbfgs(lambda: unrolled(tf.identity(w), kept), wrt=w, tolerance=1e-8)
    assert report.converged
    assert report.plan.compiled == "xla"
    before = np.concatenate([[0.1], kept[:-1]])
    np.testing.assert_allclose(w, (kept - np.sin(before)) / before, atol=1e-5)
    with pytest.raises(RuntimeError, match=r"with jit_compile=True that has a loop.*Leave"):
        lbfgs(lambda: unrolled(tf.identity(w), kept), wrt=w, compile="eager")


def test_lbfgs_falls_back_and_says_so():
    w = tf.Variable(np.full(3, 0.3))

    def outside_of_a_graph():
        return tf.reduce_sum((w - 1) ** 2) * (1.0 if w.numpy().sum() < 99 else 2.0)

    with pytest.warns(FallbackWarning, match="computed a slower way"):
        report = lbfgs(outside_of_a_graph, wrt=w)
    assert report.converged
    assert report.plan.compiled == "eager"
    assert "cannot be traced" in report.plan.given_up[0]
    with pytest.raises(RuntimeError, match='cannot be computed with compile="graph"'):
        lbfgs(outside_of_a_graph, wrt=w, compile="graph")


def test_lbfgs_stops():
    x = tf.Variable([-1.2, 1.0], dtype=tf.float64)
    report = lbfgs(rosenbrock(x), wrt=x, iterations=4)
    assert (len(report.iterations), report.converged, report.reason) == (4, False, "all 4 iterations used")
    assert report.value == pytest.approx(float(rosenbrock(x)()))
    x.assign([1.0, 1.0])
    report = lbfgs(rosenbrock(x), wrt=x)
    assert (report.converged, report.iterations) == (True, [])

    @tf.custom_gradient
    def uphill(x):
        return tf.reduce_sum(x**2), lambda upstream: -2 * upstream * x

    report = lbfgs(lambda: uphill(1.0 * x), wrt=x)
    assert not report.converged
    assert "SciPy stopped: " in report.reason
    np.testing.assert_array_equal(x, [1.0, 1.0])


def test_lbfgs_in_float32():
    x = tf.Variable([3.0, -2.0, 0.5])
    report = lbfgs(lambda: tf.reduce_sum((x - 1) ** 2 * [1.0, 10.0, 100.0]), wrt=x, tolerance=1e-3)
    assert report.converged
    np.testing.assert_allclose(x, 1, atol=1e-3)


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize(("method", "of"), [(levenberg_marquardt, rosenbrock_residuals), (lbfgs, rosenbrock)])
def test_a_bar_shows_the_progress_where_a_person_watches(method, of, monkeypatch):
    totals = []

    def bar(total, doing):
        totals.append((total, doing))
        return progress_bar(total, doing)

    for module in (least_squares, quasi_newton):
        monkeypatch.setattr(module, "progress_bar", bar)
    x = tf.Variable([-1.2, 1.0], dtype=tf.float64)
    method(of(x), wrt=x, iterations=2)
    assert totals == [(2, "minimising")]


def test_a_jacobian_that_becomes_infinite():
    x = tf.Variable([1.0, 5.0], dtype=tf.float64)

    def residuals():
        # Its value is finite at 0, its derivative not; the first step ends there.
        return tf.stack([x[0] * 1e-8, tf.where(x[0] > 0.5, x[0], tf.sqrt(tf.abs(x[0])))])

    with pytest.raises(NotFiniteError, match="Jacobian of the residuals is NaN or infinite"):
        levenberg_marquardt(residuals, wrt=x, damping=1e-300)
    assert np.isfinite(x).all()


PLACES = {
    "a fit": (lambda x: x - tf.constant([1.0, 2.0], tf.float64), [0.0, 0.0], 2, 1.0, "a minimum of the linearised"),
    "stretched": (lambda x: x * tf.constant([1.0, 1e-3], tf.float64), [1.0, 1.0], 2, 1e-3, "a minimum of the linear"),
    "too few residuals": (lambda x: x[0] + x[1] - 1, [0.0, 0.0], 1, 0.0, "the Jacobian has rank 1 for 2 parameters"),
    "a maximum": (lambda x: x**2 - 1, [0.0, 0.0], 0, 0.0, "the Jacobian has rank 0 for 2 parameters"),
    "a valley": (lambda x: tf.stack([x[0] - 1, x[0] - 1]), [0.0, 0.0], 1, 0.0, "the Jacobian has rank 1 for 2"),
}


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", PLACES)
def test_what_the_jacobian_tells_of_the_end(name):
    f, start, rank, smallest, sentence = PLACES[name]
    x = tf.Variable(start, dtype=tf.float64)
    report = levenberg_marquardt(lambda: f(x), wrt=x)
    assert report.converged
    assert report.rank == rank
    np.testing.assert_allclose(report.smallest_singular_value, smallest, atol=1e-9)
    assert report.stands.startswith(sentence)
    assert str(report).endswith(report.stands)
    assert levenberg_marquardt(lambda: tf.exp(x - 3), wrt=x, iterations=1).stands == ""  # not converged


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [0.0, [0.0], [[0.0, 1.0]]])
def test_a_scalar_residual(dtype, value):
    x = tf.Variable(value, dtype=dtype)
    report = levenberg_marquardt(lambda: tf.reduce_sum(x) - 3, wrt=x)
    assert (report.converged, report.residuals) == (True, 1)
    np.testing.assert_allclose(tf.reduce_sum(x), 3, rtol=1e-5)
