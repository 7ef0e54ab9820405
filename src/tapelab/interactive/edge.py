"""Gradient descent in a valley that narrows as it descends: the sharpness climbs to 2/rate and stays about there.

The loss is L(a, b) = (ab)²/2 + pull (B - b)²/2. Along its floor, a = 0, the curvature across is b²: the pull drags b up
to B, and the valley narrows. The third derivative of L pushes b down again wherever a bounces. A small kick of a at
every step, of random sign, stands for all the other directions of a network: without it the bounce would die out below
the limit, and come back long after b has passed it.
"""

import dataclasses

from tapelab import plots
from tapelab.interactive.figure import Figure, Slider

import matplotlib.figure
import numpy as np

TARGET = 3.0  # B, to which b is pulled
START = (0.3, 1.2)
KICK = 0.01
STEPS = 400
_OFF = 1.05  # the parabola is taken where the sharpness is so many times the limit
_FAR = 1e6  # a loss at which a run is called off


def loss(points: np.ndarray, pull: float) -> np.ndarray:
    """Return L at points of shape (..., 2), as an array of shape (...)."""
    a, b = np.moveaxis(np.asarray(points, np.float64), -1, 0)
    return (a * b) ** 2 / 2 + pull * (TARGET - b) ** 2 / 2


def gradient(point: np.ndarray, pull: float) -> np.ndarray:
    """Return the gradient at a point, both of shape (2,)."""
    a, b = point
    return np.array([a * b**2, a**2 * b - pull * (TARGET - b)])


def hessian(point: np.ndarray, pull: float) -> np.ndarray:
    """Return the Hessian at a point of shape (2,), as an array of shape (2, 2)."""
    a, b = point
    return np.array([[b**2, 2 * a * b], [2 * a * b, a**2 + pull]])


@dataclasses.dataclass(frozen=True)
class Descent:
    """Gradient descent from `START`.

    Attributes:
        points: shape (steps, 2), one row before each step; shorter where it diverged.
        losses: shape (steps,).
        sharpness: the Hessian's largest eigenvalue, shape (steps,).
        left: the first step at which the sharpness is 5 % above 2/rate, or None.
        parabola: the losses of gradient descent from there on the second-order Taylor polynomial at that point, shape
            (k,), up to one that is very large; without a step of that kind, empty.
    """

    points: np.ndarray
    losses: np.ndarray
    sharpness: np.ndarray
    left: int | None
    parabola: np.ndarray


def descend(rate: float, pull: float, *, steps: int = STEPS, kick: float = KICK) -> Descent:
    """Run gradient descent in the valley, and on the parabola that fits it where the sharpness has passed 2/rate.

    Args:
        rate: the learning rate, positive.
        pull: how strongly b is drawn to `TARGET`, at least 0.
        steps: how many, at least 1.
        kick: a moves by this at every step, up or down at random, always with the same random signs.

    Raises:
        ValueError: for a rate that is not positive, or a negative pull.
    """
    if not rate > 0:
        raise ValueError(f"rate is {rate!r}; expected a positive number")
    if not pull >= 0:
        raise ValueError(f"pull is {pull!r}; expected a number that is at least 0")
    signs = np.random.default_rng(0).choice([-1.0, 1.0], size=steps)
    point, points = np.array(START), []
    for sign in signs:
        points.append(point)
        point = point - rate * gradient(point, pull) + [kick * sign, 0.0]
        if not loss(point, pull) < _FAR:
            break
    points = np.array(points)
    sharpness = np.array([np.linalg.eigvalsh(hessian(point, pull))[-1] for point in points])
    above = np.flatnonzero(sharpness > _OFF * 2 / rate)
    left = int(above[0]) if above.size else None
    parabola = np.array([]) if left is None else _parabola(points[left], rate, pull, len(points) - left)
    return Descent(points, loss(points, pull), sharpness, left, parabola)


def _parabola(centre: np.ndarray, rate: float, pull: float, steps: int) -> np.ndarray:
    """The losses of gradient descent on the second-order Taylor polynomial at a point, from that point."""
    value, g, H = loss(centre, pull), gradient(centre, pull), hessian(centre, pull)
    moved, losses = np.zeros(2), []
    for _ in range(steps):
        losses.append(value + g @ moved + moved @ H @ moved / 2)
        if losses[-1] > _FAR:
            break
        moved = moved - rate * (g + H @ moved)
    return np.array(losses)


def draw(figure: matplotlib.figure.Figure, *, rate: float, pull: float) -> None:
    """Draw the valley with the path, the sharpness beneath the limit, and both losses, into an empty figure."""
    run, limit = descend(rate, pull), 2 / rate
    axes = figure.subplot_mosaic([["plane", "sharpness"], ["plane", "loss"]], width_ratios=[1, 1.25])
    plane, sharp, losses = axes["plane"], axes["sharpness"], axes["loss"]
    across, up = np.meshgrid(np.linspace(-1.2, 1.2, 121), np.linspace(0.0, 3.4, 121))
    heights = loss(np.stack([across, up], axis=-1), pull)
    plane.contour(across, up, heights, levels=np.geomspace(1e-3, 4, 16), colors=plots.GREY, linewidths=0.5)
    plane.plot(*run.points.T, ".-", color=plots.BLUE, linewidth=0.5, markersize=3)
    plane.plot(*START, "s", color="black", markersize=6, label="start")
    plane.plot(0, TARGET, "*", color=plots.GREEN, markersize=12, label="minimum")
    plane.axhline(limit**0.5, color=plots.RED, linestyle=":", label="b² = 2 / rate")
    plane.set(title="the path in the valley", xlabel="a", ylabel="b", xlim=(-1.2, 1.2), ylim=(0.0, 3.4))
    plane.legend(loc="lower left", fontsize="small")
    sharp.plot(run.sharpness, color=plots.BLUE)
    sharp.axhline(limit, color=plots.RED, linestyle=":", label=f"2 / rate = {limit:.2f}")
    sharp.set(
        title="the sharpness, and the loss beneath it",
        ylabel="sharpness",
        xlim=(0, STEPS),
        ylim=(0, 1.15 * max(limit, min(run.sharpness.max(), 2 * limit))),
    )
    sharp.legend(loc="lower right", fontsize="small")
    losses.semilogy(run.losses, color=plots.BLUE, label="the valley")
    if run.left is not None:
        steps = run.left + np.arange(len(run.parabola))
        losses.semilogy(steps, run.parabola, "--", color=plots.ORANGE, label="the parabola where it left the limit")
    losses.set(xlabel="step", ylabel="loss", xlim=(0, STEPS), ylim=(1e-4, 1e2))
    losses.legend(loc="upper left", fontsize="small")


def figure() -> Figure:
    """Return a figure with controls for the rate and for the pull."""
    return Figure(
        draw,
        {
            "rate": Slider(0.15, 0.7, 0.4, 0.01, "rate"),
            "pull": Slider(0.01, 0.04, 0.02, 0.005, "pull"),
        },
        size=(9.0, 4.6),
    )
