"""Alternative texts: a person's figures have them, a batch run's are images as ever."""

import json
from types import SimpleNamespace

from tapelab.process import session
from tapelab.process.session import alternatives

import matplotlib.pyplot as plt
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display
from IPython.utils.capture import capture_output

ALT = 'A "line" that rises < 2.'


@pytest.fixture
def shown(monkeypatch, tmp_path):
    """A function that watches, runs a cell by its id, and returns what is displayed for a figure."""
    shell = InteractiveShell()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr("IPython.core.interactiveshell.InteractiveShell.initialized", lambda: True)
    monkeypatch.setattr("IPython.core.interactiveshell.InteractiveShell.instance", lambda: shell)
    monkeypatch.setattr(session, "attended", lambda: True)
    figure_cell = {"id": "one", "cell_type": "code", "metadata": {"alt": ALT}}
    other = {"id": "two", "cell_type": "code", "metadata": {}}
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": [figure_cell, other]}))
    monkeypatch.setenv("JPY_SESSION_NAME", str(tmp_path / "a.ipynb"))
    shell.display_formatter.formatters["image/png"].for_type_by_name("matplotlib.figure", "Figure", lambda f: b"PNG")

    def run(cell):
        metadata = {} if cell is None else {"cellId": cell}
        shell.kernel = SimpleNamespace(get_parent=lambda: {"metadata": metadata})
        alternatives.watch()
        figure, ax = plt.subplots()
        plt.close(figure)
        ax.plot([1, 2])
        with capture_output() as captured:
            display(figure)
        (output,) = captured.outputs
        run.metadata = output.metadata
        return output.data

    return run


def test_a_figure_has_its_cells_text(shown):
    data = shown("one")
    assert "image/png" not in data  # or a notebook would hold it twice
    assert data["text/html"].startswith(
        '<img alt="A &quot;line&quot; that rises &lt; 2." src="data:image/png;base64,iVBOR'
    )


@pytest.mark.dear(keep=1)
@pytest.mark.parametrize("cell", ["two", "new", None])
def test_a_cell_without_a_text_shows_an_image(shown, cell):
    assert shown(cell).keys() == {"text/plain", "image/png"}
    assert shown(cell)["image/png"].startswith("iVBOR")


def test_a_batch_run_shows_an_image_and_keeps_its_numbers_beside_it(shown, monkeypatch):
    monkeypatch.setattr(session, "attended", lambda: False)
    assert shown("one").keys() == {"text/plain", "image/png"}
    assert "<td>2</td>" in shown.metadata[alternatives.NUMBERS]


@pytest.mark.parametrize("content", [None, "no notebook", "[]", '{"cells": [{"id": "one", "metadata": null}]}'])
def test_what_is_no_notebook_changes_nothing(shown, monkeypatch, tmp_path, content):
    path = tmp_path / "other.ipynb"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("JPY_SESSION_NAME", str(path))
    assert "text/html" not in shown("one")


def test_without_ipython_nothing_happens(monkeypatch):
    monkeypatch.setattr("IPython.get_ipython", lambda: None)
    alternatives.watch()


def test_what_shows_itself_can_ask_for_its_cells_text(shown, monkeypatch):
    shown("one")
    assert alternatives.of_this_cell() == ALT
    shown("two")
    assert alternatives.of_this_cell() is None
    shown("one")
    monkeypatch.setattr(session, "attended", lambda: False)
    assert alternatives.of_this_cell() is None
