"""Drawings, measured as they are rendered: nothing overlaps, all is inside, causes are where the gradient is cut."""

import itertools
import random
import tomllib
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from tapelab import runtime
from tapelab.explain import ExplainTape, draw
from tapelab.explain.drawing.layout import layered

import matplotlib.pyplot as plt
import tensorflow as tf

runtime.start(seed=0)
PROGRAMS = Path(__file__).with_name("programs") / "drawing.toml"


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def tangle(seed, operations):
    """Operations on two random earlier values each, some of them cut off."""
    generator = random.Random(seed)
    values = [tf.Variable(0.1), tf.Variable(0.2)]
    with ExplainTape() as tape:
        for _ in range(operations):
            made = generator.choice(values[-6:]) * generator.choice(values[-6:])
            values.append(tf.stop_gradient(made) if generator.random() < 0.05 else made)
    return tape, values[-1], values[:2]


@pytest.fixture(scope="module")
def drawn(cell):
    """A function that runs a program of `programs/drawing.toml` and draws what it, or the question, asks for."""

    def run(program, question=None):
        return cell(f"{program['program']}fig = draw(tape, {question or program['draw']})").names

    return run


def measure(fig):
    """The rendered extents of everything in a figure, in points, by group: a list of (x0, y0, x1, y1) each."""
    fig.canvas.draw()
    scale = 72 / fig.dpi
    renderer = fig.canvas.get_renderer()
    found = {"box": [], "text": [], "cause": [], "title": [], "legend": []}
    for artist in (*fig.axes[0].patches, *fig.axes[0].texts):
        if artist.get_gid() in found:
            found[artist.get_gid()].append(scale * artist.get_window_extent(renderer).extents)
    found["link"] = [
        scale * fig.axes[0].transData.transform(line.get_xydata())
        for line in fig.axes[0].lines
        if line.get_gid() == "link"
    ]
    return found


def overlap(first, second, slack=0.0):
    return (
        first[0] < second[2] - slack
        and second[0] < first[2] - slack
        and first[1] < second[3] - slack
        and second[1] < first[3] - slack
    )


def crosses(start, end, box, inset=1.5):
    """Whether a segment enters a rectangle by more than a hair (Liang and Barsky)."""
    low, high = 0.0, 1.0
    for axis in (0, 1):
        delta = end[axis] - start[axis]
        to_low, to_high = box[axis] + inset - start[axis], box[axis + 2] - inset - start[axis]
        if delta == 0:
            if to_low > 0 or to_high < 0:
                return False
            continue
        first, second = sorted((to_low / delta, to_high / delta))
        low, high = max(low, first), min(high, second)
    return low < high


def check_layout(fig):
    """Nothing overlaps, and everything is inside."""
    found = measure(fig)
    width, height = fig.get_size_inches() * 72
    solid = [*found["box"], *found["cause"], *found["title"], *found["legend"]]
    for first, second in itertools.combinations(solid, 2):
        assert not overlap(first, second)
    for first, second in itertools.combinations(found["text"], 2):
        assert not overlap(first, second, slack=1.0)
    for text in found["text"]:
        (box,) = [box for box in found["box"] if overlap(text, box)]
        assert (box[:2] < text[:2]).all()
        assert (text[2:] < box[2:]).all()
    for extent in solid:
        assert (extent >= 0).all()
        assert (extent[2:] <= (width, height)).all()
    for points in found["link"]:
        assert points.min() >= 0
        assert (points <= (width, height)).all()
        for start, end in itertools.pairwise(points):
            assert not any(crosses(start, end, box) for box in (*found["box"], *found["cause"]))


@pytest.mark.thorough(keep=2, dear=1)
@pytest.mark.programs("drawing")
def test_programs_are_drawn_with_their_causes_and_nothing_overlaps(drawn, program):
    names = drawn(program)
    check_layout(names["fig"])
    if "drawn" in program:
        assert sorted(texts(names["fig"], "cause")) == program["drawn"]


@pytest.mark.thorough(keep=1)
@pytest.mark.parametrize(("seed", "operations"), [(2, 12), (3, 12), (4, 20)])
def test_nothing_overlaps_in_a_tangle(seed, operations):
    tape, *question = tangle(seed, operations)
    fig = draw(tape, *question)
    check_layout(fig)


def texts(fig, gid):
    return [text.get_text() for text in fig.axes[0].texts if text.get_gid() == gid]


def of(name):
    return tomllib.loads(PROGRAMS.read_text("utf-8"))[name]


def test_boxes_name_operation_line_and_mark(drawn):
    shown = texts(drawn(of("many_causes"))["fig"], "text")
    assert {"● clip · custom gradient", "○ stop_gradient", "● round", "● x", "○ w"} <= set(shown)
    assert any(text.endswith("· tf.function") for text in shown)
    assert any(text.startswith("line ") and text.endswith(": clip(x)") for text in shown)


def test_recorded_and_not_recorded_differ_by_more_than_colour(drawn):
    fig = drawn(of("stopped"))["fig"]
    boxes = [patch for patch in fig.axes[0].patches if patch.get_gid() == "box"]
    assert len({patch.get_linestyle() for patch in boxes}) == 2
    assert len({text[0] for text in texts(fig, "text") if text[0] in "●○"}) == 2


@pytest.mark.parametrize("name", ["stopped", "one_path_of_three", "two_paths_of_three"])
def test_the_title_says_what_exists_and_how_many_paths_are_cut(name, drawn):
    for question, title in of(name)["titles"]:
        assert texts(drawn(of(name), question)["fig"], "title") == [title]


def test_drawing_leaves_the_tape_as_it_was():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = x * x
    events = len(tape.log.events)
    draw(tape, y, x)
    assert len(tape.log.events) == events
    assert tape.gradient(y, x).numpy() == 4.0


def test_what_cannot_be_drawn_is_refused():
    x = tf.Variable(2.0)
    with tf.GradientTape() as plain:
        y = x * x
    with pytest.raises(TypeError, match="expected an ExplainTape"):
        draw(plain, y, x)
    with ExplainTape() as tape:
        y = x * x
    with pytest.raises(ValueError, match="sources is empty"):
        draw(tape, y, [])
    with pytest.raises(ValueError, match="of type float"):
        draw(tape, y, 2.0)
    tape, *question = tangle(0, 200)
    with pytest.raises(ValueError, match=r"boxes to draw, and a picture shows at most 60: .* table\(tape"):
        draw(tape, *question)


def test_a_layout_respects_rows_order_and_gaps():
    generator = np.random.default_rng(0)
    nodes = list(range(40))
    sizes = {node: (float(generator.integers(20, 120)), float(generator.integers(10, 40))) for node in nodes}
    links = sorted({tuple(sorted(map(int, pair))) for pair in generator.integers(0, 40, (70, 2)) if pair[0] != pair[1]})
    placed, routes = layered(sizes, links)
    assert set(placed) == set(nodes)
    for start, end in links:
        assert placed[start].row < placed[end].row
        assert placed[start].y > placed[end].y
        points = routes[start, end]
        assert points[0][1] == placed[start].y - placed[start].height / 2
        assert points[-1][1] == placed[end].y + placed[end].height / 2
        assert all(upper[1] >= lower[1] for upper, lower in itertools.pairwise(points))
    for first, second in itertools.combinations(placed.values(), 2):
        apart_x = abs(first.x - second.x) >= (first.width + second.width) / 2 + 10
        apart_y = abs(first.y - second.y) >= (first.height + second.height) / 2 + 10
        assert apart_x or apart_y
