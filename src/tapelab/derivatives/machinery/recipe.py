"""How to compute one kind of derivative: what `tapelab.derivatives.machinery.transform` needs to know of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tapelab.derivatives import costs
from tapelab.derivatives.machinery.arguments.structures import Description
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem, evaluations
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf

import numpy as np

_LINEAR = 0.02  # what is off by no more, in proportion, is linear but for the rounding of half precision


class Way(NamedTuple):
    """One way to compute a derivative.

    Attributes:
        label: for messages.
        compute: takes the flat list of tensors, returns a flat list of tensors.
        eager: whether it runs outside any graph, and so handles every operation.
        shortcut: whether it is tried under XLA before the others, and given up without a warning.
        chunk: how many passes it makes at once.
        passes: how many it makes, if not as many as the `Plan` says.
    """

    label: str
    compute: Callable
    eager: bool = False
    shortcut: bool = False
    chunk: int = 1
    passes: int | None = None


class Recipe:
    """How to compute one kind of derivative. Subclasses hold the options that are theirs.

    Attributes:
        name: for messages.
        vector: the keyword of the vector that a call takes beside the arguments ("tangents", "cotangents", "vector"),
            if there is one.
        outside: a tuple of what is built into the trace beside the function, looked at before each call as it is.
    """

    name: str
    vector: str | None = None
    outside: tuple[Any, ...] = ()

    def plan(self, problem: Problem) -> Plan:
        """Check what the probe found, and return a `Plan` without its way. Raises what cannot be done."""
        raise NotImplementedError

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        """Whether XLA is tried before a plain graph, for the first way that is no shortcut."""
        return False

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        """Return the list of each `Way`, the fastest first and one that is eager last."""
        raise NotImplementedError

    def verify(self, problem: Problem, tensors: Tensors, outputs: Tensors) -> None:
        """Raise if what was computed the first time is wrong, whichever way it was computed."""
        if problem.transposed and problem.custom_gradients and problem.repeatable:
            _require_linear(problem, tensors)

    def may_refuse(self, problem: Problem) -> bool:
        """Whether `result` may raise for the values that a call has computed."""
        return False

    def numbers(self, result: Any) -> Any:
        """Return the nested tensors of a result that ``check_finite`` looks at."""
        return result

    def vector_like(self, problem: Problem) -> tuple[Description, list[tuple[int, ...]], list[tf.DType], str]:
        """Return what the vector has to match: a description, shapes, dtypes, and what they belong to."""
        if self.vector == "cotangents":
            return problem.output_description, problem.returned.shapes, problem.returned.dtypes, "function's results"
        return problem.source_description, problem.source_shapes, problem.source_dtypes, "sources"

    def value(self, problem: Problem, outputs: Tensors) -> Any:
        """Return what the caller gets as the function's value, from the flat list of what it returned."""
        return problem.structured_outputs(outputs)

    def result(self, problem: Problem, outputs: Tensors) -> Any:
        """Return what the caller gets, from the flat list that was computed."""
        raise NotImplementedError


class OnePass(Recipe):
    """A recipe that computes its derivative at once, without mapping rows. Subclasses have `compute`.

    Attributes:
        label: for messages.
        mode: for the `Plan`.
    """

    label = "one backward pass"
    mode = "reverse"

    def check(self, problem: Problem) -> None:
        """Raise if the derivative cannot be computed."""

    def plan(self, problem: Problem) -> Plan:
        self.check(problem)
        return Plan(self.mode)

    def gains_from_xla(self, problem: Problem) -> bool:
        """Whether XLA is tried first."""
        return problem.facts.largest <= costs.XLA_ONE_PASS

    def compute(self, problem: Problem, tensors: Tensors) -> list[tf.Tensor]:
        """Return the derivative, a flat list of tensors."""
        raise NotImplementedError

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        compute = partial(self.compute, problem)
        ways = [Way(self.label, compute), Way(self.label, compute, eager=True)]
        if problem.facts.compiled_loops or (self.gains_from_xla(problem) and not problem.facts.operations & LOOPS):
            ways.insert(0, Way(self.label, compute, shortcut=True))
        return ways


def with_value(problem: Problem, compute: Callable, tensors: Tensors) -> list[tf.Tensor]:
    """Compute a derivative, and behind it the function's value.

    The value comes from the evaluation that the derivative makes anyway, where it makes one.
    """
    with evaluations() as seen:
        outputs = compute(tensors)
    value = next((found for given, found in seen if _same(given, tensors) and _is_here(found)), None)
    if value is None:
        if not problem.repeatable:
            raise ValueError(
                f"{problem.name}: the function draws random numbers, changes variables or calls Python, and its value "
                "would be of another evaluation than the derivative. Leave out return_value=True"
            )
        value = problem.evaluate(tensors)
    return [*outputs, *value]


def apart(problem: Problem, outputs: Tensors) -> tuple[Tensors, Tensors]:
    """Undo `with_value`: return the value, and the derivative."""
    count = len(outputs) - len(problem.returned.names)
    return outputs[count:], outputs[:count]


def _same(some: Tensors, others: Tensors) -> bool:
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _is_here(tensors: Tensors) -> bool:
    """Whether tensors belong to the graph that is being built, and not to one within, such as a loop's body."""
    return tf.executing_eagerly() or all(tensor.graph is tf.compat.v1.get_default_graph() for tensor in tensors)


def _require_linear(problem: Problem, tensors: Tensors) -> None:
    """Raise ValueError if a custom gradient is not linear in its cotangents: no product with tangents is right then."""
    with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
        tape.watch(sources := problem.sources(tensors))
        outputs = [output for output in problem.evaluate(tensors) if output.dtype.is_floating]

    def products(factor: float) -> list[np.ndarray]:
        cotangents = [tf.fill(tf.shape(output), tf.cast(factor, output.dtype)) for output in outputs]
        found = tape.gradient(outputs, sources, cotangents, unconnected_gradients="zero")
        return [np.asarray(tf.convert_to_tensor(product)) for product in found]

    for once, other in zip(products(1.0), products(-2.0), strict=True):
        known = np.isfinite(once) & np.isfinite(other)
        if np.any(np.abs(other + 2 * once)[known] > _LINEAR * np.max(np.abs(once[known]), initial=0)):
            raise ValueError(
                f"{problem.name}: products with tangents are not known, since a custom gradient is not linear in its "
                f"cotangents, as one that clips them is: {', '.join(problem.facts.custom_places)}. Take products with "
                "cotangents instead (vjp, or a Jacobian in reverse mode), or leave the custom gradient out"
            )
