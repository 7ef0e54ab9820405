"""Alternative texts for the figures of a notebook, where the front-end gives an image none.

A notebook stores a figure's alternative text with its cell, as ``alt``. JupyterLab shows that to nobody: it renders an
image without a text, and a screen reader meets a gap. So where a person sits in front of the kernel, a figure is shown
as HTML, an ``<img>`` with its text and, folded below it, its numbers. In Jupyter's servers the kernel is told the file
(``JPY_SESSION_NAME``), and with each cell its id. Elsewhere, and for a cell that has no text, nothing changes.
"""

import base64
import functools
import html
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

from tapelab.process import session
from tapelab.process.session import figure_data


def watch() -> None:
    """Give the figures of this session's notebook their alternative texts. Outside a Jupyter server, nothing."""
    shell, texts = _shell_and_texts()
    if texts:
        formatter = shell.display_formatter.ipython_display_formatter
        formatter.for_type_by_name("matplotlib.figure", "Figure", functools.partial(_show, shell.kernel, texts))


def of_this_cell() -> str | None:
    """Return the alternative text of the cell that runs, or None where no person watches or it has none."""
    shell, texts = _shell_and_texts()
    return _text(shell.kernel, texts) if texts else None


def show(figure: Any, text: str | None) -> None:
    """Show a Matplotlib figure as HTML, its alternative text and its numbers; without a text, as an image."""
    from IPython.display import publish_display_data

    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")  # as Matplotlib's inline backend draws it
    picture = base64.b64encode(file.getvalue()).decode()
    shown = {"image/png": picture}
    if text is not None:
        image = f'<img alt="{html.escape(text)}" src="data:image/png;base64,{picture}">'
        shown = {"text/html": image + figure_data.fold(figure)}
    publish_display_data({"text/plain": repr(figure), **shown})


def _shell_and_texts():
    """IPython's shell, and the texts of the notebook that a person has open (none where nobody has one open)."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    attended = shell is not None and session.attended()
    return shell, _texts(os.environ.get("JPY_SESSION_NAME", "")) if attended else {}


def _text(kernel, texts):
    return texts.get(kernel.get_parent().get("metadata", {}).get("cellId"))


def _texts(path):
    """From the ids of a notebook's cells to their alternative texts; empty where there is no such notebook."""
    try:
        cells = json.loads(Path(path).read_bytes())["cells"]
        return {cell["id"]: str(cell["metadata"]["alt"]) for cell in cells if "alt" in cell["metadata"]}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _show(kernel, texts, figure):
    show(figure, _text(kernel, texts))
