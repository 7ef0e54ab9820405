"""One function with one signature of arguments: what to differentiate, by what, and what is known of it."""

import contextlib
import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any

from tapelab.derivatives.machinery.arguments.context import stateless_scope_unchanged
from tapelab.derivatives.machinery.arguments.sources import Sources, require_differentiable
from tapelab.derivatives.machinery.arguments.structures import Description, flatten, names, unflatten
from tapelab.derivatives.machinery.errors import UnconnectedSourceError
from tapelab.derivatives.machinery.failures import explained
from tapelab.derivatives.machinery.outside.observed import observed
from tapelab.derivatives.private import with_autograph
from tapelab.derivatives.wrong import moments
from tapelab.derivatives.wrong.gaps import Needs, gaps, operations_of, placeholders
from tapelab.derivatives.wrong.kernels import unchecked_index
from tapelab.graphs.operations import EFFECTS
from tapelab.graphs.program import BRANCHES, CALLS, LOOPS, has_custom_gradient, nodes_of, place
from tapelab.process.tensorflow import Tensors, tf

_UNSEEN = "{} was not looked into: whether TensorFlow differentiates it rightly is not known"
ACCUMULATES = (
    "TensorFlow does not find the way back through a tf.autodiff.ForwardAccumulator that the function opens around a "
    "loop, a conditional, a tf.function or tf.vectorized_map. Take that product by jvp of tapelab.derivatives"
)
_CHANGING = EFFECTS["writes"] + EFFECTS["changes"]
_UNREPEATABLE = _CHANGING + EFFECTS["draws"]

# The evaluations of functions that somebody wants to know of.
_seen: ContextVar[list[tuple[list[tf.Tensor], list[tf.Tensor]]] | None] = ContextVar("seen", default=None)


@contextlib.contextmanager
def evaluations() -> Iterator[list[tuple[list[tf.Tensor], list[tf.Tensor]]]]:
    """Collect what `Problem.evaluate` does inside: pairs of the tensors that it was given and those it returned."""
    seen: list[tuple[list[tf.Tensor], list[tf.Tensor]]] = []
    token = _seen.set(seen)
    try:
        yield seen
    finally:
        _seen.reset(token)


@dataclasses.dataclass(frozen=True)
class Returned:
    """What the function returned when it was observed.

    Attributes:
        names, shapes, dtypes: lists, one entry for each tensor. Shapes are known once `Problem.probe` is through.
        connected: bool for each of them and each source: whether it depends on the source.
    """

    names: list[str]
    shapes: list[tuple[int, ...]]
    dtypes: list[tf.DType]
    connected: list[list[bool]]


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the function consists of, as traced or as it ran once.

    Attributes:
        traceable: whether the function can be traced into a graph.
        operations: the names of the operations.
        constants: how often each constant and each operation is there, to tell whether two traces differ.
        compiled_loops: whether there is a loop in it and XLA compiles a part of it: what a loop there keeps for the way
            back does not leave XLA, so that a derivative has to be compiled as a whole.
        gaps: why derivatives of each kind would be wrong.
        custom_places: the operations whose gradients were given with `tf.custom_gradient` or an override, each with its
            line.
        largest: bytes of the largest tensor on the way to the result and back, as far as that is known.
        unchecked_index: what `kernels.unchecked_index` says of it.
        accumulates: whether it opens a `tf.autodiff.ForwardAccumulator`.
        loses_products: whether it does, around what is not differentiated in it in a graph: a loop, a conditional or a
            call. There the way back is lost without a word.
    """

    traceable: bool = True
    operations: frozenset[str] = frozenset()
    constants: Mapping[str | int, int] = dataclasses.field(default_factory=Counter)
    compiled_loops: bool = False
    gaps: Mapping[Needs, str] = dataclasses.field(default_factory=dict)
    custom_places: tuple[str, ...] = ()
    largest: int = 0
    unchecked_index: str | None = None
    accumulates: bool = False
    loses_products: bool = False


class Problem:
    """A function, its sources and the signature of its arguments, while a derivative of it is traced and compiled.

    `probe` fills in what is known of the outputs. A derivative is then computed from a flat list of tensors: the
    sources (unless they are variables), the other arguments' tensors, and the tangent or cotangent vector if there is
    one.

    Attributes:
        name: of the derivative and the function, for messages.
        source_names, source_shapes, source_dtypes, source_specs: lists, one entry for each source tensor or variable.
        specs: the list of the `tf.TensorSpec` of the arguments' tensors: the sources, unless they are variables, and
            the others.
        vector_size: how many tensors the tangents, the cotangents or the vector have.
        data_start, data_shapes: where the other arguments' tensors start, and their shapes.
        returned: a `Returned`, empty until the function is observed.
        facts: a `Facts`.
        doubts: a list of strings, why what is asked for may be wrong at some points: the caller is warned.
        remarks: a list of strings for the `Plan`: what was given up.
        notes: a list of strings for the `Plan`: what differs from plain TensorFlow.
    """

    def __init__(
        self,
        name: str,
        f: Callable[..., Any],
        sources: Sources,
        taken: Description | None,
        rest: Description,
        tensors: Tensors,
        *,
        vector_size: int = 0,
    ):
        self.name = name
        self.vector_size = vector_size
        self._f = f
        self._sources = sources
        self._rest = rest
        self.source_names: list[str]
        self.source_description: Any
        if taken is not None:
            self.source_description = taken
            label = f"argument {sources.positions[0]}" if sources.single else "argnums"
            self.source_names = names(taken, label)
            own = tensors[: len(self.source_names)]
        else:
            self.source_description = sources.description
            self.source_names = sources.names
            own = sources.variables or []
        require_differentiable(name, self.source_names, own)
        self.source_shapes = [tuple(source.shape) for source in own]
        self.source_dtypes = [source.dtype for source in own]
        self.source_specs = [tf.TensorSpec(source.shape, source.dtype) for source in own]
        self.data_start = 0 if sources.variables is not None else len(own)
        self.specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in tensors]
        self.data_shapes = [tuple(spec.shape) for spec in self.specs[self.data_start :]]
        largest = (math.prod(shape) * of.size for shape, of in zip(self.source_shapes, self.source_dtypes, strict=True))
        self.facts = Facts(largest=max(largest))
        self.returned = Returned([], [], [], [])
        self.doubts: list[str] = []
        self.remarks: list[str] = []
        self.notes: list[str] = []
        self.transposed = False  # whether products with cotangents were transposed, as if they were linear in these

    @property
    def source_sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.source_shapes]

    @property
    def output_sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.returned.shapes]

    @property
    def custom_gradients(self) -> bool:
        """Whether a gradient in it was given by its author."""
        return bool(self.facts.custom_places)

    @property
    def repeatable(self) -> bool:
        """Whether two evaluations agree: no random numbers are drawn, no variables changed, no Python called."""
        return repeatable(self.facts.operations)

    @property
    def changes(self) -> bool:
        """Whether an evaluation leaves a trace, such as a changed variable: then it may happen once in a call."""
        return any(operation.startswith(_CHANGING) for operation in self.facts.operations)

    @property
    def output_specs(self) -> list[tf.TensorSpec]:
        pairs = zip(self.returned.shapes, self.returned.dtypes, strict=True)
        return [tf.TensorSpec(shape, dtype) for shape, dtype in pairs]

    def sources(self, tensors: Tensors) -> list[tf.Tensor | tf.Variable]:
        """Return what a tape is to watch: the variables, or the first of the tensors."""
        return self._sources.variables or list(tensors[: self.data_start])

    def apart(self, tensors: Tensors) -> list[tf.Tensor]:
        """Return the tensors, with copies for sources: a tape does not tell a tensor from itself elsewhere.

        Elsewhere is another source, the data, or the function's closure. In a graph each input is a tensor of its own.
        """
        return [*map(tf.identity, tensors[: self.data_start]), *tensors[self.data_start :]]

    def vector(self, tensors: Tensors) -> list[tf.Tensor]:
        """Return the last tensors: the tangents of all sources, or the cotangents of all outputs."""
        return list(tensors[len(tensors) - self.vector_size :])

    def evaluate(self, tensors: Tensors) -> list[tf.Tensor]:
        """Call the function, and return what it returns as a flat list of tensors."""
        leaves = iter(tensors)
        if self._sources.variables is None:
            taken = unflatten(self.source_description, leaves)
        args, kwargs = unflatten(self._rest, leaves)
        if self._sources.variables is None:
            args = self._sources.put(taken, args)
        outputs: list[Any] = []
        with moments.differentiated(self.note), stateless_scope_unchanged(self.name):
            result = self._f(*args, **kwargs)
        self.output_description = flatten(result, outputs, numbers=True)
        outputs = [tf.convert_to_tensor(output) for output in outputs]
        if (seen := _seen.get()) is not None:
            seen.append((list(tensors), outputs))
        return outputs

    def structured(self, flat: Iterable[Any]) -> Any:
        """Give a flat list, one entry for each source, the sources' structure."""
        return unflatten(self.source_description, iter(flat))

    def structured_rows(self, flat: Sequence[Any]) -> list[Any]:
        """Give a flat list, one entry for each source again and again, the sources' structure each time."""
        count = len(self.source_names)
        return [self.structured(flat[start : start + count]) for start in range(0, len(flat), count)]

    def structured_outputs(self, flat: Iterable[Any]) -> Any:
        """Give a flat list, one entry for each output, the outputs' structure."""
        return unflatten(self.output_description, iter(flat))

    def probe(self, tensors: Tensors) -> None:
        """Find out what the function returns, and on which sources it depends, without running it if possible.

        Args:
            tensors: the arguments' tensors.

        Raises:
            TypeError: if an output is not floating-point.
            ValueError: if there is no output.
            Exception: what the function itself raises.
        """
        original = self._f
        failure = self._trace()
        if failure:
            # Python control flow on a tensor needs AutoGraph, which is slow to convert: only where it is needed.
            self._f = with_autograph(original)
            if self._trace():
                self._f = original
                if not tf.executing_eagerly():
                    raise self.explained(failure)
                try:
                    with observed() as ran:
                        self._observe(self.apart(tensors))
                except (LookupError, ValueError, tf.errors.InvalidArgumentError) as error:
                    raise self.explained(error)  # noqa: B904, which says itself what it comes from
                seen = self.returned, self.output_description
                # A function that created its variables in that call can be traced now.
                if self._trace():
                    self.returned, self.output_description = seen
                    if not self.facts.operations:
                        self.note(_UNSEEN.format("a function that cannot be traced"))
                    self.facts = dataclasses.replace(
                        self.facts, traceable=False, operations=self.facts.operations | ran
                    )
        if not self.returned.names:
            raise ValueError(f"{self.name}: the function returned no tensor; return the tensor to differentiate")
        for label, dtype in zip(self.returned.names, self.returned.dtypes, strict=True):
            if not dtype.is_floating:
                raise TypeError(
                    f"{self.name}: {label} has dtype {dtype.name}; a derivative needs floating-point numbers. Leave "
                    "it out of what the function returns, or cast what it is computed from"
                )

    def _trace(self) -> Exception | None:
        """Observe the function in a graph. Returns the exception if that is not possible, otherwise None."""

        ends: list[tf.Tensor] = []

        def trace(*tensors: tf.Tensor) -> list[tf.Tensor]:
            ends[:] = self._observe(tensors)
            return []

        try:
            graph = self.traced(trace).graph
        except Exception as error:  # whatever the function raises, which is raised where it cannot be called either
            return error
        self.facts = self._facts(graph, ends)
        if not all(tensor.shape.is_fully_defined() for tensor in ends):  # but it is known what it consists of
            return ValueError(f"{self.name}: the shapes of what the function returns are not known in a graph")
        return None

    def _facts(self, graph: tf.Graph, ends: Tensors) -> Facts:
        """Return what a graph of the function shows; ``ends`` are its results."""
        tensors = [output for operation in graph.get_operations() for output in operation.outputs]
        definition = graph.as_graph_def()
        nodes = [node for each in nodes_of(definition) for node in each]
        operations = frozenset(node.op for node in nodes)
        custom: list[str] = []
        if any("_gradient_op_type" in node.attr and node.op not in CALLS for node in nodes):
            custom = [place(op) for op in operations_of(graph) if has_custom_gradient(op)] or ["a function's own"]
        accumulates = any(map(_is_of_an_accumulator, operations_of(graph)))
        found, unseen = gaps(graph, placeholders(graph, self.data_start, self._sources.variables), ends)
        for each in unseen:
            self.note(_UNSEEN.format(f"what {each} calls"))
        return Facts(
            operations=operations,
            constants=Counter(
                hash(node.attr["value"].SerializeToString()) if node.op == "Const" else node.op for node in nodes
            ),
            compiled_loops=any(one.attr["_XlaMustCompile"].b for one in definition.library.function)
            and bool(operations & LOOPS),
            gaps=found,
            custom_places=tuple(dict.fromkeys(custom)),
            largest=max(map(_bytes, tensors), default=0),
            unchecked_index=unchecked_index(graph, ends),
            accumulates=accumulates,
            loses_products=accumulates and any(map(_is_flow_or_call, operations_of(graph))),
        )

    def _observe(self, tensors: Tensors) -> list[tf.Tensor]:
        sources = self.sources(tensors)
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            tape.watch(sources)
            outputs = self.evaluate(tensors)
        self.returned = Returned(
            names=names(self.output_description, "the function's result"),
            shapes=[tuple(output.shape) if output.shape.rank is not None else () for output in outputs],
            dtypes=[output.dtype for output in outputs],
            connected=[
                [gradient is not None for gradient in tape.gradient(output, sources)]
                if output.dtype.is_floating
                else [False] * len(sources)
                for output in outputs
            ],
        )
        return outputs

    def require_right(self, needs: Needs) -> None:
        """Raise ValueError if TensorFlow's derivative would be wrong without a word, as far as is known."""
        kinds = [Needs.AT_POINTS, *([Needs.SECOND_AT_ZERO] if needs == Needs.SECOND else [])]
        self.doubts += [why for kind in kinds if (why := self.facts.gaps.get(kind)) and why not in self.doubts]
        for why in [why for kind, why in sorted(self.facts.gaps.items()) if kind <= needs]:
            what = "the second derivative" if needs == Needs.SECOND else "the derivative"
            raise ValueError(f"{self.name}: {what} would be wrong, since {why}")

    def note(self, text: str) -> None:
        """Add to the notes what is not among them."""
        if text not in self.notes:
            self.notes.append(text)

    def explained(self, error: Exception) -> Exception:
        """Return what to raise when no way works: see `failures.explained`."""
        if self.facts.accumulates and isinstance(error, (AssertionError, TypeError, tf.errors.InternalError)):
            told = LookupError(f"{self.name}: {ACCUMULATES}")
            told.__cause__ = error
            return told
        return explained(self.name, error, self.graph, self.facts.compiled_loops)

    def graph(self) -> tf.Graph:
        """The function's graph, traced once more."""
        return self.traced(lambda *tensors: self.evaluate(tensors)).graph

    def traced(
        self, compute: Callable, specs: Sequence[tf.TensorSpec] | None = None
    ) -> tf.types.experimental.ConcreteFunction:
        """Trace a function of the arguments' tensors, or of tensors of other specs."""
        return tf.function(compute, autograph=False).get_concrete_function(*(self.specs if specs is None else specs))

    def sized(self, count: int, by_example: Iterable[bool]) -> list[tf.TensorSpec]:
        """The specs of the arguments' tensors for so many examples, which come first in those that go with them."""
        pairs = zip(self.specs, by_example, strict=True)
        return [tf.TensorSpec([count, *spec.shape[1:]], spec.dtype) if own else spec for spec, own in pairs]

    def require_connected(self) -> None:
        """Raise UnconnectedSourceError if there is a source that no output depends on."""
        reached = [any(column) for column in zip(*self.returned.connected, strict=True)]
        missing = [name for name, found in zip(self.source_names, reached, strict=True) if not found]
        if missing:
            raise UnconnectedSourceError(
                f"{self.name}: the function's result does not depend on {', '.join(missing)}. Either it is not used, "
                "or the way to it leaves what a tape records (NumPy, an integer dtype, tf.stop_gradient, an assigned "
                'variable). Leave the source out, or pass unconnected="zero" to get zeros for it'
                + (f". Or {ACCUMULATES}" if self.facts.accumulates else "")
            )


def repeatable(operations: Iterable[str]) -> bool:
    """Whether two evaluations of operations of these types agree."""
    return not any(operation.startswith(_UNREPEATABLE) for operation in operations)


def _is_flow_or_call(op: tf.Operation) -> bool:
    """Whether an operation is a loop, a conditional or a call, other than of what an accumulator traces itself."""
    if op.type in CALLS:
        return not _is_of_an_accumulator(op)
    return op.type in LOOPS | BRANCHES


def _is_of_an_accumulator(op: tf.Operation) -> bool:
    return op.type in CALLS and "_jvp_" in op.get_attr("f").name


def _bytes(tensor: tf.Tensor) -> int:
    return tensor.shape.num_elements() * tensor.dtype.size if tensor.shape.is_fully_defined() else 0
