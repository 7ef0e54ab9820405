"""Operators of second order whose directions are not the unit ones: the caller's, or random."""

import math
from collections.abc import Sequence
from typing import Any

from tapelab.derivatives.machinery.arguments.checks import require_positive
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.operators.second_order import Coefficients, SecondOrder
from tapelab.runtime import tf

import numpy as np


class General(SecondOrder):
    """Σ_r w_r (v_r·∇)² f + b·∇f, for one source.

    Args:
        directions, weights, matrix, drift: as for `second_order`.
        options: as for `SecondOrder`.
    """

    def __init__(self, directions: Any, weights: Any, matrix: Any, drift: Any, *options: Any):
        super().__init__("second_order", *options)
        if (directions is None) == (matrix is None):
            raise ValueError("second_order takes either directions or a matrix; pass exactly one of them")
        if matrix is not None:
            if weights is not None:
                raise ValueError("weights belong to directions; with a matrix, multiply it instead")
            directions, weights = _factors(matrix)
        self._flat = matrix is not None
        self._directions, self._weights, self._drift = directions, weights, drift
        self.outside = (directions, weights, drift)

    def count(self, problem: Problem) -> int:
        if len(problem.source_names) != 1:
            raise ValueError(f"{problem.name}: the source has {len(problem.source_names)} tensors; pass one tensor")
        spec = tf.TensorSpec(problem.source_shapes[0], problem.source_dtypes[0])
        traced = tf.function(lambda x: self.directions(problem, [x])[0], autograph=False).get_concrete_function(spec)
        return traced.structured_outputs[0].shape[0]

    def directions(self, problem: Problem, sources: Sequence[tf.Tensor]) -> Coefficients:
        x = sources[0]
        vectors = self._vectors(problem, x)
        weights = self._weights
        if weights is not None:
            weights = _read(weights, x)
            if weights.shape != vectors.shape[:1]:
                raise ValueError(
                    f"{problem.name}: the weights have shape {weights.shape}; expected one for each of the "
                    f"{vectors.shape[0]} directions, ({vectors.shape[0]},)"
                )
        return [vectors], weights, None if self._drift is None else [self._shaped(problem, "drift", self._drift, x, 0)]

    def _vectors(self, problem, x):
        vectors = self._directions
        if self._flat:
            example = self.example(tuple(x.shape))
            if len(vectors) and vectors.shape[1] != math.prod(example):
                n = vectors.shape[1]
                raise ValueError(
                    f"{problem.name}: the matrix has shape ({n}, {n}); expected n = {math.prod(example)}, the elements "
                    f"of {'an example' if self.batched else 'the source'} of shape {example}"
                )
            vectors = vectors.reshape([-1, *example])
        return self._shaped(problem, "directions", vectors, x, 1)

    def _shaped(self, problem, what, value, x, lead):
        """Convert a coefficient, whose first ``lead`` axes are its own; insert an axis for the batch if it has none."""
        tensor = _read(value, x)
        example, shape = self.example(tuple(x.shape)), tuple(tensor.shape)
        if self.batched and len(shape) == lead + len(example):
            tensor = tf.expand_dims(tensor, lead)
        wanted = [example, tuple(x.shape)] if self.batched else [example]
        if shape[lead:] not in wanted:
            first = "(number, …)" if lead else "(…)"
            raise ValueError(
                f"{problem.name}: {what} of shape {shape} given; expected {first} with … one of "
                f"{', '.join(map(str, wanted))}, for a source of shape {tuple(x.shape)}"
            )
        return tensor


class Sampled(SecondOrder):
    """Hutchinson's estimate of the Laplacian: the mean of (v·∇)² f over vectors v of random signs.

    Args:
        samples, seed: as for `laplacian`.
        options: as for `SecondOrder`.
    """

    def __init__(self, samples: int, seed: int | None, *options: Any):
        super().__init__("laplacian", *options)
        require_positive(samples=samples)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed is {seed!r}; expected a whole number")
        self._samples, self._seed = samples, seed

    def count(self, problem: Problem) -> int:
        return self._samples

    def directions(self, problem: Problem, sources: Sequence[tf.Tensor]) -> Coefficients:
        found = []
        for number, x in enumerate(sources):
            shape = [self._samples, *x.shape]
            if self._seed is None:
                ones = tf.random.uniform(shape, maxval=2, dtype=tf.int32)
            else:
                ones = tf.random.stateless_uniform(shape, [self._seed, number], maxval=2, dtype=tf.int32)
            found.append(tf.cast(2 * ones - 1, x.dtype))
        return found, tf.fill([self._samples], tf.constant(1 / self._samples, tf.float64)), None


def _read(value, x):
    """A coefficient where the sources are x: a function of them, or a constant or variable."""
    value = value(x) if callable(value) and not isinstance(value, tf.Variable) else value
    return tf.cast(tf.convert_to_tensor(value), x.dtype)


def _factors(matrix):
    """Directions and weights with Σ_r w_r v_r v_rᵀ = (C + Cᵀ)/2: eigenvectors and eigenvalues that are not zero."""
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise ValueError(
            f"the matrix has shape {matrix.shape}; expected finite numbers of shape (n, n). For coefficients that "
            "depend on the example, pass directions as a function"
        )
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    kept = np.abs(values) > len(values) * np.finfo(float).eps * np.abs(values).max(initial=0)
    return vectors.T[kept], values[kept]
