"""The picture of the page "How it compares" says what the page's table says."""

import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from tapelab.collection.publishing import ratios

import pytest

PAGE = (Path(__file__).parents[1] / "site" / "how_it_compares.md").read_text(encoding="utf-8")
TABLE = """| work | tapelab, ms | TensorFlow, plain | JAX | PyTorch | PyTorch, compiled |
|---|---|---|---|---|---|
| quick & small | 0.5 | 1697 | 0.5 | failed | 2 |
| none | 1 |  |  |  |  |
"""


def test_a_table_is_read():
    assert ratios.rows(TABLE) == [
        ratios.Row("quick & small", {"TensorFlow, plain": 1697.0, "JAX": 0.5, "PyTorch, compiled": 2.0})
    ]


def places(picture):
    """Where the points of a picture stand, left to right: from their titles."""
    found = re.findall(r'translate\(([\d.]+) [\d.]+\)"[^>]*><title>(.*?)</title>', picture)
    return {title: float(place) for place, title in found}


def test_faster_is_to_the_right_and_a_loss_has_a_mark_like_a_win():
    picture = ratios.figure(ratios.rows(TABLE))
    ElementTree.fromstring(picture)
    found = places(picture)
    one = float(re.search(r'class="one" d="M([\d.]+) ', picture)[1])
    loss, win = found["JAX, quick &amp; small: 0.5"], found["PyTorch, compiled, quick &amp; small: 2"]
    assert one - loss == pytest.approx(win - one, abs=0.2)
    assert loss < one
    assert "TensorFlow, plain 1697 →" in picture
    assert "← the peer is faster: 1" in picture
    assert "tapelab is faster: 2 →" in picture
    assert "JAX in quick &amp; small" in re.search(r"<desc[^>]*>(.*?)</desc>", picture)[1]


def test_every_figure_of_the_page_is_in_its_picture():
    works = ratios.rows(PAGE)
    picture = ratios.figure(works)
    assert len(works) > 15
    for row in works:
        for peer, ratio in row.ratios.items():
            point = f"{peer}, {row.work}: {ratio:g}".replace("'", "&#39;")
            assert f"<title>{point}</title>" in picture or f"{peer} {ratio:g} →" in picture, point


def test_no_point_hides_another():
    found = re.findall(r'translate\(([\d.]+) ([\d.]+)\)"', ratios.figure(ratios.rows(PAGE)))
    points = [(float(x), float(y)) for x, y in found]
    assert len(points) > 60
    near = [(a, b) for i, a in enumerate(points) for b in points[:i] if abs(a[0] - b[0]) < 9 and abs(a[1] - b[1]) < 9]
    assert near == []
