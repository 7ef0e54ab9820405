"""Which path `stop_gradient` cuts: z = f(x) g(x) + h(x), with some of the three paths from x to z cut.

Here f(x) = x², g(x) = cos x and h(x) = x.
"""

from typing import Any

from tapelab import plots
from tapelab.interactive.figure import Choice, Figure, Slider

import matplotlib.figure
import numpy as np
import tensorflow as tf
from matplotlib.axes import Axes
from numpy.typing import ArrayLike

PATHS = ("f", "g", "h")
CUTS = {
    "g": ("g",),  # first: at the start it turns the sign of the slope
    "f": ("f",),
    "h": ("h",),
    "f and g": ("f", "g"),
    "all three": PATHS,
    "nothing": (),
}
LOW, HIGH = -3.0, 3.0

# The graph: where each box is, and which boxes an arrow joins. Time runs downwards, as in `tapelab.explain.draw`.
_BOXES = {
    "x": (1.0, 4.0, "x"),
    "f": (0.0, 3.0, "f = x²"),
    "g": (1.0, 3.0, "g = cos x"),
    "h": (2.0, 3.0, "h = x"),
    "product": (0.5, 2.0, "f · g"),
    "sum": (1.25, 1.0, "f · g + h"),
    "z": (1.25, 0.0, "z"),
}
_ARROWS = (
    ("x", "f"),
    ("x", "g"),
    ("x", "h"),
    ("f", "product"),
    ("g", "product"),
    ("product", "sum"),
    ("h", "sum"),
    ("sum", "z"),
)


def gradient(x: float, cut: tuple[str, ...]) -> float | None:
    """Return what a tape gives for dz/dx with `tf.stop_gradient` around some of f(x), g(x) and h(x).

    Args:
        x: a number.
        cut: a tuple of the names of what is cut, from "f", "g" and "h".

    Returns:
        A float, or None where all three are cut.

    Raises:
        ValueError: for another name in `cut`.
    """
    _check(cut)
    x = tf.constant(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        branches = {"f": x**2, "g": tf.cos(x), "h": 1.0 * x}
        for name in cut:
            branches[name] = tf.stop_gradient(branches[name])
        z = branches["f"] * branches["g"] + branches["h"]
    found = tape.gradient(z, x)
    return None if found is None else float(found)


def held(points: ArrayLike, x: float, cut: tuple[str, ...]) -> np.ndarray:
    """Return z at some points, with what is cut held at the value that it has at x.

    The tape's gradient at x is this function's derivative at x.

    Args:
        points: real numbers, any shape.
        x: a number.
        cut: a tuple of the names of what is held, from "f", "g" and "h".

    Returns:
        The values, float64, in the shape of `points`.

    Raises:
        ValueError: for another name in `cut`.
    """
    _check(cut)
    points = np.asarray(points, np.float64)
    f, g, h = (np.full_like(points, x) if name in cut else points for name in PATHS)
    return f**2 * np.cos(g) + h


def _check(cut: tuple[str, ...]) -> None:
    unknown = [name for name in cut if name not in PATHS]
    if unknown:
        raise ValueError(f"cut names {unknown[0]!r}; expected a tuple of names from {', '.join(PATHS)}")


def carries(cut: tuple[str, ...]) -> set[tuple[str, str]]:
    """Return which arrows of the graph the gradient runs back along, as a set of pairs of names."""
    open_paths = [name for name in PATHS if name not in cut]
    arrows = {("x", name) for name in open_paths}
    arrows |= {(name, "sum" if name == "h" else "product") for name in open_paths}
    if "f" in open_paths or "g" in open_paths:
        arrows.add(("product", "sum"))
    if open_paths:
        arrows.add(("sum", "z"))
    return arrows


def _draw_graph(ax: Axes, cut: tuple[str, ...]) -> None:
    """Draw the paths from x to z. Where one is cut: a thin dashed arrow with a cross."""
    carrying = carries(cut)
    for start, end in _ARROWS:
        (x0, y0, _), (x1, y1, _) = _BOXES[start], _BOXES[end]
        flows = (start, end) in carrying
        style = {"color": plots.BLUE, "linewidth": 2.6} if flows else {"color": plots.GREY, "linewidth": 1.0}
        crossed = start in cut
        style["linestyle"] = "--" if crossed else "-"
        ax.annotate(
            "",
            (x1, y1 + 0.2),
            (x0, y0 - 0.2),
            arrowprops={"arrowstyle": "<|-" if flows else "-|>", "shrinkA": 0, "shrinkB": 0, **style},
        )
        if crossed:
            ax.plot((x0 + x1) / 2, (y0 + y1) / 2, "X", color=plots.RED, markersize=13, markeredgecolor="black")
    for x, y, label in _BOXES.values():
        ax.text(x, y, label, ha="center", va="center", bbox={"boxstyle": "round", "facecolor": "white"})
    ax.set(title="Paths from x to z\n(thick: the gradient, back to x; cross: cut)", xlim=(-0.5, 2.5), ylim=(-0.4, 4.4))
    ax.set_axis_off()


def _tangent(ax: Axes, x: float, slope: float, **style: Any) -> None:
    """Draw a piece of the tangent at (x, z) whose length does not depend on its slope."""
    z = held(x, x, ())
    half = 1.1 / np.sqrt(1 + (slope / 4) ** 2)
    ax.plot([x - half, x + half], [z - half * slope, z + half * slope], **style)


def draw(figure: matplotlib.figure.Figure, x: float, cut: str) -> None:
    """Draw z with the true tangent and the tape's at x, beside the graph of the paths.

    Args:
        figure: an empty Matplotlib figure.
        x: a number.
        cut: a key of `CUTS`.
    """
    names = CUTS[cut]
    graph, ax = figure.subplots(1, 2, width_ratios=(1, 1.6))
    _draw_graph(graph, names)
    points = np.linspace(LOW - 0.3, HIGH + 0.3, 200)
    true, found = gradient(x, ()), gradient(x, names)
    ax.plot(points, held(points, x, ()), color=plots.BLUE, label="z")
    if names:
        ax.plot(points, held(points, x, names), ":", color=plots.ORANGE, label="z with what is cut held still")
    _tangent(ax, x, true, color=plots.GREY, linewidth=4, alpha=0.6, label=f"true derivative: {true:.2f}")
    if found is None:
        ax.plot([], [], " ", label="the tape's gradient: None")
    else:
        label = f"the tape's gradient: {found:.2f}"
        _tangent(ax, x, found, color=plots.RED, linestyle="--", linewidth=2, label=label)
    ax.plot(x, held(x, x, ()), "o", color="black")
    ax.set(title=f"Cut: {cut}", xlabel="x", ylabel="z", xlim=(LOW - 0.4, HIGH + 0.4), ylim=(-15, 10.5))
    figure.legend(fontsize="small", loc="outside lower right", ncols=2)  # inside it would hide a curve at some cut


def figure() -> Figure:
    """Return the figure, with a slider for x and a choice of what is cut."""
    return Figure(
        draw,
        {
            "x": Slider(LOW, HIGH, 1.4, 0.1, "x"),
            "cut": Choice(tuple(CUTS), "cut"),
        },
        size=(9.0, 4.4),
    )
