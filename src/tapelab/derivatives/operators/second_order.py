"""The recipes of operators of second order, Σ_r w_r (v_r·∇)² f + b·∇f: collapsed Taylor mode, or nested tapes."""

import math
from dataclasses import dataclass
from typing import Any

from tapelab.derivatives.machinery.arguments.checks import require_positive
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.operators.recipe import (
    Coefficients,
    Operator,
    along_directions,
    note_if_zero,
    propagated,
)
from tapelab.derivatives.operators.taylor_mode.algebras import Second
from tapelab.derivatives.operators.taylor_mode.values import Val, zeros_if_none
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

# Directions for each source, weights and drifts, the latter for each source; None for ones, and for zero.
Parts = tuple[list[tf.Tensor], tf.Tensor | None, list[tf.Tensor] | None]


@dataclass(eq=False)
class SecondOrder(Operator):
    """The Laplacian, which has unit directions; a subclass with others overrides `count` and `directions`.

    Attributes:
        all_orders: whether f's value and derivatives along the directions are returned too.
    """

    all_orders: bool = False
    split = True

    def count(self, problem: Problem) -> int:
        """How many directions there are."""
        return self.size(problem)

    def directions(self, problem: Problem, sources: Tensors) -> Parts:
        """Return directions (count, 1 or batch, *example) for each source, their weights (count,) and drifts or None.

        Unbatched, there is no axis for the batch.
        """
        return self.units(problem), None, None

    def coefficients(self, problem: Problem, sources: Tensors) -> tuple[Coefficients, list[int | None]]:
        directions, weights, drift = self.directions(problem, sources)
        drifts = drift or [None] * len(directions)
        batch = problem.source_shapes[0][0] if self.batched else None
        axes = [
            axis if batch and tensor is not None and tensor.shape[axis] == batch else None
            for axis, tensors in ((1, directions), (0, drifts))
            for tensor in tensors
        ]
        return [*directions, *drifts, weights], [*axes, None]

    def compute(
        self, problem: Problem, tensors: Tensors, coefficients: Coefficients, *, chunk: int, strict: bool
    ) -> list[tf.Tensor]:
        directions, drifts, weights = _parts(coefficients)
        count = directions[0].shape[0]
        sums: list[tf.Tensor] = []
        slopes: list[list[tf.Tensor]] = []
        for start in range(0, max(count, 1), chunk):
            part = slice(start, min(start + chunk, count))
            algebra = Second(part.stop - start, None if weights is None else weights[part])
            if start:
                drifts = [None] * len(drifts)  # it counts once
            vals = [
                Val(x, (v[part], None if b is None else b[None]))
                for x, v, b in zip(tensors[: problem.data_start], directions, drifts, strict=True)
            ]
            outputs = propagated(problem, vals, tensors, algebra, strict=strict, custom_gradients=self.custom_gradients)
            own, along = ([zeros_if_none(o.channels(2)[k], algebra.lanes[k], o.v) for o in outputs] for k in (1, 0))
            sums = [a + c[0] for a, c in zip(sums, own, strict=True)] if start else [c[0] for c in own]
            slopes.append(along)
        note_if_zero(problem, outputs)
        joined = [tf.concat(parts, 0) for parts in zip(*slopes, strict=True)]
        return self._results(problem, [o.v for o in outputs], sums, joined)

    def nested(
        self, problem: Problem, tensors: Tensors, coefficients: Coefficients, *, chunk: int, how: str
    ) -> list[tf.Tensor]:
        directions, drifts, weights = _parts(coefficients)
        values, (slopes, bends) = along_directions(problem, tensors, directions, 2, chunk=chunk, how=how)
        ones = tf.ones(directions[0].shape[:1]) if weights is None else weights
        sums = [tf.tensordot(tf.cast(ones, bend.dtype), bend, 1) for bend in bends]
        if drift := [b[None] for b in drifts if b is not None]:
            _, (drifted,) = along_directions(problem, tensors, drift, 1, chunk=1, how=how)
            sums = [total + part[0] for total, part in zip(sums, drifted, strict=True)]
        return self._results(problem, values, sums, slopes)

    def specs(self, problem: Problem) -> list[tf.TensorSpec]:
        values = super().specs(problem)
        if not self.all_orders:
            return values
        gradients = [
            tf.TensorSpec([*value.shape, *self.example(shape)], dtype)
            for value in values
            for shape, dtype in zip(problem.source_shapes, problem.source_dtypes, strict=True)
        ]
        return [*values, *gradients, *values]

    def _results(self, problem: Problem, values: Tensors, sums: list[tf.Tensor], slopes: Tensors) -> list[tf.Tensor]:
        """The flat list of results: the sums; or values, slopes for each source, and sums."""
        if not self.all_orders:
            return sums
        gradients = []
        examples = [self.example(shape) for shape in problem.source_shapes]
        for value, slope in zip(values, slopes, strict=True):
            last = tf.transpose(slope, [*range(1, slope.shape.rank), 0])
            parts = tf.split(last, list(map(math.prod, examples)), -1)
            for part, example, dtype in zip(parts, examples, problem.source_dtypes, strict=True):
                gradients.append(tf.cast(tf.reshape(part, [*value.shape, *example]), dtype))
        return [*values, *gradients, *sums]

    def structured(self, problem: Problem, outputs: Tensors) -> Any:
        if not self.all_orders:
            return problem.structured_outputs(outputs)
        count = len(problem.returned.names)
        rows = problem.structured_rows(outputs[count:-count])
        return tuple(map(problem.structured_outputs, (outputs[:count], rows, outputs[-count:])))


class General(SecondOrder):
    """Σ_r w_r (v_r·∇)² f + b·∇f, for one source.

    Args:
        directions, weights, matrix, drift: as for `second_order`.
        options: as for `SecondOrder`.
    """

    def __init__(self, directions: Any, weights: Any, matrix: Any, drift: Any, **options: Any):
        super().__init__("second_order", **options)
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

    def directions(self, problem: Problem, sources: Tensors) -> Parts:
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

    def _vectors(self, problem: Problem, x: tf.Tensor) -> tf.Tensor:
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

    def _shaped(self, problem: Problem, what: str, value: Any, x: tf.Tensor, lead: int) -> tf.Tensor:
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

    def __init__(self, samples: int, seed: int | None, **options: Any):
        super().__init__("laplacian", **options)
        require_positive(samples=samples)
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
            raise ValueError(f"seed is {seed!r}; expected a whole number")
        self._samples, self._seed = samples, seed

    def count(self, problem: Problem) -> int:
        return self._samples

    def directions(self, problem: Problem, sources: Tensors) -> Parts:
        found = []
        for number, x in enumerate(sources):
            shape = [self._samples, *x.shape]
            if self._seed is None:
                ones = tf.random.uniform(shape, maxval=2, dtype=tf.int32)
            else:
                ones = tf.random.stateless_uniform(shape, [self._seed, number], maxval=2, dtype=tf.int32)
            found.append(tf.cast(2 * ones - 1, x.dtype))
        return found, tf.fill([self._samples], tf.constant(1 / self._samples, tf.float64)), None


def _parts(coefficients: Coefficients) -> tuple[list[tf.Tensor], Coefficients, tf.Tensor | None]:
    """Undo `SecondOrder.coefficients`: directions and drifts for each source, and weights."""
    size = len(coefficients) // 2
    directions = [direction for direction in coefficients[:size] if direction is not None]  # none of them is
    return directions, coefficients[size : 2 * size], coefficients[-1]


def _read(value: Any, x: tf.Tensor) -> tf.Tensor:
    """A coefficient where the sources are x: a function of them, or a constant or variable."""
    value = value(x) if callable(value) and not isinstance(value, tf.Variable) else value
    return tf.cast(tf.convert_to_tensor(value), x.dtype)


def _factors(matrix: Any) -> tuple[np.ndarray, np.ndarray]:
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
