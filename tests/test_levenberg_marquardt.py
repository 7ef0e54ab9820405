"""Least squares against NIST's certified values and SciPy, and L-BFGS: reports, covariances, refusals, interrupts.

The regressions with certified results are from NIST's Statistical Reference Datasets, a work of the United States
government in the public domain: https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

from tapelab.derivatives import FallbackWarning, MemoryLimitError, NotFiniteError
from tapelab.optimize import Objective, lbfgs, least_squares, levenberg_marquardt, quasi_newton
from tapelab.process.session.bar import progress_bar
from tapelab.runtime import tf

import numpy as np
import pytest
import scipy.optimize


class Certified(NamedTuple):
    """One data set.

    Attributes:
        model: takes x and a vector of parameters, returns what it predicts for y.
        x, y: the observations.
        starts: two points to start from, the first far from the solution.
        parameters, standard_errors: certified.
        sum_of_squares: certified.
    """

    model: Callable
    x: list[float]
    y: list[float]
    starts: tuple[list[float], list[float]]
    parameters: list[float]
    standard_errors: list[float]
    sum_of_squares: float


def _thurber(x, b):
    return (b[0] + b[1] * x + b[2] * x**2 + b[3] * x**3) / (1 + b[4] * x + b[5] * x**2 + b[6] * x**3)


NIST = {
    "Misra1a": Certified(
        lambda x, b: b[0] * (1 - tf.exp(-b[1] * x)),
        [77.6, 114.9, 141.1, 190.8, 239.9, 289.0, 332.8, 378.4, 434.8, 477.3, 536.8, 593.1, 689.1, 760.0],
        [10.07, 14.73, 17.94, 23.93, 29.61, 35.18, 40.02, 44.82, 50.76, 55.05, 61.01, 66.40, 75.47, 81.78],
        ([500.0, 0.0001], [250.0, 0.0005]),
        [2.3894212918e02, 5.5015643181e-04],
        [2.7070075241e00, 7.2668688436e-06],
        1.2455138894e-01,
    ),
    "BoxBOD": Certified(
        lambda x, b: b[0] * (1 - tf.exp(-b[1] * x)),
        [1.0, 2.0, 3.0, 5.0, 7.0, 10.0],
        [109.0, 149.0, 149.0, 191.0, 213.0, 224.0],
        ([1.0, 1.0], [100.0, 0.75]),
        [2.1380940889e02, 5.4723748542e-01],
        [1.2354515176e01, 1.0455993237e-01],
        1.1680088766e03,
    ),
    "MGH09": Certified(
        lambda x, b: b[0] * (x**2 + x * b[1]) / (x**2 + x * b[2] + b[3]),
        [4.0, 2.0, 1.0, 0.5, 0.25, 0.167, 0.125, 0.1, 0.0833, 0.0714, 0.0625],
        [0.1957, 0.1947, 0.1735, 0.16, 0.0844, 0.0627, 0.0456, 0.0342, 0.0323, 0.0235, 0.0246],
        ([25.0, 39.0, 41.5, 39.0], [0.25, 0.39, 0.415, 0.39]),
        [1.9280693458e-01, 1.9128232873e-01, 1.2305650693e-01, 1.3606233068e-01],
        [1.1435312227e-02, 1.9633220911e-01, 8.0842031232e-02, 9.0025542308e-02],
        3.0750560385e-04,
    ),
    "MGH10": Certified(
        lambda x, b: b[0] * tf.exp(b[1] / (x + b[2])),
        [float(x) for x in range(50, 130, 5)],
        [
            34780.0, 28610.0, 23650.0, 19630.0, 16370.0, 13720.0, 11540.0, 9744.0, 8261.0, 7030.0, 6005.0, 5147.0,
            4427.0, 3820.0, 3307.0, 2872.0,
        ],
        ([2.0, 400000.0, 25000.0], [0.02, 4000.0, 250.0]),
        [5.6096364710e-03, 6.1813463463e03, 3.4522363462e02],
        [1.5687892471e-04, 2.3309021107e01, 7.8486103508e-01],
        8.7945855171e01,
    ),
    "Thurber": Certified(
        _thurber,
        [
            -3.067, -2.981, -2.921, -2.912, -2.840, -2.797, -2.702, -2.699, -2.633, -2.481, -2.363, -2.322, -1.501,
            -1.460, -1.274, -1.212, -1.100, -1.046, -0.915, -0.714, -0.566, -0.545, -0.400, -0.309, -0.109, -0.103,
            0.010, 0.119, 0.377, 0.790, 0.963, 1.006, 1.115, 1.572, 1.841, 2.047, 2.200,
        ],
        [
            80.574, 84.248, 87.264, 87.195, 89.076, 89.608, 89.868, 90.101, 92.405, 95.854, 100.696, 101.060, 401.672,
            390.724, 567.534, 635.316, 733.054, 759.087, 894.206, 990.785, 1090.109, 1080.914, 1122.643, 1178.351,
            1260.531, 1273.514, 1288.339, 1327.543, 1353.863, 1414.509, 1425.208, 1421.384, 1442.962, 1464.350,
            1468.705, 1447.894, 1457.628,
        ],
        ([1000.0, 1000.0, 400.0, 40.0, 0.7, 0.3, 0.03], [1300.0, 1500.0, 500.0, 75.0, 1.0, 0.4, 0.05]),
        [
            1.2881396800e03, 1.4910792535e03, 5.8323836877e02, 7.5416644291e01, 9.6629502864e-01, 3.9797285797e-01,
            4.9727297349e-02,
        ],
        [
            4.6647963344e00, 3.9571156086e01, 2.8698696102e01, 5.5675370270e00, 3.1333340687e-02, 1.4984928198e-02,
            6.5842344623e-03,
        ],
        5.6427082397e03,
    ),
}  # fmt: skip

X = tf.constant(np.linspace(0.0, 2.0, 9))
DESIGN = np.stack([np.ones(9), X, X**2], axis=1)
LINE = np.array([0.3, -1.1, 0.8])
NOISE = np.array([1.0, -2.0, 0.5, 1.5, -1.0, 0.0, 2.0, -1.5, 0.25]) / 10


@pytest.mark.parametrize(
    ("name", "start"),
    [("Misra1a", 0), ("Misra1a", 1), ("BoxBOD", 1), ("MGH09", 0), ("MGH09", 1), ("Thurber", 0), ("Thurber", 1)],
)
def test_certified_values_of_nist(name, start):
    problem = NIST[name]
    x, y = (tf.constant(values, tf.float64) for values in (problem.x, problem.y))
    b = tf.Variable(problem.starts[start], dtype=tf.float64)
    report = levenberg_marquardt(lambda: problem.model(x, b) - y, wrt=b)
    assert report.converged, report.reason
    # Six digits: certified are eleven, and the parameters of these problems are poorly determined.
    np.testing.assert_allclose(report.parameters, problem.parameters, rtol=1e-6)
    np.testing.assert_allclose(report.standard_errors, problem.standard_errors, rtol=1e-5)
    assert 2 * report.value == pytest.approx(problem.sum_of_squares, rel=1e-9)
    np.testing.assert_array_equal(b, report.parameters)
    assert report.degrees_of_freedom == len(problem.y) - b.shape[0]


@pytest.mark.parametrize(
    ("name", "scaling"),
    # Misra1a's parameters differ by a factor of half a million, which the identity does not know.
    [("Misra1a", "columns"), ("BoxBOD", "columns"), ("BoxBOD", "identity")],
)
def test_certified_values_by_the_callers_jacobian_and_by_either_scaling(name, scaling):
    problem = NIST[name]
    x, y = (tf.constant(values, tf.float64) for values in (problem.x, problem.y))
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


def test_scipy_finds_the_same():
    problem = NIST["MGH10"]
    x, y = (tf.constant(values, tf.float64) for values in (problem.x, problem.y))

    def residuals(b):
        return (problem.model(x, b) - y).numpy()

    b = tf.Variable(problem.starts[1], dtype=tf.float64)
    report = levenberg_marquardt(lambda: problem.model(x, b) - y, wrt=b, iterations=400)
    found = scipy.optimize.least_squares(residuals, problem.starts[1], method="lm", ftol=1e-14, xtol=1e-14)
    np.testing.assert_allclose(report.parameters, found.x, rtol=1e-5)
    np.testing.assert_allclose(report.parameters, problem.parameters, rtol=1e-6)
    # SciPy's Jacobian is one of differences.
    inverse = np.linalg.inv(found.jac.T @ found.jac)
    np.testing.assert_allclose(report.covariance, 2 * found.cost / 13 * inverse, rtol=1e-2)


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


def test_units_do_not_matter():
    """A parameter counted in other units takes the same path."""
    problem = NIST["Misra1a"]
    x, y = (tf.constant(values, tf.float64) for values in (problem.x, problem.y))
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
    problem = NIST["BoxBOD"]
    x, y = (tf.constant(values, tf.float64) for values in (problem.x, problem.y))
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


def test_errors():
    x = tf.Variable([0.0])
    for method in (levenberg_marquardt, lbfgs):
        with pytest.raises(NotFiniteError, match="start where both are finite"):
            method(lambda: tf.reduce_sum(tf.math.log(x)), wrt=x)
    with pytest.raises(ValueError, match="step_tolerance is -1"):
        levenberg_marquardt(lambda: x, wrt=x, step_tolerance=-1.0)
    with pytest.raises(ValueError, match=r"damping is 0.*positive"):
        levenberg_marquardt(lambda: x, wrt=x, damping=0.0)
    with pytest.raises(ValueError, match="tolerance is nan"):
        lbfgs(lambda: tf.reduce_sum(x**2), wrt=x, tolerance=np.nan)
    for name in ("iterations", "history"):
        with pytest.raises(ValueError, match=f"{name} is 0"):
            lbfgs(lambda: tf.reduce_sum(x**2), wrt=x, **{name: 0})
    big = tf.Variable(tf.zeros(40_000))
    with pytest.raises(MemoryLimitError, match="jvp or vjp"):
        levenberg_marquardt(lambda: big - 1, wrt=big)


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [0.0, [0.0], [[0.0, 1.0]]])
def test_a_scalar_residual(dtype, value):
    x = tf.Variable(value, dtype=dtype)
    report = levenberg_marquardt(lambda: tf.reduce_sum(x) - 3, wrt=x)
    assert (report.converged, report.residuals) == (True, 1)
    np.testing.assert_allclose(tf.reduce_sum(x), 3, rtol=1e-5)


def test_no_residual():
    x = tf.Variable([1.0])
    with pytest.raises(ValueError, match="the residuals are empty; expected one number for each observation"):
        levenberg_marquardt(lambda: x[:0], wrt=x)
