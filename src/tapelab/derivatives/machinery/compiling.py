"""Compile a derivative: try the ways to compute it, the fastest first, and keep the first that runs."""

import contextlib
import dataclasses
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from tapelab import process
from tapelab.derivatives import costs
from tapelab.derivatives.machinery.entries import Entry, graph_being_built
from tapelab.derivatives.machinery.errors import CoupledExamplesError, Warnings
from tapelab.derivatives.machinery.failures import lacks_a_gradient, told_line, vectorised_loop
from tapelab.derivatives.machinery.outside.observed import undone_if_it_fails
from tapelab.derivatives.machinery.plan import Plan, describe_way
from tapelab.derivatives.machinery.problem import ACCUMULATES, Problem
from tapelab.derivatives.machinery.recipe import Recipe, Way, apart, with_value
from tapelab.derivatives.private import derivatives_wanted, direct_call
from tapelab.derivatives.wrong.kernels import WrongKernelError, blind_to_faults, out_of_range, require_right
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import Tensors, tf

_UNTRACEABLE = "the function cannot be traced into a graph"


class _NotForATapeError(RuntimeError):
    """What a tape records cannot be computed this way. Another way can, and nobody has to change anything."""


class Compiler:
    """Compiles what one `Transform` asks for.

    Args:
        recipe: how the derivative is computed.
        warnings: what the caller has been warned of.
        compile: "auto", "xla", "graph" or "eager", as the caller asked.
        return_value: whether the function's value is computed beside.
    """

    all_programs = 0  # that XLA has compiled, for whichever derivative

    def __init__(self, recipe: Recipe, warnings: Warnings, compile: str, return_value: bool):
        self._recipe, self._warnings, self._compile, self._return_value = recipe, warnings, compile, return_value
        self._programs = 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_programs": 0}

    def first_that_works(self, problem: Problem, plan: Plan, tensors: Tensors) -> tuple[Entry, list[tf.Tensor]]:
        """Return the entry of the first way that runs, which lacks what `Transform` knows, and its outputs."""
        ways = self._ways(problem, plan)
        errors: list[Exception] = []  # of what was expected to work
        lacking: list[Exception] = []  # of these, why no way works: the first error may be that a rule is missing
        barred = False
        given_up = [*problem.remarks] if problem.facts.traceable else [f"any graph: {_UNTRACEABLE}"]
        for way, xla in ways:
            compiled = "xla" if xla else "eager" if way.eager else "graph"
            try:
                entry, outputs = self._try(problem, plan, way, xla, tensors)
            except (MemoryError, tf.errors.ResourceExhaustedError, CoupledExamplesError):
                raise
            except Exception as error:  # TensorFlow has no one type for "this operation cannot do that"
                barred = barred or isinstance(error, _NotForATapeError)
                # A plain graph where XLA's kernel is wrong, or a tape is open, is nothing to be warned of.
                known = xla and self._compile == "auto" and isinstance(error, (_NotForATapeError, WrongKernelError))
                if lacks_a_gradient(error):
                    lacking.append(error)
                if not (way.shortcut or known):
                    errors.append(error)
                given_up.append(f"{describe_way(way.label, compiled)}: {_first_line(error)}")
                continue
            if errors or (self._compile == "auto" and not problem.facts.traceable):
                slower = describe_way(way.label, compiled)
                reason = _first_line(errors[0]) if errors else _UNTRACEABLE
                self._warnings.once(slower, f"is computed a slower way ({slower}), because: {reason}")
            plan = dataclasses.replace(
                plan,
                chunk=way.chunk,
                passes=plan.passes if way.passes is None else way.passes,
                way=way.label,
                compiled=compiled,
                given_up=tuple(given_up),
                notes=tuple(problem.notes),
            )
            self._warn_of_doubts(problem)
            self._recipe.verify(problem, tensors, apart(problem, outputs)[1] if self._return_value else outputs)
            return entry._replace(plan=plan, loops=entry.loops or barred), outputs
        why = (lacking or errors)[0]
        told = problem.explained(why)
        if self._compile in ("auto", "eager") or told is not why:
            raise told
        raise RuntimeError(
            f'{problem.name} cannot be computed with compile="{self._compile}": {_first_line(errors[0])}. '
            'Use compile="auto", which finds a way that works'
        ) from errors[0]

    def _ways(self, problem: Problem, plan: Plan) -> list[tuple[Way, bool]]:
        """The ways to try, best first: pairs of a `Way` and whether XLA compiles it."""
        ways = self._recipe.ways(problem, plan)
        if self._return_value:
            ways = [way._replace(compute=partial(with_value, problem, way.compute)) for way in ways]
        *graph, eager = ways
        if self._compile == "eager":
            return [(eager, False)]
        if self._compile == "xla":
            return [(way, True) for way in graph]
        plain = [(way, False) for way in graph if not way.shortcut]
        if self._compile == "graph" or not tf.executing_eagerly():
            return plain  # inside a graph, XLA's verdict would come too late: with the first run
        if not problem.facts.traceable:
            return [(eager, False)]
        xla = [way for way in graph if way.shortcut]
        if plain and self._recipe.prefers_xla(problem, plan):
            xla.append(plain[0][0])  # of the ways that map rows, the vectorised one: only that gains from XLA
        if xla and not problem.repeatable:
            problem.remarks.append("XLA: it draws other random numbers than TensorFlow, and may not change variables")
            xla = []
        if xla and (self._programs >= costs.PROGRAMS or Compiler.all_programs >= costs.ALL_PROGRAMS):
            problem.remarks.append(
                f"XLA: it has compiled {self._programs} programs for this derivative and {Compiler.all_programs} in "
                "all, which TensorFlow keeps for ever"
            )
            xla = []
        return [*[(way, True) for way in xla], *plain, (eager, False)]

    def _eagerly(self, problem: Problem, plan: Plan, way: Way, tensors: Tensors) -> tuple[Entry, list[tf.Tensor]]:
        """Run a way outside any graph. Returns as `_try`."""

        def run(tensors: Tensors) -> list[tf.Tensor]:
            return way.compute(problem.apart(tensors))

        undone = problem.changes and self._recipe.may_refuse(problem)
        entry = Entry(problem, plan, self._undone_if_refused(problem, run, None) if undone else run)
        return entry, entry.run(tensors)

    def _try(
        self, problem: Problem, plan: Plan, way: Way, xla: bool, tensors: Tensors
    ) -> tuple[Entry, list[tf.Tensor]]:
        """Compile a way and run it. Returns the `Entry`, with the plan as it was, and the outputs."""
        if way.eager:
            return self._eagerly(problem, plan, way, tensors)
        if problem.facts.loses_products:
            raise LookupError(f"{problem.name}: {ACCUMULATES}")
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        recorded = derivatives_wanted(tensors)

        checked: list[bool] = []

        def program(*tensors: tf.Tensor) -> Any:
            outputs = way.compute(tensors)
            wrong = out_of_range(tf.compat.v1.get_default_graph()) if xla else None
            checked[:] = [wrong is not None]
            return (outputs, wrong) if any(checked) else outputs

        with _quiet(xla):
            compiled = tf.function(program, autograph=False, jit_compile=xla)
            concrete = compiled.get_concrete_function(*specs)
            operations = problem.facts.operations | {op.type for op in concrete.graph.get_operations()}
            loops = not LOOPS.isdisjoint(operations)
            if xla and loops and recorded:
                raise _NotForATapeError("it has a loop, and what a loop leaves for an open tape cannot leave XLA")
            require_right(concrete.graph, xla)
            if xla:
                self._leave_if_blind(problem, concrete.graph)
                Compiler.all_programs += 1
                self._programs += 1
            run = direct_call(concrete)
            if any(checked):
                run = _of_right_indices(problem.name, run)
            changed = concrete.graph.variables if problem.changes and tf.executing_eagerly() else ()
            if changed and self._recipe.may_refuse(problem):
                run = self._undone_if_refused(problem, run, changed)
            try:
                with undone_if_it_fails(changed):
                    outputs = run(tensors)
            except Exception as error:
                if recorded and loops:
                    raise _NotForATapeError(
                        "it has a loop, which TensorFlow cannot differentiate as often as the open tapes may ask for "
                        f"({_first_line(error)})"
                    ) from error
                raise
            # A tensor of a graph that the function read, in a closure, has a value there and nowhere else.
            bound = any(map(tf.is_symbolic_tensor, concrete.captured_inputs))
            return Entry(
                problem, plan, run, graph=weakref.ref(graph_being_built()) if bound else None, loops=loops
            ), outputs

    def _undone_if_refused(
        self, problem: Problem, run: Callable[[Tensors], list[tf.Tensor]], changed: Iterable[tf.Variable] | None
    ) -> Callable[[Tensors], list[tf.Tensor]]:
        """Have a call whose result is refused leave variables as they were: these, or None for all."""

        def undone(tensors: Tensors) -> list[tf.Tensor]:
            with undone_if_it_fails(changed):
                outputs = run(tensors)
                self._recipe.result(problem, apart(problem, outputs)[1] if self._return_value else outputs)
            return outputs

        return undone

    def _leave_if_blind(self, problem: Problem, graph: tf.Graph) -> None:
        """Leave XLA where TensorFlow may raise and XLA would not; who chose it is told in the plan, or warned."""
        if problem.facts.accumulates:
            raise WrongKernelError("TensorFlow loses there the way back through a tf.autodiff.ForwardAccumulator")
        found = (blind_to_faults(graph), problem.note), (problem.facts.unchecked_index, problem.doubts.append)
        for why, tell in found:
            if why and self._compile == "auto":
                raise WrongKernelError(why)
            if why:
                tell(why)

    def _warn_of_doubts(self, problem: Problem) -> None:
        for why in problem.doubts:
            self._warnings.once(why, f"may be wrong at some points, since {why}")


def _of_right_indices(name: str, run: Callable[[Tensors], Any]) -> Callable[[Tensors], list[tf.Tensor]]:
    """Raise ValueError where the last of what a program returns says that an index was out of range."""

    def checked(tensors: Tensors) -> list[tf.Tensor]:
        outputs, wrong = run(tensors)
        message = f"{name}: an index is out of range, in tf.gather or its like"
        if tf.is_symbolic_tensor(wrong):
            tf.debugging.assert_equal(wrong, False, message)
        elif wrong:
            raise ValueError(message)
        return outputs

    return checked


@contextlib.contextmanager
def _quiet(xla: bool) -> Iterator[None]:
    """Hold back what TensorFlow logs about operations that a way does not support: the caller is told in one line."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.quiet_logger("CRITICAL"))
        if xla:  # its compiler writes to stderr itself
            stack.enter_context(process.quiet_stderr(shown_for=()))
        yield


def _first_line(error: Exception) -> str:
    if isinstance(error, _NotForATapeError):
        return str(error)
    if told := vectorised_loop(error):
        return told
    return f"{type(error).__name__}: {told_line(error).removeprefix(f'{type(error).__name__}: ')[:200]}"
