"""The figure of notebook 05: which path a `stop_gradient` cuts."""

from tapelab import gradcheck
from tapelab.interactive import paths

import numpy as np
import pytest
from matplotlib import colors

POINTS = [-3.0, 0.0, 1.4]


@pytest.mark.parametrize("cut", paths.CUTS.values())
@pytest.mark.parametrize("x", POINTS)
def test_the_gradient_is_the_derivative_of_what_is_left_when_the_cut_is_held(x, cut):
    slope = gradcheck.numerical_jacobian(lambda point: paths.held(point, x, cut), x)
    np.testing.assert_allclose(slope, paths.gradient(x, cut) or 0.0, rtol=1e-6, atol=1e-6)


def test_at_the_start_the_cut_turns_the_sign():
    start = paths.figure().start()
    assert paths.gradient(start["x"], ()) < 0 < paths.gradient(start["x"], paths.CUTS[start["cut"]])


@pytest.mark.parametrize("values", paths.figure().ends(), ids=str)
def test_every_end_is_drawn_with_a_cross_for_each_cut(values):
    picture = paths.figure().still(**values)
    graph, ax = picture.axes
    assert [line.get_marker() for line in graph.lines] == ["X"] * len(paths.CUTS[values["cut"]])
    styles = [arrow.arrow_patch.get_linestyle() for arrow in graph.texts if getattr(arrow, "arrow_patch", None)]
    assert styles.count("--") == len(paths.CUTS[values["cut"]])
    assert ax.get_title() == f"Cut: {values['cut']}"


def test_the_tangents_have_the_slopes_that_the_legend_names():
    ax = paths.figure().still(x=1.4, cut="g").axes[1]
    slopes = {line.get_label(): np.diff(line.get_ydata()) / np.diff(line.get_xdata()) for line in ax.lines}
    np.testing.assert_allclose(slopes["true derivative: -0.46"], paths.gradient(1.4, ()), rtol=1e-9)
    np.testing.assert_allclose(slopes["the tape's gradient: 1.48"], paths.gradient(1.4, ("g",)), rtol=1e-9)
    reds = [line for line in ax.lines if colors.same_color(line.get_color(), paths.plots.RED)]
    assert [line.get_linestyle() for line in reds] == ["--"]


def test_where_all_is_cut_no_tangent_of_the_tape_is_drawn():
    ax = paths.figure().still(cut="all three").axes[1]
    labelled = {line.get_label(): line for line in ax.lines}
    assert len(labelled["the tape's gradient: None"].get_xdata()) == 0
