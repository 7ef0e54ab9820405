"""The figure that shows where a clip norm is applied."""

from tapelab.interactive import clipping

import numpy as np
import pytest
import tensorflow as tf

TRUE = [np.array([3.0, 4.0]), np.array([[12.0], [0.0], [0.0]])]  # norms 5 and 12, together 13


def drawn_with(way, limit, second):
    return clipping.clip([clipping.FIRST, second * np.array([0.96, -0.28])], limit, way)


@pytest.mark.parametrize("limit", [0.1, 1.0, 4.9, 6.5, 12.0, 12.9, 50.0])
def test_it_clips_as_tensorflow_does(limit):
    random = np.random.default_rng(0)
    for true in (TRUE, [random.normal(size=5), random.normal(size=(5, 6)), np.zeros(6)]):
        theirs = {
            "each norm": [tf.clip_by_norm(g, limit) for g in true],
            "global norm": tf.clip_by_global_norm(true, limit)[0],
            "value": [tf.clip_by_value(g, -limit, limit) for g in true],
        }
        assert set(theirs) == set(clipping.WAYS)
        for way, expected in theirs.items():
            for mine, other in zip(clipping.clip(true, limit, way), expected, strict=True):
                np.testing.assert_allclose(mine, other, rtol=1e-12)


def test_the_worked_example_of_the_notebook():
    each, both = (clipping.clip(TRUE, 6.5, way) for way in ("each norm", "global norm"))
    np.testing.assert_allclose([clipping.norm([g]) for g in each], [5.0, 6.5])
    np.testing.assert_allclose([clipping.norm([g]) for g in both], [2.5, 6.0])
    np.testing.assert_allclose(clipping.turn(TRUE, each), np.degrees(np.arccos(103 / (13 * np.hypot(5, 6.5)))))


@pytest.mark.dear(keep=4)
@pytest.mark.parametrize("values", clipping.figure().ends(), ids=str)
def test_it_is_drawn_at_both_ends_of_every_control(values):
    figure = clipping.figure().still(**values)
    figure.canvas.draw()
    first, second, turned, length = figure.axes
    true = drawn_with("value", 1e6, values["second"])
    clipped = drawn_with(values["way"], values["limit"], values["second"])
    assert f"{clipping.turn(true, clipped):.1f}°" in turned.get_title()
    assert f"{clipping.norm(clipped):.1f} of {clipping.norm(true):.1f}" in length.get_title()
    for ax, parts in ((first, (true[0], clipped[0])), (second, (true[1], clipped[1]))):
        for x, y in parts:
            assert ax.get_xlim()[0] <= x <= ax.get_xlim()[1]
            assert ax.get_ylim()[0] <= y <= ax.get_ylim()[1]
    for values_of_line in (line.get_ydata() for line in turned.lines):
        assert np.all((np.asarray(values_of_line) > -2) & (np.asarray(values_of_line) < 62))
