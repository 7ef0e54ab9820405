"""The examples of a batch in chunks: whether a function does to a chunk what it does to them all, and the loop.

That examples do not depend on each other is not enough: a function may depend on how many they are, or hold a row for
each in a constant. So it is traced at both sizes, and the two graphs are compared, operation by operation.
"""

import contextlib
from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import islice, product
from typing import Any

from tapelab.derivatives.examples.independence import followed
from tapelab.derivatives.machinery.failures import told_line
from tapelab.derivatives.machinery.memory import counted
from tapelab.derivatives.machinery.problem import Problem
from tapelab.derivatives.machinery.rows import map_rows
from tapelab.graphs.batch import FIXED, LOST, Examples, Unproven
from tapelab.graphs.operations import of_family, operation
from tapelab.graphs.program import CALLS, SHAPES, function_body, in_order, place
from tapelab.process.tensorflow import tf

import numpy as np

_CHOICES = 8
# Which inputs decide what is in the result; the others decide its shape, which is compared.
_DECIDING = {
    "BroadcastTo": [0],
    "Conv2DBackpropInput": [1, 2],
    "Fill": [1],
    "Reshape": [0],
    "Slice": [0, 1],
    "StridedSlice": [0, 1, 3],
    "Tile": [0],
}
# What may meet a tensor of equal elements as if it were a number.
_ELEMENTWISE = of_family(operation.ELEMENTWISE)
_LIKE_A_NUMBER = {*_ELEMENTWISE, "ConcatV2", "Pack"}
# Names of functions, which are compared by their bodies, and what follows from an operation's inputs.
_IGNORED = {"_gradient_op_type", "_output_shapes", "f", "shape", "value"}


def data_by_example(problem: Problem, sizes: Sequence[int]) -> tuple[bool, ...]:
    """Return which of the data go with the examples, if the function may be evaluated on chunks of these sizes.

    Raises:
        Unproven: if it is not proved that the results are those for the whole batch; says why.
    """
    if not problem.repeatable:
        raise Unproven("the function draws random numbers or changes variables")
    batch = problem.source_shapes[0][0]
    # Data of as many rows may be a row for each example, or a matrix of that size: whichever is proved.
    choices = product(*[(True, False) if shape[:1] == (batch,) else (False,) for shape in problem.data_shapes])
    failures = []
    for own in islice(choices, _CHOICES):
        try:
            for size in sizes:
                _compare(problem, own, batch, size)
        except Unproven as error:
            failures.append(error)
            continue
        return own
    raise failures[0]


@contextlib.contextmanager
def called_with(count: int) -> Iterator[None]:
    """Around a call of the caller's function with so many examples: if it raises, nothing is proved.

    What a rule of ours raises does not count as such, and must not come from inside.
    """
    try:
        yield
    except Exception as error:  # whatever the function raises
        raise Unproven(f"for {counted(count, 'example')} it raises {told_line(error)[:150]}") from error


def in_chunks(
    run: Callable[[list[tf.Tensor | None]], list[tf.Tensor]],
    tensors: Sequence[tf.Tensor | None],
    axes: Sequence[int | None],
    batch: int,
    chunk: int,
    shapes: Sequence[tf.TensorSpec],
    how: str,
) -> list[tf.Tensor]:
    """Apply a function to some examples after the others, and join what it returns.

    Args:
        run: takes a list like ``tensors``; returns tensors with the examples first.
        tensors: what it takes, for all examples.
        axes: along which axis of each of them the examples are; None for one that is the same for all.
        batch, chunk: how many examples there are, and how many at once.
        shapes: the `tf.TensorSpec` of each result for one example, without the axis of the examples.
        how: as for `map_rows`.
    """

    def part(start: int | tf.Tensor, size: int) -> list[tf.Tensor]:
        own = []
        for tensor, axis in zip(tensors, axes, strict=True):
            if tensor is not None and axis is not None:
                begin, length = [0] * tensor.shape.rank, list(tensor.shape)
                begin[axis], length[axis] = start, size
                tensor = tf.slice(tensor, begin, length)
            own.append(tensor)
        return run(own)

    whole = batch // chunk
    specs = [tf.TensorSpec([chunk, *spec.shape], spec.dtype) for spec in shapes]
    stacked = map_rows(lambda index: part(index * chunk, chunk), specs, whole, how)
    found = [tf.reshape(rows, [whole * chunk, *spec.shape]) for rows, spec in zip(stacked, shapes, strict=True)]
    if whole * chunk == batch:
        return found
    return [tf.concat(pair, 0) for pair in zip(found, part(whole * chunk, batch - whole * chunk), strict=True)]


def _compare(problem: Problem, own: Sequence[bool], batch: int, size: int) -> None:
    graphs, by_example = [], [*[True] * problem.data_start, *own]
    for count in (batch, size):
        with called_with(count):
            specs = problem.sized(count, by_example)
            graphs.append(problem.traced(lambda *tensors: problem.evaluate(tensors), specs))
    whole, part = graphs
    examples = followed(whole.graph, by_example, batch)
    for output, other in zip(whole.graph.outputs, part.graph.outputs, strict=True):
        state = examples.state(output)
        if state.kind == LOST:
            raise Unproven(state.why)
        there = state.kind == FIXED or examples.in_rows(output)
        if not there or output.shape[0] != batch or other.shape[0] != size:
            raise Unproven("its results have the examples elsewhere")
    if any(sized_outputs(whole, part, examples, size)):
        raise Unproven("its results depend on how many examples there are")


def sized_outputs(
    whole: tf.types.experimental.ConcreteFunction,
    part: tf.types.experimental.ConcreteFunction,
    examples: Examples,
    size: int,
    *,
    draws: bool = False,
) -> list[bool]:
    """Return for each result of a function, traced for all examples and for a chunk, whether their number decides it.

    Args:
        examples: the states of the tensors for all of them.
        size: how many the chunk has.
        draws: whether random numbers, which do not depend on the examples, may be drawn for each of them.

    Raises:
        Unproven: if an operation differs in more than that.
    """
    if [id(tensor) for tensor in whole.captured_inputs] != [id(tensor) for tensor in part.captured_inputs]:
        raise Unproven("it reads other tensors from outside for fewer examples")
    twins = Twins(examples, size, draws)
    try:
        return twins.sized(whole.graph, part.graph, [False] * len(whole.graph.inputs))
    except (LookupError, ValueError) as error:  # the body of a function, or a shape, is not known
        raise Unproven(f"its graph cannot be followed: {error}") from error


class Twins:
    """Two graphs of one function, for all examples and for a chunk: see `sized_outputs`."""

    def __init__(self, examples: Examples, size: int, draws: bool):
        self._examples, self._size, self._draws = examples, size, draws
        # What does not depend on the examples, of a shape that depends on how many they are: equal elements, or draws.
        self._uniform: set[Hashable] = set()

    def sized(self, whole: tf.Graph, part: tf.Graph, inputs: Sequence[bool]) -> list[bool]:
        """Return for each output of the graphs whether it holds what the number of examples decides."""
        sized = {tensor.ref(): one for tensor, one in zip(whole.inputs, inputs, strict=True)}
        operations, others = in_order(whole), in_order(part)
        if [op.type for op in operations] != [op.type for op in others]:
            raise Unproven("it consists of other operations for fewer examples")
        if _wiring(whole) != _wiring(part):
            raise Unproven("its operations meet in other ways for fewer examples")
        for op, other in zip(operations, others, strict=True):
            if op.type == "Placeholder":
                continue
            marks = [sized[tensor.ref()] for tensor in op.inputs]
            if op.type in CALLS:
                self._require_alike(op, other)
                if any(tensor.ref() in self._uniform for tensor in op.inputs):
                    raise Unproven(f"it may count the examples: {place(op)}")
                body, smaller = (function_body(each.graph, each.get_attr("f").name) for each in (op, other))
                found = self.sized(body, smaller, marks)[: len(op.outputs)]
            else:
                found = self._of(op, other, marks)
            sized.update((tensor.ref(), one) for tensor, one in zip(op.outputs, found, strict=True))
        return [sized[tensor.ref()] for tensor in whole.outputs]

    def _of(self, op: tf.Operation, other: tf.Operation, marks: list[bool]) -> list[bool]:
        self._require_alike(op, other)
        if op.type in SHAPES:
            return [a.shape != b.shape for a, b in zip(op.inputs, other.inputs, strict=True)][: len(op.outputs)]
        own = all(self._examples.axis(tensor) is not None for tensor in op.outputs)
        alike = op.type in (_LIKE_A_NUMBER if own else _ELEMENTWISE if self._draws else ())
        if any(tensor.ref() in self._uniform for tensor in op.inputs) and not alike:
            raise Unproven(f"it may count the examples: {place(op)}")
        if op.type == "Const":
            ours, theirs = (tf.make_ndarray(one.get_attr("value")) for one in (op, other))
            return [not (_only(ours) == _only(theirs) is not None or np.array_equal(ours, theirs))]
        if self._draws and _is_random(op):
            marks = [mark for mark, tensor in zip(marks, op.inputs, strict=True) if tensor.dtype.is_floating]
        marks = [marks[i] for i in _DECIDING.get(op.type, range(len(marks)))]
        if any(marks) and own:
            raise Unproven(f"how many examples there are is a number in it, for {place(op)}")
        return [any(marks)] * len(op.outputs)

    def _require_alike(self, op: tf.Operation, other: tf.Operation) -> None:
        ours, theirs = op.node_def.attr, other.node_def.attr
        if set(ours) != set(theirs) or any(ours[name] != theirs[name] for name in ours if name not in _IGNORED):
            raise Unproven(f"it is another one for fewer examples: {place(op)}")
        for a, b in zip(op.outputs, other.outputs, strict=True):
            axis, expected = self._examples.axis(a), list(a.shape)
            if axis is not None:
                expected[axis] = expected[axis] * self._size // self._examples.batch
            elif list(b.shape) != expected and op.type not in CALLS and self._is_uniform(op):
                self._uniform.add(a.ref())
                continue
            elif op.type in {*SHAPES, "Const"} and a.dtype.is_integer and a.shape.rank == 1:
                continue  # a shape, or what is sized
            if list(b.shape) != expected:
                raise Unproven(f"it has a row for each example: {place(op)}")

    def _is_uniform(self, op: tf.Operation) -> bool:
        if not self._draws:
            return _is_uniform(op)
        made = op.type in _ELEMENTWISE and any(tensor.ref() in self._uniform for tensor in op.inputs)
        return made or _is_random(op) or _is_uniform(op)


def _wiring(graph: tf.Graph) -> list[list[tuple[int, int]]]:
    """Which results meet in each operation of a graph, and which it returns, by numbers."""
    operations = in_order(graph)
    numbers = {tensor.ref(): (k, i) for k, op in enumerate(operations) for i, tensor in enumerate(op.outputs)}
    return [
        [numbers[t.ref()] for t in tensors]
        for tensors in (graph.inputs, graph.outputs, *[op.inputs for op in operations])
    ]


def _is_random(op: tf.Operation) -> bool:
    """Whether an operation draws numbers."""
    return any(word in op.type for word in ("Random", "Normal", "Uniform"))


def _is_uniform(op: tf.Operation) -> bool:
    """Whether all elements of an operation's result are equal."""
    if op.type == "Const":
        return _only(tf.make_ndarray(op.get_attr("value"))) is not None
    return op.type == "Fill" or (op.type == "BroadcastTo" and op.inputs[0].shape.num_elements() == 1)


def _only(array: np.ndarray) -> Any:
    """The value of all elements of an array; None if there is none, or more than one."""
    return array.flat[0] if array.size and (array == array.flat[0]).all() else None
