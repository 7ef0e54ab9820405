"""A Matplotlib figure whose values can be moved with ipywidgets, and a still one without."""

import dataclasses
from collections.abc import Callable
from types import ModuleType
from typing import Any

from tapelab.interactive import names
from tapelab.process import session
from tapelab.process.session import alternatives

import matplotlib.figure
import matplotlib.pyplot as plt
from IPython.display import display


@dataclasses.dataclass(frozen=True)
class Slider:
    """A number from `low` to `high` in steps of `step`, starting at `start`."""

    low: float
    high: float
    start: float
    step: float
    label: str

    def ends(self) -> tuple[float, ...]:
        """The values to try: both ends and the start."""
        return (self.low, self.high, self.start)

    def widget(self, widgets: ModuleType, labels: str) -> Any:
        """Return an ipywidgets slider, of integers where all of its values are integers; `labels` is their width."""
        whole = all(type(value) is int for value in (self.low, self.high, self.start, self.step))
        return (widgets.IntSlider if whole else widgets.FloatSlider)(
            value=self.start,
            min=self.low,
            max=self.high,
            step=self.step,
            description=self.label,
            continuous_update=False,
            style={"description_width": labels},
            layout={"width": f"calc({labels} + 340px)"},
        )


@dataclasses.dataclass(frozen=True)
class Choice:
    """One of several strings, starting with the first."""

    options: tuple[str, ...]
    label: str

    @property
    def start(self) -> str:
        """The first option."""
        return self.options[0]

    def ends(self) -> tuple[str, ...]:
        """The values to try: all of them."""
        return self.options

    def widget(self, widgets: ModuleType, labels: str) -> Any:
        """Return a row of ipywidgets buttons of which one is pressed; `labels` is the width of the label's column."""
        # By default all buttons are of one width, and a longer label is cut.
        style = {"button_width": "auto", "description_width": labels}
        return widgets.ToggleButtons(options=self.options, description=self.label, style=style)


@dataclasses.dataclass(frozen=True)
class Figure:
    """A figure with controls.

    Attributes:
        draw: draws into a new Matplotlib figure: ``draw(figure, **values)``, with a value for each control.
        controls: a dict from the values' names to a `Slider` or a `Choice`.
        size: width and height in inches.
    """

    draw: Callable[..., None]
    controls: dict[str, Any]
    size: tuple[float, float] = (7.0, 3.6)

    def start(self) -> dict[str, Any]:
        """Return the values that the controls start with, as a dict."""
        return {name: control.start for name, control in self.controls.items()}

    def ends(self) -> list[dict[str, Any]]:
        """Return a list of dicts of values: each control at each of its ends, the others as they start."""
        return [{**self.start(), name: end} for name, control in self.controls.items() for end in control.ends()]

    def still(self, **values: Any) -> matplotlib.figure.Figure:
        """Return the Matplotlib figure for some values; those that are not given are as they start.

        Raises:
            TypeError: for a name that is no control's.
        """
        unknown = sorted(set(values) - set(self.controls))
        if unknown:
            raise TypeError(f"no control is called {unknown[0]!r}; there are {', '.join(self.controls)}")
        figure = plt.figure(figsize=self.size, layout="constrained")
        try:
            self.draw(figure, **{**self.start(), **values})
        finally:
            plt.close(figure)  # so that no front-end shows it a second time
        return figure

    def widgets(self) -> tuple[dict[str, Any], Any]:
        """Return the ipywidgets: a dict of the controls by name, and a box with the controls above the figure.

        Raises:
            ImportError: where ipywidgets is not installed.
        """
        import ipywidgets

        # One column of labels, so that all sliders are of one length.
        labels = f"{0.55 * max(len(control.label) for control in self.controls.values()) + 1:.3g}em"
        controls = {name: control.widget(ipywidgets, labels) for name, control in self.controls.items()}
        output = ipywidgets.Output()
        text = alternatives.of_this_cell()  # a control that is moved later is no cell's

        def redraw(_change: Any = None) -> None:
            values = {name: control.value for name, control in controls.items()}
            figure = self.still(**values)
            with output:
                output.clear_output(wait=True)
                if text is None:
                    display(figure)
                else:
                    alternatives.show(figure, text if values == self.start() else self._moved(values, text))

        for control in controls.values():
            control.observe(redraw, names="value")
        redraw()
        box = ipywidgets.VBox([*controls.values(), output, names.script(ipywidgets)])
        box.add_class(names.CLASS)
        return controls, box

    def _moved(self, values: dict[str, Any], text: str) -> str:
        """An alternative text, where `text` says how the figure looks as it starts."""
        told = {name: value if isinstance(value, str) else f"{value:g}" for name, value in values.items()}
        now = ", ".join(f"{control.label} {told[name]}" for name, control in self.controls.items())
        return f"The same figure for {now}. As it starts: {text}"

    def show(self) -> None:
        """Show the figure with its controls, or once as it starts where nobody can move them."""
        if session.attended():
            try:
                _, box = self.widgets()
            except ImportError:
                print("Install ipywidgets to move this figure.")
            else:
                display(box)
                return
        display(self.still())
