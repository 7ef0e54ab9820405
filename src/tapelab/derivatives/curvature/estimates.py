"""The trace and the diagonal of a symmetric matrix, estimated from its products with random vectors of signs."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

# Takes vectors of shape (n,), their number, and what they are for; yields each with its product.
Products = Callable[[Iterable[np.ndarray], int, str], Iterable[tuple[np.ndarray, np.ndarray]]]


class Estimate(NamedTuple):
    """An estimate from random vectors.

    Attributes:
        value: a number, or an array of shape (n,).
        standard_error: the standard deviation of the value over other random vectors, estimated from these; of the
            value's shape. 0 where the value is exact.
    """

    value: Any
    standard_error: Any


def trace(products: Products, n: int, samples: int, method: str, seed: int | None) -> Estimate:
    """Estimate the trace; `CurvatureOperator.trace` says how.

    Args:
        method: "hutchinson" or "hutch++".
    """
    generator = np.random.default_rng(seed)
    found, basis = 0.0, None
    if method == "hutch++":
        require_samples(samples, 6)
        samples //= 3
        sketch = [image for _, image in products(_signs(generator, n, samples), samples, "sketching")]
        basis = np.linalg.qr(np.stack(sketch, axis=1))[0]
        found = sum(float(q @ image) for q, image in products(basis.T, basis.shape[1], "the sketch's trace"))
    require_samples(samples, 2)
    vectors = _signs(generator, n, samples)
    if basis is not None:
        vectors = (z - basis @ (z @ basis) for z in vectors)
    values = [z @ image for z, image in products(vectors, samples, "estimating the trace")]
    return Estimate(float(found + np.mean(values)), float(np.std(values, ddof=1) / len(values) ** 0.5))


def diagonal(products: Products, n: int, samples: int, seed: int | None) -> Estimate:
    """Estimate the diagonal; `CurvatureOperator.diagonal` says how."""
    require_samples(samples, 2)
    mean, squares = np.zeros(n), np.zeros(n)
    pairs = products(_signs(np.random.default_rng(seed), n, samples), samples, "estimating the diagonal")
    for count, (z, image) in enumerate(pairs, start=1):
        deviation = z * image - mean
        mean += deviation / count
        squares += deviation * (z * image - mean)
    return Estimate(mean, np.sqrt(squares / (samples - 1) / samples))


def exact_diagonal(products: Products, n: int) -> Estimate:
    """Compute the diagonal from n products."""
    units = (np.eye(1, n, index)[0] for index in range(n))
    images = enumerate(image for _, image in products(units, n, "computing the diagonal"))
    return Estimate(np.array([image[index] for index, image in images]), np.zeros(n))


def require_samples(samples: int, least: int) -> None:
    """Raise ValueError unless there are enough."""
    if isinstance(samples, bool) or not isinstance(samples, int) or samples < least:
        raise ValueError(f"samples is {samples!r}; expected a whole number of at least {least}")


def _signs(generator: np.random.Generator, n: int, count: int) -> Iterator[np.ndarray]:
    for _ in range(count):
        yield generator.integers(0, 2, n) * 2.0 - 1
