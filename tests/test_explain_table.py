"""The tape as a numbered table, the steps through it, and drawings with values."""

import re

from tapelab import runtime
from tapelab.explain import ExplainTape, draw, step_through, table

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import tensorflow as tf

mpl.use("Agg")
runtime.start(seed=0)


def squared():
    w = tf.Variable(3.0)
    with ExplainTape() as tape:
        loss = (2.0 * w + 1.0) ** 2
    return tape, loss, w


def test_the_table_has_values_downwards_and_gradients_upwards():
    tape, loss, w = squared()
    found = table(tape, loss, w)
    assert [(row.title, row.value, row.gradient) for row in found.rows] == [
        ("w", "3", "28"),
        ("multiply", "6", "14"),
        ("add", "7", "14"),
        ("pow", "49", "1"),
    ]
    assert str(found).splitlines()[-1].split("  ")[:1] == ["3"]
    assert "(2.0 * w + 1.0) ** 2" in str(found)
    assert "\\*\\*" in found._repr_markdown_()


def test_the_table_marks_where_trouble_began():
    x = tf.Variable([3.0, 0.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.sqrt(x) * 2.0)
    marked = [row.title for row in table(tape, loss, x).rows if "root_at_zero" in row.mark]
    assert marked == ["sqrt"]


def test_a_row_has_what_each_of_its_users_hands_it():
    x, w = tf.Variable(2.0), tf.Variable([1.0, -3.0])
    with ExplainTape() as tape:
        a = x * x
        y = a * (5.0 * x) + tf.reduce_sum(w)  # rows 0 and 1 are x and w
    rows = table(tape, y, [x, w]).rows
    assert rows[0].received == ((3, "20"), (2, "20"), (2, "20"))
    assert [row.received for row in rows[2:]] == [((4, "10"),), ((4, "4"),), ((6, "1"),), ((6, "1"),), ((None, "1"),)]
    assert rows[1].received == ((5, "norm 1.414"),)


def seen(page, step):
    """The rows of the table that the page shows at a step: a list of (value, gradient)."""
    assert f"input:nth-of-type(n+{step}):checked ~ table .from-{step} {{ visibility: visible; }}" in page
    page = re.sub(r'<span class="from-(\d+)">(.*?)</span>', lambda one: one[2] if int(one[1]) <= step else "", page)
    rows = re.findall(r"<tr class=.*?</tr>", page)
    return [tuple(re.sub("<.*?>", "", cell) for cell in re.findall("<td>(.*?)</td>", row)[3:]) for row in rows]


def test_steps_go_down_with_values_and_up_with_gradients():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        a = x * x
        b = 5.0 * x
        y = a + b
    found = step_through(tape, y, x)
    assert found.told[2] == "Down: row 2, 5.0 * x  [5, #0], has the value 10."
    assert found.told[4:] == (
        "Up: the gradient of y with respect to itself is 1.",
        "Up: row 3 hands 1 to row 1 and 1 to row 2.",
        "Up: row 2 hands 5 to row 0.",
        "Up: row 1 hands 2 to row 0 and 2 to row 0.",
    )
    assert str(found) == str(table(tape, y, x))
    page = found._repr_html_()
    assert seen(page, 1) == [("2", ""), ("", ""), ("", ""), ("", "")]
    assert seen(page, 3) == [("2", ""), ("4", ""), ("10", ""), ("", "")]
    assert seen(page, 5) == [("2", ""), ("4", ""), ("10", ""), ("14", "1")]
    assert seen(page, 6) == [("2", ""), ("4", "1"), ("10", "1"), ("14", "1")]
    assert seen(page, 7) == [("2", "5"), ("4", "1"), ("10", "1"), ("14", "1")]
    assert seen(page, 8) == [("2", "5, 2, 2; sum 9"), ("4", "1"), ("10", "1"), ("14", "1")]
    assert page.count('<input type="radio"') == page.count("<p>") == len(found.told) == 8
    # Without its style no button is seen that would do nothing.
    assert page.count('hidden="hidden"') == len(re.findall("<(?:input|label|legend)", page)) == 17
    assert re.findall(r"at-(\d) at-(\d)", page) == [("1", "9"), ("2", "8"), ("3", "7"), ("4", "6")]
    assert page == step_through(tape, y, x)._repr_html_()  # two runs store the same page


def test_a_page_of_steps_is_escaped():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = tf.maximum(x, abs(float(2 < 3)))
    assert "2 &lt; 3" in step_through(tape, y, x)._repr_html_()


@pytest.mark.parametrize("asked", [table, step_through])
def test_what_cannot_be_listed_is_refused(asked):
    tape, loss, _ = squared()
    with pytest.raises(TypeError, match="ExplainTape"):
        asked(tf.GradientTape(), loss, loss)
    with pytest.raises(ValueError, match="empty"):
        asked(tape, loss, [])


def texts(figure, gid):
    return [text.get_text() for text in figure.axes[0].texts if text.get_gid() == gid]


def test_a_drawing_has_values_on_boxes_and_cotangents_on_links():
    tape, loss, w = squared()
    figure = draw(tape, loss, w, values=True)
    assert sorted(texts(figure, "cotangent")) == ["1", "14", "14", "28"]
    inside = texts(figure, "text")
    assert {"= 3", "= 6", "= 7", "= 49", "↑ gradient 28"} <= set(inside)
    assert any(text.endswith(": (2.0 * w + 1.0) ** 2") for text in inside)
    assert texts(figure, "title") == ["The gradient of loss with respect to w: 28"]
    assert not texts(draw(tape, loss, w), "cotangent")
    plt.close("all")


def test_an_operation_that_takes_a_tensor_twice_has_an_arrow_each_way_for_each_time():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = x * x + 5.0 * x
    figure = draw(tape, y, x, values=True)
    assert sorted(texts(figure, "cotangent")) == ["1", "1", "1", "2", "2", "5"]
    assert {"● 0 x", "● 1 multiply", "● 2 multiply", "● 3 add", "● y"} <= set(texts(figure, "text"))
    ends = [line.get_ydata()[[0, -1]] for line in figure.axes[0].lines if line.get_gid() == "link"]
    assert sum(first > last for first, last in ends) == sum(first < last for first, last in ends) == 6
    tips = {note.arrow_patch.get_edgecolor() for note in figure.axes[0].texts if hasattr(note, "arrow_patch")}
    assert len(tips) == 2  # values and gradients are told apart
    plt.close("all")


def test_many_edges_between_two_boxes_are_drawn_as_one():
    x = tf.Variable(2.0)
    with ExplainTape() as tape:
        y = tf.add_n([x, x, x, x])
    assert sorted(texts(draw(tape, y, x, values=True), "cotangent")) == ["1", "4"]
    plt.close("all")


def test_a_drawing_marks_the_origin_by_words_and_a_thick_border():
    x = tf.Variable([3.0, 0.0])
    with ExplainTape() as tape:
        loss = tf.reduce_sum(tf.sqrt(x) * 2.0)
    figure = draw(tape, loss, x, values=True)
    assert "✖ infinity begins here: root_at_zero" in texts(figure, "text")
    widths = [patch.get_linewidth() for patch in figure.axes[0].patches if patch.get_gid() == "box"]
    assert sorted(widths)[-1] == 3.0 > sorted(widths)[-2]
    assert texts(figure, "title") == ["The gradient of loss with respect to x: infinite"]
    plt.close("all")
