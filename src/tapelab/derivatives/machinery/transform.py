"""What every transformation shares: looking up the compiled function for the arguments, and building it the first time.

A transformation is a `Recipe` (how to compute one kind of derivative) applied to a function. Building it means: probe
the function, let the recipe check and plan, then try the ways to compile it from the fastest to the one that always
works, and keep the first that runs.
"""

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tapelab.derivatives.machinery.arguments.calling import Argnums, no_vector, require_call
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
from tapelab.derivatives.machinery.arguments.structures import Description, flatten, names, statics
from tapelab.derivatives.machinery.compiling import Compiler
from tapelab.derivatives.machinery.entries import Entry, Recent
from tapelab.derivatives.machinery.errors import OutsideWarning, Warnings
from tapelab.derivatives.machinery.outside.outside import Outside
from tapelab.derivatives.machinery.plan import Plan
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.recipe import Recipe, apart
from tapelab.derivatives.private import derivatives_wanted, unconverted
from tapelab.derivatives.wrong.gaps import Needs
from tapelab.process.tensorflow import Tensors, tf

_ATTEMPTS = 3  # builds of one program
_TOLD = 8  # things in one warning


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

    def __init__(
        self,
        f: Callable[..., Any],
        recipe: Recipe,
        sources: Sources,
        *,
        return_value: bool,
        compile: str,
        unconnected: str,
        check_finite: bool,
    ):
        self._differentiated = f  # not __wrapped__: tf.function takes what wraps for what is wrapped
        self._recipe = recipe
        self._sources = sources
        self._return_value = return_value
        self._result = partial(_value_and_result, recipe) if return_value else recipe.result
        self._unconnected = unconnected
        self._check_finite = check_finite
        self._entries = Recent()
        self._building = threading.RLock()
        self.__name__ = f"{recipe.name}({_name(f)})"
        self._warnings = Warnings(self.__name__)
        self._compiler = Compiler(recipe, self._warnings, compile, return_value)

    def __getstate__(self) -> dict[str, Any]:
        # A function that holds a transform can be pickled: what was compiled stays here.
        own = {"_entries": Recent()}
        return {name: value for name, value in (self.__dict__ | own).items() if name != "_building"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state
        self._building = threading.RLock()

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        entry, outputs, tensors = self._entry(args, kwargs)
        if outputs is None:
            try:
                outputs = self._run(entry, tensors)
            except tf.errors.InvalidArgumentError as error:
                raise entry.problem.explained(error)  # noqa: B904 - it has its cause
            if entry.plan.compiled == "eager" and entry.outside is not None:
                entry.outside.accept_own_changes()
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

    def _run(self, entry: Entry, tensors: Tensors) -> list[tf.Tensor]:
        if entry.plan.compiled == "eager":
            return self._run_eagerly(entry, tensors)
        return entry.run(tensors)

    @tf.autograph.experimental.do_not_convert
    def _run_eagerly(self, entry: Entry, tensors: Tensors) -> list[tf.Tensor]:
        return entry.run(tensors)

    def _entry(
        self, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> tuple[Entry, list[tf.Tensor] | None, list[tf.Tensor]]:
        """Return the entry for the arguments, the outputs if it had to be built, and the arguments' tensors."""
        require_no_strategy(self.__name__)
        recipe, sources = self._recipe, self._sources
        vector = None
        if recipe.vector:
            try:
                vector = kwargs.pop(recipe.vector)  # the dictionary is this call's own
            except KeyError:
                raise no_vector(self.__name__, recipe.vector, self._differentiated, args, kwargs) from None
        leaves: list[Any] = []
        taken = None
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
    def _build(
        self, taken: Description | None, rest: Description, vector: Description | None, tensors: Tensors
    ) -> tuple[Entry, list[tf.Tensor]]:
        """Return the entry and its outputs, of a function that read the same at the start and at the end.

        One thread builds at a time: what another changes before it calls, and changes back after, would not be seen.
        """
        with self._building:
            return self._built(taken, rest, vector, tensors)

    def _built(
        self, taken: Description | None, rest: Description, vector: Description | None, tensors: Tensors
    ) -> tuple[Entry, list[tf.Tensor]]:
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
            entry, outputs = self._compiler.first_that_works(problem, self._recipe.plan(problem), tensors)
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

    def _problem(
        self, taken: Description | None, rest: Description, vector: Description | None, tensors: Tensors
    ) -> Problem:
        """Return what is known of the function with these arguments, after checking that it has the derivative."""
        size = 0 if vector is None else len(names(vector, ""))
        data, own = tensors[: len(tensors) - size], tensors[len(tensors) - size :]
        problem = Problem(self.__name__, self._differentiated, self._sources, taken, rest, data, vector_size=size)
        problem.probe(data)
        problem.require_right(Needs.GRADIENT)
        if self._unconnected == "error":
            problem.require_connected()
        if self._recipe.vector and vector is not None:
            require_alike(problem.name, self._recipe.vector, vector, own, *self._recipe.vector_like(problem))
        return problem

    def _warn_of_outside(self, unseen: dict[str, str], differs: str) -> None:
        """Say once what the function reads and cannot be watched, and that it computes with what it changes."""
        if differs:
            unseen = unseen | {differs: "is changed by the function, which computes with it: return it, or pass it"}
        if unseen:
            more = f"\n… and {len(unseen) - _TOLD} more" if len(unseen) > _TOLD else ""
            told = "".join(f"\n- {where} {why}" for where, why in list(unseen.items())[:_TOLD])
            self._warnings.once(
                "outside",
                f"goes on with what it reads at the first call, and cannot see changes of:{told}{more}",
                OutsideWarning,
            )


def transform(
    f: Callable,
    recipe: Recipe,
    *,
    argnums: Argnums = 0,
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


def _value_and_result(recipe: Recipe, problem: Problem, outputs: Tensors) -> tuple[Any, Any]:
    value, own = apart(problem, outputs)
    return recipe.value(problem, value), recipe.result(problem, own)


def _name(f: Any) -> str:
    return getattr(f, "__name__", None) or getattr(f, "name", None) or type(f).__name__
