"""The walk: which tensors of a program keep the examples of a batch apart, calls, branches and loops entered."""

from collections.abc import Callable, Sequence

from tapelab.graphs.batch.axes import axes_of
from tapelab.graphs.batch.states import APART, FIXED, LOST, ROWS, SUMMED, State, apart, fixed, joined, lost, summed
from tapelab.graphs.batch.step import static_axes
from tapelab.graphs.linear import is_linear
from tapelab.graphs.operations import known
from tapelab.graphs.program import (
    BRANCHES,
    CALLS,
    LOOPS,
    branches_of,
    function_body,
    has_custom_gradient,
    in_order,
    place,
)
from tapelab.process.tensorflow import tf

Custom = Callable[["Examples", tf.Operation], list[State]]


class Examples:
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
        for op in in_order(graph):
            self.follow(op)

    def follow(self, op: tf.Operation) -> None:
        """Note the states of an operation's outputs; its inputs were noted before."""
        for tensor, state in zip(op.outputs, self._outputs(op), strict=True):
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
        if not known(op.type).has("reads"):
            for tensor in op.inputs:
                if tensor.dtype == tf.resource:  # read later, it gives this back
                    self.note(tensor, lost(why))
        return [lost(why)] * len(op.outputs)

    def _outputs(self, op: tf.Operation) -> list[State]:
        if op.type == "Placeholder":
            return [self.state(tensor) for tensor in op.outputs]
        states = [self.state(tensor) for tensor in op.inputs]
        kinds = {state.kind for state in states}
        if self._custom is not None and has_custom_gradient(op):
            return self._custom(self, op)
        if kinds <= {FIXED} or known(op.type).has("valueless") or (self._stops and op.type == "StopGradient"):
            return [fixed] * len(op.outputs)
        if LOST in kinds:
            return self.lose(op, next(state.why for state in states if state.kind == LOST))
        if op.type in CALLS:
            return self._called(op, states)
        if op.type in BRANCHES:
            return self._branched(op, states)
        if op.type in LOOPS:
            return self._looped(op, states)
        if SUMMED in kinds:
            first = next(state.why for state in states if state.kind == SUMMED)
            if _is_linear_in_sums(op, states):
                return [summed(first)] * len(op.outputs)
            return self.lose(op, f"{place(op)}, of a sum over examples by {first}")
        if _sums(op, states[0]):
            return [summed(place(op))]
        return self.keeps(op) or self.lose(op, place(op))

    def _inside(
        self, op: tf.Operation, name: str, states: Sequence[State], *, noted: bool = False
    ) -> tuple[list[State], list[State]] | None:
        """The states of the outputs of a function that an operation calls; None if it is not found.

        Args:
            noted: whether to note those of its tensors here, for who looks into the function as well.
        """
        try:
            body = function_body(op.graph, name)
        except LookupError:
            return None
        walk = self if noted else Examples(self.batch, stops=self._stops)
        custom, walk._custom = self._custom, self._custom and refuse_custom
        for tensor, state in zip(body.inputs, states, strict=True):
            walk.note(tensor, state)
        walk.follow_all(body)
        self._custom = custom
        return [walk.state(tensor) for tensor in body.outputs], [walk.state(tensor) for tensor in body.inputs]

    def _written(self, op: tf.Operation, tensors: Sequence[tf.Tensor], after: Sequence[State]) -> None:
        """What is written into a variable in a function is read outside."""
        for tensor, state in zip(tensors, after, strict=True):
            if tensor.dtype == tf.resource and state != fixed:
                self.note(tensor, state)

    def _called(self, op: tf.Operation, states: list[State]) -> list[State]:
        name = op.get_attr("f").name
        first = self._bodies.setdefault(name, states)
        found = self._inside(op, name, states, noted=first is states)
        if found is None:
            return self.lose(op, place(op))
        if first != states:  # those that were noted are the first call's
            for inner in function_body(op.graph, name).get_operations():
                for tensor in inner.outputs:
                    self.note(tensor, lost(f"{place(op)}, which is called in two ways"))
        self._written(op, op.inputs, found[1])
        return found[0][: len(op.outputs)]

    def _branched(self, op: tf.Operation, states: list[State]) -> list[State]:
        if states[0] != fixed:
            return self.lose(op, place(op))
        outputs = [fixed] * len(op.outputs)
        for name in branches_of(op):
            found = self._inside(op, name, states[1:])
            if found is None:
                return self.lose(op, place(op))
            self._written(op, op.inputs[1:], found[1])
            outputs = [joined(*pair, place(op)) for pair in zip(outputs, found[0], strict=False)]
        return self._checked(op, outputs)

    def _looped(self, op: tf.Operation, states: list[State]) -> list[State]:
        """What is so after a turn is so before the next one."""
        condition, body = (op.get_attr(name).name for name in ("cond", "body"))
        before = None
        while states != before:
            before, found = states, self._inside(op, body, states)
            if found is None:
                return self.lose(op, place(op))
            self._written(op, op.inputs, found[1])
            states = [joined(*pair, place(op)) for pair in zip(before, found[0], strict=False)]
        goes_on = self._inside(op, condition, states)
        if goes_on is None or goes_on[0][0] != fixed:
            return self.lose(op, place(op))
        return self._checked(op, states)

    def _checked(self, op: tf.Operation, states: list[State]) -> list[State]:
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
