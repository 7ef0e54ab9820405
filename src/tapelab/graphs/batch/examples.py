"""Which tensors of a program keep the examples of a batch apart."""

import functools
from collections.abc import Callable, Sequence

from tapelab.graphs.batch.axes import axes_of
from tapelab.graphs.batch.states import APART, FIXED, LOST, ROWS, SUMMED, State, apart, fixed, joined, lost, summed
from tapelab.graphs.batch.step import static_axes
from tapelab.graphs.flow import Walk
from tapelab.graphs.linear import is_linear
from tapelab.graphs.operations import known as facts_of
from tapelab.graphs.program import CALLS, function_body, has_custom_gradient, place
from tapelab.process.tensorflow import tf

Custom = Callable[["Examples", tf.Operation], list[State]]


class Examples(Walk[State]):
    """The states of the tensors of a graph, and of the functions that it calls.

    What is not noted is fixed. Each operation keeps the examples apart by a rule for its family, or loses them: what
    has no rule is never assumed to keep them.

    Args:
        batch: how many examples.
        custom: returns the states of the outputs of an operation whose gradient its author gave, and which is met in
            the graph itself; in functions that it calls nothing is proved of such a one. None to follow what it
            computes, whatever its gradient is.
        stops: whether `tf.stop_gradient` gives what is fixed: then derivatives are followed, not values.
    """

    def __init__(self, batch: int, custom: Custom | None = None, *, stops: bool = False):
        self.batch = batch
        self._custom, self._stops = custom, stops
        self._states: dict = {}
        self._bodies: dict = {}

    def state(self, tensor: tf.Tensor) -> State:
        """What is known of a tensor."""
        return self._states.get(tensor.ref(), fixed)

    def note(self, tensor: tf.Tensor, state: State) -> None:
        """Take this to be known of a tensor."""
        self._states[tensor.ref()] = state

    def begin(self, tensor: tf.Tensor) -> None:
        """Take a tensor, the examples along its first axis, as data: what they are told apart by from here on."""
        self.note(tensor, apart(0))

    def in_rows(self, tensor: tf.Tensor) -> bool:
        """Whether the examples are apart along a tensor's first axis."""
        return self.state(tensor) == apart(0)

    def axis(self, tensor: tf.Tensor) -> int | None:
        """The axis of the examples in a tensor; None if there is none, or in a list of tensors."""
        found = self.state(tensor).axis
        return None if found == ROWS or tensor.dtype == tf.variant else found

    def follow_all(self, graph: tf.Graph) -> None:
        """Follow the operations of a graph."""
        for op in self.operations(graph):
            self.meet(op)

    def meet(self, op: tf.Operation) -> None:
        """Note the states of an operation's outputs; its inputs were noted before."""
        states = [self.state(tensor) for tensor in op.inputs]
        for tensor, state in zip(op.outputs, self.follow(op, states), strict=True):
            if state != fixed:
                self.note(tensor, state)

    def keeps(self, op: tf.Operation) -> list[State] | None:
        """The states of an operation's outputs by what it computes, whatever its gradient is; None if they are lost."""
        states = [self.state(tensor) for tensor in op.inputs]
        axes = [state.axis for state in states]
        if any(state.kind in (LOST, SUMMED) for state in states):
            return None
        found = axes_of(op, axes, self.batch)
        return None if found is None else [fixed if axis is None else apart(axis) for axis in found]

    def lose(self, op: tf.Operation, why: str) -> list[State]:
        """Return the states of an operation's outputs where they are lost; what it writes to is lost as well."""
        if not facts_of(op.type).has("reads"):
            for tensor in op.inputs:
                if tensor.dtype == tf.resource:  # read later, it gives this back
                    self.note(tensor, lost(why))
        return [lost(why)] * len(op.outputs)

    def run(self, graph: tf.Graph, inputs: Sequence[State]) -> list[State]:
        for tensor, state in zip(graph.inputs, inputs, strict=True):
            self.note(tensor, state)
        self.follow_all(graph)
        return [self.state(tensor) for tensor in graph.outputs]

    def follow(self, op: tf.Operation, known: list[State]) -> list[State]:
        kinds = {state.kind for state in known}
        if self._custom is not None and has_custom_gradient(op):
            return self._custom(self, op)
        if kinds <= {FIXED} or facts_of(op.type).has("valueless") or (self._stops and op.type == "StopGradient"):
            return [fixed] * len(op.outputs)
        if LOST in kinds:
            return self.lose(op, next(state.why for state in known if state.kind == LOST))
        return super().follow(op, known)

    def step(self, op: tf.Operation, known: list[State]) -> list[State]:
        sums = [state.why for state in known if state.kind == SUMMED]
        if sums:
            if _is_linear_in_sums(op, known):
                return [summed(sums[0])] * len(op.outputs)
            return self.lose(op, f"{place(op)}, of a sum over examples by {sums[0]}")
        if _sums(op, known[0]):
            return [summed(place(op))]
        return self.keeps(op) or self.lose(op, place(op))

    def joined(self, op: tf.Operation, several: Sequence[State]) -> State:
        return functools.reduce(lambda one, other: joined(one, other, place(op)), several)

    def body(self, op: tf.Operation, name: str, known: Sequence[State]) -> list[State]:
        """Return what is known of the outputs of a function that an operation calls.

        What is known of its tensors is noted here at the first call, for who looks into the function as well.
        """
        try:
            inside = function_body(op.graph, name)
        except LookupError:
            return self.lose(op, place(op))
        first = self._bodies.setdefault(name, known) if op.type in CALLS else None
        walk = self if first is known else Examples(self.batch, stops=self._stops)
        custom, walk._custom = self._custom, self._custom and refuse_custom
        outputs = walk.run(inside, known)
        self._custom = custom
        if first not in (None, known):
            for inner in inside.get_operations():
                for tensor in inner.outputs:
                    self.note(tensor, lost(f"{place(op)}, which is called in two ways"))
        # What is written into a variable in a function is read outside.
        for tensor, inner in zip(op.inputs[-len(known) :], inside.inputs, strict=False):
            if tensor.dtype == tf.resource and walk.state(inner) != fixed:
                self.note(tensor, walk.state(inner))
        return outputs[: len(op.outputs)]

    def branch(self, op: tf.Operation, known: list[State]) -> list[State]:
        return _checked(op, super().branch(op, known)) if known[0] == fixed else self.lose(op, place(op))

    def loop(self, op: tf.Operation, known: list[State]) -> list[State]:
        states = super().loop(op, known)
        goes_on = self.body(op, op.get_attr("cond").name, states)[0]
        return _checked(op, states) if goes_on == fixed else self.lose(op, place(op))


def _checked(op: tf.Operation, states: Sequence[State]) -> list[State]:
    """What is fixed in one case has the shape of what is apart in another, or nothing is proved."""
    checked = []
    for tensor, state in zip(op.outputs, states, strict=True):
        defined = tensor.dtype == tf.variant or tensor.shape.is_fully_defined()
        checked.append(state if state.kind != APART or defined else lost(place(op)))
    return checked


def refuse_custom(examples: Examples, op: tf.Operation) -> list[State]:
    """Lose the examples in every operation whose gradient its author gave."""
    first = next((state.why for state in map(examples.state, op.inputs) if state.kind == LOST), None)
    return examples.lose(op, first or f"a custom gradient in {place(op)}")


def _sums(op: tf.Operation, state: State) -> bool:
    """Whether an operation sums what each example has."""
    if op.type not in ("L2Loss", "Mean", "Sum") or state.kind != APART:
        return False
    if op.type == "L2Loss":
        return True
    gone, rank = static_axes(op, 1), op.inputs[0].shape.rank
    return gone is not None and (len(gone) == rank or state.axis in gone)


def _is_linear_in_sums(op: tf.Operation, states: Sequence[State]) -> bool:
    """Whether an operation's results are linear in its inputs that are sums, where all others are fixed."""
    sums = [index for index, state in enumerate(states) if state.kind == SUMMED]
    others = sum(state.kind == FIXED for state in states)
    return len(sums) + others == len(states) and is_linear(op, sums)
