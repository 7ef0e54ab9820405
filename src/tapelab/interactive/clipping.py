"""Where a clip norm is applied: how far the clipped gradient turns away from the true one, and how long it is.

Two gradients of two entries each, so that both can be drawn as arrows. Read one after the other they are one gradient
of four entries, and its direction is the direction of the step.
"""

from tapelab import plots
from tapelab.interactive.figure import Choice, Figure, Slider

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes

WAYS = ("each norm", "global norm", "value")
FIRST = np.array([3.0, 4.0])  # norm 5
_ALONG = np.array([0.96, -0.28])  # the second gradient's direction, norm 1
_LOOKS = {"each norm": (plots.RED, "-"), "global norm": (plots.BLUE, "--"), "value": (plots.GREEN, "-.")}
_LOWEST, _HIGHEST = 0.5, 15.0  # of the limit


def clip(gradients: list[np.ndarray], limit: float, way: str) -> list[np.ndarray]:
    """Clip gradients, as `tf.clip_by_norm`, `tf.clip_by_global_norm` and `tf.clip_by_value` do.

    Args:
        gradients: a list of arrays, floating-point, finite.
        limit: a positive number: the largest norm of each gradient ("each norm"), the largest norm of all together
            ("global norm"), or the largest magnitude of an entry ("value").
        way: one of `WAYS`.

    Returns:
        A list of arrays of the same shapes.

    Raises:
        ValueError: if `limit` is not positive, or `way` is none of `WAYS`.
    """
    if not limit > 0:
        raise ValueError(f"limit is {limit!r}; expected a positive number")
    if way not in WAYS:
        raise ValueError(f"way is {way!r}; expected one of {', '.join(map(repr, WAYS))}")
    if way == "value":
        return [np.clip(g, -limit, limit) for g in gradients]
    norms = [norm(gradients if way == "global norm" else [g]) for g in gradients]
    return [g * (limit / max(limit, length)) for g, length in zip(gradients, norms, strict=True)]


def norm(gradients: list[np.ndarray]) -> float:
    """Return the Euclidean norm of a list of arrays, read as one long vector: a float."""
    return float(np.sqrt(sum(np.sum(np.square(g)) for g in gradients)))


def turn(gradients: list[np.ndarray], others: list[np.ndarray]) -> float:
    """Return the angle between two lists of arrays, each read as one long vector, in degrees from 0 to 180.

    The shapes must be the same; a list of zeros has no direction, and the angle is NaN.
    """
    a, b = (np.concatenate([np.ravel(part) for part in parts]) for parts in (gradients, others))
    lengths = np.linalg.norm(a) * np.linalg.norm(b)
    if lengths == 0:
        return float("nan")
    return float(np.degrees(np.arccos(np.clip(a @ b / lengths, -1.0, 1.0))))


def _arrows(ax: Axes, true: np.ndarray, clipped: np.ndarray, limit: float, way: str, title: str, reach: float) -> None:
    """One gradient before and after, with the boundary within which this way of clipping leaves it alone."""
    colour, _ = _LOOKS[way]
    if way == "value":
        ax.plot(*(limit * np.array([[-1, 1, 1, -1, -1], [-1, -1, 1, 1, -1]])), ":", color=colour)
    elif way == "each norm":
        angle = np.linspace(0, 2 * np.pi, 181)
        ax.plot(limit * np.cos(angle), limit * np.sin(angle), ":", color=colour)
    for end, shade, width, name in ((true, plots.GREY, 1.5, "true"), (clipped, colour, 3, "clipped")):
        style = {"arrowstyle": "-|>", "color": shade, "linewidth": width, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", end, (0, 0), arrowprops=style)
        ax.plot([], [], color=shade, linewidth=width, label=name)
    ax.set(title=title, xlabel="entry 0", ylabel="entry 1", aspect="equal")
    ax.set(xlim=(-0.2 * reach, 1.1 * reach), ylim=(-0.55 * reach, 0.75 * reach))
    ax.legend(loc="upper right", fontsize=8)


def draw(figure: matplotlib.figure.Figure, *, way: str, limit: float, second: float) -> None:
    """Draw both gradients before and after clipping, and the whole gradient's turn and length against the limit.

    Args:
        figure: a Matplotlib figure, empty.
        way: one of `WAYS`.
        limit: a positive number.
        second: the norm of the second gradient; that of the first is 5.
    """
    true = [FIRST, second * _ALONG]
    clipped = clip(true, limit, way)
    (first_ax, second_ax), (turn_ax, length_ax) = figure.subplots(2, 2)
    reach = max(second, 7.0)
    _arrows(first_ax, true[0], clipped[0], limit, way, "First gradient", reach)
    _arrows(second_ax, true[1], clipped[1], limit, way, "Second gradient", reach)

    limits = np.linspace(_LOWEST, _HIGHEST, 59)
    for name, (colour, style) in _LOOKS.items():
        results = [clip(true, at, name) for at in limits]
        width = 2.6 if name == way else 1.1
        look = {"color": colour, "linestyle": style, "linewidth": width, "label": name}
        turn_ax.plot(limits, [turn(true, result) for result in results], **look)
        length_ax.plot(limits, [norm(result) for result in results], **look)
    colour, _ = _LOOKS[way]
    turn_ax.plot(limit, turn(true, clipped), "o", color=colour, markersize=8)
    length_ax.plot(limit, norm(clipped), "o", color=colour, markersize=8)
    length_ax.axhline(norm(true), color=plots.GREY, linestyle=":", label="not clipped")
    turn_ax.set(title=f"Turned by {turn(true, clipped):.1f}°", xlabel="limit", ylabel="angle to the true gradient (°)")
    turn_ax.set(ylim=(-2, 62))
    length_ax.set(
        title=f"Length {norm(clipped):.1f} of {norm(true):.1f}", xlabel="limit", ylabel="norm of both together"
    )
    length_ax.set(ylim=(0, 1.08 * norm(true)))
    figure.legend(*length_ax.get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)


def figure() -> Figure:
    """Return the `Figure`: the way of clipping, the limit, and the norm of the second gradient can be moved."""
    controls = {
        "way": Choice(WAYS, "clipped by"),
        "limit": Slider(_LOWEST, _HIGHEST, 6.5, 0.5, "limit"),
        "second": Slider(1.0, 30.0, 12.0, 1.0, "norm of the second gradient"),
    }
    return Figure(draw, controls, size=(7.5, 6.0))
