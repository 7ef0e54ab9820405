"""The horizon of chaos: a double pendulum in two precisions, and what the product of its steps' Jacobians forecasts.

A small difference at the start grows as the norm of that product. Where the grown difference reaches 1, the two runs
are expected to part.
"""

import dataclasses
import functools

from tapelab import plots
from tapelab.interactive.figure import Figure, Slider

import matplotlib.figure
import numpy as np
from numpy.typing import ArrayLike

_SMALLEST, _LARGEST = -16, -2  # powers of ten of the difference at the start
_TRAIL = 0.6  # seconds


def horizon(times: ArrayLike, difference: ArrayLike) -> float:
    """Return the first time at which a difference exceeds 1, or infinity where it never does.

    Args:
        times, difference: shape (n,).
    """
    beyond = np.flatnonzero(np.asarray(difference) > 1)
    return float(np.asarray(times)[beyond[0]]) if beyond.size else np.inf


def masses(angles: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return where the joint and the two masses are, as x and y, each of shape (..., 3); the rods are of length 1.

    Args:
        angles: shape (..., 2), of the upper and the lower rod from hanging, in radians.
    """
    angles = np.asarray(angles, np.float64)
    fixed = np.zeros([*angles.shape[:-1], 1])
    x, y = np.cumsum(np.sin(angles), axis=-1), -np.cumsum(np.cos(angles), axis=-1)
    return np.concatenate([fixed, x], axis=-1), np.concatenate([fixed, y], axis=-1)


@dataclasses.dataclass(frozen=True)
class Runs:
    """A double pendulum, simulated twice from one start.

    Attributes:
        times: shape (n,), in seconds, ascending.
        growth: shape (n,), the norm of the product of all Jacobians up to each time.
        double, single: shape (n, 4), the states in float64 and in float32: two angles, two speeds.
    """

    times: np.ndarray
    growth: np.ndarray
    double: np.ndarray
    single: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.times)
        expected = {"times": (n,), "growth": (n,), "double": (n, 4), "single": (n, 4)}
        for name, shape in expected.items():
            if np.shape(getattr(self, name)) != shape:
                raise ValueError(f"{name} has shape {np.shape(getattr(self, name))}; expected {shape}")

    @functools.cached_property
    def gap(self) -> np.ndarray:
        """The distance between the two states, shape (n,)."""
        return np.linalg.norm(np.asarray(self.double, np.float64) - np.asarray(self.single, np.float64), axis=1)


def _seconds(time: float) -> str:
    return "never" if np.isinf(time) else f"after {time:.1f} s"


def draw(figure: matplotlib.figure.Figure, *, runs: Runs, time: float, power: float) -> None:
    """Draw the forecast with the distance of the two runs, and both pendulums, into an empty figure.

    Args:
        figure: an empty figure.
        runs: the two runs.
        time: in seconds; the nearest one of the runs is drawn.
        power: the forecast is for a difference of ten to this power at the start.
    """
    index = int(np.argmin(np.abs(runs.times - time)))
    growing = runs.growth * 10.0**power
    curves, picture = figure.subplots(1, 2, width_ratios=[1.5, 1])
    curves.semilogy(
        runs.times[1:],
        runs.gap[1:],
        color=plots.BLUE,
        label=f"distance of float32 and float64: 1 {_seconds(horizon(runs.times, runs.gap))}",
    )
    forecast = horizon(runs.times, growing)
    curves.semilogy(
        runs.times,
        growing,
        "--",
        color=plots.RED,
        label=rf"$10^{{{power:g}}}$, grown as the product: 1 {_seconds(forecast)}",
    )
    curves.axhline(1, color=plots.GREY, linewidth=0.8)
    curves.axvline(runs.times[index], color="black", linewidth=0.8)
    if np.isfinite(forecast):
        curves.plot(forecast, 1, "v", color=plots.RED, markersize=8)
    curves.set(title="A small difference, forecast and found", xlabel="time (s)", ylabel="difference")
    curves.set_ylim(10.0 ** min(power - 1, -9), 1e4)
    curves.legend(loc="lower right", fontsize="small")
    trail = (runs.times > runs.times[index] - _TRAIL) & (np.arange(len(runs.times)) <= index)
    for name, states, colour, style in (
        ("float64", runs.double, plots.BLUE, "o-"),
        ("float32", runs.single, plots.ORANGE, "s--"),
    ):
        x, y = masses(states[trail, :2])
        picture.plot(x[:, 2], y[:, 2], color=colour, linewidth=0.8)
        picture.plot(*masses(states[index, :2]), style, color=colour, linewidth=2.2, markersize=7, label=name)
    picture.set(xlim=(-2.3, 2.3), ylim=(-2.3, 2.6), aspect="equal", xticks=[], yticks=[])
    picture.set_title(f"{runs.times[index]:.1f} s: the states differ by {runs.gap[index]:.1g}")
    picture.legend(loc="upper right", fontsize="small", ncols=2)


def figure(times: ArrayLike, growth: ArrayLike, double: ArrayLike, single: ArrayLike) -> Figure:
    """Return a figure with controls for the time and for the difference at the start.

    Args:
        times: shape (n,), in seconds, ascending.
        growth: shape (n,), the norm of the product of all Jacobians up to each time, in float64.
        double, single: shape (n, 4), the states in float64 and in float32: two angles, two speeds.

    Raises:
        ValueError: for other shapes.
    """
    runs = Runs(*(np.asarray(values) for values in (times, growth, double, single)))
    end = float(runs.times[-1])
    parted = min(horizon(runs.times, runs.gap), end)
    controls = {
        "time": Slider(0.0, end, round(parted, 1), 0.1, "time (s)"),
        "power": Slider(_SMALLEST, _LARGEST, -7, 1, "difference at the start, as a power of ten"),
    }
    return Figure(functools.partial(draw, runs=runs), controls, size=(10.0, 4.2))
