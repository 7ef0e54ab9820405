"""Following dependences through a traced graph, operation by operation.

What is the same at every call (shapes, constants, counters of loops) is computed on the way: it tells which elements a
gather takes, where a matrix is zero and how often a loop runs. An operation without a rule makes all of its results
depend on all of its inputs, and is named.
"""

from collections.abc import Iterable, Sequence

from tapelab.derivatives import costs
from tapelab.derivatives.sparse.dependence import Dependence, NoRule, Room, everything, union
from tapelab.derivatives.sparse.lists import LISTS
from tapelab.derivatives.sparse.products import PRODUCTS
from tapelab.derivatives.sparse.rules import RULES, Step
from tapelab.derivatives.sparse.stencils import STENCILS
from tapelab.graphs.flow import Walk
from tapelab.graphs.operations import with_fact
from tapelab.graphs.program import SHAPES, branches_of, in_order, place, reissue
from tapelab.process.tensorflow import tf

_RULES = RULES | PRODUCTS | STENCILS
_FLAT = with_fact("flat")
# What TensorFlow raises where an operation cannot be issued with these inputs.
_CANNOT = (LookupError, NotImplementedError, TypeError, ValueError, tf.errors.OpError)
_DERIVED = ("gradient_tape", "gradients")  # the scopes that TensorFlow puts gradients' operations in


class _Unending(Exception):
    """A loop that is not followed turn by turn; says why."""


class Dependences(Walk[Dependence]):
    """Sends dependences through graphs.

    Args:
        room: raises if a matrix is too large.

    Attributes:
        dense: the operations whose results were taken to depend on all of their inputs, with their lines and why.
    """

    def __init__(self, room: Room):
        self._room = room
        self._steps = 0
        self._looping = 0
        self._constants: dict = {}
        self._needed: dict = {}
        self.dense: list[str] = []

    def operations(self, graph: tf.Graph) -> list[tf.Operation]:
        """The operations that a graph's outputs are made of, looked up once for all turns of a loop."""
        if id(graph) not in self._needed:
            needed = [op for op in in_order(graph, graph.outputs) if op.type != "Placeholder"]
            self._needed[id(graph)] = needed, graph  # the graph is kept with it: its id stays its own
        return self._needed[id(graph)][0]

    def follow(self, op: tf.Operation, known: list[Dependence]) -> list[Dependence]:
        """Return what is known of an operation's outputs. Turns of loops are counted."""
        if self._looping:
            self._steps += 1
            if self._steps > costs.LOOP_OPERATIONS:
                raise _Unending(f"its turns are more than {costs.LOOP_OPERATIONS} operations")
        return super().follow(op, known)

    def step(self, op: tf.Operation, known: list[Dependence]) -> list[Dependence]:
        """Return what is known of an operation's outputs: their values, or what they depend on by its rule."""
        if op.type in ("Identity", "IdentityN"):
            return known
        shapes = _shapes(op, known)
        values = self._values(op, known, shapes)
        if values is not None:
            return [Dependence(shape, value=value) for shape, value in zip(shapes, values, strict=True)]
        flat = op.type in _FLAT or not any(map(_continuous, op.outputs))
        if op.type not in LISTS and (flat or not any(one.depends for one in known)):
            return [Dependence(shape) for shape in shapes]
        try:
            return self._by_rule(op, known, shapes)
        except NoRule as error:
            return self._everything(op, known, shapes, str(error))

    def _by_rule(
        self, op: tf.Operation, known: list[Dependence], shapes: list[tuple[int, ...] | None]
    ) -> list[Dependence]:
        if op.type == "AddN" and op.outputs[0].dtype == tf.variant:
            return [_either(known, self._room)]
        if op.type in LISTS:
            return LISTS[op.type](Step(op, known, shapes, self._room))
        if op.type not in _RULES or any(one.items is not None for one in known):
            raise NoRule("it is not among the operations that are followed")
        if any(one.depends and one.shape is None for one in known) or None in shapes:
            raise NoRule("a shape is not known in a graph")
        try:
            matrices = _RULES[op.type](Step(op, known, shapes, self._room))
        except (IndexError, TypeError, ValueError, tf.errors.OpError) as error:
            raise NoRule(f"its rule does not fit: {error}") from error
        return [
            Dependence(shape, matrix if _continuous(tensor) else None)
            for shape, matrix, tensor in zip(shapes, matrices, op.outputs, strict=True)
        ]

    def _values(
        self, op: tf.Operation, known: list[Dependence], shapes: list[tuple[int, ...] | None]
    ) -> list[tf.Tensor] | None:
        """The values of an operation's results, if they are the same at every call; None otherwise."""
        if op.type == "Const":
            if op not in self._constants:
                with tf.init_scope(), tf.device("CPU:0"):
                    self._constants[op] = reissue(op, [])
            return self._constants[op]
        try:
            with tf.init_scope(), tf.device("CPU:0"):
                if op.type in SHAPES and all(one.shape is not None for one in known):
                    return reissue(op, [tf.zeros(one.shape) for one in known])
                if op.type == "TensorListLength" and known[0].items is not None:
                    return [tf.constant(len(known[0].items))]
                if op.type in ("ZerosLike", "OnesLike") and shapes[0] is not None and op.outputs[0].dtype != tf.variant:
                    return [(tf.zeros if op.type == "ZerosLike" else tf.ones)(shapes[0], op.outputs[0].dtype)]
                if op.type in LISTS or op.op_def.is_stateful or any(one.value is None for one in known):
                    return None
                return reissue(op, [one.value for one in known])
        except _CANNOT:  # no kernel here, or one that refuses these values
            return None

    def _everything(
        self, op: tf.Operation, known: list[Dependence], shapes: list[tuple[int, ...] | None], reason: str
    ) -> list[Dependence]:
        if not any(one.depends for one in known):
            return [Dependence(shape) for shape in shapes]
        text = f"{_line_of(op)}: {reason}"
        if text not in self.dense:
            self.dense.append(text)
        return [
            everything(known, None if tensor.dtype == tf.variant else shape, self._room)
            if _continuous(tensor)
            else Dependence(shape)
            for tensor, shape in zip(op.outputs, shapes, strict=True)
        ]

    def branch(self, op: tf.Operation, known: list[Dependence]) -> list[Dependence]:
        """Follow the branch that is taken at every call, or all of them."""
        chosen, names = known[0].value, branches_of(op)
        if chosen is None:
            return super().branch(op, known)
        number = int(chosen.numpy().any() if "If" in op.type else chosen.numpy())
        return self.body(op, names[number if 0 <= number < len(names) else -1], known[1:])

    def joined(self, op: tf.Operation, several: Sequence[Dependence]) -> Dependence:
        return _either(several, self._room)

    def loop(self, op: tf.Operation, known: list[Dependence]) -> list[Dependence]:
        """Follow a loop turn by turn, where constants tell how often it runs."""
        condition, body = (op.get_attr(name).name for name in ("cond", "body"))
        now = list(known)
        self._looping += 1
        try:
            while True:
                goes_on = self.body(op, condition, now)[0]
                if goes_on.value is None:
                    raise _Unending("how often it runs depends on values")
                if not goes_on.value.numpy().any():
                    return now
                now = self.body(op, body, now)
        except _Unending as error:
            if self._looping > 1 and self._steps > costs.LOOP_OPERATIONS:
                raise  # they are the outer loop's turns
            return self._everything(op, known, [static_shape(tensor) for tensor in op.outputs], str(error))
        finally:
            self._looping -= 1
            self._steps = self._steps if self._looping else 0


def _either(ones: Iterable[Dependence | None], room: Room) -> Dependence:
    """What is known of a tensor that is one of two, or the sum of several."""
    there = [one for one in ones if one is not None]
    first = there[0]
    if all(one is first for one in there):
        return first
    if any(one.items is not None for one in there):
        lists = [one.items for one in there if one.items]  # an empty box is no box
        hidden = any(one.items is None and one.depends for one in there)
        if not hidden and all(len(items) == len(lists[0]) for items in lists):
            merged = [
                _either(parts, room) if any(part is not None for part in parts) else None
                for parts in zip(*lists, strict=True)
            ]
            return Dependence((), items=tuple(merged))
        return everything(there, None, room)
    if any(one.shape != first.shape or one.shape is None for one in there):
        return everything(there, None, room)
    matrices = [one.matrix for one in there if one.matrix is not None]
    return Dependence(first.shape, union(matrices) if matrices else None)


def _continuous(tensor: tf.Tensor) -> bool:
    """Whether derivatives go through a tensor: numbers that are not whole, and what holds such."""
    return tensor.dtype.is_floating or tensor.dtype.is_complex or tensor.dtype in (tf.variant, tf.resource)


def static_shape(tensor: tf.Tensor) -> tuple[int, ...] | None:
    """Return the shape that a tensor has in any case, None if a size is not known."""
    return tuple(tensor.shape) if tensor.shape.is_fully_defined() else None


def _shapes(op: tf.Operation, known: list[Dependence]) -> list[tuple[int, ...] | None]:
    """The shapes of an operation's outputs: its own, or from those that the inputs have here; None if not known."""
    shapes = [static_shape(tensor) for tensor in op.outputs]
    if None not in shapes or any(one.shape is None for one in known) or any(one.items is not None for one in known):
        return shapes
    try:
        if op.type.startswith("Segment") and known[1].value is not None:
            return [(int(known[1].value.numpy().max(initial=-1)) + 1, *known[0].sizes[1:])]
        with tf.Graph().as_default():
            inputs = [
                tf.compat.v1.placeholder(tensor.dtype, one.shape)
                if one.value is None
                else tf.constant(one.value.numpy())
                for tensor, one in zip(op.inputs, known, strict=True)
            ]
            return [static_shape(output) for output in reissue(op, inputs)]
    except _CANNOT:  # an operation that cannot be issued again has the shapes that it has
        return shapes


def _line_of(op: tf.Operation) -> str:
    """Name an operation and its line; of a gradient's operation, that of the nearest one that the function has."""
    seen, left = {op}, [op]
    while left:
        near = left.pop(0)
        if not near.name.startswith(_DERIVED) and near.type not in ("Const", "Placeholder"):
            return place(op) if near is op else f"{op.type} in the gradient of {place(near)}"
        new = [tensor.op for tensor in near.inputs if tensor.op not in seen]
        seen.update(new)
        left += new
    return f"{op.type} ({op.name})"
