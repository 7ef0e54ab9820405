"""One gradient, one directional derivative, one weighted sum of rows: a few times the cost of the function."""

from functools import partial

from tapelab.derivatives.transform import Recipe, Way, require_scalar, transform
from tapelab.runtime import tf


def value_and_gradient(f, *, wrt=None, argnums=0, compile="auto", unconnected="error", check_finite=False):
    """Return a function that returns the value of f and its gradient.

    Args:
        f: returns one scalar.
        wrt: variables to differentiate with respect to, nested; Keras 3 variables included.
        argnums: without ``wrt``: the position of the argument to differentiate with respect to, or a tuple of them.
        compile: "auto", "xla", "graph" or "eager".
        unconnected: "error", or "zero" for the gradient of a source that f does not depend on.
        check_finite: whether NaN or infinity in the result raises `NotFiniteError`.

    Returns:
        A function of f's arguments that returns a pair: the value, and the gradient in the sources' structure.

    Raises:
        ValueError, TypeError: when called, for sources or a result that have no gradient; the message says what to do.
    """
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return transform(f, _ValueAndGradient(), argnums=argnums, wrt=wrt, **options)


def vjp(f, *, wrt=None, argnums=0, compile="auto", unconnected="error", check_finite=False):
    """Return a function that computes a vector-Jacobian product: one backward pass, whatever the size of the sources.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, compile, unconnected, check_finite: as for `value_and_gradient`.

    Returns:
        A function of the cotangents (of the structure, shapes and dtypes of f's result) followed by f's arguments. It
        returns a pair: f's result, and the cotangents times the Jacobian in the sources' structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for cotangents that do not match the result.
    """
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return transform(f, _VJP(), argnums=argnums, wrt=wrt, **options)


def jvp(f, *, wrt=None, argnums=0, compile="auto", unconnected="error", check_finite=False):
    """Return a function that computes a Jacobian-vector product: one forward pass, whatever the size of the result.

    Args:
        f: returns a tensor or nested tensors.
        wrt, argnums, compile, unconnected, check_finite: as for `value_and_gradient`.

    Returns:
        A function of the tangents (of the structure, shapes and dtypes of the sources) followed by f's arguments. It
        returns a pair: f's result, and the Jacobian times the tangents in the result's structure.

    Raises:
        ValueError, TypeError: when called, as `value_and_gradient`; also for tangents that do not match the sources.
    """
    options = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return transform(f, _JVP(), argnums=argnums, wrt=wrt, **options)


def recorded(problem, tensors, *, persistent=False):
    """Evaluate the function under a tape. Returns the tape, the sources and the flat list of outputs."""
    sources = problem.sources(tensors)
    with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as tape:
        tape.watch(sources)
        outputs = problem.evaluate(tensors)
    return tape, sources, outputs


def dense_gradient(tape, target, sources, cotangents=None):
    """Return the gradient of one tensor or of several, with zeros for None and a tensor for IndexedSlices."""
    gradients = tape.gradient(target, sources, output_gradients=cotangents, unconnected_gradients="zero")
    return [tf.convert_to_tensor(gradient) for gradient in gradients]


class _ValueAndGradient(Recipe):
    name = "value_and_gradient"

    def plan(self, problem):
        require_scalar(problem)

    def ways(self, problem, plan):
        compute = partial(self._compute, problem)
        return [Way("one backward pass", compute), Way("one backward pass", compute, eager=True)]

    def _compute(self, problem, tensors):
        tape, sources, outputs = recorded(problem, tensors)
        return [*outputs, *dense_gradient(tape, outputs[0], sources)]

    def result(self, problem, plan, outputs):
        return problem.structured_outputs(outputs[:1]), problem.structured(outputs[1:])


class _VJP(Recipe):
    name = "vjp"
    vector = "cotangents"

    def ways(self, problem, plan):
        compute = partial(self._compute, problem)
        return [Way("one backward pass", compute), Way("one backward pass", compute, eager=True)]

    def _compute(self, problem, tensors):
        tape, sources, outputs = recorded(problem, tensors)
        return [*outputs, *dense_gradient(tape, outputs, sources, problem.vector(tensors))]

    def result(self, problem, plan, outputs):
        count = len(problem.output_names)
        return problem.structured_outputs(outputs[:count]), problem.structured(outputs[count:])


class _JVP(Recipe):
    name = "jvp"
    vector = "tangents"

    def ways(self, problem, plan):
        twice = partial(self._reverse_twice, problem)
        return [
            Way("forward accumulator", partial(self._forward, problem)),
            Way("reverse mode twice", twice),
            Way("reverse mode twice", twice, eager=True),
        ]

    def _forward(self, problem, tensors):
        sources = problem.sources(tensors)
        with tf.autodiff.ForwardAccumulator(sources, problem.vector(tensors)) as accumulator:
            outputs = problem.evaluate(tensors)
        return [*outputs, *accumulator.jvp(outputs, unconnected_gradients="zero")]

    def _reverse_twice(self, problem, tensors):
        # u -> Jᵀu is linear, and its own transpose is v -> Jv; the value of u does not matter.
        with tf.GradientTape(watch_accessed_variables=False) as outer:
            tape, sources, outputs = recorded(problem, tensors)
            cotangents = [tf.zeros_like(output) for output in outputs]
            outer.watch(cotangents)
            products = tape.gradient(outputs, sources, output_gradients=cotangents)
            pairs = [(p, v) for p, v in zip(products, problem.vector(tensors), strict=True) if p is not None]
            products, vector = [tf.convert_to_tensor(p) for p, _ in pairs], [v for _, v in pairs]
        return [*outputs, *dense_gradient(outer, products, cotangents, vector)]

    def result(self, problem, plan, outputs):
        count = len(problem.output_names)
        return problem.structured_outputs(outputs[:count]), problem.structured_outputs(outputs[count:])
