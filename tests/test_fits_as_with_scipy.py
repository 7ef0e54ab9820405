"""Uncertainties, bounds and robust losses of `levenberg_marquardt`: the results are SciPy's, and where not, why."""

from tapelab.derivatives import pack
from tapelab.optimize import Objective, levenberg_marquardt
from tapelab.optimize.losses import Loss
from tapelab.runtime import tf

import numpy as np
import pytest
import scipy.optimize

X = np.linspace(0.0, 4.0, 30)
NOISE = 0.05 * np.sin(np.arange(30.0) ** 2)
OUTLIERS = np.where(np.arange(30) % 7 == 3, 2.0, 0.0) - np.where(np.arange(30) % 11 == 5, 1.5, 0.0)
SIGMA = 0.05 * (1 + X)
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
    return levenberg_marquardt(objective, y, iterations=500, **options)


@pytest.mark.thorough(keep=5, dear=2)
@pytest.mark.parametrize("bounds", [WIDE, TIGHT, CORNER], ids=["wide", "tight", "corner"])
@pytest.mark.parametrize(
    ("loss", "f_scale"), [("linear", 1.0), ("soft_l1", 0.01), ("soft_l1", 0.1), ("huber", 0.01), ("huber", 0.1)]
)
@pytest.mark.parametrize("outliers", [0.0, 1.0])
def test_scipy_finds_the_same_minimum(objective, outliers, loss, f_scale, bounds):
    y, start = observed(outliers), START if bounds is not CORNER else [1.0, 2.5, 0.95]
    found = scipy.optimize.least_squares(
        lambda b: decay(np, b, X) - y, start, loss=loss, f_scale=f_scale, bounds=bounds,
        ftol=1e-14, xtol=1e-14, gtol=1e-14, max_nfev=2000,
    )  # fmt: skip
    report = fitted(objective, y, start, bounds=bounds, loss=loss, f_scale=f_scale)
    assert report.converged, report.reason
    assert report.value == pytest.approx(found.cost, rel=1e-8)
    np.testing.assert_allclose(report.parameters, found.x, rtol=2e-5)
    np.testing.assert_array_equal(objective.wrt, report.parameters)
    # SciPy's method keeps within the bounds, and how near it comes depends on the machine; ours ends on them.
    lower, upper = (np.broadcast_to(bound, 3) for bound in bounds)
    at_bound = np.isclose(found.x, lower, rtol=2e-5) | np.isclose(found.x, upper, rtol=2e-5)
    np.testing.assert_array_equal(report.at_bound, at_bound)
    np.testing.assert_array_equal(report.parameters[at_bound], np.clip(found.x.round(3), lower, upper)[at_bound])
    assert len(report.iterations) <= 32  # reweighted least squares take more than twice as many
    # From there on it knows that it is there.
    again = fitted(objective, y, report.parameters, bounds=bounds, loss=loss, f_scale=f_scale, gradient_tolerance=1e-6)
    assert again.iterations == []
    assert again.gradient_norm < 1e-4


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.parametrize("absolute_sigma", [False, True])
@pytest.mark.parametrize("sigma", [None, 0.3, SIGMA], ids=["none", "a number", "a vector"])
def test_curve_fit_finds_the_same_errors(objective, sigma, absolute_sigma):
    y = observed(0.0)
    each = sigma if sigma is None else np.broadcast_to(sigma, X.shape)
    best, covariance = scipy.optimize.curve_fit(
        lambda x, *b: decay(np, b, x), X, y, START, each, absolute_sigma, ftol=1e-14, xtol=1e-14
    )

    def by_hand(_):
        falling = np.exp(-objective.wrt.numpy()[1] * X)
        return np.stack([falling, -objective.wrt.numpy()[0] * X * falling, np.ones_like(X)], axis=1)

    for jacobian in (None, by_hand):
        report = fitted(objective, y, sigma=sigma, absolute_sigma=absolute_sigma, jacobian=jacobian)
        np.testing.assert_allclose(report.parameters, best, rtol=1e-6)
        np.testing.assert_allclose(report.covariance, covariance, rtol=1e-5)
        np.testing.assert_allclose(report.standard_errors, np.sqrt(np.diag(covariance)), rtol=1e-5)


def test_a_known_deviation_needs_no_degrees_of_freedom():
    b = tf.Variable([0.0, 0.0], dtype=tf.float64)
    report = levenberg_marquardt(lambda: b * [1.0, 2.0] - 1, wrt=b, sigma=[0.5, 0.2], absolute_sigma=True)
    np.testing.assert_allclose(report.standard_errors, [0.5, 0.1])


@pytest.mark.parametrize("loss", ["linear", "soft_l1", "huber"])
def test_derivatives_and_falls_of_the_losses(loss):
    """Against differences of the cost, which is SciPy's by the tests above."""
    loss, r, h = Loss(loss, 0.5) if loss != "linear" else Loss(loss), np.array([-3.0, -0.3, 0.0, 0.2, 1e4]), 1e-5
    first, second = loss.derivatives(r)

    def fall(start, end):
        return np.array([loss.fall(np.array([a]), np.array([b])) for a, b in zip(start, end, strict=True)])

    np.testing.assert_allclose(fall(r + h, r - h) / (2 * h), first, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(
        (loss.derivatives(r + h)[0] - loss.derivatives(r - h)[0]) / (2 * h), second, rtol=1e-6, atol=1e-9
    )
    # A fall that the difference of two sums would lose.
    near = np.array([3.0, 0.7, 0.1]) * (1 + 1e-14)
    np.testing.assert_allclose(
        loss.fall(near, near / (1 + 1e-14)), loss.derivatives(near)[0] @ (near - near / (1 + 1e-14)), rtol=1e-3
    )


@pytest.mark.thorough
@pytest.mark.parametrize("loss", ["linear", "soft_l1", "huber"])
def test_standard_errors_are_the_scatter_of_many_fits(loss):
    """One observation in ten is an outlier."""
    rng, x, b = np.random.default_rng(1), np.linspace(-1, 1, 60), tf.Variable(np.zeros(2))
    objective = Objective(lambda y: b[0] + b[1] * x - y, wrt=b, compile="graph")
    options, found = {"loss": loss, "f_scale": 1.0 if loss == "linear" else 0.1}, []
    for _ in range(200):
        y = 1 + 2 * x + 0.1 * rng.normal(size=60) * np.where(rng.random(60) < 0.1, 10, 1)
        report = fitted(objective, y, [0, 0], **options)
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
    assert report.stands in str(report)
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


@pytest.mark.thorough(keep=3, dear=1)
@pytest.mark.parametrize("damping", [1e-6, 1e3])
@pytest.mark.parametrize("start", [[1.9, 0.0], [2.0, 2.0], [0.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
def test_bounded_linear_problems_from_every_corner(start, damping):
    """Columns that are nearly parallel: the step of one parameter alone has another sign than with the other."""
    design, y = np.array([[1.0, 0.9], [0.9, 1.0], [1.0, 1.0]]), np.array([4.0, -3.0, 1.5])
    b, seen = tf.Variable(start, dtype=tf.float64), []

    def residuals():
        if tf.executing_eagerly():
            seen.append(b.numpy())
        return tf.linalg.matvec(design, b) - y

    report = levenberg_marquardt(residuals, wrt=b, bounds=(0, [2.0, 2.0]), damping=damping)
    assert report.converged
    np.testing.assert_allclose(b, scipy.optimize.lsq_linear(design, y, (0, 2)).x, atol=1e-7)
    assert len(seen) > 1
    assert all(((point >= 0) & (point <= 2)).all() for point in seen)


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bounds_nested_as_the_variables(dtype):
    parameters = {"b": tf.Variable([[0.5, 0.5]], dtype=dtype), "a": tf.Variable(0.2, dtype=dtype)}
    bounds = {"b": np.array([0.1, 0.3]), "a": -np.inf}, {"b": np.inf, "a": 0.7}
    report = levenberg_marquardt(
        lambda: pack(parameters) - tf.constant([1, -2, 0.4], dtype), wrt=parameters, bounds=bounds
    )
    np.testing.assert_array_equal(report.at_bound, [True, True, False])  # in the order of pack: a, b
    np.testing.assert_array_equal(parameters["a"], np.asarray(0.7, dtype))
    np.testing.assert_array_equal(parameters["b"][0, 0], np.asarray(0.1, dtype))


def test_what_is_refused_leaves_the_variables_alone():
    b = tf.Variable([1.0, 2.0, 3.0], dtype=tf.float64)
    with pytest.raises(ValueError, match="starts at 3, outside the bounds 0 and 2"):
        levenberg_marquardt(lambda: tf.concat([b, b[:1]], 0), wrt=b, bounds=(0, [9, 9, 2]))
    np.testing.assert_array_equal(b, [1, 2, 3])


def test_no_covariance_where_all_are_outliers():
    report = levenberg_marquardt(
        lambda: b - [0.0, 1.0, 4.0, 9.0], wrt=(b := tf.Variable([2.0])), loss="huber", f_scale=1e-3
    )
    with pytest.raises(ValueError, match="every residual is beyond f_scale"):
        _ = report.covariance
