"""How a function uses its variables, and what each use adds to the gradients of the examples.

A variable's gradient for one example is a sum over its uses, and each use is known by two tensors that a backward pass
has anyway: what the variable met (activations a) and the cotangents d of what came out.

    use                                 gradient of one example         its squared norm
    a W, one row for each example       aᵀd, of rank one                |a|² |d|²
    a W, rows t = 1 … T                 Σ_t a_tᵀd_t                     Σ_ts (a_t·a_s) (d_t·d_s), or built where smaller
    a convolution                       the same; a_t are its patches   the same
    a transposed convolution            the same; d_t are patches       the same
    a depthwise convolution             Σ_t a_t d_t for each channel    built
    x + w, x - w, x w                   d summed over broadcast axes    built: it is no larger than d
      for each part of w                the same, zero elsewhere        the same
    rows of a table, by number          d_t added to row n_t            Σ_ts [n_t = n_s] (d_t·d_s)

A variable that is used several times has its uses joined along t, so that the cross terms count (Goodfellow, "Efficient
per-example gradient computations", 2015; Li et al., "Large language models can be strong differentially private
learners", 2022; Bu et al., "Book-keeping", 2023). What is in no row of this table is never guessed: the variable is
named in `Uses.missing`, with the operation and its line.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from tapelab.derivatives.examples.custom_gradients import by_backward_pass
from tapelab.derivatives.machinery.arguments.kept import refusal
from tapelab.graphs.batch import FIXED, LOST, Examples
from tapelab.graphs.operations import EFFECTS, known, with_fact
from tapelab.graphs.program import captures, has_custom_gradient, place
from tapelab.process.tensorflow import Tensors, tf

READING = with_fact("passes") - with_fact("flat")  # the same elements, in their order
HARMLESS = with_fact("valueless")
PRODUCT, SWAPPED, SUM, LOOKUP = "product", "swapped", "sum", "lookup"
FILTER, TRANSPOSED, DEPTHWISE = "filter", "transposed filter", "depthwise filter"
FACTORS, BUILT, ROWS = "factors", "built", "rows"


class Use(NamedTuple):
    """One use of a variable.

    Attributes:
        kind: PRODUCT (a W), SWAPPED (a Wᵀ), SUM (elementwise), LOOKUP (rows of a table); FILTER, TRANSPOSED or
            DEPTHWISE (a convolution).
        op: the operation, and at which of its inputs the variable is: `position`.
        output: its result, whose cotangents are needed.
        met: the tensor that the variable met.
        shape: of the variable, as it comes into the operation.
        part: where a part of the variable comes in, the number of that part's first element, and how many elements the
            variable has; None for all of it.
    """

    kind: str
    op: tf.Operation
    position: int
    output: tf.Tensor
    met: tf.Tensor
    shape: tuple[int, ...]
    part: tuple[int, int] | None = None

    @property
    def is_offset(self) -> bool:
        """Whether its variable is added or subtracted, and what it meets does not matter."""
        return self.kind == SUM and self.op.type != "Mul"

    @property
    def is_subtracted(self) -> bool:
        return self.op.type == "Sub" and self.position == 1


class Uses:
    """The uses of variables in the graph that is being built.

    Args:
        batch: how many examples.
        data: tensors whose first axis is the batch.
        variables: those to follow.
        losses: the function's result, shape (batch,).
        tape: persistent, has recorded the function; needed where there are custom gradients.

    Attributes:
        by_variable: for each variable, the list of its uses.
        missing: for each variable with a use that has no rule, its index and why: the operation and its line.
        coupled: why the losses are not proved to keep the examples apart; None if they are.
        batch, examples: how many examples there are, and the states of the graph's tensors.
    """

    def __init__(
        self,
        batch: int,
        data: Tensors,
        variables: Sequence[tf.Variable],
        losses: tf.Tensor,
        tape: tf.GradientTape,
    ):
        self.batch = batch
        self.by_variable, self.missing = find_uses(losses.graph, variables)
        self._operations = losses.graph.get_operations()
        self.examples = self._followed(data, tape)
        begun = self._from_one_state()
        if begun:
            again = self._followed([*data, *begun], tape)
            if again.state(losses).kind != LOST:
                self.examples = again
        for index, uses in enumerate(self.by_variable):
            for use in uses:
                if not (self.examples.in_rows(use.output) and use.output.dtype.is_floating):
                    self.missing.setdefault(index, place(use.op))  # it is not known which part of the output is whose
            if form_of(uses, batch) is None:
                found = " and ".join(place(use.op) for use in uses)
                self.missing.setdefault(index, f"it is used in different ways, {found}")
        state = self.examples.state(losses)
        self.coupled = state.why if state.kind == LOST else None
        if state.kind == FIXED:
            self.coupled = "the losses do not depend on the arguments"
        elif state.kind != LOST and not self.examples.in_rows(losses):
            self.coupled = "the losses are sums over examples"

    def _followed(self, begun: Tensors, tape: tf.GradientTape) -> Examples:
        """The states of all tensors, where these are rows of the examples."""
        examples = Examples(self.batch, by_backward_pass(tape))
        for tensor in begun:
            examples.begin(tensor)
        for op in self._operations:
            examples.meet(op)
        return examples

    def _from_one_state(self) -> list[tf.Tensor]:
        """Results of uses that do not depend on the data, with as many rows as there are examples.

        A recurrent layer begins with a row of zeros for each example. The rows are the examples' if the losses then
        keep them apart.
        """
        outputs = [
            use.output for own in self.by_variable for use in own if self.examples.state(use.output).kind == FIXED
        ]
        return [tensor for tensor in outputs if tensor.shape.rank and tensor.shape[0] == self.batch]

    @property
    def last_first(self) -> list[int]:
        """The indices of all variables, by their last use in the graph, which a backward pass meets first."""
        place = {op.name: number for number, op in enumerate(self._operations)}
        last = [max([place[use.op.name] for use in own], default=-1) for own in self.by_variable]
        return sorted(range(len(last)), key=last.__getitem__, reverse=True)


def find_uses(graph: tf.Graph, sources: Sequence[tf.Tensor | tf.Variable]) -> tuple[list[list[Use]], dict[int, str]]:
    """Find how sources are used in a graph.

    Returns:
        A pair: for each source the list of its uses; and for each that has a use without a rule, its index and why.

    Raises:
        ValueError: if a variable is written to.
    """
    uses: list[list[Use]] = [[] for _ in sources]
    missing: dict[int, str] = {}
    # Of each tensor that is a source or a part of one: which source, and which of its elements comes first.
    owner = {source.ref(): (index, 0) for index, source in enumerate(sources) if not isinstance(source, tf.Variable)}
    handles = {id(source.handle): index for index, source in enumerate(sources) if isinstance(source, tf.Variable)}
    owner |= {inside.ref(): (handles[id(outer)], 0) for outer, inside in captures(graph) if id(outer) in handles}
    for op in graph.get_operations():
        owners = {position: owner[tensor.ref()] for position, tensor in enumerate(op.inputs) if tensor.ref() in owner}
        if not owners or op.type in HARMLESS:
            continue
        position, (index, first) = next(iter(owners.items()))
        if op.type.startswith(EFFECTS["writes"]):
            raise refusal(where=f", {sources[index].name!r}, by {place(op)}")
        alone = len(owners) == 1 and not has_custom_gradient(op)
        handed_on = _handed_on(op, position) if alone else []
        if handed_on:
            owner |= {tensor.ref(): (index, first + start) for tensor, start in handed_on}
            continue
        shape = sources[index].shape if op.inputs[position].dtype == tf.resource else op.inputs[position].shape
        use = use_of(op, position, tuple(shape)) if alone and shape.is_fully_defined() else None
        if use is not None and shape.num_elements() < sources[index].shape.num_elements():
            use = use._replace(part=(first, sources[index].shape.num_elements())) if use.kind == SUM else None
        if use is None:
            missing |= {each: place(op) for each, _ in owners.values() if each not in missing}
        elif not _meets_zeros(use):
            uses[index].append(use)
    for index, own in enumerate(uses):
        if not own:
            missing.setdefault(index, "no use of it was found in the graph")
    return uses, missing


def _handed_on(op: tf.Operation, position: int) -> list[tuple[tf.Tensor, int]]:
    """What an operation computes that is its input or parts of it, each in order: pairs of a tensor and its start.

    Empty if it computes anything else. A bias of a GRU is split into that of the inputs and that of the state.
    """
    if not op.outputs or not op.outputs[0].dtype.is_floating:
        return []
    if op.type in READING and position == 0:
        return [(op.outputs[0], 0)]
    shape, axis = op.inputs[position].shape, None
    if op.type in ("Split", "SplitV") and position == (op.type == "Split"):
        axis = tf.get_static_value(op.inputs[0 if op.type == "Split" else 2])
    elif op.type == "Unpack":
        axis = op.get_attr("axis")
    outputs = [tensor.shape for tensor in op.outputs]
    if axis is None or not all(one.is_fully_defined() for one in (shape, *outputs)):
        return []
    if math.prod(shape[: int(axis) % shape.rank]) != 1:
        return []  # each part's elements are not next to each other
    ends = itertools.accumulate((one.num_elements() for one in outputs), initial=0)
    return list(zip(op.outputs, ends, strict=False))


def _meets_zeros(use: Use) -> bool:
    """Whether a product is with zeros, as the first state of a recurrent layer: it adds nothing to a gradient."""
    met = tf.get_static_value(use.met) if use.kind in (PRODUCT, SWAPPED) else None
    return met is not None and not met.any()


def use_of(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    """Return how an operation uses what comes in at a position, of this shape; None if there is no rule for it."""
    rule = _RULES.get(op.type)
    return rule(op, position, shape) if rule else None


def form_of(uses: Sequence[Use], batch: int) -> str | None:
    """Say how a variable's gradients for the examples are held: FACTORS, BUILT or ROWS; None if its uses do not fit."""
    if all(use.kind == LOOKUP for use in uses):
        return ROWS
    matrices = [use for use in uses if use.kind in (PRODUCT, SWAPPED, FILTER, TRANSPOSED)]
    if not matrices:
        return BUILT if all(use.kind in (SUM, DEPTHWISE) for use in uses) else None
    if len({_matrix(use) for use in matrices}) > 1:
        return None
    rows, columns = _matrix(matrices[0])
    count = sum(positions_of(use) // batch for use in matrices)
    # Building them takes no more memory than the activations and cotangents do.
    small = count * (rows + columns) >= rows * columns and count > 1
    if len(matrices) == len(uses):
        return BUILT if small else FACTORS
    return BUILT if small and all(use.kind != LOOKUP for use in uses) else None


def positions_of(use: Use) -> int:
    """How many rows t a use has over all examples: its output's, or its input's where the output has the patches."""
    return math.prod((use.met if use.kind == TRANSPOSED else use.output).shape[:-1])


def _matrix(use: Use) -> tuple[int, int]:
    """The shape of the matrix that a variable is in a product."""
    return math.prod(use.shape[:-1]), use.shape[-1]


def _sum(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    if op.type == "BiasAdd" and (position != 1 or op.get_attr("data_format") != b"NHWC"):
        return None
    output = op.outputs[0]
    if len(shape) > output.shape.rank or (len(shape) == output.shape.rank and shape[0] != 1):
        return None  # a row for each example
    return Use(SUM, op, position, output, op.inputs[1 - position], shape)


def _product(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    first, second = map(op.get_attr, known(op.type).transposed_by)
    if position != 1 or len(shape) != 2 or first:
        return None
    return Use(SWAPPED if second else PRODUCT, op, position, op.outputs[0], op.inputs[0], shape)


def _convolution(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    images = op.inputs[0]
    if position != 1 or op.get_attr("data_format") != b"NHWC" or images.shape[-1] != shape[2]:
        return None
    return Use(FILTER, op, position, op.outputs[0], images, shape)


def _transposed(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    """A transposed convolution computes what a convolution's gradient by its images is."""
    upstream = op.inputs[2]
    if position != 1 or op.get_attr("data_format") != b"NHWC" or op.outputs[0].shape[-1] != shape[2]:
        return None
    return Use(TRANSPOSED, op, position, op.outputs[0], upstream, shape)


def _depthwise(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    if position != 1 or op.get_attr("data_format") != b"NHWC":
        return None
    return Use(DEPTHWISE, op, position, op.outputs[0], op.inputs[0], shape)


def _lookup(op: tf.Operation, position: int, shape: tuple[int, ...]) -> Use | None:
    return Use(LOOKUP, op, position, op.outputs[0], op.inputs[1], shape) if position == 0 else None


_RULES = {
    "BatchMatMulV2": _product,
    "Conv2D": _convolution,
    "Conv2DBackpropInput": _transposed,
    "DepthwiseConv2dNative": _depthwise,
    "GatherV2": _lookup,
    "MatMul": _product,
    "ResourceGather": _lookup,
    **dict.fromkeys(("Add", "AddV2", "BiasAdd", "Mul", "Sub"), _sum),
}
