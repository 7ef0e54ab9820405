"""What every transformation shares: looking up the compiled function for the arguments, and building it the first time.

A transformation is a `Recipe` (how to compute one kind of derivative) applied to a function. Building it means: probe
the function, let the recipe check and plan, then try the ways to compile it from the fastest to the one that always
works, and keep the first that runs.
"""

import contextlib
import dataclasses
import threading
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from tapelab import process
from tapelab.derivatives import costs
from tapelab.derivatives.machinery.arguments.calling import no_vector, require_call
from tapelab.derivatives.machinery.arguments.checks import (
    dense_tensor,
    require_alike,
    require_finite,
    require_no_mask,
    require_no_strategy,
    require_one_of,
)
from tapelab.derivatives.machinery.arguments.context import chance, context, stateless_scope
from tapelab.derivatives.machinery.arguments.sources import Sources
from tapelab.derivatives.machinery.arguments.structures import flatten, names, statics
from tapelab.derivatives.machinery.entries import Entry, Recent, graph_being_built
from tapelab.derivatives.machinery.errors import FallbackWarning, OutsideWarning, warn_caller
from tapelab.derivatives.machinery.failures import lacks_a_gradient, told_line, vectorised_loop
from tapelab.derivatives.machinery.outside.observed import undone_if_it_fails
from tapelab.derivatives.machinery.outside.outside import Outside
from tapelab.derivatives.machinery.plan import Plan, describe_way
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, apart, with_value
from tapelab.derivatives.private import derivatives_wanted, direct_call, recording, unconverted
from tapelab.derivatives.wrong.cure import cured_calls
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.derivatives.wrong.kernels import WrongKernelError, blind_to_singular, require_right
from tapelab.derivatives.wrong.replaced_gradients import in_a_block
from tapelab.graphs.program import LOOPS
from tapelab.process.tensorflow import tf

_UNTRACEABLE = "the function cannot be traced into a graph"
_ATTEMPTS = 3  # builds of one program
_TOLD = 8  # things in one warning


class _NotForATapeError(RuntimeError):
    """What a tape records cannot be computed this way. Another way can, and nobody has to change anything."""


# In a tf.function that is converted by AutoGraph, this code is not: it would take seconds. `Problem` sees to what the
# function itself needs of AutoGraph.
@unconverted
class Transform:
    """A derivative of a function: call it like the function, with the vector as a keyword if it multiplies by one.

    It is compiled once for each structure, shapes and dtypes of the arguments. Python numbers and strings among the
    arguments are compiled in, as `tf.function` does; so is every Python value that the function reads from elsewhere.
    At every call it looks whether those are still what they were (`tapelab.derivatives.machinery.outside` says what it
    sees), and compiles anew if not; an `OutsideWarning` at the first call names what it cannot see. It compiles anew,
    too, in another context, such as that of a layer in training (`tapelab.derivatives.machinery.arguments.context`).
    The 64 signatures that were used last stay compiled: pass numbers that change often as tensors.

    Arguments reach the function as they are given: a dictionary in its order, a list, tuple or dictionary of another
    class with its attributes; only arrays, numbers among the sources and variables become tensors. A source is a tensor
    of its own. Where the same tensor is another argument too, or is read from outside the function, it is a constant
    there, unless that argument is a source as well.

    A call changes variables as often as one call of the function does, the first call too, or it is refused; the
    derivatives of single examples say how often they do. What Python does itself, such as to append to a list, it does
    whenever the function is traced.

    `plan` says what a call does: which mode, how it is compiled, how much memory it takes, and why not a faster way.
    """

    def __init__(self, f, recipe, sources, *, return_value, compile, unconnected, check_finite):
        self._differentiated = f  # not __wrapped__: tf.function takes what wraps for what is wrapped
        self._recipe = recipe
        self._sources = sources
        self._return_value = return_value
        self._result = partial(_value_and_result, recipe) if return_value else recipe.result
        self._compile = compile
        self._unconnected = unconnected
        self._check_finite = check_finite
        self._entries = Recent()
        self._programs = 0
        self._warned = set()
        self._building = threading.RLock()
        self.__name__ = f"{recipe.name}({_name(f)})"

    def __getstate__(self):
        # A function that holds a transform can be pickled: what was compiled stays here.
        own = {"_entries": Recent(), "_programs": 0, "_warned": set()}
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_building"}

    def __setstate__(self, state):
        self.__dict__ |= state
        self._building = threading.RLock()

    def __repr__(self):
        return f"<{self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry, outputs, tensors = self._entry(args, kwargs)
        if outputs is None:
            try:
                outputs = self._run(entry, tensors)
            except tf.errors.InvalidArgumentError as error:
                raise entry.problem.explained(error)  # noqa: B904 - it has its cause
            if entry.plan.compiled == "eager":
                entry.outside.accept_own_changes()
        if entry.plan.compiled == "eager":
            self._warn_of_open_tapes(entry.problem)
        result = self._result(entry.problem, outputs)
        if self._check_finite:
            numbers = self._recipe.numbers
            require_finite((result[0], numbers(result[1])) if self._return_value else numbers(result), self.__name__)
        return result

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the `Plan` of a call with these arguments. New ones are compiled for and computed with once.

        Raises:
            What the call itself raises when it is prepared; nothing about the values.
        """
        return self._entry(args, kwargs)[0].plan

    def _run(self, entry, tensors):
        if entry.plan.compiled == "eager":
            return self._run_eagerly(entry, tensors)
        if recording() or not tf.executing_eagerly():
            with cured_calls():
                return entry.run(tensors)
        return entry.run(tensors)

    @tf.autograph.experimental.do_not_convert
    def _run_eagerly(self, entry, tensors):
        with entry.problem.cure.applied():
            return entry.run(tensors)

    def _entry(self, args, kwargs):
        """Return the entry for the arguments, the outputs if it had to be built, and the arguments' tensors."""
        require_no_strategy(self.__name__)
        recipe, sources = self._recipe, self._sources
        vector = None
        if recipe.vector:
            try:
                vector = kwargs.pop(recipe.vector)  # the dictionary is this call's own
            except KeyError:
                raise no_vector(self.__name__, recipe.vector, self._differentiated, args, kwargs) from None
        leaves, taken = [], None
        if sources.variables is None:
            chosen, args = sources.take(args, self.__name__)
            taken = flatten(chosen, leaves, numbers=True)
        rest = flatten((tuple(args), kwargs), leaves)
        vector = flatten(vector, leaves, numbers=True) if recipe.vector else None
        tensors = [leaf if isinstance(leaf, tf.Tensor) else dense_tensor(leaf, self.__name__) for leaf in leaves]
        require_no_mask(self.__name__, tensors)
        if stateless_scope() is not None:
            require_call(self.__name__, recipe.vector, self._differentiated, args, kwargs)
            return *self._build(taken, rest, vector, tensors), tensors
        key = (taken, rest, vector, context(self.__name__), *[(tensor.dtype, tensor.shape) for tensor in tensors])
        under_tapes = key
        entry, outputs = self._entries.recall(key), None
        if (entry is None or entry.loops) and (order := derivatives_wanted(tensors)):
            under_tapes = (*key, order)
            entry = self._entries.recall(under_tapes)
        if entry is not None and not entry.current():
            self._entries.clear()  # the others have read the same
            entry = None
        if entry is None:
            require_call(self.__name__, recipe.vector, self._differentiated, args, kwargs)
            entry, outputs = self._build(taken, rest, vector, tensors)
            self._entries.keep(under_tapes if entry.loops else key, entry)
        return entry, outputs, tensors

    @tf.autograph.experimental.do_not_convert
    def _build(self, taken, rest, vector, tensors):
        """Return the entry and its outputs, of a function that read the same at the start and at the end.

        One thread builds at a time: what another changes before it calls, and changes back after, would not be seen.
        """
        with self._building:
            return self._built(taken, rest, vector, tensors)

    def _built(self, taken, rest, vector, tensors):
        for tensor in tensors:
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"{self.__name__}: an argument has shape {tensor.shape}; every size must be known. Call it outside "
                    "tf.function, or give that function an input_signature with fixed shapes"
                )
        look = partial(Outside, self._differentiated, *self._recipe.outside, *statics(rest))
        for _ in range(_ATTEMPTS):
            before = look()
            problem = self._problem(taken, rest, vector, tensors)
            differs = ""
            if own := before.own_changes():
                # Made on the first call, as Keras makes variables, or set at every call? A second one tells.
                before, first = look(), problem.facts.constants
                problem = self._problem(taken, rest, vector, tensors)
                own = before.own_changes()
                differs = ", ".join(sorted({label for _, label in own})) if problem.facts.constants != first else ""
            with problem.cure.applied():
                entry, outputs = self._first_that_works(problem, self._recipe.plan(problem), tensors)
            after = look(ignored=own)
            changed = before.changed_by_others()
            if changed is None:
                if entry.plan.compiled != "eager":  # there the function itself runs in every call
                    self._warn_of_outside(after.unseen, differs)
                return entry._replace(outside=after, chance=None if problem.repeatable else chance()), outputs
        raise RuntimeError(
            f"{self.__name__}: {changed} was replaced while the function was traced, {_ATTEMPTS} times over, and not "
            "by the function itself. Another thread changes it: pass it as an argument, or use a lock"
        )

    def _problem(self, taken, rest, vector, tensors):
        """Return what is known of the function with these arguments, after checking that it has the derivative."""
        size = len(names(vector, "")) if self._recipe.vector else 0
        data, own = tensors[: len(tensors) - size], tensors[len(tensors) - size :]
        problem = Problem(self.__name__, self._differentiated, self._sources, taken, rest, data, vector_size=size)
        problem.probe(data)
        problem.require_right(Needs.GRADIENT)
        if self._unconnected == "error":
            problem.require_connected()
        if self._recipe.vector:
            require_alike(problem.name, self._recipe.vector, vector, own, *self._recipe.vector_like(problem))
        return problem

    def _ways(self, problem, plan):
        """The ways to try, best first: pairs of a `Way` and whether XLA compiles it (None: no graph)."""
        ways = self._recipe.ways(problem, plan)
        if self._return_value:
            ways = [way._replace(compute=partial(with_value, problem, way.compute)) for way in ways]
        *graph, eager = ways
        if self._compile == "eager":
            return [(eager, None)]
        if self._compile == "xla":
            return [(way, True) for way in graph]
        plain = [(way, False) for way in graph if not way.shortcut]
        if self._compile == "graph" or not tf.executing_eagerly():
            return plain  # inside a graph, XLA's verdict would come too late: with the first run
        if not problem.traceable:
            return [(eager, None)]
        xla = [way for way in graph if way.shortcut]
        if plain and self._recipe.prefers_xla(problem, plan):
            xla.append(plain[0][0])  # of the ways that map rows, the vectorised one: only that gains from XLA
        if xla and not problem.repeatable:
            problem.remarks.append("XLA: it draws other random numbers than TensorFlow, and may not change variables")
            xla = []
        if xla and (self._programs >= costs.PROGRAMS or _programs >= costs.ALL_PROGRAMS):
            problem.remarks.append(
                f"XLA: it has compiled {self._programs} programs for this derivative and {_programs} in all, which "
                "TensorFlow keeps for ever"
            )
            xla = []
        return [*[(way, True) for way in xla], *plain, (eager, None)]

    def _first_that_works(self, problem, plan, tensors):
        ways = self._ways(problem, plan)
        first_error, lacking, barred = None, None, False
        given_up = [*problem.remarks] if problem.traceable else [f"any graph: {_UNTRACEABLE}"]
        for way, xla in ways:
            compiled = "xla" if xla else "eager" if way.eager else "graph"
            try:
                entry, outputs = self._try(problem, way, xla, tensors)
            except (MemoryError, tf.errors.ResourceExhaustedError):
                raise
            except Exception as error:  # TensorFlow has no one type for "this operation cannot do that"
                barred = barred or isinstance(error, _NotForATapeError)
                # A plain graph where XLA's kernel is wrong, or a tape is open, is nothing to be warned of.
                known = xla and self._compile == "auto" and isinstance(error, (_NotForATapeError, WrongKernelError))
                if lacks_a_gradient(error):  # the reason why no way works; the first may be that a rule is missing
                    lacking = lacking or error
                first_error = first_error or (None if way.shortcut or known else error)
                given_up.append(f"{describe_way(way.label, compiled)}: {_first_line(error)}")
                continue
            if first_error is not None or (self._compile == "auto" and not problem.traceable):
                self._warn(way.label, compiled, first_error)
            plan = dataclasses.replace(
                plan,
                chunk=way.chunk,
                passes=plan.passes if way.passes is None else way.passes,
                way=way.label,
                compiled=compiled,
                given_up=tuple(given_up),
                notes=(*problem.cure.notes, *problem.notes),
            )
            self._warn_of_doubts(problem)
            self._recipe.verify(problem, tensors, apart(problem, outputs)[1] if self._return_value else outputs)
            return entry._replace(plan=plan, loops=entry.loops or barred), outputs
        told = problem.explained(lacking or first_error)
        if self._compile in ("auto", "eager") or told is not (lacking or first_error):
            raise told
        raise RuntimeError(
            f'{self.__name__} cannot be computed with compile="{self._compile}": {_first_line(first_error)}. '
            'Use compile="auto", which finds a way that works'
        ) from first_error

    def _try(self, problem, way, xla, tensors):
        """Compile a way and run it. Returns the `Entry`, but for its plan, and the outputs."""
        if way.eager:

            def run(tensors):
                return way.compute(problem.apart(tensors))

            return Entry(problem, None, run), run(tensors)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        recorded = derivatives_wanted(tensors)

        with _quiet(xla):
            compiled = tf.function(lambda *tensors: way.compute(tensors), autograph=False, jit_compile=xla)
            concrete = compiled.get_concrete_function(*specs)
            loops = problem.operations | {operation.type for operation in concrete.graph.get_operations()}
            loops = not LOOPS.isdisjoint(loops)
            if xla and loops and recorded:
                raise _NotForATapeError("it has a loop, and what a loop leaves for an open tape cannot leave XLA")
            require_right(concrete.graph, xla)
            if xla and (why := blind_to_singular(concrete.graph)):
                if self._compile == "auto":
                    raise WrongKernelError(why)
                problem.note(why)
            if xla:
                _count_program()
                self._programs += 1
            run = direct_call(concrete)
            changed = concrete.graph.variables if problem.changes and tf.executing_eagerly() else ()
            try:
                with undone_if_it_fails(changed), cured_calls():
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
                problem, None, run, graph=weakref.ref(graph_being_built()) if bound else None, loops=loops
            ), outputs

    def _warn_of_outside(self, unseen, differs):
        """Say once what the function reads and cannot be watched, and that it computes with what it changes."""
        if differs:
            unseen = unseen | {differs: "is changed by the function, which computes with it: return it, or pass it"}
        if not unseen or "outside" in self._warned:
            return
        self._warned.add("outside")
        told = [f"{where} {why}" for where, why in unseen.items()]
        more = f"\n… and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
        told = "".join(f"\n- {line}" for line in told[:_TOLD])
        warn_caller(
            f"{self.__name__} goes on with what it reads at the first call, and cannot see changes of:{told}{more}",
            OutsideWarning,
        )

    def _warn_of_doubts(self, problem):
        doubts = [f"may be wrong at some points, since {why}" for why in problem.doubts]
        if why := problem.cure.why_not(Needs.SECOND, ()):
            doubts.append(f"is right, but a derivative of it would not be: {why}")
        for doubt in doubts:
            if doubt not in self._warned:
                self._warned.add(doubt)
                warn_caller(f"{self.__name__} {doubt}", FallbackWarning)

    def _warn_of_open_tapes(self, problem):
        """What a tape records of the single operations, it differentiates by TensorFlow's gradients."""
        seen = (recording() or not tf.executing_eagerly()) and not in_a_block()
        if seen and problem.cure.operations and "tapes" not in self._warned:
            self._warned.add("tapes")
            warn_caller(
                f"{self.__name__} is right, but what an open tape makes of it is not, where TensorFlow's gradients of "
                f"{', '.join(sorted(problem.cure.operations))} are wrong: it is not compiled, so that the tape records "
                "single operations. Compile it, or take the second derivative by a function of tapelab.derivatives",
                FallbackWarning,
            )

    def _warn(self, label, compiled, error):
        if (label, compiled) in self._warned:
            return
        self._warned.add((label, compiled))
        reason = _first_line(error) if error else _UNTRACEABLE
        warn_caller(
            f"{self.__name__} is computed a slower way ({describe_way(label, compiled)}), because: {reason}",
            FallbackWarning,
        )


def transform(
    f: Callable,
    recipe: Recipe,
    *,
    argnums: int | tuple[int, ...] = 0,
    wrt: Any = None,
    return_value: bool = False,
    compile: str = "auto",
    unconnected: str = "error",
    check_finite: bool = False,
) -> Transform:
    """Make the `Transform` of a function; checks the options."""
    if not callable(f):
        raise TypeError(f"{recipe.name} takes a function, and got a {type(f).__name__}: pass f, not f(x)")
    require_one_of(("auto", "xla", "graph", "eager"), compile=compile)
    require_one_of(("error", "zero"), unconnected=unconnected)
    sources = Sources(argnums, wrt)
    options: dict[str, Any] = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return Transform(f, recipe, sources, return_value=return_value, **options)


def _value_and_result(recipe, problem, outputs):
    value, own = apart(problem, outputs)
    return recipe.value(problem, value), recipe.result(problem, own)


@contextlib.contextmanager
def _quiet(xla):
    """Hold back what TensorFlow logs about operations that a way does not support: the caller is told in one line."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(process.quiet_logger("CRITICAL"))
        if xla:  # its compiler writes to stderr itself
            stack.enter_context(process.quiet_stderr(shown_for=()))
        yield


_programs = 0


def _count_program():
    global _programs
    _programs += 1


def _name(f):
    return getattr(f, "__name__", None) or getattr(f, "name", None) or type(f).__name__


def _first_line(error):
    if isinstance(error, _NotForATapeError):
        return str(error)
    if told := vectorised_loop(error):
        return told
    return f"{type(error).__name__}: {told_line(error).removeprefix(f'{type(error).__name__}: ')[:200]}"
