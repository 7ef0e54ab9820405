"""What second derivatives tell of the place where a minimisation has ended: a minimum, a saddle, or a flat place.

A gradient of zero is none of these by itself. The eigenvalues of the Hessian matrix tell them apart, as far as they are
known: all of them from the matrix, and from k products with it the Ritz values of Lanczos's method (`lanczos`). A
Ritz value is the curvature along some direction: a negative one is a saddle or a maximum for certain, positive ones
alone prove nothing of the directions that were not seen.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tapelab.derivatives.spectrum import lanczos

import numpy as np

PRODUCTS = 20  # with the Hessian, by default: Lanczos's method keeps as many vectors as L-BFGS's history of 10
_ROUNDING = 30.0  # in units of rounding, relative to the largest eigenvalue, times the root of their number
_HIDDEN = 1e-2  # relative
_AGREEING = 0.1  # relative: a product that is another matrix's is wrong by its own size


@dataclass(frozen=True)
class Standing:
    """What the Hessian matrix tells of a point where the gradient is small.

    Attributes:
        kind: "minimum" (all eigenvalues are positive), "maximum" (all are negative), "saddle" (there is a direction
            along which the loss curves downwards), "flat" (the smallest eigenvalue is zero but for rounding), or
            "unknown" (products found positive curvature only, and have not seen all directions; or there are none).
        smallest: the smallest eigenvalue, or Ritz value, that was computed; None if there is none. Of Ritz values, the
            smallest eigenvalue is at or below it.
        largest: the same for the largest.
        rounding: below this magnitude an eigenvalue is not told from zero.
        products: how many Hessian-vector products were taken; 0 where the whole matrix was decomposed.
        complete: whether all different eigenvalues were found.
        why: why nothing is known, in words; otherwise empty.
    """

    kind: str
    smallest: float | None = None
    largest: float | None = None
    rounding: float = 0.0
    products: int = 0
    complete: bool = False
    why: str = ""

    def __str__(self) -> str:
        if self.smallest is None:
            return f"whether this is a minimum is not known: {self.why}"
        found = "the Hessian's smallest eigenvalue" if self.complete else f"in {self.products} products, the smallest"
        found += " is" if self.complete else " curvature found is"
        value = f"{found} {self.smallest:.3g}"
        if self.kind == "minimum":
            return f"a minimum: {value}"
        if self.kind == "maximum":
            return f"a maximum: the Hessian's largest eigenvalue is {self.largest:.3g}"
        if self.kind == "saddle":
            return f"not a minimum: {value}, and along that direction the loss curves downwards"
        if self.kind == "flat":
            return (
                f"a flat place: {value}, zero but for rounding ({self.rounding:.1g}); second derivatives do not tell "
                "whether it is a minimum"
            )
        return f"perhaps a minimum: {value}; not all directions were seen"


def of_matrix(matrix: np.ndarray) -> Standing:
    """Judge by all eigenvalues of the Hessian matrix, shape (n, n)."""
    if not np.isfinite(matrix).all():
        return Standing("unknown", why="the Hessian is NaN or infinite")
    values = np.linalg.eigvalsh(np.asarray((matrix + matrix.T) / 2, np.float64))
    return _of_eigenvalues(values, _ROUNDING * len(matrix) ** 0.5 * _unit(matrix.dtype), 0, True)


def of_products(product: Callable[[np.ndarray], np.ndarray], size: int, dtype: np.dtype, products: int) -> Standing:
    """Judge by Lanczos's method from a random start, always the same.

    Args:
        product: takes a vector of shape (n,) and this dtype, returns the Hessian times it.
        size: n.
        products: how many to take at most.
    """
    values = lanczos(product, np.random.default_rng(0).standard_normal(size).astype(dtype), products).values
    # It stops before it has to where the basis spans a space that the matrix maps to itself: no other eigenvalue is
    # left, but for those that differ from one of these by less than this, which the start may not have shown.
    hidden = _ROUNDING * size * _unit(dtype)
    complete = len(values) == size or (len(values) < products and hidden < _HIDDEN)
    rounding = hidden if complete and len(values) < size else _ROUNDING * size**0.5 * _unit(dtype)
    return _of_eigenvalues(values, rounding, len(values), complete)


def require_agreeing(
    product: np.ndarray, vector: np.ndarray, point: np.ndarray, gradient: Callable[[np.ndarray], np.ndarray]
) -> None:
    """Raise ValueError unless a product of the Hessian with a vector agrees with a difference of gradients.

    Second derivatives may be those of a custom gradient, or of one side of a kink, and not the loss's.

    Args:
        vector: of length 1.
        point: where the Hessian is.
        gradient: takes a point.
    """
    length = _unit(point.dtype) ** 0.25 * max(1.0, float(np.linalg.norm(point)))
    ahead, behind = (gradient((point + sign * length * vector).astype(point.dtype)) for sign in (1, -1))
    difference = (np.asarray(ahead, np.float64) - behind) / (2 * length)
    largest = max(np.max(np.abs(product)), np.max(np.abs(difference)))
    if not np.max(np.abs(product - difference)) <= _AGREEING * largest:
        raise ValueError("its product with a vector differs from a difference of gradients by more than a tenth")


def _of_eigenvalues(values: np.ndarray, rounding: float, products: int, complete: bool) -> Standing:
    smallest, largest = float(values.min()), float(values.max())
    rounding *= max(abs(smallest), abs(largest))
    if smallest < -rounding:
        kind = "maximum" if complete and largest < -rounding else "saddle"
    elif smallest <= rounding:
        kind = "flat"
    else:
        kind = "minimum" if complete else "unknown"
    return Standing(kind, smallest, largest, rounding, products, complete)


def _unit(dtype: np.dtype) -> float:
    return float(np.finfo(dtype).eps)


def attempted(judge: Callable[[], Standing | None]) -> Standing | None:
    """Return what `judge` does, and why not where it fails: a minimisation that has ended is not to fail for it."""
    try:
        return judge()
    except Exception as error:  # whatever second derivatives raise
        lines = str(error).strip().splitlines() or ["no message"]
        return Standing("unknown", why=f"the Hessian raises {type(error).__name__}: {lines[0][:200]}")
