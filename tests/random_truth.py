"""Derivatives of a function of rows from its values alone, on both sides of a point: whether they exist, and how sure.

On [0, r] and on [-r, 0] the function is interpolated at Chebyshev's points, and the polynomial is differentiated at 0.
Where both sides agree there is a derivative. The radius r goes from large to small: a kink or a pole inside spoils the
large ones, rounding the small ones. Between them neighbours agree, and by how much is the estimate of the error; what
rounding must cost is its floor. See L. N. Trefethen, *Approximation Theory and Approximation Practice*, chapters 7 and
21. A derivative of order q loses a factor (nodes² / r)^q of the precision of float64, no more.
"""

from collections.abc import Callable
from typing import NamedTuple

from tapelab.runtime import tf

import numpy as np
from numpy.polynomial import chebyshev

ORDERS, NODES = 4, 9
EPSILON = float(np.finfo(np.float64).eps)
RADII = 0.4 * 3.0 ** -np.arange(8)
SURE = 1e-4  # a derivative is judged where its relative error is estimated to be below
FLOORS = np.array([1e-8, 1e-8, 1e-6, 1e-4])  # or its error is below this part of the function
CONVERGED = 1e-3  # and its error, times the radius, is below this part of how much the function varies
LEAST = float(np.finfo(np.float64).tiny)  # below, TensorFlow rounds to 0
SMALLEST = 1e-280  # where neither a derivative nor the function is larger, errors below do not matter
STEPS = (1 - np.cos(np.pi * np.arange(NODES) / (NODES - 1))) / 2  # in [0, 1], 0 first


def _differentiate(degree: int) -> np.ndarray:
    """The matrix, (orders, nodes), from values at the steps to derivatives at 0 of the polynomial that fits them."""
    fit = np.linalg.pinv(chebyshev.chebvander(2 * STEPS - 1, degree))
    rows = []
    for order in range(1, ORDERS + 1):
        ends = [chebyshev.chebval(-1.0, chebyshev.chebder(unit, order)) for unit in np.eye(degree + 1)]
        rows.append(2.0**order * np.array(ends) @ fit)
    return np.stack(rows)


EXACT, SMOOTHED = _differentiate(NODES - 1), _differentiate(NODES - 3)
NOISE = np.abs(EXACT).sum(axis=1)  # how much rounding errors of 1 in the values can make of a derivative at radius 1


class Rates(NamedTuple):
    """Derivatives along curves, shape (orders, rows, curves, k): values, errors, and whether they exist.

    `negligible` is what an error may be, shape (orders, rows, 1, k): relative to the largest derivative of a row's
    result along any of the curves, and to how much that result varies.
    """

    values: np.ndarray
    errors: np.ndarray
    exist: np.ndarray
    negligible: np.ndarray


class Derivative(NamedTuple):
    """A derivative of each row: its value, (rows, k, …); its error, likewise; whether it exists, (rows, k)."""

    value: np.ndarray
    error: np.ndarray
    exists: np.ndarray


def rates(f: Callable, x: np.ndarray, curves: Callable[[np.ndarray], np.ndarray], orders: int) -> Rates:
    """Differentiate t ↦ f(x + curve(t)) at 0, up to an order.

    Args:
        f: takes a float64 tensor (points, n), returns one (points, k), row by row.
        x: shape (rows, n).
        curves: takes times (m,), returns displacements of shape (rows or 1, curves, m, n), 0 at time 0.
        orders: up to which.
    """
    at = f(tf.constant(x)).numpy()
    with np.errstate(all="ignore"):
        (right, right_error, size), (left, left_error, _) = _sides(f, x, at, curves, orders)
        values = (right + left) / 2
        errors = np.maximum(right_error, left_error) + np.abs(right - left) / 2
        largest = np.max(np.abs(values), axis=2, keepdims=True, initial=0, where=np.isfinite(values))
        negligible = SURE * largest + FLOORS[:orders, None, None, None] * size[:, None] + SMALLEST
        exist = np.isfinite(values) & (errors <= negligible)
    return Rates(values, errors, exist, negligible)


def _scales(row: np.ndarray) -> tuple[float, ...]:
    """The sizes of steps that fit a row: 1, and up to 100 times those of tiny elements. Large ones are the caller's."""
    sizes = np.abs(row[np.isfinite(row) & (row != 0)])
    return tuple(sorted({1.0, *(100.0 ** np.ceil(np.log10(sizes[sizes < 0.01]) / 2))}))


def _sides(f, x, at, curves, orders):
    """The derivatives from the right and from the left: see `_best`. The function is evaluated once, for all of it."""
    own = [_scales(row) for row in x]
    scales = sorted({1.0}.union(*own))
    groups = [np.array([row for row, fit in enumerate(own) if scale in fit], int) for scale in scales]
    parts = [(sign, scale, group) for sign in (1.0, -1.0) for scale, group in zip(scales, groups, strict=True)]
    moved = [_moved(x, curves, sign * scale, group) for sign, scale, group in parts]
    around = f(tf.constant(np.concatenate([each.reshape(-1, x.shape[1]) for each in moved]))).numpy()
    ends = np.cumsum([each[..., 0].size for each in moved])[:-1]
    each = []
    for (sign, scale, group), points, values in zip(parts, moved, np.split(around, ends), strict=True):
        values = values.reshape(*points.shape[:2], len(RADII), NODES - 1, at.shape[1])
        first = np.broadcast_to(at[group][:, None, None, None], (*values.shape[:3], 1, at.shape[1]))
        values = np.concatenate([first, values], axis=3)  # (rows, curves, radii, nodes, k)
        each.append((group, values, sign * scale * RADII))
    return [_best(side, len(x), orders) for side in (each[: len(scales)], each[len(scales) :])]


def _moved(x, curves, scale, group):
    """The points on the curves, (rows, curves, radii · nodes, n), of the rows of a group."""
    displacements = curves((scale * RADII[:, None] * STEPS[1:]).ravel())
    return x[group][:, None, None] + (displacements if len(displacements) == 1 else displacements[group])


def _best(side, rows, orders):
    """Of one side the surest derivatives, (orders, rows, curves, k), their errors, and the values' size, (rows, k).

    Args:
        side: for each size of steps, from small to large, the rows that it fits, the values and the radii.
    """
    _, curves, *_, k = side[0][1].shape
    found = np.zeros([orders, rows, curves, len(side), len(RADII) - 1, k])
    errors, preferred = np.full_like(found, np.inf), np.full_like(found, np.inf)
    size = np.zeros([rows, k])
    for number, (group, values, radii) in reversed([*enumerate(side)]):
        size[group] = np.max(np.abs(values[:, :, 1]), axis=(1, 2), initial=0, where=np.isfinite(values[:, :, 1]))
        for order in range(orders):
            each = _extrapolate(values, radii, order + 1)
            found[order, group, :, number], errors[order, group, :, number] = each
            preferred[order, group, :, number] = np.minimum(each[1], np.finfo(float).max)  # to what does not fit
    shape = orders, rows, curves, len(side) * found.shape[4], k
    found, errors, preferred = (each.reshape(shape) for each in (found, errors, preferred))
    index = preferred.argmin(axis=3)[:, :, :, None]
    return *(np.take_along_axis(part, index, 3)[:, :, :, 0] for part in (found, errors)), size


def _extrapolate(values, radii, order):
    """One derivative, (rows, curves, radii, k), and its errors: infinite where it has not converged.

    A step that is far too large gives a small derivative, and a small error of it: that is compared with how much the
    function varies within the radius.
    """
    sizes = np.abs(radii)
    exact = _over(np.einsum("m,rcjmk->rcjk", EXACT[order - 1], values), radii, order)
    smoothed = _over(np.einsum("m,rcjmk->rcjk", SMOOTHED[order - 1], values), radii, order)
    rounding = _over(NOISE[order - 1] * (EPSILON * np.abs(values).max(axis=3) + LEAST), sizes, order)
    errors = np.abs(np.diff(exact, axis=2)) + (0.03 * np.abs(exact - smoothed) + rounding)[:, :, :-1]
    varies = (values.max(axis=3) - values.min(axis=3))[:, :, :-1]
    converged = errors <= CONVERGED * _over(varies, sizes[:-1], order) + 3 * rounding[:, :, 1:]
    return exact[:, :, :-1], np.where(converged, errors, np.inf)


def _over(part, radii, order):
    """Divide (…, radii, k) by powers of the radii, which may be out of range."""
    for _ in range(order):
        part = part / radii[:, None]
    return part


def lines(directions: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Straight curves for `rates`, of directions (curves, n) or (rows, curves, n)."""
    return lambda times: np.broadcast_to(directions, (1, *directions.shape)[-3:])[:, :, None] * times[:, None]


def pairs(n: int) -> np.ndarray:
    """Directions from which all derivatives of second order follow, and one more: e_i, e_i + e_j, e_i - e_j, all."""
    units = np.eye(n)
    both = [units[i] + sign * units[j] for i in range(n) for j in range(i) for sign in (1, -1)]
    return np.array([*units, *both, np.cos(1.0 + np.arange(n))])


def jacobian_and_hessian(f: Callable, x: np.ndarray) -> tuple[Derivative, Derivative]:
    """Return what `f` has of first and second derivatives at each row, (rows, k, n) and (rows, k, n, n)."""
    n, directions = x.shape[1], pairs(x.shape[1])
    sizes = np.maximum(1.0, np.abs(x))  # large elements move in steps of their size
    values, errors, exist, negligible = rates(f, x, lines(directions * sizes[:, None]), 2)
    first, first_error = np.moveaxis(values[0, :, :n], 1, -1), np.moveaxis(errors[0, :, :n], 1, -1)
    second, second_error = _polarised(values[1], errors[1], n)
    with np.errstate(all="ignore"):
        # A derivative is linear in the direction, a second one quadratic: else there is none, but along each line one.
        linear = np.einsum("rki,ci->rck", first, directions)
        quadratic = np.einsum("rkij,ci,cj->rck", second, directions, directions)
        allowed = negligible + 10 * errors.max(axis=2, keepdims=True)
        smooth = exist & (np.abs(values - np.stack([linear, quadratic])) <= allowed)
    once, twice = smooth.all(axis=2)
    units, squares = sizes[:, None], sizes[:, None, :, None] * sizes[:, None, None]
    return (
        Derivative(first / units, first_error / units, once),
        Derivative(second / squares, second_error / squares, once & twice),
    )


def _polarised(along, errors, n):
    """The Hessian of each row, (rows, k, n, n), from second derivatives along `pairs`, and its error."""
    hessian = np.zeros((along.shape[0], along.shape[2], n, n))
    wrong = np.zeros_like(hessian)
    for i in range(n):
        hessian[:, :, i, i], wrong[:, :, i, i] = along[:, i], errors[:, i]
    place = n
    for i in range(n):
        for j in range(i):
            hessian[:, :, i, j] = hessian[:, :, j, i] = (along[:, place] - along[:, place + 1]) / 4
            wrong[:, :, i, j] = wrong[:, :, j, i] = (errors[:, place] + errors[:, place + 1]) / 4
            place += 2
    return hessian, wrong
