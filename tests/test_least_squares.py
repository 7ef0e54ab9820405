"""Least squares: NIST's certified regressions from both starts; errors, bounds and robust losses as SciPy has them.

`nist/` has the 27 nonlinear sets of NIST's Statistical Reference Datasets, a work of the United States government in
the public domain: https://www.itl.nist.gov/div898/strd/nls/nls_main.shtml.
"""

import re
from pathlib import Path

from tapelab.derivatives import NotFiniteError, pack
from tapelab.optimize import Objective, levenberg_marquardt
from tapelab.optimize.fit_report import LOSSES
from tapelab.runtime import tf

import numpy as np
import pytest
import scipy.optimize

PI = 3.141592653589793238462643383279


def wave(x, b, c, period):
    return b * tf.cos(2 * PI * x / period) + c * tf.sin(2 * PI * x / period)


def gauss(x, height, middle, width):
    return height * tf.exp(-(((x - middle) / width) ** 2))


# What each of NIST's files is fitted with.
MODELS = {
    "Bennett5": lambda x, a, b, c: a * (b + x) ** (-1 / c),
    "BoxBOD": lambda x, a, b: a * (1 - tf.exp(-b * x)),
    "Chwirut1 Chwirut2": lambda x, a, b, c: tf.exp(-a * x) / (b + c * x),
    "DanWood": lambda x, a, b: a * x**b,
    "ENSO": lambda x, a, b, c, p, d, e, q, f, g: a + wave(x, b, c, 12) + wave(x, d, e, p) + wave(x, f, g, q),
    "Eckerle4": lambda x, a, b, c: a / b * tf.exp(-(((x - c) / b) ** 2) / 2),
    "Gauss1 Gauss2 Gauss3": lambda x, a, b, c, d, e, f, g, h: (
        a * tf.exp(-b * x) + gauss(x, c, d, e) + gauss(x, f, g, h)
    ),
    "Hahn1 Thurber": lambda x, a, b, c, d, e, f, g: (
        (a + b * x + c * x**2 + d * x**3) / (1 + e * x + f * x**2 + g * x**3)
    ),
    "Kirby2": lambda x, a, b, c, d, e: (a + b * x + c * x**2) / (1 + d * x + e * x**2),
    "Lanczos1 Lanczos2 Lanczos3": lambda x, a, b, c, d, e, f: (
        a * tf.exp(-b * x) + c * tf.exp(-d * x) + e * tf.exp(-f * x)
    ),
    "MGH09": lambda x, a, b, c, d: a * (x**2 + x * b) / (x**2 + x * c + d),
    "MGH10": lambda x, a, b, c: a * tf.exp(b / (x + c)),
    "MGH17": lambda x, a, b, c, d, e: a + b * tf.exp(-x * d) + c * tf.exp(-x * e),
    "Misra1a": lambda x, a, b: a * (1 - tf.exp(-b * x)),
    "Misra1b": lambda x, a, b: a * (1 - (1 + b * x / 2) ** -2),
    "Misra1c": lambda x, a, b: a * (1 - (1 + 2 * b * x) ** -0.5),
    "Misra1d": lambda x, a, b: a * b * x / (1 + b * x),
    "Nelson": lambda x, a, b, c: a - b * x[:, 0] * tf.exp(-c * x[:, 1]),  # of the logarithm
    "Rat42": lambda x, a, b, c: a / (1 + tf.exp(b - c * x)),
    "Rat43": lambda x, a, b, c, d: a / (1 + tf.exp(b - c * x)) ** (1 / d),
    "Roszman1": lambda x, a, b, c, d: a - b * x - tf.atan(c / (x - d)) / PI,
}
SETS = [(name, model) for names, model in MODELS.items() for name in names.split()]


def certified(name):
    """The observations x and y of a set; of each parameter two starts, the certified value and standard deviation."""
    text = Path(__file__).with_name("nist").joinpath(f"{name}.dat").read_text("ascii")
    parameters = re.findall(r"^ *b\d+ = +(\S+) +(\S+) +(\S+) +(\S+) *$", text, re.MULTILINE)
    y, *x = np.loadtxt(text[text.rindex("Data:") :].splitlines()[1:], unpack=True)
    y = np.log(y) if name == "Nelson" else y
    squares = float(re.search(r"Residual Sum of Squares: +(\S+)", text)[1])
    return np.squeeze(np.transpose(x)), y, np.array(parameters, float).T, squares


@pytest.mark.thorough(keep=6, dear=2)
@pytest.mark.parametrize(("name", "model"), SETS, ids=[name for name, _ in SETS])
def test_certified_values_of_nist(name, model):
    x, y, (*starts, parameters, deviations), squares = certified(name)
    b, x = tf.Variable(parameters), tf.constant(x)
    objective = Objective(lambda: model(x, *tf.unstack(b)) - y, wrt=b, compile="graph")
    for start in starts:
        b.assign(start)
        report = levenberg_marquardt(objective)
        assert report.converged, report.reason
        assert report.stands.startswith(
            f"a minimum of the linearised residuals: the Jacobian has full rank {b.shape[0]}"
        )
        np.testing.assert_allclose(report.parameters, parameters, rtol=1e-6)
        np.testing.assert_array_equal(b, report.parameters)
        if name != "Lanczos1":  # its residuals are rounding errors of the observations, and so is their scatter
            np.testing.assert_allclose(report.standard_errors, deviations, rtol=1e-6)
            assert 2 * report.value == pytest.approx(squares, rel=1e-6)


def test_all_of_nist_are_here():
    assert {name for name, _ in SETS} == {path.stem for path in Path(__file__).with_name("nist").glob("*.dat")}
    assert len(SETS) == 27


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("stopped", [1, 3, 6])
def test_where_it_is_stopped_before_the_end_it_has_not_converged(stopped):
    x, y, (start, *_), _ = certified("Misra1a")
    b, x = tf.Variable(start), tf.constant(x)
    report = levenberg_marquardt(lambda: MODELS["Misra1a"](x, *tf.unstack(b)) - y, wrt=b, iterations=stopped)
    assert (report.converged, report.stands) == (False, "")
    assert 1 <= len(report.iterations) <= stopped
    assert report.reason == f"all {stopped} steps used; a Gauss-Newton step from here is not small"


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("unit", [1e-9, 1e9])
def test_units_do_not_matter(unit):
    """Neither those of a parameter nor those of the residuals; a gradient that is small in them says nothing."""
    x, y, (_, start, parameters, deviations), _ = certified("Misra1a")
    b, x = tf.Variable(start * [1, unit]), tf.constant(x)
    report = levenberg_marquardt(lambda: (b[0] * (1 - tf.exp(-b[1] / unit * x)) - y) * unit, wrt=b)
    assert report.converged
    np.testing.assert_allclose(report.parameters / [1, unit], parameters, rtol=1e-6)
    np.testing.assert_allclose(report.standard_errors / [1, unit], deviations, rtol=1e-6)


X = np.linspace(0.0, 4.0, 30)
NOISE = 0.05 * np.sin(np.arange(30.0) ** 2)
OUTLIERS = np.where(np.arange(30) % 7 == 3, 2.0, 0.0) - np.where(np.arange(30) % 11 == 5, 1.5, 0.0)
START = [1.0, 0.5, 1.0]
WIDE, TIGHT, CORNER = (-np.inf, np.inf), ([0, 0, 0.6], [2.5, 5, 9]), ([0.5, 2, 0.9], [1.5, 3, 1.0])


def decay(xp, b, x):
    return b[0] * xp.exp(-b[1] * x) + b[2]


def observed(outliers):
    return decay(np, [3.0, 1.2, 0.5], X) + NOISE + OUTLIERS * outliers


@pytest.fixture(scope="module")
def objective():
    return Objective(lambda y: decay(tf, b, X) - y, wrt=(b := tf.Variable(np.zeros(3))), compile="graph")


def fitted(objective, y, start=START, **options):
    objective.wrt.assign(start)
    return levenberg_marquardt(objective, y, **options)


@pytest.mark.thorough(keep=4, dear=2)
@pytest.mark.parametrize("bounds", [WIDE, TIGHT, CORNER], ids=["wide", "tight", "corner"])
@pytest.mark.parametrize(
    ("loss", "f_scale"), [("linear", 1.0), ("soft_l1", 0.01), ("soft_l1", 0.1), ("huber", 0.01), ("huber", 0.1)]
)
@pytest.mark.parametrize("outliers", [0.0, 1.0])
def test_bounds_and_losses_are_scipys(objective, outliers, loss, f_scale, bounds):
    y, start = observed(outliers), START if bounds is not CORNER else [1.0, 2.5, 0.95]
    found = scipy.optimize.least_squares(
        lambda b: decay(np, b, X) - y, start, loss=loss, f_scale=f_scale, bounds=bounds,
        ftol=1e-14, xtol=1e-14, gtol=1e-14, max_nfev=2000,
    )  # fmt: skip
    report = fitted(objective, y, start, bounds=bounds, loss=loss, f_scale=f_scale)
    assert report.converged, report.reason
    assert report.value == pytest.approx(found.cost, rel=1e-8)
    np.testing.assert_allclose(report.parameters, found.x, rtol=1e-5)
    lower, upper = (np.broadcast_to(bound, 3) for bound in bounds)
    np.testing.assert_array_equal(
        report.at_bound, np.isclose(found.x, lower, rtol=2e-5) | np.isclose(found.x, upper, rtol=2e-5)
    )
    assert ((report.parameters >= lower) & (report.parameters <= upper)).all()


def test_curve_fit_finds_the_same_errors(objective):
    sigma = 0.05 * (1 + X)
    weighted = Objective(lambda y: objective.f(y) / sigma, wrt=objective.wrt, compile="graph")
    for absolute_sigma in (False, True):
        best, covariance = scipy.optimize.curve_fit(
            lambda x, *b: decay(np, b, x), X, observed(0.0), START, sigma, absolute_sigma, ftol=1e-14, xtol=1e-14
        )
        report = fitted(weighted, observed(0.0), absolute_sigma=absolute_sigma)
        np.testing.assert_allclose(report.parameters, best, rtol=1e-6)
        np.testing.assert_allclose(report.covariance, covariance, rtol=1e-5)
        np.testing.assert_allclose(report.standard_errors, np.sqrt(np.diag(covariance)), rtol=1e-5)
    # A known deviation needs no degrees of freedom.
    b = tf.Variable([0.0, 0.0], dtype=tf.float64)
    report = levenberg_marquardt(lambda: b * [2.0, 10.0] - 1, wrt=b, absolute_sigma=True)
    np.testing.assert_allclose(report.standard_errors, [0.5, 0.1])


@pytest.mark.parametrize("loss", LOSSES)
def test_losses_are_scipys_with_their_derivatives(loss):
    z, h = np.array([0.0, 0.04, 0.9, 1.1, 9.0, 1e4]), 1e-6
    cost, first, second = LOSSES[loss](z)
    (_, ahead, _), (_, behind, _) = LOSSES[loss](z + h), LOSSES[loss](np.abs(z - h))
    np.testing.assert_allclose((ahead - behind)[1:] / (2 * h), second[1:], rtol=1e-4, atol=1e-9)
    np.testing.assert_allclose((LOSSES[loss](z + h)[0] - cost) / h, first, rtol=1e-5, atol=1e-8)
    found = scipy.optimize.least_squares(lambda _: z**0.5, [0.0], loss=loss, max_nfev=1)
    assert found.cost == pytest.approx(np.sum(cost) / 2)


@pytest.mark.thorough
@pytest.mark.parametrize("loss", LOSSES)
def test_standard_errors_are_the_scatter_of_many_fits(loss):
    """One observation in ten is an outlier."""
    rng, x, b = np.random.default_rng(1), np.linspace(-1, 1, 60), tf.Variable(np.zeros(2))
    objective = Objective(lambda y: b[0] + b[1] * x - y, wrt=b, compile="graph")
    options, found = {"loss": loss, "f_scale": 1.0 if loss == "linear" else 0.1}, []
    for _ in range(200):
        y = 1 + 2 * x + 0.1 * rng.normal(size=60) * np.where(rng.random(60) < 0.1, 10, 1)
        report = fitted(objective, y, [0, 0], tolerance=1e-10, **options)
        _, scipys = scipy.optimize.curve_fit(lambda x, *b: b[0] + b[1] * x, x, y, [0, 0], method="trf", **options)
        found.append((report.parameters, report.standard_errors, np.sqrt(np.diag(scipys))))
    parameters, ours, scipys = np.moveaxis(np.array(found), 1, 0)
    scatter = np.std(parameters, axis=0)
    np.testing.assert_allclose(np.sqrt(np.mean(ours**2, axis=0)), scatter, rtol=0.25)
    if loss != "linear":  # what the recipe says of them
        assert (np.sqrt(np.mean(scipys**2, axis=0)) > 1.4 * scatter).all()


def test_no_standard_error_at_a_bound(objective):
    report = fitted(objective, observed(0.0), bounds=TIGHT)
    np.testing.assert_array_equal(report.at_bound, [True, False, True])
    np.testing.assert_array_equal(np.isnan(report.standard_errors), report.at_bound)
    np.testing.assert_array_equal(np.isfinite(report.covariance), np.outer(~report.at_bound, ~report.at_bound))
    assert report.degrees_of_freedom == 29
    assert "the elements 0, 2 (in the order of pack) are at a bound" in report.stands
    # The other's is that of a fit with the two fixed.
    rate = tf.Variable([1.0], dtype=tf.float64)
    alone = levenberg_marquardt(lambda: decay(tf, [2.5, rate[0], 0.6], X) - observed(0.0), wrt=rate)
    assert report.standard_errors[1] == pytest.approx(alone.standard_errors[0], rel=1e-6)
    # All at bounds: no parameter is left to have one.
    report = fitted(objective, observed(0.0), [0.5, 3.0, 0.9], bounds=([0.1, 3, 0.9], [0.6, 4, 1.0]))
    assert report.converged
    assert np.isnan(report.standard_errors).all()
    # A minimum that lies on the bound without being pushed there has none either.
    b = tf.Variable([2.0], dtype=tf.float64)
    assert np.isnan(levenberg_marquardt(lambda: b - [0.0, 2.0], wrt=b, bounds=(1, 9)).standard_errors)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bounds_are_in_the_order_of_pack(dtype):
    parameters = {"b": tf.Variable([[0.5, 0.5]], dtype=dtype), "a": tf.Variable(0.2, dtype=dtype)}
    bounds = [-np.inf, 0.1, 0.3], [0.7, np.inf, np.inf]
    target = tf.constant([1, -2, 0.4], dtype)
    report = levenberg_marquardt(lambda: pack(parameters) - target, wrt=parameters, bounds=bounds)
    np.testing.assert_array_equal(report.at_bound, [True, True, False])
    np.testing.assert_allclose(report.parameters, [0.7, 0.1, 0.4], rtol=1e-5)


def test_a_linear_problem_in_a_nested_structure():
    design, seen = np.stack([np.ones(30), X, X**2], axis=1), []
    y = observed(1.0)
    parameters = {"b": tf.Variable([0.0, 0.0], dtype=tf.float64), "a": tf.Variable(0.0, dtype=tf.float64)}

    def residuals(x):
        r = parameters["a"] + parameters["b"][0] * x + parameters["b"][1] * x**2 - y
        return r[:9], {"others": r[9:]}

    report = levenberg_marquardt(residuals, X, wrt=parameters, callback=seen.append)
    expected, *_ = np.linalg.lstsq(design, y, rcond=None)
    np.testing.assert_allclose(report.parameters, expected, rtol=1e-7)
    r = design @ expected - y
    np.testing.assert_allclose(report.covariance, r @ r / 27 * np.linalg.inv(design.T @ design), rtol=1e-7)
    np.testing.assert_allclose(parameters["b"], expected[1:], rtol=1e-7)
    assert (report.rank, report.residuals, report.degrees_of_freedom) == (3, 30, 27)
    assert seen == report.iterations
    assert all(one.slope < 0 for one in seen)
    assert report.value == pytest.approx(r @ r / 2)
    assert str(report).endswith(report.stands)


def test_in_float32():
    a, x = tf.Variable([1.0, 0.0]), tf.range(6.0)
    report = levenberg_marquardt(lambda: a[0] + a[1] * x - (2 - 3 * x + tf.sin(9 * x) / 100), wrt=a)
    assert report.converged, report.reason
    assert len(report.iterations) < 50
    np.testing.assert_allclose(a, [2, -3], atol=0.02)


ENDS = {
    "a fit": (lambda x: x - tf.constant([1.0, 2.0], tf.float64), [0.0, 0.0], 2, "a minimum of the linearised"),
    "at the start": (lambda x: x - tf.constant([1.0, 2.0], tf.float64), [1.0, 2.0], 2, "a minimum of the linear"),
    "a curved valley": (lambda x: (1 - x[0], 10 * (x[1] - x[0] ** 2)), [-1.2, 1.0], 2, "a minimum of the line"),
    "stretched": (lambda x: x * tf.constant([1.0, 1e-3], tf.float64), [1.0, 1.0], 2, "a minimum of the linear"),
    "one residual": (lambda x: x[0] + x[1] - 1, [0.0, 0.0], 1, "the Jacobian has rank 1 for 2 parameters"),
    "a maximum": (lambda x: x**2 - 1, [0.0, 0.0], 0, "the Jacobian has rank 0 for 2 parameters"),
    "a valley": (lambda x: tf.stack([x[0] - 1, x[0] - 1]), [0.0, 0.0], 1, "the Jacobian has rank 1 for 2"),
    "saturated": (lambda x: x[0] * (1 - tf.exp(-x[1] * X)) - X, [9.0, 2e3], 1, "the Jacobian has rank 1 for 2"),
}


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("name", ENDS)
def test_what_the_jacobian_tells_of_the_end(name):
    f, start, rank, sentence = ENDS[name]
    x = tf.Variable(start, dtype=tf.float64)
    report = levenberg_marquardt(lambda: f(x), wrt=x)
    assert report.converged, report.reason
    assert report.rank == rank
    assert report.stands.startswith(sentence)
    if rank < 2:
        with pytest.raises(ValueError, match=rf"rank {rank} for 2 parameters.*the elements .*1 \(in the order of pack"):
            _ = report.covariance


def test_no_covariance_without_scatter():
    x = tf.Variable([1.0, 1.0], dtype=tf.float64)
    with pytest.raises(ValueError, match="2 residuals for 2 parameters leave no degrees of freedom"):
        _ = levenberg_marquardt(lambda: x - [1.0, 2.0], wrt=x).standard_errors
    b = tf.Variable([2.0])
    report = levenberg_marquardt(lambda: b - [0.0, 1.0, 4.0, 9.0], wrt=b, loss="huber", f_scale=1e-3)
    with pytest.raises(ValueError, match="every residual is beyond f_scale"):
        _ = report.covariance


def test_a_jacobian_that_becomes_infinite():
    x = tf.Variable([1.0, 5.0], dtype=tf.float64)

    def residuals():
        # Its value is finite at 0, its derivative not; the first step ends there.
        return tf.stack([x[1], tf.where(x[0] > 0.5, x[0], tf.sqrt(tf.abs(x[0])))])

    with pytest.raises(NotFiniteError, match="magnitude nan one step from the point"):
        levenberg_marquardt(residuals, wrt=x)
    np.testing.assert_array_equal(x, [1.0, 5.0])
