"""Alternative texts for the figures of a notebook, where the front-end gives an image none.

A notebook stores a figure's alternative text with its cell, as ``alt``. JupyterLab shows that to nobody: it renders an
image without a text, and a screen reader meets a gap. So where a person sits in front of the kernel, a figure is shown
as HTML, an ``<img>`` with its text and, folded below it, its numbers. In Jupyter's servers the kernel is told the file
(``JPY_SESSION_NAME``), and with each cell its id. A cell that has no text shows an image, as ever.

In a batch run every figure is an image, and its numbers are in the output's metadata (`NUMBERS`), where no front-end
shows them and nbval compares nothing: the site puts them below the picture.
"""

import base64
import functools
import html
import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tapelab.process import session
from tapelab.process.session import figure_data

NUMBERS = "tapelab_figure_data"  # the key of a figure's numbers, as HTML, in the metadata of its output


def watch() -> None:
    """Give the figures of this session's notebook their alternative texts and numbers. Without a kernel, nothing."""
    shell, texts = _shell_and_texts()
    if texts or (getattr(shell, "kernel", None) is not None and not session.attended()):
        formatter = shell.display_formatter.ipython_display_formatter
        formatter.for_type_by_name("matplotlib.figure", "Figure", functools.partial(_show, shell.kernel, texts))


def of_this_cell() -> str | None:
    """Return the alternative text of the cell that runs, or None where no person watches or it has none."""
    shell, texts = _shell_and_texts()
    return _text(shell.kernel, texts) if texts else None


def show(figure: Any, text: str | None) -> None:
    """Show a Matplotlib figure as HTML, its alternative text and its numbers; without a text, as an image that has its
    numbers in the output's metadata.
    """
    from IPython.display import publish_display_data

    file = io.BytesIO()
    figure.savefig(file, format="png", bbox_inches="tight")  # as Matplotlib's inline backend draws it
    picture = base64.b64encode(file.getvalue()).decode()
    numbers = figure_data.fold(figure)
    if text is None:
        shown, metadata = {"image/png": picture}, {NUMBERS: numbers} if numbers else {}
    else:
        image = f'<img alt="{html.escape(text)}" src="data:image/png;base64,{picture}">'
        shown, metadata = {"text/html": image + numbers}, {}
    publish_display_data({"text/plain": repr(figure), **shown}, metadata)


def _shell_and_texts() -> tuple[Any, dict[str, str]]:
    """IPython's shell, and the texts of the notebook that a person has open (none where nobody has one open)."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    attended = shell is not None and session.attended()
    return shell, _texts(os.environ.get("JPY_SESSION_NAME", "")) if attended else {}


def _text(kernel: Any, texts: Mapping[str, str]) -> str | None:
    return texts.get(kernel.get_parent().get("metadata", {}).get("cellId"))


def _texts(path: str) -> dict[str, str]:
    """From the ids of a notebook's cells to their alternative texts; empty where there is no such notebook."""
    try:
        cells = json.loads(Path(path).read_bytes())["cells"]
        return {cell["id"]: str(cell["metadata"]["alt"]) for cell in cells if "alt" in cell["metadata"]}
    except (OSError, ValueError, LookupError, TypeError):
        return {}


def _show(kernel: Any, texts: Mapping[str, str], figure: Any) -> None:
    show(figure, _text(kernel, texts))
