"""The figure of refits and their ellipsoid: the fits, the counts, the title, and that the control redraws it."""

from tapelab import gradcheck
from tapelab.interactive import ellipse

import numpy as np
import pytest
import scipy.optimize
import scipy.stats


def _inside(noise, **options):
    return float(np.mean(ellipse.distances(ellipse.refits(noise, **options), noise) <= ellipse.LIMIT))


def test_the_limit_is_the_quantile():
    np.testing.assert_allclose(ellipse.LIMIT, scipy.stats.chi2.ppf(0.95, 4), rtol=1e-4)


def test_the_derivatives_are_those_of_the_curve():
    point = np.array([0.8, 0.4, 1.3, 1.9])
    numerical = gradcheck.numerical_jacobian(lambda p: ellipse.curves(p[np.newaxis])[0], point)
    np.testing.assert_allclose(ellipse.jacobians(point[np.newaxis])[0], numerical, atol=1e-7)


def test_every_fit_is_scipys():
    for noise in (0.003, 0.03):
        fits = ellipse.refits(noise, count=6, seed=3)
        draws = noise * np.random.default_rng(3).normal(size=(6, len(ellipse.TIMES)))
        for fit, draw in zip(fits, draws, strict=True):
            y = ellipse.curves(ellipse.TRUTH[np.newaxis])[0] + draw
            found = scipy.optimize.least_squares(lambda p, y=y: ellipse.curves(p[np.newaxis])[0] - y, ellipse.TRUTH)
            np.testing.assert_allclose(fit, found.x, rtol=2e-4)


@pytest.mark.dear
def test_a_small_cloud_fills_the_ellipsoid_and_a_large_one_bends_out_while_its_widths_stay():
    for seed in range(3):
        assert 0.93 < _inside(0.002, seed=seed) < 0.97
        assert 0.81 < _inside(0.03, seed=seed) < 0.89
        widths = ellipse.refits(0.03, seed=seed).std(axis=0) / np.sqrt(np.diag(ellipse.covariance(0.03)))
        np.testing.assert_allclose(widths, 1, atol=0.15)


def test_the_own_axes_make_the_ellipsoid_a_ball():
    fits = ellipse.refits(0.02, count=50)
    own = ellipse.axes(fits, 0.02)
    np.testing.assert_allclose(np.sum(own**2, axis=1), ellipse.distances(fits, 0.02), rtol=1e-9)
    small = ellipse.axes(ellipse.refits(0.002), 0.002)
    np.testing.assert_allclose(small.std(axis=0), 1, atol=0.1)
    bent = ellipse.axes(ellipse.refits(0.03), 0.03)
    assert np.mean(bent[np.abs(bent[:, 0]) > 1.5, 3]) > np.mean(bent[np.abs(bent[:, 0]) < 0.5, 3]) + 1  # a banana


@pytest.mark.dear
def test_the_title_counts_and_every_end_is_drawn():
    shown = ellipse.figure()
    for values in shown.ends():
        left, right = shown.still(**values).axes
        share = 100 * _inside(values["noise"])
        assert left.get_title() == f"noise {values['noise']:.3f}: {share:.1f} % inside the ellipsoid"
        assert "of predicted" in right.get_title()
        inside, outside, _ = (text.get_text() for text in left.get_legend().get_texts())
        assert int(inside.split()[-1]) + int(outside.split()[-1]) == 1000


def test_fits_beyond_the_edge_are_counted():
    beyond = int(np.sum(ellipse.axes(ellipse.refits(0.04), 0.04)[:, 3] > 7.5))
    (note,) = (text.get_text() for text in ellipse.figure().still(noise=0.04).axes[1].texts)
    assert note == f"{beyond} further up"
    assert not ellipse.figure().still(noise=0.002).axes[1].texts
