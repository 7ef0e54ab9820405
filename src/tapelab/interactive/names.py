"""What ipywidgets leaves out for a screen reader, put to the controls of our figures in the page.

A slider of ipywidgets 8 has a label beside it and no name of its own, the number beside it can be typed into and says
so to nobody, and of a row of buttons the pressed one is told by its colour. ipywidgets offers no way to set such
attributes from Python (`description` and `tooltip` reach the label alone), so a few lines of JavaScript set them:
`aria-label`, `aria-pressed` and `aria-valuetext`, of WAI-ARIA 1.2. Where a front-end runs no JavaScript, nothing
changes.
"""

from pathlib import Path
from typing import Any

from IPython.display import Javascript

CLASS = "tapelab-figure"  # of the box around the controls

_SCRIPT = (Path(__file__).parent / "names.js").read_text(encoding="utf-8").replace("CLASS", CLASS)


def script(widgets: Any) -> Any:
    """Return an ipywidgets output, not seen, that names the controls in every box of the class `CLASS` in its page."""
    hidden = widgets.Output(layout={"display": "none"})
    hidden.append_display_data(Javascript(_SCRIPT))
    return hidden
