"""Forward or reverse mode: passes and memory of a Jacobian, for a chain of layers of one width.

The model is the one that notebook 16 measures. A pass of forward mode serves one input, a pass of reverse mode one
output, and all passes run at once. Forward mode holds one layer's value and, for each pass, its tangent; what went
before is let go. Reverse mode holds the value of every layer, which is its record, and for each pass the cotangent of
one layer.
"""

from tapelab import plots
from tapelab.interactive.figure import Figure, Slider

import matplotlib.figure
import numpy as np
from numpy.typing import ArrayLike

WIDTH = 256  # units of each layer
BYTES = 4  # of a float32
LARGEST = 11  # inputs and outputs go from 2**0 to 2**11


def passes(mode: str, inputs: ArrayLike, outputs: ArrayLike) -> ArrayLike:
    """Return how many passes a Jacobian takes.

    Args:
        mode: "forward" or "reverse".
        inputs, outputs: integers or arrays of them, which broadcast.

    Returns:
        An integer, or an array of them.
    """
    return {"forward": inputs + 0 * outputs, "reverse": outputs + 0 * inputs}[mode]


def held_bytes(mode: str, inputs: ArrayLike, outputs: ArrayLike, layers: int, width: int = WIDTH) -> ArrayLike:
    """Return the bytes that a mode holds while all its passes run at once, without the Jacobian itself, in float32.

    Args:
        mode: "forward" or "reverse".
        inputs, outputs: integers or arrays of them, which broadcast.
        layers, width: how many layers the function has, and the units of each.

    Returns:
        An integer, or an array of them.
    """
    values = {"forward": 1, "reverse": layers}[mode]
    return BYTES * width * (values + passes(mode, inputs, outputs))


def winner(forward: float, reverse: float) -> str:
    """Return "forward", "reverse" or "neither", whichever of two costs is the smaller."""
    return "neither" if forward == reverse else "forward" if forward < reverse else "reverse"


def break_even(inputs: ArrayLike, layers: int) -> ArrayLike:
    """Return the number of outputs at which both modes hold the same number of bytes.

    It may be less than 1: then reverse mode holds more, however few outputs there are.

    Args:
        inputs: an integer or an array.
        layers: an integer.
    """
    return inputs + 1 - layers


def draw(figure: matplotlib.figure.Figure, log_inputs: int, log_outputs: int, layers: int) -> None:
    """Draw the break-even lines with the chosen map between them, and both modes' costs as bars.

    Args:
        figure: an empty Matplotlib figure.
        log_inputs, log_outputs: logarithms to base 2 of the numbers of inputs and outputs.
        layers: how many layers the function has.
    """
    inputs, outputs, layers = 2 ** int(log_inputs), 2 ** int(log_outputs), int(layers)
    plane, counts, memory = figure.subplots(1, 3, width_ratios=(2, 1, 1))
    colours = {"forward": plots.BLUE, "reverse": plots.ORANGE}

    axis = np.logspace(-0.5, LARGEST + 0.5, 400, base=2)
    plane.fill_between(axis, axis, axis[-1], color=plots.BLUE, alpha=0.2, linewidth=0, label="forward: fewer passes")
    plane.fill_between(axis, axis[0], axis, color=plots.ORANGE, alpha=0.2, linewidth=0, label="reverse: fewer passes")
    plane.plot(axis, axis, color="black", label="equal passes")
    level = break_even(axis, layers)
    plane.plot(
        axis[level > 0], level[level > 0], "--", color="black", label="equal memory; forward holds less above it"
    )
    plane.plot(inputs, outputs, "o", color=plots.RED, markersize=9, label=f"{inputs} → {outputs}")
    plane.set(
        xscale="log",
        yscale="log",
        xlim=(axis[0], axis[-1]),
        ylim=(axis[0], axis[-1]),
        title="Which mode?",
        xlabel="inputs",
        ylabel="outputs",
    )
    for set_ticks in (plane.set_xticks, plane.set_yticks):
        ticks = 2 ** np.arange(0, LARGEST + 1, 2)
        set_ticks(ticks, labels=ticks)
        set_ticks([], minor=True)
    figure.legend(loc="outside lower left", ncols=3, fontsize=8)

    for ax, cost, title, unit in (
        (counts, {mode: passes(mode, inputs, outputs) for mode in colours}, "Passes", "passes"),
        (
            memory,
            {mode: held_bytes(mode, inputs, outputs, layers) / 1024 for mode in colours},
            "Memory held",
            "KiB, without the Jacobian",
        ),
    ):
        bars = ax.bar(list(cost), list(cost.values()), color=list(colours.values()))
        ax.bar_label(bars, fmt="{:,.0f}")
        ax.margins(y=0.15)
        ax.set(title=f"{title}\nless: {winner(*cost.values())}", xlabel="mode", ylabel=unit)


def figure() -> Figure:
    """Return the figure, with a slider for the inputs, the outputs and the layers."""
    return Figure(
        draw,
        {
            "log_inputs": Slider(0, LARGEST, 4, 1, "inputs, as a power of 2"),
            "log_outputs": Slider(0, LARGEST, 3, 1, "outputs, as a power of 2"),
            "layers": Slider(1, 64, 24, 1, "layers"),
        },
        size=(10.0, 4.4),
    )
