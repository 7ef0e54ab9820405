"""The numbers of a figure, as tables: what is drawn is told, as often as it is drawn, and nothing else."""

import re

from tapelab.process.session import figure_data

import matplotlib.pyplot as plt
import numpy as np
import pytest


def tables(draw):
    """What `draw` draws into axes, told: the caption and the rows of each table."""
    figure, ax = plt.subplots()
    plt.close(figure)
    draw(ax)
    found = []
    for table in re.findall(r"<table>(.*?)</table>", figure_data.fold(figure)):
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
        found.append((re.search(r"<caption>(.*?)</caption>", table)[1], rows))
    return found


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("draw", "caption", "rows"),
    [
        (lambda ax: ax.plot([1, 2], [0.5, np.nan], label="a < b"), "line “a &lt; b”", [["1", "0.5"], ["2", "none"]]),
        (lambda ax: ax.scatter([1], [3]), "points", [["1", "3"]]),
        (lambda ax: ax.bar(["one", "two"], [3, -4]), "bars", [["one", "3"], ["two", "-4"]]),
        (lambda ax: ax.barh([0.25], [7]), "bars", [["7", "0.25"]]),
        (lambda ax: ax.imshow([[1, 2]]), "matrix, 1 by 2", [["1", "2"]]),
        (lambda ax: ax.imshow([[1, np.nan]]), "matrix, 1 by 2", [["1", "none"]]),  # which Matplotlib masks
        (lambda ax: ax.imshow(np.eye(50)), "matrix, 50 by 50", [["0", "1"]]),
        (lambda ax: ax.axhline(2, label="exact"), "line across “exact”", [["2"]]),
        (lambda ax: ax.axvline(5, label="here"), "line upright “here”", [["5"]]),
    ],
)
def test_what_is_drawn_is_told(draw, caption, rows):
    ((told, (_heads, *body)),) = tables(draw)
    assert (told, body) == (caption, rows)


def test_the_columns_are_the_axes():
    def draw(ax):
        ax.plot([1], [2])
        ax.set(xlabel="step", ylabel="loss", title="A run")

    ((caption, (heads, _)),) = tables(draw)
    assert (caption, heads) == ("A run: line", ["step", "loss"])


def test_a_long_line_is_told_from_its_first_point_to_its_last():
    ((caption, (_, *body)),) = tables(lambda ax: ax.plot(np.arange(1001)))
    assert caption.endswith("(50 of 1001)")
    assert (len(body), body[0], body[-1]) == (50, ["0", "0"], ["1000", "1000"])


def test_a_picture_of_words_and_grid_lines_has_no_fold():
    assert tables(lambda ax: ax.text(0, 0, "a word")) == []
    assert tables(lambda ax: ax.axhline(0)) == []
    assert not figure_data.fold(plt.figure())


def test_bars_over_a_shared_axis_are_told_in_each_panel():
    figure, (upper, lower) = plt.subplots(2, sharex=True)
    plt.close(figure)
    upper.bar(["one"], [3])
    lower.bar(["one"], [4])
    assert re.findall(r"<td>(.*?)</td>", figure_data.fold(figure)) == ["one", "3", "one", "4"]


def test_a_drawing_without_axes_has_no_numbers_but_those_of_an_image():
    def draw(ax):
        ax.plot([1, 2])
        ax.imshow([[3]])
        ax.set_axis_off()

    assert tables(draw) == [("matrix, 1 by 1", [["0"], ["3"]])]


def test_the_colours_of_a_scale_are_no_numbers_of_the_figure():
    assert len(tables(lambda ax: ax.figure.colorbar(ax.imshow([[1, 2]])))) == 1
