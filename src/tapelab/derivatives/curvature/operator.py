"""The curvature of a loss over a data set: Hessian, Gauss-Newton matrix or Fisher information, never built."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from tapelab.derivatives import costs
from tapelab.derivatives.curvature import estimates
from tapelab.derivatives.curvature.batches import Batches, require_additive
from tapelab.derivatives.curvature.gauss_newton import (
    check_reduction,
    fvp,
    ggnvp,
)
from tapelab.derivatives.curvature.spectrum import Spectrum, lanczos
from tapelab.derivatives.hessians.hessian import hvp
from tapelab.derivatives.machinery.arguments.checks import dense_tensor, require_alike, require_positive
from tapelab.derivatives.machinery.arguments.packing import require_one_dtype, split
from tapelab.derivatives.machinery.arguments.sources import Sources
from tapelab.derivatives.machinery.arguments.structures import LEAF, flatten, unflatten
from tapelab.derivatives.machinery.memory import rows_at_once
from tapelab.derivatives.machinery.transform import Transform
from tapelab.process.session.bar import progress_bar
from tapelab.process.tensorflow import tf

import numpy as np

if TYPE_CHECKING:
    import scipy.sparse.linalg


class CurvatureOperator:
    """A curvature matrix of a model's loss over a data set, of shape (n, n), as products with vectors.

    Each product goes through the data set once; of products with several vectors, eight at a time do. The model's
    variables are read at every product: the matrix is that at their present values. Its rows and columns are in the
    order of `pack`.

    ``operator @ v`` takes a vector of shape (n,), a matrix of shape (n, k), or a vector of the variables' structure and
    shapes, all of the variables' dtype, and returns the like.

    The matrix belongs to the loss of the whole data set: the mean of its examples' losses, each of the same weight
    however the batches are cut, or their sum. That a batch's loss is such a mean or sum, and that the model's outputs
    for one example do not depend on the others, is checked on the first batch. Batch normalisation in training mode
    couples examples, and is refused; with ``check_independence=False`` a matrix is then defined by these batches: the
    mean of their matrices, weighted by their numbers of examples, or the sum. The data set has to give the same
    examples each time, in any order: random augmentation would make every product one of another matrix.

    Second derivatives through normalisation layers are right (`tapelab.derivatives.wrong.moments`). In memory are
    vectors
    of n numbers, three for each of up to eight at a time, and what one batch takes; for `spectrum` also n times its
    steps, and for `trace` by Hutch++ n times its samples.

    Args:
        model: takes x, nested if need be; returns outputs, nested if need be, with the examples first.
        loss: called as ``loss(y, outputs)``, or ``loss(outputs)`` for data without y; returns one scalar, the mean or
            sum over the examples of a batch. For the kind "fisher" the name of the distribution that the model
            predicts, as for `fvp`; y is not used then.
        wrt: variables, nested, of one dtype. There is no ``argnums``: the arguments are the data.
        data: a `tf.data.Dataset` of batches, each (x, y) or x; or a pair of arrays (x, y).
        kind: "hessian"; "ggn", the generalised Gauss-Newton matrix; or "fisher".
        reduction: "mean" or "sum", what the loss is over the examples, and so what the matrix belongs to.
        batch_size: into how many examples to cut arrays; None for all at once.
        check_independence: whether to check the first batch.
        compile: see `tapelab.derivatives`.

    Keep the operator to keep what it compiled, one program for each shape of batches. It is traced anew when what the
    model or the loss reads from outside has changed; a warning at the first call names what it cannot see.

    Attributes:
        shape: (n, n).
        dtype: the variables', a `tf.DType`.
        kind: as given.

    Raises:
        CoupledExamplesError: if the outputs for an example depend on the others, or on chance.
        ValueError, TypeError: for arguments that do not fit, or a loss that is not what ``reduction`` says; in
            products, as `hvp` and `ggnvp`.
    """

    def __init__(
        self,
        model: Callable,
        loss: Callable | str,
        *,
        wrt: Any,
        data: Any,
        kind: str = "hessian",
        reduction: str = "mean",
        batch_size: int | None = None,
        check_independence: bool = True,
        compile: str = "auto",
    ):
        check_reduction(reduction)
        if wrt is None:
            raise ValueError("wrt is None; expected variables, nested, that the model reads")
        sources = Sources(0, wrt)
        variables = sources.variables or []
        require_one_dtype([variable.dtype for variable in variables])
        self.kind = kind
        self.dtype = variables[0].dtype
        self._description = sources.description
        self._shapes = [tuple(variable.shape) for variable in variables]
        size = sum(map(math.prod, self._shapes))
        self.shape = (size, size)
        self._mean = reduction == "mean"
        self._batches = Batches(data, batch_size)
        self._product = _product_of(kind, model, loss, wrt, reduction, compile)
        if check_independence:
            require_additive(model, None if isinstance(loss, str) else loss, reduction, next(iter(self._batches)))

    def __repr__(self) -> str:
        return f"<CurvatureOperator {self.kind!r}, shape {self.shape}, {self.dtype.name}>"

    def __matmul__(self, vector: Any) -> Any:
        """Return the matrix times a vector of shape (n,), a matrix of shape (n, k), or a vector like the variables.

        Raises:
            ValueError: if the shapes or the structure do not fit, or the data set is empty.
            TypeError: for another dtype than the variables'.
            RuntimeError: inside a tf.function.
        """
        leaves: list[Any] = []
        n = self.shape[0]
        description = flatten(vector, leaves, numbers=True)
        tensors = [dense_tensor(leaf, repr(self)) for leaf in leaves]
        wrong = next((tensor.dtype for tensor in tensors if tensor.dtype != self.dtype), None)
        if wrong is not None:
            raise TypeError(f"{self!r} @ a tensor of dtype {wrong.name}: expected {self.dtype.name}; use tf.cast")
        like_variables = self._description is LEAF and tuple(tensors[0].shape) == self._shapes[0]
        if description is LEAF and not like_variables:
            (tensor,) = tensors
            if tensor.shape.rank not in (1, 2) or tensor.shape[0] != n:
                raise ValueError(
                    f"{self!r} @ a tensor of shape {tuple(tensor.shape)}: expected ({n},), ({n}, columns), or a vector "
                    "of the structure and shapes of the variables"
                )
            columns = [tensor] if tensor.shape.rank == 1 else tf.unstack(tensor, axis=1)
            images = [image for _, image in self._through(columns, len(columns), "multiplying")]
            result = images[0] if tensor.shape.rank == 1 else np.reshape(images, (len(columns), n)).T
            return tf.cast(result, self.dtype)
        dtypes = [self.dtype] * len(self._shapes)
        require_alike(repr(self), "vector", description, tensors, self._description, self._shapes, dtypes, "variables")
        (image,) = self._apply([tensors])
        parts = split(tf.cast(image, self.dtype), self._shapes)
        return unflatten(self._description, iter(parts))

    def trace(
        self, samples: int = 100, *, exact: bool = False, method: str = "hutchinson", seed: int | None = None
    ) -> estimates.Estimate:
        """Return the trace: an estimate with its standard error, or the exact one from n products.

        Hutchinson's estimate is the mean of :math:`zᵀAz` over random signs z (1989). Hutch++ takes a third of the
        products to find the directions in which A is largest, a third for the exact trace there, and estimates the rest
        (Meyer et al., 2021): better where a few eigenvalues are large, no better otherwise; it holds n times 2/3 of the
        samples.

        Args:
            samples: how many products, at least 2, for Hutch++ 6.
            exact: whether to take n products instead.
            method: "hutchinson" or "hutch++".
            seed: of the random vectors; None draws new ones each time.

        Raises:
            ValueError: for fewer samples, or an unknown method.
        """
        if method not in ("hutchinson", "hutch++"):
            raise ValueError(f'method is {method!r}; expected "hutchinson" or "hutch++", or use exact=True')
        if exact:
            return estimates.Estimate(float(np.sum(self.diagonal(exact=True).value)), 0.0)
        return estimates.trace(self._through, self.shape[0], samples, method, seed)

    def diagonal(self, samples: int = 100, *, exact: bool = False, seed: int | None = None) -> estimates.Estimate:
        """Return the diagonal: an estimate with its standard errors, or the exact one from n products.

        The estimate is the mean of z times Az, element by element, over random signs z (Bekas et al., "An estimator for
        the diagonal of a matrix", 2007). It is a rough one: element i has the variance :math:`Σ_{j≠i} A_ij² / samples`.
        On a network of 2000 parameters it was 30 % off in norm after 50 products, 15 % after 200.

        Args:
            samples: how many products, at least 2.
            exact: whether to take n products instead.
            seed: of the random vectors; None draws new ones each time.

        Returns:
            An `Estimate` with arrays of shape (n,), in the order of `pack`.

        Raises:
            ValueError: for fewer samples.
        """
        if exact:
            return estimates.exact_diagonal(self._through, self.shape[0])
        return estimates.diagonal(self._through, self.shape[0], samples, seed)

    def spectrum(
        self, steps: int = 40, probes: int = 10, *, seed: int | None = None, memory_limit: float | None = None
    ) -> Spectrum:
        """Estimate the eigenvalues, by Lanczos's method from several random starts: steps x probes products.

        More steps sharpen the outermost eigenvalues, more starts the density: after 40 steps the five largest of a
        network's were exact to 1e-9 of the largest, after 80 the ten largest to 1e-14. It keeps n times ``steps``
        numbers, in float32 unless the variables are float64: 160 MB for a million parameters and 40 steps.

        Args:
            steps: products for each start, at least 1.
            probes: how many starts, at least 1.
            seed: of the starts; None draws new ones each time.
            memory_limit: see `tapelab.derivatives`.

        Raises:
            MemoryLimitError: if the basis would not fit.
            ValueError: if ``steps`` or ``probes`` are not positive, or a product is NaN or infinite.
        """
        require_positive(steps=steps, probes=probes)
        n, dtype = self.shape[0], np.dtype(np.float64 if self.dtype == tf.float64 else np.float32)
        rows_at_once(
            what="spectrum",
            shapes=f"a basis of shape ({min(steps, n)}, {n})",
            result=(min(steps, n) + 4) * n * dtype.itemsize,
            rows=1,
            per_row=0,
            advice="fewer steps",
            limit=memory_limit,
        )
        generator = np.random.default_rng(seed)
        with progress_bar(steps * probes, "Lanczos") as advance:

            def product(vector: np.ndarray) -> np.ndarray:
                (image,) = self._apply([self._tensors(vector)])
                advance()
                return image

            runs = [lanczos(product, generator.standard_normal(n).astype(dtype), steps) for _ in range(probes)]
        return Spectrum(runs, n)

    def linear_operator(self) -> "scipy.sparse.linalg.LinearOperator":
        """Return a view for SciPy: of the same shape, symmetric, of the NumPy dtype of the variables.

        Vectors of another dtype are cast to it, as SciPy's solvers expect.
        """
        from scipy.sparse.linalg import LinearOperator

        def matmat(matrix: np.ndarray) -> np.ndarray:
            return (self @ tf.cast(matrix, self.dtype)).numpy()

        def matvec(vector: np.ndarray) -> np.ndarray:
            return matmat(np.reshape(vector, -1))

        dtype = self.dtype.as_numpy_dtype
        return LinearOperator(self.shape, matvec, rmatvec=matvec, matmat=matmat, rmatmat=matmat, dtype=dtype)

    def _through(self, vectors: Iterable, count: int, doing: str) -> Iterator[tuple]:
        """Yield each vector with its product, an array of shape (n,) in float64; some at once."""
        vectors = iter(vectors)
        with progress_bar(count, doing) as advance:
            while group := list(itertools.islice(vectors, costs.VECTORS)):
                for vector, image in zip(group, self._apply([*map(self._tensors, group)]), strict=True):
                    advance()
                    yield vector, image

    def _tensors(self, vector: np.ndarray | tf.Tensor) -> list[tf.Tensor]:
        return split(tf.cast(vector, self.dtype), self._shapes)

    def _apply(self, columns: list[list[tf.Tensor]]) -> np.ndarray:
        """Return the products with some vectors, each given as a list of tensors; shape (vectors, n), in float64."""
        if not tf.executing_eagerly():
            raise RuntimeError(f"{self!r} goes through its data in Python: use it outside tf.function")
        columns = [unflatten(self._description, iter(column)) for column in columns]
        total, examples = np.zeros((len(columns), self.shape[0])), 0
        for size, args in self._batches:
            examples += size
            args = args[:1] if self.kind == "fisher" else args
            for row, column in zip(total, columns, strict=True):
                parts: list[Any] = []
                flatten(self._product(*args, vector=column), parts)
                row += (size if self._mean else 1) * np.concatenate([np.ravel(part) for part in parts])
        return total / examples if self._mean else total


def _product_of(kind: str, model: Callable[..., Any], loss: Any, wrt: Any, reduction: str, compile: str) -> Transform:
    if kind == "fisher":
        return fvp(model, loss, wrt=wrt, reduction=reduction, compile=compile)
    for what, value in (("model", model), ("loss", loss)):
        if not callable(value):
            raise TypeError(f"the {what} of the kind {kind!r} is {value!r}; expected a function")
    if kind == "ggn":
        return ggnvp(model, loss, wrt=wrt, compile=compile)
    if kind == "hessian":
        return hvp(lambda x, *targets: loss(*targets, model(x)), wrt=wrt, compile=compile)
    raise ValueError(f'kind is {kind!r}; expected "hessian", "ggn" or "fisher"')
