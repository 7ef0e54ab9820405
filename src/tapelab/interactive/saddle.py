"""Newton's step on a saddle: the raw one, the damped one and a gradient step, and whether each of them descends.

The function is f(x, y) = x² + y⁴/4 - y²/2, with a saddle at (0, 0) and a minimum at (0, 1) and at (0, -1).
"""

import dataclasses

from tapelab import plots
from tapelab.interactive.figure import Figure, Slider

import matplotlib.figure
import numpy as np

RATE = 0.4  # of the gradient step
_STYLES = {
    "raw Newton": (plots.RED, "--"),
    "damped Newton": (plots.BLUE, "-"),
    "gradient": (plots.ORANGE, ":"),
}
_SPAN = 1.9  # of the picture, in each direction


def value(points: np.ndarray) -> np.ndarray:
    """Return f at points of shape (..., 2), as an array of shape (...)."""
    x, y = np.moveaxis(np.asarray(points, np.float64), -1, 0)
    return x**2 + y**4 / 4 - y**2 / 2


def gradient(point: np.ndarray) -> np.ndarray:
    """Return the gradient at a point, both of shape (2,)."""
    x, y = point
    return np.array([2 * x, y**3 - y])


def hessian(point: np.ndarray) -> np.ndarray:
    """Return the Hessian at a point of shape (2,), as an array of shape (2, 2)."""
    return np.diag([2.0, 3 * point[1] ** 2 - 1])


@dataclasses.dataclass(frozen=True)
class Step:
    """A step, and what it does.

    Attributes:
        vector: shape (2,), or None where the linear system has no unique solution.
        slope: of f along the step, at its start: negative where the step points downhill. 0 without a vector.
        change: f at the step's end minus f at its start. 0 without a vector.
    """

    vector: np.ndarray | None
    slope: float = 0.0
    change: float = 0.0

    def verdict(self) -> str:
        """What the step does, in a few words."""
        if self.vector is None:
            return "no unique step: the matrix is singular"
        if abs(self.slope) < 1e-12:
            return "stays: the gradient is zero" if not self.vector.any() else "starts level"
        return f"{'downhill' if self.slope < 0 else 'uphill'}, ends {'lower' if self.change < 0 else 'higher'}"


def newton_step(point: np.ndarray, damping: float) -> np.ndarray | None:
    """Solve (H + damping I) s = -g.

    Args:
        point: shape (2,).
        damping: at least 0. With 0 it is the raw Newton step.

    Returns:
        The step s, shape (2,), or None where the matrix is singular.

    Raises:
        ValueError: for a negative damping.
    """
    if not damping >= 0:
        raise ValueError(f"damping is {damping!r}; expected a number that is at least 0")
    matrix = hessian(point) + damping * np.eye(2)
    magnitudes = np.abs(np.linalg.eigvalsh(matrix))
    if magnitudes.min() < 1e-9 * magnitudes.max():
        return None
    return np.linalg.solve(matrix, -gradient(point))


def steps(point: np.ndarray, damping: float, rate: float = RATE) -> dict[str, Step]:
    """Return the three steps from a point, as a dict from a name to a `Step`.

    Args:
        point: shape (2,).
        damping: of the damped Newton step, at least 0.
        rate: the gradient step is minus the gradient times this.
    """
    point = np.asarray(point, np.float64)
    vectors = {
        "raw Newton": newton_step(point, 0.0),
        "damped Newton": newton_step(point, damping),
        "gradient": -rate * gradient(point),
    }
    return {
        name: Step(None)
        if vector is None
        else Step(vector, float(gradient(point) @ vector), float(value(point + vector) - value(point)))
        for name, vector in vectors.items()
    }


def draw(figure: matplotlib.figure.Figure, *, damping: float, x: float, y: float) -> None:
    """Draw the contours with the three steps from (x, y), and f along each of them, into an empty figure."""
    start = np.array([x, y])
    taken = steps(start, damping)
    plane, along = figure.subplots(1, 2, width_ratios=[1.25, 1])
    grid = np.linspace(-_SPAN, _SPAN, 121)
    heights = value(np.stack(np.meshgrid(grid, grid), axis=-1))
    plane.contour(grid, grid, heights, levels=np.linspace(0, 2.2, 23) ** 2 - 0.25, colors=plots.GREY, linewidths=0.5)
    plane.plot([0, 0], [-1, 1], "*", color=plots.GREEN, markersize=11, label="minimum")
    plane.plot(0, 0, "x", color="black", markersize=8, label="saddle")
    fractions, reached = np.linspace(0, 1, 101), [0.0]
    for name, step in reversed(taken.items()):  # the raw step last, on top of one that equals it
        colour, style = _STYLES[name]
        label = f"{name}: {step.verdict()}"
        if step.vector is None:
            plane.plot([], [], style, color=colour, label=label)
            continue
        path = start + fractions[:, None] * step.vector
        change = value(path) - value(start)
        reached += [change.min(), change.max()]
        plane.plot(*path.T, style, color=colour, linewidth=2.2, label=label)
        plane.plot(*path[-1], "o", color=colour, markersize=6)
        along.plot(fractions, change, style, color=colour, linewidth=2.2)
    plane.plot(*start, "s", color="black", markersize=7, label="start")
    lowest = np.linalg.eigvalsh(hessian(start))[0]
    plane.set(
        title=f"lowest eigenvalue: {lowest:.2f} of H, {lowest + damping:.2f} of H + {damping:.2f} I",
        xlabel="x",
        ylabel="y",
        xlim=(-_SPAN, _SPAN),
        ylim=(-_SPAN, _SPAN),
        aspect="equal",
    )
    named = dict(zip(*reversed(plane.get_legend_handles_labels()), strict=True))
    places = ["start", "minimum", "saddle"]
    order = [*places, *(name for name in reversed(named) if name not in places)]  # then the steps, the raw one first
    figure.legend([named[name] for name in order], order, loc="outside lower center", ncols=2, fontsize="small")
    along.axhline(0, color=plots.GREY, linewidth=0.8)
    along.set(
        title="f along each step",
        xlabel="fraction of the step taken",
        ylabel="f minus f at the start",
        ylim=(1.1 * min(*reached, -0.1), np.clip(1.1 * max(reached), 0.1, 1.0)),
    )


def figure() -> Figure:
    """Return a figure with controls for the damping and for the start's two coordinates."""
    return Figure(
        draw,
        {
            "damping": Slider(0.0, 3.0, 1.0, 0.05, "damping"),
            "x": Slider(-1.5, 1.5, 0.2, 0.05, "start, x"),
            "y": Slider(-1.5, 1.5, 0.4, 0.05, "start, y"),
        },
        size=(9.0, 5.0),
    )
