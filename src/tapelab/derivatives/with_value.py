"""``return_value=True``: the function's value beside its derivative, from the evaluation that the derivative makes."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from tapelab.derivatives.plan import Plan
from tapelab.derivatives.problem import Problem, evaluations
from tapelab.derivatives.recipe import Recipe, Way
from tapelab.derivatives.structures import Description
from tapelab.runtime import tf


def with_value(recipe: Recipe, return_value: bool) -> Recipe:
    """Return the recipe, or if asked for one whose result is a pair: the function's value, and the recipe's result."""
    return _WithValue(recipe) if return_value else recipe


class _WithValue(Recipe):
    def __init__(self, recipe):
        self._recipe = recipe
        self.name = recipe.name
        self.vector = recipe.vector
        self.outside = recipe.outside

    def plan(self, problem: Problem) -> Plan:
        return self._recipe.plan(problem)

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        return self._recipe.prefers_xla(problem, plan)

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        ways = self._recipe.ways(problem, plan)
        return [way._replace(compute=partial(_compute, problem, way.compute)) for way in ways]

    def accepts(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> bool:
        return self._recipe.accepts(problem, _apart(problem, outputs)[1])

    def verify(self, problem: Problem, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        self._recipe.verify(problem, tensors, _apart(problem, outputs)[1])

    def numbers(self, result: Any) -> Any:
        value, derivative = result
        return value, self._recipe.numbers(derivative)

    def vector_like(self, problem: Problem) -> tuple[Description, list[tuple[int, ...]], list[tf.DType], str]:
        return self._recipe.vector_like(problem)

    def result(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> Any:
        value, own = _apart(problem, outputs)
        return self._recipe.value(problem, value), self._recipe.result(problem, own)


def _apart(problem, outputs):
    """Return what belongs to the value, and the derivative's own outputs."""
    count = len(outputs) - len(problem.output_names)
    return outputs[count:], outputs[:count]


def _compute(problem, compute, tensors):
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


def _same(some, others):
    return len(some) == len(others) and all(a is b for a, b in zip(some, others, strict=True))


def _is_here(tensors):
    """Whether tensors belong to the graph that is being built, and not to one within, such as a loop's body."""
    return tf.executing_eagerly() or all(tensor.graph is tf.compat.v1.get_default_graph() for tensor in tensors)
