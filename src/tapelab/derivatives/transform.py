"""What every transformation shares: looking up the compiled function for the arguments, and building it the first time.

A transformation is a `Recipe` (how to compute one kind of derivative) applied to a function. Building it means: probe
the function, let the recipe check and plan, then try the ways to compile it from the fastest to the one that always
works, and keep the first that runs.
"""

import contextlib
import dataclasses
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from tapelab.derivatives.errors import FallbackWarning, NotFiniteError
from tapelab.derivatives.memory import checked_limit
from tapelab.derivatives.plan import Plan, describe_way
from tapelab.derivatives.private import direct_call
from tapelab.derivatives.problem import LOOPS, Problem, Sources
from tapelab.derivatives.structures import flatten, names
from tapelab.runtime import quiet_stderr, tf

_COMPILE = ("auto", "xla", "graph", "eager")
_UNCONNECTED = ("error", "zero")
_CACHE = "__tapelab_transforms__"
_UNTRACEABLE = "the function cannot be traced into a graph"
_KEPT = 64  # signatures of one transform, and transforms of one function


class Way(NamedTuple):
    """One way to compute a derivative.

    Attributes:
        label: for messages.
        compute: takes the flat list of tensors, returns a flat list of tensors.
        eager: whether it runs outside any graph, and so handles every operation.
        shortcut: whether it is tried under XLA before the others, and given up without a warning.
        chunk: how many passes it makes at once.
    """

    label: str
    compute: Callable
    eager: bool = False
    shortcut: bool = False
    chunk: int = 1


class Recipe:
    """How to compute one kind of derivative. Subclasses hold the options that are theirs.

    Attributes:
        name: for messages.
        vector: what the leading argument is, "tangents" or "cotangents", if there is one.
    """

    name = ""
    vector = None

    def plan(self, problem):
        """Check what the probe found, and return a `Plan` without its way. Raises what cannot be done."""
        raise NotImplementedError

    def prefers_xla(self, problem, plan):
        """Whether XLA is tried before a plain graph, for the first way that is no shortcut."""
        return False

    def ways(self, problem, plan):
        """Return the list of each `Way`, the fastest first and one that is eager last."""
        raise NotImplementedError

    def accepts(self, problem, outputs):
        """Whether what a shortcut computed the first time is right."""
        return True

    def vector_like(self, problem):
        """Return what the leading argument has to match: a description, shapes, dtypes, and what they belong to."""
        if self.vector == "tangents":
            return problem.source_description, problem.source_shapes, problem.source_dtypes, "sources"
        return problem.output_description, problem.output_shapes, problem.output_dtypes, "function's results"

    def result(self, problem, outputs):
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

    def check(self, problem):
        """Raise if the derivative cannot be computed."""

    def plan(self, problem):
        self.check(problem)
        return Plan(self.mode)

    def gains_from_xla(self, problem):
        """Whether XLA is tried first."""
        return problem.largest <= 2**14  # a call is mostly its own start, which is half as long under XLA

    def compute(self, problem, tensors):
        """Return the derivative, a flat list of tensors."""
        raise NotImplementedError

    def ways(self, problem, plan):
        compute = partial(self.compute, problem)
        ways = [Way(self.label, compute), Way(self.label, compute, eager=True)]
        if self.gains_from_xla(problem) and not problem.operations & LOOPS:
            ways.insert(0, Way(self.label, compute, shortcut=True))
        return ways


class Recent(OrderedDict):
    """A cache of the entries that were used last: each keeps a compiled program, and what that has captured, alive."""

    def recall(self, key):
        """Return an entry, which is then the last to go; None if there is none."""
        try:
            self.move_to_end(key)
        except KeyError:
            return None
        return self[key]

    def keep(self, key, entry):
        """Add an entry; beyond the limit, the one that was not used for longest goes."""
        self[key] = entry
        if len(self) > _KEPT:
            self.popitem(last=False)
        return entry


class Entry(NamedTuple):
    """What was built for one signature of arguments."""

    problem: Problem
    plan: Plan
    run: Callable


class Transform:
    """A derivative of a function: call it like the function, with the tangents or cotangents first if it takes them.

    It is compiled once for each structure, shapes and dtypes of the arguments. Python numbers and strings among the
    arguments are compiled in, as `tf.function` does; so is every Python value that the function reads from elsewhere.
    The 64 signatures that were used last stay compiled: pass numbers that change often as tensors.

    `plan` says what a call does: which mode, how it is compiled, how much memory it takes, and why not a faster way.
    """

    def __init__(self, f, recipe, sources, *, compile, unconnected, check_finite):
        self._f = f
        self._recipe = recipe
        self._sources = sources
        self._compile = compile
        self._unconnected = unconnected
        self._check_finite = check_finite
        self._entries = Recent()
        self._warned = set()
        self.__wrapped__ = f
        self.__name__ = f"{recipe.name}({_name(f)})"

    def __repr__(self):
        return f"<{self.__name__}>"

    def __call__(self, *args, **kwargs):
        entry, outputs, tensors = self._entry(args, kwargs)
        result = self._recipe.result(entry.problem, entry.run(tensors) if outputs is None else outputs)
        if self._check_finite:
            _require_finite(result, self.__name__)
        return result

    def plan(self, *args, **kwargs):
        """Return the `Plan` of a call with these arguments. New ones are compiled for and computed with once.

        Raises:
            What the call itself raises when it is prepared; nothing about the values.
        """
        return self._entry(args, kwargs)[0].plan

    def _entry(self, args, kwargs):
        """Return the entry for the arguments, the outputs if it had to be built, and the arguments' tensors."""
        recipe, sources = self._recipe, self._sources
        vector = None
        if recipe.vector:
            if not args:
                raise TypeError(f"{self.__name__} takes the {recipe.vector} as its first argument, and got none")
            vector, *args = args
        leaves, taken = [], None
        if sources.variables is None:
            chosen, args = sources.take(args, self.__name__)
            taken = flatten(chosen, leaves, numbers=True)
        rest = flatten((tuple(args), kwargs), leaves)
        vector = flatten(vector, leaves, numbers=True)
        tensors = [leaf if isinstance(leaf, tf.Tensor) else _tensor(leaf, self.__name__) for leaf in leaves]
        key = (taken, rest, vector, tf.executing_eagerly(), *[(tensor.dtype, tensor.shape) for tensor in tensors])
        entry, outputs = self._entries.recall(key), None
        if entry is None:
            entry, outputs = self._build(taken, rest, vector, tensors)
            self._entries.keep(key, entry)
        return entry, outputs, tensors

    def _build(self, taken, rest, vector, tensors):
        for tensor in tensors:
            if not tensor.shape.is_fully_defined():
                raise ValueError(
                    f"{self.__name__}: an argument has shape {tensor.shape}; every size must be known. Call it outside "
                    "tf.function, or give that function an input_signature with fixed shapes"
                )
        size = len(names(vector, "")) if self._recipe.vector else 0
        data, own = tensors[: len(tensors) - size], tensors[len(tensors) - size :]
        problem = Problem(self.__name__, self._f, self._sources, taken, rest, data, vector_size=size)
        problem.probe(data)
        if self._unconnected == "error":
            problem.require_connected()
        if self._recipe.vector:
            _require_alike(problem.name, self._recipe.vector, vector, own, *self._recipe.vector_like(problem))
        plan = self._recipe.plan(problem)
        return self._first_that_works(problem, plan, tensors)

    def _ways(self, problem, plan):
        """The ways to try, best first: pairs of a `Way` and whether XLA compiles it (None: no graph)."""
        *graph, eager = self._recipe.ways(problem, plan)
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
        if self._recipe.prefers_xla(problem, plan):
            xla.append(plain[0][0])  # of the ways that map rows, the vectorised one: only that gains from XLA
        return [*[(way, True) for way in xla], *plain, (eager, None)]

    def _first_that_works(self, problem, plan, tensors):
        ways = self._ways(problem, plan)
        first_error = None
        given_up = [] if problem.traceable else [f"any graph: {_UNTRACEABLE}"]
        for way, xla in ways:
            compiled = "xla" if xla else "eager" if way.eager else "graph"
            try:
                run, outputs = self._try(way, xla, tensors)
            except (MemoryError, tf.errors.ResourceExhaustedError):
                raise
            except Exception as error:  # TensorFlow has no one type for "this operation cannot do that"
                first_error = first_error or (None if way.shortcut else error)
                given_up.append(f"{describe_way(way.label, compiled)}: {_first_line(error)}")
                continue
            if way.shortcut and not self._recipe.accepts(problem, outputs):
                given_up.append(f"{describe_way(way.label, compiled)}: its result is not right for this function")
                continue
            if first_error is not None or (self._compile == "auto" and not problem.traceable):
                self._warn(way.label, compiled, first_error)
            plan = dataclasses.replace(
                plan, chunk=way.chunk, way=way.label, compiled=compiled, given_up=tuple(given_up)
            )
            return Entry(problem, plan, run), outputs
        if self._compile in ("auto", "eager"):
            raise first_error
        raise RuntimeError(
            f'{self.__name__} cannot be computed with compile="{self._compile}": {_first_line(first_error)}. '
            'Use compile="auto", which finds a way that works'
        ) from first_error

    def _try(self, way, xla, tensors):
        if way.eager:
            return way.compute, way.compute(tensors)
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]

        with _quiet(xla):
            compiled = tf.function(lambda *tensors: way.compute(tensors), autograph=False, jit_compile=xla)
            run = direct_call(compiled.get_concrete_function(*specs))
            return run, run(tensors)

    def _warn(self, label, compiled, error):
        if (label, compiled) in self._warned:
            return
        self._warned.add((label, compiled))
        reason = _first_line(error) if error else _UNTRACEABLE
        warnings.warn(
            f"{self.__name__} is computed a slower way ({describe_way(label, compiled)}), because: {reason}",
            FallbackWarning,
            stacklevel=6,
        )


def transform(f, recipe, *, argnums=0, wrt=None, compile="auto", unconnected="error", check_finite=False):
    """Make the `Transform` of a function, or return the one that was made before with the same options.

    The transforms of a Python function are kept with the function, those used last, and go when it goes. Of other
    callables (bound methods, models) nothing is kept: hold on to the returned transform to keep what it compiled.
    """
    if not callable(f):
        raise TypeError(f"{recipe.name} takes a function, and got a {type(f).__name__}: pass f, not f(x)")
    if compile not in _COMPILE:
        raise ValueError(f"compile is {compile!r}; expected one of {', '.join(map(repr, _COMPILE))}")
    if unconnected not in _UNCONNECTED:
        raise ValueError(f"unconnected is {unconnected!r}; expected one of {', '.join(map(repr, _UNCONNECTED))}")
    sources = Sources(argnums, wrt)
    made = Transform(f, recipe, sources, compile=compile, unconnected=unconnected, check_finite=check_finite)
    if not isinstance(f, types.FunctionType):
        return made
    # functools.wraps copies the attribute to the wrapper, which is another function.
    owner, kept = f.__dict__.get(_CACHE, (None, None))
    if owner is not f:
        owner, kept = f.__dict__[_CACHE] = f, Recent()
    over = (argnums,) if wrt is None else (sources.description, *map(id, sources.variables))
    key = (recipe.name, *sorted(vars(recipe).items()), over, compile, unconnected, check_finite)
    return kept.recall(key) or kept.keep(key, made)


def check_chunks(chunk_size, memory_limit):
    """Raise ValueError unless these are None or positive."""
    if chunk_size is not None and (isinstance(chunk_size, bool) or not isinstance(chunk_size, int) or chunk_size < 1):
        raise ValueError(
            f"chunk_size is {chunk_size!r}; expected a positive number of rows, or None for as many as fit"
        )
    if memory_limit is not None:
        checked_limit(memory_limit)


def require_scalar(problem):
    """Raise ValueError unless the function returns one scalar."""
    if problem.output_shapes != [()]:
        shapes = ", ".join(
            f"{name} {shape}" for name, shape in zip(problem.output_names, problem.output_shapes, strict=True)
        )
        raise ValueError(
            f"{problem.name} needs a function that returns one scalar, shape (), and got {shapes}. Reduce it, for "
            "example with tf.reduce_mean; for all of its derivatives use jacobian"
        )


def _require_alike(name, kind, description, tensors, wanted, shapes, dtypes, what):
    """Raise unless the tangents match the sources, or the cotangents the function's results."""
    labels = names(description, kind)
    if names(description, "") != names(wanted, ""):
        raise ValueError(
            f"{name}: the {kind} do not have the structure of the {what}: they are {', '.join(labels) or 'none'}; "
            f"expected {', '.join(names(wanted, kind))}"
        )
    for label, tensor, shape, dtype in zip(labels, tensors, shapes, dtypes, strict=True):
        if tuple(tensor.shape) != shape:
            raise ValueError(f"{name}: {label} has shape {tuple(tensor.shape)}; expected that of the {what}, {shape}")
        if tensor.dtype != dtype:
            raise TypeError(f"{name}: {label} has dtype {tensor.dtype.name}; expected {dtype.name}; use tf.cast")


def _require_finite(result, name):
    leaves = []
    description = flatten(result, leaves)
    for label, leaf in zip(names(description, "the result"), leaves, strict=True):
        if not tf.executing_eagerly():
            raise RuntimeError(
                f"{name}: check_finite=True reads values, which a tf.function does not have; leave it out"
            )
        bad = int(tf.math.count_nonzero(~tf.math.is_finite(leaf)))
        if bad:
            raise NotFiniteError(
                f"{name}: {bad} of {tf.size(leaf)} elements of {label}, shape {tuple(leaf.shape)}, are NaN or "
                "infinite. Look for a division by zero, log or sqrt at 0, or an overflow: "
                "tf.debugging.enable_check_numerics() names the operation"
            )


def _tensor(leaf, name):
    if isinstance(leaf, (tf.RaggedTensor, tf.SparseTensor)):
        raise TypeError(f"{name}: an argument is a {type(leaf).__name__}; pass dense tensors, such as its values")
    return tf.convert_to_tensor(leaf.value if isinstance(leaf, tf.keras.Variable) else leaf)


@contextlib.contextmanager
def _quiet(xla):
    """Hold back what TensorFlow logs about operations that a way does not support: the caller is told in one line."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("CRITICAL")
    failure = None
    try:
        # XLA's compiler writes to stderr itself, which quiet_stderr would show if it saw the exception.
        with quiet_stderr() if xla else contextlib.nullcontext():
            try:
                yield
            except Exception as error:
                failure = error
    finally:
        logger.setLevel(level)
    if failure is not None:
        raise failure


def _name(f):
    return getattr(f, "__name__", None) or getattr(f, "name", None) or type(f).__name__


def _first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or ["no message"]
    # AutoGraph's messages start with "in user code:" and end with what happened.
    line = lines[-1] if lines[0].endswith(":") else lines[0]
    return f"{type(error).__name__}: {line.removeprefix(f'{type(error).__name__}: ')[:200]}"
