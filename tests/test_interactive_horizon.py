"""The figure of the horizon: where a forecast crosses 1, where the masses are, and that each control redraws it."""

from tapelab.interactive import horizon

import numpy as np
import pytest
from matplotlib.figure import Figure

TIMES = 0.005 * np.arange(4001)
RATE = 1.6


def runs():
    """Two runs, of which the second leaves the first as fast as the growth says, and stays within reach."""
    double = np.stack([np.sin(TIMES), np.cos(TIMES), np.cos(TIMES), -np.sin(TIMES)], axis=1)
    apart = np.minimum(1e-7 * np.exp(RATE * TIMES), 3.0)
    single = (double + apart[:, np.newaxis] * [1.0, 0.0, 0.0, 0.0]).astype(np.float32)
    return TIMES, np.exp(RATE * TIMES), double, single


def test_the_horizon_is_the_first_time_above_one():
    assert horizon.horizon([0.0, 0.5, 1.0, 1.5], [0.1, 1.0, 1.1, 0.5]) == 1.0
    assert horizon.horizon([0.0, 0.5], [0.1, 1.0]) == np.inf


def test_the_masses_hang_at_the_ends_of_rods_of_length_one():
    x, y = horizon.masses([0.0, np.pi / 2])
    np.testing.assert_allclose(x, [0, 0, 1], atol=1e-15)
    np.testing.assert_allclose(y, [0, -1, -1], atol=1e-15)
    x, y = horizon.masses(np.random.default_rng(0).normal(size=(5, 2)))
    assert x.shape == y.shape == (5, 3)
    np.testing.assert_allclose(np.hypot(np.diff(x), np.diff(y)), 1.0)


def test_the_time_starts_where_the_runs_part_and_the_difference_at_that_of_float32():
    start = horizon.figure(*runs()).start()
    assert start == {"time": pytest.approx(7 * np.log(10) / RATE, abs=0.1), "power": -7}


def test_runs_that_never_part_start_at_the_end_and_say_so():
    times, _, double, _ = runs()
    shown = horizon.figure(times, np.ones(len(times)), double, double)
    assert shown.start()["time"] == times[-1]
    texts = [text.get_text() for text in shown.still().axes[0].get_legend().get_texts()]
    assert all("never" in text for text in texts)


def test_every_end_is_drawn_with_titles_labels_and_both_times():
    shown = horizon.figure(*runs())
    for values in shown.ends():
        curves, picture = shown.still(**values).axes
        assert curves.get_title()
        assert curves.get_xlabel()
        assert curves.get_ylabel()
        found, forecast = (text.get_text() for text in curves.get_legend().get_texts())
        assert found.endswith("1 after 10.1 s")
        steady = -values["power"] * np.log(10) / RATE
        assert ("never" if steady > TIMES[-1] else f"after {steady:.1f} s") in forecast
        assert picture.get_title().startswith(f"{values['time']:.1f} s: the states differ by ")
        assert [text.get_text() for text in picture.get_legend().get_texts()] == ["float64", "float32"]


def test_the_pendulums_are_drawn_where_they_are_at_that_time():
    data = horizon.Runs(*runs())
    figure = Figure()
    horizon.draw(figure, runs=data, time=12.0, power=-7)
    rods = [line for line in figure.axes[1].lines if len(line.get_xdata()) == 3]
    for line, states in zip(rods, (data.double, data.single), strict=True):
        x, y = horizon.masses(states[2400, :2])
        np.testing.assert_array_equal(line.get_xdata(), x)
        np.testing.assert_array_equal(line.get_ydata(), y)
