"""Operations whose derivatives TensorFlow gets wrong, or lacks, without a word: found in a graph, to be refused.

Which they are is in a table, ``graphs/operations/wrong.toml``. What is wrong at some points only is warned of.
"""

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from tapelab.derivatives.wrong.rules import RULES, Met
from tapelab.graphs.flow import Walk
from tapelab.graphs.operations import WRONG, of_family, with_fact
from tapelab.graphs.operations.operation import OUTSIDE, Wrong
from tapelab.graphs.program import function_body, place
from tapelab.process.tensorflow import tf

import numpy as np


class Needs(IntEnum):
    """What a derivative takes: those above need what those below do."""

    GRADIENT = 1  # products of cotangents with the Jacobian
    TANGENTS = 2  # products of the Jacobian with tangents: the gradient's derivative by its cotangent
    SECOND = 3  # second derivatives: the gradient's by the inputs as well
    SECOND_AT_ZERO = 4  # the same at a point where TensorFlow's are wrong: warned of, since others are right
    AT_POINTS = 5  # all of them at such a point


_OPAQUE = of_family(OUTSIDE) - with_fact("leaves")  # what these call is no function of TensorFlow's
# Through these nothing is differentiated, and that is what they are for.
_ENDS = with_fact("flat") & (with_fact("passes") | with_fact("valueless"))


class Gaps(NamedTuple):
    """What is known of TensorFlow's derivatives of a graph.

    Attributes:
        reasons: for each kind of derivative that an operation makes wrong, why, and the operation and its line: of what
            is refused the first that is met, of what is warned of each, a line for each.
        unseen: the operations that were not looked into, each with its line, as the keys of a dictionary.
    """

    reasons: dict[Needs, str]
    unseen: dict[str, None]


def gaps(graph: tf.Graph, sources: Iterable[tf.Tensor], outputs: Iterable[tf.Tensor]) -> Gaps:
    """Say why derivatives of a graph's outputs by these tensors would be wrong in TensorFlow, as far as is known."""
    finder = _Finder()
    finder.collect(graph, {tensor.ref() for tensor in sources}, outputs)
    return finder.found


def _behind(outputs: Iterable[tf.Tensor]) -> set[tf.Operation]:
    """The operations from which tensors are computed."""
    seen, left = set(), [tensor.op for tensor in outputs]
    while left:
        op = left.pop()
        if op not in seen:
            seen.add(op)
            left += [] if op.type in _ENDS else [tensor.op for tensor in op.inputs]
    return seen


class _Finder(Walk[bool]):
    """Follows what depends on the sources, and collects what is wrong on the way."""

    def __init__(self) -> None:
        self.found = Gaps({}, {})
        self._callers: tuple[tf.Operation, ...] = ()
        self._warned: set[str] = set()

    def collect(self, graph: tf.Graph, reached: set, outputs: Iterable[tf.Tensor]) -> None:
        """Add to `reached`, references of tensors, what is computed from them, and to `found` what is wrong there."""
        within = _behind(outputs)
        for op in graph.get_operations():
            depends = [tensor.ref() in reached for tensor in op.inputs]
            if op not in within or op.type in _ENDS or not any(depends):
                continue
            for row in _wrong(Met(op, depends, reached, within, bool(self._callers))):
                self._add(row, f"{row.why}. It is {_where(op, self._callers)}")
            for tensor, moves in zip(op.outputs, self.follow(op, depends), strict=True):
                if moves and not (tensor.dtype.is_integer or tensor.dtype.is_bool):
                    reached.add(tensor.ref())

    def _add(self, row: Wrong, why: str) -> None:
        needs, reasons = Needs[row.needs.upper()], self.found.reasons
        if needs < Needs.SECOND_AT_ZERO:
            reasons.setdefault(needs, why)
        elif row.code not in self._warned:
            self._warned.add(row.code)
            reasons[needs] = f"{reasons[needs]}\nAnd {why}" if needs in reasons else why

    def run(self, graph: tf.Graph, inputs: Sequence[bool]) -> list[bool]:
        reached = {tensor.ref() for tensor, moves in zip(graph.inputs, inputs, strict=True) if moves}
        self.collect(graph, reached, graph.outputs)
        return [tensor.ref() in reached for tensor in graph.outputs]

    def body(self, op: tf.Operation, name: str, known: Sequence[bool]) -> list[bool]:
        callers, self._callers = self._callers, (*self._callers, op)
        try:
            return super().body(op, name, known)
        except LookupError:
            self.found.unseen.setdefault(_where(op, callers))
            return [any(known)] * len(op.outputs)
        finally:
            self._callers = callers

    def joined(self, op: tf.Operation, several: Sequence[bool]) -> bool:
        return any(several)

    def step(self, op: tf.Operation, known: list[bool]) -> list[bool]:
        if op.type in _OPAQUE or any("func" in attribute.type for attribute in op.op_def.attr):
            self.found.unseen.setdefault(_where(op, self._callers))
        return [True] * len(op.outputs)


def operations_of(graph: tf.Graph) -> Iterator[tf.Operation]:
    """The operations of a graph, and of the functions that it calls, as far as they are found."""
    return (op for op, _ in operations_within(graph.get_operations()))


def operations_within(
    operations: Iterable[tf.Operation], callers: tuple[tf.Operation, ...] = ()
) -> Iterator[tuple[tf.Operation, tuple[tf.Operation, ...]]]:
    """Operations, and those of the functions that they call, as far as they are found: each with those that call it."""
    for op in operations:
        yield op, callers
        for attribute in op.op_def.attr:
            if "func" in attribute.type:
                for function in np.ravel(op.get_attr(attribute.name)):
                    with contextlib.suppress(LookupError):
                        body = function_body(op.graph, function.name)
                        yield from operations_within(body.get_operations(), (*callers, op))


def _where(op: tf.Operation, callers: tuple[tf.Operation, ...]) -> str:
    """Name an operation and its line; of one from a loaded model, which has no line, the line that calls it."""
    for outer in (op, *reversed(callers)):
        found = place(outer)
        if not found.endswith(f"({outer.name})"):
            return found if outer is op else f"{place(op)}, in what is called by {found}"
    return place(op)


def _wrong(met: Met) -> Iterator[Wrong]:
    """The rows that hold of an operation some of whose inputs depend on the sources."""
    for row in WRONG.get(met.op.type, ()):
        inputs = row.inputs or range(len(met.depends))
        if any(met.depends[i] for i in inputs if i < len(met.depends)) and RULES[row.rule](met):
            yield row


def placeholders(graph: tf.Graph, count: int, variables: Sequence[tf.Variable] | None) -> list[tf.Tensor]:
    """The tensors that stand for the sources in a concrete function's graph: its first arguments, or variables."""
    if variables is None:
        return list(graph.inputs[:count])
    handles = {id(variable.handle) for variable in variables}
    return [inside for outside, inside in graph.captures if id(outside) in handles]
