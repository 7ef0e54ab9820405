"""A function while a derivative of it is traced: what it is given, its evaluation, and what its graph shows."""

import contextlib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from tapelab import process
from tapelab.derivatives import wrong
from tapelab.derivatives.arguments import Container, Description, Sources, Wanted, flatten, names, unflatten
from tapelab.derivatives.errors import UNCLEAR, CannotVectorizeError, UnconnectedSourceError, explained, told_line
from tapelab.derivatives.wrong import Needs
from tapelab.graphs.libraries import is_library
from tapelab.graphs.operations import EFFECTS, with_fact
from tapelab.graphs.program import BRANCHES, LOOPS, everything, has_custom_gradient, inside, made_of, place
from tapelab.process.tensorflow import Tensors, tf

# How rows are computed: one by one in a graph or eagerly; all at once; or, the fastest, not row by row at all.
FASTEST, VECTORIZED, LOOP, EAGER = "fastest", "vectorised", "loop", "eager"
_WRITES, _CHANGES = EFFECTS["writes"], EFFECTS["writes"] + EFFECTS["changes"]
_UNREPEATABLE = _CHANGES + EFFECTS["draws"]
_HIDING = BRANCHES | LOOPS
_VALUELESS = with_fact("valueless")
_FLAT = with_fact("flat") - _VALUELESS | with_fact("leaves")


@dataclass(frozen=True)
class Signature:
    """A function with one signature of arguments, and what to differentiate it by.

    Attributes:
        name: of the derivative and the function, for messages.
        f: the function.
        sources: a `Sources`.
        taken, rest, vector: descriptions of the sources (among the arguments), of the other arguments, and of what a
            product is with.
        own: how many of the arguments' tensors are sources.
        products: how many tensors a product is with: the last ones.
        specs: the `tf.TensorSpec` of each tensor.
        unconnected: "error" or "zero".
    """

    name: str
    f: Callable[..., Any]
    sources: Sources
    taken: Description | None
    rest: Description
    vector: Description | None
    own: int
    products: int
    specs: tuple[tf.TensorSpec, ...]
    unconnected: str

    @property
    def source_names(self) -> list[str]:
        if self.taken is None:
            return self.sources.names
        return names(self.taken, f"argument {self.sources.positions[0]}" if self.sources.single else "argnums")

    @property
    def source_description(self) -> Description:
        return self.sources.description if self.taken is None else self.taken


@dataclass(frozen=True)
class Traced:
    """What an evaluation of a function showed. It is made once, and nobody changes it.

    Attributes:
        description, names, shapes, dtypes: of what the function returns, a list of each but the first.
        operations: those that it consists of, with their lines, those of functions that it calls among them.
        types: the names of their types.
        largest: bytes of the largest tensor on the way from the sources, as far as shapes are known.
        custom: the operations whose gradients were given by the function's author, each with its line.
        reasons: for each kind of derivative that TensorFlow gets wrong here, why.
    """

    description: Description
    names: list[str]
    shapes: list[tf.TensorShape]
    dtypes: list[tf.DType]
    operations: tuple[tf.Operation, ...] = ()
    types: frozenset[str] = frozenset()
    largest: int = 0
    custom: tuple[str, ...] = ()
    reasons: Mapping[Needs, str] = field(default_factory=dict)

    @property
    def changes(self) -> bool:
        """Whether an evaluation leaves a trace, such as a changed variable: then it may happen once in a call."""
        return any(kind.startswith(_CHANGES) for kind in self.types)

    @property
    def repeatable(self) -> bool:
        """Whether two evaluations agree: no random numbers are drawn, no variables changed, no Python called."""
        return not any(kind.startswith(_UNREPEATABLE) for kind in self.types)


class Recording(NamedTuple):
    """A tape, the sources that it watched, and the outputs that it has recorded."""

    tape: tf.GradientTape
    sources: list[tf.Tensor | tf.Variable]
    outputs: list[tf.Tensor]


class Call:
    """One call of a derivative while it is traced (or computed eagerly).

    Attributes:
        signature: a `Signature`.
        sources, data, vector: the tensors (or variables) to differentiate by, the other arguments' tensors, and what a
            product is with.
        how: `VECTORIZED`, `LOOP` or `EAGER`, in which way rows are computed; ``fastest`` whether there may be none.
        notes, doubts, given_up, warnings: lists of strings: for the plan, where it may be wrong, why no faster way was
            taken, and what else the caller is warned of.
    """

    def __init__(self, signature: Signature, tensors: Tensors, how: str):
        self.signature, self.name = signature, signature.name
        self.fastest, self.how = how == FASTEST, VECTORIZED if how == FASTEST else how
        end = len(tensors) - signature.products
        # A tape does not tell a tensor from itself elsewhere: in other arguments, or in the function's closure.
        self.sources: list[Any] = signature.sources.variables or [tf.identity(t) for t in tensors[: signature.own]]
        self.data, self.vector = list(tensors[signature.own : end]), list(tensors[end:])
        self.notes: list[str] = []
        self.doubts: list[str] = []
        self.given_up: list[str] = []
        self.warnings: list[str] = []
        plain = getattr(signature.f, "python_function", signature.f)
        # What a tf.function calls is called itself: the uses of the sources in it are then seen.
        self._plain = self._f = _in_sight(plain, {}) if self.how == VECTORIZED else plain
        self._traced: Traced | None = None

    @property
    def traced(self) -> Traced:
        """What the first evaluation showed."""
        assert self._traced is not None, "nothing was evaluated yet"
        return self._traced

    @property
    def shapes(self) -> list[tf.TensorShape]:
        """The sources' shapes."""
        return [source.shape for source in self.sources]

    @property
    def dtypes(self) -> list[tf.DType]:
        return [source.dtype for source in self.sources]

    @property
    def sizes(self) -> list[int]:
        """How many elements each source has; their shapes are to be known."""
        pairs = zip(self.signature.source_names, self.shapes, strict=True)
        return [_known(self.name, name, shape) for name, shape in pairs]

    @property
    def specs(self) -> list[tf.TensorSpec]:
        """A `tf.TensorSpec` for each source."""
        return [tf.TensorSpec(source.shape, source.dtype) for source in self.sources]

    @property
    def output_sizes(self) -> list[int]:
        pairs = zip(self.traced.names, self.traced.shapes, strict=True)
        return [_known(self.name, name, shape) for name, shape in pairs]

    @property
    def like_sources(self) -> Wanted:
        """What tangents have to match."""
        return Wanted(self.signature.source_description, self.shapes, self.dtypes, "sources")

    @property
    def like_outputs(self) -> Wanted:
        """What cotangents have to match."""
        traced = self.traced
        return Wanted(traced.description, traced.shapes, traced.dtypes, "function's results")

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Where a derivative is computed: what TensorFlow raises there is put into words."""
        try:
            with process.quiet_logger("CRITICAL"), wrong.differentiated(self.note):
                yield
        except CannotVectorizeError:
            raise
        except (*UNCLEAR, tf.errors.InvalidArgumentError) as error:
            known = self._traced.operations if self._traced else ()
            raise explained(self.name, error, known)  # noqa: B904 - it has its cause

    def record(
        self,
        *,
        persistent: bool = False,
        sources: Sequence[Any] | None = None,
        data: Tensors | None = None,
        single: bool = False,
        outer: tf.GradientTape | None = None,
    ) -> Recording:
        """Evaluate the function under a tape that watches the sources.

        Args:
            sources, data: what to evaluate it with, by default the call's own.
            single: whether that is a batch of one example: then an error says what that may lack.
            outer: an open tape that is to watch the sources, too.
        """
        own = self.sources if sources is None else list(sources)
        if outer is not None:
            outer.watch(own)
        with tf.GradientTape(persistent=persistent, watch_accessed_variables=False) as tape:
            tape.watch(own)
            outputs = self.evaluate(own, data, single)
        return Recording(tape, own, outputs)

    def evaluate(
        self, sources: Sequence[Any] | None = None, data: Tensors | None = None, single: bool = False
    ) -> list[tf.Tensor]:
        """Call the function, and return what it returns as a flat list of tensors."""
        own = self.sources if sources is None else sources
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        start = 0 if graph is None else len(graph.get_operations())
        try:
            result = self._called(own, self.data if data is None else data, graph, start)
        except Exception as error:
            if single and explained(self.name, error) is error:
                raise self._alone(error) from error
            raise
        flat: list[Any] = []
        description = flatten(result, flat, numbers=True)
        outputs = [tf.convert_to_tensor(output) for output in flat]
        if self._traced is None:
            self._traced = _observed(description, outputs, graph, start, own)
            self._require_outputs()
            self.require(Needs.GRADIENT)
        return outputs

    def _called(self, own: Sequence[Any], data: Tensors, graph: tf.Graph | None, start: int) -> Any:
        signature, leaves = self.signature, iter(data)
        if signature.taken is not None:
            taken = unflatten(signature.taken, iter(own))
        args, kwargs = unflatten(signature.rest, leaves)
        if signature.taken is not None:
            args = signature.sources.put(taken, args)
        try:
            return self._f(*args, **kwargs)
        except (tf.errors.OperatorNotAllowedInGraphError, TypeError) as error:
            if graph is None or self._f is not self._plain:
                raise
            if any(op.type.startswith(_CHANGES) for op in graph.get_operations()[start:]):
                raise
            # Python control flow on a tensor needs AutoGraph, which is slow to convert: only where it is needed.
            self._f = _with_autograph(self._plain)
            try:
                return self._f(*args, **kwargs)
            except Exception:
                raise error from None

    def _require_outputs(self) -> None:
        if not self.traced.names:
            raise ValueError(f"{self.name}: the function returned no tensor; return the tensor to differentiate")
        for label, dtype in zip(self.traced.names, self.traced.dtypes, strict=True):
            if not dtype.is_floating:
                raise TypeError(
                    f"{self.name}: {label} has dtype {dtype.name}; a derivative needs floating-point numbers. Leave "
                    "it out of what the function returns, or cast what it is computed from"
                )

    def note(self, text: str) -> None:
        """Add to the notes what is not among them."""
        if text not in self.notes:
            self.notes.append(text)

    def require(self, needs: Needs) -> None:
        """Raise ValueError if TensorFlow's derivative of this kind is known to be wrong; note where it may be."""
        reasons = self.traced.reasons
        for kind in (Needs.AT_POINTS, *([Needs.SECOND_AT_ZERO] if needs == Needs.SECOND else [])):
            if (why := reasons.get(kind)) and why not in self.doubts:
                self.doubts.append(why)
        for kind, why in sorted(reasons.items()):
            if kind <= needs:
                what = "the second derivative" if needs == Needs.SECOND else "the derivative"
                raise ValueError(f"{self.name}: {what} would be wrong, since {why}")

    def require_second_order(self) -> None:
        """The same for second derivatives; note which gradients, given by the function's author, are differentiated."""
        if found := next((op for op in self.traced.operations if op.type == "EagerPyFunc"), None):
            raise ValueError(
                f"{self.name}: the function calls tf.py_function, whose gradient TensorFlow does not differentiate: "
                "the second derivative would be zero. Call the Python function directly, without tf.py_function: "
                f"{place(found)}"
            )
        self.require(Needs.SECOND)
        if self.traced.custom:
            places = ", ".join(self.traced.custom)
            self.notes.append(f"the gradients given for them are differentiated, not what they compute: {places}")
            self.require_linear(second=True)

    def require_linear(self, end: int | None = None, *, second: bool = False) -> None:
        """Raise ValueError if a custom gradient is not linear in its cotangents, for ``outputs[:end]``.

        Then products with tangents are not known. Nor are second derivatives: TensorFlow comes back through the rule
        with other cotangents than those for which it gave the gradient.
        """
        if not self.traced.custom or tf.executing_eagerly():  # a trace beside is looked into
            return
        found: list[bool] = []

        def beside(*tensors: tf.Tensor) -> None:  # nothing of it is run: an evaluation may change variables
            found.append(_is_curved(Call(self.signature, tensors, self.how), end))

        tf.function(beside, autograph=False).get_concrete_function(*self.signature.specs)
        if not found[-1]:
            return
        hidden, places = not self.traced.types.isdisjoint(_HIDING), ", ".join(self.traced.custom)
        why = "is not linear in its cotangents, as one that clips or rounds them, or hides them from the tape"
        if hidden:
            why = "has to be linear in its cotangents, and TensorFlow does not show that of one in a loop or a branch"
        if second and hidden:
            self.doubts.append(f"a custom gradient {why}: {places}")
            return
        what = "products with tangents are not known"
        cure = "Take products with cotangents instead (vjp, or a Jacobian in reverse mode), or leave it out"
        if second:
            what, cure = "the second derivative would be wrong", "Leave it out, or take differences of the gradient"
        raise ValueError(f"{self.name}: {what}, since a custom gradient {why}: {places}. {cure}")

    def require_scalar(self) -> None:
        """Raise ValueError unless the function returns one scalar."""
        if [tuple(shape) if shape.rank is not None else None for shape in self.traced.shapes] != [()]:
            pairs = zip(self.traced.names, self.traced.shapes, strict=True)
            shapes = ", ".join(f"{name} {tuple(shape) if shape.rank is not None else shape}" for name, shape in pairs)
            raise ValueError(
                f"{self.name} needs a function that returns one scalar, shape (), and got {shapes}. Reduce it, for "
                "example with tf.reduce_mean; for all of its derivatives use jacobian"
            )

    def require_connected(self, gradients: Sequence[Any]) -> None:
        """Raise UnconnectedSourceError if there is a source, of these gradients, that no output depends on."""
        if self.signature.unconnected == "zero":
            return
        pairs = zip(self.signature.source_names, gradients, strict=True)
        if missing := [name for name, gradient in pairs if gradient is None]:
            raise UnconnectedSourceError(
                f"{self.name}: the function's result does not depend on {', '.join(missing)}. Either it is not used, "
                "or the way to it leaves what a tape records (NumPy, an integer dtype, tf.stop_gradient, an assigned "
                'variable). Leave the source out, or pass unconnected="zero" to get zeros for it'
            )

    def _alone(self, error: Exception) -> Exception:
        """Say what a batch of one example may lack, where the function raises on it."""
        return ValueError(
            f"{self.name}: for a batch of one example the function raises {told_line(error)}. What has a row for each "
            "example (labels, weights, a batch size in a reshape) has to be an argument: pass it as an argument of the "
            "function, and not by its closure"
        )


def dense(gradients: Sequence[Any], like: Sequence[Any]) -> list[tf.Tensor]:
    """Return gradients as tensors: zeros for None, dense for IndexedSlices."""
    return [
        tf.zeros(tf.shape(source), source.dtype) if gradient is None else tf.convert_to_tensor(gradient)
        for gradient, source in zip(gradients, like, strict=True)
    ]


def nested(outer: Description, inner: Description) -> Description:
    """Return a description with another one in the place of each leaf."""
    if isinstance(outer, Container):
        return outer._replace(parts=tuple(nested(part, inner) for part in outer.parts))
    return inner if isinstance(outer, str) else outer


def pair(first: Description, second: Description) -> Description:
    """Return the description of a pair."""
    return Container(tuple, (first, second))


def _is_curved(call: Call, end: int | None) -> bool:
    """Whether the derivative of products with cotangents depends on these: if they are linear, it does not."""
    with tf.GradientTape(watch_accessed_variables=False) as outer:
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(call.sources)
            outputs = call.evaluate()[:end]
        cotangents = [tf.ones_like(output) for output in outputs]
        outer.watch(cotangents)
        products = [p for p in tape.gradient(outputs, call.sources, cotangents) if p is not None]
    pushed = [p for p in outer.gradient(products, cotangents) if p is not None]
    # Rounded, made an integer, stopped, left to NumPy: no derivative shows that the products depend on what was.
    met = made_of([(product.ref(), ()) for product in products], _VALUELESS)
    flat = [(one.deref().op, calls) for one, calls in met if _is_flat(one.deref())]
    before = [(tensor.ref(), calls) for op, calls in flat for tensor in op.inputs]
    reached = made_of([*before, *((p.ref(), ()) for p in pushed)], _VALUELESS)
    return any((cotangent.ref(), ()) in reached for cotangent in cotangents)


def _is_flat(tensor: tf.Tensor) -> bool:
    discrete = tensor.dtype.is_integer or tensor.dtype.is_bool
    return tensor.op.type in _FLAT or (discrete and tensor.op.type not in _VALUELESS)


def _known(name: str, label: str, shape: tf.TensorShape) -> int:
    if not shape.is_fully_defined():
        raise ValueError(
            f"{name}: {label} has shape {shape}; every size must be known for a matrix of derivatives. Call it "
            "outside tf.function, give that function an input_signature with fixed shapes, or tell the size by "
            "tf.ensure_shape; products (jvp, vjp, hvp) need no sizes"
        )
    return math.prod(shape)


def _observed(
    description: Description, outputs: Tensors, graph: tf.Graph | None, start: int, sources: Sequence[Any]
) -> Traced:
    known = (
        description,
        names(description, "the function's result"),
        [output.shape for output in outputs],
        [output.dtype for output in outputs],
    )
    if graph is None:
        return Traced(*known)
    own = graph.get_operations()[start:]
    operations = tuple(everything(own))
    return Traced(
        *known,
        operations=operations,
        types=frozenset([op.type for op in operations]),
        largest=max(map(_bytes, _following(own, sources)), default=0),
        custom=tuple(dict.fromkeys(place(op) for op in operations if has_custom_gradient(op))),
        reasons=wrong.reasons(graph, own, inside(graph, sources), outputs),
    )


def _following(operations: Sequence[tf.Operation], sources: Sequence[Any]) -> Iterator[tf.Tensor]:
    """The outputs of operations, in the order of their graph, that depend on these tensors and variables."""
    met = {tensor.ref() for tensor in inside(operations[0].graph, sources)} if operations else set()
    for op in operations:
        if any(tensor.ref() in met for tensor in op.inputs):
            met.update([output.ref() for output in op.outputs])
            yield from op.outputs


def _bytes(tensor: tf.Tensor) -> int:
    shape = tensor.shape
    return math.prod([size or 1 for size in shape]) * tensor.dtype.size if shape.rank is not None else 0


def _with_autograph(f: Callable) -> Callable:
    """Return f with Python control flow on tensors converted to graph operations, as `tf.function` does it.

    `tf.function(f)` is no substitute: a call of it hides which outputs are unconnected. Without
    ``tf.__internal__.autograph``, which is no public API, f itself is returned.
    """
    try:
        autograph = tf.__internal__.autograph
        current = autograph.control_status_ctx()
        return autograph.tf_convert(f, type(current)(type(current.status).ENABLED))
    except (AttributeError, TypeError):
        return f


# What a function reads from outside --------------------------------------------------------------------------------


def _in_sight(f: Any, made: dict[Any, Any]) -> Any:
    """Return f with the Python of each tf.function that its code names, and the functions that it names, in its place.

    Where there is one, that is a copy, with globals of its own; f stays as it is. What lies inside objects or libraries
    is not looked for, and an ``input_signature``, which casts, stays a call.

    Args:
        made: what was returned for each function that was met.
    """
    if not isinstance(f, (FunctionType, tf.types.experimental.PolymorphicFunction)):
        return f
    if getattr(f, "input_signature", None):
        return f
    own = getattr(f, "python_function", f)
    if not isinstance(own, FunctionType) or is_library(own.__code__.co_filename):
        return f
    if own not in made:
        made[own] = own
        named = {name: own.__globals__[name] for name in _names_in(own.__code__) if name in own.__globals__}
        changed = {name: new for name, old in named.items() if (new := _in_sight(old, made)) is not old}
        cells = own.__closure__ or ()
        contents = [_in_sight(_content(cell), made) for cell in cells]
        seen = [c if _content(c) is new else CellType(new) for c, new in zip(cells, contents, strict=True)]
        if changed or any(new is not old for new, old in zip(seen, cells, strict=True)):
            copy = FunctionType(own.__code__, own.__globals__ | changed, own.__name__, own.__defaults__, tuple(seen))
            copy.__kwdefaults__ = own.__kwdefaults__
            vars(copy).update(vars(own))
            made[own] = copy
    return made[own]


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is empty still
        return None


class Named:
    """The objects that functions' own code names: closures, defaults, globals. They are compared by identity.

    `tf.function` and `jax.jit` do not look at them; into the objects, neither they nor this look.
    """

    def __init__(self, *functions: Any):
        self._cells: list[Any] = []
        self._globals: list[tuple[dict[str, Any], tuple[str, ...]]] = []
        self._holders: list[tuple[Any, str]] = []
        for function in functions:
            self._add(function)

    def _add(self, function: Any) -> None:
        while isinstance(function, functools.partial):
            function = function.func
        if isinstance(function, MethodType):
            function = function.__func__
        function = getattr(function, "python_function", function)  # of a tf.function
        if not isinstance(function, FunctionType):
            name = "call" if isinstance(function, tf.keras.layers.Layer) else "__call__"
            function = getattr(type(function), name, None)
            if not isinstance(function, FunctionType):
                return
        self._cells += function.__closure__ or ()
        self._holders += [(function, "__defaults__"), (function, "__kwdefaults__"), (function, "__code__")]
        used = tuple(sorted(set(_names_in(function.__code__))))
        self._globals.append((function.__globals__, used))
        if hasattr(function, "__wrapped__"):
            self._add(function.__wrapped__)

    def now(self) -> list[Any]:
        """Return the objects that the names stand for now."""
        found = [getattr(holder, name) for holder, name in self._holders]
        found += map(_content, self._cells)
        for dictionary, used in self._globals:
            found += map(dictionary.get, used)
        return found


def _names_in(code: CodeType) -> Iterator[str]:
    inner = [_names_in(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return itertools.chain(code.co_names, *inner)
