"""What a screen reader is told of a figure with controls; how the page takes it, a browser tests (tests/browser)."""

from tapelab.interactive import clipping, names, paths
from tapelab.process.session import alternatives

import pytest


def test_the_box_is_marked_and_has_the_script_that_names_its_controls():
    controls, box = clipping.figure().widgets()
    assert names.CLASS in box._dom_classes
    *shown, _, hidden = box.children
    assert shown == list(controls.values())
    assert all(control.description for control in shown)  # a control's name is that of its label
    assert hidden.layout.display == "none"
    (output,) = hidden.outputs
    assert f'".{names.CLASS} > *"' in output["data"]["application/javascript"]


@pytest.fixture
def texts(monkeypatch):
    """The alternative texts that are shown, in a cell whose figure has the text "As drawn."."""
    shown = []
    monkeypatch.setattr(alternatives, "of_this_cell", lambda: "As drawn.")
    monkeypatch.setattr(alternatives, "show", lambda figure, text: shown.append(text))
    return shown


def test_a_moved_figure_keeps_its_text_and_says_what_moved(texts):
    controls, _ = paths.figure().widgets()
    controls["x"].value = 1.5
    controls["cut"].value = "all three"
    controls["x"].value, controls["cut"].value = 1.4, "g"
    assert texts == [
        "As drawn.",
        "The same figure for x 1.5, cut g. As it starts: As drawn.",
        "The same figure for x 1.5, cut all three. As it starts: As drawn.",
        "The same figure for x 1.4, cut all three. As it starts: As drawn.",
        "As drawn.",
    ]
