"""The log as a list of nodes, one for each operation that ran, also inside a tf.function or a branch.

The body of a function is interpreted again, operation by operation, with the inputs that the call had, and a loop in it
round by round; one that holds a custom gradient stays whole. What the call itself returned for its backward pass is
*pinned*: used in place of what is computed again. So random numbers, dropout masks and variables that were changed
since are the true ones, but for those within a loop.
"""

import ast
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tapelab.explain.ground import hooks, lines, private
from tapelab.explain.ground.expressions import at, called, statement_at
from tapelab.explain.ground.log import Event, Kind, Log, is_handle
from tapelab.explain.ground.measure import Attributes
from tapelab.explain.ground.rendering import words_of
from tapelab.graphs.program import (
    CALLS,
    LOOPS,
    attributes_of,
    function_body,
    has_custom_gradient,
    in_order,
    is_safe_to_run,
)
from tapelab.process.tensorflow import tf

Keys: TypeAlias = Sequence[int]  # of values of a trace
Pins: TypeAlias = Mapping[str, tf.Tensor]  # name of a tensor in a graph → its true value


_OF_TENSORFLOW = re.compile(r"\b(while|cond|map|scan|foldl|foldr)(_\d+)?/+")  # scopes that are no layers
_MANY = 5_000  # nodes: a loop that makes more stays whole, as it would take many seconds


class NotInterpreted(Exception):
    """A function's body cannot be run again without changing something."""


@dataclasses.dataclass(eq=False, slots=True)
class Node:
    """One operation that ran.

    Attributes:
        index: its position in time.
        op: its type, such as "MatMul"; a function's or custom gradient's name.
        inputs, outputs: keys of `Trace.values`.
        attributes: alternating names and values.
        event: the `Event` of the log that it is, or that called the function it is in.
        line: the learner's `Line`, or None.
        scope: TensorFlow's name scope, in which the names of Keras's layers are.
        backward: a backward function of its own; None where the registered one is used.
        is_recorded: whether the tape has it.
        is_opaque: whether it is a function's call that could not be taken apart.
    """

    index: int
    op: str
    inputs: tuple
    outputs: tuple
    attributes: tuple
    event: Event
    line: lines.Line | None
    scope: str = ""
    backward: object = None
    is_recorded: bool = True
    is_opaque: bool = False

    @property
    def is_custom(self) -> bool:
        """Whether the learner or a library wrote its gradient."""
        return (self.backward is not None and not self.is_opaque) or self.op == "EagerPyFunc"

    @property
    def is_backward(self) -> bool:
        """Whether a backward pass ran it: then what comes after is a derivative of a derivative."""
        return self.event.place.in_backward or "gradient_tape" in self.scope.split("/")

    @property
    def name(self) -> str:
        """What to call it: of the values that a function returned, the function's name."""
        return self.event.name if self.event.kind is Kind.FUNCTION and self.outputs[0] >= 0 else self.op

    @property
    def layer(self) -> str:
        """The name of the Keras layer that it ran in, or ""; in a tf.function TensorFlow may have added a number."""
        return _OF_TENSORFLOW.sub("", self.scope + "/").rstrip("/").rpartition("/")[2]


class Trace:
    """The nodes of a log.

    Args:
        log: a `Log`.

    Attributes:
        log: the same.
        nodes: every `Node`, in the order of time.
        values: key → tensor. Keys of tensors within functions are negative.
        producer: key → the node that made it, the last one where a custom gradient took over.
        users: key → the nodes that take it.
    """

    def __init__(self, log: Log):
        self.log = log
        self.nodes, self.values = [], dict(log.tensors)
        self._fresh = itertools.count(-1, -1)
        with hooks.deaf(), private.paused():
            for event in log.events:
                if not event.erased:
                    self._add_event(event)
        self.producer, self.users = {}, {}
        for node in self.nodes:
            if node.inputs or node.backward is None:
                self.producer.update(dict.fromkeys(node.outputs, node))
            for key in node.inputs:
                self.users.setdefault(key, []).append(node)

    def _add_event(self, event: Event) -> None:
        is_recorded = event.unrecorded is None
        if event.kind is not Kind.FUNCTION:
            self._add(
                event.op, event.inputs, event.outputs, event.attributes, event,
                backward=event.backward, is_recorded=is_recorded, scope=event.place.scope,
            )  # fmt: skip
            return
        mark = len(self.nodes)
        try:
            _Interpreter(self, event, is_recorded).run()
            return
        except Exception:  # whatever it is: the call stays one node, with the backward function that it has
            del self.nodes[mark:]
        backward, inputs, outputs = event.call or (None, event.inputs, event.outputs)
        self._add(event.name, inputs, outputs, (), event, backward=backward, is_recorded=is_recorded, is_opaque=True)

    def _add(self, op: str, inputs: Keys, outputs: Keys, attributes: Attributes, event: Event, **more: Any) -> None:
        more["line"] = more.get("line") or event.line
        self.nodes.append(Node(len(self.nodes), op, tuple(inputs), tuple(outputs), attributes, event, **more))

    def new_key(self, value: tf.Tensor) -> int:
        """Keep a value that is not in the log. Returns its key."""
        key = next(self._fresh)
        self.values[key] = value
        return key


class _Interpreter:
    """Takes one call of a function apart."""

    def __init__(self, trace: Trace, event: Event, is_recorded: bool):
        self._trace, self._event, self._is_recorded = trace, event, is_recorded
        self._unknown = set()  # keys of values that must not be computed again
        function = event.place.function
        self._graph = private.rebuild(event.op) if function is None else function.graph

    def run(self) -> None:
        trace, event = self._trace, self._event
        outputs = self._graph.outputs
        pins = {tensor.name: trace.values[key] for tensor, key in zip(outputs, event.outputs, strict=False)}
        inner = self._graph_run(self._graph, event.inputs, pins, self._is_recorded)
        for key, outer in zip(inner, event.outputs, strict=False):
            if key not in trace.values or (key in self._unknown and trace.values[outer].dtype.is_floating):
                raise NotInterpreted("an output")
            attributes = ("T", trace.values[outer].dtype.as_datatype_enum)
            trace._add("Identity", (key,), (outer,), attributes, event, is_recorded=self._is_recorded)

    def _graph_run(self, graph: tf.Graph, arguments: Keys, pins: Pins, is_recorded: bool) -> list[int]:
        known = dict(zip((tensor.name for tensor in graph.inputs), arguments, strict=False))
        # What only changes state is left out: assignments, prints and assertions.
        for operation in in_order(graph, graph.outputs):
            if operation.type == "Placeholder":
                continue
            inputs = tuple(known[tensor.name] for tensor in operation.inputs)
            outputs = self._operation(operation, inputs, pins, is_recorded)
            known.update(zip((tensor.name for tensor in operation.outputs), outputs, strict=False))
        return [known[tensor.name] for tensor in graph.outputs]

    def _operation(self, operation: tf.Operation, inputs: Keys, pins: Pins, is_recorded: bool) -> Keys:
        trace = self._trace
        if operation.type in CALLS:
            return self._graph_run(
                function_body(operation.graph, operation.get_attr("f").name), inputs, {}, is_recorded
            )
        if operation.type in ("If", "StatelessIf"):
            branch = "then_branch" if self._is_true(inputs[0]) else "else_branch"
            inner = function_body(operation.graph, operation.get_attr(branch).name)
            return self._graph_run(inner, inputs[1:], {}, is_recorded)
        if operation.type in LOOPS:
            return self._loop(operation, inputs, is_recorded)
        if has_custom_gradient(operation):
            raise NotInterpreted(operation.type)
        outputs, is_known = self._known_values(operation, inputs, pins)
        keys = tuple(trace.new_key(value) for value in outputs)
        if not is_known:
            self._unknown.update(keys)
            return keys
        if operation.type == "Const":
            return keys
        trace._add(
            operation.type, inputs, keys, attributes_of(operation), self._event, is_recorded=is_recorded,
            line=lines.first_own(operation.traceback), scope=operation.name.rpartition("/")[0],
        )  # fmt: skip
        return keys

    def _loop(self, operation: tf.Operation, inputs: Keys, is_recorded: bool) -> Keys:
        """Run a loop round by round: each has its own nodes."""
        condition, body = (function_body(operation.graph, operation.get_attr(part).name) for part in ("cond", "body"))
        while self._is_true(self._graph_run(condition, inputs, {}, False)[0]):
            inputs = self._graph_run(body, inputs, {}, is_recorded)
            if len(self._trace.nodes) > _MANY:
                raise NotInterpreted("a long loop")
        return inputs

    def _is_true(self, key: int) -> bool:
        if key in self._unknown:
            raise NotInterpreted("a condition")
        return bool(self._trace.values[key])

    def _known_values(self, operation: tf.Operation, inputs: Keys, pins: Pins) -> tuple[list[tf.Tensor], bool]:
        """The values of an operation's outputs, and whether they are the true ones.

        The state of a random generator must not be read again, and need not: the numbers drawn from it are pinned.
        """
        if operation.type == "Const":
            return [tf.constant(tf.make_ndarray(operation.get_attr("value")))], True
        pinned = [None if is_handle(tensor.dtype) else pins.get(tensor.name) for tensor in operation.outputs]
        if all(value is not None for value in pinned):
            return pinned, True
        if self._unknown.isdisjoint(inputs) and is_safe_to_run(operation):
            values = [self._trace.values[key] for key in inputs]
            outputs = private.run(operation.type, attributes_of(operation), values, len(pinned))
            return [value if pin is None else pin for value, pin in zip(outputs, pinned, strict=True)], True
        if any(is_handle(tensor.dtype) for tensor in operation.outputs):
            raise NotInterpreted(operation.type)
        return [tf.zeros((), tensor.dtype) for tensor in operation.outputs], False


def of_node(node: Node) -> ast.expr | None:
    """Return the expression that ran a `Node`, an `ast.expr`, or None.

    In eager code it is the call or the operator that the learner wrote. Within a tf.function only the line is known:
    there it is the one expression in it that can have made this operation, if there is one.
    """
    line = node.line
    if line is None:
        return None
    if line == node.event.line and node.event.place.code is not None:
        found = at(node.event.place.code, node.event.place.instruction)
        if found is not None:
            return found
    statement = statement_at(line)
    if statement is None:
        return None
    found = [one for one in ast.walk(statement) if called(one) in words_of(node.op)]
    return found[0] if len(found) == 1 else None
