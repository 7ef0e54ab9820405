"""The figure of the edge of stability: the valley's derivatives, where the sharpness settles, and the controls."""

from tapelab import gradcheck
from tapelab.interactive import edge

import numpy as np
import pytest

PULL = 0.02


def test_the_derivatives_are_those_of_the_loss():
    for point in ([0.3, 1.2], [-0.8, 2.5], [0.0, 3.0]):
        by_differences = gradcheck.numerical_jacobian(lambda p: edge.loss(p, PULL), point)
        np.testing.assert_allclose(edge.gradient(point, PULL), by_differences, atol=1e-7)
        by_differences = gradcheck.numerical_jacobian(lambda p: edge.gradient(p, PULL), point)
        np.testing.assert_allclose(edge.hessian(point, PULL), by_differences, atol=1e-7)


def test_the_minimum_is_sharper_than_what_the_rates_of_the_slider_bear():
    sharpest = np.linalg.eigvalsh(edge.hessian([0.0, edge.TARGET], PULL))[-1]
    assert sharpest == edge.TARGET**2
    rate = edge.figure().controls["rate"]
    assert 2 / rate.high < 2 / rate.start < sharpest < 2 / rate.low


@pytest.mark.parametrize("rate", [0.32, 0.4, 0.5, 0.6])
def test_the_sharpness_climbs_to_the_limit_and_stays_about_there(rate):
    run = edge.descend(rate, PULL)
    assert run.sharpness[0] < 0.6 * 2 / rate
    assert 0.97 < np.median(run.sharpness[200:]) * rate / 2 < 1.03
    assert (np.diff(run.losses) > 0).sum() > 100
    assert run.losses.max() < 1


def test_below_the_limit_it_goes_on_to_the_minimum():
    run = edge.descend(0.2, PULL)
    assert run.left is None
    assert run.parabola.size == 0
    assert run.sharpness[-1] < 0.75 * 2 / 0.2
    longer = edge.descend(0.2, PULL, steps=3000, kick=0.0)
    np.testing.assert_allclose(longer.points[-1], [0.0, edge.TARGET], atol=1e-4)


def test_the_parabola_diverges_where_the_valley_does_not():
    run = edge.descend(0.4, PULL)
    assert run.sharpness[run.left] > 1.05 * 5 > run.sharpness[: run.left].max()
    assert run.parabola[0] == pytest.approx(run.losses[run.left])
    assert run.parabola[-1] > 1e6
    assert len(run.points) == edge.STEPS


def test_at_the_limit_the_right_bounce_keeps_b_where_it_is():
    rate, b = 0.4, 5**0.5
    point = np.array([(PULL * (edge.TARGET - b) / b) ** 0.5, b])
    after = point - rate * edge.gradient(point, PULL)
    np.testing.assert_allclose(after, [-point[0], b], rtol=1e-12)


def test_a_run_that_diverges_is_called_off():
    run = edge.descend(5.0, PULL)
    assert len(run.points) < edge.STEPS
    assert np.isfinite(run.losses).all()


def test_every_end_is_drawn_with_the_limit():
    shown = edge.figure()
    for values in shown.ends():
        plane, sharp, losses = shown.still(**values).axes
        assert sharp.get_legend().get_texts()[0].get_text() == f"2 / rate = {2 / values['rate']:.2f}"
        run = edge.descend(**values)
        assert len(run.points) == edge.STEPS  # none of them diverges
        np.testing.assert_array_equal(plane.lines[0].get_xydata(), run.points)
        assert len(losses.lines) == 1 + (run.left is not None)
