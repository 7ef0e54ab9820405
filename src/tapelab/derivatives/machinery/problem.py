"""One function with one signature of arguments: what to differentiate, by what, and what is known of it."""

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from tapelab.derivatives.machinery.arguments.context import stateless_scope_unchanged
from tapelab.derivatives.machinery.arguments.structures import flatten, names, unflatten
from tapelab.derivatives.machinery.errors import SingularMatrixError, UnconnectedSourceError
from tapelab.derivatives.machinery.failures import line_of, singular
from tapelab.derivatives.machinery.outside.observed import observed
from tapelab.derivatives.machinery.private import with_autograph
from tapelab.derivatives.machinery.reissue import CALLS, has_custom_gradient, place
from tapelab.derivatives.wrong.cure import Cure
from tapelab.derivatives.wrong.gaps import Needs, gaps, operations_of, placeholders
from tapelab.runtime import tf

# What TensorFlow says of an operation without a gradient.
_NO_GRADIENT = re.compile(r"(?:gradient registry has no entry for: |No gradient defined for .*\(op type: )(\w+)")
_UNSEEN = "{} was not looked into: whether TensorFlow differentiates it rightly is not known"
# What TensorFlow's gradients say of themselves, by part of the message.
_REFUSED = {
    "Gradient not defined for fast=False": (
        "TensorFlow has no derivative of tf.linalg.lstsq(…, fast=False). Leave fast=False out where the matrices have "
        "full rank, or multiply by tf.linalg.pinv"
    ),
}
# What XLA does not handle in reverse mode, and takes seconds to find out.
LOOPS = {"While", "StatelessWhile"}
# Operations that start so change something: a variable, a generator's state, an iterator, whatever Python can.
_CHANGING = (
    "Assign",
    "EagerPyFunc",
    "IteratorGetNext",
    "LookupTableInsert",
    "PyFunc",
    "ResourceApply",
    "ResourceScatter",
    "ResourceStridedSliceAssign",
    "Rng",
    "StatefulRandom",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
)
# These draw random numbers, and nothing else tells how often.
_DRAWING = ("Multinomial", "ParameterizedTruncatedNormal", "Random", "TruncatedNormal")

# What `Problem` finds out by calling the function.
_OBSERVED = ("output_names", "output_shapes", "output_dtypes", "output_description", "connected")

# The evaluations of functions that somebody wants to know of.
_seen: ContextVar[list[tuple[list[tf.Tensor], list[tf.Tensor]]] | None] = ContextVar("seen", default=None)


@contextlib.contextmanager
def evaluations() -> Iterator[list[tuple[list[tf.Tensor], list[tf.Tensor]]]]:
    """Collect what `Problem.evaluate` does inside: pairs of the tensors that it was given and those it returned."""
    token = _seen.set([])
    try:
        yield _seen.get()
    finally:
        _seen.reset(token)


def lacks_a_gradient(error: Exception) -> re.Match | None:
    """Whether an error says that TensorFlow has no gradient of an operation; its first group is the type."""
    return _NO_GRADIENT.search(str(error))


class Sources:
    """What to differentiate with respect to: some of the arguments, or variables that the function reads.

    Args:
        argnums: the position of an argument, or a tuple of positions; each argument may be nested.
        wrt: variables, nested; then every argument is data.

    Raises:
        TypeError: if ``wrt`` holds anything but variables, or ``argnums`` anything but integers.
        ValueError: if there is no source, or a variable is listed twice.
    """

    def __init__(self, argnums, wrt):
        self.variables = None
        if wrt is None:
            self.positions = argnums if isinstance(argnums, tuple) else (argnums,)
            self.single = not isinstance(argnums, tuple)
            if not self.positions:
                raise ValueError("argnums is empty: there is no source; name at least one argument, such as argnums=0")
            for position in self.positions:
                if isinstance(position, bool) or not isinstance(position, int) or position < 0:
                    raise TypeError(f"argnums is {argnums!r}; expected a position from 0, or a tuple of positions")
            return
        if argnums != 0:
            raise ValueError(f"wrt and argnums={argnums!r} are both given; the sources are variables or arguments")
        leaves = []
        self.description = flatten(wrt, leaves, numbers=True)
        self.names = []
        self.variables = []
        for name, leaf in zip(names(self.description, "wrt"), leaves, strict=True):
            variable = leaf.value if isinstance(leaf, tf.keras.Variable) else leaf
            if not isinstance(variable, tf.Variable):
                raise TypeError(
                    f"{name} is a {type(leaf).__name__}; expected a variable. To differentiate with respect to a "
                    "tensor, make it an argument of the function and name it with argnums="
                )
            label = getattr(leaf, "path", variable.name)
            if any(variable is other for other in self.variables):
                raise ValueError(f"{name}, the variable {label!r}, is listed twice in wrt; list each variable once")
            self.variables.append(variable)
            self.names.append(f"{name} ({label!r})")
        if not self.variables:
            raise ValueError(
                f"wrt is {wrt!r}: there is no source. A Keras model has variables once it is built: call it on a batch "
                "first, then pass model.trainable_variables"
            )

    def take(self, args: Sequence[Any], name: str) -> tuple[Any, tuple[Any, ...]]:
        """Split positional arguments into the sources and the rest, which has None in their places."""
        try:
            taken = tuple([args[position] for position in self.positions])
        except IndexError:
            raise TypeError(
                f"{name} differentiates with respect to argument {max(self.positions)}, but got {len(args)} "
                "positional arguments; pass the sources by position, or set argnums="
            ) from None
        rest = list(args)
        for position in self.positions:
            rest[position] = None
        return taken[0] if self.single else taken, tuple(rest)

    def put(self, taken: Any, rest: Iterable[Any]) -> list[Any]:
        """Undo `take`."""
        args = list(rest)
        for position, arg in zip(self.positions, (taken,) if self.single else taken, strict=True):
            args[position] = arg
        return args


class Problem:
    """A function, its sources and the signature of its arguments, while a derivative of it is traced and compiled.

    `probe` fills in what is known of the outputs. A derivative is then computed from a flat list of tensors: the
    sources (unless they are variables), the other arguments' tensors, and the tangent or cotangent vector if there is
    one.

    Attributes:
        name: of the derivative and the function, for messages.
        source_names, source_shapes, source_dtypes: lists, one entry for each source tensor or variable.
        vector_size: how many tensors the tangents, the cotangents or the vector have.
        data_start, data_shapes: where the other arguments' tensors start, and their shapes.
        output_names, output_shapes, output_dtypes: the same for what the function returns.
        connected: bool for each output and source: whether the output depends on the source.
        traceable: whether the function can be traced into a graph.
        operations: the set of the names of the operations that it consists of, as traced or as it ran once.
        constants: a Counter of the function's constants and operations, to tell whether two traces differ.
        compiled_loops: whether there is a loop in it and XLA compiles a part of it: what a loop there keeps for the way
            back does not leave XLA, so that a derivative has to be compiled as a whole.
        gap: why TensorFlow's second derivatives of it would lack a part, or None.
        custom_gradients: whether a gradient in it was given with `tf.custom_gradient` or an override.
        custom_places: the operations whose gradients were given so, each with its line.
        doubts: a list of strings, why what is asked for may be wrong at some points: the caller is warned.
        remarks: a list of strings for the `Plan`: what was given up.
        notes: a list of strings for the `Plan`: what differs from plain TensorFlow.
        cure: a `Cure`, what was met of TensorFlow's wrong derivatives.
        layout: for a sparse matrix, where its entries are and how they are found; set by its recipe.
        largest: bytes of the largest tensor on the way to the result and back, as far as that is known.
    """

    def __init__(self, name, f, sources, taken, rest, tensors, *, vector_size=0):
        self.name = name
        self.vector_size = vector_size
        self._f = f
        self._sources = sources
        self._rest = rest
        if sources.variables is None:
            self.source_description = taken
            label = f"argument {sources.positions[0]}" if sources.single else "argnums"
            self.source_names = names(taken, label)
            own = tensors[: len(self.source_names)]
        else:
            self.source_description = sources.description
            self.source_names = sources.names
            own = sources.variables
        if not own:
            raise ValueError(f"{name}: the sources hold no tensor; there is nothing to differentiate with respect to")
        for label, source in zip(self.source_names, own, strict=True):
            if not source.shape.is_fully_defined():
                raise ValueError(
                    f"{name}: the source {label} has shape {source.shape}; every size must be known. Make the variable "
                    "without shape=, or pass its value as an argument"
                )
        self.source_shapes = [tuple(source.shape) for source in own]
        self.source_dtypes = [source.dtype for source in own]
        for label, dtype in zip(self.source_names, self.source_dtypes, strict=True):
            if dtype.is_complex:
                raise TypeError(
                    f"{name}: the source {label} has dtype {dtype.name}; derivatives are by real numbers. Pass the "
                    "real and the imaginary part as two arguments, and use tf.complex inside the function"
                )
            if not dtype.is_floating:
                raise TypeError(
                    f"{name}: the source {label} has dtype {dtype.name}; a derivative needs floating-point numbers. "
                    "Pass 3.0 instead of 3, or tf.cast(…, tf.float32)"
                )
        self.data_start = 0 if sources.variables is not None else len(own)
        self.data_shapes = [tuple(tensor.shape) for tensor in tensors[self.data_start :]]
        self.data_dtypes = [tensor.dtype for tensor in tensors[self.data_start :]]
        self.traceable = True
        self.operations = set()
        self.constants = Counter()
        self.compiled_loops = False
        self.gaps: dict[Needs, str] = {}
        self.custom_gradients = False
        self.custom_places: list[str] = []
        self.doubts = []
        self.remarks = []
        self.notes = []
        self.cure = Cure()
        self.layout: Any = None
        self.largest = max(
            math.prod(shape) * dtype.size for shape, dtype in zip(self.source_shapes, self.source_dtypes, strict=True)
        )

    @property
    def source_sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.source_shapes]

    @property
    def output_sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.output_shapes]

    @property
    def repeatable(self) -> bool:
        """Whether two evaluations agree: no random numbers are drawn, no variables changed, no Python called."""
        return repeatable(self.operations)

    @property
    def changes(self) -> bool:
        """Whether an evaluation leaves a trace, such as a changed variable: then it may happen once in a call."""
        return any(operation.startswith(_CHANGING) for operation in self.operations)

    @property
    def source_specs(self) -> list[tf.TensorSpec]:
        """The `tf.TensorSpec` of each source."""
        pairs = zip(self.source_shapes, self.source_dtypes, strict=True)
        return [tf.TensorSpec(shape, dtype) for shape, dtype in pairs]

    def sources(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor | tf.Variable]:
        """Return what a tape is to watch: the variables, or the first of the tensors."""
        return self._sources.variables or list(tensors[: self.data_start])

    def apart(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the tensors, with copies for sources: a tape does not tell a tensor from itself elsewhere.

        Elsewhere is another source, the data, or the function's closure. In a graph each input is a tensor of its own.
        """
        return [*map(tf.identity, tensors[: self.data_start]), *tensors[self.data_start :]]

    def vector(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the last tensors: the tangents of all sources, or the cotangents of all outputs."""
        return list(tensors[len(tensors) - self.vector_size :])

    def evaluate(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Call the function, and return what it returns as a flat list of tensors."""
        leaves = iter(tensors)
        if self._sources.variables is None:
            taken = unflatten(self.source_description, leaves)
        args, kwargs = unflatten(self._rest, leaves)
        if self._sources.variables is None:
            args = self._sources.put(taken, args)
        outputs = []
        with self.cure.applied(), stateless_scope_unchanged(self.name):
            result = self._f(*args, **kwargs)
        self.output_description = flatten(result, outputs, numbers=True)
        outputs = [tf.convert_to_tensor(output) for output in outputs]
        if (seen := _seen.get()) is not None:
            seen.append((list(tensors), outputs))
        return outputs

    def structured(self, flat: Iterable[Any]) -> Any:
        """Give a flat list, one entry for each source, the sources' structure."""
        return unflatten(self.source_description, iter(flat))

    def structured_outputs(self, flat: Iterable[Any]) -> Any:
        """Give a flat list, one entry for each output, the outputs' structure."""
        return unflatten(self.output_description, iter(flat))

    def probe(self, tensors: Sequence[tf.Tensor]) -> None:
        """Find out what the function returns, and on which sources it depends, without running it if possible.

        Args:
            tensors: the arguments' tensors.

        Raises:
            TypeError: if an output is not floating-point.
            ValueError: if there is no output.
            Exception: what the function itself raises.
        """
        specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        original = self._f
        failure = self._trace(specs)
        if failure:
            # Python control flow on a tensor needs AutoGraph, which is slow to convert: only where it is needed.
            self._f = with_autograph(original)
            if self._trace(specs):
                self._f = original
                if not tf.executing_eagerly():
                    raise failure
                try:
                    with observed() as ran:
                        self._observe(self.apart(tensors))
                except (LookupError, ValueError, tf.errors.InvalidArgumentError) as error:
                    raise self.explained(error)  # noqa: B904, which says itself what it comes from
                seen = {name: getattr(self, name) for name in _OBSERVED}
                # A function that created its variables in that call can be traced now.
                self.traceable = not self._trace(specs)
                if not self.traceable:
                    vars(self).update(seen)
                    if not self.operations:
                        self.note(_UNSEEN.format("a function that cannot be traced"))
                    self.operations |= ran
        if not self.output_names:
            raise ValueError(f"{self.name}: the function returned no tensor; return the tensor to differentiate")
        for label, dtype in zip(self.output_names, self.output_dtypes, strict=True):
            if not dtype.is_floating:
                raise TypeError(
                    f"{self.name}: {label} has dtype {dtype.name}; a derivative needs floating-point numbers. Leave "
                    "it out of what the function returns, or cast what it is computed from"
                )

    def _trace(self, specs):
        """Observe the function in a graph. Returns the exception if that is not possible, otherwise None."""

        ends = []

        def trace(*tensors):
            ends[:] = self._observe(tensors)
            return []

        try:
            graph = tf.function(trace, autograph=False).get_concrete_function(*specs).graph
        except Exception as error:  # whatever the function raises, which is raised where it cannot be called either
            return error
        outputs = [output for operation in graph.get_operations() for output in operation.outputs]
        self.largest = max(map(_bytes, outputs), default=0)
        definition = graph.as_graph_def()
        nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
        self.operations = {node.op for node in nodes}
        self.constants = Counter(
            hash(node.attr["value"].SerializeToString()) if node.op == "Const" else node.op for node in nodes
        )
        by_xla = any(function.attr["_XlaMustCompile"].b for function in definition.library.function)
        self.compiled_loops = by_xla and bool(self.operations & LOOPS)
        self.custom_gradients = any("_gradient_op_type" in node.attr and node.op not in CALLS for node in nodes)
        if self.custom_gradients:
            self.custom_places = list(dict.fromkeys(map(place, filter(has_custom_gradient, operations_of(graph)))))
        starts = placeholders(graph, self.data_start, self._sources.variables)
        self.gaps, unseen = gaps(graph, starts, ends)
        for each in unseen:
            self.note(
                f"what {each} calls was not looked into: whether TensorFlow differentiates it rightly is not known"
            )
        if any(None in shape for shape in self.output_shapes):  # but it is known what it consists of
            return ValueError(f"{self.name}: the shapes of what the function returns are not known in a graph")
        return None

    def _observe(self, tensors):
        with self.cure.applied():
            return self._observe_cured(tensors)

    def _observe_cured(self, tensors):
        sources = self.sources(tensors)
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = self.evaluate(tensors)
        self.output_names = names(self.output_description, "the function's result")
        self.output_shapes = [tuple(output.shape) if output.shape.rank is not None else (None,) for output in outputs]
        self.output_dtypes = [output.dtype for output in outputs]
        self.connected = [
            [gradient is not None for gradient in tape.gradient(output, sources)]
            if output.dtype.is_floating
            else [False] * len(sources)
            for output in outputs
        ]
        return outputs

    def require_right(self, needs: Needs) -> None:
        """Raise ValueError if TensorFlow's derivative would be wrong without a word, as far as is known."""
        kinds = [Needs.AT_POINTS, *([Needs.SECOND_AT_ZERO] if needs == Needs.SECOND else [])]
        self.doubts += [why for kind in kinds if (why := self.gaps.get(kind)) and why not in self.doubts]
        reasons = [
            *[why for kind, why in sorted(self.gaps.items()) if kind <= needs],
            self.cure.why_not(needs, self.operations),
        ]
        for why in filter(None, reasons):
            what = "the second derivative" if needs == Needs.SECOND else "the derivative"
            raise ValueError(f"{self.name}: {what} would be wrong, since {why}")

    def note(self, text: str) -> None:
        """Add to the notes what is not among them."""
        if text not in self.notes:
            self.notes.append(text)

    def explained(self, error: Exception) -> Exception:
        """Return what to raise when no way works: an error that says what to do, where TensorFlow's does not."""
        if why := singular(error, self.graph):
            told: Exception = SingularMatrixError(f"{self.name}: {why}")
            told.__cause__ = error
            return told
        if missing := lacks_a_gradient(error):
            placed = getattr(error, "placed", False)
            place = f" ({str(error).split(' has no rule here')[0]})" if placed else line_of(missing[1], self.graph)
            told = LookupError(
                f"{self.name}: TensorFlow has no derivative of the operation {missing[1]}, which this one "
                f"needs{place}. Write the function with other operations, or give its gradient by tf.custom_gradient"
            )
            told.__cause__ = error
            return told
        for part, why in _REFUSED.items():
            if part in str(error):
                told = LookupError(f"{self.name}: {why}")
                told.__cause__ = error
                return told
        if not (self.compiled_loops and isinstance(error, tf.errors.UnimplementedError)):
            return error
        told = RuntimeError(
            f"{self.name}: the function calls one with jit_compile=True that has a loop, and TensorFlow does not find "
            'the way back through it. Leave jit_compile=True out there; compile="auto" compiles all of the derivative'
        )
        told.__cause__ = error
        return told

    def graph(self) -> tf.Graph:
        """The function's graph, traced once more."""
        pairs = zip(self.data_shapes, self.data_dtypes, strict=True)
        specs = [*(self.source_specs if self.data_start else []), *(tf.TensorSpec(*pair) for pair in pairs)]
        traced = tf.function(lambda *tensors: self.evaluate(tensors), autograph=False)
        return traced.get_concrete_function(*specs).graph

    def require_connected(self) -> None:
        """Raise UnconnectedSourceError if there is a source that no output depends on."""
        reached = [any(column) for column in zip(*self.connected, strict=True)]
        missing = [name for name, found in zip(self.source_names, reached, strict=True) if not found]
        if missing:
            raise UnconnectedSourceError(
                f"{self.name}: the function's result does not depend on {', '.join(missing)}. Either it is not used, "
                "or the way to it leaves what a tape records (NumPy, an integer dtype, tf.stop_gradient, an assigned "
                'variable). Leave the source out, or pass unconnected="zero" to get zeros for it'
            )


def repeatable(operations: Iterable[str]) -> bool:
    """Whether two evaluations of operations of these types agree."""
    return not any(operation.startswith(_CHANGING + _DRAWING) for operation in operations)


def _bytes(tensor):
    return tensor.shape.num_elements() * tensor.dtype.size if tensor.shape.is_fully_defined() else 0
