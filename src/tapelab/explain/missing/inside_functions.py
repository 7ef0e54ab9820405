"""How a gradient gets from one input of a tf.function to one of its outputs, operation by operation.

The body is rebuilt from the definition that TensorFlow's runtime holds, so that trying out gradients leaves the
learner's graph as it is. Where the learner's own graph is still there, it tells the line of each operation.
"""

import contextlib
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tapelab.explain.ground import hooks, lines, private
from tapelab.explain.ground.log import Event, Kind, Log, can_carry, is_handle
from tapelab.graphs.operations import with_fact
from tapelab.graphs.program import BRANCHES, CALLS, LOOPS, branches_of, function_body, has_custom_gradient
from tapelab.graphs.walks import cheapest, reachable

import tensorflow as tf

_CONVERSIONS = frozenset({"Cast", "Bitcast"})


def cause_of(
    op: str, takes: tf.DType, gives: tf.DType, passes: Callable[[], bool], is_custom: bool = False
) -> str | None:
    """Return the cause by which an operation cuts the gradient from one of its outputs to one of its inputs, or None.

    Args:
        op: its type.
        takes: the dtype of that input.
        gives: the dtype of that output. Another output may pass the gradient, as the values of TopKV2 do and its
            indices do not.
        passes: tries out whether its gradient function returns something for that input; may raise LookupError.
        is_custom: whether it has a custom gradient.
    """
    if op == "StopGradient":
        return "stop_gradient"
    if not can_carry(takes):
        return None  # what depends on the source has such a dtype only behind a cut, which was counted there
    if gives == tf.string:
        return "through_string"
    carries = can_carry(gives)
    if op in _CONVERSIONS and not carries:
        return "cast_to_integer"
    try:
        # Of an operation that gives whole numbers the tape asks for no gradient, so that a missing one raises nothing.
        if carries and (is_custom or private.has_gradient(op)) and passes():
            return None
    except LookupError:
        return "no_gradient_registered"
    return "custom_gradient_none" if is_custom and carries else "not_differentiable"


class Conductors:
    """Answers for the events of one log, each worked out once, with the registered gradient function itself."""

    def __init__(self, log: Log):
        self._log, self._results = log, {}

    def cut_at(self, event: Event, position: int, output: int) -> str | None:
        """Return the cause by which an event, not a function's call, cuts the gradient from an output to an input.

        Args:
            event: an `Event` of the log.
            position: of the input.
            output: the key of the output.

        Returns:
            A cause code, or None if the gradient passes.
        """
        takes, gives = (self._log.tensors[key].dtype for key in (event.inputs[position], output))
        is_custom = event.kind is Kind.CUSTOM
        if "Dataset" in event.op and can_carry(takes) and not is_custom:
            return "left_tensorflow"
        return cause_of(event.op, takes, gives, lambda: self._returns(event, position), is_custom)

    def _returns(self, event: Event, position: int) -> bool:
        """Whether the gradient function, given ones, returns something for an input."""
        if event.index not in self._results:
            self._results[event.index] = self._run(event)
        result = self._results[event.index]
        if isinstance(result, LookupError):
            raise result
        # A gradient function that cannot be tried out is taken to work: the tape's own result has the last word.
        return result is None or (position < len(result) and result[position] is not None)

    def _run(self, event: Event) -> list[Any] | LookupError | None:
        outputs = [self._log.tensors[key] for key in event.outputs]
        if any(self._log.is_handle(key) for key in event.outputs):
            return None
        with hooks.deaf(), private.paused(), private.with_python_calls(self._log.python_calls_of.get(event.index, {})):
            upstream = [tf.ones_like(tensor) for tensor in outputs]
            try:
                if event.kind is Kind.CUSTOM:
                    found = event.backward(*upstream)
                    return list(found) if isinstance(found, (list, tuple)) else [found]
                inputs = [self._log.tensors[key] for key in event.inputs]
                return private.gradients_of(event.op, event.attributes, inputs, outputs, upstream)
            except LookupError as error:
                return error
            except Exception:
                return None


# Where the flow of values stands: the name of a tensor, or ("state", the name of a handle).
_Place = str | tuple[str, str]

_LEAVING, _VALUELESS = with_fact("leaves"), with_fact("valueless")


@dataclasses.dataclass(frozen=True)
class Cut:
    """A place where the gradient does not pass.

    Attributes:
        code: of the cause.
        op: the operation's name.
        line: the learner's `Line`, or None.
        event: the `Event` in the log that did it, or that called the function that did it.
        node: the operation's own name within the function; empty in eager code.
    """

    code: str
    op: str
    line: lines.Line | None
    event: object = dataclasses.field(default=None, repr=False)
    node: str = ""


def cost_of(cuts: Sequence[Cut]) -> tuple[int, int]:
    """What cuts on a way cost: (how many, how many of them at a shape or the like).

    Among ways with as few cuts, one is named by which values flow: tf.searchsorted takes the shape of what it searches
    for as well, and that is not why it has no gradient.
    """
    return len(cuts), sum(cut.op in _VALUELESS for cut in cuts)


class Body:
    """The body of one tf.function.

    Args:
        graph: our own copy, to be added to.
        original: the learner's graph, or None.
    """

    def __init__(self, graph: tf.Graph, original: tf.Graph | None):
        self._graph = graph
        self._original = original
        self._consumers = {}
        for operation in list(graph.get_operations()):
            for position, tensor in enumerate(operation.inputs):
                self._consumers.setdefault(tensor.name, []).append((operation, position))
        self.output_count = len(graph.outputs)
        # Routes meet the same operations and functions again.
        self.route, self._cause, self._body = map(functools.cache, (self._route, self._cause_of, self._body_of))

    def _route(self, start: int, end: int, to_state: bool = False) -> tuple[Cut, ...] | None:
        """Find the path with the fewest cuts.

        Args:
            start: the position of an input.
            end: the position of an output; with `to_state`, of an input that is a handle, whose state counts as reached
                when something is written to it.
            to_state: see `end`.

        Returns:
            A tuple of `Cut`, empty where the gradient passes; None if no path leads there.
        """
        goal = ("state", self._graph.inputs[end].name) if to_state else self._graph.outputs[end].name

        def steps(node: _Place) -> Iterator[tuple[_Place, tuple[int, int], tuple[Cut, ...]]]:
            for following, cuts in self._steps(node):
                yield following, cost_of(cuts), cuts

        way = cheapest(self._graph.inputs[start].name, {goal}, steps)
        return None if way is None else tuple(itertools.chain.from_iterable(way))

    def _steps(self, node: _Place) -> Iterator[tuple[_Place, tuple[Cut, ...]]]:
        if isinstance(node, tuple):  # what was written to a state is read from its handle
            for operation, _ in self._consumers.get(node[1], ()):
                for output in operation.outputs:
                    yield output.name, ()
            return
        for operation, position in self._consumers.get(node, ()):
            for output in operation.outputs:
                cuts = self._through(operation, position, output)
                if cuts is not None:
                    yield output.name, cuts
            for other, tensor in enumerate(operation.inputs):
                if is_handle(tensor.dtype) and other != position:
                    cuts = self._written(operation, position, other)
                    if cuts is not None:
                        yield ("state", tensor.name), cuts

    def _written(self, operation: tf.Operation, position: int, handle: int) -> tuple[Cut, ...] | None:
        """Return the cuts from one input of an operation to what it writes to another, or None where it does not."""
        if operation.type in CALLS:
            inner = self._body(operation.get_attr("f").name)
            return inner and inner.route(position, handle, to_state=True)
        is_write = not operation.outputs and not is_handle(operation.inputs[position].dtype)
        return (self._cut("state", operation),) if is_write else None

    def _through(self, operation: tf.Operation, position: int, output: tf.Tensor) -> tuple[Cut, ...] | None:
        """Return the cuts from one input of an operation to one output: a tuple, or None if nothing flows there."""
        if operation.type in CALLS or (operation.type in BRANCHES and position > 0):
            is_call = operation.type in CALLS
            names = [operation.get_attr("f").name] if is_call else branches_of(operation)
            bodies = [body for body in map(self._body, names) if body is not None]
            routes = [body.route(position - (not is_call), output.value_index) for body in bodies]
            routes = [route for route in routes if route is not None] if bodies else [()]
            return min(routes, key=cost_of, default=None)
        if operation.type in LOOPS:
            # TensorFlow's gradient of a loop is zero, not None, where the body passes none.
            return () if output.value_index in self._reached_by_loop(operation, position) else None
        code = self._cause(operation, position, output.value_index)
        return (self._cut(code, operation),) if code else ()

    def _reached_by_loop(self, operation: tf.Operation, position: int) -> Collection[int]:
        """The positions of the outputs that depend on an input of a loop, after any number of rounds."""
        body = self._body(operation.get_attr("body").name)
        if body is None:
            return range(len(operation.outputs))
        outputs = range(body.output_count)
        return reachable([position], lambda at: [index for index in outputs if body.route(at, index) is not None])

    def _cause_of(self, operation: tf.Operation, position: int, index: int) -> str | None:
        source, output = operation.inputs[position], operation.outputs[index]
        if operation.type in _LEAVING:
            return "left_tensorflow"
        is_custom = has_custom_gradient(operation)
        return cause_of(operation.type, source.dtype, output.dtype, lambda: self._passes(source, output), is_custom)

    def _passes(self, source: tf.Tensor, output: tf.Tensor) -> bool:
        """Whether a gradient gets from an output of an operation to an input. Raises LookupError as tf.gradients."""
        # A tf.py_function passes what its Python code passes, or zero; trying it out would change how it runs.
        if is_handle(source.dtype) or is_handle(output.dtype) or output.op.type == "EagerPyFunc":
            return True
        with self._graph.as_default():
            try:
                return tf.gradients([output], [source])[0] is not None
            except LookupError:
                raise
            except Exception:
                return True  # it cannot be tried out: the tape's own result has the last word

    def _body_of(self, name: str) -> "Body | None":
        """Return the body of a function that is called within this one, or None."""
        original = None
        if self._original is not None:
            with contextlib.suppress(LookupError):
                original = function_body(self._original, name)
        return _rebuilt(name, original)

    def _cut(self, code: str, operation: tf.Operation) -> Cut:
        line = None
        if self._original is not None:
            with contextlib.suppress(KeyError):  # TensorFlow added it
                line = lines.first_own(self._original.get_operation_by_name(operation.name).traceback)
        return Cut(code, operation.type, line, node=operation.name)


# A body is released with the function that it belongs to.
_bodies = weakref.WeakKeyDictionary()


def body_of(event: Event) -> Body | None:
    """Return the `Body` of a function's call, or None where TensorFlow has forgotten the function."""
    function = event.place.function
    if function is None:
        return _rebuilt(event.op, None)
    if function not in _bodies:
        _bodies[function] = _rebuilt(event.op, function.graph)
    return _bodies[function]


def _rebuilt(name: str, original: tf.Graph | None) -> Body | None:
    try:
        return Body(private.rebuild(name), original)
    except Exception:  # whatever it is, the body stays unknown, and the tape's own result has the last word
        return None
