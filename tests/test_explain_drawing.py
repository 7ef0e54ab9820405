"""Drawings, measured as they are rendered: nothing overlaps, all is inside, causes are where the gradient is cut."""

import itertools
import random

import matplotlib as mpl
import numpy as np
import pytest

mpl.use("Agg")

from tapelab import runtime
from tapelab.explain import ExplainTape, draw
from tapelab.explain.drawing.draw import LIMIT
from tapelab.explain.drawing.layout import layered

import matplotlib.pyplot as plt
import tensorflow as tf

runtime.start(seed=0)


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def stopped():
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        x2 = x * x
        with tape.stop_recording():
            y2 = y * y
        z = x2 + y2
    return tape, z, [x, y]


def many_causes():
    @tf.custom_gradient
    def clip(value):
        return value * value, lambda upstream: tf.clip_by_norm(upstream, 0.5)

    sine = tf.function(tf.sin)
    x, y, w = tf.Variable(2.0), tf.Variable(3.0), tf.constant(1.0)
    with ExplainTape() as tape:
        a = clip(x)
        b = tf.stop_gradient(a * 2.0)
        c = sine(tf.convert_to_tensor(y)) + tf.round(y)
        d = w * 3.0
        e = tf.cast(tf.cast(x, tf.int32), tf.float32)
        loss = a * b + c * d + e
    return tape, loss, [x, y, w]


def left_tensorflow():
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        h = x * x
        loss = tf.square((float(h) + 1.0) * y)
    return tape, loss, [x, y]


def untouched_source():
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        loss = tf.square(y)
    return tape, loss, x


def constant_derivative():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        with ExplainTape() as inner:
            y = 2.0 * x
        slope = inner.gradient(y, x)
    return tape, slope, x


def reset():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = tf.sin(x)
        y = tf.exp(y)
        tape.reset()
        z = y * 2.0
    return tape, z, x


def through_state():
    x, total = tf.Variable(2.0), tf.Variable(0.0)
    with ExplainTape() as tape:
        total.assign_add(x * x)
        z = total * 3.0
    return tape, z, x


def python_code():
    x, y, z = tf.Variable(2.0), tf.Variable(3.0), tf.Variable(4.0)
    with ExplainTape() as tape:
        inner = tf.py_function(lambda value: value * tf.sin(y), [x * 1.0], tf.float32)
        loss = inner * tf.numpy_function(np.cos, [z], tf.float32)
    return tape, loss, [x, y, z]


def one_path_of_three():
    x, y = tf.Variable(2.0), tf.Variable(3.0)
    with ExplainTape() as tape:
        z = tf.sin(x) * x + tf.stop_gradient(x) + tf.round(y)
    return tape, z, [x, y]


def two_paths_of_three():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        z = tf.sin(x) + tf.stop_gradient(x) + tf.round(x)
    return tape, z, x


def target_of_another_dtype():
    x = tf.Variable([2.0, 1.0])
    with ExplainTape() as tape:
        z = tf.argmax(x * 2.0)
    return tape, z, x


def convolutional_net():
    layers = [
        tf.keras.layers.Conv2D(4, 3, activation="relu"),
        tf.keras.layers.BatchNormalization(),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(3),
    ]
    model = tf.keras.Sequential([tf.keras.Input((8, 8, 1)), *layers])
    with ExplainTape() as tape:
        logits = model(tf.ones((2, 8, 8, 1)), training=True)
        loss = tf.reduce_mean(tf.square(logits))
    return tape, loss, model.trainable_variables


def long_chain():
    x = tf.Variable(0.5)
    with ExplainTape() as tape:
        value = x
        for _ in range(100):
            value = tf.sin(value) * 1.01
    return tape, value, x


def residual():
    x, y = tf.Variable(0.5), tf.Variable(0.2)
    with ExplainTape() as tape:
        value = x
        for step in range(66):
            inner = tf.sin(value)
            value = value + inner * 0.1
            if step == 40:
                value = tf.round(value)
            if step % 10 == 0:
                value = value * y
    return tape, value, [x, y]


def recurrent():
    weights, start = tf.Variable(tf.eye(3)), tf.Variable(tf.ones((1, 3)))
    with ExplainTape() as tape:
        state = tf.convert_to_tensor(start)
        for _ in range(100):
            state = tf.tanh(tf.matmul(state, weights))
        loss = tf.reduce_sum(state)
    return tape, loss, [start, weights]


def tangle(seed, operations=200):
    """Operations on two random earlier values each, some of them cut off."""

    def program():
        generator = random.Random(seed)
        values = [tf.Variable(0.1), tf.Variable(0.2)]
        with ExplainTape() as tape:
            for _ in range(operations):
                made = generator.choice(values[-6:]) * generator.choice(values[-6:])
                values.append(tf.stop_gradient(made) if generator.random() < 0.05 else made)
        return tape, values[-1], values[:2]

    program.__name__ = f"tangle_{seed}_{operations}"
    return program


SMALL = [
    stopped,
    many_causes,
    left_tensorflow,
    untouched_source,
    constant_derivative,
    reset,
    through_state,
    target_of_another_dtype,
    python_code,
    one_path_of_three,
    two_paths_of_three,
]
LARGE = [convolutional_net, long_chain, residual, recurrent]
TANGLES = [tangle(0), tangle(1), tangle(2, 12), tangle(3, 12), tangle(4, 20)]
by_name = {"ids": lambda program: program.__name__}


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


@pytest.mark.thorough(keep=5)
@pytest.mark.parametrize("program", [*SMALL, *LARGE, *TANGLES], **by_name)
def test_nothing_overlaps_and_everything_is_inside(program):
    fig = draw(*program())
    found = measure(fig)
    width, height = fig.get_size_inches() * 72
    solid = [*found["box"], *found["cause"], *found["title"], *found["legend"]]
    for first, second in itertools.combinations(solid, 2):
        assert not overlap(first, second)
    for first, second in itertools.combinations(found["text"], 2):
        assert not overlap(first, second, slack=1.0)
    for text in found["text"]:
        around = [box for box in found["box"] if overlap(text, box)]
        assert len(around) == 1
        box = around[0]
        assert box[0] < text[0]
        assert box[1] < text[1]
        assert text[2] < box[2]
        assert text[3] < box[3]
    for extent in solid:
        assert min(extent) >= 0
        assert extent[2] <= width
        assert extent[3] <= height
    for points in found["link"]:
        assert points.min() >= 0
        assert points[:, 0].max() <= width
        assert points[:, 1].max() <= height
        for start, end in itertools.pairwise(points):
            assert not any(crosses(start, end, box) for box in (*found["box"], *found["cause"]))


@pytest.mark.parametrize("program", [*LARGE, tangle(0), tangle(1)], **by_name)
def test_large_tapes_are_collapsed(program):
    tape, target, sources = program()
    assert program is convolutional_net or len(tape.log.events) >= 200
    found = measure(draw(tape, target, sources))
    assert len(found["box"]) <= LIMIT + len(found["cause"])
    assert len(found["box"]) >= 3


def texts(fig, gid):
    return [text.get_text() for text in fig.axes[0].texts if text.get_gid() == gid]


CAUSES_DRAWN = {
    stopped: ["✕ recording stopped"],
    many_causes: ["✕ cast to an integer", "✕ not differentiable", "✕ not watched", "✕ stop_gradient"],
    left_tensorflow: ["✕ left TensorFlow"],
    untouched_source: ["✕ never read"],
    constant_derivative: ["✕ the derivative is constant"],
    reset: ["✕ tape reset"],
    through_state: ["✕ assigned to state"],
    target_of_another_dtype: ["✕ not differentiable", "✕ target is not real"],
    python_code: ["✕ left TensorFlow", "✕ not an argument of py_function"],
    residual: ["✕ not differentiable"],
    recurrent: [],
}


@pytest.mark.parametrize("program", CAUSES_DRAWN, **by_name)
def test_the_causes_are_written_on_the_cut_links(program):
    assert sorted(texts(draw(*program()), "cause")) == CAUSES_DRAWN[program]


def test_boxes_name_operation_line_and_mark():
    tape, loss, (x, y, w) = many_causes()
    shown = texts(draw(tape, loss, [x, y, w]), "text")
    assert "● clip · custom gradient" in shown
    assert any(text.endswith("· tf.function") for text in shown)
    assert "○ stop_gradient" in shown
    assert "● round" in shown
    assert any(text.startswith("line ") and text.endswith(": clip(x)") for text in shown)
    assert "● x" in shown
    assert "○ w" in shown


def test_recorded_and_not_recorded_differ_by_more_than_colour():
    fig = draw(*stopped())
    boxes = [patch for patch in fig.axes[0].patches if patch.get_gid() == "box"]
    assert len({patch.get_linestyle() for patch in boxes}) == 2
    assert len({text[0] for text in texts(fig, "text") if text[0] in "●○"}) == 2


def test_the_title_says_what_exists():
    tape, z, (x, y) = stopped()
    assert texts(draw(tape, z, [x, y]), "title") == ["The gradient of z exists for x, not for y"]
    assert texts(draw(tape, z, y), "title") == ["No gradient of z with respect to y"]
    assert texts(draw(tape, z, x), "title") == ["The gradient of z exists"]


def test_the_title_says_that_one_of_several_paths_is_cut():
    tape, z, (x, y) = one_path_of_three()
    assert texts(draw(tape, z, x), "title") == ["The gradient of z exists; one path from x is cut"]
    expected = ["The gradient of z exists for x, not for y; one path from x is cut"]
    assert texts(draw(tape, z, [x, y]), "title") == expected
    tape, z, x = two_paths_of_three()
    assert texts(draw(tape, z, x), "title") == ["The gradient of z exists; some paths from x are cut"]


def test_drawing_leaves_the_tape_as_it_was():
    tape, target, sources = stopped()
    events = len(tape.log.events)
    draw(tape, target, sources)
    assert len(tape.log.events) == events
    assert tape.gradient(target, sources)[0].numpy() == 4.0


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
