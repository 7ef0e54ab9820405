"""What every transformation shares: the compiled derivative for the arguments is looked up, or made the first time.

The way of a call: arguments → traced once for their signature → the recipe → its certificate → the result. A `Recipe`
says how one kind of derivative is computed; what it computes in a vectorised or another faster way comes with a
comparison that the plain tape makes. If they differ beyond rounding, the rows are computed one by one. What rounding
does is measured where it has to be: in a derivative of sin² + cos² it is all that there is.
"""

import contextlib
import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

from tapelab import process
from tapelab.derivatives import costs, wrong
from tapelab.derivatives.arguments import (
    LEAF,
    Argnums,
    Description,
    Sources,
    Wanted,
    dense_tensor,
    flatten,
    no_vector,
    require_alike,
    require_call,
    require_differentiable,
    require_finite,
    require_one_of,
    unflatten,
)
from tapelab.derivatives.costs import Plan
from tapelab.derivatives.errors import (
    CannotVectorizeError,
    FallbackWarning,
    explained,
    not_compiled,
    told_line,
    warn_caller,
)
from tapelab.derivatives.traced import EAGER, FASTEST, LOOP, VECTORIZED, Call, Named, Signature, pair
from tapelab.graphs.program import LOOPS, everything
from tapelab.process.tensorflow import Tensors, tf

import numpy as np
from ml_dtypes import finfo  # TensorFlow's own: knows bfloat16 too

_ROUNDINGS = 8  # how many times as much as one way of rounding changes may another one


class Certificate(NamedTuple):
    """A comparison of what was computed the faster way with what the plain tape gives.

    Attributes:
        expected: tensors of the plain tape.
        agrees: takes the outputs and these tensors, returns a scalar bool tensor.
        always: whether every call is compared, and not the first of a signature alone.
        what: what it means if they differ, in words.
        plain: how to compute then, `LOOP` or `VECTORIZED`.
        together: whether what is compared has to come from one evaluation, since random numbers are drawn.
    """

    expected: list[tf.Tensor]
    agrees: Callable[[Tensors, Tensors], tf.Tensor]
    what: str
    plain: str = LOOP
    always: bool = False
    together: bool = False


@dataclasses.dataclass
class Computed:
    """What a recipe computed.

    Attributes:
        outputs: a flat list of tensors.
        structure: the description of what the caller gets.
        plan: a `Plan`, without how it is compiled.
        certificate: a `Certificate`; None if nothing was computed another way than the plain tape's.
        value: the function's value, from the same evaluation; None if there was none of the whole arguments.
        value_structure: its description, if it is not that of what the function returns.
    """

    outputs: list[tf.Tensor]
    structure: Description
    plan: Plan
    certificate: Certificate | None = None
    value: list[tf.Tensor] | None = None
    value_structure: Description | None = None


class Recipe:
    """How to compute one kind of derivative. Subclasses hold the options that are theirs.

    Attributes:
        name: for messages.
        vector: the keyword of the vector that a call takes beside the arguments ("tangents", "cotangents", "vector"),
            if there is one.
        functions: what is evaluated besides the function itself: looked at for what their code names.
    """

    name: str
    vector: str | None = None
    functions: tuple[Any, ...] = ()

    def compute(self, call: Call) -> Computed:
        """Compute the derivative, in the graph that is being built or eagerly, after checking that there is one."""
        raise NotImplementedError

    def numbers(self, result: Any) -> Any:
        """Return the nested tensors of a result that ``check_finite`` looks at."""
        return result

    def gains_from_xla(self, call: Call, computed: Computed, types: frozenset[str]) -> bool:
        """Whether XLA is expected to be faster, for a program of operations of these types that it compiles well."""
        return call.traced.largest <= costs.XLA_ONE_PASS

    def require_vector(self, call: Call, wanted: Wanted) -> None:
        """Raise unless the vector matches what it has to."""
        if call.signature.vector is not None:
            require_alike(call.name, self.vector or "", call.signature.vector, call.vector, wanted)


class Entry(NamedTuple):
    """What was made for one signature.

    Attributes:
        run: takes the arguments' tensors, returns the outputs.
        taped: likewise, where a tape is open.
        compared: whether the last output says that the others agree with the plain tape.
        plain: makes the entry that computes row by row.
    """

    plan: Plan
    structure: Description
    run: Callable[[Tensors], list[tf.Tensor]]
    taped: Callable[[Tensors], list[tf.Tensor]]
    compared: bool
    plain: "Callable[[Tensors], tuple[Entry, list[tf.Tensor]]] | None"
    named: list[Any]
    operations: tuple[tf.Operation, ...]


class Transform:
    """A derivative of a function: call it like the function, with the vector as a keyword if it multiplies by one.

    It is compiled once for each structure, shapes and dtypes of the arguments; Python numbers and strings among them
    are compiled in, as `tf.function` does. What the function reads from Python is read when it is traced, as under
    `tf.function`: if an object that its own code names (a closure, a default, a global) has become another one, it is
    traced anew; a change inside an object is not seen. Pass what changes as tensors or variables, or make the
    transform anew.

    The 64 signatures that were used last stay compiled. Called inside a `tf.function`, the derivative becomes a part of
    the caller's graph; rows are then compared with the plain tape at random numbers, while it is traced. Where the same
    tensor is a source and something else too, it is a constant there.
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
        self._compile = compile
        self._unconnected = unconnected
        self._check_finite = check_finite
        self._entries: OrderedDict[Hashable, Entry] = OrderedDict()
        self._building = threading.RLock()
        self._named = Named(f, *recipe.functions)
        self._told: set[str] = set()
        self._programs = 0
        self.__name__ = f"{recipe.name}({getattr(f, '__name__', None) or getattr(f, 'name', None) or type(f).__name__})"

    def __repr__(self) -> str:
        return f"<{self.__name__}>"

    def __reduce__(self) -> tuple[Any, ...]:
        # A function that holds a transform can be pickled: what was compiled stays here.
        options = ("_return_value", "_compile", "_unconnected", "_check_finite")
        own = {name.removeprefix("_"): getattr(self, name) for name in options}
        return _made, (self._differentiated, self._recipe, self._sources, own)

    @tf.autograph.experimental.do_not_convert
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        key, signature, tensors = self._flattened(args, kwargs)
        if not tf.executing_eagerly():
            outputs, structure = self._inline(signature(), tensors)
        else:
            named = self._named.now()
            key = (key, *map(id, named))
            entry = self._entries.get(key)
            if entry is None:
                entry, outputs = self._built(key, named, signature(), tensors)
            else:
                outputs = self._run(key, entry, tensors)
            structure = entry.structure
        result = outputs[0] if structure is LEAF else unflatten(structure, iter(outputs))
        if self._check_finite:
            numbers = self._recipe.numbers
            require_finite((result[0], numbers(result[1])) if self._return_value else numbers(result), self.__name__)
        return result

    @tf.autograph.experimental.do_not_convert
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Return the `Plan` of a call with these arguments. New ones are compiled for and computed with once.

        Raises:
            What the call itself raises when it is prepared; nothing about the values.
        """
        key, signature, tensors = self._flattened(args, kwargs)
        if not tf.executing_eagerly():
            return dataclasses.replace(self._computed(signature(), tensors, FASTEST)[1].plan, compiled="graph")
        named = self._named.now()
        key = (key, *map(id, named))
        if key not in self._entries:
            self._built(key, named, signature(), tensors)
        return self._entries[key].plan

    def _flattened(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Hashable, Callable[[], Signature], list[tf.Tensor]]:
        """Return what the arguments are looked up by, what makes their `Signature`, and their tensors."""
        if tf.distribute.has_strategy():
            raise RuntimeError(
                f"{self.__name__}: called in the scope of a {type(tf.distribute.get_strategy()).__name__}, whose "
                "variables have a copy on each device. Derivatives are computed on one device: call it outside"
            )
        # What becomes a part of a graph reads what the scope says, as where Keras infers a layer's shape.
        if _in_stateless_scope() and (tf.executing_eagerly() or self._sources.variables is not None):
            raise RuntimeError(
                f"{self.__name__}: called in a keras.StatelessScope or in stateless_call, where variables have other "
                "values than what is compiled reads. Call it outside, with the variables assigned"
            )
        recipe, sources = self._recipe, self._sources
        vector = None
        if recipe.vector:
            try:
                vector = kwargs.pop(recipe.vector)  # the dictionary is this call's own
            except KeyError:
                raise no_vector(self.__name__, recipe.vector, self._differentiated, args, kwargs) from None
        leaves: list[Any] = []
        taken, rest = None, args
        if sources.variables is None:
            chosen, rest = sources.take(args, self.__name__)
            taken = flatten(chosen, leaves, numbers=True)
        own = len(leaves)
        described = flatten((rest, kwargs), leaves)
        start = len(leaves)
        product = flatten(vector, leaves, numbers=True) if recipe.vector else None
        tensors = [leaf if isinstance(leaf, tf.Tensor) else dense_tensor(leaf, self.__name__) for leaf in leaves]
        shapes = tuple([(tensor.dtype, tensor.shape) for tensor in tensors])

        def signature() -> Signature:
            require_call(self.__name__, recipe.vector, self._differentiated, rest, kwargs)
            _require_plain(self.__name__, tensors)
            specs = tuple([tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors])
            end = len(leaves) - start
            made = Signature(
                self.__name__,
                self._differentiated,
                sources,
                taken,
                described,
                product,
                own,
                end,
                specs,
                self._unconnected,
            )
            require_differentiable(self.__name__, made.source_names, sources.variables or tensors[:own])
            return made

        return (taken, described, product, shapes), signature, tensors

    # In the caller's graph -----------------------------------------------------------------------------------------

    def _inline(self, signature: Signature, tensors: Tensors) -> tuple[list[tf.Tensor], Description]:
        """Make the derivative a part of the graph that is being built."""
        call, computed = self._computed(signature, tensors, FASTEST)
        self._warn(call)
        outputs, certificate = computed.outputs, computed.certificate
        if certificate is None:
            return outputs, computed.structure
        if not call.traced.repeatable:  # a second evaluation would be another one
            return self._computed(signature, tensors, LOOP)[1].outputs, computed.structure
        agreed = None if certificate.always else self._agrees_beforehand(signature)
        if agreed:
            return outputs, computed.structure
        if agreed is not None:
            self._tell(f"is computed a slower way, since {certificate.what}", FallbackWarning)
            return self._computed(signature, tensors, certificate.plain)[1].outputs, computed.structure
        chosen = tf.cond(
            certificate.agrees(outputs, certificate.expected),
            lambda: [tf.identity(output) for output in outputs],
            lambda: self._computed(signature, tensors, LOOP)[1].outputs,
        )
        for output, like in zip(chosen, outputs, strict=True):
            output.set_shape(like.shape)
        return chosen, computed.structure

    def _agrees_beforehand(self, signature: Signature) -> bool | None:
        """Whether the rows agree with the plain tape at random numbers, outside the graph that is being built.

        A conditional in the caller's graph would ask at every call, and XLA does not compile its derivative by
        variables. None where it cannot be said: what the function uses is in the caller's graph, say.
        """

        def program(*tensors: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor, tf.Tensor]:
            computed = self._computed(signature, tensors, FASTEST)[1]
            outputs, certificate = computed.outputs, computed.certificate
            assert certificate is not None
            numbers = [tf.reduce_all(tf.math.is_finite(part)) for part in certificate.expected]
            return outputs, certificate.agrees(outputs, certificate.expected), tf.reduce_all(tf.stack(numbers))

        try:
            concrete = tf.function(program, autograph=False).get_concrete_function(*signature.specs)
            if any(tf.is_symbolic_tensor(captured) for captured in concrete.captured_inputs):
                return None
            with tf.init_scope():
                drawn = [_random(spec, seed) for seed, spec in enumerate(signature.specs)]
                outputs, agrees, finite = concrete(*drawn)
                if not finite:
                    return None
                if agrees:
                    return True
            return self._is_rounding(signature, drawn, outputs)
        except Exception:  # whatever the function raises at these numbers
            return None

    def _is_rounding(self, signature: Signature, tensors: Tensors, outputs: Tensors) -> bool:
        """Whether outputs differ from those of rows one by one by no more than these do where f is rounded otherwise.

        That is asked where a comparison has failed: its terms may have cancelled, and left their rounding alone.
        """
        nudged = dataclasses.replace(signature, f=_nudged(signature.f))

        def program(*tensors: tf.Tensor) -> list[list[tf.Tensor]]:
            return [self._computed(own, tensors, LOOP)[1].outputs for own in (signature, nudged)]

        concrete = tf.function(program, autograph=False).get_concrete_function(*signature.specs)
        with tf.init_scope():
            parts = zip(outputs, *concrete(*tensors), strict=True)
            return all(np.all(abs(a - b) <= _ROUNDINGS * tf.reduce_max(abs(b - c))) for a, b, c in parts)

    def _computed(self, signature: Signature, tensors: Tensors, how: str) -> tuple[Call, Computed]:
        """Let the recipe compute, where rows cannot be vectorised one by one."""
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        start = 0 if graph is None else len(graph.get_operations())
        call = Call(signature, tensors, how)
        try:
            with call.explaining():
                computed = self._recipe.compute(call)
                if how in (FASTEST, VECTORIZED) and graph is not None:
                    wrong.require_safe(graph.get_operations()[start:], call.traced.operations)
        except CannotVectorizeError as error:
            if how not in (FASTEST, VECTORIZED):
                raise
            call, computed = self._computed(signature, tensors, LOOP)
            gain = ". Give a recurrent layer of Keras unroll=True" if call.traced.types & LOOPS else ""
            call.given_up.insert(0, f"rows at once: {error}{gain}")
            return call, computed
        if self._return_value:
            value = computed.value
            if value is None:
                if not call.traced.repeatable:
                    raise ValueError(
                        f"{self.__name__}: the function draws random numbers, changes variables or calls Python, and "
                        "its value would be of another evaluation than the derivative. Leave out return_value=True"
                    )
                value = call.evaluate()
            computed.outputs = [*value, *computed.outputs]
            computed.structure = pair(computed.value_structure or call.traced.description, computed.structure)
            if computed.certificate is not None:
                inner, count = computed.certificate.agrees, len(value)
                computed.certificate = computed.certificate._replace(
                    agrees=lambda outputs, expected: inner(outputs[count:], expected)
                )
        return call, computed

    # Compiled ------------------------------------------------------------------------------------------------------

    def _built(
        self, key: Hashable, named: list[Any], signature: Signature, tensors: Tensors, how: str = FASTEST
    ) -> tuple[Entry, list[tf.Tensor]]:
        """Make the entry for a signature, and call it once."""
        with self._building:
            make = self._eager_entry if self._compile == "eager" else self._entry
            try:
                entry, outputs = make(key, named, signature, tensors, how)
            except tf.errors.InvalidArgumentError as error:
                raise explained(self.__name__, error)  # noqa: B904 - it has its cause
            self._entries[key] = entry
            while len(self._entries) > costs.SIGNATURES:
                self._entries.popitem(last=False)
            return entry, outputs

    def _entry(
        self, key: Hashable, named: list[Any], signature: Signature, tensors: Tensors, how: str, lost: str = ""
    ) -> tuple[Entry, list[tf.Tensor]]:
        made: list[tuple[Call, Computed]] = []

        def program(*tensors: tf.Tensor) -> list[tf.Tensor]:
            call, computed = self._computed(signature, tensors, how)
            made[:] = [(call, computed)]
            certificate, extra = computed.certificate, []
            if certificate is not None:
                always = certificate.always
                extra = [certificate.agrees(computed.outputs, certificate.expected)] if always else certificate.expected
            return [*computed.outputs, *extra]

        whole = tf.function(program, autograph=False).get_concrete_function(*signature.specs)
        ((call, computed),) = made
        if how != LOOP and call.how == LOOP and call.traced.changes:
            # In a graph of its own: what was begun would change variables, too.
            return self._entry(key, named, signature, tensors, LOOP, call.given_up[0])
        if lost:
            call.given_up.insert(0, lost)
        certificate, count = computed.certificate, len(computed.outputs)
        xla = self._takes_xla(call, computed, list(everything(whole.graph.get_operations())))
        always = certificate is not None and certificate.always
        kept = count + always
        taped = direct(whole if kept == len(whole.outputs) else _part(whole, slice(kept), False, signature))
        run = direct(_part(whole, slice(kept), True, signature)) if xla else taped
        first, compiles = (taped, False) if _recording() else (run, xla)
        try:
            outputs, agrees = self._called_first(whole, first, tensors, call, computed, compiles)
        except tf.errors.InvalidArgumentError as error:
            if certificate is None or how == LOOP or call.traced.changes:
                raise explained(self.__name__, error, call.traced.operations)  # noqa: B904 - it has its cause
            failed = certificate._replace(what=f"the faster way raises {told_line(error)}", plain=LOOP)
            return self._plain(key, named, signature, tensors, failed)
        measured = not always and call.traced.repeatable
        agrees = agrees or (measured and self._is_rounding(signature, tensors, outputs[:count]))
        if not agrees and certificate is not None:
            if call.traced.changes:
                raise RuntimeError(
                    f"{self.__name__}: {certificate.what}, and computing them one by one would change variables twice. "
                    "Take what changes out of the function"
                )
            return self._plain(key, named, signature, tensors, certificate, quiet=always)
        self._warn(call)
        plan = dataclasses.replace(
            computed.plan,
            compiled="xla" if xla else "graph",
            given_up=(*call.given_up, *computed.plan.given_up),
            notes=tuple(dict.fromkeys([*call.notes, *computed.plan.notes])),
        )

        def plain(tensors: Tensors) -> tuple[Entry, list[tf.Tensor]]:
            assert certificate is not None
            return self._plain(key, named, signature, tensors, certificate)

        entry = Entry(
            plan, computed.structure, run, taped, always, plain if always else None, named, call.traced.operations
        )
        return entry, outputs[:count]

    def _called_first(
        self,
        whole: Any,
        run: Callable[[Tensors], list[tf.Tensor]],
        tensors: Tensors,
        call: Call,
        computed: Computed,
        xla: bool,
    ) -> tuple[list[tf.Tensor], bool]:
        """Return the outputs, and whether they agree with the plain tape."""
        certificate, count = computed.certificate, len(computed.outputs)
        if certificate is None:
            return self._first(run, tensors, xla), True
        if certificate.always:
            outputs = self._first(run, tensors, xla)
            return outputs, bool(outputs[count])
        if certificate.together or not call.traced.repeatable:  # a second evaluation would be another one
            found = direct(whole)(tensors)
            agrees = bool(certificate.agrees(found[:count], found[count:]))
            # Later calls are of another program, and that would begin with the same random numbers again.
            return found[:count] if call.traced.changes else self._first(run, tensors, xla), agrees
        outputs = self._first(run, tensors, xla)
        expected = direct(_part(whole, slice(count, None), False, call.signature))(tensors)
        return outputs, bool(certificate.agrees(outputs, expected))

    def _plain(
        self,
        key: Hashable,
        named: list[Any],
        signature: Signature,
        tensors: Tensors,
        certificate: Certificate,
        quiet: bool = False,
    ) -> tuple[Entry, list[tf.Tensor]]:
        """Make the entry that computes in the slower way, and say so; not where a first try was for nothing."""
        if not quiet:
            self._tell(f"is computed a slower way, since {certificate.what}", FallbackWarning)
        entry, outputs = self._entry(key, named, signature, tensors, certificate.plain)
        plan = dataclasses.replace(entry.plan, given_up=(certificate.what, *entry.plan.given_up))
        return entry._replace(plan=plan), outputs

    def _takes_xla(self, call: Call, computed: Computed, operations: Sequence[tf.Operation]) -> bool:
        """Whether XLA compiles it, decided before it does."""
        if self._compile == "xla":
            for why in wrong.under_xla(operations, call.traced.operations):
                self._tell(f'may be wrong with compile="xla": {why}', FallbackWarning)
            return True
        types = frozenset([op.type for op in operations])
        well = types - costs.OURS <= costs.COMPILED_WELL and call.traced.types.isdisjoint(costs.OURS)
        if self._compile != "auto" or self._programs >= costs.PROGRAMS or not well:
            return False
        if any(wrong.under_xla(operations, call.traced.operations)):
            return False
        return self._recipe.gains_from_xla(call, computed, types)

    def _first(self, run: Callable[[Tensors], list[tf.Tensor]], tensors: Tensors, xla: bool) -> list[tf.Tensor]:
        if not xla:
            return run(tensors)
        self._programs += 1
        try:
            with process.quiet_stderr(shown_for=()):  # XLA's compiler writes there
                return run(tensors)
        except (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError) as error:
            raise not_compiled(self.__name__, error)  # noqa: B904 - it has its cause

    def _run(self, key: Hashable, entry: Entry, tensors: Tensors) -> list[tf.Tensor]:
        with contextlib.suppress(KeyError):
            self._entries.move_to_end(key)
        try:
            outputs = (entry.taped if _recording() else entry.run)(tensors)
        except tf.errors.InvalidArgumentError as error:
            raise explained(self.__name__, error, entry.operations)  # noqa: B904 - it has its cause
        if entry.compared:
            *outputs, agrees = outputs
            if not agrees and entry.plain is not None:
                self._entries[key], outputs = entry.plain(tensors)
        return outputs

    def _eager_entry(
        self, key: Hashable, named: list[Any], signature: Signature, tensors: Tensors, how: str
    ) -> tuple[Entry, list[tf.Tensor]]:
        """Compute without a graph at every call; a trace beside shows what is wrong, where there can be one."""
        operations: tuple[tf.Operation, ...] = ()
        notes: list[str] = []

        def program(*tensors: tf.Tensor) -> list[tf.Tensor]:
            call, computed = self._computed(signature, tensors, LOOP)
            found[:] = [call]
            return computed.outputs

        found: list[Call] = []
        try:
            tf.function(program, autograph=False).get_concrete_function(*signature.specs)
            operations = found[0].traced.operations
            self._warn(found[0])
        except Exception as error:  # whatever the function raises in a graph
            if isinstance(error, (ValueError, TypeError)) or type(error) is LookupError:
                raise
            notes.append(f"it cannot be traced, and was not looked into: {told_line(error)}")
        call, computed = self._computed(signature, tensors, EAGER)

        def run(tensors: Tensors) -> list[tf.Tensor]:
            return self._computed(signature, tensors, EAGER)[1].outputs

        plan = dataclasses.replace(computed.plan, compiled="eager", notes=(*call.notes, *notes))
        return Entry(plan, computed.structure, run, run, False, None, named, operations), computed.outputs

    # Told ----------------------------------------------------------------------------------------------------------

    def _warn(self, call: Call) -> None:
        for doubt in call.doubts:
            self._tell(f"may be wrong at some points, since {doubt}", FallbackWarning)
        for warning in call.warnings:
            self._tell(warning, FallbackWarning)
        for reason in call.given_up:
            self._tell(f"is computed a slower way, without {reason}", FallbackWarning)

    def _tell(self, message: str, category: type[Warning]) -> None:
        if message not in self._told:
            self._told.add(message)
            warn_caller(f"{self.__name__} {message}", category)


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
    own: dict[str, Any] = {"compile": compile, "unconnected": unconnected, "check_finite": check_finite}
    return Transform(f, recipe, Sources(argnums, wrt), return_value=return_value, **own)


def _made(f: Callable, recipe: Recipe, sources: Sources, options: dict[str, Any]) -> Transform:
    return Transform(f, recipe, sources, **options)


def _part(whole: Any, part: slice, xla: bool, signature: Signature) -> Any:
    """Return some of a concrete function's results: what only the others need is not computed."""

    def program(*tensors: tf.Tensor) -> list[tf.Tensor]:
        return whole(*tensors)[part]

    return tf.function(program, autograph=False, jit_compile=xla).get_concrete_function(*signature.specs)


def direct(concrete: Any) -> Callable[[Tensors], list[tf.Tensor]]:
    """Return a function that calls a concrete function with a list of tensors, in the order of its inputs.

    ``ConcreteFunction._call_flat`` skips binding the arguments to a signature, which is about half of what calling a
    small function costs. Without it the public call is used.
    """
    if not hasattr(concrete, "_call_flat"):
        return lambda tensors: concrete(*tensors)
    call, captured = concrete._call_flat, concrete.captured_inputs
    return lambda tensors: call(tensors, captured)


def _nudged(f: Callable[..., Any]) -> Callable[..., Any]:
    """Return f times a number so near to 1 that it changes nothing but how all that follows is rounded."""

    def near(*args: Any, **kwargs: Any) -> Any:
        leaves: list[Any] = []
        description = flatten(f(*args, **kwargs), leaves, numbers=True)
        results = [tf.convert_to_tensor(leaf) for leaf in leaves]
        found = [y * tf.cast(1 + 4 * float(finfo(y.dtype.as_numpy_dtype).eps), y.dtype) for y in results]
        return unflatten(description, iter(found))

    return near


def _random(spec: tf.TensorSpec, seed: int) -> tf.Tensor:
    """Random numbers that most functions take: between 0 and 1, or one of them; unknown sizes are alike."""
    drawn = np.random.default_rng(seed).uniform(size=[3 if size is None else size for size in spec.shape])
    return tf.cast(tf.constant(drawn if spec.dtype.is_floating or spec.dtype.is_complex else drawn > 0.5), spec.dtype)


def _recording() -> bool:
    """Return whether a tape or accumulator is open that could record a call; True without ``could_possibly_record``."""
    return _could_record is None or _could_record()


try:
    from tensorflow.python.eager.record import could_possibly_record as _could_record
except ImportError:
    _could_record = None


def _in_stateless_scope() -> bool:
    """Whether a `keras.StatelessScope` is open; False without ``in_stateless_scope``, which is no public name."""
    return _stateless is not None and _stateless()


try:
    from keras.src.backend.common.stateless_scope import in_stateless_scope as _stateless
except ImportError:
    _stateless = None


def _require_plain(name: str, tensors: Tensors) -> None:
    for tensor in tensors:
        if getattr(tensor, "_keras_mask", None) is not None:
            raise ValueError(
                f"{name}: an argument of shape {tuple(tensor.shape)} carries a Keras mask, as from "
                "Embedding(mask_zero=True). Layers in the function would not find it: pass the mask as an argument of "
                "its own, hand it to them with mask=, and pass tf.identity(x), which has none"
            )
