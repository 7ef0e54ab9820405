"""How to compute one kind of derivative: what `tapelab.derivatives.machinery.transform` needs to know of it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from tapelab.derivatives.machinery.arguments.structures import Description
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.graphs.program import LOOPS
from tapelab.runtime import tf


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
        vector: what the leading argument is, "tangents" or "cotangents", if there is one.
        outside: a tuple of what is built into the trace beside the function, looked at before each call as it is.
    """

    name = ""
    vector = None
    outside = ()

    def plan(self, problem: Problem) -> Plan:
        """Check what the probe found, and return a `Plan` without its way. Raises what cannot be done."""
        raise NotImplementedError

    def prefers_xla(self, problem: Problem, plan: Plan) -> bool:
        """Whether XLA is tried before a plain graph, for the first way that is no shortcut."""
        return False

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        """Return the list of each `Way`, the fastest first and one that is eager last."""
        raise NotImplementedError

    def accepts(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> bool:
        """Whether what a shortcut computed the first time is right."""
        return True

    def verify(self, problem: Problem, tensors: Sequence[tf.Tensor], outputs: Sequence[tf.Tensor]) -> None:
        """Raise if what was computed the first time is wrong, whichever way it was computed."""

    def numbers(self, result: Any) -> Any:
        """Return the nested tensors of a result that ``check_finite`` looks at."""
        return result

    def vector_like(self, problem: Problem) -> tuple[Description, list[tuple[int, ...]], list[tf.DType], str]:
        """Return what the leading argument has to match: a description, shapes, dtypes, and what they belong to."""
        if self.vector == "tangents":
            return problem.source_description, problem.source_shapes, problem.source_dtypes, "sources"
        return problem.output_description, problem.output_shapes, problem.output_dtypes, "function's results"

    def result(self, problem: Problem, outputs: Sequence[tf.Tensor]) -> Any:
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
        return problem.largest <= 2**14  # a call is mostly its own start, which is half as long under XLA

    def compute(self, problem: Problem, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the derivative, a flat list of tensors."""
        raise NotImplementedError

    def ways(self, problem: Problem, plan: Plan) -> list[Way]:
        compute = partial(self.compute, problem)
        ways = [Way(self.label, compute), Way(self.label, compute, eager=True)]
        if problem.compiled_loops or (self.gains_from_xla(problem) and not problem.operations & LOOPS):
            ways.insert(0, Way(self.label, compute, shortcut=True))
        return ways
