"""An answer with two axes or more, drawn beside the right one."""

from collections.abc import Callable, Sequence

from tapelab import plots

import matplotlib.pyplot as plt
import numpy as np
from matplotlib import patheffects
from matplotlib.figure import Figure

_MOST = 64  # rows and columns that are drawn


def beside(
    answer: np.ndarray, right: np.ndarray, axes: Sequence[str] = (), wrong: np.ndarray | None = None
) -> Callable[[], Figure] | None:
    """Return a function that draws an answer and, beside it, the right one; None where one of them has no two axes.

    Both are drawn as matrices, in the colours of the right one. An array of more axes has a row for each entry of all
    its axes but the last.

    Args:
        answer: an array of numbers.
        right: the right one, of the same shape or another.
        axes: what the axes of `right` mean, such as ("output", "input").
        wrong: which entries of `answer` are wrong, a boolean array of its shape: each is crossed out.
    """
    if min(answer.ndim, right.ndim) < 2 or 0 in (answer.size, right.size):
        return None
    names = axes if len(axes) == right.ndim else ("row", "column")
    labels = {"xlabel": names[-1], "ylabel": ", ".join(names[:-1])}
    largest = np.abs(_matrix(right)).max()
    limit = largest if np.isfinite(largest) and largest else None

    def draw() -> Figure:
        figure, (left, other) = plt.subplots(1, 2, figsize=(6.4, 2.8), layout="constrained")
        plots.matrix(_matrix(answer), title="yours", limit=limit, ax=left, **labels)
        plots.matrix(_matrix(right), title="right", limit=limit, ax=other, **labels)
        if wrong is not None:
            rows, columns = np.nonzero(_matrix(wrong))
            edged = [patheffects.withStroke(linewidth=4, foreground="white")]  # to be seen on a dark entry too
            left.plot(columns, rows, "x", color="black", path_effects=edged)
            left.set_title("yours (crossed: wrong)")
        return figure

    return draw


def _matrix(values: np.ndarray) -> np.ndarray:
    return np.real(values).reshape(-1, values.shape[-1])[:_MOST, :_MOST].astype(np.float64)
