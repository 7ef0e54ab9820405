"""A thousand refits of two exponentials and the 95 % ellipsoid that one Jacobian predicts for them.

The curve is a₁ exp(-k₁ t) + a₂ exp(-k₂ t), measured a hundred times with normal noise. Moving the noise scales the same
random numbers, so each refit moves on a path of its own. Small clouds fill the ellipsoid; large ones bend out of it.
"""

from tapelab import plots
from tapelab.interactive.figure import Figure, Slider

import matplotlib.figure
import numpy as np

NAMES = ("a₁", "k₁", "a₂", "k₂")
TRUTH = np.array([1.0, 0.5, 1.0, 1.5])
TIMES = np.linspace(0.0, 6.0, 100)
LIMIT = 9.488  # 95 % of chi-squared with four degrees of freedom are below it
_SHOWN = (0, 3)  # the parameters of the left panel
_LOWEST, _HIGHEST = 0.002, 0.04  # noise
_TOP = 7.5  # of the right panel; fits beyond it are drawn at its edge, and counted


def curves(parameters: np.ndarray) -> np.ndarray:
    """Return the curves of parameters of shape (fits, 4) at `TIMES`, as an array of shape (fits, 100)."""
    a1, k1, a2, k2 = (column[:, np.newaxis] for column in parameters.T)
    return a1 * np.exp(-k1 * TIMES) + a2 * np.exp(-k2 * TIMES)


def jacobians(parameters: np.ndarray) -> np.ndarray:
    """Return the derivatives of `curves`: shape (fits, 100, 4)."""
    a1, k1, a2, k2 = (column[:, np.newaxis] for column in parameters.T)
    slow, fast = np.exp(-k1 * TIMES), np.exp(-k2 * TIMES)
    return np.stack([slow, -a1 * TIMES * slow, fast, -a2 * TIMES * fast], axis=-1)


def covariance(noise: float) -> np.ndarray:
    """Return noise² (JᵀJ)⁻¹ at the truth, shape (4, 4)."""
    (J,) = jacobians(TRUTH[np.newaxis])
    return noise**2 * np.linalg.inv(J.T @ J)


def refits(noise: float, count: int = 1000, seed: int = 0) -> np.ndarray:
    """Fit simulated measurements by the Levenberg-Marquardt method, all at once, each from the truth.

    Args:
        noise: standard deviation of one measurement, positive.
        count: how many data sets.
        seed: of the random numbers, which do not depend on the noise.

    Returns:
        The parameters, shape (count, 4), the slower decay first.

    Raises:
        ValueError: for a noise that is not positive.
    """
    if not noise > 0:
        raise ValueError(f"noise is {noise!r}; expected a positive number")
    y = curves(TRUTH[np.newaxis]) + noise * np.random.default_rng(seed).normal(size=(count, len(TIMES)))
    fits, damping = np.tile(TRUTH, (count, 1)), np.full(count, 1e-3)
    moving = np.arange(count)
    for _ in range(100):
        p, r = fits[moving], curves(fits[moving]) - y[moving]
        J = jacobians(p)
        JtJ, g = np.swapaxes(J, 1, 2) @ J, np.einsum("bni,bn->bi", J, r)
        scale = np.einsum("bii->bi", JtJ)
        damped = JtJ + np.eye(4) * (damping[moving, np.newaxis] * scale)[:, np.newaxis]
        step = np.linalg.solve(damped, -g[:, :, np.newaxis])[:, :, 0]
        with np.errstate(over="ignore", invalid="ignore"):  # a step too far: refused below
            better = np.sum((curves(p + step) - y[moving]) ** 2, axis=1) < np.sum(r**2, axis=1)
        fits[moving] = np.where(better[:, np.newaxis], p + step, p)
        damping[moving] *= np.where(better, 0.1, 10.0)
        moving = moving[np.max(np.abs(step), axis=1) > 1e-6]
        if not moving.size:
            break
    swapped = fits[:, 1] > fits[:, 3]
    fits[swapped] = fits[swapped][:, [2, 3, 0, 1]]
    return fits


def distances(fits: np.ndarray, noise: float) -> np.ndarray:
    """Return each fit's squared distance from the truth, measured by the covariance: within `LIMIT` it is inside."""
    off = fits - TRUTH
    return np.einsum("bi,ij,bj->b", off, np.linalg.inv(covariance(noise)), off)


def axes(fits: np.ndarray, noise: float) -> np.ndarray:
    """Return the fits in the ellipsoid's own axes, the longest first, each in its own standard deviations: (fits, 4).

    In these coordinates the ellipsoid is a ball with the radius sqrt(LIMIT). The parameters are first divided by their
    standard errors, so that units do not matter.
    """
    C = covariance(noise)
    errors = np.sqrt(np.diag(C))
    variances, directions = np.linalg.eigh(C / np.outer(errors, errors))
    directions *= np.sign(directions[-1])  # k₂ grows along each of them
    return (((fits - TRUTH) / errors) @ directions / np.sqrt(variances))[:, ::-1]


def draw(figure: matplotlib.figure.Figure, *, noise: float) -> None:
    """Draw the refits and the ellipsoid, in two parameters and in its own longest and thinnest axis."""
    fits, C = refits(noise), covariance(noise)
    outside = distances(fits, noise) > LIMIT
    widths = fits.std(axis=0) / np.sqrt(np.diag(C))
    own = axes(fits, noise)
    angle = np.linspace(0, 2 * np.pi, 181)
    circle = np.sqrt(LIMIT) * np.stack([np.cos(angle), np.sin(angle)])
    pair = list(_SHOWN)
    ellipse = TRUTH[pair] + (np.linalg.cholesky(C[np.ix_(pair, pair)]) @ circle).T
    left, right = figure.subplots(1, 2)
    along, across = own[:, 0], np.minimum(own[:, 3], _TOP)
    for ax, points, border in ((left, fits[:, pair], ellipse), (right, np.stack([along, across], -1), circle.T)):
        ax.plot(*points[~outside].T, ".", color=plots.BLUE, markersize=3, label=f"inside: {np.sum(~outside)}")
        ax.plot(*points[outside].T, "x", color=plots.RED, markersize=4, label=f"outside: {np.sum(outside)}")
        ax.plot(*border.T, color="black", linewidth=1.2, label="shadow of the 95 % ellipsoid")
    reach = 4.6 * np.sqrt(np.diag(C))[pair]
    left.set(title=f"noise {noise:.3f}: {100 * np.mean(~outside):.1f} % inside the ellipsoid")
    left.set(xlabel=NAMES[pair[0]], ylabel=NAMES[pair[1]])
    left.set(xlim=TRUTH[pair[0]] + reach[0] * np.array([-1, 1]), ylim=TRUTH[pair[1]] + reach[1] * np.array([-1, 1]))
    left.legend(loc="upper left", fontsize="small")
    beyond = int(np.sum(own[:, 3] > _TOP))
    if beyond:
        right.annotate(f"{beyond} further up", (-4.7, _TOP), va="center", fontsize="small")
    right.set(title=f"widths: {widths.min():.2f} to {widths.max():.2f} of predicted")
    right.set(xlabel="along its longest axis", ylabel="along its thinnest axis", aspect="equal")
    right.set(xlim=(-5, 5), ylim=(-4.5, _TOP + 0.5))


def figure() -> Figure:
    """Return a figure with a control for the noise."""
    return Figure(draw, {"noise": Slider(_LOWEST, _HIGHEST, 0.02, 0.002, "noise")}, size=(9.0, 4.8))
