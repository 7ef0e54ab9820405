"""Products with the generalised Gauss-Newton matrix and with the Fisher information of a model's predictions.

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
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Unpack

from tapelab.derivatives.first_order import dense_gradient, linearized
from tapelab.derivatives.hessians.hessian import SecondOrderProduct
from tapelab.derivatives.machinery.arguments.calling import Options, ValueOptions, options_by_keyword
from tapelab.derivatives.machinery.arguments.structures import flatten, unflatten
from tapelab.derivatives.machinery.errors import UnconnectedSourceError
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.process.tensorflow import Tensors, tf

# What a recipe does with the outputs on their way from the model to the loss.
_between: ContextVar[Callable[[list[tf.Tensor]], list[tf.Tensor]] | None] = ContextVar("between", default=None)


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
        outputs = (_between.get() or list)(outputs)
        return outputs, loss(*targets, unflatten(description, iter(outputs)))

    name: Any = getattr(model, "__name__", None) or getattr(model, "name", type(model).__name__)
    through_outputs.__name__ = name
    return transform(through_outputs, recipe, wrt=wrt, **options)


@contextlib.contextmanager
def _between_model_and_loss(act: Callable) -> Iterator[None]:
    token = _between.set(act)
    try:
        yield
    finally:
        _between.reset(token)


class _GaussNewton(SecondOrderProduct):
    label = mode = "forward and reverse"

    def __init__(self, name: str, packed: bool):
        super().__init__(packed)
        self.name = name

    def check(self, problem: Problem) -> None:
        if problem.returned.names[-1] != "the function's result[1]" or problem.returned.shapes[-1] != ():
            raise ValueError(
                f"{problem.name} needs a loss that returns one scalar, and this one returned shape "
                f"{problem.returned.shapes[-1]}. Reduce it, for example with tf.reduce_mean; with Keras, not by "
                'reduction="none"'
            )
        super().check(problem)
        if problem.facts.traceable:
            problem.traced(lambda *tensors: _require_seam(problem, tensors))

    def product(self, problem: Problem, tensors: Tensors, vector: Tensors) -> list[tf.Tensor]:
        if not problem.facts.traceable:
            _require_seam(problem, tensors)
        # Only what comes after the outputs is recorded twice.
        with tf.GradientTape(watch_accessed_variables=False) as curved:

            def watched(outputs: list[tf.Tensor]) -> list[tf.Tensor]:
                curved.watch(outputs)
                return outputs

            with _between_model_and_loss(watched):
                (tape, sources, (*outputs, loss)), push = linearized(problem, tensors, persistent=True, end=-1)
            slopes = [None if slope is None else tf.convert_to_tensor(slope) for slope in tape.gradient(loss, outputs)]
        pairs = [(slope, v) for slope, v in zip(slopes, push(vector), strict=True) if slope is not None]
        curvature = dense_gradient(curved, [slope for slope, _ in pairs], outputs, [v for _, v in pairs])
        return dense_gradient(tape, outputs, sources, curvature)

    def value(self, problem: Problem, outputs: Tensors) -> Any:
        return outputs[-1]  # the loss


def _require_seam(problem: Problem, tensors: Tensors) -> None:
    """Raise unless the loss depends on the outputs, and on the variables through them alone."""
    sources = problem.sources(tensors)
    seen: list[tf.Tensor] = []
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(sources)

        def cut(outputs: list[tf.Tensor]) -> list[tf.Tensor]:
            seen.extend(map(tf.stop_gradient, outputs))
            tape.watch(seen)
            return seen

        with _between_model_and_loss(cut):
            loss = problem.evaluate(tensors)[-1]
    gradients = tape.gradient(loss, [*seen, *sources])
    if all(gradient is None for gradient in gradients[: len(seen)]):
        raise UnconnectedSourceError(
            f"{problem.name}: the loss does not depend on the model's outputs, as far as a tape can see. It is called "
            "as loss(y, outputs): are they in this order, and does it stay in TensorFlow?"
        )
    reads = zip(problem.source_names, gradients[len(seen) :], strict=True)
    own = [name for name, gradient in reads if gradient is not None]
    if own:
        raise ValueError(
            f"{problem.name}: the loss reads {', '.join(own)} itself, not only through the model's outputs; that part "
            "would be left out. Take it out of the loss, and add its own product, by hvp"
        )
