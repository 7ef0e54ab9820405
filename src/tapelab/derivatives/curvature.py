"""The curvature of a loss: products with Gauss-Newton and Fisher matrices, and operators over a data set.

A loss over a model's outputs z has the Hessian JᵀHJ + Σ_k (∂loss/∂z_k) ∇²z_k, J the Jacobian of the outputs by the
sources and H the Hessian of the loss by the outputs. The first term is the generalised Gauss-Newton matrix (GGN):
positive semidefinite wherever the loss is convex in the outputs, and free of the model's own second derivatives
(Schraudolph, "Fast curvature matrix-vector products for second-order gradient descent", 2002; Martens, "New insights
and perspectives on the natural gradient method", 2020).

The Fisher information of a model that predicts a distribution p(y | z) is E[∇log p ∇log pᵀ], the expectation over
labels drawn from that distribution; the labels of the data do not enter. Where z are the natural parameters of an
exponential family it is JᵀHJ, with H the Hessian of the log-partition function A(z). It is not the "empirical Fisher",
the sum of the outer products of the gradients at the data's labels, which differs from it everywhere but in the limit
of a model that fits (Kunstner et al., "Limitations of the empirical Fisher approximation", 2019).
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

from tapelab.derivatives import costs
from tapelab.derivatives.arguments import (
    LEAF,
    Options,
    Sources,
    ValueOptions,
    Wanted,
    dense_tensor,
    flatten,
    names,
    options_by_keyword,
    require_alike,
    require_one_dtype,
    require_positive,
    split,
    unflatten,
)
from tapelab.derivatives.costs import rows_at_once
from tapelab.derivatives.errors import UnconnectedSourceError
from tapelab.derivatives.first_order import linearized
from tapelab.derivatives.hessian import SecondOrderProduct, hvp
from tapelab.derivatives.traced import Call, dense
from tapelab.derivatives.transform import Transform, transform
from tapelab.graphs.operations import with_fact
from tapelab.graphs.program import inside
from tapelab.process.session.bar import progress_bar
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

if TYPE_CHECKING:
    import scipy.sparse.linalg

_FLAT = with_fact("flat")
# What a recipe does with the outputs on their way from the model to the loss.
_between: ContextVar[Callable[[list[tf.Tensor]], None] | None] = ContextVar("between", default=None)


@options_by_keyword
def ggnvp(
    model: Callable,
    loss: Callable,
    *,
    wrt: Any,
    packed: bool = False,
    **options: Unpack[ValueOptions],
) -> Transform:
    """Return a function that computes a product with the generalised Gauss-Newton matrix of a loss of a model.

    It is :math:`JᵀHJ`: J the Jacobian of the model's outputs with respect to the variables, H the Hessian of the loss
    with respect to the outputs. The loss is
    taken as it is: of a mean over examples, or over examples and positions, this is the mean's matrix, of a sum the
    sum's. It takes a forward pass with tangents and a backward pass: about one and a half gradients.

    Args:
        model: takes x, tensors nested if need be; reads the variables; returns tensors, nested if need be.
        loss: called as Keras calls its losses, ``loss(y, outputs)``; returns one scalar. It may not read the variables
            itself: add the product with a penalty's own Hessian (`hvp`) to the result.
        wrt: variables, nested. There is no ``argnums``: the sources are what the model reads.
        packed: whether the vector and the product are one vector of shape (n,), in the order of `pack`.
        return_value, compile, unconnected, check_finite: see `tapelab.derivatives`; the value is the loss.

    Returns:
        A function of x, of what else the loss takes before the outputs, and of the keyword ``vector``, of the
        structure, shapes and dtypes of the variables: ``product(x, y, vector=v)``, or ``product(x, vector=v)`` for
        ``loss(outputs)``. It returns the matrix times the vector, in the variables' structure.

    Raises:
        UnconnectedSourceError: when called, if the loss does not depend on the outputs.
        ValueError, TypeError: when called, as `hvp`; also for a loss that reads the variables itself.
    """
    return _transform(_GaussNewton("ggnvp", packed), model, loss, wrt, **options)


@options_by_keyword
def fvp(
    model: Callable,
    distribution: str,
    *,
    wrt: Any,
    reduction: str = "mean",
    packed: bool = False,
    **options: Unpack[Options],
) -> Transform:
    """Return a function that computes a product with the Fisher information of a model's predictions.

    The expectation over labels is exact, not sampled, and no labels are needed. What belongs to one example, along the
    first axis of the outputs, is summed over: all pixels, all positions of a sequence.

    ================  =====================  ==========================  ==================
    distribution      an output z is         -log p(y | z)               its Fisher
    ================  =====================  ==========================  ==================
    ``categorical``   logits, last axis      -log softmax(z)_y           diag(p) - ppᵀ
    ``bernoulli``     a logit                softplus(z) - y z           p (1 - p)
    ``gaussian``      a mean, variance 1     (y - z)² / 2                1
    ``poisson``       a logarithm of a rate  exp(z) - y z                exp(z)
    ================  =====================  ==========================  ==================

    For these, it is the generalised Gauss-Newton matrix of -log p. Keras's losses differ by factors: a mean squared
    error is the mean of :math:`(y - z)²` over an example's outputs, so its matrix is 2 / (their number) times this one,
    and a binary cross-entropy is divided by their number too.

    Args:
        model: takes x, tensors nested if need be, whose first axis is the examples'; returns one floating-point tensor
            z with that axis first.
        distribution: one of the names above.
        wrt: as for `ggnvp`.
        reduction: "mean" or "sum" over the examples.
        packed: whether the vector and the product are one vector of shape (n,), in the order of `pack`.
        compile, unconnected, check_finite: see `tapelab.derivatives`. There is no loss, and so no ``return_value``.

    Returns:
        A function of x and the keyword ``vector``, of the structure, shapes and dtypes of the variables. It returns the
        matrix times the vector, in the variables' structure.

    Raises:
        ValueError, TypeError: at once for an unknown distribution or reduction; when called, as `hvp`.
    """
    loss = log_partition(distribution, reduction)
    return _transform(_GaussNewton("fvp", packed), model, loss, wrt, **options)


def log_partition(distribution: str, reduction: str) -> Callable[[tf.Tensor], tf.Tensor]:
    """Return the function of the outputs whose Hessian is a distribution's Fisher information.

    Raises:
        ValueError: for an unknown distribution or reduction.
    """
    if not isinstance(distribution, str) or distribution not in _LOG_PARTITIONS:
        raise ValueError(
            f"the distribution is {distribution!r}; expected one of {', '.join(map(repr, _LOG_PARTITIONS))}, the "
            "name of what the model predicts. For any other loss use ggnvp, or the kind 'ggn'"
        )
    check_reduction(reduction)
    each = _LOG_PARTITIONS[distribution]

    def loss(outputs: Any) -> tf.Tensor:
        if not isinstance(outputs, (tf.Tensor, tf.Variable)) or not outputs.shape.rank:
            raise ValueError(
                f"a Fisher information is of one tensor of outputs with the examples as its first axis; the model "
                f"returned {type(outputs).__name__ if not tf.is_tensor(outputs) else f'shape {outputs.shape}'}"
            )
        if distribution == "categorical" and outputs.shape.rank < 2:
            raise ValueError(f"the model returned shape {outputs.shape}; expected (examples, …, classes), logits")
        total = tf.reduce_sum(each(outputs))
        return total / tf.cast(outputs.shape[0], total.dtype) if reduction == "mean" else total

    return loss


def check_reduction(reduction: str) -> None:
    """Raise ValueError unless it is a known one."""
    if reduction not in ("mean", "sum"):
        raise ValueError(f'reduction is {reduction!r}; expected "mean" or "sum", over the examples')


_LOG_PARTITIONS = {
    "categorical": lambda z: tf.reduce_logsumexp(z, axis=-1),
    "bernoulli": tf.math.softplus,
    "gaussian": lambda z: tf.square(z) / 2,
    "poisson": tf.exp,
}


# Products ----------------------------------------------------------------------------------------------------------


def _transform(
    recipe: "_GaussNewton", model: Callable[..., Any], loss: Callable[..., Any], wrt: Any, **options: Any
) -> Transform:
    for what, value in (("model", model), ("loss", loss)):
        if not callable(value):
            raise TypeError(
                f"{recipe.name}: the {what} is a {type(value).__name__}; pass a function, not what it returns"
            )
    if wrt is None:
        raise ValueError(f"{recipe.name}: wrt is None; expected variables, nested, that the model reads")

    def through_outputs(x: Any, *targets: Any) -> tuple[list[tf.Tensor], Any]:
        leaves: list[Any] = []
        description = flatten(model(x), leaves, numbers=True)
        # An output may be a function of another one: the loss's derivatives are by each of them alone.
        outputs = [tf.identity(tf.convert_to_tensor(leaf)) for leaf in leaves]
        if (act := _between.get()) is not None:
            act(outputs)
        return outputs, loss(*targets, unflatten(description, iter(outputs)))

    name: Any = getattr(model, "__name__", None) or getattr(model, "name", type(model).__name__)
    through_outputs.__name__ = name
    recipe.functions = (model, loss)
    return transform(through_outputs, recipe, wrt=wrt, **options)


class _GaussNewton(SecondOrderProduct):
    mode = "forward and reverse"
    value_structure = LEAF  # the loss

    def __init__(self, name: str, packed: bool):
        super().__init__(packed)
        self.name = name

    def product(self, call: Call, vector: Tensors) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        # Only what comes after the outputs is recorded twice.
        with tf.GradientTape(watch_accessed_variables=False) as curved:
            with _between_model_and_loss(curved.watch):
                (tape, sources, (*outputs, loss)), push = linearized(call, end=-1)
            call.require_second_order()
            if call.traced.names[-1] != "the function's result[1]" or loss.shape.rank != 0:
                raise ValueError(
                    f"{call.name} needs a loss that returns one scalar, and this one returned shape {loss.shape}. "
                    'Reduce it, for example with tf.reduce_mean; with Keras, not by reduction="none"'
                )
            slopes = [None if slope is None else tf.convert_to_tensor(slope) for slope in tape.gradient(loss, outputs)]
        self._require_seam(call, outputs, loss, slopes)
        pushed = dense(push(vector), outputs)
        pairs = [(slope, v) for slope, v in zip(slopes, pushed, strict=True) if slope is not None]
        found = curved.gradient([s for s, _ in pairs], outputs, output_gradients=[v for _, v in pairs])
        curvature = dense(found, outputs)
        return dense(tape.gradient(outputs, sources, output_gradients=curvature), sources), [loss]

    def _require_seam(self, call: Call, outputs: Tensors, loss: tf.Tensor, slopes: Sequence[Any]) -> None:
        """Raise unless the loss depends on the outputs, and on the variables through them alone."""
        if all(slope is None for slope in slopes):
            raise UnconnectedSourceError(
                f"{call.name}: the loss does not depend on the model's outputs, as far as a tape can see. It is called "
                "as loss(y, outputs): are they in this order, and does it stay in TensorFlow?"
            )
        if tf.executing_eagerly():
            return
        seen, left = {output.ref() for output in outputs}, [loss]
        while left:
            tensor = left.pop()
            if tensor.ref() not in seen:
                seen.add(tensor.ref())
                left += [] if tensor.op.type in _FLAT else tensor.op.inputs
        pairs = zip(call.signature.source_names, call.sources, strict=True)
        own = [name for name, source in pairs if any(t.ref() in seen for t in inside(loss.graph, [source]))]
        if own:
            raise ValueError(
                f"{call.name}: the loss reads {', '.join(own)} itself, not only through the model's outputs; that part "
                "would be left out. Take it out of the loss, and add its own product, by hvp"
            )


@contextlib.contextmanager
def _between_model_and_loss(act: Callable) -> Iterator[None]:
    token = _between.set(act)
    try:
        yield
    finally:
        _between.reset(token)


# Spectra, traces and diagonals from products -------------------------------------------------------------------------
#
# The spectrum is found by Lanczos's method with full reorthogonalisation.
#
# From a random start q, k products give an orthonormal basis in which the matrix is tridiagonal. That small matrix's
# eigenvalues, the Ritz values, meet the largest and smallest eigenvalues first. With the squared first components
# of its
# eigenvectors as weights they are the nodes of a Gauss quadrature for qᵀ f(A) q, exact for polynomials f up to degree
# 2k - 1. Its mean over starts estimates trace f(A) / n, and so the density of eigenvalues (Golub and Welsch,
# "Calculation
# of Gauss quadrature rules", 1969; Lin, Saad and Yang, "Approximating spectral densities of large matrices", 2016;
# Ghorbani, Krishnan and Xiao, "An investigation into neural net optimization via Hessian eigenvalue density", 2019).
#
# Rounding makes plain Lanczos lose orthogonality once a Ritz value has converged, and find that eigenvalue again and
# again. Here every new vector is made orthogonal to all before, twice: the basis is kept, n times k numbers.


class Eigenvalues(NamedTuple):
    """Some eigenvalues from Lanczos's method.

    Attributes:
        values: array of shape (k,).
        errors: array of shape (k,): within this distance of each value there is an eigenvalue, apart from rounding.
    """

    values: np.ndarray
    errors: np.ndarray


class Run(NamedTuple):
    """What one start vector gave.

    Attributes:
        values: the Ritz values, rising, shape (steps,).
        weights: those of the quadrature, shape (steps,), which sum to 1.
        errors: bounds of the residuals, shape (steps,).
    """

    values: np.ndarray
    weights: np.ndarray
    errors: np.ndarray


@dataclass(frozen=True)
class Spectrum:
    """An estimate of all eigenvalues of a symmetric matrix, and sharp values of the outermost ones.

    Attributes:
        runs: a list of each `Run`, one for each start vector.
        size: the number of the matrix's rows.
    """

    runs: list[Run]
    size: int

    @property
    def values(self) -> np.ndarray:
        """The nodes of the quadrature, the Ritz values of all runs."""
        return np.concatenate([run.values for run in self.runs])

    @property
    def weights(self) -> np.ndarray:
        """Which part of the eigenvalues each node stands for: not negative, of sum 1."""
        return np.concatenate([run.weights for run in self.runs]) / len(self.runs)

    def density(self, grid: Any, width: float) -> np.ndarray:
        """Return the density of eigenvalues, smoothed: its integral over all numbers is 1.

        With 40 steps and 10 starts, for a network of 2000 parameters and a width of 1 % of the spectrum's, this differs
        from the exact eigenvalues' density, smoothed alike, by 0.01 to 0.03 in the L₁ norm ∫|difference|. More starts
        lower that, more steps do not, once the steps resolve the width.

        Args:
            grid: where to evaluate it, numbers of any shape.
            width: the standard deviation of the Gauss curve that each eigenvalue becomes, positive.

        Returns:
            An array of the grid's shape.

        Raises:
            ValueError: if the width is not positive.
        """
        if not width > 0:
            raise ValueError(f"width is {width!r}; expected a positive number, such as 1 % of the spectrum's width")
        distance = (np.asarray(grid, float)[..., np.newaxis] - self.values) / width
        return np.exp(-(distance**2) / 2) @ self.weights / (width * np.sqrt(2 * np.pi))

    def top(self, k: int) -> Eigenvalues:
        """Return the k largest eigenvalues, falling, from the run that knows them best.

        One run finds each eigenvalue once, however often it occurs.

        Raises:
            ValueError: if no run has k Ritz values; take more steps.
        """
        return self._outermost(k, lambda run: slice(None, -k - 1, -1))

    def bottom(self, k: int) -> Eigenvalues:
        """Return the k smallest eigenvalues, rising; otherwise as `top`.

        Raises:
            ValueError: as `top`.
        """
        return self._outermost(k, lambda run: slice(k))

    def _outermost(self, k: int, part: Callable[[Run], slice]) -> Eigenvalues:
        long = [run for run in self.runs if len(run.values) >= k]
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 1 or not long:
            most = max(len(run.values) for run in self.runs)
            raise ValueError(f"k is {k!r}; expected 1 to {most}, the Ritz values that there are: take more steps")
        best = min(long, key=lambda run: run.errors[part(run)].sum())
        return Eigenvalues(best.values[part(best)], best.errors[part(best)])


def lanczos(product: Callable[[np.ndarray], np.ndarray], start: np.ndarray, steps: int) -> Run:
    """Run Lanczos's method from one start vector.

    Args:
        product: takes a vector of shape (n,), returns the matrix times it. The matrix is symmetric.
        start: shape (n,), float32 or float64, not zero: the dtype that the basis is kept in.
        steps: how many products at most. It stops earlier where the basis spans a space that the matrix maps to itself:
            then the eigenvalues are exact.

    Returns:
        The `Run`.

    Raises:
        ValueError: if a product is NaN or infinite.
    """
    from scipy.linalg import eigh_tridiagonal

    steps = min(steps, start.size)
    basis = np.empty((steps, start.size), start.dtype)
    basis[0] = start / np.linalg.norm(start)
    diagonal, beside = [], []
    for done in range(1, steps + 1):
        image = np.array(product(basis[done - 1]), start.dtype)
        if not np.isfinite(image).all():
            raise ValueError(f"product {done} with the matrix is NaN or infinite; look at the loss and its derivatives")
        diagonal.append(float(image @ basis[done - 1]))
        for _ in range(2):
            image -= (basis[:done] @ image) @ basis[:done]
        beside.append(float(np.linalg.norm(image)))
        scale = max(map(abs, [*diagonal, *beside[:-1]]))
        # What rounding leaves of a vector inside the space is no direction.
        if done == steps or beside[-1] <= 10 * np.finfo(start.dtype).eps * start.size**0.5 * scale:
            break
        basis[done] = image / beside[-1]
    values, vectors = eigh_tridiagonal(np.array(diagonal), np.array(beside[:-1]))
    return Run(values, vectors[0] ** 2, beside[-1] * np.abs(vectors[-1]))


# Trace and diagonal, from random vectors of signs ------------------------------------------------------------------

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


def estimated_trace(products: Products, n: int, samples: int, method: str, seed: int | None) -> Estimate:
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


def estimated_diagonal(products: Products, n: int, samples: int, seed: int | None) -> Estimate:
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


# Over a data set ---------------------------------------------------------------------------------------------------


class CurvatureOperator:
    """A curvature matrix of a model's loss over a data set, of shape (n, n), as products with vectors.

    Each product goes through the data set once; of products with several vectors, eight at a time do. The model's
    variables are read at every product: the matrix is that at their present values. Its rows and columns are in the
    order of `pack`.

    ``operator @ v`` takes a vector of shape (n,), a matrix of shape (n, k), or a vector of the variables' structure and
    shapes, all of the variables' dtype, and returns the like.

    The matrix is defined by the batches: the mean of their losses' matrices, weighted by their numbers of examples, or
    with ``reduction="sum"`` the sum. Where a batch's loss is the mean, or the sum, of its examples' losses, and those
    do not depend on each other, that is the matrix of the whole data set's loss, however the batches are cut.
    Otherwise, as after batch normalisation in training, it depends on them. The data set has to give the same examples
    each time, in any order: random augmentation would make every product one of another matrix.

    In memory are vectors of n numbers, three for each of up to eight at a time, and what one batch takes; for
    `spectrum` also n times its steps, and for `trace` by Hutch++ n times its samples.

    Args:
        model: takes x, nested if need be; returns outputs, nested if need be, with the examples first.
        loss: called as ``loss(y, outputs)``, or ``loss(outputs)`` for data without y; returns one scalar, the mean or
            sum over the examples of a batch. For the kind "fisher" the name of the distribution that the model
            predicts, as for `fvp`; y is not used then.
        wrt: variables, nested, of one dtype. There is no ``argnums``: the arguments are the data.
        data: a `tf.data.Dataset` of batches, each (x, y) or x; or a pair of arrays (x, y).
        kind: "hessian"; "ggn", the generalised Gauss-Newton matrix; or "fisher".
        reduction: "mean" or "sum", what the loss is over the examples of a batch, and so how batches are put together.
        batch_size: into how many examples to cut arrays; None for all at once.
        compile: see `tapelab.derivatives`.

    Keep the operator to keep what it compiled, one program for each shape of batches.

    Attributes:
        shape: (n, n).
        dtype: the variables', a `tf.DType`.
        kind: as given.

    Raises:
        ValueError, TypeError: for arguments that do not fit; in products, as `hvp` and `ggnvp`.
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
        wanted = Wanted(self._description, [tf.TensorShape(shape) for shape in self._shapes], dtypes, "variables")
        require_alike(repr(self), "vector", description, tensors, wanted)
        (image,) = self._apply([tensors])
        parts = split(tf.cast(image, self.dtype), self._shapes)
        return unflatten(self._description, iter(parts))

    def trace(
        self, samples: int = 100, *, exact: bool = False, method: str = "hutchinson", seed: int | None = None
    ) -> Estimate:
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
            return Estimate(float(np.sum(self.diagonal(exact=True).value)), 0.0)
        return estimated_trace(self._through, self.shape[0], samples, method, seed)

    def diagonal(self, samples: int = 100, *, exact: bool = False, seed: int | None = None) -> Estimate:
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
            return exact_diagonal(self._through, self.shape[0])
        return estimated_diagonal(self._through, self.shape[0], samples, seed)

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


class Batch(NamedTuple):
    """One batch.

    Attributes:
        size: how many examples it has.
        args: (x, y), or (x,).
    """

    size: int
    args: tuple


class Batches:
    """A data set that can be gone through again and again.

    Args:
        data: a `tf.data.Dataset` of batches, each a pair (x, y) or x alone; or a pair (x, y) of arrays. Either may be
            nested; the first axis of every tensor is the examples'.
        batch_size: into how many examples to cut arrays; None for all at once.

    Raises:
        TypeError: for anything else.
        ValueError: for a data set without end, a batch_size with a Dataset, or arrays without examples.
    """

    def __init__(self, data: Any, batch_size: int | None):
        require_positive(batch_size=1 if batch_size is None else batch_size)
        if isinstance(data, tf.data.Dataset):
            if batch_size is not None:
                raise ValueError("batch_size is for arrays; a Dataset has its own batches: use data.batch(batch_size)")
            if data.cardinality() == tf.data.INFINITE_CARDINALITY:
                raise ValueError("the Dataset has no end; use data.take(number of batches), before .repeat()")
            self._batches = data
        elif isinstance(data, tuple) and len(data) == 2:
            self._batches = list(_cut(data, batch_size))
        else:
            raise TypeError(
                f"data is a {type(data).__name__}; expected a tf.data.Dataset of batches, or a pair of arrays (x, y)"
            )

    def __iter__(self) -> Iterator[Batch]:
        found = False
        for args in self._batches:
            if not isinstance(args, tuple):
                args = (args,)
            if len(args) > 2:
                raise ValueError(
                    f"a batch has {len(args)} parts; expected (x, y). Sample weights and the like belong into y, for "
                    "the loss to take apart"
                )
            size = _size(args)
            if size:
                found = True
                yield Batch(size, args)
        if not found:
            raise ValueError("the data set has no example")


def _cut(data: Sequence[Any], batch_size: int | None) -> Iterator[tuple[Any, ...]]:
    size = _size(data)
    if not size:
        raise ValueError("the arrays hold no example")
    for start in range(0, size, batch_size or size):
        yield tuple(_rows(part, slice(start, start + (batch_size or size))) for part in data)


def _size(args: Any) -> int:
    """The number of examples in (x, y)."""
    leaves: list[Any] = []
    labels = names(flatten(args, leaves, numbers=True), "the batch")
    shapes = [tuple(np.shape(leaf)) for leaf in leaves]
    sizes: set[Any] = {shape[0] if shape else None for shape in shapes}
    if len(sizes) != 1 or None in sizes:
        found = ", ".join(f"{label} {shape}" for label, shape in zip(labels, shapes, strict=True)) or "none"
        raise ValueError(
            f"the tensors of a batch need one first axis, the examples', and have shapes {found}. A Dataset of single "
            "examples becomes one of batches by .batch(size)"
        )
    return sizes.pop()


def _rows(value: Any, part: slice | list[int]) -> Any:
    """Some of the examples of nested tensors: a slice, or a list of their numbers."""
    leaves: list[Any] = []
    description = flatten(value, leaves, numbers=True)
    tensors = map(tf.convert_to_tensor, leaves)
    taken = [tensor[part] if isinstance(part, slice) else tf.gather(tensor, part) for tensor in tensors]
    return unflatten(description, iter(taken))
