"""Operations whose derivatives TensorFlow gets wrong, or lacks, without a word: found in a graph, to be refused.

Which they are is in a table, ``graphs/operations/wrong.toml``. What is wrong at some points only is warned of.
"""

from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from tapelab.derivatives.wrong.rules import RULES, Met
from tapelab.graphs.operations import EFFECTS, WRONG, with_fact
from tapelab.graphs.operations.operation import Wrong
from tapelab.graphs.program import BRANCHES, CALLS, LOOPS, behind, branches_of, function_body, place
from tapelab.process.tensorflow import tf


class Needs(IntEnum):
    """What a derivative takes: those above need what those below do."""

    GRADIENT = 1  # products of cotangents with the Jacobian
    TANGENTS = 2  # products of the Jacobian with tangents: the gradient's derivative by its cotangent
    SECOND = 3  # second derivatives: the gradient's by the inputs as well
    SECOND_AT_ZERO = 4  # the same at a point where TensorFlow's are wrong: warned of, since others are right
    AT_POINTS = 5  # all of them at such a point


_OPAQUE = with_fact("outside") - with_fact("leaves")  # what these call is no function of TensorFlow's
_WRITES, _READS = EFFECTS["writes"], with_fact("reads")
_ASSIGNED = (
    "it gives a variable a value that depends on the sources, and goes on with the variable: TensorFlow leaves out "
    "that path. Use the value itself, and assign it after the derivative"
)
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


class _Finder:
    """Follows what depends on the sources, and collects what is wrong on the way."""

    def __init__(self) -> None:
        self.found = Gaps({}, {})
        self._callers: tuple[tf.Operation, ...] = ()
        self._warned: set[str] = set()

    def collect(self, graph: tf.Graph, reached: set, outputs: Iterable[tf.Tensor]) -> None:
        """Add to `reached`, references of tensors, what is computed from them, and to `found` what is wrong there."""
        within = behind(outputs, _ENDS)
        written: dict = {}  # variables that were given what depends on the sources
        for op in graph.get_operations():
            depends = [tensor.ref() in reached for tensor in op.inputs]
            if op.type.startswith(_WRITES) and any(depends[1:]):
                written[op.inputs[0].ref()] = op
            elif op in within and op.type in _READS and op.inputs[0].ref() in written:
                where = _where(written[op.inputs[0].ref()], self._callers)
                why = f"{_ASSIGNED}. It is {where}"
                self.found.reasons.setdefault(Needs.GRADIENT, why)
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

    def follow(self, op: tf.Operation, known: list[bool]) -> list[bool]:
        """Say which of an operation's outputs depend on the sources."""
        if op.type in CALLS:
            return self.body(op, op.get_attr("f").name, known)
        if op.type in BRANCHES:
            return [
                any(several) for several in zip(*[self.body(op, n, known[1:]) for n in branches_of(op)], strict=True)
            ]
        if op.type in LOOPS:
            before: list[bool] | None = None
            while known != before:  # what is so after a turn is so before the next one
                before, after = known, self.body(op, op.get_attr("body").name, known)
                known = [a or b for a, b in zip(before, after, strict=True)]
            return known
        if op.type in _OPAQUE or any("func" in attribute.type for attribute in op.op_def.attr):
            self.found.unseen.setdefault(_where(op, self._callers))
        return [True] * len(op.outputs)

    def body(self, op: tf.Operation, name: str, known: list[bool]) -> list[bool]:
        """Say the same of the outputs of a function that an operation calls; its graph may have more."""
        callers, self._callers = self._callers, (*self._callers, op)
        try:
            return self.run(function_body(op.graph, name), known)[: len(op.outputs)]
        except LookupError:
            self.found.unseen.setdefault(_where(op, callers))
            return [any(known)] * len(op.outputs)
        finally:
            self._callers = callers


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
