"""The pictures that repeat: matrices around zero, the (batch, batch) patches of a Jacobian, a curve with its
derivative, a spectrum; and a picture that moves.

Each function takes arrays or tensors, draws into the axes that it is given or makes, and returns those axes, so that a
notebook can add to them. The colours are Okabe and Ito's, which people with colour-blindness can tell apart, and the
diverging map is blue through white to red, with zero in the middle.
"""

import base64
import dataclasses
import html
import io
from collections.abc import Callable, Iterable
from typing import Any

from tapelab.process.session import alternatives, figure_data

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike

BLUE, ORANGE, GREEN, RED, GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#7F7F7F"
DIVERGING = "RdBu_r"


def _limit(values: np.ndarray) -> float:
    """The largest finite magnitude, or 1 where all is zero: the end of a colour scale that has zero in the middle."""
    finite = np.abs(values[np.isfinite(values)])
    return float(finite.max()) if finite.size and finite.max() > 0 else 1.0


def matrix(
    values: ArrayLike,
    *,
    title: str,
    xlabel: str,
    ylabel: str,
    ax: Axes | None = None,
    limit: float | None = None,
    colorbar: bool = True,
) -> Axes:
    """Draw a matrix as an image with zero in the middle of the colour scale.

    Args:
        values: shape (rows, columns), real. A NaN or an infinity is drawn in grey.
        title, xlabel, ylabel: texts; the x axis runs over columns.
        ax: the axes to draw into; a new figure by default.
        limit: the value at the end of the colour scale; by default the largest magnitude in `values`.
        colorbar: whether to draw a colour bar.

    Returns:
        The axes.

    Raises:
        ValueError: if `values` is not a matrix.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim != 2:
        raise ValueError(f"values has shape {values.shape}; expected a matrix, (rows, columns)")
    if ax is None:
        _, ax = plt.subplots(figsize=(5, 4), layout="constrained")
    limit = _limit(values) if limit is None else limit
    colours = plt.get_cmap(DIVERGING).with_extremes(bad=GREY)
    image = ax.imshow(
        np.ma.masked_invalid(values), cmap=colours, vmin=-limit, vmax=limit, interpolation="nearest", aspect="auto"
    )
    ax.set(title=title, xlabel=xlabel, ylabel=ylabel)
    for axis in (ax.xaxis, ax.yaxis):
        axis.get_major_locator().set_params(integer=True)
    if colorbar:
        ax.figure.colorbar(image, ax=ax)
    return ax


def batch_patches(jacobian: ArrayLike, *, title: str, ax: Axes | None = None) -> Axes:
    """Draw a full Jacobian of a batch, one (batch, batch) patch for each (output, input) pair.

    Where the examples do not depend on each other, every patch is diagonal.

    Args:
        jacobian: shape (batch, outs, batch, ins), real: the axes in which `tape.jacobian` returns them.
        title: text.
        ax: the axes to draw into; a new figure by default.

    Returns:
        The axes; the image in it has shape (outs * batch, ins * batch).

    Raises:
        ValueError: if `jacobian` does not have four axes, or the two batch axes differ.
    """
    values = np.asarray(jacobian, dtype=np.float64)
    if values.ndim != 4 or values.shape[0] != values.shape[2]:
        raise ValueError(f"jacobian has shape {values.shape}; expected (batch, outs, batch, ins)")
    batch, outs, _, ins = values.shape
    blocks = values.transpose(1, 0, 3, 2).reshape(outs * batch, ins * batch)
    ax = matrix(
        blocks,
        title=title,
        xlabel="input, and within it the example",
        ylabel="output, and within it the example",
        ax=ax,
    )
    for edges, line in (((np.arange(1, outs) * batch), ax.axhline), ((np.arange(1, ins) * batch), ax.axvline)):
        for edge in edges:
            line(edge - 0.5, color="black", linewidth=0.6)
    ax.set_xticks(np.arange(ins) * batch + (batch - 1) / 2, labels=[str(i) for i in range(ins)])
    ax.set_yticks(np.arange(outs) * batch + (batch - 1) / 2, labels=[str(i) for i in range(outs)])
    return ax


def curve_with_derivative(
    x: ArrayLike,
    y: ArrayLike,
    dy_dx: ArrayLike,
    *,
    title: str,
    label: str = "y",
    derivative_label: str = "dy/dx",
    ax: Axes | None = None,
) -> Axes:
    """Draw a function and its derivative over the same points, told apart by colour and by line style.

    Args:
        x, y, dy_dx: shape (points,), real.
        title: text.
        label, derivative_label: texts for the legend.
        ax: the axes to draw into; a new figure by default.

    Returns:
        The axes, with two lines.

    Raises:
        ValueError: if the three do not have one shape, (points,).
    """
    x, y, dy_dx = (np.asarray(values, dtype=np.float64) for values in (x, y, dy_dx))
    if x.ndim != 1 or not x.shape == y.shape == dy_dx.shape:
        raise ValueError(
            f"x, y and dy_dx have shapes {x.shape}, {y.shape} and {dy_dx.shape}; expected one shape, (points,)"
        )
    if ax is None:
        _, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.plot(x, y, color=BLUE, label=label)
    ax.plot(x, dy_dx, color=RED, linestyle="--", label=derivative_label)
    ax.set(title=title, xlabel="x", ylabel="value")
    ax.legend()
    return ax


def spectrum(eigenvalues: ArrayLike, *, title: str, threshold: float = 1e-7, ax: Axes | None = None) -> Axes:
    """Draw a symmetric matrix's eigenvalues in ascending order, the ones that count as zero marked apart.

    Args:
        eigenvalues: shape (n,), real, in any order.
        title: text.
        threshold: an eigenvalue counts as zero where its magnitude is at most this times the largest magnitude.
        ax: the axes to draw into; a new figure by default.

    Returns:
        The axes; the legend counts the positive, zero and negative eigenvalues.

    Raises:
        ValueError: if `eigenvalues` is not a non-empty vector.
    """
    values = np.sort(np.asarray(eigenvalues, dtype=np.float64), axis=None)
    if np.ndim(eigenvalues) != 1 or not values.size:
        raise ValueError(f"eigenvalues has shape {np.shape(eigenvalues)}; expected a vector, (n,)")
    if ax is None:
        _, ax = plt.subplots(figsize=(6, 4), layout="constrained")
    zero = np.abs(values) <= threshold * np.abs(values).max()
    ax.axhline(0, color=GREY, linewidth=0.8)
    index = np.arange(values.size)
    for mask, marker, colour, name in (
        (~zero & (values > 0), "o", BLUE, "positive"),
        (zero, "x", GREY, "zero"),
        (~zero & (values < 0), "v", RED, "negative"),
    ):
        if mask.any():
            ax.plot(index[mask], values[mask], marker, color=colour, label=f"{name}: {int(mask.sum())}")
    ax.set(title=title, xlabel="index, ascending", ylabel="eigenvalue")
    ax.legend()
    return ax


@dataclasses.dataclass(frozen=True)
class Moving:
    """A picture that moves, from `animate`."""

    gif: bytes
    still: bytes  # the last frame, as PNG
    title: str
    numbers: str  # of the last frame, as `figure_data` tells them

    def show(self) -> None:
        """Display it. In print, and for a reader who asked for less motion, the still takes its place."""
        from IPython.display import publish_display_data

        gif, still = (base64.b64encode(data).decode() for data in (self.gif, self.still))
        text = alternatives.of_this_cell()
        told = html.escape(text or self.title)
        picture = (
            '<picture><source media="print, (prefers-reduced-motion: reduce)" '
            f'srcset="data:image/png;base64,{still}">'
            f'<img alt="{told}" src="data:image/gif;base64,{gif}"></picture>'
        )
        shown = {"image/png": still, "text/plain": f"<moving picture: {self.title}>"}
        if text is None:
            metadata = {alternatives.NUMBERS: self.numbers} if self.numbers else {}
            publish_display_data({"text/html": picture, **shown}, metadata)
        else:
            publish_display_data({"text/html": picture + self.numbers, **shown})


def animate(
    figure: Figure, draw: Callable[[Any], object], frames: Iterable[Any], *, milliseconds: int = 60, last: int = 1500
) -> Moving:
    """Make a picture that moves: a GIF that plays once and rests on its last frame.

    Args:
        figure: what is drawn; it is closed afterwards, so that it is not shown a second time.
        draw: called with each frame; moves the artists of ``figure``.
        frames: what ``draw`` takes, one after another; some 50 at most, as all of them are stored in the notebook.
        milliseconds: how long each frame stays.
        last: how long the last one stays, in milliseconds, where a viewer starts again.

    Returns:
        The moving picture; ``show()`` displays it.

    Raises:
        ValueError: if there is no frame, or a time is not positive.
    """
    from PIL import Image  # comes with Matplotlib

    if milliseconds <= 0 or last <= 0:
        raise ValueError(f"milliseconds is {milliseconds!r} and last is {last!r}; expected positive numbers")
    images, still = [], io.BytesIO()
    for frame in frames:
        draw(frame)
        figure.canvas.draw()
        figure.set_layout_engine("none")  # found for the first frame: places stay, and each frame takes less time
        images.append(Image.fromarray(np.asarray(figure.canvas.buffer_rgba())).convert("RGB"))
    if not images:
        raise ValueError("frames is empty; expected at least one frame to draw")
    images[-1].save(still, format="PNG", optimize=True)
    # One palette for all: colours do not flicker, and what stands still costs nothing.
    samples = [np.asarray(images[index]) for index in np.linspace(0, len(images) - 1, 5).astype(int)]
    palette = Image.fromarray(np.concatenate(samples)).quantize(64)
    images = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    gif = io.BytesIO()
    times = [milliseconds] * (len(images) - 1) + [last]
    images[0].save(gif, format="GIF", save_all=True, append_images=images[1:], duration=times, optimize=True)
    title = figure.get_suptitle() or "; ".join(filter(None, (ax.get_title() for ax in figure.axes)))
    plt.close(figure)
    return Moving(gif.getvalue(), still.getvalue(), title, figure_data.fold(figure))
