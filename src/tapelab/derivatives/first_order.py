"""One gradient, one directional derivative, one weighted sum of rows: a few times the cost of the function."""

from collections.abc import Callable, Sequence
from typing import Any, Unpack

from tapelab.derivatives.machinery.arguments.calling import Argnums, Options, options_by_keyword
from tapelab.derivatives.machinery.arguments.checks import require_scalar
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import OnePass
from tapelab.derivatives.machinery.transform import Transform, transform
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.graphs.inlining import can_be_opened, issued
from tapelab.graphs.program import CALLS
from tapelab.process.tensorflow import Tensors, tf

# A tape, the sources that it watched and the outputs that it has recorded.
Recording = tuple[tf.GradientTape, list[tf.Tensor | tf.Variable], list[tf.Tensor]]


@options_by_keyword
def value_and_gradient(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, **options: Unpack[Options]) -> Transform:
    """Return a function that returns the value of f and its gradient.

    Args:
        f: returns one scalar.
        wrt, argnums, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments that returns a pair: the value, and the gradient in the sources' structure.

    Raises:
        ValueError, TypeError: when called, for sources or a result that have no gradient; the message says what to do.
    """
    return transform(f, _ValueAndGradient(), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def vjp(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, **options: Unpack[Options]) -> Transform:
    """Return a function that computes a vector-Jacobian product: one backward pass, whatever the size of the sources.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments and the keyword ``cotangents``, of the structure, shapes and dtypes of f's result.
        It returns a pair: f's result, and the cotangents times the Jacobian in the sources' structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for cotangents that do not match the result.
    """
    return transform(f, _VJP(), argnums=argnums, wrt=wrt, **options)


@options_by_keyword
def jvp(f: Callable, *, wrt: Any = None, argnums: Argnums = 0, **options: Unpack[Options]) -> Transform:
    """Return a function that computes a Jacobian-vector product: one forward pass, whatever the size of the result.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, compile, unconnected, check_finite: see `tapelab.derivatives`.

    Returns:
        A function of f's arguments and the keyword ``tangents``, of the structure, shapes and dtypes of the sources. It
        returns a pair: f's result, and the Jacobian times the tangents in the result's structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for tangents that do not match the sources.
    """
    return transform(f, _JVP(), argnums=argnums, wrt=wrt, **options)


def recorded(problem: Problem, tensors: Tensors, *, persistent: bool = False, opened: bool = False) -> Recording:
    """Evaluate the function under a tape. Returns the tape, the sources and the flat list of outputs.

    Args:
        opened: whether to open the functions of TensorFlow that it calls (`with_calls_opened`).
    """
    sources = problem.sources(tensors)
    with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = with_calls_opened(problem, tensors) if opened else problem.evaluate(tensors)
    return tape, sources, outputs


def with_calls_opened(problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
    """Evaluate the function, with its calls of a `tf.function` opened where they can be: uses in them are then seen."""
    if problem.facts.operations.isdisjoint(CALLS) or not problem.repeatable:
        return problem.evaluate(tensors)
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
    traced = tf.function(lambda *own: problem.evaluate(own), autograph=False).get_concrete_function(*specs)
    if not can_be_opened(traced.graph):
        return problem.evaluate(tensors)
    return issued(traced.graph, [*tensors, *traced.captured_inputs])


def dense_gradient(
    tape: tf.GradientTape,
    target: tf.Tensor | Tensors,
    sources: Sequence[tf.Tensor | tf.Variable],
    cotangents: tf.Tensor | Tensors | None = None,
) -> list[tf.Tensor]:
    """Return the gradient of one tensor or of several, with zeros for None and a tensor for IndexedSlices."""
    gradients = tape.gradient(target, sources, output_gradients=cotangents, unconnected_gradients="zero")
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


def linearized(
    problem: Problem,
    tensors: Tensors,
    *,
    persistent: bool = False,
    end: int | None = None,
) -> tuple[Recording, Callable[[Tensors], list[tf.Tensor]]]:
    """Evaluate the function, and return what `recorded` does and a function from tangents to products with them.

    u -> Jᵀu is linear in u, so its derivative is the same for every u, and transposed it is v -> Jv. (Where a custom
    gradient is not linear, `Recipe.verify` says so.) In a graph nothing remains of the products with u but that
    transpose: what runs is forward mode. `tf.autodiff.ForwardAccumulator` would do it directly, but it evaluates the
    function anew for every tangent, and after some dozens of traces in one session it forgets shapes, which
    `tf.vectorized_map` needs.

    Args:
        persistent: whether the tape and the function are used more than once.
        end: which outputs have products, ``outputs[:end]``; by default all.
    """
    problem.transposed = True
    with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as outer:
        tape, sources, outputs = recording = recorded(problem, tensors, persistent=persistent)
        # Any would do, since it is linear in them; with positive ones, a gradient that divides by them is right, too.
        cotangents = [positive(output) for output in outputs[:end]]
        outer.watch(cotangents)
        products = tape.gradient(outputs[:end], sources, output_gradients=cotangents)
        products = [None if product is None else tf.convert_to_tensor(product) for product in products]

    def push(tangents: Tensors) -> list[tf.Tensor]:
        pairs = [(product, v) for product, v in zip(products, tangents, strict=True) if product is not None]
        return dense_gradient(outer, [product for product, _ in pairs], cotangents, [v for _, v in pairs])

    return recording, push


def positive(output: tf.Tensor) -> tf.Tensor:
    """Positive numbers of the shape of an output, of no pattern."""
    numbers = 1 + tf.cos(tf.range(tf.size(output), dtype=tf.float32)) / 4
    return tf.reshape(tf.cast(numbers, output.dtype), tf.shape(output))


class _VJP(OnePass):
    name = "vjp"
    vector: str | None = "cotangents"

    def compute(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        tape, sources, outputs = recorded(problem, tensors)
        return [*outputs, *dense_gradient(tape, outputs, sources, problem.vector(tensors) or None)]

    def result(self, problem: Problem, outputs: Tensors) -> tuple[Any, Any]:
        count = len(problem.returned.names)
        return problem.structured_outputs(outputs[:count]), problem.structured(outputs[count:])


class _ValueAndGradient(_VJP):
    """The same with a cotangent of 1."""

    name = "value_and_gradient"
    vector = None

    def check(self, problem: Problem) -> None:
        require_scalar(problem)


class _JVP(OnePass):
    name = "jvp"
    label = "one forward pass"
    mode = "forward"
    vector = "tangents"

    def check(self, problem: Problem) -> None:
        problem.require_right(Needs.TANGENTS)

    def compute(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        (_, _, outputs), push = linearized(problem, tensors)
        return [*outputs, *push(problem.vector(tensors))]

    def result(self, problem: Problem, outputs: Tensors) -> tuple[Any, Any]:
        count = len(problem.returned.names)
        return problem.structured_outputs(outputs[:count]), problem.structured_outputs(outputs[count:])
