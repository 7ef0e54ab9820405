"""The pictures' content: what is drawn where, and up to which limits."""

import base64
import io

from tapelab import plots
from tapelab.process.session import alternatives

import matplotlib
import numpy as np
import pytest
from PIL import Image

matplotlib.use("Agg")

TEXTS = {"title": "t", "xlabel": "column", "ylabel": "row"}


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    matplotlib.pyplot.close("all")


def test_a_matrix_is_drawn_with_zero_in_the_middle():
    values = np.array([[1.0, -3.0, 0.0], [0.5, 2.0, 1.0]])
    ax = plots.matrix(values, **TEXTS)
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), values)
    assert image.get_clim() == (-3.0, 3.0)
    assert (ax.get_title(), ax.get_xlabel(), ax.get_ylabel()) == ("t", "column", "row")
    assert len(ax.figure.axes) == 2  # the image and its colour bar


def test_two_matrices_can_share_a_scale():
    ax = plots.matrix([[1.0]], **TEXTS, limit=7.0, colorbar=False)
    assert ax.images[0].get_clim() == (-7.0, 7.0)
    assert len(ax.figure.axes) == 1


def test_a_matrix_of_zeros_and_one_with_nan_have_a_scale():
    assert plots.matrix(np.zeros((2, 2)), **TEXTS).images[0].get_clim() == (-1.0, 1.0)
    image = plots.matrix([[np.nan, 4.0], [np.inf, -2.0]], **TEXTS).images[0]
    assert image.get_clim() == (-4.0, 4.0)
    assert np.ma.getmaskarray(image.get_array()).tolist() == [[True, False], [True, False]]


def test_each_patch_holds_one_output_input_pair():
    batch, outs, ins = 3, 2, 4
    jacobian = np.arange(batch * outs * batch * ins, dtype=float).reshape(batch, outs, batch, ins)
    ax = plots.batch_patches(jacobian, title="t")
    drawn = np.asarray(ax.images[0].get_array())
    assert drawn.shape == (outs * batch, ins * batch)
    for out in range(outs):
        for inp in range(ins):
            patch = drawn[out * batch : (out + 1) * batch, inp * batch : (inp + 1) * batch]
            np.testing.assert_array_equal(patch, jacobian[:, out, :, inp])


def test_patches_are_ruled_off_and_numbered():
    ax = plots.batch_patches(np.zeros((3, 2, 3, 4)), title="t")
    edges = sorted(float(line.get_ydata()[0]) for line in ax.lines if line.get_ydata()[0] == line.get_ydata()[1])
    assert edges == [2.5]
    assert len(ax.lines) == (2 - 1) + (4 - 1)
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "1", "2", "3"]
    assert ax.get_xticks().tolist() == [1.0, 4.0, 7.0, 10.0]


def test_a_curve_and_its_derivative_differ_by_more_than_colour():
    x = np.linspace(-1, 1, 5)
    ax = plots.curve_with_derivative(x, x**2, 2 * x, title="t", label="square", derivative_label="slope")
    curve, derivative = ax.lines[-2:]
    np.testing.assert_array_equal(curve.get_ydata(), x**2)
    np.testing.assert_array_equal(derivative.get_ydata(), 2 * x)
    assert curve.get_linestyle() != derivative.get_linestyle()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["square", "slope"]


def test_a_spectrum_is_sorted_and_counted():
    ax = plots.spectrum([3.0, -1.0, 1e-12, 0.0, 2.0], title="t")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["positive: 2", "zero: 2", "negative: 1"]
    drawn = {line.get_label(): (line.get_xdata().tolist(), line.get_ydata().tolist()) for line in ax.lines[1:]}
    assert drawn["negative: 1"] == ([0], [-1.0])
    assert drawn["positive: 2"] == ([3, 4], [2.0, 3.0])


@pytest.fixture
def figure():
    """A figure with a bar that `draw` moves, and `draw`."""
    figure, ax = matplotlib.pyplot.subplots(figsize=(3, 2))
    (bar,) = ax.bar([0], [1], color=plots.RED)
    ax.set(title="It grows & grows", xlim=(-1, 1), ylim=(0, 10))
    return figure, bar.set_height


def test_a_moving_picture_has_a_frame_for_each_and_plays_once(figure):
    moving = plots.animate(*figure, range(1, 8), milliseconds=40, last=900)
    gif = Image.open(io.BytesIO(moving.gif))
    assert gif.n_frames == 7
    assert "loop" not in gif.info  # with it, a GIF repeats
    durations = []
    for index in range(7):
        gif.seek(index)
        durations.append(gif.info["duration"])
    assert durations == [40] * 6 + [900]
    assert not matplotlib.pyplot.fignum_exists(figure[0].number)


def test_what_moves_is_drawn_in_its_colour_in_every_frame_and_the_still_is_the_last(figure):
    moving = plots.animate(*figure, [1, 5, 9])
    gif = Image.open(io.BytesIO(moving.gif))
    red = np.array(matplotlib.colors.to_rgb(plots.RED)) * 255

    def area(image):
        return int((np.abs(np.asarray(image.convert("RGB")) - red).max(axis=-1) < 12).sum())

    areas = []
    for index in range(3):
        gif.seek(index)
        areas.append(area(gif))
    assert areas[0] > 0
    assert np.allclose(areas, np.array([1, 5, 9]) * areas[0], rtol=0.2)
    assert abs(area(Image.open(io.BytesIO(moving.still))) - areas[2]) < 0.05 * areas[2]


def test_a_moving_picture_is_shown_with_its_text_and_a_still_for_print(figure, monkeypatch):
    moving = plots.animate(*figure, [1, 2])
    shown = []
    monkeypatch.setattr("IPython.display.publish_display_data", lambda data, *metadata: shown.append((data, *metadata)))
    moving.show()
    monkeypatch.setattr(alternatives, "of_this_cell", lambda: 'A bar, "growing"')
    moving.show()
    (plain, metadata), (attended,) = shown
    assert "<td>2</td>" in attended["text/html"]  # the numbers of the last frame
    assert "<table>" not in plain["text/html"]
    assert "<td>2</td>" in metadata[alternatives.NUMBERS]
    assert 'alt="It grows &amp; grows"' in plain["text/html"]
    assert 'alt="A bar, &quot;growing&quot;"' in attended["text/html"]
    assert base64.b64encode(moving.gif).decode() in plain["text/html"]
    assert 'media="print, (prefers-reduced-motion: reduce)"' in plain["text/html"]
    assert base64.b64decode(plain["image/png"]) == moving.still


def test_a_moving_picture_needs_frames_and_time(figure):
    with pytest.raises(ValueError, match="frames is empty"):
        plots.animate(*figure, [])
    with pytest.raises(ValueError, match="milliseconds is 0"):
        plots.animate(*figure, [1], milliseconds=0)
